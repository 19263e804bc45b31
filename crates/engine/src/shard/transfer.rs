//! A request in execution: how it starts, moves fragment by fragment, and ends exactly once.
//!
//! A transfer's buffer is *pinned* by everything that may still touch it: an operation at the
//! kernel, a frame queued on a lane, a child transfer. A transfer that ends by itself waits for its
//! pins; one that is given up (deadline, cancel, session gone) tells its client at once that the
//! buffer is `Held`, and says `Released` when the last pin is gone.

use std::sync::Arc;

use piped_core::ids::{FileId, HandleId, PeerId, SessionId};
use piped_core::io::{Io, Op, Span};
use piped_core::limits;
use piped_core::request::{BufferState, Class, Completion, Origin, Progress, Update};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::planned::{Planned, boundary};
use piped_report::tally::{Operation, Route};
use piped_wire::LastPart;

use super::Shard;
use super::arena::Memory;
use super::bodies::Bodies;
use super::clients::Used;
use super::cx::Cx;
use super::devices::Wanted;
use super::disk::{Direction, JobOwner, JobResult};
use super::fair::{Flow, Party};
use super::keys::{CopyKey, LaneKey, OnceKey, OpKey, TransferKey, VectorKey, kind};
use super::landed::Landed;
use super::mail::Outgoing;
use super::notify::WaitBody;
use super::ops::{OpOwner, status_of};
use super::pins::{Pin, Pins};
use super::receive::{ReceiveBody, SendBody};
use super::sched::Work;
use super::trace::Subject;
use crate::command::{FileTarget, Output, RegionTarget, Target};

/// The least that a write has at its device at once: what is not read yet bounds it anyway.
const WRITES_AT_ONCE: u32 = 8;

/// Who is told when a transfer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiter {
    Client(Origin),
    /// A copy, for one half of one of its chunks.
    Copy {
        parent: TransferKey,
        chunk: u8,
    },
    /// A vectored request, for one of its parts.
    Vector {
        parent: TransferKey,
        part: u8,
    },
    /// The session is gone.
    Nobody,
}

impl Waiter {
    /// Whether it is a part of another one.
    pub(super) fn is_part(self) -> bool {
        matches!(self, Self::Copy { .. } | Self::Vector { .. })
    }
}

/// What the side that planned a transfer said of its plan.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    /// What pieces end at multiples of, in bytes; 0 if nothing was said.
    pub(super) fragment: u32,
    /// Bytes of the first piece that came, and how many came so far.
    pub(super) first: u32,
    pub(super) pieces: u32,
    /// Of the whole transfer; known at its end.
    pub(super) predicted: Nanos,
    /// Half the width of that prediction's interval; 0 if nothing was said.
    pub(super) margin: Nanos,
    /// The peer says that it had company there.
    pub(super) company: bool,
    /// Its number, by which the peer knows it; 0 until the end.
    pub(super) plan: u32,
}

impl Told {
    /// With another piece.
    pub(super) fn piece(before: Option<Self>, fragment: u32, bytes: u32) -> Self {
        let told = before.unwrap_or(Self { first: bytes, ..Self::default() });
        Self { fragment, pieces: told.pieces + 1, ..told }
    }

    /// With what the last piece added.
    pub(super) fn last(before: Option<Self>, last: LastPart) -> Self {
        let predicted = Nanos::from_micros(last.predicted_us.into());
        let margin = Nanos(predicted.0 / 100 * u64::from(last.margin_percent));
        let LastPart { company, plan, .. } = last;
        Self { predicted, margin, company, plan, ..before.unwrap_or_default() }
    }
}

