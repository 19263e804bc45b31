//! Network namespaces by name, as `ip netns` makes them, and the remains of earlier rigs.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::owner::{self, Owner};
use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::outside;

/// Directory where `ip netns` keeps them.
const DIRECTORY: &str = "/run/netns";

/// Daemons of a rig that is gone were told to end when it went; they need no longer than this.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A namespace of this process, removed when dropped.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a new one, with loopback up.
    pub(super) fn add(owner: Owner, name: &str) -> Result<Self, Failure> {
        let name = format!("{}{name}", owner.prefix());
        run("ip", &["netns", "add", &name])?;
        let made = Self { name };
        made.ip(&["link", "set", "lo", "up"])?;
        Ok(made)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// File that stands for the namespace.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// Runs `ip` inside the namespace.
    pub(crate) fn ip(&self, arguments: &[&str]) -> Result<(), Failure> {
        run("ip", &[&["-n", &self.name], arguments].concat())
    }

    /// Sets a parameter of the namespace's kernel.
    pub(super) fn set(&self, parameter: &str, value: &str) -> Result<(), Failure> {
        let file = Path::new("/proc/sys").join(parameter);
        self.inside(|| fs::write(&file, value).doing(file.display()))
    }

    /// Runs `body` in the namespace, on a thread of its own. Sockets made there stay there.
    pub(super) fn inside<T: Send>(
        &self,
        body: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let body = || {
            enter(&self.path()).doing(self.path().display())?;
            body()
        };
        thread::scope(|scope| scope.spawn(body).join())
            .unwrap_or_else(|_| Err(Failure::new("its thread broke off")))
    }

    /// Runs `tc` inside the namespace.
    pub(super) fn tc(&self, arguments: &[&str]) -> Result<(), Failure> {
        run("tc", &[&["-n", &self.name], arguments].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(failure) = run("ip", &["netns", "delete", &self.name]) {
            eprintln!("bench: {failure}; the next rig removes it");
        }
    }
}

/// Runs a program of iproute2 that prints nothing when all is well.
fn run(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    if !outside::is_installed(program) {
        return Err(Failure::new(format!("{program} is not there: install iproute2")));
    }
    let done = outside::output(Command::new(program).args(arguments));
    done.map(drop).map_err(|failure| failure.within(format!("{program} {}", arguments.join(" "))))
}

/// Moves the calling thread into a namespace, with its sockets and the programs that it starts.
pub(crate) fn enter(path: &Path) -> io::Result<()> {
    let namespace = File::open(path)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Removes the namespaces of rigs without a process, and ends the processes still in them.
pub(super) fn remove_left_over() -> Result<(), Failure> {
    for name in owner::left_over(Path::new(DIRECTORY)).doing(DIRECTORY)? {
        let path = Path::new(DIRECTORY).join(&name);
        // Another rig that cleans up may be faster.
        let Some(inhabited) = Inhabited::of(&path) else { continue };
        inhabited.end();
        if let Err(failure) = run("ip", &["netns", "delete", &name])
            && path.exists()
        {
            return Err(failure);
        }
    }
    Ok(())
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

    /// Waits for processes that are ending, and kills the rest: only a rig's daemons live there.
    fn end(&self) {
        let empty = || self.processes().is_empty().then_some(());
        if clock::poll(END_LIMIT, empty).is_none() {
            for process in self.processes() {
                let _ = kill_process(process, Signal::KILL);
            }
            let _ = clock::poll(END_LIMIT, empty);
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
