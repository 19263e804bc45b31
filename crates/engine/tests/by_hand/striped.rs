//! Reads of which the page cache has a part: that part comes from there while the device reads the
//! rest, unless the device alone is as fast.

use std::ops::Range;

use piped_core::ids::HandleId;
use piped_core::limits::STRIPED_BYTES_MAX;
use piped_core::link::LaneClass;
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Target};
use piped_sim::{Cost, Faults, InodeId};
use piped_wire::Message;

use crate::world::{LineId, SESSION, Step, World, read};

const HANDLE: HandleId = HandleId(9);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const LENGTH: u64 = MIB;

/// Costs of a byte, in nanoseconds, at the device and from its page cache.
const EQUAL: [f64; 2] = [1.0, 1.0];

fn cost(latency: u64, nanos_per_byte: f64) -> Cost {
    Cost { latency: Nanos::from_micros(latency), overhead: Nanos::from_micros(1), nanos_per_byte }
}

/// Costs of reads of the device, and of those from its page cache.
fn costs([device, cache]: [f64; 2]) -> [Cost; 2] {
    [cost(20, device), cost(2, cache)]
}

/// A client with a file open, of which the page cache has nothing.
struct Reader {
    world: World,
    inode: InodeId,
    target: Target,
    content: Vec<u8>,
    arena: piped_core::ids::SegmentId,
    reads: u64,
}

impl Reader {
    fn new(per_byte: [f64; 2]) -> Self {
        Self::with_file(LENGTH, per_byte)
    }

    fn with_file(length: u64, per_byte: [f64; 2]) -> Self {
        let mut world = World::fast();
        world.command(Command::SetCalibration(CalibrationMode::Live));
        world.command(Command::SetPlanner(PlannerMode::Auto));
        let arena = world.session(SESSION, 4 * LENGTH);
        let content: Vec<u8> = (0..length).map(|at| (at / 512 % 251) as u8).collect();
        let (target, inode) = world.direct_file_of(content.clone());
        world.command(Command::InstallHandle { session: SESSION, handle: HANDLE, target });
        let mut reader = Self { world, inode, target, content, arena, reads: 0 };
        reader.take(per_byte);
        reader
    }

    /// Reads take so long from now on.
    fn take(&mut self, per_byte: [f64; 2]) {
        let ([read, cached], device) = (costs(per_byte), self.world.device());
        self.world.kernel.set_read_costs(device, read, cached);
    }

    fn cache(&mut self, range: Range<u64>) {
        self.world.kernel.set_range_cached(self.inode, range, true);
    }

    fn evict(&mut self) {
        self.world.kernel.set_cached(self.inode, false);
    }

    fn submit(&mut self, offset: u64, length: u64) -> u64 {
        self.submit_into(0, offset, length)
    }

    fn submit_into(&mut self, place: u64, offset: u64, length: u64) -> u64 {
        self.reads += 1;
        let buffer = ArenaBuffer { segment: 0, offset: place, length };
        let verb = Verb::Read { handle: HANDLE, offset, buffer, wanted: 0 };
        self.world.submit_bulk(SESSION, self.reads, verb);
        self.reads
    }

    fn end_of(&mut self, number: u64) -> (Status, u64) {
        self.world.wait_until("its end", |world| world.end_of(number).is_some());
        self.world.end_of(number).expect("it has ended")
    }

    /// One read of a range, checked; the seconds that it took.
    fn read(&mut self, offset: u64, length: u64) -> f64 {
        let memory = piped_core::io::Span { segment: self.arena, offset: 0, length: length as u32 };
        self.world.kernel.bytes_mut(self.world.node, memory).fill(0xee);
        let before = self.world.clock();
        let number = self.submit(offset, length);
        assert_eq!(self.end_of(number), (Status::Ok, length));
        let took = self.world.clock().since(before).seconds();
        let content = &self.content[offset as usize..][..length as usize];
        assert!(self.world.kernel.bytes(self.world.node, memory) == content, "other bytes");
        self.world.settle();
        assert_eq!(self.world.shard.report().transfers, 0);
        took
    }

    /// Several reads of all of the file, so that both ways are known; the last one's seconds.
    fn settled(&mut self, reads: usize) -> f64 {
        (0..reads).map(|_| self.read(0, LENGTH)).last().expect("one at least")
    }

    /// The median of some reads of all of the file: plans that are tried do not count.
    fn usual(&mut self) -> f64 {
        let mut all = [(); 9].map(|()| self.read(0, LENGTH));
        all.sort_by(f64::total_cmp);
        all[4]
    }

