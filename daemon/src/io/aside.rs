//! Operations on files of foreign file systems, and calls, on threads of their own.
//!
//! The server of such a file system (FUSE: any user's process) decides when operations end. The
//! kernel may begin an operation in the very call that submits it; then the shard's thread would
//! wait for a stranger. The ring's own workers are no help: they are few, and they write inodes of
//! one hash in turn. So a few that hang would keep every other file from being synced, extended or
//! written through the page cache. Therefore the ring never sees these operations. A thread that
//! may hang makes each of them, and rings the shard when it ends. The engine limits their number
//! ([`piped_core::limits::FOREIGN_OPS_MAX`]).
//!
//! Calls ([`super::calls`]) take several system calls each, of which the ring has not all, and may
//! wait for a device. Their number at each device is bounded, too
//! ([`piped_core::limits::CALLS_PER_DEVICE`]).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use piped_ring::Segment;
use rustix::event::{EventfdFlags, eventfd};

use super::UringError;
use super::answer::{Asked, Room};
use super::wake::WatchId;
use crate::closing::HeldFile;

/// Threads of a shard for files of foreign file systems and for calls: as many as the engine begins
/// there, and as many more for devices, each of which may begin one, and has so many calls.
const ASIDE_THREADS: usize = 2 * piped_core::limits::FOREIGN_OPS_MAX as usize;

/// Time that an idle thread waits for more jobs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Little is ever touched of it: what calls work with is on the heap.
const STACK_BYTES: usize = 256 * 1024;

/// A job for a thread. It keeps everything that it needs alive, whatever becomes of the driver.
pub(super) struct Job {
    /// Index among the driver's operations.
    pub(super) index: u32,
    pub(super) file: Arc<HeldFile>,
    pub(super) call: Call,
}

/// A system call with its arguments. Offsets in segments have been checked.
pub(super) enum Call {
    Read {
        offset: u64,
        memory: Piece,
    },
    Write {
        offset: u64,
        memory: Piece,
    },
    Sync,
    Allocate {
        offset: u64,
        length: u64,
    },
    /// A call of a file or directory.
    Answer(Asked),
}

/// A piece of a segment, which keeps the segment mapped.
pub(super) struct Piece {
    /// Held but not used: the address lies in it.
    pub(super) _segment: Arc<Segment>,
    pub(super) address: *mut u8,
    pub(super) length: u32,
}

// SAFETY: the address lies in the mapping that the piece keeps alive, which belongs to no thread,
// and is only handed to system calls: the kernel copies to or from memory that others may use
// meanwhile, which is what shared memory is for.
unsafe impl Send for Piece {}

/// The end of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) index: u32,
    /// Number of bytes, or a negative errno.
    pub(super) result: i32,
}

/// The pool of threads, as the shard sees it.
#[derive(Debug)]
pub(super) struct Aside {
    pool: Arc<Pool>,
    /// Doorbell that rings when jobs have ended.
    pub(super) watch: WatchId,
    /// Jobs given away and not taken back yet.
    in_flight: u32,
    ended: Vec<Ended>,
}

#[derive(Debug)]
struct Pool {
    state: Mutex<State>,
    more: Condvar,
    bell: OwnedFd,
}

struct State {
    jobs: VecDeque<Job>,
    ended: Vec<Ended>,
    threads: usize,
    idle: usize,
    /// Whether the shard takes no more results.
    closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { jobs, ended, threads, idle, closed } = self;
        f.debug_struct("State")
            .field("jobs", &jobs.len())
            .field("ended", ended)
            .field("threads", threads)
            .field("idle", idle)
            .field("closed", closed)
            .finish()
    }
}

