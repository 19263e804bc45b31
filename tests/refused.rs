//! What the kernel may refuse a daemon: io_uring itself, and pinned memory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use piped_client::{Client, OpenOptions};
use system_tests::process::{Daemon, Programs, Running, command, eventually, pattern, words};

/// The same number on every architecture that has it.
const IO_URING_SETUP: u32 = 425;
const LANDLOCK_CREATE_RULESET: u32 = 444;

/// Lets a command, and what it starts, have `errno` for an answer to a system call, as in a
/// container.
fn without(command: &mut Command, call: u32, errno: i32) {
    let instruction = |code: u32, jump_if_not: u8, value: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_if_not,
        k: value,
    };
    let returns = libc::BPF_RET | libc::BPF_K;
    let filter = [
        // The number of the system call is the first word that a filter sees.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call),
        instruction(returns, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        instruction(returns, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let mut filter = filter;
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: `prctl` with these options reads its arguments only; `program` and the filter it
        // points to live on this stack beyond both calls.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) != 0
        };
        if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(install) };
}

/// Whether this kernel lets anybody use io_uring; else the cause is another one than the filter.
fn is_switched_off() -> bool {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let off = disabled.is_ok_and(|value| value.trim() != "0");
    if off {
        eprintln!("skipped: the sysctl kernel.io_uring_disabled is not 0");
    }
    off
}

#[test]
fn without_io_uring_the_daemon_ends_with_the_cause_and_the_fix() {
    let Some(programs) = Programs::find() else { return };
    if is_switched_off() {
        return;
    }
    for (errno, cause) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "CONFIG_IO_URING")] {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = |name| directory.path().join(name).display().to_string();
        let mut command = programs.piped();
        command.args(["--set", &format!("client.socket={:?}", socket("client"))]);
        command.args(["--set", &format!("admin.socket={:?}", socket("admin"))]);
        without(&mut command, IO_URING_SETUP, errno);
        let mut daemon = Running(command.spawn().expect("started"));
        let status = daemon.exit();
        let log = std::io::read_to_string(daemon.0.stderr.take().expect("a pipe")).expect("text");
        assert_eq!(status.code(), Some(1), "{log}");
        for word in ["io_uring may not be used", cause, "allow io_uring_setup"] {
            assert!(log.contains(word), "{word}: {log}");
        }
        let left = fs::read_dir(directory.path()).expect("there").count();
        assert_eq!(left, 0, "a refused start leaves nothing behind");
    }
}

#[test]
fn without_io_uring_the_demo_tells_why_and_leaves_nothing() {
    let Some(programs) = Programs::find() else { return };
    if is_switched_off() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = programs.pipectl();
    command.args(["demo", "--size", "1MiB", "--out"]).arg(directory.path());
    command.env("TMPDIR", directory.path());
    without(&mut command, IO_URING_SETUP, libc::EPERM);
    let output = command.output().expect("started");
    let words = words(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("ended by itself") && words.contains("seccomp"), "{words}");
    assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0, "{words}");
}

#[test]
fn without_landlock_the_daemon_says_so_or_does_not_start_as_it_is_told() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    for (errno, cause) in [(libc::ENOSYS, "does not have it"), (libc::EOPNOTSUPP, "switched off")] {
        let mut command = programs.piped();
        without(&mut command, LANDLOCK_CREATE_RULESET, errno);
        let alpha = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
        let status = alpha.status();
        assert_eq!(status["sandbox"]["landlock_abi"], 0, "{status}");
        let degraded = status["degraded"].to_string();
        assert!(degraded.contains("landlock: ") && degraded.contains(cause), "{degraded}");
        let shown = words(&alpha.pipectl(["status"]).output().expect("pipectl starts"));
        assert!(shown.contains("sandbox: none"), "{shown}");
        drop(alpha);
        let mut command = programs.piped();
        command.args(["--set", "sandbox.landlock=on"]);
        command.arg("--config").arg(directory.path().join("alpha.toml"));
        without(&mut command, LANDLOCK_CREATE_RULESET, errno);
        let output = command.output().expect("started");
        let text = words(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for word in ["[sandbox] landlock is \"on\"", cause, "\"auto\""] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}

/// Runs a program as somebody whose pinned memory is limited; the limit is for all but root.
fn with_memlock(program: &Path, kib: u32) -> Command {
    let mut sh = command(Path::new("sh"));
    sh.arg("-c").arg(format!("ulimit -l {kib} && exec \"$0\" \"$@\"")).arg(program);
    if rustix::process::geteuid().is_root() {
        // What a user has pinned is counted over all processes, and given back some time after
        // their end: each run is a user of its own.
        let user = 60_000 + std::process::id() % 5_000;
        sh.uid(user).gid(user);
    }
    sh
}

/// Whether this machine has other users, and lets them have the limit.
fn can_run(mut piped: Command) -> bool {
    let why = match piped.arg("--version").output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => words(&output),
        Err(error) => error.to_string(),
    };
    eprintln!("skipped: no program can be run with that limit: {why}");
    false
}

