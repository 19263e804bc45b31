//! One direction of a ring: a producer and a consumer that share two indices and an array.
//!
//! The intuition: each side owns one index and keeps the truth about it in private memory; what it
//! stores in shared memory is only a copy for the other side to read. The other side's index is a
//! *claim*: it is taken if it lies between the last one taken and at most one ring away from our
//! own index, else it is a fault, and since all arithmetic wraps, an index that went backwards is
//! simply one that is too far ahead. So whatever the other side writes, we touch only our own
//! entries.
//!
//! Publishing is one Release store for a whole batch, and the claim is read again only when the
//! private copy of it says "nothing more": a busy ring moves a few cache lines a batch, not an
//! entry.
//!
//! Memory comes as a slice of words, from a mapping, the heap or loom: the arithmetic does not
//! know. A ring of `fetch_add`s on shared indices would be shorter, and would read back what the
//! other side wrote.
//!
//! # Ordering
//!
//! Two pairs, named alike at both ends:
//! - *entries before tail*: the producer's entries are in memory before its tail counts them.
//! - *copied before head*: the consumer's copies are done before its head gives the places back.

use crate::atomic::{AtomicU64, Ordering};

/// The other side's index is more than one ring away from ours (or went backwards).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side claims index {claimed} where ours is {ours} in a ring of {capacity}")]
pub struct IndexFault {
    /// The index that the other side wrote.
    pub claimed: u64,
    /// The index of this side.
    pub ours: u64,
    /// Entries of the ring.
    pub capacity: u64,
}

/// Where a ring is in its memory, in words.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The word the producer publishes its index in.
    pub tail: usize,
    /// The word the consumer publishes its index in.
    pub head: usize,
    /// The first word of the entries.
    pub entries: usize,
    /// How many entries: a power of two.
    pub capacity: u64,
}

impl Place {
    /// The words of the entry that `index` stands for. `WORDS` is the entry's length.
    fn entry<const WORDS: usize>(self, words: &[AtomicU64], index: u64) -> &[AtomicU64; WORDS] {
        // The mask keeps the number below the capacity, which is at most 2 * ENTRIES_MAX, so the
        // product is small; that the memory is long enough was checked when it was made or
        // attached.
        let start = self.entries + (index & (self.capacity - 1)) as usize * WORDS;
        words[start..].first_chunk().expect("the memory holds all entries of its layout")
    }
}

/// The writing half of a ring.
#[derive(Debug)]
pub struct Producer<const WORDS: usize> {
    place: Place,
    /// The index of the next entry to write.
    next: u64,
    /// Value of the tail word, as published last.
    published: u64,
    /// The consumer's index as last claimed and checked.
    head: u64,
}

impl<const WORDS: usize> Producer<WORDS> {
    /// A producer for a ring that is empty at index `first`.
    #[must_use]
    pub fn new(place: Place, first: u64) -> Self {
        assert!(place.capacity.is_power_of_two(), "a ring's capacity is a power of two");
        Self { place, next: first, published: first, head: first }
    }

    /// Entries that were written and, as far as is known, not yet consumed.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.next.wrapping_sub(self.head)
    }

    /// Write an entry; it is seen after [`Self::publish`]. `false`: the ring is full, as far as is
    /// known ([`Self::refresh`] asks again).
    #[must_use]
    pub fn push(&mut self, words: &[AtomicU64], entry: [u64; WORDS]) -> bool {
        if self.used() >= self.place.capacity {
            return false;
        }
        let to = self.place.entry::<WORDS>(words, self.next);
        for (word, value) in to.iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Read how far the consumer is.
    ///
    /// # Errors
    /// The claimed index counts entries that were never published, or went back.
    pub fn refresh(&mut self, words: &[AtomicU64]) -> Result<(), IndexFault> {
        // *copied before head*: pairs with the Release store in `Consumer::release`. Without it our
        // next entry could be written over one that is still being copied out.
        let claimed = words[self.place.head].load(Ordering::Acquire);
        // Honest heads go from the last one we saw up to what we published. Taking one that went
        // back would make room vanish that was already promised.
        if claimed.wrapping_sub(self.head) > self.published.wrapping_sub(self.head) {
            let capacity = self.place.capacity;
            return Err(IndexFault { claimed, ours: self.published, capacity });
        }
        self.head = claimed;
        Ok(())
    }

    /// Let the consumer see everything written. `false`: there was nothing new.
    pub fn publish(&mut self, words: &[AtomicU64]) -> bool {
        if self.published == self.next {
            return false;
        }
        // *entries before tail*: pairs with the Acquire load in `Consumer::refresh`. Without it the
        // consumer could copy an entry that is not written yet.
        words[self.place.tail].store(self.next, Ordering::Release);
        self.published = self.next;
        true
    }

    /// Whether everything published was consumed, as far as is known.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.published == self.head
    }
}

