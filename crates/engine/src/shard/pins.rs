//! Pins: what may still touch the memory of a request.
//!
//! Memory is pinned by an operation at the kernel, a frame on a lane, a payload that is landing, a
//! part of the request. Each of them has a [`Pin`], which nobody can copy, and gives it back when
//! it is done. A request ends when all are back.

use super::keys::kind;
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

impl AnyPin {
    /// What is kept from ending.
    pub(super) fn work(&self) -> Work {
        match self {
            Self::Transfer(pin) => Work::Transfer(pin.key()),
            Self::Serve(pin) => Work::Serve(pin.key()),
        }
    }
}

impl From<Pin<kind::Transfer>> for AnyPin {
    fn from(pin: Pin<kind::Transfer>) -> Self {
        Self::Transfer(pin)
    }
}

impl From<Pin<kind::Serve>> for AnyPin {
    fn from(pin: Pin<kind::Serve>) -> Self {
        Self::Serve(pin)
    }
}
