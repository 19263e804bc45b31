//! A shard over a [`Kernel`], a client that asks it, and the books of what must come out.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use piped_core::access::{Access, Alignment};
use piped_core::ids::{ChannelId, DeviceId, HandleId, QueueId, RegionId, SegmentId, SessionId};
use piped_core::io::Span;
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::request::{BufferState, Completion, Origin, Request, Update, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{
    ChannelTarget, Command, Event, FileTarget, Output, RegionTarget, Target,
};
use piped_engine::shard::{Shard, ShardConfig};
use piped_planner::solve::solve;

use crate::input::pattern;
use crate::kernel::{End, Kernel};

/// The session of the client.
pub const SESSION: SessionId = SessionId(1);
/// The client's region: [`REGION_RANGE`] of its segment.
pub const REGION: RegionId = RegionId(1);
/// A file it may read and write, with O_DIRECT where that is aligned.
pub const FILE: HandleId = HandleId(1);
/// A file that it may only read.
pub const READ_ONLY: HandleId = HandleId(2);
/// Handle of the client's own region.
pub const OWN_REGION: HandleId = HandleId(3);
/// Something at a peer, once it is opened there.
pub const REMOTE: HandleId = HandleId(4);
/// The client's own channel: the end that receives.
pub const INBOX: HandleId = HandleId(1000);
/// Handle of the channel's end that sends.
pub const OUTBOX: HandleId = HandleId(1001);

/// Bytes of the client's memory.
pub const SEGMENT_BYTES: u64 = 128 * 1024;
/// The offered part of it.
pub const REGION_RANGE: core::ops::Range<u64> = 64 * 1024 + 8..96 * 1024 + 8;

const STAGING_BYTES: u64 = 4 << 20;
const OPS_MAX: u32 = 64;
const TRANSFERS_MAX: u32 = 16;

/// Turns after which a shard that is given all it wants has ended everything. The longest work an
/// input can make takes a few thousand.
const TURNS_MAX: usize = 200_000;

const ALL: Access = Access::ALL;

/// A shard with a client and two files, on a kernel of ours.
#[derive(Debug)]
pub struct World {
    /// The kernel under the shard.
    pub kernel: Kernel,
    /// The shard under test.
    pub shard: Shard,
    /// Events for the control thread that nobody has looked at.
    pub events: Vec<Event>,
    /// The segment of the client.
    pub segment: SegmentId,
    /// Whether the client is there.
    pub session_open: bool,
    asked: BTreeMap<u32, Asked>,
    /// Where in the segment requests or peers may have written: from, to, and which request.
    touched: Vec<(u64, u64, u32)>,
    drained: usize,
    revoked: usize,
    regions_drained: usize,
    inodes: [usize; 2],
}

/// A request as its client remembers it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    request: Request,
    state: State,
    progress: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Held,
    Over,
}

