//! The rows of the run. Each file has the rows of one kind; this one has their order and common
//! parts.

mod advised;
mod c_client;
mod checks;
pub(crate) mod copy;
mod crowd;
mod discovery;
mod disk;
mod disturbed;
mod dsm;
mod fair;
mod floor;
mod hostile;
mod idle;
mod limits;
mod loops;
mod memory;
pub(crate) mod messages;
mod names;
mod nbd;
mod pager;
mod patterns;
pub(crate) mod peers;
mod pipelines;
mod python;
pub(crate) mod region;
mod remote_file;
mod ring;
mod security;
mod shards;
mod spread;
mod strips;
mod tile;
pub(crate) mod zero_copy;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use piped_core::modes::Profile;

use crate::contest::{self, Arm, Rounds};
use crate::failure::{Doing as _, Failure};
use crate::machine::{Cpus, Machine};
use crate::nodes::Pair;
use crate::raw::disk::{Disk, make_file};
use crate::raw::net::Server;
use crate::report::{Report, Row, Unit};
use crate::rig::{self, Rig};
use crate::stats::{Bar, Better, Verdict};

pub(crate) use crowd::CROWD;
pub(crate) use discovery::DISCOVERY;
pub(crate) use memory::MEMORY;
pub(crate) use names::NAMES;
pub(crate) use nbd::NBD;
pub(crate) use peers::PEERS;
pub(crate) use pipelines::PIPELINES;
pub(crate) use python::PYTHON;
pub(crate) use shards::SHARDS;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

/// Time of an arm in a round. Long against a time slice, short against disturbances.
pub(crate) const MOMENT: Duration = Duration::from_millis(50);

/// Large against the caches of the device, small against the time it takes to write.
const FILE_BYTES: u64 = 512 << 20;
pub(crate) const FILE_NAME: &str = "blocks";

/// Profile name of a row that runs piped in two ways and counts the better one.
const BEST_OF_TWO: &str = "best of two";

/// Options of a run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) only: Vec<String>,
    pub(crate) rounds: u32,
    pub(crate) directory: PathBuf,
    /// Directory for plots, if they are wanted.
    pub(crate) plots: Option<PathBuf>,
    /// Whether to report progress on standard error.
    pub(crate) progress: bool,
}

/// A run, with the things that rows need, made when the first row needs them.
#[derive(Debug)]
pub(crate) struct Bench {
    group: &'static Group,
    options: Options,
    pub(crate) cpus: Cpus,
    pub(crate) report: Report,
    server: Option<Server>,
    directory: Option<tempfile::TempDir>,
    pair: Option<Pair>,
    rig: Option<Rig>,
    python: Option<python::Environment>,
    strips: strips::Found,
    /// Agreement of outside tools, by the name of a check.
    checks: BTreeMap<&'static str, bool>,
}

/// A row's name and the function that measures it.
pub(crate) type Entry = (&'static str, fn(&mut Bench, &'static str) -> Result<Row, Failure>);

/// Rows that one command measures and one table of docs/benchmarks.md shows.
#[derive(Debug)]
pub(crate) struct Group {
    /// Name of the command, and of the table's markers.
    pub(crate) name: &'static str,
    pub(crate) entries: &'static [Entry],
    /// Whether no row needs another of the same run.
    pub(crate) rows_stand_alone: bool,
}

impl Group {
    /// Names of all rows, in order.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.entries.iter().map(|(name, _)| *name).collect()
    }
}

/// Rows of costs against floors. In this order: checks before rows that rely on them, one profile
/// after the other.
pub(crate) static FLOORS: Group = Group {
    name: "floors",
    rows_stand_alone: false,
    entries: &[
        ("check-disk-4k-1", checks::disk),
        ("check-disk-4k-16", checks::disk),
        ("check-disk-1m-4", checks::disk),
        ("check-net-4k", checks::net),
        ("check-net-64k", checks::net),
        ("check-net-1m", checks::net),
        ("nop-1", ring::nop_alone),
        ("nop-64", ring::nop_deep),
        ("syscalls-client", ring::syscalls_client),
        ("syscalls-daemon-nop", ring::syscalls_daemon),
        ("syscalls-daemon-read", ring::syscalls_daemon),
        ("allocations-client", ring::allocations_client),
        ("allocations-daemon", ring::allocations_daemon),
        ("local-4k-1", disk::local),
        ("get-4k-latency", region::latency),
        ("get-64k-latency", region::latency),
        ("get-4k-balanced", region::latency),
        ("get-64k-balanced", region::latency),
        ("get-1m-1", region::throughput),
        ("get-1m-4", region::throughput),
        ("local-4k-16", disk::local),
        ("local-1m-4", disk::local),
        ("file-1m-alone", remote_file::against_stages),
        ("file-1m-whole", remote_file::against_whole),
        ("idle", idle::idle),
    ],
};

