//! Layers of TOML to one [`Config`].
//!
//! A layer is a file, an environment variable or a `--set`; the latter two become one line of TOML, so all
//! three pass the same checks. Each layer is checked alone (its place is known), then merged by the `config`
//! crate: tables key by key, lists as a whole.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use config::{File, FileFormat};
use toml_edit::{Document, Key, Value};

use crate::error::{ConfigError, Place};
use crate::keys::{Keys, hint};
use crate::schema::Config;

/// Read when no other file is named; its absence is no error.
pub const DEFAULT_FILE: &str = "/etc/piped/piped.toml";

/// Variables with the prefix `PIPED_` that are for `pipectl` and clients, not configuration keys.
pub const RESERVED_ENV: [&str; 3] = ["PIPED_ADMIN_SOCKET", "PIPED_CLIENT_SOCKET", "PIPED_CONFIG"];

const ENV_PREFIX: &str = "PIPED_";

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sources {
    /// The main file; none: [`DEFAULT_FILE`] if it exists. `conf.d/*.toml` beside it follow in lexical order.
    pub file: Option<PathBuf>,
    /// Environment variables; those that do not begin with `PIPED_` are ignored.
    pub env: Vec<(String, String)>,
    /// `key=value` from the command line, the last word.
    pub overrides: Vec<String>,
}

impl Sources {
    /// The environment of this process, and what its command line said.
    #[must_use]
    pub fn of_process(file: Option<PathBuf>, overrides: Vec<String>) -> Self {
        let text = |s: &OsStr| s.to_str().map(str::to_owned);
        let env = env::vars_os().filter_map(|(k, v)| Some((text(&k)?, text(&v)?))).collect();
        Self { file, env, overrides }
    }
}

/// A configuration and the files it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Validated.
    pub config: Config,
    /// Files read, in order.
    pub files: Vec<PathBuf>,
}

/// Reads, checks and merges all layers.
///
/// # Errors
///
/// [`ConfigError`], naming the layer, the line, the key and what to write instead.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let files = files_of(sources)?;
    let mut layers = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        layers.push(Layer::of_file(path, text)?);
    }
    for (name, value) in &sources.env {
        if let Some(key) = env_key(name) {
            layers.push(Layer::of_setting(name.clone(), &key, value)?);
        }
    }
    for setting in &sources.overrides {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| ConfigError::Override(setting.clone()))?;
        layers.push(Layer::of_setting(format!("--set {}", key.trim()), key.trim(), value)?);
    }
    let config = merge(&layers)?;
    config.validate().map_err(|fault| ConfigError::Invalid {
        place: place_of(&layers, &fault.key),
        key: fault.key,
        problem: fault.problem,
    })?;
    Ok(Loaded { config, files })
}

