//! Choices among a few words.

use core::fmt;
use std::path::PathBuf;

use piped_core::modes::{EagerMode, PlannerMode};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::quantity::{Bytes, Period, QuantityError};
use crate::validate::out_of_bounds;

const PLANNER_EXPECTED: &str = "\"auto\", \"whole\" or \"fixed:SIZE\" as in \"fixed:64KiB\"";

/// Reads a planner mode as people write it: `auto`, `whole` or `fixed:64KiB`.
///
/// # Errors
///
/// The reason, and how to write a mode.
pub fn planner_mode(text: &str) -> Result<PlannerMode, String> {
    match text {
        "auto" => Ok(PlannerMode::Auto),
        "whole" => Ok(PlannerMode::Whole),
        _ => match text.strip_prefix("fixed:") {
            Some(size) => fixed(size.parse().map_err(|error: QuantityError| error.to_string())?),
            None => Err(format!("`{text}` is no planner mode: write {PLANNER_EXPECTED}")),
        },
    }
}

/// A fixed size. What is beyond the engine's type is refused as what is out of bounds.
fn fixed(size: Bytes) -> Result<PlannerMode, String> {
    match u32::try_from(size.0) {
        Ok(bytes) => Ok(PlannerMode::Fixed(bytes)),
        Err(_) => Err(out_of_bounds(size)),
    }
}

/// Reads both forms of a planner mode: text as [`planner_mode`], and the JSON that is written,
/// `{"fixed": 65536}`.
///
/// # Errors
///
/// The reason, and how to write a mode.
pub fn planner_form<'de, D: Deserializer<'de>>(form: D) -> Result<PlannerMode, D::Error> {
    struct Form;

    impl<'de> Visitor<'de> for Form {
        type Value = PlannerMode;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(PLANNER_EXPECTED)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<PlannerMode, E> {
            planner_mode(text).map_err(E::custom)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PlannerMode, A::Error> {
            match map.next_entry::<String, Bytes>()? {
                Some((key, size)) if key == "fixed" => fixed(size).map_err(de::Error::custom),
                _ => Err(de::Error::custom(format!("expected {PLANNER_EXPECTED}"))),
            }
        }
    }

    form.deserialize_any(Form)
}

/// Whether the daemon gives up access to files that it does not need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LandlockMode {
    /// Restrict as much as the kernel can.
    #[default]
    Auto,
    /// Restrict, or refuse to start.
    On,
    /// Do not restrict anything.
    Off,
}

/// Whether the daemon gives up system calls that it never makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyscallsMode {
    /// Filter, unless the service manager or container does it already.
    #[default]
    Auto,
    /// Filter in any case, or refuse to start.
    On,
    /// Do not filter anything.
    Off,
}

/// How long a shard spins before it sleeps. Text: `auto` or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Spin {
    /// Budget of the profile.
    #[default]
    Auto,
    /// Fixed time; `0s` never spins.
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

/// Number of data-plane threads. Text: `auto` or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ShardCount {
    /// What the CPUs allow: see [`crate::Config::shard_count`].
    #[default]
    Auto,
    /// Fixed number, whatever CPUs there are.
    Fixed(u32),
}

impl From<u32> for ShardCount {
    fn from(count: u32) -> Self {
        Self::Fixed(count)
    }
}

impl Serialize for ShardCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(count) => serializer.serialize_u32(*count),
        }
    }
}

impl<'de> Deserialize<'de> for ShardCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;

        impl de::Visitor<'_> for Count {
            type Value = ShardCount;

            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a whole number, or \"auto\"")
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<ShardCount, E> {
                let number = u32::try_from(count).map(ShardCount::Fixed);
                number.map_err(|_| E::invalid_value(de::Unexpected::Signed(count), &self))
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<ShardCount, E> {
                let number = u32::try_from(count).map(ShardCount::Fixed);
                number.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(count), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ShardCount, E> {
                match text {
                    "auto" => Ok(ShardCount::Auto),
                    text => text
                        .parse()
                        .map(ShardCount::Fixed)
                        .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(Count)
    }
}

/// The key `planner.eager` as text: `auto` or the size of the longest message that is sent at once.
pub(crate) mod eager {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(mode: &EagerMode, to: S) -> Result<S::Ok, S::Error> {
        match mode {
            EagerMode::Auto => to.serialize_str("auto"),
            EagerMode::Fixed(bytes) => Bytes((*bytes).into()).serialize(to),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<EagerMode, D::Error> {
        let text = String::deserialize(from)?;
        if text == "auto" {
            return Ok(EagerMode::Auto);
        }
        let bytes: Bytes = text.parse().map_err(|error| {
            de::Error::custom(format!("{error}; or \"auto\", the threshold that is measured"))
        })?;
        // More than the type can hold is more than can be, and is refused as such.
        Ok(EagerMode::Fixed(u32::try_from(bytes.0).unwrap_or(u32::MAX)))
    }
}

/// Place where something is kept. Text: `auto`, nothing at all, or a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum AutoPath {
    /// Usual place, if there is one; the key says which.
    #[default]
    Auto,
    /// Do not keep it.
    None,
    /// Given path, absolute after validation.
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

/// A user or a group, by number or by name. The names are resolved by the daemon when it starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a name or a number")]
pub enum Principal {
    /// Given by its number.
    Id(u32),
    /// Given by its name.
    Name(String),
}

#[cfg(test)]
mod tests {
    use piped_core::modes::IoFeature;

    use super::*;

    #[test]
    fn the_planner_mode_reads_both_forms_and_writes_the_api_form() {
        let read = |json: &str| planner_form(&mut serde_json::Deserializer::from_str(json)).ok();
        for (json, mode) in [
            ("\"auto\"", PlannerMode::Auto),
            ("\"whole\"", PlannerMode::Whole),
            ("\"fixed:64KiB\"", PlannerMode::Fixed(64 << 10)),
            ("{\"fixed\":65536}", PlannerMode::Fixed(64 << 10)),
        ] {
            assert_eq!(read(json), Some(mode), "{json}");
            let written = serde_json::to_string(&mode).expect("serializable");
            assert_eq!(read(&written), Some(mode));
            assert_eq!(planner_mode(&mode.to_string()), Ok(mode));
        }
        let fixed = serde_json::to_string(&PlannerMode::Fixed(65536)).expect("serializable");
        assert_eq!(fixed, "{\"fixed\":65536}");
        let bad = [
            "\"best\"",
            "\"fixed\"",
            "\"fixed:64MB\"",
            "\"fixed:8GiB\"",
            "{\"size\":1}",
            "{}",
            "3",
        ];
        for json in bad {
            assert_eq!(read(json), None, "{json}");
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
        let eager =
            |json: &str| eager::deserialize(&mut serde_json::Deserializer::from_str(json)).ok();
        assert_eq!(eager("\"auto\""), Some(EagerMode::Auto));
        assert_eq!(eager("\"16KiB\""), Some(EagerMode::Fixed(16 << 10)));
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
