//! `pipectl` as a shell sees it: exit codes, what goes to which stream, and quiet behaviour in
//! pipes.

use std::process::{Output, Stdio};

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;

const NOWHERE: &str = "/nonexistent/piped/admin.sock";

fn pipectl(arguments: &[&str]) -> Output {
    let mut command: Command = cargo_bin_cmd!("pipectl");
    command.env_remove("PIPED_ADMIN_SOCKET").env_remove("PIPED_CLIENT_SOCKET");
    command.args(arguments).output().expect("runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn help_is_data_on_stdout_without_colour_codes() {
    let commands: [&[&str]; 7] = [
        &["--help"],
        &["demo", "--help"],
        &["bench", "--help"],
        &["bench", "read", "--help"],
        &["explain", "--help"],
        &["cp", "--help"],
        &["--version"],
    ];
    for arguments in commands {
        let output = pipectl(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}");
        let help = text(&output.stdout);
        assert!(!help.is_empty() && !help.contains('\u{1b}'), "{arguments:?}: {help}");
    }
    let help = text(&pipectl(&["--help"]).stdout);
    for word in ["demo", "status", "stages", "explain", "bench", "planner", "Exit codes"] {
        assert!(help.contains(word), "{word} is not in {help}");
    }
}

/// What first steps tells people to run, without comments.
fn first_steps() -> Vec<String> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/first-steps.md")).expect("first steps");
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(str::lines).filter_map(|line| line.split('#').next());
    // What takes the output of one is another program.
    let own =
        |line: &str| Some(line.split_once("pipectl ")?.1.split(" | ").next()?.trim().to_owned());
    lines.filter_map(own).collect()
}

#[test]
fn first_steps_names_commands_that_exist() {
    let lines = first_steps();
    assert!(lines.len() >= 5, "{lines:?}");
    for line in lines {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let words = arguments.iter().take_while(|word| !word.starts_with('-')).copied();
        let command: Vec<&str> = words.filter(|word| *word != "last").chain(["--help"]).collect();
        assert_eq!(pipectl(&command).status.code(), Some(0), "{line}");
        // These need nobody.
        if matches!(arguments[..], ["demo" | "model", ..] | ["config", "check", ..]) {
            continue;
        }
        // Understood, and there is nobody to ask.
        let mut run: Command = cargo_bin_cmd!("pipectl");
        run.env("PIPED_ADMIN_SOCKET", NOWHERE).env("PIPED_CLIENT_SOCKET", NOWHERE);
        let output = run.args(&arguments).output().expect("runs");
        assert_eq!(output.status.code(), Some(3), "{line}: {}", text(&output.stderr));
    }
}

#[test]
fn every_command_of_the_help_has_a_help() {
    let listed = |arguments: &[&str]| -> Vec<String> {
        let help = text(&pipectl(&[arguments, &["--help"]].concat()).stdout);
        let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let names = commands.take_while(|line| !line.is_empty()).filter_map(|line| {
            // Continuations of a description are indented further.
            line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split(' ').next()
        });
        names.filter(|name| *name != "help").map(str::to_owned).collect()
    };
    let commands = listed(&[]);
    assert!(commands.len() >= 7, "{commands:?}");
    let operations = listed(&["bench"]);
    assert!(operations.len() >= 6, "{operations:?}");
    let of_bench = operations.iter().map(|name| vec!["bench", name]);
    let questions = listed(&["model"]);
    assert!(!questions.is_empty());
    let of_model = questions.iter().map(|name| vec!["model", name]);
    let single = commands.iter().map(|name| vec![name.as_str()]);
    for command in single.chain(of_bench).chain(of_model) {
        let output = pipectl(&[&command[..], &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(text(&output.stdout).contains("Usage: pipectl"), "{command:?}");
    }
}

#[test]
fn wrong_usage_exits_2_with_nothing_on_stdout() {
    let lines: [&[&str]; 7] = [
        &[],
        &["statu"],
        &["explain"],
        &["explain", "first"],
        &["bench", "read"],
        &["bench", "nop", "--size", "1MB"],
        &["planner", "fixed:1"],
    ];
    for arguments in lines {
        let output = pipectl(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    let typo = text(&pipectl(&["statu"]).stderr);
    assert!(typo.contains("status"), "the nearest command is named: {typo}");
}

#[test]
fn an_absent_daemon_exits_3_naming_the_socket_and_the_fix() {
    let lines: [&[&str]; 13] = [
        &["status"],
        &["stages"],
        &["stat"],
        &["stat", "1", "2"],
        &["peers"],
        &["clients"],
        &["transfers", "--ended"],
        &["exports"],
        &["nodes"],
        &["explain", "last"],
        &["planner", "whole"],
        &["calibration", "frozen"],
        &["status", "--json"],
    ];
    for arguments in lines {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--socket", NOWHERE]);
        let output = pipectl(&arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let message = text(&output.stderr);
        assert!(message.contains(NOWHERE), "{message}");
        assert!(message.contains("systemctl start piped"), "{message}");
    }
}

#[test]
fn an_absent_client_door_exits_3_too() {
    let socket = "/nonexistent/piped/client.sock";
    let output = pipectl(&["bench", "nop", "--client-socket", socket]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains(socket) && message.contains("systemctl start piped"), "{message}");
}

#[test]
fn the_socket_can_come_from_the_environment() {
    let mut command: Command = cargo_bin_cmd!("pipectl");
    let output = command.env("PIPED_ADMIN_SOCKET", NOWHERE).arg("status").output().expect("runs");
    assert!(text(&output.stderr).contains(NOWHERE));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("pipectl"))
        .arg("--help")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_demo_that_cannot_find_its_file_exits_6_and_one_with_an_odd_file_2() {
    // Beside the tested program there may be no daemon yet; the PATH has one that is never started.
    let path = tempfile::tempdir().expect("a directory");
    std::fs::write(path.path().join("piped"), "").expect("write");
    let demo = |arguments: &[&str]| {
        let mut command: Command = cargo_bin_cmd!("pipectl");
        command.env("PATH", path.path()).args(["demo"]).args(arguments).output().expect("runs")
    };
    let missing = demo(&["/nonexistent/file"]);
    assert_eq!(missing.status.code(), Some(6), "{}", text(&missing.stderr));
    let odd = demo(&["/"]);
    assert_eq!(odd.status.code(), Some(2), "{}", text(&odd.stderr));
    let out = demo(&["--out", "/nonexistent/directory"]);
    assert_eq!(out.status.code(), Some(6), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("--out"), "{}", text(&out.stderr));
}

#[test]
fn a_picture_of_nothing_leaves_what_was_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [new, old] = ["new.svg", "old.json"].map(path);
    std::fs::write(&old, "of before").expect("written");
    let output = pipectl(&["--socket", NOWHERE, "trace", "--svg", &new, "--chrome", &old]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(!std::path::Path::new(&new).exists());
    assert_eq!(std::fs::read_to_string(&old).expect("there"), "of before");
}
