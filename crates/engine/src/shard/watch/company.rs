//! Which requests had company: what they waited for, and whether their prediction can be held
//! against what they took.
//!
//! A prediction is for a path that nobody else uses. A request *waited for nobody* if, from its
//! submission to its end, no other request was at a device or a peer (a *spot*) where it was, and
//! no limit, order, rate or lost lane held it back. A request has at most two spots: where its
//! bytes come from and where they go. For each of them it remembers how many were there when it
//! came and how many had come by then; when it goes, it had company if somebody was there or
//! somebody came. That is a few additions for a request, whatever there are of others, and what it
//! says is exact, within this shard: what another shard or another node does at a device is not
//! seen, but of a read the peer that serves it says whether it had company there.
//!
//! How much of its time went to others is told by bytes: of a spot that moved so many while the
//! request ran, its own have their share of that time. That is an estimate, for people; nothing is
//! planned with it.

use piped_core::ids::{DeviceId, PeerId};
use piped_core::request::Class;
use piped_core::units::Nanos;
use piped_report::shard::Waiting;
use piped_report::tally::HeldBy;

use crate::shard::fair::Party;
use crate::shard::keys::LinkKey;

/// A place where requests meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) enum Spot {
    Device(DeviceId),
    /// A peer that is asked, by whatever lane.
    Peer(PeerId),
    /// A peer that asks.
    Caller(LinkKey),
    /// A peer that asks by way of our second address: another wire.
    Second(LinkKey),
}

/// Where a request's bytes come from, and where they go.
pub(in crate::shard) const SPOTS: usize = 2;

/// Parties whose requests are counted by themselves at a spot. Those of more count as requests of
/// others, also for the party itself.
const PARTIES: usize = 8;

/// A request of at most so many bytes is *short*, and is planned as if alone. What is longer is,
/// too, while short requests come: they would wait for its fragments if these were longer.
const SHORT_BYTES: u64 = 64 * 1024;

/// Requests that came within that time may come again.
const RECENT: Nanos = Nanos::from_millis(100);

/// Spots that there is room for from the start: more than the devices and peers that a node uses at
/// once.
const SPOTS_USED: usize = 64;

/// The requests at a spot.
#[derive(Debug, Clone, Copy, Default)]
struct Guests {
    now: u32,
    /// All that came while somebody was there.
    came: u64,
    /// Bytes that the spot moved meanwhile.
    bytes: u64,
    parties: [Option<(Party, u32)>; PARTIES],
    /// Requests of each class that are not short, and that nothing has held back: one that waits
    /// for its rate, a limit or its order keeps nobody waiting.
    long: [u32; 2],
    /// When something came last for which those of each class should not take longer.
    hurry: [Option<Nanos>; 2],
}

/// How a request stands among those that it meets.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Kind {
    pub(in crate::shard) class: Class,
    /// Its length in bytes.
    pub(in crate::shard) length: u64,
}

/// All spots where somebody is. A spot is looked up when a request comes; from then on the request
/// knows its place.
#[derive(Debug)]
pub(super) struct Company {
    /// In the order of the spots.
    places: Vec<(Spot, u32)>,
    guests: Vec<Guests>,
    free: Vec<u32>,
    /// When a request came last.
    now: Nanos,
}

/// A request at a spot.
#[derive(Debug, Clone, Copy)]
struct Stay {
    spot: Spot,
    /// The number of the spot, for as long as a request is there.
    place: u32,
    party: Party,
    /// The request's class, if it is not short.
    long: Option<Class>,
    /// Whether it is counted among the long ones.
    counts: bool,
    /// What was at the spot when the request came.
    before: Found,
}

/// What a request remembers of a spot: who was there, of them its own party's, who had come, and
/// bytes.
#[derive(Debug, Clone, Copy)]
struct Found {
    there: u32,
    own: u32,
    came: u64,
    bytes: u64,
}

/// Where a request is, and what held it back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stays {
    stays: [Option<Stay>; SPOTS],
    held: u8,
}

