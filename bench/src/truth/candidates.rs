//! The model's opinion of plans beside their measurements: lists of candidates, as `pipectl
//! explain` shows them, judged.

use std::time::Duration;

use piped_report::shard::Candidate;

use super::scene::Caller;
use crate::failure::Failure;
use crate::stats;

/// Transfers whose lists are looked at.
const WATCHED: usize = 32;

/// Time of transfers between two looks. A look leaves the daemons asleep, and what transfers take
/// right after it is not what they take.
const BETWEEN: Duration = Duration::from_millis(5);

/// Measurements over prediction that count as true.
pub(super) const TRUE: std::ops::RangeInclusive<f64> = 0.8..=1.25;

/// Measurements nearer than this to each other have no order: the guard does not tell them apart.
const SAME: f64 = 1.015;

/// A candidate's prediction and measurement, in seconds, without the client's own waking.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    plan: String,
    /// First fragment, in bytes.
    fragment_bytes: u64,
    predicted: f64,
    measured: Option<f64>,
}

impl Seen {
    pub(super) fn of(candidate: &Candidate) -> Self {
        Self {
            plan: candidate.algorithm.clone(),
            fragment_bytes: candidate.fragment_bytes,
            predicted: candidate.predicted_seconds,
            measured: candidate.measured_seconds,
        }
    }

    pub(super) fn plan(&self) -> &str {
        &self.plan
    }

    pub(super) const fn fragment_bytes(&self) -> u64 {
        self.fragment_bytes
    }

    pub(super) const fn predicted(&self) -> f64 {
        self.predicted
    }

    pub(super) const fn measured(&self) -> Option<f64> {
        self.measured
    }
}

/// The candidates of a cell, the model's first before all others, and how often that one was also
/// the guard's favourite.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct List {
    seen: Vec<Seen>,
    transfers: usize,
    first_is_favourite: usize,
    /// Prediction of the transfers that were watched.
    predicted: f64,
}

impl List {
    pub(super) const fn new(seen: Vec<Seen>, transfers: usize, first_is_favourite: usize) -> Self {
        Self { seen, transfers, first_is_favourite, predicted: 0.0 }
    }

    /// Watches transfers of `auto`, which has learnt the path.
    pub(super) fn watch(caller: &Caller<'_>) -> Result<Self, Failure> {
        let mut lists = Vec::new();
        let mut predictions = Vec::new();
        for _ in 0..WATCHED {
            caller.keep_on(BETWEEN)?;
            if let Some(told) = caller.told()?.filter(|told| !told.candidates.is_empty()) {
                predictions.push(told.predicted_seconds);
                lists.push(told.candidates);
            }
        }
        let favourites = lists.iter().filter(|list| first_is_favourite(list)).count();
        // A plan's list is as old as the plan: the one that knows most is the latest.
        let known = |list: &&Vec<Candidate>| {
            list.iter().filter(|candidate| candidate.measured_seconds.is_some()).count()
        };
        let latest = lists.iter().max_by_key(known).map_or(&[][..], Vec::as_slice);
        let list = Self::new(latest.iter().map(Seen::of).collect(), lists.len(), favourites);
        Ok(Self { predicted: stats::median(&predictions).unwrap_or(f64::NAN), ..list })
    }

    pub(super) fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// Prediction of the plan that was chosen, in seconds.
    pub(super) const fn predicted(&self) -> f64 {
        self.predicted
    }

    /// Adds what a size set by hand took, where the guard did not measure that candidate.
    pub(super) fn add(&mut self, fragment_bytes: u64, seconds: f64) {
        let equal = |seen: &&mut Seen| {
            seen.fragment_bytes == fragment_bytes
                && (seen.plan.starts_with("static-") || seen.plan == "whole")
        };
        for seen in self.seen.iter_mut().filter(equal) {
            seen.measured.get_or_insert(seconds);
        }
    }

    /// Transfers in which the model's first was the guard's favourite, and those watched.
    pub(super) const fn favourites(&self) -> [usize; 2] {
        [self.first_is_favourite, self.transfers]
    }

    /// Measured over predicted of each candidate that was measured.
    pub(super) fn ratios(&self) -> impl Iterator<Item = f64> {
        let seen = self.seen.iter().filter(|seen| seen.predicted > 0.0);
        seen.filter_map(|seen| Some(seen.measured? / seen.predicted))
    }

