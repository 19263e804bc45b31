//! Time that no stage sees: threads that wake, a loop that turns to other work between two
//! fragments, a cache that a large fragment has left. What whole transfers took tells of it.
//!
//! The stages' costs promise each candidate a time. What transfers took beyond that is fitted by
//! terms of the same form as the model's own: so many times the promise, a time for each transfer,
//! for each fragment, for each byte of a fragment, and for each round trip of a serial plan. A
//! ridge keeps few measurements from saying more than they know: it holds the times of fragments to
//! what another length of the same path has found. Candidates that were never used profit from what
//! the others took.
//!
//! Nothing of it is kept: it is fitted where it is shown, and transfers pay nothing for it.

use super::super::planned::Choice;
use super::{Arm, BIAS, ENOUGH};

const TERMS: usize = 5;
type Terms = [f64; TERMS];

/// Weight of terms of zero, beside a candidate with [`ENOUGH`] outcomes. Prediction errors left
/// out one by one were least there, over the candidates of all paths of `bench truth`.
const RIDGE: f64 = 0.005;

/// Candidates with [`ENOUGH`] outcomes from which times of fragments are taken for other lengths.
const SURE: usize = 3;

/// Time of fragments that no stage sees.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(in super::super) struct Unseen {
    /// Seconds of a fragment.
    fragment: f64,
    /// Seconds of a byte of a fragment.
    byte: f64,
    /// Seconds of a round trip of a serial plan, beside those of its fragment.
    round: f64,
}

/// What the terms are multiples of: a term is 1 for the candidate that has most of it.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// The least promise, in seconds.
    least: f64,
    /// Fragments and promise of the candidate with the most fragments; and of the serial one.
    most: (f64, f64),
    most_serial: (f64, f64),
    /// The largest fragment, in bytes.
    largest: f64,
}

/// Fragments of the level that has the most.
fn count(plan: &Choice) -> f64 {
    plan.counts.into_iter().fold(1.0, |most, count| f64::from(count).max(most))
}

/// Bytes of the largest fragment.
fn largest(plan: &Choice) -> f64 {
    plan.firsts().into_iter().fold(1.0, f64::max).min(plan.length as f64)
}

impl Scale {
    fn of(arms: &[Arm]) -> Self {
        let none =
            Self { least: f64::INFINITY, most: (1.0, 0.0), most_serial: (1.0, 0.0), largest: 1.0 };
        arms.iter().fold(none, |scale, Arm { plan, .. }| {
            let here = (count(plan), plan.predicted_seconds);
            let more =
                |most: (f64, f64)| if here.0 > most.0 || most.1 == 0.0 { here } else { most };
            let is_serial = plan.cut.depth == 1;
            Self {
                least: scale.least.min(plan.predicted_seconds),
                most: more(scale.most),
                most_serial: if is_serial { more(scale.most_serial) } else { scale.most_serial },
                largest: scale.largest.max(largest(plan)),
            }
        })
    }

    /// Seconds of a fragment, a byte of one, and a round trip, that the terms are multiples of.
    fn units(&self) -> [f64; 3] {
        let fragments = |(count, seconds): (f64, f64)| seconds / count;
        [fragments(self.most), self.least / self.largest, fragments(self.most_serial)]
    }

    /// The terms of a plan, each as a part of its promise.
    fn terms(&self, plan: &Choice) -> Terms {
        let of = |seconds: f64| seconds / plan.predicted_seconds;
        let (count, bytes) = (count(plan), largest(plan));
        let fragments = |(most, seconds): (f64, f64)| of(count / most * seconds);
        let is_serial = plan.cut.depth == 1;
        [
            1.0,
            of(self.least),
            fragments(self.most),
            of(bytes / self.largest * self.least),
            if is_serial { fragments(self.most_serial) } else { 0.0 },
        ]
    }
}

impl Unseen {
    /// The times as factors of terms.
    fn factors(self, scale: &Scale) -> Terms {
        let [fragment, byte, round] = scale.units();
        let of = |time: f64, unit: f64| if unit > 0.0 { time / unit } else { 0.0 };
        [0.0, 0.0, of(self.fragment, fragment), of(self.byte, byte), of(self.round, round)]
    }
}

