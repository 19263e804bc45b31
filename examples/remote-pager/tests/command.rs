//! `remote_pager`, as a user runs it.
#![forbid(unsafe_code)]

mod support;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use support::{Scene, random, scene, sorted};
use system_tests::process::words;

const PROGRAM: &str = env!("CARGO_BIN_EXE_remote_pager");

fn run(scene: &Scene, arguments: &str) -> Output {
    Command::new(PROGRAM)
        .arg("--socket")
        .arg(scene.pair.alpha.client_socket())
        .args(arguments.split_whitespace())
        .arg("--user-mode-only")
        .output()
        .expect("started")
}

/// Runs a command, which must succeed, and returns what it prints.
fn said(scene: &Scene, arguments: &str) -> String {
    let output = run(scene, arguments);
    assert!(output.status.success(), "{arguments}: {}", words(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Why it fails, which it must.
fn failed(scene: &Scene, arguments: &str) -> String {
    let output = run(scene, arguments);
    assert!(!output.status.success(), "{arguments}: {}", words(&output));
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn it_sorts_finds_and_scans() {
    let bytes = random(2 << 20);
    let Some(scene) = scene(&bytes) else { return };
    let region = "--peer beta --region records --resident 512KiB";
    assert!(said(&scene, &format!("scan {region}")).contains("they are not sorted"));
    let sorting = said(&scene, &format!("sort {region}"));
    assert!(sorting.starts_with("262144 records sorted in "), "{sorting}");
    let expected = sorted(&bytes);
    assert!(scene.there() == expected);
    assert!(said(&scene, &format!("scan {region}")).contains("they are sorted"));
    let (records, _) = expected.as_chunks::<8>();
    let key = u64::from_le_bytes(records[1000]);
    let search = |key: u64| said(&scene, &format!("search {key} {region}"));
    assert!(search(key).starts_with(&format!("{key} is record 1000, ")));
    assert!(search(key + 1).starts_with(&format!("{} is not there", key + 1)));
    let file = said(&scene, "scan --peer beta --file data:blocks --strip 64KiB");
    assert!(file.contains("4.0 MiB in"), "{file}");
}

#[test]
fn what_is_wrong_is_said_with_a_fix() {
    let Some(scene) = scene(&random(1 << 20)) else { return };
    let of_region = failed(&scene, "scan --peer beta --region no-such");
    assert!(of_region.contains("no-such"), "{of_region}");
    let of_peer = failed(&scene, "scan --peer gamma --region records");
    assert!(of_peer.contains("gamma"), "{of_peer}");
    let of_file = failed(&scene, "scan --peer beta --file blocks");
    assert!(of_file.contains("EXPORT:PATH"), "{of_file}");
    let of_length = failed(&scene, "scan --peer beta --region records --resident 1MB");
    assert!(of_length.contains("16MiB"), "{of_length}");
    let of_both = failed(&scene, "scan --peer beta --region records --file data:blocks");
    assert!(of_both.contains("cannot be used with"), "{of_both}");
    let of_none = failed(&scene, "scan --peer beta");
    assert!(of_none.contains("--region"), "{of_none}");
    let too_little = failed(&scene, "scan --peer beta --region records --resident 4KiB");
    assert!(too_little.contains("256 KiB"), "{too_little}");
    let elsewhere = failed(&scene, "--socket /nowhere/client.sock scan --region records");
    assert!(!elsewhere.is_empty());
}

/// Runs a command as a user without rights, if this user can become one.
fn as_nobody(arguments: &[&str]) -> Option<Output> {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become somebody else");
        return None;
    }
    let mut command = Command::new(PROGRAM);
    match command.args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: {PROGRAM} as nobody: {error}");
            None
        }
    }
}

#[test]
fn who_may_not_is_told_what_would_help() {
    let sysctl = "/proc/sys/vm/unprivileged_userfaultfd";
    match std::fs::read_to_string(sysctl) {
        Ok(value) if value.trim() == "0" => {}
        value => {
            eprintln!("skipped: {sysctl} is {value:?}: everybody may, or nobody");
            return;
        }
    }
    let Some(output) = as_nobody(&["check"]) else { return };
    let told = words(&output);
    if output.status.success() {
        eprintln!("skipped: /dev/userfaultfd is open to everybody");
        return;
    }
    for fix in ["/dev/userfaultfd", "vm.unprivileged_userfaultfd", "--user-mode-only"] {
        assert!(told.contains(fix), "{told}");
    }
    // The fix that needs nobody's leave.
    let Some(output) = as_nobody(&["check", "--user-mode-only"]) else { return };
    assert!(output.status.success(), "{}", words(&output));
    assert!(words(&output).contains("faults of system calls: no"), "{}", words(&output));
}
