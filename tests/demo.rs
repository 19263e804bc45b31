//! The README's first command, with real daemons: it verifies what it moved and leaves nothing behind.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;

/// A program of the workspace beside this test's own folder, if it was built.
fn program(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let path = test.parent()?.parent()?.join(name);
    path.exists().then_some(path)
}

#[test]
fn the_demo_verifies_what_it_moved_and_cleans_up() {
    let (Some(pipectl), Some(_)) = (program("pipectl"), program("piped")) else {
        eprintln!("skipped: pipectl and piped are not built; run `cargo test --workspace`");
        return;
    };
    let out = tempfile::tempdir().expect("a temporary directory");
    let run = Command::new(pipectl)
        .args(["demo", "--size", "8MiB", "--json", "--out"])
        .arg(out.path())
        .output()
        .expect("pipectl starts");
    let text = String::from_utf8_lossy(&run.stdout);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "exit {:?}\n{text}\n{errors}", run.status.code());
    assert!(text.contains("schema_version"), "{text}");
    let left: Vec<_> = std::fs::read_dir(out.path())
        .expect("the directory is there")
        .map(|entry| entry.expect("readable").file_name())
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}\n{text}");
}
