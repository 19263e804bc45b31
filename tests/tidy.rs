//! Rules of the tree that a compiler does not check: which crates and modules may name each other,
//! who sees a field, how long files and lines are, and that doc comments say something.
//!
//! What breaks a rule today is counted in `KNOWN`. The numbers only go down: more is a failure, and
//! so is less, until the number here says so. `PIPED_TIDY=1` prints every finding.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use system_tests::tidy::{self, Crate, Finding, graph, prose, rust};

/// Edges between crates of the workspace: a crate may depend on these and on no others.
const EDGES: &[(&str, &[&str])] = &[
    (
        "bench",
        &[
            "piped-admin",
            "piped-cli",
            "piped-client",
            "piped-config",
            "piped-core",
            "piped-model",
            "piped-netns",
            "piped-planner",
            "piped-report",
            "piped-ring",
            "piped-theory",
            "remote-pager",
            "system-tests",
        ],
    ),
    (
        "fuzz-doors",
        &[
            "piped",
            "piped-config",
            "piped-control",
            "piped-core",
            "piped-engine",
            "piped-model",
            "piped-planner",
            "piped-report",
            "piped-ring",
            "piped-sim",
            "piped-text",
            "piped-wire",
            "piped-world",
        ],
    ),
    (
        "pipectl",
        &[
            "piped-admin",
            "piped-cli",
            "piped-client",
            "piped-config",
            "piped-control",
            "piped-core",
            "piped-engine",
            "piped-model",
            "piped-netns",
            "piped-planner",
            "piped-report",
            "piped-ring",
            "piped-sim",
            "piped-text",
            "piped-theory",
            "piped-world",
        ],
    ),
    (
        "piped",
        &[
            "piped-config",
            "piped-control",
            "piped-core",
            "piped-engine",
            "piped-model",
            "piped-planner",
            "piped-report",
            "piped-ring",
            "piped-text",
            "piped-wire",
        ],
    ),
    ("piped-admin", &["piped-cli", "piped-config", "piped-text"]),
    ("piped-c", &["piped-client"]),
    ("piped-python", &["piped-client"]),
    ("piped-cli", &["piped-config", "piped-text"]),
    ("piped-client", &["piped-core", "piped-model", "piped-ring", "piped-text"]),
    ("piped-config", &["piped-core"]),
    ("piped-control", &["piped-config", "piped-core", "piped-engine", "piped-ring", "piped-text"]),
    (
        "piped-engine",
        &["piped-core", "piped-model", "piped-planner", "piped-report", "piped-text", "piped-wire"],
    ),
    ("piped-model", &["piped-core"]),
    ("piped-planner", &["piped-core", "piped-model", "piped-report"]),
    ("piped-report", &["piped-core", "piped-model"]),
    ("piped-ring", &["piped-core", "piped-text"]),
    ("piped-sim", &["piped-core"]),
    ("piped-theory", &["piped-cli", "piped-config", "piped-core", "piped-model"]),
    ("piped-wire", &["piped-core"]),
    (
        "piped-world",
        &[
            "piped-config",
            "piped-control",
            "piped-core",
            "piped-engine",
            "piped-planner",
            "piped-ring",
            "piped-sim",
            "piped-wire",
        ],
    ),
    ("remote-pager", &["piped-client"]),
    (
        "system-tests",
        &[
            "piped-client",
            "piped-config",
            "piped-control",
            "piped-core",
            "piped-engine",
            "piped-model",
            "piped-netns",
            "piped-planner",
            "piped-report",
            "piped-ring",
            "piped-sim",
            "piped-wire",
            "piped-world",
        ],
    ),
];

/// Findings that are left, by rule and place.
const KNOWN: &[(Rule, &str, usize)] = &[
    (Rule::Length, "tests", 2),
    (Rule::Fields, "bench", 28),
    (Rule::Fields, "client-lib", 36),
    (Rule::Fields, "crates/engine", 285),
    (Rule::Fields, "crates/model", 24),
    (Rule::Fields, "crates/planner", 33),
    (Rule::Fields, "crates/ring", 1),
    (Rule::Fields, "crates/sim", 55),
    (Rule::Fields, "crates/theory", 7),
    (Rule::Fields, "crates/wire", 17),
    (Rule::Fields, "ctl", 214),
    (Rule::Fields, "daemon", 97),
    (Rule::Fields, "tests", 7),
    (Rule::Structs, "daemon", 1),
    (Rule::Methods, "bench", 8),
    (Rule::Methods, "client-lib", 32),
    (Rule::Methods, "config", 19),
    (Rule::Methods, "crates/control", 52),
    (Rule::Methods, "crates/engine", 40),
    (Rule::Methods, "crates/model", 17),
    (Rule::Methods, "crates/planner", 43),
    (Rule::Methods, "crates/ring", 1),
    (Rule::Methods, "crates/sim", 49),
    (Rule::Methods, "crates/wire", 12),
    (Rule::Methods, "crates/world", 16),
    (Rule::Methods, "daemon", 60),
    (Rule::Methods, "examples/remote-pager", 20),
    (Rule::Methods, "tests", 153),
    (Rule::Cycles, "bench", 5),
    (Rule::Cycles, "c-api", 6),
    (Rule::Cycles, "client-lib", 12),
    (Rule::Cycles, "config", 10),
    (Rule::Cycles, "crates/control", 5),
    (Rule::Cycles, "crates/engine", 2),
    (Rule::Cycles, "crates/model", 3),
    (Rule::Cycles, "crates/planner", 2),
    (Rule::Cycles, "crates/sim", 3),
    (Rule::Cycles, "ctl", 7),
    (Rule::Cycles, "daemon", 24),
    (Rule::Cycles, "examples/remote-pager", 3),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// A file has at most [`rust::LINES_MAX`] lines without tests.
    Length,
    /// A line has at most [`prose::COLUMNS_MAX`] columns.
    Width,
    /// A doc comment has four words and a subject.
    Docs,
    /// Fields are private to their component.
    Fields,
    /// A struct inside a crate has at most [`rust::FIELDS_MAX`] fields.
    Structs,
    /// Methods are implemented in the file of their type.
    Methods,
    /// Those of the engine's facade are in its file or in its flows.
    Facade,
    /// Modules that reach each other are one circle.
    Cycles,
}

