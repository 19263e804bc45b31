//! The clock of waits that their caller has limited, and times of Python's.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How long a wait goes on until signals are looked at. A little more than the longest wait that
/// client-lib begins with a nap, which is one system call.
pub(crate) const SLICE: Duration = Duration::from_millis(120);

/// The longest time that is told to anybody, 584 years: longer ones are no limit either.
const LONGEST: Duration = Duration::from_nanos(u64::MAX);

/// The time now. Python has none that it could pass in.
#[expect(clippy::disallowed_methods, reason = "this is where waits of Python look at the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A time that Python has as seconds. One beyond the clock's is as good as no limit.
pub(crate) fn span(seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err("a time is a number of seconds, >= 0"));
    }
    Ok(Duration::try_from_secs_f64(seconds).map_or(LONGEST, |span| span.min(LONGEST)))
}
