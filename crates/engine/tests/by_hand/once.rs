//! What is done once: changes of words, and notifications with the puts before them.

use piped_core::access::{Access, OpenKind};
use piped_core::ids::{HandleId, RegionId, SegmentId, SessionId};
use piped_core::io::Span;
use piped_core::limits::NUMBERS_PER_HANDLE;
use piped_core::link::LaneClass;
use piped_core::request::{ArenaBuffer, Class, Request, Update, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, RegionTarget, Target};
use piped_wire::{After, Change, Message};

use crate::asking::{CREDIT, HANDLE, connected, read};
use crate::channels::{value_of, wait_end};
use crate::world::{LineId, SESSION, World, end, region, write, write_data};

const OTHER: SessionId = SessionId(SESSION.0 + 1);
const OK: (Status, u64) = (Status::Ok, 0);

fn add(addend: u64) -> Verb {
    Verb::Update { handle: HANDLE, offset: 64, update: Update::Add(addend) }
}

fn put(length: u64, notify: Option<u32>) -> Verb {
    let buffer = ArenaBuffer { segment: 0, offset: 0, length };
    Verb::Write { handle: HANDLE, offset: 0, buffer, durable: false, notify }
}

fn updated(transfer: u64, status: Status, value: u64) -> Message {
    Message::Updated { transfer, status, value }
}

/// An update as the peer gets it: the requester's number, the change, the sequence, and how many
/// may come again.
fn update(message: Message) -> (u64, Change, u32, u8) {
    match message {
        Message::Update { transfer, change, sequence, behind, .. } => {
            (transfer, change, sequence, behind)
        }
        other => panic!("not an update: {other:?}"),
    }
}

fn notification(message: Message) -> (u64, After, u32) {
    let (transfer, change, sequence, _) = update(message);
    let Change::Notify { id: 7, after } = change else { panic!("{change:?}") };
    (transfer, after, sequence)
}

/// The write a put makes, and its bytes.
fn take_write(world: &mut World, line: LineId) -> (u64, u64) {
    let Message::Write { transfer, length, .. } = world.next(line) else { panic!("not a write") };
    let mut bytes = 0;
    while bytes < length {
        let (frame, payload) = world.next_frame(line);
        assert!(matches!(frame.message, Message::WriteData { .. }), "{frame:?}");
        bytes += payload.len() as u64;
    }
    (transfer, length)
}

/// The lane is lost, and the next one has the handle again.
fn lose_lane(world: &mut World, line: LineId, incarnation: u64) -> LineId {
    world.hang_up(line);
    let line = world.answer_connect_as(LaneClass::Latency, CREDIT, incarnation);
    let Message::Open { ticket, .. } = world.next(line) else { panic!("the handle is not asked") };
    let (status, length) = (Status::Ok, 1 << 20);
    world.send(line, Message::Opened { ticket, status, handle: 0, length }, &[]);
    let Message::Close { .. } = world.next(line) else { panic!("the rest is not swept") };
    line
}

#[test]
fn an_update_that_comes_again_has_its_number_and_ends_once() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, add(3));
    world.submit(SESSION, 2, add(4));
    let change = |addend| Change::Word { offset: 64, update: Update::Add(addend) };
    let (first, is, sequence, behind) = update(world.next(line));
    assert_eq!((is, sequence, behind), (change(3), 0, 0));
    let (_, is, sequence, behind) = update(world.next(line));
    assert_eq!((is, sequence, behind), (change(4), 1, 1));
    // It was done, and its answer is lost.
    let line = lose_lane(&mut world, line, 9);
    let mut again = [update(world.next(line)), update(world.next(line))];
    again.sort_by_key(|&(_, _, sequence, _)| sequence);
    assert_eq!(again.map(|(_, is, sequence, _)| (is, sequence)), [(change(3), 0), (change(4), 1)]);
    assert_eq!(again[0].0, first);
    for (transfer, _, sequence, _) in again {
        world.send(line, updated(transfer, Status::Ok, 40 + u64::from(sequence)), &[]);
    }
    assert_eq!([1, 2].map(|number| wait_end(&mut world, number)), [OK; 2]);
    assert_eq!([1, 2].map(|number| value_of(&world, number)), [40, 41]);
    // What is over comes no more.
    world.submit(SESSION, 3, add(5));
    let (transfer, _, sequence, behind) = update(world.next(line));
    assert_eq!((sequence, behind), (2, 0));
    world.send(line, updated(transfer, Status::Denied, 0), &[]);
    assert_eq!(wait_end(&mut world, 3), (Status::Denied, 0));
    assert_eq!(world.reasons().len(), 1);
}

