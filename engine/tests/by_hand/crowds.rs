//! Very many at the peers' door: whoever proved who it is keeps its place, and nobody has all by coming under new names.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use piped_engine::command::{Caller, Crowded, Event, LaneClass, Origin, Standing};
use piped_engine::limits::{LANES_MAX, LINKS_MAX, STAGING_LEAST};
use piped_engine::request::Status;
use piped_engine::wire::Message;

use crate::world::{LineId, STAGING, World, read};

const KEYED: &str = "beta";

fn site(number: u32) -> Origin {
    Origin::Site(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number)))
}

/// A plain caller, where `beta` has a key.
fn plain(origin: Origin) -> Caller {
    Caller::Unproven { reserved: Arc::new(BTreeSet::from([KEYED.to_owned()])), origin }
}

/// The same where nobody has one.
fn alone(origin: Origin) -> Caller {
    Caller::Unproven { reserved: Arc::default(), origin }
}

fn keyed() -> Caller {
    Caller::Proven { node: KEYED.to_owned() }
}

fn enters(world: &mut World, caller: Caller, name: &str, epoch: u32) -> LineId {
    let line = world.dial_as(caller, None);
    world.hello(line, name, LaneClass::Latency, epoch);
    world.settle();
    line
}

/// One that is welcome.
fn welcome(world: &mut World, caller: Caller, name: &str, epoch: u32) -> LineId {
    let line = enters(world, caller, name, epoch);
    match world.next(line) {
        Message::HelloAck { .. } => line,
        other => panic!("not welcome: {other:?}"),
    }
}

/// Reads a page and sees it.
fn reads(world: &mut World, line: LineId, transfer: u64, handle: u32) {
    world.send(line, read(transfer, handle, 4096), &[]);
    assert_eq!(world.read_end(line, transfer), Status::Ok);
}

fn refused(world: &World) -> Vec<(Standing, Crowded)> {
    let refused = |event: &Event| match event {
        Event::LaneRefused { standing, why } => Some((*standing, *why)),
        _ => None,
    };
    world.events.iter().filter_map(refused).collect()
}

fn up(world: &World, lines: &[LineId]) -> usize {
    lines.iter().filter(|line| world.is_up(**line)).count()
}

#[test]
fn silent_plain_lanes_leave_a_keyed_node_everything_it_needs() {
    for sites in [1, 500] {
        let mut world = World::new();
        let beta = welcome(&mut world, keyed(), KEYED, 1);
        let file = world.file(1 << 20);
        let handle = world.open(beta, 9, file);
        reads(&mut world, beta, 1, handle);
        let mut lines = Vec::new();
        for number in 0..500 {
            let caller = plain(site(number % sites));
            lines.push(enters(&mut world, caller, &format!("silent-{number}"), 1));
            if number % 50 == 0 {
                reads(&mut world, beta, 100 + u64::from(number), handle);
            }
        }
        world.settle();
        assert!(world.is_up(beta), "{:?}", world.reasons());
        // As many as there are places that are not kept, and for one address a third.
        let most = if sites == 1 { LANES_MAX / 4 } else { LANES_MAX * 3 / 4 };
        let stay = up(&world, &lines);
        assert!((1..=most as usize).contains(&stay), "{stay} of {sites}");
        let told = refused(&world);
        assert!(told.iter().all(|(standing, _)| *standing != Standing::Proven), "{told:?}");
        assert!(told.iter().any(|(_, why)| *why == Crowded::Displaced), "{sites}");
        // It goes, comes back, finds what it had open, and has its second lane.
        world.hang_up(beta);
        world.settle();
        let again = welcome(&mut world, keyed(), KEYED, 2);
        reads(&mut world, again, 2, handle);
        let bulk = world.dial_as(keyed(), None);
        world.hello(bulk, KEYED, LaneClass::Bulk, 1);
        assert!(matches!(world.next(bulk), Message::HelloAck { .. }));
        reads(&mut world, bulk, 3, handle);
    }
}

#[test]
fn lanes_that_work_are_not_displaced_by_those_that_say_nothing() {
    let mut world = World::new();
    let works = welcome(&mut world, plain(site(7)), "works", 1);
    let file = world.file(1 << 20);
    let handle = world.open(works, 9, file);
    for number in 0..300 {
        enters(&mut world, plain(site(1000)), &format!("silent-{number}"), 1);
    }
    world.settle();
    // Those of the address that has the most went.
    assert!(world.is_up(works));
    reads(&mut world, works, 1, handle);
    assert!(refused(&world).iter().all(|(it, _)| *it == Standing::Plain(site(1000))));
}

