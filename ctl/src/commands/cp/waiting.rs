//! How long nothing has moved, and which party is waited for.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use piped_config::admin::limits::{LIMITS, LimitsReport};
use piped_config::admin::watch::{PEERS, Peers};
use piped_config::admin::{CLIENTS, Clients};
use piped_report::shard::LaneReport;

use crate::admin::Admin;
use crate::failure::{Exit, Failure};
use crate::place::Place;
use crate::units;

/// Shorter pauses are not shown.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Age at which an answer may have changed.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Runs out when nothing has moved for so long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    timeout: Duration,
    moved: u64,
    since: Instant,
}

impl Patience {
    pub(super) fn new(timeout: Duration, now: Instant) -> Self {
        Self { timeout, moved: 0, since: now }
    }

    /// Handles the count of bytes moved so far.
    pub(super) fn handle(&mut self, moved: u64, now: Instant) {
        if moved > self.moved {
            self.since = now;
        }
        // A lower count means that bytes are copied again.
        self.moved = moved;
    }

    /// Starts anew, because something else has begun.
    pub(super) fn renew(&mut self, now: Instant) {
        self.since = now;
    }

    /// Time for which nothing has moved.
    pub(super) fn quiet(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Whether a good part of the patience is gone.
    pub(super) fn is_short(&self, now: Instant) -> bool {
        self.quiet(now) > self.timeout / 4
    }

    /// Whether the patience is gone.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.quiet(now) > self.timeout
    }

    /// Whether the user is to be told.
    pub(super) fn is_told(&self, now: Instant) -> bool {
        self.quiet(now) > TELL_AFTER.min(self.timeout / 2)
    }
}

/// Finds out which party is waited for, without blocking.
#[derive(Debug)]
pub(super) struct Waiting {
    admin: PathBuf,
    peers: Vec<String>,
    timeout: Duration,
    asked: Option<Instant>,
    answer: Option<Receiver<Cause>>,
    known: Option<Cause>,
}

/// The party that holds the copy up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cause {
    words: String,
    /// Whether the peer has no lane.
    is_away: bool,
}

impl Waiting {
    pub(super) fn new(admin: &Path, ends: [&Place; 2], timeout: Duration) -> Self {
        let mut peers: Vec<String> = ends.into_iter().filter_map(peer_of).collect();
        peers.dedup();
        Self { admin: admin.to_owned(), peers, timeout, asked: None, answer: None, known: None }
    }

    /// Text about a session's wait; empty if nothing is known yet.
    pub(super) fn text(&mut self, session: u32, patience: &Patience, now: Instant) -> String {
        self.ask(session, now);
        let quiet = patience.quiet(now);
        let left = units::uptime(self.timeout.saturating_sub(quiet).as_secs_f64());
        let cause = self.cause().words;
        let quiet = units::uptime(quiet.as_secs_f64());
        format!("nothing for {quiet}: {cause}; waits {left} more (--timeout)")
    }

    /// Failure after the wait was long enough.
    pub(super) fn over(&self, what: impl std::fmt::Display) -> Failure {
        let Cause { words, is_away } = self.cause();
        let exit = if is_away { Exit::Unreachable } else { Exit::Timeout };
        let timeout = units::seconds(self.timeout.as_secs_f64());
        Failure::new(exit, format!("{what}: nothing has moved for {timeout} (--timeout): {words}"))
    }

    /// Forgets the cause, because bytes move again.
    pub(super) fn forget(&mut self) {
        (self.asked, self.answer, self.known) = (None, None, None);
    }

    /// Cause of the wait, as far as it is known.
    fn cause(&self) -> Cause {
        self.known.clone().unwrap_or_else(|| {
            let words = match self.peers.as_slice() {
                [] => "a disk of this node does not answer".to_owned(),
                peers => format!("{} does not answer, or the link to it", peers.join(" or ")),
            };
            Cause { words, is_away: false }
        })
    }

    fn ask(&mut self, session: u32, now: Instant) {
        if let Some(cause) = self.answer.as_ref().and_then(|answer| answer.try_recv().ok()) {
            (self.answer, self.known) = (None, Some(cause));
        }
        if self.asked.is_some_and(|asked| now < asked + ASK_EVERY) {
            return;
        }
        self.asked = Some(now);
        let (admin, peers) = (self.admin.clone(), self.peers.clone());
        let (sender, receiver) = mpsc::sync_channel(1);
        self.answer = Some(receiver);
        // Ask on a thread: a daemon that stands still does not answer here either, and Ctrl-C has
        // to be polled meanwhile. A user that may not ask the daemon, or a process without another
        // thread, gets less detail.
        let look = move || {
            if let Ok(Some(cause)) = look(&admin, session, &peers) {
                let _ = sender.send(cause);
            }
        };
        let _ = thread::Builder::new().name("looks".to_owned()).spawn(look);
    }
}

fn peer_of(place: &Place) -> Option<String> {
    match place {
        Place::Remote { peer, .. } if !peer.is_empty() => Some(peer.clone()),
        _ => None,
    }
}

/// The daemon's view of the session; nothing if the session belongs to another daemon.
fn look(socket: &Path, session: u32, peers: &[String]) -> Result<Option<Cause>, Failure> {
    let admin = Admin::new(socket)?;
    let clients: Clients = admin.get(CLIENTS)?;
    let pid = std::process::id();
    if !clients.clients.iter().any(|client| client.session == session && client.pid == pid) {
        return Ok(None);
    }
    let lanes: Peers<LaneReport> = admin.get(PEERS)?;
    let limits: LimitsReport = admin.get(LIMITS)?;
    Ok(Some(cause(&lanes, &limits, session, peers)))
}

fn cause(
    lanes: &Peers<LaneReport>,
    limits: &LimitsReport,
    session: u32,
    peers: &[String],
) -> Cause {
    for name in peers {
        let asked = lanes.peers.iter().filter(|entry| !entry.inbound && entry.name == *name);
        if let Some(down) = asked.flat_map(|entry| &entry.lanes).find(|lane| !lane.up) {
            let why = down.last_loss.map_or("never reached", |why| why.name());
            let words = format!("{name} is away: its lane is down ({why})");
            return Cause { words, is_away: true };
        }
    }
    let session = session.to_string();
    let own = limits.clients.iter().find(|party| party.name == session);
    let words = match (own, peers) {
        (Some(own), _) if own.waiting > 0 => {
            "its requests wait for a limit (see `pipectl limits`)".to_owned()
        }
        (_, []) => "a disk of this node does not answer".to_owned(),
        (_, peers) => {
            let them = peers.join(" and ");
            format!("lanes to {them} are up, and a disk or the link stands still")
        }
    };
    Cause { words, is_away: false }
}
