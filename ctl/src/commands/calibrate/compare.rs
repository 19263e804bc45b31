//! Compares the daemon's own figures with those measured from outside. Pure.
//!
//! First come the figures that plans are made of: the time of a lone fragment of a size through the
//! whole path, and the rate at which fragments leave its slowest stage. `L`, `g` and `G` are these
//! figures split up. Two lines that agree at every size in use may split differently, so the
//! parameters are shown, but judged by those figures.

use piped_core::modes::CalibrationMode;
use piped_model::estimate::Figure;
use piped_model::estimate::active::{End, Found};
use piped_model::estimate::loggp::Gap;
use piped_report::shard::StageReport;
use serde::Serialize;

use super::target::Target;

/// Confidence of the intervals.
const SURE: f64 = 0.95;
/// Difference at which two figures still agree: a part of the larger, and seconds. Plans are not
/// made anew for less, and clocks and wake-ups scatter as much.
const PART: f64 = 0.10;
const SECONDS: f64 = 2e-6;
/// The daemon's figures do not fit a path of which others used more than this.
const OTHERS: f64 = 0.05;
/// Sizes at which times are compared.
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// `G` is shown as the time of this many bytes.
const SHOWN: f64 = 65_536.0;

/// Facts known beside the measurement.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) mode: CalibrationMode,
    /// Part of the requests or bytes that were others'.
    pub(super) others: f64,
    /// Stages of the path as the daemon has them, in order, before and after.
    pub(super) before: Vec<StageReport>,
    pub(super) after: Vec<StageReport>,
    /// Reason why the run ended early, unless somebody wanted that.
    pub(super) broke_off: Option<String>,
}

/// A path with its compared figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Compared {
    pub(super) path: String,
    pub(super) stages: Vec<String>,
    pub(super) seconds: f64,
    pub(super) used_share: f64,
    pub(super) bytes: u64,
    pub(super) others_share: f64,
    pub(super) end: End,
    pub(super) precise: bool,
    /// Measurements that the others contradict.
    outliers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) broke_off: Option<String>,
    pub(super) rows: Vec<Row>,
    /// Verdict in plain words, with advice.
    pub(super) verdict: String,
}

/// One cost, as the daemon has it and as it was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// Name of the stage, or stages.
    pub(super) stage: String,
    pub(super) cost: String,
    pub(super) live_seconds: Option<f64>,
    /// Half of its 95 % interval.
    pub(super) live_error_seconds: Option<f64>,
    pub(super) active_seconds: f64,
    pub(super) active_error_seconds: Option<f64>,
    pub(super) difference_seconds: Option<f64>,
    pub(super) difference_percent: Option<f64>,
    /// The daemon's figure after it has seen this traffic.
    pub(super) after_seconds: Option<f64>,
    pub(super) verdict: Verdict,
    /// Whether plans are made of the figure, so that it is judged.
    #[serde(skip)]
    pub(super) is_planned_with: bool,
}

impl Row {
    /// Whether at least one of the figures is possible and useful.
    fn is_told(&self) -> bool {
        is_told(self.active_seconds, self.active_error_seconds)
            && self.live_seconds.is_none_or(|live| is_told(live, self.live_error_seconds))
    }

    /// Marks the row as shown only, unless its cost was not told apart.
    fn shown(self) -> Self {
        let verdict = if self.is_told() { Verdict::Shown } else { Verdict::NotTold };
        Self { verdict, ..self }
    }
}

/// Whether a cost is a finding: a negative one is impossible, and one that may as well be zero or
/// twice as much says nothing.
pub(super) fn is_told(seconds: f64, error: Option<f64>) -> bool {
    seconds >= 0.0 && error.is_none_or(|half| half <= seconds)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Agrees,
    Differs,
    /// The daemon has measured nothing of the kind.
    NoLive,
    /// One of the two is negative, or its interval is as wide as itself.
    #[serde(rename = "not-told-apart")]
    NotTold,
    /// The depth of this procedure, and not a stage, may have been the limit.
    Held,
    /// Others used the path meanwhile.
    Busy,
    /// The figure is shown beside the others, and not judged.
    Shown,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Differs => "differs",
            Self::NoLive => "no live",
            Self::NotTold => "not told apart",
            Self::Held => "held",
            Self::Busy => "busy",
            Self::Shown => "",
        }
    }
}

/// A value with half the width of its interval.
type Known = (f64, Option<f64>);

