//! How long checksums, tags and encryption of payloads take on the shard's thread: a stage of the
//! pipeline like any other.

use piped_core::io::Io;
use piped_core::units::Nanos;

/// Payloads below this many bytes are not timed: their checksum takes little longer than reading
/// the clock twice.
const TIMED_BYTES_MIN: u32 = 4096;

/// How long checking (and sealing) some payloads took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    frames: u32,
    bytes: u64,
    time: Nanos,
    /// Beginning and end of the last timed check.
    last: Option<(Nanos, Nanos)>,
}

impl Checked {
    /// Checks or seals a payload of so many bytes, and times the work if the payload is long.
    pub(super) fn timed<I: Io, T>(
        &mut self,
        io: &mut I,
        bytes: u32,
        check: impl FnOnce(&mut I) -> T,
    ) -> T {
        self.last = None;
        if bytes < TIMED_BYTES_MIN {
            return check(io);
        }
        let start = io.now();
        let checked = check(io);
        let end = io.now();
        self.frames += 1;
        self.bytes += u64::from(bytes);
        self.time = self.time + end.since(start);
        self.last = Some((start, end));
        checked
    }

    /// When the last payload's check began and ended, if it was timed.
    pub(super) fn last(&self) -> Option<(Nanos, Nanos)> {
        self.last
    }

    /// Mean size in bytes and mean time of the timed payloads; `None` if there was none.
    #[must_use]
    pub fn mean(&self) -> Option<(u32, Nanos)> {
        let frames = u64::from(self.frames);
        let bytes = self.bytes.checked_div(frames)?;
        Some((bytes as u32, Nanos(self.time.0 / frames)))
    }

    /// Time of all timed payloads together.
    #[must_use]
    pub fn time(&self) -> Nanos {
        self.time
    }
}
