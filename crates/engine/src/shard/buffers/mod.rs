//! The shard's own buffers, and who has how much of them.
//!
//! All of it is staging: memory that the kernel knows, from which runs are taken for a while. Each
//! user of much of it has a part that it may not go beyond: copies, tables, lanes.

mod blocks;
mod cells;
mod scratch;
mod staging;

use piped_core::ids::SegmentId;
use piped_core::limits::{
    CELL_BYTES, GRANULE_BYTES, LANE_RESTING_BYTES, STAGING_LEAST, TABLE_STAGING_DIVISOR,
};
use piped_report::shard::LimitUse;

use self::cells::Cells;
use self::scratch::bytes_at_work;
use self::staging::Staging;
use super::sched::Sched;

pub(super) use self::blocks::{Block, Blocks, run_bytes};
pub(super) use self::cells::Cell;
pub(super) use self::scratch::{Scratch, Size};
pub(super) use self::staging::{Run, footprint_of};

/// The part of staging, as a divisor, that lanes at work leave for those that come up while they
/// are asked for theirs.
const RESTING_DIVISOR: u64 = 16;

/// Staging, and the parts of it that are counted for their users.
#[derive(Debug)]
pub(super) struct Buffers {
    staging: Staging,
    /// The bound of staging, in bytes; none until it is set, and then what was added counts.
    limit: Option<u64>,
    /// Segments of staging whose last use is over.
    drained: Vec<SegmentId>,
    /// Scratches that had to move since start.
    scratches_moved: u64,
    /// Staging that copies use, in bytes.
    copy_bytes: u64,
    /// Staging that tables of peers' requests use: of gets and of puts.
    tables: [u64; 2],
    /// Memory of calls under way.
    cells: Cells,
    /// Scratches of lanes that rest.
    resting: Cells,
    /// Staging that calls use, in bytes: of clients and of peers.
    calls: [u64; 2],
}

/// The party that makes a call. Calls of clients and of peers have a part of staging each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOf {
    Client,
    Peer,
}

/// Where a table lies. Those of gets and of puts have a part of staging each: a get waits for its
/// table, and what is behind it on its lane waits with it; that may be the bytes for which a put
/// keeps its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableRun {
    pub(in crate::shard) run: Run,
    pub(in crate::shard) of: TableOf,
}

/// Which requests a table comes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableOf {
    Get,
    Put,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            staging: Staging::default(),
            limit: None,
            drained: Vec::new(),
            scratches_moved: 0,
            copy_bytes: 0,
            tables: [0; 2],
            cells: Cells::of_bytes(CELL_BYTES, false),
            resting: Cells::of_bytes(LANE_RESTING_BYTES, true),
            calls: [0; 2],
        }
    }
}

