//! Several buffers in one request: they count as one, whatever is read into them or written out of
//! them, and a list of them is believed in nothing.

use std::ops::Range;

use piped_core::ids::{HandleId, SegmentId};
use piped_core::io::Span;
use piped_core::limits::BUFFERS_MAX;
use piped_core::pieces::{BufferRow, Row};
use piped_core::request::{ArenaBuffer, Buffers, Table, Verb};
use piped_core::status::Status;
use piped_engine::command::{Command, Target};
use piped_wire::Message;
use proptest::prelude::*;

use crate::asking::{ARENA, HANDLE, connected, open_file_there};
use crate::channels::wait_end;
use crate::vectored::{answer_pieces, byte_at, data};
use crate::world::{SESSION, World, end, region};

const OWN: HandleId = HandleId(9);

/// Where tests put lists and tables in the client's memory, and buffers below.
const LIST: u64 = ARENA - (64 << 10);
const TABLE: u64 = ARENA - (128 << 10);

/// Bytes of the file or region at the other end.
const LENGTH: usize = 200_000;

fn span(segment: SegmentId, offset: u64, length: usize) -> Span {
    Span { segment, offset, length: length as u32 }
}

fn list(world: &mut World, segment: SegmentId, rows: &[BufferRow]) -> Buffers {
    for (number, row) in rows.iter().enumerate() {
        let at = LIST + (number * BufferRow::BYTES) as u64;
        let place = world.kernel.bytes_mut(world.node, span(segment, at, BufferRow::BYTES));
        place.copy_from_slice(&row.to_client());
    }
    Buffers::Several(Table { segment: 0, offset: LIST, rows: rows.len() as u32 })
}

fn table(world: &mut World, segment: SegmentId, rows: &[Row]) -> (Table, u64) {
    for (number, row) in rows.iter().enumerate() {
        let at = TABLE + (number * Row::BYTES) as u64;
        let place = world.kernel.bytes_mut(world.node, span(segment, at, Row::BYTES));
        place.copy_from_slice(&row.to_client());
    }
    let bytes = rows.iter().map(Row::bytes).sum();
    (Table { segment: 0, offset: TABLE, rows: rows.len() as u32 }, bytes)
}

fn row(offset: u64, length: u64) -> BufferRow {
    BufferRow { offset, length, segment: 0, reserved: 0 }
}

fn memory(world: &World, segment: SegmentId, range: Range<u64>) -> Vec<u8> {
    let length = (range.end - range.start) as usize;
    world.kernel.bytes(world.node, span(segment, range.start, length)).to_vec()
}

/// A client with a file or a region open under [`OWN`], whose bytes say where they lie.
fn with_target(is_region: bool) -> (World, SegmentId) {
    let mut world = World::new();
    let arena = world.session(SESSION, ARENA);
    let content: Vec<u8> = (0..LENGTH as u64).map(byte_at).collect();
    let target = if is_region {
        let segment = world.kernel.add_segment(world.node, LENGTH as u64);
        world.kernel.bytes_mut(world.node, span(segment, 0, LENGTH)).copy_from_slice(&content);
        region(5, segment, LENGTH as u64)
    } else {
        world.direct_file_of(content).0
    };
    open(&mut world, target);
    (world, arena)
}

