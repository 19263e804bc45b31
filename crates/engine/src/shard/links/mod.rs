//! The nodes that ask us, and what each of them has open here.

mod numbers;
mod served;

use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::shard::{Gauge, PartyUse};
use piped_report::tally::LaneLoss;
use piped_wire::Message;
use piped_wire::frame::SWEEP;

use self::numbers::{Number, Numbers};
pub(super) use self::served::{Released, Served, is_open, length_of};
use super::account::Account;
use super::buffers::TableOf;
use super::connections::PeerLane;
use super::cx::Cx;
use super::faults::PeerFault;
use super::keys::{LaneKey, LinkKey, ServedKey, TransferKey, kind};
use super::pins::Pin;
use super::slab::Slab;
use super::timers::Timers;
use crate::command::{Event, OpenRequest, RegionTarget, Standing, Target};

/// A node that connected to us.
#[derive(Debug)]
pub(super) struct Link {
    name: String,
    /// What stands behind it: a lane under the same name that somebody else has is of another link.
    standing: Standing,
    /// The peer proved nothing while other nodes have keys: some places are kept for those nodes.
    beside_keys: bool,
    incarnation: u64,
    /// The incarnation of ours that it is told. Another one after it was forgotten: its handles
    /// went with it, and it asks for them again as it does after a restart.
    ours: u64,
    /// When its last lane was lost.
    left: Nanos,
    lanes: [LinkLane; LaneClass::ALL.len()],
    numbers: Numbers,
    /// The peer's opens that are at the control thread.
    opening: Vec<Opening>,
    /// Its reads and syncs in execution, and those that wait for a limit.
    account: Account<kind::Serve>,
    /// Staging of its reads, and of its writes over both lanes.
    staging: [Gauge; 2],
    /// Staging of its requests' tables, in bytes: of gets and of puts.
    tables: [u64; 2],
    /// Staging of its calls, in bytes.
    call_bytes: u64,
}

/// An open at the control thread.
#[derive(Debug, Clone, Copy)]
struct Opening {
    /// Our ticket for the open.
    ours: u64,
    /// The peer's ticket for the open.
    theirs: u64,
    /// The lane that waits for the answer.
    lane: LaneKey,
}

#[derive(Debug, Clone, Copy, Default)]
struct LinkLane {
    lane: Option<LaneKey>,
    epoch: u32,
    last_loss: Option<LaneLoss>,
}

/// What a peer has in staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Staged {
    Reads,
    Writes,
}

/// What links hold, of which a shard has so much for all peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holding {
    Handles,
    /// Handles that stand for files.
    Files,
    /// Requests that are being served.
    Serves,
    Mails,
}

impl Link {
    /// The node's name, as its first frame said it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What stands behind it, and whether some places are kept from it.
    pub(super) fn standing(&self) -> (Standing, bool) {
        (self.standing, self.beside_keys)
    }

    pub(super) fn left(&self) -> Nanos {
        self.left
    }

    pub(super) fn incarnation_told(&self) -> u64 {
        self.ours
    }

    pub(super) fn lane(&self, class: LaneClass) -> Option<LaneKey> {
        self.lanes[class as usize].lane
    }

    /// Whether it has a lane of a class, or had one that not every node has.
    pub(super) fn uses(&self, class: LaneClass) -> bool {
        class != LaneClass::Second || self.lanes[class as usize].epoch > 0
    }

