//! Budgets as tables for people, as JSON, and as tables for documents.

use piped_cli::table::{self, Column};
use piped_core::modes::Profile;
use serde::Serialize;

use super::budget::Line;
use super::work::Cost;
use crate::failure::{Doing as _, Failure};
use crate::machine::Machine;
use crate::report::wrapped;
use crate::stats::Interval;

/// Version of the JSON document.
const SCHEMA_VERSION: u32 = 1;

/// Columns of the text.
const COLUMNS: u16 = 100;

/// Columns of the table of steps.
const STEPS: [&str; 5] = ["step", "instructions", "system calls", "user ns", "kernel ns"];

/// Columns of the table of processes.
const PROCESSES: [&str; 7] =
    ["process", "instructions", "idle turn", "cycles", "system calls", "switches", "CPU ns"];

/// Budgets of a run.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    schema_version: u32,
    machine: Machine,
    profile: Profile,
    rounds: u32,
    /// Reason why there are no cycles; null if there are.
    pub(crate) no_cycles: Option<String>,
    /// Reason why system calls at full speed are not counted.
    pub(crate) no_system_calls: Option<String>,
    /// Reason why there are no times of steps.
    pub(crate) no_times: Option<String>,
    pub(crate) lives: Vec<Life>,
}

/// Budget of a request.
#[derive(Debug, Serialize)]
pub(super) struct Life {
    /// Name as in `--only`.
    pub(crate) request: &'static str,
    #[serde(skip)]
    pub(crate) title: &'static str,
    /// Median latency in seconds, over rounds.
    pub(crate) latency: Interval,
    /// Requests of all rounds.
    pub(crate) requests: u64,
    pub(crate) rounds_discarded: u32,
    pub(crate) processes: Vec<Process>,
}

/// Share of a process in the budget.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    pub(crate) process: &'static str,
    /// Instructions when it is woken for nothing.
    pub(crate) idle_instructions: usize,
    #[serde(flatten)]
    pub(crate) cost: Cost,
    /// Time of all samples over the CPU time meanwhile.
    pub(crate) covered: Option<f64>,
    pub(crate) steps: Vec<Line>,
}

impl Document {
    pub(super) fn new(machine: Machine, profile: Profile, rounds: u32) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            machine,
            profile,
            rounds,
            no_cycles: None,
            no_system_calls: None,
            no_times: None,
            lives: Vec::new(),
        }
    }

    pub(super) fn json(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string_pretty(self).doing("JSON")? + "\n")
    }

    /// Tables of at most 100 columns.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for life in &self.lives {
            text += &(folded(&life.headline(self.profile)) + "\n");
            let columns = PROCESSES.map(column);
            text += &table::render(&columns, life.rows(), Some(COLUMNS));
            for process in &life.processes {
                text += &format!("\n{}:\n", title(process.process));
                text += &table::render(&STEPS.map(column), process.rows(), Some(COLUMNS));
            }
            text += "\n";
        }
        for paragraph in self.notes(&self.lives) {
            text += &folded(&paragraph);
        }
        text
    }

    /// Tables of a life for documents, with the machine below.
    pub(super) fn markdown(&self, life: &Life) -> String {
        let mut text = folded(&life.headline(self.profile)) + "\n";
        text += &markdown(&PROCESSES, &life.rows());
        for process in &life.processes {
            text += &format!("\n**{}**\n\n", title(process.process));
            text += &markdown(&STEPS, &process.rows());
        }
        text += "\n";
        for paragraph in self.notes(std::slice::from_ref(life)) {
            text += &folded(&paragraph);
        }
        text
    }

    /// What there is to know of the tables of some lives.
    fn notes(&self, lives: &[Life]) -> Vec<String> {
        let Machine { cpus, model, kernel, load } = &self.machine;
        let discarded: u32 = lives.iter().map(|life| life.rounds_discarded).sum();
        let mut notes = vec![format!(
            "{cpus} CPUs ({model}), Linux {kernel}, load {load:.1} before; {} rounds, {discarded} \
             discarded for stolen time.",
            self.rounds
        )];
        let covered: Vec<String> = lives
            .iter()
            .flat_map(|life| &life.processes)
            .filter_map(|it| Some(format!("{:.0} %", 100.0 * it.covered?)))
            .collect();
        if !covered.is_empty() {
            notes.push(format!(
                "Samples are a quarter of a millisecond of CPU time each. Process by process they \
                 come to {} of the CPU time, which they divide among the steps.",
                covered.join(", ")
            ));
        }
        let missing = [
            ("cycles", &self.no_cycles),
            ("system calls at full speed", &self.no_system_calls),
            ("times of steps", &self.no_times),
        ];
        for (what, reason) in missing {
            notes.extend(reason.as_ref().map(|reason| format!("No {what}: {reason}.")));
        }
        notes
    }
}

