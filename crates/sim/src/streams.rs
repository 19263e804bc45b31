//! Send, receive, close and reset: the moving parts of a connection.

use std::io::Read as _;

use piped_core::ids::SocketId;
use piped_core::io::{Op, Spans};
use piped_core::units::Nanos;

use super::kernel::SimKernel;
use super::memory::OpKey;
use super::net::{ConnectionId, ECANCELED, ECONNRESET, EPIPE, EndState, NodeId, Notice, SILENCE};
use super::pending::KernelEvent;

impl SimKernel {
    /// Resets a connection: bytes on the way are lost, and each end notices it as `notice` says.
    pub fn reset(&mut self, connection: ConnectionId, notice: Notice) {
        let index = connection.0 as usize;
        self.note(|| format!("{connection:?} is reset, {notice:?}"));
        for side in [0, 1] {
            match notice {
                Notice::Silent => self.swallow(index, side),
                Notice::Within(max) => self.reset_side(index, side, max),
            }
        }
    }

    /// Flips a bit in the last byte of the next run of at least `length` bytes that a node sends on
    /// this connection. A length above a header's makes that a payload byte.
    pub fn corrupt_next(&mut self, connection: ConnectionId, sender: NodeId, length: usize) {
        let place = &mut self.connections[connection.0 as usize];
        for side in [0, 1] {
            if place.ends[side].node == sender {
                place.ways[side].corrupt_next = Some(length);
            }
        }
    }

    /// Whether both ends are open and no reset is on its way.
    #[must_use]
    pub fn is_connected(&self, connection: ConnectionId) -> bool {
        let place = &self.connections[connection.0 as usize];
        place.ends.iter().all(|end| end.state == EndState::Open && !end.ended)
            && place.ways.iter().all(|way| way.cut.is_none())
    }

    pub(super) fn begin_send(&mut self, node: NodeId, key: OpKey, socket: SocketId) {
        let (connection, side) = self.place(node, socket, "send");
        let end = &mut self.connections[connection].ends[side];
        assert!(end.send.is_none(), "sim: {node:?}: two sends at once on {socket:?}");
        end.send = Some(key);
        self.pump_send(connection, side);
    }

    pub(super) fn begin_receive(&mut self, node: NodeId, key: OpKey, socket: SocketId) {
        let (connection, side) = self.place(node, socket, "receive");
        let end = &mut self.connections[connection].ends[side];
        assert!(end.receive.is_none(), "sim: {node:?}: two receives at once on {socket:?}");
        end.receive = Some(key);
        self.pump_receive(connection, side);
    }

    /// Closes a socket at once, as [`Resource::Socket`](piped_core::io::Resource::Socket) demands.
    pub(super) fn close_socket(&mut self, node: NodeId, socket: SocketId) {
        let (connection, side) = self.place(node, socket, "release");
        let sockets = &mut self.node_mut(node).sockets;
        sockets.get_mut(&socket).expect("looked up above").released = true;
        let end = &mut self.connections[connection].ends[side];
        let was_open = end.state == EndState::Open && !end.ended;
        let unread = !end.inbox.is_empty();
        end.state = EndState::Closed;
        drop(std::mem::take(&mut end.inbox));
        self.end_ops(connection, side, EPIPE);
        self.hurry_notices(node, socket);
        if !was_open && !unread {
            return;
        }
        // As TCP does: the other end first gets what is on the way, then an orderly end, or a reset
        // if we left bytes unread.
        let (now, latency) = (self.now, self.link_latency(connection, side));
        let way = &mut self.connections[connection].ways[side];
        let at = way.last_arrival.max(now + latency);
        let at_side = 1 - side;
        if unread {
            self.events.push(at, KernelEvent::Broken { connection, at_side });
        } else {
            self.events.push(at, KernelEvent::Ended { connection, at_side });
        }
    }

    pub(super) fn crash_connections(&mut self, node: NodeId, notice: Notice) {
        for connection in 0..self.connections.len() {
            for side in [0, 1] {
                let end = &mut self.connections[connection].ends[side];
                if end.node != node || end.state == EndState::Closed {
                    continue;
                }
                end.state = EndState::Closed;
                drop(std::mem::take(&mut end.inbox));
                (end.send, end.receive) = (None, None);
                match notice {
                    Notice::Silent => {
                        self.swallow(connection, side);
                        self.swallow(connection, 1 - side);
                    }
                    Notice::Within(max) => self.reset_side(connection, 1 - side, max),
                }
            }
        }
    }

