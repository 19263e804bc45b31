//! Sender and receiver over heap memory: whatever way the stream is cut, the same frames come out
//! and only the offered memory is written. Plain, authenticated and encrypted: what the bytes of
//! each must be is computed here once more.

use aegis::aegis128x4::{Aegis128X4, Aegis128X4Mac};
use piped_core::ids::SegmentId;
use piped_core::io::{Io, Op, Resource, SPANS_PER_OP_MAX, Span, Spans, Token};
use piped_core::limits::PAYLOAD_BYTES_MAX;
use piped_core::link::{Checksum, LaneClass, Protection};
use piped_core::request::Update;
use piped_core::units::Nanos;
use piped_wire::{
    BATCH_BYTES_MAX, Frame, FrameKey, Full, HEADER_BYTES, INLINE_BYTES_MAX, INLINE_LANDING_BYTES,
    Lent, Message, Owner, PeerFault, Receiver, SPILL_BYTES, Seal, Sender, Step,
};
use proptest::prelude::*;

/// Bytes around scratch memory that nobody may write.
const GUARD: u32 = 256;
/// Where payloads come from and go to.
const ARENA_BYTES: u32 = 2 << 20;
const ARENA: SegmentId = SegmentId(0);
const SENDER_SCRATCH: SegmentId = SegmentId(1);
const RECEIVER_SCRATCH: SegmentId = SegmentId(2);
const SOURCE: SegmentId = SegmentId(3);
/// Where encrypted payloads wait for their batch to leave.
const ROOM: SegmentId = SegmentId(4);

const KEY: [u8; 16] = *b"sixteen bytes !!";

/// What protects a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Checksums of headers and payloads.
    Payload,
    /// Checksums of headers.
    Header,
    /// Tags.
    Sealed(Protection),
}

const KINDS: [Kind; 4] = [
    Kind::Payload,
    Kind::Sealed(Protection::Integrity),
    Kind::Sealed(Protection::Encrypted),
    Kind::Header,
];

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(&KINDS[..])
}

fn seal(kind: Kind) -> Seal {
    match kind {
        Kind::Payload => Seal::PLAIN,
        Kind::Header => Seal::Plain { sums: false },
        Kind::Sealed(protection) => Seal::keyed(protection, FrameKey::new(KEY)),
    }
}

fn header_bytes(kind: Kind) -> usize {
    HEADER_BYTES + if matches!(kind, Kind::Sealed(_)) { 32 } else { 0 }
}

/// What stands on the wire for the frame of this number of its direction.
fn on_the_wire(kind: Kind, number: usize, frame: Frame, payload: &[u8]) -> Vec<u8> {
    let protection = match kind {
        Kind::Payload => return [&frame.encode()[..], payload].concat(),
        Kind::Header => {
            let header = Frame { payload_crc: 0, ..frame }.encode();
            return [&header[..], payload].concat();
        }
        Kind::Sealed(protection) => protection,
    };
    let nonce = |part: u8| {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&(number as u64).to_le_bytes());
        nonce[8] = part;
        nonce
    };
    let tagged = |part: u8, bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let tag: [u8; 16] = match protection {
            Protection::Integrity => {
                let mut mac = Aegis128X4Mac::new_with_nonce(&KEY, &nonce(part));
                mac.update(&bytes);
                mac.finalize()
            }
            Protection::Encrypted => {
                Aegis128X4::new(&KEY, &nonce(part)).encrypt_in_place(&mut bytes, &[])
            }
        };
        (bytes, tag)
    };
    let header = Frame { payload_crc: 0, ..frame }.encode();
    let (payload, payload_tag) = match payload {
        [] => (Vec::new(), [0; 16]),
        bytes => tagged(1, bytes),
    };
    let (sealed, tag) = tagged(0, &[&header[..], &payload_tag].concat());
    [sealed, tag.to_vec(), payload].concat()
}

/// Memory without a kernel: the test moves the stream's bytes itself.
struct Memory {
    segments: Vec<Vec<u8>>,
}

impl Memory {
    fn new() -> Self {
        let arena = |salt: u32| (0..ARENA_BYTES).map(|at| pattern(at, salt)).collect();
        let scratch = |length: u32| vec![0xee; (length + 2 * GUARD) as usize];
        Self {
            segments: vec![
                arena(1),
                scratch(Sender::SCRATCH_BYTES),
                scratch(Receiver::SCRATCH_BYTES),
                arena(2),
                scratch(PAYLOAD_BYTES_MAX),
            ],
        }
    }

    fn bytes(&self, span: Span) -> &[u8] {
        let start = span.offset as usize;
        &self.segments[span.segment.0 as usize][start..start + span.length as usize]
    }

    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        let start = span.offset as usize;
        &mut self.segments[span.segment.0 as usize][start..start + span.length as usize]
    }

    /// What the kernel does with a receive: at most `most` bytes of `stream` into the spans.
    fn deliver(&mut self, spans: &Spans, stream: &[u8], most: usize) -> usize {
        let mut left = &stream[..stream.len().min(most)];
        for span in spans.as_slice() {
            let (now, later) = left.split_at(left.len().min(span.length as usize));
            self.bytes_mut(span.part(0, now.len() as u32)).copy_from_slice(now);
            left = later;
        }
        stream.len().min(most) - left.len()
    }

    fn guards_are_whole(&self) -> bool {
        [SENDER_SCRATCH, RECEIVER_SCRATCH, ROOM].iter().all(|segment| {
            let bytes = &self.segments[segment.0 as usize];
            let guard = GUARD as usize;
            bytes[..guard].iter().chain(&bytes[bytes.len() - guard..]).all(|byte| *byte == 0xee)
        })
    }
}