/// What became of that.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Met {
    held: u8,
    /// The peer says that it had company there.
    at_peer: bool,
    /// The spot where most of its time went to others, and how much of each second, in thousandths.
    busiest: Option<(Spot, u16)>,
    /// There when it came, of its own party and of others; and came while it ran.
    own: u32,
    others: u32,
    joined: u32,
}

impl Company {
    pub(super) fn new() -> Self {
        Self {
            places: Vec::with_capacity(SPOTS_USED),
            guests: Vec::with_capacity(SPOTS_USED),
            free: Vec::with_capacity(SPOTS_USED),
            now: Nanos::ZERO,
        }
    }

    fn find(&self, spot: Spot) -> Option<u32> {
        let at = self.places.binary_search_by_key(&spot, |(other, _)| *other).ok()?;
        Some(self.places[at].1)
    }

    /// The place of a spot, which is made if nobody has been there. Of spots where nobody is, those
    /// that there is room for from the start stay: most are come to again at once.
    fn place_of(&mut self, spot: Spot) -> u32 {
        if let Some(place) = self.find(spot) {
            return place;
        }
        if self.guests.len() >= SPOTS_USED && self.free.is_empty() {
            let Self { places, guests, free, .. } = self;
            places.retain(|(_, place)| {
                let is_used = guests[*place as usize].now > 0;
                free.extend((!is_used).then_some(*place));
                is_used
            });
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.guests.push(Guests::default());
            self.guests.len() as u32 - 1
        });
        self.guests[place as usize] = Guests::default();
        let at = self.places.partition_point(|(other, _)| *other < spot);
        self.places.insert(at, (spot, place));
        place
    }

    /// A request comes to where it wants something.
    pub(super) fn stay(
        &mut self,
        spots: [Option<Spot>; SPOTS],
        party: Party,
        kind: Kind,
        now: Nanos,
    ) -> Stays {
        self.now = now;
        Stays { stays: spots.map(|spot| spot.map(|spot| self.enter(spot, party, kind))), held: 0 }
    }

    fn enter(&mut self, spot: Spot, party: Party, kind: Kind) -> Stay {
        let (place, now) = (self.place_of(spot), self.now);
        let guests = &mut self.guests[place as usize];
        if guests.now == 0 {
            *guests = Guests { hurry: guests.hurry, ..Guests::default() };
        }
        let long = (kind.length > SHORT_BYTES).then_some(kind.class);
        match long {
            None if kind.length > 0 => guests.hurry = [Some(now); 2],
            // A sync waits for all that was written, however it was cut.
            None => {}
            Some(Class::Latency) => guests.hurry[Class::Bulk as usize] = Some(now),
            Some(Class::Bulk) => {}
        }
        if let Some(class) = long {
            guests.long[class as usize] += 1;
        }
        let of_party =
            |place: &&mut Option<(Party, u32)>| place.as_ref().is_some_and(|(it, _)| *it == party);
        let own = match guests.parties.iter_mut().find(of_party) {
            Some(Some((_, count))) => {
                *count += 1;
                *count - 1
            }
            _ => {
                if let Some(free) = guests.parties.iter_mut().find(|place| place.is_none()) {
                    *free = Some((party, 1));
                }
                0
            }
        };
        let before = Found { there: guests.now, own, came: guests.came, bytes: guests.bytes };
        guests.now += 1;
        guests.came += 1;
        Stay { spot, place, party, long, counts: long.is_some(), before }
    }

    /// A request goes; what it met there: how many came after it, and the bytes that were moved.
    fn leave(&mut self, stay: &Stay) -> (u64, u64) {
        let guests = &mut self.guests[stay.place as usize];
        let met = (guests.came - stay.before.came - 1, guests.bytes - stay.before.bytes);
        guests.now -= 1;
        if let Some(class) = stay.long.filter(|_| stay.counts) {
            guests.long[class as usize] -= 1;
        }
        let place = guests.parties.iter_mut();
        for place in place.filter(|place| place.is_some_and(|(it, _)| it == stay.party)) {
            *place = place.map(|(party, count)| (party, count - 1)).filter(|(_, count)| *count > 0);
        }
        met
    }

    /// A spot has moved bytes for a request, whose stays are given, or for a part of one, which has
    /// none.
    pub(super) fn moved(&mut self, stays: &Stays, spot: Spot, bytes: u64) {
        let stay = stays.stays.iter().flatten().find(|stay| stay.spot == spot);
        let place = match stay {
            Some(stay) => Some(stay.place),
            None => self.find(spot),
        };
        let guests = place.map(|place| &mut self.guests[place as usize]);
        if let Some(guests) = guests.filter(|guests| guests.now > 1) {
            guests.bytes += bytes;
        }
    }

    /// Something keeps a request from going on.
    pub(super) fn hold(&mut self, stays: &mut Stays, by: HeldBy) {
        stays.held |= by.bit();
        for stay in stays.stays.iter_mut().flatten() {
            if let Some(class) = stay.long.filter(|_| std::mem::take(&mut stay.counts)) {
                self.guests[stay.place as usize].long[class as usize] -= 1;
            }
        }
    }

    /// A request that was held goes on.
    pub(super) fn go_on(&mut self, stays: &mut Stays) {
        for stay in stays.stays.iter_mut().flatten() {
            if let Some(class) = stay.long.filter(|_| !std::mem::replace(&mut stay.counts, true)) {
                self.guests[stay.place as usize].long[class as usize] += 1;
            }
        }
    }

    /// How many requests are under way beside one that its fragments would keep waiting: those of
    /// its class where most are, and none while others come that should not wait longer.
    pub(super) fn beside(&self, stays: &Stays) -> u32 {
        let at = |stay: &Stay| {
            let class = stay.long? as usize;
            let guests = &self.guests[stay.place as usize];
            let hurries = guests.hurry[class].is_some_and(|at| self.now.since(at) < RECENT);
            Some(if hurries { 0 } else { guests.long[class] - u32::from(stay.counts) })
        };
        stays.stays.iter().flatten().filter_map(at).max().unwrap_or(0)
    }

    /// Whether a request waited for nobody until now.
    pub(super) fn is_alone(&self, stays: &Stays) -> bool {
        stays.held == 0 && !self.has_met(stays)
    }

    /// Whether somebody was or is where a request is.
    fn has_met(&self, stays: &Stays) -> bool {
        stays.stays.iter().flatten().any(|stay| {
            let came = self.guests[stay.place as usize].came;
            stay.before.there > 0 || came > stay.before.came + 1
        })
    }

    /// A request is over.
    pub(super) fn settle(&mut self, stays: Stays, (own_bytes, at_peer): (u64, bool)) -> Met {
        let mut met = Met { held: stays.held, at_peer, ..Met::default() };
        for stay in stays.stays.iter().flatten() {
            let (joined, bytes) = self.leave(stay);
            let Found { there, own, .. } = stay.before;
            met.own = met.own.max(own);
            met.others = met.others.max(there - own);
            met.joined = met.joined.max(u32::try_from(joined).unwrap_or(u32::MAX));
            // Bytes are counted while there is company: those that it moved alone are its own.
            let others = bytes.saturating_sub(own_bytes);
            let part = others as f64 / (others + own_bytes).max(1) as f64;
            let part = if there > 0 || joined > 0 { (part * 1000.0) as u16 } else { 0 };
            if met.busiest.is_none_or(|(_, before)| part > before) {
                met.busiest = Some((stay.spot, part));
            }
        }
        met
    }
}

