//! `pipectl model buffer`, `strip` and `tile` as people and programs see them. No daemon runs.

use std::process::Output;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;

fn run(line: &str, columns: Option<u16>) -> Output {
    let mut command: Command = cargo_bin_cmd!("pipectl");
    command.env("PIPED_ADMIN_SOCKET", "/nonexistent/admin.sock").env_remove("COLUMNS");
    if let Some(columns) = columns {
        command.env("COLUMNS", columns.to_string());
    }
    command.arg("model").args(line.split_whitespace()).output().expect("runs")
}

fn json(line: &str) -> Value {
    let output = run(&format!("{line} --json"), None);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{line}: {message}");
    let body: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(body["schema_version"], 1, "{line}");
    body
}

fn number(body: &Value, key: &str) -> f64 {
    body[key].as_f64().unwrap_or_else(|| panic!("no {key} in {body}"))
}

fn assert_close(got: f64, want: f64, what: &str) {
    assert!((got - want).abs() <= 1e-9 * want.abs(), "{what}: {got} instead of {want}");
}

const BUFFER: &str = "buffer --messages 4 --bytes 4000 --lambda 105 --mu 91 --alpha 9 --delay";
const STRIP: &str = "strip --bytes 64KB --o 5us --G 6.089us/KB --K 4.06us/KB";
const TILE: &str = "tile --depth 256K --grid 3x3 --compute 2.88us --comm 0.4us";

/// What docs/theory.md says that its command gives is what it prints.
#[test]
fn the_documents_figure_is_the_commands() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/theory.md"));
    let text = text.expect("docs/theory.md");
    let (line, rest) = text
        .lines()
        .find_map(|line| line.strip_prefix("pipectl model buffer"))
        .zip(text.split("\ngives ").nth(1))
        .expect("the command, and what it gives");
    let figure: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let output = run(&format!("buffer {line}"), None);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains(&format!(" {figure} bytes")), "{figure}: {printed}");
}

#[test]
fn a_buffer_is_the_papers_whatever_the_units() {
    let delay = 4000.0 / 105.0 / 8.0;
    let body = json(&format!("{BUFFER} {delay} --mode paper"));
    assert!((number(&body, "required_bytes") - 12052.0).abs() <= 1.0, "{body}");
    let nanos = delay * 1e3;
    for line in [
        format!("{BUFFER} {delay}us --mode causal"),
        format!("{BUFFER} {nanos}ns"),
        format!(
            "buffer --messages 4 --bytes 4KB --lambda 105MB/s --mu 0.091GB/s --alpha 0.009ms --delay {delay}us"
        ),
        format!(
            "buffer --messages 4 --bytes 4000B --lambda 840Mbit/s --mu 91B/us --alpha 9000ns --delay {delay}"
        ),
    ] {
        let same = json(&line);
        assert_close(number(&same, "required_bytes"), number(&body, "required_bytes"), &line);
    }
    let more = json(&format!("{BUFFER} {delay} --kb 1024").replace("4000", "4KB"));
    assert_eq!(more["total_bytes"], 4 * 4096);
    // A copy that runs ahead of the arrival is pointed out.
    let ahead = BUFFER.replace("--mu 91", "--mu 182");
    let text = run(&format!("{ahead} {delay} --mode paper"), None);
    assert!(String::from_utf8_lossy(&text.stdout).contains("a real consumer needs 1"), "{text:?}");
    let causal = json(&format!("{ahead} {delay}"));
    assert_eq!(causal["mode"], "causal");
    assert!(number(&causal, "required_bytes") > 10109.0 + 1.0);
}

/// The program of the paper's figure 4 on one shared link or on one for each strip, in us: total
/// less computation.
fn cost_us(strips: &[f64], o: f64, g: f64, k: f64, shared: bool) -> f64 {
    let (mut now, mut link, mut arrivals) = (0.0_f64, 0.0_f64, Vec::new());
    for round in 0..=strips.len() {
        if let Some(size) = strips.get(round) {
            now += o;
            link = if shared { now.max(link) } else { now } + g * size;
            arrivals.push(link);
        }
        if round > 0 {
            now = now.max(arrivals[round - 1]) + k * strips[round - 1];
        }
    }
    now - k * strips.iter().sum::<f64>()
}

