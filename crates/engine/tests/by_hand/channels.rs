//! Messages: between clients of a node, from a peer, to a peer.

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::ids::{ChannelId, HandleId, SegmentId, SessionId};
use piped_core::io::Span;
use piped_core::link::{Checksum, LaneClass};
use piped_core::modes::EagerMode;
use piped_core::request::{ArenaBuffer, Completion, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{
    ChannelTarget, ClientLimits, Command, Event, Limits, OpenRequest, Target,
};
use piped_report::dial::{DialCost, DialPlace};
use piped_report::tally::MessageWay;
use piped_wire::Message;

use crate::asking::{ARENA, CREDIT};
use crate::world::{LineId, PEER, SESSION, World, end};

pub(crate) const SENDER: SessionId = SessionId(2);
pub(crate) const CHANNEL: ChannelId = ChannelId(1);
/// The end that receives, of [`SESSION`].
pub(crate) const INBOX: HandleId = HandleId(1);
/// The end that sends, of [`SENDER`].
const OUTBOX: HandleId = HandleId(2);

fn target(receives: bool) -> Target {
    target_of(CHANNEL, receives)
}

pub(crate) fn target_of(channel: ChannelId, receives: bool) -> Target {
    Target::Channel(ChannelTarget { channel, receives, home: 0, owner: SESSION })
}

/// A channel of [`SESSION`], whose memory this is.
fn channel(world: &mut World) -> SegmentId {
    let segment = world.session(SESSION, ARENA);
    let (session, handle) = (SESSION, INBOX);
    world.command(Command::InstallHandle { session, handle, target: target(true) });
    segment
}

/// And a sender on the same node, whose memory this is.
pub(crate) fn with_sender(world: &mut World) -> [SegmentId; 2] {
    let inbox = channel(world);
    let outbox = world.session(SENDER, ARENA);
    let (session, handle) = (SENDER, OUTBOX);
    world.command(Command::InstallHandle { session, handle, target: target(false) });
    [inbox, outbox]
}

fn at(offset: u64, length: u64) -> ArenaBuffer {
    ArenaBuffer { segment: 0, offset, length }
}

pub(crate) fn send(tag: u64, offset: u64, length: u64) -> Verb {
    Verb::Send { handle: OUTBOX, tag, buffer: at(offset, length) }
}

pub(crate) fn receive(tag: Option<u64>, offset: u64, length: u64) -> Verb {
    Verb::Receive { handle: INBOX, tag, buffer: at(offset, length) }
}

fn fill(world: &mut World, segment: SegmentId, offset: u64, length: u32, byte: u8) {
    let span = Span { segment, offset, length };
    world.kernel.bytes_mut(world.node, span).fill(byte);
}

/// Whether all bytes of a piece are one.
fn holds(world: &World, segment: SegmentId, offset: u64, length: u32, byte: u8) -> bool {
    let span = Span { segment, offset, length };
    world.kernel.bytes(world.node, span).iter().all(|&it| it == byte)
}

pub(crate) fn wait_end(world: &mut World, user_data: u64) -> (Status, u64) {
    world.wait("an end", |world| world.end_of(user_data))
}

pub(crate) fn value_of(world: &World, user_data: u64) -> u64 {
    let of = |completion: &Completion| match completion {
        Completion::Finished { origin, value, .. } if origin.user_data == user_data => Some(*value),
        _ => None,
    };
    world.completions.iter().find_map(of).expect("it has ended")
}

pub(crate) fn limits(early_arrival: u64) -> Limits {
    Limits { client: ClientLimits { early_arrival, ..Limits::NONE.client }, ..Limits::NONE }
}

/// Staging in use, in bytes.
fn staging(world: &World) -> u64 {
    world.shard.report().limits.staging.now
}

fn ways(world: &World) -> [u64; MessageWay::ALL.len()] {
    world.shard.observe().tally.messages
}

#[test]
fn a_short_message_is_sent_before_anybody_asks_and_a_long_one_waits() {
    let mut world = World::new();
    let [inbox, outbox] = with_sender(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(4096)));
    fill(&mut world, outbox, 0, 4096, 1);
    fill(&mut world, outbox, 8192, 4097, 2);
    world.submit(SENDER, 1, send(7, 0, 4096));
    world.submit(SENDER, 2, send(7, 8192, 4097));
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 4096));
    world.settle();
    assert_eq!(world.end_of(2), None);
    // The sender has its buffer back: what it does with it is its own affair.
    fill(&mut world, outbox, 0, 4096, 9);
    world.submit(SESSION, 11, receive(Some(7), 0, 10_000));
    world.submit(SESSION, 12, receive(None, 16_384, 10_000));
    assert_eq!(wait_end(&mut world, 11), (Status::Ok, 4096));
    assert_eq!(wait_end(&mut world, 12), (Status::Ok, 4097));
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, 4097));
    assert!(holds(&world, inbox, 0, 4096, 1) && holds(&world, inbox, 16_384, 4097, 2));
    assert_eq!(value_of(&world, 12), 7);
    assert!(world.shard.is_idle());
}

#[test]
fn messages_of_a_tag_are_received_in_order_whatever_their_way() {
    let mut world = World::new();
    let [inbox, outbox] = with_sender(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(1000)));
    // Every other one is eager, and tags come between each other.
    let lengths = |number: u64| if number.is_multiple_of(2) { 100 + number } else { 5000 + number };
    for number in 0..16 {
        fill(&mut world, outbox, number << 14, 8192, number as u8 + 1);
        world.submit(SENDER, number, send(number % 3, number << 14, lengths(number)));
    }
    world.settle();
    for tag in 0..3 {
        for number in (0..16).filter(|number| number % 3 == tag) {
            let place = 100 + number;
            world.submit(SESSION, place, receive(Some(tag), number << 14, 8192));
            assert_eq!(wait_end(&mut world, place), (Status::Ok, lengths(number)));
            let length = lengths(number) as u32;
            assert!(holds(&world, inbox, number << 14, length, number as u8 + 1), "{number}");
        }
    }
    assert!(world.shard.is_idle());
}

