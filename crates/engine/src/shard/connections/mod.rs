//! Connections between two nodes, and the memory that their sends lend to the kernel.

mod credit;
mod lane;
mod pace;
mod receiving;
mod reports;
mod resting;
mod role;
mod sending;
mod waiting;
mod zero_copy;

use piped_core::io::{Io, Span};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::modes::ZeroCopyMode;
use piped_core::request::Class;
use piped_core::units::Nanos;
use piped_wire::Lent;

use super::cx::Cx;
use super::keys::{LaneKey, NoticeKey, kind};
use super::slab::Slab;
use super::timers::Timers;

pub(super) use self::credit::Grant;
pub(super) use self::lane::{Lane, LaneState, LostLane, PeerLane, Rest};
pub(super) use self::receiving::{Arrived, Destination, Target};
pub(super) use self::reports::KINDS;
use self::resting::Rests;
pub(super) use self::role::{Asking, PeerRequest, Role, Serving};
pub(super) use self::sending::{Notice, Sending};
pub(super) use self::zero_copy::Way;

/// The connections of a shard.
#[derive(Debug)]
pub(super) struct Lanes {
    all: Slab<kind::Lane, Lane>,
    /// Sends whose memory the kernel still has.
    notices: Slab<kind::Notice, Notice>,
    zero_copy: ZeroCopyMode,
    /// The time in which a connection must say which node it is; of one that we dialled, the time
    /// after which the peer is asked again for what it refused.
    times: Timers,
    /// When to look whether a lane still waits for the rest of a frame.
    frame_times: Timers,
    rests: Rests,
}

impl Lanes {
    /// Room for all that there may be.
    pub(super) fn new(zero_copy: ZeroCopyMode) -> Self {
        Self {
            all: Slab::with_capacity(limits::LANES_MAX),
            notices: Slab::with_capacity(limits::NOTICES_MAX),
            zero_copy,
            times: Timers::with_capacity(limits::LANES_MAX),
            frame_times: Timers::with_capacity(limits::LANES_MAX),
            rests: Rests::new(),
        }
    }

    /// Begins a lane; the caller looked whether there is room.
    pub(super) fn begin(&mut self, lane: Lane) -> Option<LaneKey> {
        self.all.insert(lane).ok()
    }

    /// Takes out a lane that the kernel is done with.
    pub(super) fn end(&mut self, key: LaneKey) -> Option<Lane> {
        self.all.remove(key)
    }

    /// A lane, also one that closes.
    pub(super) fn get(&self, key: LaneKey) -> Option<&Lane> {
        self.all.get(key)
    }

    /// The mutable form of [`Self::get`].
    pub(super) fn get_mut(&mut self, key: LaneKey) -> Option<&mut Lane> {
        self.all.get_mut(key)
    }

