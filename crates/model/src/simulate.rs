//! A path at work, event by event.
//!
//! The second opinion to [`crate::evaluate`], which knows nothing of recurrences: there are servers
//! that are free or not, fragments that wait, bytes that have arrived, room that is taken, and a
//! heap of what happens next. The two agree to 1e-9 with latencies, windows and buffers and without
//! (a property test), so that a mistake would have to be made twice. It is slower, and tells when
//! each fragment was where, for those who draw it.

use core::cmp::Ordering;
use core::fmt;
use core::num::NonZeroU32;
use std::collections::{BinaryHeap, VecDeque};

use crate::room::Room;
use crate::servers::Servers;
use crate::stage::{Buffers, StageCost};

/// A fragment at a stage; times in seconds from the start of the transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Visit {
    /// The stage, by index.
    pub stage: usize,
    /// The fragment among those of the stage, by index.
    pub fragment: usize,
    /// Length of the fragment in bytes.
    pub bytes: u64,
    /// The time at which the stage began to serve the fragment.
    pub started: f64,
    /// The time at which the fragment left the server: served, and with room for it behind.
    pub left: f64,
    /// The time at which the fragment was behind the stage: `L` after it left.
    pub departed: f64,
}

/// What happened, event by event.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// When the last fragment departed from the last stage, in seconds.
    pub seconds: f64,
    /// Every fragment at every stage, in the order in which they left the servers.
    pub visits: Vec<Visit>,
}

/// Nothing happens any more and not all is done: a buffer is too small to put a fragment together,
/// or lists do not carry the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    /// The first stage that is not done.
    pub stage: usize,
    /// How many of its fragments have left it.
    pub left: usize,
    /// The time at which nothing happened any more, in whole nanoseconds.
    pub at_nanos: u64,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "nothing moves after {} ns, with {} fragments through stage {}: a buffer is too small \
             for what is put together in it, or stages move different numbers of bytes",
            self.at_nanos, self.left, self.stage
        )
    }
}

impl std::error::Error for Stuck {}

/// One list of fragment sizes in bytes per stage through a path, with `depth` fragments outstanding
/// at the first stage and `buffers` between the stages.
///
/// # Errors
/// [`Stuck`] if it comes to a standstill; also if there is not one list per stage.
///
/// ```
/// use piped_model::simulate::run;
/// use piped_model::stage::{Buffers, Stage};
/// let slow = Stage { latency: 0.0, overhead: 10.0, per_byte: 1.0, window: None };
/// let trace = run(&[slow, slow], &[&[50, 50], &[100]], None, &Buffers::UNLIMITED)?;
/// assert_eq!((trace.seconds, trace.visits.len()), (230.0, 3));
/// let buffers = Buffers::UNLIMITED.with(1, 99);
/// assert!(run(&[slow, slow], &[&[50, 50], &[100]], None, &buffers).is_err());
/// # Ok::<(), piped_model::simulate::Stuck>(())
/// ```
pub fn run<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
    buffers: &Buffers,
) -> Result<Trace, Stuck> {
    run_on(path, sizes, depth, buffers, &Servers::APART)
}

