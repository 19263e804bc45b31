//! A node of several shards, and another node, whose clients send each other messages, notify each
//! other and change the same words, whatever shard serves them: in virtual time, from one seed.
//!
//! What shards tell each other takes time here, and a different time each. What must hold is what
//! holds on one shard: a message is received once, in its sender's order, and is not lost if its
//! sender was told so; a word has the sum of what was added; who was notified counts it once; each
//! request ends once, and nothing touches its buffer after that.

mod judge;
mod setup;

use std::collections::BTreeMap;

use piped_control::control::Effect;
use piped_control::opens::Found;
use piped_core::ids::{ChannelId, HandleId, QueueId, RegionId, SegmentId, SessionId};
use piped_core::io::{Io as _, Span};
use piped_core::modes::EagerMode;
use piped_core::request::{ArenaBuffer, Class, Origin, Request, Update, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Output};
use piped_sim::{Cost, Faults, NodeId, Random, SimKernel, WindowId};
use piped_world::controls::{Controls, Surroundings};
use piped_world::nodes::Nodes;

use crate::mail::{MESSAGE_BYTES_MIN, Messages, TAGS};
use judge::Counts;

const STAGING: u64 = 16 << 20;
const OPS_MAX: u32 = 512;
/// Memory of a client: words and notifications at its start, buffers behind.
const ARENA: u64 = 4 << 20;
const WORDS: u64 = 4;
const BOARD: u64 = 64 << 10;
const SLOT: u64 = 192 << 10;
const SLOTS: usize = ((ARENA - BOARD) / SLOT) as usize;
/// Requests come in steps of this length.
const STEP: Nanos = Nanos::from_micros(40);
/// Longer than any request takes.
const PATIENCE: Nanos = Nanos::from_millis(120_000);
/// Tickets of a client's opens: more than its handles.
const TICKETS: u64 = 1000;
const NAMES: [&str; 2] = ["alpha", "beta"];

/// What a world is made of.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Shards of the two nodes.
    pub shards: [usize; 2],
    /// Clients of each node.
    pub clients: usize,
    /// Whether all shards serve each client: what the client asks comes by any of them.
    pub spread: bool,
    /// Steps in which clients ask for something.
    pub steps: u64,
    /// The longest message, in bytes.
    pub longest: u64,
    /// The longest that shards tell each other something.
    pub relay_max: Nanos,
    /// Which messages are sent without being announced.
    pub eager: EagerMode,
    /// Faults of the kernel.
    pub faults: Faults,
    /// Per step: a client is killed.
    pub kills: f64,
    /// Per request: it has a deadline that it may miss, or is cancelled.
    pub hurry: f64,
    /// Both nodes have keys, so the shards of each are spread over those of the other.
    pub keyed: bool,
    /// How much longer copies take, by a dial: then each is under way for a time.
    pub copies_take: Nanos,
}

impl Options {
    /// Worlds in which everything is tried.
    #[must_use]
    pub fn wild(random: &mut Random) -> Self {
        let reset = if random.chance(0.4) { random.below(100) as f64 / 20_000.0 } else { 0.0 };
        let eager = match random.below(3) {
            0 => EagerMode::Auto,
            1 => EagerMode::Fixed(0),
            _ => EagerMode::Fixed(1 << random.between(8, 15)),
        };
        Self {
            shards: [random.between(2, 3) as usize, random.between(1, 2) as usize],
            clients: random.between(3, 5) as usize,
            spread: random.chance(0.5),
            steps: random.between(40, 160),
            longest: 1 << random.between(6, 17),
            relay_max: Nanos(random.length(400_000)),
            eager,
            faults: Faults { reset, reset_notice_max: Nanos::from_millis(20), ..Faults::none() },
            kills: if random.chance(0.5) { 0.02 } else { 0.0 },
            hurry: if random.chance(0.7) { 0.25 } else { 0.0 },
            keyed: random.chance(0.5),
            copies_take: Nanos(if random.chance(0.3) { random.length(500_000) } else { 0 }),
        }
    }
}

/// What a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Send { to: usize },
    Receive,
    Notify { to: usize, id: u32 },
    Wait { id: u32, count: u64 },
    Add { to: usize, word: u64, number: u64 },
}