#[test]
fn a_message_longer_than_the_buffer_is_for_a_longer_one() {
    let mut world = World::new();
    let [inbox, outbox] = with_sender(&mut world);
    fill(&mut world, outbox, 0, 5000, 3);
    for eager in [0, 1 << 20] {
        world.command(Command::SetEager(EagerMode::Fixed(eager)));
        world.completions.clear();
        world.submit(SESSION, 11, receive(None, 0, 4999));
        world.submit(SENDER, 1, send(5, 0, 5000));
        assert_eq!(wait_end(&mut world, 11), (Status::TooLong, 0));
        world.submit(SESSION, 12, receive(Some(5), 0, 4999));
        assert_eq!(wait_end(&mut world, 12), (Status::TooLong, 0));
        world.submit(SESSION, 13, receive(Some(5), 0, 5000));
        assert_eq!(wait_end(&mut world, 13), (Status::Ok, 5000));
        assert_eq!(wait_end(&mut world, 1), (Status::Ok, 5000));
        assert!(holds(&world, inbox, 0, 5000, 3));
    }
}

#[test]
fn what_is_given_up_leaves_its_message_or_its_receive_to_others() {
    let mut world = World::new();
    let [inbox, outbox] = with_sender(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    // A receive that nobody wrote to, and a send that nobody asked for.
    world.submit(SESSION, 11, receive(Some(1), 0, 100));
    world.submit(SESSION, 12, Verb::Cancel { target: 11 });
    assert_eq!(wait_end(&mut world, 11), (Status::Cancelled, 0));
    world.submit(SENDER, 1, send(1, 0, 100));
    world.submit(SENDER, 2, send(1, 200, 50));
    world.submit(SENDER, 3, Verb::Cancel { target: 1 });
    assert_eq!(wait_end(&mut world, 1), (Status::Cancelled, 0));
    // The next takes its place. One that is copied in pieces is given up in the middle.
    world.submit(SESSION, 13, receive(Some(1), 0, 100));
    assert_eq!(wait_end(&mut world, 13), (Status::Ok, 50));
    let cost = DialCost { overhead_ns: 10_000_000, ..DialCost::default() };
    world.command(Command::SetDial { place: DialPlace::Copy, cost });
    fill(&mut world, outbox, 0, 1 << 20, 8);
    world.submit(SENDER, 4, send(1, 0, 1 << 20));
    world.submit(SESSION, 14, receive(Some(1), 0, 1 << 20));
    world.run_for(Nanos::from_millis(25));
    world.submit(SESSION, 15, Verb::Cancel { target: 14 });
    assert_eq!(wait_end(&mut world, 14).0, Status::Cancelled);
    world.submit(SESSION, 16, receive(Some(1), 0, 1 << 20));
    assert_eq!(wait_end(&mut world, 16), (Status::Ok, 1 << 20));
    assert_eq!(wait_end(&mut world, 4), (Status::Ok, 1 << 20));
    assert!(holds(&world, inbox, 0, 1 << 20, 8));
    assert!(world.shard.is_idle());
}

#[test]
fn early_arrival_memory_has_a_limit_and_comes_back() {
    let mut world = World::new();
    let [_, _] = with_sender(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(60_000)));
    world.command(Command::SetLimits(limits(128 << 10)));
    for number in 0..4 {
        world.submit(SENDER, number, send(number, 0, 60_000));
    }
    world.settle();
    let ended = |world: &World| (0..4).filter(|&number| world.end_of(number).is_some()).count();
    assert_eq!(ended(&world), 2);
    assert_eq!(ways(&world)[MessageWay::Stalled as usize], 2);
    let used = staging(&world);
    for number in 0..4 {
        world.submit(SESSION, 10 + number, receive(None, 0, 60_000));
        assert_eq!(wait_end(&mut world, 10 + number), (Status::Ok, 60_000));
        assert_eq!(value_of(&world, 10 + number), number);
    }
    assert_eq!(ended(&world), 4);
    assert!(staging(&world) < used);
}

#[test]
fn receives_that_wait_leave_room_for_what_brings_their_messages() {
    let mut world = World::new();
    let [inbox, outbox] = with_sender(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    let client = ClientLimits { in_flight: 4096, ..Limits::NONE.client };
    let limits = Limits { requests: 1, in_flight: 4096, client, ..Limits::NONE };
    world.command(Command::SetLimits(limits));
    // As many as there are places for, and some more.
    let most = 256 / 2;
    for number in 0..most + 5 {
        world.submit(SESSION, 1000 + number, receive(Some(number), number << 12, 4096));
    }
    for number in most..most + 5 {
        assert_eq!(wait_end(&mut world, 1000 + number), (Status::WouldBlock, 0));
    }
    for number in 0..most {
        fill(&mut world, outbox, 0, 4096, number as u8);
        world.submit(SENDER, number, send(number, 0, 4096));
        assert_eq!(wait_end(&mut world, number), (Status::Ok, 4096));
        assert_eq!(wait_end(&mut world, 1000 + number), (Status::Ok, 4096));
        assert!(holds(&world, inbox, number << 12, 4096, number as u8));
    }
    // One session has as many as it may have requests.
    let client = ClientLimits { requests: 2, ..client };
    world.command(Command::SetLimits(Limits { client, ..limits }));
    for number in 2000..2003 {
        world.submit(SESSION, number, receive(Some(1), 0, 4096));
    }
    assert_eq!(wait_end(&mut world, 2002), (Status::WouldBlock, 0));
    assert_eq!((world.end_of(2000), world.end_of(2001)), (None, None));
}

#[test]
fn who_does_not_wait_is_told_that_it_would_have_to() {
    let mut world = World::new();
    let [_, _] = with_sender(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(1000)));
    let would_block = (Status::WouldBlock, 0);
    // Nobody has sent, nobody receives; what finds early-arrival memory need not wait.
    world.submit_as(SESSION, 1, receive(None, 0, 2000), true);
    assert_eq!(wait_end(&mut world, 1), would_block);
    world.submit_as(SENDER, 2, send(7, 0, 1001), true);
    assert_eq!(wait_end(&mut world, 2), would_block);
    world.submit_as(SENDER, 3, send(7, 0, 1000), true);
    assert_eq!(wait_end(&mut world, 3), (Status::Ok, 1000));
    world.submit_as(SESSION, 4, receive(None, 0, 2000), true);
    assert_eq!(wait_end(&mut world, 4), (Status::Ok, 1000));
    // Nor for a limit: here for the one request that there may be.
    let client = ClientLimits { requests: 1, ..Limits::NONE.client };
    world.command(Command::SetLimits(Limits { client, ..Limits::NONE }));
    world.submit(SENDER, 5, send(7, 0, 1001));
    world.submit_as(SENDER, 6, send(7, 0, 10), true);
    world.submit(SENDER, 7, send(7, 0, 10));
    assert_eq!(wait_end(&mut world, 6), would_block);
    world.settle();
    assert_eq!((world.end_of(5), world.end_of(7)), (None, None));
    world.submit_as(SESSION, 8, receive(None, 0, 2000), true);
    assert_eq!(wait_end(&mut world, 8), (Status::Ok, 1001));
    assert_eq!(wait_end(&mut world, 7), (Status::Ok, 10));
    assert_eq!(world.shard.report().limits.waited, 1);
}

