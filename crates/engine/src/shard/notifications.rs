//! Notifications: counts by number on a region, raised by whoever may write to it, taken by its
//! exporter.
//!
//! A wait takes as many as it asks for when they are there, and waits in line with others for the
//! same number. What nobody waits for is kept.

use std::collections::{BTreeMap, VecDeque};

use piped_core::ids::RegionId;
use piped_core::limits::{NOTIFICATIONS_ASKED_MAX, NOTIFICATIONS_PER_REGION};
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::keys::{LaneKey, ServedKey, TransferKey};

/// A request that waits for so many of a region's notifications of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    region: RegionId,
    id: u32,
    count: u64,
    /// The wait ends with `WouldBlock` if it is not served at once.
    no_wait: bool,
}

impl Wait {
    pub(super) const fn new(region: RegionId, id: u32, count: u64, no_wait: bool) -> Self {
        Self { region, id, count, no_wait }
    }
}

/// Notifications of one region, and the requests that wait for them.
#[derive(Debug, Default)]
struct Region {
    /// Raised notifications by number that nobody has taken; no count is 0.
    counts: BTreeMap<u32, u64>,
    waits: VecDeque<(Wait, TransferKey)>,
}

impl Region {
    /// `false`: there are too many numbers that nobody takes.
    fn add(&mut self, id: u32) -> bool {
        let room = self.counts.len() < NOTIFICATIONS_PER_REGION;
        if !room && !self.counts.contains_key(&id) {
            return false;
        }
        let count = self.counts.entry(id).or_default();
        *count = count.saturating_add(1);
        true
    }

    /// Takes so many, if they are there and nobody else waits for them. How many are left.
    fn take(&mut self, id: u32, count: u64) -> Option<u64> {
        let there = self.counts.get_mut(&id).filter(|there| **there >= count)?;
        *there -= count;
        let left = *there;
        if left == 0 {
            self.counts.remove(&id);
        }
        Some(left)
    }

    /// The first in line for a number, if it can have what it waits for; and what is left then.
    fn next(&mut self, id: u32) -> Option<(TransferKey, u64)> {
        let at = self.waits.iter().position(|(wait, _)| wait.id == id)?;
        let (wait, key) = *self.waits.get(at)?;
        let left = self.take(id, wait.count)?;
        self.waits.remove(at);
        Some((key, left))
    }

    /// Serves those who wait for a number, as far as there are notifications.
    fn serve(&mut self, id: u32, mut serve: impl FnMut(TransferKey, u64)) {
        while let Some((key, left)) = self.next(id) {
            serve(key, left);
        }
    }

    fn has(&self, key: TransferKey) -> bool {
        self.waits.iter().any(|&(_, other)| other == key)
    }
}

/// Notifications of the regions that clients of a shard export. Whoever is served by one is told
/// by `serve`, with how many are left of what it waited for.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    regions: BTreeMap<RegionId, Region>,
}

impl Notifications {
    pub(super) fn open(&mut self, region: RegionId) {
        self.regions.entry(region).or_default();
    }

    /// A region is not offered any more: the requests that wait for its notifications.
    pub(super) fn close(&mut self, region: RegionId) -> impl Iterator<Item = TransferKey> + use<> {
        let closed = self.regions.remove(&region);
        closed.into_iter().flat_map(|it| it.waits).map(|(_, key)| key)
    }

    /// Notifies a region's exporter.
    ///
    /// # Errors
    /// It belongs to another shard, or there are too many numbers that nobody takes.
    pub(super) fn raise(
        &mut self,
        region: RegionId,
        id: u32,
        serve: impl FnMut(TransferKey, u64),
    ) -> Result<(), Status> {
        let state = self.regions.get_mut(&region).ok_or(Status::Unsupported)?;
        if !state.add(id) {
            return Err(Status::WouldBlock);
        }
        state.serve(id, serve);
        Ok(())
    }

