//! State that loops over strips share, whichever way the bytes go: the range, its memory, and
//! requests under way.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::cut::Cut;
use super::pace::{Landed, Pace};
use super::room::Room;
use super::{StripError, StripPolicy, Strips};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::clock;
use crate::error::{BufferState, Cause, RequestError, SubmitFault};
use crate::handle::{Handle, Way};
use crate::pending::{Pending, Waited};
use crate::queue::Queue;
use crate::request::{Done, Request};

/// A range that is read or written in strips.
#[derive(Debug)]
pub(super) struct Flight {
    handle: Handle,
    way: Way,
    strips: Strips,
    pub(super) cut: Cut,
    pub(super) room: Room,
    pub(super) pace: Pace,
    /// Strips on their way, in order.
    flying: VecDeque<Flying>,
    /// Whether the daemon is to be asked for the path's costs.
    asks: bool,
}

/// A strip on its way.
#[derive(Debug)]
struct Flying {
    pending: Pending<Buffer>,
    offset: u64,
    bytes: u64,
    capacity: usize,
    issued_ns: u64,
    alone: bool,
}

/// The outcome of an attempt to issue a strip.
#[derive(Debug)]
pub(super) enum Tried {
    Issued {
        at_ns: u64,
    },
    /// Not before one of those under way has ended.
    Full(Buffer),
}

/// A strip whose request has ended well.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) offset: u64,
    pub(super) done: Done<Buffer>,
    pub(super) landed: Landed,
}

impl Flight {
    /// A flight for the bytes of `range` in the handle's file or region. Nothing is issued yet.
    pub(super) fn open(
        client: &Client,
        handle: &Handle,
        range: Range<u64>,
        strips: Strips,
        way: Way,
    ) -> Result<Self, StripError> {
        let Range { start, end } = range;
        if start > end {
            return Err(StripError::Range { start, end });
        }
        let known = handle.known_costs(way);
        let told = strips.costs.or_else(|| known.costs());
        let asks = strips.costs.is_none()
            && strips.policy == StripPolicy::Auto
            && start < end
            && known.is_stale(clock::now_ns());
        let cut = Cut::new(&strips, handle.direct_alignment(), start..end, way == Way::Write);
        Ok(Self {
            handle: handle.clone(),
            way,
            room: Room::new(client.clone(), strips.memory, cut.grain()),
            cut,
            pace: Pace::new(told, strips.compute),
            strips,
            flying: VecDeque::new(),
            asks,
        })
    }

    /// Strips that are on their way.
    pub(super) fn ahead(&self) -> usize {
        self.flying.len()
    }

    pub(super) const fn asks(&self) -> bool {
        self.asks
    }

    /// Asks the daemon for the path's costs.
    pub(super) fn ask(&mut self) {
        self.asks = false;
        if let Some(told) = self.handle.ask_costs(self.way) {
            self.pace.handle_told(told);
        }
    }

    /// Issues the strip at `offset`, as long as the buffer.
    pub(super) fn issue(
        &mut self,
        queue: &mut Queue,
        offset: u64,
        buffer: Buffer,
    ) -> Result<Tried, StripError> {
        let (bytes, capacity) = (buffer.len() as u64, buffer.capacity());
        let alone = self.flying.is_empty();
        let request = match self.way {
            Way::Read => self.strips.dress(Request::read(&self.handle, offset, buffer)),
            Way::Write => {
                let request = self.strips.dress(Request::write(&self.handle, offset, buffer));
                if self.strips.durable { request.durable() } else { request }
            }
        };
        let issued_ns = clock::now_ns();
        match queue.submit(request) {
            Ok(pending) => {
                let strip = Flying { pending, offset, bytes, capacity, issued_ns, alone };
                self.flying.push_back(strip);
                Ok(Tried::Issued { at_ns: issued_ns })
            }
            Err(refused) if refused.fault == SubmitFault::Full && !alone => {
                Ok(Tried::Full(refused.buffer))
            }
            Err(refused) => {
                let buffer = BufferState::Returned(refused.buffer);
                let cause = Cause::NotSubmitted(refused.fault);
                let error = RequestError { cause, bytes: 0, buffer };
                Err(StripError::Request { offset, bytes, error })
            }
        }
    }

    /// Waits for the oldest strip on its way; `None` if there is none.
    pub(super) fn reap(&mut self, queue: &mut Queue) -> Result<Option<Ended>, StripError> {
        let Some(strip) = self.flying.pop_front() else { return Ok(None) };
        let Flying { pending, offset, bytes, capacity, issued_ns, alone } = strip;
        let (result, landed_ns) = match pending.wait_for(queue, Duration::ZERO) {
            Waited::Ended(result) => (result, None),
            Waited::Underway(pending) => {
                let result = pending.wait(queue);
                (result, Some(clock::now_ns()))
            }
        };
        let done = result.map_err(|error| {
            if !matches!(error.buffer, BufferState::Returned(_)) {
                self.room.forget(capacity);
            }
            StripError::Request { offset, bytes, error }
        })?;
        Ok(Some(Ended { offset, done, landed: Landed { bytes, issued_ns, landed_ns, alone } }))
    }

    /// No more strips: what is under way is cancelled. The handle's next loop begins with what was
    /// learnt of the path.
    pub(super) fn end(&mut self) {
        self.cut.end();
        self.flying.drain(..).for_each(|strip| self.room.forget(strip.capacity));
        // Strips that somebody else sized may be so short that they show their own overhead.
        if self.strips.policy == StripPolicy::Auto {
            self.handle.keep_costs(self.way, self.pace.take_measured());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end();
    }
}
