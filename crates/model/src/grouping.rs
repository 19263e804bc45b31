//! One stage cut optimally between neighbours that are given.
//!
//! Everything before the stage is told by a *release curve*: when the bytes up to each position
//! have arrived. Everything behind it is told by a *tail*: how long it still takes after a fragment
//! that begins at a position has been served. With cuts `0 = X_0 < X_1 < ... < X_k = B` the latency
//! is
//!
//! ```text
//! T = max over i <= m of { release(X_i) + sum_{i..m} (g + G·x) + tail(X_{m-1}) }
//! ```
//!
//! (docs/theory.md §6). Whether a latency can be kept is one pass over the positions. `finish(v)`
//! is the earliest end of service of the bytes up to position `v` with all deadlines kept so far.
//! The rest needs to know no more, because an earlier end never hurts. The best latency is found by
//! bisection.
//!
//! The pass is linear. For the last cut `u` before `v`, either the stage waits for bytes
//! (`finish(u) <= release(v)`: then the latest such `u` is best, its fragment is the smallest), or
//! bytes wait for the stage, and `finish(u) - G·u` decides. Of two `u` the later one wins if that
//! is no larger for it: its deadline is laxer too. What remains is a queue with growing values of
//! which only the head is looked at, as in the minimum of a sliding window.
//!
//! A planner and a lower bound (both in `piped-theory`) use the same pass: the
//! one with curves that a plan has, the other with curves that no plan can beat.

/// A stage to be cut, its neighbours given. Times in seconds, positions in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Grouping<'a> {
    /// `g`, the overhead, in seconds.
    pub overhead: f64,
    /// `G`, the inverse bandwidth, in seconds per byte.
    pub per_byte: f64,
    /// Positions where cuts may be: rising from 0 to the size of the transfer, at least these two.
    pub positions: &'a [f64],
    /// Times at which the bytes up to each position are there, never falling. There are as many as
    /// `positions`.
    pub release: &'a [f64],
    /// What it takes after a fragment that begins at a position has been served; not rising. As
    /// long as `positions` (the last entry is not used).
    pub tail: &'a [f64],
    /// The smallest fragment but for the last one, in bytes.
    pub smallest: f64,
    /// The largest fragment, in bytes.
    pub largest: f64,
}

/// Memory of a pass, to be used again.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    finish: Vec<f64>,
    from: Vec<u32>,
    queue: Vec<u32>,
    /// `finish - G·position` of what is in the queue.
    value: Vec<f64>,
}

impl Scratch {
    /// Times at which the bytes up to each position have been served at the earliest, after the
    /// last pass.
    #[must_use]
    pub fn finish(&self) -> &[f64] {
        &self.finish
    }
}

/// Comparisons of sums that differ in their last bits.
const NOISE: f64 = 1e-12;

