//! Facts that processes of a grid share: where borders lie in their regions, and how neighbours
//! find each other.

use std::time::Duration;

use piped_core::access::Access;
use piped_core::status::Status;
use piped_model::tile::Grid;

use super::{Axes, TileError, TileOptions};
use crate::client::Client;
use crate::clock;
use crate::error::{OpenError, SessionError};
use crate::handle::Handle;
use crate::queue::Queue;
use crate::request::Request;

/// Borders of a neighbour that a process keeps: one is read while the next one comes.
pub(super) const SLOTS: u64 = 2;

/// Bytes in front of a slot's border, which say where it belongs: [`Stamp`].
pub(super) const STAMP_BYTES: usize = 32;

/// A region's first page says which process it belongs to.
const PAGE: u64 = 4096;
const WORDS: usize = 9;
const HEAD_BYTES: usize = 8 * WORDS;
/// `tilepipe`, and a number for what is said in this file.
const MAGIC: u64 = u64::from_le_bytes(*b"tilepip1");

/// A border's slot: a daemon has to move it in one request, and four of them are kept for each
/// neighbour.
const SLOT_BYTES_MAX: u64 = 64 << 20;

/// Between two looks for a neighbour that is not there yet.
const NAP_NS: u64 = 2_000_000;

/// Which of the two dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    X,
    Y,
}

impl Axis {
    /// The notification that a border has come along it.
    pub(super) fn arrived(self) -> u32 {
        self as u32
    }

    /// The notification that the neighbour along it has taken one, and its slot is free.
    pub(super) fn taken(self) -> u32 {
        2 + self as u32
    }
}

impl<T> Axes<T> {
    pub(super) fn along(self, axis: Axis) -> T {
        match axis {
            Axis::X => self.x,
            Axis::Y => self.y,
        }
    }
}

/// Where everything is in a process's region. The first page is the head; then come two slots for
/// each neighbour before it. Neighbours compute each other's layout, so no addresses are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Layout {
    pub(super) grid: Grid,
    pub(super) at: Axes<u32>,
    pub(super) edge_bytes: Axes<u64>,
    pub(super) height_max: u64,
}

impl Layout {
    /// # Errors
    /// If they make no sense.
    pub(super) fn of(options: &TileOptions) -> Result<Self, TileError> {
        let TileOptions { grid, at, edge_bytes, height_max, .. } = options;
        let layout = Self {
            grid: *grid,
            at: *at,
            edge_bytes: edge_bytes.map(|bytes| bytes as u64),
            height_max: *height_max,
        };
        if at.x >= grid.x.get() || at.y >= grid.y.get() {
            return Err(TileError::Options("the process is outside the grid; places count from 0"));
        }
        if layout.height_max == 0 || layout.edge_bytes.each().contains(&0) {
            let text = "tiles and borders have at least one unit; see `height_max`, `edge_bytes`";
            return Err(TileError::Options(text));
        }
        let bytes = |edge: u64| edge.checked_mul(layout.height_max);
        let fits = |edge| bytes(edge).is_some_and(|bytes| bytes <= SLOT_BYTES_MAX);
        if !layout.edge_bytes.each().into_iter().all(fits) {
            return Err(TileError::Options("a border has more than 64 MiB; lower `height_max`"));
        }
        Ok(layout)
    }

    /// The neighbour before it along an axis.
    pub(super) fn before(&self, axis: Axis) -> Option<Axes<u32>> {
        let Axes { x, y } = self.at;
        match axis {
            Axis::X => Some(Axes { x: x.checked_sub(1)?, y }),
            Axis::Y => Some(Axes { x, y: y.checked_sub(1)? }),
        }
    }

    /// The neighbour after it along an axis.
    pub(super) fn after(&self, axis: Axis) -> Option<Axes<u32>> {
        let Axes { x, y } = self.at;
        let (next, inside) = match axis {
            Axis::X => (Axes { x: x + 1, y }, x + 1 < self.grid.x.get()),
            Axis::Y => (Axes { x, y: y + 1 }, y + 1 < self.grid.y.get()),
        };
        inside.then_some(next)
    }

    /// Bytes of a border of that height with its stamp.
    pub(super) fn border_bytes(&self, axis: Axis, height: u64) -> usize {
        // `of` has checked that the highest one is no longer than a slot may be.
        STAMP_BYTES + (self.edge_bytes.along(axis) * height) as usize
    }

    fn slot_bytes(&self, axis: Axis) -> u64 {
        (self.border_bytes(axis, self.height_max) as u64).next_multiple_of(64)
    }

    fn slots_bytes(&self, axis: Axis) -> u64 {
        if self.before(axis).is_some() { SLOTS * self.slot_bytes(axis) } else { 0 }
    }

