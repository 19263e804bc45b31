//! The one place of the library that reads a clock: when to try again and when to give up is
//! decided on the pager's thread, where nobody brings the time along.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "the clock's home in this package")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
