//! Vectored requests, and reads of which a part is wanted first: many pieces, each a row of a
//! table.
//!
//! They are done in parts, each a child transfer, a few at a time:
//!
//! - A part of a region of a peer is *packed*: its pieces travel one behind the other, under one
//!   request with a table of them, and are copied from or to the client's buffer here. Thousands of
//!   short pieces cost a copy each and no frame. Where the buffer has them one behind the other
//!   already, there is no copy either.
//! - A part of a file is one piece, which the client's memory is source or sink of itself. Short
//!   buffers of a range of a peer's file are *joined*: they travel as one range, and are copied
//!   here like packed ones.
//! - Pieces of a region of this node are copied in the shard's turns.
//!
//! A table lies in the client's memory, which may change: each row is read once and checked in the
//! copy. So is each row of a list of buffers, all of them before the first piece.

use piped_core::ids::SessionId;
use piped_core::io::{Io, Span};
use piped_core::limits::{PART_BYTES, PART_PIECES, PART_ROWS};
use piped_core::pieces::Row;
use piped_core::status::Status;
use piped_report::tally::Operation;

use crate::command::Target;
use crate::shard::Shard;
use crate::shard::arena::Memory;
use crate::shard::buffers::{Run, footprint_of};
use crate::shard::clients::Place;
use crate::shard::driver::Direction;
use crate::shard::flows::request::memory::overlap;
use crate::shard::flows::request::resolve::body_for;
use crate::shard::keys::{Subject, TransferKey, VectorKey, kind};
use crate::shard::pins::Pin;
use crate::shard::requests::{
    Body, Buffers, Order, Part, RemoteBody, RemoteOp, Start, VectorBody, Waiter,
};
use crate::shard::sched::Work;

/// Bytes of a row in a part's table: what the peer gets, and behind all of these where it lies in
/// the buffer.
const HERE_BYTES: usize = 16;

/// Shorter pieces of a peer's file are joined, if they go to several buffers: a copy of fewer bytes
/// costs less than a request of its own.
const JOINED_BYTES: u32 = 64 * 1024;

