//! `pipectl doctor`: faults of this machine, the configuration and the daemon, with their fixes.
//!
//! ```text
//!   gather ──► Facts ──► checks (pure) ──► findings ──► text, or JSON
//! ```

mod checks;
pub(crate) mod facts;
mod finding;
pub(crate) mod gather;
mod trust;

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;

use self::facts::Facts;
use self::finding::{Finding, Level};
use crate::args::Args;
use crate::failure::Failure;
use crate::output::{self, Output};

/// Arguments of `pipectl doctor`.
#[derive(Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// The configuration's main file [default: the running daemon's, $PIPED_CONFIG, or
    /// /etc/piped/piped.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Show also the checks that found no fault
    #[arg(long)]
    all: bool,
}

/// JSON printed by `doctor --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    errors: usize,
    warnings: usize,
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn of(facts: &Facts) -> Self {
        let findings = checks::judge(facts);
        let count = |level| findings.iter().filter(|it| it.level == level).count();
        Self { errors: count(Level::Error), warnings: count(Level::Warning), findings }
    }
}

pub(crate) fn run(args: &Args, asked: &DoctorArgs, output: &Output) -> Result<(), Failure> {
    let report = Report::of(&gather::gather(args, asked.config.clone()));
    if args.json {
        output::json(&report)?;
    } else {
        print(output, &report, asked.all)?;
    }
    match report.errors {
        0 => Ok(()),
        1 => Err(Failure::failed("1 error: see above")),
        errors => Err(Failure::failed(format!("{errors} errors: see above"))),
    }
}

fn print(output: &Output, report: &Report, all: bool) -> Result<(), Failure> {
    const INDENT: usize = 8;
    let indented = |text: &str| output.prose(&format!("{:INDENT$}{text}", ""), INDENT);
    for finding in &report.findings {
        if finding.level == Level::Ok && !all {
            continue;
        }
        let line = format!("{}: {}", finding.subject, finding.what);
        // The mark keeps its blanks, so that subjects stand below each other.
        output.labelled(finding.level.mark(), &line, INDENT)?;
        if !finding.why.is_empty() {
            indented(&finding.why)?;
        }
        for fix in &finding.fix {
            // Not folded, because it is to be copied as it is.
            output.line(format_args!("{:INDENT$}$ {fix}", ""))?;
        }
    }
    let unknown = report.findings.iter().filter(|it| it.level == Level::Unknown).count();
    let good = report.findings.iter().filter(|it| it.level == Level::Ok).count();
    let (errors, warnings) = (report.errors, report.warnings);
    let mut summary = format!("{errors} errors, {warnings} warnings, {good} as they should be");
    if unknown > 0 {
        summary.push_str(&format!(", {unknown} not looked at"));
    }
    output.prose(&summary, 2)
}
