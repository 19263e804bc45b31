//! A peer that is reached at two addresses: what goes each way, and what becomes of it when a way
//! is lost, refused, or says no.

use piped_core::link::LaneClass;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_wire::Message;

use crate::asking::{CREDIT, HANDLE, answer, open_arenas, read};
use crate::world::{LineId, SESSION, World, end};

const LENGTH: u64 = 256 << 10;

/// The lanes of a peer with two addresses, where a client has a region open: latency, bulk and
/// second. One get has gone whole, so that the next one is divided.
fn two_ways(world: &mut World) -> [LineId; 3] {
    world.add_peer_with_second();
    let latency = world.answer_connect(LaneClass::Latency, CREDIT);
    let [bulk, second] =
        [LaneClass::Bulk, LaneClass::Second].map(|class| world.answer_connect(class, CREDIT));
    open_arenas(world, latency, &[SESSION]);
    world.settle();
    world.submit_bulk(SESSION, 1, read(0, LENGTH));
    let whole = asked(world, bulk);
    assert_eq!(range(whole), (0, LENGTH), "nothing is known yet");
    serve(world, bulk, whole);
    world.wait_until("its end", |world| world.end_of(1).is_some());
    [latency, bulk, second]
}

/// The next read on a line.
fn asked(world: &mut World, line: LineId) -> Message {
    loop {
        match world.next(line) {
            read @ Message::Read { .. } => break read,
            Message::Outcome { .. } | Message::Close { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Where a read begins, and how long it is.
fn range(read: Message) -> (u64, u64) {
    let Message::Read { offset, length, .. } = read else { panic!("not a read: {read:?}") };
    (offset, length)
}

fn number(read: Message) -> u64 {
    let Message::Read { transfer, .. } = read else { panic!("not a read: {read:?}") };
    transfer
}

/// The peer answers a read in full.
fn serve(world: &mut World, line: LineId, read: Message) {
    answer(world, line, read, 64 << 10, &[], 7);
}

#[test]
fn a_get_is_divided_and_ends_with_its_last_part() {
    let mut world = World::new();
    let [_, bulk, second] = two_ways(&mut world);
    world.submit_bulk(SESSION, 2, read(0, LENGTH));
    let (first, rest) = (asked(&mut world, bulk), asked(&mut world, second));
    let most = LENGTH - LENGTH / 8;
    assert_eq!([range(first), range(rest)], [(0, most), (most, LENGTH / 8)], "it is tried");
    serve(&mut world, second, rest);
    world.settle();
    assert_eq!(world.end_of(2), None);
    serve(&mut world, bulk, first);
    world.wait_until("its end", |world| world.end_of(2).is_some());
    assert_eq!(world.end_of(2), Some((Status::Ok, LENGTH)));
    assert_eq!(world.shard.report().transfers, 0);
    assert_eq!(world.reasons(), [""; 0]);
    let it = world.shard.explain(None).expect("it is the last");
    assert!(it.route.contains("2 lanes"), "{}", it.route);
}

/// A part of a get whose lane is lost is asked for again on the other; no client is told of it.
#[test]
fn a_part_of_a_lost_way_goes_the_other() {
    for lose_second in [true, false] {
        let mut world = World::new();
        let [_, bulk, second] = two_ways(&mut world);
        world.submit_bulk(SESSION, 2, read(0, LENGTH));
        let (first, rest) = (asked(&mut world, bulk), asked(&mut world, second));
        let (lost, kept) = if lose_second { (second, bulk) } else { (bulk, second) };
        let (gone, stays) = if lose_second { (rest, first) } else { (first, rest) };
        world.hang_up(lost);
        let again = asked(&mut world, kept);
        assert_eq!(range(again), range(gone), "{lose_second}");
        serve(&mut world, kept, stays);
        serve(&mut world, kept, again);
        world.wait_until("its end", |world| world.end_of(2).is_some());
        assert_eq!(world.end_of(2), Some((Status::Ok, LENGTH)), "{lose_second}");
        // Until the way is back, the other has all.
        world.submit_bulk(SESSION, 3, read(0, LENGTH));
        let whole = asked(&mut world, kept);
        assert_eq!(range(whole), (0, LENGTH), "{lose_second}");
        serve(&mut world, kept, whole);
        world.wait_until("its end", |world| world.end_of(3).is_some());
        assert_eq!(world.shard.report().transfers, 0);
    }
}

/// Until a way is back the other one has all, also what was asked for before it was lost.
#[test]
fn what_waits_for_a_way_goes_the_other() {
    let mut world = World::new();
    let [_, bulk, second] = two_ways(&mut world);
    world.hang_up(bulk);
    world.hang_up(second);
    world.settle();
    world.submit_bulk(SESSION, 2, read(0, LENGTH));
    // As short as it is, it waits for the bulk lane, too.
    world.submit_bulk(SESSION, 3, read(0, 4096));
    world.settle();
    let second = world.answer_connect(LaneClass::Second, CREDIT);
    for expected in [LENGTH, 4096] {
        let it = asked(&mut world, second);
        assert_eq!(range(it), (0, expected));
        serve(&mut world, second, it);
    }
    world.wait_until("their ends", |world| [2, 3].iter().all(|&it| world.end_of(it).is_some()));
    assert_eq!([2, 3].map(|it| world.end_of(it).map(|end| end.0)), [Some(Status::Ok); 2]);
}

/// What changes something at the peer goes one way, and waits for it: on the other one the old
/// could land after the new.
#[test]
fn a_put_goes_one_way() {
    let mut world = World::new();
    let [_, bulk, second] = two_ways(&mut world);
    let put = |world: &mut World, number| {
        let buffer = ArenaBuffer { segment: 0, offset: 0, length: LENGTH };
        let verb = Verb::Write { handle: HANDLE, offset: 0, buffer, durable: false, notify: None };
        world.submit_bulk(SESSION, number, verb);
    };
    let asked = |world: &mut World, line| loop {
        match world.next(line) {
            Message::Write { transfer, length, .. } => break (transfer, length),
            Message::WriteData { .. } | Message::Outcome { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    for number in 2..6 {
        put(&mut world, number);
        let (whole, length) = asked(&mut world, bulk);
        assert_eq!(length, LENGTH);
        world.send(bulk, end(whole, Status::Ok, LENGTH), &[]);
        world.wait_until("its end", |world| world.end_of(number).is_some());
    }
    world.hang_up(bulk);
    put(&mut world, 6);
    world.settle();
    assert!(world.take_frame(second).is_none(), "it waits");
    let bulk = world.answer_connect(LaneClass::Bulk, CREDIT);
    let (whole, _) = asked(&mut world, bulk);
    world.send(bulk, end(whole, Status::Ok, LENGTH), &[]);
    world.wait_until("its end", |world| world.end_of(6).is_some());
    assert_eq!(world.end_of(6), Some((Status::Ok, LENGTH)));
}

/// A client is told as much of a divided read as of another one: that the peer is lost.
#[test]
fn a_divided_read_of_a_lost_peer_says_so() {
    let mut world = World::new();
    let [latency, bulk, second] = two_ways(&mut world);
    world.submit_bulk(SESSION, 2, read(0, LENGTH));
    let _ = (asked(&mut world, bulk), asked(&mut world, second));
    for line in [latency, bulk, second] {
        world.hang_up(line);
    }
    world.run_for(Nanos::from_millis(61_000));
    assert_eq!(world.end_of(2), Some((Status::PeerLost, 0)));
    assert_eq!(world.shard.report().transfers, 0);
}

/// The whole ends as the part that fails first, and the other is given up.
#[test]
fn a_part_that_fails_ends_the_whole() {
    let mut world = World::new();
    let [_, bulk, second] = two_ways(&mut world);
    world.submit_bulk(SESSION, 2, read(0, LENGTH));
    let (first, rest) = (asked(&mut world, bulk), asked(&mut world, second));
    let no = end(number(rest), Status::Denied, 0);
    world.send(second, no, &[]);
    world.wait_until("its end", |world| world.end_of(2).is_some());
    assert_eq!(world.end_of(2), Some((Status::Denied, 0)));
    let cancelled = loop {
        match world.next(bulk) {
            Message::Cancel { transfer } => break transfer,
            Message::Outcome { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(cancelled, number(first));
    world.send(bulk, end(number(first), Status::Cancelled, 0), &[]);
    world.settle();
    assert_eq!(world.shard.report().transfers, 0);
    assert_eq!(world.reasons(), [""; 0]);
}

/// What a node has open is where its latency lane is: without one here, it has no second lane.
#[test]
fn a_second_lane_comes_beside_a_latency_lane_only() {
    let mut world = World::new();
    let line = world.dial();
    world.hello(line, "beta", LaneClass::Second, 1);
    world.settle();
    assert!(!world.is_up(line));
    assert!(world.reasons().iter().any(|reason| reason.contains("second address")));
    let _ = world.lane("beta", LaneClass::Latency, 1);
    let second = world.lane("beta", LaneClass::Second, 2);
    assert!(world.is_up(second));
}

/// Of the nodes that ask, those with a second lane get no credit there, and may say there nothing
/// that changes something.
#[test]
fn only_reads_are_taken_by_a_second_lane() {
    let (handle, time_left_us) = (0, 1_000_000);
    let asker = piped_wire::Asker::alone(piped_core::request::Class::Bulk);
    let write = |length| Message::Write {
        transfer: 1,
        handle,
        offset: 0,
        length,
        asker,
        durable: false,
        pieces: false,
        fragment: 4096,
        time_left_us,
    };
    let forbidden = [
        write(4096),
        write(0),
        Message::Sync { transfer: 1, handle, time_left_us },
        Message::Close { handle },
    ];
    for message in forbidden {
        let mut world = World::new();
        let latency = world.lane("beta", LaneClass::Latency, 1);
        let second = world.dial();
        world.hello(second, "beta", LaneClass::Second, 1);
        let Message::HelloAck { credit_bytes, requests_max, .. } = world.next(second) else {
            panic!("not welcome")
        };
        assert_eq!((credit_bytes, requests_max), (0, piped_core::limits::SERVES_OF_SECOND));
        world.send(second, Message::Ping { nonce: 7 }, &[]);
        assert!(matches!(world.next(second), Message::Pong { nonce: 7 }));
        world.send(second, message, &[]);
        world.settle();
        assert!(!world.is_up(second) && world.is_up(latency), "{message:?}");
        assert!(world.reasons()[0].contains("else than a read"), "{:?}", world.reasons());
    }
}

/// Behind the second address is somebody else: nothing that it says is believed, and the peer goes
/// on by its first address.
#[test]
fn another_daemon_behind_the_second_address_is_not_believed() {
    let mut world = World::new();
    world.add_peer_with_second();
    let latency = world.answer_connect(LaneClass::Latency, CREDIT);
    let bulk = world.answer_connect(LaneClass::Bulk, CREDIT);
    let other = world.answer_connect_as(LaneClass::Second, CREDIT, 10);
    open_arenas(&mut world, latency, &[SESSION]);
    world.settle();
    assert!(!world.is_up(other) && world.is_up(latency) && world.is_up(bulk));
    assert!(world.reasons()[0].contains("another daemon"), "{:?}", world.reasons());
    for number in 1..4 {
        world.submit_bulk(SESSION, number, read(0, LENGTH));
        let whole = asked(&mut world, bulk);
        assert_eq!(range(whole), (0, LENGTH), "what it said changed nothing");
        serve(&mut world, bulk, whole);
        world.wait_until("its end", |world| world.end_of(number).is_some());
        assert_eq!(world.end_of(number), Some((Status::Ok, LENGTH)));
    }
    // It is dialled again, as lanes are.
    let second = world.answer_connect(LaneClass::Second, CREDIT);
    world.settle();
    assert!(world.is_up(second));
}

/// The peer has restarted, and its second lane is the first to know: that one is not taken, until
/// the first address says the same, and then no lane of the old daemon is used.
#[test]
fn a_restart_is_heard_of_by_the_first_address() {
    let mut world = World::new();
    let [latency, bulk, second] = two_ways(&mut world);
    world.hang_up(second);
    let second = world.answer_connect_as(LaneClass::Second, CREDIT, 10);
    world.settle();
    assert!(!world.is_up(second), "it is not what the handles are of");
    let second = world.answer_connect(LaneClass::Second, CREDIT);
    world.settle();
    assert!(world.is_up(latency) && world.is_up(bulk) && world.is_up(second));
    world.hang_up(latency);
    let latency = world.answer_connect_as(LaneClass::Latency, CREDIT, 10);
    world.settle();
    assert!(world.is_up(latency) && !world.is_up(second));
    let second = world.answer_connect_as(LaneClass::Second, CREDIT, 10);
    world.settle();
    assert!(world.is_up(second));
}

/// A peer that loses its second address is not dialled there any more, and what was under way by
/// it goes on by the first.
#[test]
fn a_second_address_that_is_taken_back_is_left() {
    let mut world = World::new();
    let [_, bulk, second] = two_ways(&mut world);
    world.submit_bulk(SESSION, 2, read(0, LENGTH));
    let parts = [asked(&mut world, bulk), asked(&mut world, second)];
    world.add_peer();
    world.settle();
    assert!(!world.is_up(bulk) && !world.is_up(second), "all are made anew");
    let latency = world.answer_connect(LaneClass::Latency, CREDIT);
    let bulk = world.answer_connect(LaneClass::Bulk, CREDIT);
    for _ in parts {
        let again = asked(&mut world, bulk);
        assert!(parts.iter().any(|&part| range(part) == range(again)));
        serve(&mut world, bulk, again);
    }
    world.wait_until("its end", |world| world.end_of(2).is_some());
    assert_eq!(world.end_of(2), Some((Status::Ok, LENGTH)));
    world.settle();
    assert!(world.is_up(latency) && world.is_up(bulk));
    let lanes = world.shard.report().peers.into_iter().next().expect("the peer").lanes;
    assert_eq!(lanes.len(), 2);
}
