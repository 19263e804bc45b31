//! Tiled loops on a grid of processes.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use client_lib::{Axes, Grid, Schedule, Tile, TileHeight, TileOptions, TilePipeline};
use zerocopy::{FromBytes, IntoBytes};

use crate::border::{self, call, put, wanted};
use crate::client::{CLIENTS, piped_client};
use crate::fault::Fault;
use crate::status::piped_status;
use crate::table::{Kind, Refusal, Table};

/// A process of a tiled loop. For one thread at a time.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_tiles {
    _name: [u8; 0],
}

/// The mutex makes them fit for a table that threads share. Nobody locks it: the place's own lock
/// is held.
static TILES: Table<Mutex<TilePipeline>> = Table::new(Kind::Tiles);

/// How borders and computation follow each other.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_schedule {
    /// A tile is computed while the border of the one before goes and that of the next one comes.
    PIPED_OVERLAPPING = 0,
    /// One after the other: receive, compute, send.
    PIPED_NON_OVERLAPPING = 1,
}

/// Options of a process of a tiled loop. Set size to sizeof.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct piped_tiles_options {
    /// Set to sizeof(struct piped_tiles_options).
    pub size: u32,
    /// Processes along the first axis of the grid, 1 at least.
    pub grid_x: u32,
    /// Processes along the second axis.
    pub grid_y: u32,
    /// Place of this process along the first axis, counted from 0.
    pub at_x: u32,
    /// Place of this process along the second axis, counted from 0.
    pub at_y: u32,
    /// Reserved: must be 0.
    pub reserved: u32,
    /// Bytes that a unit of height hands to the neighbour after it along the first axis. Default:
    /// 8.
    pub edge_x: u64,
    /// Bytes that a unit of height hands to the neighbour after it along the second axis. Default:
    /// 8.
    pub edge_y: u64,
    /// The highest tile there may be; the same for all processes. Default: 1024.
    pub height_max: u64,
    /// How long to wait for a neighbour that does nothing, in nanoseconds. Default: half a minute.
    pub patience_ns: u64,
}

/// A tile while it is computed.
#[derive(Debug)]
#[repr(C)]
pub struct piped_tile {
    /// The first unit of the column's depth that it has.
    pub first: u64,
    /// The unit behind the tile's last.
    pub end: u64,
    /// Border that the neighbour before this process along the first axis computed: edge_x bytes
    /// for each unit, one after the other. NULL where the grid ends.
    pub before_x: *const c_void,
    /// Border that the neighbour before this process along the second axis computed.
    pub before_y: *const c_void,
    /// Place for the border of the neighbour after this process along the first axis, to be filled
    /// in the same way. NULL where the grid ends.
    pub after_x: *mut c_void,
    /// Place for the border of the neighbour after this process along the second axis.
    pub after_y: *mut c_void,
}

/// Report of a run: what it did and how long it took.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_tiles_report {
    /// Tiles that were computed.
    pub tiles: u64,
    /// The height of the last tile but one, or of the only one: what was chosen in the end.
    pub height: u64,
    /// Seconds that the run took.
    pub seconds: f64,
    /// Seconds in the computation.
    pub compute_seconds: f64,
    /// Seconds of waiting for neighbours and for transfers.
    pub blocked_seconds: f64,
}

/// The function that computes a tile, with the context that piped_tiles_run was given. It must
/// return, and may use everything but the loop itself (PIPED_BUSY).
#[expect(non_camel_case_types, reason = "named as in C")]
pub type piped_compute = Option<extern "C" fn(context: *mut c_void, tile: Option<&mut piped_tile>)>;

/// Checks the options and nodes from C.
fn given(
    name: &str,
    options: *const piped_tiles_options,
) -> Result<(TileOptions, Axes<u32>), Fault> {
    if options.is_null() {
        return Err(Fault::fixed(piped_status::PIPED_NULL));
    }
    let options = border::sized(options)?;
    if options.reserved != 0 {
        return Err(Fault::argument("the reserved field of the options is not 0"));
    }
    let some = |count| {
        NonZeroU32::new(count).ok_or_else(|| Fault::argument("a grid has a process at least"))
    };
    let bytes = |bytes: u64| match bytes {
        0 => 8,
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
    };
    let grid = Grid { x: some(options.grid_x)?, y: some(options.grid_y)? };
    let at = Axes { x: options.at_x, y: options.at_y };
    let mut wanted = TileOptions::new(name, grid, at)
        .edge_bytes(Axes { x: bytes(options.edge_x), y: bytes(options.edge_y) });
    if options.height_max > 0 {
        wanted = wanted.height_max(options.height_max);
    }
    if options.patience_ns > 0 {
        wanted = wanted.patience(Duration::from_nanos(options.patience_ns));
    }
    Ok((wanted, Axes { x: options.grid_x, y: options.grid_y }))
}

