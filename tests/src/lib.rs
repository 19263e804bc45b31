//! The system as a whole. Without a kernel: [`world`] puts real shards of two nodes over the
//! simulated kernel of `piped_engine::sim`, plays their clients and control threads from a seed,
//! and judges everything they put out. With one: [`process`] starts the programs themselves,
//! and [`documents`] does with them what the documents say.
#![forbid(unsafe_code)]

pub mod attack;
pub mod documents;
pub mod http;
pub mod process;
pub mod proxy;
pub mod user;
pub mod world;
