//! Failures, by what a script can do about them.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// The exit codes, which are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command did not work.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No daemon answers at the socket.
    Unreachable = 3,
    /// The daemon, or the kernel, does not allow it.
    Refused = 4,
    /// No answer came in time.
    Timeout = 5,
    /// There is no such thing.
    NotFound = 6,
    /// Ctrl-C (128 + SIGINT, as a shell says it).
    Interrupted = 130,
}

/// A failed command: cause and fix for people, the kind for programs.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
    reader_gone: bool,
    spoilt: bool,
}

impl Failure {
    /// A failure of this kind, with its cause and fix.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), reader_gone: false, spoilt: false }
    }

    /// A command that did not work.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// A command line that is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Failure of a file or a system call: not found and not allowed have their own codes.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            io::ErrorKind::PermissionDenied => Exit::Refused,
            io::ErrorKind::TimedOut => Exit::Timeout,
            _ => Exit::Failed,
        };
        Self::new(exit, format!("{what}: {error}"))
    }

    /// Adds another fact or advice.
    #[must_use]
    pub fn and(self, more: impl fmt::Display) -> Self {
        Self { message: format!("{}; {more}", self.message), ..self }
    }

    /// Adds that the work so far is of no use: it has to begin anew.
    #[must_use]
    pub fn spoilt(self) -> Self {
        Self { spoilt: true, ..self }
    }

    /// Whether the work is to be begun anew.
    #[must_use]
    pub const fn is_spoilt(&self) -> bool {
        self.spoilt
    }

    /// Failure of writing to stdout; a reader that has seen enough (`| head`) is none.
    pub fn stdout(error: &io::Error) -> Self {
        let reader_gone = error.kind() == io::ErrorKind::BrokenPipe;
        Self { reader_gone, ..Self::failed(format!("cannot write to stdout: {error}")) }
    }

    /// Whether the reader of stdout has seen enough.
    #[must_use]
    pub const fn is_reader_gone(&self) -> bool {
        self.reader_gone
    }

    /// What kind of failure it is.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        self.exit
    }

    /// The kind as the process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit as u8)
    }
}

/// Text for stderr; escapes in quoted text cannot reach the terminal.
#[must_use]
pub fn shown(failure: &Failure) -> String {
    piped_text::shown_lines(&failure.message).into_owned()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
