//! The keys that this node trusts, and the key with which it proves itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use piped_config::{
    CertificateFault, ClusterKey, Config, Fault, NodeCertificate, NodeKey, PublicKey, Revocations,
    UnixTime,
};
use piped_core::link::Protection;

/// The keys of one configuration; a reload makes another keyring, and so does a list of revoked
/// keys.
#[derive(Debug, Default, Clone)]
pub struct Keyring {
    identity: Option<Identity>,
    /// Names of nodes that have keys: a plain connection cannot take them.
    reserved: Arc<BTreeSet<String>>,
}

/// The identity of a node that has a key.
#[derive(Debug, Clone)]
pub struct Identity {
    own: NodeKey,
    protection: Protection,
    /// Nodes that the configuration pins to their keys.
    nodes: HashMap<PublicKey, String>,
    /// Names of those nodes.
    pinned: Arc<BTreeSet<String>>,
    /// The keys that sign for the cluster; none: there is no cluster.
    cluster: Vec<ClusterKey>,
    /// Keys that the operator has revoked.
    revoked: BTreeSet<PublicKey>,
    /// The list of keys that the cluster has revoked, with the highest number.
    list: Option<Arc<Revocations>>,
    /// Keys of all lists of the cluster that were seen, each until its certificates have ended: two
    /// nodes that sign do not know of each other's lists at once.
    revoked_by_cluster: BTreeMap<PublicKey, UnixTime>,
    /// The certificate of this node.
    certificate: Option<Arc<NodeCertificate>>,
}

/// A node that proved its key, and why that is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Name that the node has.
    pub node: String,
    /// The certificate that says so; none if the configuration does.
    pub certificate: Option<NodeCertificate>,
}

/// Why a node that proved its key is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The configuration does not name the key, and no certificate was shown.
    #[error("no [peers] entry has it, and no certificate came with it")]
    Unknown,
    /// The configuration names another key for that node.
    #[error("its certificate is for the node {0:?}, which [peers] here pins to another key")]
    Pinned(String),
    /// The certificate does not count.
    #[error("its certificate does not count: {0}")]
    Certificate(#[from] CertificateFault),
}

impl Keyring {
    /// Collects the keys of a configuration.
    ///
    /// # Errors
    /// The setting that needs a key of this node, where it has none.
    pub fn new(config: &Config, own: Option<NodeKey>) -> Result<Self, Fault> {
        config.check_own_key(own.as_ref().map(NodeKey::public))?;
        let keyed = || {
            let peers = config.peers.iter();
            peers.flat_map(|(name, peer)| peer.keys().map(|key| (key, name.clone())))
        };
        let reserved: Arc<BTreeSet<String>> = Arc::new(keyed().map(|(_, name)| name).collect());
        let identity = own.map(|own| Identity {
            own,
            protection: config.security.mode,
            nodes: keyed().collect(),
            pinned: Arc::clone(&reserved),
            cluster: config.cluster.keys.clone(),
            revoked: config.cluster.revoked.iter().copied().collect(),
            list: None,
            revoked_by_cluster: BTreeMap::new(),
            certificate: None,
        });
        Ok(Self { identity, reserved })
    }

    /// Takes over what another keyring knows beside its files: revoked keys, and a
    /// certificate of this node that is later.
    #[must_use]
    pub(crate) fn with_known_of(mut self, before: &Self) -> Self {
        let (Some(identity), Some(before)) = (&mut self.identity, &before.identity) else {
            return self;
        };
        // Another cluster is another matter.
        if before.cluster.iter().any(|key| identity.cluster.contains(key)) {
            for (key, until) in &before.revoked_by_cluster {
                identity.revoked_by_cluster.entry(*key).or_insert(*until);
            }
            let signed = |list: &&Arc<Revocations>| list.is_by(&identity.cluster);
            if let Some(list) = before.list.as_ref().filter(signed)
                && identity.list.as_ref().is_none_or(|it| it.number() < list.number())
            {
                identity.list = Some(Arc::clone(list));
            }
        }
        let is_later = |it: &&Arc<NodeCertificate>| {
            identity.own.public() == it.subject().key
                && identity.certificate.as_ref().is_none_or(|own| it.is_later_than(own))
        };
        if let Some(running) = before.certificate.as_ref().filter(is_later) {
            identity.certificate = Some(Arc::clone(running));
        }
        self
    }

