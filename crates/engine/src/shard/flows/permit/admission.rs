//! What may be in execution at once: of all clients, of each, and of each peer that asks us.
//!
//! A request beyond a limit waits in the order in which it came, behind those of its own session
//! (or peer) only; its deadline runs. One that is larger than a limit is done alone. Sessions that
//! wait for what all have together take turns, and the one whose turn it is gets what becomes free:
//! a large request is not overtaken for ever by small ones.
//!
//! Why a client's request counts only until its client is told: a buffer that a dead device holds
//! would else keep its session from ever asking for anything.

use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_report::shard::{Held, LimitParties, LimitUse};
use piped_report::tally::{HeldBy, MessageWay};

use crate::command::Limits;
use crate::shard::Shard;
use crate::shard::account::Admission;
use crate::shard::clients::InUse;
use crate::shard::connections::{Lane, LaneState, PeerLane};
use crate::shard::cx::Cx;
use crate::shard::keys::{LaneKey, LinkKey, ServeKey};
use crate::shard::links::Staged;
use crate::shard::messages::Messages;
use crate::shard::responder::ServeOp;
use crate::shard::sched::Work;

impl Shard {
    pub(in crate::shard) fn limit_use(&self) -> LimitUse {
        let InUse { requests, in_flight, waiting } = self.clients.in_use();
        LimitUse {
            in_flight,
            in_flight_limit_bytes: self.cx.limits.in_flight,
            requests,
            requests_limit: self.cx.limits.requests,
            waiting,
            waited: self.cx.waited_for_limit,
            early_arrival: self.messages.early_used(None),
            early_arrival_limit_bytes: Messages::early_limit(&self.cx),
            stalled: self.cx.watch.tally.messages[MessageWay::Stalled as usize],
            ..self.cx.buffers.limit_use()
        }
    }

    /// Every client and peer, with what each one uses of what is limited.
    #[must_use]
    pub fn limit_parties(&self) -> LimitParties {
        let peers = self.links.iter().map(|(_, link)| link.report_use());
        let clients = self.clients.parties(|session| self.messages.early_used(Some(session)));
        LimitParties { clients: clients.collect(), peers: peers.collect() }
    }

    /// New limits; what waits for the old ones may go on.
    pub(in crate::shard) fn set_limits(&mut self, limits: Limits, now: Nanos) {
        self.change_rates(&limits, now);
        self.cx.limits = limits;
        self.move_windows();
        let Cx { limits, sched, .. } = &mut self.cx;
        self.clients.admit(limits, sched);
        let mut from = 0;
        while let Some(link) = self.links.next_from(&mut from, |_| true) {
            self.admit_serves(link);
        }
        self.cx.sched.wake_starved();
    }

    /// A peer's request. Its writes always run: their data come behind them on the lane, and one
    /// that waited would hold up those of the others; what they use is bounded by their credit.
    pub(in crate::shard) fn enter_serve(&mut self, key: ServeKey) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        let link = serve.link;
        if matches!(serve.op, ServeOp::Write { .. }) {
            return self.cx.sched.make_ready(Work::Serve(key));
        }
        let bytes = serve.ask.length;
        serve.admission = Admission::Waits(bytes);
        if let Some(account) = self.links.account(link) {
            account.wait(key, bytes);
        }
        self.admit_serves(link);
        let waits = |serve: &crate::shard::Serve| matches!(serve.admission, Admission::Waits(_));
        if self.serves.get(key).is_some_and(waits) {
            self.cx.waited_for_limit += 1;
            self.cx.watch.hold(Work::Serve(key), HeldBy::Limit);
        }
    }

    /// A peer's request is forgotten.
    pub(in crate::shard) fn leave_serve(&mut self, key: ServeKey) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        let link = serve.link;
        let admission = std::mem::take(&mut serve.admission);
        if let Some(account) = self.links.account(link) {
            account.leave(key, admission);
        }
        self.admit_serves(link);
    }

    fn admit_serves(&mut self, link: LinkKey) {
        let peer = self.cx.limits.peer;
        while let Some(account) = self.links.account(link)
            && let Some((_, bytes)) = account.first()
            && account.has_room(bytes, peer.requests, peer.in_flight)
            && let Some((key, bytes)) = account.start_first()
        {
            if let Some(serve) = self.serves.get_mut(key) {
                serve.admission = Admission::Runs(bytes);
            }
            self.cx.sched.make_ready(Work::Serve(key));
        }
    }

    /// Whether a peer's read may have so many bytes of staging more. On a lane that cannot send
    /// them yet it waits for the lane: data that waited would hold the staging that the lane waits
    /// for.
    pub(in crate::shard) fn may_stage_read(
        &mut self,
        PeerLane { lane, link }: PeerLane,
        bytes: u64,
    ) -> bool {
        if self.lanes.get(lane).is_some_and(Lane::is_without_room) {
            self.cx.sched.make_ready(Work::Lane(lane));
            return false;
        }
        let most = self.read_staging();
        self.may_stage(link, bytes)
            && self.links.get(link).is_none_or(|state| {
                let staged = state.staged(Staged::Reads);
                staged == 0 || staged + bytes <= most
            })
    }

    /// Staging that a peer's reads may have.
    pub(in crate::shard) fn read_staging(&self) -> u64 {
        self.cx.limits.peer.read_staging(self.cx.buffers.staging().kept_bytes())
    }

    /// Write data that a peer may have under way on a lane of a class: none by way of a second
    /// address, where only reads go.
    pub(in crate::shard) fn credit_window(&self, class: LaneClass) -> u64 {
        if class == LaneClass::Second {
            return 0;
        }
        self.cx.limits.peer.credit_window(self.cx.buffers.staging().kept_bytes())
    }

    /// The credit of all lanes follows staging and the limits.
    pub(in crate::shard) fn move_windows(&mut self) {
        let lanes: Vec<LaneKey> = self.links.iter().flat_map(|(_, link)| link.lanes()).collect();
        for key in lanes {
            let Some(class) = self.lanes.get(key).map(|lane| lane.class) else { continue };
            let (window, staging) = (self.credit_window(class), self.read_staging());
            // One that is not up yet is told its first window.
            if let Some(lane) = self.lanes.get_mut(key).filter(|lane| lane.state == LaneState::Up)
                && let Some(serving) = lane.serving_mut()
            {
                serving.window.resize(window);
                self.cx.planner.hold(lane.stage_out, Held::Staging(staging));
            }
        }
    }
}
