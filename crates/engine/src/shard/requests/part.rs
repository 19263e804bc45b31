//! A part of a vectored request that is under way.

use super::super::buffers::Run;
use super::led::By;

/// A child under way.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Part {
    /// Where it counts from, in bytes of the request.
    start: u64,
    length: u32,
    /// Bytes of the part that the client was told of as progress.
    told: u32,
    /// The part's rows, as the peer gets them and where they lie in the buffer, and their number.
    table: Option<(Run, u32)>,
    /// Where its bytes lie packed, if not in the buffer.
    data: Option<Run>,
    /// The replica that it was asked of, if there are several.
    by: Option<By>,
}

impl Part {
    /// A part whose bytes count from `start`, and lie in the client's buffer.
    pub(in crate::shard) fn new(start: u64, length: u32) -> Self {
        Self { start, length, told: 0, table: None, data: None, by: None }
    }

    /// The part with a table of so many rows, and with memory in which its bytes lie packed.
    pub(in crate::shard) fn packed(self, table: Run, rows: u32, data: Option<Run>) -> Self {
        Self { table: Some((table, rows)), data, ..self }
    }

    /// The part as it is asked of one of several replicas.
    pub(in crate::shard) fn asked_of(self, by: By) -> Self {
        Self { by: Some(by), ..self }
    }

    /// The replica that it was asked of, if there are several.
    pub(in crate::shard) fn by(&self) -> Option<By> {
        self.by
    }

    /// The byte of the request that it begins with.
    pub(in crate::shard) fn start(&self) -> u64 {
        self.start
    }

    /// Bytes of the request that have not landed of it, from where to where.
    pub(in crate::shard) fn rest(&self) -> (u64, u64) {
        (self.start + u64::from(self.told), self.start + u64::from(self.length))
    }

    /// How many bytes it has.
    pub(in crate::shard) fn length(&self) -> u32 {
        self.length
    }

    /// The table of the part, the number of rows, and where the bytes lie packed, if they are to be
    /// moved.
    pub(in crate::shard) fn packed_in(&self) -> Option<(Run, u32, Run)> {
        self.table.zip(self.data).map(|((table, rows), data)| (table, rows, data))
    }

    /// The staging that it has.
    pub(in crate::shard) fn runs(&self) -> impl Iterator<Item = Run> + use<> {
        self.table.map(|(run, _)| run).into_iter().chain(self.data)
    }

    /// Whether a peer left bytes out that it has: a region has all that was asked of it.
    pub(in crate::shard) fn is_cut(&self, bytes: u64) -> bool {
        bytes < self.length.into() && self.table.is_some()
    }

    /// What of the request landed with the first `bytes` of the part and was not told before.
    pub(in crate::shard) fn news(&self, bytes: u64) -> Option<(u64, u64)> {
        let told = u64::from(self.told);
        (bytes > told).then(|| (self.start + told, self.start + bytes))
    }

    /// The first `bytes` are in the buffer. What of the request that adds.
    pub(super) fn land(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let bytes = bytes.min(self.length.into());
        let news = self.news(bytes).filter(|_| self.data.is_none())?;
        self.told = bytes as u32;
        Some(news)
    }
}
