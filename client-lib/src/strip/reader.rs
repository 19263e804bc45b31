//! Strips of what is read.

use std::ops::Range;

use super::flight::{Ended, Flight, Tried};
use super::size::Loop;
use super::{Strip, StripError, Strips};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::clock;
use crate::connection::Growth;
use crate::handle::{Handle, Way};
use crate::path::PathCosts;
use crate::queue::Queue;

/// Reads a range of a file or region and hands it out in strips, in order, while the next ones are
/// on their way.
///
/// [`Self::next`] is called by the loop that computes; the time between two calls is taken for the
/// computation on the strip between them. Strips lie in buffers of the client's arena, `(U+1)` of
/// them at most, which are used again. The end of the file ends the strips early, the last one as
/// long as there are bytes. Dropped, it cancels what is under way. Several readers and writers may
/// share a queue.
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
///     for eight in strip.chunks_exact(8) {
///         sum = sum.wrapping_add(u64::from_le_bytes(eight.try_into()?));
///     }
/// }
/// println!("{sum}");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct StripReader {
    flight: Flight,
    /// The strip that the caller has, and since when.
    current: Option<(Buffer, u64)>,
    /// The offset of the last strip's first byte, and the one behind its last.
    place: Range<u64>,
}

impl StripReader {
    /// A reader for the bytes of `range` in the handle's file or region. Nothing is requested yet.
    ///
    /// # Errors
    /// [`StripError::Range`].
    pub fn open(
        client: &Client,
        handle: &Handle,
        range: Range<u64>,
        strips: Strips,
    ) -> Result<Self, StripError> {
        let flight = Flight::open(client, handle, range, strips, (Way::Read, Growth::Waits))?;
        let place = flight.cut.offset()..flight.cut.offset();
        Ok(Self { flight, current: None, place })
    }

    /// The next strip, when it is there; `None` after the last one. Takes the one before back, and
    /// asks for more.
    ///
    /// # Errors
    /// See [`StripError`]. There are no more strips then.
    pub fn next(&mut self, queue: &mut Queue) -> Result<Option<Strip<'_>>, StripError> {
        let now_ns = clock::now_ns();
        let flight = &mut self.flight;
        if let Some((buffer, since_ns)) = self.current.take() {
            flight.pace.handle_computed(buffer.len() as u64, now_ns.saturating_sub(since_ns));
            flight.room.give_back(buffer);
            flight.cut.handle_done();
        }
        let result = fill(flight, queue, now_ns).and_then(|()| take(flight, queue));
        let Some((offset, buffer)) = result.inspect_err(|_| flight.end())? else {
            flight.end();
            return Ok(None);
        };
        let (buffer, _) = self.current.insert((buffer, clock::now_ns()));
        self.place = offset..offset + buffer.len() as u64;
        Ok(Some(Strip { offset, bytes: buffer.as_mut_slice() }))
    }

    /// The strip that the caller has, and the offset of its first byte.
    pub(crate) fn current(&self) -> Option<(u64, &[u8])> {
        self.current.as_ref().map(|(buffer, _)| (self.place.start, buffer.as_slice()))
    }

    /// The offset behind the last strip.
    pub(crate) fn end(&self) -> u64 {
        self.place.end
    }

    /// The path's costs as this reader sees them: as told, until its strips have shown better.
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
}

/// Issues strips until there are as many ahead as there are to be.
fn fill(flight: &mut Flight, queue: &mut Queue, now_ns: u64) -> Result<(), StripError> {
    if flight.asks() && !flight.pace.is_told() {
        // The first one travels while the daemon is asked how long the others are to be.
        let guessed = flight.cut.known(&flight.pace);
        issue(flight, queue, &guessed)?;
        queue.flush();
        flight.ask();
    }
    let known = flight.cut.known(&flight.pace);
    let mut issued = 0;
    let refills = flight.ahead() <= flight.cut.refill(&known) as usize;
    while refills
        && !flight.cut.is_over()
        && flight.ahead() <= flight.cut.unroll(&known) as usize
        && issue(flight, queue, &known)?
    {
        issued += 1;
    }
    if issued > 0 {
        queue.flush();
        flight.pace.handle_issued(issued, clock::now_ns().saturating_sub(now_ns));
    }
    if flight.asks() {
        // The daemon answers while they travel.
        queue.flush();
        flight.ask();
    }
    Ok(())
}

/// Issues one strip. `false`: not before one of those under way has ended.
fn issue(flight: &mut Flight, queue: &mut Queue, known: &Loop) -> Result<bool, StripError> {
    let wanted = flight.cut.next(known) as usize;
    let Some(buffer) = flight.room.take(wanted, flight.ahead() > 0)? else { return Ok(false) };
    let bytes = buffer.len() as u64;
    match flight.issue(queue, flight.cut.offset(), buffer)? {
        Tried::Issued { .. } => flight.cut.advance(bytes),
        Tried::Full(buffer) => {
            flight.room.give_back(buffer);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits for the oldest. `None`: there are no more bytes.
fn take(flight: &mut Flight, queue: &mut Queue) -> Result<Option<(u64, Buffer)>, StripError> {
    let Some(Ended { offset, done, landed }) = flight.reap(queue)? else { return Ok(None) };
    let (done, mut buffer) = (done.bytes, done.payload);
    if done < landed.bytes {
        // The end of the file. What is asked for behind it brings nothing.
        flight.end();
        let fits = buffer.set_len(done as usize);
        debug_assert!(fits.is_ok(), "no more is done than was asked for");
        return Ok((done > 0).then_some((offset, buffer)));
    }
    flight.pace.handle_landed(landed);
    Ok(Some((offset, buffer)))
}
