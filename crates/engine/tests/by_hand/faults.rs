//! Peers that break the rules, in each way once: the lane they did it on is closed and counted,
//! nothing of it lands anywhere, and what was asked is asked again.

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::io::Span;
use piped_core::limits;
use piped_core::link::{LaneClass, ReportedStage};
use piped_core::modes::CalibrationMode;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Command;
use piped_model::estimate::REGIMES;
use piped_wire::{Frame, HEADER_BYTES, LastPart, Message};

use crate::asking::{ARENA, HANDLE, connected, read};
use crate::world::{self, LineId, SESSION, World, no_stage, reports};

const NOT_ASKED: &str = "an answer to a request that was not asked, or is over";
const LENGTH: u64 = 8192;

fn last(bytes: u64) -> Option<LastPart> {
    Some(LastPart {
        status: Status::Ok,
        bytes,
        predicted_us: 0,
        margin_percent: 0,
        company: false,
        plan: 0,
    })
}

fn data(transfer: u64, offset: u64, last: Option<LastPart>) -> Message {
    let (fragment, backlogged, service_us) = (4096, false, 1);
    Message::Data { transfer, offset, fragment, backlogged, service_us, last }
}

fn end(transfer: u64, status: Status, bytes: u64) -> Message {
    let (service_us, fragment, predicted_us) = (1, 0, 0);
    Message::End { transfer, status, bytes, service_us, fragment, predicted_us }
}

fn faults(world: &World) -> u64 {
    world.shard.report().counters.peer_faults
}

/// A shard that has asked a peer for the first bytes of a file, on a lane; the request's number.
fn asked(world: &mut World) -> (usize, Span, u64) {
    let (line, segments) = connected(world, &[SESSION]);
    world.submit(SESSION, 1, read(0, LENGTH));
    let Message::Read { transfer, .. } = world.next(line) else { panic!("a read") };
    (line, Span { segment: segments[0], offset: 0, length: ARENA as u32 }, transfer)
}

