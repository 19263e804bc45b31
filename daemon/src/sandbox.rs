//! The sandbox that the daemon puts on itself, and on every thread that it will have: Landlock.
//!
//! The paths are those of the configuration at the start. A rule is about the directory that was
//! there then, not about its name: a directory that replaces it is outside, and a renamed directory
//! stays inside. No right comes back, so exports that a reload adds outside need a restart.
//! [`Sandbox::admits`] knows them by the kernel's own question: is one of the directories above
//! allowed?
//!
//! Landlock applies to a thread and to threads that it starts, so [`Sandbox::enter`] belongs before
//! the first other thread. Files that clients pass were opened by them, and are not concerned;
//! neither are sockets that listen already.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fs, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, make_bitflags,
};
use piped_config::admin::SandboxReport;
use piped_config::{Config, Etcd, LandlockMode, Sources, SyscallsMode};
use piped_core::modes::CalibrationMode;
use rustix::fs::{Mode, OFlags};

use crate::kept;
use crate::syscalls::{self, Filtered};

/// Rights to read files, and to list them.
const LOOK: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});

/// Rights to replace files as a whole ([`crate::replace`]).
const KEEP: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | MakeReg | RemoveFile});

/// Rights to change names: of whatever kind a user has made there, but devices.
const NAMES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    MakeDir | MakeReg | MakeSym | MakeFifo | MakeSock | RemoveFile | RemoveDir | Refer
});

/// Rights to make a listening socket, and to remove its file at the end.
const LISTEN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeSock | RemoveFile});

/// Paths that every daemon needs: to look up names of users and hosts (some by libraries that are
/// loaded for it), to tell disks apart, and to find out why io_uring is refused. All of /etc,
/// because its files are replaced by others when they change, and a rule about a file is not about
/// its successor.
const SYSTEM: [(&str, BitFlags<AccessFs>); 7] = [
    ("/etc", LOOK),
    ("/usr/lib", LOOK),
    ("/usr/lib64", LOOK),
    ("/lib", LOOK),
    ("/lib64", LOOK),
    ("/sys/devices", LOOK),
    ("/proc/sys", LOOK),
];

/// A link to a file elsewhere on many systems.
const RESOLVER: &str = "/etc/resolv.conf";

/// Versions of Landlock that bring something to us, with what they bring.
const COVERS: [(u32, &str); 5] =
    [(1, "files"), (3, "truncation"), (4, "ports"), (5, "devices"), (6, "signals")];

/// Reason why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Landlock was demanded, and cannot be had.
    #[error(
        "[sandbox] landlock is \"on\", but {0}; enable it in the kernel (CONFIG_SECURITY_LANDLOCK, \
         and landlock among lsm=) or in the container, or choose \"auto\" to start without"
    )]
    Unavailable(String),
    /// A filter of system calls was demanded, and cannot be had.
    #[error("[sandbox] syscalls is \"on\", but {0}; choose \"auto\" to start without")]
    Unfiltered(String),
}

/// Restrictions that are in force.
#[derive(Debug, Default)]
pub(crate) struct Sandbox {
    report: SandboxReport,
    degraded: Option<String>,
    filtering: Filtering,
    grounds: Vec<Ground>,
}

/// State of the filter of system calls.
#[derive(Debug, Default)]
pub(crate) struct Filtering {
    filtered: Filtered,
    /// Reason why there is none.
    unfiltered: Option<String>,
}

impl Filtering {
    /// Filters the system calls of this process, for all its threads. Call it before
    /// [`Sandbox::enter`], which closes the file that tells whether there is a filter already.
    ///
    /// # Errors
    /// [`SandboxError`], if the configuration demands something that this kernel lacks.
    pub(crate) fn enter(mode: SyscallsMode) -> Result<Self, SandboxError> {
        let because = |why: String| {
            Some(format!("system calls: {why}; the daemon may make all that its user may"))
        };
        match syscalls::enter(mode) {
            Ok(Filtered::No) => Ok(Self {
                filtered: Filtered::No,
                unfiltered: because("switched off by [sandbox] syscalls".to_owned()),
            }),
            Ok(filtered) => Ok(Self { filtered, unfiltered: None }),
            Err(error) if mode == SyscallsMode::On => {
                Err(SandboxError::Unfiltered(error.to_string()))
            }
            Err(error) => {
                Ok(Self { filtered: Filtered::No, unfiltered: because(error.to_string()) })
            }
        }
    }
}