    /// The offset of the slot for the border of tile `number` along an axis.
    pub(super) fn slot(&self, axis: Axis, number: u64) -> u64 {
        let first = match axis {
            Axis::X => PAGE,
            Axis::Y => PAGE + self.slots_bytes(Axis::X),
        };
        first + number % SLOTS * self.slot_bytes(axis)
    }

    /// Length of the region in bytes.
    pub(super) fn bytes(&self) -> u64 {
        PAGE + self.slots_bytes(Axis::X) + self.slots_bytes(Axis::Y)
    }

    /// The first bytes of the region.
    pub(super) fn head(&self) -> [u8; HEAD_BYTES] {
        let (grid, at, edge) = (self.grid, self.at, self.edge_bytes);
        let places = [grid.x.get(), grid.y.get(), at.x, at.y].map(u64::from);
        let [grid_x, grid_y, at_x, at_y] = places;
        let words =
            [MAGIC, grid_x, grid_y, at_x, at_y, edge.x, edge.y, self.height_max, self.bytes()];
        let mut head = [0; HEAD_BYTES];
        for (to, word) in head.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        head
    }

    /// The layout of the neighbour at `at` along `axis`, which says of itself what `head` says.
    ///
    /// # Errors
    /// It does not fit this one's.
    fn of_neighbour(
        &self,
        (at, axis): (Axes<u32>, Axis),
        head: &[u8; HEAD_BYTES],
    ) -> Result<Self, TileError> {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
        }
        let [magic, grid_x, grid_y, at_x, at_y, edge_x, edge_y, height_max, bytes] = words;
        let edge_bytes = Axes { x: edge_x, y: edge_y };
        let theirs = Self { at, edge_bytes, ..*self };
        let along = (self.edge_bytes.along(axis), edge_bytes.along(axis));
        let same = [
            ("version", MAGIC, magic),
            ("grid (x)", u64::from(self.grid.x.get()), grid_x),
            ("grid (y)", u64::from(self.grid.y.get()), grid_y),
            ("place (x)", u64::from(at.x), at_x),
            ("place (y)", u64::from(at.y), at_y),
            ("border (`edge_bytes`)", along.0, along.1),
            ("`height_max`", self.height_max, height_max),
        ];
        for (what, ours, theirs) in same {
            if ours != theirs {
                return Err(TileError::Mismatch { at, what, ours, theirs });
            }
        }
        let fits = |edge: u64| edge.checked_mul(height_max).is_some_and(|it| it <= SLOT_BYTES_MAX);
        if !edge_bytes.each().into_iter().all(fits) || theirs.bytes() != bytes {
            let (what, ours) = ("length of its region", self.bytes());
            return Err(TileError::Mismatch { at, what, ours, theirs: bytes });
        }
        Ok(theirs)
    }
}

/// The tile that a border belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Runs before this one.
    pub(super) run: u64,
    /// The tile's number in the run.
    pub(super) tile: u64,
    /// The first row of the tile.
    pub(super) first: u64,
    pub(super) height: u64,
}

impl Stamp {
    pub(super) fn bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        let words = [self.run, self.tile, self.first, self.height];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8; STAMP_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Self { run: word(0), tile: word(8), first: word(16), height: word(24) }
    }
}

/// A neighbour along an axis, found.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) at: Axes<u32>,
    pub(super) axis: Axis,
    pub(super) handle: Handle,
    pub(super) layout: Layout,
}

/// Everything that a process needs to look for its neighbours.
pub(super) struct Opening<'a> {
    pub(super) client: &'a Client,
    pub(super) queue: &'a mut Queue,
    pub(super) options: &'a TileOptions,
    /// The time at which the search for neighbours ends.
    pub(super) end_ns: u64,
}

/// The name of a process's region.
pub(super) fn region(name: &str, at: Axes<u32>) -> String {
    format!("{name}.{}.{}", at.x, at.y)
}

impl Opening<'_> {
    /// The neighbour at `at`, once it is there.
    pub(super) fn neighbour(
        &mut self,
        own: &Layout,
        at: Axes<u32>,
        axis: Axis,
        node: Option<&str>,
    ) -> Result<Neighbour, TileError> {
        let handle = self.region(at, node)?;
        let buffer = self.client.allocate(HEAD_BYTES)?;
        let left_ns = self.end_ns.saturating_sub(clock::now_ns());
        let request = Request::read(&handle, 0, buffer).deadline(Duration::from_nanos(left_ns));
        let patience_ns = clock::nanos(self.options.patience);
        let done = self.queue.run(request).map_err(|it| TileError::of(at, patience_ns, &it))?;
        let mut head = [0; HEAD_BYTES];
        // A region that is shorter is not of this kind, and its magic will not be there.
        let length = (done.bytes as usize).min(HEAD_BYTES);
        head[..length].copy_from_slice(&done.payload.as_slice()[..length]);
        let layout = own.of_neighbour((at, axis), &head)?;
        Ok(Neighbour { at, axis, handle, layout })
    }

    fn region(&self, at: Axes<u32>, node: Option<&str>) -> Result<Handle, TileError> {
        let name = region(&self.options.name, at);
        loop {
            let error = match self.client.open_region(node, &name, Access::READ_WRITE) {
                Ok(handle) => return Ok(handle),
                Err(error) => error,
            };
            if !may_come(&error) || clock::now_ns() >= self.end_ns {
                return Err(TileError::Absent { at, source: error });
            }
            clock::nap(NAP_NS);
        }
    }
}

