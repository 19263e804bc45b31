//! What fragments of whole cells cost at least: lines, each for a range of sizes.

use piped_model::stage::{Stage, StageCost};

/// Samples of a bent cost to a cell.
const SAMPLES: usize = 16;

/// A line may be below the cost by this part.
const FIT: f64 = 3e-4;

/// A line that holds for fragments of some sizes, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// The smallest such fragment, in cells.
    least: usize,
    /// The largest one of all.
    most: usize,
    overhead: f64,
    per_cell: f64,
}

impl Piece {
    fn at(&self, cells: usize) -> f64 {
        self.overhead + self.per_cell * cells as f64
    }

    /// The smallest fragment that the line holds for, in cells.
    #[inline]
    pub(super) fn least(&self) -> usize {
        self.least
    }

    /// Whether the line may serve a fragment that is not too small for it.
    #[inline]
    pub(super) fn holds(&self, cells: usize) -> bool {
        cells <= self.most
    }

    /// A time less what the line takes for the cells before a begin.
    #[inline]
    pub(super) fn value(&self, time: f64, begin: usize) -> f64 {
        time - self.per_cell * begin as f64
    }

    /// What has to be added to that for the time at which a fragment has been served.
    #[inline]
    pub(super) fn served(&self, end: usize) -> f64 {
        self.at(end)
    }
}

/// A stage on a grid.
#[derive(Debug, Clone)]
pub(super) struct Cost {
    /// Rising from piece to piece.
    pieces: Vec<Piece>,
    loss: f64,
    growth: (f64, f64),
}

impl Cost {
    /// A straight stage; `exact` if all plans are on the grid.
    pub(super) fn straight(stage: &Stage, cell: f64, exact: bool) -> Self {
        let per_cell = stage.per_byte * cell;
        let piece = Piece { least: 1, most: usize::MAX, overhead: stage.overhead, per_cell };
        let loss = if exact { 0.0 } else { per_cell };
        Self { pieces: vec![piece], loss, growth: (per_cell, per_cell) }
    }

    /// The cost of a stage whose usual fragments have so many bytes, and its least latency.
    pub(super) fn new<C: StageCost>(
        cost: &C,
        cell: f64,
        cells: usize,
        exact: bool,
        usual: f64,
    ) -> (Self, f64) {
        if let Some(stage) = cost.straight() {
            return (Self::straight(&stage, cell, exact), stage.latency);
        }
        let samples = if exact { 1 } else { SAMPLES };
        let step = cell / samples as f64;
        let at = |place: usize| {
            let bytes = place as f64 * step;
            let stage = cost.stage_at(bytes);
            (stage.occupancy(bytes), stage.latency)
        };
        let (mut samples, latencies): (Vec<f64>, Vec<f64>) =
            (usize::from(exact)..=cells * samples).map(at).unzip();
        rise(&mut samples);
        let latency = latencies.into_iter().fold(f64::INFINITY, f64::min);
        if exact {
            return (Self::of(&samples, 0.0), latency);
        }
        // What vanishes costs no less than its share of this slope.
        let slope = cost.stage_at(usual).per_byte.min(samples[0] / cell);
        let rest: Vec<f64> = (samples.iter().enumerate())
            .map(|(at, value)| value - slope * step * (at + 1) as f64)
            .collect();
        let least = |m: usize| {
            let near = &rest[(m - 1) * SAMPLES..((m + 1) * SAMPLES).min(cells * SAMPLES)];
            slope * cell * m as f64 + near.iter().copied().fold(f64::INFINITY, f64::min)
        };
        let mut values: Vec<f64> = (1..=cells).map(|m| least(m).max(0.0)).collect();
        rise(&mut values);
        (Self::of(&values, slope * cell), latency)
    }

    /// The lines, for ever larger fragments.
    #[inline]
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// What the move of a cut to the grid adds at most, for each end of a path in the stage.
    pub(super) fn loss(&self) -> f64 {
        self.loss
    }

    /// What a cell adds to a fragment, at least and at most.
    pub(super) fn growth(&self) -> (f64, f64) {
        self.growth
    }

    /// A stage that takes so much more for each cell.
    pub(super) fn steeper(&self, more: f64) -> Self {
        let steeper = |piece: &Piece| Piece { per_cell: piece.per_cell + more, ..*piece };
        let growth = (self.growth.0 + more, self.growth.1 + more);
        Self { pieces: self.pieces.iter().map(steeper).collect(), growth, ..*self }
    }

