//! The sending side of a connection: a bounded queue of frames, sent in batches.
//!
//! A batch is one send operation: headers from scratch memory, payloads from where they lie. A busy
//! latency connection sends mostly small frames. Therefore a payload that was pushed by value
//! follows its header in scratch, and neighbours in memory share a span: a batch of control frames
//! is one span.
//!
//! A checksum is computed when its frame enters a batch, not when the frame is pushed: the kernel
//! is about to read the payload then anyway. If a client rewrites the memory in between, the other
//! side's checksum shows it, and that client alone loses. A frame that has begun is never sealed
//! again, so a short send continues with the very same bytes.
//!
//! A batch of long payloads may be lent instead of copied ([`Sender::poll_lend`]). Its headers lie
//! in a box of their own, and its owners are told when the kernel is done with the memory. See
//! [`super::lent`].

use std::collections::VecDeque;

use piped_core::io::{Io, Span, Spans};
use piped_core::limits::PAYLOAD_BYTES_MAX;
use piped_core::units::Nanos;

use crate::checked::Checked;
use crate::frame::{Frame, Message, OPEN_BYTES_MAX};
use crate::lent::{BOX_FRAMES, FRAMES_FIRST, Flights, LENT_MAX, Owner};
use crate::receive::PAYLOAD_BYTES_STREAMING;
use crate::runs::{Runs, behind};
use crate::seal::{Body, SEALED_ROOM_BYTES, Seal, WIRE_HEADER_BYTES_MAX};

mod hold;
mod lend;
mod payload;

pub use self::lend::LEND_BYTES_MIN;
use self::payload::Payload;
pub use self::payload::{Full, Sealed};

/// A batch takes further frames while it stays below this many bytes; its first frame always fits.
/// The limit is about 40 us of a 100 Gbit/s link, the longest that a latency frame waits for a
/// batch.
pub const BATCH_BYTES_MAX: u64 = 512 * 1024;

/// The longest payload that can be pushed by value, in bytes.
pub const INLINE_BYTES_MAX: usize = OPEN_BYTES_MAX as usize;

/// Most payload bytes that are pushed by value and not yet in a batch.
const INLINE_QUEUE_BYTES: usize = 16 * 1024;

const _: () = assert!(INLINE_BYTES_MAX <= INLINE_QUEUE_BYTES);

/// The sending side of a connection.
///
/// In: [`Sender::push`], [`Sender::push_inline`], [`Sender::handle_sent`], [`Sender::take_back`].
/// Out: [`Sender::poll_send`], [`Sender::poll_lend`], [`Sender::poll_taken`],
/// [`Sender::poll_sent`]. One send is in flight at most: post what `poll_send` returns, hand the
/// result to `handle_sent` (0 for a failed send), take the owners from `poll_sent`, repeat. After
/// [`Sender::drain`] a plain sender is ready for the next epoch.
#[derive(Debug)]
pub struct Sender {
    seal: Seal,
    scratch: Span,
    /// Where encrypted payloads of a batch lie.
    room: Option<Span>,
    capacity: usize,
    /// Frames not fully sent, in order; the first `batch.frames` are in the batch.
    queue: VecDeque<Entry>,
    /// Payloads that were pushed by value for the frames not yet in the batch, one after the other.
    inline: VecDeque<u8>,
    /// Frames that are with the kernel, whose owners are to be told.
    flights: Flights,
    /// Whether payloads long enough to be lent begin a batch of their own.
    apart: bool,
    batch: Batch,
    in_flight: bool,
    queued_bytes: u64,
    frames_sent: u64,
    /// Frames pushed so far: a frame's number is how many came before it.
    pushed: u64,
    /// Frames below this number were considered by [`Sender::hold_next`].
    looked_at: u64,
    checked: Checked,
    /// Frames that entered the batch and that [`Sender::take_gathered`] has not reported.
    gathered: usize,
}

/// A queued frame that is not fully sent.
#[derive(Debug, Clone, Copy)]
struct Entry {
    owner: Owner,
    epoch: u32,
    message: Message,
    payload: Payload,
    /// Whether the frame, and all frames queued after it, must wait.
    held: bool,
    checked: Option<(Nanos, Nanos)>,
}

/// Where a frame of the batch at hand lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The frame's number in the batch.
    number: usize,
    /// Memory for its header, and for its payload if that was pushed by value.
    header: Span,
    /// What is left for encrypted payloads.
    room: Option<Span>,
}

