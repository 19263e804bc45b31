//! The sending side of a lane: a bounded queue of frames, put on the wire in batches.
//!
//! A batch is one send operation: headers from scratch memory, payloads from where they lie. Small
//! frames are the rule on a busy latency lane, so a payload that was pushed by value follows its
//! header in scratch, and neighbours in memory share a span: a batch of control frames is one span.
//!
//! A checksum is computed when its frame enters a batch, not when it is pushed: by then the payload
//! is about to be read by the kernel anyway, and memory that a client rewrites in between is the
//! client's loss, which the other side's checksum shows. A frame that has begun is never sealed
//! again, so a short send continues with the very same bytes.

use std::collections::VecDeque;

use piped_model::units::Nanos;

use crate::io::{Io, Span, Spans};
use crate::wire::frame::{Frame, Message, OPEN_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::wire::seal::{Body, Checked, Plain, Seal, WIRE_HEADER_BYTES_MAX};

/// A batch takes further frames while it stays below this many bytes; its first frame always fits.
/// About 40 us of a 100 Gbit/s link: a latency frame pushed meanwhile does not wait longer for it.
pub const BATCH_BYTES_MAX: u64 = 512 * 1024;

/// The longest payload that can be pushed by value, in bytes.
pub const INLINE_BYTES_MAX: usize = OPEN_BYTES_MAX as usize;

/// Payload bytes pushed by value and not yet batched, in bytes.
const INLINE_QUEUE_BYTES: usize = 16 * 1024;

const _: () = assert!(INLINE_BYTES_MAX <= INLINE_QUEUE_BYTES);

/// Whom to tell when a frame's bytes are in the kernel. The value is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

impl Owner {
    /// Nobody waits for the frame.
    pub const NONE: Self = Self(u64::MAX);
}

/// The queue has no room now; push again after a send has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lane's send queue is full; push again after a send has ended")]
pub struct Full;

/// The sending side of a lane.
///
/// In: [`Sender::push`], [`Sender::push_inline`], [`Sender::handle_sent`]. Out:
/// [`Sender::poll_send`], [`Sender::poll_sent`]. One send is in flight at most: post what
/// `poll_send` returns, hand the result to `handle_sent` (0 for a failed send), take the owners from
/// `poll_sent`, repeat. After [`Sender::drain`] the sender is as new, for the next epoch.
#[derive(Debug)]
pub struct Sender<S: Seal = Plain> {
    seal: S,
    scratch: Span,
    capacity: usize,
    /// Frames not fully sent, in order; the first `batch.frames` are in the batch.
    queue: VecDeque<Entry>,
    /// Payloads pushed by value of the frames behind the batch, one after the other.
    inline: VecDeque<u8>,
    /// Owners to be told.
    sent: VecDeque<Owner>,
    batch: Batch,
    in_flight: bool,
    queued_bytes: u64,
    frames_sent: u64,
    /// Frames ever pushed: a frame's number is how many came before it.
    pushed: u64,
    /// Frames before this number were looked at by [`Sender::hold_next`].
    looked_at: u64,
    checked: Checked,
    /// Frames at the front of the queue that entered the batch and were not taken from
    /// [`Sender::take_gathered`].
    gathered: usize,
}

/// A frame waiting.
#[derive(Debug, Clone, Copy)]
struct Entry {
    owner: Owner,
    epoch: u32,
    message: Message,
    payload: Payload,
    /// It may not leave yet, nor what is behind it.
    held: bool,
    checked: Option<(Nanos, Nanos)>,
}

/// A frame that has entered the batch at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Whose it is.
    pub owner: Owner,
    /// What it says.
    pub message: Message,
    /// Its payload, in bytes.
    pub payload: u32,
    /// When its checksum was begun and done, if that was timed.
    pub checked: Option<(Nanos, Nanos)>,
}

#[derive(Debug, Clone, Copy)]
enum Payload {
    /// `length` bytes at the front of `Sender::inline` when the frame's turn comes.
    Inline {
        length: u32,
    },
    Memory(Span),
}

impl Payload {
    fn length(self) -> u32 {
        match self {
            Self::Inline { length } => length,
            Self::Memory(span) => span.length,
        }
    }
}

/// The frames given to the kernel as one run of bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    spans: Spans,
    /// Frames of it that are not fully sent.
    frames: usize,
    /// Bytes of `spans` the kernel has taken.
    sent: u64,
    /// Of those, bytes of the first frame that is not fully sent.
    sent_of_front: u64,
}

