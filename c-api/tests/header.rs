//! The header is what the source says, the library has what the header says, and each function
//! keeps panics inside.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use support::{Libraries, here, is_there, succeed};

/// Functions of the source: names and bodies.
fn functions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in fs::read_dir(here().join("src")).expect("the source") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("text");
        for part in text.split("pub extern \"C\" fn ").skip(1) {
            let name = part.split('(').next().unwrap_or_default().to_owned();
            let body = part.split_once(" {\n").map_or("", |(_, body)| body);
            let body = body.split_once("\n}\n").map_or("", |(body, _)| body);
            found.push((name, body.trim_start().to_owned()));
        }
    }
    assert!(found.len() > 60, "the source is where it was");
    found
}

#[test]
fn the_committed_header_is_what_the_source_says() {
    let path = here().join("include/piped.h");
    let mut made = Vec::new();
    let mut config =
        cbindgen::Config::from_file(here().join("cbindgen.toml")).expect("a configuration");
    config.trailer = Some(fs::read_to_string(here().join("src/verbs.h")).expect("the verbs"));
    cbindgen::generate_with_config(here(), config).expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("text");
    if std::env::var_os("PIPED_BLESS").is_some() {
        fs::write(&path, &made).expect("written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "c-api/include/piped.h is not what the source says; \
         `PIPED_BLESS=1 cargo test -p piped-c --test header` writes it anew"
    );
}

#[test]
fn the_shared_library_has_the_functions_of_the_header_under_their_version_and_nothing_else() {
    if !is_there("objdump", "lists what a library exports") {
        return;
    }
    let libraries = Libraries::link();
    let library = libraries.directory.path().join("libpiped.so.1");
    let listed = succeed(Command::new("objdump").arg("-T").arg(&library));
    let listed = String::from_utf8(listed.stdout).expect("text");
    let defined = listed.lines().filter(|line| line.contains(" g    "));
    let mut exported = BTreeSet::new();
    for line in defined {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [.., version, name] = words[..] else { panic!("a line of objdump: {line}") };
        assert_eq!(version, "PIPED_1", "{line}");
        if name != "PIPED_1" {
            exported.insert(name.to_owned());
        }
    }
    let declared: BTreeSet<String> = functions().into_iter().map(|(name, _)| name).collect();
    assert_eq!(exported, declared);
    let header = fs::read_to_string(here().join("include/piped.h")).expect("the header");
    for name in &declared {
        assert!(
            header.contains(&format!(" {name}(")) || header.contains(&format!("*{name}(")),
            "{name}"
        );
    }
    let dynamic = succeed(Command::new("objdump").arg("-p").arg(&library));
    let dynamic = String::from_utf8(dynamic.stdout).expect("text");
    assert!(dynamic.contains("libpiped.so.1"), "its own name");
}

#[test]
fn every_function_keeps_panics_inside() {
    // These compute nothing that could fail.
    let plain = ["piped_version", "piped_last_message", "piped_status_text", "piped_status_errno"];
    for (name, body) in functions() {
        let inside = body.starts_with("call(|| ") && body.ends_with(')');
        assert!(inside || plain.contains(&name.as_str()), "{name}: {body}");
    }
}

#[test]
fn the_header_can_be_included_twice() {
    if !is_there("cc", "compiles C") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("twice.c");
    fs::write(&source, "#include <piped.h>\n#include <piped.h>\n").expect("written");
    let mut compiler = Command::new("cc");
    compiler.args(["-fsyntax-only", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I"]);
    succeed(compiler.arg(here().join("include")).arg(source));
}
