//! Which straight pieces a convex bent curve is made of.
//!
//! The time between departures of a pipeline is that of its slowest stage, `max_j (g_j + x·G_j)`:
//! convex pieces, one for each stage that is slowest at some size. Dynamic programming over
//! neighbouring sizes finds the best cut into `p` pieces for every `p`. Lines through all points of
//! each piece then say what the cut is worth: one more piece is believed only if it explains much
//! more than chance would, and only a convex result is one of a pipeline at all. A search that
//! looks for the largest bend first, the obvious way, takes the middle of three pieces for a bend
//! of two. Points that no cost explains are left out before, and named.

#[cfg(feature = "serde")]
use serde::Serialize;

use super::figure::{freedom, student};
use super::line::{self, Line, Noise, Options, TO_DEVIATION, TUKEY, bisquare};
use super::screen::{self, Shape};

/// More slowest stages than this no pipeline of ours has.
pub(super) const PIECES_MAX: usize = 4;
/// Groups of neighbouring sizes that the cuts lie between, at most.
const GROUPS_MAX: usize = 96;
/// Points of a group, where outliers are to be withstood: one more of them does not move its mean.
const GROUP_POINTS: usize = 5;
/// How sure one more piece has to be, as the two-sided confidence of a Student's t whose square it
/// has to explain in variances of a point: 11 with many points, more with few. It has three
/// parameters more than the pieces without it, and the best of all places for its cut: chance takes
/// two of a thousand single lines for two. A bend that is not seen costs plans more than one that
/// is not there: with 24 in the place of 11 twice as many plans are more than 5 % too slow.
const SURE: f64 = 0.999;
/// The relative deviation of points of which each cut leaves none to tell it.
const UNTOLD: f64 = 2e-3;
/// Bends below this part of the values are arithmetic.
const ROUNDING: f64 = 1e-9;
const ROUNDS_MAX: usize = 20;
/// Times that points are told from outliers by the lines that the others gave.
const SORTINGS_MAX: usize = 5;

/// Points of about one `x`.
#[derive(Debug, Clone, Copy)]
struct Group {
    x: f64,
    y: f64,
    weight: f64,
}

/// A measurement that the others contradict.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Outlier {
    /// Which of the measurements, from 0.
    pub index: usize,
    /// How many times as long as expected by the others; below 1 if it is too short.
    pub times: f64,
}

/// The convex pieces of finite points, in the order of their slopes, as many as there are reasons
/// for and at most so many; none if all points have one `x`. And the outliers, in the order of the
/// points: without robust lines they are in the lines all the same.
pub(super) fn convex(
    points: &[(f64, f64)],
    most: usize,
    shape: Shape,
    options: Options,
) -> (Vec<Line>, Vec<Outlier>) {
    let mut order: Vec<usize> = (0..points.len()).collect();
    let key = |&at: &usize| points[at];
    order.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    let sorted: Vec<(f64, f64)> = order.iter().map(key).collect();
    let robust = Options { robust: true, ..options };
    let (lines, near) = sort_out(&sorted, most, shape, robust);
    let far = (0..sorted.len()).filter(|place| !near[*place]);
    let named = far.map(|place| {
        let (x, y) = sorted[place];
        Outlier { index: order[place], times: y / height(&lines, x) }
    });
    let mut outliers: Vec<Outlier> = named.collect();
    outliers.sort_by_key(|it| it.index);
    match options.robust {
        true => (lines, outliers),
        false => (best(&sorted, &vec![true; sorted.len()], most, options), outliers),
    }
}

/// The height of the highest line.
fn height(lines: &[Line], x: f64) -> f64 {
    lines.iter().map(|it| it.at(x)).fold(f64::NEG_INFINITY, f64::max)
}

