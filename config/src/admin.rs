//! The bodies of the admin API: HTTP/1.1 and JSON on a unix socket.
//!
//! Every body carries `schema_version`. Within a version fields are only added, so who reads a report ignores
//! fields it does not know. A change with such a field is refused: half of what was asked is not what was
//! asked. A body of another version is refused by [`Envelope::parse`] with the advice to use matching
//! programs. The reports inside are the engine's types, generic here because this crate knows
//! nothing of the engine; `serde_json::Value` stands for them where their content does not matter.

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
pub mod dials;
pub mod ending;
pub mod limits;
pub mod plan;
pub mod trace;
pub mod watch;

pub use self::watch::{METRICS, PAGE};

/// The version of the bodies that this crate reads and writes.
pub const SCHEMA_VERSION: u32 = 1;

/// `GET`: [`Status`].
pub const STATUS: &str = "/v1/status";
/// `GET`: [`Stages`].
pub const STAGES: &str = "/v1/stages";
/// `GET` with `last` (that moved bytes), `any` (the last of all) or a transfer's number appended: [`Explained`].
pub const EXPLAIN: &str = "/v1/explain/";
/// `GET`: [`Clients`].
pub const CLIENTS: &str = "/v1/clients";
/// `PUT`: [`PlannerBody`].
pub const PLANNER: &str = "/v1/planner";
/// `PUT`: [`CalibrationBody`].
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
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What it is about; its fields stand beside the version.
    #[serde(flatten)]
    pub body: T,
}

impl<T> Envelope<T> {
    /// `body` in the current version.
    #[must_use]
    pub const fn new(body: T) -> Self {
        Self { schema_version: SCHEMA_VERSION, body }
    }
}

impl<T: Serialize> Envelope<T> {
    /// As JSON text.
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
    /// [`BodyError::Malformed`] for anything but JSON with these fields, [`BodyError::Version`] for a body of
    /// another version. A request body without `schema_version` counts as the current one, so that
    /// `curl -d '{"mode":"whole"}'` works.
    pub fn parse(json: &[u8]) -> Result<T, BodyError> {
        let mut value: Value = serde_json::from_slice(json).map_err(BodyError::malformed)?;
        let version =
            value.get("schema_version").map_or_else(|| Some(SCHEMA_VERSION.into()), Value::as_u64);
        if version != Some(SCHEMA_VERSION.into()) {
            return Err(BodyError::Version { found: version.unwrap_or(0) });
        }
        if let Some(fields) = value.as_object_mut() {
            // It is the envelope's; what asks for a change refuses fields that it does not know.
            fields.remove("schema_version");
        }
        serde_json::from_value(value).map_err(BodyError::malformed)
    }
}

/// A body that cannot be used.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum BodyError {
    /// Not the JSON expected.
    #[error("malformed body: {0}")]
    Malformed(String),
    /// Another version.
    #[error(
        "the body has schema_version {found}, this program reads {SCHEMA_VERSION}: use pipectl and piped of one release"
    )]
    Version {
        /// What it says; 0 if not a number.
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
    /// Version of the daemon.
    pub version: String,
    /// Its name among peers.
    pub node: String,
    /// The number of this run of it; changes at every start.
    pub incarnation: u64,
    /// Its process.
    pub pid: u32,
    /// Since it started, in seconds.
    pub uptime_seconds: f64,
    /// The configured profile.
    pub profile: Profile,
    /// Features of io_uring in use.
    pub tier: Vec<String>,
    /// What the daemon has denied itself.
    #[serde(default)]
    pub sandbox: SandboxReport,
    /// What is missing or switched off, each with its cause and its fix; empty when all is well.
    pub degraded: Vec<String>,
    /// Clients evicted since the start, by reason; a reason that never was is not there.
    #[serde(default)]
    pub evicted: BTreeMap<String, u64>,
    /// Clients that connected and got no session, by reason.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Peers that connected, by what came of it; only where this node has a key.
    #[serde(default)]
    pub greeted: BTreeMap<String, u64>,
    /// The public half of this node's key, if it has one.
    #[serde(default)]
    pub public_key: Option<PublicKey>,
    /// Whether what runs is what the files say.
    #[serde(default)]
    pub config: ConfigState,
    /// The shards.
    pub shards: Vec<S>,
}

/// What the daemon has denied itself, beside what its ring may do (`restrictions` in [`Status::tier`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SandboxReport {
    /// The version of Landlock in force; 0: none.
    pub landlock_abi: u32,
    /// What it covers: `files`, `truncation`, `ports`, `devices`, `signals`.
    pub landlock: Vec<String>,
    /// Who filters its system calls: `own` (it does), `given` (whoever started it), `none`; nothing of daemons that do
    /// not say.
    #[serde(default)]
    pub syscalls: String,
}

/// The stages as measured. `S` is `piped_report::shard::StageReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stages<S = Value> {
    /// The stages.
    pub stages: Vec<S>,
}

/// One transfer explained. `E` is `piped_report::shard::Explanation`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained<E = Value> {
    /// What was known, chosen, predicted and measured.
    pub explanation: E,
}

/// The sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    /// One entry a session.
    pub clients: Vec<ClientReport>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its number.
    pub session: u32,
    /// The client's process, as the kernel told it.
    pub pid: u32,
    /// The client's user.
    pub uid: u32,
    /// Queues.
    pub queues: u32,
    /// Shared memory in bytes.
    pub arena_bytes: u64,
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
    /// Bytes they moved.
    #[serde(default)]
    pub bytes: u64,
}

/// How sizes are chosen from now on (until the daemon ends).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannerBody {
    /// The mode.
    #[serde(deserialize_with = "planner_form")]
    pub mode: PlannerMode,
}

/// Whether costs follow what is measured from now on (until the daemon ends).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationBody {
    /// The mode.
    pub mode: CalibrationMode,
}

/// Why a request was refused. The HTTP status tells the kind: 400 malformed, 403 not allowed, 404 nothing of
/// that name, 405 wrong method, 500 and 503 the daemon cannot.
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
