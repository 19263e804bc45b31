//! Errors as those of the operating system, for programs that know nothing of piped.

use std::io::{self, ErrorKind};

use piped_core::status::Status;

use super::{
    AllocateError, Cause, ConnectError, ExportError, OpenError, QueueError, RequestError,
    SessionError, SubmitFault,
};

/// The kind of error that a status is to a program that reads and writes files.
///
/// ```
/// use std::io::ErrorKind;
/// use piped_client::{Status, kind_of};
/// assert_eq!(kind_of(Status::NoSpace), ErrorKind::StorageFull);
/// assert_eq!(kind_of(Status::Exists), ErrorKind::AlreadyExists);
/// ```
#[must_use]
pub fn kind_of(status: Status) -> ErrorKind {
    match status {
        Status::Ok | Status::Io | Status::OutcomeUnknown => ErrorKind::Other,
        Status::Unsupported => ErrorKind::Unsupported,
        Status::Invalid | Status::BadHandle | Status::BadBuffer => ErrorKind::InvalidInput,
        Status::Denied | Status::NotPermitted => ErrorKind::PermissionDenied,
        Status::DeadlineExceeded => ErrorKind::TimedOut,
        // Not `Interrupted`, which the standard library tries again.
        Status::Cancelled => ErrorKind::Other,
        Status::NoSpace => ErrorKind::StorageFull,
        Status::PeerLost => ErrorKind::HostUnreachable,
        Status::Gone => ErrorKind::StaleNetworkFileHandle,
        Status::NotFound | Status::NoExport | Status::NoDirectory => ErrorKind::NotFound,
        Status::WouldBlock => ErrorKind::WouldBlock,
        Status::Corrupt => ErrorKind::InvalidData,
        Status::Closed => ErrorKind::NotConnected,
        Status::TooLong => ErrorKind::InvalidInput,
        Status::IsDirectory => ErrorKind::IsADirectory,
        Status::Exists => ErrorKind::AlreadyExists,
        Status::NotDirectory => ErrorKind::NotADirectory,
        Status::NotEmpty => ErrorKind::DirectoryNotEmpty,
        Status::ReadOnly => ErrorKind::ReadOnlyFilesystem,
        Status::TooLarge => ErrorKind::FileTooLarge,
        Status::Loop => ErrorKind::Other,
        Status::CrossDevice => ErrorKind::CrossesDevices,
        Status::NameTooLong => ErrorKind::InvalidFilename,
        Status::Locked => ErrorKind::WouldBlock,
    }
}

/// The error number of Linux that says the same as a status, for programs that act by numbers.
/// `None` if all went well.
#[must_use]
pub fn errno_of(status: Status) -> Option<i32> {
    status.errno()
}

/// An error of the kind, which keeps the first one with its text.
fn of(kind: ErrorKind, error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(kind, error)
}

/// How an error became what it is, in the order of what is asked first.
enum Reason<'a> {
    Status(Status),
    System(&'a io::Error),
    Kind(ErrorKind),
}

impl Reason<'_> {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Status(status) => kind_of(*status),
            Self::System(error) => error.kind(),
            Self::Kind(kind) => *kind,
        }
    }
}

fn session(error: &SessionError) -> Reason<'_> {
    match error {
        SessionError::Refused { status, .. } => Reason::Status(*status),
        SessionError::Disconnected => Reason::Kind(ErrorKind::NotConnected),
        SessionError::TimedOut => Reason::Kind(ErrorKind::TimedOut),
        SessionError::Unsendable(_) => Reason::Kind(ErrorKind::InvalidInput),
        SessionError::Protocol(_) | SessionError::Unexpected => {
            Reason::Kind(ErrorKind::InvalidData)
        }
        SessionError::System(error) => Reason::System(error),
    }
}

fn submit(fault: SubmitFault) -> Reason<'static> {
    Reason::Kind(match fault {
        SubmitFault::Full => ErrorKind::WouldBlock,
        SubmitFault::Disconnected => ErrorKind::NotConnected,
        SubmitFault::HandleLost => ErrorKind::StaleNetworkFileHandle,
        SubmitFault::NoRoom => ErrorKind::OutOfMemory,
        SubmitFault::NotLent => ErrorKind::NotConnected,
        SubmitFault::Foreign | SubmitFault::Piece | SubmitFault::TableLost | SubmitFault::Call => {
            ErrorKind::InvalidInput
        }
    })
}

fn cause(cause: Cause) -> Reason<'static> {
    match cause {
        Cause::Status(status) => Reason::Status(status),
        Cause::Unknown(_) => Reason::Kind(ErrorKind::Other),
        Cause::Disconnected => Reason::Kind(ErrorKind::NotConnected),
        Cause::Broken => Reason::Kind(ErrorKind::InvalidData),
        Cause::NotSubmitted(fault) => submit(fault),
        Cause::OtherQueue => Reason::Kind(ErrorKind::InvalidInput),
        Cause::NoRuntime => Reason::Kind(ErrorKind::Other),
    }
}

