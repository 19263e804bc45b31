//! Real programs: daemons with their files in a test's directory, `pipectl`, and patience.
//!
//! They are those that cargo built beside the test; where they are missing a test is skipped and
//! says so.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than anything takes; only a test that fails waits for it.
pub const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(5);

/// Asks again and again until there is an answer.
///
/// # Panics
/// If there is none in [`PATIENCE`].
pub fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let end = now() + PATIENCE;
    while now() < end {
        if let Some(value) = poll() {
            return value;
        }
        pause();
    }
    panic!("not in {PATIENCE:?}: {what}");
}

/// The clock of these tests.
#[expect(clippy::disallowed_methods, reason = "the one clock of these tests")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the one pause of these tests")]
/// A moment passes, as between two looks at the same thing.
pub fn pause() {
    std::thread::sleep(STEP);
}

/// The programs under test.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Path of the daemon `piped`.
    pub piped: PathBuf,
    /// Path of the control program `pipectl`.
    pub pipectl: PathBuf,
}

impl Programs {
    /// The programs beside this test's own folder; `None`, with the reason printed, if they are not
    /// there.
    #[must_use]
    pub fn find() -> Option<Self> {
        let beside = |name: &str| {
            let test = std::env::current_exe().ok()?;
            Some(test.parent()?.parent()?.join(name)).filter(|path| path.exists())
        };
        let found = beside("piped").zip(beside("pipectl"));
        if found.is_none() {
            eprintln!("skipped: pipectl and piped are not built; run `cargo test --workspace`");
        }
        found.map(|(piped, pipectl)| Self { piped, pipectl })
    }

    /// The daemon, to be started.
    #[must_use]
    pub fn piped(&self) -> Command {
        command(&self.piped)
    }

    /// `pipectl`, to be started.
    #[must_use]
    pub fn pipectl(&self) -> Command {
        command(&self.pipectl)
    }
}

/// Processes with a path on their command lines, such as daemons whose files are below it.
///
/// # Panics
/// If there is no `/proc`.
#[must_use]
pub fn processes_below(path: &Path) -> Vec<u32> {
    let path = path.as_os_str().as_encoded_bytes();
    let processes = fs::read_dir("/proc").expect("there");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_below = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline"));
        line.is_ok_and(|line| line.windows(path.len()).any(|part| part == path))
    };
    pids.filter(is_below).collect()
}

/// A program that inherits nothing of piped's from whoever runs the tests.
#[must_use]
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("NOTIFY_SOCKET").env_remove("COLUMNS").env_remove("STATE_DIRECTORY");
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PIPED_") {
            command.env_remove(name);
        }
    }
    command
}

