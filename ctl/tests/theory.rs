//! `pipectl model plan`, `evaluate`, `bound`, `compound`, `check` and `figures` as a shell sees
//! them. No daemon runs.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use assert_cmd::cargo::cargo_bin;
use serde_json::{Value, json};

/// Section 5.5's network to disk, as a person may write it.
const TO_DISK: &str = "36,36;26,124.5;37.5us,124.5us/KB;37,39.5;4ms,5MB/s";

fn pipectl(arguments: &[&str]) -> Output {
    let mut command = Command::new(cargo_bin!("pipectl"));
    command.args(["model"]).args(arguments).env_remove("COLUMNS").stdin(Stdio::null());
    command.output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn json_of(arguments: &[&str]) -> Value {
    let output = pipectl(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    let body: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(body["schema_version"], 1);
    body
}

fn plan(stages: &str, bytes: &str, more: &[&str]) -> Value {
    json_of(&[&["plan", "--stages", stages, "--bytes", bytes], more].concat())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn names(plan: &Value) -> Vec<&str> {
    let list = plan["candidates"].as_array().expect("a list");
    list.iter().map(|one| one["algorithm"].as_str().expect("a word")).collect()
}

fn candidate<'a>(plan: &'a Value, name: &str) -> &'a Value {
    let list = plan["candidates"].as_array().expect("a list");
    list.iter().find(|one| one["algorithm"] == name).unwrap_or_else(|| panic!("{name}"))
}

/// Positive whole sizes for each stage, with the sum of the transfer.
fn assert_whole(one: &Value, stages: usize, bytes: u64) {
    let levels = one["levels"].as_array().expect("levels");
    assert_eq!(levels.len(), stages, "{}", one["algorithm"]);
    for level in levels {
        let sizes: Vec<u64> = serde_json::from_value(level.clone()).expect("whole bytes");
        assert!(sizes.iter().all(|&size| size > 0));
        assert_eq!(sizes.iter().sum::<u64>(), bytes, "{}", one["algorithm"]);
    }
}

#[test]
fn all_planners_are_compared_and_the_best_has_a_certificate() {
    let plan = plan(TO_DISK, "64KiB", &["--certificate"]);
    assert_eq!(
        names(&plan),
        [
            "whole",
            "static-128",
            "static-4096",
            "fixed",
            "hierarchical-fixed",
            "hierarchical-ramp",
            "release-curve"
        ]
    );
    for one in plan["candidates"].as_array().unwrap().iter().chain([&plan["best"]]) {
        assert_whole(one, 5, 65536);
        assert!(number(&plan["best"]["latency_us"]) <= number(&one["latency_us"]));
        assert!(number(&plan["lower_bound_us"]) <= number(&one["latency_us"]));
    }
    // docs/theory.md §5; rounding to bytes moves them a little.
    for (name, us) in [("fixed", 31876.9), ("hierarchical-fixed", 26277.4)] {
        let found = number(&candidate(&plan, name)["latency_us"]);
        assert!((found - us).abs() < 1.0, "{name}: {found}");
    }
    let (best, bound) = (number(&plan["best"]["latency_us"]), number(&plan["lower_bound_us"]));
    assert!(best <= 23860.0, "{best}");
    assert!(bound >= 23300.0, "{bound}");
    assert!((number(&plan["gap"]) - (best / bound - 1.0)).abs() < 1e-12);
}

#[test]
fn without_being_asked_there_is_no_certificate() {
    let plan = plan(TO_DISK, "64KiB", &[]);
    assert!(plan.get("gap").is_none() && plan.get("lower_bound_us").is_none());
}

#[test]
fn ramps_are_for_two_and_three_stages() {
    let two = plan("40,100;400,200", "64KB", &[]);
    assert!(names(&two).contains(&"ramp-up") && !names(&two).contains(&"ramp-up-down"));
    assert_whole(&two["best"], 2, 64000);
    let three = plan("40,100;400,200;40,100", "64000", &[]);
    assert!(names(&three).contains(&"ramp-up-down") && !names(&three).contains(&"ramp-up"));
}

#[test]
fn the_papers_kb_is_an_argument() {
    let gam = "7.2,7.2;5.2,24.9;7.5,24.9;7.4,7.9";
    let plan = plan(gam, "4KB", &["--kb", "1024"]);
    let fixed = candidate(&plan, "fixed");
    assert!((number(&fixed["latency_us"]) - 188.90).abs() < 0.1, "{fixed}");
    assert_eq!(fixed["levels"][0].as_array().unwrap().len(), 5);
    let whole = candidate(&plan, "whole");
    assert!((number(&whole["latency_us"]) - 286.9).abs() < 0.05, "{whole}");
    assert_eq!(whole["levels"], json!([[4096], [4096], [4096], [4096]]));
}

#[test]
fn latencies_and_windows_are_of_each_stage_or_of_all() {
    let at = |more: &[&str]| {
        let plan = plan("17,0;17,0", "4096", more);
        number(&candidate(&plan, "static-128")["latency_us"])
    };
    let close = |found: f64, us: f64| assert!((found - us).abs() < 1e-6, "{found} for {us}");
    // 32 fragments: once through both stages, and 31 more times through one.
    close(at(&[]), 33.0 * 17.0);
    close(at(&["--latency", "70us"]), 33.0 * 17.0 + 140.0);
    close(at(&["--latency", "70;0"]), 33.0 * 17.0 + 70.0);
    close(at(&["--latency", "70;0", "--window", "1;-"]), 32.0 * 87.0 + 17.0);
    close(at(&["--latency", "70,0", "--window", "8"]), 33.0 * 17.0 + 70.0);
}

#[test]
fn stages_of_one_server_are_served_by_turns() {
    let at = |more: &[&str]| {
        let plan = plan("10,0;10,0;10,0", "256", more);
        number(&candidate(&plan, "static-128")["latency_us"])
    };
    // Two fragments through three stages of 10 us.
    let close = |found: f64, us: f64| assert!((found - us).abs() < 1e-6, "{found} for {us}");
    close(at(&[]), 40.0);
    close(at(&["--servers", "one;two;three"]), 40.0);
    close(at(&["--servers", "thread;wire;thread"]), 40.0);
    close(at(&["--servers", "thread;thread;thread"]), 60.0);
    let certified = plan("10,0;10,0;10,0", "256", &["--servers", "a;a;a", "--certificate"]);
    // One fragment is best, and no plan has less work.
    close(number(&certified["best"]["latency_us"]), 30.0);
    close(number(&certified["lower_bound_us"]), 30.0);
    for (servers, reason) in [("a;b", "2 names for 3 stages"), ("a;;b", "without a name")] {
        let arguments = ["plan", "--stages", "1,1;1,1;1,1", "--bytes", "9", "--servers", servers];
        let output = pipectl(&arguments);
        assert!(!output.status.success() && text(&output.stderr).contains(reason), "{servers}");
    }
}

#[test]
fn the_smallest_transfers_have_plans() {
    for (stages, count) in [("5,1", 1), ("0,0;0,0;0,0", 3), ("0,1;0,1;0,1;0,1", 4)] {
        let output = pipectl(&["plan", "--stages", stages, "--bytes", "1"]);
        assert!(output.status.success() && !text(&output.stdout).contains("NaN"), "{stages}");
        for bytes in ["1", "2", "4097"] {
            let plan = plan(stages, bytes, &["--certificate"]);
            assert_whole(&plan["best"], count, bytes.parse().unwrap());
            assert!(number(&plan["gap"]) >= 0.0);
        }
    }
}

#[test]
fn plans_too_long_to_print_are_left_out() {
    // Without overheads the smallest fragments are best, and static-128 has billions of them.
    let plan = plan("0,1;0,1", "1TB", &["--certificate"]);
    assert!(!names(&plan).contains(&"static-128"));
    assert_whole(&plan["best"], 2, 1_000_000_000_000);
}

#[test]
fn depth_alignment_and_buffers_hold_plans_back() {
    let at = |more: &[&str]| {
        let plan = plan("17,1;17,1;5,1", "65536", &[&["--latency", "70;0;0"], more].concat());
        assert_whole(&plan["best"], 3, 65536);
        plan
    };
    let free = number(&at(&[])["best"]["latency_us"]);
    for more in [&["--depth", "1"][..], &["--buffers", "4KiB"], &["--align", "24KiB"]] {
        assert!(number(&at(more)["best"]["latency_us"]) > free, "{more:?}");
    }
    let list = |plan: &Value, stage: usize| -> Vec<u64> {
        serde_json::from_value(plan["best"]["levels"][stage].clone()).expect("sizes")
    };
    // The last of a stage is what remains.
    let aligned = list(&at(&["--align", "6000"]), 0);
    assert!(aligned.iter().rev().skip(1).all(|size| size % 6000 == 0), "{aligned:?}");
    let tight = at(&["--buffers", "-;4KiB"]);
    assert!(list(&tight, 2).iter().all(|&size| size <= 4096), "{tight}");
    let output =
        pipectl(&["plan", "--stages", "1,1;1,1;1,1", "--bytes", "9", "--buffers", "1;1;1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("3 items for 2 stages behind the first"), "{output:?}");
}

#[test]
fn a_plan_given_by_hand_takes_what_the_planner_says() {
    let planned = plan(TO_DISK, "64KiB", &["--certificate"]);
    let evaluate = |fragments: &str, more: &[&str]| {
        json_of(&[&["evaluate", "--stages", TO_DISK, "--fragments", fragments], more].concat())
    };
    let joined = |one: &Value, stage: usize| {
        let sizes: Vec<u64> = serde_json::from_value(one["levels"][stage].clone()).expect("sizes");
        sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    };
    let all = planned["candidates"].as_array().expect("a list");
    for one in all.iter().chain([&planned["best"]]) {
        let lists: Vec<String> = (0..5).map(|stage| joined(one, stage)).collect();
        let found = evaluate(&lists.join(";"), &[]);
        assert_eq!(found["bytes"], 65536);
        let (found, wanted) = (number(&found["latency_us"]), number(&one["latency_us"]));
        assert!((found / wanted - 1.0).abs() < 1e-12, "{}: {found} {wanted}", one["algorithm"]);
    }
    // Algorithm B, told by runs of stages; the parts of equation 4 are the whole.
    let b = "0-3: 12 x 2521, 2516, 12 x 2521, 2516; 4: 32KiB";
    let b = evaluate(b, &["--bytes", "64KiB", "--visits"]);
    let part = |name: &str| number(&b[name]);
    assert!((part("latency_us") - 26277.4).abs() < 1.0, "{b}");
    assert_eq!(b["bottleneck"], 4);
    let sum = part("before_us") + part("during_us") + part("after_us");
    assert!((sum - part("latency_us")).abs() < 1e-9 * sum);
    let visits = b["visits"].as_array().expect("visits");
    assert_eq!(visits.len(), 4 * 26 + 2);
    // Each stage is busy for as long as its visits take.
    for (stage, row) in b["stages"].as_array().expect("stages").iter().enumerate() {
        let own = visits.iter().filter(|visit| visit["stage"] == stage);
        let busy: f64 = own.map(|it| number(&it["left_us"]) - number(&it["started_us"])).sum();
        assert!((busy / number(&row["busy_us"]) - 1.0).abs() < 1e-9, "{row}");
    }
    let csv = pipectl(&["evaluate", "--stages", "1,1;1,1", "--fragments", "9,3", "--visits=csv"]);
    let lines: Vec<&str> = text(&csv.stdout).lines().collect();
    assert_eq!(lines[0], "stage,fragment,bytes,started_us,left_us,departed_us");
    assert_eq!(lines.len(), 5, "{lines:?}");
}

#[test]
fn plans_given_by_hand_are_held_by_depth_buffers_and_servers() {
    let at = |more: &[&str]| {
        let given = ["evaluate", "--stages", "10,0;10,0;10,0", "--fragments", "4 x 8"];
        number(&json_of(&[&given, more].concat())["latency_us"])
    };
    let close = |found: f64, us: f64| assert!((found - us).abs() < 1e-9, "{found} for {us}");
    close(at(&[]), 60.0);
    close(at(&["--servers", "a;a;a"]), 120.0);
    close(at(&["--latency", "5;0;0"]), 65.0);
    close(at(&["--latency", "5;0;0", "--depth", "1"]), 80.0);
    for (arguments, reason) in [
        (&["--fragments", "9;9;9"][..], "3 lists for 2 stages"),
        (&["--fragments", "0: 9; 9"], "let all do, or none"),
        (&["--fragments", "0: 9"], "the lists end with stage 1"),
        (&["--fragments", "1-0: 9"], "no run of stages"),
        (&["--fragments", "9;8"], "same number of bytes"),
        (&["--fragments", "0 x 9"], "20 x 4KiB"),
        (&["--fragments", "9", "--bytes", "8"], "more than --bytes 8"),
        (&["--fragments", "1", "--bytes", "1GB"], "more fragments than can be looked at"),
        (&["--fragments", "9", "--buffers", "8"], "the buffer before stage 1 holds 8 bytes"),
    ] {
        let output = pipectl(&[&["evaluate", "--stages", "1,1;1,1"], arguments].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}

#[test]
fn bounds_are_below_every_plan_and_grids_are_chosen() {
    let best = number(&plan(TO_DISK, "64KiB", &[])["best"]["latency_us"]);
    let given = ["bound", "--stages", TO_DISK, "--bytes", "64KiB"];
    let usual = json_of(&given);
    let grids = json_of(&[&given[..], &["--cells", "24,96"]].concat());
    let of = |report: &Value, index: usize| number(&report["nested"][index]["bound_us"]);
    assert!(of(&grids, 0) < of(&grids, 1) && of(&grids, 1) < best, "{grids}");
    assert!(of(&usual, 0) > of(&grids, 1) && usual["nested"][0]["cells"].is_null(), "{usual}");
    assert!(number(&usual["lower_bound_us"]) < best);
    // Equation 5: the disk has all bytes, and every stage one fragment.
    let wanted = 65.536 * 200.0 + 36.0 + 26.0 + 37.5 + 37.0 + 4000.0;
    assert!((number(&usual["equation_5_us"]) / wanted - 1.0).abs() < 1e-9, "{usual}");
    let thread = ["--stages", "10,0;10,0;10,0", "--bytes", "256", "--servers", "a;a;a"];
    let thread = json_of(&[&["bound"], &thread[..]].concat());
    assert!((number(&thread["lower_bound_us"]) - 30.0).abs() < 1e-6, "{thread}");
}

#[test]
fn a_compound_stage_has_the_line_of_footnote_1() {
    let network = "36,36;26,124.5;37.5,124.5;37,39.5";
    let line = json_of(&["compound", "--stages", network, "--bytes", "64KiB"]);
    assert_eq!(line["sizes"], 1024);
    assert!((number(&line["mean_latency_us"]) - 5118.4).abs() < 0.1, "{line}");
    assert!((number(&line["deviation_us"]) - 65.5).abs() < 0.1, "{line}");
    // One stage is its own line.
    let one = json_of(&["compound", "--stages", "36,124.5", "--bytes", "64KiB"]);
    assert!((number(&one["g_us"]) - 36.0).abs() < 1e-6, "{one}");
    assert!((number(&one["G_us_per_kb"]) - 124.5).abs() < 1e-6, "{one}");
    assert!(number(&one["largest_error_us"]) < 1e-6, "{one}");
}

#[test]
fn bad_stages_are_wrong_usage_with_the_place_and_the_reason() {
    let long = vec!["1,1"; 40].join(";");
    for (arguments, reason) in [
        (&["--stages", "36;4,5", "--bytes", "1"][..], "item 1: `36` is not a stage"),
        (&["--stages", "1,2;3,x", "--bytes", "1"], "item 2: `x`"),
        (&["--stages", "1,2;3,-4", "--bytes", "1"], "item 2: `-4` is negative"),
        (&["--stages", "", "--bytes", "1"], "item 1"),
        (&["--stages", "1,2;;3,4", "--bytes", "1"], "item 2"),
        (&["--stages", &long, "--bytes", "1"], "a path of 40 stages"),
        (&["--stages", "1,2", "--bytes", "0"], "--bytes"),
        (&["--stages", "1,2", "--bytes", "1.5"], "whole number of bytes"),
        (&["--stages", "1,2", "--bytes", "many"], "--bytes"),
        (&["--stages", "1,2", "--bytes", "1", "--window", "0"], "`0` is not a window"),
        (&["--stages", "1,2", "--bytes", "1", "--latency", "1;2"], "2 items for 1 stages"),
        (&["--stages", "1,2", "--bytes", "1", "--kb", "1023"], "1023"),
        (&["--bytes", "1"], "--stages"),
    ] {
        let output = pipectl(&[&["plan"], arguments].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

/// The command that first steps shows, and what it says is printed.
#[test]
fn first_steps_shows_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/first-steps.md")).expect("first steps");
    let (_, rest) = page.split_once("```sh\npipectl model plan").expect("the command");
    let (arguments, rest) = rest.split_once("\n```\n").expect("its end");
    let (_, rest) = rest.split_once("```text\n").expect("its output");
    let (printed, _) = rest.split_once("```\n").expect("the output's end");
    let program = cargo_bin!("pipectl");
    let line = format!("{} model plan{arguments}", program.display());
    let output = Command::new("sh").args(["-c", &line]).env_remove("COLUMNS").output();
    let output = output.expect("runs");
    assert_eq!(text(&output.stdout), printed, "{}", text(&output.stderr));
}

/// What docs/theory.md tells people to run works, and the files that it names exist.
#[test]
fn the_theory_names_commands_and_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let theory = std::fs::read_to_string(root.join("docs/theory.md")).expect("docs/theory.md");
    let program = cargo_bin!("pipectl");
    let commands = theory.lines().filter_map(|line| line.strip_prefix("pipectl "));
    let commands: Vec<&str> = commands.collect();
    assert!(commands.len() >= 5, "{commands:?}");
    for line in commands {
        let whole = format!("{} {line}", program.display());
        let output = Command::new("sh").args(["-c", &whole]).current_dir(&root).output();
        let output = output.expect("runs");
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    }
    let quoted = theory.split('`').skip(1).step_by(2);
    let files: Vec<&str> = quoted.filter(|it| it.starts_with("crates/")).collect();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        assert!(root.join(file).exists(), "{file}");
    }
}

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/model/tests/vectors.json");

#[test]
fn the_projects_cases_hold() {
    let report = json_of(&["check", VECTORS]);
    assert_eq!(report["holds"], true);
    for kind in report["kinds"].as_array().expect("a list") {
        assert!(number(&kind["cases"]) >= 13.0, "{kind}");
        assert!(number(&kind["largest_relative_error"]) <= 1e-6, "{kind}");
        // Of each case what came out, beside what was wanted.
        let results = kind["results"].as_array().expect("results");
        assert_eq!(Some(results.len() as u64), kind["cases"].as_u64());
        for result in results.iter().flat_map(|case| case.as_array().expect("results")) {
            let (got, wanted) = (number(&result["got"]), number(&result["wanted"]));
            assert!((got - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{result}");
        }
    }
    let all = pipectl(&["check", VECTORS, "--all"]);
    assert!(text(&all.stdout).lines().count() > 400);
    for word in ["hier_B[3]", "peak_causal", "GOT", "WANTED"] {
        assert!(text(&all.stdout).contains(word), "{word}");
    }
    let output = pipectl(&["check", VECTORS]);
    assert_eq!(output.status.code(), Some(0));
    for kind in ["latency_parts", "hier_B", "strip_literal", "121 cases"] {
        assert!(text(&output.stdout).contains(kind), "{kind}");
    }
}

#[test]
fn a_case_that_is_off_fails_and_a_file_that_is_none_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let run = |content: &str| {
        let file = place.path().join("cases.json");
        std::fs::write(&file, content).expect("written");
        pipectl(&["check", &file.to_string_lossy()])
    };
    let case = |us: f64| {
        let case = json!({"stages": [[10.0, 1.0]], "B": 1.0, "k": 1, "T": us});
        json!({ "fixed_best": [case] }).to_string()
    };
    assert_eq!(run(&case(11.0)).status.code(), Some(0));
    let off = run(&case(11.0001));
    assert_eq!(off.status.code(), Some(1));
    assert!(text(&off.stdout).contains("fixed_best"), "the table is printed all the same");
    assert!(text(&off.stderr).contains("off by"), "{}", text(&off.stderr));
    let none = run("{\"fixed_best\": [\n{\"B\": true}]}");
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("line 2 column"), "{}", text(&none.stderr));
    assert_eq!(pipectl(&["check", "/nonexistent"]).status.code(), Some(6));
}

#[test]
fn figures_are_written_and_listed() {
    let place = tempfile::tempdir().expect("a directory");
    let out = place.path().join("figures");
    let list = json_of(&["figures", "--out", &out.to_string_lossy()]);
    let figures = list["figures"].as_array().expect("a list");
    for figure in figures {
        for file in [&figure["svg"], &figure["pdf"], &figure["csv"]] {
            let file = out.join(file.as_str().expect("a name"));
            assert!(std::fs::metadata(&file).expect("written").len() > 100, "{}", file.display());
        }
    }
    // Wang 2a, 2b, 8-14; Li 3-9; the others as they are named.
    for name in ["02a", "02b", "08", "09", "10", "11", "12", "13", "14"] {
        let name = format!("pipelines-{name}");
        assert!(figures.iter().any(|figure| figure["name"] == *name), "{name}");
    }
    for number in 3..=9 {
        let name = format!("buffers-0{number}");
        assert!(figures.iter().any(|figure| figure["name"] == *name), "{name}");
    }
    for paper in ["strips-", "signature-", "tiles-"] {
        let of = |figure: &&Value| figure["name"].as_str().is_some_and(|it| it.starts_with(paper));
        assert!(figures.iter().any(|figure| of(&figure)), "{paper}");
    }
}

#[test]
fn a_place_that_cannot_be_written_is_refused() {
    let output = pipectl(&["figures", "--out", "/proc/figures"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(text(&output.stderr).contains("/proc/figures"), "{}", text(&output.stderr));
}

#[test]
fn costs_beyond_belief_are_refused() {
    for (stages, reason) in
        [("1e308,0;1e308,0", "more than 1e9 s,"), ("36,1e308;1,1", "more than 1e9 s per byte")]
    {
        let output = pipectl(&["plan", "--stages", stages, "--bytes", "1000", "--json"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(reason), "{message}");
    }
}