/// Robust lines, and which of the points are near them. The screen's curve says so first, then the
/// lines themselves: what the screen lost comes back.
fn sort_out(
    sorted: &[(f64, f64)],
    most: usize,
    shape: Shape,
    options: Options,
) -> (Vec<Line>, Vec<bool>) {
    let mut near = screen::near(sorted, shape, options.noise);
    let mut lines = best(sorted, &near, most, options);
    if lines.is_empty() {
        // What is near is of one size.
        near = vec![true; sorted.len()];
        lines = best(sorted, &near, most, options);
    }
    for _ in 0..SORTINGS_MAX {
        let kept = kept(sorted, &near);
        let left = freedom(kept.len(), 2 * lines.len());
        let unit = top(&kept);
        let deviation = variance(&rests(&kept, &lines, unit, options), left, options).sqrt();
        let now: Vec<bool> = rests(sorted, &lines, unit, options)
            .into_iter()
            .zip(sorted)
            .map(|(rest, &(x, y))| {
                bisquare(rest / deviation) > 0.0 || !screen::is_gross(y, height(&lines, x))
            })
            .collect();
        if now == near {
            break;
        }
        let again = best(sorted, &now, most, options);
        if again.is_empty() {
            break;
        }
        (near, lines) = (now, again);
    }
    // Those left out are samples all the same.
    for line in &mut lines {
        line.outliers = 0;
    }
    for (&(x, _), near) in sorted.iter().zip(&near) {
        let own = lines.iter_mut().max_by(|a, b| a.at(x).total_cmp(&b.at(x)));
        if let Some(own) = own.filter(|_| !near) {
            own.outliers += 1;
            own.samples += 1;
        }
    }
    (lines, near)
}

fn kept(sorted: &[(f64, f64)], near: &[bool]) -> Vec<(f64, f64)> {
    sorted.iter().zip(near).filter(|it| *it.1).map(|it| *it.0).collect()
}

/// The lines through the points that are near: one, or more where they explain much more.
fn best(sorted: &[(f64, f64)], near: &[bool], most: usize, options: Options) -> Vec<Line> {
    let points = kept(sorted, near);
    // Where more than half of a size's points are left out, the others are no reason for a line.
    let mut sound = Vec::with_capacity(points.len());
    let mut at = 0;
    for size in sorted.chunk_by(|a, b| a.0 == b.0) {
        let count = near[at..at + size.len()].iter().filter(|it| **it).count();
        sound.extend(std::iter::repeat_n(2 * count > size.len(), count));
        at += size.len();
    }
    let groups = group(&points, options);
    let mut best: Option<Vec<Line>> = None;
    for cut in cuts(&groups).iter().take(most) {
        let Some(lines) = refine(&points, &groups, cut, options) else { continue };
        let worth = |fewer: &Vec<Line>| {
            is_sound(sorted, near, &lines) && is_worth(&points, &sound, fewer, &lines, options)
        };
        if best.as_ref().is_none_or(worth) {
            best = Some(lines);
        }
    }
    best.unwrap_or_default()
}

/// Whether lines cross where points are, and most points of each are near.
fn is_sound(sorted: &[(f64, f64)], near: &[bool], lines: &[Line]) -> bool {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else { return false };
    let crossings = lines.windows(2).map(|pair| crossing(&pair[0], &pair[1]));
    let borders: Vec<f64> = crossings.chain([f64::INFINITY]).collect();
    let inside = |at: &f64| *at == f64::INFINITY || (first.0..=last.0).contains(at);
    let mut from = 0;
    borders.iter().all(|border| {
        let to = sorted.partition_point(|it| it.0 <= *border).max(from);
        let good = near[from..to].iter().filter(|it| **it).count();
        let most = 2 * good > to - from;
        from = to;
        inside(border) && most
    })
}