    /// Gives the keyring a certificate of this node, or takes it away.
    #[must_use]
    pub fn with_certificate(mut self, certificate: Option<NodeCertificate>) -> Self {
        if let Some(identity) = &mut self.identity {
            identity.certificate = certificate.map(Arc::new);
        }
        self
    }

    /// Takes the keys of a list of revoked keys, if the cluster signed it, and it has a higher
    /// number than the list that there is, or other keys. Whether it was taken.
    pub fn take_revocations(&mut self, list: Arc<Revocations>) -> bool {
        let followed = self.identity.as_mut().filter(|identity| identity.would_follow(&list));
        let Some(identity) = followed else { return false };
        for (key, until) in list.keys() {
            let known = identity.revoked_by_cluster.entry(*key).or_insert(*until);
            *known = (*known).max(*until);
        }
        if identity.list.as_ref().is_none_or(|it| it.number() < list.number()) {
            identity.list = Some(list);
        }
        true
    }

    /// The identity of this node, if it has a key.
    #[must_use]
    pub const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Names that a plain connection cannot have.
    #[must_use]
    pub fn reserved(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.reserved)
    }

    /// Whether a node has to prove its name.
    #[must_use]
    pub fn is_reserved(&self, name: &str) -> bool {
        self.reserved.contains(name)
    }

    /// Whether this node shows another key under `next`, or asks for another protection.
    #[must_use]
    pub fn proves_otherwise(&self, next: &Self) -> bool {
        let shown = |ring: &Self| {
            ring.identity().map(|identity| (identity.own.public(), identity.protection))
        };
        shown(self) != shown(next)
    }

    /// Whether nodes are trusted by certificates, too.
    #[must_use]
    pub fn has_cluster(&self) -> bool {
        self.identity().is_some_and(Identity::has_cluster)
    }

    /// The nodes that are pinned to keys and have to prove themselves anew under `next`. Of others
    /// [`crate::members::Members`] knows.
    #[must_use]
    pub fn distrusted(&self, next: &Self) -> Vec<String> {
        let Some(before) = &self.identity else {
            // What was plain so far and has a key now.
            return next.reserved.iter().cloned().collect();
        };
        let same = next.identity.as_ref().filter(|after| {
            after.own.public() == before.own.public() && after.protection == before.protection
        });
        let stays = |key: &PublicKey, name: &String| {
            same.is_some_and(|after| after.nodes.get(key) == Some(name))
        };
        let gone = before.nodes.iter().filter(|(key, name)| !stays(key, name));
        let new = next.reserved.difference(&self.reserved);
        gone.map(|(_, name)| name)
            .chain(new)
            .cloned()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}

impl Identity {
    /// The key with which this node proves itself.
    #[must_use]
    pub const fn own(&self) -> &NodeKey {
        &self.own
    }

