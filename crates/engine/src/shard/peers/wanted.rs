//! Whether there are to be connections to a peer.

use piped_core::link::Dialling;
use piped_core::units::Nanos;

/// A peer that is dialled when it is used has connections for so long after nothing is open there
/// any more: a client that opens one file after the other finds them.
const UNUSED_TIME: Nanos = Nanos::from_millis(60_000);

/// For so long after the last close a peer that is still to be told of it does not rest for another
/// one. Who does not listen is lost about then.
const TELLING_TIME: Nanos = Nanos::from_millis(10_000);

/// Why a peer is dialled, or is not.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The peer is not in the configuration any more.
    is_removed: bool,
    dialling: Dialling,
    /// Something is open at the peer, or was a while ago.
    is_used: bool,
    /// When something was last closed there. It means nothing while something is open.
    unused_since: Option<Nanos>,
}

impl Wanted {
    /// The peer is in the configuration, new or again. `has_lanes`: these may stay for a while.
    pub(super) fn allow(&mut self, dialling: Dialling, has_lanes: bool) {
        (self.is_removed, self.dialling) = (false, dialling);
        self.is_used |= has_lanes;
    }

    /// The peer is not in the configuration any more.
    pub(super) fn remove(&mut self) {
        (self.is_removed, self.is_used) = (true, false);
    }

    pub(super) fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Whether there are to be connections to it now.
    pub(super) fn is_now(&self) -> bool {
        !self.is_removed && (self.is_used || self.dialling == Dialling::Always)
    }

    /// Whether it rests when nothing is open there.
    pub(super) fn may_rest(&self) -> bool {
        self.dialling == Dialling::Used
    }

    /// Whether it has connections because of what is open, or was, and rests one day.
    pub(super) fn is_to_rest(&self) -> bool {
        self.is_used && self.may_rest()
    }

    /// Something is going to be open there. Whether nothing was.
    pub(super) fn note_used(&mut self) -> bool {
        self.unused_since = None;
        !std::mem::replace(&mut self.is_used, true)
    }

    /// Something was closed there.
    pub(super) fn note_closed(&mut self, now: Nanos) {
        self.unused_since = Some(now);
    }

    /// Looks whether nothing has been open there for so long that it rests from now on.
    pub(super) fn goes_to_rest(&mut self, is_in_use: bool, now: Nanos) -> bool {
        if is_in_use {
            self.unused_since = None;
        }
        let is_long =
            |since: &mut Option<Nanos>| now.since(*since.get_or_insert(now)) >= UNUSED_TIME;
        let rests = self.is_to_rest() && !is_in_use && is_long(&mut self.unused_since);
        if rests {
            self.rest();
        }
        rests
    }

    /// There are no connections from now on, until something is opened there.
    pub(super) fn rest(&mut self) {
        (self.is_used, self.unused_since) = (false, None);
    }

    /// Since when nothing has been open there, if nothing is; late for one that was not looked at.
    pub(super) fn idle_since(&self) -> Nanos {
        self.unused_since.unwrap_or(Nanos::MAX)
    }

    /// Whether it had its time to be told of the last close.
    pub(super) fn had_its_time(&self, now: Nanos) -> bool {
        self.unused_since.is_some_and(|since| now.since(since) >= TELLING_TIME)
    }
}
