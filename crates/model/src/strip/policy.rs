//! How strips are cut: the paper's strategies, the optimum, and the rule.

use super::{Network, StripModel};

/// The most strips of a transfer: more are not planned, and "optimal" is among that many.
pub const STRIPS_MAX: usize = 1 << 20;

/// The most strips there may be, none shorter than a byte.
fn strips_max(bytes: f64) -> usize {
    (bytes as usize).clamp(1, STRIPS_MAX)
}

/// A strategy for the sizes of strips.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// Equal strips, the last one shorter; which size is found by a search (section 3.1).
    Fixed,
    /// Equal strips of [`StripModel::rule_strip`], the last one shorter: no search.
    Rule,
    /// `S_i = (1+f)·S_{i-1}` from `S_1 = o/G`, the smallest message that pays (section 3.1; the
    /// paper used `f = 0.45`). No `f` that does not know the size is near-optimal.
    Variable {
        /// `f`, the growth, positive.
        growth: f64,
    },
    /// Growth from `S_1 = o/G` with `f_i = K/G - 1 + o/(G·S_i)`, which is the optimum's own growth,
    /// until the rule's strip; then constant.
    VariableUntilRule,
    /// The sizes that cost least ([`StripModel::optimal`]).
    Optimal,
}

impl Policy {
    /// The paper's `f` of section 4.5, tuned on Myrinet.
    pub const PAPER_GROWTH: f64 = 0.45;

    /// All of them, with the paper's growth.
    pub const ALL: [Self; 5] = [
        Self::Fixed,
        Self::Variable { growth: Self::PAPER_GROWTH },
        Self::VariableUntilRule,
        Self::Rule,
        Self::Optimal,
    ];

    /// A word for it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Rule => "rule",
            Self::Variable { .. } => "variable",
            Self::VariableUntilRule => "variable-until-rule",
            Self::Optimal => "optimal",
        }
    }
}

/// Strips over the reals, and what they cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Strips {
    /// Their sizes in bytes, positive, in the order they are fetched. They add up to `N` but for
    /// rounding of the last place.
    pub sizes: Vec<f64>,
    /// What [`StripModel::cost_seconds`] says of them.
    pub cost_seconds: f64,
}

impl StripModel {
    /// The strips of a policy. Nothing for no bytes, where the policy does not apply (the optimum
    /// with latency or unrolling), or where it takes more than [`STRIPS_MAX`].
    ///
    /// ```
    /// use piped_model::strip::{Policy, StripModel};
    /// let model = StripModel::new(5e-6, 6.089e-9, 4.06e-9)?;
    /// let cost = |policy| model.strips(policy, 65536.0).map(|strips| strips.cost_seconds);
    /// let (rule, optimal) = (cost(Policy::Rule), cost(Policy::Optimal));
    /// assert!(rule < Some(1.03 * optimal.unwrap()) && rule >= optimal);
    /// assert!(rule < Some(0.5 * model.vectorised_seconds(65536.0)));
    /// # Ok::<(), piped_model::strip::StripFault>(())
    /// ```
    #[must_use]
    pub fn strips(&self, policy: Policy, bytes: f64) -> Option<Strips> {
        if !(bytes > 0.0 && bytes.is_finite()) {
            return None;
        }
        match policy {
            Policy::Fixed => self.fixed(bytes),
            Policy::Rule => self.priced(equal(bytes, self.rule_strip(bytes))?),
            Policy::Variable { growth } => {
                self.priced(growing(bytes, self.smallest(), |strip| strip * (1.0 + growth))?)
            }
            Policy::VariableUntilRule => {
                let rule = self.rule_strip(bytes);
                let optimal = |strip| (self.issue + self.compute * strip) / self.per_byte;
                // Within 1 % of the rule it is there; it would never quite be. Where K >= G there
                // is no end to it.
                let near = if self.compute < self.per_byte { 0.99 * rule } else { f64::INFINITY };
                let next = |strip| if strip >= near { rule } else { optimal(strip) };
                self.priced(growing(bytes, self.smallest(), next)?)
            }
            Policy::Optimal => self.optimal(bytes),
        }
    }

