//! What is done with one member of an etcd until something fails.

use std::convert::Infallible;
use std::time::Duration;

use piped_config::{Endpoint, Etcd, Found, read_text};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use zeroize::Zeroizing;

use super::super::Ear;
use super::Fault;
use super::api::{
    Authenticate, Authenticated, Done, Grant, Lease, Number, Octets, Put, Range, Ranged, Streamed,
    Watch, WatchFrom, Watched, end_of,
};
use super::http::{Connection, Lines};
use super::kept::Kept;
use super::tls::Tls;

/// Entries of one answer.
const PAGE: i64 = 512;
/// How often a member is asked whether it is there, at least.
const TICK: Duration = Duration::from_secs(2);
/// News wait so long for more of them.
const GATHER: Duration = Duration::from_millis(50);
/// How often others are told of the load.
const LOAD_EVERY: Duration = Duration::from_secs(60);
/// Before all is read again that a watch lost.
const AGAIN: Duration = Duration::from_millis(200);

/// How a session ended.
pub(super) struct Ended {
    pub(super) fault: Fault,
    /// Whether the member had said which nodes there are.
    pub(super) was_heard: bool,
}

/// One member, and what this node has there.
pub(super) struct Session<'a> {
    ear: &'a mut Ear,
    etcd: &'a Etcd,
    endpoint: &'a Endpoint,
    tls: Tls,
    token: Option<String>,
    kept: Kept,
    published: Option<Published>,
    was_heard: bool,
}

/// The entry of this node.
struct Published {
    lease: Number,
    entry: Found,
    /// When the load in it was measured.
    at: Instant,
}

impl<'a> Session<'a> {
    pub(super) fn new(ear: &'a mut Ear, etcd: &'a Etcd, endpoint: &'a Endpoint, tls: Tls) -> Self {
        Self {
            ear,
            etcd,
            endpoint,
            tls,
            token: None,
            kept: Kept::new(&etcd.prefix),
            published: None,
            was_heard: false,
        }
    }

    /// Publishes and learns until something fails.
    pub(super) async fn run(mut self) -> Ended {
        let Err(fault) = self.go_on().await;
        Ended { fault, was_heard: self.was_heard }
    }

