//! The daemon's half of a queue against a client that writes anything anywhere, step by step.
//!
//! The player brings the steps: a property test its shrinking ones, a measurement a hundred million
//! from a seed. After each step the daemon's counts must be what honest book-keeping says, whatever
//! the client wrote; and what it owes must find room.

use piped_core::status::Status;

use super::{HostileClient, Word};
use crate::half::ClientFault;
use crate::layout::{CompletionEntry, CompletionKind, FIRST_INDEX};
use crate::queue::{QueueFds, ServerQueue};

/// One thing that one of the two does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The client overwrites a word of [`Word::ALL`].
    Set {
        /// Number of the word.
        word: usize,
        /// The value to write.
        value: u64,
    },
    /// The client adds to a word.
    Add {
        /// Number of the word.
        word: usize,
        /// How much; it wraps.
        by: u64,
    },
    /// The client claims indices that can be: all is reaped, and so much is submitted.
    Mend {
        /// Descriptors, at most a ring of them.
        submitted: u64,
    },
    /// The client overwrites bytes.
    Scribble {
        /// The offset to begin at; beyond the end it is refused.
        offset: u64,
        /// How many bytes to overwrite.
        length: u8,
        /// The byte to write.
        value: u8,
    },
    /// The client takes all pages away.
    Punch,
    /// The daemon takes a descriptor.
    Take,
    /// The daemon ends a request, if there is one.
    Finish {
        /// Whether its buffer is still in use.
        held: bool,
    },
    /// The daemon gives such a buffer back.
    Release,
    /// The daemon publishes its indices.
    Publish,
    /// The daemon gets ready to sleep, and wakes.
    Sleep,
    /// The daemon tells how far a request is.
    Progress {
        /// Slot of the request.
        slot: u32,
    },
}

impl Step {
    /// A step by chance: `below(n)` is a number below `n`.
    pub fn random(below: &mut impl FnMut(u64) -> u64) -> Self {
        let word = |below: &mut dyn FnMut(u64) -> u64| below(Word::ALL.len() as u64) as usize;
        match below(1000) {
            // A system call and a page: rare, or there is no time for anything else.
            0 if below(20) == 0 => Self::Punch,
            0..20 => Self::Set { word: word(below), value: below(u64::MAX) },
            20..30 => Self::Scribble {
                offset: below(3000),
                length: below(256) as u8,
                value: below(256) as u8,
            },
            30..120 => {
                let by = below(24).wrapping_sub(4);
                Self::Add { word: word(below), by }
            }
            120..280 => Self::Mend { submitted: below(9) },
            280..560 => Self::Take,
            560..760 => Self::Finish { held: below(4) == 0 },
            760..860 => Self::Release,
            860..990 => Self::Publish,
            990..995 => Self::Sleep,
            _ => Self::Progress { slot: below(1 << 10) as u32 },
        }
    }
}

/// Counts of what happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations of the daemon on its half, whatever came of them.
    pub operations: u64,
    /// Descriptors that were taken.
    pub taken: u64,
    /// Completions that were posted.
    pub posted: u64,
    /// Times the client's indices were found out.
    pub faults: u64,
}

/// The daemon's half does not keep its books: a bug of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Room was promised, and there is none.
    #[error("a completion that was owed found no room")]
    NoRoom,
    /// The number of requests under way is wrong.
    #[error("{found} requests are said to be under way, {right} are, in a ring of {entries}")]
    Count {
        /// The half's own count.
        found: u64,
        /// The count of honest book-keeping.
        right: u64,
        /// The most that there may be.
        entries: u32,
    },
}

/// Both sides of one queue.
#[derive(Debug)]
pub struct Duel {
    server: ServerQueue,
    client: HostileClient,
    running: u64,
    held: u64,
    /// Completions that the client may have seen.
    published: u64,
    tally: Tally,
}

impl Duel {
    /// Begins with a fresh queue.
    ///
    /// # Errors
    /// No memory, no descriptors, or another number of entries than a power of two.
    pub fn new(entries: u32) -> std::io::Result<Self> {
        let server = ServerQueue::create(entries)?;
        let client = attach(&server)?;
        Ok(Self { server, client, running: 0, held: 0, published: 0, tally: Tally::default() })
    }

