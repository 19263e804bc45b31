//! What is known of a file, in words and as JSON.

use piped_client::call::{FileKind, Stat};
use serde::Serialize;

use crate::below::Below;

/// What `--json` says of one file. Fields of what is not known are left out.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    place: String,
    name: String,
    /// The name's bytes in hexadecimal, where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<String>,
    kind: &'static str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    known: Option<Known>,
}

#[derive(Debug, Serialize)]
struct Known {
    /// Permission bits in octal.
    mode: String,
    user: u32,
    group: u32,
    links: u32,
    bytes: u64,
    allocated_bytes: u64,
    inode: u64,
    modified: Time,
    changed: Time,
    /// Multiples that direct I/O takes, in bytes; 0: there is none.
    direct_offset_bytes: u32,
    direct_memory_bytes: u32,
}

/// A time as text, and exactly.
#[derive(Debug, Serialize)]
struct Time {
    utc: String,
    seconds_since_1970: i64,
    nanoseconds: u32,
}

impl Time {
    fn new((seconds, nanoseconds): (i64, u32)) -> Self {
        Self { utc: utc(seconds), seconds_since_1970: seconds, nanoseconds }
    }
}

impl Report {
    pub(super) fn new(place: &Below, kind: FileKind, stat: Option<&Stat>) -> Self {
        let name = place.split().map_or(&b""[..], |(_, name)| name);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let known = stat.map(|stat| Known {
            mode: format!("{:04o}", stat.mode),
            user: stat.user,
            group: stat.group,
            links: stat.links,
            bytes: stat.length,
            allocated_bytes: stat.allocated,
            inode: stat.inode,
            modified: Time::new(stat.modified),
            changed: Time::new(stat.changed),
            direct_offset_bytes: stat.direct_offset,
            direct_memory_bytes: stat.direct_memory,
        });
        Self {
            place: text(&place.bytes()),
            name: text(name),
            name_bytes: std::str::from_utf8(name).is_err().then(|| hex(name)),
            kind: word(kind),
            known,
        }
    }
}

/// The kind in a word.
pub(super) const fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Other => "other",
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "link",
    }
}

/// Kind and permission bits, as in `drwxr-x---`.
pub(super) fn mode(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        FileKind::Other => '?',
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Link => 'l',
    });
    for (shift, special, marks) in [(6, 0o4000, "sS"), (3, 0o2000, "sS"), (0, 0o1000, "tT")] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        let (both, alone) = marks.split_at(1);
        text.push_str(match (bits & 1 != 0, mode & special != 0) {
            (true, false) => "x",
            (true, true) => both,
            (false, true) => alone,
            (false, false) => "-",
        });
    }
    text
}

/// A time to the second, as in `2026-11-27 06:58:12`.
///
/// The calendar is that of Howard Hinnant's `civil_from_days` ("chrono-Compatible Low-Level Date
/// Algorithms"): years begin in March, so that the leap day is the last one.
pub(super) fn utc(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_as_everybody_writes_them() {
        for (kind, bits, text) in [
            (FileKind::File, 0o640, "-rw-r-----"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::File, 0o4755, "-rwsr-xr-x"),
            (FileKind::File, 0o2644, "-rw-r-Sr--"),
            (FileKind::Link, 0o1776, "lrwxrwxrwT"),
            (FileKind::Other, 0, "?---------"),
        ] {
            assert_eq!(mode(kind, bits), text);
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (1_795_762_692, "2026-11-27 06:58:12"),
            (-1, "1969-12-31 23:59:59"),
        ] {
            assert_eq!(utc(seconds), text, "{seconds}");
        }
        // Whatever a peer says, it is a text.
        assert!(utc(i64::MAX).ends_with("07"), "{}", utc(i64::MAX));
        assert!(!utc(i64::MIN).is_empty());
    }
}
