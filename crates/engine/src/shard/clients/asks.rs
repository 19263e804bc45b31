//! What other shards ask for sessions that have their home here, until it may begin.
//!
//! A shard's own clients leave what does not fit in their rings. What other shards took from rings
//! comes whether there is room or not. So there is a bound on how many of them run, of each kind;
//! the others wait here for their turns, or for their deadlines. Each user leaves some of the room
//! that there is, so no user keeps the others out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use piped_core::ids::{QueueId, SessionId};
use piped_core::request::{Request, Verb};
use piped_core::units::Nanos;
use piped_report::tally::Operation;

/// A request by the shard whose queue it came by, and its number there.
pub(in crate::shard) type Asked = (u16, u64);

/// What requests are bounded together, because they wait for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum AskKind {
    /// Bytes are moved, which takes a device or a peer.
    Moves,
    /// A message waits for its receiver.
    Sends,
    /// A receive or a wait, whose other end may never come: these do not wait here for a turn.
    Waits,
}

impl AskKind {
    const COUNT: usize = 3;

    /// The kind of a request.
    pub(in crate::shard) const fn of(verb: Verb) -> Self {
        match verb {
            Verb::Receive { .. } | Verb::Wait { .. } => Self::Waits,
            Verb::Send { .. } => Self::Sends,
            _ => Self::Moves,
        }
    }

    /// The kind of what a request became.
    pub(in crate::shard) const fn of_operation(operation: Operation) -> Self {
        match operation {
            Operation::Receive | Operation::Wait => Self::Waits,
            Operation::Send => Self::Sends,
            _ => Self::Moves,
        }
    }
}

/// A request of a queue of another shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Ask {
    asked: Asked,
    session: SessionId,
    queue: QueueId,
    request: Request,
    /// When it came: its deadline runs from there.
    came: Nanos,
    /// When it ends if it has not begun.
    until: Nanos,
}

impl Ask {
    pub(in crate::shard) const fn new(
        asked: Asked,
        (session, queue): (SessionId, QueueId),
        request: Request,
        (came, until): (Nanos, Nanos),
    ) -> Self {
        Self { asked, session, queue, request, came, until }
    }

    /// What it was made of, without its deadline.
    pub(in crate::shard) const fn into_parts(
        self,
    ) -> (Asked, (SessionId, QueueId), Request, Nanos) {
        (self.asked, (self.session, self.queue), self.request, self.came)
    }
}

/// What a session has of this.
#[derive(Debug)]
struct Of {
    user: u32,
    /// Requests that have not begun, by kind; each has a place at the shard that asks.
    parked: [VecDeque<Ask>; AskKind::COUNT],
    running: [u32; AskKind::COUNT],
}

/// All that other shards ask of this one.
#[derive(Debug)]
pub(in crate::shard) struct Asks {
    sessions: BTreeMap<SessionId, Of>,
    /// Deadlines of what has not begun.
    deadlines: BTreeSet<(Nanos, Asked)>,
    running: [u32; AskKind::COUNT],
    /// What users have of that; who has none is left out.
    users: BTreeMap<u32, [u32; AskKind::COUNT]>,
    /// The session whose request was the last to begin.
    last: SessionId,
    /// The most of each kind that run.
    most: u32,
}

impl Asks {
    /// Room for so many of each kind to run.
    pub(in crate::shard) fn new(most: u32) -> Self {
        Self {
            sessions: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            running: [0; AskKind::COUNT],
            users: BTreeMap::new(),
            last: SessionId(0),
            most: most.max(4),
        }
    }

    /// Whether a session of a user may have one more.
    fn has_room(&self, kind: AskKind, user: u32, of_session: u32) -> bool {
        let at = kind as usize;
        let left = self.most - self.running[at].min(self.most);
        let of_user = self.users.get(&user).map_or(0, |of| of[at]);
        // As many as a user has, it leaves a seventh of: so there is room for a user more.
        of_session < self.most / 4 && 7 * left > of_user
    }

    /// One more is to begin when it may: at once, or when its turn comes. `false`: it waits for
    /// neither, and there is no room.
    pub(in crate::shard) fn enter(&mut self, ask: Ask, user: u32) -> bool {
        let kind = AskKind::of(ask.request.verb);
        let of = self.sessions.get(&ask.session);
        let (parked, running) =
            of.map_or((0, 0), |of| (of.parked[kind as usize].len(), of.running[kind as usize]));
        let waits = kind != AskKind::Waits && !ask.request.no_wait;
        if !waits && (parked > 0 || !self.has_room(kind, user, running)) {
            return false;
        }
        let fresh = || Of { user, parked: Default::default(), running: [0; AskKind::COUNT] };
        let of = self.sessions.entry(ask.session).or_insert_with(fresh);
        of.parked[kind as usize].push_back(ask);
        self.deadlines.insert((ask.until, ask.asked));
        true
    }

