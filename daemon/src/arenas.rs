//! Memory shared with clients, counted by user until it is given back: what the daemon makes for
//! them, and what they lend.
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

use crate::limits::{LENT_SEGMENTS_OF_USER, SEGMENTS_OF_USER};

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

/// The maker of the memory that a ledger counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// The daemon, for arenas.
    Daemon,
    /// A client, which lends it.
    Client,
}

impl Maker {
    /// Key of the limits, and name of the memory.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Daemon => ("arena", "shared memory"),
            Self::Client => ("lent", "lent memory"),
        }
    }

    /// Most segments of a user.
    const fn segments(self) -> u64 {
        match self {
            Self::Daemon => SEGMENTS_OF_USER,
            Self::Client => LENT_SEGMENTS_OF_USER,
        }
    }

    /// Limits of a user and of all, in bytes.
    fn limits(self, limits: &Limits) -> (u64, u64) {
        let (user, global) = match self {
            Self::Daemon => (limits.user.arena, limits.global.arena),
            Self::Client => (limits.user.lent, limits.global.lent),
        };
        (user.bytes(), global.bytes())
    }
}

/// Counts the shared memory of one kind, of all users.
#[derive(Debug, Clone)]
pub(crate) struct Arenas {
    maker: Maker,
    ledger: Arc<Mutex<Ledger>>,
}

/// Count of one segment, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    arenas: Arenas,
    uid: u32,
    bytes: u64,
}

impl Arenas {
    /// Ledger of memory of which there is none yet.
    pub(crate) fn new(maker: Maker) -> Self {
        Self { maker, ledger: Arc::default() }
    }

    /// Counts a segment of a user before it is made, or names the limit that forbids it. Making it
    /// takes long, and others ask meanwhile.
    pub(crate) fn reserve(&self, uid: u32, bytes: u64, limits: &Limits) -> Result<Share, String> {
        let (key, what) = self.maker.words();
        let (most_of_user, most_of_all) = self.maker.limits(limits);
        let mut ledger = self.ledger.lock();
        let (of_user, all) = (ledger.users.get(&uid).copied().unwrap_or_default(), ledger.all);
        let size = Bytes(bytes);
        if bytes > most_of_user.saturating_sub(of_user.bytes) {
            return Err(format!(
                "{size} of {what} more than the {} that the sessions of user {uid} have \
                 (with ended sessions that their clients still hold) is beyond \
                 limits.user.{key} = {}; give some back, or raise the limit",
                Bytes(of_user.bytes),
                Bytes(most_of_user)
            ));
        }
        if bytes > most_of_all.saturating_sub(all.bytes) {
            return Err(format!(
                "{size} of {what} more than the {} that all sessions have is beyond \
                 limits.global.{key} = {}; give some back, or raise the limit",
                Bytes(all.bytes),
                Bytes(most_of_all)
            ));
        }
        if of_user.segments >= self.maker.segments() {
            return Err(format!(
                "user {uid} has {} segments of {what} already; ask for fewer and larger ones",
                of_user.segments
            ));
        }
        ledger.users.entry(uid).or_default().add(bytes);
        ledger.all.add(bytes);
        ledger.high = ledger.high.max(ledger.all.bytes);
        Ok(Share { arenas: self.clone(), uid, bytes })
    }

    /// Shared memory of each user.
    pub(crate) fn users(&self) -> BTreeMap<u32, Amount> {
        self.ledger.lock().users.clone()
    }

    /// Memory of all sessions of one user.
    pub(crate) fn of(&self, uid: u32) -> Amount {
        self.ledger.lock().users.get(&uid).copied().unwrap_or_default()
    }

    /// Memory of all sessions now, and its maximum in bytes.
    pub(crate) fn all(&self) -> (Amount, u64) {
        let ledger = self.ledger.lock();
        (ledger.all, ledger.high)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut ledger = self.arenas.ledger.lock();
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
        let arenas = Arenas::new(Maker::Daemon);
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

    #[test]
    fn lent_memory_has_limits_of_its_own() {
        let lent = Arenas::new(Maker::Client);
        let mut limits = limits(4096, 4096);
        limits.user.lent = MemoryLimit::UpTo(Bytes(8192));
        limits.global.lent = MemoryLimit::UpTo(Bytes(12_288));
        let _first = lent.reserve(1, 8192, &limits).expect("room");
        let refused = lent.reserve(1, 1, &limits).expect_err("it has all it may");
        assert!(refused.contains("lent memory") && refused.contains("limits.user.lent = 8KiB"));
        let refused = lent.reserve(2, 8192, &limits).expect_err("all have too much then");
        assert!(refused.contains("limits.global.lent = 12KiB"), "{refused}");
        assert_eq!(lent.all().0.bytes, 8192);
    }

    /// The memory counts, wherever it is, and not the session that asked for it.
    #[test]
    fn a_share_lives_as_long_as_its_segment() {
        let arenas = Arenas::new(Maker::Daemon);
        let share = arenas.reserve(1, 4096, &limits(4096, 4096)).expect("room");
        let mut segment = piped_ring::Segment::create(4096).expect("memory");
        segment.keep(share);
        assert_eq!(arenas.all().0.bytes, 4096);
        segment.give_back(|| ());
        assert_eq!((arenas.all().0, arenas.users().len()), (Amount::default(), 0));
    }

    #[test]
    fn a_user_has_half_of_a_shards_places_for_segments_with_what_it_lends() {
        let mut limits = limits(1 << 40, 1 << 40);
        limits.user.lent = MemoryLimit::UpTo(Bytes(1 << 40));
        limits.global.lent = limits.user.lent;
        let [made, lent] = [Maker::Daemon, Maker::Client].map(|maker| {
            let arenas = Arenas::new(maker);
            let all: Vec<Share> =
                std::iter::from_fn(|| arenas.reserve(1, 4096, &limits).ok()).collect();
            all.len()
        });
        assert_eq!(made + lent, crate::limits::SEGMENTS_MAX as usize / 2);
    }

    #[test]
    fn many_small_segments_do_not_take_all_places_of_a_shard() {
        let arenas = Arenas::new(Maker::Daemon);
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