impl Life {
    fn headline(&self, profile: Profile) -> String {
        let Interval { low, median, high } = self.latency;
        format!(
            "{}: {:.1} us (95 %: {:.1} .. {:.1}), the median of {} with profile {profile}.",
            self.title,
            median * 1e6,
            low * 1e6,
            high * 1e6,
            self.requests
        )
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |process: &Process| {
            let Cost { cpu_ns, cycles, system_calls, voluntary_switches, involuntary_switches } =
                process.cost;
            let instructions: usize = process.steps.iter().map(|line| line.instructions).sum();
            vec![
                title(process.process).to_owned(),
                instructions.to_string(),
                process.idle_instructions.to_string(),
                cycles.map_or_else(|| "none: no counters".to_owned(), |it| format!("{it:.0}")),
                system_calls.map_or_else(|| "not counted".to_owned(), |it| format!("{it:.2}")),
                format!("{voluntary_switches:.2} + {involuntary_switches:.2}"),
                format!("{cpu_ns:.0}"),
            ]
        };
        self.processes.iter().map(row).collect()
    }
}

impl Process {
    fn rows(&self) -> Vec<Vec<String>> {
        let time = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"));
        let mut all = Line { step: "all".to_owned(), ..Line::default() };
        let mut rows = Vec::new();
        for line in &self.steps {
            let Line { step, instructions, system_calls, user_ns, kernel_ns } = line;
            all.instructions += instructions;
            all.user_ns = user_ns.map(|ns| ns + all.user_ns.unwrap_or_default()).or(all.user_ns);
            all.kernel_ns =
                kernel_ns.map(|ns| ns + all.kernel_ns.unwrap_or_default()).or(all.kernel_ns);
            for (name, count) in system_calls {
                *all.system_calls.entry(name.clone()).or_default() += count;
            }
            rows.push(vec![
                step.clone(),
                instructions.to_string(),
                line.calls(),
                time(*user_ns),
                time(*kernel_ns),
            ]);
        }
        let instructions = all.instructions.to_string();
        rows.push(vec![
            all.step.clone(),
            instructions,
            all.calls(),
            time(all.user_ns),
            time(all.kernel_ns),
        ]);
        rows
    }
}

/// A paragraph in lines of at most 100 columns.
fn folded(paragraph: &str) -> String {
    let lines = wrapped(paragraph, COLUMNS.into());
    lines.iter().map(|line| line.trim_start().to_owned() + "\n").collect()
}

fn column(name: &'static str) -> Column {
    match name {
        "step" | "process" | "system calls" => Column::Text(name),
        name => Column::Number(name),
    }
}

/// Name of a process for people.
fn title(process: &str) -> &str {
    match process {
        "asked" => "asking daemon",
        "serving" => "serving daemon",
        process => process,
    }
}

