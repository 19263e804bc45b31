//! Quantities as measurements and papers have them, read from text: a number and a unit.
//!
//! A number without a unit has the one that the option documents. Units are those of the
//! measurements and of the papers, so `MB` is a million bytes here, where the configuration refuses
//! it; only what a `KB` is (1000 or 1024 bytes) is for `--kb` to say, because the papers differ.
//! What comes out is in the library's units: seconds, bytes, seconds per byte, bytes per second.
//!
//! Why no crate reads them: for `bytesize` a KB is one thing only, `humantime` takes `1h 30m`, and
//! neither knows a time per size. Both also take what [`crate::Bytes`] and [`crate::Period`] must
//! refuse (`64MB`, `30 sec`).

use clap::{Args as ClapArgs, ValueEnum};

/// How many bytes a KB has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Kb {
    /// KB, MB and GB are powers of 1000
    #[default]
    #[value(name = "1000")]
    Decimal,
    /// KB, MB and GB are powers of 1024
    #[value(name = "1024")]
    Binary,
}

impl Kb {
    /// The number of bytes of a KB.
    #[must_use]
    pub const fn bytes(self) -> f64 {
        match self {
            Self::Decimal => 1000.0,
            Self::Binary => 1024.0,
        }
    }
}

/// `--kb`, for commands that read sizes or inverse bandwidths.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub struct KbArgs {
    /// What a KB is, in us/KB and in sizes (KiB is always 1024 bytes; bandwidths, as in 5MB/s, are
    /// decimal)
    #[arg(long, value_name = "BYTES", value_enum, default_value_t = Kb::Decimal)]
    pub kb: Kb,
}

/// A number of bytes; how many may depend on [`Kb`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    number: f64,
    unit: SizeUnit,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SizeUnit {
    /// A fixed number of bytes.
    Bytes(f64),
    /// A power of what a KB is.
    Kb(i32),
}

impl SizeUnit {
    fn bytes(self, kb: Kb) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Kb(power) => kb.bytes().powi(power),
        }
    }
}

impl Size {
    /// The size in bytes, not necessarily whole.
    #[must_use]
    pub fn bytes(self, kb: Kb) -> f64 {
        self.number * self.unit.bytes(kb)
    }

    /// The size in whole bytes, at least one: what a transfer has.
    ///
    /// # Errors
    /// If it is not a whole number of bytes, is none, or does not fit.
    pub fn whole_bytes(self, kb: Kb) -> Result<u64, String> {
        // 1.1KB is 1100 bytes, whatever 1.1 is in binary.
        let bytes = self.bytes(kb);
        let whole = bytes.round();
        if (bytes - whole).abs() > 1e-9 * bytes {
            return Err(format!("{bytes} is no whole number of bytes: write one, as in 65536"));
        }
        // Every whole number up to here is exact in a float.
        if !(1.0..=9e15).contains(&whole) {
            return Err(format!("{whole} bytes are not between 1 byte and 9 PB"));
        }
        Ok(whole as u64)
    }
}

/// Time per byte; how much may depend on [`Kb`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerByte {
    seconds: f64,
    per: SizeUnit,
}

impl PerByte {
    /// The cost in seconds per byte.
    #[must_use]
    pub fn seconds(self, kb: Kb) -> f64 {
        self.seconds / self.per.bytes(kb)
    }
}

/// The longest time that is taken for one, in seconds (32 years), and the largest inverse
/// bandwidth, in seconds per byte. Sums and products of longer ones leave the range of numbers, and
/// what comes out then is no answer.
const SECONDS_MAX: f64 = 1e9;

/// Returns the seconds, unless they exceed [`SECONDS_MAX`].
fn believable(seconds: f64, text: &str, unit: &str, help: &str) -> Result<f64, String> {
    if seconds <= SECONDS_MAX {
        return Ok(seconds);
    }
    Err(format!(
        "`{}` is more than {SECONDS_MAX:e} {unit}, which nothing takes: {help}",
        text.trim()
    ))
}

const TIME: &str = "write a number of us, or one with ns, us, ms or s, as in 36us or 4ms";
const SIZE: &str =
    "write a number of bytes, or one with KiB, MiB, GiB, KB, MB or GB, as in 65536 or 64KiB";
