//! One stage cut on a grid, its neighbours given: the earliest ends of service.
//!
//! This is the pass of `piped_model::grouping`, for positions a cell apart and for costs that are
//! lines for ranges of sizes. Each line has its own queue of begins, and a fragment is served by
//! the line that allows its size.

use super::cost::{Cost, Piece};

/// Comparisons of sums that differ in their last bits.
const NOISE: f64 = 1e-12;

/// A begin of a fragment.
#[derive(Debug, Clone, Copy)]
struct Begin {
    at: usize,
    /// The earliest end of service of what is before.
    finish: f64,
    /// The time less what the line takes for those bytes.
    value: f64,
    /// When the fragment has to have been served.
    deadline: f64,
}

/// Begins of fragments that a line may still serve, their values never falling.
#[derive(Debug, Clone, Default)]
struct Queue {
    begins: Vec<Begin>,
    head: usize,
    /// The last begin for which the stage has to wait for bytes.
    waiting: Option<Begin>,
}

impl Queue {
    fn clear(&mut self) {
        self.begins.clear();
        (self.head, self.waiting) = (0, None);
    }

    #[inline]
    fn enter(&mut self, begin: Begin) {
        while self.begins.len() > self.head
            && self.begins[self.begins.len() - 1].value >= begin.value
        {
            self.begins.pop();
        }
        self.begins.push(begin);
    }

    /// The earliest end of service of a fragment that ends at `v`, whose bytes are there at
    /// `released`.
    #[inline]
    fn serve(&mut self, piece: &Piece, v: usize, released: f64) -> f64 {
        let served = piece.served(v);
        let mut best = f64::INFINITY;
        while let Some(begin) = self.begins.get(self.head) {
            if begin.finish <= released {
                self.waiting = Some(*begin);
            } else if begin.value + served <= begin.deadline && piece.holds(v - begin.at) {
                best = begin.value + served;
                break;
            }
            self.head += 1;
        }
        if let Some(begin) = self.waiting {
            let done = piece.value(released, begin.at) + served;
            if done > begin.deadline || !piece.holds(v - begin.at) {
                self.waiting = None;
            } else {
                best = best.min(done);
            }
        }
        best
    }

    /// Whether no begin is left.
    fn is_empty(&self) -> bool {
        self.head == self.begins.len() && self.waiting.is_none()
    }
}

/// What a pass is given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Neighbours<'a> {
    /// Times at which the cells up to each position are there, never falling.
    release: &'a [f64],
    /// What it takes after a fragment that has so many cells from its begin to the end of the
    /// transfer; never falling, as long as `release`.
    tail: &'a [f64],
    /// The latency to be kept.
    limit: f64,
}

impl<'a> Neighbours<'a> {
    pub(super) fn new(release: &'a [f64], tail: &'a [f64], limit: f64) -> Self {
        Self { release, tail, limit }
    }
}

/// Memory of a pass, with what it found.
#[derive(Debug, Clone, Default)]
pub(super) struct Pass {
    queues: Vec<Queue>,
    /// The earliest ends of service at each position.
    finish: Vec<f64>,
}

impl Pass {
    /// Whether some cuts keep the limit.
    pub(super) fn run(&mut self, cost: &Cost, mut neighbours: Neighbours<'_>) -> bool {
        neighbours.limit += neighbours.limit * NOISE;
        let end = neighbours.release.len() - 1;
        self.queues.resize_with(cost.pieces().len(), Queue::default);
        self.queues.iter_mut().for_each(Queue::clear);
        self.finish.clear();
        self.finish.push(0.0);
        let entering = |at: usize, finish: &[f64], piece: &Piece| {
            let (finish, tail) = (finish[at], neighbours.tail[end - at]);
            let value = piece.value(finish, at);
            Begin { at, finish, value, deadline: neighbours.limit - tail }
        };
        // A begin enters the last queue so much later.
        let widest = cost.pieces().last().map_or(0, Piece::least);
        let (mut last, mut reach) = (0.0, 0);
        for v in 1..=end {
            last = f64::INFINITY;
            for (queue, piece) in self.queues.iter_mut().zip(cost.pieces()) {
                if let Some(at) = v.checked_sub(piece.least())
                    && self.finish[at] < f64::INFINITY
                {
                    queue.enter(entering(at, &self.finish, piece));
                }
                last = queue.serve(piece, v, neighbours.release[v]).min(last);
            }
            self.finish.push(last);
            if last < f64::INFINITY {
                reach = v;
            } else if v >= reach + widest && self.queues.iter().all(Queue::is_empty) {
                return false;
            }
        }
        last < f64::INFINITY
    }

    /// A pass for cuts that are fixed, at these positions.
    pub(super) fn walk(
        &mut self,
        cost: &Cost,
        neighbours: Neighbours<'_>,
        cuts: impl Iterator<Item = usize>,
    ) -> bool {
        let limit = neighbours.limit + neighbours.limit * NOISE;
        let end = neighbours.release.len() - 1;
        self.finish.clear();
        self.finish.resize(end + 1, 0.0);
        let (mut free, mut begin) = (0.0_f64, 0);
        for cut in cuts {
            free = free.max(neighbours.release[cut]) + cost.at(cut - begin).unwrap_or(0.0);
            if free + neighbours.tail[end - begin] > limit {
                return false;
            }
            self.finish[begin + 1..=cut].fill(free);
            begin = cut;
        }
        true
    }

    /// The cuts that keep the limit, in cells, if some do.
    pub(super) fn cuts(&mut self, cost: &Cost, neighbours: Neighbours<'_>) -> Option<Vec<u32>> {
        if !self.run(cost, neighbours) {
            return None;
        }
        let Neighbours { release, tail, limit } = neighbours;
        let cells = release.len() - 1;
        let (mut cuts, mut end) = (Vec::new(), cells);
        while end > 0 {
            cuts.push(end as u32);
            let near = |a: f64, b: f64| a <= b * (1.0 + 1e-9);
            end = (0..end).rev().find(|&begin| {
                let Some(takes) = cost.at(end - begin) else { return false };
                let done = self.finish[begin].max(release[end]) + takes;
                near(done, self.finish[end]) && near(done + tail[cells - begin], limit)
            })?;
        }
        cuts.reverse();
        Some(cuts)
    }

    /// The time at which all is served, after a pass.
    pub(super) fn end(&self) -> f64 {
        self.finish.last().copied().unwrap_or(0.0)
    }

    /// Raises what is known to what the pass has found.
    pub(super) fn raise(&self, known: &mut [f64]) -> f64 {
        let (mut earliest, mut most) = (f64::INFINITY, 0.0_f64);
        for (known, &finish) in known.iter_mut().zip(&self.finish).skip(1).rev() {
            earliest = earliest.min(finish);
            if earliest > *known {
                most = most.max(earliest - *known);
                *known = earliest;
            }
        }
        most
    }
}
