//! Python with what the rows compare: packages of PyPI, and the wheel of this tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Doing as _, Failure};
use crate::outside::output;

/// What is taken from PyPI.
const PACKAGES: [&str; 6] =
    ["maturin>=1.9.4,<2", "numpy", "safetensors", "fsspec", "aiohttp", "paramiko"];

/// Directory of the environment beside the directories of cargo's profiles.
const NAME: &str = "bench-python";

/// A virtual environment that has everything.
#[derive(Debug, Clone)]
pub(in crate::rows) struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Makes the environment, if the one of an earlier run has other packages, and puts the wheel
    /// of this tree into it.
    pub(in crate::rows) fn make() -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let target = program.parent().and_then(Path::parent).unwrap_or(Path::new("target"));
        let environment = Self { folder: target.join(NAME) };
        environment.install_packages()?;
        environment.install_wheel(target)?;
        Ok(environment)
    }

    /// The interpreter of the environment, by its path.
    pub(super) fn python(&self) -> PathBuf {
        self.program("python")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    fn install_packages(&self) -> Result<(), Failure> {
        // Written last, so that an environment that was made in part is made again.
        let (list, wanted) = (self.folder.join("packages"), PACKAGES.join("\n"));
        if fs::read_to_string(&list).is_ok_and(|found| found == wanted) {
            return Ok(());
        }
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder).doing(self.folder.display())?;
        }
        output(Command::new("python3").args(["-m", "venv"]).arg(&self.folder))
            .doing("python3 -m venv (apt-get install python3-venv)")?;
        self.pip(&PACKAGES).doing(format!("pip install {}", PACKAGES.join(" ")))?;
        fs::write(&list, wanted).doing(list.display())
    }

    fn install_wheel(&self, target: &Path) -> Result<(), Failure> {
        let wheels = tempfile::tempdir_in(&self.folder)?;
        let mut build = Command::new(self.program("maturin"));
        build.args(["build", "--quiet", "--release", "--out"]).arg(wheels.path());
        build.arg("--target-dir").arg(target);
        build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../python"));
        output(&mut build).doing("maturin build")?;
        let wheel = fs::read_dir(wheels.path())?.next().transpose()?;
        let wheel = wheel.ok_or_else(|| Failure::new("maturin made no wheel"))?.path();
        let wheel = wheel.to_string_lossy();
        self.pip(&["--no-index", "--no-deps", "--force-reinstall", &wheel]).doing("the wheel")
    }

    fn pip(&self, words: &[&str]) -> Result<(), Failure> {
        let mut pip = Command::new(self.program("pip"));
        pip.args(["install", "--quiet", "--no-input", "--disable-pip-version-check"]).args(words);
        output(&mut pip).map(drop)
    }
}
