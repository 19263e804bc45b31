//! The client socket for commands: piped-client with its errors turned into exit codes.

use std::fmt;
use std::path::Path;

use piped_client::{
    AllocateError, Buffer, Cause, Client, ClientBuilder, ConnectError, OpenError, QueueError,
    RequestError, SessionError, Status, StripError, SubmitFault,
};

use crate::admin;
use crate::failure::{Exit, Failure};

/// Connects to the daemon at `socket`.
pub(crate) fn connect(builder: ClientBuilder, socket: &Path) -> Result<Client, Failure> {
    builder.connect(socket).map_err(|error| match error {
        ConnectError::Socket { source, .. } => {
            admin::unreachable(socket, &source, "--client-socket")
        }
        ConnectError::Session(error) => session(socket.display(), &error),
        other => Failure::failed(format!("{}: {other}", socket.display())),
    })
}

/// Allocates memory shared with the daemon.
pub(crate) fn allocate(client: &Client, length: u64) -> Result<Buffer, Failure> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    client.allocate(length).map_err(|error| match &error {
        AllocateError::Session(cause) => session("no memory from the daemon", cause),
        _ => Failure::failed(error.to_string()),
    })
}

pub(crate) fn queue(error: &QueueError) -> Failure {
    match error {
        QueueError::Session(cause) => session("no queue from the daemon", cause),
        QueueError::Attach(_) => Failure::failed(error.to_string()),
    }
}

/// Failure for `what`, which could not be opened.
pub(crate) fn open(what: impl fmt::Display, error: &OpenError) -> Failure {
    match error {
        OpenError::File { source, .. } => Failure::io(what, source),
        OpenError::NoDirectory { .. } => Failure::new(Exit::NotFound, error.to_string()),
        OpenError::Session(cause) => session(what, cause),
        OpenError::Option(_) | OpenError::Mode(_) => Failure::usage(format!("{what}: {error}")),
    }
}

pub(crate) fn session(what: impl fmt::Display, error: &SessionError) -> Failure {
    let exit = match error {
        SessionError::Refused { status, .. } => of_status(*status),
        SessionError::Disconnected => Exit::Unreachable,
        SessionError::TimedOut => Exit::Timeout,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("{what}: {error}"))
}

pub(crate) fn request(what: impl fmt::Display, error: &RequestError) -> Failure {
    Failure::new(exit_of(error.cause), format!("{what}: {error}"))
}

/// The kind of failure of a request that ended so.
pub(crate) const fn exit_of(cause: Cause) -> Exit {
    match cause {
        Cause::Status(status) => of_status(status),
        Cause::Disconnected => Exit::Unreachable,
        Cause::NotSubmitted(SubmitFault::Call) => Exit::Refused,
        _ => Exit::Failed,
    }
}

/// Failure of a file that is read strip by strip.
pub(crate) fn strips(what: impl fmt::Display, error: &StripError) -> Failure {
    let exit = error.cause().map_or(Exit::Failed, exit_of);
    Failure::new(exit, format!("{what}: {error}"))
}

pub(crate) fn submit(what: impl fmt::Display, fault: SubmitFault) -> Failure {
    let exit = match fault {
        SubmitFault::Disconnected => Exit::Unreachable,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("{what}: {fault}"))
}

const fn of_status(status: Status) -> Exit {
    match status {
        Status::Denied
        | Status::Unsupported
        | Status::Invalid
        | Status::WouldBlock
        | Status::IsDirectory
        | Status::Exists
        | Status::NotDirectory
        | Status::NotEmpty
        | Status::ReadOnly
        | Status::TooLarge
        | Status::NotPermitted
        | Status::Loop
        | Status::CrossDevice
        | Status::NameTooLong
        | Status::Locked => Exit::Refused,
        Status::NotFound | Status::Gone | Status::NoExport | Status::NoDirectory => Exit::NotFound,
        Status::DeadlineExceeded => Exit::Timeout,
        Status::PeerLost => Exit::Unreachable,
        _ => Exit::Failed,
    }
}
