//! Paths and loads, and a client of two real daemons that transfers over one of them.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use piped_client::{Access, Handle, OpenOptions, RegionExport};
use piped_config::admin::dials::DialChange;
use piped_core::modes::PlannerMode;
use piped_report::shard::Explanation;

use crate::failure::{Doing as _, Failure, joined};
use crate::load::{Asker, Place, Way};
use crate::machine::{self, Cpus};
use crate::nodes::{CALLER, EXPORT, Node, PEER, Pair, Sites, disk_stage, free_address};
use crate::raw::disk::make_file;
use crate::rig::{GIGABIT, PROFILE, Rig};
use crate::rows::peers::region;
use crate::rows::{FILE_NAME, KIB, MIB, MOMENT, require_disk};
use crate::{clock, contest, stats};

/// Way of the bytes of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// A read of this node's file that the page cache has.
    Cached,
    /// A read of this node's file around the page cache.
    Direct,
    /// A get of the peer's memory.
    Get,
    /// A put into the peer's memory.
    Put,
    /// A read of the peer's file around its page cache.
    File,
}

impl Path {
    pub(super) const ALL: [Self; 5] =
        [Self::Cached, Self::Direct, Self::Get, Self::Put, Self::File];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Direct => "direct",
            Self::Get => "get",
            Self::Put => "put",
            Self::File => "file",
        }
    }

    const fn way(self) -> Way {
        match self {
            Self::Put => Way::Write,
            Self::Cached | Self::Direct | Self::Get | Self::File => Way::Read,
        }
    }

    const fn is_remote(self) -> bool {
        matches!(self, Self::Get | Self::Put | Self::File)
    }

    const fn has_disk(self) -> bool {
        matches!(self, Self::Direct | Self::File)
    }

    /// Node that plans such transfers, because it has the data.
    fn planner(self, pair: &Pair) -> &Node {
        match self {
            Self::Cached | Self::Direct | Self::Put => &pair.a,
            Self::Get | Self::File => &pair.b,
        }
    }
}

/// Circumstances of the transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Loopback, and nobody else.
    Quiet,
    /// Loopback, and another client that transfers over the same path at a steady pace.
    Beside,
    /// A link of 1 Gbit/s between two network namespaces.
    Gigabit,
    /// Loopback, and data arrives 10 ms later.
    Late,
    /// Loopback, and a disk that takes 0.5 ms for each fragment and 8 ns for each byte.
    SlowDisk,
}

/// Time by which [`Load::Late`] delays data, in nanoseconds.
const LATE_NS: u64 = 10_000_000;

/// Costs of the disk of [`Load::SlowDisk`], on top of its own.
const SLOW_NS: u64 = 500_000;
const SLOW_BYTE_PS: u64 = 8_000;

impl Load {
    pub(super) const ALL: [Self; 5] =
        [Self::Quiet, Self::Beside, Self::Gigabit, Self::Late, Self::SlowDisk];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Beside => "beside",
            Self::Gigabit => "1gbit",
            Self::Late => "10ms",
            Self::SlowDisk => "slow-disk",
        }
    }

    /// Whether the load is felt on a path.
    pub(super) const fn is_on(self, path: Path) -> bool {
        match self {
            Self::Quiet | Self::Beside => true,
            Self::Gigabit | Self::Late => path.is_remote(),
            Self::SlowDisk => path.has_disk(),
        }
    }
}

/// Lengths of the transfers.
pub(super) const BLOCKS: [usize; 5] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];

/// Name of the file that the page cache has, beside [`FILE_NAME`], and the length of both.
pub(super) const CACHED_NAME: &str = "cached";
const BYTES: u64 = 256 << 20;

/// Memory of the client: a few of the largest transfers.
const ARENA_BYTES: usize = 64 * MIB;

/// Transfers of the competitor: a length that no cell has, and the time from one to the next.
const BESIDE_BYTES: usize = 128 * KIB;
const BESIDE_EVERY: Duration = Duration::from_millis(1);

/// Transfers and time until `auto` knows the path.
const WARM_TRANSFERS: usize = 400;
const WARM: Duration = Duration::from_secs(2);

/// Least transfers of a moment, and the time after which fewer are enough.
const FEWEST: usize = 5;
const LONG: Duration = Duration::from_millis(250);

