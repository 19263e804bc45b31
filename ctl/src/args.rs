//! Definition of the command line of `pipectl`.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{
    Args as ClapArgs, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
};
use piped_config::{Bytes, planner_mode};
use piped_core::modes::{CalibrationMode, PlannerMode, Profile};
use piped_theory::ModelArgs;

use crate::commands::calibrate::CalibrateArgs;
use crate::commands::cluster::ClusterArgs;
use crate::commands::config::ConfigArgs;
use crate::commands::cp::CpArgs;
use crate::commands::dial::DialArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::files::cat::CatArgs;
use crate::commands::files::complete::CompleteArgs;
use crate::commands::files::df::DfArgs;
use crate::commands::files::du::DuArgs;
use crate::commands::files::ls::LsArgs;
use crate::commands::files::mkdir::MkdirArgs;
use crate::commands::files::mv::MvArgs;
use crate::commands::files::put::PutArgs;
use crate::commands::files::rm::RmArgs;
use crate::commands::handles::{ClientArgs, HandleArgs, PeerArgs};
use crate::commands::keys::KeysArgs;
use crate::commands::lab::LabArgs;
use crate::commands::limits::LimitsArgs;
use crate::commands::manual::{CompletionsArgs, ManArgs};
use crate::commands::plan::PlanArgs;
use crate::commands::simulate::SimulateArgs;
use crate::commands::stat::StatArgs;
use crate::commands::support::SupportArgs;
use crate::commands::trace::TraceArgs;
use crate::commands::transfers::TransfersArgs;
use crate::place::Place;

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 daemon not reachable, 4 refused,
5 timeout, 6 not found, 130 interrupted.
Sizes are bytes or KiB, MiB, GiB (4k and 4KiB are the same).";

/// Control and measure the piped daemon.
#[derive(Debug, Parser)]
#[command(name = "pipectl", version, about, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Args {
    /// The daemon's admin socket
    #[arg(long, global = true, value_name = "PATH", env = "PIPED_ADMIN_SOCKET",
          default_value = piped_config::Admin::DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,

    /// Whether the option or the variable named the socket.
    #[arg(skip)]
    pub(crate) socket_is_named: bool,

    /// Print JSON (with a schema_version) for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// The command to run
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Reads and checks the command line of this process.
    pub(crate) fn of_process() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let mut args = Self::from_arg_matches(&matches)?;
        // A subcommand may have the option as well: the innermost one counts.
        let mut named = false;
        let mut inner = Some(&matches);
        while let Some(matches) = inner {
            named |= matches.try_contains_id("socket").unwrap_or(false)
                && matches.value_source("socket").is_some_and(|it| it != ValueSource::DefaultValue);
            inner = matches.subcommand().map(|(_, below)| below);
        }
        args.socket_is_named = named;
        Ok(args)
    }
}

