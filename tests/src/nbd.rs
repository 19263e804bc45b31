//! nbdkit with the plugin in `nbd/`, and programs that nobody here wrote as its clients.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use crate::library::archive;
use crate::process::{Daemon, Running, command, eventually, now, words};

/// Whether tests do as much as an evening has room for (`PIPED_NBD_LONG=1`), and not a minute.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("PIPED_NBD_LONG").is_some()
}

/// The longest that one program may take.
fn longest() -> Duration {
    Duration::from_secs(if is_long() { 7200 } else { 300 })
}

/// Whether all these programs can be started; if not, it is printed that the test is skipped.
#[must_use]
pub fn are_there(programs: &[&str]) -> bool {
    let is_there = |program: &&&str| {
        std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|folder| folder.join(program).exists())
        })
    };
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(missing) = missing {
        eprintln!("skipped: {missing} is not installed");
    }
    missing.is_none()
}

/// The plugin, beside `libpiped.a`: once for all tests.
fn compiled() -> &'static Path {
    static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        let plugin = archive().with_file_name("nbdkit-piped-plugin.so");
        let mut build = command(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../nbd/build"));
        build.env("CFLAGS", "-Wall -Wextra -Werror -pedantic").arg(&plugin).arg(archive());
        let output = build.output().expect("sh starts");
        assert!(output.status.success(), "{}", words(&output));
        plugin
    })
}

/// The plugin, and the test's directory for its sockets and logs.
#[derive(Debug)]
pub struct Plugin {
    path: &'static Path,
    directory: PathBuf,
}

impl Plugin {
    /// Compiles it; `None`, with the reason printed, without nbdkit, its header or a compiler.
    ///
    /// # Panics
    /// If it does not compile.
    #[must_use]
    pub fn build(directory: &Path) -> Option<Self> {
        if !are_there(&["nbdkit", "cc"]) {
            return None;
        }
        if !Path::new("/usr/include/nbdkit-plugin.h").exists() {
            eprintln!("skipped: nbdkit's header is not installed (nbdkit-plugin-dev)");
            return None;
        }
        Some(Self { path: compiled(), directory: directory.to_owned() })
    }

    /// nbdkit with the plugin, a daemon's socket and these parameters, to be started.
    #[must_use]
    pub fn nbdkit(&self, daemon: &Daemon, parameters: &[&str]) -> Command {
        let mut nbdkit = command(Path::new("nbdkit"));
        let socket = format!("socket={}", daemon.client_socket().display());
        nbdkit.args(["--foreground", "--exit-with-parent"]);
        nbdkit.arg(self.path).arg(socket).args(parameters);
        nbdkit
    }

    /// Serves on a socket of this name, and waits until it does.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn serve(&self, daemon: &Daemon, name: &str, parameters: &[&str]) -> Served {
        let socket = self.directory.join(format!("{name}.nbd"));
        let log = self.directory.join(format!("{name}.nbdkit"));
        let _ = std::fs::remove_file(&socket);
        let mut nbdkit = self.nbdkit(daemon, parameters);
        nbdkit.arg("--unix").arg(&socket).arg("--verbose");
        nbdkit.stderr(std::fs::File::create(&log).expect("a log"));
        let process = Running(nbdkit.spawn().expect("started"));
        let mut served = Served { process, socket, log };
        eventually("nbdkit listens", || {
            if let Some(status) = served.process.0.try_wait().expect("our child") {
                panic!("nbdkit did not start: {status}\n{}", served.log());
            }
            served.socket.exists().then_some(())
        });
        served
    }
}

/// An nbdkit that runs; killed when dropped.
#[derive(Debug)]
pub struct Served {
    /// The process of nbdkit.
    pub process: Running,
    socket: PathBuf,
    log: PathBuf,
}

impl Served {
    /// Address of the device, for an export of that name.
    #[must_use]
    pub fn uri_of(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket.display())
    }

    /// Address of the device.
    #[must_use]
    pub fn uri(&self) -> String {
        self.uri_of("")
    }

    /// What it and the plugin have said.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Runs a program to its end.
///
/// # Panics
/// If it cannot be started, or does not end.
#[must_use]
pub fn run(program: &mut Command) -> Output {
    use std::io::Read as _;
    let mut child = program.spawn().unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let read = |from: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            from.map(|mut from| from.read_to_end(&mut all));
            all
        })
    };
    let stdout = read(child.stdout.take().map(|it| Box::new(it) as _));
    let stderr = read(child.stderr.take().map(|it| Box::new(it) as _));
    let mut child = Running(child);
    let end = now() + longest();
    let status = loop {
        if now() >= end {
            panic!("{program:?} does not end");
        }
        if let Some(status) = child.0.try_wait().expect("our child") {
            break status;
        }
        crate::process::pause();
    };
    let all = |it: std::thread::JoinHandle<Vec<u8>>| it.join().expect("it reads");
    Output { status, stdout: all(stdout), stderr: all(stderr) }
}

/// Runs a program that has to succeed, with these arguments; what it printed.
///
/// # Panics
/// If it fails.
#[must_use]
pub fn succeed(program: &str, arguments: &[&str]) -> String {
    let output = run(command(Path::new(program)).args(arguments));
    assert!(output.status.success(), "{program} {arguments:?}: {}", words(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