impl Io for Memory {
    fn now(&mut self) -> Nanos {
        Nanos::ZERO
    }
    fn push(&mut self, _: Token, _: Op) -> bool {
        unreachable!("sender and receiver post nothing themselves")
    }
    fn cancel(&mut self, _: Token) {
        unreachable!("sender and receiver post nothing themselves")
    }
    fn release(&mut self, _: Resource) {
        unreachable!("sender and receiver own nothing")
    }
    fn copy(&mut self, from: Span, to: Span) {
        assert_eq!(from.length, to.length);
        let apart = from.segment != to.segment
            || from.offset + u64::from(from.length) <= to.offset
            || to.offset + u64::from(to.length) <= from.offset;
        assert!(apart, "spans of a copy overlap: {from:?} {to:?}");
        let bytes = self.bytes(from).to_vec();
        self.bytes_mut(to).copy_from_slice(&bytes);
    }
    fn load(&mut self, from: Span, to: &mut [u8]) {
        to.copy_from_slice(self.bytes(from));
    }
    fn store(&mut self, from: &[u8], to: Span) {
        self.bytes_mut(to).copy_from_slice(from);
    }
    fn update(&mut self, _: Span, _: Update) -> u64 {
        unreachable!("sender and receiver change no words")
    }
    fn spend(&mut self, _: Nanos) {}
    fn crc32c(&mut self, span: Span) -> u32 {
        crc32c(self.bytes(span))
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn pattern(at: u32, salt: u32) -> u8 {
    ((at ^ salt.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b) >> 24) as u8
}

fn span(segment: SegmentId, offset: u64, length: u32) -> Span {
    Span { segment, offset, length }
}

fn new_sender(kind: Kind, capacity: usize) -> Sender {
    let scratch = span(SENDER_SCRATCH, u64::from(GUARD), Sender::SCRATCH_BYTES);
    let room = span(ROOM, u64::from(GUARD), PAYLOAD_BYTES_MAX);
    Sender::with_seal(seal(kind), scratch, Some(room), capacity)
}

fn new_receiver(kind: Kind) -> Receiver {
    let scratch = span(RECEIVER_SCRATCH, u64::from(GUARD), Receiver::SCRATCH_BYTES);
    Receiver::with_seal(seal(kind), scratch)
}

/// Repeats itself from its seed, which proptest prints.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % u64::from(limit.max(1))) as u32
    }

    /// Often tiny, sometimes around a header, sometimes large.
    fn chop(&mut self) -> usize {
        let limit = [1, 3, 64, 65, 200, 5_000, 70_000, 400_000][self.below(8) as usize];
        1 + self.below(limit) as usize
    }
}

/// Where a frame's payload is told to go.
#[derive(Debug, Clone, Copy)]
enum Place {
    Arena(u32),
    Inline,
    Discard,
}

/// How the test guesses before the header is known.
#[derive(Debug, Clone, Copy)]
enum Guess {
    None,
    Right,
    TooLong(u32),
    TooShort,
    /// So far off the right place that they overlap.
    Near(u32),
    Elsewhere(u32),
}

#[derive(Debug, Clone)]
struct Sent {
    payload: u32,
    /// Where the payload's bytes are in `SOURCE`.
    source: u32,
    place: Place,
    guess: Guess,
    /// Whether the next frame is sent together with this one.
    followed: bool,
}

impl Sent {
    fn source(&self) -> Span {
        span(SOURCE, u64::from(self.source), self.payload)
    }

    fn message(&self, number: usize) -> Message {
        match (self.payload, number % 3) {
            (0, 0) => Message::Ping { nonce: number as u64 },
            (0, 1) => Message::Cancel { transfer: number as u64 },
            (0, _) => Message::Credit { bytes: number as u64, window: 1 << 20 },
            _ => Message::WriteData { transfer: number as u64, offset: 5, backlogged: true },
        }
    }

    fn frame(&self, number: usize, payload: &[u8]) -> Frame {
        let payload_crc = if payload.is_empty() { 0 } else { crc32c(payload) };
        let (message, payload) = (self.message(number), self.payload);
        Frame { epoch: 9, message, payload, payload_crc, followed: self.followed && payload > 0 }
    }

    fn destination(&self) -> Option<Span> {
        match self.place {
            Place::Arena(at) => Some(span(ARENA, u64::from(at), self.payload)),
            Place::Inline | Place::Discard => None,
        }
    }

    fn prediction(&self) -> Option<Span> {
        let right = self.destination();
        let inside = |at: u64, length: u32| {
            let at = at.min(u64::from(ARENA_BYTES));
            span(ARENA, at, length.min(ARENA_BYTES - at as u32))
        };
        match self.guess {
            Guess::None => None,
            Guess::Right => right,
            Guess::TooLong(more) => right.map(|to| inside(to.offset, to.length + more)),
            Guess::TooShort => right.map(|to| inside(to.offset, to.length / 2)),
            Guess::Near(off) => right.map(|to| inside(to.offset + u64::from(off), to.length)),
            Guess::Elsewhere(at) => Some(inside(u64::from(at), self.payload + 100)),
        }
    }
}

fn payload_length() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => Just(0),
        4 => 1..100_u32,
        3 => 100..5_000_u32,
        2 => 5_000..SPILL_BYTES,
        1 => SPILL_BYTES - 2..300 * 1024,
    ]
}

fn sent_frames(most: usize) -> impl Strategy<Value = Vec<Sent>> {
    let room = ARENA_BYTES - 300 * 1024;
    let place = prop_oneof![
        6 => (0..room).prop_map(Place::Arena),
        1 => Just(Place::Inline),
        1 => Just(Place::Discard),
    ];
    let guess = prop_oneof![
        2 => Just(Guess::None),
        4 => Just(Guess::Right),
        2 => (1..400_000_u32).prop_map(Guess::TooLong),
        1 => Just(Guess::TooShort),
        1 => (1..200_u32).prop_map(Guess::Near),
        2 => (0..ARENA_BYTES).prop_map(Guess::Elsewhere),
    ];
    let sent = (payload_length(), 0..room, place, guess, any::<bool>()).prop_map(
        |(payload, source, place, guess, followed)| Sent {
            payload,
            source,
            place,
            guess,
            followed,
        },
    );
    prop::collection::vec(sent, 1..most).prop_map(|mut frames| {
        if let Some(last) = frames.last_mut() {
            last.followed = false;
        }
        frames
    })
}

/// The stream as the format has it, and where each frame starts.
fn stream_of(kind: Kind, frames: &[Sent], memory: &Memory) -> (Vec<u8>, Vec<usize>) {
    let mut stream = Vec::new();
    let mut starts = Vec::new();
    for (number, sent) in frames.iter().enumerate() {
        let payload = memory.bytes(sent.source());
        starts.push(stream.len());
        stream.extend(on_the_wire(kind, number, sent.frame(number, payload), payload));
    }
    (stream, starts)
}

