//! A whole shard between hostile peers: whatever bytes arrive on lanes that they dialled or that we
//! did, in whatever pieces and order operations end, nothing is touched that is not the lane's,
//! every request of our own ends once, and when the peers have gone nothing is left.
//!
//! The first byte chooses planner and calibration. Then come actions: a byte, and what it needs.

mod seeds;

use std::sync::LazyLock;

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::call::{CALL_BYTES_MAX, Call, Range};
use piped_core::ids::HandleId;
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::request::{ArenaBuffer, Class, Request, Update, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, OpenRequest};
use piped_wire::{Frame, HEADER_BYTES, Message};

use crate::client::{FILE, INBOX, OUTBOX, OWN_REGION, READ_ONLY, REMOTE};
use crate::input::{Input, pattern};
use crate::signed;
use crate::world::{OFFERED, World};

pub use seeds::seeds;

const ACTIONS_MAX: usize = 200;

/// Payloads made up for a frame are at most so long.
const PAYLOAD_MAX: u32 = 96 * 1024;

/// Bytes of all payloads.
static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..PAYLOAD_MAX as usize).map(|at| pattern(at, 9)).collect());

/// Checks the lane door with an input.
pub fn check(input: &[u8]) {
    talk(input).leave();
}

fn talk(input: &[u8]) -> Peers {
    let mut input = Input::new(input);
    let choice = input.byte();
    let planner = match choice & 3 {
        0 => PlannerMode::Auto,
        1 => PlannerMode::Whole,
        _ => PlannerMode::Fixed(16 * 1024),
    };
    let calibration = match choice >> 2 & 3 {
        0 => CalibrationMode::Live,
        1 => CalibrationMode::Frozen,
        _ => CalibrationMode::Off,
    };
    let world = World::new(planner, calibration);
    let mut peers = Peers { world, lanes: Vec::new(), opened: 0, heard: Vec::new() };
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        peers.act(&mut input);
        peers.world.turn();
        peers.read_all();
    }
    peers
}

/// Numbers of the actions.
mod action {
    pub(super) const FRAME: u8 = 0;
    pub(super) const RAW: u8 = 5;
    pub(super) const ACCEPT: u8 = 6;
    pub(super) const PEER: u8 = 7;
    pub(super) const END: u8 = 8;
    pub(super) const END_ALL: u8 = 9;
    pub(super) const WAIT: u8 = 10;
    pub(super) const ANSWER_OPEN: u8 = 11;
    pub(super) const SUBMIT: u8 = 12;
    pub(super) const OPEN_REMOTE: u8 = 13;
    pub(super) const CLOSE: u8 = 14;
}

/// Flags of a frame.
mod flag {
    /// The epoch as the input has it, not the lane's.
    pub(super) const EPOCH: u8 = 1;
    /// The number of the request that the shard asked last.
    pub(super) const TRANSFER: u8 = 2;
    /// The handle that the shard gave last.
    pub(super) const HANDLE: u8 = 4;
    pub(super) const WRONG_CRC: u8 = 8;
    pub(super) const CUT: u8 = 16;
    /// The payload stands in the input, behind its length.
    pub(super) const GIVEN: u8 = 32;
}

struct Peers {
    world: World,
    lanes: Vec<Lane>,
    /// What the client has opened at the peer.
    opened: u32,
    /// Messages from the shard.
    heard: Vec<Message>,
}

#[derive(Clone)]
struct Lane {
    epoch: u32,
    transfer: u64,
    handle: u32,
}

