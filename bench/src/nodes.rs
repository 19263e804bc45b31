//! Two real daemons on loopback: A on the first CPU, which clients ask, and B on the second, which
//! has the data.
//!
//! They end with their owner, by their own process numbers: on drop, so also on errors, panics and
//! Ctrl-C; and by the kernel (parent death signal) if this program is killed.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use piped_core::modes::{CalibrationMode, PlannerMode, Profile};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::Value;

use crate::admin::Admin;
use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::machine::Cpus;

/// Name of A at B.
pub(crate) const CALLER: &str = "bench-a";
/// Name of B at A, and of B's export.
pub(crate) const PEER: &str = "bench-b";
pub(crate) const EXPORT: &str = "data";

const START_LIMIT: Duration = Duration::from_secs(10);
const END_LIMIT: Duration = Duration::from_secs(5);

/// A pair of daemons.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) profile: Profile,
    pub(crate) a: Node,
    pub(crate) b: Node,
    /// Last, so that it is dropped after the daemons.
    _directory: tempfile::TempDir,
}

impl Pair {
    /// Starts both on loopback and waits until A's lanes to B are up. B exports `data`.
    pub(crate) fn start(profile: Profile, cpus: Cpus, data: &Path) -> Result<Self, Failure> {
        let sites = Sites { listen: free_address()?, ..Sites::default() };
        Self::start_at(&sites, profile, cpus, data)
    }

    /// Starts both at other places than loopback.
    pub(crate) fn start_at(
        sites: &Sites,
        profile: Profile,
        cpus: Cpus,
        data: &Path,
    ) -> Result<Self, Failure> {
        let piped = program("piped")?;
        // Short, because a socket's path has at most 107 bytes.
        let directory = tempfile::Builder::new().prefix(&sites.prefix).tempdir()?;
        let start = |site: usize, name: &str, cpu: usize, rest: &str| {
            let rest = format!("{rest}{}", sites.settings);
            let place = (directory.path().join(name), sites.namespaces[site].as_deref());
            Node::start(&piped, place, profile, cpu, &rest)
                .map_err(|failure| failure.within(format!("daemon {name}")))
        };
        let (listen, allowed) = (sites.listen, &sites.allow_plain);
        let export = format!(
            "[node]\nname = \"{PEER}\"\n[listen]\naddress = \"{listen}\"\nallow_plain = \
             {allowed:?}\n[exports.{EXPORT}]\npath = {:?}\nwrite = {}\n",
            data, sites.writable
        );
        let asks =
            sites.call_back.map(|address| format!("[peers.{CALLER}]\naddress = \"{address}\"\n"));
        let b = start(1, "b", cpus.second, &format!("{export}{}", asks.unwrap_or_default()))?;
        let answers = sites.call_back.map(|address| format!("address = \"{address}\"\n"));
        let answers = answers.unwrap_or_default();
        let peer = format!(
            "[node]\nname = \"{CALLER}\"\n[listen]\n{answers}allow_plain = {allowed:?}\n\
             [peers.{PEER}]\naddress = \"{}\"\n{}",
            sites.dialled.unwrap_or(listen),
            sites.settings_of_a
        );
        let mut a = start(0, "a", cpus.first, &peer)?;
        let both = |a: &Node, b: &Node| {
            lanes_up(&a.admin, PEER) && (sites.call_back.is_none() || lanes_up(&b.admin, CALLER))
        };
        if clock::poll(START_LIMIT, || both(&a, &b).then_some(())).is_none() {
            return Err(
                a.lost("its lanes to the other daemon did not come up, or those of that one")
            );
        }
        Ok(Self { profile, a, b, _directory: directory })
    }

    /// Sets how both choose sizes from now on. Only `auto` learns, so that it knows only its own
    /// transfers.
    pub(crate) fn plan_by(&self, mode: PlannerMode) -> Result<(), Failure> {
        let calibration = match mode {
            PlannerMode::Auto => CalibrationMode::Live,
            PlannerMode::Fixed(_) | PlannerMode::Whole => CalibrationMode::Off,
        };
        [&self.a, &self.b].into_iter().try_for_each(|node| {
            node.admin.set_planner(mode)?;
            node.admin.set_calibration(calibration)
        })
    }

    /// Ends both; after that only another pair may be started.
    pub(crate) fn end(&mut self) {
        self.a.end();
        self.b.end();
    }
}

