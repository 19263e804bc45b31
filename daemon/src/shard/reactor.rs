//! The loop of a shard's thread.
//!
//! ```text
//!   rings ──► requests ─┐                        ┌─► completions ──► rings
//!   mailbox ► commands ─┼─► Shard ── drive ──► Io ├─► progress ─────► rings
//!   shards ─► relays ───┤                        ├─► relays ───────► other shards
//!   Io ─────► dones ────┘                        └─► events ───────► control thread
//! ```
//!
//! A turn does a bounded amount of each. It makes a system call only if there is something to
//! submit, or if the kernel says that it has something to hand over. After a turn without work the
//! thread spins, for as long as that pays. Then it tells the clients to ring, looks once more, and
//! sleeps in the kernel until a completion, a bell or the engine's next deadline.

use piped_control::journal::Lines;
use piped_core::ids::SessionId;
use piped_core::io::{Done, Io};
use piped_core::request::Origin;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event, Limits, Output};
use piped_engine::shard::Shard;
use piped_ring::{ClientFault, CompletionEntry, Spin, Spinner};
use rustix::thread::sched_yield;
use tokio::sync::mpsc;

use super::between::Between;
use super::message::{Inbox, Message, Notice};
use super::sessions::Sessions;
use super::solver::Solver;
use crate::client::reasons::{Eviction, Evictions};
use crate::client::request;
use crate::io::{self, UringError, UringIo, WatchId};
use crate::limits::{DIAL_SPIN, MESSAGES_PER_TURN, OPS_MAX};

mod answers;
mod memory;
mod opened;

/// A shard's thread: the engine, its driver and its clients.
pub(super) struct Reactor {
    index: usize,
    /// CPU that it stays on, and the NUMA node of that one.
    place: (Option<u32>, Option<u32>),
    io: UringIo,
    shard: Shard,
    sessions: Sessions,
    inbox: mpsc::Receiver<Message>,
    bell: WatchId,
    /// Whether the bell rang, or messages were left for the next turn.
    mail: bool,
    outbox: mpsc::UnboundedSender<(usize, Notice)>,
    solver: Solver,
    between: Between,
    spinner: Spinner,
    dones: Vec<Done>,
    faults: Vec<(SessionId, ClientFault)>,
    /// Time to give up on sessions that do not drain; set once the daemon stops.
    stop: Option<Nanos>,
    turns: u64,
    sleeps: u64,
    evictions: Evictions,
    /// Log lines about lanes for which there is no room.
    lines: Lines,
    /// Descriptors that were no requests, by the status they ended with.
    malformed: [u64; Status::ALL.len()],
}

/// Parts that a reactor is made of.
pub(super) struct Parts {
    pub(super) index: usize,
    pub(super) place: (Option<u32>, Option<u32>),
    pub(super) io: UringIo,
    pub(super) shard: Shard,
    pub(super) inbox: Inbox,
    pub(super) solver: Solver,
    pub(super) outbox: mpsc::UnboundedSender<(usize, Notice)>,
    pub(super) between: Between,
    pub(super) spin_ns: u64,
    pub(super) limits: Limits,
}

impl Reactor {
    pub(super) fn new(parts: Parts) -> Result<Self, UringError> {
        let Parts { index, place, mut io, shard, inbox, solver, .. } = parts;
        let Parts { outbox, between, spin_ns, limits, .. } = parts;
        let bell = io.watch(inbox.bell)?;
        // It only ends a sleep, because every turn looks at the queues.
        io.watch(between.bell().map_err(UringError::Setup)?)?;
        let retired = outbox.clone();
        io.retire_segments_to(move |segment| {
            // Without a control thread it is dropped here, which will do then.
            let _ = retired.send((index, Notice::Retired(segment)));
        });
        let mut reactor = Self {
            index,
            place,
            io,
            shard,
            sessions: Sessions::new(spin_ns),
            inbox: inbox.receiver,
            bell,
            mail: true,
            outbox,
            solver,
            between,
            spinner: Spinner::new(spin_ns),
            dones: Vec::with_capacity(OPS_MAX as usize),
            faults: Vec::new(),
            stop: None,
            turns: 0,
            sleeps: 0,
            evictions: Evictions::default(),
            lines: Lines::default(),
            malformed: [0; Status::ALL.len()],
        };
        reactor.engine(Command::SetLimits(limits));
        Ok(reactor)
    }

