//! What memory to allow for early messages, from messages that were seen.
//!
//! Each message that passed a channel is known by four times: its first byte came, its last byte
//! had come, it was taken by a receive, its memory was free again. From these follow the parameters
//! of the model ([`super::replay`]), one set for each message, in the order in which they ended:
//!
//! ```text
//! alpha_i  = taken_i - max(ended_{i-1}, came_i)         not below 0
//! L_i / mu = ended_i - max(ended_{i-1}, taken_i)
//! L_i / lambda = landed_i - came_i
//! ```
//!
//! With these the model gives back what happened where there was memory, and says what would have
//! been where there was none: such a message counts from when it came, and is copied at the mean
//! rate of the others.
//!
//! **A burst** is what comes while something is there; the memory it takes is zero before and
//! after. What is advised is the least memory in which those bursts fit that brought 99 of 100
//! messages: one burst of many weighs what its messages weigh, however many single ones there are
//! between. With fewer than a hundred messages it is the largest burst.
//!
//! A message has its memory from its first byte to the end of its copy, whole, and in the units in
//! which memory is given out. The model speaks of bytes that have arrived and are not copied.
//! [`Need`] has all three figures.

use super::{Arrival, Consumer, Mode, replay};

/// The part of the messages that must lie in bursts that fit.
pub const FITTING: f64 = 0.99;

/// The shortest time that counts as one; what is shorter happened at once.
const INSTANT_SECONDS: f64 = 1e-9;

/// How a message got to its receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Memory for early messages keeps it.
    Kept,
    /// There was no memory for it.
    Stalled,
    /// The message is there, and nobody has asked for it yet.
    Waiting,
    /// The message's receive was there before the message.
    Direct,
}

/// A message that was seen. Times are in seconds, on one clock, not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// The time at which the message's first byte came.
    pub came_seconds: f64,
    /// The time at which the message's last byte had come.
    pub landed_seconds: f64,
    /// The time at which a receive took the message; the present for a message that waits.
    pub taken_seconds: f64,
    /// The time at which the receive had all of the message; the present for a message that waits.
    pub ended_seconds: f64,
    /// Length of the message in bytes.
    pub bytes: f64,
    /// The memory it takes, in bytes.
    pub memory_bytes: f64,
    /// How it got there.
    pub way: Way,
}

/// What changes in the sensitivity table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factor {
    /// Messages arrive twice as fast.
    Bandwidth,
    /// Twice the time from one to the next.
    Delay,
    /// Copied twice as fast.
    CopyRate,
    /// The receiver asks at once for the next one.
    NoStartup,
    /// Half as many more in each burst.
    Messages,
}

impl Factor {
    /// All of them, in the order of the paper.
    pub const ALL: [Self; 5] =
        [Self::Bandwidth, Self::Delay, Self::CopyRate, Self::NoStartup, Self::Messages];
}

/// Memory that a message has for a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hold {
    /// Begin of the hold, in seconds.
    pub from_seconds: f64,
    /// End of the hold, in seconds.
    pub to_seconds: f64,
    /// The bytes that are held.
    pub bytes: f64,
}

/// What memory the messages of a channel need.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Need {
    /// The model's peak: what has arrived and is not copied, in bytes.
    pub model_bytes: f64,
    /// The peak with each message whole from its first byte to the end of its copy. Not less.
    pub whole_bytes: f64,
    /// The peak in the memory that messages take. Not less.
    pub memory_bytes: f64,
    /// The peak is that of the burst that began first, of which more may have been than is known.
    pub is_of_first: bool,
}

/// Means over what was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Means {
    /// `n`: messages in a burst.
    pub messages: f64,
    /// `L`, the message in bytes.
    pub bytes: f64,
    /// `lambda`: bytes over the time in which they came, in bytes per second. 0: they came at once.
    pub arrival_rate: f64,
    /// `mu`, in bytes per second. 0: it was not measured.
    pub copy_rate: f64,
    /// `alpha`, the start-up of a copy, in seconds.
    pub startup_seconds: f64,
    /// `d`: from one message to the next of its burst, in seconds.
    pub delay_seconds: f64,
}

/// Messages of a channel as the model has them, burst by burst.
#[derive(Debug, Clone, PartialEq)]
pub struct Bursts {
    /// In order of time; of each burst, in the order in which they are taken.
    bursts: Vec<Vec<Passage>>,
    means: Means,
}

