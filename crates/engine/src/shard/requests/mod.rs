//! The requests that clients have in execution, and what has landed of each.

mod attempts;
mod bodies;
mod body;
mod buffers;
mod call;
mod copying;
mod file;
mod led;
mod memory;
mod message;
mod once;
mod part;
mod pieces;
mod plans;
mod transfer;

use piped_core::status::Status;
use piped_core::units::Nanos;

use super::keys::{TransferKey, kind};
use super::landed::{Extents, NotLandable};
use super::pins::Pin;
use super::sched::{Sched, Work};
use super::slab::{Beside, Slab};
use super::timers::Timers;

pub(super) use self::bodies::Bodies;
pub(super) use self::body::{Body, RemoteBody, RemoteOp, Vouched, file_of};
pub(super) use self::buffers::Buffers;
pub(super) use self::call::CallBody;
pub(super) use self::copying::{Chunk, CopyBody, Ended};
pub(super) use self::file::{FileBody, Phase};
pub(super) use self::led::By;
pub(super) use self::memory::MemoryBody;
pub(super) use self::message::{Incoming, Outgoing, ReceiveBody, SendBody, Slot};
pub(super) use self::once::{Answer, Ending, Once, What};
pub(super) use self::part::Part;
pub(super) use self::pieces::{Order, VectorBody};
pub(super) use self::transfer::{Start, Transfer, Waiter};

/// The transfers of a shard: clients' requests, and the parts of those that have some.
#[derive(Debug)]
pub(super) struct Transfers {
    all: Slab<kind::Transfer, Transfer>,
    /// What has landed of each beyond its watermark.
    extents: Beside<kind::Transfer, Extents>,
    deadlines: Timers,
}

impl Transfers {
    /// Room for so many.
    pub(super) fn with_capacity(transfers: u32) -> Self {
        Self {
            all: Slab::with_capacity(transfers),
            extents: Beside::with_capacity(transfers),
            deadlines: Timers::with_capacity(transfers),
        }
    }

    /// Begins a transfer; its deadline runs. `None`: there are as many as there may be.
    pub(super) fn begin(&mut self, transfer: Transfer) -> Option<TransferKey> {
        let deadline = transfer.deadline;
        let key = self.all.insert(transfer).ok()?;
        let _ = self.extents.of_new(key);
        self.deadlines.set(key.index(), deadline);
        Some(key)
    }

    /// Takes out a transfer that is over.
    pub(super) fn end(&mut self, key: TransferKey) -> Option<Transfer> {
        let transfer = self.all.remove(key)?;
        self.deadlines.clear(key.index());
        Some(transfer)
    }

    /// A transfer that is not over.
    pub(super) fn get(&self, key: TransferKey) -> Option<&Transfer> {
        self.all.get(key)
    }

    /// The mutable form of [`Self::get`].
    pub(super) fn get_mut(&mut self, key: TransferKey) -> Option<&mut Transfer> {
        self.all.get_mut(key)
    }

