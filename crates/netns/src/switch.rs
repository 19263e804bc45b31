//! Hosts that all reach each other: a namespace each, and one more with the bridge that joins them.
//!
//! ```text
//!   PREFIXa ── lab0    p1 ┐
//!   PREFIXb ── lab0    p2 ┼─ bridge in PREFIXswitch
//!   PREFIXc ── lab0    p3 ┘
//! ```
//!
//! The bridge has a namespace of its own, and not the machine's: no firewall of the machine filters
//! what passes it, its addresses are nobody else's, and it goes with its namespace.

use std::net::Ipv4Addr;

use crate::{Error, Namespace, namespace};

/// What the bridge's namespace is called behind the prefix: no host may have the name.
pub const SWITCH: &str = "switch";

/// Most hosts of one switch.
pub const HOSTS_MAX: usize = 200;

/// Name of each host's end of its cable.
const DEVICE: &str = "lab0";
const BRIDGE: &str = "bridge0";

/// Address of a host, counted from 0, out of those for benchmarks of network devices (RFC 2544),
/// which nobody uses.
///
/// # Panics
/// If there are fewer hosts.
#[must_use]
pub fn address(host: usize) -> Ipv4Addr {
    assert!(host < HOSTS_MAX, "a switch has {HOSTS_MAX} hosts at most");
    Ipv4Addr::new(198, 19, 0, host as u8 + 1)
}

/// A switch and its hosts, removed when dropped unless they are kept.
#[derive(Debug)]
pub struct Switch {
    prefix: String,
    hub: Namespace,
    hosts: Vec<Namespace>,
}

impl Switch {
    /// Makes a switch without hosts. The names of all its namespaces begin with `prefix`.
    ///
    /// # Errors
    /// What `ip` says, as without its rights or where the kernel has no bridges.
    pub fn new(prefix: &str) -> Result<Self, Error> {
        let hub = Namespace::add(format!("{prefix}{SWITCH}"))?;
        hub.ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        hub.ip(&["link", "set", BRIDGE, "up"])?;
        Ok(Self { prefix: prefix.to_owned(), hub, hosts: Vec::new() })
    }

    /// Makes one more host with the next [`address`].
    ///
    /// # Errors
    /// What `ip` says.
    pub fn join(&mut self, name: &str) -> Result<&Namespace, Error> {
        let host = plug(&self.hub, format!("{}{name}", self.prefix), self.hosts.len())?;
        self.hosts.push(host);
        Ok(self.hosts.last().expect("it was pushed"))
    }

    /// Hosts that have joined, in that order.
    #[must_use]
    pub fn hosts(&self) -> &[Namespace] {
        &self.hosts
    }

    /// Leaves everything where it is, until it is removed by name.
    pub fn keep(self) {
        self.hub.keep();
        self.hosts.into_iter().for_each(Namespace::keep);
    }
}

/// Makes one more host of a switch that was kept, with [`address`] `number`. The host is removed
/// when dropped, unless it is kept as well.
///
/// # Errors
/// What `ip` says.
pub fn join_kept(prefix: &str, name: &str, number: usize) -> Result<Namespace, Error> {
    plug(&Namespace::kept(format!("{prefix}{SWITCH}")), format!("{prefix}{name}"), number)
}

/// Removes a host of a switch that was kept, or what there is of one, with its end of the cable at
/// the bridge: the kernel takes that away at some time later only.
///
/// # Errors
/// What `ip` says.
pub fn leave_kept(prefix: &str, name: &str, number: usize) -> Result<(), Error> {
    let hub = Namespace::kept(format!("{prefix}{SWITCH}"));
    // It may be gone, or never have been there.
    let _ = hub.ip(&["link", "delete", &port(number)]);
    namespace::remove(&format!("{prefix}{name}"))
}

/// Name of a host's port at the bridge.
fn port(number: usize) -> String {
    format!("p{}", number + 1)
}

