//! The life of an operation: push, cancel, finish; for files, all of it.

use piped_core::ids::FileId;
use piped_core::io::{Done, Op, Span, Token};
use piped_core::units::Nanos;

use super::calls;
use super::disk::{
    ALLOCATION_BYTES, EINVAL, EIO, InodeId, OpenFile, REFUSAL, is_misaligned, shortened,
};
use super::kernel::SimKernel;
use super::locks::Locks;
use super::memory::{OpKey, Touch};
use super::net::{ECANCELED, EPIPE, NodeId};
use super::pending::{Carry, InFlight, KernelEvent};
use super::stage::Cost;

impl SimKernel {
    /// Pushes an operation of a node, as [`Io::push`](piped_core::io::Io::push) demands.
    pub(super) fn push(&mut self, node: NodeId, token: Token, op: Op) -> bool {
        let place = &self.nodes[node.0 as usize];
        let in_flight = place.tokens.len();
        assert!(self.is_alive(node), "sim: {node:?} has crashed and pushes {op:?}");
        assert!(!place.tokens.contains_key(&token), "sim: {token:?} is in flight, pushed {op:?}");
        let full = in_flight + self.lent_by(node) >= self.nodes[node.0 as usize].ops_max;
        if full || self.random.chance(self.faults.full) {
            return false;
        }
        if let Op::Receive { spans, whole: false, .. } = &op {
            let memory = &self.memory[node];
            let loose = spans.as_slice().iter().find(|it| memory.is_loose(it.segment));
            assert!(loose.is_none(), "sim: any frame may land in {loose:?}, and vanish there");
        }
        self.ops_begun += 1;
        let key = self.ops_begun;
        self.note(|| format!("{node:?} #{key} {token:?} {op:?}"));
        self.pin(node, key, &op);
        self.lend(node, key, &op);
        self.spend_on_send(node, &op);
        self.nodes[node.0 as usize].tokens.insert(token, key);
        let waits = *self.holds(node);
        let in_flight = InFlight {
            node,
            token,
            op,
            start: if waits { Nanos::MAX } else { self.now.max(self.busy_until(node)) },
            result: None,
            done_bytes: 0,
            carry: Carry::Nothing,
        };
        self.ops.insert(key, in_flight);
        match self.busy_until(node) {
            _ if waits => {}
            at if at > self.now => self.events.push(at, KernelEvent::Begin { op: key }),
            _ => self.begin(node, key, op),
        }
        true
    }

    /// Begins a pushed operation, unless it was cancelled or its node has crashed meanwhile.
    pub(super) fn begin_late(&mut self, key: OpKey) {
        let Some(in_flight) = self.ops.get(&key) else { return };
        if in_flight.result.is_some() {
            return;
        }
        let (node, op) = (in_flight.node, in_flight.op);
        if let Op::Send { socket, .. }
        | Op::SendZeroCopy { socket, .. }
        | Op::Receive { socket, .. } = op
            && self.nodes[node.0 as usize].sockets[&socket].released
        {
            return self.settle(key, EPIPE, self.now);
        }
        self.begin(node, key, op);
    }

    /// Cancels an operation of a node. If it has ended, there is nothing to do.
    pub(super) fn cancel(&mut self, node: NodeId, token: Token) {
        let Some(&key) = self.nodes[node.0 as usize].tokens.get(&token) else { return };
        self.note(|| format!("{node:?} cancels #{key}"));
        match self.ops[&key].op {
            Op::Send { .. } | Op::SendZeroCopy { .. } | Op::Receive { .. } => {
                // The cancel races with the end.
                let at = self.now + self.random.up_to(Nanos::from_micros(5));
                self.events.push(at, KernelEvent::CancelStream { op: key });
            }
            _ => {
                let waits = self.now < self.ops[&key].start;
                if waits && self.random.chance(self.faults.cancel_works) {
                    self.settle(key, ECANCELED, self.now);
                }
            }
        }
    }

    /// Settles an operation: it ends with `result` at that time.
    pub(super) fn settle(&mut self, key: OpKey, result: i32, at: Nanos) {
        if let Some(op) = self.ops.get_mut(&key) {
            op.result = Some(result);
            self.events.push(at, KernelEvent::Finish { op: key });
        }
    }

    /// Ends an operation whose time has come (the first of several times, if it was cancelled).
    pub(super) fn finish(&mut self, key: OpKey) {
        if let Some(later) = self.told_of_at(key) {
            return self.events.push(later, KernelEvent::Finish { op: key });
        }
        let Some(op) = self.ops.remove(&key) else { return };
        let planned = op.result.expect("an operation is settled before it finishes");
        let result = self.take_effect(&op, planned);
        for (span, _) in touches(&op.op) {
            self.memory[op.node].unpin(key, span.segment);
        }
        self.node_mut(op.node).tokens.remove(&op.token);
        self.dones.push(op.node, Done { token: op.token, result });
        self.note(|| format!("{:?} #{key} ends with {result}", op.node));
        if let Op::SendZeroCopy { .. } = op.op {
            self.plan_notice(key);
        }
    }

