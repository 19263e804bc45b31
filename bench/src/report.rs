//! Rows as a table for people, as JSON for programs, and as a table for documents.

use piped_cli::table;
use piped_cli::table::Column::{Number, Text};
use serde::Serialize;

use crate::contest::Rounds;
use crate::machine::Machine;
use crate::stats::{Bar, Better, Interval, Verdict};

/// Version of the JSON document.
const SCHEMA_VERSION: u32 = 1;

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// New over old; the bar's side says whether of times or of rates.
    Ratio,
    /// Ratio where parts in a thousand matter.
    #[serde(rename = "ratio")]
    FineRatio,
    Seconds,
    PerSecond,
    /// System calls or allocations per request.
    PerRequest,
    /// Part of one CPU.
    Cpu,
    /// Number of counted things.
    Count,
    /// Part of a whole.
    Part,
}

impl Unit {
    /// Unit of a figure by what is better: less time, or a higher rate.
    pub(crate) const fn of(better: Better) -> Self {
        match better {
            Better::Smaller => Self::Seconds,
            Better::Larger => Self::PerSecond,
        }
    }
}

/// A bar with the figure found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Name as in `--only`.
    pub(crate) name: String,
    /// Profile of the daemons; `-` without one.
    pub(crate) profile: String,
    pub(crate) unit: Unit,
    /// None if it could not be measured.
    #[serde(flatten)]
    pub(crate) found: Option<Interval>,
    pub(crate) bar: Bar,
    pub(crate) verdict: Verdict,
    /// Command that repeats this row; the run fills it in.
    pub(crate) command: String,
    pub(crate) note: String,
    /// Arms that the figure was made from; empty if nothing was compared.
    pub(crate) arms: Vec<ArmReport>,
}

/// Figure of one arm of a row, over all rounds in which it took part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ArmReport {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// None if all its rounds were discarded.
    #[serde(flatten)]
    pub(crate) found: Option<Interval>,
}

impl Row {
    pub(crate) fn judged(
        name: &str,
        profile: &str,
        unit: Unit,
        found: Interval,
        bar: Bar,
        note: impl Into<String>,
    ) -> Self {
        let verdict = bar.judge(found);
        let mut row = Self::unchecked(name, profile, unit, bar, note);
        row.found = Some(found);
        row.verdict = verdict;
        row
    }

    /// Row that is only reported, because no bar is set on it.
    pub(crate) fn reported(
        name: &str,
        profile: &str,
        unit: Unit,
        found: Interval,
        note: impl Into<String>,
    ) -> Self {
        let mut row = Self::unchecked(name, profile, unit, Bar::AtMost(f64::NAN), note);
        row.found = Some(found);
        row.verdict = Verdict::Reported;
        row
    }

    /// Row that was not measured, for the reason in the note.
    pub(crate) fn unchecked(
        name: &str,
        profile: &str,
        unit: Unit,
        bar: Bar,
        note: impl Into<String>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            profile: profile.to_owned(),
            unit,
            found: None,
            bar,
            verdict: Verdict::Unchecked,
            command: String::new(),
            note: note.into(),
            arms: Vec::new(),
        }
    }

    /// Row in short, for the log of a run.
    pub(crate) fn in_short(&self) -> String {
        let [found, interval, bar] = figures(self);
        format!("{found} ({interval}), bar {bar}: {}; {}", verdict(self.verdict), self.note)
    }

    /// Adds the figures of the arms in `rounds`.
    pub(crate) fn with_arms(mut self, rounds: &Rounds, unit: Unit) -> Self {
        let arms = rounds.names.iter().enumerate();
        self.arms = arms
            .map(|(arm, name)| ArmReport { name: name.clone(), unit, found: rounds.all_of(arm) })
            .collect();
        self
    }
}

