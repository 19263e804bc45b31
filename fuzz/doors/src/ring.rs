//! A queue's memory, every word of it rewritten at any moment: the daemon's half believes a claimed
//! index exactly if it is possible, copies exactly the entry that it stands for, and writes exactly
//! its own words.
//!
//! Beside the half runs a book that counts requests from zero, without wrapping, and says what must
//! come. The first byte chooses the queue's length and where its indices begin; then come actions.

use core::sync::atomic::{AtomicU64, Ordering};

use piped_core::status::Status;
use piped_ring::half::{ClientHalf, ServerHalf};
use piped_ring::layout::{COMPLETION_WORDS, DESCRIPTOR_WORDS, FIRST_INDEX, PROGRESS_WORDS};
use piped_ring::{
    ClientFault, CompletionEntry, CompletionKind, Descriptor, Opcode, QueueLayout, Wake,
};

use crate::Seed;
use crate::input::Input;

const ACTIONS_MAX: usize = 400;

// Where the documentation has them, in words.
const SUBMISSION_TAIL: usize = 128 / 8;
const SUBMISSION_HEAD: usize = 256 / 8;
const COMPLETION_TAIL: usize = 384 / 8;
const COMPLETION_HEAD: usize = 512 / 8;
const DAEMON_ASLEEP: usize = 640 / 8;
const CLIENT_ASLEEP: usize = 768 / 8;
const SHARED: [usize; 6] = [
    SUBMISSION_TAIL,
    SUBMISSION_HEAD,
    COMPLETION_TAIL,
    COMPLETION_HEAD,
    DAEMON_ASLEEP,
    CLIENT_ASLEEP,
];
const ENTRIES: usize = 1024 / 8;

/// Checks the ring door with an input.
pub fn check(input: &[u8]) {
    let mut input = Input::new(input);
    let choice = input.byte();
    let first = match choice >> 2 & 3 {
        0 => FIRST_INDEX,
        1 => 0,
        2 => u64::MAX,
        _ => u64::from_le_bytes(input.array()),
    };
    let mut queue = Queue::new(1 << (choice & 3), first);
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        queue.act(&mut input);
    }
}

/// Numbers of the actions.
mod action {
    pub(super) const STEP: u8 = 0;
    pub(super) const SET: u8 = 1;
    pub(super) const SCRIBBLE: u8 = 2;
    pub(super) const TAKE: u8 = 3;
    pub(super) const FINISH: u8 = 4;
    pub(super) const RELEASE: u8 = 5;
    pub(super) const PUBLISH: u8 = 6;
    pub(super) const SLEEP: u8 = 7;
    pub(super) const PROGRESS: u8 = 8;
    pub(super) const SUBMIT: u8 = 9;
    pub(super) const FLUSH: u8 = 10;
    pub(super) const REAP: u8 = 11;
    pub(super) const CLIENT_SLEEP: u8 = 12;
    pub(super) const ATTACH: u8 = 13;
}

/// The memory, both halves, and the books of the daemon's.
struct Queue {
    words: Vec<AtomicU64>,
    layout: QueueLayout,
    first: u64,
    server: ServerHalf,
    client: ClientHalf,
    /// All of these count from the beginning.
    book: Book,
}

#[derive(Debug, Clone, Copy, Default)]
struct Book {
    /// Descriptors that the client was believed to have published, taken, and given back.
    tail: u64,
    taken: u64,
    released: u64,
    /// Completions written, published, and believed reaped.
    posted: u64,
    published: u64,
    reaped: u64,
    /// Requests without an end, and buffers that are held.
    running: u64,
    held: u64,
}

