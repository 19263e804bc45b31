//! What clients and peers open, hold, offer and give back.
//!
//! ```text
//!   ServeOpen ─► Effect::Open ─► look_up ─┬─► region, channel ─► driver: shard ─► hold
//!                                         └─► file: opened by the driver ─┘         │
//!                                    still allowed? yes: in the book. no: ended ◄───┘
//! ```
//!
//! An open takes time, and a reload may come in between. So the right is looked at again when the
//! shard has it: [`Control::hold`] enters it in the book, or ends it.

use piped_config::Limits;
use piped_config::admin::calibrate::ECHO_REGION;
use piped_config::admin::ending::HandleReport;
use piped_core::access::{Access, OpenKind};
use piped_core::ids::{ChannelId, RegionId, SessionId};
use piped_core::names::node_of;
use piped_engine::command::{Command, OpenRequest, Origin, Standing};

use crate::channels::ChannelSource;
use crate::control::{Control, Effect};
use crate::fault::OpenFault;
use crate::holdings::{Holder, Law, Place, Right, check_echo, check_echo_of_node};
use crate::offers::{self, Counts, Kind};
use crate::parties::{Asker, Credentials, NodeOf};
use crate::regions::RegionSource;

/// A node that asks for something: the name that it has given itself, and what stands behind that.
#[derive(Debug, Clone)]
pub struct Node {
    /// The name of the node, or of one of its shards.
    pub name: String,
    /// What stands behind the name.
    pub standing: Standing,
    /// Groups that the node is in, if it has proved its name.
    pub groups: Vec<String>,
}

impl Node {
    /// The party that asks; `user`: the one of [`Control::user_of`].
    #[must_use]
    pub fn asker<'a>(&'a self, user: Option<&'a Credentials>) -> Asker<'a> {
        let name = node_of(&self.name);
        match self.standing {
            Standing::Proven => Asker::Peer(NodeOf { name, groups: &self.groups }),
            Standing::Plain(_) => Asker::Plain { name, user },
        }
    }

    /// The party that holds what it opened.
    #[must_use]
    pub fn holder(&self) -> Holder {
        let name = node_of(&self.name).to_owned();
        match self.standing {
            Standing::Proven => Holder::Peer(name),
            Standing::Plain(Origin::User(uid)) => Holder::Plain { name, user: Some(uid) },
            Standing::Plain(Origin::Site(_)) => Holder::Plain { name, user: None },
        }
    }
}

/// What a peer asked for, as far as it can be found without a file system.
#[derive(Debug)]
pub enum Found<M> {
    /// A region of a client of this node.
    Region(RegionSource<M>),
    /// The region for calibrations, which the driver has.
    Echo,
    /// A channel of a client of this node.
    Channel(ChannelSource),
    /// A file or directory below an export, which the driver opens.
    File {
        /// The user of the node that asks, if it is known only by that.
        user: Option<Credentials>,
    },
}

impl<M: Clone> Control<M> {
    /// The user of this machine that runs a node, if the node is known only by that.
    #[must_use]
    pub fn user_of(&self, node: &Node) -> Option<Credentials> {
        match node.standing {
            Standing::Plain(Origin::User(uid)) => Some(self.credentials_of(uid)),
            Standing::Plain(Origin::Site(_)) | Standing::Proven => None,
        }
    }

    /// Looks up what a peer asks for, and the right that it will have.
    ///
    /// # Errors
    /// There is no such thing, or not for that node.
    pub fn look_up(&self, node: &Node, open: &OpenRequest) -> Result<(Found<M>, Right), OpenFault> {
        let OpenRequest { kind, name, path, access, .. } = open;
        let (user, name) = (self.user_of(node), name.clone());
        match kind {
            OpenKind::Region if name == ECHO_REGION => {
                check_echo_of_node(self.rules(), user.as_ref())?;
                let held = Right::Region { name, region: RegionId::ECHO, access: *access };
                Ok((Found::Echo, held))
            }
            OpenKind::Region => {
                let found = self.regions.find(&name, *access, node.asker(user.as_ref()))?;
                let held = Right::Region { name, region: found.region, access: *access };
                Ok((Found::Region(found), held))
            }
            OpenKind::Channel => {
                let found = self.channels.find(&name)?;
                Ok((Found::Channel(found), Right::Channel { name }))
            }
            // Which of the two it is, the driver knows that opens it.
            OpenKind::File | OpenKind::Directory => {
                let root = self.grants().root(&name);
                let (path, access) = (path.clone(), *access);
                Ok((Found::File { user }, Right::File { export: name, path, access, root }))
            }
        }
    }

    /// Checks the right of a user to the region for calibrations, if it is that region.
    ///
    /// # Errors
    /// The user may not calibrate.
    pub fn check_echo(&self, name: &str, who: &Credentials) -> Result<(), OpenFault> {
        if name == ECHO_REGION { check_echo(self.rules(), who) } else { Ok(()) }
    }

    /// Finds a region for a client.
    ///
    /// # Errors
    /// There is none of that name, or not for that user or access.
    pub fn find_region(
        &self,
        name: &str,
        access: Access,
        who: &Credentials,
    ) -> Result<RegionSource<M>, OpenFault> {
        self.regions.find(name, access, Asker::User(who))
    }

