//! Peers that leave the configuration, come back, or move.

use piped_core::access::{Creation, OpenKind};
use piped_core::link::{Checksum, Dialling, LaneClass};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event, OpenRequest};
use piped_wire::Message;

use crate::asking::{CREDIT, HANDLE, answer, connected, read};
use crate::world::{ALL, PEER, SESSION, World};

fn dials(world: &World, wanted: LaneClass) -> usize {
    let dial = |event: &&Event| matches!(event, Event::Connect { class, .. } if *class == wanted);
    world.events.iter().filter(dial).count()
}

#[test]
fn what_was_asked_of_a_removed_peer_ends_at_once_and_it_is_dialled_no_more() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, read(0, 4096));
    assert!(matches!(world.next(line), Message::Read { .. }));
    world.remove_peer();
    world.settle();
    assert_eq!(world.end_of(1), Some((Status::PeerLost, 0)));
    assert!(!world.is_up(line), "{:?}", world.reasons());
    // The other lane's dial was under way; its failure is the last that is heard of it.
    assert_eq!(dials(&world, LaneClass::Bulk), 1);
    world.take_up_dial(LaneClass::Bulk);
    world.settle();
    assert_eq!((dials(&world, LaneClass::Latency), dials(&world, LaneClass::Bulk)), (0, 0));
    // What was open there is gone, and nothing more is opened.
    world.submit(SESSION, 2, read(0, 4096));
    world.settle();
    assert_eq!(world.end_of(2), Some((Status::Gone, 0)));
    let (kind, name, path) = (OpenKind::Region, "grid".to_owned(), Vec::new());
    let open = OpenRequest { kind, name, path, access: ALL, create: Creation::No };
    let (ticket, session, handle, peer) = (77, SESSION, HANDLE, PEER);
    world.command(Command::OpenRemote { ticket, session, handle, peer, open });
    world.wait_until("the open fails", |world| {
        let failed = |event: &Event| {
            matches!(event, Event::RemoteOpened { ticket: 77, result: Err(Status::NotFound), .. })
        };
        world.events.iter().any(failed)
    });
    assert!(world.shard.report().peers.is_empty());
}

#[test]
fn a_connection_that_comes_too_late_is_closed() {
    let mut world = World::new();
    world.add_peer();
    world.remove_peer();
    let line = world.connect_late(PEER, LaneClass::Latency);
    world.settle();
    assert!(!world.is_up(line));
}

#[test]
fn an_open_that_waits_for_a_removed_peer_is_answered() {
    let mut world = World::new();
    world.add_peer();
    world.session(SESSION, 1 << 20);
    let (kind, name, path) = (OpenKind::Region, "grid".to_owned(), Vec::new());
    let open = OpenRequest { kind, name, path, access: ALL, create: Creation::No };
    let (ticket, session, handle, peer) = (5, SESSION, HANDLE, PEER);
    world.command(Command::OpenRemote { ticket, session, handle, peer, open });
    world.settle();
    world.remove_peer();
    world.settle();
    let lost = |event: &Event| {
        matches!(event, Event::RemoteOpened { ticket: 5, result: Err(Status::PeerLost), .. })
    };
    assert!(world.events.iter().any(lost), "{:?}", world.events);
}

#[test]
fn a_peer_that_comes_back_is_asked_on_lanes_of_newer_epochs() {
    let mut world = World::new();
    connected(&mut world, &[SESSION]);
    world.remove_peer();
    // Also while its lane is still closing.
    world.add_peer();
    world.wait_until("it is dialled", |world| dials(world, LaneClass::Latency) > 0);
    world.settle();
    assert_eq!(dials(&world, LaneClass::Latency), 1, "once");
    assert_eq!(dials(&world, LaneClass::Bulk), 2, "one from before is still under way");
    world.answer_connect(LaneClass::Latency, CREDIT);
    world.settle();
    let newer =
        |event: &Event| matches!(event, Event::LaneUp { class: LaneClass::Latency, epoch: 2, .. });
    assert!(world.events.iter().any(newer), "{:?}", world.events);
}

#[test]
fn what_was_asked_of_a_peer_that_moved_is_asked_again_at_its_new_place() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, read(0, 4096));
    assert!(matches!(world.next(line), Message::Read { .. }));
    world.move_peer();
    let line = world.answer_connect(LaneClass::Latency, CREDIT);
    let asked = loop {
        match world.next(line) {
            Message::Open { ticket, .. } => {
                let (status, handle, length) = (Status::Ok, 4, 1 << 20);
                world.send(line, Message::Opened { ticket, status, handle, length }, &[]);
            }
            asked @ Message::Read { .. } => break asked,
            _ => {}
        }
    };
    answer(&mut world, line, asked, 64 << 10, &[], 7);
    world.wait_until("it ends", |world| world.end_of(1).is_some());
    assert_eq!(world.end_of(1), Some((Status::Ok, 4096)));
}

