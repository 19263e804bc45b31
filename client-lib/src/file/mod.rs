//! Files as the standard library has them: a position, and bytes in and out of any memory.
//!
//! Requests move bytes between a file and the arena, so a [`File`] copies between the arena and the
//! caller's memory. Programs for which that copy counts use a [`Queue`] and buffers.

mod cursor;
#[cfg(any(feature = "tokio", feature = "futures"))]
mod tasks;

use std::io::{self, Read, Seek, SeekFrom, Write};

use self::cursor::{Cursor, Plan, WRITE_BYTES};
#[cfg(any(feature = "tokio", feature = "futures"))]
pub use self::tasks::AsyncFile;
use crate::buffer::Buffer;
use crate::calls::Calls;
use crate::client::Client;
use crate::error::QueueError;
use crate::handle::Handle;
use crate::queue::Queue;
use crate::strip::{StripReader, Strips};

/// A handle as a file with a position, for what takes [`Read`], [`Write`] or [`Seek`].
///
/// A file has a queue and buffers of its own. Reads that follow each other are read ahead in strips
/// ([`StripReader`]). Writes are gathered until 256 KiB are together, and until [`Write::flush`], a
/// seek, a read, or the end: nobody notices if one fails when the file is dropped. `flush` hands
/// them to the daemon, and [`File::sync`] brings them to stable storage. [`SeekFrom::End`] asks how
/// long the file is now; a region is as long as it was.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::{BufRead as _, BufReader};
/// use piped_client::{Client, File, OpenOptions};
/// let client = Client::connect_default()?;
/// let handle = client.open_export(Some("beta"), "data", "table.csv", OpenOptions::read())?;
/// for line in BufReader::new(File::new(&client, &handle)?).lines() {
///     println!("{}", line?);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct File {
    client: Client,
    queue: Queue,
    handle: Handle,
    strips: Strips,
    cursor: Cursor,
    /// The last read that did not follow another.
    block: Option<(u64, Buffer)>,
    ahead: Option<StripReader>,
    /// Writes that were gathered.
    gathered: Option<Gathered>,
}

/// Bytes that are to be written.
#[derive(Debug)]
struct Gathered {
    offset: u64,
    buffer: Buffer,
    length: usize,
}

impl Gathered {
    /// Adds as many of the bytes as there is room for; how many.
    fn add(&mut self, from: &[u8]) -> usize {
        let room = &mut self.buffer.as_mut_slice()[self.length..];
        let count = room.len().min(from.len());
        room[..count].copy_from_slice(&from[..count]);
        self.length += count;
        count
    }
}

impl File {
    /// A file at position 0, with a queue of its own.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn new(client: &Client, handle: &Handle) -> Result<Self, QueueError> {
        Ok(Self {
            queue: client.queue()?,
            client: client.clone(),
            strips: Strips::new(),
            cursor: Cursor::new(handle.len()),
            handle: handle.clone(),
            block: None,
            ahead: None,
            gathered: None,
        })
    }

    /// Sets how to read ahead: memory, urgency, deadlines. From the next time on.
    #[must_use]
    pub fn strips(mut self, strips: Strips) -> Self {
        self.strips = strips;
        self
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
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        Ok(self.queue.sync(&self.handle)?)
    }

    /// The bytes at the position that are here.
    fn here(&self) -> &[u8] {
        let strip = self.ahead.as_ref().and_then(StripReader::current);
        let block = self.block.as_ref().map(|(offset, buffer)| (*offset, buffer.as_slice()));
        let parts = [strip, block].into_iter().flatten();
        let mut here = parts.map(|(offset, bytes)| self.cursor.part(offset, bytes));
        here.find(|part| !part.is_empty()).unwrap_or_default()
    }

    /// Reads what is at the position. `false`: there is nothing.
    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        let at = self.cursor.position();
        if self.ahead.as_ref().is_some_and(|it| it.end() == at) && self.next_strip()? {
            return Ok(true);
        }
        self.ahead = None;
        match self.cursor.plan(wanted) {
            Plan::Ahead(range) => {
                // The strips have the memory.
                self.block = None;
                let ahead = StripReader::open(&self.client, &self.handle, range, self.strips)?;
                self.ahead = Some(ahead);
                self.next_strip()
            }
            Plan::Read(range) => {
                let length = (range.end - range.start) as usize;
                let spare = self.block.take().map(|(_, buffer)| buffer);
                let mut buffer = match spare.filter(|it| it.capacity() >= length) {
                    Some(buffer) => buffer,
                    None => self.client.allocate(length)?,
                };
                buffer.set_len(length).map_err(io::Error::other)?;
                let (mut buffer, bytes) = self.queue.read(&self.handle, range.start, buffer)?;
                buffer.set_len(bytes).map_err(io::Error::other)?;
                let end = range.start + bytes as u64;
                if bytes > 0 {
                    self.cursor.handle_read(end);
                }
                self.block = Some((range.start, buffer));
                Ok(end > at)
            }
        }
    }

    fn next_strip(&mut self) -> io::Result<bool> {
        let Some(ahead) = &mut self.ahead else { return Ok(false) };
        let there = ahead.next(&mut self.queue)?.is_some();
        if there {
            self.cursor.handle_read(ahead.end());
        }
        Ok(there)
    }
}

impl Read for File {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.flush()?;
        if to.is_empty() || (self.here().is_empty() && !self.fill(to.len())?) {
            return Ok(0);
        }
        let from = self.here();
        let count = from.len().min(to.len());
        to[..count].copy_from_slice(&from[..count]);
        self.cursor.advance(count);
        Ok(count)
    }
}

impl Write for File {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        let at = self.cursor.position();
        let follows = |it: &Gathered| it.offset + it.length as u64 == at;
        if self.gathered.as_ref().is_some_and(|it| !follows(it) || it.length == it.buffer.len()) {
            self.flush()?;
        }
        // What was read may be what is written.
        (self.block, self.ahead) = (None, None);
        let gathered = match &mut self.gathered {
            Some(gathered) => gathered,
            none => {
                let buffer = self.client.allocate(WRITE_BYTES)?;
                none.insert(Gathered { offset: at, buffer, length: 0 })
            }
        };
        let count = gathered.add(from);
        self.cursor.advance(count);
        self.cursor.handle_written(self.cursor.position());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(Gathered { offset, mut buffer, length }) = self.gathered.take() else {
            return Ok(());
        };
        buffer.set_len(length).map_err(io::Error::other)?;
        self.queue.write(&self.handle, offset, buffer)?;
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.flush()?;
        if let SeekFrom::End(_) = to {
            // What has no such call has the length that it had.
            if let Ok(stat) = Calls::new(&mut self.queue, &self.handle).stat("") {
                self.cursor.set_length(stat.length);
            }
        }
        self.cursor.seek(to)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.cursor.position())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Who wants to know flushes before.
        let _ = self.flush();
    }
}
