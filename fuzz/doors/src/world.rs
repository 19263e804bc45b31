//! A node with a client that asks it, and peers whose every byte an input writes; and the books of
//! what must come out.
//!
//! ```text
//!   input ─► peer: far ends ─┐                     ┌─► client: books
//!     └────► hand ─► SimKernel ─► Shard of the node ┘ ▲
//!                        └── Controls: opens, dials, the door, reloads
//! ```
//!
//! The control threads are those that ship, of the node and of its peer. The shard of the peer is
//! the input.

use std::collections::VecDeque;

use piped_control::control::Effect;
use piped_control::holdings::Place;
use piped_control::opens::Found;
use piped_control::parties::Credentials;
use piped_core::access::{Access, Alignment, OpenKind};
use piped_core::ids::{DeviceId, HandleId, PeerId, RegionId, SegmentId};
use piped_core::io::{Io as _, Span};
use piped_core::link::LaneClass;
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::request::Request;
use piped_core::spread::LatencySpread;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{
    ChannelTarget, Command, DirectoryTarget, Event, FileTarget, OpenRequest, Output, RegionTarget,
    Target,
};
use piped_engine::shard::{Shard, ShardConfig};
use piped_sim::{
    Cost, DeviceCosts, FarEnds, Faults, Hand, InodeId, LineId, NodeId, SimKernel, Way, ZeroCopy,
};
use piped_text::is_name;
use piped_world::controls::{
    Asked, Controls, OWN_USER, Setup, Surroundings, address, peer_at, region,
};
use piped_world::nodes::Nodes;

use crate::client::{
    Books, CONTENTS, FILE, INBOX, OUTBOX, OWN_REGION, READ_ONLY, REGION_RANGE, SEGMENT_BYTES,
    SESSION,
};

/// The name of all that is offered: the export, the region and the channel.
pub const OFFERED: &str = "data";
/// Connections of the peer that are kept.
pub const LINES_MAX: usize = 24;

const STAGING_BYTES: u64 = 4 << 20;
const OPS_MAX: u32 = 64;
const TRANSFERS_MAX: u32 = 16;

/// Turns after which a shard that is given all it wants has ended everything. The longest work an
/// input can make takes a few thousand.
const TURNS_MAX: usize = 200_000;

/// How long a turn takes.
const TURN: Nanos = Nanos::from_micros(1);

const ALL: Access = Access::ALL;
/// The node under test, and its peer.
const NAMES: [&str; 2] = ["alpha", "beta"];
const ALPHA: usize = 0;
const BETA: usize = 1;
const FREE: Cost = Cost { latency: Nanos::ZERO, overhead: Nanos::ZERO, nanos_per_byte: 0.0 };

/// Bytes of a socket's buffer, each direction.
const SOCKET_BUFFER: usize = 1 << 20;

/// Memory is lent for a while, and some of it is copied all the same.
const LENDING: ZeroCopy = ZeroCopy {
    copied: 0.2,
    held_max: Nanos::from_millis(1),
    refused: 0.1,
    costs: Some([FREE, FREE]),
};

/// A node with a client, two files and a peer, over a kernel whose operations the input ends.
#[derive(Debug)]
pub struct World {
    nodes: Nodes,
    /// The kernel's name of the node.
    id: NodeId,
    hand: Hand,
    far: FarEnds,
    /// How many connections the peer has had.
    lines: usize,
    /// What the peer has asked for that was not answered yet.
    opens: VecDeque<Asked>,
    segment: SegmentId,
    region: RegionId,
    channel: ChannelTarget,
    device: DeviceId,
    inodes: [InodeId; 2],
    session_open: bool,
    books: Books,
    drained: usize,
    withdrawn: usize,
    unused: usize,
}

