//! What a file or region must contain, as far as the completions told so far determine it.
//!
//! Each client writes only in an area of its own, so no order between clients has to be guessed. A
//! byte is *known* when the last write that touched it ended well; a write in flight, or one that
//! failed after its reported bytes, makes its range unknown until the next good one. A second copy
//! follows what was promised to survive a crash.

use std::ops::Range;

/// The content of one object.
#[derive(Debug)]
pub struct Expected {
    bytes: Vec<u8>,
    stable: Vec<u8>,
    /// What of [`KNOWN`], [`STABLE_KNOWN`] and [`LOST`] is true of each byte.
    marks: Vec<u8>,
    /// The end of the file is between these two.
    length: Range<u64>,
    /// At least that much of the length survives a crash.
    stable_length: u64,
    syncs: Vec<PendingSync>,
    syncs_begun: u64,
    /// Crashes so far: an end that is told after a crash may speak of a time before it.
    pub crashes: u32,
}

/// The byte in `bytes` is what a read must see.
const KNOWN: u8 = 1;
/// The byte in `stable` is what a crash must leave.
const STABLE_KNOWN: u8 = 2;
/// Written, acknowledged, and lost in a crash; nobody who syncs may be told that all is well.
const LOST: u8 = 4;
/// Written through a handle that is closed: no sync through another one tells of its loss.
const GIVEN_UP: u8 = 8;

/// A sync in flight: what it will have made stable when it ends.
#[derive(Debug)]
struct PendingSync {
    id: u64,
    area: Range<usize>,
    bytes: Vec<u8>,
    covered: Vec<bool>,
    length: u64,
    crashes: u32,
}

impl Expected {
    /// An object of `content`, with room to grow to `most` bytes.
    #[must_use]
    pub fn new(content: &[u8], most: usize) -> Self {
        let mut bytes = content.to_vec();
        bytes.resize(most, 0);
        let length = content.len() as u64;
        Self {
            stable: bytes.clone(),
            bytes,
            marks: vec![KNOWN | STABLE_KNOWN; most],
            length: length..length,
            stable_length: length,
            syncs: Vec::new(),
            syncs_begun: 0,
            crashes: 0,
        }
    }

    /// Where the end of the file may be: between start and end of this range, both included.
    #[must_use]
    pub const fn length(&self) -> &Range<u64> {
        &self.length
    }

    /// A write of the range begins.
    pub fn begin_write(&mut self, range: Range<usize>) {
        self.length.end = self.length.end.max(range.end as u64);
        self.marks[range.clone()].fill(0);
        for sync in &mut self.syncs {
            let start = range.start.clamp(sync.area.start, sync.area.end) - sync.area.start;
            let end = range.end.clamp(sync.area.start, sync.area.end) - sync.area.start;
            sync.covered[start..end].fill(false);
        }
    }

    /// The bytes at `start` are there: the write ended, or said that it came so far. `known` says
    /// which of them are known themselves (a copy of something unknown is unknown).
    pub fn end_write(&mut self, start: usize, data: &[u8], known: Option<&[bool]>, durable: bool) {
        if data.is_empty() {
            return;
        }
        let range = start..start + data.len();
        self.length.start = self.length.start.max(range.end as u64);
        self.bytes[range.clone()].copy_from_slice(data);
        let good = if durable { KNOWN | STABLE_KNOWN } else { KNOWN };
        for (place, mark) in self.marks[range.clone()].iter_mut().enumerate() {
            let known = known.is_none_or(|known| known[place]);
            *mark = (*mark & !good) | if known { good } else { 0 };
        }
        if durable {
            self.stable_length = self.stable_length.max(range.end as u64);
            self.stable[range].copy_from_slice(data);
        }
    }

    /// A sync begins; it will cover what is known now in the caller's area.
    pub fn begin_sync(&mut self, area: Range<usize>) -> u64 {
        self.syncs_begun += 1;
        self.syncs.push(PendingSync {
            id: self.syncs_begun,
            bytes: self.bytes[area.clone()].to_vec(),
            covered: self.marks[area.clone()].iter().map(|mark| mark & KNOWN != 0).collect(),
            area,
            length: self.length.start,
            crashes: self.crashes,
        });
        self.syncs_begun
    }

