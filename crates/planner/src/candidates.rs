//! The candidates for a path and size class: the model's proposal, sizes nearly as good, and plans
//! to compare with.

use std::num::NonZeroU32;
use std::sync::Arc;

use piped_core::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX, FRAGMENT_BYTES_MIN};
use piped_core::modes::PlannerMode;
use piped_model::estimate::Estimate;
use piped_model::fixed::{self, Constraints, FixedBest};
use piped_model::plan::Algorithm;
use piped_model::serial;
use piped_model::stage::StageCost;

use super::guard::{ARMS_MAX, Guard};
use super::late;
use super::planned::{CUT_BYTES, Choice, PathCosts, Planned, SERIAL_BYTES};
use crate::solve::{DEPTH_LEAST, Runs};

/// The smallest fixed size that is compared with the model's proposal; the others double it
/// repeatedly.
const STATIC_BYTES_MIN: u64 = CUT_BYTES;

/// The most fixed sizes that are compared: all up to the largest fragment.
const STATICS_MAX: usize = 8;

/// Fewest fragments under way in plans that do not ask for them one by one.
const DEPTH_MIN: NonZeroU32 = NonZeroU32::new(DEPTH_LEAST).expect("is not zero");

/// Part of the latency that may be given up for larger fragments.
const LARGER: f64 = 0.01;

/// Part of the latency that may be given up for varied sizes.
const FLAT: f64 = 0.03;

/// Whether plans that ask a device for one fragment at a time are considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serial {
    /// No: the path has no device, or nothing after it that could overlap.
    Never,
    /// Such plans are candidates beside the model's proposal.
    Offered,
    /// One of these plans is the proposal.
    First,
}

impl Serial {
    /// Whether a question should include serial plans. The model never prefers them, so this is for
    /// devices where one fragment at a time was found to be better in practice.
    pub(super) fn is_asked(self, guard: &Guard) -> bool {
        match self {
            Self::Never => false,
            Self::First => true,
            Self::Offered => guard.plan(guard.favourite()).cut.depth == 1,
        }
    }
}

/// Part of the predicted latency that separate sizes for each level must save to be proposed: costs
/// that the model does not know occur for each fragment.
const NESTED_GAIN: f64 = 0.03;

/// Part of the predicted latency that separate sizes must save to be compared at all.
const NESTED_WORTH: f64 = 0.01;

/// Fills a guard with candidates and returns the plans it held. `changed`: the costs have changed.
/// `nested`: plans whose levels differ, solved elsewhere, the best first.
pub(super) fn propose(
    guard: &mut Guard,
    changed: bool,
    mode: PlannerMode,
    path: &PathCosts,
    length: u64,
    serial: Serial,
    nested: &[Choice],
) -> impl Iterator<Item = Arc<Planned>> + use<> {
    path.with(|costs| propose_on(guard, changed, mode, (path, costs), length, serial, nested))
}

