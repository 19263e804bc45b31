//! Places at the peers' door: lanes, links, and what those hold that all peers share.
//!
//! Names cost nothing; addresses, users and keys do. So what plain nodes have is counted by where
//! they come from, what nodes with keys have by the node, and no [`Party`] has all of anything.
//! Where nodes have keys, a share of everything (lanes, links, handles, requests, messages,
//! staging) is for those alone. A lane without work makes room: first those that only said hello,
//! then those that have been silent the longest, of the party that has the most. Its node connects
//! again when it wants something, and finds what it had open. A connection that gets no place is
//! counted, and the control thread is told.

use std::collections::BTreeMap;

use piped_core::io::Io;
use piped_core::limits::{
    LANES_CLOSING, LANES_MAX, LINKS_MAX, MAIL_MAX, ORIGIN_THIRDS, ORIGIN_THIRDS_BESIDE_KEYS,
    PROVEN_SHARE, SERVED_FILES_MAX, SERVED_MAX, SERVES_MAX,
};
use piped_core::names::node_of;
use piped_report::tally::LaneLoss;

use crate::command::{Caller, Crowded, Event, Origin, Standing};
use crate::shard::Shard;
use crate::shard::connections::{Lane, LaneState};
use crate::shard::keys::{LaneKey, LinkKey};
use crate::shard::links::{Holding, Link};

/// How many of so many places are kept from plain lanes, because other nodes prove their names.
const fn kept_of(places: u32, beside_keys: bool) -> u32 {
    if beside_keys { places / PROVEN_SHARE } else { 0 }
}

/// How many of so many places one party may have.
const fn share_of(places: u32, beside_keys: bool) -> u32 {
    let thirds = if beside_keys { ORIGIN_THIRDS_BESIDE_KEYS } else { ORIGIN_THIRDS };
    places * thirds / 3
}

/// The links that have one share together.
#[derive(Debug, PartialEq, Eq)]
enum Party<'a> {
    /// Plain ones, of an address or a local user.
    Plain(Origin),
    /// Links of a node with a key: its shards are nodes with names of their own.
    Node(&'a str),
}

impl Party<'_> {
    fn of(link: &Link) -> Party<'_> {
        match link.standing().0 {
            Standing::Plain(origin) => Party::Plain(origin),
            Standing::Proven => Party::Node(node_of(link.name())),
        }
    }
}

impl Shard {
    /// A place for a connection that has come, if need be that of a lane without work.
    pub(in crate::shard) fn find_place<I: Io>(
        &mut self,
        caller: &Caller,
        io: &mut I,
    ) -> Result<(), Crowded> {
        let Standing::Plain(origin) = caller.standing() else {
            // What is kept for them is used up: the others make room, and are gone when it comes
            // again.
            let full = self.lanes.room() == 0;
            if full {
                self.displace(None, io);
            }
            return if full { Err(Crowded::Full) } else { Ok(()) };
        };
        let counts = self.plain_lanes();
        let of_origin = counts.get(&origin).copied().unwrap_or(0);
        let all: u32 = counts.values().sum();
        let beside_keys = caller.is_beside_keys();
        let most: u32 = self.plain_lanes_max(beside_keys);
        let (why, displaced) = if self.lanes.room() == 0 {
            // Those that were displaced are still closing.
            (Crowded::Full, false)
        } else if of_origin >= share_of(most, beside_keys) {
            (Crowded::Share, self.displace(Some(origin), io))
        } else if all >= most {
            (Crowded::Full, self.displace_of_most(&counts, io))
        } else if !self.may_rest(false, beside_keys) {
            // What it had is free when the next one comes.
            self.displace_of_most(&counts, io);
            (Crowded::Staging, false)
        } else {
            return Ok(());
        };
        if displaced { Ok(()) } else { Err(why) }
    }

    /// Whether one more plain node may have a link. If not, one without work makes room for the
    /// next that comes.
    pub(in crate::shard) fn may_link<I: Io>(
        &mut self,
        caller: Standing,
        beside_keys: bool,
        io: &mut I,
    ) -> bool {
        let is_here = |link: &Link| link.lanes().next().is_some();
        let plain = |link: &Link| link.standing().0 != Standing::Proven && is_here(link);
        let (all, plain) = self.links.iter().fold((0, 0), |(all, plains), (_, link)| {
            (all + u32::from(is_here(link)), plains + u32::from(plain(link)))
        });
        let most = match caller {
            Standing::Proven => LINKS_MAX,
            Standing::Plain(_) => LINKS_MAX - kept_of(LINKS_MAX, beside_keys),
        };
        let taken = if caller == Standing::Proven { all } else { plain };
        if taken >= most {
            let counts = self.plain_lanes();
            self.displace_of_most(&counts, io);
        }
        taken < most
    }