impl Shard {
    pub(in crate::shard) fn drive_vector<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let length = transfer.length;
        let Body::Vector(vector) = transfer.body else { return };
        let list = self.bodies[vector].buffers().unread();
        if let Some(list) = list
            && let Err(status) = self.read_list(key, list, io)
        {
            return self.decide(key, status, io);
        }
        let vector = &mut self.bodies[vector];
        if let Some(status) = vector.outcome(length) {
            if vector.is_idle() {
                self.decide(key, status, io);
            }
            return;
        }
        let Some(index) = vector.free_part() else { return };
        let started = match (vector.end(), vector.order()) {
            (Place::Local(Target::Region(_)), Order::Packed) => {
                if vector.begin_wait() {
                    let bytes = (length - vector.taken()).min(PART_BYTES.into()) as u32;
                    let flow = self.flow_of(Work::Transfer(key));
                    self.cx.sched.push_copy(flow, bytes, key);
                }
                return;
            }
            (Place::Remote(..), Order::Packed) => self.start_packed(key, index, io),
            (Place::Remote(..), Order::Single) if self.begins_short(key, io) => {
                self.start_packed(key, index, io)
            }
            _ => self.start_single(key, index, io),
        };
        match started {
            Ok(true) => self.cx.sched.make_ready(Work::Transfer(key)),
            Ok(false) => self.cx.sched.starve(Work::Transfer(key)),
            Err(status) => {
                // What is under way of it ends first.
                if let Some(transfer) = self.transfers.get_mut(key) {
                    transfer.status.get_or_insert(status);
                }
                self.give_up_children(key, status, io);
                self.settle(key, io);
            }
        }
    }

    /// Reads where the client's buffers lie.
    fn read_list<I: Io>(
        &mut self,
        key: TransferKey,
        list: (Memory, u32),
        io: &mut I,
    ) -> Result<(), Status> {
        let Some(session) = self.transfers.get(key).map(|it| it.session) else { return Ok(()) };
        let places = self.bodies.take_list();
        let memory_of = |buffer| self.clients.memory_of(session, buffer);
        let buffers = Buffers::read(list, places, memory_of, io)?;
        if let Some(vector) = self.vector_mut(key) {
            vector.set_buffers(buffers);
        }
        Ok(())
    }

    /// The next row, if it is one.
    fn next_row<I: Io>(&mut self, key: TransferKey, io: &mut I) -> Option<Result<Row, Status>> {
        let length = self.transfers.get(key)?.length;
        self.vector_mut(key)?.next_row(length, io)
    }

    fn vector_mut(&mut self, key: TransferKey) -> Option<&mut VectorBody> {
        match self.transfers.get(key)?.body {
            Body::Vector(vector) => Some(&mut self.bodies[vector]),
            _ => None,
        }
    }

    /// Starts the next piece as a transfer of its own. `Ok(false)`: there is no room for it.
    fn start_single<I: Io>(
        &mut self,
        key: TransferKey,
        index: usize,
        io: &mut I,
    ) -> Result<bool, Status> {
        if self.transfers.room() == 0 {
            return Ok(false);
        }
        let Some(row) = self.next_row(key, io).transpose()? else { return Ok(true) };
        let Some(vector) = self.vector_mut(key) else { return Ok(true) };
        let (piece, start) = vector.take_piece(row);
        let (memory, direction) = (vector.buffers().at(piece.at.into()).0, vector.direction());
        let length = piece.length.into();
        let mut body = body_for(vector.end(), direction, false, piece.offset, length, memory)?;
        vector.lead(piece, &mut body);
        let part = Part::new(start, piece.length);
        Ok(self.start_part(key, index, part, body, io))
    }

    /// Whether the next piece goes to a short buffer of several, so that it is joined with those
    /// behind it.
    fn begins_short<I: Io>(&mut self, key: TransferKey, io: &mut I) -> bool {
        let several = self.vector_mut(key).is_some_and(|it| it.buffers().are_several());
        let Some(Ok(row)) = several.then(|| self.next_row(key, io)).flatten() else { return false };
        if let Some(vector) = self.vector_mut(key) {
            vector.put_back(row);
        }
        row.length < JOINED_BYTES
    }

    /// Starts the next pieces of a peer's region, or of a range of its file, as one transfer.
    /// `Ok(false)`: there is no room for it.
    fn start_packed<I: Io>(
        &mut self,
        key: TransferKey,
        index: usize,
        io: &mut I,
    ) -> Result<bool, Status> {
        let Some(transfer) = self.transfers.get(key) else { return Ok(true) };
        let (session, length) = (transfer.session, transfer.length);
        let Body::Vector(vector) = transfer.body else { return Ok(true) };
        let vector = &self.bodies[vector];
        let (direction, order) = (vector.direction(), vector.order());
        let Place::Remote(peer, handle) = vector.end() else { return Ok(true) };
        let start = vector.taken();
        let most = (length - start).min(PART_BYTES.into()) as u32;
        let table_bytes = PART_ROWS * (Row::WIRE_BYTES + HERE_BYTES) as u32;
        let wanted = footprint_of(table_bytes) + footprint_of(most.max(1));
        let room = self.transfers.room() > 0
            && self.may_copy(key, wanted)
            && self.may_stage_copy(session, wanted);
        let Some(table) = room.then(|| self.cx.buffers.take_run(table_bytes)).flatten() else {
            return Ok(false);
        };
        let Some(data) = self.cx.buffers.take_run(most.max(1)) else {
            self.cx.buffers.give_back(table);
            return Ok(false);
        };
        self.cx.sched.give(Work::Transfer(key));
        let filled = self.fill_table(key, table, order, io);
        let Filled { rows, bytes, offset, first, in_order } = match filled {
            Ok(filled) if filled.bytes > 0 => filled,
            other => {
                self.cx.buffers.give_back(table);
                self.cx.buffers.give_back(data);
                return other.map(|_| true);
            }
        };
        let data = if in_order {
            self.cx.buffers.give_back(data);
            None
        } else {
            Some(data)
        };
        self.note_copy_staging(session, table, true);
        if let Some(data) = data {
            self.note_copy_staging(session, data, true);
        }
        let part = Part::new(start, bytes).packed(table, rows, data);
        if direction == Direction::Write {
            self.move_part(key, part, bytes.into(), io);
        }
        let op = match direction {
            Direction::Read => RemoteOp::Read,
            Direction::Write => RemoteOp::Write { durable: false },
        };
        let packed = match data {
            Some(data) => data.memory(),
            None => first,
        };
        let (offset, enclosed) = match order {
            Order::Packed => (0, Some(table.span.part(0, rows * Row::WIRE_BYTES as u32))),
            Order::Single | Order::Placed => (offset, None),
        };
        let body = RemoteBody::new(peer, handle, op, offset, packed);
        let body = Body::Remote(RemoteBody { enclosed, ..body });
        Ok(self.start_part(key, index, part, body, io))
    }

    /// Takes rows into a part's table, as many as a part has. Those that are joined are short, and
    /// lie one behind the other in the file.
    fn fill_table<I: Io>(
        &mut self,
        key: TransferKey,
        table: Run,
        order: Order,
        io: &mut I,
    ) -> Result<Filled, Status> {
        let mut filled =
            Filled { rows: 0, bytes: 0, offset: 0, first: Memory::NONE, in_order: true };
        let mut pieces = 0;
        while filled.rows < PART_ROWS && filled.bytes < PART_BYTES && pieces < PART_PIECES {
            let Some(row) = self.next_row(key, io).transpose()? else { break };
            let Some(vector) = self.vector_mut(key) else { break };
            if filled.rows == 0 {
                filled.offset = row.offset;
            }
            let joins =
                row.length < JOINED_BYTES && row.offset == filled.offset + u64::from(filled.bytes);
            let most = match order {
                Order::Packed => PART_PIECES - pieces,
                Order::Single | Order::Placed if joins => 1,
                Order::Single | Order::Placed => {
                    vector.put_back(row);
                    break;
                }
            };
            let (row, rest) = row.cut(PART_BYTES - filled.bytes, most);
            vector.take(row, rest);
            let (memory, _) = vector.buffers().at(row.at.into());
            if filled.rows == 0 {
                filled.first = memory;
            }
            let behind = memory == filled.first.skip(filled.bytes.into());
            filled.in_order &= behind && (row.count == 1 || row.at_stride == row.length);
            let at = filled.rows * Row::WIRE_BYTES as u32;
            io.store(&row.to_wire(), table.span.part(at, Row::WIRE_BYTES as u32));
            io.store(&here(row), here_span(table, filled.rows));
            filled.rows += 1;
            pieces += row.count;
            filled.bytes += row.bytes() as u32;
        }
        Ok(filled)
    }

    /// Copies the first `bytes` of a part between the client's memory and where they lie packed.
    fn move_part<I: Io>(&mut self, key: TransferKey, part: Part, bytes: u64, io: &mut I) {
        let Some((table, rows, data)) = part.packed_in() else { return };
        let Some(vector) = self.vector_mut(key) else { return };
        let mut packed = 0;
        for number in 0..rows {
            let mut row = [0; HERE_BYTES];
            io.load(here_span(table, number), &mut row);
            let row = from_here(&row);
            for (_, at) in row.pieces() {
                // The source may have had less; what is behind that was never filled.
                let left = bytes.saturating_sub(packed.into());
                let length = left.min(row.length.into()) as u32;
                let here = vector.buffers().span(at.into(), length);
                let there = data.span.part(packed, length);
                match vector.direction() {
                    Direction::Read => io.copy(there, here),
                    Direction::Write => io.copy(here, there),
                }
                packed += row.length;
            }
        }
    }

    fn start_part<I: Io>(
        &mut self,
        key: TransferKey,
        index: usize,
        part: Part,
        body: Body,
        io: &mut I,
    ) -> bool {
        let Some(transfer) = self.transfers.get(key) else { return true };
        let (session, class, deadline) = (transfer.session, transfer.class, transfer.deadline);
        let waiter = Waiter::Vector { parent: key, part: index as u8 };
        let kind = transfer.kind;
        let (handles, length) = ([None, None], part.length().into());
        let start = Start { waiter, session, handles, kind, class, deadline, length, body };
        let Some(child) = self.start_transfer(start, io.now()) else {
            debug_assert!(false, "there was room for it");
            self.free_part(session, part);
            return false;
        };
        self.cx.watch.begin_part(child, key, None);
        self.transfers.keep_pinned(child, key);
        if let Some(vector) = self.vector_mut(key) {
            vector.keep_part(index, part);
        }
        self.cx.sched.make_ready(Work::Transfer(child));
        true
    }

    fn free_part(&mut self, session: SessionId, part: Part) {
        for run in part.runs() {
            self.note_copy_staging(session, run, false);
            self.cx.free_staging(run);
        }
    }

    /// More of a part is in the buffer.
    pub(in crate::shard) fn note_part_read(&mut self, parent: TransferKey, index: u8, bytes: u64) {
        let news = self.vector_mut(parent).and_then(|vector| vector.land(index, bytes));
        let Some((from, to)) = news else { return };
        let inserted = self.transfers.land(parent, from, to);
        debug_assert!(inserted.is_ok(), "parts are apart");
        self.tell_progress(parent);
    }

    /// A part is over and touches its memory no more.
    pub(in crate::shard) fn handle_part<I: Io>(
        &mut self,
        (parent, pin): (TransferKey, Option<Pin<kind::Transfer>>),
        index: u8,
        (status, bytes): (Status, u64),
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get_mut(parent) else { return };
        let (session, begun) = (transfer.session, transfer.begun);
        let given_up = transfer.status.is_some();
        let Body::Vector(vector) = transfer.body else { return };
        let vector = &mut self.bodies[vector];
        let direction = vector.direction();
        let Some(part) = vector.take_part(index) else { return };
        // What a peer leaves out was never written here.
        let of_region = vector.order() == Order::Packed;
        let is_cut = status == Status::Ok && of_region && part.is_cut(bytes);
        let status = if is_cut { Status::Corrupt } else { status };
        let mut source = None;
        if status == Status::Ok {
            vector.note_read(&part, bytes);
            source = vector.ends_source(&part).filter(|_| bytes == u64::from(part.length()));
        }
        // A client that was told has its buffer still, but what it is told no more need not be
        // there.
        if direction == Direction::Read && status == Status::Ok && !given_up {
            self.move_part(parent, part, bytes, io);
        }
        self.free_part(session, part);
        if let Some((file, cached, bytes)) = source
            && let Some(in_cache) = self.cx.driver.in_cache(file.buffered)
        {
            let alone = self.cx.watch.is_alone(Subject::Transfer(parent));
            let took = alone.then(|| io.now().since(begun).seconds());
            in_cache.learn(cached, bytes, took);
        }
        if status != Status::Ok {
            self.transfers.end_with(parent, status);
            self.give_up_children(parent, status, io);
        } else if let Some((from, to)) = part.news(bytes) {
            let inserted = self.transfers.land(parent, from, to);
            debug_assert!(inserted.is_ok(), "parts are apart");
        }
        self.tell_progress(parent);
        self.transfers.unpin(pin, &mut self.cx.sched);
        self.cx.sched.make_ready(Work::Transfer(parent));
    }

    /// Copies rows of a region of this node, as many as a turn has room for. It was their turn.
    pub(in crate::shard) fn copy_rows<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(vector) = self.vector_mut(key) else { return };
        vector.end_wait();
        let Some(region) = vector.region() else { return };
        let (mut bytes, mut pieces) = (0, 0);
        let now = io.now();
        if !self.may_move(Work::Transfer(key), now) {
            return;
        }
        while bytes < PART_BYTES && pieces < PART_PIECES {
            let row = match self.next_row(key, io) {
                None => break,
                Some(Ok(row)) if row.end().is_some_and(|end| end <= region.length) => row,
                Some(_) => return self.decide(key, Status::Invalid, io),
            };
            let (row, rest) = row.cut(PART_BYTES - bytes, PART_PIECES - pieces);
            let Some(vector) = self.vector_mut(key) else { return };
            let ((memory, _), direction) = (vector.buffers().at(row.at.into()), vector.direction());
            for (offset, at) in row.pieces() {
                let ours = memory.span((at - row.at).into(), row.length);
                let offset = region.offset + offset;
                let theirs = Span { segment: region.segment, offset, length: row.length };
                // As of a client that puts its region onto itself.
                if overlap(ours, theirs) {
                    return self.decide(key, Status::Invalid, io);
                }
                match direction {
                    Direction::Read => io.copy(theirs, ours),
                    Direction::Write => io.copy(ours, theirs),
                }
            }
            pieces += row.count;
            bytes += row.bytes() as u32;
            let Some(vector) = self.vector_mut(key) else { return };
            vector.take(row, rest);
        }
        self.charge(Work::Transfer(key), bytes.into(), now);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let Body::Vector(vector) = transfer.body else { return };
        let (next, from) = (self.bodies[vector].taken(), transfer.landed.watermark());
        let inserted = self.transfers.land(key, from, next);
        debug_assert!(inserted.is_ok(), "a copy goes forward");
        self.tell_progress(key);
        self.cx.sched.make_ready(Work::Transfer(key));
    }

    /// Frees what parts of a transfer hold that is over; none has a child.
    pub(in crate::shard) fn free_parts(&mut self, session: SessionId, vector: VectorKey) {
        for part in self.bodies[vector].take_parts() {
            self.free_part(session, part);
        }
    }

    /// What kind of request moves so.
    pub(in crate::shard) const fn vector_kind(direction: Direction, is_region: bool) -> Operation {
        match (direction, is_region) {
            (Direction::Read, true) => Operation::Get,
            (Direction::Read, false) => Operation::Read,
            (Direction::Write, true) => Operation::Put,
            (Direction::Write, false) => Operation::Write,
        }
    }
}

/// What a part's table became.
#[derive(Debug, Clone, Copy)]
struct Filled {
    rows: u32,
    bytes: u32,
    /// Where the first piece lies in the file or region.
    offset: u64,
    /// Where the first piece lies in the client's memory.
    first: Memory,
    /// All others lie behind it.
    in_order: bool,
}

/// Where a part's table says where a row lies in the buffer.
fn here_span(table: Run, number: u32) -> Span {
    let at = PART_ROWS * Row::WIRE_BYTES as u32 + number * HERE_BYTES as u32;
    table.span.part(at, HERE_BYTES as u32)
}

fn here(row: Row) -> [u8; HERE_BYTES] {
    let mut bytes = [0; HERE_BYTES];
    let values = [row.at, row.at_stride, row.length, row.count];
    for (place, value) in bytes.chunks_exact_mut(4).zip(values) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn from_here(bytes: &[u8; HERE_BYTES]) -> Row {
    let mut values = [0; 4];
    for (value, place) in values.iter_mut().zip(bytes.chunks_exact(4)) {
        *value = u32::from_ne_bytes(place.try_into().expect("4 bytes"));
    }
    let [at, at_stride, length, count] = values;
    Row { offset: 0, stride: 0, at, at_stride, length, count }
}
