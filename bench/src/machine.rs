//! The machine of a run: its CPUs, its kernel, and the time stolen from it.

use std::fs;
use std::io;

use rustix::thread::CpuSet;
use serde::Serialize;

/// Description of the machine for the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    pub(crate) model: String,
    pub(crate) kernel: String,
    /// Runnable tasks over the last minute when the run began, without this program.
    pub(crate) load: f64,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned());
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cpus: allowed_cpus().len(),
            model,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load: load.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN),
        }
    }
}

/// The two CPUs for measurements; the same twice if there is only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpus {
    pub(crate) first: usize,
    pub(crate) second: usize,
}

impl Cpus {
    pub(crate) fn here() -> Self {
        let allowed = allowed_cpus();
        let first = allowed.first().copied().unwrap_or(0);
        Self { first, second: allowed.get(1).copied().unwrap_or(first) }
    }

    pub(crate) fn are_two(self) -> bool {
        self.first != self.second
    }
}

/// CPUs that the calling thread may run on.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Keeps the calling thread on one CPU.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Lets the calling thread run on every CPU again.
pub(crate) fn unpin() -> io::Result<()> {
    let mut set = CpuSet::new();
    // The kernel takes away CPUs that this process may not use.
    (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Time of all CPUs since boot, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    pub(crate) fn now() -> Self {
        fs::read_to_string("/proc/stat").map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// Reads the first line: user nice system idle iowait irq softirq steal guest guest_nice, where
    /// the guests' time is in user and nice already.
    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let fields: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        Self { stolen: fields.get(7).copied().unwrap_or(0), all: fields.iter().sum() }
    }

    /// Part of the time since then that the hypervisor gave to others.
    pub(crate) fn stolen_since(self, then: Self) -> f64 {
        let all = self.all.saturating_sub(then.all);
        let stolen = self.stolen.saturating_sub(then.stolen);
        if all == 0 { 0.0 } else { stolen as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_figure_and_guests_are_not_counted_twice() {
        let then = Ticks::parse("cpu  10 0 0 80 0 0 0 10 5 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n");
        assert_eq!(then, Ticks { stolen: 10, all: 100 });
        let now = Ticks::parse("cpu  10 0 0 175 0 0 0 15 9 9\n");
        assert!((now.stolen_since(then) - 0.05).abs() < 1e-12);
        assert_eq!(then.stolen_since(then), 0.0);
        assert_eq!(Ticks::parse(""), Ticks::default());
    }

    #[test]
    fn a_pinned_thread_stays_there() {
        let cpus = Cpus::here();
        let there = std::thread::spawn(move || {
            pin(cpus.second).expect("an allowed CPU");
            let pinned = allowed_cpus();
            unpin().expect("all CPUs");
            (pinned, allowed_cpus().len())
        });
        let (pinned, unpinned) = there.join().expect("it only pins itself");
        assert_eq!(pinned, vec![cpus.second]);
        assert!(unpinned >= allowed_cpus().len());
        assert!(pin(usize::MAX).is_err());
    }
}
