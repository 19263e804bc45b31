//! A lane: one connection with its sender and receiver, from the first byte to the last completion.
//!
//! The side that dialled asks, the side that accepted serves: that is the lane's [`Role`]. A lane
//! that ends first waits for its operations at the kernel (they still touch memory), then gives
//! back what its queue held, and only then is its successor dialled: an old epoch is over before a
//! new one begins.

use piped_core::ids::SocketId;
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_planner::plan::Planner;
use piped_planner::stage::StageIndex;
use piped_report::tally::LaneLoss;
use piped_wire::{Message, Owner, Receiver, Seal, Sender};

use super::super::buffers::{Scratch, Size};
use super::super::keys::{LaneKey, LinkKey, TransferKey};
use super::super::pins::Pin;
use super::pace::Pacer;
use super::receiving::Receiving;
use super::reports::{Reported, Reports};
use super::role::{Asking, PeerRequest, Role, Serving};
use super::sending::Sending;
use super::waiting::WaitingFrames;
use super::zero_copy::ZeroCopy;
use crate::command::{Caller, Expelled, Origin, Standing};

/// How far a lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum LaneState {
    /// Waits for the other side's Hello or HelloAck.
    Greeting,
    /// Its Hello was right, but work of its predecessor is not over: HelloAck waits.
    Fenced,
    Up,
    /// Waits for its operations at the kernel.
    Closing,
}

/// How far a lane rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Rest {
    /// Works, or did so lately, or is new, which is alike.
    No,
    /// Has had nothing to do for long, and gives back what it does not need in its next turn.
    Due,
    /// Has no more memory than it needs to wait for a request.
    Done,
}

/// One connection of a peer link.
#[derive(Debug)]
pub(in crate::shard) struct Lane {
    pub(in crate::shard) role: Role,
    pub(in crate::shard) class: LaneClass,
    pub(in crate::shard) socket: SocketId,
    pub(in crate::shard) epoch: u32,
    pub(in crate::shard) state: LaneState,
    pub(in crate::shard) sender: Sender,
    /// Frames of data that are not in its queue yet: that is short, and whose turn it is is decided
    /// late.
    pub(in crate::shard) waiting: WaitingFrames,
    pub(in crate::shard) receiver: Receiver,
    pub(in crate::shard) scratch: Scratch,
    /// Where the scratch moves to, because its segment is to go.
    pub(in crate::shard) next_scratch: Option<Scratch>,
    /// The lane does nothing, and others want the scratch memory it had for work.
    pub(in crate::shard) gives_back: bool,
    /// Whether it rests, and has no more memory than it needs for that.
    rest: Rest,
    /// When it was last heard of.
    pub(in crate::shard) heard: Nanos,
    /// The send under way.
    pub(in crate::shard) send: Option<Sending>,
    /// Whether it may go without a copy.
    pub(in crate::shard) zero_copy: ZeroCopy,
    /// How fast it may go.
    pub(in crate::shard) pacer: Pacer,
    /// What it receives, and where that goes.
    pub(in crate::shard) receiving: Receiving,
    /// The stage this side's receives are a sample of.
    pub(in crate::shard) stage_in: StageIndex,
    /// The stage this side's sends pass, as the other side reports it.
    pub(in crate::shard) stage_out: StageIndex,
    /// What is told of stages, and what is heard.
    pub(in crate::shard) reports: Reports,
    pub(in crate::shard) loss: LaneLoss,
    pub(in crate::shard) reason: String,
}

/// A lane on which a peer asks, and the node at its other end.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct PeerLane {
    pub(in crate::shard) lane: LaneKey,
    pub(in crate::shard) link: LinkKey,
}

/// A lane that is no more.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct LostLane {
    pub(in crate::shard) key: LaneKey,
    pub(in crate::shard) class: LaneClass,
    pub(in crate::shard) loss: LaneLoss,
}

