//! Tables of the comparison.

use serde::Serialize;

use super::compare::{Compared, Row, is_told};
use crate::failure::Failure;
use crate::output::Output;
use crate::table::Column::{self, Number, Text};
use crate::units;

/// The whole report, for programs.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) paths: &'a [Compared],
}

const COLUMNS: [Column; 6] =
    [Text("COST"), Number("LIVE"), Number("ACTIVE"), Number("DIFF"), Number("us"), Text("VERDICT")];

const LEGEND: &str = "LIVE: as the daemon had it before; ACTIVE: as measured now; each within its \
    95 %; -: none, or below zero, or not known to 100 %. alone: through the empty path; busy: \
    between two fragments of its slowest stage. LogGP: an application's processor, with the daemon \
    as its network. Figures agree within their errors, 10 % or 2 us.";

/// A size for a narrow column.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        it if it >= 1 << 20 => format!("{} MiB", it >> 20),
        it => format!("{} KiB", it >> 10),
    }
}

pub(super) fn print(output: &Output, paths: &[Compared]) -> Result<(), Failure> {
    for (number, path) in paths.iter().enumerate() {
        if number > 0 {
            output.line("")?;
        }
        output.prose(&heading(path), 0)?;
        for group in path.rows.chunk_by(|a, b| a.stage == b.stage) {
            output.heading(&group[0].stage)?;
            output.table(&COLUMNS, group.iter().map(row).collect())?;
        }
        output.line("")?;
        output.prose(&path.verdict, 0)?;
    }
    output.line("")?;
    output.prose(LEGEND, 0)
}

fn heading(path: &Compared) -> String {
    format!(
        "{}: {:.1} s, {} in {:.0} % of the time; others {:.0} %",
        path.path,
        path.seconds,
        units::bytes(path.bytes),
        path.used_share * 100.0,
        path.others_share * 100.0,
    )
}

fn row(row: &Row) -> Vec<String> {
    let none = || "-".to_owned();
    let cost = |seconds, error| is_told(seconds, error).then(|| within(seconds, error));
    let live = row.live_seconds.and_then(|live| cost(live, row.live_error_seconds));
    let active = cost(row.active_seconds, row.active_error_seconds);
    // Figures that were not told apart have no difference either.
    let both = live.is_some() && active.is_some();
    let part = row.difference_percent.filter(|_| both);
    let off = row.difference_seconds.filter(|_| both);
    vec![
        row.cost.clone(),
        live.unwrap_or_else(none),
        active.unwrap_or_else(none),
        part.map_or_else(none, percent),
        off.map_or_else(none, |off| format!("{:+.1}", off * 1e6)),
        row.verdict.name().to_owned(),
    ]
}

/// A cost with half its interval.
fn within(seconds: f64, error: Option<f64>) -> String {
    let part = error.filter(|_| seconds > 0.0).map(|error| error / seconds * 100.0);
    match part {
        Some(part) => format!("{} ±{part:.0}%", units::seconds(seconds)),
        None => units::seconds(seconds),
    }
}

fn percent(percent: f64) -> String {
    match percent.abs() < 999.5 {
        true => format!("{percent:+.1} %"),
        false => "many".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::calibrate::compare::Verdict;
    use crate::table;

    #[test]
    fn a_row_fits_in_eighty_columns() {
        let wide = Row {
            stage: "net beta bulk asked in".to_owned(),
            cost: "sum G x 64 KiB".to_owned(),
            live_seconds: Some(123.4e-3),
            live_error_seconds: Some(123e-3),
            active_seconds: 123.4e-3,
            active_error_seconds: Some(123.4e-3),
            difference_seconds: Some(-123.4e-3),
            difference_percent: Some(-998.0),
            after_seconds: None,
            verdict: Verdict::Differs,
            is_planned_with: false,
        };
        let text = table::render(&COLUMNS, vec![row(&wide)], Some(80));
        assert_eq!(text.lines().count(), 2, "{text}");
        let untold = Row { verdict: Verdict::NotTold, active_seconds: -1e-6, ..wide };
        let text = table::render(&COLUMNS, vec![row(&untold)], Some(80));
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn a_cost_that_cannot_be_or_is_not_known_is_not_printed() {
        let good = Row {
            stage: "LogGP".to_owned(),
            cost: "g".to_owned(),
            live_seconds: Some(4e-6),
            live_error_seconds: Some(1e-6),
            active_seconds: 5e-6,
            active_error_seconds: Some(5e-6),
            difference_seconds: Some(1e-6),
            difference_percent: Some(25.0),
            after_seconds: None,
            verdict: Verdict::Agrees,
            is_planned_with: false,
        };
        assert!(row(&good)[1..5].iter().all(|cell| cell != "-"), "{:?}", row(&good));
        let below = Row { active_seconds: -38.1e-6, active_error_seconds: None, ..good.clone() };
        let wide = Row { active_error_seconds: Some(5.1e-6), ..good.clone() };
        let live = Row { live_error_seconds: Some(4.1e-6), ..good };
        for (bad, place) in [(below, 2), (wide, 2), (live, 1)] {
            let cells = row(&bad);
            for place in [place, 3, 4] {
                assert_eq!(cells[place], "-", "{cells:?}");
            }
        }
    }
}
