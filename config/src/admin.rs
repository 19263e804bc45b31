//! The bodies of the admin API: HTTP/1.1 and JSON on a unix socket.
//!
//! Every body carries `schema_version`. Within a version fields are only added, so a reader of
//! reports ignores fields that it does not know. A change with an unknown field is refused, because
//! half of a change is a different change. A body of another version is refused by
//! [`Envelope::parse`] with the advice to use matching programs. The reports inside are the
//! engine's types, generic here because this crate knows nothing of the engine; `serde_json::Value`
//! stands for them where their content does not matter.

use std::collections::BTreeMap;
mod configuration;

use piped_core::modes::{CalibrationMode, PlannerMode, Profile};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

pub use self::configuration::{
    CONFIG, Change, ConfigKey, ConfigState, Configuration, RELOAD, RefusedReload, Reloaded,
    SourcesReport,
};
use crate::modes::planner_form;
use crate::node_key::PublicKey;

pub mod advice;
pub mod calibrate;
pub mod cluster;
pub mod dials;
pub mod ending;
pub mod limits;
pub mod nodes;
pub mod plan;
pub mod trace;
pub mod watch;

pub use self::watch::{METRICS, PAGE};

/// The version of the bodies that this crate reads and writes.
pub const SCHEMA_VERSION: u32 = 1;

/// Path of [`Status`], read with `GET`.
pub const STATUS: &str = "/v1/status";
/// Path of [`Stages`], read with `GET`.
pub const STAGES: &str = "/v1/stages";
/// Path of [`Explained`], read with `GET`. Append `last` (the latest transfer that moved bytes),
/// `any` (the latest of all) or a transfer's number.
pub const EXPLAIN: &str = "/v1/explain/";
/// Path of [`Clients`], read with `GET`.
pub const CLIENTS: &str = "/v1/clients";
/// Path of the planner mode, changed by `PUT` of a [`PlannerBody`].
pub const PLANNER: &str = "/v1/planner";
/// Path of the calibration mode, changed by `PUT` of a [`CalibrationBody`].
pub const CALIBRATION: &str = "/v1/calibration";

/// A body with its version.
///
/// ```
/// use piped_config::admin::{Envelope, PlannerBody};
/// use piped_core::modes::PlannerMode;
///
/// let json = Envelope::new(PlannerBody { mode: PlannerMode::Whole }).json();
/// assert_eq!(json, r#"{"schema_version":1,"mode":"whole"}"#);
/// let back: PlannerBody = Envelope::parse(json.as_bytes())?;
/// assert_eq!(back.mode, PlannerMode::Whole);
/// # Ok::<(), piped_config::admin::BodyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Version of the body: [`SCHEMA_VERSION`] when written by this crate.
    pub schema_version: u32,
    /// Content, with its fields beside the version.
    #[serde(flatten)]
    pub body: T,
}

impl<T> Envelope<T> {
    /// Puts `body` into an envelope of the current version.
    #[must_use]
    pub const fn new(body: T) -> Self {
        Self { schema_version: SCHEMA_VERSION, body }
    }
}

impl<T: Serialize> Envelope<T> {
    /// Writes the envelope as JSON text.
    ///
    /// # Panics
    ///
    /// If `T` has a map with keys that are not text, which no body here has.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("bodies are structs of plain fields")
    }
}

impl<T: DeserializeOwned> Envelope<T> {
    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`BodyError::Malformed`] for anything but JSON with these fields, [`BodyError::Version`] for
    /// a body of another version. A request body without `schema_version` counts as the current
    /// one, so that `curl -d '{"mode":"whole"}'` works.
    pub fn parse(json: &[u8]) -> Result<T, BodyError> {
        let mut value: Value = serde_json::from_slice(json).map_err(BodyError::malformed)?;
        let version =
            value.get("schema_version").map_or_else(|| Some(SCHEMA_VERSION.into()), Value::as_u64);
        if version != Some(SCHEMA_VERSION.into()) {
            return Err(BodyError::Version { found: version.unwrap_or(0) });
        }
        if let Some(fields) = value.as_object_mut() {
            // The version belongs to the envelope; bodies that ask for a change refuse unknown
            // fields.
            fields.remove("schema_version");
        }
        serde_json::from_value(value).map_err(BodyError::malformed)
    }
}

/// A body that cannot be used.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum BodyError {
    /// Text that is not the expected JSON.
    #[error("malformed body: {0}")]
    Malformed(String),
    /// Body of another schema version.
    #[error(
        "the body has schema_version {found}, this program reads {SCHEMA_VERSION}: use pipectl and \
         piped of one release"
    )]
    Version {
        /// Version found; 0 if it is not a number.
        found: u64,
    },
}

