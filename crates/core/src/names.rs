//! Names of nodes and of their shards, as peers know them.

/// The longest node name in bytes.
pub const NODE_NAME_BYTES_MAX: u32 = 64;

/// Whether a node may have this name: 1 to 64 printable ASCII characters, because operators read it
/// on terminals.
#[must_use]
pub fn is_node_name(name: &str) -> bool {
    let fits = (1..=NODE_NAME_BYTES_MAX as usize).contains(&name.len());
    fits && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Separates a node's name from the number of one of its shards. Peers treat each shard as a node.
pub const SHARD_MARK: char = '#';

/// The name of the node that a node's or a shard's name belongs to.
#[must_use]
pub fn node_of(name: &str) -> &str {
    name.split_once(SHARD_MARK).map_or(name, |(node, _)| node)
}

/// The most shards of a node, here and at peers; the configuration has the same bound.
pub const SHARDS_MAX: usize = 64;

/// The name a shard gives its peers. Both ends of a connection must stay with one shard, so each
/// shard is a node of its own to the other side. The first shard has the node's plain name.
#[must_use]
pub fn shard_name(node: &str, shard: usize) -> String {
    if shard == 0 { node.to_owned() } else { format!("{node}{SHARD_MARK}{shard}") }
}

/// Whether the name is one that [`shard_name`] makes.
#[must_use]
pub fn is_shard_name(name: &str) -> bool {
    name.split_once(SHARD_MARK).is_none_or(|(node, shard)| {
        let number = shard.parse().ok().filter(|number| *number < SHARDS_MAX);
        number.is_some_and(|number| shard_name(node, number) == name)
    })
}
