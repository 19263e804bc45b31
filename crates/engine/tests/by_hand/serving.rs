//! What a peer asks of us.

use std::collections::BTreeMap;

use piped_core::ids::{RegionId, SessionId};
use piped_core::io::{Io, Resource, Span};
use piped_core::limits;
use piped_core::link::{Checksum, LaneClass};
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event};
use piped_sim::{Cost, SILENCE};
use piped_wire::Message;

use crate::world::{
    COST, INCARNATION, SESSION, Step, World, read, region, write, write_data, write_in,
};

#[test]
fn a_connection_that_does_not_say_who_it_is_has_its_time() {
    let mut world = World::new();
    let silent = world.dial();
    // Half of a Hello is none.
    let stuck = world.dial();
    world.send_bytes(stuck, &[0x11; 10]);
    let honest = world.lane("beta", LaneClass::Latency, 1);
    world.run_for(Nanos(limits::HELLO_TIME.0 - 1_000_000));
    assert!([silent, stuck, honest].map(|line| world.is_up(line)) == [true; 3]);
    world.run_for(Nanos::from_millis(2));
    assert_eq!([silent, stuck, honest].map(|line| world.is_up(line)), [false, false, true]);
    assert_eq!(world.reasons(), ["it did not say in time who it is"; 2]);
    // Its time was not the lane's.
    world.run_for(limits::HELLO_TIME);
    world.run_for(limits::HELLO_TIME);
    assert!(world.is_up(honest));
}

#[test]
fn short_pieces_of_writes_hold_no_more_staging_than_long_ones() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let other = world.lane("gamma", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    let file = world.file(1 << 20);
    let other_handle = world.open(other, 1, file);
    let before = world.staged();
    world.block_device(Nanos::from_millis(2_000));
    // As many as a serve may hold of each of many writes, as short as they can be.
    for transfer in 0..60 {
        world.send(line, write_in(transfer, handle, 31 * 512, 512), &[]);
        for offset in 0..31 {
            world.send(line, write_data(transfer, offset * 512), &[transfer as u8; 512]);
        }
    }
    world.run_for(Nanos::from_millis(1_000));
    let held = world.staged() - before;
    assert!(held <= limits::CREDIT_BYTES, "{held} bytes of staging for {} bytes", 60 * 31 * 512);
    assert!(held > limits::CREDIT_BYTES / 2, "the device is slow, what came is held: {held}");
    // Another peer's write finds staging meanwhile.
    world.send(other, write(1, other_handle, 1 << 20), &[]);
    world.send(other, write_data(1, 0), &[1; 1 << 20]);
    world.run_for(Nanos::from_millis(500));
    let more = world.staged() - before;
    assert_eq!(more - held, 1 << 20);
    // And all of it ends well.
    for line in [vec![line; 60], vec![other]].concat() {
        let end = loop {
            match world.next(line) {
                Message::Credit { .. } => {}
                other => break other,
            }
        };
        assert!(matches!(end, Message::End { status: Status::Ok, .. }), "{end:?}");
    }
    assert_eq!(world.staged(), before);
    assert_eq!(world.reasons(), [""; 0]);
}

fn is_drained(world: &World, number: u32) -> bool {
    let region = RegionId(number);
    world.events.contains(&Event::RegionDrained { region })
}