/// A receiver whose every write is known: each byte of the arena has the value it must have, or
/// none while it is offered.
struct Oracle {
    receiver: Receiver,
    expected: Vec<Option<u8>>,
    random: Random,
    /// Frames completed.
    seen: usize,
    /// For each of them: whether its payload was intact.
    intact: Vec<bool>,
    receives: usize,
    copied: u64,
}

impl Oracle {
    fn new(kind: Kind, memory: &Memory, seed: u64) -> Self {
        let expected =
            memory.bytes(span(ARENA, 0, ARENA_BYTES)).iter().copied().map(Some).collect();
        Self {
            receiver: new_receiver(kind),
            expected,
            random: Random(seed),
            seen: 0,
            intact: Vec::new(),
            receives: 0,
            copied: 0,
        }
    }

    fn expect(&mut self, at: Span, bytes: Option<&[u8]>) {
        let start = at.offset as usize;
        for (place, expected) in
            self.expected[start..start + at.length as usize].iter_mut().enumerate()
        {
            *expected = bytes.map(|bytes| bytes[place]);
        }
    }

    /// One receive, and all the steps it allows. Returns the bytes taken off the stream.
    fn turn(
        &mut self,
        frames: &[Sent],
        memory: &mut Memory,
        stream: &[u8],
        most: usize,
    ) -> Result<usize, PeerFault> {
        let guess = frames.get(self.seen).and_then(Sent::prediction);
        let (spans, whole) = self.receiver.poll_receive(guess);
        assert!(spans.bytes() > 0, "there is always something to receive");
        if let Some(guess) = guess.filter(|_| !whole) {
            self.expect(guess.part(0, SPILL_BYTES), None);
        }
        let taken = memory.deliver(&spans, stream, most);
        self.receives += 1;
        self.receiver.handle_received(taken as u32);
        loop {
            match self.receiver.poll_step(memory)? {
                Step::NeedMore => return Ok(taken),
                Step::Destination(frame) => self.land(frames, frame, memory),
                Step::Frame { frame, landed, intact, copied } => {
                    self.complete(frames, memory, frame, landed, intact);
                    self.copied += u64::from(copied);
                }
            }
        }
    }

    fn land(&mut self, frames: &[Sent], frame: Frame, memory: &mut Memory) {
        assert_eq!(self.receiver.poll_step(memory), Ok(Step::Destination(frame)), "asked twice");
        let Some(sent) = frames.get(self.seen) else { return self.receiver.land(None) };
        match sent.place {
            Place::Arena(_) => {
                let destination = sent.destination().expect("has one in the arena");
                self.expect(destination, None);
                self.receiver.land(Some(destination));
            }
            Place::Inline => self.receiver.land_inline(),
            Place::Discard => self.receiver.land(None),
        }
    }

    fn complete(
        &mut self,
        frames: &[Sent],
        memory: &Memory,
        frame: Frame,
        landed: Option<Span>,
        intact: bool,
    ) {
        let Some(sent) = frames.get(self.seen) else {
            self.seen += 1;
            return;
        };
        assert_eq!(frame.message, sent.message(self.seen), "frames come in order");
        assert_eq!(frame.payload, sent.payload);
        let lands_inline = matches!(sent.place, Place::Inline)
            && (1..=INLINE_LANDING_BYTES).contains(&sent.payload);
        let lands_in_arena = matches!(sent.place, Place::Arena(_)) && sent.payload > 0;
        assert_eq!(landed.is_some(), lands_inline || lands_in_arena);
        if let Some(landed) = landed {
            assert_eq!(landed.length, sent.payload);
            if lands_in_arena {
                assert_eq!(Some(landed), sent.destination());
                self.expect(landed, Some(memory.bytes(landed)));
            }
            if intact {
                assert!(memory.bytes(landed) == memory.bytes(sent.source()), "payload differs");
            }
        } else {
            assert!(intact, "what is not there is not damaged");
        }
        self.intact.push(intact);
        self.seen += 1;
    }

    /// Feed the whole stream.
    fn run(
        &mut self,
        frames: &[Sent],
        memory: &mut Memory,
        mut stream: &[u8],
    ) -> Result<(), PeerFault> {
        while !stream.is_empty() {
            let most = self.random.chop();
            let taken = self.turn(frames, memory, stream, most)?;
            assert!(taken > 0);
            stream = &stream[taken..];
        }
        Ok(())
    }

