//! The program `piped` as the service manager sees it: arguments, signals, exit codes.

mod support;

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal};
use support::eventually;

fn piped() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_piped"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("PIPED_CONFIG").env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
    command
}

/// A running program with its sockets in `dir`; ended when dropped.
struct Program(Child);

impl Program {
    fn start(dir: &std::path::Path, notify: Option<&std::path::Path>) -> Self {
        Self::start_by(piped(), dir, notify)
    }

    /// What it logs is in `log`.
    fn start_by(
        mut command: Command,
        dir: &std::path::Path,
        notify: Option<&std::path::Path>,
    ) -> Self {
        command.stdout(Stdio::null());
        if let Some(notify) = notify {
            command.env("NOTIFY_SOCKET", notify);
        }
        Self::start_passing(command, dir)
    }

    /// Its stdin and stdout are the command's.
    fn start_passing(mut command: Command, dir: &std::path::Path) -> Self {
        let config = dir.join("piped.toml");
        let text = format!(
            "[client]\nsocket = \"{0}/client.sock\"\n[admin]\nsocket = \"{0}/admin.sock\"\n\
             [limits.global]\nstaging = \"4MiB\"\n[shards]\npin = false\n",
            dir.display()
        );
        std::fs::write(&config, text).expect("written");
        command.arg("--config").arg(config);
        let log = std::fs::File::create(dir.join("log")).expect("a log");
        let child = command.stderr(log).spawn().expect("started");
        let program = Self(child);
        eventually("the daemon opens its doors", || {
            UnixStream::connect(dir.join("admin.sock")).ok()
        });
        program
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    fn exit_code(&mut self) -> i32 {
        let status = eventually("it ends", || self.0.try_wait().expect("our child"));
        status.code().expect("it ends by itself")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn both_signals_end_it_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut program = Program::start(dir.path(), None);
        program.signal(signal);
        assert_eq!(program.exit_code(), 0, "{signal:?}");
        assert!(!dir.path().join("client.sock").exists());
        assert!(!dir.path().join("admin.sock").exists());
    }
}

#[test]
fn the_service_manager_is_told_when_it_is_ready_and_when_it_stops() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut program = Program::start(dir.path(), Some(&path));
    assert!(told(&socket).contains("READY=1"));
    program.signal(Signal::TERM);
    assert!(told(&socket).contains("STOPPING=1"));
    assert_eq!(program.exit_code(), 0);
}

/// The next message to the service manager.
fn told(socket: &UnixDatagram) -> String {
    let mut message = [0; 1024];
    let length = socket.recv(&mut message).expect("a message");
    String::from_utf8_lossy(&message[..length]).into_owned()
}

#[test]
fn sighup_reloads_and_the_service_manager_follows() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut program = Program::start(dir.path(), Some(&path));
    assert!(told(&socket).contains("READY=1"));
    let file = dir.path().join("piped.toml");
    let good = std::fs::read_to_string(&file).expect("there");
    let log = || std::fs::read_to_string(dir.path().join("log")).expect("there");
    let reload = || {
        program.signal(Signal::HUP);
        let first = told(&socket);
        assert!(first.contains("RELOADING=1\nMONOTONIC_USEC="), "{first}");
        told(&socket)
    };
    std::fs::write(&file, format!("{good}[log]\nlevle = \"debug\"\n")).expect("written");
    let told_now = reload();
    assert!(told_now.contains("READY=1") && told_now.contains("refused"), "{told_now}");
    assert!(log().contains("piped.toml:10: there is no key `log.levle`"), "{}", log());
    assert!(!log().contains("DEBUG"), "{}", log());
    std::fs::write(&file, format!("{good}[log]\nlevel = \"debug\"\n")).expect("written");
    let told_now = reload();
    assert!(told_now.contains("READY=1") && !told_now.contains("refused"), "{told_now}");
    // Each connection to the admin socket is a line at that level.
    eventually("the level of the log follows", || {
        let mut stream = UnixStream::connect(dir.path().join("admin.sock")).expect("it listens");
        stream
            .write_all(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        log().contains("DEBUG").then_some(())
    });
    program.signal(Signal::TERM);
    assert!(told(&socket).contains("STOPPING=1"));
    assert_eq!(program.exit_code(), 0);
}

