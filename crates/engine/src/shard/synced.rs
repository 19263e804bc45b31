//! What the sync of a durable write takes, so that its prediction has it.
//!
//! A plan is for the bytes: how they are cut changes nothing of the sync behind them, so the sync
//! is in no path, and is added to the prediction. Of a device of ours each sync behind a durable
//! write that had no company is timed. A peer does not say what its sync took: of a durable write
//! to a peer it is what the write took beyond what it was predicted to take without. Before the
//! first one nothing is known, and nothing is predicted of such a write.

use piped_core::units::Nanos;
use piped_planner::stage::StageIndex;

use super::Shard;
use super::cx::Cx;
use super::driver::Direction;
use super::keys::{Subject, TransferKey};
use super::requests::{Body, RemoteBody, RemoteOp};

/// What is left of a durable write to a peer is at least this, so that it is a time.
const LEFT_MIN: Nanos = Nanos(1_000);

impl Shard {
    /// What the sync of a write that is being planned will take, if it is durable and that is
    /// known.
    pub(super) fn promise_sync(&mut self, key: TransferKey) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let length = transfer.length;
        let stage = match &transfer.body {
            Body::File(body) if body.durable && body.direction == Direction::Write => {
                self.cx.planner.sync_stage(body.target.device)
            }
            Body::Remote(RemoteBody { op: RemoteOp::Write { durable: true }, peer, .. }) => {
                let peer = *peer;
                self.sync_stage_at(peer)
            }
            _ => return,
        };
        let sync = self.cx.planner.alone_time(stage, length);
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.sync = sync;
        }
    }

    fn sync_stage_at(&mut self, peer: piped_core::ids::PeerId) -> StageIndex {
        let Self { outbound, cx: Cx { planner, .. }, .. } = self;
        let Some(link) = outbound.get_mut(&peer) else { return StageIndex::NONE };
        if link.sync_stage == StageIndex::NONE {
            link.sync_stage = planner.peer_sync_stage(link.name());
        }
        link.sync_stage
    }

    /// A durable write to a peer ended well.
    pub(super) fn note_durable(&mut self, key: TransferKey, body: RemoteBody, now: Nanos) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Some(planned) = transfer.plan.clone() else { return };
        if transfer.retries > 0 || !self.cx.watch.is_alone(Subject::Transfer(key)) {
            return;
        }
        let length = transfer.length;
        let left = now.since(body.sent_at).since(planned.predicted_for(length)).max(LEFT_MIN);
        let stage = self.sync_stage_at(body.peer);
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        self.cx.planner.sample_alone(stage, bytes, left);
    }
}
