//! What comes along with the first message of a handshake, sealed: the number of the shard that
//! dials, and the certificate of its node.
//!
//! The first shard leaves its number out, and a node without a certificate that. The kind of the
//! message, the last byte of its preamble, says what is there, so each payload has one form.

use piped_config::CERTIFICATE_BYTES_MAX;
use piped_core::names::SHARDS_MAX;

/// What the kind says beside the protection: a number comes along.
pub(super) const NUMBERED: u8 = 0x08;
/// A certificate comes along, behind the number if there is one.
pub(super) const CERTIFIED: u8 = 0x10;

/// Length of the number of a shard.
pub(super) const NUMBER_BYTES: usize = 1;

/// Most bytes of a payload.
pub(super) const PAYLOAD_BYTES_MAX: usize = NUMBER_BYTES + CERTIFICATE_BYTES_MAX;

/// Whether anything comes along with a message of this kind.
pub(super) const fn has_payload(kind: u8) -> bool {
    kind & (NUMBERED | CERTIFIED) != 0
}

/// A kind without what it says of the payload.
pub(super) const fn without_payload(kind: u8) -> u8 {
    kind & !(NUMBERED | CERTIFIED)
}

/// The payload for a shard and the bytes of a certificate, which are none without one, and what
/// the kind says of it.
pub(super) fn payload_of(shard: usize, certificate: &[u8]) -> (u8, Vec<u8>) {
    let (mut kind, mut payload) = (0, Vec::with_capacity(NUMBER_BYTES + certificate.len()));
    if shard != 0 {
        kind |= NUMBERED;
        payload.push(u8::try_from(shard).expect("no node has so many shards"));
    }
    if !certificate.is_empty() {
        kind |= CERTIFIED;
        payload.extend(certificate);
    }
    (kind, payload)
}

/// The shard and the bytes of a certificate that came along; `None`: nobody sends that.
pub(super) fn parse_payload(kind: u8, payload: &[u8]) -> Option<(usize, &[u8])> {
    let (shard, certificate) = match kind & NUMBERED {
        0 => (0, payload),
        _ => {
            let (number, rest) = payload.split_first()?;
            let number = usize::from(*number);
            // The first shard has no number.
            ((1..SHARDS_MAX).contains(&number).then_some(number)?, rest)
        }
    };
    let has_certificate = kind & CERTIFIED != 0;
    let fits = certificate.len() <= CERTIFICATE_BYTES_MAX;
    (fits && certificate.is_empty() != has_certificate).then_some((shard, certificate))
}
