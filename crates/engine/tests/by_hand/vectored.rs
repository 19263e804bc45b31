//! Many pieces in one request, and reads of which a part is wanted first.

use piped_core::ids::{RegionId, SegmentId};
use piped_core::io::Span;
use piped_core::limits::{PART_BYTES, PART_PIECES, PART_ROWS};
use piped_core::link::LaneClass;
use piped_core::pieces::Row;
use piped_core::request::{ArenaBuffer, Buffers, Class, Table, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Output, Target};
use piped_wire::{Asker, LastPart, Message};

use crate::asking::{ARENA, HANDLE, connected, connected_with};
use crate::channels::wait_end;
use crate::world::{LineId, SESSION, World, end, region, write, write_data};

/// Where tests put tables in the client's memory.
const TABLE: u64 = ARENA - (128 << 10);

fn row(offset: u64, stride: u64, at: u32, at_stride: u32, length: u32, count: u32) -> Row {
    Row { offset, stride, at, at_stride, length, count }
}

fn store(world: &mut World, segment: SegmentId, rows: &[Row]) {
    for (number, row) in rows.iter().enumerate() {
        let span = Span { segment, offset: TABLE + 32 * number as u64, length: 32 };
        world.kernel.bytes_mut(world.node, span).copy_from_slice(&row.to_client());
    }
}

fn vector(world: &mut World, segment: SegmentId, reads: bool, rows: &[Row]) -> Verb {
    store(world, segment, rows);
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: 256 << 10 };
    let table = Table { segment: 0, offset: TABLE, rows: rows.len() as u32 };
    let bytes = rows.iter().map(Row::bytes).sum();
    let buffers = Buffers::One(buffer);
    Verb::Vector { handle: HANDLE, reads, buffers, table, bytes }
}

/// The bytes of a piece of memory.
fn bytes(world: &World, segment: SegmentId, offset: u64, length: u32) -> Vec<u8> {
    world.kernel.bytes(world.node, Span { segment, offset, length }).to_vec()
}

/// Writes a pattern that differs from one place to the next.
fn pattern(world: &mut World, segment: SegmentId, length: u32) {
    let span = Span { segment, offset: 0, length };
    for (at, byte) in world.kernel.bytes_mut(world.node, span).iter_mut().enumerate() {
        *byte = byte_at(at as u64);
    }
}

pub(crate) fn byte_at(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn rows_of(payload: &[u8]) -> Vec<Row> {
    let rows = payload.chunks_exact(24);
    rows.map(|row| Row::from_wire(row.try_into().expect("24 bytes"))).collect()
}

/// All places of a row in the file or region, in order.
fn places(row: Row) -> impl Iterator<Item = u64> {
    row.pieces().flat_map(move |(offset, _)| offset..offset + u64::from(row.length))
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
    let (fragment, backlogged, service_us) = (64 << 10, false, 1);
    Message::Data { transfer, offset, fragment, backlogged, service_us, last }
}

/// Answers a read of pieces: each byte says where it lies in the region.
pub(crate) fn answer_pieces(world: &mut World, line: LineId) -> Vec<Row> {
    let (frame, payload) = world.next_frame(line);
    let Message::Read { transfer, offset: 0, length, pieces: true, from, .. } = frame.message
    else {
        panic!("not a read of pieces: {frame:?}")
    };
    let rows = rows_of(&payload);
    let packed: Vec<u8> = rows.iter().copied().flat_map(places).map(byte_at).collect();
    assert_eq!(packed.len() as u64, length);
    let mut done = from as usize;
    while done < packed.len() {
        let end = (done + (64 << 10)).min(packed.len());
        let last = (end == packed.len()).then_some(length);
        world.send(line, data(transfer, done as u64, last), &packed[done..end]);
        done = end;
    }
    rows
}

#[test]
fn pieces_of_a_peers_region_travel_together_and_land_where_they_belong() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let rows = [
        row(1000, 100, 50, 20, 10, 1000),
        row(500_000, 0, 30_000, 0, 5000, 1),
        row(7, 3, 40_000, 1, 1, 64),
    ];
    let verb = vector(&mut world, segments[0], true, &rows);
    world.submit(SESSION, 1, verb);
    let asked = answer_pieces(&mut world, line);
    assert_eq!(asked.len(), 3, "as regular as it was described: {asked:?}");
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 15_064));
    for row in rows {
        for (offset, at) in row.pieces() {
            let there: Vec<u8> = (offset..offset + u64::from(row.length)).map(byte_at).collect();
            assert_eq!(bytes(&world, segments[0], at.into(), row.length), there);
        }
    }
    // Between them nothing was touched.
    assert_eq!(bytes(&world, segments[0], 60, 10), [0; 10]);
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn pieces_that_lie_one_behind_the_other_here_land_in_place() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let rows: Vec<Row> = (0..100).map(|n| row(5000 * n, 0, 512 * n as u32, 0, 512, 1)).collect();
    let verb = vector(&mut world, segments[0], true, &rows);
    let before = world.staged();
    world.submit(SESSION, 1, verb);
    world.wait_until("it is asked", |world| world.has_frame(line));
    let held = world.staged() - before;
    assert!(held <= 64 << 10, "{held} bytes: more than its table");
    answer_pieces(&mut world, line);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 51_200));
    world.settle();
    assert_eq!(world.staged(), before);
    let there: Vec<u8> = rows.into_iter().flat_map(places).map(byte_at).collect();
    assert_eq!(bytes(&world, segments[0], 0, 51_200), there);
}

