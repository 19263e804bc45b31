//! The finding of a check.

use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Everything is as it should be.
    Ok,
    /// The matter cannot be seen from here.
    Unknown,
    /// The daemon works, but slower or not for everybody.
    Warning,
    /// The daemon, or a part of it, does not work.
    Error,
}

impl Level {
    /// Mark in front of a line.
    pub(super) const fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok     ",
            Self::Unknown => "?      ",
            Self::Warning => "WARNING",
            Self::Error => "ERROR  ",
        }
    }
}

/// Result for one thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Subject of the check, as in `io_uring`.
    pub(crate) subject: String,
    /// Severity of the finding.
    pub(crate) level: Level,
    /// Text of the finding.
    pub(crate) what: String,
    /// Reason why it matters; empty where all is well.
    pub(crate) why: String,
    /// Commands or steps of the fix, line by line.
    pub(crate) fix: Vec<String>,
}

impl Finding {
    pub(super) fn ok(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Level::Ok, subject, what)
    }

    pub(super) fn unknown(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Level::Unknown, subject, what)
    }

    pub(super) fn warning(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Level::Warning, subject, what)
    }

    pub(super) fn error(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Level::Error, subject, what)
    }

    fn new(level: Level, subject: impl Into<String>, what: impl Into<String>) -> Self {
        let (subject, what) = (subject.into(), what.into());
        Self { subject, level, what, why: String::new(), fix: Vec::new() }
    }

    pub(super) fn why(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }

    pub(super) fn fix(mut self, line: impl Into<String>) -> Self {
        self.fix.push(line.into());
        self
    }
}
