//! Calls: of files of this node, asked of peers, and asked by peers.

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::call::{ANSWER_BYTES_MAX, CALL_BYTES_MAX, Call, Range, Removed, Stat};
use piped_core::ids::{DeviceId, SegmentId};
use piped_core::io::Span;
use piped_core::limits::FRAGMENT_BYTES_MAX;
use piped_core::link::LaneClass;
use piped_core::request::{ArenaBuffer, BufferState, Class, Completion, Request, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, DirectoryTarget, Event, FileTarget, OpenRequest, Target};
use piped_wire::{Asker, LastPart, Message};

use crate::asking::{ARENA, CREDIT, HANDLE};
use crate::channels::wait_end;
use crate::world::{ALL, LineId, PEER, SESSION, Step, World, end, read, write, write_data};

const ROOM: u64 = 4096;
const STAT: Call<'static> = Call::Stat { path: b"" };
const REMOVE: Call<'static> = Call::Remove { path: b"old", kind: Removed::File };
const OK: (Status, u64) = (Status::Ok, 0);

pub(crate) fn encoded(call: Call<'_>) -> Vec<u8> {
    let mut bytes = [0; CALL_BYTES_MAX];
    let length = call.encode(&mut bytes).expect("room");
    bytes[..length].to_vec()
}

/// Where a request has its buffer.
fn place(segment: SegmentId, user_data: u64, length: u32) -> Span {
    Span { segment, offset: user_data * ROOM, length }
}

/// A client has a call at the start of a buffer, and asks for it.
pub(crate) fn ask(world: &mut World, segment: SegmentId, user_data: u64, call: Call<'_>) {
    ask_with(world, segment, user_data, call, (ROOM, None));
}

/// With so much room for the answer, and so much time.
fn ask_with(
    world: &mut World,
    segment: SegmentId,
    user_data: u64,
    call: Call<'_>,
    (length, deadline): (u64, Option<Nanos>),
) {
    let bytes = encoded(call);
    put(world, place(segment, user_data, 0), &bytes);
    let buffer = ArenaBuffer { segment: 0, offset: user_data * ROOM, length };
    let verb = Verb::Call { handle: HANDLE, buffer, call_bytes: bytes.len() as u32 };
    let (class, no_wait, fence) = (Class::Latency, false, false);
    world.submit_request(SESSION, user_data, Request { verb, class, deadline, no_wait, fence });
}

/// A client writes bytes into a buffer.
fn put(world: &mut World, at: Span, bytes: &[u8]) {
    let at = Span { length: bytes.len() as u32, ..at };
    world.kernel.bytes_mut(world.node, at).copy_from_slice(bytes);
}

/// What the answer of a request says that is a stat.
fn told(world: &World, segment: SegmentId, user_data: u64) -> Stat {
    let place = place(segment, user_data, Stat::BYTES as u32);
    Stat::parse(world.kernel.bytes(world.node, place)).expect("a stat")
}

/// A session that has a file of this node open.
fn with_file(world: &mut World, length: usize, access: Access) -> SegmentId {
    let segment = world.session(SESSION, ARENA);
    let Target::File(file) = world.file(length) else { unreachable!("it is one") };
    let target = Target::File(FileTarget { access, ..file });
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target });
    segment
}

/// The lane to a peer at which a session has something open.
pub(crate) fn with_peer(world: &mut World, kind: OpenKind, access: Access) -> (LineId, SegmentId) {
    world.add_peer();
    let line = world.answer_connect(LaneClass::Latency, CREDIT);
    let segment = world.session(SESSION, ARENA);
    let open = OpenRequest {
        kind,
        name: "data".to_owned(),
        path: Vec::new(),
        access,
        create: Creation::No,
    };
    let (handle, peer, ticket, session) = (HANDLE, PEER, 0, SESSION);
    world.command(Command::OpenRemote { ticket, session, handle, peer, open });
    answer_open(world, line);
    world.wait_until("it is open", |world| {
        world.events.iter().any(|event| matches!(event, Event::RemoteOpened { .. }))
    });
    world.settle();
    while world.take_frame(line).is_some() {}
    (line, segment)
}