/// Results of a whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) schema_version: u32,
    /// Command that measured the rows.
    pub(crate) group: &'static str,
    pub(crate) machine: Machine,
    pub(crate) rounds: u32,
    /// Rounds thrown away for stolen time, over all rows.
    pub(crate) rounds_discarded: u32,
    pub(crate) seconds: f64,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(group: &'static str, machine: Machine, rounds: u32) -> Self {
        let schema_version = SCHEMA_VERSION;
        Self {
            schema_version,
            group,
            machine,
            rounds,
            rounds_discarded: 0,
            seconds: 0.0,
            rows: Vec::new(),
        }
    }

    /// Exit code: 0 if all bars hold, 1 if some fail, 2 if none fails but not all are known to
    /// hold.
    pub(crate) fn exit_code(&self) -> u8 {
        let any = |verdict| self.rows.iter().any(|row| row.verdict == verdict);
        if any(Verdict::Fails) {
            1
        } else if any(Verdict::Undecided) || any(Verdict::Invalid) || self.rows.is_empty() {
            2
        } else {
            0
        }
    }

    /// Text for people of at most 100 columns.
    pub(crate) fn text(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let [found, interval, bar] = figures(row);
            let verdict = verdict(row.verdict).to_owned();
            vec![row.name.clone(), row.profile.clone(), found, interval, bar, verdict]
        });
        let columns = [
            Text("row"),
            Text("profile"),
            Number("found"),
            Text("95 %"),
            Number("bar"),
            Text("verdict"),
        ];
        let mut text = table::render(&columns, rows.collect(), None) + "\n";
        for row in self.rows.iter().filter(|row| !row.note.is_empty()) {
            for line in wrapped(&format!("{}: {}", row.name, row.note), 98) {
                text += &line;
                text.push('\n');
            }
        }
        text + "\n" + &self.about()
    }

    fn about(&self) -> String {
        let Machine { cpus, model, kernel, load } = &self.machine;
        format!(
            "{cpus} CPUs ({model}), Linux {kernel}, load {load:.1} before; {} rounds a row, {} \
             discarded for stolen time;\n{:.0} s. Repeat a row with `bench {}{} --only ROW`.\n",
            self.rounds,
            self.rounds_discarded,
            self.seconds,
            self.group,
            if self.group == "ab" { " --old DIR" } else { "" }
        )
    }

    pub(crate) fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("rows are plain fields") + "\n"
    }

    /// Table for docs/benchmarks.md, with the machine below it.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from(
            "| row | profile | found | 95 % | bar | verdict |\n| --- | --- | ---: | --- | ---: | \
             --- |\n",
        );
        for row in &self.rows {
            let [found, interval, bar] = figures(row);
            let cells = [&row.name, &row.profile, &found, &interval, &bar, verdict(row.verdict)];
            text += &format!("| {} |\n", cells.join(" | "));
        }
        let Machine { cpus, model, kernel, .. } = &self.machine;
        text + &format!(
            "\n{cpus} CPUs ({model}), Linux {kernel};\n\
             of the rows measured last: {} rounds each, {} discarded for stolen time.\n",
            self.rounds, self.rounds_discarded
        )
    }
}

/// Figure, interval and bar of a row, in units for people.
fn figures(row: &Row) -> [String; 3] {
    let show = |value| figure(row.unit, value);
    let found = row.found.map_or_else(|| "-".to_owned(), |found| show(found.median));
    let interval = row.found.map_or_else(String::new, |found| {
        if found.low < found.high {
            format!("{} .. {}", show(found.low), show(found.high))
        } else {
            String::new()
        }
    });
    let bar = match row.bar {
        // A row without a bar, or one that broke off before it was known.
        Bar::AtMost(most) if most.is_nan() => String::new(),
        Bar::AtMost(0.0) => "0".to_owned(),
        Bar::AtMost(most) => format!("≤ {}", show(most)),
        Bar::AtLeast(least) => format!("≥ {}", show(least)),
        Bar::Between(least, most) => format!("{} .. {}", show(least), show(most)),
    };
    [found, interval, bar]
}

