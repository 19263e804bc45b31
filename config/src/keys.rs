//! The keys that exist, and the nearest one to a mistyped key.
//!
//! The tree is taken from the types themselves (a `Config` written as JSON), so it always agrees
//! with them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use crate::admin::Change;
use crate::schema::{Config, Export, Peer};

/// Stands for a name that the operator chooses.
const ANY: &str = "NAME";

/// Parts that may follow a key.
#[derive(Debug)]
pub(crate) enum Keys {
    /// Value without further parts.
    Leaf,
    /// Exactly these parts follow.
    Table(BTreeMap<String, Self>),
    /// Any name, then these parts.
    Named(Box<Self>),
}

static ROOT: LazyLock<Keys> = LazyLock::new(|| {
    let mut sample = Config::default();
    sample.peers.insert(ANY.to_owned(), Peer::default());
    sample.exports.insert(ANY.to_owned(), Export::default());
    Keys::of(&serde_json::to_value(sample).expect("the configuration is plain data"))
});

impl Keys {
    pub(crate) fn root() -> &'static Self {
        &ROOT
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Object(fields) => match fields.get(ANY) {
                Some(inner) => Self::Named(Box::new(Self::of(inner))),
                None => Self::Table(fields.iter().map(|(k, v)| (k.clone(), Self::of(v))).collect()),
            },
            _ => Self::Leaf,
        }
    }

    /// Parts that may follow `key`; none if there is no such key here.
    pub(crate) fn child(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Leaf => None,
            Self::Table(keys) => keys.get(key),
            Self::Named(inner) => Some(inner),
        }
    }

    fn collect(&self, prefix: &str, into: &mut Vec<String>) {
        let mut visit = |key: &str, keys: &Self| {
            let path = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
            match keys {
                Self::Leaf => into.push(path),
                _ => keys.collect(&path, into),
            }
        };
        match self {
            Self::Leaf => {}
            Self::Table(keys) => keys.iter().for_each(|(key, keys)| visit(key, keys)),
            Self::Named(inner) => visit(ANY, inner),
        }
    }
}

/// Every key of a configuration with its value.
pub(crate) fn leaves(config: &Config) -> Vec<(String, Value)> {
    fn walk(value: Value, keys: &Keys, path: &str, into: &mut Vec<(String, Value)>) {
        match (value, keys) {
            (Value::Object(fields), Keys::Table(_) | Keys::Named(_)) => {
                for (name, value) in fields {
                    let Some(below) = keys.child(&name) else { continue };
                    let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                    walk(value, below, &path, into);
                }
            }
            (value, _) => into.push((path.to_owned(), value)),
        }
    }
    let mut into = Vec::new();
    let value = serde_json::to_value(config).expect("the configuration is plain data");
    walk(value, Keys::root(), "", &mut into);
    into
}

/// Keys or tables of earlier versions, each with its present place.
const MOVED: [(&str, &str); 4] = [
    ("limits.client.sessions", "limits.user.sessions"),
    ("client.sessions_max", "limits.global.sessions"),
    ("memory", "limits.global.staging"),
    ("memory.staging", "limits.global.staging"),
];

impl Config {
    /// All keys of the configuration with their values.
    pub fn keys(&self) -> impl Iterator<Item = (String, Value)> {
        leaves(self).into_iter()
    }

    /// Keys with other values in `next`, with both values.
    #[must_use]
    pub fn changes_to(&self, next: &Self) -> Vec<Change> {
        let (mut before, mut after) = (BTreeMap::from_iter(leaves(self)), leaves(next));
        after.retain(|(key, value)| before.get(key) != Some(value));
        let mut changes: Vec<Change> = after
            .into_iter()
            .map(|(key, to)| Change { from: before.remove(&key).unwrap_or_default(), key, to })
            .collect();
        let all: BTreeMap<String, Value> = leaves(next).into_iter().collect();
        before.retain(|key, _| !all.contains_key(key));
        let gone = |(key, from)| Change { key, from, to: Value::Null };
        changes.extend(before.into_iter().map(gone));
        changes.sort_by(|one, other| one.key.cmp(&other.key));
        changes
    }
}

/// Finds the nearest of `names` to a mistyped one, if one is near.
#[must_use]
pub fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|name| (strsim::damerau_levenshtein(name, written), name)).min()?;
    (near.0 <= 1 + written.len() / 3).then_some(near.1)
}

