//! `pipectl explain`: one transfer with its known costs, chosen plan and measured times.

use piped_config::admin::{EXPLAIN, Explained};
use piped_report::shard::{Candidate, Explanation, Passing, StagePassed, Waiting};
use piped_report::tally::HeldBy;
use piped_report::trace::LevelSizes;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::args::Which;
use crate::commands::certificate::Planned;
use crate::commands::trace::runs;
use crate::commands::{stages, words};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

pub(crate) fn run(
    admin: &Admin,
    output: &Output,
    (which, all): (Which, bool),
    json: bool,
) -> Result<(), Failure> {
    let path = path(which, all);
    if json {
        let mut answer = admin.get_raw(&path)?;
        let told = answer.get("explanation").cloned().unwrap_or_default();
        if let Ok(it) = serde_json::from_value::<Explanation>(told) {
            answer["explanation"]["possible"] = possible_json(&planned(&it));
        }
        return output::json(answer);
    }
    let Explained::<Explanation> { explanation } = admin.get(&path)?;
    print(output, &explanation)
}

fn path(which: Which, all: bool) -> String {
    match which {
        Which::Last if all => format!("{EXPLAIN}any"),
        Which::Last => format!("{EXPLAIN}last"),
        Which::Id(id) => format!("{EXPLAIN}{id}"),
    }
}

fn print(output: &Output, it: &Explanation) -> Result<(), Failure> {
    let what = format!("{} of {}, {}", it.operation, units::bytes(it.bytes), it.route);
    output.prose(&format!("transfer {}: {what}", it.id), 2)?;
    output.field("status", &words::status(it.status))?;
    output.field("plan", &plan(&chosen(it)))?;
    // A transfer without a plan has no candidates.
    if !it.planned_here && it.fragment_bytes > 0 {
        let why = "the peer: it holds the data (ask its daemon for the candidates)";
        output.field("planner", why)?;
    }
    if it.predicted_seconds > 0.0 {
        let (predicted, margin) = (it.predicted_seconds, it.margin_seconds);
        let mut text = units::seconds(predicted);
        // A peer's plan comes without a margin.
        if margin > 0.0 {
            text.push_str(&format!(" +- {}", units::seconds(margin)));
        }
        if it.owed_bytes > 0 {
            text.push_str(&format!(", with {} of credit owed", units::bytes(it.owed_bytes)));
        }
        if let Some(sync) = it.sync_seconds {
            text.push_str(&format!(", {} of it for the sync", units::seconds(sync)));
        }
        output.field("predicted", &text)?;
    }
    if it.planned_here {
        output.field("possible", &possible(&planned(it)))?;
    }
    let measured = format!("{}{}", units::seconds(it.measured_seconds), deviation(it));
    output.field("measured", &measured)?;
    for (name, text) in waiting(it) {
        output.field(name, &text)?;
    }
    for reason in &it.bounces {
        output.field("copied", reason)?;
    }
    if it.retries > 0 {
        output.field("retries", &it.retries.to_string())?;
    }
    passed(output, it)?;
    if !it.stages.is_empty() {
        output.heading("Stages as known when it was planned")?;
        stages::table(output, &it.stages)?;
        stages::notes(output, &it.stages)?;
    }
    let met = |waiting: &Waiting| waiting.ahead_own + waiting.ahead_others + waiting.joined > 0;
    candidates(output, &it.candidates, it.waiting.as_ref().is_some_and(met))
}

/// A plan as it was reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chosen<'a> {
    pub(crate) algorithm: &'a str,
    pub(crate) levels: &'a [LevelSizes],
    pub(crate) fragment_bytes: u64,
    pub(crate) shrink_bytes: u64,
    pub(crate) fragments: u32,
    pub(crate) depth: u32,
}

fn planned(it: &Explanation) -> Planned<'_> {
    let (bytes, depth, owed) = (it.bytes, it.depth, it.owed_bytes);
    Planned { bytes, stages: &it.stages, levels: &it.levels, depth, owed }
}

/// Describes in words how near a plan is to what is possible.
pub(crate) fn possible(it: &Planned<'_>) -> String {
    it.certificate().map_or_else(|why| why, |found| found.to_string())
}

