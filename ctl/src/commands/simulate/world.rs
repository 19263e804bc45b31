//! The nodes of a scenario in virtual time: the daemon's own engine and control thread over the
//! simulated kernel. What a driver does beside (connecting, opening files) takes no time.

use std::collections::BTreeMap;

use piped_control::control::Effect;
use piped_control::opens::Found;
use piped_control::parties::Credentials;
use piped_core::access::{Access, Alignment, Creation, OpenKind};
use piped_core::ids::{DeviceId, HandleId, PeerId, QueueId, RegionId, SegmentId, SessionId};
use piped_core::io::Io as _;
use piped_core::limits::{FRAGMENT_BYTES_MAX, FRAME_TIME};
use piped_core::modes::{EagerMode, ForcedPlan, PlannerMode, ZeroCopyMode};
use piped_core::request::{ArenaBuffer, Class, Completion, Origin, Request, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{
    Command, FileTarget, Limits, OpenRequest, Output, PeerLimits, RegionTarget, Target,
};
use piped_engine::shard::{Shard, ShardConfig};
use piped_model::stage::Stage;
use piped_report::dial::DialPlace;
use piped_report::shard::Held;
use piped_report::trace::TransferTrace;
use piped_sim::{Cost, DeviceCosts, Faults, InodeId, NodeId, SimKernel};
use piped_world::controls::{Controls, OWN_USER, Setup, Surroundings, region};
use piped_world::nodes::Nodes;

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

/// The export of the disks of a node; a disk is a path below it.
const EXPORT: &str = "disk";
/// The name under which the memory of a node's client is offered.
const MEMORY: &str = "memory";

pub(in crate::commands) struct World {
    machines: Nodes,
    nodes: Vec<Node>,
    /// Seconds that a byte takes on the slowest link.
    slowest: f64,
    bytes: u64,
    /// How the open at a peer ended that somebody waits for.
    opened: Option<Result<u64, Status>>,
    requests: u64,
    recordings: u64,
    /// Links, and whether each leads to second addresses.
    #[cfg(test)]
    links: Vec<(bool, piped_sim::LinkId)>,
}

struct Node {
    name: String,
    id: NodeId,
    disks: BTreeMap<String, (DeviceId, InodeId, Stage)>,
    arena: SegmentId,
    limits: PeerLimits,
    /// Open handles by the ends that they stand for.
    handles: BTreeMap<String, HandleId>,
    /// Ended requests, by number.
    ended: BTreeMap<u64, Status>,
}

impl World {
    /// # Errors
    /// Mistakes in the scenario.
    pub(in crate::commands) fn new(scenario: &Scenario) -> Result<Self, String> {
        let mut bytes = 4096;
        for transfer in &scenario.transfers {
            bytes = (transfer.bytes()? * transfer.at_once()?).max(bytes);
        }
        let kernel = SimKernel::new(scenario.seed, Faults::none());
        let surroundings = Surroundings::prompt(FREE, SOCKET_BUFFER);
        let mut world = Self {
            machines: Nodes::new(kernel, Controls::new(scenario.seed, surroundings)),
            nodes: Vec::new(),
            slowest: 0.0,
            bytes,
            opened: None,
            requests: 0,
            recordings: 0,
            #[cfg(test)]
            links: Vec::new(),
        };
        for (name, node) in &scenario.nodes {
            world.add_node(scenario, name, node)?;
        }
        for link in &scenario.links {
            let [from, to] = &link.nodes;
            let ends = [world.nodes[world.find(from)?].id, world.nodes[world.find(to)?].id];
            let stage = link.stage().map_err(|error| format!("link: {error}"))?;
            world.slowest = world.slowest.max(stage.per_byte);
            for way in [ends, [ends[1], ends[0]]] {
                let id = world.machines.kernel.add_link(scenario::cost(&stage), None);
                world.machines.kernel.set_piece(id, PIECE_BYTES);
                world.machines.controls.lay(way, link.is_second(), id);
                #[cfg(test)]
                world.links.push((link.is_second(), id));
            }
        }
        world.settle();
        scenario.dials.iter().try_for_each(|dial| world.dial(dial))?;
        Ok(world)
    }

    /// Changes the costs of all links that lead to second addresses, or of all others.
    #[cfg(test)]
    pub(super) fn relay(&mut self, second: bool, stage: &Stage) {
        for &(_, link) in self.links.iter().filter(|(of, _)| *of == second) {
            self.machines.kernel.set_link(link, scenario::cost(stage));
        }
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
        let id = self.machines.kernel.add_node(4096);
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
        let kernel = &mut self.machines.kernel;
        let mut disks = BTreeMap::new();
        for (disk, said) in &node.disks {
            let stage = said.stage().map_err(|error| format!("disk {name}:{disk}: {error}"))?;
            let cost = scenario::cost(&stage);
            let device = kernel.add_device(DeviceCosts {
                read: cost,
                write: cost,
                sync: FREE,
                window: said.window,
                cached: None,
                capacity: 1 << 30,
                alignment: Alignment { offset: 512, memory: 512 },
                spread: said.spread().map_err(|error| format!("disk {name}:{disk}: {error}"))?,
                tells_at_the_end: said.tells_at_the_end,
            });
            let inode = kernel.create_file(id, device, vec![7; self.bytes as usize]);
            disks.insert(disk.clone(), (device, inode, stage));
        }
        let staging = kernel.add_segment(id, STAGING);
        let arena = kernel.add_segment(id, self.bytes);
        kernel.share(id, arena);
        let (handles, ended) = (BTreeMap::new(), BTreeMap::new());
        let limits = node.limits().map_err(|error| format!("node {name}: {error}"))?;
        let own = name.to_owned();
        self.nodes.push(Node { name: own, id, disks, arena, limits, handles, ended });
        let (node, length) =
            (self.machines.add(setup(scenario, name, id), vec![shard])?, self.bytes);
        self.command(node, Command::AddStaging { segment: staging, length: STAGING });
        self.command(node, Command::SetLimits(Limits { peer: limits, ..Limits::NONE }));
        let control = self.machines.controls.control_mut(node).ok_or("the node runs")?;
        let _ = control.enter_session(Credentials::of(OWN_USER, OWN_USER), 1);
        let offered = region(SESSION, 0..length, ALL);
        control.offer_region(MEMORY, offered, length).map_err(|fault| fault.text)?;
        self.command(node, Command::OpenSession { session: SESSION, weight: 1, home: 0, user: 0 });
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

    /// What a node lets be under way of what others read there, or write.
    pub(super) fn held(&self, node: usize, reads: bool) -> Held {
        let limits = self.nodes[node].limits;
        match reads {
            true => Held::Staging(limits.read_staging(STAGING)),
            false => Held::Credit(limits.credit_window(STAGING)),
        }
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
        self.machines.command(node, 0, command);
    }

    /// The number of one node as a peer of another.
    pub(super) fn peer(&self, node: usize, other: usize) -> Option<PeerId> {
        self.machines.controls.control(node).peers().by_name(&self.nodes[other].name)
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
            let (kind, name, path) = match disk {
                Some(disk) => (OpenKind::File, EXPORT, disk.into()),
                None => (OpenKind::Region, MEMORY, Vec::new()),
            };
            let open = OpenRequest {
                kind,
                name: name.to_owned(),
                path,
                access: ALL,
                create: Creation::No,
            };
            let peer = self.peer(node, owner).ok_or_else(|| format!("{what} is no peer"))?;
            let control = self.machines.controls.control_mut(node).ok_or("the node runs")?;
            let ticket = control.expect_open();
            self.command(
                node,
                Command::OpenRemote { ticket, session: SESSION, handle, peer, open },
            );
            self.run_until(|world| world.opened.is_some())?;
            if let Some(Err(status)) = self.opened.take() {
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
                let buffered = self.machines.kernel.open_file(*id, inode, false);
                Target::File(FileTarget {
                    direct: None,
                    buffered,
                    device,
                    length,
                    access: ALL,
                    foreign: false,
                    cached: false,
                })
            }
            None => Target::Region(RegionTarget {
                region: RegionId(1),
                segment: *arena,
                offset: 0,
                length,
                access: ALL,
                home: 0,
            }),
        }
    }

    /// Runs requests of a node's client that begin together to their ends, and returns the mean of
    /// their times, in seconds.
    pub(super) fn run(&mut self, node: usize, verbs: &[Verb], class: Class) -> Result<f64, String> {
        self.settle();
        let began = self.now();
        for &verb in verbs {
            self.begin_one(node, verb, class);
        }
        let (mut sum, mut left) = (0.0, verbs.len());
        while left > 0 {
            self.run_until(|world| !world.nodes[node].ended.is_empty())?;
            let took = self.now().since(began).seconds();
            for status in std::mem::take(&mut self.nodes[node].ended).into_values() {
                if status != Status::Ok {
                    return Err(format!("a transfer failed: {status}"));
                }
                (sum, left) = (sum + took, left - 1);
            }
        }
        Ok(sum / verbs.len() as f64)
    }

    /// Begins a bulk request of a node's client, and returns its number.
    #[cfg(test)]
    pub(in crate::commands) fn begin_any(&mut self, node: usize, verb: Verb) -> u64 {
        self.begin_one(node, verb, Class::Bulk)
    }

    fn begin_one(&mut self, node: usize, verb: Verb, class: Class) -> u64 {
        self.requests += 1;
        let number = self.requests;
        let origin = Origin { session: SESSION, queue: QueueId(0), slot: 0, user_data: number };
        let request = Request { verb, class, deadline: None, no_wait: false, fence: false };
        self.machines.with(node, 0, |shard, io| {
            let now = io.now();
            shard.submit(origin, request, now, io);
        });
        number
    }

    pub(in crate::commands) fn now(&self) -> Nanos {
        self.machines.kernel.now()
    }

    /// Part of the arena of a node's client.
    pub(super) fn buffer(offset: u64, bytes: u64) -> ArenaBuffer {
        ArenaBuffer { segment: 0, offset, length: bytes }
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
            let name = &self.nodes[node].name;
            let recording = self.machines.shards(node)[0].recording();
            let traces = recording.map(|it| it.report(it.began().unwrap_or_default()));
            all.extend(traces.into_iter().flatten().map(|trace| (name.clone(), trace)));
        }
        all
    }

    /// Runs the world until nothing moves.
    fn settle(&mut self) {
        let until = self.now() + Nanos::from_millis(100);
        while self.step(until) {}
    }

    fn run_until(&mut self, holds: impl Fn(&Self) -> bool) -> Result<(), String> {
        let until = self.now() + PATIENCE;
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
        let mut told = Vec::new();
        let is_before = self.machines.step(until, &mut told) && self.now() < until;
        for (node, _, output) in told {
            if let Output::Completion(Completion::Finished { origin, status, .. }) = output {
                self.nodes[node].ended.insert(origin.user_data, status);
            }
        }
        while let Some(asked) = self.machines.controls.poll_asked() {
            let opened = match self.machines.controls.look_up(&asked) {
                None => continue,
                Some(Err(fault)) => Err(fault.status),
                Some(Ok((Found::File { .. }, right))) => {
                    let disk = String::from_utf8_lossy(&asked.open.path);
                    Ok((self.target(asked.node, Some(&disk)), right))
                }
                Some(Ok((_, right))) => Ok((self.target(asked.node, None), right)),
            };
            self.machines.controls.answer(&asked, opened, &self.machines.kernel);
        }
        while let Some((_, effect)) = self.machines.controls.poll_effect() {
            if let Effect::Opened { result, .. } = effect {
                self.opened = Some(result);
            }
        }
        is_before
    }
}

/// What the files of a node would say: the other nodes, and its disks for all of them.
fn setup(scenario: &Scenario, name: &str, id: NodeId) -> Setup {
    let numbered = scenario.nodes.keys().map(String::as_str).enumerate();
    let (own, peers): (Vec<_>, Vec<_>) = numbered.partition(|(_, other)| *other == name);
    let twice = peers.clone().into_iter().filter(|(_, other)| scenario.has_second(name, other));
    Setup::plain(own[0], peers, EXPORT, vec![id]).with_second(own[0].0, twice)
}
