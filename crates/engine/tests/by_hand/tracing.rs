//! What is recorded of transfers' fragments, and what `explain` says of their stages.

use piped_core::limits::{TRACE_TRANSFERS_MAX, TRACE_VISITS_MAX};
use piped_core::link::LaneClass;
use piped_core::modes::PlannerMode;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Command;
use piped_report::dial::{DialCost, DialPlace};
use piped_report::trace::{TransferTrace, Visit};

use crate::asking::{self, answer, connected};
use crate::world::{SESSION, World, read, write, write_data};

const KIB: u64 = 1024;

fn arm(world: &mut World, transfers: u32) {
    world.command(Command::Trace { recording: 1, transfers });
}

/// What was recorded; all of it has ended, or the recording was stopped.
fn recorded(world: &World) -> Vec<TransferTrace> {
    assert!(world.shard.trace_state().over);
    let recording = world.shard.recording().expect("it is over");
    recording.report(recording.began().unwrap_or_default())
}

/// The visits of a stage whose name begins so.
fn visits<'a>(trace: &'a TransferTrace, name: &str, all: &'a [Visit]) -> Vec<&'a Visit> {
    let stage = trace.stages.iter().position(|stage| stage.starts_with(name));
    let stage = stage.unwrap_or_else(|| panic!("no stage {name}: {:?}", trace.stages)) as u32;
    all.iter().filter(|visit| visit.stage == stage).collect()
}

/// Offsets and sizes, which must follow each other.
fn pieces(visits: &[&Visit]) -> Vec<u64> {
    let mut end = 0;
    for visit in visits {
        assert_eq!(visit.offset, end, "{visits:?}");
        end += visit.bytes;
        assert!(visit.departed_ns.is_some_and(|left| left >= visit.arrived_ns), "{visit:?}");
    }
    visits.iter().map(|visit| visit.bytes / KIB).collect()
}

#[test]
fn fragments_of_a_served_read_are_seen_at_the_disk_and_on_the_lane() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(200 << 10);
    let handle = world.open(line, 1, file);
    world.send(line, read(1, handle, 64 << 10), &[]);
    assert_eq!(world.read_end(line, 1), Status::Ok);
    arm(&mut world, 1);
    assert!(!world.shard.trace_state().over && world.shard.recording().is_none());
    world.send(line, read(2, handle, 200 << 10), &[]);
    assert_eq!(world.read_end(line, 2), Status::Ok);
    world.send(line, read(3, handle, 64 << 10), &[]);
    assert_eq!(world.read_end(line, 3), Status::Ok);
    world.settle();
    let all = recorded(&world);
    let [trace] = &all[..] else { panic!("one was asked for: {all:?}") };
    assert_eq!((trace.bytes, trace.served, trace.status), (200 << 10, true, Some(Status::Ok)));
    let disk = visits(trace, "disk", &trace.measured);
    let sizes = [64, 64, 64, 8];
    assert_eq!(pieces(&disk), sizes);
    assert_eq!(pieces(&visits(trace, "check", &trace.measured)), sizes);
    let net = visits(trace, "net", &trace.measured);
    assert_eq!(pieces(&net), sizes);
    // COST: 20 us, 2 us, and 0.5 ns for each byte, one after the other.
    let left: Vec<u64> = disk.iter().filter_map(|visit| visit.departed_ns).collect();
    let took = |bytes: u64| 2_000 + bytes * KIB / 2;
    assert_eq!(left[0] - disk[0].arrived_ns, 20_000 + took(64));
    assert_eq!(
        [left[1] - left[0], left[2] - left[1], left[3] - left[2]],
        [took(64), took(64), took(8)]
    );
    for (disk, net) in disk.iter().zip(&net) {
        assert!(disk.departed_ns.is_some_and(|left| left <= net.arrived_ns), "{disk:?} {net:?}");
    }
    assert_eq!(trace.levels[0].sizes, sizes.map(|size| size * KIB));
    assert_eq!(trace.stages.iter().filter(|name| name.contains("check")).count(), 2);
    for stage in ["disk", "check", "net", "check (peer)"] {
        assert_eq!(pieces(&visits(trace, stage, &trace.predicted)), sizes, "{stage}");
    }
    let end = trace.predicted.iter().filter_map(|visit| visit.departed_ns).max();
    let predicted = end.expect("they leave") as f64 * 1e-9;
    assert!((predicted - trace.predicted_seconds).abs() < 2e-9, "{predicted} {trace:?}");

    // The same in sums, for which nobody has to ask before.
    let told = world.shard.explain(Some(trace.id)).expect("remembered");
    let of = |name: &str| told.passed.iter().find(|stage| stage.name.starts_with(name));
    let measured = of("disk").and_then(|stage| stage.measured).expect("it was passed");
    assert_eq!(measured.fragments, 4);
    let (first, last) = (disk[0].arrived_ns as f64, left[3] as f64);
    assert!((measured.busy_seconds - (last - first) * 1e-9).abs() < 1e-12, "{measured:?}");
    assert!((measured.last_seconds - last * 1e-9).abs() < 1e-12, "{measured:?}");
    let promised = of("check (peer)").expect("it is the path's");
    assert!(promised.measured.is_none() && promised.predicted.is_some(), "{promised:?}");
}

