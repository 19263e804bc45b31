//! The configuration in a bundle: only keys that are known to hold nothing secret. A new key is
//! left out until somebody adds it here.

use serde_json::{Map, Value, json};

/// Keys that are shown with their values; `NAME` stands for a name, `*` at the end for any rest.
pub(super) static SHOWN: &[&str] = &[
    "profile",
    "node.name",
    "node.state_dir",
    "client.*",
    "admin.*",
    "metrics.address",
    "access.users",
    "access.groups",
    "sandbox.landlock",
    "sandbox.syscalls",
    "shards.*",
    "limits.*",
    "io.*",
    "planner.*",
    "listen.address",
    "listen.allow_plain",
    "peers.NAME.address",
    "peers.NAME.second_address",
    "peers.NAME.checksum",
    "exports.NAME.path",
    "exports.NAME.read",
    "exports.NAME.write",
    "exports.NAME.names",
    "exports.NAME.users",
    "exports.NAME.groups",
    "exports.NAME.peers",
    "log.level",
    "security.mode",
];

const LEFT_OUT: &str = "(left out)";

fn is_shown(key: &str) -> bool {
    let fits = |pattern: &&&str| {
        let (mut pattern, mut key) = (pattern.split('.'), key.split('.'));
        loop {
            match (pattern.next(), key.next()) {
                (Some("*"), Some(_)) | (None, None) => return true,
                (Some("NAME"), Some(_)) => {}
                (Some(one), Some(other)) if one == other => {}
                _ => return false,
            }
        }
    };
    SHOWN.iter().any(|pattern| fits(&pattern))
}

/// Filters the daemon's answer: every key, with the values of those that are shown.
pub(super) fn of_daemon(answer: Value) -> Value {
    let keys = answer.get("keys").and_then(Value::as_array);
    let keys: Vec<Value> = keys
        .into_iter()
        .flatten()
        .map(|it| {
            let key = it["key"].as_str().unwrap_or_default();
            let value = if is_shown(key) { it["value"].clone() } else { json!(LEFT_OUT) };
            json!({"key": key, "value": value, "origin": it["origin"]})
        })
        .collect();
    // The reasons of a refused reload may quote a value.
    json!({"keys": keys, "files": answer["files"]})
}

/// Filters a configuration that no daemon runs with.
pub(super) fn of_file(keys: Vec<(String, Value)>) -> Value {
    let shown = keys.into_iter().map(|(key, value)| {
        let value = if is_shown(&key) { value } else { json!(LEFT_OUT) };
        (key, value)
    });
    Value::Object(shown.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use piped_config::{Config, Export, Peer};

    use super::*;

    #[test]
    fn what_is_not_on_the_list_is_left_out() {
        for key in [
            "security.key_file",
            "peers.beta.key",
            "peers.beta.next_key",
            "exports.a.b.path",
            "profile.x",
            "limits",
            "logs",
        ] {
            assert!(!is_shown(key), "{key}");
        }
        for key in ["profile", "limits.global.staging", "peers.beta.address", "exports.data.path"] {
            assert!(is_shown(key), "{key}");
        }
        let answer = json!({"keys": [
            {"key": "peers.beta.key", "value": "CANARY", "origin": "default"},
            {"key": "shards.count", "value": 2, "origin": "default"},
        ], "refused_reload": {"error": "CANARY"}});
        let shown = of_daemon(answer).to_string();
        assert!(!shown.contains("CANARY") && shown.contains(LEFT_OUT), "{shown}");
        assert!(shown.contains(r#""value":2"#), "{shown}");
    }

    #[test]
    fn the_list_has_no_key_that_there_is_not() {
        let mut config = Config::default();
        config.peers.insert("beta".to_owned(), Peer::default());
        config.exports.insert("data".to_owned(), Export::default());
        let keys: Vec<String> = config.keys().map(|(key, _)| key).collect();
        for pattern in SHOWN {
            let start = pattern.trim_end_matches('*').replace("NAME", "");
            let first = start.split("..").next().unwrap_or_default();
            assert!(keys.iter().any(|key| key.starts_with(first)), "{pattern} is no key: {keys:?}");
        }
    }
}
