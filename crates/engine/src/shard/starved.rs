//! Work that found no memory, or no place for an operation, and the order in which it tries again.
//!
//! Whenever anything ends, all of it tries again, because nobody knows what has become free and who
//! wants it. Those that try first get it. So the order is by turns: between nodes and clients of
//! this one, and between the clients of a node. A party has one try in a round, and whoever got
//! something since is behind the others. Inside a party the order is that of its requests.
//!
//! Weights count at devices and on connections, where bytes are moved. What is kept here is only
//! that nobody who waits is passed over.

use std::collections::{HashMap, VecDeque};

use super::fair::Party;

/// Parties and what they have that waits.
#[derive(Debug)]
pub(super) struct Starved<T> {
    houses: HashMap<Party, House<T>>,
    len: usize,
    /// Counts what parties got.
    given: u64,
    /// Counts parties that began to wait.
    born: u64,
}

/// A client of this node, or another node with its clients.
#[derive(Debug)]
struct House<T> {
    place: Place,
    lines: HashMap<Party, Line<T>>,
}

#[derive(Debug)]
struct Line<T> {
    place: Place,
    works: VecDeque<T>,
}

/// Where one stands among the others: when it got something last, then when it began to wait.
type Place = (u64, u64);

impl<T> Default for Starved<T> {
    fn default() -> Self {
        Self { houses: HashMap::new(), len: 0, given: 0, born: 0 }
    }
}

impl<T> Starved<T> {
    /// How many pieces of work wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Has work of a party wait, behind what the party has.
    pub(super) fn push(&mut self, party: Party, work: T) {
        self.len += 1;
        self.born += 1;
        // One that is new has its turn when those that wait have had theirs.
        let place = (self.given, self.born);
        let house = self
            .houses
            .entry(party.household())
            .or_insert_with(|| House { place, lines: HashMap::new() });
        let line =
            house.lines.entry(party).or_insert_with(|| Line { place, works: VecDeque::new() });
        line.works.push_back(work);
    }

    /// A party got something. If it still waits, the others are before it now.
    pub(super) fn give(&mut self, party: Party) {
        self.given += 1;
        if let Some(house) = self.houses.get_mut(&party.household()) {
            house.place.0 = self.given;
            if let Some(line) = house.lines.get_mut(&party) {
                line.place.0 = self.given;
            }
        }
    }

    /// All that waits, in the order in which it may try. Places are kept for those that find
    /// nothing.
    pub(super) fn take(&mut self) -> Vec<T> {
        if self.len == 0 {
            return Vec::new();
        }
        self.len = 0;
        // What has not come back since the last time does not wait any more.
        self.houses.retain(|_, house| {
            house.lines.retain(|_, line| !line.works.is_empty());
            !house.lines.is_empty()
        });
        let houses = self.houses.values_mut();
        in_turn(houses.map(|house| (house.place, house.take().into())).collect())
    }
}

impl<T> House<T> {
    fn take(&mut self) -> Vec<T> {
        let lines = self.lines.values_mut();
        in_turn(lines.map(|line| (line.place, std::mem::take(&mut line.works))).collect())
    }
}

/// One of each in the order of their places, again and again.
fn in_turn<T>(mut lines: Vec<(Place, VecDeque<T>)>) -> Vec<T> {
    lines.sort_unstable_by_key(|&(place, _)| place);
    let mut works = Vec::with_capacity(lines.iter().map(|(_, line)| line.len()).sum());
    while !lines.is_empty() {
        works.extend(lines.iter_mut().filter_map(|(_, line)| line.pop_front()));
        lines.retain(|(_, line)| !line.is_empty());
    }
    works
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::keys::LinkKey;
    use crate::shard::slab::Key;
    use piped_core::ids::SessionId;

    fn client(number: u32) -> Party {
        Party::Client(SessionId(number))
    }

    /// Wakes with one thing free at a time: the first that tries gets it, and wants no more, or
    /// (`greedy`) as much again. All others find nothing. Who got it each time.
    fn wake(
        starved: &mut Starved<u64>,
        times: usize,
        party_of: impl Fn(u64) -> Party,
        greedy: bool,
    ) -> Vec<u64> {
        let mut got = Vec::new();
        for _ in 0..times {
            for (number, work) in starved.take().into_iter().enumerate() {
                if number == 0 {
                    starved.give(party_of(work));
                    got.push(work);
                }
                if number > 0 || greedy {
                    starved.push(party_of(work), work);
                }
            }
        }
        got
    }

    #[test]
    fn who_asks_for_much_does_not_stand_before_all_others() {
        let party_of = |it: u64| client(u32::from(it == 4 || it == 5));
        let mut starved = Starved::default();
        (0..6).for_each(|place| starved.push(party_of(place), place));
        assert_eq!(starved.len(), 6);
        let order = wake(&mut starved, 7, party_of, false);
        assert_eq!(order, [0, 4, 1, 5, 2, 3]);
        assert_eq!(starved.len(), 0);
    }

    #[test]
    fn one_that_always_wants_more_has_one_thing_a_round() {
        let party_of = |it: u64| client(if it == 0 { 0 } else { 1 });
        let mut starved = Starved::default();
        (0..3).for_each(|place| starved.push(party_of(place), place));
        let order = wake(&mut starved, 6, party_of, true);
        assert_eq!(order, [0, 1, 0, 1, 0, 1], "the other's first one before its second");
    }

    #[test]
    fn a_node_with_many_clients_has_the_turns_of_one() {
        let link: LinkKey = Key::from_bits(1 << 32);
        let party_of = |it: u64| match (0..8).find(|&place| it == place) {
            Some(place) => Party::Peer(link, place as u32),
            None => client(0),
        };
        let mut starved = Starved::default();
        (0..12).for_each(|place| starved.push(party_of(place), place));
        let order = wake(&mut starved, 12, party_of, false);
        let own = |it: &&u64| party_of(**it) == client(0);
        assert_eq!(order[..8].iter().filter(own).count(), 4, "{order:?}");
        assert_eq!(order.len(), 12);
    }

    #[test]
    fn a_newcomer_has_its_turn_within_a_round() {
        let party_of =
            |it: u64| client((0..40).find(|&place| it == place).unwrap_or(0) as u32 / 10);
        let mut starved = Starved::default();
        (0..30).for_each(|place| starved.push(party_of(place), place));
        wake(&mut starved, 7, party_of, false);
        (30..40).for_each(|place| starved.push(party_of(place), place));
        let order = wake(&mut starved, 4, party_of, false);
        assert!(order.contains(&30), "{order:?}");
    }
}
