//! More peers than a shard dials.

use piped_core::access::{Creation, OpenKind};
use piped_core::ids::{HandleId, PeerId, SessionId};
use piped_core::limits::PEERS_DIALLED_MAX;
use piped_core::link::{Checksum, Dialling, LaneClass};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event, OpenRequest};
use piped_wire::Message;

use crate::world::{ALL, World};

const OURS: SessionId = SessionId(1);
/// Of another user.
const THEIRS: SessionId = SessionId(2);

/// So many peers, which are dialled when they are used, and two users.
fn crowd(peers: u32) -> World {
    let mut world = World::new();
    for (session, user) in [(OURS, 7), (THEIRS, 8)] {
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
    // One opens at each, and closes it at once.
    for number in 0..PEERS_DIALLED_MAX {
        assert!(opens(&mut world, OURS, number));
        close(&mut world, OURS, number);
        if number == 7 {
            world.run_for(Nanos::from_millis(30_000));
        }
    }
    assert!(opens(&mut world, OURS, 2), "it is idle, and is used again");
    let before = dialled(&world).len();
    for number in 0..7 {
        assert!(opens(&mut world, THEIRS, 500 + number));
    }
    assert_eq!(dialled(&world)[before..], (500..507).collect::<Vec<_>>());
    // Those that were first rest, but for the one that is used; a failed dial is not repeated.
    for peer in [0, 1, 2, 3, 7, 8].map(PeerId) {
        world.command(Command::ConnectFailed { peer, class: LaneClass::Latency });
    }
    let before = dialled(&world).len();
    world.settle();
    let mut again = dialled(&world).split_off(before);
    again.sort_unstable();
    assert_eq!(again, [2, 8], "all others that were idle so long rest");
    assert_eq!(world.shard.report().counters.peers_full, 0);
}

#[test]
fn a_peer_that_is_lost_for_another_has_its_lanes_closed_and_is_dialled_when_it_is_used() {
    let mut world = crowd(1024);
    assert!(opens(&mut world, OURS, 0));
    let lane = world.answer_dial(PeerId(0), LaneClass::Latency);
    assert!(matches!(world.next(lane), Message::Open { .. }));
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
fn a_peer_that_left_is_forgotten_and_comes_back_with_newer_epochs() {
    let mut world = crowd(1);
    for number in 0..600 {
        assert!(opens(&mut world, OURS, number));
        let lane = world.answer_dial(PeerId(number), LaneClass::Latency);
        world.settle();
        let (peer, class, epoch) = (format!("p{number}"), LaneClass::Latency, number + 1);
        assert!(world.events.contains(&Event::LaneUp { peer, class, epoch }), "{number}");
        if let Message::Open { ticket, .. } = world.next(lane) {
            let (status, handle, length) = (Status::Ok, 4, 1 << 20);
            world.send(lane, Message::Opened { ticket, status, handle, length }, &[]);
        }
        world.settle();
        // The node comes back at once, under another number: its old lane still closes.
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
