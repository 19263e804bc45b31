//! Fragments and frames that are not cut alike, and copies whose write follows the read.

use piped_core::ids::HandleId;
use piped_core::link::LaneClass;
use piped_core::modes::{ForcedPlan, PlannerMode};
use piped_core::request::Verb;
use piped_core::sizes::Sizes;
use piped_core::status::Status;
use piped_engine::command::{Command, Limits};
use piped_sim::InodeId;
use piped_wire::{LastPart, Message};

use crate::asking::{HANDLE, connected};
use crate::world::{LineId, SESSION, World, read, write_data, write_in};

const FILE: HandleId = HandleId(2);
const KIB: u64 = 1 << 10;
/// What files hold at first (`World::file`), and what is written.
const NEW: u8 = 9;

/// Announces a write whose fragments have these sizes.
fn announce(world: &mut World, line: LineId, message: Message, sizes: &[u64]) {
    let (bytes, length) = Sizes::list(sizes.iter().copied()).unwrap().encode();
    world.send(line, message, &bytes[..length]);
}

/// KiB of a file that were written without a gap, from `start` on.
fn written(world: &World, inode: InodeId, start: u64) -> u64 {
    let content = &world.kernel.file_content(inode)[start as usize..];
    content.iter().take_while(|&&byte| byte == NEW).count() as u64 / KIB
}

