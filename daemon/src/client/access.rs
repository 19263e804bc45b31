//! Who may talk to the daemon: pure rules over what the kernel says of the other side.
//!
//! Names are looked up once, at start, in /etc/passwd and /etc/group. Other directories (LDAP and
//! the like) are not asked: their libraries run code in this process, may hang, and need the C
//! library's lookups; a user from there is configured by number. Membership is the kernel's answer
//! at connection time, not the file's.

use std::collections::{BTreeMap, BTreeSet};

use piped_config::Principal;

use crate::io::socket::Credentials;

/// Users and groups by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    users: BTreeMap<String, u32>,
    groups: BTreeMap<String, u32>,
}

/// Why an entry of an access list is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Nobody of that name.
    #[error(
        "there is no user `{0}` in /etc/passwd; correct the name, or write the number (users of \
         other directories are known by number only)"
    )]
    User(String),
    /// No group of that name.
    #[error(
        "there is no group `{0}` in /etc/group; correct the name, or write the number (groups of \
         other directories are known by number only)"
    )]
    Group(String),
}

impl Names {
    /// Reads both files; a missing one has no names.
    #[must_use]
    pub fn of_system() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/etc/passwd"), &read("/etc/group"))
    }

    /// The name of a user, if it has one; of several the first.
    #[must_use]
    pub fn user(&self, uid: u32) -> Option<&str> {
        let mut named = self.users.iter().filter(|(_, number)| **number == uid);
        named.next().map(|(name, _)| name.as_str())
    }

    /// Reads the text of /etc/passwd and /etc/group. Of two equal names the first counts.
    #[must_use]
    pub fn parse(passwd: &str, group: &str) -> Self {
        Self { users: entries(passwd), groups: entries(group) }
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

/// The numbers of a list of users.
///
/// # Errors
/// [`AccessError::User`].
pub fn resolve_users(users: &[Principal], names: &Names) -> Result<BTreeSet<u32>, AccessError> {
    let number = |user: &Principal| match user {
        Principal::Id(id) => Ok(*id),
        Principal::Name(name) => {
            names.users.get(name).copied().ok_or_else(|| AccessError::User(name.clone()))
        }
    };
    users.iter().map(number).collect()
}

fn resolve_groups(groups: &[Principal], names: &Names) -> Result<BTreeSet<u32>, AccessError> {
    let number = |group: &Principal| match group {
        Principal::Id(id) => Ok(*id),
        Principal::Name(name) => {
            names.groups.get(name).copied().ok_or_else(|| AccessError::Group(name.clone()))
        }
    };
    groups.iter().map(number).collect()
}

/// `[access]`, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
    /// The daemon's own user.
    own: u32,
}

const ROOT: u32 = 0;

impl Rules {
    /// Resolves the configured names. `own`: the daemon's user.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn new(
        access: &piped_config::Access,
        names: &Names,
        own: u32,
    ) -> Result<Self, AccessError> {
        let users = resolve_users(&access.users, names)?;
        Ok(Self { users, groups: resolve_groups(&access.groups, names)?, own })
    }

    /// Whether both lists are empty: only the daemon's own user and root.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// May connect as a client. The lists are the whole truth if there are any: not even root gets
    /// in by accident.
    #[must_use]
    pub fn admits_client(&self, who: &Credentials) -> bool {
        if self.is_private() { self.admits_changes(who) } else { self.lists(who) }
    }

    /// May look at the status.
    #[must_use]
    pub fn admits_status(&self, who: &Credentials) -> bool {
        self.admits_changes(who) || self.lists(who)
    }

    /// May change the running daemon.
    #[must_use]
    pub fn admits_changes(&self, who: &Credentials) -> bool {
        who.uid == ROOT || who.uid == self.own
    }

    fn lists(&self, who: &Credentials) -> bool {
        let group = |gid| self.groups.contains(gid);
        self.users.contains(&who.uid) || group(&who.gid) || who.groups.iter().any(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33::/:\n\n# no\nbad:x:y:1\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:web\nstaff:x:51:\n";

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { pid: 1, uid, gid, groups: groups.to_vec() }
    }

    fn rules(users: &[Principal], groups: &[Principal]) -> Result<Rules, AccessError> {
        let access = piped_config::Access { users: users.to_vec(), groups: groups.to_vec() };
        Rules::new(&access, &Names::parse(PASSWD, GROUP), 990)
    }

    fn name(name: &str) -> Principal {
        Principal::Name(name.to_owned())
    }

    #[test]
    fn empty_lists_admit_the_daemons_user_and_root() {
        let rules = rules(&[], &[]).expect("no names");
        assert!(rules.is_private());
        assert!(rules.admits_client(&who(0, 0, &[])));
        assert!(rules.admits_client(&who(990, 990, &[])));
        assert!(!rules.admits_client(&who(33, 0, &[0, 990])), "groups of root are not root");
    }

    #[test]
    fn lists_are_the_whole_truth_for_clients() {
        let rules = rules(&[name("web"), Principal::Id(1000)], &[name("staff")]).expect("known");
        assert!(rules.admits_client(&who(33, 33, &[])));
        assert!(rules.admits_client(&who(1000, 1, &[])));
        assert!(rules.admits_client(&who(1, 50, &[])), "first group");
        assert!(rules.admits_client(&who(1, 1, &[7, 50])), "other groups");
        assert!(!rules.admits_client(&who(1, 51, &[])), "the first entry of a name counts");
        assert!(!rules.admits_client(&who(0, 0, &[])));
        assert!(!rules.admits_client(&who(990, 990, &[])));
    }

    #[test]
    fn changes_are_for_root_and_the_daemons_user() {
        let rules = rules(&[name("web")], &[]).expect("known");
        for (uid, status, changes) in
            [(0, true, true), (990, true, true), (33, true, false), (34, false, false)]
        {
            assert_eq!(rules.admits_status(&who(uid, 1, &[])), status, "{uid}");
            assert_eq!(rules.admits_changes(&who(uid, 1, &[])), changes, "{uid}");
        }
    }

    #[test]
    fn unknown_names_are_refused_by_name() {
        assert_eq!(rules(&[name("bad")], &[]), Err(AccessError::User("bad".to_owned())));
        assert_eq!(rules(&[], &[name("web")]), Err(AccessError::Group("web".to_owned())));
    }
}
