//! The regions that local clients offer, by name.

use std::collections::BTreeMap;

use crate::parties::Credentials;
use piped_config::admin::calibrate::ECHO_REGION;
use piped_config::admin::watch::RegionReport;
use piped_core::access::Access;
use piped_core::ids::{RegionId, SessionId};
use piped_core::status::Status;
use piped_ring::handshake::Audience;

use crate::fault::OpenFault;
use crate::owners::Owners;
use crate::parties::{Asker, NodeOf};

/// A piece of a session's arena that others may use.
#[derive(Debug, Clone)]
pub struct RegionSource<M> {
    /// The number of the region.
    pub region: RegionId,
    /// The session whose memory it is.
    pub owner: SessionId,
    /// The shard that serves the owner.
    pub home: usize,
    /// The segment's number in the owner's arena.
    pub segment: u32,
    /// The memory of the segment, in the terms of the driver.
    pub memory: M,
    /// Where the region starts in the segment, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What may be done with it.
    pub access: Access,
    /// The parties that it is for.
    pub audience: Audience,
}

/// All regions. Names are unique on the node.
#[derive(Debug)]
pub struct Regions<M> {
    by_name: BTreeMap<String, RegionSource<M>>,
    owners: Owners,
    last: u32,
}

impl<M> Default for Regions<M> {
    fn default() -> Self {
        Self { by_name: BTreeMap::new(), owners: Owners::default(), last: 0 }
    }
}

impl<M: Clone> Regions<M> {
    /// Offers a region in a segment of so many bytes; its `region` is chosen here.
    ///
    /// # Errors
    /// The name is empty or taken, or the range is not inside the segment.
    pub fn offer(
        &mut self,
        name: &str,
        mut source: RegionSource<M>,
        segment_bytes: u64,
    ) -> Result<RegionSource<M>, OpenFault> {
        if name.is_empty() {
            return Err(OpenFault::new(Status::Invalid, "a region needs a name"));
        }
        if name == ECHO_REGION {
            let text = format!("`{ECHO_REGION}` is the daemon's own; choose another name");
            return Err(OpenFault::new(Status::Invalid, text));
        }
        if source.access == Access::NONE {
            let text = "the region is offered neither for reading nor for writing";
            return Err(OpenFault::new(Status::Invalid, text));
        }
        let inside = source
            .offset
            .checked_add(source.length)
            .is_some_and(|end| source.length > 0 && end <= segment_bytes);
        if !inside {
            let text = format!(
                "{} bytes at offset {} do not lie inside the segment of {} bytes",
                source.length, source.offset, segment_bytes
            );
            return Err(OpenFault::new(Status::BadBuffer, text));
        }
        if self.by_name.contains_key(name) {
            let text = format!("the region name `{name}` is taken on this node; choose another");
            return Err(OpenFault::new(Status::WouldBlock, text));
        }
        // Fewer than 2^32 live at once, so the search ends; a name is not reused while it lives.
        loop {
            self.last = self.last.wrapping_add(1);
            let id = RegionId(self.last);
            if id != RegionId::ECHO && self.by_name.values().all(|other| other.region != id) {
                source.region = id;
                break;
            }
        }
        self.by_name.insert(name.to_owned(), source.clone());
        self.owners.add(source.owner);
        Ok(source)
    }

    /// Looks a region up for a party that wants `access`.
    ///
    /// # Errors
    /// There is none of that name, or it is not offered for that, or not to them.
    pub fn find(
        &self,
        name: &str,
        access: Access,
        asker: Asker<'_>,
    ) -> Result<RegionSource<M>, OpenFault> {
        let source = self.by_name.get(name).ok_or_else(|| {
            OpenFault::new(Status::NotFound, format!("no region `{name}` on this node"))
        })?;
        if access == Access::NONE {
            let text = "the region is to be opened neither for reading nor for writing";
            return Err(OpenFault::new(Status::Invalid, text));
        }
        if !is_for(&source.audience, asker) {
            return Err(OpenFault::denied(format!(
                "the region `{name}` is not offered to {asker}"
            )));
        }
        if access.read && !source.access.read {
            return Err(OpenFault::denied(format!(
                "the region `{name}` is not offered for reading"
            )));
        }
        if access.write && !source.access.write {
            return Err(OpenFault::denied(format!(
                "the region `{name}` is not offered for writing"
            )));
        }
        if access.atomic && !source.access.atomic {
            return Err(OpenFault::denied(format!(
                "the region `{name}` is not offered for atomics"
            )));
        }
        Ok(RegionSource { access, ..source.clone() })
    }

    /// How many each session offers; those that offer none are left out.
    pub fn owners(&self) -> impl Iterator<Item = (SessionId, u32)> {
        self.owners.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_name.len() as u64
    }

