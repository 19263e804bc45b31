//! What recent transfers were planned to be and became, for `explain`.

use std::collections::VecDeque;
use std::sync::Arc;

use piped_model::units::Nanos;

use super::Shard;
use super::plan::Planner;
use super::planned::{Cut, Planned};
use super::serve::Serve;
use super::transfer::{Kind, Told, Transfer, Waiter};
use crate::limits::HISTORY;
use crate::report::Explanation;
use crate::request::{Class, Status};

/// A transfer that is over. Small and without text: the words are made when somebody asks.
#[derive(Debug, Clone)]
struct Record {
    id: u64,
    operation: &'static str,
    route: &'static str,
    bytes: u64,
    class: Class,
    status: Status,
    plan: Option<Arc<Planned>>,
    /// As the planning peer told it.
    told: Option<Told>,
    measured: Nanos,
    mispredicted: u32,
    retries: u32,
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

    pub(super) fn explain(&self, id: Option<u64>, planner: &Planner) -> Option<Explanation> {
        let record = match id {
            Some(id) => self.records.iter().find(|record| record.id == id)?,
            None => self.records.back()?,
        };
        Some(record.explain(planner))
    }
}

impl Record {
    fn explain(&self, planner: &Planner) -> Explanation {
        let plan = self.plan.as_deref();
        let told = self.told.filter(|_| plan.is_none());
        let cut =
            plan.map_or_else(|| told.and_then(|told| Cut::of(told.plan)), |plan| Some(plan.cut));
        let predicted = match (plan, told) {
            (Some(plan), _) => plan.predicted_for(self.bytes),
            (None, Some(told)) => told.predicted,
            (None, None) => Nanos::ZERO,
        };
        let mut bounces = Vec::new();
        if self.mispredicted > 0 {
            bounces.push(format!("{} fragments landed by way of a copy", self.mispredicted));
        }
        let chosen = match (plan, told) {
            (Some(plan), _) => plan.chosen.to_string(),
            (None, Some(_)) => String::from("by the peer"),
            (None, None) => String::from("none needed"),
        };
        Explanation {
            id: self.id,
            operation: self.operation.to_owned(),
            route: self.route.to_owned(),
            bytes: self.bytes,
            class: self.class,
            status: self.status,
            planned_here: plan.is_some(),
            stages: plan.map(|plan| planner.describe(plan)).unwrap_or_default(),
            candidates: plan.map(|plan| plan.candidates.report()).unwrap_or_default(),
            chosen,
            fragment_bytes: cut.map_or(0, |cut| cut.fragment.into()),
            shrink_bytes: cut.map_or(0, |cut| cut.shrink.into()),
            fragments: cut.map_or(0, |cut| cut.count(self.bytes)),
            depth: cut.map_or(0, |cut| cut.depth),
            predicted_seconds: predicted.seconds(),
            margin_seconds: plan.map_or(0.0, |plan| plan.margin.seconds()),
            measured_seconds: self.measured.seconds(),
            bounces,
            retries: self.retries,
        }
    }
}

impl Shard {
    /// Counts and records the end of a client's transfer; the halves of a copy's chunks are its own
    /// affair.
    pub(super) fn remember(&mut self, transfer: &Transfer, status: Status, now: Nanos) {
        if matches!(transfer.waiter, Waiter::Copy { .. }) {
            return;
        }
        match status {
            Status::Ok => self.counters.completed += 1,
            _ => self.counters.failed += 1,
        }
        self.counters.bytes += transfer.landed.watermark();
        self.history.push(Record {
            id: transfer.id,
            operation: match transfer.kind {
                Kind::Read => "read",
                Kind::Write => "write",
                Kind::Copy => "copy",
                Kind::Sync => "sync",
            },
            route: transfer.body.route(),
            bytes: transfer.length,
            class: transfer.class,
            status,
            plan: transfer.plan.clone(),
            told: transfer.told_plan,
            measured: now.since(transfer.started),
            mispredicted: transfer.mispredicted,
            retries: transfer.retries,
        });
    }

    /// Records the end of a peer's request, as this side planned and saw it.
    pub(super) fn remember_serve(&mut self, serve: &Serve, now: Nanos) {
        self.transfers_started += 1;
        self.history.push(Record {
            id: self.transfers_started,
            operation: serve.operation(),
            route: serve.route(),
            bytes: serve.length,
            class: serve.class,
            status: serve.status.unwrap_or(Status::Ok),
            plan: serve.plan.clone(),
            told: None,
            measured: now.since(serve.started),
            mispredicted: 0,
            retries: 0,
        });
    }
}
