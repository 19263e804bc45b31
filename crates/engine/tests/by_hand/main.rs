//! One shard over the simulated kernel, and a peer whose every frame the test writes by hand: what
//! an honest daemon never sends, and what depends on the very order of frames.

mod arrivals;
mod asking;
mod buffers;
mod cached;
mod callers;
mod calls;
mod channels;
mod company;
mod crowds;
mod dialled;
mod dials;
mod ended;
mod fairness;
mod faults;
mod home;
mod in_turn;
mod lent;
mod limits;
mod locks;
mod moved;
mod nested;
mod once;
mod peering;
mod resting;
mod serving;
mod shards;
mod striped;
mod sums;
mod tracing;
mod vectored;
mod ways;
mod world;