    async fn go_on(&mut self) -> Result<Infallible, Fault> {
        let mut line = self.connect().await?;
        if !self.etcd.user.is_empty() {
            let password = read_text(&self.etcd.password_file).map(Zeroizing::new)?;
            let (name, password) = (self.etcd.user.as_str(), password.trim_end_matches('\n'));
            let question = Authenticate { name, password };
            let Authenticated { token } = line.ask("/v3/auth/authenticate", &question).await?;
            self.token = Some(token);
            line = self.connect().await?;
        }
        self.publish(&mut line).await?;
        loop {
            let revision = self.read(&mut line).await?;
            let from = WatchFrom {
                key: self.prefix(),
                range_end: end_of(self.etcd.prefix.as_bytes()),
                start_revision: Number(revision.0 + 1),
            };
            let watch = Watch { create_request: from };
            let watch = self.connect().await?.listen("/v3/watch", &watch).await?;
            self.hand_over().await;
            self.watch(&mut line, watch).await?;
            // What it would have begun with is compacted: all is read again.
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        Connection::open(self.endpoint, &self.tls, self.token.clone()).await
    }

    fn prefix(&self) -> Octets {
        Octets(self.etcd.prefix.as_bytes().to_vec())
    }

    async fn hand_over(&mut self) {
        self.was_heard = true;
        self.ear.take(self.kept.said()).await;
    }

    /// Reads all entries, and the state that they are of.
    async fn read(&mut self, line: &mut Connection) -> Result<Number, Fault> {
        self.kept = Kept::new(&self.etcd.prefix);
        let mut range = Range {
            key: self.prefix(),
            range_end: end_of(self.etcd.prefix.as_bytes()),
            limit: Number(PAGE),
            revision: Number(0),
            count_only: false,
        };
        loop {
            let Ranged { header, kvs, more } = line.ask("/v3/kv/range", &range).await?;
            if range.revision == Number(0) {
                range.revision = header.revision;
            }
            kvs.iter().for_each(|entry| self.kept.put(entry));
            let Some(last) = kvs.last().filter(|_| more && !self.kept.is_full()) else {
                return Ok(range.revision);
            };
            // The next key after it.
            range.key = last.key.clone();
            range.key.0.push(0);
        }
    }

    /// Follows what changes, until the watch is at an end.
    async fn watch(&mut self, line: &mut Connection, mut watch: Lines) -> Result<(), Fault> {
        let mut tick = interval(TICK.min(self.etcd.lease.0 / 3));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due: Option<Instant> = None;
        loop {
            tokio::select! {
                line = watch.next() => {
                    let Streamed::<Watched> { result, error } = line?;
                    if let Some(error) = error {
                        return Err(Fault::Refused(error.into_words()));
                    }
                    let Watched { events, canceled } = result.unwrap_or_default();
                    if canceled {
                        return Ok(());
                    }
                    events.iter().for_each(|event| self.kept.apply(event));
                    if !events.is_empty() {
                        due.get_or_insert_with(|| Instant::now() + GATHER);
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    self.hand_over().await;
                }
                _ = tick.tick() => self.publish(line).await?,
            }
        }
    }

    /// Keeps the lease, and has this node's entry say what is so. If there is nothing to publish,
    /// the member is asked whether it is there.
    async fn publish(&mut self, line: &mut Connection) -> Result<(), Fault> {
        let last = self.published.take();
        let load = match &last {
            Some(last) if last.at.elapsed() < LOAD_EVERY => (last.entry.load_percent, last.at),
            _ => (load_percent(), Instant::now()),
        };
        let Some(entry) = self.entry(load.0) else {
            let (key, range_end) = (self.prefix(), end_of(self.etcd.prefix.as_bytes()));
            let (limit, revision) = (Number(1), Number(0));
            let range = Range { key, range_end, limit, revision, count_only: true };
            return line.ask("/v3/kv/range", &range).await.map(|Ranged { .. }| ());
        };
        let kept = match &last {
            Some(Published { lease, .. }) => renew(line, *lease).await?,
            None => false,
        };
        let lease = match last.as_ref().filter(|_| kept) {
            Some(last) => last.lease,
            None => {
                let seconds = Number(self.etcd.lease.0.as_secs() as i64);
                let Lease { id, .. } = line.ask("/v3/lease/grant", &Grant { seconds }).await?;
                id
            }
        };
        let name = self.ear.control.node.clone();
        let is_ours = self.kept.get(&name) == Some(&entry);
        let was_told = kept && last.as_ref().is_some_and(|last| last.entry == entry);
        if was_told && !is_ours {
            self.ear.say_overwritten();
        }
        if !was_told || !is_ours {
            let mut key = self.prefix();
            key.0.extend_from_slice(name.as_bytes());
            let value = serde_json::to_vec(&entry).map_err(|it| Fault::Odd(it.to_string()))?;
            let Done {} = line.ask("/v3/kv/put", &Put { key, value: Octets(value), lease }).await?;
        }
        self.published = Some(Published { lease, entry, at: load.1 });
        Ok(())
    }

    /// What this node says of itself; nothing if nobody can connect to it.
    fn entry(&self, load_percent: Option<u32>) -> Option<Found> {
        let core = self.ear.control.core.borrow();
        core.own_entry(env!("CARGO_PKG_VERSION"), load_percent)
    }
}

/// Keeps a lease. Whether it was still there.
async fn renew(line: &mut Connection, id: Number) -> Result<bool, Fault> {
    let question = Lease { id, ..Lease::default() };
    let answer: Streamed<Lease> = line.ask("/v3/lease/keepalive", &question).await?;
    if let Some(error) = answer.error {
        return Err(Fault::Refused(error.into_words()));
    }
    Ok(answer.result.is_some_and(|lease| lease.seconds > Number(0)))
}

/// Load of the CPUs over the last minute.
fn load_percent() -> Option<u32> {
    let load = rustix::system::sysinfo().loads[0];
    let cpus = std::thread::available_parallelism().ok()?.get() as u64;
    // Fixed point, 16 bits behind it.
    u32::try_from((load * 100 / cpus) >> 16).ok()
}
