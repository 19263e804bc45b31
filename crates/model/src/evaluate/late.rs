//! What the slowest of several fragments costs a transfer.
//!
//! Let `T` be the latency by the recurrence, of means. It is the longest of all ways through the
//! fragments and stages. Of those that pass the latency of fragment `i` at stage `j` the longest is
//! shorter than `T` by the *slack* `s(i,j)`. A way passes one latency of each stage (where no
//! window holds fragments back). So if one stage's fragments are late by independent `X`, the
//! transfer is late by
//!
//! ```text
//! M = max_i (X_i - s_i)            P(M <= y) = prod_i F(y + s_i)
//! ```
//!
//! exactly; that is the distribution of the highest order statistic where all slacks are 0. Several
//! stages that spread are taken to be late one after the other, independently of which fragment is
//! the slowest in each: their `M` add up.
//!
//! The quantile `Q` of a plan jumps to the length of a stall where the part of the transfers that
//! meet one passes what is allowed. That part is known by the few fragments that were seen to
//! stall. So `Q` is not taken at the part that was found, but in the mean over all that it may be:
//! of `y` that `c` fragments of all were beyond, the part beyond is taken to have the gamma
//! distribution of shape `c` around what was found, and
//!
//! ```text
//! E Q = y_0 + integral over y > y_0 of P(the part beyond y is more than is allowed)
//! ```

use core::num::NonZeroU32;

use super::{check, sum};
use crate::spread::{Spread, normal};
use crate::stage::{STAGES_MAX, StageCost};

/// The most fragments of a stage that [`late`] looks at.
pub const LATE_FRAGMENTS_MAX: usize = 64;

/// A transfer that takes more than so many times what its means say has met a stall.
pub const STALLED_TIMES: f64 = 8.0;

/// Fragments whose slacks count one by one; those of the others are taken together.
const NEAR: usize = 8;

/// Part of a latency that the integral of a quantile is known to between two of its points, and the
/// most halvings to get there.
const FINE: f64 = 0.01;
const HALVINGS: u32 = 20;

/// More fragments than anybody counts.
const SAMPLES_MAX: f64 = 1e12;

/// By how much a transfer takes longer than its stages' means say, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Late {
    /// The mean over all transfers.
    pub mean: f64,
    /// The mean over those that met no stall ([`STALLED_TIMES`]).
    pub usual: f64,
    /// The wanted quantile of the lateness, in the mean over what spreads may be
    /// ([`Spread::samples`]).
    pub quantile: f64,
}

