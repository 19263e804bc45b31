//! Tiled loops on a grid of processes, with communication beside computation.
//!
//! A loop nest with points that need their neighbours before them in three dimensions is cut along
//! its two short ones over `p_x × p_y` processes. Each has a column of depth `D` and works through
//! it tile by tile. It takes what the neighbours before it computed at the border of the same rows
//! (receive), computes them, and hands its own border on (send). So the grid fills like a pipeline
//! ("Pipelined scheduling of tiled nested loops onto clusters of SMPs using SCI"; the model is
//! `piped_model::tile`).
//!
//! ```text
//!                 own region, for each                              the neighbour's
//!                 neighbour before it                               region
//! before ─put───► slot 0 │ slot 1 ─copy─► tile ─compute─► buffer ─► slot 0 │ slot 1 ─► after
//!        ◄notify─ (free again)                            2 of them │ ◄notify─ (free again)
//!                                                                   put, then notify
//! ```
//!
//! Both sides have two of everything, so tile `n` is computed while the daemons still move the
//! border of tile `n-1` and the one of `n+1` comes in. Nobody agrees with anybody on planes: a
//! process goes on as soon as what it needs is there, told by notifications, and the waits for the
//! next ones are already with the daemon while it computes.

mod costs;
mod edge;
mod error;
mod link;
mod run;

use std::ops::Range;
use std::time::Duration;

use piped_model::tile::{Grid, Schedule, Tiling};

pub use self::costs::LinkCosts;
pub use self::error::TileError;

use self::costs::Computation;
use self::edge::{Inlet, Outlet, Own};
use self::link::Layout;
use crate::client::Client;
use crate::clock;
use crate::queue::Queue;

/// One value for each of the two dimensions that a loop is cut along.
///
/// ```
/// use piped_client::Axes;
/// let edge_bytes = Axes { x: 96, y: 48 };
/// assert_eq!(edge_bytes.x, 96);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Axes<T> {
    /// The value of the first axis.
    pub x: T,
    /// The value of the second axis.
    pub y: T,
}

impl<T> Axes<T> {
    /// Applies `of` to the values of both axes.
    fn map<U>(self, mut of: impl FnMut(T) -> U) -> Axes<U> {
        Axes { x: of(self.x), y: of(self.y) }
    }

    fn as_ref(&self) -> Axes<&T> {
        Axes { x: &self.x, y: &self.y }
    }

    fn each(self) -> [T; 2] {
        [self.x, self.y]
    }
}

/// Options of a process of a [`TilePipeline`].
///
/// ```
/// use core::num::NonZeroU32;
/// use piped_client::{Axes, TileOptions};
/// use piped_model::tile::Grid;
/// let two = NonZeroU32::new(2).unwrap();
/// let options = TileOptions::new("stencil", Grid { x: two, y: two }, Axes { x: 1, y: 0 })
///     .edge_bytes(Axes { x: 96, y: 48 })
///     .height_max(4096);
/// ```
#[derive(Debug, Clone)]
pub struct TileOptions {
    name: String,
    grid: Grid,
    at: Axes<u32>,
    edge_bytes: Axes<usize>,
    height_max: u64,
    patience: Duration,
}

impl TileOptions {
    /// The process at this place of the grid, counted from 0. `name` is the loop's: all processes
    /// of a loop have the same, and two loops that run at the same time on the same nodes have
    /// different ones.
    #[must_use]
    pub fn new(name: &str, grid: Grid, at: Axes<u32>) -> Self {
        Self {
            name: name.to_owned(),
            grid,
            at,
            edge_bytes: Axes { x: 8, y: 8 },
            height_max: 1024,
            patience: Duration::from_secs(30),
        }
    }

    /// Bytes that a unit of height hands to the neighbour after it along each axis. Neighbours
    /// along an axis have the same.
    #[must_use]
    pub fn edge_bytes(self, edge_bytes: Axes<usize>) -> Self {
        Self { edge_bytes, ..self }
    }

