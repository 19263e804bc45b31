//! The best plan known here, and how good it is.
//!
//! All planners are asked, and the best of what they say is improved further ([`best`]).
//! [`certified`] takes more time for that and adds a lower bound that no plan can beat
//! ([`crate::bound`]): "this plan is within `gap` of the best possible".

use piped_core::noise::Noise;
use piped_model::evaluate;
use piped_model::fixed::{self, Constraints};
use piped_model::hierarchical;
use piped_model::plan::{Algorithm, Level, Plan};
use piped_model::ramp;
use piped_model::rounding;
use piped_model::search::layout::{BYTES_MAX, Layout};
use piped_model::stage::{STAGES_MAX, Stage};

use crate::bound::Relaxed;
use crate::improve::{Effort, Search};
use crate::release;

/// Constant sizes that others use, as candidates: FM's, and a page.
const STATIC_SIZES: [u64; 2] = [128, 4096];

/// The search of [`best`].
const QUICK: Effort = Effort::new(30_000, 24);

/// Each search where a certificate is asked for.
const THOROUGH: Effort = Effort::new(300_000, 48);

/// A plan with a smaller gap is not searched for any longer.
const CLOSE: f64 = 0.005;

/// A path is short with so many stages.
const FEW_STAGES: usize = 6;

/// With a greater gap a short path gets a closer bound, which takes long.
const WIDE: f64 = 0.035;

/// How far from its bound the best plan of a short path may be, and how often it is changed in a
/// few places at once where it is further.
const SHAKES: [(f64, u32); 2] = [(0.025, 45), (WIDE, 150)];

/// So often that of a long path is, for each stage but the first few.
const SHAKES_LONG: u32 = 15;

/// The seed of the changes above.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Positions above which a candidate is taken as it is.
const POSITIONS_MAX: usize = 320;

/// Numbers of equal fragments that the search starts from, besides the best candidates.
const EQUAL: [u32; 8] = [2, 3, 4, 5, 6, 8, 10, 13];

/// The most fragments of a stage in a plan with sizes that differ.
const LIST_MAX: u32 = 1024;

/// The answer of [`best`] and [`certified`].
#[derive(Debug, Clone, PartialEq)]
pub struct Best {
    /// The plan with the smallest predicted latency.
    pub plan: Plan,
    /// What each planner said, in a fixed order; those that do not apply to the path are left out.
    pub candidates: Vec<Plan>,
    /// No plan takes less, in seconds; only if it was asked for.
    pub lower_bound_seconds: Option<f64>,
}

impl Best {
    /// `T / bound - 1`: no plan is better by more than this part. Only if a bound was asked for; 0
    /// where both are 0.
    #[must_use]
    pub fn gap(&self) -> Option<f64> {
        let bound = self.lower_bound_seconds?;
        let excess = self.plan.predicted_seconds - bound;
        Some(if excess <= 0.0 { 0.0 } else { excess / bound })
    }
}

/// The best plan for `bytes` on `path` under the constraints; never worse than any candidate. None
/// for a path without stages or with more than [`STAGES_MAX`], or if the buffers hold no plan.
///
/// ```
/// use piped_model::{fixed::Constraints, reference};
/// use piped_theory::best;
/// let path = reference::network_disk();
/// let best = best::best(&path, reference::PACKET_BYTES, &Constraints::default()).unwrap();
/// assert!(best.plan.predicted_seconds < 23.86e-3);
/// let latest = best.plan.predicted_seconds;
/// assert!(best.candidates.iter().all(|plan| plan.predicted_seconds >= latest));
/// ```
#[must_use]
pub fn best(path: &[Stage], bytes: u64, constraints: &Constraints) -> Option<Best> {
    search(path, bytes, constraints)
}

/// Like [`best`] with a lower bound, and a longer search, also from where the bound is hard to
/// keep, until the two are near each other: 10 to 20 ms for five stages and up to half a second for
/// twelve. Of a hundred paths of five or six stages two are hard and take as long.
///
/// ```
/// use piped_model::{fixed::Constraints, reference};
/// use piped_theory::best;
/// let path = reference::network_disk();
/// let best = best::certified(&path, reference::PACKET_BYTES, &Constraints::default()).unwrap();
/// assert!(best.gap().unwrap() < 0.009);
/// ```
#[must_use]
pub fn certified(path: &[Stage], bytes: u64, constraints: &Constraints) -> Option<Best> {
    let found = search(path, bytes, constraints)?;
    let relaxed = Relaxed::new(path, bytes, &constraints.servers);
    let mut best = Best { lower_bound_seconds: Some(relaxed.seconds()), ..found };
    if constraints.servers.is_shared(path.len()) {
        return Some(best);
    }
    if best.gap() > Some(CLOSE)
        && let Some(plan) = thorough(path, bytes, constraints, &best.candidates, &relaxed)
        && plan.predicted_seconds < best.plan.predicted_seconds
    {
        best.plan = plan;
    }
    if path.len() <= FEW_STAGES && best.gap() > Some(WIDE) {
        best.lower_bound_seconds = Some(relaxed.closer(best.plan.predicted_seconds));
    }
    Some(best)
}

