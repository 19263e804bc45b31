//! The words that the parts of piped share: each has one home, and it is here.
//!
//! ```text
//!   ring, client-lib, c-api ──┐                    ┌── wire ── planner ── engine ── daemon
//!                             ├──► core ◄──────────┤
//!        config, model ───────┘                    └── sim (the simulated kernel)
//! ```
//!
//! [`request`] is what clients ask, [`call`] what of it is about files and names rather than bytes,
//! and [`status`] how it ends; [`io`] is the door to the kernel, behind which stand io_uring and
//! the simulation; [`limits`] are the bounds of the data path; the rest are names ([`ids`],
//! [`names`]), quantities ([`units`], [`sizes`], [`pieces`], [`spread`]) and choices ([`modes`],
//! [`access`], [`link`]).
//!
//! **Invariant:** this crate depends on nothing of ours and does nothing: no IO, no clock, no
//! state, no unsafe code. [`units::Nanos`] lives here and not in `piped-model`: drivers, frames and
//! rings need times and no theory, so that what is built from them does not wait for the model.
#![forbid(unsafe_code)]

pub mod access;
pub mod call;
pub mod ids;
pub mod io;
pub mod limits;
pub mod link;
pub mod modes;
pub mod names;
pub mod noise;
pub mod pieces;
pub mod request;
pub mod sizes;
pub mod spread;
pub mod status;
pub mod units;
