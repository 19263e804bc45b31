//! What is open, which party has it and by which right: the book by which access is taken back.
//!
//! ```text
//!   an open succeeds ──► a line in the book ──► its holder closes it, or is gone
//!                              │
//!      reload: decided anew ───┴──► not allowed any more: ends with Gone
//! ```
//!
//! What is decided anew is asked of the functions that decided at the open
//! ([`Grants::still`](crate::grants::Grants::still), [`Regions::find`]): there is no second rule.
//! An open that was under way at a reload is decided anew when it gets its line, so none slips
//! through.

use std::collections::BTreeMap;

use piped_config::admin::calibrate::ECHO_REGION;
use piped_config::admin::ending::{HANDLES_LISTED_MAX, HandleReport, Handles};
use piped_core::access::{Access, OpenKind};
use piped_core::ids::{ChannelId, HandleId, RegionId, SessionId};
use piped_core::status::Status;

use crate::access::Rules;
use crate::control::Live;
use crate::fault::OpenFault;
use crate::grants::Root;
use crate::members::Members;
use crate::parties::{Asker, Credentials, NodeOf};
use crate::regions::Regions;

/// Where a handle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A handle of a client.
    Session(SessionId, HandleId),
    /// A handle of a peer, by the shard that serves it and its ticket there.
    Peer(usize, u64),
}

/// The party that has a handle.
#[derive(Debug, Clone)]
pub enum Holder {
    /// A client, by its user.
    User(Credentials),
    /// A node that has proved its name.
    Peer(String),
    /// A node that only says its name.
    Plain {
        /// The name that it says.
        name: String,
        /// The user, if the node runs on this machine.
        user: Option<u32>,
    },
}

impl Holder {
    /// The party that asks. `local`: the user of a node on this machine, as it is known now.
    fn asker<'a>(&'a self, local: Option<&'a Credentials>, members: &'a Members) -> Asker<'a> {
        match self {
            Self::User(who) => Asker::User(who),
            Self::Peer(name) => Asker::Peer(NodeOf { name, groups: members.groups_of(name) }),
            Self::Plain { name, .. } => Asker::Plain { name, user: local },
        }
    }
}

/// What a handle is a right to.
#[derive(Debug, Clone)]
pub enum Right {
    /// A file that its client opened itself and passed.
    Passed(Access),
    /// A file below an export, which was this directory.
    File {
        /// The export by its name.
        export: String,
        /// The path below it.
        path: Vec<u8>,
        /// What may be done with it.
        access: Access,
        /// The directory that the export was.
        root: Option<Root>,
    },
    /// A region of another client.
    Region {
        /// The name under which it is offered.
        name: String,
        /// Its number on this node.
        region: RegionId,
        /// What may be done with it.
        access: Access,
    },
    /// A channel on which another client receives.
    Channel {
        /// The name under which it is offered.
        name: String,
    },
    /// A region that its client offers.
    OfferedRegion {
        /// The name under which it is offered.
        name: String,
        /// Its number on this node.
        region: RegionId,
        /// What may be done with it.
        access: Access,
    },
    /// A channel on which its client receives.
    OfferedChannel {
        /// The name under which it is offered.
        name: String,
        /// Its number on this node.
        channel: ChannelId,
    },
    /// Something at a peer, which decides itself.
    Remote {
        /// The peer by its name.
        peer: String,
        /// The kind of thing.
        kind: OpenKind,
        /// The name under which it is offered.
        name: String,
        /// The path below it.
        path: Vec<u8>,
        /// What may be done with it.
        access: Access,
    },
}

/// A line of the book.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    number: u64,
    holder: Holder,
    pub(crate) held: Right,
}

/// The book of all handles.
#[derive(Debug, Default)]
pub struct Holdings {
    lines: BTreeMap<Place, Line>,
    last: u64,
}

/// What decides whether something may stay open.
pub(crate) struct Law<'a, M> {
    pub(crate) live: &'a Live,
    pub(crate) regions: &'a Regions<M>,
    pub(crate) members: &'a Members,
}

