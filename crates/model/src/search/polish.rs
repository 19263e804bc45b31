//! The best sizes for a pattern of cuts.
//!
//! Which stages cut together is fixed here, where they cut is not. The latency is the largest of
//! the lengths of all paths through the recurrence, each linear in the sizes between positions: a
//! linear program with very many rows, of which few matter. So rows are added as they are needed
//! (Kelley's cutting planes): evaluate, take the critical path as a new row, solve, again. The
//! point evaluated is half-way between the program's solution and the best one seen, because the
//! program's own jumps from corner to corner while it knows few rows.
//!
//! Neighbouring segments may be tied: those of one block keep their proportions. That keeps the
//! program small where there are many.

use core::num::NonZeroU32;

use super::layout::{Layout, Times};
use super::simplex::MinMax;
use crate::stage::Stage;

/// Rows at most: these, and so many for each block.
const ROWS: (usize, usize) = (20, 6);

/// The work ends where the best is known to this part.
const TOLERANCE: f64 = 2e-4;

/// What there is to do.
#[derive(Debug)]
pub struct Polish<'a> {
    /// The stages, in order.
    pub path: &'a [Stage],
    /// The most fragments outstanding.
    pub depth: NonZeroU32,
    /// The number of segments between positions in each block; their sum is that of all segments.
    pub blocks: &'a [u32],
    /// The least size of a segment, in bytes.
    pub smallest: f64,
    /// Give up when it turns out that the pattern cannot take less.
    pub hopeless: f64,
}

impl Polish<'_> {
    /// Moves the positions of `layout` to where its latency is least, and returns that.
    pub fn run(&self, layout: &mut Layout, times: &mut Times) -> f64 {
        let bytes = layout.positions[layout.last() as usize];
        let count: u32 = self.blocks.iter().sum();
        let least: Vec<f64> =
            self.blocks.iter().map(|&count| f64::from(count) * self.smallest).collect();
        let free = bytes - self.smallest * f64::from(count);
        let mut best = times.forward(self.path, layout, self.depth);
        // Nothing is faster than free, and what is free is no measure for the program's rows.
        if self.blocks.len() < 2 || free <= 0.0 || best <= 0.0 || !best.is_finite() {
            return best;
        }
        let parts = self.parts(layout);
        let mut kept = self.sizes(layout);
        let mut trial = kept.clone();
        let mut shares = vec![0.0; self.blocks.len()];
        let mut weights = vec![0.0; count as usize];
        let mut function = vec![0.0; self.blocks.len()];
        let mut program = MinMax::new(self.blocks.len());
        let scale = best;
        for _ in 0..ROWS.0 + ROWS.1 * self.blocks.len() {
            weights.fill(0.0);
            let fixed = times.critical(self.path, layout, &mut weights);
            let mut constant = fixed;
            let mut segment = 0;
            for ((value, &count), least) in function.iter_mut().zip(self.blocks).zip(&least) {
                let next = segment + count as usize;
                let weighted = weights[segment..next].iter().zip(&parts[segment..next]);
                let mean: f64 = weighted.map(|(weight, part)| weight * part).sum();
                constant += mean * least;
                *value = mean * free;
                segment = next;
            }
            for value in &mut function {
                *value = (*value + constant) / scale;
            }
            let Some(bound) = program.add(&function) else { break };
            let bound = bound * scale;
            times.work += (self.blocks.len() * self.blocks.len()) as u64 / 2;
            if best - bound <= TOLERANCE * best || bound >= self.hopeless {
                break;
            }
            program.shares(&mut shares);
            for (((new, old), share), least) in trial.iter_mut().zip(&kept).zip(&shares).zip(&least)
            {
                *new = f64::midpoint(*old, least + share * free);
            }
            self.place(layout, &parts, &trial, bytes);
            let seconds = times.forward(self.path, layout, self.depth);
            if seconds < best {
                best = seconds;
                kept.copy_from_slice(&trial);
            }
        }
        self.place(layout, &parts, &kept, bytes);
        best
    }

    fn sizes(&self, layout: &Layout) -> Vec<f64> {
        let mut at = 0;
        let block = |&count: &u32| {
            let begin = at;
            at += count as usize;
            layout.positions[at] - layout.positions[begin]
        };
        self.blocks.iter().map(block).collect()
    }

    /// Which part of its block each segment is.
    fn parts(&self, layout: &Layout) -> Vec<f64> {
        let mut parts = Vec::with_capacity(layout.positions.len());
        let mut begin = 0;
        for &count in self.blocks {
            let end = begin + count as usize;
            let whole = layout.positions[end] - layout.positions[begin];
            for segment in begin..end {
                let size = layout.positions[segment + 1] - layout.positions[segment];
                parts.push(if whole > 0.0 { size / whole } else { 1.0 / f64::from(count) });
            }
            begin = end;
        }
        parts
    }

    fn place(&self, layout: &mut Layout, parts: &[f64], sizes: &[f64], bytes: f64) {
        let (mut at, mut begin) = (0, 0.0);
        for (&count, size) in self.blocks.iter().zip(sizes) {
            let mut end = begin;
            for _ in 0..count {
                end += size * parts[at];
                at += 1;
                layout.positions[at] = end;
            }
            begin += size;
        }
        layout.positions[at] = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_path_is_left_as_it_is() {
        let path = [Stage::FREE; 3];
        let mut layout = Layout::common(vec![0.0, 100.0, 300.0, 1000.0], path.len());
        let before = layout.positions.clone();
        let mut times = Times::new(path.len());
        let blocks = [1, 1, 1];
        let polish = Polish {
            path: &path,
            depth: NonZeroU32::MAX,
            blocks: &blocks,
            smallest: 0.0,
            hopeless: 0.0,
        };
        assert_eq!(polish.run(&mut layout, &mut times), 0.0);
        assert_eq!(layout.positions, before);
    }
}
