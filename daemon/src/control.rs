//! State of the control thread: sessions, regions and opens under way; and its reactions to the
//! shards' notices.
//!
//! One thread, one runtime, so the state is in plain cells. No borrow of a cell lives across an
//! `.await`: each method takes what it needs and is done.

mod accounts;
mod perform;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use piped_config::{Config, Names};
use piped_control::access::Rules;
use piped_control::control::Live;
use piped_control::journal::{Cause, Party};
use piped_control::keyring::Keyring;
use piped_control::patrol::Verdict;
use piped_control::sessions::Session;
use piped_core::ids::{PeerId, RegionId, SessionId};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Origin;
use piped_ring::{Segment, SpinBudgets};
use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

pub(crate) use self::accounts::OfUser;
use crate::admin::calibrate::Leave;
use crate::admin::sent::{Door, Sent, SentAway};
use crate::arenas::{Arenas, Maker};
use crate::client::reasons::{Eviction, Evictions, HandshakeRefusal, Refusals};
use crate::closing::{Account, Closer, Kept};
use crate::cluster::{Book, Desk};
use crate::doorstep::Doorstep;
use crate::io::clock;
use crate::kept::Keeper;
use crate::limiting::Limiter;
use crate::limits::{
    GREETINGS_MAX, HANDSHAKES, KNOWN_GREETINGS_MAX, PEER_CLOSERS, PEER_OPENS_MAX, PLAN_LOOKS_MAX,
    STRANGERS, peer_files_max,
};
use crate::metrics::Exposition;
use crate::open::echo::Echo;
use crate::open::export::Exports;
use crate::patience::Patience;
use crate::peer::greet::{Greeting, Greetings};
use crate::places::Places;
use crate::reload::Reload;
use crate::sandbox::Sandbox;
use crate::shard::message::{Mailbox, Notice};

/// All decisions that need no clock, socket or file.
pub(crate) type Core = piped_control::control::Control<Arc<Segment>>;

/// How a session is told of its end.
#[derive(Debug)]
struct Mouths {
    /// Told once if it is not to go on.
    ended: Option<oneshot::Sender<Ending>>,
    /// Told once its memory is free.
    drained: Option<oneshot::Sender<()>>,
}

/// Why a session does not go on.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The session's shard evicted the client, for this reason.
    Evicted(String),
    /// The client's access was taken back, for this reason.
    TakenBack(String),
}

/// How a session hears from others.
#[derive(Debug)]
pub(crate) struct SessionEars {
    pub(crate) ended: oneshot::Receiver<Ending>,
    pub(crate) drained: oneshot::Receiver<()>,
}

/// The end of a remote open: the length, or why not.
type Opened = Result<u64, Status>;

/// A shard, from here.
#[derive(Debug)]
pub(crate) struct ShardDoor {
    pub(crate) mailbox: Mailbox,
    pub(crate) cpu: Option<u32>,
}

