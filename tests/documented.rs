//! What the documents say is so: their commands run as printed, their configuration is valid, their
//! programs compile, their links lead somewhere.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::documents::machine::Machine;
use system_tests::documents::page::{Block, Page};
use system_tests::documents::rules::{How, Place, Rule, Typed, file_of, typed, write};
use system_tests::documents::world::{Plan, World};
use system_tests::packages::Packages;
use system_tests::process::{Programs, command, words};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("of the workspace").to_owned()
}

fn page(name: &str) -> Page {
    let text = fs::read_to_string(project().join(name));
    Page::read(name, &text.unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// All documents.
fn pages() -> Vec<Page> {
    let own = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"];
    let mut names = own.map(str::to_owned).to_vec();
    for folder in ["docs", "docs/decisions"] {
        let files = fs::read_dir(project().join(folder)).expect(folder);
        let files =
            files.map(|entry| entry.expect("read").file_name().into_string().expect("text"));
        let mut files: Vec<String> = files.filter(|name| name.ends_with(".md")).collect();
        files.sort();
        names.extend(files.iter().map(|name| format!("{folder}/{name}")));
    }
    names.iter().map(|name| page(name)).collect()
}

fn rule(page: &Page, block: &Block) -> Option<Rule> {
    let parsed = block.rule.as_deref().map(Rule::parse).transpose();
    parsed.unwrap_or_else(|error| panic!("{}, line {}: {error}", page.name, block.line))
}

/// Two nodes that know each other, as documents have them.
const HERE: &str = "[listen]\naddress = \"127.0.0.1:7411\"\n[peers.beta]\naddress = \"127.0.0.1:7412\"\n\
                    [exports.data]\npath = \"/srv/data\"\n[metrics]\naddress = \"127.0.0.1:9741\"\n";
const BETA: &str = "[listen]\naddress = \"127.0.0.1:7412\"\n[peers.alpha]\naddress = \"127.0.0.1:7411\"\n\
                    [exports.data]\npath = \"/srv/data\"\nwrite = true\nnames = true\n";

fn plan(page: &Page) -> Plan {
    let files = page.blocks.iter().filter_map(|block| match rule(page, block) {
        Some(Rule::File(name)) => Some((name, block.text.clone())),
        _ => None,
    });
    let (here, beta) = (HERE.to_owned(), BETA.to_owned());
    Plan { here, beta, started: true, files: files.collect() }
}

/// Where the commands of a document run.
enum There {
    Nodes(World),
    Machine(Machine),
}

impl There {
    fn run(&mut self, typed: &Typed, fails: i32) -> Result<String, String> {
        match self {
            Self::Nodes(world) => world.run(typed, fails),
            Self::Machine(machine) => machine.run(typed, fails),
        }
    }

    /// What runs beside the commands has said.
    fn logs(&self) -> String {
        match self {
            Self::Nodes(world) => world.logs(),
            Self::Machine(_) => String::new(),
        }
    }
}

/// Runs all commands of a document, in one place.
fn try_commands(page: &Page, plan: &Plan) {
    let Some(programs) = Programs::find() else { return };
    let kind = Place::parse(page.rule.as_deref());
    let kind = kind.unwrap_or_else(|error| panic!("{}: {error}", page.name));
    let directory = tempfile::tempdir().expect("a directory");
    let packages = match kind {
        Place::Machine => Packages::make(directory.path()),
        Place::Nodes => None,
    };
    let boot = || Machine::boot(packages.as_ref()?, &programs, &project());
    let there = match kind {
        Place::Machine => boot().map(There::Machine),
        Place::Nodes => World::start(&programs, &project(), plan).map(There::Nodes),
    };
    let Some(mut there) = there else { return };
    let mut ran = 0;
    for block in &page.blocks {
        let rule = rule(page, block);
        let place = format!("{}, line {}", page.name, block.line);
        let commands = match (block.language.as_str(), file_of(&block.text)) {
            ("sh" | "console", _) => typed(&block.text, rule == Some(Rule::Interrupt)),
            ("toml" | "ini", Some(path)) => vec![write(path, &block.text)],
            _ => continue,
        };
        match &rule {
            Some(Rule::Skip(reason)) => {
                eprintln!("{place}: not run: {reason}");
                continue;
            }
            Some(Rule::Device(device)) if *device != device_of("/srv") => {
                eprintln!("{place}: not run: /srv is on {}, not {device}", device_of("/srv"));
                continue;
            }
            _ => {}
        }
        let mut alone = match rule {
            Some(Rule::Alone) => Some(There::Machine(boot().expect("another one was booted"))),
            _ => None,
        };
        let here = alone.as_mut().unwrap_or(&mut there);
        let fails = if let Some(Rule::Fails(code)) = rule { code } else { 0 };
        let mut printed = String::new();
        for typed in commands {
            let begun = system_tests::process::now();
            match here.run(&typed, fails) {
                Ok(said) => printed.push_str(&said),
                Err(why) => panic!("{place}:\n{}\n{why}\n{}", typed.text, here.logs()),
            }
            eprintln!("{place}: {:.1} s: {}", begun.elapsed().as_secs_f64(), typed.text.trim_end());
            ran += 1;
        }
        if let Some(shown) = &block.shown {
            // It may leave out what stands before and after.
            let same = if rule == Some(Rule::Shape) {
                shape(&printed).windows(shape(shown).len()).any(|part| part == shape(shown))
            } else {
                format!("\n{printed}").contains(&format!("\n{shown}"))
            };
            assert!(same, "{place}: the document shows\n{shown}\nand it prints\n{printed}");
        }
        if let Some(There::Machine(alone)) = alone {
            alone.serves();
            alone.end();
        }
    }
    if let There::Machine(machine) = there {
        machine.end();
    }
    eprintln!("{}: {ran} pieces of {} blocks ran", page.name, page.blocks.len());
}

/// The first word of each line.
fn shape(printed: &str) -> Vec<&str> {
    printed.lines().filter_map(|line| line.split_whitespace().next()).collect()
}

fn device_of(path: &str) -> String {
    let number = fs::metadata(path).map_or(0, |it| std::os::unix::fs::MetadataExt::dev(&it));
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// First steps says itself what the two nodes have in their files, and starts this one.
#[test]
fn every_command_of_first_steps_runs_as_printed() {
    let page = page("docs/first-steps.md");
    let mut toml = page.blocks.iter().filter(|block| block.language == "toml");
    let mut next = || toml.next().expect("a node that offers, and one that reads").text.clone();
    let (beta, here) = (next(), next());
    assert!(beta.contains("[exports.") && here.contains("[peers.beta]"), "{beta}{here}");
    try_commands(&page, &Plan { here, beta, started: false, files: Vec::new() });
}

/// Cargo builds no static library for a test by itself.
#[test]
fn every_command_of_c_api_runs_as_printed() {
    let Some(programs) = Programs::find() else { return };
    let profile = programs.piped.parent().expect("in target/PROFILE");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--package", "piped-c", "--target-dir"]);
    build.arg(profile.parent().expect("target")).current_dir(project());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let built = build.output().expect("cargo");
    assert!(built.status.success(), "{}", words(&built));
    let page = page("docs/c-api.md");
    try_commands(&page, &plan(&page));
}

macro_rules! documents {
    ($($name:ident: $file:literal,)*) => {
        $(
            #[test]
            fn $name() {
                let page = page($file);
                try_commands(&page, &plan(&page));
            }
        )*

        /// A document with commands has a test of its own, so that several run at once.
        #[test]
        fn no_document_with_commands_is_forgotten() {
            let tried = [$($file,)* "docs/c-api.md", "docs/first-steps.md"];
            for page in pages() {
                let commands = page.blocks.iter().any(|it| matches!(it.language.as_str(), "sh" | "console"));
                assert_eq!(tried.contains(&page.name.as_str()), commands, "{}", page.name);
            }
        }
    };
}

documents! {
    every_command_of_the_readme_runs_as_printed: "README.md",
    every_command_of_contributing_runs_as_printed: "CONTRIBUTING.md",
    every_command_of_calibrate_runs_as_printed: "docs/calibrate.md",
    every_command_of_clusters_runs_as_printed: "docs/clusters.md",
    every_command_of_explain_runs_as_printed: "docs/explain.md",
    every_command_of_guide_runs_as_printed: "docs/guide.md",
    every_command_of_kubernetes_runs_as_printed: "docs/kubernetes.md",
    every_command_of_nbd_runs_as_printed: "docs/nbd.md",
    every_command_of_operations_runs_as_printed: "docs/operations.md",
    every_command_of_metrics_runs_as_printed: "docs/metrics.md",
    every_command_of_sensitivity_runs_as_printed: "docs/sensitivity.md",
    every_command_of_simulate_runs_as_printed: "docs/simulate.md",
    every_command_of_theory_runs_as_printed: "docs/theory.md",
}

/// Those whose Rust is compiled with client-lib's tests (client-lib/src/lib.rs).
const DOCTESTED: [&str; 2] = ["README.md", "docs/guide.md"];

#[test]
fn every_other_block_is_what_it_says_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    for page in pages() {
        for block in &page.blocks {
            let place = format!("{}, line {}", page.name, block.line);
            rule(&page, block);
            match block.language.as_str() {
                "sh" | "console" | "text" => {}
                "toml" => {
                    let file = directory.path().join("piped.toml");
                    fs::write(&file, &block.text).expect("written");
                    let sources = piped_config::Sources { file: Some(file), ..Default::default() };
                    if let Err(findings) = piped_config::load(&sources) {
                        panic!("{place}: {findings}");
                    }
                }
                "rust,no_run" | "rust" => {
                    assert!(DOCTESTED.contains(&page.name.as_str()), "{place}: nobody compiles it");
                }
                "c" => compile(&place, directory.path(), &block.text),
                // Run by python/tests/test_docs.py, which tests/python.rs starts.
                "python" => assert_eq!(page.name, "docs/python.md", "{place}: nobody runs it"),
                "json" => {
                    let parsed = serde_json::from_str::<serde_json::Value>(&block.text);
                    assert!(parsed.is_ok(), "{place}: {parsed:?}");
                }
                "ini" => {
                    assert!(block.text.starts_with('['), "{place}: a unit's part has a section")
                }
                "yaml" => check_yaml(&place, directory.path(), &block.text),
                "" => {
                    for line in block.text.lines() {
                        let program = line.split_whitespace().next().unwrap_or_default();
                        let command =
                            ["pipectl", "piped", "cargo", "fuzz/run", "sudo"].contains(&program);
                        assert!(!command, "{place}: commands stand between ```sh and ```: {line}");
                    }
                }
                other => panic!("{place}: nobody checks a block of `{other}`"),
            }
        }
    }
}

/// A whole program, or what stands in a function.
fn compile(place: &str, directory: &Path, text: &str) {
    let whole = text.contains("#include");
    let text = if whole {
        text.to_owned()
    } else {
        format!("#include <piped.h>\nvoid f(void);\nvoid f(void) {{\n{text}}}\n")
    };
    let file = directory.join("block.c");
    fs::write(&file, text).expect("written");
    let mut compiler = command(Path::new("cc"));
    compiler.args([
        "-fsyntax-only",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-variable",
        "-I",
    ]);
    match compiler.arg(project().join("c-api/include")).arg(file).output() {
        Ok(output) => assert!(output.status.success(), "{place}: {}", words(&output)),
        Err(error) => eprintln!("skipped: no C compiler ({error})"),
    }
}

/// Prometheus' own tool reads what is for Prometheus.
fn check_yaml(place: &str, directory: &Path, text: &str) {
    let file = directory.join("prometheus.yml");
    fs::write(&file, text).expect("written");
    let mut tool = command(Path::new("promtool"));
    match tool.args(["check", "config", "--syntax-only"]).arg(file).output() {
        Ok(output) => assert!(output.status.success(), "{place}: {}", words(&output)),
        Err(error) => {
            eprintln!("skipped: promtool cannot be started ({error}); install prometheus")
        }
    }
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let pages = pages();
    for page in &pages {
        for (line, link) in &page.links {
            if link.contains("://") {
                continue;
            }
            let place = format!("{}, line {line}: {link}", page.name);
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let from = Path::new(&page.name).parent().expect("of a file");
            let target = if file.is_empty() { PathBuf::from(&page.name) } else { from.join(file) };
            let found = project().join(&target).canonicalize();
            let found = found.unwrap_or_else(|error| panic!("{place}: {error}"));
            if anchor.is_empty() {
                continue;
            }
            let of =
                |it: &&Page| project().join(&it.name).canonicalize().is_ok_and(|it| it == found);
            let target = pages.iter().find(of).unwrap_or_else(|| panic!("{place}: no document"));
            assert!(target.anchors.contains(anchor), "{place}: there are {:?}", target.anchors);
        }
    }
}

/// What a newcomer needs is said right before the first command, and is all that this command
/// needs.
#[test]
fn the_readme_says_what_a_build_needs_before_its_first_command() {
    let read = |name: &str| fs::read_to_string(project().join(name)).expect("there");
    let readme = read("README.md");
    let (before, _) = readme.split_once("\n```sh\n").expect("a command");
    let (_, needs) = before.rsplit_once("\n## ").expect("its section");
    let manifest = read("Cargo.toml");
    let version = manifest.split("rust-version = \"").nth(1).expect("a version");
    let version = version.split('"').next().expect("its end");
    for words in [&*format!("Rust {version}"), "rustup", "gcc", "libc6-dev"] {
        assert!(needs.contains(words), "{words}: {needs}");
    }
    // As `cargo build --release` of the README does: without a package, and without --workspace.
    let mut tree = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    tree.args(["tree", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"]);
    let output = tree.args(["--format", "{p}"]).current_dir(project()).output().expect("cargo");
    let text = words(&output);
    assert!(output.status.success(), "{text}");
    let has = |name: &str| text.lines().any(|line| line.split(' ').next() == Some(name));
    for needed in ["piped", "pipectl", "cc"] {
        assert!(has(needed), "the demo needs {needed}: {text}");
    }
    for other in ["bench", "remote-pager", "cmake", "pkg-config", "bindgen", "openssl-sys"] {
        assert!(!has(other), "the first command builds or needs {other}");
    }
}

/// What an alert says is to be read exists.
#[test]
fn every_alert_has_a_section() {
    let rules = project().join("packaging/prometheus/piped.rules.yml");
    let Ok(rules) = fs::read_to_string(rules) else { return eprintln!("skipped: no alert rules") };
    let operations = page("docs/operations.md");
    let runbooks = rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: "));
    let mut count = 0;
    for runbook in runbooks {
        let anchor = runbook.strip_prefix("docs/operations.md#").expect("of this document");
        assert!(operations.anchors.contains(anchor), "no section for {runbook}");
        count += 1;
    }
    assert_eq!(count, rules.matches("- alert: ").count(), "each alert has one");
}

/// What docs/security.md says is tested is tested.
#[test]
fn every_test_that_security_names_exists() {
    let listed = Command::new("git").args(["ls-files", "*.rs"]).current_dir(project()).output();
    let Ok(listed) = listed else { return eprintln!("skipped: no git to list the sources") };
    let files = String::from_utf8_lossy(&listed.stdout).into_owned();
    if files.is_empty() {
        return eprintln!("skipped: the sources are not in git");
    }
    let read = |file: &str| fs::read_to_string(project().join(file)).unwrap_or_default();
    let sources: String = files.lines().map(read).collect();
    let mut count = 0;
    for (line, word) in &page("docs/security.md").words {
        let is_name =
            word.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit());
        if is_name && word.matches('_').count() > 3 && !word.starts_with("piped_") {
            assert!(
                sources.contains(&format!("fn {word}(")),
                "docs/security.md, line {line}: no test {word}"
            );
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}

/// What `--help` says of a program's command: its commands and its flags.
struct Help(String);

impl Help {
    fn of(program: &Path, commands: &[&str]) -> Option<Self> {
        let output = Command::new(program).args(commands).arg("--help").output().expect("starts");
        output.status.success().then(|| Self(String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    fn has_command(&self, word: &str) -> bool {
        let commands = self.0.lines().skip_while(|line| *line != "Commands:").skip(1);
        let mut commands = commands.take_while(|line| !line.is_empty());
        commands
            .any(|line| line.strip_prefix("  ").and_then(|it| it.split(' ').next()) == Some(word))
    }

    fn has_flag(&self, flag: &str) -> bool {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
        self.0.match_indices(flag).any(|(at, _)| {
            let before = self.0[..at].chars().next_back();
            matches!(before, Some(' ' | '[' | '(')) && ends(&self.0[at + flag.len()..])
        })
    }
}

/// What stands in `code` in the text is not a whole command line. The commands in it exist, and
/// have its flags.
#[test]
fn every_command_named_in_passing_exists() {
    let Some(programs) = Programs::find() else { return };
    let build = programs.piped.parent().expect("in a directory");
    let mut helps: BTreeMap<Vec<String>, Option<Help>> = BTreeMap::new();
    let mut seen = 0;
    for page in pages().iter().filter(|page| page.name != "CHANGELOG.md") {
        for (line, code) in &page.words {
            let place = format!("{}, line {line}: {code}", page.name);
            let words: Vec<&str> = code.split_whitespace().collect();
            let [program @ ("pipectl" | "piped" | "remote_pager"), rest @ ..] = &words[..] else {
                continue;
            };
            let path = build.join(program);
            if rest.is_empty() || !path.exists() {
                continue;
            }
            let mut command = vec![(*program).to_owned()];
            let mut help = |command: &[String]| {
                let words: Vec<&str> = command[1..].iter().map(String::as_str).collect();
                helps.entry(command.to_vec()).or_insert_with(|| Help::of(&path, &words));
                helps[command].as_ref().map(|help| Help(help.0.clone()))
            };
            for word in rest {
                let here = help(&command).unwrap_or_else(|| panic!("{place}: no {command:?}"));
                if let Some(flag) = word.split('=').next().filter(|word| word.starts_with('-')) {
                    assert!(here.has_flag(flag), "{place}: {command:?} has no {flag}");
                } else if here.has_command(word) {
                    command.push((*word).to_owned());
                } else if command.len() == 1 && *program != "piped" {
                    panic!("{place}: {program} has no command {word}");
                }
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn a_command_that_is_wrong_is_found() {
    let Some(programs) = Programs::find() else { return };
    let here = HERE.to_owned();
    let plan = Plan { here, beta: BETA.to_owned(), started: true, files: Vec::new() };
    let Some(mut world) = World::start(&programs, &project(), &plan) else { return };
    let mut run =
        |text: &str, how: How| world.run(&Typed { text: text.to_owned(), how, on_beta: false }, 0);
    assert!(run("pipectl status | grep alpha\n", How::ToItsEnd).is_ok());
    assert!(run("pipectl statu\n", How::ToItsEnd).is_err());
    assert!(run("pipectl status | grep gamma\ntrue\n", How::ToItsEnd).is_err(), "pipefail");
    assert!(run("echo here\nfalse\ntrue\n", How::ToItsEnd).is_err());
    assert!(run("pipectl stat 1\n", How::UntilInterrupted { code: 130 }).is_ok());
    assert!(run("false\n", How::UntilInterrupted { code: 130 }).is_err());
}
