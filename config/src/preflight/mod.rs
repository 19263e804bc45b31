//! Checks of a configuration against this machine: users, directories, sockets, keys, CPUs.
//!
//! ```text
//!   Loaded ─► preflight ─┬─► refused   a start, and a reload, end with it
//!                        ├─► warned    it starts, and something will not work
//!                        └─► unseen    this user may not look at it
//! ```
//!
//! All callers use one function: the daemon at its start and at a reload, `piped --check-config`,
//! `pipectl config check` and `pipectl doctor`. The checks change nothing. Findings are reported
//! like mistakes in a file: by file, line and key, with the fix.

mod doors;
mod paths;
mod user;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use self::user::{User, as_user};
use crate::error::{ConfigError, Place};
use crate::load::Loaded;
use crate::modes::Principal;
use crate::names::{Names, UnknownName};
use crate::node_key::NodeKey;

/// Directory that the daemon's unit makes at each start, so it may be absent before.
pub const MADE_BY_UNIT: &str = "/run/piped";

/// Facts about the caller, and things that exist already.
#[derive(Debug, Clone, Default)]
pub struct Look<'a> {
    /// Main file, beside which a key may be.
    pub main_file: Option<&'a Path>,
    /// User that the daemon runs as, for messages and fixes.
    pub user: &'a str,
    /// Whether this thread is that user: only then a refused access says something.
    pub is_user: bool,
    /// Sockets that the daemon has already, or that the service manager passes to it.
    pub sockets: Vec<PathBuf>,
    /// Addresses on which the daemon listens already.
    pub addresses: Vec<SocketAddr>,
    /// Directories that are made when the service is started.
    pub made: Vec<PathBuf>,
}

/// Result of all checks.
#[derive(Debug, Default)]
pub struct Preflight {
    /// Findings that prevent a start, and refuse a reload.
    pub refused: Vec<ConfigError>,
    /// Findings with which the daemon starts, but something does not work as written.
    pub warned: Vec<ConfigError>,
    /// Things that this user may not look at.
    pub unseen: Vec<ConfigError>,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy)]
enum Grade {
    Refused,
    Warned,
    Unseen,
}

/// One look at one configuration.
struct Round<'a> {
    loaded: &'a Loaded,
    look: &'a Look<'a>,
    found: Preflight,
}

impl Round<'_> {
    fn note(&mut self, grade: Grade, key: &str, problem: impl Into<String>) {
        let place = self.place(key);
        let finding = ConfigError::Invalid { place, key: key.to_owned(), problem: problem.into() };
        match grade {
            Grade::Refused => self.found.refused.push(finding),
            Grade::Warned => self.found.warned.push(finding),
            Grade::Unseen => self.found.unseen.push(finding),
        }
    }

    /// Place where a key was set.
    fn place(&self, key: &str) -> Place {
        self.loaded.origins.get(key).cloned().unwrap_or_else(Place::defaults)
    }

    /// Severity of a refused access: only as the daemon's own user it means something.
    fn denied(&self, grade: Grade) -> Grade {
        if self.look.is_user { grade } else { Grade::Unseen }
    }
}

/// Checks everything on this machine that a configuration names. May block in a file system.
#[must_use]
pub fn preflight(loaded: &Loaded, names: &Names, look: &Look<'_>) -> Preflight {
    let mut round = Round { loaded, look, found: Preflight::default() };
    round.principals(names);
    round.key();
    round.sockets();
    round.addresses();
    round.exports();
    round.state_directory();
    round.cpus();
    round.staging();
    round.landlock();
    round.found
}

