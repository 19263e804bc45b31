//! `pipectl config` with a real daemon, and the exit codes of `pipectl` with and without one.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use system_tests::process::{Daemon, Programs, words};

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(output)))
}

/// Puts more into the configuration of a daemon that runs.
fn rewrite(directory: &Path, from: &str, to: &str) {
    let file = directory.join("alpha.toml");
    let text = fs::read_to_string(&file).expect("there");
    assert!(text.contains(from), "{text}");
    fs::write(file, text.replacen(from, to, 1)).expect("written");
}

#[test]
fn a_configuration_is_shown_with_its_origins_and_reloaded() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = programs.piped();
    command.env("PIPED_PLANNER__CALIBRATION", "frozen").args(["--set", "client.queues_max=3"]);
    let drop_ins = directory.path().join("conf.d");
    fs::create_dir(&drop_ins).expect("made");
    fs::write(drop_ins.join("more.toml"), "\n[log]\nlevel = \"warn\"\n").expect("written");
    let alpha = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
    let run = |arguments: &[&str]| alpha.pipectl(arguments).output().expect("runs");
    assert!(run(&["planner", "whole"]).status.success());
    let shown = words(&run(&["config", "show", "--origin"]));
    let line = |key: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(key));
        line.unwrap_or_else(|| panic!("no {key} in {shown}")).to_owned()
    };
    for (key, value, origin) in [
        ("shards.pin", "false", "alpha.toml:10"),
        ("log.level", "\"warn\"", "conf.d/more.toml:3"),
        ("planner.calibration", "\"frozen\"", "PIPED_PLANNER__CALIBRATION"),
        ("client.queues_max", "3", "--set client.queues_max"),
        ("client.entries_max", "1024", "default"),
        ("planner.mode", "\"whole\"", "runtime"),
    ] {
        let line = line(key);
        assert!(line.contains(value) && line.ends_with(origin), "{key}: {line}");
    }
    assert!(!words(&run(&["config", "show"])).contains("alpha.toml"), "only with --origin");
    let all = json(&run(&["config", "show", "--json"]));
    assert_eq!(all["schema_version"], 1);

    let output = run(&["config", "reload"]);
    assert_eq!((output.status.code(), words(&output).as_str()), (Some(0), "nothing changed\n"));
    // What a restart is needed for waits, in `status` too, until then.
    rewrite(directory.path(), "pin = false", "pin = true\n[client.x]");
    let output = run(&["config", "reload"]);
    let text = words(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("alpha.toml:11: there is no key `client.x`"), "{text}");
    let text = words(&run(&["status"]));
    assert!(text.contains("reload refused") && text.contains("client.x"), "{text}");
    rewrite(directory.path(), "[client.x]", "[planner]\nmode = \"fixed:64KiB\"");
    let text = words(&run(&["config", "reload"]));
    assert!(text.contains("changed: planner.mode: \"auto\" -> \"fixed:65536\""), "{text}");
    assert!(text.contains("restart needed: shards.pin: false -> true"), "{text}");
    let text = words(&run(&["status"]));
    assert!(text.contains("restart needed: shards.pin") && !text.contains("refused"), "{text}");
    let reloaded = json(&run(&["config", "reload", "--json"]));
    assert_eq!(reloaded["restart_needed"][0]["key"], "shards.pin");
    // What waits for a restart does not come from where the next value stands.
    rewrite(directory.path(), "pin = true", "pin = true\nspin = \"0s\"");
    assert!(run(&["config", "reload"]).status.success());
    let text = words(&run(&["config", "show", "--origin"]));
    let spin = text.lines().find(|line| line.starts_with("shards.spin ")).expect("a key");
    assert!(spin.contains("\"auto\"") && spin.ends_with("default"), "{text}");
    // What pipectl set is what a reload of that key replaced.
    let text = words(&run(&["config", "show", "--origin"]));
    assert!(text.contains("fixed:65536") && !text.contains("runtime"), "{text}");
}

#[test]
fn a_configuration_is_checked_without_a_daemon() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("piped.toml");
    let check = |text: &str, more: &[&str]| {
        fs::write(&file, text).expect("written");
        let mut command = programs.pipectl();
        command.args(["config", "check"]).arg(&file).args(more);
        command.env("PIPED_ADMIN_SOCKET", "/nonexistent/socket").output().expect("runs")
    };
    let output = check("shards.count = 2\n", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    assert!(words(&output).contains("piped.toml"));
    let bad = "[shards]\ncuont = 2\n[log]\nlevel = 3\n";
    let output = check(bad, &["--set", "io.entries=7"]);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(stdout.contains("piped.toml:2: ") && stdout.contains("`shards.count`"), "{stdout}");
    assert!(stdout.contains("piped.toml:4: "), "{stdout}");
    assert!(words(&output).contains("2 mistakes"), "{}", words(&output));
    let output = check("", &["--set", "io.entries=7"]);
    assert!(words(&output).contains("--set io.entries: `io.entries` is 7"), "{}", words(&output));
    let found = json(&check(bad, &["--json"]));
    assert_eq!((&found["good"], &found["schema_version"]), (&false.into(), &1.into()));
    assert_eq!(found["findings"][0]["line"], 2);
    assert_eq!(found["findings"][0]["key"], "shards.cuont");
    assert_eq!(found["findings"][1]["key"], "log.level");
}

