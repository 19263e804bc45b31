//! Credit: how many bytes of writes may be under way on a lane, as both of its ends count them.
//!
//! The side that serves grants a window; the side that asks spends it on write data, and gets it
//! back when the bytes are off the lane there. What neither end may break is one sum:
//!
//! ```text
//! window = left to send + on the way + here + owed + due + credit on the way back - withheld
//! ```
//!
//! A window that grows adds to what is due. One that shrinks takes from what is due, and withholds
//! the rest from what comes back. Nothing is sent for either: a peer hears of it with the credit of
//! its next write, because a frame that it does not expect could land in a client's memory.

use piped_core::limits::{CREDIT_BATCH_DIVISOR, CREDIT_BYTES, write_piece_max};

/// The window of the end that sends write data.
#[derive(Debug, Default)]
pub(in crate::shard) struct SendWindow {
    /// Bytes that may still be sent.
    left: u64,
    /// The window as the peer said it last.
    window: u64,
    /// A write ended other than well: credit for what it sent may come after its end.
    awaits_rest: bool,
}

impl SendWindow {
    /// The peer opens the lane with a window; a larger one than nodes ever give is not believed.
    pub(in crate::shard) fn open(&mut self, window: u64) {
        self.window = window.min(CREDIT_BYTES);
        self.left = self.window;
    }

    pub(in crate::shard) fn window(&self) -> u64 {
        self.window
    }

    /// Credit that the peer has not given back yet, in bytes.
    pub(in crate::shard) fn owed(&self) -> u64 {
        self.window.saturating_sub(self.left)
    }

    /// The longest piece of a write that the window is sure to find credit for.
    pub(in crate::shard) fn piece_max(&self) -> u64 {
        write_piece_max(self.window)
    }

    /// Whether so many bytes may be sent now.
    pub(in crate::shard) fn has(&self, bytes: u64) -> bool {
        bytes <= self.left
    }

    /// Spends credit for bytes that are sent; the caller asked [`Self::has`].
    pub(in crate::shard) fn spend(&mut self, bytes: u64) {
        let left = self.left.checked_sub(bytes);
        debug_assert!(left.is_some(), "more is sent than there is credit for");
        self.left = left.unwrap_or(0);
    }

    /// Takes back the credit of bytes that were queued and will not be sent.
    pub(in crate::shard) fn take_back(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes);
    }

    /// The peer gives credit back. More than a node ever gives is not kept, so that sums of it stay
    /// small.
    pub(in crate::shard) fn receive(&mut self, bytes: u64, window: u64) {
        self.window = window.min(CREDIT_BYTES);
        // What the peer gave before it chose a smaller window stays ours: it withholds as much.
        let most = self.window.max(self.left);
        self.left = self.left.saturating_add(bytes).min(most);
        self.awaits_rest &= self.left < self.window;
    }

    /// A write ended other than well.
    pub(in crate::shard) fn note_failed(&mut self) {
        self.awaits_rest = true;
    }

    /// Whether credit may come that belongs to a write that is over.
    pub(in crate::shard) fn awaits_rest(&self) -> bool {
        self.awaits_rest && self.left < self.window
    }
}

/// The window of the end that takes write data in.
#[derive(Debug, Default)]
pub(in crate::shard) struct GrantWindow {
    /// Bytes that may be under way by now.
    window: u64,
    /// The window that the peer knows of.
    told: u64,
    /// Bytes that the peer may still send before it gets more credit.
    granted: u64,
    /// Bytes that are off the lane, and whose credit waits for the peer's rate.
    owed: u64,
    /// All credit is to go back: a write failed, and its peer waits for what it sent, or a long one
    /// is over.
    owes_rest: bool,
    /// Credit that goes with the next grant.
    due: u64,
    /// Credit that is kept back, because the window has become smaller.
    withheld: u64,
}

/// Credit for the peer, in the frame that brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the peer waits for it"]
pub(in crate::shard) struct Grant {
    pub(in crate::shard) bytes: u64,
    pub(in crate::shard) window: u64,
}

/// The peer sends more than it has credit for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Overdrawn;