fn answer_open(world: &mut World, line: LineId) {
    let ticket = loop {
        match world.next(line) {
            Message::Open { ticket, .. } => break ticket,
            Message::Close { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    let (status, length) = (Status::Ok, 0);
    world.send(line, Message::Opened { ticket, status, handle: 3, length }, &[]);
}

/// The lane is lost, and the next one, of a run of the peer's daemon, has the handle again.
pub(crate) fn lose_lane(world: &mut World, line: LineId, incarnation: u64) -> LineId {
    world.hang_up(line);
    let line = world.answer_connect_as(LaneClass::Latency, CREDIT, incarnation);
    answer_open(world, line);
    let Message::Close { .. } = world.next(line) else { panic!("the rest is not swept") };
    line
}

/// A call as the peer gets it: the requester's number, the number of one that is done once, and
/// its bytes.
pub(crate) fn take_call(world: &mut World, line: LineId) -> (u64, Option<(u32, u8)>, Vec<u8>) {
    let (frame, bytes) = world.next_frame(line);
    match frame.message {
        Message::Call { transfer, handle: 3, once, .. } => (transfer, once, bytes),
        other => panic!("not a call: {other:?}"),
    }
}

/// What an honest peer answers.
fn answered(transfer: u64, bytes: u64) -> Message {
    let (status, predicted_us, margin_percent, company, plan) = (Status::Ok, 0, 0, false, 0);
    let last = LastPart { status, bytes, predicted_us, margin_percent, company, plan };
    let (offset, fragment, backlogged, service_us) = (0, 0, false, 1);
    let last = Some(last);
    Message::Data { transfer, offset, fragment, backlogged, service_us, last }
}

/// A call as a peer makes it.
pub(crate) fn of_peer(transfer: u64, handle: u32, once: Option<(u32, u8)>) -> Message {
    let (asker, time_left_us) = (Asker::alone(Class::Latency), 10_000_000);
    Message::Call { transfer, handle, answer_max: ROOM as u32, asker, once, time_left_us }
}

/// A directory of this node, of which the simulated kernel knows nothing but that it is there.
fn directory(world: &mut World, access: Access) -> Target {
    let Target::File(file) = world.file(1) else { unreachable!("it is one") };
    let (directory, device, foreign) = (file.buffered, file.device, false);
    Target::Directory(DirectoryTarget { directory, device, access, foreign })
}

fn calls_made(world: &World) -> usize {
    world.steps.iter().filter(|step| **step == Step::Call).count()
}

#[test]
fn a_call_of_a_file_here_is_carried_out_and_answered_in_its_buffer() {
    let mut world = World::new();
    let segment = with_file(&mut world, 10_000, ALL);
    ask(&mut world, segment, 1, STAT);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, Stat::BYTES as u64));
    assert_eq!(told(&world, segment, 1).length, 10_000);
    ask(&mut world, segment, 2, Call::Truncate { length: 77 });
    assert_eq!(wait_end(&mut world, 2), OK);
    ask(&mut world, segment, 3, STAT);
    wait_end(&mut world, 3);
    assert_eq!(told(&world, segment, 3).length, 77);
    assert_eq!(world.staged(), 0, "no call keeps its memory");
}

#[test]
fn a_call_is_refused_at_the_door_for_what_it_is_or_does() {
    let mut world = World::new();
    let segment = with_file(&mut world, 10_000, Access::READ);
    let refused = [
        (Call::Truncate { length: 0 }, ROOM, Status::Denied),
        (REMOVE, ROOM, Status::Invalid),
        (Call::Stat { path: b"a" }, ROOM, Status::Invalid),
        (Call::List { path: b"", cookie: 0, stats: false }, ROOM, Status::Invalid),
        // Its answer has no room.
        (STAT, Stat::BYTES as u64 - 1, Status::Invalid),
        // The call itself is longer than the buffer.
        (Call::Trim { range: Range::default() }, 10, Status::Invalid),
    ];
    for (user_data, (call, room, status)) in (1..).zip(refused) {
        ask_with(&mut world, segment, user_data, call, (room, None));
        assert_eq!(wait_end(&mut world, user_data), (status, 0), "{call:?}");
    }
    // Bytes that are none, too few, and too many.
    put(&mut world, place(segment, 0, 0), &[0xff; 4096]);
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: ROOM };
    for (user_data, call_bytes) in (10..).zip([0, 23, 24, CALL_BYTES_MAX as u32 + 1, u32::MAX]) {
        world.submit(SESSION, user_data, Verb::Call { handle: HANDLE, buffer, call_bytes });
        assert_eq!(wait_end(&mut world, user_data), (Status::Invalid, 0), "{call_bytes}");
    }
    assert_eq!((calls_made(&world), world.staged()), (0, 0));
}