/// Whether these lines explain much more of the points than fewer lines.
fn is_worth(
    points: &[(f64, f64)],
    sound: &[bool],
    fewer: &[Line],
    lines: &[Line],
    options: Options,
) -> bool {
    let [before, after] = [fewer, lines].map(|it| rests(points, it, top(points), options));
    let left = freedom(points.len(), 2 * lines.len());
    let square = variance(&after, left, options);
    // What the lines themselves ignore is no reason for one more of them.
    let far = if options.robust { TUKEY * TUKEY * square } else { f64::INFINITY };
    let all = before.iter().zip(&after).zip(sound).filter(|it| *it.1).map(|it| it.0);
    let gains = all.filter(|it| it.1 * it.1 <= far);
    let gain: f64 = gains.map(|(before, after)| (before * before - after * after) / square).sum();
    let needed = student(SURE, left).powi(2) * lines.len().saturating_sub(fewer.len()) as f64;
    gain > needed
}

/// The largest value of all points.
fn top(points: &[(f64, f64)]) -> f64 {
    points.iter().fold(f64::MIN_POSITIVE, |most, it| most.max(it.1.abs()))
}

/// How far points are off the highest of the lines: as a part of the largest value, or of their
/// own.
fn rests(points: &[(f64, f64)], lines: &[Line], top: f64, options: Options) -> Vec<f64> {
    let rests = points.iter().map(|&(x, y)| {
        let expected = height(lines, x);
        let unit = match options.noise {
            Noise::Constant => top,
            Noise::Proportional => expected.abs().max(1e-3 * top),
        };
        (y - expected) / unit
    });
    rests.collect()
}

/// The variance of a residual.
fn variance(rests: &[f64], left: u32, options: Options) -> f64 {
    if left == 0 {
        return UNTOLD * UNTOLD;
    }
    let count = rests.len() as f64 / f64::from(left);
    let mean = if options.robust {
        let mut sizes: Vec<f64> = rests.iter().map(|it| it.abs()).collect();
        line::median(&mut sizes).map_or(0.0, |it| (TO_DEVIATION * it).powi(2))
    } else {
        rests.iter().map(|it| it * it).sum::<f64>() / rests.len() as f64
    };
    (mean * count).max(ROUNDING * ROUNDING)
}

/// Where two pieces cross.
pub(super) fn crossing(left: &Line, right: &Line) -> f64 {
    (left.intercept.value - right.intercept.value) / (right.slope.value - left.slope.value)
}

/// Points into groups of neighbours: by size, and where outliers are to be withstood by enough of
/// them.
fn group(sorted: &[(f64, f64)], options: Options) -> Vec<Group> {
    let least =
        if options.robust { GROUP_POINTS } else { 1 }.max(sorted.len().div_ceil(GROUPS_MAX));
    let mut sizes: Vec<&[(f64, f64)]> = sorted.chunk_by(|a, b| a.0 == b.0).collect();
    // Few sizes must stay apart, or there is nothing to cut between.
    let few = sizes.len() <= 4 * PIECES_MAX;
    let mut groups = Vec::with_capacity(sizes.len());
    let mut rest = sorted;
    while !rest.is_empty() && !sizes.is_empty() {
        let mut taken = 0;
        let mut count = 0;
        while count < sizes.len() && (count == 0 || (!few && taken < least)) {
            taken += sizes[count].len();
            count += 1;
        }
        sizes.drain(..count);
        let (members, behind) = rest.split_at(taken);
        rest = behind;
        groups.push(summary(members, options));
    }
    groups
}

fn summary(members: &[(f64, f64)], options: Options) -> Group {
    let count = members.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| members.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|it| it.0), mean(|it| it.1));
    let unit =
        if options.noise == Noise::Proportional { y.abs().max(f64::MIN_POSITIVE) } else { 1.0 };
    Group { x, y, weight: count / (unit * unit) }
}

