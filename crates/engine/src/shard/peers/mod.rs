//! The peers that this node asks: those of the configuration, which changes while running.
//!
//! A peer that is removed is forgotten when its last lane is closed. Should it come back, the other
//! side still knows its lanes' epochs and takes only newer ones, so who is new begins behind the
//! epochs of all that left, and is dialled when the lanes to the one before are closed.

mod wanted;
mod ways;

use std::collections::{BTreeMap, BTreeSet};

use piped_core::ids::PeerId;
use piped_core::limits::PEERS_DIALLED_MAX;
use piped_core::link::{Checksum, Dialling, LaneClass};
use piped_core::names::node_of;
use piped_core::noise::Noise;
use piped_core::units::Nanos;
use piped_planner::plan::Planner;
use piped_planner::stage::StageIndex;
use piped_report::tally::LaneLoss;

use super::cx::Cx;
use super::keys::LaneKey;
use crate::command::Event;

use self::wanted::Wanted;
use self::ways::Ways;
pub(super) use self::ways::{Choice, Taken, Way};

/// First wait after a lost or refused connection; doubles up to the longest.
const BACKOFF_FIRST: Nanos = Nanos::from_millis(20);
const BACKOFF_LONGEST: Nanos = Nanos::from_millis(2_000);

/// Least wait before a peer is asked again to open what it had no room for; at most twice as long.
const OPEN_AGAIN: Nanos = Nanos::from_millis(20);

/// How often to look which peers are not used.
const LOOK_EVERY: Nanos = Nanos::from_millis(15_000);

/// The peers of a shard. They are walked in the same order in every run of a seed.
#[derive(Debug)]
pub(super) struct Peers {
    all: BTreeMap<PeerId, Peer>,
    /// Jitter of waits, so that peers of a node that restarts do not come at once.
    noise: Noise,
    /// When to look which peers are not used, if some are that could rest.
    look: Option<Nanos>,
    /// The latest epoch of the lanes to peers that left.
    epochs_left: u32,
}

/// A peer from the configuration.
#[derive(Debug)]
pub(super) struct Peer {
    name: String,
    /// What checksums of its lanes are to cover.
    checksum: Checksum,
    lanes: [Dialled; LaneClass::ALL.len()],
    /// What its two ways take, if it has a second address.
    ways: Option<Box<Ways>>,
    /// The incarnation of the daemon that answers now; handles of an earlier one are opened again.
    incarnation: u64,
    /// The epoch of the latency lane on which the peer was told that what was not asked for again
    /// is not needed.
    swept_epoch: u32,
    /// Some handle may have to be asked for.
    unasked: bool,
    /// Lanes are still open to one of the same name that was removed. It is dialled after that.
    behind: bool,
    /// Whether there was a lane to the peer, and so there are stages.
    had_lane: bool,
    wanted: Wanted,
    /// What syncs take there, once a durable write was planned.
    sync_stage: StageIndex,
    /// How long the peer takes to answer a message: what it costs to announce one instead of
    /// sending it.
    handshake: Option<Nanos>,
    /// When something last came from it, on lanes that are gone.
    heard: Option<Nanos>,
}

#[derive(Debug, Default)]
struct Dialled {
    lane: Option<LaneKey>,
    /// Counts incarnations of the lane; the peer fences everything older.
    epoch: u32,
    failures: u32,
    last_loss: Option<LaneLoss>,
    /// Incarnations in a row that were closed for what the peer did.
    faults: u32,
    /// A connection was asked for and is not answered.
    dialling: bool,
}

impl Peers {
    pub(super) fn new(noise: Noise) -> Self {
        Self { all: BTreeMap::new(), noise, look: None, epochs_left: 0 }
    }

    /// A peer is in the configuration, new or again. A lane that is still closing is dialled when
    /// it is over.
    ///
    /// `second`: it has a second address, where it is dialled when its latency lane is up.
    pub(super) fn add(
        &mut self,
        (peer, second): (PeerId, bool),
        (name, checksum): (String, Checksum),
        dialling: Dialling,
        cx: &mut Cx,
    ) {
        let epoch = self.epochs_left;
        let behind = !self.all.contains_key(&peer) && self.still_closes(&name);
        let state = self.all.entry(peer).or_insert_with(|| Peer::new(name, epoch, behind));
        state.checksum = checksum;
        state.ways = second.then(Box::default);
        state.wanted.allow(dialling, state.has_lanes());
        if state.is_wanted() {
            state.dial_if_wanted(peer, cx);
            self.look.get_or_insert(Nanos::ZERO);
        }
    }