impl Entry {
    fn is_data(&self) -> bool {
        let is_of_kind = matches!(self.message, Message::Data { .. } | Message::WriteData { .. });
        is_of_kind && self.payload.length() > 0
    }
}

/// The frames given to the kernel as one run of bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    spans: Spans,
    /// Frames of the batch that are not fully sent.
    frames: usize,
    /// Bytes of `spans` the kernel has taken.
    sent: u64,
    /// Bytes of `sent` that belong to the first frame that is not fully sent.
    sent_of_front: u64,
    /// The batch's number if it is lent.
    lent: Option<u64>,
}

impl Sender {
    /// Scratch memory a sender wants, in bytes: one frame by value, 64 control frames, and the
    /// headers of batches that are lent.
    pub const SCRATCH_BYTES: u32 =
        (WIRE_HEADER_BYTES_MAX * 65 + INLINE_BYTES_MAX) as u32 + Self::BOX_BYTES * LENT_MAX as u32;

    /// Part of [`Self::SCRATCH_BYTES`]: the headers of one lent batch.
    const BOX_BYTES: u32 = (WIRE_HEADER_BYTES_MAX * BOX_FRAMES) as u32;

    /// An empty sender of a plain connection; see [`Sender::with_seal`].
    #[must_use]
    pub fn new(scratch: Span, capacity: usize) -> Self {
        Self::with_seal(Seal::PLAIN, scratch, None, capacity)
    }

    /// An empty sender of at most `capacity` frames. Headers and small payloads pass through
    /// `scratch`, registered memory that nothing else uses. Encrypted payloads pass through `room`,
    /// of [`PAYLOAD_BYTES_MAX`] bytes. Memory for the queue is taken as it fills up, and kept until
    /// [`Sender::rest`].
    ///
    /// # Panics
    /// If `scratch` cannot hold one frame by value; give it [`Self::SCRATCH_BYTES`]. If `seal`
    /// encrypts and `room` is too short; without one, payloads in memory wait
    /// ([`Self::wants_room`]).
    #[must_use]
    pub fn with_seal(seal: Seal, scratch: Span, room: Option<Span>, capacity: usize) -> Self {
        assert!(
            scratch.length as usize >= WIRE_HEADER_BYTES_MAX + INLINE_BYTES_MAX,
            "the sender's scratch cannot hold one frame"
        );
        let has_room = room.is_none_or(|room| room.length >= SEALED_ROOM_BYTES);
        assert!(has_room || !seal.moves_payloads(), "there is no room for encrypted payloads");
        Self {
            seal,
            scratch,
            room,
            capacity,
            queue: VecDeque::with_capacity(capacity.min(FRAMES_FIRST)),
            inline: VecDeque::new(),
            flights: Flights::with_capacity(capacity.min(FRAMES_FIRST)),
            apart: false,
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

    /// What is done to the frames on their way out.
    #[must_use]
    pub fn seal(&self) -> &Seal {
        &self.seal
    }

    /// Sets whether payloads of frames that enter a batch from now on have checksums; without
    /// effect on a connection with keys.
    pub fn set_sums(&mut self, sums: bool) {
        self.seal.set_sums(sums);
    }

    /// How many more frames [`Sender::push`] takes. Owners not yet taken from [`Sender::poll_sent`]
    /// use room too.
    #[must_use]
    pub fn room(&self) -> usize {
        self.capacity - self.queue.len() - self.flights.frames()
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

    /// Whether scratch memory holds nothing that must still be sent or that the kernel may read.
    #[must_use]
    pub fn is_between_batches(&self) -> bool {
        !self.in_flight && self.batch.frames == 0 && !self.flights.any()
    }

    /// Whether frames are encrypted and a payload waits for memory to encrypt it into.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        let waits = self.queue.front().is_some_and(|entry| self.is_without_room(entry));
        waits && self.batch.frames == 0
    }

    fn is_without_room(&self, entry: &Entry) -> bool {
        self.room.is_none()
            && self.seal.moves_payloads()
            && matches!(entry.payload, Payload::Memory(_))
    }

    /// Use other scratch memory and room; call this between batches.
    pub fn move_to(&mut self, scratch: Span, room: Option<Span>) {
        debug_assert!(self.is_between_batches(), "a batch lies in the old scratch");
        (self.scratch, self.room) = (scratch, room);
    }

    /// Gives back memory that the sender took while it was busy, but for what something lies in.
    /// The next frames take it again, so this is for a connection that rests.
    pub fn rest(&mut self) {
        self.queue.shrink_to_fit();
        self.inline.shrink_to_fit();
        self.flights.rest();
        self.seal.rest();
    }

    /// Bytes pushed (headers included) that the kernel has not taken.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Whether data of a read or write is queued or being sent, so that data pushed now will follow
    /// it back to back. Other frames are not timed by the receiver, whatever they carry.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.queue.iter().any(Entry::is_data)
    }

    /// Frames fully taken by the kernel since [`Sender::new`].
    #[must_use]
    pub fn frames_sent(&self) -> u64 {
        self.frames_sent
    }

    /// Queue a frame whose payload (at most [`PAYLOAD_BYTES_MAX`]) lies in registered memory and
    /// stays there until its owner comes out of [`Sender::poll_sent`] or [`Sender::drain`].
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
        let payload = Payload::of_memory(payload);
        self.enqueue(Entry { owner, epoch, message, payload, held: false, checked: None })
    }

