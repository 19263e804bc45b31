//! Which of this node's shards serve which shards of nodes that proved their names.
//!
//! All lanes of one shard of another node must meet on one shard here, because handles that were
//! opened over one lane are used over the others, and a new lane waits for what its predecessor
//! wrote. Nothing joins the lanes of two shards of that node: each has clients, handles and a name
//! of its own. So these are spread.
//!
//! A home is kept as long as the daemon runs. It is not moved when nodes leave: lanes may come back
//! whose writes are still under way, and balance is made by those who come later.

use std::collections::BTreeMap;

use piped_core::names::SHARDS_MAX;

/// Most nodes whose homes are remembered: more than may be known at once, by certificates and by
/// the configuration. Others have homes that follow from their names.
const NODES_MAX: usize = 8192;

/// The shards here that serve the shards of one node, by the number there.
type OfNode = [Option<u8>; SHARDS_MAX];

/// The homes of all nodes that came.
#[derive(Debug)]
pub(crate) struct Homes {
    by_node: BTreeMap<String, OfNode>,
    /// How many shards of other nodes each shard here serves.
    served: Vec<u32>,
}

impl Homes {
    /// The homes on a node with so many shards.
    pub(crate) fn new(shards: usize) -> Self {
        Self { by_node: BTreeMap::new(), served: vec![0; shards.clamp(1, SHARDS_MAX)] }
    }

    /// The shard here for a shard of a node: the one it has, or the one that serves the fewest of
    /// its node, and of these the one that serves the fewest of all.
    pub(crate) fn home_of(&mut self, node: &str, shard: usize) -> usize {
        let known = self.by_node.get(node);
        if let Some(home) = known.and_then(|of| of.get(shard).copied().flatten()) {
            return usize::from(home);
        }
        // No handshake has such a number. A node that is one too many is spread as well.
        if shard >= SHARDS_MAX || known.is_none() && self.by_node.len() >= NODES_MAX {
            let (ours, sum) = (self.served.len(), node.bytes().map(usize::from).sum::<usize>());
            return (sum + shard % ours) % ours;
        }
        let mut of_node = vec![0_u32; self.served.len()];
        for home in known.into_iter().flatten().flatten() {
            of_node[usize::from(*home)] += 1;
        }
        let fewest = |home: &usize| (of_node[*home], self.served[*home]);
        let home = (0..self.served.len()).min_by_key(fewest).unwrap_or(0);
        let homes = self.by_node.entry(node.to_owned()).or_insert([None; SHARDS_MAX]);
        homes[shard] = Some(home as u8);
        self.served[home] += 1;
        home
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The homes of so many shards of a node, in their order.
    fn of_node(homes: &mut Homes, node: &str, shards: usize) -> Vec<usize> {
        (0..shards).map(|shard| homes.home_of(node, shard)).collect()
    }

    #[test]
    fn shards_of_one_node_go_to_different_shards_as_far_as_there_are_any() {
        for ours in 1..6 {
            let mut homes = Homes::new(ours);
            for node in ["alpha", "beta", "gamma"] {
                for theirs in 1..=3 * ours {
                    let mut counts = vec![0; ours];
                    of_node(&mut homes, node, theirs).iter().for_each(|home| counts[*home] += 1);
                    let (most, least) = (counts.iter().max(), counts.iter().min());
                    let apart = most.zip(least).map(|(most, least)| most - least);
                    assert!(apart <= Some(1), "{theirs} on {ours}: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn a_node_begins_where_the_fewest_are_served_and_keeps_what_it_has() {
        let mut homes = Homes::new(3);
        let first = ["a", "b", "c", "d"].map(|node| homes.home_of(node, 0));
        assert_eq!(first, [0, 1, 2, 0]);
        // Elsewhere than its first shard, and then where there are fewer.
        assert_eq!([1, 2].map(|shard| homes.home_of("d", shard)), [1, 2]);
        assert_eq!([2, 1].map(|shard| homes.home_of("a", shard)), [1, 2]);
        assert_eq!(homes.served, [2, 3, 3]);
        assert_eq!(homes.home_of("e", 7), 0, "whichever of its shards comes first");
        let again = ["a", "b", "c", "d"].map(|node| homes.home_of(node, 0));
        assert_eq!((again, homes.home_of("e", 7)), (first, 0));
        assert_eq!(homes.served, [3, 3, 3], "nobody is counted twice");
    }

    #[test]
    fn a_node_that_names_all_shards_there_can_be_pushes_nobody_to_one_shard() {
        let mut homes = Homes::new(4);
        of_node(&mut homes, "greedy", SHARDS_MAX);
        assert_eq!(homes.served, [16; 4]);
        let mut others: Vec<_> = ["a", "b", "c", "d"].map(|node| homes.home_of(node, 0)).into();
        others.sort_unstable();
        assert_eq!(others, [0, 1, 2, 3]);
        // No handshake says that, and there is no place for it.
        assert!(homes.home_of("greedy", SHARDS_MAX) < 4 && homes.home_of("greedy", usize::MAX) < 4);
        assert_eq!(homes.served, [17; 4]);
    }

    #[test]
    fn more_nodes_than_are_remembered_take_no_more_memory_and_are_spread_as_well() {
        let mut homes = Homes::new(3);
        for number in 0..NODES_MAX {
            homes.home_of(&format!("node-{number}"), 0);
        }
        let of_late = of_node(&mut homes, "late", 6);
        assert_eq!(of_node(&mut homes, "late", 6), of_late);
        for shard in 0..3 {
            assert_eq!(of_late.iter().filter(|&&home| home == shard).count(), 2, "{of_late:?}");
        }
        assert_eq!(homes.by_node.len(), NODES_MAX);
        // Those that are known have places for all of their shards.
        assert_ne!(homes.home_of("node-0", 0), homes.home_of("node-0", 1));
    }
}