    /// Finds a channel for a client that is to send to it.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn find_channel(&self, name: &str) -> Result<ChannelSource, OpenFault> {
        self.channels.find(name)
    }

    /// Enters what was opened in the book if it is still allowed, and else ends it.
    ///
    /// # Errors
    /// A reload took the right away while it was opened.
    pub fn hold(&mut self, place: Place, holder: Holder, held: Right) -> Result<(), OpenFault> {
        let admitted = self.law().admits(&holder, &held);
        match admitted {
            Ok(()) => self.holdings.enter(place, holder, held),
            Err(_) => self.end(place, &held),
        }
        admitted
    }

    /// A handle is open no more.
    pub fn leave(&mut self, place: Place) {
        self.holdings.leave(place);
    }

    /// Ends a handle by its number in the book; what it was.
    pub fn end_handle(&mut self, number: u64) -> Option<HandleReport> {
        let (place, line) = self.holdings.take(number)?;
        let report = line.report(place);
        self.end(place, &line.held);
        Some(report)
    }

    /// Ends a session. `false`: there is none, or it ends already.
    pub fn end_session(&mut self, id: SessionId, why: &str) -> bool {
        self.end_sessions(|it, _| it == id, why) > 0
    }

    /// A session ends by itself. `false`: there is none, or it ends already.
    pub fn mark_ending(&mut self, id: SessionId) -> bool {
        !self.sessions.end(|it, _| it == id).is_empty()
    }

    /// Ends the sessions of some: how many.
    pub fn end_sessions(
        &mut self,
        is_it: impl Fn(SessionId, &Credentials) -> bool,
        why: &str,
    ) -> u64 {
        let ended = self.sessions.end(is_it);
        let count = ended.len() as u64;
        for session in ended {
            self.effects.push_back(Effect::EndSession { session, why: why.to_owned() });
        }
        count
    }

    /// Decides anew which sessions and handles may stay, and ends the rest: how many of each.
    pub(crate) fn take_back(&mut self) -> (u64, u64) {
        let live = self.live().clone();
        let sessions = self.end_sessions(
            |_, who| !live.rules.admits_client(who),
            "[access] does not name it any more",
        );
        let struck = self.holdings.strike(&Law {
            live: &live,
            regions: &self.regions,
            members: &self.members,
        });
        let mut handles = 0;
        for (_, held) in &struck {
            // A region that its owner has withdrawn ended by that.
            let was_over =
                matches!(held, Right::Region { region, .. } if !self.regions.has(*region));
            handles += u64::from(!was_over);
        }
        for (place, held) in struck {
            self.end(place, &held);
        }
        (sessions, handles)
    }

    /// Has the shard end what was opened; what was offered is offered no more.
    fn end(&mut self, place: Place, held: &Right) {
        let (shards, command) = match place {
            Place::Session(session, handle) => {
                let Some(found) = self.sessions.get(session) else { return };
                (found.shards.clone(), Command::EndHandle { session, handle })
            }
            Place::Peer(shard, ticket) => (vec![shard], Command::EndServed { ticket }),
        };
        match held {
            Right::OfferedRegion { region, .. } => {
                self.regions.withdraw(*region);
                self.revoke(*region);
            }
            Right::OfferedChannel { channel, .. } => self.channels.withdraw(*channel),
            _ => {}
        }
        for shard in shards {
            self.commands[shard].push_back(command.clone());
        }
    }

    /// Checks whether a session may offer one more of a kind.
    ///
    /// # Errors
    /// The limit that forbids it.
    pub fn check_offer(
        &self,
        session: SessionId,
        kind: Kind,
        limits: &Limits,
    ) -> Result<(), String> {
        let user = |id| self.sessions.get(id).map(|session| session.who.uid);
        let uid = user(session).ok_or("the session is over")?;
        let mut counts = Counts::default();
        let mut count = |(owner, count): (SessionId, u32)| {
            counts.all += count;
            counts.of_user += if user(owner) == Some(uid) { count } else { 0 };
            counts.of_session += if owner == session { count } else { 0 };
        };
        match kind {
            Kind::Region => self.regions.owners().for_each(&mut count),
            Kind::Channel => self.channels.owners().for_each(&mut count),
        }
        offers::check(kind, uid, counts, limits)
    }

    /// Offers a region, which lies in a segment of so many bytes.
    ///
    /// # Errors
    /// The name or the range is no good.
    pub fn offer_region(
        &mut self,
        name: &str,
        source: RegionSource<M>,
        segment_bytes: u64,
    ) -> Result<RegionSource<M>, OpenFault> {
        self.regions.offer(name, source, segment_bytes)
    }

    /// Offers a channel on which a session receives.
    ///
    /// # Errors
    /// The name is no good.
    pub fn offer_channel(
        &mut self,
        name: &str,
        owner: SessionId,
        home: usize,
    ) -> Result<ChannelSource, OpenFault> {
        self.channels.offer(name, owner, home)
    }

    /// Takes a channel back.
    pub fn withdraw_channel(&mut self, channel: ChannelId) {
        self.channels.withdraw(channel);
    }

    /// Takes a region back. [`Effect::RegionUnused`] says when no shard uses it any more.
    pub fn withdraw_region(&mut self, region: RegionId) {
        self.regions.withdraw(region);
        self.withdrawals.begin(region, self.shards());
        self.revoke(region);
    }

    /// Takes back all that a session offers and holds.
    pub fn close_session(&mut self, session: SessionId) {
        for region in self.regions.withdraw_all(session) {
            self.revoke(region);
        }
        self.channels.withdraw_all(session);
        self.holdings.leave_session(session);
    }

    /// Forgets a session, of which nothing is left.
    pub fn leave_session(&mut self, session: SessionId) {
        self.sessions.leave(session);
        self.holdings.leave_session(session);
    }

    fn revoke(&mut self, region: RegionId) {
        self.tell_all(&Command::RevokeRegion { region });
    }

    fn law(&self) -> Law<'_, M> {
        Law { live: self.live(), regions: &self.regions, members: &self.members }
    }
}
