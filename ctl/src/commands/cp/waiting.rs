//! How long nothing has moved, and who is waited for.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use piped_config::admin::limits::{LIMITS, LimitsReport};
use piped_config::admin::watch::{PEERS, Peers};
use piped_config::admin::{CLIENTS, Clients};
use piped_report::shard::LaneReport;

use crate::admin::Admin;
use crate::args::Place;
use crate::failure::{Exit, Failure};
use crate::units;

/// Shorter pauses are nobody's business.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// What was found out this long ago may have changed.
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

    /// So many bytes have moved by now.
    pub(super) fn handle(&mut self, moved: u64, now: Instant) {
        if moved > self.moved {
            self.since = now;
        }
        // Less than before is what is copied again.
        self.moved = moved;
    }

    /// Something else has begun.
    pub(super) fn renew(&mut self, now: Instant) {
        self.since = now;
    }

    /// For how long nothing has moved.
    pub(super) fn quiet(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Whether that is a good part of what is waited.
    pub(super) fn is_short(&self, now: Instant) -> bool {
        self.quiet(now) > self.timeout / 4
    }

    /// Whether that is too long.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.quiet(now) > self.timeout
    }

    /// Whether the user is to be told.
    pub(super) fn is_told(&self, now: Instant) -> bool {
        self.quiet(now) > TELL_AFTER.min(self.timeout / 2)
    }
}

/// Finds out who is waited for, without waiting for that.
#[derive(Debug)]
pub(super) struct Waiting {
    admin: PathBuf,
    peers: Vec<String>,
    timeout: Duration,
    asked: Option<Instant>,
    answer: Option<Receiver<Cause>>,
    known: Option<Cause>,
}

/// Who holds things up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cause {
    words: String,
    /// A peer that has no lane.
    is_away: bool,
}

impl Waiting {
    pub(super) fn new(admin: &Path, ends: [&Place; 2], timeout: Duration) -> Self {
        let mut peers: Vec<String> = ends.into_iter().filter_map(peer_of).collect();
        peers.dedup();
        Self { admin: admin.to_owned(), peers, timeout, asked: None, answer: None, known: None }
    }

    /// What to tell the user of a wait of a session. Nothing yet if nothing has been found out.
    pub(super) fn text(&mut self, session: u32, patience: &Patience, now: Instant) -> String {
        self.ask(session, now);
        let quiet = patience.quiet(now);
        let left = units::uptime(self.timeout.saturating_sub(quiet).as_secs_f64());
        let cause = self.cause().words;
        let quiet = units::uptime(quiet.as_secs_f64());
        format!("nothing for {quiet}: {cause}; waits {left} more (--timeout)")
    }

    /// It was waited long enough.
    pub(super) fn over(&self, what: impl std::fmt::Display) -> Failure {
        let Cause { words, is_away } = self.cause();
        let exit = if is_away { Exit::Unreachable } else { Exit::Timeout };
        let timeout = units::seconds(self.timeout.as_secs_f64());
        Failure::new(exit, format!("{what}: nothing has moved for {timeout} (--timeout): {words}"))
    }

    /// Things move again: what held them up is no more.
    pub(super) fn forget(&mut self) {
        (self.asked, self.answer, self.known) = (None, None, None);
    }

    /// As far as it is known.
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
        // A daemon that stands still does not answer here either, and Ctrl-C has to be looked at meanwhile. A user that
        // may not ask the daemon, or a process that gets no thread, is told the cause in less detail.
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

/// What the daemon says of it; nothing if it is not the daemon whose session that is.
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
