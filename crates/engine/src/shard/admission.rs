//! What may be in execution at once: of all clients, of each, and of each peer that asks us.
//!
//! A request beyond a limit waits in the order in which it came, behind those of its own session
//! (or peer) only; its deadline runs. One that is larger than a limit is done alone. Sessions that
//! wait for what all have together take turns, and the one whose turn it is gets what becomes free:
//! a large request is not overtaken for ever by small ones.
//!
//! Why a client's request counts only until its client is told: a buffer that a dead device holds
//! would else keep its session from ever asking for anything.

use std::collections::VecDeque;
use std::ops::Bound;

use piped_core::ids::SessionId;
use piped_core::limits::{
    COPY_CHUNKS, CREDIT_BYTES, CREDIT_STAGING_DIVISOR, FRAGMENT_BYTES_MAX, LINK_SHARES,
};
use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_report::shard::{Gauge, LimitParties, LimitUse, PartyUse};
use piped_report::tally::{HeldBy, MessageWay};

use super::Shard;
use super::keys::{LaneKey, LinkKey, ServeKey, TransferKey, kind};
use super::lane::{Lane, LaneState, PeerLane};
use super::sched::Work;
use super::serve::ServeOp;
use super::slab::Key;
use super::throttle::Throttle;
use crate::command::Limits;

/// How a request stands with the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Admission {
    /// It is part of another one, or told already, and counts nowhere.
    #[default]
    Free,
    /// So many bytes wait.
    Waits(u64),
    /// So many bytes are in execution.
    Runs(u64),
}

/// Requests in execution and those that wait, of one party.
#[derive(Debug)]
pub(super) struct Account<T> {
    requests: Gauge,
    in_flight: Gauge,
    waiting: VecDeque<(Key<T>, u64)>,
    /// What it moves in a second.
    pub(super) throttle: Throttle,
}

impl<T> Default for Account<T> {
    fn default() -> Self {
        let (requests, in_flight) = Default::default();
        let (waiting, throttle) = Default::default();
        Self { requests, in_flight, waiting, throttle }
    }
}

impl<T> Account<T> {
    /// Whether a request of so many bytes may run now.
    fn has_room(&self, bytes: u64, requests_max: u32, in_flight_max: u64) -> bool {
        let fits = self.in_flight.now.saturating_add(bytes) <= in_flight_max;
        self.requests.now < u64::from(requests_max) && (fits || self.in_flight.now == 0)
    }

    fn enter(&mut self, bytes: u64) {
        self.requests.add(1);
        self.in_flight.add(bytes);
    }

    fn leave(&mut self, bytes: u64) {
        self.requests.sub(1);
        self.in_flight.sub(bytes);
    }

    /// What a party has of what is limited, as far as it is counted here.
    pub(super) fn report(&self, name: String) -> PartyUse {
        PartyUse {
            name,
            early_arrival: Gauge::default(),
            staging: Gauge::default(),
            in_flight: self.in_flight,
            rate: self.throttle.shown(),
            requests: self.requests,
            waiting: self.waiting.len() as u32,
            handles: 0,
        }
    }

    fn forget(&mut self, key: Key<T>) {
        self.waiting.retain(|&(other, _)| other != key);
    }
}

/// What all clients of a shard have together, and who is to get more of it next.
#[derive(Debug)]
pub(super) struct Clients {
    account: Account<kind::Transfer>,
    /// Requests that wait for a limit.
    waiting: u32,
    /// Requests that had to wait for one since start, those of peers as well.
    waited: u64,
    /// The session whose turn it is.
    turn: Option<SessionId>,
    /// The session whose request was the last that was let run.
    last: SessionId,
}

impl Default for Clients {
    fn default() -> Self {
        let account = Account::default();
        Self { account, waiting: 0, waited: 0, turn: None, last: SessionId(0) }
    }
}

impl Clients {
    /// A request that would have to wait ends instead.
    pub(super) fn forget_wait(&mut self) {
        self.waited -= 1;
    }
}

/// What a request of so many bytes counts as.
pub(super) fn weight(length: u64, is_copy: bool) -> u64 {
    // A copy has but its chunks under way, however long it is.
    let most = COPY_CHUNKS as u64 * u64::from(FRAGMENT_BYTES_MAX);
    if is_copy { length.min(most) } else { length }
}

