//! Where a document's commands run: this node and another, `beta`, on one machine that is made for
//! them and ends with them.
//!
//! Namespaces of mounts, processes, network and names: `/run`, `/etc/piped`, `/var/lib/piped`,
//! `/usr/local` and `/tmp` are the world's own, `/srv` is a directory on the disk of the build, and
//! the project lies at [`PROJECT`], where what is written goes to memory. When its first process
//! ends, the kernel ends all others.
//!
//! What differs from a reader's machine: programs are of the build that runs the test, also where a
//! path says `target/release`, and `cargo` says yes to what that build has done.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use super::rules::{How, Typed};
use crate::process::{Programs, Running, command, eventually, pattern, words};

/// The project, inside: where a reader of the README is.
pub const PROJECT: &str = "/mnt/piped";

/// Files and settings of a world beside the documents' own.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The configuration of this node.
    pub here: String,
    /// The configuration of the node beta.
    pub beta: String,
    /// Whether this node's daemon runs before the first command; otherwise a command starts it.
    pub started: bool,
    /// Files in the project's directory: name and content.
    pub files: Vec<(String, String)>,
}

/// Two nodes in namespaces, where a document's commands run.
#[derive(Debug)]
pub struct World {
    first: Running,
    /// Process id of the namespaces' first process.
    pid: u32,
    /// On the disk: `/srv`, and what those that run beside print.
    disk: TempDir,
    beside: Vec<Running>,
}

/// The namespaces' first process: puts all in its place, says so, and lives until it is killed.
const FIRST: &str = r#"
set -eu
world=$DISK/world
mkdir "$world"
mount -t tmpfs tmpfs "$world"
over() { # DIRECTORY NAME [AT]: what is written there goes to memory
    mkdir -p "$world/upper/$2" "$world/work/$2" "${3:-$1}"
    mount -t overlay overlay "${3:-$1}" \
        -o "lowerdir=$1,upperdir=$world/upper/$2,workdir=$world/work/$2"
}
over "$PROJECT" project "$world/piped"
over /etc etc
over /usr/local local
mkdir -p "$world/piped/target/release" "$world/bin" /etc/piped /etc/beta
cp -r "$DISK/etc/." /etc/
cp -r "$DISK/project/." "$world/piped/"
cp "$DISK/cargo" "$world/bin/cargo"
mount --bind "$BUILD" "$world/piped/target/release"
mkdir "$world/disk"
mount --bind "$DISK" "$world/disk"
mount --bind "$DISK/srv" /srv
mkdir "$DISK/state"
mount --rbind "$world" /mnt
world=/mnt
for place in /run /var/lib /tmp; do mount -t tmpfs -o mode=1777 tmpfs $place; done
mkdir -p /run/piped /run/beta /var/lib/piped
mount --bind "$world/disk/state" /var/lib/piped
hostname alpha
ip link set lo up
echo ready
exec sleep infinity
"#;

/// Says yes to what the build has done that runs the test, and runs its programs.
const CARGO: &str = r#"#!/bin/bash
set -euo pipefail
verb=$1; shift
program=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        -p | --package)
            grep -qs "^name = \"$2\"" /mnt/piped/*/Cargo.toml /mnt/piped/*/*/Cargo.toml || {
                echo "no package $2" >&2; exit 101; }
            program=$2; shift ;;
        --example | --bin) program=$2; shift ;;
    esac
    shift
done
case $verb in
    build | test) ;;
    run) shift; exec "/mnt/piped/target/release/$program" "$@" ;;
    *) echo "no command $verb" >&2; exit 101 ;;
esac
"#;

/// Others' work, while a document's commands look on: reads of the peer's file.
const TRAFFIC: &str = "while :; do pipectl bench read --peer beta --export data --path blocks.bin \
                       --size 256KiB --seconds 0.2 || true; sleep 1; done";

