//! How many of something sessions offer.

use std::collections::BTreeMap;

use piped_core::ids::SessionId;

/// By session; sessions that offer nothing are left out. Counted when it changes: what a user has
/// is asked at each open, and names are many.
#[derive(Debug, Default)]
pub(crate) struct Owners(BTreeMap<SessionId, u32>);

impl Owners {
    pub(crate) fn add(&mut self, owner: SessionId) {
        *self.0.entry(owner).or_default() += 1;
    }

    pub(crate) fn sub(&mut self, owner: SessionId) {
        if let Some(count) = self.0.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&owner);
            }
        }
    }

    pub(crate) fn leave(&mut self, owner: SessionId) {
        self.0.remove(&owner);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, u32)> {
        self.0.iter().map(|(&owner, &count)| (owner, count))
    }
}
