//! The rings against an obviously right queue, from any starting index, over heap memory.
#![cfg(not(loom))]

use std::collections::VecDeque;

use piped_core::status::Status;
use piped_ring::atomic::AtomicU64;
use piped_ring::cursor::{Consumer, Place, Producer};
use piped_ring::half::{ClientHalf, ServerHalf};
use piped_ring::{CompletionEntry, CompletionKind, Descriptor, Opcode, QueueLayout, Wake};
use proptest::prelude::*;

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Indices near the wrap as often as anywhere else.
fn first_index() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), u64::MAX - 40..=u64::MAX, 0..40_u64]
}

#[derive(Debug, Clone, Copy)]
enum RingOp {
    Push(u64),
    Publish,
    RefreshProducer,
    Pop,
    Release,
}

fn ring_op() -> impl Strategy<Value = RingOp> {
    prop_oneof![
        4 => any::<u64>().prop_map(RingOp::Push),
        2 => Just(RingOp::Publish),
        1 => Just(RingOp::RefreshProducer),
        4 => Just(RingOp::Pop),
        2 => Just(RingOp::Release),
    ]
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(
        exponent in 0_u32..5,
        first in first_index(),
        ops in prop::collection::vec(ring_op(), 1..400),
    ) {
        let capacity = 1_u64 << exponent;
        let place = Place { tail: 0, head: 1, entries: 2, capacity };
        let memory = words(2 + 3 * capacity as usize);
        for word in &memory[..2] {
            word.store(first, piped_ring::atomic::Ordering::Relaxed);
        }
        let mut producer = Producer::<3>::new(place, first);
        let mut consumer = Consumer::<3>::new(place, first);

        // The oracle: what was pushed but not published, what is on its way, and the places that
        // were read but not given back.
        let mut unpublished = VecDeque::new();
        let mut queue = VecDeque::new();
        let mut unreleased = 0;
        // What the producer may know about free places is older than the truth, never newer.
        let mut occupied_known = 0;
        for op in ops {
            let occupied = (unpublished.len() + queue.len()) as u64 + unreleased;
            match op {
                RingOp::Push(value) => {
                    let entry = [value, !value, value.rotate_left(17)];
                    let pushed = producer.push(&memory, entry);
                    prop_assert_eq!(pushed, occupied_known < capacity);
                    if pushed {
                        prop_assert!(occupied < capacity, "a place in use was written");
                        unpublished.push_back(entry);
                        occupied_known += 1;
                    }
                }
                RingOp::Publish => {
                    prop_assert_eq!(producer.publish(&memory), !unpublished.is_empty());
                    queue.append(&mut unpublished);
                }
                RingOp::RefreshProducer => {
                    prop_assert_eq!(producer.refresh(&memory), Ok(()));
                    occupied_known = occupied;
                    prop_assert_eq!(producer.used(), occupied);
                }
                RingOp::Pop => {
                    // Each pop sees all that is published, because it asks when it knows of
                    // nothing.
                    let popped = consumer.pop(&memory);
                    let expected = queue.pop_front();
                    unreleased += u64::from(expected.is_some());
                    prop_assert_eq!(popped, Ok(expected));
                }
                RingOp::Release => {
                    prop_assert_eq!(consumer.release(&memory), unreleased > 0);
                    unreleased = 0;
                }
            }
        }
    }

    #[test]
    fn a_wild_index_is_a_fault_and_nothing_else(
        exponent in 0_u32..5,
        first in first_index(),
        claims in prop::collection::vec((any::<bool>(), prop_oneof![
            1 => any::<u64>(),
            6 => 0_u64..80,
            1 => (0_u64..80).prop_map(|step| step.wrapping_sub(80)),
        ]), 1..60),
    ) {
        let capacity = 1_u64 << exponent;
        let place = Place { tail: 0, head: 1, entries: 2, capacity };
        let memory = words(2 + capacity as usize);
        let mut producer = Producer::<1>::new(place, first);
        let mut consumer = Consumer::<1>::new(place, first);
        let (mut pushed, mut popped) = (0_u64, 0_u64);
        // The last claims that were believed, from `first`.
        let (mut tail, mut head) = (0_u64, 0_u64);
        for (of_tail, step) in claims {
            let claim = first.wrapping_add(step);
            memory[usize::from(!of_tail)].store(claim, piped_ring::atomic::Ordering::Relaxed);
            if of_tail {
                let honest = (tail..=popped + capacity).contains(&step);
                prop_assert_eq!(consumer.refresh(&memory).is_ok(), honest);
                tail = if honest { step } else { tail };
                let mut got = 0;
                while let Ok(Some(_)) = consumer.pop(&memory) {
                    got += 1;
                    prop_assert!(got <= capacity, "more than a ring was believed");
                }
                popped += got;
                prop_assert_eq!(popped, tail);
                consumer.release(&memory);
            } else {
                let honest = (head..=pushed).contains(&step);
                prop_assert_eq!(producer.refresh(&memory).is_ok(), honest);
                head = if honest { step } else { head };
                while producer.push(&memory, [7]) {
                    pushed += 1;
                }
                prop_assert_eq!(pushed, head + capacity);
                producer.publish(&memory);
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum QueueOp {
    Submit,
    Flush,
    Reap,
    Take,
    Finish { which: usize, held: bool },
    Release { which: usize },
    Publish,
}

fn queue_op() -> impl Strategy<Value = QueueOp> {
    prop_oneof![
        4 => Just(QueueOp::Submit),
        2 => Just(QueueOp::Flush),
        3 => Just(QueueOp::Reap),
        4 => Just(QueueOp::Take),
        3 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, held)| QueueOp::Finish { which, held }),
        2 => any::<usize>().prop_map(|which| QueueOp::Release { which }),
        2 => Just(QueueOp::Publish),
    ]
}

/// Both halves, driven in any order; the daemon finishes what it took in any order.
struct Both {
    memory: Vec<AtomicU64>,
    server: ServerHalf,
    client: ClientHalf,
    submitted: u64,
    taken: u64,
    running: Vec<u64>,
    held: Vec<u64>,
    posted: VecDeque<CompletionEntry>,
}

impl Both {
    fn new(entries: u32, first: u64) -> Self {
        let layout = QueueLayout::new(entries).expect("a power of two");
        let memory = words(layout.words());
        let server = ServerHalf::create(layout, &memory, first);
        let client = ClientHalf::attach(&memory).expect("a fresh queue");
        let (running, held, posted) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { memory, server, client, submitted: 0, taken: 0, running, held, posted }
    }

    fn post(&mut self, user_data: u64, kind: CompletionKind) -> Result<(), TestCaseError> {
        let entry = CompletionEntry::finished(user_data, Status::Ok, user_data).with_kind(kind);
        prop_assert_eq!(self.server.post(&self.memory, entry), Ok(()), "take made room for it");
        self.posted.push_back(entry);
        Ok(())
    }

    fn apply(&mut self, op: QueueOp) -> Result<(), TestCaseError> {
        match op {
            QueueOp::Submit => {
                let descriptor = Descriptor::new(Opcode::Nop, self.submitted);
                if self.client.submit(&self.memory, descriptor).is_ok() {
                    self.submitted += 1;
                }
            }
            QueueOp::Flush => prop_assert!(!self.client.flush(&self.memory), "nobody sleeps"),
            QueueOp::Take => {
                if let Some(descriptor) = self.server.take(&self.memory).expect("honest") {
                    prop_assert_eq!(descriptor, Descriptor::new(Opcode::Nop, self.taken));
                    self.running.push(self.taken);
                    self.taken += 1;
                }
                prop_assert_eq!(self.server.outstanding(), self.running.len() as u64);
            }
            QueueOp::Finish { which, held } => {
                if !self.running.is_empty() {
                    let user_data = self.running.swap_remove(which % self.running.len());
                    if held {
                        self.held.push(user_data);
                        self.post(user_data, CompletionKind::FinishedHeld)?;
                    } else {
                        self.post(user_data, CompletionKind::Finished)?;
                    }
                }
            }
            QueueOp::Release { which } => {
                if !self.held.is_empty() {
                    let user_data = self.held.swap_remove(which % self.held.len());
                    self.post(user_data, CompletionKind::Released)?;
                }
            }
            QueueOp::Publish => {
                prop_assert_eq!(self.server.publish(&self.memory), Wake::Nobody);
            }
            QueueOp::Reap => {
                let (entry, _) = self.client.reap(&self.memory);
                if let Some(entry) = entry {
                    prop_assert_eq!(Some(entry), self.posted.pop_front());
                }
            }
        }
        prop_assert_eq!(self.client.fault(), None);
        Ok(())
    }

    /// Let everything come to its end.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..4 * (self.submitted + 1) {
            self.apply(QueueOp::Flush)?;
            self.apply(QueueOp::Take)?;
            let which = 0;
            self.apply(QueueOp::Finish { which, held: true })?;
            self.apply(QueueOp::Release { which })?;
            self.apply(QueueOp::Publish)?;
            self.apply(QueueOp::Reap)?;
            self.apply(QueueOp::Reap)?;
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_request_ends_once_in_any_order(
        exponent in 0_u32..4,
        first in first_index(),
        ops in prop::collection::vec(queue_op(), 1..400),
    ) {
        let mut both = Both::new(1 << exponent, first);
        for op in ops {
            both.apply(op)?;
        }
        both.settle()?;
        prop_assert_eq!(both.taken, both.submitted, "all requests were taken");
        prop_assert!(both.running.is_empty() && both.held.is_empty() && both.posted.is_empty());
    }
}

#[test]
fn a_client_that_does_not_reap_waits_for_itself_and_wakes_the_daemon() {
    let mut both = Both::new(4, 0);
    let mut taken = 0;
    // Fill the completion ring: 8 places, one completion each.
    for _ in 0..20 {
        both.apply(QueueOp::Submit).expect("submits");
        both.apply(QueueOp::Flush).expect("flushes");
        if let Some(descriptor) = both.server.take(&both.memory).expect("honest") {
            taken += 1;
            let entry = CompletionEntry::finished(descriptor.user_data, Status::Ok, 0);
            both.server.post(&both.memory, entry).expect("take made room");
            assert_eq!(both.server.publish(&both.memory), Wake::Nobody);
        }
    }
    assert_eq!(taken, 7, "with 7 of 8 places used a request's two completions do not fit");
    // The daemon sleeps although descriptors lie there: it cannot take them.
    assert_eq!(both.server.prepare_sleep(&both.memory), (Wake::Nobody, true));
    // One reaped entry is kept back for the next flush, which must ring.
    let (entry, ring) = both.client.reap(&both.memory);
    assert!(entry.is_some() && !ring);
    assert!(both.client.flush(&both.memory), "the daemon waits for this room");
    assert!(!both.client.flush(&both.memory), "one ring is enough");
    both.server.finish_sleep(&both.memory);
    assert!(both.server.take(&both.memory).expect("honest").is_some());

    // Again, and this time the client only polls: half a ring of reaped entries rings as well.
    let entry = CompletionEntry::finished(0, Status::Ok, 0);
    both.server.post(&both.memory, entry).expect("take made room");
    assert_eq!(both.server.prepare_sleep(&both.memory), (Wake::Nobody, true));
    let (entry, ring) = both.client.reap(&both.memory);
    assert!(entry.is_some() && !ring);
    let (entry, ring) = both.client.reap(&both.memory);
    assert!(entry.is_some() && ring, "two of four kept back are told");
}

#[test]
fn room_alone_wakes_nobody_who_does_not_wait_for_it() {
    let mut both = Both::new(4, 0);
    for op in [QueueOp::Submit, QueueOp::Flush, QueueOp::Take] {
        both.apply(op).expect("works");
    }
    both.post(0, CompletionKind::Finished).expect("posts");
    both.running.clear();
    assert_eq!(both.server.prepare_sleep(&both.memory), (Wake::Nobody, true));
    let (entry, ring) = both.client.reap(&both.memory);
    assert!(entry.is_some() && !ring);
    assert!(!both.client.flush(&both.memory), "the daemon has nothing to take");
    assert_eq!(both.client.prepare_sleep(&both.memory), (false, true));
    both.apply(QueueOp::Submit).expect("submits");
    assert!(both.client.flush(&both.memory), "now it has");
}

#[test]
fn more_completions_than_owed_are_refused_and_not_written() {
    let mut both = Both::new(1, 5);
    let entry = CompletionEntry::finished(1, Status::Ok, 0);
    assert!(both.server.post(&both.memory, entry).is_ok());
    assert!(both.server.post(&both.memory, entry).is_ok());
    assert!(both.server.post(&both.memory, entry).is_err());
    assert_eq!(both.server.publish(&both.memory), Wake::Nobody);
    assert_eq!(both.client.reap(&both.memory).0, Some(entry));
    assert_eq!(both.client.reap(&both.memory).0, Some(entry));
    assert_eq!(both.client.reap(&both.memory).0, None);
}

#[test]
fn progress_words_belong_to_their_slots() {
    let mut both = Both::new(2, 0);
    both.server.set_progress(&both.memory, 0, 10);
    both.server.set_progress(&both.memory, 1, 20);
    for slot in [2, 3, 4096, u32::MAX] {
        both.server.set_progress(&both.memory, slot, 99);
        assert_eq!(both.client.progress(&both.memory, slot), 0);
    }
    let descriptor = Descriptor { slot: 1, ..Descriptor::new(Opcode::Read, 0) };
    both.client.submit(&both.memory, descriptor).expect("room");
    assert_eq!(both.client.progress(&both.memory, 0), 10, "another request's word stays");
    assert_eq!(both.client.progress(&both.memory, 1), 0, "a new request starts at nothing");
    assert_eq!(both.server.take(&both.memory), Ok(None));
    assert!(!both.client.flush(&both.memory));
    assert_eq!(both.server.take(&both.memory), Ok(Some(descriptor)));
}