impl Shard {
    pub(super) fn limit_use(&self) -> LimitUse {
        LimitUse {
            staging: self.cx.buffers.staging.used(),
            staging_limit_bytes: self
                .cx
                .buffers
                .staging_limit
                .unwrap_or(self.cx.buffers.staging.bytes()),
            staging_draining_bytes: self.cx.buffers.staging.draining_bytes(),
            staging_least_bytes: self.staging_least(),
            staging_segments: (self.cx.buffers.staging.segments() + self.cx.buffers.drained.len())
                as u32,
            in_flight: self.clients.account.in_flight,
            in_flight_limit_bytes: self.cx.limits.in_flight,
            requests: self.clients.account.requests,
            requests_limit: self.cx.limits.requests,
            waiting: self.clients.waiting,
            waited: self.clients.waited,
            early_arrival: self.early.bytes,
            early_arrival_limit_bytes: self.early_limit(),
            stalled: self.cx.watch.tally.messages[MessageWay::Stalled as usize],
            scratches_moved: self.cx.buffers.scratches_moved,
        }
    }

    /// Who uses what of what is limited.
    #[must_use]
    pub fn limit_parties(&self) -> LimitParties {
        let clients = self.sessions.iter().map(|(id, session)| PartyUse {
            staging: session.staging,
            early_arrival: session.early,
            ..session.account.report(id.0.to_string())
        });
        let peers = self.inbound.iter().map(|(_, link)| {
            let staging = Gauge {
                now: link.read_staging.now + link.write_staging.now,
                // At once or one after the other: no more than that.
                high: link.read_staging.high + link.write_staging.high,
            };
            let handles = link.handles_open();
            PartyUse { staging, handles, ..link.account.report(link.name.clone()) }
        });
        LimitParties { clients: clients.collect(), peers: peers.collect() }
    }

    /// New limits; what waits for the old ones may go on.
    pub(super) fn set_limits(&mut self, limits: Limits, now: Nanos) {
        self.change_rates(&limits, now);
        self.cx.limits = limits;
        self.move_windows();
        self.admit_clients();
        let mut from = 0;
        while let Some(link) = self.inbound.next_from(from, |_| true) {
            from = link.index() + 1;
            self.admit_serves(link);
        }
        self.cx.sched.wake_starved();
    }

