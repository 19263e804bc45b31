//! A client's request as it comes: refused, done at once, or admitted as a transfer.

use piped_report::tally::{HeldBy, Operation};

use piped_core::ids::{PeerId, SessionId};
use piped_core::io::Io;
use piped_core::limits;
use piped_core::request::{Origin, Request, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;

use crate::relay::Said;
use crate::shard::clients::{Line, weight};
use crate::shard::cx::Cx;
use crate::shard::fair::Party;
use crate::shard::flows::plan::facts;
use crate::shard::keys::{Subject, TransferKey};
use crate::shard::requests::{Body, Start, Transfer, Waiter};
use crate::shard::sched::Work;
use crate::shard::watch::Kind;
use crate::shard::{Due, Shard};

/// The client of a request: how it is told, its session, and the queue that it asked by.
type Asker = (Waiter, SessionId, Line);

impl Shard {
    /// Takes a request from a client's ring. Its end comes out of [`Shard::poll_output`].
    pub fn submit<I: Io>(&mut self, origin: Origin, request: Request, now: Nanos, io: &mut I) {
        self.due = Due::Now;
        self.cx.watch.counters.requests += 1;
        let (waiter, session) = (Waiter::Client(origin), origin.session);
        if let Verb::Cancel { target } = request.verb {
            let status = self.cancel_by_client(origin, target, io);
            return self.complete_at_once(waiter, status);
        }
        if let Some(home) = self.home_for(session, request.verb) {
            return self.ask_home(home, origin, request);
        }
        let line = (self.cx.relays.own(), origin.queue);
        self.begin((waiter, session, line), request, now, io);
    }

    /// Begins what a client asks for of this shard. `false`: no transfer stands for it.
    pub(in crate::shard) fn begin<I: Io>(
        &mut self,
        asker: Asker,
        request: Request,
        now: Nanos,
        io: &mut I,
    ) -> bool {
        let (waiter, session, line) = asker;
        let verb = self.by_one_replica(session, request.verb, request.class, now);
        let request = Request { verb, ..request };
        let done = match request.verb {
            Verb::Nop => Err(Status::Ok),
            Verb::Unsupported => Err(Status::Unsupported),
            _ => self.admit(asker, request, now),
        };
        let (transfer, bytes) = match done {
            Ok(admitted) => admitted,
            Err(status) => {
                self.complete_at_once(waiter, status);
                return false;
            }
        };
        if matches!(request.verb, Verb::Receive { .. } | Verb::Wait { .. }) {
            // It does nothing until there is a message, which must not wait for it to end.
            self.cx.sched.make_ready(Work::Transfer(transfer));
            return true;
        }
        if let Some(node) = self.ordered(session, request.verb) {
            self.clients.enter_order(transfer, (line, node));
        }
        if let Some(outbox) = self.outbox(transfer) {
            outbox.enter(transfer);
        }
        if let Some(known) = self.transfers.get(transfer) {
            let spots = facts::spots_of_transfer(&known.body, &self.bodies, &self.cx.driver);
            let kind = Kind { class: known.class, length: known.length };
            let who = (Party::Client(session), kind);
            self.cx.watch.enter(Subject::Transfer(transfer), spots, who, now);
        }
        let Cx { limits, sched, .. } = &mut self.cx;
        self.clients.ask(transfer, bytes, limits, sched);
        if self.clients.waits_for_limit(transfer) {
            if request.no_wait {
                self.decide(transfer, Status::WouldBlock, io);
            } else {
                self.cx.waited_for_limit += 1;
                self.cx.watch.hold(Work::Transfer(transfer), HeldBy::Limit);
            }
        }
        true
    }

    /// Ends a request that no transfer stands for.
    pub(in crate::shard) fn complete_at_once(&mut self, waiter: Waiter, status: Status) {
        self.cx.watch.end_at_once(status);
        self.tell_client(waiter, Said::ended_at_once(status));
    }

    fn cancel_by_client<I: Io>(&mut self, origin: Origin, target: u64, io: &mut I) -> Status {
        let wanted = |t: &Transfer| {
            matches!(t.waiter, Waiter::Client(o)
                if o.session == origin.session && o.queue == origin.queue && o.user_data == target)
                && t.status.is_none()
        };
        let Some(key) = self.transfers.next_from(&mut 0, wanted) else {
            return if self.recall(origin, target) { Status::Ok } else { Status::NotFound };
        };
        self.give_up(key, Status::Cancelled, io);
        Status::Ok
    }

    /// Checks a request against the session and makes its transfer, which counts as so many bytes.
    fn admit(
        &mut self,
        asker: Asker,
        request: Request,
        now: Nanos,
    ) -> Result<(TransferKey, u64), Status> {
        let (waiter, session, _) = asker;
        self.clients.may_ask(session)?;
        let (kind, handles, length, body) =
            self.resolve(session, (request.verb, request.class), request.no_wait, now)?;
        let body = match body {
            Body::Remote(remote) => self.by_ways((kind, request.class, length), remote, now),
            body => body,
        };
        let allowed = self.time_allowed(&request);
        let start = Start {
            waiter,
            session,
            handles,
            kind,
            class: request.class,
            deadline: now + allowed,
            length,
            body,
        };
        let bytes = weight(length, kind == Operation::Copy);
        let key = self.start_transfer(start, now).ok_or(Status::WouldBlock)?;
        let fence = request.fence || matches!(request.verb, Verb::Flush { .. });
        if let Some(transfer) = self.transfers.get_mut(key).filter(|_| fence) {
            transfer.fence = true;
        }
        Ok((key, bytes))
    }

    /// How long a request may take.
    pub(in crate::shard) fn time_allowed(&self, request: &Request) -> Nanos {
        let allowed = request.deadline.unwrap_or(self.cx.config.deadline_default);
        allowed.min(limits::DEADLINE_MAX)
    }

    /// The node of a request that has its place among others of its queue; `None` inside is this
    /// one. Messages have an order of their own, and a copy belongs to two nodes.
    fn ordered(&self, session: SessionId, verb: Verb) -> Option<Option<PeerId>> {
        let handle = match verb {
            Verb::Read { handle, .. }
            | Verb::Write { handle, .. }
            | Verb::Vector { handle, .. }
            | Verb::Call { handle, .. }
            | Verb::Update { handle, .. }
            | Verb::Notify { handle, .. }
            | Verb::Flush { handle } => handle,
            _ => return None,
        };
        Some(self.handles.remote(session, handle).map(|remote| remote.peer))
    }

    /// Receives and waits that came by a session's queues of this shard and have not ended.
    #[must_use]
    pub fn waits_of(&self, session: SessionId) -> u32 {
        let here = self.clients.waits_of(session).saturating_sub(self.asks.waits_of(session));
        here + self.away.waits_of(session)
    }
}