/// Makes a host, and a cable from it to the bridge.
fn plug(hub: &Namespace, name: String, number: usize) -> Result<Namespace, Error> {
    let host = Namespace::add(name)?;
    let (port, address) = (port(number), format!("{}/24", address(number)));
    // Both ends are made in their namespaces, so they never appear in the machine's own.
    let ends = ["link", "add", DEVICE, "type", "veth", "peer", "name", &port];
    host.ip(&[&ends[..], &["netns", hub.name()]].concat())?;
    host.ip(&["address", "add", &address, "dev", DEVICE])?;
    host.ip(&["link", "set", DEVICE, "up"])?;
    hub.ip(&["link", "set", &port, "master", BRIDGE, "up"])?;
    Ok(host)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// None, with the reason printed, where there can be none.
    fn switch(prefix: &str, names: &[&str]) -> Option<Switch> {
        let joined = Switch::new(prefix).and_then(|mut switch| {
            names.iter().try_for_each(|name| switch.join(name).map(drop))?;
            Ok(switch)
        });
        joined.inspect_err(|error| eprintln!("skipped: {error}")).ok()
    }

    #[test]
    fn each_host_reaches_each_other_and_nothing_is_left_of_them() {
        let prefix = format!("piped-switch-test-{}-", std::process::id());
        let Some(switch) = switch(&prefix, &["a", "b", "c"]) else { return };
        let listen = |host: &Namespace| {
            host.inside(|| {
                TcpListener::bind("0.0.0.0:7440").map_err(|error| Error::new(error.to_string()))
            })
        };
        let listeners: Vec<TcpListener> =
            switch.hosts().iter().map(|host| listen(host).expect("its own port")).collect();
        for from in switch.hosts() {
            for (to, listener) in listeners.iter().enumerate() {
                let connect = || {
                    let stream = TcpStream::connect((address(to), 7440));
                    stream.map_err(|error| Error::new(error.to_string()))
                };
                let mut stream = from.inside(connect).expect("it is reached");
                stream.write_all(&[to as u8]).expect("sent");
                let mut got = [0xff];
                listener.accept().expect("it came").0.read_exact(&mut got).expect("read");
                assert_eq!(usize::from(got[0]), to);
            }
        }
        let of_them = || namespace::with_prefix(&prefix).expect("readable").len();
        assert_eq!(of_them(), 4);
        drop(switch);
        assert_eq!(of_them(), 0);
    }

    #[test]
    fn what_is_kept_is_found_by_its_prefix_and_removed_with_what_lives_there() {
        let prefix = format!("piped-kept-test-{}-", std::process::id());
        let Some(switch) = switch(&prefix, &["a"]) else { return };
        let start = || {
            let mut command = std::process::Command::new("sleep");
            command.arg("600").spawn().map_err(|error| Error::new(error.to_string()))
        };
        let mut living = switch.hosts()[0].inside(start).expect("started");
        switch.keep();
        let names = namespace::with_prefix(&prefix).expect("readable");
        assert_eq!(names, [format!("{prefix}a"), format!("{prefix}{SWITCH}")]);
        assert_eq!(namespace::processes(&names[0]).len(), 1);
        // One that comes later reaches the first.
        let listener = Namespace::kept(names[0].clone()).inside(|| {
            TcpListener::bind("0.0.0.0:7440").map_err(|error| Error::new(error.to_string()))
        });
        let later = join_kept(&prefix, "b", 1).expect("one more");
        let connect = || {
            let stream = TcpStream::connect((address(0), 7440));
            stream.map_err(|error| Error::new(error.to_string()))
        };
        later.inside(connect).expect("it is reached");
        later.keep();
        drop(listener);
        for _ in 0..3 {
            leave_kept(&prefix, "b", 1).expect("ours");
            assert_eq!(namespace::with_prefix(&prefix).expect("readable"), names);
            join_kept(&prefix, "b", 1).expect("its place is free").keep();
        }
        leave_kept(&prefix, "b", 1).expect("ours");
        leave_kept(&prefix, "b", 1).expect("it is gone already");
        living.kill().expect("ours");
        living.wait().expect("ours");
        names.iter().for_each(|name| namespace::remove(name).expect("ours"));
        assert_eq!(namespace::with_prefix(&prefix).expect("readable"), Vec::<String>::new());
        namespace::remove(&names[0]).expect("it is gone already");
    }
}
