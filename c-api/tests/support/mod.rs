//! The libraries as an application finds them, and a C compiler.

#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub use system_tests::library::archive;
use system_tests::process::words;

/// The directory of this crate.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Libraries in a directory of their own.
pub struct Libraries {
    pub directory: tempfile::TempDir,
}

impl Libraries {
    /// Links the shared library.
    pub fn link() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        succeed(Command::new(here().join("link")).arg(archive()).arg(directory.path()));
        Self { directory }
    }

    /// Compiles a program of this crate that uses the shared library.
    pub fn compile(&self, source: &str, compiler: &[&str]) -> PathBuf {
        let name = Path::new(source).file_stem().expect("a file").to_str().expect("text");
        let kind: String = compiler.concat().replace(['/', ' ', '='], "");
        let program = self.directory.path().join(format!("{name}.{kind}"));
        let mut compile = Command::new(compiler[0]);
        compile.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"]);
        compile.arg("-I").arg(here().join("include")).arg("-I").arg(here().join("examples"));
        compile.arg("-o").arg(&program).arg(here().join(source));
        compile.arg("-L").arg(self.directory.path()).arg("-lpiped").arg("-pthread");
        succeed(&mut compile);
        program
    }

    /// A program, to be run with these libraries, perhaps under another.
    pub fn command(&self, under: &[&str], program: &Path) -> Command {
        let mut command = match under {
            [] => system_tests::process::command(program),
            [tool, arguments @ ..] => {
                let mut command = system_tests::process::command(Path::new(tool));
                command.args(arguments).arg(program);
                command
            }
        };
        command.env("LD_LIBRARY_PATH", self.directory.path());
        command
    }
}

/// Runs a command that has to succeed.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, words(&output));
    output
}

/// Whether a program can be started; if not, the reason is printed.
pub fn is_there(program: &str, why: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: {program} is not installed, which {why}");
    }
    there
}
