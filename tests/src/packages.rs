//! The Debian packages, made of the programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::archive;
use crate::process::{Programs, words};

/// The maintainer of packages that are made here, as a variable of `packaging/build` names it.
pub const MAINTAINER: &str = "Testers & Co. <testers@piped.example>";

/// Files of the packages that the tests install.
#[derive(Debug)]
pub struct Packages {
    /// The package of the daemon and its control program.
    pub piped: PathBuf,
    /// The package of the C library.
    pub library: PathBuf,
    /// The package with headers, to build with the library.
    pub development: PathBuf,
    /// The plugin for nbdkit, where nbdkit's header is there.
    pub plugin: Option<PathBuf>,
}

impl Packages {
    /// Makes them in a directory by `packaging/build`, or takes those in the directory that
    /// `PIPED_PACKAGES` names, as in `PIPED_PACKAGES=target/debian`, which may be of another
    /// profile and are not made again. `None`, with the reason printed, where that cannot be.
    ///
    /// # Panics
    /// If they cannot be made although what is needed is there.
    #[must_use]
    pub fn make(directory: &Path) -> Option<Self> {
        if let Some(directory) = std::env::var_os("PIPED_PACKAGES") {
            return Some(Self::in_directory(&root().join(directory)));
        }
        let programs = Programs::find()?;
        let deb = std::env::var_os("CARGO_DEB").unwrap_or_else(|| "cargo-deb".into());
        for (tool, package) in [(&*deb, "cargo-deb"), ("dpkg-shlibdeps".as_ref(), "dpkg-dev")] {
            if Command::new(tool).arg("--version").output().is_err() {
                eprintln!("skipped: no packages without {package}");
                return None;
            }
        }
        let root = root();
        let built = programs.piped.parent().expect("a directory");
        let target = built.parent().expect("target");
        let profile = match built.file_name().and_then(|name| name.to_str()) {
            Some("debug") => "dev",
            name => name.expect("a profile"),
        };
        // Tests have the programs built, but not the static library.
        let _ = archive();
        let mut build = Command::new(root.join("packaging/build"));
        build.args(["--profile", profile, "--no-build", "--fast", "--output"]).arg(directory);
        build.env("CARGO_TARGET_DIR", target).env("PIPED_MAINTAINER", MAINTAINER);
        let paths = succeed(&mut build);
        let paths: Vec<PathBuf> = paths.lines().map(PathBuf::from).collect();
        let mut paths = paths.into_iter();
        let mut next = || paths.next().expect("three packages at least");
        Some(Self { piped: next(), library: next(), development: next(), plugin: paths.next() })
    }

    fn in_directory(directory: &Path) -> Self {
        let look_for = |name: &str| {
            let files = std::fs::read_dir(directory).expect("PIPED_PACKAGES is a directory");
            let mut paths = files.map(|file| file.expect("read").path());
            let is_it = |path: &PathBuf| {
                path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
            };
            paths.find(is_it)
        };
        let find = |name: &str| {
            look_for(name).unwrap_or_else(|| panic!("no {name}*.deb in {}", directory.display()))
        };
        Self {
            piped: find("piped_"),
            library: find("libpiped1_"),
            development: find("libpiped-dev_"),
            plugin: look_for("nbdkit-piped-plugin_"),
        }
    }

    /// The packages, in the order of the fields.
    #[must_use]
    pub fn all(&self) -> Vec<&Path> {
        let all = [&self.piped, &self.library, &self.development];
        all.into_iter().chain(&self.plugin).map(PathBuf::as_path).collect()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What a program says on stdout.
fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", words(&output));
    String::from_utf8(output.stdout).expect("text")
}
