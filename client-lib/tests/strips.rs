//! Loops over strips, against a daemon that the test plays.

mod support;

use std::sync::Arc;
use std::time::Duration;

use piped_client::{
    Access, Cause, Client, ClientBuilder, Handle, OpenOptions, Queue, Status, StripError,
    StripPolicy, StripReader, StripWriter, Strips, SubmitFault,
};
use piped_ring::handshake::{PathCosts, Request};
use piped_ring::{Descriptor, Opcode};
use support::{Daemon, Manners, Session};

const PAGE: usize = 4096;

struct World {
    daemon: Daemon,
    client: Client,
    session: Arc<Session>,
    file: Handle,
    queue: Queue,
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 7 % 251) as u8).collect()
}

/// A file of `bytes`, `pages` of arena and a queue `depth` deep.
fn world(bytes: usize, pages: usize, depth: u32, manners: Manners) -> World {
    let daemon = Daemon::start(manners);
    let builder = ClientBuilder::new().arena_bytes((pages * PAGE) as u64).depth(depth);
    let (client, session) = daemon.pair(builder);
    let path = daemon.folder().join("file");
    std::fs::write(&path, content(bytes)).expect("a folder");
    let file = client.open_file(path, OpenOptions::read_write()).expect("a file");
    let queue = client.queue().expect("the first queue");
    World { daemon, client, session, file, queue }
}

/// Everything a reader hands out, and how it was cut.
fn read_all(
    queue: &mut Queue,
    reader: &mut StripReader,
) -> Result<(Vec<u8>, Vec<usize>), StripError> {
    let (mut bytes, mut sizes, mut first) = (Vec::new(), Vec::new(), None);
    while let Some(strip) = reader.next(queue)? {
        let start = *first.get_or_insert(strip.offset());
        assert_eq!(strip.offset(), start + bytes.len() as u64, "in order, without gaps");
        assert!(!strip.is_empty());
        bytes.extend_from_slice(&strip);
        sizes.push(strip.len());
    }
    Ok((bytes, sizes))
}

/// Reads the daemon has been asked for and has not ended.
fn taken(session: &Session) -> Vec<Descriptor> {
    std::iter::from_fn(|| session.take(0)).collect()
}

#[test]
fn every_policy_brings_every_byte_once_and_in_order() {
    let mut world = world(300_001, 256, 31, Manners::default());
    let serving = world.session.serve(true);
    let all = content(300_001);
    let variable = StripPolicy::Variable { first: 1000, growth: 0.45 };
    for policy in [StripPolicy::Auto, StripPolicy::Fixed(4096), StripPolicy::Fixed(1), variable] {
        for range in [0..300_001, 5..6, 777..299_999, 0..8192, 299_000..300_001] {
            for unroll in [None, Some(1), Some(40)] {
                let mut strips = Strips::new().policy(policy).grain(24).memory(600_000);
                if let Some(depth) = unroll {
                    strips = strips.unroll(depth);
                }
                let opened = StripReader::open(&world.client, &world.file, range.clone(), strips);
                let mut reader = opened.expect("a range");
                let (bytes, sizes) = read_all(&mut world.queue, &mut reader).expect("no faults");
                let wanted = &all[range.start as usize..range.end as usize];
                assert!(bytes == wanted, "{policy:?} {range:?} {unroll:?}");
                let elements = sizes.iter().rev().skip(1).all(|size| size.is_multiple_of(24));
                assert!(elements, "an element lies in two strips: {policy:?} {sizes:?}");
                assert!(reader.next(&mut world.queue).expect("over").is_none());
            }
        }
    }
    world.session.die();
    serving.join().expect("the daemon does not panic");
}

