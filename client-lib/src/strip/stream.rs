//! Strips of what is read, for tasks.

use std::ops::{Deref, DerefMut, Range};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::flight::{Ended, Flight};
use super::{StripError, Strips};
use crate::buffer::Buffer;
use crate::clock;
use crate::connection::Growth;
use crate::error::AllocateError;
use crate::handle::{Handle, Way};
use crate::path::PathCosts;
use crate::tasks::{AsyncQueue, Running};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send + Sync>>;

/// Reads a range of a file or region and hands it out in strips, in order, while the next ones are
/// on their way: a [`crate::StripReader`] for tasks.
///
/// A strip is the program's; its memory goes back to the arena when it is dropped. One that is kept
/// does not count as memory of the stream any more. The time between a strip and the next poll is
/// taken for the computation on the strip.
///
/// ```no_run
/// # async fn sum(
/// #     queue: piped_client::AsyncQueue, file: piped_client::Handle,
/// # ) -> Result<u64, Box<dyn std::error::Error>> {
/// use piped_client::{StripStream, Strips};
/// let mut sum = 0_u64;
/// let mut strips = StripStream::open(&queue, &file, 0..file.len(), Strips::new().grain(8))?;
/// while let Some(strip) = strips.next().await? {
///     for eight in strip.chunks_exact(8) {
///         sum = sum.wrapping_add(u64::from_le_bytes(eight.try_into()?));
///     }
/// }
/// # Ok(sum) }
/// ```
pub struct StripStream {
    queue: AsyncQueue,
    flight: Flight<Running<Buffer>>,
    /// Bytes that the caller computes on, and since when.
    lent: Option<(u64, u64)>,
    /// Enough are on their way, as far as is known.
    filled: bool,
    /// The oldest on its way was waited for.
    waits: bool,
    costs: Option<(Boxed<Option<PathCosts>>, Handle)>,
    memory: Option<(Boxed<Result<Buffer, AllocateError>>, Use)>,
    begun: bool,
}

/// What memory is for that was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Having the arena grow: strips take theirs from there.
    Room,
    /// The next strip, however short.
    Strip,
}

impl std::fmt::Debug for StripStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StripStream").field("flight", &self.flight).finish_non_exhaustive()
    }
}

impl StripStream {
    /// A stream of the bytes of `range` in the handle's file or region. Nothing is requested yet.
    ///
    /// # Errors
    /// [`StripError::Range`].
    pub fn open(
        queue: &AsyncQueue,
        handle: &Handle,
        range: Range<u64>,
        strips: Strips,
    ) -> Result<Self, StripError> {
        let client = queue.session().client();
        let flight = Flight::open(client, handle, range, strips, (Way::Read, Growth::None))?;
        Ok(Self {
            queue: queue.clone(),
            flight,
            lent: None,
            filled: false,
            waits: false,
            costs: None,
            memory: None,
            begun: false,
        })
    }

    /// The next strip; `None` after the last one. Dropped, the strip is the next call's.
    ///
    /// # Errors
    /// See [`StripError`]. There are no more strips then.
    pub async fn next(&mut self) -> Result<Option<OwnedStrip>, StripError> {
        std::future::poll_fn(|cx| self.poll_strip(cx)).await
    }

