//! State that loops over strips share, whichever way the bytes go: the range, its memory, and
//! requests under way.

use std::collections::VecDeque;
use std::ops::Range;
#[cfg(feature = "async")]
use std::pin::Pin;
#[cfg(feature = "async")]
use std::task::{Context, Poll};
use std::time::Duration;

use super::cut::Cut;
use super::pace::{Landed, Pace};
use super::room::Room;
use super::{StripError, StripPolicy, Strips};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::clock;
use crate::connection::Growth;
use crate::error::{BufferState, RequestError, SubmitFault};
use crate::handle::{Handle, Way};
use crate::pending::{Pending, Waited};
use crate::queue::Queue;
use crate::request::{Done, Request};
#[cfg(feature = "async")]
use crate::tasks::{AsyncQueue, Running};

/// A range that is read or written in strips. `P` stands for a request under way.
#[derive(Debug)]
pub(super) struct Flight<P = Pending<Buffer>> {
    handle: Handle,
    way: Way,
    strips: Strips,
    pub(super) cut: Cut,
    pub(super) room: Room,
    pub(super) pace: Pace,
    /// Strips on their way, in order.
    flying: VecDeque<Flying<P>>,
    /// Whether the daemon is to be asked for the path's costs.
    asks: bool,
}

/// A strip on its way.
#[derive(Debug)]
struct Flying<P> {
    pending: P,
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

impl<P> Flight<P> {
    /// A flight for the bytes of `range` in the handle's file or region. Nothing is issued yet.
    pub(super) fn open(
        client: &Client,
        handle: &Handle,
        range: Range<u64>,
        strips: Strips,
        (way, growth): (Way, Growth),
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
            room: Room::new(client.clone(), strips.memory, cut.grain(), growth),
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

    /// The request of the strip at `offset`, as long as the buffer.
    fn request(&self, offset: u64, buffer: Buffer) -> Request<Buffer> {
        match self.way {
            Way::Read => self.strips.dress(Request::read(&self.handle, offset, buffer)),
            Way::Write => {
                let request = self.strips.dress(Request::write(&self.handle, offset, buffer));
                if self.strips.durable { request.durable() } else { request }
            }
        }
    }

    /// The oldest strip on its way has ended.
    fn conclude<Q>(
        &mut self,
        strip: &Flying<Q>,
        result: Result<Done<Buffer>, RequestError>,
        landed_ns: Option<u64>,
    ) -> Result<Ended, StripError> {
        let &Flying { offset, bytes, capacity, issued_ns, alone, .. } = strip;
        let done = result.map_err(|error| {
            if !matches!(error.buffer, BufferState::Returned(_)) {
                self.room.forget(capacity);
            }
            StripError::Request { offset, bytes, error }
        })?;
        Ok(Ended { offset, done, landed: Landed { bytes, issued_ns, landed_ns, alone } })
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

impl Flight {
    /// Issues the strip at `offset`, as long as the buffer.
    pub(super) fn issue(
        &mut self,
        queue: &mut Queue,
        offset: u64,
        buffer: Buffer,
    ) -> Result<Tried, StripError> {
        let (bytes, capacity) = (buffer.len() as u64, buffer.capacity());
        let alone = self.flying.is_empty();
        let request = self.request(offset, buffer);
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
            Err(refused) => Err(StripError::Request { offset, bytes, error: refused.into() }),
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
        let strip = Flying { pending: (), offset, bytes, capacity, issued_ns, alone };
        self.conclude(&strip, result, landed_ns).map(Some)
    }
}

#[cfg(feature = "async")]
impl Flight<Running<Buffer>> {
    /// Issues the strip at `offset`, as long as the buffer.
    pub(super) fn issue(&mut self, queue: &AsyncQueue, offset: u64, buffer: Buffer) {
        let (bytes, capacity) = (buffer.len() as u64, buffer.capacity());
        let alone = self.flying.is_empty();
        let issued_ns = clock::now_ns();
        let pending = queue.submit(self.request(offset, buffer));
        self.flying.push_back(Flying { pending, offset, bytes, capacity, issued_ns, alone });
    }

    /// Waits for the oldest strip on its way; `None` if there is none. `waits`: it was not there
    /// the last time.
    pub(super) fn poll_reap(
        &mut self,
        cx: &mut Context<'_>,
        waits: &mut bool,
    ) -> Poll<Result<Option<Ended>, StripError>> {
        let Some(strip) = self.flying.front_mut() else { return Poll::Ready(Ok(None)) };
        let Poll::Ready(result) = Pin::new(&mut strip.pending).poll(cx) else {
            *waits = true;
            return Poll::Pending;
        };
        let landed_ns = std::mem::take(waits).then(clock::now_ns);
        let strip = self.flying.pop_front().expect("it was looked at");
        Poll::Ready(self.conclude(&strip, result, landed_ns).map(Some))
    }

    /// What asks the daemon for the path's costs, if that is to be done.
    pub(super) fn costs(&mut self) -> Option<(Handle, Way)> {
        std::mem::take(&mut self.asks).then(|| (self.handle.clone(), self.way))
    }
}

impl<P> Drop for Flight<P> {
    fn drop(&mut self) {
        self.end();
    }
}
