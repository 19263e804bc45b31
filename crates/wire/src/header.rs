//! Where each field of a message stands in the header.
//!
//! The two directions stand side by side: `Message::header` writes, `Header::message` reads. What a
//! value may be beyond its type is [`crate::frame`]'s business, and so is refusing what neither
//! of the two looks at.

use piped_core::access::{Access, OpenKind};
use piped_core::link::{LaneClass, ReportedStage};
use piped_core::request::{Class, Update};
use piped_core::status::Status;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::frame::{After, Asker, Change, HEADER_BYTES, LastPart, Message, PeerFault};

/// `p` `D` on the wire.
pub(super) const MAGIC: u16 = u16::from_le_bytes(*b"pD");
/// The version of this header, of its kinds, and of what they mean. A kind more is a version more:
/// who does not know it would lose its lanes in the middle of work instead of being told at Hello.
/// Version 1, which was never released, had no [`Message::Outcome`].
pub(super) const VERSION: u8 = 9;

const FLAG_READ: u16 = 1 << 0;
const FLAG_WRITE: u16 = 1 << 1;
const FLAG_CREATE: u16 = 1 << 2;
const FLAG_DURABLE: u16 = 1 << 3;
const FLAG_BACKLOGGED: u16 = 1 << 4;
const FLAG_LAST: u16 = 1 << 5;
const FLAG_ATOMIC: u16 = 1 << 6;
const FLAG_PIECES: u16 = 1 << 7;
/// Other requests were at the device or on the lane with this one.
const FLAG_COMPANY: u16 = 1 << 8;

const KIND_HELLO: u8 = 1;
const KIND_HELLO_ACK: u8 = 2;
const KIND_HELLO_REFUSED: u8 = 3;
const KIND_OPEN: u8 = 4;
const KIND_OPENED: u8 = 5;
const KIND_CLOSE: u8 = 6;
const KIND_READ: u8 = 7;
const KIND_DATA: u8 = 8;
const KIND_END: u8 = 9;
const KIND_WRITE: u8 = 10;
const KIND_WRITE_DATA: u8 = 11;
const KIND_SYNC: u8 = 12;
const KIND_CANCEL: u8 = 13;
const KIND_CREDIT: u8 = 14;
const KIND_REPORT: u8 = 15;
const KIND_PING: u8 = 16;
const KIND_PONG: u8 = 17;
const KIND_OUTCOME: u8 = 18;
const KIND_SEND: u8 = 19;
const KIND_QUEUED: u8 = 20;
const KIND_READY: u8 = 21;
const KIND_UPDATE: u8 = 22;
const KIND_UPDATED: u8 = 23;

const CHANGE_ADD: u8 = 1;
const CHANGE_COMPARE_SWAP: u8 = 2;
const CHANGE_NOTIFY: u8 = 3;
const CHANGE_NOTIFY_AFTER: u8 = 4;
const CHANGE_NOTIFY_KNOWN: u8 = 5;

