//! Predictions are held against transfers that waited for nobody, and `explain` says what the
//! others waited for.

use piped_core::access::Access;
use piped_core::call::{CALL_BYTES_MAX, Call};
use piped_core::ids::{HandleId, SessionId};
use piped_core::link::LaneClass;
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::request::{ArenaBuffer, Class, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{ClientLimits, Command, DirectoryTarget, Limits, Target};
use piped_report::shard::{Explanation, Waiting};
use piped_report::tally::{Company, HeldBy, PlanPath};
use piped_wire::{Asker, LastPart, Message};

use crate::asking::{self, HANDLE, connected};
use crate::world::{SESSION, World, end, read};

const KIB: u64 = 1024;
const LENGTH: u64 = 64 * KIB;
const FILE: HandleId = HandleId(40);
const OTHER: SessionId = SessionId(2);

/// Two clients with a file each, on one disk.
fn on_one_disk() -> World {
    let mut world = World::new();
    for session in [SESSION, OTHER] {
        world.session(session, 4 << 20);
        let target = world.file(4 << 20);
        world.command(Command::InstallHandle { session, handle: FILE, target });
    }
    world
}

/// Each call has memory of its own.
fn buffer(call: u64) -> ArenaBuffer {
    ArenaBuffer { segment: 0, offset: call % 16 * LENGTH, length: LENGTH }
}

fn from_file(call: u64) -> Verb {
    Verb::Read { handle: FILE, offset: 0, buffer: buffer(call), wanted: 0 }
}

fn to(handle: HandleId, durable: bool) -> Verb {
    Verb::Write { handle, offset: 0, buffer: buffer(0), durable, notify: None }
}

fn wait(world: &mut World, call: u64) {
    world.wait_until("it has ended", |world| world.end_of(call).is_some());
    assert_eq!(world.end_of(call), Some((Status::Ok, LENGTH)));
}

/// Transfers of a path that waited for nobody, the others, and how many were held against their
/// predictions.
fn counted(world: &World, path: PlanPath) -> (u64, u64, u64) {
    let tally = &world.shard.observe().tally;
    let [alone, queued] =
        Company::ALL.map(|company| tally.predicted[path as usize][company as usize]);
    (alone, queued, tally.predictions[path as usize].count())
}

/// What is told of the n-th transfer that ended, from 1 on.
fn told(world: &World, number: usize) -> (Explanation, Waiting) {
    let now = Nanos::MAX;
    let ended = world.shard.ended(now, 64);
    let id = ended[ended.len() - number].id;
    let told = world.shard.explain(Some(id)).expect("it is remembered");
    let waiting = told.waiting.clone().expect("it is said");
    let parts = waiting.held_seconds + waiting.shared_seconds + waiting.own_seconds;
    assert!((parts - told.measured_seconds).abs() < 1e-9, "{told:?}");
    (told, waiting)
}

#[test]
fn one_after_the_other_waits_for_nobody_and_is_compared() {
    let mut world = on_one_disk();
    for call in 1..=3 {
        world.submit(SESSION, call, from_file(call));
        wait(&mut world, call);
    }
    assert_eq!(counted(&world, PlanPath::Local), (3, 0, 3));
    let (told, waiting) = told(&world, 3);
    assert!(waiting.alone && waiting.own_seconds == told.measured_seconds, "{waiting:?}");
    let ratio = told.measured_seconds / told.predicted_seconds;
    assert_eq!(told.deviation, Some(ratio - 1.0));
    assert_eq!(told.not_compared, "");
}

#[test]
fn sixteen_at_once_are_counted_and_none_is_compared() {
    let mut world = on_one_disk();
    (1..=16).for_each(|call| world.submit(SESSION, call, from_file(call)));
    (1..=16).for_each(|call| wait(&mut world, call));
    assert_eq!(counted(&world, PlanPath::Local), (0, 16, 0));
    let all: Vec<_> = (1..=16).map(|number| told(&world, number)).collect();
    for (told, waiting) in &all {
        assert!(!waiting.alone && told.deviation.is_none(), "{told:?}");
        assert!(told.not_compared.contains("others were there"), "{told:?}");
        assert_eq!((waiting.ahead_own + waiting.joined, waiting.ahead_others), (15, 0));
        assert!(waiting.at.starts_with("disk "), "{waiting:?}");
    }
    // The disk has moved sixteen times as much when the last one ends.
    let (told, waiting) = &all[15];
    let part = waiting.shared_seconds / told.measured_seconds;
    assert!((0.93..0.94).contains(&part), "{waiting:?}");
}

#[test]
fn another_client_is_company_on_the_same_disk_and_none_elsewhere() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.session(OTHER, 1 << 20);
    let target = world.file(1 << 20);
    for session in [SESSION, OTHER] {
        world.command(Command::InstallHandle { session, handle: FILE, target });
    }
    // One asks a peer while the other one reads the disk.
    world.submit(SESSION, 1, asking::read(0, LENGTH));
    let asked = world.next(line);
    world.submit(OTHER, 2, from_file(2));
    wait(&mut world, 2);
    assert_eq!(counted(&world, PlanPath::Local), (1, 0, 1), "they share nothing");
    asking::answer(&mut world, line, asked, LENGTH, &[], 7);
    wait(&mut world, 1);
    // Now both read the disk.
    world.submit(SESSION, 3, from_file(3));
    world.submit(OTHER, 4, from_file(4));
    (3..=4).for_each(|call| wait(&mut world, call));
    assert_eq!(counted(&world, PlanPath::Local), (1, 2, 1));
    let (_, waiting) = told(&world, 4);
    assert_eq!((waiting.ahead_own, waiting.ahead_others, waiting.joined), (0, 1, 0));
}

