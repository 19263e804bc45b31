//! Strips of what is written.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::cut::Cut;
use super::pace::{Landed, Pace};
use super::room::Room;
use super::{Strip, StripError, StripPolicy, Strips};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::clock;
use crate::error::{BufferState, Cause, RequestError, SubmitFault};
use crate::handle::{Handle, Way};
use crate::path::PathCosts;
use crate::pending::{Pending, Waited};
use crate::queue::Queue;
use crate::request::Request;

/// Writes a range of a file or region in strips that the caller fills, in order, while those before are on their way:
/// the mirror image of [`crate::StripReader`].
///
/// [`Self::next`] takes the strip before, as it was left, and gives the next one, whose bytes are whatever they were.
/// [`Self::finish`] waits for all of them; without it what is under way is cancelled, and the strip that the caller has
/// is not written.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Client, OpenOptions, StripWriter, Strips};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let options = OpenOptions::write().create(true);
/// let file = client.open_export(Some("beta"), "data", "squares", options)?;
/// let mut queue = client.queue()?;
/// let mut writer = StripWriter::open(&client, &file, 0..8 << 20, Strips::new().grain(8))?;
/// while let Some(mut strip) = writer.next(&mut queue)? {
///     let first = strip.offset() / 8;
///     for (number, eight) in (first..).zip(strip.chunks_exact_mut(8)) {
///         eight.copy_from_slice(&(number * number).to_le_bytes());
///     }
/// }
/// assert_eq!(writer.finish(&mut queue)?, 8 << 20);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct StripWriter {
    handle: Handle,
    strips: Strips,
    cut: Cut,
    room: Room,
    pace: Pace,
    /// In order.
    flying: VecDeque<Flying>,
    /// The strip that the caller fills, where it goes, and since when.
    current: Option<(Buffer, u64, u64)>,
    asks: bool,
    written: u64,
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

impl StripWriter {
    /// For the bytes of `range`, in the handle's file or region. Nothing is written yet.
    ///
    /// # Errors
    /// [`StripError::Range`].
    pub fn open(
        client: &Client,
        handle: &Handle,
        range: Range<u64>,
        strips: Strips,
    ) -> Result<Self, StripError> {
        let Range { start, end } = range;
        if start > end {
            return Err(StripError::Range { start, end });
        }
        let known = handle.known_costs(Way::Write);
        let told = strips.costs.or_else(|| known.costs());
        let asks = strips.costs.is_none()
            && strips.policy == StripPolicy::Auto
            && start < end
            && known.is_stale(clock::now_ns());
        let cut = Cut::new(&strips, handle.direct_alignment(), start..end, true);
        Ok(Self {
            handle: handle.clone(),
            room: Room::new(client.clone(), strips.memory, cut.grain()),
            cut,
            pace: Pace::new(told, strips.compute),
            strips,
            flying: VecDeque::new(),
            current: None,
            asks,
            written: 0,
        })
    }

    /// Writes the strip before, and gives the next one to be filled; `None` after the last one.
    ///
    /// # Errors
    /// See [`StripError`]. There are no more strips then.
    pub fn next(&mut self, queue: &mut Queue) -> Result<Option<Strip<'_>>, StripError> {
        let result = self.submit_current(queue).and_then(|()| self.prepare(queue));
        let Some((offset, buffer)) = result.inspect_err(|_| self.end())? else { return Ok(None) };
        let (buffer, ..) = self.current.insert((buffer, offset, clock::now_ns()));
        Ok(Some(Strip { offset, bytes: buffer.as_mut_slice() }))
    }

    /// Writes the strip that the caller has, if it has one, and waits for all: bytes written, from the range's start.
    ///
    /// # Errors
    /// See [`StripError`].
    pub fn finish(mut self, queue: &mut Queue) -> Result<u64, StripError> {
        self.submit_current(queue)?;
        while !self.flying.is_empty() {
            self.reap(queue)?;
        }
        Ok(self.written)
    }

    /// The path's costs as this writer sees them: as told, until its strips have shown better.
    #[must_use]
    pub fn costs(&self) -> PathCosts {
        self.pace.path()
    }

    /// The computation between strips, in seconds per byte, once there was some.
    #[must_use]
    pub fn compute(&self) -> Option<f64> {
        self.pace.compute()
    }

    /// Bytes of the arena that its strips have.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.room.bytes()
    }

    fn submit_current(&mut self, queue: &mut Queue) -> Result<(), StripError> {
        let Some((mut buffer, offset, since_ns)) = self.current.take() else { return Ok(()) };
        let now_ns = clock::now_ns();
        let (bytes, capacity) = (buffer.len() as u64, buffer.capacity());
        self.pace.handle_computed(bytes, now_ns.saturating_sub(since_ns));
        loop {
            let alone = self.flying.is_empty();
            let mut request = self.strips.dress(Request::write(&self.handle, offset, buffer));
            if self.strips.durable {
                request = request.durable();
            }
            let issued_ns = clock::now_ns();
            match queue.submit(request) {
                Ok(pending) => {
                    let strip = Flying { pending, offset, bytes, capacity, issued_ns, alone };
                    self.flying.push_back(strip);
                    queue.flush();
                    self.pace.handle_issued(1, clock::now_ns().saturating_sub(issued_ns));
                    return Ok(());
                }
                Err(refused) if refused.fault == SubmitFault::Full && !alone => {
                    buffer = refused.buffer;
                    self.reap(queue)?;
                }
                Err(refused) => {
                    let buffer = BufferState::Returned(refused.buffer);
                    let cause = Cause::NotSubmitted(refused.fault);
                    let error = RequestError { cause, bytes: 0, buffer };
                    return Err(StripError::Request { offset, bytes, error });
                }
            }
        }
    }

    /// A buffer for the next strip. Waits for one if as many are on their way as may be.
    fn prepare(&mut self, queue: &mut Queue) -> Result<Option<(u64, Buffer)>, StripError> {
        if self.cut.is_over() {
            return Ok(None);
        }
        if self.asks && !self.flying.is_empty() {
            // The first one travels meanwhile.
            self.asks = false;
            if let Some(told) = self.handle.ask_costs(Way::Write) {
                self.pace.handle_told(told);
            }
        }
        let known = self.cut.known(&self.pace);
        while self.flying.len() > self.cut.unroll(&known) as usize {
            self.reap(queue)?;
        }
        let wanted = self.cut.next(&known) as usize;
        loop {
            if let Some(buffer) = self.room.take(wanted, !self.flying.is_empty())? {
                let offset = self.cut.offset();
                self.cut.advance(buffer.len() as u64);
                return Ok(Some((offset, buffer)));
            }
            self.reap(queue)?;
        }
    }

    /// Waits for the oldest.
    fn reap(&mut self, queue: &mut Queue) -> Result<(), StripError> {
        let Some(strip) = self.flying.pop_front() else { return Ok(()) };
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
        self.written += done.bytes;
        self.room.give_back(done.payload);
        self.cut.handle_done();
        self.pace.handle_landed(Landed { bytes, issued_ns, landed_ns, alone });
        Ok(())
    }

    /// No more strips: what is under way is cancelled. What was learnt of the path is for the handle's next writer.
    fn end(&mut self) {
        self.cut.end();
        self.flying.drain(..).for_each(|strip| self.room.forget(strip.capacity));
        // Strips that somebody else sized may be so short that they show their own overhead.
        if self.strips.policy == StripPolicy::Auto {
            self.handle.keep_costs(Way::Write, self.pace.take_measured());
        }
    }
}

impl Drop for StripWriter {
    fn drop(&mut self) {
        self.end();
    }
}