/// Rows for an operator: limits, neighbours that die, copies.
pub(crate) static SERVICE: Group = Group {
    name: "service",
    rows_stand_alone: false,
    entries: &[
        ("hostile-ring", hostile::ring),
        ("disturbed-get", disturbed::get),
        ("cp-1g", copy::cp),
        ("limits-throughput", limits::throughput),
        ("limits-failed", limits::failed),
        ("limits-memory", limits::memory),
        ("zero-copy-64k", zero_copy::loopback),
        ("zero-copy-1m", zero_copy::loopback),
    ],
};

/// Rows of messages, and of the buffer for unexpected ones.
pub(crate) static BUFFERS: Group = Group {
    name: "buffers",
    rows_stand_alone: false,
    entries: &[
        ("message-64", messages::against_get),
        ("eager-256", messages::threshold),
        ("eager-1k", messages::threshold),
        ("eager-4k", messages::threshold),
        ("eager-16k", messages::threshold),
        ("eager-64k", messages::threshold),
        ("eager-128k", messages::threshold),
        ("eager-256k", messages::threshold),
        ("eager-1m", messages::threshold),
        ("advised-time", advised::time),
        ("advised-memory", advised::memory),
        ("advised-stalls", advised::stalls),
        ("priority-get", fair::latency),
        ("priority-read", fair::latency),
        ("bulk-beside-get", fair::throughput),
        ("bulk-beside-read", fair::throughput),
        ("shares-link-1-3", fair::shares),
        ("shares-link-8", fair::shares),
        ("shares-disk-1-3", fair::shares),
        ("shares-disk-8", fair::shares),
    ],
};

/// Rows of communication beside computation.
pub(crate) static OVERLAP: Group = Group {
    name: "overlap",
    rows_stand_alone: true,
    entries: &[
        ("reduction-64k-best", strips::row),
        ("reduction-64k-balanced", strips::row),
        ("reduction-64k-never-worse", strips::row),
        ("reduction-64k-bound", strips::row),
        ("reduction-512k-best", strips::row),
        ("reduction-512k-balanced", strips::row),
        ("reduction-512k-never-worse", strips::row),
        ("reduction-512k-bound", strips::row),
        ("reduction-8m-best", strips::row),
        ("reduction-8m-balanced", strips::row),
        ("reduction-8m-never-worse", strips::row),
        ("reduction-8m-bound", strips::row),
        ("vector-64k-best", strips::row),
        ("vector-64k-balanced", strips::row),
        ("vector-64k-never-worse", strips::row),
        ("vector-64k-bound", strips::row),
        ("vector-512k-best", strips::row),
        ("vector-512k-balanced", strips::row),
        ("vector-512k-never-worse", strips::row),
        ("vector-512k-bound", strips::row),
        ("vector-8m-best", strips::row),
        ("vector-8m-balanced", strips::row),
        ("vector-8m-never-worse", strips::row),
        ("vector-8m-bound", strips::row),
        ("one-to-one-8m", patterns::row),
        ("all-to-one-8m", patterns::row),
        ("redistribution-8m", patterns::row),
        ("redistribution-8m-fast", patterns::row),
        ("vectored-10k", dsm::vectored),
        ("fetch-add", dsm::fetch_add),
        ("fetch-add-sum", dsm::sum),
        ("c-get-4k", c_client::get),
        pager::ENTRIES[0],
        pager::ENTRIES[1],
        pager::ENTRIES[2],
        pager::ENTRIES[3],
        ("tiles-overlapping", tile::overlapping),
        ("tiles-height", tile::height),
        ("loop-beside-reads", tile::beside_reads),
        ("loop-on-daemons-cpu", tile::on_daemons_cpu),
    ],
};