/// The main file, then its drop-ins.
fn files_of(sources: &Sources) -> Result<Vec<PathBuf>, ConfigError> {
    let main = sources.file.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    let mut files = Vec::new();
    if sources.file.is_some() || main.exists() {
        files.push(main.clone());
    }
    let directory = main.parent().unwrap_or_else(|| Path::new("")).join("conf.d");
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

/// `PIPED_SHARDS__COUNT` is `shards.count`; none for a variable that is not for us.
fn env_key(name: &str) -> Option<String> {
    let key = name.strip_prefix(ENV_PREFIX)?;
    if RESERVED_ENV.contains(&name) {
        return None;
    }
    Some(key.split("__").map(str::to_ascii_lowercase).collect::<Vec<_>>().join("."))
}

/// One checked layer.
struct Layer {
    name: String,
    text: String,
    /// Lines mean something to the operator.
    is_file: bool,
    /// Every value, with its place in the text.
    leaves: Vec<Leaf>,
}

struct Leaf {
    path: String,
    /// Of the key.
    key_at: usize,
    /// Of the value.
    from: usize,
    to: usize,
}

impl Layer {
    fn of_file(path: &Path, text: String) -> Result<Self, ConfigError> {
        Self::check(path.display().to_string(), text, true)
    }

    /// `value` is TOML if that fits, else text: `--set shards.count=2` and `--set node.name=alpha` both work
    /// without quotes, and so does a node called `7`.
    fn of_setting(name: String, key: &str, value: &str) -> Result<Self, ConfigError> {
        let keys = Key::parse(key).map_err(|error| ConfigError::Syntax {
            place: Place { layer: name.clone(), line: None },
            message: format!("`{key}` is not a key: {}", first_line(&error.to_string())),
        })?;
        let path: String = keys.iter().map(Key::display_repr).collect::<Vec<_>>().join(".");
        let text = Value::from(value).to_string();
        let as_text = Self::check(name.clone(), format!("{path} = {}", text.trim()), false);
        if value.trim().parse::<Value>().is_err() {
            return as_text;
        }
        match Self::check(name, format!("{path} = {}", value.trim()), false) {
            Err(error @ ConfigError::BadValue { .. }) => as_text.or(Err(error)),
            checked => checked,
        }
    }

    /// Known keys, then typed values.
    fn check(name: String, text: String, is_file: bool) -> Result<Self, ConfigError> {
        let mut layer = Self { name, text, is_file, leaves: Vec::new() };
        let document =
            Document::parse(layer.text.clone()).map_err(|error| ConfigError::Syntax {
                place: layer.place(error.span().map_or(0, |span| span.start)),
                message: error.message().to_owned(),
            })?;
        layer.walk(document.as_table(), Keys::root(), &mut Vec::new())?;
        toml_edit::de::from_document::<Config>(document).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let leaf = layer.leaves.iter().find(|leaf| (leaf.from..leaf.to).contains(&at));
            ConfigError::BadValue {
                place: layer.place(leaf.map_or(at, |leaf| leaf.key_at)),
                key: leaf.map_or_else(String::new, |leaf| leaf.path.clone()),
                message: error.message().to_owned(),
            }
        })?;
        Ok(layer)
    }

    fn walk(
        &mut self,
        table: &dyn toml_edit::TableLike,
        keys: &Keys,
        path: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        for (name, item) in table.iter() {
            let key_at = table.key(name).and_then(Key::span).map_or(0, |span| span.start);
            path.push(name.to_owned());
            let Some(below) = keys.child(name) else {
                let parts: Vec<&str> = path.iter().map(String::as_str).collect();
                return Err(ConfigError::UnknownKey {
                    place: self.place(key_at),
                    key: path.join("."),
                    hint: hint(&parts),
                });
            };
            match (item.as_table_like(), below) {
                (Some(inner), Keys::Table(_) | Keys::Named(_)) => self.walk(inner, below, path)?,
                _ => {
                    let span = item.span().unwrap_or(0..usize::MAX);
                    let path = path.join(".");
                    self.leaves.push(Leaf { path, key_at, from: span.start, to: span.end });
                }
            }
            path.pop();
        }
        Ok(())
    }

    fn place(&self, at: usize) -> Place {
        let line = || 1 + self.text.bytes().take(at).filter(|&byte| byte == b'\n').count();
        Place { layer: self.name.clone(), line: self.is_file.then(line) }
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
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

/// Where a key (or one below it) was set last; for one that a named table lacks, where the table is.
fn place_of(layers: &[Layer], key: &str) -> Place {
    let below = |path: &str, key: &str| {
        path == key || path.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
    };
    let named = key.starts_with("peers.") || key.starts_with("exports.");
    let table = key.rsplit_once('.').map(|(table, _)| table).filter(|_| named);
    [Some(key), table]
        .into_iter()
        .flatten()
        .find_map(|key| {
            layers.iter().rev().find_map(|layer| {
                let leaf = layer.leaves.iter().find(|leaf| below(&leaf.path, key))?;
                Some(layer.place(leaf.key_at))
            })
        })
        .unwrap_or_else(|| Place { layer: "defaults".to_owned(), line: None })
}