const CLASSES: [LaneClass; 2] = [LaneClass::Latency, LaneClass::Bulk];

/// A peer that is dialled when it is used, with something open there: its lanes.
fn used(world: &mut World) -> [usize; 2] {
    let (kind, name, path) = (OpenKind::Region, "grid".to_owned(), Vec::new());
    let open = OpenRequest { kind, name, path, access: ALL, create: Creation::No };
    let (ticket, session, handle, peer) = (77, SESSION, HANDLE, PEER);
    world.command(Command::OpenRemote { ticket, session, handle, peer, open });
    let lanes = CLASSES.map(|class| world.answer_dial(PEER, class));
    let ticket = loop {
        if let Message::Open { ticket, .. } = world.next(lanes[0]) {
            break ticket;
        }
    };
    let (status, handle, length) = (Status::Ok, 4, 1 << 20);
    world.send(lanes[0], Message::Opened { ticket, status, handle, length }, &[]);
    world.settle();
    lanes
}

fn with_peer_for_use() -> World {
    let mut world = World::new();
    world.session(SESSION, 1 << 20);
    let (name, checksum) = ("beta".to_owned(), Checksum::Auto);
    let (second, dialling) = (false, Dialling::Used);
    world.command(Command::AddPeer { peer: PEER, name, checksum, second, dialling });
    world
}

#[test]
fn a_peer_that_is_dialled_when_it_is_used_has_lanes_while_something_is_open_and_a_while_longer() {
    let mut world = with_peer_for_use();
    world.run_for(Nanos::from_millis(300_000));
    assert_eq!(CLASSES.map(|class| dials(&world, class)), [0; 2]);
    assert!(world.shard.report().peers[0].lanes.is_empty(), "none is missing");
    let heard = |world: &World| world.shard.report().peers[0].heard;
    assert_eq!(heard(&world), None, "nothing ever came from it");
    for _ in 0..3 {
        let before = heard(&world);
        let lanes = used(&mut world);
        assert!(heard(&world) > before);
        let before = heard(&world);
        world.run_for(Nanos::from_millis(300_000));
        assert_eq!(lanes.map(|lane| world.is_up(lane)), [true; 2], "{:?}", world.reasons());
        world.command(Command::CloseHandle { session: SESSION, handle: HANDLE });
        world.run_for(Nanos::from_millis(50_000));
        assert_eq!(lanes.map(|lane| world.is_up(lane)), [true; 2], "another may be opened");
        world.run_for(Nanos::from_millis(50_000));
        assert_eq!(lanes.map(|lane| world.is_up(lane)), [false; 2]);
        assert!(world.reasons().iter().all(|it| it.contains("nothing has been open")));
        assert_eq!(CLASSES.map(|class| dials(&world, class)), [0; 2], "nobody needs them");
        assert!(world.shard.report().peers[0].lanes.is_empty());
        assert_eq!(heard(&world), before, "the time stays when the lanes are gone");
    }
    assert_eq!(world.shard.poll_timeout(), None, "nothing is to be looked at");
}

#[test]
fn a_dial_that_is_over_when_nobody_needs_it_any_more_leads_to_no_lane() {
    let mut world = with_peer_for_use();
    let lanes = used(&mut world);
    // One lane is lost, and its dial takes long.
    world.hang_up(lanes[1]);
    world.wait_until("it is dialled again", |world| dials(world, LaneClass::Bulk) == 1);
    world.command(Command::CloseHandle { session: SESSION, handle: HANDLE });
    world.run_for(Nanos::from_millis(100_000));
    assert!(!world.is_up(lanes[0]));
    let late = world.connect_late(PEER, LaneClass::Bulk);
    world.settle();
    assert!(!world.is_up(late));
    // One that fails is not repeated either.
    world.command(Command::ConnectFailed { peer: PEER, class: LaneClass::Bulk });
    world.settle();
    assert_eq!(dials(&world, LaneClass::Bulk), 1, "the one from before");
}

#[test]
fn a_peer_for_which_an_operator_wrote_an_address_is_dialled_at_once() {
    let mut world = with_peer_for_use();
    let (name, checksum) = ("beta".to_owned(), Checksum::Auto);
    let (second, dialling) = (false, Dialling::Always);
    world.command(Command::AddPeer { peer: PEER, name, checksum, second, dialling });
    world.settle();
    assert_eq!(CLASSES.map(|class| dials(&world, class)), [1; 2]);
}