    /// Candidates that are what the model says, and those that were measured.
    pub(super) fn truths(&self) -> [usize; 2] {
        let (mut inside, mut all) = (0, 0);
        for ratio in self.ratios() {
            inside += usize::from(TRUE.contains(&ratio));
            all += 1;
        }
        [inside, all]
    }

    /// Pairs of candidates that the model has in the order of the measurements, and all pairs with
    /// an order.
    pub(super) fn order(&self) -> [usize; 2] {
        let known: Vec<(f64, f64)> =
            self.seen.iter().filter_map(|seen| Some((seen.predicted, seen.measured?))).collect();
        let (mut right, mut all) = (0, 0);
        for (place, one) in known.iter().enumerate() {
            for other in &known[place + 1..] {
                let (slow, fast) = if one.1 > other.1 { (one, other) } else { (other, one) };
                if slow.1 > fast.1 * SAME {
                    all += 1;
                    right += usize::from(slow.0 > fast.0);
                }
            }
        }
        [right, all]
    }

    /// Time of the model's first candidate over the best that was measured.
    pub(super) fn loss(&self) -> Option<f64> {
        let least = self.seen.iter().filter_map(|seen| seen.measured).min_by(f64::total_cmp)?;
        Some(self.seen.first()?.measured? / least)
    }
}

/// Whether the list's first, the model's proposal, is the plan that most transfers get. If another
/// is, the first has a veto; or was beaten before it was ever measured, and is not used.
fn first_is_favourite(list: &[Candidate]) -> bool {
    let Some(first) = list.first() else { return false };
    !first.vetoed && (first.measured_seconds.is_some() || first.chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(plan: &str, bytes: u64, predicted: f64, measured: Option<f64>) -> Seen {
        Seen { plan: plan.to_owned(), fragment_bytes: bytes, predicted, measured }
    }

    fn candidate(measured: Option<f64>, chosen: bool, vetoed: bool) -> Candidate {
        Candidate {
            algorithm: "fixed".to_owned(),
            fragment_bytes: 4096,
            lane_bytes: 0,
            sink_bytes: 0,
            shrink_bytes: 0,
            depth: 1,
            chosen,
            predicted_seconds: 1.0,
            judged_seconds: None,
            measured_seconds: measured,
            vetoed,
        }
    }

    #[test]
    fn candidates_are_judged_by_what_was_measured() {
        let list = [
            seen("fixed", 1, 1.0, Some(1.25)),
            seen("static-2", 2, 1.1, Some(1.0)),
            seen("static-4", 4, 1.2, None),
            seen("whole", 8, 2.0, Some(2.6)),
        ];
        let list = List::new(list.to_vec(), 8, 5);
        assert_eq!(list.truths(), [2, 3], "2.6 / 2 is above 1.25");
        assert_eq!(list.order(), [2, 3], "the first two are the wrong way round");
        assert_eq!(list.loss(), Some(1.25));
        assert_eq!(list.favourites(), [5, 8]);
        assert_eq!(List::default().loss(), None);
    }

    #[test]
    fn measurements_that_nobody_can_tell_apart_have_no_order() {
        let list = vec![seen("a", 1, 1.0, Some(1.01)), seen("b", 2, 2.0, Some(1.0))];
        assert_eq!(List::new(list, 0, 0).order(), [0, 0]);
    }

    #[test]
    fn a_size_set_by_hand_is_added_where_the_guard_knows_nothing() {
        let list = vec![
            seen("fixed", 4, 1.0, None),
            seen("static-4", 4, 1.0, None),
            seen("static-8", 8, 1.0, Some(2.0)),
        ];
        let mut list = List::new(list, 0, 0);
        list.add(4, 3.0);
        list.add(8, 9.0);
        let measured: Vec<_> = list.seen().iter().map(Seen::measured).collect();
        assert_eq!(measured, [None, Some(3.0), Some(2.0)]);
    }

    #[test]
    fn the_favourite_is_told_from_one_that_was_tried() {
        let other = candidate(Some(1.0), true, false);
        let lists = [
            (candidate(Some(1.0), false, false), true),
            (candidate(Some(1.0), true, true), false),
            (candidate(None, true, false), true),
            (candidate(None, false, false), false),
        ];
        for (first, is) in lists {
            assert_eq!(first_is_favourite(&[first.clone(), other.clone()]), is, "{first:?}");
        }
        assert!(!first_is_favourite(&[]));
    }
}
