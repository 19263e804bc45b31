//! Nodes of the cluster whose certificates were seen.
//!
//! ```text
//!   a handshake ─┐
//!   a source ────┴► Identity::admit: signed, in time, not revoked ─► Members ─► groups, keys
//!                                                        no more  ─► distrusted: they leave
//! ```
//!
//! Of several certificates of one name the latest counts: by it a node has its groups. What a node
//! of another key proved under the same name stays, until its key is revoked.

use std::collections::{BTreeMap, BTreeSet};

use piped_config::{NodeCertificate, PublicKey, UnixTime};

use crate::keyring::Identity;

/// Most nodes that are remembered.
const MEMBERS_MAX: usize = 4096;

/// Most certificates that are remembered because they do not count.
const REFUSED_MAX: usize = 8192;

/// Most keys of one name: of a node that changed its key, and of one that is yet to.
const KEYS_MAX: usize = 8;

/// One node, by its name.
#[derive(Debug)]
struct Member {
    latest: NodeCertificate,
    /// Keys that have proved the name, or may.
    keys: BTreeSet<PublicKey>,
    /// When the node is asked whether it has a later certificate.
    asked: UnixTime,
}

/// All nodes by their names.
#[derive(Debug, Default)]
pub struct Members {
    by_name: BTreeMap<String, Member>,
    /// All names that were seen, also of nodes that left: nobody has them without proof.
    names: BTreeSet<String>,
    /// Certificates that do not count, by their signatures.
    refused: BTreeSet<[u8; 64]>,
    /// When the first certificate counts that was seen too early, by this node's calendar.
    early: Option<UnixTime>,
}

impl Members {
    /// Takes a certificate that counts. Whether the node has other groups now.
    pub(crate) fn enter(&mut self, certificate: NodeCertificate) -> bool {
        let subject = certificate.subject();
        let (key, name) = (subject.key, subject.name.clone());
        let asked = subject.begin_of_last_third();
        if self.names.len() < MEMBERS_MAX {
            self.names.insert(name.clone());
        }
        let Some(known) = self.by_name.get_mut(&name) else {
            if self.by_name.len() < MEMBERS_MAX {
                let has_groups = !subject.groups.is_empty();
                let keys = BTreeSet::from([key]);
                let member = Member { latest: certificate, keys, asked };
                self.by_name.insert(name, member);
                return has_groups;
            }
            return false;
        };
        if known.keys.len() < KEYS_MAX {
            known.keys.insert(key);
        }
        if !certificate.is_later_than(&known.latest) {
            return false;
        }
        let is_other = known.latest.subject().groups != subject.groups;
        known.keys.insert(key);
        (known.latest, known.asked) = (certificate, asked);
        is_other
    }

    /// Whether a certificate need not be looked at: it is no later than the one that is known of
    /// its key, or was looked at and does not count.
    pub(crate) fn knows(&self, shown: &NodeCertificate) -> bool {
        let is_old = self.certificate(&shown.subject().name).is_some_and(|latest| {
            latest.subject().key == shown.subject().key && !shown.is_later_than(latest)
        });
        is_old || self.refused.contains(&shown.signature())
    }

    /// A certificate of this signature was looked at, and does not count.
    pub(crate) fn refuse(&mut self, signature: [u8; 64]) {
        // Others make as many as they like: then they are looked at again.
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.insert(signature);
    }

    /// Other keys sign now, or none: what did not count may count.
    pub(crate) fn forget_refused(&mut self) {
        self.refused.clear();
    }

    /// Nodes whose certificates are in their last third, and that were not asked lately whether
    /// they have others.
    pub(crate) fn take_aging(&mut self, now: UnixTime) -> Vec<String> {
        let mut aging = Vec::new();
        for (name, member) in &mut self.by_name {
            if member.asked <= now {
                // Ever more often: the node may be away, or have none yet.
                let left = member.latest.subject().until.since(now);
                member.asked = UnixTime(now.0.saturating_add((left / 2).max(1)));
                aging.push(name.clone());
            }
        }
        aging
    }