    /// Whether this incarnation of the node has its latency lane here.
    pub(super) fn is_beside(&self, incarnation: u64) -> bool {
        self.incarnation == incarnation && self.lane(LaneClass::Latency).is_some()
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = LaneKey> {
        self.lanes.iter().filter_map(|lane| lane.lane)
    }

    /// A lane, its epoch, and why the last one was lost.
    pub(super) fn lane_state(&self, class: LaneClass) -> (Option<LaneKey>, u32, Option<LaneLoss>) {
        let LinkLane { lane, epoch, last_loss } = self.lanes[class as usize];
        (lane, epoch, last_loss)
    }

    /// A lane takes the place of older incarnations of it, or of the node: their lanes, and what
    /// a node that has restarted had open. Both are over.
    ///
    /// # Errors
    /// The lane is older than one that was here.
    pub(super) fn fence(
        &mut self,
        class: LaneClass,
        epoch: u32,
        incarnation: u64,
    ) -> Result<(Vec<LaneKey>, Vec<ServedKey>), PeerFault> {
        if self.incarnation == incarnation {
            if epoch <= self.lanes[class as usize].epoch {
                return Err(PeerFault::OldEpoch);
            }
            return Ok((self.lane(class).into_iter().collect(), Vec::new()));
        }
        let lanes = self.lanes().collect();
        self.incarnation = incarnation;
        self.lanes = Default::default();
        self.opening.clear();
        Ok((lanes, self.numbers.take_if(|_| true)))
    }

    pub(super) fn enter(&mut self, class: LaneClass, lane: LaneKey, epoch: u32, beside_keys: bool) {
        self.beside_keys = beside_keys;
        let place = &mut self.lanes[class as usize];
        (place.lane, place.epoch) = (Some(lane), epoch);
    }

    pub(super) fn lose(&mut self, class: LaneClass, lane: LaneKey, loss: LaneLoss, now: Nanos) {
        self.left = now;
        let place = &mut self.lanes[class as usize];
        if place.lane == Some(lane) {
            (place.lane, place.last_loss) = (None, Some(loss));
        }
    }

    /// Whether the control thread has an open of it by that ticket of ours, or any.
    pub(super) fn opens(&self, ours: Option<u64>) -> bool {
        self.opening.iter().any(|it| ours.is_none_or(|ours| it.ours == ours))
    }

    /// The control thread has done with an open. The peer's ticket, and the lane for the answer;
    /// none if the lane is gone, and the peer did not ask again on the next one.
    pub(super) fn take_open(&mut self, ours: u64) -> Option<(u64, LaneKey)> {
        let at = self.opening.iter().position(|it| it.ours == ours)?;
        let Opening { theirs, lane, .. } = self.opening.swap_remove(at);
        (self.lane(LaneClass::Latency) == Some(lane)).then_some((theirs, lane))
    }

    pub(super) fn handles_open(&self) -> u32 {
        self.numbers.asked_for().count() as u32
    }

    pub(super) fn staged(&self, what: Staged) -> u64 {
        self.staging[what as usize].now
    }

    /// Bytes of staging that its tables have.
    pub(super) fn tables(&mut self, of: TableOf) -> &mut u64 {
        &mut self.tables[of as usize]
    }

    /// Bytes of staging that its calls have.
    pub(super) fn call_bytes(&self) -> u64 {
        self.call_bytes
    }

    /// What it has of what is limited.
    pub(super) fn report_use(&self) -> PartyUse {
        let [reads, writes] = self.staging;
        // At once or one after the other: no more than that.
        let staging = Gauge { now: reads.now + writes.now, high: reads.high + writes.high };
        let handles = self.handles_open();
        PartyUse { staging, handles, ..self.account.report(self.name.clone()) }
    }
}

/// Nodes that ask us, and what they have open.
#[derive(Debug)]
pub(super) struct Links {
    all: Slab<kind::Link, Link>,
    served: Slab<kind::Served, Served>,
    /// When nodes that are away lose their locks.
    leases: Timers,
    /// Nodes that asked us so far, counted for each standing.
    made: u64,
}

impl Links {
    pub(super) fn new() -> Self {
        Self {
            all: Slab::with_capacity(limits::LINKS_MAX),
            served: Slab::with_capacity(limits::SERVED_MAX),
            leases: Timers::with_capacity(limits::LINKS_MAX),
            made: 0,
        }
    }

    pub(super) fn get(&self, key: LinkKey) -> Option<&Link> {
        self.all.get(key)
    }

    pub(super) fn get_mut(&mut self, key: LinkKey) -> Option<&mut Link> {
        self.all.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LinkKey, &Link)> {
        self.all.iter()
    }

    pub(super) fn next_from(
        &self,
        from: &mut u32,
        wanted: impl Fn(&Link) -> bool,
    ) -> Option<LinkKey> {
        self.all.next_from(from, wanted)
    }

    pub(super) fn has_room(&self) -> bool {
        self.all.room() > 0
    }

    /// A node asks us for the first time, or comes back with another standing. It is told an
    /// incarnation of ours that it does not know: it holds numbers of the link that it had.
    pub(super) fn begin(
        &mut self,
        name: String,
        standing: Standing,
        (incarnation, ours): (u64, u64),
        now: Nanos,
    ) -> Option<LinkKey> {
        let ours = ours.wrapping_add(self.made);
        self.made += 1;
        let link = Link {
            name,
            standing,
            beside_keys: false,
            incarnation,
            ours,
            left: now,
            lanes: Default::default(),
            numbers: Numbers::default(),
            opening: Vec::new(),
            account: Account::default(),
            staging: Default::default(),
            tables: [0; 2],
            call_bytes: 0,
        };
        self.all.insert(link).ok()
    }