/// A message with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Passage {
    came: f64,
    landing: f64,
    bytes: f64,
    memory: f64,
    startup: f64,
    copy: f64,
    /// Whether the message takes memory.
    held: bool,
}

impl Bursts {
    /// Bursts of messages as they were seen, in any order. `copy_rate`, in bytes per second and
    /// positive, is used where no copy was measured.
    #[must_use]
    pub fn of(seen: &[Seen], copy_rate: f64) -> Self {
        let mut seen = seen.to_vec();
        seen.sort_by(|a, b| {
            a.ended_seconds
                .total_cmp(&b.ended_seconds)
                .then(a.came_seconds.total_cmp(&b.came_seconds))
        });
        let measured = measured_copy_rate(&seen);
        let rate = measured.unwrap_or(copy_rate);
        let mut free = 0.0_f64;
        let mut passages: Vec<(Passage, f64)> = Vec::with_capacity(seen.len());
        for message in &seen {
            let base = free.max(message.came_seconds);
            let bytes = message.bytes.max(1.0);
            let landing = (message.landed_seconds - message.came_seconds).max(INSTANT_SECONDS);
            let at_mean = bytes / rate;
            let (startup, copy) = match message.way {
                Way::Kept => (
                    message.taken_seconds - base,
                    message.ended_seconds - base.max(message.taken_seconds),
                ),
                Way::Stalled | Way::Waiting => (message.taken_seconds - base, at_mean),
                // It is copied as it comes, if at all.
                Way::Direct => (0.0, at_mean.min(landing)),
            };
            let passage = Passage {
                came: message.came_seconds,
                landing,
                bytes,
                memory: message.memory_bytes,
                startup: startup.max(0.0),
                copy: copy.max(INSTANT_SECONDS),
                held: message.way != Way::Direct,
            };
            passages.push((passage, message.ended_seconds));
            free = message.ended_seconds;
        }
        let bursts = split(passages);
        let means = means(&bursts, measured);
        Self { bursts, means }
    }

    /// How many there were, those aside that took no memory.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bursts.iter().filter(|burst| burst.iter().any(|it| it.held)).count()
    }

    /// Means over all of them.
    #[must_use]
    pub fn means(&self) -> Means {
        self.means
    }

    /// What they need, see the module.
    #[must_use]
    pub fn need(&self) -> Need {
        let peaks = self.bursts.iter().enumerate().map(|(number, burst)| {
            (peak(&holds(burst, |it| it.memory)), burst.iter().filter(|it| it.held).count(), number)
        });
        let Some((memory_bytes, number)) = fitting(peaks.collect()) else { return Need::default() };
        let burst = &self.bursts[number];
        let whole_bytes = peak(&holds(burst, |it| it.bytes));
        Need {
            // What is lost in the last digits is not more than there was.
            model_bytes: model(burst).min(whole_bytes),
            whole_bytes,
            memory_bytes,
            is_of_first: number == 0,
        }
    }

    /// The bursts with every message changed by one factor.
    #[must_use]
    pub fn with(&self, factor: Factor) -> Self {
        let bursts = self.bursts.iter().map(|burst| vary(burst, factor)).collect();
        Self { bursts, means: self.means }
    }

    /// The memory of every message, for [`joined`].
    pub fn holds(&self) -> impl Iterator<Item = Hold> {
        self.bursts.iter().flat_map(|burst| holds(burst, |it| it.memory))
    }
}

/// What memory several channels need that have one limit: their bursts as they fell together, in
/// bytes.
#[must_use]
pub fn joined(holds: impl Iterator<Item = Hold>) -> f64 {
    let mut holds: Vec<Hold> = holds.collect();
    holds.sort_by(|a, b| a.from_seconds.total_cmp(&b.from_seconds));
    let (mut peaks, mut burst, mut end) = (Vec::new(), Vec::new(), f64::NEG_INFINITY);
    for hold in holds {
        if hold.from_seconds > end && !burst.is_empty() {
            peaks.push((peak(&burst), burst.len(), peaks.len()));
            burst.clear();
        }
        end = end.max(hold.to_seconds);
        burst.push(hold);
    }
    peaks.push((peak(&burst), burst.len(), peaks.len()));
    fitting(peaks).map_or(0.0, |(bytes, _)| bytes)
}

