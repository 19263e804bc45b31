//! What clients do: by script or by chance.

use std::collections::BTreeMap;
use std::ops::Range;

use piped_core::ids::{HandleId, QueueId};
use piped_core::io::Span;
use piped_core::request::{ArenaBuffer, Class, Origin, Request, Verb};
use piped_core::units::Nanos;

use super::{
    Asking, ClientState, Effect, InFlight, Lock, LockEnd, OneSided, OpeningState, Plan, World,
    calls, naming,
};

/// Queues of each session.
const QUEUES: u64 = 2;

/// A request in the words of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Read `length` bytes of an object.
    Read {
        /// The object, by its number.
        object: usize,
        /// Where in the object, in bytes.
        offset: u64,
        /// The length in bytes.
        length: u64,
    },
    /// Write noise to an object, in the client's own area.
    Write {
        /// The object, by its number.
        object: usize,
        /// Where in the object, in bytes.
        offset: u64,
        /// The length in bytes.
        length: u64,
        /// Whether the data are stable when the call completes.
        durable: bool,
    },
    /// Read or write many pieces of a range of an object in one request, by chance.
    Pieces {
        /// The object, by its number.
        object: usize,
        /// Read, and not write.
        reads: bool,
        /// Where the range begins.
        start: u64,
        /// And where it ends.
        end: u64,
    },
    /// Copy into the client's own area of an object.
    Copy {
        /// The object that is read.
        from: usize,
        /// Where the read begins, in bytes.
        from_offset: u64,
        /// The object that is written.
        to: usize,
        /// Where the write begins, in bytes.
        to_offset: u64,
        /// The length in bytes.
        length: u64,
    },
    /// Make an object's writes stable.
    Sync {
        /// The object, by its number.
        object: usize,
    },
    /// Send noise to a channel.
    Send {
        /// The channel, as an object.
        object: usize,
        /// The tag of the message.
        tag: u64,
        /// How many bytes: enough for its name.
        length: u64,
    },
    /// Receive from the client's own channel.
    Receive {
        /// The channel, as an object.
        object: usize,
        /// Which tag; any without.
        tag: Option<u64>,
        /// How many bytes at most.
        length: u64,
    },
    /// Something with a board.
    OneSided(OneSided),
    /// A call of a file or directory.
    Ask(Asking),
    /// Wait for what the same queue has asked of an object's node.
    Flush {
        /// An object of that node.
        object: usize,
    },
    /// Cancel an earlier call.
    Cancel {
        /// The earlier call, by number.
        call: u64,
    },
    /// Do nothing at all.
    Nop,
    /// Whatever the test wants, sensible or not; the test judges the status.
    Raw(Verb),
}

impl World {
    /// A client submits a request. The number names it from then on.
    ///
    /// # Panics
    /// If the client has no open handle for it, or no free buffer.
    pub fn call(
        &mut self,
        client: usize,
        call: Call,
        class: Class,
        deadline: Option<Nanos>,
    ) -> u64 {
        self.call_fenced(client, call, (class, deadline), false)
    }