/// A certificate for programs: numbers, or why there are none.
pub(crate) fn possible_json(it: &Planned<'_>) -> Value {
    match it.certificate() {
        Ok(found) => serde_json::to_value(found).unwrap_or_default(),
        Err(why) => json!({ "unknown": why }),
    }
}

fn chosen(it: &Explanation) -> Chosen<'_> {
    Chosen {
        algorithm: &it.chosen,
        levels: &it.levels,
        fragment_bytes: it.fragment_bytes,
        shrink_bytes: it.shrink_bytes,
        fragments: it.fragments,
        depth: it.depth,
    }
}

/// Describes the plan in words.
pub(crate) fn plan(it: &Chosen<'_>) -> String {
    if it.fragment_bytes == 0 {
        return it.algorithm.to_owned();
    }
    if let [_, rest @ ..] = it.levels
        && rest.iter().any(|level| level.sizes != it.levels[0].sizes)
    {
        let level = |one: &LevelSizes| format!("{} {}", one.level, runs(&one.sizes, one.count));
        let levels: Vec<String> = it.levels.iter().map(level).collect();
        return format!("{}: {}; {} at once", it.algorithm, levels.join("; "), it.depth);
    }
    let sizes = fragments(it.fragment_bytes, it.shrink_bytes);
    let sizes = match it.shrink_bytes {
        0 => format!("{} x {sizes}", it.fragments),
        _ => format!("{} fragments, the first {sizes}", it.fragments),
    };
    match it.depth {
        // The plan of a peer.
        0 => format!("{}: {sizes}", it.algorithm),
        depth => format!("{}: {sizes}, {depth} at once", it.algorithm),
    }
}

/// Describes sizes in words: the first one, and by how much the others are shorter.
fn fragments(first: u64, shrink: u64) -> String {
    match shrink {
        0 => units::bytes(first),
        _ => format!("{}, each {} less", units::bytes(first), units::bytes(shrink)),
    }
}

/// Deviation of the time from the prediction.
fn deviation(it: &Explanation) -> String {
    match it.deviation {
        Some(deviation) => format!(" ({:+.0} %)", deviation * 100.0),
        None => String::new(),
    }
}

/// Waiting that is not held against the prediction, with the reasons: fields and their texts.
fn waiting(it: &Explanation) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    if let Some(waiting) = it.waiting.as_ref().filter(|waiting| !waiting.alone) {
        shared(it, waiting, &mut fields);
    }
    if !it.not_compared.is_empty() {
        fields.push(("compared", format!("no: {}", it.not_compared)));
    }
    fields
}

fn shared(it: &Explanation, waiting: &Waiting, fields: &mut Vec<(&'static str, String)>) {
    if !waiting.held_by.is_empty() {
        let by: Vec<&str> = waiting.held_by.iter().map(|&by| held_by(by)).collect();
        let before = units::seconds(waiting.held_seconds);
        fields
            .push(("waited", format!("{before} before it began; held back by {}", by.join(", "))));
    }
    let of = |count: u32, owner: &str| {
        let requests = if count == 1 { "request" } else { "requests" };
        (count > 0).then(|| format!("{count} {requests} {owner}"))
    };
    let party = if it.operation.starts_with("serve ") { "peer" } else { "client" };
    let there = [
        of(waiting.ahead_own, &format!("of the same {party}")),
        of(waiting.ahead_others, "of others"),
    ];
    let there: Vec<String> = there.into_iter().flatten().collect();
    let mut met = Vec::new();
    if !there.is_empty() {
        met.push(format!("behind {}", there.join(" and ")));
    }
    met.extend(of(waiting.joined, "came while it ran"));
    if !met.is_empty() {
        let share = units::seconds(waiting.shared_seconds);
        let at = if waiting.at.is_empty() { String::new() } else { format!(" at {}", waiting.at) };
        fields.push(("shared", format!("about {share} went to others{at}: {}", met.join("; "))));
        fields.push(("own", format!("about {}", units::seconds(waiting.own_seconds))));
    }
}

fn held_by(by: HeldBy) -> &'static str {
    match by {
        HeldBy::Limit => "a limit on requests (`pipectl limits`)",
        HeldBy::Order => "requests of its queue before it",
        HeldBy::Rate => "a rate (`pipectl limits`)",
        HeldBy::Peer => "its peer, to which there was no lane",
    }
}