/// Whether another attempt may find it.
fn may_come(error: &OpenError) -> bool {
    let OpenError::Session(SessionError::Refused { status, .. }) = error else { return false };
    matches!(
        status,
        Status::NotFound
            | Status::PeerLost
            | Status::Gone
            | Status::DeadlineExceeded
            | Status::WouldBlock
    )
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU32;

    use super::*;

    fn options(at: Axes<u32>) -> TileOptions {
        let three = NonZeroU32::new(3).expect("not 0");
        TileOptions::new("test", Grid { x: three, y: three }, at)
            .edge_bytes(Axes { x: 96, y: 40 })
            .height_max(100)
    }

    fn layout(x: u32, y: u32) -> Layout {
        Layout::of(&options(Axes { x, y })).expect("it makes sense")
    }

    #[test]
    fn slots_lie_behind_each_other_and_only_where_a_neighbour_fills_them() {
        let (x, y) = (9664, 4032);
        let middle = layout(1, 1);
        let places = [(Axis::X, 0), (Axis::X, 1), (Axis::X, 2), (Axis::Y, 0), (Axis::Y, 3)]
            .map(|(axis, number)| middle.slot(axis, number));
        let second = PAGE + 2 * x;
        assert_eq!(places, [PAGE, PAGE + x, PAGE, second, second + y]);
        assert_eq!(middle.bytes(), second + 2 * y);
        assert_eq!(layout(0, 0).bytes(), PAGE);
        assert_eq!(layout(0, 2).slot(Axis::Y, 1), PAGE + y);
    }

    #[test]
    fn neighbours_are_those_of_the_grid() {
        let corner = layout(2, 0);
        assert_eq!(corner.before(Axis::X), Some(Axes { x: 1, y: 0 }));
        assert_eq!(corner.before(Axis::Y), None);
        assert_eq!(corner.after(Axis::X), None);
        assert_eq!(corner.after(Axis::Y), Some(Axes { x: 2, y: 1 }));
    }

    #[test]
    fn a_neighbour_says_where_its_slots_are_and_in_what_it_differs() {
        let (own, theirs) = (layout(1, 1), layout(2, 1));
        let at = (theirs.at, Axis::X);
        assert_eq!(own.of_neighbour(at, &theirs.head()).expect("it fits"), theirs);
        // Across the axis borders may differ: columns need not be as wide as each other.
        let wider = Layout { edge_bytes: Axes { x: 96, y: 44 }, ..theirs };
        assert_eq!(own.of_neighbour(at, &wider.head()).expect("it fits"), wider);
        let differing = [
            ("border", Layout { edge_bytes: Axes { x: 92, y: 40 }, ..theirs }),
            ("`height_max`", Layout { height_max: 99, ..theirs }),
            ("place (x)", layout(1, 1)),
        ];
        for (what, theirs) in differing {
            let error = own.of_neighbour(at, &theirs.head()).expect_err("it differs");
            assert!(error.to_string().contains(what), "{error}");
        }
        let error = own.of_neighbour(at, &[0; HEAD_BYTES]).expect_err("no head");
        assert!(error.to_string().contains("version"), "{error}");
        let mut head = theirs.head();
        head[40..48].copy_from_slice(&96_u64.to_le_bytes());
        head[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = own.of_neighbour(at, &head).expect_err("more than there can be");
        assert!(error.to_string().contains("length"), "{error}");
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let good = options(Axes { x: 0, y: 0 });
        for bad in [
            options(Axes { x: 3, y: 0 }),
            good.clone().height_max(0),
            good.clone().height_max(u64::MAX),
            good.clone().edge_bytes(Axes { x: 0, y: 8 }),
            good.clone().edge_bytes(Axes { x: 8, y: 1 << 20 }),
        ] {
            assert!(matches!(Layout::of(&bad), Err(TileError::Options(_))), "{bad:?}");
        }
        assert!(Layout::of(&good).is_ok());
    }

    #[test]
    fn a_stamp_comes_back_as_it_was() {
        let stamp = Stamp { run: 1, tile: u64::MAX, first: 3, height: 1 << 40 };
        assert_eq!(Stamp::parse(&stamp.bytes()), stamp);
    }
}
