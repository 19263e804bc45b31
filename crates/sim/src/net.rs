//! Connections: two streams between two nodes, over links that cost time.
//!
//! A direction takes bytes from sends, carries each run over its link (a shared server, so two
//! lanes on one link slow each other down as they do in life) and puts them into the other end's
//! inbox in pieces. What is on the way and in the inbox together is bounded by the socket buffer:
//! a receiver that does not read stops the sender.

use std::collections::VecDeque;

use piped_core::units::Nanos;

use super::memory::OpKey;
use super::stage::{Cost, Server};

/// A node of the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One direction of a network, a resource of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// A connection between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// How the ends of a connection learn that it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A reset arrives at each end, at a time of its own up to this one.
    Within(Nanos),
    /// The network swallows everything; an end learns of it when its kernel gives up
    /// ([`SILENCE`], what TCP_USER_TIMEOUT and keep-alive stand for).
    Silent,
}

/// After that time an end of a silent connection is told that it is gone.
pub const SILENCE: Nanos = Nanos::from_millis(10_000);

/// Runs of bytes arrive in pieces of at most this length: a receiver sees the first bytes before
/// the last ones were sent.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

pub(super) const EPIPE: i32 = -32;
pub(super) const ECONNRESET: i32 = -104;
pub(super) const ECANCELED: i32 = -125;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) cost: Cost,
    pub(super) server: Server,
    /// A run of bytes arrives in pieces of so many.
    pub(super) piece: usize,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ends: [End; 2],
    /// From end 0 to end 1, and back.
    pub(super) ways: [Way; 2],
    pub(super) buffer: usize,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) node: NodeId,
    pub(super) state: EndState,
    /// Arrived and not yet received.
    pub(super) inbox: VecDeque<u8>,
    /// The other end said that nothing more comes.
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
    /// Order is kept: nothing arrives before this.
    pub(super) last_arrival: Nanos,
    /// Bytes that would arrive from then on are lost.
    pub(super) cut: Option<Nanos>,
    /// Lost bytes keep their room: nobody acknowledges them.
    pub(super) swallows: bool,
    /// Flip a bit in the last byte of the next run that is at least this long.
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

    /// Bytes the end may send now.
    pub(super) fn room(&self, side: usize) -> usize {
        let used = self.ways[side].in_flight + self.ends[1 - side].inbox.len();
        self.buffer.saturating_sub(used)
    }

    /// From now on, or from `at`, bytes on the way to both ends are lost.
    pub(super) fn cut(&mut self, side_of_receiver: usize, at: Nanos) {
        let way = &mut self.ways[1 - side_of_receiver];
        way.cut = Some(way.cut.map_or(at, |earlier| earlier.min(at)));
    }
}
