//! Choices over stages whose fragments differ: what the slowest fragment of each costs, and which
//! choice is the best for it.
//!
//! A latency is what most transfers take: with its usual lateness, it is what the guard compares
//! measurements with. What a choice is *judged* by is beyond that, and too rare to be measured for
//! each candidate. On a path over a connection for urgent requests it is a quantile, on others the
//! mean over all transfers, which met stalls or did not. A choice whose mean is not among the best
//! may not win by its tail.

use std::num::NonZeroU32;

use piped_model::evaluate::{self, LATE_FRAGMENTS_MAX, Late};

use super::costs::PathCosts;
use super::path::STAGES_MAX;
use super::planned::Choice;
use super::solve::Runs;

/// The part of the transfers whose latency urgent requests are planned for: a little more than 99
/// in 100, because shares of what is rare are known to a third of themselves.
const URGENT_PART: f64 = 1.0 - 0.01 / 1.5;

/// Part of the mean latency that may be given up for a better quantile.
const MEAN_SLACK: f64 = 0.01;

/// Choices that differ by less than this part are equal: that with the fewest fragments is taken.
const ALIKE: f64 = 0.01;

/// Adds to all choices what their slowest fragments cost, and returns the index of the best of
/// those that may lead; `None` if no stage of the path is known to spread.
pub(super) fn judge(
    path: &PathCosts,
    choices: &mut [Choice],
    may_lead: impl Fn(&Choice) -> bool,
) -> Option<usize> {
    let mut means = f64::INFINITY;
    for choice in &mut *choices {
        let Late { mean, usual, quantile } = late(path, choice)?;
        let judged = if path.is_urgent() { quantile } else { mean };
        let (base, least) = (choice.predicted_seconds, 0.1 * choice.predicted_seconds);
        let [mean, usual, judged] = [mean, usual, judged].map(|late| (base + late).max(least));
        (choice.predicted_seconds, choice.late_seconds) = (usual, usual - base);
        (choice.mean_seconds, choice.tail) = (mean, judged / usual);
        means = means.min(mean);
    }
    let is_good = |choice: &Choice| choice.mean_seconds <= means * (1.0 + MEAN_SLACK);
    let good = || (0..).zip(&*choices).filter(|(_, choice)| may_lead(choice) && is_good(choice));
    let least = good().map(|(_, choice)| choice.judged()).fold(f64::INFINITY, f64::min);
    let alike = good().filter(|(_, choice)| choice.judged() <= least * (1.0 + ALIKE));
    let (lead, best) = alike.min_by_key(|(_, choice)| choice.counts.iter().sum::<u32>())?;
    let tail = best.tail;
    for choice in choices.iter_mut().filter(|choice| !is_good(choice)) {
        choice.tail = choice.tail.max(tail);
    }
    Some(lead)
}

/// The lateness of a choice; one with more fragments than are looked at is taken to be as late as
/// its first.
fn late(path: &PathCosts, choice: &Choice) -> Option<Late> {
    let runs = Runs::of(path.at_device());
    let levels = [choice.cut.source, choice.cut.lane, choice.cut.sink];
    let first = levels.map(|sizes| sizes.of(choice.length).take(LATE_FRAGMENTS_MAX).sum::<u64>());
    let bytes = first.into_iter().fold(choice.length, u64::min);
    let mut lists = [[0; LATE_FRAGMENTS_MAX]; 3];
    let mut views: [&[u64]; 3] = [&[]; 3];
    for ((list, view), sizes) in lists.iter_mut().zip(&mut views).zip(levels) {
        let mut count = 0;
        for (place, size) in list.iter_mut().zip(sizes.of(bytes)) {
            (*place, count) = (size, count + 1);
        }
        *view = &list[..count];
    }
    let mut sizes: [&[u64]; STAGES_MAX] = [&[]; STAGES_MAX];
    for (stage, sizes) in sizes.iter_mut().enumerate() {
        *sizes = match stage {
            at if at < runs.source => views[0],
            at if at < runs.source + runs.lane => views[1],
            _ => views[2],
        };
    }
    let depth = NonZeroU32::new(choice.cut.depth);
    path.with(|costs| evaluate::late(costs, &sizes[..costs.len()], depth, URGENT_PART))
}
