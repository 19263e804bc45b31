//! The clients of one shard: their queues, doorbells and segments.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use piped_core::ids::{QueueId, RegionId, SegmentId, SessionId};
use piped_core::io::{Io, Resource};
use piped_core::request::{Class, Completion, Progress};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Limits;
use piped_ring::{
    ClientFault, CompletionEntry, CompletionKind, Descriptor, Opcode, Segment, ServerQueue,
};

use super::attention::{Attention, Leisure};
use super::message::Refusal;
use crate::client::completion;
use crate::io::{UringError, UringIo, WatchId};
use crate::limits::{
    REQUESTS_MAX, REQUESTS_PER_QUEUE, REQUESTS_PER_TURN, WAITS_MAX, WAITS_OF_USER,
};
use crate::open::RegionSource;

/// One queue of a client.
#[derive(Debug)]
struct Queue {
    ring: ServerQueue,
    session: SessionId,
    class: Class,
    watch: WatchId,
    /// Whether its next request waits, because the client has left too many completions.
    stalled: bool,
    leisure: Leisure,
}

/// Requests in execution for a user. Receives and waits depend on others to end, so they have
/// places of their own and block nobody's requests.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    requests: u64,
    waits: u64,
}

#[derive(Debug)]
struct Session {
    /// User of the session, because bounds are a user's, however many sessions it has.
    user: u32,
    class: Class,
    /// Requests in execution, as of the last tally and the requests taken since.
    requests: u64,
    /// Places of its queues in the table. Kept until the session has drained, so that a late
    /// completion cannot reach another queue at that place.
    queues: Vec<QueueId>,
    /// Segments by the client's numbers; a hole is free.
    segments: Vec<Option<SegmentId>>,
    closing: bool,
}

/// A descriptor that was taken, with its session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) session: SessionId,
    pub(super) queue: QueueId,
    pub(super) class: Class,
    pub(super) descriptor: Descriptor,
}

/// All clients of the shard.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    sessions: HashMap<SessionId, Session>,
    /// Queues by [`QueueId`]; a hole is free, or waits for its session to drain.
    queues: Vec<Option<Queue>>,
    free: Vec<QueueId>,
    /// Queues that are served, as far as turns look at them.
    attention: Attention,
    /// Requests taken without a posted end, with receives and waits.
    in_execution: u32,
    /// Whether a bound may be reached in this turn. If not, nothing is counted.
    binds: bool,
    /// Number of receives and waits among them.
    waiting: u32,
    users: HashMap<u32, Load>,
    /// Bounds of requests for all sessions, and for one.
    requests_max: u32,
    requests_of_session: u64,
    /// Memory of regions with an owner on another shard.
    foreign: HashMap<RegionId, SegmentId>,
    pub(super) taken: u64,
    /// Times that a client's requests began to wait for its own reaping.
    pub(super) stalls: u64,
    pub(super) doorbells: u64,
}

impl Sessions {
    /// No sessions yet, on a thread that spins so long in nanoseconds.
    pub(super) fn new(spin_ns: u64) -> Self {
        Self { attention: Attention::new(spin_ns), ..Self::default() }
    }

    /// Sets the limits; further requests wait in the clients' rings.
    pub(super) fn set_limits(&mut self, limits: &Limits) {
        self.requests_max = limits.requests.min(REQUESTS_MAX);
        self.requests_of_session = limits.client.requests.into();
    }

    /// Most requests of one session now. Once half of all places are taken it is an eighth, because
    /// a client with requests that never end must not stop the others.
    fn session_max(&self) -> u64 {
        let all = self.requests_max;
        let share = if self.executing() > all / 2 { (all / 8).max(1) } else { all };
        self.requests_of_session.min(share.into())
    }

    /// Requests with places among [`REQUESTS_MAX`].
    fn executing(&self) -> u32 {
        self.in_execution.saturating_sub(self.waiting)
    }

    /// Number of further requests that a session may have. All sessions of its user stay within
    /// seven times what is left: one user leaves an eighth to others, two leave a fifteenth.
    fn room_of(&self, id: SessionId) -> u64 {
        let Some(session) = self.sessions.get(&id) else { return 0 };
        let left = u64::from(self.requests_max.saturating_sub(self.executing()));
        let of_user = self.users.get(&session.user).map_or(0, |load| load.requests);
        let of_session = self.session_max().saturating_sub(session.requests);
        of_session.min((7 * left).saturating_sub(of_user).div_ceil(8))
    }