    /// A client's request: it runs, or waits for its turn.
    pub(super) fn enter_client(&mut self, key: TransferKey, session: SessionId, bytes: u64) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.account.waiting.push_back((key, bytes));
        self.clients.waiting += 1;
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.admission = Admission::Waits(bytes);
        }
        let may = self.sessions.get(&session).is_some_and(|state| {
            state.account.waiting.len() == 1 && self.may_go_on(&state.account)
        });
        // Somebody's turn has come: nobody goes before.
        if may && self.clients.turn.is_none_or(|turn| turn == session) {
            self.admit_one(session);
        }
        if self.waits_for_limit(key) {
            self.clients.waited += 1;
            self.note_held(Work::Transfer(key), HeldBy::Limit);
        }
    }

    /// Whether a client's request waits for a limit.
    pub(super) fn waits_for_limit(&self, key: TransferKey) -> bool {
        let admission = self.transfers.get(key).map(|transfer| transfer.admission);
        matches!(admission, Some(Admission::Waits(_)))
    }

    /// A client's request is over, or its client was told so.
    pub(super) fn leave_client(&mut self, key: TransferKey) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let session = transfer.session;
        let account = self.sessions.get_mut(&session).map(|state| &mut state.account);
        match std::mem::take(&mut transfer.admission) {
            Admission::Free => return,
            Admission::Waits(_) => {
                self.clients.waiting -= 1;
                if let Some(account) = account {
                    account.forget(key);
                }
            }
            Admission::Runs(bytes) => {
                self.clients.account.leave(bytes);
                if let Some(account) = account {
                    account.leave(bytes);
                }
            }
        }
        self.admit_clients();
    }

    /// Lets run what has room now: one request of each session after the other, so that one with
    /// many does not keep the others waiting.
    fn admit_clients(&mut self) {
        while let Some(session) = self.next_in_turn() {
            if !self.admit_one(session) {
                return;
            }
        }
        self.clients.turn = None;
    }

    /// The session whose turn it is, or of those whose next request has room within its session the
    /// first behind the one that was last.
    fn next_in_turn(&self) -> Option<SessionId> {
        if self.clients.waiting == 0 {
            return None;
        }
        let may = |session: &SessionId| {
            self.sessions.get(session).is_some_and(|state| self.may_go_on(&state.account))
        };
        if let Some(turn) = self.clients.turn.filter(may) {
            return Some(turn);
        }
        // The walk is one of a tree: no list to keep.
        let behind = (Bound::Excluded(self.clients.last), Bound::Unbounded);
        let all = self.sessions.range(behind).chain(self.sessions.range(..=self.clients.last));
        all.map(|(&session, state)| (session, &state.account))
            .find_map(|(session, account)| self.may_go_on(account).then_some(session))
    }

    /// Whether the first of those that wait has room within its session.
    fn may_go_on(&self, account: &Account<kind::Transfer>) -> bool {
        let client = &self.cx.limits.client;
        account
            .waiting
            .front()
            .is_some_and(|&(_, bytes)| account.has_room(bytes, client.requests, client.in_flight))
    }

    /// Lets the next request of a session run, which has room within it. `false`: it waits for what
    /// all have together, and it is this session's turn to get it.
    fn admit_one(&mut self, session: SessionId) -> bool {
        let Some(state) = self.sessions.get_mut(&session) else { return true };
        let Some(&(key, bytes)) = state.account.waiting.front() else { return true };
        if !self.clients.account.has_room(bytes, self.cx.limits.requests, self.cx.limits.in_flight)
        {
            self.clients.turn = Some(session);
            return false;
        }
        state.account.waiting.pop_front();
        state.account.enter(bytes);
        self.clients.account.enter(bytes);
        self.clients.waiting -= 1;
        (self.clients.turn, self.clients.last) = (None, session);
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.admission = Admission::Runs(bytes);
        }
        self.cx.sched.make_ready(Work::Transfer(key));
        true
    }

    /// A peer's request. Its writes always run: their data come behind them on the lane, and one
    /// that waited would hold up those of the others; what they use is bounded by their credit.
    pub(super) fn enter_serve(&mut self, key: ServeKey) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        let link = serve.link;
        if matches!(serve.op, ServeOp::Write { .. }) {
            return self.cx.sched.make_ready(Work::Serve(key));
        }
        let bytes = serve.length;
        serve.admission = Admission::Waits(bytes);
        if let Some(link) = self.inbound.get_mut(link) {
            link.account.waiting.push_back((key, bytes));
        }
        self.admit_serves(link);
        let waits = |serve: &super::Serve| matches!(serve.admission, Admission::Waits(_));
        if self.serves.get(key).is_some_and(waits) {
            self.clients.waited += 1;
            self.note_held(Work::Serve(key), HeldBy::Limit);
        }
    }

    /// A peer's request is forgotten.
    pub(super) fn leave_serve(&mut self, key: ServeKey) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        let link = serve.link;
        let admission = std::mem::take(&mut serve.admission);
        if let Some(state) = self.inbound.get_mut(link) {
            match admission {
                Admission::Free => return,
                Admission::Waits(_) => state.account.forget(key),
                Admission::Runs(bytes) => state.account.leave(bytes),
            }
        }
        self.admit_serves(link);
    }

    fn admit_serves(&mut self, link: LinkKey) {
        let peer = self.cx.limits.peer;
        while let Some(state) = self.inbound.get_mut(link)
            && let Some(&(key, bytes)) = state.account.waiting.front()
            && state.account.has_room(bytes, peer.requests, peer.in_flight)
        {
            state.account.waiting.pop_front();
            state.account.enter(bytes);
            if let Some(serve) = self.serves.get_mut(key) {
                serve.admission = Admission::Runs(bytes);
            }
            self.cx.sched.make_ready(Work::Serve(key));
        }
    }

    /// Whether a peer's read may have so many bytes of staging more. On a lane that cannot send
    /// them yet it waits for the lane: data that waited would hold the staging that the lane waits
    /// for.
    pub(super) fn may_stage_read(&mut self, PeerLane { lane, link }: PeerLane, bytes: u64) -> bool {
        if self.lanes.get(lane).is_some_and(Lane::is_without_room) {
            self.cx.sched.make_ready(Work::Lane(lane));
            return false;
        }
        let most = self.cx.limits.peer.staging / LINK_SHARES * (LINK_SHARES / 2);
        self.may_stage(link, bytes)
            && self.inbound.get(link).is_none_or(|state| {
                state.read_staging.now == 0 || state.read_staging.now + bytes <= most
            })
    }

    /// Write data that a peer may have under way on one lane.
    pub(super) fn credit_window(&self) -> u64 {
        let peer = &self.cx.limits.peer;
        CREDIT_BYTES
            .min(self.cx.buffers.staging.kept_bytes() / CREDIT_STAGING_DIVISOR)
            .min(peer.staging / LINK_SHARES)
            .min(peer.in_flight / LINK_SHARES)
            .max(u64::from(FRAGMENT_BYTES_MAX))
    }

    /// The credit of all lanes follows staging and the limits.
    pub(super) fn move_windows(&mut self) {
        let window = self.credit_window();
        let lanes: Vec<LaneKey> = self
            .inbound
            .iter()
            .flat_map(|(_, link)| {
                [LaneClass::Latency, LaneClass::Bulk].map(|c| &link.lanes[c as usize])
            })
            .filter_map(|lane| lane.lane)
            .collect();
        for key in lanes {
            // One that is not up yet is told its first window.
            if let Some(lane) = self.lanes.get_mut(key).filter(|lane| lane.state == LaneState::Up)
                && let Some(serving) = lane.serving_mut()
            {
                serving.window.resize(window);
            }
        }
    }
}