/// What a new transfer is made of.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) waiter: Waiter,
    pub(super) session: SessionId,
    pub(super) handles: [Option<HandleId>; 2],
    pub(super) kind: Operation,
    pub(super) class: Class,
    pub(super) deadline: Nanos,
    pub(super) length: u64,
    pub(super) body: Body,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) id: u64,
    pub(super) waiter: Waiter,
    pub(super) session: SessionId,
    handles: [Option<HandleId>; 2],
    pub(super) kind: Operation,
    pub(super) class: Class,
    pub(super) started: Nanos,
    pub(super) deadline: Nanos,
    pub(super) length: u64,
    pub(super) landed: Landed,
    /// Bytes that count as moved besides, see [`super::moved`].
    pub(super) moved: u64,
    /// What its client is told: of a receive, the tag of its message; of an update, what the word
    /// was; of a wait, what is left.
    pub(super) value: u64,
    /// It begins when all before it there are over.
    pub(super) fence: bool,
    /// Of what it writes, bytes that are there: the rest is still being read.
    pub(super) available: u64,
    /// How it ends, once that is decided. Nothing new is started after that.
    pub(super) status: Option<Status>,
    /// Its client was told, with the buffer held.
    told: bool,
    pub(super) pins: Pins,
    /// Another one that it is a part of, or copies from.
    pub(super) holds: Option<Pin<kind::Transfer>>,
    /// Bytes of a read from a peer that its client has paid for.
    pub(super) charged: u64,
    pub(super) retries: u32,
    pub(super) corrupt: u32,
    /// A payload of the present attempt did not match its checksum.
    pub(super) damaged: bool,
    /// Fragments that arrived by way of a copy.
    pub(super) mispredicted: u32,
    pub(super) plan: Option<Arc<Planned>>,
    /// What the side that planned said, when it was not this one.
    pub(super) told_plan: Option<Told>,
    /// When nothing held it back any more for the first time; [`Nanos::MAX`] before.
    pub(super) begun: Nanos,
    /// Of a durable write, what its sync was predicted to take.
    pub(super) sync: Option<Nanos>,
    pub(super) body: Body,
}

/// What is left to do, by where the other end is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body {
    File(FileBody),
    Memory(MemoryBody),
    Remote(RemoteBody),
    Copy(CopyKey),
    Vector(VectorKey),
    /// A message to a channel of this shard.
    Send(SendBody),
    Receive(ReceiveBody),
    /// For notifications.
    Wait(WaitBody),
    /// Of a word of a region of this node.
    Update {
        region: RegionTarget,
        offset: u64,
        update: Update,
    },
    Sync {
        file: FileId,
        started: bool,
    },
    /// Nothing: it ends as soon as it is looked at.
    Settled,
}

/// Between a local file and memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileBody {
    pub(super) target: FileTarget,
    pub(super) direction: Direction,
    pub(super) durable: bool,
    pub(super) offset: u64,
    pub(super) memory: Memory,
    /// Bytes from the start for which a fragment was started.
    next: u64,
    in_flight: u32,
    phase: Phase,
    /// A fragment came back short.
    ended: bool,
    /// When the sync of a durable write began.
    pub(super) syncing: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// An extending write gets its blocks first.
    Allocate,
    Allocating,
    Moving,
    Syncing,
}

impl FileBody {
    pub(super) fn new(
        target: FileTarget,
        direction: Direction,
        durable: bool,
        offset: u64,
        memory: Memory,
    ) -> Self {
        let phase = match direction {
            Direction::Read => Phase::Moving,
            Direction::Write => Phase::Allocate,
        };
        Self {
            target,
            direction,
            durable,
            offset,
            memory,
            next: 0,
            in_flight: 0,
            phase,
            ended: false,
            syncing: Nanos::ZERO,
        }
    }
}

/// Between a local region and memory: the daemon copies, a piece a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryBody {
    pub(super) region: RegionTarget,
    pub(super) direction: Direction,
    pub(super) offset: u64,
    pub(super) memory: Memory,
    pub(super) next: u64,
    /// Its next piece waits for its turn.
    pub(super) waits: bool,
    /// What the region's exporter is notified of at its end.
    pub(super) notify: Option<u32>,
}

/// What is asked of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemoteOp {
    Read,
    Write {
        durable: bool,
    },
    Sync,
    /// A message; once the peer has asked for it, a write.
    Send,
    /// What moves no bytes and is done once.
    Once,
}

