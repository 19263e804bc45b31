//! A filter of system calls that the daemon puts on itself, and on every thread that it will have
//! (seccomp).
//!
//! The filter denies families of calls that nothing in the daemon makes, and that an attacker with
//! code in it would need: to run programs, to look into other processes, to get more of the kernel.
//! Such a call fails with EPERM, and the daemon goes on. Operations of a ring do not pass a filter,
//! so the ring has restrictions of its own.
//!
//! All other calls are allowed. A list of allowed calls would be safer against calls that nobody
//! thought of. But it has to name all calls of every C library and every module of its resolver, in
//! each version and on each path. The unit's filter is of that kind, and systemd keeps its lists.
//! If the unit, or a container, has given a filter, this one is not added.

use std::collections::BTreeMap;
use std::io;

use piped_config::SyscallsMode;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

/// Calls that are denied whatever their arguments.
const DENIED: &[libc::c_long] = &[
    // To run programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // To look into other processes, or to take their files.
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Other roots, mounts and namespaces.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    // Code for the kernel, and another kernel.
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // Keys of the kernel.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // State of the machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_vhangup,
    // Files by number instead of by name, past closed directories; and files of all processes.
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // To become other users.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_personality,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    // Ports of the machine, and segments of it.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Families of sockets for clients, for peers, and to ask the kernel for the user of a socket.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Flags of `clone` that make a namespace.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The second numbering of calls on x86-64, for 32-bit pointers; some calls have numbers of their
/// own in it.
#[cfg(target_arch = "x86_64")]
const X32: libc::c_long = 0x4000_0000;
#[cfg(target_arch = "x86_64")]
const X32_OWN: std::ops::RangeInclusive<libc::c_long> = 512..=547;

/// Origin of this process's filter of system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Filtered {
    /// There is no filter.
    #[default]
    No,
    /// The service manager or a container has set it.
    Outside,
    /// The daemon has set it itself.
    Own,
}

impl Filtered {
    /// Name for `pipectl status`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::No => "none",
            Self::Outside => "given",
            Self::Own => "own",
        }
    }
}

/// Reason why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// The filter cannot be made: a fault of this file.
    #[error("the filter cannot be made ({0})")]
    Made(#[from] seccompiler::BackendError),
    /// The kernel does not take it.
    #[error("the kernel refuses it ({0})")]
    Refused(#[from] seccompiler::Error),
}

/// Filters the system calls of every thread of this process, if that is wanted and there is no
/// filter yet. The step cannot be undone.
pub(crate) fn enter(mode: SyscallsMode) -> Result<Filtered, FilterError> {
    let outside = if is_filtered().unwrap_or(false) { Filtered::Outside } else { Filtered::No };
    match (mode, outside) {
        (SyscallsMode::Off, _) | (SyscallsMode::Auto, Filtered::Outside) => Ok(outside),
        (SyscallsMode::Auto | SyscallsMode::On, _) => {
            for program in programs()? {
                apply_filter_all_threads(&program)?;
            }
            Ok(Filtered::Own)
        }
    }
}

/// Whether the kernel filters calls of this thread already.
fn is_filtered() -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    Ok(status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|it| it.trim() == "2")))
}

/// The two programs of the filter: a program has one answer for all calls that it denies.
fn programs() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for &call in DENIED {
        denied.insert(call, Vec::new());
    }
    denied.insert(libc::SYS_socket, vec![SeccompRule::new(foreign_family()?)?]);
    denied.insert(libc::SYS_clone, namespaces()?);
    // Memory that can vanish is copied by this call, within this process.
    let own = u64::from(std::process::id());
    let other = condition(0, SeccompCmpOp::Ne, own)?;
    denied.insert(libc::SYS_process_vm_readv, vec![SeccompRule::new(vec![other])?]);
    // Nobody makes its memory readable again.
    let dumpable = condition(0, SeccompCmpOp::Eq, libc::PR_SET_DUMPABLE as u64)?;
    denied.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![dumpable])?]);
    #[cfg(target_arch = "x86_64")]
    {
        let calls: Vec<libc::c_long> = denied.keys().copied().chain(X32_OWN).collect();
        denied.extend(calls.into_iter().map(|call| (X32 | call, Vec::new())));
    }
    // Its flags are in memory, where a filter cannot look; a C library falls back to `clone` if it
    // does not exist.
    let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([program(denied, libc::EPERM)?, program(unknown, libc::ENOSYS)?])
}

