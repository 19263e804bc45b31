//! What recent transfers were planned to be and became, for `explain`.

use std::collections::VecDeque;
use std::sync::Arc;

use piped_core::ids::SessionId;
use piped_core::limits::{EXPLAIN_VISITS_MAX, HISTORY};
use piped_core::request::Class;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::plan::Planner;
use piped_planner::planned::{Planned, shrink};
use piped_planner::schedule;
use piped_planner::schedule::Rows;
use piped_report::shard::{Explanation, Passing, StagePassed, TransferReport};
use piped_report::tally::{Company, Operation, PlanPath};

use super::Shard;
use super::company::{Met, Spot};
use super::keys::{ServeKey, TransferKey};
use super::passed::Passed;
use super::requests::{Body, RemoteOp, Told, Transfer};
use super::serve::Serve;
use super::trace::Subject;

/// A transfer that is over. Small and without text: the words are made when somebody asks.
#[derive(Debug, Clone)]
struct Record {
    id: u64,
    operation: Operation,
    served: bool,
    session: Option<SessionId>,
    route: &'static str,
    bytes: u64,
    done: u64,
    class: Class,
    status: Status,
    plan: Option<Arc<Planned>>,
    /// As the planning peer told it.
    told: Option<Told>,
    /// Where its first byte lies in the file or region.
    offset: u64,
    passed: Passed,
    measured: Nanos,
    ended: Nanos,
    mispredicted: u32,
    retries: u32,
    /// Whom it met, and how long after its submission it began.
    met: Met,
    held: Nanos,
    /// Of a durable write, what was predicted for its sync.
    sync: Option<Nanos>,
    /// Why its time is not held against its prediction; empty if it is.
    not_compared: &'static str,
}

/// The last [`HISTORY`] transfers and serves.
#[derive(Debug)]
pub(super) struct History {
    records: VecDeque<Record>,
}

impl History {
    pub(super) fn new() -> Self {
        Self { records: VecDeque::with_capacity(HISTORY) }
    }