/// Between a peer and memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteBody {
    pub(super) peer: PeerId,
    pub(super) handle: HandleId,
    pub(super) op: RemoteOp,
    pub(super) offset: u64,
    pub(super) memory: Memory,
    /// The lane the request went out on; `None` while it waits for one.
    pub(super) lane: Option<LaneKey>,
    pub(super) sent_at: Nanos,
    /// Bytes of a write queued on the lane.
    pub(super) next: u64,
    /// Of those, what the peer has given credit back for.
    pub(super) taken: u64,
    /// Where the fragment at the peer's device ends that these belong to.
    pub(super) fragment_end: u64,
    /// Frames of a write queued and not taken by the kernel.
    pub(super) frames: u32,
    /// Nothing else was outstanding on the lane when it was sent: its first arrival times the wire.
    pub(super) alone: bool,
    /// Of a write, bytes that were there when it was sent.
    pub(super) ready: u64,
    /// Of a sync: the peer's incarnation that took the first write it is to cover.
    pub(super) unsynced: Option<u64>,
    /// What makes it a message.
    pub(super) message: Option<Outgoing>,
    /// What is done once: after a write, or alone.
    pub(super) once: Option<OnceKey>,
    /// The table of the pieces that it reads or writes instead of a range.
    pub(super) pieces: Option<Span>,
    /// Of a write: it has landed, as a notification behind it was done. It must not come again.
    pub(super) is_landed: bool,
}

impl RemoteBody {
    pub(super) fn new(
        peer: PeerId,
        handle: HandleId,
        op: RemoteOp,
        offset: u64,
        memory: Memory,
    ) -> Self {
        Self {
            peer,
            handle,
            op,
            offset,
            memory,
            lane: None,
            sent_at: Nanos::ZERO,
            next: 0,
            taken: 0,
            fragment_end: 0,
            frames: 0,
            alone: false,
            ready: 0,
            unsynced: None,
            message: None,
            once: None,
            pieces: None,
            is_landed: false,
        }
    }
}

impl Transfer {
    /// Whether it is by this handle of its session.
    pub(super) fn uses(&self, handle: HandleId) -> bool {
        self.handles.contains(&Some(handle))
    }

    /// Whether it sends or receives a message.
    pub(super) fn is_message(&self) -> bool {
        matches!(self.kind, Operation::Send | Operation::Receive)
    }

    /// Whether it waits for others and counts so.
    fn waits_for_others(&self) -> bool {
        matches!(self.kind, Operation::Receive | Operation::Wait)
    }

    /// Whether it fills its memory.
    pub(super) fn reads(&self) -> bool {
        match &self.body {
            Body::File(body) => body.direction == Direction::Read,
            Body::Memory(body) => body.direction == Direction::Read,
            Body::Remote(body) => body.op == RemoteOp::Read,
            Body::Vector(_) => matches!(self.kind, Operation::Get | Operation::Read),
            Body::Receive(_) => true,
            Body::Send(_)
            | Body::Copy(_)
            | Body::Wait(_)
            | Body::Update { .. }
            | Body::Sync { .. }
            | Body::Settled => false,
        }
    }
}

impl Shard {
    /// Makes a transfer; `None` when there are as many as there may be.
    pub(super) fn start_transfer(&mut self, start: Start, now: Nanos) -> Option<TransferKey> {
        let Start { waiter, session, handles, kind, class, deadline, length, body } = start;
        self.cx.transfers_started += 1;
        let transfer = Transfer {
            id: self.cx.transfers_started,
            waiter,
            session,
            handles,
            kind,
            class,
            started: now,
            deadline,
            length,
            landed: Landed::new(0),
            moved: 0,
            value: 0,
            fence: false,
            available: u64::MAX,
            status: None,
            told: false,
            pins: Pins::default(),
            holds: None,
            charged: 0,
            retries: 0,
            corrupt: 0,
            damaged: false,
            mispredicted: 0,
            plan: None,
            told_plan: None,
            begun: Nanos::MAX,
            sync: None,
            body,
        };
        let waits = transfer.waits_for_others();
        // Messages are in order whatever their class.
        let turns = if transfer.is_message() { Class::Latency } else { class };
        let key = self.transfers.insert(transfer).ok()?;
        self.cx.sched.begin(Work::Transfer(key), turns);
        let _ = self.extents.of_new(key);
        self.cx.watch.observed.begin(Subject::Transfer(key));
        self.deadlines.set(key.index(), deadline);
        self.clients.enter(key, session, waits);
        for handle in handles.into_iter().flatten() {
            self.handles.enter(session, handle);
        }
        self.trace_begin(Subject::Transfer(key), now);
        Some(key)
    }

