//! What is shipped for watching over piped is about metrics that there are: each name and label of
//! the alert rules and of the dashboard is in what real daemons show, and Prometheus' own tool
//! takes every expression.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use piped_client::{Client, OpenOptions, Status};
use serde_json::Value;
use system_tests::http::{get, over_unix};
use system_tests::keys::Key;
use system_tests::process::{Daemon, Pair, Programs, command, words};

/// What Prometheus itself adds.
const OF_PROMETHEUS: [&str; 2] = ["up", "ALERTS"];
const LABELS_OF_PROMETHEUS: [&str; 4] = ["instance", "job", "le", "alertstate"];
/// Words of the language, and those of our labels that are not in braces.
const GROUPING: [&str; 4] = ["by", "on", "without", "ignoring"];

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(shipped(name)).expect("it is shipped")
}

/// Expressions of the rules, by alert. A full reader of YAML is promtool's, below.
fn rules() -> Vec<(String, String)> {
    let text = read("prometheus/piped.rules.yml");
    let mut rules = Vec::new();
    for rule in text.split("- alert: ").skip(1) {
        let name = rule.lines().next().expect("a name").trim().to_owned();
        let (_, rest) = rule.split_once("expr: ").expect("an expression");
        let lines = rest.trim_start_matches(">-").lines();
        let is_next = |line: &str| {
            let key = line.trim_start().split(": ").next().unwrap_or_default();
            ["for", "labels", "annotations:"].contains(&key)
        };
        let lines: Vec<&str> = lines.take_while(|line| !is_next(line)).map(str::trim).collect();
        rules.push((name, lines.join(" ").trim().to_owned()));
    }
    rules
}

/// Expressions of the dashboard, by panel, with its variables filled in.
fn panels(dashboard: &Value) -> Vec<(String, String)> {
    let of = |place: &Value, title: &Value| {
        let expr = place["expr"].as_str().expect("an expression");
        let expr = expr.replace("$__rate_interval", "5m").replace("$instance", ".*");
        assert!(!expr.contains('$'), "a variable that nobody fills in: {expr}");
        (title.as_str().expect("a title").to_owned(), expr)
    };
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
        targets.iter().map(|target| of(target, &panel["title"])).collect::<Vec<_>>()
    });
    let marks = dashboard["annotations"]["list"].as_array().expect("annotations");
    targets.chain(marks.iter().map(|mark| of(mark, &mark["name"]))).collect()
}

/// Metrics that an expression names, and the labels with the values it compares them with.
fn named(expr: &str) -> (BTreeSet<String>, BTreeSet<(String, String)>) {
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = expr;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '{') {
        rest = &rest[start..];
        if let Some(inside) = rest.strip_prefix('{') {
            let end = inside.find('}').expect("a brace is closed");
            for matcher in inside[..end].split(',') {
                let (label, value) = matcher.split_once(['=', '!']).expect("a matcher");
                let values = value.trim_matches(['=', '~', '"']).split('|');
                labels.extend(values.map(|value| (label.to_owned(), value.to_owned())));
            }
            rest = &inside[end..];
            continue;
        }
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        rest = &rest[end..];
        if GROUPING.contains(&word) {
            let (inside, after) = rest.split_once(')').expect("a list is closed");
            let list = inside.trim_start_matches([' ', '(']).split(',');
            labels.extend(list.map(|label| (label.trim().to_owned(), String::new())));
            rest = after;
        } else if word.contains("piped") || word.contains("process_") || word == "up" {
            metrics.insert(word.to_owned());
        }
    }
    (metrics, labels)
}

#[test]
fn names_are_found_where_they_are() {
    let (metrics, labels) = named(
        r#"sum by (instance, le) (rate(piped_a_bucket{reason=~"x|y",job!="piped"}[5m])) > up * 0.5"#,
    );
    assert_eq!(metrics.into_iter().collect::<Vec<_>>(), ["piped_a_bucket", "up"]);
    let labels: Vec<(&str, &str)> = labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let expected =
        [("instance", ""), ("job", "piped"), ("le", ""), ("reason", "x"), ("reason", "y")];
    assert_eq!(labels, expected);
}