/// The peer is well again: what was asked is asked again and served.
fn serve_again(world: &mut World) {
    let line = world.answer_connect(LaneClass::Latency, 1 << 20);
    loop {
        match world.next(line) {
            Message::Open { ticket, .. } => {
                let (status, handle, length) = (Status::Ok, 7, ARENA);
                world.send(line, Message::Opened { ticket, status, handle, length }, &[]);
            }
            Message::Read { transfer, length, .. } => {
                world.send(line, data(transfer, 0, last(length)), &vec![9; length as usize]);
                break;
            }
            Message::Close { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    world.wait_until("the read ends", |world| world.end_of(1).is_some());
    assert_eq!(world.end_of(1), Some((Status::Ok, LENGTH)));
}

#[test]
fn answers_that_break_the_rules_cost_the_lane_and_land_nowhere() {
    type Answer = fn(u64) -> (Message, Vec<u8>);
    let cases: &[(&str, Answer)] = &[
        (NOT_ASKED, |_| (data(u64::MAX, 0, None), vec![0xbb; 4096])),
        (NOT_ASKED, |it| (data(it ^ 1 << 40, 0, last(4096)), vec![0xbb; 4096])),
        (NOT_ASKED, |_| (end(12_345, Status::Ok, 0), vec![])),
        ("outside what was asked", |it| (data(it, LENGTH, None), vec![0xbb; 4096])),
        ("outside what was asked", |it| (data(it, 4096, None), vec![0xbb; 8192])),
        ("outside what was asked", |it| (data(it, 1 << 62, None), vec![0xbb; 4096])),
        ("cut a read", |it| (data(it, 0, None), vec![0xbb; 100])),
        ("an open that was not sent", |_| {
            let (status, handle, length) = (Status::Ok, 1, u64::MAX);
            (Message::Opened { ticket: 3, status, handle, length }, vec![])
        }),
        ("a request on a lane", |_| (Message::Ping { nonce: 1 }, vec![])),
        ("a request on a lane", |it| (world::read(it, 0, 1), vec![])),
        ("a payload with a frame that has none", |_| {
            let (kind, access) = (OpenKind::File, Access::READ_WRITE);
            let open =
                Message::Open { ticket: 1, kind, access, create: Creation::OPEN, name_length: 4 };
            (open, b"name".to_vec())
        }),
        ("a request on a lane", |_| {
            let (incarnation, credit_bytes, requests_max) = (1, u64::MAX, u32::MAX);
            (Message::HelloAck { incarnation, credit_bytes, requests_max, sums: true }, vec![])
        }),
        ("a request on a lane", |_| (Message::HelloRefused { status: Status::Denied }, vec![])),
        // A read that was called a message would leave its lane's list, and keep its buffer.
        ("an answer to a message that is none", |it| (Message::Queued { transfer: it }, vec![])),
    ];
    for (number, (reason, answer)) in cases.iter().enumerate() {
        let mut world = World::new();
        let (line, memory, transfer) = asked(&mut world);
        let (message, payload) = answer(transfer);
        world.send(line, message, &payload);
        world.settle();
        let reasons = world.reasons().join(", ");
        assert!(reasons.contains(reason), "case {number}: {reasons}");
        assert_eq!((world.reasons().len(), faults(&world)), (1, 1), "case {number}: {reasons}");
        assert!(!world.is_up(line) && world.end_of(1).is_none(), "case {number}");
        let bytes = world.kernel.bytes(world.node, memory);
        assert!(!bytes.contains(&0xbb), "case {number}: it landed");
        serve_again(&mut world);
        assert_eq!(world.shard.report().counters.retries, 1, "case {number}");
    }
}

#[test]
fn a_second_answer_is_a_fault_and_one_to_a_cancelled_request_is_not() {
    let mut world = World::new();
    let (line, memory, transfer) = asked(&mut world);
    world.send(line, data(transfer, 0, last(LENGTH)), &[1; LENGTH as usize]);
    world.wait_until("the read ends", |world| world.end_of(1).is_some());
    // It was the client's again. Nothing else is under way, so no receive may write there.
    world.kernel.bytes_mut(world.node, memory).fill(5);
    world.submit(SESSION, 2, read(LENGTH, LENGTH));
    let Message::Read { transfer: given_up, .. } = world.next(line) else { panic!("a read") };
    world.submit(SESSION, 3, Verb::Cancel { target: 2 });
    let Message::Cancel { .. } = world.next(line) else { panic!("a cancel") };
    // Its pieces may be on their way, until its end.
    world.send(line, data(given_up, 0, None), &[2; 4096]);
    world.send(line, data(given_up, 4096, None), &[2; 4096]);
    world.send(line, end(given_up, Status::Cancelled, 4096), &[]);
    world.settle();
    assert_eq!(world.reasons(), [""; 0]);
    world.send(line, data(given_up, 0, None), &[3; 4096]);
    world.settle();
    assert_eq!((world.reasons(), faults(&world)), (vec![NOT_ASKED], 1));
    let bytes = world.kernel.bytes(world.node, memory);
    assert!(bytes.iter().all(|byte| *byte == 5), "nothing landed after the ends were told");

    let mut world = World::new();
    let (line, _, transfer) = asked(&mut world);
    for byte in [1, 2] {
        world.send(line, data(transfer, 0, last(LENGTH)), &[byte; LENGTH as usize]);
    }
    world.settle();
    assert_eq!((world.reasons(), faults(&world)), (vec![NOT_ASKED], 1));
    assert_eq!(world.end_of(1), Some((Status::Ok, LENGTH)));
}

#[test]
fn a_request_that_ended_before_its_data_had_left_is_not_waited_for_twice() {
    let mut world = World::new();
    connected(&mut world, &[SESSION]);
    let line = world.answer_connect(LaneClass::Bulk, 8 << 20);
    world.settle();
    // The peer refuses a write of which most cannot leave, and the client's time passes.
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: ARENA };
    world.submit(
        SESSION,
        1,
        Verb::Write { handle: HANDLE, offset: 0, buffer, durable: false, notify: None },
    );
    let Message::Write { transfer, .. } = world.next(line) else { panic!("a write") };
    world.stop_reading(line);
    world.send(line, end(transfer, Status::NoSpace, 0), &[]);
    world.run_for(Nanos::from_millis(61_000));
    assert_eq!(world.end_of(1).map(|(status, _)| status), Some(Status::NoSpace));
    world.read_on(line);
    let mut cancels = 0;
    world.settle();
    while let Some((frame, _)) = world.take_frame(line) {
        cancels += u32::from(matches!(frame.message, Message::Cancel { .. }));
        world.settle();
    }
    assert_eq!(cancels, 0, "the peer has nothing to give up");
    // So one more answer is one too many.
    world.send(line, end(transfer, Status::Cancelled, 0), &[]);
    world.settle();
    assert_eq!(world.reasons(), [NOT_ASKED]);
}

#[test]
fn a_lane_is_not_up_before_the_old_ones_writes_have_left_the_disk() {
    let mut world = World::new();
    let old = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(old, 1, file);
    world.block_device(Nanos::from_millis(2_000));
    world.send(old, world::write(1, handle, 4096), &[]);
    world.send(old, world::write_data(1, 0), &[1; 4096]);
    world.settle();
    world.hang_up(old);
    world.settle();
    let new = world.dial();
    world.hello(new, "beta", LaneClass::Latency, 2);
    world.run_for(Nanos::from_millis(1_000));
    assert!(!world.has_frame(new), "the old write is at the disk, and could overtake a new one");
    // Asked all the same, it is a fault; an honest peer waits.
    let hasty = world.dial();
    world.hello(hasty, "beta", LaneClass::Latency, 3);
    world.send(hasty, world::write(1, handle, 4096), &[]);
    world.settle();
    for reason in ["a newer incarnation took its place", "a request before HelloAck"] {
        assert!(world.reasons().contains(&reason), "{:?}", world.reasons());
    }
    let newest = world.dial();
    world.hello(newest, "beta", LaneClass::Latency, 4);
    world.settle();
    assert!(!world.has_frame(newest), "nor has it another way in");
    assert!(matches!(world.next(newest), Message::HelloAck { .. }));
    // The old write is done, so whatever comes now is newer.
    assert_eq!(world.shard.report().serves, 0);
    world.send(newest, world::write(1, handle, 4096), &[]);
    world.send(newest, world::write_data(1, 0), &[2; 4096]);
    assert_eq!(world.read_end(newest, 1), Status::Ok);
}

#[test]
fn a_write_by_the_other_lane_waits_for_an_old_one_at_the_disk() {
    let mut world = World::new();
    let latency = world.lane("beta", LaneClass::Latency, 1);
    let bulk = world.lane("beta", LaneClass::Bulk, 1);
    let file = world.file(1 << 20);
    let handle = world.open(latency, 1, file);
    world.block_device(Nanos::from_millis(2_000));
    world.send(bulk, world::write(1, handle, 4096), &[]);
    world.send(bulk, world::write_data(1, 0), &[1; 4096]);
    world.settle();
    world.hang_up(bulk);
    world.settle();
    let with_the_old = world.shard.report().ops;
    // This lane was never lost, so nothing fences it.
    world.send(latency, world::write(1, handle, 4096), &[]);
    world.send(latency, world::write_data(1, 0), &[2; 4096]);
    world.run_for(Nanos::from_millis(1_000));
    assert_eq!(world.shard.report().ops, with_the_old, "the newer one is at the disk, too");
    assert_eq!(world.read_end(latency, 1), Status::Ok);
    assert_eq!(world.shard.report().serves, 0, "and the old one is over");
}

#[test]
fn half_a_frame_and_then_silence_costs_the_lane_in_time() {
    // Cut in the header, behind it, and in the payload; from a peer that asks and one that answers.
    for cut in [1, HEADER_BYTES, HEADER_BYTES + 5000] {
        for asks in [true, false] {
            let mut world = World::new();
            let (line, frame) = if asks {
                let line = world.lane("beta", LaneClass::Latency, 1);
                let file = world.file(1 << 20);
                let handle = world.open(line, 1, file);
                world.send(line, world::write(1, handle, 1 << 20), &[]);
                (line, world.frame(line, world::write_data(1, 0), &[1; 1 << 20]))
            } else {
                let (line, _, transfer) = asked(&mut world);
                (line, world.frame(line, data(transfer, 0, last(LENGTH)), &[1; LENGTH as usize]))
            };
            world.settle();
            let staging = world.shard.report().staging_used_bytes;
            world.send_bytes(line, &frame[..cut]);
            world.run_for(Nanos(limits::FRAME_TIME.0 - 1_000_000_000));
            assert!(world.is_up(line), "it has its time: {cut} {asks}");
            world.run_for(limits::FRAME_TIME);
            assert_eq!(world.reasons(), ["it began a frame and did not go on"], "{cut} {asks}");
            assert_eq!(faults(&world), 1);
            let report = world.shard.report();
            assert!(report.staging_used_bytes < staging && report.serves == 0, "{cut} {asks}");
            if !asks {
                serve_again(&mut world);
            }
        }
    }
}

/// The frame, and the word that another one comes in the same run of bytes.
fn followed(frame: &[u8]) -> Vec<u8> {
    let (header, payload) = frame.split_first_chunk().expect("a header");
    let frame = Frame { followed: true, ..Frame::parse(header).expect("sound") };
    [&frame.encode(), payload].concat()
}

/// The header and a little of the payload, so that the rest is waited for, and then all.
fn send_in_two(world: &mut World, line: LineId, frames: &[u8]) {
    let (first, rest) = frames.split_at(HEADER_BYTES + 100);
    world.send_bytes(line, first);
    world.settle();
    world.send_bytes(line, rest);
}

#[test]
fn a_frame_that_another_one_follows_is_handed_on_with_the_header_of_that() {
    let mut world = World::new();
    let (line, _, transfer) = asked(&mut world);
    let half = LENGTH / 2;
    let first = world.frame(line, data(transfer, 0, None), &vec![1; half as usize]);
    let rest = world.frame(line, data(transfer, half, last(LENGTH)), &vec![1; half as usize]);
    let (header, rest) = rest.split_at(HEADER_BYTES / 2);
    send_in_two(&mut world, line, &[&followed(&first), header].concat());
    world.run_for(Nanos::from_millis(1));
    assert_eq!(world.progress_of(1), [], "the first half waits for the header behind it");
    world.send_bytes(line, rest);
    assert_eq!(world.wait("the end", |it| it.end_of(1)), (Status::Ok, LENGTH));
}

#[test]
fn a_promise_of_a_frame_that_never_comes_costs_the_lane_in_time() {
    let mut world = World::new();
    let (line, _, transfer) = asked(&mut world);
    let frame = world.frame(line, data(transfer, 0, last(LENGTH)), &vec![1; LENGTH as usize]);
    send_in_two(&mut world, line, &followed(&frame));
    world.run_for(Nanos(limits::FRAME_TIME.0 - 1_000_000_000));
    assert!(world.is_up(line) && world.end_of(1).is_none(), "it has its time");
    world.run_for(limits::FRAME_TIME);
    assert_eq!(world.reasons(), ["it began a frame and did not go on"]);
    assert_eq!(faults(&world), 1);
    serve_again(&mut world);
}

#[test]
fn half_a_frame_is_noticed_also_when_the_look_was_for_one_before_it() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    let frame = world.frame(line, world::read(1, handle, 4096), &[]);
    let (first, second) = frame.split_at(HEADER_BYTES / 2);
    world.send_bytes(line, first);
    world.run_for(Nanos(limits::FRAME_TIME.0 * 3 / 4));
    world.send_bytes(line, second);
    assert!(matches!(world.next(line), Message::Data { last: Some(_), .. }));
    world.send_bytes(line, first);
    world.run_for(Nanos(limits::FRAME_TIME.0 / 2));
    assert!(world.is_up(line), "it has its time");
    world.run_for(limits::FRAME_TIME);
    assert_eq!(world.reasons(), ["it began a frame and did not go on"]);
}

#[test]
fn a_frame_that_goes_on_and_a_lane_between_frames_have_all_the_time() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    for transfer in 0..5 {
        // Each frame in two halves with a long pause in between, and nothing for long after it.
        let frame = world.frame(line, world::read(transfer, handle, 4096), &[]);
        let (first, second) = frame.split_at(HEADER_BYTES / 2);
        world.send_bytes(line, first);
        world.run_for(Nanos(limits::FRAME_TIME.0 * 3 / 4));
        world.send_bytes(line, second);
        assert!(matches!(world.next(line), Message::Data { last: Some(_), .. }));
        world.run_for(Nanos(limits::FRAME_TIME.0 * 3));
    }
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn absurd_reports_leave_plans_that_move_bytes() {
    const ABSURD: [u64; 6] = [0, 1, u64::MAX, i64::MAX as u64, 1 << 62, 0x7ff8_0000_0000_0000];
    let mut world = World::new();
    world.command(Command::SetCalibration(CalibrationMode::Live));
    world.command(Command::SetPlanner(piped_core::modes::PlannerMode::Auto));
    let bad = world.lane("beta", LaneClass::Latency, 1);
    let good = world.lane("gamma", LaneClass::Latency, 1);
    let (file, other) = (world.file(1 << 20), world.file(1 << 20));
    let [bad_handle, good_handle] =
        [(bad, file), (good, other)].map(|(line, file)| world.open(line, 1, file));
    let mut transfer = 0;
    let mut served = |world: &mut World, line: usize, handle: u32| {
        transfer += 1;
        world.send(line, world::read(transfer, handle, 1 << 20), &[]);
        let mut bytes = 0;
        loop {
            let (frame, payload) = world.next_frame(line);
            let Message::Data { offset, last, .. } = frame.message else { continue };
            assert_eq!(offset, bytes);
            bytes += payload.len() as u64;
            assert!(payload.iter().all(|byte| *byte == 7));
            if last.is_some() {
                break;
            }
        }
        assert_eq!(bytes, 1 << 20);
    };
    for latency in ABSURD {
        for overhead in ABSURD {
            for per_byte in ABSURD {
                let sizes = [(latency ^ per_byte) as u32, u32::MAX, 65_536, 1];
                for claim in reports(ReportedStage::Net, [latency, overhead, per_byte], &sizes) {
                    world.send(bad, claim, &[]);
                }
                world.run_for(limits::REPORT_PAUSE);
            }
        }
        served(&mut world, bad, bad_handle);
        served(&mut world, good, good_handle);
    }
    for stage in world.shard.stages() {
        let costs = [stage.latency_seconds, stage.overhead_seconds, stage.per_byte_seconds];
        assert!(costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0), "{stage:?}");
        assert!(!stage.name.contains("gamma") || !stage.reported, "{stage:?}");
    }
    assert_eq!((world.reasons(), faults(&world)), (vec![], 0));
}

