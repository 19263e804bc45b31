//! The Python package: the wheel as a user installs it, in an environment of its own, held to its
//! tests and to those of fsspec, against real daemons.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use system_tests::process::Programs;

/// What the tests use beside the wheel. All of them are optional to the package.
const PACKAGES: &[&str] = &[
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "mypy",
    "fsspec",
    "numpy",
    "safetensors",
    "ml_dtypes",
    "pandas",
    "pyarrow",
    "universal-pathlib",
    "zarr",
];

/// Large packages: without them, tests of one module skip themselves.
const LARGE: &[&str] = &["fastsafetensors", "paddlepaddle"];

/// Seconds that one program may take: an installation, the build of the wheel, all its tests.
const LIMIT: &str = "600";

/// The newest Python that is looked for.
const NEWEST: u32 = 15;

/// The directory of the package.
fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../python")
}

/// A program that is ended, with all that it started, when it takes too long.
fn limited(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LIMIT]).arg(program);
    command
}

/// Runs a program to its end. What it said, if it failed.
///
/// It speaks into a file: a process that it leaves behind would keep a pipe open for ever.
fn run(command: &mut Command) -> Result<(), String> {
    let mut said = tempfile::tempfile().expect("made");
    let into = || Stdio::from(said.try_clone().expect("copied"));
    command.stdin(Stdio::null()).stdout(into()).stderr(into());
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let why = match status.code() {
        Some(124 | 137) => format!("ended after {LIMIT} s"),
        _ => status.to_string(),
    };
    Err(format!("{command:?}: {why}\n{}", all_of(&mut said)))
}

/// What a file has from its beginning.
fn all_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    read.map_or_else(|error| error.to_string(), |_| String::from_utf8_lossy(&bytes).into_owned())
}

/// Interpreters of Python from 3.11 on: the one of the path, and the newest beside it.
fn pythons() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Where pyenv has its versions, which are on no path.
    let pyenv = std::env::home_dir().map(|home| home.join(".pyenv/versions"));
    let versions = pyenv.and_then(|folder| folder.read_dir().ok()).into_iter().flatten();
    folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    let named = |name: &str| {
        let here = folders.iter().map(|folder| folder.join(name));
        here.filter(|python| python.exists()).find(|python| is_new_enough(python))
    };
    let newest = (12..=NEWEST).rev().find_map(|minor| named(&format!("python3.{minor}")));
    [named("python3"), newest].into_iter().flatten().collect()
}

fn is_new_enough(python: &Path) -> bool {
    let code = "import sys, venv; sys.exit(sys.version_info < (3, 11))";
    run(limited(python).args(["-c", code])).is_ok()
}

/// An environment of its own with these packages; an error says why there is none.
fn environment(python: &Path, directory: PathBuf, packages: &[&str]) -> Result<PathBuf, String> {
    run(limited(python).args(["-m", "venv"]).arg(&directory))?;
    let bin = directory.join("bin");
    install(&bin, packages).map(|()| bin)
}

fn install(bin: &Path, packages: &[&str]) -> Result<(), String> {
    let quick = ["install", "--quiet", "--no-input", "--timeout=15", "--retries=1"];
    run(limited(bin.join("pip")).args(quick).args(packages))
}

/// Builds the wheel beside the tests, from what cargo has compiled for them.
fn wheel(bin: &Path, into: &Path) -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let profile = test.parent().and_then(Path::parent).expect("a test is in target/PROFILE/deps");
    let mut build = limited(bin.join("maturin"));
    build.args(["build", "--quiet", "--out"]).arg(into);
    build.arg("--target-dir").arg(profile.parent().expect("target")).current_dir(package());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    run(&mut build).unwrap_or_else(|error| panic!("{error}"));
    let made = into.read_dir().expect("readable").flatten().map(|entry| entry.path());
    made.max().expect("a wheel was made")
}

/// Installs the wheel in an environment, and runs the package's tests there.
fn hold(bin: &Path, wheel: &Path, programs: &Path) -> Result<(), String> {
    let install = ["install", "--quiet", "--no-index", "--no-deps"];
    run(limited(bin.join("pip")).args(install).arg(wheel))?;
    let mut tests = limited(bin.join("python"));
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120"]);
    // Not from the package's directory: what is installed is tested.
    tests.arg(package().join("tests")).current_dir(wheel.parent().expect("it is in one"));
    run(tests.env("PIPED_BIN", programs).env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// What the stubs and sources say of types is true.
fn check_types(bin: &Path, directory: &Path) -> Result<(), String> {
    let mut types = limited(bin.join("python"));
    types.args(["-m", "mypy", "--strict", "--config-file"]).arg(package().join("pyproject.toml"));
    run(types.args(["-p", "piped_io"]).current_dir(directory))
}

/// The wheel is one for all versions of Python from 3.11 on, and needs nothing. Its tests pass
/// under two versions, its types under `mypy`, and fsspec's own tests of a file system.
#[test]
fn the_wheel_keeps_what_it_says() {
    let Some(programs) = Programs::find() else { return };
    let pythons = pythons();
    let Some(first) = pythons.first() else {
        eprintln!("skipped: there is no Python 3.11 or newer with venv");
        return;
    };
    let directory = tempfile::tempdir().expect("made");
    let at = |name: &str| directory.path().join(name);
    let tools: Vec<&str> =
        ["maturin>=1.9.4,<2"].into_iter().chain(PACKAGES.iter().copied()).collect();
    let bin = match environment(first, at("first"), &tools) {
        Ok(bin) => bin,
        Err(error) => {
            eprintln!("skipped: the packages of the tests cannot be installed: {error}");
            return;
        }
    };
    if let Err(error) = install(&bin, LARGE) {
        eprintln!("skipped: tests of {}: {error}", LARGE.join(" and "));
    }
    let wheel = wheel(&bin, &at("wheels"));
    let name = wheel.file_name().expect("named").to_string_lossy().into_owned();
    assert!(name.starts_with("piped_io-") && name.contains("-abi3-"), "{name}");
    let programs = programs.piped.parent().expect("it is in a directory");
    // Side by side: each of them waits for most of its time.
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            hold(&bin, &wheel, programs).and_then(|()| check_types(&bin, directory.path()))
        });
        if let Some(python) = pythons.get(1) {
            match environment(python, at("second"), &["pytest", "pytest-timeout"]) {
                Ok(bin) => hold(&bin, &wheel, programs).expect("a newer Python"),
                Err(error) => eprintln!("skipped: {}: {error}", python.display()),
            }
        } else {
            eprintln!("skipped: there is no second, newer Python");
        }
        first.join().expect("it does not panic").expect("the first Python");
    });
}
