//! Dials: what they hold, and when they let it go. What a dial is says [`piped_report::dial`].
//!
//! What would follow an event (a fragment has left the disk, a data frame has arrived) is kept as
//! an [`Effect`] until its delivery. Releases are computed from ideal times: a late timer delays
//! one delivery and not those behind it, and the next dial of a chain takes the ideal delivery for
//! the arrival. A dial is a stage of its own, and is measured as every stage is: by when the shard
//! really saw a fragment come and go.
//!
//! Memory that an effect stands for stays pinned. When a request is over, what is held of it goes
//! on at once ([`Shard::hurry`]): nobody waits for a dial who does not wait for bytes.

use std::collections::VecDeque;

use piped_core::ids::DeviceId;
use piped_core::io::Io;
use piped_core::limits::{DIALS_HELD_MAX, DIALS_MAX};
use piped_core::names::node_of;
use piped_core::units::Nanos;
use piped_model::estimate::Ticket;
use piped_planner::stage::StageIndex;
use piped_report::dial::{DialCost, DialPlace, DialReport};
use piped_report::histogram::Latencies;
use piped_wire::LastPart;

use super::Shard;
use super::driver::{Direction, JobEnd};
use super::keys::{DialKey, LaneKey, ServeKey, Subject, TransferKey, kind};
use super::lane::Lane;
use super::outbound::Outbound;
use super::requests::Body;
use super::role::Role;
use super::sched::Work;
use super::sending::FrameOwner;
use super::slab::Slab;
use super::timers::Timers;

/// What goes on when the last dial lets go of it.
#[derive(Debug)]
pub(super) enum Effect {
    /// Nothing: it went on already.
    Nothing,
    /// A fragment has left a device.
    Job(JobEnd),
    /// A queued frame may leave.
    Frame { lane: LaneKey, number: u64, of: Work },
    /// A piece of a read is in place, which moved the watermark there, or ended the read.
    Data { transfer: TransferKey, lane: LaneKey, watermark: Option<u64>, last: Option<LastPart> },
    /// A piece of a write is in staging, or in its region.
    Written { lane: LaneKey, serve: ServeKey, payload: u32, region: bool },
    /// A piece was copied from memory to memory.
    Copied { transfer: TransferKey, start: u64, end: u64 },
    /// A piece of a chunk lies between the halves of a copy.
    Stored { copy: TransferKey, chunk: u8, start: u64, end: u32 },
}

impl Effect {
    /// The request whose fragment a dial held, and where the fragment starts if it says so.
    fn subject(&self) -> Option<(Subject, Option<u64>)> {
        match *self {
            Self::Job(ref job) => Some((job.owner.subject(), Some(job.owner.start()))),
            Self::Frame { of: Work::Serve(key), .. } | Self::Written { serve: key, .. } => {
                Some((Subject::Serve(key), None))
            }
            Self::Frame { of: Work::Transfer(key), .. }
            | Self::Data { transfer: key, .. }
            | Self::Copied { transfer: key, .. }
            | Self::Stored { copy: key, .. } => Some((Subject::Transfer(key), None)),
            Self::Nothing | Self::Frame { .. } => None,
        }
    }
}

/// The dials on an effect's way, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    Disk,
    Copy,
    Check,
    Send,
    Net,
    Receive,
}

impl Hop {
    const fn next(self) -> Option<Self> {
        match self {
            Self::Check => Some(Self::Send),
            Self::Net => Some(Self::Receive),
            Self::Disk | Self::Copy | Self::Send | Self::Receive => None,
        }
    }
}

/// The dials of a shard, and what they hold back.
#[derive(Debug)]
pub(super) struct Dials {
    dials: Slab<kind::Dial, Dial>,
    /// When the first delivery of each is due.
    due: Timers,
    /// Effects that they hold.
    held: usize,
}

#[derive(Debug)]
struct Dial {
    place: DialPlace,
    cost: DialCost,
    stage: StageIndex,
    /// The stage of its `o`, which is the thread's time and not the dial's; none without.
    host: StageIndex,
    /// Ideal time of the last release.
    released: Nanos,
    /// Ideal time of the last delivery.
    delivered: Nanos,
    queue: VecDeque<Held>,
    /// How late deliveries were.
    late: Latencies,
}

#[derive(Debug)]
struct Held {
    hop: Hop,
    effect: Effect,
    bytes: u32,
    /// When it really came.
    came: Nanos,
    /// When it goes, ideally.
    deliver: Nanos,
    /// Nothing to measure of what has no bytes and only keeps its place.
    ticket: Option<Ticket>,
    /// The dial was busy with the one before: its occupancy is seen.
    waited: bool,
}

/// Effects that a dial has memory for when it is set; what all hold together has a bound.
const QUEUE_FIRST: usize = 512;

