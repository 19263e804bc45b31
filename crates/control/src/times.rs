//! The two clocks of a decision.

use piped_config::UnixTime;
use piped_core::units::Nanos;

/// What time it is: for waiting, and on the calendar. The two go on apart from each other, for a
/// calendar may jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Time since the machine started, which only goes on.
    pub now: Nanos,
    /// Time of the calendar, in which certificates begin and end.
    pub calendar: UnixTime,
}