#[test]
fn the_watchdog_is_answered_only_while_every_shard_turns() {
    const INTERVAL_US: &str = "400000";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut command = piped();
    command.env("WATCHDOG_USEC", INTERVAL_US).args(["--set", "shards.count=2"]);
    command.args(["--set", "limits.global.staging=8MiB"]);
    let program = Program::start_by(command, dir.path(), Some(&path));
    assert!(told(&socket).contains("READY=1"));
    for _ in 0..3 {
        assert_eq!(told(&socket), "WATCHDOG=1\n");
    }
    // One thread of many is stopped, as if it hung.
    let shard = thread_of(&program.0, "piped-shard-1");
    if let Err(error) = ptrace::seize(shard, ptrace::Options::empty()) {
        return eprintln!("skipped: a thread cannot be traced here ({error})");
    }
    ptrace::interrupt(shard).expect("seized");
    waitpid(shard, Some(WaitPidFlag::__WALL)).expect("it stops");
    let silent = || {
        let log = std::fs::read_to_string(dir.path().join("log")).expect("there");
        log.lines().filter(|line| line.contains("the shard does not turn")).count()
    };
    let waited = |count| eventually("it is found out", || (silent() >= count).then_some(()));
    waited(1);
    socket.set_nonblocking(true).expect("an option");
    // What was said before it stopped.
    while socket.recv(&mut [0; 256]).is_ok() {}
    waited(4);
    assert!(socket.recv(&mut [0; 256]).is_err(), "told that all is well while a shard hangs");
    socket.set_nonblocking(false).expect("an option");
    ptrace::detach(shard, None).expect("stopped");
    assert_eq!(told(&socket), "WATCHDOG=1\n", "it goes on");
}

/// A thread by its name.
fn thread_of(child: &Child, name: &str) -> nix::unistd::Pid {
    let threads = std::fs::read_dir(format!("/proc/{}/task", child.id())).expect("it lives");
    let named = threads.flatten().find(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let number = named.and_then(|thread| thread.file_name().to_str()?.parse().ok());
    nix::unistd::Pid::from_raw(number.unwrap_or_else(|| panic!("no thread {name}")))
}

/// piped, with these sockets as the service manager passes them.
fn activated(sockets: [&OwnedFd; 2]) -> Command {
    let mut command = Command::new("sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" \"$@\" 3<&0 4<&1 </dev/null >/dev/null";
    command.args(["-c", script, env!("CARGO_BIN_EXE_piped")]).stderr(Stdio::piped());
    let [first, second] = sockets.map(|socket| socket.try_clone().expect("cloned"));
    command.stdin(first).stdout(second);
    command.env_remove("PIPED_CONFIG").env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
    command
}

#[test]
fn who_connects_to_a_passed_socket_while_the_daemon_is_gone_is_served_by_the_next_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let clients = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
    let clients = clients.expect("made");
    let address = SocketAddrUnix::new(at("client.sock")).expect("short");
    rustix::net::bind(&clients, &address).expect("bound");
    rustix::net::listen(&clients, 8).expect("it listens");
    let operators: OwnedFd = UnixListener::bind(at("admin.sock")).expect("bound").into();
    let start = || Program::start_passing(activated([&clients, &operators]), dir.path());
    let ask = || {
        let mut stream = UnixStream::connect(at("admin.sock")).expect("it listens all the time");
        let request = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("it waits to be read");
        stream
    };
    let answer = |mut stream: UnixStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    let first = start();
    answer(ask());
    // Its own files would be open to it alone: nobody is admitted by the configuration.
    let mode = std::fs::metadata(at("client.sock")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    first.signal(Signal::KILL);
    drop(first);
    let waiting = ask();
    let client = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
    rustix::net::connect(client.expect("made"), &address).expect("it waits as well");
    let mut second = start();
    answer(waiting);
    second.signal(Signal::TERM);
    assert_eq!(second.exit_code(), 0);
    for name in ["client.sock", "admin.sock"] {
        assert!(at(name).exists(), "{name} is the service manager's");
    }
    drop(ask());
    // The other way round, as if somebody had confused the two lines of the unit.
    std::fs::remove_file(at("client.sock")).expect("there");
    let wrong: OwnedFd = UnixListener::bind(at("client.sock")).expect("bound").into();
    let mut command = activated([&wrong, &operators]);
    let output = command.arg("--config").arg(at("piped.toml")).output().expect("run");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("client.socket") && text.contains("ListenSequentialPacket=/"), "{text}");
    assert!(at("client.sock").exists(), "still the service manager's");
}

#[test]
fn sockets_that_were_promised_and_are_not_there_are_an_error() {
    let mut command = Command::new("sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=700 exec \"$0\"";
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_piped")]).output().expect("run");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("LISTEN_FDS"), "{text}");
}

#[test]
fn a_bad_configuration_is_an_exit_code_and_a_sentence() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("piped.toml");
    std::fs::write(&file, "[shards]\ncont = 2\n").expect("written");
    let output = piped().arg("--config").arg(&file).output().expect("run");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("shards.cont") && text.contains("count"), "{text}");
}

#[test]
fn a_configuration_can_be_checked_without_starting() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("piped.toml");
    std::fs::write(&file, "[shards]\ncount = 2\n").expect("written");
    let check = |setting: &str| {
        let mut command = piped();
        command.arg("--check-config").arg("--config").arg(&file).args(["--set", setting]);
        command.output().expect("run")
    };
    assert_eq!(check("shards.count=3").status.code(), Some(0));
    assert_eq!(check("shards.count=0").status.code(), Some(1));
    assert_eq!(check("log.level=\"piped=loud\"").status.code(), Some(1));
    let version = piped().arg("--version").output().expect("run");
    assert!(String::from_utf8_lossy(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
}
