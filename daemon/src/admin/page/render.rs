//! Renders the page as HTML. The macro escapes every word, because names come from peers.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use piped_config::admin::limits::LimitRow;
use piped_config::admin::watch::PeerEntry;
use piped_config::units;
use piped_report::shard::{Explanation, LaneReport, StageReport};
use piped_report::tally::PlanPath;
use piped_report::trace::LevelSizes;
use piped_text::shown_lines;

use super::{Page, Prediction};
use crate::shard::message::ShardStatus;

/// The one style of the page; `POLICY` has its hash.
pub(super) const STYLE: &str = include_str!("style.css");

/// Seconds until the page is loaded again.
const REFRESH_SECONDS: u32 = 5;

/// Most fragments that are drawn one by one; of more only the sum is drawn.
const DRAWN_MAX: u64 = 128;

/// Width of a drawing in its own units.
const WIDTH: f64 = 1000.0;

pub(super) fn html(page: &Page) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="refresh" content=(REFRESH_SECONDS);
                title { (page.node) " · piped" }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head(page))
                main {
                    (path(page.last.as_ref()))
                    (predictions(&page.predictions))
                    (limits(&page.limits, page.waits))
                    (peers(&page.peers))
                    (stages(&page.stages))
                    (shards(&page.shards))
                }
                footer {
                    "Loaded anew every " (REFRESH_SECONDS) " s. The same for programs: "
                    a href="/metrics" { "/metrics" }
                    ". More: pipectl status, explain, limits, peers, doctor."
                }
            }
        }
    };
    // The macro escapes HTML; characters that reorder or hide text are escaped in the whole page.
    shown_lines(&document.into_string()).into_owned()
}

fn head(page: &Page) -> Markup {
    html! {
        header {
            h1 { (page.node) }
            @match page.trouble() {
                None => span.state.good { "all is well" },
                Some(trouble) => span.state.warn { (trouble) },
            }
            span.soft {
                "piped " (page.version) ", up " (units::uptime(page.uptime_seconds)) ", profile "
                (page.profile)
            }
        }
        p.soft {
            "io_uring: "
            @if page.tier.is_empty() { "plain" } @else { (page.tier.join(", ")) }
        }
    }
}

/// Path of the last transfer with its stages, its plan, and its result.
fn path(last: Option<&Explanation>) -> Markup {
    let Some(it) = last else {
        return html! {
            section #path { h2 { "The path" } p.soft { "No transfer has ended yet." } }
        };
    };
    let slowest = slowest(it);
    html! {
        section #path {
            h2 { "The path: " (it.operation) " of " (units::bytes(it.bytes)) ", " (it.route) }
            @if it.stages.is_empty() {
                p.soft {
                    @if it.planned_here { "It passed no stage that is measured." }
                    @else { "Planned by the peer, which holds the data." }
                }
            }
            ol.path {
                @for (place, stage) in it.stages.iter().enumerate() {
                    li.stage.slow[Some(place) == slowest] {
                        strong { (stage.name) }
                        (costs(stage))
                        @if Some(place) == slowest { span.warn { "the slowest for these sizes" } }
                    }
                }
            }
        }
        section #plan {
            h2 { "Its plan: " (it.chosen) }
            @for level in &it.levels { (level_sizes(level, it.bytes)) }
            @if it.levels.is_empty() && it.fragment_bytes > 0 {
                p { (it.fragments) " fragments, the first of " (units::bytes(it.fragment_bytes)) }
            }
            @if it.depth > 0 { p.soft { (it.depth) " at once at the first stage" } }
            (promise(it))
        }
    }
}

/// Stage that a fragment of the plan occupies longest.
fn slowest(it: &Explanation) -> Option<usize> {
    let occupied = |stage: &StageReport| {
        stage.overhead_seconds + stage.per_byte_seconds * it.fragment_bytes as f64
    };
    let all = it.stages.iter().enumerate();
    all.max_by(|a, b| occupied(a.1).total_cmp(&occupied(b.1))).map(|(place, _)| place)
}

fn costs(stage: &StageReport) -> Markup {
    html! {
        dl {
            dt { abbr title="latency that overlaps with other fragments" { "L" } }
            dd { (units::seconds(stage.latency_seconds)) }
            dt { abbr title="overhead of each fragment" { "g" } }
            dd { (units::seconds(stage.overhead_seconds)) }
            dt { abbr title="time of each byte, as bandwidth" { "1/G" } }
            dd { (bandwidth(stage.per_byte_seconds)) }
            dt { abbr title="how well it is known: 0 is a guess" { "known" } }
            dd { (format!("{:.2}", stage.confidence)) }
        }
    }
}

fn bandwidth(per_byte_seconds: f64) -> String {
    units::rate(1.0 / per_byte_seconds)
}

