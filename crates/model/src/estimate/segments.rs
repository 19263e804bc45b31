//! Which straight pieces a convex bent curve is made of.
//!
//! The time between departures of a pipeline is that of its slowest stage, `max_j (g_j + x·G_j)`:
//! convex pieces, one for each stage that is slowest at some size. Dynamic programming over
//! neighbouring sizes finds the best cut into `p` pieces for every `p`. Lines through all points of
//! each piece then say what the cut is worth: one more piece is believed only if it explains much
//! more than chance would, and only a convex result is one of a pipeline at all. A search that
//! looks for the largest bend first, the obvious way, takes the middle of three pieces for a bend
//! of two.

use super::figure::{freedom, student};
use super::line::{self, Line, Noise, Options};

/// More slowest stages than this no pipeline of ours has.
const PIECES_MAX: usize = 4;
/// Groups of neighbouring sizes that the cuts lie between, at most.
const GROUPS_MAX: usize = 96;
/// Points that make a median which outliers do not move.
const GROUP_POINTS: usize = 5;
/// How sure one more piece has to be, as the two-sided confidence of a Student's t whose square it
/// has to explain in variances of a point: 24 with many points, more with few. It has three
/// parameters more than the pieces without it, and the best of all places for its cut.
const SURE: f64 = 0.999_999;
/// The relative deviation of points of which each cut leaves none to tell it.
const UNTOLD: f64 = 2e-3;
/// Bends below this part of the values are arithmetic.
const ROUNDING: f64 = 1e-9;
/// Tukey's constant, as in `line`.
const TUKEY: f64 = 4.685;
const ROUNDS_MAX: usize = 20;

/// Points of about one `x`.
#[derive(Debug, Clone, Copy)]
struct Group {
    x: f64,
    y: f64,
    weight: f64,
}

/// The convex pieces of finite points, in the order of their slopes; empty if all have one `x`.
pub(super) fn convex(points: &[(f64, f64)], options: Options) -> Vec<Line> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let groups = group(&sorted, options);
    let mut best: Option<Vec<Line>> = None;
    for cut in &cuts(&groups) {
        let Some(lines) = refine(&sorted, &groups, cut, options) else { continue };
        if best.as_ref().is_none_or(|fewer| is_worth(&sorted, fewer, &lines, options)) {
            best = Some(lines);
        }
    }
    best.unwrap_or_default()
}

/// Whether these lines explain much more of the points than fewer lines.
fn is_worth(points: &[(f64, f64)], fewer: &[Line], lines: &[Line], options: Options) -> bool {
    let (before, after) = (rests(points, fewer, options), rests(points, lines, options));
    let left = freedom(points.len(), 2 * lines.len());
    let square = variance(&after, left, options);
    // What the lines themselves ignore is no reason for one more of them.
    let far = if options.robust { TUKEY * TUKEY * square } else { f64::INFINITY };
    let gains = before.iter().zip(&after).filter(|it| it.1 * it.1 <= far);
    let gain: f64 = gains.map(|(before, after)| (before * before - after * after) / square).sum();
    let needed = student(SURE, left).powi(2) * lines.len().saturating_sub(fewer.len()) as f64;
    gain > needed
}

/// How far points are off the highest of the lines: as a part of the largest value, or of their
/// own.
fn rests(points: &[(f64, f64)], lines: &[Line], options: Options) -> Vec<f64> {
    let height = points.iter().fold(f64::MIN_POSITIVE, |most, it| most.max(it.1.abs()));
    let rests = points.iter().map(|&(x, y)| {
        let expected = lines.iter().map(|it| it.at(x)).fold(f64::NEG_INFINITY, f64::max);
        let unit = match options.noise {
            Noise::Constant => height,
            Noise::Proportional => expected.abs().max(1e-3 * height),
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
        line::median(&mut sizes).map_or(0.0, |it| (1.482_602 * it).powi(2))
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
    let middle = |values: &mut Vec<f64>| {
        let mean = values.iter().sum::<f64>() / count;
        if options.robust { line::median(values).unwrap_or(mean) } else { mean }
    };
    let x = middle(&mut members.iter().map(|it| it.0).collect());
    let y = middle(&mut members.iter().map(|it| it.1).collect());
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