#[test]
fn fixed_strips_are_what_was_said_with_as_many_ahead_and_no_more_memory_than_that() {
    let World { daemon: _daemon, client, session, file, mut queue } =
        world(100_000, 64, 31, Manners::default());
    let strips = Strips::new().policy(StripPolicy::Fixed(3 * PAGE)).unroll(2);
    let mut reader = StripReader::open(&client, &file, 0..100_000, strips).expect("a range");
    assert!(session.take(0).is_none(), "nothing is asked for before it is wanted");
    let mut underway = Vec::new();
    let mut offset = 0;
    for strip in 0..9_u64 {
        // It waits for the first, so the daemon plays on another thread.
        let asked = std::thread::scope(|scope| {
            let player = scope.spawn(|| {
                let mut seen = Vec::new();
                let ahead = (9 - strip as usize).min(3);
                support::eventually("it and two more are asked for, or what is left", || {
                    seen.extend(taken(&session));
                    underway.len() + seen.len() >= ahead
                });
                underway.append(&mut seen);
                let most = underway.len();
                let first: Descriptor = underway.remove(0);
                session.fill(&first, strip as u8);
                session.finish(0, &first, Status::Ok, first.length);
                (most, first)
            });
            let strip_bytes = reader.next(&mut queue).expect("no faults").expect("not the last");
            assert!(strip_bytes.iter().all(|byte| *byte == strip as u8));
            player.join().expect("no panics")
        });
        let (most, first) = asked;
        assert!(most <= 3, "two ahead of the one that is waited for, not {most}");
        assert_eq!((first.offset_a, first.opcode), (offset, Opcode::Read as u8));
        let length = (100_000 - offset).min(3 * PAGE as u64);
        assert_eq!(first.length, length);
        offset += length;
        assert!(reader.memory() <= 3 * 3 * PAGE, "{} bytes", reader.memory());
    }
    assert_eq!(offset, 100_000);
    assert!(reader.next(&mut queue).expect("no faults").is_none());
}

#[test]
fn the_end_of_the_file_in_the_middle_of_a_strip_ends_them_with_what_there_is() {
    let mut world = world(10_000, 64, 31, Manners::default());
    let serving = world.session.serve(true);
    for (length, wanted) in [(10_000, vec![4096, 4096, 1808]), (8192, vec![4096, 4096])] {
        let path = world.daemon.folder().join("file");
        std::fs::write(path, content(length)).expect("a folder");
        let strips = Strips::new().policy(StripPolicy::Fixed(PAGE)).unroll(4);
        let opened = StripReader::open(&world.client, &world.file, 0..1 << 30, strips);
        let mut reader = opened.expect("a range");
        let (bytes, sizes) = read_all(&mut world.queue, &mut reader).expect("no faults");
        assert_eq!((bytes, sizes), (content(length), wanted));
        assert!(reader.next(&mut world.queue).expect("over").is_none());
    }
    world.session.die();
    serving.join().expect("the daemon does not panic");
}

#[test]
fn a_range_without_bytes_asks_for_nothing_and_one_that_ends_before_it_begins_is_refused() {
    let manners = Manners { costs: Some(PathCosts::UNKNOWN), ..Manners::default() };
    let World { daemon: _daemon, client, session, file, mut queue } = world(1, 4, 7, manners);
    let mut reader =
        StripReader::open(&client, &file, 5..5, Strips::new()).expect("a range of no bytes");
    assert!(reader.next(&mut queue).expect("nothing can fail").is_none());
    let mut writer =
        StripWriter::open(&client, &file, 5..5, Strips::new()).expect("a range of no bytes");
    assert!(writer.next(&mut queue).expect("nothing can fail").is_none());
    assert_eq!(writer.finish(&mut queue).expect("nothing can fail"), 0);
    assert!(session.take(0).is_none());
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let turned = 6..5;
    let refused = StripReader::open(&client, &file, turned.clone(), Strips::new());
    assert!(matches!(refused, Err(StripError::Range { start: 6, end: 5 })));
    let refused = StripWriter::open(&client, &file, turned, Strips::new());
    assert!(matches!(refused, Err(StripError::Range { .. })));
    let asked = session.asked.lock().expect("no panics");
    assert!(!asked.iter().any(|it| matches!(it, Request::PathCosts { .. })), "for nothing");
}

#[test]
fn a_strip_that_fails_ends_the_loop_with_its_place_and_cancels_the_others() {
    let World { daemon: _daemon, client, session, file, mut queue } =
        world(100_000, 64, 31, Manners::default());
    let strips = Strips::new().policy(StripPolicy::Fixed(PAGE)).unroll(3);
    let mut reader = StripReader::open(&client, &file, 0..100_000, strips).expect("a range");
    let others = std::thread::scope(|scope| {
        let player = scope.spawn(|| {
            let mut seen = Vec::new();
            support::eventually("four are asked for", || {
                seen.extend(taken(&session));
                seen.len() == 4
            });
            session.finish(0, &seen[0], Status::Ok, seen[0].length);
            // The region behind the handle was withdrawn, or its peer went.
            session.finish(0, &seen[1], Status::Gone, 0);
            seen.split_off(2)
        });
        assert_eq!(
            reader.next(&mut queue).expect("the first is there").map(|it| it.len()),
            Some(PAGE)
        );
        let error = reader.next(&mut queue).expect_err("the second failed");
        assert_eq!(
            (error.status(), error.cause()),
            (Some(Status::Gone), Some(Cause::Status(Status::Gone)))
        );
        assert!(matches!(error, StripError::Request { offset: 4096, bytes: 4096, .. }), "{error}");
        assert!(error.to_string().contains("4096 bytes at 4096"), "{error}");
        player.join().expect("no panics")
    });
    assert!(reader.next(&mut queue).expect("over").is_none());
    let _ = queue.poll();
    // The fifth was asked for when the first was done.
    let (cancels, reads): (Vec<_>, Vec<_>) =
        taken(&session).into_iter().partition(|it| it.opcode == Opcode::Cancel as u8);
    let mut cancelled: Vec<u64> = cancels.iter().map(|it| it.operand_a).collect();
    let mut underway: Vec<u64> = others.iter().chain(&reads).map(|it| it.user_data).collect();
    cancelled.sort_unstable();
    underway.sort_unstable();
    assert_eq!(cancelled, underway, "all that were under way are cancelled");
    for descriptor in cancels.iter().chain(&others).chain(&reads) {
        session.finish(0, descriptor, Status::Cancelled, 0);
    }
    assert!(queue.poll().is_none());
    drop(reader);
    assert!(client.allocate(64 * PAGE).is_ok(), "all memory is back");
}