    /// The client's side once more, for a thread that writes at the same time.
    ///
    /// # Errors
    /// No memory or no descriptors.
    pub fn second_client(&self) -> std::io::Result<HostileClient> {
        attach(&self.server)
    }

    /// Counts of what happened so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Does a step, and looks at the daemon's books.
    ///
    /// # Errors
    /// [`Broken`]; the step and those before it show how.
    pub fn play(&mut self, step: Step) -> Result<(), Broken> {
        match step {
            Step::Mend { submitted } => {
                // What the words say may be garbage by now; we know.
                let next = FIRST_INDEX.wrapping_add(self.tally.taken);
                let published = FIRST_INDEX.wrapping_add(self.published);
                self.client.set(Word::CompletionHead, published);
                self.client.set(Word::SubmissionTail, next.wrapping_add(submitted));
                return Ok(());
            }
            Step::Set { .. } | Step::Add { .. } | Step::Scribble { .. } | Step::Punch => {
                self.client.play(step);
                return Ok(());
            }
            Step::Take => self.take(),
            Step::Finish { held } if self.running > 0 => self.finish(held)?,
            Step::Release if self.held > 0 => self.release()?,
            // There is nothing that is owed.
            Step::Finish { .. } | Step::Release => return Ok(()),
            Step::Publish => {
                self.server.publish();
                self.published = self.tally.posted;
            }
            Step::Sleep => {
                // A fault is no sleep; `take` tells.
                let _ = self.server.prepare_sleep();
                self.published = self.tally.posted;
                self.server.finish_sleep();
                self.server.drain();
            }
            Step::Progress { slot } => self.server.set_progress(slot, u64::MAX),
        }
        self.tally.operations += 1;
        self.check()
    }

    fn take(&mut self) {
        match self.server.take() {
            Ok(Some(_)) => {
                self.running += 1;
                self.tally.taken += 1;
            }
            Ok(None) => {}
            // Nobody ends the session here: the worst daemon still stands.
            Err(ClientFault::SubmissionIndex(_) | ClientFault::CompletionIndex(_)) => {
                self.tally.faults += 1;
            }
        }
    }

    fn finish(&mut self, held: bool) -> Result<(), Broken> {
        self.running -= 1;
        self.held += u64::from(held);
        let kind = if held { CompletionKind::FinishedHeld } else { CompletionKind::Finished };
        self.post(CompletionEntry::finished(0, Status::Ok, 0).with_kind(kind))
    }

    fn release(&mut self) -> Result<(), Broken> {
        self.held -= 1;
        self.post(CompletionEntry::default().with_kind(CompletionKind::Released))
    }

    fn post(&mut self, entry: CompletionEntry) -> Result<(), Broken> {
        self.tally.posted += 1;
        self.server.post(entry).map_err(|_| Broken::NoRoom)
    }

    fn check(&self) -> Result<(), Broken> {
        let (found, right) = (self.server.outstanding(), self.running);
        let entries = self.server.layout().entries();
        if found == right && right <= u64::from(entries) {
            return Ok(());
        }
        Err(Broken::Count { found, right, entries })
    }
}

impl HostileClient {
    /// Does the client's part of a step; nothing for the daemon's.
    pub fn play(&self, step: Step) {
        match step {
            Step::Set { word, value } => self.set(Word::ALL[word], value),
            Step::Add { word, by } => {
                let word = Word::ALL[word];
                self.set(word, self.get(word).wrapping_add(by));
            }
            Step::Mend { submitted } => {
                let head = self.get(Word::SubmissionHead);
                self.set(Word::CompletionHead, self.get(Word::CompletionTail));
                self.set(Word::SubmissionTail, head.wrapping_add(submitted));
            }
            Step::Scribble { offset, length, value } => {
                // Beyond the end of a small queue is refused, as it would be to anybody.
                let _ = self.scribble(offset, &[value; 256][..usize::from(length)]);
            }
            // A kernel that does not know holes has none.
            Step::Punch => drop(self.punch()),
            _ => {}
        }
    }
}

fn attach(server: &ServerQueue) -> std::io::Result<HostileClient> {
    let [memory, to_daemon, to_client] = server.fds().map(|fd| fd.try_clone_to_owned());
    let fds = QueueFds { memory: memory?, to_daemon: to_daemon?, to_client: to_client? };
    HostileClient::attach(fds, server.layout()).map_err(std::io::Error::other)
}
