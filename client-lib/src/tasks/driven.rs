//! A queue that a bell drives: the lock, the wakers, the watch.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;

use piped_ring::ClientQueue;

use super::line::{AnyRequest, Ended, Line, Ticket};
use super::runtime::{Ready, Watch};
use super::session::Session;
use super::waiting::Ends;
use crate::clock;
use crate::connection::{Connection, Growth, Shared};
use crate::control::lock;
use crate::queue::Queue;
use crate::reconnect;
use crate::request::RequestId;

/// Wakers that are taken out at once, under the lock, and woken outside.
const WAKERS: usize = 16;

/// A queue behind its lock, and the tasks that wait for it.
#[derive(Debug)]
pub(super) struct Driven {
    state: Mutex<State>,
    session: Session,
}

/// What is under the lock. Wakers are woken and dropped outside of it.
#[derive(Debug)]
pub(super) struct State {
    queue: Queue,
    shared: Arc<Shared>,
    /// Tasks by the places of their requests.
    wakers: Vec<Option<Waker>>,
    /// Results that no task has asked for yet, and whose places others wanted.
    ended: HashMap<RequestId, Ended>,
    /// Requests that wait for a place.
    line: Line,
    /// Generation of the connection with the bell that is watched.
    watched: u32,
    /// Bells that were watched so far.
    watches: u64,
    watch: Option<Watch>,
    /// Whether somebody calls when it rings.
    is_watched: bool,
    /// Somebody looks for the next daemon.
    reconnecting: bool,
    /// The line waits for a ring of the daemon that the client has, which somebody asks for.
    waits_for_ring: bool,
}

impl State {
    pub(super) fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    pub(super) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Puts a request at the end of the line.
    pub(super) fn join_line(&mut self, request: AnyRequest) -> Ticket {
        if self.line.is_empty() {
            // From now on results do not keep the places of those who do not ask for them.
            (0..self.queue.depth()).for_each(|slot| self.take_out(slot));
        }
        self.line.join(request)
    }

    /// Whether there is a daemon, and the queue waits for its ring: others had those that were
    /// there.
    pub(super) fn waits_for_ring(&mut self) -> bool {
        self.waits_for_ring = self.lacks_ring();
        self.waits_for_ring
    }

    /// Whether the client has a connection at which the queue, which never waits, found no ring.
    fn lacks_ring(&self) -> bool {
        let core = self.queue.core();
        core.is_dead() && core.generation() != self.shared.generation()
    }

    /// Goes on with a ring that somebody waited for, if it is still lacking.
    fn take_ring(&mut self, connection: &Connection, ring: ClientQueue) {
        let wanted = self.lacks_ring() && self.shared.generation() == connection.generation;
        let core = self.queue.core_mut();
        match wanted && core.fits(&ring) {
            true => core.reattach(ring, &self.shared, connection, Growth::None),
            false => connection.keep_ring(ring),
        }
    }

    /// Takes a result out of its place in the queue.
    fn take_out(&mut self, slot: u32) {
        let core = self.queue.core_mut();
        if let Some((generation, taken)) = core.table.take_out(slot) {
            self.ended.insert(core.id(slot, generation), taken.result);
        }
    }

    /// The result of a request, if it was taken out of its place.
    pub(super) fn take_ended(&mut self, request: RequestId) -> Option<Ended> {
        if self.ended.is_empty() { None } else { self.ended.remove(&request) }
    }

    /// The task that is woken when the request in a place ends.
    pub(super) fn waker(&mut self, request: RequestId) -> &mut Option<Waker> {
        &mut self.wakers[request.slot as usize]
    }

