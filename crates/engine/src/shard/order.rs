//! What each queue of a client has asked of each node, in its order, as far as it is not over.
//!
//! Requests are done in any order, on two lanes and in pieces. What comes after others says so: a
//! fenced request begins when all before it are over, and a notification is done after all puts
//! before it.

use std::collections::VecDeque;

use piped_core::ids::{PeerId, QueueId};
use piped_report::tally::{HeldBy, Operation};

use super::Shard;
use super::keys::TransferKey;
use super::sched::Work;
use super::trace::Subject;

/// A queue and a node; `None` is this one.
pub(super) type Course = (QueueId, Option<PeerId>);

/// The requests of one course.
#[derive(Debug, Default)]
pub(super) struct Order {
    asked: VecDeque<TransferKey>,
    /// Those that wait for others before them.
    waiting: Vec<TransferKey>,
}

impl Shard {
    /// A client's request comes after all that its queue has asked of the node before.
    pub(super) fn enter_order(&mut self, key: TransferKey, course: Course) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        transfer.course = Some(course);
        let Some(session) = self.sessions.get_mut(&transfer.session) else { return };
        session.orders.entry(course).or_default().asked.push_back(key);
    }

    fn order_of(&mut self, key: TransferKey) -> Option<&mut Order> {
        let transfer = self.transfers.get(key)?;
        self.sessions.get_mut(&transfer.session)?.orders.get_mut(&transfer.course?)
    }

    /// A request is over: those that waited for it look again.
    pub(super) fn leave_order(&mut self, key: TransferKey) {
        let Some(order) = self.order_of(key) else { return };
        match order.asked.front() {
            Some(&first) if first == key => {
                order.asked.pop_front();
            }
            _ => order.asked.retain(|&other| other != key),
        }
        self.wake_order(key);
    }

    /// Something has happened to a request that others may wait for.
    pub(super) fn wake_order(&mut self, key: TransferKey) {
        let Some(order) = self.order_of(key).filter(|order| !order.waiting.is_empty()) else {
            return;
        };
        for waiting in std::mem::take(&mut order.waiting) {
            if let Some(transfer) = self.transfers.get_mut(waiting) {
                transfer.waits_in_order = false;
            }
            self.cx.sched.make_ready(Work::Transfer(waiting));
        }
    }

    /// Has a request be looked at again when something happens to one before it.
    pub(super) fn wait_in_order(&mut self, key: TransferKey) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        self.cx.watch.observed.of_mut(Subject::Transfer(key)).stays.hold(HeldBy::Order);
        if !std::mem::replace(&mut transfer.waits_in_order, true)
            && let Some(order) = self.order_of(key)
        {
            order.waiting.push(key);
        }
    }

    /// Whether all before a request are over.
    pub(super) fn is_first_in_order(&mut self, key: TransferKey) -> bool {
        self.order_of(key).is_none_or(|order| order.asked.front() == Some(&key))
    }

    /// The requests of an order by their place, from the first one on.
    pub(super) fn nth_in_order(&mut self, key: TransferKey, at: usize) -> Option<TransferKey> {
        self.order_of(key)?.asked.get(at).copied()
    }

    /// Those of a queue to a node that come after one of them.
    pub(super) fn asked_after(&self, key: TransferKey) -> impl Iterator<Item = TransferKey> {
        let order = self.transfers.get(key).and_then(|transfer| {
            self.sessions.get(&transfer.session)?.orders.get(&transfer.course?)
        });
        let all = order.into_iter().flat_map(|order| order.asked.iter().copied());
        all.skip_while(move |&other| other != key).skip(1)
    }

    /// The puts and writes before a request that are not over.
    pub(super) fn puts_before(&self, key: TransferKey) -> impl Iterator<Item = TransferKey> {
        let order = self.transfers.get(key).and_then(|transfer| {
            self.sessions.get(&transfer.session)?.orders.get(&transfer.course?)
        });
        let before = order.into_iter().flat_map(|order| order.asked.iter().copied());
        before.take_while(move |&other| other != key).filter(|&other| {
            let kind = self.transfers.get(other).map(|transfer| transfer.kind);
            matches!(kind, Some(Operation::Put | Operation::Write))
        })
    }
}
