//! The client of the demo: an application of alpha that wants beta's file.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use piped_client::{Buffer, Client, ClientBuilder, Handle, OpenOptions, Pending, Queue};

use crate::client;
use crate::clock;
use crate::failure::Failure;
use crate::random;

/// Most bytes of the timed pass: enough to see the throughput, also of a very large file.
pub(super) const TIMED_BYTES_MAX: u64 = 1 << 30;
/// Bytes of one request, and requests outstanding, as for an application that streams.
const PIECE: u64 = 8 << 20;
const DEPTH: usize = 3;
const ARENA: u64 = 48 << 20;

/// Receives the progress, and may stop the work.
pub(super) trait Watch {
    /// Reports `done` of `total` bytes; an error stops the work.
    fn step(&self, what: &str, done: u64, total: u64) -> Result<(), Failure>;
}

/// A session with the file open.
#[derive(Debug)]
pub(super) struct Reader {
    client: Client,
    queue: Queue,
    file: Handle,
    reads: u64,
}

impl Reader {
    pub(super) fn open(
        socket: &Path,
        peer: &str,
        export: &str,
        name: &str,
    ) -> Result<Self, Failure> {
        let client = client::connect(ClientBuilder::new().arena_bytes(ARENA), socket)?;
        let queue = client.queue().map_err(|error| client::queue(&error))?;
        let file = client
            .open_export(Some(peer), export, name, OpenOptions::read())
            .map_err(|error| client::open(format_args!("{peer}:{export}/{name}"), &error))?;
        Ok(Self { client, queue, file, reads: 0 })
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file.len()
    }

    /// Passes the first `bytes` of the file, in order, to `consume`.
    pub(super) fn read_all(
        &mut self,
        bytes: u64,
        what: &str,
        watch: &impl Watch,
        mut consume: impl FnMut(&[u8]),
    ) -> Result<(), Failure> {
        let mut free = Vec::with_capacity(DEPTH);
        for _ in 0..DEPTH {
            free.push(client::allocate(&self.client, PIECE.min(bytes))?);
        }
        let mut underway: VecDeque<Pending<Buffer>> = VecDeque::with_capacity(DEPTH);
        let (mut asked, mut done) = (0, 0);
        while done < bytes {
            watch.step(what, done, bytes)?;
            while asked < bytes
                && let Some(mut buffer) = free.pop()
            {
                let length = PIECE.min(bytes - asked);
                let shorter = usize::try_from(length).unwrap_or(usize::MAX);
                buffer.set_len(shorter).map_err(|error| Failure::failed(error.to_string()))?;
                let read = self.queue.submit_read(&self.file, asked, buffer);
                underway.push_back(read.map_err(|error| client::submit("read", error.fault))?);
                asked += length;
            }
            let Some(oldest) = underway.pop_front() else { break };
            let read = oldest.wait(&mut self.queue).map_err(|e| client::request("read", &e))?;
            if read.bytes != read.payload.len() as u64 {
                return Err(Failure::failed("the file became shorter while it was read"));
            }
            consume(read.payload.as_slice());
            done += read.bytes;
            free.push(read.payload);
        }
        Ok(())
    }

    /// Time of one read of `size` bytes, at another offset than the last.
    pub(super) fn read_somewhere(&mut self, size: u64) -> Result<Duration, Failure> {
        self.reads += 1;
        let offset = random::offset(self.reads, size, self.file_bytes());
        let buffer = client::allocate(&self.client, size)?;
        let begin = clock::now();
        let read = self.queue.read(&self.file, offset, buffer);
        let time = begin.elapsed();
        let (_, bytes) = read.map_err(|error| client::request("read", &error))?;
        if bytes as u64 == size {
            Ok(time)
        } else {
            Err(Failure::failed(format!("a read of {size} bytes gave {bytes}")))
        }
    }

    /// Copies the whole file to a new file of this node, synced; no byte passes through this
    /// process.
    pub(super) fn copy_to(&mut self, path: &Path, watch: &impl Watch) -> Result<(), Failure> {
        let to = self
            .client
            .open_file(path, OpenOptions::write().create(true))
            .map_err(|error| client::open(path.display(), &error))?;
        let bytes = self.file_bytes();
        let mut underway: VecDeque<Pending<()>> = VecDeque::with_capacity(DEPTH);
        let (mut asked, mut done) = (0, 0);
        while done < bytes {
            watch.step("copying", done, bytes)?;
            while asked < bytes && underway.len() < DEPTH {
                let length = PIECE.min(bytes - asked);
                let copy = self.queue.submit_copy((&self.file, asked), (&to, asked), length);
                underway.push_back(copy.map_err(|error| client::submit("copy", error.fault))?);
                asked += length;
            }
            let Some(oldest) = underway.pop_front() else { break };
            let copy = oldest.wait(&mut self.queue).map_err(|e| client::request("copy", &e))?;
            if copy.bytes == 0 {
                return Err(Failure::failed("the file became shorter while it was copied"));
            }
            done += copy.bytes;
        }
        self.queue.sync(&to).map_err(|error| client::request("sync", &error))
    }
}
