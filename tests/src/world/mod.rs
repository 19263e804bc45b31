//! Two nodes, their clients, disks and lanes, in virtual time, from one seed.
//!
//! ```text
//!   client ─submit─► Shard ─► SimIo ─┐                       ┌─ SimIo ◄─ Shard ◄─submit─ client
//!            judge ◄─┘ ▲             └──── SimKernel(now) ───┘               ▲ └─► judge
//!                      └──── control: connects, opens, crashes, restarts ────┘
//! ```
//!
//! The world plays everything that is not the engine, and judges: each request completes once and
//! in time; a buffer is touched only while its request owns it and never below the watermark (the
//! kernel's windows); data are equal to what was written (`expect`); a session that closes gives
//! all its memory back; everything comes to rest within a bound. A violation panics; the runner
//! adds the seed.

pub mod expect;

mod board;
mod calls;
mod client;
mod control;
mod judge;
mod locking;
mod messages;
mod names;
mod naming;
mod opens;
mod operated;
mod options;
mod outcome;
mod pieces;
mod runner;
mod setup;
mod sweep;
mod ways;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use piped_control::holdings::Right;
use piped_core::ids::{ChannelId, DeviceId, HandleId, QueueId, RegionId, SegmentId, SessionId};
use piped_core::io::{Io as _, Span};
use piped_core::request::Verb;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Output};
use piped_engine::shard::Shard;
use piped_planner::solve::solve;
use piped_sim::{EventQueue, InodeId, NodeId, Random, SimKernel, WindowId};
use piped_world::controls::{Asked, Controls};

use crate::mail::Messages;
use crate::operators::Operators;

use self::board::{Board, Raise};
pub use self::board::{Note, OneSided};
use self::calls::Told;
pub use self::calls::{Asking, FileCall};
pub use self::client::Call;
pub use self::control::ClockStep;
use self::expect::Expected;
pub use self::judge::Finish;
use self::names::{AskedOfNames, Names};
pub use self::naming::directory;
pub use self::options::Options;
pub use self::outcome::NameCall;
use self::pieces::Scattered;
pub use self::runner::{Campaign, Life, caught};
pub use self::sweep::{Failed, KINDS, Kind, Sweep, Swept};

/// A simulated world. See the module.
#[derive(Debug)]
pub struct World {
    /// The kernel of both nodes, for faults and a look at files.
    pub kernel: SimKernel,
    /// What the world is made of.
    pub options: Options,
    random: Random,
    nodes: Vec<NodeState>,
    clients: Vec<Client>,
    objects: Vec<Object>,
    plans: EventQueue<Plan>,
    /// The control threads of the nodes.
    controls: Controls,
    operators: Option<Operators>,
    /// Opens at peers without an answer, by node and ticket: which client waits, and since when.
    tickets: BTreeMap<(usize, u64), (usize, Nanos)>,
    /// Opens that were given up.
    given_up: BTreeSet<(usize, u64)>,
    /// Regions that were withdrawn, until it is told that nobody uses them any more.
    withdrawn: BTreeSet<(usize, RegionId)>,
    messages: Messages,
    /// The boards, by client.
    boards: Vec<Board>,
    /// What is known of directories.
    names: Vec<Names>,
    locking: locking::Locking,
    signals_made: u32,
    turns: u64,
    turns_at_once: u64,
    served_opens: u64,
    /// Lanes that were refused at one end and not yet down at the other.
    lanes_refused: u32,
    /// Lanes of a calm world that went down, without a refusal so far.
    lanes_down: Vec<String>,
    /// A test has broken something by hand.
    disturbed: bool,
    /// A node's clock did not go as the world's: deadlines are its own affair.
    clocks_differ: bool,
    /// No more disasters: the world is being closed.
    ending: bool,
    /// Operators are through with all they wanted.
    settled: bool,
    /// How often things happened that must happen in some world.
    pub seen: BTreeMap<&'static str, u64>,
}

/// A node and its daemon, if it runs.
#[derive(Debug)]
struct NodeState {
    id: NodeId,
    shard: Option<Shard>,
    device: DeviceId,
    /// The device counts as somebody else's.
    foreign: bool,
    /// The shard's thread does something else until then.
    busy_until: Nanos,
    lane_ups: u64,
    /// How often rights to what the node has may have changed.
    rights: u64,
}

/// What the control threads and the clients do later.
#[derive(Debug)]
enum Plan {
    /// What a peer asked for has been looked up, and is there now.
    Answer(Box<(Asked, Result<Right, Status>)>),
    /// A client comes anew, if it may.
    Come { client: usize },
    /// An open at a peer takes too long.
    GiveUp { node: usize, ticket: u64, asked: Nanos },
    /// What a client opened on its node is entered in the book.
    Enter { client: usize, session: SessionId, handle: HandleId, right: Box<Right> },
    /// A client thinks of something to do.
    Think { client: usize },
    /// An operator changes limits of a node.
    Limit { node: usize },
    /// An operator sets a dial of a node, or clears some.
    Slow { node: usize },
    /// A client dies with all it has under way.
    Die { client: usize },
    /// A node loses power.
    Crash { node: usize },
    /// A node comes back.
    Restart { node: usize },
    /// A node's device serves nobody for a while.
    Stall { node: usize },
    /// Something becomes of the ways from a node to the other.
    Way { node: usize },
    /// An address is reached again.
    Unblock { address: SocketAddr },
}