#[test]
fn an_update_that_another_daemon_may_have_done_is_not_sent_to_the_next() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, add(3));
    update(world.next(line));
    let line = lose_lane(&mut world, line, 10);
    assert_eq!(wait_end(&mut world, 1), (Status::OutcomeUnknown, 0));
    // One that was not asked before is.
    world.submit(SESSION, 2, add(3));
    let (transfer, _, _, behind) = update(world.next(line));
    assert_eq!(behind, 0);
    world.send(line, updated(transfer, Status::Ok, 1), &[]);
    assert_eq!(wait_end(&mut world, 2), OK);
}

#[test]
fn no_more_updates_are_under_way_than_a_peer_remembers() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    // The lane takes 64 requests; what it has answered, but for the first, makes room.
    for number in 0..u64::from(NUMBERS_PER_HANDLE) + 50 {
        world.submit(SESSION, number, add(1));
        world.settle_turn();
        while world.has_frame(line) {
            let (transfer, _, sequence, behind) = update(world.next(line));
            assert_eq!(sequence - u32::from(behind), 0);
            if sequence > 0 {
                world.send(line, updated(transfer, Status::Ok, 0), &[]);
            }
        }
        world.settle();
    }
    while world.has_frame(line) {
        world.next(line);
    }
    let done = (0..u64::from(NUMBERS_PER_HANDLE) + 50)
        .filter(|&number| world.end_of(number).is_some())
        .count();
    assert_eq!(done, 255, "the first is not answered, and so the 257th is not asked");
}

#[test]
fn a_notification_follows_the_bytes_of_its_put() {
    for updated_first in [false, true] {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        world.submit(SESSION, 1, put(200_000, Some(7)));
        let (transfer, length) = take_write(&mut world, line);
        let (of, after, sequence) = notification(world.next(line));
        let client = SESSION.0;
        assert_eq!((of, sequence), (transfer, 0));
        assert_eq!(after, After::Writes { client, failed: 0 });
        let mut answers = [end(transfer, Status::Ok, length), updated(transfer, Status::Ok, 0)];
        if updated_first {
            answers.reverse();
        }
        world.send(line, answers[0], &[]);
        world.settle();
        assert_eq!(world.end_of(1), None, "half of the answers are there");
        world.send(line, answers[1], &[]);
        assert_eq!(wait_end(&mut world, 1), (Status::Ok, length));
        assert_eq!(world.reasons(), [""; 0]);
    }
}

#[test]
fn a_notification_that_came_too_early_comes_again_when_its_puts_are_over() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, put(4096, None));
    world.submit(SESSION, 2, put(4096, Some(7)));
    // Their frames mix, and all of them are before the notification.
    let (mut writes, mut bytes) = (Vec::new(), 0);
    let (second, _, sequence) = loop {
        match world.next_frame(line) {
            (frame, payload) if !payload.is_empty() => {
                assert!(matches!(frame.message, Message::WriteData { .. }), "{frame:?}");
                bytes += payload.len();
            }
            (frame, _) => match frame.message {
                Message::Write { transfer, .. } => writes.push(transfer),
                message => break notification(message),
            },
        }
    };
    assert_eq!((writes.len(), writes[1], bytes), (2, second, 8192));
    let first = writes[0];
    world.send(line, updated(second, Status::WouldBlock, 0), &[]);
    world.send(line, end(second, Status::Ok, 4096), &[]);
    world.settle();
    assert!(!world.has_frame(line), "the put before it is not over");
    world.send(line, end(first, Status::Ok, 4096), &[]);
    let again = notification(world.next(line));
    assert_eq!(again, (second, After::Nothing, sequence));
    world.send(line, updated(second, Status::Ok, 0), &[]);
    assert_eq!([1, 2].map(|number| wait_end(&mut world, number)), [(Status::Ok, 4096); 2]);
}

