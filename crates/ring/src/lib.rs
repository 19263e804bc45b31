//! The shared-memory contract between piped and its clients: what both sides compile against.
//!
//! # The memory
//!
//! A session has an *arena*, a list of [`Segment`]s with the payload, and one or more *queues*.
//! Each segment and each queue is one sealed memfd, made by the daemon and passed over a unix
//! socket ([`handshake`]). A queue, with `n` a power of two up to 4096:
//!
//! ```text
//!  byte 0      magic, version, n                            written once, by the daemon
//!       128    submission tail   ─┐ one word                client
//!       256    submission head    │ a pair of               daemon
//!       384    completion tail    │ cache lines             daemon
//!       512    completion head    │ each                    client
//!       640    daemon asleep      │                         daemon; client takes it down
//!       768    client asleep     ─┘                         client; daemon takes it down
//!      1024    Descriptor[n]           128 bytes each       client
//!              CompletionEntry[2n]      32 bytes each       daemon
//!              progress[n]              16 bytes each       daemon; client clears it at submit
//! ```
//!
//! Beside it two bells wake a side that sleeps. A request costs no system call while both sides are
//! up, and at most one while one sleeps.
//!
//! # The side that is not trusted
//!
//! The daemon serves many clients and believes none. A client can write every byte of its queues
//! and segments at any moment, also while the daemon reads them; it can send any message and any
//! file descriptor, jam its bells, punch holes into its memory, and die anywhere. What it gets for
//! that is at most wrong data for itself and the end of its session ([`ClientFault`],
//! [`handshake::HandshakeFault`]). A client trusts its daemon to be honest, but checks what it is
//! told, so that a wrong version or a restart is an error and not a crash.
//!
//! # The laws
//!
//! 1. *Copy once, then parse.* What lies in shared memory is copied to a private place, and checked
//!    and used there. No reference into memory that the other side may write leaves this crate.
//! 2. *An index is a claim.* Each side keeps its own index privately and believes the other's only
//!    if it is at most one ring away; see [`cursor`].
//! 3. *Room before work.* A descriptor is taken only when the completions it may need have places,
//!    so posting never waits and a client that does not reap waits for itself; see [`half`].
//! 4. *Nobody waits for the other.* No call here waits, but [`ClientQueue::wait`]. The sides sleep
//!    by the protocol in [`half`], with a fence on both ends against the lost wake-up.
//! 5. *Lengths are facts.* Memory is sealed before it is mapped, and every access is checked
//!    against the length that was mapped.
//! 6. *Arithmetic and memory are apart.* The rings work on any slice of words: mapped ones in
//!    production, the heap in property tests, loom's in models (`--cfg loom`).
//!
//! # Example
//!
//! Both sides of a queue in one process:
//!
#![cfg_attr(not(loom), doc = "```")]
#![cfg_attr(loom, doc = "```ignore")]
//! use piped_core::status::Status;
//! use piped_ring::{ClientQueue, CompletionEntry, Descriptor, Opcode, QueueFds, ServerQueue};
//!
//! let mut server = ServerQueue::create(8)?;
//! let [memory, to_daemon, to_client] = server.fds().map(|fd| fd.try_clone_to_owned());
//! let fds = QueueFds { memory: memory?, to_daemon: to_daemon?, to_client: to_client? };
//! let mut client = ClientQueue::attach(fds)?;
//!
//! client.submit(Descriptor::new(Opcode::Nop, 42))?;
//! client.flush();
//!
//! while let Some(descriptor) = server.take()? {
//!     server.post(CompletionEntry::finished(descriptor.user_data, Status::Ok, 0))?;
//! }
//! server.publish();
//!
//! let entry = client.reap().expect("the completion is there");
//! assert_eq!((entry.user_data, Status::from_u16(entry.status)), (42, Some(Status::Ok)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "count-allocations")]
pub mod allocations;
mod area;
pub mod atomic;
pub mod cursor;
#[cfg(not(loom))]
mod doorbell;
mod flag;
mod guard;
pub mod half;
pub mod handshake;
pub mod layout;
pub mod lent;
mod mapping;
#[cfg(not(loom))]
mod nap;
#[cfg(not(loom))]
pub mod queue;
pub mod segment;
pub mod spinner;
mod tenure;
#[cfg(all(feature = "test-utils", not(loom)))]
pub mod testing;
pub mod view;

pub use area::{AREA_PAGE_BYTES, Area, AreaFault};
pub use flag::Wake;
pub use half::{ClientFault, CompletionRingFull, Full, HeaderFault};
pub use layout::{
    CLASS_BULK, CLASS_DEFAULT, CLASS_LATENCY, CompletionEntry, CompletionKind, Descriptor,
    FLAG_ANY_TAG, FLAG_BUFFERS, FLAG_DURABLE, FLAG_FENCE, FLAG_NO_WAIT, Opcode, QueueLayout,
    SLOT_NONE,
};
#[cfg(not(loom))]
pub use queue::{AttachFault, ClientQueue, QueueFds, ServerQueue};
pub use segment::{OutOfRange, PIECE_BYTES, Segment, SegmentFault};
pub use spinner::{Spin, SpinBudgets, Spinner};
pub use tenure::LentKind;
pub use view::{ExclusiveRange, SharedRange};
