//! Limits that change while the daemon runs.
//!
//! A change is made as a whole or not at all. First it is checked against the limits in force and
//! their use. Memory that it needs is made on another thread, and the drop-in is written if that
//! was asked. Only then are the shards told, which cannot fail any more. Surplus memory is given
//! back as soon as its last user is done; nobody waits for that here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use hyper::StatusCode;
use piped_config::admin::limits::{
    LimitRow, LimitsChange, LimitsChanged, LimitsReport, PartyRow, StagingReport, Use, UserRow,
};
use piped_config::{Amount, LIMITS_DROP_IN, Limits, limits_drop_in};
use piped_core::ids::SessionId;
use piped_engine::command::Command;
use piped_report::shard::{Gauge, PartyUse};
use piped_ring::Segment;
use tokio::sync::Mutex;

use crate::admin::Refused;
use crate::arenas::Maker;
use crate::control::{Control, OfUser};
use crate::limits::STAGING_SEGMENT_BYTES;
use crate::patience::Patience;
use crate::replace::replace;
use crate::shard::message::{LimitView, Mailbox, Message, Question};
use crate::{given, settings};

/// The limits in force, and what belongs to changing them.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// The limits in force, as they were written.
    in_force: Cell<Limits>,
    /// Bytes of memory that there are for this process.
    machine_bytes: u64,
    /// Held while limits change, so that one change happens at a time.
    changing: Mutex<()>,
    /// Staging that was made, some of which may be gone by now.
    staging: RefCell<Vec<StagingPiece>>,
    sessions_high: Cell<u64>,
    handles_high: Cell<u64>,
    /// The most regions and the most channels that were offered at once.
    offers_high: Cell<[u64; 2]>,
    /// The most that a single user had at once.
    user_high: Cell<OfUser>,
    /// The folder of the configuration's drop-ins, if there is a configuration file.
    drop_ins: Option<PathBuf>,
}

/// Staging that was made: its length, and whether it is still mapped.
#[derive(Debug, Clone)]
pub(crate) struct StagingPiece {
    bytes: u64,
    memory: Weak<Segment>,
}

impl StagingPiece {
    pub(crate) fn of(memory: &Arc<Segment>) -> Self {
        Self { bytes: memory.len(), memory: Arc::downgrade(memory) }
    }
}

impl Limiter {
    pub(crate) fn new(
        limits: Limits,
        machine_bytes: u64,
        staging: Vec<StagingPiece>,
        drop_ins: Option<PathBuf>,
    ) -> Self {
        Self {
            in_force: Cell::new(limits),
            machine_bytes,
            changing: Mutex::new(()),
            staging: RefCell::new(staging),
            sessions_high: Cell::new(0),
            handles_high: Cell::new(0),
            offers_high: Cell::default(),
            user_high: Cell::default(),
            drop_ins,
        }
    }

    /// The limits in force. What is left to the machine is a number here.
    pub(crate) fn limits(&self) -> Limits {
        self.given(self.in_force.get())
    }

    /// The limits in bytes, where they are a part of this machine's memory.
    fn given(&self, limits: Limits) -> Limits {
        limits.with_memory(self.machine_bytes)
    }

    /// So many sessions, handles of them, regions and channels are there.
    pub(crate) fn note(&self, sessions: u64, handles: u64, offers: [u64; 2], user: OfUser) {
        let [regions, channels] = self.offers_high.get();
        self.offers_high.set([regions.max(offers[0]), channels.max(offers[1])]);
        self.user_high.set(self.user_high.get().most(user));
        self.sessions_high.set(self.sessions_high.get().max(sessions));
        self.handles_high.set(self.handles_high.get().max(handles));
    }

    fn mapped_bytes(&self) -> u64 {
        let mut pieces = self.staging.borrow_mut();
        // Counted, not upgraded: who drops the last one unmaps it.
        pieces.retain(|piece| piece.memory.strong_count() > 0);
        pieces.iter().map(|piece| piece.bytes).sum()
    }

