//! Clients that come, register much memory and die, one after the other, in processes of their own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use piped_client::{ClientBuilder, Request};

use crate::failure::{Doing as _, Failure};
use crate::nodes::under_parent;

/// Memory that each of them registers.
pub(crate) const ARENA_BYTES: u64 = 1 << 30;

/// Requests under way when it dies.
const REQUESTS: u64 = 64;

/// Main function of one client; its end comes from outside.
pub(crate) fn live(socket: &Path) -> Result<(), Failure> {
    let client = ClientBuilder::new().arena_bytes(ARENA_BYTES).connect(socket).doing("connect")?;
    let mut queue = client.queue().doing("queue")?;
    queue.nop().doing("nop")?;
    for _ in 0..REQUESTS {
        queue.submit_detached(Request::nop()).doing("nop")?;
    }
    println!("here");
    std::io::stdout().flush()?;
    loop {
        // Until it is killed, ask for more than the queue takes.
        if queue.submit_detached(Request::nop()).is_ok() {
            queue.flush();
        } else {
            while queue.poll().is_some() {}
            crate::clock::pause(std::time::Duration::from_millis(1));
        }
    }
}

/// A thread that starts and kills them, while [`Crowd::set`] says so.
#[derive(Debug)]
pub(crate) struct Crowd {
    comes: Arc<AtomicBool>,
    /// Whether one is alive, or about to be.
    busy: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    died: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Crowd {
    pub(crate) fn new(socket: &Path) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let socket = socket.to_owned();
        let [comes, busy, stop] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let died = Arc::new(AtomicU64::new(0));
        let shared = (Arc::clone(&comes), Arc::clone(&busy), Arc::clone(&stop), Arc::clone(&died));
        let thread = std::thread::spawn(move || {
            let (comes, busy, stop, died) = shared;
            while !stop.load(Ordering::SeqCst) {
                busy.store(true, Ordering::SeqCst);
                if comes.load(Ordering::SeqCst) {
                    one(&program, &socket)?;
                    died.fetch_add(1, Ordering::SeqCst);
                } else {
                    busy.store(false, Ordering::SeqCst);
                    std::thread::park();
                }
            }
            Ok(())
        });
        Ok(Self { comes, busy, stop, died, thread: Some(thread) })
    }

    /// Number of clients that have died.
    pub(crate) fn died(&self) -> u64 {
        self.died.load(Ordering::SeqCst)
    }

    /// Starts or stops the series; after a stop the last one has died.
    pub(crate) fn set(&self, comes: bool) -> Result<(), Failure> {
        self.comes.store(comes, Ordering::SeqCst);
        let thread = self.thread.as_ref().expect("it ends with this");
        thread.thread().unpark();
        let gone = crate::clock::poll(std::time::Duration::from_secs(60), || {
            (comes || thread.is_finished() || !self.busy.load(Ordering::SeqCst)).then_some(())
        });
        if gone.is_none() || thread.is_finished() {
            return Err(Failure::new("newcomers cannot connect: see the daemon's log"));
        }
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if let Ok(Err(failure)) = thread.join() {
                eprintln!("bench: newcomers: {failure}");
            }
        }
    }
}

/// A process that is killed and awaited, however it ends.
struct Mortal(Child);

impl Drop for Mortal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn one(program: &Path, socket: &PathBuf) -> Result<(), Failure> {
    let mut command = under_parent(program, None)?;
    command.arg("newcomer").arg(socket);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut child = Mortal(child);
    let mut line = String::new();
    let output = child.0.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line)?;
    if line != "here\n" {
        return Err(Failure::new("a newcomer was not let in"));
    }
    // SIGKILL, with requests under way and memory being registered.
    drop(child);
    Ok(())
}