fn markdown(columns: &[&str], rows: &[Vec<String>]) -> String {
    let rule = columns.iter().map(|name| match *name {
        "step" | "process" | "system calls" => "---",
        _ => "---:",
    });
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(columns.to_vec()) + &line(rule.collect());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::anatomy::{Kind, PERFORMANCE};
    use crate::anatomy::{places::Home, table as steps};
    use crate::readme;

    fn document() -> Document {
        let machine = Machine { cpus: 2, model: "m".into(), kernel: "6".into(), load: 0.0 };
        let step = |name: &str, instructions, ns| Line {
            step: name.to_owned(),
            instructions,
            system_calls: BTreeMap::from([("io_uring_enter".to_owned(), 3)]),
            user_ns: Some(ns),
            kernel_ns: Some(2.0 * ns),
        };
        let process = |process| Process {
            process,
            idle_instructions: 400,
            cost: Cost {
                cpu_ns: 900.0,
                cycles: None,
                system_calls: Some(12.345),
                voluntary_switches: 1.0,
                involuntary_switches: 0.25,
            },
            covered: Some(0.98),
            steps: vec![step(steps::STEPS[9].name, 1234, 100.0), step("other: libc", 766, 200.0)],
        };
        let mut document = Document::new(machine, Profile::Balanced, 15);
        document.lives.push(Life {
            request: "get-4k",
            title: "A get of 4 KiB of another node's region",
            latency: Interval { low: 30e-6, median: 31e-6, high: 32e-6 },
            requests: 1000,
            rounds_discarded: 0,
            processes: ["client", "asked", "serving"].map(process).into(),
        });
        document.no_cycles = Some("many virtual machines have none".into());
        document
    }

    #[test]
    fn the_tables_fit_100_columns_and_add_up() {
        let document = document();
        let text = document.text();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        assert!(text.contains("31.0 us (95 %: 30.0 .. 32.0)"), "{text}");
        let markdown = document.markdown(&document.lives[0]);
        assert!(
            markdown.contains("\n| all | 2000 | 6 io_uring_enter | 300 | 600 |\n"),
            "{markdown}"
        );
        assert!(
            markdown.contains("| client | 2000 | 400 | none: no counters | 12.35 |"),
            "{markdown}"
        );
        assert!(markdown.contains("come to 98 %, 98 %,"), "{markdown}");
    }

    #[test]
    fn the_document_has_steps_and_reasons() {
        let text = document().json().expect("plain fields");
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid");
        let process = &value["lives"][0]["processes"][1];
        assert_eq!(process["process"], "asked");
        assert_eq!(process["steps"][1]["step"], "other: libc");
        assert!(process["cycles"].is_null());
        assert_eq!(value["no_cycles"], "many virtual machines have none");
    }

    /// Whether a row of a table in the document may have this name.
    fn is_known(name: &str) -> bool {
        let rows = ["all", "client", "asking daemon", "serving daemon"];
        let homes = [Home::Kernel, Home::Rest].map(|home| home.name());
        rows.contains(&name)
            || homes.iter().any(|known| known == name)
            || steps::STEPS.iter().any(|step| step.name == name)
            || name.strip_prefix("other: ").is_some_and(|rest| !rest.contains('/'))
    }

    #[test]
    fn the_steps_of_the_document_are_those_of_the_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = fs::read_to_string(root.join(PERFORMANCE)).expect("the document");
        let part = |name: &str| readme::between(&text, name).unwrap_or_else(|| panic!("{name}"));
        let again = "`bench anatomy --docs` writes it again";
        assert_eq!(part("anatomy-steps"), steps::markdown(), "{again}");
        for kind in Kind::ALL {
            let mut seen = BTreeSet::new();
            for line in part(&format!("anatomy-{}", kind.name())).lines() {
                let Some(name) = line.strip_prefix("| ").and_then(|line| line.split(" |").next())
                else {
                    continue;
                };
                if !matches!(name, "step" | "process" | "---") {
                    assert!(is_known(name), "{}: no step {name}: {again}", kind.name());
                    seen.insert(name);
                }
            }
            assert!(seen.contains("all"), "{}: no table: {again}", kind.name());
        }
    }
}
