//! Segments: shared memory by name, registered bit by bit, unmapped after the last operation.
//!
//! Registering pins pages, some tens of nanoseconds each, on the shard's own thread (a
//! `SINGLE_ISSUER` ring takes registrations from nobody else). So a segment is usable at once,
//! unregistered, and [`Memory::register_some`] pins at most [`REGISTRATION_BYTES_PER_TURN`] a turn,
//! and unpins as many of those that are over.
//!
//! [`REGISTRATION_BYTES_PER_TURN`]: super::REGISTRATION_BYTES_PER_TURN
//!
//! A failed registration is not fatal: pinned memory counts against RLIMIT_MEMLOCK by user id, so
//! another process can make it fail at any time. The segment then stays as it is, and every
//! operation on it pins its own pages.

use std::collections::VecDeque;
use std::sync::Arc;

use io_uring::Submitter;
use piped_core::ids::SegmentId;
use piped_core::io::Span;
use piped_ring::Segment;

use super::UringError;
use super::counters::UringCounters;
use super::registration::{Pieces, REGISTRATION_BYTES_PER_TURN, Refused, Registry};
use super::slots::Slots;

/// `-EFAULT`: the span does not lie in a segment.
pub(super) const BAD_SPAN: i32 = -libc::EFAULT;

#[derive(Debug)]
struct Entry {
    segment: Arc<Segment>,
    /// Pieces registered so far; operations elsewhere pin their own pages.
    pieces: Pieces,
    /// Spans lent to operations.
    loans: u32,
    released: bool,
    /// Whether the engine is told that some of the memory has vanished.
    torn_told: bool,
}

/// Memory lent to an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loan {
    pub(super) address: *mut u8,
    pub(super) length: u32,
    /// Index in the table of registered buffers.
    pub(super) buffer: Option<u16>,
}

/// Takes segments over after their last use.
pub(super) type Undertaker = Box<dyn FnMut(Arc<Segment>)>;

/// All segments of a shard.
pub(crate) struct Memory {
    slots: Slots<Entry>,
    /// Segments that wait for registration, at most one per place; stale ids are skipped.
    waiting: VecDeque<u32>,
    /// Segments without users, while their pieces are taken out of the table.
    leaving: VecDeque<(Arc<Segment>, Pieces)>,
    /// Bytes that may still be taken out in this turn.
    left: u64,
    /// Segments of which the engine is to be told that some of their memory has vanished.
    torn: Vec<u32>,
    registry: Option<Registry>,
    /// Reason why buffers are not registered, if they are not.
    pub(super) degraded: Option<String>,
    /// Unmapping takes ten times as long as registering, so another thread may do it.
    pub(super) undertaker: Option<Undertaker>,
}

/// Makes zeros of a range, as far as it is there.
pub(super) fn clear(segment: &Segment, offset: u64, length: u64) {
    let zeros = [0; 4096];
    for start in (0..length).step_by(zeros.len()) {
        let part = (length - start).min(zeros.len() as u64) as usize;
        // Without it there is nothing to be seen.
        let _ = segment.store(offset + start, &zeros[..part]);
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("slots", &self.slots)
            .field("waiting", &self.waiting)
            .field("degraded", &self.degraded)
            .finish_non_exhaustive()
    }
}

impl Memory {
    /// Empty table. `wanted` registers buffers; the kernel's refusal is left in `degraded`.
    pub(super) fn new(capacity: u32, wanted: bool, submitter: &Submitter<'_>) -> Self {
        let slots = Slots::new(capacity);
        let mut degraded = None;
        let mut registry = None;
        if wanted {
            match Registry::new(slots.capacity(), submitter) {
                Ok(made) => registry = Some(made),
                Err((places, error)) => {
                    degraded = Some(format!(
                        "registered_buffers: the kernel refuses a table of {places} ({error})"
                    ));
                }
            }
        }
        let waiting = VecDeque::with_capacity(slots.capacity() as usize);
        let leaving = VecDeque::with_capacity(slots.capacity() as usize);
        Self {
            slots,
            waiting,
            leaving,
            left: REGISTRATION_BYTES_PER_TURN,
            torn: Vec::new(),
            registry,
            degraded,
            undertaker: None,
        }
    }

    pub(super) fn has_table(&self) -> bool {
        self.registry.is_some()
    }

    pub(super) fn count(&self) -> u32 {
        self.slots.count()
    }