    fn drop_in(&self) -> Option<PathBuf> {
        Some(self.drop_ins.as_ref()?.join(LIMITS_DROP_IN))
    }
}

fn conflict(text: String) -> Refused {
    Refused::new(StatusCode::CONFLICT, text)
}

/// Changes what a body names.
pub(crate) async fn change(
    control: &Rc<Control>,
    body: LimitsChange,
) -> Result<LimitsChanged, Refused> {
    let _one = control.limiter.changing.lock().await;
    let mut after = control.limiter.in_force.get();
    for (key, value) in &body.set {
        after.set(key, &value.to_string()).map_err(Refused::bad)?;
    }
    let named =
        |key: &str| body.set.keys().any(|set| set.strip_prefix("limits.").unwrap_or(set) == key);
    let changed: Vec<(&'static str, Amount)> =
        after.entries().into_iter().filter(|(key, _)| named(key)).collect();
    let persist = body.persist.then_some(&changed[..]);
    let persisted = apply(control, after, persist).await?;
    for (key, amount) in &changed {
        let value = match amount {
            Amount::Bytes(bytes) => serde_json::to_value(bytes),
            Amount::Memory(limit) => serde_json::to_value(limit),
            Amount::Count(count) => serde_json::to_value(count),
        };
        control.reload.note_runtime(&format!("limits.{key}"), value.unwrap_or_default());
        tracing::info!(key, %amount, persisted = persisted.is_some(), "limit changed");
    }
    let in_force = control.limiter.limits();
    let given =
        given::of(&in_force, control.shards.len() as u32, staging_of_each(&views(control).await?));
    for (key, amount) in &changed {
        if let Some(less) = given.get(*key) {
            let (asked, given) = (amount.number(), less.amount);
            tracing::warn!(key, asked, given, "less of a limit is given: {}", less.because);
        }
    }
    let limits: BTreeMap<String, u64> = in_force
        .entries()
        .into_iter()
        .map(|(key, amount)| (key.to_owned(), amount.number()))
        .collect();
    Ok(LimitsChanged { limits, given, persisted })
}

/// Takes what the files say differently than they did; what was changed by other means stays.
pub(crate) async fn follow(
    control: &Rc<Control>,
    before: &Limits,
    next: &Limits,
) -> Result<(), Refused> {
    let _one = control.limiter.changing.lock().await;
    let mut after = control.limiter.in_force.get();
    for ((key, was), (_, is)) in before.entries().into_iter().zip(next.entries()) {
        if was != is {
            after.set(key, &is.to_string()).map_err(Refused::bad)?;
        }
    }
    if after == control.limiter.in_force.get() {
        return Ok(());
    }
    apply(control, after, None).await.map(drop)
}

/// Puts limits in force, all or none. `persist`: and writes these into the drop-in.
async fn apply(
    control: &Rc<Control>,
    limits: Limits,
    persist: Option<&[(&'static str, Amount)]>,
) -> Result<Option<PathBuf>, Refused> {
    let shards = control.shards.len() as u32;
    limits.validate(shards).map_err(Refused::bad)?;
    let share = limits.staging_of_shard(shards);
    let resized = share != control.limiter.limits().staging_of_shard(shards);
    let memory = if resized { make_memory(control, share).await? } else { Vec::new() };
    let persisted = match persist {
        Some(changed) => Some(write_drop_in(control, changed).await?),
        None => None,
    };
    // From here on it is done.
    control.limiter.in_force.set(limits);
    let mut memory = memory.into_iter();
    for shard in &control.shards {
        let command = Command::SetLimits(settings::limits(&limits, shards));
        shard.mailbox.send(Message::Engine(command)).await?;
        if resized {
            resize(control, &shard.mailbox, share, memory.next().unwrap_or_default()).await?;
        }
    }
    Ok(persisted)
}

/// Gives a shard that much staging, with the memory that it lacks of it.
async fn resize(
    control: &Control,
    mailbox: &Mailbox,
    share: u64,
    memory: Vec<Arc<Segment>>,
) -> Result<(), Refused> {
    let mut refusal = set_staging(mailbox, share, memory).await?;
    // What was on its way out when the memory was made may be gone since, and is lacked as well. By
    // now nothing is on its way that is to stay.
    match lacked_memory(&control.patience, mailbox, share).await? {
        Ok(memory) if memory.is_empty() => {}
        Ok(memory) => {
            control.limiter.staging.borrow_mut().extend(memory.iter().map(StagingPiece::of));
            refusal = refusal.or(set_staging(mailbox, share, memory).await?);
        }
        Err(error) => refusal = refusal.or(Some(error.to_string())),
    }
    if let Some(refusal) = refusal {
        tracing::warn!(%refusal, "a shard has less staging than it may");
    }
    Ok(())
}

/// Gives a shard staging. Returns why the shard could not take all of it, if so.
async fn set_staging(
    mailbox: &Mailbox,
    bytes: u64,
    memory: Vec<Arc<Segment>>,
) -> Result<Option<String>, Refused> {
    let set = |answer| Message::SetStaging { bytes, memory, answer };
    Ok(mailbox.ask(set).await?.err().map(|refusal| refusal.to_string()))
}

/// The memory that a shard lacks of that much staging.
async fn lacked_memory(
    patience: &Patience,
    mailbox: &Mailbox,
    share: u64,
) -> Result<io::Result<Vec<Arc<Segment>>>, Refused> {
    let ask = |answer| Message::Ask(Question::StagingMissing(share, answer));
    let missing = mailbox.ask(ask).await?;
    if missing == 0 {
        return Ok(Ok(Vec::new()));
    }
    // What transfers have suffices until then: this must be in nobody's way.
    let made = patience.work(move |turns| {
        turns.give_way();
        staging_by(missing, || turns.next())
    });
    Ok(made.await.flatten())
}

/// The memory that each shard lacks of that much staging.
async fn make_memory(control: &Rc<Control>, share: u64) -> Result<Vec<Vec<Arc<Segment>>>, Refused> {
    let views = views(control).await?;
    let least = views.iter().map(|view| view.limits.staging_least_bytes).max().unwrap_or(0);
    let least = settings::whole_units(least);
    if share < least {
        let all = piped_config::Bytes(least * control.shards.len() as u64);
        let least = piped_config::Bytes(least);
        return Err(conflict(format!(
            "`global.staging` is too small now: what lanes hold and the longest fragment of a read \
             and of a write need {least} on a shard, {all} in all; choose that or more"
        )));
    }
    let mut all = Vec::new();
    for shard in &control.shards {
        let made = lacked_memory(&control.patience, &shard.mailbox, share).await?;
        all.push(made.map_err(|error| {
            conflict(format!(
                "so much more staging cannot be had ({error}); make global.staging smaller, or \
                 free memory"
            ))
        })?);
    }
    let mut pieces = control.limiter.staging.borrow_mut();
    pieces.extend(all.iter().flatten().map(StagingPiece::of));
    Ok(all)
}

/// So many bytes of staging, every page of it there. Takes time.
pub(crate) fn make_staging(bytes: u64) -> io::Result<Vec<Arc<Segment>>> {
    staging_by(bytes, || ())
}

/// The same, a segment each turn.
fn staging_by<T>(bytes: u64, mut turn: impl FnMut() -> T) -> io::Result<Vec<Arc<Segment>>> {
    let mut pieces = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let _turn = turn();
        let length = left.min(STAGING_SEGMENT_BYTES);
        pieces.push(Arc::new(Segment::private(length)?));
        left -= length;
    }
    Ok(pieces)
}

async fn write_drop_in(
    control: &Rc<Control>,
    changed: &[(&'static str, Amount)],
) -> Result<PathBuf, Refused> {
    let path = control.limiter.drop_in().ok_or_else(|| {
        conflict(
            "there is no configuration file to write a drop-in beside: start piped with --config \
             FILE, or change the limits without persisting them"
                .to_owned(),
        )
    })?;
    let (target, changed) = (path.clone(), changed.to_vec());
    let written = tokio::task::spawn_blocking(move || {
        let before = match piped_config::read_text(&target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let text = limits_drop_in(&before, &changed).map_err(io::Error::other)?;
        replace(&target, text.as_bytes(), 0o666)
    });
    written.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
        conflict(format!(
            "{} cannot be written ({error}): correct it, give the daemon's user the right to write \
             it, or change the limits without persisting them. Nothing was changed",
            path.display()
        ))
    })?;
    Ok(path)
}

/// The staging that each shard has to keep: that of the one with least. What drains is on its way
/// out.
fn staging_of_each(views: &[LimitView]) -> u64 {
    let kept =
        |view: &LimitView| view.staging_bytes.saturating_sub(view.limits.staging_draining_bytes);
    views.iter().map(kept).min().unwrap_or(0)
}

async fn views(control: &Control) -> Result<Vec<LimitView>, Refused> {
    let mut views = Vec::with_capacity(control.shards.len());
    for shard in &control.shards {
        views.push(shard.mailbox.ask(|answer| Message::Ask(Question::Limits(answer))).await?);
    }
    Ok(views)
}

/// The limits in force, and their use.
pub(crate) async fn report(control: &Control) -> Result<LimitsReport, Refused> {
    let views = views(control).await?;
    let sessions = control.clients();
    let limiter = &control.limiter;
    let clients: Vec<PartyRow> = parties(&views, |view| &view.parties.clients)
        .map(|mut row| {
            let known = sessions.iter().find(|session| session.session.to_string() == row.name);
            row.user = known.map(|session| session.uid);
            row.handles = known.map_or(0, |session| session.handles);
            row
        })
        .collect();
    let peers: Vec<PartyRow> = parties(&views, |view| &view.parties.peers).collect();
    let sum = |of: fn(&LimitView) -> Gauge| {
        let used = views.iter().map(|view| of(view).now).sum();
        Use { used, high: views.iter().map(|view| of(view).high).sum() }
    };
    let most = |rows: &[PartyRow], of: fn(&PartyRow) -> Use| Use {
        used: rows.iter().map(|row| of(row).used).max().unwrap_or(0),
        high: rows.iter().map(|row| of(row).high).max().unwrap_or(0),
    };
    let handles = |row: &PartyRow| Use { used: row.handles.into(), high: row.handles.into() };
    let users = control.users();
    let (of_one, high) =
        (users.values().copied().fold(OfUser::default(), OfUser::most), limiter.user_high.get());
    let owners = [
        control.core.borrow().regions().owners().collect::<BTreeMap<_, _>>(),
        control.core.borrow().channels().owners().collect(),
    ];
    let offered = |kind: usize| {
        let used = owners[kind].values().copied().map(u64::from).sum();
        Use { used, high: limiter.offers_high.get()[kind].max(used) }
    };
    let of_session = |kind: usize| {
        let count = |id| owners[kind].get(&SessionId(id)).copied().unwrap_or(0);
        let used = sessions.iter().map(|session| count(session.session)).max().unwrap_or(0).into();
        Use { used, high: used }
    };
    let use_of = |name: &str| match name {
        "global.staging" => sum(|view| view.limits.staging),
        "global.in_flight" => sum(|view| view.limits.in_flight),
        "global.requests" => sum(|view| view.limits.requests),
        "global.sessions" => Use { used: sessions.len() as u64, high: limiter.sessions_high.get() },
        "global.handles" => Use { used: control.handles_open(), high: limiter.handles_high.get() },
        "global.arena" => {
            let (used, high) = control.shared_bytes(Maker::Daemon);
            Use { used, high }
        }
        "global.lent" => {
            let (used, high) = control.shared_bytes(Maker::Client);
            Use { used, high }
        }
        "client.lent" => {
            let used = sessions.iter().map(|session| session.lent_bytes).max().unwrap_or(0);
            Use { used, high: used }
        }
        "global.regions" => offered(0),
        "global.channels" => offered(1),
        "client.regions" => of_session(0),
        "client.channels" => of_session(1),
        "user.regions" => Use { used: of_one.regions, high: high.regions.max(of_one.regions) },
        "user.channels" => Use { used: of_one.channels, high: high.channels.max(of_one.channels) },
        "global.early_arrival" => sum(|view| view.limits.early_arrival),
        "client.early_arrival" => most(&clients, |row| row.early_arrival),
        "client.rate" => most(&clients, |row| row.rate),
        "peer.rate" => most(&peers, |row| row.rate),
        "client.staging" => most(&clients, |row| row.staging),
        "client.in_flight" => most(&clients, |row| row.in_flight),
        "client.requests" => most(&clients, |row| row.requests),
        "user.sessions" => Use { used: of_one.sessions, high: high.sessions },
        "user.arena" => Use { used: of_one.arena_bytes, high: high.arena_bytes },
        "user.lent" => Use { used: of_one.lent_bytes, high: high.lent_bytes },
        "user.handles" => Use { used: of_one.handles, high: high.handles },
        "client.handles" => most(&clients, handles),
        "peer.staging" => most(&peers, |row| row.staging),
        "peer.in_flight" => most(&peers, |row| row.in_flight),
        "peer.requests" => most(&peers, |row| row.requests),
        _ => most(&peers, handles),
    };
    let in_force = limiter.limits();
    let mut given = given::of(&in_force, control.shards.len() as u32, staging_of_each(&views));
    let mut row = |(name, amount): (&'static str, Amount)| {
        let Use { used, high } = use_of(name);
        let is_bytes = amount.is_bytes();
        let (limit, given) = (amount.number(), given.remove(name));
        LimitRow { name: name.to_owned(), is_bytes, limit, given, used, high }
    };
    let limits: Vec<LimitRow> = in_force.entries().into_iter().map(&mut row).collect();
    let total = |of: fn(&LimitView) -> u64| views.iter().map(of).sum::<u64>();
    Ok(LimitsReport {
        limits,
        staging: StagingReport {
            owned_bytes: total(|view| view.staging_bytes),
            draining_bytes: total(|view| view.limits.staging_draining_bytes),
            mapped_bytes: limiter.mapped_bytes(),
            least_bytes: total(|view| settings::whole_units(view.limits.staging_least_bytes)),
        },
        waiting: total(|view| view.limits.waiting.into()),
        waited: total(|view| view.limits.waited),
        stalled: total(|view| view.limits.stalled),
        users: users.iter().map(|(uid, of)| user_row(control, *uid, of)).collect(),
        clients,
        peers,
        drop_in: limiter.drop_in(),
    })
}

fn user_row(control: &Control, uid: u32, of: &OfUser) -> UserRow {
    UserRow {
        uid,
        user: control.user_name(uid),
        sessions: of.sessions,
        arena_bytes: of.arena_bytes,
        lent_bytes: of.lent_bytes,
        handles: of.handles,
        regions: of.regions,
        channels: of.channels,
    }
}

fn parties(
    views: &[LimitView],
    of: impl Fn(&LimitView) -> &Vec<PartyUse>,
) -> impl Iterator<Item = PartyRow> {
    let gauge = |gauge: Gauge| Use { used: gauge.now, high: gauge.high };
    let row = move |shard: usize, party: &PartyUse| PartyRow {
        name: party.name.clone(),
        user: None,
        shard: shard as u32,
        staging: gauge(party.staging),
        in_flight: gauge(party.in_flight),
        requests: gauge(party.requests),
        waiting: party.waiting,
        handles: party.handles,
        early_arrival: gauge(party.early_arrival),
        rate: gauge(party.rate),
    };
    let all = views.iter().enumerate();
    all.flat_map(move |(shard, view)| {
        of(view).iter().map(|party| row(shard, party)).collect::<Vec<_>>()
    })
}
