//! The state of the control thread, and what goes in and out.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use piped_config::{Config, Found, Names};
use piped_core::ids::{RegionId, SessionId};
use piped_core::names::node_of;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event, OpenRequest, Origin, Standing};

use crate::access::Rules;
use crate::channels::Channels;
use crate::cluster::roll;
use crate::dial::Dial;
use crate::discovery::{Discovery, Source};
use crate::grants::Grants;
use crate::holdings::{Holdings, Place};
use crate::homes::Homes;
use crate::journal::{Cause, Journal, Party};
use crate::keyring::Keyring;
use crate::members::Members;
use crate::note::Note;
use crate::opens::Node;
use crate::parties::{Credentials, node_of_shard};
use crate::patrol::Patrol;
use crate::peers::Peers;
use crate::regions::{Regions, Withdrawals};
use crate::reload::{Doubt, Next, Outside, Reloaded, commands, in_effect};
use crate::sessions::{Sessions, Used};
use crate::times::Times;

/// The group of a user that has none; no user is in it.
const NO_GROUP: u32 = u32::MAX;

/// What a reload replaces, as a whole.
#[derive(Debug, Clone)]
pub struct Live {
    /// The configuration in effect.
    pub config: Rc<Config>,
    /// Users and groups that have access.
    pub rules: Rc<Rules>,
    /// The keys of this node and of its peers.
    pub keyring: Rc<Keyring>,
    /// The rights to what this node offers.
    pub grants: Arc<Grants>,
    /// Users and groups of the system, as they were read with it.
    pub names: Rc<Names>,
}

impl Live {
    /// A user by its number: the groups are those of the files of the system.
    #[must_use]
    pub fn credentials_of(&self, uid: u32) -> Credentials {
        let (gid, groups) = self.names.groups_of(uid);
        Credentials { pid: 0, uid, gid: gid.unwrap_or(NO_GROUP), groups }
    }
}

/// What the driver does for the control thread, at once.
#[derive(Debug)]
pub enum Effect {
    /// Take a dial up, with [`Control::advance`].
    Dial(Box<Dial>),
    /// Write a line to the log.
    Note(Note),
    /// Look up what a peer asks a shard for, with [`Control::look_up`], and tell the shard.
    Open {
        /// The shard that asks.
        shard: usize,
        /// The number of the question there.
        ticket: u64,
        /// The node that asks.
        node: Node,
        /// What it asks for.
        open: OpenRequest,
    },
    /// Tell the client that asked for it how an open at a peer ended.
    Opened {
        /// The number from [`Control::expect_open`].
        ticket: u64,
        /// The length in bytes, or why not.
        result: Result<u64, Status>,
    },
    /// Tell a session that it ends.
    EndSession {
        /// The session by its number.
        session: SessionId,
        /// Why, for its client.
        why: String,
    },
    /// The memory of a session is free.
    SessionDrained {
        /// The session by its number.
        session: SessionId,
    },
    /// No shard uses a region any more that was withdrawn.
    RegionUnused {
        /// The region by its number.
        region: RegionId,
    },
}

/// The control thread without its clock, sockets and files. See the crate.
#[derive(Debug)]
pub struct Control<M> {
    live: Live,
    /// The peers to dial, by number.
    peers: Peers,
    /// What sources say of where peers are.
    discovery: Discovery,
    /// Nodes of the cluster whose certificates were seen.
    pub(crate) members: Members,
    pub(crate) sessions: Sessions,
    pub(crate) regions: Regions<M>,
    pub(crate) channels: Channels,
    pub(crate) withdrawals: Withdrawals,
    /// What clients and peers have open.
    pub(crate) holdings: Holdings,
    last_ticket: u64,
    /// The shards here of nodes that have proved their names.
    pub(crate) homes: Homes,
    journal: Journal,
    /// What callers at the door have used of their budgets.
    pub(crate) patrol: Patrol,
    /// Taken by the driver after each call, so there are as many as one call makes.
    pub(crate) effects: VecDeque<Effect>,
    /// For each shard, in order. A shard may have no room, so a driver takes one at a time.
    pub(crate) commands: Vec<VecDeque<Command>>,
}