/// Prints the stages, predicted and measured.
fn passed(output: &Output, it: &Explanation) -> Result<(), Failure> {
    let rows: Vec<Vec<String>> = it.passed.iter().map(passing).collect();
    if rows.is_empty() {
        return Ok(());
    }
    output.heading("Stages, measured and predicted")?;
    let columns = [
        Text("STAGE"),
        Number("FRAGMENTS"),
        Number("BUSY"),
        Number("PREDICTED"),
        Number("LAST LEFT"),
        Number("PREDICTED"),
        Number("CONF"),
    ];
    output.table(&columns, rows)?;
    output.prose(PASSED_LEGEND, 2)
}

const PASSED_LEGEND: &str = "BUSY: how long the stage had a fragment of it, or one waited for it. \
    LAST LEFT: from the start. -: not to be seen from here, or not planned with.";

fn passing(stage: &StagePassed) -> Vec<String> {
    let any = stage.measured.or(stage.predicted);
    let time = |of: Option<Passing>, time: fn(Passing) -> f64| {
        of.map_or_else(|| "-".to_owned(), |of| units::seconds(time(of)))
    };
    vec![
        stage.name.clone(),
        any.map_or_else(|| "-".to_owned(), |any| any.fragments.to_string()),
        time(stage.measured, |of| of.busy_seconds),
        time(stage.predicted, |of| of.busy_seconds),
        time(stage.measured, |of| of.last_seconds),
        time(stage.predicted, |of| of.last_seconds),
        stage.confidence.map_or_else(|| "-".to_owned(), |known| format!("{known:.2}")),
    ]
}

/// Reason why a candidate was chosen, or was not. `in_company`: other requests were there.
fn reason(all: &[Candidate], candidate: &Candidate, in_company: bool) -> String {
    let least =
        |time: fn(&Candidate) -> Option<f64>| all.iter().filter_map(time).min_by(f64::total_cmp);
    let slower = |own: f64, least: f64| format!("{:.0} %", (own / least - 1.0) * 100.0);
    let judged = |one: &Candidate| one.judged_seconds.unwrap_or(one.predicted_seconds);
    let predicted = judged(candidate);
    let fastest = least(|one| one.measured_seconds);
    let promised = all.iter().map(judged).min_by(f64::total_cmp).unwrap_or(predicted);
    match (candidate.chosen, candidate.vetoed, candidate.measured_seconds, fastest) {
        (true, true, ..) if in_company => COMPANY.to_owned(),
        (true, true, ..) => "chosen to see whether it is still slower".to_owned(),
        (true, false, Some(own), Some(fastest)) if own <= fastest => {
            "chosen: the fastest in practice".to_owned()
        }
        (true, false, ..) if predicted <= promised => "chosen: the fastest by the model".to_owned(),
        (true, false, ..) if in_company => COMPANY.to_owned(),
        (true, false, None, Some(_)) => "chosen to see what it takes".to_owned(),
        (true, false, ..) => "chosen: nearly the fastest, in few fragments".to_owned(),
        (false, true, Some(own), Some(fastest)) => {
            format!("vetoed: {} slower in practice", slower(own, fastest))
        }
        (false, true, ..) => "vetoed: slower in practice".to_owned(),
        (false, false, ..) if predicted > promised * 1.005 => {
            format!("{} slower by the model", slower(predicted, promised))
        }
        (false, false, ..) => "as good by the model".to_owned(),
    }
}

const COMPANY: &str = "chosen beside others, which wait less for it";

/// First size of each level, if they are not all alike.
fn levels_of(candidate: &Candidate) -> String {
    let source = candidate.fragment_bytes;
    let others = [candidate.lane_bytes, candidate.sink_bytes];
    if others.iter().all(|&bytes| bytes == 0 || bytes == source) {
        return fragments(source, candidate.shrink_bytes);
    }
    let all = [source, candidate.lane_bytes, candidate.sink_bytes];
    let told: Vec<String> = all.into_iter().filter(|&it| it > 0).map(units::bytes).collect();
    told.join(" / ")
}