    /// Nothing was written but what was offered, and what landed stayed.
    fn check_memory(&self, memory: &Memory) {
        let arena = memory.bytes(span(ARENA, 0, ARENA_BYTES));
        let wrong = arena
            .iter()
            .zip(&self.expected)
            .position(|(byte, expected)| expected.is_some_and(|expected| expected != *byte));
        assert_eq!(wrong, None, "first byte written without being offered");
        assert!(memory.guards_are_whole(), "scratch memory was overrun");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_payload_lands_and_nothing_else_is_written(
        kind in kinds(),
        frames in sent_frames(24),
        seed in any::<u64>(),
    ) {
        let mut memory = Memory::new();
        let (stream, _) = stream_of(kind, &frames, &memory);
        let mut oracle = Oracle::new(kind, &memory, seed);
        oracle.run(&frames, &mut memory, &stream).expect("a sound stream has no fault");
        prop_assert_eq!(oracle.seen, frames.len());
        prop_assert!(oracle.intact.iter().all(|intact| *intact));
        oracle.check_memory(&memory);
    }

    #[test]
    fn a_damaged_payload_costs_only_its_frame(
        kind in prop::sample::select(&KINDS[..3]),
        frames in sent_frames(16),
        seed in any::<u64>(),
        which in any::<prop::sample::Index>(),
        bit in any::<u32>(),
    ) {
        let mut memory = Memory::new();
        let (mut stream, starts) = stream_of(kind, &frames, &memory);
        let damaged = which.index(frames.len());
        let payload_bits = frames[damaged].payload * 8;
        prop_assume!(payload_bits > 0);
        let bit = bit % payload_bits;
        stream[starts[damaged] + header_bytes(kind) + (bit / 8) as usize] ^= 1 << (bit % 8);
        let mut oracle = Oracle::new(kind, &memory, seed);
        oracle.run(&frames, &mut memory, &stream).expect("the headers are sound");
        prop_assert_eq!(oracle.seen, frames.len());
        for (number, intact) in oracle.intact.iter().enumerate() {
            let looked_at = match frames[number].place {
                Place::Arena(_) => true,
                Place::Inline => frames[number].payload <= INLINE_LANDING_BYTES,
                Place::Discard => false,
            };
            prop_assert_eq!(*intact, number != damaged || !looked_at, "frame {}", number);
        }
        oracle.check_memory(&memory);
    }

    #[test]
    fn a_damaged_header_ends_the_stream_for_good(
        kind in kinds(),
        frames in sent_frames(12),
        seed in any::<u64>(),
        which in any::<prop::sample::Index>(),
        bit in any::<usize>(),
    ) {
        let bit = bit % (header_bytes(kind) * 8);
        let mut memory = Memory::new();
        let (mut stream, starts) = stream_of(kind, &frames, &memory);
        let damaged = which.index(frames.len());
        stream[starts[damaged] + bit / 8] ^= 1 << (bit % 8);
        let mut oracle = Oracle::new(kind, &memory, seed);
        let fault = oracle.run(&frames, &mut memory, &stream).expect_err("the damage shows");
        prop_assert_eq!(oracle.seen, damaged, "the frames before it are delivered");
        prop_assert_eq!(oracle.receiver.poll_step(&mut memory), Err(fault));
        prop_assert_eq!(oracle.receiver.poll_receive(None).0.bytes(), 0);
        oracle.check_memory(&memory);
    }

    /// A peer that signs nonsense: sound headers whose payloads never come as promised, then noise.
    #[test]
    fn a_hostile_stream_writes_nothing_that_was_not_offered(
        kind in kinds(),
        frames in sent_frames(6),
        promised in sent_frames(6),
        noise in prop::collection::vec(any::<u8>(), 0..3000),
        seed in any::<u64>(),
    ) {
        let mut memory = Memory::new();
        let (mut stream, _) = stream_of(kind, &promised, &memory);
        stream.truncate(Random(seed).below(stream.len() as u32) as usize);
        stream.extend(noise);
        let mut oracle = Oracle::new(kind, &memory, seed);
        // The caller's ideas about places and lengths have nothing to do with what comes.
        let mut left = &stream[..];
        let mut number = 0;
        'stream: while !left.is_empty() {
            let idea = &frames[number % frames.len()];
            let guess = idea.prediction();
            let (spans, whole) = oracle.receiver.poll_receive(guess);
            if let Some(guess) = guess.filter(|_| !whole) {
                oracle.expect(guess.part(0, SPILL_BYTES), None);
            }
            let taken = memory.deliver(&spans, left, oracle.random.chop());
            left = &left[taken..];
            oracle.receiver.handle_received(taken as u32);
            loop {
                match oracle.receiver.poll_step(&mut memory) {
                    Err(_) => break 'stream,
                    Ok(Step::NeedMore) => break,
                    Ok(Step::Destination(_)) => {
                        // Possibly too short for the payload: then it must not be used.
                        if let Some(to) = idea.destination() {
                            oracle.expect(to, None);
                        }
                        oracle.receiver.land(idea.destination());
                    }
                    Ok(Step::Frame { .. }) => number += 1,
                }
            }
        }
        oracle.check_memory(&memory);
    }
}

/// Tell the receiver everything at once, without cuts but the ends of spans.
fn receive_all(frames: &[Sent]) -> (Oracle, Memory) {
    let mut memory = Memory::new();
    let (stream, _) = stream_of(Kind::Payload, frames, &memory);
    let mut oracle = Oracle::new(Kind::Payload, &memory, 0);
    let mut left = &stream[..];
    while !left.is_empty() {
        let taken = oracle.turn(frames, &mut memory, left, usize::MAX).expect("sound");
        left = &left[taken..];
    }
    assert_eq!(oracle.seen, frames.len());
    (oracle, memory)
}

fn data(payload: u32, at: u32, guess: Guess) -> Sent {
    Sent { payload, source: at, place: Place::Arena(at), guess, followed: false }
}

#[test]
fn a_right_prediction_takes_one_receive_and_no_copy() {
    let frames: Vec<_> = (0..5).map(|n| data(100_000, n * 100_000, Guess::Right)).collect();
    let (oracle, _) = receive_all(&frames);
    assert_eq!((oracle.receives, oracle.copied), (5, 0));
}

#[test]
fn a_long_payload_without_prediction_is_copied_only_at_its_front() {
    let frames: Vec<_> = (0..2).map(|n| data(1 << 20, n << 20, Guess::None)).collect();
    let (oracle, _) = receive_all(&frames);
    assert_eq!(oracle.receives, 4);
    // The first frame comes unexpected, the second while long payloads are the rule.
    assert_eq!(oracle.copied, u64::from(SPILL_BYTES) + 8 * 1024);
}

#[test]
fn only_data_of_reads_and_writes_counts_as_data() {
    let mut memory = Memory::new();
    let mut sender = new_sender(Kind::Payload, 8);
    let payload = Some(span(SOURCE, 0, 1000));
    let data = Message::WriteData { transfer: 1, offset: 0, backlogged: false };
    let send = |sender: &mut Sender, memory: &mut Memory, most: u64| {
        let offered = sender.poll_send(memory).map_or(0, |spans| spans.bytes());
        sender.handle_sent(offered.min(most) as u32);
        sender.has_data()
    };
    let push = |sender: &mut Sender, message, payload| {
        sender.push(9, message, payload, Owner::NONE).expect("room");
        sender.has_data()
    };
    assert!(!push(&mut sender, Message::Ping { nonce: 1 }, None));
    let hello =
        Message::Hello { incarnation: 1, lane: LaneClass::Bulk, checksum: Checksum::Payload };
    assert!(!push(&mut sender, hello, payload), "its payload says who calls");
    assert!(push(&mut sender, data, payload));
    assert!(send(&mut sender, &mut memory, 2150), "a part of it is left");
    assert!(!send(&mut sender, &mut memory, u64::MAX) && sender.is_empty());
}