    /// All that are not over.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TransferKey, &Transfer)> {
        self.all.iter()
    }

    /// The first one at or after a place that is wanted.
    pub(super) fn next_from(
        &self,
        from: &mut u32,
        wanted: impl Fn(&Transfer) -> bool,
    ) -> Option<TransferKey> {
        self.all.next_from(from, wanted)
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.all.len()
    }

    /// How many more there may be.
    pub(super) fn room(&self) -> u32 {
        self.all.room()
    }

    /// Decides how a transfer ends, unless that is decided.
    pub(super) fn end_with(&mut self, key: TransferKey, status: Status) {
        if let Some(transfer) = self.all.get_mut(key) {
            transfer.status.get_or_insert(status);
        }
    }

    /// Ends waits that have what they wait for, each with what is left of it. They end in their own
    /// turns: what ends a wait would else come here again, as deep as there are waits.
    pub(super) fn serves_waits(&mut self, sched: &mut Sched) -> impl FnMut(TransferKey, u64) {
        |key, value| {
            if let Some(transfer) = self.all.get_mut(key) {
                transfer.value = value;
                transfer.status.get_or_insert(Status::Ok);
            }
            sched.make_ready(Work::Transfer(key));
        }
    }

    /// Bytes `start..end` of a transfer are in place. Whether its watermark moved.
    pub(super) fn land(
        &mut self,
        key: TransferKey,
        start: u64,
        end: u64,
    ) -> Result<bool, NotLandable> {
        let transfer = self.all.get_mut(key).ok_or(NotLandable)?;
        transfer.landed.insert(self.extents.at_mut(key), start, end)
    }

    /// A transfer has moved so many bytes in all; a part tells the transfer that it is of. The
    /// count never falls, whatever has to be fetched or sent again: so the sum over what ended and
    /// what runs never falls either, and an end adds nothing that was counted before.
    pub(super) fn note_moved(&mut self, key: TransferKey, bytes: u64, bodies: &mut Bodies) {
        let Some(transfer) = self.all.get_mut(key) else { return };
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
        let Some(whole) = self.all.get_mut(parent) else { return };
        let more = match (whole.body, waiter) {
            (Body::Copy(copy), Waiter::Copy { chunk, .. }) => {
                bodies[copy].note_written(chunk, bytes)
            }
            _ => more,
        };
        whole.moved = (whole.moved + more).min(whole.length);
    }

    /// The requests that run, without the parts of others.
    pub(super) fn wholes(&self) -> impl Iterator<Item = &Transfer> {
        self.all.iter().map(|(_, it)| it).filter(|it| !it.waiter.is_part())
    }

    /// Whether bytes `start..end` of a transfer may still land.
    pub(super) fn is_open(&self, key: TransferKey, start: u64, end: u64) -> bool {
        let transfer = self.all.get(key);
        transfer.is_some_and(|it| it.landed.is_open(self.extents.at(key), start, end))
    }

    /// The first bytes of a transfer that have landed beyond its watermark; none: an empty range.
    pub(super) fn first_extent(&self, key: TransferKey) -> (u64, u64) {
        self.all.get(key).map_or((0, 0), |it| it.landed.first_extent(self.extents.at(key)))
    }

    /// A transfer whose deadline has passed.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<TransferKey> {
        self.deadlines.take_due(now).and_then(|slot| self.all.in_place(slot))
    }

    /// The earliest deadline of all transfers; none if no transfer has one.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.deadlines.next()
    }

    /// A transfer is looked at then, as if that were its deadline.
    pub(super) fn look_at(&mut self, key: TransferKey, at: Nanos) {
        if self.all.get(key).is_some() {
            self.deadlines.set(key.index(), at);
        }
    }

    /// A transfer has no deadline any more.
    pub(super) fn stop_deadline(&mut self, key: TransferKey) {
        self.deadlines.clear(key.index());
    }

    /// Pins a transfer's buffer, if there is such a transfer.
    pub(super) fn pin(&mut self, key: TransferKey) -> Option<Pin<kind::Transfer>> {
        Some(self.all.get_mut(key)?.pins.take(key))
    }

    /// One thing fewer touches a transfer's buffer.
    pub(super) fn unpin(&mut self, pin: impl Into<Option<Pin<kind::Transfer>>>, sched: &mut Sched) {
        let Some(pin) = pin.into() else { return };
        let key = pin.key();
        let Some(transfer) = self.all.get_mut(key) else { return };
        transfer.pins.give_back(pin);
        if !transfer.pins.any() && transfer.status.is_some() {
            sched.make_ready(Work::Transfer(key));
        }
    }

    /// A transfer keeps the buffer of another one from being given back: as a part of it, or
    /// because it copies from it.
    pub(super) fn keep_pinned(&mut self, holder: TransferKey, held: TransferKey) {
        let pin = self.pin(held);
        if let Some(holder) = self.all.get_mut(holder) {
            debug_assert!(holder.holds.is_none(), "it holds another one");
            holder.holds = pin;
        }
    }

    /// A transfer keeps no other one any more.
    pub(super) fn let_go(&mut self, holder: TransferKey, sched: &mut Sched) {
        let pin = self.all.get_mut(holder).and_then(|holder| holder.holds.take());
        self.unpin(pin, sched);
    }
}
