//! Clients that copy or read in bulk for as long as they are wanted, with the bytes that each has
//! moved.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use piped_client::{Class, Client, ClientBuilder, Handle, OpenOptions, Queue, Request, WaitPolicy};

use crate::clock;
use crate::contest;
use crate::failure::{Doing as _, Failure, joined};
use crate::machine;
use crate::nodes::{EXPORT, Node, PEER};

/// Time between two looks at the progress of a copy.
const LOOK: Duration = Duration::from_millis(2);

/// Time until traces of the start are gone: socket buffers, credit and the first plans.
const SETTLE: Duration = Duration::from_millis(300);

/// Work that a bulk client repeats.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// Source, in the peer's export or on this machine.
    pub(crate) from: Source,
    /// Destination: a file of this machine, or the client's own memory.
    pub(crate) to: Option<PathBuf>,
    pub(crate) weight: u32,
    /// Requests of [`READ_BYTES`] that a reader has under way.
    pub(crate) reads: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum Source {
    Peer(&'static str),
    Here(PathBuf),
}

/// Length of a reader's requests, in bytes.
const READ_BYTES: usize = 256 << 10;

/// A client that does its job until it is dropped.
#[derive(Debug)]
pub(crate) struct Bulk {
    moved: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Bulk {
    pub(crate) fn start(node: &Node, job: &Job) -> Result<Self, Failure> {
        let client = ClientBuilder::new()
            .arena_bytes(((job.reads + 1) * READ_BYTES) as u64)
            .class(Class::Bulk)
            .weight(job.weight)
            .wait(WaitPolicy::Custom { spin: Duration::ZERO })
            .connect(&node.client_socket)
            .doing("connect")?;
        let queue = client.queue().doing("queue")?;
        let from = match &job.from {
            Source::Peer(name) => {
                client.open_export(Some(PEER), EXPORT, name, OpenOptions::read()).doing("open")?
            }
            Source::Here(path) => {
                client.open_file(path, OpenOptions::read()).doing(path.display())?
            }
        };
        let to = job.to.as_deref().map(|path| create(&client, path)).transpose()?;
        let moved = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let reads = job.reads;
        let (count, stopped) = (Arc::clone(&moved), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            // The caller may be pinned beside a shard.
            machine::unpin()?;
            match to {
                Some(to) => copy(queue, (&from, &to), &count, &stopped),
                None => read(&client, queue, (&from, reads), &count, &stopped),
            }
        });
        Ok(Self { moved, stop, thread: Some(thread) })
    }

    /// Bytes moved so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.map_or(Ok(()), |it| joined(it.join(), "a bulk client"))
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn create(client: &Client, path: &Path) -> Result<Handle, Failure> {
    let options = OpenOptions::read_write().create(true);
    client.open_file(path, options).doing(path.display())
}

fn copy(
    mut queue: Queue,
    (from, to): (&Handle, &Handle),
    moved: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let mut before = 0;
    while !stop.load(Ordering::Relaxed) {
        let copying =
            queue.submit_detached(Request::copy(from, 0, to, 0, from.len())).doing("copy")?;
        queue.flush();
        loop {
            if let Some(completed) = queue.wait(Some(LOOK)) {
                if !stop.load(Ordering::Relaxed) {
                    before += completed.result.doing("copy")?.bytes;
                }
                break;
            }
            moved.fetch_max(before + queue.progress(copying), Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                queue.cancel(copying);
            }
        }
        moved.fetch_max(before, Ordering::Relaxed);
    }
    Ok(())
}

fn read(
    client: &Client,
    mut queue: Queue,
    (from, reads): (&Handle, usize),
    moved: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let blocks = from.len() / READ_BYTES as u64;
    let mut next = 0;
    let mut ask = |queue: &mut Queue, buffer| {
        next = (next + 1) % blocks;
        let request = Request::read(from, next * READ_BYTES as u64, buffer);
        queue.submit_detached(request).map_err(|error| error.fault).doing("read")?;
        queue.flush();
        Ok::<(), Failure>(())
    };
    for _ in 0..reads {
        ask(&mut queue, client.allocate(READ_BYTES).doing("allocate")?)?;
    }
    while queue.underway() > 0 {
        let Some(completed) = queue.wait(Some(LOOK)) else { continue };
        let done = completed.result.doing("read")?;
        moved.fetch_add(done.bytes, Ordering::Relaxed);
        if !stop.load(Ordering::Relaxed) {
            ask(&mut queue, done.payload.expect("a read has a buffer"))?;
        }
    }
    Ok(())
}

/// Runs all jobs beside `body`. Returns the result of `body`, and the rate of each job meanwhile in
/// bytes per second.
pub(crate) fn beside<T>(
    jobs: &[(&Node, Job)],
    body: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, Vec<f64>), Failure> {
    let bulks = jobs.iter().map(|(node, job)| Bulk::start(node, job));
    let mut bulks = bulks.collect::<Result<Vec<_>, _>>()?;
    clock::pause(SETTLE);
    contest::check()?;
    let before: Vec<u64> = bulks.iter().map(Bulk::moved).collect();
    let begun = clock::now();
    let result = body()?;
    let seconds = begun.elapsed().as_secs_f64();
    let moved = bulks.iter().zip(before).map(|(bulk, before)| bulk.moved() - before);
    let rates = moved.map(|bytes| bytes as f64 / seconds).collect();
    bulks.iter_mut().try_for_each(Bulk::end)?;
    Ok((result, rates))
}
