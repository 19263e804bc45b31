//! The nodes of a scale world, what is between them, and what happens to them.

use std::collections::{BTreeMap, BTreeSet};

use piped_control::control::Effect;
use piped_control::discovery::Source;
use piped_core::io::Io as _;
use piped_core::link::LaneClass;
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::request::{Completion, Request};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Output;
use piped_engine::shard::{Shard, ShardConfig};
use piped_report::tally::RetryReason;
use piped_sim::{EventQueue, Faults, LinkId, Notice, Random, SimKernel};
use piped_world::controls::Controls;
use piped_world::nodes::{Nodes, Told};

use super::figures::Costs;
use super::jobs::{Ended, Job, Jobs, UnderWay};
use super::layout::{Layout, name_of};
use super::machine::Options;
use super::member::{Member, OPS_MAX};

const TRANSFERS_MAX: u32 = 256;

/// Deadline of requests, as the configuration has it by default.
const DEADLINE: Nanos = Nanos::from_millis(30_000);

/// Pause before something is opened again that could not be, and one before it is looked again
/// where a node is.
const OPEN_AGAIN: Nanos = Nanos::from_millis(50);
const LOOK_AGAIN: Nanos = Nanos::from_millis(500);

/// How often it is looked whether all connections are up.
const LOOKED_EVERY: Nanos = Nanos::from_millis(1);

/// A world of very many nodes.
#[derive(Debug)]
pub(super) struct World {
    nodes: Nodes,
    options: Options,
    layout: Layout,
    random: Random,
    members: Vec<Member>,
    jobs: Jobs,
    /// What could not be opened, and is asked for again: by which node in which life, and whose.
    again: EventQueue<(usize, u32, usize)>,
    told: Vec<Told>,
    /// The node that was not whole when it was looked last.
    suspect: usize,
}

impl World {
    /// All daemons start at once.
    ///
    /// # Errors
    /// A daemon would not start with these peers.
    pub(super) fn new(options: Options, layout: Layout) -> Result<Self, String> {
        let mut random = Random::new(options.seed);
        let mut kernel = SimKernel::new(random.bits(), Faults::none());
        let mut controls = Controls::new(random.bits(), options.machine.surroundings());
        let mut one = vec![0; options.block as usize];
        random.fill(&mut one);
        let made = |node| {
            let mut data = one.clone();
            if layout.replicated(node).is_none() {
                random.fill(&mut data);
            }
            Member::new(node, (&options, &layout), data, &mut kernel)
        };
        let members: Vec<Member> = (0..options.nodes).map(made).collect();
        let mut link = || kernel.add_link(options.machine.link, None);
        let (into, out): (LinkId, Vec<LinkId>) = (link(), members.iter().map(|_| link()).collect());
        for (one, other) in layout.pairs() {
            for (from, to) in [(one, other), (other, one)] {
                let link = if layout.sink() == Some(to) { into } else { out[from] };
                controls.lay([members[from].id(), members[to].id()], false, link);
            }
        }
        let mut world = Self {
            nodes: Nodes::new(kernel, controls),
            options,
            layout,
            random,
            members,
            jobs: Jobs::default(),
            again: EventQueue::new(),
            told: Vec::new(),
            suspect: 0,
        };
        for node in 0..options.nodes {
            let setup = world.layout.setup(node, world.members[node].id());
            let shard = world.shard(node);
            world.nodes.add(setup, vec![shard])?;
            world.provide(node);
        }
        Ok(world)
    }

    fn shard(&mut self, node: usize) -> Shard {
        Shard::new(ShardConfig {
            node_name: name_of(node),
            incarnation: self.random.bits(),
            seed: self.random.bits(),
            transfers_max: TRANSFERS_MAX,
            ops_max: OPS_MAX,
            deadline_default: DEADLINE,
            planner: PlannerMode::Auto,
            calibration: CalibrationMode::Live,
            zero_copy: ZeroCopyMode::Auto,
            eager: EagerMode::Auto,
            serial_first: false,
        })
    }

    fn provide(&mut self, node: usize) {
        self.members[node].provide((&self.options, &self.layout), &mut self.nodes);
    }

