//! Collects facts about the machine. Nothing is judged or changed here; facts that cannot be seen
//! are left out.

use std::ffi::OsString;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use io_uring::{IoUring, Probe, opcode};
use piped_config::admin::{STATUS, Status};
use piped_config::{
    Config, Loaded, Look, MADE_BY_UNIT, Names, Preflight, Principal, Sources, User, as_user, load,
};
use piped_report::shard::ShardReport;
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit};

use super::facts::{
    DaemonUser, Directory, ExportFacts, Facts, Machine, Node, PeerFacts, PrincipalFacts, Process,
    Ring, Seen, SocketFacts,
};
use super::trust;
use crate::admin::Admin;
use crate::args::Args;
use crate::node;

/// A peer without an answer in this time counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Most peers that are tried; in a large cluster they fail for few reasons.
const PEERS_MAX: usize = 64;
/// Most names of a directory that are searched for a regular file.
const NAMES_MAX: usize = 256;

const SYSCTLS: [&str; 5] = [
    "kernel/io_uring_disabled",
    "kernel/io_uring_group",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_slow_start_after_idle",
    "net/ipv4/tcp_wmem",
];

/// Collects all facts. `file` is the configuration's main file, if one was named.
pub(crate) fn gather(args: &Args, file: Option<PathBuf>) -> Facts {
    let file = file.or_else(|| std::env::var_os("PIPED_CONFIG").map(PathBuf::from));
    // A file names its daemon's socket, unless the user names one.
    let of_file = |file: &PathBuf| {
        let sources = Sources::of_process(Some(file.clone()), Vec::new());
        Some(load(&sources).ok()?.config.admin.socket)
    };
    let socket = if args.socket_is_named { None } else { file.as_ref().and_then(of_file) };
    let socket = socket.unwrap_or_else(|| args.socket.clone());
    let socket = socket.as_path();
    let answer = Admin::new(socket).and_then(|admin| admin.get::<Status>(STATUS));
    let (daemon, unreachable) = match answer {
        Ok(status) => (Some(status), None),
        Err(failure) => (None, Some(failure.to_string())),
    };
    let (mut files, mut mistakes, mut config, mut unfit) =
        (Vec::new(), Vec::new(), None, Vec::new());
    // Without a named file the daemon's own layers are used.
    let of_daemon = || node::of_daemon(socket).ok()?.sources.map(Sources::from);
    let running = if file.is_none() && daemon.is_some() { of_daemon() } else { None };
    let sources = running.unwrap_or_else(|| Sources::of_process(file, Vec::new()));
    match load(&sources) {
        Ok(loaded) => {
            unfit = unfit_for(&loaded, &sources, daemon.as_ref());
            (files, config) = (loaded.files, Some(loaded.config));
        }
        Err(found) => mistakes.extend(found.all().iter().map(ToString::to_string)),
    }
    let process = process(daemon.as_ref().map(|status| status.pid));
    let of = |config: &Config| {
        let exports = exports(config, process.pid);
        (exports, principals(config), sockets(config, socket), peers(config, daemon.as_ref()))
    };
    let (exports, principals, sockets, peers) = config.as_ref().map(of).unwrap_or_default();
    let main_file = sources.main_file();
    let key = config.as_ref().and_then(|it| it.security.key_path(Some(main_file)));
    let of_cluster = |it| trust::cluster(it, main_file, (daemon.as_ref(), socket));
    let cluster = config.as_ref().and_then(of_cluster);
    Facts {
        machine: machine(),
        ring: ring(),
        process,
        files,
        mistakes,
        unfit,
        config,
        exports,
        principals,
        sockets,
        peers,
        key: key.map(trust::key),
        cluster,
        daemon,
        unreachable,
    }
}

