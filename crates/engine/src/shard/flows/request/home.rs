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
use piped_core::request::{Completion, Origin, Progress, Request, Verb};
use piped_core::status::Status;

use crate::command::Output;
use crate::relay::{Relay, Said};
use crate::shard::Shard;
use crate::shard::clients::Ask;
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
        let waits = waits(request.verb);
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

    /// Gives up on a request that the home of its session has. `false`: there is none.
    pub(in crate::shard) fn recall(&mut self, canceller: Origin, target: u64) -> bool {
        let Some((home, key)) = self.away.find(canceller, target) else { return false };
        self.cx.relays.tell(home, Relay::Recall { asked: key.to_bits() });
        true
    }

    /// A request of a session that has its home here, by a queue of another shard.
    pub(in crate::shard) fn handle_ask<I: Io>(
        &mut self,
        (shard, asked): (u16, u64),
        (session, queue): (SessionId, QueueId),
        request: Request,
        io: &mut I,
    ) {
        let ask = Ask::new((shard, asked), (session, queue), request, io.now());
        if !waits(request.verb) {
            self.asks.park(ask);
            self.begin_asks(io);
        } else if self.asks.enter_wait(session) {
            self.begin_ask(ask, io);
        } else {
            let waiter = Waiter::Queue { shard, asked };
            self.tell_client(waiter, Said::ended_at_once(Status::WouldBlock));
        }
    }

    /// Begins what other shards have asked for, as far as there are places for that.
    pub(in crate::shard) fn begin_asks<I: Io>(&mut self, io: &mut I) {
        while let Some(ask) = self.asks.pop() {
            self.begin_ask(ask, io);
        }
    }

    fn begin_ask<I: Io>(&mut self, ask: Ask, io: &mut I) {
        let ((shard, asked), (session, queue), request, came) = ask.into_parts();
        let (waiter, line) = (Waiter::Queue { shard, asked }, (shard, queue));
        if !self.begin((waiter, session, line), request, came, io) {
            self.asks.end(session, waits(request.verb));
        }
    }

    /// A client gives up on what another shard asked for it.
    pub(in crate::shard) fn handle_recall<I: Io>(&mut self, shard: u16, asked: u64, io: &mut I) {
        let waiter = Waiter::Queue { shard, asked };
        if self.asks.recall((shard, asked)).is_some() {
            return self.tell_client(waiter, Said::ended_at_once(Status::Cancelled));
        }
        let is_it = |it: &Transfer| it.waiter == waiter && it.status.is_none();
        // If there is none, the answer is under way.
        if let Some(key) = self.transfers.next_from(&mut 0, is_it) {
            self.give_up(key, Status::Cancelled, io);
        }
    }

    /// The home of a session says what became of a request.
    pub(in crate::shard) fn handle_said(&mut self, key: AwayKey, said: Said) {
        let origin = if said.is_last() { self.away.leave(key) } else { self.away.origin(key) };
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

/// Whether a request waits for others.
fn waits(verb: Verb) -> bool {
    matches!(verb, Verb::Receive { .. } | Verb::Wait { .. })
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
