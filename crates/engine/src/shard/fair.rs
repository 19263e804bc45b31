//! Who goes next on a stage that several share: what is urgent first, and by turns inside a class.
//!
//! Inside a class it is deficit round robin (Shreedhar and Varghese, 1995): in its turn a party may
//! move bytes in proportion to its weight, and keeps what it did not use as long as it has
//! something that waits. So shares are of bytes, whatever the lengths of the pieces. The turn of
//! the heaviest is [`QUANTUM`], so that weights make the others' turns shorter and nobody's longer.
//!
//! Turns are taken twice: clients of this node and peers among each other, and the clients of a
//! peer among each other. How many clients a peer has, and what they weigh, are its own words:
//! together they weigh [`PEER_WEIGHT_MAX`] at most.
//!
//! The latency class goes before the bulk class, but for what bulk is guaranteed: a byte for every
//! [`LATENCY_PER_BULK`] of the others, saved up while it waits.

use std::collections::VecDeque;

use piped_core::ids::SessionId;
use piped_core::limits::PEER_WEIGHT_MAX;
use piped_core::request::Class;

use super::keys::LinkKey;

/// The party that pays for a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Party {
    /// A client of this node.
    Client(SessionId),
    /// A client of a peer, by the peer's number for it.
    Peer(LinkKey, u32),
}

impl Party {
    /// The party of what belongs to nobody.
    pub(super) const NOBODY: Self = Self::Client(SessionId(0));

    /// Names the party among all parties of the node: a peer counts with all its clients.
    pub(super) fn household(self) -> Self {
        match self {
            Self::Client(_) => self,
            Self::Peer(link, _) => Self::Peer(link, 0),
        }
    }
}

/// How a piece of work stands among the others: who pays, which class, and what weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) party: Party,
    pub(super) class: Class,
    /// Its share beside the others of its class; at least 1.
    pub(super) weight: u8,
}

impl Flow {
    /// The flow of work that is gone.
    pub(super) const NONE: Self = Self { party: Party::NOBODY, class: Class::Bulk, weight: 1 };
}

/// What the heaviest may move in a turn, in bytes.
const QUANTUM: u64 = 64 * 1024;

/// Bytes of the latency class for a byte that bulk is guaranteed: a fifth of the stage is bulk's.
const LATENCY_PER_BULK: u64 = 4;

/// What bulk saves up at most, in bytes: the longest piece.
const SAVED_MAX: u64 = piped_core::limits::FRAGMENT_BYTES_MAX as u64;

/// Turns that are kept for who comes next, so that one request after the other allocates nothing.
const SPARE_MAX: usize = 64;

/// What a party of this node weighs at most.
fn most_of(party: Party) -> u64 {
    match party {
        Party::Client(_) => u64::MAX,
        Party::Peer(..) => PEER_WEIGHT_MAX,
    }
}

/// Orders waiting work of all parties: latency before bulk, by turns inside a class.
#[derive(Debug)]
pub(super) struct Fair<T> {
    /// Waiting work of the latency class, and that of the bulk class.
    classes: [Households<T>; 2],
    counts: [usize; 2],
    /// Bytes that bulk may move before the latency class.
    saved: u64,
}

/// Clients of this node, and peers with theirs.
type Households<T> = Turns<Turns<VecDeque<(u32, T)>>>;

/// Parties that have something that waits, in turn.
#[derive(Debug)]
struct Turns<L> {
    turns: VecDeque<Turn<L>>,
    spare: Vec<Turn<L>>,
}

#[derive(Debug)]
struct Turn<L> {
    party: Party,
    weight: u64,
    /// Bytes that it may move still.
    deficit: u64,
    /// The party was given what it gets in this turn.
    served: bool,
    line: L,
}

/// What a party has that waits.
trait Line {
    type Item: Copy;
    /// The bytes of the next; none if there is none.
    fn next_bytes(&mut self) -> Option<u32>;
    fn pop(&mut self) -> Option<(u32, Self::Item)>;
    /// Takes out what is not wanted any more.
    fn remove(&mut self, unwanted: &mut dyn FnMut(&Self::Item) -> bool, out: &mut Vec<Self::Item>);
    fn is_empty(&self) -> bool;
    /// Weights of all clients that wait, added up; none for a client's own line.
    fn weight_now(&self) -> Option<u64> {
        None
    }
}

impl<T: Copy> Line for VecDeque<(u32, T)> {
    type Item = T;

