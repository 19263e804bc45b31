//! Rounds: all arms once each, in an order that alternates, a number of times fixed beforehand.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;
use crate::machine::Ticks;
use crate::stats::{Better, Interval, Round, best_of, best_on_odd, on_even};

/// The most rounds of a row: more would only make luck significant.
pub(crate) const ROUNDS_MAX: u32 = 31;

/// A round with more time stolen by the hypervisor does not measure this machine.
pub(crate) const STOLEN_MAX: f64 = 0.02;

/// Set by Ctrl-C; the next arm is not measured.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C was pressed.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// An error once Ctrl-C was pressed.
pub(crate) fn check() -> Result<(), Failure> {
    if interrupted() { Err(Failure::new("interrupted")) } else { Ok(()) }
}

/// Measures an arm once.
pub(crate) type Measure<'a> = Box<dyn FnMut() -> Result<f64, Failure> + 'a>;

/// One of the compared things.
pub(crate) struct Arm<'a> {
    pub(crate) name: String,
    /// Whether it is measured in odd rounds too, which only choose the best of a sweep.
    pub(crate) in_odd: bool,
    pub(crate) measure: Measure<'a>,
}

impl<'a> Arm<'a> {
    /// A variant of a floor, measured in every round.
    pub(crate) fn variant(
        name: String,
        measure: impl FnMut() -> Result<f64, Failure> + 'a,
    ) -> Self {
        Self { name, in_odd: true, measure: Box::new(measure) }
    }

    /// A subject to be compared with the best variant, measured in even rounds.
    pub(crate) fn subject(name: &str, measure: impl FnMut() -> Result<f64, Failure> + 'a) -> Self {
        Self { name: name.to_owned(), in_odd: false, measure: Box::new(measure) }
    }
}

/// Results of all rounds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds {
    pub(crate) kept: Vec<Round>,
    pub(crate) discarded: u32,
    pub(crate) names: Vec<String>,
}

impl Rounds {
    /// Best of `variants` by the odd rounds.
    pub(crate) fn best(
        &self,
        variants: std::ops::Range<usize>,
        better: Better,
    ) -> Result<usize, Failure> {
        best_on_odd(&self.kept, variants, better).ok_or_else(too_few)
    }

    /// Best of `variants` by all rounds, to be compared in later rounds.
    pub(crate) fn best_of_all(
        &self,
        variants: std::ops::Range<usize>,
        better: Better,
    ) -> Result<usize, Failure> {
        best_of(self.kept.iter(), variants, better).ok_or_else(too_few)
    }

    /// Median and interval of an arm over all its rounds; none if they were discarded.
    pub(crate) fn all_of(&self, arm: usize) -> Option<Interval> {
        self.all(|round| round.values[arm]).ok()
    }

    /// Median and interval over the even rounds.
    pub(crate) fn even(&self, of: impl Fn(&Round) -> Option<f64>) -> Result<Interval, Failure> {
        Interval::of_median(&on_even(&self.kept, of)).ok_or_else(too_few)
    }

    /// Ratio of two arms in the even rounds.
    pub(crate) fn ratio(&self, new: usize, old: usize) -> Result<Interval, Failure> {
        self.even(|round| Some(round.values[new]? / round.values[old]?))
    }

    /// Ratio of two arms over all rounds, where neither was chosen as the best of some.
    pub(crate) fn all_ratio(&self, new: usize, old: usize) -> Result<Interval, Failure> {
        self.all(|round| Some(round.values[new]? / round.values[old]?))
    }

    /// Median and interval over all rounds.
    pub(crate) fn all(&self, of: impl Fn(&Round) -> Option<f64>) -> Result<Interval, Failure> {
        let values: Vec<f64> = self.kept.iter().filter_map(of).collect();
        Interval::of_median(&values).ok_or_else(too_few)
    }

    /// Median and interval of one arm over the even rounds.
    pub(crate) fn value(&self, arm: usize) -> Result<Interval, Failure> {
        self.even(|round| round.values[arm])
    }
}

