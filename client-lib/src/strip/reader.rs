//! Strips of what is read.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::cut::Cut;
use super::pace::{Landed, Pace};
use super::room::Room;
use super::size::Loop;
use super::{Strip, StripError, StripPolicy, Strips};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::clock;
use crate::error::{BufferState, Cause, RequestError, SubmitFault};
use crate::handle::{Handle, Way};
use crate::path::PathCosts;
use crate::pending::{Pending, Waited};
use crate::queue::Queue;
use crate::request::{Done, Request};

/// Reads a range of a file or region and hands it out in strips, in order, while the next ones are on their way.
///
/// [`Self::next`] is called by the loop that computes; the time between two calls is taken for the computation on the
/// strip between them. Strips lie in buffers of the client's arena, `(U+1)` of them at most, which are used again. The
/// end of the file ends the strips early, the last one as long as there are bytes. Dropped, it cancels what is under
/// way. Several readers and writers may share a queue.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Client, OpenOptions, StripReader, Strips};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let file = client.open_export(Some("beta"), "data", "numbers", OpenOptions::read())?;
/// let mut queue = client.queue()?;
/// let mut sum = 0_u64;
/// let mut reader = StripReader::open(&client, &file, 0..file.len(), Strips::new().grain(8))?;
/// while let Some(strip) = reader.next(&mut queue)? {
///     let numbers = strip.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap()));
///     sum = numbers.fold(sum, u64::wrapping_add);
/// }
/// println!("{sum}");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct StripReader {
    handle: Handle,
    strips: Strips,
    cut: Cut,
    room: Room,
    pace: Pace,
    /// In order.
    flying: VecDeque<Flying>,
    /// The strip that the caller has, and since when.
    current: Option<(Buffer, u64)>,
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