/// Fragments of a level, drawn to scale.
fn level_sizes(level: &LevelSizes, bytes: u64) -> Markup {
    let last = level.sizes.last().copied().unwrap_or(bytes);
    let size = |place: u64| level.sizes.get(place as usize).copied().unwrap_or(last);
    let scale = WIDTH / bytes.max(1) as f64;
    let mut start = 0.0;
    let drawn = (0..level.count).take_while(|_| level.count <= DRAWN_MAX).map(|place| {
        let length = size(place) as f64 * scale;
        start += length;
        (start - length, length)
    });
    let drawn: Vec<(f64, f64)> = drawn.collect();
    html! {
        figure {
            figcaption { span { (level.level) } span.soft { (runs(level)) } }
            svg viewBox="0 0 1000 16" preserveAspectRatio="none" role="img"
                aria-label=(runs(level)) {
                rect.whole.piece[drawn.is_empty()] width="1000" height="16" {}
                @for (x, length) in drawn {
                    // A gap between neighbours, unless they are too short for one.
                    rect.piece x=(number(x)) width=(number((length - 2.0).max(length * 0.7)))
                        height="16" {}
                }
            }
        }
    }
}

/// Sizes such as `3 x 64 KiB, 2 x 32 KiB`, with equal neighbours together.
fn runs(level: &LevelSizes) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &size in &level.sizes {
        match runs.last_mut() {
            Some((count, of)) if *of == size => *count += 1,
            _ => runs.push((1, size)),
        }
    }
    let told = level.sizes.len() as u64;
    if let Some((count, _)) = runs.last_mut() {
        *count += level.count.saturating_sub(told);
    }
    let words = |&(count, size): &(u64, u64)| format!("{count} x {}", units::bytes(size));
    let shown: Vec<String> = runs.iter().take(6).map(words).collect();
    let more =
        if runs.len() > 6 { format!(" ... of {} fragments", level.count) } else { String::new() };
    shown.join(", ") + &more
}

/// Predicted time with its margin, against the measured one.
fn promise(it: &Explanation) -> Markup {
    let (predicted, margin, measured) =
        (it.predicted_seconds, it.margin_seconds, it.measured_seconds);
    if predicted <= 0.0 || measured <= 0.0 {
        return html! { p { "took " (units::seconds(measured)) } };
    }
    let Some(deviation) = it.deviation else {
        return not_compared(it);
    };
    // Only its own time, without waiting.
    let measured = predicted * (1.0 + deviation);
    let scale = WIDTH / (predicted + margin).max(measured);
    let inside = (measured - predicted).abs() <= margin;
    let percent = deviation * 100.0;
    html! {
        figure {
            figcaption {
                span { "predicted " (units::seconds(predicted)) " ± " (units::seconds(margin)) }
                span { "measured " (units::seconds(measured)) ", "
                    span class=(if inside { "good" } else { "warn" }) {
                        (format!("{percent:+.0} %"))
                    }
                }
            }
            svg viewBox="0 0 1000 16" preserveAspectRatio="none" role="img"
                aria-label="predicted and measured" {
                rect.whole width="1000" height="16" {}
                rect.margin x=(number((predicted - margin).max(0.0) * scale)) height="7"
                    width=(number((predicted + margin - (predicted - margin).max(0.0)) * scale)) {}
                rect.used width=(number((predicted * scale).max(2.0))) height="4" y="1.5" {}
                rect.measured width=(number((measured * scale).max(2.0))) height="7" y="9" {}
            }
        }
    }
}

/// Reasons why a transfer waited; a figure would blame the prediction.
fn not_compared(it: &Explanation) -> Markup {
    let waiting = it.waiting.as_ref();
    let waited = waiting.map_or(0.0, |it| it.held_seconds + it.shared_seconds);
    html! {
        p { "predicted " (units::seconds(it.predicted_seconds)) " where nobody else is, measured "
            (units::seconds(it.measured_seconds))
            @if waited > 0.0 { ", of that about " (units::seconds(waited)) " waiting" } }
        p.soft { "Not compared: " (it.not_compared) "." }
    }
}

/// Number in a drawing.
fn number(value: f64) -> String {
    format!("{value:.1}")
}

fn predictions(all: &[Prediction]) -> Markup {
    let name = |path| match path {
        PlanPath::Local => "local",
        PlanPath::PeerWrite => "to a peer",
        PlanPath::PeerRead => "from a peer",
    };
    html! {
        section #predictions {
            h2 { "Prediction against measurement" }
            @if all.is_empty() { p.soft { "No transfer has been predicted yet." } } @else {
                (table(
                    &["path", "#alone", "#median", "#95 of 100 below", "#with others"],
                    all.iter().map(|it| vec![
                        text(name(it.path)),
                        text(&units::count(it.transfers)),
                        text(&it.median.map_or_else(|| String::from("-"), |at| format!("{at:.2}"))),
                        text(&it.high.map_or_else(|| String::from("-"), |at| format!("{at:.2}"))),
                        text(&units::count(it.queued)),
                    ])
                ))
                p.soft {
                    "Measured over predicted, since the start, of transfers that waited for \
                     nobody: "
                    "1.00 is as promised. Predictions do not know of others; transfers that had "
                    "company or were held back are counted and not compared."
                }
            }
        }
    }
}