impl Aside {
    /// Pool without threads. `watch` makes the driver wake up for a bell.
    pub(super) fn new(
        ops_max: usize,
        watch: impl FnOnce(OwnedFd) -> Result<WatchId, UringError>,
    ) -> Result<Self, UringError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|error| UringError::from_setup(error.into()))?;
        let watch = watch(bell.try_clone().map_err(UringError::from_setup)?)?;
        let state = State {
            jobs: VecDeque::with_capacity(ops_max),
            ended: Vec::with_capacity(ops_max),
            threads: 0,
            idle: 0,
            closed: false,
        };
        let pool = Pool { state: Mutex::new(state), more: Condvar::new(), bell };
        Ok(Self { pool: Arc::new(pool), watch, in_flight: 0, ended: Vec::with_capacity(ops_max) })
    }

    pub(super) fn start(&mut self, job: Job) {
        self.in_flight += 1;
        let mut state = self.pool.state();
        state.jobs.push_back(job);
        let wants_thread = state.idle < state.jobs.len() && state.threads < ASIDE_THREADS;
        state.threads += usize::from(wants_thread);
        drop(state);
        if !wants_thread {
            return self.pool.more.notify_one();
        }
        let pool = Arc::clone(&self.pool);
        let thread = std::thread::Builder::new().name("piped-aside".to_owned());
        if thread.stack_size(STACK_BYTES).spawn(move || pool.work()).is_err() {
            // No thread could be made: another one does the job, or nobody can.
            let mut state = self.pool.state();
            state.threads -= 1;
            if state.threads == 0
                && let Some(job) = state.jobs.pop_back()
            {
                state.ended.push(Ended { index: job.index, result: -libc::EAGAIN });
            }
        }
    }

    /// Gives up a job that no thread has begun, which ends as cancelled.
    pub(super) fn cancel(&mut self, index: u32) {
        let mut state = self.pool.state();
        if let Some(place) = state.jobs.iter().position(|job| job.index == index) {
            let job = state.jobs.remove(place);
            state.ended.push(Ended { index, result: -libc::ECANCELED });
            drop(state);
            drop(job);
        }
    }

    /// Whether a job has ended that was not taken yet.
    pub(super) fn has_news(&self) -> bool {
        self.in_flight > 0 && !self.pool.state().ended.is_empty()
    }

    /// Takes the jobs that have ended.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Ended> + '_ {
        if self.in_flight > 0 {
            std::mem::swap(&mut self.ended, &mut self.pool.state().ended);
            self.in_flight -= self.ended.len() as u32;
        }
        self.ended.drain(..)
    }
}

impl Drop for Aside {
    /// Threads that hang are left to the end of the process; they keep their memory alive.
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
        self.pool.more.notify_all();
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        // The lock is held for a few instructions that do not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loop of a thread.
    fn work(&self) {
        leave_the_shard();
        let mut room = Room::default();
        while let Some(job) = self.next() {
            let ended = Ended { index: job.index, result: job.call.make(&job.file, &mut room) };
            drop(job);
            self.state().ended.push(ended);
            // A bell that cannot be rung any more has been rung enough.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Next job; `None` if the thread is not needed.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if !state.closed {
                state.idle += 1;
                let waited = self.more.wait_timeout(state, PATIENCE);
                let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state = again;
                state.idle -= 1;
                if !timeout.timed_out() || !state.jobs.is_empty() {
                    continue;
                }
            }
            state.threads -= 1;
            return None;
        }
    }
}

impl Call {
    fn make(&self, file: &HeldFile, room: &mut Room) -> i32 {
        let fd = file.as_fd().as_raw_fd();
        let place = |offset: u64| libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
        // SAFETY: the descriptor is open as long as `file` is, and the memory mapped as long as the
        // piece is; both are borrowed for the call. The kernel keeps neither.
        let result = unsafe {
            match self {
                Self::Read { offset, memory } => {
                    libc::pread(fd, memory.address.cast(), memory.length as usize, place(*offset))
                }
                Self::Write { offset, memory } => {
                    libc::pwrite(fd, memory.address.cast(), memory.length as usize, place(*offset))
                }
                Self::Sync => libc::fdatasync(fd) as isize,
                Self::Allocate { offset, length } => {
                    libc::fallocate(fd, 0, place(*offset), place(*length)) as isize
                }
                Self::Answer(asked) => return asked.answer(file.as_fd(), room),
            }
        };
        match result {
            // A span's length is at most what an operation may move.
            0.. => i32::try_from(result).unwrap_or(i32::MAX),
            _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Moves off the shard's CPU and blocks signals. A thread started by the shard would otherwise stay
/// on that CPU, and take signals from the control thread.
fn leave_the_shard() {
    let mut everywhere = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| everywhere.set(cpu));
    // A thread that may not leave stays.
    let _ = rustix::thread::sched_setaffinity(None, &everywhere);
    // SAFETY: the calls write one signal set on this stack and change this thread's mask.
    unsafe {
        let mut all = std::mem::MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}
