//! The two halves of a queue, without their memory and their doorbells: what the daemon does and
//! what the client does with the words.
//!
//! A queue is two rings, a progress word per slot and two "asleep" flags. [`crate::queue`] puts a
//! half together with mapped memory and doorbells; tests and loom drive the same halves over the
//! heap. No half waits or loops: each call does a bounded amount of work.
//!
//! # Sleeping and waking
//!
//! A side that finds nothing to do says so in its flag before it sleeps, and the other side rings
//! its doorbell only if the flag is set: a busy queue costs no system call. The danger is the lost
//! wake-up, in which the sleeper looks for work just before it is published and the waker looks at
//! the flag just before it is set. Acquire and Release do not exclude that (each side's store may
//! still be in its store buffer while it loads), so both sides put a SeqCst fence between their
//! store and their load, *flag then work* against *work then flag*:
//!
//! ```text
//! sleeper                              waker
//!   store flag = 1                       store index (publish)
//!   fence(SeqCst)  flag then work        fence(SeqCst)  work then flag
//!   load index: work? then stay up       load flag: set? then take it down and ring
//! ```
//!
//! Of two SeqCst fences one is first. If the sleeper's is, the waker sees the flag; if the waker's
//! is, the sleeper sees the work. The waker takes the flag down with a swap, so that of many
//! publishes only the first pays for a ring of the bell. It rings after the swap, so that a sleeper
//! without its flag always has a bell coming.

use core::ops::Range;

use crate::atomic::{AtomicU64, Ordering};
use crate::cursor::{Consumer, IndexFault, Place, Producer};
use crate::flag::{self, NAPPING, Wake, must_wake, say_asleep, say_awake};
use crate::layout::{
    COMPLETION_WORDS, CompletionEntry, CompletionKind, DESCRIPTOR_WORDS, Descriptor, QUEUE_MAGIC,
    QueueLayout, VERSION, word,
};

/// The client broke the rules of its queue: end its session, naming the fault, and count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClientFault {
    /// The submission ring's tail is not possible.
    #[error("submission ring: {0}; the client overwrote the ring or uses another layout")]
    SubmissionIndex(IndexFault),
    /// The completion ring's head is not possible.
    #[error("completion ring: {0}; the client overwrote the ring or uses another layout")]
    CompletionIndex(IndexFault),
}

/// No place for a completion. Cannot happen to a daemon that posts only what
/// [`ServerHalf::take`] made room for: one end per request, and one release if the end said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the completion ring is full: more was posted than the taken requests are owed")]
pub struct CompletionRingFull;

/// The submission ring has no place: flush, reap, then submit again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the submission ring is full; flush and reap completions before submitting more")]
pub struct Full;

/// Why a queue's memory cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The memory is not a queue.
    #[error("the memory does not start like a queue ({0:#x}); is the daemon of another make?")]
    Magic(u64),
    /// The queue has another version.
    #[error("the queue has version {0}, this library has {VERSION}; update the older side")]
    Version(u64),
    /// An impossible number of entries, or more than the memory holds.
    #[error("a queue of {entries} entries does not fit {words} words of memory")]
    Entries {
        /// Entries that the header names.
        entries: u64,
        /// Length of the memory in words.
        words: usize,
    },
}

fn submission_place(layout: QueueLayout) -> Place {
    Place {
        tail: word::SUBMISSION_TAIL,
        head: word::SUBMISSION_HEAD,
        entries: layout.descriptors_start(),
        capacity: u64::from(layout.entries()),
    }
}

fn completion_place(layout: QueueLayout) -> Place {
    Place {
        tail: word::COMPLETION_TAIL,
        head: word::COMPLETION_HEAD,
        entries: layout.completions_start(),
        capacity: u64::from(layout.completions()),
    }
}

/// The daemon's half: takes descriptors, posts completions. The other side is hostile.
#[derive(Debug)]
pub struct ServerHalf {
    layout: QueueLayout,
    submissions: Consumer<DESCRIPTOR_WORDS>,
    completions: Producer<COMPLETION_WORDS>,
    /// Requests taken with an end that was not posted: each may still need two completions.
    outstanding: u64,
    /// Requests with an end that said "buffer held" and a release that was not posted: one
    /// completion each.
    held: u64,
    /// The last `take` left requests lying that would fit if the client had reaped.
    stalled: bool,
}

