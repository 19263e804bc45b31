//! Rules of access: pure functions of what the kernel says about the other side.
//!
//! Names are looked up once, at start, in /etc/passwd and /etc/group. Other directories (LDAP and
//! the like) are not asked: their libraries run code in this process, may hang, and need the C
//! library's lookups. A user from there is configured by number. Membership is the kernel's answer
//! at connection time, not the file's.

use std::collections::BTreeSet;

use piped_config::{Names, Principal, UnknownName};

use crate::parties::Credentials;

/// A set of users and groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Circle {
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
}

/// List with the wrong name, and the error.
pub type Misnamed = (&'static str, UnknownName);

impl Circle {
    /// Looks the names up once.
    ///
    /// # Errors
    /// The list, `users` or `groups`, and its unknown name.
    pub fn new(users: &[Principal], groups: &[Principal], names: &Names) -> Result<Self, Misnamed> {
        let users = users.iter().map(|user| names.user_of(user)).collect::<Result<_, _>>();
        let groups = groups.iter().map(|group| names.group_of(group)).collect::<Result<_, _>>();
        let users = users.map_err(|error| ("users", error))?;
        let groups = groups.map_err(|error| ("groups", error))?;
        Ok(Self { users, groups })
    }

    /// Whether no user and no group is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// Whether a process is in it, by its user or by any group that the kernel noted when it
    /// connected.
    #[must_use]
    pub fn has(&self, who: &Credentials) -> bool {
        let group = |gid| self.groups.contains(gid);
        self.users.contains(&who.uid) || group(&who.gid) || who.groups.iter().any(group)
    }
}

/// Lists of `[access]` and `[admin]`, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    clients: Circle,
    onlookers: Circle,
    admins: Circle,
    /// User of the daemon.
    own: u32,
}

/// Reason why a configuration has no valid rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[{table}] {key}: {error}")]
pub struct RulesError {
    table: &'static str,
    key: String,
    error: UnknownName,
}

const ROOT: u32 = 0;

impl Rules {
    /// Resolves the configured names. `own` is the daemon's user.
    ///
    /// # Errors
    /// [`RulesError`], naming the key.
    pub fn new(config: &piped_config::Config, names: &Names, own: u32) -> Result<Self, RulesError> {
        let (access, admin) = (&config.access, &config.admin);
        let circle = |(users, groups), table, prefix| {
            Circle::new(users, groups, names).map_err(|(list, error)| {
                let key = format!("{prefix}{list}");
                RulesError { table, key, error }
            })
        };
        Ok(Self {
            clients: circle((&access.users, &access.groups), "access", "")?,
            onlookers: circle((&admin.status_users, &admin.status_groups), "admin", "status_")?,
            admins: circle((&admin.users, &admin.groups), "admin", "")?,
            own,
        })
    }

    /// Whether only the daemon's own user and root are clients, so that nobody else needs access to
    /// their socket.
    #[must_use]
    pub fn clients_are_private(&self) -> bool {
        self.clients.is_empty()
    }

    /// Whether only these two are operators.
    #[must_use]
    pub fn operators_are_private(&self) -> bool {
        self.clients.is_empty() && self.onlookers.is_empty() && self.admins.is_empty()
    }

    /// Whether a process may connect as a client. The lists name the users, beside root and the
    /// daemon's own user, which always may: they could take what they want from the daemon anyway,
    /// so a refusal would only hinder operators.
    #[must_use]
    pub fn admits_client(&self, who: &Credentials) -> bool {
        self.owns(who) || self.clients.has(who)
    }

    /// Whether a process may look at the status.
    #[must_use]
    pub fn admits_status(&self, who: &Credentials) -> bool {
        let onlookers = if self.onlookers.is_empty() { &self.clients } else { &self.onlookers };
        self.admits_changes(who) || onlookers.has(who)
    }

    /// Whether a process may change the running daemon.
    #[must_use]
    pub fn admits_changes(&self, who: &Credentials) -> bool {
        self.owns(who) || self.admins.has(who)
    }