    fn next(&self) -> Option<(SessionId, usize)> {
        // Each turn asks: what runs is not looked at if nothing waits.
        if self.deadlines.is_empty() {
            return None;
        }
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let mut turns = self.sessions.range(behind).chain(self.sessions.range(..=self.last));
        turns.find_map(|(session, of)| {
            let may = |kind: &AskKind| {
                let at = *kind as usize;
                !of.parked[at].is_empty() && self.has_room(*kind, of.user, of.running[at])
            };
            let kinds = [AskKind::Waits, AskKind::Sends, AskKind::Moves];
            kinds.into_iter().find(may).map(|kind| (*session, kind as usize))
        })
    }

    /// Whether one may begin.
    pub(in crate::shard) fn has_next(&self) -> bool {
        self.next().is_some()
    }

    /// The next one that begins: sessions take turns.
    pub(in crate::shard) fn pop(&mut self) -> Option<Ask> {
        let (session, kind) = self.next()?;
        let of = self.sessions.get_mut(&session)?;
        let ask = of.parked[kind].pop_front()?;
        of.running[kind] += 1;
        self.users.entry(of.user).or_default()[kind] += 1;
        self.running[kind] += 1;
        self.deadlines.remove(&(ask.until, ask.asked));
        self.last = session;
        Some(ask)
    }

    /// One that began is over, or its client was told so: it has no place any more.
    pub(in crate::shard) fn end(&mut self, session: SessionId, kind: AskKind) {
        let Some(of) = self.sessions.get_mut(&session) else { return };
        let (at, user) = (kind as usize, of.user);
        debug_assert!(of.running[at] > 0, "it ends once");
        of.running[at] -= 1;
        self.running[at] -= 1;
        if let Some(of) = self.users.get_mut(&user) {
            of[at] -= 1;
            if *of == [0; AskKind::COUNT] {
                self.users.remove(&user);
            }
        }
        self.leave(session);
    }

    /// Forgets a session that has nothing here.
    fn leave(&mut self, session: SessionId) {
        let is_empty =
            |of: &Of| of.running == [0; AskKind::COUNT] && of.parked.iter().all(VecDeque::is_empty);
        if self.sessions.get(&session).is_some_and(is_empty) {
            self.sessions.remove(&session);
        }
    }

    /// Takes out one that has not begun, because it is given up.
    pub(in crate::shard) fn recall(&mut self, asked: Asked) -> Option<Ask> {
        let is_it = |ask: &Ask| ask.asked == asked;
        let mut parked = self.sessions.values_mut().flat_map(|of| &mut of.parked);
        let ask = parked.find_map(|all| all.remove(all.iter().position(is_it)?))?;
        self.deadlines.remove(&(ask.until, ask.asked));
        self.leave(ask.session);
        Some(ask)
    }

