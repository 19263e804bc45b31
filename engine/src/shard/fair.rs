//! Who goes next on a stage that several share: what is urgent first, and by turns inside a class.
//!
//! Inside a class it is deficit round robin (Shreedhar and Varghese, 1995): in its turn a party may move a quantum
//! of bytes for each unit of its weight, and keeps what it did not use as long as it has something that waits. So
//! shares are of bytes, whatever the lengths of the pieces, and a turn costs the same however many wait.
//!
//! The latency class goes before the bulk class, but for what bulk is guaranteed: a byte for every
//! [`LATENCY_PER_BULK`] of the others, saved up while it waits.

use std::collections::VecDeque;

use super::slab::Key;
use crate::ids::SessionId;
use crate::request::Class;

/// Who pays for a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Party {
    /// A client of this node.
    Client(SessionId),
    /// A client of a peer, by the peer's number for it.
    Peer(Key, u32),
}

/// Whose a piece of work is, and how it stands with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) party: Party,
    pub(super) class: Class,
    /// Its share beside the others of its class; at least 1.
    pub(super) weight: u8,
}

/// What a party of weight 1 may move in a turn, in bytes.
const QUANTUM: u64 = 64 * 1024;

/// Bytes of the latency class for a byte that bulk is guaranteed: a fifth of the stage is bulk's.
const LATENCY_PER_BULK: u64 = 4;

/// What bulk saves up at most, in bytes: the longest piece.
const SAVED_MAX: u64 = crate::limits::FRAGMENT_BYTES_MAX as u64;

/// Lists that are kept for parties to come, so that one request after the other allocates nothing.
const SPARE_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Fair<T> {
    /// Latency and bulk.
    rings: [Ring<T>; 2],
    /// Bytes that bulk may move before the latency class.
    saved: u64,
    spare: Vec<Line<T>>,
}

/// What a party has that waits, with its bytes.
type Line<T> = VecDeque<(u32, T)>;

/// The parties of a class that have something that waits, in turn.
#[derive(Debug)]
struct Ring<T> {
    parties: VecDeque<Waiting<T>>,
    count: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    party: Party,
    weight: u8,
    /// Bytes that it may move still.
    deficit: u64,
    /// It was given what it gets in this turn.
    served: bool,
    items: Line<T>,
}

impl<T> Default for Fair<T> {
    fn default() -> Self {
        let ring = || Ring { parties: VecDeque::new(), count: 0 };
        Self { rings: [ring(), ring()], saved: 0, spare: Vec::new() }
    }
}

impl<T: Copy> Fair<T> {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.rings.iter().map(|ring| ring.count).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether more than one party has something that waits.
    pub(super) fn is_shared(&self) -> bool {
        self.rings.iter().map(|ring| ring.parties.len()).sum::<usize>() > 1
    }

    /// The last of its party's line.
    pub(super) fn push(&mut self, flow: Flow, bytes: u32, item: T) {
        let Self { rings, spare, .. } = self;
        let ring = &mut rings[flow.class as usize];
        ring.count += 1;
        match ring.parties.iter_mut().find(|waiting| waiting.party == flow.party) {
            Some(waiting) => {
                waiting.weight = flow.weight;
                waiting.items.push_back((bytes, item));
            }
            None => {
                let mut items = spare.pop().unwrap_or_default();
                items.push_back((bytes, item));
                let Flow { party, weight, .. } = flow;
                ring.parties.push_back(Waiting { party, weight, deficit: 0, served: false, items });
            }
        }
    }

    /// The class whose turn it is.
    pub(super) fn next_class(&self) -> Option<Class> {
        let [urgent, bulk] = &self.rings;
        match (urgent.count > 0, bulk.count > 0) {
            (false, false) => None,
            (true, false) => Some(Class::Latency),
            (false, true) => Some(Class::Bulk),
            (true, true) => {
                let head = bulk.parties.front().and_then(|party| party.items.front());
                let guaranteed = head.is_some_and(|&(bytes, _)| self.saved >= bytes.into());
                Some(if guaranteed { Class::Bulk } else { Class::Latency })
            }
        }
    }

    /// The next of a class, and its bytes.
    pub(super) fn pop_of(&mut self, class: Class) -> Option<(u32, T)> {
        let bulk_waits = self.rings[Class::Bulk as usize].count > 0;
        let Self { rings, spare, .. } = self;
        let (bytes, item) = rings[class as usize].pop(spare)?;
        self.saved = match class {
            Class::Bulk => self.saved.saturating_sub(bytes.into()),
            Class::Latency if bulk_waits => {
                (self.saved + u64::from(bytes) / LATENCY_PER_BULK).min(SAVED_MAX)
            }
            Class::Latency => 0,
        };
        Some((bytes, item))
    }

    /// The next of all.
    pub(super) fn pop(&mut self) -> Option<(u32, T)> {
        self.pop_of(self.next_class()?)
    }

    /// Takes out what is not wanted any more.
    pub(super) fn remove(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for ring in &mut self.rings {
            for waiting in &mut ring.parties {
                let before = waiting.items.len();
                waiting.items.retain(|(_, item)| {
                    let stays = !unwanted(item);
                    if !stays {
                        removed.push(*item);
                    }
                    stays
                });
                ring.count -= before - waiting.items.len();
            }
            ring.parties.retain(|waiting| !waiting.items.is_empty());
        }
        removed
    }
}