/// All commands of `pipectl`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show piped at work with two daemons on this machine
    Demo(DemoArgs),
    /// Start nodes of your own on this machine, to try things with
    Lab(LabArgs),
    /// Show the daemon at a glance: features, faults, sessions, memory
    Status,
    /// Show the work done by interval; or all that is known of a file
    ///
    /// With seconds, or nothing: operations, bandwidth, latency and staging. With a place: kind,
    /// length, mode, owner and times of files and directories of exports.
    Stat(StatArgs),
    /// Show the peers and the lanes to and from them
    Peers,
    /// Show the clients: their requests in execution and their totals
    Clients,
    /// Show the transfers that run now, or the last that ended
    Transfers(TransfersArgs),
    /// Show the directories and regions that this node offers
    Exports,
    /// Show the nodes that sources of discovery name
    Nodes,
    /// Show the handles of clients and peers
    Handles,
    /// End a handle of a client or peer
    Handle(HandleArgs),
    /// End a client's session
    Client(ClientArgs),
    /// Close a peer's lanes
    Peer(PeerArgs),
    /// Show the limits and their use, or change them at run time
    Limits(LimitsArgs),
    /// Check, show and reload the configuration
    Config(ConfigArgs),
    /// Make and show this node's key, and say which nodes are trusted
    Keys(KeysArgs),
    /// Begin a cluster, sign the keys of its nodes, and revoke them
    Cluster(ClusterArgs),
    /// Check machine, configuration and daemon, and suggest fixes
    ///
    /// Works without a daemon, and says more with one. Exit code 1 if there is an error.
    Doctor(DoctorArgs),
    /// Collect a support bundle (no keys, payload or paths)
    SupportDump(SupportArgs),
    /// Show the pipeline stages with their measured costs
    Stages,
    /// Show one transfer: costs, plan, predicted and measured times
    Explain {
        /// `last` (the last one that moved bytes), or a transfer's number
        which: Which,
        /// With `last`: also a transfer that moved nothing, as a sync
        #[arg(long)]
        all: bool,
    },
    /// Record the fragments of the next transfers, and draw them
    Trace(TraceArgs),
    /// Show the plan for a transfer and its time, without doing it
    Plan(PlanArgs),
    /// Run the daemon's engine in virtual time on a described system
    Simulate(SimulateArgs),
    /// Copy a file here, or to and from peers; daemons move the bytes
    Cp(CpArgs),
    /// Write a file or what comes in to a file of an export, whole or not at all
    Put(PutArgs),
    /// Show the bytes of files of exports
    Cat(CatArgs),
    /// List names below exports
    Ls(LsArgs),
    /// Give files and directories of an export other names
    Mv(MvArgs),
    /// Make directories below exports
    Mkdir(MkdirArgs),
    /// Remove files and directories below exports
    Rm(RmArgs),
    /// Show the room on the file systems of exports
    Df(DfArgs),
    /// Show the room that files and directories take
    Du(DuArgs),
    /// Measure requests through the daemon: rate, latency, CPU
    Bench(BenchArgs),
    /// Measure the costs of stages by loading them on purpose
    Calibrate(CalibrateArgs),
    /// Compute with the theory alone: fragments, buffers, strips, tiles
    Model(ModelArgs),
    /// Print a script that completes pipectl's command line in a shell
    Completions(CompletionsArgs),
    /// Print how a place on the command line may go on
    #[command(hide = true)]
    Complete(CompleteArgs),
    /// Write the manual pages of pipectl and piped into a directory
    #[command(hide = true)]
    Man(ManArgs),
    /// Slow down stages on purpose (where planner.allow_dials is on)
    Dial(DialArgs),
    /// Set how fragment sizes are chosen, until the daemon ends
    Planner {
        /// auto, whole, or fixed:SIZE
        #[arg(value_parser = planner_mode)]
        mode: PlannerMode,
    },
    /// Set whether costs follow measurements, until the daemon ends
    Calibration {
        /// Measure and follow, measure only, or neither
        mode: Calibration,
    },
}

/// A transfer, as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// The transfer that ended last.
    Last,
    /// The transfer with this number.
    Id(u64),
}

impl std::str::FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "last" => Ok(Self::Last),
            _ => text.parse().map(Self::Id).map_err(|_| "write `last` or a number".to_owned()),
        }
    }
}

/// [`CalibrationMode`] as words of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Calibration {
    /// Costs follow the samples
    Live,
    /// Samples are taken, costs stay
    Frozen,
    /// No samples are taken
    Off,
}

impl From<Calibration> for CalibrationMode {
    fn from(word: Calibration) -> Self {
        match word {
            Calibration::Live => Self::Live,
            Calibration::Frozen => Self::Frozen,
            Calibration::Off => Self::Off,
        }
    }
}

/// Arguments of `pipectl demo`.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct DemoArgs {
    /// The file to move; without it random data
    pub(crate) file: Option<PathBuf>,

    /// Size of the random file (1MiB to 64GiB)
    #[arg(long, default_value = "256MiB", value_parser = demo_size, conflicts_with = "file")]
    pub(crate) size: Bytes,

    /// A directory on the disk to use; everything made in it is removed at the end
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Arguments of `pipectl bench`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    /// Kind of request to measure
    #[command(subcommand)]
    pub(crate) operation: Operation,
}

/// Kinds of requests to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Operation {
    /// The ring alone: requests that do nothing
    Nop(Load),
    /// Read from a file, here or on a peer
    Read {
        #[command(flatten)]
        target: FileTarget,
        #[command(flatten)]
        load: Load,
    },
    /// Write to a file, here or on a peer
    Write {
        #[command(flatten)]
        target: FileTarget,
        /// Allow to write over an existing file
        #[arg(long)]
        overwrite: bool,
        /// Complete requests only when the bytes are on stable storage
        #[arg(long)]
        durable: bool,
        #[command(flatten)]
        load: Load,
    },
    /// Get from a memory region, here or on a peer
    Get {
        #[command(flatten)]
        target: RegionTarget,
        #[command(flatten)]
        load: Load,
    },
    /// Put into a memory region, here or on a peer
    Put {
        #[command(flatten)]
        target: RegionTarget,
        #[command(flatten)]
        load: Load,
    },
    /// Copy between two files; the bytes do not pass through the client
    Copy {
        /// From: PATH, or PEER:EXPORT/PATH
        source: Place,
        /// To: PATH, or PEER:EXPORT/PATH
        destination: Place,
        /// Allow to write over an existing file
        #[arg(long)]
        overwrite: bool,
        #[command(flatten)]
        load: Load,
    },
}

