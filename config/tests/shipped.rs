//! The shipped file agrees with the types: every key is there, with its default.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use piped_config::{Config, Export, Peer, Sources, load};
use serde_json::Value;

fn shipped() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("piped.toml")
}

fn leaves(value: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                leaves(value, &path, into);
            }
        }
        _ => {
            into.insert(prefix.to_owned());
        }
    }
}

fn leaves_of(config: &impl serde::Serialize) -> BTreeSet<String> {
    let mut into = BTreeSet::new();
    leaves(&serde_json::to_value(config).expect("plain data"), "", &mut into);
    into
}

#[test]
fn the_shipped_file_equals_the_defaults() {
    let loaded = load(&Sources { file: Some(shipped()), ..Sources::default() }).expect("valid");
    assert_eq!(loaded.config, Config::default());
}

/// The keys that a text sets.
fn written(text: &str) -> BTreeSet<String> {
    fn walk(table: &dyn toml_edit::TableLike, prefix: &str, into: &mut BTreeSet<String>) {
        for (key, item) in table.iter() {
            let path = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
            match item.as_table_like() {
                Some(inner) => walk(inner, &path, into),
                None => drop(into.insert(path)),
            }
        }
    }
    let document: toml_edit::DocumentMut = text.parse().expect("TOML");
    let mut into = BTreeSet::new();
    walk(document.as_table(), "", &mut into);
    into
}

#[test]
fn the_shipped_file_sets_every_key_and_explains_it() {
    let text = fs::read_to_string(shipped()).expect("shipped");
    // Empty maps are leaves of the JSON, but not keys.
    let mut all = leaves_of(&Config::default());
    all.retain(|key| key != "peers" && key != "exports");
    assert_eq!(written(&text), all);
    // Each of its lines is needed for that.
    for line in text.lines().filter(|line| line.contains(" = ") && !line.starts_with('#')) {
        let without = text.replacen(&format!("\n{line}\n"), "\n", 1);
        assert_eq!(written(&without).len() + 1, all.len(), "without {line}");
    }
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in
        lines.iter().enumerate().filter(|(_, l)| l.contains(" = ") && !l.starts_with('#'))
    {
        let above = lines[at - 1];
        let grouped = above.contains(" = ");
        assert!(above.starts_with('#') || grouped, "line {}: no comment above {line}", at + 1);
    }
}

#[test]
fn the_commented_examples_are_valid_and_complete() {
    let text = fs::read_to_string(shipped()).expect("shipped");
    let example: String = text
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .skip_while(|line| !line.starts_with('['))
        .filter(|line| {
            line.starts_with('[') || line.split('#').next().is_some_and(|l| l.contains(" = "))
        })
        .map(|line| format!("{line}\n"))
        .collect();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("piped.toml");
    fs::write(&file, format!("listen.allow_plain = [\"10.9.0.0/24\"]\n{example}")).expect("write");
    let config = load(&Sources { file: Some(file), ..Sources::default() }).expect("valid").config;
    let (peer, export) = (&config.peers["beta"], &config.exports["data"]);
    for key in leaves_of(peer).union(&leaves_of(export)) {
        assert!(example.contains(&format!("{key} = ")), "{key} is not in the example:\n{example}");
    }
    assert_eq!(*export, Export { path: PathBuf::from("/srv/data"), ..Export::default() });
    assert_ne!(*peer, Peer::default());
}