    /// Something is going to be open at a peer. It is dialled, if it is not.
    pub(super) fn note_used(&mut self, peer: PeerId, cx: &mut Cx) {
        let Some(state) = self.all.get_mut(&peer).filter(|it| !it.wanted.is_removed()) else {
            return;
        };
        if state.wanted.note_used() {
            state.dial_if_wanted(peer, cx);
            self.look.get_or_insert(Nanos::ZERO);
        }
    }

    /// A peer is not in the configuration any more.
    pub(super) fn remove(&mut self, peer: PeerId) {
        let Some(state) = self.all.get_mut(&peer) else { return };
        state.wanted.remove();
        let epochs = state.lanes.iter().map(|place| place.epoch);
        self.epochs_left = epochs.fold(self.epochs_left, u32::max);
    }

    /// Whether lanes are open to a removed peer of this name.
    fn still_closes(&self, name: &str) -> bool {
        self.all
            .values()
            .any(|peer| peer.wanted.is_removed() && peer.has_lanes() && peer.name == name)
    }

    /// Forgets a peer that was removed, once it has no lane and none is asked for. One of the same
    /// name is dialled when there are no lanes.
    pub(super) fn forget_removed(&mut self, peer: PeerId, cx: &mut Cx) {
        let is_closed = |it: &&Peer| it.wanted.is_removed() && !it.has_lanes();
        let Some(state) = self.get(peer).filter(is_closed) else { return };
        let (name, is_over) = (state.name.clone(), state.lanes.iter().all(|it| !it.dialling));
        let had_lane = state.had_lane;
        if is_over {
            self.all.remove(&peer);
        }
        if is_over && had_lane {
            // Who is back has the same stages.
            match self.all.values_mut().find(|other| other.name == name) {
                Some(back) => back.had_lane = true,
                None => cx.planner.forget_peer(&name, true),
            }
        }
        if !self.still_closes(&name) {
            let mut back = self.all.iter_mut().filter(|(_, it)| it.behind && it.name == name);
            if let Some((&id, state)) = back.next() {
                state.behind = false;
                state.dial_if_wanted(id, cx);
            }
        }
    }

    /// A client has closed something at a peer.
    pub(super) fn note_closed(&mut self, peer: PeerId, now: Nanos) {
        if let Some(state) = self.all.get_mut(&peer) {
            state.wanted.note_closed(now);
        }
    }

    /// How many peers are dialled.
    pub(super) fn dialled(&self) -> u32 {
        self.all.values().filter(|peer| peer.is_wanted()).count() as u32
    }

    /// How many peers do not rest, whatever is open at others than these.
    pub(super) fn kept(&self, in_use: &BTreeSet<PeerId>) -> u32 {
        let stays = |(id, peer): &(&PeerId, &Peer)| {
            peer.is_wanted() && (!peer.may_rest() || in_use.contains(id))
        };
        self.all.iter().filter(stays).count() as u32
    }

    /// A peer that rests from now on, so that another one can be dialled: of those at which nothing
    /// is open, and that know of that, the one that has been so for the longest.
    pub(super) fn take_idle(
        &mut self,
        in_use: &BTreeSet<PeerId>,
        is_busy: impl Fn(LaneKey) -> bool,
        now: Nanos,
    ) -> Option<PeerId> {
        let is_told = |peer: &Peer| {
            let mut lanes = peer.lanes.iter().filter_map(|place| place.lane);
            peer.wanted.had_its_time(now) || !peer.is_unswept() && !lanes.any(&is_busy)
        };
        let may_rest = |(id, peer): &(&PeerId, &mut Peer)| {
            peer.wanted.is_to_rest() && !in_use.contains(id) && is_told(peer)
        };
        let idle = self.all.iter_mut().filter(may_rest);
        let (&id, idle) = idle.min_by_key(|(_, peer)| peer.wanted.idle_since())?;
        idle.wanted.rest();
        Some(id)
    }

    /// Places that are kept for lanes to peers, also to those that rest: what is opened there must
    /// not wait for strangers to leave.
    pub(super) fn lanes_kept(&self) -> u32 {
        let counts =
            |(all, ways): (u32, u32), peer: &Peer| (all + 1, ways + u32::from(peer.has_ways()));
        let (all, ways) = self.all_there().fold((0, 0), counts);
        2 * all.min(PEERS_DIALLED_MAX) + ways.min(PEERS_DIALLED_MAX)
    }