impl World {
    /// A client with memory, files, a region and a channel.
    #[must_use]
    pub fn new(planner: PlannerMode, calibration: CalibrationMode) -> Self {
        let mut kernel = SimKernel::new(1, Faults::none());
        kernel.set_zero_copy(Some(LENDING));
        let id = kernel.add_node(OPS_MAX as usize / 2);
        let far = FarEnds::new(kernel.add_node(4 * LINES_MAX));
        let device = kernel.add_device(DeviceCosts {
            read: FREE,
            write: FREE,
            sync: FREE,
            window: None,
            cached: None,
            capacity: 512 * 1024,
            alignment: ALIGNMENT,
            spread: LatencySpread::NONE,
            tells_at_the_end: false,
        });
        let [memory, writable, read_only] = &*CONTENTS;
        let segment = kernel.add_segment(id, SEGMENT_BYTES);
        kernel.bytes_mut(id, whole(segment)).copy_from_slice(memory);
        let hand = Hand::new(id, &mut kernel);
        hand.expose(segment, &mut kernel);
        let staging = kernel.add_segment(id, STAGING_BYTES);
        let inodes = [writable, read_only].map(|it| kernel.create_file(id, device, it.clone()));
        let shard = Shard::new(ShardConfig {
            node_name: NAMES[ALPHA].to_owned(),
            incarnation: 77,
            seed: 1,
            transfers_max: TRANSFERS_MAX,
            ops_max: OPS_MAX,
            deadline_default: Nanos::from_millis(30_000),
            planner,
            calibration,
            zero_copy: ZeroCopyMode::Auto,
            eager: EagerMode::Auto,
            serial_first: false,
        });
        let mut nodes =
            Nodes::new(kernel, Controls::new(1, Surroundings::prompt(FREE, SOCKET_BUFFER)));
        // The peer knows the node; an input adds the peer there.
        let known = [(ALPHA, NAMES[ALPHA])];
        let beta = Setup::plain((BETA, NAMES[BETA]), known, OFFERED, vec![far.node()]);
        for (setup, shards) in [
            (Setup::plain((ALPHA, NAMES[ALPHA]), [], OFFERED, vec![id]), vec![shard]),
            (beta, Vec::new()),
        ] {
            nodes.add(setup, shards).expect("a sound configuration");
        }
        let control = nodes.controls.control_mut(ALPHA).expect("it runs");
        let (session, _) = control.enter_session(Credentials::of(OWN_USER, OWN_USER), 1);
        assert_eq!(session, SESSION);
        let offered = region(session, REGION_RANGE, ALL);
        let region = control.offer_region(OFFERED, offered, SEGMENT_BYTES).expect("free").region;
        let channel = control.offer_channel(OFFERED, session, 0).expect("free").channel;
        let mut world = Self {
            nodes,
            id,
            hand,
            far,
            lines: 0,
            opens: VecDeque::new(),
            segment,
            region,
            channel: ChannelTarget { channel, receives: true, home: 0, owner: session },
            device,
            inodes,
            session_open: true,
            books: Books::new(),
            drained: 0,
            withdrawn: 0,
            unused: 0,
        };
        world.command(Command::AddStaging { segment: staging, length: STAGING_BYTES });
        world.command(Command::OpenSession { session, weight: 1, home: 0, user: 0 });
        world.command(Command::AddSegment { session, segment, length: SEGMENT_BYTES });
        let channel = world.channel;
        for (handle, target) in [
            (FILE, world.file(true)),
            (READ_ONLY, world.file(false)),
            (OWN_REGION, world.region(ALL)),
            (INBOX, Target::Channel(channel)),
            (OUTBOX, Target::Channel(ChannelTarget { receives: false, ..channel })),
        ] {
            world.command(Command::InstallHandle { session, handle, target });
        }
        world
    }

