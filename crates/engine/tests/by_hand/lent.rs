//! Memory that clients lend: taken back under requests, and gone under them.

use piped_core::ids::{RegionId, SegmentId, SessionId};
use piped_core::io::Span;
use piped_core::request::{ArenaBuffer, Completion, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::Command;

use crate::asking::{HANDLE, answer, connected, read};
use crate::world::{SESSION, World, region};

const OTHER: SessionId = SessionId(77);
const LENGTH: u64 = 64 << 10;

/// A read or write of a client's file, with a buffer in a segment.
fn of_file(segment: u32, writes: bool) -> Verb {
    let (handle, buffer) = (HANDLE, ArenaBuffer { segment, offset: 4096, length: LENGTH });
    match writes {
        true => Verb::Write { handle, offset: 0, buffer, durable: false, notify: None },
        false => Verb::Read { handle, offset: 0, buffer, wanted: 0 },
    }
}

/// A session with an arena, lent memory as segment 1, and a file.
fn lending() -> (World, SegmentId) {
    let mut world = World::new();
    world.session(SESSION, 1 << 20);
    let file = world.file(1 << 20);
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target: file });
    let lent = lend(&mut world);
    (world, lent)
}

fn lend(world: &mut World) -> SegmentId {
    let segment = world.kernel.add_segment(world.node, 1 << 20);
    world.kernel.share(world.node, segment);
    world.kernel.loosen(world.node, segment);
    world.command(Command::AddSegment { session: SESSION, segment, length: 1 << 20 });
    segment
}

fn is_there(world: &World, segment: SegmentId) -> bool {
    world.kernel.segments(world.node).contains(&segment)
}

fn status_of(world: &World, request: u64) -> Option<Status> {
    world.end_of(request).map(|it| it.0)
}

#[test]
fn memory_that_is_taken_back_goes_after_its_last_use_and_its_number_at_once() {
    for writes in [false, true] {
        let (mut world, lent) = lending();
        world.submit(SESSION, 1, of_file(1, writes));
        world.submit(SESSION, 2, of_file(0, writes));
        // The device has begun, and nobody can stop it.
        world.run_for(Nanos::from_micros(10));
        world.command(Command::TakeBack { session: SESSION, number: 1 });
        // Once more, and what was never there.
        for number in [1, 2, u32::MAX] {
            world.command(Command::TakeBack { session: SESSION, number });
        }
        world.submit(SESSION, 3, of_file(1, writes));
        let next = lend(&mut world);
        world.submit(SESSION, 4, of_file(1, writes));
        world.settle_turn();
        assert_eq!(status_of(&world, 1), Some(Status::BadBuffer), "its buffer is held");
        assert!(is_there(&world, lent), "the kernel has it");
        world.settle();
        let released = |it: &Completion| matches!(it, Completion::Released { origin } if origin.user_data == 1);
        assert_eq!(world.completions.iter().filter(|it| released(it)).count(), 1);
        assert!(!is_there(&world, lent) && is_there(&world, next));
        assert_eq!(status_of(&world, 3), Some(Status::BadBuffer));
        for request in [2, 4] {
            assert_eq!(world.end_of(request), Some((Status::Ok, LENGTH)), "{request}");
        }
        world.command(Command::CloseSession { session: SESSION });
        world.settle();
        assert!(!is_there(&world, next), "it goes with its session");
    }
}

#[test]
fn a_session_that_ends_takes_what_is_on_its_way_out_along() {
    let (mut world, lent) = lending();
    world.submit(SESSION, 1, of_file(1, false));
    world.run_for(Nanos::from_micros(10));
    world.command(Command::TakeBack { session: SESSION, number: 1 });
    world.command(Command::CloseSession { session: SESSION });
    world.settle_turn();
    assert!(is_there(&world, lent), "the kernel has it");
    world.settle();
    assert!(!is_there(&world, lent), "released once");
}

