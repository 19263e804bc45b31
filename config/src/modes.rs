//! Choices among a few words.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::quantity::{Bytes, Period};

/// Who spins, and for how long: one choice that trades CPU time for latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Spin for a short time, then sleep.
    #[default]
    Balanced,
    /// Spin long: the lowest latency, a CPU each for the daemon and for a waiting client.
    Latency,
    /// Sleep at once: the fewest CPU seconds per byte.
    Throughput,
}

impl Profile {
    /// The word in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How fragment sizes are chosen. Text: `auto`, `whole`, `fixed:64KiB`; JSON: `"auto"`, `"whole"`,
/// `{"fixed": 65536}`. Both forms are read everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PlannerMode {
    /// Solved from the measured costs.
    #[default]
    Auto,
    /// One fragment: store the whole request, then forward it.
    Whole,
    /// Every fragment has this many bytes.
    Fixed(Bytes),
}

const PLANNER_EXPECTED: &str = "\"auto\", \"whole\" or \"fixed:SIZE\" as in \"fixed:64KiB\"";

impl FromStr for PlannerMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "whole" => Ok(Self::Whole),
            _ => match text.strip_prefix("fixed:") {
                Some(size) => size.parse().map(Self::Fixed).map_err(|error| error.to_string()),
                None => Err(format!("`{text}` is no planner mode: write {PLANNER_EXPECTED}")),
            },
        }
    }
}

impl fmt::Display for PlannerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Whole => f.write_str("whole"),
            Self::Fixed(size) => write!(f, "fixed:{size}"),
        }
    }
}

impl Serialize for PlannerMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(size) => {
                serializer.serialize_newtype_variant("PlannerMode", 2, "fixed", &size.0)
            }
            word => serializer.collect_str(word),
        }
    }
}

impl<'de> Deserialize<'de> for PlannerMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = PlannerMode;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(PLANNER_EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PlannerMode, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PlannerMode, A::Error> {
                match map.next_entry::<String, Bytes>()? {
                    Some((key, size)) if key == "fixed" => Ok(PlannerMode::Fixed(size)),
                    _ => Err(de::Error::custom(format!("expected {PLANNER_EXPECTED}"))),
                }
            }
        }

        deserializer.deserialize_any(Form)
    }
}

/// Whether costs follow what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CalibrationMode {
    /// Samples update the costs and the plans.
    #[default]
    Live,
    /// Samples are looked at, the costs stay as they are.
    Frozen,
    /// No samples.
    Off,
}

impl CalibrationMode {
    /// The word in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Frozen => "frozen",
            Self::Off => "off",
        }
    }
}

/// Whether the daemon denies itself the files that it does not need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LandlockMode {
    /// As far as the kernel has it.
    #[default]
    Auto,
    /// Or it does not start.
    On,
    /// No.
    Off,
}

/// Whether the daemon denies itself the system calls that nothing in it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyscallsMode {
    /// Unless whoever started it filters them already.
    #[default]
    Auto,
    /// In any case, or it does not start.
    On,
    /// No.
    Off,
}

/// Whether lanes send long payloads without a copy into the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopyMode {
    /// Each lane where, and from the size, it is measured to pay.
    #[default]
    Auto,
    /// Wherever the kernel can.
    On,
    /// Nowhere.
    Off,
}

/// How long a shard spins before it sleeps. Text: `auto` or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Spin {
    /// The profile says.
    #[default]
    Auto,
    /// This long; `0s` never spins.
    For(Period),
}

impl Serialize for Spin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::For(period) => period.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Spin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::For).map_err(|error| {
            de::Error::custom(format!("{error}; or \"auto\", the budget of the profile"))
        })
    }
}

/// Which messages are sent without being announced first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EagerMode {
    /// Those whose copy at the receiver takes no longer than the hand-shake and the way after it.
    #[default]
    Auto,
    /// Those of at most that many bytes.
    UpTo(Bytes),
}

impl Serialize for EagerMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::UpTo(bytes) => bytes.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for EagerMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::UpTo).map_err(|error| {
            de::Error::custom(format!("{error}; or \"auto\", the threshold that is measured"))
        })
    }
}

/// Where something is kept. Text: `auto`, nothing at all, or a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum AutoPath {
    /// In the usual place, if there is one; the key says which.
    #[default]
    Auto,
    /// Nowhere.
    None,
    /// There; absolute after validation.
    At(PathBuf),
}

impl Serialize for AutoPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::None => serializer.serialize_str(""),
            Self::At(path) => path.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for AutoPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match String::deserialize(deserializer)? {
            word if word == "auto" => Self::Auto,
            word if word.is_empty() => Self::None,
            path => Self::At(path.into()),
        })
    }
}

/// What lanes of peers that have keys are protected against. Two nodes use the stronger one of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecurityMode {
    /// Against change, repetition and strangers.
    #[default]
    Integrity,
    /// Also against readers.
    Encrypted,
}