    fn looks(&self) -> usize {
        looks_of(&self.world)
    }

    fn route(&self) -> String {
        self.world.shard.explain(None).expect("it is the last").route.to_string()
    }

    /// The file is read as a whole, once from each, so that both stages are known.
    fn learn(&mut self) -> [f64; 2] {
        self.evict();
        let device = self.settled(12);
        self.cache(0..LENGTH);
        let cache = self.settled(12);
        self.evict();
        [device, cache]
    }
}

/// Questions what the page cache has.
fn looks_of(world: &World) -> usize {
    world.steps.iter().filter(|step| **step == Step::Look).count()
}

/// What the best division takes, if so many bytes are in the page cache: that of the linear program
/// over all sizes of both parts.
fn best(cached: u64, per_byte: [f64; 2]) -> f64 {
    let [device, cache] = costs(per_byte);
    let seconds = |it: Cost, bytes: u64| {
        let alone = it.latency.seconds() + it.overhead.seconds();
        if bytes == 0 { 0.0 } else { alone + bytes as f64 * it.nanos_per_byte * 1e-9 }
    };
    let ends = (0..=cached / 4096).map(|pages| {
        let moved = pages * 4096;
        seconds(cache, cached - moved).max(seconds(device, LENGTH - cached + moved))
    });
    ends.fold(f64::INFINITY, f64::min)
}

#[test]
fn half_a_file_in_the_cache_is_read_in_half_the_time() {
    for half in [0..LENGTH / 2, LENGTH / 2..LENGTH] {
        let mut reader = Reader::new(EQUAL);
        let [device, cache] = reader.learn();
        reader.cache(half);
        let both = reader.settled(4);
        assert!(reader.route().contains("page cache"), "{}", reader.route());
        assert!(device.min(cache) >= 1.8 * both, "{device} or {cache} alone, {both} together");
        assert!(both <= 1.05 * best(LENGTH / 2, EQUAL), "{both}");
    }
}

/// Whatever both ways take and however much is cached: the division of the linear program, and
/// never more than the device alone.
#[test]
fn divisions_are_those_of_the_linear_program() {
    for per_byte in [[1.0, 1.0], [1.0, 3.0], [3.0, 1.0], [1.0, 0.1], [0.2, 1.0]] {
        for part in [0..256 * KIB, 128 * KIB..640 * KIB, 0..KIB * 896] {
            let mut reader = Reader::new(per_byte);
            let [device, _] = reader.learn();
            let cached = part.end - part.start;
            reader.cache(part);
            let _ = reader.settled(20);
            let (both, best) = (reader.usual(), best(cached, per_byte).min(device));
            assert!(both <= 1.05 * best, "{per_byte:?}, {cached} cached: {both} of {best}");
            assert!(both <= 1.02 * device, "{per_byte:?}, {cached} cached: {both}, not {device}");
        }
    }
}

/// A way slows to half, or comes back: within twenty reads the bytes are where they belong.
#[test]
fn bytes_move_within_twenty_reads_when_a_way_slows() {
    let mut reader = Reader::new(EQUAL);
    let _ = reader.learn();
    reader.cache(0..LENGTH * 3 / 4);
    let _ = reader.settled(20);
    for per_byte in [[1.0, 2.0], [1.0, 1.0], [2.0, 1.0], [1.0, 1.0]] {
        reader.take(per_byte);
        let _ = reader.settled(20);
        let (later, best) = (reader.usual(), best(LENGTH * 3 / 4, per_byte));
        assert!(later <= 1.05 * best, "{per_byte:?}: {later}, not {best}");
    }
}

/// Reads with company say nothing of a way, and what was learned before they came is forgotten.
#[test]
fn what_is_old_is_forgotten_in_company() {
    let slow_then_back = |pairs: usize| {
        let mut reader = Reader::new(EQUAL);
        let _ = reader.learn();
        // What both stages cost is not learned any more.
        reader.world.command(Command::SetCalibration(CalibrationMode::Frozen));
        reader.cache(0..LENGTH * 3 / 4);
        reader.take([1.0, 4.0]);
        let _ = reader.settled(12);
        reader.take(EQUAL);
        for _ in 0..pairs {
            let [first, second] = [0, MIB].map(|place| reader.submit_into(place, 0, LENGTH));
            assert_eq!(reader.end_of(first), (Status::Ok, LENGTH));
            assert_eq!(reader.end_of(second), (Status::Ok, LENGTH));
            reader.world.settle();
        }
        reader.read(0, LENGTH)
    };
    let best = best(LENGTH * 3 / 4, EQUAL);
    assert!(slow_then_back(0) > 1.2 * best, "the first read knows of no change");
    assert!(slow_then_back(8) <= 1.05 * best, "{} of {best}", slow_then_back(8));
}

