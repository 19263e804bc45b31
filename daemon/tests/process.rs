//! The program `piped` as the service manager sees it: arguments, signals, exit codes.

mod support;

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use support::eventually;

fn piped() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_piped"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("PIPED_CONFIG").env_remove("NOTIFY_SOCKET");
    command
}

/// A running program with its sockets in `dir`; ended when dropped.
struct Program(Child);

impl Program {
    fn start(dir: &std::path::Path, notify: Option<&std::path::Path>) -> Self {
        let config = dir.join("piped.toml");
        let text = format!(
            "[client]\nsocket = \"{0}/client.sock\"\n[admin]\nsocket = \"{0}/admin.sock\"\n\
             [limits.global]\nstaging = \"4MiB\"\n[shards]\npin = false\n",
            dir.display()
        );
        std::fs::write(&config, text).expect("written");
        let mut command = piped();
        command.arg("--config").arg(config);
        if let Some(notify) = notify {
            command.env("NOTIFY_SOCKET", notify);
        }
        let child = command.stderr(Stdio::null()).spawn().expect("started");
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
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    let mut program = Program::start(dir.path(), Some(&path));
    let mut message = [0; 256];
    let length = socket.recv(&mut message).expect("a message");
    let text = String::from_utf8_lossy(&message[..length]).into_owned();
    assert!(text.contains("READY=1"), "{text}");
    program.signal(Signal::TERM);
    let length = socket.recv(&mut message).expect("a message");
    let text = String::from_utf8_lossy(&message[..length]).into_owned();
    assert!(text.contains("STOPPING=1"), "{text}");
    assert_eq!(program.exit_code(), 0);
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
