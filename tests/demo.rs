//! The README's first command, with real daemons: it verifies what it moved, it can be stopped at
//! any moment, and it leaves nothing behind.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process_group};
use system_tests::process::{Programs, Running, eventually, pattern, processes_below, words};

/// The demo in a world of its own: what it makes, and the daemons it starts, are found there.
struct Scene {
    programs: Programs,
    /// For the sockets of the nodes, and their configuration, which is on their command line.
    run: tempfile::TempDir,
    /// For the data.
    out: tempfile::TempDir,
}

impl Scene {
    fn new() -> Option<Self> {
        let programs = Programs::find()?;
        let directory = || tempfile::tempdir().expect("a directory");
        Some(Self { programs, run: directory(), out: directory() })
    }

    /// `pipectl demo`, to be started.
    fn demo(&self) -> Command {
        let mut command = self.programs.pipectl();
        command.env("TMPDIR", self.run.path()).arg("demo").arg("--out").arg(self.out.path());
        command
    }

    fn check_nothing_is_left(&self, when: &str) {
        assert_eq!(
            processes_below(self.run.path()),
            Vec::<u32>::new(),
            "daemons are left behind: {when}"
        );
        for directory in [&self.run, &self.out] {
            let left: Vec<_> = fs::read_dir(directory.path())
                .expect("the directory is there")
                .map(|entry| entry.expect("readable").file_name())
                .collect();
            assert!(left.is_empty(), "left behind: {left:?} {when}");
        }
    }
}

#[test]
fn the_demo_verifies_what_it_moved_and_cleans_up() {
    let Some(scene) = Scene::new() else { return };
    let run = scene.demo().args(["--size", "8MiB", "--json"]).output().expect("pipectl starts");
    let words = words(&run);
    assert!(run.status.success(), "exit {:?}\n{words}", run.status.code());
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
    assert_eq!(report["schema_version"], 1);
    assert!(report["read"]["verified"] == true && report["copy"]["verified"] == true, "{words}");
    has_measured_a_slower_path(&report["slowed"]);
    scene.check_nothing_is_left(&words);
}

/// All that is told of it is there, and nothing was faster than the dials allow. Who won is not a
/// test's affair.
fn has_measured_a_slower_path(slowed: &serde_json::Value) {
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{slowed:#}"));
    let bytes = number(&slowed["size_bytes"]);
    assert_eq!(bytes, f64::from(1 << 20));
    let tried = slowed["tried_bytes"].as_array().expect("sizes");
    assert!(tried.len() > 3 && tried.contains(&slowed["by_hand_bytes"]), "{slowed:#}");
    // The disk alone; a read in one piece passes the link when it has passed the disk.
    let (disk, link) = (bytes * 10e-9, bytes * 8e-9);
    for (name, least) in [("auto", disk), ("by_hand", disk), ("whole", disk + link)] {
        let (seconds, plan) = (&slowed[name]["seconds"], &slowed[name]["plan"]);
        let [low, median, high] = ["low", "median", "high"].map(|key| number(&seconds[key]));
        assert!(least <= low && low <= median && median <= high, "{name}: {slowed:#}");
        assert!(number(&plan["predicted_seconds"]) > 0.0, "{name}: {slowed:#}");
    }
    assert_eq!(slowed["whole"]["plan"]["fragments"], 1, "{slowed:#}");
    for ratio in ["auto_to_whole", "auto_to_by_hand", "by_hand_to_whole"] {
        assert!(number(&slowed[ratio]["median"]) > 0.0, "{ratio}: {slowed:#}");
    }
}

#[test]
fn a_file_of_the_user_is_moved_and_left_alone() {
    let Some(scene) = Scene::new() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a file of mine");
    // Not a multiple of anything.
    fs::write(&path, pattern(3_333_333)).expect("written");
    let mut command = scene.demo();
    let run = command.arg(&path).env("COLUMNS", "40").output().expect("pipectl starts");
    let words = words(&run);
    assert!(run.status.success(), "exit {:?}\n{words}", run.status.code());
    let text = String::from_utf8_lossy(&run.stdout);
    let unfolded = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(unfolded.matches("BLAKE3 equal").count(), 2, "{text}");
    for told in ["auto / whole: ", "auto / the best size by hand: ", "PREDICTED", "doctor: "] {
        assert!(unfolded.contains(told), "{told}: {text}");
    }
    for line in text.lines() {
        let fits = line.chars().count() <= 40 || is_one_word(line.trim());
        assert!(fits, "wider than the terminal: {line}\n{text}");
    }
    assert_eq!(fs::read(&path).expect("there"), pattern(3_333_333));
    assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 1);
    scene.check_nothing_is_left(&words);
}