/// The copy rate of messages copied out of memory; none if there was none.
fn measured_copy_rate(seen: &[Seen]) -> Option<f64> {
    let (mut bytes, mut seconds, mut free) = (0.0, 0.0, 0.0_f64);
    for message in seen {
        if message.way == Way::Kept {
            bytes += message.bytes;
            seconds += message.ended_seconds - free.max(message.taken_seconds);
        }
        free = message.ended_seconds;
    }
    (bytes > 0.0).then(|| bytes / seconds.max(INSTANT_SECONDS))
}

/// Into bursts, each in the order in which it was, by what came while another one was there.
fn split(mut passages: Vec<(Passage, f64)>) -> Vec<Vec<Passage>> {
    let mut by_arrival: Vec<(f64, f64)> =
        passages.iter().map(|(it, end)| (it.came, *end)).collect();
    by_arrival.sort_by(|a, b| a.0.total_cmp(&b.0));
    // When each burst begins.
    let (mut starts, mut busy) = (Vec::new(), f64::NEG_INFINITY);
    for (came, end) in by_arrival {
        if came > busy {
            starts.push(came);
        }
        busy = busy.max(end);
    }
    let mut bursts = vec![Vec::new(); starts.len()];
    for (passage, _) in passages.drain(..) {
        let after = starts.partition_point(|start| *start <= passage.came);
        bursts[after - 1].push(passage);
    }
    bursts
}

fn means(bursts: &[Vec<Passage>], copy_rate: Option<f64>) -> Means {
    let all = || bursts.iter().flatten();
    let count = all().count() as f64;
    if count == 0.0 {
        return Means::default();
    }
    let sum = |of: fn(&Passage) -> f64| all().map(of).sum::<f64>();
    let landing = sum(|it| if it.landing > INSTANT_SECONDS { it.landing } else { 0.0 });
    let landed = sum(|it| if it.landing > INSTANT_SECONDS { it.bytes } else { 0.0 });
    let spans: f64 = bursts.iter().map(|burst| span(burst)).sum();
    let held = all().filter(|it| it.held).count() as f64;
    let startups: f64 = all().filter(|it| it.held).map(|it| it.startup).sum();
    Means {
        messages: count / bursts.len() as f64,
        bytes: sum(|it| it.bytes) / count,
        arrival_rate: if landing > 0.0 { landed / landing } else { 0.0 },
        copy_rate: copy_rate.unwrap_or(0.0),
        startup_seconds: startups / held.max(1.0),
        delay_seconds: spans / (count - bursts.len() as f64).max(1.0),
    }
}

/// From the first arrival to the last, in seconds.
fn span(burst: &[Passage]) -> f64 {
    let first = burst.iter().map(|it| it.came).fold(f64::INFINITY, f64::min);
    let last = burst.iter().map(|it| it.came).fold(0.0, f64::max);
    (last - first).max(0.0)
}

fn vary(burst: &[Passage], factor: Factor) -> Vec<Passage> {
    let first = burst.iter().map(|it| it.came).fold(f64::INFINITY, f64::min);
    let change = |it: &Passage| match factor {
        Factor::Bandwidth => Passage { landing: it.landing / 2.0, ..*it },
        Factor::Delay => Passage { came: first + 2.0 * (it.came - first), ..*it },
        Factor::CopyRate => Passage { copy: it.copy / 2.0, ..*it },
        Factor::NoStartup => Passage { startup: 0.0, ..*it },
        Factor::Messages => *it,
    };
    let mut varied: Vec<Passage> = burst.iter().map(change).collect();
    if factor == Factor::Messages {
        let more = burst.len().div_ceil(2);
        let delay = span(burst) / (burst.len() - 1).max(1) as f64;
        // The last ones once more: the first of a burst may have met a receiver that waited for it.
        let again = burst[burst.len() - more..].iter();
        varied.extend(again.map(|it| Passage { came: it.came + more as f64 * delay, ..*it }));
    }
    varied
}

/// When the copy of each begins and ends.
fn copies(burst: &[Passage]) -> impl Iterator<Item = (&Passage, f64, f64)> {
    let mut free = 0.0_f64;
    burst.iter().map(move |it| {
        let start = free.max(it.came) + it.startup;
        free = (start + it.copy).max(it.came + it.landing);
        (it, start, free)
    })
}

fn holds(burst: &[Passage], of: fn(&Passage) -> f64) -> Vec<Hold> {
    let held = copies(burst).filter(|(it, ..)| it.held);
    held.map(|(it, _, end)| Hold { from_seconds: it.came, to_seconds: end, bytes: of(it) })
        .collect()
}

