//! Pins: what may still touch the memory of a request.
//!
//! Memory is pinned by an operation at the kernel, a frame on a lane, a payload that is landing, a
//! part of the request. Each of them has a [`Pin`], which nobody can copy, and gives it back when
//! it is done. A request ends when all are back.

use super::Shard;
use super::keys::{TransferKey, kind};
use super::sched::Work;
use super::slab::Key;

/// A claim on the memory of a transfer or serve.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request whose pin is not given back never ends"]
pub(super) struct Pin<T>(Key<T>);

impl<T> Pin<T> {
    pub(super) fn key(&self) -> Key<T> {
        self.0
    }

    /// A frame has the pin from now on, as the number of its owner.
    pub(super) fn into_frame(self) {
        let Self(_) = self;
    }

    /// The pin of a frame whose memory is free.
    pub(super) fn of_frame(owner: Key<T>) -> Self {
        Self(owner)
    }
}

/// The pins of one request that are out.
#[derive(Debug, Default)]
pub(super) struct Pins(u32);

impl Pins {
    pub(super) fn take<T>(&mut self, of: Key<T>) -> Pin<T> {
        self.0 += 1;
        Pin(of)
    }

    pub(super) fn give_back<T>(&mut self, pin: Pin<T>) {
        let Pin(_) = pin;
        debug_assert!(self.0 > 0, "more pins come back than were taken");
        self.0 = self.0.saturating_sub(1);
    }

    /// Whether something may touch the request's memory.
    pub(super) fn any(&self) -> bool {
        self.0 > 0
    }
}

/// The pin of what works for transfers and for serves alike.
#[derive(Debug)]
pub(super) enum AnyPin {
    Transfer(Pin<kind::Transfer>),
    Serve(Pin<kind::Serve>),
}

impl Shard {
    /// Pins a transfer's buffer, if there is such a transfer.
    pub(super) fn pin(&mut self, key: TransferKey) -> Option<Pin<kind::Transfer>> {
        Some(self.transfers.get_mut(key)?.pins.take(key))
    }

    pub(super) fn pin_work(&mut self, work: Work) -> Option<AnyPin> {
        match work {
            Work::Transfer(key) => self.pin(key).map(AnyPin::Transfer),
            Work::Serve(key) => {
                let serve = self.serves.get_mut(key)?;
                Some(AnyPin::Serve(serve.pins.take(key)))
            }
            Work::Lane(_) => None,
        }
    }

    /// One thing fewer touches a transfer's buffer.
    pub(super) fn unpin(&mut self, pin: impl Into<Option<Pin<kind::Transfer>>>) {
        let Some(pin) = pin.into() else { return };
        let key = pin.key();
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        transfer.pins.give_back(pin);
        if !transfer.pins.any() && transfer.status.is_some() {
            self.cx.sched.make_ready(Work::Transfer(key));
        }
    }

    /// One thing fewer touches what a serve reads or writes.
    pub(super) fn unpin_serve(&mut self, pin: Pin<kind::Serve>) {
        let key = pin.key();
        if let Some(serve) = self.serves.get_mut(key) {
            serve.pins.give_back(pin);
            self.cx.sched.make_ready(Work::Serve(key));
        }
    }

    /// A transfer keeps the buffer of another one from being given back: as a part of it, or
    /// because it copies from it.
    pub(super) fn keep_pinned(&mut self, holder: TransferKey, held: TransferKey) {
        let pin = self.pin(held);
        if let Some(holder) = self.transfers.get_mut(holder) {
            debug_assert!(holder.holds.is_none(), "it holds another one");
            holder.holds = pin;
        }
    }

    /// A transfer keeps no other one any more.
    pub(super) fn let_go(&mut self, holder: TransferKey) {
        let pin = self.transfers.get_mut(holder).and_then(|holder| holder.holds.take());
        self.unpin(pin);
    }
}
