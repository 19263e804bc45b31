//! A client that keeps to nothing: it costs itself its session, and the daemon nothing.
#![cfg(not(loom))]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use piped_core::status::Status;
use piped_ring::testing::{Duel, HostileClient, Step, Word};
use piped_ring::{
    AttachFault, ClientFault, ClientQueue, CompletionEntry, CompletionKind, Descriptor,
    HeaderFault, Opcode, QueueFds, QueueLayout, Segment, SegmentFault, ServerQueue,
};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

/// Far more than anything here takes: its end means that somebody waits forever.
const PATIENCE: Duration = Duration::from_secs(60);

fn fds(server: &ServerQueue) -> QueueFds {
    let [memory, to_daemon, to_client] =
        server.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor is free"));
    QueueFds { memory, to_daemon, to_client }
}

fn hostile(entries: u32) -> (ServerQueue, HostileClient) {
    let server = ServerQueue::create(entries).expect("memory for a small queue");
    let client = HostileClient::attach(fds(&server), server.layout()).expect("maps");
    (server, client)
}

/// Do something that must not wait for the client, on a thread that may be lost.
fn must_not_wait<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    result.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} waits for the client"))
}

fn step() -> impl Strategy<Value = Step> {
    let word = 0..Word::ALL.len();
    prop_oneof![
        2 => (word.clone(), any::<u64>()).prop_map(|(word, value)| Step::Set { word, value }),
        6 => (word, prop_oneof![0_u64..20, (1_u64..5).prop_map(u64::wrapping_neg)])
            .prop_map(|(word, by)| Step::Add { word, by }),
        1 => (0_u64..3000, any::<u8>(), any::<u8>())
            .prop_map(|(offset, length, value)| Step::Scribble { offset, length, value }),
        1 => (0_u64..9).prop_map(|submitted| Step::Mend { submitted }),
        1 => Just(Step::Punch),
        8 => Just(Step::Take),
        5 => any::<bool>().prop_map(|held| Step::Finish { held }),
        3 => Just(Step::Release),
        3 => Just(Step::Publish),
        2 => Just(Step::Sleep),
        1 => any::<u32>().prop_map(|slot| Step::Progress { slot }),
    ]
}

proptest! {
    #[test]
    fn whatever_the_client_writes_the_daemon_keeps_its_counts(
        exponent in 0_u32..4,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut duel = Duel::new(1 << exponent).expect("memory for a small queue");
        for step in steps {
            prop_assert_eq!(duel.play(step), Ok(()));
        }
    }
}

#[test]
fn a_tail_too_far_ahead_or_going_back_is_a_fault() {
    for step in [5, 6, 1 << 40, u64::MAX / 2, u64::MAX] {
        let (mut server, client) = hostile(4);
        client.set(Word::SubmissionTail, client.get(Word::SubmissionTail).wrapping_add(step));
        let Err(ClientFault::SubmissionIndex(fault)) = server.take() else {
            panic!("a tail {step} ahead in a ring of 4 is taken");
        };
        assert_eq!((fault.claimed, fault.capacity), (client.get(Word::SubmissionTail), 4));
        assert!(!server.looks_empty(), "it has to be looked at");
        assert!(!server.prepare_sleep(), "a fault is to be reported, not slept over");
        assert!(server.take().is_err(), "and it stays one");
    }
    let (mut server, client) = hostile(4);
    client.set(Word::SubmissionTail, client.get(Word::SubmissionTail).wrapping_add(4));
    for _ in 0..4 {
        assert!(!server.looks_empty(), "there are some, known or not");
        assert!(matches!(server.take(), Ok(Some(_))), "a whole ring is allowed");
    }
    assert!(server.looks_empty());
    assert!(matches!(server.take(), Ok(None)));
}

#[test]
fn a_completion_head_beyond_what_was_published_is_a_fault() {
    let (mut server, client) = hostile(2);
    client.set(Word::SubmissionTail, client.get(Word::SubmissionTail).wrapping_add(2));
    client.set(Word::CompletionHead, client.get(Word::CompletionHead).wrapping_add(1));
    assert!(matches!(server.take(), Ok(Some(_))), "nobody had to look at the head yet");
    assert!(matches!(server.take(), Ok(Some(_))), "nor now");
    client.set(Word::SubmissionTail, client.get(Word::SubmissionTail).wrapping_add(1));
    assert!(matches!(server.take(), Err(ClientFault::CompletionIndex(_))));
}