impl Peers {
    fn act(&mut self, input: &mut Input<'_>) {
        let action = input.byte() % 16;
        match action {
            action::FRAME..action::RAW => self.send_frame(input),
            action::RAW => {
                let lane = input.byte();
                let count = input.byte();
                let bytes = input.bytes(count.into());
                self.send(lane, bytes);
            }
            action::ACCEPT => self.world.call_in(),
            action::PEER => {
                let choice = input.byte() % 8;
                self.world.set_peer(choice != 7, choice != 6);
            }
            action::END => self.world.end(input.byte(), input.byte()),
            action::END_ALL => {
                self.world.end_all();
            }
            action::WAIT => self.world.wait(Nanos(1 << (input.byte() % 40))),
            action::ANSWER_OPEN => self.world.answer_open(input.byte() % 8 == 3),
            action::SUBMIT => self.submit(input),
            action::OPEN_REMOTE => self.open_remote(input.byte()),
            action::CLOSE => self.close(input.byte()),
            _ => self.set_mode(input.byte()),
        }
    }

    /// The lane that a byte of the input means, if there is any.
    fn place(&self, number: u8) -> Option<usize> {
        usize::from(number).checked_rem(self.lanes.len())
    }

    fn send(&mut self, lane: u8, bytes: &[u8]) {
        if let Some(line) = self.place(lane) {
            self.world.far().send(line, bytes);
        }
    }

    fn send_frame(&mut self, input: &mut Input<'_>) {
        let [number, flags] = input.array();
        let mut header = signed::header(input.array());
        let given = if flags & flag::GIVEN != 0 {
            let count = input.byte();
            Some(input.bytes(count.into()))
        } else {
            None
        };
        let Some(place) = self.place(number) else { return };
        let lane = &mut self.lanes[place];
        if flags & flag::EPOCH == 0 {
            signed::set_epoch(&mut header, lane.epoch);
        } else {
            lane.epoch = u32::from_le_bytes(*header[8..].first_chunk().expect("a header"));
        }
        if flags & flag::TRANSFER != 0 {
            signed::set_transfer(&mut header, lane.transfer);
        }
        if flags & flag::HANDLE != 0 {
            signed::set_handle(&mut header, lane.handle);
        }
        let length = signed::payload_length(&header);
        let payload = match given {
            Some(given) => given.to_vec(),
            None => PATTERN[..length.min(PAYLOAD_MAX) as usize].to_vec(),
        };
        let crc = if payload.is_empty() { 0 } else { signed::crc32c(&payload) };
        let wrong = u32::from(flags & flag::WRONG_CRC != 0);
        signed::set_payload(&mut header, payload.len() as u32, crc ^ wrong);
        let kept = if flags & flag::CUT != 0 { payload.len() / 2 } else { payload.len() };
        self.send(number, &header);
        self.send(number, &payload[..kept]);
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let [verb, handles, class] = input.array();
        let (offset, length) = (u64::from(input.short()), u64::from(input.short()));
        let handle = |number: u8| match number % 7 {
            0 | 1 => REMOTE,
            2 => OWN_REGION,
            3 => READ_ONLY,
            4 => FILE,
            5 => INBOX,
            _ => OUTBOX,
        };
        let (handle, to) = (handle(handles), handle(handles / 5));
        let buffer = ArenaBuffer { segment: 0, offset: offset / 2, length };
        let tag = length % 3;
        let (id, offset_of_word) = (length as u32 % 5, offset / 8 * 8);
        let verb = match verb % 13 {
            0 => Verb::Read { handle, offset, buffer, wanted: 0 },
            1 => Verb::Read { handle, offset, buffer, wanted: length / 2 * (length % 2) },
            2 => {
                let notify = (length % 7 == 3).then_some(length as u32 % 5);
                Verb::Write { handle, offset, buffer, durable: length % 2 == 1, notify }
            }
            3 => Verb::Copy { from: handle, from_offset: offset, to, to_offset: offset, length },
            4 => Verb::Sync { handle },
            5 => Verb::Send { handle, tag, buffer },
            6 => Verb::Receive { handle, tag: (tag > 0).then_some(tag), buffer },
            7 => {
                let update = match length % 2 {
                    0 => Update::Add(length),
                    _ => Update::CompareSwap { expected: tag, new: length },
                };
                Verb::Update { handle, offset: offset_of_word, update }
            }
            8 => Verb::Notify { handle, id },
            9 => Verb::Wait { handle, id, count: tag },
            10 => Verb::Flush { handle },
            11 => Verb::Cancel { target: length % 8 },
            _ => {
                let mut bytes = [0; CALL_BYTES_MAX];
                let call_bytes = CALLS[tag as usize].encode(&mut bytes).expect("it fits");
                self.world.put(buffer.offset, &bytes[..call_bytes.min(length as usize)]);
                Verb::Call { handle, buffer, call_bytes: call_bytes as u32 }
            }
        };
        let deadline = (class & 2 != 0).then(|| Nanos(1 << (class >> 2 & 31)));
        let class = if class & 1 == 0 { Class::Latency } else { Class::Bulk };
        let (no_wait, fence) = (length % 16 == 7, length % 8 == 5);
        self.world.submit(Request { verb, class, deadline, no_wait, fence }, offset % 8);
    }