    fn owns(&self, who: &Credentials) -> bool {
        who.uid == ROOT || who.uid == self.own
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

    fn configured(change: impl FnOnce(&mut piped_config::Config)) -> Result<Rules, RulesError> {
        let mut config = piped_config::Config::default();
        change(&mut config);
        Rules::new(&config, &Names::parse(PASSWD, GROUP), 990)
    }

    fn rules(users: &[Principal], groups: &[Principal]) -> Result<Rules, RulesError> {
        configured(|config| {
            config.access.users = users.to_vec();
            config.access.groups = groups.to_vec();
        })
    }

    fn name(name: &str) -> Principal {
        Principal::Name(name.to_owned())
    }

    #[test]
    fn empty_lists_admit_the_daemons_user_and_root() {
        let rules = rules(&[], &[]).expect("no names");
        assert!(rules.clients_are_private() && rules.operators_are_private());
        assert!(rules.admits_client(&who(0, 0, &[])));
        assert!(rules.admits_client(&who(990, 990, &[])));
        assert!(!rules.admits_client(&who(33, 0, &[0, 990])), "groups of root are not root");
    }

    #[test]
    fn lists_add_clients_to_root_and_the_daemons_user() {
        let rules = rules(&[name("web"), Principal::Id(1000)], &[name("staff")]).expect("known");
        assert!(rules.admits_client(&who(33, 33, &[])));
        assert!(rules.admits_client(&who(1000, 1, &[])));
        assert!(rules.admits_client(&who(1, 50, &[])), "first group");
        assert!(rules.admits_client(&who(1, 1, &[7, 50])), "other groups");
        assert!(!rules.admits_client(&who(1, 51, &[])), "the first entry of a name counts");
        assert!(!rules.admits_client(&who(1, 0, &[0, 990])), "groups of root are not root");
        assert!(rules.admits_client(&who(0, 0, &[])) && rules.admits_client(&who(990, 990, &[])));
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
    fn operators_are_who_the_lists_name_beside_root_and_the_daemons_user() {
        let rules = configured(|config| {
            config.access.users = vec![name("web")];
            config.admin.groups = vec![name("staff")];
            config.admin.users = vec![Principal::Id(7)];
        });
        let rules = rules.expect("known");
        assert!(!rules.operators_are_private());
        for (who, status, changes) in [
            (who(0, 0, &[]), true, true),
            (who(990, 1, &[]), true, true),
            (who(7, 1, &[]), true, true),
            (who(8, 50, &[]), true, true),
            (who(8, 1, &[3, 50]), true, true),
            (who(33, 1, &[]), true, false),
            (who(8, 1, &[51]), false, false),
        ] {
            assert_eq!(rules.admits_status(&who), status, "{who:?}");
            assert_eq!(rules.admits_changes(&who), changes, "{who:?}");
        }
        assert!(
            !rules.admits_client(&who(7, 50, &[])),
            "an administrator is not therefore a client"
        );
    }

    #[test]
    fn lists_of_onlookers_take_the_place_of_the_clients() {
        let rules = configured(|config| {
            config.access.users = vec![name("web")];
            config.admin.status_groups = vec![name("staff")];
        });
        let rules = rules.expect("known");
        assert!(!rules.admits_status(&who(33, 33, &[])), "a client, and not listed");
        assert!(rules.admits_status(&who(1, 50, &[])) && !rules.admits_changes(&who(1, 50, &[])));
        assert!(rules.admits_status(&who(0, 0, &[])) && rules.admits_status(&who(990, 1, &[])));
        let rules = configured(|config| config.admin.status_users = vec![Principal::Id(7)]);
        let rules = rules.expect("known");
        assert!(rules.clients_are_private() && !rules.operators_are_private());
    }

    #[test]
    fn unknown_names_are_refused_by_key_and_name() {
        let refused = |change: fn(&mut piped_config::Config)| {
            configured(change).expect_err("not known").to_string()
        };
        for (text, parts) in [
            (refused(|it| it.access.users = vec![name("bad")]), ["[access] users", "user `bad`"]),
            (
                refused(|it| it.access.groups = vec![name("web")]),
                ["[access] groups", "group `web`"],
            ),
            (refused(|it| it.admin.users = vec![name("bad")]), ["[admin] users", "user `bad`"]),
            (
                refused(|it| it.admin.status_groups = vec![name("web")]),
                ["[admin] status_groups", "group `web`"],
            ),
        ] {
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}