    fn push(&mut self, record: Record) {
        if self.records.len() == HISTORY {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Without a number the last one that moved bytes, or else the last one. `spot`: the name of
    /// one.
    pub(super) fn explain(
        &self,
        id: Option<u64>,
        planner: &Planner,
        spot: impl Fn(Spot) -> String,
    ) -> Option<Explanation> {
        let record = match id {
            Some(id) => self.records.iter().find(|record| record.id == id)?,
            None => {
                let moved = self.records.iter().rev().find(|record| record.done > 0);
                moved.or(self.records.back())?
            }
        };
        Some(record.explain(planner, spot))
    }

    /// The last `most` that ended, the latest first.
    pub(super) fn ended(&self, now: Nanos, most: usize) -> Vec<TransferReport> {
        self.records.iter().rev().take(most).map(|record| record.report(now)).collect()
    }
}

impl Record {
    fn report(&self, now: Nanos) -> TransferReport {
        TransferReport {
            id: self.id,
            operation: self.operation,
            served: self.served,
            route: self.route.to_owned(),
            class: self.class,
            session: self.session.map(|session| session.0),
            bytes: self.bytes,
            bytes_done: self.done,
            age_seconds: self.measured.seconds(),
            left_seconds: None,
            ended_seconds_ago: Some(now.since(self.ended).seconds()),
            status: Some(self.status),
            retries: self.retries,
        }
    }

    fn explain(&self, planner: &Planner, spot: impl Fn(Spot) -> String) -> Explanation {
        let plan = self.plan.as_deref();
        let told = self.told.filter(|_| plan.is_none());
        let cut = plan.map(|plan| plan.cut);
        // Of a peer's plan only what came of it is known.
        let (first, pieces) = told.map_or((0, 0), |told| (told.first, told.pieces));
        let margin = match (plan, told) {
            (Some(plan), _) => plan.margin,
            (None, told) => told.map_or(Nanos::ZERO, |told| told.margin),
        };
        let predicted = match (plan, told) {
            (Some(plan), _) => plan.predicted_for(self.bytes),
            (None, Some(told)) => told.predicted,
            (None, None) => Nanos::ZERO,
        };
        let predicted = match predicted {
            Nanos::ZERO => Nanos::ZERO,
            planned => planned + self.sync.unwrap_or_default(),
        };
        let waiting = self.met.report(self.measured, self.held, spot);
        let is_compared = predicted > Nanos::ZERO && self.not_compared.is_empty();
        let deviation = waiting.own_seconds / predicted.seconds() - 1.0;
        let mut bounces = Vec::new();
        if self.mispredicted > 0 {
            bounces.push(format!("{} fragments landed by way of a copy", self.mispredicted));
        }
        let chosen = match (plan, told) {
            (Some(plan), _) => plan.chosen.to_string(),
            (None, Some(_)) => String::from("by the peer"),
            (None, None) => String::from("none needed"),
        };
        let seen = self.passed.iter().map(|pass| pass.stage);
        let rows = Rows::new(plan, seen, |stage| planner.stage_name(stage));
        Explanation {
            id: self.id,
            operation: match self.served {
                true => format!("serve {}", self.operation.name()),
                false => self.operation.name().to_owned(),
            },
            route: self.route.to_owned(),
            bytes: self.bytes,
            class: self.class,
            status: self.status,
            planned_here: plan.is_some(),
            stages: plan.map(|plan| planner.describe(&plan.path)).unwrap_or_default(),
            candidates: plan.map(|plan| plan.compared()).unwrap_or_default(),
            chosen,
            levels: plan.map_or_else(Vec::new, |plan| {
                schedule::levels(plan, &rows.levels, (self.offset, self.bytes))
            }),
            passed: self.passings(planner, &rows),
            fragment_bytes: cut.map_or(first.into(), |cut| cut.source.first()),
            shrink_bytes: cut.map_or(0, |cut| shrink(&cut, self.bytes)),
            fragments: cut.map_or(pieces, |cut| cut.source.count(self.bytes) as u32),
            depth: cut.map_or(0, |cut| cut.depth),
            predicted_seconds: predicted.seconds(),
            margin_seconds: margin.seconds(),
            measured_seconds: self.measured.seconds(),
            bounces,
            retries: self.retries,
            sync_seconds: self.sync.map(Nanos::seconds),
            deviation: is_compared.then_some(deviation),
            waiting: Some(waiting),
            not_compared: match predicted {
                Nanos::ZERO => String::new(),
                _ => self.not_compared.to_owned(),
            },
        }
    }
}

impl Record {
    /// Stage by stage, what was predicted and what was measured.
    fn passings(&self, planner: &Planner, rows: &Rows) -> Vec<StagePassed> {
        let plan = self.plan.as_deref();
        let range = (self.offset, self.bytes);
        let promised = plan
            .and_then(|plan| schedule::schedule(plan, &rows.levels, range, EXPLAIN_VISITS_MAX))
            .unwrap_or_default();
        let described = plan.map(|plan| planner.describe(&plan.path)).unwrap_or_default();
        let began = Nanos(self.ended.0.saturating_sub(self.measured.0));
        let mut all: Vec<StagePassed> = rows.names.iter().cloned().map(StagePassed::new).collect();
        for (stage, one) in all.iter_mut().enumerate() {
            one.predicted = schedule::passing(&promised, stage);
            one.confidence = described.get(stage).map(|stage| stage.confidence);
        }
        for pass in self.passed.iter().filter(|pass| pass.fragments > 0) {
            all[rows.of(pass.stage)].measured = Some(Passing {
                fragments: pass.fragments,
                busy_seconds: pass.busy.seconds(),
                last_seconds: pass.last.since(began).seconds(),
            });
        }
        all
    }
}

impl Shard {
    /// Counts and records the end of a client's transfer; the halves of a copy's chunks are its own
    /// affair.
    pub(super) fn remember(
        &mut self,
        key: TransferKey,
        transfer: &Transfer,
        status: Status,
        now: Nanos,
    ) {
        if transfer.waiter.is_part() {
            return;
        }
        let met = self.leave_company(key, transfer);
        let passed = self.cx.watch.observed.of(Subject::Transfer(key)).passed;
        match status {
            Status::Ok => self.cx.watch.counters.completed += 1,
            _ => self.cx.watch.counters.failed += 1,
        }
        let (bytes, measured) = (transfer.landed.watermark(), now.since(transfer.started));
        let moved = transfer.moved();
        self.cx.watch.counters.bytes += moved;
        let kind = (transfer.kind, transfer.body.place(&self.bodies), transfer.class);
        self.cx.watch.tally.add_transfer(kind, status, moved, measured.0);
        if status == Status::Ok
            && bytes == transfer.length
            && let Some((path, predicted)) = prediction(transfer)
        {
            let company = if met.alone() { Company::Alone } else { Company::Queued };
            self.cx.watch.tally.add_prediction((path, company), predicted.0, measured.0);
        }
        let is_whole = status == Status::Ok && bytes == transfer.length;
        let not_compared = match () {
            () if !is_whole => NOT_WHOLE,
            () if transfer.retries > 0 => "it was sent again",
            () if waits_for_others(transfer) => {
                "it waited for its receiver, or for a notification behind it"
            }
            () if is_durable(transfer) && transfer.sync.is_none() => {
                "what its sync takes was not known yet"
            }
            () => met.not_compared(),
        };
        self.cx.watch.history.push(Record {
            id: transfer.id,
            operation: transfer.kind,
            served: false,
            session: Some(transfer.session),
            route: transfer.body.route(&self.bodies),
            bytes: transfer.length,
            done: bytes,
            class: transfer.class,
            status,
            plan: transfer.plan.clone(),
            told: transfer.told_plan,
            offset: transfer.body.offset(&self.bodies),
            passed,
            measured,
            ended: now,
            mispredicted: transfer.mispredicted,
            retries: transfer.retries,
            met,
            held: begun(transfer, &passed).since(transfer.started),
            sync: transfer.sync,
            not_compared,
        });
    }

    /// Records the end of a peer's request, as this side planned and saw it.
    pub(super) fn remember_serve(&mut self, key: ServeKey, serve: &Serve, now: Nanos) {
        self.cx.transfers_started += 1;
        let met = self.leave_serve_company(key, serve);
        let passed = self.cx.watch.observed.of(Subject::Serve(key)).passed;
        let status = serve.status.unwrap_or(Status::Ok);
        let measured = now.since(serve.started);
        let kind = (serve.operation(), serve.flow.class);
        self.cx.watch.tally.add_serve(kind, status, serve.moved(), measured.0);
        self.cx.watch.history.push(Record {
            id: self.cx.transfers_started,
            operation: serve.operation(),
            served: true,
            session: None,
            route: serve.route(),
            bytes: serve.length,
            done: serve.done,
            class: serve.flow.class,
            status,
            plan: serve.plan.clone(),
            told: None,
            offset: serve.offset,
            passed,
            measured,
            ended: now,
            mispredicted: 0,
            retries: 0,
            met,
            held: passed.first().unwrap_or(now).since(serve.started),
            sync: None,
            not_compared: match status == Status::Ok && serve.done == serve.length {
                true => met.not_compared(),
                false => NOT_WHOLE,
            },
        });
    }
}

const NOT_WHOLE: &str = "it did not go through whole";

/// When a transfer could begin: at its device, or when its peer was asked.
fn begun(transfer: &Transfer, passed: &Passed) -> Nanos {
    match &transfer.body {
        Body::File(_) => passed.first().unwrap_or(transfer.begun),
        _ => transfer.begun,
    }
}

/// Whether the end of a transfer is not its last byte's, but that of something others do.
fn waits_for_others(transfer: &Transfer) -> bool {
    match &transfer.body {
        Body::Remote(body) => body.message.is_some() || body.once.is_some(),
        _ => false,
    }
}

fn is_durable(transfer: &Transfer) -> bool {
    match &transfer.body {
        Body::File(body) => body.durable,
        Body::Remote(body) => body.op == RemoteOp::Write { durable: true },
        _ => false,
    }
}

/// What was predicted of a transfer, and by whom. Nothing of those whose end is not the last
/// byte's, unless it is known what the sync of a durable write takes, and of those that were sent
/// twice.
fn prediction(transfer: &Transfer) -> Option<(PlanPath, Nanos)> {
    if transfer.retries > 0 || waits_for_others(transfer) {
        return None;
    }
    let sync = match is_durable(transfer) {
        true => transfer.sync?,
        false => Nanos::ZERO,
    };
    let planned = transfer.plan.as_ref().map(|plan| plan.predicted + sync);
    match &transfer.body {
        Body::File(_) => Some((PlanPath::Local, planned?)),
        Body::Remote(body) => match body.op {
            RemoteOp::Read => Some((PlanPath::PeerRead, transfer.told_plan?.predicted)),
            RemoteOp::Write { .. } => Some((PlanPath::PeerWrite, planned?)),
            RemoteOp::Sync | RemoteOp::Send | RemoteOp::Once => None,
        },
        _ => None,
    }
}
