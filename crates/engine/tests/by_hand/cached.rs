//! Files of which the page cache has all: reads go there, as long as nobody slows the disk.

use piped_core::ids::HandleId;
use piped_core::link::LaneClass;
use piped_core::modes::CalibrationMode;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_engine::command::{Command, Target};
use piped_report::dial::{DialCost, DialPlace};
use piped_sim::InodeId;

use crate::world::{SESSION, Step, World, read};

const HANDLE: HandleId = HandleId(9);
const BYTES: usize = 64 << 10;

/// A client with a file that is open both ways, and the file.
fn with_file(cached: bool) -> (World, Target) {
    let (world, target, _) = with_file_and_inode(cached);
    (world, target)
}

fn with_file_and_inode(cached: bool) -> (World, Target, InodeId) {
    let mut world = World::new();
    world.command(Command::SetCalibration(CalibrationMode::Live));
    world.session(SESSION, 1 << 20);
    let (target, inode) = world.direct_file(BYTES);
    world.kernel.set_cached(inode, cached);
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target });
    (world, target, inode)
}

/// One read; how often the device's own stage, and that of the page cache, were passed so far.
fn read_once(world: &mut World, offset: u64, length: u64) -> [u64; 2] {
    let number = world.completions.len() as u64;
    let buffer = ArenaBuffer { segment: 0, offset: 0, length };
    world.submit(SESSION, number, Verb::Read { handle: HANDLE, offset, buffer, wanted: 0 });
    world.wait_until("its end", |world| world.end_of(number).is_some());
    assert_eq!(world.end_of(number), Some((Status::Ok, length)));
    passed(world)
}

fn passed(world: &World) -> [u64; 2] {
    let stages = world.shard.stages();
    ["disk", "page cache"].map(|kind| {
        let of_kind = stages.iter().filter(|stage| stage.name.starts_with(kind));
        of_kind.map(|stage| stage.samples_alone + stage.samples_backlogged).sum()
    })
}

#[test]
fn reads_go_to_the_page_cache_if_it_has_the_file() {
    let (mut world, _) = with_file(false);
    assert_eq!(read_once(&mut world, 0, 4096), [1, 0]);
    let (mut world, _) = with_file(true);
    assert_eq!(read_once(&mut world, 0, 4096), [0, 1]);
    // There is nothing to align, so nothing is bounced.
    assert_eq!(read_once(&mut world, 5, 5000), [0, 2]);
    assert_eq!(world.shard.report().counters.bounced_unaligned, 0);
}

#[test]
fn writes_go_past_it() {
    let (mut world, _) = with_file(true);
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: 4096 };
    let verb = Verb::Write { handle: HANDLE, offset: 0, buffer, durable: false, notify: None };
    world.submit(SESSION, 77, verb);
    world.wait_until("its end", |world| world.end_of(77).is_some());
    assert_eq!(passed(&world), [1, 0]);
}

#[test]
fn a_disk_that_a_dial_slows_is_read_itself() {
    let (mut world, _) = with_file(true);
    assert_eq!(read_once(&mut world, 0, 4096), [0, 1]);
    let disk = format!("disk:{}:read", piped_report::shard::device_name(world.device()));
    for place in DialPlace::parse(&disk).expect("a stage") {
        let cost = DialCost { latency_ns: 1_000, ..DialCost::default() };
        world.command(Command::SetDial { place, cost });
    }
    assert_eq!(read_once(&mut world, 0, 4096)[1], 1, "not from the cache");
}

#[test]
fn reads_of_peers_go_there_too_with_a_plan_of_their_own() {
    let (mut world, target) = with_file(true);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, target);
    for transfer in 1..=3 {
        world.send(line, read(transfer, handle, BYTES as u64), &[]);
        assert_eq!(world.read_end(line, transfer), Status::Ok);
    }
    let [disk, cache] = passed(&world);
    assert_eq!(disk, 0);
    assert!(cache >= 3, "{cache}");
    assert_eq!(world.reasons(), [""; 0]);
}

/// A look is a system call: most reads of a file that the cache does not have do without, and one
/// that comes into the cache is found soon.
#[test]
fn a_file_that_is_not_cached_is_seldom_looked_for() {
    let (mut world, _, inode) = with_file_and_inode(false);
    for _ in 0..193 {
        let _ = read_once(&mut world, 0, 4096);
    }
    let looks = world.steps.iter().filter(|step| **step == Step::Look).count();
    assert_eq!(looks, 16 + 3, "each of the first sixteen reads, then one in 64");
    world.kernel.set_cached(inode, true);
    let [_, before] = passed(&world);
    for _ in 0..128 {
        let _ = read_once(&mut world, 0, 4096);
    }
    let [_, after] = passed(&world);
    assert!(after - before >= 64, "found within 64 reads: {}", after - before);
}