#[test]
fn a_notification_waits_for_puts_that_took_another_way() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    // Of the other class, so in another queue of the peer's lanes; its lane is not up.
    world.submit_bulk(SESSION, 1, put(4096, None));
    world.submit(SESSION, 2, Verb::Notify { handle: HANDLE, id: 7 });
    world.settle();
    assert!(!world.has_frame(line));
    let bulk = world.answer_connect(LaneClass::Bulk, CREDIT);
    let (transfer, length) = take_write(&mut world, bulk);
    world.settle();
    assert!(!world.has_frame(line) && !world.has_frame(bulk));
    world.send(bulk, end(transfer, Status::Ok, length), &[]);
    let (of, after, _) = notification(world.next(line));
    assert_eq!(after, After::Nothing);
    world.send(line, updated(of, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 2), OK);
}

#[test]
fn a_put_whose_notification_waits_for_others_leaves_the_shard_at_rest() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit_bulk(SESSION, 1, put(4096, None));
    world.submit(SESSION, 2, put(4096, Some(7)));
    for _ in 0..100 {
        world.shard.drive(&mut world.kernel.io(world.node));
    }
    assert_ne!(world.shard.poll_timeout(), Some(Nanos::ZERO), "it has nothing to do");
    let (second, length) = take_write(&mut world, line);
    let bulk = world.answer_connect(LaneClass::Bulk, CREDIT);
    let (first, _) = take_write(&mut world, bulk);
    world.send(line, end(second, Status::Ok, length), &[]);
    world.settle();
    assert!(!world.has_frame(line));
    world.send(bulk, end(first, Status::Ok, length), &[]);
    let (transfer, after, _) = notification(world.next(line));
    assert_eq!(after, After::Nothing);
    world.send(line, updated(transfer, Status::Ok, 0), &[]);
    assert_eq!([1, 2].map(|number| wait_end(&mut world, number)), [(Status::Ok, 4096); 2]);
}

#[test]
fn a_notification_whose_lane_was_lost_is_asked_for_on_the_next_of_its_class() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    // Too long for the lane of its class: the notification follows it on the other one.
    world.submit(SESSION, 1, put(300_000, None));
    let bulk = world.answer_connect(LaneClass::Bulk, CREDIT);
    take_write(&mut world, bulk);
    world.submit(SESSION, 2, Verb::Notify { handle: HANDLE, id: 7 });
    let (second, after, _) = notification(world.next(bulk));
    assert_eq!(after, After::Writes { client: SESSION.0, failed: 0 });
    world.hang_up(bulk);
    let line = lose_lane(&mut world, line, 9);
    world.settle();
    assert!(!world.has_frame(line), "what the lost one carried may still come");
    let bulk = world.answer_connect_as(LaneClass::Bulk, CREDIT, 9);
    assert_eq!(notification(world.next(bulk)), (second, After::Known, 0));
    world.send(bulk, updated(second, Status::Ok, 0), &[]);
    assert_eq!(
        [1, 2].map(|number| wait_end(&mut world, number)),
        [(Status::Ok, 300_000), (Status::Ok, 0)]
    );
}

#[test]
fn a_notification_for_which_there_is_no_room_ends_so() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, Verb::Notify { handle: HANDLE, id: 7 });
    let (transfer, after, _) = notification(world.next(line));
    assert_eq!(after, After::Nothing);
    world.send(line, updated(transfer, Status::WouldBlock, 0), &[]);
    assert_eq!(wait_end(&mut world, 1).0, Status::WouldBlock);
    world.settle();
    assert!(!world.has_frame(line), "it is not asked again");
}

#[test]
fn a_word_that_is_none_is_refused_before_a_peer_hears_of_it() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    for (number, offset) in (1..).zip([1, 4, 63, u64::MAX - 7, u64::MAX]) {
        let update = Update::Add(1);
        world.submit(SESSION, number, Verb::Update { handle: HANDLE, offset, update });
        assert_eq!(wait_end(&mut world, number).0, Status::Invalid, "{offset}");
    }
    world.settle();
    assert!(!world.has_frame(line));
    assert_eq!(world.reasons(), [""; 0]);
}

