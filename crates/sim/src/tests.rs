//! The driver's own behaviour, by direct operations.

use piped_core::access::Alignment;
use piped_core::ids::{FileId, SegmentId, SocketId};
use piped_core::io::{Done, Io, Op, Resource, Span, Spans, Token};
use piped_core::spread::LatencySpread;
use piped_core::units::Nanos;

use super::*;

const MICRO: f64 = 1000.0;

fn cost(latency: f64, overhead: f64, per_kib: f64) -> Cost {
    Cost {
        latency: Nanos((latency * MICRO) as u64),
        overhead: Nanos((overhead * MICRO) as u64),
        nanos_per_byte: per_kib * MICRO / 1024.0,
    }
}

fn device(window: u32) -> DeviceCosts {
    DeviceCosts {
        read: cost(70.0, 17.0, 0.5),
        write: cost(60.0, 20.0, 0.3),
        sync: cost(500.0, 100.0, 0.3),
        window: Some(window),
        cached: None,
        capacity: 1 << 24,
        alignment: Alignment { offset: 512, memory: 4 },
        spread: LatencySpread::NONE,
        tells_at_the_end: false,
    }
}

fn span(segment: SegmentId, offset: u64, length: u32) -> Span {
    Span { segment, offset, length }
}

struct Pair {
    kernel: SimKernel,
    nodes: [NodeId; 2],
    memory: [SegmentId; 2],
    sockets: [SocketId; 2],
    connection: ConnectionId,
    tokens: u64,
}

const MEMORY: u64 = 1 << 20;

/// Two nodes with a segment each and one connection of 256 KiB buffers.
fn pair(seed: u64, faults: Faults) -> Pair {
    let mut kernel = SimKernel::new(seed, faults);
    let nodes = [kernel.add_node(64), kernel.add_node(64)];
    let memory = nodes.map(|node| kernel.add_segment(node, MEMORY));
    let links = [0, 1].map(|_| kernel.add_link(cost(20.0, 5.0, 1.0), None));
    let (connection, sockets) = kernel.connect(nodes, links, 256 * 1024);
    let mut noise = Random::new(seed);
    for side in [0, 1] {
        noise.fill(kernel.bytes_mut(nodes[side], span(memory[side], 0, MEMORY as u32)));
    }
    Pair { kernel, nodes, memory, sockets, connection, tokens: 0 }
}

impl Pair {
    fn push(&mut self, side: usize, op: Op) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        assert!(self.kernel.io(self.nodes[side]).push(token, op), "{op:?} was not taken");
        token
    }

    fn send(&mut self, side: usize, offset: u64, length: u32) -> Token {
        let spans = Spans::from_iter([span(self.memory[side], offset, length)]);
        self.push(side, Op::Send { socket: self.sockets[side], spans })
    }

    fn receive(&mut self, side: usize, offset: u64, length: u32, whole: bool) -> Token {
        let spans = Spans::from_iter([span(self.memory[side], offset, length)]);
        self.push(side, Op::Receive { socket: self.sockets[side], spans, whole })
    }

    /// Let time pass until something ends at this node.
    fn wait(&mut self, side: usize) -> Done {
        self.wait_until(side, Nanos::MAX).expect("an operation ends")
    }

    fn wait_until(&mut self, side: usize, until: Nanos) -> Option<Done> {
        loop {
            if let Some(done) = self.kernel.poll_done(self.nodes[side]) {
                return Some(done);
            }
            let next = self.kernel.next_event().filter(|&next| next <= until)?;
            self.kernel.advance(next);
        }
    }

    fn file(&mut self, side: usize, costs: DeviceCosts, bytes: usize) -> (InodeId, FileId, FileId) {
        let device = self.kernel.add_device(costs);
        let mut content = vec![0; bytes];
        Random::new(7).fill(&mut content);
        let inode = self.kernel.create_file(self.nodes[side], device, content);
        let direct = self.kernel.open_file(self.nodes[side], inode, true);
        let buffered = self.kernel.open_file(self.nodes[side], inode, false);
        (inode, direct, buffered)
    }

    fn bytes(&self, side: usize, offset: u64, length: u32) -> Vec<u8> {
        self.kernel.bytes(self.nodes[side], span(self.memory[side], offset, length)).to_vec()
    }
}

