//! What another configuration changes in a daemon that runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use piped_config::admin::Change;
use piped_config::{Admin, Client, Config, Export, Listen, Names, Peer};
use piped_core::link::Checksum;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Expelled};

use crate::access::Rules;
use crate::grants::Grants;
use crate::keyring::Keyring;
use crate::peers::{Moved, Peers};

/// Exports that the sandbox keeps from becoming what the files say, and what they are until the
/// restart.
pub type Outside = BTreeMap<String, Option<Export>>;

/// What an export is that runs as `running` and can become `next` only by a restart: what both
/// give, so that what the files do not give any more is taken back at once. `None`: nothing.
/// Another directory is nothing that both give.
#[must_use]
pub fn until_restart(
    running: Option<&Export>,
    next: &Export,
    is_same_directory: bool,
) -> Option<Export> {
    let running = running.filter(|running| is_same_directory && running.path == next.path)?;
    let (read, write) = (running.read && next.read, running.write && next.write);
    let names = running.names && next.names && write;
    (read || write).then(|| Export { read, write, names, ..next.clone() })
}

/// What of `next` takes effect in a daemon that runs with `running`; the rest waits for a restart.
#[must_use]
pub fn in_effect(running: &Config, next: &Config, outside: &Outside) -> Config {
    let (running, mut next) = (running.clone(), next.clone());
    for (name, export) in outside {
        next.exports.remove(name);
        next.exports.extend(export.clone().map(|export| (name.clone(), export)));
    }
    Config {
        client: Client { socket: running.client.socket, ..next.client },
        admin: Admin { socket: running.admin.socket, ..next.admin },
        access: next.access,
        planner: next.planner,
        listen: Listen { address: running.listen.address, ..next.listen },
        security: next.security,
        cluster: next.cluster,
        peers: next.peers,
        exports: next.exports,
        limits: next.limits,
        log: next.log,
        ..running
    }
}

/// Another configuration with all that follows from it, made and checked before anything changes.
#[derive(Debug)]
pub struct Next<'a> {
    /// What the files said when they were last loaded.
    pub before: &'a Config,
    /// What the files say now.
    pub after: &'a Config,
    /// Exports that wait for a restart.
    pub outside: &'a Outside,
    /// Users and groups that have access.
    pub rules: Rules,
    /// The keys of this node and of its peers.
    pub keyring: Keyring,
    /// The rights to what this node offers.
    pub grants: Arc<Grants>,
    /// Users and groups of the system.
    pub names: Names,
}

/// What a reload has changed.
#[derive(Debug)]
pub struct Reloaded {
    /// The keys that have other values in what is in effect.
    pub changed: Vec<Change>,
    /// Sessions that were ended.
    pub ended_sessions: u64,
    /// Handles that were ended.
    pub ended_handles: u64,
}

/// The connections that a new configuration puts in doubt.
#[derive(Debug)]
pub(crate) struct Doubt {
    /// Nodes with keys that have to prove themselves anew.
    pub(crate) distrusted: Vec<String>,
    /// Plain connections that close.
    pub(crate) plain: Expelled,
    /// The node had no key before, and has one now.
    pub(crate) got_key: bool,
}

impl Doubt {
    /// Compares the rules in force with the next ones. The origin of a plain connection is known at
    /// the door alone: when fewer may have one, all of them close and come through the door again.
    pub(crate) fn of(rules: &Rules, keyring: &Keyring, names: &Names, next: &Next<'_>) -> Self {
        // What was plain between nodes is to be proved in a cluster.
        let got_key = (keyring.identity().is_none() && next.keyring.identity().is_some())
            || (!keyring.has_cluster() && next.keyring.has_cluster());
        let plain = if is_narrower(&next.before.listen, &next.after.listen) {
            Expelled::Everybody
        } else if got_key || *rules != next.rules || *names != next.names {
            Expelled::Users
        } else {
            Expelled::Nobody
        };
        Self { distrusted: keyring.distrusted(&next.keyring), plain, got_key }
    }
}

/// What the shards are told of the difference between two configurations.
pub(crate) fn commands(
    (peers, moved): (&Peers, Vec<Moved>),
    before: &Config,
    after: &Config,
    doubt: Doubt,
) -> Vec<Command> {
    let mut commands = Vec::new();
    if before.planner.mode != after.planner.mode {
        commands.push(Command::SetPlanner(after.planner.mode));
    }
    if before.planner.calibration != after.planner.calibration {
        commands.push(Command::SetCalibration(after.planner.calibration));
    }
    if before.planner.zero_copy != after.planner.zero_copy {
        commands.push(Command::SetZeroCopy(after.planner.zero_copy));
    }
    if before.planner.eager != after.planner.eager {
        commands.push(Command::SetEager(after.planner.eager));
    }
    if before.planner.allow_dials && !after.planner.allow_dials {
        commands.push(Command::ClearDials { place: None });
    }
    if before.client.deadline_default != after.client.deadline_default {
        commands.push(Command::SetDeadline(Nanos(after.client.deadline_default.nanos())));
    }
    commands.extend(moved.into_iter().flat_map(|moved| peers.tell(moved)));
    // They prove themselves anew, with what is agreed on now, in both directions.
    let Doubt { distrusted, plain, got_key } = doubt;
    let all_plain = got_key || plain == Expelled::Everybody;
    let keyless = after.peers.iter().filter(|(_, peer)| all_plain && peer.key.is_none());
    let anew = distrusted.iter().chain(keyless.map(|(name, _)| name));
    let known = anew.filter_map(|name| peers.by_name(name));
    commands.extend(known.map(|peer| Command::RedialPeer { peer }));
    // Whose frames are to be checked otherwise connects anew. A node that has no entry is like one
    // that says nothing, and one with a key has tags.
    let plain_sums = |config: &Config, name: &str| {
        config.peers.get(name).map_or(Some(Checksum::default()), Peer::plain_checksum)
    };
    let known: BTreeSet<&String> = before.peers.keys().chain(after.peers.keys()).collect();
    let resummed = known.into_iter().filter(|name| {
        let (was, is) = (plain_sums(before, name), plain_sums(after, name));
        was.is_some() && is.is_some() && was != is
    });
    let names: Vec<String> = distrusted.into_iter().chain(resummed.cloned()).collect();
    if plain > Expelled::Nobody || !names.is_empty() {
        commands.push(Command::ExpelPeers { names, plain });
    }
    commands
}