    /// Number of further receives and waits that a session's user may have.
    fn waits_left_of(&self, id: SessionId) -> u64 {
        let user = self.sessions.get(&id).and_then(|session| self.users.get(&session.user));
        let of_user = user.map_or(0, |load| load.waits);
        let left = u64::from(WAITS_MAX.saturating_sub(self.waiting));
        left.min(u64::from(WAITS_OF_USER).saturating_sub(of_user))
    }

    /// Counts requests in execution for each user, before [`Self::take`] and
    /// [`Self::prepare_sleep`]. `waits` gives a session's receives and waits, as the engine counts
    /// them.
    pub(super) fn tally(&mut self, waits: impl Fn(SessionId) -> u32) {
        // Skip the walk over all queues while few requests cannot reach a bound.
        let least = self.requests_of_session.min(u64::from(self.requests_max / 4));
        let did = std::mem::replace(
            &mut self.binds,
            u64::from(self.in_execution + REQUESTS_PER_TURN) > least,
        );
        if !(did || self.binds) {
            return;
        }
        self.waiting = 0;
        self.users.clear();
        if !self.binds {
            return;
        }
        for (id, session) in self.sessions.iter_mut().filter(|(_, session)| !session.closing) {
            let queue = |at: &QueueId| self.queues.get(at.0 as usize).and_then(Option::as_ref);
            let own = session.queues.iter().filter_map(queue).filter(|queue| queue.session == *id);
            let outstanding: u64 = own.map(|queue| queue.ring.outstanding()).sum();
            let waits = u64::from(waits(*id)).min(outstanding);
            session.requests = outstanding - waits;
            let user = self.users.entry(session.user).or_default();
            user.requests += session.requests;
            user.waits += waits;
            self.waiting = self.waiting.saturating_add(u32::try_from(waits).unwrap_or(u32::MAX));
        }
    }

    /// Notes requests taken since the tally, with the receives and waits among them; they count as
    /// both until the next one.
    fn note_taken(&mut self, id: SessionId, taken: u32, waits: u64) {
        if !self.binds {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.requests += u64::from(taken);
        let user = self.users.entry(session.user).or_default();
        user.requests += u64::from(taken);
        user.waits += waits;
    }

    pub(super) fn open(&mut self, session: SessionId, user: u32, class: Class) {
        let value = Session {
            user,
            class,
            requests: 0,
            queues: Vec::new(),
            segments: Vec::new(),
            closing: false,
        };
        self.sessions.insert(session, value);
    }

    pub(super) fn add_segment(
        &mut self,
        id: SessionId,
        segment: Arc<Segment>,
        io: &mut UringIo,
    ) -> Result<SegmentId, Refusal> {
        let session = self.sessions.get_mut(&id).filter(|it| !it.closing).ok_or(Refusal::Gone)?;
        let segment = io.add_segment(segment)?;
        match session.segments.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(segment),
            None => session.segments.push(Some(segment)),
        }
        Ok(segment)
    }

    /// Frees the number of a segment that its client lends no longer.
    pub(super) fn remove_segment(&mut self, id: SessionId, number: u32) {
        let session = self.sessions.get_mut(&id);
        if let Some(place) = session.and_then(|it| it.segments.get_mut(number as usize)) {
            *place = None;
        }
    }

    pub(super) fn add_queue(
        &mut self,
        id: SessionId,
        ring: ServerQueue,
        io: &mut UringIo,
    ) -> Result<(), Refusal> {
        let session = self.sessions.get_mut(&id).filter(|it| !it.closing).ok_or(Refusal::Gone)?;
        let bell = ring.wake_fd().try_clone_to_owned().map_err(UringError::Setup)?;
        let watch = io.watch(bell)?;
        let (class, leisure) = (session.class, Leisure::default());
        let queue = Queue { ring, session: id, class, watch, stalled: false, leisure };
        let place = self.free.pop().unwrap_or_else(|| {
            self.queues.push(None);
            // Bounded by the driver's table of doorbells.
            QueueId(self.queues.len() as u32 - 1)
        });
        self.queues[place.0 as usize] = Some(queue);
        session.queues.push(place);
        self.attention.begin(place, watch);
        Ok(())
    }

