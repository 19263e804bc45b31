//! Sources of discovery, asked again and again: where peers are is decided in
//! [`piped_control::discovery`].

mod dns;
mod etcd;
mod files;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use piped_config::{Found, Revocations};
use piped_control::discovery::Source;
use piped_control::journal::{Cause, Party};
use piped_core::units::Nanos;
use piped_text::shown;
use tokio::sync::oneshot;

use crate::cluster;
use crate::control::Control;
use crate::io::clock;

/// Most lines about entries of one source that name no node.
const WRONG_MAX: usize = 16;
/// Letters of a text that others wrote.
const TEXT_MAX: usize = 240;

/// Clients are let in when each source has spoken, or after this time: what a client had open at a
/// peer is opened again as soon as the daemon is there, and the peer must be known by then.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Has all sources of the configuration asked for as long as the daemon runs. Returns when they
/// have spoken for the first time, or could have.
pub(crate) async fn follow(control: &Rc<Control>) {
    let discovery = control.config().discovery.clone();
    let mut first = Vec::new();
    let mut ear = |source| {
        let (spoken, hears) = oneshot::channel();
        first.push(hears);
        let (control, last) = (Rc::clone(control), Wrong::default());
        Ear { control, source, last, spoken: Some(spoken) }
    };
    if !discovery.files.as_os_str().is_empty() {
        spawn(control, files::follow(ear(Source::Files), discovery.files.clone()));
    }
    if !discovery.dns.is_empty() {
        let (name, servers) = (discovery.dns.clone(), discovery.dns_servers.clone());
        spawn(control, dns::follow(ear(Source::Dns), name, servers));
    }
    if !discovery.etcd.endpoints.is_empty() {
        spawn(control, etcd::follow(ear(Source::Etcd), discovery.etcd));
    }
    let all = async {
        for hears in first {
            // A source that ends without a word will not speak.
            let _ = hears.await;
        }
    };
    if tokio::time::timeout(FIRST_WORD, all).await.is_err() {
        tracing::warn!("discovery: a source has not spoken yet; its peers are not known");
    }
}

/// Runs a source until the daemon stops.
fn spawn(control: &Rc<Control>, follow: impl Future<Output = ()> + 'static) {
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        tokio::select! {
            () = control.stopped() => {}
            () = follow => {}
        }
    });
}

/// What a source said when it was asked.
#[derive(Debug)]
struct Said {
    /// All nodes that it knows, or why it does not answer.
    nodes: Result<BTreeMap<String, Found>, String>,
    /// One line for each entry that names no node.
    wrong: Vec<String>,
    /// A list of revoked keys, whoever signed it.
    revocations: Option<Revocations>,
}

impl Said {
    fn away(why: &str) -> Self {
        Self { nodes: Err(clipped(why)), wrong: Vec::new(), revocations: None }
    }
}

/// How long it is until then; no time if there is nothing to wait for.
fn until(due: Option<Nanos>) -> Duration {
    Duration::from_nanos(due.map_or(0, |due| due.since(clock::now()).0))
}

/// The beginning of a text that others wrote.
fn clipped(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// What was wrong with a source when it was asked last.
#[derive(Debug, Default)]
struct Wrong {
    away: Option<String>,
    lines: Vec<String>,
}

/// Listens to one source: the log says what is wrong, the control thread what follows.
#[derive(Debug)]
struct Ear {
    control: Rc<Control>,
    source: Source,
    last: Wrong,
    /// Told once when the source has spoken for the first time.
    spoken: Option<oneshot::Sender<()>>,
}

impl Ear {
    /// Has what the source said decided on, and told to the shards once it is due.
    async fn take(&mut self, mut said: Said) {
        said.wrong.truncate(WRONG_MAX);
        self.log(&said);
        let Said { nodes, wrong, revocations } = said;
        self.last = Wrong { away: nodes.as_ref().err().cloned(), lines: wrong };
        if let Some(list) = revocations {
            cluster::take_revocations(&self.control, list).await;
        }
        let source = self.source;
        let due = self.control.decide(|core, now| {
            core.hear(source, nodes, now);
            core.discovery().due()
        });
        if let Some(due) = due {
            tokio::time::sleep(until(Some(due))).await;
            self.control.decide(|core, _| core.settle(clock::times()));
            self.control.tell_shards().await;
        }
        if let Some(spoken) = self.spoken.take() {
            let _ = spoken.send(());
        }
    }

    /// Writes to the log what is wrong now and was not before. Others write the source, so there
    /// are only so many lines.
    fn log(&self, said: &Said) {
        let source = self.source.name();
        if let Err(error) = &said.nodes
            && self.last.away.as_ref() != Some(error)
            && let Some(left_out) = self.may_say()
        {
            let error = shown(error);
            tracing::warn!(%error, left_out, "discovery.{source}: the last known addresses stay");
        }
        for line in said.wrong.iter().filter(|line| !self.last.lines.contains(line)) {
            let Some(left_out) = self.may_say() else { break };
            tracing::warn!(left_out, "discovery.{source}: {}", shown(&clipped(line)));
        }
    }

    /// Writes to the log that somebody else wrote what this node had published.
    fn say_overwritten(&self) {
        if let Some(left_out) = self.may_say() {
            tracing::warn!(
                left_out,
                "discovery.{}: this node's entry is not what it wrote, and is written again; if \
                 another node has its name, set another `name` in [node]",
                self.source.name()
            );
        }
    }

    fn may_say(&self) -> Option<u64> {
        self.control.may_say(Cause::Discovery, Party::Door(self.source.name()))
    }
}
