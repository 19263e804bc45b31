//! What others say of where nodes are: addresses, and never trust.
//!
//! ```text
//!   a source ─► Control::hear ─► Discovery ─► Control::settle ─► Peers::follow ─► shards
//!                 any time                    once in SETTLE
//! ```
//!
//! A source tells all that it knows, each time anew, or that it is away; then the last it knew
//! stays. What it says fills in the address of a peer that the configuration trusts by a key and
//! has no address for, or names a node of the cluster, which has a certificate to show. It gives no
//! key and no right: who writes the source can lead a node to the wrong door, and nobody behind it
//! has the key.
//!
//! News wait for each other, so a source that changes a thousand times a second changes the peers
//! five times.

use std::collections::{BTreeMap, BTreeSet};

use piped_config::{Found, NodeCertificate, Peer};
use piped_core::units::Nanos;

use crate::members::Members;

/// How long the peers stay as they are after a change of their addresses.
pub const SETTLE: Nanos = Nanos::from_millis(200);

/// Most nodes that one source may name. What comes behind them in the order of names is left out.
pub const NODES_MAX: usize = 4096;

/// Where a node was heard of. An earlier one here is believed before a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Files in a directory that others write.
    Files,
    /// An etcd, where nodes publish themselves.
    Etcd,
    /// Records of a name service.
    Dns,
}

impl Source {
    /// The name of a source in reports and lines of the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Etcd => "etcd",
            Self::Dns => "dns",
        }
    }
}

/// All that one source said when it was last there.
#[derive(Debug, Default)]
pub struct Heard {
    nodes: BTreeMap<String, Found>,
    /// When it was last there.
    at: Nanos,
    /// Why it is away.
    away: Option<String>,
    /// How many nodes were too many.
    left_out: usize,
}

impl Heard {
    /// The nodes that it knows, by name.
    #[must_use]
    pub const fn nodes(&self) -> &BTreeMap<String, Found> {
        &self.nodes
    }

    /// When the source was last there.
    #[must_use]
    pub const fn at(&self) -> Nanos {
        self.at
    }

    /// Why the source is away, if it is.
    #[must_use]
    pub fn away(&self) -> Option<&str> {
        self.away.as_deref()
    }

    /// How many nodes it named that were too many.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }
}

/// The last words of all sources.
#[derive(Debug, Default)]
pub struct Discovery {
    sources: BTreeMap<Source, Heard>,
    /// When what was heard takes effect, if anything new was.
    due: Option<Nanos>,
    /// When something took effect last.
    settled: Option<Nanos>,
}

impl Discovery {
    /// Takes what a source says: all nodes that it knows, or why it does not answer.
    pub(crate) fn hear(
        &mut self,
        source: Source,
        said: Result<BTreeMap<String, Found>, String>,
        now: Nanos,
    ) {
        let heard = self.sources.entry(source).or_default();
        let mut nodes = match said {
            Ok(nodes) => nodes,
            Err(why) => {
                heard.away = Some(why);
                return;
            }
        };
        (heard.at, heard.away) = (now, None);
        heard.left_out = nodes.len().saturating_sub(NODES_MAX);
        if let Some(first) = nodes.keys().nth(NODES_MAX).cloned() {
            nodes.split_off(&first);
        }
        let is_news = !lead_to_the_same(&heard.nodes, &nodes);
        heard.nodes = nodes;
        if is_news {
            self.renew(now);
        }
    }

    /// When [`crate::control::Control::settle`] has something to do.
    #[must_use]
    pub const fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// Whether something new takes effect now.
    pub(crate) fn take_due(&mut self, now: Nanos) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            (self.due, self.settled) = (None, Some(now));
        }
        is_due
    }

    /// Each source that has spoken.
    pub fn sources(&self) -> impl Iterator<Item = (Source, &Heard)> {
        self.sources.iter().map(|(source, heard)| (*source, heard))
    }

    /// Where a peer is that has no address of the operator's, and a key or a certificate to prove
    /// itself with. A node that says that it has another key is another node. `members`: those of
    /// the cluster, if there is one.
    #[must_use]
    pub fn find(
        &self,
        name: &str,
        peer: &Peer,
        members: Option<&Members>,
    ) -> Option<(Source, &Found)> {
        let may_be = |source: Source, found: &Found| match (peer.key, members) {
            (Some(_), _) => found.key.is_none_or(|said| peer.keys().any(|key| key == said)),
            (None, Some(members)) => match &found.certificate {
                Some(shown) => members.certificate(name).is_some_and(|known| {
                    known.subject().key == shown.subject().key && shown.subject().name == name
                }),
                // Each node writes its own there, and so could anybody who may write.
                None => source != Source::Etcd,
            },
            (None, None) => false,
        };
        self.sources().find_map(|(source, heard)| {
            let found = heard.nodes.get(name).filter(|found| may_be(source, found))?;
            Some((source, found))
        })
    }

    /// The nodes that are said to have an export. What is said gives no right to it.
    pub fn nodes_with(&self, export: &str) -> impl Iterator<Item = &str> {
        let all = self.sources.values().flat_map(|heard| &heard.nodes);
        let has = move |found: &Found| found.exports.iter().any(|it| it == export);
        all.filter(move |(_, found)| has(found)).map(|(name, _)| name.as_str())
    }

    /// All names under which nodes are known, each once.
    pub(crate) fn names(&self) -> BTreeSet<&String> {
        self.sources.values().flat_map(|heard| heard.nodes.keys()).collect()
    }

    /// The certificates that nodes are said to have.
    pub(crate) fn certificates(&self) -> impl Iterator<Item = (&str, &NodeCertificate)> {
        let all = self.sources.values().flat_map(|heard| &heard.nodes);
        all.filter_map(|(name, found)| Some((name.as_str(), found.certificate.as_ref()?)))
    }

    /// Has what is known taken up again: something else decides by it.
    pub(crate) fn renew(&mut self, now: Nanos) {
        let rested = self.settled.map_or(now, |settled| settled + SETTLE);
        self.due.get_or_insert(rested.max(now));
    }
}