    /// Whether a region is still offered.
    #[must_use]
    pub fn has(&self, region: RegionId) -> bool {
        region == RegionId::ECHO || self.by_name.values().any(|source| source.region == region)
    }

    /// All regions, by name, for the admin API.
    #[must_use]
    pub fn report(&self) -> Vec<RegionReport> {
        let report = |(name, source): (&String, &RegionSource<M>)| RegionReport {
            name: name.clone(),
            bytes: source.length,
            read: source.access.read,
            write: source.access.write,
            session: source.owner.0,
        };
        let mut regions: Vec<RegionReport> = self.by_name.iter().map(report).collect();
        regions.sort_by(|a, b| a.name.cmp(&b.name));
        regions
    }

    /// Takes a region back. `false`: it was not there.
    pub fn withdraw(&mut self, region: RegionId) -> bool {
        let mut gone = self.by_name.extract_if(.., |_, source| source.region == region);
        let Some((_, source)) = gone.next() else { return false };
        self.owners.sub(source.owner);
        true
    }

    /// Takes all regions of a session back.
    pub fn withdraw_all(&mut self, owner: SessionId) -> Vec<RegionId> {
        let gone: Vec<RegionId> = self
            .by_name
            .values()
            .filter(|source| source.owner == owner)
            .map(|source| source.region)
            .collect();
        self.by_name.retain(|_, source| source.owner != owner);
        self.owners.leave(owner);
        gone
    }
}

/// Whether somebody is among those that a region is for.
fn is_for(audience: &Audience, asker: Asker<'_>) -> bool {
    let user =
        |who: &Credentials| audience.users.as_ref().is_none_or(|users| users.contains(&who.uid));
    let peer = |node: NodeOf<'_>| audience.peers.as_ref().is_none_or(|peers| node.is_in(peers));
    // Groups are proved, and never said.
    let named = |name| peer(NodeOf { name, groups: &[] });
    match asker {
        Asker::User(who) => user(who),
        Asker::Peer(node) => peer(node),
        // As of exports.
        Asker::Plain { name, user: Some(who) } => user(who) && named(name),
        Asker::Plain { name, user: None } => {
            named(name) && (audience.users.is_none() || audience.peers.is_some())
        }
    }
}

/// Withdrawn regions that shards may still use.
#[derive(Debug, Default)]
pub(crate) struct Withdrawals {
    /// The shards that have not said that they use a region no more.
    under_way: BTreeMap<RegionId, Vec<usize>>,
}

impl Withdrawals {
    /// A region is about to be revoked on so many shards.
    pub(crate) fn begin(&mut self, region: RegionId, shards: usize) {
        self.under_way.insert(region, (0..shards).collect());
    }