#[test]
fn a_channel_that_goes_ends_what_waits_for_it() {
    for session_ends in [false, true] {
        let mut world = World::new();
        let _ = with_sender(&mut world);
        world.command(Command::SetEager(EagerMode::Fixed(1000)));
        let before = staging(&world);
        world.submit(SENDER, 1, send(1, 0, 1000));
        world.submit(SENDER, 2, send(1, 0, 1001));
        world.settle();
        assert!(staging(&world) > before);
        if session_ends {
            world.submit(SESSION, 11, receive(Some(9), 0, 10));
            world.command(Command::CloseSession { session: SESSION });
        } else {
            world.command(Command::CloseHandle { session: SESSION, handle: INBOX });
        }
        assert_eq!(wait_end(&mut world, 2), (Status::Gone, 0));
        assert_eq!(world.end_of(1), Some((Status::Ok, 1000)));
        world.submit(SENDER, 3, send(1, 0, 10));
        assert_eq!(wait_end(&mut world, 3), (Status::Gone, 0));
        assert_eq!(staging(&world), before);
        let drained = |event: &Event| matches!(event, Event::SessionDrained { session: SESSION });
        assert_eq!(world.events.iter().any(drained), session_ends);
    }
}

#[test]
fn nothing_else_can_be_done_with_a_channel() {
    let mut world = World::new();
    let _ = with_sender(&mut world);
    let (handle, buffer) = (INBOX, at(0, 10));
    let wrong = [
        (SESSION, Verb::Read { handle, offset: 0, buffer, wanted: 0 }, Status::Invalid),
        (SESSION, Verb::Sync { handle }, Status::Invalid),
        (SESSION, Verb::Send { handle, tag: 0, buffer }, Status::Denied),
        (SENDER, Verb::Receive { handle: OUTBOX, tag: None, buffer }, Status::Denied),
        (SENDER, send(0, ARENA - 5, 10), Status::BadBuffer),
        (SENDER, send(0, 0, 0), Status::Invalid),
        (
            SENDER,
            Verb::Write { handle: OUTBOX, offset: 0, buffer, durable: false, notify: None },
            Status::Invalid,
        ),
    ];
    for (number, (session, verb, status)) in wrong.into_iter().enumerate() {
        world.submit(session, number as u64, verb);
        assert_eq!(wait_end(&mut world, number as u64), (status, 0), "{verb:?}");
    }
}

// ---- from a peer ----

/// A peer's message, the `sequence`th by its handle.
pub(crate) fn sent(handle: u32, tag: u64, length: u32, sequence: u32) -> Message {
    Message::Send {
        transfer: 1000 + u64::from(sequence),
        handle,
        tag,
        length,
        sequence,
        oldest: 0,
        time_left_us: 10_000_000,
    }
}

/// A peer that may send to the channel: its lane, its handle, the receiver's memory.
pub(crate) fn peer(world: &mut World) -> (LineId, u32, SegmentId) {
    let segment = channel(world);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, target(false));
    (line, handle, segment)
}

#[test]
fn an_eager_message_of_a_peer_lands_in_the_receive_that_waits() {
    let mut world = World::new();
    let (line, handle, segment) = peer(&mut world);
    world.submit(SESSION, 1, receive(Some(7), 4096, 100_000));
    world.settle();
    world.send(line, sent(handle, 7, 70_000, 0), &[5; 70_000]);
    assert_eq!(world.read_end(line, 1000), Status::Ok);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 70_000));
    assert!(holds(&world, segment, 4096, 70_000, 5));
    assert_eq!(value_of(&world, 1), 7);
    assert_eq!(ways(&world)[MessageWay::Early as usize], 0);
}

#[test]
fn an_eager_message_that_comes_first_is_kept() {
    let mut world = World::new();
    let (line, handle, segment) = peer(&mut world);
    for number in 0..3 {
        let bytes = vec![number as u8 + 1; 3000];
        world.send(line, sent(handle, 7, 3000, number), &bytes);
        assert_eq!(world.read_end(line, 1000 + u64::from(number)), Status::Ok);
    }
    for number in 0..3 {
        world.submit(SESSION, number, receive(None, number << 12, 4096));
        assert_eq!(wait_end(&mut world, number), (Status::Ok, 3000));
        assert!(holds(&world, segment, number << 12, 3000, number as u8 + 1));
    }
    assert_eq!(ways(&world)[MessageWay::Early as usize], 3);
    assert!(world.shard.is_idle());
}

/// What the peer is to write to.
pub(crate) fn ready(world: &mut World, line: LineId, transfer: u64) -> u32 {
    loop {
        match world.next(line) {
            Message::Ready { transfer: of, status: Status::Ok, handle } if of == transfer => {
                return handle;
            }
            Message::Credit { .. } => {}
            other => panic!("not ready: {other:?}"),
        }
    }
}