/// Such as a long path, which is not broken.
fn is_one_word(line: &str) -> bool {
    !line.contains(' ')
}

#[test]
fn what_cannot_be_shown_is_told_at_once() {
    let Some(scene) = Scene::new() else { return };
    // Nobody can make a directory in /sys, root neither.
    let lines: [(&[&str], i32, &str); 3] = [
        (&["/nonexistent/file"], 6, "/nonexistent/file"),
        (&["--out", "/nonexistent/directory"], 6, "--out"),
        (&["--out", "/sys"], 4, "/sys"),
    ];
    for (arguments, code, word) in lines {
        let mut command = scene.programs.pipectl();
        command.env("TMPDIR", scene.run.path()).arg("demo").args(arguments);
        let run = command.output().expect("pipectl starts");
        let words = words(&run);
        assert_eq!(run.status.code(), Some(code), "{arguments:?}: {words}");
        assert!(run.stdout.is_empty() && words.contains(word), "{arguments:?}: {words}");
        scene.check_nothing_is_left(&words);
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_without_a_fault() {
    let Some(scene) = Scene::new() else { return };
    let mut demo = Running(scene.demo().args(["--size", "16MiB"]).spawn().expect("started"));
    let mut lines = BufReader::new(demo.0.stdout.take().expect("a pipe")).lines();
    let first = lines.next().expect("a line").expect("text");
    assert!(first.starts_with("piped demo: 16 MiB"), "{first}");
    // As `head -1` does.
    drop(lines);
    let status = demo.exit();
    let errors = std::io::read_to_string(demo.0.stderr.take().expect("a pipe")).expect("text");
    assert_eq!((status.code(), errors.as_str()), (Some(0), ""));
    scene.check_nothing_is_left("after head -1");
}

/// A moment of the demo.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// It makes the file.
    File,
    /// The daemons are being started.
    Nodes,
    /// It has printed a line that begins so.
    Line(&'static str),
}

#[test]
fn an_interrupt_at_any_moment_leaves_nothing() {
    for moment in [
        Moment::File,
        Moment::Nodes,
        Moment::Line("piped demo"),
        Moment::Line("NODE"),
        Moment::Line("beta"),
        Moment::Line("Read"),
        Moment::Line("Copy"),
        // After which the path is slowed.
        Moment::Line("Remote reads"),
    ] {
        // Ctrl-C goes to the whole group of the terminal; an impatient user does it again.
        interrupt(moment, &[Signal::INT], 130);
        interrupt(moment, &[Signal::INT, Signal::INT, Signal::TERM], 130);
    }
}

#[test]
fn the_end_of_its_terminal_or_session_leaves_nothing() {
    for signal in [Signal::TERM, Signal::HUP] {
        interrupt(Moment::Line("NODE"), &[signal], 130);
    }
}

fn interrupt(moment: Moment, signals: &[Signal], code: i32) {
    let Some(scene) = Scene::new() else { return };
    let mut command = scene.demo();
    command.args(["--size", "16MiB"]).process_group(0);
    let mut demo = Running(command.spawn().expect("started"));
    let mut lines = BufReader::new(demo.0.stdout.take().expect("a pipe")).lines();
    match moment {
        Moment::File => eventually("it makes the file", || {
            let entries = fs::read_dir(scene.out.path()).expect("there");
            (entries.count() > 0).then_some(())
        }),
        Moment::Nodes => eventually("a daemon runs", || {
            (!processes_below(scene.run.path()).is_empty()).then_some(())
        }),
        Moment::Line(begin) => {
            let is_it = |line: &std::io::Result<String>| {
                line.as_ref().is_ok_and(|line| line.starts_with(begin))
            };
            assert!(lines.any(|line| is_it(&line)), "no line {begin}");
        }
    }
    for signal in signals {
        kill_process_group(Pid::from_child(&demo.0), *signal).expect("it runs");
    }
    // What it prints meanwhile must not hold it up, and its end is the end of the pipe.
    for _ in lines {}
    let status = demo.exit();
    let errors = std::io::read_to_string(demo.0.stderr.take().expect("a pipe")).expect("text");
    assert_eq!(status.code(), Some(code), "{moment:?} {signals:?}: {errors}");
    scene.check_nothing_is_left(&format!("{moment:?} {signals:?}"));
}
