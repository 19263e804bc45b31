//! The door for peers: which callers come in, and as which nodes.
//!
//! ```text
//!   accept ─► budget left? ─► proves a key ─────────────────────► Caller::Proven
//!                          └► plain network? ─► user admitted? ─► Caller::Unproven
//! ```

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use piped_config::NodeCertificate;
use piped_core::units::Nanos;
use piped_engine::command::{Caller, Origin};

use crate::control::Control;
use crate::keyring::Keyring;
use crate::parties::FarEnd;
use crate::patrol::{Verdict, site_of};

/// Why a caller that said all it had to say does not come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// The connection is plain, from where only nodes with keys are admitted.
    #[error(
        "it does not prove who it is, and its network is not in listen.allow_plain (where this \
         node has a key, loopback is no exception); give it a key: `pipectl keys generate` there, \
         `pipectl keys trust` here"
    )]
    Plain,
    /// The connection is plain, and of a user of this machine that has no access.
    #[error(
        "its lane is plain, and user {0} of this machine, whose it is, is not in [access] users \
         or groups; add the user, or give the node a key: `pipectl keys generate` there, \
         `pipectl keys trust` here"
    )]
    User(u32),
    /// The connection is plain, from this machine, and no user holds its other end.
    #[error(
        "its lane is plain, from an address of this machine, and no user holds the other end any \
         more"
    )]
    Nobody,
    /// There are as many nodes of the cluster as are remembered.
    #[error("it is of the cluster, of which this node remembers no more nodes")]
    Crowd,
    /// The configuration changed under the handshake.
    #[error("the configuration was loaded again meanwhile; it may try again")]
    Reloaded,
}

/// The budget that an attempt counts for, from what the kernel says of the connection.
#[must_use]
pub fn origin(from: IpAddr, held: Option<FarEnd>) -> Origin {
    match held {
        Some(FarEnd::User(uid)) => Origin::User(uid),
        // A caller that hung up: all such are one, so that none of them is taken for the address of
        // a node.
        Some(FarEnd::Nobody) => Origin::Site(Ipv4Addr::LOCALHOST.into()),
        Some(FarEnd::Elsewhere) | None => Origin::Site(site_of(from)),
    }
}

impl<M: Clone> Control<M> {
    /// Whether callers at the door are asked to prove a key.
    #[must_use]
    pub fn asks_for_keys(&self) -> bool {
        self.keyring().identity().is_some()
    }

    /// Whether an address has been at the door lately, and is not of this machine. The kernel is
    /// not asked for the holder of such a connection again: that costs more than to turn it away.
    #[must_use]
    pub fn knows_site(&self, from: IpAddr) -> bool {
        !from.to_canonical().is_loopback() && self.patrol.remembers(Origin::Site(site_of(from)))
    }

    /// Takes an attempt at the door from the budget of its origin.
    pub fn admit(&mut self, from: Origin, now: Nanos) -> Verdict {
        self.patrol.admit(from, now)
    }

    /// Whether a connection from an address may be plain.
    ///
    /// # Errors
    /// [`Unwelcome::Plain`].
    pub fn check_plain(&self, from: IpAddr) -> Result<(), Unwelcome> {
        let has_key = self.asks_for_keys();
        let admitted = self.config().listen.admits_plain(from, has_key);
        if admitted { Ok(()) } else { Err(Unwelcome::Plain) }
    }

    /// A caller that proves nothing. Its network admits it, and on this machine its user.
    ///
    /// # Errors
    /// See [`Unwelcome`].
    pub fn meet_plain(&self, from: IpAddr, held: FarEnd) -> Result<Caller, Unwelcome> {
        self.check_plain(from)?;
        let origin = match held {
            FarEnd::Elsewhere => Origin::Site(site_of(from)),
            FarEnd::Nobody => return Err(Unwelcome::Nobody),
            FarEnd::User(uid) if !self.rules().admits_client(&self.credentials_of(uid)) => {
                return Err(Unwelcome::User(uid));
            }
            FarEnd::User(uid) => Origin::User(uid),
        };
        Ok(Caller::Unproven { reserved: self.reserved(), origin })
    }

