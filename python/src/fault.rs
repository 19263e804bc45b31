//! Errors of the client as exceptions: subclasses of `OSError`, made by `piped_io.errors`.

use std::io::{self, ErrorKind};

use libc::{
    EACCES, EAGAIN, EBADMSG, ECANCELED, ECONNREFUSED, EINVAL, EIO, ENOENT, ENOMEM, ENOTCONN,
    ESTALE, ETIMEDOUT,
};
use piped_client::{
    AllocateError, Cause, ConnectError, ExportError, LendError, OpenError, OutOfBuffer, PartError,
    QueueError, ReconnectError, RequestError, SessionError, Status, StripError, SubmitFault,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// An error, before it is an exception: requests end where no Python can run.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    errno: i32,
    text: String,
    status: Option<Status>,
    /// Contiguous bytes done from the request's start.
    bytes: u64,
}

/// The number for a reason that has none of its own.
fn errno_by(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::NotFound => ENOENT,
        ErrorKind::WouldBlock => EAGAIN,
        ErrorKind::OutOfMemory => ENOMEM,
        ErrorKind::PermissionDenied => EACCES,
        ErrorKind::InvalidInput => EINVAL,
        ErrorKind::InvalidData => EBADMSG,
        ErrorKind::NotConnected => ENOTCONN,
        ErrorKind::TimedOut => ETIMEDOUT,
        ErrorKind::ConnectionRefused => ECONNREFUSED,
        ErrorKind::StaleNetworkFileHandle => ESTALE,
        _ => EIO,
    }
}

impl Fault {
    /// An argument that makes no sense.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self { errno: EINVAL, text: text.into(), status: None, bytes: 0 }
    }

    /// The caller's own limit in time, while the request goes on.
    pub(crate) fn not_yet() -> Self {
        let text = "the request is still under way; wait again, or cancel it";
        Self { errno: ETIMEDOUT, text: text.to_owned(), status: None, bytes: 0 }
    }

    /// A forked process asks something of its parent's client.
    pub(crate) fn forked() -> Self {
        let text = "this process was forked from the client's; make a client here, or start \
                    processes by multiprocessing's method spawn";
        Self { errno: ENOTCONN, text: text.to_owned(), status: None, bytes: 0 }
    }

    /// A call ended without an answer.
    pub(crate) fn panicked() -> Self {
        let text = "the call to the daemon panicked; standard error says where";
        Self { errno: EIO, text: text.to_owned(), status: None, bytes: 0 }
    }

    /// An answer that nobody can read.
    pub(crate) fn unreadable() -> Self {
        let text = "the answer of the call cannot be read; update the older of client and daemon";
        Self { errno: EBADMSG, text: text.to_owned(), status: None, bytes: 0 }
    }

    fn with_errno(mut self, errno: Option<i32>) -> Self {
        self.errno = errno.unwrap_or(self.errno);
        self
    }

    fn with_status(mut self, status: Option<Status>) -> Self {
        if status == Some(Status::Cancelled) {
            self.errno = ECANCELED;
        }
        self.status = status;
        self
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or_else(|| errno_by(error.kind()));
        Self { errno, text: error.to_string(), status: None, bytes: 0 }
    }
}

/// The status of a refusal.
fn refusal(error: &SessionError) -> Option<Status> {
    match error {
        SessionError::Refused { status, .. } => Some(*status),
        _ => None,
    }
}

impl From<SessionError> for Fault {
    fn from(error: SessionError) -> Self {
        let (errno, status) = (error.raw_os_error(), refusal(&error));
        Self::from(io::Error::from(error)).with_errno(errno).with_status(status)
    }
}

impl From<OpenError> for Fault {
    fn from(error: OpenError) -> Self {
        let errno = error.raw_os_error();
        let status = match &error {
            OpenError::Session(session) => refusal(session),
            _ => None,
        };
        Self::from(io::Error::from(error)).with_errno(errno).with_status(status)
    }
}

impl From<Cause> for Fault {
    fn from(cause: Cause) -> Self {
        let status = match cause {
            Cause::Status(status) => Some(status),
            _ => None,
        };
        let errno = cause.raw_os_error();
        Self::from(io::Error::from(cause)).with_errno(errno).with_status(status)
    }
}

impl From<&RequestError> for Fault {
    fn from(error: &RequestError) -> Self {
        Self { bytes: error.bytes, ..error.cause.into() }
    }
}

impl From<SubmitFault> for Fault {
    fn from(fault: SubmitFault) -> Self {
        io::Error::from(fault).into()
    }
}

/// Errors whose kind the client's own conversion knows.
macro_rules! by_kind {
    ($($error:ty)*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                io::Error::from(error).into()
            }
        }
    )*};
}

by_kind! { ConnectError }

/// The same, with the daemon's word if it refused.
macro_rules! by_kind_or_refusal {
    ($($error:ident)*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                let status = match &error {
                    $error::Session(error) => refusal(error),
                    _ => None,
                };
                Self::from(io::Error::from(error)).with_status(status)
            }
        }
    )*};
}

by_kind_or_refusal! { AllocateError QueueError }

/// Errors that are about what was asked for.
macro_rules! by_text {
    ($($error:ty)*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Self::invalid(error.to_string())
            }
        }
    )*};
}

by_text! { PartError }

impl From<LendError> for Fault {
    fn from(error: LendError) -> Self {
        match error {
            LendError::Session(error) => error.into(),
            error => Self::invalid(error.to_string()),
        }
    }
}

impl From<StripError> for Fault {
    fn from(error: StripError) -> Self {
        let text = error.to_string();
        match error {
            StripError::Request { error, .. } => Self { text, ..Self::from(&error) },
            StripError::Memory(error) => error.into(),
            StripError::Range { .. } => Self::invalid(text),
        }
    }
}

impl From<ExportError> for Fault {
    fn from(error: ExportError) -> Self {
        error.cause.into()
    }
}

impl From<ReconnectError> for Fault {
    fn from(error: ReconnectError) -> Self {
        Self { errno: ENOTCONN, text: error.to_string(), status: None, bytes: 0 }
    }
}

/// An access that is not inside a buffer or region: an argument that Python calls wrong.
pub(crate) fn outside(error: OutOfBuffer) -> PyErr {
    PyValueError::new_err(error.to_string())
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        Python::attach(|py| {
            let status = fault.status.map(|status| format!("{status:?}"));
            let made = MAKE
                .import(py, "piped_io.errors", "make")
                .and_then(|make| make.call1((fault.errno, fault.text, status, fault.bytes)));
            made.map_or_else(|error| error, Self::from_value)
        })
    }
}
