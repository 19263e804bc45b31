//! Dials: when they let go of what, and what calibration makes of them.

use piped_core::ids::{HandleId, SessionId};
use piped_core::io::Io;
use piped_core::link::{LaneClass, ReportedStage};
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::request::{ArenaBuffer, Completion, Verb};
use piped_core::spread::LatencySpread;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Target};
use piped_report::dial::{DialCost, DialPlace};
use piped_report::shard::StageReport;
use piped_wire::Message;

use crate::asking::{HANDLE, answer, connected};
use crate::world::{
    LineId, SESSION, World, end, no_stage, read, region, reports, write, write_data,
};

const LOCAL: HandleId = HandleId(9);
const SPAN: u64 = 64 << 10;

fn set(world: &mut World, place: &str, cost: DialCost) {
    for place in DialPlace::parse(place).expect("a stage") {
        world.command(Command::SetDial { place, cost });
    }
}

fn micros(latency: u64, overhead: u64, per_byte_ps: u64, host: u64) -> DialCost {
    let ns = |micros: u64| micros * 1_000;
    DialCost {
        latency_ns: ns(latency),
        overhead_ns: ns(overhead),
        per_byte_ps,
        host_ns: ns(host),
        spread: LatencySpread::NONE,
    }
}

/// A client with a local file or region open.
fn with_local(world: &mut World, target: impl FnOnce(&mut World) -> Target) {
    world.session(SESSION, 1 << 20);
    let target = target(world);
    world.command(Command::InstallHandle { session: SESSION, handle: LOCAL, target });
}

/// The `number`th of reads that run together: each has a buffer of its own.
fn a_read(handle: HandleId, number: u64, length: u64) -> Verb {
    let buffer = ArenaBuffer { segment: 0, offset: number * SPAN, length };
    Verb::Read { handle, offset: 0, buffer, wanted: 0 }
}

/// The device of the only file.
fn disk_of(world: &World, way: &str) -> String {
    format!("disk:{}:{way}", piped_report::shard::device_name(world.device()))
}

/// When each of `count` reads that begin together ends.
fn ends_of(world: &mut World, count: u64, length: u64) -> Vec<Nanos> {
    let first = world.completions.len();
    for number in 0..count {
        world.submit(SESSION, number, a_read(LOCAL, number, length));
    }
    let end = |place| {
        move |world: &mut World| {
            world.wait_until("an end", |world| world.completions.len() > first + place);
            world.kernel.now()
        }
    };
    (0..count as usize).map(|place| end(place)(world)).collect()
}

#[test]
fn a_dial_is_a_server_behind_the_disk_with_a_latency_behind_it() {
    let ends = |cost: Option<DialCost>| {
        let mut world = World::new();
        with_local(&mut world, |world| world.file(1 << 20));
        if let Some(cost) = cost {
            let disk = disk_of(&world, "read");
            set(&mut world, &disk, cost);
        }
        ends_of(&mut world, 6, SPAN)
    };
    let arrivals = ends(None);
    assert!(arrivals[0] < arrivals[5]);
    let dialled = ends(Some(micros(300, 40, 1_000, 0)));
    let occupied = Nanos(40_000 + SPAN);
    let mut released = Nanos::ZERO;
    for (arrival, end) in arrivals.iter().zip(&dialled) {
        released = released.max(*arrival) + occupied;
        assert_eq!(*end, released + Nanos::from_micros(300), "{arrivals:?} {dialled:?}");
    }
}

#[test]
fn a_late_shard_does_not_delay_the_fragments_behind() {
    let ends = |late: bool| {
        let mut world = World::new();
        with_local(&mut world, |world| world.file(1 << 20));
        let disk = disk_of(&world, "read");
        set(&mut world, &disk, micros(0, 1_000, 0, 0));
        if late {
            for number in 0..6 {
                world.submit(SESSION, number, a_read(LOCAL, number, SPAN));
            }
            world.run_for(Nanos::from_micros(900));
            // Its thread does something else while the first two are due.
            let node = world.node;
            world.kernel.io(node).spend(Nanos::from_micros(2_300));
            let mut ends = Vec::new();
            for place in 0..6 {
                world.wait_until("an end", |world| world.completions.len() > place);
                ends.push(world.kernel.now());
            }
            return ends;
        }
        ends_of(&mut world, 6, SPAN)
    };
    let (ideal, late) = (ends(false), ends(true));
    assert!(late[0] > ideal[0] && late[1] > ideal[1], "{late:?}");
    assert_eq!(ideal[3..], late[3..], "errors add up");
}