#[test]
fn a_long_vector_is_asked_for_in_parts_each_of_a_bounded_size() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    // More rows than a part has, and pieces of one that are too many for one.
    let mut rows: Vec<Row> =
        (0..1500).map(|n| row(64 * n, 0, 16 * (n as u32 ^ 1), 0, 16, 1)).collect();
    rows.push(row(200_000, 9, 24_000, 2, 1, 5000));
    let verb = vector(&mut world, segments[0], true, &rows);
    world.submit(SESSION, 1, verb);
    let mut asked = Vec::new();
    while world.end_of(1).is_none() {
        world.wait_until("a frame or the end", |world| {
            world.has_frame(line) || world.end_of(1).is_some()
        });
        while world.has_frame(line) {
            asked.push(answer_pieces(&mut world, line));
        }
    }
    assert_eq!(world.end_of(1), Some((Status::Ok, 1500 * 16 + 5000)));
    assert_eq!(asked[0].len() as u32, PART_ROWS);
    assert!(asked.iter().all(|rows| {
        rows.iter().map(|row| row.count).sum::<u32>() <= PART_PIECES
            && rows.iter().map(Row::bytes).sum::<u64>() <= PART_BYTES.into()
    }));
    let piece: Vec<u8> = (64 * 7..64 * 7 + 16).map(byte_at).collect();
    assert_eq!(bytes(&world, segments[0], 16 * 6, 16), piece);
    assert_eq!(bytes(&world, segments[0], 24_000 + 2 * 4999, 1), [byte_at(200_000 + 9 * 4999)]);
}

#[test]
fn a_put_of_pieces_sends_them_one_behind_the_other() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    pattern(&mut world, segments[0], 128 << 10);
    let rows = [row(0, 1000, 64, 256, 100, 300), row(900_000, 0, 0, 0, 64, 1)];
    let verb = vector(&mut world, segments[0], false, &rows);
    world.submit(SESSION, 1, verb);
    let (frame, payload) = world.next_frame(line);
    let Message::Write { transfer, length, pieces: true, .. } = frame.message else {
        panic!("{frame:?}")
    };
    assert_eq!(rows_of(&payload).iter().map(Row::bytes).sum::<u64>(), length);
    let mut packed = Vec::new();
    while (packed.len() as u64) < length {
        packed.extend(world.next_frame(line).1);
    }
    let here = |row: Row| {
        row.pieces().flat_map(move |(_, at)| at..at + row.length).map(|at| byte_at(at.into()))
    };
    assert_eq!(packed, rows.into_iter().flat_map(here).collect::<Vec<_>>());
    world.send(line, end(transfer, Status::Ok, length), &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 30_064));
}

