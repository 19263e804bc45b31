//! Handles that end while requests by them are in execution: each request ends once, with `Gone`,
//! others' go on, and what the handle stood for is let go when nothing uses it any more.

use piped_core::access::{Creation, OpenKind};
use piped_core::ids::{HandleId, RegionId, SessionId};
use piped_core::link::{Checksum, LaneClass};
use piped_core::request::{ArenaBuffer, Completion, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event, Target};
use piped_wire::Message;
use piped_wire::frame::SWEEP;

use crate::asking::{ARENA, HANDLE, connected};
use crate::world::{ALL, SESSION, World, read, region, write, write_data};

const OTHER: SessionId = SessionId(77);
const LENGTH: u64 = 128 << 10;

fn of_file(handle: HandleId, offset: u64, writes: bool) -> Verb {
    let buffer = ArenaBuffer { segment: 0, offset, length: LENGTH };
    match writes {
        true => Verb::Write { handle, offset, buffer, durable: false, notify: None },
        false => Verb::Read { handle, offset, buffer, wanted: 0 },
    }
}

/// How often a request was said to be over.
fn ends(world: &World, request: u64) -> usize {
    let is_it = |it: &&Completion| matches!(it, Completion::Finished { origin, .. } if origin.user_data == request);
    world.completions.iter().filter(is_it).count()
}

fn install(world: &mut World, session: SessionId, target: Target) {
    world.command(Command::InstallHandle { session, handle: HANDLE, target });
}

#[test]
fn requests_by_a_handle_that_ends_end_once_and_others_go_on() {
    for blocked in [true, false] {
        let mut world = World::new();
        for session in [SESSION, OTHER] {
            world.session(session, 1 << 20);
            let file = world.file(1 << 20);
            install(&mut world, session, file);
        }
        if blocked {
            world.block_device(Nanos::from_millis(50));
        }
        for (at, (session, writes)) in
            [(SESSION, false), (SESSION, true), (OTHER, false), (OTHER, true)].iter().enumerate()
        {
            let offset = at as u64 % 2 * LENGTH;
            world.submit(*session, at as u64, of_file(HANDLE, offset, *writes));
        }
        world.settle_turn();
        let files = world.kernel.open_files(world.node).len();
        world.command(Command::EndHandle { session: SESSION, handle: HANDLE });
        // Once more, by another operator.
        world.command(Command::EndHandle { session: SESSION, handle: HANDLE });
        world.submit(SESSION, 10, of_file(HANDLE, 0, false));
        world.settle();
        for request in [0, 1, 10] {
            assert_eq!(world.end_of(request).map(|it| it.0), Some(Status::Gone), "{request}");
        }
        for request in [2, 3] {
            assert_eq!(world.end_of(request), Some((Status::Ok, LENGTH)), "{request}");
        }
        assert!(
            [0, 1, 2, 3, 10].iter().all(|&it| ends(&world, it) == 1),
            "{:?}",
            world.completions
        );
        assert_eq!(world.kernel.open_files(world.node).len(), files - 1, "its file, and no other");
        // It is closed by who has it, as any; and the session ends as any.
        world.command(Command::CloseHandle { session: SESSION, handle: HANDLE });
        world.submit(SESSION, 11, of_file(HANDLE, 0, false));
        world.settle();
        assert_eq!(world.end_of(11).map(|it| it.0), Some(Status::BadHandle));
    }
}

#[test]
fn a_client_that_is_killed_as_its_handle_ends_leaves_nothing() {
    for handle_first in [true, false] {
        let mut world = World::new();
        world.session(SESSION, 1 << 20);
        let file = world.file(1 << 20);
        install(&mut world, SESSION, file);
        world.block_device(Nanos::from_millis(50));
        for request in 0..8 {
            world.submit(SESSION, request, of_file(HANDLE, request * LENGTH, request % 2 == 0));
        }
        world.settle_turn();
        let end = Command::EndHandle { session: SESSION, handle: HANDLE };
        if handle_first {
            world.command(end.clone());
        }
        world.command(Command::CloseSession { session: SESSION });
        if !handle_first {
            world.command(end);
        }
        world.settle();
        let drained = Event::SessionDrained { session: SESSION };
        assert_eq!(world.events.iter().filter(|event| **event == drained).count(), 1);
        assert_eq!(world.kernel.open_files(world.node).len(), 0);
        assert!((0..8).all(|request| ends(&world, request) <= 1));
    }
}

