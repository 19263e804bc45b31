//! Makes `docs/configuration.md` from the comments of `piped.toml`, the types, and the keys that a
//! reload takes. `PIPED_BLESS=1 cargo test -p piped reference` writes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::{env, fs};

use piped_config::{Config, Export, Peer};
use piped_control::reload::in_effect;
use serde_json::{Map, Value, json};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/piped.toml");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

/// Key as `pipectl keys show` prints one.
/// A key of a cluster, of no private half that anybody has.
const CLUSTER_KEY: &str = "ed25519:3q2+7wABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhs=";
const KEY: &str = "3q2+7wABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhs=";

const HEAD: &str = "# Configuration

Every key, its default, and whether `pipectl config reload` takes a change of it or only a restart
does. A test makes this page from `config/piped.toml` (`PIPED_BLESS=1 cargo test -p piped
reference`): change the comments there.

Layers, later ones win: the defaults, `/etc/piped/piped.toml`, `/etc/piped/conf.d/*.toml` in lexical
order, the environment (`PIPED_SHARDS__COUNT=2`), the command line (`--set shards.count=2`).
Unknown keys and bad values are refused with file and line. `pipectl config check` shows all of
them, `pipectl config show` the origin of each value in effect. `pipectl status` lists the changes
that wait for a restart.

A size is bytes, or `KiB`, `MiB`, `GiB`, `TiB`; a duration `ns`, `us`, `ms`, `s`, `m`, `h`. An
address is an IP address and a port.
";

/// A table of the file, with the texts about it and about its keys.
#[derive(Debug, Default)]
struct Table {
    name: String,
    words: String,
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    /// Name with its table: `client.socket`.
    path: String,
    /// Value in the file; none in examples, because their values are no defaults.
    default: Option<String>,
    words: String,
}

/// The file's tables and keys, those of the commented examples as `[peers.NAME]`.
fn shipped() -> Vec<Table> {
    let text = fs::read_to_string(SHIPPED).expect("shipped");
    // The text before the first empty line is about the file.
    let (_, body) = text.split_once("\n\n").expect("a head");
    let mut tables = vec![Table::default()];
    let mut words: Vec<&str> = Vec::new();
    let mut in_example = false;
    for line in body.lines() {
        let line = line.trim_end();
        let commented = line.strip_prefix("# ").unwrap_or(line);
        let is_example = line.starts_with('#');
        if commented.starts_with('[') && commented.ends_with(']') {
            in_example = is_example;
            let name = commented.trim_matches(['[', ']']);
            let name = match name.split_once('.') {
                Some((table, _)) if is_example => format!("{table}.NAME"),
                _ => name.to_owned(),
            };
            tables.push(Table { name, words: prose(&words), keys: Vec::new() });
            words.clear();
        } else if let Some((key, value)) = setting(commented, is_example == in_example) {
            let table = tables.last_mut().expect("one");
            let path = [table.name.as_str(), key].join(".").trim_start_matches('.').to_owned();
            let (default, said) = if is_example {
                let note = value.split_once('#').map_or("", |(_, note)| note.trim());
                (None, wrapped(note, "", ""))
            } else {
                (Some(value.to_owned()), prose(&words))
            };
            table.keys.push(Key { path, default, words: said });
            words.clear();
        } else if line.is_empty() {
            // A blank line ends an example, and separates the text about the file from that about a
            // key.
            words.clear();
            in_example = false;
        } else if line != "#" {
            words.push(line.strip_prefix('#').expect("only comments are left"));
        }
    }
    tables
}

fn setting(line: &str, here: bool) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(" = ")?;
    let is_key = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (here && is_key).then_some((key, value.trim()))
}

/// A comment as Markdown. Indented lines are a list: a word, and its meaning.
fn prose(lines: &[&str]) -> String {
    let mut items: Vec<(&str, String)> = Vec::new();
    for line in lines {
        let line = line.strip_prefix(' ').unwrap_or(line);
        let indent = line.len() - line.trim_start().len();
        let in_list = items.last().is_some_and(|(word, _)| !word.is_empty());
        match (line.trim().split_once("  "), items.last_mut()) {
            (Some((word, rest)), _) if indent == 2 => items.push((word, rest.trim().to_owned())),
            (_, Some((_, text))) if !in_list || indent > 0 => {
                text.push(' ');
                text.push_str(line.trim());
            }
            _ => items.push(("", line.trim().to_owned())),
        }
    }
    let mut said = String::new();
    let mut in_list = false;
    for (word, text) in items {
        if in_list == word.is_empty() && !said.is_empty() {
            said.push('\n');
        }
        in_list = !word.is_empty();
        said += &match word {
            "" => wrapped(&text, "", ""),
            word => wrapped(&format!("`{word}`: {text}"), "- ", "  "),
        };
    }
    said
}

