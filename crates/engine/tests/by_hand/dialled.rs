//! More peers than a shard dials.

use piped_core::access::{Creation, OpenKind};
use piped_core::ids::{HandleId, PeerId, SessionId};
use piped_core::limits::{LANES_DIALLED_MAX, PEERS_DIALLED_MAX};
use piped_core::link::{Checksum, Dialling, LaneClass};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event, OpenRequest};
use piped_wire::Message;
use piped_wire::frame::SWEEP;

use crate::world::{ALL, World};

const OURS: SessionId = SessionId(1);
/// Of another user.
const THEIRS: SessionId = SessionId(2);

/// All sessions, each of another user.
const USERS: std::ops::RangeInclusive<u32> = 1..=8;

/// So many peers, which are dialled when they are used.
fn crowd(peers: u32) -> World {
    let mut world = World::new();
    for (session, user) in USERS.map(|number| (SessionId(number), 6 + number)) {
        world.command(Command::OpenSession { session, weight: 1, home: 0, user });
    }
    (0..peers).for_each(|number| add(&mut world, number, Dialling::Used));
    world
}

fn add(world: &mut World, number: u32, dialling: Dialling) {
    let (peer, name, checksum) = (PeerId(number), format!("p{number}"), Checksum::Auto);
    world.command(Command::AddPeer { peer, name, checksum, second: false, dialling });
}

fn open(session: SessionId, number: u32) -> Command {
    let (kind, name, path) = (OpenKind::Region, "grid".to_owned(), Vec::new());
    let open = OpenRequest { kind, name, path, access: ALL, create: Creation::No };
    let (ticket, handle, peer) = (u64::from(number), HandleId(number), PeerId(number));
    Command::OpenRemote { ticket, session, handle, peer, open }
}

/// Opens something at a peer; whether the peer is dialled for it, or was before.
fn opens(world: &mut World, session: SessionId, number: u32) -> bool {
    let before = world.events.len();
    world.command(open(session, number));
    world.settle();
    let is_full =
        |event: &Event| matches!(event, Event::PeersFull { peer: PeerId(it), .. } if *it == number);
    !world.events[before..].iter().any(is_full)
}

/// The first peer is up, and something is open there: its latency lane.
fn opened(world: &mut World) -> usize {
    assert!(opens(world, OURS, 0));
    let lane = world.answer_dial(PeerId(0), LaneClass::Latency);
    answer_open(world, lane);
    lane
}

/// A peer opens what it is asked for on a new lane.
fn answer_open(world: &mut World, lane: usize) {
    let Message::Open { ticket, .. } = world.next(lane) else { panic!("something is opened") };
    assert_eq!(world.next(lane), Message::Close { handle: SWEEP });
    let (status, handle, length) = (Status::Ok, 4, 1 << 20);
    world.send(lane, Message::Opened { ticket, status, handle, length }, &[]);
    world.settle();
}

/// As many users as it takes have something open at all of the others that may be dialled; another
/// user.
fn use_all_others(world: &mut World) -> SessionId {
    let mut sessions = USERS.map(SessionId);
    let mut session = sessions.next().expect("one");
    for number in 1..PEERS_DIALLED_MAX {
        while !opens(world, session, number) {
            session = sessions.next().expect("a user who has less");
        }
    }
    sessions.next().expect("one more")
}

fn close(world: &mut World, session: SessionId, number: u32) {
    world.command(Command::CloseHandle { session, handle: HandleId(number) });
}

/// The peers that were asked to be dialled.
fn dialled(world: &World) -> Vec<u32> {
    let dial = |event: &Event| match event {
        Event::Connect { peer, class: LaneClass::Latency, .. } => Some(peer.0),
        _ => None,
    };
    world.events.iter().filter_map(dial).collect()
}

#[test]
fn a_user_of_many_peers_leaves_some_to_others() {
    let mut world = crowd(1024);
    let ours: Vec<u32> = (0..1024).filter(|&it| opens(&mut world, OURS, it)).collect();
    assert_eq!(ours, (0..224).collect::<Vec<_>>(), "seven eighths");
    assert_eq!(dialled(&world), ours, "nobody else is dialled");
    let theirs: Vec<u32> = (300..1024).filter(|&it| opens(&mut world, THEIRS, it)).collect();
    assert_eq!(theirs, (300..328).collect::<Vec<_>>(), "again");
    assert!(opens(&mut world, THEIRS, 5), "what is used by one may be used by all");
    assert_eq!(world.shard.report().counters.peers_full, 800 + 724 - 28);
}

