//! The closed form for equal fragments: tens of nanoseconds, no allocation.
//!
//! It reads the recurrence as the longest path through a grid of fragments and stages. A path
//! crosses every stage once (`g + xG + L` each) and advances `k - 1` fragments in between. An
//! advance takes `g + xG` for one fragment or, where the window binds, `g + xG + L` for `w`
//! fragments. With no window binding, the slowest stage takes all advances: that is Theorem 1
//! (equations 10 and 13). With windows it is a knapsack of a few items with an exact and small
//! search.

use core::num::NonZeroU32;

use crate::stage::{STAGES_MAX, StageCost};

/// Latency in seconds of `count` equal fragments of `bytes / count` each, over the reals
/// (equations 10 and 13, with latencies and windows).
///
/// `depth` bounds the fragments outstanding at the first stage, like a window of that stage. A
/// `count` of 0 is taken as 1. The path has at most [`STAGES_MAX`] stages; later ones are ignored.
///
/// ```
/// use piped_model::evaluate::equal;
/// use piped_model::stage::Stage;
/// // GAM, us and us/KB: 4 KB in five fragments take 188.90 us.
/// let gam = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)]
///     .map(|(g, us)| Stage { latency: 0.0, overhead: g, per_byte: us / 1024.0, window: None });
/// assert!((equal(&gam, 4096.0, 5, None) - 188.90).abs() < 0.005);
/// ```
#[must_use]
pub fn equal<C: StageCost>(path: &[C], bytes: f64, count: u64, depth: Option<NonZeroU32>) -> f64 {
    let count = count.max(1);
    let size = bytes / count as f64;
    let mut grid = Grid::new();
    for (index, cost) in path.iter().take(STAGES_MAX).enumerate() {
        grid.push(cost, size, if index == 0 { depth } else { None });
    }
    grid.crossing + grid.advance(count - 1)
}

/// Latency in seconds of `bytes` in fragments of `fragment_bytes`, the last one shorter if they do
/// not divide. `fragment_bytes` of 0 is taken as 1; 0 bytes are one empty fragment.
///
/// Exact: equal to [`super::lists`] with these sizes in every stage, at the cost of a few
/// multiplications per stage. For a cost that bends, the last fragment is charged what a fragment
/// of its size costs.
///
/// ```
/// use piped_model::evaluate::{lists, uniform};
/// use piped_model::stage::Stage;
/// let path = [Stage { latency: 5.0, overhead: 2.0, per_byte: 0.1, window: None }; 2];
/// let exact = lists(&path, &[&[40, 40, 20], &[40, 40, 20]], None)?;
/// assert!((uniform(&path, 40, 100, None) - exact).abs() < 1e-9);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
#[must_use]
pub fn uniform<C: StageCost>(
    path: &[C],
    fragment_bytes: u64,
    bytes: u64,
    depth: Option<NonZeroU32>,
) -> f64 {
    let fragment_bytes = fragment_bytes.max(1);
    let count = bytes.div_ceil(fragment_bytes).max(1);
    let last = bytes - (count - 1) * fragment_bytes;
    if count == 1 || last == fragment_bytes {
        return equal(path, bytes as f64, count, depth);
    }
    // The longest path enters the last fragment's row at some stage `j`: full-size costs up to
    // there, the last fragment's own costs after it. `latest` is the best over j so far, as if the
    // path ended at stage j.
    let mut grid = Grid::new();
    let mut latest = 0.0_f64;
    for (index, cost) in path.iter().take(STAGES_MAX).enumerate() {
        let outstanding = if index == 0 { depth } else { None };
        let step = grid.push(cost, fragment_bytes as f64, outstanding);
        let stage = cost.stage_at(last as f64);
        let leave = stage.occupancy(last as f64) + stage.latency;
        // Free again after fragment k-2: that departed its latency later than it was served.
        let mut entered = grid.crossing + grid.advance(count - 2) - step.latency;
        if let Some(slot) = (count - 1).checked_sub(u64::from(step.window)) {
            entered = entered.max(grid.crossing + grid.advance(slot));
        }
        latest = latest.max(entered) + leave;
    }
    latest
}