/// This test program once more, for one of its ignored tests: a part of the one that runs, which
/// needs a process of its own.
///
/// # Panics
/// If this program's path is not known.
#[must_use]
pub fn itself(test: &str) -> Command {
    let mut command = command(&std::env::current_exe().expect("this test"));
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

/// stdout and stderr of a program that ended, for messages and searches.
#[must_use]
pub fn words(output: &Output) -> String {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
}

/// A started program; killed and awaited when dropped.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Sends a signal.
    ///
    /// # Panics
    /// If it was awaited already.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("not awaited yet");
    }

    /// Stops it (SIGSTOP), and waits until none of its threads runs any more: one that is on
    /// another CPU still does for a moment.
    ///
    /// # Panics
    /// If it was awaited already, or does not stop.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.0.id());
        let is_stopped = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state follows the name, which is in parentheses and may have anything in it.
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        };
        eventually("all threads are stopped", || {
            let mut threads = fs::read_dir(&threads).expect("it lives");
            threads.all(|thread| thread.is_ok_and(is_stopped)).then_some(())
        });
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end.
    pub fn exit(&mut self) -> ExitStatus {
        eventually("the program ends", || self.0.try_wait().expect("our child"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon. What it needs is `NAME.*` in a directory, so it can be started there again.
#[derive(Debug)]
pub struct Daemon {
    /// The daemon's process, killed when dropped.
    pub process: Running,
    programs: Programs,
    directory: PathBuf,
    name: String,
}

impl Daemon {
    /// Writes the configuration, starts the daemon and waits until it serves. `more` is TOML:
    /// tables that are not `[node]`, `[client]`, `[admin]`, `[limits.global]` or `[shards]`.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(programs: &Programs, directory: &Path, name: &str, more: &str) -> Self {
        Self::start_by(programs.piped(), programs, directory, name, more)
    }

    /// [`Self::start`] by a command that runs the daemon in its own way.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_by(
        mut command: Command,
        programs: &Programs,
        directory: &Path,
        name: &str,
        more: &str,
    ) -> Self {
        let in_directory = |end: &str| directory.join(format!("{name}.{end}"));
        let config = in_directory("toml");
        fs::write(&config, configuration(directory, name, more)).expect("written");
        let log = File::create(in_directory("log")).expect("a log");
        command.arg("--config").arg(config).stdout(Stdio::null()).stderr(log);
        let process = Running(command.spawn().expect("started"));
        let (programs, directory) = (programs.clone(), directory.to_owned());
        let mut daemon = Self { process, programs, directory, name: name.to_owned() };
        eventually("the daemon opens its doors", || {
            if let Some(status) = daemon.process.0.try_wait().expect("our child") {
                panic!("{name} did not start: {status}\n{}", daemon.log());
            }
            UnixStream::connect(daemon.admin_socket()).ok()
        });
        daemon
    }

    /// Starts it again, after its end, with the same configuration.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self, more: &str) {
        self.restart_by(self.programs.piped(), more);
    }

    /// [`Self::restart`] by a command that runs the daemon in its own way.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_by(&mut self, command: Command, more: &str) {
        self.process.exit();
        let (programs, directory) = (self.programs.clone(), self.directory.clone());
        *self = Self::start_by(command, &programs, &directory, &self.name.clone(), more);
    }

    /// Replaces a part of the configuration and has it loaded; the answer.
    ///
    /// # Panics
    /// If there is no such part, or the daemon refuses the new one.
    pub fn reload(&self, from: &str, to: &str) -> Value {
        let file = self.directory.join(format!("{}.toml", self.name));
        let text = fs::read_to_string(&file).expect("there");
        assert!(text.contains(from), "{from} in {text}");
        fs::write(file, text.replacen(from, to, 1)).expect("written");
        self.json(&["config", "reload"])
    }

    /// The socket that clients connect to.
    #[must_use]
    pub fn client_socket(&self) -> PathBuf {
        self.directory.join(format!("{}.client", self.name))
    }

    /// The socket that `pipectl` connects to.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.directory.join(format!("{}.admin", self.name))
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join(format!("{}.log", self.name))).unwrap_or_default()
    }

    /// `pipectl` with this daemon's sockets.
    #[must_use]
    pub fn pipectl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.programs.pipectl();
        command.env("PIPED_ADMIN_SOCKET", self.admin_socket());
        command.env("PIPED_CLIENT_SOCKET", self.client_socket());
        command.args(arguments);
        command
    }

    /// What `pipectl status --json` says.
    ///
    /// # Panics
    /// If it says nothing.
    #[must_use]
    pub fn status(&self) -> Value {
        self.json(&["status"])
    }

    /// What `pipectl` says with `--json`.
    ///
    /// # Panics
    /// If it fails, or says something else.
    #[must_use]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.pipectl(arguments.iter().chain(&["--json"])).output();
        let output = output.expect("pipectl starts");
        assert!(output.status.success(), "{arguments:?}: {}\n{}", words(&output), self.log());
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// A number that `pipectl status --json` says of each shard, of all shards together.
    ///
    /// # Panics
    /// If it does not say it.
    #[must_use]
    pub fn number(&self, what: &str) -> u64 {
        self.of_all_shards(what, |shard| {
            let number =
                if shard[what].is_null() { &shard["counters"][what] } else { &shard[what] };
            number.as_u64()
        })
    }

    /// Staging that requests have on all shards, in bytes: not what lanes have for themselves.
    ///
    /// # Panics
    /// If it does not say it.
    #[must_use]
    pub fn staged(&self) -> u64 {
        self.of_all_shards("staging", |shard| {
            let number = |what: &str| shard[what].as_u64();
            Some(number("staging_used_bytes")? - number("staging_lanes_bytes")?)
        })
    }

    fn of_all_shards(&self, what: &str, of: impl Fn(&Value) -> Option<u64>) -> u64 {
        let status = self.status();
        let shards = status["shards"].as_array().filter(|shards| !shards.is_empty());
        let sum = shards.and_then(|shards| shards.iter().map(of).sum());
        sum.unwrap_or_else(|| panic!("no {what} in {status}"))
    }

    /// Waits until nothing is under way: a peer has its answer a moment before that is noted here.
    ///
    /// # Panics
    /// If something stays.
    pub fn await_rest(&self) {
        eventually("nothing is under way", || {
            (self.number("serves") == 0 && self.number("transfers") == 0).then_some(())
        });
    }

    /// Waits until all lanes to its peers are up.
    ///
    /// # Panics
    /// If they do not come up.
    pub fn await_lanes(&self) {
        eventually("the lanes are up", || {
            let status = self.status();
            let lanes = status["shards"][0]["peers"][0]["lanes"].as_array()?;
            lanes.iter().all(|lane| lane["up"] == true).then_some(())
        });
    }
}