    /// How many nodes there are, and who asks whom.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The time of the world.
    pub(super) fn now(&self) -> Nanos {
        self.nodes.kernel.now()
    }

    /// Events of the kernel so far.
    pub(super) fn events(&self) -> u64 {
        self.nodes.kernel.events_pushed()
    }

    /// Whether the daemon of a node runs.
    pub(super) fn runs(&self, node: usize) -> bool {
        self.nodes.controls.runs(node)
    }

    /// Lets things happen until then. False when that is reached.
    pub(super) fn step(&mut self, until: Nanos) -> bool {
        let now = self.now();
        while let Some((_, (node, life, other))) = self.again.pop(now) {
            if self.members[node].life() == life {
                self.open(node, other);
            }
        }
        let stop = self.again.next_at().map_or(until, |at| at.min(until));
        let mut told = std::mem::take(&mut self.told);
        let goes_on = self.nodes.step(stop, &mut told);
        for (node, _, output) in told.drain(..) {
            if let Output::Completion(completion) = output {
                self.complete(node, completion);
            }
        }
        self.told = told;
        self.answer();
        goes_on || stop < until
    }

    /// Lets time pass until then.
    pub(super) fn run(&mut self, until: Nanos) {
        while self.step(until) {}
    }

    /// Lets time pass until all connections are up; how long that took, if it is within `limit`.
    pub(super) fn run_until_whole(&mut self, limit: Nanos) -> Option<Nanos> {
        let begun = self.now();
        while !self.is_whole() {
            if self.now() >= begun + limit {
                return None;
            }
            self.run(self.now() + LOOKED_EVERY);
        }
        Some(self.now().since(begun))
    }

    /// Opens at all nodes what is asked for there, and lets time pass until that is done.
    ///
    /// # Errors
    /// It takes longer than `limit`.
    pub(super) fn open_all(&mut self, limit: Nanos) -> Result<(), String> {
        let until = self.now() + limit;
        (0..self.members.len()).for_each(|node| self.open_missing(node));
        let has = |world: &Self, node: usize| {
            let asked = world.layout.asks(node);
            !world.runs(node) || asked.iter().all(|other| world.opened(node).contains(other))
        };
        while !(0..self.members.len()).all(|node| has(self, node)) {
            if self.now() >= until {
                return Err(format!("not all handles are open after {} s", limit.seconds()));
            }
            self.run(self.now() + LOOKED_EVERY);
        }
        Ok(())
    }

    /// Opens what one node has at another one, and lets time pass until that is done.
    ///
    /// # Errors
    /// It takes longer than `limit`.
    pub(super) fn open_one(
        &mut self,
        (node, other): (usize, usize),
        limit: Nanos,
    ) -> Result<(), String> {
        let until = self.now() + limit;
        self.open(node, other);
        while !self.opened(node).contains(&other) {
            if !self.step(until) {
                return Err(format!("no handle of {} after {} s", name_of(other), limit.seconds()));
            }
        }
        Ok(())
    }

    /// Closes what a node has open at another one.
    pub(super) fn close(&mut self, node: usize, other: usize) {
        self.members[node].close(other, &mut self.nodes);
    }

    /// Opens what a node has no handle of and has not asked for.
    pub(super) fn open_missing(&mut self, node: usize) {
        for other in self.layout.asks(node).to_vec() {
            self.open(node, other);
        }
    }

    fn open(&mut self, node: usize, other: usize) {
        let place = &mut self.members[node];
        if place.misses(other) && !place.ask(other, &self.layout, &mut self.nodes) {
            let at = self.nodes.kernel.now() + LOOK_AGAIN;
            self.again.push(at, (node, place.life(), other));
        }
    }

    /// Has a node read the file that all have, if they have one, from all of which it has handles.
    pub(super) fn join(&mut self, node: usize) {
        if self.layout.replicated(node).is_some() && self.runs(node) {
            self.members[node].join(&self.layout, &mut self.nodes);
        }
    }