#[test]
fn a_peers_call_of_a_directory_is_company_on_its_disk() {
    let mut world = on_one_disk();
    let device = world.device();
    let directory = world.kernel.create_directory(world.node, device);
    let directory = world.kernel.open_file(world.node, directory, false);
    let access = Access::READ;
    let target = DirectoryTarget { directory, device, access, foreign: false };
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, Target::Directory(target));
    world.block_device(Nanos::from_millis(5));
    let (asker, time_left_us) = (Asker::alone(Class::Latency), 10_000_000);
    let list =
        Message::Call { transfer: 1, handle, answer_max: 4096, asker, once: None, time_left_us };
    let mut bytes = [0; CALL_BYTES_MAX];
    let call = Call::List { path: b"", cookie: 0, stats: false };
    let length = call.encode(&mut bytes).expect("room");
    world.send(line, list, &bytes[..length]);
    world.run_for(Nanos::from_millis(1));
    world.submit(SESSION, 1, from_file(1));
    wait(&mut world, 1);
    assert_eq!(world.read_end(line, 1), Status::Ok);
    let (_, waiting) = told(&world, 2);
    assert_eq!((waiting.alone, waiting.ahead_others), (false, 1), "{waiting:?}");
    assert_eq!(counted(&world, PlanPath::Local), (0, 1, 0));
}

#[test]
fn what_a_rate_holds_back_says_so_and_is_not_compared() {
    let mut world = on_one_disk();
    let client = ClientLimits { rate: 1 << 20, ..Limits::NONE.client };
    world.command(Command::SetLimits(Limits { client, ..Limits::NONE }));
    // What the rate has saved up goes first.
    let mut call = 0;
    let waiting = loop {
        call += 1;
        world.submit(SESSION, call, from_file(call));
        wait(&mut world, call);
        let (told, waiting) = told(&world, call as usize);
        if !waiting.alone {
            assert!(told.deviation.is_none() && told.not_compared.contains("held it back"));
            break waiting;
        }
        assert!(call < 60, "the rate never held");
    };
    assert_eq!(waiting.held_by, [HeldBy::Rate]);
    assert!(waiting.held_seconds > 1e-3, "{waiting:?}");
    assert_eq!(counted(&world, PlanPath::Local), (call - 1, 1, call - 1));
}

#[test]
fn what_waits_for_a_lane_to_its_peer_says_so() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.hang_up(line);
    world.settle();
    world.submit(SESSION, 1, asking::read(0, LENGTH));
    world.settle_turn();
    world.submit(SESSION, 2, Verb::Cancel { target: 1 });
    world.wait_until("it has ended", |world| world.end_of(1).is_some());
    let (told, waiting) = told(&world, 1);
    assert_eq!((told.status, waiting.held_by), (Status::Cancelled, vec![HeldBy::Peer]));
}