#[test]
fn a_revoked_region_is_in_use_until_no_queued_frame_names_it() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Bulk, 1);
    let latency = world.lane("beta", LaneClass::Latency, 1);
    let segment = world.session(SESSION, 4 << 20);
    let handle = world.open(latency, 1, region(1, segment, 4 << 20));
    world.stop_reading(line);
    world.send(line, read(1, handle, 4 << 20), &[]);
    world.settle();
    for _ in 0..2 {
        world.command(Command::RevokeRegion { region: RegionId(1) });
    }
    world.settle();
    assert!(!is_drained(&world, 1), "frames that name it are queued");
    world.read_on(line);
    // From its first frame on this is not an error, but what is missing is not sent.
    let status = world.read_end(line, 1);
    assert_eq!(status, Status::Gone);
    world.wait_until("the region is free", |world| is_drained(world, 1));
    // The kernel's guards panic if anything names it from here.
    world.kernel.io(world.node).release(Resource::Segment(segment));
    world.send(line, read(2, handle, 4096), &[]);
    assert_eq!(world.read_end(line, 2), Status::Gone);
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_revoked_region_is_in_use_until_a_running_put_lands_no_more() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let segment = world.session(SESSION, 1 << 20);
    let handle = world.open(line, 1, region(1, segment, 1 << 20));
    world.send(line, write(1, handle, 1 << 20), &[]);
    let mut frame = world.frame(line, write_data(1, 0), &[9; 512 << 10]);
    let rest = frame.split_off(300 << 10);
    world.send_bytes(line, &frame);
    world.settle();
    world.command(Command::RevokeRegion { region: RegionId(1) });
    world.turn_near();
    assert!(!is_drained(&world, 1), "the kernel may still write to it");
    world.wait_until("the region is free", |world| is_drained(world, 1));
    let whole = Span { segment, offset: 0, length: 1 << 20 };
    let before = world.kernel.bytes(world.node, whole).to_vec();
    world.send_bytes(line, &rest);
    assert_eq!(world.read_end(line, 1), Status::Gone);
    world.settle();
    assert!(world.kernel.bytes(world.node, whole) == before, "it is its owner's again");
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn an_unused_region_is_free_at_once_and_each_time_it_is_revoked() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let segment = world.session(SESSION, 1 << 20);
    let handle = world.open(line, 1, region(1, segment, 1 << 20));
    world.send(line, read(1, handle, 4096), &[]);
    assert_eq!(world.read_end(line, 1), Status::Ok);
    world.settle();
    for _ in 0..2 {
        world.events.clear();
        world.command(Command::RevokeRegion { region: RegionId(1) });
        world.turn_near();
        assert!(is_drained(&world, 1));
    }
}

#[test]
fn a_read_that_its_peer_stops_draining_ends() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(16 << 20);
    let handle = world.open(line, 1, file);
    let before = world.shard.report().staging_used_bytes;
    world.stop_reading(line);
    world.send(line, read(1, handle, 16 << 20), &[]);
    world.settle();
    assert_eq!(world.shard.report().serves, 1);
    assert!(world.shard.report().staging_used_bytes > before);
    // Its deadline (10 s), and what an idle lane is allowed beyond.
    world.run_for(Nanos::from_millis(11_000));
    assert!(world.is_up(line), "the peer may still read");
    world.run_for(limits::UNREAD_TIME);
    assert_eq!(world.reasons(), ["the peer does not read what it asked for"]);
    let report = world.shard.report();
    assert_eq!((report.serves, report.ops), (0, 0));
    assert!(report.staging_used_bytes < before, "the lane's own staging is free as well");
}

#[test]
fn a_peer_that_reads_slowly_keeps_its_lane() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(16 << 20);
    let handle = world.open(line, 1, file);
    world.stop_reading(line);
    world.send(line, read(1, handle, 16 << 20), &[]);
    // Two frames a while: progress enough.
    for _ in 0..3 {
        world.run_for(Nanos(limits::UNREAD_TIME.0 - 1_000_000_000));
        world.read_on(line);
        world.next(line);
        world.next(line);
        world.stop_reading(line);
    }
    world.read_on(line);
    assert_eq!(world.read_end(line, 1), Status::DeadlineExceeded);
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_peer_that_reads_a_frame_now_and_then_holds_a_revoked_region_only_so_long() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Bulk, 1);
    let latency = world.lane("beta", LaneClass::Latency, 1);
    let segment = world.session(SESSION, 8 << 20);
    let handle = world.open(latency, 1, region(1, segment, 8 << 20));
    world.stop_reading(line);
    for transfer in 0..40 {
        world.send(line, read(transfer, handle, 8 << 20), &[]);
    }
    world.settle();
    world.command(Command::RevokeRegion { region: RegionId(1) });
    // A frame each time that it must show progress.
    let step = Nanos(limits::UNREAD_TIME.0 - 1_000_000_000);
    let mut waited = Nanos::ZERO;
    while !is_drained(&world, 1) {
        assert!(waited <= limits::UNREAD_TIME_MAX, "still in use after {waited}");
        world.run_for(step);
        waited = waited + step;
        if world.is_up(line) {
            assert!(waited < limits::UNREAD_TIME_MAX, "it may not read on");
            world.read_on(line);
            world.next(line);
            world.stop_reading(line);
        }
    }
    assert!(waited > limits::UNREAD_TIME, "it did read, and had time: {waited}");
    assert_eq!(world.reasons(), ["the peer does not read what it asked for"]);
}

