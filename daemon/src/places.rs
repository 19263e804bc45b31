//! Places at a socket or port, for connections that are not served yet.
//!
//! Any user that may connect can connect often, and stay silent. So places are shared: some are
//! kept for operators. Once all others are taken, a newcomer gets the place of the oldest silent
//! connection of the party that has the most. A party that takes all places so takes them from
//! itself. A connection is silent if nothing is under way for it here: it has not asked yet, or has
//! its answer.
//!
//! A connection that has to leave counts until its socket is closed, which may hang
//! ([`crate::closing`]). A party may have as many leaving connections as may be in, and all parties
//! together some times that; trusted ones are counted apart. So a party with sockets that do not
//! close harms only itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Most connections for each place, with those that leave.
const LEAVING: usize = 4;

/// Numbers of places by kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Places for all parties.
    pub(crate) all: usize,
    /// Places among them for trusted parties alone.
    pub(crate) reserved: usize,
    /// Places for one party that is not trusted.
    pub(crate) each: usize,
}

impl Bounds {
    /// The most connections, with those that leave.
    pub(crate) const fn connections(self) -> usize {
        let kinds = if self.reserved == 0 { 1 } else { 2 };
        kinds * LEAVING * self.all
    }
}

/// Places of a socket. `K` tells parties apart.
#[derive(Debug)]
pub(crate) struct Places<K>(Arc<Mutex<Table<K>>>);

#[derive(Debug)]
struct Table<K> {
    bounds: Bounds,
    /// Guests by number, which only grows.
    guests: BTreeMap<u64, Guest<K>>,
    last: u64,
}

#[derive(Debug)]
struct Guest<K> {
    party: K,
    trusted: bool,
    /// Time since which it has been silent; `None` while it is served.
    silent_since: Option<u64>,
    /// Tells it to leave; `None` once it was told.
    leave: Option<oneshot::Sender<()>>,
}

/// A place that is free again when dropped.
#[derive(Debug)]
pub(crate) struct Place<K: Party> {
    number: u64,
    table: Arc<Mutex<Table<K>>>,
}

/// Properties that tell parties apart.
pub(crate) trait Party: Copy + Ord + std::fmt::Debug + Send + 'static {}
impl<K: Copy + Ord + std::fmt::Debug + Send + 'static> Party for K {}

/// A connection that has a place.
#[derive(Debug)]
pub(crate) struct Admitted<K: Party> {
    pub(crate) place: Arc<Place<K>>,
    /// Resolves when another one needs the place.
    pub(crate) displaced: oneshot::Receiver<()>,
}

impl<K: Party> Places<K> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Mutex::new(Table { bounds, guests: BTreeMap::new(), last: 0 })))
    }

    /// Place for a newcomer; none, if all those are served that it could take one from.
    pub(crate) fn enter(&self, party: K, trusted: bool) -> Option<Admitted<K>> {
        let mut table = self.0.lock();
        if !table.makes_room(party, trusted) {
            return None;
        }
        let (leave, displaced) = oneshot::channel();
        let number = table.next();
        let guest = Guest { party, trusted, silent_since: Some(number), leave: Some(leave) };
        table.guests.insert(number, guest);
        let place = Arc::new(Place { number, table: Arc::clone(&self.0) });
        Some(Admitted { place, displaced })
    }
}

impl<K: Party> Place<K> {
    /// Marks it as served, so that it keeps its place.
    pub(crate) fn is_served(&self) {
        if let Some(guest) = self.table.lock().guests.get_mut(&self.number) {
            guest.silent_since = None;
        }
    }

    /// Marks it as silent again, because it has its answer.
    pub(crate) fn was_served(&self) {
        let mut table = self.table.lock();
        let now = table.next();
        if let Some(guest) = table.guests.get_mut(&self.number) {
            guest.silent_since = Some(now);
        }
    }
}

impl<K: Party> Drop for Place<K> {
    fn drop(&mut self) {
        self.table.lock().guests.remove(&self.number);
    }
}

impl<K: Party> Table<K> {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Guests that are in, and were not told to leave.
    fn inside(&self) -> impl Iterator<Item = (&u64, &Guest<K>)> {
        self.guests.iter().filter(|(_, guest)| guest.leave.is_some())
    }

    fn has(&self, party: K) -> usize {
        self.inside().filter(|(_, guest)| guest.party == party).count()
    }

    /// Makes room for one more, if possible.
    fn makes_room(&mut self, party: K, trusted: bool) -> bool {
        let Bounds { all, reserved, each } = self.bounds;
        let each = if trusted { all } else { each };
        // Those that leave count as well; trusted and other ones are counted apart.
        let alike = self.guests.values().filter(|guest| guest.trusted == trusted);
        let of_party = self.guests.values().filter(|guest| guest.party == party);
        if of_party.count() >= 2 * each || alike.count() >= LEAVING * all {
            return false;
        }
        let inside = self.inside().count();
        let untrusted = self.inside().filter(|(_, guest)| !guest.trusted).count();
        let is_full = inside >= all || (!trusted && untrusted >= all - reserved);
        let victim = if self.has(party) >= each {
            self.oldest_silent(|guest| guest.party == party)
        } else if is_full {
            self.of_the_greediest(party, trusted)
        } else {
            return true;
        };
        let Some(guest) = victim.and_then(|victim| self.guests.get_mut(&victim)) else {
            return false;
        };
        // A guest that has left by itself is about to free its place.
        let _ = guest.leave.take().map(|leave| leave.send(()));
        true
    }