fn open(world: &mut World, target: Target) {
    world.command(Command::InstallHandle { session: SESSION, handle: OWN, target });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any pieces into or out of any buffers: the same as one piece of memory in their place.
    #[test]
    fn several_buffers_count_as_one(
        is_region: bool,
        reads: bool,
        lengths in prop::collection::vec(1..6000_u64, 1..12),
        shapes in prop::collection::vec((1..3000_u64, 1..4_u64, 0..5000_u64), 1..6),
    ) {
        let (mut world, arena) = with_target(is_region);
        // Buffers with gaps between them, the last one first.
        let mut free = 0;
        let mut rows: Vec<BufferRow> = lengths
            .iter()
            .map(|&length| {
                free += length + 13;
                row(free - length, length)
            })
            .collect();
        rows.reverse();
        let room: u64 = lengths.iter().sum();
        // Pieces one behind the other in the buffers, and apart in the file or region.
        let (mut at, mut offset, mut pieces) = (0, 0, Vec::new());
        for (length, count, gap) in shapes {
            let length = length.min(room - at);
            let count = count.min((room - at).checked_div(length).unwrap_or(0));
            if count == 0 {
                break;
            }
            let (stride, short) = (length + gap, |it: u64| it as u32);
            pieces.push(Row {
                offset,
                stride,
                at: short(at),
                at_stride: short(length),
                length: short(length),
                count: short(count),
            });
            at += length * count;
            offset += stride * count;
        }
        prop_assume!(offset < LENGTH as u64);
        let places: Vec<u64> = rows.iter().flat_map(|it| it.offset..it.offset + it.length).collect();
        let before = memory(&world, arena, 0..free);
        let pattern: Vec<u8> = (0..free).map(|at| byte_at(at ^ 0x5555)).collect();
        if !reads {
            world.kernel.bytes_mut(world.node, span(arena, 0, free as usize)).copy_from_slice(&pattern);
        }
        let buffers = list(&mut world, arena, &rows);
        let (table, bytes) = table(&mut world, arena, &pieces);
        world.submit(SESSION, 1, Verb::Vector { handle: OWN, reads, buffers, table, bytes });
        prop_assert_eq!(wait_end(&mut world, 1), (Status::Ok, bytes));
        let moved = pieces.iter().flat_map(|row| row.pieces().map(move |it| (it, row.length)));
        if reads {
            let mut expected = before;
            for ((there, here), length) in moved {
                for byte in 0..u64::from(length) {
                    expected[places[(u64::from(here) + byte) as usize] as usize] = byte_at(there + byte);
                }
            }
            prop_assert_eq!(memory(&world, arena, 0..free), expected);
            return Ok(());
        }
        // What was written is what another read finds.
        let buffer = ArenaBuffer { segment: 0, offset: 0, length: LENGTH as u64 };
        world.submit(SESSION, 2, Verb::Read { handle: OWN, offset: 0, buffer, wanted: 0 });
        prop_assert_eq!(wait_end(&mut world, 2).0, Status::Ok);
        let mut expected: Vec<u8> = (0..LENGTH as u64).map(byte_at).collect();
        for ((there, here), length) in moved {
            for byte in 0..u64::from(length) {
                let from = places[(u64::from(here) + byte) as usize];
                expected[(there + byte) as usize] = pattern[from as usize];
            }
        }
        prop_assert_eq!(memory(&world, arena, 0..LENGTH as u64), expected);
    }
}