#[test]
fn a_dropped_reader_cancels_its_requests_and_its_memory_comes_back() {
    let World { daemon: _daemon, client, session, file, mut queue } =
        world(100_000, 4, 31, Manners::default());
    let strips = Strips::new().policy(StripPolicy::Fixed(PAGE)).unroll(3);
    let mut reader = StripReader::open(&client, &file, 0..100_000, strips).expect("a range");
    let reads = std::thread::scope(|scope| {
        let player = scope.spawn(|| {
            let mut seen = Vec::new();
            support::eventually("as many as fit are asked for", || {
                seen.extend(taken(&session));
                seen.len() == 4
            });
            session.finish(0, &seen[0], Status::Ok, seen[0].length);
            seen.split_off(1)
        });
        assert!(reader.next(&mut queue).expect("the first is there").is_some());
        player.join().expect("no panics")
    });
    drop(reader);
    assert!(queue.poll().is_none());
    let cancels = taken(&session);
    assert_eq!(cancels.len(), reads.len());
    assert!(client.allocate(4 * PAGE).is_err(), "the daemon has some of it");
    for descriptor in cancels.iter().chain(&reads) {
        session.finish(0, descriptor, Status::Cancelled, 0);
    }
    assert!(queue.poll().is_none());
    assert!(client.allocate(4 * PAGE).is_ok());
}

#[test]
fn without_memory_strips_are_shorter_or_fewer_and_with_none_there_is_an_error() {
    let mut world = world(100_000, 4, 31, Manners::default());
    let serving = world.session.serve(true);
    let open = |strips| StripReader::open(&world.client, &world.file, 0..100_000, strips);
    // Four pages of arena: eight strips of a page, and one of ten pages, find less than they like.
    let many = Strips::new().policy(StripPolicy::Fixed(PAGE)).unroll(7);
    let long = Strips::new().policy(StripPolicy::Fixed(2 * PAGE)).unroll(3);
    for strips in [many, long, Strips::new()] {
        let mut reader = open(strips).expect("a range");
        let (bytes, sizes) = read_all(&mut world.queue, &mut reader).expect("it makes do");
        assert!(bytes == content(100_000), "{strips:?}");
        assert!(sizes.iter().all(|size| *size <= 4 * PAGE));
        assert!(reader.memory() <= 4 * PAGE);
    }
    // What the caller allows is less than what there is.
    let mut reader = open(Strips::new().memory(2 * PAGE)).expect("a range");
    while reader.next(&mut world.queue).expect("it makes do").is_some() {}
    assert!(reader.memory() <= 2 * PAGE, "{}", reader.memory());
    drop(reader);
    let hog = world.client.allocate(4 * PAGE).expect("all of it");
    let mut reader = open(Strips::new()).expect("a range");
    let error = reader.next(&mut world.queue).expect_err("there is no memory");
    assert!(matches!(error, StripError::Memory(_)), "{error}");
    assert!(reader.next(&mut world.queue).expect("over").is_none());
    drop((hog, reader));
    world.session.die();
    serving.join().expect("the daemon does not panic");
}

