//! The rig: two daemons in network namespaces of their own, with link and disk as slow as a row
//! wants them, and competitors for either.
//!
//! [`link`] shapes the wire, the daemons' dials slow their stages, [`traffic`] competes. The rig
//! needs root and iproute2, uses no network but its own, and takes down what it set up: on drop, so
//! also on errors, panics and Ctrl-C. The next rig removes the remains of one that was killed
//! ([`piped_netns::owner`]).

mod dials;
mod link;
mod live;
mod plot;
mod prediction;
mod relay;
mod scene;
pub(crate) mod sizes;
mod step;
mod sweep;
mod traffic;

use std::cell::Cell;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use piped_client::{Handle, OpenOptions};
use piped_core::modes::Profile;
use piped_netns::owner::{self, Owner};
use piped_netns::{Namespace, namespace};

use self::link::{Link, NETWORK, Side, UNSHAPED};
pub(crate) use self::plot::style;
pub(crate) use self::relay::Relay;
use self::scene::{DiskRate, Pace, Scene};
pub(crate) use self::sweep::by_hand;
use crate::failure::{Doing as _, Failure};
use crate::load::{Asker, Place, Way};
use crate::machine::Cpus;
use crate::nbd::{self, Caching};
use crate::nodes::{EXPORT, PEER, Pair, Sites};
use crate::outside::Running;
use crate::raw::disk::make_file;
use crate::rows::{FILE_NAME, Group, MIB, require_disk, zero_copy};
use crate::{clock, contest};

/// Profile of the daemons with a CPU each.
pub(crate) const PROFILE: Profile = Profile::Balanced;

/// Port of both nodes: nobody else is in their namespaces.
const PORT: u16 = 7440;

/// Port of another server beside them.
const NBD_PORT: u16 = 10809;
const SERVER_LIMIT: Duration = Duration::from_secs(5);

/// Another server on B's side, and its address.
pub(crate) type Peer = (Running, SocketAddr);

/// Settings of both daemons.
const SETTINGS: &str = "[planner]\nallow_dials = true\n";

/// Length of each of the two files: no cache of a device holds both, and they are made within
/// seconds.
pub(crate) const BYTES: u64 = 256 * MIB as u64;

/// A link of one gigabit per second, in bytes per second.
pub(crate) const GIGABIT: u64 = 125_000_000;

/// Memory of an asker: a few of the largest transfers.
const ARENA_BYTES: u64 = 64 << 20;

/// Rows of the daemon's planner and calibration where sizes matter.
pub(crate) static RIG: Group = Group {
    name: "rig",
    rows_stand_alone: true,
    entries: &[
        ("reads-equal-100-64k", sweep::compare),
        ("reads-equal-100-256k", sweep::compare),
        ("reads-equal-100-1m", sweep::compare),
        ("reads-equal-100-4m", sweep::compare),
        ("reads-equal-100-whole", sweep::compare),
        ("reads-equal-own-64k", sweep::compare),
        ("reads-equal-own-256k", sweep::compare),
        ("reads-equal-own-1m", sweep::compare),
        ("reads-equal-own-4m", sweep::compare),
        ("reads-equal-own-whole", sweep::compare),
        ("slow-disk-fixed", sweep::compare),
        ("slow-disk-whole", sweep::compare),
        ("section-5.5-write-fixed", sweep::compare),
        ("section-5.5-write-whole", sweep::compare),
        ("section-5.5-read-fixed", sweep::compare),
        ("section-5.5-read-whole", sweep::compare),
        ("prediction-equal-100", prediction::unknown),
        ("prediction-slow-disk", prediction::unknown),
        ("prediction-section-5.5", prediction::unknown),
        ("margin-covers", prediction::margin),
        ("margin-width", prediction::margin),
        ("step-disk-slower", step::step),
        ("step-disk-faster", step::step),
        ("step-both-slower", step::step),
        ("step-both-faster", step::step),
        ("step-stream-comes", step::step),
        ("step-stream-goes", step::step),
        ("step-reader-comes", step::step),
        ("step-reader-goes", step::step),
        ("live-latency", live::cost),
        ("live-throughput", live::cost),
        ("zero-copy-cable-64k", zero_copy::cable),
        ("zero-copy-cable-1m", zero_copy::cable),
    ],
};

/// Arguments of `bench rig`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    run: crate::Run,
    /// Only set the rig up, with disk and link as slow (for reads) as rows of that name have them,
    /// print where it is, and take it down on Ctrl-C.
    #[arg(
        long,
        value_name = "PACE",
        num_args = 0..=1,
        default_missing_value = "own",
        conflicts_with_all = ["only", "docs", "json"]
    )]
    hold: Option<Pace>,
    /// Write the course of the steps, transfer by transfer: NAME.svg and NAME.csv in that
    /// directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

pub(crate) fn run(arguments: Arguments) -> Result<u8, Failure> {
    require_root()?;
    match arguments.hold {
        Some(pace) => hold(arguments.run, pace),
        None => crate::measure(&RIG, arguments.run, arguments.plots),
    }
}

/// A network namespace with only its own loopback. Remains of earlier ones are removed.
pub(crate) fn closed_network(name: &str) -> Result<Namespace, Failure> {
    remove_left_over_namespaces()?;
    Ok(Namespace::add(format!("{}{name}", Owner::this()?.prefix()))?)
}

pub(crate) fn require_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("the rig makes network namespaces, which only root may: run it with sudo"))
}

