//! Locks of ranges of files, which clients take, give up and lose.
//!
//! A lock that a client was told of, and that nothing has ended since, keeps others out. What ends
//! it: its client gives it up or closes the file, a node crashes, a connection is lost for so long
//! that the lease ends. Where that may be, nothing is expected of the lock but this: a client whose
//! lock a crash has taken is served nothing through the handle that had it.

use std::collections::{BTreeMap, BTreeSet};

use piped_core::status::Status;

/// A client of an object.
pub(super) type Holder = (usize, usize);

/// What a client asks of a file's locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockCall {
    /// To lock a range.
    Take {
        /// Where the range begins.
        start: u64,
        /// And where it ends.
        end: u64,
        /// Against all others, not only against those that want it for themselves.
        exclusive: bool,
    },
    /// To give up all.
    GiveUp,
}

impl LockCall {
    /// Whether two clients cannot both have that.
    fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (
                Self::Take { start, end, exclusive },
                Self::Take { start: from, end: to, exclusive: alone },
            ) => (exclusive || alone) && start < to && from < end,
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Asked for, or to be given up, and not answered yet.
    Asked,
    /// The client was told so, and nothing has ended it.
    Held(LockCall),
    /// The client may have it or not.
    Maybe,
}

/// A client's lock, and how often the file's node had crashed when the client was told of it.
#[derive(Debug, Clone, Copy)]
struct Lock {
    hold: Hold,
    told_at: Option<u32>,
    /// How many locks had ended when the client asked for this one.
    ended: u64,
}

/// The locks of all files.
#[derive(Debug, Default)]
pub(super) struct Locking {
    locks: BTreeMap<Holder, Lock>,
    /// Files that somebody may have locked through a handle that is closed.
    doubtful: BTreeSet<usize>,
    /// How many locks have ended.
    ended: u64,
}

impl Locking {
    /// Whether the client may take a lock (`true`), or give its lock up; nothing while it waits.
    pub(super) fn next(&self, holder: Holder) -> Option<bool> {
        match self.locks.get(&holder).map(|lock| lock.hold) {
            None => Some(true),
            Some(Hold::Asked) => None,
            Some(_) => Some(false),
        }
    }

    /// The client asks for what is its next.
    pub(super) fn begin(&mut self, holder: Holder) {
        let ended = self.ended;
        self.locks.insert(holder, Lock { hold: Hold::Asked, told_at: None, ended });
    }

    /// The client's call ended. `crashes`: how often the file's node had crashed when it was made,
    /// and has now. Fails if what it was told cannot be.
    pub(super) fn end(
        &mut self,
        holder: Holder,
        call: LockCall,
        status: Status,
        (crashes, now): (u32, u32),
    ) -> Result<(), String> {
        let ended = self.locks.get(&holder).map_or(0, |lock| lock.ended);
        let others = self.locks.iter().filter(|(it, _)| it.0 == holder.0 && it.1 != holder.1);
        let lock = match (status, call) {
            (Status::Ok, LockCall::Take { .. }) => {
                let keeps_out = |lock: &Lock| {
                    let is_sure = lock.told_at == Some(now);
                    matches!(lock.hold, Hold::Held(its) if is_sure && its.excludes(call))
                };
                let mut excluded = others.filter(|(_, lock)| keeps_out(lock));
                if let Some((other, lock)) = excluded.next().filter(|_| crashes == now) {
                    return Err(format!("client {} has {lock:?}", other.1));
                }
                // It may have been told of what was before the crash.
                let told_at = (crashes == now).then_some(now);
                let hold = if told_at.is_some() { Hold::Held(call) } else { Hold::Maybe };
                Some(Lock { hold, told_at, ended })
            }
            (Status::Ok, LockCall::GiveUp) => None,
            (Status::Locked, LockCall::Take { .. }) => {
                // Another's may have ended since the call was carried out.
                let may_be = others.count() > 0 || self.ended != ended;
                if !may_be && !self.doubtful.contains(&holder.0) {
                    return Err(String::from("nobody else can have had a lock"));
                }
                None
            }
            _ => Some(Lock { hold: Hold::Maybe, told_at: None, ended }),
        };
        match lock {
            Some(lock) => self.locks.insert(holder, lock),
            None => {
                self.ended += 1;
                self.locks.remove(&holder)
            }
        };
        Ok(())
    }