/// Rows of lanes with keys, and of strangers.
pub(crate) static SECURITY: Group = Group {
    name: "security",
    rows_stand_alone: true,
    entries: &[
        ("integrity-get-4k", security::sealed),
        ("integrity-read-1m", security::sealed),
        ("encrypted-get-4k", security::sealed),
        ("encrypted-read-1m", security::sealed),
        ("flood-handshakes", security::flood),
        ("flood-frames", security::flood),
        ("flood-memory", security::memory),
    ],
};

impl Bench {
    pub(crate) fn new(group: &'static Group, options: Options) -> Self {
        let report = Report::new(group.name, Machine::here(), options.rounds);
        Self {
            group,
            options,
            cpus: Cpus::here(),
            report,
            server: None,
            directory: None,
            pair: None,
            rig: None,
            python: None,
            strips: strips::Found::default(),
            checks: BTreeMap::new(),
        }
    }

    /// Measures the rows that were asked for.
    ///
    /// # Errors
    /// An interruption, or a name that no row has. A row that cannot be measured is invalid, and
    /// says why; the others go on.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let only = self.options.only.clone();
        let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part));
        let entries = self.group.entries;
        if !entries.iter().any(|(name, _)| wanted(name)) {
            let names = self.group.names().join(", ");
            return Err(Failure::new(format!("no such row; there are {names}")));
        }
        for (name, measure) in entries.iter().filter(|(name, _)| wanted(name)) {
            if self.options.progress {
                eprintln!("bench: {name}");
            }
            let row = measure(self, name);
            contest::check()?;
            let mut row = row.unwrap_or_else(|failure| {
                let bar = Bar::AtMost(f64::NAN);
                let mut row = Row::unchecked(name, "-", Unit::Ratio, bar, failure.to_string());
                row.verdict = Verdict::Invalid;
                row
            });
            row.command = format!("bench {} --only {name}", self.group.name);
            if self.options.progress {
                // A run of many minutes that is broken off has printed its results so far.
                eprintln!("bench: {name}: {}", row.in_short());
            }
            self.report.rows.push(row);
        }
        Ok(())
    }

    /// Rounds as asked for, or fewer where each takes seconds.
    pub(crate) fn rounds_at_most(&self, most: u32) -> u32 {
        self.options.rounds.min(most)
    }

    pub(crate) fn plots(&self) -> Option<PathBuf> {
        self.options.plots.clone()
    }

    /// Measures arms in rounds, and counts the discarded ones.
    pub(crate) fn rounds(&mut self, arms: &mut [Arm<'_>]) -> Result<Rounds, Failure> {
        self.chosen(self.options.rounds, arms)
    }

    /// Runs rounds that only choose.
    pub(crate) fn chosen(&mut self, rounds: u32, arms: &mut [Arm<'_>]) -> Result<Rounds, Failure> {
        let rounds = contest::run(rounds, arms)?;
        self.report.rounds_discarded += rounds.discarded;
        Ok(rounds)
    }

    /// Chooses the best of `arms`, to be compared in later rounds.
    pub(crate) fn best<'a>(
        &mut self,
        rounds: u32,
        mut arms: Vec<Arm<'a>>,
        better: Better,
    ) -> Result<Arm<'a>, Failure> {
        let best = self.chosen(rounds, &mut arms)?.best_of_all(0..arms.len(), better)?;
        Ok(arms.swap_remove(best))
    }

    /// Directory of the file that is read, which B exports.
    pub(crate) fn data(&mut self) -> Result<PathBuf, Failure> {
        if self.directory.is_none() {
            self.directory = Some(make_data(&self.options.directory)?);
        }
        let directory = self.directory.as_ref().expect("made above if it was not there");
        Ok(directory.path().to_owned())
    }

    pub(crate) fn file(&mut self) -> Result<PathBuf, Failure> {
        Ok(self.data()?.join(FILE_NAME))
    }

    pub(crate) fn disk(&mut self) -> Result<Disk, Failure> {
        let file = self.file()?;
        Disk::open(&file).doing(file.display())
    }

    /// Makes sure that the other raw process runs.
    pub(crate) fn need_server(&mut self) -> Result<(), Failure> {
        if self.server.is_none() {
            self.server = Some(Server::start().doing("the raw server")?);
        }
        Ok(())
    }

    /// Makes sure that two daemons of that profile run, and no others.
    pub(crate) fn need_pair(&mut self, profile: Profile) -> Result<(), Failure> {
        if self.pair.as_ref().is_none_or(|pair| pair.profile != profile) {
            // The old ones end first, because two pairs would spin on the same CPUs.
            self.pair = None;
            let data = self.data()?;
            self.pair = Some(Pair::start(profile, self.cpus, &data)?);
        }
        Ok(())
    }

    /// Python with the packages that rows compare, made once in a run.
    fn python(&mut self) -> Result<python::Environment, Failure> {
        if self.python.is_none() {
            self.python = Some(python::Environment::make()?);
        }
        Ok(self.python.clone().expect("made above if it was not there"))
    }

    /// Takes the server and the daemons out, so that arms can borrow them beside the counts.
    pub(crate) fn with_both<T>(
        &mut self,
        profile: Profile,
        body: impl FnOnce(&mut Self, &Server, &Pair) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.need_server()?;
        self.need_pair(profile)?;
        let server = self.server.take().expect("needed above");
        let pair = self.pair.take().expect("needed above");
        let result = body(self, &server, &pair);
        self.server = Some(server);
        self.pair = Some(pair);
        result
    }

    /// Takes the daemons out, so that arms can borrow them beside the counts.
    pub(crate) fn with_pair<T>(
        &mut self,
        profile: Profile,
        body: impl FnOnce(&mut Self, &Pair) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.need_pair(profile)?;
        let pair = self.pair.take().expect("needed above");
        let result = body(self, &pair);
        self.pair = Some(pair);
        result
    }

    /// Takes the rig out, made if it does not exist, so that arms can borrow it beside the counts.
    pub(crate) fn with_rig<T>(
        &mut self,
        body: impl FnOnce(&mut Self, &mut Rig) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.with_rig_on(rig::PROFILE, self.cpus, body)
    }

    /// Takes a rig out that has both daemons on the first CPU: the second is the application's.
    pub(crate) fn with_rig_for_one<T>(
        &mut self,
        profile: Profile,
        body: impl FnOnce(&mut Self, &mut Rig) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let cpus = Cpus { second: self.cpus.first, ..self.cpus };
        self.with_rig_on(profile, cpus, body)
    }

    fn with_rig_on<T>(
        &mut self,
        profile: Profile,
        cpus: Cpus,
        body: impl FnOnce(&mut Self, &mut Rig) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // Another rig is taken down first.
        let found = self.rig.take().filter(|rig| rig.is_for(profile, cpus));
        let mut rig = match found {
            Some(rig) => rig,
            None => Rig::set_up(profile, cpus, &self.options.directory)?,
        };
        let result = body(self, &mut rig);
        self.rig = Some(rig);
        result
    }

    /// Returns the row, or an invalid one if the floor's check failed.
    pub(crate) fn judged(&self, mut row: Row, checks: &[&str]) -> Row {
        let failed = checks.iter().find(|check| self.checks.get(**check) == Some(&false));
        if let Some(check) = failed {
            row.verdict = Verdict::Invalid;
            row.note = format!("the floor is not one, see {check}; {}", row.note);
        }
        row
    }
}

/// Makes a directory with a file to be read, below one that is on a disk.
pub(crate) fn make_data(parent: &Path) -> Result<tempfile::TempDir, Failure> {
    require_disk(parent)?;
    let directory = tempfile::Builder::new().prefix("piped-bench-").tempdir_in(parent)?;
    make_file(&directory.path().join(FILE_NAME), FILE_BYTES)
        .doing(format!("a test file in {}", parent.display()))?;
    Ok(directory)
}

/// Refuses a file system in memory, which is no floor for a disk.
pub(crate) fn require_disk(directory: &Path) -> Result<(), Failure> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    if matches!(rustix::fs::statfs(directory).doing(directory.display())?.f_type, TMPFS | RAMFS) {
        let directory = directory.display();
        return Err(Failure::new(format!(
            "{directory} is a file system in memory: name a directory on a disk with --dir"
        )));
    }
    Ok(())
}

/// Ends the daemons and removes the file, so that the machine is left as it was found.
impl Drop for Bench {
    fn drop(&mut self) {
        // Daemons go first, because they have the directory's file open.
        self.pair = None;
    }
}