#[test]
fn a_peer_at_which_nothing_is_open_makes_room_the_longest_idle_first() {
    let mut world = crowd(1024);
    // Some at a time are opened, and closed within a second, the last one first.
    for some in [0..200, 200..PEERS_DIALLED_MAX] {
        some.clone().for_each(|number| assert!(opens(&mut world, OURS, number)));
        for number in some.rev() {
            close(&mut world, OURS, number);
            world.run_for(Nanos::from_millis(1));
        }
    }
    assert!(opens(&mut world, OURS, 199), "it is idle, and is used again");
    let before = dialled(&world).len();
    (500..503).for_each(|number| assert!(opens(&mut world, THEIRS, number)));
    assert_eq!(dialled(&world)[before..], [500, 501, 502]);
    // Whose dial fails is dialled again, but for those that rest.
    let before = dialled(&world).len();
    for peer in [0, 195, 196, 197, 198, 199, 200, 255].map(PeerId) {
        world.command(Command::ConnectFailed { peer, class: LaneClass::Latency });
    }
    world.settle();
    let mut again = dialled(&world).split_off(before);
    again.sort_unstable();
    assert_eq!(again, [0, 195, 199, 200, 255], "198, 197 and 196 rest");
    assert_eq!(world.shard.report().counters.peers_full, 0);
}

#[test]
fn a_peer_that_is_still_to_be_told_something_does_not_rest() {
    let mut world = crowd(1024);
    let lane = opened(&mut world);
    let last = use_all_others(&mut world);
    // It is closed there, and another peer is opened at once.
    let closes = Command::CloseHandle { session: OURS, handle: HandleId(0) };
    [closes, open(last, 700)].into_iter().for_each(|command| world.command(command));
    assert_eq!(world.next(lane), Message::Close { handle: 4 });
    assert!(world.is_up(lane) && dialled(&world).contains(&700), "one more is dialled");
    // It rests soon after that, and not a minute later.
    world.run_for(Nanos::from_millis(20_000));
    assert!(!world.is_up(lane), "{:?}", world.reasons());
}

#[test]
fn a_peer_that_was_lost_when_something_was_closed_there_is_told_on_its_next_lane() {
    let mut world = crowd(1024);
    let lane = opened(&mut world);
    let last = use_all_others(&mut world);
    world.hang_up(lane);
    world.settle();
    close(&mut world, OURS, 0);
    assert!(opens(&mut world, last, 700));
    world.events.retain(|event| matches!(event, Event::Connect { peer: PeerId(0), .. }));
    let lane = world.answer_dial(PeerId(0), LaneClass::Latency);
    assert_eq!(world.next(lane), Message::Close { handle: SWEEP });
}

#[test]
fn a_peer_that_does_not_answer_has_its_place_for_some_seconds_after_the_last_close() {
    let mut world = crowd(1024);
    assert!(opens(&mut world, OURS, 0));
    let lane = world.answer_dial(PeerId(0), LaneClass::Latency);
    assert!(matches!(world.next(lane), Message::Open { .. }), "and that is all");
    let last = use_all_others(&mut world);
    close(&mut world, OURS, 0);
    let open_and_close = |world: &mut World, number| {
        assert!(opens(world, last, number));
        close(world, last, number);
        world.run_for(Nanos::from_millis(4_000));
    };
    for number in [700, 701] {
        open_and_close(&mut world, number);
        assert!(world.is_up(lane), "one is more than is to be, and makes room for the next");
    }
    world.run_for(Nanos::from_millis(3_000));
    open_and_close(&mut world, 702);
    assert!(!world.is_up(lane), "{:?}", world.reasons());
}

#[test]
fn peers_that_come_to_be_always_dialled_go_before_idle_ones_and_lanes_are_left_to_others() {
    let mut world = crowd(512);
    for number in 0..200 {
        assert!(opens(&mut world, OURS, number));
    }
    (0..100).for_each(|number| close(&mut world, OURS, number));
    (600..856).for_each(|number| add(&mut world, number, Dialling::Always));
    world.settle();
    let report = world.shard.report();
    let wanted = report.peers.iter().filter(|peer| !peer.lanes.is_empty()).count();
    assert_eq!(wanted, 100 + 256, "those at which something is open, and those that have to be");
    // As with second addresses, each has three: more than there may be.
    let mut lanes = 0;
    for peer in (100..200).chain(600..856) {
        for class in LaneClass::ALL {
            let line = world.connect_late(PeerId(peer), class);
            lanes += u32::from(world.is_up(line));
        }
    }
    assert_eq!(lanes, LANES_DIALLED_MAX);
}

