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

/// A configuration of its own whose doors can be, and a mistake behind it.
fn beside(directory: &Path, mistake: &str) -> std::path::PathBuf {
    let place = directory.display().to_string();
    let text = format!(
        "[client]\nsocket = \"{place}/c\"\n[admin]\nsocket = \"{place}/a\"\n[limits.global]\nstaging = \"4MiB\"\n\
         {}\n",
        mistake.replace("DIR", &place)
    );
    let file = directory.join("piped.toml");
    fs::write(&file, text).expect("written");
    file
}

#[test]
fn a_check_finds_what_a_start_would_meet_and_a_start_says_it_the_same_way() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("file"), b"").expect("written");
    for (mistake, place) in [
        ("[exports.data]\npath = \"DIR/none\"", "piped.toml:8: `exports.data.path`"),
        ("[exports.data]\npath = \"DIR/file\"", "piped.toml:8: `exports.data.path`"),
        (
            "[exports.data]\npath = \"/\"\nusers = [\"nobody-here\"]",
            "piped.toml:9: `exports.data.users`",
        ),
        ("[access]\ngroups = [\"nobody-here\"]", "piped.toml:8: `access.groups`"),
        ("[security]\nkey_file = \"DIR/none\"", "piped.toml:8: `security.key_file`"),
        ("[security]\nmode = \"encrypted\"", "piped.toml:8: `security.mode`"),
        ("[metrics]\naddress = \"192.0.2.1:9741\"", "piped.toml:8: `metrics.address`"),
        ("[shards]\ncpus = [9999]", "piped.toml:8: `shards.cpus`"),
        ("[log]\nlevel = \"warning\"", "piped.toml:8: `log.level`"),
    ] {
        let file = beside(directory.path(), mistake);
        let check = |more: &[&str]| {
            let mut command = programs.pipectl();
            command.args(["config", "check"]).arg(&file).args(more);
            command.output().expect("it runs")
        };
        let root = check(&["--user", "root"]);
        let text = words(&root);
        assert_eq!(root.status.code(), Some(1), "{mistake}: {text}");
        assert!(text.contains(place), "{mistake}: {text}");
        let line = text.lines().find(|line| line.contains(place)).expect("looked");
        // The daemon itself, asked, and started.
        for arguments in [&["--check-config"][..], &[]] {
            let mut command = programs.piped();
            let output = command.arg("--config").arg(&file).args(arguments).output();
            let output = output.expect("it runs");
            assert_eq!(output.status.code(), Some(1), "{mistake}: {}", words(&output));
            // Their users' names may differ, and so may the cure.
            let beginning: String = line.chars().take(place.len() + 40).collect();
            assert!(words(&output).contains(&beginning), "{mistake}: {} / {line}", words(&output));
        }
        let is_text = mistake.starts_with("[log]");
        let alone = check(&["--no-filesystem"]);
        assert_eq!(alone.status.code(), Some(i32::from(is_text)), "{mistake}: {}", words(&alone));
        let found = json(&check(&["--user", "root", "--json"]));
        assert_eq!(
            (&found["findings"][0]["level"], &found["good"]),
            (&"error".into(), &false.into())
        );
        assert!(found["findings"][0]["line"].is_u64(), "{found}");
    }
    // What is only worse than it should be is no mistake.
    let file = beside(directory.path(), "[node]\nstate_dir = \"DIR/no/state\"");
    let mut command = programs.pipectl();
    let output = command.args(["config", "check"]).arg(&file).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    assert!(words(&output).contains("piped.toml:8: `node.state_dir`"), "{}", words(&output));
}

