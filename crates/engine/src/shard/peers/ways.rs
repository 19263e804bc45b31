//! What the two ways to a peer take, and so how a read is divided between them.
//!
//! A peer with a second address is reached on two ways: over its bulk lane and over its second
//! lane. What lies behind a lane (a disk, wires, threads) this side does not know, and ways may
//! share some of it. So it is the ways that are measured, from asking to the last byte, each kind
//! and size of request by itself: parts, while the other way has the other part, and reads that go
//! the first way whole. The split is that of [`piped_model::ways`].
//!
//! A way is kept as what a byte took of late: the mean of the middle half of the last transfers,
//! for planners try other plans there now and then, and some transfers are held up. That is more
//! than what a byte more takes, for every request takes a time besides. So a division that follows
//! from it moves less than it could, and never too far; where it does not move any more, both parts
//! end together.
//!
//! What is not used is not measured, so it is tried now and then: a way of which nothing is known
//! with a small part, at once and then ever more seldom. A part that does not end says that its way
//! takes at least as long.

use piped_core::limits::{WAY_UNIT_BYTES, WAYS_BYTES_MIN};
use piped_core::units::Nanos;
use piped_model::ways;
use piped_report::tally::Operation;

use super::super::per_byte::PerByte;
use super::super::tries::{TRY_CHANGED, TRY_MOST, Tries};

/// The way of a request, or of a part of one, to a peer that has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Way {
    /// The whole of it goes the first way.
    Alone,
    /// The part goes the first way, and another one the second.
    First,
    /// The part, or all, goes the second way.
    Second,
}

/// How a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Choice {
    /// All of it one way.
    Whole(Way),
    /// So many bytes the first way, and the others the second.
    Split(u64),
}

/// A split is to take less than this part of what the transfer takes whole: it costs both sides a
/// request more.
const WORTH: f64 = 0.97;

/// A cut stays while it costs no more than this above the best: other sizes are other plans.
const STAYS: f64 = 1.02;

/// A way that is tried gets at least this part of the bytes.
const TRIED_PART: u64 = 8;

/// Sizes by octaves, the shortest first; the last one has all that are longer.
const SIZES: usize = 12;

/// Both ways to a peer.
#[derive(Debug, Default)]
pub(in crate::shard) struct Ways {
    /// By whether a file is read or a region, and how long the read is.
    kinds: [[Kind; SIZES]; 2],
}

/// What one kind of request takes.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// What a byte took of late, by [`Way`].
    recent: [PerByte; 3],
    /// When one goes otherwise than the times say.
    tries: Tries,
    /// Bytes of the last transfer that was divided, and those of its first part.
    last: (u64, u64),
}

/// A read, or a part of one, that went one way.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Taken {
    operation: Operation,
    way: Way,
    /// Bytes of the whole read.
    whole: u64,
    /// Bytes that went this way.
    bytes: u64,
    sent: Nanos,
    /// Nothing else was asked for on the lane.
    alone: bool,
}

impl Taken {
    /// So many `bytes` of the `whole`, asked for at `sent` and, if `alone`, when nothing else was.
    pub(in crate::shard) fn new(
        (operation, way): (Operation, Way),
        (whole, bytes): (u64, u64),
        (sent, alone): (Nanos, bool),
    ) -> Self {
        Self { operation, way, whole, bytes, sent, alone }
    }

    /// Something else was asked for on the lane meanwhile.
    pub(in crate::shard) fn in_company(self) -> Self {
        Self { alone: false, ..self }
    }
}

impl Default for Kind {
    fn default() -> Self {
        Self { recent: Default::default(), tries: Tries::first(1), last: (0, 0) }
    }
}