/// Addresses of the daemons, and other parts of their configurations.
#[derive(Debug)]
pub(crate) struct Sites {
    /// Address where B listens.
    pub(crate) listen: SocketAddr,
    /// Address where A dials B, if it differs.
    pub(crate) dialled: Option<SocketAddr>,
    /// Address where A listens, if B is to ask A, too.
    pub(crate) call_back: Option<SocketAddr>,
    /// Networks besides loopback in which lanes may be plain.
    pub(crate) allow_plain: Vec<String>,
    /// Namespaces of A and B; none is this program's.
    pub(crate) namespaces: [Option<PathBuf>; 2],
    /// Whether B's files may be written.
    pub(crate) writable: bool,
    /// Sections of both configurations.
    pub(crate) settings: String,
    /// Sections of A's configuration.
    pub(crate) settings_of_a: String,
    /// Prefix of the name of the daemons' directory.
    pub(crate) prefix: String,
}

impl Default for Sites {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            dialled: None,
            call_back: None,
            allow_plain: Vec::new(),
            namespaces: [None, None],
            writable: false,
            settings: String::new(),
            settings_of_a: String::new(),
            prefix: String::from("piped-bench-"),
        }
    }
}

fn lanes_up(admin: &Admin, name: &str) -> bool {
    let Ok(status) = admin.status() else { return false };
    let peers = status.shards.iter().filter_map(|shard| shard["peers"].as_array()).flatten();
    let mut peers = peers.filter(|peer| peer["name"] == name);
    peers.any(all_up)
}

/// Whether all lanes of a peer are up, and there are some.
fn all_up(peer: &Value) -> bool {
    let lanes = peer["lanes"].as_array().map_or(&[][..], Vec::as_slice);
    !lanes.is_empty() && lanes.iter().all(|lane| lane["up"] == Value::Bool(true))
}

/// One daemon that runs.
#[derive(Debug)]
pub(crate) struct Node {
    process: Child,
    log: PathBuf,
    pub(crate) client_socket: PathBuf,
    pub(crate) admin: Admin,
}

/// The reads or writes of the disk that a file is on, as a dial names them.
pub(crate) fn disk_stage(file: &Path, verb: &str) -> Result<String, Failure> {
    let device = file.metadata().doing(file.display())?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(format!("disk:{major}:{minor}:{verb}"))
}

/// Waits until the lanes of a node to [`PEER`] are up.
pub(crate) fn await_lanes(node: &mut Node) -> Result<(), Failure> {
    match clock::poll(START_LIMIT, || lanes_up(&node.admin, PEER).then_some(())) {
        Some(()) => Ok(()),
        None => Err(node.lost("its lanes did not come up")),
    }
}

/// Waits until the lanes of a node to so many peers are up.
pub(crate) fn await_all_lanes(node: &Node, peers: usize) -> Result<(), Failure> {
    let count = || {
        let status = node.admin.status().ok()?;
        let asked = status.shards.iter().filter_map(|shard| shard["peers"].as_array()).flatten();
        Some(asked.filter(|peer| all_up(peer)).count())
    };
    let up = clock::poll(START_LIMIT, || count().filter(|count| *count == peers));
    up.map(drop).ok_or_else(|| {
        let count = count().unwrap_or(0);
        Failure::new(format!("lanes of {count} peers are up, and not of {peers}"))
    })
}

impl Node {
    pub(crate) fn start(
        piped: &Path,
        (directory, namespace): (PathBuf, Option<&Path>),
        profile: Profile,
        cpu: usize,
        rest: &str,
    ) -> Result<Self, Failure> {
        Self::start_on(piped, (directory, namespace), profile, &[cpu], rest)
    }

    /// Starts one with a shard on each of these CPUs.
    pub(crate) fn start_on(
        piped: &Path,
        (directory, namespace): (PathBuf, Option<&Path>),
        profile: Profile,
        cpus: &[usize],
        rest: &str,
    ) -> Result<Self, Failure> {
        fs::create_dir(&directory)?;
        let path = |name| directory.join(name);
        let (client_socket, admin_socket) = (path("client.sock"), path("admin.sock"));
        let text = format!(
            "profile = \"{profile}\"\n[client]\nsocket = {client_socket:?}\n[admin]\nsocket = \
             {admin_socket:?}\n[shards]\ncpus = {cpus:?}\n[log]\nlevel = \"warn\"\n{rest}"
        );
        fs::write(path("piped.toml"), text)?;
        let log = File::create(path("log"))?;
        let mut command = under_parent(piped, namespace)?;
        command
            .arg("--config")
            .arg(path("piped.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C goes to the terminal's whole group, but daemons end with their owner.
            .process_group(0)
            .env_remove("NOTIFY_SOCKET");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PIPED_") {
                command.env_remove(name);
            }
        }
        let process = command.spawn()?;
        let admin = Admin::new(&admin_socket)?;
        let mut node = Self { process, log: path("log"), client_socket, admin };
        let ready = clock::poll(START_LIMIT, || match node.process.try_wait() {
            Ok(None) => node.admin.status().is_ok().then_some(true),
            _ => Some(false),
        });
        match ready {
            Some(true) => Ok(node),
            Some(false) => Err(node.lost("it ended at once")),
            None => Err(node.lost("it was not ready within 10 s")),
        }
    }