/// What all candidates took beyond the stages' costs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fit {
    scale: Scale,
    factors: Terms,
}

impl Fit {
    /// Whether so many candidates are known that other lengths can learn from them.
    pub(super) fn is_sure(arms: &[Arm]) -> bool {
        arms.iter().filter(|arm| arm.measured.known().is_some()).count() >= SURE
    }

    /// The fit over these candidates. `before`: what another length has found.
    pub(super) fn of(arms: &[Arm], before: Unseen) -> Self {
        // A single outcome may be a stall: it tells only where no arm has more.
        let least = arms.iter().map(|arm| arm.measured.outcomes()).fold(1, u32::max).min(2);
        let scale = Scale::of(arms);
        let mut normal = [[0.0; TERMS]; TERMS];
        let mut right = [0.0; TERMS];
        for (at, factor) in before.factors(&scale).into_iter().enumerate() {
            (normal[at][at], right[at]) = (RIDGE, RIDGE * factor);
        }
        let has_promise = |arm: &&Arm| arm.plan.predicted_seconds > 0.0;
        let used = arms.iter().filter(|arm| arm.measured.outcomes() >= least).filter(has_promise);
        for arm in used {
            let terms = scale.terms(&arm.plan);
            let found = arm.measured.seconds() / arm.plan.predicted_seconds;
            let beyond = found.clamp(BIAS.0, BIAS.1) - 1.0;
            // Errors count as parts of what it took, so that a stall counts for little.
            let weight = f64::from(arm.measured.outcomes().min(ENOUGH)) / f64::from(ENOUGH);
            let weight = weight / (beyond + 1.0).powi(2);
            for (row, (right, term)) in normal.iter_mut().zip(right.iter_mut().zip(terms)) {
                row.iter_mut().zip(terms).for_each(|(sum, other)| *sum += weight * term * other);
                *right += weight * term * beyond;
            }
        }
        Self { scale, factors: solved(normal, right) }
    }

    /// What a candidate is promised by the stages' costs and by what no stage sees, in seconds at a
    /// pace of 1.
    pub(super) fn promise(&self, plan: &Choice) -> f64 {
        let seconds = plan.predicted_seconds;
        let terms = if seconds > 0.0 { self.scale.terms(plan) } else { [0.0; TERMS] };
        let beyond: f64 = terms.iter().zip(self.factors).map(|(term, factor)| term * factor).sum();
        seconds * (1.0 + beyond).clamp(BIAS.0, BIAS.1)
    }

    /// The times of fragments.
    pub(super) fn unseen(&self) -> Unseen {
        let [fragment, byte, round] = self.scale.units();
        let [.., of_fragment, of_byte, of_round] = self.factors;
        Unseen { fragment: of_fragment * fragment, byte: of_byte * byte, round: of_round * round }
    }
}