/// Prints the table of candidates. `in_company`: other requests were there.
pub(crate) fn candidates(
    output: &Output,
    all: &[Candidate],
    in_company: bool,
) -> Result<(), Failure> {
    if all.is_empty() {
        return Ok(());
    }
    // What plans are judged by where fragments differ is beyond what is predicted.
    let is_judged = all.iter().any(|candidate| candidate.judged_seconds.is_some());
    let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), units::seconds);
    let rows = all
        .iter()
        .map(|candidate| {
            let judged = is_judged.then(|| time(candidate.judged_seconds));
            let cells = [
                Some(candidate.algorithm.clone()),
                Some(levels_of(candidate)),
                Some(candidate.depth.to_string()),
                Some(units::seconds(candidate.predicted_seconds)),
                judged,
                Some(time(candidate.measured_seconds)),
                Some(reason(all, candidate, in_company)),
            ];
            cells.into_iter().flatten().collect()
        })
        .collect();
    let columns = [
        Some(Text("PLAN")),
        Some(Number("FRAGMENT")),
        Some(Number("DEPTH")),
        Some(Number("PREDICTED")),
        is_judged.then_some(Number("JUDGED BY")),
        Some(Number("MEASURED")),
        Some(Text("")),
    ];
    output.heading("Candidates")?;
    output.table(&columns.into_iter().flatten().collect::<Vec<_>>(), rows)
}

#[cfg(test)]
mod tests {
    use piped_core::request::Class;
    use piped_core::status::Status;

    use super::*;

    #[test]
    fn sizes_that_fall_say_so() {
        assert_eq!(fragments(65_536, 0), "64 KiB");
        assert_eq!(fragments(409_600, 98_304), "400 KiB, each 96 KiB less");
    }

    fn explanation() -> Explanation {
        Explanation {
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
            sync_seconds: None,
            owed_bytes: 0,
            waiting: None,
            deviation: Some(0.11),
            not_compared: String::new(),
        }
    }

    #[test]
    fn a_plan_of_the_peers_says_as_much_as_is_known() {
        let it = explanation();
        assert_eq!(
            plan(&chosen(&it)),
            "by the peer: 4 fragments, the first 400 KiB, each 96 KiB less, 1 at once"
        );
        let equal = Explanation { shrink_bytes: 0, fragments: 3, ..it.clone() };
        assert_eq!(plan(&chosen(&equal)), "by the peer: 3 x 400 KiB, 1 at once");
        let unknown =
            Explanation { fragment_bytes: 0, shrink_bytes: 0, fragments: 0, depth: 0, ..it };
        assert_eq!(plan(&chosen(&unknown)), "by the peer");
    }

    fn candidate(predicted: f64, measured: Option<f64>, vetoed: bool) -> Candidate {
        serde_json::from_value(serde_json::json!({
            "algorithm": "fixed",
            "fragment_bytes": 65536,
            "shrink_bytes": 0,
            "depth": 8,
            "predicted_seconds": predicted,
            "measured_seconds": measured,
            "vetoed": vetoed,
        }))
        .expect("a candidate")
    }