impl Sender<Plain> {
    /// An empty sender of a plain lane; see [`Sender::with_seal`].
    #[must_use]
    pub fn new(scratch: Span, capacity: usize) -> Self {
        Self::with_seal(Plain, scratch, capacity)
    }
}

impl<S: Seal> Sender<S> {
    /// Scratch memory a sender wants, in bytes: one frame by value and 64 control frames.
    pub const SCRATCH_BYTES: u32 = (S::WIRE_HEADER_BYTES * 65 + INLINE_BYTES_MAX) as u32;

    /// An empty sender of at most `capacity` frames whose headers and small payloads pass through
    /// `scratch`, registered memory that nothing else uses. All memory is taken here.
    ///
    /// # Panics
    /// If `scratch` cannot hold one frame by value; give it [`Self::SCRATCH_BYTES`].
    #[must_use]
    pub fn with_seal(seal: S, scratch: Span, capacity: usize) -> Self {
        assert!(S::WIRE_HEADER_BYTES <= WIRE_HEADER_BYTES_MAX, "a seal's header is too long");
        assert!(
            scratch.length as usize >= S::WIRE_HEADER_BYTES + INLINE_BYTES_MAX,
            "the sender's scratch cannot hold one frame"
        );
        Self {
            seal,
            scratch,
            capacity,
            queue: VecDeque::with_capacity(capacity),
            inline: VecDeque::with_capacity(INLINE_QUEUE_BYTES),
            sent: VecDeque::with_capacity(capacity),
            batch: Batch::default(),
            in_flight: false,
            queued_bytes: 0,
            frames_sent: 0,
            pushed: 0,
            looked_at: 0,
            checked: Checked::default(),
            gathered: 0,
        }
    }

    /// How many more frames [`Sender::push`] takes. Owners not yet taken from
    /// [`Sender::poll_sent`] use room too.
    #[must_use]
    pub fn room(&self) -> usize {
        self.capacity - self.queue.len() - self.sent.len()
    }

    /// Whether no frame waits or is being sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a send that [`Sender::poll_send`] returned has not ended.
    #[must_use]
    pub fn in_flight(&self) -> bool {
        self.in_flight
    }

    /// Whether scratch memory holds nothing that is still to be sent.
    #[must_use]
    pub fn is_between_batches(&self) -> bool {
        !self.in_flight && self.batch.frames == 0
    }

    /// Uses other scratch memory, between batches.
    pub fn move_to(&mut self, scratch: Span) {
        debug_assert!(self.is_between_batches(), "a batch lies in the old scratch");
        self.scratch = scratch;
    }

    /// Bytes pushed (headers included) that the kernel has not taken.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Frames fully taken by the kernel since [`Sender::new`].
    #[must_use]
    pub fn frames_sent(&self) -> u64 {
        self.frames_sent
    }

    /// Queue a frame whose payload (at most [`PAYLOAD_BYTES_MAX`]) lies in registered memory and stays
    /// there until its owner comes out of [`Sender::poll_sent`] or [`Sender::drain`].
    ///
    /// # Errors
    /// [`Full`] if [`Sender::room`] is 0; nothing was taken.
    pub fn push(
        &mut self,
        epoch: u32,
        message: Message,
        payload: Option<Span>,
        owner: Owner,
    ) -> Result<(), Full> {
        debug_assert!(payload.is_none_or(|span| span.length <= PAYLOAD_BYTES_MAX));
        let payload = payload
            .filter(|span| span.length > 0)
            .map_or(Payload::Inline { length: 0 }, Payload::Memory);
        self.enqueue(Entry { owner, epoch, message, payload, held: false, checked: None })
    }

    /// Queue a frame with a copy of a small payload (at most [`INLINE_BYTES_MAX`]).
    ///
    /// # Errors
    /// [`Full`] if [`Sender::room`] is 0, or too many such bytes wait (an empty queue always has room
    /// for one frame), or the payload is longer than can ever be sent; nothing was taken.
    pub fn push_inline(
        &mut self,
        epoch: u32,
        message: Message,
        payload: &[u8],
        owner: Owner,
    ) -> Result<(), Full> {
        let queued_max = INLINE_QUEUE_BYTES - self.inline.len();
        let length = u32::try_from(payload.len()).map_err(|_| Full)?;
        if payload.len() > INLINE_BYTES_MAX.min(queued_max) {
            return Err(Full);
        }
        let inline = Payload::Inline { length };
        let (held, checked) = (false, None);
        self.enqueue(Entry { owner, epoch, message, payload: inline, held, checked })?;
        self.inline.extend(payload);
        Ok(())
    }

