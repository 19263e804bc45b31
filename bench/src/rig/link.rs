//! Two namespaces and the link between them, with a given rate.
//!
//! A veth pair hands packets over at the speed of memory. Each side has an HTB class in front of it
//! that limits the rate. Its bucket holds one packet, and the segmentation offloads are off. With
//! the usual bucket of some hundred KiB, or with packets of 64 KiB, a lone transfer would pass
//! before the rate is felt. Packets are 9000 bytes long: at 1500 the softirq, and not the rate, is
//! the limit where there are two CPUs for two nodes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use piped_netns::Namespace;
use piped_netns::owner::Owner;

use crate::failure::Failure;

/// Name of the link's end in each namespace.
const DEVICE: &str = "rig0";
const MTU: &str = "9000";
/// A packet with its Ethernet header, the size of the bucket.
const PACKET: &str = "9014";

/// Addresses for benchmarks of network devices (RFC 2544), which nobody uses.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// Network with both addresses.
pub(super) const NETWORK: &str = "198.18.0.0/30";

/// Congestion control, whatever this system's choice is: reno does nothing every few seconds, and
/// every kernel lets a namespace have it.
const CONGESTION: &str = "reno";

/// Rate above that of the machine.
pub(super) const UNSHAPED: u64 = 12_500_000_000;

/// One of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::A, Self::B];

    pub(super) fn address(self, port: u16) -> SocketAddr {
        (ADDRESSES[self as usize], port).into()
    }
}

/// A link between two namespaces.
#[derive(Debug)]
pub(super) struct Link {
    namespaces: [Namespace; 2],
}

impl Link {
    /// Sets both ends up, at `rate` bytes per second each way.
    pub(super) fn set_up(owner: Owner, rate: u64) -> Result<Self, Failure> {
        static LINKS: AtomicU32 = AtomicU32::new(0);
        let number = LINKS.fetch_add(1, Ordering::Relaxed);
        let add = |name| Namespace::add(format!("{}{number}-{name}", owner.prefix()));
        let namespaces = [add("a")?, add("b")?];
        let [a, b] = &namespaces;
        // Both ends are made in their namespaces, so they never appear in the machine's own.
        let (mtu, peer) = (["mtu", MTU], ["type", "veth", "peer", "name", DEVICE]);
        let ends = [&["link", "add", DEVICE][..], &mtu, &peer, &mtu, &["netns", b.name()]];
        a.ip(&ends.concat())?;
        for (namespace, address) in namespaces.iter().zip(ADDRESSES) {
            namespace.ip(&["address", "add", &format!("{address}/30"), "dev", DEVICE])?;
            namespace.set("net/ipv4/tcp_congestion_control", CONGESTION)?;
            let offloads = ["gso_max_segs", "1", "gso_max_size", PACKET, "gro_max_size", PACKET];
            namespace.ip(&[&["link", "set", DEVICE][..], &offloads].concat())?;
            namespace.ip(&["link", "set", DEVICE, "up"])?;
            let root =
                ["qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "htb", "default", "1"];
            namespace.tc(&root)?;
        }
        let link = Self { namespaces };
        Side::BOTH.into_iter().try_for_each(|side| link.class(side, "add", rate))?;
        Ok(link)
    }

    /// Changes the rate of data that leaves both sides, in bytes per second, also for packets under
    /// way.
    pub(super) fn set_rate(&self, rate: u64) -> Result<(), Failure> {
        Side::BOTH.into_iter().try_for_each(|side| self.class(side, "change", rate))
    }

    fn class(&self, side: Side, verb: &str, rate: u64) -> Result<(), Failure> {
        let bits = format!("{}bit", rate.saturating_mul(8));
        let class = ["class", verb, "dev", DEVICE, "parent", "1:", "classid", "1:1", "htb"];
        let rates = ["rate", &bits, "ceil", &bits];
        let bucket = ["burst", PACKET, "cburst", PACKET, "quantum", PACKET];
        Ok(self.namespace(side).tc(&[&class[..], &rates, &bucket].concat())?)
    }

    pub(super) fn namespace(&self, side: Side) -> &Namespace {
        &self.namespaces[side as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::clock;
    use crate::outside;

    /// Connection from B to A.
    fn connected(link: &Link) -> (TcpStream, TcpStream) {
        let [a, b] = Side::BOTH.map(|side| link.namespace(side));
        let listener = a
            .inside::<_, Failure>(|| Ok(TcpListener::bind(Side::A.address(0))?))
            .expect("a listener");
        let address = listener.local_addr().expect("bound");
        let sender = b.inside::<_, Failure>(|| Ok(TcpStream::connect(address)?)).expect("a link");
        (sender, listener.accept().expect("it connected").0)
    }

    /// None, with the reason printed, if a link cannot be made.
    fn link(rate: u64) -> Option<Link> {
        if !rustix::process::geteuid().is_root() || !outside::is_installed("tc") {
            eprintln!("skipped: it needs root and iproute2");
            return None;
        }
        let owner = Owner::this().expect("there is a /proc");
        Some(Link::set_up(owner, rate).expect("root may"))
    }

    /// Time of this many bytes from the first to the last. The tests check lower bounds, which no
    /// load of the machine breaks.
    fn seconds(pair: &mut (TcpStream, TcpStream), bytes: usize) -> f64 {
        let (sender, receiver) = pair;
        std::thread::scope(|scope| {
            let start = clock::now();
            scope.spawn(|| sender.write_all(&vec![1; bytes]).expect("it is read"));
            receiver.read_exact(&mut vec![0; bytes]).expect("it is sent");
            start.elapsed().as_secs_f64()
        })
    }

    #[test]
    fn a_lone_short_transfer_is_shaped_too_and_the_rate_changes_while_it_is_up() {
        const BYTES: usize = 100_000;
        // Two packets may pass at once: the bucket, and the one that goes into debt.
        let shaped = (BYTES - 2 * 9014) as f64;
        let Some(link) = link(1_000_000) else { return };
        let mut pair = connected(&link);
        let slow = seconds(&mut pair, BYTES);
        assert!(slow > shaped / 1e6, "{slow} s at 1 MB/s");
        link.set_rate(4_000_000).expect("it is up");
        let faster = seconds(&mut pair, BYTES);
        assert!(faster > shaped / 4e6, "{faster} s at 4 MB/s");
        link.set_rate(UNSHAPED).expect("it is up");
        // Not a bar: a machine that needs a quarter of a second for this is not one to measure on.
        let fastest = seconds(&mut pair, BYTES);
        assert!(fastest < slow, "{fastest} s unshaped, {slow} s at 1 MB/s");
    }

    #[test]
    fn nothing_is_left_of_a_link() {
        let Some(link) = link(UNSHAPED) else { return };
        let paths = Side::BOTH.map(|side| link.namespace(side).path());
        assert!(paths.iter().all(|path| path.exists()));
        drop(link);
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
