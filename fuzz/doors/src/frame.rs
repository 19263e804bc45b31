//! A peer's stream: what is understood has one encoding, and whatever way the stream is cut, and
//! wherever its payloads are guessed to go, the same frames come out and only offered memory is
//! written.
//!
//! An even first byte: the rest is a header. An odd one: then salts for two ways of cutting and for
//! where payloads go, then pieces, each a byte of flags and either a frame or raw bytes.

use std::sync::LazyLock;

use piped_core::ids::SegmentId;
use piped_core::io::{Io, Span};
use piped_core::limits::PAYLOAD_BYTES_MAX;
use piped_sim::{Faults, NodeId, SimKernel};
use piped_wire::{
    Frame, HEADER_BYTES, INLINE_LANDING_BYTES, Message, PeerFault, Receiver, SPILL_BYTES, Step,
};

use crate::Seed;
use crate::input::{Input, pattern};
use crate::samples::messages;
use crate::signed::{self, Header};

/// Checks the frame door with an input.
pub fn check(input: &[u8]) {
    let mut input = Input::new(input);
    if input.byte().is_multiple_of(2) {
        let bytes: Header = input.array();
        check_header(&bytes);
        check_header(&signed::header(*bytes[3..].first_chunk().expect("57 of 64")));
    } else {
        check_stream(input);
    }
}