    /// The sizes that cost least, by the recurrences of the module's head. Only for `U = 1` and
    /// `L = 0`.
    ///
    /// For `m` strips the sizes are linear in `S_1`, which the sum then gives; the cost is `m·o`
    /// and the wait for the first strip. More strips shorten that wait until it is gone, and cost
    /// `o` each. Where counts cost the same to the last places (the optimum is that flat where
    /// `(K/G)^m` vanishes) the largest is taken: its strips are nearest to `S*` and need the least
    /// memory.
    #[must_use]
    pub fn optimal(&self, bytes: f64) -> Option<Strips> {
        if self.latency > 0.0 || self.unroll.get() > 1 || !(bytes > 0.0 && bytes.is_finite()) {
            return None;
        }
        const SAME: f64 = 1e-12;
        let one = self.vectorised_seconds(bytes);
        let (mut best, mut strips) = (one, 1);
        for (count, first) in Firsts::new(self, bytes).take(strips_max(bytes) - 1) {
            if first < 0.0 {
                break;
            }
            let wait = (self.per_byte * first - self.issue).max(0.0);
            let cost = count as f64 * self.issue + wait;
            if cost <= best * (1.0 + SAME) && cost < one * (1.0 - SAME) {
                (best, strips) = (best.min(cost), count);
            }
            // From here on only the issues grow.
            if wait == 0.0 {
                break;
            }
        }
        self.optimal_of(bytes, strips)
    }

    /// The sizes that cost least with so many strips; nothing if that many do not fit. Only for
    /// `U = 1` and `L = 0`.
    #[must_use]
    pub fn optimal_of(&self, bytes: f64, strips: usize) -> Option<Strips> {
        if strips == 0 || strips > STRIPS_MAX || self.latency > 0.0 || self.unroll.get() > 1 {
            return None;
        }
        let of_more = Firsts::new(self, bytes).find(|(count, _)| *count >= strips);
        let first = if strips == 1 { bytes } else { of_more?.1 };
        if !(first > 0.0 && first.is_finite()) {
            return None;
        }
        let mut sizes = Vec::with_capacity(strips);
        sizes.push(first);
        for index in 1..strips {
            let step = self.step(index, index + 1 == strips);
            sizes.push(step.factor * sizes[index - 1] + step.offset);
        }
        // With K = 0 there is nothing to hide a last strip behind.
        sizes.retain(|size| *size > 0.0);
        self.priced(sizes)
    }

    /// How strip `index` (from 1) follows from the one before.
    fn step(&self, index: usize, last: bool) -> Step {
        let (grow, issue) = (self.compute / self.per_byte, self.issue / self.per_byte);
        match (self.network, index) {
            (Network::Literal, 1) => {
                Step { factor: 1.0 + grow, offset: if last { -issue } else { 0.0 } }
            }
            _ => Step { factor: grow, offset: if last { 0.0 } else { issue } },
        }
    }

    /// The best constant size: near the rule's, or where latency, unrolling or the literal network
    /// have their own optimum, found on a grid.
    fn fixed(&self, bytes: f64) -> Option<Strips> {
        // Each strip costs its issue at least, and one strip is always possible.
        let most = (self.vectorised_seconds(bytes) / self.issue) as usize;
        let most = most.min(strips_max(bytes));
        let grid =
            core::iter::successors(Some(1), |count: &usize| Some(count + (count / 16).max(1)));
        let by_cost = |a: &Strips, b: &Strips| a.cost_seconds.total_cmp(&b.cost_seconds);
        let coarse = grid.take_while(|count| *count <= most.max(1));
        let hints = [self.rule_strip(bytes), (bytes * self.issue / self.per_byte).sqrt()];
        let hints = hints.into_iter().flat_map(|strip| {
            let count = ((bytes / strip) as usize).min(strips_max(bytes));
            count.saturating_sub(1).max(1)..=count + 2
        });
        let best =
            coarse.chain(hints).filter_map(|count| self.constant(bytes, count)).min_by(by_cost)?;
        let near = best.sizes.len();
        let reach = (near / 16).min(64);
        let fine = (near - reach).max(1)..=near + reach;
        fine.filter_map(|count| self.constant(bytes, count)).chain([best]).min_by(by_cost)
    }

