//! A run: receive, compute, send, tile by tile.

use std::ops::Range;

use piped_model::tile::Schedule;

use super::costs::{Chooser, TileSample};
use super::edge::{Own, Waiting};
use super::link::Stamp;
use super::{Axes, Tile, TileError, TileHeight, TilePipeline, TileReport};
use crate::clock;

/// Works through a column: see [`TilePipeline::run`].
pub(super) fn run(
    pipeline: &mut TilePipeline,
    depth: u64,
    (height, schedule): (TileHeight, Schedule),
    mut compute: impl FnMut(&mut Tile<'_>),
) -> Result<TileReport, TileError> {
    let leads = pipeline.inlets.as_ref().each().into_iter().all(Option::is_none);
    let links = match height {
        TileHeight::Auto if leads => pipeline.link_costs()?,
        _ => None,
    };
    let height_max = pipeline.own.layout().height_max.min(depth.max(1));
    let mut chooser = Chooser::new((depth, height_max), height, (pipeline.grid, schedule), links);
    let mut run = Run { pipeline, depth, schedule, blocked_ns: 0 };
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let begun_ns = clock::now_ns();
    let mut report = TileReport {
        tiles: 0,
        height: 0,
        seconds: 0.0,
        compute_seconds: 0.0,
        blocked_seconds: 0.0,
    };
    run.pipeline.outlets.x.iter_mut().chain(&mut run.pipeline.outlets.y).for_each(|it| it.begin());
    let (mut first, mut compute_ns) = (0, 0);
    while first < depth {
        let (tile_ns, blocked_before_ns) = (clock::now_ns(), run.blocked_ns);
        let rows = match run.receive(report.tiles, first)? {
            Some(rows) => rows,
            None => first..first + chooser.next(&run.pipeline.computation).min(depth - first),
        };
        let height = rows.end - rows.start;
        run.make_room(report.tiles, height)?;
        let computed_ns = run.compute(report.tiles, rows.clone(), &mut compute)?;
        compute_ns += computed_ns;
        run.send(report.tiles, &rows)?;
        let own_ns = (clock::now_ns() - tile_ns).saturating_sub(run.blocked_ns - blocked_before_ns);
        let around_ns = own_ns.saturating_sub(computed_ns);
        let [compute, around] = [computed_ns, around_ns].map(seconds);
        run.pipeline.computation.handle_tile(TileSample { height, compute, around });
        if report.tiles == 0 || rows.end < depth {
            report.height = height;
        }
        report.tiles += 1;
        first = rows.end;
    }
    run.finish(report.tiles)?;
    report.seconds = seconds(clock::now_ns() - begun_ns);
    report.compute_seconds = seconds(compute_ns);
    report.blocked_seconds = seconds(run.blocked_ns);
    run.pipeline.runs += 1;
    Ok(report)
}

/// A run under way.
struct Run<'a> {
    pipeline: &'a mut TilePipeline,
    depth: u64,
    schedule: Schedule,
    blocked_ns: u64,
}

