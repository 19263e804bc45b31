//! One shard of two, whose every word to the other the test reads, and answers by hand.

use piped_core::ids::{HandleId, RegionId, SegmentId};
use piped_core::io::Span;
use piped_core::limits::{COPY_BYTES_PER_TURN, TAKEN_AT_ONCE_BYTES};
use piped_core::modes::EagerMode;
use piped_core::request::{ArenaBuffer, BufferState, Completion, Verb};
use piped_core::status::Status;
use piped_engine::command::{ChannelTarget, Command, RegionTarget, Target};
use piped_engine::relay::{NotifyAsker, Relay, Took};

use crate::asking::ARENA;
use crate::channels::{
    CHANNEL, INBOX, SENDER, limits, receive, send, target_of, value_of, with_sender,
};
use crate::world::{SESSION, World, region};

const CANCEL: Verb = Verb::Cancel { target: 1 };

/// The shard of the receiver.
fn of_receiver() -> (World, SegmentId) {
    let mut world = World::of_two_shards();
    let segment = world.session(SESSION, ARENA);
    let (session, handle) = (SESSION, INBOX);
    world.command(Command::InstallHandle { session, handle, target: target_of(CHANNEL, true) });
    (world, segment)
}

/// The shard of a sender, whose receiver the other one serves; no message is eager.
fn of_sender() -> (World, SegmentId) {
    let mut world = World::of_two_shards();
    let segment = world.session(SENDER, ARENA);
    let target = ChannelTarget { channel: CHANNEL, receives: false, home: 1, owner: SESSION };
    let (session, handle, target) = (SENDER, HandleId(2), Target::Channel(target));
    world.command(Command::InstallHandle { session, handle, target });
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    (world, segment)
}

fn offer(number: u64, tag: u64, length: u32) -> Relay {
    let (channel, place, asks) = (CHANNEL, 0, false);
    Relay::Offer { channel, number, place, tag, length, asks }
}

/// The only relay, which takes a message: its number, its place, the receive and its buffer.
fn take(world: &mut World) -> (u64, u64, u64, Span) {
    match world.relays()[..] {
        [Relay::Take { number, place, receive, into, .. }] => (number, place, receive, into),
        ref other => panic!("{other:?}"),
    }
}

fn took(receive: u64, how: Took, held: bool) -> Relay {
    Relay::Took { receive, how, held, lent: SegmentId(0) }
}

#[test]
fn a_message_of_another_shard_is_taken_by_the_first_receive_it_fits_and_comes_once() {
    let (mut world, segment) = of_receiver();
    world.relay(offer(1, 5, 100));
    world.relay(offer(2, 5, 100));
    assert_eq!(world.relays(), []);
    world.submit(SESSION, 1, receive(Some(5), 4096, 1000));
    let (number, _, first, into) = take(&mut world);
    assert_eq!((number, into), (1, Span { segment, offset: 4096, length: 100 }));
    world.submit(SESSION, 2, receive(None, 8192, 1000));
    let (number, _, second, _) = take(&mut world);
    assert_eq!(number, 2);
    world.relay(took(second, Took::Received { tag: 5, bytes: 100 }, false));
    assert_eq!((world.end_of(1), world.end_of(2)), (None, Some((Status::Ok, 100))));
    world.relay(took(first, Took::Received { tag: 5, bytes: 100 }, false));
    assert_eq!(world.end_of(1), Some((Status::Ok, 100)));
    assert_eq!(value_of(&world, 1), 5);
    // An answer that comes again is nobody's.
    world.relay(took(first, Took::Received { tag: 5, bytes: 100 }, false));
    assert_eq!(world.completions.len(), 2);
    assert!(world.shard.is_idle());
}