/// The most at once.
fn peak(holds: &[Hold]) -> f64 {
    let ends = |hold: &Hold| [(hold.from_seconds, hold.bytes), (hold.to_seconds, -hold.bytes)];
    let mut steps: Vec<(f64, f64)> = holds.iter().flat_map(ends).collect();
    // What goes at the time at which something comes goes first.
    steps.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (mut level, mut most) = (0.0, 0.0_f64);
    for (_, step) in steps {
        level += step;
        most = most.max(level);
    }
    most
}

/// The model's requirement of a burst.
fn model(burst: &[Passage]) -> f64 {
    // Times of messages that came at once are tiny beside those since a daemon began: they count
    // from the burst's start.
    let origin = burst.iter().map(|it| it.came).fold(f64::INFINITY, f64::min);
    let burst: Vec<Passage> =
        burst.iter().map(|it| Passage { came: it.came - origin, ..*it }).collect();
    let mut free = 0.0_f64;
    let messages: Vec<(Arrival, Consumer)> = copies(&burst)
        .filter(|(it, ..)| it.held)
        .map(|(it, start, end)| {
            // What takes no memory keeps the consumer busy: that is start-up to those behind it.
            let startup_seconds = (start - free.max(it.came)).max(0.0);
            free = end;
            let bytes_per_second = it.bytes / it.landing;
            let arrival = Arrival { seconds: it.came, bytes: it.bytes, bytes_per_second };
            (arrival, Consumer { startup_seconds, bytes_per_second: it.bytes / it.copy })
        })
        .collect();
    // Nothing here is out of the model's range but what was no time at all.
    let fills = replay(&messages, Mode::Causal).unwrap_or_default();
    fills.iter().map(|fill| fill.bytes).fold(0.0, f64::max)
}