/// Writes a message to what the peer was told.
pub(crate) fn write_to(world: &mut World, line: LineId, transfer: u64, slot: u32, bytes: &[u8]) {
    let length = bytes.len() as u64;
    world.send(line, crate::world::write(transfer, slot, length), &[]);
    let data = Message::WriteData { transfer, offset: 0, backlogged: false };
    world.send(line, data, bytes);
}

#[test]
fn an_announced_message_is_written_where_it_is_asked_for() {
    let mut world = World::new();
    let (line, handle, segment) = peer(&mut world);
    world.send(line, sent(handle, 7, 50_000, 0), &[]);
    assert_eq!(world.next(line), Message::Queued { transfer: 1000 });
    world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
    let slot = ready(&mut world, line, 1000);
    write_to(&mut world, line, 1000, slot, &[6; 50_000]);
    assert_eq!(world.read_end(line, 1000), Status::Ok);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 50_000));
    assert!(holds(&world, segment, 0, 50_000, 6));
    // Its number is gone, and so is nothing else.
    write_to(&mut world, line, 7777, slot, &[9; 100]);
    assert_eq!(world.read_end(line, 7777), Status::BadHandle);
    // A receive that waits is told of at once.
    world.submit(SESSION, 2, receive(None, 0, 60_000));
    world.settle();
    world.send(line, sent(handle, 8, 50_000, 1), &[]);
    let slot = ready(&mut world, line, 1001);
    write_to(&mut world, line, 1001, slot, &[7; 50_000]);
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, 50_000));
    assert_eq!(value_of(&world, 2), 8);
    world.settle();
    assert!(world.shard.is_idle());
}

#[test]
fn what_there_is_no_early_arrival_memory_for_stays_with_its_sender() {
    let mut world = World::new();
    let (line, handle, segment) = peer(&mut world);
    world.command(Command::SetLimits(limits(0)));
    world.send(line, sent(handle, 7, 3000, 0), &[1; 3000]);
    assert_eq!(world.next(line), Message::Queued { transfer: 1000 });
    assert_eq!(ways(&world)[MessageWay::Stalled as usize], 1);
    world.submit(SESSION, 1, receive(Some(7), 0, 4096));
    let slot = ready(&mut world, line, 1000);
    write_to(&mut world, line, 1000, slot, &[1; 3000]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 3000));
    assert!(holds(&world, segment, 0, 3000, 1));
}

#[test]
fn a_message_that_comes_again_is_received_once() {
    let mut world = World::new();
    let (line, handle, _) = peer(&mut world);
    // One is taken in, one announced; then the lane is lost with the answers.
    world.send(line, sent(handle, 7, 3000, 0), &[1; 3000]);
    world.send(line, sent(handle, 7, 50_000, 1), &[]);
    world.wait_until("answers", |world| world.has_frame(line));
    world.settle();
    world.hang_up(line);
    world.settle();
    let line = world.lane("beta", LaneClass::Latency, 2);
    let again = world.open_again(line, 1, OpenKind::Channel);
    assert_eq!(again, handle);
    world.send(line, sent(handle, 7, 3000, 0), &[1; 3000]);
    assert_eq!(world.read_end(line, 1000), Status::Ok);
    world.send(line, sent(handle, 7, 50_000, 1), &[]);
    assert_eq!(world.next(line), Message::Queued { transfer: 1001 });
    for (number, length) in [(1, 3000), (2, 50_000)] {
        world.submit(SESSION, number, receive(Some(7), 0, 60_000));
        if number == 2 {
            let slot = ready(&mut world, line, 1001);
            write_to(&mut world, line, 1001, slot, &[2; 50_000]);
        }
        assert_eq!(wait_end(&mut world, number), (Status::Ok, length));
    }
    // What was written is not received again either.
    assert_eq!(world.read_end(line, 1001), Status::Ok);
    world.send(line, sent(handle, 7, 50_000, 1), &[]);
    assert_eq!(world.read_end(line, 1001), Status::Ok);
    world.submit(SESSION, 3, receive(None, 0, 60_000));
    world.settle();
    assert_eq!(world.end_of(3), None);
}

#[test]
fn a_receive_that_is_given_up_leaves_its_message_to_the_next() {
    let mut world = World::new();
    let (line, handle, segment) = peer(&mut world);
    world.submit(SESSION, 1, receive(Some(7), 0, 200_000));
    world.settle();
    world.send(line, sent(handle, 7, 200_000, 0), &[]);
    let slot = ready(&mut world, line, 1000);
    // Half of it is there.
    world.send(line, crate::world::write(1000, slot, 200_000), &[]);
    let data = |offset| Message::WriteData { transfer: 1000, offset, backlogged: false };
    world.send(line, data(0), &[3; 100_000]);
    world.settle();
    world.submit(SESSION, 2, Verb::Cancel { target: 1 });
    assert_eq!(wait_end(&mut world, 1).0, Status::Cancelled);
    assert_eq!(world.read_end(line, 1000), Status::Cancelled);
    world.submit(SESSION, 3, receive(Some(7), 0, 200_000));
    world.settle();
    // The sender says again that it has it.
    world.send(line, sent(handle, 7, 200_000, 0), &[]);
    let slot = ready(&mut world, line, 1000);
    world.send(line, crate::world::write(1000, slot, 200_000), &[]);
    world.send(line, data(0), &[4; 100_000]);
    world.send(line, data(100_000), &[4; 100_000]);
    assert_eq!(wait_end(&mut world, 3), (Status::Ok, 200_000));
    assert!(holds(&world, segment, 0, 200_000, 4));
    world.settle();
    assert!(world.shard.is_idle());
}

