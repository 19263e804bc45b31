//! What is left of a vectored request: the rows of its table, and the parts under way.

use piped_core::ids::{HandleId, SegmentId};
use piped_core::io::{Io, Span};
use piped_core::limits::{STRIPES_MAX, VECTOR_PARTS};
use piped_core::pieces::Row;
use piped_core::status::Status;
use piped_report::tally::Route;

use super::super::arena::Memory;
use super::super::clients::{Place, Share, Shares};
use super::super::driver::Direction;
use super::super::peers::Way;
use super::super::stripes::{Stripe, Stripes};
use super::Body;
use super::buffers::{Buffers, Place as Listed};
use super::led::Led;
use super::part::Part;
use crate::command::{FileTarget, RegionTarget, Target};

/// What is wanted first of a read: about as much as a page fault waits for.
const CRITICAL_BYTES: u64 = 4096;

/// What is left of a vectored request, or of a read of which a part is wanted first.
#[derive(Debug)]
pub(in crate::shard) struct VectorBody {
    place: Place,
    direction: Direction,
    /// Where the client's bytes lie.
    buffers: Buffers,
    rows: Rows,
    /// Bytes of the table for which a part was started.
    next: u64,
    parts: [Option<Part>; VECTOR_PARTS],
    order: Order,
    /// The source ended within a piece.
    ended: bool,
    /// The request has its place in the line of copies.
    waits: bool,
    /// What its pieces are divided between.
    split: Option<Split>,
    /// Where it begins in the file or region, if it is a range of it.
    offset: u64,
}

/// Between what the pieces of a request are divided.
#[derive(Debug, Clone, Copy)]
enum Split {
    /// Both ways to a peer.
    Lanes,
    /// The page cache and the device behind it.
    Sources(Stripes),
    /// Nodes that have the file.
    Replicas(Led),
}

/// How its pieces count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Order {
    /// One behind the other, as in the table; those of a peer's region travel so.
    Packed,
    /// Like `Packed` in the table's order, but each piece is a transfer of its own.
    Single,
    /// As they lie in the buffer: a read of which a part is wanted first.
    Placed,
}

/// The table, as far as it is not done.
#[derive(Debug)]
struct Rows {
    segment: SegmentId,
    offset: u64,
    left: u32,
    /// The rest of rows that were cut; the last one is the next to be done.
    cut: [Option<Row>; STRIPES_MAX],
}

impl Rows {
    fn next<I: Io>(&mut self, io: &mut I) -> Option<Row> {
        if let Some(row) = self.cut.iter_mut().rev().find_map(Option::take) {
            return Some(row);
        }
        self.left = self.left.checked_sub(1)?;
        let mut bytes = [0; Row::BYTES];
        let span = Span { segment: self.segment, offset: self.offset, length: Row::BYTES as u32 };
        io.load(span, &mut bytes);
        self.offset += Row::BYTES as u64;
        Some(Row::from_client(bytes))
    }