    /// Takes out wakers of tasks that can go on. `true`: there are more.
    fn take_woken(&mut self, woken: &mut [Option<Waker>; WAKERS]) -> bool {
        for place in woken {
            *place = loop {
                if let Some(slot) = self.queue.core_mut().table.pop_ended() {
                    if !self.line.is_empty() {
                        self.take_out(slot);
                    }
                    if let Some(waker) = self.wakers[slot as usize].take() {
                        break Some(waker);
                    }
                } else if self.line.is_empty() || !self.may_enter() {
                    return false;
                } else if let Some(waker) = self.enter() {
                    break Some(waker);
                }
            };
        }
        true
    }

    /// Whether the first request of the line can be submitted, or refused.
    fn may_enter(&mut self) -> bool {
        let waits = self.waits_for_ring && self.queue.is_disconnected();
        !waits && self.queue.core_mut().has_place()
    }

    /// Submits the first request of the line. Returns its task if it was refused.
    fn enter(&mut self) -> Option<Waker> {
        let (slot, waker) = self.line.enter(&mut self.queue);
        // Nobody had the place: its waker was taken out when its last request ended.
        slot.map_or(waker.clone(), |slot| std::mem::replace(&mut self.wakers[slot as usize], waker))
    }

    /// Has the bell rung for what ends from now on; what ended is taken in.
    fn arm(&mut self) {
        while !self.queue.is_disconnected() && !self.queue.arm() {}
    }

    /// Whether requests wait for a daemon that nobody looks for, or for its ring.
    fn must_reconnect(&self) -> bool {
        let core = self.queue.core();
        let waits = core.table.parked() > 0 || self.waits_for_ring;
        !self.reconnecting && core.is_dead() && waits
    }
}