/// A put, and behind it a notification, alone or of another put; all are under way. Their numbers.
fn notified_of(world: &mut World, line: LineId, alone: bool) -> (u64, u64) {
    world.submit(SESSION, 1, put(4096, None));
    let (first, _) = take_write(world, line);
    if alone {
        world.submit(SESSION, 2, Verb::Notify { handle: HANDLE, id: 7 });
    } else {
        world.submit(SESSION, 2, put(4096, Some(7)));
        take_write(world, line);
    }
    let (second, after, _) = notification(world.next(line));
    assert_eq!(after, After::Writes { client: SESSION.0, failed: 0 });
    (first, second)
}

#[test]
fn puts_before_a_notification_that_was_done_are_not_written_again() {
    for alone in [true, false] {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        let (_, second) = notified_of(&mut world, line, alone);
        let line = lose_lane(&mut world, line, 9);
        assert_eq!(notification(world.next(line)), (second, After::Known, 0));
        world.settle();
        assert!(!world.has_frame(line), "no byte of either");
        world.send(line, updated(second, Status::Ok, 0), &[]);
        let bytes = if alone { 0 } else { 4096 };
        let ends = [1, 2].map(|number| wait_end(&mut world, number));
        assert_eq!(ends, [(Status::Ok, 4096), (Status::Ok, bytes)]);
        assert!(!world.has_frame(line));
    }
}

#[test]
fn puts_before_a_notification_that_was_given_up_are_not_written_again() {
    for alone in [true, false] {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        notified_of(&mut world, line, alone);
        world.submit(SESSION, 3, Verb::Cancel { target: 2 });
        assert_eq!(wait_end(&mut world, 2).0, Status::Cancelled);
        // Whether the peer has notified nobody will tell any more.
        let line = lose_lane(&mut world, line, 9);
        assert_eq!(wait_end(&mut world, 1).0, Status::OutcomeUnknown);
        world.settle();
        assert!(!world.has_frame(line), "no byte of either");
    }
}

#[test]
fn a_put_whose_answer_comes_ends_well_also_when_a_notification_behind_it_was_given_up() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let (first, _) = notified_of(&mut world, line, true);
    world.submit(SESSION, 3, Verb::Cancel { target: 2 });
    assert_eq!(wait_end(&mut world, 2).0, Status::Cancelled);
    world.send(line, end(first, Status::Ok, 4096), &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 4096));
}

#[test]
fn puts_before_a_notification_that_was_not_done_are_written_again() {
    for alone in [true, false] {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        let (first, second) = notified_of(&mut world, line, alone);
        let line = lose_lane(&mut world, line, 9);
        assert_eq!(notification(world.next(line)), (second, After::Known, 0));
        world.send(line, updated(second, Status::WouldBlock, 0), &[]);
        let puts = if alone { vec![first] } else { vec![first, second] };
        let (mut again, mut bytes) = (Vec::new(), 0);
        while bytes < 4096 * puts.len() {
            let (frame, payload) = world.next_frame(line);
            bytes += payload.len();
            if let Message::Write { transfer, .. } = frame.message {
                again.push(transfer);
            }
        }
        again.sort_unstable();
        assert_eq!(again, puts);
        for put in puts {
            world.send(line, end(put, Status::Ok, 4096), &[]);
        }
        let (of, after, sequence) = notification(world.next(line));
        assert_eq!((of, after, sequence), (second, After::Nothing, 1));
        world.send(line, updated(second, Status::Ok, 0), &[]);
        assert_eq!([1, 2].map(|number| wait_end(&mut world, number).0), [Status::Ok; 2]);
    }
}

#[test]
fn a_notification_that_was_answered_vouches_for_the_puts_before_it() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let (_, second) = notified_of(&mut world, line, true);
    world.send(line, updated(second, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 2), OK);
    assert_eq!(world.end_of(1), None, "its answer may still say more");
    let line = lose_lane(&mut world, line, 9);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 4096));
    world.settle();
    assert!(!world.has_frame(line));
}