impl Round<'_> {
    fn principals(&mut self, names: &Names) {
        let config = &self.loaded.config;
        let (access, admin) = (&config.access, &config.admin);
        let mut lists = vec![
            ("access.users".to_owned(), &access.users, false),
            ("access.groups".to_owned(), &access.groups, true),
            ("admin.users".to_owned(), &admin.users, false),
            ("admin.groups".to_owned(), &admin.groups, true),
            ("admin.status_users".to_owned(), &admin.status_users, false),
            ("admin.status_groups".to_owned(), &admin.status_groups, true),
        ];
        for (name, export) in &config.exports {
            lists.push((format!("exports.{name}.users"), &export.users, false));
            lists.push((format!("exports.{name}.groups"), &export.groups, true));
        }
        let find = |named: &Principal, is_group| match is_group {
            true => names.group_of(named),
            false => names.user_of(named),
        };
        let unknown: Vec<(String, UnknownName)> = lists
            .into_iter()
            .flat_map(|(key, list, is_group)| {
                let unknown = list.iter().filter_map(move |named| find(named, is_group).err());
                unknown.map(move |error| (key.clone(), error))
            })
            .collect();
        for (key, error) in unknown {
            self.note(Grade::Refused, &key, format!("is wrong: {error}"));
        }
    }

    /// Checks this node's key, and settings that need one.
    fn key(&mut self) {
        let security = &self.loaded.config.security;
        let path = security.key_path(self.look.main_file);
        let own = match path.map(|path| NodeKey::read(&path)).transpose() {
            Ok(own) => own,
            Err(error) => {
                let grade =
                    if error.is_denied() { self.denied(Grade::Refused) } else { Grade::Refused };
                return self.note(grade, "security.key_file", format!("is wrong: {error}"));
            }
        };
        for fault in self.loaded.config.own_key_faults(own.map(|own| own.public())) {
            self.note(Grade::Refused, &fault.key, fault.problem);
        }
    }

    /// Checks for CPUs that the machine lacks. The daemon itself reports CPUs that it may not use.
    fn cpus(&mut self) {
        let Some(there) = cpus_there() else { return };
        let missing = self
            .loaded
            .config
            .shards
            .cpus
            .iter()
            .filter(|cpu| !there.iter().any(|(first, last)| (*first..=*last).contains(*cpu)));
        let missing: Vec<String> = missing.map(ToString::to_string).collect();
        if !missing.is_empty() {
            let there = there.iter().map(|(first, last)| match first == last {
                true => first.to_string(),
                false => format!("{first} to {last}"),
            });
            let there: Vec<String> = there.collect();
            self.note(
                Grade::Refused,
                "shards.cpus",
                format!(
                    "names CPU {}, and this machine has {}: name those, or none, and the daemon \
                     chooses",
                    missing.join(", "),
                    there.join(", ")
                ),
            );
        }
    }

    /// Checks staging, which is taken at the start with every page.
    fn staging(&mut self) {
        let limits = &self.loaded.config.limits;
        let info = rustix::system::sysinfo();
        let memory = info.totalram.saturating_mul(u64::from(info.mem_unit.max(1)));
        let (asked, key) = (limits.global.staging, "limits.global.staging");
        if asked.0 >= memory {
            let text = crate::units::bytes(memory);
            self.note(
                Grade::Refused,
                key,
                format!(
                    "is {asked}, and this machine has {text} of memory in all: choose much less"
                ),
            );
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = self.loaded.config.shard_count(cpus);
        let given = limits.staging_of_shard(shards) * u64::from(shards);
        if given < asked.0 {
            let (given, unit) =
                (crate::quantity::Bytes(given), crate::limits::Limits::STAGING_UNIT);
            self.note(
                Grade::Warned,
                key,
                format!("is {asked}, of which {given} are given: in whole {unit} a shard"),
            );
        }
    }

    /// Checks that the kernel has the demanded Landlock.
    fn landlock(&mut self) {
        use landlock::{Access as _, CompatLevel, Compatible as _, RulesetAttr as _};
        if self.loaded.config.sandbox.landlock != crate::modes::LandlockMode::On {
            return;
        }
        // The ruleset is made and dropped: nothing is restricted by it.
        let ruleset = landlock::Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let made = ruleset
            .handle_access(landlock::AccessFs::from_all(landlock::ABI::V1))
            .and_then(landlock::Ruleset::create);
        if let Err(error) = made {
            self.note(
                Grade::Refused,
                "sandbox.landlock",
                format!(
                    "is \"on\", and the kernel has none ({error}): enable it (landlock among \
                     lsm=), or write \"auto\""
                ),
            );
        }
    }
}

/// Ranges of the CPUs that the machine has.
fn cpus_there() -> Option<Vec<(u32, u32)>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/present").ok()?;
    parse_ranges(&text)
}

/// Reads ranges as in `0-3,8`.
fn parse_ranges(text: &str) -> Option<Vec<(u32, u32)>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    text.trim().split(',').map(range).collect()
}

#[cfg(test)]
mod tests;