    /// All lanes, with those that close.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneKey, &Lane)> {
        self.all.iter()
    }

    /// The first one at or after a place that is wanted.
    pub(super) fn next_from(
        &self,
        from: &mut u32,
        wanted: impl Fn(&Lane) -> bool,
    ) -> Option<LaneKey> {
        self.all.next_from(from, wanted)
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.all.len()
    }

    /// How many were dialled.
    pub(super) fn dialled(&self) -> u32 {
        self.iter().filter(|(_, lane)| lane.asking().is_some()).count() as u32
    }

    /// How many more there may be.
    pub(super) fn room(&self) -> u32 {
        self.all.room()
    }

    /// How many sends lend their memory.
    pub(super) fn lent(&self) -> u32 {
        self.notices.len()
    }

    /// Which sends may go without a copy.
    pub(super) fn zero_copy(&self) -> ZeroCopyMode {
        self.zero_copy
    }

    /// Sets which sends may go without a copy, from the next one on.
    pub(super) fn set_zero_copy(&mut self, mode: ZeroCopyMode) {
        self.zero_copy = mode;
    }

    /// Has a lane looked at then, for what it was to do until then.
    pub(super) fn look_at(&mut self, key: LaneKey, at: Nanos) {
        self.times.set(key.index(), at);
    }

    /// A lane has done what it was to do in a time.
    pub(super) fn stop_time(&mut self, key: LaneKey) {
        self.times.clear(key.index());
    }

    /// A lane whose time is over.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<LaneKey> {
        self.times.take_due(now).and_then(|slot| self.all.in_place(slot))
    }

    /// Has a lane looked at then, for the rest of a frame.
    pub(super) fn watch_frame(&mut self, key: LaneKey, at: Nanos) {
        self.frame_times.set(key.index(), at);
    }

    /// Nothing is waited for on a lane that closes.
    pub(super) fn stop_times(&mut self, key: LaneKey) {
        self.times.clear(key.index());
        self.frame_times.clear(key.index());
    }

    /// A lane that may still wait for the rest of a frame.
    pub(super) fn take_due_frame(&mut self, now: Nanos) -> Option<LaneKey> {
        self.frame_times.take_due(now).and_then(|slot| self.all.in_place(slot))
    }

    /// Sets how long a lane has nothing to do before it rests.
    pub(super) fn set_rest_time(&mut self, time: Nanos) {
        self.rests.set_after(time);
    }

    /// A lane has memory to give back when it rests: lanes are looked at after a while.
    pub(super) fn watch_rest(&mut self, now: impl FnOnce() -> Nanos) {
        if !self.rests.is_watched() {
            self.rests.looked(true, now());
        }
    }

    /// When [`Self::take_rested`] has something to do.
    pub(super) fn next_rest(&self) -> Option<Nanos> {
        self.rests.next_look()
    }

    /// Lanes that have had nothing to do for long, and give back what they do not need in their
    /// next turn.
    pub(super) fn take_rested(&mut self, now: Nanos) -> Vec<LaneKey> {
        let may_have = |lane: &Lane| lane.state != LaneState::Closing && lane.rest() != Rest::Done;
        let (mut rested, mut goes_on, mut from) = (Vec::new(), false, 0);
        while let Some(key) = self.all.next_from(&mut from, may_have) {
            goes_on = true;
            let after = self.rests.after();
            if self.all.get_mut(key).is_some_and(|lane| lane.let_rest(after, now)) {
                rested.push(key);
            }
        }
        self.rests.looked(goes_on, now);
        rested
    }

    /// When the first lane is to be looked at.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        let times = [&self.times, &self.frame_times].into_iter().filter_map(Timers::next);
        times.chain(self.rests.next_look()).min()
    }

    /// What the payload at hand was meant for, for the handler of its frame.
    pub(super) fn take_target(&mut self, key: LaneKey) -> Target {
        self.all.get_mut(key).map(|lane| lane.receiving.take_target()).unwrap_or_default()
    }

    /// How the lane's next send goes.
    pub(super) fn choose_way<I: Io>(&mut self, key: LaneKey, cx: &Cx, io: &mut I) -> Way {
        let plain = Way::Plain { timed: false };
        let (mode, calibration) = (self.zero_copy, cx.planner.calibration());
        let can = self.notices.room() > 0 && cx.driver.has_room() && io.sends_without_copy();
        let Some(lane) = self.all.get_mut(key) else { return plain };
        // What is lent lies in scratch, too, and would keep it from moving.
        if !can || lane.next_scratch.is_some() {
            return plain;
        }
        lane.sender.keep_apart(lane.zero_copy.any(mode));
        match lane.sender.lendable() {
            0 => plain,
            bytes => lane.zero_copy.choose(bytes, mode, calibration, io.now()),
        }
    }

    /// Keeps what is lent until the kernel's second word. There is room: that was asked when the
    /// way was chosen.
    pub(super) fn lend(&mut self, key: LaneKey, lent: Lent, now: Nanos) -> Option<NoticeKey> {
        let lane = self.all.get_mut(key)?;
        let bytes = lane.send.as_ref().map_or(0, |send| send.bytes);
        let notice = Notice { lane: key, lent, bytes, since: now, void: false };
        match self.notices.insert(notice) {
            Ok(notice) => {
                if let Some(send) = &mut lane.send {
                    send.notice = Some(notice);
                }
                Some(notice)
            }
            Err(notice) => {
                debug_assert!(false, "more is lent than there are places");
                lane.sender.take_back(notice.lent);
                None
            }
        }
    }

    /// A send that lends took nothing: its second end says nothing of the path.
    pub(super) fn void(&mut self, notice: Option<NoticeKey>) {
        if let Some(notice) = notice.and_then(|notice| self.notices.get_mut(notice)) {
            notice.void = true;
        }
    }

    /// The kernel is done with what a send was lent.
    pub(super) fn end_loan(&mut self, notice: NoticeKey) -> Option<Notice> {
        self.notices.remove(notice)
    }

    /// A send found no place at the driver. Places are sized for two operations of a lane beside
    /// the jobs; the lane would have lost its place in the stream.
    pub(super) fn take_back_send(&mut self, key: LaneKey, notice: Option<NoticeKey>) {
        let Some(lane) = self.all.get_mut(key) else { return };
        lane.send = None;
        lane.sender.handle_sent(0);
        if let Some(notice) = notice.and_then(|notice| self.notices.remove(notice)) {
            lane.sender.take_back(notice.lent);
        }
    }
}

/// Which lane a request takes: urgent and short ones the latency lane.
pub(super) fn lane_class(class: Class, length: u64) -> LaneClass {
    match class {
        Class::Latency if length <= limits::LATENCY_LANE_BYTES_MAX => LaneClass::Latency,
        _ => LaneClass::Bulk,
    }
}

/// What landed of a frame, if that is no longer than it may be.
pub(super) fn load_bytes<I: Io>(landed: Option<Span>, longest: u32, io: &mut I) -> Option<Vec<u8>> {
    let span = landed.filter(|span| span.length <= longest)?;
    let mut bytes = vec![0; span.length as usize];
    io.load(span, &mut bytes);
    Some(bytes)
}