#[test]
fn what_a_peer_leaves_out_of_a_region_is_not_handed_out() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let rows = [row(0, 300, 0, 400, 200, 500)];
    for (number, sent) in [(1, 0), (2, 40_000)] {
        let verb = vector(&mut world, segments[0], true, &rows);
        world.submit(SESSION, number, verb);
        let asked = loop {
            match world.next_frame(line).0.message {
                Message::Outcome { .. } => {}
                message => break message,
            }
        };
        let Message::Read { transfer, .. } = asked else { panic!("{asked:?}") };
        let some = data(transfer, 0, Some(sent));
        world.send(line, some, &vec![0xee; sent as usize]);
        assert_eq!(wait_end(&mut world, number).0, Status::Corrupt, "{sent} bytes");
        assert_eq!(bytes(&world, segments[0], 0, 200_000), vec![0; 200_000]);
    }
}

#[test]
fn no_more_puts_of_pieces_are_asked_than_the_credit_is_worth() {
    let mut world = World::new();
    let (line, segments) = connected_with(&mut world, &[SESSION], 2 * u64::from(PART_BYTES));
    // Four parts of as many rows as a part has.
    let rows: Vec<Row> =
        (0..4 * PART_ROWS).map(|n| row(64 * u64::from(n), 0, 16 * (n ^ 1), 0, 16, 1)).collect();
    let verb = vector(&mut world, segments[0], false, &rows);
    world.submit(SESSION, 1, verb);
    let mut asked = Vec::new();
    for round in [2, 4] {
        world.settle();
        while let Some((frame, _)) = world.take_frame(line) {
            if let Message::Write { transfer, length, pieces: true, .. } = frame.message {
                asked.push((transfer, length));
            }
        }
        assert_eq!(asked.len(), round);
        for &(transfer, bytes) in &asked[round - 2..] {
            world.send(line, end(transfer, Status::Ok, bytes), &[]);
        }
    }
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 4 * 16 * u64::from(PART_ROWS)));
}

#[test]
fn a_table_is_believed_in_nothing() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let before = world.staged();
    let good = row(0, 0, 0, 0, 100, 1);
    let bad = [
        row(0, 0, (256 << 10) - 99, 0, 100, 1),
        row(0, 0, 0, 1 << 20, 1, 2),
        row(u64::MAX, 0, 0, 0, 1, 1),
        row(0, u64::MAX, 0, 0, 1, 3),
        row(0, 0, 0, 0, 0, 1),
        row(0, 0, 0, 0, 1, 0),
    ];
    for (number, bad) in (1..).zip(bad) {
        let verb = vector(&mut world, segments[0], true, &[good, bad]);
        world.submit(SESSION, number, verb);
        assert_eq!(wait_end(&mut world, number).0, Status::Invalid, "{bad:?}");
    }
    // It says fewer or more bytes than its rows have; none at all; it does not lie in the arena.
    let verb = vector(&mut world, segments[0], true, &[good, good]);
    let Verb::Vector { handle, reads, buffers, table, .. } = verb else { unreachable!() };
    let with = |table, bytes| Verb::Vector { handle, reads, buffers, table, bytes };
    let none = Table { rows: 0, ..table };
    let outside = Table { offset: ARENA - 63, ..table };
    for (number, (verb, status)) in (20..).zip([
        (with(table, 199), Status::Invalid),
        (with(table, 0), Status::Invalid),
        (with(none, 200), Status::Invalid),
        (with(outside, 200), Status::BadBuffer),
    ]) {
        world.submit(SESSION, number, verb);
        assert_eq!(wait_end(&mut world, number).0, status, "{verb:?}");
    }
    world.submit(SESSION, 30, with(table, 201));
    answer_pieces(&mut world, line);
    assert_eq!(wait_end(&mut world, 30).0, Status::Invalid);
    world.settle();
    assert_eq!(world.staged(), before);
}