impl<T: Copy> Ring<T> {
    /// The next. The list of a party that has nothing more goes to `spare`.
    fn pop(&mut self, spare: &mut Vec<Line<T>>) -> Option<(u32, T)> {
        loop {
            let front = self.parties.front_mut()?;
            if !std::mem::replace(&mut front.served, true) {
                front.deficit += QUANTUM * u64::from(front.weight.max(1));
            }
            let &(bytes, _) = front.items.front()?;
            if u64::from(bytes) <= front.deficit {
                front.deficit -= u64::from(bytes);
                let next = front.items.pop_front();
                self.count -= 1;
                if front.items.is_empty()
                    && let Some(gone) = self.parties.pop_front()
                    && spare.len() < SPARE_MAX
                {
                    spare.push(gone.items);
                }
                return next;
            }
            front.served = false;
            // One alone needs no turns.
            if self.parties.len() > 1 {
                self.parties.rotate_left(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flow(client: u32, class: Class, weight: u8) -> Flow {
        Flow { party: Party::Client(SessionId(client)), class, weight }
    }

    /// What each of some parties moves of so many bytes while all have something that waits.
    fn shares(parties: &[(Flow, u32)], bytes: u64) -> Vec<u64> {
        let mut fair = Fair::default();
        let mut moved = vec![0; parties.len()];
        for (index, &(flow, length)) in parties.iter().enumerate() {
            fair.push(flow, length, index);
            fair.push(flow, length, index);
        }
        while moved.iter().sum::<u64>() < bytes {
            let (length, index) = fair.pop().expect("all have something");
            moved[index] += u64::from(length);
            fair.push(parties[index].0, length, index);
        }
        moved
    }

    #[test]
    fn shares_are_of_bytes_by_weight_whatever_the_lengths() {
        let bulk = |client, weight| flow(client, Class::Bulk, weight);
        let parties = [
            (bulk(1, 1), 1 << 20),
            (bulk(2, 3), 4096),
            (bulk(3, 3), 300_000),
            (bulk(4, 1), 65_536),
        ];
        let moved = shares(&parties, 800 << 20);
        for (moved, expected) in moved.into_iter().zip([100, 300, 300, 100]) {
            let off = moved.abs_diff(expected << 20);
            assert!(off <= 1 << 20, "{moved} of {expected} MiB");
        }
    }

    #[test]
    fn what_is_urgent_goes_first_and_bulk_has_its_part() {
        let parties = [
            (flow(1, Class::Bulk, 200), 1 << 20),
            (flow(2, Class::Latency, 1), 4096),
            (flow(3, Class::Latency, 1), 4096),
        ];
        let moved = shares(&parties, 100 << 20);
        let off = moved[0].abs_diff(20 << 20);
        assert!(off <= 1 << 20, "{moved:?}");
        // One that comes when none was there for a while does not wait for what bulk has saved up.
        let mut fair = Fair::default();
        for _ in 0..4 {
            fair.push(parties[0].0, 1 << 20, 0);
        }
        assert_eq!(fair.pop(), Some((1 << 20, 0)));
        fair.push(parties[1].0, 4096, 1);
        assert_eq!(fair.pop(), Some((4096, 1)));
    }

    #[test]
    fn a_party_that_comes_back_has_saved_nothing() {
        let mut fair = Fair::default();
        let (one, two) = (flow(1, Class::Bulk, 1), flow(2, Class::Bulk, 1));
        fair.push(one, 1, 1);
        assert_eq!(fair.pop(), Some((1, 1)));
        for _ in 0..100 {
            fair.push(one, 64 * 1024, 1);
            fair.push(two, 64 * 1024, 2);
        }
        let first: Vec<i32> = (0..20).filter_map(|_| fair.pop()).map(|(_, item)| item).collect();
        assert_eq!(first.iter().filter(|&&item| item == 1).count(), 10, "{first:?}");
    }

    proptest! {
        /// Nothing is lost, nothing comes twice, and a party's own pieces keep their order.
        #[test]
        fn all_come_once_and_in_their_partys_order(
            pieces in prop::collection::vec((0u32..5, any::<bool>(), 1u32..2_000_000, 0u8..4), 0..200),
            unwanted in 0usize..7,
        ) {
            let mut fair = Fair::default();
            for (number, &(client, bulk, bytes, weight)) in pieces.iter().enumerate() {
                let class = if bulk { Class::Bulk } else { Class::Latency };
                fair.push(flow(client, class, weight), bytes, number);
            }
            let removed = fair.remove(|number| number % 7 == unwanted);
            let mut seen: Vec<usize> = removed;
            let mut last = std::collections::HashMap::new();
            while let Some((bytes, number)) = fair.pop() {
                let (client, bulk, wanted, _) = pieces[number];
                prop_assert_eq!(bytes, wanted);
                prop_assert!(last.insert((client, bulk), number).is_none_or(|before| before < number));
                seen.push(number);
            }
            prop_assert!(fair.is_empty());
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..pieces.len()).collect::<Vec<_>>());
        }
    }
}
