//! A file that several nodes have: what reading it takes at each, and how a read is divided.
//!
//! One handle stands for the handles of all replicas. What lies behind a replica (disks, wires,
//! threads) this side does not know, so it is measured: from asking for a part of a read to its
//! last byte, or from the end of the part before, for a replica serves one after the other. The
//! division is that of [`piped_model::ways::level`]: all parts end together, and a replica that has
//! other reads of this handle to do gets less.
//!
//! What a byte takes is kept by how long reads are, apart for parts and for reads that go to one
//! replica whole. Reads go the way that was faster; the other one is tried now and then, ever more
//! seldom. So is a replica that gets nothing.

use piped_core::ids::{HandleId, SessionId};
use piped_core::limits::{REPLICA_REST, REPLICAS_MAX, WAY_UNIT_BYTES, WAYS_BYTES_MIN};
use piped_core::units::Nanos;
use piped_model::ways::{Loaded, level};

use super::super::per_byte::PerByte;
use super::super::tries::{TRY_MOST, Tries};

/// A division is to take less than this part of what the read takes whole: each part costs a
/// request more.
const WORTH: f64 = 0.97;

/// A replica gets at least this part of the bytes of a read, or nothing.
const LEAST_PART: u64 = 64;

/// How often the rest of a replica doubles that fails again and again.
const RESTS_DOUBLED: u32 = 6;

/// What a byte takes somewhere, before anything was measured: it only has to be the same for all.
const GUESS: f64 = 1e-9;

/// What a byte takes at most somewhere that is not called slow, before anything was measured.
const SLOW: f64 = 1e-7;

/// The first read that goes otherwise than the times say.
const TRY_FIRST: u32 = 4;

/// Sizes by octaves, from what devices read at once; the last one has all that are longer.
const SIZES: usize = 16;

/// The replicas of a file that one handle stands for.
#[derive(Debug)]
pub(in crate::shard) struct Replicas {
    session: SessionId,
    length: u64,
    members: Vec<Member>,
    /// When a read of each size goes otherwise than the times say.
    tries: [Tries; SIZES],
    /// The replica that is tried next of reads that go whole.
    turn: usize,
    /// The replica that calls are made of: what one has locked, it has to unlock.
    called: Option<u8>,
}

/// One of the replicas.
#[derive(Debug)]
struct Member {
    handle: HandleId,
    times: Box<[Times; SIZES]>,
    /// Bytes of this handle's reads that it was asked for and has not brought.
    asked: u64,
    /// When the last of them was over.
    ended: Nanos,
    /// How often it has failed since a part of it ended well.
    failures: u32,
    /// Until when it is left alone, because it has failed.
    rests: Nanos,
}

/// What a byte of reads of one size takes at a replica.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    part: PerByte,
    whole: PerByte,
}

/// What of a read one replica is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Share {
    member: u8,
    from: u64,
    to: u64,
}

impl Share {
    /// The number of the replica.
    pub(in crate::shard) fn member(&self) -> u8 {
        self.member
    }

    /// Bytes of the read, from where to where.
    pub(in crate::shard) fn range(&self) -> (u64, u64) {
        (self.from, self.to)
    }
}

/// What each replica is asked for.
pub(in crate::shard) type Shares = [Option<Share>; REPLICAS_MAX];

/// Whom a read may ask, a bit for each replica.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct May {
    /// Replicas that would begin with it now.
    up: u8,
    /// Replicas that can be waited for, too.
    open: u8,
    now: Nanos,
}

impl May {
    /// Whom to ask now: a bit for each that is up, and for each that is open.
    pub(in crate::shard) fn new((up, open): (u8, u8), now: Nanos) -> Self {
        Self { up, open, now }
    }

    /// Only the replicas of a mask.
    pub(in crate::shard) fn only(self, mask: u8) -> Self {
        Self { up: self.up & mask, open: self.open & mask, ..self }
    }

    /// Only the replicas that would begin now.
    pub(in crate::shard) fn at_once(self) -> Self {
        Self { open: 0, ..self }
    }
}

/// A part of a read at a replica, or a whole one: what it was, and how it went.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Brought {
    member: u8,
    /// Bytes of the whole read.
    whole: u64,
    /// Bytes that the replica was asked for.
    asked: u64,
    /// When it was asked, and when it was over.
    begun: Nanos,
    ended: Nanos,
    /// Whether it brought what it was asked for.
    is_done: bool,
}

