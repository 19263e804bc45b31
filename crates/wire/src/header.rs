//! Where each field of a message stands in the header.
//!
//! The two directions stand side by side in a file for each group of messages: `write` and `read`.
//! Each file has the numbers of its kinds, from 1 to 24 over all files. [`crate::frame`] checks
//! values beyond their types, and refuses what neither direction looks at.

use piped_core::access::OpenKind;
use piped_core::link::{Checksum, LaneClass, ReportedStage};
use piped_core::request::Class;
use piped_core::status::Status;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::fault::PeerFault;
use crate::message::Message;

mod connection;
mod request;
mod transfer;

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 64;

/// The bytes `p` and `D` on the wire.
pub(super) const MAGIC: u16 = u16::from_le_bytes(*b"pD");

const FLAG_READ: u16 = 1 << 0;
const FLAG_WRITE: u16 = 1 << 1;
/// Directories on the way to a new file are made.
const FLAG_PARENTS: u16 = 1 << 2;
const FLAG_DURABLE: u16 = 1 << 3;
const FLAG_BACKLOGGED: u16 = 1 << 4;
const FLAG_LAST: u16 = 1 << 5;
const FLAG_ATOMIC: u16 = 1 << 6;
const FLAG_PIECES: u16 = 1 << 7;
/// Other requests shared the device or the connection with this one.
const FLAG_COMPANY: u16 = 1 << 8;
/// Payloads have checksums from here on.
const FLAG_SUMS: u16 = 1 << 9;
/// Another frame comes in the same run of bytes; of any kind with a payload.
pub(super) const FLAG_FOLLOWED: u16 = 1 << 10;
const FLAG_NAMES: u16 = 1 << 11;
/// A call that must not be carried out twice.
const FLAG_ONCE: u16 = 1 << 12;

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

/// The header with the fields of this message; all others are zero.
pub(super) fn write(message: &Message) -> Header {
    transfer::write(message)
        .or_else(|| request::write(message))
        .or_else(|| connection::write(message))
        .unwrap_or_default()
}

/// The typed message. The caller checks the fields that the message does not use.
///
/// # Errors
/// The kind is unknown, or a field has a value that its kind does not allow.
pub(super) fn read(header: &Header) -> Result<Message, PeerFault> {
    let message = match transfer::read(header)? {
        None => request::read(header)?,
        known => known,
    };
    let message = match message {
        None => connection::read(header)?,
        known => known,
    };
    message.ok_or(PeerFault::UnknownKind(header.kind))
}

impl Header {
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags.get() & flag != 0
    }

    pub(super) fn bad(&self, field: &'static str) -> PeerFault {
        PeerFault::BadField { kind: self.kind, field }
    }

    fn status(&self) -> Result<Status, PeerFault> {
        Status::from_u16(self.aux.into()).ok_or_else(|| self.bad("status"))
    }

    fn open_kind(&self) -> Result<OpenKind, PeerFault> {
        [OpenKind::File, OpenKind::Region, OpenKind::Channel, OpenKind::Directory]
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

    fn checksum(&self) -> Result<Checksum, PeerFault> {
        Checksum::ALL
            .into_iter()
            .find(|checksum| checksum_number(*checksum) == self.aux)
            .ok_or_else(|| self.bad("checksum"))
    }

    fn request_class(&self) -> Result<Class, PeerFault> {
        [Class::Latency, Class::Bulk]
            .into_iter()
            .find(|class| class_number(*class) == self.class)
            .ok_or_else(|| self.bad("class"))
    }

    fn lane_class(&self) -> Result<LaneClass, PeerFault> {
        LaneClass::ALL
            .into_iter()
            .find(|lane| lane_number(*lane) == self.class)
            .ok_or_else(|| self.bad("lane"))
    }
}

const fn flag(set: bool, flag: u16) -> u16 {
    if set { flag } else { 0 }
}

/// The lower `u32` of a `u64` field. An unexpected upper half shows when the header is compared.
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
        LaneClass::Second => 3,
    }
}

const fn checksum_number(checksum: Checksum) -> u8 {
    match checksum {
        Checksum::Auto => 1,
        Checksum::Payload => 2,
        Checksum::Header => 3,
    }
}

const fn kind_number(kind: OpenKind) -> u8 {
    match kind {
        OpenKind::File => 1,
        OpenKind::Region => 2,
        OpenKind::Channel => 3,
        OpenKind::Directory => 4,
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