#[test]
fn a_late_shard_does_not_make_a_latency_an_occupancy() {
    let mut world = World::fast();
    world.command(Command::SetCalibration(CalibrationMode::Live));
    with_local(&mut world, |world| world.file(1 << 20));
    let disk = disk_of(&world, "read");
    set(&mut world, &disk, micros(200, 0, 0, 0));
    for length in sizes() {
        ends_of(&mut world, 1, length);
        // Fragments that have nothing to do with each other, and a thread that is away for a while
        // again and again: so they go together, and late.
        for number in 0..16 {
            world.submit(SESSION, number, a_read(LOCAL, number, length));
            world.run_for(Nanos::from_micros(30));
            let node = world.node;
            world.kernel.io(node).spend(Nanos::from_micros(70));
        }
        world.run_for(Nanos::from_millis(2));
        world.completions.clear();
    }
    let stage = dialled(&world);
    assert_eq!(stage.samples_backlogged, 0, "none of them waited: {stage:?}");
    let occupied = stage.overhead_seconds + stage.per_byte_seconds * 65_536.0;
    assert!(stage.latency_seconds > 200e-6 && occupied < 2e-6, "{stage:?}");
}

#[test]
fn what_a_cleared_dial_holds_goes_on_at_once() {
    let mut world = World::new();
    with_local(&mut world, |world| world.file(1 << 20));
    let disk = disk_of(&world, "read");
    set(&mut world, &disk, micros(0, 500_000, 0, 0));
    for number in 0..8 {
        world.submit(SESSION, number, a_read(LOCAL, number, SPAN));
    }
    world.run_for(Nanos::from_millis(600));
    assert_eq!(world.completions.len(), 1);
    assert_eq!(world.shard.dials()[0].held, 7);
    assert!(world.shard.stages().iter().any(|stage| stage.name.starts_with("dial disk")));
    let before = world.kernel.now();
    world.command(Command::ClearDials { place: None });
    world.wait_until("the ends", |world| world.completions.len() == 8);
    assert!(world.kernel.now().since(before) < Nanos::from_millis(1));
    assert!((0..8).all(|number| world.end_of(number) == Some((Status::Ok, SPAN))));
    assert!(world.shard.dials().is_empty() && world.shard.next_release().is_none());
    assert!(world.shard.stages().iter().all(|stage| !stage.name.starts_with("dial")));
}

#[test]
fn who_cancels_waits_for_no_dial() {
    let mut world = World::new();
    with_local(&mut world, |world| world.file(1 << 20));
    let disk = disk_of(&world, "read");
    set(&mut world, &disk, micros(0, 900_000, 0, 0));
    for number in 0..3 {
        world.submit(SESSION, number, a_read(LOCAL, number, SPAN));
    }
    world.run_for(Nanos::from_millis(5));
    world.command(Command::CloseSession { session: SESSION });
    world.run_for(Nanos::from_millis(5));
    let drained = piped_engine::command::Event::SessionDrained { session: SESSION };
    assert!(world.events.contains(&drained), "{:?}", world.events);
    // Their places in the dial stay taken; what comes out of them is nothing.
    assert_eq!(world.shard.dials()[0].held, 3);
    world.run_for(Nanos::from_millis(3_000));
    assert_eq!(world.shard.dials()[0].held, 0);
}

/// A peer that reads a region of ours, and one whose region we read.
struct Peer {
    line: LineId,
    handle: u32,
    transfers: u64,
}

fn asks_us(world: &mut World) -> Peer {
    let line = world.lane("beta", LaneClass::Latency, 1);
    let segment = world.session(SESSION, 1 << 20);
    let handle = world.open(line, 1, region(1, segment, 1 << 20));
    Peer { line, handle, transfers: 0 }
}

