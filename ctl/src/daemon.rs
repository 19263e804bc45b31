//! Daemons that commands start for themselves: the shipped configuration with a drop-in for what
//! one of several daemons on a machine needs (sockets, name, addresses, exports, peers).

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use piped_netns::namespace;
use rustix::process::{Pid, Signal, kill_process};

use crate::clock;
use crate::failure::{Exit, Failure};

/// The configuration as it is shipped.
const SHIPPED: &str = include_str!("../../config/piped.toml");
/// Name of the configuration's main file in a daemon's directory.
pub(crate) const MAIN_FILE: &str = "piped.toml";
/// Time for a daemon to end before it is killed.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Failure that Ctrl-C comes to, when everything that was made is removed again.
pub(crate) fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted; nothing is left running or on the disk")
}

/// Settings in which a daemon differs from the shipped configuration.
#[derive(Debug)]
pub(crate) struct Setting {
    name: String,
    directory: PathBuf,
    listen: Option<SocketAddr>,
    namespace: Option<PathBuf>,
    /// Lines of the drop-in: keys of the root first, then tables.
    keys: String,
    tables: String,
}

impl Setting {
    /// A daemon of that name, with its sockets, configuration and log in `directory`.
    pub(crate) fn new(name: &str, directory: PathBuf) -> Result<Self, Failure> {
        let mut it = Self {
            name: name.to_owned(),
            directory,
            listen: None,
            namespace: None,
            keys: String::new(),
            tables: String::new(),
        };
        let keys = [
            ("node.name", quoted(Path::new(name))?),
            ("client.socket", quoted(&it.client_socket())?),
            ("admin.socket", quoted(&it.admin_socket())?),
        ];
        keys.iter().for_each(|(key, value)| it.set(key, value));
        Ok(it)
    }

    /// Sets a key; the value is TOML.
    pub(crate) fn set(&mut self, key: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.keys, "{key} = {value}");
    }

    /// Adds whole tables, as TOML.
    pub(crate) fn add_tables(&mut self, tables: &str) {
        self.tables += tables;
    }

    /// Has the daemon listen for peers at an address.
    pub(crate) fn listens(mut self, address: SocketAddr) -> Self {
        self.set("listen.address", format_args!("\"{address}\""));
        self.listen = Some(address);
        self
    }

    /// Has the daemon run in the network namespace of that file.
    pub(crate) fn inside(mut self, namespace: Option<PathBuf>) -> Self {
        self.namespace = namespace;
        self
    }

    /// Has the daemon offer a directory by that name.
    pub(crate) fn exports(mut self, name: &str, path: &Path) -> Result<Self, Failure> {
        self.set(&format!("exports.{name}.path"), quoted(path)?);
        Ok(self)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        self.listen
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.directory.join("admin.sock")
    }

    pub(crate) fn client_socket(&self) -> PathBuf {
        self.directory.join("client.sock")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Writes the configuration into the directory, which is made if it is not there.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let fail = |error: io::Error| {
            Failure::io(format_args!("cannot set up node {}", self.name), &error)
        };
        let conf_d = self.directory.join("conf.d");
        fs::create_dir_all(&conf_d).map_err(fail)?;
        fs::write(self.directory.join(MAIN_FILE), SHIPPED).map_err(fail)?;
        fs::write(conf_d.join("node.toml"), format!("{}{}", self.keys, self.tables)).map_err(fail)
    }
}

/// A path as TOML. A JSON string is a TOML string, quotes and all.
pub(crate) fn quoted(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(|text| serde_json::Value::from(text).to_string());
    text.ok_or_else(|| {
        Failure::failed(format!("{} is not UTF-8: use another directory", path.display()))
    })
}

/// A running daemon, ended and awaited when dropped.
#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    log: PathBuf,
    /// None once it was left to itself.
    process: Option<Child>,
}

