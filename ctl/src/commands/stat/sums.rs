//! The daemon's counts summed up for a line, their difference, and quantiles of a histogram.

use piped_config::admin::watch::{OperationStat, Stat};

/// Sums since the daemon's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) local: Side,
    pub(super) remote: Side,
    pub(super) failed: u64,
    /// Histogram of reads and writes, by bound: an upper bound (none for the last bucket) and a
    /// count.
    pub(super) latency: Vec<(Option<f64>, u64)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

impl Sums {
    pub(super) fn of(stat: &Stat) -> Self {
        let mut sums = Self::default();
        stat.operations.iter().for_each(|operation| sums.add(operation));
        sums.latency.sort_by(|a, b| bound(a.0).total_cmp(&bound(b.0)));
        sums
    }

    fn add(&mut self, it: &OperationStat) {
        let (reads, writes) = match it.operation.as_str() {
            "read" | "get" => (true, false),
            "write" | "put" => (false, true),
            "copy" => (true, true),
            _ => (false, false),
        };
        let side = if it.route == "remote" { &mut self.remote } else { &mut self.local };
        let (count, bytes) = (it.completed + it.failed, it.bytes);
        side.reads += count * u64::from(reads);
        side.read_bytes += bytes * u64::from(reads);
        side.writes += count * u64::from(writes);
        side.written_bytes += bytes * u64::from(writes);
        self.failed += it.failed;
        if reads != writes {
            for &(bound, count) in &it.latency {
                match self.latency.iter_mut().find(|(known, _)| *known == bound) {
                    Some((_, known)) => *known += count,
                    None => self.latency.push((bound, count)),
                }
            }
        }
    }
}

fn bound(bound: Option<f64>) -> f64 {
    bound.unwrap_or(f64::INFINITY)
}

/// Work counted since `before`.
pub(super) fn difference(now: &Sums, before: &Sums) -> Sums {
    let side = |now: Side, before: Side| Side {
        reads: now.reads.saturating_sub(before.reads),
        writes: now.writes.saturating_sub(before.writes),
        read_bytes: now.read_bytes.saturating_sub(before.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(before.written_bytes),
    };
    let earlier = |bound: Option<f64>| {
        before.latency.iter().find(|(known, _)| *known == bound).map_or(0, |&(_, count)| count)
    };
    let latency =
        now.latency.iter().map(|&(bound, count)| (bound, count - earlier(bound).min(count)));
    Sums {
        local: side(now.local, before.local),
        remote: side(now.remote, before.remote),
        failed: now.failed.saturating_sub(before.failed),
        latency: latency.filter(|(_, count)| *count > 0).collect(),
    }
}

/// Bound that a share of all does not exceed; none if there are no entries, or above all bounds.
pub(super) fn quantile(latency: &[(Option<f64>, u64)], share: f64) -> Option<f64> {
    let all: u64 = latency.iter().map(|(_, count)| count).sum();
    let wanted = (all as f64 * share).ceil().max(1.0) as u64;
    let mut seen = 0;
    for &(bound, count) in latency {
        seen += count;
        if seen >= wanted {
            return bound;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(operation: &str, route: &str, latency: Vec<(Option<f64>, u64)>) -> OperationStat {
        let completed = latency.iter().map(|(_, count)| count).sum();
        let (operation, route, class) = (operation.to_owned(), route.to_owned(), "bulk".to_owned());
        OperationStat { operation, route, class, completed, failed: 1, bytes: 100, latency }
    }

    #[test]
    fn kinds_are_sorted_by_what_they_do_and_where() {
        let stat = Stat {
            uptime_seconds: 1.0,
            staging_bytes: 0,
            staging_used_bytes: 0,
            operations: vec![
                operation("read", "local", vec![(None, 1), (Some(2.0), 3)]),
                operation("get", "remote", vec![(Some(2.0), 4), (Some(1.0), 5)]),
                operation("copy", "remote", vec![(Some(9.0), 7)]),
                operation("sync", "local", vec![(Some(9.0), 9)]),
            ],
        };
        let sums = Sums::of(&stat);
        assert_eq!((sums.local.reads, sums.local.writes, sums.local.read_bytes), (5, 0, 100));
        assert_eq!((sums.remote.reads, sums.remote.writes), (10 + 8, 8));
        assert_eq!((sums.remote.read_bytes, sums.remote.written_bytes), (200, 100));
        assert_eq!(sums.failed, 4);
        assert_eq!(sums.latency, [(Some(1.0), 5), (Some(2.0), 7), (None, 1)]);
    }

    #[test]
    fn quantiles_are_bounds_and_differences_forget_what_was() {
        let latency = [(Some(1.0), 50), (Some(2.0), 49), (None, 1)];
        assert_eq!(quantile(&latency, 0.5), Some(1.0));
        assert_eq!(quantile(&latency, 0.51), Some(2.0));
        assert_eq!(quantile(&latency, 0.99), Some(2.0));
        assert_eq!(quantile(&latency, 1.0), None, "longer than any bound");
        assert_eq!(quantile(&[], 0.5), None);
        let now = Sums { latency: latency.into(), failed: 3, ..Sums::default() };
        let before = Sums { latency: vec![(Some(1.0), 50), (Some(2.0), 9)], ..Sums::default() };
        assert_eq!(difference(&now, &before).latency, [(Some(2.0), 40), (None, 1)]);
        assert_eq!(difference(&before, &now).failed, 0, "a daemon that was started anew");
    }
}
