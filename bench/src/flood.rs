//! A stranger on the network that connects again and again and sends nonsense, and a program that
//! only accepts and closes, for comparison.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::nodes::under_parent;
use crate::stats::Random;

/// Connections in a second.
pub(crate) const RATE: u64 = 10_000;

/// Threads that connect: each waits until the other side has closed.
const THREADS: u64 = 8;

/// No server lets a caller wait longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nonsense {
    /// Bytes like the first message of a handshake.
    Handshakes,
    /// Bytes that look like frames.
    Frames,
}

impl Nonsense {
    fn words(self, random: &mut Random) -> Vec<u8> {
        let (head, length): (&[u8], usize) = match self {
            Self::Handshakes => (b"pipedK\x01\x01", 120),
            Self::Frames => (b"pD", 64),
        };
        let mut words = head.to_vec();
        words.resize_with(length, || random.below(256) as u8);
        words
    }
}

/// A flood, which ends when dropped.
pub(crate) struct Flood {
    over: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<(), Failure>>>,
}

impl Flood {
    /// Starts a flood from a network namespace against a listener.
    pub(crate) fn start(namespace: &Path, target: SocketAddr, nonsense: Nonsense) -> Self {
        let (over, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..THREADS)
            .map(|number| {
                let (over, made) = (Arc::clone(&over), Arc::clone(&made));
                let namespace = namespace.to_owned();
                thread::spawn(move || {
                    piped_netns::enter(&namespace).doing(namespace.display())?;
                    let mut random = Random::new(number);
                    pour(target, &over, &made, || nonsense.words(&mut random))
                })
            })
            .collect();
        Self { over, made, threads }
    }

    /// Connections made so far.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Ends the flood.
    ///
    /// # Errors
    /// A connection did not get through at all.
    pub(crate) fn end(mut self) -> Result<(), Failure> {
        self.over.store(true, Ordering::Relaxed);
        self.threads
            .drain(..)
            .try_for_each(|thread| crate::failure::joined(thread.join(), "the flood"))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Runs one thread's share at its pace; a late thread catches up.
fn pour(
    target: SocketAddr,
    over: &AtomicBool,
    made: &AtomicU64,
    mut words: impl FnMut() -> Vec<u8>,
) -> Result<(), Failure> {
    let begun = clock::now();
    let pause = Duration::from_nanos(1_000_000_000 * THREADS / RATE);
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        let due = pause * count;
        if let Some(early) = due.checked_sub(begun.elapsed()) {
            clock::pause(early);
        }
        let mut stream = TcpStream::connect(target).doing("connect")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // A connection that was closed before it sent anything is done, too.
        if stream.write_all(&words()).is_ok() {
            let _ = stream.read(&mut [0; 64]);
        }
        made.fetch_add(1, Ordering::Relaxed);
        count += 1;
    }
    Ok(())
}

/// A process that accepts, reads and closes, as fast as it can.
pub(crate) struct Sink(Child);

impl Sink {
    /// Starts the sink in a network namespace.
    pub(crate) fn start(namespace: &Path, listen: SocketAddr) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let mut command = under_parent(&program, Some(namespace))?;
        command.arg("sink").arg(listen.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = [0; 5];
        let mut output = child.stdout.take().expect("piped");
        let sink = Self(child);
        output.read_exact(&mut line).doing("the sink")?;
        Ok(sink)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Main function of the sink's process.
pub(crate) fn sink(listen: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind(listen).doing(listen)?;
    println!("here");
    std::io::stdout().flush()?;
    loop {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        let _ = stream.read(&mut [0; 256]);
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Memory in use by a process, in bytes.
pub(crate) fn resident(process: u32) -> Result<u64, Failure> {
    let path = PathBuf::from(format!("/proc/{process}/status"));
    let status = std::fs::read_to_string(&path).doing(path.display())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| Failure::new(format!("{}: no VmRSS", path.display())))
}