#[test]
fn a_part_goes_on_where_its_lane_was_lost() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let rows = [row(0, 300, 0, 200, 200, 500)];
    let verb = vector(&mut world, segments[0], true, &rows);
    world.submit(SESSION, 1, verb);
    let (frame, payload) = world.next_frame(line);
    let Message::Read { transfer, .. } = frame.message else { panic!("{frame:?}") };
    let packed: Vec<u8> = rows_of(&payload).into_iter().flat_map(places).map(byte_at).collect();
    world.send(line, data(transfer, 0, None), &packed[..64 << 10]);
    world.settle();
    world.hang_up(line);
    let line = world.answer_connect(LaneClass::Latency, 8 << 20);
    let Message::Open { ticket, .. } = world.next(line) else { panic!("not asked for again") };
    let opened = Message::Opened { ticket, status: Status::Ok, handle: 0, length: 1 << 20 };
    world.send(line, opened, &[]);
    assert!(matches!(world.next(line), Message::Close { .. }));
    assert_eq!(answer_pieces(&mut world, line).len(), 1);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 100_000));
    assert_eq!(bytes(&world, segments[0], 0, 100_000), packed);
    // Given up with its table on the way, nothing of it stays.
    let verb = vector(&mut world, segments[0], true, &rows);
    world.submit(SESSION, 2, verb);
    world.submit(SESSION, 3, Verb::Cancel { target: 2 });
    assert_eq!(wait_end(&mut world, 2).0, Status::Cancelled);
}

/// A peer that has a client's region open.
fn served(world: &mut World) -> (LineId, SegmentId, u32) {
    let line = world.lane("beta", LaneClass::Latency, 1);
    let segment = world.session(SESSION, ARENA);
    let handle = world.open(line, 1, region(1, segment, 1 << 19));
    (line, segment, handle)
}

fn wire(rows: &[Row]) -> Vec<u8> {
    rows.iter().flat_map(|row| row.to_wire()).collect()
}

fn read_pieces(transfer: u64, handle: u32, length: u64, from: u32) -> Message {
    let (asker, pieces) = (Asker::alone(Class::Latency), true);
    let (offset, time_left_us) = (0, 10_000_000);
    Message::Read { transfer, handle, offset, length, asker, from, pieces, time_left_us }
}

