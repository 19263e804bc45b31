//! Delay injection: what dials hold, and when they let it go. What a dial is says
//! [`piped_report::dial`].
//!
//! What would follow an event (a fragment has left the disk, a data frame has arrived) is kept as
//! an [`Effect`] until its delivery. Releases are computed from ideal times: a late timer delays
//! one delivery and not those behind it, and the next dial of a chain takes the ideal delivery for
//! the arrival. Where latencies differ they are drawn from the shard's seed, one for each fragment
//! that comes: fragments overtake each other at a disk, as they do in one, and nowhere else. A dial
//! is a stage of its own, and is measured as every stage is: by when the shard really saw a
//! fragment come and go.
//!
//! Memory that an effect stands for stays pinned. When a request is over, what is held of it goes
//! on at once ([`Dials::take_of`]): nobody waits for a dial who does not wait for bytes.

use std::collections::VecDeque;

use piped_core::ids::DeviceId;
use piped_core::io::Io;
use piped_core::limits::{DIALS_HELD_MAX, DIALS_MAX};
use piped_core::names::node_of;
use piped_core::noise::Noise;
use piped_core::units::Nanos;
use piped_model::estimate::Ticket;
use piped_planner::plan::Planner;
use piped_planner::stage::{Passage, StageIndex};
use piped_report::dial::{DialCost, DialPlace, DialReport};
use piped_report::histogram::Latencies;
use piped_wire::LastPart;

use super::driver::{Direction, JobEnd};
use super::keys::{DialKey, LaneKey, ServeKey, Subject, TransferKey, kind};
use super::sched::Work;
use super::slab::Slab;
use super::timers::Timers;
use super::watch::Watch;

/// What goes on when the last dial lets go of it.
#[derive(Debug)]
pub(super) enum Effect {
    /// The effect went on already.
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
    /// The lane by whose peer the dials on the way are named.
    pub(super) fn lane(&self) -> Option<LaneKey> {
        match *self {
            Self::Frame { lane, .. } | Self::Data { lane, .. } | Self::Written { lane, .. } => {
                Some(lane)
            }
            Self::Nothing | Self::Job(_) | Self::Copied { .. } | Self::Stored { .. } => None,
        }
    }

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