    fn open_remote(&mut self, choice: u8) {
        let open = OpenRequest {
            kind: match choice & 5 {
                0 | 4 => OpenKind::File,
                1 => OpenKind::Region,
                _ => OpenKind::Channel,
            },
            name: OFFERED.to_owned(),
            path: if choice & 1 == 0 { b"file".to_vec() } else { Vec::new() },
            access: Access { write: choice & 2 == 0, ..Access::ALL },
            create: Creation::No,
        };
        // A handle that has its number already is not asked for again by the control thread.
        let handle = HandleId(REMOTE.0 + self.opened);
        self.opened += 1;
        self.world.open_remote(handle, open);
    }

    fn close(&mut self, choice: u8) {
        match choice % 8 {
            0 => self.world.close_session(),
            1 => self.world.withdraw(),
            2 => self.world.close_handle(HandleId(1 + u32::from(choice >> 3) % 5)),
            _ => {
                if let Some(line) = self.place(choice >> 2) {
                    self.world.hang_up(line);
                }
            }
        }
    }

    fn set_mode(&mut self, choice: u8) {
        self.world.command(match choice % 6 {
            0 => Command::SetPlanner(PlannerMode::Auto),
            1 => Command::SetPlanner(PlannerMode::Whole),
            2 => Command::SetPlanner(PlannerMode::Fixed(16_384 + u32::from(choice) * 512)),
            3 => Command::SetCalibration(CalibrationMode::Live),
            4 => Command::SetCalibration(CalibrationMode::Frozen),
            _ => Command::SetCalibration(CalibrationMode::Off),
        });
    }

    /// The shard sends sound frames, whatever it was sent.
    fn read_all(&mut self) {
        self.lanes.resize(self.world.lines(), Lane { epoch: 1, transfer: 0, handle: 0 });
        for (line, lane) in self.lanes.iter_mut().enumerate() {
            while let Some(header) = self.world.far().received(line).first_chunk::<HEADER_BYTES>() {
                let frame = Frame::parse(header).expect("the shard sends sound frames");
                let length = HEADER_BYTES + frame.payload as usize;
                if self.world.far().received(line).len() < length {
                    break;
                }
                self.world.far().take(line, length);
                lane.note(frame);
                self.heard.push(frame.message);
            }
        }
    }

    /// Everybody goes: first the peers, then the client.
    fn leave(mut self) {
        self.world.part();
        self.world.finish_all();
        let report = self.world.shard().report();
        assert!(report.peers.iter().flat_map(|peer| &peer.lanes).all(|lane| !lane.up));
        // What they reported can be shown.
        for stage in self.world.shard().stages() {
            let times = [stage.latency_seconds, stage.overhead_seconds, stage.per_byte_seconds];
            assert!(times.iter().all(|time| time.is_finite() && *time >= 0.0), "{stage:?}");
            assert!((0.0..=1.0).contains(&stage.confidence), "{stage:?}");
        }
        if let Some(explanation) = self.world.shard().explain(None) {
            assert!(!explanation.operation.is_empty());
        }
    }
}