/// Among peaks with their messages, the least in which the bursts of [`FITTING`] of all messages
/// fit, and which it is of.
fn fitting(mut peaks: Vec<(f64, usize, usize)>) -> Option<(f64, usize)> {
    let all: usize = peaks.iter().map(|(_, messages, _)| messages).sum();
    peaks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut fit = 0;
    for (bytes, messages, number) in peaks {
        fit += messages;
        if messages > 0 && fit as f64 >= FITTING * all as f64 {
            return Some((bytes, number));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{burst, levels, required};
    use super::*;

    const LAMBDA: f64 = 105e6;
    const MU: f64 = 91e6;
    const ALPHA: f64 = 9e-6;
    const BYTES: f64 = 4000.0;

    /// What is seen of messages that arrive and are copied as the model says.
    fn seen(arrivals: &[Arrival], consumer: Consumer) -> Vec<Seen> {
        let mut free = 0.0_f64;
        let of = |it: &Arrival| {
            let taken_seconds = free.max(it.seconds) + consumer.startup_seconds;
            free = (taken_seconds + it.bytes / consumer.bytes_per_second).max(it.end());
            Seen {
                came_seconds: it.seconds,
                landed_seconds: it.end(),
                taken_seconds,
                ended_seconds: free,
                bytes: it.bytes,
                memory_bytes: 4096.0,
                way: Way::Kept,
            }
        };
        arrivals.iter().map(of).collect()
    }

    fn paper(messages: usize, delay: f64) -> Vec<Seen> {
        let consumer = Consumer { startup_seconds: ALPHA, bytes_per_second: MU };
        seen(&burst(messages, BYTES, LAMBDA, delay * BYTES / LAMBDA), consumer)
    }

    fn bytes(seen: &[Seen]) -> f64 {
        Bursts::of(seen, MU).need().model_bytes.round()
    }

    #[test]
    fn measured_messages_give_back_the_paper_s_figures() {
        for (delay, expected) in [(0.125, 12052.0), (0.25, 11571.0), (0.5, 8971.0), (2.0, 1352.0)] {
            assert_eq!(bytes(&paper(4, delay)), expected, "delay {delay}");
        }
        assert_eq!(bytes(&[]), 0.0);
    }

    #[test]
    fn each_factor_changes_what_the_paper_says_it_does() {
        let bursts = Bursts::of(&paper(4, 0.125), MU);
        let with = |factor| bursts.with(factor).need().model_bytes.round();
        assert_eq!(with(Factor::Delay), 11571.0);
        assert_eq!(with(Factor::NoStartup), 11233.0);
        assert_eq!(with(Factor::Messages), 20000.0);
        // The paper's are of a shorter delay and of a copy that runs ahead; these are the model's
        // own.
        let delay = 0.125 * BYTES / LAMBDA;
        let own = |lambda, mu| {
            let consumer = Consumer { startup_seconds: ALPHA, bytes_per_second: mu };
            let need = required(&burst(4, BYTES, lambda, delay), consumer, Mode::Causal);
            need.expect("sensible").bytes.round()
        };
        assert_eq!(with(Factor::Bandwidth), own(2.0 * LAMBDA, MU));
        assert_eq!(with(Factor::CopyRate), own(LAMBDA, 2.0 * MU));
    }

    #[test]
    fn a_message_that_comes_at_once_is_no_longer_in_an_old_daemon() {
        for age in [0.0, 1e4, 1e6, 1e8] {
            let message = Seen {
                came_seconds: age,
                landed_seconds: age,
                taken_seconds: age + 0.001,
                ended_seconds: age + 0.002,
                bytes: 4096.0,
                memory_bytes: 65_536.0,
                way: Way::Kept,
            };
            let need = Bursts::of(&[message], 1e9).need();
            assert!((need.model_bytes - 4096.0).abs() < 1.0, "{need:?} after {age} s");
            assert!(need.model_bytes <= need.whole_bytes && need.whole_bytes <= need.memory_bytes);
        }
    }

    #[test]
    fn memory_is_taken_whole_and_in_its_units() {
        // All four are there before the first is copied.
        let need = Bursts::of(&paper(4, 0.125), MU).need();
        assert_eq!((need.whole_bytes, need.memory_bytes), (16000.0, 16384.0));
        let need = Bursts::of(&paper(4, 2.0), MU).need();
        assert_eq!((need.whole_bytes, need.memory_bytes), (4000.0, 4096.0));
    }

    #[test]
    fn what_stalled_counts_from_when_it_came() {
        let kept = paper(8, 0.125);
        let mut stalled = kept.clone();
        for message in &mut stalled[3..] {
            message.way = Way::Stalled;
            // It came by another way, and took three times as long.
            message.ended_seconds += 1e-3;
        }
        let [kept, stalled] = [kept, stalled].map(|seen| Bursts::of(&seen, MU).need());
        assert_eq!(kept.memory_bytes, stalled.memory_bytes);
        // Also if nothing was ever kept.
        let mut never = paper(8, 0.125);
        never.iter_mut().for_each(|it| it.way = Way::Stalled);
        assert_eq!(Bursts::of(&never, MU).need().memory_bytes, kept.memory_bytes);
    }

    #[test]
    fn what_waits_is_needed_and_what_was_waited_for_is_not() {
        let waiting =
            |it: Seen| Seen { way: Way::Waiting, taken_seconds: 9.0, ended_seconds: 9.0, ..it };
        let seen: Vec<Seen> = paper(5, 0.125).into_iter().map(waiting).collect();
        assert_eq!(Bursts::of(&seen, MU).need().memory_bytes, 5.0 * 4096.0);
        let direct = |it: Seen| Seen { way: Way::Direct, ..it };
        let seen: Vec<Seen> = paper(5, 0.125).into_iter().map(direct).collect();
        let bursts = Bursts::of(&seen, MU);
        assert_eq!((bursts.need(), bursts.count()), (Need::default(), 0));
    }

    #[test]
    fn a_burst_weighs_what_its_messages_weigh() {
        let later = |it: Seen, by: f64| Seen {
            came_seconds: it.came_seconds + by,
            landed_seconds: it.landed_seconds + by,
            taken_seconds: it.taken_seconds + by,
            ended_seconds: it.ended_seconds + by,
            ..it
        };
        let singles = |count: usize| (0..count).map(|at| later(paper(1, 1.0)[0], 1.0 + at as f64));
        // Eight of 508 are too many to be left out, though they are one burst of 501; eight of 908
        // are not.
        for (count, expected) in [(500, 8.0 * 4096.0), (900, 4096.0)] {
            let mut seen = paper(8, 0.01);
            seen.extend(singles(count));
            let need = Bursts::of(&seen, MU).need();
            assert_eq!(need.memory_bytes, expected, "{count}");
            assert_eq!(need.is_of_first, count == 500);
        }
    }

    #[test]
    fn channels_with_one_limit_need_what_falls_together() {
        let one = Bursts::of(&paper(4, 0.125), MU);
        let mut seen = paper(4, 0.125);
        let need = one.need().memory_bytes;
        assert_eq!(joined(one.holds()), need);
        assert_eq!(joined(one.holds().chain(one.holds())), 2.0 * need);
        for it in &mut seen {
            it.came_seconds += 1.0;
            it.landed_seconds += 1.0;
            it.taken_seconds += 1.0;
            it.ended_seconds += 1.0;
        }
        let apart = Bursts::of(&seen, MU);
        assert_eq!(joined(one.holds().chain(apart.holds())), need);
        assert_eq!(joined(std::iter::empty()), 0.0);
    }

    #[test]
    fn the_means_are_those_of_what_was_seen() {
        let means = Bursts::of(&paper(4, 0.125), 1.0).means();
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        assert!(near(means.messages, 4.0) && near(means.bytes, BYTES), "{means:?}");
        assert!(near(means.arrival_rate, LAMBDA) && near(means.copy_rate, MU), "{means:?}");
        assert!(near(means.startup_seconds, ALPHA), "{means:?}");
        assert!(near(means.delay_seconds, 0.125 * BYTES / LAMBDA), "{means:?}");
    }

    /// Messages as any receiver may take them: out of order, several at once.
    fn any_seen() -> impl Strategy<Value = Vec<Seen>> {
        let message = (0.0..1e-2, 0.0..1e-3, 0.0..1e-3, 0.0..1e-3, 1.0..1e5, 0..4_u8);
        prop::collection::vec(message, 1..40).prop_map(|messages| {
            let of =
                |(came, landing, wait, copy, bytes, way): (f64, f64, f64, f64, f64, u8)| Seen {
                    came_seconds: came,
                    landed_seconds: came + landing,
                    taken_seconds: came + landing + wait,
                    ended_seconds: came + landing + wait + copy,
                    bytes,
                    memory_bytes: bytes.max(4096.0),
                    way: [Way::Kept, Way::Stalled, Way::Waiting, Way::Direct][usize::from(way)],
                };
            messages.into_iter().map(of).collect()
        })
    }

    proptest! {
        #[test]
        fn no_part_is_more_than_the_whole(seen in any_seen()) {
            let bursts = Bursts::of(&seen, 1e9);
            for factor in Factor::ALL.map(Some).into_iter().chain([None]) {
                let need = factor.map_or(bursts.clone(), |it| bursts.with(it)).need();
                let dust = 1e-6 * need.memory_bytes;
                prop_assert!(need.model_bytes >= 0.0);
                prop_assert!(need.model_bytes <= need.whole_bytes + dust, "{:?}", need);
                prop_assert!(need.whole_bytes <= need.memory_bytes + dust, "{:?}", need);
                let all: f64 = seen.iter().map(|it| it.memory_bytes).sum();
                prop_assert!(need.memory_bytes <= 1.5 * all + 2e5);
            }
        }

        /// Where there was memory for all, what is needed is what was there.
        #[test]
        fn what_was_kept_is_what_is_needed(seen in any_seen()) {
            let kept: Vec<Seen> =
                seen.into_iter().map(|it| Seen { way: Way::Kept, ..it }).collect();
            let there = |it: &Seen| Hold {
                from_seconds: it.came_seconds,
                to_seconds: it.ended_seconds,
                bytes: it.memory_bytes,
            };
            let holds: Vec<Hold> = kept.iter().map(there).collect();
            let need = Bursts::of(&kept, 1e9).need().memory_bytes;
            let there = peak(&holds);
            prop_assert!((need - there).abs() <= 1e-6 * need, "{need} of {there}");
        }

        /// The model is the one of `levels` if all are alike.
        #[test]
        fn the_replay_is_the_model(
            (messages, delay) in (1..20_usize, 0.0..1e-4),
            (lambda, mu, alpha) in (1e6..1e9, 1e6..1e9, 0.0..1e-4),
        ) {
            let consumer = Consumer { startup_seconds: alpha, bytes_per_second: mu };
            let arrivals = burst(messages, BYTES, lambda, delay);
            let fills = levels(&arrivals, consumer, Mode::Causal).expect("sensible");
            let most = fills.iter().map(|fill| fill.bytes).fold(0.0, f64::max);
            let holds = Bursts::of(&seen(&arrivals, consumer), mu);
            let found = holds.bursts.iter().map(|burst| model(burst)).fold(0.0, f64::max);
            prop_assert!((found - most).abs() <= 1e-6 * most.max(1.0), "{} of {}", found, most);
        }
    }
}