#[test]
fn a_receive_that_is_given_up_ends_as_the_shard_says_that_has_its_buffer() {
    for came in [true, false] {
        let (mut world, _) = of_receiver();
        world.relay(offer(1, 5, 100));
        world.submit(SESSION, 1, receive(None, 4096, 1000));
        let (_, place, receiver, _) = take(&mut world);
        world.submit(SESSION, 9, CANCEL);
        assert_eq!(world.relays(), [Relay::GiveUp { receive: receiver }]);
        // Not twice, and not before the other shard has spoken.
        world.submit(SESSION, 10, CANCEL);
        assert_eq!((world.relays(), world.end_of(1)), (Vec::new(), None));
        if came {
            world.relay(took(receiver, Took::Received { tag: 5, bytes: 100 }, false));
            assert_eq!(world.end_of(1), Some((Status::Ok, 100)));
            continue;
        }
        let (channel, number, tag, length, asks) = (CHANNEL, 1, 5, 100, false);
        world.relay(Relay::Offer { channel, number, place, tag, length, asks });
        world.relay(offer(2, 5, 100));
        world.relay(took(receiver, Took::Failed(Status::Cancelled), true));
        assert_eq!(world.end_of(1), Some((Status::Cancelled, 0)));
        let held = |it: &Completion| {
            matches!(it, Completion::Finished { origin, buffer: BufferState::Held, .. }
                if origin.user_data == 1)
        };
        assert!(world.completions.iter().any(held));
        world.relay(Relay::LetGo { receive: receiver, lent: SegmentId(0) });
        let released = |it: &&Completion| matches!(it, Completion::Released { .. });
        assert_eq!(world.completions.iter().filter(released).count(), 1);
        // The message waits at its old place, before what came later.
        world.submit(SESSION, 3, receive(None, 4096, 1000));
        assert_eq!(take(&mut world).0, 1);
    }
}

#[test]
fn a_receive_whose_message_is_gone_keeps_its_place() {
    let (mut world, _) = of_receiver();
    world.relay(offer(1, 5, 100));
    world.submit(SESSION, 1, receive(None, 4096, 1000));
    let (_, _, first, _) = take(&mut world);
    world.submit(SESSION, 2, receive(None, 8192, 1000));
    world.relay(took(first, Took::Again, false));
    world.relay(offer(2, 6, 100));
    assert_eq!(take(&mut world).2, first, "it was asked for first");
    assert_eq!((world.end_of(1), world.end_of(2)), (None, None));
    // Who does not want to wait does not keep a place.
    let (mut other, _) = of_receiver();
    other.relay(offer(1, 5, 100));
    other.submit_as(SESSION, 1, receive(None, 4096, 1000), true);
    let (_, _, unsure, _) = take(&mut other);
    other.relay(took(unsure, Took::Again, false));
    assert_eq!(other.end_of(1), Some((Status::WouldBlock, 0)));
    // One that was withdrawn before it was taken is not taken any more.
    world.relay(Relay::Withdraw { channel: CHANNEL, number: 2 });
    world.relay(took(first, Took::Again, false));
    world.relay(Relay::Withdraw { channel: CHANNEL, number: 3 });
    assert_eq!(world.relays(), []);
}

#[test]
fn a_closed_channel_is_told_to_all_and_to_whoever_has_not_heard() {
    let (mut world, _) = of_receiver();
    world.relay(offer(1, 5, 100));
    world.command(Command::CloseHandle { session: SESSION, handle: INBOX });
    let closed = Relay::Closed { channel: CHANNEL };
    assert_eq!(world.relays(), [closed]);
    world.relay(offer(2, 5, 100));
    assert_eq!(world.relays(), [closed]);
    // A sender of this shard hears it too.
    let (mut world, _) = of_sender();
    world.submit(SENDER, 1, send(7, 0, 100));
    assert_eq!(world.relays().len(), 1);
    world.relay(closed);
    assert_eq!(world.end_of(1), Some((Status::Gone, 0)));
    world.submit(SENDER, 2, send(7, 0, 100));
    world.settle_turn();
    assert_eq!(world.end_of(2), Some((Status::Gone, 0)));
}

#[test]
fn who_does_not_want_to_wait_for_another_shards_receive_is_told_so() {
    let (mut world, _) = of_receiver();
    let (channel, number, place, tag, length, asks) = (CHANNEL, 1, 0, 5, 100, true);
    world.relay(Relay::Offer { channel, number, place, tag, length, asks });
    assert_eq!(world.relays(), [Relay::Waits { channel, number }]);
    let (mut world, _) = of_sender();
    world.submit_as(SENDER, 1, send(7, 0, 100), true);
    let asked = world.relays();
    assert!(matches!(asked[..], [Relay::Offer { asks: true, .. }]), "{asked:?}");
    assert_eq!(world.end_of(1), None);
    world.relay(Relay::Waits { channel: CHANNEL, number: 1 });
    assert_eq!(world.end_of(1), Some((Status::WouldBlock, 0)));
    assert_eq!(world.relays(), [Relay::Withdraw { channel: CHANNEL, number: 1 }]);
}