    /// Runs turns until the daemon stops.
    pub(super) fn run(mut self) -> Result<(), UringError> {
        while !self.is_over() {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), UringError> {
        let mut now = self.io.now();
        let mut busy = self.take_dones();
        if busy {
            // Post completions before anything new begins. A client on this CPU that was woken has
            // run by then, and its next requests begin in this turn.
            self.put_out();
            if self.publish() {
                now = self.io.now();
            }
        }
        busy |= self.take_mail();
        busy |= self.take_relays();
        busy |= self.take_requests(now);
        if busy || self.shard.is_due(now) {
            busy |= self.drive();
        }
        busy |= self.between.pass(&mut self.shard, &mut self.io);
        busy |= memory::tell_torn(self);
        busy |= self.io.poll_registration();
        // A call without completions may have moved much of a payload, which is no lost CPU.
        busy |= self.io.submit_soon(now)?;
        self.turns += 1;
        if busy || self.shard.is_due(now) {
            self.spinner.handle_work();
        } else if self.is_release_near() {
            std::hint::spin_loop();
        } else {
            match self.spinner.poll_idle(now.0) {
                Spin::Again => std::hint::spin_loop(),
                Spin::Offer => self.spinner.offer(|| self.io.now().0, sched_yield),
                Spin::Sleep => self.sleep()?,
            }
        }
        Ok(())
    }

    /// Drives the engine and publishes what ended. Returns whether there was any of it.
    fn drive(&mut self) -> bool {
        let is_through = self.shard.drive(&mut self.io);
        let busy = self.put_out();
        if self.publish() && is_through {
            // A client woken on this CPU has run meanwhile: its next requests leave with the same
            // call, unless a device waits for that call.
            let now = self.io.now();
            self.take_requests(now);
            self.shard.drive(&mut self.io);
            self.put_out();
            self.publish();
        }
        busy
    }

    /// Shows clients what ended, and wakes those that sleep. Returns whether there were any.
    fn publish(&mut self) -> bool {
        self.sessions.publish() && {
            self.spinner.handle_wake();
            true
        }
    }

    fn take_dones(&mut self) -> bool {
        self.dones.clear();
        let dones = &mut self.dones;
        self.io.reap(&mut |done| dones.push(done));
        for done in &self.dones {
            self.shard.handle_done(*done, &mut self.io);
        }
        for bell in self.io.take_woken() {
            // Bells of queues that do not rest only end a sleep: every turn looks at their rings.
            self.mail |= bell == self.bell;
            self.sessions.handle_bell(bell);
        }
        !self.dones.is_empty()
    }

    fn take_requests(&mut self, now: Nanos) -> bool {
        let Self { sessions, shard, io, faults, malformed, .. } = self;
        sessions.tally(|session| shard.waits_of(session));
        let taken = sessions.take(
            now,
            |taken| {
                let descriptor = &taken.descriptor;
                let (slot, user_data) = (descriptor.slot, descriptor.user_data);
                match request::parse(descriptor, taken.class) {
                    Ok(request) => {
                        let (session, queue) = (taken.session, taken.queue);
                        let origin = Origin { session, queue, slot, user_data };
                        shard.submit(origin, request, now, io);
                        None
                    }
                    Err(status) => {
                        malformed[status as usize] += 1;
                        Some(CompletionEntry::finished(user_data, status, 0))
                    }
                }
            },
            |session, fault| faults.push((session, fault)),
        );
        let busy = taken > 0 || !self.faults.is_empty();
        while let Some((session, fault)) = self.faults.pop() {
            self.evict(session, Eviction::from(&fault), fault.to_string());
        }
        busy
    }

    fn take_relays(&mut self) -> bool {
        self.between.take(&mut self.shard, &mut self.io)
    }

    fn put_out(&mut self) -> bool {
        let mut some = false;
        while let Some(output) = self.shard.poll_output() {
            some = true;
            match output {
                Output::Completion(completion) => {
                    if let Some(session) = self.sessions.complete(completion) {
                        let reason = "its completion ring is full although it has room by right";
                        self.evict(session, Eviction::CompletionsLost, reason.to_owned());
                    }
                }
                Output::Progress(progress) => self.sessions.set_progress(progress),
                Output::Event(event) => {
                    match event {
                        Event::SessionDrained { session } => self.sessions.forget(session),
                        Event::RegionDrained { region } => {
                            self.sessions.drop_foreign(region, &mut self.io);
                        }
                        _ => {}
                    }
                    self.tell(Notice::Event(event));
                }
                Output::Plan(question) => {
                    if let Err(declined) = self.solver.ask(question) {
                        self.engine(Command::Planned(Box::new(declined)));
                    }
                }
            }
        }
        some
    }

    fn sleep(&mut self) -> Result<(), UringError> {
        // Messages need no second look: a bell that rings from now on ends the wait.
        self.sessions.tally(|session| self.shard.waits_of(session));
        self.between.prepare_sleep();
        // What was told before the others knew that they have to ring.
        let told = self.take_relays();
        if self.sessions.prepare_sleep() && !told {
            self.sleeps += 1;
            let release =
                self.shard.next_release().map(|at| Nanos(at.0.saturating_sub(DIAL_SPIN.0)));
            let retry = self.between.retry_at(self.io.now());
            let until = [self.shard.poll_timeout(), self.stop, release, retry];
            let until = until.into_iter().flatten().min();
            self.io.wait(until)?;
        }
        self.between.finish_sleep();
        self.sessions.finish_sleep();
        self.spinner.handle_sleep();
        Ok(())
    }

    /// Whether a dial releases something so soon that a sleep would be too long.
    fn is_release_near(&mut self) -> bool {
        let release = self.shard.next_release();
        release.is_some_and(|at| at.since(self.io.now()) <= DIAL_SPIN)
    }

    fn take_mail(&mut self) -> bool {
        if !std::mem::take(&mut self.mail) {
            return false;
        }
        for _ in 0..MESSAGES_PER_TURN {
            match self.inbox.try_recv() {
                Ok(message) => self.handle_message(message),
                Err(mpsc::error::TryRecvError::Empty) => return true,
                // No mailbox is left: the control thread is gone, and may not have rung.
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.handle_stop(Nanos::ZERO);
                    return true;
                }
            }
        }
        self.mail = true;
        true
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::OpenSession {
                session,
                user,
                class,
                weight,
                home,
                segments,
                queues,
                answer,
            } => {
                self.engine(Command::OpenSession { session, weight, home: home as u16, user });
                self.sessions.open(session, user, class);
                let added = segments
                    .into_iter()
                    .try_for_each(|segment| memory::add_segment(self, session, segment))
                    .and_then(|()| {
                        queues.into_iter().try_for_each(|queue| {
                            self.sessions.add_queue(session, queue, &mut self.io)
                        })
                    });
                if added.is_err() {
                    self.close_session(session);
                }
                let _ = answer.send(added);
            }
            Message::AddSegment { session, segment, answer } => {
                let _ = answer.send(memory::add_segment(self, session, segment));
            }
            Message::TakeBack { session, number, answer } => {
                memory::take_back(self, session, number);
                let _ = answer.send(Ok(()));
            }
            Message::AddQueue { session, queue, answer } => {
                let _ = answer.send(self.sessions.add_queue(session, *queue, &mut self.io));
            }
            Message::Join { session, handle, members, length, answer } => {
                self.engine(Command::JoinHandles { session, handle, members, length });
                let _ = answer.send(Ok(()));
            }
            Message::Point { session, handle, answer } => {
                self.engine(Command::PointHandle { session, handle });
                let _ = answer.send(Ok(()));
            }
            Message::CloseHandle { session, handle, answer } => {
                self.engine(Command::CloseHandle { session, handle });
                let _ = answer.send(Ok(()));
            }
            Message::CloseSession { session } => {
                self.close_session(session);
                if !self.sessions.knows(session) {
                    // The session was refused before it was opened here, so nothing is left to
                    // drain.
                    self.tell(Notice::Event(Event::SessionDrained { session }));
                }
            }
            Message::Install { session, handle, source, answer } => {
                let _ = answer.send(opened::install(self, (session, handle), source));
            }
            Message::Serve { ticket, result } => {
                let opened = result.is_ok();
                let result = result
                    .and_then(|source| opened::target(self, source).map_err(|it| it.status()));
                if opened && result.is_err() {
                    self.tell(Notice::Event(Event::ServeClosed { ticket }));
                }
                self.engine(Command::ServeOpened { ticket, result });
            }
            Message::Connected { peer, class, socket, near, keys } => {
                let command = match self.io.add_socket(socket) {
                    Ok(socket) => Command::LaneConnected { peer, class, socket, near, keys },
                    Err(error) => {
                        self.say_no_room(&error);
                        Command::ConnectFailed { peer, class }
                    }
                };
                self.engine(command);
            }
            Message::Accepted { socket, caller, keys } => match self.io.add_socket(socket) {
                Ok(socket) => self.engine(Command::LaneAccepted { socket, caller, keys }),
                Err(error) => self.say_no_room(&error),
            },
            Message::SetStaging { bytes, memory, answer } => {
                let _ = answer.send(memory::set_staging(self, bytes, memory));
            }
            Message::Engine(command) => self.engine(command),
            Message::Ask(question) => self.answer(question),
            Message::Stop { until } => self.handle_stop(until),
        }
    }

    fn say_no_room(&mut self, error: &UringError) {
        if let Some(left_out) = self.lines.may_say(io::clock::now()) {
            tracing::warn!(shard = self.index, %error, left_out, "no room for a lane");
        }
    }

    fn engine(&mut self, command: Command) {
        if let Command::SetLimits(limits) = &command {
            self.sessions.set_limits(limits);
        }
        let dials = matches!(command, Command::SetDial { .. } | Command::ClearDials { .. });
        self.shard.handle_command(command, &mut self.io);
        if dials {
            io::slack::set(self.shard.has_dials());
        }
    }

    fn close_session(&mut self, session: SessionId) {
        if self.sessions.close(session, &mut self.io) {
            self.engine(Command::CloseSession { session });
        }
    }

    fn evict(&mut self, session: SessionId, kind: Eviction, reason: String) {
        self.evictions[kind as usize] += 1;
        self.close_session(session);
        self.tell(Notice::Evicted { session, reason });
    }

    fn tell(&self, notice: Notice) {
        // The receiver is gone if the daemon ends without waiting for its shards.
        let _ = self.outbox.send((self.index, notice));
    }

    fn handle_stop(&mut self, until: Nanos) {
        self.stop = Some(until);
        for session in self.sessions.ids() {
            self.close_session(session);
        }
    }

    fn is_over(&mut self) -> bool {
        self.stop.is_some_and(|until| {
            self.sessions.is_empty() && self.between.is_over() || self.io.now() >= until
        })
    }
}
