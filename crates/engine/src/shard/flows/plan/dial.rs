//! Which way delays are injected: what comes to a dial, and what goes on when it lets go.

use piped_core::io::Io;
use piped_core::names::node_of;
use piped_core::units::Nanos;
use piped_planner::stage::StageIndex;
use piped_report::dial::{DialCost, DialPlace, DialReport};
use piped_wire::LastPart;

use crate::shard::Shard;
use crate::shard::connections::{Lane, Role};
use crate::shard::cx::Cx;
use crate::shard::delays::{Effect, Hop};
use crate::shard::keys::{LaneKey, Subject, TransferKey};
use crate::shard::links::Link;
use crate::shard::peers::Peer;
use crate::shard::requests::Body;
use crate::shard::sched::Work;

impl Shard {
    /// Sets a dial, anew if there is one: what that one holds goes on.
    pub(in crate::shard) fn set_dial<I: Io>(
        &mut self,
        place: DialPlace,
        cost: DialCost,
        io: &mut I,
    ) {
        self.clear_dials(Some(&place), io);
        self.cx.dials.set(place, cost, &mut self.cx.planner);
    }

    /// Clears the dial at a place, or all of them. What they hold goes on at once.
    pub(in crate::shard) fn clear_dials<I: Io>(&mut self, place: Option<&DialPlace>, io: &mut I) {
        while let Some(held) = self.cx.dials.clear(place, &mut self.cx.planner) {
            for held in held {
                self.pass_behind(held.hop, held.effect, held.bytes, None, io);
            }
        }
        self.wake_copies();
        self.cx.sched.wake_starved();
    }

    /// Whether any is set.
    #[must_use]
    pub fn has_dials(&self) -> bool {
        self.cx.dials.any()
    }

    /// The dials and what they do.
    #[must_use]
    pub fn dials(&self) -> Vec<DialReport> {
        self.cx.dials.reports(|place| self.knows(place))
    }

    /// Whether something that is known here passes a dial at that place, or would.
    fn knows(&self, place: &DialPlace) -> bool {
        match place {
            DialPlace::Copy | DialPlace::Check => true,
            DialPlace::Disk { device, write } => self.cx.planner.has_disk(*device, *write),
            DialPlace::Send { peer } | DialPlace::Net { peer } | DialPlace::Receive { peer } => {
                let outbound = self.peers.iter().map(|(_, peer)| peer.name());
                let inbound = self.links.iter().map(|(_, link)| link.name());
                outbound.chain(inbound).any(|name| node_of(name) == peer)
            }
        }
    }

    /// When the next dial lets go of something.
    #[must_use]
    pub fn next_release(&self) -> Option<Nanos> {
        self.cx.dials.next()
    }

    /// An effect is at a dial, if there is one, or goes on. Its first arrival is now.
    pub(in crate::shard) fn pass<I: Io>(
        &mut self,
        hop: Hop,
        effect: Effect,
        bytes: u32,
        io: &mut I,
    ) {
        self.pass_at(hop, effect, bytes, None, io);
    }

    /// `ideal`: when it came, had there been no delay but that of dials.
    fn pass_at<I: Io>(
        &mut self,
        hop: Hop,
        effect: Effect,
        bytes: u32,
        ideal: Option<Nanos>,
        io: &mut I,
    ) {
        let peer = effect.lane().and_then(|lane| self.peer_of(lane));
        let Some(at) = self.cx.dials.first_on_way(hop, &effect, peer) else {
            return self.apply(effect, io);
        };
        let came = self.cx.driver.batch_time(io);
        let (hop, Cx { dials, planner, watch, .. }) = (at.0, &mut self.cx);
        if let Some(effect) = dials.hold(at, effect, bytes, (came, ideal), (planner, watch), io) {
            self.pass_behind(hop, effect, bytes, None, io);
        }
    }

    /// An effect has left the dial of a hop. `ideal`: as for [`Self::pass_at`].
    fn pass_behind<I: Io>(
        &mut self,
        hop: Hop,
        effect: Effect,
        bytes: u32,
        ideal: Option<Nanos>,
        io: &mut I,
    ) {
        match hop.next() {
            Some(next) => self.pass_at(next, effect, bytes, ideal, io),
            None => self.apply(effect, io),
        }
    }

    /// The name of the node at the other end.
    pub(in crate::shard) fn peer_of(&self, lane: LaneKey) -> Option<&str> {
        match &self.lanes.get(lane)?.role {
            Role::Asking(asking) => self.peers.get(asking.peer).map(Peer::name),
            Role::Serving(serving) => self.links.get(serving.link).map(Link::name),
            Role::Stranger(_) => None,
        }
    }