/// The best cut into one piece, two, and so on, as far as every piece has two groups: the first
/// group of each piece.
fn cuts(groups: &[Group]) -> Vec<Vec<usize>> {
    let count = groups.len();
    if count < 2 {
        return Vec::new();
    }
    let costs: Vec<Vec<f64>> = (0..count).map(|from| costs_from(&groups[from..])).collect();
    // best[p][i]: groups before i in p + 1 pieces; with the start of the last one.
    let mut best: Vec<Vec<(f64, usize)>> = vec![
        (0..=count)
            .map(|end| if end < 2 { (f64::INFINITY, 0) } else { (costs[0][end - 1], 0) })
            .collect(),
    ];
    for pieces in 1..PIECES_MAX.min(count / 2) {
        let before = &best[pieces - 1];
        let row = (0..=count).map(|end| {
            let starts = 2 * pieces..end.saturating_sub(1);
            starts.fold((f64::INFINITY, 0), |least, start| {
                let cost = before[start].0 + costs[start][end - 1 - start];
                if cost < least.0 { (cost, start) } else { least }
            })
        });
        let row = row.collect();
        best.push(row);
    }
    (0..best.len()).map(|pieces| trace(&best, pieces, count)).collect()
}

fn trace(best: &[Vec<(f64, usize)>], pieces: usize, count: usize) -> Vec<usize> {
    let mut starts = vec![0; pieces + 1];
    let mut end = count;
    for piece in (1..=pieces).rev() {
        end = best[piece][end].1;
        starts[piece] = end;
    }
    starts
}

/// The squares that one line leaves of the first group, the first two, and so on. Centred sums,
/// added to one by one: sums of squares would lose what is left to rounding.
fn costs_from(groups: &[Group]) -> Vec<f64> {
    let (mut weight, mut mean_x, mut mean_y) = (0.0, 0.0, 0.0);
    let (mut spread, mut product, mut height) = (0.0, 0.0, 0.0);
    let sums = groups.iter().map(|group| {
        weight += group.weight;
        let (dx, dy) = (group.x - mean_x, group.y - mean_y);
        mean_x += dx * group.weight / weight;
        mean_y += dy * group.weight / weight;
        spread += group.weight * dx * (group.x - mean_x);
        product += group.weight * dx * (group.y - mean_y);
        height += group.weight * dy * (group.y - mean_y);
        let explained = if spread > 0.0 { product * product / spread } else { 0.0 };
        (height - explained).max(0.0)
    });
    sums.collect()
}

/// The lines of a cut through all points, each point on the piece that is highest at its `x`;
/// `None` if the pieces are not convex where the points are.
fn refine(
    sorted: &[(f64, f64)],
    groups: &[Group],
    starts: &[usize],
    options: Options,
) -> Option<Vec<Line>> {
    let mut borders: Vec<f64> =
        starts.iter().skip(1).map(|&start| 0.5 * (groups[start - 1].x + groups[start].x)).collect();
    let mut lines = through(sorted, &borders, options)?;
    for _ in 0..ROUNDS_MAX {
        let crossings: Vec<f64> =
            lines.windows(2).map(|pair| crossing(&pair[0], &pair[1])).collect();
        let convex = lines.windows(2).all(|pair| pair[0].slope.value < pair[1].slope.value);
        let ordered = crossings.windows(2).all(|pair| pair[0] < pair[1]);
        if !(convex && ordered) {
            return None;
        }
        // As long as the same points lie on each side, it is the same cut.
        let place = |border: f64| sorted.partition_point(|it| it.0 <= border);
        if borders.iter().zip(&crossings).all(|(a, b)| place(*a) == place(*b)) {
            break;
        }
        // A piece of two sizes crosses the next one at a size of its own: without it, it is no
        // line.
        let Some(moved) = through(sorted, &crossings, options) else { break };
        (lines, borders) = (moved, crossings);
    }
    Some(lines)
}

/// A line for each piece between borders.
fn through(sorted: &[(f64, f64)], borders: &[f64], options: Options) -> Option<Vec<Line>> {
    let mut rest = sorted;
    let pieces = borders.iter().copied().chain([f64::INFINITY]);
    let lines = pieces.map(|border| {
        let (members, behind) = rest.split_at(rest.partition_point(|it| it.0 <= border));
        rest = behind;
        line::fit(members, options)
    });
    lines.collect()
}
