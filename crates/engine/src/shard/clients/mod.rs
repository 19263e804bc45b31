//! The clients of a shard: the memory and the share of each, and how its requests stand.
//!
//! A request of a client stands in three lines: it waits for a limit ([`admission`]), it has its
//! place among what its queue has asked of a node ([`order`]), and it counts at its session until
//! it is over, so that a session's memory is given back when nothing uses it any more.

mod admission;
mod asks;
mod away;
mod handles;
mod leaving;
mod order;
mod replicas;

use std::collections::{BTreeMap, BTreeSet};

use piped_core::ids::{SegmentId, SessionId};
use piped_core::limits;
use piped_core::request::ArenaBuffer;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::shard::{Gauge, PartyUse, SessionUse};

use self::admission::Turns;
use self::leaving::Leaving;
use self::order::{Course, Order};
use super::account::{Account, Admission};
use super::arena::Memory;
use super::keys::kind;
use super::rate::Throttle;
use super::slab::Beside;

pub(super) use self::admission::{InUse, weight};
pub(super) use self::asks::{Ask, AskKind, Asks};
pub(super) use self::away::Away;
pub(super) use self::handles::{HandleKind, Handles, Place, RemoteHandle, access_of};
pub(super) use self::order::Line;
pub(super) use self::replicas::{Brought, May, Replicas, Share, Shares};

/// A client's connection to the daemon, as this shard sees it.
#[derive(Debug)]
struct Session {
    /// The arena, by the client's segment numbers; a hole is free.
    segments: Vec<Option<(SegmentId, u64)>>,
    /// Its share beside the others of a class.
    weight: u8,
    /// The shard that has what has one place only.
    home: u16,
    /// The user that the client is of.
    user: u32,
    /// Transfers that still use its memory.
    transfers: u32,
    used: Used,
    holdings: Holdings,
    /// Its requests in execution, and those that wait for a limit.
    account: Account<kind::Transfer>,
    /// Its receives and waits that have not ended. They wait for others, so they have no place
    /// among its requests.
    waits: u32,
    /// What its queues have asked of each node.
    orders: BTreeMap<Course, Order>,
}

/// What a client has of what all share.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// Staging of its copies, in bytes asked for.
    pub(super) copy_bytes: u64,
    /// Staging of its copies, as it is taken.
    pub(super) staging: Gauge,
    /// Staging of its calls, in bytes.
    call_bytes: u64,
}

/// What a client's requests came to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) bytes: u64,
}

/// How a request of a client stands.
#[derive(Debug)]
struct Standing {
    session: SessionId,
    admission: Admission,
    /// Its place among the requests of its queue.
    course: Option<Course>,
    /// The request is among those of its course that wait for another one.
    waits_in_order: bool,
}

impl Standing {
    const fn of(session: SessionId) -> Self {
        Self { session, admission: Admission::Free, course: None, waits_in_order: false }
    }
}

impl Default for Standing {
    fn default() -> Self {
        Self::of(SessionId(0))
    }
}

impl Session {
    /// Segments of the arena; of one that closes, with those that left it.
    fn all_segments(&self) -> impl Iterator<Item = SegmentId> {
        self.segments.iter().flatten().map(|&(segment, _)| segment)
    }
}

/// All clients of a shard.
#[derive(Debug)]
pub(super) struct Clients {
    sessions: BTreeMap<SessionId, Session>,
    /// Sessions that close. There are few, and they are looked for when a request of a peer ends.
    closing: BTreeSet<SessionId>,
    /// Segments without a number, as long as something uses them and their session is open.
    leaving: Leaving,
    standings: Beside<kind::Transfer, Standing>,
    /// What all have in execution, and who is to get more of it next.
    all: Turns,
    /// Receives and waits of all.
    waits: u32,
}

impl Clients {
    /// Room for so many transfers.
    pub(super) fn new(transfers: u32) -> Self {
        Self {
            sessions: BTreeMap::new(),
            closing: BTreeSet::new(),
            leaving: Leaving::default(),
            standings: Beside::with_capacity(transfers),
            all: Turns::default(),
            waits: 0,
        }
    }

