//! Which plans count as one candidate, and which the model errs about alike.

use super::super::planned::Choice;

/// Candidates whose first sizes are within this ratio at every level count as one. Serial plans
/// must also have equally many fragments, and a serial plan never equals another plan.
pub(super) const SAME_SIZE: f64 = 1.25;

/// The ratio that applies instead where fragments of another level are at least `SMALL` times as
/// large. How soon the first small fragment proceeds matters little beside the large one.
const SAME_SMALL: f64 = 2.5;
const SMALL: f64 = 8.0;

/// Number of kinds of plans: the model errs alike within a kind.
pub(super) const KINDS: usize = 4;

pub(super) fn kind(plan: &Choice) -> usize {
    let [source, lane, sink] = [plan.cut.source, plan.cut.lane, plan.cut.sink];
    match plan {
        _ if plan.cut.depth == 1 => 0,
        _ if source != lane || lane != sink => 1,
        _ if plan.counts == [1; 3] => 2,
        _ => 3,
    }
}

/// Whether the first sizes differ at no level by more than a factor, which may depend on the sizes.
pub(super) fn differ_at_most(a: &Choice, b: &Choice, factor: impl Fn(f64, f64) -> f64) -> bool {
    a.firsts().into_iter().zip(b.firsts()).all(|(a, b)| ratio(a, b) <= factor(a, b))
}

/// Whether measurements of one plan also hold for the other.
pub(super) fn is_near(a: &Choice, b: &Choice) -> bool {
    let is_serial = a.cut.depth == 1;
    // Where the latency of each fragment counts, so does their number.
    let few = if is_serial { 1.0 } else { f64::INFINITY };
    let counts = a.counts.iter().zip(b.counts);
    let largest = a.firsts().into_iter().fold(0.0, f64::max);
    let factor = |a: f64, b: f64| if a.max(b) * SMALL <= largest { SAME_SMALL } else { SAME_SIZE };
    is_serial == (b.cut.depth == 1)
        && differ_at_most(a, b, factor)
        && counts.into_iter().all(|(&a, b)| ratio(f64::from(a), f64::from(b)) <= few)
}

/// The larger number divided by the smaller.
fn ratio(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low > 0.0 { high / low } else { f64::INFINITY }
}
