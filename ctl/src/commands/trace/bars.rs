//! Bars of fragments as they are drawn: when a stage had time for each, and the sums of a stage.

use piped_report::trace::Visit;

use crate::units;

/// A fragment in a stage; times in nanoseconds from the transfer's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bar {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Time when it could be served.
    pub(crate) arrived: u64,
    /// Time of its turn, taken as the time when the one ahead left, since nobody sees it.
    pub(crate) started: u64,
    /// Time when it left, or when the recording ended.
    pub(crate) ended: u64,
    /// Whether it has left the stage.
    pub(crate) left: bool,
}

/// Fragments of a stage in the order in which they left it. Fragments that never left end at `end`.
pub(crate) fn bars(visits: &[Visit], stage: usize, end: u64) -> Vec<Bar> {
    let of_stage = visits.iter().filter(|visit| visit.stage as usize == stage);
    let mut all: Vec<Bar> = of_stage
        .map(|visit| Bar {
            offset: visit.offset,
            bytes: visit.bytes,
            arrived: visit.arrived_ns,
            started: visit.arrived_ns,
            ended: visit.departed_ns.unwrap_or(end).max(visit.arrived_ns),
            left: visit.departed_ns.is_some(),
        })
        .collect();
    all.sort_by_key(|bar| (!bar.left, bar.ended, bar.offset));
    let mut before = 0;
    for bar in &mut all {
        bar.started = bar.arrived.max(before).min(bar.ended);
        before = bar.ended;
    }
    all
}

/// Sums of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) fragments: u64,
    /// Time in which it had a fragment.
    pub(crate) busy: u64,
    /// Time when the last one left.
    pub(crate) last: u64,
    /// Fragments that never left.
    pub(crate) stuck: u64,
}

impl Sums {
    /// Sums of a stage's fragments.
    pub(crate) fn of(bars: &[Bar]) -> Self {
        let mut sums = Self::default();
        for bar in bars {
            sums.fragments += 1;
            sums.busy += bar.ended - bar.started;
            match bar.left {
                true => sums.last = sums.last.max(bar.ended),
                false => sums.stuck += 1,
            }
        }
        sums
    }
}

/// Sizes in words: equal neighbours together, and no more groups than can be read. `count` is the
/// number of all, of which `sizes` may be the first.
pub(crate) fn sizes(sizes: &[u64], count: u64) -> String {
    const RUNS_MAX: usize = 6;
    let runs: Vec<&[u64]> = sizes.chunk_by(|a, b| a == b).collect();
    let last = sizes.len() as u64 == count;
    let mut words: Vec<String> = Vec::new();
    for (place, run) in runs.iter().enumerate().take(RUNS_MAX) {
        let more = if place + 1 == runs.len() && !last {
            count.saturating_sub(sizes.len() as u64)
        } else {
            0
        };
        let (times, size) = (run.len() as u64 + more, units::bytes(run[0]));
        words.push(if times == 1 { size } else { format!("{times} x {size}") });
    }
    if runs.len() > RUNS_MAX {
        words.push(format!("... ({count} in all)"));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(offset: u64, arrived_ns: u64, departed_ns: Option<u64>) -> Visit {
        Visit { stage: 1, offset, bytes: 10, arrived_ns, departed_ns }
    }

    #[test]
    fn a_stage_has_one_fragment_at_a_time() {
        let other = Visit { stage: 0, ..visit(0, 0, Some(5)) };
        let visits = [
            visit(0, 0, Some(30)),
            visit(10, 2, Some(20)),
            other,
            visit(20, 35, Some(40)),
            visit(30, 36, None),
        ];
        let all = bars(&visits, 1, 50);
        let times: Vec<_> = all.iter().map(|bar| (bar.offset, bar.started, bar.ended)).collect();
        assert_eq!(times, [(10, 2, 20), (0, 20, 30), (20, 35, 40), (30, 40, 50)]);
        assert_eq!(Sums::of(&all), Sums { fragments: 4, busy: 43, last: 40, stuck: 1 });
    }

    #[test]
    fn a_fragment_that_left_before_it_came_takes_no_time() {
        let [bar] = bars(&[visit(0, 7, Some(5))], 1, 50)[..] else { panic!("one") };
        assert_eq!((bar.arrived, bar.started, bar.ended), (7, 7, 7));
    }

    #[test]
    fn sizes_are_told_in_runs() {
        assert_eq!(sizes(&[65536; 16], 16), "16 x 64 KiB");
        assert_eq!(sizes(&[4096, 8192, 8192], 3), "4 KiB, 2 x 8 KiB");
        assert_eq!(sizes(&[4096, 8192], 1000), "4 KiB, 999 x 8 KiB");
        let rising: Vec<u64> = (1..=10).map(|pages| pages * 4096).collect();
        assert_eq!(
            sizes(&rising, 10),
            "4 KiB, 8 KiB, 12 KiB, 16 KiB, 20 KiB, 24 KiB, ... (10 in all)"
        );
    }
}
