//! Rules that must hold at each door, whatever bytes come.
//!
//! ```text
//!   fuzz/fuzz_targets/*.rs  (libFuzzer) ─┐
//!                                        ├─► check(input)     panics: a finding
//!   tests/corpora.rs  (cargo test) ──────┘       ▲
//!        fuzz/corpus/DOOR/*  ────────────────────┘
//! ```
//!
//! A door's module has `check`, which takes any bytes, and `seeds`, real values as such bytes. The
//! fuzzer starts from the seeds; what it finds is kept in `fuzz/corpus` and replayed by the tests.
#![forbid(unsafe_code)]

pub mod admin;
pub mod client;
pub mod configuration;
pub mod descriptor;
pub mod estimate;
pub mod frame;
pub mod greeting;
pub mod handshake;
pub mod input;
pub mod kept;
pub mod lane;
pub mod ring;
pub mod samples;
pub mod signed;
pub mod world;

/// An input with a name.
pub type Seed = (String, Vec<u8>);

/// A door, where bytes of others come in.
#[derive(Debug, Clone, Copy)]
pub struct Door {
    /// Name of the door: that of its fuzz target, and of the directory of its corpus.
    pub name: &'static str,
    /// Panics if something does not hold that must.
    pub check: fn(&[u8]),
    /// Real values to begin with.
    pub seeds: fn() -> Vec<Seed>,
}

/// All doors, by their names.
pub const DOORS: &[Door] = &[
    Door { name: "admin", check: admin::check, seeds: admin::seeds },
    Door { name: "configuration", check: configuration::check, seeds: configuration::seeds },
    Door { name: "descriptor", check: descriptor::check, seeds: descriptor::seeds },
    Door { name: "handshake", check: handshake::check, seeds: handshake::seeds },
    Door { name: "estimate", check: estimate::check, seeds: estimate::seeds },
    Door { name: "frame", check: frame::check, seeds: frame::seeds },
    Door { name: "greeting", check: greeting::check, seeds: greeting::seeds },
    Door { name: "kept", check: kept::check, seeds: kept::seeds },
    Door { name: "lane", check: lane::check, seeds: lane::seeds },
    Door { name: "ring", check: ring::check, seeds: ring::seeds },
];