    /// When [`Self::take_unused`] has something to do.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.look
    }

    /// Peers at which nothing has been open for a while, and which are dialled again when something
    /// is. `in_use`: the peers at which something is open now.
    pub(super) fn take_unused(&mut self, in_use: &BTreeSet<PeerId>, now: Nanos) -> Vec<PeerId> {
        let (mut unused, mut goes_on) = (Vec::new(), false);
        for (&peer, state) in &mut self.all {
            if state.wanted.goes_to_rest(in_use.contains(&peer), now) {
                unused.push(peer);
            }
            goes_on |= state.wanted.is_to_rest();
        }
        self.look = goes_on.then(|| now + LOOK_EVERY);
        unused
    }

    /// There is no connection to a peer. It is dialled anew, unless it was removed: one that says
    /// hello and then breaks the rules is no better than one that is not there.
    pub(super) fn fail(&mut self, peer: PeerId, class: LaneClass, now: Nanos, cx: &mut Cx) {
        let Some(state) = self.all.get_mut(&peer) else { return };
        let may_dial = class != LaneClass::Second || state.may_dial_second();
        let is_wanted = state.is_wanted();
        let place = &mut state.lanes[class as usize];
        place.dialling = false;
        if !is_wanted || !may_dial {
            return;
        }
        let doubled = BACKOFF_FIRST.0 << place.failures.max(place.faults).min(16);
        place.failures += 1;
        let wait = doubled.min(BACKOFF_LONGEST.0);
        // Between half and all of it.
        let jittered = Nanos(wait / 2 + self.noise.below(wait / 2));
        state.dial((peer, class), now + jittered, cx);
    }

    /// The latency lane is up: the second address is dialled.
    pub(super) fn dial_second(&mut self, peer: PeerId, cx: &mut Cx) {
        if let Some(state) = self.all.get_mut(&peer).filter(|state| state.may_dial_second()) {
            state.dial((peer, LaneClass::Second), Nanos::ZERO, cx);
        }
    }

    /// When a peer is asked again to open what it had no room for.
    pub(super) fn open_again_at(&mut self, now: Nanos) -> Nanos {
        now + Nanos(OPEN_AGAIN.0 + self.noise.below(OPEN_AGAIN.0))
    }

    pub(super) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.all.get(&peer)
    }

    pub(super) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.all.get_mut(&peer)
    }

    /// A peer that is in the configuration.
    pub(super) fn there(&self, peer: PeerId) -> Option<&Peer> {
        self.get(peer).filter(|peer| !peer.wanted.is_removed())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.all.iter().map(|(&id, peer)| (id, peer))
    }

    /// The peers that are in the configuration.
    pub(super) fn all_there(&self) -> impl Iterator<Item = &Peer> {
        self.all.values().filter(|peer| !peer.wanted.is_removed())
    }

    pub(super) fn lane(&self, peer: PeerId, class: LaneClass) -> Option<LaneKey> {
        self.get(peer)?.lane(class)
    }

    /// What checksums of a connection are to cover that a node of this name made.
    pub(super) fn checksum_of(&self, name: &str) -> Checksum {
        let peer = self.all_there().find(|peer| peer.name == node_of(name));
        peer.map_or(Checksum::Auto, Peer::checksum)
    }
}

