//! What peers have open here: handles by the numbers they were given.

use piped_core::io::Io;
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_wire::Message;
use piped_wire::frame::SWEEP;

use super::Shard;
use super::channel::MailPlace;
use super::connections::{LaneState, PeerLane};
use super::crowd::Holding;
use super::faults::PeerFault;
use super::inbound::{Inbound, Opening};
use super::keys::{LinkKey, ServedKey, kind};
use super::numbers::Remembered;
use super::pins::Pin;
use super::sched::Work;
use super::slab::{Key, Slab};
use crate::command;
use crate::command::{Event, OpenRequest};

/// Something of ours that a peer has open.
#[derive(Debug)]
pub(super) struct Served {
    /// `None`: the exporter of the region is gone, or it was ended.
    pub(super) target: Option<command::Target>,
    /// What was open before it was ended, as long as what ended with it still uses it.
    pub(super) ended: Option<command::Target>,
    /// Ours, of the open that it answered; none: it was told.
    pub(super) ticket: Option<u64>,
    /// Serves that use it; a closed one is released after the last.
    pub(super) uses: u32,
    closed: bool,
    /// The receive that a told buffer belongs to: the pin keeps that buffer from being given back.
    pub(super) receive: Option<Pin<kind::Transfer>>,
    /// Messages to a channel that have been taken in; unused for files and regions.
    pub(super) taken_in: Remembered<()>,
    /// And which are announced: no more than may be under way.
    pub(super) mails: Vec<MailPlace>,
    /// Results of changes to a region's words and of its notifications; unused for others.
    pub(super) updates: Remembered<u64>,
}

/// A number we gave a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    /// The peer's name for the open: asked again after a lost lane, it gets the same number.
    ticket: u64,
    pub(super) served: ServedKey,
    /// The epoch of the latency lane on which the peer last asked for it.
    asked_epoch: u32,
    /// The number was told to the peer unasked, for the buffer of a receive.
    told: bool,
}

/// A place for a number. A number carries its place's generation, so that the old name of a place
/// (a request that was overtaken by its handle's close) does not name its next holder.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HandlePlace {
    generation: u32,
    pub(super) number: Option<Number>,
}

/// Bits of a number that are the place.
const PLACE_BITS: u32 = limits::HANDLES_PER_LINK.trailing_zeros();
/// Generations before they repeat; the highest is left out, so that no number is [`SWEEP`].
const GENERATIONS: u32 = (1 << (32 - PLACE_BITS)) - 1;
const _: () = assert!(limits::HANDLES_PER_LINK.is_power_of_two());