impl Kind {
    /// How so many bytes go; `offset`: where they begin in the file or region.
    fn choose(&mut self, offset: u64, bytes: u64) -> Choice {
        let [alone, first, second] = self.recent.map(|way| way.seconds());
        let Some(alone) = alone else { return Choice::Whole(Way::Alone) };
        let known = first.zip(second);
        let (cut, splits) = known.map_or((bytes, false), |parts| self.best(bytes, alone, parts));
        // As long as a way is not known, trials are as often as after a change.
        let tries = self.tries.take(if known.is_some() { TRY_MOST } else { TRY_CHANGED });
        if tries {
            let tried = match (splits, cut) {
                // All goes the second way: the first one is what is not measured.
                (true, 0) => 1..2,
                (true, _) => 0..1,
                (false, _) => 1..3,
            };
            self.recent[tried].iter_mut().for_each(PerByte::forget);
        }
        let choice = match (splits, tries) {
            (true, false) if cut == 0 => Choice::Whole(Way::Second),
            (true, false) => split_at(offset, bytes, cut),
            (false, false) => Choice::Whole(Way::Alone),
            (true, true) if cut > 0 => Choice::Whole(Way::Alone),
            (_, true) => {
                let least = bytes / TRIED_PART;
                split_at(offset, bytes, cut.clamp(least, bytes - least))
            }
        };
        if let Choice::Split(cut) = choice {
            self.last = (bytes, cut);
        }
        choice
    }

    /// The bytes of the first part where both end together, and whether that is worth it; of ways
    /// where a byte takes so long.
    fn best(&self, bytes: u64, alone: f64, (first, second): (f64, f64)) -> (u64, bool) {
        let of = |per_byte: f64| move |bytes: u64| bytes as f64 * per_byte;
        let (cut, seconds) = ways::between(bytes, WAY_UNIT_BYTES, of(first), of(second));
        let splits = cut < bytes && seconds < WORTH * of(alone)(bytes);
        let (length, before) = self.last;
        let stays = |cut: u64| of(first)(cut).max(of(second)(bytes - cut)) <= STAYS * seconds;
        (if length == bytes && stays(before) { before } else { cut }, splits)
    }

    fn is_known(&self) -> bool {
        self.recent.iter().all(|way| way.seconds().is_some())
    }

    /// So many bytes took so long.
    fn learn(&mut self, way: Way, bytes: u64, seconds: f64) {
        let was_known = self.is_known();
        let has_changed = self.recent[way as usize].learn(seconds / bytes.max(1) as f64);
        if has_changed || !was_known && self.is_known() {
            self.tries.note_change();
        }
    }

    /// So many bytes take at least so long, which is news if it is more than was known of the way,
    /// or of the other.
    fn learn_least(&mut self, way: Way, bytes: u64, seconds: f64) {
        let known = self.recent[way as usize].seconds().or(self.recent[0].seconds());
        if known.is_some_and(|known| seconds > known * bytes as f64) {
            self.learn(way, bytes, seconds);
        }
    }
}

/// A cut where a device need not be read twice, if there is one inside.
fn split_at(offset: u64, bytes: u64, cut: u64) -> Choice {
    let aligned = ((offset + cut) / WAY_UNIT_BYTES * WAY_UNIT_BYTES).saturating_sub(offset);
    if (1..bytes).contains(&aligned) { Choice::Split(aligned) } else { Choice::Whole(Way::Alone) }
}

impl Ways {
    /// How a transfer of so many bytes from `offset` goes.
    pub(in crate::shard) fn choose(
        &mut self,
        operation: Operation,
        offset: u64,
        bytes: u64,
    ) -> Choice {
        self.kind(operation, bytes).choose(offset, bytes)
    }

    /// A read, or a part of one, ended well.
    pub(in crate::shard) fn note(&mut self, taken: Taken, now: Nanos) {
        let Taken { operation, way, whole, bytes, sent, alone } = taken;
        // The peer shares the lane out between those that are there together.
        if alone {
            self.kind(operation, whole).learn(way, bytes, now.since(sent).seconds());
        }
    }

    /// A read, or a part of one, did not end.
    pub(in crate::shard) fn note_unfinished(&mut self, taken: Taken, now: Nanos) {
        let Taken { operation, way, whole, bytes, sent, alone } = taken;
        if alone {
            self.kind(operation, whole).learn_least(way, bytes, now.since(sent).seconds());
        }
    }