impl ServerHalf {
    /// Write a queue's header into zeroed memory; both rings start empty at index `first`.
    ///
    /// # Panics
    /// If the memory is shorter than the layout.
    #[must_use]
    pub fn create(layout: QueueLayout, words: &[AtomicU64], first: u64) -> Self {
        assert!(words.len() >= layout.words(), "the memory holds the layout it was made for");
        for (place, value) in [
            (word::MAGIC, QUEUE_MAGIC),
            (word::VERSION, u64::from(VERSION)),
            (word::ENTRIES, u64::from(layout.entries())),
            (word::SUBMISSION_TAIL, first),
            (word::SUBMISSION_HEAD, first),
            (word::COMPLETION_TAIL, first),
            (word::COMPLETION_HEAD, first),
        ] {
            // Relaxed: the client gets the memory over a socket, which orders all of this.
            words[place].store(value, Ordering::Relaxed);
        }
        Self {
            layout,
            submissions: Consumer::new(submission_place(layout), first),
            completions: Producer::new(completion_place(layout), first),
            outstanding: 0,
            held: 0,
            stalled: false,
        }
    }

    /// The layout of the queue.
    #[must_use]
    pub fn layout(&self) -> QueueLayout {
        self.layout
    }

    /// Requests taken with an end that was not posted yet.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Whether the last [`Self::take`] gave nothing because the client does not reap.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Whether there is no descriptor to take, at one look.
    #[must_use]
    pub fn looks_empty(&self, words: &[AtomicU64]) -> bool {
        self.submissions.looks_empty(words)
    }

    /// Copy the next descriptor out. `None` if there is none, or if its completions might not find
    /// room: a client that does not reap waits for itself.
    ///
    /// # Errors
    /// The client's indices are impossible.
    pub fn take(&mut self, words: &[AtomicU64]) -> Result<Option<Descriptor>, ClientFault> {
        self.stalled = false;
        if !self.has_room(words)? {
            self.submissions.refresh(words).map_err(ClientFault::SubmissionIndex)?;
            // With all that was posted reaped there would be room: it is not for what is under way.
            self.stalled = !self.submissions.is_empty() && self.fits(0);
            return Ok(None);
        }
        let entry = self.submissions.pop(words).map_err(ClientFault::SubmissionIndex)?;
        if entry.is_some() {
            self.outstanding += 1;
        }
        Ok(entry.map(Descriptor::from_words))
    }

