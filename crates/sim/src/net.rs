//! Connections: two streams between two nodes, over links that cost time.
//!
//! A direction takes bytes from sends, carries each run over its link and puts them into the other
//! end's inbox in pieces. A link is a shared server, so two connections on one link slow each other
//! down. The socket buffer bounds the bytes under way and in the inbox together: a receiver that
//! does not read stops the sender.

use std::collections::VecDeque;

use piped_core::units::Nanos;

use super::memory::OpKey;
use super::stage::{Cost, Server};

/// One end of a connection, as a node's socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) connection: usize,
    pub(super) side: usize,
    pub(super) released: bool,
}

/// A node of the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One direction of a network, which is a resource of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// A connection between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// How the ends of a connection learn that it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A reset arrives at each end at a random time, at most this much later.
    Within(Nanos),
    /// The network swallows everything. An end notices when its kernel gives up ([`SILENCE`], which
    /// stands for TCP_USER_TIMEOUT and keep-alive).
    Silent,
}

/// Time after which the kernel tells an end of a silent connection that it is gone.
pub const SILENCE: Nanos = Nanos::from_millis(10_000);

/// Most bytes of a piece in which a run of bytes arrives: a receiver sees the first bytes before
/// the last ones were sent.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

pub(super) const EPIPE: i32 = -32;
pub(super) const ECONNRESET: i32 = -104;
pub(super) const ECANCELED: i32 = -125;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) cost: Cost,
    pub(super) server: Server,
    /// Most bytes of a piece that leaves this link.
    pub(super) piece: usize,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ends: [End; 2],
    /// The two directions: from end 0 to end 1, and back.
    pub(super) ways: [Way; 2],
    pub(super) buffer: usize,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) node: NodeId,
    pub(super) state: EndState,
    /// Bytes that have arrived and were not received yet.
    pub(super) inbox: VecDeque<u8>,
    /// Whether the other end has closed its direction.
    pub(super) ended: bool,
    pub(super) send: Option<OpKey>,
    pub(super) receive: Option<OpKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndState {
    Open,
    /// The reset has been noticed.
    Broken,
    /// The owner closed it, or its node died.
    Closed,
}

#[derive(Debug)]
pub(super) struct Way {
    pub(super) link: LinkId,
    pub(super) in_flight: usize,
    /// The latest arrival so far: nothing arrives before it, so order is kept.
    pub(super) last_arrival: Nanos,
    /// The time from which on arriving bytes are lost.
    pub(super) cut: Option<Nanos>,
    /// Whether lost bytes keep their room in the buffer, because nobody acknowledges them.
    pub(super) swallows: bool,
    /// Whether to flip a bit in the last byte of the next run of at least this length.
    pub(super) corrupt_next: Option<usize>,
}

impl Connection {
    pub(super) fn new(nodes: [NodeId; 2], links: [LinkId; 2], buffer: usize) -> Self {
        let end = |node| End {
            node,
            state: EndState::Open,
            inbox: VecDeque::new(),
            ended: false,
            send: None,
            receive: None,
        };
        let way = |link| Way {
            link,
            in_flight: 0,
            last_arrival: Nanos::ZERO,
            cut: None,
            swallows: false,
            corrupt_next: None,
        };
        Self { ends: nodes.map(end), ways: links.map(way), buffer }
    }

    /// Bytes that the end may send now.
    pub(super) fn room(&self, side: usize) -> usize {
        let used = self.ways[side].in_flight + self.ends[1 - side].inbox.len();
        self.buffer.saturating_sub(used)
    }

    /// Loses bytes on the way to both ends, from now on or from `at`.
    pub(super) fn cut(&mut self, side_of_receiver: usize, at: Nanos) {
        let way = &mut self.ways[1 - side_of_receiver];
        way.cut = Some(way.cut.map_or(at, |earlier| earlier.min(at)));
    }
}
