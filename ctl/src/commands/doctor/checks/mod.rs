//! What is judged: each check is a function of the facts, and a new one is a line of [`ALL`].

mod configuration;
mod exports;
mod kernel;
mod keys;
mod limits;
mod network;
#[cfg(test)]
mod tests;

use super::facts::Facts;
use super::finding::Finding;

/// A judgement of one matter; nothing where there is nothing to say.
type Check = fn(&Facts) -> Vec<Finding>;

/// In the order in which they are shown: who has an error above need not read on.
static ALL: &[Check] = &[
    configuration::files,
    configuration::daemon,
    configuration::principals,
    configuration::sockets,
    configuration::warnings,
    kernel::ring,
    kernel::features,
    kernel::clock,
    limits::memlock,
    limits::files,
    limits::shard_files,
    limits::control_group,
    limits::cpus,
    exports::exports,
    keys::file,
    network::peers,
    network::door,
    network::sysctls,
];

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    ALL.iter().flat_map(|check| check(facts)).collect()
}
