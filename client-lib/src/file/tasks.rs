//! Files of tasks: [`super::File`] for the traits of tokio and of `futures-io`.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use piped_core::call::Stat;

use super::Gathered;
use super::cursor::{Cursor, Plan, WRITE_BYTES};
use crate::buffer::Buffer;
use crate::calls::AsyncCalls;
use crate::handle::Handle;
use crate::strip::{StripStream, Strips};
use crate::tasks::AsyncQueue;

type Boxed<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + Sync>>;

/// A handle as a file with a position, for tasks: what takes `AsyncRead`, `AsyncWrite` or
/// `AsyncSeek`, of tokio (feature `tokio`) or of `futures-io` (feature `futures`).
///
/// Reads that follow each other are read ahead ([`StripStream`]). Writes are gathered until
/// 256 KiB are together, and until a flush, a seek or a read. Dropped, a file writes nothing more:
/// flush it, or shut it down. Bytes are copied between the arena and the caller's memory, since
/// memory that a dropped future leaves to the daemon could not be the caller's.
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn read() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{AsyncClient, AsyncFile, OpenOptions};
/// let client = AsyncClient::connect_default().await?;
/// let handle = client.open_export(Some("beta"), "data", "log", OpenOptions::read()).await?;
/// let mut file = AsyncFile::new(&client.queue().await?, &handle);
/// tokio::io::copy(&mut file, &mut tokio::io::stdout()).await?;
/// # Ok(()) }
/// ```
pub struct AsyncFile {
    queue: AsyncQueue,
    handle: Handle,
    strips: Strips,
    cursor: Cursor,
    /// The last bytes that were read, and where they begin.
    block: Option<(u64, Buffer)>,
    /// Reads ahead, and where the next strip begins.
    ahead: Option<(StripStream, u64)>,
    reading: Option<Boxed<(u64, Buffer)>>,
    gathered: Option<Gathered>,
    allocating: Option<Boxed<Buffer>>,
    writing: Option<Boxed<()>>,
    /// Asks how long the file is.
    sizing: Option<Boxed<Stat>>,
    #[cfg(feature = "tokio")]
    seeking: Option<SeekFrom>,
}

impl std::fmt::Debug for AsyncFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("AsyncFile");
        shown.field("handle", &self.handle).field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

impl AsyncFile {
    /// A file at position 0, whose requests go through that queue.
    #[must_use]
    pub fn new(queue: &AsyncQueue, handle: &Handle) -> Self {
        Self {
            queue: queue.clone(),
            handle: handle.clone(),
            strips: Strips::new(),
            cursor: Cursor::new(handle.len()),
            block: None,
            ahead: None,
            reading: None,
            gathered: None,
            allocating: None,
            writing: None,
            sizing: None,
            #[cfg(feature = "tokio")]
            seeking: None,
        }
    }

    /// Sets how to read ahead: memory, urgency, deadlines. From the next time on.
    #[must_use]
    pub fn strips(self, strips: Strips) -> Self {
        Self { strips, ..self }
    }