    /// When the device reports an operation that is over, if later than now.
    fn told_of_at(&self, key: OpKey) -> Option<Nanos> {
        // What the kernel takes back from the queue has not come to the device.
        let op = self.ops.get(&key).filter(|op| op.result != Some(ECANCELED))?;
        let (Op::Read { file, .. } | Op::Write { file, .. } | Op::Sync { file }) = op.op else {
            return None;
        };
        let &OpenFile { inode, direct, .. } = &self.nodes[op.node.0 as usize].files[&file];
        if let Op::Read { offset, into, .. } = op.op {
            let range = (offset, into.length.into());
            if self.disk.by_cache(inode, range, direct.is_some()).is_some() {
                return None;
            }
        }
        self.disk.silent_until(inode).filter(|&later| later > self.now)
    }

    pub(super) fn close_file(&mut self, node: NodeId, file: FileId) {
        self.file(node, file, "release");
        let files = &mut self.node_mut(node).files;
        let file = files.get_mut(&file).expect("looked up above");
        file.closed = true;
        *file.locks() = Locks::default();
    }

    /// Simulates writes that a crash interrupts: a part may have reached the page cache or the
    /// disk.
    pub(super) fn crash_writes(&mut self, node: NodeId) {
        let writes: Vec<OpKey> =
            self.ops.iter().filter(|(_, op)| op.node == node).map(|(&key, _)| key).collect();
        for key in writes {
            let Op::Write { file, offset, from } = self.ops[&key].op else { continue };
            if self.ops[&key].result.is_some_and(|result| result > 0) {
                let part = self.random.below(u64::from(from.length) + 1) as u32;
                let bytes = self.memory[node].bytes(from.part(0, part)).to_vec();
                let inode = self.nodes[node.0 as usize].files[&file].inode;
                self.disk.write(inode, offset, &bytes);
            }
        }
    }

    fn begin(&mut self, node: NodeId, key: OpKey, op: Op) {
        match op {
            Op::Nop => self.settle(key, 0, self.now),
            Op::Call { file, call, .. } => calls::begin(self, node, key, file, call),
            Op::Read { file, offset, into } => {
                self.begin_file(node, key, file, Transfer::Read { offset, into })
            }
            Op::Write { file, offset, from } => {
                self.begin_file(node, key, file, Transfer::Write { offset, from })
            }
            Op::Sync { file } => self.begin_sync(node, key, file),
            Op::Allocate { file, .. } => {
                let inode = self.file(node, file, "allocate").inode;
                let costs = self.disk.costs(inode);
                let visit = self.disk.server(self.disk.device_of(inode)).visit(
                    self.now,
                    ALLOCATION_BYTES,
                    &costs.write,
                );
                self.ops.get_mut(&key).expect("begun above").start = visit.start;
                self.settle(key, 0, visit.depart);
            }
            Op::Send { socket, spans } | Op::SendZeroCopy { socket, spans, .. } => {
                assert!(spans.bytes() > 0, "sim: {node:?} sends nothing: {op:?}");
                if let Some(refusal) = self.refuses(&op) {
                    return self.settle(key, refusal, self.now);
                }
                self.begin_send(node, key, socket);
            }
            Op::Receive { socket, spans, .. } => {
                assert!(spans.bytes() > 0, "sim: {node:?} receives into nothing: {op:?}");
                self.begin_receive(node, key, socket);
            }
        }
    }

    fn begin_file(&mut self, node: NodeId, key: OpKey, file: FileId, transfer: Transfer) {
        let (offset, span) = transfer.parts();
        assert!(span.length > 0, "sim: {node:?} {transfer:?} of nothing");
        let &OpenFile { inode, direct, .. } = self.file(node, file, "transfer");
        let length = u64::from(span.length);
        if is_misaligned(direct, offset, span.offset, length) {
            self.settle(key, EINVAL, self.now + REFUSAL);
            return;
        }
        let costs = self.disk.costs(inode);
        let (cost, spread, server) = match transfer {
            Transfer::Read { .. } => self.disk.reading(inode, (offset, length), direct.is_some()),
            Transfer::Write { .. } => {
                let device = self.disk.device_of(inode);
                (costs.write, costs.spread, self.disk.server(device))
            }
        };
        let latency = spread.draw(cost.latency, || self.random.unit());
        let visit = server.visit(self.now, length, &Cost { latency, ..cost });
        let result = if self.random.chance(self.faults.disk_error) {
            EIO
        } else if self.random.chance(self.faults.disk_short) {
            shortened(&mut self.random, direct, length) as i32
        } else {
            length as i32
        };
        // When a device looks at the bytes is its own affair: at the start or at the end.
        let carry = if !self.random.chance(0.5) {
            Carry::Nothing
        } else if let Transfer::Read { .. } = transfer {
            Carry::Bytes(self.disk.read(inode, offset, length))
        } else {
            Carry::Bytes(self.bytes(node, span).to_vec())
        };
        let op = self.ops.get_mut(&key).expect("begun above");
        op.carry = carry;
        op.start = visit.start;
        let at = visit.depart + self.spike();
        self.settle(key, result, at);
    }

