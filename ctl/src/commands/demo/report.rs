//! Results of the demo: one document for programs, section by section for people.

use piped_report::shard::StageReport;
use serde::Serialize;

use super::told;
use crate::commands::stages;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

/// All results of the demo.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) file: Moved,
    pub(super) nodes: Vec<NodeFacts>,
    pub(super) notes: Vec<String>,
    pub(super) read: Passed,
    pub(super) copy: Passed,
    pub(super) stages: Vec<NodeStages>,
    pub(super) latencies: Vec<Latency>,
    /// Reads with disk and link slowed down; absent if the file is too small.
    pub(super) slowed: Option<Slowed>,
}

/// The file that was moved.
#[derive(Debug, Default, Serialize)]
pub(super) struct Moved {
    pub(super) path: String,
    pub(super) made: bool,
    pub(super) bytes: u64,
    pub(super) blake3: String,
}

/// Facts about a daemon.
#[derive(Debug, Serialize)]
pub(super) struct NodeFacts {
    pub(super) name: String,
    pub(super) pid: u32,
    pub(super) role: String,
    pub(super) profile: String,
    pub(super) tier: Vec<String>,
    pub(super) degraded: Vec<String>,
}

/// One pass over the whole file.
#[derive(Debug, Default, Serialize)]
pub(super) struct Passed {
    pub(super) verified: bool,
    /// Bytes of the timed pass.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) bytes_per_second: f64,
}

impl Passed {
    pub(super) fn new(verified: bool, bytes: u64, seconds: f64) -> Self {
        Self { verified, bytes, seconds, bytes_per_second: bytes as f64 / seconds }
    }
}

/// The stages as one node knows them.
#[derive(Debug, Serialize)]
pub(super) struct NodeStages {
    pub(super) node: &'static str,
    pub(super) stages: Vec<StageReport>,
}

/// Times for reads of one size, planned and whole.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    pub(super) size_bytes: u64,
    pub(super) rounds: usize,
    pub(super) auto: Planned,
    pub(super) whole: Planned,
    /// Median of the paired ratios `auto / whole`.
    pub(super) ratio: f64,
}

/// Medians of one planner mode.
#[derive(Debug, Serialize)]
pub(super) struct Planned {
    pub(super) measured_seconds: f64,
    /// Plan of the last round; absent if no daemon could explain it.
    pub(super) plan: Option<Plan>,
}

/// The plan that was chosen.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Plan {
    pub(super) algorithm: String,
    /// Size of the first fragment.
    pub(super) fragment_bytes: u64,
    /// Difference in size from each fragment to the next.
    pub(super) shrink_bytes: u64,
    pub(super) fragments: u32,
    pub(super) depth: u32,
    pub(super) predicted_seconds: f64,
    pub(super) margin_seconds: f64,
}

/// Reads over a path that was slowed on purpose: planned, with the best fixed size, and whole.
#[derive(Debug, Serialize)]
pub(super) struct Slowed {
    /// Description of the path.
    pub(super) path: &'static str,
    pub(super) size_bytes: u64,
    pub(super) rounds: usize,
    /// Fixed sizes that were tried.
    pub(super) tried_bytes: Vec<u64>,
    /// The best fixed size.
    pub(super) by_hand_bytes: u64,
    pub(super) auto: Contender,
    pub(super) by_hand: Contender,
    pub(super) whole: Contender,
    /// Spread of the paired ratios.
    pub(super) auto_to_whole: Spread,
    pub(super) auto_to_by_hand: Spread,
    pub(super) by_hand_to_whole: Spread,
}

/// One of the compared planners.
#[derive(Debug, Serialize)]
pub(super) struct Contender {
    pub(super) seconds: Spread,
    /// Plan of the last round; absent if no daemon could explain it.
    pub(super) plan: Option<Plan>,
}

/// Three quartiles of the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) low: f64,
    pub(super) median: f64,
    pub(super) high: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| {
            values.get(values.len().saturating_sub(1) * quarter / 4).copied().unwrap_or(f64::NAN)
        };
        Self { low: at(1), median: at(2), high: at(3) }
    }
}

/// Prints results as they come for people, or all at the end for programs.
#[derive(Debug)]
pub(super) struct Printer<'a> {
    output: &'a Output,
    json: bool,
}

impl<'a> Printer<'a> {
    pub(super) const fn new(output: &'a Output, json: bool) -> Self {
        Self { output, json }
    }

    /// Prints the document for programs, or the last line for people.
    pub(super) fn end(&self, report: &Report) -> Result<(), Failure> {
        if self.json {
            return output::json(report);
        }
        self.output.heading("Done: both daemons are ended, everything made is removed.")?;
        told::next(self.output)
    }