    /// The shard under test.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.nodes.shards(ALPHA)[0]
    }

    /// How many connections the peer has had.
    #[must_use]
    pub const fn lines(&self) -> usize {
        self.lines
    }

    /// The far ends of the connections of the peer.
    pub const fn far(&mut self) -> &mut FarEnds {
        &mut self.far
    }

    /// One of the two files, opened anew.
    fn file(&mut self, writable: bool) -> Target {
        let kernel = &mut self.nodes.kernel;
        let inode = self.inodes[usize::from(!writable)];
        Target::File(FileTarget {
            direct: writable.then(|| (kernel.open_file(self.id, inode, true), ALIGNMENT)),
            buffered: kernel.open_file(self.id, inode, false),
            device: self.device,
            length: kernel.file_content(inode).len() as u64,
            access: Access { read: true, write: writable, atomic: writable, names: false },
            foreign: false,
            cached: false,
        })
    }

    /// A directory, of which the kernel knows nothing but that it is open.
    fn directory(&mut self, access: Access) -> Target {
        let directory = self.nodes.kernel.open_file(self.id, self.inodes[1], false);
        let (device, foreign) = (self.device, false);
        Target::Directory(DirectoryTarget { directory, device, access, foreign })
    }

    /// The region that the client offers.
    const fn region(&self, access: Access) -> Target {
        Target::Region(RegionTarget {
            region: self.region,
            segment: self.segment,
            offset: REGION_RANGE.start,
            length: REGION_RANGE.end - REGION_RANGE.start,
            access,
            home: 0,
        })
    }

    /// Tells the shard something at once.
    pub fn command(&mut self, command: Command) {
        self.nodes.command(ALPHA, 0, command);
    }

    /// Lets time pass, in which nobody has a turn.
    pub fn wait(&mut self, time: Nanos) {
        let until = self.nodes.kernel.now() + time;
        self.nodes.kernel.advance(until);
    }

    /// The peer connects, unless it has done so too often.
    pub fn call_in(&mut self) {
        if self.lines < LINES_MAX {
            let Nodes { controls, kernel, .. } = &mut self.nodes;
            controls.surroundings.connect_fails = 0.0;
            let (class, after) = (LaneClass::Latency, Nanos::ZERO);
            let event = Event::Connect { peer: PeerId(0), class, after };
            controls.handle_event(BETA, 0, event, kernel);
        }
    }

    /// The peer hangs up.
    pub fn hang_up(&mut self, line: LineId) {
        self.far.hang_up(line, &mut self.nodes.kernel);
    }

    /// An operator of the node adds or removes the peer, which answers when it is dialled, or not.
    pub fn set_peer(&mut self, is_there: bool, answers: bool) {
        let Nodes { controls, kernel, .. } = &mut self.nodes;
        controls.surroundings.connect_fails = if answers { 0.0 } else { 1.0 };
        let mut config = controls.nodes[ALPHA].setup.config.clone();
        if is_there {
            config.peers.insert(NAMES[BETA].to_owned(), peer_at(address(BETA)));
        } else {
            config.peers.clear();
        }
        controls.reload(ALPHA, &config, None, kernel).expect("a sound configuration");
    }

    /// The client opens something at the peer, which is one of the configuration from now on.
    pub fn open_remote(&mut self, handle: HandleId, open: OpenRequest) {
        if self.nodes.controls.control(ALPHA).peers().by_name(NAMES[BETA]).is_none() {
            self.set_peer(true, true);
            self.turn();
        }
        let control = self.nodes.controls.control_mut(ALPHA).expect("it runs");
        let peer = control.peers().by_name(NAMES[BETA]).expect("it was added");
        let ticket = control.expect_open();
        self.command(Command::OpenRemote { ticket, session: SESSION, handle, peer, open });
    }

    /// The driver has looked up what the peer asked for first. `fails`: there is no such file.
    pub fn answer_open(&mut self, fails: bool) {
        let Some(asked) = self.opens.pop_front() else { return };
        let OpenRequest { name, path, access, .. } = &asked.open;
        assert!(!name.is_empty() && name.len() + path.len() <= 1152);
        assert!(is_name(name.as_bytes()) && is_name(path), "{:?}", asked.open);
        let found = self.nodes.controls.look_up(&asked).expect("the node lives");
        let opened = found.map_err(|fault| fault.status).and_then(|(found, right)| {
            let target = match found {
                Found::File { .. } if fails => return Err(Status::NotFound),
                Found::File { .. } if asked.open.kind == OpenKind::Directory => {
                    self.directory(*access)
                }
                Found::File { .. } => self.file(access.write),
                Found::Region(found) => self.region(found.access),
                Found::Channel(_) => {
                    Target::Channel(ChannelTarget { receives: false, ..self.channel })
                }
                Found::Echo => return Err(Status::NotFound),
            };
            Ok((target, right))
        });
        let Nodes { controls, kernel, .. } = &mut self.nodes;
        controls.answer(&asked, opened, kernel);
    }

    /// The client takes its region back, if it offers it.
    pub fn withdraw(&mut self) {
        let Nodes { controls, kernel, .. } = &mut self.nodes;
        let control = controls.control_mut(ALPHA).expect("it runs");
        if control.regions().has(self.region) {
            control.withdraw_region(self.region);
            controls.drain(ALPHA, kernel);
            self.withdrawn += 1;
        }
    }

    /// The client closes a handle.
    pub fn close_handle(&mut self, handle: HandleId) {
        let control = self.nodes.controls.control_mut(ALPHA).expect("it runs");
        control.leave(Place::Session(SESSION, handle));
        self.command(Command::CloseHandle { session: SESSION, handle });
    }

    /// The client leaves, if it is still there.
    pub fn close_session(&mut self) {
        if std::mem::take(&mut self.session_open) {
            let Nodes { controls, kernel, .. } = &mut self.nodes;
            controls.control_mut(ALPHA).expect("it runs").close_session(SESSION);
            controls.drain(ALPHA, kernel);
            // After what it offered was revoked.
            controls.tell(ALPHA, 0, Command::CloseSession { session: SESSION }, kernel);
        }
    }

    /// Has the client write bytes to a place of its memory, as far as it reaches.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        let room = SEGMENT_BYTES.saturating_sub(offset).min(bytes.len() as u64);
        if self.session_open && room > 0 {
            let span = Span { segment: self.segment, offset, length: room as u32 };
            self.nodes.kernel.bytes_mut(self.id, span).copy_from_slice(&bytes[..room as usize]);
        }
    }

    /// Submits a request of the client.
    pub fn submit(&mut self, request: Request, user_data: u64) {
        let origin = self.books.ask(request, user_data);
        self.nodes.with(ALPHA, 0, |shard, io| {
            let now = io.now();
            shard.submit(origin, request, now, io);
        });
    }

    /// Everybody does what can be done at once.
    pub fn turn(&mut self) {
        let until = self.nodes.kernel.now() + TURN;
        let mut told = Vec::new();
        loop {
            let goes_on = self.nodes.step(until, &mut told);
            self.hear();
            for (_, _, output) in told.drain(..) {
                match output {
                    Output::Completion(completion) => {
                        let Nodes { kernel, .. } = &self.nodes;
                        let is_there = self.session_open;
                        let memory = is_there.then(|| kernel.bytes(self.id, whole(self.segment)));
                        self.books.end(completion, memory);
                    }
                    Output::Progress(progress) => self.books.go_on(&progress),
                    Output::Event(_) | Output::Plan(_) => unreachable!("the nodes take these"),
                }
            }
            if !self.far.turn(&mut self.nodes.kernel) && !goes_on {
                break;
            }
        }
    }

    /// Takes what the control threads say.
    fn hear(&mut self) {
        while let Some((_, _, command)) = self.nodes.poll_elsewhere() {
            let (Command::LaneAccepted { socket, .. } | Command::LaneConnected { socket, .. }) =
                command
            else {
                continue;
            };
            let line = self.far.take_up(socket, &mut self.nodes.kernel);
            if line < LINES_MAX {
                self.lines = line + 1;
            } else {
                self.hang_up(line);
            }
        }
        let controls = &mut self.nodes.controls;
        self.opens.extend(std::iter::from_fn(|| controls.poll_asked()));
        while let Some((node, effect)) = controls.poll_effect() {
            match effect {
                Effect::SessionDrained { session } => {
                    assert_eq!(session, SESSION);
                    controls.control_mut(node).expect("it runs").leave_session(session);
                    self.drained += 1;
                }
                Effect::RegionUnused { region } => {
                    assert_eq!(region, self.region);
                    self.unused += 1;
                }
                _ => {}
            }
        }
    }

    /// An operation that waits begins, and goes as a byte of the input says.
    pub fn end(&mut self, which: u8, how: u8) {
        let way = match how {
            0..=99 => Way::Whole,
            100..=199 => Way::Part,
            200..=219 => Way::Failed(-5),
            220..=229 => Way::Failed(-28),
            230..=239 => Way::Failed(-125),
            _ => Way::Failed(-104),
        };
        let count = self.hand.count(&self.nodes.kernel);
        if count > 0 {
            self.hand.begin(usize::from(which) % count, way, &mut self.nodes.kernel);
        }
    }

    /// All operations that wait begin, the oldest first. Whether there were any.
    pub fn end_all(&mut self) -> bool {
        let count = self.hand.count(&self.nodes.kernel);
        (0..count).for_each(|_| self.hand.begin(0, Way::Whole, &mut self.nodes.kernel));
        count > 0
    }

    /// Time for all there is to do, and time itself.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turn();
            if self.end_all() {
                continue;
            }
            let Nodes { kernel, controls, .. } = &self.nodes;
            let timeout = self.shard().poll_timeout().map(|at| kernel.world_time(self.id, at));
            let next = [timeout, controls.next_at(), kernel.next_event()];
            let Some(at) = next.into_iter().flatten().min() else { return };
            self.nodes.kernel.advance(at);
        }
        panic!("it never ends: {:#?}", self.shard().report());
    }

    /// Everything ends, the client leaves, and nothing is left.
    pub fn finish_all(&mut self) {
        self.settle();
        // A client that has left is told nothing.
        if self.session_open {
            self.books.check(self.nodes.kernel.bytes(self.id, whole(self.segment)));
        }
        self.close_session();
        self.settle();
        let report = self.shard().report();
        assert_eq!((report.transfers, report.serves, report.ops), (0, 0, 0), "{report:#?}");
        assert_eq!(report.staging_used_bytes, 0, "{report:#?}");
        assert_eq!(self.drained, 1, "the session's memory is given back once");
        assert_eq!(self.unused, self.withdrawn, "and each region that was withdrawn");
        assert_eq!(report.counters.requests, self.books.count());
        let open = self.nodes.kernel.open_sockets(self.id);
        assert!(open.is_empty(), "every socket is closed, but {open:?}");
    }

    /// The peer hangs up for good, and an operator of the node removes it.
    pub fn part(&mut self) {
        self.set_peer(false, false);
        (0..self.lines).for_each(|line| self.hang_up(line));
    }
}

/// What files with O_DIRECT want.
const ALIGNMENT: Alignment = Alignment { offset: 512, memory: 4 };

/// The memory of the client.
const fn whole(segment: SegmentId) -> Span {
    Span { segment, offset: 0, length: SEGMENT_BYTES as u32 }
}
