//! Dials, the door for peers, reloads and key changes, in every order that a seed makes.
//!
//! `PIPED_SIM_SEEDS=100000 cargo test --release -p piped-world --test dialling` for a night;
//! `PIPED_SIM_SEED=N` replays one network and shows its last events.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use piped_sim::Random;
use piped_world::network::{Network, Options};

/// Lines of the trace shown with a failure.
const LINES: usize = 400;

fn number(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().expect("a whole number"))
}

fn live(seed: u64, options: fn(&mut Random) -> Options, loud: bool) -> Result<Network, ()> {
    let mut network = Network::new(seed, options(&mut Random::new(seed ^ 0x5eed)));
    if loud {
        network.kernel.start_trace();
    }
    let lived = catch_unwind(AssertUnwindSafe(|| network.live()));
    if loud {
        let lines: Vec<&str> = network.kernel.trace_lines().collect();
        lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| eprintln!("{line}"));
    }
    lived.map(|()| network).map_err(drop)
}

fn campaign(name: &str, seeds: u64, options: fn(&mut Random) -> Options, must_see: &[&str]) {
    if let Some(seed) = number("PIPED_SIM_SEED") {
        assert!(live(seed, options, true).is_ok(), "seed {seed} of {name} fails");
        return;
    }
    let count = number("PIPED_SIM_SEEDS").unwrap_or(seeds);
    let mut seen = BTreeMap::<&str, u64>::new();
    let mut failed = Vec::new();
    for seed in 0..count {
        match live(seed, options, false) {
            Ok(network) => {
                for (what, times) in network.controls.seen {
                    *seen.entry(what).or_default() += times;
                }
            }
            Err(()) => failed.push(seed),
        }
    }
    eprintln!("{name}: {count} networks: {seen:#?}");
    assert!(
        failed.is_empty(),
        "of {count} networks these seeds fail: {failed:?}; replay one with PIPED_SIM_SEED"
    );
    for what in must_see.iter().filter(|_| count >= seeds) {
        assert!(seen.contains_key(what), "no network saw: {what}");
    }
}

#[test]
fn nodes_are_connected_as_their_configurations_say_whatever_operators_do() {
    let must_see = [
        "sealed connection",
        "plain connection",
        "reload",
        "reload refused",
        "dial forbidden",
        "handshake failed",
        "turned away at the door",
        "forbidden connection seen",
        "connection cut",
        "nodes can be connected",
        "nodes cannot be connected",
    ];
    campaign("wild", 200, Options::wild, &must_see);
}

#[test]
fn a_key_that_is_changed_as_the_documents_say_leaves_no_node_alone() {
    campaign("careful", 100, Options::careful, &["sealed connection", "reload"]);
}
