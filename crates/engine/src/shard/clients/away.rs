//! Requests of this shard's queues that are under way at the homes of their sessions.

use std::collections::BTreeMap;

use piped_core::ids::SessionId;
use piped_core::request::Origin;

use super::super::keys::{AwayKey, kind};
use super::super::slab::Slab;

/// A request that the home of its session has.
#[derive(Debug)]
struct Asked {
    home: u16,
    origin: Origin,
    /// Whether it waits for others, and counts so.
    waits: bool,
    /// The home was told that it is given up.
    recalled: bool,
    /// Its client was told how it ended: only its buffer is held.
    told: bool,
}

/// All requests of the shard that other shards have. A shard alone on its node has none.
#[derive(Debug)]
pub(in crate::shard) struct Away {
    requests: Slab<kind::Away, Asked>,
    /// Receives and waits among them, by session; sessions that have none are left out.
    waits: BTreeMap<SessionId, u32>,
}

impl Default for Away {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl Away {
    /// Room for so many.
    pub(in crate::shard) fn with_capacity(most: u32) -> Self {
        Self { requests: Slab::with_capacity(most), waits: BTreeMap::new() }
    }

    /// A request goes to the home of its session; nothing if there are as many as there may be.
    pub(in crate::shard) fn enter(
        &mut self,
        home: u16,
        origin: Origin,
        waits: bool,
    ) -> Option<AwayKey> {
        let key = self
            .requests
            .insert(Asked { home, origin, waits, recalled: false, told: false })
            .ok()?;
        if waits {
            *self.waits.entry(origin.session).or_default() += 1;
        }
        Some(key)
    }

    /// Where the answer to a request goes, until that is over.
    pub(in crate::shard) fn origin(&self, key: AwayKey) -> Option<Origin> {
        self.requests.get(key).map(|asked| asked.origin)
    }

    /// A request is over; where its answer goes.
    pub(in crate::shard) fn leave(&mut self, key: AwayKey) -> Option<Origin> {
        let Asked { origin, waits, .. } = self.requests.remove(key)?;
        if waits && let Some(count) = self.waits.get_mut(&origin.session) {
            *count -= 1;
            if *count == 0 {
                self.waits.remove(&origin.session);
            }
        }
        Some(origin)
    }

    /// Gives up on a request of a queue, by its client's own value. Nothing if there is none that
    /// has not ended; else the shard that is to be told, and the request, but only once.
    pub(in crate::shard) fn recall(
        &mut self,
        canceller: Origin,
        target: u64,
    ) -> Option<Option<(u16, AwayKey)>> {
        let wanted = |asked: &Asked| {
            let Origin { session, queue, user_data, .. } = asked.origin;
            let wanted = (canceller.session, canceller.queue, target);
            !asked.told && (session, queue, user_data) == wanted
        };
        let key = self.requests.next_from(&mut 0, wanted)?;
        let asked = self.requests.get_mut(key)?;
        let first = !std::mem::replace(&mut asked.recalled, true);
        Some(first.then_some((asked.home, key)))
    }

    /// The client of a request was told how it ended, while its buffer is held. Where the release
    /// goes.
    pub(in crate::shard) fn hold(&mut self, key: AwayKey) -> Option<Origin> {
        let asked = self.requests.get_mut(key)?;
        asked.told = true;
        Some(asked.origin)
    }

    /// A session closes, here and at its home: nobody is told of its requests any more.
    pub(in crate::shard) fn forget(&mut self, session: SessionId) {
        let mut from = 0;
        while let Some(key) = self.requests.next_from(&mut from, |it| it.origin.session == session)
        {
            self.leave(key);
        }
    }

    /// Receives and waits of a session among them.
    pub(in crate::shard) fn waits_of(&self, session: SessionId) -> u32 {
        self.waits.get(&session).copied().unwrap_or(0)
    }

    /// How many there are.
    pub(in crate::shard) fn len(&self) -> u32 {
        self.requests.len()
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::QueueId;

    use super::*;

    fn of(session: u32, queue: u32, user_data: u64) -> Origin {
        Origin { session: SessionId(session), queue: QueueId(queue), slot: 0, user_data }
    }

    #[test]
    fn a_request_is_found_by_its_own_queue_alone_until_it_is_over() {
        let mut away = Away::with_capacity(3);
        let key = away.enter(1, of(7, 2, 40), true).expect("room");
        away.enter(2, of(7, 3, 40), false).expect("room");
        assert_eq!(away.recall(of(8, 2, 0), 40), None);
        assert_eq!(away.recall(of(7, 2, 0), 41), None);
        assert_eq!(away.recall(of(7, 2, 0), 40), Some(Some((1, key))));
        assert_eq!(away.recall(of(7, 2, 0), 40), Some(None), "its home is told once");
        assert_eq!(away.hold(key), Some(of(7, 2, 40)));
        assert_eq!(away.recall(of(7, 2, 0), 40), None, "it has ended");
        assert_eq!((away.waits_of(SessionId(7)), away.len()), (1, 2));
        assert_eq!(away.leave(key), Some(of(7, 2, 40)));
        assert_eq!((away.leave(key), away.origin(key)), (None, None));
        assert_eq!((away.waits_of(SessionId(7)), away.len()), (0, 1));
    }

    #[test]
    fn a_session_that_closes_leaves_nothing_and_others_keep_theirs() {
        let mut away = Away::with_capacity(2);
        away.enter(1, of(7, 1, 1), true).expect("room");
        let kept = away.enter(1, of(8, 2, 1), true).expect("room");
        assert_eq!(away.enter(1, of(8, 2, 2), true), None, "there are as many as there may be");
        away.forget(SessionId(7));
        assert_eq!((away.waits_of(SessionId(7)), away.len()), (0, 1));
        assert_eq!(away.origin(kept), Some(of(8, 2, 1)));
        assert!(away.waits.len() == 1);
    }
}
