//! How long the next strip is: the rules of docs/theory.md §14, strip by strip, as a function of
//! what is known by then.
//!
//! A strip of `S` bytes occupies the path for `G·S`, is there `L` after that, and is computed on
//! for `K·S`; each costs the thread `o` and the path `g`. All strips together take about
//!
//! ```text
//! K < G    o + L + G·N + K·S_last             the path is always busy if S >= o/(G-K)
//! K >= G   o + L + G·S_first + K·N + m·o      the thread is always busy
//! ```
//!
//! so what a strip exposes at one end is `min(K, G)·S`, and more strips cost more `o` and `g`.
//! `sqrt(N·(o+g)/G)` balances the two where the thread is always busy: the model's rule
//! ([`StripModel::rule_strip`]) with what the path's ends lose for each request besides. Where the
//! path is, `o` and most of `g` hide behind it, and much the same size is right as long as `K` is
//! not much smaller than `G`; below that strips are longer. So the size hardly depends on `K`,
//! which is not known when the first strips are issued. For `K < G` the exposed end is the last
//! strip, so the last strips fall by `K/G` each, to half at least; for `K >= G` it is the first,
//! and they grow as the optimum's do, to `(o + K·S)/G` after `S`, and to twice the rule at most.
//!
//! A strip that is as long as everything is one get. That is what comes out where cutting cannot
//! win: `min(K, G)·N` is all that overlap can save.

use core::num::NonZeroU32;

use piped_model::strip::{Network, StripModel, Unrolling};

/// Strips that are ahead of the one that is waited for, at most: with more, each would be too short
/// for its latency to be worth hiding.
pub(crate) const UNROLL_MAX: u32 = 32;

/// Strips that grow do so up to this many times the rule's: beyond that hardly any issues are left
/// to be saved, and what was timed wrong would decide about more of what is left.
const GROWTH_MAX: f64 = 2.0;

/// Strips that fall do so down to this part of the others. The last of them is computed when the
/// path has nothing left to do, and each shorter one costs the path as much as a longer one.
const FALL_MIN: f64 = 0.5;

/// A rest at the end goes with the last strip if it is less than this part of it.
const CRUMB: f64 = 0.25;

/// The part of a request's overhead that does not hide behind other requests' bytes where the path
/// always has some.
const HIDDEN: f64 = 8.0;

/// The computation, as a part of the path's pace, from which the thread is what takes time: what it
/// does besides counts then.
const THREAD_BOUND: f64 = 0.8;

/// A loop over strips as it is known now. Seconds, and seconds per byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Loop {
    /// `o`: what a strip costs the thread; positive.
    pub(crate) issue: f64,
    /// `g`: what a request costs the path beside its bytes.
    pub(crate) overhead: f64,
    /// `L`: what a request takes beside what it occupies.
    pub(crate) latency: f64,
    /// Cost of a byte, `G`: positive.
    pub(crate) per_byte: f64,
    /// `K`, once it is known.
    pub(crate) compute: Option<f64>,
}

impl Loop {
    /// The costs in the model's terms, if they make sense: a serial network, one get for each strip
    /// that is done.
    fn model(&self) -> Option<StripModel> {
        let (unroll, unrolling) = (NonZeroU32::MIN, Unrolling::Rolling);
        let model = StripModel {
            issue: self.issue,
            per_byte: self.per_byte,
            compute: self.compute.unwrap_or(self.per_byte),
            latency: self.latency,
            unroll,
            unrolling,
            network: Network::Serial,
        };
        model.checked().ok()
    }

    /// The loop as the writer sees it: bytes are computed first and moved then. A program that is
    /// run backwards takes as long (reversibility). So sizes are those of a reader that gets for
    /// `K` and computes for `G`, and the loop's end is its beginning.
    pub(crate) fn mirrored(&self) -> Self {
        let compute = self.compute.filter(|compute| *compute > 0.0);
        Self { per_byte: compute.unwrap_or(self.per_byte), compute: Some(self.per_byte), ..*self }
    }

    /// Whether the thread has no time to lose, as far as is known.
    pub(crate) fn is_thread_bound(&self) -> bool {
        self.compute.is_some_and(|compute| compute >= THREAD_BOUND * self.per_byte)
    }