/// The header as it lies on the wire.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: U16,
    pub(super) version: u8,
    pub(super) kind: u8,
    pub(super) flags: U16,
    pub(super) class: u8,
    pub(super) aux: u8,
    pub(super) epoch: U32,
    pub(super) payload_len: U32,
    pub(super) transfer: U64,
    pub(super) offset: U64,
    pub(super) arg0: U64,
    pub(super) arg1: U64,
    pub(super) arg2: U32,
    pub(super) payload_crc: U32,
    pub(super) arg3: U32,
    pub(super) header_crc: U32,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Message {
    /// The fields this message uses; all others are zero.
    pub(super) fn header(&self) -> Header {
        match *self {
            Self::Hello { .. }
            | Self::HelloAck { .. }
            | Self::HelloRefused { .. }
            | Self::Credit { .. }
            | Self::Report { .. }
            | Self::Outcome { .. }
            | Self::Ping { .. }
            | Self::Pong { .. } => self.lane_header(),
            _ => self.request_header(),
        }
    }

    /// Messages about the lane as a whole.
    fn lane_header(&self) -> Header {
        let empty = Header::default();
        match *self {
            Self::Hello { incarnation, lane } => Header {
                kind: KIND_HELLO,
                arg0: incarnation.into(),
                class: lane_number(lane),
                ..empty
            },
            Self::HelloAck { incarnation, credit_bytes, requests_max } => Header {
                kind: KIND_HELLO_ACK,
                arg0: incarnation.into(),
                arg1: credit_bytes.into(),
                arg2: requests_max.into(),
                ..empty
            },
            Self::HelloRefused { status } => {
                Header { kind: KIND_HELLO_REFUSED, aux: status as u8, ..empty }
            }
            Self::Credit { bytes, window } => {
                Header { kind: KIND_CREDIT, arg0: bytes.into(), arg1: window.into(), ..empty }
            }
            Self::Report {
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
            } => Header {
                kind: KIND_REPORT,
                flags: (flag(backlogged, FLAG_BACKLOGGED) | flag(last, FLAG_LAST)).into(),
                aux: stage_number(stage),
                class: weight,
                transfer: cost_ps.into(),
                offset: slope_fs.into(),
                arg0: halves(size_bytes, spread_bytes).into(),
                arg2: handle.into(),
                arg3: deviation_pm.into(),
                ..empty
            },
            Self::Outcome { handle, length, plan, latency_ns, company } => Header {
                kind: KIND_OUTCOME,
                flags: flag(company, FLAG_COMPANY).into(),
                arg0: length.into(),
                arg1: latency_ns.into(),
                arg2: handle.into(),
                arg3: plan.into(),
                ..empty
            },
            Self::Ping { nonce } => Header { kind: KIND_PING, arg0: nonce.into(), ..empty },
            Self::Pong { nonce } => Header { kind: KIND_PONG, arg0: nonce.into(), ..empty },
            _ => empty,
        }
    }

    /// Messages about one handle or one request.
    fn request_header(&self) -> Header {
        let empty = Header::default();
        match *self {
            Self::Open { ticket, kind, access, create, name_length } => Header {
                kind: KIND_OPEN,
                transfer: ticket.into(),
                aux: kind_number(kind),
                flags: (flag(access.read, FLAG_READ)
                    | flag(access.write, FLAG_WRITE)
                    | flag(access.atomic, FLAG_ATOMIC)
                    | flag(create, FLAG_CREATE))
                .into(),
                arg2: u32::from(name_length).into(),
                ..empty
            },
            Self::Opened { ticket, status, handle, length } => Header {
                kind: KIND_OPENED,
                transfer: ticket.into(),
                aux: status as u8,
                arg0: length.into(),
                arg2: handle.into(),
                ..empty
            },
            Self::Close { handle } => Header { kind: KIND_CLOSE, arg2: handle.into(), ..empty },
            Self::Sync { transfer, handle, time_left_us } => Header {
                kind: KIND_SYNC,
                transfer: transfer.into(),
                arg2: handle.into(),
                arg3: time_left_us.into(),
                ..empty
            },
            Self::Cancel { transfer } => {
                Header { kind: KIND_CANCEL, transfer: transfer.into(), ..empty }
            }
            Self::Send { transfer, handle, tag, length, sequence, oldest, time_left_us } => {
                Header {
                    kind: KIND_SEND,
                    transfer: transfer.into(),
                    offset: tag.into(),
                    arg0: u64::from(length).into(),
                    arg1: halves(sequence, oldest).into(),
                    arg2: handle.into(),
                    arg3: time_left_us.into(),
                    ..empty
                }
            }
            Self::Queued { transfer } => {
                Header { kind: KIND_QUEUED, transfer: transfer.into(), ..empty }
            }
            Self::Ready { transfer, status, handle } => Header {
                kind: KIND_READY,
                transfer: transfer.into(),
                aux: status as u8,
                arg2: handle.into(),
                ..empty
            },
            Self::Update { transfer, handle, change, sequence, behind } => Header {
                kind: KIND_UPDATE,
                class: behind,
                transfer: transfer.into(),
                arg2: handle.into(),
                arg3: sequence.into(),
                ..change_header(change)
            },
            Self::Updated { transfer, status, value } => Header {
                kind: KIND_UPDATED,
                transfer: transfer.into(),
                aux: status as u8,
                arg0: value.into(),
                ..empty
            },
            Self::End { transfer, status, bytes, service_us, fragment, predicted_us } => Header {
                kind: KIND_END,
                transfer: transfer.into(),
                aux: status as u8,
                arg0: bytes.into(),
                arg1: u64::from(predicted_us).into(),
                arg2: fragment.into(),
                arg3: service_us.into(),
                ..empty
            },
            _ => self.transfer_header(),
        }
    }

    /// Messages that move a request's bytes.
    fn transfer_header(&self) -> Header {
        let empty = Header::default();
        match *self {
            Self::Read { transfer, handle, offset, length, asker, from, pieces, time_left_us } => {
                Header {
                    kind: KIND_READ,
                    flags: flag(pieces, FLAG_PIECES).into(),
                    class: class_number(asker.class),
                    aux: asker.weight,
                    transfer: transfer.into(),
                    offset: offset.into(),
                    arg0: length.into(),
                    arg1: halves(from, asker.client).into(),
                    arg2: handle.into(),
                    arg3: time_left_us.into(),
                    ..empty
                }
            }
            Self::Data { transfer, offset, fragment, backlogged, service_us, last } => Header {
                kind: KIND_DATA,
                flags: (flag(backlogged, FLAG_BACKLOGGED)
                    | flag(last.is_some(), FLAG_LAST)
                    | flag(last.is_some_and(|last| last.company), FLAG_COMPANY))
                .into(),
                class: last.map_or(0, |last| last.margin_percent),
                aux: last.map_or(0, |last| last.status as u8),
                transfer: transfer.into(),
                offset: offset.into(),
                arg0: last.map_or(0, |last| last.bytes).into(),
                arg1: last.map_or(0, |last| halves(last.predicted_us, last.plan)).into(),
                arg2: fragment.into(),
                arg3: service_us.into(),
                ..empty
            },
            Self::Write {
                transfer,
                handle,
                offset,
                length,
                asker,
                durable,
                pieces,
                fragment,
                time_left_us,
            } => Header {
                kind: KIND_WRITE,
                flags: (flag(durable, FLAG_DURABLE) | flag(pieces, FLAG_PIECES)).into(),
                class: class_number(asker.class),
                aux: asker.weight,
                transfer: transfer.into(),
                offset: offset.into(),
                arg0: length.into(),
                arg1: halves(fragment, asker.client).into(),
                arg2: handle.into(),
                arg3: time_left_us.into(),
                ..empty
            },
            Self::WriteData { transfer, offset, backlogged } => Header {
                kind: KIND_WRITE_DATA,
                flags: flag(backlogged, FLAG_BACKLOGGED).into(),
                transfer: transfer.into(),
                offset: offset.into(),
                ..empty
            },
            _ => empty,
        }
    }
}