/// One stage at one size.
#[derive(Clone, Copy)]
struct Step {
    latency: f64,
    /// `u32::MAX` stands for no window: no transfer has more fragments that matter.
    window: u32,
}

/// The longest-path grid of equal fragments, for the stages pushed so far.
struct Grid {
    /// `sum (g + xG + L)`: once through every stage.
    crossing: f64,
    /// The dearest single advance, `max (g + xG)`.
    unit: f64,
    /// Stages whose window may bind: (`w`, `g + xG + L`).
    windows: [(u32, f64); STAGES_MAX],
    windows_count: usize,
}

impl Grid {
    fn new() -> Self {
        Self { crossing: 0.0, unit: 0.0, windows: [(0, 0.0); STAGES_MAX], windows_count: 0 }
    }

    #[inline]
    fn push<C: StageCost>(&mut self, cost: &C, size: f64, depth: Option<NonZeroU32>) -> Step {
        let stage = cost.stage_at(size);
        let occupancy = stage.occupancy(size);
        let through = occupancy + stage.latency;
        let window = stage.window.map_or(u32::MAX, NonZeroU32::get);
        let window = window.min(depth.map_or(u32::MAX, NonZeroU32::get));
        self.crossing += through;
        self.unit = self.unit.max(occupancy);
        if through > f64::from(window) * occupancy {
            self.windows[self.windows_count] = (window, through);
            self.windows_count += 1;
        }
        Step { latency: stage.latency, window }
    }

    /// The dearest way to advance `count` fragments.
    #[inline]
    fn advance(&self, count: u64) -> f64 {
        let plain = count as f64 * self.unit;
        if self.windows_count == 0 {
            return plain;
        }
        // What a window's jump costs beyond the single advances it replaces.
        let mut items = [Item { window: 0, gain: 0.0 }; STAGES_MAX];
        let mut items_count = 0;
        for &(window, through) in &self.windows[..self.windows_count] {
            let gain = through - f64::from(window) * self.unit;
            if gain > 0.0 && u64::from(window) <= count {
                items[items_count] = Item { window: u64::from(window), gain };
                items_count += 1;
            }
        }
        let items = &mut items[..items_count];
        match items {
            [] => plain,
            [only] => plain + (count / only.window) as f64 * only.gain,
            _ => {
                items.sort_unstable_by(|a, b| b.rate().total_cmp(&a.rate()));
                let items = useful(items);
                let mut search = Search { best: 0.0, budget: SEARCH_STEPS_MAX };
                search.fill(items, count, 0.0);
                plain + search.best
            }
        }
    }
}

/// A binding window: jumps of `window` fragments, each `gain` dearer than single advances.
#[derive(Clone, Copy)]
struct Item {
    window: u64,
    gain: f64,
}

impl Item {
    fn rate(&self) -> f64 {
        self.gain / self.window as f64
    }
}

/// Items, sorted by rate, without those that smaller jumps of a better rate replace: stages of one
/// estimate, with one window, are alike, and the search would try all ways to divide the jumps
/// between them.
fn useful(items: &mut [Item]) -> &[Item] {
    let mut count = 0;
    for place in 0..items.len() {
        let item = items[place];
        let replaces = |it: &Item| (item.window / it.window) as f64 * it.gain >= item.gain;
        if !items[..count].iter().any(replaces) {
            items[count] = item;
            count += 1;
        }
    }
    &items[..count]
}

/// Bounds the time of an evaluation. Two or three binding windows need a handful of steps; a path
/// contrived to need more gets an upper bound less than one jump above the truth.
const SEARCH_STEPS_MAX: u32 = 2_000;

/// Branch and bound over how often each binding window is jumped.
struct Search {
    best: f64,
    budget: u32,
}

