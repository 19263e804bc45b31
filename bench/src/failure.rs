//! Reason why a row could not be measured: cause and fix, for people.

use std::fmt;
use std::io;

/// The reason as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Adds the place of the failure in front.
    pub(crate) fn within(&self, place: impl fmt::Display) -> Self {
        Self(format!("{place}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<piped_netns::Error> for Failure {
    fn from(error: piped_netns::Error) -> Self {
        Self(error.to_string())
    }
}

/// Adds the failed action to an error.
pub(crate) trait Doing<T> {
    /// Turns the error into a failure of `what`.
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

/// Result of a thread that ended; a panic is a failure with the thread's name.
pub(crate) fn joined<T>(
    ended: std::thread::Result<Result<T, Failure>>,
    name: &str,
) -> Result<T, Failure> {
    ended.unwrap_or_else(|_| Err(Failure::new(format!("{name} broke off"))))
}