    fn begin_sync(&mut self, node: NodeId, key: OpKey, file: FileId) {
        let inode = self.file(node, file, "sync").inode;
        let (costs, unstable) = (self.disk.costs(inode), self.disk.unstable_bytes(inode));
        let visit =
            self.disk.server(self.disk.device_of(inode)).visit(self.now, unstable, &costs.sync);
        let flush = self.disk.begin_flush(inode);
        let op = self.ops.get_mut(&key).expect("begun above");
        op.start = visit.start;
        op.carry = Carry::Flush(flush);
        let result = if self.random.chance(self.faults.sync_error) { EIO } else { 0 };
        let at = visit.depart + self.spike();
        self.settle(key, result, at);
    }

    /// Applies an operation's end to memory and files; returns the result, which the file may
    /// shorten.
    fn take_effect(&mut self, op: &InFlight, planned: i32) -> i32 {
        match op.op {
            Op::Read { file, offset, into } if planned > 0 || planned == EIO => {
                let fresh;
                let bytes = match &op.carry {
                    Carry::Bytes(bytes) => bytes,
                    _ => {
                        fresh = self.disk.read(
                            self.inode(op.node, file),
                            offset,
                            u64::from(into.length),
                        );
                        &fresh
                    }
                };
                // A failed read may have brought some of the bytes.
                let count = if planned > 0 { planned as usize } else { bytes.len() / 2 };
                let count = count.min(bytes.len());
                self.bytes_mut(op.node, into.part(0, count as u32))
                    .copy_from_slice(&bytes[..count]);
                if planned > 0 { count as i32 } else { planned }
            }
            Op::Write { file, offset, from } if planned > 0 => {
                let inode = self.inode(op.node, file);
                let count = planned as usize;
                let bytes = match &op.carry {
                    Carry::Bytes(bytes) => bytes[..count].to_vec(),
                    _ => self.bytes(op.node, from)[..count].to_vec(),
                };
                self.disk.write(inode, offset, &bytes)
            }
            Op::Sync { file } if planned == 0 => {
                let inode = self.inode(op.node, file);
                if let Carry::Flush(flush) = &op.carry {
                    self.disk.end_flush(inode, flush);
                }
                0
            }
            Op::Allocate { file, offset, length } if planned == 0 => {
                let inode = self.inode(op.node, file);
                self.disk.allocate(inode, offset, length)
            }
            Op::Call { file, answer, .. } if planned == 0 => calls::end(self, op, file, answer),
            _ => planned,
        }
    }

    fn pin(&mut self, node: NodeId, key: OpKey, op: &Op) {
        let memory = &mut self.memory[node];
        for (span, touch) in touches(op) {
            memory.pin(key, span, touch);
        }
    }

    pub(super) fn file(&self, node: NodeId, file: FileId, what: &str) -> &OpenFile {
        let open = self.nodes[node.0 as usize].files.get(&file);
        let open = open.unwrap_or_else(|| panic!("sim: {node:?} {what}: no such file {file:?}"));
        assert!(!open.closed, "sim: {node:?} {what}: {file:?} was released before");
        open
    }

    /// The file behind a descriptor, which may have been closed since the operation began.
    pub(super) fn inode(&self, node: NodeId, file: FileId) -> InodeId {
        self.nodes[node.0 as usize].files[&file].inode
    }

    pub(super) fn spike(&mut self) -> Nanos {
        if self.random.chance(self.faults.delay) {
            self.random.up_to(self.faults.delay_max)
        } else {
            Nanos::ZERO
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Transfer {
    Read { offset: u64, into: Span },
    Write { offset: u64, from: Span },
}

impl Transfer {
    const fn parts(self) -> (u64, Span) {
        match self {
            Self::Read { offset, into: span } | Self::Write { offset, from: span } => {
                (offset, span)
            }
        }
    }
}

/// The memory that an operation owns while it is in flight.
fn touches(op: &Op) -> Vec<(Span, Touch)> {
    let all = |spans: &piped_core::io::Spans, touch| {
        spans.as_slice().iter().map(|&span| (span, touch)).collect()
    };
    match op {
        Op::Read { into, .. } => vec![(*into, Touch::Writes)],
        Op::Write { from, .. } => vec![(*from, Touch::Reads)],
        Op::Call { call, answer, .. } => vec![(*call, Touch::Reads), (*answer, Touch::Writes)],
        Op::Send { spans, .. } => all(spans, Touch::Reads),
        Op::Receive { spans, .. } => all(spans, Touch::Writes),
        // What is lent is its notice's.
        Op::SendZeroCopy { .. } | Op::Sync { .. } | Op::Allocate { .. } | Op::Nop => Vec::new(),
    }
}
