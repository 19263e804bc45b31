//! The judgements: each check is a function of the facts, and a new one is a line of [`ALL`].

mod cluster;
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

/// A check of one matter; no findings where there is nothing to say.
type Check = fn(&Facts) -> Vec<Finding>;

/// All checks in the order of display: a reader with an error above need not read on.
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
    cluster::certificate,
    cluster::signing_key,
    network::peers,
    network::discovery,
    network::door,
    network::sysctls,
];

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    ALL.iter().flat_map(|check| check(facts)).collect()
}