/// A directory in which somebody else can run a program, and make its sockets.
fn world_of_somebody_else() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    directory
}

#[test]
fn a_daemon_that_may_not_pin_its_memory_says_so_and_serves() {
    let Some(programs) = Programs::find() else { return };
    let directory = world_of_somebody_else();
    let piped = directory.path().join("piped");
    fs::copy(&programs.piped, &piped).expect("copied");
    // Enough for a ring, and not for the 4 MiB of staging.
    const KIB: u32 = 2048;
    if !can_run(with_memlock(&piped, KIB)) {
        return;
    }
    let command = with_memlock(&piped, KIB);
    let daemon = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
    let log = daemon.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("RLIMIT_MEMLOCK")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for word in ["WARN", "2048 KiB", "LimitMEMLOCK="] {
        assert!(lines[0].contains(word), "{word}: {log}");
    }
    let status = daemon.pipectl(["status"]).output().expect("pipectl starts");
    let text = words(&status);
    assert!(text.contains("degraded: registered_buffers: RLIMIT_MEMLOCK is 2048 KiB"), "{text}");

    let data = directory.path().join("data");
    fs::write(&data, pattern(1 << 20)).expect("written");
    let client = Client::connect(daemon.client_socket()).expect("root may, and so may its user");
    let file = client.open_file(&data, OpenOptions::read()).expect("it is there");
    let mut queue = client.queue().expect("a queue");
    let buffer = client.allocate(1 << 20).expect("memory");
    let (buffer, bytes) = queue.read(&file, 0, buffer).expect("served");
    assert!(bytes == 1 << 20 && buffer.as_slice() == pattern(1 << 20));
}

#[test]
fn a_daemon_that_may_not_even_pin_its_ring_says_what_to_raise() {
    let Some(programs) = Programs::find() else { return };
    let directory = world_of_somebody_else();
    let piped = directory.path().join("piped");
    fs::copy(&programs.piped, &piped).expect("copied");
    if !can_run(with_memlock(&piped, 64)) {
        return;
    }
    let socket = |name| directory.path().join(name).display().to_string();
    let mut command = with_memlock(&piped, 64);
    command.args(["--set", &format!("client.socket={:?}", socket("client"))]);
    command.args(["--set", &format!("admin.socket={:?}", socket("admin"))]);
    let mut daemon = Running(command.spawn().expect("started"));
    let ended = eventually("it ends or serves", || {
        let serves = UnixStream::connect(directory.path().join("admin")).is_ok();
        serves.then_some(false).or_else(|| daemon.0.try_wait().expect("our child").map(|_| true))
    });
    if !ended {
        eprintln!("skipped: this kernel does not count rings as pinned memory");
        return;
    }
    let log = std::io::read_to_string(daemon.0.stderr.take().expect("a pipe")).expect("text");
    assert_eq!(daemon.exit().code(), Some(1), "{log}");
    for word in ["RLIMIT_MEMLOCK is 64 KiB", "LimitMEMLOCK=", "ulimit -l", "prlimit --memlock"] {
        assert!(log.contains(word), "{word}: {log}");
    }
}
