//! Very many at the peers' door: nodes with keys keep their places, and nobody has all by coming
//! under new names.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use piped_core::access::{Creation, OpenKind};
use piped_core::limits::{
    LANES_MAX, LINKS_MAX, SERVED_FILES_MAX, SERVES_MAX, SERVES_PER_LANE, STAGING_LEAST,
};
use piped_core::link::{LaneClass, Protection};
use piped_core::names::shard_name;
use piped_core::status::Status;
use piped_engine::command::{Caller, Command, Crowded, Event, Origin, Standing, Target};
use piped_wire::{FrameKey, LaneKeys, Message};

use crate::world::{ALL, LineId, STAGING, World, read, write};

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
    Caller::Proven { node: KEYED.to_owned(), shard: 0 }
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
        // More than the half of staging carries that they may have.
        for number in 0..600 {
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
    for number in 0..LANES_MAX {
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
    // Others come, work once and rest, until there is no more for one that begins: those that rest
    // give it back.
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

#[test]
fn silent_lanes_leave_transfers_the_staging_that_they_need() {
    // With more, there are no names left for as many as rest there.
    for (staging, beside_keys) in [(3, false), (3, true), (4, false), (4, true)] {
        let mut world = World::of_staging(staging << 20);
        let of = |number| if beside_keys { plain(site(number)) } else { alone(site(number)) };
        let first = welcome(&mut world, of(1), "first", 1);
        for number in 0..300 {
            enters(&mut world, of(1000 + number), &format!("silent-{number}"), 1);
        }
        world.settle();
        let lanes = world.shard.report().staging_lanes_bytes;
        assert!(lanes + STAGING_LEAST <= staging << 20, "{lanes} of {staging} MiB");
        assert!(!beside_keys || lanes <= (staging << 20) / 2, "{lanes} of {staging} MiB");
        let told = refused(&world);
        assert!(told.iter().any(|(_, why)| *why == Crowded::Staging), "{told:?}");
        // The others work, as long as they find a place, which those that only said hello leave.
        let works = if world.is_up(first) { first } else { welcome(&mut world, of(2), "works", 1) };
        let file = world.file(8 << 20);
        let handle = world.open(works, 9, file);
        world.send(works, read(1, handle, 8 << 20), &[]);
        assert_eq!(world.read_end(works, 1), Status::Ok, "{staging} MiB");
    }
}

#[test]
fn nodes_that_encrypt_are_refused_with_a_reason_when_there_is_no_staging_for_them() {
    // So much that some rest and one works.
    let staging = 15 << 18;
    let mut world = World::of_staging(staging);
    let key = |byte| FrameKey::new([byte; 16]);
    for number in 0..16 {
        let caller = Caller::Proven { node: format!("keyed-{number}"), shard: 0 };
        let (protection, send, receive) = (Protection::Encrypted, key(1), key(2));
        world.dial_as(caller, Some(LaneKeys { protection, send, receive }));
        world.settle();
    }
    let lanes = world.shard.report().staging_lanes_bytes;
    assert!(lanes + STAGING_LEAST <= staging, "{lanes}");
    let told = refused(&world);
    assert!(told.contains(&(Standing::Proven, Crowded::Staging)), "{told:?}");
}

/// Opens a file, and says what came of it.
fn opens(world: &mut World, line: LineId, ticket: u64, target: Target) -> Status {
    let (kind, create, name_length) = (OpenKind::File, Creation::No, 4);
    world.send(line, Message::Open { ticket, kind, access: ALL, create, name_length }, b"name");
    let asked = world.wait("the open", |world| {
        world.events.iter().position(|event| matches!(event, Event::ServeOpen { .. }))
    });
    let Event::ServeOpen { ticket, .. } = world.events.remove(asked) else { unreachable!() };
    world.command(Command::ServeOpened { ticket, result: Ok(target) });
    match world.next(line) {
        Message::Opened { status, .. } => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_address_has_all_files_under_ever_new_names() {
    let mut world = World::new();
    let share = SERVED_FILES_MAX * 2 / 3;
    let mut opened = 0;
    // A name alone would have enough; two lose theirs when they leave, and a third finds the share
    // again.
    let mut lines = Vec::new();
    for name in 0..2 {
        let line = welcome(&mut world, alone(site(1)), &format!("hog-{name}"), 1);
        lines.push(line);
        for ticket in 0..u64::from(share) {
            let file = world.file(16);
            match opens(&mut world, line, ticket, file) {
                Status::Ok => opened += 1,
                status => {
                    assert_eq!(status, Status::WouldBlock);
                    break;
                }
            }
        }
    }
    assert_eq!(opened, share);
    let other = welcome(&mut world, alone(site(2)), "other", 1);
    let file = world.file(16);
    assert_eq!(opens(&mut world, other, 1, file), Status::Ok);
    for line in lines {
        world.hang_up(line);
    }
    world.settle();
    let again = welcome(&mut world, alone(site(1)), "again", 1);
    let file = world.file(16);
    assert_eq!(opens(&mut world, again, 1, file), Status::Ok);
    assert!(world.shard.report().served_handles <= 2, "those that left have nothing any more");
}

#[test]
fn no_address_and_no_node_has_all_requests() {
    let callers: [fn(u32) -> (Caller, String); 2] = [
        |number| (alone(site(1)), format!("hog-{number}")),
        |number| {
            let shard = number as usize;
            (Caller::Proven { node: KEYED.to_owned(), shard }, shard_name(KEYED, shard))
        },
    ];
    for caller in callers {
        let mut world = World::new();
        let file = world.file(1 << 20);
        let mut refusals = 0;
        for number in 0..SERVES_MAX / SERVES_PER_LANE {
            let (caller, name) = caller(number);
            let line = welcome(&mut world, caller, &name, 1);
            let handle = world.open(line, 9, file);
            // Writes whose data never come.
            for transfer in 0..u64::from(SERVES_PER_LANE) {
                world.send(line, write(transfer, handle, 4096), &[]);
            }
            world.settle();
            while let Some((frame, _)) = world.take_frame(line) {
                refusals += u32::from(matches!(
                    frame.message,
                    Message::End { status: Status::WouldBlock, .. }
                ));
            }
        }
        assert_eq!(world.shard.report().serves, SERVES_MAX * 2 / 3);
        assert_eq!(refusals, SERVES_MAX - SERVES_MAX * 2 / 3);
        let other = welcome(&mut world, alone(site(2)), "other", 1);
        let handle = world.open(other, 9, file);
        reads(&mut world, other, 1, handle);
    }
}
