//! Operations at the driver: who waits for each, which it had no room for, and what its errno means
//! to a client.

use std::collections::VecDeque;

use piped_core::io::{Done, Io, NOTICE_IN_PLACE, Op, Token};
use piped_core::limits::DRIVER_FULL_TIME;
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::super::keys::{JobKey, LaneKey, NoticeKey, OpKey, kind};
use super::super::pins::AnyPin;
use super::super::slab::{Key, Slab};
use super::devices::On;

/// What an operation is for.
#[derive(Debug)]
pub(in crate::shard) enum OpOwner {
    /// A piece of a job.
    Piece { job: JobKey, piece: u8 },
    /// A transfer or serve that allocates or syncs a file; what it keeps from ending.
    Step(AnyPin),
    /// A transfer or serve that a call is carried out for; what it keeps from ending, and the
    /// staging for its answer, in bytes.
    Call(AnyPin, u64),
    /// The send of a lane.
    LaneSend(LaneKey),
    /// The receive of a lane.
    LaneReceive(LaneKey),
}

/// An operation under way.
#[derive(Debug)]
struct InFlight {
    owner: OpOwner,
    /// The device of a file's.
    on: Option<On>,
}

/// The operations of a shard, whether the driver has them or not.
#[derive(Debug)]
pub(super) struct Ops {
    flying: Slab<kind::Op, InFlight>,
    /// Operations the driver had no room for. At most as many as there are.
    stalled: VecDeque<(OpKey, Op)>,
    /// When the driver is asked again that had no room, should nothing end before.
    ask_at: Option<Nanos>,
}

impl Ops {
    pub(super) fn new(most: u32) -> Self {
        Self {
            flying: Slab::with_capacity(most),
            stalled: VecDeque::with_capacity(most as usize),
            ask_at: None,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.flying.len()
    }

    pub(super) fn room(&self) -> u32 {
        self.flying.room()
    }

    /// Hands an operation to the driver, now or as soon as the driver has room. `None` if there is
    /// no place for it.
    pub(super) fn start<I: Io>(
        &mut self,
        owner: OpOwner,
        on: Option<On>,
        op: Op,
        io: &mut I,
    ) -> Option<OpKey> {
        let key = self.flying.insert(InFlight { owner, on }).ok()?;
        if !self.stalled.is_empty() || !io.push(Token(key.to_bits()), op) {
            self.stalled.push_back((key, op));
        }
        Some(key)
    }

    /// Gives the driver what it had no room for.
    pub(super) fn push_stalled<I: Io>(&mut self, io: &mut I) {
        while let Some(&(key, op)) = self.stalled.front() {
            if !io.push(Token(key.to_bits()), op) {
                break;
            }
            self.stalled.pop_front();
        }
    }

    /// Says when the driver is to be asked again, if it has no room.
    pub(super) fn look_later(&mut self, now: Nanos) {
        self.ask_at = (!self.stalled.is_empty()).then(|| now + DRIVER_FULL_TIME);
    }

    pub(super) fn ask_at(&self) -> Option<Nanos> {
        self.ask_at
    }

    /// An operation is over. Who waited for it, and the device if it was a file's.
    pub(super) fn end(&mut self, token: Token) -> Option<(OpOwner, Option<On>)> {
        let InFlight { owner, on } = self.flying.remove(Key::from_bits(token.0))?;
        Some((owner, on))
    }

    /// Asks the driver to give up on operations. Those it was never given end with what is
    /// returned: it cannot cancel them.
    pub(super) fn cancel<I: Io>(
        &mut self,
        wanted: impl Fn(&OpOwner) -> bool,
        io: &mut I,
    ) -> Vec<Done> {
        let ends = self.take_back(&wanted);
        for (key, op) in self.flying.iter() {
            let token = Token(key.to_bits());
            if wanted(&op.owner) && ends.iter().all(|end| end.token != token) {
                io.cancel(token);
            }
        }
        ends
    }

    /// Takes back operations that the driver was never given, which end with what is returned.
    pub(super) fn take_back(&mut self, wanted: impl Fn(&OpOwner) -> bool) -> Vec<Done> {
        let (flying, mut ends) = (&self.flying, Vec::new());
        self.stalled.retain(|&(key, op)| {
            let stays = !flying.get(key).is_some_and(|it| wanted(&it.owner));
            if !stays {
                ends.push(Done { token: Token(key.to_bits()), result: ECANCELED });
                if let Op::SendZeroCopy { notice, .. } = op {
                    ends.push(Done { token: notice, result: NOTICE_IN_PLACE });
                }
            }
            stays
        });
        ends
    }
}

/// Tells the names of second ends from those of operations: an index is far below it.
const NOTICE: u64 = 1 << 31;

/// The name of a send's second end.
pub(in crate::shard) fn notice_token(notice: NoticeKey) -> Token {
    Token(notice.to_bits() | NOTICE)
}

/// The send whose second end has this name; `None` of the name of an operation.
pub(in crate::shard) fn notice_of(token: Token) -> Option<NoticeKey> {
    (token.0 & NOTICE != 0).then(|| Key::from_bits(token.0 & !NOTICE))
}

/// The result of an operation that was cancelled before it did anything.
pub(in crate::shard) const ECANCELED: i32 = -125;

/// What a negative result means to a client.
pub(in crate::shard) fn status_of(result: i32) -> Status {
    Status::of_errno(result.saturating_neg())
}
