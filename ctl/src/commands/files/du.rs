//! `pipectl du`: the room that directories take on their devices, with all that is below them.

use std::collections::BTreeSet;

use clap::{Args as ClapArgs, ValueHint};
use piped_client::call::{FileKind, Stat};
use serde::Serialize;

use super::found::found;
use super::tree::Tree;
use super::{each, go_on};
use crate::args::ClientDoor;
use crate::below::Below;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::units;

/// Arguments of `pipectl du`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Room is what files take on the device: holes take none. A file with several
names counts once. Quote patterns (*, ?, [a-z]), which are matched below the
export.")]
pub(crate) struct DuArgs {
    /// PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node
    #[arg(value_name = "PLACE", required = true, value_hint = ValueHint::Url)]
    places: Vec<Below>,

    /// Show the sum of each place alone
    #[arg(short, long, conflicts_with = "depth")]
    summarize: bool,

    /// Show directories that lie at most so deep below the place
    #[arg(short, long, value_name = "N")]
    depth: Option<usize>,

    #[command(flatten)]
    door: ClientDoor,
}

#[derive(Debug, Serialize)]
struct Report {
    places: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    place: String,
    allocated_bytes: u64,
    bytes: u64,
    /// Names below it that are no directories.
    files: u64,
}

/// The sum of something and of all that is below it.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    allocated: u64,
    length: u64,
    files: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        // A peer says what it likes.
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.length = self.length.saturating_add(other.length);
        self.files = self.files.saturating_add(other.files);
    }
}

/// What tells a file with several names from others. Its device is not known here.
type Identity = (u64, u32, u64, (i64, u32));

struct Walk<'a> {
    tree: Tree,
    output: &'a Output,
    /// Deepest directories that are shown.
    depth: usize,
    json: bool,
    rows: Vec<Row>,
    /// Files with several names that were counted.
    counted: BTreeSet<Identity>,
}

pub(crate) fn run(args: &DuArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let mut tree = Tree::connect(&args.door)?;
    let places = found(&mut tree, &args.places)?;
    let depth = if args.summarize { 0 } else { args.depth.unwrap_or(usize::MAX) };
    let (rows, counted) = (Vec::new(), BTreeSet::new());
    let mut walk = Walk { tree, output, depth, json, rows, counted };
    let walked = each(&places, |place| walk.run(place));
    if json {
        output::json(Report { places: walk.rows })?;
    }
    walked
}

/// A directory that is being summed up.
struct Open {
    place: Below,
    depth: usize,
    sum: Sum,
    /// Directories in it that are not summed up yet, the next one last.
    left: Vec<(Below, Option<Stat>)>,
}

impl Walk<'_> {
    fn run(&mut self, place: &Below) -> Result<(), Failure> {
        let stat = self.tree.stat(place).map_err(|fault| fault.of(place))?;
        if stat.kind != FileKind::Directory {
            let sum = self.count(&stat);
            return self.tell(place, sum);
        }
        let mut open = vec![self.enter(place.clone(), Some(stat), 0)?];
        let mut last = Ok(());
        // Directories lie in a list, not on the stack: paths are long enough for hundreds of them.
        while let Some(inner) = open.last_mut() {
            let depth = inner.depth + 1;
            if let Some((below, stat)) = inner.left.pop() {
                match self.enter(below, stat, depth) {
                    Ok(entered) => open.push(entered),
                    Err(failure) => last = go_on(last, failure)?,
                }
                continue;
            }
            let Some(Open { place, depth, sum, .. }) = open.pop() else { break };
            if let Some(outer) = open.last_mut() {
                outer.sum.add(sum);
            }
            if depth <= self.depth {
                self.tell(&place, sum)?;
            }
        }
        last
    }

    /// Sums up what is in a directory, but for directories.
    fn enter(&mut self, place: Below, stat: Option<Stat>, depth: usize) -> Result<Open, Failure> {
        let fail = |fault: super::tree::Fault| fault.of(&place);
        let stat = match stat {
            Some(stat) => stat,
            // A mount.
            None => self.tree.stat(&place).map_err(fail)?,
        };
        let names = self.tree.list(&place, true).map_err(fail)?;
        let mut sum = Sum { allocated: stat.allocated, length: 0, files: 0 };
        let mut left = Vec::new();
        for name in names {
            match (name.kind(), name.stat()) {
                (FileKind::Directory, stat) => {
                    left.push((place.child(name.name()), stat.copied()));
                }
                (_, Some(stat)) => sum.add(self.count(stat)),
                // Gone meanwhile.
                (_, None) => {}
            }
        }
        left.reverse();
        Ok(Open { place, depth, sum, left })
    }

    fn count(&mut self, stat: &Stat) -> Sum {
        let identity = (stat.inode, stat.links, stat.length, stat.modified);
        if stat.links > 1 && !self.counted.insert(identity) {
            return Sum::default();
        }
        Sum { allocated: stat.allocated, length: stat.length, files: 1 }
    }

    fn tell(&mut self, place: &Below, sum: Sum) -> Result<(), Failure> {
        if self.json {
            let text = String::from_utf8_lossy(&place.bytes()).into_owned();
            let (allocated_bytes, bytes, files) = (sum.allocated, sum.length, sum.files);
            self.rows.push(Row { place: text, allocated_bytes, bytes, files });
            return Ok(());
        }
        self.output.line(format_args!("{:>8}  {place}", units::bytes(sum.allocated)))
    }
}
