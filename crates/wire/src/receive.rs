//! The receiving side of a lane: payloads land in their final place.
//!
//! A header says where its payload belongs, but it is read only after the kernel has been told
//! where to put the bytes. Three ways around that, and all are used. A *prediction*: who asked for
//! the data knows where it will go, so the receive offers the rest of a header and then that
//! memory; a right guess costs no copy and no second receive. A *long payload* is received directly
//! as soon as its header is known. Otherwise the bytes go to a *spill* area, from where many small
//! frames are parsed after one receive, and payload bytes are copied out.
//!
//! Bytes that landed wrongly (another frame came, or more than one) are moved to the spill and
//! parsed from there; so between two steps unparsed bytes are in one place: `rest`. A prediction is
//! always cut to the spill's size, so they fit.
//!
//! Nothing the peer says is used before [`Seal::open`] has checked it, and the lengths used for
//! copying are cut to the spans at hand, not to what a header claims.

use piped_core::io::{Io, Span, Spans};

use crate::checked::Checked;
use crate::frame::{Frame, PeerFault};
use crate::seal::{Seal, WIRE_HEADER_BYTES_MAX};

/// Size of the spill area in bytes: the most one receive brings beyond a header.
pub const SPILL_BYTES: u32 = 256 * 1024;

/// The longest payload that can be landed inline, in bytes.
pub const INLINE_LANDING_BYTES: u32 = 2048;

/// Spill offered to a receive without a prediction after a long payload: enough for a burst of
/// control frames, little to copy if another long payload follows.
const SPILL_BYTES_STREAMING: u32 = 8 * 1024;

/// From this payload on a frame counts as long: receiving it directly beats copying it.
const PAYLOAD_BYTES_STREAMING: u32 = 32 * 1024;

/// What happened next in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// All bytes are parsed: post the next receive.
    NeedMore,
    /// A frame with a payload: answer with [`Receiver::land`] or [`Receiver::land_inline`] before
    /// the next call.
    Destination(Frame),
    /// A frame is complete.
    Frame {
        /// Its header.
        frame: Frame,
        /// Where its payload is; `None` if it has none or was discarded.
        landed: Option<Span>,
        /// Whether the payload is what was sent; true for none and for a discarded one.
        intact: bool,
        /// Bytes that had to be copied for it: from the spill, or away from a wrong prediction.
        copied: u32,
    },
}

/// The receiving side of a lane.
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
    /// Received bytes behind `header_area` that are not parsed; in the spill unless
    /// `rest_predicted`.
    rest: Span,
    rest_predicted: bool,
    /// `rest` came by way of predicted memory.
    tainted: bool,
    state: State,
    posted: Posted,
    /// The last payload was long.
    streaming: bool,
    checked: Checked,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Between frames.
    Header,
    /// The caller owes an answer to `Step::Destination`.
    Asked { frame: Frame, copied: u32 },
    /// The payload goes to `to` (`None`: away); `done` bytes of it are there.
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
    /// That many bytes of a payload.
    Payload {
        length: u32,
    },
}

impl Receiver {
    /// Where in a frame the next byte belongs: `None` between two, or else whether it is payload.
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

    /// With less than that it receives as well, in smaller bites; with less than this not at all.
    pub const SCRATCH_BYTES_LEAST: u32 =
        WIRE_HEADER_BYTES_MAX as u32 + INLINE_LANDING_BYTES + SPILL_BYTES_STREAMING;

    /// A receiver of a plain lane; see [`Receiver::with_seal`].
    #[must_use]
    pub fn new(scratch: Span) -> Self {
        Self::with_seal(Seal::Plain, scratch)
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
    /// `predicted` is where the next frame's payload will probably go, if the caller knows. Besides
    /// destinations only that memory is ever written. Ignored in the middle of a payload. The spans
    /// are empty when the stream is broken or a destination is owed.
    ///
    /// Bytes of *any* frame may land in `predicted`, and stay there until a step says
    /// [`Step::NeedMore`] or completes the frame: it must not hold anything of value, and it must
    /// be memory that no client can see or write. A client that could would read what is meant for
    /// others, and could turn the bytes behind the first header into frames of its own before they
    /// are parsed. Without a prediction a long payload still goes straight to its destination but
    /// for the few bytes that came with its header.
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
                whole = true;
                Posted::Payload { length: into.length }
            }
            State::Asked { .. } | State::Failed(_) => Posted::Nothing,
        };
        (spans, whole)
    }

    /// The receive in flight ended with `bytes` bytes, more than 0. (0 or an error ends the lane.)
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
            Posted::Payload { length } => {
                if let State::Payload { done, .. } = &mut self.state {
                    *done += bytes.min(length);
                }
            }
        }
    }

    /// What the received bytes amount to, one thing at a time.
    ///
    /// # Errors
    /// What the peer did wrong. Close the lane: where the next frame starts is not known.
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

    /// Say where the payload of the frame in [`Step::Destination`] goes; `None` throws it away. A
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
    /// read before the next step. One longer than [`INLINE_LANDING_BYTES`] is thrown away.
    pub fn land_inline(&mut self) {
        self.land(Some(self.inline));
    }

    /// What checking the last payload took, if it was long.
    #[must_use]
    pub fn checked(&self) -> Checked {
        self.checked
    }

    /// Whether bytes wait to be parsed that came by way of predicted memory, which others can
    /// write.
    #[must_use]
    pub fn holds_tainted(&self) -> bool {
        (self.tainted || self.rest_predicted) && self.rest.length > 0
    }

    /// Uses other scratch memory. `false`: it cannot now, because the old one is written by a
    /// receive or holds what is not parsed.
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

    /// The owner of the payload at hand is gone: what is still to come of it goes nowhere. Call it
    /// when no receive is posted.
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
        let intact = to.is_none_or(|landed| {
            let check = |io: &mut I| self.seal.open_payload(io, &frame, landed);
            self.checked.timed(io, frame.payload, check)
        });
        Step::Frame { frame, landed: to, intact, copied }
    }

    /// `rest` lies in predicted memory and starts with the payload. Leave in place what belongs
    /// there and move everything else to the spill, before anything is written to the destination:
    /// the two may overlap. Returns the payload bytes in place and the bytes moved.
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
    /// Returns how much that was.
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