const RATE: &str = "write a number of bytes per us, or a bandwidth, as in 105 or 105MB/s";
const PER_BYTE: &str = "write a number of us/KB, or one with a time per size, or a bandwidth, \
                        as in 7.2, 7.2us/KB, 7.03us/KiB, 7.2ns/B or 139MB/s";

/// A time in seconds; a bare number is in us.
///
/// # Errors
/// The reason, and an example of a right text.
pub fn time(text: &str) -> Result<f64, String> {
    let (number, unit) = number_and_unit(text, "a time", TIME)?;
    let seconds = if unit.is_empty() { Some(MICRO) } else { time_unit(unit) };
    let seconds = seconds.ok_or_else(|| unknown(unit, "a time", TIME))?;
    believable(number * seconds, text, "s", TIME)
}

/// A size; a bare number is in bytes.
///
/// # Errors
/// The reason, and an example of a right text.
pub fn size(text: &str) -> Result<Size, String> {
    let (number, word) = number_and_unit(text, "a size", SIZE)?;
    let unit = if word.is_empty() { Some(SizeUnit::Bytes(1.0)) } else { size_unit(word) };
    let unit = unit.ok_or_else(|| unknown(word, "a size", SIZE))?;
    Ok(Size { number, unit })
}

/// A bandwidth in bytes per second, positive; a bare number is in bytes per us.
///
/// # Errors
/// The reason, and an example of a right text.
pub fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = number_and_unit(text, "a bandwidth", RATE)?;
    let per_second = if unit.is_empty() { Some(1.0 / MICRO) } else { rate_unit(unit) };
    let per_second = per_second.ok_or_else(|| unknown(unit, "a bandwidth", RATE))?;
    if number > 0.0 {
        Ok(number * per_second)
    } else {
        Err(format!("a bandwidth of 0 never ends: {RATE}"))
    }
}

/// A time per size, or a bandwidth that is turned over; a bare number is in us per KB.
///
/// # Errors
/// The reason, and an example of a right text.
pub fn per_byte(text: &str) -> Result<PerByte, String> {
    let cost = time_per_size(text)?;
    // A decimal KB is the smaller one.
    believable(cost.seconds(Kb::Decimal), text, "s per byte", PER_BYTE)?;
    Ok(cost)
}

fn time_per_size(text: &str) -> Result<PerByte, String> {
    let (number, unit) = number_and_unit(text, "an inverse bandwidth", PER_BYTE)?;
    if unit.is_empty() {
        return Ok(PerByte { seconds: number * MICRO, per: SizeUnit::Kb(1) });
    }
    if let Some((over, under)) = unit.split_once('/')
        && let (Some(seconds), Some(per)) = (time_unit(over.trim()), size_unit(under.trim()))
    {
        return Ok(PerByte { seconds: number * seconds, per });
    }
    match rate_unit(unit) {
        Some(per_second) if number > 0.0 => {
            Ok(PerByte { seconds: 1.0 / (number * per_second), per: SizeUnit::Bytes(1.0) })
        }
        Some(_) => Err(format!("a bandwidth of 0 never ends: {PER_BYTE}")),
        None => Err(unknown(unit, "an inverse bandwidth", PER_BYTE)),
    }
}

const MICRO: f64 = 1e-6;

fn time_unit(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        // The micro sign, the Greek letter, and what a keyboard has.
        "us" | "\u{b5}s" | "\u{3bc}s" => Some(MICRO),
        "ms" => Some(1e-3),
        "s" | "sec" => Some(1.0),
        "min" => Some(60.0),
        _ => None,
    }
}

/// Upper and lower case are the same: nobody gives the size of a message in bits.
fn size_unit(unit: &str) -> Option<SizeUnit> {
    let unit = unit.to_ascii_lowercase();
    if matches!(&*unit, "b" | "byte" | "bytes") {
        return Some(SizeUnit::Bytes(1.0));
    }
    let prefix = unit.chars().next()?;
    let power = "kmgt".find(prefix)? as i32 + 1;
    match &unit[1..] {
        // As everywhere in pipectl: 64k are 64 KiB.
        "ib" | "" => Some(SizeUnit::Bytes(1024.0_f64.powi(power))),
        "b" => Some(SizeUnit::Kb(power)),
        _ => None,
    }
}