#[test]
fn a_taken_message_is_copied_to_the_lent_buffer_and_both_sides_hear_of_it() {
    let (mut world, segment) = of_sender();
    let span = |offset| Span { segment, offset, length: 300 };
    world.kernel.bytes_mut(world.node, span(0)).fill(9);
    world.submit(SENDER, 1, send(7, 0, 300));
    let offered = world.relays();
    let [Relay::Offer { number, tag: 7, length: 300, place: 0, .. }] = offered[..] else {
        panic!("{offered:?}");
    };
    // Memory of the other shard's client, as this shard's driver knows it.
    let lent = world.kernel.add_segment(world.node, 4096);
    let into = Span { segment: lent, offset: 1024, length: 300 };
    let (channel, place, receive) = (CHANNEL, 12, 77);
    world.relay(Relay::Take { channel, number, place, receive, into });
    world.settle();
    let how = Took::Received { tag: 7, bytes: 300 };
    assert_eq!(world.relays(), [Relay::Took { receive, how, held: false, lent }]);
    assert_eq!(world.end_of(1), Some((Status::Ok, 300)));
    assert!(world.kernel.bytes(world.node, into).iter().all(|&byte| byte == 9));
    // It is not there a second time.
    world.relay(Relay::Take { channel, number, place, receive: 78, into });
    let again = Relay::Took { receive: 78, how: Took::Again, held: false, lent };
    assert_eq!(world.relays(), [again]);
    world.relay(Relay::GiveUp { receive: 78 });
    assert_eq!(world.relays(), []);
    assert!(world.shard.is_idle());
}

#[test]
fn a_short_message_is_kept_once_the_channels_shard_says_that_it_waits_and_is_brought_later() {
    let (mut world, segment) = of_sender();
    world.command(Command::SetEager(EagerMode::Fixed(4096)));
    let span = Span { segment, offset: 0, length: 300 };
    world.kernel.bytes_mut(world.node, span).fill(9);
    world.submit(SENDER, 1, send(7, 0, 300));
    let offered = world.relays();
    let [Relay::Offer { number, asks: true, .. }] = offered[..] else { panic!("{offered:?}") };
    assert_eq!((world.end_of(1), world.staged()), (None, 0), "a receive may wait for it there");
    world.relay(Relay::Waits { channel: CHANNEL, number });
    assert_eq!(world.end_of(1), Some((Status::Ok, 300)), "its sender is done");
    world.kernel.bytes_mut(world.node, span).fill(1);
    let lent = world.kernel.add_segment(world.node, 4096);
    let into = Span { segment: lent, offset: 0, length: 300 };
    let (channel, place, receive) = (CHANNEL, 3, 5);
    assert!(world.staged() > 0);
    // What is kept is not kept a second time.
    let staged = world.staged();
    world.relay(Relay::Waits { channel: CHANNEL, number });
    assert_eq!(world.staged(), staged);
    world.relay(Relay::Take { channel, number, place, receive, into });
    assert!(world.kernel.bytes(world.node, into).iter().all(|&byte| byte == 9));
    let how = Took::Received { tag: 7, bytes: 300 };
    assert_eq!(world.relays(), [Relay::Took { receive, how, held: false, lent }]);
    assert_eq!(world.staged(), 0);
    assert!(world.shard.is_idle());
    assert_eq!(world.completions.len(), 1);
}

#[test]
fn a_short_message_that_does_not_want_to_wait_is_taken_in_or_told_that_there_is_no_room() {
    for room in [true, false] {
        let (mut world, _) = of_sender();
        world.command(Command::SetEager(EagerMode::Fixed(4096)));
        if !room {
            world.command(Command::SetLimits(limits(1)));
        }
        world.submit_as(SENDER, 900, send(7, 0, 300), true);
        let offered = world.relays();
        let [Relay::Offer { number, asks: true, .. }] = offered[..] else { panic!("{offered:?}") };
        world.relay(Relay::Waits { channel: CHANNEL, number });
        let status = if room { (Status::Ok, 300) } else { (Status::WouldBlock, 0) };
        assert_eq!(world.end_of(900), Some(status));
        let told = world.relays();
        match room {
            true => assert_eq!(told, []),
            false => assert_eq!(told, [Relay::Withdraw { channel: CHANNEL, number }]),
        }
    }
}

