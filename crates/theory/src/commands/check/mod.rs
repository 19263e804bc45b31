//! `pipectl model check`: the models against a file of computed cases.

mod cases;

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::{Number, Text};
use serde::Serialize;

use self::cases::{Case, Outcome, Vectors};
use super::measurements;

/// The largest relative error that counts as none.
const TOLERANCE: f64 = 1e-6;

const AFTER_HELP: &str = "\
The file is JSON: for each kind a list of cases, each with what is given and what must come out.
Kinds: latency_parts, fixed_best, ramp_up_best, ramp_up_down_best, lp_same_fragments, hier_B,
buffer, strip_serial, strip_literal; the project's own cases are in
crates/model/tests/vectors.json. The exit code is 1 if a case is off by more than 1e-6.";

/// Arguments of `pipectl model check`.
#[derive(Debug, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CheckArgs {
    /// The file with the cases
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// List every result of every case, beside what the file wants
    #[arg(long)]
    all: bool,
}

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    kinds: Vec<Kind>,
    cases: usize,
    largest_relative_error: f64,
    tolerance: f64,
    holds: bool,
}

/// The cases of one kind together.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Kind {
    kind: &'static str,
    cases: usize,
    largest_relative_error: f64,
    /// The case that has it, counted from 0.
    worst_case: Option<usize>,
    /// All results of each case.
    results: Vec<Vec<Outcome>>,
}

pub(crate) fn run(args: &CheckArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let text = String::from_utf8(measurements::contents(&args.file)?)
        .map_err(|_| Failure::usage(format!("{} is not UTF-8", args.file.display())))?;
    let report = check(&args.file, &text)?;
    let (worst, holds) = (report.largest_relative_error, report.holds);
    if json {
        output::json(&report)?
    } else {
        print(output, &report, args.all)?
    }
    if holds {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "a case is off by {worst:.2e}, more than {TOLERANCE:e} of its value"
    )))
}

fn print(output: &Output, report: &Report, all: bool) -> Result<(), Failure> {
    if all {
        let rows = report.kinds.iter().flat_map(|kind| {
            kind.results.iter().enumerate().flat_map(move |(case, results)| {
                results.iter().map(move |it| {
                    let name = [format!("{}[{case}]", kind.kind)];
                    let error = [format!("{:.1e}", it.error())];
                    name.into_iter().chain(it.cells()).chain(error).collect()
                })
            })
        });
        let columns =
            [Text("CASE"), Text("RESULT"), Number("GOT"), Number("WANTED"), Number("ERROR")];
        output.table(&columns, rows.collect())?;
        output.line("")?;
    }
    let rows = report.kinds.iter().map(|kind| {
        let row = [
            kind.kind.to_owned(),
            kind.cases.to_string(),
            format!("{:.1e}", kind.largest_relative_error),
            kind.worst_case.map_or_else(String::new, |case| case.to_string()),
        ];
        let worst = kind.worst().map(Outcome::cells).unwrap_or_default();
        row.into_iter().chain(worst).collect()
    });
    let columns = [
        Text("KIND"),
        Number("CASES"),
        Number("LARGEST ERROR"),
        Number("OF CASE"),
        Text("RESULT"),
        Number("GOT"),
        Number("WANTED"),
    ];
    output.table(&columns, rows.collect())?;
    let verdict = if report.holds { "within" } else { "NOT within" };
    output.line(format_args!("{} cases, {verdict} {TOLERANCE:e}", report.cases))
}

fn check(file: &Path, text: &str) -> Result<Report, Failure> {
    let refuse = |reason: String| Failure::usage(format!("{}: {reason}", file.display()));
    let vectors: Vectors = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
    let kinds = vectors.kinds().map_err(refuse)?;
    let cases: usize = kinds.iter().map(|kind| kind.cases).sum();
    if cases == 0 {
        return Err(refuse("there is no case in it, so nothing was checked".to_owned()));
    }
    let worst = kinds.iter().map(|kind| kind.largest_relative_error).fold(0.0, f64::max);
    Ok(Report {
        kinds,
        cases,
        largest_relative_error: worst,
        tolerance: TOLERANCE,
        holds: worst <= TOLERANCE,
    })
}

impl Kind {
    /// The result with the largest error.
    fn worst(&self) -> Option<&Outcome> {
        let case = self.results.get(self.worst_case?)?;
        case.iter().max_by(|a, b| a.error().total_cmp(&b.error()))
    }
}