/// A user or a group, by number or by name. The names are resolved by the daemon when it starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a name or a number")]
pub enum Principal {
    /// By number.
    Id(u32),
    /// By name.
    Name(String),
}

/// A feature of io_uring the daemon can live without. Masking one forces the fallback that an older
/// kernel, or one with less locked memory, would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoFeature {
    /// The kernel's completion work runs when the shard asks for it.
    DeferTaskrun,
    /// No interrupt of the shard for completion work.
    CoopTaskrun,
    /// Segments are pinned once instead of per operation.
    RegisteredBuffers,
    /// Files are looked up once instead of per operation.
    RegisteredFiles,
    /// The ring's own descriptor is looked up once instead of per system call.
    RingFd,
    /// One bad operation does not stop the rest of a batch.
    SubmitAll,
    /// The submission queue has no indirection array.
    NoSqarray,
    /// A doorbell is armed once instead of after every ring.
    MultishotPoll,
    /// Sends that lend their memory instead of having it copied.
    SendZeroCopy,
    /// The ring does what it is for, on registered files, and nothing else.
    Restrictions,
}

impl IoFeature {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::DeferTaskrun,
        Self::CoopTaskrun,
        Self::RegisteredBuffers,
        Self::RegisteredFiles,
        Self::RingFd,
        Self::SubmitAll,
        Self::NoSqarray,
        Self::MultishotPoll,
        Self::SendZeroCopy,
        Self::Restrictions,
    ];

    /// The word in the configuration and in `pipectl status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeferTaskrun => "defer_taskrun",
            Self::CoopTaskrun => "coop_taskrun",
            Self::RegisteredBuffers => "registered_buffers",
            Self::RegisteredFiles => "registered_files",
            Self::RingFd => "ring_fd",
            Self::SubmitAll => "submit_all",
            Self::NoSqarray => "no_sqarray",
            Self::MultishotPoll => "multishot_poll",
            Self::SendZeroCopy => "send_zero_copy",
            Self::Restrictions => "restrictions",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_planner_mode_reads_both_forms_and_writes_the_api_form() {
        for (json, mode) in [
            ("\"auto\"", PlannerMode::Auto),
            ("\"whole\"", PlannerMode::Whole),
            ("\"fixed:64KiB\"", PlannerMode::Fixed(Bytes::kib(64))),
            ("{\"fixed\":65536}", PlannerMode::Fixed(Bytes::kib(64))),
        ] {
            let read: PlannerMode = serde_json::from_str(json).expect(json);
            assert_eq!(read, mode);
            let written = serde_json::to_string(&mode).expect("serializable");
            assert_eq!(serde_json::from_str::<PlannerMode>(&written).ok(), Some(mode));
        }
        let fixed = serde_json::to_string(&PlannerMode::Fixed(Bytes(65536))).expect("serializable");
        assert_eq!(fixed, "{\"fixed\":65536}");
        for json in ["\"best\"", "\"fixed\"", "\"fixed:64MB\"", "{\"size\":1}", "{}", "3"] {
            assert!(serde_json::from_str::<PlannerMode>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn every_feature_reads_by_the_name_it_prints() {
        for feature in IoFeature::ALL {
            let json = format!("\"{}\"", feature.name());
            assert_eq!(serde_json::from_str::<IoFeature>(&json).ok(), Some(feature));
        }
    }

    #[test]
    fn principals_and_spins_read_their_forms() {
        assert_eq!(serde_json::from_str::<Principal>("7").ok(), Some(Principal::Id(7)));
        let named = serde_json::from_str::<Principal>("\"web\"").ok();
        assert_eq!(named, Some(Principal::Name("web".to_owned())));
        assert_eq!(serde_json::from_str::<Spin>("\"auto\"").ok(), Some(Spin::Auto));
        let zero = serde_json::from_str::<Spin>("\"0s\"").ok();
        assert_eq!(zero, Some(Spin::For(Period::seconds(0))));
        assert!(serde_json::from_str::<Spin>("\"long\"").is_err());
        let eager = |text: &str| serde_json::from_str::<EagerMode>(text).ok();
        assert_eq!(eager("\"auto\""), Some(EagerMode::Auto));
        assert_eq!(eager("\"16KiB\""), Some(EagerMode::UpTo(Bytes(16 << 10))));
        assert_eq!(eager("\"soon\""), None);
        for (json, state) in [
            ("\"auto\"", AutoPath::Auto),
            ("\"\"", AutoPath::None),
            ("\"/var/lib/piped\"", AutoPath::At("/var/lib/piped".into())),
        ] {
            assert_eq!(serde_json::from_str::<AutoPath>(json).ok(), Some(state.clone()));
            assert_eq!(serde_json::to_string(&state).ok().as_deref(), Some(json));
        }
    }
}