/// What is wholly there or not at all costs the looks that it did, and so do short reads.
#[test]
fn looks_are_few() {
    let looks = |cached: Range<u64>, length| {
        let mut reader = Reader::with_file(2 * LENGTH, EQUAL);
        if !cached.is_empty() {
            reader.cache(cached);
        }
        let _ = reader.read(0, length);
        reader.looks()
    };
    for length in [4 * KIB, 64 * KIB, LENGTH] {
        assert_eq!(looks(0..0, length), 1, "{length} bytes on the device");
        assert_eq!(looks(0..2 * LENGTH, length), 1, "{length} bytes in the cache");
    }
    assert_eq!(looks(0..4 * KIB, 64 * KIB), 1, "one page of a short read");
    assert_eq!(looks(0..LENGTH / 2, LENGTH), 2, "half of a long one");
    // The page is in a unit that no look can halve.
    assert_eq!(looks(0..4 * KIB, LENGTH), 5, "one page of a long one");
    assert_eq!(looks(0..2 * LENGTH, 2 * LENGTH), 2, "both ends");
    assert_eq!(looks(0..0, 2 * LENGTH), 2, "the first end, and all");
    assert_eq!(looks(LENGTH..2 * LENGTH, 2 * LENGTH), 3, "the second half");
}

/// Where the device alone is as fast it has all, and then the file is seldom looked at.
#[test]
fn a_read_of_which_too_little_is_cached_goes_past_it() {
    let mut reader = Reader::new([1.0, 0.1]);
    let [device, _] = reader.learn();
    reader.cache(0..64 * KIB);
    let both = reader.settled(40);
    assert!(reader.route().contains("page cache"), "a sixteenth is worth it: {}", reader.route());
    assert!(both < 0.95 * device);
    let mut reader = Reader::new([1.0, 200.0]);
    let [device, _] = reader.learn();
    reader.cache(0..64 * KIB);
    let _ = reader.settled(40);
    assert!(!reader.route().contains("page cache"), "{}", reader.route());
    let (both, looks) = (reader.usual(), reader.looks());
    assert!(both <= 1.01 * device, "{both}, not {device}");
    let _ = reader.settled(64);
    assert!(reader.looks() - looks <= 8, "{} looks", reader.looks() - looks);
}

/// What is in the cache when the read begins, and gone when it gets there, comes from the device.
#[test]
fn what_is_evicted_after_the_look_is_read_all_the_same() {
    for served in [false, true] {
        let mut reader = Reader::new(EQUAL);
        let _ = reader.learn();
        reader.cache(0..LENGTH / 2);
        if served {
            let line = open_for_peer(&mut reader);
            let looks = reader.looks();
            let transfer = ask(&mut reader, line, LENGTH);
            let looked = |world: &World| looks_of(world) > looks;
            reader.world.wait_until("the look", looked);
            reader.evict();
            assert_eq!(reader.world.read_end(line.0, transfer), Status::Ok);
        } else {
            let number = reader.submit(0, LENGTH);
            reader.world.settle_turn();
            reader.evict();
            assert_eq!(reader.end_of(number), (Status::Ok, LENGTH));
        }
        reader.world.settle();
        assert!(reader.route().contains("page cache"), "{}", reader.route());
    }
}

/// The file becomes shorter while it is read: the read ends where it does, as others do.
#[test]
fn a_file_that_is_cut_meanwhile_ends_the_read_there() {
    for (cut, cached) in [(LENGTH / 4, 0..LENGTH / 2), (LENGTH * 3 / 4, 0..LENGTH / 2)] {
        for cached in [cached.clone(), LENGTH - cached.end..LENGTH] {
            let mut reader = Reader::new(EQUAL);
            let _ = reader.learn();
            reader.cache(cached.clone());
            let number = reader.submit(0, LENGTH);
            reader.world.kernel.truncate(reader.inode, cut);
            assert_eq!(reader.end_of(number), (Status::Ok, cut), "{cached:?}");
            assert!(reader.route().contains("page cache"), "{}", reader.route());
        }
    }
}

/// A file that ends within the read, some of which is cached.
#[test]
fn a_read_beyond_the_end_has_what_there_is() {
    let mut reader = Reader::with_file(600 * KIB, EQUAL);
    reader.cache(0..256 * KIB);
    let number = reader.submit(0, LENGTH);
    assert_eq!(reader.end_of(number), (Status::Ok, 600 * KIB));
    assert!(reader.route().contains("page cache"), "{}", reader.route());
}