    /// A client has connected.
    pub(super) fn open(&mut self, session: SessionId, weight: u8, (home, user): (u16, u32)) {
        let value = Session {
            segments: Vec::new(),
            weight: weight.max(1),
            home,
            user,
            transfers: 0,
            used: Used::default(),
            holdings: Holdings::default(),
            account: Account::default(),
            waits: 0,
            orders: BTreeMap::new(),
        };
        self.sessions.insert(session, value);
    }

    /// A client's arena has one more segment, of so many bytes, under the lowest free number.
    pub(super) fn add_segment(&mut self, session: SessionId, segment: SegmentId, length: u64) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        match session.segments.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some((segment, length)),
            None => session.segments.push(Some((segment, length))),
        }
    }

    /// A client's segment has no number any more: nothing names it from now on. What uses it is to
    /// be counted next.
    pub(super) fn remove_segment(&mut self, session: SessionId, number: u32) -> Option<SegmentId> {
        if self.closing.contains(&session) {
            return None;
        }
        let session = self.sessions.get_mut(&session)?;
        session.segments.get_mut(number as usize)?.take().map(|(segment, _)| segment)
    }

    /// So many still use a segment without a number. Whether it is to be released: those were none.
    pub(super) fn count_uses(&mut self, session: SessionId, segment: SegmentId, uses: u32) -> bool {
        self.leaving.count(session, segment, uses)
    }

    /// A user of a segment has ended. The segment's session, if it is time to count again.
    pub(super) fn end_use(&mut self, segment: SegmentId) -> Option<SessionId> {
        self.leaving.end_use(segment)
    }

    /// The segments without a number among those that `each` is given.
    pub(super) fn leaving_of(
        &self,
        each: impl FnOnce(&mut dyn FnMut(SegmentId)),
    ) -> Vec<SegmentId> {
        let mut found = Vec::new();
        if !self.leaving.is_empty() {
            each(&mut |segment| {
                found.extend(self.leaving.session_of(segment).map(|_| segment));
            });
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    /// A client goes: it asks nothing any more. The segments of its arena.
    pub(super) fn close(&mut self, session: SessionId) -> Option<Vec<SegmentId>> {
        let state = self.sessions.get_mut(&session)?;
        self.closing.insert(session);
        // They go with the others, and nothing lies in them.
        state.segments.extend(self.leaving.take_of(session).map(|segment| Some((segment, 0))));
        Some(state.all_segments().collect())
    }

    /// Forgets a client that goes, once nothing uses its memory; `is_served`: a peer's request uses
    /// a segment. The segments that are to be released.
    pub(super) fn drain(
        &mut self,
        session: SessionId,
        is_served: impl Fn(SegmentId) -> bool,
    ) -> Option<Vec<SegmentId>> {
        let state = self.sessions.get(&session).filter(|_| self.closing.contains(&session))?;
        if state.transfers > 0 || state.all_segments().any(is_served) {
            return None;
        }
        self.closing.remove(&session);
        Some(self.sessions.remove(&session)?.all_segments().collect())
    }

    /// The client that goes and whose memory a segment is, which something may still use.
    pub(super) fn closing_with(&self, segment: SegmentId) -> Option<SessionId> {
        let has = |state: &Session| state.all_segments().any(|id| id == segment);
        let mut closing = self.closing.iter();
        closing.find(|id| self.sessions.get(id).is_some_and(has)).copied()
    }

    /// Whether a session is there, be it that it closes.
    pub(super) fn has(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// How many sessions there are.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Bytes of staging that the calls of a client have.
    pub(super) fn call_bytes(&self, session: SessionId) -> u64 {
        self.sessions.get(&session).map_or(0, |session| session.holdings.call_bytes)
    }

    /// A client has one more call that takes staging, or (`false`) one less.
    pub(super) fn count_call(&mut self, session: SessionId, begins: bool) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let bytes = u64::from(limits::CELL_BYTES);
        match begins {
            true => session.holdings.call_bytes += bytes,
            false => session.holdings.call_bytes -= bytes,
        }
    }

    /// Whether a client may ask for something.
    pub(super) fn may_ask(&self, session: SessionId) -> Result<(), Status> {
        let open = self.sessions.contains_key(&session) && !self.closing.contains(&session);
        open.then_some(()).ok_or(Status::Closed)
    }

    /// Whether a segment is of a session's arena.
    pub(super) fn owns(&self, session: SessionId, segment: SegmentId) -> bool {
        self.sessions.get(&session).is_some_and(|it| it.all_segments().any(|id| id == segment))
            || self.leaving.session_of(segment) == Some(session)
    }

    /// The memory of a client's buffer.
    pub(super) fn memory_of(
        &self,
        session: SessionId,
        buffer: ArenaBuffer,
    ) -> Result<Memory, Status> {
        let session = self.sessions.get(&session).ok_or(Status::Closed)?;
        let number = buffer.segment as usize;
        let (segment, length) =
            session.segments.get(number).copied().flatten().ok_or(Status::BadBuffer)?;
        let end = buffer.offset.checked_add(buffer.length).ok_or(Status::BadBuffer)?;
        if end > length {
            return Err(Status::BadBuffer);
        }
        if buffer.length == 0 || buffer.length > limits::REQUEST_BYTES_MAX {
            return Err(Status::Invalid);
        }
        Ok(Memory { segment, offset: buffer.offset })
    }

    /// A client's share beside the others of a class.
    pub(super) fn weight(&self, session: SessionId) -> u8 {
        self.sessions.get(&session).map_or(1, |session| session.weight)
    }

    /// The shard that has what of a session has one place only.
    pub(super) fn home(&self, session: SessionId) -> Option<u16> {
        self.sessions.get(&session).map(|session| session.home)
    }

    /// The user of a client; of one that is not there, nobody's.
    pub(super) fn user(&self, session: SessionId) -> u32 {
        self.sessions.get(&session).map_or(u32::MAX, |session| session.user)
    }

    /// What a client has of what all share.
    pub(super) fn holdings(&mut self, session: SessionId) -> Option<&mut Holdings> {
        self.sessions.get_mut(&session).map(|session| &mut session.holdings)
    }

    /// What a client may move in a second.
    pub(super) fn throttle(&mut self, session: SessionId) -> Option<&mut Throttle> {
        self.sessions.get_mut(&session).map(|session| &mut session.account.throttle)
    }

    /// Another rate, in bytes a second, for what clients owe as well.
    pub(super) fn change_rate(&mut self, old: u64, new: u64, now: Nanos) {
        for session in self.sessions.values_mut() {
            session.account.throttle.rescale(old, new, now);
        }
    }

    /// A transfer begins that uses a session's memory. `waits`: for what others do.
    pub(super) fn enter(&mut self, key: super::keys::TransferKey, session: SessionId, waits: bool) {
        *self.standings.of_new(key) = Standing::of(session);
        self.waits += u32::from(waits);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.transfers += 1;
            session.waits += u32::from(waits);
        }
    }

    /// A transfer of a session is over; `used`: what it came to, unless it was a part of another.
    /// Whether it was the last that used the session's memory.
    pub(super) fn leave(&mut self, session: SessionId, waits: bool, used: Option<Used>) -> bool {
        self.waits -= u32::from(waits);
        let Some(session) = self.sessions.get_mut(&session) else { return false };
        session.transfers -= 1;
        session.waits -= u32::from(waits);
        if let Some(used) = used {
            session.used.completed += used.completed;
            session.used.failed += used.failed;
            session.used.bytes += used.bytes;
        }
        session.transfers == 0
    }

    /// Receives and waits of a session that have not ended.
    pub(super) fn waits_of(&self, session: SessionId) -> u32 {
        self.sessions.get(&session).map_or(0, |session| session.waits)
    }

    /// Receives and waits of all sessions that have not ended.
    pub(super) fn waits(&self) -> u32 {
        self.waits
    }

    /// What each client has of what is limited; `early`: of early-arrival memory.
    pub(super) fn parties(
        &self,
        early: impl Fn(SessionId) -> Gauge,
    ) -> impl Iterator<Item = PartyUse> {
        self.sessions.iter().map(move |(id, session)| PartyUse {
            staging: session.holdings.staging,
            early_arrival: early(*id),
            ..session.account.report(id.0.to_string())
        })
    }

    /// What each session has used, with the bytes that `running` says of what is not over.
    pub(super) fn report(&self, running: impl Fn(SessionId) -> u64) -> Vec<SessionUse> {
        let report = |(&session, state): (&SessionId, &Session)| SessionUse {
            session,
            transfers: state.transfers,
            completed: state.used.completed,
            failed: state.used.failed,
            bytes: state.used.bytes + running(session),
        };
        self.sessions.iter().map(report).collect()
    }
}