/// Lines of at most 100 columns; `first` is put before the first one, `next` before all others.
fn wrapped(text: &str, first: &str, next: &str) -> String {
    let mut lines = String::new();
    let mut line = first.to_owned();
    let mut is_new = true;
    for word in text.split_whitespace() {
        if !is_new && line.len() + 1 + word.len() > 100 {
            lines += &line;
            lines.push('\n');
            next.clone_into(&mut line);
            is_new = true;
        }
        if !is_new {
            line.push(' ');
        }
        line += word;
        is_new = false;
    }
    lines + &line + "\n"
}

/// A configuration with a peer and an export called NAME.
fn full() -> Config {
    let mut config = Config::default();
    config.peers.insert("NAME".to_owned(), Peer::default());
    config.exports.insert("NAME".to_owned(), Export::default());
    config
}

fn leaves(value: &Value, prefix: &str, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let path = format!("{prefix}.{key}");
                leaves(value, path.trim_start_matches('.'), into);
            }
        }
        _ => drop(into.insert(prefix.to_owned(), value.clone())),
    }
}

/// The configuration with another value at one place.
fn with(path: &str, value: &Value) -> Result<Config, serde_json::Error> {
    let mut all = serde_json::to_value(full()).expect("plain data");
    let mut place = &mut all;
    for step in path.split('.') {
        place =
            place.as_object_mut().and_then(|it: &mut Map<_, _>| it.get_mut(step)).expect("a key");
    }
    *place = value.clone();
    serde_json::from_value(all)
}

fn takes(path: &str, value: &Value) -> bool {
    with(path, value).is_ok()
}

/// Kind of the values that may be written, found by trying.
fn kind(path: &str, default: &Value) -> String {
    let words = || {
        let error = with(path, &json!("word7")).expect_err("it is none of them").to_string();
        let (_, expected) =
            error.split_once("expected ").or(error.split_once("write ")).expect("it says them");
        let parts: Vec<&str> = expected.split(['`', '"']).skip(1).step_by(2).collect();
        let mut parts: Vec<String> = parts.iter().map(|word| format!("`{word}`")).collect();
        parts.dedup();
        // `as in "fixed:64KiB"` is an example of the one before.
        parts.retain(|word| !word.starts_with("`fixed:6"));
        parts.join(", ")
    };
    let text = |word: &str| takes(path, &json!(word));
    let list = |item: Value| takes(path, &json!([item]));
    match default {
        Value::Bool(_) => "`true` or `false`".to_owned(),
        // Sizes are numbers in JSON.
        Value::Number(_) if text("7MiB") => "size".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::Array(_) if list(json!(7)) && list(json!("word7")) => "names or numbers".to_owned(),
        Value::Array(_) if list(json!("word7")) => "names".to_owned(),
        Value::Array(_) if list(json!(7)) => "numbers".to_owned(),
        Value::Array(_) if list(json!("10.0.0.0/8")) => "networks".to_owned(),
        Value::Array(_) if list(json!("host:7")) => "list of host:port".to_owned(),
        Value::Array(_) if list(json!("127.0.0.1:7")) => "addresses".to_owned(),
        Value::Array(_) if list(json!("http://host:7")) => "URLs".to_owned(),
        Value::Array(_) if list(json!(CLUSTER_KEY)) => "keys of a cluster".to_owned(),
        Value::Array(_) if list(json!(KEY)) => "public keys".to_owned(),
        Value::Array(_) => "list of words".to_owned(),
        Value::String(word) => match (text("word7"), word.as_str()) {
            (true, word) if word.starts_with('/') || path.ends_with(".path") => "path".to_owned(),
            (true, "auto") => "`auto`, path or nothing".to_owned(),
            (true, _) => "text".to_owned(),
            (false, "auto") if takes(path, &json!(7)) && !text("7MiB") => {
                "`auto` or number".to_owned()
            }
            (false, "auto") if text("7MiB") && !text("7s") => "`auto` or size".to_owned(),
            (false, "auto") if text("7s") => "`auto` or duration".to_owned(),
            (false, _) if text("7MiB") => "size".to_owned(),
            (false, _) if text("7s") => "duration".to_owned(),
            (false, _) if text("host:7") => "host:port".to_owned(),
            (false, _) if text("127.0.0.1:7") => "address".to_owned(),
            (false, _) if text(KEY) => "public key".to_owned(),
            (false, _) => words(),
        },
        other => panic!("{path}: {other}"),
    }
}