    /// The least protection that this node accepts.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        self.protection
    }

    /// The node that the configuration pins to this key.
    #[must_use]
    pub fn pinned(&self, key: &PublicKey) -> Option<&str> {
        self.nodes.get(key).map(String::as_str)
    }

    /// Whether nodes are trusted by certificates, too.
    #[must_use]
    pub const fn has_cluster(&self) -> bool {
        !self.cluster.is_empty()
    }

    /// The certificate of this node.
    #[must_use]
    pub fn certificate(&self) -> Option<&NodeCertificate> {
        self.certificate.as_deref()
    }

    /// Keys that the cluster has revoked, by all lists that were seen, each with the time when it
    /// may be forgotten.
    #[must_use]
    pub const fn revoked_by_cluster(&self) -> &BTreeMap<PublicKey, UnixTime> {
        &self.revoked_by_cluster
    }

    /// Keys that the cluster has revoked and whose certificates may count still.
    #[must_use]
    pub fn revoked_now(&self, now: UnixTime) -> BTreeMap<PublicKey, UnixTime> {
        let lasting = self.revoked_by_cluster.iter().filter(|(_, until)| **until > now);
        lasting.map(|(key, until)| (*key, *until)).collect()
    }

    /// Whether the list that is told says all that is known of revoked keys, but for those that may
    /// be forgotten.
    #[must_use]
    pub fn tells_all(&self, now: UnixTime) -> bool {
        let told = |key| self.list.as_ref().is_some_and(|list| list.keys().contains_key(key));
        self.revoked_now(now).keys().all(told)
    }

    /// The keys that sign for the cluster.
    #[must_use]
    pub fn cluster(&self) -> &[ClusterKey] {
        &self.cluster
    }

    /// Keys that the operator of this node has revoked.
    #[must_use]
    pub const fn revoked_here(&self) -> &BTreeSet<PublicKey> {
        &self.revoked
    }

    /// The list of revoked keys that was signed last.
    #[must_use]
    pub const fn revocations(&self) -> Option<&Arc<Revocations>> {
        self.list.as_ref()
    }

    /// Whether a key counts no more, whatever certificate it has.
    #[must_use]
    pub fn has_revoked(&self, key: &PublicKey) -> bool {
        self.revoked.contains(key) || self.revoked_by_cluster.contains_key(key)
    }

    /// Whether a list of revoked keys is of this cluster, and later than the one that there is.
    #[must_use]
    pub fn would_follow(&self, list: &Revocations) -> bool {
        let is_later = self.list.as_ref().is_none_or(|it| it.number() < list.number());
        let has_more = || list.keys().keys().any(|key| !self.revoked_by_cluster.contains_key(key));
        (is_later || has_more()) && list.is_by(&self.cluster)
    }

    /// Whether a certificate counts here and now.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check(&self, shown: &NodeCertificate, now: UnixTime) -> Result<(), Refusal> {
        let subject = shown.subject();
        if self.has_revoked(&subject.key) {
            return Err(CertificateFault::Revoked.into());
        }
        shown.check(&self.cluster, now)?;
        let is_other = self.pinned(&subject.key) != Some(&subject.name);
        match is_other && self.pinned.contains(&subject.name) {
            true => Err(Refusal::Pinned(subject.name.clone())),
            false => Ok(()),
        }
    }

    /// The node that has proved this key, and showed these bytes as its certificate; none if they
    /// are empty. What the configuration says of a key goes before what a certificate says.
    ///
    /// # Errors
    /// Why it is nobody.
    pub fn admit(&self, key: &PublicKey, shown: &[u8], now: UnixTime) -> Result<Admitted, Refusal> {
        let certificate = || {
            let shown = NodeCertificate::from_bytes(shown).map_err(CertificateFault::Unreadable)?;
            if shown.subject().key != *key {
                return Err(CertificateFault::OtherKey.into());
            }
            self.check(&shown, now).map(|()| shown)
        };
        match self.pinned(key) {
            Some(node) => {
                // Its groups are welcome, and needless.
                let certificate = certificate().ok().filter(|it| it.subject().name == node);
                Ok(Admitted { node: node.to_owned(), certificate })
            }
            None if shown.is_empty() || !self.has_cluster() => Err(Refusal::Unknown),
            None => {
                let certificate = certificate()?;
                let node = certificate.subject().name.clone();
                Ok(Admitted { node, certificate: Some(certificate) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_config::{Peer, SigningKey};
    use piped_core::link::Protection;

    use super::*;

    fn key() -> NodeKey {
        NodeKey::generate().expect("random")
    }

    fn ring(own: &NodeKey, mode: Protection, peers: &[(&str, PublicKey)]) -> Keyring {
        let mut config = Config::default();
        config.security.mode = mode;
        for (name, key) in peers {
            let peer = config.peers.entry((*name).to_owned()).or_default();
            // The second one of a name is the one to come.
            let place = if peer.key.is_some() { &mut peer.next_key } else { &mut peer.key };
            *place = Some(*key);
        }
        Keyring::new(&config, Some(own.clone())).expect("it has a key")
    }

    #[test]
    fn peers_with_keys_need_a_node_with_a_key() {
        let mut config = Config::default();
        let peer = Peer { key: Some(key().public()), ..Peer::default() };
        config.peers.insert("beta".to_owned(), peer);
        let fault = Keyring::new(&config, None).expect_err("no key");
        assert_eq!(fault.key, "peers.beta.key");
        assert!(fault.problem.contains("pipectl keys generate"), "{}", fault.problem);
        let ring = Keyring::new(&config, Some(key())).expect("it has one");
        assert!(ring.reserved().contains("beta"));
    }

    #[test]
    fn what_any_list_of_the_cluster_revoked_stays_revoked() {
        let [by, other] = [(); 2].map(|()| SigningKey::generate().expect("random"));
        let [own, beta, gamma] = [(); 3].map(|()| key());
        let mut config = Config::default();
        config.cluster.keys = vec![by.public()];
        let ring = || Keyring::new(&config, Some(own.clone())).expect("it has a key");
        let list = |number, of: &NodeKey, by| {
            let keys = [(of.public(), UnixTime(9))].into();
            Arc::new(Revocations::issue(number, keys, by).expect("few"))
        };
        let mut keyring = ring();
        assert!(!keyring.take_revocations(list(1, &beta, &other)), "of another one");
        assert!(keyring.take_revocations(list(7, &beta, &by)));
        // Whoever signed that did not know of the first.
        assert!(keyring.take_revocations(list(8, &gamma, &by)));
        assert!(!keyring.take_revocations(list(7, &beta, &by)), "nothing new");
        let keyring = ring().with_known_of(&keyring);
        let identity = keyring.identity().expect("it has a key");
        assert!([&beta, &gamma].iter().all(|key| identity.has_revoked(&key.public())));
        assert_eq!(identity.revocations().map(|list| list.number()), Some(8));
        assert!(!identity.tells_all(UnixTime(8)), "a list of both is to be signed");
        assert!(identity.tells_all(UnixTime(9)), "nothing is left to be told");
        assert_eq!(identity.revoked_now(UnixTime(9)), BTreeMap::new());
    }

    #[test]
    fn who_must_prove_itself_anew() {
        use Protection::{Encrypted, Integrity};
        let (own, beta, gamma) = (key(), key().public(), key().public());
        let before = ring(&own, Integrity, &[("beta", beta), ("gamma", gamma)]);
        let anew = |next: &Keyring| before.distrusted(next);
        assert_eq!(anew(&ring(&own, Integrity, &[("beta", beta), ("gamma", gamma)])), [""; 0]);
        assert_eq!(anew(&ring(&own, Integrity, &[("beta", beta)])), ["gamma"]);
        let other = key().public();
        assert_eq!(anew(&ring(&own, Integrity, &[("beta", other), ("gamma", gamma)])), ["beta"]);
        let more = [("beta", beta), ("delta", other), ("gamma", gamma)];
        assert_eq!(anew(&ring(&own, Integrity, &more)), ["delta"], "its plain lanes");
        // One more key is one more proof; the older one leaves with the connections that it may
        // have proved.
        let both = ring(&own, Integrity, &[("beta", beta), ("beta", other), ("gamma", gamma)]);
        assert_eq!(anew(&both), [""; 0]);
        let changed = ring(&own, Integrity, &[("beta", other), ("gamma", gamma)]);
        assert_eq!(both.distrusted(&changed), ["beta"]);
        let identity = both.identity().expect("it has a key");
        assert_eq!([beta, other].map(|key| identity.pinned(&key)), [Some("beta"); 2]);
        let all = ["beta", "gamma"];
        assert_eq!(anew(&ring(&own, Encrypted, &[("beta", beta), ("gamma", gamma)])), all);
        assert_eq!(anew(&ring(&key(), Integrity, &[("beta", beta), ("gamma", gamma)])), all);
        assert_eq!(anew(&Keyring::default()), all);
        assert_eq!(Keyring::default().distrusted(&before), all);
    }
}