impl Queue {
    fn new(entries: u32, first: u64) -> Self {
        let layout = QueueLayout::new(entries).expect("a power of two");
        let words: Vec<AtomicU64> = (0..layout.words()).map(|_| AtomicU64::new(0)).collect();
        let server = ServerHalf::create(layout, &words, first);
        let client = ClientHalf::attach(&words).expect("a new queue");
        Self { words, layout, first, server, client, book: Book::default() }
    }

    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.byte() % 14 {
            action::STEP => {
                let word = SHARED[usize::from(input.byte()) % SHARED.len()];
                let step = input.byte() as i8;
                self.set(word, self.get(word).wrapping_add_signed(step.into()));
            }
            action::SET => {
                let word = SHARED[usize::from(input.byte()) % SHARED.len()];
                self.set(word, u64::from_le_bytes(input.array()));
            }
            action::SCRIBBLE => {
                let word = usize::from(input.short()) % self.words.len();
                self.set(word, u64::from_le_bytes(input.array()));
            }
            action::TAKE => self.take(),
            action::FINISH => self.finish(input.byte()),
            action::RELEASE => self.release(),
            action::PUBLISH => self.publish(),
            action::SLEEP => self.sleep(),
            action::PROGRESS => self.progress(input.byte(), input.byte()),
            action::SUBMIT => {
                let slot = u32::from(input.byte());
                let descriptor = Descriptor { slot, ..Descriptor::new(Opcode::Nop, slot.into()) };
                self.by_client(|client, words| client.submit(words, descriptor).is_ok());
            }
            action::FLUSH => {
                self.by_client(|client, words| client.flush(words));
            }
            action::REAP => {
                self.by_client(|client, words| client.reap(words).1);
            }
            action::CLIENT_SLEEP => {
                self.by_client(|client, words| {
                    let (ring, _) = client.prepare_sleep(words);
                    client.finish_sleep(words);
                    ring
                });
            }
            _ => self.attach(),
        }
        assert_eq!(self.server.outstanding(), self.book.running);
    }

    /// The claimed index as a count, if it lies between two counts.
    fn claim(&self, word: usize, least: u64, most: u64) -> Option<u64> {
        let count = self.get(word).wrapping_sub(self.first);
        (least..=most).contains(&count).then_some(count)
    }

    /// Whether the completions of one more request have places, by the book.
    fn has_room(&mut self) -> Result<bool, ()> {
        let owed = 2 * self.book.running + self.book.held + 2;
        let fits =
            |book: &Book| book.posted - book.reaped + owed <= self.layout.completions().into();
        if !fits(&self.book) {
            let claim = self.claim(COMPLETION_HEAD, self.book.reaped, self.book.published);
            self.book.reaped = claim.ok_or(())?;
        }
        Ok(fits(&self.book))
    }

    fn believe_tail(&mut self) -> Result<(), ()> {
        let most = self.book.released + u64::from(self.layout.entries());
        self.book.tail = self.claim(SUBMISSION_TAIL, self.book.tail, most).ok_or(())?;
        Ok(())
    }

    fn take(&mut self) {
        let room = self.has_room();
        let tail = match room {
            Ok(true) if self.book.taken == self.book.tail => self.believe_tail(),
            // Whether anybody waits for room is looked at, too.
            Ok(false) => self.believe_tail(),
            _ => Ok(()),
        };
        let taken = self.by_server(&[], |server, words| server.take(words));
        match (room, tail) {
            (Err(()), _) => assert!(matches!(taken, Err(ClientFault::CompletionIndex(_)))),
            (_, Err(())) => assert!(matches!(taken, Err(ClientFault::SubmissionIndex(_)))),
            (Ok(true), _) if self.book.taken < self.book.tail => {
                let descriptor = taken.expect("possible claims").expect("there is one");
                let index = self.first.wrapping_add(self.book.taken);
                let place = (index % u64::from(self.layout.entries())) as usize;
                let start = ENTRIES + place * DESCRIPTOR_WORDS;
                let words: Vec<u64> =
                    (start..start + DESCRIPTOR_WORDS).map(|word| self.get(word)).collect();
                assert_eq!(descriptor.to_words()[..], words);
                self.book.taken += 1;
                self.book.running += 1;
            }
            _ => assert_eq!(taken, Ok(None)),
        }
    }

    fn finish(&mut self, choice: u8) {
        if self.book.running == 0 {
            return;
        }
        self.book.running -= 1;
        let kind = if choice & 1 == 0 {
            CompletionKind::Finished
        } else {
            self.book.held += 1;
            CompletionKind::FinishedHeld
        };
        self.post(CompletionEntry::finished(choice.into(), Status::Ok, 9).with_kind(kind));
    }

    fn release(&mut self) {
        if self.book.held > 0 {
            self.book.held -= 1;
            self.post(CompletionEntry::default().with_kind(CompletionKind::Released));
        }
    }

    fn post(&mut self, entry: CompletionEntry) {
        let index = self.first.wrapping_add(self.book.posted);
        let place = (index % u64::from(self.layout.completions())) as usize;
        let entries = self.layout.entries() as usize;
        let start = ENTRIES + entries * DESCRIPTOR_WORDS + place * COMPLETION_WORDS;
        let mine: Vec<usize> = (start..start + COMPLETION_WORDS).collect();
        let posted = self.by_server(&mine, |server, words| server.post(words, entry));
        assert_eq!(posted, Ok(()), "room was promised");
        let words: Vec<u64> = mine.iter().map(|word| self.get(*word)).collect();
        assert_eq!(entry.to_words()[..], words);
        self.book.posted += 1;
    }

    fn publish(&mut self) {
        let asleep = match self.get(CLIENT_ASLEEP) {
            0 => Wake::Nobody,
            2 => Wake::Flag,
            _ => Wake::Bell,
        };
        let new = self.book.published != self.book.posted;
        let wake = self
            .by_server(&[SUBMISSION_HEAD, COMPLETION_TAIL, CLIENT_ASLEEP], |server, words| {
                server.publish(words)
            });
        let expected = if new { asleep } else { Wake::Nobody };
        assert_eq!(wake, expected, "a side is woken as it sleeps, and no other is");
        self.published();
    }

    /// Both indices are told.
    fn published(&mut self) {
        if self.book.released != self.book.taken {
            let head = self.first.wrapping_add(self.book.taken);
            assert_eq!(self.get(SUBMISSION_HEAD), head);
        }
        if self.book.published != self.book.posted {
            let tail = self.first.wrapping_add(self.book.posted);
            assert_eq!(self.get(COMPLETION_TAIL), tail);
        }
        self.book.released = self.book.taken;
        self.book.published = self.book.posted;
    }

    fn sleep(&mut self) {
        let (_, sleeps) = self.by_server(
            &[SUBMISSION_HEAD, COMPLETION_TAIL, CLIENT_ASLEEP, DAEMON_ASLEEP],
            |server, words| server.prepare_sleep(words),
        );
        self.published();
        let idle = self.believe_tail().is_ok()
            && (self.book.taken == self.book.tail || self.has_room() == Ok(false));
        assert_eq!(sleeps, idle, "it sleeps only when there is nothing to take");
        assert_eq!(self.get(DAEMON_ASLEEP), u64::from(sleeps));
        self.by_server(&[DAEMON_ASLEEP], |server, words| server.finish_sleep(words));
    }

    fn progress(&mut self, slot: u8, bytes: u8) {
        let (entries, bytes) = (self.layout.entries(), u64::from(bytes));
        let left = (entries as usize).saturating_sub(slot.into());
        let place = self.layout.words() - PROGRESS_WORDS * left;
        let mine: &[usize] = if u32::from(slot) < entries { &[place, place + 1] } else { &[] };
        let landed = bytes + 1..bytes + 3;
        self.by_server(mine, |server, words| {
            server.set_landed(words, slot.into(), landed.clone());
            server.set_progress(words, slot.into(), bytes);
        });
        if !mine.is_empty() {
            assert_eq!(self.get(place), bytes);
            assert_eq!(self.get(place + 1), landed.start << 32 | landed.end);
        }
    }

    /// A client joins again, whatever the header says now.
    fn attach(&mut self) {
        match ClientHalf::attach(&self.words) {
            Ok(client) => {
                assert!(client.layout().words() <= self.words.len());
                self.client = client;
            }
            Err(fault) => assert!(!fault.to_string().is_empty()),
        }
    }

    /// The daemon's half does something, and writes none but these words.
    fn by_server<T>(
        &mut self,
        mine: &[usize],
        act: impl FnOnce(&mut ServerHalf, &[AtomicU64]) -> T,
    ) -> T {
        let before: Vec<u64> = (0..self.words.len()).map(|word| self.get(word)).collect();
        let result = act(&mut self.server, &self.words);
        for (word, before) in before.iter().enumerate() {
            assert!(mine.contains(&word) || self.get(word) == *before, "word {word} was written");
        }
        result
    }

    /// The client's half does something, and leaves the daemon's indices and completions alone.
    fn by_client(&mut self, act: impl FnOnce(&mut ClientHalf, &[AtomicU64]) -> bool) -> bool {
        let layout = self.client.layout();
        let completions = ENTRIES + layout.entries() as usize * DESCRIPTOR_WORDS;
        let progress = layout.words() - PROGRESS_WORDS * layout.entries() as usize;
        let theirs: Vec<usize> =
            [SUBMISSION_HEAD, COMPLETION_TAIL].into_iter().chain(completions..progress).collect();
        let read =
            |queue: &Self| -> Vec<u64> { theirs.iter().map(|word| queue.get(*word)).collect() };
        let before = read(self);
        let result = act(&mut self.client, &self.words);
        assert_eq!(read(self), before, "a client writes what is the daemon's");
        result
    }
}

