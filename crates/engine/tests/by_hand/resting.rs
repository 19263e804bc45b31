//! Lanes that rest, and give back what they had for work: nothing is lost of what they were told
//! before, and they work again as if nothing had been.

use piped_core::access::{Creation, OpenKind};
use piped_core::limits::{GRANULE_BYTES, LANE_REST_TIME, LANE_RESTING_BYTES};
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event};
use piped_wire::Message;

use crate::asking::{answer, connected, read as get};
use crate::world::{ALL, LineId, SESSION, World, read, write, write_data};

const MIB: u64 = 1 << 20;
const GRANULE: u64 = GRANULE_BYTES as u64;

/// Longer than lanes are left alone that have nothing to do.
const LONG: Nanos = Nanos(LANE_REST_TIME.0 + LANE_REST_TIME.0 / 2);

/// Staging that lanes have for themselves.
fn of_lanes(world: &World) -> u64 {
    world.shard.report().staging_lanes_bytes
}

/// A lane that has worked, and a file that it has open.
fn worked(world: &mut World) -> (LineId, u32) {
    let line = world.lane("beta", LaneClass::Latency, 1);
    assert_eq!(of_lanes(world), GRANULE);
    let file = world.file(MIB as usize);
    let handle = world.open(line, 1, file);
    reads(world, line, 1, handle);
    assert!(of_lanes(world) > GRANULE, "it has more while it works");
    (line, handle)
}

fn reads(world: &mut World, line: LineId, transfer: u64, handle: u32) {
    world.send(line, read(transfer, handle, MIB), &[]);
    assert_eq!(world.read_end(line, transfer), Status::Ok);
}

#[test]
fn lanes_that_rest_share_a_granule_and_work_again() {
    let mut world = World::new();
    let (first, handle) = worked(&mut world);
    let at_work = of_lanes(&world);
    let in_granule = GRANULE / u64::from(LANE_RESTING_BYTES);
    for number in 1..in_granule {
        world.lane(&format!("silent-{number}"), LaneClass::Latency, 1);
    }
    assert_eq!(of_lanes(&world), at_work + GRANULE);
    world.run_for(LONG);
    assert_eq!(of_lanes(&world), GRANULE, "all of them");
    world.lane("one-more", LaneClass::Latency, 1);
    assert_eq!(of_lanes(&world), 2 * GRANULE);
    for transfer in [2, 3] {
        reads(&mut world, first, transfer, handle);
        assert!(of_lanes(&world) > at_work, "as before");
        world.send(first, write(10 + transfer, handle, 70_000), &[]);
        world.send(first, write_data(10 + transfer, 0), &[9; 70_000]);
        assert_eq!(world.read_end(first, 10 + transfer), Status::Ok);
        world.run_for(LONG);
        assert_eq!(of_lanes(&world), 2 * GRANULE);
    }
    assert_eq!(world.shard.poll_timeout(), None, "nobody looks at lanes that rest");
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_part_of_a_header_moves_with_a_lane_that_rests() {
    let mut world = World::new();
    let (line, handle) = worked(&mut world);
    let frame = world.frame(line, read(2, handle, MIB), &[]);
    world.send_bytes(line, &frame[..40]);
    world.run_for(LONG);
    assert_eq!(of_lanes(&world), GRANULE);
    world.send_bytes(line, &frame[40..]);
    assert_eq!(world.read_end(line, 2), Status::Ok);
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_lane_does_not_move_under_a_payload_that_lies_in_it() {
    let mut world = World::new();
    let (line, _) = worked(&mut world);
    let at_work = of_lanes(&world);
    let (kind, create, name_length) = (OpenKind::File, Creation::No, 4);
    let open = Message::Open { ticket: 7, kind, access: ALL, create, name_length };
    let frame = world.frame(line, open, b"name");
    world.send_bytes(line, &frame[..frame.len() - 2]);
    world.run_for(LONG);
    assert_eq!(of_lanes(&world), at_work + GRANULE, "it has where to move to, and waits");
    world.send_bytes(line, &frame[frame.len() - 2..]);
    let asked = world.wait("the open", |world| {
        world.events.iter().rev().find_map(|event| match event {
            Event::ServeOpen { ticket, open, .. } if open.name == "name" => Some(*ticket),
            _ => None,
        })
    });
    let file = world.file(16);
    world.command(Command::ServeOpened { ticket: asked, result: Ok(file) });
    assert!(matches!(world.next(line), Message::Opened { ticket: 7, status: Status::Ok, .. }));
    world.run_for(LONG);
    assert_eq!(of_lanes(&world), GRANULE, "now it does");
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_lane_whose_request_takes_long_does_not_rest() {
    let mut world = World::new();
    let (line, handle) = worked(&mut world);
    let at_work = of_lanes(&world);
    world.block_device(LONG);
    let mut patient = read(2, handle, MIB);
    if let Message::Read { time_left_us, .. } = &mut patient {
        *time_left_us = 60_000_000;
    }
    world.send(line, patient, &[]);
    world.run_for(Nanos(LANE_REST_TIME.0 + LANE_REST_TIME.0 / 3));
    assert_eq!(of_lanes(&world), at_work);
    assert_eq!(world.read_end(line, 2), Status::Ok);
    world.run_for(LONG);
    assert_eq!(of_lanes(&world), GRANULE);
}

#[test]
fn who_asks_rests_too_and_asks_again() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    for number in 0..3 {
        world.submit(SESSION, number, get(0, 200_000));
        let asked = loop {
            match world.next(line) {
                Message::Outcome { .. } => {}
                asked => break asked,
            }
        };
        assert!(of_lanes(&world) > GRANULE);
        answer(&mut world, line, asked, 64 << 10, &[], 7);
        world.wait_until("the end", |world| world.end_of(number).is_some());
        assert_eq!(world.end_of(number), Some((Status::Ok, 200_000)));
        world.run_for(LONG);
        assert_eq!(of_lanes(&world), GRANULE);
    }
    assert_eq!(world.reasons(), [""; 0]);
}