#[test]
fn a_put_that_another_notification_vouches_for_still_has_its_own() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, put(4096, Some(7)));
    take_write(&mut world, line);
    let (first, _, sequence) = notification(world.next(line));
    world.submit(SESSION, 2, Verb::Notify { handle: HANDLE, id: 7 });
    let (second, ..) = notification(world.next(line));
    // Its bytes had not landed when its own came, and had when the other did.
    world.send(line, updated(first, Status::WouldBlock, 0), &[]);
    world.send(line, updated(second, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 2), OK);
    let line = lose_lane(&mut world, line, 9);
    let again = notification(world.next(line));
    assert_eq!(again, (first, After::Nothing, sequence), "and no byte");
    world.send(line, updated(first, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 4096));
}

#[test]
fn a_put_is_not_written_again_when_its_notification_was_done() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, put(4096, Some(7)));
    let (transfer, length) = take_write(&mut world, line);
    let (_, _, sequence) = notification(world.next(line));
    let line = lose_lane(&mut world, line, 9);
    assert_eq!(notification(world.next(line)), (transfer, After::Known, sequence));
    world.settle();
    assert!(!world.has_frame(line), "no byte of it");
    world.send(line, updated(transfer, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, length));
    // And one whose notification was not done is, under another number.
    world.submit(SESSION, 2, put(4096, Some(7)));
    take_write(&mut world, line);
    let (transfer, ..) = notification(world.next(line));
    let line = lose_lane(&mut world, line, 9);
    let (_, after, sequence) = notification(world.next(line));
    assert_eq!(after, After::Known);
    world.send(line, updated(transfer, Status::WouldBlock, 0), &[]);
    let (transfer, length) = take_write(&mut world, line);
    world.settle();
    assert!(!world.has_frame(line), "after a loss it waits for the end of its put");
    world.send(line, end(transfer, Status::Ok, length), &[]);
    let (_, after, later) = notification(world.next(line));
    assert_eq!((after, later), (After::Nothing, sequence + 1));
    world.send(line, updated(transfer, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, length));
}

#[test]
fn a_put_that_is_given_up_owes_two_answers() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, put(4096, Some(7)));
    let (transfer, _) = take_write(&mut world, line);
    notification(world.next(line));
    world.submit(SESSION, 2, Verb::Cancel { target: 1 });
    assert_eq!(wait_end(&mut world, 1).0, Status::Cancelled);
    assert!(matches!(world.next(line), Message::Cancel { .. }));
    world.send(line, end(transfer, Status::Cancelled, 0), &[]);
    world.send(line, updated(transfer, Status::WouldBlock, 0), &[]);
    world.settle();
    assert_eq!(world.reasons(), [""; 0]);
    // A third is too many.
    world.send(line, updated(transfer, Status::WouldBlock, 0), &[]);
    world.settle();
    assert_eq!(world.reasons().len(), 1);
}

#[test]
fn an_answer_to_an_update_that_is_none_costs_the_lane() {
    for verb in [read(0, 4096), put(4096, None)] {
        let mut world = World::new();
        let (line, _) = connected(&mut world, &[SESSION]);
        world.submit(SESSION, 1, verb);
        let transfer = match world.next(line) {
            Message::Read { transfer, .. } | Message::Write { transfer, .. } => transfer,
            other => panic!("{other:?}"),
        };
        world.send(line, updated(transfer, Status::Ok, 0), &[]);
        world.settle();
        assert_eq!(world.reasons(), ["an answer to an update that was not sent"]);
        assert_eq!(world.end_of(1), None, "it waits for the next lane");
    }
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, add(1));
    let (transfer, ..) = update(world.next(line));
    world.send(line, end(transfer, Status::Ok, 0), &[]);
    world.settle();
    assert_eq!(world.reasons(), ["an end of what is answered otherwise"]);
}

