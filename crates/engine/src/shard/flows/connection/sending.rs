//! A lane's sends: whose frames come next, how each goes, and when the memory of its frames is
//! free.
//!
//! A send that copies is over when it ends. One that lends ends twice, and what comes between is a
//! [`Notice`], which owns the frames' memory: it is counted, it keeps the lane from being
//! forgotten, and nothing but the kernel's second word ends it.

use piped_core::io::{Io, NOTICE_COPIED, Op};
use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_report::tally::{LaneLoss, SendWay};
use piped_wire::Message;

use crate::shard::Shard;
use crate::shard::connections::{Lane, LaneState, Notice, Sending, Way};
use crate::shard::cx::Cx;
use crate::shard::driver::{OpOwner, notice_token};
use crate::shard::keys::{LaneKey, NoticeKey, OpKey, Subject};
use crate::shard::sched::Work;

/// What the kernel says where a socket cannot send without a copy (EOPNOTSUPP, EINVAL), or where a
/// limit for pinned memory is reached (ENOMEM, ENOBUFS). The stream is as it was.
const REFUSALS: [i32; 4] = [-95, -22, -12, -105];

impl Shard {
    pub(in crate::shard) fn send_frames<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.send.is_some() || lane.state == LaneState::Closing {
            return;
        }
        lane.feed();
        if self.cx.dials.any() {
            self.dial_frames(key, io);
        }
        let way = self.lanes.choose_way(key, &self.cx, io);
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
        lane.send = Some(Sending { bytes: spans.bytes(), ..Sending::default() });
        let socket = lane.socket;
        let notice = lent.and_then(|lent| self.lanes.lend(key, lent, io.now()));
        let op = match notice {
            None => Op::Send { socket, spans },
            Some(notice) => Op::SendZeroCopy { socket, spans, notice: notice_token(notice) },
        };
        if self.start_send(key, op, way.is_timed(), io).is_none() {
            self.lanes.take_back_send(key, notice);
            self.cx.sched.starve(Work::Lane(key));
        }
        if let Some(lane) = self.lanes.get(key) {
            note_sealed(lane, gathered, &mut self.cx);
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
        let lane = self.lanes.get_mut(key).filter(|_| says_something);
        if let Some(send) = lane.and_then(|lane| lane.send.as_mut()) {
            send.cost = Some(cost);
        }
        started
    }

    /// The kernel took bytes of the lane's frames.
    pub(in crate::shard) fn handle_sent<I: Io>(&mut self, key: LaneKey, result: i32, io: &mut I) {
        let now = self.cx.driver.batch_time(io);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let Sending { notice, cost, bytes } = lane.send.take().unwrap_or_default();
        let lends = notice.is_some();
        lane.sender.handle_sent(result.max(0) as u32);
        if result <= 0 {
            self.lanes.void(notice);
        }
        let Some(lane) = self.lanes.get_mut(key) else { return };
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
        if self.lanes.get(key).is_some_and(Lane::wants_turn) {
            self.cx.sched.make_ready(Work::Lane(key));
        }
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
    pub(in crate::shard) fn handle_notice<I: Io>(
        &mut self,
        notice: NoticeKey,
        result: i32,
        io: &mut I,
    ) {
        let now = self.cx.driver.batch_time(io);
        let Some(Notice { lane: key, lent, bytes, since, void }) = self.lanes.end_loan(notice)
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
    pub(in crate::shard) fn handle_frame_taken(
        &mut self,
        lane: LaneKey,
        owner: Subject,
        now: Nanos,
    ) {
        if let Some(lane) = self.lanes.get(lane) {
            self.cx.watch.leave_stage(owner, lane.stage_out, None, now);
        }
        match owner {
            Subject::Transfer(key) => self.handle_write_frame_taken(key),
            Subject::Serve(key) => self.handle_read_frame_taken(key),
        }
    }

    /// Tells the owners of frames whose memory is free.
    pub(in crate::shard) fn free_frames(&mut self, key: LaneKey) {
        while let Some(owner) = self.lanes.get_mut(key).and_then(|lane| lane.sender.poll_sent()) {
            if let Some(owner) = Subject::of(owner) {
                self.free_frame(owner);
            }
        }
    }

    /// A frame's memory is not needed any more (sent, or never to be sent).
    pub(in crate::shard) fn free_frame(&mut self, owner: Subject) {
        match owner {
            Subject::Transfer(key) => self.handle_write_frame_sent(key),
            Subject::Serve(key) => self.handle_read_frame_sent(key),
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
        let Some(subject) = Subject::of(sealed.owner) else { continue };
        let piece = (offset, sealed.payload);
        cx.watch.pass_stage(subject, cx.planner.check_stage(), piece, (Some(begun), done));
        cx.watch.enter_stage(subject, lane.stage_out, piece, done);
    }
}
