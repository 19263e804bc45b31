//! Scenes of very many nodes (`bench scale`), played with few: what must hold with any number.
#![forbid(unsafe_code)]

use system_tests::scale::{Options, Scene, churn, idle};

const NODES: usize = 8;

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
            Scene::Broadcast | Scene::Incast => 2 * (NODES - 1),
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
    let figures = idle(Options { peers: 2, ..few(1) }).expect("it runs");
    assert_eq!((figures.asked, figures.costs.lanes), (2, 8), "two asked, and asked by two");
}

#[test]
fn nodes_with_disasters_keep_all_promises() {
    for seed in 1..=4 {
        let told = churn(few(seed)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(told.restarts + told.partitions + told.jumps + told.cuts > 0, "seed {seed}");
        assert!(told.figures.requests[0] > 0, "seed {seed}");
    }
}
