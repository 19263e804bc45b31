//! The receiving side of a connection: payloads land in their final place.
//!
//! A header says where its payload belongs, but it is read only after the kernel was told where to
//! put the bytes. There are three ways around that, and all are used. A *prediction*: the requester
//! knows where data will go, so the receive offers the rest of a header and then that memory. A
//! right guess costs no copy and no second receive. A *long payload* is received directly as soon
//! as its header is known, and together with the next header where the sender says that another
//! frame [follows](Frame::followed): one receive for each frame, and no copy. Otherwise the bytes
//! go to a *spill* area. Many small frames are parsed there after one receive, and payload bytes
//! are copied out.
//!
//! Bytes that landed wrongly (another frame came, or more than one) are moved to the spill and
//! parsed from there. Between two steps, unparsed bytes are thus in one place: `rest`, or the
//! header's own memory if nothing came behind a header. A prediction is always cut to the spill's
//! size, so they fit.
//!
//! Nothing the peer says is used before [`Seal::open`] has checked it, and the lengths used for
//! copying are cut to the spans at hand, not to what a header claims.

use piped_core::call::CALL_BYTES_MAX;
use piped_core::io::{Io, Span, Spans};

use crate::checked::Checked;
use crate::frame::{Frame, PeerFault};
use crate::seal::{Seal, WIRE_HEADER_BYTES_MAX};

/// Size of the spill area in bytes: the most that one receive brings beyond a header.
pub const SPILL_BYTES: u32 = 256 * 1024;

/// The longest payload that can be landed inline, in bytes.
pub const INLINE_LANDING_BYTES: u32 = 2560;

const _: () = assert!(CALL_BYTES_MAX <= INLINE_LANDING_BYTES as usize);

/// The least spill that works: a burst of some headers, or a short payload.
const SPILL_BYTES_LEAST: u32 = 2 * 1024;

/// Spill offered to a receive without a prediction after a long payload: enough for a burst of
/// control frames, little to copy if another long payload follows.
const SPILL_BYTES_STREAMING: u32 = 8 * 1024;

/// Payloads of at least this many bytes are long: receiving them directly beats copying them.
pub(crate) const PAYLOAD_BYTES_STREAMING: u32 = 32 * 1024;

/// What happened next in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// All bytes are parsed; the caller must post the next receive.
    NeedMore,
    /// A frame has a payload; the caller must answer with [`Receiver::land`] or
    /// [`Receiver::land_inline`] before the next call.
    Destination(Frame),
    /// A frame is complete.
    Frame {
        /// Header of the complete frame.
        frame: Frame,
        /// Where the payload is; `None` if there is none or if it was discarded.
        landed: Option<Span>,
        /// Whether the payload is what was sent, as far as that is checked; true without a payload
        /// and for a discarded one.
        intact: bool,
        /// Payload bytes that had to be copied: from the spill, or away from a wrong prediction.
        copied: u32,
    },
}

/// The receiving side of a connection.
///
/// Post what [`Receiver::poll_receive`] returns, hand the result to [`Receiver::handle_received`],
/// then call [`Receiver::poll_step`] until it says [`Step::NeedMore`]. One receive is in flight at
/// most. A fault is final: every later step repeats it.
#[derive(Debug)]
pub struct Receiver {
    seal: Seal,
    header_area: Span,
    inline: Span,
    spill: Span,
    /// Bytes of the next header that are in `header_area`.
    header_have: u32,
    /// Received bytes beyond `header_area` that are not parsed; in the spill unless
    /// `rest_predicted`.
    rest: Span,
    rest_predicted: bool,
    /// Whether `rest` came by way of predicted memory.
    tainted: bool,
    state: State,
    posted: Posted,
    /// Whether the last payload was long.
    streaming: bool,
    checked: Checked,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No frame has begun, or its header is incomplete.
    Header,
    /// The caller owes an answer to `Step::Destination`.
    Asked { frame: Frame, copied: u32 },
    /// The payload goes to `to` (`None`: nowhere); `done` bytes of it are there.
    Payload { frame: Frame, to: Option<Span>, done: u32, copied: u32 },
    /// The stream is broken.
    Failed(PeerFault),
}