#[test]
fn calls_are_made_of_files_and_directories_alone_and_reads_not_of_directories() {
    let mut world = World::new();
    let segment = world.session(SESSION, ARENA);
    let names = Access { names: true, ..Access::READ };
    let target = directory(&mut world, names);
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target });
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: ROOM };
    let read = Verb::Read { handle: HANDLE, offset: 0, buffer, wanted: 0 };
    world.submit(SESSION, 1, read);
    assert_eq!(wait_end(&mut world, 1), (Status::Invalid, 0));
    ask(&mut world, segment, 2, Call::Truncate { length: 1 });
    assert_eq!(wait_end(&mut world, 2), (Status::Invalid, 0));
    // To the simulated kernel it is a file: what it says is what the client is told.
    ask(&mut world, segment, 3, REMOVE);
    assert_eq!(wait_end(&mut world, 3), (Status::Invalid, 0));
    assert_eq!(calls_made(&world), 1);
    world.submit(SESSION, 4, Verb::Flush { handle: HANDLE });
    assert_eq!(wait_end(&mut world, 4), OK);
    // The directory goes with its handle.
    let files = world.kernel.open_files(world.node).len();
    world.command(Command::CloseHandle { session: SESSION, handle: HANDLE });
    world.settle();
    assert_eq!(world.kernel.open_files(world.node).len(), files - 1);
}

#[test]
fn what_is_carried_out_is_what_was_checked_whatever_the_client_writes() {
    let mut world = World::new();
    let segment = with_file(&mut world, 10_000, Access::READ_WRITE);
    // While it waits for its device, and while the device has it.
    world.block_device(Nanos::from_millis(50));
    ask(&mut world, segment, 1, Call::Truncate { length: 9_000 });
    world.settle_turn();
    let other = encoded(Call::Truncate { length: 1 });
    put(&mut world, place(segment, 1, 0), &other);
    assert_eq!(wait_end(&mut world, 1), OK);
    ask(&mut world, segment, 2, STAT);
    wait_end(&mut world, 2);
    assert_eq!(told(&world, segment, 2).length, 9_000);
}

#[test]
fn a_client_that_rewrites_a_call_before_it_is_taken_gets_what_it_wrote_if_it_may() {
    let mut world = World::new();
    let segment = with_file(&mut world, 10_000, Access::READ);
    ask(&mut world, segment, 1, STAT);
    let other = encoded(Call::Truncate { length: 1 });
    put(&mut world, place(segment, 1, 0), &other);
    assert_eq!(wait_end(&mut world, 1), (Status::Denied, 0));
    assert_eq!(calls_made(&world), 0);
}

#[test]
fn a_call_that_hangs_ends_at_its_deadline_and_holds_its_buffer_alone() {
    let mut world = World::new();
    let segment = with_file(&mut world, 10_000, ALL);
    world.block_device(Nanos::from_millis(500));
    ask(&mut world, segment, 1, STAT);
    world.settle_turn();
    // The device has begun nothing else, and the driver cannot take this one back.
    world.kernel.set_faults(piped_sim::Faults { cancel_works: 0.0, ..piped_sim::Faults::none() });
    ask_with(&mut world, segment, 2, STAT, (ROOM, Some(Nanos::from_millis(10))));
    assert_eq!(wait_end(&mut world, 2), (Status::DeadlineExceeded, 0));
    let held = |completion: &Completion| {
        matches!(completion, Completion::Finished { origin, buffer: BufferState::Held, .. }
            if origin.user_data == 2)
    };
    assert!(world.completions.iter().any(held));
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, Stat::BYTES as u64));
    let released = |completion: &Completion| match completion {
        Completion::Released { origin } => origin.user_data == 2,
        _ => false,
    };
    world.wait_until("its release", |world| world.completions.iter().any(released));
    assert_eq!(world.staged(), 0);
}

#[test]
fn a_call_that_is_cancelled_before_its_device_begins_does_nothing() {
    let mut world = World::new();
    let segment = with_file(&mut world, 10_000, ALL);
    world.block_device(Nanos::from_millis(50));
    ask(&mut world, segment, 1, Call::Truncate { length: 0 });
    world.settle_turn();
    world.submit(SESSION, 2, Verb::Cancel { target: 1 });
    assert_eq!(wait_end(&mut world, 1), (Status::Cancelled, 0));
    world.settle();
    ask(&mut world, segment, 3, STAT);
    wait_end(&mut world, 3);
    assert_eq!((told(&world, segment, 3).length, world.staged()), (10_000, 0));
}

#[test]
fn many_calls_at_one_device_wait_for_each_other_and_all_end() {
    let mut world = World::new();
    let segment = with_file(&mut world, 10_000, ALL);
    world.block_device(Nanos::from_millis(20));
    let most = piped_core::limits::CALLS_PER_DEVICE as usize;
    for user_data in 1..=100 {
        ask(&mut world, segment, user_data, STAT);
    }
    world.run_for(Nanos::from_millis(5));
    assert_eq!(calls_made(&world), most);
    // Those that wait have no staging.
    assert!(world.staged() <= most as u64 * u64::from(piped_core::limits::CELL_BYTES));
    for user_data in 1..=100 {
        assert_eq!(wait_end(&mut world, user_data).0, Status::Ok);
    }
    assert_eq!(world.staged(), 0);
}

