//! `pipectl stages`: what every pipeline stage costs, as measured.

use piped_config::admin::{STAGES, Stages};
use piped_engine::report::StageReport;

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

const LEGEND: &str = "L: latency that overlaps with other fragments. g: overhead of each fragment. 1/G: bandwidth. \
                      WIN: most fragments at once. SAMPLES: of an empty and of a busy stage. \
                      CONF: confidence, 0 is a guess. *: reported by a peer.";

const COLUMNS: [Column; 7] = [
    Text("STAGE"),
    Number("L"),
    Number("g"),
    Number("1/G"),
    Number("WIN"),
    Number("SAMPLES"),
    Number("CONF"),
];

/// The table of stages.
pub(crate) fn table(output: &Output, stages: &[StageReport]) -> Result<(), Failure> {
    output.table(&COLUMNS, stages.iter().map(row).collect())
}

/// The sentences that some stages need; one for all that need the same.
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
    })
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
    use super::*;
    use crate::table;

    #[test]
    fn a_stage_fits_in_eighty_columns() {
        let stage = StageReport {
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
        };
        let text = table::render(&COLUMNS, vec![row(&stage)], Some(80));
        assert_eq!(text.lines().count(), 2, "{text}");
        let free = StageReport { per_byte_seconds: 0.0, ..stage };
        assert_eq!(row(&free)[3], "-", "no bandwidth to speak of");
    }
}
