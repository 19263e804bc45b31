//! What a call's bytes say before it is carried out: whether it may be, and what comes of it.
//!
//! Asked at both doors, of the copy that is carried out: where a client asks, and where a peer
//! does.

use piped_core::access::Access;
use piped_core::call::{Call, Lock, Locking};
use piped_core::status::Status;

use super::driver::status_of;

/// What is to be known of a call besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    once: bool,
    changes: bool,
    syncs: Option<Synced>,
    locks: Option<Locking>,
    answer: u32,
}

impl Facts {
    /// Whether it must not be carried out twice.
    pub(in crate::shard) const fn once(self) -> bool {
        self.once
    }

    /// Whether it changes something that a sync is to cover.
    pub(in crate::shard) const fn changes(self) -> bool {
        self.changes
    }

    /// Whether it must not be done late, when somebody has asked for something else.
    pub(in crate::shard) const fn in_turn(self) -> bool {
        self.changes || self.locks.is_some()
    }

    /// What it does to the locks of its handle, if that is what it is about.
    pub(in crate::shard) const fn locks(self) -> Option<Locking> {
        self.locks
    }

    /// How much of what was changed it brings to stable storage, if that is what it does.
    pub(in crate::shard) const fn syncs(self) -> Option<Synced> {
        self.syncs
    }

    /// The longest answer in bytes.
    pub(in crate::shard) const fn answer(self) -> u32 {
        self.answer
    }
}

/// How much a sync is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synced {
    All,
    Part,
}

/// Reads a call, and checks that it may be made of something with that access. `room`: for the
/// answer, in bytes.
///
/// # Errors
/// `Invalid`: the bytes are no call, or none of a file, or of a directory, or there is no room for
/// its answer. `Denied`: it may not be made.
pub(super) fn check(
    bytes: &[u8],
    (access, is_directory): (Access, bool),
    room: u32,
) -> Result<Facts, Status> {
    let call = Call::parse(bytes).map_err(|_| Status::Invalid)?;
    let of_both = matches!(call, Call::Sync { .. } | Call::Space);
    let of_directories = match call {
        Call::Stat { path } => is_directory || !path.is_empty(),
        Call::List { .. } | Call::Copy { .. } => true,
        _ => call.changes_names(),
    };
    let fits = call.answer_bytes_min() <= room.into();
    if !of_both && of_directories != is_directory || !fits {
        return Err(Status::Invalid);
    }
    let (write, names) = (call.writes(), call.changes_names());
    let needed = Access {
        read: call.reads() || matches!(call, Call::Lock { lock: Lock::Shared, .. }),
        write: write || matches!(call, Call::Lock { lock: Lock::Exclusive, .. }),
        names,
        ..Access::NONE
    };
    if !access.allows(needed) {
        return Err(Status::Denied);
    }
    let syncs = match call {
        Call::Sync { range, .. } if range.offset == 0 && range.length == 0 => Some(Synced::All),
        Call::Sync { .. } => Some(Synced::Part),
        _ => None,
    };
    let locks = call.locking();
    let answer = call.answer_bytes_max() as u32;
    Ok(Facts { once: call.is_once(), changes: write || names, syncs, locks, answer })
}

/// How a call ended, in the words that its asker may hear.
pub(super) fn told(access: Access, result: i32) -> Status {
    let status = if result < 0 { status_of(result) } else { Status::Ok };
    if access.read { status } else { status.for_who_may_not_read() }
}

#[cfg(test)]
mod tests {
    use piped_core::call::{CALL_BYTES_MAX, Range, Stat};

    use super::*;

    const ALL: Access = Access { names: true, ..Access::READ_WRITE };
    const RANGE: Range = Range { offset: 0, length: 0 };

    const ROOM: u32 = 4096;

    fn checked(call: Call<'_>, access: Access, is_directory: bool) -> Result<Facts, Status> {
        let mut bytes = [0; CALL_BYTES_MAX];
        let length = call.encode(&mut bytes).expect("room");
        check(&bytes[..length], (access, is_directory), ROOM)
    }