    /// Stops serving a session. Its queues are gone at once; their places and its segments follow
    /// once the engine says that it has drained. `false` if there is no such session, or it is
    /// closing already.
    pub(super) fn close(&mut self, id: SessionId, io: &mut UringIo) -> bool {
        let Some(session) = self.sessions.get_mut(&id).filter(|it| !it.closing) else {
            return false;
        };
        session.closing = true;
        for place in &session.queues {
            if let Some(mut queue) = self.queues[place.0 as usize].take() {
                self.doorbells += u64::from(queue.ring.publish());
                self.attention.end(queue.watch);
                io.unwatch(queue.watch);
                // Nobody is left to be told of their end.
                let outstanding = u32::try_from(queue.ring.outstanding()).unwrap_or(u32::MAX);
                self.in_execution = self.in_execution.saturating_sub(outstanding);
            }
        }
        self.attention.keep(|place| self.queues[place.0 as usize].is_some());
        true
    }

    /// Forgets a session that the engine has drained, and gives its segments back to the driver.
    pub(super) fn forget(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            self.free.extend(session.queues);
        }
    }

    pub(super) fn is_open(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|session| !session.closing)
    }

    /// Whether a session is served or closing.
    pub(super) fn knows(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    pub(super) fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Driver's id for a region's memory.
    pub(super) fn segment_of(
        &mut self,
        source: &RegionSource,
        here: usize,
        io: &mut UringIo,
    ) -> Result<SegmentId, Refusal> {
        // Each shard that serves the owner has the memory as that of its arena.
        let owner = self.sessions.get(&source.owner).filter(|it| !it.closing);
        let own = owner.and_then(|it| it.segments.get(source.segment as usize)).copied().flatten();
        if own.is_some() || source.home == here {
            return own.ok_or(Refusal::Gone);
        }
        if let Some(segment) = self.foreign.get(&source.region) {
            return Ok(*segment);
        }
        let segment = io.add_segment(Arc::clone(&source.memory))?;
        self.foreign.insert(source.region, segment);
        Ok(segment)
    }

    /// Drops a region that was withdrawn and has no users left.
    pub(super) fn drop_foreign(&mut self, region: RegionId, io: &mut UringIo) {
        if let Some(segment) = self.foreign.remove(&region) {
            io.release(Resource::Segment(segment));
        }
    }

    /// Session of a queue.
    fn session_of(&self, id: QueueId) -> Option<SessionId> {
        self.queues.get(id.0 as usize)?.as_ref().map(|queue| queue.session)
    }

    /// Class of a session's requests, and how many of them are in execution.
    pub(super) fn use_of(&self, id: SessionId) -> Option<(Class, u64)> {
        let session = self.sessions.get(&id)?;
        let queue = |id: &QueueId| self.queues.get(id.0 as usize).and_then(Option::as_ref);
        let queues = session.queues.iter().filter_map(queue);
        let of = queues.filter(|queue| queue.session == id);
        Some((session.class, of.map(|queue| queue.ring.outstanding()).sum()))
    }

    /// A bell has rung: if its queue rests, it is looked at again.
    pub(super) fn handle_bell(&mut self, bell: WatchId) {
        if let Some(queue) = self.attention.of_bell(bell) {
            self.end_rest(queue);
        }
    }

    /// Looks at a queue again, if it rests.
    fn end_rest(&mut self, id: QueueId) {
        let Some(Some(queue)) = self.queues.get_mut(id.0 as usize) else { return };
        if std::mem::take(&mut queue.leisure) == Leisure::Rests {
            queue.ring.finish_sleep();
            self.attention.add(id);
        }
    }

    /// Hands at most a turn's worth of descriptors to `sink`, a few from each queue. The next turn
    /// goes on where this one stopped. Errors are clients to be evicted. Queues that have had
    /// nothing for a while rest from then on.
    pub(super) fn take(
        &mut self,
        now: Nanos,
        mut sink: impl FnMut(Taken) -> Option<CompletionEntry>,
        mut evict: impl FnMut(SessionId, ClientFault),
    ) -> u32 {
        let budget = REQUESTS_PER_TURN.min(self.requests_max.saturating_sub(self.executing()));
        let mut left = budget;
        let mut next = self.attention.start();
        let mut some_rest = false;
        for _ in 0..self.attention.live().len() {
            if left == 0 {
                break;
            }
            let live = self.attention.live();
            let at = if next < live.len() { next } else { 0 };
            next = at + 1;
            let id = live[at];
            let Some(Some(queue)) = self.queues.get_mut(id.0 as usize) else { continue };
            if queue.ring.looks_empty() {
                queue.stalled = false;
                // If something has come since that look, it is taken in the next turn.
                if self.attention.note_empty(&mut queue.leisure, now) && queue.ring.prepare_sleep()
                {
                    queue.leisure = Leisure::Rests;
                    some_rest = true;
                }
                continue;
            }
            queue.leisure = Leisure::None;
            let session = queue.session;
            let mut share = left.min(REQUESTS_PER_QUEUE);
            let mut waits_left = u64::MAX;
            if self.binds {
                share = share.min(u32::try_from(self.room_of(session)).unwrap_or(u32::MAX));
                waits_left = self.waits_left_of(session);
            }
            // Again, because the bounds above look at all sessions.
            let Some(queue) = &mut self.queues[id.0 as usize] else { continue };
            let (mut count, mut waits) = (0, 0);
            while count < share {
                match queue.ring.take() {
                    Ok(Some(descriptor)) => {
                        let opcode = Opcode::from_u8(descriptor.opcode);
                        let is_wait = matches!(opcode, Some(Opcode::Recv | Opcode::Wait));
                        let user_data = descriptor.user_data;
                        let class = queue.class;
                        count += 1;
                        self.in_execution += 1;
                        let ended = if is_wait && waits >= waits_left {
                            Some(CompletionEntry::finished(user_data, Status::WouldBlock, 0))
                        } else {
                            waits += u64::from(is_wait);
                            sink(Taken { session, queue: id, class, descriptor })
                        };
                        if let Some(entry) = ended {
                            self.in_execution -= 1;
                            // `take` has made sure that there is room.
                            let _ = queue.ring.post(entry);
                        }
                    }
                    Ok(None) => {
                        let stalls = queue.ring.is_stalled();
                        self.stalls += u64::from(stalls && !queue.stalled);
                        queue.stalled = stalls;
                        break;
                    }
                    Err(fault) => {
                        evict(queue.session, fault);
                        break;
                    }
                }
            }
            left -= count;
            if count > 0 {
                self.attention.start_behind(at);
                self.note_taken(session, count, waits);
            }
        }
        if some_rest {
            let rests = |id: QueueId| self.queues[id.0 as usize].as_ref().map(|it| it.leisure);
            self.attention.keep(|id| rests(id) != Some(Leisure::Rests));
        }
        self.taken += u64::from(budget - left);
        budget - left
    }

    /// Posts a completion. `Some` if the client has made its ring unusable and must be evicted.
    pub(super) fn complete(&mut self, completion: Completion) -> Option<SessionId> {
        let (origin, entry) = completion::entry(completion);
        let queue = self.queues.get_mut(origin.queue.0 as usize)?.as_mut()?;
        if queue.session != origin.session {
            return None;
        }
        if entry.kind != CompletionKind::Released as u8 {
            self.in_execution = self.in_execution.saturating_sub(1);
        }
        let lost = queue.ring.post(entry).err().map(|_| origin.session);
        // It has to be published, and its client may ask again at once.
        self.end_rest(origin.queue);
        lost
    }

    pub(super) fn set_progress(&mut self, progress: Progress) {
        let origin = progress.origin;
        if let Some(Some(queue)) = self.queues.get(origin.queue.0 as usize)
            && queue.session == origin.session
        {
            let (from, to) = progress.landed;
            queue.ring.set_landed(origin.slot, from..to);
            queue.ring.set_progress(origin.slot, progress.bytes);
        }
    }

    /// Publishes posted completions to the clients, and wakes those that sleep. Returns whether
    /// there were any.
    pub(super) fn publish(&mut self) -> bool {
        let before = self.doorbells;
        for id in self.attention.live() {
            if let Some(queue) = &mut self.queues[id.0 as usize] {
                self.doorbells += u64::from(queue.ring.publish());
            }
        }
        self.doorbells > before
    }

    /// Tells all clients to ring that need not yet. `false` if one has work already; call
    /// [`Sessions::finish_sleep`] either way.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        // Without room for requests only completions help (or new limits, which come by mail), and
        // both wake the thread by themselves.
        let full = self.executing() >= self.requests_max;
        (0..self.attention.live().len()).all(|at| {
            let id = self.attention.live()[at];
            let session = self.session_of(id).filter(|_| self.binds);
            let full = full || session.is_some_and(|session| self.room_of(session) == 0);
            let queue = self.queues[id.0 as usize].as_mut();
            queue.is_none_or(|queue| queue.ring.prepare_sleep() || full)
        })
    }

    pub(super) fn finish_sleep(&mut self) {
        for id in self.attention.live() {
            if let Some(queue) = &mut self.queues[id.0 as usize] {
                queue.ring.finish_sleep();
            }
        }
    }
}
