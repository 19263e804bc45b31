//! The sessions of clients, and what each user has in all of its sessions.

use std::collections::BTreeMap;

use piped_core::ids::SessionId;

use crate::parties::Credentials;

/// A session as the control thread knows it.
#[derive(Debug)]
pub struct Session {
    /// The shards that serve it, each once. The first one is its home: it has what has one place
    /// only. Queues go to all of them by turns.
    pub shards: Vec<usize>,
    /// The process that connected.
    pub who: Credentials,
    /// What the session uses.
    pub used: Used,
    /// The session was told to end.
    ending: bool,
    /// Shards that may still use its memory.
    undrained: Vec<usize>,
}

/// What a session uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Queues to its shard.
    pub queues: u32,
    /// Shared memory that the daemon made, in bytes.
    pub arena_bytes: u64,
    /// Memory that the client lends, in bytes.
    pub lent_bytes: u64,
    /// Handles that are open.
    pub handles: u32,
    /// Handles of files among them.
    pub files: u32,
}

/// All sessions. What a user has is counted when it changes: each open asks for it.
#[derive(Debug, Default)]
pub struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    last: u32,
    handles: u64,
    /// Handles by user; users that have none are left out.
    handles_of: BTreeMap<u32, u64>,
    /// Files by user and shard; users that have none are left out.
    files_of: BTreeMap<(u32, usize), u64>,
}

impl Sessions {
    /// A new session, on the shard that has the fewest, and on as many in all as are `wanted`: one
    /// at least, and all of them at most. Its shards come back, its home first.
    pub fn enter(
        &mut self,
        who: Credentials,
        wanted: usize,
        shards: usize,
    ) -> (SessionId, Vec<usize>) {
        let home = self.next_shard(shards);
        let of = |turn: usize| (home + turn) % shards.max(1);
        let served: Vec<usize> = (0..wanted.min(shards).max(1)).map(of).collect();
        // Fewer than 2^32 sessions live at once, so this ends.
        let id = loop {
            self.last = self.last.wrapping_add(1);
            if !self.by_id.contains_key(&SessionId(self.last)) {
                break SessionId(self.last);
            }
        };
        let session = Session {
            shards: served.clone(),
            who,
            used: Used::default(),
            ending: false,
            undrained: served.clone(),
        };
        self.by_id.insert(id, session);
        (id, served)
    }

    /// A shard uses nothing of a session any more. Whether none does.
    pub(crate) fn drain(&mut self, id: SessionId, shard: usize) -> bool {
        let Some(session) = self.by_id.get_mut(&id) else { return true };
        session.undrained.retain(|other| *other != shard);
        session.undrained.is_empty()
    }

    /// The shard of the next session, of so many shards.
    #[must_use]
    pub fn next_shard(&self, shards: usize) -> usize {
        let on = |shard| {
            let sessions = self.by_id.values();
            let shares = sessions.map(|it| match it.shards.first() {
                // A home does more for its session than its other shards.
                Some(&home) if home == shard => 2,
                _ => usize::from(it.shards.contains(&shard)),
            });
            shares.sum::<usize>()
        };
        (0..shards).min_by_key(|&shard| on(shard)).unwrap_or(0)
    }

