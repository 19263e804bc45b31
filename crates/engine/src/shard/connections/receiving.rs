//! A lane's receives: where the bytes of the frame at hand go, what is waited for, and how fast the
//! frames come.

use piped_core::ids::ChannelId;
use piped_core::io::Span;
use piped_core::units::Nanos;
use piped_wire::Frame;

use super::super::buffers::TableRun;
use super::super::faults::PeerFault;
use super::super::keys::{OpKey, TransferKey, kind};
use super::super::messages::Piece;
use super::super::pins::Pin;

/// What the bytes of a receive are meant for.
#[derive(Debug, Default)]
pub(in crate::shard) enum Target {
    #[default]
    Nothing,
    /// The buffer of a read that this node asked for.
    Transfer(Pin<kind::Transfer>),
    /// A region that a peer writes to.
    ServeRegion(Pin<kind::Serve>),
    /// Staging for a write to a file.
    ServeStaging(Pin<kind::Serve>),
    /// The buffer of a receive, for a message.
    Receive(Pin<kind::Transfer>),
    /// Early-arrival memory, for a message of a channel.
    Early(ChannelId, Piece),
    /// Staging for the table of a request.
    Table(TableRun),
}

impl Target {
    /// The transfer whose buffer it is, if it is one's.
    pub(in crate::shard) fn transfer(&self) -> Option<TransferKey> {
        match self {
            Self::Transfer(pin) | Self::Receive(pin) => Some(pin.key()),
            _ => None,
        }
    }
}

/// Where a payload goes.
#[derive(Debug)]
pub(in crate::shard) enum Destination {
    Land(Target, Span),
    /// A few bytes to be read by the shard.
    Inline,
    /// Nobody wants it any more.
    Discard,
    /// No memory for it now.
    Wait,
    /// The peer must not send that.
    Fault(PeerFault),
}

/// A frame as it came, and what became of its payload.
#[derive(Debug)]
pub(in crate::shard) struct Arrived {
    pub(in crate::shard) frame: Frame,
    /// Where its payload lies.
    pub(in crate::shard) landed: Option<Span>,
    /// Its payload matches its checksum, if the lane has such.
    pub(in crate::shard) intact: bool,
    /// Bytes of it that came by way of a copy.
    pub(in crate::shard) copied: u32,
}

/// What a lane receives.
#[derive(Debug, Default)]
pub(in crate::shard) struct Receiving {
    /// The receive under way.
    operation: Option<OpKey>,
    /// Where the payload of the frame at hand goes, from its header to its last byte.
    target: Target,
    /// Frames that came, to their last byte.
    frames: u64,
    burst: Burst,
    /// The frame whose rest is waited for.
    partial: Option<Partial>,
    /// The lane is looked at again when its time for the rest of a frame is over.
    watched: bool,
}

impl Receiving {
    /// The receive under way.
    pub(in crate::shard) fn operation(&self) -> Option<OpKey> {
        self.operation
    }

    /// A receive is under way.
    pub(in crate::shard) fn begin(&mut self, operation: OpKey) {
        self.operation = Some(operation);
    }

    /// The receive is over.
    pub(in crate::shard) fn end(&mut self) {
        self.operation = None;
    }

    /// Where the payload of the frame at hand goes.
    pub(in crate::shard) fn target(&self) -> &Target {
        &self.target
    }

    /// Says where the payload of the frame at hand goes.
    pub(in crate::shard) fn land(&mut self, target: Target) {
        self.target = target;
    }

    /// What the payload at hand was meant for: the caller gives back its pin.
    pub(in crate::shard) fn take_target(&mut self) -> Target {
        std::mem::take(&mut self.target)
    }

    /// Frames that came, to their last byte.
    pub(in crate::shard) fn frames(&self) -> u64 {
        self.frames
    }

    /// The last byte of a frame came.
    pub(in crate::shard) fn count_frame(&mut self) {
        self.frames += 1;
    }

    /// Books a frame of data; what it returns is the mean size and time of a burst that is over.
    pub(in crate::shard) fn arrive(
        &mut self,
        payload: u32,
        backlogged: bool,
        now: Nanos,
    ) -> Option<(u32, Nanos)> {
        self.burst.arrive(payload, backlogged, now)
    }

    /// Notes what the receive that is about to be posted waits for. `inside`: a part of a frame is
    /// here, and whether its header is. Returns whether the lane is to be watched from now on.
    pub(in crate::shard) fn wait(
        &mut self,
        inside: Option<bool>,
        now: impl FnOnce() -> Nanos,
    ) -> bool {
        let number = self.frames;
        let waits = |partial: Partial, in_payload| {
            (partial.number, partial.in_payload) == (number, in_payload)
        };
        self.partial = inside.map(|in_payload| match self.partial {
            Some(partial) if waits(partial, in_payload) => partial,
            _ => Partial { number, in_payload, since: now() },
        });
        self.partial.is_some() && !std::mem::replace(&mut self.watched, true)
    }

    /// Ends a watch. Returns since when the rest of a frame is waited for; `None` if there is no
    /// such, or no receive is under way: then it is this side that is late.
    pub(in crate::shard) fn end_watch(&mut self) -> Option<Nanos> {
        self.watched = false;
        self.operation.and(self.partial).map(|partial| partial.since)
    }

    /// The watch goes on.
    pub(in crate::shard) fn watch(&mut self) {
        self.watched = true;
    }
}

/// A frame of which a part is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Partial {
    /// How many came before it.
    number: u64,
    /// Its header is here.
    in_payload: bool,
    since: Nanos,
}

/// Frames of one size that came back to back. One gap says little: the kernel hands over several
/// frames at once, or the reactor was late; the mean over a burst is what the stage takes.
#[derive(Debug, Clone, Copy, Default)]
struct Burst {
    /// The arrival before the burst.
    start: Nanos,
    last: Nanos,
    frames: u32,
    bytes: u64,
}

/// A burst this long is a sample.
const BURST_FRAMES: u32 = 8;

impl Burst {
    /// Books an arrival; what it returns is the mean size and time of a burst that is over.
    fn arrive(&mut self, payload: u32, backlogged: bool, now: Nanos) -> Option<(u32, Nanos)> {
        let mean = self.bytes.checked_div(u64::from(self.frames)).unwrap_or(u64::from(payload));
        let alike = u64::from(payload).abs_diff(mean) * 8 <= mean;
        let over = !backlogged || !alike || self.frames == BURST_FRAMES;
        let sample = if over { self.take() } else { None };
        if over {
            *self = Self { start: if backlogged { self.last } else { now }, ..Self::default() };
        }
        if backlogged {
            self.frames += 1;
            self.bytes += u64::from(payload);
        }
        self.last = now;
        sample
    }

    fn take(&self) -> Option<(u32, Nanos)> {
        let frames = u64::from(self.frames);
        let bytes = self.bytes.checked_div(frames)?;
        Some((bytes as u32, Nanos(self.last.since(self.start).0 / frames)))
    }
}
