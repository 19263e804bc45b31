//! Operations at the driver: who waits for each, and what a driver's errno means to a client.

use piped_core::io::{Done, Io, NOTICE_IN_PLACE, Op, Token};
use piped_core::status::Status;

use super::Shard;
use super::devices::On;
use super::devices::Wanted;
use super::disk::JobOwner;
use super::keys::{JobKey, LaneKey, NoticeKey, OpKey, TransferKey};
use super::pins::AnyPin;
use super::sched::Work;
use super::slab::Key;

/// Who waits for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpOwner {
    /// A piece of a job.
    Piece { job: JobKey, piece: u8 },
    /// A transfer or serve that allocates or syncs a file.
    Step(Work),
    /// A lane's send.
    LaneSend(LaneKey),
    /// A lane's receive.
    LaneReceive(LaneKey),
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) owner: OpOwner,
    /// The device of a file's.
    on: Option<On>,
    /// What it keeps from ending, of a step.
    pin: Option<AnyPin>,
}

impl Shard {
    /// Hands an operation on a file to the driver, as [`Self::start_op`], if the device may have
    /// it.
    pub(super) fn start_file_op<I: Io>(
        &mut self,
        owner: OpOwner,
        on: On,
        op: Op,
        io: &mut I,
    ) -> Result<OpKey, Wanted> {
        if !self.cx.driver.devices.has_room(on, self.cx.driver.ops.len()) {
            return Err(Wanted::Device(on));
        }
        self.start_granted_op(owner, on, op, io).ok_or(Wanted::Anything)
    }

    /// The same for a device that was asked before.
    pub(super) fn start_granted_op<I: Io>(
        &mut self,
        owner: OpOwner,
        on: On,
        op: Op,
        io: &mut I,
    ) -> Option<OpKey> {
        let key = self.start(owner, Some(on), op, io)?;
        let now = io.now();
        self.cx.driver.devices.begin(on, now);
        Some(key)
    }

    /// Hands an operation to the driver, now or as soon as the driver has room. `None` if the shard
    /// itself has no room; try after the next completion.
    pub(super) fn start_op<I: Io>(&mut self, owner: OpOwner, op: Op, io: &mut I) -> Option<OpKey> {
        self.start(owner, None, op, io)
    }

    fn start<I: Io>(
        &mut self,
        owner: OpOwner,
        on: Option<On>,
        op: Op,
        io: &mut I,
    ) -> Option<OpKey> {
        if self.cx.driver.ops.room() == 0 {
            return None;
        }
        let pin = match owner {
            OpOwner::Step(work) => self.pin_work(work),
            _ => None,
        };
        let key = self.cx.driver.ops.insert(InFlight { owner, on, pin }).ok()?;
        if !self.cx.driver.stalled.is_empty() || !io.push(Token(key.to_bits()), op) {
            self.cx.driver.stalled.push_back((key, op));
        }
        Some(key)
    }

    /// Gives the driver what it had no room for.
    pub(super) fn push_stalled<I: Io>(&mut self, io: &mut I) {
        while let Some(&(key, op)) = self.cx.driver.stalled.front() {
            if !io.push(Token(key.to_bits()), op) {
                break;
            }
            self.cx.driver.stalled.pop_front();
        }
    }

    /// Takes the end of an operation.
    pub fn handle_done<I: Io>(&mut self, done: Done, io: &mut I) {
        if let Some(notice) = notice_of(done.token) {
            self.handle_notice(notice, done.result, io);
            return self.cx.sched.wake_starved();
        }
        let Some(InFlight { owner, on, pin }) =
            self.cx.driver.ops.remove(Key::from_bits(done.token.0))
        else {
            debug_assert!(false, "the driver ended an operation twice: {done:?}");
            return;
        };
        match owner {
            OpOwner::Piece { job, piece } => self.handle_piece(job, piece.into(), done.result, io),
            OpOwner::Step(_) => match pin {
                Some(AnyPin::Transfer(pin)) => self.handle_transfer_step(pin, done.result, io),
                Some(AnyPin::Serve(pin)) => {
                    let now = io.now();
                    self.handle_serve_step(pin, done.result, now);
                }
                None => {}
            },
            OpOwner::LaneSend(lane) => self.handle_sent(lane, done.result, io),
            OpOwner::LaneReceive(lane) => self.handle_received(lane, done.result, io),
        }
        if let Some(on) = on {
            let now = io.now();
            self.wake_parked(on, now);
        }
        self.cx.sched.wake_starved();
    }

