//! The parser of a peer's bytes: what was written is read back, everything else is refused.

use piped_core::access::{Access, Creation, NewFile, OpenKind};
use piped_core::call::{ANSWER_BYTES_MAX, CALL_BYTES_MAX, HEAD_BYTES};
use piped_core::limits::PAYLOAD_BYTES_MAX;
use piped_core::link::{Checksum, LaneClass, ReportedStage};
use piped_core::request::{Class, Update};
use piped_core::status::Status;
use piped_wire::{After, Asker, Change, Frame, HEADER_BYTES, LastPart, Message, PeerFault};
use proptest::prelude::*;

fn status() -> impl Strategy<Value = Status> {
    prop::sample::select(&Status::ALL[..])
}

fn lane() -> impl Strategy<Value = LaneClass> {
    proptest::sample::select(LaneClass::ALL.to_vec())
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Latency), Just(Class::Bulk)]
}

fn asker() -> impl Strategy<Value = Asker> {
    (class(), any::<u32>(), 1..=u8::MAX).prop_map(|(class, client, weight)| Asker {
        class,
        client,
        weight,
    })
}

fn stage() -> impl Strategy<Value = ReportedStage> {
    prop::sample::select(vec![
        ReportedStage::DiskRead,
        ReportedStage::DiskWrite,
        ReportedStage::Net,
        ReportedStage::Check,
        ReportedStage::DialNet,
        ReportedStage::DialReceive,
        ReportedStage::DialDiskWrite,
    ])
}

/// An offset and a length whose sum is a `u64`.
fn range() -> impl Strategy<Value = (u64, u64)> {
    any::<u64>().prop_flat_map(|offset| (Just(offset), 0..=u64::MAX - offset))
}

fn with_payload(
    message: impl Strategy<Value = Message>,
    least: u32,
    most: u32,
) -> impl Strategy<Value = Frame> {
    (any::<u32>(), message, least..=most, any::<u32>(), any::<bool>()).prop_map(
        |(epoch, message, payload, crc, followed)| Frame {
            epoch,
            message,
            payload,
            payload_crc: if payload == 0 { 0 } else { crc },
            followed: followed && payload > 0,
        },
    )
}

fn bare(message: impl Strategy<Value = Message>) -> impl Strategy<Value = Frame> {
    with_payload(message, 0, 0)
}

fn report() -> impl Strategy<Value = Message> {
    let figures = any::<(u32, bool, bool, u8, u32, u32, u64, u64, u32)>();
    (stage(), figures).prop_map(|(stage, figures)| {
        let (
            handle,
            backlogged,
            last,
            weight,
            size_bytes,
            spread_bytes,
            cost_ps,
            slope_fs,
            deviation_pm,
        ) = figures;
        Message::Report {
            stage,
            handle,
            backlogged,
            last,
            weight,
            size_bytes,
            spread_bytes,
            cost_ps,
            slope_fs,
            deviation_pm,
        }
    })
}

fn lane_frames() -> impl Strategy<Value = Frame> {
    let checksum = prop::sample::select(Checksum::ALL.as_slice());
    let hello = (any::<u64>(), lane(), checksum)
        .prop_map(|(incarnation, lane, checksum)| Message::Hello { incarnation, lane, checksum });
    let ack = any::<(u64, u64, u32, bool)>().prop_map(|it| {
        let (incarnation, credit_bytes, requests_max, sums) = it;
        Message::HelloAck { incarnation, credit_bytes, requests_max, sums }
    });
    let refused = status()
        .prop_filter("a refusal is not Ok", |status| *status != Status::Ok)
        .prop_map(|status| Message::HelloRefused { status });
    let outcome = (any::<(u32, bool)>(), 1..=u64::MAX, 1..=u32::MAX, 100..=1_000_000_000_000_u64)
        .prop_map(|((handle, company), length, plan, latency_ns)| Message::Outcome {
            handle,
            length,
            plan,
            latency_ns,
            company,
        });
    prop_oneof![
        with_payload(hello, 1, 64),
        bare(outcome),
        bare(ack),
        bare(refused),
        bare(
            (any::<u64>(), 1..=u64::MAX)
                .prop_map(|(bytes, window)| Message::Credit { bytes, window }),
        ),
        bare(report()),
        bare(any::<u64>().prop_map(|nonce| Message::Ping { nonce })),
        bare(any::<u64>().prop_map(|nonce| Message::Pong { nonce })),
    ]
}