    pub(super) fn drive_transfer<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if transfer.status.is_some() {
            return self.settle(key, io);
        }
        if self.clients.waits_for_limit(key) {
            return;
        }
        if transfer.fence {
            transfer.fence = false;
            if !self.clients.is_first_in_order(key) {
                self.wait_in_order(key);
                if let Some(transfer) = self.transfers.get_mut(key) {
                    transfer.fence = true;
                }
                return;
            }
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if !matches!(transfer.body, Body::Remote(_)) && transfer.begun == Nanos::MAX {
            transfer.begun = io.now();
        }
        match transfer.body {
            Body::File(body) => self.drive_file(key, body, io),
            Body::Memory(body) => self.drive_memory(key, body, io),
            Body::Wait(wait) => self.drive_wait(key, wait, io),
            Body::Update { region, offset, update } => {
                self.drive_update(key, (region, offset, update), io);
            }
            Body::Remote(body) => self.drive_remote(key, body, io),
            Body::Copy(_) => self.drive_copy(key, io),
            Body::Vector(_) => self.drive_vector(key, io),
            Body::Send(body) => self.drive_send(key, body, io),
            Body::Receive(body) => self.drive_receive(key, body, io),
            Body::Sync { file, started: false } => {
                let work = Work::Transfer(key);
                match self.start_sync(work, file, io) {
                    Ok(_) => {
                        let transfer = self.transfers.get_mut(key).expect("looked at above");
                        transfer.body = Body::Sync { file, started: true };
                    }
                    Err(wanted) => self.want(work, wanted),
                }
            }
            Body::Sync { started: true, .. } => {}
            Body::Settled => self.decide(key, Status::Ok, io),
        }
    }

    fn drive_file<I: Io>(&mut self, key: TransferKey, mut body: FileBody, io: &mut I) {
        let (length, available) =
            self.transfers.get(key).map_or((0, 0), |t| (t.length, t.available));
        if body.phase == Phase::Allocate {
            match self.allocate_ahead(body.target, body.offset, length, Work::Transfer(key), io) {
                Ahead::NotNeeded => body.phase = Phase::Moving,
                Ahead::Started => {
                    body.phase = Phase::Allocating;
                }
                Ahead::NoRoom(wanted) => self.want(Work::Transfer(key), wanted),
            }
        }
        if body.phase == Phase::Moving {
            let planned = self.plan_local(key, body.target, body.direction, length);
            let cut = &planned.cut;
            // What a write finds in memory is as much as was read: the device decides.
            let (sizes, depth) = match body.direction {
                Direction::Read => (&cut.source, cut.depth),
                Direction::Write => (&cut.sink, cut.depth.max(WRITES_AT_ONCE)),
            };
            while body.next < length && !body.ended && body.in_flight < depth {
                let end = boundary(sizes, body.offset, body.next).min(length);
                if end > available {
                    break;
                }
                let now = io.now();
                if !self.may_move(Work::Transfer(key), now) {
                    break;
                }
                let span = body.memory.span(body.next, (end - body.next) as u32);
                let owner = JobOwner::Transfer { transfer: key, start: body.next };
                let offset = body.offset + body.next;
                let started = self.start_job(owner, body.target, body.direction, offset, span, io);
                if let Err(wanted) = started {
                    self.want(Work::Transfer(key), wanted);
                    break;
                }
                self.charge(Work::Transfer(key), end - body.next, now);
                body.next = end;
                body.in_flight += 1;
            }
            if body.in_flight == 0 && (body.next == length || body.ended) {
                self.store_body(key, Body::File(body));
                return self.file_moved(key, body, io);
            }
        }
        self.store_body(key, Body::File(body));
    }