#[test]
fn a_peer_that_is_dialled_when_it_is_used_from_now_on_rests_whatever_lane_it_has() {
    let mut world = crowd(0);
    add(&mut world, 0, Dialling::Always);
    let lane = world.answer_dial(PeerId(0), LaneClass::Bulk);
    add(&mut world, 0, Dialling::Used);
    world.run_for(Nanos::from_millis(50_000));
    assert!(world.is_up(lane));
    world.run_for(Nanos::from_millis(50_000));
    assert!(!world.is_up(lane), "the other one never came up");
    assert_eq!(world.shard.poll_timeout(), None);
}

#[test]
fn a_peer_that_is_lost_for_another_has_its_lanes_closed_and_is_dialled_when_it_is_used() {
    let mut world = crowd(1024);
    let lane = opened(&mut world);
    close(&mut world, OURS, 0);
    for number in 1..=PEERS_DIALLED_MAX {
        assert!(world.is_up(lane), "{number}");
        assert!(opens(&mut world, OURS, number));
        close(&mut world, OURS, number);
        // Some time later than the first.
        world.run_for(Nanos::from_millis(100));
    }
    assert!(!world.is_up(lane));
    assert!(world.reasons().iter().any(|it| it.contains("another one is dialled instead")));
    let before = dialled(&world).len();
    assert!(opens(&mut world, OURS, 0));
    assert_eq!(dialled(&world)[before..], [0]);
}

#[test]
fn peers_that_are_always_dialled_keep_their_places() {
    let mut world = crowd(0);
    (0..PEERS_DIALLED_MAX).for_each(|number| add(&mut world, number, Dialling::Always));
    (300..310).for_each(|number| add(&mut world, number, Dialling::Used));
    world.settle();
    assert_eq!(dialled(&world).len(), PEERS_DIALLED_MAX as usize);
    assert!(!opens(&mut world, OURS, 300) && opens(&mut world, OURS, 3));
    world.command(Command::RemovePeer { peer: PeerId(9) });
    assert!(opens(&mut world, OURS, 300));
    assert!(!opens(&mut world, OURS, 301));
    let answer = |event: &Event| match event {
        Event::RemoteOpened { ticket: 301, result, .. } => Some(*result),
        Event::PeersFull { ticket: 301, user, .. } => {
            Some(Err(Status::WouldBlock)).filter(|_| *user == 7)
        }
        _ => None,
    };
    let answers: Vec<_> = world.events.iter().filter_map(answer).collect();
    assert_eq!(answers, [Err(Status::WouldBlock)], "one answer");
}

#[test]
fn peers_that_leave_are_forgotten_and_the_next_ones_have_newer_epochs() {
    let mut world = crowd(1);
    for number in 0..600 {
        assert!(opens(&mut world, OURS, number));
        let lane = world.answer_dial(PeerId(number), LaneClass::Latency);
        world.settle();
        let (peer, class, epoch) = (format!("p{number}"), LaneClass::Latency, number + 1);
        assert!(world.events.contains(&Event::LaneUp { peer, class, epoch }), "{number}");
        answer_open(&mut world, lane);
        // Another one comes while the lane still closes.
        world.command(Command::RemovePeer { peer: PeerId(number) });
        add(&mut world, number + 1, Dialling::Used);
        world.settle();
        assert!(!world.is_up(lane));
        close(&mut world, OURS, number);
        // The dial of the other lane ends as well.
        world.command(Command::ConnectFailed { peer: PeerId(number), class: LaneClass::Bulk });
        world.settle();
    }
    assert!(world.shard.report().peers.iter().all(|peer| peer.name == "p600"));
    assert!(world.shard.stages().len() < 40, "{}", world.shard.stages().len());
}

#[test]
fn a_peer_that_comes_back_is_dialled_when_the_lanes_from_before_are_closed() {
    let mut world = crowd(0);
    let always = |peer| Command::AddPeer {
        peer: PeerId(peer),
        name: "beta".to_owned(),
        checksum: Checksum::Auto,
        second: false,
        dialling: Dialling::Always,
    };
    world.command(always(0));
    let lane = world.answer_dial(PeerId(0), LaneClass::Latency);
    world.settle();
    assert!(world.is_up(lane));
    world.command(Command::RemovePeer { peer: PeerId(0) });
    world.command(always(1));
    assert_eq!(world.shard.poll_output(), None, "nobody is dialled yet");
    world.settle();
    assert!(!world.is_up(lane));
    assert_eq!(dialled(&world), [1]);
}
