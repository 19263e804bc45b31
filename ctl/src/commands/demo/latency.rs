//! Fair comparison of planned and whole reads: the same sizes in the same minute, one read of each
//! in turn, in an order that changes every round. Offsets differ, so that no cache below helps one
//! of them.

use std::time::Duration;

use piped_config::admin::{EXPLAIN, Explained, PLANNER, PlannerBody};
use piped_core::modes::PlannerMode;
use piped_report::shard::Explanation;

use super::Cancel;
use super::moving::Reader;
use super::report::{Latency, Plan, Planned};
use crate::admin::Admin;
use crate::failure::Failure;
use crate::output::Progress;
use crate::units;

const ROUNDS: usize = 15;
const SIZES: [u64; 3] = [64 << 10, 1 << 20, 16 << 20];

/// The parts of a comparison.
pub(super) struct Bench<'a> {
    /// Admin API of the asking node.
    pub(super) asker: &'a Admin,
    /// Admin API of the node with the data, which therefore plans.
    pub(super) holder: &'a Admin,
    pub(super) reader: &'a mut Reader,
    pub(super) cancel: &'a Cancel,
    pub(super) progress: &'a Progress,
}

impl Bench<'_> {
    /// Compares all sizes that fit in the file.
    pub(super) fn run(&mut self) -> Result<Vec<Latency>, Failure> {
        let length = self.reader.file_bytes();
        let sizes = SIZES.into_iter().filter(|&size| size <= length);
        let measured = sizes.map(|size| self.size(size)).collect::<Result<_, _>>();
        self.mode(PlannerMode::Auto)?;
        measured
    }

    fn size(&mut self, size: u64) -> Result<Latency, Failure> {
        let (mut auto, mut whole) = (Vec::new(), Vec::new());
        let (mut auto_plan, mut whole_plan) = (None, None);
        for round in 0..ROUNDS {
            self.cancel.check()?;
            self.progress.say(format_args!(
                "reads of {}: round {} of {ROUNDS}",
                units::bytes(size),
                round + 1
            ));
            let mut both = [PlannerMode::Auto, PlannerMode::Whole];
            if round % 2 == 1 {
                both.reverse();
            }
            for mode in both {
                let time = self.read(size, mode)?;
                let (times, plan) = match mode {
                    PlannerMode::Whole => (&mut whole, &mut whole_plan),
                    _ => (&mut auto, &mut auto_plan),
                };
                times.push(time.as_secs_f64());
                *plan = self.plan(size);
            }
        }
        let ratios: Vec<f64> = auto.iter().zip(&whole).map(|(auto, whole)| auto / whole).collect();
        Ok(Latency {
            size_bytes: size,
            rounds: ROUNDS,
            auto: Planned { measured_seconds: median(auto), plan: auto_plan },
            whole: Planned { measured_seconds: median(whole), plan: whole_plan },
            ratio: median(ratios),
        })
    }

    /// Reads twice: one read to get used to the mode (its plan is not in the cache), one that
    /// counts.
    pub(super) fn read(&mut self, size: u64, mode: PlannerMode) -> Result<Duration, Failure> {
        self.mode(mode)?;
        self.reader.read_somewhere(size)?;
        self.reader.read_somewhere(size)
    }

    pub(super) fn mode(&self, mode: PlannerMode) -> Result<(), Failure> {
        self.holder.put(PLANNER, PlannerBody { mode })
    }

    /// Plan of the last read, from the node that made it or else from the asking one. The
    /// measurement counts without it.
    pub(super) fn plan(&self, size: u64) -> Option<Plan> {
        [self.holder, self.asker].into_iter().find_map(|admin| {
            let explained: Explained<Explanation> = admin.get(&format!("{EXPLAIN}last")).ok()?;
            let it = explained.explanation;
            (it.bytes == size && it.fragments > 0).then_some(Plan {
                algorithm: it.chosen,
                fragment_bytes: it.fragment_bytes,
                shrink_bytes: it.shrink_bytes,
                fragments: it.fragments,
                depth: it.depth,
                predicted_seconds: it.predicted_seconds,
                margin_seconds: it.margin_seconds,
            })
        })
    }
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