    /// Asks the driver to give up on whatever a transfer has under way.
    pub(super) fn cancel_ops_of<I: Io>(&mut self, transfer: TransferKey, io: &mut I) {
        let of_transfer = |shard: &Self, owner: OpOwner| match owner {
            OpOwner::Piece { job, .. } => shard.cx.driver.jobs.get(job).is_some_and(
                |job| matches!(job.owner, JobOwner::Transfer { transfer: t, .. } if t == transfer),
            ),
            OpOwner::LaneReceive(lane) => {
                shard.lanes.get(lane).is_some_and(|lane| lane.lands_in(transfer))
            }
            OpOwner::Step(work) => work == Work::Transfer(transfer),
            OpOwner::LaneSend(_) => false,
        };
        self.cancel_ops(of_transfer, io);
    }

    /// Ends a closing lane's operations that the driver has not seen; the others end with its
    /// socket.
    pub(super) fn cancel_stalled_of<I: Io>(&mut self, lane: LaneKey, io: &mut I) {
        let of_lane = |owner: OpOwner| {
            owner == OpOwner::LaneSend(lane) || owner == OpOwner::LaneReceive(lane)
        };
        let stalled: Vec<OpKey> = self
            .cx
            .driver
            .stalled
            .iter()
            .map(|&(key, _)| key)
            .filter(|&key| self.cx.driver.ops.get(key).is_some_and(|op| of_lane(op.owner)))
            .collect();
        self.end_stalled(&stalled, io);
    }

    fn cancel_ops<I: Io>(&mut self, wanted: impl Fn(&Self, OpOwner) -> bool, io: &mut I) {
        let keys: Vec<OpKey> = self
            .cx
            .driver
            .ops
            .iter()
            .filter(|&(_, op)| wanted(self, op.owner))
            .map(|(key, _)| key)
            .collect();
        let (stalled, pushed): (Vec<OpKey>, Vec<OpKey>) = keys
            .into_iter()
            .partition(|key| self.cx.driver.stalled.iter().any(|(other, _)| other == key));
        for key in pushed {
            io.cancel(Token(key.to_bits()));
        }
        self.end_stalled(&stalled, io);
    }

    /// The driver cannot cancel what it was never given.
    fn end_stalled<I: Io>(&mut self, keys: &[OpKey], io: &mut I) {
        for &key in keys {
            let Some(place) = self.cx.driver.stalled.iter().position(|&(other, _)| other == key)
            else {
                continue;
            };
            let stalled = self.cx.driver.stalled.remove(place);
            self.handle_done(Done { token: Token(key.to_bits()), result: ECANCELED }, io);
            if let Some((_, Op::SendZeroCopy { notice, .. })) = stalled {
                self.handle_done(Done { token: notice, result: NOTICE_IN_PLACE }, io);
            }
        }
    }
}

/// Tells the names of second ends from those of operations: an index is far below it.
const NOTICE: u64 = 1 << 31;

/// The name of a send's second end.
pub(super) fn notice_token(notice: NoticeKey) -> Token {
    Token(notice.to_bits() | NOTICE)
}

fn notice_of(token: Token) -> Option<NoticeKey> {
    (token.0 & NOTICE != 0).then(|| Key::from_bits(token.0 & !NOTICE))
}

/// The result of an operation that was cancelled before it did anything.
pub(super) const ECANCELED: i32 = -125;

/// What a negative result means to a client.
pub(super) fn status_of(result: i32) -> Status {
    const EPERM: i32 = -1;
    const EBADF: i32 = -9;
    const EACCES: i32 = -13;
    const EFBIG: i32 = -27;
    const ENOSPC: i32 = -28;
    const EDQUOT: i32 = -122;
    match result {
        EPERM | EBADF | EACCES => Status::Denied,
        EFBIG | ENOSPC | EDQUOT => Status::NoSpace,
        ECANCELED => Status::Cancelled,
        _ => Status::Io,
    }
}
