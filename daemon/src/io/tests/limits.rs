//! Refusals by the system itself: each test changes a limit of one thread, or of a child process
//! where a limit is the process's.

use std::process::Command;

use piped_core::io::{Io, Op, Resource};
use piped_core::modes::IoFeature;

use super::{config, driver, filled_file, open, pattern, run, segment, span};
use crate::io::{UringError, UringIo};

/// Whether this process is the child of `name`; if not, runs it and passes its verdict on.
fn in_child(name: &str) -> bool {
    const KEY: &str = "PIPED_IO_TEST_CHILD";
    if std::env::var(KEY).is_ok_and(|child| child == name) {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("io::tests::limits::{name}"), "--nocapture"])
        .env(KEY, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the child failed");
    assert!(text.contains("1 passed"), "the child ran another test");
    false
}

/// Lowers a soft limit of this process.
fn limit(resource: rustix::process::Resource, value: u64) {
    let mut limits = rustix::process::getrlimit(resource);
    limits.current = Some(value);
    rustix::process::setrlimit(resource, limits).unwrap();
}

/// Makes this thread (not the process) an ordinary user's, because root's memory is not limited.
/// `false` if it is one already, which shares its account of locked memory with other processes.
fn become_ordinary() -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    // The user id is its own, because locked memory is counted per user.
    let id = 60_000 + std::process::id() % 5_000;
    // SAFETY: the raw call changes the calling thread's ids and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, id, id, id) };
    assert_eq!(result, 0);
    true
}

#[test]
fn without_memlock_buffers_are_used_unregistered() {
    if !in_child("without_memlock_buffers_are_used_unregistered") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let bytes = pattern(4096, 17);
    filled_file(&path, &bytes);
    let fd = open(&path, true).or_else(|| open(&path, false)).unwrap();
    limit(rustix::process::Resource::Memlock, 4 << 20);
    let verdict = std::thread::spawn(move || {
        let alone = become_ordinary();
        let mut io = driver();
        let file = io.add_file(fd).unwrap();
        let small = segment(&mut io, 1 << 20);
        let large = segment(&mut io, 8 << 20);
        assert!(!io.poll_registration());
        let registered = io.counters().registered_bytes;
        assert!(registered == 1 << 20 || registered == 0 && !alone, "{registered}");
        assert_eq!(io.counters().registrations_failed, if registered > 0 { 1 } else { 2 });
        let lines = io.degraded();
        assert_eq!(lines.len(), 1, "{lines:?}");
        let needed = (registered + (8 << 20)) >> 20;
        let needs = format!("needs {needed} MiB");
        for part in ["RLIMIT_MEMLOCK is 4096 KiB", &needs, "LimitMEMLOCK="] {
            assert!(lines[0].contains(part), "{}", lines[0]);
        }
        for memory in [small, large] {
            let into = span(memory, 4096, 4096);
            assert_eq!(run(&mut io, Op::Read { file, offset: 0, into }), 4096);
            assert_eq!(super::load(&mut io, into), bytes);
        }
        let fixed = u64::from(registered > 0);
        assert_eq!((io.counters().buffers_fixed, io.counters().buffers_plain), (fixed, 2 - fixed));
        io.release(Resource::Segment(small));
        io.release(Resource::Segment(large));
        assert_eq!(io.counters().registered_bytes, 0);
    });
    verdict.join().unwrap();
}

#[test]
fn a_low_limit_of_open_files_makes_the_table_smaller() {
    if !in_child("a_low_limit_of_open_files_makes_the_table_smaller") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    filled_file(&path, b"abc");
    let files: Vec<_> = (0..20).map(|_| open(&path, false).unwrap()).collect();
    let mut spare = files.into_iter();
    limit(rustix::process::Resource::Nofile, 64);
    let mut io = UringIo::new(&crate::io::UringConfig { files_max: 4096, ..config() }).unwrap();
    assert!(
        io.tier().iter().any(|name| name == IoFeature::RegisteredFiles.name()),
        "{:?}",
        io.tier()
    );
    let file = io.add_file(spare.next().unwrap()).unwrap();
    assert_eq!(run(&mut io, Op::Sync { file }), 0);
    assert_eq!(io.counters().files_fixed, 1);
}

/// Makes `io_uring_setup` fail in this thread, as a container's filter does.
fn forbid_io_uring(errno: i32) {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(LOAD_WORD, 0, 0, 0), // the system call's number
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls read their arguments only, and bind the calling thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn a_filter_against_io_uring_is_named() {
    for (errno, names) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "CONFIG_IO_URING")] {
        let refused = std::thread::spawn(move || {
            forbid_io_uring(errno);
            UringIo::new(&config()).expect_err("it is forbidden")
        });
        let error = refused.join().unwrap();
        assert!(matches!(error, UringError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains(names), "{error}");
        println!("{error}");
    }
}