/// The fields that say what an update does.
fn change_header(change: Change) -> Header {
    let (aux, offset, arg0, arg1) = match change {
        Change::Word { offset, update: Update::Add(addend) } => (CHANGE_ADD, offset, addend, 0),
        Change::Word { offset, update: Update::CompareSwap { expected, new } } => {
            (CHANGE_COMPARE_SWAP, offset, expected, new)
        }
        Change::Notify { id, after } => {
            let (aux, arg1) = match after {
                After::Nothing => (CHANGE_NOTIFY, 0),
                After::Writes { client, failed } => (CHANGE_NOTIFY_AFTER, halves(client, failed)),
                After::Known => (CHANGE_NOTIFY_KNOWN, 0),
            };
            (aux, 0, u64::from(id), arg1)
        }
    };
    Header { aux, offset: offset.into(), arg0: arg0.into(), arg1: arg1.into(), ..Header::default() }
}

impl Header {
    /// The typed message. Fields it does not use are looked at by the caller.
    pub(super) fn message(&self) -> Result<Message, PeerFault> {
        Ok(match self.kind {
            KIND_HELLO => Message::Hello { incarnation: self.arg0.get(), lane: self.lane_class()? },
            KIND_HELLO_ACK => Message::HelloAck {
                incarnation: self.arg0.get(),
                credit_bytes: self.arg1.get(),
                requests_max: self.arg2.get(),
            },
            KIND_HELLO_REFUSED => Message::HelloRefused { status: self.status()? },
            KIND_CREDIT => Message::Credit { bytes: self.arg0.get(), window: self.arg1.get() },
            KIND_REPORT => Message::Report {
                stage: self.stage()?,
                handle: self.arg2.get(),
                backlogged: self.has(FLAG_BACKLOGGED),
                last: self.has(FLAG_LAST),
                weight: self.class,
                size_bytes: low_half(self.arg0),
                spread_bytes: high_half(self.arg0),
                cost_ps: self.transfer.get(),
                slope_fs: self.offset.get(),
                deviation_pm: self.arg3.get(),
            },
            KIND_OUTCOME => Message::Outcome {
                handle: self.arg2.get(),
                length: self.arg0.get(),
                plan: self.arg3.get(),
                latency_ns: self.arg1.get(),
                company: self.has(FLAG_COMPANY),
            },
            KIND_PING => Message::Ping { nonce: self.arg0.get() },
            KIND_PONG => Message::Pong { nonce: self.arg0.get() },
            _ => return self.request_message(),
        })
    }

