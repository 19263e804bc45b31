//! A session of two shards: what a shard passes to the session's home, and what the home does with
//! that. The test plays the other shard.

use piped_core::ids::{HandleId, QueueId};
use piped_core::request::{ArenaBuffer, BufferState, Class, Completion, Request, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Command;
use piped_engine::relay::{Relay, Said};

use crate::asking::{ARENA, HANDLE, read};
use crate::channels::{CHANNEL, INBOX, receive, target_of};
use crate::world::{SESSION, World};

const LENGTH: u64 = 64 << 10;
const LINE: QueueId = QueueId(5);

/// The shard of a queue whose session has its home at the other shard, which has a handle.
fn of_queue() -> World {
    let mut world = World::of_two_shards();
    world.command(Command::OpenSession { session: SESSION, weight: 1, home: 1, user: 0 });
    let segment = world.kernel.add_segment(world.node, ARENA);
    world.kernel.share(world.node, segment);
    world.command(Command::AddSegment { session: SESSION, segment, length: ARENA });
    world.command(Command::PointHandle { session: SESSION, handle: HANDLE });
    world
}

/// The home of a session, with a file.
fn of_home() -> World {
    let mut world = World::of_two_shards();
    world.session(SESSION, ARENA);
    let file = world.file(1 << 20);
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target: file });
    world
}

fn request(verb: Verb, fence: bool) -> Request {
    Request { verb, class: Class::Latency, deadline: None, no_wait: false, fence }
}

fn ask(asked: u64, verb: Verb, fence: bool) -> Relay {
    Relay::Ask { asked, session: SESSION, queue: LINE, request: request(verb, fence) }
}

fn write(offset: u64) -> Verb {
    let buffer = ArenaBuffer { segment: 0, offset, length: LENGTH };
    Verb::Write { handle: HANDLE, offset, buffer, durable: false, notify: None }
}

/// The number of the only question that the home is asked.
fn asked(world: &mut World) -> u64 {
    match world.relays()[..] {
        [Relay::Ask { asked, session: SESSION, queue: QueueId(0), .. }] => asked,
        ref other => panic!("{other:?}"),
    }
}

fn finished(status: Status, bytes: u64, buffer: BufferState) -> Said {
    Said::Finished { status, bytes, value: 0, buffer }
}

/// What the asking shard is told, without progress.
fn answers(world: &mut World) -> Vec<(u64, Said)> {
    let told = world.relays().into_iter().filter_map(|relay| match relay {
        Relay::Answer { said: Said::Moved { .. }, .. } => None,
        Relay::Answer { asked, said } => Some((asked, said)),
        other => panic!("{other:?}"),
    });
    told.collect()
}

#[test]
fn what_the_home_has_is_asked_there_and_its_client_told_what_it_says() {
    let mut world = of_queue();
    world.submit(SESSION, 1, read(0, LENGTH));
    let number = asked(&mut world);
    assert!(!world.shard.is_idle(), "it is under way");
    let moved = Said::Moved { bytes: 4096, landed: (8192, 12288) };
    world.relay(Relay::Answer { asked: number, said: moved });
    assert_eq!(world.progress_of(1), [(4096, (8192, 12288))]);
    let held = finished(Status::Cancelled, 4096, BufferState::Held);
    world.relay(Relay::Answer { asked: number, said: held });
    assert_eq!(world.end_of(1), Some((Status::Cancelled, 4096)));
    assert!(!world.shard.is_idle(), "its buffer is held");
    world.relay(Relay::Answer { asked: number, said: Said::Released });
    let released = |it: &Completion| matches!(it, Completion::Released { .. });
    assert!(released(&world.completions[1]) && world.shard.is_idle());
    // What is said once more is nobody's.
    for said in [held, Said::Released, moved] {
        world.relay(Relay::Answer { asked: number, said });
    }
    assert_eq!((world.completions.len(), world.progress_of(1).len()), (2, 1));
}

#[test]
fn a_cancel_follows_its_request_to_the_home_and_only_once_it_is_there() {
    let mut world = of_queue();
    world.submit(SESSION, 1, receive(None, 4096, 1000));
    let number = asked(&mut world);
    assert_eq!(world.shard.waits_of(SESSION), 1, "it waits for others");
    world.submit(SESSION, 8, Verb::Cancel { target: 1 });
    world.submit(SESSION, 9, Verb::Cancel { target: 2 });
    assert_eq!(world.relays(), [Relay::Recall { asked: number }]);
    let ends = [8, 9].map(|cancel| world.end_of(cancel).map(|it| it.0));
    assert_eq!(ends, [Some(Status::Ok), Some(Status::NotFound)]);
    assert_eq!(world.end_of(1), None, "the home says how");
    let said = finished(Status::Cancelled, 0, BufferState::Returned);
    world.relay(Relay::Answer { asked: number, said });
    assert_eq!(world.end_of(1), Some((Status::Cancelled, 0)));
    assert_eq!(world.shard.waits_of(SESSION), 0);
}

