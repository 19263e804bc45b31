//! The shard, its clients, and the far ends of its lanes.
//!
//! Beside the shard runs the control thread that ships (`piped-world`), which dials, meets callers,
//! looks up files that peers open, and takes back what a reload forbids. When it takes up a dial or
//! an open is for the test to say: [`World::answer_connect`] and [`World::open`] hand it the shard's
//! question.
//!
//! Tests speak [`Command`]s themselves where the control thread would not say that, or not then:
//!
//! - a caller of whom anything is known ([`World::dial_as`]): hundreds of nodes with keys, or users;
//! - a connection that comes too late, an open that is answered late or for a caller made by hand;
//! - regions and channels under numbers of the test's own, withdrawn twice or in the middle of a
//!   frame; commands that are said twice, or of things that are not there;
//! - what clients do (sessions, handles, opens at peers), and limits, modes and plans: the driver
//!   passes these on as they are.

use piped_config::{Config, Peer};
use piped_core::access::{Access, Alignment, Creation, OpenKind};
use piped_core::ids::{
    DeviceId, FileId, PeerId, QueueId, RegionId, SegmentId, SessionId, SocketId,
};
use piped_core::io::{Cached, Io, Op, Resource, Span, Token};
use piped_core::link::{Checksum, LaneClass, ReportedStage};
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::request::{Class, Completion, Origin, Progress, Request, Update, Verb};
use piped_core::spread::LatencySpread;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Caller, Command, Event, FileTarget, Output, RegionTarget, Target};
use piped_engine::relay::Relay;
use piped_engine::shard::{Shard, ShardConfig};
use piped_planner::solve::solve;
pub(crate) use piped_sim::LineId;
use piped_sim::{
    ConnectionId, Cost, DeviceCosts, FarEnds, Faults, InodeId, LinkId, NodeId, SimIo, SimKernel,
};
use piped_wire::{Asker, Frame, HEADER_BYTES, LaneKeys, Message};
use piped_world::controls::{Controls, Setup, Surroundings, address, peer_at, second_address};

pub(crate) const ALL: Access = Access::ALL;
pub(crate) const SESSION: SessionId = SessionId(1);
pub(crate) const INCARNATION: u64 = 77;
pub(crate) const STAGING: u64 = 64 << 20;

/// Longer than anything takes that must happen.
const PATIENCE: Nanos = Nanos::from_millis(120_000);

/// Bytes of a socket's buffer, each direction.
const SOCKET_BUFFER: usize = 256 * 1024;

/// The node of the shard, and that of the far ends.
const NEAR: usize = 0;
const FAR: usize = 1;

/// The peer that [`World::add_peer`] adds.
pub(crate) const PEER: PeerId = PeerId(0);

/// Of links, and of disks that need no other.
pub(crate) const COST: Cost =
    Cost { latency: Nanos::from_micros(20), overhead: Nanos::from_micros(2), nanos_per_byte: 0.5 };

/// What a shard had its driver do, as far as tests look at the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A turn begins. What was pushed in the one before has been submitted.
    Turn,
    Read,
    Send,
    Receive,
    Checksum,
    Call,
    /// A question whether the page cache has something.
    Look,
}

/// See the module.
pub(crate) struct World {
    pub(crate) kernel: SimKernel,
    pub(crate) shard: Shard,
    pub(crate) node: NodeId,
    pub(crate) events: Vec<Event>,
    /// Ours, of what peers have opened.
    pub(crate) tickets: Vec<u64>,
    pub(crate) completions: Vec<Completion>,
    pub(crate) progress: Vec<Progress>,
    /// Memory that its client rewrites whenever it has a chance, and what it saw there before.
    pub(crate) rewritten: Option<Span>,
    pub(crate) seen: [bool; 256],
    /// What a client asks for as soon as it is told of an end: still in the same turn.
    pub(crate) asked_at_once: Option<(SessionId, u64, Verb)>,
    /// What the shard had its driver do in its turns.
    pub(crate) steps: Vec<Step>,
    /// The driver takes nothing.
    pub(crate) driver_is_full: bool,
    controls: Controls,
    far: FarEnds,
    device: DeviceId,
    links: [LinkId; 2],
    lines: Vec<Line>,
}

