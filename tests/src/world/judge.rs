//! What a completion, a watermark or a drained session must look like.

use std::collections::BTreeMap;

use piped_core::io::Span;
use piped_core::limits::WAYS_BYTES_MIN;
use piped_core::request::{BufferState, Completion, Origin, Progress, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::{
    Client, ClientState, Effect, InFlight, LockEnd, Object, ObjectKind, World, calls, naming,
};

/// Later than that after its deadline no request may be.
const SLACK: Nanos = Nanos::from_millis(1);

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish {
    /// The status of the request.
    pub status: Status,
    /// The contiguous bytes that were done.
    pub bytes: u64,
    /// Whether the buffer was kept.
    pub buffer: BufferState,
    /// When, in the world's time.
    pub at: Nanos,
    /// How long it took.
    pub took: Nanos,
}

impl World {
    /// How a call ended, if it did.
    #[must_use]
    pub fn finish_of(&self, client: usize, call: u64) -> Option<Finish> {
        self.clients[client].finishes.get(&call).copied()
    }

    /// How far a call has come by its watermark.
    #[must_use]
    pub fn watermark(&self, client: usize, call: u64) -> u64 {
        self.clients[client].calls.get(&call).map_or(0, |call| call.watermark)
    }

    /// Wait so long for a call's end.
    pub(super) fn wait_within(&mut self, client: usize, call: u64, limit: Nanos) -> Option<Finish> {
        self.run_until(limit, |world| world.finish_of(client, call).is_some());
        self.finish_of(client, call)
    }

    /// Wait for a call's end.
    ///
    /// # Panics
    /// If there is none by its deadline.
    pub fn wait(&mut self, client: usize, call: u64) -> Finish {
        let limit = self.options.deadline + self.options.deadline;
        self.run_until(limit, |world| world.finish_of(client, call).is_some());
        self.finish_of(client, call)
            .unwrap_or_else(|| panic!("call {call} of client {client} did not end within {limit}"))
    }

    /// Buffers given back after they were held.
    #[must_use]
    pub fn released(&self, client: usize) -> u64 {
        self.clients[client].released
    }

    /// Whether the client's session is over and its memory was given back.
    #[must_use]
    pub fn is_gone(&self, client: usize) -> bool {
        self.clients[client].state == ClientState::Gone
    }

    /// Bytes known at the end are there.
    pub(super) fn judge_contents(&self) {
        for object in self.objects.iter().filter(|object| !object.gone) {
            let content = match object.kind {
                ObjectKind::File(_) | ObjectKind::Region { .. } => self.content_of(object),
                ObjectKind::Channel { .. }
                | ObjectKind::Board { .. }
                | ObjectKind::Directory { .. } => continue,
            };
            let length = object.expected.length();
            assert!(
                (length.start..=length.end).contains(&(content.len() as u64)),
                "{}: has {} bytes at the end, expected {length:?}",
                object.name,
                content.len()
            );
            if let Some(wrong) = object.expected.difference(0, content) {
                panic!("{}: wrong content at the end: {wrong:?}", object.name);
            }
        }
    }

    /// The bytes of a file or region.
    pub(super) fn content_of(&self, object: &Object) -> &[u8] {
        match object.kind {
            ObjectKind::File(inode) => self.kernel.file_content(inode),
            ObjectKind::Region { segment, length, .. }
            | ObjectKind::Board { segment, length, .. } => {
                let span = Span { segment, offset: 0, length: length as u32 };
                self.kernel.bytes(self.nodes[object.node].id, span)
            }
            ObjectKind::Channel { .. } | ObjectKind::Directory { .. } => &[],
        }
    }

    pub(super) fn judge_completion(&mut self, node: usize, completion: Completion) {
        let id = self.nodes[node].id;
        self.kernel.note(|| format!("{id:?} -> {completion:?}"));
        match completion {
            Completion::Finished { origin, status, bytes, value, buffer } => {
                self.judge_finished(node, origin, status, (bytes, value), buffer);
            }
            Completion::Released { origin } => {
                let Some(client) = self.client_of(node, origin) else { return };
                let call = origin.user_data;
                let flight = self.clients[client].calls.remove(&call);
                let flight = flight.filter(|flight| flight.held).unwrap_or_else(|| {
                    panic!("call {call} of client {client} gives back a buffer it does not hold")
                });
                self.clients[client].released += 1;
                self.give_back(client, call, &flight);
            }
        }
    }

    pub(super) fn judge_progress(&mut self, node: usize, progress: Progress) {
        let Some(client) = self.client_of(node, progress.origin) else { return };
        let call = progress.origin.user_data;
        let Some(mut flight) = self.clients[client].calls.remove(&call) else {
            panic!("progress of call {call} of client {client}, which is not in flight");
        };
        assert!(!flight.held, "progress of call {call} of client {client} after its end");
        self.raise(client, call, &mut flight, progress.bytes);
        self.clients[client].calls.insert(call, flight);
    }

    /// A session's last sign of life.
    pub(super) fn judge_drained(&mut self, client: usize) {
        let place = &self.clients[client];
        assert!(
            matches!(place.state, ClientState::Closing(_)),
            "the session of client {client} drained, which is {:?}",
            place.state
        );
        let node = place.node;
        let left = self.kernel.segments(self.nodes[node].id);
        for segment in std::iter::once(&place.arena).chain(&place.region_segments) {
            assert!(
                !left.contains(segment),
                "client {client} drained, but its {segment:?} was not released"
            );
        }
        let session = place.session;
        if let Some(control) = self.controls.control_mut(node) {
            control.leave_session(session);
        }
        self.leave(client);
    }

    fn judge_finished(
        &mut self,
        node: usize,
        origin: Origin,
        status: Status,
        (bytes, value): (u64, u64),
        buffer: BufferState,
    ) {
        let Some(client) = self.client_of(node, origin) else { return };
        let (now, call) = (self.kernel.now(), origin.user_data);
        let Some(mut flight) = self.clients[client].calls.remove(&call) else {
            panic!("call {call} of client {client} ends with {status:?}, but is not in flight");
        };
        let name = format!("call {call} of client {client} ({:?})", flight.verb);
        assert!(!flight.held, "{name} ends twice");
        assert_eq!((origin.queue, origin.slot), (flight.queue, flight.slot), "{name}: origin");
        let due = flight.submitted + flight.deadline;
        let slack = SLACK + self.options.busy_max;
        let in_time = now <= due + slack || self.clocks_differ;
        assert!(in_time, "{name} ends {} after its deadline", now.since(due));
        // A thread that a dial keeps busy is ahead of the world.
        let there = now.max(self.kernel.busy_until(self.nodes[node].id));
        let allowed = self.allows(&flight, status, there >= due)
            || status == Status::OutcomeUnknown
                && is_in_doubt(&self.clients[client], call, &flight)
            || calls::answers(self, &flight, status);
        assert!(allowed, "{name} ends with {status:?} after {}", now.since(flight.submitted));
        note_notification(&mut self.clients[client], call, &flight, status);
        assert!(bytes <= flight.length, "{name} has done {bytes} of {} bytes", flight.length);
        assert!(
            bytes >= flight.watermark,
            "{name} ends with {bytes} bytes, its watermark was {}",
            flight.watermark
        );
        if flight.fence && status == Status::Ok {
            self.judge_order(client, call, &flight, &name);
        }
        match (&flight.effect, flight.buffer) {
            (&Effect::Send { number }, _) => self.messages.end((client, number), status),
            (&Effect::Receive { object, number }, Some(buffer)) => {
                let got = (buffer, bytes, value);
                self.judge_received(client, (object, number), status, got, &name);
            }
            _ => {}
        }
        self.judge_rights(client, &flight, (status, bytes), &name);
        self.judge_effect(client, call, &mut flight, status, bytes, &name);
        self.judge_one_sided(call, &flight.effect, (status, value), &name);
        self.tally(status_name(status), 1);
        if self.options.two_ways && flight.length >= WAYS_BYTES_MIN {
            let last = self.shard(node).explain(None);
            let is_divided = last.is_some_and(|it| it.route.contains("2 lanes"));
            self.tally("moved two ways", is_divided.into());
            let shards = self.nodes.iter().filter_map(|node| node.shard.as_ref());
            let lasts = shards.filter_map(|shard| shard.explain(None));
            let striped = lasts.filter(|it| it.route.contains("page cache")).count();
            self.tally("from the page cache and the disk", striped as u64);
        }
        if status != Status::Ok && flight.watermark > 0 {
            self.tally("failed with a part done", 1);
        }
        let took = now.since(flight.submitted);
        self.clients[client].finishes.insert(call, Finish { status, bytes, buffer, at: now, took });
        self.unlock(client, call, status == Status::Ok);
        match buffer {
            BufferState::Returned => self.give_back(client, call, &flight),
            BufferState::Held => {
                // A copy or a sync has no buffer; held then means that it may still take effect.
                flight.held = true;
                self.clients[client].calls.insert(call, flight);
            }
        }
    }

    /// What was asked before a fence is over when something behind it is.
    fn judge_order(&mut self, client: usize, call: u64, flight: &InFlight, name: &str) {
        let Some(node) = flight.node else { return };
        let mut before = self.clients[client].calls.range(..call);
        let left = before.find(|(_, it)| it.node == Some(node) && it.queue == flight.queue);
        assert!(left.is_none(), "{name} ends before {left:?}, which its queue asked for earlier");
        self.tally("ended behind a fence", 1);
    }

    fn judge_effect(
        &mut self,
        client: usize,
        call: u64,
        flight: &mut InFlight,
        status: Status,
        bytes: u64,
        name: &str,
    ) {
        match &mut flight.effect {
            Effect::Nothing
            | Effect::Send { .. }
            | Effect::Receive { .. }
            | Effect::Raise(_)
            | Effect::Wait { .. }
            | Effect::Add { .. }
            | Effect::Swap { .. } => {}
            Effect::Told(_) | Effect::Names(_) => {
                let (node, span) = (self.nodes[self.clients[client].node].id, flight.buffer);
                let span = span.expect("a call has one").part(0, bytes as u32);
                let answer = self.kernel.bytes(node, span).to_vec();
                match &flight.effect {
                    Effect::Told(told) => calls::judge(self, told, status, &answer, name),
                    Effect::Names(asked) => naming::judge(self, asked, status, &answer, name),
                    _ => unreachable!("it is one of the two"),
                }
            }
            Effect::Pieces(scattered) => {
                let (node, span) = (self.nodes[self.clients[client].node].id, flight.buffer);
                let buffer = self.kernel.bytes(node, span.expect("it has one")).to_vec();
                let scattered = std::mem::take(scattered);
                self.judge_pieces(&scattered, (status, bytes), &buffer, name);
            }
            &mut Effect::Read { object, start, shortest, crashes } => {
                let expected = &self.objects[object].expected;
                let is_lost = self.locking.is_lost((object, client), crashes);
                let is_after = expected.crashes == crashes && bytes > 0;
                assert!(!is_lost || !is_after, "{name} reads where its lock was lost");
                if status == Status::Ok && expected.crashes == crashes {
                    let longest = expected.length().end.saturating_sub(start).min(flight.length);
                    assert!(
                        (shortest..=longest).contains(&bytes),
                        "{name} reads {bytes} bytes, the file has {shortest} to {longest}"
                    );
                }
                self.raise(client, call, flight, bytes);
            }
            Effect::Write { object, start, crashes, data, known, durable, shortest, source } => {
                // A crash may have cut off, or changed, what a copy was to read.
                let cut =
                    source.is_some_and(|(from, then)| self.objects[from].expected.crashes != then);
                let expected = &mut self.objects[*object].expected;
                let ok = status == Status::Ok;
                let is_lost = self.locking.is_lost((*object, client), *crashes);
                let is_after = ok && expected.crashes == *crashes && bytes > 0;
                assert!(!is_lost || !is_after, "{name} writes where its lock was lost");
                if ok && !cut {
                    assert!(bytes >= *shortest, "{name} wrote {bytes} bytes, not {shortest}");
                }
                // What ended before a crash is told after it: only durable words count.
                if *crashes == expected.crashes || (ok && *durable) {
                    let count = bytes as usize;
                    // Nor is it known then what the copy has read.
                    if cut && let Some(known) = known {
                        known.fill(false);
                    }
                    let known = known.as_ref().map(|known| &known[..count]);
                    expected.end_write(*start as usize, &data[..count], known, ok && *durable);
                }
            }
            &mut Effect::Sync { object, sync } => {
                let honest = self.objects[object].expected.end_sync(sync, status == Status::Ok);
                assert!(honest, "{name} says Ok after a crash lost writes acknowledged before it");
            }
        }
    }

    /// The bytes below a watermark: equal to what is expected, and final from now on.
    fn raise(&mut self, client: usize, call: u64, flight: &mut InFlight, bytes: u64) {
        let name = format!("call {call} of client {client} ({:?})", flight.verb);
        assert!(
            bytes >= flight.watermark && bytes <= flight.length,
            "{name}: the watermark goes from {} to {bytes} of {}",
            flight.watermark,
            flight.length
        );
        flight.watermark = bytes;
        let (Effect::Read { object, start, crashes, .. }, Some(buffer), Some(window)) =
            (&flight.effect, flight.buffer, flight.window)
        else {
            return;
        };
        let node = self.nodes[self.clients[client].node].id;
        self.kernel.raise_window(node, window, bytes);
        let now = self.kernel.bytes(node, Span { length: bytes as u32, ..buffer });
        let before = flight.seen.len();
        assert!(now[..before] == flight.seen, "{name}: bytes below the watermark changed");
        flight.seen.extend_from_slice(&now[before..]);
        let object = &self.objects[*object];
        if object.expected.crashes == *crashes
            && let Some(wrong) = object.expected.difference(*start as usize, &flight.seen)
        {
            panic!("{name} of {}: wrong data below the watermark {bytes}: {wrong:?}", object.name);
        }
    }

    /// Whether a call may end so.
    fn allows(&self, flight: &InFlight, status: Status, due: bool) -> bool {
        let (faults, options) = (&self.options.faults, &self.options);
        let crashed = options.crashes > 0 || self.disturbed || options.operators.is_some();
        // Garbage ends a lane, too.
        let lossy = crashed
            || faults.reset > 0.0
            || faults.corrupt > 0.0
            || faults.garbage > 0.0
            || options.connect_fails > 0.0;
        match status {
            _ if flight.raw => true,
            Status::Ok => true,
            Status::NotFound if matches!(flight.verb, Verb::Cancel { .. }) => true,
            Status::DeadlineExceeded => due || self.clocks_differ,
            // What a clock that jumped takes for a lane that stands still is lost.
            Status::PeerLost if self.clocks_differ => true,
            Status::Cancelled => flight.cancelled,
            Status::Io => faults.disk_error > 0.0 || faults.sync_error > 0.0,
            // More receives than a session may have.
            Status::WouldBlock
                if matches!(flight.verb, Verb::Receive { .. } | Verb::Wait { .. }) =>
            {
                options.limit_changes > 0
            }
            // The table of a put that finds no room: a lower limit is told with the next credit.
            Status::WouldBlock if matches!(flight.verb, Verb::Vector { reads: false, .. }) => {
                options.limit_changes > 0 || options.stalls > 0
            }
            // A peer's calls have a part of staging.
            Status::WouldBlock if matches!(flight.verb, Verb::Call { .. }) => {
                options.limit_changes > 0 || options.stalls > 0
            }
            Status::WouldBlock => options.stalls > 0,
            Status::NoSpace => options.spare.is_some(),
            // Garbage in a payload is that, too.
            Status::Corrupt => faults.corrupt > 0.0 || faults.garbage > 0.0,
            // A hasty request may be over before the lanes are first up; and one whose lane is
            // dialled again into silence is over before that is noticed.
            Status::PeerLost => {
                lossy || (due && (flight.deadline < options.deadline || faults.half_open > 0.0))
            }
            Status::OutcomeUnknown => crashed,
            Status::TooLong => matches!(flight.verb, Verb::Receive { .. }),
            Status::Gone | Status::NotFound | Status::BadHandle => crashed || options.deaths > 0,
            _ => false,
        }
    }

    fn give_back(&mut self, client: usize, call: u64, flight: &InFlight) {
        let node = self.nodes[self.clients[client].node].id;
        if let (Some(window), Some(piece), Some(buffer)) =
            (flight.window, flight.piece, flight.buffer)
        {
            self.kernel.close_window(node, window);
            let below = Span { length: flight.seen.len() as u32, ..buffer };
            let kept = self.kernel.bytes(node, below) == flight.seen;
            assert!(kept, "call {call} of client {client}: bytes below the watermark changed");
            self.clients[client].pieces.push(piece);
            if let Some((table, window)) = flight.table {
                self.kernel.close_window(node, window);
                self.clients[client].pieces.push(table);
            }
        }
    }

    /// Locks of a call fall; those of a write that failed only after a while, because the peer may
    /// still be at it.
    fn unlock(&mut self, client: usize, call: u64, ok: bool) {
        let until = self.kernel.now() + self.options.quarantine;
        let locks = &mut self.clients[client].locks;
        if !ok {
            for lock in locks.iter_mut().filter(|lock| lock.writes) {
                if lock.until == LockEnd::Call(call) {
                    lock.until = LockEnd::Time(until);
                }
            }
        }
        locks.retain(|lock| lock.until != LockEnd::Call(call));
    }

    /// The client of an origin; `None` if it has gone and nobody listens.
    fn client_of(&self, node: usize, origin: Origin) -> Option<usize> {
        let client = self
            .clients
            .iter()
            .position(|client| client.node == node && client.session == origin.session)
            .unwrap_or_else(|| panic!("{origin:?}: no such session was ever on this node"));
        match self.clients[client].state {
            ClientState::Running => Some(client),
            ClientState::Closing(_) => None,
            ClientState::Gone => panic!("{origin:?}: the session has drained and still speaks"),
        }
    }
}

/// Notes a notification that was given up, or done.
fn note_notification(client: &mut Client, call: u64, flight: &InFlight, status: Status) {
    if !matches!(flight.verb, Verb::Notify { .. } | Verb::Write { notify: Some(_), .. }) {
        return;
    }
    let last = match status {
        Status::DeadlineExceeded | Status::Cancelled | Status::PeerLost => &mut client.given_up,
        // The exporter is another one since, which nobody can ask.
        Status::BadHandle | Status::Gone | Status::NotFound => &mut client.given_up,
        Status::Ok => &mut client.notified,
        _ => return,
    };
    let last = last.entry(flight.queue.0).or_insert(call);
    *last = call.max(*last);
}

/// Whether a put may not be sent again: a notification behind it was given up, or was done and the
/// put is a durable one.
fn is_in_doubt(client: &Client, call: u64, flight: &InFlight) -> bool {
    let Verb::Write { durable, .. } = flight.verb else { return false };
    let behind =
        |last: &BTreeMap<u32, u64>| last.get(&flight.queue.0).is_some_and(|&later| later > call);
    behind(&client.given_up) || durable && behind(&client.notified)
}

const fn status_name(status: Status) -> &'static str {
    match status {
        Status::Ok => "ended Ok",
        Status::DeadlineExceeded => "ended DeadlineExceeded",
        Status::Cancelled => "ended Cancelled",
        Status::Io => "ended Io",
        Status::WouldBlock => "ended WouldBlock",
        Status::NoSpace => "ended NoSpace",
        Status::PeerLost => "ended PeerLost",
        Status::Gone => "ended Gone",
        Status::Corrupt => "ended Corrupt",
        Status::OutcomeUnknown => "ended OutcomeUnknown",
        Status::NotFound => "ended NotFound",
        Status::BadHandle => "ended BadHandle",
        _ => "ended otherwise",
    }
}
