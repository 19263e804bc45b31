//! Scenes of very many nodes (`bench scale`), played with few: what must hold with any number.
#![forbid(unsafe_code)]

use piped_core::limits::PEERS_DIALLED_MAX;
use piped_ring::allocations::{Counting, held_by_this_thread};
use system_tests::scale::{Figures, File, Options, Peers, Scene, churn, idle, tour};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NODES: usize = 8;

/// Most bytes that a peer may cost a node that does nothing: the bar of `bench scale`.
const PEER_BYTES_MAX: i64 = 64 << 10;

fn few(seed: u64) -> Options {
    Options { block: 16 << 10, ..Options::all(NODES, seed) }
}

#[test]
fn nothing_is_lost_and_all_requests_end() {
    for scene in Scene::ALL {
        let figures = scene.play(few(1)).unwrap_or_else(|error| panic!("{scene:?}: {error}"));
        let name = scene.name();
        assert_eq!(figures.failures.len(), 0, "{name}: {:?}", figures.failures);
        assert!(figures.requests[0] > 0 && figures.bytes > 0, "{name} moves something");
        let lanes = match scene {
            Scene::Broadcast | Scene::Incast | Scene::Replicas => 2 * (NODES - 1),
            _ => 4 * (NODES - 1),
        };
        assert_eq!(figures.costs.lanes as usize, lanes, "{name}: two each way for each other node");
        if !scene.is_disturbed() {
            assert_eq!(figures.dropped, 0, "{name}");
            let over = figures.over_best();
            assert!((1.0..4.0).contains(&over), "{name} takes {over} times what it has to");
            // What one node has is given to the others one after the other.
            let least = if scene == Scene::AllToAll { 0.95 } else { 0.4 };
            assert!(figures.jain() > least, "{name}: {}", figures.jain());
        }
    }
}

#[test]
fn each_node_gets_a_block_of_each_other_one() {
    let figures = Scene::AllToAll.play(few(2)).expect("it runs");
    let gets = (NODES * (NODES - 1)) as u64;
    assert_eq!((figures.requests, figures.bytes), ([gets, 0], gets * (16 << 10)));
    assert_eq!(figures.rates.len(), NODES);
}

/// The first ones rest when others need their places, long before they would.
#[test]
fn a_node_reads_of_more_others_than_it_has_connections_to() {
    let nodes = PEERS_DIALLED_MAX as usize + 45;
    let figures = tour(Options { nodes, peers: nodes, ..few(1) }).expect("all are reached");
    assert_eq!((figures.asked, figures.requests), (nodes - 1, [nodes as u64 - 1, 0]));
    assert_eq!(figures.costs.lanes, 2 * PEERS_DIALLED_MAX, "of the node that has the most");
    assert!(figures.took.seconds() < 30.0, "{}", figures.took.seconds());
}

#[test]
fn equal_seeds_give_equal_figures_and_others_other_ones() {
    for scene in [Scene::AllToAll, Scene::Incast, Scene::Discovery] {
        let play = |seed| scene.play(few(seed)).expect("it runs");
        let (one, again, other) = (play(3), play(3), play(4));
        assert_eq!(one, again, "{}", scene.name());
        assert_ne!(one, other, "{}", scene.name());
    }
}

#[test]
fn nodes_that_ask_few_have_few_connections() {
    let figures = idle(Options { peers: 2, ..few(1) }, Peers::Connected).expect("it runs");
    assert_eq!((figures.asked, figures.costs.lanes), (2, 8), "two asked, and asked by two");
}

#[test]
fn a_peer_that_rests_costs_little_memory_whatever_it_did_before() {
    let heap =
        |figures: &Figures| (figures.costs.engine + figures.costs.control) / figures.nodes as i64;
    let of = |nodes, peers| Options { heap: held_by_this_thread, peers, ..Options::all(nodes, 5) };
    let alone = heap(&idle(of(2, 0), Peers::Connected).expect("it runs"));
    // So many that what is taken for several lanes at once is used up.
    let nodes = 19;
    for (peers, lanes) in [(Peers::Found, 0), (Peers::Connected, 72), (Peers::Used, 72)] {
        let figures = idle(of(nodes, nodes - 1), peers).expect("it runs");
        assert_eq!(figures.costs.lanes, lanes, "{peers:?}");
        let staging = figures.costs.staging as i64;
        let bytes = (heap(&figures) - alone + staging) / figures.asked as i64;
        assert!(bytes > 0 && bytes <= PEER_BYTES_MAX, "{peers:?}: {bytes} bytes");
    }
}

#[test]
fn nodes_with_disasters_keep_all_promises() {
    let mut moved = 0;
    for (seed, file) in (1..=4).flat_map(|seed| [(seed, File::OfEach), (seed, File::OfAll)]) {
        // What is divided is longer than a page or two.
        let options = Options { block: 256 << 10, ..few(seed) };
        let options = if file == File::OfAll { options } else { few(seed) };
        let told = churn(options, file);
        let told = told.unwrap_or_else(|error| panic!("seed {seed}, {file:?}: {error}"));
        assert!(told.restarts + told.partitions + told.jumps + told.cuts > 0, "seed {seed}");
        assert!(told.figures.requests[0] > 0, "seed {seed}");
        assert!(file == File::OfAll || told.moved == 0, "seed {seed}");
        moved += told.moved;
    }
    assert!(moved > 0, "replicas failed, and others brought what they had not");
}

/// Disks that are one, two and six times as slow as the links: the file comes from all of them, and
/// nearly as soon as it can.
#[test]
fn a_file_comes_from_all_nodes_that_have_it() {
    let play = |nodes, seed| Scene::Replicas.play(Options { nodes, ..few(seed) }).expect("it runs");
    let alone = play(2, 1);
    for (nodes, seed) in [(3, 1), (4, 1), (NODES, 1), (NODES, 2)] {
        let figures = play(nodes, seed);
        let over = figures.over_best();
        assert!(over < 1.75, "{nodes} nodes, seed {seed}: {over} times what the links take");
        let (took, alone) = (figures.took.seconds(), alone.took.seconds());
        let gain = alone / took / (nodes - 1) as f64;
        assert!(gain > 0.3, "{nodes} nodes, seed {seed}: {took} s, and {alone} s from one");
    }
}
