//! Removes private text: paths, and everything that looks like a key.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

/// Paths below these belong to piped or to the system.
const PUBLIC: [&str; 12] = [
    "/run/piped",
    "/etc/piped",
    "/var/lib/piped",
    "/usr/",
    "/proc/",
    "/sys/",
    "/dev/",
    "/v1/",
    "/metrics",
    "/etc/passwd",
    "/etc/group",
    "/etc/sysctl.d",
];

/// Length of 30 bytes in base64: hashes and keys are longer, words and numbers of ours are not.
const TOKEN_CHARACTERS: usize = 40;

/// Removes paths and keys from texts.
#[derive(Debug)]
pub(super) struct Redactor {
    /// Numbers of paths; none if paths stay.
    paths: Option<RefCell<BTreeMap<String, usize>>>,
    /// Known paths, which may contain blanks; longer ones first.
    known: Vec<String>,
}

impl Redactor {
    /// Redactor for keys only; paths stay.
    pub(super) const fn keys_only() -> Self {
        Self { paths: None, known: Vec::new() }
    }

    /// Redactor for paths as well. `known` are paths that a text need not delimit.
    pub(super) fn new(known: Vec<PathBuf>) -> Self {
        let known = known.iter().map(|path| path.display().to_string());
        let mut known: Vec<String> =
            known.filter(|path| path.len() > 1 && !is_public(path)).collect();
        known.sort_by_key(|path| std::cmp::Reverse(path.len()));
        Self { paths: Some(RefCell::default()), known }
    }

    /// Redacts all texts of a value, and the names of its fields.
    pub(super) fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.string(&text)),
            Value::Array(all) => all.into_iter().map(|it| self.value(it)).collect(),
            Value::Object(all) => {
                all.into_iter().map(|(key, it)| (self.text(&key), self.value(it))).collect()
            }
            other => other,
        }
    }

    /// Redacts a text that may be a path as a whole, blanks and all.
    fn string(&self, text: &str) -> String {
        let is_path = text.starts_with('/') && text.len() > 1 && !text.contains('\n');
        match &self.paths {
            Some(_) if is_path && !is_public(text) => self.number(text),
            _ => self.text(text),
        }
    }

    /// Redacts a text with paths and keys in it.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for path in &self.known {
            if text.contains(path.as_str()) {
                text = text.replace(path.as_str(), &self.number(path));
            }
        }
        if self.paths.is_some() {
            text = self.quoted(&text);
        }
        let is_end = |c: char| c.is_whitespace() || "\"'`,;()[]{}<>=".contains(c);
        let mut clean = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = rest.find(is_end).unwrap_or(rest.len());
            clean.push_str(&self.word(&rest[..end]));
            let after = rest[end..].chars().next().map_or(0, char::len_utf8);
            clean.push_str(&rest[end..end + after]);
            rest = &rest[end + after..];
        }
        clean
    }

    /// Redacts "cannot read `NAME`": a file below an export, as the daemon's messages name it.
    fn quoted(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("cannot ") {
            let (before, from) = rest.split_at(start + "cannot ".len());
            clean.push_str(before);
            rest = from;
            let Some((verb, quoted)) = rest.split_once(" `") else { break };
            let Some((name, after)) = quoted.split_once('`') else { break };
            if verb.chars().all(char::is_alphabetic) {
                clean.push_str(&format!("{verb} `{}`", self.number(name)));
                rest = after;
            }
        }
        clean + rest
    }

    fn word(&self, word: &str) -> String {
        let digits = |c: char| c.is_ascii_alphanumeric() || "+/-_".contains(c);
        if word.len() >= TOKEN_CHARACTERS
            && !word.contains("/.")
            && word.chars().all(digits)
            && !word.starts_with('/')
        {
            return "<token>".to_owned();
        }
        if self.paths.is_none() {
            return word.to_owned();
        }
        // Forms like `FILE:LINE`, `key:/path`.
        let Some(start) = word.find('/') else { return word.to_owned() };
        let (before, path) = word.split_at(start);
        let is_start = before.is_empty() || before.ends_with(':');
        let is_url = path.starts_with("//");
        if !is_start || is_url || path.len() < 2 || is_public(path) {
            return word.to_owned();
        }
        let (path, after) = path.split_at(path.find(':').unwrap_or(path.len()));
        format!("{before}{}{after}", self.number(path))
    }

    /// Number of a path; the same path has the same number.
    fn number(&self, path: &str) -> String {
        let Some(paths) = &self.paths else { return path.to_owned() };
        let mut paths = paths.borrow_mut();
        let next = paths.len() + 1;
        format!("<path-{}>", paths.entry(path.to_owned()).or_insert(next))
    }
}

fn is_public(path: &str) -> bool {
    PUBLIC.iter().any(|public| {
        let rest = path.strip_prefix(public);
        rest.is_some_and(|rest| {
            public.ends_with('/') || !rest.starts_with(|c: char| c.is_alphanumeric())
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_become_numbers_and_stay_apart() {
        let redactor = Redactor::new(vec!["/srv/my data".into()]);
        let text = redactor
            .text("cannot open /home/a/x.txt: no; /home/b and \"/home/a/x.txt\" at /srv/my data/y");
        assert_eq!(text, "cannot open <path-2>: no; <path-3> and \"<path-2>\" at <path-1><path-4>");
        assert_eq!(redactor.text("at /home/b:12: mistake"), "at <path-3>:12: mistake");
        let value =
            redactor.value(json!({"path": "/a b/c", "n": [1, "see /a"], "/secret/place": true}));
        assert_eq!(value, json!({"path": "<path-7>", "n": [1, "see <path-6>"], "<path-5>": true}));
    }

    #[test]
    fn files_below_exports_go_as_well() {
        let redactor = Redactor::new(Vec::new());
        let text =
            "WARN cannot open `my diary/x`: no such file; it cannot be; cannot write `y`: no";
        let clean = redactor.text(text);
        assert_eq!(
            clean,
            "WARN cannot open `<path-1>`: no such file; it cannot be; cannot write `<path-2>`: no"
        );
    }

    #[test]
    fn what_is_pipeds_own_or_no_path_stays() {
        let redactor = Redactor::new(Vec::new());
        for text in [
            "/run/piped/admin.sock",
            "/etc/piped/piped.toml:3",
            "GET /v1/status and /metrics",
            "10 MB/s, 100us/KB, and/or",
            "http://piped/metrics",
            "rx/tx",
        ] {
            assert_eq!(redactor.text(text), text);
        }
        assert_eq!(redactor.text("/run/piped2/x"), "<path-1>");
        assert_eq!(redactor.text("/metricsx"), "<path-2>");
    }

    #[test]
    fn what_looks_like_a_key_goes_in_any_case() {
        let key = "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=";
        for redactor in [Redactor::keys_only(), Redactor::new(Vec::new())] {
            for text in [format!("key = \"{key}\""), format!("a {key} b"), format!("k={key}")] {
                let clean = redactor.text(&text);
                assert!(!clean.contains("q83vEjRW") && clean.contains("<token>"), "{clean}");
            }
        }
        assert_eq!(Redactor::keys_only().text("/srv/data"), "/srv/data");
    }
}
