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

use super::super::cx::Cx;
use super::super::keys::LinkKey;
use super::early;

/// What is known of a message on its way to its receive, if it is one of those that early-arrival
/// memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Came {
    /// The peer; none: a client of this shard.
    from: Option<LinkKey>,
    way: Way,
    /// When its first byte was here, and its last.
    first: Nanos,
    pub(in crate::shard) landed: Nanos,
    /// When a receive took it.
    pub(in crate::shard) taken: Nanos,
}

impl Came {
    /// Its first byte is here, of a client of this shard all of it. What waited for it took it.
    pub(in crate::shard) const fn new(from: Option<LinkKey>, way: Way, now: Nanos) -> Self {
        Self { from, way, first: now, landed: now, taken: now }
    }

    /// Whether it goes straight to a receive, as far as is known.
    pub(in crate::shard) fn is_direct(&self) -> bool {
        self.way == Way::Direct
    }

    /// No receive takes it now: it is kept, or there is no room for that.
    pub(in crate::shard) fn wait(&mut self, is_kept: bool) {
        self.way = if is_kept { Way::Kept } else { Way::Stalled };
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

    /// A message is with its receive, on a channel of that session's.
    pub(super) fn note_received(
        &mut self,
        (id, owner): (ChannelId, SessionId),
        length: u32,
        came: Came,
        now: Nanos,
    ) {
        match self.book(id, owner) {
            Some(book) => book.add(Record { came, length, ended: now }),
            None => self.unseen += 1,
        }
        if came.way == Way::Kept {
            self.forget_early(id, length);
        }
    }

    /// What was seen of messages, for the model of the memory they need; and how many messages of
    /// other channels there were. Its size has a limit. `waiting`: what waits in a channel now.
    pub(super) fn report<W: Iterator<Item = (Came, u32)>>(
        &self,
        waiting: impl Fn(ChannelId) -> W,
        cx: &Cx,
        now: Nanos,
        name: impl Fn(LinkKey) -> Option<String>,
    ) -> (Vec<ChannelArrivals>, u64) {
        let report =
            |(&id, book): (&ChannelId, &Book)| book.report(id, waiting(id), cx, now, &name);
        (self.books.iter().map(report).collect(), self.unseen)
    }
}

impl Book {
    fn report(
        &self,
        id: ChannelId,
        waiting: impl Iterator<Item = (Came, u32)>,
        cx: &Cx,
        now: Nanos,
        name: impl Fn(LinkKey) -> Option<String>,
    ) -> ChannelArrivals {
        let waits = |(came, length)| {
            let came = Came { way: Way::Waiting, taken: now, ..came };
            Record { came, length, ended: now }
        };
        let waiting = waiting.map(waits).take(MESSAGES_SEEN);
        let mut senders = BTreeMap::<Option<LinkKey>, (u32, u32)>::new();
        let mut seen = Vec::with_capacity(self.ring.len());
        let (newer, older) = self.ring.split_at(self.next);
        for record in older.iter().chain(newer).copied().chain(waiting) {
            let (messages, longest) = senders.entry(record.came.from).or_default();
            *messages += 1;
            *longest = record.length.max(*longest);
            seen.push(seen_of(&record));
        }
        let senders = senders.into_iter().map(|(from, (messages, longest))| ArrivalSender {
            peer: from.map(|link| name(link).unwrap_or_else(|| String::from("(gone)"))),
            messages,
            memory_bytes: early::memory_of(longest),
        });
        let longest = self.ring.iter().map(|record| record.length).max().unwrap_or(1).max(1);
        let copy_seconds = cx.planner.seconds(cx.planner.copy_stage(), longest);
        ChannelArrivals {
            channel: id,
            session: self.owner,
            open: self.open,
            messages: self.messages,
            is_cut: self.messages > self.ring.len() as u64,
            stalled: self.stalled,
            memory: self.memory,
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