#[test]
fn a_session_that_goes_leaves_nothing_of_its_calls() {
    let mut world = World::new();
    let segment = with_file(&mut world, 10_000, ALL);
    world.block_device(Nanos::from_millis(50));
    for user_data in 1..=40 {
        ask(&mut world, segment, user_data, STAT);
    }
    world.settle_turn();
    world.command(Command::CloseSession { session: SESSION });
    world.settle();
    assert!(world.events.contains(&Event::SessionDrained { session: SESSION }));
    assert_eq!((world.staged(), world.kernel.open_files(world.node).len()), (0, 0));
}

#[test]
fn a_call_at_a_peer_goes_out_as_it_is_and_its_answer_lands() {
    let mut world = World::new();
    let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ_WRITE);
    ask(&mut world, segment, 1, STAT);
    let (transfer, once, bytes) = take_call(&mut world, line);
    assert_eq!((once, bytes), (None, encoded(STAT)));
    let stat = Stat { length: 42, ..Stat::default() };
    world.send(line, answered(transfer, Stat::BYTES as u64), &stat.to_bytes());
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, Stat::BYTES as u64));
    assert_eq!(told(&world, segment, 1), stat);
    // One without an answer, and one that fails.
    ask(&mut world, segment, 2, Call::Truncate { length: 1 });
    let (transfer, once, _) = take_call(&mut world, line);
    assert_eq!(once, None, "it may be done twice");
    world.send(line, end(transfer, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 2), OK);
    ask(&mut world, segment, 3, Call::Truncate { length: 1 });
    let (transfer, ..) = take_call(&mut world, line);
    world.send(line, end(transfer, Status::NoSpace, 0), &[]);
    assert_eq!(wait_end(&mut world, 3), (Status::NoSpace, 0));
    assert_eq!((world.staged(), world.reasons().len()), (0, 0));
}

#[test]
fn what_a_client_may_not_do_at_a_peer_is_not_asked_there() {
    let mut world = World::new();
    let (line, segment) = with_peer(&mut world, OpenKind::Directory, Access::READ);
    ask(&mut world, segment, 1, REMOVE);
    assert_eq!(wait_end(&mut world, 1), (Status::Denied, 0));
    ask(&mut world, segment, 2, Call::Truncate { length: 0 });
    assert_eq!(wait_end(&mut world, 2), (Status::Invalid, 0));
    world.settle();
    assert!(!world.has_frame(line));
}

#[test]
fn a_call_whose_lane_is_lost_comes_again_as_it_was() {
    let mut world = World::new();
    let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ_WRITE);
    ask(&mut world, segment, 1, Call::Truncate { length: 5 });
    let (first, ..) = take_call(&mut world, line);
    // The client has written its buffer meanwhile.
    put(&mut world, place(segment, 1, 0), &[0xff; 64]);
    let line = lose_lane(&mut world, line, 9);
    let (again, once, bytes) = take_call(&mut world, line);
    assert_eq!((again, once, bytes), (first, None, encoded(Call::Truncate { length: 5 })));
    world.send(line, end(again, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 1), OK);
    assert_eq!(world.staged(), 0);
}

#[test]
fn a_change_of_names_comes_again_under_its_number_and_not_to_another_daemon() {
    let mut world = World::new();
    let names = Access { names: true, ..Access::READ };
    let (line, segment) = with_peer(&mut world, OpenKind::Directory, names);
    ask(&mut world, segment, 1, REMOVE);
    let (_, once, _) = take_call(&mut world, line);
    assert_eq!(once, Some((0, 0)));
    let line = lose_lane(&mut world, line, 9);
    let (transfer, once, bytes) = take_call(&mut world, line);
    assert_eq!((once, bytes), (Some((0, 0)), encoded(REMOVE)));
    world.send(line, end(transfer, Status::Ok, 0), &[]);
    assert_eq!(wait_end(&mut world, 1), OK);
    ask(&mut world, segment, 2, REMOVE);
    let (_, once, _) = take_call(&mut world, line);
    assert_eq!(once, Some((1, 0)), "the number before is over");
    let line = lose_lane(&mut world, line, 10);
    assert_eq!(wait_end(&mut world, 2), (Status::OutcomeUnknown, 0));
    world.settle();
    assert!(!world.has_frame(line));
}