#[test]
fn a_region_and_a_copy_end_with_a_handle_and_the_region_stays_for_others() {
    let mut world = World::new();
    let owned = world.session(SESSION, 1 << 20);
    for session in [OTHER, SessionId(78)] {
        world.session(session, 1 << 20);
        install(&mut world, session, region(1, owned, 1 << 20));
        let (file, handle) = (world.file(1 << 20), HandleId(2));
        world.command(Command::InstallHandle { session, handle, target: file });
    }
    world.block_device(Nanos::from_millis(50));
    let copy =
        Verb::Copy { from: HandleId(2), from_offset: 0, to: HANDLE, to_offset: 0, length: 1 << 20 };
    world.submit(OTHER, 1, copy);
    world.submit(SessionId(78), 2, copy);
    world.settle_turn();
    world.command(Command::EndHandle { session: OTHER, handle: HANDLE });
    world.submit(OTHER, 3, of_file(HandleId(2), 0, false));
    world.settle();
    assert_eq!(world.end_of(1).map(|it| it.0), Some(Status::Gone));
    assert_eq!(world.end_of(2), Some((Status::Ok, 1 << 20)), "another's copy to the same region");
    assert_eq!(world.end_of(3), Some((Status::Ok, LENGTH)), "another handle of the same client");
    assert_eq!((ends(&world, 1), ends(&world, 2)), (1, 1));
    // The region is drained when it is withdrawn, as if nothing had been.
    world.command(Command::RevokeRegion { region: RegionId(1) });
    world.settle();
    assert!(world.events.contains(&Event::RegionDrained { region: RegionId(1) }));
}

#[test]
fn a_handle_at_a_peer_that_ends_is_closed_there() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION, OTHER]);
    for (session, request) in [(SESSION, 1), (OTHER, 2)] {
        let buffer = ArenaBuffer { segment: 0, offset: 0, length: 4096 };
        world.submit(session, request, Verb::Read { handle: HANDLE, offset: 0, buffer, wanted: 0 });
    }
    let mut asked = Vec::new();
    while asked.len() < 2 {
        if let Message::Read { transfer, handle, .. } = world.next(line) {
            asked.push((transfer, handle));
        }
    }
    world.command(Command::EndHandle { session: SESSION, handle: HANDLE });
    world.settle();
    assert_eq!(world.end_of(1).map(|it| it.0), Some(Status::Gone));
    assert_eq!(world.end_of(2), None, "another's goes on");
    let (gone, number) = *asked.iter().find(|(_, handle)| *handle == 0).expect("the first one's");
    // The peer ends what it was asked for; whatever of it comes is nobody's.
    world.send(line, crate::world::end(gone, Status::Cancelled, 0), &[]);
    let mut closed = false;
    for _ in 0..4 {
        world.settle();
        while let Some((frame, _)) = world.take_frame(line) {
            closed |= matches!(frame.message, Message::Close { handle } if handle == number);
        }
    }
    assert!(closed, "the peer need not keep it");
    assert_eq!(world.reasons(), [""; 0]);
    assert!(ARENA >= 4096 && ends(&world, 1) == 1);
}

#[test]
fn what_a_peer_has_open_ends_and_what_another_has_does_not() {
    let mut world = World::new();
    let [beta, gamma] = ["beta", "gamma"].map(|name| world.lane(name, LaneClass::Latency, 1));
    let [ours, theirs] = [beta, gamma].map(|line| {
        let file = world.file(1 << 20);
        world.open(line, 1, file)
    });
    let files = world.kernel.open_files(world.node).len();
    world.block_device(Nanos::from_millis(50));
    for (line, handle) in [(beta, ours), (gamma, theirs)] {
        world.send(line, read(1, handle, 1 << 20), &[]);
        world.send(line, write(2, handle, 64 << 10), &[]);
        world.send(line, write_data(2, 0), &[9; 64 << 10]);
    }
    world.settle_turn();
    // The tickets are ours: the opens came in this order.
    let tickets = tickets(&world);
    world.export_to("gamma");
    world.command(Command::EndServed { ticket: tickets[0] });
    world.command(Command::EndServed { ticket: 999_999 });
    world.send(beta, read(3, ours, 4096), &[]);
    world.send(beta, write(4, ours, 4096), &[]);
    world.send(beta, Message::Sync { transfer: 5, handle: ours, time_left_us: 1_000_000 }, &[]);
    for _ in 0..4 {
        world.settle();
    }
    let ended = |world: &mut World, line| {
        let mut ended = Vec::new();
        while let Some((frame, _)) = world.take_frame(line) {
            match frame.message {
                Message::End { transfer, status, .. } => ended.push((transfer, status)),
                Message::Data { transfer, last: Some(last), .. } => {
                    ended.push((transfer, last.status));
                }
                _ => {}
            }
        }
        ended.sort_by_key(|it| it.0);
        ended
    };
    let gone: Vec<(u64, Status)> = (1..=5).map(|request| (request, Status::Gone)).collect();
    assert_eq!(ended(&mut world, beta), gone, "each once");
    assert_eq!(ended(&mut world, gamma), [(1, Status::Ok), (2, Status::Ok)]);
    assert_eq!(world.kernel.open_files(world.node).len(), files - 1);
    // Asked again as after a lost lane, it is gone; closed, nothing is left.
    let open = Message::Open {
        ticket: 1,
        kind: piped_core::access::OpenKind::File,
        access: crate::world::ALL,
        create: Creation::No,
        name_length: 4,
    };
    world.send(beta, open, b"name");
    let again = world.next(beta);
    assert!(matches!(again, Message::Opened { status: Status::Gone, .. }), "{again:?}");
    assert_eq!(closed(&world), 0);
    world.send(beta, Message::Close { handle: ours }, &[]);
    world.send(gamma, Message::Close { handle: theirs }, &[]);
    world.settle();
    assert_eq!(closed(&world), 2, "the control thread is told of both");
    assert_eq!(world.kernel.open_files(world.node).len(), files - 2);
    assert_eq!(world.reasons(), [""; 0]);
}

