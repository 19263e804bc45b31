//! Delay injections: a stage made slower on purpose, as an operator sets it (`pipectl dial`).
//!
//! An injection is a store-and-forward server at the exit of a stage. It releases a fragment at
//! max(arrival, release before) + `g` + x·`G` and delivers it `L` later. If latencies spread,
//! each is drawn: their mean is `L` but for stalls, and 1 s is the longest. `o` is time of the
//! shard's thread for each fragment. Injections show what a slower disk or network would do to an
//! application. They also check that calibration reads back what was set.

use core::fmt;

use piped_core::ids::DeviceId;
use piped_core::limits::{DIAL_HOST_MAX, DIAL_PER_BYTE_PS_MAX, DIAL_TIME_MAX};
use piped_core::names::is_node_name;
use piped_core::spread::{LatencySpread, SpreadFault};
use piped_core::units::Nanos;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::device::{device_name, device_of};

/// The stage at whose exit a delay injection stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum DialPlace {
    /// Reads of a device, or writes to it.
    Disk {
        /// The block device that is slowed.
        device: DeviceId,
        /// Whether writes are slowed; otherwise reads are.
        write: bool,
    },
    /// Copies from memory to memory; and, in a copy from a peer to a peer, between its two halves,
    /// as if the bytes were stored here.
    Copy,
    /// The checksum of a data frame, before the frame leaves.
    Check,
    /// Data frames to a peer, before they reach the socket.
    Send {
        /// The peer's name in the configuration.
        peer: String,
    },
    /// Data frames from a peer, as if the wire delivered them later.
    Net {
        /// The peer's name, as it is configured or as it said.
        peer: String,
    },
    /// Data frames from a peer, as if the receiving host handled them later.
    Receive {
        /// The peer's name, as it is configured or as it said.
        peer: String,
    },
}

impl fmt::Display for DialPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk { device, write } => {
                write!(f, "disk:{}:{}", device_name(*device), if *write { "write" } else { "read" })
            }
            Self::Copy => f.write_str("copy"),
            Self::Check => f.write_str("check"),
            Self::Send { peer } => write!(f, "send:{peer}"),
            Self::Net { peer } => write!(f, "net:{peer}"),
            Self::Receive { peer } => write!(f, "receive:{peer}"),
        }
    }
}

/// Why a delay injection cannot be set.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DialFault {
    /// The text names no stage.
    #[error(
        "`{0}` is no stage that can be dialled; it is disk:MAJOR:MINOR (or with :read or :write \
         behind it), send:PEER, net:PEER, receive:PEER, check or copy"
    )]
    Place(String),
    /// A parameter exceeds its bound.
    #[error("{parameter} of a dial is at most {most}")]
    TooLong {
        /// The parameter's name: `L`, `g`, `G` or `o`.
        parameter: &'static str,
        /// The bound with its unit, as operators write it.
        most: &'static str,
    },
    /// Latencies cannot differ so.
    #[error(transparent)]
    Spread(#[from] SpreadFault),
    /// There is a spread, and no latency that could differ.
    #[error("a spread is of L: give it as well (as in --L 70us)")]
    NoLatency,
    /// All parameters are 0, so that nothing would be slower.
    #[error(
        "a dial that adds nothing: give one of L, g, G and o (as in --g 50us), or clear it with \
         `pipectl dial clear`"
    )]
    Nothing,
}

impl DialPlace {
    /// The stages that an operator names: one stage, or both reads and writes of a device.
    ///
    /// # Errors
    /// The text names no stage; the fault lists the names there are.
    pub fn parse(text: &str) -> Result<Vec<Self>, DialFault> {
        let shown = || text.chars().take(PLACE_SHOWN).flat_map(char::escape_debug).collect();
        let fault = || DialFault::Place(shown());
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let peer = || is_node_name(rest).then(|| rest.to_owned()).ok_or_else(fault);
        Ok(match kind {
            "copy" if text == kind => vec![Self::Copy],
            "check" if text == kind => vec![Self::Check],
            "send" => vec![Self::Send { peer: peer()? }],
            "net" => vec![Self::Net { peer: peer()? }],
            "receive" => vec![Self::Receive { peer: peer()? }],
            "disk" => disks(rest).ok_or_else(fault)?,
            _ => return Err(fault()),
        })
    }
}