/// By how much a transfer of these fragments is late, where stages spread ([`StageCost::spread`]);
/// `None` if none does, if there are more than [`LATE_FRAGMENTS_MAX`] fragments, or if the lists
/// fit neither the path nor each other. `sizes` and
/// `depth` as in [`super::lists`]; `part`: that of the transfers whose lateness is
/// [`Late::quantile`]. Takes microseconds and does not allocate.
///
/// With lognormal latencies, the mean latency is within 1 % of a Monte Carlo's where one stage
/// spreads and within 5 % where two do, quantiles of 0.9 and more within 5 % and 8 %. A rare stall
/// is known as well as the bin of [`Spread`] that it falls into, which is 19 % wide. Where a window
/// lets several fragments through at a time, but not all, those that wait are late by themselves.
///
/// ```
/// use piped_model::evaluate::late;
/// use piped_model::spread::Spread;
/// use piped_model::stage::{Spreading, Stage};
/// let disk = Stage { latency: 70e-6, overhead: 1e-6, per_byte: 0.1e-9, window: None };
/// let disk = Spreading { stage: disk, spread: Spread::lognormal(70e-6, 1.0, (0.0, 0.0)) };
/// let net = Spreading { spread: None, ..disk };
/// let sizes: [&[u64]; 2] = [&[65_536], &[16_384; 4]];
/// let [one, four] = sizes.map(|list| late(&[disk, net], &[list; 2], None, 0.99));
/// let (one, four) = (one.expect("the disk spreads"), four.expect("the disk spreads"));
/// assert!(one.mean.abs() < 1e-6 && four.mean > 50e-6);
/// assert!(four.quantile > 1.4 * one.quantile);
/// ```
#[must_use]
pub fn late<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
    part: f64,
) -> Option<Late> {
    let fits = |list: &&[u64]| (1..=LATE_FRAGMENTS_MAX).contains(&list.len());
    let spreads = path.iter().any(|cost| cost.spread().is_some());
    if !spreads || path.len() > STAGES_MAX || !sizes.iter().all(fits) {
        return None;
    }
    check(path.len(), sizes).ok()?;
    let ways = Ways::of(path, sizes, depth);
    let mut known = [None; STAGES_MAX];
    for (stage, known) in known.iter_mut().enumerate().take(path.len()) {
        let Some(spread) = path[stage].spread() else { continue };
        let window = path[stage].stage_at(sizes[stage][0] as f64);
        let window = window.narrowed(depth.filter(|_| stage == 0)).window;
        let in_turn = window == NonZeroU32::new(1);
        *known = Some(Slowest::of(spread, ways.slacks(stage, sizes[stage].len()), in_turn));
    }
    let all = || known.iter().flatten();
    let far = (STALLED_TIMES - 1.0) * ways.seconds;
    let mut late = Late::default();
    let mut usual = [0.0; STAGES_MAX];
    for (slowest, own) in all().zip(&mut usual) {
        let [mean, within] = slowest.means(far);
        *own = within;
        late.mean += mean;
        late.usual += within;
    }
    let top = all().map(|slowest| slowest.spread.quantile(1.0)).fold(0.0, f64::max);
    let bounds = (-ways.seconds, late.usual.abs() + top);
    let quantile = |beyond: &dyn Fn(f64) -> Beyond| {
        let exceeds = |y| beyond(y).exceeds(1.0 - part);
        falling(bounds, FINE * ways.seconds, &exceeds)
    };
    // One of them is late, and the others as usual; or each a little.
    let together =
        |y: f64| Beyond::any(all().zip(&usual).map(|(it, own)| it.beyond(y - late.usual + own)));
    late.quantile = quantile(&together);
    if all().count() > 1 {
        let away = |(it, own): (&Slowest<'_>, &f64)| quantile(&|y| it.beyond(y)) - own;
        let squares: f64 = all().zip(&usual).map(away).map(|away| away * away.abs()).sum();
        late.quantile = late.quantile.max(late.usual + squares.abs().sqrt().copysign(squares));
    }
    late.quantile += all().map(Slowest::before_last).sum::<f64>();
    Some(late)
}

/// The part of the transfers that are later than something, as far as is known.
#[derive(Clone, Copy)]
struct Beyond {
    part: f64,
    /// Number of fragments that were as late.
    samples: f64,
}

impl Beyond {
    /// Where one of several independent causes is enough.
    fn any(causes: impl Iterator<Item = Self>) -> Self {
        let (mut within, mut sum, mut variance) = (1.0, 0.0, 0.0);
        for Self { part, samples } in causes.filter(|it| it.part > 0.0) {
            within *= 1.0 - part;
            sum += part;
            variance += part * part / samples;
        }
        Self { part: 1.0 - within, samples: sum * sum / variance }
    }

    /// The probability that the true part is more than is `allowed`: the gamma distribution by its
    /// cube root (Wilson and Hilferty, The distribution of chi-square, 1931).
    fn exceeds(self, allowed: f64) -> f64 {
        if self.part <= 0.0 || self.samples <= 0.0 {
            return 0.0;
        }
        let samples = self.samples.min(SAMPLES_MAX);
        let away = (allowed / self.part).cbrt() - (1.0 - 1.0 / (9.0 * samples));
        1.0 - normal(away * 3.0 * samples.sqrt())
    }
}

/// The lower bound plus the integral of a function within bounds that falls from 1 to 0, to `fine`
/// between each two points: no more is uncertain than the area between its values at both.
fn falling((low, high): (f64, f64), fine: f64, f: &dyn Fn(f64) -> f64) -> f64 {
    fn area(ends: [(f64, f64); 2], fine: f64, left: u32, f: &dyn Fn(f64) -> f64) -> f64 {
        let [(from, before), (to, after)] = ends;
        if left == 0 || (before - after).abs() * (to - from) <= fine {
            return 0.5 * (before + after) * (to - from);
        }
        let middle = 0.5 * (from + to);
        let middle = (middle, f(middle));
        area([ends[0], middle], fine, left - 1, f) + area([middle, ends[1]], fine, left - 1, f)
    }
    low + area([(low, 1.0), (high, f(high))], fine, HALVINGS, f)
}

/// The longest ways through all fragments and stages.
struct Ways {
    seconds: f64,
    /// For each stage and fragment, the longest way to its departure, and then the longest way
    /// through its latency to the end.
    through: [[f64; LATE_FRAGMENTS_MAX]; STAGES_MAX],
}

impl Ways {
    fn of<C: StageCost>(path: &[C], sizes: &[&[u64]], depth: Option<NonZeroU32>) -> Self {
        let mut through = [[0.0; LATE_FRAGMENTS_MAX]; STAGES_MAX];
        let window = |stage: usize, size: u64| {
            let limit = depth.filter(|_| stage == 0);
            let cost = path[stage].stage_at(size as f64).narrowed(limit);
            (cost, cost.window.map_or(usize::MAX, |window| window.get() as usize))
        };
        for (stage, list) in sizes.iter().enumerate() {
            let (mut free, mut end, mut taken) = (0.0_f64, 0_u128, 0_u128);
            let mut source = 0;
            for (index, &size) in list.iter().enumerate() {
                end += u128::from(size);
                let mut start = free;
                if let Some(before) = stage.checked_sub(1) {
                    while taken < end && source < sizes[before].len() {
                        taken += u128::from(sizes[before][source]);
                        source += 1;
                    }
                    start = start.max(through[before][source.saturating_sub(1)]);
                }
                let (cost, window) = window(stage, size);
                if let Some(leaver) = index.checked_sub(window) {
                    start = start.max(through[stage][leaver]);
                }
                free = start + cost.occupancy(size as f64);
                through[stage][index] = free + cost.latency;
            }
        }
        let last = path.len() - 1;
        let seconds = through[last][..sizes[last].len()].iter().copied().fold(0.0, f64::max);
        // From the start of each fragment of the stage behind to the end of all.
        let mut behind = [0.0_f64; LATE_FRAGMENTS_MAX];
        for stage in (0..=last).rev() {
            let list = sizes[stage];
            let next = sizes.get(stage + 1).copied().unwrap_or(&[]);
            let mut here = [0.0_f64; LATE_FRAGMENTS_MAX];
            let (mut begin, mut place) = (sum(list), next.len());
            let mut from = sum(next);
            for (index, &size) in list.iter().enumerate().rev() {
                begin -= u128::from(size);
                // The first fragment behind that holds bytes of this one.
                while place > 0 && from > begin {
                    place -= 1;
                    from -= u128::from(next[place]);
                }
                let mut rest = if next.is_empty() { 0.0 } else { behind[place] };
                let (cost, window) = window(stage, size);
                if let Some(after) = index.checked_add(window).filter(|&after| after < list.len()) {
                    rest = rest.max(here[after]);
                }
                through[stage][index] += rest;
                let following = if index + 1 < list.len() { here[index + 1] } else { 0.0 };
                here[index] = cost.occupancy(size as f64) + following.max(cost.latency + rest);
            }
            behind = here;
        }
        Self { seconds, through }
    }

    /// By how much each fragment of a stage may be late before the transfer is, the least first.
    fn slacks(&self, stage: usize, count: usize) -> ([f64; LATE_FRAGMENTS_MAX], usize) {
        let mut slacks = self.through[stage].map(|way| (self.seconds - way).max(0.0));
        slacks[..count].sort_unstable_by(f64::total_cmp);
        (slacks, count)
    }
}

/// The lateness of the slowest fragment of a stage.
#[derive(Clone, Copy)]
struct Slowest<'a> {
    spread: &'a Spread,
    /// Slacks with the number of fragments that have it; groups beyond [`NEAR`] double.
    slacks: [(f64, i32); NEAR + 4],
    groups: usize,
    count: usize,
    /// Whether each fragment waits for the one before: all their lateness adds up.
    in_turn: bool,
}

