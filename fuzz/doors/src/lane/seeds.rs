//! Talks of peers to begin with: those of an honest peer, and a few that are nearly so.

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::call::{CALL_BYTES_MAX, Call, Removed};
use piped_core::link::{Checksum, LaneClass};
use piped_core::request::Update;
use piped_core::status::Status;
use piped_wire::{After, Change, Frame, Message};

use super::{action, flag};
use crate::Seed;
use crate::samples::{ack, messages};
use crate::signed;

/// Talks of peers, as an honest one has them.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |name: &str, talk: Talk| seeds.push((name.to_owned(), talk.0));
    let sample = |name: &str| {
        let found = messages().into_iter().find(|(other, _)| *other == name);
        found.expect("there is one").1.message
    };
    let served = || Talk::new(2).accept().hello(0, LaneClass::Latency).open_file(0, true);
    add("read", served().frame(0, flag::HANDLE, sample("read"), 0).go().go());
    add(
        "write",
        served()
            .frame(0, flag::HANDLE, sample("write"), 0)
            .go()
            .frame(0, 0, sample("write-data"), 5000)
            .go()
            .go(),
    );
    let region = Talk::new(0).accept().hello(0, LaneClass::Latency).open_region(0);
    add("region-read", region.frame(0, flag::HANDLE, sample("read"), 0).go().go());
    let region = Talk::new(0).accept().hello(0, LaneClass::Latency).open_region(0);
    add(
        "region-write",
        region
            .accept()
            .hello(1, LaneClass::Bulk)
            .frame(1, 0, sample("write"), 0)
            .frame(1, 0, sample("write-data"), 5000)
            .go()
            .act(&[action::CLOSE, 1])
            .go(),
    );
    let call = |message, call: Call<'_>| {
        let mut bytes = [0; CALL_BYTES_MAX];
        let length = call.encode(&mut bytes).expect("it fits");
        let payload = length as u32;
        let frame = Frame { epoch: 0, message, payload, payload_crc: 0, followed: false };
        (frame, bytes[..length].to_vec())
    };
    let (stat, asked) = call(sample("call"), Call::Stat { path: b"" });
    let (cut, less) = call(sample("call"), Call::Truncate { length: 5 });
    add(
        "call",
        served().given(0, flag::HANDLE, stat, &asked).go().given(0, flag::HANDLE, cut, &less).go(),
    );
    let names = Access { names: true, ..Access::READ };
    let below = Talk::new(2).accept().hello(0, LaneClass::Latency).open(
        0,
        OpenKind::Directory,
        names,
        b"data",
    );
    let (remove, name) =
        call(sample("call-once"), Call::Remove { path: b"old", kind: Removed::File });
    add(
        "call-once",
        below.given(0, flag::HANDLE, remove, &name).go().given(0, flag::HANDLE, remove, &name).go(),
    );
    let mut others = served();
    for name in ["sync", "cancel", "report", "outcome", "ping", "close"] {
        others = others.frame(0, flag::HANDLE, sample(name), 0).go();
    }
    add("others", others);
    let mut wrong = served();
    for name in ["ack", "refused", "opened", "data", "end", "credit", "pong"] {
        wrong = wrong.accept().hello(1, LaneClass::Latency).frame(1, 0, sample(name), 0).go();
    }
    add("answers-nobody-asked-for", wrong);
    let two = Talk::new(2).accept().hello(0, LaneClass::Latency).open_file(0, false);
    add(
        "newer-epoch",
        two.frame(0, flag::HANDLE, sample("read"), 0)
            .accept()
            .epoch(1, LaneClass::Latency, 9)
            .go()
            .act(&[action::RAW, 1, 3, 1, 2, 3])
            .go(),
    );
    let channel = || {
        Talk::new(0).accept().hello(0, LaneClass::Latency).open(
            0,
            OpenKind::Channel,
            Access::ALL,
            b"data",
        )
    };
    let mut eager = sample("send");
    if let Message::Send { length, .. } = &mut eager {
        *length = 100;
    }
    let receive = [action::SUBMIT, 6, 5, 0, 0, 64, 0, 32];
    add("message", channel().frame(0, flag::HANDLE, eager, 100).go().act(&receive).go());
    add("message-received-first", channel().act(&receive).frame(0, flag::HANDLE, eager, 100).go());
    let mut all = sample("write");
    if let Message::Write { offset, .. } = &mut all {
        *offset = 0;
    }
    add(
        "message-announced",
        channel()
            .frame(0, flag::HANDLE, sample("send"), 0)
            .go()
            .act(&receive)
            .go()
            .frame(0, flag::HANDLE, all, 0)
            .frame(0, 0, sample("write-data"), 5000)
            .go()
            .frame(0, 0, sample("cancel"), 0)
            .go(),
    );
    let asking = || Talk::new(0).asking();
    let post = || Talk::new(0).asking_for(5).act(&[action::SUBMIT, 5, 0, 0, 0, 16, 0, 32]).go();
    let mut taken = sample("end");
    if let Message::End { status, bytes, .. } = &mut taken {
        (*status, *bytes) = (Status::Ok, 8192);
    }
    add("ask-send", post().frame(0, flag::TRANSFER, taken, 0).go());
    add(
        "ask-send-later",
        post()
            .frame(0, flag::TRANSFER, sample("queued"), 0)
            .frame(0, flag::TRANSFER, sample("ready"), 0)
            .go()
            .go()
            .act(&[action::CLOSE, 3])
            .go(),
    );
    let read = [action::SUBMIT, 0, 0, 0, 0, 16, 0, 32];
    add(
        "ask-read",
        asking()
            .act(&read)
            .go()
            .frame(0, flag::TRANSFER, sample("data"), 8192)
            .go()
            .act(&[action::CLOSE, 3])
            .go(),
    );
    let mut last = sample("data-last");
    if let Message::Data { offset, last: Some(part), .. } = &mut last {
        (*offset, part.bytes) = (0, 8192);
    }
    add("ask-small-read", asking().act(&read).go().frame(0, flag::TRANSFER, last, 8192).go().go());
    let mut told = sample("data-last");
    if let Message::Data { offset, last: Some(part), .. } = &mut told {
        (*offset, part.bytes) = (0, 96);
    }
    // Its length says that it is a stat.
    let stat = [action::SUBMIT, 12, 0, 0, 0, 16, 1, 32];
    add("ask-call", asking().act(&stat).go().frame(0, flag::TRANSFER, told, 96).go().go());
    let write = [action::SUBMIT, 2, 0, 0, 0, 16, 0, 32];
    let mut end = sample("end");
    if let Message::End { status, bytes, .. } = &mut end {
        (*status, *bytes) = (Status::Ok, 8192);
    }
    add("ask-write", asking().act(&write).go().go().frame(0, flag::TRANSFER, end, 0).go());
    if let Message::End { bytes, .. } = &mut end {
        *bytes = 361;
    }
    add(
        "ask-write-and-half-is-done",
        asking().act(&write).go().go().frame(0, flag::TRANSFER, end, 0).go(),
    );
    let region = || Talk::new(0).accept().hello(0, LaneClass::Latency).open_region(0);
    let swap = Update::CompareSwap { expected: 0, new: 9 };
    let early = After::Writes { client: 0, failed: 0 };
    add(
        "region-update",
        region()
            .frame(0, flag::HANDLE, sample("update"), 0)
            .frame(0, flag::HANDLE, sample("update"), 0)
            .go()
            .frame(0, flag::HANDLE, numbered(Change::Word { offset: 0, update: swap }, 1), 0)
            .frame(0, flag::HANDLE, numbered(Change::Notify { id: 4, after: early }, 2), 0)
            .frame(0, flag::HANDLE, numbered(Change::Notify { id: 4, after: After::Known }, 3), 0)
            .go(),
    );
    let [wait, notify] = [9, 8].map(|verb| [action::SUBMIT, verb, 2, 0, 0, 0, 4, 0]);
    let behind = region().act(&wait).frame(0, flag::HANDLE, sample("notify"), 0).go().act(&wait);
    add("region-notify", behind.act(&notify).go());
    let asking_region = || Talk::new(0).asking_for(1);
    let add_to_word = [action::SUBMIT, 7, 0, 0, 64, 0, 6, 0];
    add(
        "ask-update",
        asking_region().act(&add_to_word).go().frame(0, flag::TRANSFER, sample("updated"), 0).go(),
    );
    add(
        "ask-update-and-again",
        asking_region().act(&add_to_word).go().act(&[action::CLOSE, 3]).go().go(),
    );
    // Its length says that it notifies.
    let put = [action::SUBMIT, 2, 0, 0, 0, 16, 8, 32];
    let mut put_end = sample("end");
    if let Message::End { status, bytes, .. } = &mut put_end {
        (*status, *bytes) = (Status::Ok, 8200);
    }
    let asked = || asking_region().act(&put).go().go();
    add(
        "ask-put-and-notify",
        asked()
            .frame(0, flag::TRANSFER, put_end, 0)
            .frame(0, flag::TRANSFER, sample("updated"), 0)
            .go(),
    );
    let mut late = sample("updated");
    if let Message::Updated { status, value, .. } = &mut late {
        (*status, *value) = (Status::WouldBlock, 0);
    }
    add(
        "ask-put-and-notify-later",
        asked()
            .frame(0, flag::TRANSFER, late, 0)
            .frame(0, flag::TRANSFER, put_end, 0)
            .go()
            .go()
            .frame(0, flag::TRANSFER, sample("updated"), 0)
            .go(),
    );
    let copy = [action::SUBMIT, 3, 3, 0, 0, 16, 0, 32];
    add("ask-copy", asking().act(&copy).go().go().act(&[action::WAIT, 36]).go());
    add(
        "ask-late",
        asking()
            .act(&[action::SUBMIT, 0, 0, 2 | 10 << 2, 0, 16, 0, 32])
            .go()
            .act(&[action::WAIT, 20])
            .go()
            .act(&[action::CLOSE, 0])
            .go(),
    );
    seeds
}