/// What clients read and write.
#[derive(Debug)]
struct Object {
    name: String,
    node: usize,
    kind: ObjectKind,
    expected: Expected,
    /// Boundaries of the areas: the first is read by all, the others belong to a client each.
    areas: Vec<u64>,
    gone: bool,
}

#[derive(Debug, Clone, Copy)]
enum ObjectKind {
    File(InodeId),
    Region { owner: usize, region: RegionId, segment: SegmentId, length: u64 },
    Channel { owner: usize, channel: ChannelId },
    Board { owner: usize, region: RegionId, segment: SegmentId, length: u64 },
    Directory { owner: usize, names: usize, directory: InodeId, below: InodeId },
}

#[derive(Debug)]
struct Client {
    node: usize,
    user: u32,
    session: SessionId,
    /// The regions that the client offers.
    offers: BTreeSet<RegionId>,
    state: ClientState,
    arena: SegmentId,
    /// Segments of what the client exports.
    region_segments: Vec<SegmentId>,
    handles: Vec<Opening>,
    handles_made: u32,
    calls: BTreeMap<u64, InFlight>,
    calls_made: u64,
    /// Free pieces of the arena, by number.
    pieces: Vec<u32>,
    /// Ranges nobody else may use: of calls in flight, and of failed writes for a while.
    locks: Vec<Lock>,
    to_do: u32,
    finishes: BTreeMap<u64, Finish>,
    released: u64,
    /// The last notification of each queue that was given up, and may have been done; and the last
    /// one that was done.
    given_up: BTreeMap<u32, u64>,
    notified: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Running,
    /// Its session is closing since then.
    Closing(Nanos),
    Gone,
}