impl World {
    /// A client with memory, files and a region.
    #[must_use]
    pub fn new(planner: PlannerMode, calibration: CalibrationMode) -> Self {
        let mut kernel = Kernel::new(OPS_MAX as usize / 2);
        let mut shard = Shard::new(ShardConfig {
            node_name: "alpha".to_owned(),
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
        let [memory, writable, read_only] = &*CONTENTS;
        let segment = kernel.add_segment(memory.clone(), false);
        let staging = kernel.add_segment(vec![0; STAGING_BYTES as usize], true);
        let inodes = [writable, read_only].map(|content| kernel.add_inode(content.clone()));
        let mut command = |command| shard.handle_command(command, &mut kernel);
        command(Command::AddStaging { segment: staging, length: STAGING_BYTES });
        command(Command::OpenSession { session: SESSION, weight: 1 });
        command(Command::AddSegment { session: SESSION, segment, length: SEGMENT_BYTES });
        let mut world = Self {
            kernel,
            shard,
            events: Vec::new(),
            segment,
            session_open: true,
            asked: BTreeMap::new(),
            touched: vec![(REGION_RANGE.start, REGION_RANGE.end, u32::MAX)],
            drained: 0,
            revoked: 0,
            regions_drained: 0,
            inodes,
        };
        for (handle, target) in [
            (FILE, world.file(true)),
            (READ_ONLY, world.file(false)),
            (OWN_REGION, world.region()),
            (INBOX, channel(true)),
            (OUTBOX, channel(false)),
        ] {
            world.command(Command::InstallHandle { session: SESSION, handle, target });
        }
        world
    }

    /// One of the two files, opened anew.
    pub fn file(&mut self, writable: bool) -> Target {
        let inode = self.inodes[usize::from(!writable)];
        let alignment = Alignment { offset: 512, memory: 4 };
        let direct = writable.then(|| (self.kernel.open(inode, Some(alignment)), alignment));
        Target::File(FileTarget {
            direct,
            buffered: self.kernel.open(inode, None),
            device: DeviceId(1),
            length: CONTENTS[if writable { 1 } else { 2 }].len() as u64,
            access: Access { read: true, write: writable, atomic: writable },
            foreign: false,
        })
    }

    /// The region that the client offers.
    #[must_use]
    pub fn region(&self) -> Target {
        Target::Region(RegionTarget {
            region: REGION,
            segment: self.segment,
            offset: REGION_RANGE.start,
            length: REGION_RANGE.end - REGION_RANGE.start,
            access: ALL,
        })
    }

    /// Whether the region can still be opened.
    #[must_use]
    pub fn offers_region(&self) -> bool {
        self.session_open && self.revoked == 0
    }

    /// From the control thread.
    pub fn command(&mut self, command: Command) {
        match command {
            Command::CloseSession { .. } => self.session_open = false,
            Command::RevokeRegion { .. } => self.revoked += 1,
            _ => {}
        }
        self.shard.handle_command(command, &mut self.kernel);
    }

    /// Submits a request of the client.
    pub fn submit(&mut self, request: Request, user_data: u64) {
        let slot = self.asked.len() as u32;
        let origin = Origin { session: SESSION, queue: QueueId(0), slot, user_data };
        self.asked.insert(slot, Asked { request, state: State::Running, progress: 0 });
        if let Verb::Read { buffer, .. } | Verb::Receive { buffer, .. } = request.verb
            && buffer.segment == 0
            && let Some(end) = buffer.offset.checked_add(buffer.length)
            && end <= SEGMENT_BYTES
        {
            self.touched.push((buffer.offset, end, slot));
        }
        let now = piped_core::io::Io::now(&mut self.kernel);
        self.shard.submit(origin, request, now, &mut self.kernel);
    }

    /// Everybody has a turn. Whether there is more to do at once.
    pub fn turn(&mut self) -> bool {
        while let Some(done) = self.kernel.poll_done() {
            self.shard.handle_done(done, &mut self.kernel);
        }
        self.shard.drive(&mut self.kernel);
        while let Some(output) = self.shard.poll_output() {
            self.handle_output(output);
        }
        self.shard.poll_timeout() == Some(Nanos::ZERO)
    }

    fn handle_output(&mut self, output: Output) {
        match output {
            Output::Completion(Completion::Finished { origin, status, bytes, buffer, .. }) => {
                self.finish(origin, status, bytes, buffer);
            }
            Output::Completion(Completion::Released { origin }) => {
                let asked = self.asked.get_mut(&origin.slot).expect("was asked");
                assert_eq!(asked.state, State::Held, "{asked:?} is released");
                asked.state = State::Over;
            }
            Output::Progress(progress) => {
                let asked = self.asked.get_mut(&progress.origin.slot).expect("was asked");
                assert_eq!(asked.state, State::Running, "progress of {asked:?}");
                assert!(progress.bytes >= asked.progress, "{asked:?} falls back");
                assert!(progress.bytes <= length(&asked.request.verb), "{asked:?}");
                let (from, to) = progress.landed;
                let inside = from >= progress.bytes && to <= length(&asked.request.verb);
                assert!(inside && from <= to, "{asked:?}: {progress:?}");
                asked.progress = progress.bytes;
            }
            Output::Event(Event::SessionDrained { session }) => {
                assert_eq!(session, SESSION);
                self.drained += 1;
            }
            Output::Event(Event::RegionDrained { .. }) => self.regions_drained += 1,
            Output::Event(event) => self.events.push(event),
            Output::Plan(question) => {
                let answer = Command::Planned(Box::new(solve(&question)));
                self.shard.handle_command(answer, &mut self.kernel);
            }
        }
    }

    fn finish(&mut self, origin: Origin, status: Status, bytes: u64, buffer: BufferState) {
        let asked = *self.asked.get(&origin.slot).expect("was asked");
        assert_eq!(asked.state, State::Running, "{asked:?} ends twice");
        assert!(bytes >= asked.progress && bytes <= length(&asked.request.verb), "{asked:?}");
        if status == Status::Ok && matches!(asked.request.verb, Verb::Write { .. }) {
            assert_eq!(bytes, length(&asked.request.verb), "a write is done, but not all of it");
        }
        let kept = buffer == BufferState::Held;
        check_once(asked.request.verb, status, kept);
        let state = if kept { State::Held } else { State::Over };
        self.asked.insert(origin.slot, Asked { state, ..asked });
        self.check_content(origin.slot, asked.request.verb, bytes);
    }

    /// Bytes that are reported read of the file that nobody writes are there, unless another
    /// request had the same buffer.
    fn check_content(&self, slot: u32, verb: Verb, bytes: u64) {
        let Verb::Read { handle: READ_ONLY, offset, buffer, .. } = verb else { return };
        let overlaps = |(start, end, other): &(u64, u64, u32)| {
            *other != slot && *start < buffer.offset + buffer.length && buffer.offset < *end
        };
        if bytes == 0 || !self.session_open || self.touched.iter().any(overlaps) {
            return;
        }
        let span = Span { segment: self.segment, offset: buffer.offset, length: bytes as u32 };
        let right = self.kernel.bytes(span).iter().enumerate();
        let wrong = right.into_iter().find(|(at, byte)| **byte != pattern(offset as usize + at, 3));
        assert!(wrong.is_none(), "{verb:?} has {wrong:?} of {bytes}");
    }

    /// Operation `which` ends, as a byte of the input says.
    pub fn end(&mut self, which: u8, how: u8) {
        let count = self.kernel.ops();
        if count > 0 {
            let end = match how {
                0..=99 => End::Whole,
                100..=199 => End::Short([1, 7, 63, 64, 65, 500, 512, 4096][usize::from(how % 8)]),
                200..=219 => End::Failed(-5),
                220..=229 => End::Failed(-28),
                230..=239 => End::Failed(-125),
                _ => End::Failed(-104),
            };
            self.kernel.end(usize::from(which) % count, end);
        }
    }

    /// Everything that can ends, the oldest first.
    pub fn end_all(&mut self) -> bool {
        let mut some = false;
        let mut which = 0;
        while which < self.kernel.ops() {
            if self.kernel.end(which, End::Whole) {
                some = true;
            } else {
                which += 1;
            }
        }
        some
    }

    /// Time for all there is to do, and time itself.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let more = self.turn();
            // What the turn cancelled has ended, too.
            let moved = self.end_all() || self.kernel.has_dones();
            if more || moved {
                continue;
            }
            match self.shard.poll_timeout() {
                Some(at) => {
                    let now = piped_core::io::Io::now(&mut self.kernel);
                    self.kernel.wait(Nanos(at.0.saturating_sub(now.0)));
                }
                None => return,
            }
        }
        panic!("it never ends: {:#?}", self.shard.report());
    }

