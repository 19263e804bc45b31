//! What is remembered of messages, for advice on the memory they need.

use piped_core::ids::{ChannelId, HandleId};
use piped_core::limits::{CHANNELS_SEEN_MAX, MESSAGES_SEEN};
use piped_core::modes::EagerMode;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Command;
use piped_model::buffer::advise::{Bursts, Way};
use piped_report::dial::{DialCost, DialPlace};
use piped_report::shard::ChannelArrivals;

use crate::channels::{
    CHANNEL, INBOX, SENDER, limits, peer, ready, receive, send, sent, target_of, wait_end,
    with_sender, write_to,
};
use crate::world::{SESSION, World};

const GRANULE: f64 = 65_536.0;
const PAUSE: Nanos = Nanos::from_millis(3);

fn seen(world: &World) -> (Vec<ChannelArrivals>, u64) {
    world.shard.arrivals(world.kernel.now())
}

fn only(world: &World) -> ChannelArrivals {
    let (mut channels, unseen) = seen(world);
    assert_eq!((channels.len(), unseen), (1, 0));
    channels.remove(0)
}

fn ways(channel: &ChannelArrivals) -> Vec<Way> {
    channel.seen.iter().map(|it| it.way).collect()
}

fn needed(channel: &ChannelArrivals) -> f64 {
    Bursts::of(&channel.seen, channel.copy_bytes_per_second).need().memory_bytes
}

/// Three messages of a client of the same node, then receives one by one, a pause between them.
fn three(world: &mut World) {
    for number in 0..3 {
        world.submit(SENDER, number, send(7, 0, 60_000));
    }
    world.settle();
    for number in 0..3 {
        world.run_for(PAUSE);
        world.submit(SESSION, 10 + number, receive(None, 0, 60_000));
        assert_eq!(wait_end(world, 10 + number), (Status::Ok, 60_000));
    }
    world.settle();
}

#[test]
fn when_a_message_came_and_was_taken_and_copied_is_what_is_seen() {
    let mut world = World::new();
    with_sender(&mut world);
    world.command(Command::SetEager(EagerMode::Fixed(60_000)));
    let cost = DialCost { overhead_ns: 5_000_000, ..DialCost::default() };
    world.command(Command::SetDial { place: DialPlace::Copy, cost });
    three(&mut world);
    let channel = only(&world);
    assert_eq!((channel.channel, channel.session, channel.open), (CHANNEL, SESSION, true));
    assert_eq!((channel.messages, channel.stalled, channel.is_cut), (3, 0, false));
    assert_eq!(ways(&channel), [Way::Kept; 3]);
    assert_eq!((channel.memory.now, channel.memory.high), (0, 3 << 16));
    for pair in channel.seen.windows(2) {
        // The start-up is the pause of the receiver, the copy is the dial's.
        let startup = pair[1].taken_seconds - pair[0].ended_seconds;
        assert!((startup - PAUSE.seconds()).abs() < 1e-4, "{startup}");
        let copy = pair[1].ended_seconds - pair[1].taken_seconds;
        assert!((copy - 5e-3).abs() < 1e-4, "{copy}");
    }
    let bursts = Bursts::of(&channel.seen, channel.copy_bytes_per_second);
    assert_eq!((bursts.count(), needed(&channel)), (1, 3.0 * GRANULE));
    let [sender] = &channel.senders[..] else { panic!("{:?}", channel.senders) };
    assert_eq!((sender.peer.as_deref(), sender.messages, sender.memory_bytes), (None, 3, 65_536));
}

#[test]
fn too_little_memory_does_not_hide_what_is_needed() {
    for limit in [0, 64 << 10, 128 << 10] {
        let mut world = World::new();
        with_sender(&mut world);
        world.command(Command::SetEager(EagerMode::Fixed(60_000)));
        world.command(Command::SetLimits(limits(limit)));
        three(&mut world);
        let channel = only(&world);
        assert_eq!(channel.stalled, 3 - (limit >> 16), "{limit}");
        assert_eq!(channel.memory.high, limit);
        assert_eq!(needed(&channel), 3.0 * GRANULE, "{limit}");
    }
}

