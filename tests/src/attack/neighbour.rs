//! A client that keeps to all rules beside those that keep to none, and checks every byte.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use piped_client::{Access, Client, Handle, OpenOptions, Queue, RegionExport, Request};

use crate::process::{BLOCKS_BYTES, Pair, eventually, pattern};

/// Bytes of one request.
const BLOCK: usize = 64 << 10;
/// Bytes of each thing it writes to.
const TARGET_BYTES: usize = 1 << 20;
/// Far more than a request needs, also on a machine that others use as well.
const DEADLINE: Duration = Duration::from_secs(120);

/// What was asked and came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests, all of which ended well.
    pub requests: u64,
    /// Bytes that were compared with what they must be.
    pub compared: u64,
    /// Bytes in `compared` that were wrong.
    pub wrong: u64,
}

/// A client of alpha's that reads and writes a local file, a file of beta's and a region at beta.
#[derive(Debug)]
pub struct Neighbour {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<Served>>,
    /// The region's owner, as long as it is used.
    _owner: (RegionExport, Client),
}

impl Neighbour {
    /// Starts it. `directory`: the pair's, for its own file.
    ///
    /// # Panics
    /// If it is not served.
    #[must_use]
    pub fn start(pair: &Pair, directory: &Path) -> Self {
        let owner = Client::connect(pair.beta.client_socket()).expect("it serves");
        let memory = owner.allocate(TARGET_BYTES).expect("memory");
        let export = owner.export_region("neighbour", memory, Access::READ_WRITE).expect("offered");
        let work = Work::new(pair, directory);
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let shared = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || work.run(&shared.0, &shared.1));
        Self { stop, rounds, thread: Some(thread), _owner: (export, owner) }
    }

    /// Waits until it has been served once more with everything, from beginning to end.
    ///
    /// # Panics
    /// If it is not, or has failed.
    pub fn await_served(&self) {
        let before = self.rounds.load(Ordering::SeqCst);
        eventually("the neighbour is served", || {
            let failed = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            // The round that is under way may have begun before this.
            (failed || self.rounds.load(Ordering::SeqCst) >= before + 2).then_some(())
        });
    }

    /// Stops it.
    ///
    /// # Panics
    /// If a request of its did not end well.
    #[must_use]
    pub fn stop(mut self) -> Served {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().expect("stopped once");
        thread.join().expect("all its requests end well")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    client: Client,
    queue: Queue,
    /// Files with the pattern in them: one here, one at beta.
    read: [Handle; 2],
    /// A file here, a file at beta, a region at beta.
    written: [Handle; 3],
    pattern: Vec<u8>,
    served: Served,
}

impl Work {
    fn new(pair: &Pair, directory: &Path) -> Self {
        let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
        let queue = client.queue().expect("a queue");
        let local = directory.join("root/blocks");
        let mine = directory.join("neighbour.local");
        fs::write(&mine, vec![0; TARGET_BYTES]).expect("written");
        fs::write(directory.join("root/neighbour.remote"), vec![0; TARGET_BYTES]).expect("written");
        let both = OpenOptions::read_write;
        let remote = |name, options| client.open_export(Some("beta"), "data", name, options);
        let read = [
            client.open_file(&local, OpenOptions::read()).expect("it is there"),
            remote("blocks", OpenOptions::read()).expect("it is there"),
        ];
        let region = client.open_region(Some("beta"), "neighbour", Access::READ_WRITE);
        let written = [
            client.open_file(&mine, both()).expect("it is there"),
            remote("neighbour.remote", both()).expect("it is there"),
            region.expect("offered"),
        ];
        let (pattern, served) = (pattern(BLOCKS_BYTES), Served::default());
        Self { client, queue, read, written, pattern, served }
    }

    fn run(mut self, stop: &AtomicBool, rounds: &AtomicU64) -> Served {
        let mut round = 0;
        while !stop.load(Ordering::SeqCst) {
            let at = round * BLOCK % BLOCKS_BYTES;
            for target in 0..self.read.len() {
                let expected = self.pattern[at..at + BLOCK].to_vec();
                self.check(|work| (&work.read[target], at), &expected);
            }
            let at = round * BLOCK % TARGET_BYTES;
            let bytes: Vec<u8> = (0..BLOCK).map(|n| (n * 7 + round * 13) as u8).collect();
            for target in 0..self.written.len() {
                self.write(target, at, &bytes);
                self.check(|work| (&work.written[target], at), &bytes);
            }
            round += 1;
            rounds.fetch_add(1, Ordering::SeqCst);
        }
        self.served
    }

    fn write(&mut self, target: usize, at: usize, bytes: &[u8]) {
        let mut buffer = self.client.allocate(BLOCK).expect("memory");
        buffer.as_mut_slice().copy_from_slice(bytes);
        let request = Request::write(&self.written[target], at as u64, buffer).deadline(DEADLINE);
        let done = self.queue.run(request).unwrap_or_else(|e| panic!("write to {target}: {e}"));
        assert_eq!(done.bytes, BLOCK as u64, "write to {target}");
        self.served.requests += 1;
    }

    fn check(&mut self, from: impl FnOnce(&Self) -> (&Handle, usize), expected: &[u8]) {
        let buffer = self.client.allocate(BLOCK).expect("memory");
        let (handle, at) = from(self);
        let request = Request::read(handle, at as u64, buffer).deadline(DEADLINE);
        let done = self.queue.run(request).unwrap_or_else(|error| panic!("read: {error}"));
        assert_eq!(done.bytes, BLOCK as u64);
        let got = done.payload.as_slice();
        self.served.requests += 1;
        self.served.compared += BLOCK as u64;
        self.served.wrong +=
            got.iter().zip(expected).filter(|(one, other)| one != other).count() as u64;
    }
}