/// The rig. Its fields are dropped in this order: daemons, link, file.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) pair: Pair,
    sites: Sites,
    cpus: Cpus,
    link: Link,
    data: tempfile::TempDir,
    disk_rate: DiskRate,
    /// Whether dials are set.
    dialled: Cell<bool>,
}

impl Rig {
    /// Sets up a rig with a link as fast as the machine; its files are in `directory`.
    pub(crate) fn set_up(profile: Profile, cpus: Cpus, directory: &Path) -> Result<Self, Failure> {
        require_root()?;
        require_disk(directory)?;
        remove_left_over(directory)?;
        let owner = Owner::this()?;
        let data = tempfile::Builder::new().prefix(&owner.prefix()).tempdir_in(directory)?;
        for name in [FILE_NAME, traffic::FILE_NAME] {
            make_file(&data.path().join(name), BYTES)
                .doing(format!("a test file in {}", directory.display()))?;
        }
        let link = Link::set_up(owner, UNSHAPED)?;
        let sites = Sites {
            listen: Side::B.address(PORT),
            dialled: None,
            call_back: Some(Side::A.address(PORT)),
            allow_plain: vec![NETWORK.to_owned()],
            namespaces: Side::BOTH.map(|side| Some(link.namespace(side).path())),
            writable: true,
            settings: SETTINGS.to_owned(),
            settings_of_a: String::new(),
            prefix: owner.prefix(),
        };
        let pair = Pair::start_at(&sites, profile, cpus, data.path())?;
        let (disk_rate, dialled) = (DiskRate::default(), Cell::new(false));
        Ok(Self { pair, sites, cpus, link, data, disk_rate, dialled })
    }

    /// Starts new daemons, which know nothing.
    pub(crate) fn renew(&mut self) -> Result<(), Failure> {
        // The old ones end first, because B's port is theirs.
        self.pair.end();
        self.dialled.set(false);
        self.pair = Pair::start_at(&self.sites, self.pair.profile, self.cpus, self.data.path())?;
        Ok(())
    }

    /// nbdkit on B's side of the link, and its address.
    pub(crate) fn serve_nbd(&self, file: &Path, cpu: usize) -> Result<Peer, Failure> {
        let address = Side::B.address(NBD_PORT);
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.link.namespace(Side::B).name()]);
        command.args(["taskset", "-c", &cpu.to_string()]).args(nbd::nbdkit_words(&host, &port));
        command.arg(file).args(nbd::cold_words(Caching::Cold));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = Running(command.spawn()?);
        let listens = || self.at_caller(|| Ok(TcpStream::connect(address)?)).ok();
        clock::poll(SERVER_LIMIT, listens).ok_or_else(|| Failure::new("nbdkit did not start"))?;
        Ok((server, address))
    }

    /// Runs `body` on A's side of the link: sockets that are made there stay there.
    pub(crate) fn at_caller<T: Send>(
        &self,
        body: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        self.link.namespace(Side::A).inside(body)
    }

    /// Directory of its files, on the disk of both nodes.
    pub(crate) fn directory(&self) -> &Path {
        self.data.path()
    }

    /// Limits data that leaves either node to this many bytes per second.
    pub(crate) fn set_rate(&self, rate: u64) -> Result<(), Failure> {
        self.link.set_rate(rate)
    }

    /// Whether it is the rig for such daemons on such CPUs.
    pub(crate) fn is_for(&self, profile: Profile, cpus: Cpus) -> bool {
        self.pair.profile == profile && self.cpus == cpus
    }

    /// A client of A with B's file.
    pub(crate) fn asker(&self) -> Result<(Asker, Handle), Failure> {
        let asker = Asker::connect(&self.pair.a, Place::BesideShard, ARENA_BYTES)?;
        let options = OpenOptions::read_write();
        let handle = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, options);
        Ok((asker, handle.doing("open")?))
    }
}

/// Removes the remains of rigs without a process.
fn remove_left_over(directory: &Path) -> Result<(), Failure> {
    // First of all, because that ends the daemons that have the files open.
    remove_left_over_namespaces()?;
    for directory in [directory, &std::env::temp_dir()] {
        for name in owner::left_over(directory).doing(directory.display())? {
            let path = directory.join(name);
            std::fs::remove_dir_all(&path).doing(path.display())?;
        }
    }
    Ok(())
}

/// Removes the namespaces of rigs without a process, and ends the processes still in them.
fn remove_left_over_namespaces() -> Result<(), Failure> {
    for name in owner::left_over(Path::new(namespace::DIRECTORY)).doing(namespace::DIRECTORY)? {
        namespace::remove(&name)?;
    }
    Ok(())
}

fn hold(run: crate::Run, pace: Pace) -> Result<u8, Failure> {
    crate::hear_interrupts()?;
    let rig = Rig::set_up(PROFILE, Cpus::here(), &crate::beside_this(run.dir)?)?;
    rig.pose(Scene { way: Way::Read, block: MIB, pace })?;
    for (name, side, node) in [("A", Side::A, &rig.pair.a), ("B", Side::B, &rig.pair.b)] {
        println!("{name}: namespace {}", rig.link.namespace(side).name());
        println!("   client {}", node.client_socket.display());
        println!("   admin  {}", node.admin.socket().display());
    }
    println!(
        "B's export {EXPORT} is {}; A calls B {PEER}. Ctrl-C takes all of it down.",
        rig.data.path().display()
    );
    std::io::stdout().flush()?;
    while !contest::interrupted() {
        clock::pause(Duration::from_millis(50));
    }
    Ok(0)
}
