//! The memory shared with the daemon, handed out in pieces: the arena, and what the program lends.
//!
//! First fit over ranges sorted by offset, one list a segment, in whole pages: O_DIRECT wants the
//! alignment, and applications keep their buffers rather than make one a request. Freed neighbours
//! join at once, so a list is never longer than the buffers that are out, plus one. A slab of size
//! classes would be faster and would strand memory that one large read needs in one piece.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use piped_ring::handshake::{Reply, Request};
use piped_ring::{ExclusiveRange, LentKind, Segment};

use crate::buffer::{Buffer, Home};
use crate::control::{Control, lock};
use crate::error::{LendError, SessionError};

/// Buffers start and end at multiples of this many bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Pieces that are free at first in every list: room, so that giving back hardly ever allocates.
const PIECES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// The client that the arena belongs to; all connections of a client have the same.
    client: u32,
    /// The connection that it is of, by its generation.
    generation: u32,
    segments: Mutex<Vec<Space>>,
    /// The session. The daemon takes the memory back when this side has hung up, so nobody does
    /// while a buffer is left.
    _session: Option<Arc<Control>>,
}

#[derive(Debug)]
struct Space {
    number: u32,
    free: Free,
}

/// Free pieces of a segment, by offset; no two touch.
#[derive(Debug)]
struct Free(Vec<ExclusiveRange>);

impl Arena {
    pub(crate) fn new(client: u32, generation: u32, session: Arc<Control>) -> Self {
        Self { client, generation, segments: Mutex::default(), _session: Some(session) }
    }

    /// The client that the arena belongs to.
    pub(crate) fn client(&self) -> u32 {
        self.client
    }

    /// Add a segment under the daemon's number for it.
    pub(crate) fn add(&self, number: u32, segment: Segment) {
        let mut whole = ExclusiveRange::claim(segment);
        // What does not fill a page is left alone.
        let _ = whole.split_off(whole.len() - whole.len() % PAGE_BYTES);
        lock(&self.segments).push(Space { number, free: Free::of(whole) });
    }

    /// A buffer of `length` bytes, if some free piece has room.
    pub(crate) fn allocate(self: &Arc<Self>, length: u64) -> Option<Buffer> {
        let bytes = length.checked_next_multiple_of(PAGE_BYTES)?;
        let mut segments = lock(&self.segments);
        let (number, range) = segments
            .iter_mut()
            .find_map(|space| space.free.take(bytes).map(|range| (space.number, range)))?;
        Some(Buffer::new(Home::Arena(Arc::clone(self), number), range, length))
    }

    /// Take a piece back.
    pub(crate) fn release(&self, number: u32, range: ExclusiveRange) {
        let mut segments = lock(&self.segments);
        if let Some(space) = segments.iter_mut().find(|space| space.number == number) {
            space.free.give_back(range);
        }
    }

    #[cfg(test)]
    fn pieces(&self) -> Vec<(u64, u64)> {
        let segments = lock(&self.segments);
        let free = segments.iter().flat_map(|space| &space.free.0);
        free.map(|range| (range.offset(), range.len())).collect()
    }
}

impl Free {
    /// All of a segment.
    fn of(whole: ExclusiveRange) -> Self {
        let mut free = Vec::with_capacity(PIECES);
        free.push(whole);
        Self(free)
    }

    fn take(&mut self, bytes: u64) -> Option<ExclusiveRange> {
        let place = self.0.iter().position(|range| range.len() >= bytes)?;
        let rest = self.0[place].split_off(bytes);
        if rest.is_empty() {
            return Some(self.0.remove(place));
        }
        Some(std::mem::replace(&mut self.0[place], rest))
    }

    /// The piece of so many bytes, at least 1, at an offset, if all of it is free.
    fn take_at(&mut self, offset: u64, bytes: u64) -> Option<ExclusiveRange> {
        let place = self.0.partition_point(|free| free.offset() <= offset).checked_sub(1)?;
        let before = offset - self.0[place].offset();
        if before.checked_add(bytes)? > self.0[place].len() {
            return None;
        }
        let mut range = self.0[place].split_off(before);
        let rest = range.split_off(bytes);
        if before == 0 {
            self.0.remove(place);
        }
        if !rest.is_empty() {
            self.0.insert(place + usize::from(before > 0), rest);
        }
        Some(range)
    }

