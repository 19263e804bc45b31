//! Reads the workspace's own sources, for rules that a compiler does not check.
//!
//! Only what ships counts: code under `src/` that is not compiled for tests alone.

pub mod graph;
pub mod prose;
pub mod rust;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A place in the tree that breaks a rule.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The crate's directory or the document, by which findings are counted.
    pub place: String,
    /// Path relative to the workspace.
    pub file: String,
    /// Counted from 1; 0 for a whole file.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// A member of the workspace.
#[derive(Debug)]
pub struct Crate {
    /// The name of the package.
    pub name: String,
    /// Names of the members that it depends on when it is built, without tests.
    pub depends_on: BTreeSet<String>,
    /// Files under `src/` that ship, parsed.
    pub sources: Vec<Source>,
}

/// A source file of a crate, parsed.
#[derive(Debug)]
pub struct Source {
    /// The crate's directory, relative to the workspace.
    pub place: String,
    /// Path relative to the workspace.
    pub file: String,
    /// Path of the file's module, as names below the crate's root.
    pub module: Vec<String>,
    /// The text of the file.
    pub text: String,
    /// The items of the file, without those for tests.
    pub items: Vec<syn::Item>,
    /// Number of lines that are only for tests.
    pub test_lines: usize,
}

impl Source {
    /// A finding in this file.
    #[must_use]
    pub fn finding(&self, line: usize, what: String) -> Finding {
        Finding { place: self.place.clone(), file: self.file.clone(), line, what }
    }
}

/// All members of the workspace whose root is `root`.
///
/// # Panics
///
/// If cargo cannot tell the members, or a file is no Rust.
#[must_use]
pub fn crates(root: &Path) -> Vec<Crate> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = document["packages"].as_array().expect("packages");
    let name = |value: &serde_json::Value| value["name"].as_str().expect("a name").to_owned();
    let members: BTreeSet<String> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let depends_on = dependencies
                .iter()
                .filter(|it| it["kind"].as_str() != Some("dev"))
                .map(name)
                .filter(|it| members.contains(it))
                .collect();
            let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
            let directory = manifest.parent().expect("of the manifest");
            let sources = sources(root, directory);
            Crate { name: name(package), depends_on, sources }
        })
        .collect()
}

/// The files of a crate that ship.
fn sources(root: &Path, directory: &Path) -> Vec<Source> {
    let relative = |path: &Path| {
        path.strip_prefix(root).expect("in the workspace").to_string_lossy().into_owned()
    };
    let src = directory.join("src");
    let mut files = Vec::new();
    walk(&src, "rs", &mut files);
    let parsed: Vec<(PathBuf, String, syn::File)> = files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("text");
            let file = syn::parse_file(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path, text, file)
        })
        .collect();
    let for_tests: Vec<Vec<String>> = parsed
        .iter()
        .flat_map(|(path, _, file)| {
            let module = module(&src, path);
            file.items.iter().filter_map(move |item| match item {
                syn::Item::Mod(it) if rust::is_for_tests(&it.attrs) => {
                    Some([module.clone(), vec![it.ident.to_string()]].concat())
                }
                _ => None,
            })
        })
        .collect();
    parsed
        .into_iter()
        .filter_map(|(path, text, file)| {
            let module = module(&src, &path);
            if for_tests.iter().any(|test| module.starts_with(test)) {
                return None;
            }
            let (tests, items): (Vec<syn::Item>, Vec<syn::Item>) =
                file.items.into_iter().partition(|item| rust::is_for_tests(rust::attributes(item)));
            let test_lines = tests.iter().map(rust::lines_of).sum();
            let place = relative(directory);
            Some(Source { place, file: relative(&path), module, text, items, test_lines })
        })
        .collect()
}

/// `a/b/mod.rs` and `a/b.rs` are both the module `a::b`.
fn module(src: &Path, file: &Path) -> Vec<String> {
    let path = file.strip_prefix(src).expect("below src").with_extension("");
    let mut names: Vec<String> =
        path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

/// Files below `directory` with an extension, in the order of their names.
fn walk(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            walk(&path, extension, files);
        } else if path.extension().is_some_and(|it| it == extension) {
            files.push(path);
        }
    }
}