fn figure(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Ratio => format!("{value:.2} x"),
        Unit::FineRatio => format!("{value:.3} x"),
        Unit::Seconds if value < 1e-3 => format!("{:.2} us", value * 1e6),
        Unit::Seconds if value < 1.0 => format!("{:.2} ms", value * 1e3),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::PerSecond => format!("{:.2} M/s", value / 1e6),
        Unit::Count => format!("{value:.0}"),
        Unit::Part => format!("{:.2} %", value * 100.0),
        Unit::PerRequest if value == 0.0 => "0".to_owned(),
        Unit::PerRequest => format!("{value:.2e}"),
        Unit::Cpu => format!("{:.3} %", value * 100.0),
    }
}

const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Fails => "FAILS",
        Verdict::Undecided => "undecided",
        Verdict::Invalid => "invalid",
        Verdict::Unchecked => "unchecked",
        Verdict::Reported => "reported",
    }
}

/// Lines of at most `width` columns; further lines are indented.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("  {word}"));
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Round;

    fn report(verdicts: &[Verdict]) -> Report {
        let machine = Machine { cpus: 2, model: "m".into(), kernel: "6".into(), load: 0.0 };
        let mut report = Report::new("floors", machine, 31);
        report.rows = verdicts
            .iter()
            .map(|verdict| {
                let found = Interval { low: 1.0, median: 1.1, high: 1.234 };
                let bar = Bar::AtMost(1.15);
                let note = "word ".repeat(40);
                let name = "remote-get-64k-balanced";
                let mut row = Row::judged(name, "balanced", Unit::Ratio, found, bar, note);
                row.verdict = *verdict;
                row
            })
            .collect();
        report
    }

    #[test]
    fn the_exit_code_tells_the_worst_verdict() {
        use Verdict::{Fails, Holds, Invalid, Unchecked, Undecided};
        assert_eq!(report(&[Holds, Unchecked]).exit_code(), 0);
        assert_eq!(report(&[Holds, Undecided, Fails]).exit_code(), 1);
        assert_eq!(report(&[Holds, Undecided]).exit_code(), 2);
        assert_eq!(report(&[Holds, Invalid]).exit_code(), 2);
        assert_eq!(report(&[]).exit_code(), 2);
    }

    #[test]
    fn the_table_fits_100_columns() {
        let text = report(&[Verdict::Undecided, Verdict::Unchecked]).text();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        assert!(text.contains("1.10 x") && text.contains("1.00 x .. 1.23 x"), "{text}");
    }

    #[test]
    fn a_row_in_short_has_its_figures_and_its_verdict() {
        let text = report(&[Verdict::Fails]).rows[0].in_short();
        assert!(text.starts_with("1.10 x (1.00 x .. 1.23 x), bar ≤ 1.15 x: FAILS; word"), "{text}");
    }

    #[test]
    fn the_document_has_the_fields_of_a_row() {
        let json = report(&[Verdict::Holds]).json();
        let value: serde_json::Value = serde_json::from_str(&json).expect("valid");
        assert_eq!(value["schema_version"], 1);
        let row = &value["rows"][0];
        assert_eq!(row["median"], 1.1);
        assert_eq!(row["bar"]["at_most"], 1.15);
        assert_eq!(row["verdict"], "holds");
        assert_eq!(value["group"], "floors");
        assert_eq!(row["arms"], serde_json::json!([]));
    }

    #[test]
    fn the_document_has_the_arms_of_a_row() {
        let round = |number, values| Round { number, values };
        let rounds = Rounds {
            kept: vec![round(1, vec![Some(2e-6), None]), round(2, vec![Some(4e-6), Some(5e-6)])],
            discarded: 0,
            names: vec!["raw".into(), "piped".into()],
        };
        let mut report = report(&[Verdict::Holds]);
        report.rows[0] = report.rows[0].clone().with_arms(&rounds, Unit::Seconds);
        let value: serde_json::Value = serde_json::from_str(&report.json()).expect("valid");
        let arms = &value["rows"][0]["arms"];
        assert_eq!((&arms[0]["name"], &arms[0]["unit"]), (&"raw".into(), &"seconds".into()));
        let median = |arm: usize| arms[arm]["median"].as_f64().expect("measured");
        assert!((median(0) - 3e-6).abs() < 1e-12 && (median(1) - 5e-6).abs() < 1e-12);
    }
}