    /// Has a request wait, unless it does; it may be served at once.
    ///
    /// # Errors
    /// The region is not offered any more, or what the request waits for is not there now.
    pub(super) fn wait(
        &mut self,
        key: TransferKey,
        wait: Wait,
        serve: impl FnMut(TransferKey, u64),
    ) -> Result<(), Status> {
        let state = self.regions.get_mut(&wait.region).ok_or(Status::Gone)?;
        if state.has(key) {
            return Ok(());
        }
        state.waits.push_back((wait, key));
        state.serve(wait.id, serve);
        if wait.no_wait && state.has(key) { Err(Status::WouldBlock) } else { Ok(()) }
    }

    /// A wait is over: it is in line no more, and those behind it may have what it did not get.
    pub(super) fn leave(
        &mut self,
        key: TransferKey,
        wait: Wait,
        serve: impl FnMut(TransferKey, u64),
    ) {
        if let Some(state) = self.regions.get_mut(&wait.region) {
            state.waits.retain(|&(_, other)| other != key);
            state.serve(wait.id, serve);
        }
    }
}

/// What a peer asks for a notification by, and its number there.
type Once = (ServedKey, u32);

/// The lane on which a peer waits for the answer, and its name for the request there.
type Waits = (LaneKey, u64);

/// Notifications that peers ask for, and whose exporters are of other shards: by our number of
/// each, since when, and for whom.
#[derive(Debug, Default)]
pub(super) struct PeerNotifies {
    asked: Vec<(u64, Nanos, Once, Waits)>,
    last: u64,
}

impl PeerNotifies {
    /// A peer asks again for what another shard is asked for: where it waits now. `false`: it is
    /// not asked.
    pub(super) fn ask_again(&mut self, once: Once, waits: Waits) -> bool {
        let asked = self.asked.iter_mut().find(|(_, _, other, _)| *other == once);
        asked.map(|it| it.3 = waits).is_some()
    }

    /// Another shard is asked. The number of the question.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub(super) fn ask(&mut self, once: Once, waits: Waits, now: Nanos) -> Result<u64, Status> {
        if self.asked.len() >= NOTIFICATIONS_ASKED_MAX {
            return Err(Status::WouldBlock);
        }
        self.last += 1;
        self.asked.push((self.last, now, once, waits));
        Ok(self.last)
    }

    /// The other shard has answered: since when it was asked, and for whom.
    pub(super) fn take(&mut self, number: u64) -> Option<(Nanos, Once, Waits)> {
        let at = self.asked.iter().position(|(other, ..)| *other == number)?;
        let (_, begun, once, waits) = self.asked.swap_remove(at);
        Some((begun, once, waits))
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::Key;
    use super::*;

    fn wait(id: u32, count: u64) -> Wait {
        Wait::new(RegionId(1), id, count, false)
    }

    fn key<T>(number: u64) -> Key<T> {
        Key::from_bits(number)
    }

    #[test]
    fn who_waits_first_is_served_first_and_others_numbers_are_not_its() {
        let mut all = Region::default();
        for (number, wait) in [(1, wait(7, 2)), (2, wait(7, 1)), (3, wait(8, 1))] {
            all.waits.push_back((wait, key(number)));
        }
        assert!(all.add(7));
        assert_eq!(all.next(7), None, "the second in line does not go before the first");
        assert!(all.add(8));
        assert_eq!(all.next(8), Some((key(3), 0)));
        assert!(all.add(7) && all.add(7));
        assert_eq!(all.next(7), Some((key(1), 1)));
        assert_eq!(all.next(7), Some((key(2), 0)));
        assert!(all.counts.is_empty() && all.waits.is_empty());
    }

    #[test]
    fn numbers_that_nobody_takes_are_bounded() {
        let mut all = Region::default();
        for id in 0..NOTIFICATIONS_PER_REGION as u32 {
            assert!(all.add(id));
        }
        assert!(!all.add(u32::MAX));
        assert!(all.add(0), "one that is there already");
        assert_eq!(all.take(0, 2), Some(0));
        assert!(all.add(u32::MAX), "there is room again");
    }
}