#[test]
fn a_long_payload_that_is_followed_takes_one_receive_and_no_copy() {
    let followed =
        |frame: u32| Sent { followed: frame < 5, ..data(300_000, frame * 300_000, Guess::None) };
    let frames: Vec<_> = (0..6).map(followed).collect();
    let (oracle, _) = receive_all(&frames);
    // The first one is a surprise; the last one's end is waited for alone.
    assert_eq!((oracle.receives, oracle.copied), (7, u64::from(SPILL_BYTES)));
}

/// A sender's batch as a receiver without predictions takes it in: receives, and bytes copied.
fn sent_and_received(payloads: &[u32]) -> (usize, u64) {
    let mut memory = Memory::new();
    let frame =
        |(number, &payload): (usize, &u32)| data(payload, number as u32 * 50_000, Guess::None);
    let frames: Vec<Sent> = payloads.iter().enumerate().map(frame).collect();
    let mut sender = new_sender(Kind::Payload, 64);
    push_some(&mut sender, &frames, &mut 0, &memory);
    let spans = sender.poll_send(&mut memory).expect("frames wait");
    let stream: Vec<u8> =
        spans.as_slice().iter().flat_map(|span| memory.bytes(*span)).copied().collect();
    let mut oracle = Oracle::new(Kind::Payload, &memory, 0);
    let mut left = &stream[..];
    while !left.is_empty() {
        let taken = oracle.turn(&frames, &mut memory, left, usize::MAX).expect("sound");
        left = &left[taken..];
    }
    assert_eq!(oracle.seen, frames.len(), "one batch");
    (oracle.receives, oracle.copied)
}

#[test]
fn a_short_frame_between_long_ones_costs_no_receive_of_its_own() {
    // The first long one is a surprise: all of these come with its header.
    let spill = u64::from(SPILL_BYTES);
    let (receives, copied) = sent_and_received(&[300_000, 4096, 50_000, 50_000]);
    // Its rest; the short one with the next header and some of its payload; two times a rest.
    assert!(receives == 5 && copied <= spill + 8 * 1024, "{receives} {copied}");
    assert_eq!(sent_and_received(&[300_000, 50_000, 50_000]), (4, spill));
}

#[test]
fn a_frame_that_was_said_to_follow_and_is_late_costs_nothing_once_the_receive_ends() {
    let frames =
        [Sent { followed: true, ..data(300_000, 0, Guess::None) }, data(9, 400_000, Guess::None)];
    let mut memory = Memory::new();
    let (stream, starts) = stream_of(Kind::Payload, &frames, &memory);
    let mut oracle = Oracle::new(Kind::Payload, &memory, 0);
    let mut at = 0;
    while at < starts[1] {
        at += oracle.turn(&frames, &mut memory, &stream[at..starts[1]], usize::MAX).expect("sound");
    }
    // A receive that ends early, because it was cancelled: all of the payload is there.
    assert_eq!((oracle.seen, oracle.receiver.inside_frame()), (1, None));
    while at < stream.len() {
        at += oracle.turn(&frames, &mut memory, &stream[at..], 40).expect("sound");
    }
    assert_eq!(oracle.seen, 2);
    oracle.check_memory(&memory);
}

#[test]
fn many_small_frames_are_parsed_from_one_receive() {
    let frames: Vec<_> = (0..1000).map(|n| data(n % 150, n * 200, Guess::None)).collect();
    let (oracle, _) = receive_all(&frames);
    assert_eq!(oracle.receives, 1);
}

#[test]
fn an_abandoned_payload_leaves_its_destination_alone_and_the_stream_goes_on() {
    let frames = [data(200_000, 0, Guess::Right), data(50, 300_000, Guess::None)];
    let mut memory = Memory::new();
    let (stream, _) = stream_of(Kind::Payload, &frames, &memory);
    let before = memory.bytes(span(ARENA, 1000, 199_000)).to_vec();
    let mut receiver = new_receiver(Kind::Payload);
    let (spans, _) = receiver.poll_receive(frames[0].prediction());
    assert_eq!(memory.deliver(&spans, &stream, 1064), 1064);
    receiver.handle_received(1064);
    assert!(matches!(receiver.poll_step(&mut memory), Ok(Step::Destination(_))));
    receiver.land(frames[0].destination());
    assert_eq!(receiver.poll_step(&mut memory), Ok(Step::NeedMore));
    receiver.abandon();
    let mut left = &stream[1064..];
    let mut ends = Vec::new();
    while !left.is_empty() {
        let (spans, _) = receiver.poll_receive(None);
        let taken = memory.deliver(&spans, left, usize::MAX);
        left = &left[taken..];
        receiver.handle_received(taken as u32);
        loop {
            match receiver.poll_step(&mut memory).expect("sound") {
                Step::NeedMore => break,
                Step::Destination(_) => receiver.land(frames[1].destination()),
                Step::Frame { landed, intact, .. } => ends.push((landed, intact)),
            }
        }
    }
    assert_eq!(ends, [(None, true), (frames[1].destination(), true)]);
    assert!(memory.bytes(span(ARENA, 1000, 199_000)) == before);
}

/// Marks the frames of a batch of `bytes` bytes that begins at `at`: long ones behind which comes
/// another that is long or has no payload.
fn mark_followed(frames: &mut [Sent], starts: &[usize], at: usize, bytes: u64) {
    let end = at + bytes as usize;
    let starts = starts.iter().zip(frames).filter(|(start, _)| (at..end).contains(*start));
    let mut inside: Vec<_> = starts.map(|(_, frame)| frame).collect();
    // Of short ones many come with one receive anyway.
    let is_long = |payload: u32| payload >= 32 * 1024;
    for at in 1..inside.len() {
        let next = inside[at].payload;
        inside[at - 1].followed = is_long(inside[at - 1].payload) && (next == 0 || is_long(next));
    }
}