/// Whether a network that admitted plain connections is not named any more.
fn is_narrower(before: &Listen, after: &Listen) -> bool {
    before.allow_plain.iter().any(|network| !after.allow_plain.contains(network))
}

#[cfg(test)]
mod tests {
    use piped_config::{Bytes, Period};
    use piped_core::modes::{PlannerMode, Profile};

    use super::*;
    use crate::peers::tests::with_peers;

    #[test]
    fn exports_outside_of_the_sandbox_are_what_both_configurations_give() {
        let export = |path: &str| Export { path: path.into(), ..Export::default() };
        let (mut running, mut next) = (Config::default(), Config::default());
        running.exports.insert("moved".to_owned(), export("/one"));
        running.exports.insert("wider".to_owned(), export("/wider"));
        for (name, path) in
            [("moved", "/other"), ("new", "/new"), ("fine", "/fine"), ("wider", "/wider")]
        {
            next.exports.insert(name.to_owned(), export(path));
        }
        let wider = next.exports.get_mut("wider").expect("there");
        (wider.write, wider.users) = (true, vec![piped_config::Principal::Id(7)]);
        let waits = |name: &str| {
            let export = until_restart(running.exports.get(name), &next.exports[name], true);
            (name.to_owned(), export)
        };
        let outside = Outside::from(["moved", "new", "wider"].map(waits));
        let effect = in_effect(&running, &next, &outside);
        assert_eq!(effect.exports.keys().collect::<Vec<_>>(), ["fine", "wider"]);
        let wider = &effect.exports["wider"];
        assert_eq!((wider.read, wider.write), (true, false));
        assert_eq!(wider.users, next.exports["wider"].users, "nobody else from now on");
        let waiting = effect.changes_to(&next);
        let waits = |key: &str| waiting.iter().any(|it| it.key == key);
        assert!(waits("exports.moved.path") && waits("exports.new.path"));
        assert!(waits("exports.wider.write") && !waits("exports.wider.users"));
    }

    #[test]
    fn an_export_that_waits_for_a_restart_gives_no_more_than_before_and_no_more_than_after() {
        let export = |read, write| Export { path: "/a".into(), read, write, ..Export::default() };
        let (only_read, only_write) = (export(true, false), export(false, true));
        assert_eq!(until_restart(Some(&only_read), &only_write, true), None);
        assert_eq!(
            until_restart(Some(&export(true, true)), &only_write, true),
            Some(only_write.clone())
        );
        assert_eq!(until_restart(None, &only_write, true), None);
        let names = Export { names: true, ..only_write.clone() };
        assert_eq!(until_restart(Some(&only_write), &names, true), Some(only_write.clone()));
        assert_eq!(until_restart(Some(&names), &names, true), Some(names));
        // The name of the directory stayed, and another one has it.
        assert_eq!(until_restart(Some(&only_read), &only_read, false), None);
    }

    #[test]
    fn what_needs_a_restart_stays_as_it_runs() {
        let running = Config::default();
        let mut next = with_peers(&[("b", "h:1")]);
        next.profile = Profile::Latency;
        next.shards.count = 2.into();
        next.client.socket = "/elsewhere".into();
        next.listen.address = Some("127.0.0.1:1".parse().expect("an address"));
        let mut expected = with_peers(&[("b", "h:1")]);
        for config in [&mut next, &mut expected] {
            config.client.arena_bytes_max = Bytes::mib(1);
            config.client.deadline_default = Period::seconds(1);
            config.planner.mode = PlannerMode::Whole;
            config.log.level = "debug".to_owned();
            config.access.users = vec![piped_config::Principal::Id(7)];
            config.admin.groups = vec![piped_config::Principal::Id(8)];
            config.listen.allow_plain = vec!["10.0.0.0/8".parse().expect("a network")];
        }
        let effect = in_effect(&running, &next, &Outside::new());
        assert_eq!(effect, expected);
        let waiting: Vec<String> =
            effect.changes_to(&next).into_iter().map(|change| change.key).collect();
        let keys = ["client.socket", "listen.address", "profile", "shards.count"];
        assert_eq!(waiting, keys);
    }
}
