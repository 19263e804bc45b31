//! Strips of what is written.

use std::ops::Range;

use super::flight::{Ended, Flight, Tried};
use super::{Strip, StripError, Strips};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::clock;
use crate::connection::Growth;
use crate::handle::{Handle, Way};
use crate::path::PathCosts;
use crate::queue::Queue;

/// Writes a range of a file or region in strips that the caller fills, in order, while those before
/// are on their way: the mirror image of [`crate::StripReader`].
///
/// [`Self::next`] takes the strip before, as it was left, and gives the next one, with whatever
/// bytes were in it. [`Self::finish`] waits for all of them. Without it what is under way is
/// cancelled, and the strip that the caller has is not written.
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
    flight: Flight,
    /// The strip that the caller fills, where it goes, and since when.
    current: Option<(Buffer, u64, u64)>,
    written: u64,
}

impl StripWriter {
    /// A writer for the bytes of `range` in the handle's file or region. Nothing is written yet.
    ///
    /// # Errors
    /// [`StripError::Range`].
    pub fn open(
        client: &Client,
        handle: &Handle,
        range: Range<u64>,
        strips: Strips,
    ) -> Result<Self, StripError> {
        let flight = Flight::open(client, handle, range, strips, (Way::Write, Growth::Waits))?;
        Ok(Self { flight, current: None, written: 0 })
    }

    /// Writes the strip before, and gives the next one to be filled; `None` after the last one.
    ///
    /// # Errors
    /// See [`StripError`]. There are no more strips then.
    pub fn next(&mut self, queue: &mut Queue) -> Result<Option<Strip<'_>>, StripError> {
        let result = self.submit_current(queue).and_then(|()| self.prepare(queue));
        let Some((offset, buffer)) = result.inspect_err(|_| self.flight.end())? else {
            return Ok(None);
        };
        let (buffer, ..) = self.current.insert((buffer, offset, clock::now_ns()));
        Ok(Some(Strip { offset, bytes: buffer.as_mut_slice() }))
    }

    /// Writes the strip that the caller has, if it has one, and waits for all: bytes written, from
    /// the range's start.
    ///
    /// # Errors
    /// See [`StripError`].
    pub fn finish(mut self, queue: &mut Queue) -> Result<u64, StripError> {
        self.submit_current(queue)?;
        while self.flight.ahead() > 0 {
            self.reap(queue)?;
        }
        Ok(self.written)
    }

    /// The path's costs as this writer sees them: as told, until its strips have shown better.
    #[must_use]
    pub fn costs(&self) -> PathCosts {
        self.flight.pace.path()
    }

    /// The computation between strips, in seconds per byte, once there was some.
    #[must_use]
    pub fn compute(&self) -> Option<f64> {
        self.flight.pace.compute()
    }

    /// Bytes of the arena that its strips have.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.flight.room.bytes()
    }

    fn submit_current(&mut self, queue: &mut Queue) -> Result<(), StripError> {
        let Some((mut buffer, offset, since_ns)) = self.current.take() else { return Ok(()) };
        let now_ns = clock::now_ns();
        let computed_ns = now_ns.saturating_sub(since_ns);
        self.flight.pace.handle_computed(buffer.len() as u64, computed_ns);
        loop {
            match self.flight.issue(queue, offset, buffer)? {
                Tried::Issued { at_ns } => {
                    queue.flush();
                    let took_ns = clock::now_ns().saturating_sub(at_ns);
                    self.flight.pace.handle_issued(1, took_ns);
                    return Ok(());
                }
                Tried::Full(refused) => buffer = refused,
            }
            self.reap(queue)?;
        }
    }

    /// A buffer for the next strip. Waits for one if as many are on their way as may be.
    fn prepare(&mut self, queue: &mut Queue) -> Result<Option<(u64, Buffer)>, StripError> {
        if self.flight.cut.is_over() {
            return Ok(None);
        }
        if self.flight.asks() && self.flight.ahead() > 0 {
            // The first one travels meanwhile.
            self.flight.ask();
        }
        let known = self.flight.cut.known(&self.flight.pace);
        while self.flight.ahead() > self.flight.cut.unroll(&known) as usize {
            self.reap(queue)?;
        }
        let wanted = self.flight.cut.next(&known) as usize;
        loop {
            let flight = &mut self.flight;
            if let Some(buffer) = flight.room.take(wanted, flight.ahead() > 0)? {
                let offset = flight.cut.offset();
                flight.cut.advance(buffer.len() as u64);
                return Ok(Some((offset, buffer)));
            }
            self.reap(queue)?;
        }
    }

    /// Waits for the oldest.
    fn reap(&mut self, queue: &mut Queue) -> Result<(), StripError> {
        let Some(Ended { done, landed, .. }) = self.flight.reap(queue)? else { return Ok(()) };
        self.written += done.bytes;
        self.flight.room.give_back(done.payload);
        self.flight.cut.handle_done();
        self.flight.pace.handle_landed(landed);
        Ok(())
    }
}
