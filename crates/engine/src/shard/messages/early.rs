//! Memory for messages that came before anybody asked for them.
//!
//! It is staging, charged to who is to receive. A granule of staging is far longer than most
//! messages, so short ones for one receiver share one: they are put one behind the other, and it
//! goes back with the last of them. What they leave unused meanwhile counts, too: the limits are on
//! memory.

use std::collections::BTreeMap;

use piped_core::ids::SessionId;
use piped_core::io::Span;
use piped_core::limits::GRANULE_BYTES;
use piped_report::shard::Gauge;

use super::super::buffers::{Buffers, Run, footprint_of};

/// Messages up to this length share granules; a longer one would leave too much of the last.
const SHARED_BYTES_MAX: u32 = GRANULE_BYTES / 8;

/// What a shared message starts at multiples of: a cache line.
const STEP_BYTES: u32 = 64;

/// A message's memory. Give it back with [`Early::free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Piece {
    /// The receiver whom it is charged to.
    owner: SessionId,
    block: u32,
    /// As long as the message.
    pub(in crate::shard) span: Span,
}

#[derive(Debug)]
struct Block {
    owner: SessionId,
    run: Run,
    /// Bytes given out, from its start.
    used: u32,
    pieces: u32,
    shared: bool,
}

/// Staging for messages that came before anybody asked for them, in blocks.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// Places of blocks; a piece names its place, so a free one is `None`.
    blocks: Vec<Option<Block>>,
    /// Staging that it has, in bytes.
    bytes: Gauge,
    /// What of it each receiver has.
    charged: BTreeMap<SessionId, Gauge>,
}

impl Early {
    /// A client may receive: what it has is counted from now on.
    pub(super) fn expect(&mut self, owner: SessionId) {
        self.charged.entry(owner).or_default();
    }

    pub(super) fn forget(&mut self, owner: SessionId) {
        self.charged.remove(&owner);
    }

    /// Forgets a receiver for whom there is nothing.
    pub(super) fn forget_unused(&mut self, owner: SessionId) {
        if self.charged.get(&owner).is_some_and(|it| it.now == 0) {
            self.charged.remove(&owner);
        }
    }

    /// What of staging messages have, in bytes: all, or those for one receiver.
    pub(super) fn used(&self, owner: Option<SessionId>) -> Gauge {
        owner.map_or(self.bytes, |it| self.charged.get(&it).copied().unwrap_or_default())
    }

    /// The receiver's block in which a short message has room.
    fn shared(&self, owner: SessionId, length: u32) -> Option<usize> {
        let fits = |block: &Block| {
            block.shared
                && block.owner == owner
                && block.run.span.length - block.used >= length.next_multiple_of(STEP_BYTES)
        };
        let short = is_shared(length);
        self.blocks.iter().rposition(|block| short && block.as_ref().is_some_and(fits))
    }

    /// Memory for a message; `None` beyond `limits`, which are bytes of staging for all and for
    /// each receiver, or when staging has none.
    pub(super) fn allocate(
        &mut self,
        (owner, length): (SessionId, u32),
        limits: (u64, u64),
        buffers: &mut Buffers,
    ) -> Option<Piece> {
        let place = self.shared(owner, length);
        let needed = place.map_or(footprint_of(block_bytes(length)), |_| 0);
        if self.charged.get(&owner)?.now + needed > limits.1 {
            return None;
        }
        let place = match place {
            Some(place) => place,
            None if self.bytes.now + needed > limits.0 => return None,
            None => self.open(owner, length, buffers)?,
        };
        let block = self.blocks[place].as_mut().expect("found or opened here");
        let span = block.run.span.part(block.used, length);
        block.used += if block.shared { length.next_multiple_of(STEP_BYTES) } else { length };
        block.pieces += 1;
        Some(Piece { owner, block: place as u32, span })
    }

    fn open(&mut self, owner: SessionId, length: u32, buffers: &mut Buffers) -> Option<usize> {
        let run = buffers.take_run(block_bytes(length))?;
        self.bytes.add(run.footprint());
        if let Some(charged) = self.charged.get_mut(&owner) {
            charged.add(run.footprint());
        }
        let shared = is_shared(length);
        let block = Some(Block { owner, run, used: 0, pieces: 0, shared });
        match self.blocks.iter().position(Option::is_none) {
            Some(place) => {
                self.blocks[place] = block;
                Some(place)
            }
            None => {
                self.blocks.push(block);
                Some(self.blocks.len() - 1)
            }
        }
    }

    /// Takes a message's memory back. What of staging goes with it.
    #[must_use]
    pub(super) fn free(&mut self, piece: Piece) -> Option<Run> {
        let place = &mut self.blocks[piece.block as usize];
        let block = place.as_mut().expect("a block stays while pieces of it are in use");
        block.pieces -= 1;
        if block.pieces > 0 {
            return None;
        }
        let run = block.run;
        *place = None;
        self.bytes.sub(run.footprint());
        if let Some(charged) = self.charged.get_mut(&piece.owner) {
            charged.sub(run.footprint());
        }
        Some(run)
    }
}