    /// The same, and `fence`: it begins when all is over that its queue has asked of the node
    /// before.
    pub(super) fn call_fenced(
        &mut self,
        client: usize,
        call: Call,
        (class, deadline): (Class, Option<Nanos>),
        fence: bool,
    ) -> u64 {
        self.clients[client].calls_made += 1;
        let number = self.clients[client].calls_made;
        let mut flight = InFlight {
            verb: Verb::Nop,
            queue: queue_of(number),
            node: None,
            fence,
            slot: self.free_slot(client),
            submitted: self.kernel.now(),
            deadline: deadline.unwrap_or(self.options.deadline),
            piece: None,
            table: None,
            buffer: None,
            window: None,
            effect: Effect::Nothing,
            length: 0,
            watermark: 0,
            seen: Vec::new(),
            held: false,
            cancelled: false,
            denied: None,
            raw: false,
        };
        match call {
            Call::Read { object, offset, length } => {
                self.prepare_read(client, number, &mut flight, object, offset, length);
            }
            Call::Write { object, offset, length, durable } => {
                self.prepare_write(client, number, &mut flight, (object, offset), length, durable);
            }
            Call::Pieces { object, reads, start, end } => {
                self.prepare_pieces(client, number, &mut flight, (object, reads), start..end);
            }
            Call::Copy { from, from_offset, to, to_offset, length } => {
                let ends = [(from, from_offset), (to, to_offset)];
                self.prepare_copy(client, number, &mut flight, ends, length);
            }
            Call::Sync { object } => {
                let handle = self.handle(client, object);
                let area = self.own_area(client, object);
                let sync = self.objects[object].expected.begin_sync(area);
                flight.verb = Verb::Sync { handle };
                flight.effect = Effect::Sync { object, sync };
            }
            Call::Send { object, tag, length } => {
                let handle = self.handle(client, object);
                let buffer = self.take_buffer(client, &mut flight, length, false);
                flight.verb = Verb::Send { handle, tag, buffer };
                flight.length = length;
                flight.effect = Effect::Send { number };
                let node = self.nodes[self.clients[client].node].id;
                let bytes = self.kernel.bytes_mut(node, flight.buffer.expect("taken above"));
                self.messages.send((client, number), object, tag, bytes);
            }
            Call::Receive { object, tag, length } => {
                let handle = self.handle(client, object);
                let buffer = self.take_buffer(client, &mut flight, length, true);
                flight.verb = Verb::Receive { handle, tag, buffer };
                flight.length = length;
                flight.effect = Effect::Receive { object, number };
            }
            Call::OneSided(call) => self.prepare_one_sided(client, number, &mut flight, call),
            Call::Ask(asking) => calls::prepare(self, client, number, &mut flight, asking),
            Call::Flush { object } => {
                flight.verb = Verb::Flush { handle: self.handle(client, object) };
                flight.node = Some(self.objects[object].node);
                flight.fence = true;
            }
            Call::Cancel { call } => {
                flight.verb = Verb::Cancel { target: call };
                if let Some(target) = self.clients[client].calls.get_mut(&call) {
                    target.cancelled = true;
                    flight.queue = target.queue;
                }
            }
            Call::Nop => {}
            Call::Raw(verb) => {
                flight.verb = verb;
                flight.raw = true;
            }
        }
        self.submit(client, number, flight, class, deadline);
        number
    }

    /// Ends the client's session, with whatever it has under way.
    pub fn close_client(&mut self, client: usize) {
        self.messages.sender_died(client);
        use piped_engine::command::Command;
        let (node, session) = (self.clients[client].node, self.clients[client].session);
        if self.clients[client].state != ClientState::Running {
            return;
        }
        self.clients[client].state = ClientState::Closing(self.kernel.now());
        for object in &mut self.objects {
            object.gone |= match object.kind {
                super::ObjectKind::Region { owner, .. }
                | super::ObjectKind::Board { owner, .. }
                | super::ObjectKind::Channel { owner, .. } => owner == client,
                super::ObjectKind::File(_) | super::ObjectKind::Directory { .. } => false,
            };
        }
        if let Some(control) = self.controls.control_mut(node) {
            let offers = control.regions().owners().any(|(owner, _)| owner == session);
            control.close_session(session);
            let is_revoked = control.has_command(0) || !offers;
            assert!(is_revoked, "no shard hears that client {client} offers nothing any more");
        }
        self.controls.drain(node, &self.kernel);
        // After what it offered was revoked.
        self.controls.tell(node, 0, Command::CloseSession { session }, &self.kernel);
    }

    /// Whether the client has an open handle of the object.
    #[must_use]
    pub fn has_open(&self, client: usize, object: usize) -> bool {
        self.clients[client]
            .handles
            .iter()
            .any(|open| open.object == object && open.state == OpeningState::Open)
    }

    /// Wait until a client can use an object.
    ///
    /// # Panics
    /// If that does not happen within ten seconds.
    pub fn wait_open(&mut self, client: usize, object: usize) {
        let limit = Nanos::from_millis(10_000);
        let opened = self.run_until(limit, |world| world.has_open(client, object));
        assert!(opened, "{} was not opened within {limit}", self.objects[object].name);
    }