fn creation() -> impl Strategy<Value = Creation> {
    (0..3_u8, 0..=NewFile::MODES, any::<bool>()).prop_map(|(kind, mode, parents)| {
        Creation::from_parts(kind, mode, parents).unwrap_or_default()
    })
}

fn handle_frames() -> impl Strategy<Value = Frame> {
    let open = (any::<(u64, bool, bool, bool)>(), creation(), 1..=255_u8).prop_flat_map(
        |((ticket, region, read, write), create, name_length)| {
            let kind = match (region, ticket % 2) {
                (true, 0) => OpenKind::Region,
                (true, _) => OpenKind::Directory,
                (false, 0) => OpenKind::Channel,
                (false, _) => OpenKind::File,
            };
            let access = Access { read, write, atomic: read, names: write };
            let message = Message::Open { ticket, kind, access, create, name_length };
            with_payload(Just(message), u32::from(name_length), 1152)
        },
    );
    let opened =
        (any::<(u64, u32, u64)>(), status()).prop_map(|((ticket, handle, length), status)| {
            let (handle, length) = if status == Status::Ok { (handle, length) } else { (0, 0) };
            Message::Opened { ticket, status, handle, length }
        });
    let sync = any::<(u64, u32, u32)>().prop_map(|(transfer, handle, time_left_us)| {
        Message::Sync { transfer, handle, time_left_us }
    });
    let end = (any::<(u64, u64, u32, u32, u32)>(), status()).prop_map(
        |((transfer, bytes, service_us, fragment, predicted_us), status)| Message::End {
            transfer,
            status,
            bytes,
            service_us,
            fragment,
            predicted_us,
        },
    );
    prop_oneof![
        open,
        bare(opened),
        bare(any::<u32>().prop_map(|handle| Message::Close { handle })),
        bare(sync),
        bare(any::<u64>().prop_map(|transfer| Message::Cancel { transfer })),
        bare(end),
    ]
}

fn transfer_frames() -> impl Strategy<Value = Frame> {
    let read = (any::<(u64, u32, u32)>(), range(), asker()).prop_flat_map(
        |((transfer, handle, time_left_us), (offset, length), asker)| {
            (0..=u32::try_from(length).unwrap_or(u32::MAX)).prop_map(move |from| Message::Read {
                transfer,
                handle,
                offset,
                length,
                asker,
                from,
                pieces: false,
                time_left_us,
            })
        },
    );
    let write = (any::<(u64, u32, bool, u32, u32)>(), range(), asker()).prop_map(
        |((transfer, handle, durable, fragment, time_left_us), (offset, length), asker)| {
            Message::Write {
                transfer,
                handle,
                offset,
                length,
                asker,
                durable,
                pieces: false,
                fragment,
                time_left_us,
            }
        },
    );
    let offset = 0..=u64::MAX - u64::from(PAYLOAD_BYTES_MAX);
    let last = prop::option::of((status(), any::<(u64, u32, u8, bool, u32)>()).prop_map(
        |(status, (bytes, predicted_us, margin_percent, company, plan))| LastPart {
            status,
            bytes,
            predicted_us,
            margin_percent,
            company,
            plan,
        },
    ));
    let data = (any::<(u64, u32, bool, u32)>(), offset.clone(), last).prop_flat_map(
        |((transfer, fragment, backlogged, service_us), offset, last)| {
            let message =
                Message::Data { transfer, offset, fragment, backlogged, service_us, last };
            with_payload(Just(message), u32::from(last.is_none()), PAYLOAD_BYTES_MAX)
        },
    );
    let write_data = (any::<(u64, bool)>(), offset).prop_map(|((transfer, backlogged), offset)| {
        Message::WriteData { transfer, offset, backlogged }
    });
    let send = (
        any::<(u64, u32, u64, u32, u32, u32)>(),
        1..=piped_core::limits::EAGER_BYTES_MAX,
        any::<bool>(),
    )
        .prop_flat_map(|(numbers, length, eager)| {
            let (transfer, handle, tag, sequence, oldest, time_left_us) = numbers;
            let message =
                Message::Send { transfer, handle, tag, length, sequence, oldest, time_left_us };
            let payload = if eager { length } else { 0 };
            with_payload(Just(message), payload, payload)
        });
    let ready = (any::<(u64, u32)>(), status()).prop_map(|((transfer, handle), status)| {
        let handle = if status == Status::Ok { handle } else { 0 };
        Message::Ready { transfer, status, handle }
    });
    let updated = (any::<(u64, u64)>(), status()).prop_map(|((transfer, value), status)| {
        let value = if status == Status::Ok { value } else { 0 };
        Message::Updated { transfer, status, value }
    });
    let pieces = (any::<(u64, u32, u32, bool)>(), 0..=u64::MAX, asker(), 1..=1024_u32)
        .prop_flat_map(|((transfer, handle, time_left_us, reads), length, asker, rows)| {
            let (offset, from, fragment, durable, pieces) = (0, 0, 65_536, false, true);
            let message = match reads {
                true => Message::Read {
                    transfer,
                    handle,
                    offset,
                    length,
                    asker,
                    from,
                    pieces,
                    time_left_us,
                },
                false => Message::Write {
                    transfer,
                    handle,
                    offset,
                    length,
                    asker,
                    durable,
                    pieces,
                    fragment,
                    time_left_us,
                },
            };
            with_payload(Just(message), 24 * rows, 24 * rows)
        });
    let once = prop::option::of(any::<(u32, u8)>());
    let calls = (any::<(u64, u32, u32)>(), 0..=ANSWER_BYTES_MAX as u32, asker(), once)
        .prop_flat_map(|((transfer, handle, time_left_us), answer_max, asker, once)| {
            let message = Message::Call { transfer, handle, answer_max, asker, once, time_left_us };
            with_payload(Just(message), HEAD_BYTES as u32, CALL_BYTES_MAX as u32)
        });
    prop_oneof![
        pieces,
        calls,
        bare(update()),
        bare(updated),
        bare(any::<u64>().prop_map(|transfer| Message::Queued { transfer })),
        bare(ready),
        send,
        bare(read),
        bare(write),
        data,
        with_payload(write_data, 1, PAYLOAD_BYTES_MAX)
    ]
}