/// The receive in flight.
#[derive(Debug, Clone, Copy)]
enum Posted {
    Nothing,
    /// The rest of a header, then `tail`.
    Header {
        header: u32,
        tail: Span,
        predicted: bool,
    },
    /// So many bytes of a payload, then so many of the next header.
    Payload {
        length: u32,
        header: u32,
    },
}

impl Receiver {
    /// Where in a frame the next byte belongs: `None` between two frames, `false` in a header,
    /// `true` in a payload.
    #[must_use]
    pub fn inside_frame(&self) -> Option<bool> {
        match self.state {
            State::Header => (self.header_have > 0).then_some(false),
            State::Asked { .. } | State::Payload { .. } => Some(true),
            State::Failed(_) => None,
        }
    }

    /// Scratch memory a receiver needs, in bytes.
    pub const SCRATCH_BYTES: u32 =
        WIRE_HEADER_BYTES_MAX as u32 + INLINE_LANDING_BYTES + SPILL_BYTES;

    /// The least scratch memory that works, in bytes; between this and [`Self::SCRATCH_BYTES`],
    /// receives are shorter.
    pub const SCRATCH_BYTES_LEAST: u32 =
        WIRE_HEADER_BYTES_MAX as u32 + INLINE_LANDING_BYTES + SPILL_BYTES_LEAST;

    /// A receiver of a plain connection; see [`Receiver::with_seal`].
    #[must_use]
    pub fn new(scratch: Span) -> Self {
        Self::with_seal(Seal::PLAIN, scratch)
    }

    /// Sets whether payloads of the frames that follow have checksums; without effect on a
    /// connection with keys.
    pub fn set_sums(&mut self, sums: bool) {
        self.seal.set_sums(sums);
    }

    /// A receiver at the start of a stream. `scratch` is registered memory that nothing else uses.
    ///
    /// # Panics
    /// If `scratch` is shorter than [`Self::SCRATCH_BYTES_LEAST`].
    #[must_use]
    pub fn with_seal(seal: Seal, scratch: Span) -> Self {
        assert!(scratch.length >= Self::SCRATCH_BYTES_LEAST, "the receiver's scratch is too short");
        let inline_at = WIRE_HEADER_BYTES_MAX as u32;
        let spill = scratch.part(inline_at + INLINE_LANDING_BYTES, SPILL_BYTES);
        Self {
            header_area: scratch.part(0, seal.header_bytes() as u32),
            seal,
            inline: scratch.part(inline_at, INLINE_LANDING_BYTES),
            spill,
            header_have: 0,
            rest: spill.part(0, 0),
            rest_predicted: false,
            tainted: false,
            state: State::Header,
            posted: Posted::Nothing,
            streaming: false,
            checked: Checked::default(),
        }
    }

    /// The next receive operation: its spans, and whether to wait until they are full.
    ///
    /// `predicted` is where the next frame's payload will probably go, if the caller knows. Apart
    /// from destinations, only that memory is ever written. In the middle of a payload it is
    /// ignored. The spans are empty when the stream is broken or a destination is owed.
    ///
    /// Bytes of *any* frame may land in `predicted`. They stay there until a step says
    /// [`Step::NeedMore`] or completes the frame. So this memory must hold nothing of value, and no
    /// client may see or write it. A client that could would read what is meant for others, and
    /// could turn the bytes beyond the first header into frames of its own before they are parsed.
    /// Without a prediction, a long payload still goes straight to its destination, but for the few
    /// bytes that came with its header.
    pub fn poll_receive(&mut self, predicted: Option<Span>) -> (Spans, bool) {
        let mut spans = Spans::new();
        let mut whole = false;
        self.posted = match self.state {
            State::Header => {
                debug_assert!(self.rest.length == 0, "post a receive only after Step::NeedMore");
                let predicted = predicted.filter(|span| span.length > 0);
                let spill = if self.streaming { SPILL_BYTES_STREAMING } else { SPILL_BYTES };
                // What lands there by mistake moves to the spill.
                let tail = predicted
                    .unwrap_or_else(|| self.spill.part(0, spill))
                    .part(0, self.spill.length);
                let header = self.header_area.part(self.header_have, self.header_bytes());
                spans.push(header);
                spans.push(tail);
                Posted::Header { header: header.length, tail, predicted: predicted.is_some() }
            }
            State::Payload { frame, to, done, .. } => {
                let missing = frame.payload - done;
                let into =
                    to.map_or_else(|| self.spill.part(0, missing), |to| to.part(done, missing));
                spans.push(into);
                // Nothing else may lie between the payload's end and the next header.
                let next = frame.followed && into.length == missing;
                let header = if next { self.header_area.length } else { 0 };
                spans.push(self.header_area.part(0, header));
                whole = true;
                Posted::Payload { length: into.length, header }
            }
            State::Asked { .. } | State::Failed(_) => Posted::Nothing,
        };
        (spans, whole)
    }

