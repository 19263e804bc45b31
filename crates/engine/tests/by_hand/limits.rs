//! Limits: who waits for whom, what credit becomes, and how staging goes and comes.

use piped_core::access::Creation;
use piped_core::ids::{HandleId, SessionId};
use piped_core::link::LaneClass;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{ClientLimits, Command, Event, Limits, PeerLimits};
use piped_wire::Message;

use crate::world::{LineId, SESSION, World, read, write, write_data, write_in};

const OTHER: SessionId = SessionId(2);
const HANDLE: HandleId = HandleId(1);
const MIB: u64 = 1 << 20;
const LONG: Nanos = Nanos::from_millis(2_000);

/// Sessions with a file each, open to read and write.
fn clients(world: &mut World, sessions: &[SessionId]) {
    for &session in sessions {
        world.session(session, 64 * MIB);
        let target = world.file(4 << 20);
        world.command(Command::InstallHandle { session, handle: HANDLE, target });
    }
}

/// A read into memory of its own.
fn get(world: &mut World, session: SessionId, call: u64, length: u64) {
    let buffer = ArenaBuffer { segment: 0, offset: call * 2 * MIB, length };
    world.submit(session, call, Verb::Read { handle: HANDLE, offset: 0, buffer, wanted: 0 });
}

fn limit(world: &mut World, change: impl FnOnce(&mut Limits)) {
    let mut limits = Limits::NONE;
    change(&mut limits);
    world.command(Command::SetLimits(limits));
}

/// Requests of clients in execution, and those that wait.
fn in_execution(world: &World) -> (u64, u32) {
    let limits = world.shard.report().limits;
    (limits.requests.now, limits.waiting)
}

fn all_end_well(world: &mut World, calls: &[u64]) {
    for &call in calls {
        let end = world.wait("an end", |world| world.end_of(call));
        assert_eq!(end.0, Status::Ok, "{call}");
    }
    let limits = world.shard.report().limits;
    assert_eq!((limits.requests.now, limits.in_flight.now, limits.waiting), (0, 0, 0));
}

#[test]
fn a_client_at_its_limit_waits_in_order_and_alone() {
    let mut world = World::new();
    clients(&mut world, &[SESSION, OTHER]);
    limit(&mut world, |limits| {
        limits.client = ClientLimits { in_flight: 100_000, ..limits.client };
    });
    world.block_device(LONG);
    for (call, length) in [(1, 60_000), (2, 60_000), (3, 10_000)] {
        get(&mut world, SESSION, call, length);
    }
    get(&mut world, OTHER, 4, 60_000);
    world.settle();
    // The third would fit, and does not overtake the second.
    assert_eq!(in_execution(&world), (2, 2));
    assert_eq!(world.shard.report().limits.in_flight.now, 120_000);
    all_end_well(&mut world, &[1, 2, 3, 4]);
    // What is larger than the limit is done alone.
    world.block_device(LONG);
    get(&mut world, SESSION, 5, 2 * MIB);
    get(&mut world, SESSION, 6, 1);
    world.settle();
    assert_eq!(in_execution(&world), (1, 1));
    all_end_well(&mut world, &[5, 6]);
    assert_eq!(world.shard.report().limits.waited, 3);
}

#[test]
fn what_waits_goes_on_when_the_limit_is_raised_and_ends_when_it_is_cancelled() {
    let mut world = World::new();
    clients(&mut world, &[SESSION]);
    limit(&mut world, |limits| limits.client.requests = 1);
    world.block_device(LONG);
    (1..=4).for_each(|call| get(&mut world, SESSION, call, 1000));
    world.settle();
    assert_eq!(in_execution(&world), (1, 3));
    world.submit(SESSION, 9, Verb::Cancel { target: 2 });
    let end = world.wait("the end of what waited", |world| world.end_of(2));
    assert_eq!((end.0, in_execution(&world)), (Status::Cancelled, (1, 2)));
    limit(&mut world, |limits| limits.client.requests = 2);
    world.settle();
    assert_eq!(in_execution(&world), (2, 1));
    // Lowered below what runs: nothing is cut.
    limit(&mut world, |limits| limits.client.requests = 1);
    world.settle();
    assert_eq!(in_execution(&world), (2, 1));
    all_end_well(&mut world, &[1, 3, 4]);
}

#[test]
fn a_large_request_is_not_overtaken_for_ever_by_the_small_ones_of_others() {
    let mut world = World::new();
    clients(&mut world, &[SESSION, OTHER]);
    limit(&mut world, |limits| limits.in_flight = 100_000);
    get(&mut world, OTHER, 1, 50_000);
    get(&mut world, SESSION, 2, 90_000);
    // The other session asks again whenever it is told of an end.
    let mut last = 1;
    while world.end_of(2).is_none() {
        last += 2;
        get(&mut world, OTHER, last, 10_000);
        world.wait("an end", |world| world.end_of(last - 2).or_else(|| world.end_of(2)));
        assert!(last < 20, "the large one starves");
    }
    let others: Vec<u64> = (3..=last).step_by(2).collect();
    all_end_well(&mut world, &others);
}