impl Brought {
    /// So many bytes of `whole` that a replica was asked for and has brought, if it `is_done`.
    pub(in crate::shard) fn new(
        member: u8,
        (whole, asked): (u64, u64),
        (begun, ended): (Nanos, Nanos),
        is_done: bool,
    ) -> Self {
        Self { member, whole, asked, begun, ended, is_done }
    }
}

impl Member {
    fn new(handle: HandleId) -> Self {
        let (asked, ended, rests) = (0, Nanos::ZERO, Nanos::ZERO);
        Self { handle, times: Box::default(), asked, ended, failures: 0, rests }
    }

    /// When it could begin with something more, in seconds, and what a byte of a part takes.
    fn loaded(&self, size: usize, otherwise: f64) -> Loaded {
        let times = &self.times[size];
        let per_byte = times.part.seconds().or(times.whole.seconds()).unwrap_or(otherwise);
        Loaded { per_byte, busy: self.asked as f64 * per_byte }
    }

    /// When so many bytes would be there that it is asked for alone, in seconds; 0 if that is not
    /// known and nothing is under way by which it will be.
    fn end_of_whole(&self, size: usize, bytes: u64) -> f64 {
        match self.times[size].whole.seconds() {
            Some(per_byte) => (self.asked + bytes) as f64 * per_byte,
            None if self.asked == 0 => 0.0,
            None => f64::MAX,
        }
    }
}

impl Replicas {
    /// The replicas of a file of so many bytes; at least one, and at most [`REPLICAS_MAX`].
    pub(in crate::shard) fn new(session: SessionId, length: u64, handles: &[HandleId]) -> Self {
        let members = handles.iter().take(REPLICAS_MAX).map(|it| Member::new(*it)).collect();
        let tries = [Tries::first(TRY_FIRST); SIZES];
        Self { session, length, members, tries, turn: 0, called: None }
    }

    /// The session whose handles they are.
    pub(in crate::shard) fn session(&self) -> SessionId {
        self.session
    }

    /// The length of each of them in bytes.
    pub(in crate::shard) fn length(&self) -> u64 {
        self.length
    }

    /// The handles of all of them, by their numbers.
    pub(in crate::shard) fn handles(&self) -> impl Iterator<Item = HandleId> {
        self.members.iter().map(|member| member.handle)
    }

    /// The handle of one of them.
    pub(in crate::shard) fn handle(&self, member: u8) -> Option<HandleId> {
        self.members.get(usize::from(member)).map(|member| member.handle)
    }

    /// Whom a request asks that is not divided: of those that it may ask the one that has it first.
    pub(in crate::shard) fn one(&self, bytes: u64, may: May) -> Option<u8> {
        self.soonest(self.ready(may), bytes).map(|at| at as u8)
    }

    /// The one of some replicas that would have so many bytes first, asked for all of them.
    fn soonest(&self, ready: u8, bytes: u64) -> Option<usize> {
        let size = size_of(bytes);
        let end = |at: &usize| self.members[*at].end_of_whole(size, bytes);
        bits(ready).min_by(|one, it| end(one).total_cmp(&end(it)))
    }

    /// The replica that calls are made of: one that may be asked at the first call, and that one
    /// from then on.
    pub(in crate::shard) fn called(&mut self, may: May) -> Option<HandleId> {
        self.called = self.called.or_else(|| self.one(0, may));
        self.handle(self.called.unwrap_or_default())
    }