impl GrantWindow {
    /// The lane opens with a window, which the peer is told.
    pub(in crate::shard) fn open(&mut self, window: u64) {
        *self = Self { window, told: window, granted: window, ..Self::default() };
    }

    pub(in crate::shard) fn window(&self) -> u64 {
        self.window
    }

    /// Bytes that the peer may still send.
    pub(in crate::shard) fn granted(&self) -> u64 {
        self.granted
    }

    /// Whether the peer may send so many bytes.
    pub(in crate::shard) fn allows(&self, bytes: u64) -> Result<(), Overdrawn> {
        if bytes <= self.granted { Ok(()) } else { Err(Overdrawn) }
    }

    /// Bytes of the peer's are here; the caller asked [`Self::allows`].
    pub(in crate::shard) fn take(&mut self, bytes: u64) {
        let granted = self.granted.checked_sub(bytes);
        debug_assert!(granted.is_some(), "more has come than was granted");
        self.granted = granted.unwrap_or(0);
    }

    /// Bytes are off the lane. `rest`: of a write that failed, for all of whose credit the peer
    /// waits before it predicts again.
    pub(in crate::shard) fn owe(&mut self, bytes: u64, rest: bool) {
        self.owed += bytes;
        self.owes_rest |= rest;
    }

    /// A write of so many bytes is over. After a long one all credit goes back with what is owed:
    /// the next long one would wait for it.
    pub(in crate::shard) fn end_write(&mut self, bytes: u64) {
        self.owes_rest |= bytes.saturating_mul(CREDIT_BATCH_DIVISOR) >= self.window;
    }

    pub(in crate::shard) fn owes(&self) -> bool {
        self.owed > 0 || self.owes_rest
    }

    /// What is owed becomes due. Returns how much that was, and the grant if there is one that is
    /// worth a frame.
    pub(in crate::shard) fn settle(&mut self) -> (u64, Option<Grant>) {
        let owed = std::mem::take(&mut self.owed);
        let rest = std::mem::take(&mut self.owes_rest);
        let kept = self.withheld.min(owed);
        self.withheld -= kept;
        self.due += owed - kept;
        // A peer that knows of a larger window cuts pieces that may find no credit.
        let news = self.told != self.window;
        let enough = self.due * CREDIT_BATCH_DIVISOR >= self.window;
        let grant = Grant { bytes: self.due, window: self.window };
        (owed, (news || rest && self.due > 0 || enough).then_some(grant))
    }

    /// The grant is on its way.
    pub(in crate::shard) fn note_given(&mut self, grant: Grant) {
        let Grant { bytes, window } = grant;
        debug_assert!(bytes == self.due && window == self.window, "a grant that is not due");
        self.granted += bytes;
        self.due = 0;
        self.told = window;
    }

