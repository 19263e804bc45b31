//! Every bound, with its reason.

use std::time::Duration;

/// Gets of single pages at once. A fault beyond them waits for one of them to end.
pub(crate) const PAGE_GETS_MAX: usize = 64;

/// Streams at once: a merge of a few runs, both ends of a partition.
pub(crate) const STREAMS_MAX: usize = 8;
/// Faults that are remembered as possible beginnings of a stream.
pub(crate) const RECENT_MAX: usize = 16;
/// Pages of a stream's first strip: little is lost if it was no stream.
pub(crate) const STRIP_PAGES_FIRST: u32 = 4;
/// Strips ahead of a stream: 16 of 256 KiB are more than most links have under way.
pub(crate) const DEPTH_MAX: usize = 16;
/// After so many strips in a row that were there before they were touched, one fewer is fetched
/// ahead.
pub(crate) const TOUCHES_TO_SHRINK: u32 = 16;

/// Puts under way at once.
pub(crate) const PUTS_MAX: usize = 8;
/// Pages of a put: neighbours that are dirty go together.
pub(crate) const PUT_PAGES_MAX: u32 = 16;

/// Requests under way fit a queue of the usual depth, with a sync.
const _: () = assert!(PAGE_GETS_MAX + STREAMS_MAX * DEPTH_MAX + PUTS_MAX < 255);

/// Pages that are here at once, at least: some stay while others go.
pub(crate) const RESIDENT_PAGES_MIN: usize = 64;
/// Pages that go together: a system call and an interruption of other CPUs for all.
pub(crate) const EVICT_TOGETHER: usize = 32;

const _: () = assert!(EVICT_TOGETHER < RESIDENT_PAGES_MIN);

/// Messages taken with one system call.
pub(crate) const FAULTS_PER_READ: usize = 64;

/// Before something that failed is tried again.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