/// A part that fails ends the read with its error, and the other one is given up.
#[test]
fn an_error_of_a_part_ends_the_read() {
    let mut reader = Reader::new(EQUAL);
    let _ = reader.learn();
    reader.cache(0..LENGTH / 2);
    reader.world.kernel.set_faults(Faults { disk_error: 1.0, ..Faults::none() });
    let number = reader.submit(0, LENGTH);
    let (status, _) = reader.end_of(number);
    assert_eq!(status, Status::Io);
    reader.world.kernel.set_faults(Faults::none());
    reader.world.settle();
    assert_eq!(reader.world.shard.report().transfers, 0);
    let _ = reader.read(0, LENGTH);
}

/// A client gives the read up, or its session goes: nothing of it is left.
#[test]
fn a_read_of_both_is_given_up_as_one() {
    let mut reader = Reader::new(EQUAL);
    let _ = reader.learn();
    reader.cache(0..LENGTH / 2);
    let number = reader.submit(0, LENGTH);
    reader.world.settle_turn();
    reader.reads += 1;
    let cancel = reader.reads;
    reader.world.submit(SESSION, cancel, Verb::Cancel { target: number });
    reader.world.settle();
    assert_eq!(reader.end_of(number).0, Status::Cancelled);
    assert_eq!(reader.world.shard.report().transfers, 0);
    let _ = reader.read(0, LENGTH);
    let _ = reader.submit(0, LENGTH);
    reader.world.settle_turn();
    reader.world.command(Command::CloseSession { session: SESSION });
    reader.world.settle();
    assert_eq!(reader.world.shard.report().transfers, 0);
}

/// Without places for its parts a read goes as it did.
#[test]
fn without_room_for_parts_the_device_has_all() {
    let mut reader = Reader::new(EQUAL);
    reader.cache(0..LENGTH / 2);
    let others: Vec<u64> =
        (0..255).map(|place| reader.submit_into(MIB + place * 4096, 0, 4096)).collect();
    let number = reader.submit(0, LENGTH);
    assert_eq!(reader.end_of(number), (Status::Ok, LENGTH));
    for number in others {
        assert_eq!(reader.end_of(number), (Status::Ok, 4096));
    }
    let explained = reader.world.shard.explain(None).expect("it is the last");
    assert!(!explained.route.contains("page cache"), "{}", explained.route);
    let _ = reader.settled(4);
    assert!(reader.route().contains("page cache"), "{}", reader.route());
}

/// A peer's line, with the handle of the file.
fn open_for_peer(reader: &mut Reader) -> (LineId, u32) {
    let line = reader.world.lane("beta", LaneClass::Latency, 1);
    let handle = reader.world.open(line, 1, reader.target);
    (line, handle)
}

fn ask(reader: &mut Reader, (line, handle): (LineId, u32), length: u64) -> u64 {
    reader.reads += 1;
    reader.world.send(line, read(reader.reads, handle, length), &[]);
    reader.reads
}

/// One read of a peer of all of the file; the seconds that it took.
fn serve(reader: &mut Reader, line: (LineId, u32)) -> f64 {
    let before = reader.world.clock();
    let length = reader.content.len() as u64;
    let _ = ask(reader, line, length);
    let mut bytes = Vec::new();
    loop {
        let (frame, payload) = reader.world.next_frame(line.0);
        let Message::Data { offset, last, .. } = frame.message else { continue };
        assert_eq!(offset, bytes.len() as u64, "in the order of the file");
        bytes.extend_from_slice(&payload);
        if let Some(last) = last {
            assert_eq!((last.status, last.bytes), (Status::Ok, length));
            break;
        }
    }
    assert!(bytes == reader.content, "other bytes");
    let took = reader.world.clock().since(before).seconds();
    reader.world.settle();
    took
}

#[test]
fn a_peers_read_takes_both_at_once() {
    let mut reader = Reader::new(EQUAL);
    let line = open_for_peer(&mut reader);
    let device = (0..12).map(|_| serve(&mut reader, line)).last().expect("one");
    reader.cache(0..LENGTH);
    let cache = (0..12).map(|_| serve(&mut reader, line)).last().expect("one");
    reader.evict();
    reader.cache(0..LENGTH / 2);
    let both = (0..12).map(|_| serve(&mut reader, line)).last().expect("one");
    assert!(reader.route().contains("page cache"), "{}", reader.route());
    assert!(device.min(cache) >= 1.8 * both, "{device} or {cache} alone, {both} together");
    // What is cached behind the rest waits for its turn on the lane.
    reader.evict();
    reader.cache(LENGTH / 2..LENGTH);
    let behind = (0..12).map(|_| serve(&mut reader, line)).last().expect("one");
    assert!(device >= 1.8 * behind, "{device} alone, {behind} together");
    assert_eq!(reader.world.staged(), 0);
}

