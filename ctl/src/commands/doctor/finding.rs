//! What a check says.

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Could not be looked at from here.
    Unknown,
    /// piped works, but slower or not for everybody.
    Warning,
    /// piped, or a part of it, does not work.
    Error,
}

impl Level {
    /// The mark in front of a line.
    pub(super) const fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok     ",
            Self::Unknown => "?      ",
            Self::Warning => "WARNING",
            Self::Error => "ERROR  ",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What it is about, as in `io_uring`.
    pub(crate) subject: String,
    /// How bad.
    pub(crate) level: Level,
    /// What was found.
    pub(crate) what: String,
    /// Why it matters; empty where all is well.
    pub(crate) why: String,
    /// What to type, or to do, line by line.
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
