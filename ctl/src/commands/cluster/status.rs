//! `pipectl cluster status`: all nodes that this node knows of, whoever told it: sources of
//! discovery, its configuration, or the nodes themselves by connecting.

use std::collections::BTreeMap;

use piped_config::admin::cluster::{CLUSTER, ClusterReport};
use piped_config::admin::nodes::{NODES, NodeReport, Nodes};
use piped_config::admin::watch::{EXPORTS, Exports, PEERS, PeerEntry, Peers};
use piped_config::admin::{CONFIG, Configuration, STATUS, Status};
use piped_core::names::node_of;
use piped_report::shard::LaneReport;
use serde::Serialize;

use crate::admin::Admin;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

/// What a node can say of the others.
#[derive(Debug, Serialize)]
pub(crate) struct View {
    /// Name of the node itself.
    node: String,
    version: String,
    address: Option<String>,
    exports: usize,
    others: Vec<Known>,
}

/// How far connections to a node have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Contact {
    /// Lanes to it are up.
    Up,
    /// Some lanes to it are not up, though it is in use.
    Partly,
    /// No lane to it is up, though it is in use.
    Down,
    /// Nothing is open there: it is connected to when something is.
    Unused,
    /// Only it connects to this node.
    AsksUs,
    /// This node never connects to it, because its key is not trusted.
    Untrusted,
}

impl Contact {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Partly => "partly up",
            Self::Down => "DOWN",
            Self::Unused => "unused",
            Self::AsksUs => "asks us",
            Self::Untrusted => "not dialled",
        }
    }
}

/// Why a node is believed to be the one that it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Trust {
    /// A key of it is in `[peers]`.
    Key,
    /// The node has a certificate of the cluster, or is asked for one when it is connected to.
    Certificate,
    /// An address in `[peers]`, and no key: its name is not proved.
    Address,
    /// Nothing speaks for it.
    No,
}

/// One node that is known.
#[derive(Debug, Serialize)]
pub(crate) struct Known {
    name: String,
    trust: Trust,
    contact: Contact,
    /// Where it listens, and who says so: a source of discovery, or `config`.
    address: Option<String>,
    source: Option<String>,
    version: Option<String>,
    /// Number of its exports, as the source says.
    exports: Option<usize>,
    /// Lanes to it: up, and all.
    lanes_up: usize,
    lanes: usize,
    /// Seconds since something last came from it, on whichever connection.
    heard_seconds_ago: Option<f64>,
    load_percent: Option<u32>,
}

impl View {
    /// Asks the daemon at that socket.
    pub(crate) fn of(admin: &Admin) -> Result<Self, Failure> {
        let status: Status = admin.get(STATUS)?;
        let configuration: Configuration = admin.get(CONFIG)?;
        let exports: Exports = admin.get(EXPORTS)?;
        let (nodes, peers) = (admin.get::<Nodes>(NODES)?, admin.get::<Peers<LaneReport>>(PEERS)?);
        let cluster: ClusterReport = admin.get(CLUSTER)?;
        let mut others = Others {
            trusted: trusted(&configuration, &cluster),
            in_cluster: !cluster.keys.is_empty(),
            known: BTreeMap::new(),
        };
        nodes.nodes.iter().for_each(|node| others.hear(node));
        peers.peers.iter().for_each(|peer| others.meet(peer));
        others.known.remove(&status.node);
        let address = configuration.keys.iter().find(|row| row.key == "listen.address");
        Ok(Self {
            node: status.node,
            version: status.version,
            address: address.and_then(|row| row.value.as_str()).map(str::to_owned),
            exports: exports.exports.len(),
            others: others.known.into_values().collect(),
        })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// How far connections to a node have come; none if it is not known.
    pub(crate) fn contact(&self, name: &str) -> Option<Contact> {
        self.others.iter().find(|other| other.name == name).map(|other| other.contact)
    }

    /// Nodes that are in use and cannot be reached.
    fn lost(&self) -> Vec<&str> {
        let lost = self.others.iter().filter(|other| other.contact == Contact::Down);
        lost.map(|other| other.name.as_str()).collect()
    }
}

/// By which names are trusted: `[peers]` has their keys, or their addresses alone; or the cluster
/// has signed them.
fn trusted(configuration: &Configuration, cluster: &ClusterReport) -> BTreeMap<String, Trust> {
    let by_address = if cluster.keys.is_empty() { Trust::Address } else { Trust::Certificate };
    let members = cluster.members.iter().map(|it| (it.name.clone(), Trust::Certificate));
    let mut trusted: BTreeMap<String, Trust> = members.collect();
    for row in &configuration.keys {
        let Some((name, key)) = row.key.strip_prefix("peers.").and_then(|it| it.rsplit_once('.'))
        else {
            continue;
        };
        let is_set = row.value.as_str().is_some_and(|value| !value.is_empty());
        match key {
            "key" if is_set => trusted.insert(name.to_owned(), Trust::Key),
            "address" if is_set && !trusted.contains_key(name) => {
                trusted.insert(name.to_owned(), by_address)
            }
            _ => None,
        };
    }
    trusted
}

/// Nodes as they become known.
struct Others {
    trusted: BTreeMap<String, Trust>,
    /// Whether nodes that prove nothing yet are asked for certificates.
    in_cluster: bool,
    known: BTreeMap<String, Known>,
}

impl Others {
    fn known(&mut self, name: &str) -> &mut Known {
        let trust = self.trusted.get(name).copied().unwrap_or(Trust::No);
        self.known.entry(name.to_owned()).or_insert_with(|| Known {
            name: name.to_owned(),
            trust,
            contact: if trust == Trust::No { Contact::Untrusted } else { Contact::Unused },
            address: None,
            source: None,
            version: None,
            exports: None,
            lanes_up: 0,
            lanes: 0,
            heard_seconds_ago: None,
            load_percent: None,
        })
    }

