//! `pipectl model signature` and `model blackbox` as a shell sees them.

use std::fmt::Write as _;
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;

fn pipectl(arguments: &[&str], stdin: &str) -> Output {
    cargo_bin_cmd!("pipectl").args(arguments).write_stdin(stdin).output().expect("runs")
}

fn json(arguments: &[&str], stdin: &str) -> Value {
    let output = pipectl(&[arguments, &["--json"]].concat(), stdin);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The reason of a refusal, which is a mistake of usage.
fn refusal(arguments: &[&str], stdin: &str) -> String {
    let output = pipectl(arguments, stdin);
    assert_eq!(output.status.code(), Some(2), "{arguments:?} {stdin:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).expect("UTF-8")
}

fn near(value: &Value, truth: f64) {
    let number = value.as_f64().expect("a number");
    assert!((number / truth - 1.0).abs() < 1e-6, "{number} is not {truth}");
}

const BLACKBOX: [&str; 6] = ["model", "blackbox", "--csv", "-", "--kb", "1024"];

/// Exact measurements of the GAM.
fn gam() -> String {
    let stages = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];
    let mut csv = "# the GAM of the paper\ntime, mode, bytes\n".to_owned();
    for kb in [0.25, 1.0, 2.0, 4.0, 8.0] {
        let times = stages.map(|(g, per_kb)| g + kb * per_kb);
        let (sum, most) =
            (times.iter().sum::<f64>(), times.iter().fold(0.0, |a: f64, b| a.max(*b)));
        writeln!(csv, "{sum}, alone, {kb}KiB\n{}ms, backlogged, {}", most / 1e3, kb * 1024.0)
            .expect("a string");
    }
    csv
}

#[test]
fn a_black_box_of_the_gam_gives_table_2_and_the_plan() {
    let body = json(&[&BLACKBOX[..], &["--bytes", "4KiB"]].concat(), &gam());
    assert!(body["schema_version"].is_number());
    let bottleneck = &body["bottlenecks"][0];
    near(&bottleneck["g_us"]["value"], 7.5);
    near(&bottleneck["others_G_us_per_kb"]["value"], 40.0);
    near(&body["sum_g_us"]["value"], 27.3);
    assert_eq!(body["bottlenecks"].as_array().map(Vec::len), Some(1));
    assert_eq!(body["plan"]["fragments"], 5);
    let text = pipectl(&[&BLACKBOX[..], &["--bytes", "4KiB"]].concat(), &gam());
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    for words in ["bottleneck g", "7.5000", "40.000", "us/KB", "5 fragments"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    // The outlier of one line hardly moves the fit, and is named.
    let spoilt = gam().replace("\n# ", "\n") + "9000, alone, 1KiB\n92.2, alone, 1KiB\n";
    for arguments in [&BLACKBOX[..], &[&BLACKBOX[..], &["--robust"]].concat()] {
        let body = json(arguments, &spoilt);
        near(&body["sum_g_us"]["value"], 27.3);
        assert_eq!(body["outliers"], 1);
        let outlier = &body["outlier_measurements"][0];
        assert_eq!(
            (&outlier["measurement"], &outlier["what"]),
            (&11.into(), &"alone, 1024 bytes".into())
        );
        near(&outlier["times"], 9000.0 / 92.2);
    }
    let text = |arguments: &[&str]| {
        let output = pipectl(&[&BLACKBOX[..], arguments].concat(), &spoilt);
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    for words in ["1 of them outliers", "alone, 1024 bytes", "97.61", "they were ignored"] {
        assert!(text(&[]).contains(words), "{words} is not in {}", text(&[]));
    }
    // Who wants them to count is told of them all the same.
    let plain = ["--least-squares"];
    assert!(text(&plain).contains("they count"), "{}", text(&plain));
    let body = json(&[&BLACKBOX[..], &plain].concat(), &spoilt);
    assert!(body["sum_g_us"]["value"].as_f64().is_some_and(|it| it > 300.0), "{body}");
    let error = refusal(&[&BLACKBOX[..], &["--least-squares", "--robust"]].concat(), "");
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn a_bad_line_is_refused_with_its_number_and_the_reason() {
    let file =
        |line: &str| format!("mode,bytes,time\nalone,1024,92.2\n\n# no measurement\n{line}\n");
    for (line, reason) in [
        ("alone,1024", "2 fields where the first line names 3"),
        ("alone,1024,5KB", "time: `KB` is no unit of a time"),
        ("alone,1024,0", "no time that anything takes"),
        ("alone,1024,-4", "is negative"),
        ("alone,1024,nan", "is not a time"),
        ("alone,1.5,4", "bytes: 1.5 is no whole number"),
        ("alone,,4", "bytes is empty"),
        ("both,1024,4", "`both` is no mode: write alone or backlogged"),
    ] {
        let error = refusal(&BLACKBOX, &file(line));
        assert!(error.contains("line 5: ") && error.contains(reason), "{line}: {error}");
    }
    for (file, reason) in [
        ("", "there is no column mode"),
        ("mode,bytes\nalone,4\n", "line 1: there is no column time"),
        ("mode,bytes,time,size\n", "`size` is no column"),
        ("mode,bytes,time,time\n", "time is there twice"),
        ("mode,bytes,time\n", "no measurements"),
        (
            "mode,bytes,time\nalone,4,1\nalone,8,2\n",
            "times between departures: there are no measurements",
        ),
        (
            "mode,bytes,time\nalone,4,1\nalone,8,2\nbacklogged,4,1\n",
            "all measurements are of 4 bytes: they give g + xG there (1.000000e-6 s), but not g and G apart",
        ),
    ] {
        let error = refusal(&BLACKBOX, file);
        assert!(error.contains(reason), "{file:?}: {error}");
    }
    let mut bytes = cargo_bin_cmd!("pipectl");
    let output =
        bytes.args(BLACKBOX).write_stdin(b"mode,bytes,time\nalone,4,1\nal\xffne,4,1\n").output();
    let error = String::from_utf8(output.expect("runs").stderr).expect("UTF-8");
    assert!(error.contains("line 3: this is no text in UTF-8"), "{error}");
    let missing = pipectl(&["model", "blackbox", "--csv", "/nonexistent/file.csv"], "");
    assert_eq!(missing.status.code(), Some(6));
}

const THESIS: [&str; 10] =
    ["model", "signature", "--L", "4.7us", "--o-s", "1.8", "--o-r", "4us", "--g", "12.8"];

#[test]
fn a_signature_has_its_first_burst_and_its_steady_interval() {
    let body =
        json(&[&THESIS[..], &["--bursts", "1,4000,8000", "--delays", "0,10us"]].concat(), "");
    near(&body["round_trip_us"], 21.0);
    for (curve, steady, limit) in [(0, 12.8, "gap"), (1, 15.8, "overhead")] {
        let curve = &body["curves"][curve];
        near(&curve["steady_us"], steady);
        assert_eq!(curve["limit"], limit);
        near(&curve["bursts"][0]["total_us"], 1.8);
        let total = |place: usize| curve["bursts"][place]["total_us"].as_f64().expect("a number");
        assert!(((total(2) - total(1)) / 4000.0 / steady - 1.0).abs() < 1e-3);
    }
    let text = pipectl(&THESIS, "").stdout;
    assert!(String::from_utf8(text).expect("UTF-8").contains("12.8000 (gap)"));
}

/// The bursts that a signature prints, as a file of measurements.
fn measured(body: &Value) -> String {
    let mut csv = "measure,messages,delay,bytes,time\n".to_owned();
    for curve in body["curves"].as_array().expect("curves") {
        for burst in curve["bursts"].as_array().expect("bursts") {
            let (messages, delay, time) =
                (&burst["messages"], &curve["delay_us"], &burst["total_us"]);
            writeln!(csv, "burst,{messages},{delay}us,,{time}").expect("a string");
        }
    }
    writeln!(csv, "rtt,,,,{}", body["round_trip_us"]).expect("a string");
    csv
}

#[test]
fn the_bursts_of_a_signature_give_its_parameters_back() {
    let body = json(&[&THESIS[..], &["--delays", "0,20us,40us"]].concat(), "");
    let found = json(&["model", "signature", "--csv", "-"], &measured(&body));
    for (name, truth) in [("o_s_us", 1.8), ("o_r_us", 4.0), ("g_us", 12.8), ("L_us", 4.7)] {
        near(&found[name]["value"], truth);
    }
    assert_eq!(found["g_seen"], "yes");
    assert_eq!(found["outliers"], 0);
    let spoilt = measured(&body) + "rtt,,,,20.9\nrtt,,,,21.1\nrtt,,,,500\n";
    let with = json(&["model", "signature", "--csv", "-"], &spoilt);
    assert_eq!(with["outlier_measurements"][0]["what"], "round trip", "{with}");
    near(&with["L_us"]["value"], 4.7);
    let notes = found["notes"].to_string();
    assert!(notes.contains("G is not shown") && notes.contains("give --window"), "{notes}");
    // Overheads above the gap hide it, and that is said.
    let slow = ["model", "signature", "--L", "5", "--o", "20", "--g", "13", "--delays", "0,20,40"];
    let found = json(&["model", "signature", "--csv", "-"], &measured(&json(&slow, "")));
    assert_eq!(found["g_seen"], "behind-overhead");
    assert!(found["g_us"].is_null());
    near(&found["g_at_most_us"]["value"], 40.0);
    let text = pipectl(&["model", "signature", "--csv", "-"], &measured(&json(&slow, "")));
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.contains("g is hidden") && text.contains("g at most"), "{text}");
}

#[test]
fn the_examples_of_the_help_give_what_they_say() {
    let help = |command| {
        let output = pipectl(&["model", command, "--help"], "");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let example = |command, first: &str| {
        let help = help(command);
        let (_, lines) = help.split_once(&format!("\n  {first}")).expect("an example");
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        format!("{first}{}\n", lines.join("\n"))
    };
    let file = example("signature", "measure,");
    let found = json(&["model", "signature", "--csv", "-"], &file);
    let bounds =
        |name: &str| ["low", "high"].map(|end| found[name][end].as_f64().expect("an interval"));
    for (name, truth) in [("o_s_us", 1.8), ("o_r_us", 4.0), ("g_us", 12.8), ("L_us", 4.7)] {
        let [low, high] = bounds(name);
        assert!(
            low <= truth && truth <= high && high - low < 0.5 * truth + 1.5,
            "{name}: {low} .. {high}"
        );
    }
    let arguments = [&BLACKBOX[..], &["--bytes", "4KiB"]].concat();
    let body = json(&arguments, &example("blackbox", "mode,"));
    near(&body["bottlenecks"][0]["g_us"]["value"], 7.5);
    assert_eq!(body["plan"]["fragments"], 5);
}

#[test]
fn a_signature_of_nothing_or_of_half_the_parameters_is_refused() {
    for (arguments, reason) in [
        (&["model", "signature"][..], "--L is missing"),
        (&["model", "signature", "--L", "5"], "--o (or --o-s and --o-r) is missing"),
        (&["model", "signature", "--L", "5", "--o-s", "1"], "--o-r"),
        (&["model", "signature", "--L", "5", "--o", "1", "--g", "-1"], "negative"),
        (&["model", "signature", "--L", "5", "--o", "1", "--g", "1", "--bursts", "0"], "--bursts"),
        (&["model", "signature", "--csv", "-", "--L", "5"], "--csv"),
    ] {
        let error = refusal(arguments, "");
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
    let file = |line: &str| format!("messages,measure,delay,bytes,time\n{line}\n");
    for (line, reason) in [
        ("0,burst,,,4", "line 2: messages: `0` is no number of messages"),
        ("4,bust,,,4", "line 2: measure: `bust` is neither burst nor rtt"),
        ("4,burst,3KB,,4", "line 2: delay: `KB` is no unit of a time"),
        ("4,burst,,3us,4", "line 2: bytes: `us` is no unit of a size"),
        (",burst,,,4", "line 2: messages is empty"),
    ] {
        let error = refusal(&["model", "signature", "--csv", "-"], &file(line));
        assert!(error.contains(reason), "{line}: {error}");
    }
}