#[test]
fn a_message_that_its_sender_gives_up_is_not_waited_for() {
    for asked_for in [false, true] {
        let mut world = World::new();
        let (line, handle, _) = peer(&mut world);
        world.send(line, sent(handle, 7, 50_000, 0), &[]);
        world.settle();
        if asked_for {
            world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
            world.settle();
        }
        world.send(line, Message::Cancel { transfer: 1000 }, &[]);
        world.settle();
        world.send(line, sent(handle, 7, 100, 1), &[8; 100]);
        if !asked_for {
            world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
        }
        assert_eq!(wait_end(&mut world, 1), (Status::Ok, 100));
        let mut readies = Vec::new();
        world.settle();
        while let Some((frame, _)) = world.take_frame(line) {
            if let Message::Ready { status, .. } = frame.message {
                readies.push(status);
            }
        }
        // Of each that waits the peer hears once.
        let told = if asked_for { Status::Ok } else { Status::Cancelled };
        assert_eq!(readies, [told]);
        assert!(world.shard.is_idle());
    }
}

#[test]
fn a_sender_that_does_not_come_back_is_waited_for_until_its_deadline() {
    for asked_for in [false, true] {
        let mut world = World::new();
        let (line, handle, _) = peer(&mut world);
        world.send(line, sent(handle, 7, 50_000, 0), &[]);
        world.send(line, sent(handle, 7, 100, 1), &[8; 100]);
        world.settle();
        if asked_for {
            world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
        }
        world.hang_up(line);
        world.run_for(Nanos::from_millis(5_000));
        if !asked_for {
            world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
        }
        world.run_for(Nanos::from_millis(1_000));
        assert_eq!(world.end_of(1), None);
        world.run_for(Nanos::from_millis(5_000));
        assert_eq!(world.end_of(1), Some((Status::Ok, 100)));
    }
}

#[test]
fn a_message_whose_lane_is_lost_in_the_middle_leaves_the_receive_as_it_was() {
    let mut world = World::new();
    let (line, handle, segment) = peer(&mut world);
    world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
    let frame = world.frame(line, sent(handle, 7, 50_000, 0), &[3; 50_000]);
    world.send_bytes(line, &frame[..30_000]);
    world.settle();
    world.hang_up(line);
    world.settle();
    assert_eq!(world.end_of(1), None);
    let line = world.lane("beta", LaneClass::Latency, 2);
    assert_eq!(world.open_again(line, 1, OpenKind::Channel), handle);
    // Damaged, and then as it should be.
    let mut frame = world.frame(line, sent(handle, 7, 50_000, 0), &[4; 50_000]);
    *frame.last_mut().expect("it has bytes") ^= 1;
    world.send_bytes(line, &frame);
    // It is asked for as if it had been announced.
    let slot = ready(&mut world, line, 1000);
    write_to(&mut world, line, 1000, slot, &[4; 50_000]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 50_000));
    assert!(holds(&world, segment, 0, 50_000, 4));
}

#[test]
fn a_peer_that_restarts_or_closes_takes_its_announcements_along() {
    for restarts in [false, true] {
        let mut world = World::new();
        let (line, handle, _) = peer(&mut world);
        world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
        world.settle();
        world.send(line, sent(handle, 7, 50_000, 0), &[]);
        let _ = ready(&mut world, line, 1000);
        world.send(line, sent(handle, 8, 50_000, 1), &[]);
        assert_eq!(world.next(line), Message::Queued { transfer: 1001 });
        if restarts {
            let line = world.dial();
            let hello = Message::Hello {
                incarnation: 6,
                lane: LaneClass::Latency,
                checksum: Checksum::Payload,
            };
            world.send(line, hello, b"beta");
        } else {
            world.send(line, Message::Close { handle }, &[]);
        }
        world.settle();
        // The receive waits for others.
        assert_eq!(world.end_of(1), None);
        let outbox = world.session(SENDER, ARENA);
        let (session, handle) = (SENDER, OUTBOX);
        world.command(Command::InstallHandle { session, handle, target: target(false) });
        fill(&mut world, outbox, 0, 10, 1);
        world.submit(SENDER, 2, send(7, 0, 10));
        assert_eq!(wait_end(&mut world, 1), (Status::Ok, 10));
        world.submit(SESSION, 3, receive(Some(8), 0, 10));
        world.settle();
        assert_eq!(world.end_of(3), None);
    }
}

#[test]
fn a_peer_that_breaks_the_rules_of_messages_loses_its_lane_and_leaves_nothing() {
    for (payload, waits) in [(&[][..], false), (&[1; 10][..], false), (&[1; 10][..], true)] {
        let mut world = World::new();
        let (line, handle, _) = peer(&mut world);
        if waits {
            world.submit(SESSION, 1, receive(None, 0, 100));
            world.submit(SESSION, 2, receive(None, 0, 100));
        }
        world.send(line, sent(handle, 7, 10, 256), payload);
        world.settle();
        assert!(!world.is_up(line));
        let bulk = world.lane("beta", LaneClass::Bulk, 1);
        world.send(bulk, sent(handle, 7, 10, 0), payload);
        world.settle();
        assert!(!world.is_up(bulk));
        assert_eq!(world.shard.report().counters.peer_faults, 2);
        world.command(Command::CloseSession { session: SESSION });
        world.settle();
        let drained = |event: &Event| matches!(event, Event::SessionDrained { session: SESSION });
        assert!(world.events.iter().any(drained), "{payload:?}, {waits}");
        assert_eq!(world.shard.report().limits.early_arrival.now, 0);
    }
}

#[test]
fn a_client_that_receives_what_it_sends_in_place_harms_itself_only() {
    let mut world = World::new();
    let inbox = channel(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    let (session, handle) = (SESSION, OUTBOX);
    world.command(Command::InstallHandle { session, handle, target: target(false) });
    // Shifted bytes have no defined result; the message is for another receive.
    world.submit(SESSION, 1, receive(None, 50, 300_000));
    world.submit(SESSION, 2, send(7, 0, 300_000));
    assert_eq!(wait_end(&mut world, 1), (Status::Invalid, 0));
    fill(&mut world, inbox, 0, 300_000, 5);
    // The same bytes need no copy.
    world.submit(SESSION, 3, receive(None, 0, 300_000));
    assert_eq!(wait_end(&mut world, 3), (Status::Ok, 300_000));
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, 300_000));
    assert!(holds(&world, inbox, 0, 300_000, 5));
    assert!(world.shard.is_idle());
}