#[test]
fn a_full_queue_is_waited_for_and_a_queue_full_of_others_is_an_error() {
    let mut world = world(100_000, 64, 3, Manners::default());
    let serving = world.session.serve(true);
    let strips = Strips::new().policy(StripPolicy::Fixed(PAGE)).unroll(9);
    let opened = StripReader::open(&world.client, &world.file, 0..100_000, strips);
    let mut reader = opened.expect("a range");
    let (bytes, _) = read_all(&mut world.queue, &mut reader).expect("three at a time");
    assert!(bytes == content(100_000));
    let queue = &mut world.queue;
    let others: Vec<_> = (0..3).map(|_| queue.submit_nop().expect("room")).collect();
    let opened = StripReader::open(&world.client, &world.file, 0..100_000, strips);
    let mut reader = opened.expect("a range");
    let error = reader.next(queue).expect_err("nothing of its own to wait for");
    assert_eq!(error.cause(), Some(Cause::NotSubmitted(SubmitFault::Full)));
    drop((others, reader));
    world.session.die();
    serving.join().expect("the daemon does not panic");
}

#[test]
fn a_daemon_that_ends_ends_the_loop() {
    let World { daemon: _daemon, client, session, file, mut queue } =
        world(100_000, 64, 31, Manners::default());
    let mut reader = StripReader::open(&client, &file, 0..100_000, Strips::new()).expect("a range");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            support::eventually("a strip is asked for", || session.take(0).is_some());
            session.die();
        });
        let error = reader.next(&mut queue).expect_err("nobody answers");
        assert_eq!(error.cause(), Some(Cause::Disconnected));
    });
    assert!(reader.next(&mut queue).expect("over").is_none());
}

#[test]
fn a_strip_whose_deadline_passes_keeps_its_buffer_and_says_so() {
    let World { daemon: _daemon, client, session, file, mut queue } =
        world(100_000, 8, 31, Manners::default());
    let strips = Strips::new().policy(StripPolicy::Fixed(PAGE)).unroll(1);
    let strips = strips.deadline(Duration::from_millis(7));
    let mut reader = StripReader::open(&client, &file, 0..100_000, strips).expect("a range");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = None;
            support::eventually("a strip is asked for", || {
                seen = seen.or_else(|| session.take(0));
                seen.is_some()
            });
            let seen = seen.expect("found");
            assert_eq!(seen.deadline_ns, 7_000_000);
            session.hold(0, &seen);
        });
        let error = reader.next(&mut queue).expect_err("its time is over");
        assert_eq!(error.status(), Some(Status::DeadlineExceeded));
    });
    assert_eq!(reader.memory(), 0, "none of it is the reader's any more");
}

#[test]
fn what_is_written_in_strips_is_there_after_the_last() {
    let mut world = world(300_001, 256, 31, Manners::default());
    let serving = world.session.serve(true);
    let path = world.daemon.folder().join("file");
    let variable = StripPolicy::Variable { first: 1000, growth: 0.45 };
    for policy in [StripPolicy::Auto, StripPolicy::Fixed(4096), variable] {
        for (range, unroll) in [(0..300_001, 1), (777..299_999, 6)] {
            std::fs::write(&path, content(300_001)).expect("a folder");
            let strips = Strips::new().policy(policy).unroll(unroll).memory(400_000);
            let opened =
                StripWriter::open(&world.client, &world.file, range.clone(), strips.durable());
            let mut writer = opened.expect("a range");
            let mut expected = content(300_001);
            while let Some(mut strip) = writer.next(&mut world.queue).expect("no faults") {
                let at = strip.offset() as usize;
                for (place, byte) in strip.iter_mut().enumerate() {
                    *byte = ((at + place) * 11 % 241) as u8;
                }
                expected[at..at + strip.len()].copy_from_slice(&strip);
            }
            let written = writer.finish(&mut world.queue).expect("no faults");
            assert_eq!(written, range.end - range.start);
            assert!(std::fs::read(&path).expect("the file") == expected, "{policy:?} {range:?}");
        }
    }
    world.session.die();
    serving.join().expect("the daemon does not panic");
}

#[test]
fn a_writer_that_is_dropped_does_not_write_the_strip_in_hand() {
    let World { daemon: _daemon, client, session, file, mut queue } =
        world(100_000, 8, 31, Manners::default());
    let strips = Strips::new().policy(StripPolicy::Fixed(PAGE)).unroll(3);
    let mut writer = StripWriter::open(&client, &file, 0..100_000, strips).expect("a range");
    for _ in 0..2 {
        assert!(writer.next(&mut queue).expect("nothing is waited for").is_some());
    }
    let writes = taken(&session);
    assert_eq!(
        writes.iter().map(|it| (it.opcode, it.offset_a)).collect::<Vec<_>>(),
        [(Opcode::Write as u8, 0)]
    );
    drop(writer);
    assert!(queue.poll().is_none());
    let cancels = taken(&session);
    assert_eq!(cancels.iter().map(|it| it.operand_a).collect::<Vec<_>>(), [writes[0].user_data]);
}