#[test]
fn a_message_that_no_early_arrival_memory_is_left_for_waits_with_its_sender() {
    let (mut world, segment) = of_sender();
    world.command(Command::SetEager(EagerMode::Fixed(4096)));
    world.command(Command::SetLimits(limits(1)));
    world.submit(SENDER, 900, send(7, 0, 300));
    let offered = world.relays();
    let [Relay::Offer { number, .. }] = offered[..] else { panic!("{offered:?}") };
    world.relay(Relay::Waits { channel: CHANNEL, number });
    assert_eq!((world.end_of(900), world.relays()), (None, Vec::new()));
    let span = Span { segment, offset: 0, length: 300 };
    world.kernel.bytes_mut(world.node, span).fill(3);
    let lent = world.kernel.add_segment(world.node, 4096);
    let into = Span { segment: lent, offset: 0, length: 300 };
    let (channel, place, receive) = (CHANNEL, 3, 5);
    world.relay(Relay::Take { channel, number, place, receive, into });
    assert_eq!(world.end_of(900), Some((Status::Ok, 300)));
    assert!(world.kernel.bytes(world.node, into).iter().all(|&byte| byte == 3));
}

#[test]
fn takes_are_copied_as_they_come_and_those_beyond_a_turns_worth_have_their_turn() {
    for (length, at_once) in [
        (TAKEN_AT_ONCE_BYTES, COPY_BYTES_PER_TURN / TAKEN_AT_ONCE_BYTES),
        (TAKEN_AT_ONCE_BYTES + 1, 0),
    ] {
        let (mut world, segment) = of_sender();
        let span = Span { segment, offset: 0, length };
        world.kernel.bytes_mut(world.node, span).fill(7);
        let messages = COPY_BYTES_PER_TURN / TAKEN_AT_ONCE_BYTES + 8;
        for number in 1..=u64::from(messages) {
            world.submit(SENDER, number, send(7, 0, length.into()));
        }
        let offered = world.relays();
        assert_eq!(offered.len() as u32, messages);
        let lent = world.kernel.add_segment(world.node, 64 << 10);
        let into = Span { segment: lent, offset: 0, length };
        for (offer, receive) in offered.iter().zip(1..) {
            let Relay::Offer { channel, number, .. } = *offer else { panic!("{offer:?}") };
            let take = Relay::Take { channel, number, place: number, receive, into };
            world.shard.handle_relay(1, take, &mut world.kernel.io(world.node));
        }
        let taken = |world: &mut World| std::iter::from_fn(|| world.shard.poll_relay(1)).count();
        assert_eq!(taken(&mut world) as u32, at_once);
        world.settle();
        assert_eq!(taken(&mut world) as u32, messages - at_once);
        assert!(world.kernel.bytes(world.node, into).iter().all(|&byte| byte == 7));
        assert!((1..=u64::from(messages)).all(|it| world.end_of(it).is_some()));
        assert!(world.shard.is_idle());
    }
}

#[test]
fn a_sender_whose_memory_vanishes_leaves_zeros_and_not_what_staging_had() {
    let (mut world, segment) = of_sender();
    world.command(Command::SetEager(EagerMode::Fixed(4096)));
    world.kernel.loosen(world.node, segment);
    let span = Span { segment, offset: 0, length: 300 };
    world.kernel.bytes_mut(world.node, span).fill(9);
    world.submit(SENDER, 1, send(7, 0, 300));
    let offered = world.relays();
    let [Relay::Offer { number, .. }] = offered[..] else { panic!("{offered:?}") };
    world.kernel.tear(world.node, segment);
    world.relay(Relay::Waits { channel: CHANNEL, number });
    assert_eq!(world.end_of(1).map(|(status, _)| status), Some(Status::BadBuffer));
    let lent = world.kernel.add_segment(world.node, 4096);
    let into = Span { segment: lent, offset: 0, length: 300 };
    world.kernel.bytes_mut(world.node, into).fill(5);
    let (channel, place, receive) = (CHANNEL, 3, 5);
    world.relay(Relay::Take { channel, number, place, receive, into });
    assert!(world.kernel.bytes(world.node, into).iter().all(|&byte| byte == 0));
    assert!(world.shard.is_idle());
}