#[test]
fn a_session_with_much_that_waits_does_not_keep_its_turn() {
    let mut world = World::new();
    clients(&mut world, &[SESSION, OTHER, SessionId(3)]);
    limit(&mut world, |limits| limits.requests = 1);
    world.block_device(LONG);
    (1..=20).for_each(|call| get(&mut world, SESSION, call, 1000));
    (21..=24).for_each(|call| get(&mut world, OTHER, call, 1000));
    get(&mut world, SessionId(3), 25, 1000);
    for call in 21..=25 {
        let end = world.wait("an end", |world| world.end_of(call));
        assert_eq!(end.0, Status::Ok);
    }
    let first = (1..=20).filter(|&call| world.end_of(call).is_some()).count();
    assert!(first <= 6, "{first} of the first session's went before four of the second's");
    all_end_well(&mut world, &(1..=20).collect::<Vec<u64>>());
}

#[test]
fn a_session_that_closes_leaves_its_turn_to_others() {
    let mut world = World::new();
    clients(&mut world, &[SESSION, OTHER]);
    limit(&mut world, |limits| limits.in_flight = 100_000);
    world.block_device(LONG);
    get(&mut world, OTHER, 1, 60_000);
    get(&mut world, SESSION, 2, 90_000);
    get(&mut world, OTHER, 3, 40_000);
    world.settle();
    assert_eq!(in_execution(&world), (1, 2), "it is the first session's turn");
    world.command(Command::CloseSession { session: SESSION });
    world.settle();
    assert_eq!(in_execution(&world), (2, 0));
    all_end_well(&mut world, &[1, 3]);
}

fn waits_of(world: &World, peer: &str) -> u32 {
    let parties = world.shard.limit_parties();
    parties.peers.iter().find(|party| party.name == peer).expect("it is connected").waiting
}

#[test]
fn a_peer_at_its_limit_holds_up_neither_others_nor_its_own_writes_and_answers() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let other = world.lane("gamma", LaneClass::Latency, 1);
    let [file, small] = [4 << 20, 4096].map(|length| world.file(length));
    let handle = world.open(line, 1, file);
    let other_handle = world.open(other, 1, small);
    limit(&mut world, |limits| {
        limits.peer = PeerLimits { in_flight: 100_000, ..limits.peer };
    });
    world.block_device(LONG);
    for transfer in 1..=3 {
        world.send(line, read(transfer, handle, 60_000), &[]);
    }
    world.send(line, write(4, handle, 5), &[]);
    world.send(line, write_data(4, 0), b"bytes");
    world.send(other, read(1, other_handle, 4096), &[]);
    world.settle();
    assert_eq!((waits_of(&world, "beta"), waits_of(&world, "gamma")), (2, 0));
    // What waits can be given up, and does not wait for its turn to say so.
    world.send(line, Message::Cancel { transfer: 2 }, &[]);
    assert_eq!(world.read_end(line, 2), Status::Cancelled);
    assert_eq!(waits_of(&world, "beta"), 1);
    assert_eq!(world.read_end(other, 1), Status::Ok);
    let mut ends = Vec::new();
    while ends.len() < 3 {
        match world.next(line) {
            Message::End { transfer, status, .. } => ends.push((transfer, status)),
            Message::Data { transfer, last: Some(last), .. } => ends.push((transfer, last.status)),
            _ => {}
        }
    }
    ends.sort_by_key(|&(transfer, _)| transfer);
    assert_eq!(ends, [1, 3, 4].map(|transfer| (transfer, Status::Ok)));
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_peer_may_have_no_more_open_than_its_limit() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(4096);
    world.open(line, 1, file);
    limit(&mut world, |limits| limits.peer.handles = 1);
    let target = world.file(4096);
    let open = Message::Open {
        ticket: 2,
        kind: piped_core::access::OpenKind::File,
        access: crate::world::ALL,
        create: Creation::No,
        name_length: 4,
    };
    world.send(line, open, b"name");
    let asked = world.wait("the open", |world| {
        world.events.iter().find_map(|event| match event {
            Event::ServeOpen { ticket, .. } => Some(*ticket),
            _ => None,
        })
    });
    world.command(Command::ServeOpened { ticket: asked, result: Ok(target) });
    let refused = world.next(line);
    assert!(matches!(refused, Message::Opened { status: Status::WouldBlock, .. }), "{refused:?}");
}

