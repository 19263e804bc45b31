//! The engine's promises under every order of events that a seed can make.
//!
//! `PIPED_SIM_SEEDS=100000 cargo test --release -p system-tests --test simulation worlds` for a night;
//! `PIPED_SIM_SEED=N` replays one and shows its last events.
#![forbid(unsafe_code)]

use system_tests::world::{Campaign, Options};

#[test]
fn calm_worlds_keep_all_promises() {
    Campaign { name: "calm_worlds", seeds: 300, options: Options::calm }.run();
}

#[test]
fn stormy_worlds_keep_all_promises() {
    Campaign { name: "stormy_worlds", seeds: 300, options: Options::stormy }.run();
}
