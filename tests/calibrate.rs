//! `pipectl calibrate` with real daemons: what it asks, what it says, and that it leaves nothing
//! behind.
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
        (&["--file", "/none"][..], 6, "/none"),
    ] {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--seconds", "1"]).collect();
        let output =
            calibrate(&pair.alpha, scratch.path(), &arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
        assert!(words(&output).contains(says), "{arguments:?}: {}", words(&output));
    }
    assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 1);
}

#[test]
fn a_file_alone_is_read_on_its_own_device() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), "");
    let (scratch, device) = on_disk();
    let file = scratch.path().join("file");
    fs::write(&file, "x".repeat(1 << 20)).expect("written");
    let file = file.to_str().expect("UTF-8");
    // The directory is of no matter: nothing is made in it.
    let arguments = ["--file", file, "--seconds", "1", "--json"];
    let output =
        calibrate(&pair.alpha, Path::new("/proc"), &arguments).output().expect("it starts");
    assert!(output.status.success(), "{}", words(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let paths: Vec<&str> = report["paths"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|path| path["path"].as_str())
        .collect();
    assert_eq!(paths, [format!("device {device}, reads")]);
}

#[test]
fn a_peer_that_is_down_is_refused_without_leave() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut pair = Pair::start_with(&programs, directory.path(), "");
    let (scratch, _) = on_disk();
    pair.beta.process.signal(Signal::KILL);
    pair.beta.process.exit();
    eventually("it is known to be down", || {
        let status = pair.alpha.status();
        let lanes = status["shards"][0]["peers"][0]["lanes"].as_array()?.clone();
        lanes.iter().all(|lane| lane["up"] == false).then_some(())
    });
    let output = calibrate(&pair.alpha, scratch.path(), &["--peer", "beta"]).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    assert!(words(&output).contains("peer `beta` is not connected"), "{}", words(&output));
    assert!(!pair.alpha.log().contains("CALIBRATING"), "{}", pair.alpha.log());
}

/// What a running one has said by its end, and its exit code.
fn ended(mut running: Running) -> (String, Option<i32>) {
    let mut text = String::new();
    let mut stdout = running.0.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut text).expect("UTF-8");
    let code = running.exit().code();
    (text, code)
}

#[test]
fn a_peer_that_does_not_answer_any_more_costs_what_is_left_and_not_what_there_is() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), "");
    let (scratch, _) = on_disk();
    let running = started(&pair.alpha, scratch.path());
    pair.beta.process.freeze();
    eventually("a request waits", || (pair.alpha.number("transfers") > 0).then_some(()));
    running.signal(Signal::INT);
    // Without a look at the signal the request's deadline ends it, with another code.
    let (text, code) = ended(running);
    assert_eq!(code, Some(130), "{text}");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert!(report["paths"][0]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{report:#}");
}

#[test]
fn a_run_that_fails_shows_what_was_measured_and_why_it_ended() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut pair = Pair::start_with(&programs, directory.path(), "");
    let (scratch, _) = on_disk();
    let running = started(&pair.alpha, scratch.path());
    pair.alpha.process.signal(Signal::KILL);
    pair.alpha.process.exit();
    let (text, code) = ended(running);
    assert!(matches!(code, Some(1 | 3)), "{code:?}: {text}");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let path = &report["paths"][0];
    assert!(path["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{report:#}");
    assert!(path["broke_off"].is_string(), "{report:#}");
    assert!(path["verdict"].as_str().is_some_and(|it| it.contains("broke off")), "{report:#}");
}

/// One that has ended a run, and is far from its end.
fn started(daemon: &Daemon, scratch: &Path) -> Running {
    // A fast machine reads the usual 1 GiB within seconds.
    let arguments = ["--peer", "beta", "--seconds", "600", "--bytes", "64GiB", "--json"];
    let running = Running(calibrate(daemon, scratch, &arguments).spawn().expect("it starts"));
    eventually("it measures", || daemon.log().contains("CALIBRATING").then_some(()));
    // The ring alone is 260 requests, and the first runs of reads are of a few each.
    eventually("it has read something", || (daemon.number("completed") > 400).then_some(()));
    running
}

/// Seconds that one who is refused is told; `None`: he is not refused.
fn kept_out(daemon: &Daemon, scratch: &Path) -> Option<u64> {
    let output = calibrate(daemon, scratch, &["--peer", "beta", "--seconds", "1"]).output();
    let output = output.expect("it starts");
    if output.status.success() {
        return None;
    }
    assert_eq!(output.status.code(), Some(4), "{}", words(&output));
    let text = words(&output);
    let (_, rest) = text.split_once("keeps you out for ").expect("it says how long");
    Some(rest.split(' ').next().expect("a word").parse().expect("a number"))
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
    // A leave is short, whatever --seconds says, and it is renewed: what is left of it grows again.
    let mut least = kept_out(&pair.alpha, scratch.path()).expect("it has leave");
    assert!(least <= 15, "{least} s");
    eventually("it is renewed", || {
        let left = kept_out(&pair.alpha, scratch.path()).expect("it has leave");
        let is_renewed = left > least;
        least = least.min(left);
        is_renewed.then_some(())
    });
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
    // Its leave ends by itself, and soon, though it had 600 s to go.
    let left = kept_out(&pair.alpha, scratch.path());
    assert!(left.is_none_or(|left| left <= 15), "{left:?} s");
}
