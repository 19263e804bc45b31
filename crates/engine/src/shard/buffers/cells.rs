//! Short pieces of staging, many to a granule: the bytes of a call under way, or the scratch of a
//! lane that rests.
//!
//! A call is a few hundred bytes, and a client may have thousands of them; a lane that rests takes
//! a few KiB, and a node may have a thousand of these. So runs of staging are cut into cells, which
//! are taken from the runs that are in use before a new one is.

use piped_core::io::Span;
use piped_core::limits::GRANULE_BYTES;

use super::staging::{Run, Staging};

/// A cell in use. It goes back to where it was taken.
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

/// Runs that are cut into cells of one length.
#[derive(Debug)]
pub(super) struct Cells {
    /// Bytes of a cell.
    bytes: u32,
    /// Cells are scratch of lanes, which have them for long.
    of_lanes: bool,
    /// Places of runs; a cell names its run's place, so a free one is `None`.
    runs: Vec<Option<Cut>>,
}

/// A run, and which of its cells are in use.
#[derive(Debug)]
struct Cut {
    run: Run,
    used: u32,
}

impl Cells {
    /// Cells of that length, which is such a part of a granule that a word has a bit for each.
    pub(super) const fn of_bytes(bytes: u32, of_lanes: bool) -> Self {
        assert!(bytes <= GRANULE_BYTES && GRANULE_BYTES / bytes < u32::BITS);
        Self { bytes, of_lanes, runs: Vec::new() }
    }

    /// The place of the first run that stays and has a free cell.
    fn with_room(&self, staging: &Staging) -> Option<usize> {
        let all_used = (1 << (GRANULE_BYTES / self.bytes)) - 1;
        let has_room = |cut: &Cut| cut.used != all_used && !staging.is_leaving(cut.run);
        self.runs.iter().position(|place| place.as_ref().is_some_and(has_room))
    }

    /// What one more cell takes of staging, in bytes: nothing, if a run has one.
    pub(super) fn next_bytes(&self, staging: &Staging) -> u64 {
        if self.with_room(staging).is_some() { 0 } else { GRANULE_BYTES.into() }
    }

    /// A cell of a run that has one and stays, or of a new run; `None` without staging for that.
    pub(super) fn take(&mut self, staging: &mut Staging) -> Option<Cell> {
        let place = match self.with_room(staging) {
            Some(place) => place,
            None => {
                let run = match self.of_lanes {
                    true => staging.allocate_scratch(GRANULE_BYTES)?,
                    false => staging.allocate(GRANULE_BYTES)?,
                };
                let cut = Some(Cut { run, used: 0 });
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
        let span = cut.run.span.part(number * self.bytes, self.bytes);
        Some(Cell { run: place as u32, number, span })
    }

    /// Whether a cell lies in a segment that is to go.
    pub(super) fn is_leaving(&self, cell: Cell, staging: &Staging) -> bool {
        let cut = self.runs.get(cell.run as usize).and_then(Option::as_ref);
        cut.is_some_and(|cut| staging.is_leaving(cut.run))
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
    use piped_core::limits::CELL_BYTES;

    use super::*;

    #[test]
    fn cells_are_apart_and_the_last_of_a_run_gives_it_back() {
        let mut staging = Staging::default();
        staging.add(SegmentId(1), 2 * u64::from(GRANULE_BYTES));
        let mut cells = Cells::of_bytes(CELL_BYTES, false);
        assert_eq!(cells.next_bytes(&staging), GRANULE_BYTES.into());
        let first = cells.take(&mut staging).expect("room");
        assert_eq!(cells.next_bytes(&staging), 0);
        let others = std::iter::from_fn(|| cells.take(&mut staging));
        let all: Vec<Cell> = std::iter::once(first).chain(others).collect();
        assert_eq!(all.len() as u32, 2 * GRANULE_BYTES / CELL_BYTES);
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
    fn cells_of_lanes_are_scratch() {
        let mut staging = Staging::default();
        staging.add(SegmentId(1), 2 * u64::from(GRANULE_BYTES));
        let mut cells = Cells::of_bytes(GRANULE_BYTES / 2, true);
        let [first, second, third] = [0; 3].map(|_| cells.take(&mut staging).expect("room"));
        assert_eq!(staging.scratch_bytes(), 2 * u64::from(GRANULE_BYTES));
        assert_eq!([first, second, third].map(|cell| cell.run), [0, 0, 1]);
        assert_eq!(cells.give_back(first), None);
        assert_eq!(cells.take(&mut staging), Some(first), "runs in use are filled up");
        let last = cells.give_back(third).expect("it was alone");
        let _ = staging.free(last);
        assert_eq!(staging.scratch_bytes(), u64::from(GRANULE_BYTES));
    }

    #[test]
    fn a_run_that_is_to_go_gets_no_new_cells() {
        let mut staging = Staging::default();
        staging.add(SegmentId(1), u64::from(GRANULE_BYTES));
        staging.add(SegmentId(2), u64::from(GRANULE_BYTES));
        let mut cells = Cells::of_bytes(CELL_BYTES, false);
        let first = cells.take(&mut staging).expect("room");
        assert!(!cells.is_leaving(first, &staging));
        // Of two that are as large, the one in use stays.
        staging.resize(0, |_| {});
        assert_eq!(cells.take(&mut staging), None, "all of it is to go");
        assert!(cells.is_leaving(first, &staging));
        assert!(cells.give_back(first).is_some());
    }
}
