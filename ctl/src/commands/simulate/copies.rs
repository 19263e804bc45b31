//! Tests of plans for copies between nodes: what they know of the path, and which plan gets the
//! outcome.

use piped_core::ids::PeerId;
use piped_core::modes::PlannerMode;
use piped_core::request::{Class, Verb};
use piped_core::units::Nanos;
use piped_planner::draft::{DraftAsk, Forecast, Way};
use piped_report::shard::Explanation;

use super::scenario::{self, Dial};
use super::world::World;

const MIB: u64 = 1 << 20;
const FIXED: PlannerMode = PlannerMode::Fixed(128 << 10);

const DISK: &str = "g = '50us'\nG = '200MB/s'";

/// Two nodes with a disk each, and a link of 100 MB/s.
fn two_nodes(bytes: u64, [here, there]: [&str; 2]) -> (World, usize) {
    let text = format!(
        "[nodes.home.disks.data]\nL = '0.1ms'\nwindow = 32\n{here}\n\
         [nodes.server.disks.data]\nL = '0.1ms'\nwindow = 32\n{there}\n\
         [[links]]\nnodes = ['server', 'home']\nL = '30us'\ng = '3us'\nG = '100MB/s'\n\
         [[transfers]]\nnode = 'home'\nread = 'server'\nbytes = {bytes}\n"
    );
    let world = World::new(&scenario::parse(&text).expect("a scenario")).expect("nodes");
    let home = world.find("home").expect("it is there");
    (world, home)
}

fn dial(world: &mut World, node: &str, stage: &str, cost: &str) {
    let text = format!("node = '{node}'\nstage = '{stage}'\n{cost}\n");
    let dial: Dial = toml_edit::de::from_str(&text).expect("a dial");
    world.dial(&dial).expect("it is set");
}

fn copy(world: &mut World, node: usize, [from, to]: [&str; 2], length: u64) -> Verb {
    let [from, to] = [from, to].map(|what| world.open(node, what).expect("opened"));
    Verb::Copy { from, from_offset: 0, to, to_offset: 0, length }
}

/// The last of this many, as the asking node explains it.
fn last_of(world: &mut World, node: usize, count: u32, verb: Verb) -> Explanation {
    for _ in 0..count {
        world.run(node, &[verb], Class::Bulk).expect("it ends");
    }
    world.explain(node)
}

/// A typical transfer after costs are learnt: of some, which also try other plans, the one with a
/// prediction as good as most.
fn usual(world: &mut World, node: usize, verb: Verb) -> Explanation {
    last_of(world, node, 120, verb);
    let mut told: Vec<_> = (0..21).map(|_| last_of(world, node, 1, verb)).collect();
    let ratio = |told: &Explanation| told.predicted_seconds / told.measured_seconds;
    told.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    told.swap_remove(10)
}

fn peer_of(world: &World, node: usize, peer: &str) -> PeerId {
    world.peer(node, world.find(peer).expect("it is there")).expect("a peer")
}

/// Forecast for transfers to a peer from now on, with the outcomes of each plan, which the plan in
/// use was made without.
fn said(world: &World, node: usize, peer: &str, disk: Option<&str>, bytes: u64) -> Forecast {
    let peer = peer_of(world, node, peer);
    let device = disk.map(|disk| world.device(node, disk));
    world.draft(node, &DraftAsk { way: Way::ToPeer { peer, device }, bytes, class: Class::Bulk })
}

/// Time measured for transfers by the plan.
fn measured(said: &Forecast) -> Option<f64> {
    said.candidates.iter().find_map(|candidate| candidate.measured_seconds)
}

fn names(told: &Explanation) -> Vec<&str> {
    told.stages.iter().map(|stage| stage.name.as_str()).collect()
}

fn near(what: &str, found: f64, expected: f64, off: f64) {
    assert!((found / expected - 1.0).abs() < off, "{what}: {found} for {expected}");
}