#[test]
fn a_receive_ends_only_by_its_whole_message() {
    let mut world = World::new();
    let (line, handle, segment) = peer(&mut world);
    world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
    world.settle();
    world.send(line, sent(handle, 7, 50_000, 0), &[]);
    let slot = ready(&mut world, line, 1000);
    let sync = Message::Sync { transfer: 5, handle: slot, time_left_us: 1_000_000 };
    world.send(line, sync, &[]);
    assert_eq!(world.read_end(line, 5), Status::Invalid);
    write_to(&mut world, line, 6, slot, &[9; 100]);
    assert_eq!(world.read_end(line, 6), Status::Ok);
    world.settle();
    assert_eq!(world.end_of(1), None);
    write_to(&mut world, line, 1000, slot, &[6; 50_000]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 50_000));
    assert!(holds(&world, segment, 0, 50_000, 6));
}

#[test]
fn announcements_are_forgotten_when_their_sender_goes_on_without_them() {
    let mut world = World::new();
    let (line, handle, _) = peer(&mut world);
    // More than may be under way, each of which makes the ones long before it over.
    for number in 0..2000 {
        let Message::Send { transfer, handle, tag, length, sequence, time_left_us, .. } =
            sent(handle, 7, 50_000, number)
        else {
            unreachable!()
        };
        let oldest = number.saturating_sub(9);
        let message =
            Message::Send { transfer, handle, tag, length, sequence, oldest, time_left_us };
        world.send(line, message, &[]);
        if number % 100 == 0 {
            world.settle();
            while world.take_frame(line).is_some() {}
        }
    }
    world.settle();
    while world.take_frame(line).is_some() {}
    // The oldest of those that are left is asked for.
    world.submit(SESSION, 1, receive(None, 0, 60_000));
    let _ = ready(&mut world, line, 1000 + 1990);
    assert!(world.is_up(line));
}

#[test]
fn a_receive_takes_its_buffer_back_from_a_peer_that_does_not_go_on() {
    let mut world = World::new();
    let (line, handle, _) = peer(&mut world);
    world.submit(SESSION, 1, receive(Some(7), 0, 60_000));
    let frame = world.frame(line, sent(handle, 7, 50_000, 0), &[3; 50_000]);
    world.send_bytes(line, &frame[..20_000]);
    world.settle();
    world.submit(SESSION, 2, Verb::Cancel { target: 1 });
    world.settle();
    assert_eq!(world.end_of(1).map(|end| end.0), Some(Status::Cancelled));
    // It is told that it is free, long before the peer is given up.
    world.run_for(Nanos::from_millis(1_000));
    let drained = |event: &Event| matches!(event, Event::SessionDrained { session: SESSION });
    world.command(Command::CloseSession { session: SESSION });
    world.settle();
    assert!(world.events.iter().any(drained));
    // The rest of it is nobody's.
    world.send_bytes(line, &frame[20_000..]);
    assert_eq!(world.read_end(line, 1000), Status::Gone);
}

#[test]
fn messages_for_what_is_no_channel_are_refused() {
    let mut world = World::new();
    let (line, handle, _) = peer(&mut world);
    let file = world.file(1000);
    let file = world.open(line, 2, file);
    for (handle, status) in [(file, Status::Invalid), (handle + 1000, Status::BadHandle)] {
        world.send(line, sent(handle, 7, 10, 0), &[1; 10]);
        assert_eq!(world.read_end(line, 1000), status);
    }
    // Nor is anything else served of a channel.
    world.send(line, crate::world::write(5, handle, 10), &[]);
    assert_eq!(world.read_end(line, 5), Status::Invalid);
    world.command(Command::CloseHandle { session: SESSION, handle: INBOX });
    world.send(line, sent(handle, 7, 10, 0), &[1; 10]);
    assert_eq!(world.read_end(line, 1000), Status::Gone);
}

#[test]
fn a_channel_that_goes_is_told_to_peers_that_wait() {
    let mut world = World::new();
    let (line, handle, _) = peer(&mut world);
    world.send(line, sent(handle, 7, 50_000, 0), &[]);
    assert_eq!(world.next(line), Message::Queued { transfer: 1000 });
    world.command(Command::CloseSession { session: SESSION });
    let gone = Message::Ready { transfer: 1000, status: Status::Gone, handle: 0 };
    assert_eq!(world.next(line), gone);
}

// ---- to a peer ----

/// The lanes to a peer whose channel clients have open, and their memory.
fn asking(world: &mut World) -> ([LineId; 2], SegmentId) {
    world.add_peer();
    let latency = world.answer_connect(LaneClass::Latency, CREDIT);
    let bulk = world.answer_connect(LaneClass::Bulk, CREDIT);
    let segment = world.session(SENDER, ARENA);
    let access = Access::WRITE;
    let (kind, name, path) = (OpenKind::Channel, "mail".to_owned(), Vec::new());
    let open = OpenRequest { kind, name, path, access, create: Creation::No };
    let (session, handle, peer) = (SENDER, OUTBOX, PEER);
    world.command(Command::OpenRemote { ticket: 1, session, handle, peer, open });
    opened(world, latency);
    world.settle();
    while world.take_frame(latency).is_some() {}
    ([latency, bulk], segment)
}