/// A client's handle of an object.
#[derive(Debug, Clone, Copy)]
struct Opening {
    object: usize,
    handle: HandleId,
    state: OpeningState,
    /// The rights of its client's node and of the object's, when it was asked for.
    rights: [u64; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpeningState {
    Waits { ticket: u64 },
    Enters,
    Open,
    Failed(Status),
}

#[derive(Debug, Clone, Copy)]
struct Lock {
    object: usize,
    start: u64,
    end: u64,
    writes: bool,
    /// The call that holds it, or the time when it falls.
    until: LockEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockEnd {
    Call(u64),
    Time(Nanos),
}

/// A request the world waits for.
#[derive(Debug)]
struct InFlight {
    verb: Verb,
    queue: QueueId,
    /// The node of a request that has its place among others of its queue.
    node: Option<usize>,
    /// The request is to begin when all is over that its queue has asked of the node before.
    fence: bool,
    slot: u32,
    submitted: Nanos,
    deadline: Nanos,
    piece: Option<u32>,
    /// The piece of the arena with the table, if it has one.
    table: Option<(u32, WindowId)>,
    buffer: Option<Span>,
    window: Option<WindowId>,
    effect: Effect,
    length: u64,
    watermark: u64,
    /// The bytes below the watermark when it was told.
    seen: Vec<u8>,
    /// Finished, the buffer is held.
    held: bool,
    /// A cancel was sent for it.
    cancelled: bool,
    denied: Option<Denied>,
    /// The test judges how it ends.
    raw: bool,
}

/// A request that a node does not allow, as long as its rights are what they were.
#[derive(Debug, Clone, Copy)]
struct Denied {
    node: usize,
    /// How often its rights had changed.
    rights: u64,
    /// The node is asked for its leave only if there are bytes for it: it has the sink of a copy.
    if_moved: bool,
}

/// What a call does to objects, for the expectations.
#[derive(Debug)]
enum Effect {
    Nothing,
    Read {
        object: usize,
        start: u64,
        shortest: u64,
        crashes: u32,
    },
    Write {
        object: usize,
        start: u64,
        crashes: u32,
        data: Vec<u8>,
        known: Option<Vec<bool>>,
        durable: bool,
        shortest: u64,
        /// What a copy reads, and the crashes that had seen.
        source: Option<(usize, u32)>,
    },
    Sync {
        object: usize,
        sync: u64,
    },
    /// A message, by its number; its name has the sender.
    Send {
        number: u64,
    },
    Receive {
        object: usize,
        number: u64,
    },
    Pieces(Scattered),
    /// A put into a slot of a board, or a notification, or both.
    Raise(Raise),
    Wait {
        board: usize,
        id: u32,
        count: u64,
        /// What others had taken of that number when it began.
        before: u64,
    },
    Add {
        board: usize,
        counter: usize,
        addend: u64,
        /// What the word is before it at least.
        least: u64,
    },
    Swap {
        board: usize,
        new: u64,
    },
    /// A call of a file.
    Told(Told),
    /// A call of names.
    Names(AskedOfNames),
}

impl World {
    /// Let things happen for that long.
    pub fn run_for(&mut self, time: Nanos) {
        let until = self.kernel.now() + time;
        while self.step(until) {}
    }

    /// Let things happen until the condition holds. False if it does not within `limit`.
    pub fn run_until(&mut self, limit: Nanos, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let until = self.kernel.now() + limit;
        loop {
            if holds(self) {
                return true;
            }
            if !self.step(until) {
                return holds(self);
            }
        }
    }

    /// One turn of everybody, then time passes to the next event. False when `until` is reached.
    fn step(&mut self, until: Nanos) -> bool {
        let now = self.kernel.now();
        self.operate();
        while let Some((_, plan)) = self.plans.pop(now) {
            self.follow(plan);
        }
        self.hear();
        let mut again = false;
        let mut next = self.kernel.next_event();
        let mut earlier = |at: Nanos| next = Some(next.map_or(at, |next: Nanos| next.min(at)));
        let first = self.random.below(self.nodes.len() as u64) as usize;
        for i in 0..self.nodes.len() {
            let node = (first + i) % self.nodes.len();
            let busy_until =
                self.nodes[node].busy_until.max(self.kernel.busy_until(self.nodes[node].id));
            if busy_until > now {
                earlier(busy_until);
            } else if let Some(at) = self.turn(node) {
                if at <= now { again = true } else { earlier(at) }
            }
        }
        let acts = self.operators.as_ref().and_then(Operators::next_at);
        for at in [self.plans.next_at(), self.controls.next_at(), acts].into_iter().flatten() {
            if at <= now { again = true } else { earlier(at) }
        }
        if let Some(at) = self.kernel.next_event() {
            if at <= now { again = true } else { earlier(at) }
        }
        self.turns += 1;
        self.turns_at_once = if again { self.turns_at_once + 1 } else { 0 };
        assert!(self.turns_at_once < 100_000, "the world spins at {now}: no event, no rest");
        assert!(self.turns < self.options.turns_max, "no rest after {} turns", self.turns);
        if again {
            self.kernel.advance(now);
            return true;
        }
        match next {
            Some(at) if at <= until => {
                self.kernel.advance(at);
                true
            }
            _ => {
                self.kernel.advance(until);
                false
            }
        }
    }

    /// One turn of a node's shard, as the daemon's reactor does it. When it wants the next one.
    fn turn(&mut self, node: usize) -> Option<Nanos> {
        let id = self.nodes[node].id;
        let mut shard = self.nodes[node].shard.take()?;
        let mut worked = false;
        let most = self.random.between(1, 64);
        for _ in 0..most {
            let Some(done) = self.kernel.poll_done(id) else { break };
            shard.handle_done(done, &mut self.kernel.io(id));
            worked = true;
        }
        let io = &mut self.kernel.io(id);
        if shard.is_due(io.now()) {
            shard.drive(io);
        }
        let mut outputs = Vec::new();
        while let Some(output) = shard.poll_output() {
            outputs.push(output);
            assert!(outputs.len() < 100_000, "the shard never stops to put out");
        }
        let timeout = shard.poll_timeout();
        self.nodes[node].shard = Some(shard);
        worked |= !outputs.is_empty();
        for output in outputs {
            self.take_output(node, output);
        }
        if self.random.chance(self.options.busy) {
            let pause = self.random.up_to(self.options.busy_max);
            self.nodes[node].busy_until = self.kernel.now() + pause;
            return Some(self.nodes[node].busy_until);
        }
        if worked || most == 1 {
            // There may be more ends than were taken.
            return Some(self.kernel.now());
        }
        timeout.map(|at| self.kernel.world_time(id, at))
    }

    fn take_output(&mut self, node: usize, output: Output) {
        match output {
            Output::Completion(completion) => self.judge_completion(node, completion),
            Output::Progress(progress) => self.judge_progress(node, progress),
            Output::Event(event) => self.take_event(node, event),
            Output::Plan(question) => {
                self.command(node, Command::Planned(Box::new(solve(&question))));
            }
        }
    }

    fn command(&mut self, node: usize, command: Command) {
        let id = self.nodes[node].id;
        self.kernel.note(|| format!("{id:?} <- {command:?}"));
        if let Some(shard) = &mut self.nodes[node].shard {
            shard.handle_command(command, &mut self.kernel.io(id));
        }
    }

    /// What the control threads have to say arrives, and what peers ask them is looked up.
    fn hear(&mut self) {
        self.controls.advance(&mut self.kernel);
        while let Some((node, _, command)) = self.controls.poll_command() {
            self.command(node, command);
        }
        self.take_effects();
        while let Some(asked) = self.controls.poll_asked() {
            let Some(found) = self.controls.look_up(&asked) else { continue };
            let found = found.map(|(_, right)| right).map_err(|fault| fault.status);
            let at = self.kernel.now() + self.opening_time();
            self.plans.push(at, Plan::Answer(Box::new((asked, found))));
        }
    }
}

fn node_name(node: usize) -> String {
    ["alpha", "beta", "gamma"][node].to_owned()
}