impl<M: Clone> Law<'_, M> {
    /// Whether a party may still use what was opened.
    pub(crate) fn admits(&self, holder: &Holder, held: &Right) -> Result<(), OpenFault> {
        let local = match holder {
            Holder::Plain { user: Some(uid), .. } => Some(self.live.credentials_of(*uid)),
            _ => None,
        };
        let asker = holder.asker(local.as_ref(), self.members);
        if let Asker::User(who) | Asker::Plain { user: Some(who), .. } = asker
            && !self.live.rules.admits_client(who)
        {
            return Err(OpenFault::denied(format!("user {} may not use this daemon", who.uid)));
        }
        // A node that has got a key, or has lost it, has another standing when it comes again.
        let is_pinned = |name: &str| self.live.keyring.is_reserved(name);
        let is_other = match holder {
            Holder::User(_) => false,
            Holder::Peer(name) => !is_pinned(name) && self.members.certificate(name).is_none(),
            Holder::Plain { name, .. } => is_pinned(name) || self.members.has_seen(name),
        };
        if let Holder::Peer(name) | Holder::Plain { name, .. } = holder
            && is_other
        {
            return Err(OpenFault::denied(format!("`{name}` has another standing now")));
        }
        match (held, holder) {
            (Right::File { export, access, root, .. }, _) => {
                self.live.grants.still(asker, export, *access, *root)
            }
            (Right::Remote { kind: OpenKind::Region, name, .. }, Holder::User(who))
                if name == ECHO_REGION =>
            {
                check_echo(&self.live.rules, who)
            }
            (Right::Region { name, .. }, _) if name == ECHO_REGION => {
                check_echo_of_node(&self.live.rules, local.as_ref())
            }
            (Right::Region { name, region, access }, _) => {
                let found = self.regions.find(name, *access, asker)?;
                let gone =
                    || OpenFault::new(Status::Gone, format!("the region `{name}` is another"));
                (found.region == *region).then_some(()).ok_or_else(gone)
            }
            _ => Ok(()),
        }
    }
}

/// Checks the right to what is there for calibrations: it is for users that may calibrate.
///
/// # Errors
/// The user may not.
pub fn check_echo(rules: &Rules, who: &Credentials) -> Result<(), OpenFault> {
    if rules.admits_changes(who) {
        return Ok(());
    }
    Err(OpenFault::denied(format!(
        "the region `{ECHO_REGION}` is for who may change the daemon: root, its own user, and whom \
         [admin] users and groups name"
    )))
}

/// Checks the right of a node to what is there for calibrations. A node that a user of this machine
/// runs may do what its user may; other nodes may.
///
/// # Errors
/// The user may not.
pub fn check_echo_of_node(rules: &Rules, user: Option<&Credentials>) -> Result<(), OpenFault> {
    user.map_or(Ok(()), |who| check_echo(rules, who))
}

impl Holdings {
    /// Enters a line for what was opened.
    pub(crate) fn enter(&mut self, place: Place, holder: Holder, held: Right) {
        self.last += 1;
        self.lines.insert(place, Line { number: self.last, holder, held });
    }

    /// Something is open no more.
    pub(crate) fn leave(&mut self, place: Place) {
        self.lines.remove(&place);
    }

    /// Nothing of a session is open any more.
    pub(crate) fn leave_session(&mut self, session: SessionId) {
        let all =
            Place::Session(session, HandleId(0))..=Place::Session(session, HandleId(u32::MAX));
        let places: Vec<Place> = self.lines.range(all).map(|(&place, _)| place).collect();
        places.iter().for_each(|place| self.leave(*place));
    }

    /// Strikes what is not allowed any more.
    pub(crate) fn strike<M: Clone>(&mut self, law: &Law<'_, M>) -> Vec<(Place, Right)> {
        let refused = |line: &Line| law.admits(&line.holder, &line.held).is_err();
        let struck = self.lines.extract_if(.., |_, line| refused(line));
        struck.map(|(place, line)| (place, line.held)).collect()
    }

    /// Strikes one line by its number.
    pub(crate) fn take(&mut self, number: u64) -> Option<(Place, Line)> {
        let place = self.lines.iter().find(|(_, line)| line.number == number).map(|it| *it.0)?;
        Some((place, self.lines.remove(&place)?))
    }

    /// The book for the admin API.
    #[must_use]
    pub fn report(&self) -> Handles {
        // Lines that are not listed cost no words: a listing holds up all opens.
        let mut listed: Vec<(u64, Place)> =
            self.lines.iter().map(|(place, line)| (line.number, *place)).collect();
        if listed.len() > HANDLES_LISTED_MAX {
            listed.select_nth_unstable(HANDLES_LISTED_MAX);
            listed.truncate(HANDLES_LISTED_MAX);
        }
        listed.sort_unstable();
        let line = |(_, place)| Some(self.lines.get(&place)?.report(place));
        let handles = listed.into_iter().filter_map(line).collect();
        Handles { total: self.lines.len() as u64, handles }
    }
}