pub(super) fn compare(target: &Target, found: &Found, context: &Context) -> Compared {
    let mut rows = Vec::new();
    let largest = found.black_box.as_ref().map_or(0.0, |it| it.range[1]);
    let sizes = || SIZES.into_iter().filter(|&bytes| bytes as f64 <= largest);
    let row =
        |what: &str, of: fn(&[StageReport], u64) -> Option<Live>, bytes, active: Option<Figure>| {
            let active = interval(active?);
            let (before, after) = (of(&context.before, bytes), of(&context.after, bytes));
            let cost = format!("{what} {}", super::show::size(bytes));
            let row = judged(cost, before, after, active, context);
            Some(Row { is_planned_with: true, ..row })
        };
    rows.extend(sizes().filter_map(|bytes| row("alone", alone, bytes, found.alone(bytes as f64))));
    rows.extend(sizes().filter_map(|bytes| {
        let row = row("busy", busy, bytes, found.busy(bytes as f64))?;
        Some(match (found.is_held(bytes as f64), row.verdict) {
            (true, Verdict::Differs) => Row { verdict: Verdict::Held, ..row },
            _ => row,
        })
    }));
    rows.extend(parameters(found, context));
    rows.extend(network(found, context));
    Compared {
        path: target.to_string(),
        stages: names(&context.after),
        seconds: found.seconds,
        used_share: found.used_seconds / found.seconds.max(1e-9),
        bytes: found.bytes,
        others_share: context.others,
        end: found.end,
        precise: found.precise,
        outliers: found.outliers().0,
        broke_off: context.broke_off.clone(),
        verdict: verdict(&rows, found, context),
        rows,
    }
}

/// The daemon's figure: a value, its error, its stage, and whether it is measured at all.
struct Live {
    seconds: f64,
    error: f64,
    stage: String,
    is_measured: bool,
}

fn names(path: &[StageReport]) -> Vec<String> {
    path.iter().map(|stage| stage.name.clone()).collect()
}

fn is_measured(stage: &StageReport) -> bool {
    stage.samples_alone + stage.samples_backlogged > 0 || stage.reported
}

/// Time through the whole path when it is empty.
fn alone(path: &[StageReport], bytes: u64) -> Option<Live> {
    let mut all = Live { seconds: 0.0, error: 0.0, stage: String::new(), is_measured: true };
    for stage in path {
        let time = stage.times.iter().find(|time| time.bytes == bytes)?;
        all.seconds += time.alone_seconds;
        all.error += stage.relative_error * time.alone_seconds;
        all.is_measured &= is_measured(stage);
    }
    all.stage = whole(path);
    (!path.is_empty()).then_some(all)
}

fn whole(path: &[StageReport]) -> String {
    match path {
        [only] => only.name.clone(),
        _ => "whole path".to_owned(),
    }
}

/// Time between two fragments of the slowest stage.
fn busy(path: &[StageReport], bytes: u64) -> Option<Live> {
    let time = |stage: &StageReport| {
        stage.times.iter().find(|time| time.bytes == bytes).map(|time| time.busy_seconds)
    };
    let slowest = path.iter().filter_map(|stage| Some((stage, time(stage)?)));
    let (stage, seconds) = slowest.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Live {
        seconds,
        error: stage.relative_error * seconds,
        stage: stage.name.clone(),
        is_measured: is_measured(stage),
    })
}

fn interval(figure: Figure) -> Known {
    let half = figure.half_width(SURE);
    (figure.value, half.is_finite().then_some(half))
}

fn judged(
    cost: String,
    before: Option<Live>,
    after: Option<Live>,
    (active, error): Known,
    context: &Context,
) -> Row {
    let is_untold = |live: &Live| !is_told(live.seconds, Some(live.error));
    let verdict = match &before {
        _ if !is_told(active, error) => Verdict::NotTold,
        Some(live) if live.is_measured && is_untold(live) => Verdict::NotTold,
        _ if context.others > OTHERS => Verdict::Busy,
        Some(live) if live.is_measured => match agree(live.seconds, live.error, (active, error)) {
            true => Verdict::Agrees,
            false => Verdict::Differs,
        },
        _ => Verdict::NoLive,
    };
    let stage = before.as_ref().or(after.as_ref()).map_or(String::new(), |it| it.stage.clone());
    let live = before.filter(|live| live.is_measured);
    let difference = live.as_ref().map(|live| active - live.seconds);
    Row {
        stage,
        cost,
        live_seconds: live.as_ref().map(|live| live.seconds),
        live_error_seconds: live.as_ref().map(|live| live.error),
        active_seconds: active,
        active_error_seconds: error,
        difference_seconds: difference,
        difference_percent: live
            .as_ref()
            .zip(difference)
            .and_then(|(live, off)| (live.seconds > 0.0).then(|| off / live.seconds * 100.0)),
        after_seconds: after.filter(|after| after.is_measured).map(|after| after.seconds),
        verdict,
        is_planned_with: false,
    }
}