    /// The highest tile there may be; the same for all processes. Four times its border is kept in
    /// memory for each neighbour.
    #[must_use]
    pub fn height_max(self, height_max: u64) -> Self {
        Self { height_max, ..self }
    }

    /// How long to wait for a neighbour that does nothing before the run ends with
    /// [`TileError::Late`]. Default: half a minute. A neighbour that has ended is noticed at once.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

/// How high tiles are. The process at (0, 0) decides for all: its tiles say how high they are, and
/// so do those of all processes behind it.
///
/// ```
/// assert_ne!(piped_client::TileHeight::Auto, piped_client::TileHeight::Fixed(64));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileHeight {
    /// A fixed number of units; the last tile may be lower.
    Fixed(u64),
    /// The height that the model wants, for the computation as it is measured while it runs and for
    /// the measured links.
    Auto,
}

/// A tile while it is computed.
#[derive(Debug)]
pub struct Tile<'a> {
    /// The units of the column's depth that it has.
    pub rows: Range<u64>,
    /// Borders that the neighbours before it computed: [`TileOptions::edge_bytes`] for each row,
    /// row by row. `None` where the grid ends.
    pub before: Axes<Option<&'a [u8]>>,
    /// Places for the borders of the neighbours after it, to be filled in the same way. They have
    /// old bytes in them.
    pub after: Axes<Option<&'a mut [u8]>>,
}

/// Report of a run: what it did and how long it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileReport {
    /// Tiles that were computed.
    pub tiles: u64,
    /// The height of the last tile but one, or of the only one: what was chosen in the end.
    pub height: u64,
    /// Seconds that the run took.
    pub seconds: f64,
    /// Seconds in the computation, with whatever else had the CPU meanwhile.
    pub compute_seconds: f64,
    /// Seconds of waiting for neighbours and for transfers. The rest is what the pipeline itself
    /// costs.
    pub blocked_seconds: f64,
}

/// One process of a tiled loop.
///
/// Made by all processes of the grid, in any order: [`Self::open`] comes back when the neighbours
/// are there. All then call [`Self::run`] with the same depth and schedule, as often as they like.
/// A process that fails, or is dropped or killed, ends its neighbours' runs with
/// [`TileError::Neighbour`], theirs those of the next, and so on: none hangs.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use core::num::NonZeroU32;
/// use piped_client::{Axes, Client, TileHeight, TileOptions, TilePipeline};
/// use piped_model::tile::{Grid, Schedule};
///
/// let client = Client::connect("/run/piped/client.sock")?;
/// let grid = Grid { x: NonZeroU32::new(2).unwrap(), y: NonZeroU32::MIN };
/// // The second of two processes; the first is on the node that this one calls `alpha`.
/// let (at, edges) = (Axes { x: 1, y: 0 }, Axes { x: 8, y: 8 });
/// let options = TileOptions::new("sums", grid, at).edge_bytes(edges);
/// let mut pipeline = TilePipeline::open(&client, options, |_| Some("alpha".to_owned()))?;
/// let mut sum = 0;
/// pipeline.run(1 << 20, TileHeight::Auto, Schedule::Overlapping, |tile| {
///     for word in tile.before.x.into_iter().flat_map(|edge| edge.chunks_exact(8)) {
///         sum += u64::from_ne_bytes(word.try_into().expect("8 bytes"));
///     }
/// })?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TilePipeline {
    client: Client,
    grid: Grid,
    own: Own,
    inlets: Axes<Option<Inlet>>,
    outlets: Axes<Option<Outlet>>,
    /// Puts to the neighbours after this one, and waits.
    queue: Queue,
    /// Queue of messages that go back to the neighbours before this process. A notification follows
    /// the puts of its queue to the same node, and a wait for a free slot must not wait for our
    /// border. So this queue is one of its own.
    back: Queue,
    patience_ns: u64,
    computation: Computation,
    links: Option<LinkCosts>,
    runs: u64,
    over: bool,
}