    #[test]
    fn a_call_is_made_of_what_it_is_about_alone() {
        let remove = Call::Remove { path: b"a", kind: Default::default() };
        let list = Call::List { path: b"", cookie: 0, stats: false };
        for call in [remove, list, Call::Stat { path: b"a" }] {
            assert_eq!(checked(call, ALL, false), Err(Status::Invalid), "{call:?}");
            assert!(checked(call, ALL, true).is_ok(), "{call:?}");
        }
        for call in [Call::Truncate { length: 1 }, Call::Digest { range: RANGE }] {
            assert_eq!(checked(call, ALL, true), Err(Status::Invalid), "{call:?}");
            assert!(checked(call, ALL, false).is_ok(), "{call:?}");
        }
        let sync = Call::Sync { range: RANGE, data_only: true };
        for call in [Call::Stat { path: b"" }, Call::Space, sync] {
            assert!(checked(call, Access::NONE, true).is_ok(), "{call:?}");
            assert!(checked(call, Access::NONE, false).is_ok(), "{call:?}");
        }
        assert_eq!(check(b"", (ALL, true), ROOM), Err(Status::Invalid));
    }

    #[test]
    fn a_call_needs_the_right_to_what_it_does() {
        let denied = |call, access, of| checked(call, access, of) == Err(Status::Denied);
        let (read, write) = (Access::READ, Access::WRITE);
        assert!(denied(Call::Truncate { length: 1 }, read, false));
        assert!(!denied(Call::Truncate { length: 1 }, write, false));
        assert!(denied(Call::Digest { range: RANGE }, write, false));
        assert!(denied(Call::List { path: b"", cookie: 0, stats: false }, write, true));
        let link = Call::Link { from: b"a", to: b"b" };
        assert!(denied(link, Access::READ_WRITE, true) && !denied(link, ALL, true));
        let copy = Call::Copy { from: b"a", to: b"b", range: RANGE, durable: false };
        assert!(denied(copy, read, true) && denied(copy, write, true));
        assert!(!denied(copy, Access::READ_WRITE, true));
        let lock = |lock| Call::Lock { range: RANGE, lock };
        assert!(
            denied(lock(Lock::Shared), write, false) && !denied(lock(Lock::Shared), read, false)
        );
        let alone = lock(Lock::Exclusive);
        assert!(denied(alone, read, false) && !denied(alone, write, false));
        assert!(!denied(lock(Lock::None), Access::NONE, false));
    }

    #[test]
    fn an_answer_must_fit() {
        let mut bytes = [0; CALL_BYTES_MAX];
        for call in [Call::Stat { path: b"" }, Call::Space, Call::Truncate { length: 1 }] {
            let length = call.encode(&mut bytes).expect("room");
            let least = call.answer_bytes_min() as u32;
            assert!(check(&bytes[..length], (ALL, false), least).is_ok(), "{call:?}");
            if let Some(less) = least.checked_sub(1) {
                let checked = check(&bytes[..length], (ALL, false), less);
                assert_eq!(checked, Err(Status::Invalid), "{call:?}");
            }
        }
    }

    #[test]
    fn what_comes_of_a_call_is_known_before() {
        let facts = |call, of| checked(call, ALL, of).expect("it may be made");
        let stat = facts(Call::Stat { path: b"" }, false);
        assert_eq!((stat.answer, stat.changes, stat.once), (Stat::BYTES as u32, false, false));
        let cut = facts(Call::Truncate { length: 0 }, false);
        assert_eq!((cut.answer, cut.changes, cut.once), (0, true, false));
        let link = facts(Call::Link { from: b"a", to: b"b" }, true);
        assert!(link.changes && link.once);
        let made = Call::MakeDirectory { path: b"a", mode: 0, parents: true };
        assert!(facts(made, true).changes && !facts(made, true).once);
        let part = Range { offset: 0, length: 1 };
        let sync = Call::Sync { range: part, data_only: false };
        assert_eq!(facts(sync, false).syncs, Some(Synced::Part));
        let locking = |range, lock| {
            let facts = facts(Call::Lock { range, lock }, false);
            assert!(facts.in_turn() && !facts.changes);
            facts.locks
        };
        assert_eq!(locking(part, Lock::Exclusive), Some(Locking::Some));
        assert_eq!(locking(part, Lock::None), Some(Locking::Fewer));
        assert_eq!(locking(RANGE, Lock::None), Some(Locking::None));
        let copy = facts(Call::Copy { from: b"a", to: b"b", range: part, durable: false }, true);
        assert!(copy.changes && !copy.once && copy.answer == 8);
    }
}