/// Join the grid of a loop and wait for the neighbours. All processes of one give the same `name`.
/// `nodes`: on which node each process is, as this node's configuration calls it, grid_x * grid_y
/// names, those with the same place along the second axis together; NULL instead of a name, or of
/// all, is this node. Free it with piped_tiles_free, which ends the neighbours' runs.
#[unsafe(no_mangle)]
pub extern "C" fn piped_tiles_open(
    client: *mut piped_client,
    name: *const c_char,
    options: *const piped_tiles_options,
    nodes: *const *const c_char,
    tiles: Option<&mut MaybeUninit<*mut piped_tiles>>,
) -> piped_status {
    call(|| {
        wanted(&tiles)?;
        let client = CLIENTS.get(client)?;
        let (options, grid) = given(border::text(name)?, options)?;
        let count = if nodes.is_null() { 0 } else { grid.x as usize * grid.y as usize };
        let nodes = border::array(nodes, count)?;
        let nodes = nodes.iter().map(|node| Ok(border::text_or_null(*node)?.map(str::to_owned)));
        let nodes = nodes.collect::<Result<Vec<_>, Fault>>()?;
        let node_of = |at: Axes<u32>| {
            nodes.get(at.y as usize * grid.x as usize + at.x as usize).cloned().flatten()
        };
        let pipeline = TilePipeline::open(&client, options, node_of)?;
        put(tiles, TILES.insert(Mutex::new(pipeline))?)
    })
}

/// Work through a column of `depth` units, tile by tile: `compute` is called for each, by this
/// thread. All processes of the grid do so with the same depth and `schedule` (piped_schedule), as
/// often as they like. `height`: of a tile, the process at (0, 0) decides; 0: as measurements want
/// it. Over when everybody after this process has what it needs; `report` may be NULL. After a
/// failure the loop can only be freed, and the neighbours are told.
#[unsafe(no_mangle)]
pub extern "C" fn piped_tiles_run(
    tiles: *mut piped_tiles,
    depth: u64,
    height: u64,
    schedule: u32,
    compute: piped_compute,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<piped_tiles_report>>,
) -> piped_status {
    call(|| {
        const OVERLAPPING: u32 = piped_schedule::PIPED_OVERLAPPING as u32;
        const NON_OVERLAPPING: u32 = piped_schedule::PIPED_NON_OVERLAPPING as u32;
        let compute = compute.ok_or_else(|| Fault::fixed(piped_status::PIPED_NULL))?;
        let height = if height == 0 { TileHeight::Auto } else { TileHeight::Fixed(height) };
        let schedule = match schedule {
            OVERLAPPING => Schedule::Overlapping,
            NON_OVERLAPPING => Schedule::NonOverlapping,
            _ => return Err(Fault::argument("schedule is none of piped_schedule")),
        };
        let done = TILES.try_with_mut(tiles, |tiles| {
            let tiles = tiles.get_mut().map_err(|_| Fault::from(Refusal::Spoilt))?;
            Ok::<_, Fault>(tiles.run(depth, height, schedule, |tile| {
                compute(context, Some(&mut of_tile(tile)));
            })?)
        })??;
        let client_lib::TileReport { tiles, height, seconds, compute_seconds, blocked_seconds } =
            done;
        if report.is_none() {
            return Ok(());
        }
        put(report, piped_tiles_report { tiles, height, seconds, compute_seconds, blocked_seconds })
    })
}

fn of_tile(tile: &mut Tile<'_>) -> piped_tile {
    let come = |edge: Option<&[u8]>| edge.map_or(std::ptr::null(), |edge| edge.as_ptr().cast());
    let go = |edge: &mut Option<&mut [u8]>| {
        edge.as_deref_mut().map_or(std::ptr::null_mut(), |edge| edge.as_mut_ptr().cast())
    };
    piped_tile {
        first: tile.rows.start,
        end: tile.rows.end,
        before_x: come(tile.before.x),
        before_y: come(tile.before.y),
        after_x: go(&mut tile.after.x),
        after_y: go(&mut tile.after.y),
    }
}

/// Leave the grid. Neighbours that are still at work are told. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_tiles_free(tiles: *mut piped_tiles) -> piped_status {
    call(|| {
        if tiles.is_null() {
            return Ok(());
        }
        drop(TILES.try_remove(tiles)?);
        Ok(())
    })
}
