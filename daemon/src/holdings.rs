//! What is open, by whom and by which right: the book by which access is taken back.
//!
//! ```text
//!   an open succeeds ──► a line in the book ──► its holder closes it, or is gone
//!                              │
//!      reload: decided anew ───┴──► not allowed any more: ends with Gone
//! ```
//!
//! What is decided anew is asked of the functions that decided at the open ([`Exports::still`],
//! [`Regions::find`]): there is no second rule. An open that was under way at a reload is decided anew when it gets its
//! line, so none slips through.

use std::collections::BTreeMap;

use piped_config::admin::calibrate::ECHO_REGION;
use piped_config::admin::ending::{HANDLES_LISTED_MAX, HandleReport, Handles};
use piped_core::access::{Access, OpenKind};
use piped_core::ids::{ChannelId, HandleId, RegionId, SessionId};
use piped_core::status::Status;
use piped_engine::command::Command;

use crate::client::access::Rules;
use crate::control::Control;
use crate::io::socket::Credentials;
use crate::open::OpenFault;
use crate::open::export::{Asker, Exports, Root};
use crate::open::file::denied;
use crate::open::region::Regions;
use crate::shard::message::Message;

/// Where a handle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Of a client.
    Session(SessionId, HandleId),
    /// Of a peer, by the shard that serves it and its ticket there.
    Peer(usize, u64),
}

/// Whose a handle is.
#[derive(Debug, Clone)]
pub(crate) enum Holder {
    /// A client's.
    User(Credentials),
    /// A node's that has proved its name.
    Peer(String),
    /// A node's whose name is its word; the user, if it runs on this machine.
    Plain { name: String, user: Option<u32> },
}

impl Holder {
    /// `local`: the user of a node on this machine, as it is known now.
    fn asker<'a>(&'a self, local: Option<&'a Credentials>) -> Asker<'a> {
        match self {
            Self::User(who) => Asker::User(who),
            Self::Peer(name) => Asker::Peer(name),
            Self::Plain { name, .. } => Asker::Plain { name, user: local },
        }
    }
}

/// What a handle is a right to.
#[derive(Debug, Clone)]
pub(crate) enum Right {
    /// A file that its client opened itself and passed.
    Passed(Access),
    /// A file below an export, which was this directory.
    File { export: String, path: Vec<u8>, access: Access, root: Option<Root> },
    /// Another client's region.
    Region { name: String, region: RegionId, access: Access },
    /// A channel on which another client receives.
    Channel { name: String },
    /// Its client's own region.
    OfferedRegion { name: String, region: RegionId, access: Access },
    /// A channel on which its client receives.
    OfferedChannel { name: String, channel: ChannelId },
    /// Something at a peer, which decides itself.
    Remote { peer: String, kind: OpenKind, name: String, path: Vec<u8>, access: Access },
}

/// A line of the book.
#[derive(Debug, Clone)]
struct Line {
    number: u64,
    holder: Holder,
    held: Right,
}

/// The book.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    lines: BTreeMap<Place, Line>,
    last: u64,
}

/// By what is decided.
#[derive(Clone, Copy)]
struct Law<'a> {
    rules: &'a Rules,
    exports: &'a Exports,
    regions: &'a Regions,
    /// A user's groups as the system's files have them now.
    credentials: &'a dyn Fn(u32) -> Credentials,
}