impl Lane {
    fn note(&mut self, frame: Frame) {
        match frame.message {
            // On lanes that we dialled the epoch is ours to choose.
            Message::Hello { .. } => self.epoch = frame.epoch,
            Message::Opened { status: Status::Ok, handle, .. } => self.handle = handle,
            Message::Open { ticket, .. } => self.transfer = ticket,
            Message::Read { transfer, .. }
            | Message::Write { transfer, .. }
            | Message::Send { transfer, .. }
            | Message::Update { transfer, .. }
            | Message::Call { transfer, .. }
            | Message::Sync { transfer, .. } => self.transfer = transfer,
            // What a message is to be written to.
            Message::Ready { status: Status::Ok, handle, .. } => self.handle = handle,
            _ => {}
        }
    }
}

/// Calls of a client: what is known, a change, and what has a long answer.
const CALLS: [Call<'static>; 3] = [
    Call::Stat { path: b"" },
    Call::Truncate { length: 5_000 },
    Call::Extents { range: Range { offset: 0, length: 9_000 } },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages that the shard answers to a seed with, and how many of its own requests end.
    fn heard(name: &str) -> (Vec<Message>, u64) {
        let seed = seeds().into_iter().find(|(other, _)| other == name).expect("a seed");
        let peers = talk(&seed.1);
        let completed = peers.world.shard().report().counters.completed;
        (peers.heard, completed)
    }

    /// Seeds that are refused at the first frame would show nothing.
    #[test]
    fn seeds_reach_what_they_are_for() {
        let last_data = |messages: &[Message]| {
            let ok = |message: &Message| match message {
                Message::Data { last: Some(last), .. } => last.status == Status::Ok,
                _ => false,
            };
            messages.iter().any(ok)
        };
        let ended_ok = |messages: &[Message]| {
            let ok = |message: &Message| matches!(message, Message::End { status: Status::Ok, .. });
            messages.iter().any(ok)
        };
        assert!(last_data(&heard("read").0), "{:#?}", heard("read").0);
        assert!(last_data(&heard("region-read").0), "{:#?}", heard("region-read").0);
        assert!(ended_ok(&heard("write").0), "{:#?}", heard("write").0);
        assert!(ended_ok(&heard("region-write").0), "{:#?}", heard("region-write").0);
        for name in ["message", "message-received-first", "message-announced"] {
            assert!(ended_ok(&heard(name).0), "{name}: {:#?}", heard(name).0);
        }
        let once = ["ask-update", "ask-put-and-notify", "ask-put-and-notify-later"];
        for name in ["ask-small-read", "ask-write", "ask-send"].into_iter().chain(once) {
            assert_eq!(heard(name).1, 1, "{name}: {:#?}", heard(name).0);
        }
        let updated = |name| {
            let said = heard(name).0.into_iter().filter_map(|message| match message {
                Message::Updated { status, value, .. } => Some((status, value)),
                _ => None,
            });
            said.collect::<Vec<_>>()
        };
        // The second asks for what the first has done, and is told the same.
        let said = updated("region-update");
        assert!(said.len() == 5 && said[0] == said[1], "{said:?}");
        assert_eq!(said[3..], [(Status::Ok, 0), (Status::WouldBlock, 0)], "{said:?}");
        assert_eq!(updated("region-notify"), [(Status::Ok, 0)]);
        assert_eq!(heard("region-notify").1, 3, "two waits and a notification");
        let updates = |message: &&Message| matches!(message, Message::Update { .. });
        assert_eq!(heard("ask-update-and-again").0.iter().filter(updates).count(), 1);
        let heard_call = heard("call").0;
        assert!(last_data(&heard_call) && ended_ok(&heard_call), "{heard_call:#?}");
        let remove = heard("call-once").0;
        let ends = remove.iter().filter(|message| matches!(message, Message::End { .. }));
        assert_eq!(ends.count(), 2, "{remove:#?}");
        assert_eq!(heard("ask-call").1, 1, "{:#?}", heard("ask-call").0);
        let asks = |message: &Message| matches!(message, Message::Write { .. });
        assert!(heard("ask-copy").0.iter().any(asks), "{:#?}", heard("ask-copy").0);
    }
}