    /// A node may be away; if it has locks, they last for a while.
    pub(super) fn watch_leases(&mut self, key: LinkKey, now: Nanos) {
        let Some(link) = self.all.get(key) else { return };
        let mut files = link.numbers.asked_for().filter_map(|served| self.served.get(served));
        if link.lanes().next().is_none() && files.any(Served::is_locked) {
            self.leases.set(key.index(), now + limits::LOCK_LEASE);
        }
    }

    /// A node whose locks have lasted long enough, if it is away.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<LinkKey> {
        self.leases.take_due(now).and_then(|slot| self.all.in_place(slot))
    }

    /// When the first locks end of nodes that are away.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.leases.next()
    }

    /// Forgets a node: its name, unless another node has the same; and what it had open.
    pub(super) fn end(&mut self, key: LinkKey) -> Option<(Option<String>, Vec<ServedKey>)> {
        let mut link = self.all.remove(key)?;
        self.leases.clear(key.index());
        let is_alone = self.all.iter().all(|(_, other)| other.name != link.name);
        let served = link.numbers.take_if(|_| true);
        Some((is_alone.then_some(link.name), served))
    }

    /// What a node names by a number.
    pub(super) fn named(&mut self, link: LinkKey, handle: u32) -> Option<(ServedKey, &mut Served)> {
        let key = self.all.get(link)?.numbers.get(handle)?;
        Some((key, self.served.get_mut(key)?))
    }

    /// A node asks for something, and waits for the answer on a lane. If it asked before, on a lane
    /// that is no more, it is told at once; else the control thread is asked, once.
    pub(super) fn ask(
        &mut self,
        PeerLane { lane, link }: PeerLane,
        theirs: u64,
        open: OpenRequest,
        cx: &mut Cx,
    ) -> Result<Option<Message>, PeerFault> {
        let Some(link) = self.all.get_mut(link) else { return Ok(None) };
        let epoch = link.lanes[LaneClass::Latency as usize].epoch;
        if let Some((number, wire)) = link.numbers.asked(theirs) {
            let target = self.served.get(number.served()).and_then(|it| it.target().ok());
            let (status, handle, length) = match target {
                Some(target) => (Status::Ok, wire, length_of(target)),
                None => (Status::Gone, 0, 0),
            };
            // What is gone the peer will not close: it goes with the sweep of this epoch.
            if target.is_some() {
                number.note_asked(epoch);
            }
            return Ok(Some(Message::Opened { ticket: theirs, status, handle, length }));
        }
        if let Some(waiting) = link.opening.iter_mut().find(|it| it.theirs == theirs) {
            waiting.lane = lane;
            return Ok(None);
        }
        if link.opening.len() >= limits::OPENS_PER_LANE as usize {
            return Err(PeerFault::TooManyOpens);
        }
        let ticket = cx.next_ticket();
        link.opening.push(Opening { ours: ticket, theirs, lane });
        let (peer, standing) = (link.name.clone(), link.standing);
        cx.event(Event::ServeOpen { ticket, peer, standing, open });
        Ok(None)
    }

    /// Gives a node a number for what it asked for by a ticket of its own, unless it has `most`.
    pub(super) fn keep(
        &mut self,
        link: LinkKey,
        (theirs, ticket): (u64, u64),
        target: Target,
        most: u32,
    ) -> Option<(u32, ServedKey)> {
        let link = self.all.get_mut(link).filter(|link| link.handles_open() < most)?;
        let number = Number::asked(theirs, link.lanes[LaneClass::Latency as usize].epoch);
        link.numbers.give(number, || self.served.insert(Served::new(target, Some(ticket))).ok())
    }

    /// Gives a node a number for the buffer of a receive, which stays where it is as long as the
    /// pin of `pin` is kept here.
    pub(super) fn keep_slot(
        &mut self,
        link: LinkKey,
        target: Target,
        pin: impl FnOnce() -> Option<Pin<kind::Transfer>>,
    ) -> Option<(u32, ServedKey)> {
        let numbers = &mut self.all.get_mut(link)?.numbers;
        numbers.give(Number::told(), || {
            let key = self.served.insert(Served::new(target, None)).ok()?;
            self.served.get_mut(key)?.hold(pin());
            Some(key)
        })
    }

    /// Something that a node has open, or had.
    pub(super) fn served_mut(&mut self, key: ServedKey) -> Option<&mut Served> {
        self.served.get_mut(key)
    }

    /// A node has one more call that takes staging, or (`false`) one less.
    pub(super) fn count_call(&mut self, link: LinkKey, begins: bool) {
        if let Some(link) = self.all.get_mut(link) {
            let bytes = u64::from(limits::CELL_BYTES);
            match begins {
                true => link.call_bytes += bytes,
                false => link.call_bytes -= bytes,
            }
        }
    }

    /// The receive whose buffer something is.
    pub(super) fn receive_of(&self, key: ServedKey) -> Option<TransferKey> {
        self.served.get(key)?.receive()
    }

    /// The number of something names nothing any more.
    pub(super) fn forget_number(&mut self, link: LinkKey, served: ServedKey) {
        if let Some(link) = self.all.get_mut(link) {
            link.numbers.take_if(|number| number.served() == served);
        }
    }

    /// What a node closes by a number, or with [`SWEEP`]: all that it did not ask for again.
    pub(super) fn close(&mut self, link: LinkKey, handle: u32) -> Vec<ServedKey> {
        let Some(link) = self.all.get_mut(link) else { return Vec::new() };
        let epoch = link.lanes[LaneClass::Latency as usize].epoch;
        match handle {
            SWEEP => link.numbers.take_if(|number| number.is_unasked_in(epoch)),
            handle => link.numbers.close(handle).into_iter().collect(),
        }
    }

    pub(super) fn served(&self) -> u32 {
        self.served.len()
    }

    /// A serve uses something from now on, or (`false`) no more.
    pub(super) fn note_use(&mut self, key: ServedKey, begins: bool) {
        if let Some(served) = self.served.get_mut(key) {
            served.note_use(begins);
        }
    }

    /// Notes that nobody names it any more. `false`: it is gone.
    pub(super) fn note_closed(&mut self, key: ServedKey) -> bool {
        self.served.get_mut(key).map(Served::close).is_some()
    }

    /// Takes out what nothing uses any more: what ended, and all of it if it is closed.
    pub(super) fn release(&mut self, key: ServedKey) -> Option<Released> {
        let (released, is_all) = self.served.get_mut(key)?.release()?;
        if is_all {
            self.served.remove(key);
        }
        Some(released)
    }

    /// Access to what an open gave ends, by our ticket of the open: what it was. A file stays until
    /// nothing uses it.
    pub(super) fn end_served(&mut self, ticket: u64) -> Option<(ServedKey, Target)> {
        let (key, _) = self.served.iter().find(|(_, served)| served.is_of(ticket))?;
        Some((key, self.served.get_mut(key)?.end()?))
    }

    /// The exporter of something is gone: nodes that have it open are told when they ask.
    pub(super) fn revoke(&mut self, wanted: impl Fn(Target) -> bool) {
        for served in self.served.values_mut() {
            served.revoke(&wanted);
        }
    }

    /// Whether a node has such a region open.
    pub(super) fn has_region(&self, wanted: impl Fn(RegionTarget) -> bool) -> bool {
        let is_it = |it: &Served| matches!(it.target(), Ok(Target::Region(r)) if wanted(r));
        self.served.iter().any(|(_, it)| is_it(it))
    }

    /// Files and directories among what a node has open.
    pub(super) fn files_of(&self, link: &Link) -> u32 {
        let targets = link.numbers.asked_for().filter_map(|key| self.served.get(key));
        targets.filter(|it| it.target().is_ok_and(is_open)).count() as u32
    }

    pub(super) fn account(&mut self, link: LinkKey) -> Option<&mut Account<kind::Serve>> {
        self.all.get_mut(link).map(|link| &mut link.account)
    }

    /// Other rates, in bytes a second, for what nodes owe as well.
    pub(super) fn change_rate(&mut self, old: u64, new: u64, now: Nanos) {
        for link in self.all.values_mut() {
            link.account.throttle.rescale(old, new, now);
        }
    }

    /// A node has so many bytes of staging more.
    pub(super) fn stage(&mut self, link: LinkKey, what: Staged, bytes: u64) {
        if let Some(link) = self.all.get_mut(link) {
            link.staging[what as usize].add(bytes);
        }
    }

    pub(super) fn unstage(&mut self, link: LinkKey, what: Staged, bytes: u64) {
        if let Some(link) = self.all.get_mut(link) {
            link.staging[what as usize].sub(bytes);
        }
    }
}