#[test]
fn a_take_of_a_long_message_is_given_up_before_its_turn_and_the_message_offered_again() {
    let (mut world, _) = of_sender();
    let length: u32 = 600 << 10;
    world.submit(SENDER, 1, send(7, 0, length.into()));
    let offered = world.relays();
    let [Relay::Offer { number, .. }] = offered[..] else { panic!("{offered:?}") };
    let lent = world.kernel.add_segment(world.node, length.into());
    let into = Span { segment: lent, offset: 0, length };
    let (channel, place, receive) = (CHANNEL, 3, 5);
    // A shorter one would be there by now.
    let take = Relay::Take { channel, number, place, receive, into };
    world.shard.handle_relay(1, take, &mut world.kernel.io(world.node));
    world.relay(Relay::GiveUp { receive });
    let told = world.relays();
    let again = |it: &Relay| matches!(it, Relay::Offer { place: 3, .. });
    let failed = |it: &Relay| {
        matches!(it, Relay::Took { how: Took::Failed(Status::Cancelled), held: false, .. })
    };
    assert!(told.iter().any(again) && told.iter().any(failed), "{told:?}");
    assert_eq!(world.end_of(1), None, "its sender waits for another receive");
}

#[test]
fn notifications_go_to_the_exporters_shard_and_end_as_it_says() {
    let mut world = World::of_two_shards();
    let segment = world.session(SESSION, ARENA);
    let Target::Region(target) = region(3, segment, 4096) else { unreachable!() };
    let target = Target::Region(RegionTarget { home: 1, ..target });
    let (session, handle) = (SESSION, HandleId(4));
    world.command(Command::InstallHandle { session, handle, target });
    for (number, status) in [(1, Status::Ok), (2, Status::WouldBlock)] {
        world.submit(SESSION, number, Verb::Notify { handle, id: 6 });
        let asked = world.relays();
        let [Relay::Notify { asker, region: RegionId(3), id: 6 }] = asked[..] else {
            panic!("{asked:?}");
        };
        assert_eq!(world.end_of(number), None);
        world.relay(Relay::Notified { asker, status });
        assert_eq!(world.end_of(number), Some((status, 0)));
        // A second answer is nobody's.
        world.relay(Relay::Notified { asker, status });
    }
    // The bytes of a put go first.
    let buffer = ArenaBuffer { segment: 0, offset: 8192, length: 512 };
    let put = Verb::Write { handle, offset: 0, buffer, durable: false, notify: Some(9) };
    world.kernel.bytes_mut(world.node, Span { segment, offset: 8192, length: 512 }).fill(4);
    world.submit(SESSION, 3, put);
    world.settle();
    let there = Span { segment, offset: 0, length: 512 };
    assert!(world.kernel.bytes(world.node, there).iter().all(|&byte| byte == 4));
    assert!(matches!(world.relays()[..], [Relay::Notify { id: 9, .. }]));
    assert_eq!(world.end_of(3), None);
}

#[test]
fn another_shards_notification_of_a_region_is_counted_here_or_refused() {
    let mut world = World::of_two_shards();
    let segment = world.session(SESSION, ARENA);
    let (session, handle) = (SESSION, HandleId(4));
    let target = region(3, segment, 4096);
    world.command(Command::InstallHandle { session, handle, target });
    world.submit(SESSION, 1, Verb::Wait { handle, id: 6, count: 2 });
    for (number, status) in [(1, Status::Ok), (2, Status::Ok)] {
        let asker = NotifyAsker::Peer(number);
        world.relay(Relay::Notify { asker, region: RegionId(3), id: 6 });
        assert_eq!(world.relays(), [Relay::Notified { asker, status }]);
    }
    assert_eq!(world.end_of(1), Some((Status::Ok, 0)));
    world.command(Command::RevokeRegion { region: RegionId(3) });
    let asker = NotifyAsker::Request(1);
    world.relay(Relay::Notify { asker, region: RegionId(3), id: 6 });
    assert_eq!(world.relays(), [Relay::Notified { asker, status: Status::Gone }]);
}

#[test]
fn messages_of_this_shard_and_of_another_have_one_order() {
    let mut world = World::of_two_shards();
    with_sender(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(0)));
    world.relay(offer(1, 5, 100));
    world.submit(SENDER, 1, send(5, 0, 200));
    world.settle_turn();
    world.relay(offer(2, 5, 100));
    world.submit(SESSION, 11, receive(None, 4096, 1000));
    let (number, _, first, _) = take(&mut world);
    assert_eq!(number, 1);
    world.submit(SESSION, 12, receive(None, 8192, 1000));
    world.settle();
    assert_eq!(world.end_of(12), Some((Status::Ok, 200)), "the one of this shard");
    world.submit(SESSION, 13, receive(None, 12_288, 1000));
    assert_eq!(take(&mut world).0, 2);
    world.relay(took(first, Took::Failed(Status::WouldBlock), false));
    assert_eq!(world.end_of(11), Some((Status::WouldBlock, 0)));
}