/// Like [`run`] where stages have servers together, or servers work in turns. A fragment that is
/// served and waits for room keeps its stage, and not the server.
///
/// # Errors
/// As [`run`].
///
/// ```
/// use piped_model::servers::Servers;
/// use piped_model::simulate::run_on;
/// use piped_model::stage::{Buffers, Stage};
/// let step = Stage { latency: 0.0, overhead: 10.0, per_byte: 0.0, window: None };
/// let servers = Servers::of(["thread", "wire", "thread"]);
/// let sizes: [&[u64]; 3] = [&[8, 8, 8]; 3];
/// let trace = run_on(&[step; 3], &sizes, None, &Buffers::UNLIMITED, &servers)?;
/// // The thread begins all three before it sends the first.
/// let started: Vec<_> = trace.visits.iter().filter(|visit| visit.stage == 0).collect();
/// assert_eq!((started[2].started, trace.seconds), (20.0, 60.0));
/// # Ok::<(), piped_model::simulate::Stuck>(())
/// ```
pub fn run_on<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
    buffers: &Buffers,
    servers: &Servers,
) -> Result<Trace, Stuck> {
    if path.len() != sizes.len() || path.is_empty() {
        return Err(Stuck { stage: path.len().min(sizes.len()), left: 0, at_nanos: 0 });
    }
    let held = buffers.rooms().filter(|room| room.is_on(path.len())).map(Held::of).collect();
    let (now, unseen, visits) = (0.0, 0, Vec::new());
    let mut works = Works { path, sizes, depth, buffers, servers, now, unseen, visits, held };
    let mut stages: Vec<Busy> = sizes.iter().map(|_| Busy::default()).collect();
    stages[0].arrived = sizes[0].iter().map(|&size| u128::from(size)).sum();
    let mut events = BinaryHeap::new();
    let asking = servers.asking(path.len());
    loop {
        // Everything that happens at one time has happened before anything starts.
        while events.peek().is_some_and(|next: &Event| next.at <= works.now) {
            let Some(event) = events.pop() else { break };
            match event.what {
                What::Served => {
                    stages[event.stage].served += 1;
                    let server = servers.first(event.stage);
                    stages[server].works = false;
                    if asking == Some(server) {
                        works.unseen = 0;
                    }
                }
                What::Departed(bytes) => {
                    stages[event.stage].inside -= 1;
                    let in_turn = asking.is_some_and(|server| stages[server].works);
                    works.unseen += usize::from(event.stage == 0 && in_turn);
                    if let Some(next) = stages.get_mut(event.stage + 1) {
                        next.arrived += u128::from(bytes);
                    }
                    let left = sizes[event.stage][stages[event.stage].departed];
                    stages[event.stage].departed += 1;
                    works.make_room(event.stage, left, &mut events);
                }
                What::Known { room, bytes, fragments } => {
                    works.held[room].bytes -= u128::from(bytes);
                    works.held[room].leave(fragments, sizes);
                }
            }
        }
        if works.settle(&mut stages, &mut events) {
            continue;
        }
        let Some(next) = events.peek() else { break };
        works.now = next.at;
    }
    let unfinished = |&stage: &usize| stages[stage].left < sizes[stage].len();
    match (0..path.len()).find(unfinished) {
        Some(stage) => {
            let at_nanos = (works.now * 1e9) as u64;
            Err(Stuck { stage, left: stages[stage].left, at_nanos })
        }
        None => {
            // Rooms may be told of later.
            let seconds = works.visits.iter().map(|visit| visit.departed).fold(0.0, f64::max);
            Ok(Trace { seconds, visits: works.visits })
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    /// The fragment in the server is served.
    Served,
    /// A fragment is there, of which this many bytes were not yet.
    Departed(u64),
    /// The first stage of a room hears of what has left it.
    Known { room: usize, bytes: u64, fragments: usize },
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at: f64,
    stage: usize,
    what: What,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first: the earliest must be it.
        other.at.total_cmp(&self.at).then(other.stage.cmp(&self.stage))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A stage at work.
#[derive(Default)]
struct Busy {
    /// Bytes that have arrived from the stage before.
    arrived: u128,
    /// Bytes of the fragments that were started.
    started_bytes: u128,
    /// How many were started, have left the server, and are behind the stage.
    started: usize,
    left: usize,
    departed: usize,
    /// For each fragment in the server the time at which its service began, and how many of its
    /// bytes are not at the next stage yet.
    inner: VecDeque<(f64, u64)>,
    /// How many of these are served and only wait for room.
    served: usize,
    /// Since when the next fragment is ready.
    ready: Option<f64>,
    /// Whether the server works; of the first stage that has it.
    works: bool,
    /// Fragments started and not yet departed.
    inside: usize,
    /// Bytes in the buffer before the stage, or on their way into it.
    held: u128,
}

/// A room over several stages.
struct Held {
    room: Room,
    /// Bytes that are in it, as far as its first stage knows.
    bytes: u128,
    /// Fragments of its last stage that are known to have left.
    gone: usize,
    /// The bytes of these.
    gone_bytes: u128,
    /// Bytes that have left, and that the first stage is not told of yet.
    due: u64,
}

impl Held {
    fn of(room: &Room) -> Self {
        Self { room: *room, bytes: room.due().into(), gone: 0, gone_bytes: 0, due: room.due() }
    }

    /// So many more fragments are known to have left.
    fn leave(&mut self, fragments: usize, sizes: &[&[u64]]) {
        let gone = &sizes[self.room.last][self.gone..self.gone + fragments];
        self.gone_bytes += gone.iter().map(|&size| u128::from(size)).sum::<u128>();
        self.gone += fragments;
    }
}

/// What does not change, and the clock.
struct Works<'a, C> {
    path: &'a [C],
    sizes: &'a [&'a [u64]],
    depth: Option<NonZeroU32>,
    buffers: &'a Buffers,
    servers: &'a Servers,
    now: f64,
    /// Fragments that have departed from the first stage during a turn of the server that asks for
    /// more.
    unseen: usize,
    visits: Vec<Visit>,
    held: Vec<Held>,
}

impl<C: StageCost> Works<'_, C> {
    /// What can happen now: all that is served and has room leaves, or else one fragment starts.
    /// `false`: nothing can.
    fn settle(&mut self, stages: &mut [Busy], events: &mut BinaryHeap<Event>) -> bool {
        let mut moved = false;
        for stage in 0..stages.len() {
            moved |= self.leave(stages, stage, events);
        }
        if moved {
            return true;
        }
        for (stage, busy) in stages.iter_mut().enumerate() {
            if busy.ready.is_none() && self.is_ready(busy, stage) {
                busy.ready = Some(self.now);
            }
        }
        // What has been ready for longest; of two, what is further.
        let idle = |&stage: &usize| {
            let busy = &stages[stage];
            busy.started == busy.left && !stages[self.servers.first(stage)].works
        };
        let waits = |stage: usize| Some((stages[stage].ready?, stage));
        let next = (0..stages.len()).filter(idle).filter_map(waits);
        let next = next.min_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        match next {
            Some((_, stage)) if self.servers.works_in_turns(stage) => {
                self.turn(stages, self.servers.first(stage), events);
            }
            Some((_, stage)) => {
                let began = self.now;
                let end = self.start(stages, stage, began);
                events.push(Event { at: end, stage, what: What::Served });
            }
            None => {}
        }
        next.is_some()
    }

    /// A server in turns takes all that is ready at its stages, and what becomes ready there by
    /// that. All is served when the turn ends.
    fn turn(&mut self, stages: &mut [Busy], server: usize, events: &mut BinaryHeap<Event>) {
        let own = (0..stages.len()).filter(|&stage| self.servers.first(stage) == server);
        let mut end = self.now;
        let mut taken = Vec::new();
        for stage in own {
            let is_idle = stages[stage].started == stages[stage].left;
            while is_idle && self.is_ready(&stages[stage], stage) {
                end = self.start(stages, stage, end);
                taken.push(stage);
                self.hand_on(stages, stage);
            }
        }
        events.extend(taken.into_iter().map(|stage| Event { at: end, stage, what: What::Served }));
    }

    /// Let a served fragment out of the server, if there is room for it.
    fn leave(&mut self, stages: &mut [Busy], stage: usize, events: &mut BinaryHeap<Event>) -> bool {
        if stages[stage].served == 0 {
            return false;
        }
        let fragment = stages[stage].left;
        let bytes = self.sizes[stage][fragment];
        if let Some(next) = stages.get_mut(stage + 1) {
            let held = next.held + u128::from(bytes);
            if self.buffers.before(stage + 1).is_some_and(|room| held > u128::from(room)) {
                return false;
            }
            next.held = held;
        }
        let busy = &mut stages[stage];
        busy.served -= 1;
        busy.left += 1;
        let (started, outside) = busy.inner.pop_front().unwrap_or((self.now, bytes));
        let left = self.now;
        let departed = left + self.path[stage].stage_at(bytes as f64).latency;
        events.push(Event { at: departed, stage, what: What::Departed(outside) });
        self.visits.push(Visit { stage, fragment, bytes, started, left, departed });
        true
    }

    /// Whether the next fragment may start when the stage and its server are free: all its bytes
    /// are there, and no window or depth holds it back.
    fn is_ready(&self, busy: &Busy, stage: usize) -> bool {
        let Some(&bytes) = self.sizes[stage].get(busy.started) else { return false };
        let cost = self.path[stage].stage_at(bytes as f64);
        let fits = |count: usize, most: Option<NonZeroU32>| {
            most.is_none_or(|most| count < most.get() as usize)
        };
        let depth = self.depth.filter(|_| stage == 0);
        let end = busy.started_bytes + u128::from(bytes);
        if end > busy.arrived {
            return false;
        }
        let own = self.held.iter().filter(|held| held.room.first == stage);
        if !own.into_iter().all(|held| self.has_room(held, bytes, end)) {
            return false;
        }
        fits(busy.inside, cost.window) && fits(busy.inside + self.unseen, depth)
    }

    /// Whether a room has place for a fragment that ends there.
    fn has_room(&self, held: &Held, bytes: u64, end: u128) -> bool {
        let room = u128::from(held.room.bytes);
        let Some((grain, most)) = held.room.grain else {
            return held.bytes + u128::from(bytes) <= room;
        };
        let (mut count, mut taken, mut at) = (0, 0, held.gone_bytes);
        for &size in &self.sizes[held.room.last][held.gone..] {
            if at >= end {
                break;
            }
            count += 1;
            taken += u128::from(size.div_ceil(grain.max(1))) * u128::from(grain.max(1));
            at += u128::from(size);
        }
        count <= most.get() && taken <= room
    }

    /// A fragment is behind a stage, and takes no place any more in the rooms that end there.
    fn make_room(&mut self, stage: usize, bytes: u64, events: &mut BinaryHeap<Event>) {
        for (room, held) in self.held.iter_mut().enumerate().filter(|(_, it)| it.room.last == stage)
        {
            held.due += bytes;
            let told = if held.due >= held.room.batch { std::mem::take(&mut held.due) } else { 0 };
            let what = What::Known { room, bytes: told, fragments: 1 };
            events.push(Event { at: self.now + held.room.back, stage, what });
        }
    }

    /// The next stage may have the fragment that its own server has just started, in the same turn.
    fn hand_on(&self, stages: &mut [Busy], stage: usize) {
        let bytes = self.sizes[stage][stages[stage].started - 1];
        let [busy, next] = match stages.get_disjoint_mut([stage, stage + 1]) {
            Ok(pair) if self.servers.first(stage + 1) == self.servers.first(stage) => pair,
            _ => return,
        };
        let is_open = self.buffers.before(stage + 1).is_none();
        if is_open
            && self.path[stage].stage_at(bytes as f64).latency == 0.0
            && let Some((_, outside)) = busy.inner.back_mut()
        {
            next.arrived += u128::from(std::mem::take(outside));
        }
    }

    /// Start the next fragment of a stage that is ready, at a time; returns when it is served.
    fn start(&mut self, stages: &mut [Busy], stage: usize, at: f64) -> f64 {
        stages[self.servers.first(stage)].works = true;
        let busy = &mut stages[stage];
        let bytes = self.sizes[stage][busy.started];
        for held in self.held.iter_mut().filter(|held| held.room.first == stage) {
            held.bytes += u128::from(bytes);
        }
        let cost = self.path[stage].stage_at(bytes as f64);
        busy.ready = None;
        busy.started += 1;
        busy.started_bytes += u128::from(bytes);
        busy.inner.push_back((at, bytes));
        busy.inside += 1;
        busy.held = busy.held.saturating_sub(u128::from(bytes));
        at + cost.occupancy(bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Stage;

    const STEP: Stage = Stage { latency: 0.0, overhead: 1.0, per_byte: 0.0, window: None };

    #[test]
    fn a_stage_behind_a_full_buffer_keeps_its_fragment() {
        // The second stage takes 5; the first is served at 1, 2, ... and waits for room from then
        // on.
        let path = [STEP, Stage { overhead: 5.0, ..STEP }];
        let sizes: [&[u64]; 2] = [&[8; 4]; 2];
        let trace = run(&path, &sizes, None, &Buffers::UNLIMITED.with(1, 8)).expect("it moves");
        let left: Vec<f64> =
            trace.visits.iter().filter(|visit| visit.stage == 0).map(|visit| visit.left).collect();
        assert_eq!(left, [1.0, 2.0, 6.0, 11.0]);
        assert_eq!(trace.seconds, 21.0);
    }

    #[test]
    fn a_standstill_names_the_stage() {
        let sizes: [&[u64]; 2] = [&[8, 8], &[16]];
        let stuck = run(&[STEP; 2], &sizes, None, &Buffers::UNLIMITED.with(1, 15)).unwrap_err();
        assert_eq!((stuck.stage, stuck.left), (0, 1));
        assert!(stuck.to_string().contains("too small"), "{stuck}");
        assert!(run(&[STEP], &sizes, None, &Buffers::UNLIMITED).is_err());
    }
}
