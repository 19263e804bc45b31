//! What a lane shows of its transfers' fragments: when they are sealed, taken by the kernel, and
//! when they arrive.

use piped_core::units::Nanos;
use piped_planner::stage::StageIndex;
use piped_wire::Message;

use super::super::Shard;
use super::super::dial::Effect;
use super::super::keys::{LaneKey, TransferKey};
use super::super::requests::Body;
use super::super::sched::Work;
use super::super::sending::FrameOwner;
use super::Subject;

impl Shard {
    /// Frames entered a batch: their checksums are done, and they are about to be the kernel's.
    pub(in crate::shard) fn note_sealed(&mut self, key: LaneKey, gathered: usize) {
        let check = self.cx.planner.check_stage();
        for place in 0..gathered {
            let Some(lane) = self.lanes.get(key) else { return };
            let Some(sealed) = lane.sender.gathered(place) else { return };
            let offset = match sealed.message {
                Message::Data { offset, .. } | Message::WriteData { offset, .. } => offset,
                _ => continue,
            };
            // Short payloads are not timed: a look at the clock costs as much.
            let Some((begun, done)) = sealed.checked else { continue };
            let stage = lane.stage_out;
            let Some(owner) = FrameOwner::of(sealed.owner) else { continue };
            let subject = Subject::from(owner);
            let piece = (offset, sealed.payload);
            self.pass_stage(subject, check, piece, (Some(begun), done));
            self.enter_stage(subject, stage, piece, done);
        }
    }

    /// The kernel has a frame.
    pub(in crate::shard) fn note_sent(&mut self, lane: LaneKey, owner: FrameOwner, now: Nanos) {
        let Some(lane) = self.lanes.get(lane) else { return };
        let stage = lane.stage_out;
        self.leave_stage(owner.into(), stage, None, now);
    }

    /// A piece of a read is here. The peer took `service` for it, and the request's way there
    /// counts as the network's, for no clock says when it arrived.
    pub(in crate::shard) fn note_arrival(
        &mut self,
        key: TransferKey,
        lane: LaneKey,
        piece: (u64, u32),
        service: Nanos,
        now: Nanos,
    ) {
        let Some(lane) = self.lanes.get(lane) else { return };
        let (stage, check) = (lane.stage_in, lane.receiver.checked().time());
        let Some(Body::Remote(body)) = self.transfers.get(key).map(|it| &it.body) else { return };
        if piece.1 == 0 {
            return;
        }
        let (asked, subject) = (body.sent_at, Subject::Transfer(key));
        let landed = now - check;
        let given = (asked + service).min(landed);
        self.pass_stage(subject, StageIndex::PEER, piece, (Some(asked), given));
        self.pass_stage(subject, stage, piece, (Some(given), landed));
        if check > Nanos::ZERO {
            let stage = self.cx.planner.check_stage();
            self.pass_stage(subject, stage, piece, (Some(landed), now));
        }
    }

    /// A write is over. The peer took `service` for all of it.
    pub(in crate::shard) fn note_served(&mut self, key: TransferKey, service: Nanos, now: Nanos) {
        let length = self.transfers.get(key).map_or(0, |it| it.length);
        let piece = (0, u32::try_from(length).unwrap_or(u32::MAX));
        let times = (Some(now - service), now);
        self.pass_stage(Subject::Transfer(key), StageIndex::PEER, piece, times);
    }

    /// A dial has let go of something.
    pub(in crate::shard) fn note_dial(
        &mut self,
        effect: &Effect,
        stage: StageIndex,
        bytes: u32,
        (came, now): (Nanos, Nanos),
    ) {
        let (subject, start) = match *effect {
            Effect::Nothing => return,
            Effect::Job(ref job) => (Subject::from(job.owner), Some(job.owner.start())),
            Effect::Frame { of: Work::Serve(key), .. } => (Subject::Serve(key), None),
            Effect::Frame { of: Work::Transfer(key), .. }
            | Effect::Data { transfer: key, .. }
            | Effect::Copied { transfer: key, .. }
            | Effect::Stored { copy: key, .. } => (Subject::Transfer(key), None),
            Effect::Written { serve, .. } => (Subject::Serve(serve), None),
            Effect::Frame { .. } => return,
        };
        // What does not say where it is comes in order.
        let offset = start.unwrap_or_else(|| self.cx.watch.tracer.passed_bytes(subject, stage));
        self.pass_stage(subject, stage, (offset, bytes), (Some(came), now));
    }

    /// A piece of a peer's write is here. When it was sent only the peer knows: it counts from the
    /// one before it.
    pub(in crate::shard) fn note_write_data(
        &mut self,
        key: LaneKey,
        wire: u64,
        payload: u32,
        now: Nanos,
    ) {
        let Some(lane) = self.lanes.get(key) else { return };
        let (stage, check) = (lane.stage_in, lane.receiver.checked().time());
        let Some(serve) = lane.serving().and_then(|serving| serving.serve_of(wire)) else {
            return;
        };
        let offset = self.serves.get(serve).map_or(0, |serve| serve.landed_to());
        let (subject, piece, landed) = (Subject::Serve(serve), (offset, payload), now - check);
        self.pass_stage(subject, stage, piece, (None, landed));
        if check > Nanos::ZERO {
            let stage = self.cx.planner.check_stage();
            self.pass_stage(subject, stage, piece, (Some(landed), now));
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