#[test]
fn a_client_cannot_make_room_vanish_that_was_promised() {
    let (mut server, client) = hostile(1);
    let first = client.get(Word::CompletionHead);
    for round in 0..3 {
        client.set(Word::SubmissionTail, client.get(Word::SubmissionTail).wrapping_add(1));
        assert!(matches!(server.take(), Ok(Some(_))), "round {round}");
        server.post(CompletionEntry::default()).expect("room was promised");
        server.publish();
        client.set(Word::CompletionHead, client.get(Word::CompletionTail));
    }
    client.set(Word::SubmissionTail, client.get(Word::SubmissionTail).wrapping_add(1));
    assert!(matches!(server.take(), Ok(Some(_))));
    // Two are owed, and now the head goes back as if nothing had been reaped.
    client.set(Word::CompletionHead, first);
    let kind = CompletionKind::FinishedHeld;
    server.post(CompletionEntry::default().with_kind(kind)).expect("room was promised");
    let kind = CompletionKind::Released;
    server.post(CompletionEntry::default().with_kind(kind)).expect("room was promised");
    server.publish();
    assert!(matches!(server.take(), Err(ClientFault::CompletionIndex(_))));
}

#[test]
fn a_descriptor_rewritten_while_it_is_read_is_still_one_private_copy() {
    let (mut server, client) = hostile(2);
    let client = Arc::new(client);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (client, stop) = (Arc::clone(&client), Arc::clone(&stop));
        thread::spawn(move || {
            let mut index = 0;
            while !stop.load(Ordering::Relaxed) {
                let value = if index % 2 == 0 { 0 } else { u64::MAX };
                let descriptor = Descriptor::from_words([value; 16]);
                client.write_descriptor(index / 2, descriptor);
                index += 1;
            }
        })
    };
    for _ in 0..20_000 {
        client.set(Word::SubmissionTail, client.get(Word::SubmissionTail).wrapping_add(1));
        let taken = server.take().expect("the indices are right").expect("it was announced");
        // Words are whole, whatever mixture of them was read, and the copy does not change.
        let words = taken.to_words();
        assert!(words.iter().all(|word| *word == 0 || *word == u64::MAX));
        assert_eq!(taken.to_words(), words);
        server.post(CompletionEntry::finished(0, Status::Unsupported, 0)).expect("room");
        server.publish();
        client.set(Word::CompletionHead, client.get(Word::CompletionTail));
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("the writer's thread lives");
}

#[test]
fn a_jammed_bell_does_not_hold_the_daemon() {
    let (server, client) = hostile(4);
    client.jam_bells().expect("a client may change the flags of what it was passed");
    // Nothing rings: a careless read would wait.
    let server = must_not_wait("draining the daemon's bell", move || {
        server.drain();
        server
    });
    // The client's bell is full from both sides, and nobody hears it.
    let junk = [0_u8; 4096];
    let flags = rustix::net::SendFlags::DONTWAIT;
    while rustix::net::send(client.to_client(), &junk, flags).is_ok() {}
    let server = must_not_wait("ringing the client's bell", move || {
        let mut server = server;
        for _ in 0..20_000 {
            client.set(Word::SubmissionTail, client.get(Word::SubmissionTail).wrapping_add(1));
            server.take().expect("the indices are right").expect("it was announced");
            server.post(CompletionEntry::default()).expect("room was promised");
            client.set(Word::ClientAsleep, u64::MAX);
            assert!(server.publish(), "a client that says that it sleeps is rung for");
            client.set(Word::CompletionHead, client.get(Word::CompletionTail));
        }
        // A full counter: a careless write would wait, if the daemon ever wrote to this one.
        let full = (u64::MAX - 1).to_ne_bytes();
        rustix::io::write(client.to_daemon(), &full).expect("the counter was empty");
        server.drain();
        server
    });
    let mut polled = [PollFd::from_borrowed_fd(server.wake_fd(), PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(0), "the bell was silenced");
}

#[test]
fn holes_punched_under_load_read_as_zeros_and_never_kill() {
    const BYTES: usize = 1 << 20;
    let segment = Arc::new(Segment::create(BYTES as u64).expect("a megabyte"));
    let theirs = segment.fd().try_clone_to_owned().expect("a descriptor is free");
    let puncher = thread::spawn(move || {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for round in 0..400_u64 {
            let offset = (round * 37 % 240) * 4096;
            rustix::fs::fallocate(&theirs, flags, offset, 16 * 4096).expect("a hole");
        }
    });
    let pattern = vec![0xa5_u8; BYTES];
    let other = Segment::create(BYTES as u64).expect("a megabyte");
    let mut copy = vec![0_u8; BYTES];
    let mut rounds = 0;
    while !puncher.is_finished() || rounds < 3 {
        segment.store(0, &pattern).expect("inside");
        segment.load(0, &mut copy).expect("inside");
        assert!(copy.iter().all(|byte| *byte == 0xa5 || *byte == 0), "stored, or a hole");
        segment.crc32c(0, BYTES as u64).expect("inside");
        segment.copy(0, &other, 0, BYTES as u64).expect("inside");
        rounds += 1;
    }
    puncher.join().expect("the puncher's thread lives");
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    segment.store(0, &pattern).expect("inside");
    rustix::fs::fallocate(segment.fd(), flags, 0, 8192).expect("a hole");
    segment.load(0, &mut copy).expect("inside");
    assert!(copy[..8192].iter().all(|byte| *byte == 0), "a hole reads as zeros");
    assert!(copy[8192..].iter().all(|byte| *byte == 0xa5), "and only the hole does");
}

#[test]
fn a_queue_with_holes_is_a_fault() {
    let (mut server, client) = hostile(4);
    client.punch().expect("a hole");
    // Zeros in all words: indices that started just below the wrap cannot be there yet.
    assert!(matches!(server.take(), Err(ClientFault::SubmissionIndex(_))));
}

fn memfd(length: u64, flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"test", flags).expect("a memfd");
    rustix::fs::ftruncate(&fd, length).expect("a length");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
    fd
}

