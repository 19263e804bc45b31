//! The page of invented facts: names with markup stay text, and nothing is left out for lack of
//! traffic.

use piped_config::admin::limits::LimitRow;
use piped_config::admin::watch::PeerEntry;
use piped_core::link::LaneClass;
use piped_core::modes::Profile;
use piped_core::request::Class;
use piped_core::status::Status;
use piped_report::histogram::{RATIO_ONE, Ratios};
use piped_report::shard::{Explanation, LaneReport, StageReport, Waiting};
use piped_report::tally::{Company, PlanPath, Tally};
use piped_report::trace::LevelSizes;
use sha2::{Digest, Sha256};

use super::render::{STYLE, html};
use super::{POLICY, Page, Prediction, quantile};

fn empty(node: &str) -> Page {
    Page {
        node: node.to_owned(),
        version: "1.2.3".to_owned(),
        uptime_seconds: 60.0,
        profile: Profile::Balanced,
        tier: Vec::new(),
        degraded: 0,
        stages: Vec::new(),
        last: None,
        predictions: Vec::new(),
        limits: Vec::new(),
        waits: (0, 0),
        peers: Vec::new(),
        shards: Vec::new(),
    }
}

fn stage(name: &str, overhead_seconds: f64, per_byte_seconds: f64) -> StageReport {
    StageReport {
        name: name.to_owned(),
        latency_seconds: 1e-5,
        overhead_seconds,
        per_byte_seconds,
        window: Some(4),
        samples_alone: 5,
        samples_backlogged: 6,
        confidence: 0.5,
        reported: false,
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

fn explanation(levels: Vec<LevelSizes>) -> Explanation {
    Explanation {
        id: 7,
        operation: "read".to_owned(),
        route: "peer -> lane -> client memory".to_owned(),
        bytes: 256 << 10,
        class: Class::Bulk,
        status: Status::Ok,
        planned_here: true,
        stages: vec![stage("disk", 1e-6, 1e-9), stage("net", 2e-6, 5e-9)],
        candidates: Vec::new(),
        chosen: "ramp-up".to_owned(),
        fragment_bytes: 32 << 10,
        shrink_bytes: 0,
        fragments: 6,
        depth: 4,
        predicted_seconds: 2e-3,
        margin_seconds: 1e-4,
        measured_seconds: 3e-3,
        levels,
        passed: Vec::new(),
        bounces: Vec::new(),
        retries: 0,
        sync_seconds: None,
        owed_bytes: 0,
        waiting: None,
        deviation: Some(0.5),
        not_compared: String::new(),
    }
}

fn level(sizes: &[u64], count: u64) -> LevelSizes {
    LevelSizes { level: "lane".to_owned(), sizes: sizes.to_vec(), count }
}

fn peer(name: &str) -> PeerEntry<LaneReport> {
    let lane = LaneReport {
        class: LaneClass::Bulk,
        up: false,
        epoch: 3,
        frames_sent: 1,
        frames_received: 2,
        requests: 0,
        last_loss: None,
        protection: None,
        sums: None,
        pace: None,
        zero_copy: None,
        messages: None,
    };
    PeerEntry {
        shard: 0,
        name: name.to_owned(),
        inbound: true,
        address: None,
        heard_seconds_ago: Some(0.5),
        lanes: vec![lane],
    }
}

/// Others choose their names: a name stays text wherever it stands.
#[test]
fn what_others_call_themselves_is_text() {
    let hostile = r#"</td><script>alert('x')</script>"><img src=x onerror=alert(1)>&amp;{{7*7}}"#;
    let mut page = empty(hostile);
    page.version = hostile.to_owned();
    page.tier = vec![hostile.to_owned()];
    page.stages = vec![stage(hostile, 1.0, 1.0)];
    let mut last = explanation(vec![LevelSizes { level: hostile.to_owned(), ..level(&[1], 1) }]);
    last.stages = vec![stage(hostile, 1.0, 1.0)];
    last.operation = hostile.to_owned();
    last.route = hostile.to_owned();
    last.chosen = hostile.to_owned();
    page.last = Some(last);
    page.peers = vec![peer(hostile)];
    let name = hostile.to_owned();
    page.limits =
        vec![LimitRow { name, is_bytes: true, limit: 9, given: None, used: 10, high: 11 }];
    let html = html(&page);
    for never in ["<script", "<img", "onerror=alert(1)>"] {
        assert!(!html.contains(never), "{never} in\n{html}");
    }
    let escaped = "&lt;script&gt;alert('x')&lt;/script&gt;&quot;&gt;&lt;img src=x";
    assert_eq!(html.matches(escaped).count(), 12, "all of them are shown\n{html}");
}

#[test]
fn a_daemon_that_has_done_nothing_has_a_page() {
    let html = html(&empty("alpha"));
    for part in [
        "<h1>alpha</h1>",
        "all is well",
        "No transfer has ended yet.",
        "No transfer has been predicted yet.",
        "None: neither asked nor served.",
        "None has been used yet.",
    ] {
        assert!(html.contains(part), "no {part} in\n{html}");
    }
}

#[test]
fn a_plan_is_drawn_to_scale_and_its_slowest_stage_is_marked() {
    let sizes = [32 << 10, 32 << 10, 64 << 10];
    let last = explanation(vec![level(&sizes, 5)]);
    let html = html(&Page { last: Some(last), degraded: 2, ..empty("alpha") });
    assert!(html.contains("2 x 32 KiB, 3 x 64 KiB"), "{html}");
    assert_eq!(html.matches(r#"class="piece""#).count(), 5, "{html}");
    // The third of 256 KiB begins at a quarter.
    assert!(html.contains(r#"x="250.0" width="248.0""#), "{html}");
    let slow = html.split(r#"class="stage slow""#).nth(1).expect("one is marked");
    assert!(slow.trim_start_matches('>').starts_with("<strong>net</strong>"), "{slow}");
    assert!(html.contains(r#"<span class="warn">+50 %</span>"#), "beyond the margin\n{html}");
    assert!(html.contains("2 things degraded"), "{html}");
}

#[test]
fn a_plan_of_very_many_fragments_is_one_bar() {
    let last = explanation(vec![level(&[4096], 1 << 40)]);
    let html = html(&Page { last: Some(last), ..empty("alpha") });
    assert!(html.contains("1099511627776 x 4 KiB"), "{html}");
    assert!(html.contains(r#"class="whole piece""#) && html.len() < 20_000, "{}", html.len());
}

#[test]
fn names_on_the_page_reorder_and_hide_nothing() {
    let hostile = "x\u{202e}\u{1b}[2J\u{9b}<b>";
    let page = Page {
        stages: vec![stage(hostile, 1e-6, 1e-9)],
        tier: vec![hostile.to_owned()],
        ..empty(hostile)
    };
    let html = html(&page);
    let seen = |it: char| it != '\n' && (it.is_control() || it == '\u{202e}');
    assert!(!html.contains(seen), "{html:?}");
    let told = "x\\u{202e}\\u{1b}[2J\\u{9b}&lt;b&gt;";
    assert!(html.matches(told).count() >= 3, "{html}");
}

#[test]
fn a_limit_that_nobody_has_used_takes_no_row() {
    let row = |name: &str, limit, used, high| LimitRow {
        name: name.to_owned(),
        is_bytes: false,
        limit,
        given: None,
        used,
        high,
    };
    let limits =
        vec![row("global.handles", 100, 25, 50), row("x", 9, 0, 0), row("client.rate", 0, 1, 1)];
    let html = html(&Page { limits, waits: (3, 4), ..empty("alpha") });
    assert!(html.contains(r#"<rect class="used" width="250.0""#), "{html}");
    assert!(html.contains(r#"<rect class="high" width="500.0""#), "{html}");
    assert!(html.contains("Not used so far: x 9."), "{html}");
    assert!(!html.contains("client.rate"), "0 is no limit\n{html}");
    assert!(html.contains("3 requests wait for a limit, 4 had to."), "{html}");
}

#[test]
fn what_waited_for_others_is_not_held_against_its_prediction() {
    let waiting = Waiting {
        alone: false,
        held_seconds: 0.0,
        held_by: Vec::new(),
        ahead_own: 15,
        ahead_others: 0,
        joined: 0,
        at_peer: false,
        shared_seconds: 51e-3,
        at: "disk 8:0".to_owned(),
        own_seconds: 4e-3,
    };
    let last = Explanation {
        measured_seconds: 55e-3,
        waiting: Some(waiting),
        deviation: None,
        not_compared: "others were there".to_owned(),
        ..explanation(vec![level(&[4096], 1)])
    };
    let mut tally = Tally::default();
    (0..100).for_each(|_| tally.add_prediction((PlanPath::Local, Company::Queued), 100, 2838));
    let predictions: Vec<_> = Prediction::of(PlanPath::Local, &tally).into_iter().collect();
    let page = Page { last: Some(last), predictions, ..empty("alpha") };
    let shown = html(&page);
    assert!(shown.contains("all is well") && !shown.contains(" %</span>"), "{shown}");
    assert!(shown.contains("of that about 51.0 ms waiting"), "{shown}");
    assert!(shown.contains("Not compared: others were there."), "{shown}");
    assert!(shown.contains("<td>0</td>") || shown.contains(">0<"), "none was compared\n{shown}");
}

#[test]
fn the_badge_agrees_with_the_predictions_below_it() {
    let page = |ratio: u64, count: u64| {
        let mut tally = Tally::default();
        for _ in 0..count {
            tally.add_prediction((PlanPath::PeerRead, Company::Alone), 100, ratio);
        }
        let predictions = Prediction::of(PlanPath::PeerRead, &tally).into_iter().collect();
        Page { predictions, ..empty("alpha") }
    };
    assert!(html(&page(110, 1000)).contains("all is well"));
    assert!(html(&page(900, 5)).contains("all is well"), "five are few");
    assert!(html(&page(900, 1000)).contains("transfers take longer than predicted"));
    let last = Explanation { deviation: Some(27.38), ..explanation(vec![level(&[4096], 1)]) };
    let shown = html(&Page { last: Some(last), ..empty("alpha") });
    assert!(shown.contains("+2738 %") && !shown.contains("all is well"), "{shown}");
    assert!(shown.contains("the last transfer took 28 times what was predicted"), "{shown}");
}

#[test]
fn ratios_are_read_as_prometheus_reads_them() {
    assert_eq!(Prediction::of(PlanPath::Local, &Tally::default()), None);
    let mut ratios = Ratios::default();
    for hundredths in 1..=400 {
        ratios.add(hundredths * RATIO_ONE / 100);
    }
    let middle = quantile(&ratios, 0.5);
    assert!((1.9..2.1).contains(&middle), "{middle}");
    let high = quantile(&ratios, 0.95);
    assert!((3.6..4.0).contains(&high), "{high}");
    ratios.add(u64::MAX);
    assert!(quantile(&ratios, 1.0).is_finite());
}

/// The browser takes the style by this hash alone.
#[test]
fn the_policy_names_the_style() {
    let hash = format!("'sha256-{}'", base64(&Sha256::digest(STYLE)));
    assert!(POLICY.contains(&hash), "POLICY must have {hash}");
    assert!(!STYLE.contains("url(") && !STYLE.contains("@import"), "nothing is loaded");
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place > three.len() { '=' } else { char::from(digit) });
        }
    }
    text
}