    /// A session uses so much from now on.
    pub fn note(&mut self, id: SessionId, used: Used) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        let uid = session.who.uid;
        let before = std::mem::replace(&mut session.used, used);
        self.handles = self.handles + u64::from(used.handles) - u64::from(before.handles);
        count(&mut self.handles_of, uid, before.handles, used.handles);
        for &shard in &session.shards {
            count(&mut self.files_of, (uid, shard), before.files, used.files);
        }
    }

    /// Forgets a session, of which nothing is left.
    pub fn leave(&mut self, id: SessionId) {
        self.note(id, Used::default());
        self.by_id.remove(&id);
    }

    /// A session by its number.
    #[must_use]
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(&id)
    }

    /// All sessions by number.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.by_id.iter().map(|(&id, session)| (id, session))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_id.len() as u64
    }

    /// Handles of all sessions.
    #[must_use]
    pub const fn handles(&self) -> u64 {
        self.handles
    }

    /// Handles of each user.
    #[must_use]
    pub const fn handles_by_user(&self) -> &BTreeMap<u32, u64> {
        &self.handles_of
    }

    /// Handles of a user.
    #[must_use]
    pub fn handles_of(&self, uid: u32) -> u64 {
        self.handles_of.get(&uid).copied().unwrap_or(0)
    }

    /// Files of a user that are open on a shard.
    #[must_use]
    pub fn files_of(&self, uid: u32, shard: usize) -> u64 {
        self.files_of.get(&(uid, shard)).copied().unwrap_or(0)
    }

    /// Marks the sessions of some as ending. Each is marked once; the new ones come back.
    pub(crate) fn end(
        &mut self,
        is_it: impl Fn(SessionId, &Credentials) -> bool,
    ) -> Vec<SessionId> {
        let mut ended = Vec::new();
        for (&id, session) in &mut self.by_id {
            if !session.ending && is_it(id, &session.who) {
                session.ending = true;
                ended.push(id);
            }
        }
        ended
    }
}

fn count<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K, before: u32, after: u32) {
    if before == after {
        return;
    }
    let now = counts.get(&key).copied().unwrap_or(0) + u64::from(after) - u64::from(before);
    if now > 0 {
        counts.insert(key, now);
    } else {
        counts.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_has_is_the_sum_of_its_sessions() {
        let mut sessions = Sessions::default();
        let used = |handles, files| Used { handles, files, ..Used::default() };
        let mut enter = |uid| sessions.enter(Credentials::of(uid, uid), 1, 2);
        let ((one, first), (two, second), (other, _)) = (enter(7), enter(7), enter(8));
        let [first, second] = [first, second].map(|shards| shards[0]);
        assert_ne!(first, second, "they are spread over shards");
        for (id, handles, files) in [(one, 3, 2), (two, 4, 1), (other, 9, 9), (two, 5, 4)] {
            sessions.note(id, used(handles, files));
        }
        assert_eq!(
            (sessions.handles(), sessions.handles_of(7), sessions.handles_of(8)),
            (17, 8, 9)
        );
        assert_eq!([first, second].map(|shard| sessions.files_of(7, shard)), [2, 4]);
        sessions.leave(two);
        assert_eq!((sessions.handles_of(7), sessions.files_of(7, second)), (3, 0));
        [one, other].into_iter().for_each(|id| sessions.leave(id));
        assert_eq!((sessions.handles(), sessions.count()), (0, 0));
        assert!(sessions.handles_of.is_empty() && sessions.files_of.is_empty());
    }

    #[test]
    fn a_session_is_told_to_end_once() {
        let mut sessions = Sessions::default();
        let (id, _) = sessions.enter(Credentials::of(7, 7), 1, 1);
        assert_eq!(sessions.end(|_, who| who.uid == 8), []);
        assert_eq!(sessions.end(|_, who| who.uid == 7), [id]);
        assert_eq!(sessions.end(|it, _| it == id), []);
    }

    #[test]
    fn a_session_of_several_shards_has_its_files_on_each_and_goes_when_all_are_done_with_it() {
        let mut sessions = Sessions::default();
        let who = || Credentials::of(7, 7);
        let (_, alone) = sessions.enter(who(), 1, 3);
        let (id, shards) = sessions.enter(who(), 8, 3);
        assert_eq!((alone, &shards[..]), (vec![0], &[1, 2, 0][..]), "its home has the fewest");
        assert_eq!(sessions.enter(who(), 0, 3).1.len(), 1);
        let mut others = Sessions::default();
        let homes = [3; 6].map(|wanted| others.enter(who(), wanted, 3).1[0]);
        assert_eq!(homes, [0, 1, 2, 0, 1, 2], "homes are spread");
        sessions.note(id, Used { files: 2, ..Used::default() });
        assert_eq!([0, 1, 2].map(|shard| sessions.files_of(7, shard)), [2; 3]);
        assert_eq!([1, 1, 0].map(|shard| sessions.drain(id, shard)), [false; 3]);
        assert!(sessions.drain(id, 2));
        sessions.leave(id);
        assert!(sessions.files_of.is_empty());
    }
}
