//! CPU time of a process, this one or the daemon, from `/proc`.

use std::fs;

/// User and system time of `process` (`self` or a number) in seconds; none if it cannot be read.
pub(super) fn seconds(process: &str) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let ticks = ticks(&stat)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Fields 14 and 15 of `/proc/PID/stat`. The name in field 2 may hold anything, blanks and brackets
/// included, so counting begins after its last bracket.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 101 0 0 0 250 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_a_cpu_time() {
        assert!(seconds("self").is_some_and(|time| time >= 0.0));
        assert_eq!(seconds("0"), None);
    }
}