    /// All bytes are moved: make them durable if that was asked.
    fn file_moved<I: Io>(&mut self, key: TransferKey, mut body: FileBody, io: &mut I) {
        if !body.durable {
            return self.decide(key, Status::Ok, io);
        }
        match self.start_sync(Work::Transfer(key), body.target.buffered, io) {
            Ok(_) => {
                (body.phase, body.syncing) = (Phase::Syncing, io.now());
                self.store_body(key, Body::File(body));
            }
            Err(wanted) => self.want(Work::Transfer(key), wanted),
        }
    }

    /// Hands the sync of an open file to its device.
    pub(super) fn start_sync<I: Io>(
        &mut self,
        work: Work,
        file: FileId,
        io: &mut I,
    ) -> Result<OpKey, Wanted> {
        let on = self.files.get(&file).expect("a file in use is open").on;
        self.start_file_op(OpOwner::Step(work), on, Op::Sync { file }, io)
    }

    /// The end of an allocation or a sync.
    pub(super) fn handle_transfer_step<I: Io>(
        &mut self,
        pin: Pin<kind::Transfer>,
        result: i32,
        io: &mut I,
    ) {
        let key = pin.key();
        self.unpin(pin);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        match &mut transfer.body {
            Body::File(body) if body.phase == Phase::Allocating => {
                body.phase = Phase::Moving;
                let (file, end) = (body.target.buffered, body.offset + transfer.length);
                if let Err(status) = self.allocated(file, end, result) {
                    self.decide(key, status, io);
                }
            }
            _ => {
                let status = if result < 0 { status_of(result) } else { Status::Ok };
                if status == Status::Ok {
                    self.note_synced(key, io.now());
                }
                self.decide(key, status, io);
            }
        }
        self.cx.sched.make_ready(Work::Transfer(key));
    }

    /// A fragment of a local transfer ended.
    pub(super) fn handle_fragment<I: Io>(
        &mut self,
        pin: Pin<kind::Transfer>,
        start: u64,
        result: JobResult,
        io: &mut I,
    ) {
        let key = pin.key();
        self.unpin(pin);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let length = transfer.length;
        let Body::File(body) = &mut transfer.body else { return };
        body.in_flight -= 1;
        // The next boundary tells whether it was short; only the last fragment may be shorter.
        let wanted = transfer.plan.as_ref().map_or(length, |plan| {
            let cut = &plan.cut;
            let sizes = if body.direction == Direction::Read { &cut.source } else { &cut.sink };
            boundary(sizes, body.offset, start).min(length)
        }) - start;
        body.ended |= u64::from(result.bytes) < wanted;
        let moved = transfer.landed.insert(
            self.extents.at_mut(key),
            start,
            start + u64::from(result.bytes),
        );
        if result.status != Status::Ok {
            return self.decide(key, result.status, io);
        }
        if moved == Ok(true) {
            self.tell_progress(key);
        }
    }

    pub(super) fn tell_progress(&mut self, key: TransferKey) {
        let Some(transfer) = self.transfers.get(key) else { return };
        self.tell_progress_to(key, transfer.landed.watermark());
    }

    pub(super) fn tell_progress_to(&mut self, key: TransferKey, bytes: u64) {
        let Some(transfer) = self.transfers.get(key) else { return };
        match transfer.waiter {
            Waiter::Client(origin) if bytes < transfer.length && !transfer.told => {
                let landed = transfer.landed.first_extent(self.extents.at(key));
                self.cx.outputs.push_back(Output::Progress(Progress { origin, bytes, landed }));
            }
            Waiter::Copy { parent, chunk } if transfer.reads() => {
                self.note_chunk_read(parent, chunk, bytes);
            }
            Waiter::Copy { parent, chunk } => {
                self.note_moved(key, bytes);
                self.note_chunk_written(parent, chunk, key, bytes);
            }
            Waiter::Vector { parent, part } if transfer.reads() => {
                self.note_part_read(parent, part, bytes);
                self.note_moved(key, bytes);
            }
            Waiter::Vector { .. } => self.note_moved(key, bytes),
            _ => {}
        }
    }

