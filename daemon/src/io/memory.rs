//! Segments: shared memory by name, registered bit by bit, unmapped after the last operation.
//!
//! Registering pins pages, some tens of nanoseconds each, on the shard's own thread (a
//! `SINGLE_ISSUER` ring takes registrations from nobody else). So a segment is usable at once,
//! unregistered, and [`Memory::register_some`] pins at most [`REGISTRATION_BYTES_PER_TURN`] a turn. One segment is one place in the kernel's table; cut arenas accordingly.
//!
//! What can go wrong is not fatal: pinned memory counts against RLIMIT_MEMLOCK per user id, so a
//! registration may fail at any time because of somebody else. The segment then stays as it is,
//! and every operation on it pins its own pages.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use io_uring::Submitter;
use piped_engine::io::Span;
use piped_ring::Segment;

use super::UringError;
use super::counters::UringCounters;
use super::slots::{Slots, index_of};

/// The most bytes registered in one turn, in bytes, unless a single segment is larger: that one is
/// registered alone. Segments of at most this size keep a newcomer from stalling the others.
pub const REGISTRATION_BYTES_PER_TURN: u64 = 16 << 20;

/// The kernel's limit for one registered buffer, in bytes.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

/// The kernel's limit for the table of registered buffers.
const BUFFERS_MAX: u32 = 1 << 14;

/// `-EFAULT`: a span that does not lie in a segment of ours.
pub(super) const BAD_SPAN: i32 = -libc::EFAULT;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Registration {
    /// Every operation pins its own pages.
    Without,
    /// Its turn will come.
    Waiting,
    /// In the kernel's table, at the segment's index.
    Registered,
}

#[derive(Debug)]
struct Entry {
    segment: Arc<Segment>,
    registration: Registration,
    /// Spans lent to operations.
    loans: u32,
    released: bool,
}

/// Memory lent to an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loan {
    pub(super) address: *mut u8,
    pub(super) length: u32,
    /// The place in the table of registered buffers.
    pub(super) buffer: Option<u16>,
}

/// Where segments go whose last use is over.
pub(super) type Undertaker = Box<dyn FnMut(Arc<Segment>)>;

/// All segments of a shard.
pub(super) struct Memory {
    slots: Slots<Entry>,
    /// Segments whose registration waits; stale ids are skipped, so it holds at most one per place.
    waiting: VecDeque<u32>,
    has_table: bool,
    /// Why buffers are not registered, if they are not.
    pub(super) degraded: Option<String>,
    /// Unmapping takes ten times as long as registering; somebody else may do it.
    pub(super) undertaker: Option<Undertaker>,
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
    /// No segment. `wanted`: register buffers; the kernel's refusal is left in `degraded`.
    pub(super) fn new(capacity: u32, wanted: bool, submitter: &Submitter<'_>) -> Self {
        let slots = Slots::new(capacity.min(BUFFERS_MAX));
        let mut degraded = None;
        let has_table = wanted && {
            let capacity = slots.capacity();
            let made =
                submitter.register_buffers_sparse(capacity).or_else(|_| holes(submitter, capacity));
            if let Err(error) = &made {
                degraded = Some(format!(
                    "registered_buffers: the kernel refuses a table of {capacity} ({error})"
                ));
            }
            made.is_ok()
        };
        let waiting = VecDeque::with_capacity(slots.capacity() as usize);
        Self { slots, waiting, has_table, degraded, undertaker: None }
    }

    pub(super) fn has_table(&self) -> bool {
        self.has_table
    }

    pub(super) fn count(&self) -> u32 {
        self.slots.count()
    }

    /// Take a segment over. It can be used at once.
    pub(super) fn add(&mut self, segment: Arc<Segment>) -> Result<u32, UringError> {
        let bytes = segment.len();
        let registration = if !self.has_table {
            Registration::Without
        } else if bytes > BUFFER_BYTES_MAX {
            self.degraded = Some(format!(
                "registered_buffers: a segment of {} MiB is more than the 1024 MiB one registered \
                 buffer may have; its file operations pin their own pages",
                bytes >> 20
            ));
            Registration::Without
        } else {
            Registration::Waiting
        };
        let entry = Entry { segment, registration, loans: 0, released: false };
        let id = self
            .slots
            .insert(entry)
            .map_err(|_| UringError::Full { what: "segments", capacity: self.slots.capacity() })?;
        if registration == Registration::Waiting {
            if self.waiting.len() == self.slots.capacity() as usize {
                self.waiting.retain(|id| self.slots.get(*id).is_some());
            }
            self.waiting.push_back(id);
        }
        Ok(id)
    }

