//! The last part of the demo for people: the gain of planning on the slowed path, and the next
//! commands to try.

use super::report::{Contender, Slowed, Spread, predicted, words};
use crate::failure::Failure;
use crate::output::Output;
use crate::table::Column::{self, Number, Text};
use crate::units;

/// Columns of the planners' table.
const COLUMNS: [Column; 6] = [
    Text("PLANNER"),
    Text("PLAN"),
    Number("PREDICTED"),
    Number("MEASURED"),
    Number("SPREAD"),
    Number("RATIO"),
];

pub(super) fn slowed(output: &Output, slowed: &Slowed) -> Result<(), Failure> {
    let Slowed { rounds, .. } = slowed;
    output.heading(&format!(
        "The same over a slower path: reads of {} (medians of {rounds} paired rounds)",
        units::bytes(slowed.size_bytes)
    ))?;
    output.prose(&format!("  Dials add {}.", slowed.path), 2)?;
    let by_hand = format!("fixed:{}", short(slowed.by_hand_bytes));
    let rows = vec![
        row("auto".to_owned(), &slowed.auto, slowed.auto_to_whole.median),
        row(by_hand, &slowed.by_hand, slowed.by_hand_to_whole.median),
        row("whole".to_owned(), &slowed.whole, 1.0),
    ];
    output.table(&COLUMNS, rows)?;
    let tried: Vec<String> = slowed.tried_bytes.iter().map(|&bytes| short(bytes)).collect();
    let legend = format!(
        "fixed: the best of {}, tried one by one before. SPREAD: half of the rounds lie within. \
         RATIO: to whole, round by round.",
        tried.join(", ")
    );
    output.prose(&legend, 0)?;
    output.prose(&verdict("whole", slowed.auto_to_whole), 2)?;
    output.prose(&verdict("the best size by hand", slowed.auto_to_by_hand), 2)
}

fn row(name: String, contender: &Contender, ratio: f64) -> Vec<String> {
    let plan = contender.plan.as_ref();
    let Spread { low, median, high } = contender.seconds;
    vec![
        name,
        plan.map_or_else(
            || "-".to_owned(),
            |plan| words(plan).replace(&format!(", depth {}", plan.depth), ""),
        ),
        plan.map_or_else(|| "-".to_owned(), predicted),
        units::seconds(median),
        format!("+- {}", units::seconds((high - low) / 2.0)),
        format!("{ratio:.2}"),
    ]
}

/// Size in the form that `planner` takes.
fn short(bytes: u64) -> String {
    units::bytes(bytes).replace(' ', "")
}

/// Verdict on the ratio, whichever way it went.
fn verdict(other: &str, ratio: Spread) -> String {
    let Spread { low, median, high } = ratio;
    let percent = |ratio: f64| 100.0 * (ratio - 1.0).abs();
    let words = if low <= 1.0 && high >= 1.0 {
        "no difference that the rounds agree on".to_owned()
    } else if median < 1.0 {
        format!("auto took {:.0} % less time", percent(median))
    } else {
        format!("auto did not win: it took {:.0} % more time", percent(median))
    };
    format!("auto / {other}: {median:.2} (half of the rounds {low:.2} to {high:.2}): {words}.")
}

/// Commands to try next, with this program as it was called.
pub(super) fn next(output: &Output) -> Result<(), Failure> {
    let program = std::env::args().next().unwrap_or_else(|| "pipectl".to_owned());
    output.heading("Next")?;
    for (arguments, what) in [
        ("doctor", "is this machine ready for the daemon, and what to do if not"),
        ("simulate --help", "other disks and links, without having them"),
        ("model plan --help", "the plan for stages of your own, and how good it is"),
    ] {
        output.prose(&format!("  {program} {arguments}: {what}"), 4)?;
    }
    output.prose("  docs/operations.md, First steps: two nodes of your own", 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::demo::report::Plan;
    use crate::table;

    #[test]
    fn who_did_not_win_is_not_said_to_have_won() {
        let spread = |low, median, high| Spread { low, median, high };
        let words = |low, median, high| verdict("whole", spread(low, median, high));
        assert!(
            words(0.55, 0.57, 0.6)
                .ends_with("(half of the rounds 0.55 to 0.60): auto took 43 % less time.")
        );
        assert!(words(1.1, 1.2, 1.3).ends_with("auto did not win: it took 20 % more time."));
        for (low, high) in [(0.9, 1.1), (1.0, 1.2), (0.9, 1.0)] {
            assert!(words(low, 1.0, high).ends_with("no difference that the rounds agree on."));
        }
        assert!(words(0.55, 0.57, 0.6).starts_with("auto / whole: 0.57"));
    }

    #[test]
    fn quartiles_are_of_the_values() {
        let five = Spread::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(five, Spread { low: 2.0, median: 3.0, high: 4.0 });
        assert!(Spread::of(Vec::new()).median.is_nan());
    }

    #[test]
    fn a_row_fits_in_eighty_columns() {
        let plan = Plan {
            algorithm: "serial".to_owned(),
            fragment_bytes: 150_000,
            shrink_bytes: 1,
            fragments: 12,
            depth: 16,
            predicted_seconds: 12.34e-3,
            margin_seconds: 1.23e-3,
        };
        let seconds = Spread { low: 12.31e-3, median: 12.34e-3, high: 12.39e-3 };
        let contender = Contender { seconds, plan: Some(plan) };
        let text = table::render(
            &COLUMNS,
            vec![row("fixed:128KiB".to_owned(), &contender, 0.57)],
            Some(80),
        );
        assert!(text.lines().count() <= 3, "folded once at most:\n{text}");
    }
}