impl<M: Clone> Control<M> {
    /// The control thread of a node with so many shards.
    #[must_use]
    pub fn new(shards: usize, live: Live) -> Self {
        Self {
            peers: Peers::new(&live.config),
            live,
            discovery: Discovery::default(),
            members: Members::default(),
            sessions: Sessions::default(),
            regions: Regions::default(),
            channels: Channels::default(),
            withdrawals: Withdrawals::default(),
            holdings: Holdings::default(),
            last_ticket: 0,
            homes: Homes::new(shards),
            journal: Journal::default(),
            patrol: Patrol::default(),
            effects: VecDeque::new(),
            commands: vec![VecDeque::new(); shards],
        }
    }

    /// What a shard has to say. [`Self::poll_effect`] has what follows from it.
    pub fn handle_event(&mut self, shard: usize, event: Event, now: Nanos) {
        match event {
            Event::Connect { peer, class, after } => {
                let dial = Box::new(Dial::new(shard, peer, class, after));
                self.effects.push_back(Effect::Dial(dial));
            }
            Event::LaneUp { peer, class, epoch } => {
                self.note_of_peer(Cause::Lane, &peer, now, |peer, left_out| Note::LaneUp {
                    shard,
                    peer,
                    class,
                    epoch,
                    left_out,
                });
            }
            Event::LaneDown { peer, class, reason } => {
                self.note_of_peer(Cause::Lane, &peer, now, |peer, left_out| Note::LaneDown {
                    shard,
                    peer,
                    class,
                    reason,
                    left_out,
                });
            }
            Event::LaneRefused { standing, why } => {
                let party = match standing {
                    Standing::Plain(Origin::User(uid)) => Party::User(uid),
                    Standing::Plain(Origin::Site(_)) | Standing::Proven => Party::Others,
                };
                let left_out = self.journal.may_say(Cause::Crowd, party, now);
                self.effects.push_back(Effect::Note(Note::NoPlace {
                    shard,
                    standing,
                    why,
                    left_out,
                }));
            }
            Event::StagingDrained { segment } => {
                self.effects.push_back(Effect::Note(Note::StagingDrained { shard, segment }));
            }
            Event::RemoteOpened { ticket, result, .. } => {
                self.effects.push_back(Effect::Opened { ticket, result });
            }
            Event::PeersFull { ticket, peer, user } => {
                self.effects.push_back(Effect::Opened { ticket, result: Err(Status::WouldBlock) });
                let peer = self.peers.name(peer).unwrap_or("?").to_owned();
                let note = |left_out| Effect::Note(Note::PeersFull { shard, peer, user, left_out });
                let said = self.journal.may_say(Cause::Crowd, Party::User(user), now);
                self.effects.extend(said.map(note));
            }
            Event::ServeOpen { ticket, peer, standing, open } => {
                let groups = match standing {
                    Standing::Proven => self.members.groups_of(node_of(&peer)).to_vec(),
                    Standing::Plain(_) => Vec::new(),
                };
                let node = Node { name: peer, standing, groups };
                self.effects.push_back(Effect::Open { shard, ticket, node, open });
            }
            Event::ServeClosed { ticket } => self.holdings.leave(Place::Peer(shard, ticket)),
            Event::RegionDrained { region } => {
                if self.withdrawals.handle_drained(region, shard) {
                    self.effects.push_back(Effect::RegionUnused { region });
                }
            }
            Event::SessionDrained { session } => {
                if self.sessions.drain(session, shard) {
                    self.effects.push_back(Effect::SessionDrained { session });
                }
            }
        }
    }

    /// The next thing for the driver to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether a shard has to be told something.
    #[must_use]
    pub fn has_command(&self, shard: usize) -> bool {
        !self.commands[shard].is_empty()
    }

    /// What a shard is told next.
    pub fn poll_command(&mut self, shard: usize) -> Option<Command> {
        self.commands[shard].pop_front()
    }

    /// How many shards this node has.
    #[must_use]
    pub const fn shards(&self) -> usize {
        self.commands.len()
    }