#[test]
fn a_peer_that_serves_says_whether_it_had_company_and_who_asks_believes_it() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let other = world.lane("gamma", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handles = [line, other].map(|line| world.open(line, 1, file));
    let last = |world: &mut World, line| loop {
        let (frame, _) = world.next_frame(line);
        if let Message::Data { last: Some(last), .. } = frame.message {
            break last;
        }
    };
    world.send(line, read(1, handles[0], LENGTH), &[]);
    assert!(!last(&mut world, line).company);
    world.settle();
    world.send(line, read(2, handles[0], LENGTH), &[]);
    world.send(other, read(2, handles[1], LENGTH), &[]);
    assert!(last(&mut world, line).company && last(&mut world, other).company, "one disk");

    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    for (call, company) in [(1, false), (2, true)] {
        world.submit(SESSION, call, asking::read(0, LENGTH));
        let transfer = loop {
            if let Message::Read { transfer, .. } = world.next(line) {
                break transfer;
            }
        };
        let last = LastPart {
            status: Status::Ok,
            bytes: LENGTH,
            predicted_us: 90,
            margin_percent: 9,
            company,
            plan: 0,
        };
        let message = Message::Data {
            transfer,
            offset: 0,
            fragment: LENGTH as u32,
            backlogged: false,
            service_us: 1,
            last: Some(last),
        };
        world.send(line, message, &[7; LENGTH as usize]);
        wait(&mut world, call);
    }
    assert_eq!(counted(&world, PlanPath::PeerRead), (1, 1, 1));
    let (told, waiting) = told(&world, 2);
    assert!(waiting.at_peer && told.deviation.is_none(), "{told:?}");
    assert!(told.not_compared.contains("the peer"), "{told:?}");
}

#[test]
fn a_durable_write_is_predicted_with_its_sync_once_one_was_measured() {
    let mut world = on_one_disk();
    world.command(Command::SetCalibration(CalibrationMode::Live));
    world.submit(SESSION, 1, to(FILE, true));
    wait(&mut world, 1);
    let (first, _) = told(&world, 1);
    assert_eq!((first.sync_seconds, first.deviation), (None, None));
    assert!(first.not_compared.contains("sync"), "{first:?}");
    assert_eq!(counted(&world, PlanPath::Local), (0, 0, 0));
    let sync = first.passed.iter().find(|stage| stage.name.starts_with("sync "));
    let measured = sync.and_then(|stage| stage.measured).expect("a row of its own").busy_seconds;
    for call in 2..=4 {
        world.submit(SESSION, call, to(FILE, true));
        wait(&mut world, call);
    }
    assert_eq!(counted(&world, PlanPath::Local), (3, 0, 3));
    let (last, _) = told(&world, 4);
    let sync = last.sync_seconds.expect("it is known");
    assert!((sync / measured - 1.0).abs() < 0.1, "{sync} {measured}");
    assert!(last.predicted_seconds > sync && last.deviation.is_some(), "{last:?}");
    // One that is not durable is predicted without.
    world.submit(SESSION, 5, to(FILE, false));
    wait(&mut world, 5);
    assert_eq!(told(&world, 5).0.sync_seconds, None);
}

#[test]
fn a_durable_write_to_a_peer_is_predicted_with_what_the_last_ones_took() {
    const SYNC: Nanos = Nanos::from_millis(5);
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.command(Command::SetCalibration(CalibrationMode::Live));
    for call in 1..=3 {
        world.submit(SESSION, call, to(HANDLE, true));
        let mut write = None;
        let mut sent = 0;
        while sent < LENGTH {
            let (frame, _) = world.next_frame(line);
            sent += u64::from(frame.payload);
            if let Message::Write { transfer, .. } = frame.message {
                write = Some(transfer);
            }
        }
        world.run_for(SYNC);
        world.send(line, end(write.expect("it was asked for"), Status::Ok, LENGTH), &[]);
        wait(&mut world, call);
    }
    assert_eq!(counted(&world, PlanPath::PeerWrite), (2, 0, 2), "of the first it was not known");
    let (told, _) = told(&world, 3);
    let sync = told.sync_seconds.expect("it is known");
    assert!((sync / SYNC.seconds() - 1.0).abs() < 0.2, "{sync}");
    assert!(told.deviation.expect("compared").abs() < 0.2, "{told:?}");
}

#[test]
fn the_last_transfer_is_the_last_that_moved_bytes() {
    let mut world = on_one_disk();
    assert!(world.shard.explain(None).is_none());
    world.command(Command::SetPlanner(PlannerMode::Fixed(16 << 10)));
    let sync = Verb::Sync { handle: FILE };
    world.submit(SESSION, 1, sync);
    world.wait_until("it has ended", |world| world.end_of(1).is_some());
    assert_eq!(world.shard.explain(None).expect("there is no other").operation, "sync");
    world.submit(SESSION, 2, from_file(2));
    wait(&mut world, 2);
    world.submit(SESSION, 3, sync);
    world.wait_until("it has ended", |world| world.end_of(3).is_some());
    assert_eq!(world.shard.explain(None).expect("it moved bytes").operation, "read");
}