    /// Everything ends, the client leaves, and nothing is left.
    pub fn finish_all(&mut self) {
        self.settle();
        // A client that has left is told nothing.
        for (slot, asked) in self.asked.iter().filter(|_| self.session_open) {
            assert_eq!(asked.state, State::Over, "request {slot} never ends: {asked:?}");
        }
        self.check_memory();
        if self.session_open {
            self.command(Command::CloseSession { session: SESSION });
        }
        self.settle();
        let report = self.shard.report();
        assert_eq!((report.transfers, report.serves, report.ops), (0, 0, 0), "{report:#?}");
        assert_eq!(report.staging_used_bytes, 0, "{report:#?}");
        assert_eq!(self.drained, 1, "the session's memory is given back once");
        assert_eq!(self.regions_drained, self.revoked, "and each revoked region is");
        assert_eq!(report.counters.requests, self.asked.len() as u64);
    }

    /// Nothing but destinations of reads and the region was written.
    fn check_memory(&self) {
        if !self.session_open {
            return;
        }
        let all = Span { segment: self.segment, offset: 0, length: SEGMENT_BYTES as u32 };
        let memory = self.kernel.bytes(all);
        let mut touched: Vec<_> = self.touched.iter().map(|(from, to, _)| (*from, *to)).collect();
        touched.sort_unstable();
        touched.push((SEGMENT_BYTES, SEGMENT_BYTES));
        let mut kept_from = 0;
        for (from, to) in touched {
            let kept = kept_from..from.max(kept_from as u64) as usize;
            let whole = memory[kept.clone()] == CONTENTS[0][kept.clone()];
            assert!(whole, "memory was written that nobody offered, somewhere in {kept:?}");
            kept_from = kept_from.max(to as usize);
        }
    }
}

