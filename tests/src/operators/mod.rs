//! What operators do to nodes while these work, and what must hold of connections and rights then.
//!
//! Operators change what they like, sensible or not. What is judged: a connection that the
//! configuration of its node forbids does not stay, however the reload came between dial, handshake
//! and door; and nodes that may be connected are, once nobody disturbs them any more. A
//! [`Network`](network::Network) has nodes alone, a [`World`](crate::world::World) has clients as
//! well.

pub mod acts;
mod cluster;
mod found;
pub mod judge;
pub mod network;
mod options;

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use piped_config::NodeKey;
use zeroize::Zeroizing;

pub use self::acts::{Act, Errand, Operators, Scene};
pub use self::options::Options;

/// The nodes by name.
pub const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

/// Keys for all: of each node, and some that are nobody's.
static KEYS: LazyLock<Vec<NodeKey>> = LazyLock::new(|| {
    let key = |number: u8| NodeKey::of_private(Zeroizing::new([number; 32]));
    (1..=9).map(key).collect()
});

/// The first user of those that run nodes of one machine.
pub const NEIGHBOUR: u32 = 1000;
/// The first user of those that have clients.
pub const CLIENT: u32 = 2000;

/// The name of what each node exports.
pub const EXPORT: &str = "data";
/// The folder that is exported, see [`EXPORT`].
pub const FOLDER: &str = "/data";

/// Where a node listens; `moved`: how often it has gone elsewhere.
#[must_use]
pub fn address_of(node: usize, one_machine: bool, moved: u16) -> SocketAddr {
    let ip = match one_machine {
        true => IpAddr::from([127, 0, 0, 1]),
        false => IpAddr::from([10, 0, node as u8, 1]),
    };
    (ip, 7000 + 10 * node as u16 + moved).into()
}
