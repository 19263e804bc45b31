//! Hosts on one machine, for trying and measuring: network namespaces by name, as `ip netns` makes
//! them, a [`switch`] that joins any number of them, and what tells whose they are.
//!
//! `pipectl lab`, the rig of `bench` and the tests make their hosts here. It needs root and
//! iproute2, and touches no network but its own: nothing of it appears outside its namespaces, so
//! a namespace that is removed takes its links, addresses and connections along.
//!
//! **Invariant:** what is made has a name that says whose it is ([`owner`], or a prefix of its
//! maker's), so that it can be found and removed after its maker was killed.

#![forbid(unsafe_code)]

mod clock;
pub mod namespace;
pub mod owner;
pub mod switch;

pub use self::namespace::{Namespace, enter};
pub use self::switch::Switch;

/// What could not be made or removed, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    /// Error with this sentence, cause and fix.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
