//! Operations by chance, in a small tree: names meet each other all the time.

use piped_client::call::{Over, Range, Removed};
use piped_sim::Random;

/// Files open at a time.
pub(crate) const SLOTS: usize = 6;
/// No file becomes longer.
pub(crate) const LENGTH_MAX: u64 = 256 << 10;
/// The longest transfer.
pub(crate) const BYTES_MAX: u64 = 48 << 10;

/// An operation. Files that are open are numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// Makes a file, which must not be there, and opens it.
    Create {
        slot: usize,
        path: String,
    },
    Open {
        slot: usize,
        path: String,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        range: Range,
    },
    /// Writes the same byte again and again.
    Write {
        slot: usize,
        range: Range,
        fill: u8,
    },
    Truncate {
        slot: usize,
        length: u64,
    },
    Zero {
        slot: usize,
        range: Range,
        release: bool,
    },
    Trim {
        slot: usize,
        range: Range,
    },
    Allocate {
        slot: usize,
        range: Range,
        keep_length: bool,
    },
    Extents {
        slot: usize,
        range: Range,
    },
    Digest {
        slot: usize,
        range: Range,
    },
    Sync {
        slot: usize,
        data_only: bool,
    },
    /// What is known of an open file.
    Look {
        slot: usize,
    },
    Stat {
        path: String,
    },
    List {
        path: String,
    },
    Make {
        path: String,
        parents: bool,
    },
    Remove {
        path: String,
        kind: Removed,
    },
    Rename {
        from: String,
        to: String,
        over: Over,
        durable: bool,
    },
    Link {
        from: String,
        to: String,
    },
    /// Copies a part of a file into another.
    Copy {
        from: String,
        to: String,
        range: Range,
        durable: bool,
    },
}

impl Op {
    /// Whether it is one request, which can be under way when a daemon is killed.
    pub(crate) const fn is_request(&self) -> bool {
        !matches!(
            self,
            Self::Create { .. }
                | Self::Open { .. }
                | Self::Close { .. }
                | Self::List { .. }
                | Self::Extents { .. }
                // Directories on the way may be made, and the last one not.
                | Self::Make { parents: true, .. }
        )
    }

    /// The open file that it is about.
    pub(crate) const fn slot(&self) -> Option<usize> {
        match *self {
            Self::Read { slot, .. }
            | Self::Write { slot, .. }
            | Self::Truncate { slot, .. }
            | Self::Zero { slot, .. }
            | Self::Trim { slot, .. }
            | Self::Allocate { slot, .. }
            | Self::Extents { slot, .. }
            | Self::Digest { slot, .. }
            | Self::Sync { slot, .. }
            | Self::Look { slot } => Some(slot),
            _ => None,
        }
    }

    /// The bytes that it changes, if it changes bytes and no names.
    pub(crate) const fn bytes(&self) -> Option<Range> {
        match *self {
            Self::Write { range, .. }
            | Self::Zero { range, .. }
            | Self::Trim { range, .. }
            | Self::Allocate { range, .. }
            | Self::Copy { range, .. } => Some(range),
            Self::Truncate { length, .. } => {
                Some(Range { offset: length, length: u64::MAX - length })
            }
            _ => None,
        }
    }
}

/// Makes operations.
#[derive(Debug)]
pub(crate) struct Inventor {
    random: Random,
}

impl Inventor {
    pub(crate) const fn new(random: Random) -> Self {
        Self { random }
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.random.chance(probability)
    }

    /// The next one; `open`: which files are open.
    pub(crate) fn invent(&mut self, open: [bool; SLOTS]) -> Op {
        let opened: Vec<usize> = (0..SLOTS).filter(|&slot| open[slot]).collect();
        let any = self.random.below(SLOTS as u64) as usize;
        let of_file = !opened.is_empty() && self.random.chance(0.5);
        if of_file {
            let slot = *self.random.pick(&opened);
            return self.of_file(slot);
        }
        let path = self.path();
        match self.random.below(26) {
            0..4 => Op::Create { slot: any, path },
            4..6 => Op::Open { slot: any, path },
            6..9 => Op::Stat { path },
            9 => Op::List { path: if self.random.chance(0.5) { String::new() } else { path } },
            10..14 => Op::Make { path, parents: self.random.chance(0.3) },
            14..17 => {
                let kinds = [Removed::File, Removed::Directory, Removed::Any];
                Op::Remove { path, kind: *self.random.pick(&kinds) }
            }
            17..20 => {
                let over = *self.random.pick(&[Over::Replace, Over::Keep, Over::Exchange]);
                let durable = self.random.chance(0.05);
                Op::Rename { from: path, to: self.path(), over, durable }
            }
            20..22 => Op::Link { from: path, to: self.path() },
            _ => {
                let (to, range) = (self.path(), self.range());
                Op::Copy { from: path, to, range, durable: self.random.chance(0.05) }
            }
        }
    }

    fn of_file(&mut self, slot: usize) -> Op {
        let range = self.range();
        match self.random.below(20) {
            0..5 => Op::Read { slot, range },
            5..10 => Op::Write { slot, range, fill: self.random.below(256) as u8 },
            10 => Op::Truncate { slot, length: self.random.length(LENGTH_MAX) - 1 },
            11 => Op::Zero { slot, range, release: self.random.chance(0.5) },
            12 => Op::Trim { slot, range },
            13 => Op::Allocate { slot, range, keep_length: self.random.chance(0.5) },
            14 => Op::Extents { slot, range },
            15 => Op::Digest { slot, range },
            16 if self.random.chance(0.2) => Op::Sync { slot, data_only: self.random.chance(0.5) },
            16..18 => Op::Look { slot },
            _ => Op::Close { slot },
        }
    }

    fn range(&mut self) -> Range {
        let length = self.random.length(BYTES_MAX).min(BYTES_MAX);
        let mut offset = self.random.below(LENGTH_MAX - length);
        if self.random.chance(0.5) {
            offset &= !4095;
        }
        Range { offset, length }
    }

    /// Up to three names of four.
    fn path(&mut self) -> String {
        let depth = self.random.between(1, 3);
        let names: Vec<&str> =
            (0..depth).map(|_| *self.random.pick(&["a", "b", "c", "d"])).collect();
        names.join("/")
    }
}