/// Amount and order of the requests.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Load {
    /// Bytes of one request
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = request_size)]
    pub(crate) size: Bytes,

    /// Number of requests outstanding
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) depth: u32,

    /// Seconds to measure, after a warm-up of one tenth of it
    #[arg(long, value_name = "T", default_value_t = 5.0, value_parser = measured_seconds)]
    pub(crate) seconds: f64,

    /// Order of the offsets
    #[arg(long, value_enum, default_value_t = Pattern::Random)]
    pub(crate) pattern: Pattern,

    /// How much of the file or region to use (default: all of it; for a new file 1GiB)
    #[arg(long, value_name = "SIZE")]
    pub(crate) span: Option<Bytes>,

    /// Keep the measuring thread on this CPU
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<u32>,

    /// How the client waits (default: as the daemon's profile)
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) wait: Option<Wait>,

    #[command(flatten)]
    pub(crate) door: ClientDoor,
}

/// Client socket, for commands that make requests.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct ClientDoor {
    /// The daemon's client socket
    // The id differs from the name: the admin socket's field has this name too, and every command
    // knows it.
    #[arg(id = "client-socket", long = "client-socket", value_name = "PATH",
          env = "PIPED_CLIENT_SOCKET",
          default_value = piped_config::Client::DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
}

/// Orders of the offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// Any multiple of the size
    Random,
    /// One after the other; at the end, from the start again
    Sequential,
}

impl Pattern {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }
}

/// [`Profile`] as words of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Spin for a short time, then sleep
    Balanced,
    /// Spin for a long time
    Latency,
    /// Sleep at once, without spinning
    Throughput,
}

impl From<Wait> for Profile {
    fn from(word: Wait) -> Self {
        match word {
            Wait::Balanced => Self::Balanced,
            Wait::Latency => Self::Latency,
            Wait::Throughput => Self::Throughput,
        }
    }
}

/// A file: `--file PATH`, or `--export E --path F`, on a peer with `--peer P`.
#[derive(Debug, ClapArgs)]
pub(crate) struct FileTarget {
    /// A local file, opened here and passed to the daemon
    #[arg(long, value_name = "PATH", required_unless_present = "export",
          conflicts_with_all = ["peer", "export", "path"])]
    pub(crate) file: Option<PathBuf>,

    /// The node that has the export (default: this one)
    #[arg(long, value_name = "P", requires = "export")]
    pub(crate) peer: Option<String>,

    /// The name of the export
    #[arg(long, value_name = "E", requires = "path")]
    pub(crate) export: Option<String>,

    /// The file's path below the export
    #[arg(long, value_name = "F", requires = "export")]
    pub(crate) path: Option<String>,
}

/// A region: `--region NAME`, on a peer with `--peer P`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RegionTarget {
    /// The node that has the region (default: this one)
    #[arg(long, value_name = "P")]
    pub(crate) peer: Option<String>,

    /// The name of the region
    #[arg(long, value_name = "NAME")]
    pub(crate) region: String,

    /// Offer the region during the measurement, through this client socket of the node that is to
    /// have it; without it some other program must offer it
    #[arg(long, value_name = "PATH")]
    pub(crate) serve: Option<PathBuf>,
}

fn demo_size(text: &str) -> Result<Bytes, String> {
    bounded(text, Bytes::mib(1), Bytes::gib(64))
}

fn request_size(text: &str) -> Result<Bytes, String> {
    bounded(text, Bytes(1), Bytes::mib(64))
}

fn bounded(text: &str, from: Bytes, to: Bytes) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if (from..=to).contains(&size) { Ok(size) } else { Err(format!("choose {from} to {to}")) }
}