    #[test]
    fn why_a_plan_was_chosen_or_not_is_said() {
        let all = [
            candidate(1.0e-3, Some(1.5e-3), true),
            candidate(1.2e-3, Some(1.2e-3), false),
            candidate(1.002e-3, None, false),
            candidate(1.1e-3, Some(1.25e-3), false),
        ];
        let it = Explanation { candidates: all.to_vec(), ..explanation() };
        let says = |index: usize, chosen| {
            let candidate = Candidate { chosen, ..it.candidates[index].clone() };
            reason(&it.candidates, &candidate, false)
        };
        assert_eq!(says(0, false), "vetoed: 25 % slower in practice");
        assert_eq!(says(0, true), "chosen to see whether it is still slower");
        assert_eq!(says(1, true), "chosen: the fastest in practice");
        assert_eq!(says(1, false), "20 % slower by the model");
        assert_eq!(says(2, true), "chosen to see what it takes");
        assert_eq!(says(2, false), "as good by the model");
        let fresh = [Candidate { chosen: true, ..candidate(1e-3, None, false) }];
        assert_eq!(reason(&fresh, &fresh[0], true), "chosen: the fastest by the model");
        let larger = Candidate { chosen: true, ..it.candidates[2].clone() };
        assert_eq!(reason(&it.candidates, &larger, true), COMPANY);
        let nested = Candidate { lane_bytes: 16_384, sink_bytes: 16_384, ..fresh[0].clone() };
        assert_eq!(levels_of(&nested), "64 KiB / 16 KiB / 16 KiB");
        assert_eq!(levels_of(&fresh[0]), "64 KiB");
    }

    #[test]
    fn levels_that_differ_are_told_one_by_one() {
        let level = |name: &str, sizes: &[u64]| LevelSizes {
            level: name.to_owned(),
            sizes: sizes.to_vec(),
            count: sizes.len() as u64,
        };
        let levels = vec![level("source", &[65536; 2]), level("lane", &[4096; 32])];
        let it = Explanation { levels, chosen: "release-curve".to_owned(), ..explanation() };
        assert_eq!(
            plan(&chosen(&it)),
            "release-curve: source 2 x 64 KiB; lane 32 x 4 KiB; 1 at once"
        );
    }

    #[test]
    fn what_is_not_certified_says_why_in_words_and_for_programs() {
        let it = Explanation { planned_here: true, ..explanation() };
        let why = "not known: this node did not plan it";
        assert_eq!(possible(&planned(&it)), why);
        assert_eq!(possible_json(&planned(&it)), json!({ "unknown": why }));
    }

    #[test]
    fn a_stage_that_is_not_to_be_seen_says_so() {
        let seen = Passing { fragments: 4, busy_seconds: 1e-3, last_seconds: 2e-3 };
        let stage = StagePassed {
            name: "disk".to_owned(),
            measured: Some(seen),
            predicted: None,
            confidence: None,
        };
        assert_eq!(passing(&stage), ["disk", "4", "1.00 ms", "-", "2.00 ms", "-", "-"]);
    }

    #[test]
    fn waiting_is_split_off_and_what_is_not_compared_says_why() {
        let waiting = Waiting {
            alone: false,
            held_seconds: 1e-3,
            held_by: vec![HeldBy::Limit],
            ahead_own: 15,
            ahead_others: 2,
            joined: 1,
            at_peer: false,
            shared_seconds: 10.9e-3,
            at: "disk 254:0".to_owned(),
            own_seconds: 1.1e-3,
        };
        let it = Explanation {
            waiting: Some(waiting.clone()),
            deviation: None,
            not_compared: "others were there".to_owned(),
            ..explanation()
        };
        assert_eq!(
            waiting_fields(&it),
            [
                "waited: 1.00 ms before it began; held back by a limit on requests (`pipectl \
                 limits`)",
                "shared: about 10.9 ms went to others at disk 254:0: behind 15 requests of the \
                 same client and 2 requests of others; 1 request came while it ran",
                "own: about 1.10 ms",
                "compared: no: others were there",
            ]
        );
        assert_eq!(deviation(&it), "", "no percentage");
        // Alone there is nothing to split off, and the time is its own.
        let waiting = Waiting { alone: true, held_by: Vec::new(), ..waiting };
        let it = Explanation { waiting: Some(waiting), ..explanation() };
        assert!(waiting_fields(&it).is_empty());
        assert_eq!(deviation(&it), " (+11 %)");
    }

    fn waiting_fields(it: &Explanation) -> Vec<String> {
        waiting(it).into_iter().map(|(name, text)| format!("{name}: {text}")).collect()
    }

    #[test]
    fn the_path_names_the_transfer() {
        assert_eq!(path(Which::Last, false), "/v1/explain/last");
        assert_eq!(path(Which::Last, true), "/v1/explain/any");
        assert_eq!(path(Which::Id(7), false), "/v1/explain/7");
    }
}