fn propose_on(
    guard: &mut Guard,
    changed: bool,
    mode: PlannerMode,
    (path, costs): (&PathCosts, &[&Estimate]),
    length: u64,
    serial: Serial,
    nested: &[Choice],
) -> impl Iterator<Item = Arc<Planned>> + use<> {
    let constraints = Constraints {
        smallest: u64::from(FRAGMENT_BYTES_MIN),
        largest: u64::from(FRAGMENT_BYTES_MAX),
        alignment: CUT_BYTES,
        depth_max: DEPTH_MAX,
        fragments_max: u32::MAX,
        buffers: *path.buffers(),
        ..Constraints::default()
    };
    let pace = per_byte(costs, length);
    let level = Runs::default();
    let choice = |plan: &FixedBest| Choice::fixed(plan, length, pace).at_work(path, level);
    // What is set by hand, or only tried, may be shorter than what the model is believed about.
    let by_hand = Constraints { smallest: CUT_BYTES, ..constraints };
    let deep = |plan| on_servers(deep(plan), path, length);
    let of_size = |bytes| deep(fixed::static_size(costs, length, bytes, &by_hand));
    let whole = deep(fixed::whole(costs, length, &constraints));
    match mode {
        PlannerMode::Auto => {}
        PlannerMode::Fixed(bytes) => {
            return guard.renew(changed, choice(&of_size(u64::from(bytes))), &[], &[]);
        }
        PlannerMode::Whole => return guard.renew(changed, choice(&whole), &[], &[]),
    }
    let fixed = |bytes| FixedBest { algorithm: Algorithm::Fixed, ..of_size(bytes) };
    let sizes = std::iter::successors(Some(STATIC_BYTES_MIN), |bytes| Some(bytes * 2));
    let sizes = sizes.take_while(|&bytes| bytes < whole.fragment_bytes);
    let mut statics = [whole; STATICS_MAX];
    let mut count = 0;
    for (place, bytes) in statics.iter_mut().zip(sizes) {
        *place = of_size(bytes);
        count += 1;
    }
    let statics = &statics[..count];
    // Of sizes that are equally good in the model the largest is the best in practice: what the
    // model does not know costs something per fragment.
    let (best, [low, large, high]) = match path.is_shared() {
        false => {
            let best = deep(fixed::best(costs, length, &constraints));
            let (low, high) = fixed::flat(costs, length, &constraints, &best, FLAT);
            let (_, large) = fixed::flat(costs, length, &constraints, &best, LARGER);
            (best, [low, large, high].map(fixed))
        }
        // Each prediction is a walk through fragments: the solver may find a better size.
        true => of_some(statics, whole),
    };
    let whole_is_best = whole.predicted_seconds <= best.predicted_seconds * (1.0 + LARGER);
    let mut proposal = choice(&if whole_is_best { whole } else { large });
    let mut others = Others { choices: [proposal; ARMS_MAX], count: 0 };
    others.push(choice(&whole));
    statics.iter().for_each(|plan| others.push(choice(plan)));
    let mut same = best.predicted_seconds;
    if serial != Serial::Never {
        let limits = Constraints {
            smallest: SERIAL_BYTES.into(),
            alignment: SERIAL_BYTES.into(),
            ..constraints
        };
        let fewest = length.div_ceil(limits.largest).max(2);
        let counts = [fewest, fewest + 1, fewest * 2];
        let plans = counts.map(|fragments| serial::best(costs, length, fragments, &limits));
        let plans = plans.map(|plan| on_servers(plan, path, length));
        plans.iter().for_each(|plan| others.push(choice(plan)));
        if serial == Serial::First {
            proposal = choice(&plans[1]);
            same = plans[1].predicted_seconds;
        }
    }
    let nested = &nested
        [..nested.partition_point(|plan| plan.predicted_seconds < same * (1.0 - NESTED_WORTH))];
    let may_lead = |plan: &&Choice| serial != Serial::First || plan.cut.depth == 1;
    let lead = nested.iter().find(may_lead);
    if let Some(&lead) = lead.filter(|lead| lead.predicted_seconds < same * (1.0 - NESTED_GAIN)) {
        // Its neighbours, nearly as good, keep the estimators informed.
        let near = |plan: &&Choice| {
            may_lead(plan) && plan.predicted_seconds <= lead.predicted_seconds * (1.0 + FLAT)
        };
        let mut variations = Others { choices: [lead; ARMS_MAX], count: 0 };
        nested.iter().filter(near).for_each(|&plan| variations.push(plan));
        [proposal, choice(&best)].into_iter().for_each(|plan| others.push(plan));
        nested.iter().for_each(|&plan| others.push(plan));
        let lead = settle(path, serial, lead, &mut variations, &mut others);
        return guard.renew(changed, lead, variations.as_slice(), others.as_slice());
    }
    nested.iter().for_each(|&plan| others.push(plan));
    let mut near = Others { choices: [proposal; ARMS_MAX], count: 0 };
    // A size beyond the length is the whole once more.
    let is_cut = |plan: &&FixedBest| plan.fragment_bytes < whole.fragment_bytes;
    let sizes = [low, best, high];
    sizes.iter().filter(is_cut).for_each(|plan| near.push(choice(plan)));
    let proposal = settle(path, serial, proposal, &mut near, &mut others);
    guard.renew(changed, proposal, near.as_slice(), others.as_slice())
}

