//! How late the kernel may be with the calling thread's timers.

use std::num::NonZeroU64;

/// Makes timers exact for a thread that serves dials; otherwise the system's usual 50 us save
/// wake-ups.
pub(crate) fn set(exact: bool) {
    let slack = if exact { NonZeroU64::new(1) } else { None };
    if let Err(error) = rustix::thread::set_current_timer_slack(slack) {
        tracing::warn!(%error, "the timers of a shard stay as lazy as they are");
    }
}
