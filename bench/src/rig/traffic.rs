//! Competitors: a stream for the link, a reader for the disk.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::link::{Link, Side};
use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::machine;
use crate::raw::Wait;
use crate::raw::disk::Disk;
use crate::stats::Random;

/// File of the reader, which nobody else reads.
pub(super) const FILE_NAME: &str = "others";

/// Time between two sends of the stream.
const TICK: Duration = Duration::from_millis(1);
const CHUNK: usize = 64 << 10;
/// Longer than the link needs for a chunk; a stop may take so long.
const STUCK: Duration = Duration::from_millis(500);

/// A stream from B to A, the direction of A's reads, at this many bytes per second.
#[derive(Debug)]
pub(super) struct Stream {
    stop: Arc<AtomicBool>,
    begun: Instant,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    pub(super) fn start(link: &Link, rate: u64) -> Result<Self, Failure> {
        // A socket stays in the namespace it was made in, wherever the threads are that use it.
        let [a, b] = Side::BOTH.map(|side| link.namespace(side));
        let listener = a.inside::<_, Failure>(|| Ok(TcpListener::bind(Side::A.address(0))?))?;
        let address = listener.local_addr()?;
        let sender = b.inside::<_, Failure>(|| Ok(TcpStream::connect(address)?))?;
        let (receiver, _) = listener.accept()?;
        sender.set_write_timeout(Some(STUCK))?;
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&received));
        let threads = vec![
            thread::spawn(move || send(sender, rate, &stopped)),
            thread::spawn(move || receive(receiver, &count)),
        ];
        Ok(Self { stop, begun: clock::now(), received, threads })
    }

    /// Bytes per second that came through.
    pub(super) fn rate(&self) -> f64 {
        self.received.load(Ordering::Relaxed) as f64 / self.begun.elapsed().as_secs_f64()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The sender's end closes the connection, which ends the receiver.
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sends at its rate until it is stopped. Bytes that the link does not take are not made up for.
fn send(mut socket: TcpStream, rate: u64, stop: &AtomicBool) {
    // The caller may be pinned beside a shard.
    let _ = machine::unpin();
    let chunk = vec![0x5a; CHUNK];
    let (start, mut sent) = (clock::now(), 0.0);
    while !stop.load(Ordering::Relaxed) {
        let due = start.elapsed().as_secs_f64() * rate as f64 - sent;
        let length = (due as usize).min(CHUNK);
        if length < CHUNK && due < rate as f64 * TICK.as_secs_f64() {
            clock::pause(TICK);
            continue;
        }
        match socket.write(&chunk[..length]) {
            Ok(0) => break,
            Ok(bytes) => sent += bytes as f64,
            Err(error) if is_a_timeout(&error) => {}
            Err(_) => break,
        }
        // A link that was too slow for a while is not flooded afterwards.
        sent = sent.max(start.elapsed().as_secs_f64() * rate as f64 - CHUNK as f64);
    }
    let _ = socket.shutdown(Shutdown::Both);
}

fn is_a_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn receive(mut socket: TcpStream, count: &AtomicU64) {
    let _ = machine::unpin();
    let mut chunk = vec![0; CHUNK];
    while let Ok(bytes @ 1..) = socket.read(&mut chunk) {
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A reader of another file of the same disk, past the page cache, with several reads at once.
#[derive(Debug)]
pub(super) struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const READ_BYTES: usize = 256 << 10;
const READ_DEPTH: usize = 4;
/// Time within which it notices that it is to stop.
const READ_MOMENT: Duration = Duration::from_millis(20);

impl Reader {
    pub(super) fn start(directory: &Path) -> Result<Self, Failure> {
        let file = directory.join(FILE_NAME);
        let disk = Disk::open(&file).doing(file.display())?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let _ = machine::unpin();
            let mut random = Random::new(3);
            while !stopped.load(Ordering::Relaxed) {
                let read = disk.read(READ_BYTES, READ_DEPTH, Wait::Block, READ_MOMENT, &mut random);
                if let Err(error) = read {
                    eprintln!("bench: the competing reader: {error}");
                    break;
                }
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_netns::owner::Owner;

    use super::*;
    use crate::outside;
    use crate::rig::link::UNSHAPED;

    #[test]
    fn a_stream_moves_bytes_over_the_link_no_faster_than_it_should() {
        if !rustix::process::geteuid().is_root() || !outside::is_installed("tc") {
            return eprintln!("skipped: it needs root and iproute2");
        }
        let owner = Owner::this().expect("there is a /proc");
        let link = Link::set_up(owner, UNSHAPED).expect("root may");
        const RATE: u64 = 10_000_000;
        let start = clock::now();
        let stream = Stream::start(&link, RATE).expect("a link");
        let enough = || (stream.received.load(Ordering::Relaxed) > 1_000_000).then_some(());
        clock::poll(Duration::from_secs(30), enough).expect("bytes arrive");
        let received = stream.received.load(Ordering::Relaxed) as f64;
        let most = start.elapsed().as_secs_f64() * RATE as f64;
        assert!(received <= most, "{received} bytes of at most {most}");
        drop(stream);
    }

    #[test]
    fn a_reader_begins_and_ends() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
        assert!(Reader::start(directory.path()).is_err(), "there is no file");
        let file = directory.path().join(FILE_NAME);
        crate::raw::disk::make_file(&file, 4 << 20).expect("a file");
        drop(Reader::start(directory.path()).expect("a file"));
    }
}
