//! Whether payloads have checksums: what two nodes agree on, and what follows from it.

use std::sync::Arc;

use piped_core::access::{Creation, OpenKind};
use piped_core::ids::SegmentId;
use piped_core::link::{Checksum, LaneClass};
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_engine::command::{Caller, Origin};
use piped_wire::{LastPart, Message};

use crate::asking::{ARENA, CREDIT, HANDLE, connected, open_arenas};
use crate::world::{ALL, LineId, SESSION, World, read, region};

/// The far node says hello with its choice, from this machine or another one: whether payloads have
/// checksums then.
fn greet(world: &mut World, theirs: Checksum, near: bool, epoch: u32) -> (LineId, bool) {
    let origin = match near {
        true => Origin::User(1000),
        false => Origin::Site([192, 0, 2, 7].into()),
    };
    let line = world.dial_as(Caller::Unproven { reserved: Arc::default(), origin }, None);
    world.hello_with(line, "beta", (LaneClass::Latency, epoch), theirs);
    match world.next(line) {
        Message::HelloAck { sums, .. } => (line, sums),
        other => panic!("not welcome: {other:?}"),
    }
}

#[test]
fn payloads_have_checksums_if_one_of_the_two_nodes_wants_them() {
    use Checksum::{Auto, Header, Payload};
    for mine in Checksum::ALL {
        for theirs in Checksum::ALL {
            for near in [false, true] {
                let mut world = World::new();
                world.add_peer_with(mine);
                let (_, sums) = greet(&mut world, theirs, near, 1);
                let expected = match (mine, theirs) {
                    (Payload, _) | (_, Payload) => true,
                    (Header, Header) => false,
                    (Auto, _) | (_, Auto) => !near,
                };
                assert_eq!(sums, expected, "{mine:?}, {theirs:?}, near: {near}");
            }
        }
    }
}

#[test]
fn the_choice_for_a_peer_is_none_for_other_nodes() {
    let mut world = World::new();
    world.add_peer_with(Checksum::Header);
    let line = world.dial_as(Caller::anybody(), None);
    world.hello_with(line, "gamma", (LaneClass::Latency, 1), Checksum::Header);
    assert!(matches!(world.next(line), Message::HelloAck { sums: true, .. }));
}

#[test]
fn what_is_served_without_checksums_passes_no_stage_that_checks() {
    for near in [false, true] {
        let mut world = World::new();
        world.session(SESSION, ARENA);
        let (line, sums) = greet(&mut world, Checksum::Auto, near, 1);
        world.set_sums(line, sums);
        let handle = world.open(line, 1, region(1, SegmentId(1), ARENA));
        world.send(line, read(1, handle, 64 << 10), &[]);
        let (frame, payload) = world.next_frame(line);
        assert!(matches!(frame.message, Message::Data { last: Some(_), .. }), "{frame:?}");
        assert_eq!((sums, frame.payload_crc != 0), (!near, !near));
        assert_eq!(payload.len(), 64 << 10);
        let it = world.shard.explain(None).expect("it was served");
        let checks = it.stages.iter().filter(|stage| stage.name == "check").count();
        assert_eq!(checks, if near { 0 } else { 2 }, "{:?}", it.stages);
        let lanes = world.shard.report().peers.remove(0).lanes;
        assert_eq!(lanes[0].sums, Some(sums));
    }
}

/// A peer that we dial does without checksums.
fn answer_without(world: &mut World, wish: Checksum) -> LineId {
    world.add_peer_with(wish);
    let (line, checksum) = world.take_hello(LaneClass::Latency);
    assert_eq!(checksum, wish);
    let (credit_bytes, requests_max) = (CREDIT, 64);
    let ack = Message::HelloAck { incarnation: 9, credit_bytes, requests_max, sums: false };
    world.send(line, ack, &[]);
    world.settle();
    line
}