impl Dials {
    pub(super) fn new() -> Self {
        Self {
            dials: Slab::with_capacity(DIALS_MAX),
            due: Timers::with_capacity(DIALS_MAX),
            held: 0,
        }
    }

    /// The one branch on the path of those who have none.
    pub(super) fn any(&self) -> bool {
        self.dials.len() > 0
    }

    pub(super) fn count(&self) -> u32 {
        self.dials.len()
    }

    /// Whether they can hold no more.
    pub(super) fn is_full(&self) -> bool {
        self.held >= DIALS_HELD_MAX
    }

    /// When the next delivery is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.due.next()
    }

    fn find(&self, is_it: impl Fn(&DialPlace) -> bool) -> Option<DialKey> {
        self.dials.iter().find(|(_, dial)| is_it(&dial.place)).map(|(key, _)| key)
    }

    /// The stages of a dial: the thread's part, and its own.
    pub(super) fn stages(&self, is_it: impl Fn(&DialPlace) -> bool) -> [StageIndex; 2] {
        let dial = self.find(is_it).and_then(|key| self.dials.get(key));
        dial.map_or([StageIndex::NONE; 2], |dial| [dial.host, dial.stage])
    }

    /// The stages of a device's dial: the thread's part, and its own; one look where nobody has
    /// dialled.
    pub(super) fn of_disk(&self, device: DeviceId, write: bool) -> [StageIndex; 2] {
        match self.any() {
            true => self.stages(|place| *place == DialPlace::Disk { device, write }),
            false => [StageIndex::NONE; 2],
        }
    }

    /// Takes the first effect of a dial if its time has come.
    fn take_due(&mut self, key: DialKey, now: Nanos) -> Option<(StageIndex, Held)> {
        let dial = self.dials.get_mut(key)?;
        if dial.queue.front().is_none_or(|held| held.deliver > now) {
            return None;
        }
        let held = dial.queue.pop_front()?;
        self.held -= 1;
        dial.late.add(now.since(held.deliver).0);
        Some((dial.stage, held))
    }

    fn set_due(&mut self, key: DialKey) {
        match self.dials.get(key).and_then(|dial| dial.queue.front()) {
            Some(held) => self.due.set(key.index(), held.deliver),
            None => self.due.clear(key.index()),
        }
    }

    /// Takes what is held of somebody out of its place, which stays taken.
    fn take_of(&mut self, is_of: impl Fn(&Effect) -> bool) -> Option<(Hop, Effect)> {
        let mut from = 0;
        while let Some(key) = self.dials.next_from(from, |_| true) {
            from = key.index() + 1;
            let held = self.dials.get_mut(key)?.queue.iter_mut().find(|held| is_of(&held.effect));
            if let Some(held) = held {
                return Some((held.hop, std::mem::replace(&mut held.effect, Effect::Nothing)));
            }
        }
        None
    }
}

impl Dial {
    /// A fragment has come, ideally `at`. When it goes, and whether it has to wait for the one
    /// before.
    fn admit(&mut self, bytes: u32, at: Nanos) -> (Nanos, bool) {
        let waits = self.released > at;
        // What has no bytes keeps its place, and costs nothing.
        let occupied = if bytes > 0 { self.cost.occupancy(bytes) } else { Nanos::ZERO };
        self.released = self.released.max(at) + occupied;
        let latency = if bytes > 0 { self.cost.latency() } else { Nanos::ZERO };
        self.delivered = self.delivered.max(self.released + latency);
        (self.delivered, waits)
    }

    /// The dial for people; `unknown` is told as it is.
    fn report(&self, unknown: bool) -> DialReport {
        let (total, mut below) = (self.late.count(), 0);
        let mut quantiles = [0.0; 2];
        for (bound, count) in self.late.buckets() {
            below += count;
            for (quantile, percent) in quantiles.iter_mut().zip([50, 99]) {
                if *quantile == 0.0 && total > 0 && below * 100 >= total * percent {
                    *quantile = bound.unwrap_or(u64::MAX) as f64 * 1e-9;
                }
            }
        }
        DialReport {
            stage: self.place.to_string(),
            cost: self.cost,
            held: self.queue.len() as u32,
            released: total,
            unknown,
            late_seconds: quantiles,
        }
    }
}

impl Shard {
    /// Sets a dial, anew if there is one: what that one holds goes on.
    pub(super) fn set_dial<I: Io>(&mut self, place: DialPlace, cost: DialCost, io: &mut I) {
        self.clear_dials(Some(&place), io);
        let stage = self.cx.planner.dial_stage(&place, false);
        let host = match cost.host() {
            Nanos::ZERO => StageIndex::NONE,
            _ => self.cx.planner.dial_stage(&place, true),
        };
        let dial = Dial {
            place,
            cost,
            stage,
            host,
            released: Nanos::ZERO,
            delivered: Nanos::ZERO,
            queue: VecDeque::with_capacity(QUEUE_FIRST),
            late: Latencies::default(),
        };
        if let Err(dial) = self.cx.dials.dials.insert(dial) {
            // Who asks looks first whether there is room.
            self.cx.planner.forget_dial(&dial.place);
        }
    }

