//! What two nodes say to each other over a lane, as pure machines.
//!
//! ```text
//!   Message ─► Sender ─► Spans ─► Op::Send … Op::Receive ─► Receiver ─► Frame + bytes in place
//!              (queue, batch)        (driver)               (header says where)
//! ```
//!
//! [`frame`] is the one parser of a peer's bytes: a fixed header, every field checked. [`Sender`]
//! and [`Receiver`] decide which memory the next operation of a lane touches; neither does I/O.
//! Payload bytes are never copied to be framed: a header in scratch memory and the payload in its
//! own place leave as one operation, and arrive in their final place if the receiver guessed it or
//! if they are long enough to be asked for after their header was read. [`Seal`] is what plain,
//! authenticated and encrypted lanes differ in.
//!
//! **Invariant:** a peer's bytes are parsed here and nowhere else, each field is checked before it
//! is used, and what cannot be said in a frame cannot be built as a [`Message`]. No IO, no clock;
//! the memory that an operation touches is named by spans, and lent memory ([`Lent`]) has one owner
//! until it is handed back.
#![forbid(unsafe_code)]

mod checked;
pub mod frame;
mod header;
mod lent;
mod receive;
mod runs;
mod seal;
mod send;

pub use checked::Checked;
pub use frame::{
    After, Asker, Change, Frame, HEADER_BYTES, LastPart, Message, OUTCOME_NANOS_MAX,
    OUTCOME_NANOS_MIN, PeerFault,
};
pub use lent::{LENT_MAX, Lent};
pub use receive::{INLINE_LANDING_BYTES, Receiver, SPILL_BYTES, Step};
pub use seal::{FrameKey, LaneKeys, SEALED_ROOM_BYTES, Seal, WIRE_HEADER_BYTES_MAX};
pub use send::{BATCH_BYTES_MAX, Full, INLINE_BYTES_MAX, LEND_BYTES_MIN, Owner, Sealed, Sender};
