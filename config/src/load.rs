//! Makes one [`Config`] of all layers.
//!
//! A layer is a file, an environment variable or a `--set`; the latter two become one line of TOML,
//! so all three pass the same checks. Each layer is checked alone, while the places of its values
//! are known, then merged by the `config` crate: tables key by key, lists as a whole.
//!
//! [`load`] reads the files; [`parse`] does the rest and touches nothing but its arguments.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use config::{File, FileFormat};

use crate::admin::SourcesReport;
use crate::error::{ConfigError, Findings, Place};
use crate::layer::Layer;
use crate::regular::read_text;
use crate::schema::Config;

/// The main file if no other one is named; it may be absent.
pub const DEFAULT_FILE: &str = "/etc/piped/piped.toml";

/// Variables with the prefix `PIPED_` that `pipectl` and clients read, or that `pipectl lab exec`
/// sets; they are no keys.
pub const RESERVED_ENV: [&str; 5] =
    ["PIPED_ADMIN_SOCKET", "PIPED_CLIENT_SOCKET", "PIPED_CONFIG", "PIPED_LAB", "PIPED_LAB_NODE"];

const ENV_PREFIX: &str = "PIPED_";

/// Sources of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sources {
    /// Main file; none for [`DEFAULT_FILE`] if it exists. `conf.d/*.toml` beside it follow in
    /// lexical order.
    pub file: Option<PathBuf>,
    /// Environment variables; names without `PIPED_` in front are ignored.
    pub env: Vec<(String, String)>,
    /// Settings (`key=value`) from the command line, which win over all others.
    pub overrides: Vec<String>,
}

impl Sources {
    /// Sources of this process: its environment and its command line.
    #[must_use]
    pub fn of_process(file: Option<PathBuf>, overrides: Vec<String>) -> Self {
        // A value that is not text is refused like any bad value, not passed over.
        let text = |s: &OsStr| s.to_string_lossy().into_owned();
        let env = env::vars_os().map(|(k, v)| (text(&k), text(&v))).collect();
        Self { file, env, overrides }
    }

    /// Path of the main file, which need not exist.
    #[must_use]
    pub fn main_file(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE))
    }

    /// Folder of the drop-ins, beside the main file.
    #[must_use]
    pub fn drop_ins(&self) -> PathBuf {
        self.main_file().parent().unwrap_or_else(|| Path::new("")).join("conf.d")
    }
}

impl From<&Sources> for SourcesReport {
    fn from(sources: &Sources) -> Self {
        let main_file = sources.main_file();
        let is_key = |(name, _): &&(String, String)| env_key(name).is_some();
        Self {
            main_file: std::path::absolute(main_file).unwrap_or_else(|_| main_file.to_owned()),
            named: sources.file.is_some(),
            variables: sources.env.iter().filter(is_key).cloned().collect(),
            settings: sources.overrides.clone(),
        }
    }
}

impl From<SourcesReport> for Sources {
    fn from(report: SourcesReport) -> Self {
        // The default one need not be there.
        let is_default = !report.named && report.main_file == Path::new(DEFAULT_FILE);
        Self {
            file: (!is_default).then_some(report.main_file),
            env: report.variables.into_iter().collect(),
            overrides: report.settings,
        }
    }
}

/// One layer as somebody wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// File of the configuration.
    File {
        /// Path of the file, for messages.
        path: PathBuf,
        /// Text of the file.
        text: String,
    },
    /// Environment variable; one that is no key is ignored.
    Variable {
        /// Name of the variable.
        name: String,
        /// Value of the variable.
        value: String,
    },
    /// Setting of a `--set`: `key=value`.
    Setting(String),
}

/// A configuration and the places of its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Configuration that has been validated.
    pub config: Config,
    /// Files that were read, in order.
    pub files: Vec<PathBuf>,
    /// Place where each key was set; missing keys have their defaults.
    pub origins: BTreeMap<String, Place>,
}

/// Reads, checks and merges all layers of a configuration.
///
/// # Errors
///
/// [`Findings`], each naming the layer, the line, the key and what to write instead.
pub fn load(sources: &Sources) -> Result<Loaded, Findings> {
    parse(&read(sources)?)
}