/// The solution of symmetric and positive equations, which the ridge makes them: no pivoting is
/// needed.
fn solved(mut matrix: [Terms; TERMS], mut right: Terms) -> Terms {
    for pivot in 0..TERMS {
        let (top, value) = (matrix[pivot], right[pivot]);
        for row in pivot + 1..TERMS {
            let factor = matrix[row][pivot] / top[pivot];
            matrix[row].iter_mut().zip(top).for_each(|(left, above)| *left -= factor * above);
            right[row] -= factor * value;
        }
    }
    for pivot in (0..TERMS).rev() {
        let behind: f64 = (pivot + 1..TERMS).map(|at| matrix[pivot][at] * right[at]).sum();
        right[pivot] = (right[pivot] - behind) / matrix[pivot][pivot];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::super::measured::Measured;
    use super::*;
    use crate::guard::tests::{UNIT, plan};

    /// A candidate of so many bytes a fragment with its promise, and what it took, in units.
    fn arm(bytes: u64, promise: f64, took: Option<f64>) -> Arm {
        let plan = plan(bytes, promise);
        let (number, measured) = (plan.cut.number(), Measured::default());
        let mut arm = Arm { plan, number, planned: None, made_at: 0, measured, expected: 0.0 };
        for _ in 0..took.map_or(0, |_| ENOUGH) {
            let took = took.expect("it has outcomes") * UNIT;
            arm.measured.observe((took, promise * UNIT), 0, (0.0, 24.0), false);
        }
        arm
    }

    fn promises_after(arms: &[Arm], before: Unseen) -> Vec<f64> {
        let fit = Fit::of(arms, before);
        arms.iter().map(|arm| fit.promise(&arm.plan) / UNIT).collect()
    }

    fn promises(arms: Vec<Arm>) -> Vec<f64> {
        promises_after(&arms, Unseen::default())
    }

    #[test]
    fn without_outcomes_the_stages_alone_promise() {
        let arms = vec![arm(1 << 20, 10.0, None), arm(1 << 16, 8.0, None)];
        assert_eq!(promises(arms), [10.0, 8.0]);
        assert_eq!(promises(vec![]), [0.0; 0]);
        assert_eq!(
            promises(vec![arm(1, 0.0, Some(3.0))]),
            [0.0],
            "nothing is a multiple of nothing"
        );
    }

    /// Fragments cost 0.1 more than stages see. A size that was not used is promised within a few
    /// percent of what it will take, between and beyond those that were.
    #[test]
    fn a_cost_of_fragments_is_found_from_other_sizes() {
        let took = |bytes: u64| 20.0 + 0.1 * ((1 << 20) / bytes) as f64;
        for left_out in [1 << 14, 1 << 15, 1 << 16, 1 << 18] {
            let sizes = [1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 20];
            let known = |bytes| (bytes != left_out).then(|| took(bytes));
            let arms = sizes.map(|bytes| arm(bytes, 20.0, known(bytes))).to_vec();
            let place = sizes.iter().position(|&bytes| bytes == left_out).expect("it is one");
            let off = promises(arms)[place] / took(left_out);
            assert!((0.95..=1.05).contains(&off), "{left_out}: {off}");
        }
    }

    /// One candidate tells how far the model is off, and nothing of how much fragments cost.
    #[test]
    fn a_single_candidate_scales_the_others() {
        let arms = vec![arm(1 << 20, 10.0, Some(15.0)), arm(1 << 14, 10.0, None)];
        let promised = promises(arms);
        assert!((14.5..=15.1).contains(&promised[0]), "{promised:?}");
        assert!((12.0..=15.1).contains(&promised[1]), "{promised:?}");
    }

    /// What fragments of one length cost is expected of those of another length, until its own
    /// candidates say otherwise.
    #[test]
    fn another_length_tells_of_its_fragments() {
        let took = |bytes: u64| 20.0 + 0.1 * ((1 << 20) / bytes) as f64;
        let sizes = [1 << 14, 1 << 16, 1 << 18, 1 << 20];
        let arms = sizes.map(|bytes| arm(bytes, 20.0, Some(took(bytes))));
        assert!(Fit::is_sure(&arms), "it knows four");
        let found = Fit::of(&arms, Unseen::default()).unseen();
        assert!((0.08..0.12).contains(&(found.fragment / UNIT)), "{found:?}");
        let mut others = sizes.map(|bytes| arm(bytes, 40.0, None));
        others[3] = arm(1 << 20, 40.0, Some(40.1));
        assert!(!Fit::is_sure(&others), "one is not enough");
        let promised = promises_after(&others, found)[0];
        assert!((44.5..48.0).contains(&promised), "{promised}");
        let others = sizes.map(|bytes| arm(bytes, 40.0, Some(40.0)));
        assert!(Fit::is_sure(&others));
        let promised = promises_after(&others, found)[0];
        assert!((39.0..41.0).contains(&promised), "{promised}");
    }

    #[test]
    fn a_promise_stays_within_what_is_believed() {
        for took in [1e-6, 1e6] {
            let sizes = [(1 << 20, Some(took)), (1 << 19, Some(1.0)), (1 << 10, None)];
            let arms = sizes.map(|(bytes, took)| arm(bytes, 1.0, took)).to_vec();
            let all = promises(arms);
            assert!(all.iter().all(|it| (BIAS.0..=BIAS.1).contains(it)), "{all:?}");
        }
    }
}