#[test]
fn what_a_copy_takes_is_held_against_its_own_plan() {
    let slow = "g = '1ms'\nG = '50MB/s'";
    let (mut world, home) = two_nodes(MIB, [slow, DISK]);
    // The same number of fragments on both paths.
    world.plan(FIXED, None);
    let to = world.open(home, "server").expect("opened");
    let write = Verb::Write {
        handle: to,
        offset: 0,
        buffer: World::buffer(0, MIB),
        durable: false,
        notify: None,
    };
    let alone = last_of(&mut world, home, 40, write).measured_seconds;
    let copy = copy(&mut world, home, ["home:data", "server"], MIB);
    let copied = last_of(&mut world, home, 40, copy).measured_seconds;
    assert!(copied > 1.4 * alone, "a disk comes first: {copied} {alone}");
    for (disk, taken) in [(None, alone), (Some("data"), copied)] {
        let said = said(&world, home, "server", disk, MIB);
        near("measured", measured(&said).expect("it was heard of"), taken, 0.02);
        near("promised", said.predicted_seconds, taken, 0.02);
    }
}

#[test]
fn chunks_of_a_copy_that_wait_for_each_other_say_nothing_of_a_plan() {
    let (mut world, home) = two_nodes(8 * MIB, [DISK, DISK]);
    world.plan(FIXED, None);
    for (length, is_heard) in [(8 * MIB, false), (MIB, true)] {
        let copy = copy(&mut world, home, ["home:data", "server"], length);
        last_of(&mut world, home, 20, copy);
        let said = said(&world, home, "server", Some("data"), MIB);
        assert_eq!(measured(&said).is_some(), is_heard, "of {length} bytes");
    }
}

#[test]
fn what_is_copied_from_peer_to_peer_says_nothing_of_the_way_out() {
    let text = "[nodes.a]\n[nodes.b]\n[nodes.c]\n[[links]]\nnodes = ['a', 'b']\nG = '20MB/s'\n\
        [[links]]\nnodes = ['b', 'c']\nG = '100MB/s'\n[[transfers]]\nnode = 'b'\nread = 'a'\nbytes \
        = '1MiB'\n";
    let mut world = World::new(&scenario::parse(text).expect("a scenario")).expect("nodes");
    let node = world.find("b").expect("it is there");
    world.plan(FIXED, None);
    let to = world.open(node, "c").expect("opened");
    let write = Verb::Write {
        handle: to,
        offset: 0,
        buffer: World::buffer(0, MIB),
        durable: false,
        notify: None,
    };
    let alone = last_of(&mut world, node, 40, write).measured_seconds;
    let copy = copy(&mut world, node, ["a", "c"], MIB);
    last_of(&mut world, node, 40, copy);
    let said = said(&world, node, "c", None, MIB);
    near("measured", measured(&said).expect("known"), alone, 0.02);
    near("promised", said.predicted_seconds, alone, 0.02);
}

#[test]
fn a_copy_to_a_peers_file_is_planned_with_the_disk_there() {
    let (mut world, home) = two_nodes(MIB, [DISK, "g = '3ms'\nG = '400MB/s'"]);
    let copy = copy(&mut world, home, ["home:data", "server:data"], MIB);
    let told = usual(&mut world, home, copy);
    let names = names(&told);
    let at = |what: &str| names.iter().position(|name| name.contains(what));
    assert!(at("net server") < at("disk write"), "{names:?}");
    let levels: Vec<&str> = told.levels.iter().map(|level| level.level.as_str()).collect();
    assert_eq!(levels, ["source", "lane", "sink"]);
    // Each of its fragments costs as much as a fourth of all bytes on the link.
    assert!(told.levels[2].count < told.levels[1].count, "{:?}", told.levels);
    near("promised", told.predicted_seconds, told.measured_seconds, 0.05);
}

#[test]
fn a_copy_that_takes_long_follows_what_changes_meanwhile() {
    let (mut world, home) = two_nodes(128 * MIB, [DISK, DISK]);
    let verb = copy(&mut world, home, ["home:data", "server"], MIB);
    last_of(&mut world, home, 40, verb);
    let verb = copy(&mut world, home, ["home:data", "server"], 128 * MIB);
    world.record();
    let copying = world.begin_any(home, verb);
    let soon = world.now() + Nanos::from_millis(200);
    assert_eq!(world.await_one(home, &[copying], soon), None);
    dial(&mut world, "home", "disk:data:read", "g = '4ms'");
    assert_eq!(world.await_one(home, &[copying], Nanos::MAX), Some(0));
    let traces = world.recorded();
    let (_, trace) = traces.iter().find(|(node, _)| node == "home").expect("it was recorded");
    let is_read = |stage: u32| trace.stages[stage as usize].starts_with("disk");
    let read: Vec<u64> = (trace.measured.iter())
        .filter_map(|visit| is_read(visit.stage).then_some(visit.bytes))
        .collect();
    let mean = |bytes: &[u64]| bytes.iter().sum::<u64>() / bytes.len() as u64;
    let (first, last) = (mean(&read[..32]), mean(&read[read.len() - 8..]));
    assert!(last >= 2 * first, "fragments of {first} and then of {last} bytes");
    let told = world.explain(home);
    assert!(names(&told).iter().any(|name| name.starts_with("dial disk")), "{:?}", names(&told));
}