    /// The next strip, when it is there; `None` after the last one.
    pub(crate) fn poll_strip(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<OwnedStrip>, StripError>> {
        if let Some((bytes, since_ns)) = self.lent.take() {
            let computed_ns = clock::now_ns().saturating_sub(since_ns);
            self.flight.pace.handle_computed(bytes, computed_ns);
            self.flight.cut.handle_done();
        }
        let polled = self.poll_landed(cx);
        if !matches!(polled, Poll::Ready(Ok(Some(_))) | Poll::Pending) {
            self.flight.end();
        }
        polled
    }

    fn poll_landed(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<OwnedStrip>, StripError>> {
        if !self.begun {
            self.begun = true;
            self.begin();
        }
        self.poll_costs(cx);
        if !self.filled {
            match self.poll_fill(cx) {
                Poll::Ready(Ok(())) => self.filled = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        let Poll::Ready(ended) = self.flight.poll_reap(cx, &mut self.waits) else {
            return Poll::Pending;
        };
        self.filled = false;
        let Some(Ended { offset, done, landed }) = ended? else { return Poll::Ready(Ok(None)) };
        let (bytes, mut buffer) = (done.bytes, done.payload);
        self.flight.room.forget(buffer.capacity());
        if bytes < landed.bytes {
            // The end of the file. What is asked for behind it brings nothing.
            self.flight.end();
            let fits = buffer.set_len(bytes as usize);
            debug_assert!(fits.is_ok(), "no more is done than was asked for");
        } else {
            self.flight.pace.handle_landed(landed);
        }
        self.lent = Some((bytes, clock::now_ns()));
        Poll::Ready(Ok((bytes > 0).then_some(OwnedStrip { offset, buffer })))
    }

    /// Asks for the path's costs, and for the memory of all strips at once: later they take what is
    /// there.
    fn begin(&mut self) {
        let client = self.queue.session();
        self.costs = self.flight.costs().map(|(handle, way)| {
            let (client, asked) = (client.clone(), handle.clone());
            let costs = async move { client.costs(&asked, way).await.ok().flatten() };
            (Box::pin(costs) as Boxed<_>, handle)
        });
        let bytes = usize::try_from(self.flight.cut.left()).unwrap_or(usize::MAX);
        let wanted = self.flight.room.bounds().0.min(bytes);
        self.memory = (wanted > 0).then(|| (self.allocate(wanted), Use::Room));
    }

    /// Allocates a buffer, or a shorter one.
    fn allocate(&self, wanted: usize) -> Boxed<Result<Buffer, AllocateError>> {
        let (client, grain) = (self.queue.session().clone(), self.flight.room.bounds().1);
        Box::pin(async move {
            let mut length = wanted;
            loop {
                match client.allocate(length).await {
                    Err(_) if length / 2 >= grain => length = length / 2 / grain * grain,
                    allocated => return allocated,
                }
            }
        })
    }

    fn poll_costs(&mut self, cx: &mut Context<'_>) {
        if let Some((costs, handle)) = &mut self.costs
            && let Poll::Ready(told) = costs.as_mut().poll(cx)
        {
            if let Some(told) = handle.keep_told(Way::Read, told) {
                self.flight.pace.handle_told(told);
            }
            (self.costs, self.filled) = (None, false);
        }
    }

    /// Issues strips until there are as many ahead as there are to be.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StripError>> {
        let now_ns = clock::now_ns();
        let known = self.flight.cut.known(&self.flight.pace);
        let refills = self.flight.ahead() <= self.flight.cut.refill(&known) as usize;
        let mut issued = 0;
        while refills
            && !self.flight.cut.is_over()
            && self.flight.ahead() <= self.flight.cut.unroll(&known) as usize
        {
            if self.costs.is_some() && !self.flight.pace.is_told() && self.flight.ahead() > 0 {
                // The first one travels while the daemon is asked how long the others are to be.
                break;
            }
            if let Some((memory, wanted_for)) = &mut self.memory {
                let Poll::Ready(allocated) = memory.as_mut().poll(cx) else {
                    return Poll::Pending;
                };
                match (allocated?, *wanted_for) {
                    (buffer, Use::Room) => drop(buffer),
                    (buffer, Use::Strip) => self.flight.room.adopt(buffer),
                }
                self.memory = None;
            }
            let wanted = self.flight.cut.next(&known) as usize;
            match self.flight.room.take(wanted, self.flight.ahead() > 0) {
                Ok(Some(buffer)) => {
                    let (offset, bytes) = (self.flight.cut.offset(), buffer.len() as u64);
                    self.flight.issue(&self.queue, offset, buffer);
                    self.flight.cut.advance(bytes);
                    issued += 1;
                }
                Ok(None) => break,
                // Somebody else has the memory that was there.
                Err(_) => self.memory = Some((self.allocate(wanted), Use::Strip)),
            }
        }
        if issued > 0 {
            self.flight.pace.handle_issued(issued, clock::now_ns().saturating_sub(now_ns));
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream for StripStream {
    type Item = Result<OwnedStrip, StripError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_strip(cx).map(Result::transpose)
    }
}

/// Some of the bytes of a [`StripStream`].
#[derive(Debug)]
pub struct OwnedStrip {
    offset: u64,
    buffer: Buffer,
}

impl OwnedStrip {
    /// The offset of the strip's first byte in the file or region.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The memory of the strip, as long as its bytes.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Deref for OwnedStrip {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_slice()
    }
}

impl DerefMut for OwnedStrip {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut_slice()
    }
}
