//! Network namespaces by name, as `ip netns` makes them, and the processes in them.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Error, clock};

/// Directory where `ip netns` keeps them.
pub const DIRECTORY: &str = "/run/netns";

/// Time for processes that were told to end, or end with their parent.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A namespace, removed when dropped unless it is kept.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    kept: bool,
}

impl Namespace {
    /// Makes a new one, with loopback up.
    ///
    /// # Errors
    /// If `ip` cannot, as without its rights.
    pub fn add(name: String) -> Result<Self, Error> {
        run("ip", &["netns", "add", &name])?;
        let made = Self { name, kept: false };
        made.ip(&["link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// The namespace of that name that another process has kept; it stays.
    #[must_use]
    pub fn kept(name: String) -> Self {
        Self { name, kept: true }
    }

    /// Name of the namespace, for `ip netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// File that stands for the namespace.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path(&self.name)
    }

    /// Leaves the namespace where it is, until [`remove`] by its name.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Runs `ip` inside the namespace.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn ip(&self, arguments: &[&str]) -> Result<(), Error> {
        run("ip", &[&["-n", &self.name], arguments].concat())
    }

    /// Runs `tc` inside the namespace.
    ///
    /// # Errors
    /// What `tc` says.
    pub fn tc(&self, arguments: &[&str]) -> Result<(), Error> {
        run("tc", &[&["-n", &self.name], arguments].concat())
    }

    /// Sets a parameter of the namespace's kernel.
    ///
    /// # Errors
    /// If the kernel has no such parameter, or refuses the value.
    pub fn set(&self, parameter: &str, value: &str) -> Result<(), Error> {
        let file = Path::new("/proc/sys").join(parameter);
        self.inside(|| {
            fs::write(&file, value)
                .map_err(|error| Error::new(format!("{}: {error}", file.display())))
        })
    }

    /// Runs `body` in the namespace, on a thread of its own. Sockets made there stay there.
    ///
    /// # Errors
    /// Those of `body`; or if the namespace cannot be entered.
    pub fn inside<T: Send, E: From<Error> + Send>(
        &self,
        body: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<T, E> {
        inside(&self.path(), body)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = run("ip", &["netns", "delete", &self.name])
        {
            eprintln!("{error}; the namespace is left over");
        }
    }
}

/// File that stands for the namespace of a name, whether it exists or not.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Moves the calling thread into a namespace, with its sockets and the programs that it starts.
///
/// # Errors
/// If there is no such namespace, or the thread may not enter it.
pub fn enter(path: &Path) -> io::Result<()> {
    let namespace = File::open(path)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Runs `body` in the namespace of that file, on a thread of its own.
///
/// # Errors
/// Those of `body`; or if the namespace cannot be entered.
pub fn inside<T: Send, E: From<Error> + Send>(
    path: &Path,
    body: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    let body = || {
        enter(path).map_err(|error| Error::new(format!("{}: {error}", path.display())))?;
        body()
    };
    thread::scope(|scope| scope.spawn(body).join())
        .unwrap_or_else(|_| Err(Error::new("its thread broke off").into()))
}

/// Names of namespaces that begin so, sorted.
///
/// # Errors
/// If the directory of namespaces cannot be read; where it does not exist there are none.
pub fn with_prefix(prefix: &str) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
    let mut names: Vec<String> =
        names.filter_map(Result::transpose).collect::<io::Result<Vec<_>>>()?;
    names.retain(|name| name.starts_with(prefix));
    names.sort();
    Ok(names)
}

/// Removes a namespace, and ends the processes still in it: those that are ending have time for
/// it, the others are killed. One that is gone already is fine, because another process that cleans
/// up may be faster.
///
/// # Errors
/// If it is still there then.
pub fn remove(name: &str) -> Result<(), Error> {
    let path = path(name);
    let Some(inhabited) = Inhabited::of(&path) else { return Ok(()) };
    inhabited.end();
    match run("ip", &["netns", "delete", name]) {
        Err(error) if path.exists() => Err(error),
        _ => Ok(()),
    }
}

/// Processes in the namespace of a name; none if it does not exist.
#[must_use]
pub fn processes(name: &str) -> Vec<Pid> {
    Inhabited::of(&path(name)).map_or_else(Vec::new, |it| it.processes())
}

/// Runs a program of iproute2 that prints nothing when all is well.
fn run(program: &str, arguments: &[&str]) -> Result<(), Error> {
    let said = |what: &str| Error::new(format!("{program} {}: {what}", arguments.join(" ")));
    let mut command = Command::new(program);
    // Ctrl-C goes to the terminal's whole group, but what is half made has to be removed again.
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::new(format!("{program} is not there: install iproute2")),
        _ => said(&error.to_string()),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(said(&format!("{}: {}", output.status, errors.lines().last().unwrap_or_default())))
}

/// A namespace by the kernel's name for it.
struct Inhabited {
    inode: u64,
}

impl Inhabited {
    /// None if it does not exist; one that was made in part is a plain file without processes.
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        Some(Self { inode: fs::metadata(path).ok()?.ino() })
    }

    /// Processes in the namespace.
    fn processes(&self) -> Vec<Pid> {
        let here = format!("net:[{}]", self.inode);
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let inside = |process: &i32| {
            fs::read_link(format!("/proc/{process}/ns/net"))
                .is_ok_and(|namespace| namespace.as_os_str() == here.as_str())
        };
        numbers.filter(inside).filter_map(Pid::from_raw).collect()
    }

    /// Waits for processes that are ending, and kills the rest: only what its maker started lives
    /// there.
    fn end(&self) {
        let is_empty = || self.processes().is_empty();
        if !clock::poll(END_LIMIT, is_empty) {
            for process in self.processes() {
                let _ = kill_process(process, Signal::KILL);
            }
            let _ = clock::poll(END_LIMIT, is_empty);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_in_its_namespace() {
        let here = fs::read_link("/proc/self/ns/net").expect("a namespace");
        let here = here.to_str().expect("net:[1]");
        let inode = here.trim_start_matches("net:[").trim_end_matches(']');
        let inhabited = Inhabited { inode: inode.parse().expect("a number") };
        let this = rustix::process::getpid();
        assert!(inhabited.processes().contains(&this));
        assert!(Inhabited { inode: 1 }.processes().is_empty());
    }

    #[test]
    fn a_failing_program_names_itself() {
        let failure = run("ip", &["no-such-object"]).expect_err("there is none");
        assert!(failure.to_string().starts_with("ip no-such-object: "), "{failure}");
        let failure = run("no-such-program-of-piped", &[]).expect_err("nobody has it");
        assert!(failure.to_string().contains("install iproute2"), "{failure}");
    }
}