/// Push what fits, as a lane does between sends. Payloads short enough go by value every other
/// time.
fn push_some(sender: &mut Sender, frames: &[Sent], pushed: &mut usize, memory: &Memory) {
    while let Some(sent) = frames.get(*pushed) {
        let number = *pushed;
        let message = sent.message(number);
        // Every fifth frame is nobody's.
        let owner = if number % 5 == 4 { Owner::NONE } else { Owner(number as u64) };
        let room = sender.room();
        let by_value = number.is_multiple_of(2) && sent.payload as usize <= INLINE_BYTES_MAX;
        let taken = if by_value {
            sender.push_inline(9, message, memory.bytes(sent.source()), owner)
        } else {
            sender.push(9, message, Some(sent.source()), owner)
        };
        match taken {
            Ok(()) => *pushed += 1,
            Err(Full) => {
                assert!(room == 0 || by_value);
                assert!(!sender.is_empty(), "an empty queue has room");
                return;
            }
        }
    }
}

fn owned(numbers: core::ops::Range<usize>) -> Vec<Owner> {
    numbers.filter(|number| number % 5 != 4).map(|number| Owner(number as u64)).collect()
}

fn check_batch(spans: &Spans, starts: &[usize], at: usize) {
    assert!(spans.as_slice().len() <= SPANS_PER_OP_MAX && spans.bytes() > 0);
    // Only a frame's own length may take a batch past the limit.
    let alone = starts.iter().find(|start| **start > at).map_or(usize::MAX, |end| end - at) as u64;
    assert!(spans.bytes() <= BATCH_BYTES_MAX.max(alone));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn short_sends_give_the_exact_stream(
        kind in kinds(),
        frames in sent_frames(60),
        capacity in 1..40_usize,
        seed in any::<u64>(),
    ) {
        let mut memory = Memory::new();
        let mut frames = frames;
        frames.iter_mut().for_each(|frame| frame.followed = false);
        let (stream, starts) = stream_of(kind, &frames, &memory);
        let mut random = Random(seed);
        let mut sender = new_sender(kind, capacity);
        let (mut pushed, mut wire, mut owners) = (0, Vec::<u8>::new(), Vec::new());
        let mut batch_end = 0;
        while wire.len() < stream.len() {
            push_some(&mut sender, &frames, &mut pushed, &memory);
            let spans = sender.poll_send(&mut memory).expect("frames wait");
            if wire.len() >= batch_end {
                mark_followed(&mut frames, &starts, wire.len(), spans.bytes());
                batch_end = wire.len() + spans.bytes() as usize;
            }
            check_batch(&spans, &starts, wire.len());
            prop_assert!(sender.in_flight());
            prop_assert_eq!(sender.poll_send(&mut memory), None, "one send at a time");
            let most = if random.below(8) == 0 { 0 } else { random.chop() };
            let offered: Vec<u8> =
                spans.as_slice().iter().flat_map(|span| memory.bytes(*span)).copied().collect();
            let taken = offered.len().min(most);
            wire.extend(&offered[..taken]);
            // Frames pushed while a send is in flight wait behind it.
            push_some(&mut sender, &frames, &mut pushed, &memory);
            sender.handle_sent(taken as u32);
            // Owners not taken use room: take all when they may use all of it.
            while (sender.is_empty() || random.below(3) > 0)
                && let Some(owner) = sender.poll_sent() {
                owners.push(owner);
            }
        }
        owners.extend(core::iter::from_fn(|| sender.poll_sent()));
        prop_assert!(wire == stream_of(kind, &frames, &memory).0, "the stream differs");
        prop_assert_eq!(owners, owned(0..frames.len()));
        prop_assert!(sender.is_empty());
        prop_assert_eq!(sender.queued_bytes(), 0);
        prop_assert_eq!(sender.frames_sent(), frames.len() as u64);
        prop_assert_eq!(sender.room(), capacity);
        prop_assert_eq!(sender.poll_send(&mut memory), None);
        prop_assert!(memory.guards_are_whole());
    }

    /// Batches are copied or lent as it happens, and the kernel lets go of them in any order. An
    /// owner hears of a frame in its order, and never before the kernel has let go of it and of all
    /// before it; scratch that is lent is not written.
    #[test]
    fn owners_hear_when_what_was_lent_is_back(
        kind in kinds(),
        frames in sent_frames(60),
        capacity in 1..60_usize,
        seed in any::<u64>(),
    ) {
        let mut memory = Memory::new();
        let mut frames = frames;
        frames.iter_mut().for_each(|frame| frame.followed = false);
        let (stream, starts) = stream_of(kind, &frames, &memory);
        let mut random = Random(seed);
        let mut batch_end = 0;
        let mut sender = new_sender(kind, capacity);
        sender.keep_apart(random.below(2) == 0);
        let (mut pushed, mut wire) = (0, Vec::<u8>::new());
        let (mut owners, mut taken_owners) = (Vec::new(), Vec::new());
        // What is lent, as it was, and where it lies in the stream.
        let mut loans: Vec<(Lent, Spans, Vec<u8>, usize)> = Vec::new();
        loop {
            push_some(&mut sender, &frames, &mut pushed, &memory);
            let could = sender.lendable();
            let lent = if random.below(2) == 0 { sender.poll_lend(&mut memory) } else { None };
            let (spans, lent) = match lent {
                Some((spans, lent)) => {
                    prop_assert_eq!(spans.bytes(), could);
                    (Some(spans), Some(lent))
                }
                None => (sender.poll_send(&mut memory), None),
            };
            if let Some(spans) = spans {
                if wire.len() >= batch_end {
                    mark_followed(&mut frames, &starts, wire.len(), spans.bytes());
                    batch_end = wire.len() + spans.bytes() as usize;
                }
                check_batch(&spans, &starts, wire.len());
                prop_assert_eq!(sender.lendable(), 0, "one send at a time");
                let bytes: Vec<u8> =
                    spans.as_slice().iter().flat_map(|span| memory.bytes(*span)).copied().collect();
                let most = if random.below(8) == 0 { 0 } else { random.chop() };
                let taken = bytes.len().min(most);
                if let Some(lent) = lent {
                    loans.push((lent, spans, bytes.clone(), wire.len()));
                }
                wire.extend(&bytes[..taken]);
                sender.handle_sent(taken as u32);
            }
            for (_, spans, bytes, _) in &loans {
                let now = spans.as_slice().iter().flat_map(|span| memory.bytes(*span));
                prop_assert!(now.eq(bytes.iter()), "what is lent was written");
            }
            prop_assert_eq!(sender.is_lending(), !loans.is_empty());
            taken_owners.extend(core::iter::from_fn(|| sender.poll_taken()));
            let stuck = sender.room() == 0 || (wire.len() == stream.len());
            while !loans.is_empty() && (stuck || random.below(4) == 0) {
                let (lent, ..) = loans.swap_remove(random.below(loans.len() as u32) as usize);
                sender.take_back(lent);
            }
            owners.extend(core::iter::from_fn(|| sender.poll_sent()));
            // The frame that begins where the oldest loan begins, or holds that place, is not free.
            if let Some(oldest) = loans.iter().map(|loan| loan.3).min() {
                let lent_from = starts.iter().filter(|start| **start <= oldest).count() - 1;
                prop_assert!(owners.len() <= owned(0..lent_from).len(), "an owner heard too early");
            }
            if wire.len() == stream.len() && loans.is_empty() {
                break;
            }
        }
        prop_assert!(wire == stream_of(kind, &frames, &memory).0, "the stream differs");
        prop_assert_eq!(&owners, &owned(0..frames.len()));
        prop_assert_eq!(taken_owners, owners);
        prop_assert_eq!((sender.room(), sender.is_between_batches()), (capacity, true));
        prop_assert!(memory.guards_are_whole());
    }

    #[test]
    fn a_lost_lane_hands_back_every_owner_once(
        frames in sent_frames(40),
        seed in any::<u64>(),
    ) {
        let mut memory = Memory::new();
        let mut random = Random(seed);
        let mut sender = new_sender(Kind::Payload, 30);
        let (mut pushed, mut owners) = (0, Vec::new());
        for _ in 0..random.below(6) {
            push_some(&mut sender, &frames, &mut pushed, &memory);
            if sender.poll_send(&mut memory).is_some() {
                sender.handle_sent(random.chop() as u32);
            }
        }
        push_some(&mut sender, &frames, &mut pushed, &memory);
        owners.extend(core::iter::from_fn(|| sender.poll_sent()));
        owners.extend(sender.drain());
        prop_assert_eq!(owners, owned(0..pushed));
        prop_assert_eq!((sender.is_empty(), sender.queued_bytes(), sender.room()), (true, 0, 30));
        // The next epoch starts with a whole frame.
        let hello = Message::Hello { incarnation: 1, lane: LaneClass::Bulk, checksum: Checksum::Payload };
        sender.push_inline(10, hello, b"alpha", Owner(1)).expect("room");
        let spans = sender.poll_send(&mut memory).expect("a frame waits");
        let frame = Frame { epoch: 10, message: hello, payload: 5, payload_crc: crc32c(b"alpha"), followed: false };
        let expected = [&frame.encode()[..], b"alpha"].concat();
        prop_assert_eq!(memory.bytes(spans.as_slice()[0]), expected);
        prop_assert_eq!(spans.as_slice().len(), 1);
    }

    /// Both ends and a wire of random pieces between them. Now and then a payload is rewritten
    /// after its checksum was taken, as a client may do.
    #[test]
    fn what_is_sent_arrives(kind in kinds(), frames in sent_frames(30), seed in any::<u64>()) {
        let mut memory = Memory::new();
        let pristine = memory.segments[SOURCE.0 as usize].clone();
        let mut random = Random(seed);
        let mut sender = new_sender(kind, 8);
        let mut oracle = Oracle::new(kind, &memory, seed);
        let (mut pushed, mut sent, mut wire) = (0, 0, Vec::<u8>::new());
        while oracle.seen < frames.len() {
            push_some(&mut sender, &frames, &mut pushed, &memory);
            if let Some(spans) = sender.poll_send(&mut memory) {
                let rewritten = spans.as_slice().iter().find(|span| span.segment == SOURCE).copied();
                // Without checksums of payloads nobody would notice.
                let rewritten =
                    rewritten.filter(|_| kind != Kind::Header && random.below(6) == 0);
                if let Some(span) = rewritten {
                    memory.bytes_mut(span)[0] ^= 1;
                }
                let offered: Vec<u8> =
                    spans.as_slice().iter().flat_map(|span| memory.bytes(*span)).copied().collect();
                let taken = offered.len().min(random.chop());
                wire.extend(&offered[..taken]);
                memory.segments[SOURCE.0 as usize].copy_from_slice(&pristine);
                sender.handle_sent(taken as u32);
                sent += core::iter::from_fn(|| sender.poll_sent()).count();
            }
            let most = random.chop();
            let taken = oracle.turn(&frames, &mut memory, &wire, most)
                .expect("a rewritten payload is no peer's fault");
            wire.drain(..taken);
        }
        prop_assert_eq!(sent, owned(0..frames.len()).len());
        prop_assert!(wire.is_empty());
        oracle.check_memory(&memory);
    }
}