    /// Who pays for what a transfer or serve has to do.
    pub(super) fn flow_of(&self, work: Work) -> Flow {
        match work {
            Work::Transfer(key) => {
                let (session, class) = self
                    .transfers
                    .get(key)
                    .map_or((SessionId(0), Class::Bulk), |it| (it.session, it.class));
                let weight = self.clients.weight(session);
                Flow { party: Party::Client(session), class, weight }
            }
            Work::Serve(key) => self.serves.get(key).map_or(Flow::NONE, |serve| serve.flow),
            Work::Lane(_) => Flow::NONE,
        }
    }

    pub(super) fn store_body(&mut self, key: TransferKey, body: Body) {
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.body = body;
        }
    }

    /// Says how a transfer ends; it does once nothing touches its buffer.
    pub(super) fn decide<I: Io>(&mut self, key: TransferKey, status: Status, io: &mut I) {
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.status.get_or_insert(status);
            self.settle(key, io);
        }
    }

    /// Ends a transfer now, whatever the kernel still does with its buffer.
    pub(super) fn give_up<I: Io>(&mut self, key: TransferKey, status: Status, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        // Ended already, it only waits for its buffer, and the peer owes it nothing.
        let ended = transfer.status.is_some();
        let status = *transfer.status.get_or_insert(status);
        self.cancel_ops_of(key, io);
        self.drop_waiting(Work::Transfer(key), io);
        self.hurry(Work::Transfer(key), io);
        self.cancel_queued(key);
        self.leave_lane(key, !ended);
        self.leave_channel(key, io);
        self.give_up_children(key, status, io);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if transfer.pins.any()
            && let Waiter::Client(origin) = transfer.waiter
            && !std::mem::replace(&mut transfer.told, true)
        {
            self.deadlines.clear(key.index());
            let (bytes, value) = (transfer.landed.watermark(), transfer.value);
            self.cx.watch.counters.held += 1;
            let buffer = BufferState::Held;
            let finished = Completion::Finished { origin, status, bytes, value, buffer };
            self.cx.outputs.push_back(Output::Completion(finished));
            let Cx { limits, sched, .. } = &mut self.cx;
            self.clients.leave_limits(key, limits, sched);
        }
        self.settle(key, io);
    }

    /// The deadline of the transfer in `slot` has passed.
    pub(super) fn expire<I: Io>(&mut self, slot: u32, io: &mut I) {
        let Some(key) = self.transfers.next_from(slot, |_| true) else { return };
        if key.index() != slot {
            return;
        }
        let unreachable = match self.transfers.get(key).map(|t| &t.body) {
            Some(Body::Remote(body)) => body.lane.is_none() && self.peer_is_lost(key),
            _ => false,
        };
        let status = if unreachable { Status::PeerLost } else { Status::DeadlineExceeded };
        self.give_up(key, status, io);
    }

    /// Ends and forgets a transfer whose end is decided and whose buffer nothing touches.
    pub(super) fn settle<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let over = self.transfers.get(key).is_some_and(|t| !t.pins.any() && t.status.is_some());
        if !over {
            return;
        }
        self.leave_lane(key, false);
        self.leave_outbox(key);
        self.end_number(key);
        self.clients.leave_order(key, &mut self.cx.sched);
        self.leave_notifications(key);
        let Cx { limits, sched, .. } = &mut self.cx;
        self.clients.leave_limits(key, limits, sched);
        let unused = self
            .transfers
            .get(key)
            .map_or(0, |it| it.charged.saturating_sub(it.landed.watermark()));
        self.refund(Work::Transfer(key), unused);
        let moved = self.transfers.get(key).map_or(0, Transfer::moved);
        self.note_moved(key, moved);
        let Some(mut transfer) = self.transfers.remove(key) else { return };
        self.cx.sched.end(Work::Transfer(key));
        self.deadlines.clear(key.index());
        let status = transfer.status.unwrap_or(Status::Ok);
        let bytes = transfer.landed.watermark();
        self.free_chunks(transfer.session, &transfer.body);
        self.free_parts(transfer.session, &transfer.body);
        self.cx.watch.tally.released += u64::from(transfer.told);
        self.remember(key, &transfer, status, io.now());
        let plans = (transfer.plan.as_ref(), transfer.told_plan);
        self.trace_end(Subject::Transfer(key), transfer.id, status, plans, io.now());
        match transfer.waiter {
            Waiter::Client(origin) if transfer.told => {
                self.cx.outputs.push_back(Output::Completion(Completion::Released { origin }));
            }
            Waiter::Client(origin) => {
                let (value, buffer) = (transfer.value, BufferState::Returned);
                let finished = Completion::Finished { origin, status, bytes, value, buffer };
                self.cx.outputs.push_back(Output::Completion(finished));
            }
            Waiter::Copy { parent, chunk } => {
                let whole = (parent, transfer.holds.take());
                self.handle_child(key, whole, chunk, (status, bytes), io);
            }
            Waiter::Vector { parent, part } => {
                let whole = (parent, transfer.holds.take());
                self.handle_part(whole, part, (status, bytes), io);
            }
            Waiter::Nobody => {}
        }
        self.leave(&transfer, io);
        self.bodies.forget(&transfer.body);
    }

    fn leave<I: Io>(&mut self, transfer: &Transfer, io: &mut I) {
        for handle in transfer.handles.into_iter().flatten() {
            self.leave_handle(transfer.session, handle, io);
        }
        for region in transfer.body.regions(&self.bodies) {
            self.drain_region(region.region);
        }
        let ok = transfer.status == Some(Status::Ok);
        let used = (!transfer.waiter.is_part()).then(|| Used {
            completed: ok.into(),
            failed: (!ok).into(),
            bytes: transfer.moved(),
        });
        if self.clients.leave(transfer.session, transfer.waits_for_others(), used) {
            self.drain_session(transfer.session, io);
        }
    }

    /// Gives an extending write its blocks before its bytes, so that direct writes beside each
    /// other need not each move the end of the file.
    pub(super) fn allocate_ahead<I: Io>(
        &mut self,
        target: FileTarget,
        offset: u64,
        length: u64,
        work: Work,
        io: &mut I,
    ) -> Ahead {
        let file = target.buffered;
        let Some(state) = self.files.get(&file) else { return Ahead::NotNeeded };
        if offset + length <= state.length || !state.can_allocate || target.direct.is_none() {
            return Ahead::NotNeeded;
        }
        let (on, op) = (state.on, Op::Allocate { file, offset, length });
        match self.start_file_op(OpOwner::Step(work), on, op, io) {
            Ok(_) => Ahead::Started,
            Err(wanted) => Ahead::NoRoom(wanted),
        }
    }

    /// Books the end of an allocation.
    pub(super) fn allocated(&mut self, file: FileId, end: u64, result: i32) -> Result<(), Status> {
        const EOPNOTSUPP: i32 = -95;
        const ENOSYS: i32 = -38;
        let Some(state) = self.files.get_mut(&file) else { return Ok(()) };
        match result {
            EOPNOTSUPP | ENOSYS => state.can_allocate = false,
            result if result < 0 => return Err(status_of(result)),
            _ => state.length = state.length.max(end),
        }
        Ok(())
    }

    /// Ends every transfer and serve that uses a region.
    pub(super) fn end_region_users<I: Io>(
        &mut self,
        wanted: impl Fn(RegionTarget) -> bool,
        io: &mut I,
    ) {
        let mut from = 0;
        let of_region = |shard: &Self, from| {
            let bodies = &shard.bodies;
            shard
                .transfers
                .next_from(from, |t| t.status.is_none() && t.body.regions(bodies).any(&wanted))
        };
        while let Some(key) = of_region(self, from) {
            from = key.index() + 1;
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.status = Some(Status::Gone);
                self.cx.sched.make_ready(Work::Transfer(key));
            }
        }
        self.handles.revoke(|target| matches!(target, Target::Region(region) if wanted(region)));
        self.revoke_served(|target| matches!(target, Target::Region(region) if wanted(region)));
        self.end_region_serves(&wanted, io);
    }
}

