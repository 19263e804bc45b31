//! The system as a whole. Without a kernel: [`world`] puts real shards of two nodes over the
//! simulated kernel of `piped_sim`, plays their clients and control threads from a seed, and judges
//! everything they put out; [`operators`] change what these nodes may do meanwhile; [`shards`] have
//! clients that reach each other across them; [`scale`] has very many nodes. With one: [`process`]
//! starts the programs themselves ([`offered`] two that export names, [`servers`] those that say
//! where nodes are), [`cable`] and [`hosts`] put them on hosts of their own, [`nbd`] before nbdkit,
//! [`container`] on a machine on which their [`packages`] are installed, and [`documents`] does
//! what the documents say. [`tidy`] reads the sources.
#![forbid(unsafe_code)]

pub mod attack;
pub mod cable;
pub mod container;
pub mod documents;
pub mod hosts;
pub mod http;
pub mod keys;
pub mod library;
mod mail;
pub mod nbd;
pub mod offered;
pub mod operators;
pub mod packages;
pub mod process;
pub mod proxy;
pub mod scale;
pub mod servers;
pub mod shards;
pub mod tidy;
pub mod user;
pub mod world;