impl Peer {
    /// A peer whose lanes have later epochs than this one.
    fn new(name: String, epoch: u32, behind: bool) -> Self {
        let lanes = [(); LaneClass::ALL.len()];
        Self {
            name,
            checksum: Checksum::Auto,
            lanes: lanes.map(|()| Dialled { epoch, ..Dialled::default() }),
            ways: None,
            incarnation: 0,
            swept_epoch: 0,
            unasked: false,
            behind,
            had_lane: false,
            wanted: Wanted::default(),
            sync_stage: StageIndex::NONE,
            handshake: None,
            heard: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The daemon that answers now; another one has nothing of ours open.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The stage of the syncs behind durable writes to the peer.
    pub(super) fn sync_stage(&mut self, planner: &mut Planner) -> StageIndex {
        if self.sync_stage == StageIndex::NONE {
            self.sync_stage = planner.peer_sync_stage(&self.name);
        }
        self.sync_stage
    }

    pub(super) fn lane(&self, class: LaneClass) -> Option<LaneKey> {
        self.lanes[class as usize].lane
    }

    /// A lane, its epoch, and why the last one was lost.
    pub(super) fn lane_state(&self, class: LaneClass) -> (Option<LaneKey>, u32, Option<LaneLoss>) {
        let Dialled { lane, epoch, last_loss, .. } = self.lanes[class as usize];
        (lane, epoch, last_loss)
    }

    /// A lane is gone by which something came at that time.
    pub(super) fn note_heard(&mut self, at: Nanos) {
        self.heard = self.heard.max(Some(at));
    }

    /// When something last came from it, on lanes that are gone.
    pub(super) fn heard(&self) -> Option<Nanos> {
        self.heard
    }

    /// What its two ways take, if it has a second address.
    pub(super) fn ways_mut(&mut self) -> Option<&mut Ways> {
        self.ways.as_deref_mut()
    }

    /// Whether its second address may be dialled: the peer takes a second lane beside a latency
    /// lane only, where this node has its handles.
    fn may_dial_second(&self) -> bool {
        self.ways.is_some() && self.lane(LaneClass::Latency).is_some()
    }

    /// Whether it has a second address.
    pub(super) fn has_ways(&self) -> bool {
        self.ways.is_some()
    }

    /// Whether there are to be connections to it now.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.is_now()
    }

    /// Whether it rests when nothing is open there.
    pub(super) fn may_rest(&self) -> bool {
        self.wanted.may_rest()
    }

    fn has_lanes(&self) -> bool {
        self.lanes.iter().any(|place| place.lane.is_some())
    }

    /// Whether it has a lane of a class, or had one.
    pub(super) fn uses(&self, class: LaneClass) -> bool {
        class != LaneClass::Second || self.ways.is_some() || self.lane(class).is_some()
    }

    /// Whether a lane was lost or refused since it was last up.
    pub(super) fn has_failed(&self, class: LaneClass) -> bool {
        self.lanes[class as usize].failures > 0
    }

    fn dial_if_wanted(&mut self, peer: PeerId, cx: &mut Cx) {
        if !self.is_wanted() || self.behind {
            return;
        }
        for class in [LaneClass::Latency, LaneClass::Bulk] {
            self.dial((peer, class), Nanos::ZERO, cx);
        }
    }

    /// Asks for a connection; one at a time for each lane.
    fn dial(&mut self, (peer, class): (PeerId, LaneClass), after: Nanos, cx: &mut Cx) {
        let place = &mut self.lanes[class as usize];
        if place.lane.is_none() && !std::mem::replace(&mut place.dialling, true) {
            cx.event(Event::Connect { peer, class, after });
        }
    }

    /// A connection is there: the epoch of its lane. `None`: it is not wanted any more.
    pub(super) fn connected(&mut self, class: LaneClass) -> Option<u32> {
        let is_wanted = self.is_wanted();
        let place = &mut self.lanes[class as usize];
        place.dialling = false;
        place.epoch += u32::from(is_wanted);
        is_wanted.then_some(place.epoch)
    }

    pub(super) fn enter(&mut self, class: LaneClass, lane: LaneKey) {
        self.lanes[class as usize].lane = Some(lane);
        self.had_lane = true;
    }

    /// A daemon answers on a lane. It may have nothing of ours open. Whether it is another one
    /// than before: by way of the second address, only the same one is taken.
    pub(super) fn note_up(&mut self, class: LaneClass, incarnation: u64) -> bool {
        self.lanes[class as usize].failures = 0;
        self.unasked = true;
        std::mem::replace(&mut self.incarnation, incarnation) != incarnation
    }

    /// The kernel is done with a lane. Whether another one may come up.
    pub(super) fn lose(&mut self, class: LaneClass, loss: LaneLoss) -> bool {
        let place = &mut self.lanes[class as usize];
        (place.lane, place.last_loss) = (None, Some(loss));
        place.faults = if loss.is_fault() { place.faults + 1 } else { 0 };
        self.is_wanted()
    }

    pub(super) fn note_unasked(&mut self) {
        self.unasked = true;
    }

    /// The lane on which handles are to be asked for, if some are.
    pub(super) fn lane_to_open(&self) -> Option<LaneKey> {
        self.lane(LaneClass::Latency).filter(|_| self.unasked)
    }

    /// Whether what was closed there without a lane is yet to be told.
    fn is_unswept(&self) -> bool {
        let Dialled { lane, epoch, .. } = self.lanes[LaneClass::Latency as usize];
        self.had_lane && (lane.is_none() || self.swept_epoch != epoch)
    }

    /// All handles were asked for on an epoch of the lane; `sweep` tells the peer so, once.
    pub(super) fn note_asked(&mut self, epoch: u32, sweep: impl FnOnce() -> bool) {
        self.unasked = false;
        if self.swept_epoch != epoch && sweep() {
            self.swept_epoch = epoch;
        }
    }

    pub(super) fn note_handshake(&mut self, time: Nanos) {
        let old = self.handshake.unwrap_or(time).0;
        // An eighth of the news, and never all of one that was held up somewhere.
        self.handshake = Some(Nanos(old - old / 8 + time.0.min(4 * old) / 8));
    }

    pub(super) fn handshake(&self) -> Option<Nanos> {
        self.handshake
    }
}
