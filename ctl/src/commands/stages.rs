//! `pipectl stages`: the measured costs of every pipeline stage.

use piped_config::admin::{STAGES, Stages};
use piped_report::shard::StageReport;

use crate::admin::Admin;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{self, Number, Text};
use crate::units;

pub(crate) fn run(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(STAGES)?);
    }
    let Stages::<StageReport> { stages } = admin.get(STAGES)?;
    if stages.is_empty() {
        return output
            .prose("No stage has been used yet: stages appear with the first transfer.", 0);
    }
    table(output, &stages)?;
    output.line("")?;
    notes(output, &stages)?;
    output.prose(LEGEND, 0)
}

const LEGEND: &str = "L: latency that overlaps with other fragments. g: overhead of each fragment. \
    1/G: bandwidth. WIN: most fragments at once. SAMPLES: of an empty and of a busy stage. CONF: \
    confidence, 0 is a guess. *: reported by a peer.";

const COLUMNS: [Column; 7] = [
    Text("STAGE"),
    Number("L"),
    Number("g"),
    Number("1/G"),
    Number("WIN"),
    Number("SAMPLES"),
    Number("CONF"),
];

/// Prints the table of stages.
pub(crate) fn table(output: &Output, stages: &[StageReport]) -> Result<(), Failure> {
    output.table(&COLUMNS, stages.iter().map(row).collect())
}

/// Prints the notes that some stages need; one for all that need the same.
pub(crate) fn notes(output: &Output, stages: &[StageReport]) -> Result<(), Failure> {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for stage in stages.iter().filter(|stage| !stage.note.is_empty()) {
        match notes.iter_mut().find(|(note, _)| *note == stage.note) {
            Some((_, names)) => names.push(&stage.name),
            None => notes.push((&stage.note, vec![&stage.name])),
        }
    }
    notes.iter().try_for_each(|(note, names)| {
        let names = if names.len() == stages.len() { "all".to_owned() } else { names.join(", ") };
        output.prose(&format!("{names}: {note}"), 2)
    })?;
    served(stages).iter().try_for_each(|line| output.prose(line, 2))
}

/// Stages with one server: those by construction in one line, measured ones in a line each.
fn served(stages: &[StageReport]) -> Vec<String> {
    let constructed = |stage: &&StageReport| stage.with.iter().any(|it| it.measured.is_none());
    let mut names: Vec<&str> =
        stages.iter().filter(constructed).map(|stage| stage.name.as_str()).collect();
    // A path may pass a stage twice.
    names.dedup();
    let mut lines = Vec::new();
    if names.len() > 1 {
        lines.push(format!("{}: one server, the shard's thread", names.join(", ")));
    }
    for stage in stages {
        for with in &stage.with {
            let Some([slope, error, groups]) = with.measured else { continue };
            let verdict = match with.one_server {
                true => "served by the shard's thread",
                false => "not served by the shard's thread",
            };
            lines.push(format!(
                "{}: {verdict}: {:.0} % ±{:.0} of that work shows between its departures \
                 ({groups:.0} groups)",
                stage.name,
                slope * 100.0,
                error * 196.0,
            ));
        }
    }
    lines
}

fn row(stage: &StageReport) -> Vec<String> {
    vec![
        format!("{}{}", stage.name, if stage.reported { "*" } else { "" }),
        units::seconds(stage.latency_seconds),
        units::seconds(stage.overhead_seconds),
        units::rate(1.0 / stage.per_byte_seconds),
        stage.window.map_or_else(|| "-".to_owned(), |window| window.to_string()),
        format!("{}/{}", units::short(stage.samples_alone), units::short(stage.samples_backlogged)),
        format!("{:.2}", stage.confidence),
    ]
}

#[cfg(test)]
mod tests {
    use piped_report::shard::ServedWith;

    use super::*;
    use crate::table;

    #[test]
    fn who_has_one_server_is_said_with_the_evidence() {
        let with = |name: &str, one_server, measured| ServedWith {
            name: name.to_owned(),
            one_server,
            measured,
        };
        let stage = |name: &str, with| StageReport { name: name.to_owned(), with, ..stage() };
        let thread = || vec![with("thread", true, None)];
        let lines = served(&[
            stage("check", thread()),
            stage("copy", thread()),
            stage("net beta bulk asked in", vec![with("thread", false, Some([0.02, 0.01, 300.0]))]),
            stage("net gamma bulk asked in", vec![with("thread", true, Some([0.98, 0.03, 40.0]))]),
        ]);
        assert_eq!(lines[0], "check, copy: one server, the shard's thread");
        assert!(lines[1].contains("not served by the shard's thread: 2 % ±2"), "{}", lines[1]);
        assert!(lines[2].contains("served by the shard's thread: 98 % ±6"), "{}", lines[2]);
        assert_eq!(served(&[stage("check", thread())]), [""; 0], "nothing to share with");
    }

    #[test]
    fn a_stage_fits_in_eighty_columns() {
        let stage = stage();
        let text = table::render(&COLUMNS, vec![row(&stage)], Some(80));
        assert_eq!(text.lines().count(), 2, "{text}");
        let free = StageReport { per_byte_seconds: 0.0, ..stage };
        assert_eq!(row(&free)[3], "-", "no bandwidth to speak of");
    }

    fn stage() -> StageReport {
        StageReport {
            name: "net beta latency asked out".to_owned(),
            latency_seconds: 123.4e-6,
            overhead_seconds: 12.3e-6,
            per_byte_seconds: 1.0 / 1.5e9,
            window: Some(128),
            samples_alone: 123_456,
            samples_backlogged: 123_456,
            confidence: 0.95,
            reported: true,
            kept: false,
            note: String::new(),
            times: Vec::new(),
            relative_error: 0.0,
            with: Vec::new(),
            lines: Vec::new(),
            at_device: false,
            held: None,
        }
    }
}