    /// Bytes of the next strip, a real number above 0 and at most `left`. `bytes`: all of them,
    /// `N`; `left` of them are in no strip yet; `last`: the strip before, if there is one.
    pub(crate) fn next_strip(&self, bytes: f64, left: f64, last: Option<f64>) -> f64 {
        let Some(model) = self.model() else { return left };
        let (ratio, exposed) = (model.compute / model.per_byte, model.compute.min(model.per_byte));
        let (overhead, waits) = (self.overhead.max(0.0), ratio < 1.0);
        // What one more strip makes the loop longer.
        let each = if waits { overhead / HIDDEN + self.issue * ratio } else { self.issue };
        if exposed * left <= each {
            return left;
        }
        let rule = (bytes * (self.issue * ratio.min(1.0) + overhead) / self.per_byte).sqrt();
        let strip = rule.max((bytes * each / exposed).sqrt());
        let next = match last {
            _ if waits => {
                // The last ones fall, unless the thread could not issue them as fast as the path
                // takes them.
                let least = model.rule_strip(bytes).min(rule).max(strip * FALL_MIN);
                (left * (1.0 - ratio)).max(least).min(strip)
            }
            // With sizes that grow by `K/G` a strip more halves (K = 2G) what is waited for first.
            None => strip.min((self.issue + overhead) / (model.per_byte * ratio.ln())),
            Some(last) => {
                let grown = (self.issue + model.compute * last) / model.per_byte;
                grown.min(strip * GROWTH_MAX)
            }
        };
        // What would be left then is not worth a get of its own. (Of a strip that everybody waits
        // for it is.)
        let crumb = (each / exposed).max(if last.is_some() { next * CRUMB } else { 0.0 });
        if left - next <= crumb { left } else { next }
    }

