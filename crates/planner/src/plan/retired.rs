//! Plans that were replaced, whose memory serves the next ones.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::planned::Planned;

/// Replaced plans that are kept for their memory.
const RETIRED_MAX: usize = 1024;

/// Replaced plans in the order of their replacement. Their memory is used again once no transfer
/// and no record of one uses them.
#[derive(Debug)]
pub(super) struct Retired {
    plans: VecDeque<Arc<Planned>>,
}

impl Retired {
    pub(super) fn new() -> Self {
        Self { plans: VecDeque::with_capacity(RETIRED_MAX) }
    }

    /// Shares a plan, in the memory of a retired plan that nobody uses any more if there is one.
    pub(super) fn share(&mut self, planned: Planned) -> Arc<Planned> {
        // Records of finished transfers hold plans for a while: look at a few, the oldest first.
        for _ in 0..self.plans.len().min(4) {
            let Some(mut old) = self.plans.pop_front() else { break };
            if let Some(place) = Arc::get_mut(&mut old) {
                *place = planned;
                return old;
            }
            self.plans.push_back(old);
        }
        Arc::new(planned)
    }

    /// Takes a plan that is not used for further transfers.
    pub(super) fn add(&mut self, planned: Option<Arc<Planned>>) {
        if self.plans.len() < RETIRED_MAX {
            self.plans.extend(planned);
        }
    }
}
