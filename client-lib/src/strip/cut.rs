//! Which bytes are in no strip yet, and how many the next one gets.

use std::ops::Range;

use super::pace::Pace;
use super::size::Loop;
use super::{StripPolicy, Strips};

/// Requests ahead where the latency alone would ask for fewer: a lone one shows how long it takes
/// on an idle path, and on a busy one it waits for its daemons' turns as well. With two the path
/// ran dry between strips that came together.
const UNROLL_MIN: u32 = 4;

/// Requests ahead, at least, where the thread is what takes time: they are issued many at once
/// then.
const BATCH: u32 = 8;

/// Bytes that may be on their way although the latency does not ask for them, as a part of all
/// bytes; and the strips among them.
const SPARE: u64 = 4;
const SPARE_MAX: u64 = 7;

/// No request is longer than this.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// How a range is cut into strips, one after the other.
#[derive(Debug)]
pub(super) struct Cut {
    policy: StripPolicy,
    unroll: Option<u32>,
    memory: u64,
    grain: u64,
    bytes: u64,
    left: Range<u64>,
    last: Option<u64>,
    /// Strips that are done.
    done: u64,
    mirrored: bool,
}

impl Cut {
    pub(super) fn new(strips: &Strips, alignment: u32, range: Range<u64>, mirrored: bool) -> Self {
        let grain = common(strips.grain as u64, u64::from(alignment.max(1)));
        Self {
            policy: strips.policy,
            unroll: strips.unroll,
            memory: strips.memory as u64,
            grain,
            bytes: range.end - range.start,
            left: range,
            last: None,
            done: 0,
            mirrored,
        }
    }

    /// Whether every byte is in a strip.
    pub(super) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Grain in bytes: strips are multiples of it.
    pub(super) fn grain(&self) -> u64 {
        self.grain
    }

    /// The loop as sizes are to be chosen for it now.
    pub(super) fn known(&self, pace: &Pace) -> Loop {
        let known = pace.known();
        if self.mirrored { known.mirrored() } else { known }
    }

    /// Requests that are to be on their way behind the one that is waited for: as many as the
    /// latency is worth, at least a few, and of long ranges some more, for when somebody is late.
    /// Those come one with each strip that is done: what is asked for at once is answered at once,
    /// and the first strip would wait for the others.
    pub(super) fn unroll(&self, known: &Loop) -> u32 {
        let strip = self.last.unwrap_or(self.grain);
        let spare = (self.bytes / strip.saturating_mul(SPARE)).min(SPARE_MAX);
        let more = u32::try_from(spare.min(self.done)).unwrap_or(u32::MAX);
        let least = if known.is_thread_bound() { BATCH } else { UNROLL_MIN };
        self.unroll.unwrap_or_else(|| known.unroll(strip as f64).max(more).max(least))
    }

    /// Down to how many ahead no new ones are issued. To issue one wakes the daemon, which sleeps
    /// by then where the path has time left, and of that the thread has none: so half of them are
    /// issued at once.
    pub(super) fn refill(&self, known: &Loop) -> u32 {
        let unroll = self.unroll(known);
        if self.unroll.is_none() && known.is_thread_bound() { unroll / 2 } else { unroll }
    }

    /// A strip is done.
    pub(super) fn handle_done(&mut self) {
        self.done += 1;
    }

    /// Bytes of the next strip; 0 if there are none left.
    pub(super) fn next(&self, known: &Loop) -> u64 {
        let left = self.left.end - self.left.start;
        let last = self.last.map(|last| last as f64);
        let wanted = match self.policy {
            StripPolicy::Fixed(bytes) => bytes as f64,
            StripPolicy::Variable { first, growth } => {
                let growth = if growth.is_finite() { growth.max(0.0) } else { 0.0 };
                last.map_or(first as f64, |last| last * (1.0 + growth))
            }
            StripPolicy::Auto => known.next_strip(self.bytes as f64, left as f64, last),
        };
        // Saturates where it is longer than anything.
        let wanted = (wanted as u64).min(REQUEST_BYTES_MAX).min(self.most(left, known));
        let whole = (wanted / self.grain).max(1).saturating_mul(self.grain);
        whole.min(left)
    }