    /// How a read of so many bytes from `offset` is divided.
    pub(in crate::shard) fn choose(&mut self, (offset, bytes): (u64, u64), may: May) -> Shares {
        let (size, ready) = (size_of(bytes), self.ready(may));
        let Some(first) = self.soonest(ready, bytes) else {
            // Nobody has it any more, and whoever is asked will say so.
            return whole(0, bytes);
        };
        let tries = self.tries[size].take(TRY_MOST);
        if ready.count_ones() < 2 || bytes < WAYS_BYTES_MIN {
            let other = bits(ready).cycle().nth(self.turn).filter(|_| tries);
            self.turn = (self.turn + usize::from(tries)) % REPLICAS_MAX;
            return whole(other.unwrap_or(first), bytes);
        }
        let mut ways = Divided::default();
        let otherwise = self.otherwise(size, ready);
        bits(ready).for_each(|at| ways.add(at, self.members[at].loaded(size, otherwise)));
        let least = (bytes / LEAST_PART).max(WAY_UNIT_BYTES);
        let end = ways.divide(bytes, least);
        // What never had a whole read is tried in its turn, and not because of that.
        let known = |at: &usize| self.members[*at].times[size].whole.seconds().is_some();
        let ends =
            bits(ready).filter(known).map(|at| (at, self.members[at].end_of_whole(size, bytes)));
        let alone = ends.min_by(|(_, one), (_, other)| one.total_cmp(other));
        match (alone.filter(|(_, alone)| end >= WORTH * alone), tries, ways.left_out()) {
            (Some((first, _)), false, _) => whole(first, bytes),
            (None, true, None) => {
                let soonest = ways.soonest(bytes);
                self.members[soonest].times[size].whole.forget();
                whole(soonest, bytes)
            }
            (_, tries, left_out) => {
                if let Some(left_out) = left_out.filter(|_| tries)
                    && ways.try_some(left_out, least)
                {
                    self.members[ways.members[left_out]].times[size].part.forget();
                }
                ways.cut(offset, bytes)
            }
        }
    }

    /// What so many bytes of a read of `whole` take at a replica, with what it has to do already,
    /// in seconds.
    pub(in crate::shard) fn expected(&self, member: u8, whole: u64, bytes: u64) -> f64 {
        let loaded = |it: &Member| it.loaded(size_of(whole), SLOW);
        let loaded = self.members.get(usize::from(member)).map(loaded);
        loaded.map_or(0.0, |way| way.busy + bytes as f64 * way.per_byte)
    }

    /// A replica is asked for so many bytes.
    pub(in crate::shard) fn begin(&mut self, member: u8, bytes: u64) {
        if let Some(member) = self.members.get_mut(usize::from(member)) {
            member.asked += bytes;
        }
    }

    /// What a replica was asked for was given up, which says nothing of the replica.
    pub(in crate::shard) fn give_up(&mut self, member: u8, bytes: u64) {
        if let Some(member) = self.members.get_mut(usize::from(member)) {
            member.asked = member.asked.saturating_sub(bytes);
        }
    }

    /// What a replica was asked for is over.
    pub(in crate::shard) fn end(&mut self, brought: Brought) {
        let Brought { whole, asked, begun, ended, is_done, .. } = brought;
        let size = size_of(whole);
        let Some(member) = self.members.get_mut(usize::from(brought.member)) else { return };
        member.asked = member.asked.saturating_sub(asked);
        // It served one after the other, so it began with this one when that before was over.
        let seconds = ended.since(begun.max(member.ended)).seconds() / asked.max(1) as f64;
        member.ended = ended;
        let times = &mut member.times[size];
        let times = if asked == whole { &mut times.whole } else { &mut times.part };
        if is_done {
            member.failures = 0;
        } else {
            member.rests = ended + Nanos(REPLICA_REST.0 << member.failures.min(RESTS_DOUBLED));
            member.failures += 1;
        }
        // What was not done takes at least so long.
        let is_news = is_done || times.seconds().is_some_and(|known| seconds > known);
        // What ends in the turn of another one tells nothing.
        let has_changed = is_news && seconds > 0.0 && times.learn(seconds);
        if has_changed && asked == whole {
            self.tries[size].note_change();
        }
    }

    /// Replicas that may be asked, a bit for each; those that have failed of late only if there is
    /// nobody else, and those that have to be waited for only if nobody is up.
    fn ready(&self, may: May) -> u8 {
        let (mask, now) = (if may.up > 0 { may.up } else { may.open }, may.now);
        let there = bits(mask).filter(|at| *at < self.members.len());
        let of = |it: &dyn Fn(usize) -> bool| {
            there.clone().filter(|at| it(*at)).fold(0, |mask, at| mask | 1 << at)
        };
        match of(&|at| self.members[at].rests <= now) {
            0 => of(&|_| true),
            fit => fit,
        }
    }

    /// What a byte takes where nothing was measured: as at those where something was.
    fn otherwise(&self, size: usize, ready: u8) -> f64 {
        let known = bits(ready).filter_map(|at| {
            let times = &self.members[at].times[size];
            times.part.seconds().or(times.whole.seconds())
        });
        let (count, sum) = known.fold((0.0, 0.0), |(count, sum), it| (count + 1.0, sum + it));
        if count > 0.0 { sum / count } else { GUESS }
    }
}