/// Bytes per second of one such unit: `MB/s`, `MiB/s`, `B/us`, `Gbit/s`, `Gbps`.
fn rate_unit(unit: &str) -> Option<f64> {
    if let Some(bits) = unit.strip_suffix("bit/s").or_else(|| unit.strip_suffix("bps")) {
        let power = match bits {
            "" => 0,
            "k" | "K" => 3,
            "M" => 6,
            "G" => 9,
            "T" => 12,
            _ => return None,
        };
        return Some(10.0_f64.powi(power) / 8.0);
    }
    let (size, time) = unit.split_once('/')?;
    if bits_or_bytes(unit) {
        return None;
    }
    // Bandwidths are decimal whatever a KB of a message is.
    Some(size_unit(size.trim())?.bytes(Kb::Decimal) / time_unit(time.trim())?)
}

/// A finite number that is not negative, and what stands behind it.
fn number_and_unit<'a>(text: &'a str, what: &str, help: &str) -> Result<(f64, &'a str), String> {
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("nothing is not {what}: {help}"));
    }
    // The longest beginning that is a number: `1e3us` is 1000 us, `5e` is a 5 with an unknown unit.
    let digits = text.find(|c: char| !(c.is_ascii_digit() || ".+-eE".contains(c)));
    let mut end = digits.unwrap_or(text.len());
    let number = loop {
        match text[..end].parse::<f64>() {
            Ok(number) => break number,
            Err(_) if end > 0 => end -= 1,
            Err(_) => return Err(format!("`{text}` is not {what}: {help}")),
        }
    };
    if number < 0.0 {
        return Err(format!("`{text}` is negative, and {what} is not: {help}"));
    }
    if !number.is_finite() {
        return Err(format!("`{text}` is too large"));
    }
    Ok((number, text[end..].trim_start()))
}

/// `Mb/s` is megabits for some and megabytes for others.
fn bits_or_bytes(unit: &str) -> bool {
    let mut letters = unit.chars();
    letters.next().is_some_and(|prefix| "kmgtKMGT".contains(prefix))
        && letters.as_str().trim_start().starts_with('b')
        && unit.contains('/')
        && !unit.contains("bit")
}