    /// Takes a segment over, which can be used at once.
    pub(super) fn add(&mut self, segment: Arc<Segment>) -> Result<u32, UringError> {
        // What the kernel has pinned stays when the file is cut: nobody would see what lands there.
        let pinned = self.registry.is_some() && !segment.is_loose();
        self.enter(segment, pinned)
    }

    /// Takes a segment over that another shard lends for a message: nothing of it is registered,
    /// because only sockets and copies touch it. Pairs with [`Memory::end_borrow`].
    pub(crate) fn borrow(&mut self, segment: Arc<Segment>) -> Option<SegmentId> {
        self.enter(segment, false).ok().map(SegmentId)
    }

    /// Forgets a borrowed segment. Its lender still has it, so nothing is unmapped here.
    pub(crate) fn end_borrow(&mut self, SegmentId(id): SegmentId) {
        let idle = self.slots.get(id).is_some_and(|entry| entry.loans == 0);
        debug_assert!(idle, "what is given back is not in use");
        if idle {
            self.slots.remove(id);
        }
    }

    /// Whether there is room for one more segment.
    pub(crate) fn has_room(&self) -> bool {
        self.slots.count() < self.slots.capacity()
    }

    fn enter(&mut self, segment: Arc<Segment>, pinned: bool) -> Result<u32, UringError> {
        let pieces = Pieces::default();
        let entry = Entry { segment, pieces, loans: 0, released: false, torn_told: false };
        let id = self
            .slots
            .insert(entry)
            .map_err(|_| UringError::Full { what: "segments", capacity: self.slots.capacity() })?;
        if pinned {
            if self.waiting.len() == self.slots.capacity() as usize {
                self.waiting.retain(|id| self.slots.get(*id).is_some());
            }
            self.waiting.push_back(id);
        }
        Ok(id)
    }

    /// Registers pieces of waiting segments, `budget` bytes at most, and takes as many of leaving
    /// ones out. `true` means that there is more for the next turn.
    pub(super) fn register_some(
        &mut self,
        budget: u64,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) -> bool {
        self.left = budget;
        if self.waiting.is_empty() && self.leaving.is_empty() {
            return false;
        }
        self.unregister_some(submitter, counters);
        let Some(registry) = &mut self.registry else { return false };
        let mut spent = 0;
        while let Some(&id) = self.waiting.front() {
            let Some(entry) = self.slots.get_mut(id).filter(|entry| !entry.released) else {
                self.waiting.pop_front();
                continue;
            };
            let bytes = entry.pieces.next_bytes(&entry.segment);
            if spent > 0 && spent + bytes > budget {
                return true;
            }
            spent += bytes;
            counters.other_syscalls += 1;
            match registry.add(&entry.segment, &mut entry.pieces, submitter) {
                Ok(bytes) => {
                    counters.registered_bytes += bytes;
                    if entry.pieces.cover(&entry.segment) {
                        self.waiting.pop_front();
                    }
                }
                Err(refused) => {
                    self.waiting.pop_front();
                    counters.registrations_failed += 1;
                    let bytes = entry.segment.len();
                    self.degraded = Some(refusal(&refused, bytes, counters.registered_bytes));
                }
            }
        }
        !self.leaving.is_empty()
    }

    fn unregister_some(&mut self, submitter: &Submitter<'_>, counters: &mut UringCounters) {
        while self.left > 0
            && let Some((segment, pieces)) = self.leaving.front_mut()
            && let Some(registry) = &mut self.registry
        {
            counters.other_syscalls += 1;
            let bytes = registry.remove(segment, pieces, submitter);
            counters.registered_bytes -= bytes;
            self.left = self.left.saturating_sub(bytes);
            if pieces.is_empty()
                && let Some((segment, _)) = self.leaving.pop_front()
                && let Some(undertaker) = &mut self.undertaker
            {
                undertaker(segment);
            }
        }
    }

    /// Lends a span to an operation; pairs with [`Memory::give_back`].
    pub(super) fn lend(&mut self, span: Span) -> Result<Loan, i32> {
        let id = span.segment.0;
        let entry = self.slots.get_mut(id).filter(|entry| !entry.released).ok_or(BAD_SPAN)?;
        let offset = within(&entry.segment, span).ok_or(BAD_SPAN)?;
        entry.loans += 1;
        Ok(Loan {
            address: entry.segment.as_ptr().wrapping_add(offset),
            length: span.length,
            buffer: entry.pieces.of(span.offset, span.length),
        })
    }