impl StripReader {
    /// For the bytes of `range`, in the handle's file or region. Nothing is asked for yet.
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
        let known = handle.known_costs(Way::Read);
        let told = strips.costs.or_else(|| known.costs());
        let asks = strips.costs.is_none()
            && strips.policy == StripPolicy::Auto
            && start < end
            && known.is_stale(clock::now_ns());
        let cut = Cut::new(&strips, handle.direct_alignment(), start..end, false);
        Ok(Self {
            handle: handle.clone(),
            room: Room::new(client.clone(), strips.memory, cut.grain()),
            cut,
            pace: Pace::new(told, strips.compute),
            strips,
            flying: VecDeque::new(),
            current: None,
            asks,
        })
    }

    /// The next strip, when it is there; `None` after the last one. Takes the one before back, and asks for more.
    ///
    /// # Errors
    /// See [`StripError`]. There are no more strips then.
    pub fn next(&mut self, queue: &mut Queue) -> Result<Option<Strip<'_>>, StripError> {
        let now_ns = clock::now_ns();
        if let Some((buffer, since_ns)) = self.current.take() {
            self.pace.handle_computed(buffer.len() as u64, now_ns.saturating_sub(since_ns));
            self.room.give_back(buffer);
            self.cut.handle_done();
        }
        let result = self.fill(queue, now_ns).and_then(|()| self.take(queue));
        let Some((offset, buffer)) = result.inspect_err(|_| self.end())? else {
            self.end();
            return Ok(None);
        };
        let (buffer, _) = self.current.insert((buffer, clock::now_ns()));
        Ok(Some(Strip { offset, bytes: buffer.as_mut_slice() }))
    }

    /// The path's costs as this reader sees them: as told, until its strips have shown better.
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

    /// Issues strips until there are as many ahead as there are to be.
    fn fill(&mut self, queue: &mut Queue, now_ns: u64) -> Result<(), StripError> {
        if self.asks && !self.pace.is_told() {
            // The first one travels while the daemon is asked how long the others are to be.
            let guessed = self.cut.known(&self.pace);
            self.issue(queue, &guessed)?;
            self.ask(queue);
        }
        let known = self.cut.known(&self.pace);
        let mut issued = 0;
        let refills = self.flying.len() <= self.cut.refill(&known) as usize;
        while refills
            && !self.cut.is_over()
            && self.flying.len() <= self.cut.unroll(&known) as usize
        {
            if !self.issue(queue, &known)? {
                break;
            }
            issued += 1;
        }
        if issued > 0 {
            queue.flush();
            self.pace.handle_issued(issued, clock::now_ns().saturating_sub(now_ns));
        }
        if self.asks {
            // It answers while they travel.
            self.ask(queue);
        }
        Ok(())
    }

    fn ask(&mut self, queue: &mut Queue) {
        queue.flush();
        self.asks = false;
        if let Some(told) = self.handle.ask_costs(Way::Read) {
            self.pace.handle_told(told);
        }
    }

    /// Issues one strip. `false`: not before one of those under way has ended.
    fn issue(&mut self, queue: &mut Queue, known: &Loop) -> Result<bool, StripError> {
        let wanted = self.cut.next(known) as usize;
        let has_some = !self.flying.is_empty();
        let Some(buffer) = self.room.take(wanted, has_some)? else { return Ok(false) };
        let (bytes, capacity) = (buffer.len() as u64, buffer.capacity());
        let offset = self.cut.offset();
        let request = self.strips.dress(Request::read(&self.handle, offset, buffer));
        let issued_ns = clock::now_ns();
        match queue.submit(request) {
            Ok(pending) => {
                let alone = !has_some;
                self.flying.push_back(Flying {
                    pending,
                    offset,
                    bytes,
                    capacity,
                    issued_ns,
                    alone,
                });
                self.cut.advance(bytes);
                Ok(true)
            }
            Err(refused) if refused.fault == SubmitFault::Full && has_some => {
                self.room.give_back(refused.buffer);
                Ok(false)
            }
            Err(refused) => {
                let buffer = BufferState::Returned(refused.buffer);
                let cause = Cause::NotSubmitted(refused.fault);
                let error = RequestError { cause, bytes: 0, buffer };
                Err(StripError::Request { offset, bytes, error })
            }
        }
    }

    /// Waits for the oldest. `None`: there are no more bytes.
    fn take(&mut self, queue: &mut Queue) -> Result<Option<(u64, Buffer)>, StripError> {
        let Some(strip) = self.flying.pop_front() else { return Ok(None) };
        let Flying { pending, offset, bytes, capacity, issued_ns, alone } = strip;
        let (result, landed_ns) = match pending.wait_for(queue, Duration::ZERO) {
            Waited::Ended(result) => (result, None),
            Waited::Underway(pending) => {
                let result = pending.wait(queue);
                (result, Some(clock::now_ns()))
            }
        };
        let Done { bytes: done, payload: mut buffer, .. } = result.map_err(|error| {
            if !matches!(error.buffer, BufferState::Returned(_)) {
                self.room.forget(capacity);
            }
            StripError::Request { offset, bytes, error }
        })?;
        if done < bytes {
            // The end of the file. What is asked for behind it brings nothing.
            self.end();
            let fits = buffer.set_len(done as usize);
            debug_assert!(fits.is_ok(), "no more is done than was asked for");
            return Ok((done > 0).then_some((offset, buffer)));
        }
        self.pace.handle_landed(Landed { bytes, issued_ns, landed_ns, alone });
        Ok(Some((offset, buffer)))
    }

    /// No more strips: what is under way is cancelled. What was learnt of the path is for the handle's next reader.
    fn end(&mut self) {
        self.cut.end();
        self.flying.drain(..).for_each(|strip| self.room.forget(strip.capacity));
        // Strips that somebody else sized may be so short that they show their own overhead.
        if self.strips.policy == StripPolicy::Auto {
            self.handle.keep_costs(Way::Read, self.pace.take_measured());
        }
    }
}

impl Drop for StripReader {
    fn drop(&mut self) {
        self.end();
    }
}