fn program(
    denied: BTreeMap<i64, Vec<SeccompRule>>,
    errno: libc::c_int,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let refuse = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(
        denied,
        SeccompAction::Allow,
        refuse,
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

/// Condition that is true of a socket of none of [`FAMILIES`].
fn foreign_family() -> Result<Vec<SeccompCondition>, seccompiler::BackendError> {
    FAMILIES.iter().map(|&family| condition(0, SeccompCmpOp::Ne, family as u64)).collect()
}

/// Rules, one for each of [`NAMESPACES`].
fn namespaces() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule = |&flag: &libc::c_int| {
        let flag = flag as u64;
        SeccompRule::new(vec![condition(0, SeccompCmpOp::MaskedEq(flag), flag)?])
    };
    NAMESPACES.iter().map(rule).collect()
}

fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, socket};
    use rustix::thread::UnshareFlags;

    use super::*;

    /// Set for the process that filters itself, because a filter is for good, and for all threads.
    const INSIDE: &str = "PIPED_TEST_SYSCALLS_INSIDE";
    const TEST: &str = "syscalls::tests::what_is_denied_is_denied_and_the_rest_goes_on";

    #[test]
    fn what_is_denied_is_denied_and_the_rest_goes_on() {
        if std::env::var_os(INSIDE).is_some() {
            return inside();
        }
        let mut again = Command::new(std::env::current_exe().expect("this test"));
        again.args(["--exact", TEST, "--nocapture", "--test-threads=2"]).env(INSIDE, "1");
        let output = again.output().expect("started");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    }

    /// Runs in a process of its own.
    fn inside() {
        // A thread that was there before is filtered as well.
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let before = std::thread::spawn(move || {
            waits.recv().expect("told");
            denied()
        });
        if is_filtered().expect("readable") {
            println!("skipped in part: somebody filters system calls here already");
            assert_eq!(enter(SyscallsMode::Auto).expect("nothing to do"), Filtered::Outside);
        } else {
            assert_eq!(enter(SyscallsMode::Off).expect("nothing to do"), Filtered::No);
            assert!(Command::new("/bin/true").status().is_ok(), "nothing is denied yet");
        }
        assert_eq!(enter(SyscallsMode::On).expect("this kernel can"), Filtered::Own);
        assert!(is_filtered().expect("readable"));
        go.send(()).expect("it waits");
        let here = denied();
        let there = before.join().expect("it does not panic");
        for (what, outcome) in here.into_iter().chain(there) {
            assert_eq!(outcome, Err(Errno::PERM), "{what}");
        }
        // Calls that the daemon makes.
        assert_eq!(read_memory_of(std::process::id()), Ok(()), "of its own");
        for family in [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6] {
            let outcome = socket(family, SocketType::STREAM, None).map(drop);
            assert!(outcome.is_ok() || outcome == Err(Errno::AFNOSUPPORT), "{family:?}");
        }
        socket(AddressFamily::NETLINK, SocketType::RAW, None).expect("sockets can be asked about");
        std::thread::spawn(|| ()).join().expect("threads can be started");
        let found = std::net::ToSocketAddrs::to_socket_addrs("localhost:1");
        assert!(found.is_ok_and(|mut found| found.next().is_some()), "names are resolved");
        std::fs::read_dir("/").expect("files are Landlock's");
    }

    #[expect(deprecated, reason = "of one flag, that of host names, which no thread here needs")]
    fn unshare() -> Result<(), Errno> {
        rustix::thread::unshare(UnshareFlags::NEWUTS)
    }

    fn read_memory_of(process: u32) -> Result<(), Errno> {
        use nix::sys::uio::{RemoteIoVec, process_vm_readv};
        let (here, mut there) = (7_u8, [0]);
        let base = (&raw const here).addr();
        let pid = nix::unistd::Pid::from_raw(process.cast_signed());
        let mut local = [std::io::IoSliceMut::new(&mut there)];
        let read = process_vm_readv(pid, &mut local, &[RemoteIoVec { base, len: 1 }]);
        read.map(|bytes| assert_eq!(bytes, 1))
            .map_err(|error| Errno::from_raw_os_error(error as i32))
    }

    fn denied() -> Vec<(&'static str, Result<(), Errno>)> {
        let runs = Command::new("/bin/true").status().map(drop);
        let runs = runs.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        vec![
            ("run a program", runs),
            ("a packet socket", socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop)),
            ("a vsock", socket(AddressFamily::VSOCK, SocketType::STREAM, None).map(drop)),
            ("a namespace", unshare()),
            ("memory of another process", read_memory_of(std::os::unix::process::parent_id())),
            ("to be readable again", {
                use rustix::process::{DumpableBehavior, set_dumpable_behavior};
                set_dumpable_behavior(DumpableBehavior::Dumpable)
            }),
            ("another root", rustix::process::chroot("/")),
        ]
    }
}