    fn next_bytes(&mut self) -> Option<u32> {
        self.front().map(|&(bytes, _)| bytes)
    }

    fn pop(&mut self) -> Option<(u32, T)> {
        self.pop_front()
    }

    fn remove(&mut self, unwanted: &mut dyn FnMut(&T) -> bool, out: &mut Vec<T>) {
        self.retain(|(_, item)| {
            let stays = !unwanted(item);
            if !stays {
                out.push(*item);
            }
            stays
        });
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

impl<L: Line> Line for Turns<L> {
    type Item = L::Item;

    /// Goes on to the party whose turn it is and that may move its next piece.
    fn next_bytes(&mut self) -> Option<u32> {
        if self.turns.len() == 1 {
            // Alone, a party moves what it has, and saves nothing up.
            let only = self.turns.front_mut()?;
            let bytes = only.line.next_bytes()?;
            (only.deficit, only.served) = (bytes.into(), true);
            return Some(bytes);
        }
        let heaviest = self.turns.iter().map(|turn| turn.weight).max()?.max(1);
        let quantum = |weight: u64| (QUANTUM * weight / heaviest).max(1);
        loop {
            for _ in 0..self.turns.len() {
                let front = self.turns.front_mut()?;
                if !std::mem::replace(&mut front.served, true) {
                    front.deficit += quantum(front.weight);
                }
                let bytes = front.line.next_bytes()?;
                if u64::from(bytes) <= front.deficit {
                    return Some(bytes);
                }
                front.served = false;
                self.turns.rotate_left(1);
            }
            // Nobody has enough: as many rounds at once as the first one needs that will.
            let needed = |turn: &mut Turn<L>| {
                let bytes = u64::from(turn.line.next_bytes().unwrap_or(0));
                bytes.saturating_sub(turn.deficit).div_ceil(quantum(turn.weight))
            };
            let rounds = self.turns.iter_mut().map(needed).min()?.saturating_sub(1);
            for turn in &mut self.turns {
                turn.deficit += rounds * quantum(turn.weight);
            }
        }
    }

    fn pop(&mut self) -> Option<(u32, Self::Item)> {
        let bytes = self.next_bytes()?;
        let front = self.turns.front_mut()?;
        front.deficit -= u64::from(bytes);
        let next = front.line.pop();
        if let Some(weight) = front.line.weight_now() {
            front.weight = weight.min(most_of(front.party));
        }
        if front.line.is_empty() {
            self.retire_front();
        }
        next
    }

    fn remove(&mut self, unwanted: &mut dyn FnMut(&Self::Item) -> bool, out: &mut Vec<Self::Item>) {
        for _ in 0..self.turns.len() {
            let Some(front) = self.turns.front_mut() else { return };
            front.line.remove(unwanted, out);
            if front.line.is_empty() {
                self.retire_front();
            } else {
                self.turns.rotate_left(1);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn weight_now(&self) -> Option<u64> {
        Some(self.weight())
    }
}

impl<L> Turns<L> {
    const fn new() -> Self {
        Self { turns: VecDeque::new(), spare: Vec::new() }
    }

    fn weight(&self) -> u64 {
        self.turns.iter().map(|turn| turn.weight).sum()
    }

    /// The party's turn, at the end if it had nothing.
    fn of(&mut self, party: Party, weight: u64, line: impl FnOnce() -> L) -> &mut Turn<L> {
        let place = self.turns.iter().position(|turn| turn.party == party).unwrap_or_else(|| {
            let (deficit, served) = (0, false);
            let line = self.spare.pop().map_or_else(line, |spare| spare.line);
            self.turns.push_back(Turn { party, weight, deficit, served, line });
            self.turns.len() - 1
        });
        let turn = &mut self.turns[place];
        turn.weight = weight;
        turn
    }

    /// Retires the front party, which has nothing more that waits.
    fn retire_front(&mut self) {
        if let Some(turn) = self.turns.pop_front()
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(turn);
        }
    }
}

impl<T: Copy> Default for Fair<T> {
    fn default() -> Self {
        Self { classes: [Turns::new(), Turns::new()], counts: [0; 2], saved: 0 }
    }
}

impl<T: Copy> Fair<T> {
    /// How many pieces of work wait, in both classes.
    pub(super) fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of a class wait.
    pub(super) fn count(&self, class: Class) -> usize {
        self.counts[class as usize]
    }

    /// Whether more than one party has something that waits.
    pub(super) fn is_shared(&self) -> bool {
        let clients = self.classes.iter().flat_map(|class| &class.turns);
        clients.map(|household| household.line.turns.len()).sum::<usize>() > 1
    }

    /// The last of its party's line.
    pub(super) fn push(&mut self, flow: Flow, bytes: u32, item: T) {
        let Flow { party, class, weight } = flow;
        self.counts[class as usize] += 1;
        let household = self.classes[class as usize].of(party.household(), 0, Turns::new);
        let client = household.line.of(party, weight.max(1).into(), VecDeque::new);
        client.line.push_back((bytes, item));
        household.weight = household.line.weight().min(most_of(party));
    }

    /// Whether bulk has saved up enough to go before the latency class.
    fn is_bulks_turn(&mut self) -> bool {
        let next = self.classes[Class::Bulk as usize].next_bytes();
        next.is_some_and(|bytes| self.saved >= bytes.into())
    }

    /// The class whose turn it is. `urgent`: something of the latency class has just come, and does
    /// not wait yet.
    pub(super) fn next_class(&mut self, urgent: bool) -> Option<Class> {
        match (urgent || self.count(Class::Latency) > 0, self.count(Class::Bulk) > 0) {
            (false, false) => None,
            (false, true) => Some(Class::Bulk),
            (true, true) if self.is_bulks_turn() => Some(Class::Bulk),
            (true, _) => Some(Class::Latency),
        }
    }

    /// The next of a class, and its bytes.
    pub(super) fn pop_of(&mut self, class: Class) -> Option<(u32, T)> {
        let (bytes, item) = self.classes[class as usize].pop()?;
        self.counts[class as usize] -= 1;
        self.book(class, bytes);
        Some((bytes, item))
    }

    /// Something of a class goes, or went past those that wait.
    pub(super) fn book(&mut self, class: Class, bytes: u32) {
        self.saved = match class {
            Class::Bulk => self.saved.saturating_sub(bytes.into()),
            Class::Latency if self.count(Class::Bulk) > 0 => {
                (self.saved + u64::from(bytes) / LATENCY_PER_BULK).min(SAVED_MAX)
            }
            Class::Latency => 0,
        };
    }

    /// The next of all.
    pub(super) fn pop(&mut self) -> Option<(u32, T)> {
        let class = self.next_class(false)?;
        self.pop_of(class)
    }

    /// Takes out what is not wanted any more.
    pub(super) fn remove(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for (class, count) in self.classes.iter_mut().zip(&mut self.counts) {
            let before = removed.len();
            class.remove(&mut unwanted, &mut removed);
            *count -= removed.len() - before;
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::slab::Key;
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
    fn a_peer_weighs_no_more_than_it_may_whatever_it_says_of_its_clients() {
        let link = Key::from_bits(1);
        let local = flow(1, Class::Bulk, 4);
        let mut parties = vec![(local, 4096)];
        for client in 0..64 {
            let party = Party::Peer(link, client);
            parties.push((Flow { party, class: Class::Bulk, weight: 255 }, 1 << 20));
        }
        let moved = shares(&parties, 680 << 20);
        let off = moved[0].abs_diff(40 << 20);
        assert!(off <= 4 << 20, "{moved:?}");
        // And they have equal parts of it.
        let (least, most) = (moved[1..].iter().min(), moved[1..].iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1 << 20), "{moved:?}");
    }

    #[test]
    fn a_heavy_party_does_not_make_the_turns_of_others_rare() {
        let (light, heavy) = (flow(1, Class::Bulk, 1), flow(2, Class::Bulk, 255));
        let mut fair = Fair::default();
        for _ in 0..1000 {
            fair.push(heavy, 64 * 1024, 2);
        }
        fair.push(light, 256, 1);
        let before = std::iter::from_fn(|| fair.pop()).take_while(|&(_, item)| item == 2).count();
        assert!(before <= 2, "{before} of the heavy one's went first");
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
            pieces in prop::collection::vec(
                (0u32..5, any::<bool>(), 1u32..2_000_000, 0u8..4),
                0..200,
            ),
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
                let before = last.insert((client, bulk), number);
                prop_assert!(before.is_none_or(|before| before < number));
                seen.push(number);
            }
            prop_assert!(fair.is_empty());
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..pieces.len()).collect::<Vec<_>>());
        }
    }
}