/// Whether a reload takes a change of the key: found by changing it.
fn is_live(path: &str, default: &Value) -> bool {
    let texts = ["word7", "7MiB", "7s", "h:7", "127.0.0.1:7", KEY];
    let lists = ["word7", "10.0.0.0/8", "send_zero_copy", "127.0.0.1:7", "http://127.0.0.1:7"];
    let lists = lists.into_iter().chain([KEY, CLUSTER_KEY]);
    let lists = lists.map(|word| json!([word])).chain([json!([7])]);
    let others = [json!(7), json!(!default.as_bool().unwrap_or_default())];
    // Also try all words that the type names in its error.
    let error = with(path, &json!("word7")).err().map(|error| error.to_string());
    let error = error.unwrap_or_default();
    let expected = error.split(['`', '"']).map(|word| json!(word));
    let tries = texts.iter().map(|word| json!(word)).chain(lists).chain(others).chain(expected);
    let running = full();
    let other = tries.filter_map(|value| with(path, &value).ok()).find(|it| *it != running);
    let other = other.unwrap_or_else(|| panic!("{path}: nothing else could be written"));
    in_effect(&running, &other, &piped_control::reload::Outside::new()) == other
}

fn reference() -> String {
    let mut defaults = BTreeMap::new();
    leaves(&serde_json::to_value(full()).expect("plain data"), "", &mut defaults);
    let mut page = HEAD.to_owned();
    for table in shipped() {
        let name = if table.name.is_empty() {
            "Before all tables".to_owned()
        } else {
            format!("[{}]", table.name)
        };
        let _ = writeln!(page, "\n## {name}");
        if !table.words.is_empty() {
            let _ = write!(page, "\n{}", table.words);
        }
        let mut before = String::new();
        for Key { path, default, words } in table.keys {
            let value = defaults.remove(&path).unwrap_or_else(|| panic!("{path} is no key"));
            let key = path.rsplit('.').next().expect("a key");
            let kind = kind(&path, &value);
            let by = if is_live(&path, &value) { "reload" } else { "restart" };
            let default = default.unwrap_or_else(|| value.to_string());
            // Two keys that stand together have one comment.
            let words = if words.is_empty() { format!("See `{before}`.\n") } else { words };
            let facts = format!("Value: {kind}. Default: `{default}`. Changed by a {by}.");
            let _ = write!(page, "\n### `{key}`\n\n{}\n{words}", wrapped(&facts, "", ""));
            key.clone_into(&mut before);
        }
    }
    assert!(defaults.is_empty(), "piped.toml does not have {defaults:?}");
    page
}

#[test]
fn the_reference_lists_every_key_as_it_is() {
    let made = reference();
    if env::var_os("PIPED_BLESS").is_some() {
        fs::write(PAGE, &made).expect("written");
    }
    let written = fs::read_to_string(PAGE).unwrap_or_default();
    let differs =
        made.lines().zip(written.lines().chain(std::iter::repeat(""))).find(|(a, b)| a != b);
    assert!(
        made == written,
        "docs/configuration.md is old: PIPED_BLESS=1 cargo test -p piped reference\n{differs:?}"
    );
}

/// The head of the shipped file agrees with the keys that a reload takes.
#[test]
fn the_head_of_the_shipped_file_says_what_a_reload_takes() {
    let text = fs::read_to_string(SHIPPED).expect("shipped");
    let (head, _) = text.split_once("\n\n").expect("a head");
    let head = head.replace("\n#", "");
    let (_, head) = head.split_once("These take effect").expect("what does");
    let (head, _) = head.split_once("The others").expect("and what does not");
    let mut defaults = BTreeMap::new();
    leaves(&serde_json::to_value(full()).expect("plain data"), "", &mut defaults);
    for (path, value) in defaults {
        let (table, key) = path.split_once('.').unwrap_or(("", &path));
        let named = head.contains(&path) || head.contains(&format!("[{table}]"));
        // `of [client] and [admin] all but socket`
        let excepted = head.split_once(" of [").is_some_and(|(_, clause)| {
            clause.contains(&format!("{table}]")) && clause.contains(&format!("all but {key}"))
        });
        assert_eq!(named && !excepted, is_live(&path, &value), "{path}: {head}");
    }
}