impl Peer {
    /// Reads of that many bytes each, asked for in one burst; when the end of each was here.
    fn reads(&mut self, world: &mut World, count: u64, length: u64) -> Vec<Nanos> {
        let mut burst = Vec::new();
        for number in 0..count {
            let asked = read(self.transfers + number, self.handle, length);
            burst.extend(world.frame(self.line, asked, &[]));
        }
        world.send_bytes(self.line, &burst);
        self.transfers += count;
        let mut ends = Vec::new();
        while ends.len() < count as usize {
            match world.next(self.line) {
                Message::Data { last, .. } => ends.extend(last.map(|_| world.kernel.now())),
                Message::Report { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        ends
    }
}

#[test]
fn frames_leave_when_their_dials_let_them() {
    let ends = |dials: &[(&str, DialCost)]| {
        let mut world = World::new();
        let mut peer = asks_us(&mut world);
        for (place, cost) in dials {
            set(&mut world, place, *cost);
        }
        let start = world.kernel.now();
        let ends = peer.reads(&mut world, 4, 32 << 10);
        assert_eq!(world.shard.report().counters.failed, 0);
        ends.into_iter().map(|end| end.since(start).0).collect::<Vec<u64>>()
    };
    let plain = ends(&[]);
    let sent = ends(&[("send:beta", micros(0, 1_000, 0, 0))]);
    let other = ends(&[("send:gamma", micros(0, 1_000, 0, 0))]);
    assert_eq!(plain, other, "another peer's");
    // The wire is faster than the dial: each comes a millisecond after the one before.
    assert!(sent.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000), "{sent:?}");
    // A chain is pipelined, and the slower one decides.
    let chain = ends(&[("check", micros(100, 200, 0, 0)), ("send:beta", micros(50, 1_000, 0, 0))]);
    assert_eq!(chain[0] - sent[0], 350_000);
    assert!(chain.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000), "{chain:?}");
}

#[test]
fn a_dial_of_frames_changes_nothing_in_what_their_disk_costs() {
    let costs = |dials: &[&str]| {
        let mut world = World::new();
        let line = world.lane("beta", LaneClass::Latency, 1);
        let file = world.file(1 << 20);
        let handle = world.open(line, 1, file);
        let mut peer = Peer { line, handle, transfers: 0 };
        world.command(Command::SetCalibration(CalibrationMode::Live));
        for place in dials {
            set(&mut world, place, micros(0, 500, 0, 0));
        }
        // A fragment leaves the disk while frames of others are held, and nothing else happens.
        for _ in 0..4 {
            peer.reads(&mut world, 8, 32 << 10);
        }
        let disk = world.shard.stages().into_iter().find(|it| it.name.starts_with("disk"));
        disk.map(|it| [it.latency_seconds, it.overhead_seconds, it.per_byte_seconds])
    };
    let plain = costs(&[]);
    assert!(plain.is_some_and(|[latency, ..]| latency > 0.0), "{plain:?}");
    assert_eq!(costs(&["send:beta"]), plain);
    assert_eq!(costs(&["check"]), plain);
}

/// We read from the peer: reads that begin together, answered in one burst of one frame each.
fn reads_there(world: &mut World, line: LineId, first: u64, count: u64, length: u64) -> Vec<Nanos> {
    let done = world.completions.len();
    for number in 0..count {
        world.submit(SESSION, first + number, a_read(HANDLE, number, length));
    }
    for _ in 0..count {
        let asked = loop {
            match world.next(line) {
                asked @ Message::Read { .. } => break asked,
                Message::Report { .. } | Message::Outcome { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        answer(world, line, asked, length, &[], 5);
    }
    let mut ends = Vec::new();
    while ends.len() < count as usize {
        world.wait_until("an end", |world| world.completions.len() > done + ends.len());
        ends.push(world.kernel.now());
    }
    assert!(
        (first..first + count).all(|number| world.end_of(number) == Some((Status::Ok, length)))
    );
    ends
}

#[test]
fn data_takes_effect_when_the_dials_of_wire_and_host_have_let_go_of_it() {
    let ends = |dials: &[(&str, DialCost)]| {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        for (place, cost) in dials {
            set(&mut world, place, *cost);
        }
        let start = world.kernel.now();
        let ends = reads_there(&mut world, line, 0, 3, 16 << 10);
        assert_eq!(world.reasons(), [""; 0]);
        ends.into_iter().map(|end| end.since(start).0).collect::<Vec<u64>>()
    };
    let plain = ends(&[]);
    let net = ends(&[("net:beta", micros(400, 2_000, 0, 0))]);
    assert_eq!(net[0], plain[0] + 2_400_000);
    assert!(net.windows(2).all(|pair| pair[1] - pair[0] == 2_000_000), "{net:?}");
    let both =
        ends(&[("net:beta", micros(0, 2_000, 0, 0)), ("receive:beta", micros(100, 500, 0, 0))]);
    assert_eq!(both[0], plain[0] + 2_600_000);
    assert!(both.windows(2).all(|pair| pair[1] - pair[0] == 2_000_000), "{both:?}");
}

/// What calibration says of the only dial.
fn dialled(world: &World) -> StageReport {
    let stages = world.shard.stages();
    let mut dialled = stages.into_iter().filter(|stage| stage.name.starts_with("dial "));
    let stage = dialled.next().expect("a dial is a stage");
    // What it takes of the thread is the thread's.
    dialled.next().unwrap_or(stage)
}

/// Sizes that vary as a planner's do.
fn sizes() -> impl Iterator<Item = u64> {
    (0..200_u64).map(|round| (4 + round * 7 % 13) << 12)
}

/// What transfers find of a dial: of each size so many together, and then so many.
fn measured(place: &str, cost: DialCost, counts: &[u64]) -> StageReport {
    let mut world = World::fast();
    world.command(Command::SetCalibration(CalibrationMode::Live));
    match place {
        "disk" | "copy" => {
            let is_disk = place == "disk";
            with_local(&mut world, |world| match is_disk {
                true => world.file(1 << 20),
                false => {
                    let segment = world.session(SessionId(2), 1 << 20);
                    region(1, segment, 1 << 20)
                }
            });
            let place = if is_disk { disk_of(&world, "read") } else { place.to_owned() };
            set(&mut world, &place, cost);
            for length in sizes() {
                for &count in counts {
                    ends_of(&mut world, count, length);
                }
                world.completions.clear();
            }
        }
        "check" | "send:beta" => {
            let mut peer = asks_us(&mut world);
            set(&mut world, place, cost);
            for length in sizes() {
                for &count in counts {
                    peer.reads(&mut world, count, length);
                }
            }
        }
        _ => {
            let (line, _) = connected(&mut world, &[SESSION]);
            set(&mut world, place, cost);
            for length in sizes() {
                for &count in counts {
                    reads_there(&mut world, line, 0, count, length);
                    world.completions.clear();
                }
            }
        }
    }
    dialled(&world)
}

/// The paper's ranges: `o` to 100 us, `g` and `L` to hundreds, `G` down to some MB/s.
#[test]
fn calibration_reads_back_what_is_dialled() {
    const SIZE: f64 = 65_536.0;
    for place in ["disk", "copy", "check", "send:beta", "net:beta", "receive:beta"] {
        for value in [20, 50, 100, 250, 500] {
            let tolerance = (value as f64 * 0.02).max(2.0);
            let near = |found: f64, set: f64, what: &str| {
                let (found, all) = (found * 1e6, (found * 1e6 - set).abs());
                assert!(all <= tolerance, "{place}: {what} of {set} us reads as {found} us");
            };
            let measured = |cost| measured(place, cost, &[12, 1]);
            let stage = measured(micros(value, 0, 0, 0));
            near(stage.latency_seconds, value as f64, "L");
            near(stage.overhead_seconds + stage.per_byte_seconds * SIZE, 0.0, "g + xG beside L");
            let stage = measured(micros(0, value, 0, 0));
            near(stage.overhead_seconds, value as f64, "g");
            near(stage.per_byte_seconds * SIZE, 0.0, "xG beside g");
            let per_byte_ps = value * 1_000_000 / SIZE as u64;
            let stage = measured(micros(0, 0, per_byte_ps, 0));
            near(stage.per_byte_seconds * SIZE, per_byte_ps as f64 * SIZE * 1e-6, "xG");
            near(stage.overhead_seconds, 0.0, "g beside G");
            let stage = measured(micros(0, 0, 0, value));
            near(stage.overhead_seconds, value as f64, "o");
        }
        let stage = measured(place, micros(300, 60, 4_000, 0), &[12, 1]);
        let [found_l, found_g] = [stage.latency_seconds, stage.overhead_seconds].map(|s| s * 1e6);
        let found_xg = stage.per_byte_seconds * SIZE * 1e6;
        let near = |found: f64, set: f64| (found - set).abs() <= (0.02 * set).max(2.0);
        assert!(
            near(found_l, 300.0) && near(found_g, 60.0) && near(found_xg, 4e-3 * SIZE),
            "{stage:?}"
        );
    }
}

/// A dial whose latencies differ.
fn differing(latency: u64, overhead: u64, cv: f64, (stalls, times): (f64, f64)) -> DialCost {
    DialCost { spread: LatencySpread { cv, stalls, times }, ..micros(latency, overhead, 0, 0) }
}

/// The numbers of requests in the order in which they ended, at once or not.
fn order_of(world: &World) -> Vec<u64> {
    let number = |completion: &Completion| match completion {
        Completion::Finished { origin, .. } => Some(origin.user_data),
        _ => None,
    };
    world.completions.iter().filter_map(number).collect()
}

#[test]
fn what_differs_is_overtaken_at_a_disk_and_nowhere_else() {
    let cost = differing(1_000, 0, 1.0, (0.0, 0.0));
    let in_turn: Vec<u64> = (0..12).collect();
    let at_disk = || {
        let mut world = World::new();
        with_local(&mut world, |world| world.file(1 << 20));
        let disk = disk_of(&world, "read");
        set(&mut world, &disk, cost);
        (ends_of(&mut world, 12, SPAN), order_of(&world))
    };
    let (ends, order) = at_disk();
    assert_ne!(order, in_turn, "{ends:?}");
    assert_eq!(at_disk(), (ends, order), "the same seed");
    for place in ["net:beta", "receive:beta"] {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        set(&mut world, place, cost);
        reads_there(&mut world, line, 0, 12, 16 << 10);
        assert_eq!(order_of(&world), in_turn, "{place}");
    }
}

#[test]
fn calibration_reads_back_how_much_latencies_differ() {
    for (cv, (stalls, times)) in [(1.0, (0.0, 0.0)), (0.0, (0.01, 20.0)), (0.5, (0.02, 40.0))] {
        let stage = measured("disk", differing(300, 20, cv, (stalls, times)), &[1; 24]);
        // All in words: fragments differ by 50 %, and 2.00 % take 40 times as long.
        let words = stage.note.split(' ').filter_map(|word| word.parse::<f64>().ok());
        let said: Vec<f64> = words.collect();
        let [differ, stalled, length] = [0, 1, 2].map(|at| said.get(at).copied().unwrap_or(0.0));
        assert!((differ / 100.0 - cv).abs() < 0.15, "{cv}: {stage:?}");
        assert!((stalled / 100.0 - stalls).abs() <= stalls / 3.0, "{stalls}: {stage:?}");
        assert!((length - times).abs() <= times / 5.0, "{times}: {stage:?}");
        let usual = stage.latency_seconds / 320e-6;
        assert!((0.9..1.1).contains(&usual), "{stage:?}");
    }
}

/// Long transfers fill a long way, and no fragment is ever alone there.
#[test]
fn a_dial_of_latency_is_known_from_fragments_that_are_never_alone() {
    for place in ["send:beta", "net:beta", "receive:beta"] {
        let stage = measured(place, micros(10_000, 0, 0, 0), &[12]);
        assert!((stage.latency_seconds * 1e3 - 10.0).abs() < 0.2, "{place}: {stage:?}");
        assert!(stage.overhead_seconds < 2e-6, "{place}: {stage:?}");
    }
}

/// A write is a sample of its wire, and not of what holds it before that.
#[test]
fn the_wire_of_writes_is_not_what_a_dial_holds_them_for() {
    for (latency, samples) in [(0, 8), (10_000, 0)] {
        let mut world = World::fast();
        world.command(Command::SetCalibration(CalibrationMode::Live));
        let (line, _) = connected(&mut world, &[SESSION]);
        if latency > 0 {
            set(&mut world, "send:beta", micros(latency, 0, 0, 0));
        }
        for number in 0..8 {
            let buffer = ArenaBuffer { segment: 0, offset: 0, length: 16 << 10 };
            let (handle, offset, durable) = (HANDLE, 0, false);
            let verb = Verb::Write { handle, offset, buffer, durable, notify: None };
            world.submit(SESSION, number, verb);
            let mut asked = None;
            while asked.is_none() {
                match world.next(line) {
                    Message::Write { .. } | Message::Report { .. } => {}
                    Message::WriteData { transfer, .. } => asked = Some(transfer),
                    other => panic!("{other:?}"),
                }
            }
            world.run_for(Nanos::from_micros(100));
            world.send(line, end(asked.expect("a write"), Status::Ok, 16 << 10), &[]);
            world.wait_until("an end", |world| world.end_of(number).is_some());
        }
        let stages = world.shard.stages();
        let wire = stages.iter().find(|it| it.name == "net beta latency asked out");
        assert_eq!(wire.expect("a stage").samples_alone, samples, "{latency} us");
    }
}

/// Sizes around 64 KiB: more than one, so that what a fragment costs and what a byte does can be
/// told apart.
const SIZES: [u32; 4] = [16 << 10, 32 << 10, 64 << 10, 128 << 10];

fn tell(world: &mut World, line: LineId, stage: ReportedStage, costs: [u64; 3], sizes: &[u32]) {
    for claim in reports(stage, costs, sizes) {
        world.send(line, claim, &[]);
    }
}

/// A peer that reads a region of ours by `auto`, with costs that follow what it reports.
fn planning() -> (World, Peer) {
    let mut world = World::new();
    let peer = asks_us(&mut world);
    world.command(Command::SetCalibration(CalibrationMode::Live));
    world.command(Command::SetPlanner(PlannerMode::Auto));
    (world, peer)
}

/// The fragments that the peer gets of a read of 1 MiB.
fn fragments(world: &mut World, peer: &mut Peer) -> Vec<u32> {
    let asked = read(peer.transfers, peer.handle, 1 << 20);
    world.send(peer.line, asked, &[]);
    peer.transfers += 1;
    let mut fragments = Vec::new();
    loop {
        let (frame, _) = world.next_frame(peer.line);
        match frame.message {
            Message::Data { last, .. } => {
                fragments.push(frame.payload);
                if last.is_some() {
                    return fragments;
                }
            }
            Message::Report { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// How many fragments most reads have; some try another plan.
fn usual(world: &mut World, peer: &mut Peer) -> usize {
    let mut counts: Vec<usize> = (0..9).map(|_| fragments(world, peer).len()).collect();
    counts.sort_unstable();
    counts[4]
}

fn has_stage(world: &World, start: &str) -> bool {
    world.shard.stages().iter().any(|stage| stage.name.starts_with(start))
}

#[test]
fn what_a_peer_reports_behind_the_wire_is_in_the_path_until_it_is_gone() {
    for stage in [ReportedStage::DialNet, ReportedStage::DialReceive, ReportedStage::Check] {
        let (mut world, mut peer) = planning();
        // A wire and a stage behind it that take the same for a byte, and little for a fragment.
        tell(&mut world, peer.line, ReportedStage::Net, [20_000, 5_000, 100], &SIZES);
        world.run_for(Nanos::from_millis(1));
        tell(&mut world, peer.line, stage, [0, 5_000, 100], &SIZES);
        world.run_for(Nanos::from_millis(1));
        let fine = usual(&mut world, &mut peer);
        assert!(has_stage(&world, &format!("{} beta", stage.name())), "{stage:?}");
        // The same with much for a fragment.
        for _ in 0..32 {
            tell(&mut world, peer.line, stage, [0, 8_000_000, 100], &SIZES);
            world.run_for(Nanos::from_millis(1));
        }
        let coarse = usual(&mut world, &mut peer);
        assert!(fine >= 4 && coarse < fine / 2, "{stage:?}: {fine}, {coarse}");
        world.send(peer.line, no_stage(stage), &[]);
        world.run_for(Nanos::from_millis(1));
        assert!(!has_stage(&world, &format!("{} beta", stage.name())), "{stage:?}");
        let free = usual(&mut world, &mut peer);
        assert!(free > coarse, "{stage:?}: {free}, {coarse}");
        // With the lane all of them go.
        tell(&mut world, peer.line, stage, [0, 5_000, 100], &SIZES);
        world.run_for(Nanos::from_millis(1));
        world.hang_up(peer.line);
        world.run_for(Nanos::from_millis(1));
        assert!(!has_stage(&world, &format!("{} beta", stage.name())), "{stage:?}");
    }
}

#[test]
fn a_stage_of_which_nothing_is_heard_any_more_leaves_the_path() {
    let (mut world, peer) = planning();
    tell(&mut world, peer.line, ReportedStage::DialNet, [0, 5_000, 1_000], &SIZES);
    for heard in 0..64 {
        assert!(heard == 0 || has_stage(&world, "dial net"), "after {heard}");
        tell(&mut world, peer.line, ReportedStage::Net, [20_000, 5_000, 500], &SIZES);
        world.run_for(Nanos::from_millis(1));
    }
    assert!(!has_stage(&world, "dial net"));
}

#[test]
fn a_peer_that_lies_gets_no_absurd_plan_and_moves_nobody_elses() {
    let lies: [&[[u64; 3]]; 5] = [
        &[[0; 3]],
        &[[u64::MAX; 3]],
        &[[0; 3], [u64::MAX; 3]],
        &[[u64::MAX, 0, 0], [0, u64::MAX, 0], [0, 0, u64::MAX]],
        &[[1 << 62, 1, 1], [1, 1 << 62, 1 << 30], [7, 7, 7]],
    ];
    for (lie, size) in lies.iter().flat_map(|lie| [1, 4096, u32::MAX].map(|size| (lie, size))) {
        let (mut world, mut peer) = planning();
        let other = world.lane("gamma", LaneClass::Latency, 1);
        let segment = world.session(SessionId(7), 1 << 20);
        let handle = world.open(other, 1, region(7, segment, 1 << 20));
        let mut other = Peer { line: other, handle, transfers: 0 };
        fragments(&mut world, &mut other);
        let of_other = |world: &World| {
            let mut stages = world.shard.stages();
            stages.retain(|stage| stage.name.contains("gamma"));
            stages
        };
        let before = of_other(&world);
        for round in 0..40 {
            for stage in ReportedStage::ALL {
                tell(&mut world, peer.line, stage, lie[round % lie.len()], &[size]);
            }
            world.run_for(Nanos::from_millis(1));
            let got = fragments(&mut world, &mut peer);
            assert_eq!(got.iter().map(|&bytes| u64::from(bytes)).sum::<u64>(), 1 << 20);
            let (last, inner) = got.split_last().expect("some");
            let fits = |bytes: &u32| (4096..=1 << 20).contains(bytes);
            assert!(inner.iter().all(fits) && *last <= 1 << 20, "{lie:?} of {size}: {got:?}");
        }
        let sane = |stage: &StageReport| {
            [stage.latency_seconds, stage.overhead_seconds, stage.per_byte_seconds]
                .iter()
                .all(|cost| (0.0..=11.0).contains(cost))
        };
        assert!(world.shard.stages().iter().all(sane), "{:?}", world.shard.stages());
        assert_eq!(of_other(&world), before, "{lie:?}");
        // It says the truth from now on, and is believed.
        for round in 0..400 {
            let size = [4096, 64 << 10, 1 << 20][round % 3];
            for stage in ReportedStage::ALL {
                tell(&mut world, peer.line, stage, [20_000, 5_000, 500], &[size]);
            }
            world.run_for(Nanos::from_millis(1));
        }
        let net =
            world.shard.stages().into_iter().find(|it| it.name == "net beta latency served out");
        let net = net.expect("it is there");
        let occupied = net.overhead_seconds + net.per_byte_seconds * 65_536.0;
        assert!((30e-6..50e-6).contains(&occupied), "{lie:?} of {size}: {net:?}");
    }
}

#[test]
fn who_receives_reports_its_dials_and_that_they_are_gone() {
    let mut world = World::fast();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.command(Command::SetCalibration(CalibrationMode::Live));
    set(&mut world, "net:beta", micros(100, 50, 0, 0));
    set(&mut world, "receive:beta", micros(0, 20, 2_000, 0));
    let mut told = Vec::new();
    for round in 0..60 {
        for number in 0..4 {
            world.submit(SESSION, number, a_read(HANDLE, number, 32 << 10));
        }
        let mut asked = 0;
        while asked < 4 {
            match world.next(line) {
                message @ Message::Read { .. } => {
                    answer(&mut world, line, message, 32 << 10, &[], 5);
                    asked += 1;
                }
                Message::Report { stage, backlogged, cost_ps, weight, .. } => {
                    told.push((stage, backlogged, cost_ps / 1_000, weight));
                }
                Message::Outcome { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        world.wait_until("the ends", |world| world.completions.len() == 4);
        world.completions.clear();
        if round == 50 {
            let last = |wanted| {
                let busy = told.iter().rfind(|(stage, busy, ..)| *stage == wanted && *busy);
                busy.expect("reported").2
            };
            let occupied = last(ReportedStage::DialNet);
            assert!((45_000..=55_000).contains(&occupied), "{told:?}");
            let occupied = last(ReportedStage::DialReceive);
            assert!((80_000..=92_000).contains(&occupied), "{told:?}");
            told.clear();
            world.command(Command::ClearDials { place: None });
        }
    }
    for stage in [ReportedStage::DialNet, ReportedStage::DialReceive] {
        let of: Vec<_> = told.iter().filter(|(other, ..)| *other == stage).collect();
        assert_eq!(of, [&(stage, false, 0, 0)], "once, and no more");
    }
}

#[test]
fn a_peer_that_writes_hears_of_the_disk_below_its_handle() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    world.command(Command::SetCalibration(CalibrationMode::Live));
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    let disk = disk_of(&world, "write");
    set(&mut world, &disk, micros(0, 700, 0, 0));
    let mut told = std::collections::BTreeMap::new();
    for transfer in 0..40 {
        if transfer == 20 {
            world.command(Command::ClearDials { place: None });
        }
        world.send(line, write(transfer, handle, 256 << 10), &[]);
        for piece in 0..4 {
            world.send(line, write_data(transfer, piece << 16), &[1; 64 << 10]);
        }
        loop {
            match world.next(line) {
                Message::Report { stage, handle: of, backlogged, cost_ps, weight, .. } => {
                    assert!(
                        of == handle
                            || stage == ReportedStage::Net
                            || stage == ReportedStage::Check
                    );
                    if backlogged || weight == 0 {
                        told.insert(stage.name(), cost_ps / 1_000);
                    }
                }
                Message::End { status: Status::Ok, .. } => break,
                Message::Credit { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if transfer == 19 {
            let dial = told["dial disk write"];
            assert!((600_000..=800_000).contains(&dial), "{told:?}");
            assert!((20_000..=60_000).contains(&told["disk write"]), "{told:?}");
        }
    }
    assert_eq!(told["dial disk write"], 0, "it is gone: {told:?}");
}

#[test]
fn a_peer_whose_frames_come_one_by_one_hears_of_the_dials_they_pass() {
    let mut world = World::new();
    world.command(Command::SetCalibration(CalibrationMode::Live));
    let peer = asks_us(&mut world);
    for (place, overhead) in [("net:beta", 200), ("receive:beta", 300)] {
        set(&mut world, place, micros(0, overhead, 0, 0));
    }
    let mut told = std::collections::BTreeSet::new();
    for transfer in 1..=12 {
        let bytes = 4096 * (1 + transfer % 3);
        world.send(peer.line, write(transfer, peer.handle, bytes), &[]);
        world.send(peer.line, write_data(transfer, 0), &vec![1; bytes as usize]);
        loop {
            match world.next(peer.line) {
                Message::Report { stage, weight, .. } if weight > 0 => {
                    told.insert(stage.name());
                }
                Message::End { status: Status::Ok, .. } => break,
                Message::Report { .. } | Message::Credit { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(told.contains("dial net") && told.contains("dial receive"), "{told:?}");
}

/// A peer writes to a file or a region of ours; when the write ended.
fn written(dials: &[(&str, DialCost)], to_file: bool) -> u64 {
    let mut world = World::new();
    let mut peer = asks_us(&mut world);
    if to_file {
        let file = world.file(1 << 20);
        peer.handle = world.open(peer.line, 2, file);
    }
    for (place, cost) in dials {
        set(&mut world, place, *cost);
    }
    let start = world.kernel.now();
    world.send(peer.line, write(1, peer.handle, 128 << 10), &[]);
    world.send(peer.line, write_data(1, 0), &[1; 64 << 10]);
    world.send(peer.line, write_data(1, 64 << 10), &[2; 64 << 10]);
    assert_eq!(world.read_end(peer.line, 1), Status::Ok);
    world.kernel.now().since(start).0
}

#[test]
fn what_a_peer_writes_goes_on_when_the_dials_let_it() {
    for to_file in [true, false] {
        let plain = written(&[], to_file);
        let net = written(&[("net:beta", micros(0, 2_000, 0, 0))], to_file);
        // The second piece leaves the dial 4 ms after the first came, and the rest is as before.
        assert!((3_900_000..=4_000_000).contains(&(net - plain)), "{plain} {net}");
        let both = [("net:beta", micros(300, 2_000, 0, 0)), ("receive:beta", micros(0, 500, 0, 0))];
        assert_eq!(written(&both, to_file) - net, 800_000);
    }
}

#[test]
fn a_peer_that_vanishes_leaves_nothing_in_a_dial_behind() {
    let mut world = World::new();
    let mut peer = asks_us(&mut world);
    let file = world.file(1 << 20);
    let handle = world.open(peer.line, 2, file);
    let before = world.shard.report().staging_used_bytes;
    set(&mut world, "net:beta", micros(0, 1_000_000, 0, 0));
    set(&mut world, "send:beta", micros(0, 1_000_000, 0, 0));
    for (transfer, handle) in [(100, handle), (101, peer.handle)] {
        world.send(peer.line, write(transfer, handle, 128 << 10), &[]);
        world.send(peer.line, write_data(transfer, 0), &[1; 64 << 10]);
        world.send(peer.line, write_data(transfer, 64 << 10), &[1; 64 << 10]);
    }
    world.send(peer.line, read(102, peer.handle, 256 << 10), &[]);
    peer.transfers += 1;
    world.run_for(Nanos::from_millis(10));
    assert_eq!(world.shard.report().serves, 3);
    world.hang_up(peer.line);
    world.run_for(Nanos::from_millis(10));
    let report = world.shard.report();
    assert_eq!((report.serves, world.shard.dials().len()), (0, 2));
    assert!(report.staging_used_bytes < before, "its scratch, too, is given back");
    world.run_for(Nanos::from_millis(10_000));
    assert!(world.shard.dials().iter().all(|dial| dial.held == 0), "{:?}", world.shard.dials());
}
