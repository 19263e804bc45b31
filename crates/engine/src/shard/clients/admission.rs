//! What clients may have in execution at once, all together and each.
//!
//! Sessions that wait for what all have together take turns, and the one whose turn it is gets what
//! becomes free: a large request is not overtaken for ever by small ones.
//!
//! Why a client's request counts only until its client is told: a buffer that a dead device holds
//! would else keep its session from ever asking for anything.

use std::ops::Bound;

use piped_core::ids::SessionId;
use piped_core::limits::{COPY_CHUNKS, FRAGMENT_BYTES_MAX};
use piped_report::shard::Gauge;

use super::super::account::{Account, Admission};
use super::super::keys::{TransferKey, kind};
use super::super::sched::{Sched, Work};
use super::Clients;
use crate::command::Limits;

/// What all clients of a shard have together, and who is to get more of it next.
#[derive(Debug)]
pub(super) struct Turns {
    account: Account<kind::Transfer>,
    /// Requests that wait for a limit.
    waiting: u32,
    /// The session whose turn it is.
    turn: Option<SessionId>,
    /// The session whose request was the last that was let run.
    last: SessionId,
}

impl Default for Turns {
    fn default() -> Self {
        Self { account: Account::default(), waiting: 0, turn: None, last: SessionId(0) }
    }
}

/// What all clients have in execution.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct InUse {
    pub(in crate::shard) requests: Gauge,
    /// The bytes of those requests.
    pub(in crate::shard) in_flight: Gauge,
    /// Requests that wait for a limit.
    pub(in crate::shard) waiting: u32,
}

/// What a request of so many bytes counts as.
pub(in crate::shard) fn weight(length: u64, is_copy: bool) -> u64 {
    // A copy has but its chunks under way, however long it is.
    let most = COPY_CHUNKS as u64 * u64::from(FRAGMENT_BYTES_MAX);
    if is_copy { length.min(most) } else { length }
}

impl Clients {
    /// What all clients have in execution.
    pub(in crate::shard) fn in_use(&self) -> InUse {
        let (requests, in_flight) = self.all.account.in_use();
        InUse { requests, in_flight, waiting: self.all.waiting }
    }

    /// A client's request, which counts as so many bytes: it runs, or waits for its turn.
    pub(in crate::shard) fn ask(
        &mut self,
        key: TransferKey,
        bytes: u64,
        limits: &Limits,
        sched: &mut Sched,
    ) {
        let standing = self.standings.at_mut(key);
        standing.admission = Admission::Waits(bytes);
        let id = standing.session;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.account.wait(key, bytes);
        self.all.waiting += 1;
        let alone = session.account.waiting() == 1;
        // Somebody's turn has come: nobody goes before.
        if alone && self.may_go_on(id, limits) && self.all.turn.is_none_or(|turn| turn == id) {
            self.admit_one(id, limits, sched);
        }
    }

    /// Whether a client's request waits for a limit.
    pub(in crate::shard) fn waits_for_limit(&self, key: TransferKey) -> bool {
        matches!(self.standings.at(key).admission, Admission::Waits(_))
    }

    /// A client's request is over, or its client was told so: others may have what it had.
    pub(in crate::shard) fn leave_limits(
        &mut self,
        key: TransferKey,
        limits: &Limits,
        sched: &mut Sched,
    ) {
        let standing = self.standings.at_mut(key);
        let (session, admission) = (standing.session, std::mem::take(&mut standing.admission));
        match admission {
            Admission::Free => return,
            Admission::Waits(_) => self.all.waiting -= 1,
            Admission::Runs(_) => self.all.account.leave(key, admission),
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.leave(key, admission);
        }
        self.admit(limits, sched);
    }

    /// Lets run what has room now: one request of each session after the other, so that one with
    /// many does not keep the others waiting.
    pub(in crate::shard) fn admit(&mut self, limits: &Limits, sched: &mut Sched) {
        while let Some(session) = self.next_in_turn(limits) {
            if !self.admit_one(session, limits, sched) {
                return;
            }
        }
        self.all.turn = None;
    }

    /// The session whose turn it is, or of those whose next request has room within its session the
    /// first behind the one that was last.
    fn next_in_turn(&self, limits: &Limits) -> Option<SessionId> {
        if self.all.waiting == 0 {
            return None;
        }
        let may = |session: &SessionId| self.may_go_on(*session, limits);
        if let Some(turn) = self.all.turn.filter(may) {
            return Some(turn);
        }
        let behind = (Bound::Excluded(self.all.last), Bound::Unbounded);
        let all = self.sessions.range(behind).chain(self.sessions.range(..=self.all.last));
        all.map(|(session, _)| *session).find(may)
    }

    /// Whether the first of a session's requests that wait has room within it.
    fn may_go_on(&self, session: SessionId, limits: &Limits) -> bool {
        let Some(session) = self.sessions.get(&session) else { return false };
        let (account, most) = (&session.account, &limits.client);
        let first = account.first();
        first.is_some_and(|(_, bytes)| account.has_room(bytes, most.requests, most.in_flight))
    }

    /// Lets the next request of a session run, which has room within it. `false`: it waits for what
    /// all have together, and it is this session's turn to get it.
    fn admit_one(&mut self, id: SessionId, limits: &Limits, sched: &mut Sched) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return true };
        let Some((_, bytes)) = session.account.first() else { return true };
        if !self.all.account.has_room(bytes, limits.requests, limits.in_flight) {
            self.all.turn = Some(id);
            return false;
        }
        let Some((key, bytes)) = session.account.start_first() else { return true };
        self.all.account.enter(bytes);
        self.all.waiting -= 1;
        (self.all.turn, self.all.last) = (None, id);
        self.standings.at_mut(key).admission = Admission::Runs(bytes);
        sched.make_ready(Work::Transfer(key));
        true
    }
}
