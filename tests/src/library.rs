//! `libpiped.a` as cargo builds it beside the tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::process::words;

/// The static library of programs in C. Cargo builds no static library for a test by itself.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let test = std::env::current_exe().expect("this test");
        let profile =
            test.parent().and_then(Path::parent).expect("a test is in target/PROFILE/deps");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--package", "piped-c", "--target-dir"]);
        build.arg(profile.parent().expect("target")).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let output = build.output().expect("cargo starts");
        assert!(output.status.success(), "{build:?}: {}", words(&output));
        profile.join("libpiped.a")
    })
}