    /// Write a completion; the client sees it after [`Self::publish`]. Whatever the client does,
    /// there is room for all that taken requests are owed.
    ///
    /// # Errors
    /// The ring is full: the caller posted more than that.
    pub fn post(
        &mut self,
        words: &[AtomicU64],
        entry: CompletionEntry,
    ) -> Result<(), CompletionRingFull> {
        // No look at the client's index: the room was reserved when the request was taken.
        if !self.completions.push(words, entry.to_words()) {
            return Err(CompletionRingFull);
        }
        // Saturating: a caller that posts more than it owes is told by the full ring, not by a
        // count that wrapped.
        match CompletionKind::from_u8(entry.kind) {
            Some(CompletionKind::Released) => self.held = self.held.saturating_sub(1),
            Some(CompletionKind::FinishedHeld) => {
                self.outstanding = self.outstanding.saturating_sub(1);
                self.held += 1;
            }
            Some(CompletionKind::Finished) | None => {
                self.outstanding = self.outstanding.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// Say how many bytes from a request's start are in place. A slot out of range is nothing.
    pub fn set_progress(&self, words: &[AtomicU64], slot: u32, bytes: u64) {
        if let Some(place) = self.layout.progress(slot) {
            // *bytes before watermark*: pairs with the Acquire load in `ClientHalf::progress`.
            // Without it a client could see the watermark before bytes that we copied.
            words[place].store(bytes, Ordering::Release);
        }
    }

    /// Say which bytes beyond these are in place: the first that are, without a gap, from the
    /// request's start. A slot out of range is nothing.
    pub fn set_landed(&self, words: &[AtomicU64], slot: u32, landed: Range<u64>) {
        if let Some(place) = self.layout.progress(slot) {
            let half = |offset: u64| offset.min(u32::MAX.into());
            let word = half(landed.start) << 32 | half(landed.end);
            // As for the watermark.
            words[place + 1].store(word, Ordering::Release);
        }
    }

    /// Let the client see what was posted and that places are free, and say how to wake it.
    pub fn publish(&mut self, words: &[AtomicU64]) -> Wake {
        // Free places alone wake nobody: a client that waits for a place has requests in the ring,
        // and their completions will.
        self.submissions.release(words);
        match self.completions.publish(words) {
            true => must_wake(words, word::CLIENT_ASLEEP),
            false => Wake::Nobody,
        }
    }

    /// The client's flag, on which it sleeps if it naps.
    #[cfg(not(loom))]
    pub(crate) fn client_flag<'a>(&self, words: &'a [AtomicU64]) -> &'a AtomicU64 {
        &words[word::CLIENT_ASLEEP]
    }

    /// Publish, then say that the daemon is about to sleep. The second value is `false` if there is
    /// something to take after all (or a fault to be reported): do not sleep. The first is that of
    /// [`Self::publish`].
    pub fn prepare_sleep(&mut self, words: &[AtomicU64]) -> (Wake, bool) {
        let ring = self.publish(words);
        say_asleep(words, word::DAEMON_ASLEEP);
        let may_sleep = self.looks_idle(words).unwrap_or(false);
        if !may_sleep {
            say_awake(words, word::DAEMON_ASLEEP);
        }
        (ring, may_sleep)
    }

    /// Say that the daemon is up again.
    pub fn finish_sleep(&mut self, words: &[AtomicU64]) {
        say_awake(words, word::DAEMON_ASLEEP);
    }

    /// Whether [`Self::take`] would find nothing, by what the client says now.
    fn looks_idle(&mut self, words: &[AtomicU64]) -> Result<bool, ClientFault> {
        self.submissions.refresh(words).map_err(ClientFault::SubmissionIndex)?;
        Ok(self.submissions.is_empty() || !self.has_room(words)?)
    }

    /// Whether one more request's completions fit, whatever the requests under way will need.
    fn has_room(&mut self, words: &[AtomicU64]) -> Result<bool, ClientFault> {
        if self.fits(self.completions.used()) {
            return Ok(true);
        }
        self.completions.refresh(words).map_err(ClientFault::CompletionIndex)?;
        Ok(self.fits(self.completions.used()))
    }

    /// Whether one more request's completions fit beside so many that were not reaped.
    fn fits(&self, unreaped: u64) -> bool {
        let owed = 2 * self.outstanding + self.held;
        unreaped + owed + 2 <= u64::from(self.layout.completions())
    }
}

/// The client's half: submits descriptors, reaps completions. The daemon is trusted to be honest,
/// not to be of the same version or alive, so its indices are checked too.
#[derive(Debug)]
pub struct ClientHalf {
    layout: QueueLayout,
    submissions: Producer<DESCRIPTOR_WORDS>,
    completions: Consumer<COMPLETION_WORDS>,
    fault: Option<IndexFault>,
}

impl ClientHalf {
    /// Join a queue that the daemon made.
    ///
    /// # Errors
    /// The memory is not a queue of this version.
    pub fn attach(words: &[AtomicU64]) -> Result<Self, HeaderFault> {
        let read = |place: usize| words.get(place).map_or(0, |word| word.load(Ordering::Relaxed));
        if read(word::MAGIC) != QUEUE_MAGIC {
            return Err(HeaderFault::Magic(read(word::MAGIC)));
        }
        if read(word::VERSION) != u64::from(VERSION) {
            return Err(HeaderFault::Version(read(word::VERSION)));
        }
        let entries = read(word::ENTRIES);
        let layout = u32::try_from(entries)
            .ok()
            .and_then(QueueLayout::new)
            .filter(|layout| layout.words() <= words.len())
            .ok_or(HeaderFault::Entries { entries, words: words.len() })?;
        Ok(Self {
            layout,
            submissions: Producer::new(submission_place(layout), read(word::SUBMISSION_TAIL)),
            completions: Consumer::new(completion_place(layout), read(word::COMPLETION_HEAD)),
            fault: None,
        })
    }

    /// The layout of the queue.
    #[must_use]
    pub fn layout(&self) -> QueueLayout {
        self.layout
    }

