//! How a world begins: what is between its nodes, what their files say, what their clients offer.

use core::ops::Range;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use piped_config::{Config, Export, NodeCertificate, NodeKey, Peer};
use piped_control::regions::RegionSource;
use piped_core::access::Access;
use piped_core::ids::{RegionId, SessionId};
use piped_core::units::Nanos;
use piped_ring::handshake::Audience;
use piped_sim::{Cost, NodeId};

/// The user that daemons run as.
pub const OWN_USER: u32 = 990;

/// The network of nodes without keys, and the address of the first.
const NETWORK: &str = "10.0.0.0/8";
const FIRST_ADDRESS: u32 = 0x0a00_0001;

/// The address of the first node by way of second links.
const SECOND_ADDRESS: u32 = 0x0a01_0001;

/// How the world between the nodes is.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings {
    /// The longest that looking a host up, connecting, and each message of a handshake take.
    pub step_max: Nanos,
    /// The longest that a command waits for its shard.
    pub mailbox_max: Nanos,
    /// Per look-up: the host is not found.
    pub resolve_fails: f64,
    /// Per connection: there is none.
    pub connect_fails: f64,
    /// Per handshake: the other side says nothing any more.
    pub handshake_hangs: f64,
    /// Bytes of a socket's buffer, each direction.
    pub socket_buffer: usize,
    /// What a link costs that is made when two shards first meet.
    pub link: Cost,
}

/// A node that starts.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The name that it gives itself.
    pub name: String,
    /// What its files say.
    pub config: Config,
    /// The key that it has.
    pub own: Option<NodeKey>,
    /// The certificate that it has.
    pub certificate: Option<NodeCertificate>,
    /// The shards of the node, as the kernel knows them.
    pub shards: Vec<NodeId>,
    /// Where it listens, and has its address.
    pub address: SocketAddr,
    /// Where it listens also, by way of other links.
    pub second: Option<SocketAddr>,
    /// The user of that machine, for nodes of the same machine.
    pub user: u32,
}

impl Surroundings {
    /// Surroundings where all that is decided is done at once, and nothing fails.
    #[must_use]
    pub const fn prompt(link: Cost, socket_buffer: usize) -> Self {
        Self {
            step_max: Nanos::ZERO,
            mailbox_max: Nanos::ZERO,
            resolve_fails: 0.0,
            connect_fails: 0.0,
            handshake_hangs: 0.0,
            socket_buffer,
            link,
        }
    }
}

impl Setup {
    /// A node without a key, by number and name, that offers a directory to everybody. It listens
    /// at the [`address`] of its number, and dials its peers at those of theirs.
    ///
    /// # Panics
    /// Never: addresses are well formed.
    #[must_use]
    pub fn plain<'a>(
        (number, name): (usize, &str),
        peers: impl IntoIterator<Item = (usize, &'a str)>,
        export: &str,
        shards: Vec<NodeId>,
    ) -> Self {
        let mut config = Config::default();
        config.listen.address = Some(address(number));
        config.listen.allow_plain = vec![NETWORK.parse().expect("a network")];
        for (other, peer) in peers {
            config.peers.insert(peer.to_owned(), peer_at(address(other)));
        }
        let all = Export { path: format!("/{export}").into(), write: true, ..Export::default() };
        config.exports.insert(export.to_owned(), all);
        let (name, address) = (name.to_owned(), address(number));
        Self {
            name,
            config,
            own: None,
            certificate: None,
            shards,
            address,
            second: None,
            user: OWN_USER,
        }
    }

    /// The node listens at the [`second_address`] of its number too, and dials these of its peers
    /// at those of theirs.
    ///
    /// # Panics
    /// Never: addresses are well formed.
    #[must_use]
    pub fn with_second<'a>(
        mut self,
        number: usize,
        peers: impl IntoIterator<Item = (usize, &'a str)>,
    ) -> Self {
        self.second = Some(second_address(number));
        for (other, peer) in peers {
            if let Some(peer) = self.config.peers.get_mut(peer) {
                let address = second_address(other).to_string();
                peer.second_address = address.parse().expect("an address");
            }
        }
        self
    }
}

/// Where a node listens, by its number.
#[must_use]
pub const fn address(number: usize) -> SocketAddr {
    let address = Ipv4Addr::from_bits(FIRST_ADDRESS + number as u32);
    SocketAddr::V4(SocketAddrV4::new(address, 7440))
}

/// Where a node listens by way of second links, by its number.
#[must_use]
pub const fn second_address(number: usize) -> SocketAddr {
    let address = Ipv4Addr::from_bits(SECOND_ADDRESS + number as u32);
    SocketAddr::V4(SocketAddrV4::new(address, 7440))
}

/// What a configuration says of a peer without a key that listens there.
///
/// # Panics
/// Never: the address is well formed.
#[must_use]
pub fn peer_at(address: SocketAddr) -> Peer {
    let address = address.to_string().parse().expect("an address");
    Peer { address, ..Peer::default() }
}

/// A region to be offered to everybody: that range of bytes of the first segment of a session's
/// arena, on the first shard of its node. The control thread gives it its number.
#[must_use]
pub fn region(owner: SessionId, range: Range<u64>, access: Access) -> RegionSource<()> {
    RegionSource {
        region: RegionId(0),
        owner,
        home: 0,
        segment: 0,
        memory: (),
        offset: range.start,
        length: range.end.saturating_sub(range.start),
        access,
        audience: Audience::default(),
    }
}
