//! Dials of real daemons: who may set them, what they do to transfers, and that they leave no
//! trace.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use piped_client::{Client, OpenOptions};
use serde_json::Value;
use system_tests::process::{BLOCKS_BYTES, Daemon, Pair, Programs, now, pattern, words};

const ALLOWED: &str = "[planner]\nallow_dials = true\n";

/// `pipectl dial`; its exit code and what it says.
fn dial(daemon: &Daemon, arguments: &[&str]) -> (i32, String) {
    let output = daemon.pipectl(["dial"].iter().chain(arguments)).output().expect("it starts");
    (output.status.code().expect("it ended by itself"), words(&output))
}

fn dial_well(daemon: &Daemon, arguments: &[&str]) -> String {
    let (code, text) = dial(daemon, arguments);
    assert_eq!(code, 0, "{arguments:?}: {text}\n{}", daemon.log());
    text
}

fn stages(daemon: &Daemon) -> Vec<Value> {
    let output = daemon.pipectl(["stages", "--json"]).output().expect("it starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["stages"].as_array().expect("a list").clone()
}

fn is_dialled(daemon: &Daemon) -> bool {
    stages(daemon).iter().any(|stage| stage["name"].as_str().unwrap_or("").starts_with("dial "))
}

#[test]
fn nobody_dials_where_it_is_not_allowed() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let alpha = Daemon::start(&programs, directory.path(), "alpha", "");
    let (code, text) = dial(&alpha, &["set", "copy", "--g", "50us"]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("allow_dials = true") && text.contains("config reload"), "{text}");
    assert!(dial_well(&alpha, &[]).contains("allow_dials"));
    assert_eq!(alpha.number("dials"), 0);
}

#[test]
fn a_dial_slows_what_it_is_set_for_and_goes_without_a_trace() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), ALLOWED);
    let Pair { alpha, .. } = &pair;
    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let open = |path, options| client.open_export(Some("beta"), "data", path, options);
    let blocks = open("blocks", OpenOptions::read()).expect("it is there");
    let path = directory.path().join("own");
    fs::write(&path, pattern(BLOCKS_BYTES)).expect("written");
    let own = client.open_file(&path, OpenOptions::read_write()).expect("opened");
    let device = fs::metadata(&path).expect("it is there").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let disk = format!("disk:{major}:{minor}");
    for stage in ["net:beta", "receive:beta", &disk, "copy", "check", "send:beta"] {
        dial_well(alpha, &["set", stage, "--L", "30ms"]);
    }
    let list = dial_well(alpha, &[]);
    // Reads and writes of the disk each have one.
    assert_eq!(alpha.number("dials"), 7, "{list}");
    let output = alpha.pipectl(["status"]).output().expect("it starts");
    assert!(words(&output).contains("7 stages are slower on purpose"), "{}", words(&output));
    assert!(alpha.log().contains("DIALLED"), "{}", alpha.log());
    let mut timed = |what: &str, file, least: u64, most: Option<u64>| {
        let start = now();
        let buffer = client.allocate(256 << 10).expect("memory");
        let (buffer, bytes) = queue.read(file, 4096, buffer).expect(what);
        let time = start.elapsed();
        assert_eq!(bytes, 256 << 10);
        assert!(buffer.as_slice() == &pattern(BLOCKS_BYTES)[4096..][..256 << 10], "{what}");
        queue.write(&own, 4096, buffer).expect("written");
        assert!(time >= Duration::from_millis(least), "{what}: {time:?}");
        assert!(most.is_none_or(|most| time < Duration::from_millis(most)), "{what}: {time:?}");
    };
    // Net and receive are a chain.
    timed("dialled, remote", &blocks, 60, None);
    timed("dialled, local", &own, 30, None);
    assert!(is_dialled(alpha));
    let text = dial_well(alpha, &["clear", "net:beta"]);
    assert!(!text.contains("net:beta") && text.contains("receive:beta"), "{text}");
    dial_well(alpha, &["clear"]);
    timed("cleared, remote", &blocks, 0, Some(5_000));
    assert_eq!(alpha.number("dials"), 0);
    assert!(!is_dialled(alpha), "{:?}", stages(alpha));
}

#[test]
fn dials_end_with_the_leave_to_set_them() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let alpha = Daemon::start(&programs, directory.path(), "alpha", ALLOWED);
    dial_well(&alpha, &["set", "copy", "--g", "50us"]);
    assert_eq!(alpha.number("dials"), 1);
    let config = directory.path().join("alpha.toml");
    let text = fs::read_to_string(&config).expect("there").replace("= true", "= false");
    fs::write(&config, text).expect("written");
    let output = alpha.pipectl(["config", "reload"]).output().expect("it starts");
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(alpha.number("dials"), 0);
    assert_eq!(dial(&alpha, &["set", "copy", "--g", "50us"]).0, 4);
}