#[test]
fn of_a_flood_of_reports_few_count() {
    let mut world = World::new();
    world.command(Command::SetCalibration(CalibrationMode::Live));
    let line = world.lane("beta", LaneClass::Latency, 1);
    let before = world.kernel.now();
    for number in 0..2_500 {
        for mut claim in reports(ReportedStage::Net, [number, 1000, 1000], &[4096, 65_536]) {
            // One that is never the last is not the beginning of what has no end.
            if let Message::Report { last, .. } = &mut claim {
                *last &= number % 2 == 0;
            }
            world.send(line, claim, &[]);
        }
    }
    world.send(line, Message::Ping { nonce: 1 }, &[]);
    assert_eq!(world.next(line), Message::Pong { nonce: 1 });
    let time = world.kernel.now() - before;
    let stages = world.shard.stages();
    let net = stages.iter().find(|stage| stage.reported).expect("the reported one");
    let counted = net.samples_alone + net.samples_backlogged;
    let most = 2 * REGIMES as u64 * (time.0 / limits::REPORT_PAUSE.0 + 1);
    assert!((1..=most).contains(&counted), "{counted} of at most {most}");
}

/// How often a stage was made by 1000 pairs of claims, and how often it may be.
fn made_by(world: &mut World, line: LineId, claims: impl Fn(u32) -> [Message; 2]) -> (u64, u64) {
    let (before, mut made) = (world.kernel.now(), 0);
    for number in 0..1000 {
        for claim in claims(number) {
            let had = world.shard.stages().len();
            world.send(line, claim, &[]);
            world.send(line, Message::Ping { nonce: 1 }, &[]);
            assert_eq!(world.next(line), Message::Pong { nonce: 1 });
            made += u64::from(world.shard.stages().len() > had);
        }
    }
    (made, (world.kernel.now() - before).0 / limits::REPORT_PAUSE.0 + 2)
}