/// Refused, or exactly one frame with exactly these bytes.
fn check_header(bytes: &Header) {
    let frame = match Frame::parse(bytes) {
        Ok(frame) => frame,
        Err(fault) => return assert!(!fault.to_string().is_empty()),
    };
    assert_eq!(&frame.encode(), bytes, "{frame:?}");
    assert!(frame.payload <= PAYLOAD_BYTES_MAX);
    // No bit is without a meaning, also if the checksum is right.
    for bit in 0..signed::FREE_BYTES * 8 {
        let mut free = signed::free(&frame);
        free[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(Frame::parse(&signed::header(free)), Ok(frame), "bit {bit}");
    }
    match frame.message {
        Message::Read { offset, length, from, .. } => {
            assert!(offset.checked_add(length).is_some() && u64::from(from) <= length);
        }
        Message::Write { offset, length, .. } => assert!(offset.checked_add(length).is_some()),
        Message::Data { offset, .. } | Message::WriteData { offset, .. } => {
            assert!(offset.checked_add(frame.payload.into()).is_some());
        }
        Message::Open { name_length, .. } => {
            assert!(name_length > 0 && u32::from(name_length) <= frame.payload);
        }
        _ => {}
    }
}

/// Flags of a piece.
const RAW: u8 = 1;
const WRONG_CRC: u8 = 2;
const CUT: u8 = 4;
const LONG: u8 = 8;

/// Payloads are at most so long, so that an input is quickly through; a [`LONG`] one is longer than
/// the spill.
const PAYLOAD_SHORT_MAX: u32 = 40 * 1024;
const PIECES_MAX: usize = 16;

const ARENA_BYTES: u32 = 512 * 1024;
const GUARD: u64 = 64;

fn check_stream(mut input: Input<'_>) {
    let [first, second, places] = input.array();
    let mut stream = Vec::new();
    for _ in 0..PIECES_MAX {
        if input.is_empty() {
            break;
        }
        add_piece(&mut stream, &mut input);
    }
    let expected = Expected::of(&stream);
    for salt in [first, second] {
        let mut run = Run::new(salt, places);
        run.run(&stream, &expected);
    }
}

fn add_piece(stream: &mut Vec<u8>, input: &mut Input<'_>) {
    let flags = input.byte();
    if flags & RAW != 0 {
        let count = input.byte();
        return stream.extend(input.bytes(count.into()));
    }
    let mut header = signed::header(input.array());
    let promised = signed::payload_length(&header);
    let mut length = promised % (PAYLOAD_SHORT_MAX + 1);
    if flags & LONG != 0 {
        length += SPILL_BYTES;
    }
    // Most kinds have none, and are refused with one.
    if promised == 0 {
        length = 0;
    }
    // From another place for each frame.
    let payload = PATTERN[stream.len() % 1000..][..length as usize].to_vec();
    let crc = if length == 0 { 0 } else { signed::crc32c(&payload) };
    let wrong = u32::from(flags & WRONG_CRC != 0);
    signed::set_payload(&mut header, length, crc ^ wrong);
    stream.extend(header);
    let kept = if flags & CUT != 0 { length / 2 } else { length };
    stream.extend(&payload[..kept as usize]);
}

/// The stream's content, read without cuts and without haste.
struct Expected {
    /// Each frame, and where its payload begins.
    frames: Vec<(Frame, usize)>,
    fault: Option<PeerFault>,
}

impl Expected {
    fn of(stream: &[u8]) -> Self {
        let mut expected = Self { frames: Vec::new(), fault: None };
        let mut at = 0;
        while let Some(header) = stream[at..].first_chunk::<HEADER_BYTES>() {
            match Frame::parse(header) {
                Ok(frame) => {
                    let payload = at + HEADER_BYTES;
                    at = payload + frame.payload as usize;
                    // A payload that does not come ends what can be told.
                    if at > stream.len() {
                        break;
                    }
                    expected.frames.push((frame, payload));
                }
                Err(fault) => {
                    expected.fault = Some(fault);
                    break;
                }
            }
        }
        expected
    }
}

/// The stream, cut in one way.
struct Run {
    kernel: SimKernel,
    node: NodeId,
    receiver: Receiver,
    arena: SegmentId,
    scratch: SegmentId,
    /// Where in the arena something may have been written: from, to.
    offered: Vec<(usize, usize)>,
    salt: u8,
    places: u8,
    frames: usize,
    cuts: usize,
}

impl Run {
    fn new(salt: u8, places: u8) -> Self {
        let mut kernel = SimKernel::new(1, Faults::none());
        let node = kernel.add_node(0);
        let mut add = |length: u32| {
            let segment = kernel.add_segment(node, length.into());
            let whole = Span { segment, offset: 0, length };
            kernel.bytes_mut(node, whole).copy_from_slice(&UNTOUCHED[..length as usize]);
            segment
        };
        let arena = add(ARENA_BYTES);
        let scratch_bytes = <Receiver>::SCRATCH_BYTES;
        let scratch = add(scratch_bytes + 2 * GUARD as u32);
        let own = Span { segment: scratch, offset: GUARD, length: scratch_bytes };
        let offered = Vec::new();
        let receiver = Receiver::new(own);
        Self { kernel, node, receiver, arena, scratch, offered, salt, places, frames: 0, cuts: 0 }
    }

    fn run(&mut self, stream: &[u8], expected: &Expected) {
        let mut left = stream;
        let mut fault = None;
        while !left.is_empty() && fault.is_none() {
            let guess = self.guess(expected);
            let (spans, whole) = self.receiver.poll_receive(guess);
            assert!(spans.bytes() > 0, "there is always something to receive");
            if let Some(guess) = guess.filter(|_| !whole) {
                self.offer(guess.part(0, SPILL_BYTES));
            }
            let mut taken = 0;
            let most = self.chop().min(left.len());
            for span in spans.as_slice() {
                let piece = span.part(0, (most - taken).min(span.length as usize) as u32);
                self.kernel.io(self.node).store(&left[taken..taken + piece.length as usize], piece);
                taken += piece.length as usize;
            }
            left = &left[taken..];
            self.receiver.handle_received(taken as u32);
            fault = self.steps(stream, expected).err();
        }
        assert_eq!(fault, expected.fault, "frame {}", self.frames);
        assert_eq!(self.frames, expected.frames.len(), "all frames that are whole, and no other");
        if let Some(fault) = fault {
            assert_eq!(
                self.receiver.poll_step(&mut self.kernel.io(self.node)),
                Err(fault),
                "faults are final"
            );
            assert_eq!(self.receiver.poll_receive(None).0.bytes(), 0);
        }
        self.check_memory();
    }

    fn steps(&mut self, stream: &[u8], expected: &Expected) -> Result<(), PeerFault> {
        loop {
            match self.receiver.poll_step(&mut self.kernel.io(self.node))? {
                Step::NeedMore => return Ok(()),
                Step::Destination(frame) => match self.place(self.frames, frame.payload) {
                    Place::Arena(to) => {
                        self.offer(to);
                        self.receiver.land(Some(to));
                    }
                    Place::Inline => self.receiver.land_inline(),
                    Place::Nowhere => self.receiver.land(None),
                },
                Step::Frame { frame, landed, intact, copied } => {
                    let (wanted, payload) = expected.frames[self.frames];
                    assert_eq!(frame, wanted);
                    let payload = &stream[payload..payload + frame.payload as usize];
                    let lands = match self.place(self.frames, frame.payload) {
                        Place::Arena(_) => true,
                        Place::Inline => frame.payload <= INLINE_LANDING_BYTES,
                        Place::Nowhere => false,
                    };
                    assert_eq!(landed.is_some(), lands && frame.payload > 0);
                    if let Some(landed) = landed {
                        assert!(
                            self.kernel.bytes(self.node, landed) == payload,
                            "the payload differs"
                        );
                        assert_eq!(intact, signed::crc32c(payload) == frame.payload_crc);
                    } else {
                        assert!(intact, "what is not there is not damaged");
                    }
                    assert!(copied <= frame.payload + SPILL_BYTES);
                    self.frames += 1;
                }
            }
        }
    }

    /// Where a frame's payload goes; the same in every run.
    fn place(&self, number: usize, payload: u32) -> Place {
        let choice = mix(self.places, number, 0);
        let to = Span {
            segment: self.arena,
            offset: u64::from(choice >> 8) % u64::from(ARENA_BYTES),
            length: payload,
        };
        match choice % 8 {
            0 => Place::Inline,
            1 => Place::Nowhere,
            _ if to.offset + u64::from(payload) > ARENA_BYTES.into() => Place::Nowhere,
            _ => Place::Arena(to),
        }
    }

    /// Where the next frame's payload is guessed to go: nowhere, right, near or anywhere.
    fn guess(&self, expected: &Expected) -> Option<Span> {
        let choice = mix(self.salt, self.frames, 1);
        let right = expected.frames.get(self.frames).and_then(|(frame, _)| {
            match self.place(self.frames, frame.payload) {
                Place::Arena(to) => Some(to),
                Place::Inline | Place::Nowhere => None,
            }
        });
        let cut = |offset: u64, length: u32| {
            let offset = offset.min(ARENA_BYTES.into());
            Span { segment: self.arena, offset, length: length.min(ARENA_BYTES - offset as u32) }
        };
        match (choice % 4, right) {
            (0, _) => None,
            (1, Some(to)) => Some(to),
            (2, Some(to)) => Some(cut(to.offset + u64::from(choice >> 24), to.length + 70)),
            _ => Some(cut(u64::from(choice >> 8), choice >> 14)),
        }
    }

    /// How many bytes come at once: often a few, sometimes about a header, sometimes all.
    fn chop(&mut self) -> usize {
        self.cuts += 1;
        let choice = mix(self.salt, self.cuts, 2);
        let most = [1, 63, 64, 65, 300, 9_000, 70_000, 600_000][(choice % 8) as usize];
        1 + (choice >> 3) as usize % most
    }

    fn offer(&mut self, span: Span) {
        let start = span.offset as usize;
        self.offered.push((start, start + span.length as usize));
    }

    fn check_memory(&mut self) {
        let arena = Span { segment: self.arena, offset: 0, length: ARENA_BYTES };
        let memory = self.kernel.bytes(self.node, arena);
        self.offered.sort_unstable();
        self.offered.push((memory.len(), memory.len()));
        let mut kept_from = 0;
        for (from, to) in &self.offered {
            let kept = kept_from..(*from).max(kept_from);
            let whole = memory[kept.clone()] == UNTOUCHED[kept.clone()];
            assert!(whole, "written without being offered, somewhere in {kept:?}");
            kept_from = kept_from.max(*to);
        }
        for offset in [0, GUARD + u64::from(<Receiver>::SCRATCH_BYTES)] {
            let guard = Span { segment: self.scratch, offset, length: GUARD as u32 };
            let whole = self.kernel.bytes(self.node, guard)
                == &UNTOUCHED[offset as usize..][..GUARD as usize];
            assert!(whole, "scratch memory was overrun");
        }
    }
}

enum Place {
    Arena(Span),
    Inline,
    Nowhere,
}

/// Bytes of all payloads.
static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..1 << 20).map(|at| pattern(at, 5)).collect());

