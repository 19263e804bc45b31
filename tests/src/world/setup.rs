//! Making a world: nodes, files, clients with arenas and regions, handles.

use std::collections::{BTreeMap, BTreeSet};

use piped_config::NodeKey;
use piped_control::parties::Credentials;
use piped_core::access::Access;
use piped_core::ids::{RegionId, SegmentId, SessionId};
use piped_core::io::Span;
use piped_core::link::Checksum;
use piped_core::spread::LatencySpread;
use piped_core::units::Nanos;
use piped_engine::command::{
    ChannelTarget, Command, DirectoryTarget, FileTarget, RegionTarget, Target,
};
use piped_engine::shard::{Shard, ShardConfig};
use piped_sim::{Cost, DeviceCosts, EventQueue, InodeId, Random, SimKernel};
use piped_world::controls::{Controls, OWN_USER, Setup, Surroundings, region};
use zeroize::Zeroizing;

use super::calls::CALL_ROOM_MAX;
use super::expect::Expected;
use super::locking::Locking;
use super::{
    Client, ClientState, NodeState, Object, ObjectKind, OpeningState, Options, Plan, World, naming,
    node_name,
};
use crate::mail::Messages;
use crate::operators::{self, CLIENT, EXPORT, NAMES, Operators};

pub(super) const NODES: usize = 2;
pub(super) const ALL: Access = Access::ALL;
/// What a handle of a directory may do.
pub(super) const NAMES_TOO: Access = Access { names: true, ..Access::READ_WRITE };