/// The replicas that a read is divided between, and how many bytes each gets.
#[derive(Debug)]
struct Divided {
    members: [usize; REPLICAS_MAX],
    ways: [Loaded; REPLICAS_MAX],
    sizes: [u64; REPLICAS_MAX],
    count: usize,
}

impl Default for Divided {
    fn default() -> Self {
        let idle = Loaded { per_byte: GUESS, busy: 0.0 };
        let (members, sizes) = ([0; REPLICAS_MAX], [0; REPLICAS_MAX]);
        Self { members, ways: [idle; REPLICAS_MAX], sizes, count: 0 }
    }
}

impl Divided {
    fn add(&mut self, member: usize, way: Loaded) {
        (self.members[self.count], self.ways[self.count]) = (member, way);
        self.count += 1;
    }

    /// Divides so many bytes, and returns when the last one is there, in seconds.
    fn divide(&mut self, bytes: u64, least: u64) -> f64 {
        level(bytes, least, &self.ways[..self.count], &mut self.sizes[..self.count])
    }

    /// One that gets nothing, by its place here.
    fn left_out(&self) -> Option<usize> {
        self.sizes[..self.count].iter().position(|size| *size == 0)
    }

    /// The replica that has so many bytes first if it is asked for all of them.
    fn soonest(&self, bytes: u64) -> usize {
        let end = |at: &usize| self.ways[*at].busy + bytes as f64 * self.ways[*at].per_byte;
        let first = (0..self.count).min_by(|one, other| end(one).total_cmp(&end(other)));
        self.members[first.unwrap_or_default()]
    }

    /// Gives `least` bytes of the one that has most to one that has none, if that is little to it.
    fn try_some(&mut self, left_out: usize, least: u64) -> bool {
        let most = self.sizes[..self.count].iter_mut().max().filter(|most| **most > 2 * least);
        let Some(most) = most else { return false };
        *most -= least;
        self.sizes[left_out] = least;
        true
    }

    /// Parts one behind the other, cut where a device need not be read twice.
    fn cut(&self, offset: u64, bytes: u64) -> Shares {
        let mut shares = [None; REPLICAS_MAX];
        let (mut from, mut end) = (0, 0);
        for (at, share) in shares.iter_mut().enumerate().take(self.count) {
            end += self.sizes[at];
            let aligned = (offset + end) / WAY_UNIT_BYTES * WAY_UNIT_BYTES;
            let to = if end == bytes { bytes } else { aligned.saturating_sub(offset) };
            if to > from {
                *share = Some(Share { member: self.members[at] as u8, from, to });
                from = to;
            }
        }
        shares
    }
}

/// The numbers of the bits that are set.
fn bits(mask: u8) -> impl Iterator<Item = usize> + Clone {
    (0..8).filter(move |at| mask >> at & 1 == 1)
}

fn size_of(bytes: u64) -> usize {
    ((bytes / WAY_UNIT_BYTES).max(1).ilog2() as usize).min(SIZES - 1)
}