#[test]
fn a_peers_region_comes_in_one_request_into_several_buffers() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let arena = segments[0];
    let buffers = list(&mut world, arena, &[row(50_000, 700), row(0, 4096), row(9000, 300)]);
    let one = Row { offset: 77, stride: 0, at: 0, at_stride: 0, length: 5096, count: 1 };
    let (table, bytes) = table(&mut world, arena, &[one]);
    world.submit(SESSION, 1, Verb::Vector { handle: HANDLE, reads: true, buffers, table, bytes });
    let asked = answer_pieces(&mut world, line);
    assert_eq!(asked.iter().map(Row::bytes).sum::<u64>(), 5096);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 5096));
    assert!(!world.has_frame(line), "all of it was asked for at once");
    let mut at = 77;
    for (offset, length) in [(50_000, 700), (0, 4096), (9000, 300)] {
        let there: Vec<u8> = (at..at + length).map(byte_at).collect();
        assert_eq!(memory(&world, arena, offset..offset + length), there);
        at += length;
    }
    assert_eq!(memory(&world, arena, 4096..9000), vec![0; 4904], "between them");
    world.settle();
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_list_is_believed_in_nothing() {
    let (mut world, arena) = with_target(false);
    let one = Row { offset: 0, stride: 0, at: 0, at_stride: 0, length: 1000, count: 1 };
    let (table, bytes) = table(&mut world, arena, &[one]);
    let good = row(0, 999);
    let bad = [
        (vec![good], Status::Invalid),
        (vec![good, row(ARENA, 1)], Status::BadBuffer),
        (vec![good, row(u64::MAX, 2)], Status::BadBuffer),
        (vec![good, row(0, u64::MAX)], Status::BadBuffer),
        (vec![good, row(0, 0)], Status::Invalid),
        (vec![good, BufferRow { segment: 1, ..good }], Status::BadBuffer),
        (vec![good, BufferRow { reserved: 1, ..good }], Status::Invalid),
    ];
    let verb = |buffers| Verb::Vector { handle: OWN, reads: true, buffers, table, bytes };
    for (number, (rows, status)) in (1..).zip(bad) {
        let buffers = list(&mut world, arena, &rows);
        world.submit(SESSION, number, verb(buffers));
        assert_eq!(wait_end(&mut world, number).0, status, "{rows:?}");
    }
    let whole = Table { segment: 0, offset: LIST, rows: 2 };
    let lists = [
        (Table { rows: 0, ..whole }, Status::Invalid),
        (Table { rows: BUFFERS_MAX + 1, ..whole }, Status::Invalid),
        (Table { rows: u32::MAX, ..whole }, Status::Invalid),
        (Table { offset: ARENA - 24, ..whole }, Status::BadBuffer),
        (Table { segment: 7, ..whole }, Status::BadBuffer),
    ];
    for (number, (list, status)) in (20..).zip(lists) {
        world.submit(SESSION, number, verb(Buffers::Several(list)));
        assert_eq!(wait_end(&mut world, number).0, status, "{list:?}");
    }
    assert_eq!(memory(&world, arena, 0..2000), vec![0; 2000], "nothing was read");
    // As many as there may be.
    let many: Vec<BufferRow> = (0..u64::from(BUFFERS_MAX)).map(|at| row(2 * at, 1)).collect();
    let buffers = list(&mut world, arena, &many);
    world.submit(SESSION, 40, verb(buffers));
    assert_eq!(wait_end(&mut world, 40), (Status::Ok, 1000));
    assert_eq!(memory(&world, arena, 1998..1999), [byte_at(999)]);
}

#[test]
fn rows_of_buffers_with_more_bytes_than_32_bits_count_end_within_them() {
    const SEGMENT: u64 = 16 << 20;
    let mut world = World::new();
    let arena = world.session(SESSION, SEGMENT);
    let (file, _) = world.direct_file_of((0..LENGTH as u64).map(byte_at).collect());
    open(&mut world, file);
    // The same memory so often that it counts for 4 GiB and more.
    let many = vec![row(0, SEGMENT); 300];
    let list = list(&mut world, arena, &many);
    let last =
        Row { offset: 0, stride: 0, at: 0xffff_f000, at_stride: 0, length: 0x1000, count: 1 };
    for (number, (row, expected)) in (1..).zip([
        (last, Status::Ok),
        (Row { length: 0x2000, ..last }, Status::Invalid),
        (Row { length: 0x1001, ..last }, Status::Invalid),
        (Row { at: 0, at_stride: u32::MAX - 5, length: 100, count: 2, ..last }, Status::Invalid),
        (Row { at: 0, at_stride: 0x7fff_ffff, length: 3, count: 3, ..last }, Status::Invalid),
        (Row { at: u32::MAX, length: 2, ..last }, Status::Invalid),
        (Row { at: u32::MAX, length: 1, ..last }, Status::Ok),
    ]) {
        for reads in [true, false] {
            let (table, bytes) = table(&mut world, arena, &[row]);
            let verb = Verb::Vector { handle: OWN, reads, buffers: list, table, bytes };
            world.submit(SESSION, number, verb);
            let (status, _) = wait_end(&mut world, number);
            world.completions.clear();
            assert_eq!(status, expected, "{row:?}");
        }
    }
}

#[test]
fn a_list_that_changes_after_it_was_read_changes_nothing() {
    let (mut world, arena) = with_target(false);
    let buffers = list(&mut world, arena, &[row(0, 4096), row(8192, 4096)]);
    let one = Row { offset: 0, stride: 0, at: 0, at_stride: 0, length: 8192, count: 1 };
    let (table, bytes) = table(&mut world, arena, &[one]);
    world.submit(SESSION, 1, Verb::Vector { handle: OWN, reads: true, buffers, table, bytes });
    world.settle_turn();
    // It was read in the first turn; what it says now lies outside.
    list(&mut world, arena, &[row(ARENA, 4096), row(ARENA, 4096)]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 8192));
    let there: Vec<u8> = (4096..8192).map(byte_at).collect();
    assert_eq!(memory(&world, arena, 8192..12_288), there);
}