#[test]
fn gets_that_others_overlap_with_come_in_one_piece() {
    let mut world = World::new();
    world.command(Command::SetPlanner(PlannerMode::Auto));
    let latency = world.lane("beta", LaneClass::Latency, 1);
    let line = world.lane("beta", LaneClass::Bulk, 1);
    let segment = world.session(SESSION, 1 << 20);
    let handle = world.open(latency, 1, region(1, segment, 1 << 20));
    let mut pieces_of = |first: u64, requests: usize| {
        for transfer in first..first + requests as u64 {
            world.send(line, read(transfer, handle, 1 << 20), &[]);
        }
        let mut pieces = vec![0; requests];
        let mut over = 0;
        while over < requests {
            if let Message::Data { transfer, last, .. } = world.next(line) {
                pieces[(transfer - first) as usize] += 1;
                over += usize::from(last.is_some());
            }
        }
        world.settle();
        pieces
    };
    let alone = pieces_of(0, 1);
    assert!(alone[0] > 1, "the checksums and the way overlap in pieces only");
    assert_eq!(pieces_of(1, 4)[1..], [1; 3], "behind the first of four");
    assert!(pieces_of(5, 1)[0] > 1, "alone again");
}

#[test]
fn a_stale_handle_names_nothing() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(8192);
    let old = world.open(line, 1, file);
    world.send(line, Message::Close { handle: old }, &[]);
    let file = world.file(8192);
    let new = world.open(line, 2, file);
    // The same place, another name.
    assert_eq!((old ^ new) as usize % limits::HANDLES_PER_LINK, 0);
    assert_ne!(old, new);
    for (number, (handle, expected)) in
        [(old, Status::BadHandle), (new, Status::Ok), (new + 1, Status::BadHandle)]
            .into_iter()
            .enumerate()
    {
        world.send(line, read(number as u64, handle, 4096), &[]);
        assert_eq!(world.read_end(line, number as u64), expected, "{handle:#x}");
    }
    // Closing the stale name does not close its successor.
    world.send(line, Message::Close { handle: old }, &[]);
    world.send(line, read(9, new, 4096), &[]);
    assert_eq!(world.read_end(line, 9), Status::Ok);
}

#[test]
fn a_peer_that_writes_beyond_its_credit_loses_the_lane() {
    for excess in [0, 1] {
        let mut world = World::new();
        let line = world.lane("beta", LaneClass::Latency, 1);
        let file = world.file(1 << 20);
        let handle = world.open(line, 1, file);
        world.block_device(Nanos::from_millis(5_000));
        let piece = 1 << 20;
        let pieces = limits::CREDIT_BYTES / piece;
        world.send(line, write(1, handle, limits::CREDIT_BYTES + 1), &[]);
        for number in 0..pieces {
            world.send(line, write_data(1, number * piece), &vec![1; piece as usize]);
        }
        if excess > 0 {
            world.send(line, write_data(1, limits::CREDIT_BYTES), &[1]);
        }
        world.run_for(Nanos::from_millis(1_000));
        assert_eq!(world.is_up(line), excess == 0);
        if excess > 0 {
            assert_eq!(world.reasons(), ["more write data than it had credit for"]);
            continue;
        }
        // What the device took comes back as credit.
        world.run_for(Nanos::from_millis(5_000));
        let mut credit = 0;
        while let Some((frame, _)) = world.take_frame(line) {
            if let Message::Credit { bytes, .. } = frame.message {
                credit += bytes;
            }
        }
        assert!(credit > limits::CREDIT_BYTES / 2, "{credit}");
        world.send(line, write_data(1, limits::CREDIT_BYTES), &[1]);
        assert_eq!(world.read_end(line, 1), Status::Ok);
    }
}