/// A connection as its far end knows it.
struct Line {
    connection: ConnectionId,
    epoch: u32,
    /// The control thread knows what it has open.
    is_known: bool,
    /// The far end sends payloads with checksums.
    sums: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_disk(false)
    }

    /// `tells_at_the_end`: see [`DeviceCosts`].
    pub(crate) fn with_disk(tells_at_the_end: bool) -> Self {
        Self::with(COST, tells_at_the_end, false)
    }

    /// One where `auto` reads one fragment at a time from the first read on.
    pub(crate) fn with_serial_plans(disk: Cost) -> Self {
        let mut world = Self::with(disk, true, true);
        world.command(Command::SetPlanner(PlannerMode::Auto));
        world
    }

    /// Disk and wire take next to nothing, so that what a test adds is what decides.
    pub(crate) fn fast() -> Self {
        let (latency, overhead) = (Nanos::from_micros(1), Nanos(100));
        let cost = Cost { latency, overhead, nanos_per_byte: 0.001 };
        Self::over(cost, cost, false, false)
    }

    fn with(disk: Cost, tells_at_the_end: bool, serial_first: bool) -> Self {
        Self::over(COST, disk, tells_at_the_end, serial_first)
    }

    fn over(link: Cost, disk: Cost, tells_at_the_end: bool, serial_first: bool) -> Self {
        Self::bare(link, disk, tells_at_the_end, serial_first).with_staging(STAGING)
    }

    /// One with so much staging, in bytes.
    pub(crate) fn of_staging(bytes: u64) -> Self {
        Self::bare(COST, COST, false, false).with_staging(bytes)
    }

    fn with_staging(mut self, length: u64) -> Self {
        let segment = self.kernel.add_segment(self.node, length);
        self.command(Command::AddStaging { segment, length });
        self
    }

    fn bare(link: Cost, disk: Cost, tells_at_the_end: bool, serial_first: bool) -> Self {
        let mut kernel = SimKernel::new(1, Faults::none());
        let [node, far] = [(); 2].map(|()| kernel.add_node(4096));
        let links = [(); 2].map(|()| kernel.add_link(link, None));
        let mut controls = Controls::new(1, Surroundings::prompt(link, SOCKET_BUFFER));
        // The far node knows ours, which offers its files to all.
        let (ours, theirs) = ((NEAR, "alpha"), (FAR, "beta"));
        for setup in [
            Setup::plain(ours, [], "name", vec![node]),
            Setup::plain(theirs, [ours], "name", vec![far]),
        ] {
            controls.add(setup, &kernel).expect("a sound configuration");
        }
        controls.lay([far, node], false, links[0]);
        controls.lay([node, far], false, links[1]);
        let device = kernel.add_device(DeviceCosts {
            read: disk,
            write: disk,
            sync: disk,
            window: None,
            cached: None,
            capacity: 1 << 30,
            alignment: Alignment { offset: 512, memory: 4 },
            spread: LatencySpread::NONE,
            tells_at_the_end,
        });
        let shard = Shard::new(ShardConfig {
            node_name: "alpha".to_owned(),
            incarnation: INCARNATION,
            seed: 1,
            transfers_max: 256,
            ops_max: 1024,
            deadline_default: Nanos::from_millis(60_000),
            planner: PlannerMode::Fixed(64 << 10),
            calibration: CalibrationMode::Off,
            zero_copy: ZeroCopyMode::Auto,
            eager: EagerMode::Auto,
            serial_first,
        });
        Self {
            kernel,
            shard,
            node,
            events: Vec::new(),
            tickets: Vec::new(),
            completions: Vec::new(),
            progress: Vec::new(),
            rewritten: None,
            seen: [false; 256],
            asked_at_once: None,
            steps: Vec::new(),
            driver_is_full: false,
            controls,
            far: FarEnds::new(far),
            device,
            links,
            lines: Vec::new(),
        }
    }

    /// The shard is the first of two on its node; the test plays the other.
    pub(crate) fn of_two_shards() -> Self {
        let mut world = Self::new();
        world.shard = world.shard.among(0, 2);
        world
    }

    /// What the other shard says.
    pub(crate) fn relay(&mut self, relay: Relay) {
        self.shard.handle_relay(1, relay, &mut self.kernel.io(self.node));
        self.settle_turn();
    }

    /// What the other shard is told, in order.
    pub(crate) fn relays(&mut self) -> Vec<Relay> {
        self.settle_turn();
        std::iter::from_fn(|| self.shard.poll_relay(1)).collect()
    }

    pub(crate) fn command(&mut self, command: Command) {
        self.shard.handle_command(command, &mut self.kernel.io(self.node));
    }

    /// A client with so many bytes of memory.
    pub(crate) fn session(&mut self, session: SessionId, length: u64) -> SegmentId {
        self.session_of_weight(session, length, 1)
    }

    pub(crate) fn session_of_weight(
        &mut self,
        session: SessionId,
        length: u64,
        weight: u8,
    ) -> SegmentId {
        self.command(Command::OpenSession { session, weight, home: 0, user: 0 });
        let segment = self.kernel.add_segment(self.node, length);
        self.kernel.share(self.node, segment);
        self.command(Command::AddSegment { session, segment, length });
        segment
    }

    pub(crate) fn submit(&mut self, session: SessionId, user_data: u64, verb: Verb) {
        self.submit_as(session, user_data, verb, false);
    }

    /// `no_wait`: it ends instead of waiting.
    pub(crate) fn submit_as(
        &mut self,
        session: SessionId,
        user_data: u64,
        verb: Verb,
        no_wait: bool,
    ) {
        self.submit_request(
            session,
            user_data,
            Request { verb, class: Class::Latency, deadline: None, no_wait, fence: false },
        );
    }

    /// Of the bulk class.
    pub(crate) fn submit_bulk(&mut self, session: SessionId, user_data: u64, verb: Verb) {
        let (class, deadline, no_wait, fence) = (Class::Bulk, None, false, false);
        let request = Request { verb, class, deadline, no_wait, fence };
        self.submit_request(session, user_data, request);
    }

    pub(crate) fn submit_request(&mut self, session: SessionId, user_data: u64, request: Request) {
        let origin = Origin { session, queue: QueueId(0), slot: 0, user_data };
        let io = &mut self.kernel.io(self.node);
        let now = io.now();
        self.shard.submit(origin, request, now, io);
    }

    /// What was told of a request's progress: bytes from its start, and the first beyond.
    pub(crate) fn progress_of(&self, user_data: u64) -> Vec<(u64, (u64, u64))> {
        let of = |progress: &&Progress| progress.origin.user_data == user_data;
        self.progress.iter().filter(of).map(|it| (it.bytes, it.landed)).collect()
    }

    /// How a request ended, once it has.
    pub(crate) fn end_of(&self, user_data: u64) -> Option<(Status, u64)> {
        self.completions.iter().find_map(|completion| match completion {
            Completion::Finished { origin, status, bytes, .. } if origin.user_data == user_data => {
                Some((*status, *bytes))
            }
            _ => None,
        })
    }

    /// Staging that requests have: of lanes' own there is more or less as they work or rest.
    pub(crate) fn staged(&self) -> u64 {
        let report = self.shard.report();
        report.staging_used_bytes - report.staging_lanes_bytes
    }

    /// A file of so many bytes, opened.
    pub(crate) fn file(&mut self, length: usize) -> Target {
        self.file_and_inode(length).0
    }

    pub(crate) fn file_and_inode(&mut self, length: usize) -> (Target, InodeId) {
        self.file_of(vec![7; length])
    }

    fn file_of(&mut self, content: Vec<u8>) -> (Target, InodeId) {
        let length = content.len();
        let inode = self.kernel.create_file(self.node, self.device, content);
        let target = Target::File(FileTarget {
            direct: None,
            buffered: self.kernel.open_file(self.node, inode, false),
            device: self.device,
            length: length as u64,
            access: ALL,
            foreign: false,
            cached: false,
        });
        (target, inode)
    }

    /// A file that is open with O_DIRECT, too.
    pub(crate) fn direct_file(&mut self, length: usize) -> (Target, InodeId) {
        self.direct_file_of(vec![7; length])
    }

    pub(crate) fn direct_file_of(&mut self, content: Vec<u8>) -> (Target, InodeId) {
        let (target, inode) = self.file_of(content);
        let Target::File(file) = target else { unreachable!("it is one") };
        let direct = self.kernel.open_file(self.node, inode, true);
        let alignment = Alignment { offset: 512, memory: 4 };
        (Target::File(FileTarget { direct: Some((direct, alignment)), ..file }), inode)
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    pub(crate) fn block_device(&mut self, time: Nanos) {
        self.kernel.block_device(self.device, time);
    }

    /// A peer connects.
    pub(crate) fn dial(&mut self) -> LineId {
        let (peer, class, after) = (PeerId(0), LaneClass::Latency, Nanos::ZERO);
        let event = Event::Connect { peer, class, after };
        self.controls.handle_event(FAR, 0, event, &self.kernel);
        self.decide();
        self.lines.len() - 1
    }

    /// A peer connects of which so much is known.
    pub(crate) fn dial_as(&mut self, caller: Caller, keys: Option<LaneKeys>) -> LineId {
        let (line, socket) = self.connect();
        self.command(Command::LaneAccepted { socket, caller, keys });
        line
    }

    /// The control threads do what is to be done now.
    fn decide(&mut self) {
        self.controls.advance(&mut self.kernel);
        while let Some((node, _, command)) = self.controls.poll_command() {
            match command {
                command if node == NEAR => self.command(command),
                Command::LaneAccepted { socket, .. } | Command::LaneConnected { socket, .. } => {
                    let mut ends = self.controls.ends(&self.kernel).iter();
                    let end = ends.find(|end| (end.node, end.socket) == (FAR, socket));
                    let connection = end.expect("the far end is open").connection;
                    self.take_up(connection, socket, true);
                }
                _ => {}
            }
        }
    }

    /// An operator changes the configuration of our node.
    fn reload(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = self.controls.nodes[NEAR].setup.config.clone();
        change(&mut config);
        let loaded = self.controls.reload(NEAR, &config, None, &self.kernel);
        loaded.expect("a sound configuration");
        self.decide();
    }

    /// An operator adds the far node to our peers, at the address where it is.
    pub(crate) fn add_peer(&mut self) {
        self.add_peer_with(Checksum::Auto);
    }

    /// The same, and what checksums of its connections are to cover; or changes that.
    pub(crate) fn add_peer_with(&mut self, checksum: Checksum) {
        let peer = Peer { checksum, ..peer_at(self.controls.nodes[FAR].setup.address) };
        self.reload(|config| drop(config.peers.insert("beta".to_owned(), peer)));
    }

    /// The same, and the address where it is by way of another link.
    pub(crate) fn add_peer_with_second(&mut self) {
        let far = &mut self.controls.nodes[FAR].setup;
        far.second = Some(second_address(FAR));
        let mut peer = peer_at(far.address);
        peer.second_address = second_address(FAR).to_string().parse().expect("an address");
        self.reload(|config| drop(config.peers.insert("beta".to_owned(), peer)));
    }

    /// An operator removes it.
    pub(crate) fn remove_peer(&mut self) {
        self.reload(|config| config.peers.clear());
    }

    /// It moves to another address, and an operator says so to us.
    pub(crate) fn move_peer(&mut self) {
        self.controls.nodes[FAR].setup.address = address(FAR + 1);
        self.add_peer();
    }

    /// An operator leaves the files to this peer alone.
    pub(crate) fn export_to(&mut self, peer: &str) {
        self.reload(|config| {
            let export = config.exports.get_mut("name").expect("the setup has it");
            export.peers = vec![peer.to_owned()];
        });
    }

    /// A peer connects, says who it is, and is welcome.
    pub(crate) fn lane(&mut self, name: &str, class: LaneClass, epoch: u32) -> LineId {
        let line = self.dial();
        self.hello(line, name, class, epoch);
        match self.next(line) {
            Message::HelloAck { .. } => line,
            other => panic!("not welcome: {other:?}"),
        }
    }

    pub(crate) fn hello(&mut self, line: LineId, name: &str, class: LaneClass, epoch: u32) {
        self.hello_with(line, name, (class, epoch), Checksum::Payload);
    }

    pub(crate) fn hello_with(
        &mut self,
        line: LineId,
        name: &str,
        (lane, epoch): (LaneClass, u32),
        checksum: Checksum,
    ) {
        self.lines[line].epoch = epoch;
        self.send(line, Message::Hello { incarnation: 5, lane, checksum }, name.as_bytes());
    }

    /// A peer opens something; its number.
    pub(crate) fn open(&mut self, line: LineId, ticket: u64, target: Target) -> u32 {
        let kind = match target {
            Target::File(_) => OpenKind::File,
            Target::Region(_) => OpenKind::Region,
            Target::Channel(_) => OpenKind::Channel,
            Target::Directory(_) => OpenKind::Directory,
        };
        let open =
            Message::Open { ticket, kind, access: ALL, create: Creation::No, name_length: 4 };
        self.send(line, open, b"name");
        let asked = self.wait("the open", |world| {
            world.events.iter().position(|event| matches!(event, Event::ServeOpen { .. }))
        });
        let event = self.events.remove(asked);
        let Event::ServeOpen { ticket, .. } = event else { unreachable!() };
        self.tickets.push(ticket);
        if kind == OpenKind::File && self.lines[line].is_known {
            self.controls.handle_event(NEAR, 0, event, &self.kernel);
            let asked = self.controls.poll_asked().expect("it is passed on");
            let found = self.controls.look_up(&asked).expect("the node runs");
            let (_, right) = found.expect("the peer may have it");
            self.controls.answer(&asked, Ok((target, right)), &self.kernel);
            self.decide();
        } else {
            self.command(Command::ServeOpened { ticket, result: Ok(target) });
        }
        match self.next(line) {
            Message::Opened { status: Status::Ok, handle, .. } => handle,
            other => panic!("not opened: {other:?}"),
        }
    }

    /// A peer opens again what it had open: nobody is asked.
    pub(crate) fn open_again(&mut self, line: LineId, ticket: u64, kind: OpenKind) -> u32 {
        let open =
            Message::Open { ticket, kind, access: ALL, create: Creation::No, name_length: 4 };
        self.send(line, open, b"name");
        match self.next(line) {
            Message::Opened { status: Status::Ok, handle, .. } => handle,
            other => panic!("not opened: {other:?}"),
        }
    }

    /// We dial a peer, which says welcome.
    pub(crate) fn answer_connect(&mut self, wanted: LaneClass, credit_bytes: u64) -> LineId {
        self.answer_connect_as(wanted, credit_bytes, 9)
    }

    /// The same, of a run of its daemon.
    pub(crate) fn answer_connect_as(
        &mut self,
        wanted: LaneClass,
        credit_bytes: u64,
        incarnation: u64,
    ) -> LineId {
        let (line, _) = self.take_hello(wanted);
        let ack = Message::HelloAck { incarnation, credit_bytes, requests_max: 64, sums: true };
        self.send(line, ack, &[]);
        line
    }

    /// We dial a peer and say hello: the connection, and what our payloads are to be checked by.
    pub(crate) fn take_hello(&mut self, wanted: LaneClass) -> (LineId, Checksum) {
        let line = self.lines.len();
        self.take_up_dial(wanted);
        self.wait_until("a connection", |world| world.lines.len() > line);
        let (frame, _) = self.next_frame(line);
        let Message::Hello { checksum, .. } = frame.message else { panic!("{frame:?}") };
        self.lines[line].epoch = frame.epoch;
        (line, checksum)
    }

    /// The control thread takes up a dial of ours.
    pub(crate) fn take_up_dial(&mut self, wanted: LaneClass) {
        let asked = self.wait("a dial", |world| {
            let dials =
                |event: &Event| matches!(event, Event::Connect { class, .. } if *class == wanted);
            world.events.iter().position(dials)
        });
        let event = self.events.remove(asked);
        self.controls.handle_event(NEAR, 0, event, &self.kernel);
        self.decide();
    }

    /// How long until we want to dial again.
    pub(crate) fn next_dial(&mut self, wanted: LaneClass) -> Nanos {
        let after = self.wait("a dial", |world| {
            world.events.iter().find_map(|event| match event {
                Event::Connect { class, after, .. } if *class == wanted => Some(*after),
                _ => None,
            })
        });
        after.since(self.kernel.io(self.node).now())
    }

    /// A dial of ours succeeds that nobody waits for any more.
    pub(crate) fn connect_late(&mut self, peer: PeerId, class: LaneClass) -> LineId {
        let (line, socket) = self.connect();
        self.command(Command::LaneConnected { peer, class, socket, near: false, keys: None });
        line
    }

    /// A dial of ours succeeds of which no control thread knows, and the peer says welcome.
    pub(crate) fn answer_dial(&mut self, peer: PeerId, wanted: LaneClass) -> LineId {
        let asked = self.wait("a dial", |world| {
            let dials =
                |event: &Event| matches!(event, Event::Connect { class, .. } if *class == wanted);
            world.events.iter().position(dials)
        });
        self.events.remove(asked);
        let line = self.connect_late(peer, wanted);
        let (frame, _) = self.next_frame(line);
        self.lines[line].epoch = frame.epoch;
        let (incarnation, credit_bytes, requests_max, sums) = (9, 1 << 20, 64, true);
        let ack = Message::HelloAck { incarnation, credit_bytes, requests_max, sums };
        self.send(line, ack, &[]);
        line
    }

    /// A connection that no control thread knows.
    fn connect(&mut self) -> (LineId, SocketId) {
        let nodes = [self.far.node(), self.node];
        let (connection, [socket, ours]) = self.kernel.connect(nodes, self.links, SOCKET_BUFFER);
        (self.take_up(connection, socket, false), ours)
    }

    fn take_up(&mut self, connection: ConnectionId, socket: SocketId, is_known: bool) -> LineId {
        self.lines.push(Line { connection, epoch: 1, is_known, sums: true });
        self.far.take_up(socket, &mut self.kernel)
    }

    /// The connection that was made first.
    pub(crate) fn first_line(&self) -> LineId {
        0
    }

    /// Queues a frame at the far end.
    pub(crate) fn send(&mut self, line: LineId, message: Message, payload: &[u8]) {
        let frame = self.frame(line, message, payload);
        self.send_bytes(line, &frame);
    }

    /// A frame's bytes.
    pub(crate) fn frame(&self, line: LineId, message: Message, payload: &[u8]) -> Vec<u8> {
        let Line { epoch, sums, .. } = self.lines[line];
        let has_sum = !payload.is_empty() && (sums || !message.carries_data());
        let payload_crc = if has_sum { crc32c(payload) } else { 0 };
        let frame =
            Frame { epoch, message, payload: payload.len() as u32, payload_crc, followed: false };
        [&frame.encode(), payload].concat()
    }

    /// Whether the far end sends payloads with checksums from now on.
    pub(crate) fn set_sums(&mut self, line: LineId, sums: bool) {
        self.lines[line].sums = sums;
    }

    /// Queues bytes that need not be a frame.
    pub(crate) fn send_bytes(&mut self, line: LineId, bytes: &[u8]) {
        self.far.send(line, bytes);
    }

    /// The far end hangs up.
    pub(crate) fn hang_up(&mut self, line: LineId) {
        self.far.hang_up(line, &mut self.kernel);
    }

    /// The node of the far ends loses power.
    pub(crate) fn vanish(&mut self) {
        self.far.vanish(&mut self.kernel);
    }

    /// The far end reads no more.
    pub(crate) fn stop_reading(&mut self, line: LineId) {
        self.far.set_reading(line, false);
    }

    /// The far end reads again.
    pub(crate) fn read_on(&mut self, line: LineId) {
        self.far.set_reading(line, true);
    }

    pub(crate) fn is_up(&self, line: LineId) -> bool {
        self.kernel.is_connected(self.lines[line].connection)
    }

    /// Why the lanes ended that have.
    pub(crate) fn reasons(&self) -> Vec<&str> {
        fn reason(event: &Event) -> Option<&str> {
            match event {
                Event::LaneDown { reason, .. } => Some(reason),
                _ => None,
            }
        }
        self.events.iter().filter_map(reason).collect()
    }

    /// The next frame from the shard, without its payload.
    pub(crate) fn next(&mut self, line: LineId) -> Message {
        self.next_frame(line).0.message
    }

    /// Lets the far end read to the end of a request of its.
    pub(crate) fn read_end(&mut self, line: LineId, transfer: u64) -> Status {
        loop {
            match self.next(line) {
                Message::End { transfer: of, status, .. } if of == transfer => return status,
                Message::Data { transfer: of, last: Some(last), .. } if of == transfer => {
                    return last.status;
                }
                _ => {}
            }
        }
    }

    /// The next frame from the shard.
    pub(crate) fn next_frame(&mut self, line: LineId) -> (Frame, Vec<u8>) {
        self.wait("a frame", |world| world.whole_frame(line));
        self.take_frame(line).expect("waited for")
    }

    pub(crate) fn has_frame(&self, line: LineId) -> bool {
        self.whole_frame(line).is_some()
    }

    /// The next frame, if it is there already.
    pub(crate) fn take_frame(&mut self, line: LineId) -> Option<(Frame, Vec<u8>)> {
        self.whole_frame(line)?;
        let header = self.far.take(line, HEADER_BYTES);
        let frame = Frame::parse(&header.try_into().expect("64 bytes")).expect("a sound header");
        Some((frame, self.far.take(line, frame.payload as usize)))
    }

    fn whole_frame(&self, line: LineId) -> Option<()> {
        let received = self.far.received(line);
        let header = received.first_chunk::<HEADER_BYTES>()?;
        let frame = Frame::parse(header).expect("the shard sends sound headers");
        (received.len() >= HEADER_BYTES + frame.payload as usize).then_some(())
    }

    /// Lets things happen until there is an answer.
    pub(crate) fn wait<T>(&mut self, what: &str, poll: impl Fn(&Self) -> Option<T>) -> T {
        let until = self.kernel.now() + PATIENCE;
        loop {
            if let Some(value) = poll(self) {
                return value;
            }
            let more = self.step(until);
            assert!(more, "not within {PATIENCE}: {what}; lanes down: {:?}", self.reasons());
        }
    }

    pub(crate) fn wait_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        self.wait(what, |world| holds(world).then_some(()));
    }

    pub(crate) fn run_for(&mut self, time: Nanos) {
        let until = self.kernel.now() + time;
        while self.step(until) {}
    }

    /// The shard's time.
    pub(crate) fn clock(&mut self) -> Nanos {
        self.kernel.io(self.node).now()
    }

    /// A moment passes, in which nothing ends that takes time.
    pub(crate) fn settle_turn(&mut self) {
        self.run_for(Nanos(1));
    }

    pub(crate) fn settle(&mut self) {
        self.run_for(Nanos::from_millis(100));
    }

    /// Everybody has a turn, or time passes. False when `until` is reached.
    fn step(&mut self, until: Nanos) -> bool {
        self.decide();
        if self.far.turn(&mut self.kernel) | self.turn_near() {
            let now = self.kernel.now();
            self.kernel.advance(now);
            return true;
        }
        let timer = self.shard.poll_timeout().map(|at| self.kernel.world_time(self.node, at));
        // A thread that is at something looks at no timer.
        let busy = Some(self.kernel.busy_until(self.node)).filter(|&at| at > self.kernel.now());
        let timer = timer.map(|at| busy.map_or(at, |busy| at.max(busy)));
        let next = [self.kernel.next_event(), self.controls.next_at(), timer, busy];
        match next.into_iter().flatten().min() {
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

    /// The shard takes what has ended and does what there is to do.
    pub(crate) fn turn_near(&mut self) -> bool {
        if self.kernel.busy_until(self.node) > self.kernel.now() {
            return false;
        }
        let mut worked = false;
        if let Some(span) = self.rewritten {
            let bytes = self.kernel.bytes_mut(self.node, span);
            bytes.iter().for_each(|byte| self.seen[usize::from(*byte)] = true);
            bytes.fill(0xee);
        }
        while let Some(done) = self.kernel.poll_done(self.node) {
            self.shard.handle_done(done, &mut self.kernel.io(self.node));
            worked = true;
        }
        let ended = self.completions.len();
        worked |= self.put_out();
        if self.completions.len() > ended
            && let Some((session, user_data, verb)) = self.asked_at_once.take()
        {
            self.submit(session, user_data, verb);
        }
        self.steps.push(Step::Turn);
        let io = self.kernel.io(self.node);
        let full = self.driver_is_full;
        let io = &mut Recorder { io, steps: &mut self.steps, full };
        if self.shard.is_due(io.now()) {
            self.shard.drive(io);
        }
        worked |= self.put_out();
        worked || self.shard.poll_timeout() == Some(Nanos::ZERO)
    }

    fn put_out(&mut self) -> bool {
        let mut some = false;
        while let Some(output) = self.shard.poll_output() {
            some = true;
            match output {
                Output::Completion(completion) => self.completions.push(completion),
                Output::Event(event) => {
                    if let Event::ServeClosed { .. } = event {
                        self.controls.handle_event(NEAR, 0, event.clone(), &self.kernel);
                    }
                    self.events.push(event);
                }
                Output::Progress(progress) => self.progress.push(progress),
                Output::Plan(question) => {
                    self.command(Command::Planned(Box::new(solve(&question))));
                }
            }
        }
        some
    }
}

/// A driver that keeps a list of what it is asked for.
struct Recorder<'world> {
    io: SimIo<'world>,
    steps: &'world mut Vec<Step>,
    full: bool,
}

