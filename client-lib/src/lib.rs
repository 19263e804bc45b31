//! The library that applications link to move bytes through piped.
//!
//! A [`Client`] is a session with the daemon of this node. Its memory, the arena, is shared with
//! the daemon. Bytes therefore get from a disk or another node into a [`Buffer`] without a copy,
//! and requests reach the daemon without a system call:
//!
//! ```no_run
//! use piped_client::{Client, OpenOptions};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::connect("/run/piped/client.sock")?;
//!     let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read())?;
//!     let mut queue = client.queue()?;
//!     let buffer = client.allocate(1 << 20)?;
//!     let (buffer, bytes) = queue.read(&file, 0, buffer)?;
//!     println!("{} of {} bytes: {:?}", bytes, file.len(), &buffer.as_slice()[..16.min(bytes)]);
//!     Ok(())
//! }
//! ```
//!
//! ```text
//!  Client ──control socket──► open, export, allocate more, another queue      (may be slow)
//!    └─ Queue ──rings──► read, write, copy, sync, send, receive, cancel       (microseconds)
//!         Request ─submit─► Pending ─wait─► Done | RequestError
//!                   └─submit_detached─────► poll, wait ─► Completed
//! ```
//!
//! Ownership is the whole intuition: a request takes its buffer and its end gives it back, so no
//! safe code looks at bytes that are still being written. At a deadline the daemon may have to keep
//! a buffer that the kernel still writes to; then the request ends with [`BufferState::Held`] and
//! [`Queue::poll_released`] gives the buffer back later. If the daemon ends, every request ends
//! with [`Cause::Disconnected`] and nothing waits for ever. The application connects again, or the
//! client goes on with the next daemon: [`Client::reconnect`] when asked, and requests with
//! [`Request::resubmit`] by themselves.
//!
//! The daemon is trusted to keep to the protocol with its own clients: it could as well hand out
//! wrong bytes. The other direction is not trusted at all; see `piped_ring`.
#![deny(unsafe_code)]

mod affinity;
mod arena;
#[cfg(feature = "async")]
mod async_directory;
mod buffer;
mod buffers;
mod calls;
mod client;
mod clock;
mod connection;
mod control;
mod core;
mod directory;
mod drops;
mod error;
mod file;
mod handle;
mod landed;
mod lent;
mod open;
mod origin;
mod path;
mod payload;
mod pending;
mod pieces;
mod queue;
mod recent;
mod reconnect;
mod request;
mod resubmission;
mod settings;
mod socket;
mod strip;
mod table;
#[cfg(feature = "async")]
mod tasks;
mod tile;
mod told;
mod wait;

pub use core::QueueCounters;

#[cfg(feature = "async")]
pub use async_directory::AsyncDirectory;
pub use buffer::{Buffer, BufferPin};
pub use buffers::Buffers;
#[cfg(feature = "async")]
pub use calls::{AsyncCalls, AsyncPaged};
pub use calls::{CallError, Calls, Extents, Name, Names, Paged};
pub use client::{Client, ClientBuilder};
pub use directory::Directory;
pub use error::{
    AllocateError, BufferState, BuffersError, BuffersFault, Cause, ConnectError, ExportError,
    LendError, OpenError, OutOfBuffer, PartError, PiecesError, PiecesFault, QueueError,
    ReconnectError, RequestError, SessionError, SubmitError, SubmitFault, errno_of, kind_of,
};
#[cfg(any(feature = "tokio", feature = "futures"))]
pub use file::AsyncFile;
pub use file::File;
pub use handle::{Handle, RegionExport, RegionOptions};
pub use lent::{Lent, PrivateOffer};
pub use open::OpenOptions;
pub use path::PathCosts;
pub use payload::Payload;
pub use pending::{Pending, Waited};
pub use pieces::{Piece, Pieces};
pub use piped_core::access::Access;
pub use piped_core::call::{self, Call, Stat};
pub use piped_core::status::Status;
pub use piped_model::tile::{Grid, Schedule, Tiling};
pub use queue::Queue;
pub use reconnect::Reconnected;
pub use request::{Class, Completed, Done, Released, Request, RequestId, Tag};
pub use socket::{DEFAULT_SOCKET, SOCKET_VARIABLE, SocketOrigin};
#[cfg(feature = "async")]
pub use strip::{OwnedStrip, StripStream};
pub use strip::{Strip, StripError, StripPolicy, StripReader, StripWriter, Strips};
#[cfg(feature = "tokio")]
pub use tasks::TokioRuntime;
#[cfg(feature = "async")]
pub use tasks::{AsyncClient, AsyncQueue, Ready, Running, Runtime, Watch};
pub use tile::{
    Axes, LinkCosts, Tile, TileError, TileHeight, TileOptions, TilePipeline, TileReport,
};
pub use wait::WaitPolicy;

/// The example on the package's front page is compiled with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Front;

/// The examples of the project's README are compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The guide's examples are compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;
