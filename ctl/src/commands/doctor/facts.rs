//! What is known of this machine, of the configuration and of the daemon, before anybody judges it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use piped_config::Config;
use piped_config::admin::{ConfigState, Status};
use serde::Serialize;

use super::finding::Finding;

/// Everything that checks look at. What could not be found out is `None`, or an error in words.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Facts {
    pub(super) machine: Machine,
    pub(super) ring: Ring,
    /// The daemon's process, else what this program would start it with.
    pub(super) process: Process,
    /// The configuration files that were read.
    pub(super) files: Vec<PathBuf>,
    /// What is wrong with them.
    pub(super) mistakes: Vec<String>,
    /// What of this machine a start with them would refuse, and no other check is about: the key, and the text.
    pub(super) unfit: Vec<(String, String)>,
    /// The configuration that they come to.
    #[serde(skip)]
    pub(super) config: Option<Config>,
    pub(super) exports: Vec<ExportFacts>,
    pub(super) principals: Vec<PrincipalFacts>,
    pub(super) sockets: Vec<SocketFacts>,
    pub(super) peers: Vec<PeerFacts>,
    /// The file of this node's private key, if the configuration has one.
    pub(super) key: Option<KeyFacts>,
    /// The daemon's own words, or why there are none.
    #[serde(skip)]
    pub(super) daemon: Option<Status>,
    /// Why there is no answer of a daemon, if there is none.
    pub(super) unreachable: Option<String>,
}

/// The machine.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Machine {
    /// `uname -r`.
    pub(super) kernel: String,
    pub(super) cpus: usize,
    pub(super) memory_bytes: Option<u64>,
    /// By its path under /proc/sys.
    pub(super) sysctls: BTreeMap<&'static str, String>,
    pub(super) clock: Option<String>,
    pub(super) clocks: Vec<String>,
    /// What kind of container this is, if it is one.
    pub(super) container: Option<String>,
    /// This program's own user is root.
    pub(super) is_root: bool,
}

/// What came of setting up an io_uring of one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) enum Ring {
    /// Nobody has tried.
    #[default]
    Untried,
    /// It was made; these features can be had, or cannot.
    Made(Vec<(String, bool)>),
    /// The kernel's error number.
    Refused(i32),
}

/// Limits of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Process {
    /// The daemon's; none: this program's, which a unit does not share.
    pub(super) pid: Option<u32>,
    /// The user it runs as.
    pub(super) user: Option<Who>,
    /// RLIMIT_MEMLOCK; none: unlimited, or not readable (see `readable`).
    pub(super) memlock_bytes: Option<u64>,
    /// RLIMIT_NOFILE, the hard one.
    pub(super) files: Option<u64>,
    /// Whether /proc let us look.
    pub(super) readable: bool,
    /// CAP_IPC_LOCK: memory that is locked is not counted.
    pub(super) may_lock: bool,
    /// A filter for system calls is on (seccomp).
    pub(super) filtered: bool,
    /// memory.max of its control group.
    pub(super) memory_max_bytes: Option<u64>,
    /// cpu.max of its control group, in CPUs.
    pub(super) cpus_max: Option<f64>,
}

/// A user with its groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) groups: Vec<u32>,
}

/// An export's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct ExportFacts {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) write: bool,
    pub(super) directory: Directory,
    /// From `/` to it: whose, and who may do what.
    pub(super) chain: Vec<Node>,
    /// Whether files open with O_DIRECT; none: nothing there to try it with.
    pub(super) direct: Option<bool>,
    /// Bytes free and in all.
    pub(super) space: Option<(u64, u64)>,
    /// Whether the daemon sees it, and may write it, in its own mount namespace; none: not to be seen from here.
    pub(super) in_daemon: Option<Seen>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) enum Seen {
    #[default]
    Whole,
    ReadOnly,
    Hidden,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) enum Directory {
    #[default]
    There,
    Missing,
    /// Something else has its name.
    Other,
    /// The user that runs this may not look at it.
    Closed,
}

/// One name of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Node {
    pub(super) path: PathBuf,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A user or a group that the configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct PrincipalFacts {
    /// Where, as in `access.users`.
    pub(super) key: String,
    pub(super) name: String,
    pub(super) is_group: bool,
    pub(super) is_known: bool,
}

/// A unix socket of the daemon's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct SocketFacts {
    pub(super) key: String,
    pub(super) path: PathBuf,
    /// Of what is there: whether it is a socket, and its permissions.
    pub(super) there: Option<(bool, u32)>,
    /// Whether its directory is there.
    pub(super) has_directory: bool,
    /// What came of connecting, in words if it failed.
    pub(super) connects: Option<String>,
}

/// The file with this node's private key. Nobody looks into it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct KeyFacts {
    pub(super) path: PathBuf,
    /// Whose it is and who may read it; none: it is not there, or not to be looked at.
    pub(super) node: Option<Node>,
    pub(super) is_missing: bool,
}

/// A peer that is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct PeerFacts {
    pub(super) name: String,
    pub(super) address: String,
    /// Empty: it answered; else why not.
    pub(super) failure: String,
    /// Lanes that are up, of how many, by the daemon.
    pub(super) lanes: Option<(usize, usize)>,
    pub(super) is_loopback: bool,
}

impl Facts {
    pub(super) fn sysctl(&self, name: &str) -> Option<&str> {
        self.machine.sysctls.get(name).map(String::as_str)
    }

    /// Whether a daemon answers.
    pub(crate) const fn is_served(&self) -> bool {
        self.daemon.is_some()
    }

    /// Keys and values of the configuration's files.
    pub(crate) fn keys(&self) -> Option<Vec<(String, serde_json::Value)>> {
        Some(self.config.as_ref()?.keys().collect())
    }

    /// Paths that the configuration has.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let mut paths = self.files.clone();
        paths.extend(self.exports.iter().map(|export| export.path.clone()));
        paths.extend(self.sockets.iter().map(|socket| socket.path.clone()));
        if let Some(Config { node, .. }) = &self.config
            && let piped_config::AutoPath::At(path) = &node.state_dir
        {
            paths.push(path.clone());
        }
        let state = self.state().into_iter();
        paths.extend(state.flat_map(|state| &state.files).map(PathBuf::from));
        paths
    }

    /// How the daemon's configuration relates to its files.
    pub(super) fn state(&self) -> Option<&ConfigState> {
        self.daemon.as_ref().map(|status| &status.config)
    }

    /// A cure that takes effect with a reload, which only what runs can do.
    pub(super) fn reloaded(&self, finding: Finding) -> Finding {
        if self.is_served() { finding.fix("pipectl config reload") } else { finding }
    }

    /// The same for something to do that is said in words.
    pub(super) fn then_reload(&self, what: &str) -> String {
        match self.is_served() {
            true => format!("{what}, then: pipectl config reload"),
            false => what.to_owned(),
        }
    }

    /// Whether this node talks to others over a network.
    pub(super) fn has_network(&self) -> bool {
        let listens = self.config.as_ref().and_then(|config| config.listen.address);
        listens.is_some_and(|address| !address.ip().is_loopback())
            || self.peers.iter().any(|peer| !peer.is_loopback)
    }
}