impl Lane {
    /// What its reports are of. `peer`: the node at its other end.
    pub(in crate::shard) fn reported<'a>(&self, peer: Option<&'a str>) -> Reported<'a> {
        Reported::new(peer, (self.class, self.asking().is_some()), self.stage_out)
    }

    /// A lane that has said nothing yet. `seals`: of its sends and of its receives.
    pub(in crate::shard) fn new(
        role: Role,
        (class, socket, epoch): (LaneClass, SocketId, u32),
        (seals, unseals): (Seal, Seal),
        scratch: Scratch,
        now: Nanos,
    ) -> Self {
        let (send, room) = (scratch.of_sender(), scratch.room());
        Self {
            role,
            class,
            socket,
            epoch,
            state: LaneState::Greeting,
            sender: Sender::with_seal(seals, send, room, limits::LANE_QUEUE),
            waiting: WaitingFrames::default(),
            receiver: Receiver::with_seal(unseals, scratch.of_receiver()),
            scratch,
            next_scratch: None,
            gives_back: false,
            rest: Rest::No,
            heard: now,
            send: None,
            zero_copy: ZeroCopy::new(),
            pacer: Pacer::default(),
            receiving: Receiving::default(),
            stage_in: StageIndex::NONE,
            stage_out: StageIndex::NONE,
            reports: Reports::new(),
            loss: LaneLoss::Closed,
            reason: String::new(),
        }
    }

    pub(in crate::shard) fn asking(&self) -> Option<&Asking> {
        match &self.role {
            Role::Asking(asking) => Some(asking),
            Role::Serving(_) | Role::Stranger(_) => None,
        }
    }

    pub(in crate::shard) fn asking_mut(&mut self) -> Option<&mut Asking> {
        match &mut self.role {
            Role::Asking(asking) => Some(asking),
            Role::Serving(_) | Role::Stranger(_) => None,
        }
    }

    pub(in crate::shard) fn serving(&self) -> Option<&Serving> {
        match &self.role {
            Role::Serving(serving) => Some(serving),
            Role::Asking(_) | Role::Stranger(_) => None,
        }
    }

    pub(in crate::shard) fn serving_mut(&mut self) -> Option<&mut Serving> {
        match &mut self.role {
            Role::Serving(serving) => Some(serving),
            Role::Asking(_) | Role::Stranger(_) => None,
        }
    }

    /// The requests that are served on it.
    pub(in crate::shard) fn serves(&self) -> &[PeerRequest] {
        self.serving().map_or(&[], |serving| &serving.serves)
    }

    pub(in crate::shard) fn is_stranger(&self) -> bool {
        matches!(self.role, Role::Stranger(_))
    }

    /// Whether the other end connected to us and did not prove who it is.
    pub(in crate::shard) fn is_unproven(&self) -> bool {
        matches!(self.role.caller(), Some(Caller::Unproven { .. }))
    }

    /// Whether it has requests or opens under way, or frames of data (those of a read that was
    /// answered are no request any more), or wants what only a lane at work has.
    pub(in crate::shard) fn is_at_work(&self) -> bool {
        let works = match &self.role {
            Role::Asking(asking) => !asking.outstanding.is_empty() || asking.opens > 0,
            Role::Serving(serving) => !serving.serves.is_empty(),
            Role::Stranger(_) => false,
        };
        works || !self.waiting.is_empty() || self.sender.wants_room()
    }

    /// Whether it has requests, opens or frames under way, or lends memory.
    pub(in crate::shard) fn is_busy(&self) -> bool {
        self.is_at_work() || self.has_frames() || self.sender.is_lending()
    }

    /// How far it rests.
    pub(in crate::shard) fn rest(&self) -> Rest {
        self.rest
    }

    /// Has it rest in its next turn, if it has had nothing to do for so long. Whether it will.
    pub(super) fn let_rest(&mut self, after: Nanos, now: Nanos) -> bool {
        let long = now.since(self.heard) >= after;
        let rests = self.state == LaneState::Up && !self.is_busy() && long;
        if rests {
            self.rest = Rest::Due;
        }
        rests
    }

    /// Begins to work again.
    pub(in crate::shard) fn end_rest(&mut self) {
        self.rest = Rest::No;
    }

    /// Gives back memory of the heap that it took while it worked: it rests.
    pub(in crate::shard) fn shrink(&mut self) {
        self.sender.rest();
        self.receiver.rest();
        self.waiting.rest();
        match &mut self.role {
            Role::Asking(asking) => asking.outstanding.shrink_to_fit(),
            Role::Serving(serving) => serving.serves.shrink_to_fit(),
            Role::Stranger(_) => {}
        }
        self.rest = Rest::Done;
    }

    /// Whether there is something to do now that a send is over. Turns for what else a lane does
    /// come from elsewhere: of credit, of what is received, of loans, and of what was starved.
    pub(in crate::shard) fn wants_turn(&self) -> bool {
        let moves = self.next_scratch.is_some() || self.gives_back || self.rest == Rest::Due;
        let ends = self.state != LaneState::Up || self.serving().is_some_and(|it| it.overrun);
        self.has_more() || moves || ends
    }

    /// Whether it encrypts, and has no room for payloads yet.
    pub(in crate::shard) fn is_without_room(&self) -> bool {
        self.sender.seal().moves_payloads() && self.scratch.size() == Size::Resting
    }

    /// Whether it is plain, where others prove who they are.
    pub(in crate::shard) fn is_beside_keys(&self) -> bool {
        self.role.caller().is_some_and(Caller::is_beside_keys)
    }

    pub(in crate::shard) fn origin(&self) -> Option<Origin> {
        match self.role.caller()?.standing() {
            Standing::Proven => None,
            Standing::Plain(origin) => Some(origin),
        }
    }

    /// Whether it is one of those that did not prove who they are, and close.
    pub(in crate::shard) fn is_expelled_by(&self, plain: Expelled) -> bool {
        match self.origin() {
            None => false,
            Some(Origin::User(_)) => plain >= Expelled::Users,
            Some(Origin::Site(_)) => plain >= Expelled::Everybody,
        }
    }

    /// The link of a lane that we serve.
    pub(in crate::shard) fn inbound(&self) -> Option<LinkKey> {
        self.serving().map(|serving| serving.link)
    }

    /// Whether a receive under way may write the transfer's buffer.
    pub(in crate::shard) fn lands_in(&self, transfer: TransferKey) -> bool {
        let target = self.receiving.target().transfer();
        let predicted = self.asking().and_then(|asking| asking.predicted.as_ref()).map(Pin::key);
        self.receiving.operation().is_some() && [target, predicted].contains(&Some(transfer))
    }

    /// Whether the peer takes one more request.
    pub(in crate::shard) fn has_room_for_request(&self) -> bool {
        self.asking().is_some_and(Asking::has_room)
    }

    /// Whether it has work beside the last request that came.
    pub(in crate::shard) fn serves_others(&self) -> bool {
        self.serves().len() > 1 || self.has_frames()
    }

    /// Whether data is on its way to the wire, so that data queued now follows it back to back.
    /// Other frames say nothing of the wire: their receiver does not time them.
    pub(in crate::shard) fn has_data(&self) -> bool {
        self.sender.has_data() || self.waiting.has_data()
    }

    /// Whether payloads have checksums, or tags.
    pub(in crate::shard) fn has_sums(&self) -> bool {
        self.sender.seal().checks_payloads()
    }

    /// The stage of checksums and tags here; [`StageIndex::NONE`] if payloads have no such.
    pub(in crate::shard) fn check_stage(&self, planner: &Planner) -> StageIndex {
        if self.has_sums() { planner.check_stage() } else { StageIndex::NONE }
    }

    /// How long the checksum or tag of a payload takes here, as far as is known.
    pub(in crate::shard) fn check_time(&self, planner: &Planner, payload: u32) -> Nanos {
        if self.has_sums() { planner.check_time(payload) } else { Nanos::ZERO }
    }

    /// Sets whether payloads have checksums from the next frame on, in both directions.
    pub(in crate::shard) fn set_sums(&mut self, sums: bool) {
        self.sender.set_sums(sums);
        self.receiver.set_sums(sums);
    }

    /// Queues a frame without payload. Control frames are few; a queue too full for them belongs to
    /// a peer that does not read, and the lane's fault is found by its timeout.
    pub(in crate::shard) fn push(&mut self, message: Message) -> bool {
        self.sender.push(self.epoch, message, None, Owner::NONE).is_ok()
    }
}
