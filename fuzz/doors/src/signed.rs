//! Headers as a hostile peer writes them: it has the checksum, too.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use piped_wire::{Frame, HEADER_BYTES, Message};

/// The bytes of a header.
pub type Header = [u8; HEADER_BYTES];

/// Bytes of a header that are for the input to choose: without magic, version and checksum.
pub const FREE_BYTES: usize = 57;

/// Where the free bytes are.
const FREE: core::ops::Range<usize> = 3..60;

/// The header with these bytes, sound as far as magic, version and checksum go.
#[must_use]
pub fn header(free: [u8; FREE_BYTES]) -> Header {
    // Magic and version are those of any frame.
    let ping = Frame {
        epoch: 0,
        message: Message::Ping { nonce: 0 },
        payload: 0,
        payload_crc: 0,
        followed: false,
    };
    let mut header = ping.encode();
    header[FREE].copy_from_slice(&free);
    sign(&mut header);
    header
}

/// The bytes of a frame that [`header`] needs.
#[must_use]
pub fn free(frame: &Frame) -> [u8; FREE_BYTES] {
    *frame.encode()[FREE].first_chunk().expect("of that length")
}

/// The header with another epoch.
pub fn set_epoch(header: &mut Header, epoch: u32) {
    set(header, 8, epoch.to_le_bytes());
}

/// The payload's length that the header says, in bytes.
#[must_use]
pub fn payload_length(header: &Header) -> u32 {
    u32::from_le_bytes(*header[12..].first_chunk().expect("a header"))
}

/// The header with another length of its payload, and its checksum.
pub fn set_payload(header: &mut Header, length: u32, crc: u32) {
    set(header, 12, length.to_le_bytes());
    set(header, 52, crc.to_le_bytes());
}

/// The header with another request's number.
pub fn set_transfer(header: &mut Header, transfer: u64) {
    set(header, 16, transfer.to_le_bytes());
}

/// The header with another handle.
pub fn set_handle(header: &mut Header, handle: u32) {
    set(header, 48, handle.to_le_bytes());
}

fn set<const N: usize>(header: &mut Header, at: usize, bytes: [u8; N]) {
    header[at..at + N].copy_from_slice(&bytes);
    sign(header);
}

fn sign(header: &mut Header) {
    let crc = crc32c(&header[..60]).to_le_bytes();
    header[60..].copy_from_slice(&crc);
}

/// The checksum of the wire.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}
