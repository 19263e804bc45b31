//! Who asks whom for what, and what the files of the nodes say of it.

use std::collections::BTreeMap;

use piped_config::{Config, Export, Found, HostPort, NodeKey, Peer};
use piped_core::access::OpenKind;
use piped_core::link::Dialling;
use piped_sim::NodeId;
use piped_world::controls::{OWN_USER, Setup, address};
use zeroize::Zeroizing;

use super::machine::Options;

/// The directory that every node offers.
pub(super) const EXPORT: &str = "data";

/// What nodes have, and who asks whom.
#[derive(Debug)]
pub(super) struct Layout {
    /// The nodes that each node asks.
    asks: Vec<Vec<usize>>,
    /// The nodes that ask each node.
    asked_by: Vec<Vec<usize>>,
    keys: Vec<NodeKey>,
    kind: OpenKind,
    /// Bytes of what each node has.
    lengths: Vec<u64>,
    longest: u64,
    sink: Option<usize>,
    /// When peers are dialled that a source tells of, if one does.
    discovers: Option<Dialling>,
    /// How much slower the disk of each node is than the machine says, if all have one file.
    replicated: Option<fn(usize) -> f64>,
}

/// The name of a node, by number.
pub(super) fn name_of(node: usize) -> String {
    format!("n{node:04}")
}

impl Layout {
    /// Each node asks as many as the options say, beginning with the next one. Each has a block.
    pub(super) fn mesh(options: &Options, kind: OpenKind) -> Self {
        let nodes = options.nodes;
        let asked = |node: usize| (1..=options.asked()).map(|step| (node + step) % nodes).collect();
        let lengths = vec![options.block; nodes];
        Self::new((0..nodes).map(asked).collect(), kind, lengths, options.block)
    }

    /// All ask the first node, which has so many bytes. A request has at most `longest`.
    pub(super) fn star(options: &Options, kind: OpenKind, bytes: u64, longest: u64) -> Self {
        let asked = |node: usize| vec![0; usize::from(node > 0)];
        let mut lengths = vec![options.block; options.nodes];
        lengths[0] = bytes;
        Self::new((0..options.nodes).map(asked).collect(), kind, lengths, longest)
    }

    /// The first node asks the others, of which each has so many bytes. A request has at most
    /// `longest`.
    pub(super) fn fan(options: &Options, kind: OpenKind, bytes: u64, longest: u64) -> Self {
        let all = (1..options.nodes).take(options.asked()).collect();
        let mut asks = vec![Vec::new(); options.nodes];
        asks[0] = all;
        let lengths = vec![bytes; options.nodes];
        Self::new(asks, kind, lengths, longest)
    }

    fn new(asks: Vec<Vec<usize>>, kind: OpenKind, lengths: Vec<u64>, longest: u64) -> Self {
        let mut asked_by = vec![Vec::new(); asks.len()];
        for (node, asked) in asks.iter().enumerate() {
            asked.iter().for_each(|&other| asked_by[other].push(node));
        }
        let key = |node: usize| {
            let mut bytes = [1; 32];
            // Not the first bytes: the curve clears bits of them.
            bytes[8..16].copy_from_slice(&(node as u64 + 1).to_le_bytes());
            NodeKey::of_private(Zeroizing::new(bytes))
        };
        let keys = (0..asks.len()).map(key).collect();
        Self {
            asks,
            asked_by,
            keys,
            kind,
            lengths,
            longest,
            sink: None,
            discovers: None,
            replicated: None,
        }
    }

    /// The first node's narrow link is the one by which bytes come in; otherwise each node has one
    /// for all that leave it.
    pub(super) fn into_the_first(self) -> Self {
        Self { sink: Some(0), ..self }
    }

    /// A source tells where peers are, and no file does.
    pub(super) fn discovered(self, dialling: Dialling) -> Self {
        Self { discovers: Some(dialling), ..self }
    }

    /// All nodes have the same file, on disks that are so many times slower than the machine says.
    pub(super) fn with_one_file(self, slower: fn(usize) -> f64) -> Self {
        Self { replicated: Some(slower), ..self }
    }

    /// How much slower the disk of a node is than the machine says, if all nodes have one file.
    pub(super) fn replicated(&self, node: usize) -> Option<f64> {
        self.replicated.map(|slower| slower(node))
    }

    /// Stands for all that a node asks, in a request for the file that all have.
    pub(super) fn anybody(&self) -> usize {
        self.asks.len()
    }

    pub(super) fn asks(&self, node: usize) -> &[usize] {
        &self.asks[node]
    }

    /// Each node with each that it asks.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.asks.iter().enumerate();
        all.flat_map(|(node, asked)| asked.iter().map(move |&other| (node, other)))
    }

    /// What nodes ask each other for.
    pub(super) fn kind(&self) -> OpenKind {
        self.kind
    }

    /// Bytes of what a node has.
    pub(super) fn length(&self, node: usize) -> u64 {
        self.lengths[node]
    }

    /// The most bytes of a request.
    pub(super) fn longest(&self) -> u64 {
        self.longest
    }

    /// The node into which all bytes go over one link, if there is one.
    pub(super) fn sink(&self) -> Option<usize> {
        self.sink
    }

    /// Whether a source tells where peers are.
    pub(super) fn is_discovered(&self) -> bool {
        self.discovers.is_some()
    }

    /// What the files of a node say: whom it asks, and that those who ask it may come.
    pub(super) fn setup(&self, node: usize, id: NodeId) -> Setup {
        let mut config = Config::default();
        config.listen.address = Some(address(node));
        if let Some(dialling) = self.discovers {
            config.discovery.files = "/run/found".into();
            config.discovery.connect = dialling;
        }
        let data = Export { path: "/data".into(), write: true, ..Export::default() };
        config.exports.insert(EXPORT.to_owned(), data);
        let said = |other: usize, address: HostPort| {
            let key = Some(self.keys[other].public());
            (name_of(other), Peer { address, key, ..Peer::default() })
        };
        let only_come = self.asked_by[node].iter();
        config.peers.extend(only_come.map(|&other| said(other, HostPort::default())));
        let written = |other| match self.is_discovered() {
            true => HostPort::default(),
            false => address(other).to_string().parse().expect("an address"),
        };
        config.peers.extend(self.asks[node].iter().map(|&other| said(other, written(other))));
        Setup {
            certificate: None,
            name: name_of(node),
            config,
            own: Some(self.keys[node].clone()),
            shards: vec![id],
            address: address(node),
            second: None,
            user: OWN_USER,
        }
    }

    /// What a source tells a node, of those that it asks. `at`: where a node listens now.
    pub(super) fn found(
        &self,
        node: usize,
        at: impl Fn(usize) -> String,
    ) -> BTreeMap<String, Found> {
        let found = |&other: &usize| {
            let address = at(other).parse().expect("an address");
            let key = Some(self.keys[other].public());
            (name_of(other), Found { address, key, ..Found::default() })
        };
        self.asks[node].iter().map(found).collect()
    }
}