impl Grouping<'_> {
    /// Whether some cuts keep `limit`. Takes a step for each position.
    #[must_use]
    pub fn feasible(&self, limit: f64, scratch: &mut Scratch) -> bool {
        let Self { overhead, per_byte, positions, release, tail, smallest, largest } = *self;
        let limit = limit + limit.abs() * NOISE;
        let end = positions.len() - 1;
        let Scratch { finish, from, queue, value } = scratch;
        finish.clear();
        finish.resize(end + 1, f64::INFINITY);
        from.resize(end + 1, 0);
        queue.clear();
        value.clear();
        finish[0] = 0.0;
        let (mut head, mut next, mut waiting) = (0, 0, None);
        for v in 1..=end {
            let (here, released) = (positions[v], release[v]);
            // Those far enough before v enter.
            while next < v && (here - positions[next] >= smallest || v == end) {
                if finish[next] < f64::INFINITY {
                    let new = finish[next] - per_byte * positions[next];
                    while queue.len() > head && value[queue.len() - 1] >= new {
                        queue.pop();
                        value.pop();
                    }
                    queue.push(next as u32);
                    value.push(new);
                }
                next += 1;
            }
            // For these the stage waits for bytes, now and from now on: the last one stands for
            // all.
            while head < queue.len() && finish[queue[head] as usize] <= released {
                waiting = Some(queue[head] as usize);
                head += 1;
            }
            let served = overhead + per_byte * here;
            // These have become too late for their deadline, or too large.
            while head < queue.len() {
                let u = queue[head] as usize;
                if value[head] + served + tail[u] <= limit && here - positions[u] <= largest {
                    break;
                }
                head += 1;
            }
            if head < queue.len() {
                finish[v] = value[head] + served;
                from[v] = queue[head];
            }
            if let Some(u) = waiting {
                let done = released - per_byte * positions[u] + served;
                let fits = done + tail[u] <= limit && here - positions[u] <= largest;
                if fits && done < finish[v] {
                    finish[v] = done;
                    from[v] = u as u32;
                }
            }
        }
        finish[end] < f64::INFINITY
    }

    /// The least latency to a part of `tolerance`, and a lower bound of it: (kept, not kept).
    /// `below` must not be above the answer, `above` must be kept; without such a one, `None`. Ask
    /// for the [`Self::cuts`] next.
    pub fn least(
        &self,
        below: f64,
        above: f64,
        tolerance: f64,
        scratch: &mut Scratch,
    ) -> Option<(f64, f64)> {
        if self.feasible(below, scratch) {
            return Some((below, below));
        }
        // Below the spacing of numbers the middle is one of the ends, and it would never be done.
        let tolerance = tolerance.max(4.0 * f64::EPSILON);
        let (mut low, mut high) = (below, above);
        if !self.feasible(high, scratch) {
            return None;
        }
        while high - low > tolerance * high {
            let middle = f64::midpoint(low, high);
            if self.feasible(middle, scratch) { high = middle } else { low = middle }
        }
        Some((high, low))
    }

    /// Indices into `positions` where the fragments end, if `limit` can be kept.
    pub fn cuts(&self, limit: f64, scratch: &mut Scratch, cuts: &mut Vec<u32>) -> bool {
        if !self.feasible(limit, scratch) {
            return false;
        }
        cuts.clear();
        let mut v = self.positions.len() - 1;
        while v > 0 {
            cuts.push(v as u32);
            v = scratch.from[v] as usize;
        }
        cuts.reverse();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The latency of these cuts, by the formula.
    fn latency(grouping: &Grouping<'_>, cuts: &[usize]) -> f64 {
        let (mut free, mut begin, mut longest) = (0.0_f64, 0, 0.0_f64);
        for &end in cuts {
            let size = grouping.positions[end] - grouping.positions[begin];
            free = free.max(grouping.release[end]) + grouping.overhead + grouping.per_byte * size;
            longest = longest.max(free + grouping.tail[begin]);
            begin = end;
        }
        longest
    }

    #[test]
    fn no_cuts_are_better_than_those_found() {
        let mut state = 7_u64;
        let mut random = |scale: f64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 24) * scale
        };
        let mut scratch = Scratch::default();
        for case in 0..2000 {
            let count = 2 + case % 8;
            let rising = |random: &mut dyn FnMut(f64) -> f64, step: f64| -> Vec<f64> {
                let mut sum = 0.0;
                let mut add = |_| {
                    sum += random(step);
                    sum
                };
                (0..count).map(&mut add).collect()
            };
            let mut positions = rising(&mut random, 4.0);
            positions[0] = 0.0;
            let release = rising(&mut random, 6.0);
            let mut tail = rising(&mut random, 6.0);
            tail.reverse();
            let grouping = Grouping {
                overhead: random(5.0),
                per_byte: random(2.0),
                positions: &positions,
                release: &release,
                tail: &tail,
                smallest: 0.0,
                largest: f64::INFINITY,
            };
            let all = (0..1_usize << (count - 2)).map(|pattern| {
                let inner = (1..count - 1).filter(|place| pattern >> (place - 1) & 1 == 1);
                latency(&grouping, &inner.chain([count - 1]).collect::<Vec<_>>())
            });
            let optimum = all.fold(f64::INFINITY, f64::min);
            let (kept, below) = grouping.least(0.0, 1e3, 1e-9, &mut scratch).expect("1e3 is long");
            assert!((kept - optimum).abs() < 1e-6, "case {case}: {kept}, not {optimum}");
            assert!(below <= optimum * (1.0 + 1e-9), "case {case}");
            let mut cuts = Vec::new();
            assert!(grouping.cuts(kept, &mut scratch, &mut cuts));
            let cuts: Vec<usize> = cuts.iter().map(|&at| at as usize).collect();
            assert!(latency(&grouping, &cuts) <= kept * (1.0 + 1e-9), "case {case}: {cuts:?}");
        }
    }

    #[test]
    fn the_least_latency_is_found_however_exactly_it_is_asked_for() {
        // Bytes come one a second; two fragments of 2 are served by 2+1 and 4+1 at best.
        let stage = Grouping {
            overhead: 1.0,
            per_byte: 0.0,
            positions: &[0.0, 2.0, 4.0],
            release: &[0.0, 2.0, 4.0],
            tail: &[0.0; 3],
            smallest: 1.0,
            largest: 4.0,
        };
        let mut scratch = Scratch::default();
        assert!(stage.feasible(5.0, &mut scratch) && !stage.feasible(4.9, &mut scratch));
        let (kept, below) = stage.least(0.3, 1e3, 0.0, &mut scratch).expect("1e3 is long");
        assert!((kept - 5.0).abs() < 1e-9 && below <= kept, "{below} {kept}");
    }

    #[test]
    fn sizes_are_kept() {
        let positions: Vec<f64> = (0..=20).map(f64::from).collect();
        let none = [0.0; 21];
        let mut grouping = Grouping {
            overhead: 1.0,
            per_byte: 1.0,
            positions: &positions,
            release: &positions,
            tail: &none,
            smallest: 3.0,
            largest: 6.0,
        };
        let (mut scratch, mut cuts) = (Scratch::default(), Vec::new());
        assert!(grouping.cuts(1e3, &mut scratch, &mut cuts));
        let mut begin = 0;
        for &end in &cuts {
            let size = end - std::mem::replace(&mut begin, end);
            assert!(size <= 6 && (size >= 3 || end == 20), "{cuts:?}");
        }
        grouping.largest = 0.5;
        assert!(!grouping.feasible(1e3, &mut scratch));
    }
}