/// Memory as it was in the beginning.
static UNTOUCHED: LazyLock<Vec<u8>> = LazyLock::new(|| (0..1 << 20).map(|at| at as u8).collect());

/// A number that two salts make.
fn mix(salt: u8, number: usize, purpose: u32) -> u32 {
    let seed = (number as u32).wrapping_mul(0x9e37_79b9) ^ (u32::from(salt) << 16) ^ purpose;
    let mixed = (seed ^ (seed >> 15)).wrapping_mul(0x85eb_ca6b);
    (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35) ^ (mixed >> 16)
}

/// Every kind of frame as a header, and a few streams.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = messages()
        .into_iter()
        .map(|(name, frame)| (format!("header-{name}"), [&[0], &frame.encode()[..]].concat()))
        .collect();
    let piece = |flags: u8, frame: &Frame| [&[flags], &signed::free(frame)[..]].concat();
    let all: Vec<u8> = messages().iter().flat_map(|(_, frame)| piece(0, frame)).collect();
    let long: Vec<u8> = messages()
        .iter()
        .filter(|(_, frame)| frame.payload > 0)
        .flat_map(|(_, frame)| piece(LONG, frame))
        .collect();
    let data = messages().into_iter().find(|(name, _)| *name == "data").expect("there is").1;
    let wrong = [piece(WRONG_CRC, &data), piece(0, &data), piece(CUT, &data)].concat();
    let noise = [piece(0, &data), vec![RAW, 5, 1, 2, 3, 4, 5]].concat();
    for (name, pieces) in [("all", all), ("long", long), ("wrong", wrong), ("noise", noise)] {
        seeds.push((format!("stream-{name}"), [&[1, 7, 99, 3], &pieces[..]].concat()));
    }
    seeds
}