    /// Write a descriptor and clear its progress word; the daemon sees it after [`Self::flush`].
    ///
    /// # Errors
    /// The ring is full.
    pub fn submit(&mut self, words: &[AtomicU64], descriptor: Descriptor) -> Result<(), Full> {
        if self.submissions.used() >= u64::from(self.layout.entries()) {
            self.submissions.refresh(words).unwrap_or_else(|fault| self.fault = Some(fault));
        }
        if !self.submissions.push(words, descriptor.to_words()) {
            return Err(Full);
        }
        if let Some(place) = self.layout.progress(descriptor.slot) {
            // Relaxed: *entries before tail* orders them before the daemon's first use.
            words[place].store(0, Ordering::Relaxed);
            words[place + 1].store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Let the daemon see what was submitted and reaped. `true`: ring its bell.
    #[must_use]
    pub fn flush(&mut self, words: &[AtomicU64]) -> bool {
        let reaped = self.completions.release(words);
        let submitted = self.submissions.publish(words);
        // Room alone matters only to a daemon that left descriptors lying for want of it.
        (submitted || (reaped && self.has_waiting(words)))
            && must_wake(words, word::DAEMON_ASLEEP) != Wake::Nobody
    }

    /// Copy the next completion out. The second value is `true` if the daemon's bell must be rung:
    /// it waited for room that was just given back.
    #[must_use]
    pub fn reap(&mut self, words: &[AtomicU64]) -> (Option<CompletionEntry>, bool) {
        let entry = self.completions.pop(words).unwrap_or_else(|fault| {
            self.fault = Some(fault);
            None
        });
        // Room is told with the next flush, and here often enough that a client which only polls
        // never keeps back so much that the daemon waits for it: with less than half a submission
        // ring kept back and nothing under way, a request always fits.
        let due = self.completions.unreleased() >= u64::from(self.layout.entries()).div_ceil(2);
        let ring = entry.is_some()
            && due
            && self.completions.release(words)
            && self.has_waiting(words)
            && must_wake(words, word::DAEMON_ASLEEP) != Wake::Nobody;
        (entry.map(CompletionEntry::from_words), ring)
    }

    /// Contiguous bytes in place from the start of the request in that slot. 0 for no such slot.
    #[must_use]
    pub fn progress(&self, words: &[AtomicU64], slot: u32) -> u64 {
        // *bytes before watermark*: pairs with the Release store in `ServerHalf::set_progress`.
        self.layout.progress(slot).map_or(0, |place| words[place].load(Ordering::Acquire))
    }

    /// The first bytes beyond these that are in place, from the request's start; none for no such
    /// slot. They may have been reached by the others since.
    #[must_use]
    pub fn landed(&self, words: &[AtomicU64], slot: u32) -> Range<u64> {
        let place = self.layout.progress(slot);
        let word = place.map_or(0, |place| words[place + 1].load(Ordering::Acquire));
        word >> 32..word & u64::from(u32::MAX)
    }

    /// Flush, then say that the client is about to sleep. The second value is `false` if a
    /// completion is there after all: do not sleep. The first is that of [`Self::flush`].
    #[must_use]
    pub fn prepare_sleep(&mut self, words: &[AtomicU64]) -> (bool, bool) {
        let ring = self.flush(words);
        flag::client_asleep(words);
        self.completions.refresh(words).unwrap_or_else(|fault| self.fault = Some(fault));
        let may_sleep = self.completions.is_empty() && self.fault.is_none();
        if !may_sleep {
            flag::client_awake(words);
        }
        (ring, may_sleep)
    }

    /// After [`Self::prepare_sleep`]: say that the client sleeps on its flag from now on; the flag,
    /// and its value as long as nobody wakes the client. `None`: the daemon has rung the bell
    /// already.
    pub fn begin_nap<'a>(&self, words: &'a [AtomicU64]) -> Option<(&'a AtomicU64, u64)> {
        flag::begin_nap(words).then_some((&words[word::CLIENT_ASLEEP], NAPPING))
    }

    /// Say that the client waits for its bell again. `false`: the daemon has taken the flag down,
    /// and rings no bell.
    pub fn end_nap(&self, words: &[AtomicU64]) -> bool {
        flag::end_nap(words)
    }

    /// Say that the client is up again.
    pub fn finish_sleep(&mut self, words: &[AtomicU64]) {
        flag::client_awake(words);
    }

    /// The daemon's first action that it cannot have meant, if there was one: the queue is then of
    /// no more use.
    #[must_use]
    pub fn fault(&self) -> Option<IndexFault> {
        self.fault
    }

    /// Whether descriptors are published that the daemon did not take, by what it says now.
    fn has_waiting(&mut self, words: &[AtomicU64]) -> bool {
        self.submissions.refresh(words).unwrap_or_else(|fault| self.fault = Some(fault));
        !self.submissions.is_drained()
    }
}
