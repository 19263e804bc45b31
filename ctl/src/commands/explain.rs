//! `pipectl explain`: one transfer, what was known, what was chosen, what came out.

use piped_config::admin::{EXPLAIN, Explained};
use piped_engine::report::Explanation;

use crate::admin::Admin;
use crate::args::Which;
use crate::commands::{stages, words};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

pub(crate) fn run(admin: &Admin, output: &Output, which: Which, json: bool) -> Result<(), Failure> {
    let path = path(which);
    if json {
        return output::json(admin.get_raw(&path)?);
    }
    let Explained::<Explanation> { explanation } = admin.get(&path)?;
    print(output, &explanation)
}

fn path(which: Which) -> String {
    match which {
        Which::Last => format!("{EXPLAIN}last"),
        Which::Id(id) => format!("{EXPLAIN}{id}"),
    }
}

fn print(output: &Output, it: &Explanation) -> Result<(), Failure> {
    let what = format!("{} of {}, {}", it.operation, units::bytes(it.bytes), it.route);
    output.prose(&format!("transfer {}: {what}", it.id), 2)?;
    output.field("status", &words::status(it.status))?;
    output.field("plan", &plan(it))?;
    if !it.planned_here {
        let why = "the peer: it holds the data (ask its daemon for the candidates)";
        output.field("planner", why)?;
    }
    if it.predicted_seconds > 0.0 {
        let (predicted, margin) = (it.predicted_seconds, it.margin_seconds);
        let mut text = units::seconds(predicted);
        // Of a peer's plan no margin is told.
        if margin > 0.0 {
            text.push_str(&format!(" +- {}", units::seconds(margin)));
        }
        output.field("predicted", &text)?;
    }
    let measured = format!("{}{}", units::seconds(it.measured_seconds), deviation(it));
    output.field("measured", &measured)?;
    for reason in &it.bounces {
        output.field("copied", reason)?;
    }
    if it.retries > 0 {
        output.field("retries", &it.retries.to_string())?;
    }
    if !it.stages.is_empty() {
        output.heading("Stages as known when it was planned")?;
        stages::table(output, &it.stages)?;
        stages::notes(output, &it.stages)?;
    }
    candidates(output, it)
}

/// The plan in words.
fn plan(it: &Explanation) -> String {
    if it.fragment_bytes == 0 {
        return it.chosen.clone();
    }
    let sizes = fragments(it.fragment_bytes, it.shrink_bytes);
    let sizes = match it.shrink_bytes {
        0 => format!("{} x {sizes}", it.fragments),
        _ => format!("{} fragments, the first {sizes}", it.fragments),
    };
    match it.depth {
        // Of a peer's plan.
        0 => format!("{}: {sizes}", it.chosen),
        depth => format!("{}: {sizes}, {depth} at once", it.chosen),
    }
}

/// Sizes in words: of the first one, and by how much the others are shorter.
fn fragments(first: u64, shrink: u64) -> String {
    match shrink {
        0 => units::bytes(first),
        _ => format!("{}, each {} less", units::bytes(first), units::bytes(shrink)),
    }
}

/// How far off the prediction was.
fn deviation(it: &Explanation) -> String {
    if it.predicted_seconds <= 0.0 || it.measured_seconds <= 0.0 {
        return String::new();
    }
    let percent = (it.measured_seconds / it.predicted_seconds - 1.0) * 100.0;
    format!(" ({percent:+.0} %)")
}

fn candidates(output: &Output, it: &Explanation) -> Result<(), Failure> {
    if it.candidates.is_empty() {
        return Ok(());
    }
    let rows = it
        .candidates
        .iter()
        .map(|candidate| {
            let chosen = candidate.fragment_bytes == it.fragment_bytes
                && candidate.shrink_bytes == it.shrink_bytes
                && candidate.depth == it.depth;
            vec![
                candidate.algorithm.clone(),
                fragments(candidate.fragment_bytes, candidate.shrink_bytes),
                candidate.depth.to_string(),
                units::seconds(candidate.predicted_seconds),
                candidate.measured_seconds.map_or_else(|| "-".to_owned(), units::seconds),
                match (chosen, candidate.vetoed) {
                    (true, true) => "chosen to see whether it is still slower",
                    (true, false) => "chosen",
                    (false, true) => "vetoed: slower in practice",
                    (false, false) => "",
                }
                .to_owned(),
            ]
        })
        .collect();
    output.heading("Candidates")?;
    output.table(
        &[
            Text("PLAN"),
            Number("FRAGMENT"),
            Number("DEPTH"),
            Number("PREDICTED"),
            Number("MEASURED"),
            Text(""),
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use piped_engine::request::{Class, Status};

    use super::*;

    #[test]
    fn sizes_that_fall_say_so() {
        assert_eq!(fragments(65_536, 0), "64 KiB");
        assert_eq!(fragments(409_600, 98_304), "400 KiB, each 96 KiB less");
    }

    #[test]
    fn a_plan_of_the_peers_says_as_much_as_is_known() {
        let it = Explanation {
            id: 1,
            operation: "read".to_owned(),
            route: "peer -> lane -> client memory".to_owned(),
            bytes: 1 << 20,
            class: Class::Latency,
            status: Status::Ok,
            planned_here: false,
            stages: Vec::new(),
            candidates: Vec::new(),
            chosen: "by the peer".to_owned(),
            fragment_bytes: 409_600,
            shrink_bytes: 98_304,
            fragments: 4,
            depth: 1,
            predicted_seconds: 9e-4,
            margin_seconds: 0.0,
            measured_seconds: 1e-3,
            levels: Vec::new(),
            passed: Vec::new(),
            bounces: Vec::new(),
            retries: 0,
        };
        assert_eq!(
            plan(&it),
            "by the peer: 4 fragments, the first 400 KiB, each 96 KiB less, 1 at once"
        );
        let equal = Explanation { shrink_bytes: 0, fragments: 3, ..it.clone() };
        assert_eq!(plan(&equal), "by the peer: 3 x 400 KiB, 1 at once");
        let unknown =
            Explanation { fragment_bytes: 0, shrink_bytes: 0, fragments: 0, depth: 0, ..it };
        assert_eq!(plan(&unknown), "by the peer");
    }

    #[test]
    fn the_path_names_the_transfer() {
        assert_eq!(path(Which::Last), "/v1/explain/last");
        assert_eq!(path(Which::Id(7)), "/v1/explain/7");
    }
}