#[test]
fn a_peer_s_messages_are_seen_whichever_way_they_came() {
    let mut world = World::new();
    let (line, handle, _) = peer(&mut world);
    // One that is waited for, one that is kept, one for which there is no memory, one that is
    // announced.
    world.submit(SESSION, 1, receive(None, 0, 60_000));
    let frame = world.frame(line, sent(handle, 7, 50_000, 0), &[1; 50_000]);
    world.send_bytes(line, &frame[..30_000]);
    world.run_for(PAUSE);
    world.send_bytes(line, &frame[30_000..]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 50_000));
    world.send(line, sent(handle, 7, 40_000, 1), &[2; 40_000]);
    world.settle();
    world.command(Command::SetLimits(limits(0)));
    world.send(line, sent(handle, 7, 3_000, 2), &[3; 3_000]);
    world.send(line, sent(handle, 7, 50_000, 3), &[]);
    world.settle();
    assert_eq!(ways(&only(&world)), [Way::Direct, Way::Waiting, Way::Waiting]);
    world.run_for(PAUSE);
    while world.take_frame(line).is_some() {}
    for (number, length) in [(2, 40_000), (3, 3_000), (4, 50_000)] {
        world.submit(SESSION, number, receive(None, 0, 60_000));
        if number > 2 {
            // The wire's names are those of the sequence.
            let slot = ready(&mut world, line, 999 + number);
            write_to(&mut world, line, 999 + number, slot, &vec![4; length]);
            assert_eq!(world.read_end(line, 999 + number), Status::Ok);
        }
        assert_eq!(wait_end(&mut world, number), (Status::Ok, length as u64));
    }
    let channel = only(&world);
    // The announced one needs no memory, however much there is.
    assert_eq!(ways(&channel), [Way::Direct, Way::Kept, Way::Stalled]);
    let landing = |at: usize| channel.seen[at].landed_seconds - channel.seen[at].came_seconds;
    assert!(landing(0) > 0.9 * PAUSE.seconds() && landing(1) < 0.5 * PAUSE.seconds());
    assert!(channel.seen[2].taken_seconds - channel.seen[2].came_seconds > 0.9 * PAUSE.seconds());
    // The short one shares a granule.
    assert!(channel.shares);
    assert_eq!(needed(&channel), GRANULE + 3_008.0);
    let [sender] = &channel.senders[..] else { panic!("{:?}", channel.senders) };
    assert_eq!((sender.peer.as_deref(), sender.memory_bytes), (Some("beta"), 65_536));
}

#[test]
fn a_message_that_comes_again_is_seen_once() {
    let mut world = World::new();
    let (line, handle, _) = peer(&mut world);
    for _ in 0..5 {
        world.send(line, sent(handle, 7, 3_000, 0), &[1; 3_000]);
        world.settle();
    }
    world.submit(SESSION, 1, receive(None, 0, 60_000));
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 3_000));
    let channel = only(&world);
    assert_eq!((ways(&channel), channel.memory.now), (vec![Way::Kept], 0));
}

#[test]
fn a_sender_cannot_make_more_be_remembered_than_there_is_room_for() {
    let mut world = World::new();
    with_sender(&mut world);
    let all = MESSAGES_SEEN as u64 + 100;
    for number in 0..all {
        world.submit(SENDER, number, send(7, 0, 100 + number % 50));
        assert_eq!(wait_end(&mut world, number).0, Status::Ok);
        world.submit(SESSION, 1 << 32 | number, receive(None, 0, 200));
        assert_eq!(wait_end(&mut world, 1 << 32 | number).0, Status::Ok);
        world.completions.clear();
    }
    let channel = only(&world);
    assert_eq!((channel.seen.len(), channel.messages), (MESSAGES_SEEN, all));
    assert!(channel.is_cut);
    // The last ones, in their order.
    assert!(channel.seen.windows(2).all(|pair| pair[0].ended_seconds <= pair[1].ended_seconds));
    assert_eq!(channel.seen.last().map(|it| it.bytes), Some((100 + (all - 1) % 50) as f64));
    // Nor of those that wait.
    for number in 0..all {
        world.submit(SENDER, number, send(7, 0, 100));
        world.settle();
    }
    assert_eq!(only(&world).seen.len(), 2 * MESSAGES_SEEN);
}

#[test]
fn a_closed_channel_is_remembered_until_another_one_wants_its_place() {
    let mut world = World::new();
    with_sender(&mut world);
    // One that nobody receives is gone with its channel.
    for number in 0..2 {
        world.submit(SENDER, number, send(7, 0, 1_000));
    }
    world.settle();
    world.submit(SESSION, 10, receive(None, 0, 1_000));
    assert_eq!(wait_end(&mut world, 10), (Status::Ok, 1_000));
    world.command(Command::CloseHandle { session: SESSION, handle: INBOX });
    world.settle();
    let channel = only(&world);
    assert_eq!((channel.open, channel.messages, channel.memory.now), (false, 1, 0));
    assert_eq!(ways(&channel), [Way::Kept]);
    // As many as there is room for, and one more.
    let more = |world: &mut World, number: u32| {
        let (inbox, outbox) = (HandleId(100 + 2 * number), HandleId(101 + 2 * number));
        let channel = ChannelId(100 + number);
        for (session, handle, receives) in [(SESSION, inbox, true), (SENDER, outbox, false)] {
            let target = target_of(channel, receives);
            world.command(Command::InstallHandle { session, handle, target });
        }
        let buffer = ArenaBuffer { segment: 0, offset: 0, length: 100 };
        let send = Verb::Send { handle: outbox, tag: 7, buffer };
        world.submit(SENDER, u64::from(1000 + number), send);
        world.settle();
        let receive = Verb::Receive { handle: inbox, tag: None, buffer };
        world.submit(SESSION, u64::from(2000 + number), receive);
        assert_eq!(wait_end(world, u64::from(2000 + number)), (Status::Ok, 100));
    };
    for number in 0..CHANNELS_SEEN_MAX as u32 {
        more(&mut world, number);
    }
    let (channels, unseen) = seen(&world);
    assert_eq!((channels.len(), unseen), (CHANNELS_SEEN_MAX, 0));
    assert!(channels.iter().all(|it| it.open && it.messages == 1), "{channels:?}");
    more(&mut world, CHANNELS_SEEN_MAX as u32);
    let (channels, unseen) = seen(&world);
    assert_eq!((channels.len(), unseen), (CHANNELS_SEEN_MAX, 1));
}
