//! `pipectl calibrate` with real daemons: what it asks, what it says, and that it leaves nothing behind.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use system_tests::process::{Daemon, Pair, Programs, Running, eventually, words};

/// A directory on a file system with direct reads, and its device.
fn on_disk() -> (tempfile::TempDir, String) {
    use std::os::unix::fs::MetadataExt as _;
    let programs = std::env::current_exe().expect("a test");
    let beside = programs.parent().expect("a folder");
    let directory = tempfile::tempdir_in(beside).expect("a directory");
    let device = directory.path().metadata().expect("there").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (directory, format!("{major}:{minor}"))
}

fn calibrate(daemon: &Daemon, scratch: &Path, arguments: &[&str]) -> Command {
    let scratch = scratch.to_str().expect("UTF-8");
    let own = ["calibrate", "--dir", scratch];
    daemon.pipectl(own.iter().chain(arguments))
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("there").count() == 0
}

#[test]
fn peers_and_devices_are_measured_and_compared() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), "");
    let (scratch, device) = on_disk();
    let arguments =
        ["--peer", "beta", "--device", &device, "--seconds", "3", "--share", "60", "--json"];
    let output = calibrate(&pair.alpha, scratch.path(), &arguments).output().expect("it starts");
    assert!(output.status.success(), "{}\n{}", words(&output), pair.alpha.log());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["schema_version"], 1);
    let paths = report["paths"].as_array().expect("a list");
    assert_eq!(paths.len(), 2);
    for (path, stage) in
        paths.iter().zip(["net beta bulk asked in", &format!("disk {device} read")])
    {
        let names = path["stages"].as_array().expect("stages");
        assert!(names.iter().any(|name| name == stage), "{names:?}");
        let rows = path["rows"].as_array().expect("rows");
        let row = |cost: &str| rows.iter().find(|row| row["cost"] == cost);
        for cost in ["alone 4 KiB", "busy 64 KiB", "alone 1 MiB", "g", "o_send"] {
            let active = row(cost).unwrap_or_else(|| panic!("no {cost}: {path:#}"));
            assert!(active["active_seconds"].as_f64().is_some_and(f64::is_finite), "{active:#}");
        }
        // A MiB takes longer than a page, on every machine.
        let seconds =
            |cost: &str| row(cost).expect("there")["active_seconds"].as_f64().expect("a number");
        assert!(seconds("alone 1 MiB") > seconds("alone 4 KiB"));
        assert!(path["bytes"].as_u64().is_some_and(|bytes| bytes > 0 && bytes <= 1 << 30));
        assert!(!path["verdict"].as_str().expect("words").is_empty());
    }
    assert!(is_empty(scratch.path()));
    // Nobody has leave any more, and the daemon knows the path now.
    assert!(pair.alpha.log().contains("CALIBRATING"));
    let output =
        calibrate(&pair.alpha, scratch.path(), &["--peer", "beta", "--seconds", "1"]).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{}", words(&output));
    let text = words(&output);
    assert!(text.contains("LIVE") && text.contains("peer beta, memory"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.contains(": ")), "{text}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_cause_and_fix() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), "");
    let (scratch, device) = on_disk();
    let long = "x".repeat(70_000);
    fs::write(scratch.path().join("file"), long).expect("written");
    let file = scratch.path().join("file").to_str().expect("UTF-8").to_owned();
    for (arguments, code, says) in [
        (&["--peer", "gamma"][..], 6, "there is no peer `gamma`"),
        (&["--device", "9:9"][..], 2, "--dir"),
        (&["--device", "9:9", "--file", &file][..], 2, "--file"),
        (&["--peer", "beta", "--file", "data/none"][..], 6, "data"),
        (&["--device", &device, "--file", "/none"][..], 6, "/none"),
    ] {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--seconds", "1"]).collect();
        let output =
            calibrate(&pair.alpha, scratch.path(), &arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
        assert!(words(&output).contains(says), "{arguments:?}: {}", words(&output));
    }
    assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 1);
}

fn started(daemon: &Daemon, scratch: &Path) -> Running {
    let arguments = ["--peer", "beta", "--seconds", "60", "--json"];
    let running = Running(calibrate(daemon, scratch, &arguments).spawn().expect("it starts"));
    eventually("it measures", || daemon.log().contains("CALIBRATING").then_some(()));
    eventually("it has read something", || (daemon.number("sessions") > 0).then_some(()));
    running
}

#[test]
fn ctrl_c_ends_it_and_shows_what_there_is() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), "");
    let (scratch, _) = on_disk();
    let mut running = started(&pair.alpha, scratch.path());
    // Two would measure each other.
    let second =
        calibrate(&pair.alpha, scratch.path(), &["--peer", "beta"]).output().expect("starts");
    assert_eq!(second.status.code(), Some(4), "{}", words(&second));
    assert!(words(&second).contains("somebody else calibrates"), "{}", words(&second));
    running.signal(Signal::INT);
    let mut text = String::new();
    let mut stdout = running.0.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut text).expect("UTF-8");
    assert_eq!(running.exit().code(), Some(130), "{text}");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["paths"][0]["end"], "stopped", "{report:#}");
    let again =
        calibrate(&pair.alpha, scratch.path(), &["--peer", "beta", "--seconds", "1"]).output();
    assert!(again.expect("it starts").status.success(), "the leave was given back");
}

#[test]
fn one_that_is_killed_leaves_nothing_under_way() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), "");
    let (scratch, _) = on_disk();
    let running = started(&pair.alpha, scratch.path());
    running.signal(Signal::KILL);
    drop(running);
    eventually("its session is gone", || (pair.alpha.number("sessions") == 0).then_some(()));
    eventually("nothing is under way", || (pair.alpha.number("transfers") == 0).then_some(()));
    assert!(is_empty(scratch.path()));
}