/// Checks the configuration against this machine, as its user if possible.
pub(crate) fn preflight(loaded: &Loaded, sources: &Sources, runs_as: &DaemonUser) -> Preflight {
    let names = Names::of_system();
    let look = |is_user| {
        let look = Look {
            main_file: Some(sources.main_file()),
            user: &runs_as.name,
            is_user,
            made: vec![PathBuf::from(MADE_BY_UNIT)],
            ..Look::default()
        };
        piped_config::preflight(loaded, &names, &look)
    };
    let user = User { uid: runs_as.uid, groups: runs_as.groups.clone() };
    as_user(&user, || look(true)).unwrap_or_else(|_| look(false))
}

/// Findings of the preflight that no other check is about.
fn unfit_for(loaded: &Loaded, sources: &Sources, daemon: Option<&Status>) -> Vec<(String, String)> {
    let Some(runs_as) = user_of_daemon(daemon.map(|status| status.pid)) else { return Vec::new() };
    let found = preflight(loaded, sources, &runs_as);
    let is_left = |key: &str| {
        let of_checks = ["access.", "admin.", "client.socket", "exports.", "security.key_file"];
        !of_checks.iter().any(|known| key.starts_with(known))
    };
    let refused = found.refused.iter().filter_map(|it| Some((it.key()?, it.to_string())));
    refused.filter(|(key, _)| is_left(key)).map(|(key, text)| (key.to_owned(), text)).collect()
}

/// User that the daemon runs as: that of its process; else `piped`, if there is such a user; else
/// the present user.
pub(crate) fn user_of_daemon(pid: Option<u32>) -> Option<DaemonUser> {
    let of_process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    user_of_process(pid, &text(format!("/proc/{of_process}/status"))?)
}

/// User of this machine, with its groups.
pub(crate) fn user_named(name: &str) -> Option<DaemonUser> {
    let (passwd, group) = (text("/etc/passwd")?, text("/etc/group").unwrap_or_default());
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2).map(|it| it.parse().ok());
    let (uid, gid) = (fields.next()??, fields.next()??);
    let member =
        |line: &&str| line.rsplit(':').next().is_some_and(|it| it.split(',').any(|it| it == name));
    let more = group.lines().filter(member).filter_map(|line| line.split(':').nth(2)?.parse().ok());
    Some(DaemonUser {
        name: name.to_owned(),
        uid,
        groups: std::iter::once(gid).chain(more).collect(),
    })
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn machine() -> Machine {
    let clocks = "/sys/devices/system/clocksource/clocksource0";
    let memory = text("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim();
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    });
    let sysctl = |name| Some((name, text(Path::new("/proc/sys").join(name))?));
    Machine {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        memory_bytes: memory,
        sysctls: SYSCTLS.into_iter().filter_map(sysctl).collect(),
        clock: text(format!("{clocks}/current_clocksource")),
        clocks: text(format!("{clocks}/available_clocksource"))
            .map(|text| text.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default(),
        container: container(),
        is_root: rustix::process::geteuid().is_root(),
    }
}

/// Kind of the container, by the marks that engines leave.
fn container() -> Option<String> {
    let named = text("/run/systemd/container").filter(|name| !name.is_empty());
    let marked = |path: &str, name: &str| Path::new(path).exists().then(|| name.to_owned());
    let variable = || std::env::var("container").ok().filter(|name| !name.is_empty());
    let pod = || std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "kubernetes".to_owned());
    named
        .or_else(|| marked("/run/.containerenv", "podman"))
        .or_else(|| marked("/.dockerenv", "docker"))
        .or_else(variable)
        .or_else(pod)
}

