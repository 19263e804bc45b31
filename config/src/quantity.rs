//! Sizes and durations as people write them.
//!
//! A size is in bytes or in powers of 1024; a duration always has a unit. `MB` is refused rather
//! than guessed (it is 5 % away from `MiB`), and so is a duration without a unit (seconds?
//! milliseconds?).

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Text that is not a quantity, with the right form.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// Text that is not a size.
    #[error(
        "`{0}` is not a size: write a number of bytes or a number with KiB, MiB, GiB or TiB, as in \
         64MiB"
    )]
    Size(String),
    /// Text that is not a duration.
    #[error("`{0}` is not a duration: write a number with ns, us, ms, s, m or h, as in 30s")]
    Duration(String),
    /// Quantity larger than 64 bits.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

/// A number of bytes. Text: `65536`, `64KiB`, `64K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Makes a size of `n` KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// Makes a size of `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Makes a size of `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

const SIZE_UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, unit) = split(text).ok_or_else(|| QuantityError::Size(text.to_owned()))?;
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(QuantityError::Size(text.to_owned())),
        };
        number
            .checked_mul(1 << shift)
            .map(Self)
            .ok_or_else(|| QuantityError::TooLarge(text.to_owned()))
    }
}

impl fmt::Display for Bytes {
    /// Writes the exact size in the largest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in SIZE_UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// Limit of memory. Text: `auto`, or a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MemoryLimit {
    /// Share of the machine's memory; the key says which.
    #[default]
    Auto,
    /// Given number of bytes.
    UpTo(Bytes),
}

impl MemoryLimit {
    /// Limit in bytes; the largest number if it is not known yet.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Auto => u64::MAX,
            Self::UpTo(bytes) => bytes.0,
        }
    }

    /// Replaces `auto` by this many bytes.
    #[must_use]
    pub fn or(self, auto: u64) -> Self {
        match self {
            Self::Auto => Self::UpTo(Bytes(auto)),
            Self::UpTo(_) => self,
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim() == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::UpTo) }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::UpTo(bytes) => bytes.fmt(f),
        }
    }
}

/// A duration. Text: `30s`, `500us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Period(pub Duration);

impl Period {
    /// Makes a period of `n` seconds.
    #[must_use]
    pub const fn seconds(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    /// Length in nanoseconds; 584 years at most.
    #[must_use]
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

const TIME_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl FromStr for Period {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, unit) = split(text).ok_or_else(|| QuantityError::Duration(text.to_owned()))?;
        let (_, nanos) = TIME_UNITS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .or(if number == 0 && unit.is_empty() { Some(("", 0)) } else { None })
            .ok_or_else(|| QuantityError::Duration(text.to_owned()))?;
        number
            .checked_mul(nanos)
            .map(|total| Self(Duration::from_nanos(total)))
            .ok_or_else(|| QuantityError::TooLarge(text.to_owned()))
    }
}

impl fmt::Display for Period {
    /// Writes the exact duration in the largest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.nanos();
        for (unit, size) in TIME_UNITS {
            if nanos != 0 && nanos.is_multiple_of(size) {
                return write!(f, "{}{unit}", nanos / size);
            }
        }
        f.write_str("0s")
    }
}

/// Splits digits and the unit after them, with spaces allowed; none without digits or above 64
/// bits.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim_start()))
}

/// Serialized as text; read from text or (sizes only) from a whole number.
macro_rules! as_text {
    ($type:ident, $expecting:literal, $number:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;

                impl Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$type, E> {
                        let read: fn(u64) -> Option<$type> = $number;
                        read(number)
                            .ok_or_else(|| E::invalid_type(de::Unexpected::Unsigned(number), &self))
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        let unsigned = u64::try_from(number)
                            .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))?;
                        self.visit_u64(unsigned)
                    }
                }

                deserializer.deserialize_any(Text)
            }
        }
    };
}

as_text!(Bytes, "a size such as \"64MiB\" or a number of bytes", |n| Some(Bytes(n)));
as_text!(MemoryLimit, "a size such as \"64MiB\", or \"auto\"", |n| Some(MemoryLimit::UpTo(Bytes(
    n
))));
as_text!(Period, "a duration such as \"30s\"", |_| None);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_or_left_to_the_machine() {
        for text in ["auto", "64MiB"] {
            let limit: MemoryLimit = text.parse().expect("a limit");
            assert_eq!(limit.to_string(), text);
            let value = serde_json::to_value(limit).expect("plain data");
            assert_eq!(serde_json::from_value::<MemoryLimit>(value).expect("the same"), limit);
        }
        let number = serde_json::from_value::<MemoryLimit>(4096.into()).expect("bytes");
        assert_eq!(number, MemoryLimit::UpTo(Bytes::kib(4)));
        assert_eq!((MemoryLimit::Auto.bytes(), MemoryLimit::Auto.or(7).bytes()), (u64::MAX, 7));
        assert_eq!(number.or(7), number);
        assert!("automatic".parse::<MemoryLimit>().is_err());
    }

    #[test]
    fn sizes_read_and_print_exactly() {
        for (text, bytes, printed) in [
            ("0", 0, "0"),
            ("4096", 4096, "4KiB"),
            ("64MiB", 64 << 20, "64MiB"),
            ("64 MiB", 64 << 20, "64MiB"),
            ("4k", 4096, "4KiB"),
            ("1025", 1025, "1025"),
            ("3g", 3 << 30, "3GiB"),
        ] {
            let size: Bytes = text.parse().expect(text);
            assert_eq!((size.0, size.to_string().as_str()), (bytes, printed), "{text}");
        }
    }

    #[test]
    fn decimal_units_fractions_and_overflow_are_refused() {
        for text in ["", "MiB", "64MB", "1.5MiB", "-1", "64 MiB x"] {
            assert!(matches!(text.parse::<Bytes>(), Err(QuantityError::Size(_))), "{text}");
        }
        assert!(matches!("16777216TiB".parse::<Bytes>(), Err(QuantityError::TooLarge(_))));
    }

    #[test]
    fn durations_need_a_unit() {
        for (text, nanos, printed) in
            [("30s", 30_000_000_000, "30s"), ("1500us", 1_500_000, "1500us"), ("0", 0, "0s")]
        {
            let period: Period = text.parse().expect(text);
            assert_eq!((period.nanos(), period.to_string().as_str()), (nanos, printed), "{text}");
        }
        for text in ["", "30", "30 sec", "s", "-1s"] {
            assert!(matches!(text.parse::<Period>(), Err(QuantityError::Duration(_))), "{text}");
        }
    }

    #[test]
    fn json_reads_numbers_for_sizes_only() {
        assert_eq!(serde_json::from_str::<Bytes>("65536").ok(), Some(Bytes::kib(64)));
        assert_eq!(serde_json::from_str::<Bytes>("\"64KiB\"").ok(), Some(Bytes::kib(64)));
        assert!(serde_json::from_str::<Bytes>("-1").is_err());
        assert!(serde_json::from_str::<Period>("30").is_err());
    }
}