fn too_few() -> Failure {
    Failure::new("too few rounds are left to say anything: run it again with --rounds 31")
}

/// Measures all arms in `rounds` rounds.
///
/// # Errors
/// The first arm that cannot be measured; an interruption.
pub(crate) fn run(rounds: u32, arms: &mut [Arm<'_>]) -> Result<Rounds, Failure> {
    run_by(order, rounds.min(ROUNDS_MAX), arms)
}

/// Measures in more rounds than usual, where a bar itself asks for them.
pub(crate) fn run_long(rounds: u32, arms: &mut [Arm<'_>]) -> Result<Rounds, Failure> {
    run_by(order, rounds, arms)
}

/// Measures the arms in the same order in every round: if the first begins with seconds of doing
/// nothing, only the arms after it are measured side by side.
pub(crate) fn run_in_order(rounds: u32, arms: &mut [Arm<'_>]) -> Result<Rounds, Failure> {
    run_by(|_, arms| Box::new(0..arms), rounds.min(ROUNDS_MAX), arms)
}

fn run_by(
    order: fn(u32, usize) -> Box<dyn Iterator<Item = usize>>,
    rounds: u32,
    arms: &mut [Arm<'_>],
) -> Result<Rounds, Failure> {
    let mut found =
        Rounds { names: arms.iter().map(|arm| arm.name.clone()).collect(), ..Rounds::default() };
    for number in 1..=rounds {
        let before = Ticks::now();
        let mut round = Round { number, values: vec![None; arms.len()] };
        for arm in order(number, arms.len()) {
            if round.is_odd() && !arms[arm].in_odd {
                continue;
            }
            check()?;
            let name = &arms[arm].name;
            let value = (arms[arm].measure)().map_err(|failure| failure.within(name))?;
            round.values[arm] = Some(value);
        }
        if Ticks::now().stolen_since(before) > STOLEN_MAX {
            found.discarded += 1;
        } else {
            found.kept.push(round);
        }
    }
    Ok(found)
}

/// Order of a round: forwards and backwards in turn, among the odd rounds as well as among the even
/// ones.
fn order(number: u32, arms: usize) -> Box<dyn Iterator<Item = usize>> {
    if number.div_ceil(2) % 2 == 1 { Box::new(0..arms) } else { Box::new((0..arms).rev()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_alternates_among_odd_and_among_even_rounds() {
        let orders: Vec<Vec<usize>> = (1..=4).map(|number| order(number, 2).collect()).collect();
        assert_eq!(orders, vec![vec![0, 1], vec![0, 1], vec![1, 0], vec![1, 0]]);
    }

    #[test]
    fn subjects_sit_out_odd_rounds_and_ratios_are_of_pairs() {
        let mut arms = [
            Arm::variant("slow".to_owned(), || Ok(4.0)),
            Arm::variant("fast".to_owned(), || Ok(2.0)),
            Arm::subject("new", || Ok(3.0)),
        ];
        let mut rounds = run(6, &mut arms).expect("nothing fails");
        let total = rounds.kept.len() as u32 + rounds.discarded;
        assert_eq!(total, 6);
        // Steal time may have taken some rounds; this is about the arithmetic.
        rounds.kept = (1..=6)
            .map(|number| Round {
                number,
                values: vec![Some(4.0), Some(2.0), (number % 2 == 0).then_some(3.0)],
            })
            .collect();
        let best = rounds.best(0..2, Better::Smaller).expect("three odd rounds");
        assert_eq!(rounds.names[best], "fast");
        assert_eq!(rounds.ratio(2, best).expect("three even rounds"), Interval::exact(1.5));
    }

    #[test]
    fn a_failing_arm_names_itself() {
        let mut arms = [Arm::variant("raw".to_owned(), || Err(Failure::new("no disk")))];
        let failure = run(1, &mut arms).expect_err("its only arm fails");
        assert_eq!(failure.to_string(), "raw: no disk");
    }
}