    /// Names that a plain caller cannot have: of nodes that prove theirs.
    fn reserved(&self) -> Arc<BTreeSet<String>> {
        let pinned = self.keyring().reserved();
        let members = self.members().names();
        if members.is_empty() {
            return pinned;
        }
        Arc::new(pinned.union(members).cloned().collect())
    }

    /// A caller comes in that was met under a keyring, unless a reload came in between. `shown`:
    /// the certificate by which its key counts.
    ///
    /// # Errors
    /// [`Unwelcome::Reloaded`].
    pub fn come_in(
        &mut self,
        caller: &Caller,
        (keyring, shown): (&Rc<Keyring>, Option<NodeCertificate>),
        from: Origin,
        now: Nanos,
    ) -> Result<(), Unwelcome> {
        if !Rc::ptr_eq(keyring, &self.keyring()) {
            return Err(Unwelcome::Reloaded);
        }
        let proven = matches!(caller, Caller::Proven { .. });
        self.patrol.give_back(from, proven, now);
        if let Some(shown) = shown {
            let name = shown.subject().name.clone();
            self.enter_member(shown, now);
            if self.members().certificate(&name).is_none() {
                return Err(Unwelcome::Crowd);
            }
        }
        Ok(())
    }

    /// The shard here for a shard of another node: all connections of that one must meet there, for
    /// handles that were opened over one are used over the others. A node that proved its name, and
    /// said which of its shards dials, is spread over the shards here, from whatever address it
    /// comes; each pair keeps what it got. Only names that files know, or that the cluster signed,
    /// are remembered. Others have the shard of their address: no number of theirs is proved.
    #[must_use]
    pub fn home_of(&mut self, proven: Option<(&str, usize)>, address: IpAddr) -> usize {
        let number = match (proven, address.to_canonical()) {
            (Some((node, shard)), _) => return self.homes.home_of(node, shard),
            (None, IpAddr::V4(v4)) => u128::from(u32::from(v4)),
            (None, IpAddr::V6(v6)) => u128::from(v6),
        };
        (number % self.shards().max(1) as u128) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Live;

    #[test]
    fn all_connections_of_a_shard_of_a_node_meet_on_one_shard() {
        let plain: IpAddr = "10.9.0.3".parse().expect("an address");
        let mapped: IpAddr = "::ffff:10.9.0.3".parse().expect("an address");
        for shards in 1..8 {
            let mut control = Control::<()>::new(shards, Live::default_for_tests());
            assert_eq!(control.home_of(None, plain), control.home_of(None, mapped));
            assert!(control.home_of(None, plain) < shards);
            let other = "10.9.1.3".parse().expect("an address");
            for shard in 0..3 {
                let proven = control.home_of(Some(("alpha", shard)), plain);
                let again = control.home_of(Some(("alpha", shard)), other);
                assert_eq!(proven, again, "by way of either link");
                assert!(proven < shards);
            }
        }
    }

    #[test]
    fn nodes_that_proved_their_names_are_spread_evenly() {
        let address: IpAddr = "10.9.0.3".parse().expect("an address");
        let mut control = Control::<()>::new(3, Live::default_for_tests());
        let names = ["ab", "ba", "node-1", "node-10", "x", "yy"];
        let homes = names.map(|name| control.home_of(Some((name, 0)), address));
        for shard in 0..3 {
            assert_eq!(homes.iter().filter(|&&home| home == shard).count(), 2, "{homes:?}");
        }
        assert_eq!(names.map(|name| control.home_of(Some((name, 0)), address)), homes);
        let others = names.map(|name| control.home_of(Some((name, 1)), address));
        assert!(homes.iter().zip(others).all(|(home, other)| *home != other), "{others:?}");
    }
}