/// Reads all layers as they are now, unchecked.
///
/// # Errors
///
/// All files that cannot be read.
pub fn read(sources: &Sources) -> Result<Vec<Input>, Findings> {
    let (mut inputs, mut unread) = (Vec::new(), Vec::new());
    for path in files_of(sources)? {
        match read_text(&path) {
            Ok(text) => inputs.push(Input::File { path, text }),
            Err(source) => unread.push(ConfigError::Read { path, source }),
        }
    }
    let variable = |(name, value): &(String, String)| Input::Variable {
        name: name.clone(),
        value: value.clone(),
    };
    inputs.extend(sources.env.iter().map(variable));
    inputs.extend(sources.overrides.iter().cloned().map(Input::Setting));
    Findings::none_or(unread).map(|()| inputs)
}

/// Checks and merges layers, the strongest last.
///
/// # Errors
///
/// [`Findings`]: every mistake of every layer; if there is none, values that cannot work together.
pub fn parse(inputs: &[Input]) -> Result<Loaded, Findings> {
    let (mut layers, mut faults, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for input in inputs {
        let layer = match input {
            Input::File { path, text } => {
                files.push(path.clone());
                Layer::of_file(path, text)
            }
            Input::Variable { name, value } => match env_key(name) {
                Some(key) => Layer::of_setting(name.clone(), &key, value),
                None => continue,
            },
            Input::Setting(setting) => match setting.split_once('=') {
                Some((key, value)) => {
                    let key = key.trim();
                    Layer::of_setting(format!("--set {key}"), key, value)
                }
                None => {
                    faults.push(ConfigError::Override(setting.clone()));
                    continue;
                }
            },
        };
        layers.push(layer);
    }
    faults.extend(layers.iter_mut().flat_map(|layer| layer.faults.drain(..)));
    Findings::none_or(faults)?;
    let config = merge(&layers)?;
    let invalid = config.faults().into_iter().map(|fault| ConfigError::Invalid {
        place: place_of(&layers, &fault.key),
        key: fault.key,
        problem: fault.problem,
    });
    Findings::none_or(invalid.collect())?;
    let set = layers.iter().flat_map(Layer::keys);
    let origins = set.map(|(key, place)| (key.to_owned(), place)).collect();
    Ok(Loaded { config, files, origins })
}

/// The main file, then its drop-ins.
fn files_of(sources: &Sources) -> Result<Vec<PathBuf>, ConfigError> {
    let main = sources.main_file().to_owned();
    let mut files = Vec::new();
    if sources.file.is_some() || main.exists() {
        files.push(main);
    }
    let directory = sources.drop_ins();
    let fail = |source: io::Error| ConfigError::Read { path: directory.clone(), source };
    match fs::read_dir(&directory) {
        Ok(entries) => {
            let mut drop_ins = Vec::new();
            for entry in entries {
                let path = entry.map_err(fail)?.path();
                let hidden =
                    path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
                if !hidden && path.extension() == Some(OsStr::new("toml")) {
                    drop_ins.push(path);
                }
            }
            drop_ins.sort();
            files.extend(drop_ins);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    Ok(files)
}

/// Key of an environment variable: `PIPED_SHARDS__COUNT` is `shards.count`. None for variables of
/// others.
fn env_key(name: &str) -> Option<String> {
    let key = name.strip_prefix(ENV_PREFIX)?;
    if RESERVED_ENV.contains(&name) {
        return None;
    }
    Some(key.split("__").map(str::to_ascii_lowercase).collect::<Vec<_>>().join("."))
}

fn merge(layers: &[Layer]) -> Result<Config, ConfigError> {
    let mut builder = config::Config::builder();
    for layer in layers {
        builder = builder.add_source(File::from_str(&layer.text, FileFormat::Toml));
    }
    builder
        .build()
        .and_then(config::Config::try_deserialize)
        .map_err(|error| ConfigError::Merge(error.to_string()))
}

/// Place where a key, or one below it, was set last; for a key missing from a named table, the
/// table's place.
fn place_of(layers: &[Layer], key: &str) -> Place {
    let below = |path: &str, key: &str| {
        path == key || path.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
    };
    let named = key.starts_with("peers.") || key.starts_with("exports.");
    let table = key.rsplit_once('.').map(|(table, _)| table).filter(|_| named);
    [Some(key), table]
        .into_iter()
        .flatten()
        .find_map(|key| layers.iter().rev().find_map(|layer| layer.find(|path| below(path, key))))
        .unwrap_or_else(Place::defaults)
}