fn connect(error: &ConnectError) -> Reason<'_> {
    match error {
        ConnectError::Socket { source, .. } => Reason::System(source),
        ConnectError::Session(error) => session(error),
        ConnectError::Memory(_) | ConnectError::Queue(_) => Reason::Kind(ErrorKind::Other),
    }
}

fn open(error: &OpenError) -> Reason<'_> {
    match error {
        OpenError::File { source, .. } => Reason::System(source),
        OpenError::NoDirectory { .. } => Reason::Status(Status::NoDirectory),
        OpenError::Option(_) | OpenError::Mode(_) => Reason::Kind(ErrorKind::InvalidInput),
        OpenError::Session(error) => session(error),
    }
}

fn allocate(error: &AllocateError) -> Reason<'_> {
    match error {
        AllocateError::Length(_) => Reason::Kind(ErrorKind::InvalidInput),
        AllocateError::Session(error) => session(error),
        AllocateError::Memory(_) => Reason::Kind(ErrorKind::OutOfMemory),
    }
}

/// Conversions that keep the error, whose text the `io::Error` shows.
macro_rules! kept {
    ($($error:ty: $reason:expr,)*) => {$(
        impl From<$error> for io::Error {
            /// Keeps the error and its text; the kind is that of the reason.
            fn from(error: $error) -> Self {
                let reason: fn(&$error) -> Reason<'_> = $reason;
                let kind = reason(&error).kind();
                of(kind, error)
            }
        }
    )*};
}

kept! {
    SessionError: session,
    ConnectError: connect,
    OpenError: open,
    AllocateError: allocate,
    SubmitFault: |fault| submit(*fault),
    Cause: |it| cause(*it),
    QueueError: |error| match error {
        QueueError::Session(error) => session(error),
        QueueError::Attach(_) => Reason::Kind(ErrorKind::Other),
    },
}

impl From<RequestError> for io::Error {
    /// Keeps the cause and its text. The buffer goes back to the arena, as when the error is
    /// dropped: who wants it takes it out before.
    fn from(error: RequestError) -> Self {
        of(cause(error.cause).kind(), error.cause)
    }
}

impl From<ExportError> for io::Error {
    /// Keeps the cause and its text, not the memory.
    fn from(error: ExportError) -> Self {
        error.cause.into()
    }
}

/// The number of the reason, if it has one.
fn number(reason: Reason<'_>) -> Option<i32> {
    match reason {
        Reason::Status(status) => status.errno(),
        Reason::System(error) => error.raw_os_error(),
        Reason::Kind(_) => None,
    }
}

/// The error number of why a question was not answered.
pub(super) fn of_session(error: &SessionError) -> Option<i32> {
    number(session(error))
}

/// The error number of why something was not opened.
pub(super) fn of_open(error: &OpenError) -> Option<i32> {
    number(open(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::BufferState;

    /// The kernel's numbers and the standard library agree with ours.
    #[test]
    fn a_status_is_of_the_kind_of_its_number() {
        for status in Status::ALL {
            let Some(errno) = status.errno() else { continue };
            let (ours, theirs) = (kind_of(status), io::Error::from_raw_os_error(errno).kind());
            // Kinds that have no stable name are nobody's.
            let unnamed = [ErrorKind::Other, ErrorKind::InvalidInput, ErrorKind::InvalidData];
            assert!(
                ours == theirs || unnamed.contains(&ours) || status == Status::Closed,
                "{status:?} is {ours:?}, and {errno} is {theirs:?}"
            );
        }
    }

    #[test]
    fn errors_keep_their_text_and_their_kind() {
        let refused = |status| SessionError::Refused { status, message: "the reason".to_owned() };
        let error = io::Error::from(OpenError::from(refused(Status::ReadOnly)));
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
        assert_eq!(error.to_string(), "the reason");
        assert_eq!(OpenError::from(refused(Status::ReadOnly)).raw_os_error(), Some(30));
        let buffer = BufferState::None;
        let request = RequestError { cause: Cause::Status(Status::NoSpace), bytes: 7, buffer };
        let error = io::Error::from(request);
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.to_string().contains("no space left"), "{error}");
        let inner = error.get_ref().and_then(|it| it.downcast_ref::<Cause>());
        assert_eq!(inner.and_then(Cause::raw_os_error), Some(28));
        let local = OpenError::File { path: "a".into(), source: io::Error::from_raw_os_error(21) };
        assert_eq!(local.raw_os_error(), Some(21));
        assert_eq!(io::Error::from(local).kind(), ErrorKind::IsADirectory);
    }
}