fn panics(run: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    let panic = panic.expect_err("the driver must refuse this");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn a_chain_of_disk_and_net_takes_the_time_of_the_model() {
    // k fragments, all read at once, each sent when it is there, received by one waiting node.
    for (window, count, bytes) in [(1, 5, 4096), (4, 9, 16384), (32, 8, 8192)] {
        let mut pair = pair(1, Faults::none());
        let costs = device(window);
        let (_, direct, _) = pair.file(0, costs, MEMORY as usize);
        for i in 0..count {
            let into = span(pair.memory[0], i * bytes, bytes as u32);
            pair.push(0, Op::Read { file: direct, offset: i * bytes, into });
        }
        pair.receive(1, 0, (count * bytes) as u32, true);
        for i in 0..count {
            // Reads end in order without faults; take the read's end, send, take the send's end.
            assert_eq!(pair.wait(0).result, bytes as i32);
            pair.send(0, i * bytes, bytes as u32);
            assert_eq!(pair.wait(0).result, bytes as i32);
        }
        assert_eq!(pair.wait(1).result, (count * bytes) as i32);
        // docs/theory.md §1, in whole nanoseconds, written out here and not taken from the driver.
        let stages = [(costs.read, Some(window as usize)), (cost(20.0, 5.0, 1.0), None)];
        let mut arrive = vec![0u64; count as usize];
        for (cost, window) in stages {
            let occupancy = cost.overhead.0 + (bytes as f64 * cost.nanos_per_byte).round() as u64;
            let mut depart = Vec::new();
            let mut free = 0;
            for (i, &arrival) in arrive.iter().enumerate() {
                let slot = window.filter(|&w| i >= w).map_or(0, |w| depart[i - w]);
                let start = arrival.max(free).max(slot);
                free = start + occupancy;
                depart.push(free + cost.latency.0);
            }
            arrive = depart;
        }
        assert_eq!(pair.kernel.now(), Nanos(arrive[count as usize - 1]), "window {window}");
        assert_eq!(pair.bytes(0, 0, 4096), pair.bytes(1, 0, 4096));
    }
}

#[test]
fn what_the_page_cache_answers_takes_no_latency_of_its_disk() {
    let mut pair = pair(1, Faults::none());
    let spread = LatencySpread { cv: 1.0, ..LatencySpread::NONE };
    let costs = DeviceCosts { cached: Some(cost(2.0, 1.0, 0.0)), spread, ..device(1) };
    let (inode, direct, buffered) = pair.file(0, costs, 8192);
    pair.kernel.set_cached(inode, true);
    let mut times = |file| {
        [(); 8].map(|()| {
            let (before, into) = (pair.kernel.now(), span(pair.memory[0], 0, 4096));
            pair.push(0, Op::Read { file, offset: 0, into });
            assert_eq!(pair.wait(0).result, 4096);
            pair.kernel.now().since(before)
        })
    };
    assert_eq!(times(buffered), [Nanos::from_micros(3); 8]);
    assert!(times(direct).windows(2).all(|it| it[0] != it[1]));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut pair = pair(seed, Faults { reset: 0.0, ..Faults::mixed(&mut Random::new(seed)) });
        pair.kernel.start_trace();
        let (_, _, buffered) = pair.file(0, device(4), 100_000);
        for i in 0..20 {
            let into = span(pair.memory[0], i * 5000, 5000);
            pair.tokens += 1;
            let op = Op::Read { file: buffered, offset: i * 5000, into };
            let _ = pair.kernel.io(pair.nodes[0]).push(Token(pair.tokens), op);
        }
        while pair.wait_until(0, Nanos::MAX).is_some() {}
        pair.kernel.trace_lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}

#[test]
fn a_stream_keeps_its_bytes_under_any_chopping() {
    for seed in 0..200 {
        let faults = Faults {
            send_short: 0.7,
            receive_short: 0.7,
            delay: 0.3,
            delay_max: Nanos::from_millis(1),
            full: 0.3,
            ..Faults::none()
        };
        let mut pair = pair(seed, faults);
        let total = 1 + pair.kernel.random.below(MEMORY) as u32;
        let whole = seed % 2 == 0;
        let (mut sent, mut received) = (0, 0);
        let (mut sending, mut receiving) = (false, false);
        while received < total {
            if !sending && sent < total {
                let spans = Spans::from_iter([span(pair.memory[0], u64::from(sent), total - sent)]);
                let op = Op::Send { socket: pair.sockets[0], spans };
                sending = pair.kernel.io(pair.nodes[0]).push(Token(1), op);
            }
            if !receiving {
                let wanted = if whole { total } else { (total - received).min(100_000) };
                let spans = Spans::from_iter([span(pair.memory[1], u64::from(received), wanted)]);
                let op = Op::Receive { socket: pair.sockets[1], spans, whole };
                receiving = pair.kernel.io(pair.nodes[1]).push(Token(2), op);
            }
            // Without an event both drivers were full, and are asked again a little later.
            let later = pair.kernel.now() + Nanos(1);
            pair.kernel.advance(pair.kernel.next_event().unwrap_or(later));
            while let Some(done) = pair.kernel.poll_done(pair.nodes[0]) {
                assert!(done.result > 0);
                sent += done.result as u32;
                sending = false;
            }
            while let Some(done) = pair.kernel.poll_done(pair.nodes[1]) {
                assert!(done.result > 0 && (!whole || done.result as u32 == total));
                received += done.result as u32;
                receiving = false;
            }
        }
        assert_eq!(pair.bytes(0, 0, total), pair.bytes(1, 0, total), "seed {seed}");
    }
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender() {
    let mut pair = pair(3, Faults::none());
    pair.send(0, 0, 300_000);
    assert_eq!(pair.wait(0).result, 256 * 1024, "as much as the buffer holds");
    pair.send(0, 0, 1000);
    assert_eq!(pair.wait_until(0, Nanos::MAX), None, "no room until somebody reads");
    pair.receive(1, 0, 10, false);
    assert_eq!(pair.wait(1).result, 10);
    assert_eq!(pair.wait(0).result, 10, "as much as was read");
}

#[test]
fn lanes_on_one_link_share_it() {
    let mut pair = pair(3, Faults::none());
    let links = [LinkId(0), LinkId(1)];
    let (_, other) = pair.kernel.connect(pair.nodes, links, 1 << 20);
    pair.send(0, 1000, 200_000);
    assert_eq!(pair.wait(0).result, 200_000);
    let socket = other[0];
    let spans = Spans::from_iter([span(pair.memory[0], 0, 100)]);
    pair.push(0, Op::Send { socket, spans });
    let spans = Spans::from_iter([span(pair.memory[1], 0, 100)]);
    pair.push(1, Op::Receive { socket: other[1], spans, whole: true });
    pair.wait(1);
    let alone = cost(20.0, 5.0, 1.0).occupancy(200_000);
    assert!(pair.kernel.now() > alone, "the small run waits for the large one before it");
}

#[test]
fn a_reset_ends_what_waits_and_loses_what_is_on_the_way() {
    let mut seen = [0; 2];
    for seed in 0..100 {
        let mut pair = pair(seed, Faults::none());
        pair.send(0, 0, 100_000);
        assert_eq!(pair.wait(0).result, 100_000);
        let receive = pair.receive(1, 0, 100_000, true);
        pair.kernel.reset(pair.connection, Notice::Within(Nanos::from_micros(150)));
        let done = pair.wait(1);
        assert_eq!(done.token, receive);
        match done.result {
            -104 => seen[0] += 1,
            part => {
                assert!(part > 0, "{part}");
                assert_eq!(pair.bytes(0, 0, part as u32), pair.bytes(1, 0, part as u32));
                seen[1] += 1;
            }
        }
        while pair.wait_until(0, Nanos::MAX).is_some() {}
        pair.send(0, 0, 10);
        assert_eq!(pair.wait(0).result, -104);
        pair.receive(0, 20, 10, false);
        assert_eq!(pair.wait(0).result, -104);
    }
    assert!(seen[0] > 5 && seen[1] > 5, "both ways must be exercised: {seen:?}");
}

#[test]
fn an_orderly_close_delivers_everything_and_then_the_end() {
    let mut pair = pair(9, Faults::none());
    pair.send(0, 0, 100);
    pair.wait(0);
    pair.receive(0, 500, 10, false);
    let socket = pair.sockets[0];
    pair.kernel.io(pair.nodes[0]).release(Resource::Socket(socket));
    assert!(matches!(pair.wait(0).result, 0 | -125), "the pending receive ends");
    pair.receive(1, 0, 60, true);
    assert_eq!(pair.wait(1).result, 60);
    pair.receive(1, 60, 60, true);
    assert_eq!(pair.wait(1).result, 40, "whole, but the stream ended");
    pair.receive(1, 200, 60, true);
    assert_eq!(pair.wait(1).result, 0);
    pair.send(1, 0, 10);
    assert_eq!(pair.wait(1).result, 10, "nobody knows yet");
    while pair.wait_until(1, Nanos::MAX).is_some() {}
    pair.send(1, 0, 10);
    assert_eq!(pair.wait(1).result, -104);
    let message = panics(|| {
        pair.send(0, 0, 10);
    });
    assert!(message.contains("was released before"), "{message}");
}

#[test]
fn a_silent_crash_is_noticed_late_and_a_loud_one_soon() {
    let soon = Nanos::from_millis(1);
    for notice in [Notice::Silent, Notice::Within(soon)] {
        let mut pair = pair(11, Faults::none());
        pair.receive(1, 0, 100, false);
        let receive = pair.receive(0, 0, 100, false);
        pair.kernel.crash(pair.nodes[1], notice);
        assert_eq!(pair.kernel.ops_in_flight(pair.nodes[1]), 0);
        if notice == Notice::Silent {
            pair.send(0, 1000, 200_000);
            assert!(pair.wait(0).result > 0);
            pair.send(0, 1000, 200_000);
            assert!(pair.wait(0).result > 0);
            pair.send(0, 1000, 200_000);
            let almost = SILENCE - Nanos(1);
            assert_eq!(pair.wait_until(0, almost), None, "the buffer is full, nobody answers");
        }
        assert_eq!(pair.wait(0), Done { token: receive, result: -104 });
        let at = if notice == Notice::Silent { SILENCE } else { soon };
        assert!(pair.kernel.now() <= at);
    }
}

#[test]
fn direct_files_refuse_what_is_not_aligned() {
    let mut pair = pair(2, Faults::none());
    let (_, direct, buffered) = pair.file(0, device(4), 10_000);
    for (offset, place, length, wanted) in [
        (512, 0, 1024, 1024),
        (100, 0, 512, -22),
        (512, 2, 512, -22),
        (512, 0, 100, -22),
        (9728, 0, 1024, 272),
        (10_240, 0, 512, 0),
    ] {
        let into = span(pair.memory[0], place, length);
        pair.push(0, Op::Read { file: direct, offset, into });
        assert_eq!(pair.wait(0).result, wanted, "{offset} {place} {length}");
    }
    let into = span(pair.memory[0], 2, 100);
    pair.push(0, Op::Read { file: buffered, offset: 9_950, into });
    assert_eq!(pair.wait(0).result, 50);
}

#[test]
fn writes_extend_up_to_the_capacity() {
    let mut pair = pair(2, Faults::none());
    let (inode, _, buffered) = pair.file(0, DeviceCosts { capacity: 20_000, ..device(4) }, 10_000);
    let from = span(pair.memory[0], 0, 5_000);
    pair.push(0, Op::Allocate { file: buffered, offset: 12_000, length: 3_000 });
    assert_eq!(pair.wait(0).result, 0);
    assert_eq!(pair.kernel.file_content(inode).len(), 15_000);
    pair.push(0, Op::Write { file: buffered, offset: 12_000, from });
    assert_eq!(pair.wait(0).result, 5_000);
    assert_eq!(&pair.kernel.file_content(inode)[12_000..], pair.bytes(0, 0, 5_000));
    // Whole blocks, as far as there is room; then none.
    pair.push(0, Op::Write { file: buffered, offset: 16_000, from });
    assert_eq!(pair.wait(0).result, 384);
    pair.push(0, Op::Write { file: buffered, offset: 16_384, from });
    assert_eq!(pair.wait(0).result, -28);
    pair.push(0, Op::Allocate { file: buffered, offset: 0, length: 1 << 40 });
    assert_eq!(pair.wait(0).result, -27);
}

#[test]
fn a_crash_keeps_what_was_flushed_and_may_lose_the_rest() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..40 {
        let mut pair = pair(seed, Faults::none());
        let (inode, _, buffered) = pair.file(0, device(4), 100_000);
        let from = span(pair.memory[0], 0, 8192);
        pair.push(0, Op::Write { file: buffered, offset: 4096, from });
        pair.wait(0);
        pair.push(0, Op::Sync { file: buffered });
        assert_eq!(pair.wait(0).result, 0);
        let from = span(pair.memory[0], 50_000, 4096);
        pair.push(0, Op::Write { file: buffered, offset: 40_960, from });
        pair.wait(0);
        let late = pair.bytes(0, 50_000, 4096);
        let flushed = pair.bytes(0, 0, 8192);
        pair.kernel.crash(pair.nodes[0], Notice::Silent);
        let content = pair.kernel.file_content(inode);
        assert_eq!(content[4096..4096 + 8192], flushed);
        if content[40_960..40_960 + 4096] == late { kept += 1 } else { lost += 1 }
    }
    assert!(kept > 5 && lost > 5, "{kept} {lost}");
}

#[test]
fn a_flush_does_not_cover_a_write_that_ends_after_it_began() {
    let mut lost = 0;
    for seed in 0..40 {
        let mut pair = pair(seed, Faults::none());
        let (inode, _, buffered) = pair.file(0, device(4), 100_000);
        let from = span(pair.memory[0], 0, 4096);
        let write = pair.push(0, Op::Write { file: buffered, offset: 4096, from });
        pair.push(0, Op::Sync { file: buffered });
        assert_eq!(pair.wait(0).token, write);
        pair.wait(0);
        let late = pair.bytes(0, 0, 4096);
        pair.kernel.crash(pair.nodes[0], Notice::Silent);
        lost += usize::from(pair.kernel.file_content(inode)[4096..8192] != late);
    }
    assert!(lost > 5, "{lost}");
}

#[test]
fn an_older_flush_that_ends_later_takes_nothing_back() {
    for seed in 0..20 {
        let faults = Faults { delay: 0.5, delay_max: Nanos::from_millis(5), ..Faults::none() };
        let mut pair = pair(seed, faults);
        let (inode, _, buffered) = pair.file(0, device(4), 100_000);
        let write = |offset, memory| Op::Write {
            file: buffered,
            offset: 4096,
            from: span(memory, offset, 4096),
        };
        let memory = pair.memory[0];
        pair.push(0, write(0, memory));
        pair.wait(0);
        pair.push(0, Op::Sync { file: buffered });
        let rewrite = pair.push(0, write(4096, memory));
        while pair.wait(0).token != rewrite {}
        let late = pair.push(0, Op::Sync { file: buffered });
        while pair.wait_until(0, Nanos::MAX).is_some() {}
        assert!(late > rewrite);
        let bytes = pair.bytes(0, 4096, 4096);
        pair.kernel.crash(pair.nodes[0], Notice::Silent);
        assert_eq!(&pair.kernel.file_content(inode)[4096..8192], bytes, "seed {seed}");
    }
}

#[test]
fn a_cancel_gives_exactly_one_end() {
    let mut ends = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let mut pair = pair(seed, Faults { cancel_works: 0.5, ..Faults::none() });
        let (_, _, buffered) = pair.file(0, device(1), 100_000);
        let receive = pair.receive(0, 0, 100, false);
        pair.receive(1, 0, 100, true);
        pair.send(1, 500, 100);
        let read = |i: u64, memory| Op::Read {
            file: buffered,
            offset: 0,
            into: span(memory, 1000 + i * 100, 100),
        };
        let memory = pair.memory[0];
        let begun = pair.push(0, read(0, memory));
        let waits = pair.push(0, read(1, memory));
        let at = Nanos(pair.kernel.random.below(60_000));
        pair.kernel.advance(at);
        for token in [receive, begun, waits, Token(999)] {
            pair.kernel.io(pair.nodes[0]).cancel(token);
        }
        let mut seen = Vec::new();
        while let Some(done) = pair.wait_until(0, Nanos::MAX) {
            seen.push(done.token);
            ends.insert((done.token == receive, done.token == begun, done.result));
        }
        seen.sort();
        assert_eq!(seen, [receive, begun, waits], "seed {seed}");
    }
    // (is the receive, is the read that had begun, result)
    let all = [
        (true, false, -125),
        (true, false, 100),
        (false, true, 100),
        (false, false, -125),
        (false, false, 100),
    ];
    assert_eq!(ends, all.into_iter().collect());
}

