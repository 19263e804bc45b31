//! What each queue of a client has asked of each node, in its order, as far as it is not over.
//!
//! Requests are done in any order, on two lanes and in pieces. What comes after others says so: a
//! fenced request begins when all before it are over, and a notification is done after all puts
//! before it.

use std::collections::VecDeque;

use piped_core::ids::{PeerId, QueueId};

use super::super::keys::TransferKey;
use super::super::sched::{Sched, Work};
use super::Clients;

/// A queue, by the shard that serves it and its number there.
pub(in crate::shard) type Line = (u16, QueueId);

/// A queue and a node; `None` is this one.
pub(in crate::shard) type Course = (Line, Option<PeerId>);

/// The requests of one course.
#[derive(Debug, Default)]
pub(super) struct Order {
    asked: VecDeque<TransferKey>,
    /// Requests of the order that wait for others before them.
    waiting: Vec<TransferKey>,
}

impl Clients {
    /// A client's request comes after all that its queue has asked of the node before.
    pub(in crate::shard) fn enter_order(&mut self, key: TransferKey, course: Course) {
        let standing = self.standings.at_mut(key);
        standing.course = Some(course);
        let Some(session) = self.sessions.get_mut(&standing.session) else { return };
        session.orders.entry(course).or_default().asked.push_back(key);
    }

    fn order_of(&self, key: TransferKey) -> Option<&Order> {
        let standing = self.standings.at(key);
        self.sessions.get(&standing.session)?.orders.get(&standing.course?)
    }

    fn order_of_mut(&mut self, key: TransferKey) -> Option<&mut Order> {
        let standing = self.standings.at(key);
        self.sessions.get_mut(&standing.session)?.orders.get_mut(&standing.course?)
    }

    /// A request is over: those that waited for it look again.
    pub(in crate::shard) fn leave_order(&mut self, key: TransferKey, sched: &mut Sched) {
        let Some(order) = self.order_of_mut(key) else { return };
        match order.asked.front() {
            Some(&first) if first == key => {
                order.asked.pop_front();
            }
            _ => order.asked.retain(|&other| other != key),
        }
        if !order.waiting.is_empty() {
            self.wake_order(key, sched);
        }
    }

    /// Something has happened to a request that others may wait for.
    pub(in crate::shard) fn wake_order(&mut self, key: TransferKey, sched: &mut Sched) {
        let Some(order) = self.order_of_mut(key).filter(|order| !order.waiting.is_empty()) else {
            return;
        };
        for waiting in std::mem::take(&mut order.waiting) {
            self.standings.at_mut(waiting).waits_in_order = false;
            sched.make_ready(Work::Transfer(waiting));
        }
    }

    /// Has a request be looked at again when something happens to one before it.
    pub(in crate::shard) fn wait_in_order(&mut self, key: TransferKey) {
        let waits = std::mem::replace(&mut self.standings.at_mut(key).waits_in_order, true);
        if let Some(order) = self.order_of_mut(key).filter(|_| !waits) {
            order.waiting.push(key);
        }
    }

    /// Whether all before a request are over.
    pub(in crate::shard) fn is_first_in_order(&self, key: TransferKey) -> bool {
        self.order_of(key).is_none_or(|order| order.asked.front() == Some(&key))
    }

    /// The requests of an order by their place, from the first one on.
    pub(in crate::shard) fn nth_in_order(
        &self,
        key: TransferKey,
        at: usize,
    ) -> Option<TransferKey> {
        self.order_of(key)?.asked.get(at).copied()
    }

    /// What a queue has asked of a node after one of its requests, and is not over.
    pub(in crate::shard) fn asked_after(
        &self,
        key: TransferKey,
    ) -> impl Iterator<Item = TransferKey> {
        self.asked(key).skip_while(move |&other| other != key).skip(1)
    }

    /// What a queue has asked of a node before one of its requests, and is not over.
    pub(in crate::shard) fn asked_before(
        &self,
        key: TransferKey,
    ) -> impl Iterator<Item = TransferKey> {
        self.asked(key).take_while(move |&other| other != key)
    }

    fn asked(&self, key: TransferKey) -> impl Iterator<Item = TransferKey> {
        self.order_of(key).into_iter().flat_map(|order| order.asked.iter().copied())
    }
}