    /// A source names a node. The first source counts, unless a later one is followed.
    fn hear(&mut self, said: &NodeReport) {
        let in_cluster = self.in_cluster;
        let known = self.known(&said.node);
        if in_cluster && said.dialled && known.trust == Trust::No {
            (known.trust, known.contact) = (Trust::Certificate, Contact::Unused);
        }
        if known.source.is_some() && !said.dialled {
            return;
        }
        known.address = Some(said.address.clone());
        known.source = Some(said.source.clone());
        known.version = Some(said.version.clone()).filter(|it| !it.is_empty());
        known.exports = Some(said.exports.len()).filter(|&count| count > 0);
        known.load_percent = said.load_percent;
    }

    /// A shard has the node among its peers, or one of the shards of that node.
    fn meet(&mut self, peer: &PeerEntry<LaneReport>) {
        let known = self.known(node_of(&peer.name));
        let ago = [known.heard_seconds_ago, peer.heard_seconds_ago].into_iter().flatten();
        known.heard_seconds_ago = ago.reduce(f64::min);
        if peer.inbound {
            let is_else_apart = matches!(known.contact, Contact::Untrusted | Contact::Unused);
            if is_else_apart && peer.lanes.iter().any(|lane| lane.up) {
                known.contact = Contact::AsksUs;
            }
            return;
        }
        if let Some(address) = peer.address.as_ref().filter(|it| !it.is_empty())
            && known.address.as_ref() != Some(address)
        {
            (known.address, known.source) = (Some(address.clone()), Some("config".to_owned()));
        }
        known.lanes += peer.lanes.len();
        known.lanes_up += peer.lanes.iter().filter(|lane| lane.up).count();
        known.contact = match (known.lanes_up, known.lanes) {
            (_, 0) if known.contact == Contact::AsksUs => Contact::AsksUs,
            (_, 0) => Contact::Unused,
            (0, _) => Contact::Down,
            (up, all) if up < all => Contact::Partly,
            _ => Contact::Up,
        };
    }
}

pub(super) fn run(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    let view = View::of(admin)?;
    if json {
        output::json(&view)?;
    } else {
        show(&view, output)?;
    }
    match view.lost().as_slice() {
        [] => Ok(()),
        lost => Err(Failure::failed(format!(
            "in use and not reachable: {}. Does the daemon there run, and does it trust this node? \
             `pipectl doctor` on both nodes tells more",
            lost.join(", ")
        ))),
    }
}

fn show(view: &View, output: &Output) -> Result<(), Failure> {
    let columns = [
        Text("NODE"),
        Text("TRUSTED"),
        Text("CONTACT"),
        Number("LANES"),
        Number("LAST HEARD"),
        Text("ADDRESS"),
        Text("SOURCE"),
        Text("VERSION"),
        Number("EXPORTS"),
        Number("LOAD"),
    ];
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let own = vec![
        view.node.clone(),
        "itself".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
        dash(view.address.clone().filter(|it| !it.is_empty())),
        "config".to_owned(),
        view.version.clone(),
        view.exports.to_string(),
        "-".to_owned(),
    ];
    let rows = view.others.iter().map(|it| {
        vec![
            it.name.clone(),
            match it.trust {
                Trust::Key => "key",
                Trust::Certificate => "cluster",
                Trust::Address => "no key",
                Trust::No => "NO",
            }
            .to_owned(),
            it.contact.words().to_owned(),
            if it.lanes > 0 { format!("{}/{}", it.lanes_up, it.lanes) } else { "-".to_owned() },
            dash(it.heard_seconds_ago.map(|seconds| format!("{} ago", units::uptime(seconds)))),
            dash(it.address.clone()),
            dash(it.source.clone()),
            dash(it.version.clone()),
            dash(it.exports.map(|count| count.to_string())),
            dash(it.load_percent.map(|load| format!("{load} %"))),
        ]
    });
    output.table(&columns, std::iter::once(own).chain(rows).collect())?;
    if view.others.is_empty() {
        output.prose("It knows no other node: [peers] and [discovery] name them.", 0)?;
    }
    if view.others.iter().any(|it| it.contact == Contact::Untrusted) {
        output.prose(
            "NO: a source names the node, and [peers] has no key of it, so it is never connected \
             to: pipectl keys trust, or piped join where one key signs those of all",
            0,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use piped_config::admin::ConfigKey;
    use piped_core::link::LaneClass;

    use super::*;

    fn others(keys: &[(&str, &str)]) -> Others {
        let row = |(key, value): &(&str, &str)| ConfigKey {
            key: (*key).to_owned(),
            value: (*value).into(),
            origin: "default".to_owned(),
            configured: None,
        };
        let configuration = Configuration {
            state: Default::default(),
            keys: keys.iter().map(row).collect(),
            sources: None,
        };
        let trusted = trusted(&configuration, &ClusterReport::default());
        Others { trusted, in_cluster: false, known: BTreeMap::new() }
    }

    fn said(node: &str, source: &str, dialled: bool) -> NodeReport {
        NodeReport {
            node: node.to_owned(),
            source: source.to_owned(),
            address: format!("{source}:1"),
            second_address: String::new(),
            dialled,
            exports: vec!["data".to_owned()],
            version: String::new(),
            load_percent: None,
        }
    }

    fn peer(
        name: &str,
        inbound: bool,
        lanes: &[bool],
        heard: Option<f64>,
    ) -> PeerEntry<LaneReport> {
        let lane = |&up: &bool| LaneReport {
            class: LaneClass::Latency,
            up,
            epoch: 1,
            frames_sent: 0,
            frames_received: 0,
            requests: 0,
            last_loss: None,
            pace: None,
            protection: None,
            sums: None,
            zero_copy: None,
            messages: None,
        };
        PeerEntry {
            shard: 0,
            name: name.to_owned(),
            inbound,
            address: None,
            heard_seconds_ago: heard,
            lanes: lanes.iter().map(lane).collect(),
        }
    }

    #[test]
    fn a_name_is_trusted_by_its_key_else_by_its_address_else_not() {
        // A node may have a dot in its name.
        let keys = [
            ("peers.a.address", "a:1"),
            ("peers.a.key", "k"),
            ("peers.b.c.address", "b:1"),
            ("peers.b.c.key", ""),
            ("peers.d.address", ""),
            ("listen.address", "e:1"),
        ];
        let others = others(&keys);
        let trusted: Vec<_> =
            others.trusted.iter().map(|(name, it)| (name.as_str(), *it)).collect();
        assert_eq!(trusted, [("a", Trust::Key), ("b.c", Trust::Address)]);
    }

    #[test]
    fn a_node_of_a_cluster_is_trusted_once_a_source_leads_to_it() {
        let mut it = Others { in_cluster: true, ..others(&[]) };
        it.hear(&said("a", "files", true));
        it.hear(&said("b", "etcd", false));
        let seen = |name: &str| (it.known[name].trust, it.known[name].contact);
        assert_eq!(seen("a"), (Trust::Certificate, Contact::Unused));
        assert_eq!(seen("b"), (Trust::No, Contact::Untrusted), "it has no certificate");
    }

    #[test]
    fn contact_is_what_all_shards_have_together() {
        let mut it = others(&[("peers.a.key", "k")]);
        let mut after = |peer| {
            it.meet(&peer);
            it.known["a"].contact
        };
        assert_eq!(after(peer("a", false, &[], None)), Contact::Unused);
        assert_eq!(after(peer("a", true, &[true], Some(3.0))), Contact::AsksUs);
        assert_eq!(after(peer("a", false, &[], None)), Contact::AsksUs, "of another shard");
        assert_eq!(after(peer("a", false, &[false, false], Some(9.0))), Contact::Down);
        assert_eq!(after(peer("a", true, &[true], None)), Contact::Down, "it is not reached");
        assert_eq!(after(peer("a#1", true, &[true], None)), Contact::Down, "of its other shard");
        assert_eq!(after(peer("a", false, &[true, true], None)), Contact::Partly);
        let known = &it.known["a"];
        assert_eq!((known.lanes_up, known.lanes), (2, 4));
        assert_eq!(known.heard_seconds_ago, Some(3.0));
        assert_eq!(it.known.len(), 1, "a shard is no node");
    }

    #[test]
    fn the_source_that_is_followed_says_where_a_node_is() {
        let mut it = others(&[("peers.a.key", "k")]);
        it.hear(&said("a", "files", false));
        it.hear(&said("a", "etcd", true));
        it.hear(&said("a", "dns", false));
        it.hear(&said("stranger", "dns", false));
        assert_eq!(it.known["a"].source.as_deref(), Some("etcd"));
        assert_eq!(it.known["a"].address.as_deref(), Some("etcd:1"));
        let stranger = &it.known["stranger"];
        assert_eq!((stranger.trust, stranger.contact), (Trust::No, Contact::Untrusted));
        it.meet(&peer("stranger", true, &[true], None));
        assert_eq!(it.known["stranger"].contact, Contact::AsksUs);
        // An address of the configuration goes before what is said.
        it.meet(&PeerEntry { address: Some("own:1".to_owned()), ..peer("a", false, &[], None) });
        assert_eq!(it.known["a"].source.as_deref(), Some("config"));
    }
}