    /// Another window, which the peer hears of with its next grant.
    pub(in crate::shard) fn resize(&mut self, window: u64) {
        let more = window.saturating_sub(self.window);
        let less = self.window.saturating_sub(window);
        let forgiven = more.min(self.withheld);
        self.withheld -= forgiven;
        self.due += more - forgiven;
        let kept = less.min(self.due);
        self.due -= kept;
        self.withheld += less - kept;
        self.window = window;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// What happens on a lane; numbers are cut to what is possible then.
    #[derive(Debug, Clone)]
    enum Step {
        Send(u64),
        TakeBack,
        /// The oldest piece on the way arrives.
        Arrive,
        /// Bytes that are here leave the lane.
        Leave(u64, bool),
        Settle,
        /// The oldest grant on the way arrives.
        Hear,
        Resize(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = 0..=CREDIT_BYTES;
        prop_oneof![
            3 => bytes.clone().prop_map(Step::Send),
            1 => Just(Step::TakeBack),
            3 => Just(Step::Arrive),
            3 => (bytes.clone(), any::<bool>()).prop_map(|(bytes, rest)| Step::Leave(bytes, rest)),
            3 => Just(Step::Settle),
            3 => Just(Step::Hear),
            1 => bytes.prop_map(Step::Resize),
        ]
    }

    /// Both ends, and what is between them.
    #[derive(Default)]
    struct Model {
        sender: SendWindow,
        granter: GrantWindow,
        data: VecDeque<u64>,
        grants: VecDeque<Grant>,
        /// Bytes that have come and are not off the lane.
        here: u64,
    }

    impl Model {
        fn step(&mut self, step: Step) {
            match step {
                Step::Send(bytes) => {
                    let bytes = bytes.min(self.sender.left);
                    assert!(self.sender.has(bytes) && !self.sender.has(self.sender.left + 1));
                    self.sender.spend(bytes);
                    self.data.push_back(bytes);
                }
                Step::TakeBack => {
                    self.sender.take_back(self.data.pop_back().unwrap_or(0));
                }
                Step::Arrive => {
                    let bytes = self.data.pop_front().unwrap_or(0);
                    assert_eq!(self.granter.allows(bytes), Ok(()), "an honest peer overdraws");
                    self.granter.take(bytes);
                    self.here += bytes;
                }
                Step::Leave(bytes, rest) => {
                    let bytes = bytes.min(self.here);
                    self.here -= bytes;
                    self.granter.owe(bytes, rest);
                }
                Step::Settle => self.settle(),
                Step::Hear => {
                    if let Some(Grant { bytes, window }) = self.grants.pop_front() {
                        self.sender.receive(bytes, window);
                    }
                }
                Step::Resize(window) => self.granter.resize(window),
            }
        }

        fn settle(&mut self) {
            let (_, grant) = self.granter.settle();
            if let Some(grant) = grant {
                self.granter.note_given(grant);
                self.grants.push_back(grant);
            }
        }

        fn check(&self) {
            let GrantWindow { window, granted, owed, due, withheld, .. } = self.granter;
            let on_the_way: u64 = self.data.iter().sum();
            let on_the_way_back: u64 = self.grants.iter().map(|grant| grant.bytes).sum();
            let spendable = self.sender.left + on_the_way + on_the_way_back;
            assert_eq!(spendable, granted, "the ends disagree on what may still come");
            assert_eq!(
                spendable + self.here + owed + due,
                window + withheld,
                "credit is lost or made"
            );
            assert!(due == 0 || withheld == 0, "credit is due and withheld at once");
        }
    }

    proptest! {
        /// Credit is neither lost nor made, whatever the order of what happens.
        #[test]
        fn both_ends_count_the_same(
            first in 1..=CREDIT_BYTES,
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut model = Model::default();
            model.granter.open(first);
            model.sender.open(first);
            for step in steps {
                model.step(step);
                model.check();
            }
            // All that was sent leaves the lane, and all grants are heard: a piece as long as may
            // be finds credit.
            while !model.data.is_empty() {
                model.step(Step::Arrive);
            }
            model.step(Step::Leave(u64::MAX, true));
            model.settle();
            while !model.grants.is_empty() {
                model.step(Step::Hear);
            }
            model.check();
            prop_assert!(!model.sender.awaits_rest());
            prop_assert_eq!(model.sender.window(), model.granter.told);
            prop_assert!(model.granter.window() == 0 || model.sender.has(model.sender.piece_max()));
        }

        /// A peer that says anything makes no sums overflow, and gets no more credit than a node
        /// ever gives.
        #[test]
        fn a_peer_that_lies_gains_nothing(
            first in any::<u64>(),
            said in prop::collection::vec((any::<u64>(), any::<u64>()), 1..50),
        ) {
            let mut sender = SendWindow::default();
            sender.open(first);
            for (bytes, window) in said {
                sender.receive(bytes, window);
                prop_assert!(sender.left <= CREDIT_BYTES && sender.window <= CREDIT_BYTES);
            }
        }
    }

    #[test]
    fn the_rest_of_a_write_that_failed_is_waited_for() {
        let mut sender = SendWindow::default();
        sender.open(1 << 20);
        sender.note_failed();
        assert!(!sender.awaits_rest(), "nothing is missing");
        sender.spend(4096);
        assert!(sender.awaits_rest());
        sender.receive(4000, 1 << 20);
        assert!(sender.awaits_rest());
        sender.receive(96, 1 << 20);
        assert!(!sender.awaits_rest());
        sender.spend(1);
        assert!(!sender.awaits_rest(), "what is under way now is of another write");
    }
}