/// What became of allocating ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    NotNeeded,
    Started,
    NoRoom(Wanted),
}

impl Body {
    /// The local regions it touches.
    pub(super) fn regions(&self, bodies: &Bodies) -> impl Iterator<Item = RegionTarget> + use<> {
        let (memory, copy) = match self {
            Self::Memory(MemoryBody { region, .. }) | Self::Update { region, .. } => {
                (Some(*region), None)
            }
            Self::Copy(copy) => (None, Some(bodies[*copy].regions())),
            _ => (None, None),
        };
        let vector = match self {
            Self::Vector(vector) => bodies[*vector].region(),
            _ => None,
        };
        memory.into_iter().chain(copy.into_iter().flatten()).chain(vector)
    }

    /// Where its bytes lie in the file or region that is not the client's; of a copy, in the
    /// source.
    pub(super) fn offset(&self, bodies: &Bodies) -> u64 {
        match self {
            Self::File(body) => body.offset,
            Self::Memory(body) => body.offset,
            Self::Remote(body) => body.offset,
            Self::Copy(copy) => bodies[*copy].offset(),
            Self::Update { offset, .. } => *offset,
            Self::Vector(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::Wait(_)
            | Self::Sync { .. }
            | Self::Settled => 0,
        }
    }

    /// Where the other end is.
    pub(super) fn place(&self, bodies: &Bodies) -> Route {
        match self {
            Self::Remote(_) => Route::Remote,
            Self::Copy(copy) => bodies[*copy].place(),
            Self::Vector(vector) => bodies[*vector].route().0,
            Self::File(_)
            | Self::Memory(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::Wait(_)
            | Self::Update { .. }
            | Self::Sync { .. }
            | Self::Settled => Route::Local,
        }
    }

    /// A target's device and way, for `explain`.
    pub(super) fn route(&self, bodies: &Bodies) -> &'static str {
        match self {
            Self::File(body) if body.direction == Direction::Read => "local file -> client memory",
            Self::File(_) => "client memory -> local file",
            Self::Memory(body) if body.direction == Direction::Read => {
                "local region -> client memory"
            }
            Self::Memory(_) => "client memory -> local region",
            Self::Remote(body) => match body.op {
                RemoteOp::Read => "peer -> lane -> client memory",
                RemoteOp::Write { .. } => "client memory -> lane -> peer",
                RemoteOp::Sync => "peer's file",
                RemoteOp::Send => "client memory -> lane -> channel of a peer",
                RemoteOp::Once => "lane -> peer",
            },
            Self::Send(_) => "client memory -> local channel",
            Self::Receive(_) => "channel -> client memory",
            Self::Wait(_) => "notifications",
            Self::Update { .. } => "local region",
            Self::Copy(copy) => bodies[*copy].route(),
            Self::Vector(vector) => bodies[*vector].route().1,
            Self::Sync { .. } => "local file",
            Self::Settled => "nothing to do",
        }
    }
}

/// Whether a target is a file, and which.
pub(super) fn file_of(target: Target) -> Option<FileTarget> {
    match target {
        Target::File(file) => Some(file),
        Target::Region(_) | Target::Channel(_) => None,
    }
}

const _: () = assert!(limits::FRAGMENT_BYTES_MAX as u64 <= limits::REQUEST_BYTES_MAX);

// What a request takes while it runs; the rest of it is in [`Bodies`], or beside the slabs for
// those who look there.
const _: () = assert!(size_of::<Transfer>() <= 512);