    /// The best so many strips of a constant size. Either all are equal, or the last is `K/G` of
    /// the others, so that it is there just when it is wanted.
    fn constant(&self, bytes: f64, count: usize) -> Option<Strips> {
        let last = (self.compute / self.per_byte).min(1.0);
        let sizes =
            [count as f64, count as f64 - 1.0 + last].map(|strips| equal(bytes, bytes / strips));
        let strips = sizes.into_iter().flatten().filter_map(|sizes| self.priced(sizes));
        strips.min_by(|a, b| a.cost_seconds.total_cmp(&b.cost_seconds))
    }

    /// `o/G`: no smaller message is worth a get of its own (section 4.3).
    fn smallest(&self) -> f64 {
        self.issue / self.per_byte
    }

    /// These sizes with their cost.
    fn priced(&self, sizes: Vec<f64>) -> Option<Strips> {
        let cost_seconds = self.cost_seconds(&sizes);
        (!sizes.is_empty()).then_some(Strips { sizes, cost_seconds })
    }
}

/// `S_{i+1} = factor·S_i + offset`.
#[derive(Debug, Clone, Copy)]
struct Step {
    factor: f64,
    offset: f64,
}

/// The first of the optimal sizes for 2, 3, .. strips, by the sum. `S_i = scale·S_1 + shift`; it
/// falls with the count.
#[derive(Debug)]
struct Firsts<'a> {
    model: &'a StripModel,
    bytes: f64,
    count: usize,
    /// The scale of the last strip.
    scale: f64,
    shift: f64,
    scales: f64,
    shifts: f64,
}

impl<'a> Firsts<'a> {
    const fn new(model: &'a StripModel, bytes: f64) -> Self {
        let (scale, shift) = (1.0, 0.0);
        Self { model, bytes, count: 1, scale, shift, scales: scale, shifts: shift }
    }
}

impl Iterator for Firsts<'_> {
    type Item = (usize, f64);

    fn next(&mut self) -> Option<(usize, f64)> {
        let last = self.model.step(self.count, true);
        let scales = self.scales + last.factor * self.scale;
        let shifts = self.shifts + last.factor * self.shift + last.offset;
        let step = self.model.step(self.count, false);
        self.scale *= step.factor;
        self.shift = step.factor * self.shift + step.offset;
        self.scales += self.scale;
        self.shifts += self.shift;
        self.count += 1;
        Some((self.count, (self.bytes - shifts) / scales))
    }
}

/// Strips of one size, the last one shorter.
fn equal(bytes: f64, strip: f64) -> Option<Vec<f64>> {
    growing(bytes, strip, |strip| strip)
}

/// Strips that follow from each other, the last one cut to what is left.
fn growing(bytes: f64, first: f64, next: impl Fn(f64) -> f64) -> Option<Vec<f64>> {
    let mut sizes = Vec::new();
    let (mut left, mut strip) = (bytes, first);
    while left > 0.0 {
        if strip.is_nan() || strip <= 0.0 || sizes.len() == STRIPS_MAX {
            return None;
        }
        // What is left by the rounding of sums is no strip.
        let size = if strip >= left - 1e-12 * bytes { left } else { strip };
        sizes.push(size);
        left -= size;
        strip = next(strip);
    }
    Some(sizes)
}