/// Returns the proposal. Where fragments differ, what their slowest cost decides which of all
/// candidates it is, and which are nearly as good.
fn settle(
    path: &PathCosts,
    serial: Serial,
    proposal: Choice,
    near: &mut Others,
    others: &mut Others,
) -> Choice {
    if !path.spreads() {
        return proposal;
    }
    let mut all = Others { choices: [proposal; ARMS_MAX], count: 0 };
    for &choice in core::iter::once(&proposal).chain(near.as_slice()).chain(others.as_slice()) {
        if all.as_slice().iter().all(|known| known.cut != choice.cut) {
            all.push(choice);
        }
    }
    let may_lead = |choice: &Choice| serial != Serial::First || choice.cut.depth == 1;
    let lead = late::judge(path, &mut all.choices[..all.count], may_lead);
    let lead = all.choices[lead.unwrap_or(0)];
    let is_near = |choice: &&Choice| {
        let slack = 1.0 + FLAT;
        choice.cut != lead.cut
            && choice.judged() <= lead.judged() * slack
            && choice.mean_seconds <= lead.mean_seconds * slack
    };
    near.count = 0;
    all.as_slice().iter().filter(is_near).for_each(|&choice| near.push(choice));
    *others = all;
    lead
}

/// Candidates that are neither the proposal nor in its flat region. Choices beyond the capacity are
/// left out.
struct Others {
    choices: [Choice; ARMS_MAX],
    count: usize,
}

impl Others {
    fn push(&mut self, choice: Choice) {
        if let Some(place) = self.choices.get_mut(self.count) {
            *place = choice;
            self.count += 1;
        }
    }

    fn as_slice(&self) -> &[Choice] {
        &self.choices[..self.count]
    }
}

/// Time of a byte at the slowest stage, in seconds.
pub(super) fn per_byte(costs: &[&Estimate], length: u64) -> f64 {
    let at = (length / 4).max(1) as f64;
    costs.iter().map(|cost| cost.stage_at(at).per_byte).fold(0.0, f64::max)
}

/// The plan with enough fragments under way to keep a device busy that serves several at once. Such
/// a device looks slow while it gets few fragments, and a plan for a slow device would keep giving
/// it few.
fn deep(plan: FixedBest) -> FixedBest {
    FixedBest { depth: plan.depth.max(DEPTH_MIN), ..plan }
}

/// The best of some plans of one size, which are given from small to large, and of `whole`; then
/// the smallest nearly as good, the largest as good, and the largest nearly as good.
fn of_some(plans: &[FixedBest], whole: FixedBest) -> (FixedBest, [FixedBest; 3]) {
    let all = || plans.iter().copied().chain([whole]);
    let faster = |a: &FixedBest, b: &FixedBest| a.predicted_seconds.total_cmp(&b.predicted_seconds);
    let best = all().min_by(faster).unwrap_or(whole);
    let within = move |slack: f64| {
        all().filter(move |plan| plan.predicted_seconds <= best.predicted_seconds * (1.0 + slack))
    };
    let ends = [within(FLAT).next(), within(LARGER).next_back(), within(FLAT).next_back()];
    let fixed = |plan| FixedBest { algorithm: Algorithm::Fixed, ..plan };
    (fixed(best), ends.map(|plan| fixed(plan.unwrap_or(best))))
}

/// The plan with its prediction where stages share a server. It was chosen as if they did not: each
/// prediction is a walk through all fragments, which a shard has no time for many of.
fn on_servers(plan: FixedBest, path: &PathCosts, length: u64) -> FixedBest {
    if !path.is_shared() {
        return plan;
    }
    FixedBest { predicted_seconds: path.walked(&plan, length), ..plan }
}