#[test]
fn short_buffers_of_a_range_of_a_peers_file_travel_as_one() {
    for reads in [true, false] {
        let mut world = World::new();
        let (line, segments) = connected(&mut world, &[SESSION]);
        let handle = open_file_there(&mut world, line);
        let arena = segments[0];
        let places = [row(50_000, 700), row(0, 4096), row(9000, 300)];
        let pattern: Vec<u8> = (0..60_000).map(|at| byte_at(at ^ 0x5555)).collect();
        if !reads {
            world.kernel.bytes_mut(world.node, span(arena, 0, 60_000)).copy_from_slice(&pattern);
        }
        let buffers = list(&mut world, arena, &places);
        let one = Row { offset: 77, stride: 0, at: 0, at_stride: 0, length: 5096, count: 1 };
        let (table, bytes) = table(&mut world, arena, &[one]);
        world.submit(SESSION, 1, Verb::Vector { handle, reads, buffers, table, bytes });
        let (frame, _) = world.next_frame(line);
        if reads {
            let Message::Read { transfer, offset: 77, length: 5096, pieces: false, .. } =
                frame.message
            else {
                panic!("{frame:?}")
            };
            // The file ends before the last buffer is full.
            let there: Vec<u8> = (77..77 + 5000).map(byte_at).collect();
            world.send(line, data(transfer, 0, Some(5000)), &there);
            assert_eq!(wait_end(&mut world, 1), (Status::Ok, 5000));
            assert_eq!(memory(&world, arena, 50_000..50_700), there[..700]);
            assert_eq!(memory(&world, arena, 0..4096), there[700..4796]);
            assert_eq!(memory(&world, arena, 9000..9204), there[4796..]);
            assert_eq!(
                memory(&world, arena, 9204..9300),
                [0; 96],
                "nothing of what was there before"
            );
        } else {
            let Message::Write { transfer, offset: 77, length: 5096, pieces: false, .. } =
                frame.message
            else {
                panic!("{frame:?}")
            };
            let mut came = Vec::new();
            while came.len() < 5096 {
                came.extend(world.next_frame(line).1);
            }
            let parts = places.iter().flat_map(|it| it.offset..it.offset + it.length);
            assert_eq!(came, parts.map(|at| pattern[at as usize]).collect::<Vec<_>>());
            world.send(line, end(transfer, Status::Ok, 5096), &[]);
            assert_eq!(wait_end(&mut world, 1), (Status::Ok, 5096));
        }
        world.settle();
        assert_eq!(world.staged(), 0);
    }
}

#[test]
fn long_buffers_of_a_peers_file_are_requests_of_their_own() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let handle = open_file_there(&mut world, line);
    let places = [row(0, 100), row(4096, 65_536), row(200, 50), row(300, 50)];
    let buffers = list(&mut world, segments[0], &places);
    let one = Row { offset: 0, stride: 0, at: 0, at_stride: 0, length: 65_736, count: 1 };
    let (table, bytes) = table(&mut world, segments[0], &[one]);
    world.submit(SESSION, 1, Verb::Vector { handle, reads: true, buffers, table, bytes });
    let mut asked = Vec::new();
    while asked.len() < 3 {
        let (frame, _) = world.next_frame(line);
        let Message::Read { transfer, offset, length, .. } = frame.message else { continue };
        asked.push((offset, length));
        let there: Vec<u8> = (offset..offset + length).map(byte_at).collect();
        world.send(line, data(transfer, 0, Some(length)), &there);
    }
    asked.sort_unstable();
    assert_eq!(asked, [(0, 100), (100, 65_536), (65_636, 100)]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 65_736));
    let mut at = 0;
    for place in places {
        let there: Vec<u8> = (at..at + place.length).map(byte_at).collect();
        assert_eq!(memory(&world, segments[0], place.offset..place.offset + place.length), there);
        at += place.length;
    }
}
