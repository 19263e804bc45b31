//! Boards: a region of each client with words that all change, and slots that others put something
//! into and notify its owner of.
//!
//! A slot is its sender's from the put on, until the owner has taken a notification that was raised
//! behind it; then it is the owner's, who writes something else there, and what the sender has put
//! must never come again. The driver's memory knows of it: outside of that time nothing may touch
//! the slot. A notification of a number of its own (a signal) tells exactly which puts were before
//! it; those of shared numbers are counted.

use std::collections::BTreeMap;

use piped_core::ids::{QueueId, SegmentId, SessionId};
use piped_core::io::Span;
use piped_core::request::{Class, Update, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Command;
use piped_sim::WindowId;

use super::words::{Chain, Counter, Semaphore};
use super::{Call, ClientState, Effect, InFlight, ObjectKind, World};

const COUNTERS: usize = 2;
/// Where the word lies that is swapped, behind the counters.
const CHAIN_AT: u64 = COUNTERS as u64 * Update::BYTES;
/// Slots begin behind the words.
const WORDS_BYTES: u64 = 4096;
/// Slots of each sender on each board.
const SLOTS: usize = 3;
const SLOT_BYTES_MAX: u64 = 1 << 18;
/// Numbers that are shared; those of signals come after them.
const SEMAPHORES: u32 = 2;
/// Waits that a client has under way.
const WAITS: usize = 4;
/// So many of the signals that were taken are waited for once more at the end.
const PROBES: usize = 8;

/// What one client does to the memory of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OneSided {
    /// Put noise into a slot of one's own.
    Put {
        /// The client whose board it is.
        board: usize,
        /// Which of the caller's slots there.
        slot: usize,
        /// The length of the noise, in bytes.
        length: u64,
        /// What the owner is notified of behind it.
        note: Option<Note>,
    },
    /// Notify a board's owner.
    Notify {
        /// The client whose board it is.
        board: usize,
        /// What the owner is notified of.
        note: Note,
    },
    /// Wait on one's own board.
    Wait {
        /// What is waited for.
        note: Note,
        /// How many notifications end the wait.
        count: u64,
    },
    /// Add to a word.
    Add {
        /// The client whose board it is.
        board: usize,
        /// The word, by its number.
        counter: usize,
        /// How much; at least 1.
        addend: u64,
    },
    /// Replace the word that is swapped, if it is as it was last seen.
    Swap {
        /// The client whose board it is.
        board: usize,
    },
}

/// A number of notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// One that is raised once.
    Signal,
    /// One of those that are shared.
    Semaphore(u32),
    /// The signal of that number, to be waited for.
    Of(u32),
}

/// What a put or a notification is, for the end of its call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raise {
    board: usize,
    slot: Option<usize>,
    id: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Board {
    object: usize,
    node: usize,
    segment: SegmentId,
    counters: [Counter; COUNTERS],
    chain: Chain,
    semaphores: [Semaphore; SEMAPHORES as usize],
    signals: BTreeMap<u32, Signal>,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    /// What its first bytes are, as long as nothing is put there; else what is put there.
    bytes: Vec<u8>,
    put: Option<Put>,
}

/// The call to which a slot belongs.
#[derive(Debug)]
struct Put {
    call: u64,
    /// The signal behind the bytes.
    id: Option<u32>,
    /// The engine may write there; `None`: the slot is the owner's again.
    window: Option<WindowId>,
    /// Whether it ended well, and when.
    ended: Option<(bool, Nanos)>,
}

#[derive(Debug)]
struct Signal {
    sender: usize,
    call: u64,
    slot: Option<usize>,
    /// The sender's puts and writes before it, of the same queue to the same node.
    behind: Vec<(u64, Place)>,
    waited_for: bool,
    taken: bool,
}

/// Where a call puts or writes something.
#[derive(Debug, Clone, Copy)]
enum Place {
    Slot { board: usize, slot: usize },
    Object { object: usize, start: u64, length: u64 },
}