fn measured_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("choose 0.1 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn well_formed_lines_parse() {
        for line in [
            "pipectl status",
            "pipectl --json stages",
            "pipectl stages --json --socket /tmp/a",
            "pipectl stat",
            "pipectl stat -y 1 10",
            "pipectl stat --no-since-start 0.5 --json",
            "pipectl stat b:data/f :data --json",
            "pipectl ls",
            "pipectl ls -laR1 b:data :data/*.log",
            "pipectl rm -rf b:data/a",
            "pipectl mv b:data/a b:data/b b:data/c/",
            "pipectl mkdir -p -m 1750 b:data/a/b",
            "pipectl put - b:data/a --mode 600 -n",
            "pipectl cat b:data/a --offset 4k --length 1",
            "pipectl complete",
            "pipectl complete -- -x",
            "pipectl peers",
            "pipectl clients --json",
            "pipectl transfers --ended",
            "pipectl exports",
            "pipectl nodes --json",
            "pipectl cluster status --json",
            "pipectl lab up",
            "pipectl lab up -n 20 --loopback --dir /tmp/a",
            "pipectl lab --dir /tmp/a status --json",
            "pipectl lab exec n1",
            "pipectl lab exec n1 -- pipectl --json status",
            "pipectl lab exec n1 ls -l",
            "pipectl lab stop n1 n2",
            "pipectl lab down",
            "pipectl explain last",
            "pipectl explain 17",
            "pipectl trace",
            "pipectl simulate --scenario a.toml --svg a.svg --json",
            "pipectl trace --transfers 64 --seconds 0.5 --svg a.svg --chrome b.json --json",
            "pipectl plan --from b:data/f --bytes 1MiB",
            "pipectl plan --from /tmp/x --to b:data/f --bytes 1g --class bulk --json",
            "pipectl plan --from :data/f --for b --bytes 64KiB",
            "pipectl plan --from - --to b:memory --bytes 4k",
            "pipectl demo",
            "pipectl demo some.bin --out /tmp",
            "pipectl demo --size 64MiB",
            "pipectl planner fixed:64KiB",
            "pipectl calibration frozen",
            "pipectl calibrate",
            "pipectl calibrate --peer b --peer c --device 8:1 --seconds 5 --share 10 --json",
            "pipectl calibrate --device 8:1 --file /srv/x --bytes 64MiB",
            "pipectl bench nop --depth 64 --seconds 0.5 --cpu 1 --wait latency",
            "pipectl bench read --file x --size 1m --pattern sequential",
            "pipectl bench read --peer b --export data --path f",
            "pipectl bench write --export data --path f --durable",
            "pipectl bench get --peer b --region r --serve /run/b.sock",
            "pipectl bench copy b:data/f /tmp/x --size 16MiB",
            "pipectl model buffer --messages 4 --bytes 4000 --lambda 105 --mu 91MB/s --alpha 9us \
             --delay 1ms",
        ] {
            if let Err(error) = parse(line) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn malformed_lines_are_wrong_usage() {
        for line in [
            "pipectl",
            "pipectl stat 0",
            "pipectl stat 1 0",
            "pipectl stat file",
            "pipectl ls /tmp",
            "pipectl rm",
            "pipectl mv b:data/a",
            "pipectl mv -n --exchange b:data/a b:data/b",
            "pipectl mkdir -m 999 b:data/a",
            "pipectl put b:data/a",
            "pipectl put --mode 1777 a b:data/a",
            "pipectl du -s -d 1 b:data",
            "pipectl cat",
            "pipectl peers beta",
            "pipectl cluster",
            "pipectl lab",
            "pipectl lab up -n 0",
            "pipectl lab up -n 65",
            "pipectl lab exec",
            "pipectl lab stop",
            "pipectl stat -y",
            "pipectl explain first",
            "pipectl simulate",
            "pipectl plan --from a --to b",
            "pipectl plan --to a --bytes 1MiB",
            "pipectl plan --from a --bytes 1MB",
            "pipectl plan --from a --to b --for c --bytes 1MiB",
            "pipectl trace --transfers 0",
            "pipectl trace --transfers 65",
            "pipectl trace --seconds 0",
            "pipectl demo f --size 1MiB",
            "pipectl demo --size 1KiB",
            "pipectl planner best",
            "pipectl calibrate --device sda",
            "pipectl calibrate --seconds 0",
            "pipectl calibrate --share 0",
            "pipectl calibrate --bytes 1KiB",
            "pipectl bench nop --depth 0",
            "pipectl bench nop --size 1MB",
            "pipectl bench nop --seconds nan",
            "pipectl bench read",
            "pipectl bench read --file x --peer b",
            "pipectl bench read --peer b --export data",
            "pipectl bench get --peer b",
            "pipectl bench copy b:data /tmp/x",
            "pipectl model",
            "pipectl model buffer --messages 4",
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.use_stderr() && error.exit_code() == 2, "{line}");
        }
    }

    #[test]
    fn the_two_sockets_are_two() {
        let line = "pipectl bench nop --socket /admin --client-socket /client";
        let args = parse(line).expect("well formed");
        let Command::Bench(BenchArgs { operation: Operation::Nop(load) }) = args.command else {
            panic!("bench")
        };
        assert_eq!((args.socket, load.door.socket), ("/admin".into(), "/client".into()));
    }
}
