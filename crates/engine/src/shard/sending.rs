//! A lane's sends: whose frames come next, how each goes, and when the memory of its frames is
//! free.
//!
//! A send that copies is over when it ends. One that lends ends twice, and what comes between is a
//! [`Notice`], which owns the frames' memory: it is counted, it keeps the lane from being
//! forgotten, and nothing but the kernel's second word ends it.

use piped_core::io::{Io, NOTICE_COPIED, Op, Span};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_report::tally::{LaneLoss, SendWay};
use piped_wire::{BATCH_BYTES_MAX, Lent, Message, Owner};

use super::Shard;
use super::cx::Cx;
use super::driver::{OpOwner, notice_token};
use super::fair::Flow;
use super::keys::{LaneKey, NoticeKey, OpKey, ServeKey, Subject, TransferKey};
use super::lane::{Lane, LaneState};
use super::sched::Work;
use super::slab::Key;
use super::zero_copy::Way;

/// How a send under way goes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sending {
    /// It lends its memory: what ends that.
    notice: Option<NoticeKey>,
    /// So long the thread was at it, if that was timed.
    cost: Option<Nanos>,
    bytes: u64,
}

/// Memory that is lent to the kernel.
#[derive(Debug)]
pub(super) struct Notice {
    lane: LaneKey,
    lent: Lent,
    bytes: u64,
    since: Nanos,
    /// Nothing was taken: it says nothing of the path.
    void: bool,
}

/// What the kernel says where a socket cannot send without a copy (EOPNOTSUPP, EINVAL), or where a
/// limit for pinned memory is reached (ENOMEM, ENOBUFS). The stream is as it was.
const REFUSALS: [i32; 4] = [-95, -22, -12, -105];

/// A frame of data whose turn has not come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    message: Message,
    payload: Option<Span>,
    pub(super) owner: Option<FrameOwner>,
}

/// The request whose bytes a frame carries. It is told when the kernel has the frame, and when it
/// is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameOwner {
    Transfer(TransferKey),
    Serve(ServeKey),
}

impl FrameOwner {
    /// Tells serves from transfers where a sender has but a number: an index is far below it.
    const SERVE: u64 = 1 << 31;

    /// The owner as a sender knows it.
    pub(super) fn tag(self) -> Owner {
        match self {
            Self::Transfer(key) => Owner(key.to_bits()),
            Self::Serve(key) => Owner(key.to_bits() | Self::SERVE),
        }
    }

    /// The owner that a sender names; nothing for a frame that nobody waits for.
    pub(super) fn of(owner: Owner) -> Option<Self> {
        match owner {
            Owner::NONE => None,
            Owner(bits) if bits & Self::SERVE != 0 => {
                Some(Self::Serve(Key::from_bits(bits & !Self::SERVE)))
            }
            Owner(bits) => Some(Self::Transfer(Key::from_bits(bits))),
        }
    }
}

impl From<FrameOwner> for Work {
    fn from(owner: FrameOwner) -> Self {
        match owner {
            FrameOwner::Transfer(key) => Self::Transfer(key),
            FrameOwner::Serve(key) => Self::Serve(key),
        }
    }
}

impl From<FrameOwner> for Subject {
    fn from(owner: FrameOwner) -> Self {
        match owner {
            FrameOwner::Transfer(key) => Self::Transfer(key),
            FrameOwner::Serve(key) => Self::Serve(key),
        }
    }
}

impl Lane {
    /// Whether a frame of data finds room; the rest of the queue is for answers.
    pub(super) fn has_room_for_data(&self) -> bool {
        self.sender.room() > limits::LANE_QUEUE - limits::LANE_QUEUE_DATA
    }

    /// Whether frames wait or are being sent.
    pub(super) fn has_frames(&self) -> bool {
        !self.sender.is_empty() || !self.waiting.is_empty()
    }

    /// Whether there is more to send at once: frames, or requests whose next frames come in this
    /// turn.
    pub(super) fn has_more(&self) -> bool {
        self.has_frames() || !self.serves().is_empty()
    }

    /// Queues a frame of data, which leaves when its flow's turn comes. `false`: there is no room
    /// for it.
    pub(super) fn push_data(
        &mut self,
        flow: Flow,
        message: Message,
        payload: Option<Span>,
        owner: Option<FrameOwner>,
    ) -> bool {
        // Each owner has few: what is refused here is more than all requests of a lane may have
        // together.
        let room = self.waiting.len() < limits::LANE_WAITING_MAX;
        if room {
            let bytes = payload.map_or(0, |span| span.length);
            self.waiting.push(flow, bytes, Waiting { message, payload, owner });
        }
        room
    }

    /// Gives the sender a batch; a short one where several share the lane, so that their turns are
    /// short.
    pub(super) fn feed(&mut self) {
        let most =
            if self.waiting.is_shared() { limits::SHARED_BATCH_BYTES } else { BATCH_BYTES_MAX };
        while self.sender.queued_bytes() < most
            && self.has_room_for_data()
            && let Some((_, Waiting { message, payload, owner })) = self.waiting.pop()
        {
            let owner = owner.map_or(Owner::NONE, FrameOwner::tag);
            let pushed = self.sender.push(self.epoch, message, payload, owner);
            debug_assert!(pushed.is_ok(), "there was room");
        }
    }