/// Characters of a wrong name that a message repeats.
const PLACE_SHOWN: usize = 80;

fn disks(text: &str) -> Option<Vec<DialPlace>> {
    let mut parts = text.split(':');
    let major: u32 = parts.next()?.parse().ok()?;
    let minor: u32 = parts.next()?.parse().ok()?;
    let device = device_of(major, minor)?;
    let ways: &[bool] = match (parts.next(), parts.next()) {
        (None, None) => &[false, true],
        (Some("read"), None) => &[false],
        (Some("write"), None) => &[true],
        _ => return None,
    };
    Some(ways.iter().map(|&write| DialPlace::Disk { device, write }).collect())
}

/// What a delay injection adds to each fragment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct DialCost {
    /// `L`: nanoseconds from a fragment's release to its delivery, during which other fragments
    /// pass.
    pub latency_ns: u64,
    /// `g`: nanoseconds between two releases, whatever the fragments' sizes.
    pub overhead_ns: u64,
    /// `G`: picoseconds between two releases for each byte.
    pub per_byte_ps: u64,
    /// `o`: nanoseconds of the shard's thread for each fragment.
    pub host_ns: u64,
    /// How much single latencies differ from `L`. What passes a disk may then be overtaken;
    /// elsewhere it keeps its order, and what comes behind a late fragment waits for it.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "LatencySpread::is_none"))]
    pub spread: LatencySpread,
}

impl DialCost {
    /// The cost, if it is within the bounds in which a node still answers, and not zero. A zero
    /// cost would be shown as set and slow nothing.
    ///
    /// # Errors
    /// A parameter exceeds its bound, all of them are 0, or no latency can spread so.
    pub fn check(self) -> Result<Self, DialFault> {
        let stall = self.latency_ns as f64 * self.spread.check()?.times;
        let bounds = [
            ("L", self.latency_ns, DIAL_TIME_MAX.0, "1 s"),
            ("a stall", stall as u64, DIAL_TIME_MAX.0, "1 s"),
            ("g", self.overhead_ns, DIAL_TIME_MAX.0, "1 s"),
            ("G", self.per_byte_ps, DIAL_PER_BYTE_PS_MAX, "1 us/B"),
            ("o", self.host_ns, DIAL_HOST_MAX.0, "10 ms"),
        ];
        match bounds.into_iter().find(|&(_, value, most, _)| value > most) {
            Some((parameter, _, _, most)) => Err(DialFault::TooLong { parameter, most }),
            None if self == Self::default() => Err(DialFault::Nothing),
            None if self.latency_ns == 0 && !self.spread.is_none() => Err(DialFault::NoLatency),
            None => Ok(self),
        }
    }

    /// `g + x·G`: how long a fragment of that many bytes occupies the stage.
    #[must_use]
    pub fn occupancy(self, bytes: u32) -> Nanos {
        Nanos(self.overhead_ns + u64::from(bytes) * self.per_byte_ps / 1_000)
    }

    /// The delay from a fragment's release to its delivery: `L`, or one that `unit` draws, with
    /// even numbers between 0 and 1. None is longer than the longest `L`.
    pub fn latency(self, unit: impl FnMut() -> f64) -> Nanos {
        self.spread.draw(Nanos(self.latency_ns), unit).min(DIAL_TIME_MAX)
    }

    /// `o`: time of the shard's thread for each fragment.
    #[must_use]
    pub const fn host(self) -> Nanos {
        Nanos(self.host_ns)
    }

    /// Whether a fragment goes on as soon as the thread has spent its time on it.
    #[must_use]
    pub fn is_host_only(self) -> bool {
        Self { host_ns: 0, ..self } == Self::default()
    }
}

