//! Which CPU a thread runs on. Waking a thread across CPUs costs tens of microseconds, on one CPU a
//! few, so a client that sleeps is best beside the shard that wakes it.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Let the calling thread run on one CPU only.
pub(crate) fn pin_current_thread(cpu: u32) -> io::Result<()> {
    let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < CpuSet::MAX_CPU);
    let cpu = cpu.ok_or(io::ErrorKind::InvalidInput)?;
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Whether the calling thread runs on that CPU only.
pub(crate) fn is_pinned_to(cpu: u32) -> bool {
    let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < CpuSet::MAX_CPU);
    cpu.is_some_and(|cpu| {
        sched_getaffinity(None).is_ok_and(|set| set.count() == 1 && set.is_set(cpu))
    })
}

/// Whether the calling thread is on that CPU at the moment.
pub(crate) fn is_on(cpu: u32) -> bool {
    usize::try_from(cpu).is_ok_and(|cpu| rustix::thread::sched_getcpu() == cpu)
}