/// Stored as a whole and then forwarded: more than may wait in staging is forwarded in parts.
#[test]
fn a_long_read_that_is_stored_first_does_not_wait_for_itself() {
    for half in [0..4 * MIB, 4 * MIB..8 * MIB] {
        let mut reader = Reader::with_file(8 * MIB, EQUAL);
        reader.world.command(Command::SetPlanner(PlannerMode::Whole));
        let line = open_for_peer(&mut reader);
        reader.cache(half);
        let _ = serve(&mut reader, line);
        assert!(reader.route().contains("page cache"), "{}", reader.route());
        assert_eq!(reader.world.staged(), 0);
    }
}

/// To look at all of a very long read would keep the thread from others: it has the two looks of
/// one that goes one way.
#[test]
fn a_very_long_read_goes_one_way() {
    for (length, is_split) in [(STRIPED_BYTES_MAX, true), (STRIPED_BYTES_MAX + 4 * KIB, false)] {
        let mut reader = Reader::with_file(STRIPED_BYTES_MAX + 4 * KIB, EQUAL);
        let line = open_for_peer(&mut reader);
        reader.cache(0..STRIPED_BYTES_MAX / 2);
        let transfer = ask(&mut reader, line, length);
        assert_eq!(bytes_of_end(&mut reader, line, transfer), (Status::Ok, length));
        assert_eq!(reader.route().contains("page cache"), is_split, "{}", reader.route());
        assert_eq!(reader.looks(), if is_split { 4 } else { 2 }, "{length}");
    }
}

/// What becomes of a peer's read that comes both ways: the file ends in either part, a part fails,
/// or the peer gives it up or goes. No staging is left, and the next one is read as ever.
#[test]
fn a_peers_read_of_both_ends_as_others_do() {
    for half in [0..LENGTH / 2, LENGTH / 2..LENGTH] {
        for cut in [0, LENGTH / 4, LENGTH / 2, LENGTH * 3 / 4, LENGTH] {
            let mut reader = Reader::new(EQUAL);
            let line = open_for_peer(&mut reader);
            reader.cache(half.clone());
            // The cache is as it was, so the look still finds half of the read.
            reader.world.kernel.truncate(reader.inode, cut);
            let transfer = ask(&mut reader, line, LENGTH);
            let what = format!("{half:?} cached, cut to {cut}");
            assert_eq!(bytes_of_end(&mut reader, line, transfer), (Status::Ok, cut), "{what}");
            reader.world.settle();
            assert_eq!(reader.world.staged(), 0, "{what}");
        }
        let mut reader = Reader::new(EQUAL);
        let line = open_for_peer(&mut reader);
        reader.cache(half.clone());
        reader.world.kernel.set_faults(Faults { disk_error: 1.0, ..Faults::none() });
        let transfer = ask(&mut reader, line, LENGTH);
        assert_eq!(bytes_of_end(&mut reader, line, transfer).0, Status::Io);
        reader.world.kernel.set_faults(Faults::none());
        let looks = reader.looks();
        let transfer = ask(&mut reader, line, LENGTH);
        reader.world.wait_until("the look", |world| looks_of(world) > looks);
        reader.world.send(line.0, Message::Cancel { transfer }, &[]);
        assert_eq!(bytes_of_end(&mut reader, line, transfer).0, Status::Cancelled);
        let _ = serve(&mut reader, line);
        assert!(reader.route().contains("page cache"), "{}", reader.route());
        let looks = reader.looks();
        let _ = ask(&mut reader, line, LENGTH);
        reader.world.wait_until("the look", |world| looks_of(world) > looks);
        reader.world.hang_up(line.0);
        reader.world.settle();
        assert_eq!(reader.world.staged(), 0);
    }
}

/// How a peer's read ends, and with how many bytes.
fn bytes_of_end(reader: &mut Reader, line: (LineId, u32), transfer: u64) -> (Status, u64) {
    loop {
        match reader.world.next(line.0) {
            Message::End { transfer: of, status, bytes, .. } if of == transfer => {
                return (status, bytes);
            }
            Message::Data { transfer: of, last: Some(last), .. } if of == transfer => {
                return (last.status, last.bytes);
            }
            _ => {}
        }
    }
}