impl World {
    /// Gives a client a board.
    pub(super) fn add_board(
        &mut self,
        client: usize,
        node: usize,
        session: SessionId,
    ) -> SegmentId {
        let id = self.nodes[node].id;
        let slots = self.options.clients * SLOTS;
        let length = WORDS_BYTES + slots as u64 * self.slot_bytes();
        let segment = self.kernel.add_segment(id, length);
        self.kernel.share(id, segment);
        self.kernel.guard(id, segment);
        let words = Span { segment, offset: 0, length: WORDS_BYTES as u32 };
        self.kernel.open_window(id, words, true);
        self.command(node, Command::AddSegment { session, segment, length });
        let region = self.offer_region(node, session, &format!("board-{client}"), length);
        let kind = ObjectKind::Board { owner: client, region, segment, length };
        self.boards.push(Board {
            object: self.objects.len(),
            node,
            segment,
            counters: Default::default(),
            chain: Chain::default(),
            semaphores: Default::default(),
            signals: BTreeMap::new(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
        });
        self.add_object(node, format!("board-{client}"), kind, vec![0], &[]);
        segment
    }

    fn slot_bytes(&self) -> u64 {
        self.options.longest.min(SLOT_BYTES_MAX)
    }

    /// The board of a client, as an object.
    #[must_use]
    pub fn board(&self, client: usize) -> usize {
        self.boards[client].object
    }

    pub(super) fn is_board(&self, object: usize) -> bool {
        matches!(self.objects[object].kind, ObjectKind::Board { .. })
    }

    fn is_board_gone(&self, board: usize) -> bool {
        self.objects[self.boards[board].object].gone
    }

    /// The first bytes of a slot.
    fn slot_span(&self, board: usize, slot: usize, length: u64) -> Span {
        let offset = WORDS_BYTES + slot as u64 * self.slot_bytes();
        Span { segment: self.boards[board].segment, offset, length: length as u32 }
    }

    /// Something to do with boards, or nothing.
    pub(super) fn invent_one_sided(&mut self, client: usize, boards: &[usize]) -> Option<Call> {
        let own = self.boards[client].object;
        let waits = self.clients[client].calls.values();
        let waits = waits.filter(|call| matches!(call.verb, Verb::Wait { .. })).count();
        if boards.contains(&own) && waits < WAITS && self.random.chance(0.3) {
            let (note, count) = self.invent_wait(client)?;
            return Some(Call::OneSided(OneSided::Wait { note, count }));
        }
        if boards.is_empty() {
            return None;
        }
        let object = *self.random.pick(boards);
        let board = self.boards.iter().position(|it| it.object == object)?;
        let note = match self.random.below(4) {
            0 => Note::Semaphore(self.random.below(SEMAPHORES.into()) as u32),
            _ => Note::Signal,
        };
        let room = !self.clients[client].pieces.is_empty();
        let call = match self.random.below(10) {
            0..2 => {
                let counter = self.random.below(COUNTERS as u64) as usize;
                let addend = if counter == 0 { 1 } else { self.random.between(1, 100) };
                OneSided::Add { board, counter, addend }
            }
            2..4 => OneSided::Swap { board },
            4 => OneSided::Notify { board, note },
            5 => return Some(Call::Flush { object }),
            _ if room => {
                let slot = self.free_slot_of(board, client)?;
                let most = self.slot_bytes();
                let length = self.random.length(most).min(most);
                let note = self.random.chance(0.6).then_some(note);
                OneSided::Put { board, slot, length, note }
            }
            _ => return None,
        };
        Some(Call::OneSided(call))
    }

    /// A client that puts something often puts more at once, and notifies of all.
    pub(super) fn follow_put(&mut self, client: usize, call: Call, class: Class) {
        let Call::OneSided(OneSided::Put { board, .. }) = call else { return };
        if self.random.chance(0.5) {
            return;
        }
        let (room, note) = (!self.clients[client].pieces.is_empty(), Note::Signal);
        let next = match self.free_slot_of(board, client).filter(|_| room) {
            Some(slot) if self.random.chance(0.6) => {
                let most = self.slot_bytes();
                let length = self.random.length(most).min(most);
                OneSided::Put { board, slot, length, note: Some(note) }
            }
            _ => OneSided::Notify { board, note },
        };
        let class = if self.random.chance(0.8) { class } else { Class::Latency };
        let next = Call::OneSided(next);
        self.call(client, next, class, None);
        self.expect_signal(next);
    }

    /// A board's owner may wait already for what somebody else is about to raise.
    pub(super) fn expect_signal(&mut self, call: Call) {
        let (Call::OneSided(OneSided::Put { board, note: Some(Note::Signal), .. })
        | Call::OneSided(OneSided::Notify { board, note: Note::Signal })) = call
        else {
            return;
        };
        let runs = self.clients[board].state == ClientState::Running;
        if runs && self.has_open(board, self.boards[board].object) && self.random.chance(0.5) {
            let note = Note::Of(SEMAPHORES + self.signals_made - 1);
            let wait = Call::OneSided(OneSided::Wait { note, count: 1 });
            let longest = self.options.deadline.0;
            let deadline = Nanos(self.random.length(longest));
            self.call(board, wait, Class::Latency, Some(deadline));
        }
    }

    fn invent_wait(&mut self, client: usize) -> Option<(Note, u64)> {
        if self.random.chance(0.25) {
            let note = Note::Semaphore(self.random.below(SEMAPHORES.into()) as u32);
            return Some((note, self.random.between(1, 3)));
        }
        let signals = &self.boards[client].signals;
        let free = signals.iter().filter(|(_, it)| !it.taken && !it.waited_for);
        let free: Vec<u32> = free.map(|(&id, _)| id).collect();
        (!free.is_empty()).then(|| (Note::Of(*self.random.pick(&free)), 1))
    }

    /// A slot of a sender that it may put something into. One whose put failed rests for a while,
    /// as the peer may be at it still; then nobody waits for its signal any more.
    fn free_slot_of(&mut self, board: usize, sender: usize) -> Option<usize> {
        let (now, node) = (self.kernel.now(), self.nodes[self.boards[board].node].id);
        let Board { slots, signals, .. } = &mut self.boards[board];
        for (number, slot) in slots.iter_mut().enumerate().skip(sender * SLOTS).take(SLOTS) {
            if let Some(Put { id, window, ended: Some((false, at)), .. }) = &slot.put
                && now >= *at + self.options.quarantine
                && id.is_none_or(|id| !signals[&id].waited_for)
            {
                if let Some(id) = id {
                    signals.remove(id);
                }
                if let Some(window) = *window {
                    self.kernel.close_window(node, window);
                    slot.bytes.clear();
                }
                slot.put = None;
            }
            if slot.put.is_none() {
                return Some(number);
            }
        }
        None
    }

    /// Makes the request of such a call.
    pub(super) fn prepare_one_sided(
        &mut self,
        client: usize,
        number: u64,
        flight: &mut InFlight,
        call: OneSided,
    ) {
        let board = match call {
            OneSided::Put { board, .. }
            | OneSided::Notify { board, .. }
            | OneSided::Add { board, .. }
            | OneSided::Swap { board } => board,
            OneSided::Wait { .. } => client,
        };
        let handle = self.handle(client, self.boards[board].object);
        if !matches!(call, OneSided::Wait { .. }) {
            flight.node = Some(self.boards[board].node);
        }
        match call {
            OneSided::Put { slot, length, note, .. } => {
                let buffer = self.take_buffer(client, flight, length, false);
                let notify = note.map(|note| {
                    self.begin_raise((client, number), flight.queue, (board, Some(slot)), note)
                });
                self.begin_put((client, number), flight, (board, slot), notify);
                flight.length = length;
                let offset = self.slot_span(board, slot, length).offset;
                flight.verb = Verb::Write { handle, offset, buffer, durable: false, notify };
            }
            OneSided::Notify { note, .. } => {
                let id = self.begin_raise((client, number), flight.queue, (board, None), note);
                flight.verb = Verb::Notify { handle, id };
                flight.effect = Effect::Raise(Raise { board, slot: None, id: Some(id) });
            }
            OneSided::Wait { note, count } => {
                let id = match note {
                    Note::Semaphore(id) | Note::Of(id) => id,
                    Note::Signal => unreachable!("nobody waits for a signal that has no number"),
                };
                if let Some(signal) = self.boards[board].signals.get_mut(&id) {
                    signal.waited_for = true;
                }
                flight.verb = Verb::Wait { handle, id, count };
                let semaphore = self.boards[board].semaphores.get(id as usize);
                let before = semaphore.map_or(0, |it| it.taken);
                flight.effect = Effect::Wait { board, id, count, before };
            }
            OneSided::Add { counter, addend, .. } => {
                let least = self.boards[board].counters[counter].begin(addend);
                let (offset, update) = (counter as u64 * Update::BYTES, Update::Add(addend));
                flight.verb = Verb::Update { handle, offset, update };
                flight.effect = Effect::Add { board, counter, addend, least };
            }
            OneSided::Swap { .. } => {
                let chain = &mut self.boards[board].chain;
                let expected = chain.told;
                let new = chain.begin(expected);
                let update = Update::CompareSwap { expected, new };
                flight.verb = Verb::Update { handle, offset: CHAIN_AT, update };
                flight.effect = Effect::Swap { board, new };
            }
        }
    }

    /// A notification is asked for. Its number.
    fn begin_raise(
        &mut self,
        (client, call): (usize, u64),
        queue: QueueId,
        (board, slot): (usize, Option<usize>),
        note: Note,
    ) -> u32 {
        if let Note::Semaphore(id) = note {
            self.boards[board].semaphores[id as usize].asked += 1;
            return id;
        }
        let behind = self.puts_before(client, queue, board);
        let id = SEMAPHORES + self.signals_made;
        self.signals_made += 1;
        self.kernel.note(|| format!("client {client} call {call}: signal {id} behind {behind:?}"));
        let (waited_for, taken) = (false, false);
        let signal = Signal { sender: client, call, slot, behind, waited_for, taken };
        self.boards[board].signals.insert(id, signal);
        id
    }

    /// What a notification of this client comes behind: what is under way in its queue to the same
    /// node, and what has ended well on the same board.
    fn puts_before(&self, client: usize, queue: QueueId, board: usize) -> Vec<(u64, Place)> {
        let (node, calls) = (self.boards[board].node, self.clients[client].calls.iter());
        let calls = calls.filter(|(_, it)| it.queue == queue && it.node == Some(node) && !it.held);
        let under_way = calls.filter_map(|(&call, it)| match it.effect {
            Effect::Raise(Raise { board, slot: Some(slot), .. }) => {
                Some((call, Place::Slot { board, slot }))
            }
            Effect::Write { object, start, .. } => {
                Some((call, Place::Object { object, start, length: it.length }))
            }
            _ => None,
        });
        let slots = self.boards[board].slots.iter().enumerate();
        let ended = slots.skip(client * SLOTS).take(SLOTS).filter_map(|(slot, it)| {
            let put = it.put.as_ref().filter(|put| matches!(put.ended, Some((true, _))))?;
            Some((put.call, Place::Slot { board, slot }))
        });
        under_way.chain(ended).collect()
    }

    fn begin_put(
        &mut self,
        (client, call): (usize, u64),
        flight: &mut InFlight,
        (board, slot): (usize, usize),
        notify: Option<u32>,
    ) {
        self.judge_slot(board, slot, &format!("before call {call} of client {client}"));
        let [from, to] = [self.clients[client].node, self.boards[board].node];
        let buffer = flight.buffer.expect("taken by the caller");
        let data = self.kernel.bytes(self.nodes[from].id, buffer).to_vec();
        let span = self.slot_span(board, slot, data.len() as u64);
        let window = Some(self.kernel.open_window(self.nodes[to].id, span, true));
        let id = notify.filter(|&id| id >= SEMAPHORES);
        let put = Some(Put { call, id, window, ended: None });
        self.boards[board].slots[slot] = Slot { bytes: data, put };
        flight.effect = Effect::Raise(Raise { board, slot: Some(slot), id: notify });
    }

    /// What is known of a slot is there.
    fn judge_slot(&self, board: usize, slot: usize, when: &str) {
        if self.is_board_gone(board) {
            return;
        }
        let bytes = &self.boards[board].slots[slot].bytes;
        let span = self.slot_span(board, slot, bytes.len() as u64);
        let seen = self.kernel.bytes(self.nodes[self.boards[board].node].id, span);
        if seen != bytes {
            let wrong = bytes.iter().zip(seen).position(|(wanted, seen)| wanted != seen);
            let whose = &self.boards[board].slots[slot].put;
            let length = bytes.len();
            panic!(
                "{when}: slot {slot} of board {board} is wrong from byte {wrong:?} of {length}: \
                 {whose:?}"
            );
        }
    }

    /// A call that did something to a board is over.
    pub(super) fn judge_one_sided(
        &mut self,
        call: u64,
        effect: &Effect,
        (status, value): (Status, u64),
        name: &str,
    ) {
        let ok = status == Status::Ok;
        let judged = match *effect {
            Effect::Raise(raise) => {
                self.end_raise(call, raise, status, name);
                Ok(())
            }
            Effect::Wait { board, id, count, before } => {
                if let Some(signal) = self.boards[board].signals.get_mut(&id) {
                    signal.waited_for = false;
                }
                if ok { self.take(board, id, (before, count, value), name) } else { Ok(()) }
            }
            Effect::Add { board, counter, addend, least } if ok => {
                self.tally("words added to", 1);
                self.boards[board].counters[counter].end(addend, least, value)
            }
            Effect::Swap { board, new } if ok => {
                let chain = &mut self.boards[board].chain;
                let judged = chain.end(new, value);
                let done = chain.told == new;
                self.tally("words swapped", done.into());
                self.tally("words not as expected", (!done).into());
                judged
            }
            _ => Ok(()),
        };
        if let Err(fault) = judged {
            panic!("{name}: {fault}");
        }
    }

    /// A put or a notification is over.
    fn end_raise(&mut self, call: u64, raise: Raise, status: Status, name: &str) {
        let Raise { board, slot, id } = raise;
        let (ok, now) = (status == Status::Ok, self.kernel.now());
        match id {
            Some(id) if id < SEMAPHORES => self.boards[board].semaphores[id as usize].end(status),
            Some(id) if !ok => self.give_up_signal(board, id),
            _ => {}
        }
        let Some(slot) = slot else { return };
        if ok {
            self.judge_slot(board, slot, &format!("after {name}"));
        }
        let place = &mut self.boards[board].slots[slot];
        if let Some(put) = place.put.as_mut().filter(|put| put.call == call) {
            put.ended = Some((ok, now));
            place.put.take_if(|put| put.window.is_none());
        }
    }

    /// A client that asked for a signal has given up, and nobody knows any more that it was taken:
    /// what is before it and not over may come again.
    fn give_up_signal(&mut self, board: usize, id: u32) {
        let Some(signal) = self.boards[board].signals.get(&id).filter(|it| it.taken) else {
            return;
        };
        for (call, place) in signal.behind.clone() {
            let Place::Slot { board, slot } = place else { continue };
            let node = self.nodes[self.boards[board].node].id;
            let length = self.boards[board].slots[slot].bytes.len() as u64;
            let span = self.slot_span(board, slot, length);
            let gone = self.is_board_gone(board);
            let place = &mut self.boards[board].slots[slot];
            if let Some(put) = place.put.as_mut().filter(|put| put.call == call)
                && put.window.is_none()
                && !gone
            {
                put.window = Some(self.kernel.open_window(node, span, true));
                place.bytes.clear();
            }
        }
    }

    /// A wait took notifications.
    fn take(
        &mut self,
        board: usize,
        id: u32,
        (before, count, left): (u64, u64, u64),
        name: &str,
    ) -> Result<(), String> {
        if id < SEMAPHORES {
            self.tally("notifications counted", count);
            return self.boards[board].semaphores[id as usize].take(before, count, left);
        }
        let signal = self.boards[board].signals.get_mut(&id).expect("only those are waited for");
        if std::mem::replace(&mut signal.taken, true) || left > 0 {
            return Err(format!("signal {id} was raised more than once"));
        }
        let (sender, call, slot) = (signal.sender, signal.call, signal.slot);
        let behind = signal.behind.clone();
        self.tally("signals taken", 1);
        if let Some(slot) = slot.filter(|&slot| self.is_of(board, slot, call)) {
            self.judge_slot(board, slot, name);
            self.hand_over(board, slot);
        }
        for (call, place) in behind {
            self.judge_behind(board, (sender, call), place, name);
        }
        Ok(())
    }

    /// A signal was taken that comes behind a put or a write: it is there now, if it has ended well
    /// or does not know yet how it has.
    fn judge_behind(
        &mut self,
        taker: usize,
        (sender, call): (usize, u64),
        place: Place,
        name: &str,
    ) {
        let flight = self.clients[sender].calls.get(&call).filter(|flight| !flight.held);
        let runs = self.clients[sender].state == ClientState::Running;
        let flight = flight.filter(|_| runs);
        let well = self.finish_of(sender, call).is_some_and(|end| end.status == Status::Ok);
        if flight.is_none() && !well {
            return;
        }
        let name = format!("{name}, behind call {call} of client {sender}");
        let under_way = u64::from(flight.is_some());
        match place {
            Place::Slot { board, slot } => {
                if self.is_board_gone(board) || !self.is_of(board, slot, call) {
                    return;
                }
                self.judge_slot(board, slot, &name);
                if board == taker {
                    self.tally("puts before a signal taken while they were under way", under_way);
                    self.hand_over(board, slot);
                }
            }
            Place::Object { object, start, length } => {
                if self.objects[object].gone {
                    return;
                }
                let content = self.content_of(&self.objects[object]);
                let range = start as usize..(start + length) as usize;
                let seen = content.get(range).unwrap_or_else(|| panic!("{name}: it is not there"));
                let there = match flight.map(|flight| &flight.effect) {
                    Some(Effect::Write { data, .. }) => data == seen,
                    _ => self.objects[object].expected.difference(start as usize, seen).is_none(),
                };
                assert!(
                    there,
                    "{name}: what it wrote to {} is not there",
                    self.objects[object].name
                );
                self.tally("writes before a signal seen while they were under way", under_way);
            }
        }
    }

    /// Whether a slot is that put's still: no other signal behind it was taken.
    fn is_of(&self, board: usize, slot: usize, call: u64) -> bool {
        let put = self.boards[board].slots[slot].put.as_ref();
        put.is_some_and(|put| put.call == call && put.window.is_some())
    }

    /// The slot is its owner's, who does something with it.
    fn hand_over(&mut self, board: usize, slot: usize) {
        let node = self.nodes[self.boards[board].node].id;
        let length = self.boards[board].slots[slot].bytes.len();
        let span = self.slot_span(board, slot, length as u64);
        let place = &mut self.boards[board].slots[slot];
        let put = place.put.as_mut().expect("something was put there");
        let window = put.window.take().expect("it was not handed over before");
        place.put.take_if(|put| put.ended.is_some());
        self.kernel.close_window(node, window);
        self.random.fill(&mut place.bytes);
        self.kernel.bytes_mut(node, span).copy_from_slice(&place.bytes);
    }

    /// What boards of clients that live must be like at the end, and what waits must find there.
    pub(super) fn judge_boards(&mut self) {
        for board in 0..self.boards.len() {
            let runs = self.clients[board].state == ClientState::Running;
            let object = self.boards[board].object;
            if !runs || self.is_board_gone(board) || !self.has_open(board, object) {
                continue;
            }
            self.judge_words(board);
            for slot in 0..self.boards[board].slots.len() {
                // A put whose end nobody was told may be there, or not.
                let put = self.boards[board].slots[slot].put.as_ref();
                if put
                    .is_none_or(|put| put.window.is_none() || matches!(put.ended, Some((true, _))))
                {
                    self.judge_slot(board, slot, "at the end");
                }
            }
            self.judge_notifications(board);
        }
    }

    fn judge_words(&mut self, board: usize) {
        let Board { node, segment, .. } = self.boards[board];
        let word = |world: &Self, offset| {
            let span = Span { segment, offset, length: Update::BYTES as u32 };
            let bytes = world.kernel.bytes(world.nodes[node].id, span);
            u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
        };
        for counter in 0..COUNTERS {
            let value = word(self, counter as u64 * Update::BYTES);
            if let Err(fault) = self.boards[board].counters[counter].judge(value) {
                panic!("counter {counter} of board {board} at the end: {fault}");
            }
        }
        let value = word(self, CHAIN_AT);
        if let Err(fault) = self.boards[board].chain.judge(value) {
            panic!("the word that is swapped of board {board} at the end: {fault}");
        }
    }

    fn judge_notifications(&mut self, board: usize) {
        for id in 0..SEMAPHORES {
            let due = self.boards[board].semaphores[id as usize].due();
            if due > 0 {
                let end = self.wait_on_board(board, Note::Semaphore(id), due);
                assert_eq!(end, Status::Ok, "{due} notifications {id} of board {board} are due");
            }
            let count = self.boards[board].semaphores[id as usize].too_many();
            let end = self.wait_on_board(board, Note::Semaphore(id), count);
            assert_ne!(end, Status::Ok, "notifications {id} of board {board}: {count} too many");
        }
        let signals: Vec<u32> = self.boards[board].signals.keys().copied().collect();
        let mut probes = PROBES;
        for id in signals {
            let Signal { sender, call, taken, .. } = self.boards[board].signals[&id];
            let end = self.finish_of(sender, call);
            let due = end.is_some_and(|end| end.status == Status::Ok);
            if taken && probes > 0 {
                probes -= 1;
                let end = self.wait_on_board(board, Note::Of(id), 1);
                assert_ne!(end, Status::Ok, "signal {id} was raised twice");
            } else if !taken && due {
                let end = self.wait_on_board(board, Note::Of(id), 1);
                assert_eq!(end, Status::Ok, "signal {id} of board {board} is due");
            }
        }
    }

    fn wait_on_board(&mut self, board: usize, note: Note, count: u64) -> Status {
        let call = Call::OneSided(OneSided::Wait { note, count });
        let deadline = Nanos::from_millis(10);
        let call = self.call(board, call, Class::Latency, Some(deadline));
        let end = self.wait_within(board, call, Nanos::from_millis(1_000));
        end.expect("waits end at their deadlines").status
    }
}
