//! Whether a lane's long sends go without a copy: found out on the lane, size by size.
//!
//! What a send without a copy saves is the copy; what it costs is pages pinned, a second
//! completion, and memory that is lent until the other side has it. Which is more depends on the
//! processor, the network device and the size, and on loopback the kernel copies all the same,
//! later. So nothing is believed beforehand. A few sends are tried. If the kernel says that it
//! copied them, that is the end of it for a while, longer each time. Otherwise some sends of each
//! size are timed, now with a copy and now without, and a size goes without where its median is
//! clearly less, and goes back where it is not less any more.
//!
//! Everything here follows from the calls and their times.

use piped_core::modes::{CalibrationMode, ZeroCopyMode};
use piped_core::units::Nanos;
use piped_report::shard::{ZeroCopyReport, ZeroCopyState};
use piped_wire::LEND_BYTES_MIN;

use self::costs::SizeCosts;

mod costs;

/// Sends that are tried before the kernel's word is taken.
const TRIALS: u32 = 4;

/// How long a lane on which the kernel copies is left alone, at first and at most.
const PAUSE_FIRST: Nanos = Nanos::from_millis(10_000);
const PAUSE_MAX: Nanos = Nanos::from_millis(3_600_000);
/// By so much it grows each time: ten tries a day are enough for a path that changes.
const PAUSE_GROWTH: u64 = 4;

/// One send of a size is timed in so many, until its cost is known, and then less often.
const TIMED_EACH: u32 = 8;
const TIMED_EACH_KNOWN: u32 = 64;

/// Sizes: below 32 KiB, below 64 KiB, and so on to what a batch holds and more.
const SIZES: usize = 6;

/// How a send goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Way {
    /// The kernel copies it into the socket.
    Plain { timed: bool },
    /// The send lends its memory to the kernel.
    Lend { timed: bool },
}

impl Way {
    pub(in crate::shard) const fn is_timed(self) -> bool {
        let (Self::Plain { timed } | Self::Lend { timed }) = self;
        timed
    }
}

/// Decides for one lane which sends go without a copy.
#[derive(Debug)]
pub(in crate::shard) struct ZeroCopy {
    stand: Stand,
    pause: Nanos,
    sizes: [SizeCosts; SIZES],
    /// Lent sends that are back: those the kernel copied all the same, and those it did not copy.
    copied: u64,
    in_place: u64,
    /// Whether the kernel copied what was lent last, one bit each.
    last: u16,
}

/// What is known of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// Nothing. So many were tried, and so many of them are back.
    Trying { sent: u32, back: u32, copied: u32 },
    /// The kernel copies: not before then.
    Copied { until: Nanos, pause: Nanos },
    /// The socket, or the system's limits, do not allow it: not before then.
    Refused { until: Nanos, pause: Nanos },
    /// The kernel sends out of the memory that it is lent.
    InPlace,
}

const NOTHING: Stand = Stand::Trying { sent: 0, back: 0, copied: 0 };

impl ZeroCopy {
    pub(in crate::shard) fn new() -> Self {
        Self {
            stand: NOTHING,
            pause: PAUSE_FIRST,
            sizes: [SizeCosts::default(); SIZES],
            copied: 0,
            in_place: 0,
            last: 0,
        }
    }

    /// Whether any size goes without a copy: batches are then cut by size.
    pub(in crate::shard) fn any(&self, mode: ZeroCopyMode) -> bool {
        match mode {
            ZeroCopyMode::Off => false,
            ZeroCopyMode::On => true,
            ZeroCopyMode::Auto => {
                self.stand == Stand::InPlace && self.sizes.iter().any(SizeCosts::pays)
            }
        }
    }

    /// How the next send of so many bytes goes.
    pub(in crate::shard) fn choose(
        &mut self,
        bytes: u64,
        mode: ZeroCopyMode,
        calibration: CalibrationMode,
        now: Nanos,
    ) -> Way {
        let plain = Way::Plain { timed: false };
        match mode {
            ZeroCopyMode::Off => return plain,
            ZeroCopyMode::On => return Way::Lend { timed: false },
            ZeroCopyMode::Auto => {}
        }
        if let Stand::Copied { until, .. } | Stand::Refused { until, .. } = self.stand {
            if now < until || calibration != CalibrationMode::Live {
                return plain;
            }
            self.stand = NOTHING;
        }
        let size = &mut self.sizes[size_of(bytes)];
        match (&mut self.stand, calibration) {
            (Stand::Trying { sent, .. }, CalibrationMode::Live) if *sent < TRIALS => {
                *sent += 1;
                Way::Lend { timed: true }
            }
            (Stand::InPlace, CalibrationMode::Live) => {
                let each = if size.is_known() { TIMED_EACH_KNOWN } else { TIMED_EACH };
                let timed = size.is_due(each);
                // In turn, so that what changes changes for both.
                match (timed, size.next_lends()) {
                    (true, true) => Way::Lend { timed },
                    (true, false) => Way::Plain { timed },
                    _ if size.pays() => Way::Lend { timed },
                    _ => plain,
                }
            }
            (Stand::InPlace, CalibrationMode::Frozen) if size.pays() => Way::Lend { timed: false },
            _ => plain,
        }
    }

