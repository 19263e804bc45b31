//! Who goes first, who gets how much, and how much at most: at devices, on lanes, and by rates.

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::ids::{HandleId, SegmentId, SessionId};
use piped_core::link::LaneClass;
use piped_core::request::{ArenaBuffer, BufferState, Class, Completion, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{ClientLimits, Command, Limits, OpenRequest, PeerLimits};
use piped_wire::{Asker, Frame, Message};

use crate::world::{PEER, SESSION, World, read, region, write_data, write_in};

const OTHER: SessionId = SessionId(2);
const HANDLE: HandleId = HandleId(1);
const MIB: u64 = 1 << 20;

/// A session with a file of 4 MiB.
fn client(world: &mut World, session: SessionId, weight: u8) {
    world.session_of_weight(session, 64 * MIB, weight);
    let target = world.file(4 << 20);
    world.command(Command::InstallHandle { session, handle: HANDLE, target });
}

/// A read of so many bytes, into memory of its own.
fn get(call: u64, length: u64) -> Verb {
    let buffer = ArenaBuffer { segment: 0, offset: call % 32 * 2 * MIB, length };
    Verb::Read { handle: HANDLE, offset: 0, buffer, wanted: 0 }
}

fn ended(world: &World, calls: std::ops::Range<u64>) -> usize {
    calls.filter(|&call| world.end_of(call).is_some()).count()
}

fn wait_for(world: &mut World, call: u64) -> Status {
    world.wait("an end", |world| world.end_of(call)).0
}

#[test]
fn a_short_read_does_not_wait_behind_what_bulk_wants() {
    let mut world = World::new();
    client(&mut world, SESSION, 1);
    client(&mut world, OTHER, 1);
    world.submit(SESSION, 100, get(0, 4096));
    (0..16).for_each(|call| world.submit_bulk(OTHER, call, get(call, MIB)));
    assert_eq!(wait_for(&mut world, 100), Status::Ok);
    // 16 MiB take 8 ms, and are all wanted at once.
    for call in 101..104 {
        let begun = world.clock();
        world.submit(SESSION, call, get(0, 4096));
        assert_eq!(wait_for(&mut world, call), Status::Ok);
        let took = world.clock().since(begun);
        assert!(took < Nanos::from_micros(1_200), "{took:?}");
    }
    assert!(ended(&world, 0..16) < 12);
    assert!(world.shard.report().counters.turns_waited > 0);
    for call in 0..16 {
        assert_eq!(wait_for(&mut world, call), Status::Ok);
    }
}

#[test]
fn a_device_is_shared_by_weight() {
    let mut world = World::new();
    client(&mut world, SESSION, 1);
    client(&mut world, OTHER, 3);
    (0..24).for_each(|call| world.submit_bulk(SESSION, call, get(call, MIB)));
    (100..124).for_each(|call| world.submit_bulk(OTHER, call, get(call, MIB)));
    world.wait("most of the heavier one's", |world| (ended(world, 100..124) >= 18).then_some(()));
    let light = ended(&world, 0..24);
    // Its reads are under way side by side: what is done of those that have not ended counts, too.
    assert!(light <= 7, "{light} of the lighter one's");
    for call in (0..24).chain(100..124) {
        assert_eq!(wait_for(&mut world, call), Status::Ok);
    }
}

#[test]
fn what_waits_for_its_turn_is_given_back_at_once_when_it_is_given_up() {
    let mut world = World::new();
    client(&mut world, SESSION, 1);
    client(&mut world, OTHER, 1);
    world.block_device(Nanos::from_millis(2_000));
    world.submit(SESSION, 100, get(0, 4096));
    world.submit_bulk(OTHER, 1, get(1, 256 << 10));
    world.submit_bulk(OTHER, 2, get(2, 256 << 10));
    world.settle();
    assert!(world.shard.report().counters.turns_waited >= 4, "all of the second");
    world.submit(OTHER, 9, Verb::Cancel { target: 2 });
    assert_eq!(wait_for(&mut world, 2), Status::Cancelled);
    let returned = world.completions.iter().any(|completion| {
        matches!(completion, Completion::Finished { origin, buffer: BufferState::Returned, .. }
            if origin.user_data == 2)
    });
    assert!(returned, "the device never had it");
    // The next in line has its place.
    world.submit_bulk(OTHER, 3, get(3, 4096));
    for call in [100, 1, 3] {
        assert_eq!(wait_for(&mut world, call), Status::Ok);
    }
}

#[test]
fn a_session_that_ends_leaves_nothing_in_line() {
    let mut world = World::new();
    client(&mut world, SESSION, 1);
    client(&mut world, OTHER, 1);
    world.submit(SESSION, 100, get(0, 4096));
    (0..16).for_each(|call| world.submit_bulk(OTHER, call, get(call, MIB)));
    world.settle_turn();
    world.command(Command::CloseSession { session: OTHER });
    assert_eq!(wait_for(&mut world, 100), Status::Ok);
    world.wait("its end", |world| (world.shard.report().sessions == 1).then_some(()));
    world.submit_bulk(SESSION, 101, get(1, MIB));
    assert_eq!(wait_for(&mut world, 101), Status::Ok);
}

/// A read of one of a peer's clients.
fn read_of(transfer: u64, handle: u32, client: u32, weight: u8) -> Message {
    let Message::Read { handle, offset, length, from, pieces: false, time_left_us, .. } =
        read(transfer, handle, MIB)
    else {
        unreachable!("it reads")
    };
    let asker = Asker { class: Class::Bulk, client, weight };
    Message::Read { transfer, handle, offset, length, asker, from, pieces: false, time_left_us }
}

/// A peer's bulk lane, and its number for a region of 4 MiB.
fn peer(world: &mut World) -> (usize, u32) {
    let memory: SegmentId = world.session(SESSION, 4 * MIB);
    let target = region(1, memory, 4 * MIB);
    let latency = world.lane("beta", LaneClass::Latency, 1);
    let bulk = world.lane("beta", LaneClass::Bulk, 1);
    let handle = world.open(latency, 1, target);
    (bulk, handle)
}

#[test]
fn a_lane_is_shared_by_the_weights_of_the_peers_clients() {
    let mut world = World::new();
    let (line, handle) = peer(&mut world);
    // More than the socket takes at once is queued before the first is sent.
    world.stop_reading(line);
    for transfer in 0..16 {
        let (client, weight) = if transfer < 8 { (7, 1) } else { (8, 3) };
        world.send(line, read_of(transfer, handle, client, weight), &[]);
    }
    world.settle();
    world.read_on(line);
    let (mut light, mut heavy) = (0_u64, 0_u64);
    while heavy < 6 * MIB {
        let (frame, payload) = world.next_frame(line);
        let Message::Data { transfer, .. } = frame.message else { continue };
        let sum = if transfer < 8 { &mut light } else { &mut heavy };
        *sum += payload.len() as u64;
    }
    // What was sent before all had asked is not shared.
    assert!((MIB..=3 * MIB).contains(&light), "{light} bytes beside {heavy}");
}

/// A read of 256 KiB of one of a peer's clients.
fn short_read(transfer: u64, handle: u32, client: u32) -> Message {
    let Message::Read { handle, offset, from, asker, time_left_us, .. } =
        read_of(transfer, handle, client, 1)
    else {
        unreachable!("it reads")
    };
    let (length, pieces) = (256 << 10, false);
    Message::Read { transfer, handle, offset, length, asker, from, pieces, time_left_us }
}

#[test]
fn staging_that_is_short_is_shared_by_turns_of_the_peers_clients() {
    let mut world = World::new();
    let file = world.file(4 << 20);
    let latency = world.lane("beta", LaneClass::Latency, 1);
    let line = world.lane("beta", LaneClass::Bulk, 1);
    let handle = world.open(latency, 1, file);
    // Reads of a peer have half of its staging: eight of these.
    let peer = PeerLimits { staging: 4 * MIB, ..Limits::NONE.peer };
    world.command(Command::SetLimits(Limits { peer, ..Limits::NONE }));
    world.stop_reading(line);
    for transfer in 0..36 {
        world.send(line, short_read(transfer, handle, transfer as u32 / 12), &[]);
    }
    world.settle();
    world.read_on(line);
    let mut ended = Vec::new();
    while ended.len() < 36 {
        if let (Frame { message: Message::Data { transfer, last: Some(_), .. }, .. }, _) =
            world.next_frame(line)
        {
            ended.push(transfer);
        }
    }
    // The first has all of the staging when the others come. Then it is one after the other.
    let first_of = |client: u64| ended.iter().position(|transfer| transfer / 12 == client);
    assert!(first_of(1) < Some(12) && first_of(2) < Some(12), "{ended:?}");
}

#[test]
fn a_clients_rate_holds_and_is_its_own() {
    let mut world = World::new();
    client(&mut world, SESSION, 1);
    client(&mut world, OTHER, 1);
    let limit =
        |rate| Limits { client: ClientLimits { rate, ..Limits::NONE.client }, ..Limits::NONE };
    world.command(Command::SetLimits(limit(10 * MIB)));
    let begun = world.clock();
    (0..2).for_each(|call| world.submit(SESSION, call, get(call, MIB)));
    world.submit(OTHER, 100, get(0, 4096));
    assert_eq!(wait_for(&mut world, 100), Status::Ok);
    let other = world.clock().since(begun);
    for call in 0..2 {
        assert_eq!(wait_for(&mut world, call), Status::Ok);
    }
    let took = world.clock().since(begun);
    // 2 MiB at 10 MiB/s, but for a burst and the last fragment.
    assert!(took >= Nanos::from_millis(180) && took <= Nanos::from_millis(230), "{took:?}");
    assert!(other < Nanos::from_millis(20), "{other:?}: it has a rate of its own");
    // Without a rate what is put off goes on at once.
    world.submit(SESSION, 2, get(2, MIB));
    world.settle_turn();
    world.command(Command::SetLimits(limit(0)));
    let begun = world.clock();
    assert_eq!(wait_for(&mut world, 2), Status::Ok);
    assert!(world.clock().since(begun) < Nanos::from_millis(60));
}

#[test]
fn a_peers_rate_holds_for_what_it_reads() {
    let mut world = World::new();
    let (line, handle) = peer(&mut world);
    let peer = PeerLimits { rate: 10 * MIB, ..Limits::NONE.peer };
    world.command(Command::SetLimits(Limits { peer, ..Limits::NONE }));
    let begun = world.clock();
    (0..2).for_each(|transfer| world.send(line, read_of(transfer, handle, 1, 1), &[]));
    let mut bytes = 0;
    while bytes < 2 * MIB {
        bytes += world.next_frame(line).1.len() as u64;
    }
    let took = world.clock().since(begun);
    assert!(took >= Nanos::from_millis(180) && took <= Nanos::from_millis(230), "{took:?}");
}

/// A peer's write of 1 MiB to a region, and what comes back for it up to its end.
fn answers_to_a_write(world: &mut World, line: usize, handle: u32, transfer: u64) -> Vec<Message> {
    world.send(line, write_in(transfer, handle, MIB, 64 << 10), &[]);
    for piece in 0..16 {
        world.send(line, write_data(transfer, piece << 16), &[7; 64 << 10]);
    }
    let mut answers = Vec::new();
    loop {
        let message = world.next(line);
        let is_end = matches!(message, Message::End { .. });
        if !matches!(message, Message::Report { .. }) {
            answers.push(message);
        }
        if is_end {
            return answers;
        }
    }
}

/// Behind the end of a write the peer may have a receive in a client's memory.
#[test]
fn the_credit_of_a_write_comes_before_its_end_also_when_its_rate_puts_it_off() {
    let mut world = World::new();
    let (line, handle) = peer(&mut world);
    let mut given = 0;
    for transfer in 1..=4 {
        let answers = answers_to_a_write(&mut world, line, handle, transfer);
        given += answers.iter().filter(|it| matches!(it, Message::Credit { .. })).count();
        world.settle();
        assert!(!world.has_frame(line), "nothing comes behind the end");
    }
    assert!(given > 0);
    let peer = PeerLimits { rate: 10 * MIB, ..Limits::NONE.peer };
    world.command(Command::SetLimits(Limits { peer, ..Limits::NONE }));
    let begun = world.clock();
    for transfer in 5..=8 {
        answers_to_a_write(&mut world, line, handle, transfer);
        world.settle_turn();
        assert!(!world.has_frame(line), "nothing comes behind the end");
    }
    let took = world.clock().since(begun);
    // 4 MiB at 10 MiB/s, but for a burst and the last write.
    assert!(took >= Nanos::from_millis(290) && took <= Nanos::from_millis(420), "{took:?}");
}

/// A read from a peer is paid for when it is asked for; what is not got of it is paid back, and
/// others go on at once.
#[test]
fn what_was_not_got_is_paid_back() {
    let mut world = World::new();
    client(&mut world, SESSION, 1);
    world.add_peer();
    let line = world.answer_connect(LaneClass::Bulk, 1 << 20);
    let latency = world.answer_connect(LaneClass::Latency, 1 << 20);
    let open = OpenRequest {
        kind: OpenKind::File,
        name: "data".to_owned(),
        path: "a".into(),
        access: Access::READ,
        create: Creation::No,
    };
    let handle = HandleId(2);
    world.command(Command::OpenRemote { ticket: 1, session: SESSION, handle, peer: PEER, open });
    let ticket = loop {
        if let Message::Open { ticket, .. } = world.next(latency) {
            break ticket;
        }
    };
    let opened = Message::Opened { ticket, status: Status::Ok, handle: 9, length: 1 << 30 };
    world.send(latency, opened, &[]);
    world.settle();
    let client = ClientLimits { rate: MIB, ..Limits::NONE.client };
    world.command(Command::SetLimits(Limits { client, ..Limits::NONE }));
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: 32 * MIB };
    world.submit(SESSION, 0, Verb::Read { handle, offset: 0, buffer, wanted: 0 });
    let asked = loop {
        if let Message::Read { transfer, .. } = world.next(line) {
            break transfer;
        }
    };
    world.submit(SESSION, 1, get(20, 4096));
    world.settle();
    assert_eq!(world.end_of(1), None, "32 MiB are to be paid for");
    // It ends at once, with nothing.
    let (service_us, fragment, predicted_us) = (0, 0, 0);
    let (transfer, status, bytes) = (asked, Status::Ok, 0);
    let end = Message::End { transfer, status, bytes, service_us, fragment, predicted_us };
    let begun = world.clock();
    world.send(line, end, &[]);
    assert_eq!(wait_for(&mut world, 0), Status::Ok);
    assert_eq!(wait_for(&mut world, 1), Status::Ok);
    assert!(world.clock().since(begun) < Nanos::from_millis(20));
}