/// Directory of the two files, below one that is on a disk.
pub(super) fn make_data(directory: &FilePath) -> Result<tempfile::TempDir, Failure> {
    require_disk(directory)?;
    let data = tempfile::Builder::new().prefix("piped-truth-").tempdir_in(directory)?;
    for name in [FILE_NAME, CACHED_NAME] {
        make_file(&data.path().join(name), BYTES)
            .doing(format!("a test file in {}", directory.display()))?;
    }
    Ok(data)
}

/// Two daemons under a load.
pub(super) struct Nodes<'a> {
    load: Load,
    cpus: Cpus,
    data: &'a FilePath,
    daemons: Daemons,
}

enum Daemons {
    Loopback(Box<Pair>),
    Shaped(Box<Rig>),
}

impl<'a> Nodes<'a> {
    /// Starts daemons that know nothing; those of [`Load::Gigabit`] need root.
    pub(super) fn start(load: Load, cpus: Cpus, data: &'a FilePath) -> Result<Self, Failure> {
        // Daemons are not kept where this thread last measured.
        machine::unpin()?;
        let daemons = match load {
            Load::Gigabit => {
                let rig = Rig::set_up(PROFILE, cpus, data)?;
                rig.set_rate(GIGABIT)?;
                Daemons::Shaped(Box::new(rig))
            }
            _ => {
                let settings = String::from("[planner]\nallow_dials = true\n");
                let sites = Sites { listen: free_address()?, settings, ..Sites::default() };
                Daemons::Loopback(Box::new(Pair::start_at(&sites, PROFILE, cpus, data)?))
            }
        };
        Ok(Self { load, cpus, data, daemons })
    }

    fn pair(&self) -> &Pair {
        match &self.daemons {
            Daemons::Loopback(pair) => pair,
            Daemons::Shaped(rig) => &rig.pair,
        }
    }

    /// A client of A with what a path is to, and the load on that path.
    pub(super) fn caller(&self, path: Path, block: usize) -> Result<Caller<'_>, Failure> {
        let pair = self.pair();
        let region = match path {
            Path::Get | Path::Put => {
                Some(region::export(pair, Access::READ_WRITE, BLOCKS[BLOCKS.len() - 1])?)
            }
            _ => None,
        };
        let (asker, handle) = self.open(path, Place::BesideShard)?;
        self.dial(path)?;
        let competitor = match self.load {
            Load::Beside => {
                let (asker, handle) = self.open(path, Place::Usual(self.cpus.second))?;
                Some(Competitor::start(asker, handle, path.way()))
            }
            _ => None,
        };
        let asker = RefCell::new(asker);
        Ok(Caller { pair, path, block, _competitor: competitor, asker, handle, _region: region })
    }

    /// A client of A with the peer's file that the page cache has.
    pub(super) fn cached_at_peer(&self) -> Result<(Asker, Handle), Failure> {
        let pair = self.pair();
        pair.plan_by(PlannerMode::Auto)?;
        let asker = Asker::connect(&pair.a, Place::BesideShard, ARENA_BYTES as u64)?;
        let options = OpenOptions::read();
        let handle = asker.client.open_export(Some(PEER), EXPORT, CACHED_NAME, options);
        Ok((asker, handle.doing("open")?))
    }

    fn open(&self, path: Path, place: Place) -> Result<(Asker, Handle), Failure> {
        let pair = self.pair();
        if matches!(path, Path::Get | Path::Put) {
            return region::open(pair, place, Access::READ_WRITE, ARENA_BYTES);
        }
        let asker = Asker::connect(&pair.a, place, ARENA_BYTES as u64)?;
        let (client, options) = (&asker.client, OpenOptions::read());
        let handle = match path {
            Path::File => client.open_export(Some(PEER), EXPORT, FILE_NAME, options),
            Path::Cached => {
                let name = self.data.join(CACHED_NAME);
                let mut file = File::open(&name).doing(name.display())?;
                io::copy(&mut file, &mut io::sink()).doing(name.display())?;
                client.open_file(&name, options)
            }
            _ => client.open_file(self.data.join(FILE_NAME), options),
        };
        Ok((asker, handle.doing("open")?))
    }

    /// Sets the dials of the load for that path, and no others.
    fn dial(&self, path: Path) -> Result<(), Failure> {
        let Pair { a, b, .. } = self.pair();
        [a, b].into_iter().try_for_each(|node| node.admin.clear_dials())?;
        let dial = |node: &Node, stage: String, latency_ns, overhead_ns, per_byte_ps| {
            let change =
                DialChange { stage, latency_ns, overhead_ns, per_byte_ps, ..Default::default() };
            node.admin.dial(&change)
        };
        match (self.load, path) {
            (Load::Late, Path::Put) => dial(b, format!("net:{CALLER}"), LATE_NS, 0, 0),
            (Load::Late, _) => dial(a, format!("net:{PEER}"), LATE_NS, 0, 0),
            (Load::SlowDisk, _) => {
                let stage = disk_stage(self.data, "read")?;
                dial(path.planner(self.pair()), stage, 0, SLOW_NS, SLOW_BYTE_PS)
            }
            _ => Ok(()),
        }
    }
}