impl Driven {
    pub(super) fn start(mut queue: Queue, session: Session) -> io::Result<Arc<Self>> {
        queue.never_wait();
        let core = queue.core_mut();
        core.table.tell_ended();
        let wakers = (0..core.table.len()).map(|_| None).collect();
        let state = State {
            queue,
            shared: Arc::clone(session.client().shared()),
            wakers,
            ended: HashMap::new(),
            line: Line::default(),
            watched: 0,
            watches: 0,
            watch: None,
            is_watched: false,
            reconnecting: false,
            waits_for_ring: false,
        };
        let driven = Arc::new(Self { state: Mutex::new(state), session });
        let ends: Weak<dyn Ends> = Arc::<Self>::downgrade(&driven);
        driven.session.waiting().add_queue(ends);
        driven.watch_bell()?;
        Ok(driven)
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Does something with the queue, and wakes the tasks that can go on then.
    pub(super) fn with<T>(self: &Arc<Self>, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let result = act(&mut state);
        loop {
            let mut woken = [const { None }; WAKERS];
            let more = state.take_woken(&mut woken);
            // Cancels of what was dropped.
            state.queue.flush();
            let is_behind = state.watched != state.queue.core().generation() && state.watched > 0;
            let reconnects = state.must_reconnect();
            state.reconnecting |= reconnects;
            drop(state);
            woken.into_iter().flatten().for_each(Waker::wake);
            if is_behind {
                // One that cannot be watched has said so to its tasks.
                let _ = self.watch_bell();
            }
            if reconnects {
                let driven = Arc::clone(self);
                self.session.waiting().runtime().unblock(Box::new(move || driven.reconnect()));
            }
            if !more {
                return result;
            }
            state = lock(&self.state);
        }
    }

    /// Has the bell of the queue's connection watched.
    fn watch_bell(self: &Arc<Self>) -> io::Result<()> {
        let (fd, number, old) = {
            let mut state = lock(&self.state);
            state.watched = state.queue.core().generation();
            state.watches += 1;
            // From here on: tasks that go on meanwhile find what they asked for again. Whatever
            // fails below drops `ringing`, which takes it back.
            state.is_watched = true;
            let old = state.watch.take();
            (state.queue.completion_fd().try_clone_to_owned(), state.watches, old)
        };
        drop(old);
        let mut ringing = Ringing { driven: Arc::downgrade(self), number, over: false };
        let ready = Ready::new(move || ringing.ring());
        let waiting = self.session.waiting();
        let watch = waiting.runtime().watch(fd?, ready)?;
        waiting.watch(&self.session.client().shared().connection().control)?;
        let mut state = lock(&self.state);
        let unwanted = match state.watches == number {
            true => state.watch.replace(watch),
            false => Some(watch),
        };
        drop(state);
        drop(unwanted);
        self.with(State::arm);
        Ok(())
    }

    /// The bell rang, or hung up. `false`: it does not ring again.
    fn handle_bell(self: &Arc<Self>, number: u64) -> bool {
        self.with(|state| {
            if state.watches != number {
                return false;
            }
            state.queue.drain();
            state.queue.look();
            state.arm();
            !state.queue.is_disconnected()
        })
    }

    /// Nobody calls any more when the bell rings.
    fn handle_unwatched(self: &Arc<Self>, number: u64) {
        let mut wakers = Vec::new();
        self.with(|state| {
            if state.watches == number {
                state.is_watched = false;
                wakers.extend(state.wakers.iter_mut().filter_map(Option::take));
                wakers.extend(state.line.take_wakers());
            }
        });
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Looks for the next daemon, for requests that wait for it. Blocks.
    fn reconnect(self: &Arc<Self>) {
        let shared = self.session.client().shared();
        let within_ns = shared.settings.reconnect.map_or(0, clock::nanos);
        let parked = |state: &mut State| {
            let core = state.queue.core();
            let times = core.parked_until_ns().filter(|_| core.is_dead());
            state.reconnecting = times.is_some();
            let core = state.queue.core();
            times.map(|at_ns| (at_ns, core.dead_since_ns(), core.table.parked_bytes()))
        };
        // Where nothing waits for a daemon, the ring is all.
        self.fetch_ring();
        while let Some((expires_ns, since_ns, bytes)) = self.with(parked) {
            let patience_ns = since_ns.saturating_add(within_ns);
            let found = shared.reconnect(expires_ns.min(patience_ns), patience_ns);
            if found.is_ok() {
                // Room for their buffers, which the queue does not wait for.
                drop(shared.allocate(bytes));
            }
            let hopeless = reconnect::is_hopeless(&found, patience_ns);
            self.with(|state| state.queue.core_mut().expire_parked(hopeless));
            self.fetch_ring();
            if self.with(|state| state.queue.is_disconnected()) {
                // A daemon that has no queue for it, or ended again at once.
                clock::nap(reconnect::NAP_NS);
            }
        }
    }

    /// Goes on at the client's newest connection. Others may have the rings that were ready there:
    /// then the daemon is asked for one. Blocks.
    fn fetch_ring(self: &Arc<Self>) {
        let connection = self.session.client().shared().connection();
        // First: telling does not wait for room in a socket that is watched. If it cannot be, the
        // bell cannot either, and that says so.
        let _ = self.session.waiting().watch(&connection.control);
        let lacking = self.with(|state| {
            state.queue.look();
            state.lacks_ring()
        });
        let ring = if lacking { connection.ring().ok() } else { None };
        self.with(|state| {
            if let Some(ring) = ring {
                state.take_ring(&connection, ring);
            }
            state.waits_for_ring = false;
        });
    }
}

impl Ends for Driven {
    fn handle_end(self: Arc<Self>) {
        self.with(|state| state.queue.core_mut().check_daemon());
    }
}

/// What a ringing bell calls.
struct Ringing {
    driven: Weak<Driven>,
    number: u64,
    /// Whether the bell does not ring again.
    over: bool,
}

impl Ringing {
    fn ring(&mut self) -> bool {
        let driven = self.driven.upgrade();
        self.over = !driven.is_some_and(|driven| driven.handle_bell(self.number));
        !self.over
    }
}

impl Drop for Ringing {
    fn drop(&mut self) {
        if let Some(driven) = self.driven.upgrade().filter(|_| !self.over) {
            driven.handle_unwatched(self.number);
        }
    }
}
