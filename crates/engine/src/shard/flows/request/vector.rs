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

use piped_core::ids::{HandleId, SessionId};
use piped_core::io::{Io, Span};
use piped_core::limits::{PART_BYTES, PART_PIECES};
use piped_core::pieces::Row;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::Operation;

use crate::command::Target;
use crate::shard::Shard;
use crate::shard::arena::Memory;
use crate::shard::clients::Place;
use crate::shard::driver::Direction;
use crate::shard::flows::request::memory::overlap;
use crate::shard::flows::request::resolve::body_for;
use crate::shard::keys::{Subject, TransferKey, VectorKey, kind};
use crate::shard::pins::Pin;
use crate::shard::requests::{Body, Buffers, Order, Part, Start, VectorBody, Waiter};
use crate::shard::sched::Work;

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
            (Place::Replicas(_), _) => self.start_share(key, index, io),
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
    pub(in crate::shard) fn next_row<I: Io>(
        &mut self,
        key: TransferKey,
        io: &mut I,
    ) -> Option<Result<Row, Status>> {
        let length = self.transfers.get(key)?.length;
        self.vector_mut(key)?.next_row(length, io)
    }

    pub(in crate::shard) fn vector_mut(&mut self, key: TransferKey) -> Option<&mut VectorBody> {
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
        let Some((piece, part, memory)) = self.next_piece(key, io)? else { return Ok(true) };
        let Some(vector) = self.vector_mut(key) else { return Ok(true) };
        let (direction, length) = (vector.direction(), piece.length.into());
        let mut body = body_for(vector.end(), direction, false, piece.offset, length, memory)?;
        vector.lead(piece, &mut body);
        Ok(self.start_part(key, index, part, (body, None, None), io))
    }

    /// Takes the next piece, if there is one, as a part: with where it lies in the client's memory.
    pub(in crate::shard) fn next_piece<I: Io>(
        &mut self,
        key: TransferKey,
        io: &mut I,
    ) -> Result<Option<(Row, Part, Memory)>, Status> {
        let Some(row) = self.next_row(key, io).transpose()? else { return Ok(None) };
        let Some(vector) = self.vector_mut(key) else { return Ok(None) };
        let (piece, start) = vector.take_piece(row);
        let (memory, _) = vector.buffers().at(piece.at.into());
        Ok(Some((piece, Part::new(start, piece.length), memory)))
    }

    /// Begins a part: what it moves, by which handle, if not by that of the request, and when it is
    /// looked at ([`Shard::is_waited_for`]), if before its deadline.
    pub(in crate::shard) fn start_part<I: Io>(
        &mut self,
        key: TransferKey,
        index: usize,
        part: Part,
        (body, handle, until): (Body, Option<HandleId>, Option<Nanos>),
        io: &mut I,
    ) -> bool {
        let Some(transfer) = self.transfers.get(key) else { return true };
        let (session, class, deadline) = (transfer.session, transfer.class, transfer.deadline);
        let waiter = Waiter::Vector { parent: key, part: index as u8 };
        let kind = transfer.kind;
        let (handles, length) = ([handle, None], part.length().into());
        let start = Start { waiter, session, handles, kind, class, deadline, length, body };
        let Some(child) = self.start_transfer(start, io.now()) else {
            debug_assert!(false, "there was room for it");
            self.free_part(session, part);
            return false;
        };
        if let Some(until) = until {
            self.transfers.look_at(child, until.min(deadline));
        }
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
        let ended = self.end_share(parent, &part, (status, bytes), io.now());
        let Some((status, bytes)) = ended else {
            self.transfers.unpin(pin, &mut self.cx.sched);
            return self.cx.sched.make_ready(Work::Transfer(parent));
        };
        let Some(vector) = self.vector_mut(parent) else { return };
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