/// A directory with the rights below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ground {
    identity: Identity,
    read: bool,
    write: bool,
    names: bool,
}

/// Device and inode of a directory.
type Identity = (u64, u64);

impl Sandbox {
    /// Restricts this thread, and threads that it starts from here on, to the needs of a
    /// configuration. The step cannot be undone. Changed limits are kept in `drop_ins`.
    ///
    /// # Errors
    /// [`SandboxError`], if the configuration demands something that this kernel lacks.
    pub(crate) fn enter(
        config: &Config,
        sources: Option<&Sources>,
        drop_ins: Option<&Path>,
    ) -> Result<Self, SandboxError> {
        let because = |why: String| Self { degraded: Some(why), ..Self::default() };
        if config.sandbox.landlock == LandlockMode::Off {
            return Ok(because("landlock: switched off by [sandbox] landlock".to_owned()));
        }
        let entered = restrict(&needs(config, sources, drop_ins), &ports(config));
        let why = match entered {
            Ok(Entered::InForce(abi, grounds)) => {
                let covers = COVERS.iter().filter(|(since, _)| *since <= abi);
                let landlock = covers.map(|(_, what)| (*what).to_owned()).collect();
                let report = SandboxReport { landlock_abi: abi, landlock, ..Default::default() };
                return Ok(Self { report, grounds, ..Self::default() });
            }
            Ok(Entered::Missing(why)) => why.to_owned(),
            Err(error) => format!("the kernel refuses it ({error})"),
        };
        if config.sandbox.landlock == LandlockMode::On {
            return Err(SandboxError::Unavailable(why));
        }
        Ok(because(format!("landlock: {why}; the daemon may open whatever its user may")))
    }

    /// Adds the state of the filter of system calls.
    #[must_use]
    pub(crate) fn with(self, filtering: Filtering) -> Self {
        Self { filtering, ..self }
    }

    /// Report for `pipectl status`.
    pub(crate) fn report(&self) -> SandboxReport {
        SandboxReport { syscalls: self.filtering.filtered.name().to_owned(), ..self.report.clone() }
    }

    /// Reason why system calls are not filtered.
    pub(crate) fn unfiltered(&self) -> Option<&str> {
        self.filtering.unfiltered.as_deref()
    }

    /// Reason why there is no Landlock.
    pub(crate) fn degraded(&self) -> Option<&str> {
        self.degraded.as_deref()
    }

    /// Whether files of an export can be opened. A directory that cannot be looked at counts as
    /// admitted, because the error of opening it says more. May block in the file system.
    pub(crate) fn admits(&self, export: &piped_config::Export) -> bool {
        if self.report.landlock_abi == 0 {
            return true;
        }
        above(&export.path).map_or(true, |above| {
            let on = |allows: fn(&Ground) -> bool| {
                above.iter().any(|identity| {
                    self.grounds.iter().any(|it| it.identity == *identity && allows(it))
                })
            };
            (!export.read || on(|ground| ground.read))
                && (!export.write || on(|ground| ground.write))
                && (!export.names || on(|ground| ground.names))
        })
    }
}