    /// Whether it stands for memory of this request.
    fn is_of(&self, work: Work) -> bool {
        match self {
            Self::Job(job) => Work::from(job.owner.subject()) == work,
            Self::Frame { of, .. } => *of == work,
            _ => false,
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
    /// The next dial on the way behind this one.
    pub(super) const fn next(self) -> Option<Self> {
        match self {
            Self::Check => Some(Self::Send),
            Self::Net => Some(Self::Receive),
            Self::Disk | Self::Copy | Self::Send | Self::Receive => None,
        }
    }
}

/// All dials of a shard, and what they hold.
#[derive(Debug)]
pub(super) struct Dials {
    dials: Slab<kind::Dial, Dial>,
    /// When the first delivery of each is due.
    due: Timers,
    /// Effects that they hold.
    held: usize,
    /// The dial that lets go of all that is due, one after the other.
    releasing: Option<DialKey>,
    /// What latencies that differ are drawn from.
    noise: Noise,
}

#[derive(Debug)]
struct Dial {
    place: DialPlace,
    cost: DialCost,
    /// Its stage; none if it has nothing but an `o`.
    stage: StageIndex,
    /// The stage of its `o`, which is the thread's time and not the dial's; none without.
    host: StageIndex,
    /// Ideal time of the last release.
    released: Nanos,
    /// Ideal time of the latest delivery, which at a disk only what has bytes overtakes.
    delivered: Nanos,
    queue: VecDeque<Held>,
    /// How late deliveries were.
    late: Latencies,
}

/// An effect that a dial holds, or has let go of.
#[derive(Debug)]
pub(super) struct Held {
    pub(in crate::shard) hop: Hop,
    pub(in crate::shard) effect: Effect,
    pub(in crate::shard) bytes: u32,
    /// When it really came.
    pub(in crate::shard) came: Nanos,
    /// When it goes, ideally.
    pub(in crate::shard) deliver: Nanos,
    /// Nothing to measure of what has no bytes and only keeps its place.
    ticket: Option<Ticket>,
    passage: Passage,
}

/// Effects that a dial has memory for when it is set; what all hold together has a bound.
const QUEUE_FIRST: usize = 512;

impl Dials {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            dials: Slab::with_capacity(DIALS_MAX),
            due: Timers::with_capacity(DIALS_MAX),
            held: 0,
            releasing: None,
            noise: Noise::of_seed(seed),
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

    /// The stages of the dial of that hop to or from a peer.
    pub(super) fn stages_at(&self, hop: Hop, peer: &str) -> [StageIndex; 2] {
        self.stages(|place| is_at(place, hop, peer))
    }

    /// Whether frames to a peer are held before they leave.
    pub(super) fn holds_frames_to(&self, peer: &str) -> bool {
        self.find(|place| *place == DialPlace::Check || is_at(place, Hop::Send, peer)).is_some()
    }

    /// The first dial on an effect's way from a hop on. `peer`: the name of the node at the other
    /// end, if it is about a lane.
    pub(super) fn first_on_way(
        &self,
        hop: Hop,
        effect: &Effect,
        peer: Option<&str>,
    ) -> Option<(Hop, DialKey)> {
        let key = match (hop, effect) {
            (Hop::Disk, Effect::Job(job)) => {
                let (device, write) = (job.device, job.direction == Direction::Write);
                self.find(|place| *place == DialPlace::Disk { device, write })
            }
            (Hop::Copy, _) => self.find(|place| *place == DialPlace::Copy),
            (Hop::Check, _) => self.find(|place| *place == DialPlace::Check),
            _ => peer.and_then(|peer| self.find(|place| is_at(place, hop, peer))),
        };
        match key {
            Some(key) => Some((hop, key)),
            None => self.first_on_way(hop.next()?, effect, peer),
        }
    }

    /// Holds an effect, or returns it if it goes on at once: the thread alone had work with it.
    /// `came`: when it came with others that came together, if nothing is done in between; `ideal`:
    /// when it came, had there been no delay but that of dials.
    pub(super) fn hold<I: Io>(
        &mut self,
        (hop, key): (Hop, DialKey),
        effect: Effect,
        bytes: u32,
        (mut came, ideal): (Nanos, Option<Nanos>),
        (planner, watch): (&mut Planner, &mut Watch),
        io: &mut I,
    ) -> Option<Effect> {
        let dial = self.dials.get_mut(key)?;
        let host = if bytes > 0 { dial.cost.host() } else { Nanos::ZERO };
        if host > Nanos::ZERO {
            let began = io.now();
            io.spend(host);
            came = io.now();
            planner.note_work(came.since(began));
            planner.sample_backlogged(dial.host, bytes, came.since(began));
            watch.pass_dial(effect.subject(), dial.host, bytes, (began, came));
        }
        if dial.cost.is_host_only() {
            dial.late.add(0);
            return Some(effect);
        }
        let at = ideal.map_or_else(|| io.now(), |ideal| ideal + host);
        let (deliver, passage) = dial.admit(bytes, at, || self.noise.unit());
        let ticket = (bytes > 0).then(|| planner.arrive(dial.stage, came));
        let place = dial.queue.partition_point(|held| held.deliver <= deliver);
        dial.queue.insert(place, Held { hop, effect, bytes, came, deliver, ticket, passage });
        self.held += 1;
        self.set_due(key);
        None
    }

    /// The next effect whose time has come.
    pub(super) fn poll_due(
        &mut self,
        now: Nanos,
        planner: &mut Planner,
        watch: &mut Watch,
    ) -> Option<Held> {
        loop {
            let key = match self.releasing {
                Some(key) => key,
                None => {
                    let slot = self.due.take_due(now)?;
                    let Some(key) = self.dials.in_place(slot) else { continue };
                    *self.releasing.insert(key)
                }
            };
            if let Some(dial) = self.dials.get_mut(key)
                && let Some(held) = dial.queue.pop_front_if(|held| held.deliver <= now)
            {
                self.held -= 1;
                dial.late.add(now.since(held.deliver).0);
                let (stage, bytes, times) = (dial.stage, held.bytes, (held.came, now));
                if let Some(ticket) = held.ticket {
                    planner.depart_dial(stage, ticket, bytes, held.passage, now);
                    watch.pass_dial(held.effect.subject(), stage, bytes, times);
                }
                return Some(held);
            }
            self.set_due(key);
            self.releasing = None;
        }
    }

    fn set_due(&mut self, key: DialKey) {
        match self.dials.get(key).and_then(|dial| dial.queue.front()) {
            Some(held) => self.due.set(key.index(), held.deliver),
            None => self.due.clear(key.index()),
        }
    }

    /// Takes what is held of a request that is over out of its place, which stays taken.
    pub(super) fn take_of(&mut self, work: Work) -> Option<Effect> {
        let mut from = 0;
        while let Some(key) = self.dials.next_from(&mut from, |_| true) {
            let mut queue = self.dials.get_mut(key)?.queue.iter_mut();
            if let Some(held) = queue.find(|held| held.effect.is_of(work)) {
                return Some(std::mem::replace(&mut held.effect, Effect::Nothing));
            }
        }
        None
    }

    /// Sets a dial where none is.
    pub(super) fn set(&mut self, place: DialPlace, cost: DialCost, planner: &mut Planner) {
        let stage = match cost.is_host_only() {
            true => StageIndex::NONE,
            false => planner.dial_stage(&place, false),
        };
        let host = match cost.host() {
            Nanos::ZERO => StageIndex::NONE,
            _ => planner.dial_stage(&place, true),
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
        if let Err(dial) = self.dials.insert(dial) {
            // Who asks looks first whether there is room.
            planner.forget_dial(&dial.place);
        }
    }

    /// Clears the next dial at a place, or anywhere. Returns what it held, which goes on at once.
    pub(super) fn clear(
        &mut self,
        place: Option<&DialPlace>,
        planner: &mut Planner,
    ) -> Option<VecDeque<Held>> {
        let wanted = |dial: &Dial| place.is_none_or(|place| dial.place == *place);
        let key = self.dials.next_from(&mut 0, wanted)?;
        self.due.clear(key.index());
        let dial = self.dials.remove(key)?;
        planner.forget_dial(&dial.place);
        self.held -= dial.queue.len();
        Some(dial.queue)
    }

    /// The dials and what they do. `knows`: whether something passes a place, or would.
    pub(super) fn reports(&self, knows: impl Fn(&DialPlace) -> bool) -> Vec<DialReport> {
        self.dials.iter().map(|(_, dial)| dial.report(!knows(&dial.place))).collect()
    }
}

impl Dial {
    /// A fragment has come, ideally `at`. When it goes, and what it waits for.
    fn admit(&mut self, bytes: u32, at: Nanos, unit: impl FnMut() -> f64) -> (Nanos, Passage) {
        let waits = self.released > at;
        // What has no bytes keeps its place, and costs nothing.
        let occupied = if bytes > 0 { self.cost.occupancy(bytes) } else { Nanos::ZERO };
        self.released = self.released.max(at) + occupied;
        let latency = if bytes > 0 { self.cost.latency(unit) } else { Nanos::ZERO };
        let own = self.released + latency;
        let may_overtake = bytes > 0 && matches!(self.place, DialPlace::Disk { .. });
        let deliver = if may_overtake { own } else { own.max(self.delivered) };
        self.delivered = self.delivered.max(deliver);
        let passage = match (waits, deliver > own) {
            (true, _) => Passage::Waited,
            (false, true) => Passage::HeldBack,
            (false, false) => Passage::Alone,
        };
        (deliver, passage)
    }

    /// What the dial did. `unknown`: nothing passes its place.
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

#[cfg(test)]
mod tests {
    use piped_core::modes::{CalibrationMode, PlannerMode};
    use piped_core::spread::LatencySpread;
    use piped_sim::{Faults, SimKernel};

    use super::super::slab::Key;
    use super::*;

    const LATENCY: Nanos = Nanos::from_micros(10);

    /// Two dials of a chain, which delay without being busy.
    fn chain() -> (Dials, Planner, Watch) {
        let mut dials = Dials::new(1);
        let mut planner = Planner::new(PlannerMode::Auto, CalibrationMode::Live, false);
        let peer = || String::from("b");
        let cost = DialCost { latency_ns: LATENCY.0, ..DialCost::default() };
        for place in [DialPlace::Net { peer: peer() }, DialPlace::Receive { peer: peer() }] {
            dials.set(place, cost, &mut planner);
        }
        (dials, planner, Watch::new(1))
    }

    fn data(transfer: u64) -> Effect {
        let (transfer, lane) = (Key::from_bits(transfer), Key::from_bits(1));
        Effect::Data { transfer, lane, watermark: Some(1), last: None }
    }

    fn transfer_of(held: &Held) -> u64 {
        match held.effect {
            Effect::Data { transfer, .. } => transfer.to_bits(),
            _ => 0,
        }
    }

    #[test]
    fn effects_keep_their_order_and_the_next_dial_takes_the_ideal_time() {
        let ((mut dials, mut planner, mut watch), mut kernel) =
            (chain(), SimKernel::new(1, Faults::none()));
        let node = kernel.add_node(16);
        for transfer in 1..=2 {
            let mut io = kernel.io(node);
            let (came, effect) = (io.now(), data(transfer));
            let at = dials.first_on_way(Hop::Net, &effect, Some("b")).expect("a dial is there");
            assert_eq!(at.0, Hop::Net);
            let times = (came, None);
            let held = dials.hold(at, effect, 1000, times, (&mut planner, &mut watch), &mut io);
            assert!(held.is_none());
        }
        assert!(dials.first_on_way(Hop::Net, &data(3), Some("c")).is_none());
        let due = dials.next().expect("something is held");
        assert!(dials.poll_due(due - Nanos(1), &mut planner, &mut watch).is_none());
        // The timer is late: the next dial counts from the ideal time all the same.
        let late = due + LATENCY;
        let first = dials.poll_due(late, &mut planner, &mut watch).expect("due");
        assert_eq!((transfer_of(&first), first.deliver), (1, due));
        let at = dials.first_on_way(Hop::Receive, &first.effect, Some("b")).expect("the other");
        let times = (late, Some(first.deliver));
        let mut io = kernel.io(node);
        let held = dials.hold(at, first.effect, 1000, times, (&mut planner, &mut watch), &mut io);
        assert!(held.is_none());
        let second = dials.poll_due(late, &mut planner, &mut watch).expect("due as well");
        assert_eq!((transfer_of(&second), second.hop), (2, Hop::Net));
        let first = dials.poll_due(late, &mut planner, &mut watch).expect("so is this one");
        assert_eq!((first.hop, first.deliver), (Hop::Receive, due + LATENCY));
        assert_eq!((dials.next(), dials.held), (None, 0));
    }

    /// Passes of a dial that has a latency of 100 us and 10 us between releases, by the units that
    /// latencies are drawn with: a half of all stall for ten times as long.
    fn passes(place: DialPlace, came: &[(u32, u64, bool)]) -> Vec<(u64, Passage)> {
        let (mut dials, mut planner, _) = chain();
        let spread = LatencySpread { stalls: 0.5, times: 10.0, ..LatencySpread::NONE };
        let cost =
            DialCost { latency_ns: 100_000, overhead_ns: 10_000, spread, ..DialCost::default() };
        dials.set(place.clone(), cost, &mut planner);
        let key = dials.find(|it| *it == place).expect("it was set");
        let dial = dials.dials.get_mut(key).expect("it is there");
        let pass = |&(bytes, micros, stalls): &(u32, u64, bool)| {
            let unit = if stalls { 0.25 } else { 0.75 };
            let (deliver, passage) = dial.admit(bytes, Nanos::from_micros(micros), || unit);
            (deliver.0 / 1000, passage)
        };
        came.iter().map(pass).collect()
    }

    #[test]
    fn what_comes_behind_a_stall_is_known_to_wait_for_it() {
        let came = [(9, 0, true), (9, 100, false), (9, 105, false), (9, 1_000, false)];
        let (first, last) = ((1_010, Passage::Alone), (1_110, Passage::Alone));
        let peer = DialPlace::Net { peer: String::from("c") };
        let behind = [(1_010, Passage::HeldBack), (1_010, Passage::Waited)];
        assert_eq!(passes(peer, &came), [first, behind[0], behind[1], last]);
        let disk = DialPlace::Disk { device: DeviceId(1), write: false };
        let ahead = [(210, Passage::Alone), (220, Passage::Waited)];
        assert_eq!(passes(disk, &came), [first, ahead[0], ahead[1], last]);
    }

    /// What has no bytes (an error, the end of a file) is behind all that came before it.
    #[test]
    fn what_has_no_bytes_keeps_its_place_at_a_disk() {
        let came = [(9, 0, true), (9, 100, false), (0, 150, false), (9, 200, false)];
        let disk = DialPlace::Disk { device: DeviceId(1), write: false };
        let times: Vec<u64> = passes(disk, &came).iter().map(|&(at, _)| at).collect();
        assert_eq!(times, [1_010, 210, 1_010, 310]);
    }

    #[test]
    fn a_cleared_dial_gives_back_what_it_held() {
        let ((mut dials, mut planner, mut watch), mut kernel) =
            (chain(), SimKernel::new(1, Faults::none()));
        let node = kernel.add_node(16);
        let at = dials.first_on_way(Hop::Net, &data(1), Some("b")).expect("a dial is there");
        let (times, mut io) = ((Nanos::ZERO, None), kernel.io(node));
        let held = dials.hold(at, data(1), 10, times, (&mut planner, &mut watch), &mut io);
        assert!(held.is_none());
        let place = DialPlace::Net { peer: String::from("b") };
        let held = dials.clear(Some(&place), &mut planner).expect("it is set");
        assert_eq!(held.iter().map(transfer_of).collect::<Vec<_>>(), [1]);
        assert!(dials.clear(Some(&place), &mut planner).is_none() && dials.any());
        assert_eq!((dials.next(), dials.held), (None, 0));
        assert!(dials.clear(None, &mut planner).is_some() && !dials.any());
    }
}