fn status_of_write(world: &mut World, line: LineId) -> Status {
    loop {
        match world.next(line) {
            Message::End { status, .. } => return status,
            Message::Credit { .. } | Message::Report { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// How often more credit came.
fn credits(world: &mut World, line: LineId) -> usize {
    let frames = std::iter::from_fn(|| world.take_frame(line));
    frames.filter(|(frame, _)| matches!(frame.message, Message::Credit { .. })).count()
}

#[test]
fn a_write_goes_to_the_device_by_the_fragments_that_were_planned_for_it() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let (file, inode) = world.file_and_inode(64 << 10);
    let handle = world.open(line, 1, file);
    announce(&mut world, line, write_in(1, handle, 20 * KIB, 2048), &[4 * KIB, 8 * KIB]);
    // So much is complete of fragments of 4, 8 and 8 KiB after each frame of 2 KiB.
    for (frame, complete) in (0..10).zip([0, 4, 4, 4, 4, 12, 12, 12, 12, 20]) {
        world.send(line, write_data(1, frame * 2 * KIB), &[NEW; 2048]);
        world.settle();
        assert_eq!(written(&world, inode, 0), complete, "after frame {frame}");
    }
    assert_eq!(status_of_write(&mut world, line), Status::Ok);
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_frame_may_be_longer_than_the_fragments_in_it() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let (file, inode) = world.file_and_inode(64 << 10);
    let handle = world.open(line, 1, file);
    announce(&mut world, line, write_in(1, handle, 32 * KIB, 24 << 10), &[4 * KIB]);
    // The second one does not fit what is left of a fragment, which nobody who is honest sends.
    for (offset, length) in [(0, 24 * KIB), (24 * KIB, 2 * KIB), (26 * KIB, 6 * KIB)] {
        world.send(line, write_data(1, offset), &vec![NEW; length as usize]);
    }
    assert_eq!(status_of_write(&mut world, line), Status::Ok);
    assert_eq!(written(&world, inode, 0), 32);
    assert_eq!(world.reasons(), [""; 0]);
}

const MIB: u64 = 1 << 20;
const PIECE: u64 = 256 * KIB;

/// A lane whose window has become a quarter of this, and a file of 8 MiB that is open there.
fn narrow(world: &mut World, staging: u64) -> (LineId, u32, InodeId) {
    let line = world.lane("beta", LaneClass::Latency, 1);
    let (file, inode) = world.file_and_inode(8 << 20);
    let handle = world.open(line, 1, file);
    let mut limits = Limits::NONE;
    limits.peer.staging = staging;
    world.command(Command::SetLimits(limits));
    // What was given at first has to be used up.
    world.send(line, write_in(9, handle, 8 * MIB, 1 << 20), &[]);
    for piece in 0..8 {
        world.send(line, write_data(9, piece * MIB), &[1; 1 << 20]);
    }
    assert_eq!(status_of_write(world, line), Status::Ok);
    world.settle();
    while world.take_frame(line).is_some() {}
    (line, handle, inode)
}

/// Announces a write of one fragment of 1 MiB, in its own place in the file.
fn announce_one(world: &mut World, line: LineId, transfer: u64, handle: u32) {
    let mut message = write_in(transfer, handle, MIB, PIECE as u32);
    if let Message::Write { offset, .. } = &mut message {
        *offset = transfer * MIB;
    }
    announce(world, line, message, &[MIB]);
}

fn send_piece(world: &mut World, line: LineId, transfer: u64, index: u64) {
    world.send(line, write_data(transfer, index * PIECE), &[NEW; PIECE as usize]);
    world.settle();
}

#[test]
fn fragments_that_have_all_the_staging_there_is_do_not_wait_to_be_complete() {
    let mut world = World::new();
    let (line, handle, inode) = narrow(&mut world, 8 * MIB);
    (0..3).for_each(|transfer| announce_one(&mut world, line, transfer, handle));
    let pieces = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)];
    for (transfer, index) in pieces {
        send_piece(&mut world, line, transfer, index);
    }
    assert_eq!(credits(&mut world, line), 0);
    assert_eq!(written(&world, inode, 0), 0, "it may be complete yet");
    // A third write finds no staging: the other two have the lane's share.
    send_piece(&mut world, line, 2, 0);
    let done = [0, 1, 2].map(|transfer| written(&world, inode, transfer * MIB));
    assert_eq!(done, [768, 768, 0], "what has landed is written");
    assert!(credits(&mut world, line) > 0);
    for (transfer, index) in [(2, 1), (0, 3), (2, 2), (1, 3), (2, 3)] {
        send_piece(&mut world, line, transfer, index);
    }
    for _ in 0..3 {
        assert_eq!(status_of_write(&mut world, line), Status::Ok);
    }
    let done = [0, 1, 2].map(|transfer| written(&world, inode, transfer * MIB));
    // What follows in the file is written, too.
    assert_eq!((done, world.reasons()), ([3072, 2048, 1024], vec![]));
}

#[test]
fn a_fragment_that_there_is_no_credit_for_does_not_wait_to_be_complete() {
    let mut world = World::new();
    let (line, handle, inode) = narrow(&mut world, 4 * MIB);
    // Of a window of 1 MiB so much is kept back: not worth a frame.
    world.send(line, write_in(7, handle, 200 * KIB, 200 << 10), &[]);
    world.send(line, write_data(7, 0), &[1; 200 << 10]);
    assert_eq!(status_of_write(&mut world, line), Status::Ok);
    announce_one(&mut world, line, 1, handle);
    send_piece(&mut world, line, 1, 0);
    send_piece(&mut world, line, 1, 1);
    assert_eq!((credits(&mut world, line), written(&world, inode, MIB)), (0, 0));
    send_piece(&mut world, line, 1, 2);
    assert_eq!(written(&world, inode, MIB), 768, "for the fourth there is no credit");
    assert!(credits(&mut world, line) > 0, "now there is");
    send_piece(&mut world, line, 1, 3);
    assert_eq!(status_of_write(&mut world, line), Status::Ok);
    assert_eq!((written(&world, inode, MIB), world.reasons()), (1024, vec![]));
}

#[test]
fn sizes_that_are_none_cost_the_lane() {
    for sizes in [&[0, 0][..], &[1, 0, 2], &[1, 0, 0, 0]] {
        let mut world = World::new();
        let line = world.lane("beta", LaneClass::Latency, 1);
        let file = world.file(64 << 10);
        let handle = world.open(line, 1, file);
        world.send(line, write_in(1, handle, 8192, 4096), sizes);
        world.settle();
        assert_eq!(world.reasons(), ["the sizes of a write's fragments are none"]);
    }
}

/// A copy of so many bytes of the peer's region into a file of ours; what the peer is asked for.
pub(crate) fn copying(length: u64) -> (World, LineId, InodeId, u64) {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let (target, inode) = world.file_and_inode(256 << 10);
    world.command(Command::InstallHandle { session: SESSION, handle: FILE, target });
    world.command(Command::SetPlanner(PlannerMode::Fixed(16 << 10)));
    let (from, to, from_offset, to_offset) = (HANDLE, FILE, 0, 0);
    world.submit(SESSION, 1, Verb::Copy { from, from_offset, to, to_offset, length });
    let Message::Read { transfer, .. } = world.next(line) else { panic!("a read") };
    (world, line, inode, transfer)
}

pub(crate) fn data(transfer: u64, offset: u64, last: Option<u64>) -> Message {
    let last = last.map(|bytes| LastPart {
        status: Status::Ok,
        bytes,
        predicted_us: 0,
        margin_percent: 0,
        company: false,
        plan: 0,
    });
    let (fragment, backlogged, service_us) = (16 << 10, false, 1);
    Message::Data { transfer, offset, fragment, backlogged, service_us, last }
}

#[test]
fn a_copy_writes_what_it_has_read() {
    let length = 64 * KIB;
    let (mut world, line, inode, transfer) = copying(length);
    for piece in 0..4 {
        let offset = piece * 16 * KIB;
        world.settle();
        let last = (piece == 3).then_some(length);
        world.send(line, data(transfer, offset, last), &[NEW; 16 << 10]);
        world.settle();
        assert!(written(&world, inode, 0) >= (piece + 1) * 16, "piece {piece}");
    }
    assert_eq!(world.end_of(1), Some((Status::Ok, length)));
}

#[test]
fn a_source_that_is_shorter_than_it_was_is_copied_as_far_as_it_goes() {
    let (mut world, line, inode, transfer) = copying(64 * KIB);
    world.send(line, data(transfer, 0, None), &[NEW; 16 << 10]);
    world.settle();
    let left = 20 * KIB;
    world.send(line, data(transfer, 16 * KIB, Some(left)), &[NEW; 4 << 10]);
    world.wait_until("the end", |world| world.end_of(1).is_some());
    assert_eq!(world.end_of(1), Some((Status::Ok, left)));
    assert_eq!(written(&world, inode, 0), 20);
    let staging = world.shard.report().limits.staging.now;
    world.settle();
    assert_eq!(world.shard.report().transfers, 0, "{staging}");
}

#[test]
fn a_copy_whose_source_fails_ends_and_leaves_nothing() {
    let (mut world, line, _, transfer) = copying(64 * KIB);
    let before = world.shard.report().staging_used_bytes;
    world.send(line, data(transfer, 0, None), &[NEW; 16 << 10]);
    world.settle();
    let (status, bytes, service_us, fragment, predicted_us) = (Status::Io, 16 * KIB, 1, 0, 0);
    let end = Message::End { transfer, status, bytes, service_us, fragment, predicted_us };
    world.send(line, end, &[]);
    world.wait_until("the end", |world| world.end_of(1).is_some());
    assert!(matches!(world.end_of(1), Some((Status::Io, _))), "{:?}", world.end_of(1));
    world.settle();
    let report = world.shard.report();
    assert_eq!(report.transfers, 0);
    assert!(report.staging_used_bytes < before, "its staging is free");
}

#[test]
fn the_halves_of_a_copy_have_one_plan() {
    let mut world = World::new();
    let (line, _) = connected(&mut world, &[SESSION]);
    let target = world.file(256 << 10);
    world.command(Command::InstallHandle { session: SESSION, handle: FILE, target });
    let length = 128 * KIB;
    let (from, to, from_offset, to_offset) = (FILE, HANDLE, 0, 0);
    world.submit(SESSION, 1, Verb::Copy { from, from_offset, to, to_offset, length });
    let Message::Write { transfer, .. } = world.next(line) else { panic!("a write") };
    let mut came = 0;
    while came < length {
        let (frame, bytes) = world.next_frame(line);
        assert!(matches!(frame.message, Message::WriteData { offset, .. } if offset == came));
        assert!(bytes.iter().all(|&byte| byte == 7));
        came += bytes.len() as u64;
    }
    let (status, bytes, service_us, fragment, predicted_us) = (Status::Ok, length, 1, 0, 0);
    let end = Message::End { transfer, status, bytes, service_us, fragment, predicted_us };
    world.send(line, end, &[]);
    world.wait_until("the end", |world| world.end_of(1).is_some());
    assert_eq!(world.end_of(1), Some((Status::Ok, length)));
    let it = world.shard.explain(None).expect("it is the last");
    let names: Vec<_> = it.stages.iter().map(|stage| stage.name.as_str()).collect();
    let at = |what: &str| names.iter().position(|name| name.starts_with(what));
    assert!(at("disk") < at("net") && at("disk").is_some(), "{names:?}");
}

#[test]
fn a_read_goes_on_when_its_frames_have_filled_the_lane() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let file = world.file(1 << 20);
    let handle = world.open(line, 1, file);
    let [source, lane] = [256 * KIB, KIB].map(Sizes::equal);
    // More frames in a block of staging than a lane takes.
    assert!(source.first() / lane.first() > piped_core::limits::LANE_QUEUE_DATA as u64);
    world.command(Command::ForcePlan(Some(ForcedPlan { source, lane, sink: lane, depth: 8 })));
    // Of one block: nothing else ends that somebody waits for.
    world.send(line, read(1, handle, source.first()), &[]);
    assert_eq!(world.read_end(line, 1), Status::Ok);
    world.settle();
    assert_eq!(world.shard.report().serves, 0);
}

#[test]
fn a_frame_may_want_more_fragments_than_are_read_ahead() {
    for depth in [1, 4, 32] {
        let mut world = World::new();
        let line = world.lane("beta", LaneClass::Latency, 1);
        let file = world.file(1 << 20);
        let handle = world.open(line, 1, file);
        let [source, lane] = [4 * KIB, 512 * KIB].map(Sizes::equal);
        world.command(Command::ForcePlan(Some(ForcedPlan { source, lane, sink: lane, depth })));
        world.send(line, read(1, handle, MIB), &[]);
        assert_eq!(world.read_end(line, 1), Status::Ok, "depth {depth}");
    }
}