/// Series of two daemons after reads and writes: names with their labels and values.
fn shown() -> Option<BTreeMap<String, BTreeSet<(String, String)>>> {
    let programs = Programs::find()?;
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let files = format!("[discovery]\nfiles = \"{}\"\n", directory.path().display());
    let key = Key::make(&programs, directory.path(), "gamma");
    let cluster = piped_config::SigningKey::generate().expect("random").public();
    let cluster = format!("[cluster]\nkeys = [\"{cluster}\"]\n");
    let more = files + &key.security("integrity") + &cluster;
    let gamma = Daemon::start(&programs, directory.path(), "gamma", &more);
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let options = OpenOptions::read_write();
    let file = client.open_export(Some("beta"), "data", "blocks", options).expect("opened");
    for _ in 0..20 {
        let buffer = client.allocate(65_536).expect("memory");
        let (buffer, _) = queue.read(&file, 0, buffer).expect("read");
        queue.write(&file, 0, buffer).expect("written");
    }
    let buffer = client.allocate(4096).expect("memory");
    let own = client.open_file(directory.path().join("root/blocks"), OpenOptions::read());
    queue.read(&own.expect("opened"), 0, buffer).expect("read");
    let mut shown: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    queue.sync(&file).expect("synced");
    queue.nop().expect("done at once");
    for daemon in [&pair.alpha, &pair.beta, &gamma] {
        let (_, text) = over_unix(&daemon.admin_socket(), &get("/metrics"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').split("\",").filter(|it| !it.is_empty());
            let labels = labels.map(|it| {
                let (label, value) = it.split_once("=\"").expect("a label");
                (label.to_owned(), value.trim_end_matches('"').to_owned())
            });
            shown.entry(name.to_owned()).or_default().extend(labels);
        }
    }
    Some(shown)
}

#[test]
fn rules_and_dashboard_name_what_daemons_show() {
    let dashboard = serde_json::from_str(&read("grafana/piped.json")).expect("JSON");
    let Some(shown) = shown() else { return };
    let all: BTreeSet<&(String, String)> = shown.values().flatten().collect();
    let statuses: BTreeSet<String> =
        Status::ALL.iter().map(|status| words_of(&format!("{status:?}"))).collect();
    let mut used = BTreeSet::new();
    for (place, expr) in rules().into_iter().chain(panels(&dashboard)) {
        let (metrics, labels) = named(&expr);
        assert!(!metrics.is_empty(), "{place}: {expr}");
        for metric in metrics {
            let is_there = OF_PROMETHEUS.contains(&metric.as_str()) || shown.contains_key(&metric);
            assert!(is_there, "{place}: no daemon shows {metric}");
            used.insert(metric);
        }
        for (label, value) in labels {
            if LABELS_OF_PROMETHEUS.contains(&label.as_str()) {
                continue;
            }
            assert!(all.iter().any(|(name, _)| *name == label), "{place}: no label {label}");
            let is_value = match label.as_str() {
                // They come with their first event.
                "status" => statuses.contains(&value),
                _ => all.iter().any(|(name, shown)| *name == label && *shown == value),
            };
            assert!(value.is_empty() || is_value, "{place}: {label} is never {value}");
        }
    }
    // A metric that nobody looks at is one too many, or a panel is missing.
    let strip = |name: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    let used: BTreeSet<String> = used.iter().map(|name| strip(name)).collect();
    let unused: Vec<String> =
        shown.keys().map(|name| strip(name)).filter(|name| !used.contains(name)).collect();
    let in_status = ["piped_stage_window".to_owned()];
    assert_eq!(unused, in_status, "on no panel and in no rule");
}

/// `NoSpace` as `no_space`.
fn words_of(name: &str) -> String {
    let mut words = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(character.to_lowercase());
    }
    words
}