    /// Changes a key of `[planner]` from now on.
    pub(crate) fn set_planner(&self, key: &str, value: &str) -> Result<(), Failure> {
        let path = self.log.with_file_name("piped.toml");
        let text = fs::read_to_string(&path)?;
        // The other keys of `[planner]` follow it.
        let planner = format!("[planner]\n{key} = \"{value}\"\n");
        let mut text: String = text
            .lines()
            .filter(|line| !line.starts_with(key))
            .map(|line| if line == "[planner]" { planner.clone() } else { format!("{line}\n") })
            .collect();
        if !text.contains(&planner) {
            text.push_str(&planner);
        }
        fs::write(&path, text)?;
        self.admin.reload().doing("reload")
    }

    /// CPU time of all its threads so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> Result<f64, Failure> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
            nanos += text.split(' ').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(nanos as f64 / 1e9)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Failure with the last lines of the daemon's log.
    fn lost(&mut self, what: &str) -> Failure {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(6)..].join("\n  ");
        Failure::new(format!("{what}; its last words:\n  {last}"))
    }

    fn end(&mut self) {
        if !matches!(self.process.try_wait(), Ok(None)) {
            return;
        }
        // The process is not awaited yet, so the number is still its own.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let ended =
            clock::poll(END_LIMIT, || (!matches!(self.process.try_wait(), Ok(None))).then_some(()));
        if ended.is_none() {
            eprintln!("bench: daemon {} ignored SIGTERM for 5 s and is killed", self.pid());
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// Command for a program that ends with this one, in a network namespace if one is named: see
/// [`become_child`].
pub(crate) fn under_parent(program: &Path, namespace: Option<&Path>) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("under-parent");
    if let Some(namespace) = namespace {
        command.arg("--namespace").arg(namespace);
    }
    command.arg("--").arg(program);
    Ok(command)
}

/// Becomes `program`, in a network namespace if one is named, which the kernel ends if its parent
/// dies first. Returns only with an error.
pub(crate) fn become_child(
    namespace: Option<&Path>,
    program: &[std::ffi::OsString],
) -> std::io::Error {
    if let Some(namespace) = namespace
        && let Err(error) = piped_netns::enter(namespace)
    {
        return error;
    }
    let parent = rustix::process::getppid();
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        return error.into();
    }
    // The parent may have died before the kernel was told.
    if rustix::process::getppid() != parent {
        return std::io::Error::other("the parent is gone");
    }
    match program {
        [program, arguments @ ..] => Command::new(program).args(arguments).exec(),
        [] => std::io::ErrorKind::InvalidInput.into(),
    }
}

/// Path of a program of ours, beside this one.
pub(crate) fn program(name: &str) -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe()?.with_file_name(name);
    if beside.is_file() {
        return Ok(beside);
    }
    Err(Failure::new(format!(
        "{} is not there: build it with `cargo build --release -p piped -p pipectl`",
        beside.display()
    )))
}

/// An address on loopback that was free a moment ago.
pub(crate) fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Name of a profile in rows.
pub(crate) fn profile_name(profile: Profile) -> String {
    profile.to_string()
}

/// Counter of a daemon, summed over shards; none if it has no such counter.
pub(crate) fn counter(admin: &Admin, path: &[&str]) -> Result<Option<u64>, Failure> {
    let status = admin.status().doing("status")?;
    let mut sum = None;
    for shard in &status.shards {
        let value =
            path.iter().try_fold(shard, |value, key| value.get(key)).and_then(Value::as_u64);
        if let Some(value) = value {
            sum = Some(sum.unwrap_or(0) + value);
        }
    }
    Ok(sum)
}
