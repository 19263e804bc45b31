//! The keys that this node trusts, and the key with which it proves itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use piped_config::{Config, Fault, NodeKey, PublicKey};
use piped_core::link::Protection;

/// The keys of one configuration; a reload makes another keyring.
#[derive(Debug, Default)]
pub struct Keyring {
    identity: Option<Identity>,
    /// Names of nodes that have keys: a plain connection cannot take them.
    reserved: Arc<BTreeSet<String>>,
}

/// The identity of a node that has a key.
#[derive(Debug)]
pub struct Identity {
    own: NodeKey,
    protection: Protection,
    nodes: HashMap<PublicKey, String>,
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
        let identity = own.map(|own| Identity {
            own,
            protection: config.security.mode,
            nodes: keyed().collect(),
        });
        let reserved = Arc::new(keyed().map(|(_, name)| name).collect());
        Ok(Self { identity, reserved })
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

    /// The nodes with keys that have to prove themselves anew under `next`.
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

    /// The name of the trusted node that has this key.
    #[must_use]
    pub fn node(&self, key: &PublicKey) -> Option<&str> {
        self.nodes.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use piped_config::Peer;
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
        assert_eq!([beta, other].map(|key| identity.node(&key)), [Some("beta"); 2]);
        let all = ["beta", "gamma"];
        assert_eq!(anew(&ring(&own, Encrypted, &[("beta", beta), ("gamma", gamma)])), all);
        assert_eq!(anew(&ring(&key(), Integrity, &[("beta", beta), ("gamma", gamma)])), all);
        assert_eq!(anew(&Keyring::default()), all);
        assert_eq!(Keyring::default().distrusted(&before), all);
    }
}