    /// Strips that are to be on their way behind the one that is waited for, at least one, for
    /// strips of that size ([`StripModel::unroll_depth`]).
    pub(crate) fn unroll(&self, strip: f64) -> u32 {
        let Some(model) = self.model() else { return 1 };
        // Until the computation is known it may be nothing: then only the path takes time.
        let model = StripModel { compute: self.compute.unwrap_or(0.0), ..model };
        let depth = model.unroll_depth(strip).ceil();
        // Above the largest it saturates.
        (depth as u32).clamp(1, UNROLL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use piped_model::strip::Policy;
    use proptest::prelude::*;

    use super::*;

    const MICRO: f64 = 1e-6;

    fn known(compute: f64) -> Loop {
        Loop { issue: 5e-6, overhead: 0.0, latency: 0.0, per_byte: 8e-9, compute: Some(compute) }
    }

    /// All strips of a loop with a computation that is known from the start.
    fn sizes(of: &Loop, bytes: f64) -> Vec<f64> {
        let (mut sizes, mut left, mut last) = (Vec::new(), bytes, None);
        while left > 0.0 {
            let next = of.next_strip(bytes, left, last);
            assert!(next > 0.0 && next <= left, "{next} of {left}");
            sizes.push(next);
            (left, last) = (left - next, Some(next));
            assert!(sizes.len() <= 1 << 16, "it ends");
        }
        sizes
    }

    #[test]
    fn a_quarter_of_the_paths_pace_takes_balanced_strips_that_fall_at_the_end() {
        // c = 5 us/4, sqrt(65536 * 1.25 us / 2 ns) = 6400 bytes; o/(G-K) = 833 bytes.
        let sizes = sizes(&known(2e-9), 65_536.0);
        assert_eq!(sizes[..9], [6400.0; 9]);
        // 7936 are left, of which 3/4 are less than a strip. To cut the rest again saves no more
        // than it costs.
        assert_eq!(sizes[9..], [5952.0, 1984.0]);
    }

    #[test]
    fn computation_that_takes_longer_grows_as_the_optimum_does() {
        // 5 us / (8 ns * ln 1.5) = 1541; then (5 us + 12 ns * 1541)/8 ns = 2937, and so on.
        let sizes = sizes(&known(12e-9), 65_536.0);
        let first = 625.0 / 1.5_f64.ln();
        let wanted = [first, 625.0 + 1.5 * first, 625.0 + 1.5 * (625.0 + 1.5 * first)];
        assert!(
            sizes.iter().zip(wanted).all(|(size, wanted)| (size - wanted).abs() < 1e-6),
            "{sizes:?}"
        );
    }

    #[test]
    fn what_cannot_win_is_one_get() {
        // All that overlap could save is 65536 bytes * 0.05 ns = 3.3 us, for an eighth of 40 us.
        let of = |compute| Loop { overhead: 40e-6, ..known(compute) };
        assert_eq!(sizes(&of(0.05e-9), 65_536.0), [65_536.0]);
        assert_eq!(sizes(&of(0.0), 65_536.0), [65_536.0]);
        // N < o/G.
        assert_eq!(sizes(&known(1.0), 600.0), [600.0]);
    }

    #[test]
    fn latency_takes_strips_ahead_and_nothing_else() {
        let near = known(4e-9);
        let far = Loop { latency: 200e-6, ..near };
        assert_eq!(sizes(&far, 65_536.0), sizes(&near, 65_536.0));
        assert_eq!(near.unroll(8192.0), 1);
        // A strip every 65.5 us: 1 + 3.05.
        assert_eq!(far.unroll(8192.0), 5);
        assert_eq!(Loop { latency: 1.0, ..near }.unroll(1.0), UNROLL_MAX);
        // Unknown computation may be none.
        assert_eq!(Loop { compute: None, per_byte: 1e-12, ..far }.unroll(8192.0), UNROLL_MAX);
    }

    #[test]
    fn a_writer_is_a_reader_run_backwards() {
        let writer = known(2e-9).mirrored();
        assert_eq!((writer.per_byte, writer.compute), (2e-9, Some(8e-9)));
        let sizes = sizes(&writer, 65_536.0);
        // 5 us / (2 ns * ln 4), and they grow.
        assert!((sizes[0] - 2500.0 / 4_f64.ln()).abs() < 1e-6, "{sizes:?}");
        assert!(sizes.windows(2).take(2).all(|pair| pair[1] > pair[0]), "{sizes:?}");
        let unknown = Loop { compute: None, ..known(1.0) }.mirrored();
        assert_eq!((unknown.per_byte, unknown.compute), (8e-9, Some(8e-9)));
    }

    #[test]
    fn figures_that_make_no_sense_are_one_get() {
        for per_byte in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let odd = Loop { per_byte, ..known(1e-9) };
            assert_eq!(odd.next_strip(1e6, 1e5, None), 1e5);
            assert_eq!(odd.unroll(1e4), 1);
        }
    }

    proptest! {
        /// On the model's network, without latency: near the optimum, and never worse than one get.
        #[test]
        fn strips_are_near_the_optimum_and_never_worse_than_one_get(
            issue in 0.5..50.0_f64, per_byte in 0.1..20.0_f64, ratio in 0.01..8.0_f64,
            kilobytes in 1.0..8192.0_f64,
        ) {
            let (issue, per_byte, bytes) = (issue * MICRO, per_byte * 1e-9, kilobytes * 1024.0);
            let compute = ratio * per_byte;
            let of = Loop { issue, overhead: 0.0, latency: 0.0, per_byte, compute: Some(compute) };
            let model = StripModel::new(issue, per_byte, compute).expect("positive");
            let strips = sizes(&of, bytes);
            let total = |cost: f64| cost + compute * bytes;
            let ours = total(model.cost_seconds(&strips));
            let one = total(model.vectorised_seconds(bytes));
            let best = model.strips(Policy::Optimal, bytes).expect("no latency").cost_seconds;
            prop_assert!(ours <= one * (1.0 + 1e-9), "{ours} against one get's {one}: {strips:?}");
            // Where there is room for a few strips only, one more or less is much (docs/theory.md
            // §14).
            let few = bytes < 64.0 * issue / per_byte;
            prop_assert!(
                ours <= total(best) * if few { 1.25 } else { 1.08 },
                "{ours} against {} at best: {strips:?}", total(best)
            );
        }
    }
}
