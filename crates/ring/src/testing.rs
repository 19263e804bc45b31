//! The client's side of a queue, played dishonestly: raw access to the queue's memory and bells.
//!
//! For tests of the holder of a [`crate::ServerQueue`]. Nothing here knows a rule of the queue: it
//! does exactly what an honest client never does.

mod duel;
mod memory;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;

pub use self::duel::{Broken, Duel, Step, Tally};
pub use self::memory::{MemoryAbuse, abuse_memory, punch};
use crate::layout::{Descriptor, QueueLayout, word};
use crate::queue::QueueFds;
use crate::segment::{OutOfRange, Segment, SegmentFault};

/// The shared words a client could overwrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The client's own: descriptors before it are complete.
    SubmissionTail,
    /// The daemon's: descriptors before it were copied out.
    SubmissionHead,
    /// The daemon's: completions before it are complete.
    CompletionTail,
    /// The client's own: completions before it were copied out.
    CompletionHead,
    /// The daemon's: not zero while it sleeps.
    DaemonAsleep,
    /// The client's own: not zero while it sleeps.
    ClientAsleep,
}

impl Word {
    /// Every word of the header.
    pub const ALL: [Self; 6] = [
        Self::SubmissionTail,
        Self::SubmissionHead,
        Self::CompletionTail,
        Self::CompletionHead,
        Self::DaemonAsleep,
        Self::ClientAsleep,
    ];

    fn offset(self) -> u64 {
        let place = match self {
            Self::SubmissionTail => word::SUBMISSION_TAIL,
            Self::SubmissionHead => word::SUBMISSION_HEAD,
            Self::CompletionTail => word::COMPLETION_TAIL,
            Self::CompletionHead => word::COMPLETION_HEAD,
            Self::DaemonAsleep => word::DAEMON_ASLEEP,
            Self::ClientAsleep => word::CLIENT_ASLEEP,
        };
        place as u64 * 8
    }
}

/// A client that keeps to nothing.
#[derive(Debug)]
pub struct HostileClient {
    memory: Segment,
    layout: QueueLayout,
    to_daemon: OwnedFd,
    to_client: OwnedFd,
}

impl HostileClient {
    /// Take the client's side of a queue.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub fn attach(fds: QueueFds, layout: QueueLayout) -> Result<Self, SegmentFault> {
        let QueueFds { memory, to_daemon, to_client } = fds;
        Ok(Self { memory: Segment::from_fd(memory)?, layout, to_daemon, to_client })
    }

    /// The value of a word.
    #[must_use]
    pub fn get(&self, word: Word) -> u64 {
        let mut bytes = [0; 8];
        self.memory.load(word.offset(), &mut bytes).expect("the header is inside the memory");
        u64::from_ne_bytes(bytes)
    }

    /// Overwrite a word of the header.
    pub fn set(&self, word: Word, value: u64) {
        let bytes = value.to_ne_bytes();
        self.memory.store(word.offset(), &bytes).expect("the header is inside the memory");
    }

    /// Write a descriptor where the ring keeps the entry of that index, whichever side owns it now.
    pub fn write_descriptor(&self, index: u64, descriptor: Descriptor) {
        let place = index % u64::from(self.layout.entries());
        let start = self.layout.descriptors_start() as u64 * 8;
        let bytes: Vec<u8> = descriptor.to_words().iter().flat_map(|w| w.to_ne_bytes()).collect();
        self.memory
            .store(start + place * bytes.len() as u64, &bytes)
            .expect("the ring is inside the memory");
    }

    /// Overwrite any bytes of the memory.
    ///
    /// # Errors
    /// Outside of the memory, which even a hostile client does not reach.
    pub fn scribble(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.memory.store(offset, bytes)
    }

    /// Take all pages out of the queue's memory. They read as zeros afterwards.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn punch(&self) -> std::io::Result<()> {
        punch(self.memory.fd(), 0, self.memory.len())
    }

    /// The memory of the queue.
    #[must_use]
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Make the bells such that a careless `read` or `write` of the daemon would wait forever.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn jam_bells(&self) -> std::io::Result<()> {
        for bell in [&self.to_daemon, &self.to_client] {
            rustix::fs::fcntl_setfl(bell, OFlags::empty())?;
        }
        Ok(())
    }

    /// The bell to the daemon.
    #[must_use]
    pub fn to_daemon(&self) -> BorrowedFd<'_> {
        self.to_daemon.as_fd()
    }

    /// The bell to the client.
    #[must_use]
    pub fn to_client(&self) -> BorrowedFd<'_> {
        self.to_client.as_fd()
    }
}
