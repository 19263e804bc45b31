//! The far ends of connections, for tests that write every byte of a peer by hand.

use std::collections::VecDeque;

use piped_core::ids::{SegmentId, SocketId};
use piped_core::io::{Done, Io as _, Op, Resource, Span, Spans, Token};

use super::kernel::SimKernel;
use super::net::{NodeId, Notice};

/// Bytes that a far end sends at once, and receives at once.
const PIECE: u32 = 64 * 1024;

/// A connection, by the order in which it was made.
pub type LineId = usize;

/// A node without a daemon: its ends of connections send what they are given, and keep what comes.
#[derive(Debug)]
pub struct FarEnds {
    node: NodeId,
    lines: Vec<Line>,
}

/// The far end of one connection.
#[derive(Debug)]
struct Line {
    socket: SocketId,
    /// A piece to send, and behind it one to receive into.
    memory: SegmentId,
    to_send: VecDeque<u8>,
    received: Vec<u8>,
    sending: bool,
    receiving: bool,
    reads: bool,
    over: bool,
}

impl FarEnds {
    /// The far ends of a node of the kernel, on which nothing else runs.
    #[must_use]
    pub const fn new(node: NodeId) -> Self {
        Self { node, lines: Vec::new() }
    }

    /// The node as the kernel knows it.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Takes the node's end of a connection.
    pub fn take_up(&mut self, socket: SocketId, kernel: &mut SimKernel) -> LineId {
        let memory = kernel.add_segment(self.node, u64::from(2 * PIECE));
        self.lines.push(Line {
            socket,
            memory,
            to_send: VecDeque::new(),
            received: Vec::new(),
            sending: false,
            receiving: false,
            reads: true,
            over: false,
        });
        self.lines.len() - 1
    }

    /// Queues bytes to send.
    pub fn send(&mut self, line: LineId, bytes: &[u8]) {
        self.lines[line].to_send.extend(bytes);
    }

    /// The bytes that have come and that nobody took.
    #[must_use]
    pub fn received(&self, line: LineId) -> &[u8] {
        &self.lines[line].received
    }

    /// Takes so many of the bytes that have come.
    pub fn take(&mut self, line: LineId, count: usize) -> Vec<u8> {
        self.lines[line].received.drain(..count).collect()
    }

    /// Reads on, or no more.
    pub fn set_reading(&mut self, line: LineId, reads: bool) {
        self.lines[line].reads = reads;
    }

    /// Hangs up, if it has not done so before.
    pub fn hang_up(&mut self, line: LineId, kernel: &mut SimKernel) {
        let Line { socket, over, .. } = &mut self.lines[line];
        *over = true;
        if kernel.open_sockets(self.node).contains(socket) {
            kernel.io(self.node).release(Resource::Socket(*socket));
        }
    }

    /// Loses power, and says nothing to anybody.
    pub fn vanish(&mut self, kernel: &mut SimKernel) {
        kernel.crash(self.node, Notice::Silent);
        self.lines.iter_mut().for_each(|line| line.over = true);
    }

    /// Sends and receives what can be. Whether anything was done.
    ///
    /// # Panics
    /// If the kernel takes fewer than two operations of the node for each connection.
    pub fn turn(&mut self, kernel: &mut SimKernel) -> bool {
        let mut worked = false;
        while let Some(Done { token, result }) = kernel.poll_done(self.node) {
            let line = &mut self.lines[(token.0 / 2) as usize];
            worked = true;
            line.over |= result <= 0;
            let length = result.max(0) as u32;
            if token.0 % 2 == 0 {
                line.sending = false;
                line.to_send.drain(..length as usize);
            } else {
                line.receiving = false;
                let from = Span { segment: line.memory, offset: PIECE.into(), length };
                line.received.extend_from_slice(kernel.bytes(self.node, from));
            }
        }
        for (number, line) in self.lines.iter_mut().enumerate() {
            for op in line.ops(self.node, kernel).into_iter().flatten() {
                let token = 2 * number as u64 + u64::from(matches!(op, Op::Receive { .. }));
                let taken = kernel.io(self.node).push(Token(token), op);
                assert!(taken, "the far driver has room");
                worked = true;
            }
        }
        worked
    }
}

impl Line {
    /// The operations to begin now.
    fn ops(&mut self, node: NodeId, kernel: &mut SimKernel) -> [Option<Op>; 2] {
        let (socket, segment) = (self.socket, self.memory);
        let sends = !self.over && !self.sending && !self.to_send.is_empty();
        let receives = !self.over && !self.receiving && self.reads;
        self.sending |= sends;
        self.receiving |= receives;
        let send = sends.then(|| {
            let bytes: Vec<u8> = self.to_send.iter().copied().take(PIECE as usize).collect();
            let span = Span { segment, offset: 0, length: bytes.len() as u32 };
            kernel.bytes_mut(node, span).copy_from_slice(&bytes);
            Op::Send { socket, spans: Spans::from_iter([span]) }
        });
        let span = Span { segment, offset: PIECE.into(), length: PIECE };
        let spans = Spans::from_iter([span]);
        [send, receives.then_some(Op::Receive { socket, spans, whole: false })]
    }
}