impl TilePipeline {
    /// Joins the grid, and waits for the neighbours. `node_of` says on which node a process is, as
    /// this node's configuration calls it; `None` for this one.
    ///
    /// # Errors
    /// See [`TileError`]; one that does not come is [`TileError::Absent`].
    pub fn open(
        client: &Client,
        options: TileOptions,
        node_of: impl Fn(Axes<u32>) -> Option<String>,
    ) -> Result<Self, TileError> {
        let layout = Layout::of(&options)?;
        let patience_ns = clock::nanos(options.patience);
        // First of all: neighbours wait for it.
        let own = Own::export(client, &options.name, layout)?;
        let (mut queue, back) = (client.queue()?, client.queue()?);
        let end_ns = clock::now_ns().saturating_add(patience_ns);
        let mut links = link::Opening { client, queue: &mut queue, options: &options, end_ns };
        let mut open = |at: Option<Axes<u32>>, axis| {
            at.map(|at| links.neighbour(&layout, at, axis, node_of(at).as_deref())).transpose()
        };
        let [before_x, before_y] = [link::Axis::X, link::Axis::Y]
            .map(|axis| open(layout.before(axis), axis).map(|it| it.map(Inlet::new)));
        let [after_x, after_y] = [link::Axis::X, link::Axis::Y].map(|axis| {
            let neighbour = open(layout.after(axis), axis)?;
            neighbour.map(|it| Outlet::new(client, it)).transpose()
        });
        Ok(Self {
            client: client.clone(),
            grid: options.grid,
            own,
            inlets: Axes { x: before_x?, y: before_y? },
            outlets: Axes { x: after_x?, y: after_y? },
            queue,
            back,
            patience_ns,
            computation: Computation::default(),
            links: None,
            runs: 0,
            over: false,
        })
    }

    /// Works through a column of `depth` units, tile by tile. The run is over when every process
    /// after this one has what it needs.
    ///
    /// # Errors
    /// See [`TileError`]. After one this pipeline is over, and its neighbours are told.
    pub fn run(
        &mut self,
        depth: u64,
        height: TileHeight,
        schedule: Schedule,
        compute: impl FnMut(&mut Tile<'_>),
    ) -> Result<TileReport, TileError> {
        // Also if the computation panics.
        if std::mem::replace(&mut self.over, true) {
            return Err(TileError::Over);
        }
        match run::run(self, depth, (height, schedule), compute) {
            Ok(report) => {
                self.over = false;
                Ok(report)
            }
            Err(error) => {
                self.leave();
                Err(error)
            }
        }
    }

    /// How long to wait for a neighbour that does nothing from now on: see
    /// [`TileOptions::patience`].
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience_ns = clock::nanos(patience);
    }

    /// The cost of handing on a border, measured now, when nothing else goes that way, unless it
    /// was measured before. `None`: there is nobody after this process. Not while a run is under
    /// way anywhere before it.
    ///
    /// # Errors
    /// See [`TileError`].
    pub fn link_costs(&mut self) -> Result<Option<LinkCosts>, TileError> {
        if self.links.is_none() {
            self.links = edge::measure(self)?;
        }
        Ok(self.links)
    }

    /// The model of a loop of that depth as this process sees it: its computation as measured in
    /// runs so far, and its links. `None` before it has computed tiles of two heights or if nobody
    /// is after it.
    ///
    /// # Errors
    /// See [`TileError`].
    pub fn tiling(&mut self, depth: u64, schedule: Schedule) -> Result<Option<Tiling>, TileError> {
        let links = self.link_costs()?;
        let line = self.computation.line();
        Ok(links.zip(line).map(|(links, line)| links.tiling(self.grid, depth, line, schedule)))
    }

    /// Withdraws what neighbours need of this process, so that they hear of its end.
    fn leave(&mut self) {
        for outlet in [&mut self.outlets.x, &mut self.outlets.y].into_iter().flatten() {
            outlet.forget();
        }
        for inlet in [&mut self.inlets.x, &mut self.inlets.y].into_iter().flatten() {
            inlet.forget();
        }
        self.own.withdraw();
    }
}
