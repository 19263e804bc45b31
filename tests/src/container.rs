//! A machine of its own for a test: `systemd-nspawn --boot` on an overlay of this machine's root
//! file system, with a real systemd as its first process and no network. What is written there is
//! in memory and gone with it.
//!
//! ```text
//!   unshare --mount ─► tmpfs, overlay of / ─► systemd-nspawn ─► systemd (the leader) ─► units
//!                                                                  ▲
//!   Container::run ─────────────────── nsenter ────────────────────┘
//! ```
//!
//! All mounts are in a namespace of systemd-nspawn's, which ends with it; the groups of processes
//! are below one of our own, which [`Container`] removes. No service manager and no bus are needed
//! on the host, and none hears of it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Running, eventually, words};

/// Run with the directory and the files in which it has to write its number to be in our groups.
const SCRIPT: &str = r#"
set -e
directory=$1
shift
mount -t tmpfs -o mode=0755,size=2g piped-test "$directory"
# systemd-nspawn leaves a lock and a directory there.
mkdir -p /run/systemd
mount -t tmpfs -o mode=0755 piped-test /run/systemd
mkdir "$directory/upper" "$directory/work" "$directory/root"
mount -t overlay overlay "$directory/root" \
    -o "lowerdir=/,upperdir=$directory/upper,workdir=$directory/work"