/// Hint about a key that does not exist: `did you mean ...?`, or the keys of its table.
pub(crate) fn hint(path: &[&str]) -> String {
    let written = path.join(".");
    if let Some((_, now)) = MOVED.iter().find(|(old, _)| *old == written) {
        return format!("it moved: write `{now}`");
    }
    let mut all = Vec::new();
    Keys::root().collect("", &mut all);
    // Names that the operator chose replace NAME, so that `peers.beta.adress` is one letter away.
    let named: Vec<String> = all
        .iter()
        .map(|key| {
            let parts: Vec<&str> = key
                .split('.')
                .enumerate()
                .map(
                    |(i, part)| {
                        if part == ANY { path.get(i).copied().unwrap_or(ANY) } else { part }
                    },
                )
                .collect();
            parts.join(".")
        })
        .collect();
    let last = path.last().copied().unwrap_or_default();
    // A table can be misspelt too; below the top the operator chooses the names.
    let table = |key: &String| Some(key.split_once('.').filter(|_| path.len() == 1)?.0.to_owned());
    let nearest = named
        .iter()
        .cloned()
        .chain(named.iter().filter_map(table))
        .map(|key| {
            let key_last = key.rsplit('.').next().unwrap_or(&key);
            // A right word in the wrong table counts as one mistake.
            let distance = strsim::damerau_levenshtein(&key, &written)
                .min(strsim::damerau_levenshtein(key_last, last) + 1);
            (distance, key)
        })
        .min();
    match nearest {
        Some((distance, key)) if distance <= 1 + last.len() / 3 => {
            format!("did you mean `{key}`?")
        }
        _ => siblings(path, &named),
    }
}

/// The keys beside an unknown one.
fn siblings(path: &[&str], named: &[String]) -> String {
    let prefix = path.split_last().map(|(_, parents)| parents.join(".")).unwrap_or_default();
    let mut names: Vec<&str> = named
        .iter()
        .filter_map(|key| match prefix.as_str() {
            "" => Some(key.as_str()),
            _ => key.strip_prefix(prefix.as_str())?.strip_prefix('.'),
        })
        .filter_map(|rest| rest.split('.').next())
        .collect();
    names.dedup();
    if names.is_empty() {
        return format!("`{prefix}` is a value, not a table");
    }
    let place = if prefix.is_empty() { "at the top".to_owned() } else { format!("in [{prefix}]") };
    format!("{place} there are: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_by_key_with_both_values() {
        let mut one = Config::default();
        one.peers.insert(
            "beta".to_owned(),
            Peer { address: "b:1".parse().expect("an address"), ..Peer::default() },
        );
        let mut other = Config::default();
        other.shards.count = 2.into();
        other.exports.insert("data".to_owned(), Export::default());
        let changes = one.changes_to(&other);
        let keys: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
        let expected = [
            "exports.data.groups",
            "exports.data.names",
            "exports.data.path",
            "exports.data.peers",
            "exports.data.read",
            "exports.data.users",
            "exports.data.write",
            "peers.beta.address",
            "peers.beta.checksum",
            "peers.beta.key",
            "peers.beta.next_key",
            "peers.beta.second_address",
            "shards.count",
        ];
        assert_eq!(keys, expected);
        assert_eq!((&changes[7].from, &changes[7].to), (&"b:1".into(), &Value::Null));
        assert_eq!((&changes[12].from, &changes[12].to), (&"auto".into(), &2.into()));
        assert!(one.changes_to(&one).is_empty());
    }

    #[test]
    fn the_name_that_was_meant_is_found_if_it_is_near() {
        let names = || ["alpha", "beta"].into_iter();
        assert_eq!(nearest("bata", names()), Some("beta"));
        assert_eq!(nearest("gamma-ray", names()), None);
        assert_eq!(nearest("", names()), None);
        assert_eq!(nearest("x", std::iter::empty()), None);
    }

    #[test]
    fn the_nearest_key_is_named() {
        for (path, expected) in [
            (&["client", "sokcet"][..], "did you mean `client.socket`?"),
            (&["peers", "beta", "adress"], "did you mean `peers.beta.address`?"),
            (&["entries_max"], "did you mean `client.entries_max`?"),
            (&["shard", "count"], "did you mean `shards.count`?"),
            (&["client", "sessions_max"], "it moved: write `limits.global.sessions`"),
            (&["limits", "client", "sessions"], "it moved: write `limits.user.sessions`"),
            (&["memory"], "it moved: write `limits.global.staging`"),
            (&["shard"], "did you mean `shards`?"),
            (&["export", "data", "path"], "did you mean `exports.data.path`?"),
        ] {
            assert_eq!(hint(path), expected, "{path:?}");
        }
    }

    #[test]
    fn a_key_near_nothing_gets_the_list() {
        let hint = hint(&["planner", "turbulence"]);
        assert_eq!(
            hint,
            "in [planner] there are: allow_dials, calibration, eager, mode, zero_copy"
        );
    }

    #[test]
    fn a_value_has_no_keys_below() {
        assert_eq!(hint(&["profile", "quickness"]), "`profile` is a value, not a table");
    }
}