#[test]
fn every_exit_code_has_its_kind_of_failure_with_cause_and_fix() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let bad = directory.path().join("bad.toml");
    fs::write(&bad, "shards.count = 0\n").expect("written");
    let bad = bad.display().to_string();
    let peer = "[peers.beta]\naddress = \"127.0.0.1:9\"\n";
    let alpha = Daemon::start(&programs, directory.path(), "alpha", peer);
    let expect = |mut command: std::process::Command, code: i32, hints: &[&str]| {
        let output = command.output().expect("runs");
        let text = words(&output);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {text}");
        for hint in hints {
            assert!(text.contains(hint), "{command:?}: no `{hint}` in {text}");
        }
        assert!(!text.contains('\u{1b}'), "{command:?}: {text}");
    };
    let with = |arguments: &[&str]| alpha.pipectl(arguments);
    let without = |arguments: &[&str]| {
        let mut command = programs.pipectl();
        command.args(arguments).args(["--socket", "/nonexistent/admin.sock"]);
        command
    };
    let read = ["bench", "read", "--peer", "bata", "--export", "data", "--path", "x"];
    expect(with(&["status"]), 0, &["alpha"]);
    expect(without(&["config", "check", &bad]), 1, &["bad.toml:1", "choose a number"]);
    expect(without(&["config", "check", "/nonexistent"]), 6, &["/nonexistent", "create it"]);
    expect(with(&["explain", "first"]), 2, &["`last` or a number"]);
    expect(with(&["stats"]), 2, &["'stat"]);
    for command in [&["status"][..], &["config", "reload"], &["config", "show"], &["peers"]] {
        expect(without(command), 3, &["/nonexistent/admin.sock", "systemctl start piped"]);
    }
    rewrite(directory.path(), "pin = false", "pin = 7");
    expect(with(&["config", "reload"]), 4, &["alpha.toml:10", "shards.pin"]);
    expect(with(&["explain", "17"]), 6, &["17"]);
    expect(with(&read), 6, &["no peer `bata`", "did you mean `beta`?"]);
    if rustix::process::geteuid().is_root() {
        // Somebody else does not even pass the directory.
        let program = directory
            .path()
            .parent()
            .expect("a parent")
            .join(format!("ctl-{}", std::process::id()));
        fs::copy(&programs.pipectl, &program).expect("copied");
        let mut command = system_tests::process::command(&program);
        command.arg("status").arg("--socket").arg(alpha.admin_socket()).uid(65_534).gid(65_534);
        expect(command, 4, &["not allowed", "root"]);
        fs::remove_file(program).expect("removed");
    } else {
        eprintln!("skipped: only root can be somebody else");
    }
    alpha.process.freeze();
    expect(with(&["status"]), 5, &["did not answer", "systemctl status piped"]);
    alpha.process.signal(rustix::process::Signal::CONT);
}

#[test]
fn the_unit_is_clean_and_the_user_can_be_made() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd");
    let unit = fs::read_to_string(shipped.join("piped.service")).expect("shipped");
    // Where packages put the programs there are none.
    let unit = unit
        .replace("/usr/bin/piped\n", &format!("{}\n", programs.piped.display()))
        .replace("/usr/bin/pipectl ", &format!("{} ", programs.pipectl.display()));
    let file = directory.path().join("piped.service");
    fs::write(&file, unit).expect("written");
    let mut verify = std::process::Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&file);
    match verify.output() {
        Ok(output) => {
            assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
        }
        Err(error) => eprintln!("skipped: systemd-analyze cannot be run ({error})"),
    }
    let root = directory.path().join("root");
    fs::create_dir_all(root.join("etc")).expect("made");
    let mut make = std::process::Command::new("systemd-sysusers");
    make.arg(format!("--root={}", root.display())).arg(shipped.join("sysusers.conf"));
    match make.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", words(&output));
            let users = fs::read_to_string(root.join("etc/passwd")).expect("made");
            assert!(users.lines().any(|line| line.starts_with("piped:")), "{users}");
        }
        Err(error) => return eprintln!("skipped: systemd-sysusers cannot be run ({error})"),
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can give directories away");
    }
    let mut make = std::process::Command::new("systemd-tmpfiles");
    make.arg(format!("--root={}", root.display()))
        .arg("--create")
        .arg(shipped.join("tmpfiles.conf"));
    match make.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", words(&output));
            let groups = fs::read_to_string(root.join("etc/group")).expect("made");
            let group = groups.lines().find_map(|line| line.strip_prefix("piped:")).expect("made");
            let drop_ins = fs::metadata(root.join("etc/piped/conf.d")).expect("made");
            assert_eq!(group.split(':').nth(1), Some(drop_ins.gid().to_string().as_str()));
            assert_eq!(drop_ins.mode() & 0o777, 0o775, "the daemon may write drop-ins");
        }
        Err(error) => eprintln!("skipped: systemd-tmpfiles cannot be run ({error})"),
    }
}