/// Sets up a ring and drops it: a version number says nothing about filters, limits and back-ports.
fn ring() -> Ring {
    let plain = match IoUring::new(1) {
        Ok(ring) => ring,
        Err(error) => return Ring::Refused(error.raw_os_error().unwrap_or(0)),
    };
    let builds = |change: fn(&mut io_uring::Builder)| {
        let mut builder = IoUring::builder();
        change(&mut builder);
        builder.build(1).is_ok()
    };
    let mut probe = Probe::new();
    let probed = plain.submitter().register_probe(&mut probe).is_ok();
    let has = |code: u8| probed && probe.is_supported(code);
    // Use the names of `pipectl status`.
    Ring::Made(
        [
            (
                "defer_taskrun",
                builds(|it| {
                    it.setup_single_issuer().setup_defer_taskrun();
                }),
            ),
            (
                "submit_all",
                builds(|it| {
                    it.setup_submit_all();
                }),
            ),
            (
                "no_sqarray",
                builds(|it| {
                    it.setup_no_sqarray();
                }),
            ),
            ("send_zero_copy", has(opcode::SendZc::CODE) && has(opcode::SendMsgZc::CODE)),
        ]
        .map(|(name, there)| (name.to_owned(), there))
        .into(),
    )
}

/// Facts about the daemon's process, or about this one.
fn process(pid: Option<u32>) -> Process {
    let place = pid.map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"));
    let status = text(format!("{place}/status")).unwrap_or_default();
    let limits = match pid {
        Some(_) => text(format!("{place}/limits")).map(|text| parse_limits(&text)),
        None => Some((getrlimit(Resource::Memlock).current, getrlimit(Resource::Nofile).maximum)),
    };
    let (memlock_bytes, files) = limits.unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let capable = field("CapEff:").and_then(|it| u64::from_str_radix(it, 16).ok()).unwrap_or(0);
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let group =
        text(format!("{place}/cgroup")).and_then(|it| it.strip_prefix("0::").map(str::to_owned));
    let (memory_max_bytes, cpus_max) = group.map(|it| control_group(&it)).unwrap_or_default();
    Process {
        pid,
        user: user_of_process(pid, &status),
        memlock_bytes,
        files,
        readable: limits.is_some(),
        may_lock: capable & CAP_IPC_LOCK != 0,
        filtered: field("Seccomp:") == Some("2"),
        memory_max_bytes,
        cpus_max,
    }
}

/// Locked memory (soft) and files (hard) of `/proc/PID/limits`, `None` for no limit.
fn parse_limits(text: &str) -> (Option<u64>, Option<u64>) {
    let of = |name: &str, place: usize| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(place)?.parse().ok()
    };
    (of("Max locked memory", 0), of("Max open files", 1))
}

/// The least limits of a group and of those above it.
fn control_group(path: &str) -> (Option<u64>, Option<f64>) {
    let root = Path::new("/sys/fs/cgroup");
    let place = root.join(path.trim().trim_start_matches('/'));
    let groups: Vec<&Path> = place.ancestors().take_while(|it| it.starts_with(root)).collect();
    let memory = groups.iter().filter_map(|it| text(it.join("memory.max"))?.parse().ok()).min();
    let cpus = groups.iter().filter_map(|it| parse_cpu_max(&text(it.join("cpu.max"))?));
    (memory, cpus.min_by(f64::total_cmp))
}

/// Reads `QUOTA PERIOD` as CPUs; none for `max`.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then(|| quota / period)
}

/// User of a process, from its `/proc/PID/status`.
fn user_of_process(pid: Option<u32>, status: &str) -> Option<DaemonUser> {
    if pid.is_none()
        && let Some(user) = user_named("piped")
    {
        return Some(user);
    }
    let numbers = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().filter_map(|it| it.parse().ok()).collect()
    };
    // The fields are real, effective, saved, and that of file systems.
    let (uid, gid) = (*numbers("Uid:").get(1)?, *numbers("Gid:").get(1)?);
    let groups = std::iter::once(gid).chain(numbers("Groups:")).collect();
    let name = Names::of_system().user(uid).map_or_else(|| uid.to_string(), str::to_owned);
    Some(DaemonUser { name, uid, groups })
}

