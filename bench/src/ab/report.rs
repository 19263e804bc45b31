//! The comparison as tables for people and as JSON.

use piped_cli::table::{self, Column};
use serde::Serialize;

use crate::report::{Report, wrapped};
use crate::stats::Interval;

/// Work of a process for a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Process {
    pub(super) row: String,
    pub(super) process: &'static str,
    /// Kind of the count: `cpu_seconds`, `instructions` or `cycles`.
    pub(super) what: &'static str,
    pub(super) old: Interval,
    pub(super) new: Interval,
    /// New over old, in pairs; none if one of them did nothing.
    pub(super) ratio: Option<Interval>,
}

/// How instructions were counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Counting {
    /// The CPU counted them.
    Hardware,
    /// Single steps of a get were counted, because the CPU's counters are missing.
    Steps { missing: String },
    /// Nothing was counted, for the reason given.
    Nothing { missing: String },
}

/// JSON of the comparison.
pub(super) fn json(report: &Report, processes: &[Process], counting: &Counting) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        #[serde(flatten)]
        report: &'a Report,
        /// Null if there are counters.
        no_hardware_counters: Option<&'a str>,
        processes: &'a [Process],
    }
    let no_hardware_counters = match counting {
        Counting::Hardware => None,
        Counting::Steps { missing } | Counting::Nothing { missing } => Some(missing.as_str()),
    };
    let document = Document { report, no_hardware_counters, processes };
    serde_json::to_string_pretty(&document).expect("rows are plain fields") + "\n"
}

/// Tables of at most 100 columns.
pub(super) fn text(report: &Report, processes: &[Process], counting: &Counting) -> String {
    let rows = processes.iter().map(|process| {
        let Process { row, process, what, old, new, ratio } = process;
        let (unit, factor, digits) = match *what {
            "cpu_seconds" => ("us of CPU", 1e6, 2),
            what => (what, 1.0, 0),
        };
        let figure = |found: &Interval| format!("{:.digits$}", found.median * factor);
        let (ratio, interval) = match ratio {
            Some(it) => (format!("{:.3}", it.median), format!("{:.3} .. {:.3}", it.low, it.high)),
            None => ("-".to_owned(), String::new()),
        };
        let process = (*process).to_owned();
        vec![row.clone(), process, unit.to_owned(), figure(old), figure(new), ratio, interval]
    });
    let columns =
        ["row", "process", "a request takes", "old", "new", "new/old", "95 %"].map(Column::Text);
    let table = table::render(&columns, rows.collect(), None);
    let about = match counting {
        Counting::Hardware => "Instructions and cycles are those of user mode.".to_owned(),
        Counting::Steps { missing } => format!(
            "Instructions are those of a shard's thread in user mode for one get, from sleep to \
             sleep, stepped one by one, because the CPU does not count them here: {missing}."
        ),
        Counting::Nothing { missing } => {
            format!("No instructions and cycles are counted here: {missing}.")
        }
    };
    format!("{}\n{}\n{}\n", report.text(), table, wrapped(&about, 98).join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn processes() -> [Process; 3] {
        let process = |what, factor: f64| Process {
            row: "message-64".to_owned(),
            process: "serving",
            what,
            old: Interval::exact(2.0 * factor),
            new: Interval { low: factor, median: 1.5 * factor, high: 2.0 * factor },
            ratio: Some(Interval { low: 0.5, median: 0.75, high: 1.0 }),
        };
        let idle = Process { ratio: None, ..process("cpu_seconds", 0.0) };
        [process("cpu_seconds", 1e-6), process("instructions", 123_456_789.0), idle]
    }

    fn report() -> Report {
        let machine = Machine { cpus: 2, model: "m".into(), kernel: "6".into(), load: 0.0 };
        Report::new("ab", machine, 31)
    }

    #[test]
    fn the_tables_fit_100_columns_and_say_what_is_missing() {
        let reason = "No such file or directory (os error 2); many virtual machines have none";
        let counting = [
            Counting::Nothing { missing: reason.into() },
            Counting::Steps { missing: reason.into() },
        ];
        let texts = counting.map(|counting| text(&report(), &processes(), &counting));
        for line in texts.iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        assert!(texts[0].contains("us of CPU        2.00"), "{}", texts[0]);
        assert!(texts[0].contains("counted here: No such file"), "{}", texts[0]);
        assert!(texts[1].contains("from sleep to"), "{}", texts[1]);
    }

    #[test]
    fn the_document_has_the_processes() {
        let value: serde_json::Value =
            serde_json::from_str(&json(&report(), &processes(), &Counting::Hardware))
                .expect("valid");
        assert_eq!(value["group"], "ab");
        assert!(value["no_hardware_counters"].is_null());
        assert_eq!(value["processes"][0]["ratio"]["median"], 0.75);
        assert_eq!(value["processes"][1]["what"], "instructions");
    }
}