/// Paths that a daemon with this configuration opens while it runs.
fn needs(
    config: &Config,
    sources: Option<&Sources>,
    drop_ins: Option<&Path>,
) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    let mut needs: Vec<_> =
        SYSTEM.iter().map(|(path, access)| (PathBuf::from(path), *access)).collect();
    needs.extend(fs::canonicalize(RESOLVER).ok().map(|path| (folder_of(&path), LOOK)));
    // For the backtrace of a panic.
    needs.extend(std::env::current_exe().ok().map(|path| (path, AccessFs::ReadFile.into())));
    needs.extend(sources.map(|sources| (folder_of(sources.main_file()), LOOK)));
    // Keys are read again by a reload, after `pipectl keys` has put others in their place.
    let key = config.security.key_path(sources.map(Sources::main_file));
    needs.extend(key.map(|path| (folder_of(&path), AccessFs::ReadFile.into())));
    let main_file = sources.map(Sources::main_file);
    let of_cluster =
        [config.cluster.certificate_path(main_file), config.cluster.signing_key_path(main_file)];
    if config.cluster.is_on() {
        // They are read again, too; the private key with each signature.
        let folders = of_cluster.iter().flatten().map(|path| folder_of(path));
        needs.extend(folders.map(|folder| (folder, AccessFs::ReadFile.into())));
    }
    if !config.discovery.files.as_os_str().is_empty() {
        needs.push((config.discovery.files.clone(), LOOK));
    }
    let Etcd { password_file, ca_file, certificate_file, key_file, .. } = &config.discovery.etcd;
    for file in [password_file, ca_file, certificate_file, key_file] {
        if !file.as_os_str().is_empty() {
            // They are read again with each connection: certificates are renewed.
            needs.push((folder_of(file), AccessFs::ReadFile.into()));
        }
    }
    needs.extend(drop_ins.map(|conf_d| match conf_d.is_dir() {
        true => (conf_d.to_owned(), KEEP),
        // The folder is made when limits are kept for the first time.
        false => (folder_of(conf_d), KEEP | AccessFs::MakeDir),
    }));
    for socket in [&config.client.socket, &config.admin.socket] {
        needs.push((folder_of(socket), LISTEN));
    }
    if let Some(state) = kept::directory(config) {
        if config.planner.calibration == CalibrationMode::Live {
            // Made here as it would be later; that place reports a failure.
            let _ = fs::create_dir(&state);
        }
        needs.push((state, KEEP));
    }
    for export in config.exports.values() {
        // Directories are read to sync them, too.
        let mut access = BitFlags::from(AccessFs::ReadDir);
        if export.read {
            access |= AccessFs::ReadFile;
        }
        if export.write {
            access |= AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::Truncate;
        }
        if export.names {
            access |= NAMES;
        }
        needs.push((export.path.clone(), access));
    }
    needs
}

/// Ports that it listens on. Connecting is not limited: peers come with a reload, and name servers
/// by themselves.
fn ports(config: &Config) -> Vec<u16> {
    let addresses = [config.listen.address, config.metrics.address];
    addresses.into_iter().flatten().map(|address| address.port()).collect()
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

enum Entered {
    InForce(u32, Vec<Ground>),
    Missing(&'static str),
}

fn restrict(
    needs: &[(PathBuf, BitFlags<AccessFs>)],
    ports: &[u16],
) -> Result<Entered, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::BindTcp)?
        .scope(scopes())?
        .create()?;
    let mut grounds = Vec::new();
    for (path, access) in needs {
        // A missing path needs no rule; its user reports it, with its key.
        let Ok(place) = PathFd::new(path) else { continue };
        if let Ok(identity) = identity(&place) {
            let read = access.contains(AccessFs::ReadFile);
            let write = access.contains(AccessFs::WriteFile | AccessFs::MakeReg);
            let names = access.contains(NAMES);
            grounds.push(Ground { identity, read, write, names });
        }
        ruleset = ruleset.add_rule(PathBeneath::new(place, *access))?;
    }
    for port in ports {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
    }
    let status = ruleset.restrict_self()?;
    Ok(match status.landlock {
        LandlockStatus::Available { effective_abi, .. }
            if status.ruleset != RulesetStatus::NotEnforced =>
        {
            Entered::InForce(effective_abi as u32, grounds)
        }
        LandlockStatus::NotEnabled => Entered::Missing("this kernel has it switched off"),
        _ => Entered::Missing("this kernel does not have it"),
    })
}

/// Forbids signals to others, and connections to their abstract sockets, unless the service manager
/// listens on one.
fn scopes() -> BitFlags<Scope> {
    let notify = std::env::var_os("NOTIFY_SOCKET");
    if notify.is_some_and(|socket| socket.as_encoded_bytes().starts_with(b"@")) {
        return Scope::Signal.into();
    }
    Scope::Signal | Scope::AbstractUnixSocket
}

fn identity(file: impl AsFd) -> io::Result<Identity> {
    let facts = rustix::fs::fstat(file)?;
    Ok((facts.st_dev, facts.st_ino))
}

