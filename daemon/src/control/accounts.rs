//! Use of places and memory by sessions and users, and whether they may have more.

use std::collections::BTreeMap;
use std::sync::Arc;

use piped_control::parties::Credentials;
use piped_control::sessions::Used;
use piped_core::ids::SessionId;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Control, Mouths, SessionEars};
use crate::arenas::{Maker, Share};
use crate::limits::FILES_OF_USER;

/// Use by all sessions of one user.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OfUser {
    /// Places of sessions, also of those that ended and whose memory or files are not given back
    /// yet.
    pub(crate) sessions: u64,
    /// Shared memory, from before it is made until it is given back.
    pub(crate) arena_bytes: u64,
    /// Lent memory, from before it is mapped until it is unmapped.
    pub(crate) lent_bytes: u64,
    pub(crate) handles: u64,
    pub(crate) regions: u64,
    pub(crate) channels: u64,
}

impl OfUser {
    /// The most of each.
    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            sessions: self.sessions.max(other.sessions),
            arena_bytes: self.arena_bytes.max(other.arena_bytes),
            lent_bytes: self.lent_bytes.max(other.lent_bytes),
            handles: self.handles.max(other.handles),
            regions: self.regions.max(other.regions),
            channels: self.channels.max(other.channels),
        }
    }
}

impl Control {
    /// A place for one more session of a user, or which limit forbids it. Places are given back
    /// when all that a session brought is closed, so there may be more of them taken than sessions
    /// open.
    pub(crate) fn session_place(&self, uid: u32) -> Result<Arc<OwnedSemaphorePermit>, String> {
        let limits = self.limiter.limits();
        let all = piped_config::Limits::SESSIONS_MAX as usize;
        let taken = all - self.session_slots.available_permits();
        let mut places = self.places.borrow_mut();
        // Counted, not upgraded: who drops the last one gives the place back.
        places.retain(|(_, place)| place.strong_count() > 0);
        let of_user = places.iter().filter(|(user, _)| *user == uid).count() as u64;
        if of_user >= u64::from(limits.user.sessions) {
            return Err(format!(
                "user {uid} has {of_user} sessions already, those among them that ended and whose \
                 clients have not hung up (limits.user.sessions); close one or raise the limit"
            ));
        }
        let full = || {
            format!(
                "there are {taken} sessions already (limits.global.sessions); close one or raise \
                 the limit"
            )
        };
        if taken >= limits.global.sessions as usize {
            return Err(full());
        }
        let place = Arc::clone(&self.session_slots).try_acquire_owned().map_err(|_| full())?;
        let place = Arc::new(place);
        places.push((uid, Arc::downgrade(&place)));
        Ok(place)
    }

    /// Use by each user that has anything.
    pub(crate) fn users(&self) -> BTreeMap<u32, OfUser> {
        let mut users = BTreeMap::<u32, OfUser>::new();
        for (uid, place) in &*self.places.borrow() {
            if place.strong_count() > 0 {
                users.entry(*uid).or_default().sessions += 1;
            }
        }
        for (uid, memory) in self.ledgers[Maker::Daemon as usize].users() {
            users.entry(uid).or_default().arena_bytes = memory.bytes;
        }
        for (uid, memory) in self.ledgers[Maker::Client as usize].users() {
            users.entry(uid).or_default().lent_bytes = memory.bytes;
        }
        let core = self.core.borrow();
        for (&uid, &handles) in core.sessions().handles_by_user() {
            users.entry(uid).or_default().handles = handles;
        }
        let user = |(owner, count): (SessionId, u32)| {
            Some((core.sessions().get(owner)?.who.uid, u64::from(count)))
        };
        for (uid, count) in core.regions().owners().filter_map(user) {
            users.entry(uid).or_default().regions += count;
        }
        for (uid, count) in core.channels().owners().filter_map(user) {
            users.entry(uid).or_default().channels += count;
        }
        users
    }

