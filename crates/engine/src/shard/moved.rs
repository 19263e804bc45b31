//! Bytes that requests have moved so far, for those who look on while they run.
//!
//! A request counts what is in place: its watermark; of a write to a peer, what the peer has given
//! credit back for; of a copy or a vectored request, what its parts have in place. The count of a
//! request never falls, whatever it has to fetch or send again. So the sum over requests that ended
//! and those that run never falls either, and the end of a request adds nothing that was counted
//! before.
//!
//! On the data path that is an addition where a watermark moves. The sum over what runs is made
//! when somebody asks.

use piped_core::ids::SessionId;
use piped_report::tally::Tally;

use super::Shard;
use super::copy::CopyBody;
use super::keys::{LaneKey, TransferKey};
use super::requests::{Body, RemoteOp, Transfer, Waiter};
use super::serve::{Serve, ServeOp};

impl Transfer {
    /// Bytes that it has moved.
    pub(super) fn moved(&self) -> u64 {
        self.moved.max(self.landed.watermark()).min(self.length)
    }
}

impl Serve {
    /// Bytes that it has moved: not those that the peer had before it asked again.
    pub(super) fn moved(&self) -> u64 {
        let had = match self.op {
            ServeOp::Read { from } => from.min(self.length),
            ServeOp::Write { .. } | ServeOp::Sync => 0,
        };
        self.done.saturating_sub(had)
    }
}

impl CopyBody {
    /// So many bytes of a chunk are written. Returns how many that are more than were before: a
    /// chunk that is written anew counts once.
    fn note_written(&mut self, chunk: u8, bytes: u64) -> u64 {
        let Some(written) = self.written_of(chunk) else { return 0 };
        let more = bytes.saturating_sub(u64::from(*written));
        *written = written.saturating_add(more as u32);
        more
    }
}

impl Shard {
    /// A request has moved so many bytes in all; a part tells the request that it is of.
    pub(super) fn note_moved(&mut self, key: TransferKey, bytes: u64) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let bytes = bytes.min(transfer.length);
        let more = bytes.saturating_sub(transfer.moved);
        transfer.moved += more;
        let (waiter, writes) = (transfer.waiter, !transfer.reads());
        let parent = match waiter {
            // Of a copy what is written counts.
            Waiter::Copy { parent, .. } if writes => parent,
            Waiter::Vector { parent, .. } => parent,
            _ => return,
        };
        let Some(whole) = self.transfers.get_mut(parent) else { return };
        let more = match (whole.body, waiter) {
            (Body::Copy(copy), Waiter::Copy { chunk, .. }) => {
                self.bodies[copy].note_written(chunk, bytes)
            }
            _ => more,
        };
        whole.moved = (whole.moved + more).min(whole.length);
    }

    /// A peer gave credit back: so many bytes of writes are where they belong, those that were
    /// asked for first to begin with.
    pub(super) fn note_taken(&mut self, lane: LaneKey, mut bytes: u64) {
        let mut at = 0;
        while bytes > 0
            && let Some(&key) =
                self.lanes.get(lane).and_then(|lane| lane.asking()?.outstanding.get(at))
        {
            at += 1;
            let Some(transfer) = self.transfers.get_mut(key) else { continue };
            let Body::Remote(body) = &mut transfer.body else { continue };
            if !matches!(body.op, RemoteOp::Write { .. }) {
                continue;
            }
            let taken = bytes.min(body.next.saturating_sub(body.taken));
            body.taken += taken;
            bytes -= taken;
            let all = body.taken;
            if taken > 0 {
                self.note_moved(key, all);
            }
        }
    }

    /// What runs, without the parts of others.
    fn running_whole(&self) -> impl Iterator<Item = &Transfer> {
        self.transfers.iter().map(|(_, it)| it).filter(|it| !it.waiter.is_part())
    }

    /// Bytes that clients' requests have moved that run.
    pub(super) fn moved_by_running(&self) -> u64 {
        self.running_whole().map(Transfer::moved).sum()
    }

    /// Those of one session.
    pub(super) fn moved_of_session(&self, session: SessionId) -> u64 {
        let its = self.running_whole().filter(|it| it.session == session);
        its.map(Transfer::moved).sum()
    }

    /// Adds the bytes of what runs to what was counted.
    pub(super) fn count_running(&self, tally: &mut Tally) {
        for transfer in self.running_whole() {
            let kind = (transfer.kind, transfer.body.place(&self.bodies), transfer.class);
            tally.add_transfer_bytes(kind, transfer.moved());
        }
        for (_, serve) in self.serves.iter() {
            tally.add_serve_bytes((serve.operation(), serve.flow.class), serve.moved());
        }
    }
}
