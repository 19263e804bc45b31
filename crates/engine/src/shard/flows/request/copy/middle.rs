//! The dial between the halves of a copy from a peer to a peer: its bytes lie here as they would in
//! a store.
//!
//! What is read comes to it in fragments as long as a device of this node's would be asked for
//! (`source` of the write's plan), and the write may send what it has let go of.

use piped_core::io::Io;
use piped_report::dial::DialPlace;

use crate::shard::keys::TransferKey;
use crate::shard::sched::Work;
use piped_planner::stage::StageIndex;

use crate::shard::Shard;
use crate::shard::clients::Place;
use crate::shard::delays::{Effect, Hop};
use crate::shard::requests::Body;

impl Shard {
    /// The stages of the dial that stands between the halves of a copy from a peer to a peer: its
    /// bytes lie here as they would in a store.
    pub(in crate::shard) fn middle_of(&self, copy: TransferKey) -> [StageIndex; 2] {
        let body = self.transfers.get(copy).map(|transfer| &transfer.body);
        match body {
            Some(&Body::Copy(copy))
                if self.cx.dials.any() && self.bodies[copy].is_between_peers() =>
            {
                self.cx.dials.stages(|place| *place == DialPlace::Copy)
            }
            _ => [StageIndex::NONE; 2],
        }
    }

    /// Whether such a dial stands there.
    pub(in crate::shard) fn has_middle(&self, copy: TransferKey) -> bool {
        self.middle_of(copy) != [StageIndex::NONE; 2]
    }

    /// What is read of a chunk comes to the dial between two peers, in fragments as long as a
    /// device of this node's would be asked for. `false` if there is no room there.
    pub(in crate::shard) fn store_chunk<I: Io>(
        &mut self,
        key: TransferKey,
        index: usize,
        io: &mut I,
    ) -> bool {
        let has_middle = self.has_middle(key);
        loop {
            let Some(&Body::Copy(copy)) = self.transfers.get(key).map(|t| &t.body) else {
                return true;
            };
            let copy = &self.bodies[copy];
            let (Some(chunk), (Place::Remote(peer, _), _)) = (copy.chunk(index), copy.sink())
            else {
                return true;
            };
            let Some(write) = chunk.writing() else { return true };
            let (start, length) = chunk.range();
            if !has_middle {
                // It was cleared: what waited for the rest of a fragment goes on.
                if let Some(end) = chunk.left_behind() {
                    self.note_stored(key, index as u8, start, end);
                }
                return true;
            }
            let plan = self.plan_write(write, peer);
            let Some(at) = chunk.passing() else { return true };
            let end = plan.source_end(0, at.into(), length.into()) as u32;
            if !chunk.has_read(end) {
                return true;
            }
            if self.cx.dials.is_full() {
                return false;
            }
            if let Some(&Body::Copy(copy)) = self.transfers.get(key).map(|t| &t.body)
                && let Some(chunk) = self.bodies[copy].chunk_mut(index as u8)
            {
                chunk.pass(end);
            }
            let effect = Effect::Stored { copy: key, chunk: index as u8, start, end };
            self.pass(Hop::Copy, effect, end - at, io);
        }
    }

    /// What was read of a chunk up to `end` may be written. The chunk may be another one meanwhile.
    pub(in crate::shard) fn note_stored(
        &mut self,
        parent: TransferKey,
        index: u8,
        start: u64,
        end: u32,
    ) {
        let Some(transfer) = self.transfers.get_mut(parent) else { return };
        let Body::Copy(copy) = transfer.body else { return };
        let chunk = self.bodies[copy].chunk_mut(index).filter(|chunk| chunk.range().0 == start);
        let Some(chunk) = chunk else { return };
        let stored = chunk.note_stored(end);
        let Some(write) = chunk.writing() else { return };
        if let Some(write) = self.transfers.get_mut(write) {
            write.available = stored;
        }
        self.cx.sched.make_ready(Work::Transfer(write));
    }

    /// The dial between the halves of copies is gone.
    pub(in crate::shard) fn wake_copies(&mut self) {
        let mut from = 0;
        while let Some(key) =
            self.transfers.next_from(&mut from, |t| matches!(t.body, Body::Copy(_)))
        {
            self.cx.sched.make_ready(Work::Transfer(key));
        }
    }
}
