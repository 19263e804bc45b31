//! What plans of a path learn from those of other lengths.

use super::super::guard::Unseen;
use super::{PlanKey, Planner};

/// What no stage sees of a path's fragments, from the nearest other length that knows.
pub(super) fn unseen(planner: &Planner, key: &PlanKey) -> Unseen {
    let is_other =
        |it: &&PlanKey| it.class != key.class && **it == PlanKey { class: it.class, ..*key };
    let others = planner.plans.iter().filter(|(it, _)| is_other(it));
    let known = others.filter_map(|(it, cached)| Some((it.class, cached.guard.unseen()?)));
    let nearest = known.min_by_key(|(class, _)| class.abs_diff(key.class));
    nearest.map_or_else(Unseen::default, |(_, unseen)| unseen)
}