/// A request in execution.
#[derive(Debug)]
struct Running {
    client: usize,
    asked: Asked,
    slot: Option<usize>,
    window: Option<WindowId>,
    span: Span,
    finished: bool,
}

#[derive(Debug)]
struct Client {
    node: usize,
    shard: usize,
    session: SessionId,
    segment: SegmentId,
    channel: ChannelId,
    region: RegionId,
    lives: bool,
    slots: Vec<bool>,
    /// Its handles by client, of a channel or (`false`) of a region, and whether each is open.
    handles: BTreeMap<(usize, bool), (HandleId, bool)>,
}

/// A world; all of it follows from the seed and the options.
#[derive(Debug)]
pub struct World {
    nodes: Nodes,
    options: Options,
    random: Random,
    clients: Vec<Client>,
    running: BTreeMap<u64, Running>,
    /// The shard by which each request came.
    queue_of: BTreeMap<u64, usize>,
    asked: u64,
    messages: Messages,
    counts: Counts,
    /// How often something happened that a campaign wants to see.
    pub seen: BTreeMap<&'static str, u64>,
}

impl World {
    /// A world with all its clients.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let kernel = SimKernel::new(random.bits(), Faults::none());
        let link = Cost {
            latency: Nanos(random.between(2_000, 60_000)),
            overhead: Nanos(1_000),
            nanos_per_byte: 0.3,
        };
        let controls = Controls::new(random.bits(), Surroundings::prompt(link, 128 << 10));
        let mut nodes = Nodes::new(kernel, controls);
        nodes.delay_relays(random.bits(), options.relay_max);
        let (messages, counts) = (Messages::default(), Counts::default());
        let mut world = Self {
            nodes,
            options,
            random,
            clients: Vec::new(),
            running: BTreeMap::new(),
            queue_of: BTreeMap::new(),
            asked: 0,
            messages,
            counts,
            seen: BTreeMap::new(),
        };
        (0..NAMES.len()).for_each(|node| world.add_node(node));
        for node in 0..NAMES.len() {
            (0..options.clients).for_each(|_| world.add_client(node));
        }
        world
    }

    /// The kernel of both nodes.
    pub const fn kernel(&mut self) -> &mut SimKernel {
        &mut self.nodes.kernel
    }

    /// The whole life of a world: clients do what they want, then everything is received, and at
    /// last all of them go.
    ///
    /// # Panics
    /// If a promise is broken.
    pub fn live(&mut self) {
        // Shards know their peers.
        self.run_until(|world| (0..NAMES.len()).all(|it| world.nodes.controls.is_told(it)));
        (0..self.clients.len()).for_each(|client| self.open_all(client));
        self.run_until(|world| world.clients.iter().all(|it| it.handles.values().all(|h| h.1)));
        self.nodes.kernel.set_faults(self.options.faults);
        for _ in 0..self.options.steps {
            for _ in 0..self.random.between(0, 6) {
                self.act();
            }
            if self.random.chance(self.options.kills) {
                let client = self.random.below(self.clients.len() as u64) as usize;
                self.kill(client);
            }
            let until = self.nodes.kernel.now() + STEP;
            self.run(until);
        }
        self.nodes.kernel.set_faults(Faults::none());
        self.finish();
        for client in 0..self.clients.len() {
            self.kill(client);
        }
        self.run_until(|world| world.running.is_empty() && world.is_idle());
        self.judge_rest();
    }

    fn act(&mut self) {
        let client = self.random.below(self.clients.len() as u64) as usize;
        if !self.clients[client].lives {
            return;
        }
        let to = self.random.below(self.clients.len() as u64) as usize;
        let id = self.random.below(3) as u32;
        let asked = match self.random.below(10) {
            0..4 if to != client => Asked::Send { to },
            4..8 => Asked::Receive,
            8 if self.random.chance(0.5) => Asked::Wait { id, count: self.random.between(1, 3) },
            8 => Asked::Notify { to, id },
            9 => {
                let word = self.random.below(WORDS);
                Asked::Add { to, word, number: self.random.between(1, 100) }
            }
            _ => return,
        };
        let hurried = self.random.chance(self.options.hurry);
        let deadline = hurried.then(|| Nanos(self.random.length(3_000_000)));
        let no_wait = self.random.chance(self.options.hurry / 4.0);
        let tag = self.random.below(TAGS);
        let tag = self.random.chance(0.7).then_some(tag);
        self.ask(client, asked, tag, (deadline, no_wait));
        if hurried && self.random.chance(0.3) {
            let target = self.random.between(1, self.asked);
            if let Some(running) = self.running.get(&target).filter(|it| it.client == client) {
                assert_eq!(running.client, client);
                self.submit(client, 0, Verb::Cancel { target }, (None, false));
            }
        }
    }

    /// A client's handles of another one's channel and region.
    fn handles(&self, client: usize, of: usize) -> (HandleId, HandleId) {
        let handles = &self.clients[client].handles;
        (handles[&(of, true)].0, handles[&(of, false)].0)
    }

    fn ask(
        &mut self,
        client: usize,
        asked: Asked,
        tag: Option<u64>,
        how: (Option<Nanos>, bool),
    ) -> Option<u64> {
        let number = self.asked + 1;
        let (channel, region) = match asked {
            Asked::Send { to } | Asked::Notify { to, .. } | Asked::Add { to, .. } => {
                self.handles(client, to)
            }
            Asked::Receive | Asked::Wait { .. } => self.handles(client, client),
        };
        let (mut slot, mut window, mut length) = (None, None, 0);
        let mut span = Span { segment: self.clients[client].segment, offset: 0, length: 0 };
        if let Asked::Send { .. } | Asked::Receive = asked {
            let free = self.clients[client].slots.iter().position(|taken| !taken)?;
            slot = Some(free);
            self.clients[client].slots[free] = true;
            let longest = self.options.longest;
            length = match asked {
                Asked::Receive if !self.random.chance(0.05) => longest,
                _ => self.random.length(longest).clamp(MESSAGE_BYTES_MIN, longest),
            };
            span.offset = BOARD + free as u64 * SLOT;
            span.length = length as u32;
        }
        let buffer = ArenaBuffer { segment: 0, offset: span.offset, length };
        let verb = match asked {
            Asked::Send { to } => {
                let tag = tag.unwrap_or(0);
                let mut bytes = vec![number as u8; length as usize];
                self.messages.send((client, number), to, tag, &mut bytes);
                let id = self.id_of(client);
                self.nodes.kernel.bytes_mut(id, span).copy_from_slice(&bytes);
                Verb::Send { handle: channel, tag, buffer }
            }
            Asked::Receive => Verb::Receive { handle: channel, tag, buffer },
            Asked::Notify { id, .. } => Verb::Notify { handle: region, id },
            Asked::Wait { id, count } => Verb::Wait { handle: region, id, count },
            Asked::Add { word, number, .. } => Verb::Update {
                handle: region,
                offset: word * Update::BYTES,
                update: Update::Add(number),
            },
        };
        if slot.is_some() {
            let writable = asked == Asked::Receive;
            let id = self.id_of(client);
            window = Some(self.nodes.kernel.open_window(id, span, writable));
        }
        self.asked = number;
        self.counts.begin(asked);
        let running = Running { client, asked, slot, window, span, finished: false };
        self.running.insert(number, running);
        self.submit(client, number, verb, how);
        Some(number)
    }

    fn submit(
        &mut self,
        client: usize,
        user_data: u64,
        verb: Verb,
        (deadline, no_wait): (Option<Nanos>, bool),
    ) {
        let Client { node, session, .. } = self.clients[client];
        let origin = Origin { session, queue: QueueId(0), slot: 0, user_data };
        let request = Request { verb, class: Class::Latency, deadline, no_wait, fence: false };
        let served = self.served(client);
        let shard = match (verb, self.running.get(&user_data).map(|it| it.asked)) {
            // The last ones must not find that as many wait at the home as may.
            (_, Some(Asked::Wait { .. } | Asked::Receive)) if deadline == Some(PATIENCE) => {
                served[0]
            }
            // What one queue sends to a channel, or receives, is in order.
            (_, Some(Asked::Send { to })) => served[to % served.len()],
            (_, Some(Asked::Receive)) => served[client % served.len()],
            // A cancel comes by the queue of what it gives up.
            (Verb::Cancel { target }, _) => {
                self.queue_of.get(&target).copied().unwrap_or(served[0])
            }
            _ => *self.random.pick(&served),
        };
        self.queue_of.insert(user_data, shard);
        if shard != self.clients[client].shard {
            *self.seen.entry("asked by another shard than the home").or_default() += 1;
        }
        self.nodes.with(node, shard, |it, io| {
            let now = io.now();
            it.submit(origin, request, now, io);
        });
    }

    /// A client's process ends: its session closes, and what it offers is withdrawn.
    fn kill(&mut self, client: usize) {
        let Client { node, session, .. } = self.clients[client];
        if !std::mem::replace(&mut self.clients[client].lives, false) {
            return;
        }
        let control = self.nodes.controls.control_mut(node).expect("it runs");
        control.close_session(session);
        self.nodes.controls.drain(node, &self.nodes.kernel);
        let mut served = self.served(client);
        // They hear of it in any order.
        let first = self.random.below(served.len() as u64) as usize;
        served.rotate_left(first);
        for shard in served {
            self.nodes.command(node, shard, Command::CloseSession { session });
        }
        self.messages.sender_died(client);
        self.messages.give_up(client);
        // Nobody is left to be told.
        let gone: Vec<u64> =
            self.running.iter().filter(|(_, it)| it.client == client).map(|(at, _)| *at).collect();
        for number in gone {
            let running = self.running.remove(&number).expect("it is there");
            self.counts.end(running.asked, None, 0);
            self.close_window(&running);
        }
        *self.seen.entry("client killed").or_default() += 1;
    }

    /// The shards that serve a client, its home first.
    fn served(&self, client: usize) -> Vec<usize> {
        let Client { node, shard: home, .. } = self.clients[client];
        let shards = self.options.shards[node];
        let count = if self.options.spread { shards } else { 1 };
        (0..count).map(|turn| (home + turn) % shards).collect()
    }

    fn id_of(&self, client: usize) -> NodeId {
        let Client { node, shard, .. } = self.clients[client];
        self.nodes.controls.nodes[node].setup.shards[shard]
    }

    fn close_window(&mut self, running: &Running) {
        // What the kernel still does with a killed client's memory is its own affair.
        let lives = self.clients[running.client].lives;
        if let Some(window) = running.window.filter(|_| lives) {
            let id = self.id_of(running.client);
            self.nodes.kernel.close_window(id, window);
        }
        if let Some(slot) = running.slot {
            self.clients[running.client].slots[slot] = false;
        }
    }

    /// Everybody has turns until then.
    fn run(&mut self, until: Nanos) {
        while self.step(until) {}
    }

    fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let until = self.nodes.kernel.now() + PATIENCE;
        while !done(self) {
            assert!(self.step(until), "it takes too long: {:?}", self.running);
        }
    }

    fn step(&mut self, until: Nanos) -> bool {
        let mut told = Vec::new();
        let goes_on = self.nodes.step(until, &mut told);
        for (.., output) in told {
            if let Output::Completion(completion) = output {
                self.handle_end(completion);
            }
        }
        while let Some(asked) = self.nodes.controls.poll_asked() {
            let found = self.nodes.controls.look_up(&asked).expect("the node runs");
            let opened = found.map_err(|fault| fault.status).and_then(|(found, right)| {
                let owner = match &found {
                    Found::Channel(source) => source.owner,
                    Found::Region(source) => source.owner,
                    _ => return Err(Status::NotFound),
                };
                let owner = owner.0 as usize - 1;
                Ok((self.target(owner, asked.open.kind, false), right))
            });
            self.nodes.controls.answer(&asked, opened, &self.nodes.kernel);
        }
        self.note_opens();
        goes_on
    }

    /// Remote handles are usable once their shards say so; a driver would hear it as an effect.
    fn note_opens(&mut self) {
        while let Some((node, effect)) = self.nodes.controls.poll_effect() {
            let Effect::Opened { ticket, result } = effect else { continue };
            assert!(result.is_ok(), "everything may be opened: {result:?}");
            let client = (ticket / TICKETS) as usize;
            assert_eq!(self.clients[client].node, node);
            for (handle, open) in self.clients[client].handles.values_mut() {
                *open |= u64::from(handle.0) == ticket % TICKETS;
            }
        }
    }

    fn is_idle(&self) -> bool {
        let shards = (0..NAMES.len()).flat_map(|node| self.nodes.shards(node));
        !self.nodes.relays_under_way()
            && shards.into_iter().all(|it| it.relays_waiting() == 0 && it.is_idle())
    }
}
