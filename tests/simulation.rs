//! The engine's promises under every order of events that a seed can make.
//!
//! `PIPED_SIM_SEEDS=100000 cargo test --release -p system-tests --test simulation worlds` for a night;
//! `PIPED_SIM_SEED=N` replays one and shows its last events.
#![forbid(unsafe_code)]

use system_tests::world::{Campaign, Options};

#[test]
fn calm_worlds_keep_all_promises() {
    let must_see = &["ended Ok", "ended Cancelled", "ended DeadlineExceeded", "unaligned bounces"];
    Campaign { name: "calm_worlds", seeds: 300, options: Options::calm, must_see }.run();
}

#[test]
fn stormy_worlds_keep_all_promises() {
    let must_see = &[
        "client died with calls in flight",
        "node crashed with calls of its peer in flight",
        "ended Io",
        "ended PeerLost",
        "failed with a part done",
        "corrupt frames",
        "discarded bytes",
        "held buffers",
        "lanes lost",
        "retries",
    ];
    Campaign { name: "stormy_worlds", seeds: 300, options: Options::stormy, must_see }.run();
}
