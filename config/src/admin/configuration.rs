//! The daemon's answers about its configuration and about a reload.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Path of [`Configuration`], read with `GET`.
pub const CONFIG: &str = "/v1/config";
/// Path of a reload: `POST` without a body. The answer is [`Reloaded`], or an error with the
/// reasons; then nothing has changed.
pub const RELOAD: &str = "/v1/config/reload";

/// State of the running configuration against its files.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConfigState {
    /// Files that were read, in order.
    pub files: Vec<String>,
    /// Seconds since the files were last loaded.
    pub loaded_seconds_ago: f64,
    /// Keys that differ in the files and take effect with a restart.
    pub restart_needed: Vec<Change>,
    /// The last reload, if it was refused.
    pub refused_reload: Option<RefusedReload>,
}

/// One key with both values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Name of the key.
    pub key: String,
    /// Old or present value; null if there was none.
    pub from: Value,
    /// New or future value; null if there is none any more.
    pub to: Value,
}

/// A reload that changed nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RefusedReload {
    /// Seconds since the refusal.
    pub seconds_ago: f64,
    /// All reasons, one a line.
    pub error: String,
}

/// The configuration in effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// State against the files.
    #[serde(flatten)]
    pub state: ConfigState,
    /// Every key with its value.
    pub keys: Vec<ConfigKey>,
    /// Sources that a reload reads again; none if the daemon was given its configuration.
    #[serde(default)]
    pub sources: Option<SourcesReport>,
}

/// Layers of a daemon's configuration, so that another program can read the same ones.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SourcesReport {
    /// Absolute path of the main file, which need not exist.
    pub main_file: PathBuf,
    /// Whether the main file was named: then it has to exist.
    pub named: bool,
    /// Variables of the daemon's environment that are keys.
    pub variables: BTreeMap<String, String>,
    /// Settings (`key=value`) of its command line.
    pub settings: Vec<String>,
}

/// One key in effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigKey {
    /// Name of the key, as in `shards.count`.
    pub key: String,
    /// Value of the key, as in a file.
    pub value: Value,
    /// Origin of the value: `default`, `FILE:LINE`, `PIPED_...`, `--set KEY`, or `runtime` (changed
    /// by pipectl until the daemon ends).
    pub origin: String,
    /// Origin of the value after a restart, for keys that pipectl changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<String>,
}

/// A reload that was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Keys that have changed.
    pub changed: Vec<Change>,
    /// Sessions that ended because their users are no longer admitted.
    #[serde(default)]
    pub ended_sessions: u64,
    /// Handles that ended because their use is no longer allowed.
    #[serde(default)]
    pub ended_handles: u64,
    /// State of the running configuration against its files.
    #[serde(flatten)]
    pub state: ConfigState,
}
