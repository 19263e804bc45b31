//! Rows that hold piped beside other programs that do the same work, and beside itself with more
//! clients and in other places.

pub(crate) mod clients;
mod files;
mod half;
mod local;
mod messages;
mod placement;
mod prototype;
pub(crate) mod region;
mod sockets;
mod ucx;
mod zeromq;

use piped_core::modes::Profile;

use crate::contest::Rounds;
use crate::failure::Failure;
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rows::{Group, floor};
use crate::stats::Bar;

/// Rows beside other programs, and of clients in different numbers and places.
pub(crate) static PEERS: Group = Group {
    name: "peers",
    rows_stand_alone: true,
    entries: &[
        ("clients-4", clients::rate),
        ("clients-16", clients::rate),
        ("placement-balanced", placement::placement),
        ("pause-200us-balanced", placement::pause),
        ("pause-1ms-balanced", placement::pause),
        ("pause-10ms-balanced", placement::pause),
        ("file-cold-64k", files::cold),
        ("file-cold-1m", files::cold),
        ("file-cold-16m", files::cold),
        ("file-cached-4k", files::cached),
        ("file-cached-64k", files::cached),
        ("file-cached-1m", files::cached),
        ("file-half-1m", half::read),
        ("file-half-16m", half::read),
        ("file-half-1m-peer", half::read),
        ("file-half-16m-peer", half::read),
        ("fio-1m-4", local::read),
        ("placement-throughput", placement::placement),
        ("pause-200us-throughput", placement::pause),
        ("pause-1ms-throughput", placement::pause),
        ("pause-10ms-throughput", placement::pause),
        ("sockets-get-4k", sockets::get),
        ("ucx-get-4k-asleep", ucx::get),
        ("ucx-get-4k-spinning", ucx::get),
        ("ucx-get-64k", ucx::get),
        ("ucx-get-256k", ucx::get),
        ("ucx-get-1m", ucx::get),
        ("ucx-get-16m", ucx::get),
        ("ucx-put-4k", ucx::put),
        ("ucx-put-64k", ucx::put),
        ("ucx-put-256k", ucx::put),
        ("ucx-put-1m", ucx::put),
        ("ucx-message-64", messages::ucx),
        ("ucx-message-4k", messages::ucx),
        ("sockets-message-64", messages::sockets),
        ("sockets-message-4k", messages::sockets),
        ("zeromq-message-1m", messages::zeromq),
        ("fio-4k-1", local::read),
        ("fio-4k-16", local::read),
        ("fio-4k-64", local::read),
        ("path-4k", prototype::get),
        ("path-64k", prototype::get),
        ("path-256k", prototype::get),
        ("path-1m", prototype::get),
        ("placement-latency", placement::placement),
        ("pause-200us-latency", placement::pause),
        ("pause-1ms-latency", placement::pause),
        ("pause-10ms-latency", placement::pause),
    ],
};

/// Rounds of rows with a program that has to be started for each.
const UCX_ROUNDS: u32 = 15;

/// Profile by the end of a row's name.
fn profile_of(name: &str) -> Profile {
    match name.rsplit('-').next() {
        Some("latency") => Profile::Latency,
        Some("throughput") => Profile::Throughput,
        _ => Profile::Balanced,
    }
}

/// Row of a peer that is not installed, with the command that installs it.
pub(super) fn missing(name: &str, profile: Profile, bar: Bar, tool: &str, package: &str) -> Row {
    let note = format!("unchecked (no {tool}: apt-get install {package}, or bench/peers.sh)");
    Row::unchecked(name, &profile_name(profile), Unit::Ratio, bar, note)
}

/// Median times in the compared rounds of arms with their names, for notes.
pub(super) fn best_in_words(rounds: &Rounds, arms: [usize; 2]) -> Result<String, Failure> {
    let told = arms.map(|arm| {
        let median = rounds.value(arm)?.median;
        Ok::<_, Failure>(format!("{} {}", rounds.names[arm], floor::in_words(median)))
    });
    let [one, other] = told;
    Ok(format!("{}, {}", one?, other?))
}

/// Median time of each arm with its name, for notes.
pub(super) fn in_words(rounds: &Rounds) -> String {
    let arms = rounds.names.iter().enumerate().filter_map(|(arm, name)| {
        Some(format!("{name} {}", floor::in_words(rounds.all_of(arm)?.median)))
    });
    arms.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_one_rows_and_rows_of_a_profile_stand_together() {
        let names = PEERS.names();
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
        let own = |name: &&str| name.starts_with("placement-") || name.starts_with("pause-");
        let mut profiles: Vec<Profile> =
            names.iter().copied().filter(|name| own(name)).map(profile_of).collect();
        profiles.dedup();
        assert_eq!(profiles, [Profile::Balanced, Profile::Throughput, Profile::Latency]);
    }
}
