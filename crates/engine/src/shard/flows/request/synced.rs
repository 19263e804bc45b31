//! What of a peer's file or directory is on stable storage, and which run of its daemon took it.

use piped_core::status::Status;
use piped_core::units::Nanos;

use crate::shard::Shard;
use crate::shard::keys::TransferKey;
use crate::shard::peers::Peer;
use crate::shard::requests::RemoteBody;

impl Shard {
    /// A write ended of which something was written and is not on stable storage yet.
    pub(in crate::shard) fn note_unsynced(
        &mut self,
        key: TransferKey,
        body: RemoteBody,
        now: Nanos,
    ) {
        let incarnation = self.peers.get(body.peer).map_or(0, Peer::incarnation);
        let Some(remote) = self.remote_of(key, body.handle) else { return };
        let first = remote.unsynced.map_or(incarnation, |(first, _)| first);
        remote.unsynced = Some((first, now));
    }

    /// What a sync that ended well says: nothing about writes that an earlier run of the peer took.
    pub(in crate::shard) fn vouch(&mut self, key: TransferKey, body: RemoteBody) -> Status {
        let incarnation = self.peers.get(body.peer).map_or(0, Peer::incarnation);
        let mut oldest = body.unsynced;
        if let Some(remote) = self.remote_of(key, body.handle)
            && let Some((first, last_write)) = remote.unsynced
        {
            // What it had to cover when it was asked for, another sync may have answered for since:
            // with the truth for that one, which is this one's as well.
            oldest = oldest.filter(|&oldest| oldest != incarnation).or(Some(first));
            // A write that ended after the sync was sent is for the next one.
            remote.unsynced = (last_write > body.sent_at).then_some((incarnation, last_write));
        }
        if oldest.is_none_or(|oldest| oldest == incarnation) {
            Status::Ok
        } else {
            Status::OutcomeUnknown
        }
    }

    /// What the sync of a part that ended well says: it covers no other part, but may have come too
    /// late for what an earlier run of the peer took.
    pub(in crate::shard) fn vouch_for_part(
        &mut self,
        key: TransferKey,
        body: RemoteBody,
    ) -> Status {
        let incarnation = self.peers.get(body.peer).map_or(0, Peer::incarnation);
        let unsynced = self.remote_of(key, body.handle).and_then(|remote| remote.unsynced);
        let first = body.unsynced.or(unsynced.map(|(first, _)| first));
        if first.is_none_or(|first| first == incarnation) {
            Status::Ok
        } else {
            Status::OutcomeUnknown
        }
    }
}