    fn kind(&mut self, operation: Operation, bytes: u64) -> &mut Kind {
        let place = usize::from(operation == Operation::Get);
        let octave = (bytes / WAYS_BYTES_MIN).max(1).ilog2() as usize;
        &mut self.kinds[place][octave.min(SIZES - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;

    fn taken(way: Way, bytes: u64, sent: Nanos) -> Taken {
        Taken { operation: Operation::Get, way, whole: BYTES, bytes, sent, alone: true }
    }

    /// Two ways that take `overhead` and so many nanoseconds a byte; what each transfer took of
    /// what the best division takes.
    fn run(ways: &mut Ways, overhead: f64, per_byte: [f64; 2], transfers: u32) -> Vec<f64> {
        let of = |way: usize, bytes: u64| overhead + bytes as f64 * per_byte[way] * 1e-9;
        let whole = |way| of(way, BYTES);
        let divided = ways::between(BYTES, 1, |x| of(0, x), |x| of(1, x)).1;
        let best = divided.min(whole(0)).min(whole(1));
        let mut now = Nanos::from_millis(1);
        let mut one = |_| {
            let parts = match ways.choose(Operation::Get, 0, BYTES) {
                Choice::Whole(Way::Second) => vec![(Way::Second, 1, BYTES)],
                Choice::Whole(way) => vec![(way, 0, BYTES)],
                Choice::Split(cut) => vec![(Way::First, 0, cut), (Way::Second, 1, BYTES - cut)],
            };
            let mut last = 0.0_f64;
            for (way, place, bytes) in parts {
                let seconds = of(place, bytes);
                let end = now + Nanos::from_seconds(seconds);
                ways.note(taken(way, bytes, now), end);
                last = last.max(seconds);
            }
            now = now + Nanos::from_seconds(last) + Nanos(1000);
            last / best
        };
        (0..transfers).map(&mut one).collect()
    }

    /// The transfers that went as the times say: all but those that try.
    fn median(times: &[f64]) -> f64 {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    #[test]
    fn both_parts_come_to_end_together_whatever_the_ways_take() {
        for overhead in [0.0, 50e-6, 1e-3] {
            for per_byte in [[10.0, 10.0], [10.0, 30.0], [80.0, 10.0], [1.0, 1.5]] {
                let times = run(&mut Ways::default(), overhead, per_byte, 60);
                let settled = median(&times[20..]);
                assert!(settled <= 1.05, "{overhead} {per_byte:?}: {times:?}");
            }
        }
    }

    #[test]
    fn bytes_move_within_twenty_transfers_when_a_way_slows_and_come_back() {
        let mut ways = Ways::default();
        let _ = run(&mut ways, 50e-6, [10.0, 10.0], 40);
        for per_byte in [[10.0, 20.0], [10.0, 10.0], [20.0, 10.0], [10.0, 10.0]] {
            let times = run(&mut ways, 50e-6, per_byte, 40);
            assert!(median(&times[20..]) <= 1.05, "{per_byte:?}: {times:?}");
        }
    }

    /// A way that is of no use is tried now and then, and used again when it is of use.
    #[test]
    fn a_way_that_is_not_worth_it_is_left_and_found_again() {
        let mut ways = Ways::default();
        let times = run(&mut ways, 50e-6, [10.0, 3000.0], 200);
        assert!(median(&times[100..]) <= 1.05, "{times:?}");
        let times = run(&mut ways, 50e-6, [10.0, 10.0], 2500);
        assert!(median(&times[2400..]) <= 1.05, "{:?}", &times[2400..]);
    }

    /// Where a bad spell left the first way out of all reads, it comes back.
    #[test]
    fn a_first_way_that_hung_is_found_again() {
        let mut ways = Ways::default();
        let _ = run(&mut ways, 50e-6, [10.0, 5.0], 40);
        let mut now = Nanos::from_millis(60_000);
        for _ in 0..PerByte::RECENT {
            ways.note(taken(Way::First, BYTES / 3, now), now + Nanos::from_millis(1000));
            now = now + Nanos::from_millis(2000);
        }
        let choices = [(); 2].map(|()| ways.choose(Operation::Get, 0, BYTES));
        assert!(choices.contains(&Choice::Whole(Way::Second)), "{choices:?}");
        let times = run(&mut ways, 50e-6, [10.0, 5.0], 200);
        assert!(median(&times[100..]) <= 1.05, "{times:?}");
    }

    /// A way that is bad from the start costs a few small parts, and then ever fewer.
    #[test]
    fn a_way_that_was_never_good_is_hardly_used() {
        let mut ways = Ways::default();
        let times = run(&mut ways, 50e-6, [10.0, 3000.0], 400);
        let tried = times.iter().filter(|&&time| time > 1.05).count();
        assert!((1..12).contains(&tried), "{times:?}");
    }

    /// Parts that never end say as much: they are given up again and again, and then the way is
    /// left; but for a try now and then, by which it is found when it does work.
    #[test]
    fn a_way_on_which_nothing_ends_is_left() {
        let mut ways = Ways::default();
        let mut now = Nanos::from_millis(1);
        let mut given_up = Vec::new();
        for number in 0..400 {
            let end = now + Nanos::from_millis(10);
            match ways.choose(Operation::Get, 0, BYTES) {
                Choice::Whole(way) => ways.note(taken(way, BYTES, now), end),
                Choice::Split(cut) => {
                    given_up.push(number);
                    ways.note(taken(Way::First, cut, now), end);
                    let late = now + Nanos::from_millis(1000);
                    ways.note_unfinished(taken(Way::Second, BYTES - cut, now), late);
                }
            }
            now = now + Nanos::from_millis(2000);
        }
        assert!((1..10).contains(&given_up.len()), "{given_up:?}");
        let times = run(&mut ways, 50e-6, [10.0, 10.0], 2500);
        assert!(median(&times[2400..]) <= 1.05, "{:?}", &times[2400..]);
    }

    /// One that is given up at once says nothing of its way.
    #[test]
    fn what_is_given_up_early_is_no_measure() {
        let mut ways = Ways::default();
        let _ = run(&mut ways, 50e-6, [10.0, 10.0], 40);
        let before = ways.choose(Operation::Get, 0, BYTES);
        for _ in 0..20 {
            let sent = Nanos::from_millis(60_000);
            ways.note_unfinished(taken(Way::Second, BYTES / 2, sent), sent + Nanos(1000));
        }
        assert_eq!(ways.choose(Operation::Get, 0, BYTES), before);
        assert!(matches!(before, Choice::Split(_)));
    }

    #[test]
    fn one_read_that_is_held_up_moves_no_bytes() {
        let mut ways = Ways::default();
        let _ = run(&mut ways, 50e-6, [10.0, 10.0], 40);
        let before = ways.choose(Operation::Get, 0, BYTES);
        let (sent, end) = (Nanos::from_millis(60_000), Nanos::from_millis(61_000));
        ways.note(taken(Way::Second, BYTES / 2, sent), end);
        assert_eq!(ways.choose(Operation::Get, 0, BYTES), before);
        let Choice::Split(cut) = before else { panic!("it is divided") };
        assert!(cut.abs_diff(BYTES / 2) < BYTES / 40, "{cut}");
    }

    /// A cut is where a device's blocks begin, wherever the range does.
    #[test]
    fn cuts_are_aligned_in_the_file() {
        let mut ways = Ways::default();
        let _ = run(&mut ways, 50e-6, [10.0, 17.0], 40);
        for offset in [0, 1, 4095, 4096, 123_457] {
            let Choice::Split(cut) = ways.choose(Operation::Get, offset, BYTES) else {
                continue;
            };
            assert_eq!((offset + cut) % WAY_UNIT_BYTES, 0, "{offset}");
        }
    }
}