impl Node {
    /// Starts `piped` with the configuration that was written.
    pub(crate) fn start(piped: &Path, setting: &Setting) -> Result<Self, Failure> {
        let fail = |error: io::Error| {
            Failure::io(format_args!("cannot start node {}", setting.name), &error)
        };
        let log = File::options().create(true).append(true).open(setting.log()).map_err(fail)?;
        let mut command = Command::new(piped);
        command
            .arg("--config")
            .arg(setting.directory.join(MAIN_FILE))
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(fail)?)
            .stderr(log)
            // Ctrl-C goes to the terminal's whole group, but the daemons end when we say so.
            .process_group(0)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("STATE_DIRECTORY")
            // The log is a file, and its last lines may be shown.
            .env("NO_COLOR", "1");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PIPED_") {
                command.env_remove(name);
            }
        }
        let process = match &setting.namespace {
            None => command.spawn().map_err(|error| {
                Failure::io(format_args!("cannot start {}", piped.display()), &error)
            })?,
            // Programs belong to the namespace of the thread that starts them.
            Some(path) => {
                let spawn = || {
                    let spawned = command.spawn();
                    spawned.map_err(|error| {
                        let piped = piped.display();
                        piped_netns::Error::new(format!("cannot start {piped}: {error}"))
                    })
                };
                namespace::inside(path, spawn).map_err(|it| Failure::failed(it.to_string()))?
            }
        };
        Ok(Self { name: setting.name.clone(), log: setting.log(), process: Some(process) })
    }

    /// Leaves the daemon running when this program ends.
    pub(crate) fn leave(mut self) {
        self.process = None;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// Fails with the log's last lines if the daemon has ended.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        match self.process.as_mut().map_or(Ok(None), Child::try_wait) {
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
        let Some(mut process) = self.process.take() else { return };
        if let Ok(None) = process.try_wait() {
            // The process is not awaited yet, so the number is still its own.
            let _ = kill_process(Pid::from_child(&process), Signal::TERM);
            let deadline = clock::now() + GRACE;
            while clock::now() < deadline {
                match process.try_wait() {
                    Ok(None) => clock::pause(LOOK_AGAIN),
                    _ => return,
                }
            }
            let _ = process.kill();
            let _ = process.wait();
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
pub(crate) fn find_piped() -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("piped")));
    let on_path = std::env::var_os("PATH");
    let on_path = on_path.iter().flat_map(std::env::split_paths).map(|folder| folder.join("piped"));
    beside.into_iter().chain(on_path).find(|path| path.is_file()).ok_or_else(|| {
        Failure::new(
            Exit::NotFound,
            "the daemon's program `piped` is neither beside pipectl nor on the PATH: build both \
             with `cargo build --release`, which puts them into target/release",
        )
    })
}

/// An address on loopback that was free a moment ago.
pub(crate) fn free_address() -> Result<SocketAddr, Failure> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| Failure::io("no free port on 127.0.0.1", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(directory: &Path) -> Setting {
        let setting = Setting::new("beta", directory.to_owned()).expect("UTF-8");
        let mut setting = setting
            .listens(([127, 0, 0, 1], 7440).into())
            .exports("demo", Path::new("/srv/with \"quotes\""))
            .expect("UTF-8");
        setting.add_tables("[peers.alpha]\naddress = \"127.0.0.1:7441\"\n");
        setting
    }

    #[test]
    fn the_drop_in_is_a_valid_configuration_over_the_shipped_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let setting = setting(directory.path());
        setting.write().expect("written");
        let main = directory.path().join(MAIN_FILE);
        let sources = piped_config::Sources { file: Some(main), ..Default::default() };
        let config = piped_config::load(&sources).expect("valid").config;
        assert_eq!(config.exports["demo"].path, Path::new("/srv/with \"quotes\""));
        assert_eq!(config.client.socket, setting.client_socket());
        assert_eq!(config.listen.address, setting.listen());
        assert_eq!(config.node.name, setting.name());
        assert_eq!(config.planner, piped_config::Planner::default(), "nothing else is changed");
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
        await_end(&mut node);
        let words = node.check().expect_err("ended").to_string();
        assert!(words.contains("cannot go on") && words.contains('7'), "{words}");

        // Not INT: it is ignored in what a shell runs in the background, these tests among it.
        let interrupted = script("interrupted", "kill -TERM $$");
        let mut node = Node::start(&interrupted, &setting(directory.path())).expect("started");
        await_end(&mut node);
        assert_eq!(node.check().expect_err("ended").exit(), Exit::Interrupted);

        let living = script("living", "exec sleep 600");
        let node = Node::start(&living, &setting(directory.path())).expect("started");
        let process = format!("/proc/{}", node.pid());
        assert!(Path::new(&process).exists());
        drop(node);
        assert!(!Path::new(&process).exists(), "ended and awaited");
    }

    fn await_end(node: &mut Node) {
        node.process.as_mut().expect("ours").wait().expect("awaited");
    }
}
