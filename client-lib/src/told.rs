//! `Debug` of errors is what a program prints that ends with one: `main() -> Result<(), Box<dyn
//! Error>>`, `unwrap` and `expect` show it, and `Display` never. So it says in words what happened,
//! not how the error lies in memory.

use std::error::Error;
use std::fmt::{self, Formatter, Write as _};

/// The text of `error`, and of each of its sources that the text before it does not say already.
pub(crate) fn debug(error: &dyn Error, f: &mut Formatter<'_>) -> fmt::Result {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        if !told.contains(&text) {
            write!(told, ": {text}")?;
        }
        source = error.source();
    }
    f.write_str(&told)
}

/// Implements `Debug` of errors by [`debug`].
macro_rules! debug_is_told {
    ($($error:ty),* $(,)?) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::told::debug(self, f)
            }
        }
    )*};
}
pub(crate) use debug_is_told;

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use piped_core::status::Status;
    use piped_ring::handshake::HandshakeFault;

    use crate::error::*;
    use crate::socket::SocketOrigin;

    #[derive(Debug, thiserror::Error)]
    #[error("the outer one")]
    struct Outer(#[source] io::Error);

    struct Shown<'a>(&'a dyn std::error::Error);

    impl std::fmt::Debug for Shown<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            super::debug(self.0, f)
        }
    }

    #[test]
    fn sources_are_told_once() {
        let outer = Outer(io::Error::other("the inner one"));
        assert_eq!(format!("{:?}", Shown(&outer)), "the outer one: the inner one");
        let away = ReconnectError::Away {
            within: std::time::Duration::from_secs(2),
            last: Some(ConnectError::Socket {
                path: PathBuf::from("/run/none"),
                origin: SocketOrigin::Given,
                source: io::Error::from_raw_os_error(2),
            }),
        };
        let text = format!("{away:?}");
        assert_eq!(text.matches("No such file or directory").count(), 1, "{text}");
        assert_eq!(text, away.to_string());
    }

    /// The text as `main` prints it.
    fn printed<E: std::error::Error + 'static>(error: E) -> (String, String) {
        let display = error.to_string();
        let boxed: Box<dyn std::error::Error> = error.into();
        (format!("{boxed:?}"), display)
    }

    #[test]
    fn what_main_prints_of_an_error_is_its_text() {
        let denied = || Cause::Status(Status::Denied);
        let session = || SessionError::Refused {
            status: Status::NotFound,
            message: "no export `data` on this node for you".to_owned(),
        };
        let request = || RequestError { cause: denied(), bytes: 7, buffer: BufferState::Held };
        let all = [
            printed(session()),
            printed(SessionError::Protocol(HandshakeFault::Magic)),
            printed(ConnectError::Session(session())),
            printed(ReconnectError::NotAsked),
            printed(QueueError::Session(session())),
            printed(AllocateError::Session(session())),
            printed(OpenError::Session(session())),
            printed(ExportError { cause: session(), buffer: None }),
            printed(SubmitFault::Full),
            printed(PiecesFault::Bytes(1 << 31)),
            printed(PiecesError::Fault(PiecesFault::Row(3))),
            printed(SubmitError { fault: SubmitFault::Foreign, buffer: () }),
            printed(denied()),
            printed(request()),
            printed(OutOfBuffer { offset: 1, length: 2, buffer_bytes: 2 }),
            printed(crate::StripError::Request { offset: 0, bytes: 4096, error: request() }),
            printed(crate::TileError::Own(denied())),
        ];
        for (debug, display) in all {
            assert_eq!(debug, display);
        }
    }
}