impl Search {
    /// `items` are sorted by rate, so that filling the rest with the first one's rate is a bound.
    fn fill(&mut self, items: &[Item], room: u64, gained: f64) {
        self.best = self.best.max(gained);
        let Some((item, others)) = items.split_first() else { return };
        let bound = gained + room as f64 * item.rate();
        if self.budget == 0 {
            self.best = self.best.max(bound);
            return;
        }
        self.budget -= 1;
        // As many jumps of another item as this one's window take the place of its window of jumps
        // of this one, and gain no more. So others need not jump as often, and leave it all but so
        // many jumps.
        let most = room / item.window;
        let given_up = others.iter().map(|other| other.window).sum::<u64>() + 1;
        for jumps in (most.saturating_sub(given_up)..=most).rev() {
            let left = room - jumps * item.window;
            let with = gained + jumps as f64 * item.gain;
            let rest = others.first().map_or(0.0, |other| left as f64 * other.rate());
            // Fewer jumps only lower this bound, so the loop ends here. The tolerance is far below
            // what is promised of the result and spares the search of equals.
            if with + rest <= self.best * (1.0 + 1e-13) && self.best > 0.0 {
                break;
            }
            self.fill(others, left, with);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Stage;

    /// A search that spends its budget answers with a bound; in each of the evaluations of a plan
    /// it would take most of the time.
    #[test]
    fn windows_that_are_nearly_alike_take_few_steps() {
        for (windows, gains) in
            [([32, 32], [7.0, 6.999]), ([32, 97], [7.0, 21.218]), ([127, 5], [127.1, 5.0])]
        {
            let mut items: Vec<Item> = windows
                .into_iter()
                .zip(gains)
                .map(|(window, gain)| Item { window, gain })
                .collect();
            items.sort_unstable_by(|a, b| b.rate().total_cmp(&a.rate()));
            let mut best = vec![0.0_f64; 4097];
            for room in 1..best.len() {
                let jumps = items.iter().filter(|it| it.window as usize <= room);
                best[room] = jumps.fold(best[room - 1], |most, it| {
                    most.max(best[room - it.window as usize] + it.gain)
                });
            }
            for room in [4096_u64, 4000, 1000, 130] {
                let mut search = Search { best: 0.0, budget: SEARCH_STEPS_MAX };
                search.fill(useful(&mut items.clone()), room, 0.0);
                let spent = SEARCH_STEPS_MAX - search.budget;
                assert!(spent <= 130, "{windows:?} {gains:?} {room}: {spent} steps");
                let off = (search.best / best[room as usize] - 1.0).abs();
                assert!(
                    off < 1e-12,
                    "{windows:?} {gains:?} {room}: {} {}",
                    search.best,
                    best[room as usize]
                );
            }
        }
    }

    #[test]
    fn a_window_of_one_serves_one_at_a_time() {
        let disk = Stage { latency: 70.0, overhead: 17.0, per_byte: 0.0, window: None };
        let at = |depth| equal(&[disk], 10.0, 10, NonZeroU32::new(depth));
        assert!((at(1) - 870.0).abs() < 1e-9);
        assert!((at(8) - (87.0 + 9.0 * 17.0)).abs() < 1e-9);
    }

    #[test]
    fn two_binding_windows_share_the_advances_exactly() {
        // Windows 5 and 3: 8 advances are dearest as one jump each, not as multiples of either.
        let a = Stage { latency: 100.0, overhead: 1.0, per_byte: 0.0, window: NonZeroU32::new(5) };
        let b = Stage { latency: 59.0, overhead: 1.0, per_byte: 0.0, window: NonZeroU32::new(3) };
        assert!((equal(&[a, b], 9.0, 9, None) - (101.0 + 60.0 + 101.0 + 60.0)).abs() < 1e-9);
    }

    #[test]
    fn a_contrived_path_ends_in_time_with_a_bound() {
        let windows = [97, 101, 103, 107, 109, 113, 127, 131];
        let path = windows.map(|w| Stage {
            latency: f64::from(w) * 1.001,
            overhead: 0.0,
            per_byte: 0.0,
            window: NonZeroU32::new(w),
        });
        let seconds = equal(&path, 1.0, 1_000_000, None);
        assert!((seconds / 1.001e6 - 1.0).abs() < 1e-3, "{seconds}");
    }
}