fn unknown(unit: &str, what: &str, help: &str) -> String {
    if bits_or_bytes(unit) {
        let prefix = unit[..1].to_ascii_uppercase();
        let time = &unit[unit.find('/').unwrap_or(unit.len())..];
        return format!("`{unit}` may mean bits or bytes: write {prefix}B{time} or {prefix}bit/s");
    }
    format!("`{unit}` is no unit of {what}: {help}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) -> bool {
        (got - want).abs() <= 1e-12 * want.abs()
    }

    #[test]
    fn times_have_the_unit_that_is_written_or_us() {
        for (text, seconds) in [
            ("36", 36e-6),
            ("36us", 36e-6),
            ("36 us", 36e-6),
            ("36\u{b5}s", 36e-6),
            ("4ms", 4e-3),
            (".5s", 0.5),
            ("1e3ns", 1e-6),
            ("2min", 120.0),
            ("0", 0.0),
        ] {
            let got = time(text).expect(text);
            assert!(close(got, seconds), "{text}: {got}");
        }
    }

    #[test]
    fn sizes_are_whole_bytes_in_units_of_1024_or_what_a_kb_is() {
        for (text, decimal, binary) in [
            ("65536", 65536, 65536),
            ("64KiB", 65536, 65536),
            ("64k", 65536, 65536),
            ("64KB", 64000, 65536),
            ("64kb", 64000, 65536),
            ("1.1KB", 1100, 1126),
            ("1.5 MiB", 3 << 19, 3 << 19),
            ("2MB", 2_000_000, 2 << 20),
            ("1GB", 1_000_000_000, 1 << 30),
            ("7 bytes", 7, 7),
            ("7B", 7, 7),
        ] {
            let size = size(text).expect(text);
            assert_eq!(size.whole_bytes(Kb::Decimal), Ok(decimal), "{text}");
            if text != "1.1KB" {
                assert_eq!(size.whole_bytes(Kb::Binary), Ok(binary), "{text}");
            }
        }
        for text in ["1.1KiB", "0", "0.5", "1e16"] {
            assert!(size(text).expect(text).whole_bytes(Kb::Decimal).is_err(), "{text}");
        }
    }

    #[test]
    fn bandwidths_are_bytes_over_time_or_bits_per_second() {
        for (text, per_second) in [
            ("105", 105e6),
            ("105MB/s", 105e6),
            ("105 B/us", 105e6),
            ("1MiB/s", 1_048_576.0),
            ("10Gbit/s", 1.25e9),
            ("10Gbps", 1.25e9),
            ("5KB/ms", 5e6),
        ] {
            let got = rate(text).expect(text);
            assert!(close(got, per_second), "{text}: {got}");
        }
    }

    #[test]
    fn inverse_bandwidths_are_time_over_size_or_a_bandwidth() {
        for (text, decimal, binary) in [
            ("7.2", 7.2e-9, 7.2e-6 / 1024.0),
            ("7.2us/KB", 7.2e-9, 7.2e-6 / 1024.0),
            ("1.024us/KiB", 1e-9, 1e-9),
            ("7.2ns/B", 7.2e-9, 7.2e-9),
            ("5MB/s", 2e-7, 2e-7),
            ("8Gbit/s", 1e-9, 1e-9),
            ("1s/GB", 1e-9, 1.0 / 1_073_741_824.0),
            ("0", 0.0, 0.0),
        ] {
            let value = per_byte(text).expect(text);
            assert!(close(value.seconds(Kb::Decimal), decimal), "{text}: {value:?}");
            assert!(close(value.seconds(Kb::Binary), binary), "{text}: {value:?}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_an_example() {
        type Parse = fn(&str) -> Result<f64, String>;
        let size: Parse = |text| size(text).map(|size| size.bytes(Kb::Decimal));
        let per_byte: Parse = |text| per_byte(text).map(|cost| cost.seconds(Kb::Decimal));
        let (time, rate): (Parse, Parse) = (time, rate);
        for (parse, texts, example) in [
            (time, &["", "x", "us", "5 fortnights", "-1", "nan", "inf", "1.2.3", "4KB"][..], "4ms"),
            (size, &["", "many", "-5", "5us", "5 XB", "5 MiBs", "1e", "--5"][..], "64KiB"),
            (rate, &["", "fast", "0", "-3", "5MB", "5us/KB", "5MB/h", "MB/s"][..], "105MB/s"),
            (per_byte, &["", "-1", "5MB", "us/KB", "0MB/s", "5us/s"][..], "7.2us/KB"),
        ] {
            for text in texts {
                let error = parse(text).expect_err(text);
                assert!(error.contains(example), "{text}: {error}");
            }
        }
        for text in ["1.1e9s", "1e308", "1e18"] {
            let error = time(text).expect_err(text);
            assert!(error.contains(text) && error.contains("more than 1e9 s"), "{error}");
        }
        for text in ["1e308", "1e19", "2e9s/B", "1e-300B/s"] {
            let error = super::per_byte(text).expect_err(text);
            assert!(error.contains(text) && error.contains("1e9 s per byte"), "{error}");
        }
        assert_eq!(time("1e9s"), Ok(1e9));
        assert!(time("1e999").expect_err("infinite").contains("too large"));
        for (error, advice) in [
            (rate("5Mb/s").expect_err("bits?"), "MB/s or Mbit/s"),
            (per_byte("5gb/s").expect_err("bits?"), "GB/s or Gbit/s"),
        ] {
            assert!(error.contains(advice), "{error}");
        }
    }

    #[test]
    fn the_unit_that_is_wrong_is_named() {
        assert!(time("4KB").expect_err("a size").starts_with("`KB` is no unit of a time"));
        assert!(size("4us").expect_err("a time").starts_with("`us` is no unit of a size"));
    }
}