#[test]
fn fragments_of_a_peers_write_are_seen_as_they_land_and_at_the_disk() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    arm(&mut world, 1);
    world.send(line, write(1, handle, 96 << 10), &[]);
    for offset in [0, 32 << 10, 64 << 10] {
        world.send(line, write_data(1, offset), &[1; 32 << 10]);
    }
    world.wait_until("it is over", |world| world.shard.trace_state().over);
    let all = recorded(&world);
    assert_eq!(all[0].operation, "write");
    let net = visits(&all[0], "net", &all[0].measured);
    let disk = visits(&all[0], "disk", &all[0].measured);
    assert_eq!(pieces(&net), [32; 3]);
    assert_eq!(pieces(&disk).iter().sum::<u64>(), 96);
    // Each counts from the one before, the first from the request.
    assert_eq!(net[0].arrived_ns, 0);
    assert_eq!(Some(net[1].arrived_ns), net[0].departed_ns);
    assert!(net[0].departed_ns.is_some_and(|landed| landed <= disk[0].arrived_ns));
}

#[test]
fn who_asks_sees_what_arrives_and_what_the_peer_says_that_it_took() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    arm(&mut world, 1);
    world.submit(SESSION, 1, asking::read(0, 64 << 10));
    let asked = world.next(line);
    answer(&mut world, line, asked, 16 << 10, &[], 5);
    world.wait_until("it has ended", |world| world.end_of(1).is_some());
    let all = recorded(&world);
    assert!(!all[0].served && all[0].predicted.is_empty() && all[0].levels.is_empty());
    let peer = visits(&all[0], "peer", &all[0].measured);
    let net = visits(&all[0], "net", &all[0].measured);
    assert_eq!((pieces(&peer), pieces(&net)), (vec![16; 4], vec![16; 4]));
    // The peer said one microsecond of each.
    assert!(peer.iter().all(|visit| visit.departed_ns == Some(visit.arrived_ns + 1_000)));
    let last = net[3].departed_ns.expect("it came");
    assert_eq!(all[0].measured_seconds, Some(Nanos(last).seconds()));
    assert!(all[0].notes.iter().any(|note| note.contains("the trace of its daemon")));
}

#[test]
fn a_recording_that_is_stopped_has_what_there_was() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    arm(&mut world, 3);
    world.block_device(Nanos::from_millis(2_000));
    world.send(line, read(1, handle, 200 << 10), &[]);
    world.settle();
    let state = world.shard.trace_state();
    assert_eq!((state.wanted, state.begun, state.ended, state.over), (3, 1, 0, false));
    arm(&mut world, 0);
    let all = recorded(&world);
    assert_eq!((all.len(), all[0].status, all[0].measured_seconds), (1, None, None));
    assert!(all[0].measured.iter().all(|visit| visit.departed_ns.is_none()), "{all:?}");
    assert!(all[0].notes.iter().any(|note| note.contains("stopped")), "{:?}", all[0].notes);
    // What ends later changes nothing.
    assert_eq!(world.read_end(line, 1), Status::Ok);
    assert_eq!(recorded(&world), all);
}

#[test]
fn a_lost_lane_leaves_fragments_that_never_left() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Bulk, 1);
    let latency = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(4 << 20);
    let handle = world.open(latency, 1, file);
    arm(&mut world, 1);
    world.stop_reading(line);
    world.send(line, read(1, handle, 4 << 20), &[]);
    world.settle();
    world.hang_up(line);
    world.settle();
    let all = recorded(&world);
    assert_eq!(all[0].status, Some(Status::Closed));
    let disk = visits(&all[0], "disk", &all[0].measured);
    assert!(disk.len() > 4 && disk.len() < 64, "it read on only as far as there was room");
}

#[test]
fn a_recording_is_bounded_whatever_is_asked_of_it() {
    let mut world = World::new();
    arm(&mut world, u32::MAX);
    assert_eq!(world.shard.trace_state().wanted, TRACE_TRANSFERS_MAX);
    world.command(Command::SetPlanner(PlannerMode::Fixed(16 << 10)));
    let line = world.lane("beta", LaneClass::Bulk, 1);
    let latency = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(64 << 20);
    let handle = world.open(latency, 1, file);
    world.send(line, read(1, handle, 64 << 20), &[]);
    while world.read_end(line, 1) != Status::Ok {}
    arm(&mut world, 0);
    let all = recorded(&world);
    let room = (TRACE_VISITS_MAX / TRACE_TRANSFERS_MAX) as usize;
    // 4096 fragments in three stages here.
    assert_eq!(all[0].measured.len(), room);
    assert!(all[0].lost as usize >= 3 * 4096 - room - 8, "{}", all[0].lost);
    assert!(all[0].predicted.is_empty(), "and no more are promised");
}

#[test]
fn dials_are_stages_of_their_own_and_have_the_sizes_of_what_they_slow() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(200 << 10);
    let handle = world.open(line, 1, file);
    let cost = DialCost { overhead_ns: 1_000_000, ..DialCost::default() };
    let disk = format!("disk:{}:read", piped_report::shard::device_name(world.device()));
    for place in [&disk, "send:beta"] {
        let place = DialPlace::parse(place).expect("a stage").remove(0);
        world.command(Command::SetDial { place, cost });
    }
    arm(&mut world, 1);
    world.send(line, read(1, handle, 200 << 10), &[]);
    assert_eq!(world.read_end(line, 1), Status::Ok);
    world.settle();
    let all = recorded(&world);
    let trace = &all[0];
    let sizes = [64, 64, 64, 8];
    for dial in ["dial disk", "dial send"] {
        let visits = visits(trace, dial, &trace.measured);
        assert_eq!(pieces(&visits), sizes, "{dial}");
        let took = |pair: &[&Visit]| pair[1].departed_ns.unwrap() - pair[0].departed_ns.unwrap();
        assert!(visits.windows(2).all(|pair| took(pair) == 1_000_000), "{dial}: {visits:?}");
    }
    assert_eq!(
        trace.levels.iter().map(|it| it.level.as_str()).collect::<Vec<_>>(),
        ["source", "lane"]
    );
    assert_eq!(pieces(&visits(trace, "dial disk", &trace.predicted)), sizes);
}