    /// A client thinks: submit a few things by chance, come back later or be done.
    pub(super) fn think(&mut self, client: usize) {
        if self.clients[client].state != ClientState::Running {
            return;
        }
        let now = self.kernel.now();
        self.clients[client].locks.retain(|lock| match lock.until {
            LockEnd::Call(_) => true,
            LockEnd::Time(until) => until > now,
        });
        naming::settle(self, client);
        self.open_objects(client);
        self.offer_or_withdraw(client);
        for _ in 0..1 + self.random.below(4) {
            if self.clients[client].to_do == 0 {
                break;
            }
            let fence = self.options.boards > 0.0 && self.random.chance(0.2);
            let call = self.invent(client, fence);
            // Whoever finds nothing to do (its peer is gone for good) gives up some day.
            if call.is_some() || self.random.chance(0.05) {
                self.clients[client].to_do -= 1;
            }
            if let Some(call) = call {
                let class = *self.random.pick(&[Class::Latency, Class::Bulk]);
                let hasty = self.random.chance(self.options.hasty);
                let deadline = hasty.then(|| Nanos(self.random.length(2_000_000)));
                // Of what may never come.
                let waits = matches!(call, Call::OneSided(OneSided::Wait { .. }));
                let longest = self.options.deadline.0;
                let deadline =
                    deadline.or_else(|| waits.then(|| Nanos(self.random.length(longest))));
                let number = self.call_fenced(client, call, (class, deadline), fence);
                self.expect_signal(call);
                self.follow_put(client, call, class);
                if self.random.chance(self.options.cancels) {
                    let cancel = Call::Cancel { call: number };
                    self.call(client, cancel, class, None);
                }
            }
        }
        if self.clients[client].to_do > 0 {
            let pause = Nanos(self.random.length(self.options.think_max.0));
            self.plans.push(now + pause, Plan::Think { client });
        }
    }

    /// Something this client may do now, or nothing.
    fn invent(&mut self, client: usize, fence: bool) -> Option<Call> {
        if self.random.chance(0.03) {
            return Some(Call::Nop);
        }
        let objects: Vec<usize> = self.clients[client]
            .handles
            .iter()
            .filter(|open| open.state == OpeningState::Open && !self.objects[open.object].gone)
            .map(|open| open.object)
            .collect();
        let (channels, objects): (Vec<usize>, Vec<usize>) =
            objects.into_iter().partition(|&object| self.is_channel(object));
        let (boards, objects): (Vec<usize>, Vec<usize>) =
            objects.into_iter().partition(|&object| self.is_board(object));
        let (directories, objects): (Vec<usize>, Vec<usize>) =
            objects.into_iter().partition(|&object| naming::is_directory(self, object));
        if self.options.calls > 0.0 && self.random.chance(self.options.calls) {
            return calls::invent(self, client, &directories, &objects);
        }
        if self.random.chance(self.options.boards) {
            return self.invent_one_sided(client, &boards);
        }
        if self.random.chance(0.25) {
            return self.invent_message(client, &channels);
        }
        if objects.is_empty() {
            return None;
        }
        let (mut object, mut kind) = (*self.random.pick(&objects), self.random.below(100));
        if self.options.two_ways && self.random.chance(0.5) {
            // What goes two ways are reads of the other node.
            let node = self.clients[client].node;
            object = *objects.iter().find(|&&it| self.objects[it].node != node)?;
            kind = 0;
        }
        let read = self.random.chance(0.3).then_some(()).map_or(Some(client), |()| None);
        if self.options.boards > 0.0
            && self.clients[client].pieces.len() > 1
            && self.random.chance(0.2)
        {
            return self.invent_pieces(client, object, read);
        }
        match kind {
            0..50 if !self.clients[client].pieces.is_empty() => {
                // Behind a fence it sees what its queue still writes.
                let behind = fence.then(|| queue_of(self.clients[client].calls_made + 1));
                let range = self.choose_behind(client, object, read, behind)?;
                Some(Call::Read { object, offset: range.start, length: range.end - range.start })
            }
            50..80 if !self.clients[client].pieces.is_empty() => {
                let range = self.choose(client, object, Some(client), true)?;
                let (offset, length) = (range.start, range.end - range.start);
                let durable = self.random.chance(0.3);
                Some(Call::Write { object, offset, length, durable })
            }
            80..90 => {
                let to = *self.random.pick(&objects);
                let source = self.choose(client, object, read, false)?;
                let sink = self.choose(client, to, Some(client), true)?;
                let length = (source.end - source.start).min(sink.end - sink.start);
                let apart = object != to
                    || source.start + length <= sink.start
                    || sink.start + length <= source.start;
                apart.then_some(Call::Copy {
                    from: object,
                    from_offset: source.start,
                    to,
                    to_offset: sink.start,
                    length,
                })
            }
            90..97 => Some(Call::Sync { object }),
            _ => None,
        }
    }

