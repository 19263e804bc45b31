//! Every interleaving and every reordering that the memory model allows, for small queues.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p piped-ring --release --test loom`. The models
//! drive the code that ships, over loom's atomics; a bell is loom's `Notify`, which, as a real one,
//! stays rung until somebody hears it. So does the wake-up of a client that naps on its flag: the
//! kernel does not let it sleep once the flag is down. A lost wake-up is a deadlock, and loom reports those. Loom
//! cannot run spin loops, so a side that finds nothing sleeps.
//!
//! What a change must break here (tried by hand, each makes a model fail): no fence at either end,
//! no second look before sleeping at either side, Relaxed instead of Release or Acquire at the
//! tail, no ring for room that the daemon waits for. What loom cannot see: a load that takes its
//! value from a later store of another thread. That is the only harm a Relaxed *head* could do, so
//! the pair *copied before head* rests on its argument in `cursor.rs`.
#![cfg(loom)]

use loom::sync::{Arc, Notify};
use loom::thread;
use piped_core::status::Status;
use piped_ring::atomic::AtomicU64;
use piped_ring::cursor::{Consumer, Place, Producer};
use piped_ring::half::{ClientHalf, ServerHalf};
use piped_ring::{CompletionEntry, CompletionKind, Descriptor, Opcode, QueueLayout, Wake};

/// Starts so close to the wrap that every model wraps.
const FIRST: u64 = u64::MAX;

fn words(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

/// At most this many times a thread is interrupted where it could have gone on. Two suffice for all
/// known lost wake-ups; three is the bound loom's authors found to catch nearly everything.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// One ring in both of the shapes it ships in (two-word entries show a torn one).
fn ring(capacity: u64, entries: u64) {
    model(3, move || {
        let place = Place { tail: 0, head: 1, entries: 2, capacity };
        let memory = words(2 + 2 * capacity as usize);
        let first = FIRST;
        for word in &memory[..2] {
            word.store(first, piped_ring::atomic::Ordering::Relaxed);
        }
        let producer_memory = memory.clone();
        let producer = thread::spawn(move || {
            let mut producer = Producer::<2>::new(place, first);
            let mut pushed = 0;
            // Bounded: as many tries as there can be changes to see.
            for _ in 0..2 * entries {
                while pushed < entries && producer.push(&producer_memory, [pushed, !pushed]) {
                    pushed += 1;
                }
                producer.publish(&producer_memory);
                producer.refresh(&producer_memory).expect("the consumer is honest");
                thread::yield_now();
            }
            pushed
        });
        let mut consumer = Consumer::<2>::new(place, first);
        let mut popped = 0;
        for _ in 0..2 * entries {
            while let Some(entry) = consumer.pop(&memory).expect("the producer is honest") {
                assert_eq!(entry, [popped, !popped], "in order and whole");
                popped += 1;
            }
            consumer.release(&memory);
            thread::yield_now();
        }
        let pushed = producer.join().expect("the producer's thread lives");
        while let Some(entry) = consumer.pop(&memory).expect("the producer is honest") {
            assert_eq!(entry, [popped, !popped], "in order and whole");
            popped += 1;
        }
        assert_eq!(popped, pushed, "nothing lost, nothing twice");
    });
}

#[test]
fn a_ring_of_one_keeps_order_and_tears_nothing() {
    ring(1, 2);
}

#[test]
fn a_ring_of_two_keeps_order_and_tears_nothing() {
    ring(2, 3);
}

struct Shared {
    words: Arc<Vec<AtomicU64>>,
    daemon_bell: Notify,
    client_bell: Notify,
    /// Wakes a client that naps.
    flag: Notify,
}

impl Shared {
    fn wake_client(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Bell => self.client_bell.notify(),
            Wake::Flag => self.flag.notify(),
        }
    }
}

/// How the client sleeps.
#[derive(Clone, Copy, PartialEq)]
enum Sleep {
    Bell,
    /// On its flag.
    Nap,
    /// On its flag, for no time at all, and then until its bell rings.
    ShortNap,
}