#[test]
fn errors_and_short_results_come_at_their_rates() {
    let faults = Faults { disk_error: 0.2, disk_short: 0.3, ..Faults::none() };
    let mut pair = pair(4, faults);
    let (_, direct, _) = pair.file(0, device(4), 100_000);
    let (mut errors, mut shorts, mut odd) = (0, 0, 0);
    for _ in 0..1000 {
        let into = span(pair.memory[0], 0, 8192);
        pair.push(0, Op::Read { file: direct, offset: 0, into });
        match pair.wait(0).result {
            -5 => errors += 1,
            8192 => {}
            short => {
                assert!((1..8192).contains(&short), "{short}");
                shorts += 1;
                odd += i32::from(short % 512 != 0);
            }
        }
    }
    assert!((100..300).contains(&errors), "{errors}");
    assert!((150..350).contains(&shorts), "{shorts}");
    assert!((shorts / 8..shorts / 2).contains(&odd), "{odd} of {shorts} at odd places");
}

#[test]
fn one_damaged_bit_reaches_the_receiver() {
    let mut pair = pair(4, Faults::none());
    pair.kernel.corrupt_next(pair.connection, pair.nodes[0], 500);
    for (length, damaged) in [(100, false), (1000, true), (1000, false)] {
        pair.send(0, 0, length);
        pair.receive(1, 0, length, true);
        pair.wait(1);
        let (sent, got) = (pair.bytes(0, 0, length), pair.bytes(1, 0, length));
        let different = sent.iter().zip(&got).filter(|(a, b)| a != b).count();
        assert_eq!(different, usize::from(damaged));
    }
}

