//! Names of system calls.

/// Not yet among libc's names.
const SYS_CACHESTAT: libc::c_long = 451;

/// System calls that clients and daemons make.
const NAMES: &[(libc::c_long, &str)] = &[
    (SYS_CACHESTAT, "cachestat"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_close, "close"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_getsockopt, "getsockopt"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_io_uring_register, "io_uring_register"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    // The other CPUs that Linux runs on have `ppoll` only.
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, "poll"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_read, "read"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_sched_getaffinity, "sched_getaffinity"),
    (libc::SYS_sched_setaffinity, "sched_setaffinity"),
    (libc::SYS_sched_yield, "sched_yield"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_setsockopt, "setsockopt"),
    (libc::SYS_write, "write"),
];

/// Name of a system call, or its number.
pub(super) fn name(number: u64) -> String {
    let known = NAMES.iter().find(|(known, _)| u64::try_from(*known) == Ok(number));
    known.map_or_else(|| format!("call {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_their_names() {
        assert_eq!(name(libc::SYS_io_uring_enter.cast_unsigned()), "io_uring_enter");
        assert_eq!(name(99_999), "call 99999");
    }
}