    fn oldest_silent(&self, is_meant: impl Fn(&Guest<K>) -> bool) -> Option<u64> {
        let silent = self.inside().filter(|(_, guest)| is_meant(guest));
        let since = silent.filter_map(|(&number, guest)| Some((guest.silent_since?, number)));
        since.min().map(|(_, number)| number)
    }

    /// Oldest silent guest of the party that has the most, and more than the newcomer's has. A
    /// trusted newcomer takes the place of one that is not, if there is one.
    fn of_the_greediest(&self, party: K, trusted: bool) -> Option<u64> {
        let least = self.has(party);
        let meant = |among_trusted: bool| {
            let silent = self
                .inside()
                .filter(move |(_, it)| it.trusted == among_trusted && it.silent_since.is_some());
            let parties = silent.map(|(_, guest)| guest.party);
            let enough = |other: &K| {
                *other == party || (trusted && !among_trusted) || self.has(*other) > least
            };
            let greediest = parties.filter(enough).max_by_key(|&it| (self.has(it), it))?;
            self.oldest_silent(|guest| guest.trusted == among_trusted && guest.party == greediest)
        };
        meant(false).or_else(|| if trusted { meant(true) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { all: 8, reserved: 2, each: 5 };

    /// Enters so often, and keeps all places that it gets.
    fn crowd(places: &Places<u32>, party: u32, trusted: bool, count: usize) -> Vec<Admitted<u32>> {
        (0..count).filter_map(|_| places.enter(party, trusted)).collect()
    }

    fn is_told_to_leave(guest: &mut Admitted<u32>) -> bool {
        guest.displaced.try_recv().is_ok()
    }

    #[test]
    fn a_party_that_fills_its_places_takes_them_from_itself() {
        let places = Places::new(BOUNDS);
        let mut others = crowd(&places, 2, false, 1);
        let mut many = crowd(&places, 1, false, 5);
        assert!(!many.iter_mut().any(is_told_to_leave));
        for oldest in 0..5 {
            let newcomer = places.enter(1, false).expect("it makes room itself");
            assert!(is_told_to_leave(&mut many[oldest]), "the oldest first");
            many.push(newcomer);
        }
        // As many leave as may be in: until they are gone there is no place for more.
        assert!(places.enter(1, false).is_none());
        drop(many.drain(..5));
        assert!(places.enter(1, false).is_some());
        assert!(!is_told_to_leave(&mut others[0]), "the others are left alone");
    }

    #[test]
    fn who_is_served_keeps_its_place_and_is_the_last_to_leave_afterwards() {
        let places = Places::new(BOUNDS);
        let mut many = crowd(&places, 1, false, 5);
        many.iter().for_each(|it| it.place.is_served());
        assert!(places.enter(1, false).is_none(), "all are served");
        many[3].place.was_served();
        many[1].place.was_served();
        let newcomer = places.enter(1, false).expect("one has its answer");
        newcomer.place.is_served();
        assert!(is_told_to_leave(&mut many[3]), "it had its answer first");
        assert!(!is_told_to_leave(&mut many[1]));
    }

    #[test]
    fn who_has_the_most_makes_room_for_who_has_less() {
        let places = Places::new(BOUNDS);
        let mut greedy = crowd(&places, 1, false, 4);
        let mut modest = crowd(&places, 2, false, 2);
        let _third = places.enter(3, false).expect("there is always one place for one more party");
        assert!(is_told_to_leave(&mut greedy[0]));
        // Three, two, one: the first party spares the last two.
        let _own = places.enter(1, false).expect("its own");
        assert!(is_told_to_leave(&mut greedy[1]));
        assert!(!modest.iter_mut().any(is_told_to_leave));
    }

    #[test]
    fn parties_with_one_place_each_do_not_take_it_from_each_other() {
        let places = Places::new(BOUNDS);
        let mut all: Vec<_> = (1..=6).filter_map(|party| places.enter(party, false)).collect();
        assert_eq!(all.len(), 6);
        // A party without a place comes in, and the oldest of the others leaves.
        let mut newcomer = places.enter(7, false).expect("it has none");
        assert_eq!(all.iter_mut().filter_map(|it| it.displaced.try_recv().ok()).count(), 1);
        // A party with one place displaces nobody but itself.
        let _own = places.enter(7, false).expect("its own");
        assert!(is_told_to_leave(&mut newcomer));
    }

    #[test]
    fn trusted_ones_always_find_a_place_and_never_lose_it_to_others() {
        let places = Places::new(BOUNDS);
        let crowds: Vec<_> = (1..5).map(|party| crowd(&places, party, false, 20)).collect();
        // Even if all of them are served.
        crowds.iter().flatten().for_each(|it| it.place.is_served());
        let mut root = crowd(&places, 0, true, 2);
        assert_eq!(root.len(), 2);
        crowds.iter().flatten().for_each(|it| it.place.was_served());
        let mut last = places.enter(0, true).expect("one of the others leaves");
        for party in 1..9 {
            crowd(&places, party, false, 20);
        }
        assert!(!root.iter_mut().any(is_told_to_leave) && !is_told_to_leave(&mut last));
        drop((crowds, last));
        // Connections of others that leave and do not close do not either.
        let _hanging: Vec<_> = (1..9).map(|party| crowd(&places, party, false, 99)).collect();
        root.extend(crowd(&places, 0, true, 1));
        assert_eq!(root.len(), 3);
        // Its own silent ones do not keep it out either.
        root.extend(crowd(&places, 0, true, 8));
        assert!(root.iter_mut().filter_map(|it| it.displaced.try_recv().ok()).count() >= 2);
    }
}
