//! The nodes of a scenario in virtual time: the daemon's own engine over the simulated kernel. The
//! other tasks of a daemon (dialling peers, opening files, solving plans) are done here, at once.

use std::collections::BTreeMap;

use piped_core::access::{Access, Alignment, OpenKind};
use piped_core::ids::{DeviceId, HandleId, PeerId, QueueId, RegionId, SegmentId, SessionId};
use piped_core::io::Io as _;
use piped_core::limits::{FRAGMENT_BYTES_MAX, FRAME_TIME};
use piped_core::modes::{EagerMode, ForcedPlan, PlannerMode, ZeroCopyMode};
use piped_core::request::{ArenaBuffer, Class, Completion, Origin, Request, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{
    Caller, Command, Event, FileTarget, OpenRequest, Output, RegionTarget, Target,
};
use piped_engine::shard::{Shard, ShardConfig};
use piped_model::stage::Stage;
use piped_planner::solve::solve;
use piped_report::dial::DialPlace;
use piped_report::trace::TransferTrace;
use piped_sim::{Cost, DeviceCosts, Faults, InodeId, LinkId, NodeId, SimKernel};

use super::scenario::{self, Dial, Scenario};

/// Many requests at once, for tests of procedures.
#[cfg(test)]
mod outstanding;

const ALL: Access = Access::ALL;
const SESSION: SessionId = SessionId(1);
const STAGING: u64 = 256 << 20;
/// Larger than all fragments under way, so that only the costs of the scenario slow a transfer.
const SOCKET_BUFFER: usize = 64 << 20;
const FREE: Cost = Cost { latency: Nanos::ZERO, overhead: Nanos::ZERO, nanos_per_byte: 0.0 };
/// A transfer that takes longer in virtual time does not end.
const PATIENCE: Nanos = Nanos::from_millis(3_000_000);

/// Bytes that arrive at once: a packet of a network with long ones.
const PIECE_BYTES: usize = 8192;

pub(in crate::commands) struct World {
    kernel: SimKernel,
    nodes: Vec<Node>,
    links: BTreeMap<(usize, usize), [LinkId; 2]>,
    /// Seconds that a byte takes on the slowest link.
    slowest: f64,
    bytes: u64,
    tickets: u64,
    requests: u64,
    recordings: u64,
}

struct Node {
    name: String,
    id: NodeId,
    shard: Shard,
    disks: BTreeMap<String, (DeviceId, InodeId, Stage)>,
    arena: SegmentId,
    /// Open handles by the ends that they stand for.
    handles: BTreeMap<String, HandleId>,
    /// Answers to opens, by number.
    opened: BTreeMap<u64, Result<u64, Status>>,
    /// Ended requests, by number.
    ended: BTreeMap<u64, (Status, u64)>,
}

impl World {
    /// # Errors
    /// Mistakes in the scenario.
    pub(in crate::commands) fn new(scenario: &Scenario) -> Result<Self, String> {
        let mut bytes = 4096;
        for transfer in &scenario.transfers {
            bytes = transfer.bytes()?.max(bytes);
        }
        let mut world = Self {
            kernel: SimKernel::new(scenario.seed, Faults::none()),
            nodes: Vec::new(),
            links: BTreeMap::new(),
            slowest: 0.0,
            bytes,
            tickets: 0,
            requests: 0,
            recordings: 0,
        };
        for (name, node) in &scenario.nodes {
            world.add_node(scenario, name, node)?;
        }
        for node in 0..world.nodes.len() {
            for peer in (0..world.nodes.len()).filter(|&peer| peer != node) {
                let name = world.nodes[peer].name.clone();
                world.command(node, Command::AddPeer { peer: PeerId(peer as u32), name });
            }
        }
        for link in &scenario.links {
            let [from, to] = [world.find(&link.nodes[0])?, world.find(&link.nodes[1])?];
            let stage = link.stage().map_err(|error| format!("link: {error}"))?;
            world.slowest = world.slowest.max(stage.per_byte);
            let cost = scenario::cost(&stage);
            let ways = [(); 2].map(|()| world.kernel.add_link(cost, None));
            ways.iter().for_each(|&way| world.kernel.set_piece(way, PIECE_BYTES));
            world.links.insert((from, to), ways);
            world.links.insert((to, from), [ways[1], ways[0]]);
        }
        world.settle();
        scenario.dials.iter().try_for_each(|dial| world.dial(dial))?;
        Ok(world)
    }

    /// Sets a dial on its node.
    pub(super) fn dial(&mut self, dial: &Dial) -> Result<(), String> {
        let node = self.find(&dial.node)?;
        let cost = dial.cost().map_err(|error| format!("dial {}: {error}", dial.stage))?;
        for place in self.places(node, dial)? {
            self.command(node, Command::SetDial { place, cost });
        }
        Ok(())
    }

    fn add_node(
        &mut self,
        scenario: &Scenario,
        name: &str,
        node: &scenario::Node,
    ) -> Result<(), String> {
        let id = self.kernel.add_node(4096);
        let shard = Shard::new(ShardConfig {
            node_name: name.to_owned(),
            incarnation: 1,
            seed: scenario.seed,
            transfers_max: 256,
            ops_max: 1024,
            deadline_default: PATIENCE,
            planner: PlannerMode::Auto,
            calibration: scenario.calibration,
            zero_copy: ZeroCopyMode::Auto,
            eager: EagerMode::Auto,
            serial_first: false,
        });
        let mut disks = BTreeMap::new();
        for (disk, said) in &node.disks {
            let stage = said.stage().map_err(|error| format!("disk {name}:{disk}: {error}"))?;
            let cost = scenario::cost(&stage);
            let device = self.kernel.add_device(DeviceCosts {
                read: cost,
                write: cost,
                sync: FREE,
                window: said.window,
                capacity: 1 << 30,
                alignment: Alignment { offset: 512, memory: 512 },
                tells_at_the_end: said.tells_at_the_end,
            });
            let inode = self.kernel.create_file(id, device, vec![7; self.bytes as usize]);
            disks.insert(disk.clone(), (device, inode, stage));
        }
        let staging = self.kernel.add_segment(id, STAGING);
        let arena = self.kernel.add_segment(id, self.bytes);
        self.kernel.share(id, arena);
        let node = Node {
            name: name.to_owned(),
            id,
            shard,
            disks,
            arena,
            handles: BTreeMap::new(),
            opened: BTreeMap::new(),
            ended: BTreeMap::new(),
        };
        self.nodes.push(node);
        let node = self.nodes.len() - 1;
        self.command(node, Command::AddStaging { segment: staging, length: STAGING });
        self.command(node, Command::OpenSession { session: SESSION, weight: 1 });
        let length = self.bytes;
        self.command(node, Command::AddSegment { session: SESSION, segment: arena, length });
        Ok(())
    }

    /// Index of a node by its name.
    pub(super) fn find(&self, name: &str) -> Result<usize, String> {
        let all =
            || self.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        let place = self.nodes.iter().position(|node| node.name == name);
        place.ok_or_else(|| format!("there is no node `{name}`: there are {}", all()))
    }

    /// The costs of a disk.
    pub(super) fn disk(&self, node: usize, disk: &str) -> Result<Stage, String> {
        let found = self.nodes[node].disks.get(disk).map(|&(_, _, stage)| stage);
        found.ok_or_else(|| format!("{} has no disk `{disk}`", self.nodes[node].name))
    }

    /// Places of a dial's stage, with disks by their names.
    fn places(&self, node: usize, dial: &Dial) -> Result<Vec<DialPlace>, String> {
        let Some((disk, ways)) = dial.disk()? else {
            return DialPlace::parse(&dial.stage).map_err(|fault| fault.to_string());
        };
        self.disk(node, disk)?;
        let (device, ..) = self.nodes[node].disks[disk];
        Ok(ways.iter().map(|&write| DialPlace::Disk { device, write }).collect())
    }

    pub(super) fn command(&mut self, node: usize, command: Command) {
        let Node { id, shard, .. } = &mut self.nodes[node];
        shard.handle_command(command, &mut self.kernel.io(*id));
    }

    /// Sets how all nodes choose sizes from now on.
    pub(super) fn plan(&mut self, mode: PlannerMode, forced: Option<ForcedPlan>) {
        for node in 0..self.nodes.len() {
            self.command(node, Command::SetPlanner(mode));
            self.command(node, Command::ForcePlan(forced));
        }
    }

    /// Handle of a node's client for `NODE:DISK` or `NODE`.
    pub(super) fn open(&mut self, node: usize, what: &str) -> Result<HandleId, String> {
        if let Some(&handle) = self.nodes[node].handles.get(what) {
            return Ok(handle);
        }
        let (owner, disk) =
            what.split_once(':').map_or((what, None), |(node, disk)| (node, Some(disk)));
        let owner = self.find(owner)?;
        if let Some(disk) = disk {
            self.disk(owner, disk)?;
        }
        let handle = HandleId(self.nodes[node].handles.len() as u32 + 1);
        if owner == node {
            let target = self.target(owner, disk);
            self.command(node, Command::InstallHandle { session: SESSION, handle, target });
        } else {
            let (kind, name) = match disk {
                Some(disk) => (OpenKind::File, disk.to_owned()),
                None => (OpenKind::Region, "memory".to_owned()),
            };
            let open = OpenRequest { kind, name, path: "file".into(), access: ALL, create: false };
            self.tickets += 1;
            let (ticket, peer) = (self.tickets, PeerId(owner as u32));
            let command = Command::OpenRemote { ticket, session: SESSION, handle, peer, open };
            self.command(node, command);
            self.run_until(|world| world.nodes[node].opened.contains_key(&ticket))?;
            if let Some(Err(status)) = self.nodes[node].opened.get(&ticket) {
                return Err(format!("{what} cannot be opened: {status}"));
            }
        }
        self.nodes[node].handles.insert(what.to_owned(), handle);
        Ok(handle)
    }

    fn target(&mut self, node: usize, disk: Option<&str>) -> Target {
        let Node { id, disks, arena, .. } = &self.nodes[node];
        let length = self.bytes;
        match disk.and_then(|disk| disks.get(disk)) {
            Some(&(device, inode, _)) => {
                let buffered = self.kernel.open_file(*id, inode, false);
                Target::File(FileTarget {
                    direct: None,
                    buffered,
                    device,
                    length,
                    access: ALL,
                    foreign: false,
                })
            }
            None => {
                let region = RegionId(0);
                Target::Region(RegionTarget {
                    region,
                    segment: *arena,
                    offset: 0,
                    length,
                    access: ALL,
                })
            }
        }
    }

    /// Runs a request of a node's client to its end, and returns its time.
    pub(super) fn run(&mut self, node: usize, verb: Verb) -> Result<Nanos, String> {
        self.settle();
        self.requests += 1;
        let number = self.requests;
        let origin = Origin { session: SESSION, queue: QueueId(0), slot: 0, user_data: number };
        let request =
            Request { verb, class: Class::Bulk, deadline: None, no_wait: false, fence: false };
        let began = self.kernel.now();
        let Node { id, shard, .. } = &mut self.nodes[node];
        let io = &mut self.kernel.io(*id);
        let now = io.now();
        shard.submit(origin, request, now, io);
        self.run_until(|world| world.nodes[node].ended.contains_key(&number))?;
        match self.nodes[node].ended.remove(&number) {
            Some((Status::Ok, _)) => Ok(self.kernel.now().since(began)),
            Some((status, _)) => Err(format!("a transfer failed: {status}")),
            None => Err("a transfer does not end".to_owned()),
        }
    }

    /// The whole arena of a node's client.
    pub(super) fn buffer(bytes: u64) -> ArenaBuffer {
        ArenaBuffer { segment: 0, offset: 0, length: bytes }
    }

    /// Makes all nodes record their next transfer.
    pub(super) fn record(&mut self) {
        self.recordings += 1;
        let recording = self.recordings;
        for node in 0..self.nodes.len() {
            self.command(node, Command::Trace { recording, transfers: 1 });
        }
    }

    /// Recordings of all nodes, by node.
    pub(super) fn recorded(&mut self) -> Vec<(String, TransferTrace)> {
        self.settle();
        let mut all = Vec::new();
        for node in 0..self.nodes.len() {
            self.command(node, Command::Trace { recording: self.recordings, transfers: 0 });
            let Node { name, shard, .. } = &self.nodes[node];
            let recording = shard.recording();
            let traces = recording.map(|it| it.report(it.began().unwrap_or_default()));
            all.extend(traces.into_iter().flatten().map(|trace| (name.clone(), trace)));
        }
        all
    }

    /// Runs the world until nothing moves.
    fn settle(&mut self) {
        let until = self.kernel.now() + Nanos::from_millis(100);
        while self.step(until) {}
    }

    fn run_until(&mut self, holds: impl Fn(&Self) -> bool) -> Result<(), String> {
        let until = self.kernel.now() + PATIENCE;
        while !holds(self) {
            if !self.step(until) {
                return Err(self.endless());
            }
        }
        Ok(())
    }

    /// Reason why a transfer does not end, if it is known: a frame takes longer than its lane may
    /// be silent, so the lane is lost and its transfers begin again and again.
    fn endless(&self) -> String {
        let never = "a transfer does not end in 50 minutes of virtual time";
        let least = f64::from(FRAGMENT_BYTES_MAX) / FRAME_TIME.seconds();
        if self.slowest * least <= 1.0 {
            return never.to_owned();
        }
        format!(
            "{never}: a link has {:.1} kB/s, and a lane is lost on which a frame does not arrive \
             within {:.0} s; frames have up to 1 MiB, so give the link at least {:.1} kB/s, or let \
             the plan have smaller fragments",
            1e-3 / self.slowest,
            FRAME_TIME.seconds(),
            least * 1e-3,
        )
    }

    /// Gives every node a turn, or lets time pass. False when `until` is reached.
    fn step(&mut self, until: Nanos) -> bool {
        let mut worked = false;
        let mut next = None;
        let mut earlier = |at: Nanos| next = Some(next.map_or(at, |next: Nanos| next.min(at)));
        for node in 0..self.nodes.len() {
            let id = self.nodes[node].id;
            let busy = self.kernel.busy_until(id);
            if busy > self.kernel.now() {
                earlier(busy);
                continue;
            }
            worked |= self.turn(node);
            if let Some(at) = self.nodes[node].shard.poll_timeout() {
                let at = self.kernel.world_time(id, at);
                worked |= at <= self.kernel.now();
                earlier(at);
            }
        }
        if let Some(at) = self.kernel.next_event() {
            earlier(at);
        }
        let now = self.kernel.now();
        if worked {
            self.kernel.advance(now);
            return true;
        }
        let at = next.unwrap_or(Nanos::MAX).max(now).min(until);
        self.kernel.advance(at);
        at < until
    }

    fn turn(&mut self, node: usize) -> bool {
        let id = self.nodes[node].id;
        let mut worked = false;
        while let Some(done) = self.kernel.poll_done(id) {
            self.nodes[node].shard.handle_done(done, &mut self.kernel.io(id));
            worked = true;
        }
        worked |= !self.nodes[node].shard.drive(&mut self.kernel.io(id));
        while let Some(output) = self.nodes[node].shard.poll_output() {
            worked = true;
            self.take(node, output);
        }
        worked
    }

    fn take(&mut self, node: usize, output: Output) {
        match output {
            Output::Completion(Completion::Finished { origin, status, bytes, .. }) => {
                self.nodes[node].ended.insert(origin.user_data, (status, bytes));
            }
            Output::Event(Event::Connect { peer, class, .. }) => {
                let other = peer.0 as usize;
                let ways = *self
                    .links
                    .entry((node, other))
                    .or_insert_with(|| [(); 2].map(|()| self.kernel.add_link(FREE, None)));
                let ends = [self.nodes[node].id, self.nodes[other].id];
                let (_, sockets) = self.kernel.connect(ends, ways, SOCKET_BUFFER);
                self.command(
                    other,
                    Command::LaneAccepted {
                        socket: sockets[1],
                        caller: Caller::anybody(),
                        keys: None,
                    },
                );
                self.command(
                    node,
                    Command::LaneConnected { peer, class, socket: sockets[0], keys: None },
                );
            }
            Output::Event(Event::ServeOpen { ticket, open, .. }) => {
                let disk = (open.kind == OpenKind::File).then_some(open.name.as_str());
                let result = Ok(self.target(node, disk));
                self.command(node, Command::ServeOpened { ticket, result });
            }
            Output::Event(Event::RemoteOpened { ticket, result, .. }) => {
                self.nodes[node].opened.insert(ticket, result);
            }
            Output::Plan(question) => {
                self.command(node, Command::Planned(Box::new(solve(&question))));
            }
            Output::Completion(_) | Output::Progress(_) | Output::Event(_) => {}
        }
    }
}