/// Answers that the channel is open.
fn opened(world: &mut World, line: LineId) {
    let ticket = loop {
        match world.next(line) {
            Message::Open { ticket, kind: OpenKind::Channel, .. } => break ticket,
            Message::Close { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    let (status, handle, length) = (Status::Ok, 44, 0);
    world.send(line, Message::Opened { ticket, status, handle, length }, &[]);
}

/// The next message that goes to the peer: its name, tag, number, the least that may come again,
/// its bytes.
fn next_send(world: &mut World, line: LineId) -> (u64, u64, u32, u32, Vec<u8>) {
    loop {
        let (frame, payload) = world.next_frame(line);
        match frame.message {
            Message::Send { transfer, tag, sequence, oldest, length, handle: 44, .. } => {
                assert!(payload.is_empty() || payload.len() == length as usize);
                return (transfer, tag, sequence, oldest, payload);
            }
            Message::Close { .. } | Message::Open { .. } => {}
            other => panic!("no message: {other:?}"),
        }
    }
}

#[test]
fn a_short_message_goes_to_the_peer_at_once_and_a_long_one_when_it_is_asked_for() {
    let mut world = World::new();
    let ([latency, bulk], segment) = asking(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(4096)));
    fill(&mut world, segment, 0, 4096, 1);
    fill(&mut world, segment, 8192, 300_000, 2);
    world.submit(SENDER, 1, send(7, 0, 4096));
    let (first, tag, sequence, _, bytes) = next_send(&mut world, latency);
    assert_eq!((tag, sequence, bytes), (7, 0, vec![1; 4096]));
    world.send(latency, end(first, Status::Ok, 4096), &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 4096));
    world.submit(SENDER, 2, send(8, 8192, 300_000));
    let (second, tag, sequence, oldest, bytes) = next_send(&mut world, latency);
    assert_eq!((tag, sequence, oldest, bytes.len()), (8, 1, 1, 0));
    world.send(latency, Message::Queued { transfer: second }, &[]);
    world.settle();
    assert_eq!(world.end_of(2), None);
    let told = Message::Ready { transfer: second, status: Status::Ok, handle: 99 };
    world.send(latency, told, &[]);
    // A long one takes the other lane.
    let mut moved = 0;
    while moved < 300_000 {
        let (frame, payload) = world.next_frame(bulk);
        match frame.message {
            Message::Write { transfer, handle: 99, length: 300_000, offset: 0, .. } => {
                assert_eq!(transfer, second);
            }
            Message::WriteData { offset, .. } => {
                assert_eq!(offset, moved);
                moved += payload.len() as u64;
                assert!(payload.iter().all(|&byte| byte == 2));
            }
            other => panic!("{other:?}"),
        }
    }
    world.send(bulk, end(second, Status::Ok, 300_000), &[]);
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, 300_000));
    assert!(world.shard.is_idle());
}

#[test]
fn messages_that_are_asked_again_keep_their_order_and_their_numbers() {
    let mut world = World::new();
    let ([latency, _], _) = asking(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(4096)));
    for number in 0..6 {
        let length = if number % 2 == 0 { 100 } else { 8192 };
        world.submit(SENDER, number, send(number, 0, length));
    }
    let sends: Vec<_> = (0..6).map(|_| next_send(&mut world, latency)).collect();
    let order = |sends: &[(u64, u64, u32, u32, Vec<u8>)]| -> Vec<(u64, u32)> {
        sends.iter().map(|it| (it.1, it.2)).collect()
    };
    assert_eq!(order(&sends), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
    // One is over, one announced and one asked for when the lane is lost.
    world.send(latency, end(sends[2].0, Status::Ok, 100), &[]);
    world.send(latency, Message::Queued { transfer: sends[3].0 }, &[]);
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, 100));
    world.settle();
    world.submit(SENDER, 6, send(6, 0, 10));
    world.hang_up(latency);
    let latency = world.answer_connect(LaneClass::Latency, CREDIT);
    opened(&mut world, latency);
    let again: Vec<_> = (0..6).map(|_| next_send(&mut world, latency)).collect();
    assert_eq!(order(&again), [(0, 0), (1, 1), (3, 3), (4, 4), (5, 5), (6, 6)]);
    assert!(again.iter().all(|it| it.3 == 0), "the first is not over");
    for it in &again {
        world.send(latency, end(it.0, Status::Ok, 0), &[]);
    }
    world.settle();
    assert!((0..7).all(|number| world.end_of(number).is_some_and(|it| it.0 == Status::Ok)));
    world.submit(SENDER, 7, send(7, 0, 10));
    assert_eq!(next_send(&mut world, latency).3, 7);
}