    /// The next deadline of what has not begun.
    pub(in crate::shard) fn next_due(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Takes out one that has not begun by its deadline.
    pub(in crate::shard) fn take_due(&mut self, now: Nanos) -> Option<Ask> {
        let (_, asked) = *self.deadlines.first().filter(|(until, _)| *until <= now)?;
        self.recall(asked)
    }

    /// A session closes: what has not begun does not.
    pub(in crate::shard) fn forget(&mut self, session: SessionId) {
        let Some(of) = self.sessions.get_mut(&session) else { return };
        for ask in of.parked.iter_mut().flat_map(std::mem::take) {
            self.deadlines.remove(&(ask.until, ask.asked));
        }
        self.leave(session);
    }

    /// Receives and waits of a session that run.
    pub(in crate::shard) fn waits_of(&self, session: SessionId) -> u32 {
        self.sessions.get(&session).map_or(0, |of| of.running[AskKind::Waits as usize])
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::HandleId;
    use piped_core::request::{ArenaBuffer, Class};

    use super::*;

    const HANDLE: HandleId = HandleId(1);
    const BUFFER: ArenaBuffer = ArenaBuffer { segment: 0, offset: 0, length: 1 };
    const RECEIVE: Verb = Verb::Receive { handle: HANDLE, tag: None, buffer: BUFFER };
    const SEND: Verb = Verb::Send { handle: HANDLE, tag: 0, buffer: BUFFER };
    const SYNC: Verb = Verb::Sync { handle: HANDLE };

    fn ask_for(verb: Verb, session: u32, asked: u64, no_wait: bool) -> Ask {
        let request = Request { verb, class: Class::Bulk, deadline: None, no_wait, fence: false };
        let times = (Nanos::ZERO, Nanos(1000 + asked));
        Ask::new((1, asked), (SessionId(session), QueueId(0)), request, times)
    }

    fn ask(session: u32, asked: u64) -> Ask {
        ask_for(SYNC, session, asked, false)
    }

    fn begun(asks: &mut Asks) -> usize {
        std::iter::from_fn(|| asks.pop()).count()
    }

    #[test]
    fn a_session_has_a_quarter_and_all_of_a_user_leave_room_for_another_one() {
        let mut asks = Asks::new(64);
        for session in 1..40 {
            assert!((0..100).all(|it| asks.enter(ask(session, 1000 * u64::from(session) + it), 7)));
        }
        let of_user = begun(&mut asks);
        assert!((50..60).contains(&of_user), "{of_user}");
        assert!(asks.sessions.values().all(|of| of.running[0] <= 16));
        assert!(asks.enter(ask(99, 5), 8));
        assert_eq!(asks.pop(), Some(ask(99, 5)), "of another user");
        assert_eq!(asks.pop(), None);
        asks.end(SessionId(99), AskKind::Moves);
        assert_eq!(asks.users.keys().collect::<Vec<_>>(), [&7]);
        // A session's own begin in their order.
        let mut asks = Asks::new(4);
        (0..3).for_each(|number| assert!(asks.enter(ask(1, number), 7)));
        assert_eq!(asks.pop(), Some(ask(1, 0)));
        assert!(!asks.has_next());
        asks.end(SessionId(1), AskKind::Moves);
        assert_eq!(asks.pop(), Some(ask(1, 1)));
    }

    #[test]
    fn what_does_not_wait_or_waits_for_others_is_refused_where_there_is_no_room() {
        let mut asks = Asks::new(8);
        let enter = |asks: &mut Asks, verb, no_wait, numbers: std::ops::Range<u64>| {
            let entered =
                numbers.filter(|it| asks.enter(ask_for(verb, 1, *it, no_wait), 7)).count();
            (entered, begun(asks))
        };
        // What comes at once is parked once for all.
        assert_eq!(enter(&mut asks, RECEIVE, false, 0..1), (1, 1));
        assert_eq!(enter(&mut asks, RECEIVE, false, 1..2), (1, 1));
        assert_eq!(enter(&mut asks, RECEIVE, false, 2..3), (0, 0));
        assert_eq!(asks.waits_of(SessionId(1)), 2);
        // Neither keeps the others.
        assert_eq!(enter(&mut asks, SEND, false, 10..20), (10, 2));
        assert_eq!(enter(&mut asks, SYNC, false, 20..21), (1, 1));
        assert_eq!(enter(&mut asks, SYNC, true, 21..22), (1, 1));
        assert_eq!(enter(&mut asks, SYNC, true, 22..23), (0, 0));
        asks.end(SessionId(1), AskKind::Waits);
        assert_eq!(enter(&mut asks, RECEIVE, false, 23..24), (1, 1));
    }

    #[test]
    fn what_is_given_up_late_or_of_a_session_that_closes_does_not_begin_and_leaves_nothing() {
        let mut asks = Asks::new(4);
        (0..5).for_each(|number| assert!(asks.enter(ask(1, number), 7)));
        assert_eq!(asks.recall((1, 1)), Some(ask(1, 1)));
        assert_eq!((asks.recall((1, 1)), asks.recall((2, 2))), (None, None));
        assert_eq!(asks.pop(), Some(ask(1, 0)));
        assert_eq!(asks.next_due(), Some(Nanos(1002)));
        assert_eq!(asks.take_due(Nanos(1001)), None);
        assert_eq!(asks.take_due(Nanos(1002)), Some(ask(1, 2)));
        asks.forget(SessionId(1));
        assert_eq!((asks.pop(), asks.next_due()), (None, None));
        asks.end(SessionId(1), AskKind::Moves);
        assert!(asks.sessions.is_empty() && asks.users.is_empty());
        assert!(asks.enter(ask(2, 9), 7) && asks.recall((1, 9)).is_some());
        assert!(asks.sessions.is_empty());
    }
}