    /// Queue a frame with a copy of a small payload (at most [`INLINE_BYTES_MAX`]).
    ///
    /// # Errors
    /// [`Full`] if [`Sender::room`] is 0, if too many such bytes wait (an empty queue always has
    /// room for one frame), or if the payload is longer than [`INLINE_BYTES_MAX`]. Nothing was
    /// taken.
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
        self.queued_bytes += self.wire_bytes(&entry);
        Ok(())
    }

    fn wire_bytes(&self, entry: &Entry) -> u64 {
        self.seal.header_bytes() as u64 + u64::from(entry.payload.length())
    }

    /// The next send operation, which copies; `None` if there is nothing to send or a send is in
    /// flight. The rest of a lent batch is sent in this way, too.
    pub fn poll_send<I: Io>(&mut self, io: &mut I) -> Option<Spans> {
        if self.in_flight {
            return None;
        }
        if self.batch.frames == 0 {
            self.gather(None, io);
        }
        self.rest_of_batch()
    }

    fn rest_of_batch(&mut self) -> Option<Spans> {
        let spans = behind(&self.batch.spans, self.batch.sent);
        self.in_flight = !spans.as_slice().is_empty();
        self.in_flight.then_some(spans)
    }

    /// Seal frames into scratch until something is full. `lent`: number and box of the batch, if it
    /// will be lent.
    fn gather<I: Io>(&mut self, lent: Option<(u64, usize)>, io: &mut I) {
        let mut runs = Runs::default();
        let mut used: u32 = 0;
        let header_bytes = self.seal.header_bytes() as u32;
        let mut room = self.room;
        let scratch = self.headers_of(lent.map(|(_, place)| place));
        // A frame is sealed when it is known whether another one follows it in the batch.
        let mut unsealed: Option<Place> = None;
        let (batch, number) = (&mut self.batch, lent.map(|(number, _)| number));
        (batch.frames, batch.sent, batch.sent_of_front, batch.lent) = (0, 0, 0, number);
        while let Some(entry) = self.queue.get(self.batch.frames).copied() {
            let may_not = entry.held || self.is_without_room(&entry);
            if may_not || (lent.is_some() && !entry.is_lendable()) {
                break;
            }
            let wire_bytes = self.wire_bytes(&entry);
            let in_scratch = match entry.payload {
                Payload::Inline { length } => header_bytes + length,
                Payload::Memory(_) => header_bytes,
            };
            let first = self.batch.frames == 0;
            if !first
                && (runs.bytes + wire_bytes > BATCH_BYTES_MAX
                    || !runs.has_room_for_frame()
                    || used + in_scratch > scratch.length
                    || (lent.is_none() && self.apart && entry.is_lendable()))
            {
                break;
            }
            let place = scratch.part(used, in_scratch);
            runs.push(place);
            let number = self.batch.frames;
            let place = Place { number, header: place, room };
            if let Payload::Memory(memory) = entry.payload {
                runs.push(self.seal.place_of(memory, room));
                room = room.map(|room| room.part(memory.length, room.length));
            }
            used += in_scratch;
            self.batch.frames += 1;
            // A short payload is best received with what comes behind it, and not for itself.
            let payload = entry.payload.length();
            let helps = payload == 0 || payload >= PAYLOAD_BYTES_STREAMING;
            if let Some(before) = unsealed.replace(place) {
                self.seal_entry(io, before, helps);
            }
        }
        if let Some(last) = unsealed {
            self.seal_entry(io, last, false);
        }
        self.gathered = self.batch.frames;
        self.batch.spans = runs.finish();
    }

    /// Write a frame's header, and its payload if that was pushed by value, to its place.
    /// `followed`: the header of the frame behind it in the batch is to be received with a long
    /// payload.
    fn seal_entry<I: Io>(&mut self, io: &mut I, place: Place, followed: bool) {
        let Place { number, header: place, room } = place;
        let Some(Entry { epoch, message, payload, .. }) = self.queue.get(number).copied() else {
            return;
        };
        let length = payload.length();
        let followed = followed && length >= PAYLOAD_BYTES_STREAMING;
        let frame = Frame { epoch, message, payload: length, payload_crc: 0, followed };
        let mut bytes = [0; WIRE_HEADER_BYTES_MAX + INLINE_BYTES_MAX];
        let bytes = &mut bytes[..place.length as usize];
        let (header, inline) = bytes.split_at_mut(self.seal.header_bytes());
        // For a payload in memory `inline` is empty, and nothing is taken from the queue of bytes.
        let count = inline.len();
        for (to, from) in inline.iter_mut().zip(self.inline.drain(..count)) {
            *to = from;
        }
        let body = match payload {
            Payload::Inline { length: 0 } => Body::Empty,
            Payload::Inline { .. } => Body::Bytes(inline),
            Payload::Memory(span) => Body::Memory(span),
        };
        let timed = if self.seal.checks(&message) { length } else { 0 };
        let seal = |io: &mut I| self.seal.seal(io, frame, body, header, room);
        self.checked.timed(io, timed, seal);
        io.store(bytes, place);
        if let Some(entry) = self.queue.get_mut(number) {
            entry.checked = self.checked.last();
        }
    }

    /// How long the checksums of long payloads took since the last call.
    pub fn take_checked(&mut self) -> Checked {
        std::mem::take(&mut self.checked)
    }

    /// How many frames entered a batch since the last call; [`Sender::gathered`] has them until the
    /// kernel does.
    pub fn take_gathered(&mut self) -> usize {
        std::mem::take(&mut self.gathered)
    }

    /// A frame of the batch at hand, by its index there.
    #[must_use]
    pub fn gathered(&self, place: usize) -> Option<Sealed> {
        let entry = self.queue.get(place).filter(|_| place < self.batch.frames)?;
        let Entry { owner, message, checked, .. } = *entry;
        Some(Sealed { owner, message, payload: entry.payload.length(), checked })
    }

    /// The send in flight ended with `bytes` taken by the kernel: possibly fewer than asked, 0 if
    /// it failed.
    pub fn handle_sent(&mut self, bytes: u32) {
        if !std::mem::take(&mut self.in_flight) {
            return;
        }
        let bytes = u64::from(bytes).min(self.batch.spans.bytes() - self.batch.sent);
        self.batch.sent += bytes;
        self.batch.sent_of_front += bytes;
        self.queued_bytes -= bytes;
        while self.batch.frames > 0
            && let Some(front) = self.queue.front()
            && let wire_bytes = self.wire_bytes(front)
            && self.batch.sent_of_front >= wire_bytes
        {
            self.batch.sent_of_front -= wire_bytes;
            self.batch.frames -= 1;
            self.frames_sent += 1;
            self.flights.take(front.owner, self.batch.lent);
            self.queue.pop_front();
        }
        if self.batch.frames == 0
            && let Some(number) = self.batch.lent.take()
        {
            self.flights.close(number);
        }
    }

    /// The owner of the next frame that the kernel has in full, in the order of pushing. Memory of
    /// a lent frame is not free yet. Frames of [`Owner::NONE`] are left out.
    pub fn poll_taken(&mut self) -> Option<Owner> {
        self.flights.poll_taken()
    }

    /// The owner of the next frame that was sent and whose memory is free, in the order of pushing.
    /// Frames of [`Owner::NONE`] are left out.
    pub fn poll_sent(&mut self) -> Option<Owner> {
        self.flights.poll_free()
    }

    /// The connection is lost: forget all frames that are not fully sent and return their owners,
    /// in order. Frames that were fully sent still come out of [`Sender::poll_sent`], and their
    /// owners are to be told first. Call this when no send is in flight and nothing is lent:
    /// otherwise the kernel may still read the payloads.
    pub fn drain(&mut self) -> impl Iterator<Item = Owner> + '_ {
        debug_assert!(!self.in_flight, "a send in flight still reads the payloads");
        self.flights.give_up();
        self.batch = Batch::default();
        self.in_flight = false;
        self.queued_bytes = 0;
        self.inline.clear();
        self.queue.drain(..).map(|entry| entry.owner).filter(|owner| *owner != Owner::NONE)
    }
}
