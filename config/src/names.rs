//! Users and groups of this machine by name.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use crate::modes::Principal;
use crate::regular::open;

/// Name that no user or group of this machine has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownName {
    /// User name that does not exist.
    #[error(
        "there is no user `{0}` in /etc/passwd; correct the name, or write the number (users of \
         other directories are known by number only)"
    )]
    User(String),
    /// Group name that does not exist.
    #[error(
        "there is no group `{0}` in /etc/group; correct the name, or write the number (groups of \
         other directories are known by number only)"
    )]
    Group(String),
}

/// Users and groups by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    users: BTreeMap<String, u32>,
    groups: BTreeMap<String, u32>,
    /// First group of each user.
    first: BTreeMap<u32, u32>,
    /// Other groups of each user, by user name.
    others: BTreeMap<String, BTreeSet<u32>>,
}

impl Names {
    /// Reads both files; a missing file has no names.
    #[must_use]
    pub fn of_system() -> Self {
        let read = |path: &str| {
            let mut text = String::new();
            let read = open(path.as_ref()).and_then(|mut file| file.read_to_string(&mut text));
            read.map(|_| text).unwrap_or_default()
        };
        Self::parse(&read("/etc/passwd"), &read("/etc/group"))
    }

    /// Name of a user, if it has one; of several the first.
    #[must_use]
    pub fn user(&self, uid: u32) -> Option<&str> {
        let mut named = self.users.iter().filter(|(_, number)| **number == uid);
        named.next().map(|(name, _)| name.as_str())
    }

    /// Number of a user.
    #[must_use]
    pub fn uid(&self, name: &str) -> Option<u32> {
        self.users.get(name).copied()
    }

    /// Number of a group.
    #[must_use]
    pub fn gid(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// Number of a user that a configuration names.
    ///
    /// # Errors
    /// No user has the name.
    pub fn user_of(&self, user: &Principal) -> Result<u32, UnknownName> {
        match user {
            Principal::Id(id) => Ok(*id),
            Principal::Name(name) => self.uid(name).ok_or_else(|| UnknownName::User(name.clone())),
        }
    }

    /// Number of a group that a configuration names.
    ///
    /// # Errors
    /// No group has the name.
    pub fn group_of(&self, group: &Principal) -> Result<u32, UnknownName> {
        match group {
            Principal::Id(id) => Ok(*id),
            Principal::Name(name) => self.gid(name).ok_or_else(|| UnknownName::Group(name.clone())),
        }
    }

    /// First group of a user, if it has an entry, and its other groups, as after a login.
    #[must_use]
    pub fn groups_of(&self, uid: u32) -> (Option<u32>, Vec<u32>) {
        let names = self.users.iter().filter(|(_, number)| **number == uid);
        let others: BTreeSet<u32> =
            names.filter_map(|(name, _)| self.others.get(name)).flatten().copied().collect();
        (self.first.get(&uid).copied(), others.into_iter().collect())
    }

    /// Reads the text of /etc/passwd and /etc/group. Of two equal names the first counts.
    #[must_use]
    pub fn parse(passwd: &str, group: &str) -> Self {
        let mut first = BTreeMap::new();
        for fields in passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()) {
            let number = |at: usize| fields.get(at)?.parse().ok();
            if let (Some(user), Some(group)) = (number(2), number(3)) {
                first.entry(user).or_insert(group);
            }
        }
        let mut others = BTreeMap::<String, BTreeSet<u32>>::new();
        for fields in group.lines().map(|line| line.split(':').collect::<Vec<_>>()) {
            let (Some(group), Some(members)) = (
                fields.get(2).and_then(|number| number.parse().ok()),
                fields.get(3).map(|members| members.split(',')),
            ) else {
                continue;
            };
            for member in members.filter(|member| !member.is_empty()) {
                others.entry(member.to_owned()).or_default().insert(group);
            }
        }
        Self { users: entries(passwd), groups: entries(group), first, others }
    }
}

/// `name:password:number:...` lines; others are skipped.
fn entries(text: &str) -> BTreeMap<String, u32> {
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (name, number) = (fields.next(), fields.nth(1).and_then(|field| field.parse().ok()));
        if let (Some(name), Some(number)) = (name.filter(|name| !name.is_empty()), number) {
            names.entry(name.to_owned()).or_insert(number);
        }
    }
    names
}

/// Group of the daemon, which reads key files: see systemd/sysusers.conf.
pub const DAEMON_GROUP: &str = "piped";

/// Group that key files are made for: the daemon's, if root makes them and there is one.
#[must_use]
pub fn key_file_group() -> Option<u32> {
    rustix::process::geteuid().is_root().then(|| Names::of_system().gid(DAEMON_GROUP)).flatten()
}

/// Name of this machine, which is a node's name if the configuration has none.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_groups_of_both_files() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33::/:\nalias:x:33:34::/:\nbad:x:1\n";
        let group = "root:x:0:\nstaff:x:50:web,ann\nwww:x:33:\nmore:x:51:alias,web\nodd:x:no:web\n";
        let names = Names::parse(passwd, group);
        assert_eq!(names.groups_of(0), (Some(0), vec![]));
        // A number with several names has the groups of all of them.
        assert_eq!(names.groups_of(33), (Some(33), vec![50, 51]));
        assert_eq!(names.groups_of(4000), (None, vec![]));
    }
}