/// A change with a number of its own.
fn numbered(change: Change, number: u32) -> Message {
    let (transfer, sequence) = (u64::from(number) + 1, number);
    Message::Update { transfer, handle: 0, change, sequence, behind: 0 }
}

/// An input under construction.
struct Talk(Vec<u8>);

impl Talk {
    fn new(modes: u8) -> Self {
        Self(vec![modes])
    }

    fn act(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn accept(self) -> Self {
        self.act(&[action::ACCEPT])
    }

    /// All that was asked of the kernel is done, twice: a frame is a header and what comes then.
    fn go(self) -> Self {
        self.act(&[action::END_ALL, action::END_ALL])
    }

    fn frame(self, lane: u8, flags: u8, message: Message, payload: u32) -> Self {
        let frame = Frame { epoch: 0, message, payload, payload_crc: 0, followed: false };
        self.act(&[action::FRAME, lane, flags]).act(&signed::free(&frame))
    }

    fn given(self, lane: u8, flags: u8, frame: Frame, payload: &[u8]) -> Self {
        self.act(&[action::FRAME, lane, flags | flag::GIVEN])
            .act(&signed::free(&frame))
            .act(&[payload.len() as u8])
            .act(payload)
    }

    fn hello(self, lane: u8, class: LaneClass) -> Self {
        self.epoch(lane, class, 1)
    }

    fn epoch(self, lane: u8, class: LaneClass, epoch: u32) -> Self {
        let message = Message::Hello { incarnation: 5, lane: class, checksum: Checksum::Payload };
        let frame = Frame { epoch, message, payload: 4, payload_crc: 0, followed: false };
        self.given(lane, flag::EPOCH, frame, b"beta").go()
    }

    /// A peer opens a file, to write it or not.
    fn open_file(self, lane: u8, write: bool) -> Self {
        self.open(lane, OpenKind::File, Access { write, ..Access::READ }, b"datafile")
    }

    /// A peer opens the region.
    fn open_region(self, lane: u8) -> Self {
        self.open(lane, OpenKind::Region, Access::ALL, b"data")
    }

    /// A peer opens something of which the name has four bytes.
    fn open(self, lane: u8, kind: OpenKind, access: Access, names: &[u8]) -> Self {
        let message =
            Message::Open { ticket: 3, kind, access, create: Creation::No, name_length: 4 };
        let frame = Frame {
            epoch: 1,
            message,
            payload: names.len() as u32,
            payload_crc: 0,
            followed: false,
        };
        self.given(lane, 0, frame, names).go().act(&[action::ANSWER_OPEN, 0]).go()
    }

    /// Both our lanes are up, and something is open at the peer.
    fn asking(self) -> Self {
        self.asking_for(0)
    }

    /// Both our lanes are up, and a thing of one of the kinds is open at the peer.
    fn asking_for(self, kind: u8) -> Self {
        let opened = Message::Opened { ticket: 0, status: Status::Ok, handle: 2, length: 1 << 16 };
        self.act(&[action::OPEN_REMOTE, kind])
            .go()
            .frame(0, 0, ack(), 0)
            .frame(1, 0, ack(), 0)
            .go()
            .frame(0, flag::TRANSFER, opened, 0)
            .go()
    }
}