/// A client that transfers one block after the other.
pub(super) struct Caller<'a> {
    pair: &'a Pair,
    path: Path,
    block: usize,
    /// Ends before what it uses.
    _competitor: Option<Competitor>,
    asker: RefCell<Asker>,
    handle: Handle,
    _region: Option<RegionExport>,
}

impl Caller<'_> {
    pub(super) const fn block(&self) -> usize {
        self.block
    }

    /// Sets how sizes are chosen from now on. Only `auto` learns.
    pub(super) fn plan_by(&self, mode: PlannerMode) -> Result<(), Failure> {
        self.pair.plan_by(mode)
    }

    /// Time of one transfer by the client's clock, in seconds.
    pub(super) fn one(&self) -> Result<f64, Failure> {
        contest::check()?;
        let mut asker = self.asker.borrow_mut();
        Ok(asker.one(self.path.way(), &self.handle, self.block)?.as_secs_f64())
    }

    /// Lets `auto` learn the path as it is now, for at most so long.
    pub(super) fn warm(&self, most: Duration) -> Result<(), Failure> {
        self.plan_by(PlannerMode::Auto)?;
        let (begun, mut count) = (clock::now(), 0);
        while (count < WARM_TRANSFERS || begun.elapsed() < WARM) && begun.elapsed() < most {
            self.one()?;
            count += 1;
        }
        Ok(())
    }

    /// Transfers one after the other for so long, and at least one.
    pub(super) fn keep_on(&self, time: Duration) -> Result<(), Failure> {
        let begun = clock::now();
        loop {
            self.one()?;
            if begun.elapsed() >= time {
                return Ok(());
            }
        }
    }

    /// Median of a moment's transfers with the plans of `mode`, in seconds, after one that is not
    /// counted.
    pub(super) fn median_by(&self, mode: PlannerMode) -> Result<f64, Failure> {
        self.plan_by(mode)?;
        self.one()?;
        let (begun, mut times) = (clock::now(), Vec::new());
        while times.is_empty()
            || begun.elapsed() < MOMENT
            || times.len() < FEWEST && begun.elapsed() < LONG
        {
            times.push(self.one()?);
        }
        Ok(stats::median(&times).expect("there is one"))
    }

    /// Explanation of the last transfer by the node that planned it; none if that was another
    /// client's.
    pub(super) fn told(&self) -> Result<Option<Explanation>, Failure> {
        self.told_by(self.path.planner(self.pair))
    }

    /// Time of the last transfer by the clock of the node that was asked, in seconds, as
    /// predictions have it: the node that serves is done when its socket has the last byte.
    pub(super) fn took(&self) -> Result<Option<f64>, Failure> {
        Ok(self.told_by(&self.pair.a)?.map(|told| told.measured_seconds))
    }

    fn told_by(&self, node: &Node) -> Result<Option<Explanation>, Failure> {
        let told: Explanation =
            serde_json::from_value(node.admin.explain_last()?).doing("an explanation")?;
        Ok(Some(told).filter(|told| told.bytes == self.block as u64))
    }
}

/// Another client over the same path, at the same pace whatever the sizes are.
struct Competitor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Competitor {
    fn start(mut asker: Asker, handle: Handle, way: Way) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let took = asker.one(way, &handle, BESIDE_BYTES)?;
                clock::pause(BESIDE_EVERY.saturating_sub(took));
            }
            Ok(())
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        if let Err(failure) = joined(thread.join(), "the competitor") {
            eprintln!("bench: the competitor ended early: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_measured_where_it_is_felt() {
        let paths = |load: Load| {
            let felt = Path::ALL.into_iter().filter(|path| load.is_on(*path));
            felt.map(Path::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(paths(Load::Quiet), "cached direct get put file");
        assert_eq!(paths(Load::Late), "get put file");
        assert_eq!(paths(Load::SlowDisk), "direct file");
        assert!(!BLOCKS.contains(&BESIDE_BYTES), "transfers are told apart by their length");
    }
}
