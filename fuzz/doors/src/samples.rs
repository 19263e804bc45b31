//! A frame of every kind, as an honest peer writes it.

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::call::HEAD_BYTES;
use piped_core::link::{Checksum, LaneClass, ReportedStage};
use piped_core::request::{Class, Update};
use piped_core::status::Status;
use piped_wire::{After, Asker, Change, Frame, LastPart, Message};

/// Each with its name.
#[must_use]
pub fn messages() -> Vec<(&'static str, Frame)> {
    let bare = |message| Frame { epoch: 1, message, payload: 0, payload_crc: 0, followed: false };
    let with = |message, payload| Frame { payload, payload_crc: 0x0101_0101, ..bare(message) };
    let access = Access::READ_WRITE;
    let last = LastPart {
        status: Status::Ok,
        bytes: 9000,
        predicted_us: 90,
        margin_percent: 20,
        company: false,
        plan: 3,
    };
    let data = |last| Message::Data {
        transfer: 1,
        offset: 0,
        fragment: 65_536,
        backlogged: true,
        service_us: 12,
        last,
    };
    vec![
        ("data-followed", Frame { followed: true, ..with(data(None), 65_536) }),
        (
            "hello-header",
            with(
                Message::Hello {
                    incarnation: 5,
                    lane: LaneClass::Latency,
                    checksum: Checksum::Header,
                },
                4,
            ),
        ),
        (
            "hello",
            with(
                Message::Hello {
                    incarnation: 5,
                    lane: LaneClass::Latency,
                    checksum: Checksum::Payload,
                },
                4,
            ),
        ),
        (
            "hello-bulk",
            with(
                Message::Hello {
                    incarnation: 5,
                    lane: LaneClass::Bulk,
                    checksum: Checksum::Payload,
                },
                4,
            ),
        ),
        ("ack", bare(ack())),
        ("refused", bare(Message::HelloRefused { status: Status::Denied })),
        (
            "open",
            with(
                Message::Open {
                    ticket: 3,
                    kind: OpenKind::File,
                    access,
                    create: Creation::OPEN,
                    name_length: 4,
                },
                9,
            ),
        ),
        (
            "opened",
            bare(Message::Opened { ticket: 1, status: Status::Ok, handle: 2, length: 1 << 16 }),
        ),
        ("close", bare(Message::Close { handle: 0 })),
        ("read", bare(read())),
        ("data", with(data(None), 8192)),
        ("data-last", with(data(Some(last)), 808)),
        (
            "end",
            bare(Message::End {
                transfer: 1,
                status: Status::Io,
                bytes: 4096,
                service_us: 10,
                fragment: 65_536,
                predicted_us: 20,
            }),
        ),
        ("write", bare(write())),
        (
            "write-data",
            with(Message::WriteData { transfer: 1, offset: 0, backlogged: false }, 5000),
        ),
        ("send", bare(send())),
        ("queued", bare(Message::Queued { transfer: 1 })),
        ("ready", bare(Message::Ready { transfer: 1, status: Status::Ok, handle: 3 })),
        ("update", bare(update(Change::Word { offset: 64, update: Update::Add(3) }))),
        ("notify", bare(update(Change::Notify { id: 4, after: After::Nothing }))),
        ("updated", bare(Message::Updated { transfer: 1, status: Status::Ok, value: 5 })),
        ("sync", bare(Message::Sync { transfer: 4, handle: 0, time_left_us: 1_000_000 })),
        ("call", with(call(None), HEAD_BYTES as u32)),
        ("call-once", with(call(Some((5, 2))), HEAD_BYTES as u32 + 9)),
        ("cancel", bare(Message::Cancel { transfer: 1 })),
        ("credit", bare(Message::Credit { bytes: 65_536, window: 1 << 20 })),
        (
            "report",
            bare(Message::Report {
                stage: ReportedStage::DiskRead,
                handle: 0,
                backlogged: true,
                last: true,
                weight: 90,
                size_bytes: 65_536,
                spread_bytes: 5_000,
                cost_ps: 90_000_000,
                slope_fs: 500_000,
                deviation_pm: 50,
            }),
        ),
        (
            "outcome",
            bare(Message::Outcome {
                handle: 0,
                length: 9000,
                plan: 3,
                latency_ns: 250_000,
                company: false,
            }),
        ),
        ("ping", bare(Message::Ping { nonce: 7 })),
        ("pong", bare(Message::Pong { nonce: 7 })),
    ]
}

/// An answer to a Hello.
#[must_use]
pub fn ack() -> Message {
    Message::HelloAck { incarnation: 9, credit_bytes: 1 << 20, requests_max: 64, sums: true }
}

/// A read of 9000 bytes.
#[must_use]
pub fn read() -> Message {
    Message::Read {
        transfer: 1,
        handle: 0,
        offset: 100,
        length: 9000,
        asker: Asker::alone(Class::Latency),
        from: 0,
        pieces: false,
        time_left_us: 1_000_000,
    }
}

/// A call; `once`: the number of one that is not to be carried out twice.
#[must_use]
pub fn call(once: Option<(u32, u8)>) -> Message {
    Message::Call {
        transfer: 1,
        handle: 0,
        answer_max: 4096,
        asker: Asker::alone(Class::Latency),
        once,
        time_left_us: 1_000_000,
    }
}

/// A message of 5000 bytes.
#[must_use]
pub fn send() -> Message {
    Message::Send {
        transfer: 1,
        handle: 0,
        tag: 2,
        length: 5000,
        sequence: 0,
        oldest: 0,
        time_left_us: 1_000_000,
    }
}

/// A change of a region, the first of its handle.
#[must_use]
pub fn update(change: Change) -> Message {
    Message::Update { transfer: 1, handle: 0, change, sequence: 0, behind: 0 }
}

/// A durable write of 5000 bytes.
#[must_use]
pub fn write() -> Message {
    Message::Write {
        transfer: 1,
        handle: 0,
        offset: 100,
        length: 5000,
        asker: Asker::alone(Class::Bulk),
        durable: true,
        pieces: false,
        fragment: 65_536,
        time_left_us: 1_000_000,
    }
}
