//! Quantities for people: three significant digits, IEC sizes, times in the unit that fits.

/// Formats a size, as in `64 KiB` or `1.50 MiB`.
#[must_use]
pub fn bytes(size: u64) -> String {
    scaled(size as f64, &["B", "KiB", "MiB", "GiB", "TiB"], size < 1024 || is_whole(size))
}

/// Whether the size is whole in its unit, so that `64 KiB` has no `.0`.
fn is_whole(size: u64) -> bool {
    let unit = (size.max(1).ilog2() / 10).min(4) * 10;
    size.trailing_zeros() >= unit
}

/// Formats a rate in bytes per second.
#[must_use]
pub fn rate(bytes_per_second: f64) -> String {
    scaled(bytes_per_second, &["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"], false)
}

fn scaled(mut value: f64, units: &[&str], whole: bool) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if whole { 0 } else { digits(value) };
    format!("{value:.digits$} {}", units[unit])
}

/// Number of decimals for three significant digits.
fn digits(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    }
}

/// Formats a time, as in `12.3 us`.
#[must_use]
pub fn seconds(time: f64) -> String {
    if !time.is_finite() {
        return "-".to_owned();
    }
    let (value, unit) = match time.abs() {
        0.0 => return "0".to_owned(),
        t if t < 0.999_5e-6 => (time * 1e9, "ns"),
        t if t < 0.999_5e-3 => (time * 1e6, "us"),
        t if t < 0.999_5 => (time * 1e3, "ms"),
        _ => (time, "s"),
    };
    format!("{value:.*} {unit}", digits(value))
}

/// Formats how long something has been running, as in `3 h 12 min`.
#[must_use]
pub fn uptime(time: f64) -> String {
    let total = time.max(0.0) as u64;
    let (days, hours, minutes) = (total / 86_400, total / 3_600 % 24, total / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{total} s"),
        (0, 0, _) => format!("{minutes} min {} s", total % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Formats a count with groups of three digits, as in `1 234 567`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a count in at most four characters, as in `999`, `12k` or `3.4M`.
#[must_use]
pub fn short(number: u64) -> String {
    let mut value = number as f64;
    for unit in ["", "k", "M", "G", "T", "P"] {
        // Rounding up would need a fifth character.
        if value < 999.5 {
            let decimals = usize::from(!unit.is_empty() && value < 9.95);
            return format!("{value:.decimals$}{unit}");
        }
        value /= 1e3;
    }
    "many".to_owned()
}

/// Formats bytes in at most five characters, as in `999B`, `1.5K` or `123M`: IEC units by their
/// letter, for columns.
#[must_use]
pub fn compact(size: f64) -> String {
    let mut value = size;
    for unit in ["B", "K", "M", "G", "T"] {
        // Rounding up would need one more digit.
        if value < 999.5 {
            let decimals = usize::from(unit != "B" && value < 9.95);
            return format!("{value:.decimals$}{unit}");
        }
        value /= 1024.0;
    }
    "many".to_owned()
}

/// Formats events a second in at most four characters: `0`, `0.3`, `17`, `1.2k`.
#[must_use]
pub fn frequency(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        few if few < 9.95 => format!("{:.1}", few.max(0.1)),
        many => short(many.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_have_three_digits_in_iec_units() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (65536, "64 KiB"),
            (1 << 20, "1 MiB"),
            (3 << 19, "1.50 MiB"),
            (268_435_456, "256 MiB"),
            (1 << 50, "1024 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
        assert_eq!(rate(1536.0 * 1024.0 * 1024.0), "1.50 GiB/s");
        assert_eq!(rate(f64::INFINITY), "-");
    }

    #[test]
    fn times_take_the_unit_that_fits() {
        for (time, text) in [
            (0.0, "0"),
            (7.4e-10, "0.74 ns"),
            (2.5e-6, "2.50 us"),
            (123.4e-6, "123 us"),
            (0.999_9e-3, "1.00 ms"),
            (12.0, "12.0 s"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(seconds(time), text);
        }
    }

    #[test]
    fn columns_stay_narrow_whatever_stands_in_them() {
        for (size, text) in [
            (0.0, "0B"),
            (999.0, "999B"),
            (1000.0, "1.0K"),
            (1536.0, "1.5K"),
            (1e6, "977K"),
            (1.5 * 1073741824.0, "1.5G"),
            (1e30, "many"),
        ] {
            assert_eq!(compact(size), text);
        }
        for (number, text) in [
            (0.0, "0"),
            (0.01, "0.1"),
            (3.24, "3.2"),
            (9.96, "10"),
            (12_345.0, "12k"),
            (1e30, "many"),
        ] {
            assert_eq!(frequency(number), text);
        }
    }

    #[test]
    fn uptimes_and_counts_read_well() {
        for (time, text) in
            [(5.9, "5 s"), (65.0, "1 min 5 s"), (11_520.0, "3 h 12 min"), (90_000.0, "1 d 1 h")]
        {
            assert_eq!(uptime(time), text);
        }
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0k"),
            (9999, "10k"),
            (999_999, "1.0M"),
            (u64::MAX, "many"),
        ] {
            assert_eq!(short(number), text);
        }
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (1_234_567, "1 234 567")] {
            assert_eq!(count(number), text);
        }
    }
}
