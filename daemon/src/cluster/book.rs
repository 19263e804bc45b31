//! Which name was signed for which key: no two nodes get one name.

use std::collections::BTreeMap;

use piped_config::{NodeCertificate, PublicKey, UnixTime};
use serde::{Deserialize, Serialize};

/// Most names that are remembered.
const NAMES_MAX: usize = 4096;

/// What was signed last for a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Key of the node.
    pub(crate) key: PublicKey,
    /// Groups of the node.
    pub(crate) groups: Vec<String>,
    /// Time from which the name is free again.
    pub(crate) until: UnixTime,
}

/// All names that were signed and count still.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Book {
    names: BTreeMap<String, Line>,
}

impl Book {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// What was signed for a name, while it counts.
    pub(crate) fn find(&self, name: &str, now: UnixTime) -> Option<&Line> {
        self.names.get(name).filter(|line| line.until > now)
    }

    /// The name of a key.
    pub(crate) fn name_of(&self, key: &PublicKey) -> Option<&str> {
        let mut lines = self.names.iter();
        lines.find(|(_, line)| line.key == *key).map(|(name, _)| name.as_str())
    }

    /// Enters what was signed, unless there are too many names.
    pub(crate) fn enter(
        &mut self,
        certificate: &NodeCertificate,
        now: UnixTime,
    ) -> Result<(), String> {
        self.names.retain(|_, line| line.until > now);
        let subject = certificate.subject();
        if self.names.len() >= NAMES_MAX && !self.names.contains_key(&subject.name) {
            return Err(format!("a node signs for {NAMES_MAX} names at most"));
        }
        let (key, groups, until) = (subject.key, subject.groups.clone(), subject.until);
        self.names.insert(subject.name.clone(), Line { key, groups, until });
        Ok(())
    }

    /// Takes back what was entered last for a name.
    pub(super) fn restore(&mut self, name: &str, before: Option<Line>) {
        match before {
            Some(line) => self.names.insert(name.to_owned(), line),
            None => self.names.remove(name),
        };
    }

    /// Frees the name of a key that was revoked.
    pub(crate) fn strike(&mut self, key: &PublicKey) {
        self.names.retain(|_, line| line.key != *key);
    }
}

#[cfg(test)]
mod tests {
    use piped_config::{NodeKey, SigningKey, Subject};

    use super::*;

    #[test]
    fn a_name_belongs_to_a_key_until_its_certificate_ends_or_the_key_is_revoked() {
        let by = SigningKey::generate().expect("random");
        let key = NodeKey::generate().expect("random").public();
        let (name, groups) = ("beta".to_owned(), vec!["disk".to_owned()]);
        let subject = Subject { key, name, groups, from: UnixTime(10), until: UnixTime(20) };
        let certificate = NodeCertificate::issue(subject, &by).expect("sound");
        let mut book = Book::default();
        book.enter(&certificate, UnixTime(11)).expect("room");
        let mut again = Book::parse(&book.text()).expect("a book");
        assert_eq!(again, book);
        let owner = |book: &Book, now| book.find("beta", UnixTime(now)).map(|line| line.key);
        assert_eq!([11, 19, 20].map(|now| owner(&book, now)), [Some(key), Some(key), None]);
        assert_eq!(again.name_of(&key), Some("beta"));
        again.strike(&key);
        assert_eq!((owner(&again, 11), again.name_of(&key)), (None, None));
        assert!(Book::parse("[]").is_err());
    }
}