    /// Whether a node of that name had a certificate, now or before.
    #[must_use]
    pub fn has_seen(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// All names that were seen, also of nodes that left.
    pub(crate) const fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// A certificate was seen that counts only from then on, if at all.
    pub(crate) fn expect(&mut self, from: UnixTime) {
        self.early = Some(self.early.map_or(from, |early| early.min(from)));
    }

    /// Whether a certificate that was seen too early may count by now.
    pub(crate) fn take_early(&mut self, now: UnixTime) -> bool {
        self.early.take_if(|early| *early <= now).is_some()
    }

    /// The latest certificate of a node.
    #[must_use]
    pub fn certificate(&self, name: &str) -> Option<&NodeCertificate> {
        self.by_name.get(name).map(|member| &member.latest)
    }

    /// Groups of a node that has proved its name; none of one without a certificate.
    #[must_use]
    pub fn groups_of(&self, name: &str) -> &[String] {
        self.certificate(name).map_or(&[], |it| &it.subject().groups)
    }

    /// All nodes, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &NodeCertificate> {
        self.by_name.values().map(|member| &member.latest)
    }

    /// Forgets the nodes that count no more: those whose certificates ended, and those of a key
    /// that was revoked or that nobody signed who is trusted now. Their names.
    pub(crate) fn take_distrusted(
        &mut self,
        identity: Option<&Identity>,
        now: UnixTime,
    ) -> Vec<String> {
        let counts = |member: &Member| {
            let Some(identity) = identity else { return false };
            let is_revoked = member.keys.iter().any(|key| identity.has_revoked(key));
            !is_revoked && identity.check(&member.latest, now).is_ok()
        };
        let gone = self.by_name.extract_if(.., |_, member| !counts(member));
        gone.map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use piped_config::{Config, NodeKey, SigningKey, Subject};

    use super::*;
    use crate::keyring::Keyring;

    fn certificate(
        by: &SigningKey,
        key: PublicKey,
        groups: &[&str],
        times: (u64, u64),
    ) -> NodeCertificate {
        let groups = groups.iter().map(|it| (*it).to_owned()).collect();
        let (from, until) = (UnixTime(times.0), UnixTime(times.1));
        let subject = Subject { key, name: "beta".to_owned(), groups, from, until };
        NodeCertificate::issue(subject, by).expect("sound")
    }

    #[test]
    fn the_latest_certificate_gives_the_groups_and_any_revoked_key_ends_the_name() {
        let by = SigningKey::generate().expect("random");
        let [own, old, new] = [(); 3].map(|()| NodeKey::generate().expect("random"));
        let mut config = Config::default();
        config.cluster.keys = vec![by.public()];
        let ring = |config: &Config| Keyring::new(config, Some(own.clone())).expect("sound");
        let keyring = ring(&config);
        let mut members = Members::default();
        assert!(members.enter(certificate(&by, old.public(), &["disk"], (10, 90))));
        assert!(members.enter(certificate(&by, new.public(), &[], (20, 90))));
        assert!(!members.enter(certificate(&by, old.public(), &["disk"], (10, 90))), "an older");
        assert_eq!(members.groups_of("beta"), [""; 0]);
        let now = UnixTime(50);
        assert_eq!(members.take_distrusted(keyring.identity(), now), [""; 0]);
        config.cluster.revoked = vec![old.public()];
        assert_eq!(members.take_distrusted(ring(&config).identity(), now), ["beta"]);
        assert_eq!(members.take_distrusted(ring(&config).identity(), now), [""; 0], "once");
        for (keyring, now) in [(Some(&keyring), 90), (None, 50)] {
            members.enter(certificate(&by, new.public(), &[], (20, 90)));
            let identity = keyring.and_then(Keyring::identity);
            assert_eq!(members.take_distrusted(identity, UnixTime(now)), ["beta"]);
        }
    }
}