    /// Whether a peer may hold one more.
    pub(in crate::shard) fn may_hold(&self, link: LinkKey, what: Holding) -> bool {
        let Some(state) = self.links.get(link) else { return false };
        let (all, used) = match what {
            Holding::Handles => (SERVED_MAX, self.links.served()),
            Holding::Files => (SERVED_FILES_MAX, self.held(|_| true, what)),
            Holding::Serves => (SERVES_MAX, self.serves.len()),
            Holding::Mails => (MAIL_MAX as u32, self.mails.len() as u32),
        };
        let (_, beside_keys) = state.standing();
        let most = all - kept_of(all, beside_keys);
        let share = share_of(most, beside_keys);
        // As long as all together have less than the share of one, nobody has to be counted.
        let of_party = || {
            let party = Party::of(state);
            self.held(|it| Party::of(it) == party, what)
        };
        used < share || used < most && of_party() < share
    }

    /// What some links hold.
    fn held(&self, of: impl Fn(&Link) -> bool, what: Holding) -> u32 {
        let serves = |link: &Link| {
            let lanes = link.lanes().filter_map(|it| self.lanes.get(it));
            lanes.map(|lane| lane.serves().len() as u32).sum()
        };
        let links = self.links.iter().filter(|(_, link)| of(link));
        links
            .map(|(key, link)| match what {
                Holding::Handles => link.handles_open(),
                Holding::Files => self.links.files_of(link),
                Holding::Serves => serves(link),
                Holding::Mails => self.mails.of_link(key),
            })
            .sum()
    }

    /// Whether a peer may hold one more thing, after nodes that have left lost what they had open.
    /// The longest gone go first: nodes of this party before plain ones of other parties.
    pub(in crate::shard) fn may_open<I: Io>(
        &mut self,
        link: LinkKey,
        what: Holding,
        io: &mut I,
    ) -> bool {
        while !self.may_hold(link, what) {
            let Some(party) = self.links.get(link).map(Party::of) else { return false };
            let leaves = |(key, it): (LinkKey, &Link)| {
                let same = Party::of(it) == party;
                let may = same || it.standing().0 != Standing::Proven;
                let holds = it.handles_open() > 0;
                (may && holds && self.has_left(key, it)).then_some((!same, it.left(), key))
            };
            let victim = self.links.iter().filter_map(leaves).min();
            let Some((_, _, victim)) = victim else { return false };
            self.forget_link(victim, io);
        }
        true
    }

    /// Whether a peer may take staging beside what is kept for nodes with keys. Where only lanes
    /// have some, there is enough, so no peer waits for nothing.
    pub(in crate::shard) fn may_stage(&self, link: LinkKey, bytes: u64) -> bool {
        if !self.links.get(link).is_some_and(|link| link.standing().1) {
            return true;
        }
        let staging = self.cx.buffers.staging();
        let kept = staging.kept_bytes() / u64::from(PROVEN_SHARE);
        let none = staging.used().now <= staging.scratch_bytes();
        none || staging.free_bytes() >= kept + bytes
    }

    /// A connection gets no place.
    pub(in crate::shard) fn refuse_lane(&mut self, standing: Standing, why: Crowded) {
        self.cx.event(Event::LaneRefused { standing, why });
    }

    /// Plain lanes there may be: those that we dial have places, too.
    fn plain_lanes_max(&self, beside_keys: bool) -> u32 {
        let left = LANES_MAX - LANES_CLOSING - kept_of(LANES_MAX, beside_keys);
        left.saturating_sub(self.peers.lanes_kept()).max(LANES_MAX / PROVEN_SHARE)
    }

    /// Plain lanes that are open, by where they come from.
    fn plain_lanes(&self) -> BTreeMap<Origin, u32> {
        let mut counts = BTreeMap::new();
        let open = self.lanes.iter().filter(|(_, lane)| lane.state != LaneState::Closing);
        for origin in open.filter_map(|(_, lane)| lane.origin()) {
            *counts.entry(origin).or_insert(0) += 1;
        }
        counts
    }

    /// One of those makes room that have the most; if all of theirs work, one of anybody.
    fn displace_of_most<I: Io>(&mut self, counts: &BTreeMap<Origin, u32>, io: &mut I) -> bool {
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(origin, _)| *origin);
        most.is_some_and(|origin| self.displace(Some(origin), io)) || self.displace(None, io)
    }

    /// Closes a plain lane without work, from there or from anywhere. `false`: there is none.
    pub(in crate::shard) fn displace<I: Io>(&mut self, from: Option<Origin>, io: &mut I) -> bool {
        let opens = |lane: &Lane| {
            let link = lane.inbound().and_then(|link| self.links.get(link));
            link.is_some_and(|link| link.opens(None))
        };
        let idle = |(_, lane): &(LaneKey, &Lane)| {
            let is_right = lane.origin().is_some_and(|it| from.is_none_or(|from| from == it));
            is_right
                && lane.state != LaneState::Closing
                && !(lane.is_at_work() || lane.has_frames() || opens(lane))
        };
        let said_more = |lane: &Lane| lane.receiving.frames() > 1;
        let victim = self
            .lanes
            .iter()
            .filter(idle)
            .min_by_key(|(_, lane)| (said_more(lane), lane.heard))
            .and_then(|(key, lane)| Some((key, lane.origin()?)));
        let Some((victim, origin)) = victim else { return false };
        let reason = "it had nothing to do, and another one needed its place";
        self.close_lane(victim, LaneLoss::Displaced, reason, io);
        self.refuse_lane(Standing::Plain(origin), Crowded::Displaced);
        true
    }
}