/// Queues in use and under attack.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    use action::*;
    let turn = |slot: u8| {
        [SUBMIT, slot, FLUSH, TAKE, PROGRESS, slot, 7, FINISH, slot, RELEASE, PUBLISH, REAP, FLUSH]
    };
    let turns: Vec<u8> = (0..24).flat_map(turn).collect();
    let with = |choice: u8, rest: &[u8]| [&[choice], rest].concat();
    let tail = |step: u8| vec![STEP, 0, step, TAKE, TAKE, PUBLISH, TAKE];
    let never_reaps: Vec<u8> =
        (0..12).flat_map(|slot| [SUBMIT, slot, FLUSH, TAKE, FINISH, 1, PUBLISH]).collect();
    [
        ("turns", with(1, &turns)),
        ("turns-from-zero", with(2 | 1 << 2, &turns)),
        ("turns-over-the-wrap", with(3 | 2 << 2, &turns)),
        ("one-entry", with(0, &turns)),
        ("tail-too-far", with(1, &tail(3))),
        ("tail-goes-back", with(1, &tail(0xff))),
        ("head-goes-back", with(1, &[&never_reaps[..], &[STEP, 3, 0xff, TAKE]].concat())),
        ("never-reaps", with(2, &never_reaps)),
        ("sleep", with(1, &[SLEEP, SUBMIT, 0, FLUSH, SLEEP, TAKE, SLEEP, CLIENT_SLEEP])),
        ("header", with(1, &[SCRIBBLE, 2, 0, 64, 0, 0, 0, 0, 0, 0, 0, ATTACH, SUBMIT, 1])),
        ("jump", with(1, &[SET, 0, 1, 2, 3, 4, 5, 6, 7, 8, TAKE, SLEEP, TAKE])),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .to_vec()
}