/// What Prometheus' own tool says; `None`, with the reason printed, where it is missing.
fn promtool(arguments: &[&Path]) -> Option<Output> {
    let output = command(Path::new("promtool")).args(arguments).output();
    if let Err(error) = &output {
        eprintln!("skipped: promtool cannot be started ({error}); install prometheus");
    }
    output.ok()
}

#[test]
fn promtool_takes_the_rules_and_their_tests_pass() {
    let file = shipped("prometheus/piped.rules.yml");
    let Some(output) = promtool(&["check".as_ref(), "rules".as_ref(), &file]) else { return };
    assert!(output.status.success(), "{}", words(&output));
    let tests = shipped("prometheus/piped.rules.test.yml");
    let output = promtool(&["test".as_ref(), "rules".as_ref(), &tests]).expect("it was there");
    assert!(output.status.success(), "{}", words(&output));
    let tests = read("prometheus/piped.rules.test.yml");
    for (alert, _) in rules() {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} is not tested");
    }
}

#[test]
fn every_alert_says_what_to_do_and_where_to_read_on() {
    let text = read("prometheus/piped.rules.yml");
    let operations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let operations = fs::read_to_string(operations).unwrap_or_default();
    for rule in text.split("- alert: ").skip(1) {
        let name = rule.lines().next().expect("a name").trim();
        for part in ["severity: ", "summary: ", "description: "] {
            assert!(rule.contains(part), "{name} has no {part}");
        }
        let anchor = name.to_lowercase();
        let runbook = format!("runbook: docs/operations.md#{anchor}\n");
        assert!(rule.contains(&runbook), "{name} does not say {runbook}");
        let heading = |line: &str| {
            line.starts_with('#') && line.trim_start_matches('#').trim().to_lowercase() == anchor
        };
        assert!(
            operations.is_empty() || operations.lines().any(heading),
            "docs/operations.md has no heading {name}"
        );
    }
}

#[test]
fn promtool_takes_every_expression_of_the_dashboard() {
    let dashboard: Value = serde_json::from_str(&read("grafana/piped.json")).expect("JSON");
    let rules: Vec<Value> = panels(&dashboard)
        .iter()
        .enumerate()
        .map(|(at, (title, expr))| serde_json::json!({"alert": format!("{at}: {title}"), "expr": expr}))
        .collect();
    let file = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("expressions.yml");
    fs::write(&path, file.to_string()).expect("JSON is YAML");
    let Some(output) = promtool(&["check".as_ref(), "rules".as_ref(), &path]) else { return };
    assert!(output.status.success(), "{}", words(&output));
    assert!(words(&output).contains(&format!("{} rules found", rules.len())), "{}", words(&output));
}

/// What Grafana's schema asks of a dashboard, as far as this one uses it.
#[test]
fn the_dashboard_is_one_for_grafana() {
    let dashboard: Value = serde_json::from_str(&read("grafana/piped.json")).expect("JSON");
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36));
    assert!(dashboard.get("id").is_none(), "numbers are the server's");
    for key in ["uid", "title", "refresh"] {
        assert!(dashboard[key].is_string(), "{key}");
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let variables: Vec<&Value> = variables.iter().map(|it| &it["name"]).collect();
    assert_eq!(variables, ["datasource", "instance"]);
    let panels = dashboard["panels"].as_array().expect("panels");
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{title}: its id is taken");
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24 && at("w") > 0, "{title}: beyond the edge");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} lies on another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(["timeseries", "stat", "table"].contains(&panel["type"].as_str().expect("one")));
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}");
        let targets = panel["targets"].as_array().expect("targets");
        let mut names = BTreeSet::new();
        for target in targets {
            assert!(names.insert(target["refId"].as_str().expect("a name")), "{title}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
        assert!(!names.is_empty(), "{title} shows nothing");
    }
}
