//! The file in which is kept what stages cost: JSON, so that a person can read it and `jq` can,
//! too.
//!
//! It was written by this daemon, says whoever made it: so it is read like a stranger's. A figure
//! that cannot be, a word that is not known, another version: nothing of it is believed.

use piped_core::link::LaneClass;
use piped_planner::kept::{KeptFault, KeptStage};
use serde::{Deserialize, Serialize};

/// Version of the format. A file of another version is not read, and is written anew.
pub const VERSION: u32 = 2;

/// Stages in a file: as many as a shard remembers, and some disks.
pub const STAGES_MAX: usize = 1024;

/// The longest file: as many stages with as many lines as there can be, of some hundred bytes each.
pub const FILE_BYTES_MAX: usize = 8 << 20;

/// Longer names nobody has.
const NAME_BYTES_MAX: usize = 256;

/// Seconds since 1970 beyond which a date is none: the year 9999.
const DATE_MAX: f64 = 253_402_300_800.0;

/// The resource of a stage, under names that outlive the daemon.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StageName {
    /// Reads or writes of a device.
    Disk {
        /// How a device is named: `kept/device.rs`.
        device: String,
        /// Whether the stage is writes; otherwise it is reads.
        write: bool,
    },
    /// One direction of a connection.
    Net {
        /// The name of the other node.
        peer: String,
        /// The connection's class: latency or bulk.
        class: LaneName,
        /// Whether this node sends the requests on the connection.
        outbound: bool,
        /// Whether the data comes to this node.
        incoming: bool,
    },
    /// Copies from memory to memory.
    Copy,
    /// Checksums of payloads on this node.
    Check,
}

/// The class of a connection as the file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaneName {
    /// The connection for small and urgent requests.
    Latency,
    /// The connection for all other requests.
    Bulk,
    /// The connection by way of a peer's second address.
    Second,
}

impl From<LaneClass> for LaneName {
    fn from(class: LaneClass) -> Self {
        match class {
            LaneClass::Latency => Self::Latency,
            LaneClass::Bulk => Self::Bulk,
            LaneClass::Second => Self::Second,
        }
    }
}

impl From<LaneName> for LaneClass {
    fn from(name: LaneName) -> Self {
        match name {
            LaneName::Latency => Self::Latency,
            LaneName::Bulk => Self::Bulk,
            LaneName::Second => Self::Second,
        }
    }
}

impl StageName {
    /// The name in it that somebody chose.
    fn chosen(&self) -> &str {
        match self {
            Self::Disk { device, .. } => device,
            Self::Net { peer, .. } => peer,
            Self::Copy | Self::Check => "",
        }
    }
}

/// A stage in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The stage that was measured.
    pub stage: StageName,
    /// When the stage was last measured, in seconds since 1970.
    pub measured_unix: f64,
    /// The costs of the stage when it was last measured.
    pub cost: KeptStage,
}

/// Everything that the file holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    stages: Vec<Entry>,
}

/// Only this of a file of another version is looked at.
#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

/// Why nothing of a file is believed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FormatFault {
    /// The file is longer than any that is written.
    #[error("it is too long: {FILE_BYTES_MAX} bytes at most are read")]
    Long,
    /// The file is cut off, damaged, or of another kind.
    #[error("it is not what this program writes ({0})")]
    Malformed(String),
    /// The file has the version of another release.
    #[error("it has version {0}, this program reads version {VERSION}")]
    Version(u32),
    /// A figure of a stage is out of its bounds.
    #[error("of stage {place}: {fault}")]
    Stage {
        /// The stage's index in the file, from 0.
        place: usize,
        /// Which figure is out of bounds, and by how much.
        fault: KeptFault,
    },
    /// A name, a date or a number of stages is impossible.
    #[error("{0}")]
    Claim(String),
}

/// Reads a file's bytes.
///
/// # Errors
/// Nothing of it is to be believed.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>, FormatFault> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(FormatFault::Long);
    }
    let malformed = |error: serde_json::Error| FormatFault::Malformed(error.to_string());
    let Versioned { version } = serde_json::from_slice(bytes).map_err(malformed)?;
    if version != VERSION {
        return Err(FormatFault::Version(version));
    }
    let File { stages, .. } = serde_json::from_slice(bytes).map_err(malformed)?;
    if stages.len() > STAGES_MAX {
        let text = format!("it has {} stages, {STAGES_MAX} at most are read", stages.len());
        return Err(FormatFault::Claim(text));
    }
    for (place, entry) in stages.iter().enumerate() {
        entry.cost.check().map_err(|fault| FormatFault::Stage { place, fault })?;
        if entry.stage.chosen().len() > NAME_BYTES_MAX {
            return Err(FormatFault::Claim(format!("the name of stage {place} is too long")));
        }
        if !(0.0..DATE_MAX).contains(&entry.measured_unix) {
            let text = format!("stage {place} was measured at {}", entry.measured_unix);
            return Err(FormatFault::Claim(text));
        }
    }
    Ok(stages)
}

