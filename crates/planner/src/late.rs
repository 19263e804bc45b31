//! Choices over stages whose fragments differ: what the slowest fragment of each costs, and which
//! choice is the best for it.
//!
//! A latency is what most transfers take: with its usual lateness, it is what the guard compares
//! measurements with. What a choice is *judged* by is beyond that, and too rare to be measured for
//! each candidate. On a path over a connection for urgent requests it is a quantile, in the mean
//! over what the spreads may be, for shares of what is rare are known by few samples. On others it
//! is the mean over all transfers, which met stalls or did not. A choice whose mean is not among
//! the best may not win by its tail.

use std::num::NonZeroU32;

use piped_model::evaluate::{self, LATE_FRAGMENTS_MAX, Late};

use super::costs::PathCosts;
use super::guard::ARMS_MAX;
use super::path::STAGES_MAX;
use super::planned::Choice;
use super::solve::Runs;

/// The part of the transfers that urgent requests are planned for.
const URGENT_PART: f64 = 0.99;

/// Part of the mean latency that may be given up for a better quantile.
const MEAN_SLACK: f64 = 0.01;

/// Choices that differ by less than this part of what they usually take are equal: that with the
/// fewest fragments is taken.
const ALIKE: f64 = 0.01;

/// A choice that takes more than so many times as long as the fastest before anything is late is
/// not looked at: it is as late as the best one. It is not even tried.
const NEAR: f64 = 2.5;

/// Adds to all choices what their slowest fragments cost, and returns the index of the best of
/// those that may lead; `None` if no stage of the path is known to spread.
pub(super) fn judge(
    path: &PathCosts,
    choices: &mut [Choice],
    may_lead: impl Fn(&Choice) -> bool,
) -> Option<usize> {
    let fastest = choices.iter().map(|it| it.predicted_seconds).fold(f64::INFINITY, f64::min);
    let is_near = |choice: &Choice| choice.predicted_seconds <= fastest * NEAR;
    let mut judged = [false; ARMS_MAX];
    let mut means = f64::INFINITY;
    for (choice, is_judged) in choices.iter_mut().zip(&mut judged).filter(|it| is_near(it.0)) {
        let Late { mean, usual, quantile } = late(path, choice)?;
        let judged = if path.is_urgent() { quantile } else { mean };
        let (base, least) = (choice.predicted_seconds, 0.1 * choice.predicted_seconds);
        let [mean, usual, judged] = [mean, usual, judged].map(|late| (base + late).max(least));
        (choice.predicted_seconds, choice.late_seconds) = (usual, usual - base);
        (choice.mean_seconds, choice.tail_seconds) = (mean, judged - usual);
        (means, *is_judged) = (means.min(mean), true);
    }
    let is_good = |(is_judged, choice): (&bool, &Choice)| {
        *is_judged && choice.mean_seconds <= means * (1.0 + MEAN_SLACK)
    };
    let all = || judged.iter().zip(&*choices);
    let good = || all().enumerate().filter(|&(_, it)| may_lead(it.1) && is_good(it));
    let least = good().map(|(_, (_, choice))| choice.judged()).fold(f64::INFINITY, f64::min);
    let is_alike = |choice: &Choice| choice.judged() <= least + ALIKE * choice.predicted_seconds;
    let alike = good().filter(|(_, (_, choice))| is_alike(choice));
    let fewest = alike.min_by_key(|(_, (_, choice))| choice.counts.iter().sum::<u32>());
    let (lead, best) = fewest.map(|(lead, (_, choice))| (lead, *choice))?;
    for (is_judged, choice) in judged.iter().zip(choices) {
        if !is_judged {
            choice.late_seconds = best.late_seconds;
            choice.predicted_seconds += best.late_seconds;
            choice.mean_seconds = choice.predicted_seconds;
        }
        // By as much as its mean is above the best one's.
        if !is_good((is_judged, choice)) {
            let least = best.judged() + (choice.mean_seconds - best.mean_seconds).max(0.0);
            choice.tail_seconds = choice.tail_seconds.max(least - choice.predicted_seconds);
        }
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
