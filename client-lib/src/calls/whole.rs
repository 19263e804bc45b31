//! Copies of files as a whole, in parts that a call can copy.

use piped_core::call::COPY_BYTES_MAX;

/// A file that is copied in parts, as far as it is.
#[derive(Debug, Default)]
pub(super) struct Whole {
    at: u64,
    ended: bool,
}

impl Whole {
    /// The next part, unless all is copied.
    pub(super) fn next(&self) -> Option<std::ops::Range<u64>> {
        (!self.ended).then(|| self.at..self.at + COPY_BYTES_MAX)
    }

    /// A part has been copied, of so many bytes.
    pub(super) fn note(&mut self, bytes: u64) {
        self.at += bytes;
        self.ended = bytes < COPY_BYTES_MAX;
    }

    /// Bytes that are copied.
    pub(super) fn bytes(&self) -> u64 {
        self.at
    }
}