#[test]
fn commands_are_about_the_daemon_that_they_talk_to() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = programs.piped();
    command.env("PIPED_PLANNER__MODE", "whole").args(["--set", "client.queues_max=3"]);
    let mut alpha = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
    let run = |alpha: &Daemon, arguments: &[&str]| {
        let output = alpha.pipectl(arguments).output().expect("it runs");
        (output.status.code(), words(&output))
    };
    let main = directory.path().join("alpha.toml").display().to_string();
    // Its key, and whom it trusts, are beside its own file.
    let (code, text) = run(&alpha, &["keys", "generate"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(directory.path().join("node.key").exists(), "{text}");
    let key = "3q2+7wABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhs=";
    let (code, text) = run(&alpha, &["keys", "trust", "gamma", key]);
    assert_eq!(code, Some(0), "{text}");
    assert!(directory.path().join("conf.d/50-peer-gamma.toml").exists(), "{text}");
    let (code, text) = run(&alpha, &["keys", "list"]);
    assert!(code == Some(0) && text.contains(key), "{text}");
    assert!(
        text.contains("the daemon at") && text.contains(&main),
        "it says whom it asked: {text}"
    );
    let (code, text) = run(&alpha, &["keys", "show"]);
    assert!(code == Some(0) && text.contains("the daemon has not taken it yet"), "{text}");
    // Its layers, also those that no file shows.
    let (code, text) = run(&alpha, &["config", "check"]);
    assert!(code == Some(0) && text.contains("good: ") && text.contains(&main), "{text}");
    let all: Value =
        serde_json::from_str(&run(&alpha, &["config", "show", "--json"]).1).expect("JSON");
    assert_eq!(all["sources"]["variables"]["PIPED_PLANNER__MODE"], "whole");
    assert_eq!(all["sources"]["settings"][0], "client.queues_max=3");
    let text = run(&alpha, &["planner", "auto"]).1;
    assert!(text.contains("PIPED_PLANNER__MODE says what planner.mode is"), "{text}");
    let text = run(&alpha, &["calibration", "frozen"]).1;
    assert!(text.contains(&format!("set planner.calibration in {main}")), "{text}");
    rewrite(directory.path(), "pin = false", "pin = false\n[planner]\ncalibration = \"live\"");
    assert_eq!(run(&alpha, &["config", "reload"]).0, Some(0));
    let text = run(&alpha, &["calibration", "frozen"]).1;
    assert!(
        text.contains("change planner.calibration in") && text.contains("alpha.toml:12"),
        "{text}"
    );
    let text = run(&alpha, &["keys", "show"]).1;
    assert!(!text.contains("has not taken it"), "{text}");
    // A mistake in its file is found although it runs well.
    rewrite(directory.path(), "\"live\"", "\"live\"\n[exports.data]\npath = \"/nonexistent\"");
    let (code, text) = run(&alpha, &["config", "check"]);
    assert!(code == Some(1) && text.contains("alpha.toml:14: `exports.data.path`"), "{text}");
    let (_, text) = run(&alpha, &["doctor"]);
    assert!(text.contains("install -d") && text.contains("pipectl config reload"), "{text}");
    // A file that was named counts more.
    let other = directory.path().join("other.toml");
    fs::write(&other, "").expect("written");
    let (code, text) = run(&alpha, &["config", "check", &other.display().to_string()]);
    assert!(code == Some(0) && !text.contains(&main), "{text}");
    // Nobody there: files, and a word about it; and what to do has no reload in it.
    alpha.process.signal(rustix::process::Signal::TERM);
    alpha.process.exit();
    let (_, text) = run(&alpha, &["keys", "list"]);
    assert!(text.contains("no daemon at") && text.contains("/etc/piped/piped.toml"), "{text}");
    let mut command = programs.pipectl();
    let output = command.args(["doctor", "--config", &main]).output().expect("it runs");
    let text = words(&output);
    assert!(text.contains(&format!("no daemon at {}", alpha.admin_socket().display())), "{text}");
    assert!(text.contains("install -d") && !text.contains("config reload"), "{text}");
}

/// Its layers are read again by what it says of them, and its files are written to: whatever is in
/// their names and values.
#[test]
fn what_a_daemon_says_of_its_layers_is_taken_as_it_is() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("tab\there");
    let data = place.join("two\nlines\u{202e}");
    fs::create_dir_all(&data).expect("made");
    let mut command = programs.piped();
    command.env("PIPED_EXPORTS__DATA__PATH", &data);
    let alpha = Daemon::start_by(command, &programs, &place, "alpha", "");
    let run = |arguments: &[&str]| {
        let output = alpha.pipectl(arguments).output().expect("it runs");
        let text = words(&output);
        assert!(!text.contains(['\t', '\u{202e}']), "{arguments:?}: {text:?}");
        (output.status.code(), text)
    };
    let (code, text) = run(&["config", "check"]);
    assert!(code == Some(0) && text.contains("tab\\there/alpha.toml"), "{text}");
    let key = "3q2+7wABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhs=";
    let (code, text) = run(&["keys", "trust", "gamma", key]);
    assert!(code == Some(0) && place.join("conf.d/50-peer-gamma.toml").exists(), "{text}");
    // It looks at what the daemon has, so it has no mistake to tell.
    let text = run(&["doctor"]).1;
    assert!(!text.contains("cannot read") && !text.contains("No such file"), "{text}");
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
