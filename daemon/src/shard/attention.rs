//! Which queues a turn looks at, and which rest.
//!
//! A look at a ring takes cache lines that nobody else uses, so a thousand looks in each turn would
//! cost the others more than their requests do. A queue that has had nothing to do for a while
//! therefore rests: its client is told to ring, as before a sleep of the thread, and no turn looks
//! at the queue until the bell rings or something is posted. The while is longer than the thread
//! spins, so a client that asks before a spin would end never has to ring.
//!
//! *Not done:* to let all queues rest when the thread sleeps. Clients that are at work at the same
//! time would then each have to ring once for every sleep, and now only the first one does.

use std::collections::HashMap;

use piped_core::ids::QueueId;
use piped_core::units::Nanos;

use crate::io::WatchId;
use crate::limits::QUEUE_RESTS_AFTER;

/// How long a queue has had nothing to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Leisure {
    /// Something was there at the last look, or was posted since.
    #[default]
    None,
    /// Looks have found nothing since then.
    Since(Nanos),
    /// The client rings before it is looked at again.
    Rests,
}

/// The queues that are looked at, by turns, and how a bell is known.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// Queues that are looked at.
    live: Vec<QueueId>,
    /// Index in `live` at which the next turn starts.
    next: usize,
    /// Queues by the watches on their bells, whose numbers are no places: they have a generation.
    by_bell: HashMap<WatchId, QueueId>,
    /// Time without anything to do after which a queue rests.
    after: Nanos,
}

impl Attention {
    /// No queues yet, for a thread that spins so long in nanoseconds.
    pub(super) fn new(spin_ns: u64) -> Self {
        let after = Nanos(spin_ns.saturating_mul(2)).max(QUEUE_RESTS_AFTER);
        Self { after, ..Self::default() }
    }

    /// A queue is served from now on, and its bell watched.
    pub(super) fn begin(&mut self, queue: QueueId, bell: WatchId) {
        self.by_bell.insert(bell, queue);
        self.live.push(queue);
    }

    /// The bell is watched no more. Its queue is still looked at until [`Self::keep`].
    pub(super) fn end(&mut self, bell: WatchId) {
        self.by_bell.remove(&bell);
    }

    /// The queue that a bell belongs to.
    pub(super) fn of_bell(&self, bell: WatchId) -> Option<QueueId> {
        self.by_bell.get(&bell).copied()
    }

    /// Queues that are looked at.
    pub(super) fn live(&self) -> &[QueueId] {
        &self.live
    }

    /// A queue is looked at again.
    pub(super) fn add(&mut self, queue: QueueId) {
        self.live.push(queue);
    }

    /// Looks at those queues only for which `is_live` says so.
    pub(super) fn keep(&mut self, is_live: impl Fn(QueueId) -> bool) {
        self.live.retain(|queue| is_live(*queue));
    }

    /// Index at which a turn starts.
    pub(super) fn start(&self) -> usize {
        self.next
    }

    /// The next turn starts behind this index.
    pub(super) fn start_behind(&mut self, at: usize) {
        self.next = at + 1;
    }

    /// Notes a look that found nothing. Whether the queue is to rest.
    pub(super) fn note_empty(&self, leisure: &mut Leisure, now: Nanos) -> bool {
        match *leisure {
            Leisure::None => *leisure = Leisure::Since(now),
            Leisure::Since(since) => return now.since(since) >= self.after,
            Leisure::Rests => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_rests_once_it_had_nothing_to_do_for_longer_than_a_spin() {
        let spin = QUEUE_RESTS_AFTER;
        let attention = Attention::new(spin.0);
        let mut leisure = Leisure::default();
        assert!(!attention.note_empty(&mut leisure, Nanos(7)), "the first look only begins it");
        assert!(!attention.note_empty(&mut leisure, Nanos(6 + 2 * spin.0)));
        assert!(attention.note_empty(&mut leisure, Nanos(7 + 2 * spin.0)));
        leisure = Leisure::None;
        assert!(!attention.note_empty(&mut leisure, Nanos(90 * spin.0)), "it had something since");
    }

    #[test]
    fn a_bell_is_of_its_queue_until_it_is_watched_no_more() {
        let mut attention = Attention::new(0);
        attention.begin(QueueId(4), WatchId(2));
        assert_eq!(attention.of_bell(WatchId(2)), Some(QueueId(4)));
        assert_eq!([0, 1, 3].map(|bell| attention.of_bell(WatchId(bell))), [None; 3]);
        attention.end(WatchId(2));
        attention.end(WatchId(9));
        // Numbers of bells have a generation, so they may be of any size.
        attention.begin(QueueId(4), WatchId(u32::MAX));
        attention.end(WatchId(u32::MAX));
        attention.keep(|_| false);
        assert!(attention.by_bell.is_empty());
        assert_eq!(attention.of_bell(WatchId(2)), None);
        attention.begin(QueueId(5), WatchId(2));
        assert_eq!(attention.of_bell(WatchId(2)), Some(QueueId(5)), "the number is used again");
        assert_eq!(attention.live(), [QueueId(5)]);
    }
}