impl World {
    /// A world whose whole course follows from the seed and the options.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let kernel = SimKernel::new(random.bits(), options.faults);
        // One link each way, shared by all lanes between the two nodes.
        let surroundings = surroundings(&options, link_cost(&mut random));
        let mut world = Self {
            kernel,
            options,
            messages: Messages::default(),
            boards: Vec::new(),
            names: Vec::new(),
            locking: Locking::default(),
            signals_made: 0,
            nodes: Vec::new(),
            clients: Vec::new(),
            objects: Vec::new(),
            plans: EventQueue::new(),
            controls: Controls::new(seed, surroundings),
            operators: None,
            tickets: BTreeMap::new(),
            given_up: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            turns: 0,
            turns_at_once: 0,
            served_opens: 0,
            lanes_refused: 0,
            lanes_down: Vec::new(),
            disturbed: false,
            clocks_differ: false,
            ending: false,
            settled: false,
            seen: BTreeMap::new(),
            random,
        };
        world.kernel.set_zero_copy(options.lending);
        let random = &mut world.random;
        let may_do_without_sums = !options.changes_payloads();
        world.operators = options
            .operators
            .map(|it| Operators::new(operators::Options { may_do_without_sums, ..it }, random));
        for node in 0..NODES {
            world.add_node(node);
        }
        for client in 0..options.clients {
            world.add_client(client);
        }
        for client in 0..options.clients {
            world.open_objects(client);
            if options.requests > 0 {
                world.plans.push(Nanos::ZERO, Plan::Think { client });
            }
        }
        world.plan_disasters();
        world
    }

    /// A daemon starts (again) on the node.
    pub(super) fn start_shard(&mut self, node: usize) {
        let config = ShardConfig {
            node_name: node_name(node),
            incarnation: self.random.bits(),
            seed: self.random.bits(),
            // More than the clients of a node ever have under way, as in the daemon: no request is
            // refused for want of a place.
            transfers_max: 2048,
            ops_max: self.options.ops_max,
            deadline_default: self.options.deadline,
            planner: self.options.planner,
            calibration: self.options.calibration,
            zero_copy: self.options.zero_copy,
            eager: self.options.eager,
            serial_first: self.options.serial_first,
        };
        let shard = Shard::new(config).with_lane_rest_time(self.options.lane_rest_time);
        self.nodes[node].shard = Some(shard);
        let id = self.nodes[node].id;
        let length = self.options.staging;
        let segment = self.kernel.add_segment(id, length);
        self.command(node, Command::AddStaging { segment, length });
    }

    /// What the files of a node say: the other node, and all its files for everybody.
    fn setup(&self, node: usize) -> Setup {
        if let Some(operators) = &self.operators {
            return operators.setup(node, vec![self.nodes[node].id], &self.controls);
        }
        let peers = (0..NODES).filter(|&other| other != node).map(|other| (other, NAMES[other]));
        let shards = vec![self.nodes[node].id];
        let mut setup = Setup::plain((node, NAMES[node]), peers.clone(), EXPORT, shards);
        setup.config.exports.values_mut().for_each(|export| export.names = true);
        if self.options.two_ways {
            setup = setup.with_second(node, peers);
        }
        let checksum = match self.options.changes_payloads() {
            true => Checksum::Payload,
            false => self.options.checksums[node],
        };
        setup.config.peers.values_mut().for_each(|peer| peer.checksum = checksum);
        if let Some(protection) = self.options.sealed {
            let key = |node: usize| NodeKey::of_private(Zeroizing::new([node as u8 + 1; 32]));
            setup.config.security.mode = protection;
            setup.config.listen.allow_plain.clear();
            for (name, peer) in &mut setup.config.peers {
                let other = NAMES.iter().position(|it| it == name).expect("a node");
                peer.key = Some(key(other).public());
            }
            setup.own = Some(key(node));
        }
        setup
    }

    /// Offers memory of a client under a name.
    pub(super) fn offer_region(
        &mut self,
        node: usize,
        owner: SessionId,
        name: &str,
        length: u64,
    ) -> RegionId {
        let source = region(owner, 0..length, ALL);
        let control = self.controls.control_mut(node).expect("the node runs");
        let region = control.offer_region(name, source, length).expect("a new name").region;
        let owner = self.clients.iter_mut().rfind(|it| (it.node, it.session) == (node, owner));
        owner.expect("it has come").offers.insert(region);
        region
    }

    /// Open whatever the client has no handle of: at once if it is local, else by asking the peer.
    pub(super) fn open_objects(&mut self, client: usize) {
        for object in 0..self.objects.len() {
            let opened = self.clients[client].handles.iter().any(|open| {
                open.object == object && !matches!(open.state, OpeningState::Failed(_))
            });
            if !opened && !self.objects[object].gone && !naming::is_strange(self, client, object) {
                self.open_object(client, object);
            }
        }
    }

    /// Open an object on its own node, as the control thread does.
    pub(super) fn target(&mut self, object: usize, client: Option<usize>) -> Target {
        if let Some((channel, receives)) = self.channel_of(object, client) {
            let ObjectKind::Channel { owner, .. } = self.objects[object].kind else {
                unreachable!("it is one")
            };
            let owner = self.clients[owner].session;
            return Target::Channel(ChannelTarget { channel, receives, home: 0, owner });
        }
        let node = &self.nodes[self.objects[object].node];
        match self.objects[object].kind {
            ObjectKind::File(inode) => {
                let alignment = piped_core::access::Alignment { offset: 512, memory: 4 };
                let direct = self.random.chance(0.8);
                let direct =
                    direct.then(|| (self.kernel.open_file(node.id, inode, true), alignment));
                let foreign = node.foreign;
                Target::File(FileTarget {
                    direct,
                    buffered: self.kernel.open_file(node.id, inode, false),
                    device: node.device,
                    length: self.kernel.file_content(inode).len() as u64,
                    access: ALL,
                    foreign,
                    cached: false,
                })
            }
            ObjectKind::Region { region, segment, length, .. }
            | ObjectKind::Board { region, segment, length, .. } => {
                let (offset, access, home) = (0, ALL, 0);
                Target::Region(RegionTarget { region, segment, offset, length, access, home })
            }
            ObjectKind::Directory { directory, .. } => Target::Directory(DirectoryTarget {
                directory: self.kernel.open_file(node.id, directory, false),
                device: node.device,
                access: NAMES_TOO,
                foreign: node.foreign,
            }),
            ObjectKind::Channel { .. } => unreachable!("it is one of the above"),
        }
    }

    fn add_node(&mut self, node: usize) {
        let id = self.kernel.add_node(self.options.ops_max as usize);
        let files: Vec<_> = (0..self.options.files).map(|_| self.areas(true)).collect();
        let used: u64 = files.iter().map(|(_, content)| content.len() as u64).sum();
        let capacity = self.options.spare.map_or(1 << 30, |spare| used + spare);
        let costs = self.device_costs(capacity);
        let device = self.kernel.add_device(costs);
        self.nodes.push(NodeState {
            id,
            shard: None,
            device,
            foreign: self.random.chance(0.2),
            busy_until: Nanos::ZERO,
            lane_ups: 0,
            rights: 0,
        });
        for (file, (areas, content)) in files.into_iter().enumerate() {
            let inode = self.kernel.create_file(id, device, content.clone());
            let length = content.len() as u64;
            cache_parts(&mut self.kernel, inode, length, (file % 2 == 1, length));
            self.add_object(node, format!("file-{file}"), ObjectKind::File(inode), areas, &content);
        }
        let setup = self.setup(node);
        self.controls.add(setup, &self.kernel).expect("a sound configuration");
        self.start_shard(node);
    }

    fn add_client(&mut self, client: usize) {
        let node = client % NODES;
        let id = self.nodes[node].id;
        let user = match self.options.operators {
            Some(_) => CLIENT + (client / NODES) as u32,
            None => OWN_USER,
        };
        self.clients.push(Client {
            node,
            user,
            session: SessionId(0),
            offers: BTreeSet::new(),
            state: ClientState::Gone,
            arena: SegmentId(0),
            region_segments: Vec::new(),
            handles: Vec::new(),
            handles_made: 0,
            calls: BTreeMap::new(),
            calls_made: 0,
            pieces: Vec::new(),
            locks: Vec::new(),
            given_up: BTreeMap::new(),
            notified: BTreeMap::new(),
            to_do: self.options.requests,
            finishes: BTreeMap::new(),
            released: 0,
        });
        self.enter_session(client);
        let session = self.clients[client].session;
        let (areas, content) = self.areas(false);
        let length = content.len() as u64;
        let segment = self.kernel.add_segment(id, length);
        let whole = Span { segment, offset: 0, length: length as u32 };
        self.kernel.bytes_mut(id, whole).copy_from_slice(&content);
        self.kernel.share(id, segment);
        self.command(node, Command::AddSegment { session, segment, length });
        let region = self.offer_region(node, session, &format!("region-{client}"), length);
        let kind = ObjectKind::Region { owner: client, region, segment, length };
        self.add_object(node, format!("region-{client}"), kind, areas, &content);
        if self.options.channels {
            let name = format!("channel-{client}");
            let control = self.controls.control_mut(node).expect("the node runs");
            let channel = control.offer_channel(&name, session, 0).expect("a new name").channel;
            let kind = ObjectKind::Channel { owner: client, channel };
            self.add_object(node, name, kind, vec![0], &[]);
        }
        self.clients[client].region_segments.push(segment);
        if self.options.calls > 0.0 && self.options.operators.is_none() {
            (0..NODES).for_each(|node| naming::add(self, client, node));
        }
        if self.options.boards > 0.0 {
            let board = self.add_board(client, node, session);
            self.clients[client].region_segments.push(board);
        }
    }

    /// A client connects: it has a session and an arena from now on.
    pub(super) fn enter_session(&mut self, client: usize) {
        let (node, user) = (self.clients[client].node, self.clients[client].user);
        let id = self.nodes[node].id;
        let control = self.controls.control_mut(node).expect("the node runs");
        let (session, _) = control.enter_session(Credentials::of(user, user), 1);
        self.command(
            node,
            Command::OpenSession { session, weight: 1 + (client % 3) as u8, home: 0, user: 0 },
        );
        let length = self.piece_bytes() * u64::from(self.options.depth);
        let arena = self.kernel.add_segment(id, length);
        self.kernel.guard(id, arena);
        self.command(node, Command::AddSegment { session, segment: arena, length });
        let place = &mut self.clients[client];
        (place.session, place.arena, place.state) = (session, arena, ClientState::Running);
        place.pieces = (0..self.options.depth).collect();
    }

    pub(super) fn add_object(
        &mut self,
        node: usize,
        name: String,
        kind: ObjectKind,
        areas: Vec<u64>,
        content: &[u8],
    ) {
        let most = *areas.last().expect("an object has areas") as usize;
        let expected = Expected::new(content, most);
        self.objects.push(Object { name, node, kind, expected, areas, gone: false });
    }

    /// Boundaries of areas for all clients, and noise to begin with. The last area of a file begins
    /// inside of it and ends beyond it: its client extends the file.
    fn areas(&mut self, file: bool) -> (Vec<u64>, Vec<u8>) {
        let mut areas = vec![0];
        let mut end = 0;
        for _ in 0..=self.options.clients {
            end += self.options.longest.div_ceil(2) + self.random.below(self.options.longest);
            areas.push(end);
        }
        let last = end - areas[areas.len() - 2];
        let length = if file { end - self.random.below(last) } else { end };
        let mut content = vec![0; length as usize];
        self.random.fill(&mut content);
        (areas, content)
    }

    /// Bytes of the arena for each request: the longest, or a call's, with room to be misaligned.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.options.longest.max(CALL_ROOM_MAX) + 8192
    }

    fn device_costs(&mut self, capacity: u64) -> DeviceCosts {
        let mut cost = |latency: u64| Cost {
            latency: Nanos(self.random.between(1_000, latency)),
            overhead: Nanos(self.random.between(1_000, 50_000)),
            nanos_per_byte: self.random.between(1, 50) as f64 / 10.0,
        };
        let (read, write, sync) = (cost(100_000), cost(100_000), cost(5_000_000));
        // Faster than the device, slower, or as fast.
        let factor = *[0.1, 1.0, 1.0, 4.0].get(read.latency.0 as usize % 4).expect("one of four");
        let cached = Cost { nanos_per_byte: factor * read.nanos_per_byte, ..read };
        DeviceCosts {
            read,
            write,
            sync,
            window: Some(self.random.between(1, 32) as u32),
            cached: Some(cached),
            capacity,
            alignment: piped_core::access::Alignment { offset: 512, memory: 4 },
            spread: LatencySpread::NONE,
            tells_at_the_end: self.random.chance(0.5),
        }
    }

    /// The file of a node by number, as an object.
    #[must_use]
    pub fn file(&self, node: usize, number: usize) -> usize {
        let name = format!("file-{number}");
        let found = self.objects.iter().position(|o| o.node == node && o.name == name);
        found.expect("the world has that file")
    }

    /// The region of a client, as an object.
    #[must_use]
    pub fn region(&self, client: usize) -> usize {
        let name = format!("region-{client}");
        self.objects.iter().position(|o| o.name == name).expect("each client has a region")
    }

    /// The inode of a file object.
    #[must_use]
    pub fn inode(&self, object: usize) -> InodeId {
        match self.objects[object].kind {
            ObjectKind::File(inode) => inode,
            _ => panic!("{} is not a file", self.objects[object].name),
        }
    }

    /// The part of an object that a client may write; `None` is the part all may read.
    #[must_use]
    pub fn area(&self, object: usize, client: Option<usize>) -> std::ops::Range<u64> {
        let number = client.map_or(0, |client| client + 1);
        self.objects[object].areas[number]..self.objects[object].areas[number + 1]
    }

    pub(super) fn arena(&self, client: usize) -> SegmentId {
        self.clients[client].arena
    }
}