#[test]
fn what_is_fenced_and_a_flush_wait_for_all_before_them() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    world.submit(SESSION, 1, put(4096, None));
    let fenced = Request {
        verb: add(1),
        class: Class::Latency,
        deadline: None,
        no_wait: false,
        fence: true,
    };
    world.submit_request(SESSION, 2, fenced);
    world.submit(SESSION, 3, Verb::Flush { handle: HANDLE });
    world.submit(SESSION, 4, add(2));
    let (write, length) = take_write(&mut world, line);
    // One behind a fence goes before it: who wants it otherwise fences it, too.
    let (unfenced, ..) = update(world.next(line));
    world.settle();
    assert!(!world.has_frame(line));
    world.send(line, end(write, Status::Denied, 0), &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::Denied, 0));
    let (transfer, change, ..) = update(world.next(line));
    assert_eq!(change, Change::Word { offset: 64, update: Update::Add(1) });
    world.settle();
    assert_eq!(world.end_of(3), None);
    world.send(line, updated(transfer, Status::Ok, 0), &[]);
    assert_eq!([2, 3].map(|number| wait_end(&mut world, number)), [OK; 2]);
    assert_eq!(world.end_of(4), None, "it is behind the flush");
    assert_ne!(length, 0);
    world.send(line, updated(unfenced, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 4), OK);
}

/// A lane from a peer that has a region of a client's open.
fn served(world: &mut World, access: Access) -> (LineId, SegmentId, u32) {
    let line = world.lane("beta", LaneClass::Latency, 1);
    let segment = world.session(SESSION, 1 << 20);
    let target = match region(1, segment, 1 << 20) {
        Target::Region(region) => Target::Region(RegionTarget { access, ..region }),
        other => other,
    };
    let own = region(1, segment, 1 << 20);
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target: own });
    let handle = world.open(line, 1, target);
    (line, segment, handle)
}

fn ask(handle: u32, transfer: u64, change: Change, sequence: u32, behind: u8) -> Message {
    Message::Update { transfer, handle, change, sequence, behind }
}

