//! What is done with one member of an etcd until something fails.

use std::convert::Infallible;
use std::time::Duration;

use piped_config::{Endpoint, Etcd, Found, Revocations, read_text};
use piped_core::units::Nanos;
use tokio::time::{MissedTickBehavior, interval, sleep};
use zeroize::Zeroizing;

use super::super::{Ear, until};
use super::Fault;
use super::api::{self, Watching};
use super::http::Connection;
use super::kept::{Kept, REVOKED};
use super::tls::Tls;
use crate::io::clock;

/// How often a member is asked whether it is there, at least.
const TICK: Duration = Duration::from_secs(2);
/// News wait so long for more of them.
const GATHER: Nanos = Nanos::from_millis(200);
/// How often others are told of the load.
const LOAD_EVERY: Nanos = Nanos::from_millis(60_000);
/// Most answers that are read of one state: entries may be no nodes, and without end.
const PAGES_MAX: u32 = 64;
/// Before all is read again that a watch lost.
const AGAIN: Duration = Duration::from_millis(200);

/// One member, and what this node has there.
pub(super) struct Session<'a> {
    ear: &'a mut Ear,
    etcd: &'a Etcd,
    endpoint: &'a Endpoint,
    tls: Tls,
    token: Option<String>,
    kept: Kept,
    /// The lease that this node had last, of whatever session.
    lease: &'a mut Option<i64>,
    /// The entry of this node as it was written, and when the load in it was measured.
    published: Option<(Found, Nanos)>,
    was_heard: bool,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        ear: &'a mut Ear,
        (etcd, endpoint): (&'a Etcd, &'a Endpoint),
        tls: Tls,
        lease: &'a mut Option<i64>,
    ) -> Self {
        let kept = Kept::new(&etcd.prefix, &ear.control.node);
        Self {
            ear,
            etcd,
            endpoint,
            tls,
            token: None,
            kept,
            lease,
            published: None,
            was_heard: false,
        }
    }

    /// Publishes and learns until something fails: what, and whether the member had said before
    /// which nodes there are.
    pub(super) async fn run(mut self) -> (Fault, bool) {
        let Err(fault) = self.go_on().await;
        (fault, self.was_heard)
    }

    async fn go_on(&mut self) -> Result<Infallible, Fault> {
        let mut line = self.connect().await?;
        if !self.etcd.user.is_empty() {
            let password = read_text(&self.etcd.password_file).map(Zeroizing::new)?;
            let (name, password) = (self.etcd.user.as_str(), password.trim_end_matches('\n'));
            self.token = Some(api::authenticate(&mut line, name, password).await?);
            line = self.connect().await?;
        }
        self.publish(&mut line).await?;
        loop {
            let revision = self.read(&mut line).await?;
            let watch = Watching::after(self.connect().await?, self.prefix(), revision).await?;
            self.hand_over().await;
            self.watch(&mut line, watch).await?;
            // What it would have begun with is compacted: all is read again.
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        Connection::open(self.endpoint, &self.tls, self.token.clone()).await
    }

    fn prefix(&self) -> &'a [u8] {
        self.etcd.prefix.as_bytes()
    }

    /// The key of the entry of this node.
    fn own_key(&self) -> Vec<u8> {
        [self.prefix(), self.ear.control.node.as_bytes()].concat()
    }

    /// The key of the list of revoked keys.
    fn list_key(&self) -> Vec<u8> {
        [self.prefix(), REVOKED].concat()
    }

    /// Has others hear of the revoked keys that this node knows of, as long as something else is
    /// said there.
    async fn publish_list(&self, line: &mut Connection) -> Result<(), Fault> {
        let keyring = self.ear.control.keyring();
        let Some(identity) = keyring.identity().filter(|_| self.was_heard) else { return Ok(()) };
        let Some(list) = identity.revocations() else { return Ok(()) };
        // What is there may be later, and not be handed over yet.
        let stays = |there: &Revocations| {
            there.number() >= list.number() && there.is_by(identity.cluster())
        };
        if self.kept.revocations().is_some_and(stays) {
            return Ok(());
        }
        let value = list.to_string().into_bytes();
        // Without a lease: it stays when this node ends.
        api::put(line, (self.list_key(), value), 0).await
    }

    async fn hand_over(&mut self) {
        self.was_heard = true;
        self.ear.take(self.kept.said()).await;
    }

    /// Reads all entries, and the state that they are of.
    async fn read(&mut self, line: &mut Connection) -> Result<i64, Fault> {
        let own = self.ear.control.node.clone();
        self.kept = Kept::new(&self.etcd.prefix, &own);
        let (mut from, mut revision) = (self.prefix().to_vec(), 0);
        let mut most = api::PAGE_MAX;
        for _ in 0..PAGES_MAX {
            let page = (from.clone(), self.prefix());
            let (of, entries, more) = match api::read(line, page, most, revision).await {
                // Some entries are no nodes, and long.
                Err(Fault::Long(_)) if most > 1 => {
                    most /= 2;
                    *line = self.connect().await?;
                    continue;
                }
                read => read?,
            };
            revision = of;
            let last = entries.last().map(|(key, _)| key.clone());
            for (key, value) in entries {
                self.kept.apply((key, Some(value)));
            }
            let Some(mut last) = last.filter(|_| more && !self.kept.is_full()) else { break };
            // The next key after it.
            last.push(0);
            from = last;
        }
        // Whatever else is there is no node, or comes too late in the order of names; but for this
        // node's own entry.
        let has_list = self.kept.revocations().is_some();
        let unread = [
            self.kept.get(&own).is_none().then(|| self.own_key()),
            (!has_list).then(|| self.list_key()),
        ];
        for key in unread.into_iter().flatten() {
            let (_, entries, _) = api::read(line, (key.clone(), &key), 1, revision).await?;
            for (key, value) in entries {
                self.kept.apply((key, Some(value)));
            }
        }
        Ok(revision)
    }

    /// Follows what changes, until the watch is at an end.
    async fn watch(&mut self, line: &mut Connection, mut watch: Watching) -> Result<(), Fault> {
        let mut tick = interval(TICK.min(self.etcd.lease.0 / 3));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due: Option<Nanos> = None;
        loop {
            tokio::select! {
                changes = watch.next() => {
                    let Some(changes) = changes? else { return Ok(()) };
                    if !changes.is_empty() {
                        due.get_or_insert_with(|| clock::now() + GATHER);
                    }
                    changes.into_iter().for_each(|change| self.kept.apply(change));
                }
                () = sleep(until(due)), if due.is_some() => {
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
        self.publish_list(line).await?;
        let (last, now) = (self.published.take(), clock::now());
        let load = match &last {
            Some((entry, at)) if now.since(*at) < LOAD_EVERY => (entry.load_percent, *at),
            _ => (load_percent(), now),
        };
        let Some(entry) = self.entry(load.0) else {
            return api::touch(line, self.prefix()).await;
        };
        let kept = match *self.lease {
            Some(lease) => api::renew(line, lease).await?,
            None => false,
        };
        let lease = match self.lease.filter(|_| kept) {
            Some(lease) => lease,
            None => api::grant(line, self.etcd.lease.0.as_secs()).await?,
        };
        *self.lease = Some(lease);
        let name = self.ear.control.node.clone();
        let is_ours = self.kept.get(&name) == Some(&entry);
        let was_told = kept && last.is_some_and(|(told, _)| told == entry);
        if was_told && !is_ours {
            self.ear.say_overwritten();
        }
        if !was_told || !is_ours {
            let key = self.own_key();
            let value = serde_json::to_vec(&entry).map_err(|it| Fault::Odd(it.to_string()))?;
            api::put(line, (key, value), lease).await?;
        }
        self.published = Some((entry, load.1));
        Ok(())
    }

    /// What this node says of itself; nothing if nobody can connect to it.
    fn entry(&self, load_percent: Option<u32>) -> Option<Found> {
        let core = self.ear.control.core.borrow();
        core.own_entry(env!("CARGO_PKG_VERSION"), load_percent)
    }
}

/// Load of the CPUs over the last minute.
fn load_percent() -> Option<u32> {
    let load = rustix::system::sysinfo().loads[0];
    let cpus = std::thread::available_parallelism().ok()?.get() as u64;
    // Fixed point, 16 bits behind it.
    u32::try_from((load * 100 / cpus) >> 16).ok()
}