#[test]
fn memory_that_another_client_used_last_goes_when_that_one_is_done() {
    let (mut world, lent) = lending();
    world.session(OTHER, 1 << 20);
    let file = world.file(0);
    let to = piped_core::ids::HandleId(9);
    let from = region(1, lent, LENGTH);
    for (handle, target) in [(HANDLE, from), (to, file)] {
        world.command(Command::InstallHandle { session: OTHER, handle, target });
    }
    world.block_device(Nanos::from_millis(50));
    let copy = Verb::Copy { from: HANDLE, from_offset: 0, to, to_offset: 0, length: LENGTH };
    world.submit(OTHER, 1, copy);
    world.submit(SESSION, 2, of_file(1, true));
    world.run_for(Nanos::from_millis(1));
    world.command(Command::TakeBack { session: SESSION, number: 1 });
    world.run_for(Nanos::from_millis(1));
    assert!(is_there(&world, lent), "the device reads it");
    world.settle();
    assert_eq!(
        [1, 2].map(|it| status_of(&world, it)),
        [Some(Status::Gone), Some(Status::BadBuffer)]
    );
    assert!(!is_there(&world, lent), "though its own client asked for nothing more");
}

#[test]
fn requests_on_memory_that_has_vanished_end_with_bad_buffer_and_the_session_goes_on() {
    let (mut world, lent) = lending();
    world.command(Command::OpenSession { session: OTHER, weight: 1, home: 0, user: 0 });
    let theirs = world.kernel.add_segment(world.node, 1 << 20);
    world.kernel.share(world.node, theirs);
    let other = Command::AddSegment { session: OTHER, segment: theirs, length: 1 << 20 };
    world.command(other);
    // A region of lent memory, which another client has open; and one of the other's.
    let own =
        Command::InstallHandle { session: OTHER, handle: HANDLE, target: region(1, lent, LENGTH) };
    world.command(own);
    let handle = piped_core::ids::HandleId(9);
    let target = region(2, theirs, LENGTH);
    world.command(Command::InstallHandle { session: SESSION, handle, target });
    let buffer = ArenaBuffer { segment: 1, offset: 0, length: LENGTH };
    let get = |buffer| Verb::Read { handle, offset: 0, buffer, wanted: 0 };
    let theirs_get = Verb::Read {
        handle: HANDLE,
        offset: 0,
        buffer: ArenaBuffer { segment: 0, ..buffer },
        wanted: 0,
    };
    world.submit(SESSION, 1, get(buffer));
    world.submit(OTHER, 2, theirs_get);
    world.settle();
    assert_eq!([1, 2].map(|it| status_of(&world, it)), [Some(Status::Ok); 2]);
    world.kernel.tear(world.node, lent);
    world.submit(SESSION, 3, get(buffer));
    world.submit(SESSION, 4, of_file(1, true));
    world.submit(SESSION, 5, get(ArenaBuffer { segment: 0, ..buffer }));
    world.submit(OTHER, 6, theirs_get);
    world.settle();
    assert_eq!([3, 4].map(|it| status_of(&world, it)), [Some(Status::BadBuffer); 2]);
    assert_eq!(status_of(&world, 5), Some(Status::Ok), "other memory of its client");
    assert_eq!(status_of(&world, 6), Some(Status::Gone), "zeros are not what is in the region");
    world.command(Command::SegmentTorn { segment: lent });
    world.submit(OTHER, 7, theirs_get);
    world.settle();
    assert_eq!(status_of(&world, 7), Some(Status::Gone));
    world.command(Command::RevokeRegion { region: RegionId(1) });
    world.command(Command::TakeBack { session: SESSION, number: 1 });
    world.settle();
    assert!(!is_there(&world, lent));
}

#[test]
fn nothing_is_predicted_into_memory_that_can_vanish() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    // The simulated kernel ends the test if a receive of a header may write there.
    world.kernel.loosen(world.node, segments[0]);
    for (number, length) in [(1, 4096), (2, 4096), (3, 200_000), (4, 64)] {
        world.submit(SESSION, number, read(0, length));
        let asked = world.next(line);
        answer(&mut world, line, asked, 64 << 10, &[], number as u8);
        world.wait_until("its end", |world| world.end_of(number).is_some());
        assert_eq!(world.end_of(number), Some((Status::Ok, length)));
        let span = Span { segment: segments[0], offset: 0, length: length as u32 };
        assert!(world.kernel.bytes(world.node, span).iter().all(|byte| *byte == number as u8));
        assert_eq!(world.reasons(), [""; 0]);
        while world.take_frame(line).is_some() {}
    }
}
