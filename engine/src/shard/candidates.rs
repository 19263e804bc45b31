//! The candidates for a path and size class: what the model proposes, sizes nearly as good, and those to
//! compare with.

use std::num::NonZeroU32;
use std::sync::Arc;

use piped_model::estimate::Estimate;
use piped_model::fixed::{self, Constraints, FixedBest};
use piped_model::plan::Algorithm;
use piped_model::serial;

use super::guard::{ARMS_MAX, Guard};
use super::planned::{CUT_BYTES, Planned, SERIAL_BYTES};
use crate::command::PlannerMode;
use crate::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX, FRAGMENT_BYTES_MIN};

/// The smallest fixed size that is compared with the model's proposal; the others are its doubles.
const STATIC_BYTES_MIN: u64 = 64 << 10;

/// Fragments under way where they are not asked for one by one.
const DEPTH_MIN: NonZeroU32 = NonZeroU32::new(8).expect("is not zero");

/// Latency given up, at most, for larger fragments or for varied sizes.
const FLAT: f64 = 0.03;

/// What becomes of plans that ask a device for one fragment at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serial {
    /// There is no device, or nothing behind it.
    Never,
    /// They are candidates.
    Offered,
    /// One of them is the proposal.
    First,
}

/// Fills a guard with candidates; returns the plans it held.
pub(super) fn propose(
    guard: &mut Guard,
    mode: PlannerMode,
    costs: &[&Estimate],
    length: u64,
    serial: Serial,
) -> impl Iterator<Item = Arc<Planned>> + use<> {
    let constraints = Constraints {
        smallest: u64::from(FRAGMENT_BYTES_MIN),
        largest: u64::from(FRAGMENT_BYTES_MAX),
        alignment: CUT_BYTES,
        depth_max: DEPTH_MAX,
        fragments_max: u32::MAX,
        ..Constraints::default()
    };
    let of_size = |bytes| deep(fixed::static_size(costs, length, bytes, &constraints));
    let whole = deep(fixed::whole(costs, length, &constraints));
    match mode {
        PlannerMode::Auto => {}
        PlannerMode::Fixed(bytes) => return guard.renew(of_size(u64::from(bytes)), &[], &[]),
        PlannerMode::Whole => return guard.renew(whole, &[], &[]),
    }
    let best = deep(fixed::best(costs, length, &constraints));
    // Of sizes that are equally good in the model the largest is the best in practice: what the
    // model does not know costs something per fragment.
    let (low, high) = fixed::flat(costs, length, &constraints, &best, FLAT);
    let fixed = |bytes| FixedBest { algorithm: Algorithm::Fixed, ..of_size(bytes) };
    let whole_is_best = whole.predicted_seconds <= best.predicted_seconds * (1.0 + FLAT);
    let mut proposal = if whole_is_best { whole } else { fixed(high) };
    let mut others = [whole; ARMS_MAX - 3];
    let mut count = 1;
    let sizes = std::iter::successors(Some(STATIC_BYTES_MIN), |bytes| Some(bytes * 2));
    for (place, bytes) in
        others[1..].iter_mut().zip(sizes.take_while(|&bytes| bytes < whole.fragment_bytes))
    {
        *place = of_size(bytes);
        count += 1;
    }
    if serial != Serial::Never {
        let limits = Constraints {
            smallest: SERIAL_BYTES.into(),
            alignment: SERIAL_BYTES.into(),
            ..constraints
        };
        let fewest = length.div_ceil(limits.largest).max(2);
        let counts = [fewest, fewest + 1, fewest * 2];
        let plans = counts.map(|fragments| serial::best(costs, length, fragments, &limits));
        for (place, plan) in others[count..].iter_mut().zip(plans) {
            *place = plan;
            count += 1;
        }
        if serial == Serial::First {
            proposal = plans[1];
        }
    }
    guard.renew(proposal, &[fixed(low), best], &others[..count])
}

/// With enough fragments under way to keep a device busy that serves several at once: it is taken for a
/// slower one while it gets few, and a plan for the slower one would give it few for ever.
fn deep(plan: FixedBest) -> FixedBest {
    FixedBest { depth: plan.depth.max(DEPTH_MIN), ..plan }
}