fn configuration(directory: &Path, name: &str, more: &str) -> String {
    let directory = directory.display();
    // Many daemons on few CPUs: none of them shall stay on one.
    format!(
        "[node]\nname = \"{name}\"\n[client]\nsocket = \"{directory}/{name}.client\"\n\
         [admin]\nsocket = \"{directory}/{name}.admin\"\n[limits.global]\nstaging = \"4MiB\"\n\
         [shards]\npin = false\n{more}"
    )
}

/// An address of loopback that nobody listens on, of a host of its own: daemons of other tests that
/// dial theirs again and again never meet this one, as they may where only ports differ.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    static HOSTS: AtomicU8 = AtomicU8::new(2);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, high, low, HOSTS.fetch_add(1, Ordering::Relaxed));
    let listener = TcpListener::bind((host, 0)).expect("a port");
    listener.local_addr().expect("bound")
}

/// Bytes of which no two blocks are alike.
#[must_use]
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 4096 * 7 + at / 65_536) as u8).collect()
}

/// Two daemons: `alpha` asks `beta`, which offers the directory `root` as `data`, with the file
/// `blocks` in it.
#[derive(Debug)]
pub struct Pair {
    /// The one that asks.
    pub alpha: Daemon,
    /// The one that serves.
    pub beta: Daemon,
    /// TOML of `alpha` and `beta`, for starting them again.
    pub settings: [String; 2],
}

/// Length of the file `blocks`.
pub const BLOCKS_BYTES: usize = 4 << 20;

/// Takes a file out of the page cache: what is read next comes from the disk.
///
/// # Panics
/// If the file cannot be opened and synced.
pub fn drop_cached(path: &Path) {
    let file = File::open(path).expect("opened");
    file.sync_all().expect("synced");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
}

impl Pair {
    /// Starts both and waits for the lanes.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start(programs: &Programs, directory: &Path) -> Self {
        Self::start_with(programs, directory, "")
    }

    /// [`Self::start`], with further tables of `alpha`.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start_with(programs: &Programs, directory: &Path, more: &str) -> Self {
        let (root, address) = (directory.join("root"), free_address());
        fs::create_dir(&root).expect("made");
        fs::write(root.join("blocks"), pattern(BLOCKS_BYTES)).expect("written");
        drop_cached(&root.join("blocks"));
        let settings = [
            format!("[peers.beta]\naddress = \"{address}\"\n{more}"),
            format!(
                "[listen]\naddress = \"{address}\"\n[exports.data]\npath = \"{}\"\nwrite = true\n",
                root.display()
            ),
        ];
        let beta = Daemon::start(programs, directory, "beta", &settings[1]);
        let alpha = Daemon::start(programs, directory, "alpha", &settings[0]);
        alpha.await_lanes();
        Self { alpha, beta, settings }
    }
}

/// Two daemons, `alpha` and `beta`, that call each other.
///
/// # Panics
/// If they do not start.
#[must_use]
pub fn mutual(programs: &Programs, directory: &Path) -> [Daemon; 2] {
    let addresses = [free_address(), free_address()];
    let start = |name: &str, own: usize, other: &str| {
        let (listen, peer) = (addresses[own], addresses[1 - own]);
        let more =
            format!("[listen]\naddress = \"{listen}\"\n[peers.{other}]\naddress = \"{peer}\"\n");
        Daemon::start(programs, directory, name, &more)
    };
    let (beta, alpha) = (start("beta", 1, "alpha"), start("alpha", 0, "beta"));
    for daemon in [&alpha, &beta] {
        daemon.await_lanes();
    }
    [alpha, beta]
}