impl Buffers {
    /// What there is of staging, and how it is used.
    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }

    /// Takes a segment in. One that was asked for some time ago may be too much by now.
    pub(super) fn add(&mut self, segment: SegmentId, length: u64) {
        self.staging.add(segment, length);
        if let Some(limit) = self.limit {
            self.staging.resize(limit, |segment| self.drained.push(segment));
        }
    }

    /// More or less staging. Not less than works: who asks for less did not look at the report.
    pub(super) fn resize(&mut self, bytes: u64) {
        let limit = bytes.max(self.least());
        self.limit = Some(limit);
        self.staging.resize(limit, |segment| self.drained.push(segment));
    }

    /// The least staging that works: what lanes hold, and room for the longest runs beside it.
    pub(super) fn least(&self) -> u64 {
        STAGING_LEAST + self.staging.scratch_bytes()
    }

    /// What would have to be added if staging were to have so many bytes.
    pub(super) fn missing(&self, bytes: u64) -> u64 {
        self.staging.missing(bytes.max(self.least()))
    }

    /// Whether segments are to be given back.
    pub(super) fn has_drained(&self) -> bool {
        !self.drained.is_empty()
    }

    /// The next segment to be given back.
    pub(super) fn poll_drained(&mut self) -> Option<SegmentId> {
        self.drained.pop()
    }

    /// A run of staging; `None` if there is none so long now.
    pub(super) fn take_run(&mut self, bytes: u32) -> Option<Run> {
        self.staging.allocate(bytes)
    }

    /// Takes a run back, and wakes what waits for one.
    pub(super) fn free(&mut self, run: Run, sched: &mut Sched) {
        self.give_back(run);
        sched.wake_starved();
    }

    /// Takes a run back that was not used: what waits finds no more than before.
    pub(super) fn give_back(&mut self, run: Run) {
        self.drained.extend(self.staging.free(run));
    }

    /// Staging that copies may have beside what they have. Half of it stays for peers' requests and
    /// unaligned edges.
    pub(super) fn left_for_copies(&self) -> u64 {
        (self.staging.kept_bytes() / 2).saturating_sub(self.copy_bytes)
    }

    /// Copies have so many bytes of staging more, or less.
    pub(super) fn count_copy(&mut self, bytes: i64) {
        self.copy_bytes = self.copy_bytes.saturating_add_signed(bytes);
    }

    /// Memory for a table of a peer that has so many bytes of tables, and so many bytes of staging
    /// at most: half of all for one peer.
    pub(super) fn take_table(
        &mut self,
        bytes: u32,
        of: TableOf,
        (own, peer_max): (u64, u64),
    ) -> Option<TableRun> {
        let footprint = footprint_of(bytes);
        let all = (self.staging.kept_bytes() / TABLE_STAGING_DIVISOR).max(footprint);
        let most = (peer_max / TABLE_STAGING_DIVISOR).min(all / 2).max(footprint);
        if self.tables[of as usize] + footprint > all || own + footprint > most {
            return None;
        }
        let run = self.staging.allocate(bytes)?;
        self.tables[of as usize] += run.footprint();
        Some(TableRun { run, of })
    }

    /// Takes the memory of a table back.
    pub(super) fn free_table(&mut self, TableRun { run, of }: TableRun, sched: &mut Sched) {
        self.tables[of as usize] -= run.footprint();
        self.free(run, sched);
    }

    /// Memory for a call of somebody who has so many bytes of such memory: half of all for one.
    pub(super) fn take_cell(&mut self, of: CallOf, own: u64) -> Option<Cell> {
        let all = (self.staging.kept_bytes() / TABLE_STAGING_DIVISOR).max(GRANULE_BYTES.into());
        let bytes = u64::from(CELL_BYTES);
        if self.calls[of as usize] + bytes > all || own + bytes > all / 2 {
            return None;
        }
        let cell = self.cells.take(&mut self.staging)?;
        self.calls[of as usize] += bytes;
        Some(cell)
    }

    /// Takes the memory of a call back.
    pub(super) fn free_cell(&mut self, cell: Cell, of: CallOf, sched: &mut Sched) {
        self.calls[of as usize] -= u64::from(CELL_BYTES);
        if let Some(run) = self.cells.give_back(cell) {
            self.give_back(run);
        }
        sched.wake_starved();
    }

    /// Scratch for a lane; none without staging for it.
    pub(super) fn take_scratch(&mut self, size: Size, encrypts: bool) -> Option<Scratch> {
        if size == Size::Resting {
            return self.resting.take(&mut self.staging).map(Scratch::Resting);
        }
        let (bytes, room) = bytes_at_work(encrypts);
        let frames = self.staging.allocate_scratch(bytes)?;
        let Some(bytes) = room else { return Some(Scratch::Working { frames, room: None }) };
        let room = self.staging.allocate_scratch(bytes);
        if room.is_none() {
            self.give_back(frames);
        }
        room.map(|room| Scratch::Working { frames, room: Some(room) })
    }

    /// Takes a scratch back that was not used.
    pub(super) fn give_back_scratch(&mut self, scratch: Scratch) {
        let (first, second) = match scratch {
            Scratch::Resting(cell) => (self.resting.give_back(cell), None),
            Scratch::Working { frames, room } => (Some(frames), room),
        };
        first.into_iter().chain(second).for_each(|run| self.give_back(run));
    }

    /// Whether a scratch lies in a segment that is to go.
    pub(super) fn is_leaving(&self, scratch: Scratch) -> bool {
        let leaves = |run: Run| self.staging.is_leaving(run);
        match scratch {
            Scratch::Resting(cell) => self.resting.is_leaving(cell, &self.staging),
            Scratch::Working { frames, room } => leaves(frames) || room.is_some_and(leaves),
        }
    }

    /// A scratch has moved; `leaves`: because its segment is to go.
    pub(super) fn note_moved(&mut self, leaves: bool) {
        self.scratches_moved += u64::from(leaves);
    }

    /// Whether lanes may have so much more of staging for work: some is left for lanes that come
    /// up.
    pub(super) fn may_grow(&self, more: u64) -> bool {
        let kept = self.staging.kept_bytes();
        self.least() + more + kept / RESTING_DIVISOR <= kept
    }

    /// What one more lane that rests takes of staging, in bytes.
    pub(super) fn next_rest(&self) -> u64 {
        self.resting.next_bytes(&self.staging)
    }

    /// Whether one more lane may rest. `all`: what lanes had if all rested and one of them worked.
    pub(super) fn may_rest(&self, all: u64) -> bool {
        let kept = self.staging.kept_bytes();
        self.least() + self.next_rest() <= kept
            && all + STAGING_LEAST + kept / RESTING_DIVISOR <= kept
    }

    /// What of the limits' use is staging.
    pub(super) fn limit_use(&self) -> LimitUse {
        LimitUse {
            staging: self.staging.used(),
            staging_limit_bytes: self.limit.unwrap_or(self.staging.bytes()),
            staging_draining_bytes: self.staging.draining_bytes(),
            staging_least_bytes: self.least(),
            staging_segments: (self.staging.segments() + self.drained.len()) as u32,
            scratches_moved: self.scratches_moved,
            ..LimitUse::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn buffers(mib: u64) -> Buffers {
        let mut buffers = Buffers::default();
        buffers.add(SegmentId(1), mib * MIB);
        buffers
    }

    #[test]
    fn tables_have_their_part_and_one_peer_half_of_it() {
        let mut buffers = buffers(16);
        let mut sched = Sched::new(1);
        let (mut own, mut tables) = (0, Vec::new());
        while let Some(table) = buffers.take_table(1, TableOf::Get, (own, u64::MAX)) {
            own += table.run.footprint();
            tables.push(table);
        }
        let all = 16 * MIB / TABLE_STAGING_DIVISOR;
        assert_eq!(own, all / 2);
        while let Some(table) = buffers.take_table(1, TableOf::Get, (0, u64::MAX)) {
            tables.push(table);
        }
        assert_eq!(buffers.staging().used().now, all);
        let put = buffers.take_table(1, TableOf::Put, (0, u64::MAX));
        tables.push(put.expect("those of puts have a part of their own"));
        tables.into_iter().for_each(|table| buffers.free_table(table, &mut sched));
        assert_eq!((buffers.tables, buffers.staging().used().now), ([0; 2], 0));
    }

    #[test]
    fn calls_have_their_part_and_one_party_half_of_it() {
        let mut buffers = buffers(16);
        let mut sched = Sched::new(1);
        let (mut own, mut cells) = (0, Vec::new());
        while let Some(cell) = buffers.take_cell(CallOf::Peer, own) {
            own += u64::from(CELL_BYTES);
            cells.push((cell, CallOf::Peer));
        }
        let all = 16 * MIB / TABLE_STAGING_DIVISOR;
        assert_eq!(own, all / 2);
        while let Some(cell) = buffers.take_cell(CallOf::Peer, 0) {
            cells.push((cell, CallOf::Peer));
        }
        assert_eq!(buffers.staging().used().now, all);
        let client = buffers.take_cell(CallOf::Client, 0);
        cells.push((client.expect("those of clients have a part of their own"), CallOf::Client));
        cells.into_iter().for_each(|(cell, of)| buffers.free_cell(cell, of, &mut sched));
        assert_eq!((buffers.calls, buffers.staging().used().now), ([0; 2], 0));
    }

    #[test]
    fn a_segment_that_comes_when_it_is_too_much_goes_again() {
        let mut buffers = buffers(64);
        buffers.resize(64 * MIB);
        buffers.add(SegmentId(2), 64 * MIB);
        assert!(buffers.has_drained());
        assert_eq!(buffers.poll_drained(), Some(SegmentId(2)));
        assert_eq!((buffers.poll_drained(), buffers.missing(64 * MIB)), (None, 0));
    }

    #[test]
    fn a_scratch_without_room_for_what_is_encrypted_is_none() {
        let mut buffers = buffers(1);
        assert!(buffers.take_scratch(Size::Working, true).is_none());
        assert_eq!(buffers.staging().used().now, 0);
        let resting = buffers.take_scratch(Size::Resting, true).expect("a granule");
        assert_eq!(buffers.staging().scratch_bytes(), GRANULE_BYTES.into());
        assert_eq!((resting.footprint(), buffers.next_rest()), (LANE_RESTING_BYTES.into(), 0));
        buffers.give_back_scratch(resting);
        assert_eq!(buffers.staging().scratch_bytes(), 0);
    }
}