impl Io for Recorder<'_> {
    fn now(&mut self) -> Nanos {
        self.io.now()
    }

    fn push(&mut self, token: Token, op: Op) -> bool {
        if self.full {
            return false;
        }
        self.steps.extend(match op {
            Op::Read { .. } => Some(Step::Read),
            Op::Send { .. } => Some(Step::Send),
            Op::Receive { .. } => Some(Step::Receive),
            Op::Call { .. } => Some(Step::Call),
            _ => None,
        });
        self.io.push(token, op)
    }

    fn cancel(&mut self, token: Token) {
        self.io.cancel(token);
    }

    fn release(&mut self, resource: Resource) {
        self.io.release(resource);
    }

    fn cached(&mut self, file: FileId, offset: u64, length: u64) -> Cached {
        self.steps.push(Step::Look);
        self.io.cached(file, offset, length)
    }

    fn copy(&mut self, from: Span, to: Span) {
        self.io.copy(from, to);
    }

    fn load(&mut self, from: Span, to: &mut [u8]) {
        self.io.load(from, to);
    }

    fn store(&mut self, from: &[u8], to: Span) {
        self.io.store(from, to);
    }

    fn update(&mut self, at: Span, update: Update) -> u64 {
        self.io.update(at, update)
    }

    fn spend(&mut self, time: Nanos) {
        self.io.spend(time);
    }

    fn is_loose(&self, segment: SegmentId) -> bool {
        self.io.is_loose(segment)
    }

    fn is_torn(&self, segment: SegmentId) -> bool {
        self.io.is_torn(segment)
    }

    fn crc32c(&mut self, span: Span) -> u32 {
        self.steps.push(Step::Checksum);
        self.io.crc32c(span)
    }
}