#[test]
fn a_call_is_given_up_at_its_deadline_and_its_late_answer_lands_nowhere() {
    let mut world = World::new();
    let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ);
    ask_with(&mut world, segment, 1, STAT, (ROOM, Some(Nanos::from_millis(5))));
    let (transfer, ..) = take_call(&mut world, line);
    assert_eq!(wait_end(&mut world, 1), (Status::DeadlineExceeded, 0));
    assert_eq!(world.next(line), Message::Cancel { transfer });
    put(&mut world, place(segment, 1, 0), &[0x11; 4096]);
    world.send(line, answered(transfer, Stat::BYTES as u64), &[0x22; Stat::BYTES]);
    world.settle();
    assert_eq!(world.kernel.bytes(world.node, place(segment, 1, 4096)), [0x11; 4096]);
    assert_eq!((world.staged(), world.reasons().len()), (0, 0));
}

#[test]
fn a_sync_vouches_for_what_the_same_daemon_changed_alone() {
    for (restarted, expected) in [(false, Status::Ok), (true, Status::OutcomeUnknown)] {
        for length in [0, 100] {
            let mut world = World::new();
            let (mut line, segment) = with_peer(&mut world, OpenKind::File, Access::READ_WRITE);
            ask(&mut world, segment, 1, Call::Truncate { length: 5 });
            let (transfer, ..) = take_call(&mut world, line);
            world.send(line, end(transfer, Status::Ok, 0), &[]);
            wait_end(&mut world, 1);
            if restarted {
                line = lose_lane(&mut world, line, 10);
            }
            let range = Range { offset: 0, length };
            ask(&mut world, segment, 2, Call::Sync { range, data_only: true });
            let (transfer, ..) = take_call(&mut world, line);
            world.send(line, end(transfer, Status::Ok, 0), &[]);
            assert_eq!(wait_end(&mut world, 2), (expected, 0), "{length} bytes");
        }
    }
}

#[test]
fn two_syncs_under_way_both_say_that_a_daemon_before_took_what_they_cover() {
    for second in [0, 100] {
        let mut world = World::new();
        let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ_WRITE);
        ask(&mut world, segment, 1, Call::Truncate { length: 5 });
        let (transfer, ..) = take_call(&mut world, line);
        world.send(line, end(transfer, Status::Ok, 0), &[]);
        wait_end(&mut world, 1);
        let line = lose_lane(&mut world, line, 10);
        for (request, length) in [(2, 0), (3, second)] {
            let range = Range { offset: 0, length };
            ask(&mut world, segment, request, Call::Sync { range, data_only: true });
        }
        let asked = [(); 2].map(|()| take_call(&mut world, line).0);
        for transfer in asked {
            world.send(line, end(transfer, Status::Ok, 0), &[]);
        }
        let ends = [2, 3].map(|request| wait_end(&mut world, request).0);
        assert_eq!(ends, [Status::OutcomeUnknown; 2], "{second} bytes");
        // What is asked for now has nothing to cover.
        ask(&mut world, segment, 4, Call::Sync { range: Range::default(), data_only: true });
        let (transfer, ..) = take_call(&mut world, line);
        world.send(line, end(transfer, Status::Ok, 0), &[]);
        assert_eq!(wait_end(&mut world, 4), OK);
    }
}

#[test]
fn who_may_not_read_is_not_told_what_the_path_of_a_call_leads_through() {
    let read = Access { names: true, ..Access::READ };
    let blind = Access { read: false, ..read };
    let through = Call::Remove { path: b"file/more", kind: Removed::File };
    for (access, expected) in [(read, Status::NotDirectory), (blind, Status::NotFound)] {
        let mut world = World::new();
        let (node, device) = (world.node, world.device());
        let top = world.kernel.create_directory(node, device);
        let file = world.kernel.create_file(node, device, vec![1; 10]);
        world.kernel.add_name(node, top, b"file", file);
        let [ours, theirs] = [(); 2].map(|()| {
            let directory = world.kernel.open_file(node, top, false);
            Target::Directory(DirectoryTarget { directory, device, access, foreign: false })
        });
        let segment = world.session(SESSION, ARENA);
        let target = ours;
        world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target });
        ask(&mut world, segment, 1, through);
        assert_eq!(wait_end(&mut world, 1), (expected, 0));
        let line = world.lane("beta", LaneClass::Latency, 1);
        let handle = world.open(line, 1, theirs);
        for transfer in [1, 2] {
            // The second time it is what is remembered.
            world.send(line, of_peer(transfer, handle, Some((0, 0))), &encoded(through));
            assert_eq!(world.read_end(line, transfer), expected);
        }
        assert_eq!(calls_made(&world), 2);
    }
}