    /// The nodes of which a node has handles.
    pub(super) fn opened(&self, node: usize) -> &BTreeSet<usize> {
        self.members[node].open()
    }

    /// Has the client of a node ask for something. False: it does not run, or has no room or no
    /// handle for that.
    pub(super) fn submit(&mut self, node: usize, job: Job) -> bool {
        if !self.runs(node) {
            return false;
        }
        let Some(slot) = self.members[node].take_slot(job.other) else { return false };
        let number = self.jobs.begin(UnderWay { node, job, slot, sent: self.now() });
        let about = (number, slot, &job);
        let (origin, verb) = self.members[node].request(about, &self.layout, &mut self.nodes);
        let (class, deadline) = (job.class, None);
        let request = Request { verb, class, deadline, no_wait: false, fence: false };
        self.nodes.with(node, 0, |shard, io| {
            let now = io.now();
            shard.submit(origin, request, now, io);
        });
        true
    }

    /// How many requests are under way.
    pub(super) fn under_way(&self) -> usize {
        self.jobs.len()
    }

    /// A request that is over.
    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        self.jobs.poll_ended()
    }

    fn complete(&mut self, node: usize, completion: Completion) {
        match completion {
            Completion::Finished { origin, status, bytes, buffer, .. } => {
                let now = self.now();
                let (it, is_free) = self.jobs.end(origin.user_data, (status, bytes, buffer), now);
                if status == Status::Ok {
                    assert_eq!(bytes, it.job.bytes, "{}: {:?}", name_of(node), it.job);
                    self.compare(node, &it);
                }
                if is_free {
                    self.members[node].free_slot(it.slot);
                }
            }
            Completion::Released { origin } => {
                let it = self.jobs.release(origin.user_data);
                self.members[node].free_slot(it.slot);
            }
        }
    }

    /// What was read is what the other node has.
    fn compare(&self, node: usize, it: &UnderWay) {
        let (place, job) = (&self.members[node], &it.job);
        let bytes = self.nodes.kernel.bytes(place.id(), place.buffer(it.slot, job, &self.layout));
        let other = if job.other == self.layout.anybody() { node } else { job.other };
        let is_right = job.writes || self.members[other].has(bytes, job.offset);
        assert!(is_right, "{} has read other bytes: {job:?}", name_of(node));
    }

    /// What a node has written at the first one is there.
    pub(super) fn compare_written(&self, node: usize, offset: u64, length: u64) {
        let span = self.members[0].offered(offset, length as u32);
        let bytes = self.nodes.kernel.bytes(self.members[0].id(), span);
        assert!(self.members[node].has(bytes, 0), "{} wrote other bytes", name_of(node));
    }

    /// What peers ask the control threads for, and what clients are told.
    fn answer(&mut self) {
        while let Some(asked) = self.nodes.controls.poll_asked() {
            let Some(found) = self.nodes.controls.look_up(&asked) else { continue };
            let Nodes { controls, kernel, .. } = &mut self.nodes;
            let about = (asked.open.access, self.layout.length(asked.node));
            let place = &self.members[asked.node];
            let opened = found.map_err(|fault| fault.status);
            let opened = opened.map(|(found, right)| (place.target(&found, about, kernel), right));
            controls.answer(&asked, opened, kernel);
        }
        while let Some((node, effect)) = self.nodes.controls.poll_effect() {
            let Effect::Opened { ticket, result } = effect else { continue };
            if let Some(other) = self.members[node].answered(ticket, result) {
                let at = self.nodes.kernel.now() + OPEN_AGAIN;
                self.again.push(at, (node, self.members[node].life(), other));
            }
        }
    }

    /// Parts of reads that went on at another replica, at all daemons since their starts.
    pub(super) fn moved(&self) -> u64 {
        let of = |node: usize| {
            let reasons = self.nodes.shards(node)[0].report().reasons;
            reasons.retries.get(RetryReason::Replica.name()).copied().unwrap_or(0)
        };
        (0..self.members.len()).filter(|node| self.runs(*node)).map(of).sum()
    }

    /// Whether each node that runs has both connections to each that it asks and that runs.
    pub(super) fn is_whole(&mut self) -> bool {
        let (first, nodes) = (self.suspect, self.members.len());
        let alone = |node: &usize| self.runs(*node) && !self.has_its_lanes(*node);
        let found = (first..nodes).chain(0..first).find(alone);
        self.suspect = found.unwrap_or(first);
        found.is_none()
    }

    fn has_its_lanes(&self, node: usize) -> bool {
        let report = self.nodes.shards(node)[0].report();
        let mut up = BTreeMap::new();
        for peer in report.peers.iter().filter(|peer| !peer.inbound) {
            let is_up = |class| peer.lanes.iter().any(|lane| lane.up && lane.class == class);
            let both = [LaneClass::Latency, LaneClass::Bulk].map(is_up);
            up.insert(peer.name.as_str(), both == [true; 2]);
        }
        let asked = self.layout.asks(node).iter().filter(|other| self.runs(**other));
        asked.map(|other| name_of(*other)).all(|name| up.get(name.as_str()) == Some(&true))
    }

    /// A daemon dies with its client; how many requests of that die with it.
    pub(super) fn crash(&mut self, node: usize, notice: Notice) -> u64 {
        self.nodes.stop(node);
        self.nodes.kernel.crash(self.members[node].id(), notice);
        self.members[node].die();
        self.jobs.forget(node)
    }

    /// A daemon starts again, and its client opens what it had.
    pub(super) fn start(&mut self, node: usize) {
        let shard = self.shard(node);
        self.nodes.start(node, vec![shard]);
        self.provide(node);
        self.open_missing(node);
    }

    /// A node that does not run is elsewhere when it starts.
    pub(super) fn relocate(&mut self, node: usize) {
        let setup = &mut self.nodes.controls.nodes[node].setup;
        setup.address.set_port(setup.address.port() + 1);
        setup.config.listen.address = Some(setup.address);
    }

    /// Divides the network, or makes it one again.
    pub(super) fn divide(&mut self, halves: Vec<bool>) {
        let Nodes { controls, kernel, .. } = &mut self.nodes;
        controls.divide(halves, kernel);
    }

    /// Cuts a connection that is open, chosen by chance.
    pub(super) fn cut(&mut self, random: &mut Random) {
        let Nodes { controls, kernel, .. } = &mut self.nodes;
        let ends = controls.ends(kernel);
        if !ends.is_empty() {
            let connection = random.pick(ends).connection;
            kernel.reset(connection, Notice::Within(Nanos::from_millis(10)));
        }
    }

    /// Has the clock of a node jump.
    pub(super) fn jump(&mut self, node: usize, by: Nanos) {
        self.nodes.kernel.put_clock_forward(self.members[node].id(), by);
    }

    /// A source tells a node where all are, or is away.
    pub(super) fn tell(&mut self, node: usize, is_there: bool) {
        if !self.layout.is_discovered() {
            return;
        }
        let Nodes { controls, kernel, .. } = &mut self.nodes;
        let said = match is_there {
            true => {
                let at = |other: usize| controls.nodes[other].setup.address.to_string();
                Ok(self.layout.found(node, at))
            }
            false => Err("it does not answer".to_owned()),
        };
        controls.hear(node, Source::Files, said, kernel);
    }

    /// Ends all daemons, and says what they cost while they rested.
    pub(super) fn costs(mut self) -> Costs {
        let mut costs = Costs::default();
        for node in 0..self.members.len() {
            let Some(shard) = self.nodes.shards(node).first() else { continue };
            let report = shard.report();
            let lanes = report.peers.iter().flat_map(|peer| &peer.lanes).filter(|lane| lane.up);
            costs.lanes = costs.lanes.max(lanes.count() as u32);
            costs.staging = costs.staging.max(report.staging_lanes_bytes);
        }
        for node in 0..self.members.len() {
            let all = (self.options.heap)();
            self.nodes.controls.stop(node);
            let engine = (self.options.heap)();
            self.nodes.stop(node);
            costs.control += all - engine;
            costs.engine += engine - (self.options.heap)();
        }
        costs
    }
}
