//! `GET /`: an overview for operators, as one page of HTML without scripts or anything to load.
//!
//! The page is also on `[metrics] address`, which asks nobody for a user. So it shows no more than
//! the metrics show, and the plan of a transfer: stages with their costs, sizes, times, limits,
//! names of peers and devices. Clients, their files and the configuration are not on it.

mod render;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use piped_config::admin::limits::LimitRow;
use piped_config::admin::watch::PeerEntry;
use piped_core::modes::Profile;
use piped_report::histogram::{RATIO_ONE, Ratios};
use piped_report::shard::{Explanation, LaneReport, StageReport};
use piped_report::tally::{Company, PlanPath, Tally};

use super::parse::Refused;
use super::{routes, watch};
use crate::control::Control;
use crate::io::clock;
use crate::limiting;
use crate::limits::PAGE_AGE;
use crate::shard::message::{Message, Question, ShardStatus};

/// Nothing is loaded and nothing runs; the one style is known by its hash.
const POLICY: &str = "default-src 'none'; img-src data:; \
                      style-src 'sha256-+ck2OOyXmt1HW3Knvx19QED1f9e897dp7BSeHL7ibnQ='; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Latest transfers that are asked for their plan, because some need none.
const LOOKED_AT: usize = 16;

/// Content of the page at one moment.
#[derive(Debug, Clone)]
struct Page {
    node: String,
    version: String,
    uptime_seconds: f64,
    profile: Profile,
    tier: Vec<String>,
    /// Number of degraded features. Their text may name files, so only users with the right see it.
    degraded: usize,
    stages: Vec<StageReport>,
    /// The last transfer with a plan of this node's, else the last one.
    last: Option<Explanation>,
    predictions: Vec<Prediction>,
    limits: Vec<LimitRow>,
    /// Requests that wait for a limit now, and those that had to.
    waits: (u64, u64),
    peers: Vec<PeerEntry<LaneReport>>,
    shards: Vec<ShardStatus>,
}

/// Measured over predicted latency of a kind of path.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Prediction {
    path: PlanPath,
    /// Transfers that waited for nobody, the only ones compared.
    transfers: u64,
    /// Transfers that had to wait.
    queued: u64,
    median: Option<f64>,
    /// Value below which 95 of 100 are.
    high: Option<f64>,
}

/// Ratio from which on predictions count as off, as for the alert PipedPredictionDrift.
const DRIFT: f64 = 2.0;

/// Number of transfers needed to say so.
const DRIFT_TRANSFERS: u64 = 20;

impl Page {
    /// Describes faults in a few words; nothing if all is well.
    fn trouble(&self) -> Option<String> {
        match self.degraded {
            0 => {}
            1 => return Some("1 thing degraded: pipectl status".to_owned()),
            many => return Some(format!("{many} things degraded: pipectl status")),
        }
        let drifts = |it: &&Prediction| {
            it.transfers >= DRIFT_TRANSFERS && it.median.is_some_and(|median| median > DRIFT)
        };
        if self.predictions.iter().any(|it| drifts(&it)) {
            return Some("transfers take longer than predicted: pipectl explain last".to_owned());
        }
        let last = self.last.as_ref()?.deviation.filter(|by| *by + 1.0 > DRIFT)?;
        Some(format!("the last transfer took {:.0} times what was predicted", last + 1.0))
    }
}

/// The page as an answer.
pub(crate) async fn show(control: &Control) -> Result<Response<Full<Bytes>>, Refused> {
    let now = clock::now();
    let fresh = control.page.borrow().as_ref().filter(|it| now.since(it.0) < PAGE_AGE).cloned();
    let html: Rc<str> = match fresh {
        Some((_, html)) => html,
        None => {
            let html: Rc<str> = render::html(&gather(control).await?).into();
            *control.page.borrow_mut() = Some((now, Rc::clone(&html)));
            html
        }
    };
    let mut reply = Response::new(Full::new(Bytes::copy_from_slice(html.as_bytes())));
    headers(reply.headers_mut());
    Ok(reply)
}

fn headers(headers: &mut HeaderMap) {
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

async fn gather(control: &Control) -> Result<Page, Refused> {
    let status = routes::status(control).await?;
    let limits = limiting::report(control).await?;
    let mut tally = Tally::default();
    for shard in &control.shards {
        let seen = shard.mailbox.ask(|answer| Message::Ask(Question::Observe(answer))).await?;
        tally.merge(&seen.engine.tally);
    }
    let all = PlanPath::ALL.map(|path| Prediction::of(path, &tally));
    Ok(Page {
        node: status.node,
        version: status.version,
        uptime_seconds: status.uptime_seconds,
        profile: status.profile,
        tier: status.tier,
        degraded: status.degraded.len(),
        stages: routes::stages(control).await?,
        last: last(control).await?,
        predictions: all.into_iter().flatten().collect(),
        waits: (limits.waiting, limits.waited),
        limits: limits.limits,
        peers: watch::peers(control).await?.peers,
        shards: status.shards,
    })
}

async fn last(control: &Control) -> Result<Option<Explanation>, Refused> {
    let ended = watch::transfers(control, true).await?.transfers;
    let mut last = None;
    for entry in ended.iter().filter(|entry| entry.transfer.id > 0).take(LOOKED_AT) {
        // A transfer that is forgotten meanwhile is no reason to show nothing.
        let Ok(explanation) = routes::explain(control, Some(entry.transfer.id)).await else {
            continue;
        };
        if !explanation.levels.is_empty() {
            return Ok(Some(*explanation));
        }
        last.get_or_insert(*explanation);
    }
    Ok(last)
}

impl Prediction {
    /// Prediction of a kind of path; none if there was no transfer.
    fn of(path: PlanPath, tally: &Tally) -> Option<Self> {
        let ratios = &tally.predictions[path as usize];
        let queued = tally.predicted[path as usize][Company::Queued as usize];
        let transfers = ratios.count();
        let at = |part: f64| (transfers > 0).then(|| quantile(ratios, part));
        let (median, high) = (at(0.5), at(0.95));
        (transfers + queued > 0).then_some(Self { path, transfers, queued, median, high })
    }
}

/// Quantile by a straight line through its bucket, as Prometheus computes it.
fn quantile(ratios: &Ratios, part: f64) -> f64 {
    let rank = part * ratios.count() as f64;
    let (mut below, mut lower) = (0.0, 0.0);
    for (bound, count) in ratios.buckets() {
        let Some(bound) = bound else { break };
        let (bound, count) = (bound as f64 / RATIO_ONE as f64, count as f64);
        if count > 0.0 && below + count >= rank {
            return lower + (bound - lower) * (rank - below) / count;
        }
        (below, lower) = (below + count, bound);
    }
    // Beyond the last bound.
    lower
}