#[test]
fn stages_that_come_and_go_without_end_cost_little() {
    let mut world = World::new();
    world.command(Command::SetCalibration(CalibrationMode::Live));
    let line = world.lane("beta", LaneClass::Latency, 1);
    for kind in [ReportedStage::Check, ReportedStage::DialNet] {
        let come_and_go = |_| [reports(kind, [0, 5_000, 100], &[4096])[0], no_stage(kind)];
        let (made, most) = made_by(&mut world, line, come_and_go);
        assert!((1..=most).contains(&made) && most < 900, "{kind:?}: {made} of at most {most}");
    }
    // Who asks here has no disk that anything of ours is written to.
    let disk = |number| {
        let mut claim = reports(ReportedStage::DiskWrite, [0, 5_000, 100], &[4096])[0];
        if let Message::Report { handle, .. } = &mut claim {
            *handle = number;
        }
        [claim; 2]
    };
    assert_eq!(made_by(&mut world, line, disk).0, 0);
}

#[test]
fn a_peer_that_greets_and_then_breaks_the_rules_is_dialled_ever_more_slowly() {
    let mut world = World::new();
    world.add_peer();
    let mut waits = Vec::new();
    for _ in 0..12 {
        let wait = world.next_dial(LaneClass::Latency);
        waits.push(wait);
        world.run_for(wait);
        let line = world.answer_connect(LaneClass::Latency, 1 << 20);
        world.send(line, Message::Ping { nonce: 1 }, &[]);
        world.wait_until("the lane ends", |world| !world.is_up(line));
    }
    let (first, longest) = (waits[1], waits[waits.len() - 1]);
    assert!(first < Nanos::from_millis(50), "{waits:?}");
    assert!(longest >= Nanos::from_millis(900), "{waits:?}");
    // One that is only cut off is dialled at once again.
    let line = world.answer_connect(LaneClass::Latency, 1 << 20);
    world.settle();
    world.hang_up(line);
    assert!(world.next_dial(LaneClass::Latency) < Nanos::from_millis(50));
}