    /// Register waiting segments of `budget` bytes together, or one that is larger. `true`: there
    /// is more for the next turn.
    pub(super) fn register_some(
        &mut self,
        budget: u64,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) -> bool {
        let mut spent = 0;
        while let Some(&id) = self.waiting.front() {
            let Some(entry) = self.slots.get_mut(id).filter(|entry| !entry.released) else {
                self.waiting.pop_front();
                continue;
            };
            let bytes = entry.segment.len();
            if spent > 0 && spent + bytes > budget {
                return true;
            }
            spent += bytes;
            self.waiting.pop_front();
            counters.other_syscalls += 1;
            match register(submitter, index_of(id), &entry.segment) {
                Ok(()) => {
                    entry.registration = Registration::Registered;
                    counters.registered_bytes += bytes;
                }
                Err(error) => {
                    entry.registration = Registration::Without;
                    counters.registrations_failed += 1;
                    self.degraded = Some(refusal(&error, bytes, counters.registered_bytes));
                }
            }
        }
        false
    }

    /// Lend a span to an operation; pairs with [`Memory::give_back`].
    pub(super) fn lend(&mut self, span: Span) -> Result<Loan, i32> {
        let id = span.segment.0;
        let entry = self.slots.get_mut(id).filter(|entry| !entry.released).ok_or(BAD_SPAN)?;
        let offset = within(&entry.segment, span).ok_or(BAD_SPAN)?;
        entry.loans += 1;
        Ok(Loan {
            address: entry.segment.as_ptr().wrapping_add(offset),
            length: span.length,
            buffer: match entry.registration {
                // The table has at most 2^14 places.
                Registration::Registered => Some(index_of(id) as u16),
                Registration::Without | Registration::Waiting => None,
            },
        })
    }

    /// A span came back.
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

    /// The engine needs it no longer. `false`: the id names nothing.
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

    /// A span's segment, for the processor's own accesses (which check the bounds).
    pub(super) fn segment(&self, span: Span) -> Option<&Segment> {
        self.slots.get(span.segment.0).map(|entry| &*entry.segment)
    }

    /// Keep the memory of segments still lent for ever: the kernel has not come back with them.
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
        if entry.registration == Registration::Registered {
            counters.other_syscalls += 1;
            counters.registered_bytes -= entry.segment.len();
            // Within the table it cannot fail. If it did, the pages would stay pinned until the
            // next tenant's update; the kernel holds pages and not addresses, so that is safe.
            let _ = unregister(submitter, index_of(id));
        }
        if let Some(undertaker) = &mut self.undertaker {
            undertaker(entry.segment);
        }
    }
}

/// The span's offset if the span lies in the segment.
fn within(segment: &Segment, span: Span) -> Option<usize> {
    let end = span.offset.checked_add(u64::from(span.length))?;
    if end <= segment.len() { usize::try_from(span.offset).ok() } else { None }
}

fn register(submitter: &Submitter<'_>, place: u32, segment: &Segment) -> std::io::Result<()> {
    let iovec = libc::iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() as usize };
    // SAFETY: the memory is the segment's whole mapping, which lives as long as its `Arc`. The
    // table's entry holds that `Arc` until `free` has taken the buffer out of the kernel's table;
    // besides, the kernel pins the pages themselves and not the address range.
    unsafe { submitter.register_buffers_update(place, &[iovec], None) }
}

fn unregister(submitter: &Submitter<'_>, place: u32) -> std::io::Result<()> {
    let hole = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    // SAFETY: an empty vector names no memory.
    unsafe { submitter.register_buffers_update(place, &[hole], None) }
}

/// A table of holes, for kernels that have the table but not its sparse form.
fn holes(submitter: &Submitter<'_>, count: u32) -> std::io::Result<()> {
    let hole = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    // SAFETY: empty vectors name no memory.
    unsafe { submitter.register_buffers(&vec![hole; count as usize]) }
}

/// Why a segment could not be registered, and what to do about it.
fn refusal(error: &std::io::Error, bytes: u64, registered_bytes: u64) -> String {
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