/// A directory and all above it, up to the root, over all mounts.
fn above(path: &Path) -> io::Result<Vec<Identity>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here: OwnedFd = rustix::fs::open(path, flags, Mode::empty())?;
    let mut found = Vec::new();
    loop {
        let identity = identity(&here)?;
        // The root is its own parent.
        if found.last() == Some(&identity) {
            return Ok(found);
        }
        found.push(identity);
        here = rustix::fs::openat(&here, "..", flags, Mode::empty())?;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::TcpListener;

    use super::*;

    fn export(path: &Path, read: bool, write: bool) -> piped_config::Export {
        piped_config::Export { path: path.to_owned(), read, write, ..Default::default() }
    }

    /// Runs something in a sandbox, on a thread of its own, which ends with it. `None`, with the
    /// reason printed, where no sandbox can be had.
    fn inside<T: Send>(config: &Config, work: impl FnOnce(&Sandbox) -> T + Send) -> Option<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let sandbox = Sandbox::enter(config, None, None).expect("auto");
                if let Some(why) = sandbox.degraded() {
                    eprintln!("skipped: {why}");
                    return None;
                }
                Some(work(&sandbox))
            });
            thread.join().expect("it does not panic")
        })
    }

    struct World {
        directory: tempfile::TempDir,
        config: Config,
    }

    impl World {
        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }
    }

    /// Exports `read`, `write`, `both` and `names`, and `other`, which is not exported; each with a
    /// file.
    fn world() -> World {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.client.socket = directory.path().join("sockets/client");
        config.admin.socket = directory.path().join("sockets/admin");
        fs::create_dir(directory.path().join("sockets")).expect("made");
        for (name, read, write) in [
            ("read", true, false),
            ("write", false, true),
            ("both", true, true),
            ("names", true, true),
            ("other", false, false),
        ] {
            let path = directory.path().join(name);
            fs::create_dir_all(path.join("below")).expect("made");
            fs::write(path.join("file"), name).expect("written");
            if read || write {
                let names = name == "names";
                let export = piped_config::Export { names, ..export(&path, read, write) };
                config.exports.insert(name.to_owned(), export);
            }
        }
        std::os::unix::fs::symlink("nowhere", directory.path().join("names/link")).expect("made");
        World { directory, config }
    }

    #[test]
    fn what_is_not_needed_cannot_be_opened() {
        let world = world();
        let tried = inside(&world.config, |_| {
            let denied = |result: io::Result<()>| {
                result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            };
            let read = |name: &str| File::open(world.path(name)).map(drop);
            let write = |name: &str| File::options().write(true).open(world.path(name)).map(drop);
            let make = |name: &str| {
                File::options().write(true).create_new(true).open(world.path(name)).map(drop)
            };
            let cut = |name: &str| {
                let file = File::options().write(true).truncate(true).open(world.path(name));
                file.map(drop)
            };
            let rename = |from: &str, to: &str| fs::rename(world.path(from), world.path(to));
            let link = |from: &str, to: &str| fs::hard_link(world.path(from), world.path(to));
            // Threads that start later are restricted, too.
            let thread = std::thread::scope(|scope| {
                scope.spawn(|| read("other/file")).join().expect("it does not panic")
            });
            [
                ("read read", !denied(read("read/file"))),
                ("write to read", denied(write("read/file"))),
                ("make in read", denied(make("read/new"))),
                ("read write", denied(read("write/file"))),
                ("write to write", !denied(write("write/file"))),
                ("make in write", !denied(make("write/below/new"))),
                ("read both", !denied(read("both/file"))),
                ("write to both", !denied(write("both/file"))),
                ("remove from both", denied(fs::remove_file(world.path("both/file")))),
                ("make a directory in both", denied(fs::create_dir(world.path("both/new")))),
                ("rename in both", denied(rename("both/file", "both/renamed"))),
                ("cut a file in both", !denied(cut("both/file"))),
                ("cut a file in read", denied(cut("read/file"))),
                ("list both", !denied(fs::read_dir(world.path("both")).map(drop))),
                ("list other", denied(fs::read_dir(world.path("other")).map(drop))),
                ("make a directory in names", fs::create_dir(world.path("names/new")).is_ok()),
                ("rename across names", rename("names/file", "names/new/file").is_ok()),
                ("link in names", link("names/new/file", "names/linked").is_ok()),
                ("rename a link in names", rename("names/link", "names/renamed").is_ok()),
                ("rename out of names", rename("names/linked", "both/linked").is_err()),
                ("remove from names", fs::remove_file(world.path("names/linked")).is_ok()),
                ("remove a directory", fs::remove_dir(world.path("names/below")).is_ok()),
                ("read other", denied(read("other/file"))),
                ("read other on another thread", denied(thread)),
                ("make other", denied(make("other/new"))),
                ("run a program", std::process::Command::new("/bin/true").status().is_err()),
                ("read /etc", !denied(File::open("/etc/passwd").map(drop))),
                ("write a device", denied(File::options().write(true).open("/dev/null").map(drop))),
                ("list the root", denied(fs::read_dir("/").map(drop))),
                ("read another process", denied(File::open("/proc/1/environ").map(drop))),
            ]
        });
        for (what, right) in tried.into_iter().flatten() {
            assert!(right, "{what}");
        }
    }

    #[test]
    fn only_the_ports_of_the_configuration_can_be_listened_on() {
        let mut world = world();
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("bound");
        drop(free);
        world.config.listen.address = Some(address);
        let tried = inside(&world.config, |sandbox| {
            let own = TcpListener::bind(address).map(drop);
            let other = TcpListener::bind("127.0.0.1:0").map(drop);
            (sandbox.report(), own, other)
        });
        let Some((report, own, other)) = tried else { return };
        assert!(own.is_ok(), "{own:?}");
        assert_eq!(other.is_err(), report.landlock.iter().any(|it| it == "ports"), "{other:?}");
    }

    #[test]
    fn what_a_reload_can_add_is_known_beforehand() {
        let world = world();
        let path = |name: &str| world.path(name);
        let named = |path: &Path| piped_config::Export { names: true, ..export(path, true, true) };
        let admitted = inside(&world.config, |sandbox| {
            [
                (export(&path("read/below"), true, false), true),
                (export(&path("read/below"), true, true), false),
                (export(&path("both/below"), true, true), true),
                (named(&path("both/below")), false),
                (named(&path("names/below")), true),
                (export(&path("other"), true, false), false),
                (export(&path("."), true, false), false),
                (export(Path::new("/etc"), true, false), true),
                (export(Path::new("/no/such/place"), true, true), true),
            ]
            .map(|(export, expected)| (sandbox.admits(&export), expected, export))
        });
        for (found, expected, export) in admitted.into_iter().flatten() {
            assert_eq!(found, expected, "{export:?}");
        }
    }

    #[test]
    fn a_directory_that_takes_the_place_of_another_is_outside() {
        let world = world();
        let (entered, moved) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let sandboxed = scope.spawn(|| {
                let sandbox = Sandbox::enter(&world.config, None, None).expect("auto");
                entered.wait();
                moved.wait();
                if sandbox.degraded().is_some() {
                    return None;
                }
                let admitted = ["read", "kept"]
                    .map(|name| sandbox.admits(&export(&world.path(name), true, false)));
                let opened =
                    ["read", "kept"].map(|name| File::open(world.path(name).join("file")).is_ok());
                Some((admitted, opened))
            });
            entered.wait();
            fs::rename(world.path("read"), world.path("kept")).expect("moved");
            fs::rename(world.path("other"), world.path("read")).expect("moved");
            moved.wait();
            if let Some((admitted, opened)) = sandboxed.join().expect("it does not panic") {
                assert_eq!(admitted, [false, true]);
                assert_eq!(opened, admitted, "what is foretold is what the kernel says");
            }
        });
    }

    #[test]
    fn switched_off_it_is_off_and_says_so() {
        let mut world = world();
        world.config.sandbox.landlock = LandlockMode::Off;
        let sandbox = Sandbox::enter(&world.config, None, None).expect("off");
        assert_eq!(sandbox.report().landlock_abi, 0);
        assert!(sandbox.degraded().is_some_and(|why| why.contains("[sandbox] landlock")));
        assert!(sandbox.admits(&export(&world.path("other"), true, true)));
        File::open(world.path("other/file")).expect("nothing is denied");
    }
}