    /// A sync ended. False if it says that all is well, but writes acknowledged before a crash, and
    /// before the sync began, are gone.
    #[must_use]
    pub fn end_sync(&mut self, id: u64, worked: bool) -> bool {
        let Some(place) = self.syncs.iter().position(|sync| sync.id == id) else { return true };
        let sync = self.syncs.swap_remove(place);
        if !worked {
            // Its caller knows now.
            self.marks[sync.area].iter_mut().for_each(|mark| *mark &= !LOST);
            return true;
        }
        // A sync that began before the crash may have worked before it: the bytes will tell.
        let lost = self.marks[sync.area.clone()].iter().any(|mark| mark & LOST != 0);
        if sync.crashes == self.crashes && lost {
            return false;
        }
        self.stable_length = self.stable_length.max(sync.length);
        self.length.start = self.length.start.max(sync.length);
        let start = sync.area.start;
        for run in sync.covered.chunk_by(|one, next| one == next).scan(0, |at, run| {
            let from = *at;
            *at += run.len();
            Some(run[0].then_some(from..from + run.len()))
        }) {
            let Some(run) = run else { continue };
            let (from, place) = (&sync.bytes[run.clone()], start + run.start..start + run.end);
            self.stable[place.clone()].copy_from_slice(from);
            // If it was told after a crash, that is what the crash must have left.
            self.bytes[place.clone()].copy_from_slice(from);
            self.marks[place].fill(KNOWN | STABLE_KNOWN);
        }
        true
    }

    /// The handle through which an area was written is closed: nobody tells any more of what
    /// crashes have taken of it, nor of what the next one will.
    pub fn give_up(&mut self, area: Range<usize>) {
        for mark in &mut self.marks[area] {
            *mark &= !LOST;
            if *mark & (KNOWN | STABLE_KNOWN) == KNOWN {
                *mark |= GIVEN_UP;
            }
        }
    }

    /// A sync that a crash overtakes answers for what was written through its own handle alone,
    /// not for what others have written, nor for the length that they have given the file.
    fn narrow_syncs(&mut self) {
        for sync in &mut self.syncs {
            sync.length = 0;
            for (covered, place) in sync.covered.iter_mut().zip(sync.area.clone()) {
                *covered &= self.marks[place] & GIVEN_UP == 0;
                if *covered && self.marks[place] & STABLE_KNOWN == 0 {
                    sync.length = place as u64 + 1;
                }
            }
        }
    }

    /// The node crashed and has this `left`: only what was promised to be stable is known now. What
    /// is there without a promise is not lost: a sync may have found more than there was when it
    /// was asked for.
    pub fn crash(&mut self, left: &[u8]) {
        self.crashes += 1;
        self.narrow_syncs();
        for (place, mark) in self.marks.iter_mut().enumerate() {
            let there = left.get(place) == Some(&self.bytes[place]);
            let owed = *mark & (KNOWN | STABLE_KNOWN | GIVEN_UP) == KNOWN;
            let lost = owed && !there || *mark & LOST != 0;
            let known = *mark & STABLE_KNOWN != 0;
            *mark = if known { KNOWN | STABLE_KNOWN } else { 0 } | if lost { LOST } else { 0 };
        }
        self.bytes.clone_from(&self.stable);
        self.length.start = self.stable_length;
    }

    /// The range's bytes and which of them are known, for a copy of it.
    #[must_use]
    pub fn take(&self, range: Range<usize>) -> (Vec<u8>, Vec<bool>) {
        let known = self.marks[range.clone()].iter().map(|mark| mark & KNOWN != 0).collect();
        (self.bytes[range].to_vec(), known)
    }