    /// The stages of the dial that a frame passes there behind the wire of a lane.
    pub(in crate::shard) fn dials_in(&self, lane: LaneKey, hop: Hop) -> [StageIndex; 2] {
        self.cx.dials.stages_at(hop, self.peer_of(lane).unwrap_or_default())
    }

    /// The stages of the dials that a frame passes before it leaves by a lane.
    pub(in crate::shard) fn dials_out(&self, lane: LaneKey) -> [[StageIndex; 2]; 2] {
        let check = self.cx.dials.stages(|place| *place == DialPlace::Check);
        [check, self.dials_in(lane, Hop::Send)]
    }

    /// Lets go of what is due.
    pub(in crate::shard) fn release_due<I: Io>(&mut self, now: Nanos, io: &mut I) {
        if self.cx.dials.next().is_none_or(|at| at > now) {
            return;
        }
        loop {
            let Cx { dials, planner, watch, .. } = &mut self.cx;
            let Some(held) = dials.poll_due(now, planner, watch) else { break };
            if let Effect::Frame { lane, number, .. } = held.effect
                && let Some(lane) = self.lanes.get_mut(lane)
            {
                lane.sender.wait_told(number, now.since(held.came));
            }
            self.pass_behind(held.hop, held.effect, held.bytes, Some(held.deliver), io);
        }
        self.cx.sched.wake_starved();
    }

    /// What is held of a request that is over goes on now.
    pub(in crate::shard) fn hurry<I: Io>(&mut self, work: Work, io: &mut I) {
        while let Some(effect) = self.cx.dials.take_of(work) {
            self.apply(effect, io);
        }
    }

    /// Whether frames are held before they leave by a lane.
    pub(in crate::shard) fn is_dialled(&self, lane: LaneKey) -> bool {
        self.peer_of(lane).is_some_and(|peer| self.cx.dials.holds_frames_to(peer))
    }

    /// Frames that were queued since the last look come to the dials.
    pub(in crate::shard) fn dial_frames<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let dialled = self.is_dialled(key);
        while let Some(lane) = self.lanes.get_mut(key).filter(|_| dialled)
            && let Some((number, bytes, owner)) = lane.sender.hold_next()
        {
            // What has a payload in memory has an owner.
            let Some(of) = Subject::of(owner).map(Work::from) else { continue };
            self.pass(Hop::Check, Effect::Frame { lane: key, number, of }, bytes, io);
        }
    }

    /// A data frame (or the end of a read) has arrived. Without bytes it only must not overtake
    /// any.
    pub(in crate::shard) fn dial_data<I: Io>(
        &mut self,
        transfer: TransferKey,
        lane: LaneKey,
        bytes: u32,
        (watermark, last): (Option<u64>, Option<LastPart>),
        io: &mut I,
    ) {
        if last.is_some()
            && let Some(asking) = self.lanes.get_mut(lane).and_then(Lane::asking_mut)
        {
            // The peer has answered, and owes nothing any more.
            asking.outstanding.retain(|&other| other != transfer);
        }
        self.pass(Hop::Net, Effect::Data { transfer, lane, watermark, last }, bytes, io);
    }

    fn apply<I: Io>(&mut self, effect: Effect, io: &mut I) {
        match effect {
            Effect::Nothing => {}
            Effect::Job(job) => self.handle_job(job, io),
            Effect::Frame { lane: key, number, .. } => {
                if let Some(lane) = self.lanes.get_mut(key) {
                    lane.sender.release(number);
                    self.cx.sched.make_ready(Work::Lane(key));
                }
            }
            Effect::Data { transfer: key, lane, watermark, last } => {
                let Some(transfer) = self.transfers.get(key) else { return };
                let asked = matches!(&transfer.body, Body::Remote(body) if body.lane == Some(lane));
                if transfer.status.is_some() || !asked {
                    return;
                }
                match (last, watermark) {
                    (Some(last), _) => self.end_read(key, last, io.now(), io),
                    (None, Some(watermark)) => self.tell_progress_to(key, watermark),
                    (None, None) => {}
                }
            }
            Effect::Written { lane, serve, payload, region } => {
                self.handle_write_landed(lane, serve, payload, region);
            }
            Effect::Copied { transfer, start, end } => self.handle_copied(transfer, start, end, io),
            Effect::Stored { copy, chunk, start, end } => self.note_stored(copy, chunk, start, end),
        }
    }
}