    /// The receive in flight ended with `bytes` bytes, more than 0. (0 or an error ends the
    /// connection.)
    pub fn handle_received(&mut self, bytes: u32) {
        match core::mem::replace(&mut self.posted, Posted::Nothing) {
            Posted::Nothing => {}
            Posted::Header { header, tail, predicted } => {
                let of_header = bytes.min(header);
                self.header_have += of_header;
                self.rest = tail.part(0, bytes - of_header);
                self.rest_predicted = predicted;
                self.tainted = false;
            }
            Posted::Payload { length, header } => {
                if let State::Payload { done, .. } = &mut self.state {
                    *done += bytes.min(length);
                }
                self.header_have += bytes.saturating_sub(length).min(header);
            }
        }
    }

    /// The next thing that the received bytes amount to.
    ///
    /// # Errors
    /// What the peer did wrong. The connection must be closed: the next frame's start is unknown.
    pub fn poll_step<I: Io>(&mut self, io: &mut I) -> Result<Step, PeerFault> {
        match self.state {
            State::Header => self.step_header(io),
            State::Asked { frame, .. } => Ok(Step::Destination(frame)),
            State::Payload { frame, to, done, copied } => {
                Ok(self.step_payload(io, frame, to, done, copied))
            }
            State::Failed(fault) => Err(fault),
        }
    }

    /// Say where the payload of the frame in [`Step::Destination`] goes; `None` discards it. A
    /// destination shorter than the payload counts as `None`; of a longer one the front is used.
    pub fn land(&mut self, destination: Option<Span>) {
        if let State::Asked { frame, copied } = self.state {
            let to = destination
                .filter(|span| span.length >= frame.payload)
                .map(|span| span.part(0, frame.payload));
            self.state = State::Payload { frame, to, done: 0, copied };
        }
    }

    /// Land the payload of the frame in [`Step::Destination`] in this receiver's scratch, to be
    /// read before the next step. A payload longer than [`INLINE_LANDING_BYTES`] is discarded.
    pub fn land_inline(&mut self) {
        self.land(Some(self.inline));
    }

    /// How long checking the last payload took, if it was long.
    #[must_use]
    pub fn checked(&self) -> Checked {
        self.checked
    }

    /// Whether unparsed bytes came by way of predicted memory, which others can write.
    #[must_use]
    pub fn holds_tainted(&self) -> bool {
        (self.tainted || self.rest_predicted) && self.rest.length > 0
    }

    /// Use other scratch memory. `false`: not possible now, because a receive writes to the old
    /// scratch or unparsed bytes lie in it.
    #[must_use]
    pub fn move_to<I: Io>(&mut self, scratch: Span, io: &mut I) -> bool {
        let inline = match self.state {
            State::Payload { to: Some(to), .. } => {
                to.segment == self.inline.segment && to.offset == self.inline.offset
            }
            State::Asked { .. } => true,
            _ => false,
        };
        if inline || self.rest.length > 0 || !matches!(self.posted, Posted::Nothing) {
            return false;
        }
        let (old, have) = (self.header_area, self.header_have);
        let inline_at = WIRE_HEADER_BYTES_MAX as u32;
        self.header_area = scratch.part(0, self.header_bytes());
        self.inline = scratch.part(inline_at, self.inline.length);
        self.spill = scratch.part(inline_at + INLINE_LANDING_BYTES, SPILL_BYTES);
        self.rest = self.spill.part(0, 0);
        if have > 0 {
            io.copy(old.part(0, have), self.header_area.part(0, have));
        }
        true
    }

    /// Give back private memory that payloads were checked in. The next one takes it again, so this
    /// is for a connection that rests.
    pub fn rest(&mut self) {
        self.seal.rest();
    }

