//! Floors: the kernel's work without piped. The only `unsafe` of this program is here and in
//! `piped_ring::allocations`.

pub(crate) mod area;
mod child;
pub(crate) mod disk;
pub(crate) mod files;
pub(crate) mod frames;
pub(crate) mod net;
pub(crate) mod path;
mod pieces;
mod ring;
pub(crate) mod stream;
mod turns;

use std::time::Duration;

pub(crate) use self::child::end_with_parent;

/// Memory that a get reads from, piped's and a floor's: larger than any CPU's first-level cache,
/// and smaller than any last-level one.
pub(crate) const REGION_BYTES: usize = 8 << 20;

/// CPU time of a process since its start, with ended threads; none if there is no such process.
pub(crate) fn process_cpu_time(process: u32) -> Option<Duration> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let process = libc::pid_t::try_from(process).ok().filter(|process| *process > 0)?;
    // SAFETY: `clock` is a place for the answer.
    if unsafe { libc::clock_getcpuclockid(process, &raw mut clock) } != 0 {
        return None;
    }
    // SAFETY: `time` is a place for the answer, and the kernel checks the clock's number.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

/// How a side waits for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Wait inside the kernel.
    Block,
    /// Poll the completion queue.
    Spin,
}

impl Wait {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Spin => "spin",
        }
    }
}

/// Times of a closed loop of requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timing {
    latencies_ns: Vec<u64>,
    elapsed: Duration,
}

impl Timing {
    pub(crate) fn new(mut latencies_ns: Vec<u64>, elapsed: Duration) -> Self {
        latencies_ns.sort_unstable();
        Self { latencies_ns, elapsed }
    }

    /// Median in seconds; not a number if nothing completed.
    pub(crate) fn p50(&self) -> f64 {
        self.percentile(0.5)
    }

    /// Time that this part of the requests took at most, in seconds; not a number if nothing
    /// completed.
    pub(crate) fn percentile(&self, part: f64) -> f64 {
        let place = (self.latencies_ns.len() as f64 * part) as usize;
        self.latencies_ns.get(place).map_or(f64::NAN, |ns| *ns as f64 / 1e9)
    }

    /// Number of requests per second.
    pub(crate) fn rate(&self) -> f64 {
        self.latencies_ns.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// Number of all requests.
    pub(crate) fn count(&self) -> usize {
        self.latencies_ns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_this_process_grows_and_nobody_has_number_0() {
        let before = process_cpu_time(std::process::id()).expect("it runs");
        std::hint::black_box((0..100_000u64).fold(0, |sum, next| sum ^ std::hint::black_box(next)));
        assert!(process_cpu_time(std::process::id()).expect("it runs") > before);
        assert_eq!(process_cpu_time(0), None);
    }

    #[test]
    fn a_timing_sorts_and_divides() {
        let timing = Timing::new(vec![3000, 1000, 2000], Duration::from_millis(3));
        assert!((timing.p50() - 2e-6).abs() < 1e-12);
        assert!((timing.percentile(0.99) - 3e-6).abs() < 1e-12);
        assert!((timing.rate() - 1000.0).abs() < 1e-9);
        assert!(Timing::default().p50().is_nan());
    }
}