fn exports(config: &Config, pid: Option<u32>) -> Vec<ExportFacts> {
    let look = |(name, export): (&String, &piped_config::Export)| {
        let path = &export.path;
        let directory = match fs::metadata(path) {
            Ok(found) if found.is_dir() => Directory::There,
            Ok(_) => Directory::Other,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Directory::Closed,
            Err(_) => Directory::Missing,
        };
        let space = rustix::fs::statvfs(path.as_path()).ok();
        ExportFacts {
            name: name.clone(),
            path: path.clone(),
            write: export.write,
            chain: chain(path),
            direct: (directory == Directory::There).then(|| opens_directly(path)).flatten(),
            space: space.map(|it| (it.f_bavail * it.f_frsize, it.f_blocks * it.f_frsize)),
            in_daemon: pid.and_then(|pid| seen_by(pid, path)),
            directory,
        }
    };
    config.exports.iter().map(look).collect()
}

fn chain(path: &Path) -> Vec<Node> {
    let mut nodes: Vec<Node> = path
        .ancestors()
        .filter_map(|path| Some(Node::of(path, &fs::metadata(path).ok()?)))
        .collect();
    nodes.reverse();
    nodes
}

/// Whether the first regular file there, or else one without a name, opens with `O_DIRECT`.
fn opens_directly(directory: &Path) -> Option<bool> {
    let names = fs::read_dir(directory).ok()?.take(NAMES_MAX).flatten();
    let file = names
        .filter(|it| it.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|it| it.path())
        .next();
    let flags = OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = |path: &Path, flags: OFlags, write: bool| {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(write).custom_flags(flags.bits().cast_signed());
        match options.open(path) {
            Ok(_) => Some(true),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                Some(false)
            }
            Err(_) => None,
        }
    };
    match file {
        Some(path) => open(&path, flags, false),
        None => open(directory, OFlags::TMPFILE | OFlags::DIRECT, true),
    }
}

/// View of a directory for another process, which its unit may have cut off.
fn seen_by(pid: u32, path: &Path) -> Option<Seen> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    // Without access there is no word about what is there.
    fs::metadata(&root).ok()?;
    let mut there: OsString = root.into();
    there.push(path);
    let (Ok(seen), Ok(own)) = (fs::metadata(&there), fs::metadata(path)) else {
        return Some(Seen::Hidden);
    };
    if (seen.dev(), seen.ino()) != (own.dev(), own.ino()) {
        return Some(Seen::Hidden);
    }
    let mount = rustix::fs::statvfs(there.as_os_str()).ok()?;
    let is_fixed = mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
    Some(if is_fixed { Seen::ReadOnly } else { Seen::Whole })
}

fn principals(config: &Config) -> Vec<PrincipalFacts> {
    let names = Names::of_system();
    let knows = |name: &str, is_group: bool| match is_group {
        true => names.gid(name).is_some(),
        false => names.uid(name).is_some(),
    };
    let look = |key: String, list: &[Principal], is_group: bool| {
        let named = list.iter().filter_map(|it| match it {
            Principal::Id(_) => None,
            Principal::Name(name) => Some(name.clone()),
        });
        let facts = named.map(|name| PrincipalFacts {
            key: key.clone(),
            is_group,
            is_known: knows(&name, is_group),
            name,
        });
        facts.collect::<Vec<_>>()
    };
    let (access, admin) = (&config.access, &config.admin);
    let mut all = Vec::new();
    for (key, list, is_group) in [
        ("access.users", &access.users, false),
        ("access.groups", &access.groups, true),
        ("admin.users", &admin.users, false),
        ("admin.groups", &admin.groups, true),
        ("admin.status_users", &admin.status_users, false),
        ("admin.status_groups", &admin.status_groups, true),
    ] {
        all.extend(look(key.to_owned(), list, is_group));
    }
    for (name, export) in &config.exports {
        all.extend(look(format!("exports.{name}.users"), &export.users, false));
        all.extend(look(format!("exports.{name}.groups"), &export.groups, true));
    }
    all
}