    /// What a reload replaces.
    #[must_use]
    pub const fn live(&self) -> &Live {
        &self.live
    }

    /// The configuration in effect.
    #[must_use]
    pub fn config(&self) -> &Rc<Config> {
        &self.live.config
    }

    /// The users and groups that have access.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.live.rules
    }

    /// The keys of this node and of its peers.
    #[must_use]
    pub fn keyring(&self) -> Rc<Keyring> {
        Rc::clone(&self.live.keyring)
    }

    /// The rights to what this node offers.
    #[must_use]
    pub fn grants(&self) -> &Grants {
        &self.live.grants
    }

    /// The sessions of clients.
    #[must_use]
    pub const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// A session comes, on so many shards: the numbers of these, its home first.
    pub fn enter_session(&mut self, who: Credentials, wanted: usize) -> (SessionId, Vec<usize>) {
        self.sessions.enter(who, wanted, self.commands.len())
    }

    /// A session uses so much from now on.
    pub fn note_session(&mut self, id: SessionId, used: Used) {
        self.sessions.note(id, used);
    }

    /// The regions that clients offer.
    #[must_use]
    pub const fn regions(&self) -> &Regions<M> {
        &self.regions
    }

    /// The channels on which clients receive.
    #[must_use]
    pub const fn channels(&self) -> &Channels {
        &self.channels
    }

    /// The book of what is open.
    #[must_use]
    pub const fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// A number for an open at a peer, for [`Effect::Opened`].
    pub const fn expect_open(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// The peers that this node dials.
    #[must_use]
    pub const fn peers(&self) -> &Peers {
        &self.peers
    }

    /// What sources say of where peers are.
    #[must_use]
    pub const fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    /// What this node publishes of itself; nothing if no address of it is known.
    #[must_use]
    pub fn own_entry(&self, version: &str, load_percent: Option<u32>) -> Option<Found> {
        let config = &self.live.config;
        let mut addresses = config.discovery.advertised(config.listen.address).into_iter();
        let keyring = self.keyring();
        let entry = Found {
            address: addresses.next()?,
            second_address: addresses.next().unwrap_or_default(),
            key: keyring.identity().map(|identity| identity.own().public()),
            certificate: keyring.identity().and_then(|it| it.certificate().cloned()),
            exports: Vec::new(),
            version: version.to_owned(),
            load_percent,
        };
        Some(entry.with_exports(config.exports.keys().map(String::as_str)))
    }

    /// A source says all that it knows, or why it is away. It takes effect with [`Self::settle`].
    pub fn hear(
        &mut self,
        source: Source,
        said: Result<BTreeMap<String, Found>, String>,
        now: Nanos,
    ) {
        self.discovery.hear(source, said, now);
    }

    /// Sends peers to where they are now, once that is due ([`Discovery::due`]).
    pub fn settle(&mut self, times: Times) {
        if !self.discovery.take_due(times.now) {
            return;
        }
        self.certify(times);
        let keyring = self.keyring();
        let roll = roll(&keyring, &self.members);
        for moved in self.peers.follow(&self.live.config, &self.discovery, roll) {
            let commands = self.peers.tell(moved);
            commands.iter().for_each(|command| self.tell_all(command));
        }
    }

    /// A user by its number: the groups are those of the files of the system.
    #[must_use]
    pub fn credentials_of(&self, uid: u32) -> Credentials {
        self.live.credentials_of(uid)
    }

    /// Whether there is a line of the log left, and how many of its kind were left out before it.
    pub fn may_say(&mut self, cause: Cause, party: Party, now: Nanos) -> Option<u64> {
        self.journal.may_say(cause, party, now)
    }

    /// A peer that the configuration names, or one of many.
    #[must_use]
    pub fn party_of(&self, peer: &str) -> Party {
        let config = &self.live.config;
        let is_allowed = |node: &str| {
            config.exports.values().any(|export| export.peers.iter().any(|it| it == node))
        };
        match node_of_shard(peer) {
            Some(node)
                if config.peers.contains_key(node)
                    || is_allowed(node)
                    || self.peers.by_name(node).is_some() =>
            {
                Party::Peer(node.to_owned())
            }
            _ => Party::Others,
        }
    }

    pub(crate) fn note_of_peer(
        &mut self,
        cause: Cause,
        peer: &str,
        now: Nanos,
        note: impl FnOnce(String, u64) -> Note,
    ) {
        if let Some(left_out) = self.journal.may_say(cause, self.party_of(peer), now) {
            self.effects.push_back(Effect::Note(note(peer.to_owned(), left_out)));
        }
    }

    /// Checks whether another configuration, with its keyring, can take effect in what runs.
    ///
    /// # Errors
    /// The key that forbids it, and the cause.
    pub fn check_next(
        &self,
        next: &Config,
        keyring: &Keyring,
        outside: &Outside,
    ) -> Result<(), String> {
        let effect = in_effect(&self.live.config, next, outside);
        // Each may be right alone, and what runs with a part of what comes not.
        let own = keyring.identity().map(|it| it.own().public());
        if let Err(fault) = effect.validate().and_then(|()| effect.check_own_key(own)) {
            return Err(format!(
                "`{}` {} (as long as the daemon is not restarted)",
                fault.key, fault.problem
            ));
        }
        Ok(())
    }

    /// Has what sources said decided on anew.
    pub(crate) fn renew_discovery(&mut self, now: Nanos) {
        self.discovery.renew(now);
    }

    /// Takes a keyring with another certificate of this node, or another list of revoked keys.
    pub(crate) fn replace_keyring(&mut self, keyring: Rc<Keyring>) {
        self.live.keyring = keyring;
    }

    /// Nodes of the cluster whose certificates were seen.
    #[must_use]
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// Takes another configuration, which cannot fail. The changes of what is in effect come back;
    /// the effects are what the shards are told.
    pub fn reload(&mut self, mut next: Next<'_>) -> Reloaded {
        // What the cluster has revoked stays revoked, whatever the files say, and what was renewed
        // counts.
        let keyring = self.keyring();
        next.keyring = std::mem::take(&mut next.keyring).with_known_of(&keyring);
        self.members.forget_refused();
        let effect = Rc::new(in_effect(&self.live.config, next.after, next.outside));
        let changed = self.live.config.changes_to(&effect);
        let doubt = Doubt::of(&self.live.rules, &self.live.keyring, &self.live.names, &next);
        let distrusted = keyring.proves_otherwise(&next.keyring);
        let Next { before, after, rules, keyring, grants, names, .. } = next;
        self.live = Live {
            config: effect,
            rules: Rc::new(rules),
            keyring: Rc::new(keyring),
            grants,
            names: Rc::new(names),
        };
        let (ended_sessions, ended_handles) = self.take_back();
        let keyring = self.keyring();
        let roll = roll(&keyring, &self.members);
        let moved = self.peers.follow(&self.live.config, &self.discovery, roll);
        for command in commands((&self.peers, moved), before, after, doubt) {
            self.tell_all(&command);
        }
        if distrusted {
            // They prove themselves anew, with what is agreed on now.
            let names: Vec<_> = self.members.iter().map(|it| it.subject().name.clone()).collect();
            self.expel(&names);
        }
        Reloaded { changed, ended_sessions, ended_handles }
    }

    pub(crate) fn tell_all(&mut self, command: &Command) {
        self.commands.iter_mut().for_each(|commands| commands.push_back(command.clone()));
    }

    /// What each shard of a node that starts is told of its peers.
    pub fn start(&mut self) {
        self.peers.introduce_all().iter().for_each(|command| self.tell_all(command));
    }
}

#[cfg(test)]
impl Live {
    /// A node without any configuration.
    pub(crate) fn default_for_tests() -> Self {
        let (config, names) = (Config::default(), Names::default());
        let rules = Rules::new(&config, &names, 7).expect("nobody is named");
        Self {
            config: Rc::new(config),
            rules: Rc::new(rules),
            keyring: Rc::default(),
            grants: Arc::default(),
            names: Rc::new(names),
        }
    }
}