/// The reading half of a ring.
#[derive(Debug)]
pub struct Consumer<const WORDS: usize> {
    place: Place,
    /// The index of the next entry to copy out.
    next: u64,
    /// Value of the head word, as released last.
    released: u64,
    /// The producer's index as last claimed and checked.
    tail: u64,
}

impl<const WORDS: usize> Consumer<WORDS> {
    /// A consumer for a ring that is empty at index `first`.
    #[must_use]
    pub fn new(place: Place, first: u64) -> Self {
        assert!(place.capacity.is_power_of_two(), "a ring's capacity is a power of two");
        Self { place, next: first, released: first, tail: first }
    }

    /// Whether there is an entry to copy out, as far as is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next == self.tail
    }

    /// Whether nothing is known to copy out, and the producer's index is what it was.
    #[must_use]
    pub fn looks_empty(&self, words: &[AtomicU64]) -> bool {
        // Relaxed: nothing is read on the strength of it.
        self.is_empty() && words[self.place.tail].load(Ordering::Relaxed) == self.tail
    }

    /// Entries that were copied out, with places that were not given back yet.
    #[must_use]
    pub fn unreleased(&self) -> u64 {
        self.next.wrapping_sub(self.released)
    }

    /// Copy the next entry out, once. Asks the producer's index only when the known entries are
    /// used up.
    ///
    /// # Errors
    /// The claimed index is more than a ring ahead, or went back.
    pub fn pop(&mut self, words: &[AtomicU64]) -> Result<Option<[u64; WORDS]>, IndexFault> {
        if self.is_empty() {
            self.refresh(words)?;
            if self.is_empty() {
                return Ok(None);
            }
        }
        let from = self.place.entry::<WORDS>(words, self.next);
        let entry = core::array::from_fn(|number| from[number].load(Ordering::Relaxed));
        self.next = self.next.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Read how far the producer is.
    ///
    /// # Errors
    /// The claimed index is more than a ring ahead, or went back.
    pub fn refresh(&mut self, words: &[AtomicU64]) -> Result<(), IndexFault> {
        // *entries before tail*: pairs with the Release store in `Producer::publish`. Without it we
        // could copy an entry that is not written yet.
        let claimed = words[self.place.tail].load(Ordering::Acquire);
        // Honest tails go from the last one we saw up to one ring ahead of what was given back (not
        // of what was read).
        let limit = self.released.wrapping_add(self.place.capacity);
        if claimed.wrapping_sub(self.tail) > limit.wrapping_sub(self.tail) {
            let capacity = self.place.capacity;
            return Err(IndexFault { claimed, ours: self.next, capacity });
        }
        self.tail = claimed;
        Ok(())
    }

    /// Give the places of everything copied out back. `false`: there was nothing new.
    pub fn release(&mut self, words: &[AtomicU64]) -> bool {
        if self.released == self.next {
            return false;
        }
        // *copied before head*: pairs with the Acquire load in `Producer::refresh`. Without it the
        // producer could write over an entry that is still being copied out.
        words[self.place.head].store(self.next, Ordering::Release);
        self.released = self.next;
        true
    }
}
