//! Users and groups of this machine by name.

use std::collections::BTreeMap;

use crate::modes::Principal;

/// Nobody has that name here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownName {
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

/// Users and groups by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    users: BTreeMap<String, u32>,
    groups: BTreeMap<String, u32>,
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

    /// A user's number.
    #[must_use]
    pub fn uid(&self, name: &str) -> Option<u32> {
        self.users.get(name).copied()
    }

    /// A group's number.
    #[must_use]
    pub fn gid(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// The number of a user that a configuration names.
    ///
    /// # Errors
    /// Nobody has the name.
    pub fn user_of(&self, user: &Principal) -> Result<u32, UnknownName> {
        match user {
            Principal::Id(id) => Ok(*id),
            Principal::Name(name) => self.uid(name).ok_or_else(|| UnknownName::User(name.clone())),
        }
    }

    /// The number of a group that a configuration names.
    ///
    /// # Errors
    /// None has the name.
    pub fn group_of(&self, group: &Principal) -> Result<u32, UnknownName> {
        match group {
            Principal::Id(id) => Ok(*id),
            Principal::Name(name) => self.gid(name).ok_or_else(|| UnknownName::Group(name.clone())),
        }
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