    /// Takes a lent span back.
    pub(super) fn give_back(
        &mut self,
        id: u32,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) {
        let Some(entry) = self.slots.get_mut(id) else { return };
        entry.loans -= 1;
        if entry.released && entry.loans == 0 {
            self.free(id, submitter, counters);
        }
    }

    /// Releases a segment that the engine no longer needs. `false` if the id names nothing.
    pub(super) fn release(
        &mut self,
        id: u32,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) -> bool {
        let Some(entry) = self.slots.get_mut(id).filter(|entry| !entry.released) else {
            return false;
        };
        entry.released = true;
        if entry.loans == 0 {
            self.free(id, submitter, counters);
        }
        true
    }

    /// Notes that an access has found memory of a segment gone, if that is the segment's fault.
    pub(super) fn note_torn(&mut self, id: u32) -> bool {
        let Some(entry) = self.slots.get_mut(id).filter(|entry| entry.segment.is_torn()) else {
            return false;
        };
        if !std::mem::replace(&mut entry.torn_told, true) {
            self.torn.push(id);
        }
        true
    }

    /// Whether memory of a segment can vanish.
    pub(super) fn is_loose(&self, id: u32) -> bool {
        self.slots.get(id).is_some_and(|entry| entry.segment.is_loose())
    }

    /// Whether an access has found that memory of a segment is gone.
    pub(super) fn is_torn(&self, id: u32) -> bool {
        self.slots.get(id).is_some_and(|entry| entry.segment.is_torn())
    }

    /// A segment of which some memory has vanished; each is told once.
    pub(super) fn take_torn(&mut self) -> Option<u32> {
        self.torn.pop()
    }

    /// Segment of a span, for the processor's own accesses (which check the bounds).
    pub(super) fn segment(&self, span: Span) -> Option<&Segment> {
        self.slots.get(span.segment.0).map(|entry| &*entry.segment)
    }

    /// Segment by its name, to be lent to another shard.
    pub(crate) fn whole(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.slots.get(id.0).map(|entry| Arc::clone(&entry.segment))
    }

    /// Whole segment of a span, to be kept beyond its operation.
    pub(super) fn keep(&self, span: Span) -> Option<Arc<Segment>> {
        self.slots.get(span.segment.0).map(|entry| Arc::clone(&entry.segment))
    }

    /// Leaks the memory of segments still lent, because the kernel has not given them back.
    pub(super) fn leak_lent(&mut self) -> u32 {
        let ids: Vec<u32> = self.slots.ids().collect();
        let mut leaked = 0;
        for id in ids {
            if let Some(entry) = self.slots.get(id)
                && entry.loans > 0
            {
                std::mem::forget(Arc::clone(&entry.segment));
                leaked += 1;
            }
        }
        leaked
    }

    fn free(&mut self, id: u32, submitter: &Submitter<'_>, counters: &mut UringCounters) {
        let Some(entry) = self.slots.remove(id) else { return };
        if !entry.pieces.is_empty() {
            self.leaving.push_back((entry.segment, entry.pieces));
            self.unregister_some(submitter, counters);
        } else if let Some(undertaker) = &mut self.undertaker {
            undertaker(entry.segment);
        }
    }
}

/// Offset of the span, if it lies in the segment.
fn within(segment: &Segment, span: Span) -> Option<usize> {
    let end = span.offset.checked_add(u64::from(span.length))?;
    if end <= segment.len() { usize::try_from(span.offset).ok() } else { None }
}

/// Reason why a segment could not be registered, with advice.
fn refusal(refused: &Refused, bytes: u64, registered_bytes: u64) -> String {
    let error = match refused {
        Refused::Kernel(error) => error,
        Refused::Full => {
            return format!(
                "registered_buffers: the table is full; file operations on the rest of a segment \
                 of {} MiB pin their own pages",
                bytes >> 20
            );
        }
    };
    let needed = (bytes + registered_bytes) >> 20;
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return format!(
            "registered_buffers: the kernel refused a segment of {} MiB ({error}); its file \
             operations pin their own pages",
            bytes >> 20
        );
    }
    let limit = match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        Some(limit) => format!("{} KiB", limit >> 10),
        None => "unlimited (so memory itself is short)".to_owned(),
    };
    format!(
        "registered_buffers: RLIMIT_MEMLOCK is {limit}, this shard needs {needed} MiB, and all \
         processes of the user share the limit; raise LimitMEMLOCK= in the unit. File operations \
         on the rest pin their own pages"
    )
}