fn link_cost(random: &mut Random) -> Cost {
    Cost {
        latency: Nanos(random.between(1_000, 200_000)),
        overhead: Nanos(random.between(500, 20_000)),
        nanos_per_byte: random.between(1, 100) as f64 / 10.0,
    }
}

fn surroundings(options: &Options, link: Cost) -> Surroundings {
    Surroundings {
        step_max: Nanos::from_millis(1),
        mailbox_max: Nanos::from_micros(100),
        connect_fails: options.connect_fails,
        ..Surroundings::prompt(link, options.socket_buffer)
    }
}

/// Files of a node come into the page cache or leave it, in part.
pub(super) fn change_cache(world: &mut World, node: usize) {
    let seed = world.kernel.now().0;
    for object in world.objects.iter().filter(|object| object.node == node) {
        if let ObjectKind::File(inode) = object.kind {
            let length = world.kernel.file_content(inode).len() as u64;
            cache_parts(&mut world.kernel, inode, length, (seed.is_multiple_of(2), seed));
        }
    }
}

/// Puts a file into the page cache or not, but for some ranges of it.
fn cache_parts(kernel: &mut SimKernel, inode: InodeId, length: u64, (cached, seed): (bool, u64)) {
    // Of its own, so that the rest of the world's life is what it was.
    let mut random = Random::new(seed);
    kernel.set_cached(inode, cached);
    for _ in 0..random.below(4) {
        let [one, other] = [(); 2].map(|()| random.below(length + 1));
        kernel.set_range_cached(inode, one.min(other)..one.max(other), !cached);
    }
}

/// Latencies that are alike, mostly; otherwise they differ, and some are stalls.
pub(super) fn any_spread(random: &mut Random) -> LatencySpread {
    match random.chance(0.3) {
        true => LatencySpread { cv: 0.1 * random.below(20) as f64, stalls: 0.1, times: 10.0 },
        false => LatencySpread::NONE,
    }
}
