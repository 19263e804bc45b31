//! What two nodes say to each other over a connection, as pure state machines.
//!
//! ```text
//!   Message ─► Sender ─► Spans ─► Op::Send … Op::Receive ─► Receiver ─► Frame + bytes in place
//!              (queue, batch)        (driver)               (header says where)
//! ```
//!
//! [`frame`] is the only parser of a peer's bytes: a fixed header with every field checked.
//! [`Sender`] and [`Receiver`] decide which memory the next operation of a connection touches;
//! neither does I/O. Payload bytes are never copied to be framed. A header in scratch memory and
//! the payload in its own place leave as one operation. They arrive in their final place if the
//! receiver guessed it, or if the payload is long enough to be received after its header. [`Seal`]
//! is where plain, authenticated and encrypted connections differ.
//!
//! **Invariant:** a peer's bytes are parsed here and nowhere else, and each field is checked before
//! it is used. What a frame cannot say cannot be built as a [`Message`]. No IO, no clock; spans
//! name the memory that an operation touches. Lent memory ([`Lent`]) has one owner until it is
//! handed back.
#![forbid(unsafe_code)]

mod checked;
mod fault;
pub mod frame;
mod header;
mod lent;
mod message;
mod receive;
mod runs;
mod seal;
mod send;

pub use checked::Checked;
pub use frame::{
    After, Asker, Change, Frame, HEADER_BYTES, LastPart, Message, OUTCOME_NANOS_MAX,
    OUTCOME_NANOS_MIN, PeerFault,
};
pub use lent::{LENT_MAX, Lent, Owner};
pub use receive::{INLINE_LANDING_BYTES, Receiver, SPILL_BYTES, Step};
pub use seal::{FrameKey, LaneKeys, SEALED_ROOM_BYTES, Seal, WIRE_HEADER_BYTES_MAX};
pub use send::{BATCH_BYTES_MAX, Full, INLINE_BYTES_MAX, LEND_BYTES_MIN, Sealed, Sender};
