//! What other shards ask for sessions that have their home here, until it may begin.
//!
//! A shard's own clients leave what does not fit in their rings. What other shards took from rings
//! comes whether there is room or not, so it has places of its own among the transfers, and waits
//! for one. Once half of these are taken a session may have few more: so one client cannot keep
//! those of others out.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use piped_core::ids::{QueueId, SessionId};
use piped_core::request::Request;
use piped_core::units::Nanos;

/// A request by the shard whose queue it came by, and its number there.
pub(in crate::shard) type Asked = (u16, u64);

/// A request of a queue of another shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Ask {
    asked: Asked,
    session: SessionId,
    queue: QueueId,
    request: Request,
    /// When it came: its deadline runs from there.
    came: Nanos,
}

impl Ask {
    pub(in crate::shard) const fn new(
        asked: Asked,
        (session, queue): (SessionId, QueueId),
        request: Request,
        came: Nanos,
    ) -> Self {
        Self { asked, session, queue, request, came }
    }

    /// What it was made of.
    pub(in crate::shard) const fn into_parts(
        self,
    ) -> (Asked, (SessionId, QueueId), Request, Nanos) {
        (self.asked, (self.session, self.queue), self.request, self.came)
    }
}

/// What a session has of this.
#[derive(Debug, Default)]
struct Of {
    /// Requests that have not begun; each has a place at the shard that asks.
    parked: VecDeque<Ask>,
    running: u32,
    /// Receives and waits, which begin at once and have places of their own.
    waits: u32,
}

/// All that other shards ask of this one.
#[derive(Debug)]
pub(in crate::shard) struct Asks {
    sessions: BTreeMap<SessionId, Of>,
    running: u32,
    waits: u32,
    /// The session whose request was the last to begin.
    last: SessionId,
    /// The most that run; as many receives and waits may be there besides.
    most: u32,
}

impl Asks {
    /// Room for so many to run.
    pub(in crate::shard) fn new(most: u32) -> Self {
        Self { sessions: BTreeMap::new(), running: 0, waits: 0, last: SessionId(0), most }
    }

    /// One more is to begin when it may.
    pub(in crate::shard) fn park(&mut self, ask: Ask) {
        self.sessions.entry(ask.session).or_default().parked.push_back(ask);
    }

    /// Whether a session may have one more of so many.
    fn has_room(&self, of_session: u32, of_all: u32) -> bool {
        let most = if of_all < self.most / 2 { self.most / 8 } else { self.most / 64 };
        of_all < self.most && of_session < most.max(1)
    }

    fn next(&self) -> Option<SessionId> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let turns = self.sessions.range(behind).chain(self.sessions.range(..=self.last));
        let may = |of: &Of| !of.parked.is_empty() && self.has_room(of.running, self.running);
        turns.into_iter().find(|(_, of)| may(of)).map(|(session, _)| *session)
    }

    /// Whether one may begin.
    pub(in crate::shard) fn has_next(&self) -> bool {
        !self.sessions.is_empty() && self.next().is_some()
    }

    /// The next one that begins: sessions take turns.
    pub(in crate::shard) fn pop(&mut self) -> Option<Ask> {
        let session = self.next()?;
        let of = self.sessions.get_mut(&session)?;
        let ask = of.parked.pop_front()?;
        of.running += 1;
        self.running += 1;
        self.last = session;
        Some(ask)
    }

    /// A receive or wait begins, if it may.
    pub(in crate::shard) fn enter_wait(&mut self, session: SessionId) -> bool {
        let of_session = self.sessions.get(&session).map_or(0, |of| of.waits);
        // They wait for others as long as these like, so half of all places are no sign of need.
        let may = self.waits < self.most && of_session < self.most / 2;
        if may {
            self.sessions.entry(session).or_default().waits += 1;
            self.waits += 1;
        }
        may
    }

    /// One that began is over.
    pub(in crate::shard) fn end(&mut self, session: SessionId, waits: bool) {
        let Some(of) = self.sessions.get_mut(&session) else { return };
        let (own, all) = match waits {
            true => (&mut of.waits, &mut self.waits),
            false => (&mut of.running, &mut self.running),
        };
        *own = own.saturating_sub(1);
        *all = all.saturating_sub(1);
        if of.parked.is_empty() && of.running == 0 && of.waits == 0 {
            self.sessions.remove(&session);
        }
    }

    /// Takes out one that has not begun.
    pub(in crate::shard) fn recall(&mut self, asked: Asked) -> Option<Ask> {
        let is_it = |ask: &Ask| ask.asked == asked;
        let mut all = self.sessions.values_mut();
        all.find_map(|of| of.parked.remove(of.parked.iter().position(is_it)?))
    }

    /// A session closes: what has not begun does not.
    pub(in crate::shard) fn forget(&mut self, session: SessionId) {
        if let Some(of) = self.sessions.get_mut(&session) {
            of.parked.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::request::{Class, Verb};

    use super::*;

    fn ask(session: SessionId, asked: u64) -> Ask {
        let (class, deadline, no_wait, fence) = (Class::Bulk, None, false, false);
        let request = Request { verb: Verb::Nop, class, deadline, no_wait, fence };
        Ask::new((1, asked), (session, QueueId(0)), request, Nanos::ZERO)
    }

    #[test]
    fn a_session_that_asks_for_much_leaves_room_for_others_and_all_begin_in_their_order() {
        let mut asks = Asks::new(64);
        let (greedy, other) = (SessionId(1), SessionId(2));
        (0..100).for_each(|number| asks.park(ask(greedy, number)));
        let begun = |asks: &mut Asks| std::iter::from_fn(|| asks.pop()).count();
        assert_eq!(begun(&mut asks), 8, "an eighth");
        (0..100).for_each(|number| asks.park(ask(other, number)));
        assert_eq!(begun(&mut asks), 8);
        asks.end(greedy, false);
        assert_eq!(asks.pop(), Some(ask(greedy, 8)));
        assert!(!asks.has_next());
        // With many sessions each has little once half of the places are taken.
        for session in 3..40 {
            (0..100).for_each(|number| asks.park(ask(SessionId(session), number)));
        }
        begun(&mut asks);
        assert!(asks.running < 64, "{asks:?}");
        asks.park(ask(SessionId(99), 0));
        assert_eq!(asks.pop(), Some(ask(SessionId(99), 0)));
    }

    #[test]
    fn what_is_given_up_or_of_a_session_that_closes_does_not_begin() {
        let mut asks = Asks::new(64);
        let session = SessionId(1);
        (0..3).for_each(|number| asks.park(ask(session, number)));
        assert_eq!(asks.recall((1, 1)), Some(ask(session, 1)));
        assert_eq!((asks.recall((1, 1)), asks.recall((2, 2))), (None, None));
        assert_eq!(asks.pop(), Some(ask(session, 0)));
        asks.forget(session);
        assert_eq!(asks.pop(), None);
        asks.end(session, false);
        assert!(asks.sessions.is_empty() && asks.running == 0);
    }

    #[test]
    fn receives_have_places_of_their_own() {
        let mut asks = Asks::new(8);
        let [one, two, three] = [1, 2, 3].map(SessionId);
        let entered =
            |asks: &mut Asks, session| (0..9).filter(|_| asks.enter_wait(session)).count();
        assert_eq!([one, two, three].map(|it| entered(&mut asks, it)), [4, 4, 0]);
        asks.end(one, true);
        assert!(asks.enter_wait(three));
        asks.park(ask(one, 0));
        assert!(asks.has_next(), "what does not wait has others");
    }
}