    pub(super) fn cancel_stream(&mut self, key: OpKey) {
        let Some(op) = self.ops.get(&key) else { return };
        if op.result.is_some() {
            return;
        }
        let (Op::Send { socket, .. }
        | Op::SendZeroCopy { socket, .. }
        | Op::Receive { socket, .. }) = op.op
        else {
            return;
        };
        let (node, done) = (op.node, op.done_bytes as i32);
        let place = self.nodes[node.0 as usize].sockets[&socket];
        let end = &mut self.connections[place.connection].ends[place.side];
        end.send = end.send.filter(|&other| other != key);
        end.receive = end.receive.filter(|&other| other != key);
        // A partly filled receive says how far it came, else the bytes would be lost.
        self.settle(key, if done > 0 { done } else { ECANCELED }, self.now);
    }

    pub(super) fn deliver(&mut self, connection: usize, to: usize, bytes: &[u8]) {
        let now = self.now;
        let place = &mut self.connections[connection];
        let way = &mut place.ways[1 - to];
        let lost = way.cut.is_some_and(|cut| now >= cut);
        if lost && way.swallows {
            return;
        }
        way.in_flight -= bytes.len();
        let end = &mut place.ends[to];
        if !lost && end.state == EndState::Open {
            end.inbox.extend(bytes);
            self.pump_receive(connection, to);
        } else if end.state == EndState::Closed {
            // Bytes for a closed socket are answered with a reset.
            let at = now + self.link_latency(connection, to);
            self.events.push(at, KernelEvent::Broken { connection, at_side: 1 - to });
        }
        self.pump_send(connection, 1 - to);
    }

    pub(super) fn end_stream(&mut self, connection: usize, side: usize) {
        self.connections[connection].ends[side].ended = true;
        self.pump_receive(connection, side);
    }

    pub(super) fn break_end(&mut self, connection: usize, side: usize) {
        let forget = self.random.chance(0.5);
        let end = &mut self.connections[connection].ends[side];
        if end.state != EndState::Open {
            return;
        }
        end.state = EndState::Broken;
        if forget {
            end.inbox.clear();
        }
        self.pump_receive(connection, side);
        self.pump_send(connection, side);
    }

    fn pump_send(&mut self, connection: usize, side: usize) {
        let place = &self.connections[connection];
        let Some(key) = place.ends[side].send else { return };
        let (Op::Send { spans, .. } | Op::SendZeroCopy { spans, .. }) = self.ops[&key].op else {
            return;
        };
        if place.ends[side].state != EndState::Open {
            self.connections[connection].ends[side].send = None;
            self.settle(key, ECONNRESET, self.now);
            return;
        }
        let room = place.room(side).min(spans.bytes() as usize);
        if room == 0 {
            return;
        }
        let short = self.random.chance(self.faults.send_short);
        let count = if short { self.random.between(1, room as u64) as usize } else { room };
        let bytes = self.gather(self.ops[&key].node, &spans, count);
        self.note_lent(key, &bytes);
        self.connections[connection].ends[side].send = None;
        self.settle(key, count as i32, self.now);
        self.transmit(connection, side, bytes);
    }

    fn pump_receive(&mut self, connection: usize, side: usize) {
        let end = &self.connections[connection].ends[side];
        let Some(key) = end.receive else { return };
        let (over, broken, arrived) = (end.ended, end.state == EndState::Broken, end.inbox.len());
        let op = &self.ops[&key];
        let Op::Receive { spans, whole, .. } = op.op else { return };
        let wanted = spans.bytes() as usize - op.done_bytes;
        let mut count = wanted.min(arrived);
        if !whole && count > 0 && self.random.chance(self.faults.receive_short) {
            count = self.random.between(1, count as u64) as usize;
        }
        if count > 0 {
            self.scatter(connection, side, key, &spans, count);
        }
        let done = self.ops[&key].done_bytes;
        let result = if count == wanted || (!whole && count > 0) {
            done as i32
        } else if broken {
            if done > 0 { done as i32 } else { ECONNRESET }
        } else if over {
            done as i32
        } else {
            0
        };
        if result != 0 || over {
            self.connections[connection].ends[side].receive = None;
            self.settle(key, result, self.now);
        }
        if count > 0 {
            self.pump_send(connection, 1 - side);
        }
    }

