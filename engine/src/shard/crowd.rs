//! Who has a place at the peers' door: lanes, links, and what they may have while others have proved who they are.
//!
//! Names cost nothing, addresses and users do. So plain lanes are counted by where they come from, and no address or user
//! has all of them; where nodes have keys, a share of everything (lanes, links, handles, requests, messages, staging) is
//! for lanes of keys alone. A lane that has no work makes room: first those that only said hello, then those that have
//! been silent the longest, of whoever has the most. Its node connects again when it wants something, and finds what it
//! had open. Whoever gets no place is counted, and the control thread is told.

use std::collections::BTreeMap;

use super::Shard;
use super::inbound::Inbound;
use super::lane::{Lane, LaneState, Link};
use super::slab::Key;
use crate::command::{Caller, Crowded, Event, Origin, Standing};
use crate::io::Io;
use crate::limits::{
    LANES_CLOSING, LANES_MAX, LINKS_MAX, ORIGIN_THIRDS, ORIGIN_THIRDS_BESIDE_KEYS, PROVEN_SHARE,
};
use crate::tally::LaneLoss;

/// Of so many places, those that plain lanes may not have.
const fn kept_of(places: u32, beside_keys: bool) -> u32 {
    if beside_keys { places / PROVEN_SHARE } else { 0 }
}

impl Shard {
    /// A place for a connection that has come, if need be that of a lane without work.
    pub(super) fn find_place<I: Io>(&mut self, caller: &Caller, io: &mut I) -> Result<(), Crowded> {
        let Standing::Plain(origin) = caller.standing() else {
            // What is kept for them is used up: the others make room, and are gone when it comes again.
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
        let thirds = if beside_keys { ORIGIN_THIRDS_BESIDE_KEYS } else { ORIGIN_THIRDS };
        if of_origin >= most * thirds / 3 {
            let displaced = self.displace(Some(origin), io);
            return if displaced { Ok(()) } else { Err(Crowded::Share) };
        }
        if all >= most {
            let displaced = self.displace_of_most(&counts, io);
            return if displaced { Ok(()) } else { Err(Crowded::Full) };
        }
        Ok(())
    }

    /// Whether one more plain node may have a link. If not, one without work makes room for the next that comes.
    pub(super) fn may_link<I: Io>(
        &mut self,
        caller: Standing,
        beside_keys: bool,
        io: &mut I,
    ) -> bool {
        let is_here = |link: &Inbound| link.lanes.iter().any(|lane| lane.lane.is_some());
        let plain = |link: &Inbound| link.standing != Standing::Proven && is_here(link);
        let (all, plain) = self.inbound.iter().fold((0, 0), |(all, plains), (_, link)| {
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

    /// Whether a peer may have one more of what all have together, of which so many are left.
    pub(super) fn may_take(&self, link: Key, left: u32, all: u32) -> bool {
        let is_plain = self.inbound.get(link).is_some_and(|link| link.beside_keys);
        !is_plain || left > kept_of(all, true)
    }

    /// The same of staging. It never waits for nothing: where only lanes have some, there is enough.
    pub(super) fn may_stage(&self, link: Key, bytes: u64) -> bool {
        if !self.inbound.get(link).is_some_and(|link| link.beside_keys) {
            return true;
        }
        let kept = self.staging.kept_bytes() / u64::from(PROVEN_SHARE);
        let none = self.staging.used().now <= self.staging.scratch_bytes();
        none || self.staging.free_bytes() >= kept + bytes
    }

    /// A connection gets no place.
    pub(super) fn refuse_lane(&mut self, standing: Standing, why: Crowded) {
        self.event(Event::LaneRefused { standing, why });
    }

    /// Plain lanes there may be: those that we dial have places, too.
    fn plain_lanes_max(&self, beside_keys: bool) -> u32 {
        let dialled = 2 * self.outbound.len() as u32;
        let left = LANES_MAX - LANES_CLOSING - kept_of(LANES_MAX, beside_keys);
        left.saturating_sub(dialled).max(LANES_MAX / PROVEN_SHARE)
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
    pub(super) fn displace<I: Io>(&mut self, from: Option<Origin>, io: &mut I) -> bool {
        let opens = |lane: &Lane| match lane.link {
            Link::Inbound(link) => {
                self.inbound.get(link).is_some_and(|link| !link.opening.is_empty())
            }
            Link::Outbound(_) | Link::Stranger => false,
        };
        let idle = |(_, lane): &(Key, &Lane)| {
            let is_right = lane.origin().is_some_and(|it| from.is_none_or(|from| from == it));
            is_right
                && lane.state != LaneState::Closing
                && !(lane.is_at_work() || lane.has_frames() || opens(lane))
        };
        let said_more = |lane: &Lane| lane.frames_received > 1;
        let victim = self
            .lanes
            .iter()
            .filter(idle)
            .min_by_key(|(_, lane)| (said_more(lane), lane.heard))
            .and_then(|(key, lane)| Some((key, lane.origin()?)));
        let Some((victim, origin)) = victim else { return false };
        let reason = String::from("it had nothing to do, and another one needed its place");
        self.close_lane(victim, LaneLoss::Displaced, reason, io);
        self.refuse_lane(Standing::Plain(origin), Crowded::Displaced);
        true
    }
}
