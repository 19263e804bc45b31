//! Threads that give way to others.

use std::mem::MaybeUninit;

/// The lowest priority that still gets something beside threads that never sleep.
const LOWEST: i32 = 19;

/// The longest such a thread keeps a CPU that somebody else wants, in nanoseconds (since Linux 6.12; before,
/// it is as long as for all).
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` as it was first.
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

/// The calling thread gives way from here on, as long as it lives.
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
        // Where that is forbidden, a lower priority may not be; and if it is, nothing is lost but time.
        let _ = rustix::process::setpriority_process(None, LOWEST);
    }
}

/// Times the calling thread was taken off its CPU because somebody else wanted it.
pub(crate) fn preemptions() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a place for the answer.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all of it is numbers, which were zero before the call.
    let usage = unsafe { usage.assume_init() };
    if done == 0 { u64::try_from(usage.ru_nivcsw).unwrap_or(0) } else { 0 }
}
