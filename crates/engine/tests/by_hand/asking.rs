//! What we ask of a peer, for clients that rewrite the memory they receive into.

use piped_core::access::{Creation, NewFile, OpenKind};
use piped_core::ids::{HandleId, SegmentId, SessionId};
use piped_core::io::{Io, Span};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event, OpenRequest};
use piped_wire::{LastPart, Message};

use crate::world::{ALL, LineId, PEER, SESSION, World, end};

pub(crate) const HANDLE: HandleId = HandleId(1);
pub(crate) const ARENA: u64 = 1 << 20;
pub(crate) const CREDIT: u64 = 8 << 20;

/// The latency lane to a peer, where clients have a region open.
pub(crate) fn connected(world: &mut World, sessions: &[SessionId]) -> (LineId, Vec<SegmentId>) {
    connected_with(world, sessions, CREDIT)
}

pub(crate) fn connected_with(
    world: &mut World,
    sessions: &[SessionId],
    credit: u64,
) -> (LineId, Vec<SegmentId>) {
    world.add_peer();
    let line = world.answer_connect(LaneClass::Latency, credit);
    let segments = open_arenas(world, line, sessions);
    (line, segments)
}

/// A file of a peer, opened.
pub(crate) fn open_file_there(world: &mut World, line: LineId) -> HandleId {
    let (handle, ticket) = (HandleId(3), 77);
    let (name, path) = ("data".to_owned(), b"file".to_vec());
    let access = ALL;
    let open = OpenRequest { kind: OpenKind::File, name, path, access, create: Creation::No };
    world.command(Command::OpenRemote { ticket, session: SESSION, handle, peer: PEER, open });
    let Message::Open { ticket, .. } = world.next(line) else { panic!("not an open") };
    let opened = Message::Opened { ticket, status: Status::Ok, handle: 5, length: 1 << 20 };
    world.send(line, opened, &[]);
    world.settle();
    while world.take_frame(line).is_some() {}
    handle
}