/// The daemon's control thread: what connections, clients and shards share, with one owner.
#[derive(Debug)]
pub(crate) struct Control {
    /// Sessions, peers and open handles, with all decisions about them.
    pub(crate) core: RefCell<Core>,
    /// The directories that this node offers.
    exports: RefCell<Arc<Exports>>,
    pub(crate) reload: Reload,
    pub(crate) node: String,
    pub(crate) incarnation: u64,
    pub(crate) started: Nanos,
    /// The time of `started` in seconds since 1970.
    pub(crate) started_unix: f64,
    pub(crate) metrics: Exposition,
    /// The last page of `GET /` and its time, for requests in quick succession.
    pub(crate) page: RefCell<Option<(Nanos, Rc<str>)>>,
    pub(crate) spin: SpinBudgets,
    pub(crate) shards: Vec<ShardDoor>,
    /// A lock for each shard, so that one caller at a time tells it of decisions.
    turns: Vec<tokio::sync::Mutex<()>>,
    /// Places for sessions, for opens of peers.
    session_slots: Arc<Semaphore>,
    pub(crate) peer_open_slots: Arc<Semaphore>,
    /// Places for plans that look at a file.
    pub(crate) plan_slots: Arc<Semaphore>,
    /// Places for clients that have not said Hello, by user; and for such that are to be refused.
    pub(crate) handshakes: Places<u32>,
    pub(crate) strangers: Places<()>,
    /// Files of exports that peers have open.
    pub(crate) peer_files: Arc<Account>,
    /// Connections of clients that have no place yet, or get none.
    pub(crate) doorstep: Doorstep,
    /// Connections of operators that have no place yet, or get none.
    pub(crate) admin_doorstep: Doorstep,
    /// The limits in force.
    pub(crate) limiter: Limiter,
    /// The restrictions that the daemon has put on itself.
    pub(crate) sandbox: Arc<Sandbox>,
    /// Measured costs that outlive restarts of the daemon.
    pub(crate) keeper: Keeper,
    /// What this node has of its cluster beside its keys.
    pub(crate) desk: Desk,
    closer: Closer,
    /// Told when no shard uses a region any more.
    withdrawals: RefCell<HashMap<RegionId, oneshot::Sender<()>>>,
    /// Becomes true when the daemon stops.
    pub(crate) stopping: watch::Receiver<bool>,
    sessions: RefCell<HashMap<SessionId, Mouths>>,
    /// Places of sessions, by user, and whether they are still taken.
    places: RefCell<Vec<(u32, Weak<OwnedSemaphorePermit>)>>,
    /// Memory shared with clients, by its [`Maker`].
    ledgers: [Arenas; 2],
    opens: RefCell<HashMap<u64, oneshot::Sender<Opened>>>,
    /// Threads that make memory, or give it back, where that takes long.
    pub(crate) patience: Patience,
    /// The number of the last recording of transfers.
    pub(crate) last_recording: Cell<u64>,
    /// The last permit to load paths on purpose, for calibration.
    pub(crate) leave: Cell<Leave>,
    /// The region that peers read for their calibrations.
    pub(crate) echo: Echo,
    evictions: Cell<Evictions>,
    refusals: Cell<Refusals>,
    sent_away: Cell<SentAway>,
    greetings: Cell<Greetings>,
    greeting_slots: Arc<Semaphore>,
    known_slots: Arc<Semaphore>,
}