/// The daemon: serves `requests` and sleeps whenever there is nothing to do.
fn serve(shared: &Shared, mut server: ServerHalf, requests: u64, kinds: &[CompletionKind]) {
    let mut served = 0;
    while served < requests {
        match server.take(&shared.words).expect("the client is honest") {
            Some(descriptor) => {
                for kind in kinds {
                    let entry = CompletionEntry::finished(descriptor.user_data, Status::Ok, 0);
                    server.post(&shared.words, entry.with_kind(*kind)).expect("take made room");
                }
                served += 1;
                shared.wake_client(server.publish(&shared.words));
            }
            None => {
                let (wake, may_sleep) = server.prepare_sleep(&shared.words);
                shared.wake_client(wake);
                if may_sleep {
                    shared.daemon_bell.wait();
                    server.finish_sleep(&shared.words);
                }
            }
        }
    }
}

/// A session of `requests` requests, submitted as the ring has room, both sides sleeping when idle.
fn session(entries: u32, requests: u64, preemptions: usize, kinds: &'static [CompletionKind]) {
    session_with(Sleep::Bell, entries, requests, preemptions, kinds);
}

fn session_with(
    sleep: Sleep,
    entries: u32,
    requests: u64,
    preemptions: usize,
    kinds: &'static [CompletionKind],
) {
    model(preemptions, move || {
        let layout = QueueLayout::new(entries).expect("a power of two");
        let shared = Arc::new(Shared {
            words: words(layout.words()),
            daemon_bell: Notify::new(),
            client_bell: Notify::new(),
            flag: Notify::new(),
        });
        let server = ServerHalf::create(layout, &shared.words, FIRST);
        let mut client = ClientHalf::attach(&shared.words).expect("a fresh queue");
        let daemon_shared = shared.clone();
        let daemon = thread::spawn(move || serve(&daemon_shared, server, requests, kinds));

        let (mut submitted, mut reaped) = (0, 0);
        while reaped < requests * kinds.len() as u64 {
            while submitted < requests {
                if client.submit(&shared.words, Descriptor::new(Opcode::Nop, submitted)).is_err() {
                    break;
                }
                submitted += 1;
            }
            if client.flush(&shared.words) {
                shared.daemon_bell.notify();
            }
            let mut found = false;
            loop {
                let (entry, ring) = client.reap(&shared.words);
                if ring {
                    shared.daemon_bell.notify();
                }
                let Some(entry) = entry else { break };
                assert_eq!(entry.user_data, reaped / kinds.len() as u64, "in order");
                reaped += 1;
                found = true;
            }
            assert_eq!(client.fault(), None);
            if found {
                continue;
            }
            let (ring, may_sleep) = client.prepare_sleep(&shared.words);
            if ring {
                shared.daemon_bell.notify();
            }
            if may_sleep {
                let naps = sleep != Sleep::Bell && client.begin_nap(&shared.words).is_some();
                if naps && sleep == Sleep::Nap {
                    shared.flag.wait();
                }
                // A wake-up that came too late for its nap may end the next one.
                if !naps || client.end_nap(&shared.words) {
                    shared.client_bell.wait();
                    client.finish_sleep(&shared.words);
                }
            }
        }
        daemon.join().expect("the daemon's thread lives");
    });
}

#[test]
fn no_wake_up_is_lost_for_one_request() {
    session(1, 1, 3, &[CompletionKind::Finished]);
}

#[test]
fn no_wake_up_of_a_nap_is_lost() {
    for sleep in [Sleep::Nap, Sleep::ShortNap] {
        session_with(sleep, 1, 1, 3, &[CompletionKind::Finished]);
        session_with(sleep, 1, 2, 2, &[CompletionKind::Finished]);
    }
}

#[test]
fn no_wake_up_is_lost_when_the_ring_of_one_fills() {
    session(1, 2, 2, &[CompletionKind::Finished]);
}

#[test]
fn no_wake_up_is_lost_when_the_ring_of_two_fills() {
    session(2, 3, 2, &[CompletionKind::Finished]);
}

#[test]
fn no_wake_up_is_lost_when_the_daemon_waits_for_room() {
    // Two completions a request fill the completion ring: the daemon sleeps until some are reaped.
    session(1, 2, 2, &[CompletionKind::FinishedHeld, CompletionKind::Released]);
}