    /// The first place where `seen`, read at `start`, differs from what is known.
    #[must_use]
    pub fn difference(&self, start: usize, seen: &[u8]) -> Option<Difference> {
        let range = start..start + seen.len();
        if self.bytes[range.clone()] == *seen {
            return None;
        }
        let wrong: Vec<usize> = range
            .clone()
            .zip(seen)
            .filter(|&(place, &byte)| self.marks[place] & KNOWN != 0 && self.bytes[place] != byte)
            .map(|(place, _)| place - start)
            .collect();
        let &first = wrong.first()?;
        let wanted = self.bytes[start + first];
        Some(Difference { first, seen: seen[first], wanted, count: wrong.len() })
    }
}

/// A byte that is not as it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Its place in what was read.
    pub first: usize,
    /// The byte that is there.
    pub seen: u8,
    /// What it must be.
    pub wanted: u8,
    /// How many bytes are wrong.
    pub count: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_its_rest_unknown_until_rewritten() {
        let mut expected = Expected::new(&[1; 10], 10);
        expected.begin_write(2..8);
        expected.end_write(2, &[7, 7], None, false);
        assert_eq!(expected.difference(0, &[1, 1, 7, 7, 9, 9, 9, 9, 1, 1]), None);
        assert_eq!(expected.difference(0, &[1, 1, 7, 6, 9, 9, 9, 9, 1, 2]).unwrap().count, 2);
        expected.begin_write(4..8);
        expected.end_write(4, &[8; 4], None, false);
        assert_eq!(expected.difference(3, &[7, 8, 8, 8, 9]).unwrap().first, 4);
    }

    #[test]
    fn a_crash_leaves_what_was_durable_or_synced() {
        let mut expected = Expected::new(&[1; 10], 20);
        expected.begin_write(0..2);
        expected.end_write(0, &[5; 2], None, true);
        expected.begin_write(4..6);
        expected.end_write(4, &[6; 2], None, false);
        let sync = expected.begin_sync(0..10);
        expected.begin_write(5..6);
        expected.end_write(5, &[7], None, false);
        assert!(expected.end_sync(sync, true));
        expected.begin_write(12..14);
        expected.end_write(12, &[8; 2], None, false);
        // Of the writes that were not synced, nothing is left.
        expected.crash(&[5, 5, 1, 1, 6, 6, 1, 1, 1, 1]);
        assert_eq!(*expected.length(), 10..14);
        assert_eq!(expected.difference(0, &[5, 5, 1, 1, 6, 99, 1, 1, 1, 1]), None);
        assert!(expected.difference(0, &[5, 5, 1, 1, 5]).is_some());
        // The writes at 5 and 12 were acknowledged and are gone.
        let sync = expected.begin_sync(0..20);
        assert!(!expected.end_sync(sync, true));
        let sync = expected.begin_sync(0..20);
        assert!(expected.end_sync(sync, false));
        let sync = expected.begin_sync(0..20);
        assert!(expected.end_sync(sync, true));
    }

    #[test]
    fn a_sync_answers_for_its_own_handle_alone() {
        let mut expected = Expected::new(&[1; 10], 40);
        let write = |expected: &mut Expected, start: usize| {
            expected.begin_write(start..start + 2);
            expected.end_write(start, &[5; 2], None, false);
        };
        // Another client makes the file longer, and a crash takes that while this one syncs.
        write(&mut expected, 30);
        let sync = expected.begin_sync(0..20);
        expected.crash(&[1; 10]);
        assert!(expected.end_sync(sync, true));
        assert_eq!(*expected.length(), 10..32);
        // What a closed handle has written is lost before or after it is closed.
        write(&mut expected, 0);
        expected.crash(&[1; 10]);
        write(&mut expected, 2);
        expected.give_up(0..20);
        expected.crash(&[1; 10]);
        let sync = expected.begin_sync(0..20);
        assert!(expected.end_sync(sync, true));
        // The next handle answers for what is written through it.
        write(&mut expected, 12);
        let sync = expected.begin_sync(0..20);
        expected.crash(&[1; 10]);
        assert!(expected.end_sync(sync, true));
        assert_eq!(expected.length().start, 14);
        write(&mut expected, 4);
        expected.crash(&[1; 10]);
        let sync = expected.begin_sync(0..20);
        assert!(!expected.end_sync(sync, true));
    }
}
