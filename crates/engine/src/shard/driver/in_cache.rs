//! What is known of a file in the page cache: what that has of a read, as far as it is asked, and
//! what reads took of late that came from there and from the device.

use piped_core::ids::FileId;
use piped_core::io::{Cached, Io};
use piped_core::limits::{STRIPED_BYTES_MAX, STRIPED_BYTES_MIN};

use super::super::stripes::Stripes;
use super::looks::Looks;
use super::recent::Recent;

/// The most bytes at either end of a read that the page cache is asked for.
const LOOK_BYTES: u64 = 1 << 20;

/// An open file in the page cache.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::shard) struct InCache {
    looks: Looks,
    /// What reads took that came both ways: at the device, and at its page cache.
    recent: [Recent; 2],
}

/// What the page cache has of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Found {
    None,
    All,
    Some(Stripes),
}

impl InCache {
    /// What the page cache has of a range, as far as that is asked: a file that is not there is
    /// looked for at some of its reads only. If the read may come both ways, the parts are asked
    /// for that are there.
    pub(in crate::shard) fn find<I: Io>(
        &mut self,
        file: FileId,
        (offset, length): (u64, u64),
        may_split: bool,
        io: &mut I,
    ) -> Found {
        if !self.looks.is_due() {
            return Found::None;
        }
        let may_split = may_split && (STRIPED_BYTES_MIN..=STRIPED_BYTES_MAX).contains(&length);
        // Of a long read both ends are looked at: to look at all of it takes a part of the time of
        // the read itself.
        let looked_at = length.min(LOOK_BYTES);
        let mut known = io.cached(file, offset, looked_at);
        if length > looked_at {
            let is_all =
                known.is_all() && io.cached(file, offset + length - looked_at, looked_at).is_all();
            known = match is_all {
                true => known,
                // What is there costs less to count than to read from the device.
                false if may_split => io.cached(file, offset, length),
                false => Cached::default(),
            };
        }
        if known.is_all() {
            self.looks.note_found();
            return Found::All;
        }
        if !may_split || known.is_none() {
            return Found::None;
        }
        let look = |offset, length| io.cached(file, offset, length);
        Stripes::find((offset, length), known, look).map_or(Found::None, Found::Some)
    }

    /// Whether parts of a read that the page cache has come from there.
    pub(in crate::shard) fn note_striped(&mut self, is_striped: bool) {
        match is_striped {
            true => self.looks.note_found(),
            false => self.recent.iter_mut().for_each(Recent::forget_one),
        }
    }

    /// What reads took of late that came both ways: at the device, and at its page cache.
    pub(in crate::shard) fn recent(&self) -> [Recent; 2] {
        self.recent
    }

    /// So many bytes of a read that came both ways came from the device or from its page cache, and
    /// took so many seconds; none are said of a read that had company. That says nothing, but what
    /// is known grows old.
    pub(in crate::shard) fn learn(&mut self, cached: bool, bytes: u64, seconds: Option<f64>) {
        let recent = &mut self.recent[usize::from(cached)];
        match seconds {
            Some(seconds) => recent.learn(bytes, seconds),
            None => recent.forget_one(),
        }
    }
}