/// What of staging a message takes, in bytes; one of those that share a granule, its part.
pub(super) const fn memory_of(length: u32) -> u64 {
    if is_shared(length) {
        length.next_multiple_of(STEP_BYTES) as u64
    } else {
        footprint_of(length)
    }
}

/// Whether a message of that length shares a granule.
pub(super) const fn is_shared(length: u32) -> bool {
    length <= SHARED_BYTES_MAX
}

/// How long the block is that is opened for a message.
const fn block_bytes(length: u32) -> u32 {
    if is_shared(length) { GRANULE_BYTES } else { length }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SegmentId;

    use super::*;

    const OWNER: SessionId = SessionId(7);
    const NO_LIMIT: (u64, u64) = (u64::MAX, u64::MAX);

    fn early() -> Early {
        let mut early = Early::default();
        early.expect(OWNER);
        early.expect(SessionId(8));
        early
    }

    fn buffers(granules: u32) -> Buffers {
        let mut buffers = Buffers::default();
        buffers.add(SegmentId(0), u64::from(granules * GRANULE_BYTES));
        buffers
    }

    #[test]
    fn short_messages_share_a_granule_and_it_goes_with_the_last() {
        let (mut early, mut buffers) = (early(), buffers(4));
        let pieces: Vec<Piece> = (0..1024)
            .map(|_| early.allocate((OWNER, 1), NO_LIMIT, &mut buffers).expect("room"))
            .collect();
        assert_eq!(early.bytes.now, u64::from(GRANULE_BYTES));
        let mut offsets: Vec<u64> = pieces.iter().map(|piece| piece.span.offset).collect();
        offsets.sort_unstable();
        assert!(offsets.windows(2).all(|pair| pair[0] + u64::from(STEP_BYTES) <= pair[1]));
        let next = early.allocate((OWNER, 1), NO_LIMIT, &mut buffers).expect("another granule");
        assert_eq!(early.bytes.now, 2 * u64::from(GRANULE_BYTES));
        let gone = pieces.into_iter().filter_map(|piece| early.free(piece)).count();
        assert_eq!(gone, 1);
        assert!(early.free(next).is_some());
        assert_eq!(early.bytes.now, 0);
    }

    #[test]
    fn the_limit_is_one_on_memory() {
        let (mut early, mut buffers) = (early(), buffers(64));
        let limit = 3 * u64::from(GRANULE_BYTES);
        let long = early
            .allocate((OWNER, GRANULE_BYTES + 1), (limit, u64::MAX), &mut buffers)
            .expect("two granules");
        let short =
            early.allocate((OWNER, 100), (limit, u64::MAX), &mut buffers).expect("the third");
        assert_eq!(early.bytes.now, limit);
        assert_eq!(
            early.allocate((OWNER, SHARED_BYTES_MAX + 1), (limit, u64::MAX), &mut buffers),
            None
        );
        // It shares what is there.
        let beside = early
            .allocate((OWNER, 100), (limit, u64::MAX), &mut buffers)
            .expect("room in the third");
        for piece in [long, short, beside] {
            if let Some(run) = early.free(piece) {
                buffers.give_back(run);
            }
        }
        assert_eq!(buffers.staging().used().now, 0);
    }

    #[test]
    fn nobody_shares_a_granule_with_another_receiver() {
        let (mut early, mut buffers) = (early(), buffers(4));
        let other = SessionId(8);
        let first = early.allocate((OWNER, 1), NO_LIMIT, &mut buffers).expect("room");
        let granule = u64::from(GRANULE_BYTES);
        assert_eq!(early.used(Some(OWNER)).now, granule);
        // What it shares takes nothing more; what it does not share takes what it is long.
        let each = (u64::MAX, granule);
        assert!(early.allocate((OWNER, 100), each, &mut buffers).is_some());
        assert_eq!(early.allocate((OWNER, GRANULE_BYTES + 1), each, &mut buffers), None);
        let second = early.allocate((other, 1), NO_LIMIT, &mut buffers).expect("room");
        assert_ne!(first.block, second.block);
        assert_eq!(early.used(Some(other)).now, granule);
        assert_eq!(early.bytes.now, u64::from(2 * GRANULE_BYTES));
    }

    #[test]
    fn without_staging_there_is_none() {
        let (mut early, mut buffers) = (early(), buffers(1));
        let piece =
            early.allocate((OWNER, GRANULE_BYTES), NO_LIMIT, &mut buffers).expect("all of it");
        assert_eq!(early.allocate((OWNER, 1), NO_LIMIT, &mut buffers), None);
        assert!(early.free(piece).is_some());
    }
}