#[test]
fn an_answer_that_cannot_be_costs_the_lane() {
    let stat = [0; Stat::BYTES];
    type Case<'a> = (fn(u64) -> Message, &'a [u8], &'a str);
    let cases: [Case<'_>; 4] = [
        // Longer than the room for it.
        (|transfer| answered(transfer, 5000), &[0; 5000], "outside"),
        // Not from its start.
        (
            |transfer| match answered(transfer, 200) {
                Message::Data { fragment, backlogged, service_us, last, .. } => {
                    Message::Data { transfer, offset: 100, fragment, backlogged, service_us, last }
                }
                other => other,
            },
            &stat,
            "cut",
        ),
        // A part of it.
        (
            |transfer| match answered(transfer, 96) {
                Message::Data { offset, fragment, backlogged, service_us, .. } => {
                    Message::Data { transfer, offset, fragment, backlogged, service_us, last: None }
                }
                other => other,
            },
            &stat,
            "cut",
        ),
        (|transfer| Message::Updated { transfer, status: Status::Ok, value: 0 }, &[], "update"),
    ];
    for (answer, payload, reason) in cases {
        let mut world = World::new();
        let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ);
        ask(&mut world, segment, 1, STAT);
        let (transfer, ..) = take_call(&mut world, line);
        world.send(line, answer(transfer), payload);
        world.wait_until("the end of the lane", |world| !world.is_up(line));
        world.settle();
        assert!(world.reasons()[0].contains(reason), "{reason}: {:?}", world.reasons());
    }
}

#[test]
fn an_answer_that_counts_more_than_came_is_corrupt_and_one_that_is_damaged_is_asked_again() {
    let mut world = World::new();
    let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ);
    ask(&mut world, segment, 1, STAT);
    let (transfer, ..) = take_call(&mut world, line);
    world.send(line, end(transfer, Status::Ok, 10), &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::Corrupt, 0));
    ask(&mut world, segment, 2, STAT);
    let (transfer, ..) = take_call(&mut world, line);
    let mut frame = world.frame(line, answered(transfer, 96), &[3; 96]);
    *frame.last_mut().expect("bytes") ^= 1;
    world.send_bytes(line, &frame);
    let (transfer, _, bytes) = take_call(&mut world, line);
    assert_eq!(bytes, encoded(STAT));
    world.send(line, answered(transfer, 96), &[3; 96]);
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, 96));
}

#[test]
fn a_peers_call_is_carried_out_and_answered_in_one_frame() {
    let mut world = World::new();
    let file = world.file(10_000);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, file);
    world.send(line, of_peer(1, handle, None), &encoded(STAT));
    let (frame, payload) = world.next_frame(line);
    let Message::Data { transfer: 1, offset: 0, last: Some(last), .. } = frame.message else {
        panic!("{frame:?}")
    };
    assert_eq!((last.status, last.bytes), (Status::Ok, Stat::BYTES as u64));
    assert_eq!(Stat::parse(&payload).expect("a stat").length, 10_000);
    world.send(line, of_peer(2, handle, None), &encoded(Call::Truncate { length: 7 }));
    assert_eq!(world.read_end(line, 2), Status::Ok);
    world.send(line, of_peer(3, handle, None), &encoded(STAT));
    let (_, payload) = world.next_frame(line);
    assert_eq!(Stat::parse(&payload).expect("a stat").length, 7);
    // A long answer takes staging of its own.
    let extents = Call::Extents { range: Range { offset: 0, length: 7 } };
    let Message::Call { transfer, handle, asker, once, time_left_us, .. } =
        of_peer(4, handle, None)
    else {
        unreachable!("it is one")
    };
    let answer_max = piped_core::call::ANSWER_BYTES_MAX as u32;
    let message = Message::Call { transfer, handle, answer_max, asker, once, time_left_us };
    world.send(line, message, &encoded(extents));
    let (frame, payload) = world.next_frame(line);
    assert!(matches!(frame.message, Message::Data { transfer: 4, .. }), "{frame:?}");
    assert_eq!(payload.len(), piped_core::call::Extent::BYTES);
    world.settle();
    assert_eq!((world.staged(), world.reasons().len()), (0, 0));
}