fn limits(rows: &[LimitRow], (waiting, waited): (u64, u64)) -> Markup {
    let amount = |row: &LimitRow, value| {
        if row.is_bytes { units::bytes(value) } else { units::count(value) }
    };
    // A rate of 0 is no limit.
    let bounded = || rows.iter().filter(|row| row.limit > 0);
    let idle = bounded().filter(|row| row.high == 0);
    let idle: Vec<String> =
        idle.map(|row| format!("{} {}", row.name, amount(row, row.limit))).collect();
    html! {
        section #limits {
            h2 { "Limits" }
            (table(
                &["limit", "#used", "#most", "#allowed", ""],
                bounded().filter(|row| row.high > 0).map(|row| vec![
                    text(&row.name),
                    text(&amount(row, row.used)),
                    text(&amount(row, row.high)),
                    text(&amount(row, row.limit)),
                    meter(row),
                ])
            ))
            @if !idle.is_empty() { p.soft { "Not used so far: " (idle.join(", ")) "." } }
            p.soft {
                (units::count(waiting)) " requests wait for a limit, "
                (units::count(waited)) " had to."
            }
        }
    }
}

fn meter(row: &LimitRow) -> Markup {
    let part = |value: u64| number(WIDTH * (value as f64 / row.limit.max(1) as f64).min(1.0));
    html! {
        div.meter {
            svg viewBox="0 0 1000 8" preserveAspectRatio="none" aria-hidden="true" {
                rect.whole width="1000" height="8" {}
                rect.high width=(part(row.high)) height="8" {}
                rect.used width=(part(row.used)) height="8" {}
            }
        }
    }
}

fn peers(all: &[PeerEntry<LaneReport>]) -> Markup {
    let lanes = all.iter().flat_map(|peer| peer.lanes.iter().map(move |lane| (peer, lane)));
    html! {
        section #peers {
            h2 { "Peers" }
            @if all.is_empty() { p.soft { "None: neither asked nor served." } } @else {
                (table(&["peer", "role", "lane", "state", "#epoch", "#out", "#in", "last lost"],
                    lanes.map(|(peer, lane)| vec![
                        text(&peer.name),
                        text(if peer.inbound { "asks us" } else { "is asked" }),
                        text(lane.class.name()),
                        html! { @if lane.up { span.good { "up" } } @else { span.bad { "down" } } },
                        text(&lane.epoch.to_string()),
                        text(&units::count(lane.frames_sent)),
                        text(&units::count(lane.frames_received)),
                        text(&lane.last_loss.map_or("-", |loss| loss.name()).replace('_', " ")),
                    ])))
            }
        }
    }
}

fn stages(all: &[StageReport]) -> Markup {
    html! {
        section #stages {
            h2 { "All stages" }
            @if all.is_empty() { p.soft { "None has been used yet." } } @else {
                (table(
                    &["stage", "#L", "#g", "#1/G", "#window", "#samples", "#known"],
                    all.iter().map(|it| vec![
                        text(&it.name),
                        text(&units::seconds(it.latency_seconds)),
                        text(&units::seconds(it.overhead_seconds)),
                        text(&bandwidth(it.per_byte_seconds)),
                        text(&it.window.map_or_else(|| "-".to_owned(), |it| it.to_string())),
                        text(&units::count(it.samples_alone + it.samples_backlogged)),
                        text(&format!("{:.2}", it.confidence)),
                    ])
                ))
            }
        }
    }
}

fn shards(all: &[ShardStatus]) -> Markup {
    html! {
        section #shards {
            h2 { "Shards" }
            (table(
                &[
                    "shard",
                    "#sessions",
                    "#transfers",
                    "#serves",
                    "#staging",
                    "#turns",
                    "#sleeps",
                    "#system calls",
                ],
                all.iter().enumerate().map(|(place, it)| vec![
                    text(&place.to_string()),
                    text(&it.engine.sessions.to_string()),
                    text(&it.engine.transfers.to_string()),
                    text(&it.engine.serves.to_string()),
                    text(&format!(
                        "{} of {}",
                        units::bytes(it.engine.staging_used_bytes),
                        units::bytes(it.engine.staging_bytes)
                    )),
                    text(&units::count(it.reactor.turns)),
                    text(&units::count(it.reactor.sleeps)),
                    text(&units::count(it.reactor.syscalls)),
                ])
            ))
        }
    }
}

fn text(words: &str) -> Markup {
    html! { span { (words) } }
}

/// A table; columns of numbers have a `#` before their names. Narrow windows show it as a list,
/// where each cell has its column's name.
fn table(columns: &[&str], rows: impl Iterator<Item = Vec<Markup>>) -> Markup {
    let names: Vec<(&str, bool)> =
        columns.iter().map(|name| (name.trim_start_matches('#'), name.starts_with('#'))).collect();
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        @for (name, is_number) in &names {
                            th class=[is_number.then_some("number")] { (name) }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for (cell, (name, is_number)) in row.iter().zip(&names) {
                                td class=[is_number.then_some("number")] data-of=(name) { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}