    fn enqueue(&mut self, entry: Entry) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        self.queue.push_back(entry);
        self.pushed += 1;
        self.queued_bytes += Self::wire_bytes(&entry);
        Ok(())
    }

    fn wire_bytes(entry: &Entry) -> u64 {
        S::WIRE_HEADER_BYTES as u64 + u64::from(entry.payload.length())
    }

    /// The next send operation; `None` if there is nothing to send or a send is in flight.
    pub fn poll_send<I: Io>(&mut self, io: &mut I) -> Option<Spans> {
        if self.in_flight {
            return None;
        }
        if self.batch.frames == 0 {
            self.gather(io);
        }
        let spans = behind(&self.batch.spans, self.batch.sent);
        self.in_flight = !spans.as_slice().is_empty();
        self.in_flight.then_some(spans)
    }

    /// Seal frames into scratch until something is full.
    fn gather<I: Io>(&mut self, io: &mut I) {
        let mut runs = Runs::default();
        let mut used: u32 = 0;
        self.batch = Batch::default();
        while let Some(entry) = self.queue.get(self.batch.frames).copied() {
            if entry.held {
                break;
            }
            let wire_bytes = Self::wire_bytes(&entry);
            let in_scratch = match entry.payload {
                Payload::Inline { length } => S::WIRE_HEADER_BYTES as u32 + length,
                Payload::Memory(_) => S::WIRE_HEADER_BYTES as u32,
            };
            let first = self.batch.frames == 0;
            if !first
                && (runs.bytes + wire_bytes > BATCH_BYTES_MAX
                    || !runs.has_room_for_frame()
                    || used + in_scratch > self.scratch.length)
            {
                break;
            }
            let place = self.scratch.part(used, in_scratch);
            let memory = self.seal_entry(io, &entry, place);
            runs.push(place);
            if let Some(memory) = memory {
                runs.push(memory);
            }
            used += in_scratch;
            if let Some(entry) = self.queue.get_mut(self.batch.frames) {
                entry.checked = self.checked.last();
            }
            self.batch.frames += 1;
        }
        self.gathered = self.batch.frames;
        self.batch.spans = runs.finish();
    }

    /// Write a frame's header, and its payload if that is inline, to `place`. Returns the payload that
    /// is to be sent from elsewhere.
    fn seal_entry<I: Io>(&mut self, io: &mut I, entry: &Entry, place: Span) -> Option<Span> {
        let length = entry.payload.length();
        let frame =
            Frame { epoch: entry.epoch, message: entry.message, payload: length, payload_crc: 0 };
        let mut bytes = [0; WIRE_HEADER_BYTES_MAX + INLINE_BYTES_MAX];
        let bytes = &mut bytes[..place.length as usize];
        let (header, inline) = bytes.split_at_mut(S::WIRE_HEADER_BYTES);
        // For a payload in memory `inline` is empty, and nothing is taken from the queue of bytes.
        let count = inline.len();
        for (to, from) in inline.iter_mut().zip(self.inline.drain(..count)) {
            *to = from;
        }
        let body = match entry.payload {
            Payload::Inline { length: 0 } => Body::Empty,
            Payload::Inline { .. } => Body::Bytes(inline),
            Payload::Memory(span) => Body::Memory(span),
        };
        let seal = |io: &mut I| self.seal.seal(io, frame, body, header);
        let memory = self.checked.timed(io, length, seal);
        io.store(bytes, place);
        memory
    }

    /// Holds the next frame with a payload in memory that is in no batch and was not looked at: it stays until
    /// [`Sender::release`]. Its number, the length of its payload and its owner.
    pub fn hold_next(&mut self) -> Option<(u64, u32, Owner)> {
        let first = self.pushed - self.queue.len() as u64;
        self.looked_at = self.looked_at.max(first + self.batch.frames as u64);
        while self.looked_at < self.pushed {
            let number = self.looked_at;
            self.looked_at += 1;
            let entry = &mut self.queue[(number - first) as usize];
            if let Payload::Memory(span) = entry.payload {
                entry.held = true;
                return Some((number, span.length, entry.owner));
            }
        }
        None
    }

    /// A held frame may leave. One that was forgotten with its lane is none any more.
    pub fn release(&mut self, number: u64) {
        let Some(place) = self.place(number) else { return };
        let entry = &mut self.queue[place];
        entry.held = false;
        // Whether it waits for the wire is known only now.
        if let Message::Data { backlogged, .. } | Message::WriteData { backlogged, .. } =
            &mut entry.message
        {
            *backlogged = place > 0;
        }
    }

    /// A held frame has waited so long, which is no time of the wire.
    pub fn wait_told(&mut self, number: u64, waited: Nanos) {
        let Some(place) = self.place(number) else { return };
        if let Message::Data { service_us, .. } = &mut self.queue[place].message {
            let micros = u32::try_from(waited.0 / 1_000).unwrap_or(u32::MAX);
            *service_us = service_us.saturating_add(micros);
        }
    }

    fn place(&self, number: u64) -> Option<usize> {
        let first = self.pushed - self.queue.len() as u64;
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        (place >= self.batch.frames && place < self.queue.len()).then_some(place)
    }

    /// What the checksums of long payloads took since the last call.
    pub fn take_checked(&mut self) -> Checked {
        std::mem::take(&mut self.checked)
    }

    /// How many frames entered a batch since this was last asked; [`Sender::gathered`] has them until the
    /// kernel does.
    pub fn take_gathered(&mut self) -> usize {
        std::mem::take(&mut self.gathered)
    }

    /// A frame of the batch at hand, by its place there.
    #[must_use]
    pub fn gathered(&self, place: usize) -> Option<Sealed> {
        let entry = self.queue.get(place).filter(|_| place < self.batch.frames)?;
        let Entry { owner, message, checked, .. } = *entry;
        Some(Sealed { owner, message, payload: entry.payload.length(), checked })
    }

    /// The send in flight ended with `bytes` taken by the kernel: possibly fewer than asked, 0 if it
    /// failed.
    pub fn handle_sent(&mut self, bytes: u32) {
        if !self.in_flight {
            return;
        }
        self.in_flight = false;
        let bytes = u64::from(bytes).min(self.batch.spans.bytes() - self.batch.sent);
        self.batch.sent += bytes;
        self.batch.sent_of_front += bytes;
        self.queued_bytes -= bytes;
        while self.batch.frames > 0
            && let Some(front) = self.queue.front()
            && self.batch.sent_of_front >= Self::wire_bytes(front)
        {
            self.batch.sent_of_front -= Self::wire_bytes(front);
            self.batch.frames -= 1;
            self.frames_sent += 1;
            if front.owner != Owner::NONE {
                self.sent.push_back(front.owner);
            }
            self.queue.pop_front();
        }
    }

    /// The owner of the next frame that is fully in the kernel, in the order of pushing. Frames of
    /// [`Owner::NONE`] are left out.
    pub fn poll_sent(&mut self) -> Option<Owner> {
        self.sent.pop_front()
    }

    /// The lane is lost: forget all frames that are not fully sent and hand back their owners, in
    /// order. Those fully sent still come out of [`Sender::poll_sent`]. Call it when no send is in
    /// flight: the kernel may still read their payloads otherwise.
    pub fn drain(&mut self) -> impl Iterator<Item = Owner> + '_ {
        debug_assert!(!self.in_flight, "a send in flight still reads the payloads");
        self.batch = Batch::default();
        self.in_flight = false;
        self.queued_bytes = 0;
        self.inline.clear();
        self.queue.drain(..).map(|entry| entry.owner).filter(|owner| *owner != Owner::NONE)
    }
}

