//! Facts about this machine, the configuration and the daemon, before any judgement.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use piped_config::admin::cluster::ClusterReport;
use piped_config::admin::{ConfigState, Status};
use piped_config::{Config, NodeCertificate, PublicKey, UnixTime};
use serde::Serialize;

use super::finding::Finding;

/// All facts that checks use. A fact that could not be found out is `None`, or an error in words.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Facts {
    pub(super) machine: Machine,
    pub(super) ring: Ring,
    /// Process of the daemon; without one, what this program would start it with.
    pub(super) process: Process,
    /// Configuration files that were read.
    pub(super) files: Vec<PathBuf>,
    /// Mistakes in these files.
    pub(super) mistakes: Vec<String>,
    /// Findings of the preflight that no other check is about: key and text.
    pub(super) unfit: Vec<(String, String)>,
    /// Configuration that the files come to.
    #[serde(skip)]
    pub(super) config: Option<Config>,
    pub(super) exports: Vec<ExportFacts>,
    pub(super) principals: Vec<PrincipalFacts>,
    pub(super) sockets: Vec<SocketFacts>,
    pub(super) peers: Vec<PeerFacts>,
    /// File of this node's private key, if the configuration has one.
    pub(super) key: Option<KeyFacts>,
    /// This node in its cluster, if the configuration names one.
    pub(super) cluster: Option<ClusterFacts>,
    /// Status of the daemon, if it answers.
    #[serde(skip)]
    pub(super) daemon: Option<Status>,
    /// Reason why no daemon answers, if none does.
    pub(super) unreachable: Option<String>,
}

/// Facts about the machine.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Machine {
    /// Kernel's release, as of `uname -r`.
    pub(super) kernel: String,
    pub(super) cpus: usize,
    pub(super) memory_bytes: Option<u64>,
    /// Kernel settings by their paths under /proc/sys.
    pub(super) sysctls: BTreeMap<&'static str, String>,
    pub(super) clock: Option<String>,
    pub(super) clocks: Vec<String>,
    /// Kind of the container, if this is one.
    pub(super) container: Option<String>,
    /// Whether this program runs as root.
    pub(super) is_root: bool,
}

/// Result of setting up an io_uring of one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) enum Ring {
    /// Nobody has tried it.
    #[default]
    Untried,
    /// The ring was made, with each feature that can be had or cannot.
    Made(Vec<(String, bool)>),
    /// The kernel refused with this error number.
    Refused(i32),
}

/// Limits of a process, and its user.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Process {
    /// Process of the daemon; none for this program, which has other limits than a unit.
    pub(super) pid: Option<u32>,
    /// User that the process runs as.
    pub(super) user: Option<DaemonUser>,
    /// RLIMIT_MEMLOCK; none if unlimited, or not readable (see `readable`).
    pub(super) memlock_bytes: Option<u64>,
    /// RLIMIT_NOFILE, the hard limit.
    pub(super) files: Option<u64>,
    /// Whether /proc could be read.
    pub(super) readable: bool,
    /// CAP_IPC_LOCK, with which locked memory is not counted.
    pub(super) may_lock: bool,
    /// Whether system calls are filtered (seccomp).
    pub(super) filtered: bool,
    /// Limit memory.max of its control group.
    pub(super) memory_max_bytes: Option<u64>,
    /// Limit cpu.max of its control group, in CPUs.
    pub(super) cpus_max: Option<f64>,
}

/// A user with its groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DaemonUser {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) groups: Vec<u32>,
}

/// Facts about an export's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct ExportFacts {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) write: bool,
    pub(super) directory: Directory,
    /// All names from `/` to it, with owners and modes.
    pub(super) chain: Vec<Node>,
    /// Whether files open with O_DIRECT; none if there is no file to try.
    pub(super) direct: Option<bool>,
    /// Free bytes and all bytes.
    pub(super) space: Option<(u64, u64)>,
    /// View of the daemon, which has its own mount namespace; none if it cannot be seen from here.
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
    /// Something else that has the name.
    Other,
    /// Closed to the user that runs this program.
    Closed,
}

/// One name of a path, with owner and mode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Node {
    pub(super) path: PathBuf,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Node {
    /// What a file system says of a name.
    pub(super) fn of(path: &Path, found: &Metadata) -> Self {
        let mode = found.permissions().mode();
        Self { path: path.to_owned(), mode, uid: found.uid(), gid: found.gid() }
    }
}

/// A user or a group that the configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct PrincipalFacts {
    /// Key with the name, as in `access.users`.
    pub(super) key: String,
    pub(super) name: String,
    pub(super) is_group: bool,
    pub(super) is_known: bool,
}

/// A unix socket of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct SocketFacts {
    pub(super) key: String,
    pub(super) path: PathBuf,
    /// Whether the file there is a socket, with its permissions.
    pub(super) there: Option<(bool, u32)>,
    /// Whether its directory exists.
    pub(super) has_directory: bool,
    /// Result of connecting, in words if it failed.
    pub(super) connects: Option<String>,
}

/// A file with a private key, which is never read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct KeyFacts {
    pub(super) path: PathBuf,
    /// Owner and mode of the file; none if it does not exist or cannot be seen.
    pub(super) node: Option<Node>,
    pub(super) is_missing: bool,
}

/// This node in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ClusterFacts {
    /// Time of this machine's calendar.
    pub(super) now: UnixTime,
    /// Name that this node gives itself.
    pub(super) name: String,
    /// This node's public key, if a daemon says it.
    pub(super) key: Option<PublicKey>,
    /// Certificate of this node, as files have it.
    pub(super) paper: Paper,
    /// File in which the certificate is expected.
    pub(super) path: Option<PathBuf>,
    /// File of the cluster's private key, on a node that signs.
    pub(super) signing_key: Option<KeyFacts>,
    /// What the daemon knows of the cluster, if it answers.
    #[serde(skip)]
    pub(super) report: Option<ClusterReport>,
}

/// A certificate in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) enum Paper {
    /// The file has one, whether it counts or not.
    There(Box<NodeCertificate>),
    /// No file has one.
    Missing,
    /// The file is closed to the user that runs this program.
    Closed,
    /// The file has something else, in words.
    Unreadable(String),
}

/// A peer that this node asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct PeerFacts {
    pub(super) name: String,
    pub(super) address: String,
    /// Reason why it did not answer; empty if it did.
    pub(super) failure: String,
    /// Lanes that are up, of how many, as the daemon reports them.
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

    /// Paths that occur in the configuration.
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

    /// State of the daemon's configuration against its files.
    pub(super) fn state(&self) -> Option<&ConfigState> {
        self.daemon.as_ref().map(|status| &status.config)
    }

    /// Adds the reload that puts a fix into effect, if a daemon runs.
    pub(super) fn reloaded(&self, finding: Finding) -> Finding {
        if self.is_served() { finding.fix("pipectl config reload") } else { finding }
    }

    /// Adds the same to a fix that is given in words.
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