    /// The longest strip of which `U+1` fit, or one that is all that is left.
    fn most(&self, left: u64, known: &Loop) -> u64 {
        if left == self.bytes && left <= self.memory {
            return left;
        }
        self.memory / (u64::from(self.unroll(known)) + 1)
    }

    /// Where the next strip begins.
    pub(super) fn offset(&self) -> u64 {
        self.left.start
    }

    /// Bytes that are in no strip yet.
    #[cfg(feature = "async")]
    pub(super) fn left(&self) -> u64 {
        self.left.end - self.left.start
    }

    /// The next strip has so many bytes.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.left.start += bytes;
        self.last = Some(bytes);
    }

    /// Ends the cutting: no strip follows.
    pub(super) fn end(&mut self) {
        self.left.start = self.left.end;
    }
}

/// The least common multiple, or the first where that is absurd.
fn common(one: u64, other: u64) -> u64 {
    let (mut a, mut b) = (one, other);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (one / a).checked_mul(other).filter(|it| *it <= REQUEST_BYTES_MAX).unwrap_or(one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loop_of(compute: Option<f64>) -> Loop {
        Loop { issue: 1e-6, overhead: 5e-6, latency: 20e-6, per_byte: 8e-9, compute }
    }

    #[test]
    fn a_thread_that_has_no_time_issues_many_at_once_unless_it_was_told_how_many() {
        // The first strip is issued: how many the latency is worth depends on it.
        let mut auto = Cut::new(&Strips::new(), 1, 0..1 << 16, false);
        auto.advance(8192);
        for idle in [None, Some(0.0), Some(4e-9)] {
            let known = loop_of(idle);
            assert_eq!(auto.refill(&known), auto.unroll(&known), "{idle:?}: one by one");
        }
        for busy in [8e-9, 80e-9] {
            let known = loop_of(Some(busy));
            assert_eq!((auto.refill(&known), auto.unroll(&known)), (4, 8), "{busy}");
            let told = Cut::new(&Strips::new().unroll(3), 1, 0..1 << 16, false);
            assert_eq!((told.refill(&known), told.unroll(&known)), (3, 3), "{busy}");
        }
    }

    proptest! {
        /// The cuts hold, whatever a caller asks for.
        #[test]
        fn strips_of_absurd_options_are_the_range_all_the_same(
            policy in prop_oneof![
                Just(StripPolicy::Auto),
                any::<usize>().prop_map(StripPolicy::Fixed),
                (any::<usize>(), any::<f64>())
                    .prop_map(|(first, growth)| StripPolicy::Variable { first, growth }),
            ],
            grain in prop_oneof![Just(0), Just(1), Just(usize::MAX), any::<usize>()],
            memory in prop_oneof![Just(0), Just(usize::MAX), any::<usize>()],
            unroll in proptest::option::of(any::<u32>()),
            compute in proptest::option::of(0.0..1e-6_f64),
            bytes in 1..2000_u64,
        ) {
            let mut strips = Strips::new().policy(policy).grain(grain).memory(memory);
            if let Some(unroll) = unroll {
                strips = strips.unroll(unroll);
            }
            let known = loop_of(compute);
            let mut cut = Cut::new(&strips, 1, 7..7 + bytes, false);
            while !cut.is_over() {
                let (next, before) = (cut.next(&known), cut.offset());
                prop_assert!(next > 0 && before + next <= 7 + bytes, "{next} at {before}");
                prop_assert!(cut.refill(&known) <= cut.unroll(&known));
                cut.advance(next);
                cut.handle_done();
            }
            prop_assert_eq!(cut.offset(), 7 + bytes);
        }
    }
}