#[test]
fn strips_cost_what_is_said_and_the_optimal_ones_least() {
    for network in ["serial", "literal"] {
        let body = json(&format!("{STRIP} --network {network}"));
        assert_close(number(&body, "wire_us"), 6.089 * 64.0, "wire");
        assert_close(number(&body, "vectorised_us"), 5.0 + 6.089 * 64.0, "vectorised");
        assert_close(number(&body, "rule_bytes"), 5000.0 / 2.029, "rule");
        let policies = body["policies"].as_array().expect("policies");
        let names: Vec<&str> = policies.iter().filter_map(|row| row["policy"].as_str()).collect();
        assert_eq!(names, ["fixed", "variable", "variable-until-rule", "rule", "optimal"]);
        let optimal = number(&policies[4], "cost_us");
        let mut impossible = 0;
        for row in policies {
            let strips: Vec<f64> = serde_json::from_value(row["strips"].clone()).expect("sizes");
            assert_close(strips.iter().sum(), 64_000.0, "sum");
            let cost = cost_us(&strips, 5.0, 6.089e-3, 4.06e-3, network == "serial");
            assert_close(number(row, "cost_us"), cost, &row["policy"].to_string());
            assert!(cost >= optimal * (1.0 - 1e-9), "{row}");
            let below = cost + 4.06 * 64.0 < 6.089 * 64.0;
            assert_eq!(row.get("warning").is_some(), below, "{row}");
            impossible += usize::from(below);
            let whole: Vec<u64> =
                serde_json::from_value(row["whole"]["strips"].clone()).expect("bytes");
            assert_eq!(whole.iter().sum::<u64>(), 64_000);
        }
        assert_eq!(body.get("warning").is_some(), impossible > 0, "{body}");
        assert_eq!(impossible > 0, network == "literal");
    }
}

#[test]
fn unrolled_strips_are_told_with_their_memory() {
    let deep = json(&format!("{STRIP} --latency 40us --unroll 4"));
    let shallow = json(&format!("{STRIP} --latency 40us"));
    let rule = |body: &Value| {
        let rows = body["policies"].as_array().expect("policies");
        rows.iter().find(|row| row["policy"] == "rule").expect("the rule").clone()
    };
    assert!(number(&rule(&deep), "cost_us") < 0.8 * number(&rule(&shallow), "cost_us"));
    assert_close(number(&rule(&deep), "memory_bytes"), 5.0 * number(&deep, "rule_bytes"), "memory");
    let each = 6.089e-3 * number(&deep, "rule_bytes");
    assert_close(number(&deep, "unroll_depth"), 1.0 + 40.0 / each, "depth");
    let grouped = json(&format!("{STRIP} --latency 40us --unroll 4 --grouped"));
    assert!(number(&rule(&grouped), "cost_us") > number(&rule(&deep), "cost_us"));
}

#[test]
fn nine_processors_take_four_and_eight_planes_more() {
    let body = json(TILE);
    for (row, more) in body["schedules"].as_array().expect("both").iter().zip([4.0, 8.0]) {
        assert_eq!(number(row, "planes") - number(row, "tiles"), more, "{row}");
    }
    let overlapping = &body["schedules"][1];
    let best = (262_144.0 * 124.4 / (8.0 * 2.88_f64)).sqrt();
    assert_close(number(overlapping, "best_height"), best, "z*");
    let given = json(&format!("{TILE} --height 1000"));
    let (row, tiles) = (&given["schedules"][1], 263.0);
    assert_close(number(row, "latency_us"), (tiles + 8.0) * (124.4 + 2880.0), "given height");
    // Both pay for starting and agreeing, so overlapping wins, as in the paper; unless the other one
    // is let off.
    let time = |body: &Value, place: usize| number(&body["schedules"][place], "latency_us");
    assert!(time(&body, 1) < time(&body, 0), "{body}");
    let small = "tile --depth 512K --grid 3x3 --compute 0.72us --comm 0.05us";
    let (fair, free) = (json(small), json(&format!("{small} --comm-startup 0")));
    assert!(time(&fair, 1) < time(&fair, 0) && time(&free, 0) < time(&free, 1), "{fair} {free}");
    assert_close(number(&given["schedules"][0], "comm_us"), 124.4 + 400.0, "start-up");
    let slow = json(&TILE.replace("--comm 0.4us", "--comm 4us"));
    assert!(slow["warning"].as_str().expect("a warning").contains("the link is the bottleneck"));
    assert!(body.get("warning").is_none());
}