    /// The handle that is read and written.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Brings what was written to stable storage.
    ///
    /// # Errors
    /// A write or the sync failed.
    pub async fn sync(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_written(cx)).await?;
        Ok(self.queue.sync(&self.handle).await?)
    }

    /// The bytes at the position that are here.
    fn here(&self) -> &[u8] {
        let block = self.block.as_ref();
        block.map_or(&[], |(offset, buffer)| self.cursor.part(*offset, buffer.as_slice()))
    }

    /// Has bytes at the position, for somebody with room for `wanted`; none are the end.
    fn poll_here(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<&[u8]>> {
        ready!(self.poll_written(cx))?;
        while wanted > 0 && self.here().is_empty() && ready!(self.poll_fill(cx, wanted))? {}
        Poll::Ready(Ok(self.here()))
    }

    /// Reads what is at the position. `false`: there is nothing.
    fn poll_fill(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<bool>> {
        let at = self.cursor.position();
        loop {
            if let Some(reading) = &mut self.reading {
                let read = ready!(reading.as_mut().poll(cx));
                self.reading = None;
                let (offset, buffer) = read?;
                let end = offset + buffer.len() as u64;
                if end > offset {
                    self.cursor.handle_read(end);
                }
                self.block = Some((offset, buffer));
                return Poll::Ready(Ok(end > at));
            }
            if let Some((strips, next)) = self.ahead.as_mut().filter(|(_, next)| *next == at) {
                // Its memory is the next strip's.
                self.block = None;
                if let Some(strip) = ready!(strips.poll_strip(cx))? {
                    *next = strip.offset() + strip.len() as u64;
                    self.cursor.handle_read(*next);
                    self.block = Some((strip.offset(), strip.into_buffer()));
                    return Poll::Ready(Ok(true));
                }
                // The file may have been cut: the next plan is a single read, which finds out.
                self.cursor.set_length(at);
            }
            self.ahead = None;
            match self.cursor.plan(wanted) {
                Plan::Ahead(range) => {
                    let strips = StripStream::open(&self.queue, &self.handle, range, self.strips)?;
                    self.ahead = Some((strips, at));
                }
                Plan::Read(range) => self.begin_reading(range.start, range.end),
            }
        }
    }

    fn begin_reading(&mut self, offset: u64, end: u64) {
        let (queue, handle) = (self.queue.clone(), self.handle.clone());
        let length = (end - offset) as usize;
        let spare = self.block.take().map(|(_, buffer)| buffer);
        self.reading = Some(Box::pin(async move {
            let mut buffer = match spare.filter(|it| it.capacity() >= length) {
                Some(buffer) => buffer,
                None => queue.allocate(length).await?,
            };
            buffer.set_len(length).map_err(io::Error::other)?;
            let (mut buffer, bytes) = queue.read(&handle, offset, buffer).await?;
            buffer.set_len(bytes).map_err(io::Error::other)?;
            Ok((offset, buffer))
        }));
    }

    #[cfg(feature = "futures")]
    fn poll_read_into(&mut self, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        let from = ready!(self.poll_here(cx, to.len()))?;
        let count = from.len().min(to.len());
        to[..count].copy_from_slice(&from[..count]);
        self.cursor.advance(count);
        Poll::Ready(Ok(count))
    }

    fn poll_write_from(&mut self, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let at = self.cursor.position();
        let follows = |it: &Gathered| it.offset + it.length as u64 == at;
        if self.gathered.as_ref().is_some_and(|it| !follows(it) || it.length == it.buffer.len()) {
            ready!(self.poll_written(cx))?;
        }
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        // What was read may be what is written.
        (self.block, self.ahead, self.reading) = (None, None, None);
        if self.gathered.is_none() {
            let allocating = self.allocating.get_or_insert_with(|| {
                let client = self.queue.session().clone();
                Box::pin(async move { Ok(client.allocate(WRITE_BYTES).await?) })
            });
            let allocated = ready!(allocating.as_mut().poll(cx));
            self.allocating = None;
            self.gathered = Some(Gathered { offset: at, buffer: allocated?, length: 0 });
        }
        let count = self.gathered.as_mut().map_or(0, |it| it.add(from));
        self.cursor.advance(count);
        self.cursor.handle_written(self.cursor.position());
        Poll::Ready(Ok(count))
    }

    /// Writes what was gathered.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(writing) = &mut self.writing {
                let written = ready!(writing.as_mut().poll(cx));
                self.writing = None;
                written?;
            }
            let Some(Gathered { offset, mut buffer, length }) = self.gathered.take() else {
                return Poll::Ready(Ok(()));
            };
            let (queue, handle) = (self.queue.clone(), self.handle.clone());
            self.writing = Some(Box::pin(async move {
                buffer.set_len(length).map_err(io::Error::other)?;
                queue.write(&handle, offset, buffer).await?;
                Ok(())
            }));
        }
    }

    fn poll_seek_to(&mut self, cx: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        ready!(self.poll_written(cx))?;
        if let SeekFrom::End(_) = to {
            let sizing = self.sizing.get_or_insert_with(|| {
                let calls = AsyncCalls::new(&self.queue, &self.handle);
                Box::pin(async move { Ok(calls.stat("").await?) })
            });
            let known = ready!(sizing.as_mut().poll(cx));
            self.sizing = None;
            // What has no such call has the length that it had.
            if let Ok(stat) = known {
                self.cursor.set_length(stat.length);
            }
        }
        let before = self.cursor.position();
        let sought = self.cursor.seek(to);
        if self.cursor.position() != before {
            // It was for the place before.
            self.reading = None;
        }
        Poll::Ready(sought)
    }
}

#[cfg(feature = "tokio")]
mod tokio_io {
    use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

    use super::*;

    impl AsyncRead for AsyncFile {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            to: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let from = ready!(self.poll_here(cx, to.remaining()))?;
            let count = from.len().min(to.remaining());
            to.put_slice(&from[..count]);
            self.cursor.advance(count);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for AsyncFile {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            from: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_from(cx, from)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_written(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_written(cx)
        }
    }

    impl AsyncSeek for AsyncFile {
        fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
            if self.seeking.is_some() {
                return Err(io::Error::other("a seek is under way; complete it first"));
            }
            self.seeking = Some(to);
            Ok(())
        }

        fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
            let to = self.seeking.unwrap_or(SeekFrom::Current(0));
            let sought = ready!(self.poll_seek_to(cx, to));
            self.seeking = None;
            Poll::Ready(sought)
        }
    }
}

#[cfg(feature = "futures")]
mod futures {
    use futures_io::{AsyncRead, AsyncSeek, AsyncWrite};

    use super::*;

    impl AsyncRead for AsyncFile {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            to: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_read_into(cx, to)
        }
    }

    impl AsyncWrite for AsyncFile {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            from: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_from(cx, from)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_written(cx)
        }

        fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_written(cx)
        }
    }

    impl AsyncSeek for AsyncFile {
        fn poll_seek(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            to: SeekFrom,
        ) -> Poll<io::Result<u64>> {
            self.poll_seek_to(cx, to)
        }
    }
}