/// A delay injection that is set, and its effect so far.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct DialReport {
    /// The stage, as `dial set` takes it.
    pub stage: String,
    /// The cost that was set for each fragment.
    pub cost: DialCost,
    /// Fragments that the injection holds now.
    pub held: u32,
    /// Fragments that the injection has released.
    pub released: u64,
    /// True if nothing that the daemon knows passes there yet: no peer of that name is configured
    /// or was connected, or nothing has used the device. A misspelt name stays unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub unknown: bool,
    /// How late releases were against their due times, in seconds: the median and the 99th
    /// percentile.
    pub late_seconds: [f64; 2],
}

#[cfg(test)]
mod tests {
    use piped_core::noise::Noise;

    use super::*;

    #[test]
    fn stages_are_named_as_they_are_shown() {
        for text in [
            "disk:254:0:read",
            "disk:8:16:write",
            "disk:259:300:read",
            "copy",
            "check",
            "send:b",
            "net:b",
            "receive:b",
        ] {
            let places = DialPlace::parse(text).expect(text);
            assert_eq!(places.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
        }
        let both = DialPlace::parse("disk:8:1").expect("a device");
        assert_eq!(both.len(), 2, "{both:?}");
    }

    #[test]
    fn what_is_no_stage_is_refused_with_what_is() {
        let long = format!("send:{}", "x".repeat(65));
        for text in [
            "",
            "disk",
            "disk:8",
            "disk:8:0:both",
            "disk:8:0:read:x",
            "disk:4096:0",
            "copy:x",
            "net:",
            "net:a b",
            "send:be\x1b[31mta",
            &long,
        ] {
            let fault = DialPlace::parse(text).expect_err(text).to_string();
            assert!(fault.contains("receive:PEER"), "{fault}");
            assert!(fault.len() < 400 && !fault.contains('\x1b'), "{fault:?}");
        }
    }

    #[test]
    fn costs_beyond_their_bounds_are_refused_by_name() {
        let most = DialCost {
            latency_ns: 1_000_000_000,
            overhead_ns: 1_000_000_000,
            per_byte_ps: 1_000_000,
            host_ns: 10_000_000,
            spread: LatencySpread { cv: 10.0, stalls: 0.5, times: 1.0 },
        };
        assert_eq!(most.check(), Ok(most));
        assert_eq!(DialCost::default().check(), Err(DialFault::Nothing));
        for (more, name) in [
            (DialCost { latency_ns: most.latency_ns + 1, ..most }, "L "),
            (DialCost { overhead_ns: u64::MAX, ..most }, "g "),
            (DialCost { per_byte_ps: u64::MAX, ..most }, "G "),
            (DialCost { host_ns: most.host_ns + 1, ..most }, "o "),
            (DialCost { spread: LatencySpread { times: 1.01, ..most.spread }, ..most }, "a stall "),
            (DialCost { spread: LatencySpread { cv: 11.0, ..most.spread }, ..most }, "a spread "),
            (DialCost { latency_ns: 0, ..most }, "a spread is of L"),
        ] {
            let fault = more.check().expect_err("beyond").to_string();
            assert!(fault.starts_with(name), "{fault}");
        }
        assert_eq!(most.occupancy(1 << 20).0, 1_000_000_000 + (1 << 20) * 1_000);
    }

    #[test]
    fn no_latency_is_longer_than_the_longest() {
        let spread = LatencySpread { cv: 10.0, ..LatencySpread::NONE };
        let cost = DialCost { latency_ns: 900_000_000, spread, ..DialCost::default() };
        let mut noise = Noise::of_seed(1);
        let drawn: Vec<Nanos> = (0..2_000).map(|_| cost.latency(|| noise.unit())).collect();
        assert!(drawn.iter().all(|latency| *latency <= DIAL_TIME_MAX));
        assert!(drawn.contains(&DIAL_TIME_MAX) && drawn.iter().any(|it| it.0 < 1_000_000));
    }
}