impl Line {
    pub(crate) fn report(&self, place: Place) -> HandleReport {
        let both = |name: &str, path: &[u8]| {
            if path.is_empty() {
                return name.to_owned();
            }
            format!("{name}/{}", piped_text::shown_bytes(path))
        };
        let (kind, name, at, access) = match &self.held {
            Right::Passed(access) => ("file", String::new(), None, *access),
            Right::File { export, path, access, .. } => {
                ("export", both(export, path), None, *access)
            }
            Right::Region { name, access, .. } | Right::OfferedRegion { name, access, .. } => {
                ("region", name.clone(), None, *access)
            }
            Right::Channel { name } => ("channel", name.clone(), None, Access::WRITE),
            Right::OfferedChannel { name, .. } => ("channel", name.clone(), None, Access::READ),
            Right::Remote { peer, kind, name, path, access } => {
                let kind = match kind {
                    OpenKind::File | OpenKind::Directory => "export",
                    OpenKind::Region => "region",
                    OpenKind::Channel => "channel",
                };
                (kind, both(name, path), Some(peer.clone()), *access)
            }
        };
        let (uid, peer) = match &self.holder {
            Holder::User(who) => (Some(who.uid), None),
            Holder::Peer(name) => (None, Some(name.clone())),
            Holder::Plain { name, user } => (*user, Some(name.clone())),
        };
        HandleReport {
            handle: self.number,
            session: match place {
                Place::Session(session, _) => Some(session.0),
                Place::Peer(..) => None,
            },
            uid,
            peer,
            kind: kind.to_owned(),
            name,
            at,
            offers: matches!(self.held, Right::OfferedRegion { .. } | Right::OfferedChannel { .. }),
            read: access.read,
            write: access.write,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use piped_config::Config;

    use super::*;
    use crate::keyring::Keyring;

    #[test]
    fn the_oldest_are_listed_in_order_and_all_are_counted() {
        let mut book = Holdings::default();
        let all = HANDLES_LISTED_MAX as u64 + 100;
        for number in (0..all).rev() {
            let held = Right::Channel { name: "mail".to_owned() };
            book.enter(Place::Peer(0, number), Holder::Peer("beta".to_owned()), held);
        }
        let report = book.report();
        assert_eq!(report.total, all);
        let numbers: Vec<u64> = report.handles.iter().map(|it| it.handle).collect();
        assert_eq!(numbers, (1..=HANDLES_LISTED_MAX as u64).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_there_for_calibrations_is_for_nodes_of_users_who_may_calibrate() {
        let rules = Rules::new(&piped_config::Config::default(), &Default::default(), 7);
        let rules = rules.expect("nobody is named");
        let check = |uid| check_echo_of_node(&rules, Some(&Credentials::of(uid, uid)));
        assert!(check(0).is_ok() && check(7).is_ok());
        assert_eq!(check(8).expect_err("somebody").status, Status::Denied);
        check_echo_of_node(&rules, None).expect("a node of another machine, or with a key");
    }

    #[test]
    fn a_node_that_gets_a_key_or_loses_it_has_nothing_of_the_other_standing() {
        let key = || piped_config::NodeKey::generate().expect("random");
        let mut live = Live::default_for_tests();
        let keyring = |config: &Config| Rc::new(Keyring::new(config, Some(key())).expect("keys"));
        let mut config = Config::default();
        let with = |live: &Live, holder: Holder| {
            let held = Right::Channel { name: "mail".to_owned() };
            let (regions, members) = (&Regions::<()>::default(), &Members::default());
            Law { live, regions, members }.admits(&holder, &held).is_ok()
        };
        let plain = || Holder::Plain { name: "beta".to_owned(), user: None };
        let proven = || Holder::Peer("beta".to_owned());
        live.keyring = keyring(&config);
        assert_eq!([plain(), proven()].map(|it| with(&live, it)), [true, false]);
        let peer = piped_config::Peer { key: Some(key().public()), ..Default::default() };
        config.peers.insert("beta".to_owned(), peer);
        live.keyring = keyring(&config);
        assert_eq!([plain(), proven()].map(|it| with(&live, it)), [false, true]);
    }
}