/// The bytes of a file with these stages.
#[must_use]
pub fn write(stages: Vec<Entry>) -> Vec<u8> {
    let file = File { version: VERSION, stages };
    // A struct of plain fields is always JSON. Written for people, too.
    let mut bytes = serde_json::to_vec_pretty(&file).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
pub(super) mod tests {
    use piped_planner::kept::{KeptLine, KeptSize, KeptSpread};

    use super::*;

    pub(in super::super) fn entry(stage: StageName, latency: f64) -> Entry {
        let line = |bytes: f64, latency: f64| KeptLine {
            bytes,
            latency,
            overhead: 17e-6,
            per_byte: 0.25e-9,
        };
        let cost = KeptStage {
            lines: vec![line(4096.0, latency), line(65_536.5, latency)],
            sizes: vec![KeptSize { bytes: 4096.0, alone: 7.5, backlogged: 200.0 }],
            spread: None,
            identifiable: true,
            confidence: 0.9,
        };
        Entry { stage, measured_unix: 1.75e9, cost }
    }

    fn entries() -> Vec<Entry> {
        let disk = StageName::Disk { device: "wwid eui.0025".to_owned(), write: true };
        let (peer, class) = ("beta".to_owned(), LaneName::Bulk);
        let net = StageName::Net { peer, class, outbound: true, incoming: false };
        vec![entry(disk, 60e-6), entry(net, 0.0), entry(StageName::Copy, 1e-9)]
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = write(entries());
        assert_eq!(parse(&bytes), Ok(entries()), "{}", String::from_utf8_lossy(&bytes));
        assert_eq!(parse(&write(Vec::new())), Ok(Vec::new()));
    }

    #[test]
    fn every_part_of_a_file_is_no_file() {
        let bytes = write(entries());
        for end in 0..bytes.len() - 2 {
            assert!(parse(&bytes[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let text = String::from_utf8(write(entries())).expect("JSON");
        for (from, to, hint) in [
            ("\"version\": 2", "\"version\": 1", "version 1"),
            ("\"L\": 0.00006", "\"L\": -0.00006", "L is -0.00006"),
            ("\"L\": 0.00006", "\"L\": 6e9", "L is 6000000000"),
            ("\"L\": 0.00006", "\"L\": 1e999", "out of range"),
            ("\"L\": 0.00006", "\"L\": null", "not what this program writes"),
            ("\"L\": 0.00006", "\"L\": NaN", "not what this program writes"),
            ("\"g\": 0.000017", "\"gg\": 0.000017", "gg"),
            ("\"confidence\": 0.9", "\"confidence\": 1.5", "confidence"),
            ("\"alone\": 7.5", "\"alone\": -7.5", "alone"),
            ("65536.5", "4095.5", "in order"),
            ("1750000000.0", "-1.0", "measured at -1"),
            ("1750000000.0", "1e300", "measured at"),
            ("\"bulk\"", "\"huge\"", "huge"),
            ("beta", &"b".repeat(300), "name of stage 1"),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            let fault = parse(text.replacen(from, to, 1).as_bytes()).expect_err(to);
            assert!(fault.to_string().contains(hint), "{to}: {fault}");
        }
        let many = vec![entry(StageName::Check, 0.0); STAGES_MAX + 1];
        assert!(parse(&write(many)).is_err());
        assert_eq!(parse(&vec![b' '; FILE_BYTES_MAX + 1]), Err(FormatFault::Long));
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn the_most_that_is_kept_fits_what_is_read() {
        let device = "d".repeat(NAME_BYTES_MAX);
        let mut most = entry(StageName::Disk { device, write: false }, 0.123_456_789_012_345);
        most.cost.lines =
            (0..11).map(|n| KeptLine { bytes: f64::from(n) + 0.1, ..most.cost.lines[0] }).collect();
        let size = KeptSize { bytes: 0.0, alone: 1.0 / 3.0, backlogged: 1.0 / 7.0 };
        most.cost.sizes = (0..11).map(|n| KeptSize { bytes: f64::from(n) + 0.1, ..size }).collect();
        let part = |bin: u16| f64::from(f32::from(bin) / 49.0);
        let parts = (1..=49).map(part).collect();
        most.cost.spread =
            Some(KeptSpread { seconds: 0.123_456_789_012_345, samples: 4096.5, parts });
        let bytes = write(vec![most; STAGES_MAX]);
        assert!(parse(&bytes).is_ok(), "{} bytes", bytes.len());
    }
}