/// Whether two figures agree, within what is known and what matters.
fn agree(live: f64, live_error: f64, (active, active_error): Known) -> bool {
    let doubt = live_error.hypot(active_error.unwrap_or(0.0));
    (live - active).abs() <= doubt.max(PART * live.max(active)).max(SECONDS)
}

/// Rows of `L`, `g` and `G`, told apart.
fn parameters(found: &Found, context: &Context) -> Vec<Row> {
    let Ok(black_box) = &found.black_box else { return Vec::new() };
    let middle = black_box.bottleneck_at(SHOWN);
    let slowest = |path: &[StageReport]| {
        let name = busy(path, SHOWN as u64)?.stage;
        path.iter().find(|stage| stage.name == name).cloned()
    };
    let of = |path: &[StageReport], value: fn(&StageReport) -> f64| {
        let stage = slowest(path)?;
        let is_measured = is_measured(&stage);
        Some(Live { seconds: value(&stage), error: 0.0, stage: stage.name, is_measured })
    };
    let sum = |path: &[StageReport], value: fn(&StageReport) -> f64| {
        let seconds = path.iter().map(value).sum();
        let is_measured = path.iter().all(is_measured);
        (!path.is_empty()).then(|| Live { seconds, error: 0.0, stage: whole(path), is_measured })
    };
    let shown = |cost: &str, [before, after]: [Option<Live>; 2], active: Known| {
        let row = judged(cost.to_owned(), before, after, active, context);
        Row { live_error_seconds: None, ..row }.shown()
    };
    let both =
        |value: fn(&StageReport) -> f64| [of(&context.before, value), of(&context.after, value)];
    let sums =
        |value: fn(&StageReport) -> f64| [sum(&context.before, value), sum(&context.after, value)];
    let per_byte: fn(&StageReport) -> f64 = |stage| stage.per_byte_seconds * SHOWN;
    let overhead: fn(&StageReport) -> f64 = |stage| stage.overhead_seconds;
    let mut rows = vec![
        shown("g", both(overhead), interval(middle.line.intercept)),
        shown("G x 64 KiB", both(per_byte), interval(middle.line.slope.times(SHOWN))),
    ];
    let ring = found.ring.unwrap_or(Figure::exact(0.0));
    match context.after.len() {
        1 => {
            // With one stage, the time that is not occupied is latency.
            let latency = middle.others_overhead.minus(ring);
            rows.insert(0, shown("L", both(|stage| stage.latency_seconds), interval(latency)));
        }
        _ => {
            let fixed: fn(&StageReport) -> f64 = |it| it.latency_seconds + it.overhead_seconds;
            let total = black_box.total;
            rows.push(shown("sum L+g", sums(fixed), interval(total.intercept.minus(ring))));
            let slope = interval(total.slope.times(SHOWN));
            rows.push(shown("sum G x 64 KiB", sums(per_byte), slope));
        }
    }
    rows
}

