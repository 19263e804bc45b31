//! Notifications: counts by number on a region, raised by whoever may write to it, taken by its
//! exporter.
//!
//! A wait takes as many as it asks for when they are there, and waits in line with others for the
//! same number. What nobody waits for is kept.

use std::collections::{BTreeMap, VecDeque};

use piped_core::ids::RegionId;
use piped_core::io::Io;
use piped_core::limits::NOTIFICATIONS_PER_REGION;
use piped_core::status::Status;

use super::Shard;
use super::keys::TransferKey;
use super::requests::Body;
use super::sched::Work;

/// Notifications of one region, and the requests that wait for them.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    /// Raised notifications by number that nobody has taken; no count is 0.
    counts: BTreeMap<u32, u64>,
    waits: VecDeque<(WaitBody, TransferKey)>,
}

/// A request that waits for a region's notifications.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitBody {
    pub(super) region: RegionId,
    pub(super) id: u32,
    pub(super) count: u64,
    pub(super) no_wait: bool,
}

impl Notifications {
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

    fn forget(&mut self, key: TransferKey) {
        self.waits.retain(|&(_, other)| other != key);
    }
}

impl Shard {
    /// A client of this shard offers a region.
    pub(super) fn open_notifications(&mut self, region: RegionId) {
        self.notifications.entry(region).or_default();
    }

    /// Ends the waits of a region that its exporter offers no more.
    pub(super) fn close_notifications<I: Io>(&mut self, region: RegionId, io: &mut I) {
        let Some(closed) = self.notifications.remove(&region) else { return };
        for (_, key) in closed.waits {
            self.decide(key, Status::Gone, io);
        }
    }

    /// Notifies a region's exporter.
    ///
    /// # Errors
    /// It belongs to another shard, or there are too many numbers that nobody takes.
    pub(super) fn raise(&mut self, region: RegionId, id: u32) -> Result<(), Status> {
        let notifications = self.notifications.get_mut(&region).ok_or(Status::Unsupported)?;
        if !notifications.add(id) {
            return Err(Status::WouldBlock);
        }
        self.serve_waits(region, id);
        Ok(())
    }

    fn serve_waits(&mut self, region: RegionId, id: u32) {
        while let Some(notifications) = self.notifications.get_mut(&region)
            && let Some((key, left)) = notifications.next(id)
        {
            // It ends in its own turn: what ends a wait would else come here again, as deep as
            // there are waits.
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.value = left;
                transfer.status.get_or_insert(Status::Ok);
            }
            self.cx.sched.make_ready(Work::Transfer(key));
        }
    }

    pub(super) fn drive_wait<I: Io>(&mut self, key: TransferKey, wait: WaitBody, io: &mut I) {
        let Some(notifications) = self.notifications.get_mut(&wait.region) else {
            return self.decide(key, Status::Gone, io);
        };
        if notifications.waits.iter().any(|&(_, other)| other == key) {
            return;
        }
        notifications.waits.push_back((wait, key));
        self.serve_waits(wait.region, wait.id);
        let waits = self.transfers.get(key).is_some_and(|transfer| transfer.status.is_none());
        if wait.no_wait && waits {
            self.decide(key, Status::WouldBlock, io);
        }
    }

    /// A wait is over: it is in line no more, and those behind it may have what it did not get.
    pub(super) fn leave_notifications(&mut self, key: TransferKey) {
        let Some(Body::Wait(wait)) = self.transfers.get(key).map(|transfer| &transfer.body) else {
            return;
        };
        let (region, id) = (wait.region, wait.id);
        if let Some(notifications) = self.notifications.get_mut(&region) {
            notifications.forget(key);
        }
        self.serve_waits(region, id);
    }

    /// All puts before a notification on this node are over.
    pub(super) fn raise_in_order<I: Io>(
        &mut self,
        key: TransferKey,
        (region, id): (RegionId, u32),
        io: &mut I,
    ) {
        if self.puts_before(key).next().is_some() {
            return self.wait_in_order(key);
        }
        let status = self.raise(region, id).err().unwrap_or(Status::Ok);
        self.decide(key, status, io);
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::Key;
    use super::*;

    fn wait(id: u32, count: u64) -> WaitBody {
        WaitBody { region: RegionId(1), id, count, no_wait: false }
    }

    fn key<T>(number: u64) -> Key<T> {
        Key::from_bits(number)
    }

    #[test]
    fn who_waits_first_is_served_first_and_others_numbers_are_not_its() {
        let mut all = Notifications::default();
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
        let mut all = Notifications::default();
        for id in 0..NOTIFICATIONS_PER_REGION as u32 {
            assert!(all.add(id));
        }
        assert!(!all.add(u32::MAX));
        assert!(all.add(0), "one that is there already");
        assert_eq!(all.take(0, 2), Some(0));
        assert!(all.add(u32::MAX), "there is room again");
    }
}
