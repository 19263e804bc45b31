//! Requests of a session with queues on several shards: what has one place only is at its home.
//!
//! ```text
//!   queue ─► its shard ─┬─► files and regions of this node
//!                       └─► home ─► handles at peers, receives, waits
//! ```
//!
//! A queue's shard does what needs nothing but memory and files: each has those. State that a
//! handle at a peer has (what no sync has covered, locks, the order of puts and messages) is one
//! shard's, and so are a channel and the notifications of a region.

use piped_core::ids::{QueueId, SessionId};
use piped_core::io::Io;
use piped_core::limits;
use piped_core::request::{BufferState, Completion, Origin, Progress, Request, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::Operation;

use crate::command::Output;
use crate::relay::{Relay, Said};
use crate::shard::Shard;
use crate::shard::clients::{Ask, AskKind};
use crate::shard::keys::AwayKey;
use crate::shard::requests::{Transfer, Waiter};

/// The most relays that wait for another shard when it is still told of progress: the end tells all
/// of that.
const RELAYS_BESIDE_PROGRESS: usize = 64;

impl Shard {
    /// The shard that a client's request is for, if it is not this one.
    pub(in crate::shard) fn home_for(&self, session: SessionId, verb: Verb) -> Option<u16> {
        if self.cx.relays.is_alone() {
            return None;
        }
        let home = self.clients.home(session).filter(|home| *home != self.cx.relays.own())?;
        let there = match verb {
            Verb::Receive { .. } | Verb::Wait { .. } => true,
            Verb::Copy { from, to, .. } => {
                [from, to].iter().any(|handle| self.handles.is_at_home(session, *handle))
            }
            Verb::Read { handle, .. }
            | Verb::Write { handle, .. }
            | Verb::Vector { handle, .. }
            | Verb::Update { handle, .. }
            | Verb::Notify { handle, .. }
            | Verb::Flush { handle }
            | Verb::Sync { handle }
            | Verb::Call { handle, .. }
            | Verb::Send { handle, .. } => self.handles.is_at_home(session, handle),
            Verb::Nop | Verb::Cancel { .. } | Verb::Unsupported => false,
        };
        there.then_some(home)
    }

    /// A request goes to the home of its session.
    pub(in crate::shard) fn ask_home(&mut self, home: u16, origin: Origin, request: Request) {
        let Origin { session, queue, .. } = origin;
        let waits = AskKind::of(request.verb) == AskKind::Waits;
        let asked = self.clients.may_ask(session).and_then(|()| {
            self.away.enter(home, origin, waits).ok_or(Status::WouldBlock).map(AwayKey::to_bits)
        });
        match asked {
            Ok(asked) => {
                self.cx.relays.tell(home, Relay::Ask { asked, session, queue, request });
            }
            Err(status) => self.complete_at_once(Waiter::Client(origin), status),
        }
    }

    /// Gives up on a request that the home of the session has. `false`: there is none.
    pub(in crate::shard) fn recall(&mut self, canceller: Origin, target: u64) -> bool {
        let found = self.away.recall(canceller, target);
        if let Some(Some((home, key))) = found {
            self.cx.relays.tell(home, Relay::Recall { asked: key.to_bits() });
        }
        found.is_some()
    }

    /// A request of a session that has its home here, by a queue of another shard.
    pub(in crate::shard) fn handle_ask<I: Io>(
        &mut self,
        (shard, asked): (u16, u64),
        (session, queue): (SessionId, QueueId),
        request: Request,
        io: &mut I,
    ) {
        let now = io.now();
        let times = (now, now + self.time_allowed(&request));
        let ask = Ask::new((shard, asked), (session, queue), request, times);
        if self.asks.enter(ask, self.clients.user(session)) {
            self.begin_asks(io);
        } else {
            self.complete_at_once(Waiter::Queue { shard, asked }, Status::WouldBlock);
        }
    }

    /// Begins what other shards have asked for, as far as there are places for that: as much as
    /// one turn may.
    pub(in crate::shard) fn begin_asks<I: Io>(&mut self, io: &mut I) {
        for _ in 0..limits::WORK_PER_TURN {
            let Some(ask) = self.asks.pop() else { return };
            let ((shard, asked), (session, queue), request, came) = ask.into_parts();
            let (waiter, line) = (Waiter::Queue { shard, asked }, (shard, queue));
            if !self.begin((waiter, session, line), request, came, io) {
                self.asks.end(session, AskKind::of(request.verb));
            }
        }
    }

    /// Ends what other shards have asked for and has not begun by its deadline.
    pub(in crate::shard) fn expire_asks(&mut self, now: Nanos) {
        while let Some(ask) = self.asks.take_due(now) {
            let ((shard, asked), ..) = ask.into_parts();
            self.complete_at_once(Waiter::Queue { shard, asked }, Status::DeadlineExceeded);
        }
    }

    /// A client is told of the end of its transfer: one that another shard asked for has no place
    /// any more, whatever still has its buffer.
    pub(in crate::shard) fn leave_asks(
        &mut self,
        waiter: Waiter,
        session: SessionId,
        operation: Operation,
    ) {
        if let Waiter::Queue { .. } = waiter {
            self.asks.end(session, AskKind::of_operation(operation));
        }
    }

    /// A client gives up on what another shard asked for it.
    pub(in crate::shard) fn handle_recall<I: Io>(&mut self, shard: u16, asked: u64, io: &mut I) {
        let waiter = Waiter::Queue { shard, asked };
        if self.asks.recall((shard, asked)).is_some() {
            return self.complete_at_once(waiter, Status::Cancelled);
        }
        let is_it = |it: &Transfer| it.waiter == waiter && it.status.is_none();
        // If there is none, the answer is under way.
        if let Some(key) = self.transfers.next_from(&mut 0, is_it) {
            self.give_up(key, Status::Cancelled, io);
        }
    }

    /// The home of a session says what became of a request.
    pub(in crate::shard) fn handle_said(&mut self, key: AwayKey, said: Said) {
        let origin = match said {
            Said::Finished { buffer: BufferState::Held, .. } => self.away.hold(key),
            Said::Moved { .. } => self.away.origin(key),
            Said::Finished { .. } | Said::Released => self.away.leave(key),
        };
        if let Some(origin) = origin {
            self.cx.outputs.push_back(output(origin, said));
        }
    }

    /// Tells a client what became of its request, by the shard that serves its queue.
    pub(in crate::shard) fn tell_client(&mut self, waiter: Waiter, said: Said) {
        match waiter {
            Waiter::Client(origin) => self.cx.outputs.push_back(output(origin, said)),
            Waiter::Queue { shard, .. }
                if matches!(said, Said::Moved { .. })
                    && self.cx.relays.waiting(shard) > RELAYS_BESIDE_PROGRESS => {}
            Waiter::Queue { shard, asked } => {
                self.cx.relays.tell(shard, Relay::Answer { asked, said });
            }
            Waiter::Copy { .. } | Waiter::Vector { .. } | Waiter::Shard { .. } | Waiter::Nobody => {
            }
        }
    }
}

fn output(origin: Origin, said: Said) -> Output {
    match said {
        Said::Finished { status, bytes, value, buffer } => {
            Output::Completion(Completion::Finished { origin, status, bytes, value, buffer })
        }
        Said::Released => Output::Completion(Completion::Released { origin }),
        Said::Moved { bytes, landed } => Output::Progress(Progress { origin, bytes, landed }),
    }
}