    /// Gives the rest of a row back, the first of them to come next.
    fn put_back(&mut self, rest: [Option<Row>; 2]) {
        for row in rest.into_iter().rev().flatten() {
            if let Some(place) = self.cut.iter_mut().find(|place| place.is_none()) {
                *place = Some(row);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0 && self.cut.iter().all(Option::is_none)
    }
}

impl VectorBody {
    /// `table`: the segment, the offset there, and how many rows.
    pub(in crate::shard) fn new(
        (place, is_region): (Place, bool),
        direction: Direction,
        buffers: Buffers,
        (segment, offset, left): (SegmentId, u64, u32),
    ) -> Self {
        let rows = Rows { segment, offset, left, cut: [None; STRIPES_MAX] };
        let order = if is_region { Order::Packed } else { Order::Single };
        let parts = [None; VECTOR_PARTS];
        Self {
            place,
            direction,
            buffers,
            rows,
            next: 0,
            parts,
            order,
            ended: false,
            waits: false,
            split: None,
            offset: 0,
        }
    }

    /// The transfer of a range whose pieces, from where to where, lie in the buffer as in the file
    /// or region. The last one comes first.
    fn placed(
        (place, direction): (Place, Direction),
        (offset, length): (u64, u64),
        memory: Memory,
        pieces: impl IntoIterator<Item = (u64, u64)>,
    ) -> Self {
        let table = (memory.segment, 0, 0);
        let mut vector = Self::new((place, false), direction, Buffers::One(memory, length), table);
        let row = |(from, to)| Row::single(offset + from, from as u32, (to - from) as u32);
        let pieces = pieces.into_iter().filter(|(from, to)| from < to);
        vector.rows.cut.iter_mut().zip(pieces).for_each(|(place, it)| *place = Some(row(it)));
        Self { order: Order::Placed, offset, ..vector }
    }

    /// The transfer of a range of which the first `cut` bytes go the first way to a peer, and the
    /// others the second.
    pub(in crate::shard) fn by_ways(
        ends: (Place, Direction),
        range: (u64, u64),
        memory: Memory,
        cut: u64,
    ) -> Self {
        let pieces = [(0, cut), (cut, range.1)];
        Self { split: Some(Split::Lanes), ..Self::placed(ends, range, memory, pieces) }
    }

    /// The read of a range of a file of this node of which some parts come from the page cache and
    /// the others from its device, which gets its work first.
    pub(in crate::shard) fn striped(
        file: FileTarget,
        range: (u64, u64),
        memory: Memory,
        stripes: Stripes,
    ) -> Self {
        let ends = (Place::Local(Target::File(file)), Direction::Read);
        let of = |cached| stripes.iter().rev().filter(move |it: &Stripe| it.is_cached() == cached);
        let pieces = of(true).chain(of(false)).map(Stripe::range);
        Self { split: Some(Split::Sources(stripes)), ..Self::placed(ends, range, memory, pieces) }
    }

    /// The read of a range of a file that several nodes have, each of which is asked for its share.
    pub(in crate::shard) fn replicated(
        replicas: HandleId,
        range: (u64, u64),
        memory: Memory,
        shares: &Shares,
    ) -> Self {
        let ends = (Place::Replicas(replicas), Direction::Read);
        let pieces = shares.iter().flatten().map(Share::range);
        Self {
            split: Some(Split::Replicas(Led::new(shares))),
            ..Self::placed(ends, range, memory, pieces)
        }
    }

    /// Which replicas its pieces are asked of, if there are several.
    pub(in crate::shard) fn led(&self) -> Option<&Led> {
        match &self.split {
            Some(Split::Replicas(led)) => Some(led),
            _ => None,
        }
    }

    /// The mutable form of [`Self::led`].
    pub(in crate::shard) fn led_mut(&mut self) -> Option<&mut Led> {
        match &mut self.split {
            Some(Split::Replicas(led)) => Some(led),
            _ => None,
        }
    }

    /// A part that is under way.
    pub(in crate::shard) fn part(&self, index: u8) -> Option<&Part> {
        self.parts.get(usize::from(index))?.as_ref()
    }

    /// What has not landed of a part that is over comes again, from another replica.
    pub(in crate::shard) fn ask_again(&mut self, part: &Part, member: u8) {
        let (from, to) = part.rest();
        if let Some(led) = self.led_mut() {
            led.move_to((part.start(), from), member);
        }
        self.next -= to - from;
        self.put_back(Row::single(self.offset + from, from as u32, (to - from) as u32));
    }

    /// Has the transfer of a piece go its way, if the request goes two.
    pub(in crate::shard) fn lead(&self, piece: Row, body: &mut Body) {
        match (self.split, body) {
            (Some(Split::Lanes), Body::Remote(body)) => {
                body.way = Some(if piece.at == 0 { Way::First } else { Way::Second });
            }
            (Some(Split::Sources(stripes)), Body::File(body)) => {
                let cached = stripes.at(piece.at.into()).is_some_and(Stripe::is_cached);
                body.go_by(if cached { body.target().by_cache() } else { body.target() });
            }
            _ => {}
        }
    }

    /// Where it begins in the file or region, if it is a range of it.
    pub(in crate::shard) fn offset(&self) -> u64 {
        self.offset
    }

    /// A read whose page about byte `wanted` goes before the others.
    pub(in crate::shard) fn wanted_first(
        place: Place,
        (offset, length): (u64, u64),
        memory: Memory,
        wanted: u64,
    ) -> Self {
        let page = |at: u64| (offset + at) / CRITICAL_BYTES * CRITICAL_BYTES;
        let start = page(wanted).saturating_sub(offset);
        let end = (page(wanted) + CRITICAL_BYTES - offset).min(length);
        let pieces = [(end, length), (0, start), (start, end)];
        Self::placed((place, Direction::Read), (offset, length), memory, pieces)
    }

    /// Where its bytes are, but for the client's.
    pub(in crate::shard) fn end(&self) -> Place {
        self.place
    }

    /// How its pieces count.
    pub(in crate::shard) fn order(&self) -> Order {
        self.order
    }

    /// Whether the client's memory is filled or emptied.
    pub(in crate::shard) fn direction(&self) -> Direction {
        self.direction
    }

    /// Where the client's bytes lie.
    pub(in crate::shard) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The list of the client's buffers was read.
    pub(in crate::shard) fn set_buffers(&mut self, buffers: Buffers) {
        self.buffers = buffers;
    }

    /// The list of buffers of a request that is over, empty.
    pub(super) fn into_list(mut self) -> Vec<Listed> {
        self.buffers.take_places()
    }

    /// The segment of the client's table.
    pub(in crate::shard) fn table(&self) -> SegmentId {
        self.rows.segment
    }

    /// The region of this node that it reads or writes.
    pub(in crate::shard) fn region(&self) -> Option<RegionTarget> {
        match self.place {
            Place::Local(Target::Region(region)) => Some(region),
            _ => None,
        }
    }

    /// Where its other end is, and the way of its bytes, for `explain`.
    pub(in crate::shard) fn route(&self) -> (Route, &'static str) {
        match self.place {
            Place::Local(_) if self.split.is_some() => {
                (Route::Local, "page cache and local file -> client memory")
            }
            Place::Local(_) => (Route::Local, "local pieces <-> client memory"),
            Place::Remote(..) if self.split.is_some() => {
                (Route::Remote, "peer -> 2 lanes -> client memory")
            }
            Place::Remote(..) => (Route::Remote, "pieces at a peer <-> lane <-> client memory"),
            Place::Replicas(_) => (Route::Remote, "replicas -> lanes -> client memory"),
        }
    }

    /// How it ends when the parts under way have; none as long as there are rows.
    pub(in crate::shard) fn outcome(&self, length: u64) -> Option<Status> {
        let is_whole = self.ended || self.next == length;
        let outcome = if is_whole { Status::Ok } else { Status::Invalid };
        (self.ended || self.rows.is_over()).then_some(outcome)
    }

    /// Whether no part is under way.
    pub(in crate::shard) fn is_idle(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }

    /// A place for a part.
    pub(in crate::shard) fn free_part(&self) -> Option<usize> {
        self.parts.iter().position(Option::is_none)
    }

    /// Bytes of the table for which a part was started.
    pub(in crate::shard) fn taken(&self) -> u64 {
        self.next
    }

    /// The request takes its place in the line of copies. `false`: it has one.
    pub(in crate::shard) fn begin_wait(&mut self) -> bool {
        !std::mem::replace(&mut self.waits, true)
    }

    /// The request has its turn in the line of copies.
    pub(in crate::shard) fn end_wait(&mut self) {
        self.waits = false;
    }

    /// The next row, if it is one: checked against the memory and the request's length, and cut
    /// where one buffer ends.
    pub(in crate::shard) fn next_row<I: Io>(
        &mut self,
        length: u64,
        io: &mut I,
    ) -> Option<Result<Row, Status>> {
        let row = self.rows.next(io)?;
        // A row counts the buffers' bytes in 32 bits, however many those are.
        let room = self.buffers.room().min(1 << 32);
        let inside = row.end().is_some() && row.end_in_buffer() <= room;
        let wanted = self.next.saturating_add(row.bytes()) <= length;
        if !inside || !wanted {
            return Some(Err(Status::Invalid));
        }
        let (_, left) = self.buffers.at(row.at.into());
        if row.end_in_buffer() - u64::from(row.at) <= left {
            return Some(Ok(row));
        }
        let most = left.min(row.length.into()) as u32;
        let (front, rest) = row.cut(most, 1);
        self.rows.put_back(rest);
        Some(Ok(front))
    }

    /// A row that was looked at comes next.
    pub(in crate::shard) fn put_back(&mut self, row: Row) {
        self.rows.put_back([Some(row), None]);
    }

    /// A row, or the first pieces of it, is taken; the rest comes next.
    pub(in crate::shard) fn take(&mut self, row: Row, rest: [Option<Row>; 2]) {
        self.rows.put_back(rest);
        self.next += row.bytes();
    }

    /// The first piece of a row. Returns it with the byte of the request from which it counts.
    pub(in crate::shard) fn take_piece(&mut self, row: Row) -> (Row, u64) {
        let (piece, rest) = row.cut(row.length, 1);
        let start = match self.order {
            Order::Placed => u64::from(piece.at),
            _ => self.next,
        };
        self.take(piece, rest);
        (piece, start)
    }

    /// Keeps a part whose child has begun.
    pub(in crate::shard) fn keep_part(&mut self, index: usize, part: Part) {
        self.parts[index] = Some(part);
    }

    /// The first `bytes` of a part are in the buffer. What of the request that adds.
    pub(in crate::shard) fn land(&mut self, index: u8, bytes: u64) -> Option<(u64, u64)> {
        self.parts.get_mut(usize::from(index))?.as_mut()?.land(bytes)
    }

    /// Takes out a part that is over.
    pub(in crate::shard) fn take_part(&mut self, index: u8) -> Option<Part> {
        self.parts.get_mut(usize::from(index))?.take()
    }

    /// A part was read well, and its source had `bytes` of it. Where that is less, the request
    /// ends there; but not one with a part before the others, which has bytes still that come
    /// before it.
    pub(in crate::shard) fn note_read(&mut self, part: &Part, bytes: u64) {
        self.ended |= bytes < part.length().into() && self.order != Order::Placed;
    }

    /// The file of a read that comes from the page cache and the device, of which this part was the
    /// last one of its kind: which kind, and how many bytes that are.
    pub(in crate::shard) fn ends_source(&self, part: &Part) -> Option<(FileTarget, bool, u64)> {
        let (Some(Split::Sources(stripes)), Place::Local(Target::File(file))) =
            (self.split, self.place)
        else {
            return None;
        };
        let of = |at: u64| stripes.at(at).map(Stripe::is_cached);
        let cached = of(part.start())?;
        let under_way = self.parts.iter().flatten().map(Part::start);
        let left = self.rows.cut.iter().flatten().map(|row| row.at.into());
        let is_last = under_way.chain(left).all(|at| of(at) != Some(cached));
        is_last.then(|| (file, cached, stripes.bytes(cached)))
    }

    /// Takes out all parts; none has a child.
    pub(in crate::shard) fn take_parts(&mut self) -> impl Iterator<Item = Part> + use<> {
        std::mem::take(&mut self.parts).into_iter().flatten()
    }
}
