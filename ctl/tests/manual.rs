//! What packages install: completions and manual pages.

use std::fs;
use std::process::{Command, Output, Stdio};

use assert_cmd::cargo::cargo_bin_cmd;

fn pipectl(arguments: &[&str]) -> Output {
    let mut command: assert_cmd::Command = cargo_bin_cmd!("pipectl");
    command.args(arguments).output().expect("runs")
}

#[test]
fn completions_know_every_command() {
    let help = String::from_utf8(pipectl(&["--help"]).stdout).expect("UTF-8");
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<&str> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(commands.len() > 8 && commands.contains(&"config"), "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = pipectl(&["completions", shell]);
        let script = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(output.status.code(), Some(0), "{shell}");
        for command in &commands {
            assert!(script.contains(command), "{shell}: no {command}");
        }
        if shell != "bash" && shell != "zsh" && shell != "fish" {
            continue;
        }
        // The shell itself, where there is one, takes it.
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("script");
        fs::write(&file, script).expect("written");
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(output) => {
                assert!(output.status.success() && output.stderr.is_empty(), "{output:?}")
            }
            Err(error) => eprintln!("skipped: {shell} cannot be run ({error})"),
        }
    }
    assert_eq!(pipectl(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn manual_pages_are_written_and_render_without_warnings() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    let output = pipectl(&["man", path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let mut names: Vec<String> = fs::read_dir(directory.path())
        .expect("there")
        .map(|entry| entry.expect("read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in
        ["pipectl.1", "pipectl-status.1", "pipectl-config-reload.1", "piped.8", "piped.toml.5"]
    {
        assert!(names.iter().any(|it| it == name), "no {name} in {names:?}");
    }
    for name in &names {
        let text = fs::read_to_string(directory.path().join(name)).expect("there");
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{name}: {text}");
        let groff = Command::new("groff")
            .args(["-man", "-ww", "-Tutf8"])
            .arg(directory.path().join(name))
            .stdin(Stdio::null())
            .output();
        match groff {
            Ok(output) => assert!(output.stderr.is_empty(), "{name}: {output:?}"),
            Err(error) => return eprintln!("skipped: groff cannot be run ({error})"),
        }
    }
    assert_eq!(pipectl(&["man", "/nonexistent/directory"]).status.code(), Some(6));
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let script = "script";
    let program = assert_cmd::cargo::cargo_bin!("pipectl").display().to_string();
    let on_a_terminal = |no_colour: &str| {
        let mut command = Command::new(script);
        command.args(["-qec", &format!("{program} --help"), "/dev/null"]).stdin(Stdio::null());
        command.env_remove("NO_COLOR").env("TERM", "xterm");
        if !no_colour.is_empty() {
            command.env("NO_COLOR", no_colour);
        }
        command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    match on_a_terminal("") {
        Ok(text) => assert!(text.contains("\u{1b}["), "{text}"),
        Err(error) => return eprintln!("skipped: no terminal can be made ({error})"),
    }
    let text = on_a_terminal("1").expect("it ran");
    assert!(text.contains("Usage:") && !text.contains("\u{1b}["), "{text}");
    assert!(!String::from_utf8_lossy(&pipectl(&["nonsense"]).stderr).contains('\u{1b}'));
}
