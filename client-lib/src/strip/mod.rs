//! Strip mining: computation on bytes that are read, or written, piece by piece while the next
//! pieces travel.
//!
//! [`StripReader`] and [`StripWriter`] do what programs do by hand with non-blocking gets and
//! double buffers ("Message Strip-Mining Heuristics for High Speed Networks", figures 4 and 5): a
//! loop over `N` bytes with `U` requests ahead of the one that is waited for. How long the strips
//! are is a [`StripPolicy`]'s affair.
//!
//! ```text
//!  next() ─► strip 0 ─ compute ─► next() ─► strip 1 ─ compute ─► next() ...
//!   issue 0 1 2                    issue 3                        issue 4        U = 2
//!   wait for 0                     wait for 1                     wait for 2
//! ```
//!
//! `auto` sizes strips by what is known by then ([`size`]). It times the caller's computation per
//! byte between two calls ([`pace`]). The path's overhead, latency and pace come from the daemon
//! ([`crate::Handle::read_costs`]) or from the strips themselves.

mod cut;
mod flight;
mod pace;
mod reader;
mod room;
mod size;
#[cfg(feature = "async")]
mod stream;
mod writer;

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use piped_core::status::Status;

pub use self::reader::StripReader;
#[cfg(feature = "async")]
pub use self::stream::{OwnedStrip, StripStream};
pub use self::writer::StripWriter;
use crate::Buffer;
use crate::error::{AllocateError, Cause, RequestError};
use crate::path::PathCosts;
use crate::request::{Class, Request};

/// How long strips are.
///
/// ```
/// use piped_client::StripPolicy;
/// assert_eq!(StripPolicy::default(), StripPolicy::Auto);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum StripPolicy {
    /// By the costs of the computation and the path, strip by strip; one get where overlap cannot
    /// win.
    #[default]
    Auto,
    /// Strips of so many bytes each, the last one shorter.
    Fixed(usize),
    /// The first of so many bytes, each following one longer by `growth` (0.45 was the paper's,
    /// section 4.5), as far as the memory goes.
    Variable {
        /// Bytes of the first.
        first: usize,
        /// `f` in `S_i = (1 + f)·S_{i-1}`; negative or not finite is 0.
        growth: f64,
    },
}

/// Settings of a loop over strips: memory, policy, and what the caller knows.
///
/// ```
/// use piped_client::{StripPolicy, Strips};
/// let strips = Strips::new().policy(StripPolicy::Fixed(16 << 10)).unroll(4).memory(1 << 20);
/// assert!(format!("{strips:?}").contains("Fixed"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Strips {
    policy: StripPolicy,
    unroll: Option<u32>,
    memory: usize,
    grain: usize,
    compute: Option<f64>,
    costs: Option<PathCosts>,
    class: Class,
    deadline: Option<Duration>,
    resubmit: bool,
    durable: bool,
}

impl Default for Strips {
    fn default() -> Self {
        Self {
            policy: StripPolicy::Auto,
            unroll: None,
            memory: 8 << 20,
            grain: 64,
            compute: None,
            costs: None,
            class: Class::Session,
            deadline: None,
            resubmit: false,
            durable: false,
        }
    }
}

impl Strips {
    /// The defaults: `auto`, 8 MiB of memory, multiples of 64 bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long strips are.
    #[must_use]
    pub fn policy(self, policy: StripPolicy) -> Self {
        Self { policy, ..self }
    }

    /// `U`: requests on their way behind the one that is waited for, at least 1. Without, as many
    /// as the path's latency is worth.
    #[must_use]
    pub fn unroll(self, depth: u32) -> Self {
        Self { unroll: Some(depth.max(1)), ..self }
    }

    /// Bytes of the arena it may have at once; strips are as short as it takes, `(U+1)·S` of them
    /// fit.
    #[must_use]
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: bytes.max(1), ..self }
    }

    /// Strips, but the last, are multiples of so many bytes: the size of an element, so that none
    /// lies in two strips. Where the file has an alignment for direct access
    /// ([`crate::Handle::direct_alignment`]), of that as well.
    #[must_use]
    pub fn grain(self, bytes: usize) -> Self {
        Self { grain: bytes.max(1), ..self }
    }

    /// Seconds that the caller computes on a byte, as far as it knows: `auto` begins with that.
    #[must_use]
    pub fn compute(self, seconds_per_byte: f64) -> Self {
        Self { compute: Some(seconds_per_byte), ..self }
    }

    /// Costs of the path, as far as the caller knows them: the daemon is not asked then.
    #[must_use]
    pub fn costs(self, costs: PathCosts) -> Self {
        Self { costs: Some(costs), ..self }
    }

    /// How urgent the requests are.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// The time each request may take. Without, the daemon's default.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Requests outlive the daemon ([`crate::Request::resubmit`]).
    #[must_use]
    pub fn resubmit(self) -> Self {
        Self { resubmit: true, ..self }
    }

    /// Writers only: a strip counts as written when it is on stable storage.
    #[must_use]
    pub fn durable(self) -> Self {
        Self { durable: true, ..self }
    }

    fn dress(&self, mut request: Request<Buffer>) -> Request<Buffer> {
        request = request.class(self.class);
        if let Some(deadline) = self.deadline {
            request = request.deadline(deadline);
        }
        if self.resubmit { request.resubmit() } else { request }
    }
}

/// Some of the bytes, until the next strip is asked for.
#[derive(Debug)]
pub struct Strip<'a> {
    offset: u64,
    bytes: &'a mut [u8],
}

impl Strip<'_> {
    /// The offset of the strip's first byte in the file or region.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Deref for Strip<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for Strip<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// Why a loop over strips ended before its range did. What was under way is cancelled.
#[derive(thiserror::Error)]
pub enum StripError {
    /// The request of a strip failed.
    #[error("the strip of {bytes} bytes at {offset}: {error}")]
    Request {
        /// The offset of the range's first byte.
        offset: u64,
        /// Length of the strip in bytes.
        bytes: u64,
        /// The error of the request.
        #[source]
        error: RequestError,
    },
    /// The arena has no memory for a single strip.
    #[error("no memory for a strip: {0}")]
    Memory(#[from] AllocateError),
    /// The range ends before it begins, or its strips would be longer than requests may be.
    #[error(
        "a range from {start} to {end} has no bytes to read or write; give its first byte and the \
             one behind it"
    )]
    Range {
        /// The offset of the range's first byte.
        start: u64,
        /// The offset behind the range's last byte.
        end: u64,
    },
}

crate::told::debug_is_told!(StripError);

impl From<StripError> for std::io::Error {
    /// Keeps the cause and its text, or the error where it is about memory or the range.
    fn from(error: StripError) -> Self {
        match error {
            StripError::Request { error, .. } => error.into(),
            StripError::Memory(error) => error.into(),
            StripError::Range { .. } => Self::new(std::io::ErrorKind::InvalidInput, error),
        }
    }
}

impl StripError {
    /// The daemon's status, if it was a request that failed with one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Request { error, .. } => error.status(),
            Self::Memory(_) | Self::Range { .. } => None,
        }
    }

    /// Why the request failed, if it was one.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Request { error, .. } => Some(error.cause),
            Self::Memory(_) | Self::Range { .. } => None,
        }
    }
}