    fn give_back(&mut self, mut range: ExclusiveRange) {
        let place = self.0.partition_point(|free| free.offset() < range.offset());
        if place < self.0.len() {
            let next = self.0.remove(place);
            if let Err(next) = range.join(next) {
                self.0.insert(place, next);
            }
        }
        let Some(before) = place.checked_sub(1) else {
            self.0.insert(0, range);
            return;
        };
        if let Err(range) = self.0[before].join(range) {
            self.0.insert(place, range);
        }
    }
}

/// Memory that the program lends, behind its buffers. Given back when this is dropped.
#[derive(Debug)]
pub(crate) struct LentMemory {
    loan: Loan,
    start: usize,
    free: Mutex<Free>,
}

/// Memory of the program that a daemon has taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Loan {
    client: u32,
    kind: LentKind,
    fd: OwnedFd,
    length: u64,
    /// Generation of the connection where it is lent, and its number there.
    place: AtomicU64,
    /// The daemon that has taken it.
    daemon: Mutex<Arc<Control>>,
}

/// Stands for a segment number where there is none.
const NOWHERE: u32 = u32::MAX;

fn place(generation: u32, number: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(number)
}

impl LentMemory {
    /// Memory that a daemon has taken, as it is mapped here.
    pub(crate) fn new(loan: Loan, segment: Segment) -> Self {
        let start = segment.as_ptr().expose_provenance();
        Self { loan, start, free: Mutex::new(Free::of(ExclusiveRange::claim(segment))) }
    }

    /// First address of the memory.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start)
    }

    /// Length of the memory in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.loan.length
    }

    /// The client whose memory it is.
    pub(crate) fn client(&self) -> u32 {
        self.loan.client
    }

    /// The generation of the connection where it is lent, and its number there.
    pub(crate) fn place(&self) -> (u32, u32) {
        self.loan.place()
    }

    /// Whether requests of an arena's connection can name it.
    pub(crate) fn is_of(&self, arena: &Arena) -> bool {
        let (generation, number) = self.place();
        self.client() == arena.client && generation == arena.generation && number != NOWHERE
    }

    /// Whether it is lent at a later connection of the arena's client already. So that of the arena
    /// is over: its queues may not know yet.
    pub(crate) fn is_ahead_of(&self, arena: &Arena) -> bool {
        self.client() == arena.client && self.place().0 > arena.generation
    }

    /// Takes the bytes at an offset, if all of them are free.
    pub(crate) fn take(&self, offset: u64, bytes: u64) -> Option<ExclusiveRange> {
        lock(&self.free).take_at(offset, bytes)
    }

    /// Takes a part back.
    pub(crate) fn release(&self, range: ExclusiveRange) {
        lock(&self.free).give_back(range);
    }

    /// Lends it to the daemon of another connection, which may refuse it.
    pub(crate) fn lend_again(&self, generation: u32, daemon: &Arc<Control>) {
        *lock(&self.loan.daemon) = Arc::clone(daemon);
        let number = self.loan.ask().unwrap_or(NOWHERE);
        self.loan.place.store(place(generation, number), Ordering::Relaxed);
    }
}

impl Loan {
    /// Lends memory of a client to a daemon, which is at the connection of that generation.
    pub(crate) fn new(
        (client, generation): (u32, u32),
        daemon: &Arc<Control>,
        fd: OwnedFd,
        (length, kind): (u64, LentKind),
    ) -> Result<Self, LendError> {
        let loan = Self {
            client,
            kind,
            fd,
            length,
            place: AtomicU64::new(place(generation, NOWHERE)),
            daemon: Mutex::new(Arc::clone(daemon)),
        };
        let number = loan.ask()?;
        loan.place.store(place(generation, number), Ordering::Relaxed);
        Ok(loan)
    }

