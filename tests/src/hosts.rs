//! Hosts on one machine that all reach each other: network namespaces on a switch.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use piped_netns::owner::{self, Owner};
use piped_netns::{Switch, namespace, switch};

use crate::process::command;

/// Hosts, taken down when dropped. Those of a process that was killed go when the next are made.
#[derive(Debug)]
pub struct Hosts {
    switch: Switch,
}

impl Hosts {
    /// So many hosts; `None`, with the reason printed, where there can be none.
    #[must_use]
    pub fn up(tag: &str, count: usize) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("no hosts of their own: namespaces need root");
            return None;
        }
        for name in owner::left_over(Path::new(namespace::DIRECTORY)).unwrap_or_default() {
            // Another test that cleans up may be faster.
            let _ = namespace::remove(&name);
        }
        let made = Owner::this().and_then(|owner| {
            let mut switch = Switch::new(&format!("{}{tag}-", owner.prefix()))?;
            for host in 0..count {
                switch.join(&host.to_string())?;
            }
            Ok(Self { switch })
        });
        made.inspect_err(|error| eprintln!("no hosts of their own: {error}")).ok()
    }

    /// Where a host listens, by that port.
    #[must_use]
    pub fn address(&self, host: usize, port: u16) -> SocketAddr {
        (switch::address(host), port).into()
    }

    /// A program on a host, to be started.
    #[must_use]
    pub fn inside(&self, host: usize, program: &Path) -> Command {
        let mut inside = command(Path::new("ip"));
        inside.args(["netns", "exec", self.switch.hosts()[host].name()]).arg(program);
        inside
    }
}
