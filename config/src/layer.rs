//! One layer: its text, checked by itself, so that a mistake is reported with its place.

use std::path::Path;

use toml_edit::{Document, DocumentMut, Item, Key, Table, TableLike, Value};

use crate::error::{ConfigError, Place};
use crate::keys::{Keys, hint};
use crate::schema::Config;

/// Text with known keys and typed values, or its mistakes.
#[derive(Debug)]
pub(crate) struct Layer {
    name: String,
    pub(crate) text: String,
    /// Whether line numbers help the operator.
    is_file: bool,
    /// All values, each with its place in the text.
    leaves: Vec<Leaf>,
    /// All mistakes of the layer.
    pub(crate) faults: Vec<ConfigError>,
}

#[derive(Debug)]
struct Leaf {
    /// Keys of the value, joined by dots.
    path: String,
    /// Offset of the last key in the text.
    at: usize,
}

impl Layer {
    pub(crate) fn of_file(path: &Path, text: &str) -> Self {
        Self::check(path.display().to_string(), text.to_owned(), true)
    }

    /// Reads `value` as TOML if possible, else as text: `--set shards.count=2` and `--set
    /// node.name=alpha` both work without quotes, and so does a node called `7`.
    pub(crate) fn of_setting(name: String, key: &str, value: &str) -> Self {
        let keys = match Key::parse(key) {
            Ok(keys) => keys,
            Err(error) => {
                let message = format!("`{key}` is not a key: {}", first_line(&error.to_string()));
                let mut layer = Self::empty(name, String::new(), false);
                let place = Place { layer: layer.name.clone(), line: None };
                layer.faults.push(ConfigError::Syntax { place, message });
                return layer;
            }
        };
        let path: String = keys.iter().map(Key::display_repr).collect::<Vec<_>>().join(".");
        let text = Value::from(value).to_string();
        let as_text = Self::check(name.clone(), format!("{path} = {}", text.trim()), false);
        if value.trim().parse::<Value>().is_err() {
            return as_text;
        }
        let as_toml = Self::check(name, format!("{path} = {}", value.trim()), false);
        let is_of_wrong_type = matches!(as_toml.faults[..], [ConfigError::BadValue { .. }, ..]);
        if is_of_wrong_type && as_text.faults.is_empty() { as_text } else { as_toml }
    }

    fn empty(name: String, text: String, is_file: bool) -> Self {
        Self { name, text, is_file, leaves: Vec::new(), faults: Vec::new() }
    }

    fn check(name: String, text: String, is_file: bool) -> Self {
        let mut layer = Self::empty(name, text, is_file);
        match Document::parse(layer.text.clone()) {
            Ok(document) => layer.walk(document.as_table(), Keys::root(), &mut Vec::new()),
            Err(error) => {
                let place = layer.place(error.span().map_or(0, |span| span.start));
                let message = error.message().to_owned();
                layer.faults.push(ConfigError::Syntax { place, message });
            }
        }
        layer
    }

    /// Checks keys, then values, one by one, so that every mistake is found.
    fn walk<'a>(&mut self, table: &'a dyn TableLike, keys: &Keys, path: &mut Vec<&'a str>) {
        for (name, item) in table.iter() {
            let at = table.key(name).and_then(Key::span).map_or(0, |span| span.start);
            path.push(name);
            match (item.as_table_like(), keys.child(name)) {
                (_, None) => self.faults.push(ConfigError::UnknownKey {
                    place: self.place(at),
                    key: path.join("."),
                    hint: hint(path),
                }),
                (Some(inner), Some(below @ (Keys::Table(_) | Keys::Named(_)))) => {
                    self.walk(inner, below, path);
                }
                (_, Some(_)) => self.check_value(item, at, path),
            }
            path.pop();
        }
    }

    fn check_value(&mut self, item: &Item, at: usize, path: &[&str]) {
        self.leaves.push(Leaf { path: path.join("."), at });
        if let Err(error) = toml_edit::de::from_document::<Config>(alone(path, item)) {
            self.faults.push(ConfigError::BadValue {
                place: self.place(at),
                key: path.join("."),
                message: error.message().to_owned(),
            });
        }
    }

    /// Place of the first key of this layer for which `matches` is true.
    pub(crate) fn find(&self, matches: impl Fn(&str) -> bool) -> Option<Place> {
        let leaf = self.leaves.iter().find(|leaf| matches(&leaf.path))?;
        Some(self.place(leaf.at))
    }

    /// All keys that the layer sets, each with its place.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, Place)> {
        self.leaves.iter().map(|leaf| (leaf.path.as_str(), self.place(leaf.at)))
    }

    fn place(&self, at: usize) -> Place {
        let line = || 1 + self.text.bytes().take(at).filter(|&byte| byte == b'\n').count();
        Place { layer: self.name.clone(), line: self.is_file.then(line) }
    }
}

/// A document with one value.
fn alone(path: &[&str], item: &Item) -> DocumentMut {
    let value = path.iter().rev().fold(item.clone(), |below, name| {
        let mut table = Table::new();
        table.insert(name, below);
        Item::Table(table)
    });
    DocumentMut::from(value.into_table().unwrap_or_default())
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