    /// A shard says that nothing uses the region there. Whether it was the last one of a
    /// withdrawal.
    pub(crate) fn handle_drained(&mut self, region: RegionId, shard: usize) -> bool {
        let Some(shards) = self.under_way.get_mut(&region) else { return false };
        shards.retain(|&other| other != shard);
        let last = shards.is_empty();
        if last {
            self.under_way.remove(&region);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 8192;

    fn source(owner: u32, access: Access) -> RegionSource<()> {
        RegionSource {
            region: RegionId(0),
            owner: SessionId(owner),
            home: 0,
            segment: 0,
            memory: (),
            offset: 4096,
            length: 4096,
            access,
            audience: Audience::default(),
        }
    }

    const READ: Access = Access::READ;
    const BOTH: Access = Access::READ_WRITE;

    #[test]
    fn a_region_is_found_by_its_name_until_it_is_withdrawn() {
        let mut regions = Regions::default();
        let grid = regions.offer("grid", source(1, BOTH), BYTES).expect("offered");
        let other = regions.offer("other", source(2, BOTH), BYTES).expect("offered");
        assert_ne!(grid.region, other.region);
        let taken = regions.offer("grid", source(2, BOTH), BYTES).expect_err("the name is taken");
        assert_eq!(taken.status, Status::WouldBlock);
        let owners = |regions: &Regions<()>| regions.owners().collect::<Vec<_>>();
        let more = regions.offer("more", source(2, BOTH), BYTES).expect("offered");
        assert_eq!(owners(&regions), [(SessionId(1), 1), (SessionId(2), 2)]);
        assert!(regions.withdraw(more.region));
        let found = regions.find("grid", READ, Asker::User(&Credentials::of(7, 1))).expect("there");
        assert_eq!((found.region, found.access), (grid.region, READ));
        assert_eq!(regions.withdraw_all(SessionId(1)), vec![grid.region]);
        assert_eq!(
            regions
                .find("grid", READ, Asker::User(&Credentials::of(7, 1)))
                .expect_err("gone")
                .status,
            Status::NotFound
        );
        assert!(regions.has(other.region));
        assert_eq!((owners(&regions), regions.count()), (vec![(SessionId(2), 1)], 1));
        assert!(regions.withdraw(other.region) && !regions.withdraw(other.region));
        assert_eq!((owners(&regions), regions.count()), (vec![], 0));
    }

    #[test]
    fn a_withdrawal_is_over_when_every_shard_has_said_so() {
        let mut withdrawals = Withdrawals::default();
        for region in [1, 2] {
            withdrawals.begin(RegionId(region), 2);
        }
        assert!(!withdrawals.handle_drained(RegionId(1), 0));
        // A region that was revoked twice is said to be unused twice.
        assert!(!withdrawals.handle_drained(RegionId(1), 0));
        assert!(withdrawals.handle_drained(RegionId(1), 1));
        assert!(!withdrawals.handle_drained(RegionId(1), 1));
        assert_eq!(withdrawals.under_way.len(), 1, "the other goes on");
    }

    #[test]
    fn what_is_not_offered_is_denied() {
        let mut regions = Regions::default();
        regions.offer("grid", source(1, READ), BYTES).expect("offered");
        assert_eq!(
            regions
                .find("grid", BOTH, Asker::User(&Credentials::of(7, 1)))
                .expect_err("read only")
                .status,
            Status::Denied
        );
        let own = regions.offer(ECHO_REGION, source(1, READ), BYTES).expect_err("the daemon's own");
        assert_eq!(own.status, Status::Invalid);
        let none = Access::NONE;
        assert_eq!(
            regions
                .find("grid", none, Asker::User(&Credentials::of(7, 1)))
                .expect_err("no access")
                .status,
            Status::Invalid
        );
        assert_eq!(
            regions.offer("x", source(1, none), BYTES).expect_err("none").status,
            Status::Invalid
        );
    }

    #[test]
    fn a_region_lies_inside_its_segment() {
        let mut regions = Regions::default();
        for (offset, length) in [(4096, 4097), (0, 0), (8192, 1), (u64::MAX, 2)] {
            let source = RegionSource { offset, length, ..source(1, BOTH) };
            let fault = regions.offer("grid", source, BYTES).expect_err("outside");
            assert_eq!(fault.status, Status::BadBuffer, "{length} at {offset}");
        }
    }

    #[test]
    fn a_region_is_for_those_it_is_offered_to() {
        let mut regions = Regions::default();
        let audience = Audience { users: Some(vec![1000]), peers: Some(vec!["beta".to_owned()]) };
        let offered = RegionSource { audience, ..source(1, BOTH) };
        regions.offer("grid", offered, BYTES).expect("a new name");
        let find = |asker| regions.find("grid", READ, asker).map(|_| ()).map_err(|it| it.status);
        let (named, other) = (Credentials::of(1000, 1), Credentials::of(1001, 1));
        assert_eq!(find(Asker::User(&named)), Ok(()));
        let (disk, none) = (vec!["disk".to_owned()], Vec::new());
        let node = |name, groups| Asker::Peer(NodeOf { name, groups });
        assert_eq!(find(node("beta", &none)), Ok(()));
        assert_eq!(find(Asker::User(&other)), Err(Status::Denied));
        assert_eq!(find(node("gamma", &disk)), Err(Status::Denied));
        let audience = Audience { users: None, peers: Some(vec!["@disk".to_owned()]) };
        let offered = RegionSource { audience, ..source(1, BOTH) };
        regions.offer("disks", offered, BYTES).expect("a new name");
        let of_group = |asker| regions.find("disks", READ, asker).is_ok();
        assert!(of_group(node("gamma", &disk)) && !of_group(node("gamma", &none)));
        // Who only says its name is in no group, whatever the name.
        for name in ["gamma", "disk", "@disk"] {
            assert!(!of_group(Asker::Plain { name, user: None }));
        }
        let find = |asker| regions.find("grid", READ, asker).map(|_| ()).map_err(|it| it.status);
        let plain = |name, user| find(Asker::Plain { name, user });
        assert_eq!(plain("beta", Some(&named)), Ok(()));
        assert_eq!(plain("beta", Some(&other)), Err(Status::Denied));
        assert_eq!(plain("gamma", Some(&named)), Err(Status::Denied));
        assert_eq!(plain("beta", None), Ok(()));
        let audience = Audience { users: Some(vec![1000]), peers: None };
        let offered = RegionSource { audience, ..source(1, BOTH) };
        regions.offer("users", offered, BYTES).expect("a new name");
        let plain = |user| {
            let asker = Asker::Plain { name: "beta", user };
            regions.find("users", READ, asker).is_ok()
        };
        assert_eq!([None, Some(&named), Some(&other)].map(plain), [false, true, false]);
    }
}
