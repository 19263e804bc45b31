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
    world.submit(SESSION, 9, Verb::Cancel { target: 1 });
    assert_eq!((world.relays(), world.end_of(9)), (vec![], Some((Status::NotFound, 0))));
    let _ = world.completions.pop();
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
    world.submit(SESSION, 10, Verb::Cancel { target: 1 });
    assert_eq!(world.relays(), [Relay::Recall { asked: number }], "once");
    let ends = [8, 9, 10].map(|cancel| world.end_of(cancel).map(|it| it.0));
    assert_eq!(ends, [Some(Status::Ok), Some(Status::NotFound), Some(Status::Ok)]);
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

/// Reads that a session may have under way at its home by queues of other shards.
fn fill(world: &mut World) -> u64 {
    world.block_device(Nanos::from_millis(400));
    let mut count = 0;
    loop {
        let before = world.shard.report().transfers;
        world.relay(ask(100 + count, write(0), false));
        count += 1;
        if world.shard.report().transfers == before {
            return count - 1;
        }
    }
}

#[test]
fn what_waits_for_a_place_has_its_deadline_and_what_does_not_want_to_is_told() {
    let mut world = of_home();
    let most = fill(&mut world);
    assert!(most > 0);
    // The one that found no place, and one with less time.
    let hurried = Request { deadline: Some(Nanos::from_millis(2)), ..request(write(0), false) };
    let (session, queue) = (SESSION, LINE);
    world.relay(Relay::Ask { asked: 1, session, queue, request: hurried });
    let no_wait = Request { no_wait: true, ..request(write(0), false) };
    world.relay(Relay::Ask { asked: 2, session, queue, request: no_wait });
    let refused = finished(Status::WouldBlock, 0, BufferState::Returned);
    assert_eq!(answers(&mut world), [(2, refused)]);
    world.run_for(Nanos::from_millis(3));
    let late = finished(Status::DeadlineExceeded, 0, BufferState::Returned);
    assert_eq!(answers(&mut world), [(1, late)]);
    // A message has places of its own, and so does a receive.
    let (handle, target) = (HandleId(7), target_of(CHANNEL, true));
    world.command(Command::InstallHandle { session, handle, target });
    let buffer = ArenaBuffer { segment: 0, offset: 4096, length: 1000 };
    world.relay(ask(3, Verb::Receive { handle, tag: None, buffer }, false));
    assert_eq!(world.shard.waits_of(SESSION), 0, "it is of another shard's ring");
    world.run_for(Nanos::from_millis(5_000));
    let ended = answers(&mut world);
    assert_eq!(ended.len() as u64, most + 1, "the one that waited had its turn");
    assert!(!world.shard.is_idle(), "the receive waits");
    world.relay(Relay::Recall { asked: 3 });
    let over = finished(Status::Cancelled, 0, BufferState::Returned);
    assert_eq!(answers(&mut world), [(3, over)]);
    assert!(world.shard.is_idle());
}

#[test]
fn a_buffer_that_is_held_keeps_no_place() {
    let mut world = of_home();
    let most = fill(&mut world);
    let parked = 100 + most;
    assert_eq!(answers(&mut world), []);
    for number in 0..most {
        world.relay(Relay::Recall { asked: 100 + number });
    }
    let held = finished(Status::Cancelled, 0, BufferState::Held);
    let told: Vec<(u64, Said)> = (0..most).map(|number| (100 + number, held)).collect();
    let first: Vec<(u64, Said)> =
        answers(&mut world).into_iter().filter(|it| it.1 != Said::Released).collect();
    assert_eq!(first, told);
    assert_eq!(fill(&mut world), most - 1, "one began that had waited");
    world.relay(Relay::Recall { asked: parked });
    world.run_for(Nanos::from_millis(20_000));
    let ends = answers(&mut world).into_iter().filter(|it| it.0 == parked);
    assert!(ends.count() >= 1, "it is told");
    assert!(world.shard.is_idle());
}

#[test]
fn what_is_taken_from_a_session_is_taken_from_what_others_ask_for_it() {
    for by_handle in [true, false] {
        let mut world = of_home();
        world.block_device(Nanos::from_millis(50));
        world.relay(ask(41, write(0), false));
        world.run_for(Nanos::from_micros(10));
        let (session, handle) = (SESSION, HANDLE);
        let (command, status) = match by_handle {
            true => (Command::EndHandle { session, handle }, Status::Gone),
            false => (Command::TakeBack { session, number: 0 }, Status::BadBuffer),
        };
        world.command(command);
        world.relay(ask(42, write(0), false));
        world.settle();
        let mut ends = answers(&mut world);
        ends.retain(|it| it.1 != Said::Released);
        ends.sort_by_key(|it| it.0);
        let [one, two] =
            [BufferState::Held, BufferState::Returned].map(|it| finished(status, 0, it));
        assert_eq!(ends, [(41, one), (42, two)]);
        assert!(world.shard.is_idle());
    }
}