impl Run<'_> {
    fn overlaps(&self) -> bool {
        self.schedule == Schedule::Overlapping
    }

    /// Takes the borders of a tile from the neighbours before. The tile's rows, if there are any.
    fn receive(&mut self, number: u64, first: u64) -> Result<Option<Range<u64>>, TileError> {
        let (ahead, depth) = (self.overlaps(), self.depth);
        let TilePipeline { client, own, inlets, queue, back, patience_ns, runs, .. } =
            self.pipeline;
        let blocked_ns = &mut self.blocked_ns;
        let wanted = |height| Stamp { run: *runs, tile: number, first, height };
        let mut rows: Option<Range<u64>> = None;
        for inlet in [&mut inlets.x, &mut inlets.y].into_iter().flatten() {
            let patience_ns = *patience_ns;
            let mut waiting =
                Waiting { client, queue, asking: Some(back), patience_ns, blocked_ns };
            let stamp = inlet.receive(number, own, &mut waiting)?;
            let height = rows.as_ref().map_or(stamp.height, |rows| rows.end - rows.start);
            check(inlet.neighbour.at, wanted(height), stamp, depth)?;
            let end = first + stamp.height;
            rows = Some(first..end);
            // The next one may come while this one is computed.
            if ahead && end < depth {
                inlet.expect(own, queue)?;
            }
            let mut waiting =
                Waiting { client, queue: back, asking: None, patience_ns, blocked_ns };
            inlet.give_back(&mut waiting)?;
        }
        if ahead {
            queue.flush();
        }
        Ok(rows)
    }

    fn make_room(&mut self, number: u64, height: u64) -> Result<(), TileError> {
        let TilePipeline { client, outlets, queue, back, patience_ns, .. } = self.pipeline;
        for outlet in [&mut outlets.x, &mut outlets.y].into_iter().flatten() {
            let (patience_ns, blocked_ns) = (*patience_ns, &mut self.blocked_ns);
            let mut waiting =
                Waiting { client, queue, asking: Some(back), patience_ns, blocked_ns };
            outlet.make_room(number, height, &mut waiting)?;
        }
        Ok(())
    }

    /// Has the tile computed. How long that took, in nanoseconds.
    fn compute(
        &mut self,
        number: u64,
        rows: Range<u64>,
        compute: &mut impl FnMut(&mut Tile<'_>),
    ) -> Result<u64, TileError> {
        let TilePipeline { inlets, outlets, .. } = &mut *self.pipeline;
        let before = inlets.as_ref().map(|inlet| inlet.as_ref().map(|it| it.border()));
        let Axes { x, y } = outlets;
        let after = Axes {
            x: x.as_mut().and_then(|outlet| outlet.border(number)),
            y: y.as_mut().and_then(|outlet| outlet.border(number)),
        };
        let mut tile = Tile { rows, before, after };
        let begun_ns = clock::now_ns();
        compute(&mut tile);
        Ok(clock::now_ns() - begun_ns)
    }

    /// Hands the borders of a tile on.
    fn send(&mut self, number: u64, rows: &Range<u64>) -> Result<(), TileError> {
        let (overlaps, more) = (self.overlaps(), rows.end < self.depth);
        let TilePipeline { client, own, outlets, queue, back, patience_ns, runs, .. } =
            self.pipeline;
        let height = rows.end - rows.start;
        let stamp = Stamp { run: *runs, tile: number, first: rows.start, height };
        let blocked_ns = &mut self.blocked_ns;
        let patience_ns = *patience_ns;
        let mut waiting = Waiting { client, queue, asking: Some(back), patience_ns, blocked_ns };
        let mut each = [&mut outlets.x, &mut outlets.y];
        for outlet in each.iter_mut().filter_map(|it| it.as_mut()) {
            outlet.send(stamp, own, &mut waiting)?;
            if overlaps && more && number + 1 >= super::link::SLOTS {
                outlet.expect_slot(own, waiting.queue)?;
            }
        }
        waiting.queue.flush();
        if !overlaps {
            for outlet in each.into_iter().flatten() {
                outlet.arrive(number, &mut waiting)?;
            }
        }
        Ok(())
    }

    /// Nothing is under way any more afterwards, here or at a neighbour, that this run began.
    fn finish(&mut self, tiles: u64) -> Result<(), TileError> {
        let TilePipeline { client, own, inlets, outlets, queue, back, patience_ns, .. } =
            self.pipeline;
        let (patience_ns, blocked_ns): (u64, &mut u64) = (*patience_ns, &mut self.blocked_ns);
        let own: &Own = own;
        for inlet in [&mut inlets.x, &mut inlets.y].into_iter().flatten() {
            let mut waiting =
                Waiting { client, queue: back, asking: None, patience_ns, blocked_ns };
            inlet.finish(&mut waiting)?;
        }
        let mut waiting = Waiting { client, queue, asking: Some(back), patience_ns, blocked_ns };
        for outlet in [&mut outlets.x, &mut outlets.y].into_iter().flatten() {
            outlet.finish(tiles, own, &mut waiting)?;
        }
        Ok(())
    }
}

/// Whether a border is the one that is needed.
fn check(at: Axes<u32>, ours: Stamp, theirs: Stamp, depth: u64) -> Result<(), TileError> {
    let same = [
        ("number of runs", ours.run, theirs.run),
        ("tile", ours.tile, theirs.tile),
        ("first row of a tile", ours.first, theirs.first),
        ("height of a tile", ours.height, theirs.height),
    ];
    for (what, ours, theirs) in same {
        if ours != theirs {
            return Err(TileError::Mismatch { at, what, ours, theirs });
        }
    }
    if theirs.height > depth - ours.first {
        let (what, ours, theirs) = ("depth", depth, ours.first.saturating_add(theirs.height));
        return Err(TileError::Mismatch { at, what, ours, theirs });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_that_is_not_the_one_needed_says_why() {
        let at = Axes { x: 0, y: 1 };
        let good = Stamp { run: 2, tile: 3, first: 30, height: 10 };
        assert!(check(at, good, good, 40).is_ok());
        for (what, bad, depth) in [
            ("runs", Stamp { run: 1, ..good }, 40),
            ("first row", Stamp { first: 29, ..good }, 40),
            ("height", Stamp { height: 9, ..good }, 40),
            ("depth", good, 39),
        ] {
            let error = check(at, good, bad, depth).expect_err("they differ").to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