#[test]
fn control_frames_leave_as_one_span() {
    let mut memory = Memory::new();
    let mut sender = new_sender(Kind::Payload, 64);
    for nonce in 0..64 {
        sender.push(1, Message::Ping { nonce }, None, Owner::NONE).expect("room");
    }
    assert_eq!(sender.push(1, Message::Ping { nonce: 64 }, None, Owner::NONE), Err(Full));
    let spans = sender.poll_send(&mut memory).expect("frames wait");
    assert_eq!(spans.as_slice().len(), 1);
    assert_eq!(spans.bytes(), 64 * HEADER_BYTES as u64);
}

#[test]
fn a_batch_ends_where_scratch_ends() {
    let mut memory = Memory::new();
    let mut sender = new_sender(Kind::Payload, 300);
    for nonce in 0..300 {
        sender.push(1, Message::Ping { nonce }, None, Owner::NONE).expect("room");
    }
    let mut batches = 0;
    while let Some(spans) = sender.poll_send(&mut memory) {
        assert!(spans.bytes() <= u64::from(Sender::SCRATCH_BYTES));
        sender.handle_sent(spans.bytes() as u32);
        batches += 1;
    }
    assert!(batches > 1 && sender.is_empty());
    assert!(memory.guards_are_whole());
}

#[test]
fn the_longest_frame_is_sent_alone() {
    for kind in KINDS {
        let mut memory = Memory::new();
        let mut sender = new_sender(kind, 4);
        let message = |transfer| Message::WriteData { transfer, offset: 0, backlogged: false };
        for transfer in 0..2 {
            let payload = span(SOURCE, 0, PAYLOAD_BYTES_MAX);
            sender.push(1, message(transfer), Some(payload), Owner(transfer)).expect("room");
        }
        let spans = sender.poll_send(&mut memory).expect("frames wait");
        assert_eq!(spans.bytes(), u64::from(PAYLOAD_BYTES_MAX) + header_bytes(kind) as u64);
        let too_long = vec![0; INLINE_BYTES_MAX + 1];
        assert_eq!(sender.push_inline(1, message(3), &too_long, Owner::NONE), Err(Full));
        assert!(memory.guards_are_whole());
    }
}

