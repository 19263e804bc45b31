//! When messages came, were taken, and were gone from memory, channel by channel: what advice on
//! early-arrival memory is made of.
//!
//! The last messages of a channel are in a ring of fixed length. Rings are taken when channels are
//! offered, at most [`CHANNELS_SEEN_MAX`] of them, and given to those channels that get messages:
//! senders choose neither how many there are nor how long they are. A closed channel keeps its ring
//! until another one wants it, so that there is something to advise on when the program that
//! received has ended.
//!
//! A message that found no memory has the times at which it came as well: what has too little must
//! not look as if it needed little.

use std::collections::BTreeMap;

use piped_core::ids::{ChannelId, SessionId};
use piped_core::limits::{CHANNELS_SEEN_MAX, MESSAGES_SEEN};
use piped_core::units::Nanos;
use piped_model::buffer::advise::{Seen, Way};
use piped_report::shard::{ArrivalSender, ChannelArrivals, Gauge};

use super::channel::{Channel, Envelope};
use super::keys::LinkKey;
use super::{Shard, early};

/// What is known of a message on its way to its receive, if it is one of those that early-arrival
/// memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Came {
    /// The peer; none: a client of this shard.
    from: Option<LinkKey>,
    way: Way,
    /// When its first byte was here, and its last.
    first: Nanos,
    landed: Nanos,
    /// When a receive took it.
    pub(super) taken: Nanos,
}

impl Came {
    /// From a client of this shard: all of it at once.
    pub(super) const fn here(way: Way, now: Nanos) -> Self {
        Self { from: None, way, first: now, landed: now, taken: now }
    }
}

/// A message whose bytes come in from a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arriving {
    pub(super) sequence: u32,
    pub(super) way: Way,
    pub(super) first: Nanos,
}

impl Arriving {
    /// Its last byte is here. What waited for it took it with the first.
    pub(super) const fn landed(self, from: LinkKey, now: Nanos) -> Came {
        let Self { way, first, .. } = self;
        Came { from: Some(from), way, first, landed: now, taken: first }
    }
}

/// A message that was received.
#[derive(Debug, Clone, Copy)]
struct Record {
    came: Came,
    length: u32,
    ended: Nanos,
}

/// What was seen on a channel.
#[derive(Debug)]
struct Book {
    owner: SessionId,
    open: bool,
    /// The last ones; the next takes the place of the oldest.
    ring: Vec<Record>,
    next: usize,
    messages: u64,
    stalled: u64,
    /// Memory that its messages have.
    memory: Gauge,
}

impl Book {
    fn add(&mut self, record: Record) {
        self.messages += 1;
        if self.ring.len() < MESSAGES_SEEN {
            return self.ring.push(record);
        }
        self.ring[self.next] = record;
        self.next = (self.next + 1) % MESSAGES_SEEN;
    }
}

/// The last messages of each channel and their times, in a bounded number of rings.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    books: BTreeMap<ChannelId, Book>,
    /// Rings that no channel has.
    spare: Vec<Vec<Record>>,
    rings: usize,
    /// Messages on channels for which there was no ring.
    unseen: u64,
}

impl Arrivals {
    /// A channel is offered: it may want a ring.
    pub(super) fn expect_channel(&mut self) {
        if self.rings < CHANNELS_SEEN_MAX {
            self.rings += 1;
            self.spare.push(Vec::with_capacity(MESSAGES_SEEN));
        }
    }

    pub(super) fn close(&mut self, id: ChannelId) {
        if let Some(book) = self.books.get_mut(&id) {
            book.open = false;
            // What is in memory goes with it.
            book.memory.sub(book.memory.now);
        }
    }

    fn book(&mut self, id: ChannelId, owner: SessionId) -> Option<&mut Book> {
        if !self.books.contains_key(&id) {
            let mut ring = self.spare.pop().or_else(|| {
                let closed = self.books.iter().find(|(_, book)| !book.open).map(|(&id, _)| id)?;
                self.books.remove(&closed).map(|book| book.ring)
            })?;
            ring.clear();
            let (next, messages, stalled) = (0, 0, 0);
            let memory = Gauge::default();
            let book = Book { owner, open: true, ring, next, messages, stalled, memory };
            self.books.insert(id, book);
        }
        self.books.get_mut(&id)
    }