#[test]
fn only_sealed_memory_of_a_sane_length_is_a_segment() {
    let both = SealFlags::SHRINK | SealFlags::GROW;
    let plain = MemfdFlags::empty();
    assert!(Segment::from_fd(memfd(4096, plain, both)).is_ok());
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let fault = Segment::from_fd(memfd(4096, plain, seals));
        assert!(matches!(fault, Err(SegmentFault::NotSealed)), "{seals:?}: {fault:?}");
    }
    let fault = Segment::from_fd(memfd(0, plain, both));
    assert!(matches!(fault, Err(SegmentFault::Length(0))), "{fault:?}");
    let fault = Segment::from_fd(memfd((1 << 40) + 4096, plain, both));
    assert!(matches!(fault, Err(SegmentFault::Length(_))), "{fault:?}");
    let fault = Segment::from_fd(memfd(2 << 20, MemfdFlags::HUGETLB, both));
    assert!(matches!(fault, Err(SegmentFault::NotMemory)), "{fault:?}");
    let (reader, _writer) = rustix::pipe::pipe().expect("a pipe");
    assert!(matches!(Segment::from_fd(reader), Err(SegmentFault::NotMemory)));
    let zero = std::fs::File::open("/dev/zero").expect("opens");
    assert!(matches!(Segment::from_fd(zero.into()), Err(SegmentFault::NotMemory)));
}

#[test]
fn created_segments_cannot_be_resized_or_unsealed_by_who_gets_them() {
    let segment = Segment::create(8192).expect("memory");
    for length in [0, 4096, 16_384] {
        assert!(rustix::fs::ftruncate(segment.fd(), length).is_err(), "to {length} bytes");
    }
    assert!(rustix::fs::fcntl_add_seals(segment.fd(), SealFlags::WRITE).is_err());
    assert!(Segment::create(0).is_err());
    assert!(Segment::create(u64::MAX).is_err());
}

#[test]
fn private_memory_is_memory_and_nothing_to_pass_on() {
    assert!(Segment::private(0).is_err());
    for length in [1, 4096, (4 << 20) + 5] {
        let segment = Segment::private(length).expect("so much memory");
        assert_eq!(segment.len(), length);
        segment.store(length - 1, &[7]).expect("inside");
        let mut byte = [0];
        segment.load(length - 1, &mut byte).expect("inside");
        assert_eq!(byte, [7]);
        assert!(segment.store(length, &[7]).is_err());
        let zeros = segment.crc32c(0, length - 1).expect("inside");
        let fresh = Segment::create(length).expect("so much memory");
        assert_eq!(fresh.crc32c(0, length - 1), Ok(zeros), "new memory is zeroed either way");
        assert!(std::panic::catch_unwind(|| segment.fd().try_clone_to_owned()).is_err());
    }
}

