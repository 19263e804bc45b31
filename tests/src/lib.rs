//! The system as a whole, run without a kernel: [`world`] puts real shards of two nodes over the
//! simulated kernel of `piped_engine::sim`, plays their clients and control threads from a seed,
//! and judges everything they put out.
#![forbid(unsafe_code)]

pub mod world;