/// A request that moves no bytes keeps no memory, and is done to regions only; the client waits on
/// its own.
fn check_once(verb: Verb, status: Status, kept: bool) {
    let handle = match verb {
        Verb::Update { handle, offset, .. } => {
            let aligned = offset.is_multiple_of(Update::BYTES);
            assert!(status != Status::Ok || aligned, "{verb:?} of no word");
            handle
        }
        Verb::Notify { handle, .. } => handle,
        Verb::Wait { handle, count, .. } => {
            let own = handle == OWN_REGION && count > 0;
            assert!(status != Status::Ok || own, "{verb:?} ends well");
            handle
        }
        Verb::Flush { .. } | Verb::Nop | Verb::Cancel { .. } => {
            return assert!(!kept, "{verb:?} keeps memory");
        }
        _ => return,
    };
    assert!(!kept, "{verb:?} keeps memory");
    let is_region = ![FILE, READ_ONLY, INBOX, OUTBOX].contains(&handle);
    assert!(status != Status::Ok || is_region, "{verb:?} ends well");
}

/// Contents of the client's memory, of the file it may write and of the one it may not.
static CONTENTS: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    [(SEGMENT_BYTES as usize, 1), (70_001, 2), (100_000, 3)]
        .map(|(length, salt)| (0..length).map(|at| pattern(at, salt)).collect())
});

/// An end of the client's channel.
#[must_use]
pub fn channel(receives: bool) -> Target {
    Target::Channel(ChannelTarget { channel: ChannelId(1), receives })
}

fn length(verb: &Verb) -> u64 {
    match verb {
        Verb::Read { buffer, .. }
        | Verb::Write { buffer, .. }
        | Verb::Send { buffer, .. }
        | Verb::Receive { buffer, .. } => buffer.length,
        Verb::Copy { length, .. } => *length,
        Verb::Vector { bytes, .. } => *bytes,
        Verb::Nop
        | Verb::Update { .. }
        | Verb::Notify { .. }
        | Verb::Wait { .. }
        | Verb::Flush { .. }
        | Verb::Sync { .. }
        | Verb::Cancel { .. }
        | Verb::Unsupported => 0,
    }
}