impl Shard {
    /// A peer asks for something of ours.
    pub(super) fn handle_open(
        &mut self,
        PeerLane { lane, link }: PeerLane,
        ticket: u64,
        open: OpenRequest,
    ) -> Result<(), PeerFault> {
        let ours = self.cx.next_ticket();
        let Some(state) = self.inbound.get_mut(link) else { return Ok(()) };
        let epoch = state.lanes[LaneClass::Latency as usize].epoch;
        let known = state
            .handles
            .iter()
            .position(|place| place.number.is_some_and(|it| !it.told && it.ticket == ticket));
        if let Some(at) = known {
            let wire = state.handles[at].wire(at);
            let number = state.handles[at].number.as_mut().expect("found at this place");
            let target = self.served.get(number.served).and_then(|served| served.target);
            // What is gone the peer will not close: it goes with the sweep of this epoch.
            if target.is_some() {
                number.asked_epoch = epoch;
            }
            let (status, handle, length) = match target {
                Some(target) => (Status::Ok, wire, length_of(target)),
                None => (Status::Gone, 0, 0),
            };
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.push(Message::Opened { ticket, status, handle, length });
            }
            return Ok(());
        }
        if let Some(waiting) = state.opening.iter_mut().find(|it| it.theirs == ticket) {
            waiting.lane = lane;
            return Ok(());
        }
        if state.opening.len() >= limits::OPENS_PER_LANE as usize {
            return Err(PeerFault::TooManyOpens);
        }
        state.opening.push(Opening { ours, theirs: ticket, lane });
        let (peer, standing) = (state.name.clone(), state.standing);
        self.cx.event(Event::ServeOpen { ticket: ours, peer, standing, open });
        Ok(())
    }

    /// The control thread opened something for a peer, or refused.
    pub(super) fn handle_serve_opened<I: Io>(
        &mut self,
        ticket: u64,
        result: Result<command::Target, Status>,
        io: &mut I,
    ) {
        let waiting = |link: &Inbound| link.opening.iter().any(|it| it.ours == ticket);
        let Some(link) = self.inbound.next_from(0, waiting) else {
            // The peer restarted in the meantime.
            self.refuse_served(ticket, result, io);
            return;
        };
        let file = matches!(result, Ok(command::Target::File(_)));
        let room = self.may_open(link, Holding::Handles, io)
            && (!file || self.may_open(link, Holding::Files, io));
        let handles_max = if room { self.cx.limits.peer.handles } else { 0 };
        let Some(state) = self.inbound.get_mut(link) else { return };
        let at = state.opening.iter().position(|it| it.ours == ticket);
        let Opening { theirs, lane, .. } =
            state.opening.swap_remove(at.expect("found by this ticket"));
        if state.lanes[LaneClass::Latency as usize].lane != Some(lane) {
            // The lane is gone, and the peer did not ask again on the next one.
            self.refuse_served(ticket, result, io);
            return;
        }
        let (status, handle, length) = match result {
            Ok(target) => match state.keep(theirs, ticket, target, &mut self.served, handles_max) {
                Some(handle) => (Status::Ok, handle, length_of(target)),
                None => {
                    self.refuse_served(ticket, result, io);
                    (Status::WouldBlock, 0, 0)
                }
            },
            Err(status) => (status, 0, 0),
        };
        if let (Status::Ok, Ok(command::Target::File(file))) = (status, result) {
            self.cx.driver.open_file(&file);
        }
        if let Some(lane) = self.lanes.get_mut(lane)
            && lane.state == LaneState::Up
        {
            lane.push(Message::Opened { ticket: theirs, status, handle, length });
        }
        self.cx.sched.make_ready(Work::Lane(lane));
    }

    /// Nobody is there for what was opened.
    fn refuse_served<I: Io>(
        &mut self,
        ticket: u64,
        result: Result<command::Target, Status>,
        io: &mut I,
    ) {
        if let Ok(target) = result {
            self.release_target(target, io);
            self.cx.event(Event::ServeClosed { ticket });
        }
    }

    /// The exporter of regions is gone: peers that have them open are told when they ask.
    pub(super) fn revoke_served(&mut self, wanted: impl Fn(command::Target) -> bool) {
        let mut from = 0;
        while let Some(key) = self.served.next_from(from, |_| true) {
            from = key.index() + 1;
            let Some(served) = self.served.get_mut(key) else { continue };
            if served.target.is_some_and(&wanted) {
                served.target = None;
            }
        }
    }

    /// Whether a peer has such a region open.
    pub(super) fn is_served(&self, wanted: impl Fn(command::RegionTarget) -> bool) -> bool {
        self.served
            .iter()
            .any(|(_, it)| matches!(it.target, Some(command::Target::Region(r)) if wanted(r)))
    }

    /// Files among what a node has open.
    pub(super) fn files_served(&self, link: &Inbound) -> u32 {
        let numbers = link.handles.iter().filter_map(|place| place.number);
        let targets = numbers.filter_map(|number| self.served.get(number.served)?.target);
        targets.filter(|target| matches!(target, command::Target::File(_))).count() as u32
    }

    pub(super) fn handle_close<I: Io>(&mut self, link: LinkKey, handle: u32, io: &mut I) {
        let Some(state) = self.inbound.get_mut(link) else { return };
        if handle == SWEEP {
            let epoch = state.lanes[LaneClass::Latency as usize].epoch;
            let mut old = Vec::new();
            for place in &mut state.handles {
                if place.number.is_some_and(|it| !it.told && it.asked_epoch != epoch) {
                    old.extend(place.take());
                }
            }
            for number in old {
                self.close_served(number.served, io);
            }
            return;
        }
        // The buffers of receives come and go with their messages.
        if let Some(place) = state.place(handle).filter(|it| it.number.is_some_and(|it| !it.told))
            && let Some(number) = place.take()
        {
            self.close_served(number.served, io);
        }
    }

    /// Nobody names it any more: released now, or after the last serve that uses it.
    pub(super) fn close_served<I: Io>(&mut self, key: ServedKey, io: &mut I) {
        let Some(served) = self.served.get_mut(key) else { return };
        served.closed = true;
        if matches!(served.target, Some(command::Target::Channel(_))) {
            self.forget_mail(key, Status::Closed, io);
        }
        self.release_served(key, io);
    }

    pub(super) fn release_served<I: Io>(&mut self, key: ServedKey, io: &mut I) {
        let over = |served: &Served| served.closed && served.uses == 0;
        if !self.served.get(key).is_some_and(over) {
            return;
        }
        let Some(served) = self.served.remove(key) else { return };
        if let Some(target) = served.target.or(served.ended) {
            self.release_target(target, io);
        }
        if let Some(ticket) = served.ticket {
            self.cx.event(Event::ServeClosed { ticket });
        }
        self.transfers.unpin(served.receive, &mut self.cx.sched);
    }

    /// A serve that used it is over.
    pub(super) fn leave_served<I: Io>(&mut self, key: ServedKey, io: &mut I) {
        if let Some(served) = self.served.get_mut(key) {
            served.uses -= 1;
            self.release_ended_served(key, io);
            self.release_served(key, io);
        }
    }
}