fn whole(member: usize, bytes: u64) -> Shares {
    let mut shares = [None; REPLICAS_MAX];
    shares[0] = Some(Share { member: member as u8, from: 0, to: bytes });
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;

    fn replicas(count: u32) -> Replicas {
        let handles: Vec<HandleId> = (1..=count).map(HandleId).collect();
        Replicas::new(SessionId(1), 1 << 30, &handles)
    }

    fn may(replicas: &Replicas, now: Nanos) -> May {
        let all = (0..replicas.members.len()).fold(0, |mask, at| mask | 1 << at);
        May::new((all, all), now)
    }

    /// What each replica takes: so many seconds, and so many nanoseconds a byte.
    #[derive(Clone)]
    struct Disks<'a>(f64, &'a [f64]);

    impl Disks<'_> {
        fn seconds(&self, member: u8, bytes: u64) -> f64 {
            self.0 + bytes as f64 * self.1[usize::from(member)] * 1e-9
        }

        /// What the best division takes.
        fn best(&self, bytes: u64) -> f64 {
            let way = |at: u8| move |bytes: u64| self.seconds(at, bytes);
            let ways: Vec<_> = (0..self.1.len()).map(|at| way(at as u8)).collect();
            let mut best = f64::MAX;
            // Those that are left out are the slowest.
            let mut order: Vec<usize> = (0..ways.len()).collect();
            order.sort_by(|one, other| self.1[*one].total_cmp(&self.1[*other]));
            for count in 1..=ways.len().min(3) {
                let some: Vec<&dyn Fn(u64) -> f64> =
                    order[..count].iter().map(|at| &ways[*at] as &dyn Fn(u64) -> f64).collect();
                best = best.min(piped_model::ways::split(bytes, 4096, &some).1);
            }
            best
        }
    }

    /// Reads one after the other; what each takes of what the best division does.
    fn run(replicas: &mut Replicas, disks: &Disks<'_>, reads: u32, start: Nanos) -> Vec<f64> {
        let mut now = start;
        let mut one = |_| {
            let shares = replicas.choose((0, BYTES), may(replicas, now));
            let mut last = 0.0_f64;
            let mut next = 0;
            for share in shares.iter().flatten() {
                assert_eq!(share.from, next, "one behind the other: {shares:?}");
                next = share.to;
                let bytes = share.to - share.from;
                replicas.begin(share.member, bytes);
                let seconds = disks.seconds(share.member, bytes);
                last = last.max(seconds);
                replicas.end(Brought {
                    member: share.member,
                    whole: BYTES,
                    asked: bytes,
                    begun: now,
                    ended: now + Nanos::from_seconds(seconds),
                    is_done: true,
                });
            }
            assert_eq!(next, BYTES, "all of it: {shares:?}");
            now = now + Nanos::from_seconds(last) + Nanos(1000);
            last / disks.best(BYTES)
        };
        (0..reads).map(&mut one).collect()
    }

    fn median(times: &[f64]) -> f64 {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    #[test]
    fn the_first_read_is_divided_evenly_and_the_second_by_what_the_first_took() {
        let mut replicas = replicas(2);
        let times = run(&mut replicas, &Disks(0.0, &[10.0, 30.0]), 2, Nanos(1));
        assert!((1.9..2.1).contains(&times[0]), "half of it at 30 ns a byte: {times:?}");
        assert!((0.99..1.02).contains(&times[1]), "{times:?}");
    }

    #[test]
    fn all_parts_come_to_end_together_whatever_the_replicas_take() {
        for overhead in [0.0, 50e-6, 1e-3] {
            for disks in [&[10.0, 10.0][..], &[10.0, 30.0], &[80.0, 10.0], &[9.0, 12.0, 20.0]] {
                let mut replicas = replicas(disks.len() as u32);
                let times = run(&mut replicas, &Disks(overhead, disks), 60, Nanos(1));
                assert!(median(&times[20..]) <= 1.05, "{overhead} {disks:?}: {times:?}");
            }
        }
    }

    #[test]
    fn bytes_move_when_a_replica_slows_and_come_back() {
        let mut replicas = replicas(3);
        let mut now = Nanos(1);
        for disks in [[10.0, 10.0, 10.0], [10.0, 40.0, 10.0], [10.0, 10.0, 10.0]] {
            let times = run(&mut replicas, &Disks(50e-6, &disks), 40, now);
            assert!(median(&times[20..]) <= 1.05, "{disks:?}: {times:?}");
            now = now + Nanos::from_millis(10_000);
        }
    }

    /// One that is of no use is hardly asked, and found again when it is of use.
    #[test]
    fn a_replica_that_is_not_worth_it_is_left_out_and_found_again() {
        let mut replicas = replicas(2);
        let times = run(&mut replicas, &Disks(50e-6, &[10.0, 5000.0]), 300, Nanos(1));
        let tried = times[2..].iter().filter(|&&time| time > 1.1).count();
        assert!(tried < 12, "{times:?}");
        let later = Nanos::from_millis(60_000);
        let times = run(&mut replicas, &Disks(50e-6, &[10.0, 10.0]), 2500, later);
        assert!(median(&times[2400..]) <= 1.05, "{:?}", &times[2400..]);
    }

    /// Where parts cost more than they save, reads go whole; and are tried in parts ever more
    /// seldom.
    #[test]
    fn reads_go_whole_where_that_is_faster() {
        let mut replicas = replicas(2);
        // Both share one disk: a part takes as long as all.
        let seconds = |_| 1e-3;
        let mut now = Nanos(1);
        let mut divided = 0;
        for number in 0..400 {
            let shares = replicas.choose((0, BYTES), may(&replicas, now));
            let parts = shares.iter().flatten().count();
            divided += usize::from(parts > 1 && number >= 100);
            let end = now + Nanos::from_seconds(seconds(parts) * parts as f64 * 1.1);
            for share in shares.iter().flatten() {
                let asked = share.to - share.from;
                replicas.begin(share.member, asked);
                let (member, whole) = (share.member, BYTES);
                let brought =
                    Brought { member, whole, asked, begun: now, ended: end, is_done: true };
                replicas.end(brought);
            }
            now = end + Nanos(1000);
        }
        assert!(divided < 20, "{divided}");
    }

    #[test]
    fn one_with_much_to_do_gets_less_of_the_next_read() {
        let mut replicas = replicas(2);
        let _ = run(&mut replicas, &Disks(0.0, &[10.0, 10.0]), 5, Nanos(1));
        replicas.begin(0, BYTES / 2);
        let shares = replicas.choose((0, BYTES), may(&replicas, Nanos::from_millis(9_000)));
        let of = |member| {
            let its = shares.iter().flatten().filter(|share| share.member == member);
            its.map(|share| share.to - share.from).sum::<u64>()
        };
        let [less, more] = [of(0), of(1)];
        assert!(less.abs_diff(BYTES / 4) <= WAY_UNIT_BYTES && less + more == BYTES, "{shares:?}");
    }

    #[test]
    fn one_that_fails_rests_longer_each_time_if_there_are_others() {
        let mut replicas = replicas(2);
        let fail = |replicas: &mut Replicas, now: Nanos| {
            replicas.begin(0, BYTES);
            let (whole, asked) = (BYTES, BYTES);
            let failed =
                Brought { member: 0, whole, asked, begun: now, ended: now, is_done: false };
            replicas.end(failed);
        };
        let asked = |replicas: &mut Replicas, ask: u8, now: Nanos| {
            let shares = replicas.choose((0, BYTES), May::new((ask, 0b11), now));
            shares.iter().flatten().any(|share| share.member == 0)
        };
        let mut now = Nanos::from_millis(1);
        let mut rests = Vec::new();
        for _ in 0..3 {
            fail(&mut replicas, now);
            assert!(asked(&mut replicas, 0b01, now), "there is no other");
            let begun = now;
            while !asked(&mut replicas, 0b11, now) {
                now = now + Nanos::from_millis(100);
            }
            rests.push((now.since(begun).0 + 50_000_000) / REPLICA_REST.0);
        }
        assert_eq!(rests, [1, 2, 4]);
    }

    #[test]
    fn calls_are_made_of_the_replica_of_the_first_call() {
        let mut replicas = replicas(3);
        let may = |up| May::new((up, 0b111), Nanos::from_millis(1));
        let first = replicas.called(may(0b010));
        assert_eq!(first, replicas.handle(1));
        assert_eq!(replicas.called(may(0b101)), first, "though it is not up");
    }

    #[test]
    fn who_is_down_is_waited_for_only_if_nobody_is_up() {
        let mut replicas = replicas(3);
        let now = Nanos::from_millis(1);
        let mut asked = |up, open| {
            let shares = replicas.choose((0, BYTES), May::new((up, open), now));
            shares.iter().flatten().fold(0_u8, |mask, share| mask | 1 << share.member)
        };
        assert_eq!(asked(0b110, 0b111), 0b110);
        assert_eq!(asked(0, 0b100) & !0b100, 0, "the first one is gone");
        assert_eq!(asked(0, 0).count_ones(), 1, "it says that it is gone");
    }

    #[test]
    fn cuts_are_aligned_in_the_file_and_short_reads_are_not_cut() {
        let mut replicas = replicas(3);
        let _ = run(&mut replicas, &Disks(50e-6, &[10.0, 17.0, 23.0]), 20, Nanos(1));
        for offset in [0, 1, 4095, 4096, 123_457] {
            let shares =
                replicas.choose((offset, BYTES), may(&replicas, Nanos::from_millis(9_000)));
            for share in shares.iter().flatten().filter(|share| share.from > 0) {
                assert_eq!((offset + share.from) % WAY_UNIT_BYTES, 0, "{offset}");
            }
            let shares = replicas.choose((offset, 4096), may(&replicas, Nanos::from_millis(9_000)));
            assert_eq!(shares.iter().flatten().count(), 1);
        }
    }
}