/// Whether all nodes are where they were; what else is said of them moves nobody.
fn lead_to_the_same(before: &BTreeMap<String, Found>, after: &BTreeMap<String, Found>) -> bool {
    let is_same = |((name, found), (other, again)): ((&String, &Found), (&String, &Found))| {
        name == other && found.is_where(again)
    };
    before.len() == after.len() && before.iter().zip(after).all(is_same)
}

#[cfg(test)]
mod tests {
    use piped_config::{NodeKey, PublicKey};

    use super::*;

    fn key() -> PublicKey {
        NodeKey::generate().expect("random").public()
    }

    fn at(address: &str, key: Option<PublicKey>) -> Found {
        Found { address: address.parse().expect("an address"), key, ..Found::default() }
    }

    fn said(nodes: &[(&str, Found)]) -> Result<BTreeMap<String, Found>, String> {
        Ok(nodes.iter().map(|(name, found)| ((*name).to_owned(), found.clone())).collect())
    }

    fn address(discovery: &Discovery, peer: &Peer) -> Option<String> {
        discovery.find("beta", peer, None).map(|(_, found)| found.address.to_string())
    }

    #[test]
    fn only_a_peer_with_a_key_is_found_and_only_under_that_key() {
        let (ours, next, other) = (key(), key(), key());
        let mut discovery = Discovery::default();
        let [plain, keyed] = [None, Some(ours)].map(|key| Peer { key, ..Peer::default() });
        let changing = Peer { next_key: Some(next), ..keyed.clone() };
        let mut find = |said_key, peer: &Peer| {
            discovery.hear(Source::Files, said(&[("beta", at("h:1", said_key))]), Nanos::ZERO);
            address(&discovery, peer).is_some()
        };
        assert!(find(None, &keyed) && find(Some(ours), &keyed) && find(Some(next), &changing));
        assert!(!find(Some(other), &keyed) && !find(Some(next), &keyed));
        assert!(!find(None, &plain) && !find(Some(other), &plain), "anybody may be there");
    }

    #[test]
    fn a_source_that_is_away_keeps_what_it_said_and_a_better_one_goes_first() {
        let peer = Peer { key: Some(key()), ..Peer::default() };
        let mut discovery = Discovery::default();
        discovery.hear(Source::Dns, said(&[("beta", at("dns:1", None))]), Nanos::ZERO);
        discovery.hear(Source::Dns, Err("no answer".to_owned()), Nanos::from_millis(5));
        assert_eq!(address(&discovery, &peer).as_deref(), Some("dns:1"));
        let (_, heard) = discovery.sources().next().expect("it spoke");
        assert_eq!((heard.away(), heard.at()), (Some("no answer"), Nanos::ZERO));
        discovery.hear(Source::Files, said(&[("beta", at("files:1", None))]), Nanos::ZERO);
        assert_eq!(address(&discovery, &peer).as_deref(), Some("files:1"));
        // What is not said any more is not known any more.
        discovery.hear(Source::Files, said(&[]), Nanos::ZERO);
        assert_eq!(address(&discovery, &peer).as_deref(), Some("dns:1"));
        // Another node has the name there: the next source may know ours.
        let stranger = at("files:2", Some(key()));
        discovery.hear(Source::Files, said(&[("beta", stranger)]), Nanos::ZERO);
        assert_eq!(address(&discovery, &peer).as_deref(), Some("dns:1"));
    }

    #[test]
    fn news_take_effect_at_most_so_often_and_the_same_again_is_no_news() {
        let mut discovery = Discovery::default();
        let (mut settled, mut now) = (0, Nanos::ZERO);
        for port in 1..=10_000_u32 {
            now = Nanos(u64::from(port) * 100_000);
            discovery.hear(Source::Files, said(&[("beta", at(&format!("h:{port}"), None))]), now);
            settled += u32::from(discovery.take_due(now));
        }
        assert_eq!(now, Nanos::from_millis(1_000));
        assert_eq!(settled, 5, "one at once, and one for each 200 ms after it");
        let due = discovery.due().expect("the last of it");
        assert!(!discovery.take_due(Nanos(due.0 - 1)) && discovery.take_due(due));
        let same = at("h:10000", None);
        let busier = Found { load_percent: Some(99), ..same.clone() };
        for same in [same, busier] {
            discovery.hear(Source::Files, said(&[("beta", same)]), due);
            assert_eq!(discovery.due(), None);
        }
        let (_, heard) = discovery.sources().next().expect("it spoke");
        assert_eq!(heard.nodes()["beta"].load_percent, Some(99), "it is shown");
    }

    #[test]
    fn a_source_names_only_so_many_nodes() {
        let mut discovery = Discovery::default();
        let many = (0..NODES_MAX + 7).map(|number| (format!("n{number:05}"), at("h:1", None)));
        discovery.hear(Source::Files, Ok(many.collect()), Nanos::ZERO);
        let (_, heard) = discovery.sources().next().expect("it spoke");
        assert_eq!((heard.nodes().len(), heard.left_out()), (NODES_MAX, 7));
        assert!(heard.nodes().contains_key("n00000") && !heard.nodes().contains_key("n04096"));
    }
}
