//! Where a program is in a file, and what is to be read next. Pure.

use std::io::{self, SeekFrom};
use std::ops::Range;

use crate::arena::PAGE_BYTES;

/// The longest single read: a caller with more room than that gets it in parts.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Bytes of writes that are gathered.
pub(super) const WRITE_BYTES: usize = 256 << 10;

/// A position in a file.
#[derive(Debug)]
pub(super) struct Cursor {
    position: u64,
    /// Length of the file as far as this program knows.
    length: u64,
    /// The end of the last read.
    read_to: Option<u64>,
}

/// What is to be read next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// All of this, in strips: the reads follow each other.
    Ahead(Range<u64>),
    /// This range only, in one request.
    Read(Range<u64>),
}

impl Cursor {
    pub(super) fn new(length: u64) -> Self {
        Self { position: 0, length, read_to: None }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Goes on by `bytes`.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.position += bytes as u64;
    }

    /// The bytes that begin at `offset`, from the position on.
    pub(super) fn part<'a>(&self, offset: u64, bytes: &'a [u8]) -> &'a [u8] {
        let skipped = self.position.checked_sub(offset).and_then(|it| usize::try_from(it).ok());
        skipped.and_then(|skipped| bytes.get(skipped..)).unwrap_or_default()
    }

    /// What to read for somebody with room for `wanted` bytes.
    pub(super) fn plan(&self, wanted: usize) -> Plan {
        if self.read_to == Some(self.position) && self.position < self.length {
            return Plan::Ahead(self.position..self.length);
        }
        // Whole pages, which go past the page cache.
        let offset = self.position / PAGE_BYTES * PAGE_BYTES;
        let wanted = (wanted as u64).clamp(1, READ_BYTES_MAX - PAGE_BYTES);
        let end = self.position.saturating_add(wanted).checked_next_multiple_of(PAGE_BYTES);
        Plan::Read(offset..end.unwrap_or(u64::MAX))
    }

    /// Bytes were read up to `end`.
    pub(super) fn handle_read(&mut self, end: u64) {
        self.read_to = Some(end);
        self.length = self.length.max(end);
    }

    /// Bytes are to be written up to `end`: what was read is old.
    pub(super) fn handle_written(&mut self, end: u64) {
        self.read_to = None;
        self.length = self.length.max(end);
    }

    /// The file is so long now.
    pub(super) fn set_length(&mut self, length: u64) {
        self.length = length;
    }

    /// Moves the position, as files do.
    pub(super) fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let text = "a seek to before the first byte, or beyond 2^64";
        self.position = place.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, text))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_follow_each_other_are_read_ahead() {
        let mut cursor = Cursor::new(100_000);
        assert_eq!(cursor.plan(10), Plan::Read(0..4096));
        cursor.handle_read(4096);
        cursor.advance(10);
        assert_eq!(cursor.part(0, b"0123456789abc"), b"abc");
        cursor.advance(4086);
        assert_eq!(cursor.plan(10), Plan::Ahead(4096..100_000));
        cursor.seek(SeekFrom::Start(50_000)).expect("inside");
        assert_eq!(cursor.plan(4096), Plan::Read(49_152..57_344), "whole pages");
        assert_eq!(cursor.part(60_000, b"abc"), b"", "not there");
        cursor.seek(SeekFrom::End(0)).expect("the end");
        cursor.handle_read(100_000);
        assert_eq!(cursor.plan(1), Plan::Read(98_304..102_400), "others may have written more");
        cursor.seek(SeekFrom::Start(u64::MAX)).expect("a number");
        let Plan::Read(range) = cursor.plan(usize::MAX) else { panic!("nothing to read ahead") };
        assert!(range.contains(&(u64::MAX - 1)), "{range:?}");
    }

    #[test]
    fn seeks_are_those_of_files() {
        let mut cursor = Cursor::new(10);
        assert_eq!(cursor.seek(SeekFrom::End(-3)).expect("inside"), 7);
        assert_eq!(cursor.seek(SeekFrom::Current(-7)).expect("inside"), 0);
        let before = cursor.seek(SeekFrom::Current(-1)).expect_err("before the first byte");
        assert_eq!((before.kind(), cursor.position()), (io::ErrorKind::InvalidInput, 0));
        cursor.handle_written(30);
        assert_eq!(cursor.seek(SeekFrom::End(1)).expect("behind the end"), 31);
        assert!(cursor.seek(SeekFrom::End(i64::MIN)).is_err());
    }
}