impl<'a> Slowest<'a> {
    fn of(
        spread: &'a Spread,
        (slacks, count): ([f64; LATE_FRAGMENTS_MAX], usize),
        in_turn: bool,
    ) -> Self {
        let in_turn = in_turn && count > 1;
        let mut it = Self { spread, slacks: [(0.0, 0); NEAR + 4], groups: 0, count, in_turn };
        let mut rest = &slacks[..count];
        while !rest.is_empty() && it.groups < it.slacks.len() {
            let size = if it.groups < NEAR { 1 } else { NEAR << (it.groups - NEAR) };
            let (group, behind) = rest.split_at(size.min(rest.len()));
            let slack = group.iter().sum::<f64>() / group.len() as f64;
            it.slacks[it.groups] = (slack, group.len() as i32);
            (it.groups, rest) = (it.groups + 1, behind);
        }
        it
    }

    /// The probability that no fragment delays the end by more than so many seconds.
    fn part_within(&self, late: f64) -> f64 {
        let mut product = 1.0;
        for &(slack, count) in &self.slacks[..self.groups] {
            let part = self.spread.part_within(late + slack);
            // Slacks rise: so it is for all others.
            if part >= 1.0 || product <= 0.0 {
                break;
            }
            product *= part.powi(count);
        }
        product
    }