#[test]
fn accesses_outside_are_refused_whatever_their_sum() {
    let segment = Segment::create(4096).expect("memory");
    let mut bytes = [0_u8; 2];
    for offset in [4095, 4096, 1 << 40, u64::MAX - 1, u64::MAX] {
        assert!(segment.load(offset, &mut bytes).is_err(), "load at {offset}");
        assert!(segment.store(offset, &bytes).is_err(), "store at {offset}");
        assert!(segment.crc32c(offset, 2).is_err(), "checksum at {offset}");
        assert!(segment.copy(offset, &segment, 0, 2).is_err(), "copy from {offset}");
        assert!(segment.copy(0, &segment, offset, 2).is_err(), "copy to {offset}");
    }
    assert!(segment.crc32c(1, u64::MAX).is_err());
    assert!(segment.load(4094, &mut bytes).is_ok());
    assert!(segment.load(4096, &mut []).is_ok(), "nothing, at the end");
    assert!(segment.copy(0, &segment, 1, 4095).is_ok(), "overlapping");
}

#[test]
fn the_checksum_is_the_iscsi_one_over_any_number_of_chunks() {
    let segment = Segment::create(1 << 16).expect("memory");
    segment.store(7, b"123456789").expect("inside");
    assert_eq!(segment.crc32c(7, 9), Ok(0xe306_9283), "the polynomial's check value");
    assert_eq!(segment.crc32c(100, 32), Ok(0x8a91_36aa), "32 zeros, RFC 3720");
    assert_eq!(segment.crc32c(0, 0), Ok(0));
    let bytes: Vec<u8> = (0..40_000_u32).map(|n| (n * 31 % 251) as u8).collect();
    segment.store(3, &bytes).expect("inside");
    let whole = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
    assert_eq!(segment.crc32c(3, 40_000), Ok(whole));
}

#[test]
fn a_client_does_not_join_what_is_not_a_queue() {
    let attach = |entries: u32, scribble: (u64, u64)| {
        let (server, client) = hostile(entries);
        client.scribble(scribble.0, &scribble.1.to_ne_bytes()).expect("inside");
        match ClientQueue::attach(fds(&server)) {
            Err(AttachFault::Header(fault)) => fault,
            other => panic!("{scribble:?} of a queue: {other:?}"),
        }
    };
    assert_eq!(attach(4, (0, 1)), HeaderFault::Magic(1));
    let newer = piped_ring::layout::VERSION + 1;
    assert_eq!(attach(4, (8, newer.into())), HeaderFault::Version(newer.into()));
    for entries in [0, 3, 8192, 4096, u64::MAX, (1 << 32) + 4] {
        let fault = attach(4, (16, entries));
        assert!(matches!(fault, HeaderFault::Entries { .. }), "{entries}: {fault}");
    }
    assert_eq!(QueueLayout::new(4).map(QueueLayout::bytes), Some(4096));
}