    /// Use by one user.
    fn user(&self, uid: u32) -> OfUser {
        let core = self.core.borrow();
        let places = self.places.borrow();
        let places = places.iter().filter(|(user, it)| *user == uid && it.strong_count() > 0);
        let offered = |owners: &mut dyn Iterator<Item = (SessionId, u32)>| {
            let is_its = |id| core.sessions().get(id).is_some_and(|it| it.who.uid == uid);
            owners.filter(|(owner, _)| is_its(*owner)).map(|(_, count)| u64::from(count)).sum()
        };
        OfUser {
            sessions: places.count() as u64,
            arena_bytes: self.ledgers[Maker::Daemon as usize].of(uid).bytes,
            lent_bytes: self.ledgers[Maker::Client as usize].of(uid).bytes,
            handles: core.sessions().handles_of(uid),
            regions: offered(&mut core.regions().owners()),
            channels: offered(&mut core.channels().owners()),
        }
    }

    /// Whether a user may have one more file open on a shard; if not, why.
    pub(crate) fn check_files(&self, uid: u32, shard: usize) -> Result<(), String> {
        let files = self.core.borrow().sessions().files_of(uid, shard);
        if files < FILES_OF_USER {
            return Ok(());
        }
        Err(format!(
            "the sessions of user {uid} have {files} files open on shard {shard}, half of its \
             places for descriptors; close some"
        ))
    }

    /// Counts so many bytes of shared memory as a user's before they are made or mapped, or says
    /// which limit forbids them.
    pub(crate) fn reserve(&self, maker: Maker, uid: u32, bytes: u64) -> Result<Share, String> {
        let share = self.ledgers[maker as usize].reserve(uid, bytes, &self.limiter.limits())?;
        self.note_use(uid);
        Ok(share)
    }

    /// Shared memory of all sessions, and the most there was, in bytes.
    pub(crate) fn shared_bytes(&self, maker: Maker) -> (u64, u64) {
        let (now, high) = self.ledgers[maker as usize].all();
        (now.bytes, high)
    }

    /// Whether a user may have one more handle; if not, which limit forbids it.
    pub(crate) fn check_handles_of_user(&self, uid: u32) -> Result<(), String> {
        let max = self.limiter.limits().user.handles;
        let has = self.core.borrow().sessions().handles_of(uid);
        if has < u64::from(max) {
            return Ok(());
        }
        Err(format!(
            "the sessions of user {uid} have {has} handles together (limits.user.handles); close \
             some or raise the limit"
        ))
    }

    /// Handles of all sessions.
    pub(crate) fn handles_open(&self) -> u64 {
        self.core.borrow().sessions().handles()
    }

    /// The shard of the next session.
    pub(crate) fn next_shard(&self) -> usize {
        self.core.borrow().sessions().next_shard(self.shards.len())
    }

    /// A new session on as many shards as are wanted.
    pub(crate) fn enter_session(
        &self,
        who: Credentials,
        wanted: usize,
    ) -> (SessionId, Vec<usize>, SessionEars) {
        let uid = who.uid;
        let (id, shards) = self.core.borrow_mut().enter_session(who, wanted);
        let (ended, hears_ended) = oneshot::channel();
        let (drained, hears_drained) = oneshot::channel();
        let mouths = Mouths { ended: Some(ended), drained: Some(drained) };
        self.sessions.borrow_mut().insert(id, mouths);
        self.note_use(uid);
        (id, shards, SessionEars { ended: hears_ended, drained: hears_drained })
    }

    /// A session of a user uses so much from now on.
    pub(crate) fn note_session(&self, id: SessionId, uid: u32, used: Used) {
        self.core.borrow_mut().note_session(id, used);
        self.note_use(uid);
    }

    fn note_use(&self, uid: u32) {
        let core = self.core.borrow();
        let (sessions, handles) = (core.sessions().count(), core.sessions().handles());
        let offers = [core.regions().count(), core.channels().count()];
        self.limiter.note(sessions, handles, offers, self.user(uid));
    }

    /// Nothing uses the session's memory any more.
    pub(crate) fn leave_session(&self, id: SessionId) {
        self.sessions.borrow_mut().remove(&id);
        self.core.borrow_mut().leave_session(id);
    }
}