#[test]
fn a_peer_is_refused_what_it_may_not_do_whatever_it_sends() {
    let mut world = World::new();
    let Target::File(file) = world.file(10_000) else { unreachable!("it is one") };
    let file = Target::File(FileTarget { access: Access::READ, ..file });
    let below = directory(&mut world, Access::READ);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let (file, below) = (world.open(line, 1, file), world.open(line, 2, below));
    let once = Some((0, 0));
    for (transfer, (handle, once, bytes, status)) in (1..).zip([
        (file, None, encoded(Call::Truncate { length: 0 }), Status::Denied),
        (file, once, encoded(REMOVE), Status::Invalid),
        (below, once, encoded(REMOVE), Status::Denied),
        (below, None, encoded(Call::Trim { range: Range::default() }), Status::Invalid),
        (file, None, vec![0xff; 24], Status::Invalid),
        (file, None, vec![0; CALL_BYTES_MAX], Status::Invalid),
        // A number for what needs none, and none for what needs one.
        (file, once, encoded(STAT), Status::Invalid),
        (77, None, encoded(STAT), Status::BadHandle),
    ]) {
        world.send(line, of_peer(transfer, handle, once), &bytes);
        assert_eq!(world.read_end(line, transfer), status, "{transfer}");
    }
    let Message::Call { transfer, handle, asker, once, time_left_us, .. } = of_peer(50, file, None)
    else {
        unreachable!("it is one")
    };
    let message = Message::Call { transfer, handle, answer_max: 5, asker, once, time_left_us };
    world.send(line, message, &encoded(STAT));
    assert_eq!(world.read_end(line, 50), Status::Invalid, "no room for the answer");
    assert_eq!((calls_made(&world), world.staged()), (0, 0));
    assert!(world.is_up(line));
    // Regions have no calls.
    let segment = world.session(SESSION, ARENA);
    let region = world.open(line, 3, crate::world::region(1, segment, ARENA));
    world.send(line, of_peer(60, region, None), &encoded(STAT));
    assert_eq!(world.read_end(line, 60), Status::Invalid);
}

#[test]
fn a_damaged_call_costs_the_lane_and_is_not_carried_out() {
    let mut world = World::new();
    let file = world.file(10_000);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, file);
    let mut frame = world.frame(line, of_peer(1, handle, None), &encoded(STAT));
    *frame.last_mut().expect("bytes") ^= 1;
    world.send_bytes(line, &frame);
    world.wait_until("the end of the lane", |world| !world.is_up(line));
    world.settle();
    assert!(world.reasons()[0].contains("damaged"), "{:?}", world.reasons());
    assert_eq!((calls_made(&world), world.staged()), (0, 0));
}

#[test]
fn a_change_of_names_that_comes_again_is_not_carried_out_again() {
    let mut world = World::new();
    let names = Access { names: true, ..Access::READ };
    let below = directory(&mut world, names);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, below);
    world.send(line, of_peer(1, handle, Some((0, 0))), &encoded(REMOVE));
    let outcome = world.read_end(line, 1);
    assert_eq!(calls_made(&world), 1);
    // Its answer was lost, and the peer asks again.
    let line = world.lane("beta", LaneClass::Latency, 2);
    let handle = world.open_again(line, 1, OpenKind::Directory);
    world.send(line, of_peer(2, handle, Some((0, 0))), &encoded(REMOVE));
    assert_eq!((world.read_end(line, 2), calls_made(&world)), (outcome, 1));
    // The next one is another call.
    world.send(line, of_peer(3, handle, Some((1, 0))), &encoded(REMOVE));
    assert_eq!((world.read_end(line, 3), calls_made(&world)), (outcome, 2));
    assert_eq!(world.staged(), 0);
}

#[test]
fn a_change_of_names_that_hangs_is_waited_for_by_the_same_one_on_the_next_lane() {
    let mut world = World::new();
    let names = Access { names: true, ..Access::READ };
    let below = directory(&mut world, names);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, below);
    world.block_device(Nanos::from_millis(200));
    world.send(line, of_peer(1, handle, Some((0, 0))), &encoded(REMOVE));
    world.wait_until("it is at the device", |world| calls_made(world) == 1);
    world.hang_up(line);
    // The lane is up at once: a call that hangs keeps nobody from coming back.
    let line = world.lane("beta", LaneClass::Latency, 2);
    let handle = world.open_again(line, 1, OpenKind::Directory);
    world.send(line, of_peer(2, handle, Some((0, 0))), &encoded(REMOVE));
    world.run_for(Nanos::from_millis(50));
    assert_eq!(calls_made(&world), 1, "the old one is not over");
    let outcome = world.read_end(line, 2);
    assert_eq!((outcome, calls_made(&world)), (Status::Invalid, 1));
    assert_eq!(world.staged(), 0);
}

#[test]
fn a_write_of_a_peer_waits_for_its_older_call_that_was_given_up() {
    let mut world = World::new();
    let (file, inode) = world.file_and_inode(10_000);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, file);
    world.block_device(Nanos::from_millis(100));
    world.send(line, of_peer(1, handle, None), &encoded(Call::Truncate { length: 0 }));
    world.wait_until("it is at the device", |world| calls_made(world) == 1);
    world.send(line, Message::Cancel { transfer: 1 }, &[]);
    world.send(line, write(2, handle, 4096), &[]);
    world.send(line, write_data(2, 0), &[9; 4096]);
    assert_eq!(world.read_end(line, 2), Status::Ok);
    assert_eq!(world.kernel.file_content(inode), [9; 4096], "the cut came first");
}