/// A region of a client's.
pub(crate) fn region(number: u32, segment: SegmentId, length: u64) -> Target {
    let region = RegionId(number);
    let (offset, access, home) = (0, ALL, 0);
    Target::Region(RegionTarget { region, segment, offset, length, access, home })
}

pub(crate) fn write(transfer: u64, handle: u32, length: u64) -> Message {
    write_in(transfer, handle, length, 64 << 10)
}

/// In frames and fragments of so many bytes.
pub(crate) fn write_in(transfer: u64, handle: u32, length: u64, fragment: u32) -> Message {
    Message::Write {
        transfer,
        handle,
        offset: 0,
        length,
        asker: Asker::alone(Class::Latency),
        durable: false,
        pieces: false,
        fragment,
        time_left_us: 10_000_000,
    }
}

/// How a request ends that has not taken any time.
pub(crate) fn end(transfer: u64, status: Status, bytes: u64) -> Message {
    Message::End { transfer, status, bytes, service_us: 0, fragment: 0, predicted_us: 0 }
}

pub(crate) fn write_data(transfer: u64, offset: u64) -> Message {
    Message::WriteData { transfer, offset, backlogged: false }
}

pub(crate) fn read(transfer: u64, handle: u32, length: u64) -> Message {
    Message::Read {
        transfer,
        handle,
        offset: 0,
        length,
        asker: Asker::alone(Class::Latency),
        from: 0,
        pieces: false,
        time_left_us: 10_000_000,
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// What a peer tells of a stage with these costs (nanoseconds, nanoseconds, picoseconds per byte)
/// that it has seen empty and busy with fragments of these sizes; the last of all is marked.
pub(crate) fn reports(
    stage: ReportedStage,
    [latency, overhead, per_byte]: [u64; 3],
    sizes: &[u32],
) -> Vec<Message> {
    let pairs = sizes.iter().flat_map(|&size| [(size, false), (size, true)]);
    let mut claims: Vec<_> = pairs
        .map(|(size_bytes, backlogged)| {
            let bytes = per_byte.saturating_mul(size_bytes.into());
            let alone = if backlogged { 0 } else { latency };
            let time = alone.saturating_add(overhead).saturating_mul(1_000);
            Message::Report {
                stage,
                handle: 0,
                backlogged,
                last: false,
                weight: 100,
                size_bytes,
                spread_bytes: size_bytes / 10,
                cost_ps: time.saturating_add(bytes),
                slope_fs: per_byte.saturating_mul(1_000),
                deviation_pm: 20,
            }
        })
        .collect();
    if let Some(Message::Report { last, .. }) = claims.last_mut() {
        *last = true;
    }
    claims
}

/// It has no such stage any more.
pub(crate) fn no_stage(stage: ReportedStage) -> Message {
    Message::Report {
        stage,
        handle: 0,
        backlogged: false,
        last: true,
        weight: 0,
        size_bytes: 0,
        spread_bytes: 0,
        cost_ps: 0,
        slope_fs: 0,
        deviation_pm: 0,
    }
}