#[test]
fn a_write_that_fails_is_told_of_by_the_next_strip_or_the_end() {
    let World { daemon: _daemon, client, session, file, mut queue } =
        world(100_000, 8, 31, Manners::default());
    let strips = Strips::new().policy(StripPolicy::Fixed(PAGE)).unroll(1);
    let mut writer =
        StripWriter::open(&client, &file, 0..2 * PAGE as u64, strips).expect("a range");
    assert!(writer.next(&mut queue).expect("nothing is waited for").is_some());
    assert!(writer.next(&mut queue).expect("nothing is waited for").is_some());
    session.finish(0, &session.take(0).expect("the first"), Status::NoSpace, 100);
    let error = writer.finish(&mut queue).expect_err("there was no space");
    assert_eq!(error.status(), Some(Status::NoSpace));
    assert!(matches!(error, StripError::Request { offset: 0, bytes: 4096, .. }));
}

#[test]
fn what_the_daemon_says_of_the_path_is_asked_once_and_used() {
    let costs = PathCosts {
        overhead_ns: 1000,
        latency_ns: 50_000,
        mebibyte_ns: 8_388_608,
        confidence_ppm: 750_000,
    };
    let manners = Manners { costs: Some(costs), ..Manners::default() };
    let mut world = world(100_000, 64, 31, manners);
    let serving = world.session.serve(true);
    let told = world.file.read_costs().expect("it answers").expect("it knows");
    assert!((told.per_byte_seconds - 8e-9).abs() < 1e-15, "{told:?}");
    assert!((told.latency_seconds - 50e-6).abs() < 1e-12 && (told.confidence - 0.75).abs() < 1e-9);
    for strips in [Strips::new(), Strips::new(), Strips::new().costs(told)] {
        let opened = StripReader::open(&world.client, &world.file, 0..100_000, strips);
        let mut reader = opened.expect("a range");
        let (bytes, _) = read_all(&mut world.queue, &mut reader).expect("no faults");
        assert!(bytes == content(100_000));
        assert!(reader.compute().is_some());
    }
    let asked = world.session.asked.lock().expect("no panics").clone();
    let asked = asked.iter().filter(|it| matches!(it, Request::PathCosts { write: false, .. }));
    assert_eq!(asked.count(), 2, "by the test and by the first reader");
    world.session.die();
    serving.join().expect("the daemon does not panic");
}

#[test]
fn a_daemon_without_the_feature_is_not_asked() {
    // The played one would panic.
    let mut world = world(100_000, 64, 31, Manners::default());
    let serving = world.session.serve(true);
    assert_eq!(world.file.read_costs().expect("nobody is asked"), None);
    let opened = StripReader::open(&world.client, &world.file, 0..100_000, Strips::new());
    let mut reader = opened.expect("a range");
    let (bytes, _) = read_all(&mut world.queue, &mut reader).expect("no faults");
    assert!(bytes == content(100_000));
    assert!(reader.costs().per_byte_seconds > 0.0);
    world.session.die();
    serving.join().expect("the daemon does not panic");
}

#[test]
fn two_readers_of_one_queue_do_not_mix() {
    let mut world = world(200_000, 128, 31, Manners::default());
    let serving = world.session.serve(true);
    let region = {
        let mut buffer = world.client.allocate(50_000).expect("room");
        buffer.as_mut_slice().copy_from_slice(&content(200_000)[100_000..150_000]);
        world.client.export_region("halo", buffer, Access::READ).expect("a fresh name")
    };
    let strips = Strips::new().memory(64 << 10);
    let mut file =
        StripReader::open(&world.client, &world.file, 100_000..150_000, strips).expect("a range");
    let strips = strips.policy(StripPolicy::Fixed(1000));
    let mut other =
        StripReader::open(&world.client, region.handle(), 0..50_000, strips).expect("a range");
    let (mut one, mut two) = (Vec::new(), Vec::new());
    let mut over = [false; 2];
    while over != [true; 2] {
        match file.next(&mut world.queue).expect("no faults") {
            Some(strip) => one.extend_from_slice(&strip),
            None => over[0] = true,
        }
        match other.next(&mut world.queue).expect("no faults") {
            Some(strip) => two.extend_from_slice(&strip),
            None => over[1] = true,
        }
    }
    assert!(one == two && one == content(200_000)[100_000..150_000]);
    drop((region, file, other));
    world.session.die();
    serving.join().expect("the daemon does not panic");
}