    fn place(&self) -> (u32, u32) {
        // Relaxed: the word says all there is.
        let place = self.place.load(Ordering::Relaxed);
        ((place >> 32) as u32, place as u32)
    }

    fn ask(&self) -> Result<u32, LendError> {
        let daemon = Arc::clone(&lock(&self.daemon));
        if !daemon.takes_memory() {
            return Err(LendError::Unsupported);
        }
        let request = Request::Lend { bytes: self.length, kind: self.kind };
        match daemon.ask(&request, &[self.fd.as_fd()])?.0 {
            Reply::Lent { segment } => Ok(segment),
            _ => Err(SessionError::Unexpected.into()),
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let (_, segment) = self.place();
        // With its daemon's session it is given back already.
        if segment != NOWHERE {
            lock(&self.daemon).tell(Request::TakeBack { segment });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: u64) -> Arc<Arena> {
        let arena = Arc::new(Arena::default());
        arena.add(0, Segment::create(bytes).expect("memory"));
        arena
    }

    #[test]
    fn buffers_are_whole_pages_and_come_back_joined() {
        let arena = arena(4 * PAGE_BYTES);
        let buffers: Vec<_> = (0..4).map(|_| arena.allocate(1).expect("room")).collect();
        assert!(arena.allocate(1).is_none(), "four pages are four buffers");
        assert!(buffers.iter().all(|buffer| buffer.place().1.is_multiple_of(PAGE_BYTES)));
        let mut buffers = buffers.into_iter();
        let [a, b, c, d] = std::array::from_fn(|_| buffers.next().expect("four"));
        drop((a, c));
        assert_eq!(arena.pieces(), [(0, 4096), (8192, 4096)]);
        assert!(arena.allocate(4097).is_none(), "free, but not in one piece");
        drop((d, b));
        assert_eq!(arena.pieces(), [(0, 4 * PAGE_BYTES)]);
    }

    #[test]
    fn every_order_of_giving_back_ends_in_one_piece() {
        let seed = 0x5eed_u64;
        let mut random = seed;
        let arena = arena(64 * PAGE_BYTES);
        for _ in 0..200 {
            let mut out = Vec::new();
            loop {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match arena.allocate(1 + (random >> 40) % 20_000) {
                    Some(buffer) => out.push(buffer),
                    None => break,
                }
            }
            while !out.is_empty() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let _ = out.swap_remove((random >> 33) as usize % out.len());
            }
            assert_eq!(arena.pieces(), [(0, 64 * PAGE_BYTES)], "seed {seed:#x}");
        }
    }

    #[test]
    fn pieces_are_taken_where_they_are_wanted_and_never_twice() {
        let whole = ExclusiveRange::claim(Segment::create(1000).expect("memory"));
        let mut free = Free::of(whole);
        let places = |free: &Free| free.0.iter().map(|it| (it.offset(), it.len())).collect();
        let taken = [(10, 20), (0, 10), (990, 10), (100, 1)]
            .map(|(offset, bytes)| free.take_at(offset, bytes).expect("free"));
        let left: Vec<_> = places(&free);
        assert_eq!(left, [(30, 70), (101, 889)]);
        for (offset, bytes) in
            [(0, 1), (29, 2), (99, 2), (30, 71), (980, 11), (1000, 1), (40, u64::MAX)]
        {
            assert!(free.take_at(offset, bytes).is_none(), "{bytes} at {offset}");
        }
        let all = free.take_at(101, 889).expect("free");
        for range in taken.into_iter().chain([all]) {
            free.give_back(range);
        }
        let left: Vec<_> = places(&free);
        assert_eq!(left, [(0, 1000)]);
    }

    #[test]
    fn the_second_segment_serves_what_the_first_cannot() {
        let arena = arena(PAGE_BYTES);
        arena.add(7, Segment::create(2 * PAGE_BYTES + 100).expect("memory"));
        let large = arena.allocate(5000).expect("two pages are in the second");
        assert_eq!(large.place(), (7, 0));
        assert!(arena.allocate(u64::MAX).is_none());
    }
}