/// A write whose data are as many as that; the credit that came back, and the last window told.
fn written(world: &mut World, line: LineId, handle: u32, transfer: u64, mib: u64) -> (u64, u64) {
    world.send(line, write_in(transfer, handle, mib * MIB, MIB as u32), &[]);
    for piece in 0..mib {
        world.send(line, write_data(transfer, piece * MIB), &vec![1; MIB as usize]);
    }
    let (mut credit, mut last) = (0, 0);
    let mut over = false;
    world.settle();
    while let Some((frame, _)) = world.take_frame(line) {
        match frame.message {
            Message::Credit { bytes, window } => {
                credit += bytes;
                last = window;
            }
            Message::End { status: Status::Ok, .. } => over = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(over && world.reasons().is_empty(), "{:?}", world.reasons());
    (credit / MIB, last / MIB)
}

#[test]
fn credit_follows_the_limit_both_ways_and_never_by_surprise() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(8 << 20);
    let handle = world.open(line, 1, file);
    limit(&mut world, |limits| limits.peer.staging = 8 * MIB);
    world.settle();
    assert!(!world.has_frame(line), "a frame that a read does not expect may land in its client");
    // Eight had been given; of what comes back six are withheld.
    assert_eq!(written(&mut world, line, handle, 1, 8), (2, 2));
    assert_eq!(written(&mut world, line, handle, 2, 2), (2, 2));
    limit(&mut world, |limits| limits.peer.in_flight = 16 * MIB);
    assert_eq!(written(&mut world, line, handle, 3, 2), (4, 4));
    limit(&mut world, |_| {});
    assert_eq!(written(&mut world, line, handle, 4, 4), (8, 8));
    // Less staging is less credit.
    world.command(Command::SetStaging { bytes: 24 * MIB });
    let segment = world.kernel.add_segment(world.node, 24 * MIB);
    world.command(Command::AddStaging { segment, length: 24 * MIB });
    assert_eq!(written(&mut world, line, handle, 5, 8), (3, 3));
}

#[test]
fn staging_goes_and_comes_under_lanes_that_stay() {
    let mut world = World::new();
    let lanes = ["beta", "gamma"].map(|peer| world.lane(peer, LaneClass::Latency, 1));
    let handles = lanes.map(|line| {
        let file = world.file(1 << 20);
        world.open(line, 1, file)
    });
    world.settle();
    // One that is in the middle of an answer which its peer does not read.
    world.stop_reading(lanes[1]);
    world.send(lanes[1], read(1, handles[1], MIB), &[]);
    world.settle();
    let before = world.kernel.segments(world.node);
    assert_eq!(world.shard.staging_missing(8 * MIB), 8 * MIB);
    world.command(Command::SetStaging { bytes: 8 * MIB });
    let segment = world.kernel.add_segment(world.node, 8 * MIB);
    world.command(Command::AddStaging { segment, length: 8 * MIB });
    world.settle();
    let limits = world.shard.report().limits;
    assert_eq!((limits.staging_limit_bytes, limits.scratches_moved), (8 * MIB, 1));
    assert_eq!(world.shard.report().staging_bytes, (64 + 8) * MIB, "a lane still uses the old");
    world.read_on(lanes[1]);
    assert_eq!(world.read_end(lanes[1], 1), Status::Ok);
    world.wait_until("the old staging is gone", |world| {
        world.events.iter().any(|event| matches!(event, Event::StagingDrained { .. }))
    });
    let after = world.kernel.segments(world.node);
    assert!(
        before.iter().filter(|id| !after.contains(id)).count() == 1 && after.contains(&segment)
    );
    assert_eq!(world.shard.report().staging_bytes, 8 * MIB);
    for (line, handle) in lanes.into_iter().zip(handles) {
        world.send(line, read(7, handle, MIB), &[]);
        assert_eq!(world.read_end(line, 7), Status::Ok);
        world.send(line, write(8, handle, 5), &[]);
        world.send(line, write_data(8, 0), b"bytes");
        assert_eq!(world.read_end(line, 8), Status::Ok);
    }
    assert_eq!((world.reasons(), world.shard.report().limits.scratches_moved), (vec![], 2));
}

#[test]
fn staging_is_never_less_than_what_works() {
    let mut world = World::new();
    world.lane("beta", LaneClass::Latency, 1);
    let least = world.shard.report().limits.staging_least_bytes;
    assert!(least > 2 * MIB, "a lane's scratch, and the longest runs");
    world.command(Command::SetStaging { bytes: 1 });
    assert_eq!(world.shard.report().limits.staging_limit_bytes, least);
}

#[test]
fn copies_leave_half_of_the_staging_that_stays() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    // An answer that is not read keeps the old segment.
    world.stop_reading(line);
    world.send(line, read(1, handle, MIB), &[]);
    world.settle();
    world.command(Command::SetStaging { bytes: 8 * MIB });
    let segment = world.kernel.add_segment(world.node, 8 * MIB);
    world.command(Command::AddStaging { segment, length: 8 * MIB });
    world.settle();
    assert_eq!(world.shard.report().staging_bytes, (64 + 8) * MIB);
    world.session(SESSION, MIB);
    for handle in [1, 2] {
        let target = world.file(16 << 20);
        let handle = HandleId(handle);
        world.command(Command::InstallHandle { session: SESSION, handle, target });
    }
    world.block_device(LONG);
    for call in 1..=2 {
        let (from, to) = (HandleId(1), HandleId(2));
        let offset = (call - 1) * 8 * MIB;
        let (from_offset, to_offset, length) = (offset, offset, 8 * MIB);
        world.submit(SESSION, call, Verb::Copy { from, from_offset, to, to_offset, length });
    }
    world.settle();
    let staged = world.shard.limit_parties().clients[0].staging.now;
    assert!(
        (MIB..=4 * MIB).contains(&staged),
        "what peers write must find room beside it: {staged}"
    );
    all_end_well(&mut world, &[1, 2]);
}