fn sockets(config: &Config, admin: &Path) -> Vec<SocketFacts> {
    let look = |key: &str, path: &Path, connect: &dyn Fn(&Path) -> io::Result<()>| {
        let there = fs::symlink_metadata(path).ok();
        SocketFacts {
            key: key.to_owned(),
            path: path.to_owned(),
            has_directory: path.parent().is_some_and(Path::exists),
            connects: there
                .as_ref()
                .and_then(|_| connect(path).err().map(|error| error.to_string())),
            there: there.map(|it| (it.file_type().is_socket(), it.permissions().mode() & 0o7777)),
        }
    };
    vec![
        look("client.socket", &config.client.socket, &|path| {
            let flags = SocketFlags::CLOEXEC;
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
        }),
        look("admin.socket", admin, &|path| UnixStream::connect(path).map(drop)),
    ]
}

/// Tries all peers at once, so that a few that are away take no longer than one.
fn peers(config: &Config, daemon: Option<&Status>) -> Vec<PeerFacts> {
    let shards = daemon.map_or(&[][..], |status| &status.shards);
    let shards: Vec<ShardReport> =
        shards.iter().filter_map(|it| serde_json::from_value(it.clone()).ok()).collect();
    let lanes_of = |name: &str| {
        let of = shards.iter().flat_map(|it| &it.peers).filter(|it| !it.inbound && it.name == name);
        let lanes: Vec<bool> = of.flat_map(|it| &it.lanes).map(|lane| lane.up).collect();
        daemon.map(|_| (lanes.iter().filter(|up| **up).count(), lanes.len()))
    };
    std::thread::scope(|scope| {
        let tried: Vec<_> = config
            .peers
            .iter()
            .flat_map(|(name, peer)| {
                [&peer.address, &peer.second_address].map(|address| (name, address.as_str()))
            })
            // Peers without an address only connect to us.
            .filter(|(_, address)| !address.is_empty())
            .take(PEERS_MAX)
            .map(|(name, address)| (name, address, scope.spawn(move || reach(address))))
            .collect();
        let facts = tried.into_iter().map(|(name, address, thread)| {
            let (failure, is_loopback) = thread.join().unwrap_or_default();
            let (name, lanes, address) = (name.clone(), lanes_of(name), address.to_owned());
            PeerFacts { name, address, failure, lanes, is_loopback }
        });
        facts.collect()
    })
}

/// Reason why a peer cannot be reached, empty if it can, and whether it is on this machine.
fn reach(address: &str) -> (String, bool) {
    let found = match address.to_socket_addrs() {
        Ok(found) => found.collect::<Vec<_>>(),
        Err(error) => return (format!("its name is not known ({error})"), false),
    };
    let is_loopback = found.iter().all(|it| it.ip().is_loopback());
    let mut failure = "its name has no address".to_owned();
    for address in found {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(_) => return (String::new(), is_loopback),
            Err(error) => failure = error.to_string(),
        }
    }
    (failure, is_loopback)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn limits_of_a_process_are_read_as_proc_writes_them() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \
            \nMax open files            1024                 524288               files     \nMax \
            locked memory         8388608              unlimited            bytes     \n";
        assert_eq!(parse_limits(text), (Some(8 << 20), Some(524_288)));
        assert_eq!(parse_limits("Max locked memory  unlimited  unlimited  bytes"), (None, None));
    }

    #[test]
    fn a_quota_is_a_number_of_cpus() {
        assert_eq!(parse_cpu_max("150000 100000"), Some(1.5));
        assert_eq!(parse_cpu_max("max 100000"), None);
    }

    #[test]
    fn this_machine_is_looked_at_without_a_daemon() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("nobody").display().to_string();
        let args = Args::try_parse_from(["pipectl", "--socket", &socket, "doctor"]);
        let args = Args { socket_is_named: true, ..args.expect("a command line") };
        let facts = gather(&args, Some(directory.path().join("no.toml")));
        assert!(facts.unreachable.is_some() && facts.daemon.is_none());
        assert!(!facts.mistakes.is_empty(), "a file that was named is not there");
        assert_ne!(facts.ring, Ring::Untried);
        assert!(facts.machine.cpus > 0 && !facts.machine.kernel.is_empty());
    }
}
