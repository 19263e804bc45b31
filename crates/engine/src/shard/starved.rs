//! Work that found no memory, or no place for an operation, and the order in which it tries again.
//!
//! Whenever anything ends, all of it tries again, because nobody knows what has become free and who
//! wants it. Those that try first get it. So the order is by turns: between nodes and clients of
//! this one, and between the clients of a node. A party has one try in a round, and whoever got
//! something since the last time is behind the others. Inside a party the order is that of its
//! requests.
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
    order: Vec<(Place, Party)>,
}

/// A client of this node, or another node with its clients.
#[derive(Debug)]
struct House<T> {
    place: Place,
    lines: HashMap<Party, Line<T>>,
    order: Vec<(Place, Party)>,
    /// What the house tries, in order.
    works: VecDeque<T>,
}

#[derive(Debug)]
struct Line<T> {
    place: Place,
    works: VecDeque<T>,
    /// Pieces of work that tried the last time, and those of them that found nothing.
    tried: usize,
    back: usize,
}

/// Where one stands among the others: when it got something last, then when it began to wait.
type Place = (u64, u64);

impl<T> Default for Starved<T> {
    fn default() -> Self {
        Self { houses: HashMap::new(), len: 0, given: 0, born: 0, order: Vec::new() }
    }
}

impl<T> Starved<T> {
    /// Whether nothing waits, and nothing that tried the last time is to be noted.
    pub(super) fn is_empty(&self) -> bool {
        self.houses.is_empty()
    }

    /// How many pieces of work wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Has work of a party wait, behind what the party has. `again`: it has just tried.
    pub(super) fn push(&mut self, party: Party, work: T, again: bool) {
        self.len += 1;
        self.born += 1;
        // One that is new has its turn when those that wait have had theirs.
        let place = (self.given, self.born);
        let house = self.houses.entry(party.household()).or_insert_with(|| House {
            place,
            lines: HashMap::new(),
            order: Vec::new(),
            works: VecDeque::new(),
        });
        let line = house.lines.entry(party).or_insert_with(|| Line {
            place,
            works: VecDeque::new(),
            tried: 0,
            back: 0,
        });
        line.works.push_back(work);
        line.back += usize::from(again);
    }

    /// A party got some of what it wants. If it waits for more, the others are before it now.
    pub(super) fn give(&mut self, party: Party) {
        self.given += 1;
        if let Some(house) = self.houses.get_mut(&party.household())
            && let Some(line) = house.lines.get_mut(&party)
        {
            (house.place.0, line.place.0) = (self.given, self.given);
        }
    }

    /// All that waits, in the order in which it may try, behind what is in `works`. Places are kept
    /// for those that find nothing.
    pub(super) fn take(&mut self, works: &mut Vec<T>) {
        self.len = 0;
        self.given += 1;
        let given = self.given;
        self.order.clear();
        self.houses.retain(|&party, house| {
            let waits = house.line_up(given);
            if waits {
                self.order.push((house.place, party));
            }
            waits
        });
        self.order.sort_unstable_by_key(|&(place, _)| place);
        in_turn(
            &mut self.order,
            |party| self.houses.get_mut(&party)?.works.pop_front(),
            |work| {
                works.push(work);
            },
        );
    }
}

impl<T> House<T> {
    /// Puts what the house has in order. `false`: nothing waits.
    fn line_up(&mut self, given: u64) -> bool {
        self.order.clear();
        self.lines.retain(|&party, line| {
            // What has not come back got what it wanted, or is over.
            if line.back < line.tried {
                (self.place.0, line.place.0) = (given, given);
            }
            (line.tried, line.back) = (line.works.len(), 0);
            if line.tried > 0 {
                self.order.push((line.place, party));
            }
            line.tried > 0
        });
        self.order.sort_unstable_by_key(|&(place, _)| place);
        let works = &mut self.works;
        in_turn(
            &mut self.order,
            |party| self.lines.get_mut(&party)?.works.pop_front(),
            |work| {
                works.push_back(work);
            },
        );
        !self.works.is_empty()
    }
}

/// One of each party in this order, again and again, until no party has more.
fn in_turn<T>(
    order: &mut Vec<(Place, Party)>,
    mut next: impl FnMut(Party) -> Option<T>,
    mut put: impl FnMut(T),
) {
    while !order.is_empty() {
        order.retain(|&(_, party)| match next(party) {
            Some(work) => {
                put(work);
                true
            }
            None => false,
        });
    }
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
            let mut works = Vec::new();
            starved.take(&mut works);
            for (number, work) in works.into_iter().enumerate() {
                if number == 0 {
                    got.push(work);
                    if greedy {
                        starved.give(party_of(work));
                    }
                }
                if number > 0 || greedy {
                    starved.push(party_of(work), work, true);
                }
            }
        }
        got
    }

    #[test]
    fn who_asks_for_much_does_not_stand_before_all_others() {
        let party_of = |it: u64| client(u32::from(it == 4 || it == 5));
        let mut starved = Starved::default();
        (0..6).for_each(|place| starved.push(party_of(place), place, false));
        assert_eq!(starved.len(), 6);
        let order = wake(&mut starved, 7, party_of, false);
        assert_eq!(order, [0, 4, 1, 5, 2, 3]);
        assert_eq!(starved.len(), 0);
    }

    #[test]
    fn one_that_always_wants_more_has_one_thing_a_round() {
        let party_of = |it: u64| client(if it == 0 { 0 } else { 1 });
        let mut starved = Starved::default();
        (0..3).for_each(|place| starved.push(party_of(place), place, false));
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
        (0..12).for_each(|place| starved.push(party_of(place), place, false));
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
        (0..30).for_each(|place| starved.push(party_of(place), place, false));
        wake(&mut starved, 7, party_of, false);
        (30..40).for_each(|place| starved.push(party_of(place), place, false));
        let order = wake(&mut starved, 4, party_of, false);
        assert!(order.contains(&30), "{order:?}");
    }
}
