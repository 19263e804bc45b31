//! What the daemon says of its configuration, and of a reload.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `GET`: [`Configuration`].
pub const CONFIG: &str = "/v1/config";
/// `POST` without a body: [`Reloaded`], or an error with the reasons; then everything is as before.
pub const RELOAD: &str = "/v1/config/reload";

/// Whether what runs is what the files say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConfigState {
    /// Files that were read, in order.
    pub files: Vec<String>,
    /// Since they were last loaded, in seconds.
    pub loaded_seconds_ago: f64,
    /// Keys that are different in the files, and take effect when the daemon is restarted.
    pub restart_needed: Vec<Change>,
    /// The last reload, if it was refused.
    pub refused_reload: Option<RefusedReload>,
}

/// A key with two values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The key.
    pub key: String,
    /// What it was, or still is; null if it was not there.
    pub from: Value,
    /// What it is, or would be; null if it is not there any more.
    pub to: Value,
}

/// A reload that changed nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RefusedReload {
    /// Since then, in seconds.
    pub seconds_ago: f64,
    /// All reasons, one a line.
    pub error: String,
}

/// The configuration in effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// How it relates to the files.
    #[serde(flatten)]
    pub state: ConfigState,
    /// Every key.
    pub keys: Vec<ConfigKey>,
    /// Where it comes from, and comes from again with a reload; none: the daemon was given it.
    #[serde(default)]
    pub sources: Option<SourcesReport>,
}

/// The layers of a daemon's configuration, so that others can read what it would read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SourcesReport {
    /// The main file, absolute; there or not.
    pub main_file: PathBuf,
    /// Whether it was named: then it has to be there.
    pub named: bool,
    /// Variables of the daemon's environment that are keys.
    pub variables: BTreeMap<String, String>,
    /// `key=value` of its command line.
    pub settings: Vec<String>,
}

/// A key in effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigKey {
    /// The key, as in `shards.count`.
    pub key: String,
    /// Its value, as in a file.
    pub value: Value,
    /// `default`, `FILE:LINE`, `PIPED_...`, `--set KEY`, or `runtime` (changed by pipectl, until the daemon
    /// ends).
    pub origin: String,
    /// Of what was changed by pipectl: where its value comes from at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<String>,
}

/// A reload that was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// What is different now.
    pub changed: Vec<Change>,
    /// Sessions that ended because their users are not admitted any more.
    #[serde(default)]
    pub ended_sessions: u64,
    /// Handles that ended because what they are for is not allowed any more.
    #[serde(default)]
    pub ended_handles: u64,
    /// How what runs relates to the files.
    #[serde(flatten)]
    pub state: ConfigState,
}