    /// Moves bytes from an inbox into the memory of a receive.
    fn scatter(&mut self, connection: usize, side: usize, key: OpKey, spans: &Spans, count: usize) {
        let inbox = &mut self.connections[connection].ends[side].inbox;
        let mut bytes = vec![0; count];
        inbox.read_exact(&mut bytes).expect("so many are there");
        let op = self.ops.get_mut(&key).expect("the receive is in flight");
        let node = op.node;
        let mut skip = op.done_bytes as u64;
        op.done_bytes += count;
        let mut rest = bytes.as_slice();
        for span in spans.as_slice() {
            let length = u64::from(span.length);
            let part = span.part(skip.min(length) as u32, rest.len() as u32);
            skip = skip.saturating_sub(length);
            let (now, later) = rest.split_at(part.length as usize);
            self.bytes_mut(node, part).copy_from_slice(now);
            rest = later;
        }
    }

    pub(super) fn gather(&self, node: NodeId, spans: &Spans, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        for span in spans.as_slice() {
            let part = span.part(0, (count - bytes.len()) as u32);
            bytes.extend_from_slice(self.bytes(node, part));
        }
        bytes
    }

    /// Puts a run of bytes into its link.
    fn transmit(&mut self, connection: usize, side: usize, mut bytes: Vec<u8>) {
        let way = &mut self.connections[connection].ways[side];
        if way.corrupt_next.is_some_and(|length| bytes.len() >= length) {
            way.corrupt_next = None;
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            self.note(|| "the last byte of this run is damaged".to_owned());
        }
        if self.random.chance(self.faults.corrupt) {
            let place = self.random.below(bytes.len() as u64) as usize;
            bytes[place] ^= 1 << self.random.below(8);
            self.note(|| format!("byte {place} of this run is damaged"));
        }
        if self.random.chance(self.faults.garbage) {
            self.random.fill(&mut bytes);
            self.note(|| "this run is garbage".to_owned());
        }
        let spike = self.spike();
        let way = &mut self.connections[connection].ways[side];
        way.in_flight += bytes.len();
        let link = &mut self.links[way.link.0 as usize];
        let visit = link.server.visit(self.now, bytes.len() as u64, &link.cost);
        let mut sent = 0;
        for piece in bytes.chunks(link.piece) {
            sent += piece.len() as u64;
            let at = visit.start + link.cost.occupancy(sent) + link.cost.latency + spike;
            way.last_arrival = way.last_arrival.max(at);
            let event = KernelEvent::Deliver { connection, to: 1 - side, bytes: piece.to_vec() };
            self.events.push(way.last_arrival, event);
        }
        if self.random.chance(self.faults.reset) {
            let notice = Notice::Within(self.faults.reset_notice_max);
            self.reset(ConnectionId(connection as u32), notice);
        }
        if self.random.chance(self.faults.half_open) {
            self.half_opens += 1;
            // What is unanswered at one end is unheard of at the other.
            self.swallow(connection, 1 - side);
            self.events.push(self.now + SILENCE, KernelEvent::Broken { connection, at_side: side });
            self.note(|| "nothing of this direction arrives any more".to_owned());
        }
    }

    fn reset_side(&mut self, connection: usize, side: usize, max: Nanos) {
        let at = self.now + self.random.up_to(max);
        let cut = if self.random.chance(0.5) { self.now } else { at };
        self.connections[connection].cut(side, cut);
        self.events.push(at, KernelEvent::Broken { connection, at_side: side });
    }

    fn swallow(&mut self, connection: usize, side: usize) {
        let now = self.now;
        let place = &mut self.connections[connection];
        place.cut(side, now);
        place.ways[1 - side].swallows = true;
        self.events.push(now + SILENCE, KernelEvent::Broken { connection, at_side: side });
    }

    /// Ends the operations of a closed end: its receive ends as at the end of the stream or
    /// cancelled.
    fn end_ops(&mut self, connection: usize, side: usize, send_errno: i32) {
        let end = &mut self.connections[connection].ends[side];
        let (send, receive) = (end.send.take(), end.receive.take());
        if let Some(key) = send {
            self.settle(key, send_errno, self.now);
        }
        if let Some(key) = receive {
            let done = self.ops[&key].done_bytes as i32;
            let errno = if self.random.chance(0.5) { ECANCELED } else { 0 };
            self.settle(key, if done > 0 { done } else { errno }, self.now);
        }
    }

    fn link_latency(&self, connection: usize, side: usize) -> Nanos {
        self.links[self.connections[connection].ways[side].link.0 as usize].cost.latency
    }

    fn place(&self, node: NodeId, socket: SocketId, what: &str) -> (usize, usize) {
        let place = self.nodes[node.0 as usize].sockets.get(&socket);
        let place = place.unwrap_or_else(|| panic!("sim: {node:?} {what}: no such {socket:?}"));
        assert!(!place.released, "sim: {node:?} {what}: {socket:?} was released before");
        (place.connection, place.side)
    }
}