fn update() -> impl Strategy<Value = Message> {
    let word = (0..u64::MAX / 8, any::<(bool, u64, u64)>()).prop_map(|(at, (add, one, two))| {
        let update = match add {
            true => Update::Add(one),
            false => Update::CompareSwap { expected: one, new: two },
        };
        Change::Word { offset: 8 * at, update }
    });
    let after = prop_oneof![
        Just(After::Nothing),
        any::<(u32, u32)>().prop_map(|(client, failed)| After::Writes { client, failed }),
        Just(After::Known),
    ];
    let notify = (any::<u32>(), after).prop_map(|(id, after)| Change::Notify { id, after });
    (any::<(u64, u32, u32, u8)>(), prop_oneof![word, notify]).prop_map(
        |((transfer, handle, sequence, behind), change)| Message::Update {
            transfer,
            handle,
            change,
            sequence,
            behind,
        },
    )
}

fn frames() -> impl Strategy<Value = Frame> {
    prop_oneof![lane_frames(), handle_frames(), transfer_frames()]
}

/// Recompute the checksum of a tampered header, as a hostile peer would.
fn signed(mut bytes: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..60]) as u32;
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_encoded_is_parsed_back(frame in frames()) {
        prop_assert_eq!(Frame::parse(&frame.encode()), Ok(frame));
    }

    #[test]
    fn a_single_flipped_bit_is_detected(frame in frames()) {
        let sound = frame.encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = sound;
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Frame::parse(&bytes).is_err(), "bit {} of {:?}", bit, frame);
        }
    }

    /// A hostile peer signs what it sends, so the checksum alone protects nothing. Whatever it says
    /// is refused, or is exactly one frame with exactly that encoding.
    #[test]
    fn a_signed_header_has_one_meaning_or_none(
        bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES),
        kind in 0..32_u8,
        blanks in any::<u64>(),
    ) {
        let version = plain(Message::Ping { nonce: 0 }).encode()[2];
        let mut header: [u8; HEADER_BYTES] = bytes.try_into().expect("of that length");
        // Many zeros, or no kind's unused fields would ever be right.
        for (place, byte) in header.iter_mut().enumerate() {
            if blanks >> place & 1 == 1 {
                *byte = 0;
            }
        }
        header[..4].copy_from_slice(&[b'p', b'D', version, kind]);
        let header = signed(header);
        if let Ok(frame) = Frame::parse(&header) {
            prop_assert_eq!(frame.encode(), header);
            prop_assert!(frame.payload <= PAYLOAD_BYTES_MAX);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES)) {
        let bytes: [u8; HEADER_BYTES] = bytes.try_into().expect("of that length");
        prop_assert!(Frame::parse(&bytes).is_err());
        let _ = Frame::parse(&signed(bytes));
    }

    /// Every bit of a sound header, flipped and signed: refused, or another frame, never ignored.
    #[test]
    fn no_bit_is_without_a_meaning(frame in frames()) {
        let sound = frame.encode();
        for bit in 0..(HEADER_BYTES - 4) * 8 {
            let mut bytes = sound;
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(Frame::parse(&signed(bytes)), Ok(frame), "bit {}", bit);
        }
    }
}

