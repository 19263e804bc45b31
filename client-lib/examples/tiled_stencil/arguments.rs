//! Arguments of the program.

use std::error::Error;
use std::num::NonZeroU32;
use std::path::PathBuf;

use piped_client::{Axes, Grid, Schedule, TileHeight};

use crate::Step;
use crate::kernel::{POINT, Space};

/// The nodes that processes run on.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
}

#[derive(Debug, Clone)]
pub(crate) struct Arguments {
    pub(crate) nodes: Vec<Node>,
    pub(crate) grid: Grid,
    pub(crate) space: Space,
    pub(crate) heights: Vec<TileHeight>,
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) repeat: u32,
    pub(crate) check: bool,
    pub(crate) name: String,
    pub(crate) rank: Option<u32>,
    /// Steps begin with a line of standard input.
    pub(crate) turns: bool,
}

pub(crate) const USAGE: &str = "usage: tiled_stencil --node NAME=SOCKET [--node ..] [--grid 3x3] \
     [--size 24x24x4096] [--heights 16,64,auto] [--schedule overlapping|non-overlapping|both] \
     [--work 1] [--repeat 1] [--check yes|no] [--name stencil] [--rank R]";

impl Arguments {
    pub(crate) fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let three = NonZeroU32::new(3).expect("not 0");
        let mut it = Self {
            nodes: Vec::new(),
            grid: Grid { x: three, y: three },
            space: Space { wide: Axes { x: 24, y: 24 }, depth: 4096, work: 1 },
            heights: [16, 64, 256].map(TileHeight::Fixed).to_vec(),
            schedules: Schedule::ALL.to_vec(),
            repeat: 1,
            check: true,
            name: "stencil".to_owned(),
            rank: None,
            turns: false,
        };
        it.heights.insert(0, TileHeight::Auto);
        while let Some(key) = given.next() {
            if key == "--turns" {
                it.turns = true;
                continue;
            }
            let value = given.next().ok_or(USAGE)?;
            let numbers = || value.split('x').map(str::parse).collect::<Result<Vec<u32>, _>>();
            match key.as_str() {
                "--node" => {
                    let (name, socket) = value.split_once('=').ok_or(USAGE)?;
                    it.nodes.push(Node { name: name.to_owned(), socket: socket.into() });
                }
                "--grid" => {
                    let [x, y] = numbers()?[..] else { return Err(USAGE.into()) };
                    it.grid = Grid { x: x.try_into()?, y: y.try_into()? };
                }
                "--size" => {
                    let [x, y, depth] = numbers()?[..] else { return Err(USAGE.into()) };
                    it.space.wide = Axes { x: x as usize, y: y as usize };
                    it.space.depth = depth as usize;
                }
                "--heights" => {
                    it.heights = value.split(',').map(height).collect::<Result<_, _>>()?
                }
                "--schedule" => {
                    let wanted = |it: &Schedule| value == "both" || value == it.name();
                    it.schedules = Schedule::ALL.into_iter().filter(wanted).collect();
                }
                "--work" => it.space.work = value.parse()?,
                "--repeat" => it.repeat = value.parse()?,
                "--check" => it.check = value == "yes",
                "--name" => it.name = value,
                "--rank" => it.rank = Some(value.parse()?),
                _ => return Err(USAGE.into()),
            }
        }
        let short = it.space.wide.x < it.grid.x.get() as usize
            || it.space.wide.y < it.grid.y.get() as usize;
        if it.nodes.is_empty() || it.schedules.is_empty() {
            return Err(USAGE.into());
        }
        if short || it.rank.is_some_and(|rank| rank >= it.processes()) {
            return Err("more processes than points along an axis, or than the grid has".into());
        }
        Ok(it)
    }

    pub(crate) fn processes(&self) -> u32 {
        self.grid.x.get() * self.grid.y.get()
    }

    /// Where a process is in the grid.
    pub(crate) fn place(&self, rank: u32) -> Axes<u32> {
        Axes { x: rank % self.grid.x.get(), y: rank / self.grid.x.get() }
    }

    /// The node that a process runs on.
    pub(crate) fn node(&self, at: Axes<u32>) -> &Node {
        let rank = at.x + at.y * self.grid.x.get();
        &self.nodes[rank as usize % self.nodes.len()]
    }

    /// The name that a process has for the node of another.
    pub(crate) fn peer(&self, own: Axes<u32>, other: Axes<u32>) -> Option<String> {
        let (own, other) = (self.node(own), self.node(other));
        (own.name != other.name).then(|| other.name.clone())
    }

    /// Every run, in order.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let once = self.schedules.iter().flat_map(|&schedule| {
            self.heights.iter().map(move |&height| Step { schedule, height })
        });
        let once: Vec<Step> = once.collect();
        once.repeat(self.repeat as usize)
    }

    /// Enough for what is asked for, and for whatever is chosen: a MiB of the widest border. The
    /// same for all processes, whatever share of the points they have.
    pub(crate) fn height_max(&self) -> u64 {
        let Axes { x, y } = self.space.wide;
        let chosen = (1 << 20) / (POINT * x.max(y)) as u64;
        let heights = self.heights.iter().map(|height| match height {
            TileHeight::Fixed(height) => *height,
            TileHeight::Auto => chosen,
        });
        heights.max().unwrap_or(1).clamp(1, self.space.depth as u64)
    }
}

fn height(text: &str) -> Result<TileHeight, Box<dyn Error>> {
    Ok(if text == "auto" { TileHeight::Auto } else { TileHeight::Fixed(text.parse()?) })
}