#[test]
fn as_many_messages_as_may_be_under_way_are_all_asked_again() {
    let mut world = World::new();
    let ([latency, _], _) = asking(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    for number in 0..250 {
        world.submit(SENDER, number, send(7, 0, 100));
        let (transfer, ..) = next_send(&mut world, latency);
        // The first waits; those behind it are over, and as many as may be are remembered for it.
        let answer = match number {
            0 => Message::Queued { transfer },
            _ => end(transfer, Status::Ok, 100),
        };
        world.send(latency, answer, &[]);
    }
    for number in 250..256 {
        world.submit(SENDER, number, send(7, 0, 100));
        let (transfer, ..) = next_send(&mut world, latency);
        world.send(latency, Message::Queued { transfer }, &[]);
    }
    world.settle();
    // There is no room for another one until the first is over.
    world.submit(SENDER, 256, send(7, 0, 100));
    world.settle();
    assert!(!world.has_frame(latency));
    world.hang_up(latency);
    let latency = world.answer_connect(LaneClass::Latency, CREDIT);
    opened(&mut world, latency);
    let numbers: Vec<u32> = (0..7).map(|_| next_send(&mut world, latency).2).collect();
    assert_eq!(numbers, [0, 250, 251, 252, 253, 254, 255]);
}

#[test]
fn a_message_that_is_given_up_while_it_is_asked_for_is_told_to_the_peer() {
    let mut world = World::new();
    let ([latency, bulk], _) = asking(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    world.submit(SENDER, 1, send(7, 0, 300_000));
    let (transfer, ..) = next_send(&mut world, latency);
    world.send(latency, Message::Ready { transfer, status: Status::Ok, handle: 99 }, &[]);
    world.wait_until("the write", |world| world.has_frame(bulk));
    world.submit(SENDER, 2, Verb::Cancel { target: 1 });
    // On the lane of its announcement, too: the peer knows it by that.
    assert_eq!(world.next(latency), Message::Cancel { transfer });
}

#[test]
fn a_message_that_does_not_wait_is_given_up_when_nobody_asks_for_it() {
    let mut world = World::new();
    let ([latency, _], _) = asking(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    world.submit_as(SENDER, 1, send(7, 0, 100), true);
    let (transfer, ..) = next_send(&mut world, latency);
    world.send(latency, Message::Queued { transfer }, &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::WouldBlock, 0));
    assert_eq!(world.next(latency), Message::Cancel { transfer });
}

#[test]
fn a_message_whose_receive_was_given_up_is_announced_again() {
    let mut world = World::new();
    let ([latency, _], _) = asking(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    world.submit(SENDER, 1, send(7, 0, 1000));
    let (transfer, ..) = next_send(&mut world, latency);
    world.send(latency, Message::Ready { transfer, status: Status::Ok, handle: 99 }, &[]);
    assert!(matches!(world.next(latency), Message::Write { handle: 99, .. }));
    assert!(matches!(world.next(latency), Message::WriteData { .. }));
    world.send(latency, end(transfer, Status::Cancelled, 0), &[]);
    let (again, _, sequence, ..) = next_send(&mut world, latency);
    assert_eq!((again, sequence), (transfer, 0));
    world.send(latency, Message::Queued { transfer }, &[]);
    world.settle();
    // Then it is given up here, and the peer is told.
    world.submit(SENDER, 2, Verb::Cancel { target: 1 });
    assert_eq!(wait_end(&mut world, 1), (Status::Cancelled, 0));
    assert_eq!(world.next(latency), Message::Cancel { transfer });
    let cancelled = Message::Ready { transfer, status: Status::Cancelled, handle: 0 };
    world.send(latency, cancelled, &[]);
    world.settle();
    assert!(world.is_up(latency) && world.shard.is_idle());
}

#[test]
fn what_a_daemon_before_may_have_taken_in_is_not_sent_again() {
    let mut world = World::new();
    let ([latency, bulk], _) = asking(&mut world);
    world.submit(SENDER, 1, send(7, 0, 100));
    let _ = next_send(&mut world, latency);
    world.hang_up(latency);
    world.hang_up(bulk);
    let latency = world.answer_connect_as(LaneClass::Latency, CREDIT, 10);
    assert_eq!(wait_end(&mut world, 1), (Status::OutcomeUnknown, 0));
    // One that was not sent is.
    world.submit(SENDER, 2, send(8, 0, 100));
    opened(&mut world, latency);
    let (transfer, tag, ..) = next_send(&mut world, latency);
    assert_eq!(tag, 8);
    world.send(latency, end(transfer, Status::Ok, 100), &[]);
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, 100));
}

#[test]
fn a_peer_that_answers_what_was_not_sent_loses_its_lane() {
    let stray = [
        Message::Queued { transfer: 123 },
        Message::Ready { transfer: 123, status: Status::Ok, handle: 1 },
    ];
    for message in stray {
        let mut world = World::new();
        let ([latency, _], _) = asking(&mut world);
        world.send(latency, message, &[]);
        world.settle();
        assert!(!world.is_up(latency), "{message:?}");
    }
}

#[test]
fn a_thousand_senders_to_one_lose_nothing_and_stay_within_the_memory_allowed() {
    const SENDERS: u32 = 1000;
    const TAGS: u64 = 16;
    const EACH: u64 = 2;
    const AT_ONCE: u64 = 32;
    const RECEIVE: u64 = 1 << 60;
    let limit = 128 << 10;
    let mut world = World::new();
    let inbox = channel(&mut world);
    world.command(Command::SetLimits(Limits { early_arrival: limit, ..limits(limit) }));
    let senders: Vec<SegmentId> = (0..SENDERS)
        .map(|number| {
            let session = SessionId(100 + number);
            let segment = world.session(session, 8192);
            let target = target(false);
            world.command(Command::InstallHandle { session, handle: OUTBOX, target });
            segment
        })
        .collect();
    let mut last = std::collections::BTreeMap::new();
    let (mut sent, mut received, mut most) = (0, 0, 0);
    let mut free: Vec<u64> = (0..AT_ONCE).collect();
    let all = u64::from(SENDERS) * TAGS * EACH;
    while received < all {
        // Faster than they are received, so some find no room.
        for _ in 0..96 {
            let (number, sender) = (sent / u64::from(SENDERS), (sent % u64::from(SENDERS)) as u32);
            if sent == all || world.shard.report().transfers > 200 {
                break;
            }
            let name = [sender.to_le_bytes(), (number as u32).to_le_bytes()].concat();
            // The buffer of its message before may still be read: one behind the other.
            let offset = number % 2 * 4096;
            let span = Span { segment: senders[sender as usize], offset, length: 8 };
            world.kernel.bytes_mut(world.node, span).copy_from_slice(&name);
            let length = 8 + number * 100;
            world.submit(SessionId(100 + sender), sent, send(number % TAGS, offset, length));
            sent += 1;
        }
        while let Some(place) = free.pop() {
            world.submit(SESSION, RECEIVE + place, receive(None, place * 8192, 8192));
        }
        while world.turn_near() {}
        most = most.max(world.shard.report().limits.early_arrival.now);
        for completion in std::mem::take(&mut world.completions) {
            let Completion::Finished { origin, status, bytes, value, .. } = completion else {
                panic!("{completion:?}")
            };
            assert_eq!(status, Status::Ok, "{completion:?}");
            let Some(place) = origin.user_data.checked_sub(RECEIVE) else { continue };
            let span = Span { segment: inbox, offset: place * 8192, length: 8 };
            let name = world.kernel.bytes(world.node, span).to_vec();
            let word = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().expect("4"));
            let (sender, number) = (word(0), u64::from(word(4)));
            assert_eq!((value, bytes), (number % TAGS, 8 + number * 100));
            let before = last.insert((sender, value), number);
            assert!(before.is_none_or(|before| before + TAGS == number), "{sender}: {number}");
            free.push(place);
            received += 1;
        }
    }
    assert_eq!(last.len() as u64, u64::from(SENDERS) * TAGS);
    assert!((1..=limit).contains(&most), "{most}");
    assert!(ways(&world)[MessageWay::Stalled as usize] > 0);
}