/// The part of `spans` behind its first `skip` bytes.
fn behind(spans: &Spans, skip: u64) -> Spans {
    let mut skip = skip;
    spans
        .as_slice()
        .iter()
        .filter_map(|span| {
            // At most the span's own length, which is a u32.
            let cut = skip.min(u64::from(span.length)) as u32;
            skip -= u64::from(cut);
            (cut < span.length).then(|| span.part(cut, span.length - cut))
        })
        .collect()
}

/// Spans under construction; a span that continues the one before joins it.
#[derive(Debug, Default)]
struct Runs {
    spans: Spans,
    last: Option<Span>,
    bytes: u64,
}

impl Runs {
    /// Whether a header and a payload fit, joined to nothing.
    fn has_room_for_frame(&self) -> bool {
        let used = self.spans.as_slice().len() + usize::from(self.last.is_some());
        used + 2 <= crate::io::SPANS_PER_OP_MAX
    }

    fn push(&mut self, span: Span) {
        self.bytes += u64::from(span.length);
        if let Some(last) = &mut self.last {
            let adjacent =
                last.segment == span.segment && last.offset + u64::from(last.length) == span.offset;
            if adjacent && let Some(length) = last.length.checked_add(span.length) {
                last.length = length;
                return;
            }
            // `has_room_for_frame` was asked before the frame.
            self.spans.push(*last);
        }
        self.last = Some(span);
    }

    fn finish(mut self) -> Spans {
        if let Some(last) = self.last {
            self.spans.push(last);
        }
        self.spans
    }
}
