//! Counts of what a queue did, for its program.

/// Counters of a queue since it was made.
///
/// ```
/// assert_eq!(piped_client::QueueCounters::default().submitted, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueCounters {
    /// Requests that were submitted.
    pub submitted: u64,
    /// Requests that have ended.
    pub completed: u64,
    /// Requests that outlived a daemon and were submitted to the next.
    pub resubmitted: u64,
    /// Times the daemon slept and had to be woken: a system call each.
    pub doorbells: u64,
    /// Times this side slept: a system call each, three if it was for longer than about 100 ms. A
    /// sleep that may not last so long, for its request's time is over before, is two.
    pub sleeps: u64,
}
