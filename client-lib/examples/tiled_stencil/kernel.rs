//! The loop: `A[i][j][k] = func(A[i-1][j][k], A[i][j-1][k], A[i][j][k-1])`, sequential and tile by
//! tile.

use std::ops::Range;

use piped_client::{Axes, Tile};

/// Bytes of a point.
pub(crate) const POINT: usize = 4;

/// A loop's size. Rows go along `k`, the longest dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    /// Points along `i` and `j`.
    pub(crate) wide: Axes<usize>,
    /// Points along the axis `k`.
    pub(crate) depth: usize,
    /// How often a point's computation is repeated: more of it for each byte that is sent.
    pub(crate) work: u32,
}

/// The value of a point outside the space. It is different everywhere, so that a point from a wrong
/// place shows.
fn outside(i: usize, j: usize, k: usize) -> f32 {
    ((i * 31 + j * 17 + k * 7) % 97) as f32 / 97.0
}

/// Any function would do that depends on all of it.
fn func(before_i: f32, before_j: f32, before_k: f32, work: u32) -> f32 {
    (0..work.max(1)).fold(before_k, |value, _| {
        let mixed = 0.5 * value + 0.3 * before_i + 0.2 * before_j;
        mixed + 0.125 * (1.0 - mixed * mixed)
    })
}

/// All of it by one process, as one would write it down.
pub(crate) fn sequential(space: Space) -> Vec<f32> {
    let Axes { x: wide_i, y: wide_j } = space.wide;
    let at = |i: usize, j: usize, k: usize| (k * wide_i + i) * wide_j + j;
    let mut all = vec![0.0; wide_i * wide_j * space.depth];
    for k in 0..space.depth {
        for i in 0..wide_i {
            for j in 0..wide_j {
                let before_i = if i > 0 { all[at(i - 1, j, k)] } else { outside(0, j + 1, k + 1) };
                let before_j = if j > 0 { all[at(i, j - 1, k)] } else { outside(i + 1, 0, k + 1) };
                let before_k = if k > 0 { all[at(i, j, k - 1)] } else { outside(i + 1, j + 1, 0) };
                all[at(i, j, k)] = func(before_i, before_j, before_k, space.work);
            }
        }
    }
    all
}

/// The part of a process: all rows of some points along `i` and `j`.
#[derive(Debug)]
pub(crate) struct Column {
    space: Space,
    own: Axes<Range<usize>>,
    points: Vec<f32>,
}

impl Column {
    /// The process at this place of a grid. Where points cannot be shared out evenly, the first
    /// processes have one more.
    pub(crate) fn new(space: Space, grid: Axes<u32>, at: Axes<u32>) -> Self {
        let own =
            Axes { x: share(space.wide.x, grid.x, at.x), y: share(space.wide.y, grid.y, at.y) };
        let points = vec![0.0; own.x.len() * own.y.len() * space.depth];
        Self { space, own, points }
    }

    /// Bytes that a row hands on along each axis: the points of its last line across it.
    pub(crate) fn edge_bytes(&self) -> Axes<usize> {
        Axes { x: POINT * self.own.y.len(), y: POINT * self.own.x.len() }
    }

    /// Computes one tile of the column.
    pub(crate) fn compute(&mut self, tile: &mut Tile<'_>) {
        let (first, rows) = (tile.rows.start as usize, tile.rows.end as usize);
        let (wide_i, wide_j) = (self.own.x.len(), self.own.y.len());
        let plane = wide_i * wide_j;
        let (from_i, from_j) = (self.own.x.start, self.own.y.start);
        let mut line_before = vec![0.0; wide_j];
        for k in first..rows {
            let (done, rest) = self.points.split_at_mut(k * plane);
            let (row, below) = (&mut rest[..plane], k.checked_sub(1).map(|k| &done[k * plane..]));
            let in_tile = k - first;
            match tile.before.x {
                Some(edge) => load(&edge[in_tile * wide_j * POINT..], &mut line_before),
                None => {
                    (0..wide_j).for_each(|j| line_before[j] = outside(0, from_j + j + 1, k + 1))
                }
            }
            for i in 0..wide_i {
                let mut before_j = match tile.before.y {
                    Some(edge) => point(&edge[(in_tile * wide_i + i) * POINT..]),
                    None => outside(from_i + i + 1, 0, k + 1),
                };
                for (j, before_i) in line_before.iter_mut().enumerate() {
                    let at = i * wide_j + j;
                    let before_k = match below {
                        Some(below) => below[at],
                        None => outside(from_i + i + 1, from_j + j + 1, 0),
                    };
                    before_j = func(*before_i, before_j, before_k, self.space.work);
                    (*before_i, row[at]) = (before_j, before_j);
                }
                if let Some(edge) = &mut tile.after.y {
                    store(
                        &row[(i + 1) * wide_j - 1..][..1],
                        &mut edge[(in_tile * wide_i + i) * POINT..],
                    );
                }
            }
            if let Some(edge) = &mut tile.after.x {
                store(&line_before, &mut edge[in_tile * wide_j * POINT..]);
            }
        }
    }

    /// The first point, in the order of rows, that is not bit for bit what one process computed:
    /// `i`, `j`, `k`.
    pub(crate) fn differs_from(&self, sequential: &[f32]) -> Option<[usize; 3]> {
        let mut points = self.points.iter();
        for k in 0..self.space.depth {
            for i in self.own.x.clone() {
                for j in self.own.y.clone() {
                    let wanted = sequential[(k * self.space.wide.x + i) * self.space.wide.y + j];
                    if points.next().map(|it| it.to_bits()) != Some(wanted.to_bits()) {
                        return Some([i, j, k]);
                    }
                }
            }
        }
        None
    }

    /// Forgets what was computed.
    pub(crate) fn clear(&mut self) {
        self.points.fill(0.0);
    }
}

fn share(points: usize, processes: u32, at: u32) -> Range<usize> {
    let (processes, at) = (processes as usize, at as usize);
    let (each, more) = (points / processes, points % processes);
    let first = at * each + at.min(more);
    first..first + each + usize::from(at < more)
}

fn point(bytes: &[u8]) -> f32 {
    f32::from_ne_bytes(bytes[..POINT].try_into().expect("4 bytes"))
}

fn load(bytes: &[u8], points: &mut [f32]) {
    for (to, from) in points.iter_mut().zip(bytes.chunks_exact(POINT)) {
        *to = point(from);
    }
}

fn store(points: &[f32], bytes: &mut [u8]) {
    for (from, to) in points.iter().zip(bytes.chunks_exact_mut(POINT)) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
}