#[test]
fn a_copy_from_a_peer_is_planned_with_the_dials_of_what_comes() {
    let (mut world, home) = two_nodes(MIB, [DISK, DISK]);
    dial(&mut world, "home", "net:server", "G = '20MB/s'");
    dial(&mut world, "home", "receive:server", "g = '100us'");
    let copy = copy(&mut world, home, ["server", "home:data"], MIB);
    let told = usual(&mut world, home, copy);
    let dials = ["dial net:server", "dial receive:server"];
    let names = names(&told);
    let at = |what: &str| names.iter().position(|name| *name == what);
    assert!(at(dials[0]).is_some() && at(dials[0]) < at(dials[1]), "{names:?}");
    near("promised", told.predicted_seconds, told.measured_seconds, 0.15);
    let server = peer_of(&world, home, "server");
    let way = Way::Landing { peer: server, device: Some(world.device(home, "data")) };
    let said = world.draft(home, &DraftAsk { way, bytes: MIB, class: Class::Bulk });
    let said: Vec<&str> = said.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(said, names);
}

#[test]
fn the_longest_path_is_known_to_its_end() {
    let (mut world, home) = two_nodes(MIB, [DISK, DISK]);
    world.plan(FIXED, None);
    let cost = "g = '10us'\no = '1us'";
    for stage in ["disk:data:write", "net:home", "receive:home"] {
        dial(&mut world, "server", stage, cost);
    }
    // The other node reports its progress in bursts.
    let to = world.open(home, "server").expect("opened");
    let write = Verb::Write {
        handle: to,
        offset: 0,
        buffer: World::buffer(0, MIB),
        durable: false,
        notify: None,
    };
    last_of(&mut world, home, 10, write);
    for stage in ["disk:data:read", "check", "send:server"] {
        dial(&mut world, "home", stage, cost);
    }
    let copy = copy(&mut world, home, ["home:data", "server:data"], MIB);
    let told = last_of(&mut world, home, 40, copy);
    let names = names(&told);
    assert_eq!(names.len(), 14, "{names:?}");
    assert!(names[13].starts_with("dial disk write"), "{names:?}");
}

#[test]
fn a_copy_between_peers_tells_of_every_stage_it_passed() {
    let text =
        "[nodes.a]\n[nodes.b]\n[nodes.c]\n[[transfers]]\nnode = 'b'\nread = 'a'\nbytes = '1MiB'\n";
    let mut world = World::new(&scenario::parse(text).expect("a scenario")).expect("nodes");
    let node = world.find("b").expect("it is there");
    for stage in ["net:a", "receive:a", "copy", "check", "send:c"] {
        dial(&mut world, "b", stage, "g = '10us'");
    }
    let copy = copy(&mut world, node, ["a", "c"], MIB);
    let told = last_of(&mut world, node, 4, copy);
    let passed: Vec<&str> = (told.passed.iter())
        .filter(|it| it.measured.is_some())
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(passed.len(), 9, "{passed:?}");
}

/// A dial that only takes the thread's time has no stage of its own beside that.
#[test]
fn a_dial_of_host_time_stands_between_the_halves_of_a_copy() {
    let text =
        "[nodes.a]\n[nodes.b]\n[nodes.c]\n[[transfers]]\nnode = 'b'\nread = 'a'\nbytes = '1MiB'\n";
    let mut world = World::new(&scenario::parse(text).expect("a scenario")).expect("nodes");
    let node = world.find("b").expect("it is there");
    let copy = copy(&mut world, node, ["a", "c"], MIB);
    let free = last_of(&mut world, node, 4, copy);
    dial(&mut world, "b", "copy", "o = '2ms'");
    let told = last_of(&mut world, node, 4, copy);
    let mut passed = told.passed.iter().filter(|it| it.measured.is_some());
    assert!(passed.any(|it| it.name.starts_with("dial copy")), "{:?}", told.passed);
    let more = told.measured_seconds - free.measured_seconds;
    assert!(more > 1.9e-3, "{more}");
}