    /// The owner of the next frame that the kernel has taken; it may still read it.
    pub(super) fn poll_taken(&mut self) -> Option<FrameOwner> {
        FrameOwner::of(self.sender.poll_taken()?)
    }

    /// Takes back what an owner has queued and the sender has not got, in bytes of each frame.
    pub(super) fn take_back(&mut self, owner: FrameOwner) -> impl Iterator<Item = u32> + use<> {
        let taken = self.waiting.remove(|waiting| waiting.owner == Some(owner));
        taken.into_iter().map(|waiting| waiting.payload.map_or(0, |span| span.length))
    }
}

impl Shard {
    pub(super) fn send_frames<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.sending || lane.state == LaneState::Closing {
            return;
        }
        lane.feed();
        if self.cx.dials.any() {
            self.dial_frames(key, io);
        }
        let way = self.choose_way(key, io);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let (spans, lent) = match way {
            Way::Plain { .. } => (lane.sender.poll_send(io), None),
            Way::Lend { .. } => lane.sender.poll_lend(io).unzip(),
        };
        let checked = lane.sender.take_checked();
        self.cx.planner.note_work(checked.time());
        if let Some((bytes, time)) = checked.mean() {
            self.cx.planner.sample_check(bytes, time);
        }
        let gathered = lane.sender.take_gathered();
        let Some(spans) = spans else { return };
        lane.sending = true;
        lane.send = Sending { bytes: spans.bytes(), ..Sending::default() };
        let socket = lane.socket;
        let notice = lent.and_then(|lent| self.lend(key, lent, io));
        let op = match notice {
            None => Op::Send { socket, spans },
            Some(notice) => Op::SendZeroCopy { socket, spans, notice: notice_token(notice) },
        };
        if self.start_send(key, op, way.is_timed(), io).is_none() {
            self.take_back_send(key, notice);
            self.cx.sched.starve(Work::Lane(key));
        }
        if let Some(lane) = self.lanes.get(key) {
            note_sealed(lane, gathered, &mut self.cx);
        }
    }

    /// How the lane's next send goes.
    fn choose_way<I: Io>(&mut self, key: LaneKey, io: &mut I) -> Way {
        let plain = Way::Plain { timed: false };
        let (mode, calibration) = (self.zero_copy, self.cx.planner.calibration());
        let can = self.notices.room() > 0 && self.cx.driver.has_room() && io.sends_without_copy();
        let Some(lane) = self.lanes.get_mut(key) else { return plain };
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

    /// Gives what is lent to whom ends it. There is room: that was asked when the way was chosen.
    fn lend<I: Io>(&mut self, key: LaneKey, lent: Lent, io: &mut I) -> Option<NoticeKey> {
        let lane = self.lanes.get_mut(key)?;
        let notice =
            Notice { lane: key, lent, bytes: lane.send.bytes, since: io.now(), void: false };
        match self.notices.insert(notice) {
            Ok(notice) => {
                lane.send.notice = Some(notice);
                Some(notice)
            }
            Err(notice) => {
                debug_assert!(false, "more is lent than there are places");
                lane.sender.take_back(notice.lent);
                None
            }
        }
    }

    /// Places for operations are sized for two per lane beside the jobs; a lane that finds none
    /// would have lost its place in the stream.
    fn take_back_send(&mut self, key: LaneKey, notice: Option<NoticeKey>) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.sending = false;
        lane.send = Sending::default();
        lane.sender.handle_sent(0);
        if let Some(notice) = notice.and_then(|notice| self.notices.remove(notice)) {
            lane.sender.take_back(notice.lent);
        }
    }

    fn start_send<I: Io>(
        &mut self,
        key: LaneKey,
        op: Op,
        timed: bool,
        io: &mut I,
    ) -> Option<OpKey> {
        if !timed {
            return self.cx.driver.start_op(OpOwner::LaneSend(key), op, io);
        }
        // What was pushed before is not this send's.
        io.hand_over();
        let begun = io.now();
        let started = self.cx.driver.start_op(OpOwner::LaneSend(key), op, io);
        let says_something = io.hand_over();
        let cost = io.now().since(begun);
        if let Some(lane) = self.lanes.get_mut(key).filter(|_| says_something) {
            lane.send.cost = Some(cost);
        }
        started
    }

    /// The kernel took bytes of the lane's frames.
    pub(super) fn handle_sent<I: Io>(&mut self, key: LaneKey, result: i32, io: &mut I) {
        let now = self.cx.driver.batch_time(io);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.sending = false;
        let Sending { notice, cost, bytes } = std::mem::take(&mut lane.send);
        let lends = notice.is_some();
        lane.sender.handle_sent(result.max(0) as u32);
        if let Some(notice) = notice.and_then(|notice| self.notices.get_mut(notice)) {
            notice.void = result <= 0;
        }
        // A send that was cut short waited for the socket.
        if let Some(cost) = cost.filter(|_| u64::try_from(result) == Ok(bytes)) {
            let way = if lends { Way::Lend { timed: true } } else { Way::Plain { timed: true } };
            lane.zero_copy.sample(way, bytes, cost);
        }
        if lends && REFUSALS.contains(&result) {
            lane.zero_copy.handle_refusal(now);
        } else if result <= 0 {
            let reason = format!("send failed ({})", std::io::Error::from_raw_os_error(-result));
            self.close_lane(key, LaneLoss::Send, reason, io);
        }
        self.cx.watch.tally.sends[SendWay::Plain as usize] += u64::from(!lends);
        while let Some(owner) = self.lanes.get_mut(key).and_then(Lane::poll_taken) {
            self.handle_frame_taken(key, owner, now);
        }
        self.free_frames(key);
        self.pace_lane(key, now, io);
        self.cx.sched.make_ready(Work::Lane(key));
    }

    /// What is urgent has a lane of its own, and passes the same queues below as this one's frames.
    fn pace_lane<I: Io>(&mut self, key: LaneKey, now: Nanos, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let (urgent, more) = (lane.class == LaneClass::Latency, lane.has_more());
        // What ends a busy time is always looked at.
        let due = lane.pacer.is_due(now) || !more;
        if urgent || lane.state != LaneState::Up || !due {
            return;
        }
        if let Some(state) = io.wire_state(lane.socket)
            && let Some(rate) = lane.pacer.look(state, more, now)
        {
            io.pace(lane.socket, rate);
        }
    }

    /// The kernel is done with what a send was lent.
    pub(super) fn handle_notice<I: Io>(&mut self, notice: NoticeKey, result: i32, io: &mut I) {
        let now = self.cx.driver.batch_time(io);
        let Some(Notice { lane: key, lent, bytes, since, void }) = self.notices.remove(notice)
        else {
            debug_assert!(false, "the driver ended a loan twice: {notice:?}");
            return;
        };
        let copied = result == NOTICE_COPIED;
        let way = if copied { SendWay::Copied } else { SendWay::ZeroCopy };
        self.cx.watch.tally.sends[way as usize] += u64::from(!void);
        let Some(lane) = self.lanes.get_mut(key) else {
            debug_assert!(false, "a lane is forgotten that lends");
            return;
        };
        if !void {
            lane.zero_copy.handle_notice(bytes, copied, now.since(since), now);
        }
        lane.sender.take_back(lent);
        self.free_frames(key);
        self.cx.sched.make_ready(Work::Lane(key));
    }

    /// The kernel has a frame, or never will have it.
    pub(super) fn handle_frame_taken(&mut self, lane: LaneKey, owner: FrameOwner, now: Nanos) {
        if let Some(lane) = self.lanes.get(lane) {
            self.cx.watch.leave_stage(owner.into(), lane.stage_out, None, now);
        }
        match owner {
            FrameOwner::Transfer(key) => self.handle_write_frame_taken(key),
            FrameOwner::Serve(key) => self.handle_read_frame_taken(key),
        }
    }

    /// Tells the owners of frames whose memory is free.
    pub(super) fn free_frames(&mut self, key: LaneKey) {
        while let Some(owner) = self.lanes.get_mut(key).and_then(|lane| lane.sender.poll_sent()) {
            if let Some(owner) = FrameOwner::of(owner) {
                self.free_frame(owner);
            }
        }
    }

    /// A frame's memory is not needed any more (sent, or never to be sent).
    pub(super) fn free_frame(&mut self, owner: FrameOwner) {
        match owner {
            FrameOwner::Transfer(key) => self.handle_write_frame_sent(key),
            FrameOwner::Serve(key) => self.handle_read_frame_sent(key),
        }
    }
}