/// Our tickets of the opens that peers asked for, in their order.
fn tickets(world: &World) -> Vec<u64> {
    world.tickets.clone()
}

fn closed(world: &World) -> usize {
    world.events.iter().filter(|event| matches!(event, Event::ServeClosed { .. })).count()
}

#[test]
fn what_ends_as_its_lane_is_lost_is_let_go_once() {
    for handle_first in [true, false] {
        let mut world = World::new();
        let line = world.lane("beta", LaneClass::Latency, 1);
        let file = world.file(1 << 20);
        let handle = world.open(line, 1, file);
        let files = world.kernel.open_files(world.node).len();
        world.block_device(Nanos::from_millis(50));
        world.send(line, read(1, handle, 1 << 20), &[]);
        world.send(line, write(2, handle, 64 << 10), &[]);
        world.send(line, write_data(2, 0), &[9; 64 << 10]);
        world.settle_turn();
        if handle_first {
            world.export_to("gamma");
        }
        world.hang_up(line);
        if !handle_first {
            world.settle_turn();
            world.export_to("gamma");
        }
        for _ in 0..4 {
            world.settle();
        }
        assert_eq!(world.kernel.open_files(world.node).len(), files - 1);
        assert_eq!(closed(&world), 0, "it may come back and is told then");
        // As another run of that node: what the old one had is forgotten.
        let again = world.dial();
        let hello = Message::Hello {
            incarnation: 99,
            lane: LaneClass::Latency,
            checksum: Checksum::Payload,
        };
        world.send(again, hello, b"beta");
        world.settle();
        assert_eq!(closed(&world), 1);
    }
}

#[test]
fn lanes_of_a_node_that_is_ended_close_and_may_come_back() {
    let mut world = World::new();
    let (asked, _) = connected(&mut world, &[SESSION]);
    let [beta, shard, gamma] =
        ["beta", "beta#1", "gamma"].map(|name| world.lane(name, LaneClass::Latency, 1));
    let silent = world.dial();
    world.settle();
    world.command(Command::EndPeer { name: "beta".to_owned() });
    world.settle();
    let up = [asked, beta, shard, gamma, silent].map(|line| world.is_up(line));
    assert_eq!(up, [false, false, false, true, true]);
    assert!(world.reasons().iter().all(|reason| *reason == "an operator ended it"));
    let back = world.lane("beta", LaneClass::Latency, 2);
    assert!(world.is_up(back));
    let redialled =
        |event: &Event| matches!(event, Event::Connect { class: LaneClass::Latency, .. });
    assert!(world.events.iter().any(redialled), "and we connect again");
}

#[test]
fn what_has_ended_goes_when_its_peer_asks_for_it_on_another_connection() {
    let mut world = World::new();
    let file = world.file(1 << 20);
    let line = world.lane("beta", LaneClass::Latency, 1);
    world.open(line, 7, file);
    let ticket = world.tickets[0];
    world.export_to("gamma");
    let line = world.lane("beta", LaneClass::Latency, 2);
    let (kind, access) = (OpenKind::File, ALL);
    let open = Message::Open { ticket: 7, kind, access, create: Creation::No, name_length: 4 };
    world.send(line, open, b"name");
    let answer = world.next(line);
    assert!(matches!(answer, Message::Opened { status: Status::Gone, .. }), "{answer:?}");
    // The peer has no handle of it any more, and so closes none.
    world.send(line, Message::Close { handle: SWEEP }, &[]);
    let closed =
        |event: &Event| matches!(event, Event::ServeClosed { ticket: of } if *of == ticket);
    world.wait_until("its end", |world| world.events.iter().any(closed));
    assert_eq!(world.shard.report().served_handles, 0);
}