/// Sessions that have a region of the peer open.
pub(crate) fn open_arenas(
    world: &mut World,
    line: LineId,
    sessions: &[SessionId],
) -> Vec<SegmentId> {
    let arena = |(number, &session): (usize, &SessionId)| {
        let segment = world.session(session, ARENA);
        let (kind, name, path) = (OpenKind::Region, "grid".to_owned(), Vec::new());
        let open = OpenRequest { kind, name, path, access: ALL, create: Creation::No };
        let (handle, peer, ticket) = (HANDLE, PEER, number as u64);
        world.command(Command::OpenRemote { ticket, session, handle, peer, open });
        let asked = loop {
            match world.next(line) {
                Message::Open { ticket, .. } => break ticket,
                Message::Close { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        let (status, handle, length) = (Status::Ok, number as u32, ARENA);
        world.send(line, Message::Opened { ticket: asked, status, handle, length }, &[]);
        world.wait_until("it is open", |world| {
            let opened = |event: &Event| {
                matches!(event, Event::RemoteOpened { ticket: of, .. } if *of == ticket)
            };
            world.events.iter().any(opened)
        });
        segment
    };
    let segments = sessions.iter().enumerate().map(arena).collect();
    world.settle();
    while world.take_frame(line).is_some() {}
    segments
}

pub(crate) fn read(offset: u64, length: u64) -> Verb {
    let buffer = ArenaBuffer { segment: 0, offset: 0, length };
    Verb::Read { handle: HANDLE, offset, buffer, wanted: 0 }
}

/// What an honest peer answers a read with: frames that end at multiples of the fragment, in one
/// burst behind `before`.
pub(crate) fn answer(
    world: &mut World,
    line: LineId,
    asked: Message,
    fragment: u64,
    before: &[u8],
    byte: u8,
) {
    let Message::Read { transfer, offset, length, from, .. } = asked else {
        panic!("not a read: {asked:?}")
    };
    let mut burst = before.to_vec();
    let (mut done, base) = (u64::from(from), offset / 4096 * 4096);
    while done < length {
        let end = ((offset + done - base) / fragment + 1) * fragment + base - offset;
        let end = end.min(length);
        let last = LastPart {
            status: Status::Ok,
            bytes: length,
            predicted_us: 0,
            margin_percent: 0,
            company: false,
            plan: 0,
        };
        let message = Message::Data {
            transfer,
            offset: done,
            fragment: fragment as u32,
            backlogged: false,
            service_us: 1,
            last: (end == length).then_some(last),
        };
        burst.extend(world.frame(line, message, &vec![byte; (end - done) as usize]));
        done = end;
    }
    world.send_bytes(line, &burst);
}

/// Answers reads until a client's request has ended; how.
fn serve_until_end(world: &mut World, line: LineId, fragment: u64, user_data: u64) -> Status {
    loop {
        if let Some((status, _)) = world.end_of(user_data) {
            return status;
        }
        world.wait_until("a frame or the end", |world| {
            world.has_frame(line) || world.end_of(user_data).is_some()
        });
        if let Some((frame, _)) = world.take_frame(line) {
            if matches!(frame.message, Message::Outcome { .. }) {
                continue;
            }
            post_another_receive(world, line);
            answer(world, line, frame.message, fragment, &[], 7);
        }
    }
}

/// A receive that was posted before a request went out predicts nothing of it; the next one does.
fn post_another_receive(world: &mut World, line: LineId) {
    world.send(line, Message::Pong { nonce: 1 }, &[]);
    world.run_for(Nanos::from_millis(1));
}

#[test]
fn a_client_that_rewrites_what_it_receives_spoils_only_its_own_read() {
    let mut spoilt = 0;
    for fragment in [4096, 16 << 10, 64 << 10, 256 << 10] {
        for (offset, length) in [(0, 4096), (0, 64 << 10), (100, 70_000), (4095, 200_000)] {
            let mut world = World::new();
            let (line, segments) = connected(&mut world, &[SESSION]);
            let span = Span { segment: segments[0], offset: 0, length: length as u32 };
            world.rewritten = Some(span);
            // The peer changes its plan, also between two attempts at one read.
            for number in 0..3 {
                world.submit(SESSION, number, read(offset, length));
                let asked = world.next(line);
                post_another_receive(&mut world, line);
                answer(&mut world, line, asked, 64 << 10, &[], 7);
                let status = serve_until_end(&mut world, line, fragment, number);
                spoilt += u32::from(status == Status::Corrupt);
                assert_eq!(world.reasons(), [""; 0], "{fragment} {offset} {length}");
            }
            // One that behaves, with other sizes than before.
            world.rewritten = None;
            for (number, fragment) in [(8, 64 << 10), (9, 4096)] {
                world.submit(SESSION, number, read(offset, length));
                let status = serve_until_end(&mut world, line, fragment, number);
                assert_eq!(status, Status::Ok, "{fragment} {offset} {length}");
            }
            assert!(world.kernel.bytes(world.node, span).iter().all(|byte| *byte == 7));
        }
    }
    assert!(spoilt > 0, "the race was never won");
}

#[test]
fn a_frame_that_comes_before_the_data_is_not_parsed_from_a_clients_memory() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let span = Span { segment: segments[0], offset: 0, length: 4096 };
    // A write that the peer refuses: the credit for its data comes after its end.
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: 4096 };
    let (handle, offset, durable) = (HANDLE, 0, false);
    world.submit(SESSION, 1, Verb::Write { handle, offset, buffer, durable, notify: None });
    let Message::Write { transfer, .. } = world.next(line) else { panic!("a write") };
    world.next(line);
    let (bytes, service_us, fragment, predicted_us, status) = (0, 1, 0, 0, Status::NoSpace);
    let end = Message::End { transfer, status, bytes, service_us, fragment, predicted_us };
    world.send(line, end, &[]);
    world.wait_until("the write has failed", |world| world.end_of(1).is_some());
    world.rewritten = Some(span);
    world.submit(SESSION, 2, read(0, 4096));
    let asked = world.next(line);
    post_another_receive(&mut world, line);
    let credit = world.frame(line, Message::Credit { bytes: 4096, window: CREDIT }, &[]);
    answer(&mut world, line, asked, 64 << 10, &credit, 7);
    world.wait_until("the lane lives or the read ends", |world| {
        !world.reasons().is_empty() || world.has_frame(line) || world.end_of(2).is_some()
    });
    assert_eq!(world.reasons(), [""; 0]);
    serve_until_end(&mut world, line, 64 << 10, 2);
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn what_was_asked_by_a_client_that_gave_up_is_not_seen_by_the_next() {
    let mut world = World::new();
    let sessions = [1, 2].map(SessionId);
    let (line, segments) = connected(&mut world, &sessions);
    world.submit(sessions[0], 1, read(0, 4096));
    let given_up = world.next(line);
    world.submit(sessions[0], 2, Verb::Cancel { target: 1 });
    let Message::Cancel { .. } = world.next(line) else { panic!("a cancel") };
    world.rewritten = Some(Span { segment: segments[1], offset: 0, length: ARENA as u32 });
    world.submit(sessions[1], 3, read(0, 64 << 10));
    let asked = world.next(line);
    post_another_receive(&mut world, line);
    // The cancel came too late: what the first asked for comes first.
    answer(&mut world, line, given_up, 64 << 10, &[], 0x55);
    world.settle();
    answer(&mut world, line, asked, 64 << 10, &[], 7);
    serve_until_end(&mut world, line, 64 << 10, 3);
    assert_eq!(world.reasons(), [""; 0]);
    assert!(world.seen[7] && !world.seen[0x55], "it saw what was meant for another");
}

#[test]
fn who_asks_again_at_once_receives_in_place() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let span = Span { segment: segments[0], offset: 0, length: 4096 };
    world.submit(SESSION, 0, read(0, 4096));
    for number in 0..4 {
        world.asked_at_once = Some((SESSION, number + 1, read(0, 4096)));
        let asked = world.next(line);
        answer(&mut world, line, asked, 4096, &[], number as u8);
        world.wait_until("its end", |world| world.end_of(number).is_some());
        assert_eq!(world.end_of(number), Some((Status::Ok, 4096)));
        assert!(world.kernel.bytes(world.node, span).iter().all(|byte| *byte == number as u8));
        // The first came by a receive that was posted before it was asked for.
        assert_eq!(world.shard.report().counters.bounced_mispredicted, 1, "read {number}");
    }
}

#[test]
fn a_peer_that_cuts_a_read_where_no_piece_may_end_loses_the_lane() {
    const LENGTH: u64 = 100_000;
    // The ends of the pieces before the last, each with the fragment it tells of; a request at 100.
    let cases: [(&[(u64, u64)], bool); 6] = [
        (&[(8192 - 100, 4096), (12_288 - 100, 8192)], true),
        (&[(16_384 - 100, 16 << 10), (49_152 - 100, 16 << 10)], true),
        (&[(8192, 4096)], false),
        (&[(5000, 5000)], false),
        // Behind the first at multiples of the fragment.
        (&[(16_384 - 100, 16 << 10), (20_480 - 100, 16 << 10)], false),
        (&[(4096 - 100, 5000), (8192 - 100, 4096)], false),
    ];
    for (pieces, allowed) in cases {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        world.submit(SESSION, 1, read(100, LENGTH));
        let Message::Read { transfer, .. } = world.next(line) else { panic!("a read") };
        let mut offset = 0;
        for &(end, fragment) in pieces.iter().chain(&[(LENGTH, 4096)]) {
            let last = LastPart {
                status: Status::Ok,
                bytes: LENGTH,
                predicted_us: 0,
                margin_percent: 0,
                company: false,
                plan: 0,
            };
            let message = Message::Data {
                transfer,
                offset,
                fragment: fragment as u32,
                backlogged: false,
                service_us: 1,
                last: (end == LENGTH).then_some(last),
            };
            world.send(line, message, &vec![7; (end - offset) as usize]);
            offset = end;
        }
        world.settle();
        if allowed {
            assert_eq!(world.reasons(), [""; 0], "{pieces:?}");
            assert!(matches!(world.end_of(1), Some((Status::Ok, _))), "{pieces:?}");
        } else {
            assert_eq!(world.reasons(), ["the peer cut a read where no piece may end"]);
            assert_eq!(world.end_of(1), None, "it is asked for again");
        }
    }
}

#[test]
fn a_peers_plan_is_explained_by_the_pieces_that_came() {
    const KIB: u64 = 1 << 10;
    const LENGTH: u64 = 256 * KIB;
    for plan in [0, 7, u32::MAX] {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        world.submit(SESSION, 1, read(0, LENGTH));
        let Message::Read { transfer, .. } = world.next(line) else { panic!("a read") };
        let mut done = 0;
        for end in [112, 192, 240, 256].map(|kib| kib * KIB) {
            let last = LastPart {
                status: Status::Ok,
                bytes: LENGTH,
                predicted_us: 900,
                margin_percent: 12,
                company: false,
                plan,
            };
            let message = Message::Data {
                transfer,
                offset: done,
                fragment: 16 << 10,
                backlogged: false,
                service_us: 1,
                last: (end == LENGTH).then_some(last),
            };
            world.send(line, message, &vec![7; (end - done) as usize]);
            done = end;
        }
        world.wait_until("the end", |world| world.end_of(1).is_some());
        assert_eq!(world.end_of(1), Some((Status::Ok, LENGTH)));
        let it = world.shard.explain(None).expect("it is the last");
        assert!(!it.planned_here && it.chosen == "by the peer", "{it:?}");
        assert_eq!(
            (it.fragment_bytes, it.shrink_bytes, it.fragments, it.depth),
            (112 * KIB, 0, 4, 0)
        );
        assert_eq!(it.predicted_seconds, Nanos::from_micros(900).seconds());
        assert!((it.margin_seconds - 108e-6).abs() < 1e-9, "{it:?}");
    }
}

#[test]
fn what_a_peer_has_no_room_to_open_again_is_asked_for_later_and_not_at_once() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.hang_up(line);
    let line = world.answer_connect(LaneClass::Latency, CREDIT);
    let mut asked_at = Vec::new();
    for round in 0..10 {
        let ticket = loop {
            match world.next(line) {
                Message::Open { ticket, .. } => break ticket,
                Message::Close { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        asked_at.push(world.kernel.io(world.node).now());
        let (status, handle, length) =
            if round < 9 { (Status::WouldBlock, 0, 0) } else { (Status::Ok, 7, ARENA) };
        world.send(line, Message::Opened { ticket, status, handle, length }, &[]);
    }
    for pair in asked_at.windows(2) {
        assert!(pair[1] >= pair[0] + Nanos::from_millis(20), "{asked_at:?}");
    }
    world.settle();
    world.submit(SESSION, 1, read(0, 4096));
    let asked = loop {
        match world.next(line) {
            Message::Read { handle, .. } => break handle,
            Message::Close { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(asked, 7);
}

#[test]
fn a_peer_that_says_ok_to_half_a_write_loses_the_lane_and_its_client_is_not_told_ok() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: 8192 };
    world.submit(
        SESSION,
        1,
        Verb::Write { handle: HANDLE, offset: 0, buffer, durable: false, notify: None },
    );
    let transfer = loop {
        match world.next(line) {
            Message::Write { transfer, .. } => break transfer,
            Message::WriteData { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    let (status, bytes) = (Status::Ok, 361);
    let end =
        Message::End { transfer, status, bytes, service_us: 1, fragment: 8192, predicted_us: 1 };
    world.send(line, end, &[]);
    world.wait_until("the lane is lost", |world| !world.is_up(line));
    assert_eq!(world.reasons(), ["an end that says Ok to a write of which it counts a part"]);
    world.wait_until("the write ends", |world| world.end_of(1).is_some());
    assert_eq!(world.end_of(1), Some((Status::PeerLost, 0)));
}

#[test]
fn no_piece_of_a_write_waits_for_credit_that_the_peer_keeps_back() {
    const WINDOW: u64 = 64 << 10;
    let mut world = World::new();
    let (line, _) = connected_with(&mut world, &[SESSION], WINDOW);
    let mut owed = 0;
    for (number, length) in [(1, 8 << 10), (2, 256 << 10), (3, 8 << 10), (4, 200_000)] {
        let buffer = ArenaBuffer { segment: 0, offset: 0, length };
        let (handle, offset, durable) = (HANDLE, 0, false);
        world.submit(
            SESSION,
            number,
            Verb::Write { handle, offset, buffer, durable, notify: None },
        );
        let Message::Write { transfer, .. } = world.next(line) else { panic!("a write") };
        let mut done = 0;
        while done < length {
            let (frame, _) = world.next_frame(line);
            let Message::WriteData { .. } = frame.message else { panic!("{frame:?}") };
            done += u64::from(frame.payload);
            owed += u64::from(frame.payload);
            // As this engine does when it serves.
            if owed * limits::CREDIT_BATCH_DIVISOR >= WINDOW {
                world.send(line, Message::Credit { bytes: owed, window: WINDOW }, &[]);
                owed = 0;
            }
        }
        let (service_us, fragment, predicted_us, status) = (1, 0, 0, Status::Ok);
        let end =
            Message::End { transfer, status, bytes: length, service_us, fragment, predicted_us };
        world.send(line, end, &[]);
        world.wait_until("the write has ended", |world| world.end_of(number).is_some());
        assert_eq!(world.end_of(number), Some((Status::Ok, length)));
    }
}

/// The receiver takes the time between two frames of data for what the wire takes, if the second
/// one is backlogged. Behind a frame without payload it would count the time before the write.
#[test]
fn the_first_piece_of_a_write_is_not_backlogged_by_the_request_before_it() {
    let mut world = World::new();
    let (line, _) = connected_with(&mut world, &[SESSION], 64 << 10);
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: 200_000 };
    let (handle, offset, durable) = (HANDLE, 0, false);
    world.submit(SESSION, 1, Verb::Write { handle, offset, buffer, durable, notify: None });
    let Message::Write { .. } = world.next(line) else { panic!("a write") };
    for is_first in [true, false] {
        let message = world.next(line);
        let Message::WriteData { backlogged, .. } = message else { panic!("{message:?}") };
        assert_eq!(backlogged, !is_first);
    }
}

#[test]
fn a_peer_that_gives_more_credit_than_there_is_does_no_harm() {
    let mut world = World::new();
    let (line, _) = connected_with(&mut world, &[SESSION], u64::MAX);
    let length = 256 << 10;
    let buffer = ArenaBuffer { segment: 0, offset: 0, length };
    for number in 1..=8 {
        let (handle, offset, durable) = (HANDLE, 0, false);
        let verb = Verb::Write { handle, offset, buffer, durable, notify: None };
        world.submit(SESSION, number, verb);
    }
    let Message::Write { .. } = world.next(line) else { panic!("a write") };
    // Frames of the others stay queued, and what they took of the credit comes back on top of all
    // that there can be.
    world.stop_reading(line);
    world.settle();
    world.send(line, Message::Credit { bytes: u64::MAX, window: u64::MAX }, &[]);
    world.settle();
    for number in 1..=8 {
        world.submit(SESSION, 100 + number, Verb::Cancel { target: number });
    }
    world.wait_until("all have ended", |world| {
        (1..=8).all(|number| world.end_of(number).is_some_and(|(it, _)| it == Status::Cancelled))
    });
    assert!(world.is_up(line));
}

#[test]
fn a_first_write_to_a_peers_file_is_planned_with_a_disk() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let handle = open_file_there(&mut world, line);
    // To memory there is no disk at the end; to a file there is one before anything is told of it.
    for (number, to, has_disk) in [(1, HANDLE, false), (2, handle, true)] {
        let buffer = ArenaBuffer { segment: 0, offset: 0, length: 256 << 10 };
        let (offset, durable, notify) = (0, false, None);
        world.submit(SESSION, number, Verb::Write { handle: to, offset, buffer, durable, notify });
        let (transfer, length) = loop {
            if let Message::Write { transfer, length, .. } = world.next(line) {
                break (transfer, length);
            }
        };
        let mut came = 0;
        while came < length {
            came += world.next_frame(line).1.len() as u64;
        }
        world.send(line, end(transfer, Status::Ok, length), &[]);
        world.wait_until("the end", |world| world.end_of(number).is_some());
        let it = world.shard.explain(None).expect("it is the last");
        let names: Vec<_> = it.stages.iter().map(|stage| stage.name.as_str()).collect();
        let disk = names.iter().any(|name| name.contains("disk write"));
        assert_eq!(disk, has_disk, "{names:?}");
    }
}

#[test]
fn a_file_that_was_made_is_not_made_again_at_the_next_daemon_of_its_peer() {
    for create in [Creation::OPEN, Creation::New(NewFile::PLAIN)] {
        let mut world = World::new();
        world.add_peer();
        let line = world.answer_connect(LaneClass::Latency, CREDIT);
        world.session(SESSION, ARENA);
        let (kind, name, path) = (OpenKind::File, "data".to_owned(), b"file".to_vec());
        let open = OpenRequest { kind, name, path, access: ALL, create };
        let (handle, peer, ticket, session) = (HANDLE, PEER, 0, SESSION);
        world.command(Command::OpenRemote { ticket, session, handle, peer, open });
        let asked = |world: &mut World, line| loop {
            match world.next(line) {
                Message::Open { ticket, create, .. } => break (ticket, create),
                Message::Close { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        let (ticket, wanted) = asked(&mut world, line);
        assert_eq!(wanted, create);
        let (status, length) = (Status::Ok, 0);
        world.send(line, Message::Opened { ticket, status, handle: 3, length }, &[]);
        world.settle();
        while world.take_frame(line).is_some() {}
        world.hang_up(line);
        let line = world.answer_connect_as(LaneClass::Latency, CREDIT, 4711);
        assert_eq!(asked(&mut world, line).1, Creation::No, "after {create:?}");
    }
}