/// Rows of the LogGP parameters: an application's processor, with the daemon and all behind it as
/// its network.
fn network(found: &Found, context: &Context) -> Vec<Row> {
    let Some(network) = &found.network else { return Vec::new() };
    let short = found.short_bytes;
    let nothing = |cost: &str, figure: Option<Figure>| {
        let row = judged(cost.to_owned(), None, None, interval(figure?), context);
        Some(Row { stage: "LogGP".to_owned(), ..row }.shown())
    };
    let against = |cost: &str, live: [Option<Live>; 2], figure: Option<Figure>| {
        let [before, after] = live;
        let row = judged(cost.to_owned(), before, after, interval(figure?), context);
        Some(Row { stage: "LogGP".to_owned(), ..row })
    };
    let both =
        |of: &dyn Fn(&[StageReport]) -> Option<Live>| [of(&context.before), of(&context.after)];
    let overhead = network.overhead.map_or(0.0, |it| it.value);
    let ring = found.ring.map_or(0.0, |it| it.value);
    // Half of the round trip, less the processor's part.
    let latency = both(&|path| {
        let all = alone(path, short)?;
        Some(Live { seconds: (all.seconds + ring) / 2.0 - overhead, error: all.error / 2.0, ..all })
    });
    let per_byte = both(&|path| {
        let [low, high] = [busy(path, 64 << 10)?, busy(path, 256 << 10)?];
        let slope = (high.seconds - low.seconds) / (192 << 10) as f64 * SHOWN;
        Some(Live { seconds: slope, error: (low.error + high.error) / 3.0, ..high })
    });
    let gap_live = both(&|path| busy(path, short));
    let gap = match network.gap {
        Gap::Yes { gap } => against("g", gap_live, Some(gap)),
        Gap::BehindWindow { at_most } | Gap::BehindOverhead { at_most } => {
            nothing("g at most", Some(at_most))
        }
        Gap::Unknown { at_most } => nothing("g at most", at_most),
    };
    [
        nothing("o_send", network.send),
        nothing("o_recv", network.receive),
        against("L", latency, network.latency.filter(|_| network.overhead.is_some())),
        gap,
        against("G x 64 KiB", per_byte, network.per_byte.map(|it| it.times(SHOWN))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn verdict(rows: &[Row], found: &Found, context: &Context) -> String {
    let mut words: Vec<String> = Vec::new();
    if context.others > OTHERS {
        words.push(format!(
            "Others made {:.0} % of the traffic meanwhile, so the figures are not comparable: run \
             it again when the path is quiet.",
            context.others * 100.0
        ));
    } else {
        words.push(judgement(rows, context));
    }
    if rows.iter().any(|row| row.verdict == Verdict::Held) {
        words.push(
            "Held: the way is so long that the depth of this procedure, and not a stage, may have \
             been the limit."
                .to_owned(),
        );
    }
    if let (count @ 1.., times) = found.outliers() {
        words.push(format!(
            "Outliers: {count} measurements, up to {times:.1} times as long as by the others; they \
             are left out."
        ));
    }
    if let Some(cause) = &context.broke_off {
        words.push(format!("It broke off, so this is what was known by then: {cause}."));
    } else if !found.precise && found.end != End::Stopped && context.others <= OTHERS {
        words.push(
            "It is not known as well as was wanted: more --seconds or --share would help."
                .to_owned(),
        );
    }
    words.join(" ")
}

/// Verdict on a path that was quiet.
fn judgement(rows: &[Row], context: &Context) -> String {
    let is = |row: &Row, wanted| row.verdict == wanted;
    // The signature beside it says nothing about the sizes that plans choose among.
    let agrees = rows.iter().any(|row| row.is_planned_with && is(row, Verdict::Agrees));
    if rows.iter().any(|row| is(row, Verdict::Differs)) {
        differing(rows, context)
    } else if agrees {
        "They agree: plans rest on what the path costs.".to_owned()
    } else if rows.iter().any(|row| is(row, Verdict::NoLive)) {
        "The daemon had measured nothing of this path yet; it has now.".to_owned()
    } else if rows.iter().any(|row| row.is_planned_with && is(row, Verdict::NotTold)) {
        "The costs of the path were not told apart from scatter, so nothing is judged: give it \
         more --seconds, when this machine is quiet."
            .to_owned()
    } else {
        "Nothing was measured that could be compared: give it more --seconds.".to_owned()
    }
}

fn differing(rows: &[Row], context: &Context) -> String {
    let differing: Vec<&Row> = rows.iter().filter(|row| row.verdict == Verdict::Differs).collect();
    let list: Vec<&str> = differing.iter().map(|row| row.cost.as_str()).collect();
    let list = list.join(", ");
    let follows = differing.iter().all(|row| {
        let error = row.active_error_seconds;
        row.after_seconds.is_some_and(|after| agree(after, 0.0, (row.active_seconds, error)))
    });
    match context.mode {
        CalibrationMode::Frozen | CalibrationMode::Off => format!(
            "They differ ({list}), and the daemon does not follow: `pipectl calibration live` lets \
             it."
        ),
        CalibrationMode::Live if follows => format!(
            "They differed ({list}): the daemon had not seen such traffic of late. It has now, and \
             agrees."
        ),
        CalibrationMode::Live => format!(
            "They differ ({list}). If they do again, look for what else uses the path or for a \
             cost that changes, in `pipectl stages`; plans are compared with what transfers take \
             in any case (`pipectl explain last`)."
        ),
    }
}