#[test]
fn a_full_driver_takes_nothing() {
    let mut kernel = SimKernel::new(0, Faults::none());
    let node = kernel.add_node(2);
    assert!(kernel.io(node).push(Token(1), Op::Nop));
    assert!(kernel.io(node).push(Token(2), Op::Nop));
    assert!(!kernel.io(node).push(Token(3), Op::Nop));
    kernel.advance(Nanos(1));
    assert_eq!(kernel.poll_done(node), Some(Done { token: Token(1), result: 0 }));
    assert!(kernel.io(node).push(Token(3), Op::Nop));
}

#[test]
fn misuse_panics_and_names_the_operation() {
    type Misuse = fn(&mut Pair, FileId);
    let misuses: [(&str, Misuse); 10] = [
        ("beyond the segment", |pair, _| {
            pair.send(0, MEMORY - 10, 11);
        }),
        ("is in flight", |pair, _| {
            pair.tokens = 0;
            pair.receive(0, 0, 10, false);
            pair.tokens = 0;
            pair.receive(0, 0, 10, false);
        }),
        ("two receives at once", |pair, _| {
            pair.receive(0, 0, 10, false);
            pair.receive(0, 10, 10, false);
        }),
        ("Writes bytes 0..10", |pair, file| {
            pair.receive(0, 0, 10, false);
            let into = span(pair.memory[0], 5, 10);
            pair.push(0, Op::Read { file, offset: 0, into });
        }),
        ("Reads bytes 0..10", |pair, file| {
            pair.push(0, Op::Write { file, offset: 0, from: span(pair.memory[0], 0, 10) });
            pair.kernel.io(pair.nodes[0]).store(&[1], span(pair.memory[0], 9, 1));
        }),
        ("while operations use it", |pair, _| {
            pair.receive(0, 0, 10, false);
            pair.kernel.io(pair.nodes[0]).release(Resource::Segment(pair.memory[0]));
        }),
        ("was released before", |pair, file| {
            pair.kernel.io(pair.nodes[0]).release(Resource::File(file));
            pair.push(0, Op::Sync { file });
        }),
        ("no request in flight owns", |pair, _| {
            pair.kernel.guard(pair.nodes[0], pair.memory[0]);
            pair.kernel.open_window(pair.nodes[0], span(pair.memory[0], 0, 10), false);
            pair.send(0, 0, 10);
            pair.wait(0);
            pair.receive(0, 0, 10, false);
        }),
        ("below the watermark", |pair, _| {
            pair.kernel.guard(pair.nodes[0], pair.memory[0]);
            let window = pair.kernel.open_window(pair.nodes[0], span(pair.memory[0], 0, 10), true);
            pair.kernel.raise_window(pair.nodes[0], window, 5);
            pair.kernel.io(pair.nodes[0]).store(&[1], span(pair.memory[0], 5, 1));
            pair.kernel.io(pair.nodes[0]).store(&[1], span(pair.memory[0], 4, 1));
        }),
        ("was given back while", |pair, _| {
            let window = pair.kernel.open_window(pair.nodes[0], span(pair.memory[0], 0, 10), true);
            pair.receive(0, 2, 2, false);
            pair.kernel.close_window(pair.nodes[0], window);
        }),
    ];
    for (wanted, misuse) in misuses {
        let mut pair = pair(5, Faults::none());
        let (_, _, file) = pair.file(0, device(4), 1000);
        let message = panics(|| misuse(&mut pair, file));
        assert!(message.contains(wanted), "wanted {wanted:?}, got {message:?}");
    }
}

