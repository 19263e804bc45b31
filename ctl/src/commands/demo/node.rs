//! A daemon of the demo: the shipped configuration with a drop-in for what a second daemon on one
//! machine needs (sockets, name, addresses, exports, peers).

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::interrupted;
use crate::clock;
use crate::failure::{Exit, Failure};

/// The configuration as it is shipped.
const SHIPPED: &str = include_str!("../../../../config/piped.toml");
/// Time for a daemon to end before it is killed.
const GRACE: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Settings in which a node differs.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    pub(super) name: &'static str,
    /// Directory for its sockets, configuration and log.
    pub(super) directory: PathBuf,
    pub(super) listen: Option<SocketAddr>,
    pub(super) peer: Option<(&'static str, SocketAddr)>,
    pub(super) export: Option<(&'static str, &'a Path)>,
}

impl Setting<'_> {
    pub(super) fn admin_socket(&self) -> PathBuf {
        self.directory.join("admin.sock")
    }

    pub(super) fn client_socket(&self) -> PathBuf {
        self.directory.join("client.sock")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Text of the drop-in. A JSON string is a TOML string, quotes and all.
    fn drop_in(&self) -> Result<String, Failure> {
        let quoted = |path: &Path| {
            let text = path.to_str().map(|text| serde_json::Value::from(text).to_string());
            text.ok_or_else(|| {
                Failure::failed(format!("{} is not UTF-8: use another directory", path.display()))
            })
        };
        let mut text = format!(
            "node.name = \"{}\"\nclient.socket = {}\nadmin.socket = {}\nplanner.allow_dials = \
             true\n",
            self.name,
            quoted(&self.client_socket())?,
            quoted(&self.admin_socket())?
        );
        if let Some(listen) = self.listen {
            text += &format!("listen.address = \"{listen}\"\n");
        }
        if let Some((name, address)) = self.peer {
            text += &format!("peers.{name}.address = \"{address}\"\n");
        }
        if let Some((name, path)) = self.export {
            text += &format!("exports.{name}.path = {}\n", quoted(path)?);
        }
        Ok(text)
    }
}

/// A running daemon, ended and awaited when dropped.
#[derive(Debug)]
pub(super) struct Node {
    name: &'static str,
    log: PathBuf,
    process: Child,
}

impl Node {
    /// Writes the configuration and starts `piped`.
    pub(super) fn start(piped: &Path, setting: &Setting<'_>) -> Result<Self, Failure> {
        let fail = |error: io::Error| {
            Failure::io(format_args!("cannot set up node {}", setting.name), &error)
        };
        let conf_d = setting.directory.join("conf.d");
        fs::create_dir_all(&conf_d).map_err(fail)?;
        let main = setting.directory.join("piped.toml");
        fs::write(&main, SHIPPED).map_err(fail)?;
        fs::write(conf_d.join("demo.toml"), setting.drop_in()?).map_err(fail)?;
        let log = File::create(setting.log()).map_err(fail)?;
        let mut command = Command::new(piped);
        command
            .arg("--config")
            .arg(&main)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(fail)?)
            .stderr(log)
            // Ctrl-C goes to the terminal's whole group, but the daemons end when we say so.
            .process_group(0)
            .env_remove("NOTIFY_SOCKET")
            // The log is a file, and its last lines may be shown.
            .env("NO_COLOR", "1");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PIPED_") {
                command.env_remove(name);
            }
        }
        let process = command.spawn().map_err(|error| {
            Failure::io(format_args!("cannot start {}", piped.display()), &error)
        })?;
        Ok(Self { name: setting.name, log: setting.log(), process })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Fails with the log's last lines if the daemon has ended.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            // Ctrl-C came after its start and before it left our group.
            Ok(Some(status)) if status.signal().is_some_and(is_interrupt) => Err(interrupted()),
            Ok(Some(status)) => Err(Failure::failed(format!(
                "node {} ended by itself ({status}); its last words:\n{}",
                self.name,
                self.last_words()
            ))),
            Err(error) => Err(Failure::io(format_args!("node {}", self.name), &error)),
        }
    }

    fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(8)..];
        last.iter().map(|line| format!("  {line}\n")).collect()
    }

    /// Asks the daemon to end, waits, and kills it if it does not.
    fn end(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            // The process is not awaited yet, so the number is still its own.
            let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
            let deadline = clock::now() + GRACE;
            while clock::now() < deadline {
                match self.process.try_wait() {
                    Ok(None) => clock::pause(LOOK_AGAIN),
                    _ => return,
                }
            }
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

/// Whether the signal goes to the terminal's whole group.
fn is_interrupt(signal: i32) -> bool {
    [Signal::INT, Signal::TERM, Signal::HUP].iter().any(|other| other.as_raw() == signal)
}

/// Path of the daemon's program: beside this one, else on the PATH.
pub(super) fn find_piped() -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("piped")));
    let on_path = std::env::var_os("PATH");
    let on_path = on_path.iter().flat_map(std::env::split_paths).map(|folder| folder.join("piped"));
    beside.into_iter().chain(on_path).find(|path| path.is_file()).ok_or_else(|| {
        Failure::new(
            Exit::NotFound,
            "the daemon's program `piped` is neither beside pipectl nor on the PATH: build both \
             with `cargo build --release` and run target/release/pipectl demo",
        )
    })
}