    /// Pieces of what is there for sure.
    fn invent_pieces(&mut self, client: usize, object: usize, read: Option<usize>) -> Option<Call> {
        let reads = self.random.chance(0.6);
        let owner = if reads { read } else { Some(client) };
        let Range { start, end } = self.choose(client, object, owner, !reads)?;
        let end = end.min(self.objects[object].expected.length().start);
        (start < end).then_some(Call::Pieces { object, reads, start, end })
    }

    /// A range of an area that no lock forbids.
    pub(super) fn choose(
        &mut self,
        client: usize,
        object: usize,
        owner: Option<usize>,
        writes: bool,
    ) -> Option<Range<u64>> {
        self.choose_unlocked(client, object, owner, |lock, _| lock.writes || writes)
    }

    /// A range to read behind the writes of a queue; without, one that nobody writes.
    fn choose_behind(
        &mut self,
        client: usize,
        object: usize,
        owner: Option<usize>,
        behind: Option<QueueId>,
    ) -> Option<Range<u64>> {
        self.choose_unlocked(client, object, owner, |lock, calls| {
            let call = match lock.until {
                LockEnd::Call(call) => calls.get(&call),
                LockEnd::Time(_) => None,
            };
            let is_before = call.is_some_and(|call| {
                matches!(call.verb, Verb::Write { .. }) && Some(call.queue) == behind && !call.held
            });
            lock.writes && !is_before
        })
    }

    fn choose_unlocked(
        &mut self,
        client: usize,
        object: usize,
        owner: Option<usize>,
        forbids: impl Fn(&Lock, &BTreeMap<u64, InFlight>) -> bool,
    ) -> Option<Range<u64>> {
        let area = self.area(object, owner);
        for _ in 0..4 {
            let mut start = self.random.between(area.start, area.end - 1);
            if self.random.chance(0.4) {
                start = (start & !4095).max(area.start);
            }
            let most = (area.end - start).min(self.options.longest);
            let mut length = match self.options.two_ways && self.random.chance(0.5) {
                true => most,
                false => self.random.length(most).min(most),
            };
            if self.random.chance(0.4) {
                length = (length.next_multiple_of(4096)).min(most);
            }
            let range = start..start + length;
            let calls = &self.clients[client].calls;
            let free = self.clients[client].locks.iter().all(|lock| {
                lock.object != object
                    || !forbids(lock, calls)
                    || lock.end <= range.start
                    || range.end <= lock.start
            });
            if free {
                return Some(range);
            }
        }
        None
    }

    fn prepare_read(
        &mut self,
        client: usize,
        number: u64,
        flight: &mut InFlight,
        object: usize,
        offset: u64,
        length: u64,
    ) {
        let handle = self.handle(client, object);
        let buffer = self.take_buffer(client, flight, length, true);
        flight.node = Some(self.objects[object].node);
        // Where requests are one-sided some want a part first.
        let wants = self.options.boards > 0.0 && self.random.chance(0.3);
        let wanted = if wants { self.random.below(length.max(1)) } else { 0 };
        flight.verb = Verb::Read { handle, offset, buffer, wanted };
        flight.length = length;
        let expected = &self.objects[object].expected;
        let shortest = expected.length().start.saturating_sub(offset).min(length);
        let crashes = expected.crashes;
        flight.effect = Effect::Read { object, start: offset, shortest, crashes };
        self.lock(client, number, object, offset..offset + length, false);
    }

    fn prepare_write(
        &mut self,
        client: usize,
        number: u64,
        flight: &mut InFlight,
        (object, offset): (usize, u64),
        length: u64,
        durable: bool,
    ) {
        let handle = self.handle(client, object);
        let buffer = self.take_buffer(client, flight, length, false);
        flight.node = Some(self.objects[object].node);
        flight.verb = Verb::Write { handle, offset, buffer, durable, notify: None };
        flight.length = length;
        let data = self
            .kernel
            .bytes(self.nodes[self.clients[client].node].id, flight.buffer.expect("taken above"));
        let data = data.to_vec();
        let expected = &mut self.objects[object].expected;
        expected.begin_write(offset as usize..(offset + length) as usize);
        let crashes = expected.crashes;
        flight.effect = Effect::Write {
            object,
            start: offset,
            crashes,
            data,
            known: None,
            durable,
            shortest: length,
            source: None,
        };
        self.lock(client, number, object, offset..offset + length, true);
    }