    fn request_message(&self) -> Result<Message, PeerFault> {
        let transfer = self.transfer.get();
        let handle = self.arg2.get();
        Ok(match self.kind {
            KIND_OPEN => Message::Open {
                ticket: transfer,
                kind: self.open_kind()?,
                access: Access {
                    read: self.has(FLAG_READ),
                    write: self.has(FLAG_WRITE),
                    atomic: self.has(FLAG_ATOMIC),
                },
                create: self.has(FLAG_CREATE),
                name_length: u8::try_from(handle).map_err(|_| self.bad("name_length"))?,
            },
            KIND_OPENED => Message::Opened {
                ticket: transfer,
                status: self.status()?,
                handle,
                length: self.arg0.get(),
            },
            KIND_CLOSE => Message::Close { handle },
            KIND_SYNC => Message::Sync { transfer, handle, time_left_us: self.arg3.get() },
            KIND_CANCEL => Message::Cancel { transfer },
            KIND_SEND => Message::Send {
                transfer,
                handle,
                tag: self.offset.get(),
                length: low_half(self.arg0),
                sequence: low_half(self.arg1),
                oldest: high_half(self.arg1),
                time_left_us: self.arg3.get(),
            },
            KIND_QUEUED => Message::Queued { transfer },
            KIND_READY => Message::Ready { transfer, status: self.status()?, handle },
            KIND_UPDATE => Message::Update {
                transfer,
                handle,
                change: self.change()?,
                sequence: self.arg3.get(),
                behind: self.class,
            },
            KIND_UPDATED => {
                Message::Updated { transfer, status: self.status()?, value: self.arg0.get() }
            }
            KIND_END => Message::End {
                transfer,
                status: self.status()?,
                bytes: self.arg0.get(),
                service_us: self.arg3.get(),
                fragment: self.arg2.get(),
                predicted_us: low_half(self.arg1),
            },
            _ => return self.transfer_message(),
        })
    }

    fn change(&self) -> Result<Change, PeerFault> {
        let (offset, id) = (self.offset.get(), low_half(self.arg0));
        let word = |update| Change::Word { offset, update };
        let notify = |after| Change::Notify { id, after };
        Ok(match self.aux {
            CHANGE_ADD => word(Update::Add(self.arg0.get())),
            CHANGE_COMPARE_SWAP => {
                word(Update::CompareSwap { expected: self.arg0.get(), new: self.arg1.get() })
            }
            CHANGE_NOTIFY => notify(After::Nothing),
            CHANGE_NOTIFY_AFTER => {
                notify(After::Writes { client: low_half(self.arg1), failed: high_half(self.arg1) })
            }
            CHANGE_NOTIFY_KNOWN => notify(After::Known),
            _ => return Err(self.bad("change")),
        })
    }

