//! A peer that is reached at two addresses: what goes each way, and what becomes of it when a way
//! is lost, refused, or says no.

use piped_core::link::LaneClass;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
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
    assert_eq!([range(first), range(rest)], [(0, LENGTH / 2), (LENGTH / 2, LENGTH / 2)]);
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

/// A part of a put whose lane is lost waits for that lane: until it is up again the peer may still
/// write what it has of the part, and on the other lane a later put could be overtaken.
#[test]
fn a_part_of_a_put_waits_for_its_own_way() {
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
    put(&mut world, 2);
    let (whole, length) = asked(&mut world, bulk);
    assert_eq!(length, LENGTH);
    world.send(bulk, end(whole, Status::Ok, LENGTH), &[]);
    world.wait_until("its end", |world| world.end_of(2).is_some());
    put(&mut world, 3);
    let ((first, length), _) = (asked(&mut world, bulk), asked(&mut world, second));
    world.hang_up(second);
    world.send(bulk, end(first, Status::Ok, length), &[]);
    world.settle();
    while let Some((frame, _)) = world.take_frame(bulk) {
        assert!(!matches!(frame.message, Message::Write { .. }), "{frame:?}");
    }
    assert_eq!(world.end_of(3), None);
    let second = world.answer_connect(LaneClass::Second, CREDIT);
    let (rest, left) = asked(&mut world, second);
    assert_eq!(length + left, LENGTH);
    world.send(second, end(rest, Status::Ok, left), &[]);
    world.wait_until("its end", |world| world.end_of(3).is_some());
    assert_eq!(world.end_of(3), Some((Status::Ok, LENGTH)));
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

/// A peer that loses its second address is not dialled there any more.
#[test]
fn a_second_address_that_is_taken_back_is_left() {
    let mut world = World::new();
    let [_, bulk, second] = two_ways(&mut world);
    world.add_peer();
    world.settle();
    assert!(!world.is_up(bulk) && !world.is_up(second), "all are made anew");
    let latency = world.answer_connect(LaneClass::Latency, CREDIT);
    let bulk = world.answer_connect(LaneClass::Bulk, CREDIT);
    world.settle();
    assert!(world.is_up(latency) && world.is_up(bulk));
    let lanes = world.shard.report().peers.into_iter().next().expect("the peer").lanes;
    assert_eq!(lanes.len(), 2);
}
