//! Why a call failed: a number for programs and a text for people.

use std::borrow::Cow;

use client_lib::{
    AllocateError, BuffersFault, CallError, ConnectError, ExportError, LendError, OpenError,
    PartError, PiecesError, QueueError, ReconnectError, RequestError, SessionError, Status,
    StripError, SubmitFault, TileError,
};

use crate::status::piped_status;
use crate::status::piped_status::*;

/// The reason why a call failed.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) status: piped_status,
    pub(crate) text: Cow<'static, str>,
}

impl Fault {
    /// A fault with the text that belongs to its number.
    pub(crate) fn fixed(status: piped_status) -> Self {
        Self { status, text: Cow::Borrowed(status.text().to_str().unwrap_or_default()) }
    }

    /// A fault with a text for this occasion.
    pub(crate) fn told(status: piped_status, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    /// The fault of a request that ended; its message is there already.
    pub(crate) fn of_result(status: piped_status) -> Self {
        Self { status, text: Cow::Borrowed("") }
    }

    /// An argument makes no sense.
    pub(crate) fn argument(text: &'static str) -> Self {
        Self::told(piped_status::PIPED_ARGUMENT, text)
    }
}

fn of_session(error: &SessionError) -> piped_status {
    match error {
        SessionError::Refused { status, .. } => (*status).into(),
        SessionError::Disconnected => PIPED_DISCONNECTED,
        SessionError::TimedOut => PIPED_TIMED_OUT,
        SessionError::Unsendable(_) => PIPED_ARGUMENT,
        SessionError::Protocol(_) | SessionError::Unexpected => PIPED_BROKEN,
        SessionError::System(error) => of_system(error),
    }
}

/// What the kernel says here has the number that it has from a daemon, if that is about files.
fn of_system(error: &std::io::Error) -> piped_status {
    match error.raw_os_error().map(Status::of_errno) {
        Some(
            status @ (Status::NotFound
            | Status::IsDirectory
            | Status::NoSpace
            | Status::Exists
            | Status::NotDirectory
            | Status::ReadOnly
            | Status::TooLarge
            | Status::NotPermitted
            | Status::Loop
            | Status::NameTooLong),
        ) => status.into(),
        _ => PIPED_SYSTEM,
    }
}

fn of_allocate(error: &AllocateError) -> piped_status {
    match error {
        AllocateError::Length(_) => PIPED_RANGE,
        AllocateError::Session(error) => of_session(error),
        AllocateError::Memory(_) => PIPED_SYSTEM,
    }
}

fn of_lend(error: &LendError) -> piped_status {
    match error {
        LendError::Unsupported => PIPED_UNSUPPORTED,
        LendError::Forked => PIPED_DENIED,
        LendError::Session(error) => of_session(error),
        LendError::Memory(_) | LendError::Area(_) => PIPED_ARGUMENT,
    }
}

fn of_connect(error: &ConnectError) -> piped_status {
    match error {
        ConnectError::Socket { source, .. } => of_system(source),
        ConnectError::Session(error) => of_session(error),
        ConnectError::Memory(_) | ConnectError::Queue(_) => PIPED_SYSTEM,
    }
}

fn of_open(error: &OpenError) -> piped_status {
    match error {
        OpenError::File { source, .. } => of_system(source),
        OpenError::NoDirectory { .. } => PIPED_NO_DIRECTORY,
        OpenError::Option(_) | OpenError::Mode(_) => PIPED_ARGUMENT,
        OpenError::Session(error) => of_session(error),
    }
}

fn of_queue(error: &QueueError) -> piped_status {
    match error {
        QueueError::Session(error) => of_session(error),
        QueueError::Attach(_) => PIPED_SYSTEM,
    }
}

/// The numbers of client-lib's errors; their text goes along.
macro_rules! faults {
    ($($error:ty: $status:expr,)*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                let status: fn(&$error) -> piped_status = $status;
                Self::told(status(&error), error.to_string())
            }
        }
    )*};
}

faults! {
    ConnectError: of_connect,
    RequestError: |error| error.cause.into(),
    CallError: |error| match error {
        CallError::Request(error) => error.cause.into(),
        CallError::Memory(error) => of_allocate(error),
        CallError::Open(error) => of_open(error),
        CallError::Answer(_) => PIPED_BROKEN,
    },
    SubmitFault: |fault| (*fault).into(),
    ExportError: |error| of_session(&error.cause),
    SessionError: of_session,
    std::io::Error: of_system,
    client_lib::OutOfBuffer: |_| PIPED_RANGE,
    OpenError: of_open,
    LendError: of_lend,
    PartError: |error| match error {
        PartError::Outside(_) => PIPED_RANGE,
        PartError::Taken { .. } => PIPED_TAKEN,
    },
    AllocateError: of_allocate,
    PiecesError: |error| match error {
        PiecesError::Fault(_) => PIPED_RANGE,
        PiecesError::Allocate(error) => of_allocate(error),
    },
    BuffersFault: |_| PIPED_RANGE,
    QueueError: of_queue,
    StripError: |error| match error {
        StripError::Request { error, .. } => error.cause.into(),
        StripError::Memory(error) => of_allocate(error),
        StripError::Range { .. } => PIPED_RANGE,
    },
    TileError: |error| match error {
        TileError::Options(_) | TileError::Mismatch { .. } => PIPED_ARGUMENT,
        TileError::Allocate(error) => of_allocate(error),
        TileError::Queue(error) => of_queue(error),
        TileError::Export(error) => of_session(&error.cause),
        TileError::Absent { source, .. } => of_open(source),
        TileError::Neighbour { cause, .. } | TileError::Own(cause) => (*cause).into(),
        TileError::Late { .. } => PIPED_TIMED_OUT,
        TileError::Over => PIPED_LOST,
    },
    ReconnectError: |error| match error {
        ReconnectError::NotAsked => PIPED_NOT_RECONNECTING,
        ReconnectError::Away { .. } => PIPED_DISCONNECTED,
        ReconnectError::Connect(error) => of_connect(error),
    },
}