    pub(super) fn nodes(&self, report: &Report) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        let output = self.output;
        let made = if report.file.made { "made for this" } else { report.file.path.as_str() };
        let bytes = units::bytes(report.file.bytes);
        let first =
            format!("piped demo: {bytes} ({made}) from one node to another over TCP on loopback");
        output.prose(&first, 2)?;
        output.heading("Nodes")?;
        let rows = report.nodes.iter().map(|node| {
            vec![
                node.name.to_owned(),
                node.pid.to_string(),
                node.profile.clone(),
                node.role.clone(),
            ]
        });
        let columns = [Text("NODE"), Number("PID"), Text("PROFILE"), Text("ROLE")];
        output.table(&columns, rows.collect())?;
        for node in &report.nodes {
            for sentence in &node.degraded {
                output.prose(&format!("{}: {sentence}", node.name), 2)?;
            }
        }
        report.notes.iter().try_for_each(|note| output.prose(note, 2))
    }

    pub(super) fn moved(&self, title: &str, way: &str, passed: &Passed) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        self.output.heading(title)?;
        self.output.prose(&format!("  {way}"), 2)?;
        let found = format!(
            "  {} in {}: {}; BLAKE3 {}",
            units::bytes(passed.bytes),
            units::seconds(passed.seconds),
            units::rate(passed.bytes_per_second),
            if passed.verified { "equal" } else { "NOT EQUAL" }
        );
        self.output.prose(&found, 2)
    }

    pub(super) fn stages(&self, report: &Report) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        for node in &report.stages {
            self.output.heading(&format!("Stages as {} knows them", node.node))?;
            let known = |stage: &&StageReport| stage.samples_alone + stage.samples_backlogged > 0;
            let stages: Vec<StageReport> = node.stages.iter().filter(known).cloned().collect();
            if stages.is_empty() {
                self.output.line("  none measured")?;
            }
            stages::table(self.output, &stages)?;
        }
        let legend = "L: latency that overlaps, g: overhead of each fragment, 1/G: bandwidth. \
            SAMPLES: of the empty and of the busy stage. *: told by the peer.";
        self.output.prose(legend, 0)
    }

    pub(super) fn latencies(&self, report: &Report) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        let Some(rounds) = report.latencies.first().map(|latency| latency.rounds) else {
            let text = "The file is too small to measure reads of 64 KiB and more.";
            return self.output.prose(text, 0);
        };
        self.output.heading(&format!(
            "Remote reads, from submission to the last byte (medians of {rounds} paired rounds)"
        ))?;
        let columns = [
            Number("SIZE"),
            Text("PLAN"),
            Number("PREDICTED"),
            Number("MEASURED"),
            Number("WHOLE"),
            Number("RATIO"),
        ];
        self.output.table(&columns, report.latencies.iter().map(row).collect())?;
        self.output.prose(
            "WHOLE: the same read unplanned, planner = whole. RATIO: planned / whole. On loopback, \
             beside a fast disk, there is little to gain.",
            0,
        )
    }

    pub(super) fn slowed(&self, report: &Report) -> Result<(), Failure> {
        match &report.slowed {
            _ if self.json => Ok(()),
            Some(slowed) => told::slowed(self.output, slowed),
            None => {
                let text = "The file is too small, or lies on what no dial reaches: no reads over \
                    a slower path.";
                self.output.prose(text, 0)
            }
        }
    }
}

fn row(latency: &Latency) -> Vec<String> {
    let plan = latency.auto.plan.as_ref();
    vec![
        units::bytes(latency.size_bytes),
        plan.map_or_else(|| "-".to_owned(), words),
        plan.map_or_else(|| "-".to_owned(), predicted),
        units::seconds(latency.auto.measured_seconds),
        units::seconds(latency.whole.measured_seconds),
        format!("{:.2}", latency.ratio),
    ]
}

pub(super) fn words(plan: &Plan) -> String {
    let Plan { algorithm, fragments, depth, .. } = plan;
    let first = units::bytes(plan.fragment_bytes);
    match plan.shrink_bytes {
        0 => format!("{algorithm} {fragments} x {first}, depth {depth}"),
        _ => format!("{algorithm} {fragments} from {first} down, depth {depth}"),
    }
}

pub(super) fn predicted(plan: &Plan) -> String {
    units::seconds(plan.predicted_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn sizes_that_fall_are_not_told_as_equal_ones() {
        let mut plan = Plan {
            algorithm: "serial".to_owned(),
            fragment_bytes: 400 << 10,
            shrink_bytes: 96 << 10,
            fragments: 4,
            depth: 1,
            predicted_seconds: 1e-3,
            margin_seconds: 1e-4,
        };
        assert_eq!(words(&plan), "serial 4 from 400 KiB down, depth 1");
        plan.shrink_bytes = 0;
        assert_eq!(words(&plan), "serial 4 x 400 KiB, depth 1");
    }

    #[test]
    fn a_row_of_latencies_fits_in_eighty_columns() {
        let plan = Plan {
            algorithm: "fixed".to_owned(),
            fragment_bytes: 1_500_000,
            shrink_bytes: 0,
            fragments: 128,
            depth: 16,
            predicted_seconds: 12.34e-3,
            margin_seconds: 1.23e-3,
        };
        let planned = |plan| Planned { measured_seconds: 12.34e-3, plan };
        let latency = Latency {
            size_bytes: 16 << 20,
            rounds: 15,
            auto: planned(Some(plan)),
            whole: planned(None),
            ratio: 0.75,
        };
        let columns = [
            Number("SIZE"),
            Text("PLAN"),
            Number("PREDICTED"),
            Number("MEASURED"),
            Number("WHOLE"),
            Number("RATIO"),
        ];
        let text = table::render(&columns, vec![row(&latency)], Some(80));
        assert_eq!(text.lines().count(), 2, "not folded:\n{text}");
    }
}