#[test]
fn the_service_of_a_write_is_without_the_way_of_its_pieces() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let segment = world.session(SESSION, 1 << 20);
    let memory = world.open(line, 1, region(1, segment, 1 << 20));
    world.send(line, write(1, memory, 128 << 10), &[]);
    for offset in [0, 64 << 10] {
        // The wire takes that long for each.
        world.run_for(Nanos::from_millis(5));
        world.send(line, write_data(1, offset), &[1; 64 << 10]);
    }
    let end = loop {
        match world.next(line) {
            Message::Credit { .. } | Message::Report { .. } => {}
            other => break other,
        }
    };
    let Message::End { status: Status::Ok, service_us, .. } = end else { panic!("{end:?}") };
    assert!(service_us < 1_000, "{service_us}");
}

#[test]
fn several_closing_sessions_drain_when_their_regions_are_free() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let sessions = [1, 2, 3].map(SessionId);
    let handles = sessions.map(|session| {
        let segment = world.session(session, 1 << 20);
        world.open(line, session.0.into(), region(session.0, segment, 1 << 20))
    });
    world.stop_reading(line);
    for (number, handle) in handles.into_iter().enumerate() {
        world.send(line, read(number as u64, handle, 1 << 20), &[]);
    }
    world.settle();
    for session in sessions {
        world.command(Command::CloseSession { session });
    }
    world.settle();
    let drained = |world: &World| {
        sessions.map(|session| world.events.contains(&Event::SessionDrained { session }))
    };
    assert_eq!(drained(&world), [false; 3], "frames that name their memory are queued");
    world.read_on(line);
    world.wait_until("all sessions drain", |world| drained(world) == [true; 3]);
    assert_eq!(world.kernel.segments(world.node).len(), 1, "only staging is left");
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn the_peer_that_left_first_makes_room_for_a_new_one() {
    let mut world = World::new();
    let name = |number: u32| format!("node-{number}");
    let file = world.file(8192);
    let mut opened = None;
    for number in 0..limits::LINKS_MAX {
        let line = world.lane(&name(number), LaneClass::Latency, 3);
        // The last to come is the first to leave, and it leaves a file open.
        if number + 1 == limits::LINKS_MAX {
            opened = Some((world.open(line, 1, file), line));
        }
    }
    let Some((handle, line)) = opened else { unreachable!() };
    let refused = world.dial();
    world.hello(refused, "late", LaneClass::Latency, 1);
    world.wait_until("it is refused", |world| !world.is_up(refused));
    assert_eq!(world.reasons(), ["as many peers are connected as there may be"]);
    // One that does nothing has made room for when it comes again.
    world.settle();
    assert!(!world.is_up(world.first_line()) && world.is_up(line));
    world.lane("late", LaneClass::Latency, 1);
    world.hang_up(line);
    world.settle();
    assert_eq!(world.kernel.open_files(world.node).len(), 1, "it may come back");
    world.lane("later", LaneClass::Latency, 1);
    assert_eq!(world.kernel.open_files(world.node).len(), 0, "it was forgotten with its handles");

    // Another leaves, and the forgotten one returns: it is told that its handles are of the past.
    let line = world.first_line() + 1;
    world.hang_up(line);
    world.settle();
    let again = world.dial();
    world.hello(again, &name(limits::LINKS_MAX - 1), LaneClass::Latency, 4);
    match world.next(again) {
        Message::HelloAck { incarnation, .. } => assert_ne!(incarnation, INCARNATION),
        other => panic!("not welcome: {other:?}"),
    }
    world.send(again, read(1, handle, 4096), &[]);
    assert_eq!(world.read_end(again, 1), Status::BadHandle);
}