cd "$directory/root"
# Where services are never started, packages are told so. Here they are.
rm -f usr/sbin/policy-rc.d
# What this machine starts is not part of the test.
rm -rf etc/systemd/system/*.wants
: >etc/fstab
for unit in console-getty.service systemd-logind.service systemd-networkd.service \
    systemd-resolved.service; do
    ln -sf /dev/null "etc/systemd/system/$unit"
done
for processes in "$@"; do echo $$ >"$processes"; done
exec systemd-nspawn --quiet --boot --directory="$directory/root" --machine=piped-test \
    --private-network \
    --rlimit=RLIMIT_MEMLOCK=infinity --rlimit=RLIMIT_NOFILE=524288 \
    --system-call-filter="landlock_create_ruleset landlock_add_rule landlock_restrict_self" \
    --register=no --keep-unit --link-journal=no --settings=no --tmpfs=/tmp --console=pipe
"#;

/// Everything that is needed on the host.
const TOOLS: [&str; 5] = ["systemd-nspawn", "unshare", "nsenter", "setpriv", "mount"];

/// A running container, which ends when dropped.
#[derive(Debug)]
pub struct Container {
    nspawn: Child,
    /// The container's first process; `None` until it is known.
    leader: Option<Pid>,
    /// The container's directory on the host; empty there, because this process does not see the
    /// mounts.
    directory: tempfile::TempDir,
    groups: Vec<PathBuf>,
}

impl Container {
    /// Boots one and waits until everything is started; `None`, with the reason printed, where that
    /// cannot be.
    ///
    /// # Panics
    /// If systemd starts and does not get to the end of it.
    #[must_use]
    pub fn boot() -> Option<Self> {
        let skip = |reason: &str| {
            eprintln!("skipped: no container: {reason}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skip("only root can boot one");
        }
        let missing = TOOLS.iter().find(|tool| !is_installed(tool));
        if let Some(tool) = missing {
            return skip(&format!("{tool} is not installed (package systemd-container)"));
        }
        let directory = tempfile::tempdir().expect("a directory");
        let groups = match groups() {
            Ok(groups) => groups,
            Err(error) => return skip(&format!("no group of processes can be made: {error}")),
        };
        let log = fs::File::create(directory.path().with_extension("log")).expect("a log");
        let mut command = Command::new("unshare");
        // Killed with the thread that started it, should that be killed.
        command.args(["--mount", "--propagation", "private", "setpriv", "--pdeathsig", "KILL"]);
        command.args(["sh", "-c", SCRIPT, "sh"]).arg(directory.path());
        command.args(groups.iter().map(|group| group.join("cgroup.procs")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let nspawn = command.spawn().expect("unshare starts");
        let mut container = Self { nspawn, leader: None, directory, groups };
        if !container.await_leader() {
            return skip(&format!("systemd-nspawn ended: {}", container.log()));
        }
        eventually("systemd has started everything", || {
            let output = container.run("root", &["systemctl", "is-system-running"]);
            let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            ["running", "degraded"].contains(&state.as_str()).then_some(())
        });
        Some(container)
    }

    /// A command in there, by this user and all its groups, with an environment of its own.
    #[must_use]
    pub fn command(&self, user: &str, command: &[&str]) -> Command {
        let mut enter = Command::new("nsenter");
        let leader = self.leader.expect("it is booted").as_raw_nonzero().to_string();
        enter.args(["--target", &leader, "--mount", "--uts", "--ipc", "--net", "--pid"]);
        enter.args(["--wd=/", "--"]).env_clear();
        enter.env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        // No pager, no questions.
        enter.env("SYSTEMD_PAGER", "").env("DEBIAN_FRONTEND", "noninteractive");
        enter.env("HOME", if user == "root" { "/root".into() } else { format!("/home/{user}") });
        if user != "root" {
            enter.args(["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"]);
        }
        enter.args(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        enter
    }

    /// What a command in there says.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn run(&self, user: &str, command: &[&str]) -> Output {
        self.command(user, command).output().expect("nsenter starts")
    }

    /// What a command of root's says on stdout.
    ///
    /// # Panics
    /// If it fails.
    pub fn succeed(&self, command: &[&str]) -> String {
        let output = self.run("root", command);
        assert!(output.status.success(), "{command:?}: {}\n{}", output.status, words(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// What a shell script of root's says on stdout.
    ///
    /// # Panics
    /// If it fails.
    pub fn shell(&self, script: &str) -> String {
        self.succeed(&["sh", "-ec", script])
    }

    /// Starts a command in there that goes on.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(&self, user: &str, command: &[&str]) -> Running {
        let mut command = self.command(user, command);
        Running(command.stdin(Stdio::piped()).spawn().expect("nsenter starts"))
    }

    /// Copies a file of the host into it, with its mode.
    ///
    /// # Panics
    /// If that cannot be.
    pub fn copy_in(&self, from: &Path, to: &str) {
        fs::copy(from, self.path(to)).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }

    /// Writes a file in it that everybody may read.
    ///
    /// # Panics
    /// If that cannot be.
    pub fn write(&self, to: &str, text: &str) {
        let path = self.path(to);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{to}: {error}"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("ours");
    }

    /// Where the host sees a path of its.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        let leader = self.leader.expect("it is booted").as_raw_nonzero();
        PathBuf::from(format!("/proc/{leader}/root{path}"))
    }

    /// Ends it, and looks for what it has left on the host.
    ///
    /// # Panics
    /// If there is something.
    pub fn end(self) {
        let (directory, groups) = (self.directory.path().to_owned(), self.groups.clone());
        drop(self);
        let mut left = String::new();
        let mounts = fs::read_to_string("/proc/self/mounts").expect("there");
        for mount in mounts.lines().filter(|line| line.contains(&*directory.to_string_lossy())) {
            let _ = writeln!(left, "mount {mount}");
        }
        for path in groups.iter().chain([&directory]).filter(|path| path.exists()) {
            let _ = writeln!(left, "{}", path.display());
        }
        assert!(left.is_empty(), "left on the host:\n{left}");
    }

    /// Waits until systemd runs in there; whether it does.
    fn await_leader(&mut self) -> bool {
        let nspawn = self.nspawn.id();
        eventually("systemd-nspawn has started systemd", || {
            if self.nspawn.try_wait().expect("our child").is_some() {
                return Some(false);
            }
            let children = fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children"));
            // Before it is systemd it is systemd-nspawn, and not yet where it shall be.
            let is_systemd = |child: &&str| {
                let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
                name == "systemd\n"
            };
            let leader = children.ok()?.split_whitespace().find(is_systemd)?.parse().ok()?;
            self.leader = Pid::from_raw(leader);
            Some(true)
        })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().with_extension("log")).unwrap_or_default()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if matches!(self.nspawn.try_wait(), Ok(None)) {
            // The end of a namespace's first process is that of all others. It is systemd-nspawn's
            // child, so that its number is nobody else's as long as that one has not ended.
            match self.leader {
                Some(leader) => {
                    let _ = kill_process(leader, Signal::KILL);
                }
                None => {
                    let _ = self.nspawn.kill();
                }
            }
        }
        let _ = self.nspawn.wait();
        let _ = fs::remove_file(self.directory.path().with_extension("log"));
        let remove = || self.groups.iter().all(|group| remove_group(group));
        // A second panic would be the end of all tests.
        if std::thread::panicking() {
            remove();
        } else {
            eventually("the container's processes are gone", || remove().then_some(()));
        }
    }
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(tool).exists())
}

/// Groups of processes for systemd-nspawn to be in: it makes others below its own, and leaves them.
fn groups() -> std::io::Result<Vec<PathBuf>> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("piped-test-{}-{number}", std::process::id());
    let root = Path::new("/sys/fs/cgroup");
    let mut groups = Vec::new();
    for line in fs::read_to_string("/proc/self/cgroup")?.lines() {
        // NUMBER:CONTROLLERS:PATH; systemd's are the second hierarchy, and a named one where there
        // are both.
        let [_, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { continue };
        let mount = match controllers {
            "" if root.join("unified").exists() => root.join("unified"),
            "" => root.to_owned(),
            "name=systemd" => root.join("systemd"),
            _ => continue,
        };
        let group = mount.join(path.trim_start_matches('/')).join(&name);
        fs::create_dir(&group)?;
        groups.push(group);
    }
    Ok(groups)
}

/// Removes a group with those below it; whether it is gone.
fn remove_group(group: &Path) -> bool {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
    !group.exists()
}