    fn prepare_copy(
        &mut self,
        client: usize,
        number: u64,
        flight: &mut InFlight,
        [(from, from_offset), (to, to_offset)]: [(usize, u64); 2],
        length: u64,
    ) {
        let (source, sink) = (self.handle(client, from), self.handle(client, to));
        flight.verb = Verb::Copy { from: source, from_offset, to: sink, to_offset, length };
        flight.length = length;
        let range = from_offset as usize..(from_offset + length) as usize;
        let (data, known) = self.objects[from].expected.take(range);
        let end = self.objects[from].expected.length().start;
        let shortest = end.saturating_sub(from_offset).min(length);
        let source = Some((from, self.objects[from].expected.crashes));
        let expected = &mut self.objects[to].expected;
        expected.begin_write(to_offset as usize..(to_offset + length) as usize);
        let crashes = expected.crashes;
        flight.effect = Effect::Write {
            object: to,
            start: to_offset,
            crashes,
            data,
            known: Some(known),
            durable: false,
            shortest,
            source,
        };
        self.lock(client, number, from, from_offset..from_offset + length, false);
        self.lock(client, number, to, to_offset..to_offset + length, true);
    }

    fn submit(
        &mut self,
        client: usize,
        number: u64,
        flight: InFlight,
        class: Class,
        deadline: Option<Nanos>,
    ) {
        let flight = InFlight { denied: self.denied(client, flight.verb), ..flight };
        let place = &mut self.clients[client];
        let (node, session) = (place.node, place.session);
        let origin = Origin { session, queue: flight.queue, slot: flight.slot, user_data: number };
        let request =
            Request { verb: flight.verb, class, deadline, no_wait: false, fence: flight.fence };
        place.calls.insert(number, flight);
        let id = self.nodes[node].id;
        self.kernel.note(|| format!("{id:?} client {client} call {number}: {request:?}"));
        if let Some(shard) = &mut self.nodes[node].shard {
            let now = self.kernel.node_time(id);
            shard.submit(origin, request, now, &mut self.kernel.io(id));
        }
    }

    /// A buffer of the arena, filled with noise; the engine may touch it from now on.
    pub(super) fn take_buffer(
        &mut self,
        client: usize,
        flight: &mut InFlight,
        length: u64,
        writable: bool,
    ) -> ArenaBuffer {
        let piece = self.clients[client].pieces.pop().expect("a call needs a free buffer");
        let skew = if self.random.chance(0.5) { 0 } else { self.random.below(8192) };
        let offset = u64::from(piece) * self.piece_bytes() + skew;
        let node = self.nodes[self.clients[client].node].id;
        let span = Span { segment: self.arena(client), offset, length: length as u32 };
        self.random.fill(self.kernel.bytes_mut(node, span));
        flight.piece = Some(piece);
        flight.buffer = Some(span);
        flight.window = Some(self.kernel.open_window(node, span, writable));
        ArenaBuffer { segment: 0, offset, length }
    }

    /// The client's open handle of an object.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn handle(&self, client: usize, object: usize) -> HandleId {
        let mut handles = self.clients[client].handles.iter().rev();
        let open = handles.find(|open| open.object == object && open.state == OpeningState::Open);
        open.expect("a call needs an open handle").handle
    }

    pub(super) fn own_area(&self, client: usize, object: usize) -> Range<usize> {
        let area = self.area(object, Some(client));
        area.start as usize..area.end as usize
    }

    fn free_slot(&self, client: usize) -> u32 {
        let used = |slot| self.clients[client].calls.values().any(|call| call.slot == slot);
        (0..).find(|&slot| !used(slot)).expect("calls are bounded by the depth")
    }

    pub(super) fn lock(
        &mut self,
        client: usize,
        call: u64,
        object: usize,
        range: Range<u64>,
        writes: bool,
    ) {
        let until = LockEnd::Call(call);
        let lock = Lock { object, start: range.start, end: range.end, writes, until };
        self.clients[client].locks.push(lock);
    }
}

/// A few in a row take the same.
const fn queue_of(call: u64) -> QueueId {
    QueueId((call / 4 % QUEUES) as u32)
}