/// An address on loopback that was free a moment ago.
pub(super) fn free_address() -> Result<SocketAddr, Failure> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| Failure::io("no free port on 127.0.0.1", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(directory: &Path) -> Setting<'_> {
        Setting {
            name: "beta",
            directory: directory.to_owned(),
            listen: Some(([127, 0, 0, 1], 7440).into()),
            peer: Some(("alpha", ([127, 0, 0, 1], 7441).into())),
            export: Some(("demo", Path::new("/srv/with \"quotes\""))),
        }
    }

    #[test]
    fn the_drop_in_is_a_valid_configuration_over_the_shipped_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let setting = setting(directory.path());
        let (main, conf_d) = (directory.path().join("piped.toml"), directory.path().join("conf.d"));
        fs::create_dir(&conf_d).expect("create");
        fs::write(&main, SHIPPED).expect("write");
        fs::write(conf_d.join("demo.toml"), setting.drop_in().expect("UTF-8")).expect("write");
        let sources = piped_config::Sources { file: Some(main), ..Default::default() };
        let config = piped_config::load(&sources).expect("valid").config;
        assert_eq!(config.exports["demo"].path, Path::new("/srv/with \"quotes\""));
        assert_eq!(config.client.socket, setting.client_socket());
        let planner = piped_config::Planner { allow_dials: true, ..Default::default() };
        assert_eq!(config.planner, planner, "nothing else is changed");
    }

    #[test]
    fn a_node_that_ends_is_reported_with_its_last_words_and_one_that_lives_is_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = |name: &str, text: &str| {
            use std::os::unix::fs::PermissionsExt as _;
            let path = directory.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("write");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
            path
        };
        let ending = script("ending", "echo cannot go on; exit 7");
        let mut node = Node::start(&ending, &setting(directory.path())).expect("started");
        node.process.wait().expect("awaited");
        let words = node.check().expect_err("ended").to_string();
        assert!(words.contains("cannot go on") && words.contains('7'), "{words}");

        // Not INT: it is ignored in what a shell runs in the background, these tests among it.
        let interrupted = script("interrupted", "kill -TERM $$");
        let mut node = Node::start(&interrupted, &setting(directory.path())).expect("started");
        node.process.wait().expect("awaited");
        assert_eq!(node.check().expect_err("ended").exit(), Exit::Interrupted);

        let living = script("living", "exec sleep 600");
        let node = Node::start(&living, &setting(directory.path())).expect("started");
        let process = format!("/proc/{}", node.pid());
        assert!(Path::new(&process).exists());
        drop(node);
        assert!(!Path::new(&process).exists(), "ended and awaited");
    }
}
