//! Which replica each piece of a read is asked of, and which have failed it.

use piped_core::limits::{REPLICA_MOVES_MAX, REPLICAS_MAX, REQUEST_BYTES_MAX};
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::super::clients::Shares;

/// The replicas of a read's pieces.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Led {
    /// The byte of the read that each piece begins with, and the number of its replica.
    froms: [u32; REPLICAS_MAX],
    members: [u8; REPLICAS_MAX],
    /// Replicas that could not bring what they were asked for, a bit for each.
    failed: u8,
    /// How often a piece went to another replica.
    moves: u8,
}

const _: () = assert!(REQUEST_BYTES_MAX < NO_PIECE as u64);

/// Where no piece begins.
const NO_PIECE: u32 = u32::MAX;

/// The replica that a part was asked of.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct By {
    /// The number of the replica.
    member: u8,
    /// When it was asked.
    begun: Nanos,
}

impl By {
    /// Asked of that replica then.
    pub(in crate::shard) fn new(member: u8, begun: Nanos) -> Self {
        Self { member, begun }
    }

    /// The number of the replica.
    pub(in crate::shard) fn member(self) -> u8 {
        self.member
    }

    /// When it was asked.
    pub(in crate::shard) fn begun(self) -> Nanos {
        self.begun
    }
}

impl Led {
    /// A read that is divided so.
    pub(super) fn new(shares: &Shares) -> Self {
        let (mut froms, mut members) = ([NO_PIECE; REPLICAS_MAX], [0; REPLICAS_MAX]);
        for (at, share) in shares.iter().flatten().enumerate() {
            (froms[at], members[at]) = (share.range().0 as u32, share.member());
        }
        Self { froms, members, failed: 0, moves: 0 }
    }

    /// The replica of the piece that begins with this byte of the read.
    pub(in crate::shard) fn member_at(&self, from: u64) -> Option<u8> {
        let at = self.froms.iter().position(|it| u64::from(*it) == from)?;
        Some(self.members[at])
    }

    /// The replicas that have failed, a bit for each.
    pub(in crate::shard) fn failed(&self) -> u8 {
        self.failed
    }

    /// A replica did not bring a piece. One that is late, or whose connection is lost, may be asked
    /// again.
    pub(in crate::shard) fn note_failed(&mut self, member: u8, status: Status) {
        if !matches!(status, Status::PeerLost | Status::DeadlineExceeded) {
            self.failed |= 1 << member;
        }
    }

    /// Whether a piece may go to another replica once more.
    pub(in crate::shard) fn may_move(&self) -> bool {
        self.moves < REPLICA_MOVES_MAX
    }

    /// What is left of the piece that began with byte `start`, from byte `from` on, goes to another
    /// replica.
    pub(super) fn move_to(&mut self, (start, from): (u64, u64), member: u8) {
        self.moves += 1;
        if let Some(at) = self.froms.iter().position(|it| u64::from(*it) == start) {
            (self.froms[at], self.members[at]) = (from as u32, member);
        }
    }
}