fn search(path: &[Stage], bytes: u64, constraints: &Constraints) -> Option<Best> {
    if path.is_empty() || path.len() > STAGES_MAX {
        return None;
    }
    let mut candidates = candidates(path, bytes, constraints);
    let shared = constraints.servers.is_shared(path.len());
    if shared {
        // Not all planners know of servers. What they say is judged by what would happen.
        for plan in &mut candidates {
            let Constraints { buffers, servers, .. } = constraints;
            let seconds = evaluate::plan_on(path, plan, buffers, servers);
            plan.predicted_seconds = seconds.unwrap_or(f64::INFINITY);
        }
    }
    // What limited buffers cannot hold.
    candidates.retain(|plan| plan.predicted_seconds.is_finite());
    let mut plan = candidates
        .iter()
        .min_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds))?
        .clone();
    if !shared
        && let Some(found) = improved(path, bytes, constraints, &candidates)
        && found.predicted_seconds < plan.predicted_seconds
    {
        plan = found;
    }
    Some(Best { plan, candidates, lower_bound_seconds: None })
}

/// What all planners say.
#[must_use]
pub fn candidates(path: &[Stage], bytes: u64, constraints: &Constraints) -> Vec<Plan> {
    let mut list = vec![fixed::whole(path, bytes, constraints).plan(path.len(), bytes)];
    for size in STATIC_SIZES {
        list.push(fixed::static_size(path, bytes, size, constraints).plan(path.len(), bytes));
    }
    list.push(fixed::best(path, bytes, constraints).plan(path.len(), bytes));
    // Lists of sizes have to stay short, also where overheads of 0 make ever more fragments pay.
    let fragments_max = constraints.fragments_max.clamp(1, LIST_MAX);
    let fewest = bytes.div_ceil(constraints.fit(u64::MAX).max(1));
    if fewest <= u64::from(LIST_MAX) {
        let limited = Constraints { fragments_max, ..*constraints };
        list.extend(ramp::up(path, bytes, &limited));
        list.extend(ramp::up_down(path, bytes, &limited));
        list.extend(hierarchical::fixed(path, bytes, &limited));
        list.extend(hierarchical::ramp(path, bytes, &limited));
        list.extend(release::release_curve(path, bytes, &limited));
    }
    list
}

/// The best of a few candidates and of equal fragments, improved.
fn improved(
    path: &[Stage],
    bytes: u64,
    constraints: &Constraints,
    candidates: &[Plan],
) -> Option<Plan> {
    if path.len() < 2 || !(2..=BYTES_MAX).contains(&bytes) {
        return None;
    }
    let constraints = &constraints.fitting(0..path.len());
    let mut search = Search::new(path, constraints, QUICK);
    ordered(candidates).take(2).for_each(|layout| search.descend(layout));
    EQUAL.into_iter().for_each(|count| search.equal(bytes, count));
    search.vary();
    rounding::plan(path, &search.into_best()?.parts(), Algorithm::Searched, constraints)
}

/// The best that more time finds, from more places: candidates, and what the bound suggests.
fn thorough(
    path: &[Stage],
    bytes: u64,
    constraints: &Constraints,
    candidates: &[Plan],
    relaxed: &Relaxed,
) -> Option<Plan> {
    if path.len() < 2 || !(2..=BYTES_MAX).contains(&bytes) {
        return None;
    }
    let constraints = &constraints.fitting(0..path.len());
    let within = |gap: f64| relaxed.seconds() * (1.0 + gap);
    let mut all = Search::new(path, constraints, THOROUGH);
    // Each start has its own hills.
    for layout in ordered(candidates).take(1).chain(relaxed.layouts()) {
        let mut one = Search::new(path, constraints, THOROUGH);
        one.descend(layout);
        one.vary();
        all.take(one);
        if all.known() <= within(CLOSE) {
            break;
        }
    }
    if all.known() > within(CLOSE) {
        let mut one = Search::new(path, constraints, THOROUGH);
        EQUAL.into_iter().for_each(|count| one.equal(bytes, count));
        one.vary();
        all.take(one);
    }
    let mut random = Noise(SEED);
    if let Some(more @ 1..) = path.len().checked_sub(FEW_STAGES) {
        all.shake(&mut random, SHAKES_LONG * more as u32, within(CLOSE));
    } else {
        SHAKES.into_iter().for_each(|(gap, rounds)| all.shake(&mut random, rounds, within(gap)));
    }
    rounding::plan(path, &all.into_best()?.parts(), Algorithm::Searched, constraints)
}

/// The layouts of plans, the best one first.
fn ordered(plans: &[Plan]) -> impl Iterator<Item = Layout> {
    let mut ordered: Vec<&Plan> = plans.iter().collect();
    ordered.sort_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds));
    ordered.into_iter().filter_map(|plan| layout_of(plan, POSITIONS_MAX))
}

/// The layout of a plan with at most `most` positions.
fn layout_of(plan: &Plan, most: usize) -> Option<Layout> {
    let bytes = plan.total_bytes();
    let count: u64 = plan.levels.iter().map(|level| level.sizes.count()).sum();
    if bytes == 0 || bytes > BYTES_MAX || count > most as u64 {
        return None;
    }
    let ends = |level: &Level| -> Vec<u64> {
        level.sizes.iter().map(|fragment| fragment.offset + fragment.length).collect()
    };
    let mut all: Vec<u64> = plan.levels.iter().flat_map(ends).collect();
    all.sort_unstable();
    all.dedup();
    let mut cuts = Vec::new();
    for level in plan.levels.iter() {
        let places = ends(level);
        let places = places.iter().filter_map(|end| all.binary_search(end).ok());
        let places: Vec<u32> = places.map(|at| at as u32 + 1).collect();
        cuts.extend(level.stages.clone().map(|_| places.clone()));
    }
    let mut positions = vec![0.0];
    positions.extend(all.iter().map(|&end| end as f64));
    Some(Layout { positions, cuts })
}