#[test]
fn a_held_operation_goes_as_it_is_told() {
    let mut pair = pair(11, Faults::none());
    let [near, far] = pair.nodes;
    let mut ends = FarEnds::new(far);
    let line = ends.take_up(pair.sockets[1], &mut pair.kernel);
    let hand = Hand::new(near, &mut pair.kernel);
    let tokens = [0, 64].map(|offset| pair.receive(0, offset, 64, false));
    ends.send(line, &[7; 100]);
    settle(&mut ends, &mut pair.kernel);
    assert_eq!((hand.count(&pair.kernel), pair.kernel.poll_done(near)), (2, None), "all wait");
    hand.begin(1, Way::Failed(-5), &mut pair.kernel);
    assert_eq!(pair.wait(0), Done { token: tokens[1], result: -5 });
    hand.begin(0, Way::Part, &mut pair.kernel);
    let Done { token, result } = pair.wait(0);
    assert!(token == tokens[0] && (1..=64).contains(&result), "{result}");
    let send = pair.send(0, 0, 32);
    pair.kernel.io(near).cancel(send);
    assert_eq!(pair.wait(0), Done { token: send, result: -125 });
    assert_eq!(hand.count(&pair.kernel), 0, "what was cancelled waits no more");
    let answer = pair.send(0, 0, 32);
    hand.begin(0, Way::Whole, &mut pair.kernel);
    assert_eq!(pair.wait(0), Done { token: answer, result: 32 });
    settle(&mut ends, &mut pair.kernel);
    let sent = pair.kernel.bytes(near, span(pair.memory[0], 0, 32)).to_vec();
    assert_eq!(ends.take(line, 32), sent);
}

/// Until nothing is under way but what waits for somebody.
fn settle(ends: &mut FarEnds, kernel: &mut SimKernel) {
    loop {
        let worked = ends.turn(kernel);
        match kernel.next_event() {
            Some(at) => kernel.advance(at),
            None if worked => {}
            None => return,
        }
    }
}
