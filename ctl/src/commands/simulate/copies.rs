//! How copies between nodes are planned: what their plans know of the path, and who hears what they took.

use piped_config::{Bytes, PlannerMode};
use piped_engine::draft::{DraftAsk, Forecast, Way};
use piped_engine::ids::PeerId;
use piped_engine::report::Explanation;
use piped_engine::request::{Class, Verb};

use super::scenario;
use super::world::World;

const MIB: u64 = 1 << 20;
const FIXED: PlannerMode = PlannerMode::Fixed(Bytes(128 << 10));

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

fn copy(world: &mut World, node: usize, [from, to]: [&str; 2], length: u64) -> Verb {
    let [from, to] = [from, to].map(|what| world.open(node, what).expect("opened"));
    Verb::Copy { from, from_offset: 0, to, to_offset: 0, length }
}

/// The last of so many, as the node tells it that asked.
fn last_of(world: &mut World, node: usize, count: u32, verb: Verb) -> Explanation {
    for _ in 0..count {
        world.run(node, verb).expect("it ends");
    }
    world.explain(node)
}

/// What would be done to a peer from now on: with what is known of each plan, which a plan in use was made without.
fn said(world: &World, node: usize, peer: &str, disk: Option<&str>, bytes: u64) -> Forecast {
    let peer = PeerId(world.find(peer).expect("it is there") as u32);
    let device = disk.map(|disk| world.device(node, disk));
    world.draft(node, &DraftAsk { way: Way::ToPeer { peer, device }, bytes, class: Class::Bulk })
}

/// What transfers by the plan were found to take.
fn measured(said: &Forecast) -> Option<f64> {
    said.candidates.iter().find_map(|candidate| candidate.measured_seconds)
}

fn near(what: &str, found: f64, expected: f64, off: f64) {
    assert!((found / expected - 1.0).abs() < off, "{what}: {found} for {expected}");
}

#[test]
fn what_a_copy_takes_is_held_against_its_own_plan() {
    let slow = "g = '1ms'\nG = '50MB/s'";
    let (mut world, home) = two_nodes(MIB, [slow, DISK]);
    // Plans of one number on both paths.
    world.plan(FIXED, None);
    let to = world.open(home, "server").expect("opened");
    let write = Verb::Write { handle: to, offset: 0, buffer: World::buffer(MIB), durable: false };
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
    let text = "[nodes.a]\n[nodes.b]\n[nodes.c]\n\
                [[links]]\nnodes = ['a', 'b']\nG = '20MB/s'\n[[links]]\nnodes = ['b', 'c']\nG = '100MB/s'\n\
                [[transfers]]\nnode = 'b'\nread = 'a'\nbytes = '1MiB'\n";
    let mut world = World::new(&scenario::parse(text).expect("a scenario")).expect("nodes");
    let node = world.find("b").expect("it is there");
    world.plan(FIXED, None);
    let to = world.open(node, "c").expect("opened");
    let write = Verb::Write { handle: to, offset: 0, buffer: World::buffer(MIB), durable: false };
    let alone = last_of(&mut world, node, 40, write).measured_seconds;
    let copy = copy(&mut world, node, ["a", "c"], MIB);
    last_of(&mut world, node, 40, copy);
    let said = said(&world, node, "c", None, MIB);
    near("measured", measured(&said).expect("known"), alone, 0.02);
    near("promised", said.predicted_seconds, alone, 0.02);
}