    /// Clears the dial at a place, or all of them. What they hold goes on at once.
    pub(super) fn clear_dials<I: Io>(&mut self, place: Option<&DialPlace>, io: &mut I) {
        let mut from = 0;
        let wanted = |dial: &Dial| place.is_none_or(|place| dial.place == *place);
        while let Some(key) = self.cx.dials.dials.next_from(from, wanted) {
            from = key.index() + 1;
            self.cx.dials.due.clear(key.index());
            let Some(dial) = self.cx.dials.dials.remove(key) else { continue };
            self.cx.planner.forget_dial(&dial.place);
            self.cx.dials.held -= dial.queue.len();
            for held in dial.queue {
                self.pass_on(held.hop, held.effect, held.bytes, io);
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
        let dials = self.cx.dials.dials.iter().map(|(_, dial)| dial);
        dials.map(|dial| dial.report(!self.knows(&dial.place))).collect()
    }

    /// Whether something that is known here passes a dial at that place, or would.
    fn knows(&self, place: &DialPlace) -> bool {
        match place {
            DialPlace::Copy | DialPlace::Check => true,
            DialPlace::Disk { device, write } => self.cx.planner.has_disk(*device, *write),
            DialPlace::Send { peer } | DialPlace::Net { peer } | DialPlace::Receive { peer } => {
                let outbound = self.outbound.values().map(Outbound::name);
                let inbound = self.inbound.iter().map(|(_, link)| &*link.name);
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
    pub(super) fn pass<I: Io>(&mut self, hop: Hop, effect: Effect, bytes: u32, io: &mut I) {
        self.pass_at(hop, effect, bytes, None, io);
    }

    /// An effect is at the next dial of its way, if there is one, or goes on.
    fn pass_on<I: Io>(&mut self, hop: Hop, effect: Effect, bytes: u32, io: &mut I) {
        match hop.next() {
            Some(next) => self.pass(next, effect, bytes, io),
            None => self.apply(effect, io),
        }
    }

    /// `ideal`: when it came, had there been no delay but that of dials.
    fn pass_at<I: Io>(
        &mut self,
        first: Hop,
        effect: Effect,
        bytes: u32,
        ideal: Option<Nanos>,
        io: &mut I,
    ) {
        let mut hop = first;
        loop {
            if let Some(key) = self.dial_at(hop, &effect) {
                return self.hold(key, hop, effect, bytes, ideal, io);
            }
            match hop.next() {
                Some(next) => hop = next,
                None => return self.apply(effect, io),
            }
        }
    }

    fn dial_at(&self, hop: Hop, effect: &Effect) -> Option<DialKey> {
        match (hop, effect) {
            (Hop::Disk, Effect::Job(job)) => {
                let (device, write) = (job.device, job.direction == Direction::Write);
                self.cx.dials.find(|place| *place == DialPlace::Disk { device, write })
            }
            (Hop::Copy, _) => self.cx.dials.find(|place| *place == DialPlace::Copy),
            (Hop::Check, _) => self.cx.dials.find(|place| *place == DialPlace::Check),
            (
                _,
                Effect::Frame { lane, .. }
                | Effect::Data { lane, .. }
                | Effect::Written { lane, .. },
            ) => {
                let peer = self.peer_of(*lane)?;
                self.cx.dials.find(|place| is_at(place, hop, peer))
            }
            _ => None,
        }
    }

    /// The name of the node at the other end.
    pub(super) fn peer_of(&self, lane: LaneKey) -> Option<&str> {
        match &self.lanes.get(lane)?.role {
            Role::Asking(asking) => self.outbound.get(&asking.peer).map(|link| link.name()),
            Role::Serving(serving) => self.inbound.get(serving.link).map(|link| link.name.as_str()),
            Role::Stranger(_) => None,
        }
    }

    /// The stages of the dial that a frame passes there behind the wire of a lane.
    pub(super) fn dials_in(&self, lane: LaneKey, hop: Hop) -> [StageIndex; 2] {
        let peer = self.peer_of(lane).unwrap_or_default();
        self.cx.dials.stages(|place| is_at(place, hop, peer))
    }

    /// The stages of the dials that a frame passes before it leaves by a lane.
    pub(super) fn dials_out(&self, lane: LaneKey) -> [[StageIndex; 2]; 2] {
        let peer = self.peer_of(lane).unwrap_or_default();
        let check = self.cx.dials.stages(|place| *place == DialPlace::Check);
        [check, self.cx.dials.stages(|place| is_at(place, Hop::Send, peer))]
    }

    fn hold<I: Io>(
        &mut self,
        key: DialKey,
        hop: Hop,
        effect: Effect,
        bytes: u32,
        ideal: Option<Nanos>,
        io: &mut I,
    ) {
        // What came together came then, if nothing is done in between.
        let mut came = self.cx.driver.batch_time(io);
        let Some(dial) = self.cx.dials.dials.get_mut(key) else { return };
        let host = if bytes > 0 { dial.cost.host() } else { Nanos::ZERO };
        if host > Nanos::ZERO {
            let began = io.now();
            io.spend(host);
            came = io.now();
            self.cx.planner.note_work(came.since(began));
            self.cx.planner.sample_backlogged(dial.host, bytes, came.since(began));
        }
        let at = ideal.map_or_else(|| io.now(), |ideal| ideal + host);
        let (deliver, waited) = dial.admit(bytes, at);
        let ticket = (bytes > 0).then(|| self.cx.planner.arrive(dial.stage, came));
        dial.queue.push_back(Held { hop, effect, bytes, came, deliver, ticket, waited });
        self.cx.dials.held += 1;
        self.cx.dials.set_due(key);
    }

    /// Lets go of what is due.
    pub(super) fn release_due<I: Io>(&mut self, now: Nanos, io: &mut I) {
        if self.cx.dials.next().is_none_or(|at| at > now) {
            return;
        }
        while let Some(slot) = self.cx.dials.due.take_due(now) {
            let key = self.cx.dials.dials.next_from(slot, |_| true);
            let Some(key) = key.filter(|key| key.index() == slot) else { continue };
            while let Some((stage, held)) = self.cx.dials.take_due(key, now) {
                if let Some(ticket) = held.ticket {
                    self.cx.planner.depart_dial(stage, ticket, held.bytes, held.waited, now);
                    let times = (held.came, now);
                    match held.effect.subject() {
                        Some((subject, Some(start))) => {
                            let times = (Some(held.came), now);
                            self.cx.watch.pass_stage(subject, stage, (start, held.bytes), times);
                        }
                        Some((subject, None)) => {
                            self.cx.watch.pass_next(subject, stage, held.bytes, times);
                        }
                        None => {}
                    }
                }
                if let Effect::Frame { lane, number, .. } = held.effect
                    && let Some(lane) = self.lanes.get_mut(lane)
                {
                    lane.sender.wait_told(number, now.since(held.came));
                }
                match held.hop.next() {
                    Some(next) => {
                        self.pass_at(next, held.effect, held.bytes, Some(held.deliver), io);
                    }
                    None => self.apply(held.effect, io),
                }
            }
            self.cx.dials.set_due(key);
        }
        self.cx.sched.wake_starved();
    }

    /// What is held of a request that is over goes on now.
    pub(super) fn hurry<I: Io>(&mut self, work: Work, io: &mut I) {
        if !self.cx.dials.any() {
            return;
        }
        let is_of = |effect: &Effect| match *effect {
            Effect::Job(ref job) => Work::from(job.owner.subject()) == work,
            Effect::Frame { of, .. } => of == work,
            _ => false,
        };
        while let Some((_, effect)) = self.cx.dials.take_of(is_of) {
            self.apply(effect, io);
        }
    }

    /// Frames that were queued since the last look come to the dials.
    pub(super) fn dial_frames<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let dialled = self.peer_of(key).is_some_and(|peer| {
            let is_dialled =
                |place: &DialPlace| *place == DialPlace::Check || is_at(place, Hop::Send, peer);
            self.cx.dials.find(is_dialled).is_some()
        });
        while let Some(lane) = self.lanes.get_mut(key).filter(|_| dialled)
            && let Some((number, bytes, owner)) = lane.sender.hold_next()
        {
            // What has a payload in memory has an owner.
            let Some(of) = FrameOwner::of(owner).map(Work::from) else { continue };
            self.pass(Hop::Check, Effect::Frame { lane: key, number, of }, bytes, io);
        }
    }

    /// A data frame (or the end of a read) has arrived. Without bytes it only must not overtake
    /// any.
    pub(super) fn dial_data<I: Io>(
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
                    (Some(last), _) => self.end_read(key, last, io),
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

/// `name`: as the node at the other end gives it.
fn is_at(place: &DialPlace, hop: Hop, name: &str) -> bool {
    let name = node_of(name);
    match (place, hop) {
        (DialPlace::Send { peer }, Hop::Send)
        | (DialPlace::Net { peer }, Hop::Net)
        | (DialPlace::Receive { peer }, Hop::Receive) => peer == name,
        _ => false,
    }
}