    fn transfer_message(&self) -> Result<Message, PeerFault> {
        let transfer = self.transfer.get();
        let offset = self.offset.get();
        Ok(match self.kind {
            KIND_READ => Message::Read {
                transfer,
                handle: self.arg2.get(),
                offset,
                length: self.arg0.get(),
                asker: self.asker()?,
                from: low_half(self.arg1),
                pieces: self.has(FLAG_PIECES),
                time_left_us: self.arg3.get(),
            },
            KIND_DATA => Message::Data {
                transfer,
                offset,
                fragment: self.arg2.get(),
                backlogged: self.has(FLAG_BACKLOGGED),
                service_us: self.arg3.get(),
                last: if self.has(FLAG_LAST) { Some(self.last_part()?) } else { None },
            },
            KIND_WRITE => Message::Write {
                transfer,
                handle: self.arg2.get(),
                offset,
                length: self.arg0.get(),
                asker: self.asker()?,
                durable: self.has(FLAG_DURABLE),
                pieces: self.has(FLAG_PIECES),
                fragment: low_half(self.arg1),
                time_left_us: self.arg3.get(),
            },
            KIND_WRITE_DATA => {
                Message::WriteData { transfer, offset, backlogged: self.has(FLAG_BACKLOGGED) }
            }
            kind => return Err(PeerFault::UnknownKind(kind)),
        })
    }

    fn last_part(&self) -> Result<LastPart, PeerFault> {
        Ok(LastPart {
            status: self.status()?,
            bytes: self.arg0.get(),
            predicted_us: low_half(self.arg1),
            margin_percent: self.class,
            company: self.has(FLAG_COMPANY),
            plan: high_half(self.arg1),
        })
    }

    fn asker(&self) -> Result<Asker, PeerFault> {
        let (class, client) = (self.request_class()?, high_half(self.arg1));
        Ok(Asker { class, client, weight: self.aux })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags.get() & flag != 0
    }

    pub(super) fn bad(&self, field: &'static str) -> PeerFault {
        PeerFault::BadField { kind: self.kind, field }
    }

    fn status(&self) -> Result<Status, PeerFault> {
        let of_requests = &Status::ALL[..Status::OF_REQUESTS];
        of_requests.get(usize::from(self.aux)).copied().ok_or_else(|| self.bad("status"))
    }

    fn open_kind(&self) -> Result<OpenKind, PeerFault> {
        [OpenKind::File, OpenKind::Region, OpenKind::Channel]
            .into_iter()
            .find(|kind| kind_number(*kind) == self.aux)
            .ok_or_else(|| self.bad("kind"))
    }

    fn stage(&self) -> Result<ReportedStage, PeerFault> {
        ReportedStage::ALL
            .into_iter()
            .find(|stage| stage_number(*stage) == self.aux)
            .ok_or_else(|| self.bad("stage"))
    }

    fn request_class(&self) -> Result<Class, PeerFault> {
        [Class::Latency, Class::Bulk]
            .into_iter()
            .find(|class| class_number(*class) == self.class)
            .ok_or_else(|| self.bad("class"))
    }

    fn lane_class(&self) -> Result<LaneClass, PeerFault> {
        [LaneClass::Latency, LaneClass::Bulk]
            .into_iter()
            .find(|lane| lane_number(*lane) == self.class)
            .ok_or_else(|| self.bad("lane"))
    }
}

const fn flag(set: bool, flag: u16) -> u16 {
    if set { flag } else { 0 }
}

/// The `u32` that a `u64` field holds. A non-zero upper half shows when the header is compared.
const fn low_half(field: U64) -> u32 {
    (field.get() & 0xffff_ffff) as u32
}

/// The `u32` in the upper half of a field that holds two.
const fn high_half(field: U64) -> u32 {
    (field.get() >> 32) as u32
}

fn halves(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

const fn class_number(class: Class) -> u8 {
    match class {
        Class::Latency => 1,
        Class::Bulk => 2,
    }
}

const fn lane_number(lane: LaneClass) -> u8 {
    match lane {
        LaneClass::Latency => 1,
        LaneClass::Bulk => 2,
    }
}

const fn kind_number(kind: OpenKind) -> u8 {
    match kind {
        OpenKind::File => 1,
        OpenKind::Region => 2,
        OpenKind::Channel => 3,
    }
}

const fn stage_number(stage: ReportedStage) -> u8 {
    match stage {
        ReportedStage::DiskRead => 1,
        ReportedStage::DiskWrite => 2,
        ReportedStage::Net => 3,
        ReportedStage::Check => 4,
        ReportedStage::DialNet => 5,
        ReportedStage::DialReceive => 6,
        ReportedStage::DialDiskWrite => 7,
    }
}