fn plain(message: Message) -> Frame {
    Frame { epoch: 1, message, payload: 0, payload_crc: 0, followed: false }
}

fn read(offset: u64, length: u64, from: u32) -> Message {
    let (transfer, handle, time_left_us) = (0x1112_1314_1516_1718, 0x2122_2324, 0x6162_6364);
    Message::Read {
        transfer,
        handle,
        offset,
        length,
        asker: Asker { class: Class::Latency, client: 0x0051_5253, weight: 9 },
        from,
        pieces: false,
        time_left_us,
    }
}

#[test]
fn faults_name_what_is_wrong() {
    let ping = plain(Message::Ping { nonce: 7 }).encode();
    let with = |place: usize, value: u8| {
        let mut bytes = ping;
        bytes[place] = value;
        bytes
    };
    assert!(matches!(Frame::parse(&with(0, b'x')), Err(PeerFault::BadMagic(_))));
    assert_eq!(Frame::parse(&with(2, 13)), Err(PeerFault::Version(13)));
    let text = PeerFault::Version(13).to_string();
    assert!(text.contains("frame version 13, this daemon version 12"), "{text}");
    assert!(matches!(Frame::parse(&with(24, 9)), Err(PeerFault::HeaderChecksum { .. })));
    assert_eq!(Frame::parse(&signed(with(3, 200))), Err(PeerFault::UnknownKind(200)));
    assert_eq!(Frame::parse(&signed(with(3, 0))), Err(PeerFault::UnknownKind(0)));
    let reserved = PeerFault::BadField { kind: 16, field: "reserved" };
    assert_eq!(Frame::parse(&signed(with(5, 1))), Err(reserved), "an unknown flag");
    let too_long = PeerFault::PayloadTooLong { kind: 16, length: 1, limit: 0 };
    assert_eq!(Frame::parse(&signed(with(12, 1))), Err(too_long));
    assert!(too_long.to_string().contains("exceeds 0"), "{too_long}");
}

#[test]
fn values_no_kind_allows_are_refused() {
    let refused = |frame: Frame, expected| match Frame::parse(&frame.encode()) {
        Err(PeerFault::BadField { field, .. }) => assert_eq!(field, expected),
        other => panic!("{frame:?} gave {other:?}"),
    };
    refused(plain(read(u64::MAX, 1, 0)), "length");
    refused(plain(read(0, 10, 11)), "from");
    let mut nobody = read(0, 10, 0);
    if let Message::Read { asker, .. } = &mut nobody {
        asker.weight = 0;
    }
    refused(plain(nobody), "weight");
    refused(plain(Message::Credit { bytes: 1, window: 0 }), "window");
    refused(plain(Message::HelloRefused { status: Status::Ok }), "status");
    let opened = Message::Opened { ticket: 1, status: Status::Denied, handle: 3, length: 0 };
    refused(plain(opened), "status");
    let ready = Message::Ready { transfer: 1, status: Status::Gone, handle: 3 };
    refused(plain(ready), "status");
    let send = |length| Message::Send {
        transfer: 1,
        handle: 2,
        tag: 3,
        length,
        sequence: 4,
        oldest: 4,
        time_left_us: 5,
    };
    refused(plain(send(0)), "length");
    // All of it, or nothing.
    refused(Frame { payload: 9, ..plain(send(10)) }, "length");
    let write_data = Message::WriteData { transfer: 1, offset: u64::MAX, backlogged: false };
    refused(Frame { payload: 1, ..plain(write_data) }, "offset");
    refused(Frame { payload_crc: 1, ..plain(Message::Ping { nonce: 1 }) }, "payload_crc");
    refused(Frame { followed: true, ..plain(Message::Ping { nonce: 1 }) }, "followed");
}