    /// Discard the rest of the payload at hand, because its owner is gone. Call this when no
    /// receive is posted.
    pub fn abandon(&mut self) {
        if let State::Payload { to, .. } = &mut self.state {
            *to = None;
        }
    }

    fn header_bytes(&self) -> u32 {
        self.seal.header_bytes() as u32
    }

    fn step_header<I: Io>(&mut self, io: &mut I) -> Result<Step, PeerFault> {
        let mut header = [0; WIRE_HEADER_BYTES_MAX];
        let header_bytes = self.header_bytes();
        let header = &mut header[..header_bytes as usize];
        if self.header_have == 0 && self.rest.length >= header_bytes {
            // Whole in the spill, as most headers behind the first are: no detour.
            io.load(self.take_rest(header_bytes), header);
        } else {
            let piece = self.take_rest(header_bytes - self.header_have);
            if piece.length > 0 {
                io.copy(piece, self.header_area.part(self.header_have, piece.length));
            }
            self.header_have += piece.length;
            if self.header_have < header_bytes {
                return Ok(Step::NeedMore);
            }
            io.load(self.header_area, header);
            self.header_have = 0;
        }
        let frame = self.seal.open(header).inspect_err(|fault| {
            self.state = State::Failed(*fault);
        })?;
        if frame.payload > 0 {
            self.state = State::Asked { frame, copied: 0 };
            return Ok(Step::Destination(frame));
        }
        // What came behind a frame without a payload is another frame, not what was predicted.
        let copied = self.move_rest_to_spill(io, 0);
        Ok(Step::Frame { frame, landed: None, intact: true, copied })
    }

    fn step_payload<I: Io>(
        &mut self,
        io: &mut I,
        frame: Frame,
        to: Option<Span>,
        mut done: u32,
        mut copied: u32,
    ) -> Step {
        if self.rest_predicted {
            let (in_place, moved) = self.settle_prediction(io, frame.payload, to);
            done += in_place;
            copied += moved;
        }
        let piece = self.take_rest(frame.payload - done);
        if piece.length > 0 {
            if let Some(to) = to {
                io.copy(piece, to.part(done, piece.length));
                copied += piece.length;
            }
            done += piece.length;
        }
        if done < frame.payload {
            self.state = State::Payload { frame, to, done, copied };
            return Step::NeedMore;
        }
        self.state = State::Header;
        self.streaming = frame.payload >= PAYLOAD_BYTES_STREAMING;
        self.checked = Checked::default();
        let intact = to.filter(|_| self.seal.checks(&frame.message)).is_none_or(|landed| {
            let check = |io: &mut I| self.seal.open_payload(io, &frame, landed);
            self.checked.timed(io, frame.payload, check)
        });
        Step::Frame { frame, landed: to, intact, copied }
    }

    /// `rest` lies in predicted memory and starts with the payload. This leaves in place what
    /// belongs there and moves everything else to the spill, before anything is written to the
    /// destination: the two may overlap. Returns the payload bytes in place and the bytes moved.
    fn settle_prediction<I: Io>(
        &mut self,
        io: &mut I,
        payload: u32,
        to: Option<Span>,
    ) -> (u32, u32) {
        let right =
            to.is_some_and(|to| to.segment == self.rest.segment && to.offset == self.rest.offset);
        let in_place = if right { self.rest.length.min(payload) } else { 0 };
        // For nobody: the payload's bytes need not move.
        let skipped = if to.is_none() { self.rest.length.min(payload) } else { in_place };
        let moved = self.move_rest_to_spill(io, skipped);
        (skipped, moved)
    }

    /// If `rest` lies in predicted memory, move it, less its first `skip` bytes, to the spill.
    /// Returns the number of bytes moved.
    fn move_rest_to_spill<I: Io>(&mut self, io: &mut I, skip: u32) -> u32 {
        if !self.rest_predicted {
            return 0;
        }
        self.rest_predicted = false;
        let from = self.rest.part(skip, self.rest.length);
        self.tainted = from.length > 0;
        self.rest = self.spill.part(0, from.length);
        if from.length > 0 {
            io.copy(from, self.rest);
        }
        from.length
    }

    /// Cut at most `length` bytes off the front of `rest`.
    fn take_rest(&mut self, length: u32) -> Span {
        let piece = self.rest.part(0, length);
        self.rest = self.rest.part(piece.length, self.rest.length);
        piece
    }
}