impl Inbound {
    /// Gives a target a number.
    fn keep(
        &mut self,
        theirs: u64,
        ticket: u64,
        target: command::Target,
        all: &mut Slab<kind::Served, Served>,
        most: u32,
    ) -> Option<u32> {
        if self.handles_open() >= most {
            return None;
        }
        let number = Number::asked(theirs, self.lanes[LaneClass::Latency as usize].epoch);
        let (number, key) = self.keep_number(number, target, all)?;
        if let Some(served) = all.get_mut(key) {
            served.ticket = Some(ticket);
        }
        Some(number)
    }

    /// Gives the buffer of a receive a number.
    pub(super) fn keep_slot(
        &mut self,
        target: command::Target,
        all: &mut Slab<kind::Served, Served>,
    ) -> Option<(u32, ServedKey)> {
        self.keep_number(Number { told: true, ..Number::asked(0, 0) }, target, all)
    }

    fn keep_number(
        &mut self,
        number: Number,
        target: command::Target,
        all: &mut Slab<kind::Served, Served>,
    ) -> Option<(u32, ServedKey)> {
        let at = match self.handles.iter().position(|place| place.number.is_none()) {
            Some(at) => at,
            None if self.handles.len() < limits::HANDLES_PER_LINK => {
                self.handles.push(HandlePlace::default());
                self.handles.len() - 1
            }
            None => return None,
        };
        let served = Served {
            target: Some(target),
            ended: None,
            ticket: None,
            uses: 0,
            closed: false,
            receive: None,
            taken_in: Remembered::default(),
            mails: Vec::new(),
            updates: Remembered::default(),
        };
        let served = all.insert(served).ok()?;
        self.handles[at].number = Some(Number { served, ..number });
        Some((self.handles[at].wire(at), served))
    }

    /// The number of something names nothing any more.
    pub(super) fn forget_number(&mut self, served: ServedKey) {
        let is_it = |place: &&mut HandlePlace| place.number.is_some_and(|it| it.served == served);
        if let Some(place) = self.handles.iter_mut().find(is_it) {
            let _ = place.take();
        }
    }

    /// What it has open.
    pub(super) fn handles_open(&self) -> u32 {
        self.handles.iter().filter(|place| place.number.is_some_and(|it| !it.told)).count() as u32
    }

    /// The place a number names, if it still does.
    pub(super) fn place(&mut self, number: u32) -> Option<&mut HandlePlace> {
        let at = (number & (limits::HANDLES_PER_LINK as u32 - 1)) as usize;
        self.handles.get_mut(at).filter(|place| place.wire(at) == number)
    }
}

impl Number {
    /// A peer asks for something; what it is comes later.
    fn asked(ticket: u64, asked_epoch: u32) -> Self {
        Self { ticket, served: Key::from_bits(u64::MAX), asked_epoch, told: false }
    }
}

impl HandlePlace {
    fn wire(self, at: usize) -> u32 {
        self.generation << PLACE_BITS | at as u32
    }

    pub(super) fn take(&mut self) -> Option<Number> {
        let number = self.number.take()?;
        self.generation = (self.generation + 1) % GENERATIONS;
        Some(number)
    }
}

fn length_of(target: command::Target) -> u64 {
    match target {
        command::Target::File(file) => file.length,
        command::Target::Region(region) => region.length,
        command::Target::Channel(_) => 0,
    }
}