#[test]
fn a_peer_whose_write_is_at_the_disk_is_not_forgotten() {
    let mut world = World::new();
    let file = world.file(8192);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, file);
    for number in 1..limits::LINKS_MAX {
        world.lane(&format!("node-{number}"), LaneClass::Latency, 1);
    }
    world.block_device(Nanos::from_millis(1_000));
    world.send(line, write(1, handle, 4096), &[]);
    world.send(line, write_data(1, 0), &[1; 4096]);
    world.settle();
    world.hang_up(line);
    world.settle();
    let late = world.dial();
    world.hello(late, "late", LaneClass::Latency, 1);
    world.wait_until("it is refused", |world| !world.is_up(late));
    world.run_for(Nanos::from_millis(2_000));
    world.lane("late", LaneClass::Latency, 1);
}

#[test]
fn idle_lanes_of_a_peer_that_is_gone_without_a_word_are_lost() {
    let mut world = World::new();
    let before = world.staged();
    for class in [LaneClass::Latency, LaneClass::Bulk] {
        world.lane("beta", class, 1);
    }
    world.settle();
    world.vanish();
    world.run_for(Nanos(SILENCE.0 - 1_000_000));
    assert_eq!(world.reasons(), [""; 0]);
    world.run_for(Nanos::from_millis(2));
    assert_eq!(world.reasons().len(), 2, "nothing was asked and nothing was sent");
    assert_eq!(world.staged(), before);
}

#[test]
fn a_peer_of_another_version_is_refused_at_hello_with_what_to_do() {
    let mut world = World::new();
    let old = world.dial();
    let hello =
        Message::Hello { incarnation: 5, lane: LaneClass::Bulk, checksum: Checksum::Payload };
    let mut frame = world.frame(old, hello, b"beta");
    // The version stands before all that may differ, the checksum included.
    frame[2] = 1;
    world.send_bytes(old, &frame);
    world.wait_until("the lane ends", |world| !world.reasons().is_empty());
    let reason = world.reasons()[0];
    assert!(reason.contains("frame version 1") && reason.contains("install"), "{reason}");
    assert!(!world.is_up(old));
}

/// Reads of 1 MiB by a peer that says what they took: the mean of the last of them, and their most
/// frequent depth and first fragment.
fn mean_of_reads(world: &mut World, mode: PlannerMode) -> (Nanos, u32, u64) {
    const LENGTH: u64 = 1 << 20;
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(LENGTH as usize);
    let handle = world.open(line, 1, file);
    world.command(Command::SetPlanner(mode));
    world.command(Command::SetCalibration(CalibrationMode::Live));
    let (mut times, mut plans) = (Vec::new(), BTreeMap::new());
    for transfer in 1..=320 {
        let begun = world.kernel.now();
        world.send(line, read(transfer, handle, LENGTH), &[]);
        let plan = loop {
            if let Message::Data { last: Some(last), .. } = world.next(line) {
                assert_eq!((last.status, last.bytes), (Status::Ok, LENGTH));
                break last.plan;
            }
        };
        let time = world.kernel.now().since(begun);
        let latency_ns = time.0;
        world.send(
            line,
            Message::Outcome { handle, length: LENGTH, plan, latency_ns, company: false },
            &[],
        );
        if transfer > 220 {
            times.push(time.0);
            let it = world.shard.explain(None).expect("it was served");
            *plans.entry((it.depth, it.fragment_bytes)).or_insert(0) += 1;
        }
    }
    assert_eq!(world.reasons(), [""; 0]);
    let (&(depth, fragment), _) = plans.iter().max_by_key(|(_, count)| **count).expect("reads");
    (Nanos(times.iter().sum::<u64>() / times.len() as u64), depth, fragment)
}

#[test]
fn a_disk_that_tells_of_all_at_the_end_is_not_asked_for_all_at_once() {
    let [auto, whole] = [PlannerMode::Auto, PlannerMode::Whole]
        .map(|mode| mean_of_reads(&mut World::with_disk(true), mode));
    assert!(u64::from(auto.1) * auto.2 <= 512 << 10, "its depth and fragments: {auto:?}");
    assert!(auto.0.0 * 100 < whole.0.0 * 80, "{auto:?} against {whole:?}");
}