    /// How many transfers are later than that.
    fn beyond(&self, late: f64) -> Beyond {
        let fragments = 1.0 - self.spread.part_within(late + self.slacks[0].0);
        Beyond {
            part: 1.0 - self.part_within(late),
            samples: if fragments > 0.0 { fragments * self.spread.samples() } else { 0.0 },
        }
    }

    /// The mean lateness, and the mean of those that are late by at most `far`.
    fn means(&self, far: f64) -> [f64; 2] {
        if self.in_turn {
            let one =
                Self { groups: 1, count: 1, in_turn: false, slacks: [(0.0, 1); NEAR + 4], ..*self };
            return one.means(far).map(|mean| mean * self.count as f64);
        }
        // E min(M, far), by the integral of 1 - P(M <= y).
        let mut edges = self.spread.edges();
        let first = edges.next().unwrap_or(0.0);
        let (mut from, mut mean, mut within) = (first, first, first);
        let top = self.spread.latest();
        for to in edges {
            if from >= top {
                break;
            }
            // Two points between each two: the product is no line where the factors are.
            for quarter in [0.25, 0.75] {
                let step = 0.5 * (to - from);
                let beyond = 1.0 - self.part_within(from + quarter * (to - from));
                mean += step * beyond;
                within += if to <= far { step * beyond } else { 0.0 };
            }
            from = to;
        }
        let usual = self.part_within(far);
        // From E min(M, far) to the mean of those within; `far` itself is rounded to an edge.
        let edge = self.spread.edges().filter(|&edge| edge <= far).fold(first, f64::max);
        let within = if usual > 0.0 { (within - (1.0 - usual) * edge) / usual } else { edge };
        [mean, within]
    }

    /// What fragments that wait for each other are late by before the slowest.
    fn before_last(&self) -> f64 {
        if !self.in_turn {
            return 0.0;
        }
        let [one, _] = self.means(f64::INFINITY);
        one * (1.0 - 1.0 / self.count as f64)
    }
}

#[cfg(test)]
mod tests {
    use piped_core::noise::Noise;

    use super::*;
    use crate::stage::{Spreading, Stage};

    const DISK: Stage = Stage { latency: 70e-6, overhead: 2e-6, per_byte: 0.4e-9, window: None };

    /// The quantile of 64 KiB in so many fragments, if this part of them is known to stall by so
    /// many samples.
    fn p99(fragments: usize, stalled: f64, samples: f64) -> f64 {
        let exact = Spread::lognormal(DISK.latency, 0.2, (stalled, 50.0)).expect("it differs");
        let (unit, _, parts) = exact.parts();
        let spread = Spread::of_parts(unit, samples, &parts.collect::<Vec<_>>());
        let disk = Spreading { stage: DISK, spread };
        let sizes = vec![65_536 / fragments as u64; fragments];
        late(&[disk], &[&sizes], None, 0.99).expect("it spreads").quantile
    }

    /// A gamma distributed number of whole shape and scale 1.
    fn gamma(shape: u32, noise: &mut Noise) -> f64 {
        (0..shape).map(|_| -noise.unit().ln()).sum()
    }

    #[test]
    fn a_quantile_is_that_of_all_shares_that_stalls_may_have() {
        let mut noise = Noise(1);
        let stall = 49.0 * DISK.latency;
        for (fragments, stalls, samples) in
            [(1, 2, 400.0), (1, 20, 4000.0), (2, 20, 4000.0), (3, 20, 4000.0), (4, 5, 4000.0)]
        {
            let share = f64::from(stalls) / samples;
            let runs = 2000;
            let drawn = |_| {
                let share = gamma(stalls, &mut noise) / samples;
                p99(fragments, share, f64::INFINITY)
            };
            let mean = (0..runs).map(drawn).sum::<f64>() / f64::from(runs);
            let found = p99(fragments, share, samples);
            let case = format!("{fragments} of {stalls} in {samples}: {found} {mean}");
            println!("{case}");
            assert!((found - mean).abs() < 0.05 * stall, "{case}");
        }
    }

    #[test]
    fn what_is_known_exactly_is_a_quantile_as_ever() {
        let at = |stalled| p99(1, stalled, f64::INFINITY);
        assert!(at(0.0099) < 2.0 * DISK.latency && at(0.0101) > 40.0 * DISK.latency);
        // The fewer fragments are known, the more may be stalls.
        let known = [1e6, 1e4, 1e3, 200.0].map(|samples| p99(1, 0.005, samples));
        assert!(known[1] < 1.1 * known[0], "{known:?}");
        assert!(known[2] > 2.0 * known[1] && known[3] > 2.0 * known[2], "{known:?}");
    }
}
