//! The shared-memory contract between piped and its clients.

pub mod atomic;
pub mod cursor;
#[cfg(not(loom))]
mod doorbell;
pub mod half;
pub mod handshake;
pub mod layout;
#[cfg(not(loom))]
pub mod queue;
pub mod segment;
pub mod spinner;
pub mod view;

pub use half::{ClientFault, CompletionRingFull, Full, HeaderFault};
pub use layout::{
    CLASS_BULK, CLASS_DEFAULT, CLASS_LATENCY, CompletionEntry, CompletionKind, Descriptor,
    FLAG_DURABLE, Opcode, QueueLayout, SLOT_NONE, Status, VectorEntry,
};
#[cfg(not(loom))]
pub use queue::{AttachFault, ClientQueue, QueueFds, ServerQueue};
pub use segment::{OutOfRange, Segment, SegmentFault};
pub use spinner::{Profile, Spin, SpinBudgets, Spinner};
pub use view::{ExclusiveRange, SharedRange};
