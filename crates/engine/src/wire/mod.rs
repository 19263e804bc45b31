//! What two nodes say to each other over a lane, as pure machines.
//!
//! ```text
//!   Message ─► Sender ─► Spans ─► Op::Send … Op::Receive ─► Receiver ─► Frame + bytes in place
//!              (queue, batch)        (driver)               (header says where)
//! ```
//!
//! [`frame`] is the one parser of a peer's bytes: a fixed header, every field checked. [`Sender`] and
//! [`Receiver`] decide which memory the next operation of a lane touches; neither does I/O. Payload
//! bytes are never copied to be framed: a header in scratch memory and the payload in its own place
//! leave as one operation, and arrive in their final place if the receiver guessed it or if they are
//! long enough to be asked for after their header was read. [`Seal`] is what plain, authenticated
//! and encrypted lanes differ in.

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
    After, Asker, Change, Frame, HEADER_BYTES, LastPart, Message, PAYLOAD_BYTES_MAX, PeerFault,
    ReportedStage,
};
pub(crate) use frame::{OUTCOME_NANOS_MAX, OUTCOME_NANOS_MIN};
pub use lent::{LENT_MAX, Lent};
pub use receive::{INLINE_LANDING_BYTES, Receiver, SPILL_BYTES, Step};
pub(crate) use seal::SEALED_ROOM_BYTES;
pub use seal::{FrameKey, LaneKeys, Protection, Seal, WIRE_HEADER_BYTES_MAX};
pub use send::{BATCH_BYTES_MAX, Full, INLINE_BYTES_MAX, LEND_BYTES_MIN, Owner, Sealed, Sender};