    /// A send was timed: so long the thread was at it.
    pub(in crate::shard) fn sample(&mut self, way: Way, bytes: u64, cost: Nanos) {
        self.sizes[size_of(bytes)].sample(matches!(way, Way::Lend { .. }), bytes, cost);
    }

    /// A send that lent is over: the kernel held its memory so long, and copied it or not.
    pub(in crate::shard) fn handle_notice(
        &mut self,
        bytes: u64,
        copied: bool,
        held: Nanos,
        now: Nanos,
    ) {
        self.copied += u64::from(copied);
        self.in_place += u64::from(!copied);
        self.last = self.last << 1 | u16::from(copied);
        if !copied {
            self.sizes[size_of(bytes)].held(held);
        }
        match &mut self.stand {
            Stand::Trying { back, copied: of_them, .. } => {
                *back += 1;
                *of_them += u32::from(copied);
                if *back == TRIALS {
                    // A segment that is sent again while it is copied for somebody who listens says
                    // little.
                    if *of_them * 2 > TRIALS { self.rest(now) } else { self.stand = Stand::InPlace }
                }
            }
            // Most of the last sixteen: the path has changed.
            Stand::InPlace if self.last.count_ones() > u16::BITS / 2 => self.rest(now),
            _ => {}
        }
    }

    /// The kernel does not take such a send here.
    pub(in crate::shard) fn handle_refusal(&mut self, now: Nanos) {
        self.stand = Stand::Refused { until: now + PAUSE_MAX, pause: PAUSE_MAX };
    }

    /// The kernel copies: nothing is tried for a while.
    fn rest(&mut self, now: Nanos) {
        self.stand = Stand::Copied { until: now + self.pause, pause: self.pause };
        self.pause = Nanos(self.pause.0.saturating_mul(PAUSE_GROWTH)).min(PAUSE_MAX);
        self.sizes = [SizeCosts::default(); SIZES];
        self.last = 0;
    }

    /// What there is to say of it; nothing where nothing was tried.
    pub(in crate::shard) fn report(
        &self,
        mode: ZeroCopyMode,
        lending: bool,
    ) -> Option<ZeroCopyReport> {
        let state = match (mode, self.stand) {
            (ZeroCopyMode::Off, _) => ZeroCopyState::Off,
            (ZeroCopyMode::On, _) => ZeroCopyState::On,
            (ZeroCopyMode::Auto, NOTHING) => return None,
            (ZeroCopyMode::Auto, Stand::Trying { .. }) => ZeroCopyState::Trying,
            (ZeroCopyMode::Auto, Stand::Copied { .. }) => ZeroCopyState::Copied,
            (ZeroCopyMode::Auto, Stand::Refused { .. }) => ZeroCopyState::Refused,
            (ZeroCopyMode::Auto, Stand::InPlace) if self.any(mode) => ZeroCopyState::Pays,
            (ZeroCopyMode::Auto, Stand::InPlace) => ZeroCopyState::DoesNotPay,
        };
        let pause = match self.stand {
            Stand::Copied { pause, .. } | Stand::Refused { pause, .. } => Some(pause.seconds()),
            _ => None,
        };
        let known =
            |(place, size): (usize, &SizeCosts)| size.report(u64::from(LEND_BYTES_MIN) << place);
        Some(ZeroCopyReport {
            state,
            lending,
            in_place: self.in_place,
            copied: self.copied,
            pause_seconds: pause.filter(|_| mode == ZeroCopyMode::Auto),
            pays_from_bytes: self.pays_from(mode),
            sizes: self.sizes.iter().enumerate().filter_map(known).collect(),
        })
    }

    /// The least size from which on all that are known pay.
    fn pays_from(&self, mode: ZeroCopyMode) -> Option<u64> {
        if mode != ZeroCopyMode::Auto || self.stand != Stand::InPlace {
            return None;
        }
        let known = self.sizes.iter().enumerate().rev().filter(|(_, size)| size.is_known());
        let paying = known.take_while(|(_, size)| size.pays());
        paying.last().map(|(place, _)| u64::from(LEND_BYTES_MIN) << place)
    }
}

/// The place of a size.
fn size_of(bytes: u64) -> usize {
    let times = bytes / u64::from(LEND_BYTES_MIN);
    (times.max(1).ilog2() as usize).min(SIZES - 1)
}

#[cfg(test)]
mod tests;