/// All cases of one kind; nothing where the file has none.
///
/// # Errors
/// Where a case is no case, and why.
fn kind<C: Case>(name: &'static str, cases: &[C]) -> Result<Option<Kind>, String> {
    let results = cases
        .iter()
        .enumerate()
        .map(|(index, case)| case.results().map_err(|reason| format!("{name}[{index}]: {reason}")));
    let results = results.collect::<Result<Vec<Vec<Outcome>>, String>>()?;
    let error = |of: &[Outcome]| of.iter().map(Outcome::error).fold(0.0, f64::max);
    let errors = results.iter().map(|of| error(of)).enumerate();
    // Of equal ones the first.
    let worst = errors.reduce(|worst, next| if next.1 > worst.1 { next } else { worst });
    Ok(worst.map(|(case, error)| Kind {
        kind: name,
        cases: cases.len(),
        largest_relative_error: error,
        worst_case: Some(case),
        results,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = include_str!("../../../../model/tests/vectors.json");

    fn checked(text: &str) -> Result<Report, String> {
        check(Path::new("cases.json"), text).map_err(|failure| failure.to_string())
    }

    #[test]
    fn all_cases_of_the_project_hold() {
        let report = checked(OURS).expect("well formed");
        assert_eq!(report.cases, 121);
        for kind in &report.kinds {
            assert!(kind.cases >= 13, "{kind:?}");
            assert!(kind.largest_relative_error <= TOLERANCE, "{kind:?}");
            assert_eq!(kind.results.len(), kind.cases);
        }
        assert_eq!(report.kinds.len(), 9);
    }

    #[test]
    fn a_wrong_expectation_of_any_kind_is_seen() {
        let vectors: serde_json::Value = serde_json::from_str(OURS).unwrap();
        for (kind, cases) in vectors.as_object().unwrap() {
            let mut case = cases[2].clone();
            let results = ["T", "cost", "peak_causal", "sim"];
            let result = results.iter().find(|name| case.get(**name).is_some()).expect("a result");
            let value = case[*result].as_f64().unwrap();
            for (factor, holds) in [(1.0, true), (1.0 + 1e-5, false), (1.0 - 1e-5, false)] {
                case[*result] = (value * factor).into();
                let file = serde_json::json!({ kind: [case] }).to_string();
                assert_eq!(checked(&file).unwrap().holds, holds, "{kind} {result} * {factor}");
            }
        }
    }

    #[test]
    fn stages_without_overhead_are_answered_or_refused() {
        let report = checked(
            r#"{"hier_B":[{"net":[[0,1],[0,1]],"disk":[0,2],"B":1e9,"k":1,"model":1,"sim":1}]}"#,
        );
        assert!(!report.expect("an answer").holds);
        let programs = |stages: &str| {
            checked(&format!(
                r#"{{"lp_same_fragments":[{{"stages":{stages},"B":1,"T":1,"k":1}}]}}"#
            ))
        };
        // Doubled and halved sizes soon gain nothing; equal ones gain for ever.
        assert!(!programs("[[0,1],[0,2],[0,1]]").expect("an answer").holds);
        let failure = programs("[[0,1],[0,1]]").map(|report| report.kinds).unwrap_err();
        assert!(
            failure.contains("lp_same_fragments[0]") && failure.contains("64 fragments"),
            "{failure}"
        );
    }

    #[test]
    fn malformed_files_are_refused_with_the_place() {
        for (text, place) in [
            ("", "line 1 column 0"),
            ("{\n\"fixed_best\": 3}", "line 2"),
            ("{\"fixed\": []}", "unknown field `fixed`"),
            ("{}", "no case"),
            ("{\"fixed_best\":[{\"stages\":[[1,2]],\"B\":1,\"T\":1}]}", "missing field `k`"),
            ("{\"fixed_best\":[{\"stages\":[[1,2]],\"B\":0,\"k\":1,\"T\":1}]}", "fixed_best[0]: B"),
            ("{\"fixed_best\":[{\"stages\":[],\"B\":1,\"k\":1,\"T\":1}]}", "fixed_best[0]: "),
            ("{\"fixed_best\":[{\"stages\":[[1,-2]],\"B\":1,\"k\":1,\"T\":1}]}", "[0]: stage 0"),
            (
                "{\"ramp_up_best\":[{\"stages\":[[1,2]],\"B\":1,\"k\":1,\"T\":1,\"sizes\":[1]}]}",
                "ramp_up_best[0]: ",
            ),
            (
                "{\"latency_parts\":[{\"stages\":[[1,2]],\"parts_bytes\":[[1],[1]],\"kb\":1000,\
                 \"T\":1}]}",
                "latency_parts[0]: ",
            ),
            (
                "{\"latency_parts\":[{\"stages\":[[1,2]],\"parts_bytes\":[[1]],\"kb\":0,\"T\":1}]}",
                "latency_parts[0]: kb",
            ),
            ("{\"fixed_best\":[{\"stages\":[[1,2]],\"B\":1,\"k\":1,\"T\":1e999}]}", "line 1"),
        ] {
            let failure = checked(text).map(|report| report.kinds).unwrap_err();
            assert!(
                failure.starts_with("cases.json: ") && failure.contains(place),
                "{text}: {failure}"
            );
        }
    }
}