#[test]
fn a_session_that_closes_hears_nothing_more_and_leaves_nothing() {
    let mut world = of_queue();
    world.submit(SESSION, 1, read(0, LENGTH));
    world.submit(SESSION, 2, receive(None, 4096, 1000));
    let numbers: Vec<u64> = world
        .relays()
        .into_iter()
        .map(|relay| match relay {
            Relay::Ask { asked, .. } => asked,
            other => panic!("{other:?}"),
        })
        .collect();
    world.command(Command::CloseSession { session: SESSION });
    world.settle();
    assert!(world.shard.is_idle());
    for asked in numbers {
        let said = finished(Status::Ok, 1, BufferState::Returned);
        world.relay(Relay::Answer { asked, said });
    }
    assert_eq!(world.completions, []);
    world.submit(SESSION, 3, read(0, LENGTH));
    assert_eq!((world.relays(), world.end_of(3)), (Vec::new(), Some((Status::Closed, 0))));
}

#[test]
fn the_home_does_what_another_shard_asks_in_the_order_of_the_queue_that_asked() {
    let mut world = of_home();
    world.block_device(Nanos::from_millis(5));
    world.relay(ask(41, write(0), false));
    world.relay(ask(42, Verb::Flush { handle: HANDLE }, false));
    // Another queue, though both shards number it alike.
    world.submit_request(SESSION, 1, request(Verb::Flush { handle: HANDLE }, true));
    world.settle_turn();
    assert_eq!(world.end_of(1), Some((Status::Ok, 0)), "it waits for nobody else's");
    assert_eq!(answers(&mut world), []);
    world.settle();
    let ok = |bytes| finished(Status::Ok, bytes, BufferState::Returned);
    assert_eq!(answers(&mut world), [(41, ok(LENGTH)), (42, ok(0))]);
    // What no transfer stands for is answered, too.
    let none = Verb::Flush { handle: HandleId(77) };
    world.relay(ask(43, none, false));
    let refused = finished(Status::BadHandle, 0, BufferState::Returned);
    assert_eq!(answers(&mut world), [(43, refused)]);
    assert!(world.shard.is_idle());
}

#[test]
fn the_home_gives_up_what_its_asker_gives_up_and_says_when_the_buffer_is_free() {
    let mut world = of_home();
    world.block_device(Nanos::from_millis(50));
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: LENGTH };
    let read = Verb::Read { handle: HANDLE, offset: 0, buffer, wanted: 0 };
    world.relay(ask(41, read, false));
    world.run_for(Nanos::from_micros(10));
    world.relay(Relay::Recall { asked: 40 });
    world.relay(Relay::Recall { asked: 41 });
    world.relay(Relay::Recall { asked: 41 });
    world.settle();
    let held = finished(Status::Cancelled, 0, BufferState::Held);
    assert_eq!(answers(&mut world), [(41, held), (41, Said::Released)]);
    // A receive has nothing to be held.
    let target = target_of(CHANNEL, true);
    world.command(Command::InstallHandle { session: SESSION, handle: INBOX, target });
    world.relay(ask(42, receive(None, 4096, 1000), false));
    world.relay(Relay::Recall { asked: 42 });
    let over = finished(Status::Cancelled, 0, BufferState::Returned);
    assert_eq!(answers(&mut world), [(42, over)]);
}

#[test]
fn a_home_that_closes_first_or_has_closed_owes_nobody_anything() {
    let mut world = of_home();
    world.block_device(Nanos::from_millis(5));
    world.relay(ask(41, write(0), false));
    world.run_for(Nanos::from_micros(10));
    world.command(Command::CloseSession { session: SESSION });
    world.settle();
    assert_eq!(answers(&mut world), [], "the asker's shard closes the session as well");
    assert!(world.shard.is_idle());
    world.relay(ask(42, write(0), false));
    let closed = finished(Status::Closed, 0, BufferState::Returned);
    assert_eq!(answers(&mut world), [(42, closed)]);
}