/// Frames entered a batch: their checksums are done, and they are about to be the kernel's.
fn note_sealed(lane: &Lane, gathered: usize, cx: &mut Cx) {
    for sealed in (0..gathered).map_while(|place| lane.sender.gathered(place)) {
        let offset = match sealed.message {
            Message::Data { offset, .. } | Message::WriteData { offset, .. } => offset,
            _ => continue,
        };
        // Short payloads are not timed: a look at the clock costs as much.
        let Some((begun, done)) = sealed.checked else { continue };
        let Some(owner) = FrameOwner::of(sealed.owner) else { continue };
        let (subject, piece) = (Subject::from(owner), (offset, sealed.payload));
        cx.watch.pass_stage(subject, cx.planner.check_stage(), piece, (Some(begun), done));
        cx.watch.enter_stage(subject, lane.stage_out, piece, done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_named_by_a_number_and_found_again() {
        for bits in [0, 7, 1 << 32, u64::from(u32::MAX) << 32 | 0x7fff_fffe] {
            for owner in [
                FrameOwner::Transfer(Key::from_bits(bits)),
                FrameOwner::Serve(Key::from_bits(bits)),
            ] {
                assert_eq!(FrameOwner::of(owner.tag()), Some(owner));
            }
        }
        assert_eq!(FrameOwner::of(Owner::NONE), None);
    }
}
