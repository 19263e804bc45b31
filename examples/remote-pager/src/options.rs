//! Options of a mapping.

use std::time::Duration;

use crate::error::{MapError, PageError};
use crate::limits::{DEPTH_MAX, RESIDENT_PAGES_MIN};
use crate::mapping::PAGE;
use crate::stream::Windows;

/// Limits and patience of a mapping.
///
/// ```
/// use remote_pager::Options;
/// let options = Options::new().resident_bytes(16 << 20).strip_bytes_max(64 << 10);
/// println!("{options:?}");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub(crate) writable: bool,
    pub(crate) durable: bool,
    pub(crate) resident_bytes: usize,
    pub(crate) strip_bytes_max: usize,
    pub(crate) ahead_bytes_max: usize,
    pub(crate) patience: Duration,
    pub(crate) user_mode_only: bool,
    pub(crate) beside_shard: bool,
    pub(crate) on_loss: Option<fn(&PageError)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writable: false,
            durable: false,
            resident_bytes: 64 << 20,
            strip_bytes_max: 256 << 10,
            ahead_bytes_max: 4 << 20,
            patience: Duration::from_secs(30),
            user_mode_only: false,
            beside_shard: true,
            on_loss: None,
        }
    }
}

impl Options {
    /// For reading; 64 MiB at once, strips of up to 256 KiB, 4 MiB of them ahead, 30 s of patience.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes are allowed, noticed and brought back. The handle must be open for both.
    #[must_use]
    pub fn writable(self) -> Self {
        Self { writable: true, ..self }
    }

    /// A sync also brings what was written to stable storage: for files.
    #[must_use]
    pub fn durable(self) -> Self {
        Self { durable: true, ..self }
    }

    /// Memory that pages may have at once. At least 64 pages (256 KiB).
    #[must_use]
    pub fn resident_bytes(self, resident_bytes: usize) -> Self {
        Self { resident_bytes, ..self }
    }

    /// The longest strip that is fetched ahead of a thread that reads in order; 0: none is. An
    /// eighth of the resident bytes at most.
    #[must_use]
    pub fn strip_bytes_max(self, strip_bytes_max: usize) -> Self {
        Self { strip_bytes_max, ..self }
    }

    /// Memory of the client's arena for all strips that are ahead.
    #[must_use]
    pub fn ahead_bytes_max(self, ahead_bytes_max: usize) -> Self {
        Self { ahead_bytes_max, ..self }
    }

    /// How long a page may take to come, whatever happens to the other node, before it is given up.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Serve faults of this program's own code only, which needs no right. System calls on the
    /// mapping (`read(2)` into it, say) fail with EFAULT then, where their page is not there.
    #[must_use]
    pub fn user_mode_only(self) -> Self {
        Self { user_mode_only: true, ..self }
    }

    /// Leave the pager's thread where the scheduler wants it. Without, it runs on the CPU of the
    /// daemon's shard, if that has one, where it is woken fastest.
    #[must_use]
    pub fn anywhere(self) -> Self {
        Self { beside_shard: false, ..self }
    }

    /// Called on the pager's thread before a thread gets a signal for a page that could not be had:
    /// to log it, or to end the program in its own way.
    #[must_use]
    pub fn on_loss(self, on_loss: fn(&PageError)) -> Self {
        Self { on_loss: Some(on_loss), ..self }
    }

    pub(crate) fn resident_pages(&self) -> usize {
        self.resident_bytes / PAGE
    }

    pub(crate) fn windows(&self) -> Windows {
        let pages = (self.strip_bytes_max / PAGE).min(self.resident_pages() / 8);
        let strips = self.ahead_bytes_max / (pages * PAGE).max(1);
        Windows { strip_pages_max: pages as u32, depth_max: strips.clamp(1, DEPTH_MAX) }
    }

    pub(crate) fn check(&self, length: u64) -> Result<(), MapError> {
        if length == 0 {
            return Err(MapError::Options("there is nothing to map: the region or file is empty"));
        }
        if length.div_ceil(PAGE as u64) > u64::from(u32::MAX) {
            return Err(MapError::Options("more than 2^32 pages; map a part of it"));
        }
        if self.resident_pages() < RESIDENT_PAGES_MIN {
            return Err(MapError::Options("resident_bytes must be at least 256 KiB (64 pages)"));
        }
        Ok(())
    }
}
