//! Faults of a peer: what is wrong with its bytes, and what an operator can do about it.

use crate::message::VERSION;

/// What a peer did wrong. The connection is closed; the peer may dial again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// The stream does not begin with a frame.
    #[error(
        "the stream does not carry piped frames (starts with {0:#06x}); check the peer's address \
         and port"
    )]
    BadMagic(u16),
    /// The handshake of a node with a key arrived where this node has none.
    #[error(
        "the peer proves itself by a key and wants the same of this node, which has none: run \
         `pipectl keys generate` here, and give the peer what it prints"
    )]
    Handshake,
    /// The peer speaks another version of the protocol.
    #[error(
        "the peer speaks frame version {0}, this daemon version {ours}; install the same release \
         on both",
        ours = VERSION
    )]
    Version(u8),
    /// Bits of a header changed on the way.
    #[error(
        "header checksum is {found:#010x}, computed {computed:#010x}; suspect memory, network card \
         or a middlebox"
    )]
    HeaderChecksum {
        /// The checksum that the header carried.
        found: u32,
        /// The checksum of the header's bytes as they arrived.
        computed: u32,
    },
    /// A sealed header whose authentication tag is wrong.
    #[error(
        "a frame is not the peer's, or not the next one: its bits, or the order of frames, changed \
         on the way; suspect memory, network card or a middlebox, or somebody on the network \
         between the nodes"
    )]
    Seal,
    /// A checksum of a payload, where both sides do without.
    #[error(
        "a payload has a checksum after both nodes agreed on none; the peer's daemon is faulty"
    )]
    UnaskedSum,
    /// A kind this version does not know.
    #[error("unknown frame kind {0}; compare the releases of both daemons")]
    UnknownKind(u8),
    /// A field has a value its kind does not allow.
    #[error(
        "frame kind {kind}: field `{field}` has a value that is not allowed; the peer's daemon is \
         faulty or newer"
    )]
    BadField {
        /// Number of the frame's kind.
        kind: u8,
        /// Name of the header's field.
        field: &'static str,
    },
    /// A payload longer than the kind allows.
    #[error(
        "frame kind {kind}: payload of {length} bytes exceeds {limit}; the peer's daemon is faulty \
         or newer"
    )]
    PayloadTooLong {
        /// Number of the frame's kind.
        kind: u8,
        /// The payload's length in bytes.
        length: u32,
        /// The most the kind allows, in bytes.
        limit: u32,
    },
    /// A payload shorter than the kind needs.
    #[error(
        "frame kind {kind}: payload of {length} bytes is too short; the peer's daemon is faulty"
    )]
    PayloadTooShort {
        /// Number of the frame's kind.
        kind: u8,
        /// The payload's length in bytes.
        length: u32,
    },
}
