//! What plans of a path learn from those of other lengths.

use super::super::guard::Unseen;
use super::{PlanKey, Planner};

/// What no stage sees of a path's fragments, from the nearest other length that knows.
pub(super) fn unseen(planner: &Planner, key: &PlanKey) -> Unseen {
    let is_other =
        |it: &PlanKey| it.class != key.class && *it == PlanKey { class: it.class, ..*key };
    let others = planner.plans.iter().filter(|(it, cached)| is_other(it) && cached.guard.is_sure());
    let nearest = others.min_by_key(|(it, _)| it.class.abs_diff(key.class));
    nearest.map_or_else(Unseen::default, |(_, cached)| cached.guard.unseen())
}
