//! Threads that give way to others.

use std::mem::MaybeUninit;

/// Lowest priority that still gets some time beside threads that never sleep.
const LOWEST: i32 = 19;

/// Longest time in nanoseconds that such a thread keeps a CPU wanted by others (since Linux 6.12;
/// before, all threads have the same).
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` in its first form.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// Makes the calling thread give way as long as it lives.
pub(crate) fn give_way() {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        nice: LOWEST,
        runtime: SLICE_NS,
        ..Attributes::default()
    };
    // SAFETY: the call reads `size` bytes at the address, which are there, and keeps none of them.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if done != 0 {
        // If that is forbidden, a lower priority may be allowed; if not, only time is lost.
        let _ = rustix::process::setpriority_process(None, LOWEST);
    }
}

/// Times that the calling thread was preempted for another thread.
pub(crate) fn preemptions() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a place for the answer.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all of it is numbers, which were zero before the call.
    let usage = unsafe { usage.assume_init() };
    if done == 0 { u64::try_from(usage.ru_nivcsw).unwrap_or(0) } else { 0 }
}
