//! Shared memory made for clients, counted by user until it is given back.
//!
//! A session's memory may outlive it: the client may hold the memfd, the shard may still take it
//! out of its tables, another session may have a region in it. The pages are charged to the daemon
//! all that time. So the count follows the memory and not the session. The maker takes a [`Share`],
//! which goes with the memory ([`piped_ring::Segment::keep`]) from thread to thread and ends when
//! the pages are free.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use piped_config::{Bytes, Limits};

use crate::limits::SEGMENTS_OF_USER;

/// Amount of shared memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) segments: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.segments += 1;
    }

    fn sub(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.segments -= 1;
    }
}

#[derive(Debug, Default)]
struct Ledger {
    /// Users that have some.
    users: BTreeMap<u32, Amount>,
    all: Amount,
    /// The most bytes there were.
    high: u64,
}

/// Counts the shared memory of all users.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arenas(Arc<Mutex<Ledger>>);

/// Count of one segment, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    arenas: Arenas,
    uid: u32,
    bytes: u64,
}

impl Arenas {
    /// Counts a segment of a user before it is made, or names the limit that forbids it. Making it
    /// takes long, and others ask meanwhile.
    pub(crate) fn reserve(&self, uid: u32, bytes: u64, limits: &Limits) -> Result<Share, String> {
        let mut ledger = self.0.lock();
        let (of_user, all) = (ledger.users.get(&uid).copied().unwrap_or_default(), ledger.all);
        let size = Bytes(bytes);
        let most = limits.user.arena.bytes();
        if bytes > most.saturating_sub(of_user.bytes) {
            return Err(format!(
                "{size} of shared memory more than the {} that the sessions of user {uid} have \
                 (with ended sessions that their clients still hold) is beyond \
                 limits.user.arena = {}; give some back, or raise the limit",
                Bytes(of_user.bytes),
                Bytes(most)
            ));
        }
        let most = limits.global.arena.bytes();
        if bytes > most.saturating_sub(all.bytes) {
            return Err(format!(
                "{size} of shared memory more than the {} that all sessions have is beyond \
                 limits.global.arena = {}; give some back, or raise the limit",
                Bytes(all.bytes),
                Bytes(most)
            ));
        }
        if of_user.segments >= SEGMENTS_OF_USER {
            return Err(format!(
                "the arenas of user {uid} have {SEGMENTS_OF_USER} segments already; ask for fewer \
                 and larger ones"
            ));
        }
        ledger.users.entry(uid).or_default().add(bytes);
        ledger.all.add(bytes);
        ledger.high = ledger.high.max(ledger.all.bytes);
        Ok(Share { arenas: self.clone(), uid, bytes })
    }

    /// Shared memory of each user.
    pub(crate) fn users(&self) -> BTreeMap<u32, Amount> {
        self.0.lock().users.clone()
    }

    /// Memory of all sessions of one user.
    pub(crate) fn of(&self, uid: u32) -> Amount {
        self.0.lock().users.get(&uid).copied().unwrap_or_default()
    }

    /// Memory of all sessions now, and its maximum in bytes.
    pub(crate) fn all(&self) -> (Amount, u64) {
        let ledger = self.0.lock();
        (ledger.all, ledger.high)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut ledger = self.arenas.0.lock();
        ledger.all.sub(self.bytes);
        if let Some(amount) = ledger.users.get_mut(&self.uid) {
            amount.sub(self.bytes);
            if *amount == Amount::default() {
                ledger.users.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_config::MemoryLimit;

    use super::*;

    fn limits(user: u64, global: u64) -> Limits {
        let mut limits = Limits::default();
        limits.user.arena = MemoryLimit::UpTo(Bytes(user));
        limits.global.arena = MemoryLimit::UpTo(Bytes(global));
        limits
    }

    #[test]
    fn memory_counts_for_its_user_and_for_all_until_it_is_gone() {
        let arenas = Arenas::default();
        let limits = limits(8192, 12_288);
        let first = arenas.reserve(1, 8192, &limits).expect("nobody has anything");
        let refused = arenas.reserve(1, 1, &limits).expect_err("it has all it may");
        assert!(refused.contains("limits.user.arena = 8KiB"), "{refused}");
        let refused = arenas.reserve(2, 8192, &limits).expect_err("all have too much then");
        assert!(refused.contains("limits.global.arena = 12KiB"), "{refused}");
        let other = arenas.reserve(2, 4096, &limits).expect("another user's share");
        assert_eq!(arenas.all(), (Amount { bytes: 12_288, segments: 2 }, 12_288));
        drop(first);
        assert_eq!(arenas.users(), BTreeMap::from([(2, Amount { bytes: 4096, segments: 1 })]));
        let _again = arenas.reserve(1, 8192, &limits).expect("there is room again");
        drop(other);
        assert_eq!(arenas.all(), (Amount { bytes: 8192, segments: 1 }, 12_288));
    }

    /// The memory counts, wherever it is, and not the session that asked for it.
    #[test]
    fn a_share_lives_as_long_as_its_segment() {
        let arenas = Arenas::default();
        let share = arenas.reserve(1, 4096, &limits(4096, 4096)).expect("room");
        let mut segment = piped_ring::Segment::create(4096).expect("memory");
        segment.keep(share);
        assert_eq!(arenas.all().0.bytes, 4096);
        segment.give_back(|| ());
        assert_eq!((arenas.all().0, arenas.users().len()), (Amount::default(), 0));
    }

    #[test]
    fn many_small_segments_do_not_take_all_places_of_a_shard() {
        let arenas = Arenas::default();
        let limits = limits(1 << 40, 1 << 40);
        let shares: Vec<Share> = (0..SEGMENTS_OF_USER)
            .map(|_| arenas.reserve(1, 4096, &limits).expect("room"))
            .collect();
        assert!(arenas.reserve(1, 4096, &limits).expect_err("full").contains("larger ones"));
        assert!(arenas.reserve(2, 4096, &limits).is_ok());
        drop(shares);
        assert!(arenas.reserve(1, 4096, &limits).is_ok());
    }
}