const BETA: &str = "exec piped --config /etc/beta/piped.toml --set node.name=beta \
                    --set client.socket=/run/beta/client.sock \
                    --set admin.socket=/run/beta/admin.sock";

/// How many seconds a lasting command may run before it is interrupted; the next entry applies if
/// it has printed nothing by then.
const INTERRUPTED_AFTER: [&str; 3] = ["3", "15", "60"];

impl World {
    /// Makes one; `None`, with the reason printed, where there can be none. `tag` is for the disk's
    /// directory.
    ///
    /// # Panics
    /// If what is there does not start.
    #[must_use]
    pub fn start(programs: &Programs, project: &Path, plan: &Plan) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "skipped: a machine for commands to run on is made of namespaces, which needs root"
            );
            return None;
        }
        let build = programs.piped.parent().expect("in a directory");
        let disk = tempfile::tempdir_in(build).expect("a directory on the disk of the build");
        let write = |name: &str, content: &[u8]| {
            let path = disk.path().join(name);
            fs::create_dir_all(path.parent().expect("below the disk")).expect("made");
            fs::write(path, content).expect("written");
        };
        write("etc/piped/piped.toml", plan.here.as_bytes());
        write("etc/beta/piped.toml", plan.beta.as_bytes());
        write("cargo", CARGO.as_bytes());
        for name in ["data/blocks.bin", "data/blocks", "data/a", "a", "scratch/empty", "blocks"] {
            write(&format!("srv/{name}"), &pattern(4 << 20));
        }
        write("project/.a", b"");
        for (name, content) in &plan.files {
            write(&format!("project/{name}"), content.as_bytes());
        }
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(disk.path().join("cargo"), executable).expect("ours");

        let mut first = command(Path::new("unshare"));
        first.args([
            "--mount",
            "--uts",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        first.args(["--propagation", "private", "bash", "-c", FIRST]);
        first.env("DISK", disk.path()).env("PROJECT", project).env("BUILD", build);
        let out = disk.path().join("first");
        let file = fs::File::create(&out).expect("written");
        first.stdout(file.try_clone().expect("ours")).stderr(file);
        let mut first = Running(first.spawn().expect("unshare of util-linux"));
        let said = || fs::read_to_string(&out).unwrap_or_default();
        let ready = eventually("the namespaces are there", || {
            if first.0.try_wait().expect("our child").is_some() {
                return Some(false);
            }
            said().contains("ready").then_some(true)
        });
        if !ready {
            eprintln!("skipped: no namespaces for commands to run in: {}", said());
            return None;
        }
        let unshare = first.0.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        let pid = children.ok().and_then(|it| it.trim().parse().ok()).expect("its one child");
        let mut world = Self { first, pid, disk, beside: Vec::new() };
        world.beside(BETA, true);
        if plan.started {
            world.beside("exec piped --config /etc/piped/piped.toml", false);
            world.until_it_serves();
        }
        world.beside(TRAFFIC, false);
        Some(world)
    }

    /// `bash` inside, to be started.
    fn shell(&self, script: &str, on_beta: bool) -> Command {
        let mut shell = command(Path::new("nsenter"));
        shell.env_clear().args([
            "--target",
            &self.pid.to_string(),
            "--mount",
            "--uts",
            "--net",
            "--pid",
        ]);
        shell.args(["--", "env", "-C", PROJECT, "bash", "-euo", "pipefail", "-c", script]);
        let path = "/mnt/bin:/mnt/piped/target/release:/usr/local/sbin:/usr/local/bin:/usr/sbin:\
                    /usr/bin:/sbin:/bin";
        shell.env("PATH", path).env("HOME", "/root").env("LANG", "C.UTF-8").env("USER", "root");
        // A layer above the documents' files: daemons of many tests on few CPUs stay on none.
        shell.env("PIPED_SHARDS__PIN", "false").env("PIPED_PLANNER__ALLOW_DIALS", "true");
        shell.env("PIPED_LIMITS__GLOBAL__STAGING", "16MiB");
        if on_beta {
            shell.env("PIPED_CLIENT_SOCKET", "/run/beta/client.sock");
            shell.env("PIPED_ADMIN_SOCKET", "/run/beta/admin.sock");
        }
        shell
    }

    /// Runs something of a document, as printed.
    ///
    /// # Errors
    /// What went wrong, and what it printed.
    pub fn run(&mut self, typed: &Typed, fails: i32) -> Result<String, String> {
        match typed.how {
            How::ToItsEnd => {
                let output = self.shell(&typed.text, typed.on_beta).output().expect("nsenter");
                if output.status.code() == Some(fails) {
                    return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
                }
                Err(format!("{}, and not {fails}:\n{}", output.status, words(&output)))
            }
            How::UntilInterrupted { code } => {
                let mut last = None;
                for seconds in INTERRUPTED_AFTER {
                    let output = self.interrupted(typed, seconds);
                    let ended_well = [Some(0), Some(code)].contains(&output.status.code());
                    if ended_well && !words(&output).is_empty() {
                        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
                    }
                    last = Some(output);
                }
                let output = last.expect("some");
                Err(format!(
                    "{}, interrupted, after it printed:\n{}",
                    output.status,
                    words(&output)
                ))
            }
            How::Beside => {
                let number = self.beside.len();
                self.beside(&typed.text, typed.on_beta);
                eventually("it says something", || (!self.said(number).is_empty()).then_some(()));
                if typed.text.starts_with("piped ") {
                    self.until_it_serves();
                }
                Ok(self.said(number))
            }
        }
    }

    fn interrupted(&self, typed: &Typed, seconds: &str) -> Output {
        // The program alone, once: a second Ctrl-C means impatience to some.
        let script = format!(
            "exec timeout --foreground --preserve-status --signal=INT {seconds} \
             bash -c \"exec $TYPED\""
        );
        let mut shell = self.shell(&script, typed.on_beta);
        shell.env("TYPED", &typed.text).output().expect("nsenter")
    }

    fn beside(&mut self, script: &str, on_beta: bool) {
        let mut shell = self.shell(script, on_beta);
        let file = fs::File::create(self.file_of(self.beside.len())).expect("written");
        shell.stdout(file.try_clone().expect("ours")).stderr(file).process_group(0);
        self.beside.push(Running(shell.spawn().expect("nsenter")));
    }

    fn file_of(&self, number: usize) -> PathBuf {
        self.disk.path().join(format!("beside.{number}"))
    }

    /// What that which runs beside has printed.
    fn said(&self, number: usize) -> String {
        fs::read_to_string(self.file_of(number)).unwrap_or_default()
    }

    /// What everything has printed that runs beside, for messages.
    #[must_use]
    pub fn logs(&self) -> String {
        (0..self.beside.len()).map(|number| self.said(number)).collect()
    }

    /// Waits until this node's daemon answers and its lanes are up, and something was read through
    /// them.
    fn until_it_serves(&self) {
        let asked = |script: &str| {
            let output = self.shell(script, false).output().expect("nsenter");
            output.status.success().then_some(output.stdout)
        };
        eventually(&format!("it serves; it said: {}", self.logs()), || {
            let status: Value = serde_json::from_slice(&asked("pipectl status --json")?).ok()?;
            let peers = status["shards"][0]["peers"].as_array()?;
            let up = |peer: &Value| {
                let lanes = peer["lanes"].as_array().expect("a list");
                lanes.iter().all(|lane| lane["up"] == true)
            };
            peers.iter().all(up).then_some(())
        });
        let read = "pipectl bench read --peer beta --export data --path blocks.bin --seconds 0.1";
        eventually("something is read", || asked(read));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The kernel ends the rest; they are gone when it is, and the disk's directory is nobody's.
        let _ = self.first.0.kill();
        let gone = PathBuf::from(format!("/proc/{}", self.pid));
        eventually("all have ended", || (!gone.exists()).then_some(()));
    }
}