#[test]
fn a_user_of_this_machine_has_a_share_as_an_address_has() {
    let mut world = World::new();
    let calls = |world: &mut World, uid: u32, count: u32| -> Vec<LineId> {
        let caller = plain(Origin::User(uid));
        (0..count).map(|n| enters(world, caller.clone(), &format!("of-{uid}-{n}"), 1)).collect()
    };
    let few = calls(&mut world, 1000, 10);
    let many = calls(&mut world, 1001, 300);
    world.settle();
    assert_eq!(up(&world, &few), few.len());
    assert!(up(&world, &many) <= (LANES_MAX / 4) as usize);
}

#[test]
fn as_many_honest_nodes_as_there_are_links_find_room_in_little_staging() {
    let mut world = World::new();
    // Both lanes of as many as there are links, less what is kept for lanes that close.
    let nodes = LINKS_MAX - 8;
    let mut lines = Vec::new();
    for number in 0..nodes {
        let name = format!("honest-{number}");
        lines.push(enters(&mut world, alone(site(number)), &name, 1));
        let bulk = world.dial_as(alone(site(number)), None);
        world.hello(bulk, &name, LaneClass::Bulk, 1);
        world.settle();
        lines.push(bulk);
    }
    world.settle();
    assert_eq!(up(&world, &lines), lines.len(), "{:?} {:?}", refused(&world), world.reasons());
    // And each is served.
    let file = world.file(1 << 20);
    for &line in lines.iter().step_by(2) {
        assert!(matches!(world.next(line), Message::HelloAck { .. }));
        let handle = world.open(line, 9, file);
        reads(&mut world, line, 1, handle);
    }
}

#[test]
fn names_that_come_and_go_do_not_have_a_keyed_node_forgotten() {
    let mut world = World::new();
    let beta = welcome(&mut world, keyed(), KEYED, 1);
    let file = world.file(4096);
    let handle = world.open(beta, 9, file);
    world.hang_up(beta);
    world.settle();
    for number in 0..3 * LINKS_MAX {
        let line = enters(&mut world, plain(site(number)), &format!("passing-{number}"), 1);
        world.hang_up(line);
        world.settle();
    }
    world.settle();
    let again = welcome(&mut world, keyed(), KEYED, 2);
    reads(&mut world, again, 1, handle);
}

#[test]
fn a_lane_has_little_staging_until_it_works_and_gives_it_back_when_others_want_it() {
    let mut world = World::new();
    let used = |world: &World| world.shard.report().staging_used_bytes;
    let first = welcome(&mut world, alone(site(1)), "first", 1);
    let resting = used(&world);
    assert_eq!(resting, 64 << 10);
    let file = world.file(1 << 20);
    let handle = world.open(first, 9, file);
    reads(&mut world, first, 1, handle);
    world.settle();
    let working = used(&world);
    assert!(working > resting, "{working}");
    // Others come, work once and rest, until there is no more for one that begins: those that rest give it back.
    let more = working - resting;
    let mut lines = vec![(first, handle)];
    let mut given_back = false;
    while lines.len() < 230 {
        let number = lines.len() as u32;
        let before = used(&world);
        let (caller, name) = (alone(site(number)), format!("other-{number}"));
        let line = welcome(&mut world, caller.clone(), &name, 1);
        let handle = world.open(line, 9, file);
        reads(&mut world, line, 1, handle);
        let bulk = world.dial_as(caller, None);
        world.hello(bulk, &name, LaneClass::Bulk, 1);
        assert!(matches!(world.next(bulk), Message::HelloAck { .. }));
        reads(&mut world, bulk, 1, handle);
        world.settle();
        lines.extend([(line, handle), (bulk, handle)]);
        given_back |= used(&world) < before;
        // Those at rest have a little each besides.
        let resting = resting * lines.len() as u64;
        assert!(used(&world) <= STAGING - STAGING_LEAST + resting, "what transfers need is left");
    }
    assert!(given_back, "{} x {more}", lines.len());
    for (line, handle) in lines {
        reads(&mut world, line, 2, handle);
    }
    assert_eq!(world.reasons(), [""; 0]);
}
