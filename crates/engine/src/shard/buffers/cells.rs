//! Short pieces of staging, many to a granule: each has the bytes of a call under way.
//!
//! A call is a few hundred bytes, and a client may have thousands of them. So runs of staging are
//! cut into cells, which are taken from the runs that are in use before a new one is.

use piped_core::io::Span;
use piped_core::limits::{CELL_BYTES, GRANULE_BYTES};

use super::staging::{Run, Staging};

/// Cells of one run.
const CELLS_PER_RUN: u32 = GRANULE_BYTES / CELL_BYTES;

/// A cell in use. Give it back with [`super::Buffers::free_cell`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Cell {
    run: u32,
    number: u32,
    span: Span,
}

impl Cell {
    /// The memory of the cell.
    pub(in crate::shard) const fn span(&self) -> Span {
        self.span
    }
}

/// Runs that are cut into cells.
#[derive(Debug, Default)]
pub(super) struct Cells {
    /// Places of runs; a cell names its run's place, so a free one is `None`.
    runs: Vec<Option<Cut>>,
}

/// A run, and which of its cells are in use.
#[derive(Debug)]
struct Cut {
    run: Run,
    used: u32,
}

const _: () = assert!(CELLS_PER_RUN < u32::BITS && GRANULE_BYTES.is_multiple_of(CELL_BYTES));
const ALL_USED: u32 = (1 << CELLS_PER_RUN) - 1;

impl Cells {
    /// A cell of a run that has one and stays, or of a new run; `None` without staging for that.
    pub(super) fn take(&mut self, staging: &mut Staging) -> Option<Cell> {
        let has_room = |place: &Option<Cut>| {
            place.as_ref().is_some_and(|cut| cut.used != ALL_USED && !staging.is_leaving(cut.run))
        };
        let place = match self.runs.iter().position(has_room) {
            Some(place) => place,
            None => {
                let cut = Some(Cut { run: staging.allocate(GRANULE_BYTES)?, used: 0 });
                match self.runs.iter().position(Option::is_none) {
                    Some(free) => {
                        self.runs[free] = cut;
                        free
                    }
                    None => {
                        self.runs.push(cut);
                        self.runs.len() - 1
                    }
                }
            }
        };
        let cut = self.runs[place].as_mut()?;
        let number = cut.used.trailing_ones();
        cut.used |= 1 << number;
        let span = cut.run.span.part(number * CELL_BYTES, CELL_BYTES);
        Some(Cell { run: place as u32, number, span })
    }

    /// Takes a cell back. The run that it was the last one of, which is free then.
    #[must_use]
    pub(super) fn give_back(&mut self, cell: Cell) -> Option<Run> {
        let place = &mut self.runs[cell.run as usize];
        let cut = place.as_mut().expect("a run stays while cells of it are in use");
        debug_assert!(cut.used & 1 << cell.number != 0, "a cell changes hands twice");
        cut.used &= !(1 << cell.number);
        if cut.used == 0 { place.take().map(|cut| cut.run) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SegmentId;

    use super::*;

    #[test]
    fn cells_are_apart_and_the_last_of_a_run_gives_it_back() {
        let mut staging = Staging::default();
        staging.add(SegmentId(1), 2 * u64::from(GRANULE_BYTES));
        let mut cells = Cells::default();
        let all: Vec<Cell> = std::iter::from_fn(|| cells.take(&mut staging)).collect();
        assert_eq!(all.len() as u32, 2 * CELLS_PER_RUN);
        let mut places: Vec<u64> = all.iter().map(|cell| cell.span.offset).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), all.len());
        assert!(all.iter().all(|cell| cell.span.length == CELL_BYTES));
        // One that is free is taken again before a run is.
        assert_eq!(cells.give_back(all[3]), None);
        assert_eq!(cells.take(&mut staging), Some(all[3]));
        let runs: Vec<Run> = all.into_iter().filter_map(|cell| cells.give_back(cell)).collect();
        assert_eq!(runs.len(), 2);
        for run in runs {
            let _ = staging.free(run);
        }
        assert_eq!(staging.used().now, 0);
    }

    #[test]
    fn a_run_that_is_to_go_gets_no_new_cells() {
        let mut staging = Staging::default();
        staging.add(SegmentId(1), u64::from(GRANULE_BYTES));
        staging.add(SegmentId(2), u64::from(GRANULE_BYTES));
        let mut cells = Cells::default();
        let first = cells.take(&mut staging).expect("room");
        // Of two that are as large, the one in use stays.
        staging.resize(0, |_| {});
        assert_eq!(cells.take(&mut staging), None, "all of it is to go");
        assert!(cells.give_back(first).is_some());
    }
}