    /// A message took memory, or found none.
    pub(super) fn note_early(&mut self, id: ChannelId, owner: SessionId, length: u32, kept: bool) {
        match self.book(id, owner) {
            Some(book) if kept => book.memory.add(early::memory_of(length)),
            Some(book) => book.stalled += 1,
            None => {}
        }
    }

    /// A message has no memory any more.
    pub(super) fn forget_early(&mut self, id: ChannelId, length: u32) {
        if let Some(book) = self.books.get_mut(&id).filter(|book| book.open) {
            book.memory.sub(early::memory_of(length).min(book.memory.now));
        }
    }
}

impl Shard {
    /// A message is with its receive.
    pub(super) fn note_received(&mut self, id: ChannelId, length: u32, came: Came, now: Nanos) {
        let Some(channel) = self.channels.get(&id) else { return };
        match self.arrivals.book(id, channel.owner) {
            Some(book) => book.add(Record { came, length, ended: now }),
            None => self.arrivals.unseen += 1,
        }
        if came.way == Way::Kept {
            self.arrivals.forget_early(id, length);
        }
    }

    /// What was seen of messages, for the model of the memory they need; and how many messages of
    /// other channels there were. Its size has a limit.
    #[must_use]
    pub fn arrivals(&self, now: Nanos) -> (Vec<ChannelArrivals>, u64) {
        let report = |(&id, book): (&ChannelId, &Book)| self.report_book(id, book, now);
        (self.arrivals.books.iter().map(report).collect(), self.arrivals.unseen)
    }

    fn report_book(&self, id: ChannelId, book: &Book, now: Nanos) -> ChannelArrivals {
        let waiting = self.channels.get(&id).map(Channel::waiting);
        let waits = |envelope: &Envelope| {
            let came = Came { way: Way::Waiting, taken: now, ..envelope.came? };
            Some(Record { came, length: envelope.length, ended: now })
        };
        let waiting = waiting.into_iter().flatten().filter_map(waits).take(MESSAGES_SEEN);
        let mut senders = BTreeMap::<Option<LinkKey>, (u32, u32)>::new();
        let mut seen = Vec::with_capacity(book.ring.len());
        let (newer, older) = book.ring.split_at(book.next);
        for record in older.iter().chain(newer).copied().chain(waiting) {
            let (messages, longest) = senders.entry(record.came.from).or_default();
            *messages += 1;
            *longest = record.length.max(*longest);
            seen.push(seen_of(&record));
        }
        let senders = senders.into_iter().map(|(from, (messages, longest))| ArrivalSender {
            peer: from.map(|link| {
                self.inbound.get(link).map_or(String::from("(gone)"), |link| link.name.clone())
            }),
            messages,
            memory_bytes: early::memory_of(longest),
        });
        let longest = book.ring.iter().map(|record| record.length).max().unwrap_or(1).max(1);
        let copy_seconds = self.cx.planner.seconds(self.cx.planner.copy_stage(), longest);
        ChannelArrivals {
            channel: id,
            session: book.owner,
            open: book.open,
            messages: book.messages,
            is_cut: book.messages > book.ring.len() as u64,
            stalled: book.stalled,
            memory: book.memory,
            shares: seen.iter().any(|it| early::is_shared(it.bytes as u32)),
            copy_bytes_per_second: f64::from(longest) / copy_seconds.max(1e-9),
            senders: senders.collect(),
            seen,
        }
    }
}

fn seen_of(record: &Record) -> Seen {
    let Record { came, length, ended } = record;
    Seen {
        came_seconds: came.first.seconds(),
        landed_seconds: came.landed.seconds(),
        taken_seconds: came.taken.seconds(),
        ended_seconds: ended.seconds(),
        bytes: f64::from(*length),
        memory_bytes: early::memory_of(*length) as f64,
        way: came.way,
    }
}