/// The parts that [`Control`] is made from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) reload: Reload,
    pub(crate) node: String,
    pub(crate) incarnation: u64,
    pub(crate) spin: SpinBudgets,
    pub(crate) shards: Vec<ShardDoor>,
    pub(crate) rules: Rules,
    pub(crate) names: Names,
    pub(crate) exports: Exports,
    pub(crate) keyring: Keyring,
    pub(crate) sandbox: Sandbox,
    pub(crate) limiter: Limiter,
    pub(crate) keeper: Keeper,
    pub(crate) book: Book,
    pub(crate) closer: Closer,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Control {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { config, reload, node, incarnation, spin, shards, .. } = parts;
        let Parts { rules, exports, keyring, sandbox, names, limiter, keeper, .. } = parts;
        let Parts { book, closer, stopping, .. } = parts;
        let slots = |count| Arc::new(Semaphore::new(count));
        let nofile = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let doorstep = || Doorstep::new(&closer, nofile);
        let (count, peer_files) = (shards.len(), peer_files_max(shards.len()));
        let live = Live {
            config: Rc::new(config),
            rules: Rc::new(rules),
            keyring: Rc::new(keyring),
            grants: exports.grants(),
            names: Rc::new(names),
        };
        Self {
            node,
            incarnation,
            started: crate::io::clock::now(),
            started_unix: crate::io::clock::calendar(),
            metrics: Exposition::new(),
            page: RefCell::default(),
            spin,
            turns: shards.iter().map(|_| tokio::sync::Mutex::default()).collect(),
            shards,
            reload,
            session_slots: slots(piped_config::Limits::SESSIONS_MAX as usize),
            handshakes: Places::new(HANDSHAKES),
            strangers: Places::new(STRANGERS),
            peer_open_slots: slots(PEER_OPENS_MAX),
            plan_slots: slots(PLAN_LOOKS_MAX),
            peer_files: Account::new(closer.clone(), peer_files, PEER_CLOSERS, None),
            doorstep: doorstep(),
            admin_doorstep: doorstep(),
            limiter,
            sandbox: Arc::new(sandbox),
            keeper,
            desk: Desk::new(book),
            closer,
            withdrawals: RefCell::default(),
            stopping,
            sessions: RefCell::default(),
            places: RefCell::default(),
            ledgers: [Maker::Daemon, Maker::Client].map(Arenas::new),
            opens: RefCell::default(),
            patience: Patience::default(),
            last_recording: Cell::new(0),
            leave: Cell::default(),
            echo: Echo::default(),
            evictions: Cell::default(),
            refusals: Cell::default(),
            sent_away: Cell::default(),
            greetings: Cell::default(),
            greeting_slots: slots(GREETINGS_MAX),
            known_slots: slots(KNOWN_GREETINGS_MAX),
            exports: RefCell::new(Arc::new(exports)),
            core: RefCell::new(Core::new(count, live)),
        }
    }

    /// The configuration that a reload replaces.
    pub(crate) fn live(&self) -> Live {
        self.core.borrow().live().clone()
    }

    /// The configuration in effect.
    pub(crate) fn config(&self) -> Rc<Config> {
        Rc::clone(self.core.borrow().config())
    }

    /// Whether what somebody did may be logged, and how much of the like was not.
    pub(crate) fn may_say(&self, cause: Cause, party: Party) -> Option<u64> {
        self.core.borrow_mut().may_say(cause, party, clock::now())
    }

    /// The account of a peer: of its own if the configuration names it, else one for all others.
    pub(crate) fn party_of(&self, peer: &str) -> Party {
        self.core.borrow().party_of(peer)
    }

    /// The rules of which users and groups may connect.
    pub(crate) fn rules(&self) -> Rc<Rules> {
        self.live().rules
    }

    /// The keys that this node trusts, and its own.
    pub(crate) fn keyring(&self) -> Rc<Keyring> {
        self.core.borrow().keyring()
    }

    /// The directories and regions that this node offers.
    pub(crate) fn exports(&self) -> Arc<Exports> {
        Arc::clone(&self.exports.borrow())
    }

    pub(crate) fn replace_exports(&self, exports: Exports) {
        self.exports.replace(Arc::new(exports));
    }

    /// Resolves when the daemon stops.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.stopping.clone();
        // An error is a daemon that is gone: stopped, too.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    /// An account for what a session, or a connection, brings.
    pub(crate) fn account(
        &self,
        files: usize,
        threads: usize,
        place: Option<Kept>,
    ) -> Arc<Account> {
        Account::new(self.closer.clone(), files, threads, place)
    }

    /// Takes memory of clients from them, of which these are the last owners; see
    /// [`Patience::give_back`]. In a daemon that stops they keep it: what the buffers of a client
    /// have is for the next daemon.
    pub(crate) fn give_back(
        &self,
        segments: impl IntoIterator<Item = Arc<Segment>>,
        place: Option<Arc<OwnedSemaphorePermit>>,
    ) -> oneshot::Receiver<()> {
        if *self.stopping.borrow() {
            return self.patience.leave(segments, place);
        }
        self.patience.give_back(segments, place)
    }

    /// A user's name, if the system has one for it.
    pub(crate) fn user_name(&self, uid: u32) -> Option<String> {
        self.core.borrow().live().names.user(uid).map(str::to_owned)
    }

    /// All sessions, for the admin API.
    pub(crate) fn clients(&self) -> Vec<piped_config::admin::ClientReport> {
        let core = self.core.borrow();
        let report = |(id, it): (SessionId, &Session)| piped_config::admin::ClientReport {
            session: id.0,
            pid: it.who.pid,
            uid: it.who.uid,
            queues: it.used.queues,
            arena_bytes: it.used.arena_bytes,
            lent_bytes: it.used.lent_bytes,
            handles: it.used.handles,
            user: self.user_name(it.who.uid),
            class: String::new(),
            requests: 0,
            completed: 0,
            failed: 0,
            bytes: 0,
        };
        core.sessions().iter().map(report).collect()
    }

    /// Counts an eviction that the control thread decided; a shard counts its own.
    pub(crate) fn count_eviction(&self, why: Eviction) {
        let mut evictions = self.evictions.get();
        evictions[why as usize] += 1;
        self.evictions.set(evictions);
    }

    /// Counts a client that connected and got no session.
    pub(crate) fn count_refusal(&self, why: HandshakeRefusal) {
        let mut refusals = self.refusals.get();
        refusals[why as usize] += 1;
        self.refusals.set(refusals);
    }

    /// Counts somebody that was sent away from a door for questions.
    pub(crate) fn count_sent(&self, door: Door, why: Sent) {
        let mut sent_away = self.sent_away.get();
        sent_away[door as usize][why as usize] += 1;
        self.sent_away.set(sent_away);
    }

    /// Connections that were turned away, by door and reason.
    pub(crate) fn sent_away(&self) -> SentAway {
        self.sent_away.get()
    }

    /// Counts a peer that connected.
    pub(crate) fn count_greeting(&self, outcome: Greeting) {
        let mut greetings = self.greetings.get();
        greetings[outcome as usize] += 1;
        self.greetings.set(greetings);
    }

    /// Peers that connected, by how their greeting ended.
    pub(crate) fn greetings(&self) -> Greetings {
        self.greetings.get()
    }

    /// A place for a peer that must prove its identity; `None` if this peer, or all of them, have
    /// had too many attempts. Known nodes have places of their own.
    pub(crate) fn greeting_place(&self, from: Origin) -> Option<OwnedSemaphorePermit> {
        let slots = match self.core.borrow_mut().admit(from, clock::now()) {
            Verdict::No => return None,
            Verdict::Known => &self.known_slots,
            Verdict::Stranger => &self.greeting_slots,
        };
        Arc::clone(slots).try_acquire_owned().ok()
    }

    /// Logs that a peer got no lane.
    pub(crate) fn journal_stranger(&self, from: IpAddr, reason: &str) {
        if let Some(left_out) = self.may_say(Cause::Stranger, Party::Others) {
            tracing::warn!(%from, reason, left_out, "a peer was turned away");
        }
    }

    /// Sessions that were evicted, by reason.
    pub(crate) fn evictions(&self) -> Evictions {
        self.evictions.get()
    }

    /// Requests of clients that were refused, by reason.
    pub(crate) fn refusals(&self) -> Refusals {
        self.refusals.get()
    }

    /// The number of a shard's transfer among those of all shards.
    pub(crate) fn transfer_number(&self, shard: usize, id: u64) -> u64 {
        id * self.shards.len() as u64 + shard as u64
    }

    /// The shard and the transfer's id there, from a number of [`Self::transfer_number`].
    pub(crate) fn transfer_of(&self, number: u64) -> (usize, u64) {
        let shards = self.shards.len() as u64;
        ((number % shards) as usize, number / shards)
    }

    /// Where a configured peer listens.
    pub(crate) fn address_of(&self, name: &str) -> Option<String> {
        let core = self.core.borrow();
        let target = core.peers().target(core.peers().by_name(name)?)?;
        Some(target.address.as_str().to_owned())
    }

    /// The id of a configured peer; `None` if the name is not in the configuration.
    pub(crate) fn peer(&self, name: &str) -> Option<PeerId> {
        self.core.borrow().peers().by_name(name)
    }

    /// Revokes a region and waits until no shard uses it. The shards are told even if the caller
    /// stops waiting.
    pub(crate) async fn withdraw(self: &Rc<Self>, region: RegionId) {
        let (unused, hears_unused) = oneshot::channel();
        self.withdrawals.borrow_mut().insert(region, unused);
        self.core.borrow_mut().withdraw_region(region);
        let control = Rc::clone(self);
        tokio::task::spawn_local(async move { control.tell_shards().await });
        // An error is a daemon that ends.
        let _ = hears_unused.await;
    }

    /// A ticket for an open at a peer.
    pub(crate) fn expect_open(self: &Rc<Self>) -> OpenTicket {
        let number = self.core.borrow_mut().expect_open();
        let (opened, outcome) = oneshot::channel();
        self.opens.borrow_mut().insert(number, opened);
        OpenTicket { number, outcome, control: Rc::clone(self) }
    }

    /// Takes the shards' notices until one of them ends.
    ///
    /// # Errors
    /// Why a shard ended, if it should not have.
    pub(crate) async fn listen(
        self: &Rc<Self>,
        notices: &mut mpsc::UnboundedReceiver<(usize, Notice)>,
    ) -> Result<usize, String> {
        while let Some((shard, notice)) = notices.recv().await {
            match notice {
                Notice::Event(event) => {
                    self.decide(|core, now| core.handle_event(shard, event, now));
                }
                Notice::Evicted { session, reason } => {
                    self.core.borrow_mut().mark_ending(session);
                    self.end(session, Ending::Evicted(reason));
                }
                Notice::Retired(segment) => {
                    // Nobody waits for that.
                    drop(self.give_back([segment], None));
                }
                Notice::Ended(Ok(())) => return Ok(shard),
                Notice::Ended(Err(reason)) => return Err(format!("shard {shard} died: {reason}")),
            }
        }
        Err("all shards are gone".to_owned())
    }
}

/// An open at a peer that somebody waits for. Dropped, nobody waits any more.
#[derive(Debug)]
pub(crate) struct OpenTicket {
    pub(crate) number: u64,
    outcome: oneshot::Receiver<Opened>,
    control: Rc<Control>,
}

impl OpenTicket {
    /// Waits for the outcome.
    pub(crate) async fn outcome(&mut self) -> Opened {
        (&mut self.outcome).await.unwrap_or(Err(Status::Closed))
    }
}

impl Drop for OpenTicket {
    fn drop(&mut self) {
        self.control.opens.borrow_mut().remove(&self.number);
    }
}