impl Met {
    /// Whether the request waited for nobody.
    pub(super) fn alone(&self) -> bool {
        self.own == 0 && self.others == 0 && self.joined == 0 && self.held == 0 && !self.at_peer
    }

    /// Why what it took is not held against its prediction; empty if it is.
    pub(super) fn not_compared(&self) -> &'static str {
        match () {
            () if self.own + self.others + self.joined > 0 => {
                "others were there with it, and predictions are for a path that nobody else uses"
            }
            () if self.held > 0 => "something held it back, of which no prediction knows",
            () if self.at_peer => "the peer that served it says that others were there with it",
            () => "",
        }
    }

    /// In words, of a request that took so long, and began so long after it was submitted. `name`:
    /// of a spot.
    pub(super) fn report(
        &self,
        measured: Nanos,
        held: Nanos,
        name: impl Fn(Spot) -> String,
    ) -> Waiting {
        let held = if self.held == 0 { Nanos::ZERO } else { held.min(measured) };
        let ran = measured.since(held).seconds();
        let shared = self.busiest.map_or(0.0, |(_, part)| ran * f64::from(part) / 1000.0);
        let by = HeldBy::ALL.into_iter().filter(|by| self.held & by.bit() != 0);
        Waiting {
            alone: self.alone(),
            held_seconds: held.seconds(),
            held_by: by.collect(),
            ahead_own: self.own,
            ahead_others: self.others,
            joined: self.joined,
            at_peer: self.at_peer,
            shared_seconds: shared,
            at: self.busiest.map_or_else(String::new, |(spot, _)| name(spot)),
            own_seconds: ran - shared,
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SessionId;

    use super::*;

    const DISK: Spot = Spot::Device(DeviceId(1));
    const PEER: Spot = Spot::Peer(PeerId(2));
    const LONG: Kind = Kind { class: Class::Bulk, length: 1 << 20 };

    fn party(number: u32) -> Party {
        Party::Client(SessionId(number))
    }

    fn at(company: &mut Company, spots: [Option<Spot>; SPOTS], number: u32) -> Stays {
        company.stay(spots, party(number), LONG, Nanos(1))
    }

    #[test]
    fn who_overlaps_met_and_who_follows_did_not() {
        let mut company = Company::new();
        let first = at(&mut company, [Some(DISK), None], 1);
        assert!(!company.has_met(&first));
        assert!(company.settle(first, (10, false)).alone());
        // It came when the other was gone. A third comes, and goes before it does.
        let second = at(&mut company, [Some(DISK), None], 1);
        let third = at(&mut company, [Some(DISK), Some(PEER)], 2);
        company.moved(&third, DISK, 20);
        company.moved(&Stays::default(), DISK, 10);
        let elsewhere = at(&mut company, [Some(PEER), None], 1);
        assert!(company.has_met(&second) && company.has_met(&third));
        let met = company.settle(third, (10, false));
        assert_eq!((met.own, met.others, met.joined, met.alone()), (0, 1, 1, false));
        assert_eq!(met.busiest, Some((DISK, 666)), "20 of 30 bytes were not its own");
        let met = company.settle(second, (20, false));
        assert_eq!((met.own, met.others, met.joined), (0, 0, 1));
        assert!(!company.settle(elsewhere, (0, false)).alone());
        assert!(company.guests.iter().all(|guests| guests.now == 0));
    }

    #[test]
    fn requests_of_the_same_client_are_told_from_those_of_others_as_far_as_there_is_room() {
        let mut company = Company::new();
        let all: Vec<Stays> = (0..3 * PARTIES as u32)
            .map(|number| at(&mut company, [Some(DISK), None], number % (PARTIES as u32 + 1)))
            .collect();
        let last = at(&mut company, [Some(DISK), None], 0);
        // Of one beyond those that there is room for nothing is known but that it is there.
        let beyond = at(&mut company, [Some(DISK), None], PARTIES as u32);
        let met = company.settle(beyond, (0, false));
        assert_eq!((met.own, met.others), (0, 3 * PARTIES as u32 + 1));
        let met = company.settle(last, (0, false));
        assert_eq!((met.own, met.own + met.others, met.joined), (3, 3 * PARTIES as u32, 1));
        all.into_iter().for_each(|stays| assert!(!company.settle(stays, (0, false)).alone()));
        assert!(company.guests.iter().all(|guests| guests.now == 0));
    }

    #[test]
    fn spots_where_nobody_is_make_room_for_others() {
        let mut company = Company::new();
        let peer = |number: usize| Spot::Peer(PeerId(number as u32));
        let stays = at(&mut company, [Some(peer(0)), None], 1);
        for number in 1..4 * SPOTS_USED {
            let other = at(&mut company, [Some(peer(number)), None], 2);
            assert!(company.settle(other, (1, false)).alone(), "nobody else is at {number}");
        }
        assert_eq!(company.guests.len(), SPOTS_USED, "no more than there is room for");
        let other = at(&mut company, [Some(peer(0)), None], 2);
        assert!(company.has_met(&stays) && company.has_met(&other), "it kept its place");
        // Where all are used, there are more.
        let all: Vec<Stays> = (0..2 * SPOTS_USED)
            .map(|number| at(&mut company, [Some(peer(number)), None], 3))
            .collect();
        assert_eq!(company.guests.len(), 2 * SPOTS_USED);
        all.into_iter().skip(1).for_each(|it| assert!(company.settle(it, (1, false)).alone()));
    }

    #[test]
    fn those_that_wait_are_counted_unless_others_must_not_wait_longer() {
        let mut company = Company::new();
        let spots = [Some(DISK), Some(PEER)];
        let mut come = |at: u64, class: Class, length: u64| {
            let stays = company.stay(spots, party(at as u32), Kind { class, length }, Nanos(at));
            (company.beside(&stays), stays)
        };
        let counts = [1, 2, 3].map(|at| come(at, Class::Bulk, 1 << 20).0);
        assert_eq!(counts, [0, 1, 2]);
        // One of the other class, and one of no length to speak of, wait for none of them.
        let (beside, urgent) = come(4, Class::Latency, 1 << 20);
        assert_eq!(beside, 0);
        assert_eq!(come(5, Class::Bulk, 1 << 20).0, 0, "the urgent one would wait for it");
        assert_eq!(come(6, Class::Latency, 1 << 20).0, 1, "they are as urgent");
        assert_eq!(come(6, Class::Latency, 0).0, 0, "a sync");
        let (beside, short) = come(7, Class::Latency, 4096);
        assert_eq!(beside, 0);
        assert_eq!(come(8, Class::Latency, 1 << 20).0, 0);
        // When they have not come for a while the others count again.
        let later = Nanos(8) + RECENT;
        let next = company.stay(spots, party(9), LONG, later);
        assert_eq!([&next, &urgent, &short].map(|stays| company.beside(stays)), [4, 2, 0]);
    }

    #[test]
    fn one_that_is_held_back_keeps_nobody_waiting() {
        let mut company = Company::new();
        let mut all = [1, 2, 3].map(|number| at(&mut company, [Some(DISK), Some(PEER)], number));
        assert_eq!(all.each_ref().map(|stays| company.beside(stays)), [2; 3]);
        for by in [HeldBy::Rate, HeldBy::Limit] {
            company.hold(&mut all[0], by);
            // The one that is held meets those that are not.
            assert_eq!(all.each_ref().map(|stays| company.beside(stays)), [2, 1, 1], "{by:?}");
        }
        for _ in 0..2 {
            company.go_on(&mut all[0]);
            assert_eq!(all.each_ref().map(|stays| company.beside(stays)), [2; 3], "it goes on");
        }
        company.hold(&mut all[1], HeldBy::Order);
        all.into_iter().for_each(|stays| assert!(!company.settle(stays, (0, false)).alone()));
        assert!(company.guests.iter().all(|guests| (guests.now, guests.long) == (0, [0; 2])));
    }

    #[test]
    fn times_add_up_to_what_it_took() {
        let busiest = Some((DISK, 750));
        let met = Met { held: HeldBy::Rate.bit(), joined: 1, busiest, ..Met::default() };
        let told = met.report(Nanos(5000), Nanos(1000), |_| String::from("disk"));
        let times = [told.held_seconds, told.shared_seconds, told.own_seconds];
        for (time, nanos) in times.into_iter().zip([1000.0, 3000.0, 1000.0]) {
            assert!((time - nanos * 1e-9).abs() < 1e-15, "{told:?}");
        }
        assert_eq!((told.held_by, told.at.as_str()), (vec![HeldBy::Rate], "disk"));
        let alone = Met::default().report(Nanos(5000), Nanos(1000), |_| String::new());
        assert!(alone.alone && alone.own_seconds == 5e-6, "what is short of a reason is its own");
    }
}