#[test]
fn an_answer_without_a_checksum_is_taken_and_one_with_a_checksum_is_a_fault() {
    for has_sum in [false, true] {
        let mut world = World::new();
        let line = answer_without(&mut world, Checksum::Header);
        open_arenas(&mut world, line, &[SESSION]);
        let buffer = ArenaBuffer { segment: 0, offset: 0, length: 4096 };
        world.submit(SESSION, 1, Verb::Read { handle: HANDLE, offset: 0, buffer, wanted: 0 });
        let Message::Read { transfer, .. } = world.next(line) else { panic!("a read") };
        let last = LastPart {
            status: Status::Ok,
            bytes: 4096,
            predicted_us: 9,
            margin_percent: 1,
            company: false,
            plan: 1,
        };
        let data = Message::Data {
            transfer,
            offset: 0,
            fragment: 4096,
            backlogged: false,
            service_us: 1,
            last: Some(last),
        };
        world.set_sums(line, has_sum);
        world.send(line, data, &[7; 4096]);
        world.settle();
        if has_sum {
            assert!(!world.is_up(line));
            assert!(world.reasons()[0].contains("agreed on none"), "{:?}", world.reasons());
        } else {
            assert_eq!(world.end_of(1), Some((Status::Ok, 4096)));
        }
    }
}

#[test]
fn what_is_dialled_elsewhere_is_asked_for_checksums_unless_the_operator_does_without() {
    for (wish, told) in [
        (Checksum::Auto, Checksum::Payload),
        (Checksum::Payload, Checksum::Payload),
        (Checksum::Header, Checksum::Header),
    ] {
        let mut world = World::new();
        world.add_peer_with(wish);
        assert_eq!(world.take_hello(LaneClass::Latency).1, told);
    }
}

#[test]
fn a_name_to_open_has_a_checksum_all_the_same() {
    let mut world = World::new();
    let (line, sums) = greet(&mut world, Checksum::Auto, true, 1);
    assert!(!sums);
    let (kind, access) = (OpenKind::Region, ALL);
    let open = Message::Open { ticket: 1, kind, access, create: Creation::No, name_length: 4 };
    let mut bytes = world.frame(line, open, b"name");
    *bytes.last_mut().expect("a name") ^= 1;
    world.send_bytes(line, &bytes);
    world.settle();
    assert_eq!(world.reasons(), ["the name to open is damaged"]);
}

#[test]
fn a_choice_that_comes_or_goes_with_its_peer_holds_for_lanes_that_are_up() {
    let mut world = World::new();
    let (before, sums) = greet(&mut world, Checksum::Auto, true, 1);
    assert!(!sums);
    world.add_peer_with(Checksum::Payload);
    world.settle();
    assert!(!world.is_up(before), "agreed on before there was a choice");
    let (with, sums) = greet(&mut world, Checksum::Auto, true, 2);
    assert!(sums);
    world.remove_peer();
    world.settle();
    assert!(!world.is_up(with), "the choice is gone");
}

#[test]
fn a_peer_that_does_without_is_left_by_a_node_that_wants_checksums() {
    let mut world = World::new();
    let line = answer_without(&mut world, Checksum::Payload);
    assert!(!world.is_up(line));
    assert!(world.reasons()[0].contains("(peers.NAME.checksum)"), "{:?}", world.reasons());
}

#[test]
fn another_choice_is_agreed_on_anew_in_both_directions() {
    let mut world = World::new();
    let (asks, _) = connected(&mut world, &[SESSION]);
    let (serves, sums) = greet(&mut world, Checksum::Auto, true, 1);
    assert!(!sums);
    world.add_peer_with(Checksum::Payload);
    world.settle();
    assert!(!world.is_up(asks) && !world.is_up(serves));
    let (_, checksum) = world.take_hello(LaneClass::Latency);
    assert_eq!(checksum, Checksum::Payload);
    assert!(greet(&mut world, Checksum::Auto, true, 2).1, "the other direction");
}