/// Who is gone does not stay in line for a rate, and a write that was given up ends whatever its
/// peer owes.
#[test]
fn a_rate_holds_up_nothing_that_is_over() {
    let mut world = World::new();
    let (line, handle) = peer(&mut world);
    let peer = PeerLimits { rate: 64 << 10, ..Limits::NONE.peer };
    world.command(Command::SetLimits(Limits { peer, ..Limits::NONE }));
    // One that is paid for half a minute.
    world.send(line, write_in(1, handle, 2 * MIB, 64 << 10), &[]);
    (0..32).for_each(|piece| world.send(line, write_data(1, piece << 16), &[7; 64 << 10]));
    world.settle();
    world.send(line, write_in(2, handle, MIB, 64 << 10), &[]);
    world.send(line, write_data(2, 0), &[7; 64 << 10]);
    world.send(line, Message::Cancel { transfer: 2 }, &[]);
    let begun = world.clock();
    assert_eq!(world.read_end(line, 2), Status::Cancelled);
    assert!(world.clock().since(begun) < Nanos::from_millis(100));
}

#[test]
fn a_higher_rate_holds_for_what_is_owed_too() {
    let mut world = World::new();
    client(&mut world, SESSION, 1);
    let limit =
        |rate| Limits { client: ClientLimits { rate, ..Limits::NONE.client }, ..Limits::NONE };
    world.command(Command::SetLimits(limit(MIB / 10)));
    (0..2).for_each(|call| world.submit(SESSION, call, get(call, 64 << 10)));
    assert_eq!(wait_for(&mut world, 0), Status::Ok);
    assert_eq!(world.end_of(1), None, "it owes more than half a second");
    world.command(Command::SetLimits(limit(100 * MIB)));
    let begun = world.clock();
    assert_eq!(wait_for(&mut world, 1), Status::Ok);
    assert!(world.clock().since(begun) < Nanos::from_millis(10));
}

#[test]
fn a_peer_that_does_not_read_slows_nobody_but_itself() {
    let mut world = World::new();
    let (slow, handle) = peer(&mut world);
    let latency = world.lane("gamma", LaneClass::Latency, 1);
    let quick = world.lane("gamma", LaneClass::Bulk, 1);
    let memory = world.session(OTHER, 4 * MIB);
    let other = world.open(latency, 1, region(2, memory, 4 * MIB));
    world.stop_reading(slow);
    (0..32).for_each(|transfer| world.send(slow, read_of(transfer, handle, 1, 255), &[]));
    world.settle();
    let begun = world.clock();
    (0..4).for_each(|transfer| world.send(quick, read_of(transfer, other, 1, 1), &[]));
    let mut bytes = 0;
    while bytes < 4 * MIB {
        bytes += world.next_frame(quick).1.len() as u64;
    }
    // At half a nanosecond for each byte, 4 MiB take 2 ms.
    let took = world.clock().since(begun);
    assert!(took < Nanos::from_millis(4), "{took:?}");
    world.read_on(slow);
    let mut bytes = 0;
    while bytes < 32 * MIB {
        bytes += world.next_frame(slow).1.len() as u64;
    }
}