#[test]
fn a_disk_that_tells_of_each_is_asked_for_many_at_once() {
    let [auto, whole] = [PlannerMode::Auto, PlannerMode::Whole]
        .map(|mode| mean_of_reads(&mut World::with_disk(false), mode));
    assert!(auto.1 >= 8 && auto.2 <= 256 << 10, "{auto:?}");
    assert!(auto.0.0 * 100 < whole.0.0 * 70, "{auto:?} against {whole:?}");
}

/// What the shard does in its turns while a peer reads so much of a file.
fn steps_of_a_serial_read(disk: Cost, length: u64) -> Vec<Step> {
    let mut world = World::with_serial_plans(disk);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(length as usize);
    let handle = world.open(line, 1, file);
    world.settle();
    world.steps.clear();
    world.send(line, read(1, handle, length), &[]);
    while !matches!(world.next(line), Message::Data { last: Some(_), .. }) {}
    let it = world.shard.explain(None).expect("it was served");
    assert_eq!((it.depth, it.chosen.as_str()), (1, "serial"));
    assert_eq!(
        world.steps.iter().filter(|step| **step == Step::Read).count(),
        it.fragments as usize
    );
    world.steps
}

#[test]
fn a_device_has_its_next_fragment_before_the_checksum_of_the_last_one() {
    for length in [1 << 20, 4 << 20] {
        let steps = steps_of_a_serial_read(COST, length);
        for turn in steps.split(|step| *step == Step::Turn) {
            let has = |step| turn.contains(&step);
            assert!(!has(Step::Read) || !has(Step::Checksum), "in one turn: {steps:?}");
        }
    }
}

#[test]
fn a_device_that_is_faster_than_a_turn_does_not_keep_fragments_from_leaving() {
    let at_once = Cost { latency: Nanos::ZERO, overhead: Nanos::ZERO, nanos_per_byte: 0.0 };
    let steps = steps_of_a_serial_read(at_once, 8 << 20);
    let first = steps.iter().position(|step| *step == Step::Checksum).expect("it was sent");
    let before = steps[..first].iter().filter(|step| **step == Step::Read).count();
    // One whose end it waited for, one that was handed over, and one beside the first checksum.
    assert_eq!(before, 3, "{steps:?}");
}

#[test]
fn a_driver_that_was_full_is_asked_again_although_nothing_ends() {
    let mut world = World::new();
    world.driver_is_full = true;
    world.dial();
    world.turn_near();
    // Nothing is in flight whose end could wake the shard, and the peer says nothing.
    let now = world.kernel.node_time(world.node);
    let due = world.shard.poll_timeout().expect("it wants to be called again");
    assert!(due <= now + limits::DRIVER_FULL_TIME, "in {}", due.since(now));
    world.driver_is_full = false;
    world.settle();
    assert!(world.steps.contains(&Step::Receive), "{:?}", world.steps);
}

/// What is asked for a calibration is one fragment of that size, whatever plan would be better.
#[test]
fn the_memory_for_calibrations_is_read_whole() {
    let frames = |number: u32| {
        let mut world = World::new();
        world.command(Command::SetPlanner(PlannerMode::Auto));
        world.command(Command::SetCalibration(CalibrationMode::Live));
        let segment = world.session(SESSION, 1 << 20);
        let line = world.lane("beta", LaneClass::Bulk, 1);
        let latency = world.lane("beta", LaneClass::Latency, 1);
        let handle = world.open(latency, 1, region(number, segment, 1 << 20));
        let mut most = 0;
        for transfer in 0..20 {
            world.send(line, read(transfer, handle, 1 << 20), &[]);
            let mut count = 0;
            loop {
                count += 1;
                let (frame, _) = world.next_frame(line);
                match frame.message {
                    Message::Data { last: Some(_), .. } => break,
                    Message::Data { .. } => {}
                    // The wire, and what it costs, is told of in between.
                    _ => count -= 1,
                }
            }
            most = most.max(count);
        }
        most
    };
    assert!(frames(7) > 1, "some plan cuts what is a client's");
    assert_eq!(frames(RegionId::ECHO.0), 1);
}
