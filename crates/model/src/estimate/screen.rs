//! Which points are far off all that a cost can be.
//!
//! A cost never falls with the size, and what it takes for a byte never rises; only a few sizes
//! have more wrong points than right ones. So the curve that rises within these bounds and is close
//! to most points is close to the right ones, whatever the others say: dynamic programming over
//! sizes and values finds it, first by the sum of distances, whose median is the scale, and then by
//! Tukey's bisquare at that scale and at smaller ones. The curve whose distances are the smallest
//! in their middle is believed. Medians of each size, the obvious way, follow the wrong points
//! where they are two of three.
//!
//! It is a screen for gross errors, and lines that withstand the small ones follow: nothing within
//! a quarter, about, of the curve is sorted out.

use std::collections::VecDeque;

use super::line::{self, Noise, TO_DEVIATION, bisquare};

/// How a cost rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A cost does not fall with the size.
    Rising,
    /// Nor does it rise faster than in proportion.
    Proportional,
}

/// What is off by less than this part of a value is no outlier, whatever it contradicts: lines that
/// withstand small errors weigh it.
const GROSS: f64 = 0.25;
/// The least scale, as a part of the value: a quarter is beyond the bisquare.
const SCALE_MIN: f64 = 0.05;
/// What noise may add to a rise from one size to the next.
const SLACK: f64 = 1.25;
/// Scales that are tried, each half of the one before.
const TRIALS_MAX: usize = 5;
/// Values that the curve may have, at most.
const LEVELS_MAX: usize = 128;

/// Whether a value is so far from the expected one that it is no error of a small part.
pub(super) fn is_gross(value: f64, expected: f64) -> bool {
    (value - expected).abs() > GROSS * expected.abs()
}

/// Whether each of the points is near the curve; the points are sorted by `x`.
pub(super) fn near(sorted: &[(f64, f64)], shape: Shape, noise: Noise) -> Vec<bool> {
    if sorted.is_empty() {
        return Vec::new();
    }
    let levels = levels(sorted);
    let far = |y: f64, level: f64| match noise {
        Noise::Constant => (y - level).abs(),
        Noise::Proportional => (y / level).ln().abs(),
    };
    let least = |level: f64| match noise {
        Noise::Constant => SCALE_MIN * level,
        Noise::Proportional => SCALE_MIN,
    };
    let sizes: Vec<&[(f64, f64)]> = sorted.chunk_by(|a, b| a.0 == b.0).collect();
    let groups: Vec<Group> = sizes
        .iter()
        .map(|size| Group {
            x: size[0].0,
            far: levels.iter().map(|it| size.iter().map(|at| far(at.1, *it)).collect()).collect(),
        })
        .collect();
    // Each size has a value of its own, which makes one of its distances small.
    let own = groups.len().min(sorted.len().saturating_sub(1));
    let scale_of = |curve: &[usize]| {
        let all = groups.iter().zip(curve).flat_map(|(group, &at)| group.far[at].iter().copied());
        let mut rests: Vec<f64> = all.collect();
        rests.sort_by(f64::total_cmp);
        TO_DEVIATION * line::median(&mut rests[own..]).unwrap_or(0.0)
    };
    let mut nearest = curve(&groups, &levels, shape, |far, _| far);
    let mut scale = scale_of(&nearest);
    let mut trial = scale;
    for _ in 0..TRIALS_MAX {
        let near = curve(&groups, &levels, shape, |far, level| {
            1.0 - bisquare(far / trial.max(least(level))).powi(3)
        });
        let now = scale_of(&near);
        if now <= scale {
            (nearest, scale) = (near, now);
        }
        if trial <= least(levels[0]) {
            break;
        }
        trial = 0.5 * trial.min(now);
    }
    let all = groups.iter().zip(&nearest).flat_map(|(group, &at)| {
        let scale = scale.max(least(levels[at]));
        group.far[at].iter().map(move |far| bisquare(far / scale) > 0.0)
    });
    all.collect()
}

/// The points of one size: for each value that the curve may have, how far they are from it.
struct Group {
    x: f64,
    far: Vec<Vec<f64>>,
}

/// Values of the points, of which curves are made.
fn levels(sorted: &[(f64, f64)]) -> Vec<f64> {
    let mut levels: Vec<f64> = sorted.iter().map(|it| it.1).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    let stride = levels.len().div_ceil(LEVELS_MAX);
    levels.into_iter().step_by(stride.max(1)).collect()
}

/// At each size the value, by its place, of the curve with the least sum of losses; a loss is that
/// of a distance at a value.
fn curve(
    groups: &[Group],
    levels: &[f64],
    shape: Shape,
    loss: impl Fn(f64, f64) -> f64,
) -> Vec<usize> {
    let mut costs = vec![0.0; levels.len()];
    let mut from: Vec<Vec<usize>> = Vec::with_capacity(groups.len());
    let mut before = None;
    for group in groups {
        let rise = match (before.replace(group.x), shape) {
            (Some(before), Shape::Proportional) if before > 0.0 => SLACK * group.x / before,
            _ => f64::INFINITY,
        };
        // The best value before, for each value here: the lowest cost of a window that moves up.
        let mut window: VecDeque<usize> = VecDeque::new();
        let mut starts = Vec::with_capacity(levels.len());
        for (here, &level) in levels.iter().enumerate() {
            while window.back().is_some_and(|&it| costs[it] >= costs[here]) {
                window.pop_back();
            }
            window.push_back(here);
            while window.front().is_some_and(|&it| levels[it] * rise < level) {
                window.pop_front();
            }
            starts.push(window.front().copied().unwrap_or(here));
        }
        let own = group.far.iter().zip(levels);
        let own = own.map(|(far, &level)| far.iter().map(|it| loss(*it, level)).sum::<f64>());
        costs = own.zip(&starts).map(|(own, &start)| costs[start] + own).collect();
        from.push(starts);
    }
    let least = (0..levels.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b]));
    let mut at = least.unwrap_or(0);
    let mut curve = vec![0; groups.len()];
    for (place, starts) in from.iter().enumerate().rev() {
        curve[place] = at;
        at = starts[at];
    }
    curve
}