/// What is in the tree, read once for all tests.
struct Tree {
    /// Members of the workspace, and the members that each depends on.
    edges: BTreeMap<String, BTreeSet<String>>,
    findings: BTreeMap<Rule, Vec<Finding>>,
}

static TREE: LazyLock<Tree> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("of the workspace");
    let mut findings: BTreeMap<Rule, Vec<Finding>> = BTreeMap::new();
    let mut edges = BTreeMap::new();
    for Crate { name, depends_on, sources } in tidy::crates(root) {
        let mut add = |rule, found| findings.entry(rule).or_default().extend::<Vec<_>>(found);
        add(Rule::Length, rust::long_files(&sources));
        add(Rule::Width, prose::wide_lines_of_code(&sources));
        add(Rule::Docs, rust::empty_docs(&sources));
        add(Rule::Fields, rust::shared_fields(&sources));
        add(Rule::Structs, rust::large_structs(&sources));
        add(Rule::Methods, rust::scattered_methods(&sources));
        add(Rule::Facade, rust::facade_elsewhere(&sources));
        add(Rule::Cycles, graph::cycles(&sources));
        edges.insert(name, depends_on);
    }
    let documents = prose::wide_lines_of_documents(root);
    findings.entry(Rule::Width).or_default().extend(documents);
    Tree { edges, findings }
});

/// Compares with [`KNOWN`], place by place, and says what is new and what is mended.
fn hold(rule: Rule) {
    let mut by_place: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    for finding in TREE.findings.get(&rule).into_iter().flatten() {
        by_place.entry(&finding.place).or_default().push(finding);
    }
    let known: BTreeMap<&str, usize> = KNOWN
        .iter()
        .filter(|(known, _, _)| *known == rule)
        .map(|(_, place, count)| (*place, *count))
        .collect();
    let places: BTreeSet<&str> = by_place.keys().chain(known.keys()).copied().collect();
    let mut faults = Vec::new();
    for place in places {
        let findings = by_place.get(place).map_or(&[][..], Vec::as_slice);
        let allowed = known.get(place).copied().unwrap_or(0);
        if findings.len() > allowed || std::env::var_os("PIPED_TIDY").is_some() {
            faults.extend(findings.iter().map(ToString::to_string));
        }
        if findings.len() != allowed {
            let now = findings.len();
            faults.push(format!("(Rule::{rule:?}, \"{place}\", {now}), and not {allowed}"));
        }
    }
    assert!(faults.is_empty(), "{rule:?}:\n{}", faults.join("\n"));
}

#[test]
fn crates_depend_on_what_they_may() {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let mut faults = Vec::new();
    for (name, depends_on) in &TREE.edges {
        let may = allowed.get(name.as_str()).copied().unwrap_or_default();
        for other in depends_on.iter().filter(|other| !may.contains(&other.as_str())) {
            faults.push(format!("{name} may not depend on {other}"));
        }
        for other in may.iter().filter(|other| !depends_on.contains(**other)) {
            faults.push(format!("{name} does not depend on {other}: EDGES"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn modules_of_a_crate_are_layers() {
    hold(Rule::Cycles);
}

#[test]
fn fields_are_private_to_their_component() {
    hold(Rule::Fields);
}

#[test]
fn structs_are_small() {
    hold(Rule::Structs);
}

#[test]
fn methods_are_in_the_file_of_their_type() {
    hold(Rule::Methods);
}

#[test]
fn the_facade_is_in_its_file_and_its_flows() {
    hold(Rule::Facade);
}

#[test]
fn files_fit_a_head() {
    hold(Rule::Length);
}

#[test]
fn doc_comments_say_something() {
    hold(Rule::Docs);
}

#[test]
fn lines_fit_100_columns() {
    hold(Rule::Width);
}

#[test]
fn sections_of_the_theory_are_where_comments_point() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("of the workspace");
    let lost: Vec<String> = prose::lost_sections(root).iter().map(ToString::to_string).collect();
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}
