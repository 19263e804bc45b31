//! Bytes count while they move, on both sides, each once.

use piped_core::link::LaneClass;
use piped_core::request::{ArenaBuffer, Class, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::{Operation, Route};
use piped_wire::{Asker, Message};

use crate::asking::{self, CREDIT, HANDLE, connected};
use crate::nested::{copying, data};
use crate::world::{LineId, SESSION, World, read, write, write_data};

const KIB: u64 = 1024;
const PIECE: u64 = 16 * KIB;

/// What all that look on are told of the client's bytes: the shard's sum, the session's, and the
/// metric's.
fn told(world: &World, operation: Operation) -> u64 {
    let sum = world.shard.report().counters.bytes;
    let sessions = world.shard.sessions();
    let session = sessions.iter().find(|of| of.session == SESSION).expect("it is there");
    let tally = &world.shard.observe().tally;
    let metric = tally.transfers(operation, Route::Remote, Class::Latency);
    assert_eq!((session.bytes, metric.bytes), (sum, sum));
    sum
}

/// What they are told of peers' requests.
fn told_of_serves(world: &World, operation: Operation) -> u64 {
    world.shard.observe().tally.serves(operation, Class::Latency).bytes
}

fn put(length: u64) -> Verb {
    let buffer = ArenaBuffer { segment: 0, offset: 0, length };
    Verb::Write { handle: HANDLE, offset: 0, buffer, durable: false, notify: None }
}

/// The client's write, with all its bytes on the lane.
fn written(world: &mut World, line: LineId, length: u64) -> u64 {
    world.submit(SESSION, 1, put(length));
    let Message::Write { transfer, .. } = world.next(line) else { panic!("a write") };
    let mut sent = 0;
    while sent < length {
        let (frame, _) = world.next_frame(line);
        sent += u64::from(frame.payload);
    }
    transfer
}

#[test]
fn a_read_counts_what_has_landed_and_no_byte_twice_when_it_is_asked_for_again() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let length = 4 * PIECE;
    world.submit(SESSION, 1, asking::read(0, length));
    let Message::Read { transfer, .. } = world.next(line) else { panic!("a read") };
    assert_eq!(told(&world, Operation::Get), 0);
    // The last of these lies behind a hole: it comes again.
    for (offset, count) in [(0, 1), (1, 2), (3, 2)] {
        world.send(line, data(transfer, offset * PIECE, None), &[1; PIECE as usize]);
        world.settle();
        assert_eq!(told(&world, Operation::Get), count * PIECE);
    }
    assert!(world.end_of(1).is_none(), "it runs");
    let (listed, all) = world.shard.running(Nanos::ZERO, 9);
    assert_eq!((listed, all[0].bytes_done), (1, 2 * PIECE));
    world.hang_up(line);
    world.settle();
    assert_eq!(told(&world, Operation::Get), 2 * PIECE, "what is in place stays");
    world.submit(SESSION, 2, Verb::Cancel { target: 1 });
    world.wait_until("it has ended", |world| world.end_of(1).is_some());
    assert_eq!(world.end_of(1), Some((Status::Cancelled, 2 * PIECE)));
    assert_eq!(told(&world, Operation::Get), 2 * PIECE, "once, not at the end again");
}

#[test]
fn a_write_counts_what_the_peer_has_taken() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let length = 4 * PIECE;
    let transfer = written(&mut world, line, length);
    assert_eq!(told(&world, Operation::Put), 0, "the kernel has it, the peer does not say so");
    for count in 1..=3 {
        world.send(line, Message::Credit { bytes: PIECE, window: CREDIT }, &[]);
        world.settle();
        assert_eq!(told(&world, Operation::Put), count * PIECE);
    }
    // More than was sent is a claim like any other.
    world.send(line, Message::Credit { bytes: 9 * length, window: CREDIT }, &[]);
    world.settle();
    assert_eq!(told(&world, Operation::Put), length);
    world.send(line, crate::world::end(transfer, Status::Ok, length), &[]);
    world.wait_until("it has ended", |world| world.end_of(1).is_some());
    assert_eq!(told(&world, Operation::Put), length);
}

#[test]
fn a_write_that_fails_after_a_part_counts_that_part_once() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let transfer = written(&mut world, line, 4 * PIECE);
    world.send(line, Message::Credit { bytes: PIECE, window: CREDIT }, &[]);
    world.settle();
    assert_eq!(told(&world, Operation::Put), PIECE);
    world.send(line, crate::world::end(transfer, Status::NoSpace, PIECE), &[]);
    world.wait_until("it has ended", |world| world.end_of(1).is_some());
    assert_eq!(world.end_of(1), Some((Status::NoSpace, PIECE)));
    assert_eq!(told(&world, Operation::Put), PIECE);
}

#[test]
fn a_copy_counts_what_is_written_of_its_chunk() {
    let length = 4 * PIECE;
    let (mut world, line, _, transfer) = copying(length);
    for piece in 0..4 {
        assert_eq!(told(&world, Operation::Copy), piece * PIECE);
        let last = (piece == 3).then_some(length);
        world.send(line, data(transfer, piece * PIECE, last), &[1; PIECE as usize]);
        world.settle();
    }
    assert_eq!(world.end_of(1), Some((Status::Ok, length)));
    assert_eq!(told(&world, Operation::Copy), length);
}

#[test]
fn what_a_peer_asks_for_counts_while_it_is_served_without_what_it_had() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    world.send(line, write(1, handle, 4 * 64 * KIB), &[]);
    for piece in 0..4 {
        world.settle();
        assert_eq!(told_of_serves(&world, Operation::Write), piece * 64 * KIB);
        world.send(line, write_data(1, piece * 64 * KIB), &[1; 64 << 10]);
    }
    world.settle();
    assert_eq!(told_of_serves(&world, Operation::Write), 4 * 64 * KIB);
    // It goes on where it had lost its lane.
    let Message::Read { transfer, handle, offset, length, pieces, time_left_us, .. } =
        read(2, handle, 4 * 64 * KIB)
    else {
        unreachable!()
    };
    let (asker, from) = (Asker::alone(Class::Latency), 3 * 64 * KIB as u32);
    let again =
        Message::Read { transfer, handle, offset, length, asker, from, pieces, time_left_us };
    world.send(line, again, &[]);
    world.settle();
    assert_eq!(told_of_serves(&world, Operation::Read), 64 * KIB);
}