#[test]
fn a_peer_gets_pieces_gathered() {
    let mut world = World::new();
    let (line, segment, handle) = served(&mut world);
    pattern(&mut world, segment, 1 << 19);
    let rows = [row(10, 1000, 0, 0, 300, 400), row(0, 0, 0, 0, 5, 1)];
    let packed: Vec<u8> = rows.into_iter().flat_map(places).map(byte_at).collect();
    let before = world.staged();
    for (transfer, from) in [(1, 0), (2, 65_536), (3, 120_005)] {
        world.send(line, read_pieces(transfer, handle, 120_005, from), &wire(&rows));
        let mut got = Vec::new();
        loop {
            let (frame, payload) = world.next_frame(line);
            got.extend(payload);
            match frame.message {
                Message::Data { last: Some(LastPart { status: Status::Ok, .. }), .. }
                | Message::End { status: Status::Ok, .. } => break,
                Message::Data { last: None, .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(got, packed[from as usize..]);
    }
    world.settle();
    assert_eq!(world.staged(), before);
    // What does not fit, in each way that it may not.
    let many = row(0, 0, 0, 0, 1, PART_PIECES + 1);
    for (transfer, (rows, length)) in (10..).zip([
        (vec![row(0, 0, 0, 0, 100, 1)], 99),
        (vec![row(0, 0, 0, 0, 100, 1)], 101),
        (vec![row(1 << 19, 0, 0, 0, 1, 1)], 1),
        (vec![row(0, 1 << 18, 0, 0, 1, 3)], 3),
        (vec![row(0, u64::MAX, 0, 0, 1, 2)], 2),
        (vec![many], many.bytes()),
        (vec![row(0, 0, 0, 0, 1 << 18, 3)], 3 << 18),
    ]) {
        world.send(line, read_pieces(transfer, handle, length, 0), &wire(&rows));
        assert_eq!(world.read_end(line, transfer), Status::Invalid, "{rows:?}");
    }
    world.send(line, read_pieces(20, handle + 1, 5, 0), &wire(&rows));
    assert_eq!(world.read_end(line, 20), Status::BadHandle);
    let file = world.file(4096);
    let file = world.open(line, 2, file);
    world.send(line, read_pieces(21, file, 5, 0), &wire(&rows[1..]));
    assert_eq!(world.read_end(line, 21), Status::Invalid);
    world.settle();
    assert_eq!(world.staged(), before);
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_peers_put_of_pieces_is_scattered() {
    let mut world = World::new();
    let (line, segment, handle) = served(&mut world);
    let rows = [row(100, 900, 0, 0, 500, 400), row(3, 0, 0, 0, 90, 1)];
    let packed: Vec<u8> = (0..200_090).map(byte_at).collect();
    let before = world.staged();
    let write = write_pieces(1, handle, 200_090);
    world.send(line, write, &wire(&rows));
    for (number, piece) in packed.chunks(65_536).enumerate() {
        world.send(line, write_data(1, 65_536 * number as u64), piece);
    }
    assert_eq!(world.read_end(line, 1), Status::Ok);
    let mut done = 0;
    for row in rows {
        for (offset, _) in row.pieces() {
            let there = bytes(&world, segment, offset, row.length);
            assert_eq!(there, packed[done..done + row.length as usize]);
            done += row.length as usize;
        }
    }
    assert_eq!(bytes(&world, segment, 600, 400), [0; 400]);
    world.settle();
    assert_eq!(world.staged(), before);
    // Withdrawn in the middle, no more of it lands.
    world.send(line, write, &wire(&rows));
    world.send(line, write_data(1, 0), &packed[..65_536]);
    world.settle();
    world.command(Command::RevokeRegion { region: RegionId(1) });
    let at = Span { segment, offset: 0, length: 1 << 19 };
    world.kernel.bytes_mut(world.node, at).fill(0xee);
    for (number, piece) in packed.chunks(65_536).enumerate().skip(1) {
        world.send(line, write_data(1, 65_536 * number as u64), piece);
    }
    assert_eq!(world.read_end(line, 1), Status::Gone);
    assert_eq!(bytes(&world, segment, 0, 1 << 19), vec![0xee; 1 << 19]);
    world.settle();
    assert_eq!(world.staged(), before);
}

fn write_pieces(transfer: u64, handle: u32, length: u64) -> Message {
    let asker = Asker::alone(Class::Latency);
    let (offset, durable, pieces) = (0, false, true);
    let (fragment, time_left_us) = (65_536, 10_000_000);
    Message::Write {
        transfer,
        handle,
        offset,
        length,
        asker,
        durable,
        pieces,
        fragment,
        time_left_us,
    }
}

#[test]
fn puts_whose_tables_find_no_room_are_refused_and_hold_nothing_up() {
    let mut world = World::new();
    let (line, segment, handle) = served(&mut world);
    let before = world.staged();
    let table = wire(&[row(8, 0, 0, 0, 5, 1)]);
    for transfer in 0..200 {
        world.send(line, write_pieces(transfer, handle, 5), &table);
    }
    world.settle();
    let mut refused = Vec::new();
    while let Some((frame, _)) = world.take_frame(line) {
        let Message::End { transfer, status, .. } = frame.message else { continue };
        assert_eq!(status, Status::WouldBlock);
        refused.push(transfer);
    }
    assert!((1..199).contains(&refused.len()), "{}", refused.len());
    // Gets have room of their own, and what the first put waits for comes behind all of that.
    world.send(line, read_pieces(500, handle, 5, 0), &table);
    assert_eq!(world.read_end(line, 500), Status::Ok);
    world.send(line, write_data(0, 0), &[9; 5]);
    assert_eq!(world.read_end(line, 0), Status::Ok);
    assert_eq!(bytes(&world, segment, 8, 5), [9; 5]);
    for transfer in (1..200).filter(|it| !refused.contains(it)) {
        world.send(line, write_data(transfer, 0), &[8; 5]);
        assert_eq!(world.read_end(line, transfer), Status::Ok);
    }
    world.settle();
    assert_eq!(world.staged(), before);
    assert_eq!(world.reasons(), [""; 0]);
}

#[test]
fn a_request_too_many_leaves_no_table() {
    let mut world = World::new();
    let (line, _, handle) = served(&mut world);
    let before = world.staged();
    for transfer in 0..256 {
        world.send(line, write(transfer, handle, 5), &[]);
    }
    world.settle();
    let table = wire(&[row(0, 0, 0, 0, 5, 1)]);
    world.send(line, read_pieces(1000, handle, 5, 0), &table);
    world.settle();
    assert_eq!(world.reasons(), ["more requests outstanding than it was allowed"]);
    assert!(world.staged() <= before);
}

#[test]
fn on_one_node_a_turn_copies_no_more_pieces_than_it_has_time_for() {
    let mut world = World::new();
    let segment = world.session(SESSION, ARENA);
    let target = region(1, segment, 1 << 19);
    let Target::Region(whole) = target else { unreachable!() };
    let own = Target::Region(piped_engine::command::RegionTarget { offset: 1 << 19, ..whole });
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target: own });
    // The same bytes again and again: 128 MiB.
    let verb = vector(&mut world, segment, true, &[row(0, 0, 0, 0, 1 << 16, 2048)]);
    world.submit(SESSION, 1, verb);
    let mut before = 0;
    for _ in 0..20 {
        world.shard.drive(&mut world.kernel.io(world.node));
        let mut told = before;
        while let Some(output) = world.shard.poll_output() {
            if let Output::Progress(progress) = output {
                told = progress.bytes;
            }
        }
        assert!(told - before <= u64::from(PART_BYTES), "{} bytes in a turn", told - before);
        before = told;
    }
    assert!(before > 0, "it goes on");
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 128 << 20));
}

