//! An operator's files: they are a configuration that works and can be written down again, or every
//! mistake is reported with the place where it was made.
//!
//! An input is text: a file, up to a line that begins with `=== `; then, a line each, `=== file`
//! (one more file follows), `=== env NAME=VALUE` or `=== set key=value`.

use piped_config::{ConfigError, Input, Loaded, Place, parse};

use crate::Seed;

const LAYERS_MAX: usize = 16;

/// Checks the configuration door with an input.
pub fn check(input: &[u8]) {
    let inputs = layers(&String::from_utf8_lossy(input));
    match parse(&inputs) {
        Ok(loaded) => check_loaded(&inputs, &loaded),
        Err(findings) => {
            assert!(!findings.all().is_empty() && !findings.to_string().is_empty());
            for error in findings.all() {
                check_error(&inputs, error);
            }
        }
    }
}

fn layers(text: &str) -> Vec<Input> {
    let mut layers = Vec::new();
    let mut file = String::new();
    for line in text.split_inclusive('\n') {
        let Some(mark) = line.strip_prefix("=== ") else {
            file.push_str(line);
            continue;
        };
        let mark = mark.strip_suffix('\n').unwrap_or(mark);
        if layers.len() + 2 >= LAYERS_MAX {
            break;
        }
        if let Some((name, value)) = mark.strip_prefix("env ").and_then(|it| it.split_once('=')) {
            add_file(&mut layers, &mut file);
            layers.push(Input::Variable { name: name.to_owned(), value: value.to_owned() });
        } else if let Some(setting) = mark.strip_prefix("set ") {
            add_file(&mut layers, &mut file);
            layers.push(Input::Setting(setting.to_owned()));
        } else {
            add_file(&mut layers, &mut file);
        }
    }
    add_file(&mut layers, &mut file);
    layers
}

fn add_file(layers: &mut Vec<Input>, text: &mut String) {
    if !text.is_empty() {
        let path = format!("/etc/piped/{}.toml", layers.len()).into();
        layers.push(Input::File { path, text: std::mem::take(text) });
    }
}

/// The configuration works, says where each key comes from, and is the same when written down key
/// by key.
fn check_loaded(inputs: &[Input], loaded: &Loaded) {
    assert!(loaded.config.validate().is_ok());
    for place in loaded.origins.values() {
        check_place(inputs, place);
    }
    let written: Vec<Input> =
        loaded.config.keys().map(|(key, value)| Input::Setting(format!("{key}={value}"))).collect();
    match parse(&written) {
        Ok(again) => assert_eq!(again.config, loaded.config),
        Err(findings) => panic!("written down it is refused: {findings}\n{written:#?}"),
    }
}

fn check_error(inputs: &[Input], error: &ConfigError) {
    let text = error.to_string();
    match error {
        ConfigError::Syntax { place, message } => {
            check_place(inputs, place);
            assert!(!message.is_empty(), "{text}");
        }
        ConfigError::UnknownKey { place, key, hint } => {
            check_place(inputs, place);
            assert!(!key.is_empty() || text.contains("``"), "{text}");
            assert!(!hint.is_empty(), "{text}");
        }
        ConfigError::BadValue { place, key, message } => {
            check_place(inputs, place);
            assert!(!key.is_empty() && !message.is_empty(), "{text}");
        }
        ConfigError::Invalid { place, key, problem } => {
            if *place != Place::defaults() {
                check_place(inputs, place);
            }
            assert!(!key.is_empty() && !problem.is_empty(), "{text}");
        }
        ConfigError::Override(setting) => {
            assert!(inputs.contains(&Input::Setting(setting.clone())), "{text}");
        }
        // No place: layers that are sound one by one must be sound together, or be refused by a
        // key.
        ConfigError::Merge(_) | ConfigError::Read { .. } => panic!("{text}"),
    }
}

/// The place is one of the layers, and a line in it if that is a file.
fn check_place(inputs: &[Input], place: &Place) {
    let found = inputs.iter().find(|input| match input {
        Input::File { path, .. } => place.layer == path.display().to_string(),
        // Others are ignored, whatever they are called.
        Input::Variable { name, .. } => name.starts_with("PIPED_") && place.layer == *name,
        Input::Setting(setting) => {
            let key = setting.split_once('=').map_or("", |(key, _)| key.trim());
            place.layer == format!("--set {key}")
        }
    });
    match found {
        Some(Input::File { text, .. }) => {
            let line = place.line.expect("a line of a file");
            // An error at the end of a text stands on the line behind its last line feed.
            assert!(line >= 1 && line <= 1 + text.matches('\n').count(), "{place} of {text:?}");
        }
        Some(_) => assert_eq!(place.line, None, "{place}"),
        None => panic!("there is no layer {place}"),
    }
}

/// The shipped file, and mistakes as people make them.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let texts = [
        ("shipped", include_str!("../../../config/piped.toml")),
        ("nothing", "\n"),
        ("node", "[node]\nname = \"alpha\"\n[shards]\ncount = 2\ncpus = [0, 1]\n"),
        (
            "peers",
            "[listen]\naddress = \"10.9.0.1:7440\"\nallow_plain = [\"10.9.0.0/24\"]\n\
             [peers.beta]\naddress = \"10.9.0.2:7440\"\n[peers.\"gamma.example\"]\n\
             address = \"[fd00::2]:7440\"\n",
        ),
        (
            "exports",
            "[exports.data]\npath = \"/srv\"\nwrite = true\nusers = [\"root\", 7]\n\
             peers = [\"beta\"]\n",
        ),
        (
            "layers",
            "profile = \"latency\"\n\
             === file\nprofile = \"balanced\"\n[limits.global]\nstaging = \"32MiB\"\n\
             === env PIPED_SHARDS__COUNT=2\n=== env PIPED_CONFIG=x\n=== set node.name=7\n\
             === set planner.mode={fixed=65536}\n=== set planner.mode=whole\n",
        ),
        ("unknown", "[peers.beta]\nadress = \"10.9.0.2:7440\"\n[shard]\ncount = 1\n"),
        (
            "wrong-type",
            "[shards]\ncount = \"two\"\npin = 1\n[client]\narena_bytes_max = \"1 XB\"\n",
        ),
        ("syntax", "[node\nname = alpha\n"),
        ("twice", "[node]\nname = \"a\"\nname = \"b\"\n"),
        ("impossible", "[io]\nentries = 3\n[client]\nentries_max = 0\n[exports.x]\nwrite = true\n"),
        ("settings", "=== set shards.count\n=== set =\n=== set a..b=1\n=== set node.name=\"\n"),
        ("variables", "=== env PIPED_=1\n=== env PIPED_NODE__NAME=\n=== env HOME=/\n"),
        ("table-for-value", "[shards.count]\nx = 1\n[node.name.y]\n=== set node=1\n"),
    ];
    texts.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
}