fn answer(world: &mut World, line: LineId) -> (u64, Status, u64) {
    loop {
        match world.next(line) {
            Message::Updated { transfer, status, value } => return (transfer, status, value),
            Message::Credit { .. } | Message::Report { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn word(world: &World, segment: SegmentId, offset: u64) -> u64 {
    let bytes = world.kernel.bytes(world.node, Span { segment, offset, length: 8 });
    u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
}

#[test]
fn what_comes_again_is_not_done_again() {
    let mut world = World::new();
    let (line, segment, handle) = served(&mut world, Access::ALL);
    let add = |addend| Change::Word { offset: 8, update: Update::Add(addend) };
    world.send(line, ask(handle, 1, add(5), 0, 0), &[]);
    world.send(line, ask(handle, 2, add(7), 1, 1), &[]);
    assert_eq!(answer(&mut world, line), (1, Status::Ok, 0));
    assert_eq!(answer(&mut world, line), (2, Status::Ok, 5));
    // Its lane is lost, and the next one brings both again.
    world.hang_up(line);
    let line = world.lane("beta", LaneClass::Latency, 2);
    assert_eq!(world.open_again(line, 1, OpenKind::Region), handle);
    world.send(line, ask(handle, 3, add(7), 1, 1), &[]);
    world.send(line, ask(handle, 4, add(5), 0, 0), &[]);
    assert_eq!(answer(&mut world, line), (3, Status::Ok, 5));
    assert_eq!(answer(&mut world, line), (4, Status::Ok, 0));
    assert_eq!(word(&world, segment, 8), 12);
    let swap =
        |expected, new| Change::Word { offset: 8, update: Update::CompareSwap { expected, new } };
    world.send(line, ask(handle, 5, swap(12, 100), 2, 0), &[]);
    world.send(line, ask(handle, 6, swap(12, 200), 3, 0), &[]);
    assert_eq!(answer(&mut world, line), (5, Status::Ok, 12));
    assert_eq!(answer(&mut world, line), (6, Status::Ok, 100));
    assert_eq!(word(&world, segment, 8), 100);
    // Withdrawn, what was done is known still; nothing else is done.
    world.command(Command::RevokeRegion { region: RegionId(1) });
    world.send(line, ask(handle, 7, swap(12, 200), 3, 0), &[]);
    world.send(line, ask(handle, 8, swap(12, 200), 4, 1), &[]);
    assert_eq!(answer(&mut world, line), (7, Status::Ok, 100));
    assert_eq!(answer(&mut world, line), (8, Status::Gone, 0));
}

#[test]
fn a_word_is_changed_only_where_that_is_allowed() {
    let mut world = World::new();
    let (line, segment, handle) = served(&mut world, Access::READ_WRITE);
    let at = |offset| Change::Word { offset, update: Update::Add(1) };
    world.send(line, ask(handle, 1, at(0), 0, 0), &[]);
    assert_eq!(answer(&mut world, line), (1, Status::Denied, 0));
    let mut world2 = World::new();
    let (line2, _, handle2) = served(&mut world2, Access { write: false, ..Access::ALL });
    for (transfer, offset) in [(1, 1 << 20), (2, u64::MAX / 8 * 8 - 8), (3, (1 << 20) - 8)] {
        world2.send(line2, ask(handle2, transfer, at(offset), transfer as u32, 0), &[]);
        let status = if transfer == 3 { Status::Ok } else { Status::Invalid };
        assert_eq!(answer(&mut world2, line2), (transfer, status, 0));
    }
    let notify = Change::Notify { id: 7, after: After::Nothing };
    world2.send(line2, ask(handle2, 4, notify, 9, 0), &[]);
    assert_eq!(answer(&mut world2, line2), (4, Status::Denied, 0));
    world2.send(line2, ask(handle2 + 1, 5, at(0), 0, 0), &[]);
    assert_eq!(answer(&mut world2, line2), (5, Status::BadHandle, 0));
    assert_eq!(word(&world, segment, 0), 0);
    // Of a file there are no words.
    let file = world.file(4096);
    let file = world.open(line, 2, file);
    world.send(line, ask(file, 2, at(0), 0, 0), &[]);
    assert_eq!(answer(&mut world, line), (2, Status::Invalid, 0));
}

#[test]
fn a_notification_does_not_overtake_a_put() {
    let mut world = World::new();
    let (line, _, handle) = served(&mut world, Access::WRITE);
    world.submit(SESSION, 1, Verb::Wait { handle: HANDLE, id: 7, count: 1 });
    let behind_writes =
        |failed| Change::Notify { id: 7, after: After::Writes { client: 0, failed } };
    world.send(line, write(10, handle, 8192), &[]);
    world.send(line, write_data(10, 0), &[1; 4096]);
    world.send(line, ask(handle, 11, behind_writes(0), 0, 0), &[]);
    assert_eq!(answer(&mut world, line), (11, Status::WouldBlock, 0));
    // Another client's notification does not wait for it.
    let other = Change::Notify { id: 8, after: After::Writes { client: 1, failed: 0 } };
    world.send(line, ask(handle, 12, other, 1, 1), &[]);
    assert_eq!(answer(&mut world, line), (12, Status::Ok, 0));
    world.send(line, write_data(10, 4096), &[1; 4096]);
    world.send(line, ask(handle, 13, behind_writes(0), 0, 0), &[]);
    // Both are answered, whichever first.
    let mut ends = [world.next(line), world.next(line)];
    ends.sort_by_key(|message| matches!(message, Message::Updated { .. }));
    assert!(matches!(ends[0], Message::End { transfer: 10, status: Status::Ok, .. }), "{ends:?}");
    assert_eq!(ends[1], updated(13, Status::Ok, 0));
    assert_eq!(wait_end(&mut world, 1), OK);
    // One that came again, and one that is only asked for.
    for (transfer, sequence, status) in [(14, 0, Status::Ok), (15, 2, Status::WouldBlock)] {
        let known = Change::Notify { id: 7, after: After::Known };
        world.send(line, ask(handle, transfer, known, sequence, 0), &[]);
        assert_eq!(answer(&mut world, line), (transfer, status, 0));
    }
    world.submit(SESSION, 2, Verb::Wait { handle: HANDLE, id: 7, count: 1 });
    world.settle();
    assert_eq!(world.end_of(2), None, "it was done once");
    // A put that failed and that the peer cannot know of yet.
    world.send(line, write(20, handle, 2 << 20), &[]);
    world.send(line, ask(handle, 21, behind_writes(0), 3, 0), &[]);
    assert_eq!(world.read_end(line, 20), Status::Invalid);
    assert_eq!(answer(&mut world, line), (21, Status::WouldBlock, 0));
    world.send(line, ask(handle, 22, behind_writes(1), 3, 0), &[]);
    assert_eq!(answer(&mut world, line), (22, Status::Ok, 0));
    assert_eq!(wait_end(&mut world, 2), OK);
}

#[test]
fn waits_take_what_they_ask_for_in_their_order() {
    let mut world = World::new();
    let (line, ..) = served(&mut world, Access::ALL);
    let wait = |count| Verb::Wait { handle: HANDLE, id: 7, count };
    let notify = Verb::Notify { handle: HANDLE, id: 7 };
    world.submit_as(SESSION, 1, wait(1), true);
    assert_eq!(wait_end(&mut world, 1).0, Status::WouldBlock);
    world.submit(SESSION, 2, wait(2));
    world.submit(SESSION, 3, wait(1));
    world.submit(SESSION, 10, notify);
    world.settle();
    assert_eq!((world.end_of(2), world.end_of(3)), (None, None));
    for number in 11..15 {
        world.submit(SESSION, number, notify);
    }
    assert_eq!([2, 3].map(|number| wait_end(&mut world, number)), [OK; 2]);
    world.settle();
    world.submit_as(SESSION, 4, wait(2), true);
    assert_eq!((wait_end(&mut world, 4), value_of(&world, 4)), (OK, 0));
    assert_eq!(world.end_of(1), Some((Status::WouldBlock, 0)));
    // One that is given up has what it waited for left to the next.
    world.submit(SESSION, 5, wait(3));
    world.submit(SESSION, 6, wait(1));
    world.submit(SESSION, 20, notify);
    world.submit(SESSION, 21, Verb::Cancel { target: 5 });
    assert_eq!(wait_end(&mut world, 6), OK);
    assert_eq!(wait_end(&mut world, 5).0, Status::Cancelled);
    for (number, verb) in [(7, wait(0)), (8, Verb::Wait { handle: HandleId(99), id: 7, count: 1 })]
    {
        world.submit(SESSION, number, verb);
        assert_ne!(wait_end(&mut world, number).0, Status::Ok);
    }
    world.submit(SESSION, 9, wait(1));
    world.command(Command::RevokeRegion { region: RegionId(1) });
    assert_eq!(wait_end(&mut world, 9).0, Status::Gone);
    assert!(world.is_up(line));
}

#[test]
fn on_one_node_puts_notifications_and_words_meet_in_one_memory() {
    let mut world = World::new();
    let (_, segment, _) = served(&mut world, Access::ALL);
    let other = world.session(OTHER, 1 << 20);
    let target = region(1, segment, 1 << 20);
    world.command(Command::InstallHandle { session: OTHER, handle: HANDLE, target });
    world.kernel.bytes_mut(world.node, Span { segment: other, offset: 0, length: 600_000 }).fill(9);
    world.submit(SESSION, 1, Verb::Wait { handle: HANDLE, id: 7, count: 1 });
    // The other may not wait for what is the exporter's.
    world.submit(OTHER, 2, Verb::Wait { handle: HANDLE, id: 7, count: 1 });
    assert_eq!(wait_end(&mut world, 2).0, Status::Denied);
    world.submit(OTHER, 3, put(600_000, None));
    world.submit(OTHER, 4, put(4096, Some(7)));
    assert_eq!(wait_end(&mut world, 1), OK);
    let there = Span { segment, offset: 0, length: 600_000 };
    assert!(world.kernel.bytes(world.node, there).iter().all(|&byte| byte == 9));
    let at = |update| Verb::Update { handle: HANDLE, offset: 700_000, update };
    world.submit(OTHER, 5, at(Update::Add(3)));
    world.submit(OTHER, 6, at(Update::CompareSwap { expected: 3, new: 8 }));
    assert_eq!([5, 6].map(|number| wait_end(&mut world, number)), [OK; 2]);
    assert_eq!((value_of(&world, 6), word(&world, segment, 700_000)), (3, 8));
    for (number, offset) in [(7, 700_001), (8, 1 << 20)] {
        let verb = Verb::Update { handle: HANDLE, offset, update: Update::Add(1) };
        world.submit(OTHER, number, verb);
        assert_eq!(wait_end(&mut world, number).0, Status::Invalid);
    }
}
