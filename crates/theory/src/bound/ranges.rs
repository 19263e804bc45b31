//! Times between which each stage of a run has to work, and the passes that draw them together.
//!
//! Between two stages is a boundary. For a latency that is to be refuted, each boundary has the
//! earliest times at which so many cells cross it, and the least times that the last so many cells
//! take from there to the end. A pass over a stage raises the first behind it, or the second before
//! it. Both are lengths of paths through the recurrence that every plan has if it keeps the
//! latency. A plan that keeps a smaller one keeps this one, too: [`Ranges::lower`] leaves what is
//! known.
//!
//! A plan whose cells cross a boundary after a time has a path that is so long up to there. If they
//! cross it by a time, a path that needs the rest of the limit from there on may be added, and the
//! plan still keeps the limit. The length of that path is bound to the limit: where such a case was
//! supposed the limit must not be lowered any more.

use super::cost::Cost;
use super::pass::{Neighbours, Pass};

/// A pass that raised nothing by this part of the latency calls for no others.
const WORTH: f64 = 5e-5;

/// A run of stages, some of which may have fixed cuts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    costs: &'a [Cost],
    fixed: &'a [Option<Vec<u32>>],
}

impl<'a> Run<'a> {
    /// Stages that may be cut anywhere.
    pub(super) fn free(costs: &'a [Cost]) -> Self {
        Self { costs, fixed: &[] }
    }

    /// Stages of which some are cut as they are.
    pub(super) fn fixed(costs: &'a [Cost], fixed: &'a [Option<Vec<u32>>]) -> Self {
        Self { costs, fixed }
    }
}

/// What is known of the times at the boundaries of a run.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The latency that a plan is supposed to keep.
    limit: f64,
    /// By boundary: the earliest times at which so many cells cross it.
    early: Vec<Vec<f64>>,
    /// By boundary: the least times that the last so many cells take behind it.
    late: Vec<Vec<f64>>,
    /// By stage: whether a pass from the begin, and from the end, may find something new.
    open: Vec<[bool; 2]>,
}

impl Clone for Ranges {
    fn clone(&self) -> Self {
        let mut new = Self::default();
        new.clone_from(self);
        new
    }

    fn clone_from(&mut self, other: &Self) {
        self.limit = other.limit;
        self.early.clone_from(&other.early);
        self.late.clone_from(&other.late);
        self.open.clone_from(&other.open);
    }
}

impl Ranges {
    /// Begins with what is known of the run's own parts: `before` and `behind` a boundary, for so
    /// many cells.
    pub(super) fn begin<'a>(
        &mut self,
        stages: usize,
        cells: usize,
        limit: f64,
        before: impl Fn(usize) -> &'a [f64],
        behind: impl Fn(usize) -> &'a [f64],
    ) {
        self.limit = limit;
        for times in [&mut self.early, &mut self.late] {
            times.resize_with(stages + 1, Vec::new);
            times.iter_mut().for_each(Vec::clear);
        }
        for boundary in 1..stages {
            self.early[boundary].extend_from_slice(&before(boundary)[..=cells]);
            self.late[boundary].extend_from_slice(&behind(boundary)[..=cells]);
        }
        // Everything is there at once, and nothing is left to do at the end.
        self.early[0].resize(cells + 1, 0.0);
        self.late[stages].resize(cells + 1, 0.0);
        self.open.clear();
        self.open.resize(stages, [true; 2]);
    }

    /// Lowers the limit; nothing must have been supposed before.
    pub(super) fn lower(&mut self, limit: f64) {
        debug_assert!(limit <= self.limit, "what is known holds for smaller limits only");
        self.limit = limit;
        self.open.fill([true; 2]);
    }

    pub(super) fn limit(&self) -> f64 {
        self.limit
    }

    /// Passes to and fro until nothing changes, or so often. Whether nothing speaks against a plan.
    pub(super) fn sweep(&mut self, run: Run<'_>, pass: &mut Pass, sweeps: usize) -> bool {
        let stages = run.costs.len();
        for _ in 0..sweeps {
            let mut rests = true;
            for stage in 0..stages - 1 {
                if core::mem::take(&mut self.open[stage][0]) {
                    rests = false;
                    if !self.pass(run, pass, stage, false) {
                        return false;
                    }
                }
            }
            for stage in (1..stages).rev() {
                if core::mem::take(&mut self.open[stage][1]) {
                    rests = false;
                    if !self.pass(run, pass, stage, true) {
                        return false;
                    }
                }
            }
            if rests {
                break;
            }
        }
        true
    }

    /// A stage cut within its neighbours' times, seen from the begin or from the end.
    fn pass(&mut self, run: Run<'_>, pass: &mut Pass, stage: usize, backwards: bool) -> bool {
        let neighbours = self.neighbours(stage, backwards);
        let cost = &run.costs[stage];
        let kept = match run.fixed.get(stage) {
            None | Some(None) => pass.run(cost, neighbours),
            Some(Some(cuts)) => {
                let size = self.early[0].len() - 1;
                let cuts = cuts.iter().map(|&cut| cut as usize);
                if backwards {
                    let begins = cuts.rev().skip(1).map(|cut| size - cut).chain([size]);
                    pass.walk(cost, neighbours, begins)
                } else {
                    pass.walk(cost, neighbours, cuts)
                }
            }
        };
        if kept {
            let (known, next) = if backwards {
                (&mut self.late[stage], stage - 1)
            } else {
                (&mut self.early[stage + 1], stage + 1)
            };
            if pass.raise(known) > WORTH * self.limit {
                self.open[next] = [true; 2];
            }
        }
        kept
    }

    /// What a stage's neighbours leave to it, seen from the begin or from the end.
    pub(super) fn neighbours(&self, stage: usize, backwards: bool) -> Neighbours<'_> {
        let (before, behind) = (&self.early[stage], &self.late[stage + 1]);
        if backwards {
            Neighbours::new(behind, before, self.limit)
        } else {
            Neighbours::new(before, behind, self.limit)
        }
    }

    /// The range of times in which so many cells, and no fewer, cross a boundary.
    pub(super) fn range(&self, boundary: usize, cells: usize) -> (f64, f64) {
        let late = &self.late[boundary];
        // The fragment behind has a cell of these.
        (self.early[boundary][cells], self.limit - late[late.len() - cells])
    }

    /// So many cells cross a boundary after a time.
    pub(super) fn after(&mut self, boundary: usize, cells: usize, time: f64) {
        let known = &mut self.early[boundary][cells..];
        known.iter_mut().for_each(|known| *known = known.max(time));
        self.open[boundary] = [true; 2];
    }

    /// So many cells cross a boundary by a time.
    pub(super) fn by(&mut self, boundary: usize, cells: usize, time: f64) {
        let (known, least) = (&mut self.late[boundary], self.limit - time);
        let first = known.len() - cells;
        known[first..].iter_mut().for_each(|known| *known = known.max(least));
        self.open[boundary - 1] = [true; 2];
    }
}
