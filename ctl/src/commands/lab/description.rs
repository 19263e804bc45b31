//! What a lab consists of, as it is kept in the lab's directory.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::site::Site;
use super::trust::Trust;
use crate::failure::{Exit, Failure};
use crate::output;

/// What joins the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Network {
    /// Each is a host of its own: a network namespace, and a bridge between all.
    Namespaces,
    /// All are on loopback, on ports of their own.
    Loopback,
}

/// Nodes of a lab and what joins them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lab {
    network: Network,
    trust: Trust,
    nodes: Vec<Member>,
}

/// A node of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    name: String,
    address: SocketAddr,
}

impl Lab {
    /// A lab of nodes that listen there.
    pub(super) fn new(network: Network, trust: Trust, addresses: &[SocketAddr]) -> Self {
        let nodes = names(addresses.len()).into_iter().zip(addresses);
        let nodes = nodes.map(|(name, &address)| Member { name, address });
        Self { network, trust, nodes: nodes.collect() }
    }

    /// The lab at a place; none if there is none, or only a part of one.
    pub(super) fn at(site: &Site) -> Result<Option<Self>, Failure> {
        let Some(text) = site.description()? else { return Ok(None) };
        let lab = serde_json::from_str(&text).map_err(|error| {
            Failure::failed(format!(
                "{}: lab.json is of another version of pipectl ({error}): pipectl lab down",
                output::path(site.directory())
            ))
        })?;
        Ok(Some(lab))
    }

    /// Keeps it: from then on the lab is there.
    pub(super) fn keep(&self, site: &Site) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        site.describe(&text)
    }

    pub(super) fn network(&self) -> Network {
        self.network
    }

    pub(super) fn trust(&self) -> Trust {
        self.trust
    }

    pub(super) fn nodes(&self) -> &[Member] {
        &self.nodes
    }

    /// Name for one node more.
    pub(super) fn next_name(&self) -> String {
        let digits = self.nodes.last().map_or(1, |last| last.name.len() - 1);
        format!("n{:0digits$}", self.nodes.len() + 1)
    }

    /// Takes one node more, under [`Self::next_name`].
    pub(super) fn add(&mut self, address: SocketAddr) -> &Member {
        let name = self.next_name();
        self.nodes.push(Member { name, address });
        &self.nodes[self.nodes.len() - 1]
    }

    /// The node of that name.
    pub(super) fn member(&self, name: &str) -> Result<&Member, Failure> {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(Member::name).collect();
            let words = format!("the lab has no node `{name}`: it has {}", names.join(", "));
            Failure::new(Exit::NotFound, words)
        })
    }
}

impl Member {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Names of so many nodes, all of one length, so that they sort as they count.
pub(super) fn names(count: usize) -> Vec<String> {
    let digits = count.to_string().len();
    (1..=count).map(|number| format!("n{number:0digits$}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_they_count() {
        assert_eq!(names(3), ["n1", "n2", "n3"]);
        let many = names(12);
        assert_eq!((many[0].as_str(), many[11].as_str()), ("n01", "n12"));
        assert!(many.is_sorted());
    }

    #[test]
    fn a_lab_is_there_when_it_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let site = Site::find(Some(directory.path())).expect("a place");
        assert_eq!(Lab::at(&site).expect("looked"), None);
        let addresses = ["127.0.0.1:1".parse().expect("an address"); 2];
        let mut lab = Lab::new(Network::Loopback, Trust::Cluster, &addresses);
        lab.keep(&site).expect("written");
        assert_eq!(Lab::at(&site).expect("looked").as_ref(), Some(&lab));
        assert_eq!(lab.add(addresses[0]).name(), "n3");
        lab.keep(&site).expect("written");
        assert_eq!(Lab::at(&site).expect("looked"), Some(lab));
        std::fs::write(directory.path().join("lab.json"), "{}").expect("written");
        assert!(Lab::at(&site).expect_err("not one").to_string().contains("lab down"));
    }
}
