//! What an etcd holds below the prefix, as it was seen last.

use std::collections::BTreeMap;

use piped_config::{Found, Revocations};
use piped_control::discovery::NODES_MAX;

use super::super::{Said, WRONG_MAX};
use super::api::Change;

/// Most entries that are kept: the control thread takes fewer, and says how many are left out.
const ENTRIES_MAX: usize = 2 * NODES_MAX;
/// Longest name of a node, and of what is shown of it; and most exports that are shown.
const WORD_BYTES_MAX: usize = 64;
const EXPORTS_MAX: usize = 64;

/// Entries by their names.
#[derive(Debug, Default)]
pub(super) struct Kept {
    prefix: Vec<u8>,
    /// The name of this node, whose entry has a place in any case.
    own: String,
    nodes: BTreeMap<String, Found>,
    wrong: BTreeMap<String, String>,
    revocations: Option<Revocations>,
}

/// The list of revoked keys, behind the prefix. No node has that name.
pub(super) const REVOKED: &[u8] = b"@revoked";

impl Kept {
    pub(super) fn new(prefix: &str, own: &str) -> Self {
        let (prefix, own) = (prefix.as_bytes().to_vec(), own.to_owned());
        Self { prefix, own, ..Self::default() }
    }

    /// Whether there is room for more.
    pub(super) fn is_full(&self) -> bool {
        self.nodes.len() >= ENTRIES_MAX
    }

    /// What a node has published.
    pub(super) fn get(&self, name: &str) -> Option<&Found> {
        self.nodes.get(name)
    }

    /// The list of revoked keys that is there, whoever signed it.
    pub(super) const fn revocations(&self) -> Option<&Revocations> {
        self.revocations.as_ref()
    }

    /// Takes what happened to an entry.
    pub(super) fn apply(&mut self, (key, value): Change) {
        let Some(name) = key.strip_prefix(self.prefix.as_slice()) else { return };
        if name.len() > WORD_BYTES_MAX {
            return;
        }
        if name == REVOKED {
            let text = value.and_then(|value| String::from_utf8(value).ok());
            self.revocations = text.and_then(|text| text.parse().ok());
            return;
        }
        let name = String::from_utf8_lossy(name).into_owned();
        let Some(value) = value else {
            self.nodes.remove(&name);
            self.wrong.remove(&name);
            return;
        };
        match Found::parse_json(&name, &value) {
            Ok(mut found) => {
                found.exports.retain(|export| export.len() <= WORD_BYTES_MAX);
                found.exports.truncate(EXPORTS_MAX);
                found.exports.shrink_to_fit();
                if found.version.len() > WORD_BYTES_MAX {
                    found.version.clear();
                }
                self.wrong.remove(&name);
                if !self.is_full() || self.nodes.contains_key(&name) || name == self.own {
                    self.nodes.insert(name, found);
                }
            }
            Err(why) => {
                // What was there before is overwritten.
                self.nodes.remove(&name);
                if self.wrong.len() < WRONG_MAX {
                    self.wrong.insert(name, why);
                }
            }
        }
    }

    /// All of it, to be handed over.
    pub(super) fn said(&self) -> Said {
        let line = |(name, why): (&String, &String)| format!("{name}: {why}");
        Said {
            nodes: Ok(self.nodes.clone()),
            wrong: self.wrong.iter().map(line).collect(),
            revocations: self.revocations.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(kept: &mut Kept, key: &str, value: &str) {
        kept.apply((key.as_bytes().to_vec(), Some(value.as_bytes().to_vec())));
    }

    #[test]
    fn the_last_word_counts_and_what_is_no_node_is_named() {
        let mut kept = Kept::new("/p/", "own");
        put(&mut kept, "/p/beta", r#"{"address": "h:1"}"#);
        put(&mut kept, "/q/gamma", r#"{"address": "h:1"}"#);
        put(&mut kept, "/p/delta/x", r#"{"address": "h:1"}"#);
        let said = kept.said();
        let names: Vec<String> = said.nodes.expect("it is there").into_keys().collect();
        assert_eq!((names, said.wrong.len()), (vec!["beta".to_owned()], 1));
        put(&mut kept, "/p/beta", "rubbish");
        assert_eq!((kept.get("beta"), kept.said().wrong.len()), (None, 2));
        kept.apply((b"/p/beta".to_vec(), None));
        assert_eq!(kept.said().wrong.len(), 1);
    }

    #[test]
    fn many_entries_take_so_much_and_no_more() {
        let mut kept = Kept::new("/p/", "own");
        for number in 0..ENTRIES_MAX + 50 {
            put(&mut kept, &format!("/p/n{number}"), r#"{"address": "h:1"}"#);
            put(&mut kept, &format!("/p/w{number}"), "rubbish");
        }
        let said = kept.said();
        let nodes = said.nodes.expect("it is there");
        assert_eq!((nodes.len(), said.wrong.len()), (ENTRIES_MAX, WRONG_MAX));
        put(&mut kept, "/p/own", r#"{"address": "h:3", "exports": ["data"]}"#);
        assert!(kept.get("own").is_some(), "or it would be written again and again");
        put(&mut kept, &format!("/p/{}", "l".repeat(65)), r#"{"address": "h:1"}"#);
        assert_eq!(kept.said().wrong.len(), WRONG_MAX);
        let many = vec!["\"e\""; 900].join(",");
        put(&mut kept, "/p/n2", &format!("{{\"address\": \"h:1\", \"exports\": [{many}]}}"));
        assert_eq!(kept.get("n2").map(|found| found.exports.len()), Some(EXPORTS_MAX));
        put(&mut kept, "/p/n1", r#"{"address": "h:2"}"#);
        assert_eq!(kept.get("n1").map(|found| found.address.as_str()), Some("h:2"));
    }
}
