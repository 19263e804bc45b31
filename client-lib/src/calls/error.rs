//! Why a call failed.

use std::io;

use piped_core::call::NoCall;
use piped_core::status::Status;

use crate::error::{AllocateError, OpenError, RequestError};

/// Why a call failed.
///
/// ```
/// use piped_client::{BufferState, CallError, Cause, RequestError, Status};
/// let cause = Cause::Status(Status::Exists);
/// let error = CallError::from(RequestError { cause, bytes: 0, buffer: BufferState::None });
/// assert_eq!(error.status(), Some(Status::Exists));
/// ```
#[derive(thiserror::Error)]
pub enum CallError {
    /// The call was not carried out, or only in part.
    #[error("{}", .0.cause)]
    Request(#[from] RequestError),
    /// The arena has no room for the call and its answer.
    #[error("no memory for the call: {0}")]
    Memory(#[from] AllocateError),
    /// The answer is none to that call.
    #[error("the daemon's answer cannot be read; update the older of the two")]
    Answer(#[from] NoCall),
    /// A file that the call needs was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

crate::told::debug_is_told!(CallError);

impl CallError {
    /// The daemon's status, if it gave one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Request(error) => error.status(),
            Self::Memory(_) | Self::Answer(_) | Self::Open(_) => None,
        }
    }
}

impl From<CallError> for io::Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Request(error) => error.into(),
            CallError::Memory(error) => error.into(),
            CallError::Open(error) => error.into(),
            CallError::Answer(_) => Self::new(io::ErrorKind::InvalidData, error),
        }
    }
}
