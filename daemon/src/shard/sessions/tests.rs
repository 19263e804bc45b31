//! Queues of clients over a real driver: who rests, and that nothing it asks or is told is lost.

use piped_core::ids::{QueueId, SessionId};
use piped_core::io::Io as _;
use piped_core::request::{BufferState, Class, Completion, Origin};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_ring::{ClientQueue, Descriptor, Opcode, QueueFds, ServerQueue};

use super::{Sessions, Taken};
use crate::io::{UringConfig, UringIo};
use crate::limits::QUEUE_RESTS_AFTER;
use crate::settings;

/// Time after which a necessary event has not happened. Never reached by a test that passes.
const PATIENCE: Nanos = Nanos::from_millis(20_000);

/// Some clients of a shard, which the test plays: time is its own.
struct Scene {
    io: UringIo,
    sessions: Sessions,
    clients: Vec<ClientQueue>,
    now: Nanos,
}

impl Scene {
    fn new(clients: u32) -> Self {
        let io = UringIo::new(&UringConfig::default()).expect("io_uring is there");
        let mut scene = Self { io, sessions: Sessions::new(0), clients: Vec::new(), now: Nanos(1) };
        scene.sessions.set_limits(&settings::limits(&piped_config::Limits::default(), 1));
        for number in 0..clients {
            let server = ServerQueue::create(8).expect("a queue");
            let fds = server.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
            let [memory, to_daemon, to_client] = fds;
            let client = ClientQueue::attach(QueueFds { memory, to_daemon, to_client });
            scene.clients.push(client.expect("its queue"));
            scene.sessions.open(SessionId(number), 0, Class::Latency);
            let added = scene.sessions.add_queue(SessionId(number), server, &mut scene.io);
            assert!(added.is_ok());
        }
        scene
    }

    /// A turn: hears bells, then takes requests. Returns whose.
    fn turn(&mut self) -> Vec<u32> {
        self.io.submit().expect("the driver works");
        self.io.poll_dones(&mut |done| panic!("{done:?}"));
        for bell in self.io.take_woken() {
            self.sessions.handle_bell(bell);
        }
        let mut taken = Vec::new();
        let sink = |it: Taken| {
            taken.push(it.session.0);
            None
        };
        self.sessions.take(self.now, sink, |session, fault| panic!("{session:?}: {fault}"));
        taken
    }

    /// Turns until a request has come, as bells take a moment.
    fn next_of(&mut self) -> Vec<u32> {
        let until = self.io.now() + PATIENCE;
        loop {
            let taken = self.turn();
            if !taken.is_empty() || self.io.now() > until {
                return taken;
            }
        }
    }

    /// Lets time pass in which nobody asks: all rest.
    fn let_rest(&mut self) {
        assert!(self.turn().is_empty());
        self.now = self.now + QUEUE_RESTS_AFTER;
        assert!(self.turn().is_empty());
    }

    /// A client asks for something. Whether it had to ring.
    fn ask(&mut self, client: usize) -> bool {
        self.clients[client].submit(Descriptor::new(Opcode::Nop, 7)).expect("room");
        self.clients[client].flush()
    }

    /// The request of a client ends, and its end is published.
    fn end(&mut self, client: u32) {
        let origin =
            Origin { session: SessionId(client), queue: QueueId(client), slot: 0, user_data: 7 };
        let lost = self.sessions.complete(Completion::Finished {
            origin,
            status: Status::Ok,
            bytes: 0,
            value: 0,
            buffer: BufferState::Returned,
        });
        assert_eq!(lost, None);
        self.sessions.publish();
    }

    fn looked_at(&self) -> usize {
        self.sessions.attention.live().len()
    }
}

#[test]
fn who_asks_nothing_is_not_looked_at_and_rings_when_it_does() {
    let mut scene = Scene::new(3);
    assert_eq!(scene.looked_at(), 3);
    scene.let_rest();
    assert_eq!(scene.looked_at(), 0);
    assert!(scene.ask(1), "it was told to ring");
    assert_eq!(scene.next_of(), [1]);
    assert_eq!(scene.looked_at(), 1, "the others still rest");
    scene.end(1);
    assert!(scene.clients[1].reap().is_some());
    assert!(!scene.ask(1), "it is looked at, so it need not ring");
    assert_eq!(scene.turn(), [1]);
}

#[test]
fn who_asks_is_looked_at_however_long_the_others_rest() {
    let mut scene = Scene::new(2);
    for _ in 0..9 {
        scene.now = scene.now + Nanos(QUEUE_RESTS_AFTER.0 / 2);
        scene.ask(0);
        assert_eq!(scene.turn(), [0]);
        scene.end(0);
        assert!(scene.clients[0].reap().is_some());
    }
    assert_eq!(scene.looked_at(), 1);
}

#[test]
fn a_completion_reaches_a_queue_that_rests_and_ends_its_rest() {
    let mut scene = Scene::new(2);
    scene.ask(0);
    assert_eq!(scene.turn(), [0]);
    scene.let_rest();
    assert_eq!(scene.looked_at(), 0, "its request is under way, and it asks nothing more");
    scene.end(0);
    assert_eq!(scene.clients[0].reap().map(|entry| entry.user_data), Some(7));
    assert_eq!(scene.looked_at(), 1);
    assert!(!scene.ask(0), "who is answered may ask again without a ring");
    assert_eq!(scene.turn(), [0]);
}

#[test]
fn what_comes_while_the_thread_sleeps_as_well_is_taken() {
    let mut scene = Scene::new(2);
    scene.let_rest();
    scene.ask(1);
    assert_eq!(scene.next_of(), [1]);
    scene.end(1);
    // One of the two rests, the other one is only told to ring for this sleep.
    assert!(scene.sessions.prepare_sleep());
    assert!(scene.ask(0) && scene.ask(1), "both were told to ring");
    let until = scene.io.now() + PATIENCE;
    scene.io.wait(Some(until)).expect("the driver works");
    scene.sessions.finish_sleep();
    let mut taken = scene.next_of();
    while taken.len() < 2 {
        taken.extend(scene.next_of());
    }
    taken.sort_unstable();
    assert_eq!(taken, [0, 1]);
    assert!(!scene.ask(0) && !scene.ask(1), "neither has to ring now");
}

#[test]
fn a_queue_that_rests_goes_with_its_session_and_its_bell_is_used_again() {
    let mut scene = Scene::new(2);
    scene.let_rest();
    assert!(scene.sessions.close(SessionId(0), &mut scene.io));
    scene.sessions.forget(SessionId(0));
    scene.ask(0);
    assert!(scene.turn().is_empty(), "nobody listens to it");
    assert!(scene.ask(1));
    assert_eq!(scene.next_of(), [1]);
    assert_eq!(scene.looked_at(), 1);
}