impl BodyError {
    fn malformed(error: serde_json::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The daemon at a glance. `S` is `piped_report::shard::ShardReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status<S = Value> {
    /// Version of the daemon's program.
    pub version: String,
    /// Name of this node among peers.
    pub node: String,
    /// Number of this run of the daemon; every start has another one.
    pub incarnation: u64,
    /// Process number of the daemon.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_seconds: f64,
    /// Latency profile that is configured.
    pub profile: Profile,
    /// Features of io_uring in use.
    pub tier: Vec<String>,
    /// Kernel rights that the daemon has given up.
    #[serde(default)]
    pub sandbox: SandboxReport,
    /// Features that are missing or switched off, each with cause and fix; empty if all is well.
    pub degraded: Vec<String>,
    /// Clients evicted since the start, by reason; reasons that never occurred are left out.
    #[serde(default)]
    pub evicted: BTreeMap<String, u64>,
    /// Clients that connected and got no session, by reason.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Peers that connected, by what came of it; only where this node has a key.
    #[serde(default)]
    pub greeted: BTreeMap<String, u64>,
    /// Sources that say where peers are, once they have spoken.
    #[serde(default)]
    pub discovery: Vec<nodes::SourceReport>,
    /// The public half of this node's key, if it has one.
    #[serde(default)]
    pub public_key: Option<PublicKey>,
    /// State of the running configuration against its files.
    #[serde(default)]
    pub config: ConfigState,
    /// Report of each shard.
    pub shards: Vec<S>,
}

/// Kernel rights that the daemon has given up, beside the limits on its ring (`restrictions` in
/// [`Status::tier`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SandboxReport {
    /// The version of Landlock in force; 0: none.
    pub landlock_abi: u32,
    /// Rights that Landlock covers: `files`, `truncation`, `ports`, `devices`, `signals`.
    pub landlock: Vec<String>,
    /// Origin of the filter of system calls: `own` (the daemon's), `given` (set by the service
    /// manager or container), `none`; empty from daemons that do not report it.
    #[serde(default)]
    pub syscalls: String,
}

/// The stages as measured. `S` is `piped_report::shard::StageReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stages<S = Value> {
    /// Report of each stage.
    pub stages: Vec<S>,
}

/// One transfer explained. `E` is `piped_report::shard::Explanation`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained<E = Value> {
    /// Facts known, plan chosen, times predicted and measured.
    pub explanation: E,
}

/// All sessions of clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    /// Reports, one for each session.
    pub clients: Vec<ClientReport>,
}

/// State of one client's session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Number of the session.
    pub session: u32,
    /// The client's process, as the kernel told it.
    pub pid: u32,
    /// User of the client.
    pub uid: u32,
    /// Number of queues of the session.
    pub queues: u32,
    /// Shared memory of the session, in bytes.
    pub arena_bytes: u64,
    /// Memory that the client lends, in bytes.
    #[serde(default)]
    pub lent_bytes: u64,
    /// Files and regions open.
    pub handles: u32,
    /// The user's name, if the system has one for it.
    #[serde(default)]
    pub user: Option<String>,
    /// The class of requests that name none.
    #[serde(default)]
    pub class: String,
    /// Requests taken from its rings that have not ended.
    #[serde(default)]
    pub requests: u64,
    /// Transfers that ended well.
    #[serde(default)]
    pub completed: u64,
    /// Transfers that ended otherwise.
    #[serde(default)]
    pub failed: u64,
    /// Bytes moved by these transfers.
    #[serde(default)]
    pub bytes: u64,
}

/// New way to choose sizes, until the daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannerBody {
    /// How fragment sizes are chosen from now on.
    #[serde(deserialize_with = "planner_form")]
    pub mode: PlannerMode,
}

/// New rule whether costs follow measurements, until the daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationBody {
    /// Mode to switch to.
    pub mode: CalibrationMode,
}

/// Reason why a request was refused. The HTTP status tells the kind: 400 malformed, 403 not
/// allowed, 404 no such name, 405 wrong method, 500 and 503 the daemon cannot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Cause and fix, for people.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_the_wire_and_unknown_fields_are_ignored() {
        let status = Status::<Value> {
            version: "0.1.0".to_owned(),
            node: "alpha".to_owned(),
            incarnation: u64::MAX,
            pid: 7,
            uptime_seconds: 1.5,
            profile: Profile::Latency,
            tier: vec!["defer_taskrun".to_owned()],
            greeted: BTreeMap::new(),
            discovery: Vec::new(),
            public_key: None,
            sandbox: SandboxReport {
                landlock_abi: 7,
                landlock: vec!["files".to_owned()],
                syscalls: "own".to_owned(),
            },
            degraded: Vec::new(),
            evicted: BTreeMap::from([("message".to_owned(), 1)]),
            refused: BTreeMap::new(),
            config: ConfigState::default(),
            shards: vec![serde_json::json!({"sessions": 1})],
        };
        let json = Envelope::new(status.clone()).json();
        assert!(json.starts_with(r#"{"schema_version":1,"version":"0.1.0""#), "{json}");
        let more = json.replacen('{', r#"{"added_later":[1],"#, 1);
        assert_eq!(Envelope::parse(more.as_bytes()), Ok(status));
    }

    #[test]
    fn another_version_is_refused_and_no_version_is_the_current_one() {
        let read = Envelope::<ErrorBody>::parse;
        assert!(read(br#"{"error":"x"}"#).is_ok());
        let newer = read(br#"{"schema_version":2,"error":"x"}"#);
        assert_eq!(newer, Err(BodyError::Version { found: 2 }));
        assert!(matches!(read(b"{"), Err(BodyError::Malformed(_))));
        assert!(matches!(read(b"[1]"), Err(BodyError::Malformed(_))));
    }
}