/// Frames of equal payloads in the order of these numbers; each is sealed as the one of its number.
fn in_order(protection: Protection, order: &[usize]) -> (usize, Result<(), PeerFault>) {
    let frames: Vec<Sent> = (0..6).map(|n| data(1000, n * 2000, Guess::None)).collect();
    let mut memory = Memory::new();
    let kind = Kind::Sealed(protection);
    let (stream, mut starts) = stream_of(kind, &frames, &memory);
    starts.push(stream.len());
    let mut oracle = Oracle::new(kind, &memory, 1);
    let stream: Vec<u8> =
        order.iter().flat_map(|&n| stream[starts[n]..starts[n + 1]].iter().copied()).collect();
    let outcome = oracle.run(&frames, &mut memory, &stream);
    (oracle.seen, outcome)
}

#[test]
fn a_frame_that_is_repeated_left_out_or_out_of_turn_ends_the_stream() {
    for protection in [Protection::Integrity, Protection::Encrypted] {
        assert_eq!(in_order(protection, &[0, 1, 2, 3, 4, 5]), (6, Ok(())));
        let fault = Err(PeerFault::Seal);
        assert_eq!(in_order(protection, &[0, 1, 1, 2]), (2, fault), "repeated");
        assert_eq!(in_order(protection, &[0, 2]), (1, fault), "left out");
        assert_eq!(in_order(protection, &[1, 0]), (0, fault), "out of turn");
        assert_eq!(in_order(protection, &[0, 1, 2, 0]), (3, fault), "an old one");
    }
}

#[test]
fn frames_of_another_key_or_seal_end_the_stream() {
    for (one, other) in [(KINDS[0], 1), (KINDS[1], 2), (KINDS[2], 1), (KINDS[3], 1)] {
        let frames = [data(100, 0, Guess::None)];
        let mut memory = Memory::new();
        let (stream, _) = stream_of(one, &frames, &memory);
        let mut oracle = Oracle::new(KINDS[other], &memory, 1);
        let outcome = oracle.run(&frames, &mut memory, &[&stream[..], &[0; 200]].concat());
        assert_eq!(outcome, Err(PeerFault::Seal), "{one:?}");
    }
    let frames = [data(100, 0, Guess::None)];
    let mut memory = Memory::new();
    let kind = Kind::Sealed(Protection::Encrypted);
    let (stream, _) = stream_of(kind, &frames, &memory);
    let mut oracle = Oracle::new(kind, &memory, 1);
    let other = Seal::keyed(Protection::Encrypted, FrameKey::new([7; 16]));
    let scratch = span(RECEIVER_SCRATCH, u64::from(GUARD), Receiver::SCRATCH_BYTES);
    oracle.receiver = Receiver::with_seal(other, scratch);
    assert_eq!(oracle.run(&frames, &mut memory, &stream), Err(PeerFault::Seal));
}

#[test]
fn a_payload_without_a_checksum_is_taken_as_it_is_and_one_with_a_checksum_ends_the_stream() {
    let frames = [data(1000, 0, Guess::None)];
    let mut memory = Memory::new();
    let (mut stream, _) = stream_of(Kind::Header, &frames, &memory);
    *stream.last_mut().expect("a payload") ^= 1;
    // What was sent, as far as the receiver can know.
    let source = frames[0].source();
    memory.bytes_mut(source)[source.length as usize - 1] ^= 1;
    let mut oracle = Oracle::new(Kind::Header, &memory, 1);
    assert_eq!(oracle.run(&frames, &mut memory, &stream), Ok(()));
    assert_eq!(oracle.intact, [true]);

    let (stream, _) = stream_of(Kind::Payload, &frames, &memory);
    let mut oracle = Oracle::new(Kind::Header, &memory, 1);
    assert_eq!(oracle.run(&frames, &mut memory, &stream), Err(PeerFault::UnaskedSum));
}

#[test]
fn checksums_end_with_the_frame_that_says_so() {
    let frames = [data(1000, 0, Guess::None), data(1000, 2000, Guess::None)];
    let mut memory = Memory::new();
    let mut sender = new_sender(Kind::Payload, 4);
    let mut sums = Vec::new();
    for sent in &frames {
        let message = Message::WriteData { transfer: 1, offset: 0, backlogged: false };
        sender.push(1, message, Some(sent.source()), Owner::NONE).expect("room");
        let spans = sender.poll_send(&mut memory).expect("a frame waits");
        let header = memory.bytes(spans.as_slice()[0]);
        let header: &[u8; HEADER_BYTES] = header.first_chunk().expect("a header first");
        sums.push(Frame::parse(header).expect("a sound header").payload_crc != 0);
        sender.handle_sent(spans.bytes() as u32);
        sender.set_sums(false);
    }
    assert_eq!(sums, [true, false]);
}

#[test]
fn an_encrypted_stream_shows_nothing_and_a_sealed_header_shows_no_key() {
    let frames = [data(70_000, 0, Guess::None), data(70_000, 0, Guess::None)];
    let memory = Memory::new();
    let (stream, starts) = stream_of(Kind::Sealed(Protection::Encrypted), &frames, &memory);
    let plain = memory.bytes(frames[0].source());
    for window in plain.chunks_exact(16).take(200) {
        assert!(!stream.windows(16).any(|bytes| bytes == window), "a piece of the payload");
    }
    assert!(stream[..starts[1]] != stream[starts[1]..], "the same frame twice looks different");
    let shown = format!("{:?} {:?}", FrameKey::new(KEY), seal(Kind::Sealed(Protection::Encrypted)));
    assert!(!shown.contains("115") && !shown.contains("sixteen"), "{shown}");
}