#[test]
fn a_peers_calls_are_bounded_in_memory_and_the_rest_are_refused() {
    let mut world = World::of_staging(4 << 20);
    let file = world.file(10_000);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, file);
    world.block_device(Nanos::from_millis(20));
    let kept = 4 << 20;
    let most = kept
        / piped_core::limits::TABLE_STAGING_DIVISOR
        / 2
        / u64::from(piped_core::limits::CELL_BYTES);
    for transfer in 1..=most + 20 {
        world.send(line, of_peer(transfer, handle, None), &encoded(STAT));
    }
    let mut refused = 0;
    let mut answers = 0;
    while answers < most + 20 {
        match world.next(line) {
            Message::End { status: Status::WouldBlock, .. } => refused += 1,
            Message::Data { last: Some(_), .. } => {}
            other => panic!("{other:?}"),
        }
        answers += 1;
    }
    assert_eq!(refused, 20);
    world.settle();
    assert_eq!((world.staged(), world.reasons().len()), (0, 0));
}

#[test]
fn a_directory_that_ends_for_a_peer_goes_when_its_call_is_over() {
    let mut world = World::new();
    let below = directory(&mut world, Access::READ);
    let line = world.lane("beta", LaneClass::Latency, 1);
    let handle = world.open(line, 1, below);
    world.block_device(Nanos::from_millis(20));
    let list = Call::List { path: b"", cookie: 0, stats: false };
    world.send(line, of_peer(1, handle, None), &encoded(list));
    world.wait_until("it is at the device", |world| calls_made(world) == 1);
    let ticket = world.tickets[0];
    world.command(Command::EndServed { ticket });
    world.settle_turn();
    assert_eq!(world.kernel.open_files(world.node).len(), 1, "it is in use");
    assert_eq!(world.read_end(line, 1), Status::Gone);
    world.settle();
    assert_eq!((world.kernel.open_files(world.node).len(), world.staged()), (0, 0));
}

/// A file on a device of its own.
fn file_on(world: &mut World, device: u32, foreign: bool) -> Target {
    let Target::File(file) = world.file(10_000) else { unreachable!("it is one") };
    Target::File(FileTarget { device: DeviceId(device), foreign, ..file })
}

/// A peer's call whose answer takes staging of its own.
fn extents_of(transfer: u64, handle: u32) -> (Message, Vec<u8>) {
    let (asker, time_left_us) = (Asker::alone(Class::Latency), 10_000_000);
    let answer_max = ANSWER_BYTES_MAX as u32;
    let call = Message::Call { transfer, handle, answer_max, asker, once: None, time_left_us };
    (call, encoded(Call::Extents { range: Range { offset: 0, length: 7 } }))
}

#[test]
fn answers_of_many_devices_come_and_nothing_is_held_after_them() {
    let mut world = World::new();
    let line = world.lane("beta", LaneClass::Latency, 1);
    let many = 40;
    let mut open = |device: u32| {
        let file = file_on(&mut world, 100 + device, false);
        world.open(line, device.into(), file)
    };
    let handles: Vec<u32> = (1..=many).map(&mut open).collect();
    for (device, handle) in (1..=many).zip(handles) {
        let (call, bytes) = extents_of(device.into(), handle);
        world.send(line, call, &bytes);
    }
    for device in 1..=many {
        assert_eq!(world.read_end(line, device.into()), Status::Ok);
    }
    world.settle();
    assert_eq!((world.staged(), world.reasons().len()), (0, 0));
}

#[test]
fn an_answer_that_its_peer_does_not_read_keeps_no_other_from_the_device() {
    // What a foreign device may not hold besides, and little more.
    let mut world = World::of_staging(u64::from(2 * FRAGMENT_BYTES_MAX) + (3 << 19));
    let own = world.file(4 << 20);
    let foreign = file_on(&mut world, 100, true);
    let slow = world.lane("beta", LaneClass::Latency, 1);
    let [own, first] = [(1, own), (2, foreign)].map(|(ticket, it)| world.open(slow, ticket, it));
    world.stop_reading(slow);
    world.send(slow, read(1, own, 4 << 20), &[]);
    world.settle();
    let (call, bytes) = extents_of(2, first);
    world.send(slow, call, &bytes);
    world.wait_until("the answer waits", |world| calls_made(world) == 1);
    world.settle();
    let other = world.lane("gamma", LaneClass::Latency, 1);
    let second = world.open(other, 1, foreign);
    let (call, bytes) = extents_of(1, second);
    let before = world.clock();
    world.send(other, call, &bytes);
    assert_eq!(world.read_end(other, 1), Status::Ok);
    assert!(world.clock().since(before) < Nanos::from_millis(100), "before any deadline");
    assert!(world.is_up(slow) && calls_made(&world) == 2);
}