#[test]
fn a_daemon_that_is_gone_ends_the_wait() {
    let server = ServerQueue::create(4).expect("memory");
    let mut client = ClientQueue::attach(fds(&server)).expect("a fresh queue");
    client.submit(Descriptor::new(Opcode::Nop, 1)).expect("room");
    drop(server);
    let fault = client.wait(Some(PATIENCE)).expect_err("nobody will ever post");
    assert_eq!(fault.kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn a_nap_ends_with_a_wake_up_or_in_silence() {
    for on_flag in [false, true] {
        let mut server = ServerQueue::create(4).expect("memory");
        let mut client = ClientQueue::attach(fds(&server)).expect("a fresh queue");
        if on_flag {
            client.nap_on_flag();
        }
        let serve = |server: &mut ServerQueue| {
            server.take().expect("an honest client").expect("it was submitted");
            server.post(CompletionEntry::default()).expect("room was promised");
            server.publish()
        };
        for _ in 0..3 {
            client.submit(Descriptor::new(Opcode::Nop, 1)).expect("room");
            assert!(client.prepare_sleep());
            assert!(serve(&mut server), "a sleeping client is woken");
            assert_eq!(client.nap(), Some(true));
            assert!(client.reap().is_some());
        }
        // The bell was silenced each time, and nobody rings for a side that is up.
        client.submit(Descriptor::new(Opcode::Nop, 1)).expect("room");
        client.flush();
        assert!(!serve(&mut server), "the nap's end was said");
        assert!(client.reap().is_some());
        assert!(client.prepare_sleep());
        assert_eq!(client.nap(), None);
        // Silence is no end of the sleep: it goes on with the bell.
        client.submit(Descriptor::new(Opcode::Nop, 1)).expect("room");
        client.flush();
        assert!(serve(&mut server), "it still sleeps");
        assert_eq!(client.nap(), Some(true));
        assert!(client.reap().is_some());
        assert!(client.prepare_sleep());
        drop(server);
        // Only the bell tells that nobody will ever ring.
        assert_eq!(client.nap(), if on_flag { None } else { Some(false) });
        assert!(!client.finish_sleep());
    }
}

/// A client that says that it naps, and does not, or says it in words that mean nothing.
#[test]
fn whatever_a_client_says_of_its_sleep_costs_the_daemon_one_call() {
    for said in [1_u64, 2, 3, 1 << 32 | 2, 2 << 32, u64::MAX] {
        let (mut server, client) = hostile(4);
        for _ in 0..3 {
            server.post(CompletionEntry::default()).expect("room for a few");
            client.scribble(768, &said.to_ne_bytes()).expect("inside");
            assert!(server.publish(), "{said}: woken once");
            server.post(CompletionEntry::default()).expect("room for a few");
            assert!(!server.publish(), "{said}: the flag was taken down");
        }
    }
}

#[test]
fn a_nap_is_woken_in_its_middle() {
    let mut server = ServerQueue::create(4).expect("memory");
    let mut client = ClientQueue::attach(fds(&server)).expect("a fresh queue");
    client.nap_on_flag();
    let daemon = thread::spawn(move || {
        for number in 0..500 {
            let descriptor = loop {
                match server.take().expect("an honest client") {
                    Some(descriptor) => break descriptor,
                    None => thread::yield_now(),
                }
            };
            // Now and then it is asleep by then.
            (0..number % 7).for_each(|_| thread::yield_now());
            let entry = CompletionEntry::finished(descriptor.user_data, Status::Ok, 0);
            server.post(entry).expect("room was promised");
            server.publish();
        }
        server
    });
    for number in 0..500 {
        client.submit(Descriptor::new(Opcode::Nop, number)).expect("room");
        client.flush();
        let entry = loop {
            if let Some(entry) = client.reap() {
                break entry;
            }
            if client.prepare_sleep() && client.nap().is_none() {
                // A loaded machine is no lost wake-up: the bell would end this sleep.
                assert!(client.finish_sleep());
            }
        };
        assert_eq!(entry.user_data, number);
    }
    daemon.join().expect("the daemon's thread lives");
}

#[test]
fn both_sides_sleep_and_wake_each_other() {
    const REQUESTS: u64 = 3_000;
    let mut server = ServerQueue::create(2).expect("memory");
    let mut client = ClientQueue::attach(fds(&server)).expect("a fresh queue");
    let patience = rustix::event::Timespec::try_from(PATIENCE).expect("fits");
    let daemon = thread::spawn(move || {
        let mut served = 0;
        while served < REQUESTS {
            while let Some(descriptor) = server.take().expect("an honest client") {
                let entry = CompletionEntry::finished(descriptor.user_data, Status::Ok, 0);
                server.post(entry).expect("room was promised");
                served += 1;
            }
            server.publish();
            if served < REQUESTS && server.prepare_sleep() {
                let mut polled = [PollFd::from_borrowed_fd(server.wake_fd(), PollFlags::IN)];
                let rung = rustix::event::poll(&mut polled, Some(&patience));
                assert_eq!(rung, Ok(1), "the client's ring was lost after {served}");
                server.finish_sleep();
                server.drain();
            }
        }
        server
    });
    let (mut submitted, mut reaped) = (0, 0);
    while reaped < REQUESTS {
        while submitted < REQUESTS && client.submit(Descriptor::new(Opcode::Nop, submitted)).is_ok()
        {
            submitted += 1;
        }
        client.flush();
        while let Some(entry) = client.reap() {
            assert_eq!(entry.user_data, reaped);
            reaped += 1;
        }
        // Only a client with something under way is woken.
        if reaped < submitted && client.prepare_sleep() {
            let mut polled = [PollFd::from_borrowed_fd(client.wait_fd(), PollFlags::IN)];
            let rung = rustix::event::poll(&mut polled, Some(&patience));
            assert_eq!(rung, Ok(1), "the daemon's ring was lost after {reaped}");
            assert!(client.finish_sleep(), "the daemon is there");
        }
    }
    daemon.join().expect("the daemon's thread lives");
}
