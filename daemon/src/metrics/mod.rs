//! Metrics: the shards' counts as Prometheus' text.
//!
//! ```text
//!   scrape ──► Question::Observe, one a shard ──► Snapshot ──► Registry::gather ──► text
//! ```
//!
//! Nothing is counted here and nothing of Prometheus is on the data path: a shard adds to arrays of
//! its own ([`piped_report::tally`]) and copies them when it is asked.

mod define;
mod families;
pub(crate) mod listen;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use parking_lot::Mutex;
use piped_control::keyring::Keyring;
use piped_core::units::Nanos;
use prometheus::core::{Collector, Desc};
use prometheus::{Registry, TextEncoder, proto};

use self::families::Snapshot;
use crate::advising;
use crate::arenas::Maker;
use crate::control::Control;
use crate::io::clock;
use crate::limits::METRICS_AGE;
use crate::shard::message::{Message, Question, ShardGone};

pub use self::families::ShardObservation;

/// Content type of the metrics.
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Metrics of the daemon in Prometheus' registry.
#[derive(Debug)]
pub(crate) struct Exposition {
    registry: Registry,
    latest: Latest,
    /// Last text and its time, for scrapes in quick succession.
    text: RefCell<Option<(Nanos, Rc<str>)>>,
}

impl Exposition {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let latest = Latest::default();
        let collector = Described { descriptions: descriptions(), latest: latest.clone() };
        let registered = registry.register(Box::new(collector));
        registered.expect("a test registers the same definitions");
        Self { registry, latest, text: RefCell::default() }
    }

    fn render(&self, snapshot: &Snapshot) -> String {
        *self.latest.0.lock() = snapshot.families();
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text);
        text
    }
}

/// All metrics as they are now.
pub(crate) async fn scrape(control: &Control) -> Result<Rc<str>, ShardGone> {
    let snapshot = observe(control).await?;
    let text: Rc<str> = control.metrics.render(&snapshot).into();
    *control.metrics.text.borrow_mut() = Some((clock::now(), Rc::clone(&text)));
    Ok(text)
}

/// Metrics that are at most [`METRICS_AGE`] old, for a port without access control.
async fn scrape_seldom(control: &Control) -> Result<Rc<str>, ShardGone> {
    let fresh = |&(taken, _): &(Nanos, _)| clock::now().since(taken) < METRICS_AGE;
    let text = control.metrics.text.borrow().as_ref().filter(|it| fresh(it)).map(|it| it.1.clone());
    match text {
        Some(text) => Ok(text),
        None => scrape(control).await,
    }
}

async fn observe(control: &Control) -> Result<Snapshot, ShardGone> {
    let mut shards = Vec::with_capacity(control.shards.len());
    for shard in &control.shards {
        let mut seen = shard.mailbox.ask(|answer| Message::Ask(Question::Observe(answer))).await?;
        seen.early_required_bytes = advising::required(&shard.mailbox).await?;
        shards.push(seen);
    }
    let mut evictions = control.evictions();
    for shard in &shards {
        evictions.iter_mut().zip(shard.evictions).for_each(|(count, more)| *count += more);
    }
    let (config, limits) = (&control.config(), control.limiter.limits());
    let allowed = config.exports.values().flat_map(|export| &export.peers);
    let core = control.core.borrow();
    let sources = core.discovery().sources();
    let sources = sources.map(|(source, heard)| (source.name(), heard.away().is_some())).collect();
    Ok(Snapshot {
        begun: (env!("CARGO_PKG_VERSION"), control.started_unix),
        shards,
        evictions,
        refusals: control.refusals(),
        sent_away: control.sent_away(),
        greetings: control.greetings(),
        sources,
        memory: [
            (control.shared_bytes(Maker::Daemon).0, limits.global.arena.bytes()),
            (control.shared_bytes(Maker::Client).0, limits.global.lent.bytes()),
        ],
        certificate: certificate_left(&core.keyring()),
        known_peers: config
            .peers
            .keys()
            .chain(allowed)
            .cloned()
            .chain(core.peers().names().map(str::to_owned))
            .collect(),
    })
}

/// The share that is left of the time of this node's certificate; 0 without one that counts, none
/// without a cluster.
fn certificate_left(keyring: &Keyring) -> Option<f64> {
    let identity = keyring.identity().filter(|identity| identity.has_cluster())?;
    let now = clock::times().calendar;
    let left = identity.certificate().map_or(0.0, |certificate| {
        let subject = certificate.subject();
        subject.until.since(now) as f64 / subject.until.since(subject.from).max(1) as f64
    });
    Some(left)
}

/// Families of the present scrape.
#[derive(Debug, Clone, Default)]
struct Latest(Arc<Mutex<Vec<proto::MetricFamily>>>);

struct Described {
    descriptions: Vec<Desc>,
    latest: Latest,
}

fn descriptions() -> Vec<Desc> {
    let describe = |it: &&define::Definition| {
        let labels = it.labels.iter().map(|&label| label.to_owned()).collect();
        Desc::new(it.name.to_owned(), it.help.to_owned(), labels, HashMap::new())
    };
    let descriptions: Result<Vec<Desc>, _> = define::ALL.iter().map(describe).collect();
    descriptions.expect("a test makes the same descriptions")
}

impl Collector for Described {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        std::mem::take(&mut self.latest.0.lock())
    }
}

#[cfg(test)]
mod tests;