#[test]
fn a_damaged_table_costs_the_lane_and_nothing_stays_of_it() {
    let mut world = World::new();
    let (line, _, handle) = served(&mut world);
    let idle = world.shard.report().staging_used_bytes;
    let table = wire(&[row(0, 0, 0, 0, 5, 1)]);
    let mut frame = world.frame(line, read_pieces(1, handle, 5, 0), &table);
    *frame.last_mut().expect("a payload") ^= 1;
    world.send_bytes(line, &frame);
    world.settle();
    assert_eq!(
        world.reasons(),
        ["a table of pieces is damaged, or of a request that is under way"]
    );
    assert!(world.shard.report().staging_used_bytes <= idle);
    // Cut off in the middle of it.
    let line = world.lane("beta", LaneClass::Latency, 2);
    let up = world.shard.report().staging_used_bytes;
    let frame = world.frame(line, read_pieces(1, handle, 5, 0), &table);
    world.send_bytes(line, &frame[..70]);
    world.settle();
    world.hang_up(line);
    world.settle();
    assert!(world.shard.report().staging_used_bytes < up);
}

#[test]
fn on_one_node_pieces_are_copied_both_ways() {
    let mut world = World::new();
    let segment = world.session(SESSION, ARENA);
    let target = region(1, segment, 1 << 19);
    let Target::Region(whole) = target else { unreachable!() };
    let own = Target::Region(piped_engine::command::RegionTarget {
        offset: 1 << 19,
        length: 200_000,
        ..whole
    });
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target: own });
    pattern(&mut world, segment, 1 << 18);
    let rows = [row(0, 40, 0, 20, 20, 5000)];
    let verb = vector(&mut world, segment, false, &rows);
    world.submit(SESSION, 1, verb);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 100_000));
    let there: Vec<u8> = (20..40).map(byte_at).collect();
    assert_eq!(bytes(&world, segment, (1 << 19) + 40, 20), there);
    let span = Span { segment, offset: 0, length: 100_000 };
    world.kernel.bytes_mut(world.node, span).fill(0);
    let verb = vector(&mut world, segment, true, &rows);
    world.submit(SESSION, 2, verb);
    assert_eq!(wait_end(&mut world, 2), (Status::Ok, 100_000));
    assert_eq!(bytes(&world, segment, 20, 20), there);
    let verb = vector(&mut world, segment, true, &[row(199_999, 0, 0, 0, 2, 1)]);
    world.submit(SESSION, 3, verb);
    assert_eq!(wait_end(&mut world, 3).0, Status::Invalid);
}