#[test]
fn tables_fit_narrow_terminals() {
    for columns in [40, 60, 80] {
        for line in
            [format!("{BUFFER} 4.76"), format!("{STRIP} --network literal"), TILE.to_owned()]
        {
            let output = run(&line, Some(columns));
            assert_eq!(output.status.code(), Some(0));
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            for line in text.lines() {
                assert!(line.chars().count() <= usize::from(columns), "{columns}: {line}");
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let (buffer, strip, tile) = (format!("{BUFFER} 4.76"), STRIP.to_owned(), TILE.to_owned());
    for (line, reasons) in [
        (buffer.replace("105", "0"), ["--lambda", "a bandwidth of 0 never ends", "105MB/s"]),
        (buffer.replace("105", "105MB"), ["--lambda", "`MB` is no unit", "105MB/s"]),
        (buffer.replace("105", "105Mb/s"), ["--lambda", "bits or bytes", "MB/s or Mbit/s"]),
        (buffer.replace("alpha 9", "alpha -9"), ["--alpha", "negative", "4ms"]),
        (buffer.replace("alpha 9", "alpha 9KB"), ["--alpha", "`KB` is no unit of a time", "4ms"]),
        (buffer.replace("4000", "0.3"), ["--bytes", "no whole number", "65536"]),
        (buffer.replace("messages 4", "messages 0"), ["--messages", "0", "1..=1000000"]),
        (buffer.replace("--mu 91", ""), ["--mu", "required", "Usage"]),
        (format!("{buffer} --mode both"), ["--mode", "paper", "causal"]),
        (strip.replace("--o 5us", "--o 0"), ["(o) is 0", "above 0", ""]),
        (strip.replace("6.089us/KB", "0"), ["(G) is 0", "above 0", ""]),
        (strip.replace("6.089us/KB", "6ms"), ["--G", "`ms` is no unit", "7.2us/KB"]),
        (strip.replace("64KB", "much"), ["--bytes", "`much` is not a size", "64KiB"]),
        (format!("{strip} --growth 0"), ["--growth", "0.001", "0.45"]),
        (format!("{strip} --unroll 0"), ["--unroll", "1..=1000", ""]),
        (format!("{strip} --kb 1001"), ["--kb", "1000", "1024"]),
        (tile.replace("3x3", "3"), ["--grid", "two numbers", "3x3"]),
        (tile.replace("256K", "0"), ["--depth", "above 0", "256K"]),
        (format!("{tile} --height 999999"), ["--height", "more than the depth", "262144"]),
    ] {
        let output = run(&line, None);
        let message = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{line}: {message}");
        assert!(output.stdout.is_empty(), "{line}");
        for reason in reasons {
            assert!(message.contains(reason), "{line}: no {reason:?} in {message}");
        }
    }
}

#[test]
fn examples_of_the_help_run() {
    for command in ["buffer", "strip", "tile"] {
        let help =
            String::from_utf8(run(&format!("{command} --help"), None).stdout).expect("UTF-8");
        // A long line goes on as in a shell.
        let help = help.replace("\\\n", "");
        let example = help.lines().find_map(|line| line.trim().strip_prefix("pipectl model "));
        let example = example.unwrap_or_else(|| panic!("no example in {help}"));
        assert!(example.starts_with(command));
        let output = run(example, None);
        assert_eq!(output.status.code(), Some(0), "{example}: {output:?}");
    }
}