impl Law<'_> {
    /// Whether somebody may still use what was opened.
    fn admits(&self, holder: &Holder, held: &Right) -> Result<(), OpenFault> {
        let local = match holder {
            Holder::Plain { user: Some(uid), .. } => Some((self.credentials)(*uid)),
            _ => None,
        };
        let asker = holder.asker(local.as_ref());
        if let Asker::User(who) | Asker::Plain { user: Some(who), .. } = asker
            && !self.rules.admits_client(who)
        {
            return Err(denied(format!("user {} may not use this daemon", who.uid)));
        }
        match (held, holder) {
            (Right::File { export, access, root, .. }, _) => {
                self.exports.still(asker, export, *access, *root)
            }
            (Right::Remote { kind: OpenKind::Region, name, .. }, Holder::User(who))
                if name == ECHO_REGION =>
            {
                check_echo(self.rules, who)
            }
            (Right::Region { name, .. }, _) if name == ECHO_REGION => {
                check_echo_of_node(self.rules, local.as_ref())
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

/// What is there for calibrations is for who may calibrate.
pub(crate) fn check_echo(rules: &Rules, who: &Credentials) -> Result<(), OpenFault> {
    if rules.admits_changes(who) {
        return Ok(());
    }
    Err(denied(format!(
        "the region `{ECHO_REGION}` is for who may change the daemon: root, its own user, and whom [admin] users \
         and groups name"
    )))
}

/// The same of a node: one that a user of this machine runs may do what its user may. The others are for whom it is.
pub(crate) fn check_echo_of_node(
    rules: &Rules,
    user: Option<&Credentials>,
) -> Result<(), OpenFault> {
    user.map_or(Ok(()), |who| check_echo(rules, who))
}

impl Holdings {
    /// Something was opened.
    fn enter(&mut self, place: Place, holder: Holder, held: Right) {
        self.last += 1;
        self.lines.insert(place, Line { number: self.last, holder, held });
    }

    /// It is open no more.
    pub(crate) fn leave(&mut self, place: Place) {
        self.lines.remove(&place);
    }

    /// Nor is anything of a session.
    pub(crate) fn leave_session(&mut self, session: SessionId) {
        let all =
            Place::Session(session, HandleId(0))..=Place::Session(session, HandleId(u32::MAX));
        let places: Vec<Place> = self.lines.range(all).map(|(&place, _)| place).collect();
        places.iter().for_each(|place| self.leave(*place));
    }

    /// Strikes what is not allowed any more.
    fn strike(&mut self, law: Law<'_>) -> Vec<(Place, Right)> {
        let refused = |line: &Line| law.admits(&line.holder, &line.held).is_err();
        let struck = self.lines.extract_if(.., |_, line| refused(line));
        struck.map(|(place, line)| (place, line.held)).collect()
    }

    fn take(&mut self, number: u64) -> Option<(Place, Line)> {
        let place = self.lines.iter().find(|(_, line)| line.number == number).map(|it| *it.0)?;
        Some((place, self.lines.remove(&place)?))
    }

    /// For the admin API.
    pub(crate) fn report(&self) -> Handles {
        // Those that are not listed cost no words: who asks holds up who opens.
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
    fn report(&self, place: Place) -> HandleReport {
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
                    OpenKind::File => "export",
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

impl Control {
    /// Enters what was opened in the book, if it is still allowed.
    ///
    /// # Errors
    /// A reload took the right away while it was opened: it is to be ended.
    pub(crate) fn hold(&self, place: Place, holder: Holder, held: Right) -> Result<(), OpenFault> {
        self.by_law(|law| law.admits(&holder, &held))?;
        self.holdings.borrow_mut().enter(place, holder, held);
        Ok(())
    }

    /// Decides by the rules, exports and regions as they are now.
    fn by_law<T>(&self, decide: impl FnOnce(Law<'_>) -> T) -> T {
        let live = self.live();
        decide(Law {
            rules: &live.rules,
            exports: &live.exports,
            regions: &self.regions.borrow(),
            credentials: &|uid| self.credentials_of(uid),
        })
    }

    /// Decides anew who may stay and what may stay open, and ends the rest: how many sessions and handles.
    pub(crate) async fn take_back(&self) -> (u64, u64) {
        let live = self.live();
        let sessions = self.end_sessions(
            |who| !live.rules.admits_client(who),
            "[access] does not name it any more",
        );
        let struck = self.by_law(|law| self.holdings.borrow_mut().strike(law));
        // Its owner has withdrawn it, and that ended it.
        let was_over = |held: &Right| match held {
            Right::Region { region, .. } => !self.regions.borrow().has(*region),
            _ => false,
        };
        let handles = struck.iter().filter(|(_, held)| !was_over(held)).count() as u64;
        for (place, held) in struck {
            self.end(place, &held).await;
        }
        (sessions, handles)
    }

    /// Ends a handle by its number; what it was.
    pub(crate) async fn end_handle(&self, number: u64) -> Option<HandleReport> {
        let (place, line) = self.holdings.borrow_mut().take(number)?;
        let report = line.report(place);
        self.end(place, &line.held).await;
        Some(report)
    }

    /// Has the shard end what was opened; what was offered is offered no more.
    pub(crate) async fn end(&self, place: Place, held: &Right) {
        let (shard, command) = match place {
            Place::Session(session, handle) => {
                let Some(shard) = self.shard_of(session) else { return };
                (shard, Command::EndHandle { session, handle })
            }
            Place::Peer(shard, ticket) => (shard, Command::EndServed { ticket }),
        };
        match held {
            Right::OfferedRegion { region, .. } => {
                self.regions.borrow_mut().withdraw(*region);
                self.revoke(&[*region]).await;
            }
            Right::OfferedChannel { channel, .. } => self.channels.borrow_mut().withdraw(*channel),
            _ => {}
        }
        // A shard that is gone has nothing open.
        let _ = self.shards[shard].mailbox.send(Message::Engine(command)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