#[test]
fn payloads_keep_to_their_kinds_bounds() {
    let data = |payload, last| {
        let (transfer, offset, fragment, backlogged, service_us) = (1, 0, 0, false, 0);
        let message = Message::Data { transfer, offset, fragment, backlogged, service_us, last };
        Frame::parse(&Frame { payload, ..plain(message) }.encode())
    };
    let last = LastPart {
        status: Status::Ok,
        bytes: 0,
        predicted_us: 0,
        margin_percent: 0,
        company: false,
        plan: 0,
    };
    assert!(data(0, Some(last)).is_ok(), "the only frame of an empty file");
    assert_eq!(data(0, None), Err(PeerFault::PayloadTooShort { kind: 8, length: 0 }));
    assert!(data(PAYLOAD_BYTES_MAX, None).is_ok());
    assert!(matches!(data(PAYLOAD_BYTES_MAX + 1, None), Err(PeerFault::PayloadTooLong { .. })));
    let call = |payload, answer_max, weight| {
        let asker = Asker { weight, ..Asker::alone(Class::Latency) };
        let (transfer, handle, once, time_left_us) = (1, 2, None, 3);
        let message = Message::Call { transfer, handle, answer_max, asker, once, time_left_us };
        Frame::parse(&Frame { payload, ..plain(message) }.encode())
    };
    let (least, most) = (HEAD_BYTES as u32, CALL_BYTES_MAX as u32);
    let room = ANSWER_BYTES_MAX as u32;
    assert!(call(least, room, 1).is_ok() && call(most, 0, 1).is_ok());
    assert!(matches!(call(least - 1, 0, 1), Err(PeerFault::PayloadTooShort { .. })));
    assert!(matches!(call(most + 1, 0, 1), Err(PeerFault::PayloadTooLong { .. })));
    let bad = |field| Err(PeerFault::BadField { kind: 24, field });
    assert_eq!(call(least, room + 1, 1), bad("answer_max"));
    assert_eq!(call(least, room, 0), bad("weight"));
    let access = Access::READ;
    let (ticket, kind, create, name_length) = (1, OpenKind::File, Creation::No, 9);
    let open = plain(Message::Open { ticket, kind, access, create, name_length });
    let cut_name = Frame::parse(&Frame { payload: 8, ..open }.encode());
    assert_eq!(cut_name, Err(PeerFault::PayloadTooShort { kind: 4, length: 8 }));
}

/// Two nodes of different releases meet on the wire: the bytes are fixed, not merely consistent.
#[test]
fn the_layout_is_the_documented_one() {
    let message = read(0x0031_3233_3435_3637, 0x0061_4243_4445_4647, 0x5455_5657);
    let bytes = Frame { epoch: 0x0102_0304, ..plain(message) }.encode();
    assert_eq!(bytes[..8], [b'p', b'D', 12, 7, 0, 0, 1, 9]);
    assert_eq!(bytes[8..16], [4, 3, 2, 1, 0, 0, 0, 0]);
    assert_eq!(bytes[16..24], 0x1112_1314_1516_1718_u64.to_le_bytes());
    assert_eq!(bytes[24..32], 0x0031_3233_3435_3637_u64.to_le_bytes());
    assert_eq!(bytes[32..40], 0x0061_4243_4445_4647_u64.to_le_bytes());
    assert_eq!(bytes[40..48], 0x0051_5253_5455_5657_u64.to_le_bytes());
    assert_eq!(bytes[48..52], 0x2122_2324_u32.to_le_bytes());
    assert_eq!(bytes[52..56], [0; 4]);
    assert_eq!(bytes[56..60], 0x6162_6364_u32.to_le_bytes());
    assert_eq!(bytes, signed(bytes), "CRC32C of the first 60 bytes, little-endian");
    let check = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, b"123456789");
    assert_eq!(check, 0xe306_9283, "CRC32C's published check value");
}

#[test]
fn a_kind_more_is_a_version_more() {
    let ping = plain(Message::Ping { nonce: 7 }).encode();
    let is_known = |kind: &u8| {
        let mut bytes = ping;
        bytes[3] = *kind;
        !matches!(Frame::parse(&signed(bytes)), Err(PeerFault::UnknownKind(_)))
    };
    let known: Vec<u8> = (0..=u8::MAX).filter(is_known).collect();
    assert_eq!((ping[2], known), (12, (1..=24).collect()), "raise VERSION, and then this");
}
