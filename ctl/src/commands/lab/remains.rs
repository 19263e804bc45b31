//! What there is of a lab, whether its `up` has ended or was killed, and its removal.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use piped_netns::namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::site::{Claim, Site};
use crate::daemon::GRACE;
use crate::failure::Failure;
use crate::{clock, output};

/// Most things that are named one by one; of more, the first and the last.
const LISTED_MAX: usize = 4;

/// A daemon of the lab.
#[derive(Debug)]
pub(super) struct Process {
    node: String,
    pid: Pid,
    /// Stands for this very process, also when its number is another one's.
    handle: OwnedFd,
}

impl Process {
    /// Name of the node that it serves.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Whether it ends by then.
    fn ends_until(&self, deadline: std::time::Instant) -> bool {
        let left = deadline.saturating_duration_since(clock::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&left)).is_ok_and(|it| it > 0)
    }
}

/// Daemons of the lab that run, by the paths on their command lines.
pub(super) fn processes(site: &Site) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|it| it.file_name().to_str()?.parse().ok());
    let found = numbers.filter_map(Pid::from_raw).filter_map(|pid| {
        let node = node_of(site, pid)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Once more: now it is of the process that the handle stands for, or that one has ended.
        (node_of(site, pid)? == node).then_some(Process { node, pid, handle })
    });
    let mut found: Vec<Process> = found.collect();
    found.sort_by(|a, b| a.node.cmp(&b.node));
    found
}

/// Node whose daemon a process is. Others' processes may say anything of themselves.
fn node_of(site: &Site, pid: Pid) -> Option<String> {
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let line = fs::read(process.join("cmdline")).ok()?;
    let mut words = line.split(|&byte| byte == 0).skip(1);
    let file = words.next().filter(|word| *word == b"--config").and_then(|_| words.next())?;
    let is_ours = fs::metadata(&process).ok()?.uid() == rustix::process::geteuid().as_raw();
    site.node_of(Path::new(OsStr::from_bytes(file))).filter(|_| is_ours)
}

/// Ends daemons: asks them all, waits, and kills those that do not end.
pub(super) fn end(processes: &[Process]) {
    for process in processes {
        let _ = pidfd_send_signal(&process.handle, Signal::TERM);
    }
    let deadline = clock::now() + GRACE;
    for process in processes {
        if !process.ends_until(deadline) {
            let _ = pidfd_send_signal(&process.handle, Signal::KILL);
            let _ = process.ends_until(clock::now() + GRACE);
        }
    }
}

/// All that there is of a lab.
#[derive(Debug)]
pub(super) struct Remains {
    processes: Vec<Process>,
    namespaces: Vec<String>,
    /// The lab's directory, if it is there.
    directory: Option<PathBuf>,
    has_files: bool,
}

impl Remains {
    pub(super) fn of(site: &Site) -> Result<Self, Failure> {
        let namespaces = namespace::with_prefix(site.prefix())
            .map_err(|error| Failure::io(namespace::DIRECTORY, &error))?;
        let directory = site.is_lab().then(|| site.directory().to_owned());
        let has_files = directory.is_some() && site.has_files();
        Ok(Self { processes: processes(site), namespaces, directory, has_files })
    }

    /// Whether there is nothing at all.
    pub(super) fn is_empty(&self) -> bool {
        self.is_clear() && self.directory.is_none()
    }

    /// Whether there is nothing but a directory with a lock.
    pub(super) fn is_clear(&self) -> bool {
        self.processes.is_empty() && self.namespaces.is_empty() && !self.has_files
    }

    /// What it is, in words.
    pub(super) fn words(&self) -> String {
        let some = |one: &str, all: &[String]| match all {
            [] => None,
            [only] => Some(format!("the {one} {only}")),
            [first, .., last] if all.len() > LISTED_MAX => {
                Some(format!("{} {one}s, {first} to {last}", all.len()))
            }
            _ => Some(format!("the {one}s {}", all.join(", "))),
        };
        let daemons = self.processes.iter().map(|it| format!("{} (pid {})", it.node, it.pid()));
        let daemons: Vec<String> = daemons.collect();
        let files = self.directory.as_ref();
        let files = files.map(|it| format!("the files in {}", output::path(it)));
        let all = [some("daemon", &daemons), some("namespace", &self.namespaces), files];
        all.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Removes all of it, and the directory.
    pub(super) fn remove(&self, site: &Site, claim: Option<Claim>) -> Result<(), Failure> {
        end(&self.processes);
        for name in &self.namespaces {
            // Shells and commands of `lab exec`.
            for process in namespace::processes(name) {
                let _ = kill_process(process, Signal::HUP);
                let _ = kill_process(process, Signal::TERM);
            }
            namespace::remove(name).map_err(|error| Failure::failed(error.to_string()))?;
        }
        claim.map_or(Ok(()), |claim| site.clear(claim))
    }
}
