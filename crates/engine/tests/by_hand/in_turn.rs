//! Long requests of a client at a device go one after the other, and nobody else waits for that.

use piped_core::ids::{HandleId, SessionId};
use piped_core::modes::PlannerMode;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Command;

use crate::world::{SESSION, World};

const OTHER: SessionId = SessionId(2);
const HANDLE: HandleId = HandleId(1);
const MIB: u64 = 1 << 20;
const LENGTH: u64 = 4 * MIB;

/// Two clients with a file each. Requests of 4 MiB have 256 fragments: many more than a device gets
/// at once.
fn two_clients() -> World {
    let mut world = World::new();
    world.command(Command::SetPlanner(PlannerMode::Fixed(16 << 10)));
    for session in [SESSION, OTHER] {
        world.session(session, 64 * MIB);
        let target = world.file(LENGTH as usize);
        world.command(Command::InstallHandle { session, handle: HANDLE, target });
    }
    world
}

fn get(call: u64, length: u64) -> Verb {
    let buffer = ArenaBuffer { segment: 0, offset: call % 16 * LENGTH, length };
    Verb::Read { handle: HANDLE, offset: 0, buffer, wanted: 0 }
}

/// When each of these ends, from now on.
fn ends(world: &mut World, calls: impl Iterator<Item = u64>) -> Vec<Nanos> {
    let calls: Vec<u64> = calls.collect();
    let mut ends = vec![None; calls.len()];
    let begun = world.clock();
    while ends.contains(&None) {
        let open = |world: &World, ends: &[Option<Nanos>]| {
            let all = calls.iter().zip(ends);
            all.filter(|(call, end)| end.is_none() && world.end_of(**call).is_some()).count()
        };
        world.wait_until("another one ends", |world| open(world, &ends) > 0);
        for (call, end) in calls.iter().zip(&mut ends) {
            if end.is_none() && world.end_of(*call).is_some() {
                *end = Some(world.clock().since(begun));
            }
        }
    }
    ends.into_iter().flatten().collect()
}

#[test]
fn equal_ones_end_one_after_the_other() {
    let mut world = two_clients();
    (0..4).for_each(|call| world.submit_bulk(SESSION, call, get(call, LENGTH)));
    let ends = ends(&mut world, 0..4);
    for (place, &end) in ends.iter().enumerate() {
        let (part, all) = ((place + 1) as f64 / 4.0, ends[3].seconds());
        let off = end.seconds() / all - part;
        // But for what the next one has at the device then.
        assert!((0.0..0.06).contains(&off.max(0.0)) && off > -0.06, "{ends:?}");
    }
}

#[test]
fn a_shorter_one_passes_those_that_wait() {
    let mut world = two_clients();
    (0..4).for_each(|call| world.submit_bulk(SESSION, call, get(call, LENGTH)));
    world.run_for(Nanos::from_micros(100));
    // One of several fragments, and one that has only one.
    world.submit_bulk(SESSION, 10, get(10, MIB / 2));
    world.submit_bulk(SESSION, 11, get(11, 4096));
    let ends = ends(&mut world, (0..4).chain([10, 11]));
    assert!(ends[4] < ends[0] && ends[5] < ends[0], "{ends:?}");
    // The device has 32 fragments of the first one, and 32 of the shorter one, of 1056 in all.
    assert!(ends[5].seconds() < ends[3].seconds() * 65.0 / 1056.0, "{ends:?}");
    // The first one goes on beside it.
    assert!(ends[0] < ends[1] && ends[1] < ends[2] && ends[2] < ends[3], "{ends:?}");
}

#[test]
fn clients_have_equal_parts_whatever_each_has_in_line() {
    let mut world = two_clients();
    // More of each than the device gets at once when it has others.
    world.command(Command::SetPlanner(PlannerMode::Fixed(128 << 10)));
    // The device knows both of them when the rest comes.
    world.submit_bulk(OTHER, 100, get(0, 4096));
    (0..6).for_each(|call| world.submit_bulk(SESSION, call, get(call, LENGTH)));
    (101..103).for_each(|call| world.submit_bulk(OTHER, call, get(call, LENGTH)));
    let ends = ends(&mut world, (0..6).chain(101..103));
    let off = |place: usize, part: f64| (ends[place].seconds() / ends[5].seconds() - part).abs();
    // Eight in all: of the first half each client has one half.
    assert!(off(7, 0.5) < 0.08, "{ends:?}");
}

#[test]
fn one_that_is_given_up_makes_way_at_once() {
    let mut world = two_clients();
    (0..4).for_each(|call| world.submit_bulk(SESSION, call, get(call, LENGTH)));
    world.run_for(Nanos::from_micros(100));
    for target in [0, 2] {
        world.submit(SESSION, 20 + target, Verb::Cancel { target });
    }
    let ends = ends(&mut world, [1, 3].into_iter());
    assert!(ends[1].seconds() < 2.2 * ends[0].seconds(), "{ends:?}");
    let status = [0, 1, 2, 3].map(|call| world.end_of(call).expect("it has ended").0);
    let gone = Status::Cancelled;
    assert_eq!(status, [gone, Status::Ok, gone, Status::Ok]);
}

#[test]
fn a_client_that_goes_leaves_its_line_and_no_others() {
    let mut world = two_clients();
    (0..4).for_each(|call| world.submit_bulk(SESSION, call, get(call, LENGTH)));
    (100..104).for_each(|call| world.submit_bulk(OTHER, call, get(call, LENGTH)));
    world.run_for(Nanos::from_micros(500));
    world.command(Command::CloseSession { session: SESSION });
    ends(&mut world, 100..104);
    for call in 100..104 {
        assert_eq!(world.end_of(call), Some((Status::Ok, LENGTH)));
    }
    world.wait("its end", |world| (world.shard.report().sessions == 1).then_some(()));
    assert!(world.shard.is_idle());
}