    /// A connection is lost, or rights have changed: leases and handles may end.
    pub(super) fn disturb(&mut self) {
        for lock in self.locks.values_mut().filter(|lock| matches!(lock.hold, Hold::Held(_))) {
            lock.hold = Hold::Maybe;
        }
    }

    /// The client has closed the file, or is gone: its lock ends some time.
    pub(super) fn close(&mut self, holder: Holder) {
        if self.locks.remove(&holder).is_some() {
            self.doubtful.insert(holder.0);
        }
    }

    /// Whether the client's handle may be gone for a lock that is.
    pub(super) fn may_be_lost(&self, holder: Holder) -> bool {
        self.locks.contains_key(&holder)
    }

    /// Whether the client has lost its lock in a crash, and so its handle. `crashes`: how often the
    /// file's node has crashed.
    pub(super) fn is_lost(&self, holder: Holder, crashes: u32) -> bool {
        let lock = self.locks.get(&holder);
        lock.and_then(|lock| lock.told_at).is_some_and(|then| then != crashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Holder = (0, 0);
    const SECOND: Holder = (0, 1);

    fn take(start: u64, exclusive: bool) -> LockCall {
        LockCall::Take { start, end: start + 10, exclusive }
    }

    fn asked(locking: &mut Locking, holder: Holder, call: LockCall, status: Status) -> bool {
        locking.begin(holder);
        locking.end(holder, call, status, (0, 0)).is_ok()
    }

    #[test]
    fn two_do_not_have_what_excludes_them() {
        for (start, exclusive, may) in [(0, true, false), (5, false, true), (10, true, true)] {
            let mut locking = Locking::default();
            assert!(asked(&mut locking, FIRST, take(0, false), Status::Ok));
            let found = asked(&mut locking, SECOND, take(start, exclusive), Status::Ok);
            assert_eq!(found, may, "{start} {exclusive}");
        }
        let mut locking = Locking::default();
        assert!(!asked(&mut locking, FIRST, take(0, true), Status::Locked), "by nobody");
        assert!(asked(&mut locking, FIRST, take(0, true), Status::Ok));
        assert!(asked(&mut locking, SECOND, take(0, true), Status::Locked));
        assert!(asked(&mut locking, FIRST, LockCall::GiveUp, Status::Ok));
        assert!(asked(&mut locking, SECOND, take(0, true), Status::Ok));
        // Refused for a lock that was given up before the refusal was told.
        locking.begin(FIRST);
        assert!(asked(&mut locking, SECOND, LockCall::GiveUp, Status::Ok));
        assert!(locking.end(FIRST, take(0, true), Status::Locked, (0, 0)).is_ok());
    }

    #[test]
    fn nothing_is_expected_of_what_may_have_ended() {
        let mut locking = Locking::default();
        assert!(asked(&mut locking, FIRST, take(0, true), Status::Ok));
        locking.disturb();
        assert!(asked(&mut locking, SECOND, take(0, true), Status::Ok));
        let mut locking = Locking::default();
        assert!(asked(&mut locking, FIRST, take(0, true), Status::PeerLost));
        assert!(asked(&mut locking, SECOND, take(0, true), Status::Ok));
        let mut locking = Locking::default();
        assert!(asked(&mut locking, FIRST, take(0, true), Status::Ok));
        locking.close(FIRST);
        assert!(asked(&mut locking, SECOND, take(0, true), Status::Locked));
    }

    #[test]
    fn a_crash_takes_the_handle() {
        let mut locking = Locking::default();
        assert!(asked(&mut locking, FIRST, take(0, true), Status::Ok));
        assert!(!locking.is_lost(FIRST, 0) && locking.is_lost(FIRST, 1));
        locking.disturb();
        assert!(locking.is_lost(FIRST, 1) && locking.may_be_lost(FIRST));
        locking.begin(SECOND);
        assert!(locking.end(SECOND, take(0, true), Status::Ok, (1, 1)).is_ok());
        // Asked for before, and told after it: of either side.
        locking.begin(SECOND);
        assert!(locking.end(SECOND, take(0, true), Status::Ok, (0, 1)).is_ok());
        assert!(!locking.is_lost(SECOND, 1) && !locking.is_lost(SECOND, 2));
        locking.close(FIRST);
        assert!(!locking.is_lost(FIRST, 1) && !locking.may_be_lost(FIRST));
    }
}