#[test]
fn pieces_of_a_file_are_read_each_to_its_place_until_it_ends() {
    let mut world = World::new();
    let segment = world.session(SESSION, ARENA);
    let target = world.file(10_000);
    world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target });
    let rows = [row(0, 2000, 100, 1000, 500, 3), row(9_900, 0, 50_000, 0, 200, 1)];
    let verb = vector(&mut world, segment, true, &rows);
    world.submit(SESSION, 1, verb);
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 1600), "the last piece ends with the file");
    assert_eq!(bytes(&world, segment, 2100, 500), [7; 500]);
    assert_eq!(bytes(&world, segment, 600, 500), [0; 500]);
    assert_eq!(bytes(&world, segment, 50_000, 101), [vec![7; 100], vec![0]].concat());
}

#[test]
fn the_page_that_is_wanted_travels_first() {
    let mut world = World::new();
    let (line, segments) = connected(&mut world, &[SESSION]);
    let buffer = ArenaBuffer { segment: 0, offset: 0, length: 100_000 };
    world.submit(SESSION, 1, Verb::Read { handle: HANDLE, offset: 100, buffer, wanted: 50_000 });
    let (start, end) = ((50_100 / 4096) * 4096 - 100, (50_100 / 4096 + 1) * 4096 - 100);
    let mut asked = Vec::new();
    for number in 0..3 {
        let message = loop {
            match world.next(line) {
                Message::Outcome { .. } => {}
                message => break message,
            }
        };
        let Message::Read { transfer, offset, length, .. } = message else { panic!("{message:?}") };
        asked.push((offset - 100, length));
        let all: Vec<u8> = (offset..offset + length).map(byte_at).collect();
        // In pieces as a plan cuts them.
        let (mut done, base) = (0, offset / 4096 * 4096);
        while done < length {
            let end = ((offset + done - base) / (64 << 10) + 1) * (64 << 10) + base - offset;
            let end = end.min(length);
            let last = (end == length).then_some(length);
            world.send(line, data(transfer, done, last), &all[done as usize..end as usize]);
            done = end;
        }
        if number == 0 {
            world.run_for(Nanos::from_millis(10));
            let told = world.progress_of(1);
            assert_eq!(told.last(), Some(&(0, (start, end))), "{told:?}");
        }
    }
    assert_eq!(asked[0], (start, end - start));
    assert_eq!(wait_end(&mut world, 1), (Status::Ok, 100_000));
    let all: Vec<u8> = (100..100_100).map(byte_at).collect();
    assert_eq!(bytes(&world, segments[0], 0, 100_000), all);
    // Of a byte that is not in it nothing can be wanted.
    world.submit(SESSION, 2, Verb::Read { handle: HANDLE, offset: 0, buffer, wanted: 100_000 });
    assert_eq!(wait_end(&mut world, 2).0, Status::Invalid);
    // Of a file that ends before it, what there is is read.
    let target = world.file(5000);
    let file = piped_core::ids::HandleId(9);
    world.command(Command::InstallHandle { session: SESSION, handle: file, target });
    world.submit(SESSION, 3, Verb::Read { handle: file, offset: 0, buffer, wanted: 50_000 });
    assert_eq!(wait_end(&mut world, 3), (Status::Ok, 5000));
}