    /// What a fragment of so many cells takes.
    pub(super) fn at(&self, cells: usize) -> Option<f64> {
        let piece = self.pieces.iter().find(|piece| cells <= piece.most);
        piece.map(|piece| piece.at(cells))
    }

    /// One line below the whole cost: overhead, not below 0, and time for each cell.
    pub(super) fn line(&self, cells: usize) -> (f64, f64) {
        let per_cell = self.pieces.iter().map(|piece| piece.per_cell).fold(f64::INFINITY, f64::min);
        let ends = || {
            let both = |piece: &Piece| [piece.least, piece.most.min(cells.max(piece.least))];
            self.pieces.iter().flat_map(move |piece| both(piece).map(|m| (m as f64, piece.at(m))))
        };
        let overhead = ends().map(|(m, takes)| takes - per_cell * m).fold(f64::INFINITY, f64::min);
        if overhead >= 0.0 {
            return (overhead, per_cell);
        }
        (0.0, ends().map(|(m, takes)| takes / m).fold(f64::INFINITY, f64::min))
    }

    /// Lines below the values for fragments of 1, 2, 3, ... cells.
    fn of(values: &[f64], loss: f64) -> Self {
        let mut pieces = Vec::new();
        let mut first = 0;
        while first < values.len() {
            let (mut piece, mut reach) = (below(values, first, first), 1);
            while let Some(longer) = fitting(values, first, first + reach) {
                (piece, reach) = (longer, 2 * reach);
            }
            // The end of the longest piece lies between these two.
            let (mut low, mut high) = (piece.most - 1, first + reach);
            while high - low > 1 {
                let middle = usize::midpoint(low, high);
                match fitting(values, first, middle) {
                    Some(longer) => (piece, low) = (longer, middle),
                    None => high = middle,
                }
            }
            first = piece.most;
            pieces.push(piece);
        }
        for at in (1..pieces.len()).rev() {
            let next: Piece = pieces[at];
            let over = pieces[at - 1].at(next.least - 1) - next.at(next.least);
            pieces[at - 1].overhead -= over.max(0.0);
        }
        let steps =
            pieces.windows(2).map(|pair| pair[1].at(pair[1].least) - pair[0].at(pair[0].most));
        let all = pieces.iter().map(|piece| piece.per_cell).chain(steps);
        let growth = all.fold((pieces[0].at(1), 0.0), |(least, most): (f64, f64), step| {
            (least.min(step), most.max(step))
        });
        if let Some(last) = pieces.last_mut() {
            last.most = usize::MAX;
        }
        Self { pieces, loss, growth }
    }
}

/// Makes each value the least of those from it on: costs never fall with the size.
fn rise(values: &mut [f64]) {
    for at in (1..values.len()).rev() {
        values[at - 1] = values[at - 1].min(values[at]);
    }
}

/// The line through the values of two places, moved down until it is below those between them.
fn below(values: &[f64], first: usize, last: usize) -> Piece {
    let per_cell = (values[last] - values[first]) / (last - first).max(1) as f64;
    let through = values[first] - per_cell * (first + 1) as f64;
    let over = |at: usize| through + per_cell * (at + 1) as f64 - values[at];
    let overhead = through - (first..=last).map(over).fold(0.0, f64::max);
    Piece { least: first + 1, most: last + 1, overhead, per_cell }
}

/// The line through these values, if there are so many and it is near them.
fn fitting(values: &[f64], first: usize, last: usize) -> Option<Piece> {
    let piece = (last < values.len()).then(|| below(values, first, last))?;
    let near = |at: usize| values[at] - piece.at(at + 1) <= FIT * values[at];
    (first..=last).all(near).then_some(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_below_the_cost_near_it_and_rise() {
        let bent = |m: usize| {
            let x = m as f64;
            10.0 + x
                + if m > 300 { 2.0 * (x - 300.0) } else { 0.0 }
                + if m > 500 { 50.0 } else { 0.0 }
        };
        let values: Vec<f64> = (1..=1000).map(bent).collect();
        let cost = Cost::of(&values, 0.0);
        assert!(cost.pieces.len() <= 4, "{cost:?}");
        let mut before = 0.0;
        for piece in &cost.pieces {
            for m in piece.least..=piece.most.min(1000) {
                let value = piece.at(m);
                assert!(
                    value <= bent(m) * (1.0 + 1e-12) && value >= bent(m) * 0.999,
                    "{m}: {cost:?}"
                );
                assert!(value >= before - 1e-9, "{m}: {cost:?}");
                before = value;
            }
        }
    }
}
