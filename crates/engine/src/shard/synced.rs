//! What the sync of a durable write takes, so that its prediction has it.
//!
//! A plan is for the bytes: how they are cut changes nothing of the sync behind them, so the sync
//! is in no path, and is added to the prediction. Of a device of ours each sync behind a durable
//! write that had no company is timed. A peer does not say what its sync took: of a durable write
//! to a peer it is what the write took beyond what it was predicted to take without. Before the
//! first one nothing is known, and nothing is predicted of such a write.

use piped_core::ids::DeviceId;
use piped_core::units::Nanos;
use piped_planner::stage::StageIndex;

use super::Shard;
use super::cx::Cx;
use super::driver::Direction;
use super::keys::{ServeKey, TransferKey};
use super::requests::{Body, RemoteBody, RemoteOp};
use super::trace::Subject;

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

    /// The sync of a durable write here is over.
    pub(super) fn note_synced(&mut self, key: TransferKey, now: Nanos) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::File(body) = transfer.body else { return };
        let (length, is_alone) = (transfer.length, self.is_alone_so_far(Subject::Transfer(key)));
        let stage = self.time_sync(body.target.device, length, (body.syncing, now), is_alone);
        self.cx.watch.observed.of_mut(Subject::Transfer(key)).passed.pass(stage, body.syncing, now);
    }

    /// That of a peer's.
    pub(super) fn note_serve_synced(&mut self, key: ServeKey, device: DeviceId, now: Nanos) {
        let Some(serve) = self.serves.get(key) else { return };
        let (length, since) = (serve.length, serve.syncing);
        let is_alone = self.is_alone_so_far(Subject::Serve(key));
        let stage = self.time_sync(device, length, (since, now), is_alone);
        self.cx.watch.observed.of_mut(Subject::Serve(key)).passed.pass(stage, since, now);
    }

    fn time_sync(
        &mut self,
        device: DeviceId,
        length: u64,
        (since, now): (Nanos, Nanos),
        is_alone: bool,
    ) -> StageIndex {
        let stage = self.cx.planner.sync_stage(device);
        if is_alone {
            let bytes = u32::try_from(length).unwrap_or(u32::MAX);
            self.cx.planner.sample_alone(stage, bytes, now.since(since));
        }
        stage
    }

    /// A durable write to a peer ended well.
    pub(super) fn note_durable(&mut self, key: TransferKey, body: RemoteBody, now: Nanos) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Some(planned) = transfer.plan.clone() else { return };
        if transfer.retries > 0 || !self.is_alone_so_far(Subject::Transfer(key)) {
            return;
        }
        let length = transfer.length;
        let left = now.since(body.sent_at).since(planned.predicted_for(length)).max(LEFT_MIN);
        let stage = self.sync_stage_at(body.peer);
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        self.cx.planner.sample_alone(stage, bytes, left);
    }
}
