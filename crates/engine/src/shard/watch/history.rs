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
use piped_report::tally::{Operation, PlanPath, Route};

use super::company::{Met, Spot};
use super::passed::Passed;
use super::told::Told;

/// What a request is, as it is known when it begins.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Head {
    /// Its number; 0 of a peer's request that runs.
    pub(in crate::shard) id: u64,
    pub(in crate::shard) operation: Operation,
    /// The client that asked for it; nothing of a peer's request.
    pub(in crate::shard) session: Option<SessionId>,
    pub(in crate::shard) route: &'static str,
    pub(in crate::shard) bytes: u64,
    /// Where its first byte lies in the file or region.
    pub(in crate::shard) offset: u64,
    pub(in crate::shard) class: Class,
}

/// What became of a request.
#[derive(Debug, Clone)]
pub(in crate::shard) struct Outcome {
    pub(in crate::shard) status: Status,
    /// Bytes from its beginning that are where they belong.
    pub(in crate::shard) done: u64,
    /// Bytes that it has moved.
    pub(in crate::shard) moved: u64,
    /// Where the other end is; nothing of a peer's request.
    pub(in crate::shard) place: Option<Route>,
    pub(in crate::shard) plan: Option<Arc<Planned>>,
    /// What the planning peer said of its plan.
    pub(in crate::shard) told: Option<Told>,
    /// What it was predicted to take, and by whom; nothing if its end is not its last byte's.
    pub(in crate::shard) predicted: Option<(PlanPath, Nanos)>,
    /// What was predicted for the sync of a durable write, and the bytes of credit that its peer
    /// owed when it was planned.
    pub(in crate::shard) beyond: (Option<Nanos>, u64),
    /// How long after its submission it began.
    pub(in crate::shard) held: Nanos,
    pub(in crate::shard) mispredicted: u32,
    pub(in crate::shard) retries: u32,
    /// Why its time is not held against its prediction, whatever others did; empty if it is.
    pub(in crate::shard) not_compared: &'static str,
}

impl Outcome {
    /// Whether all that was asked for went through.
    pub(super) fn is_whole(&self, head: &Head) -> bool {
        self.status == Status::Ok && self.done == head.bytes
    }

    /// Whether it was a peer's request.
    fn is_served(&self) -> bool {
        self.place.is_none()
    }
}

/// A request that is over. Small and without text: the words are made when somebody asks.
#[derive(Debug, Clone)]
struct Record {
    head: Head,
    outcome: Outcome,
    passed: Passed,
    measured: Nanos,
    ended: Nanos,
    /// Requests that it met.
    met: Met,
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

    /// Remembers a request that took `measured` until it `ended`.
    pub(super) fn push(
        &mut self,
        (head, outcome): (Head, Outcome),
        passed: Passed,
        met: Met,
        (measured, ended): (Nanos, Nanos),
    ) {
        let record = Record { head, outcome, passed, measured, ended, met };
        if self.records.len() < HISTORY {
            return self.records.push_back(record);
        }
        // In place of the oldest, which is moved nowhere before it is dropped.
        self.records.rotate_left(1);
        self.records[HISTORY - 1] = record;
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
            Some(id) => self.records.iter().find(|record| record.head.id == id)?,
            None => {
                let moved = self.records.iter().rev().find(|record| record.outcome.done > 0);
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
        let Self { head, outcome, .. } = self;
        TransferReport {
            id: head.id,
            operation: head.operation,
            served: outcome.is_served(),
            route: head.route.to_owned(),
            class: head.class,
            session: head.session.map(|session| session.0),
            bytes: head.bytes,
            bytes_done: outcome.done,
            age_seconds: self.measured.seconds(),
            left_seconds: None,
            ended_seconds_ago: Some(now.since(self.ended).seconds()),
            status: Some(outcome.status),
            retries: outcome.retries,
        }
    }

    /// Why its time is not held against its prediction; empty if it is.
    fn not_compared(&self) -> &'static str {
        match self.outcome.not_compared {
            _ if !self.outcome.is_whole(&self.head) => "it did not go through whole",
            "" => self.met.not_compared(),
            reason => reason,
        }
    }

    fn explain(&self, planner: &Planner, spot: impl Fn(Spot) -> String) -> Explanation {
        let Self { head, outcome, .. } = self;
        let plan = outcome.plan.as_deref();
        let told = outcome.told.filter(|_| plan.is_none());
        let cut = plan.map(|plan| plan.cut);
        // Of a peer's plan only what came of it is known.
        let (first, pieces) = told.map_or((0, 0), |told| (told.first, told.pieces));
        let margin = match (plan, told) {
            (Some(plan), _) => plan.margin,
            (None, told) => told.map_or(Nanos::ZERO, |told| told.margin),
        };
        let predicted = match (plan, told) {
            (Some(plan), _) => {
                plan.predicted_for(head.bytes) + plan.owed(head.bytes, outcome.beyond.1)
            }
            (None, Some(told)) => told.predicted,
            (None, None) => Nanos::ZERO,
        };
        let predicted = match predicted {
            Nanos::ZERO => Nanos::ZERO,
            planned => planned + outcome.beyond.0.unwrap_or_default(),
        };
        let waiting = self.met.report(self.measured, outcome.held, spot);
        let not_compared = if predicted > Nanos::ZERO { self.not_compared() } else { "" };
        let is_compared = predicted > Nanos::ZERO && not_compared.is_empty();
        let deviation = waiting.own_seconds / predicted.seconds() - 1.0;
        let mut bounces = Vec::new();
        if outcome.mispredicted > 0 {
            bounces.push(format!("{} fragments landed by way of a copy", outcome.mispredicted));
        }
        let chosen = match (plan, told) {
            (Some(plan), _) => plan.chosen.to_string(),
            (None, Some(_)) => String::from("by the peer"),
            (None, None) => String::from("none needed"),
        };
        let seen = self.passed.iter().map(|pass| pass.stage);
        let rows = Rows::new(plan, seen, |stage| planner.stage_name(stage));
        Explanation {
            id: head.id,
            operation: match outcome.is_served() {
                true => format!("serve {}", head.operation.name()),
                false => head.operation.name().to_owned(),
            },
            route: head.route.to_owned(),
            bytes: head.bytes,
            class: head.class,
            status: outcome.status,
            planned_here: plan.is_some(),
            stages: plan.map(|plan| planner.describe(&plan.path)).unwrap_or_default(),
            candidates: plan.map(|plan| plan.compared()).unwrap_or_default(),
            chosen,
            levels: plan.map_or_else(Vec::new, |plan| {
                schedule::levels(plan, &rows.levels, (head.offset, head.bytes))
            }),
            passed: self.passings(planner, &rows),
            fragment_bytes: cut.map_or(first.into(), |cut| cut.source.first()),
            shrink_bytes: cut.map_or(0, |cut| shrink(&cut, head.bytes)),
            fragments: cut.map_or(pieces, |cut| cut.source.count(head.bytes) as u32),
            depth: cut.map_or(0, |cut| cut.depth),
            predicted_seconds: predicted.seconds(),
            margin_seconds: margin.seconds(),
            measured_seconds: self.measured.seconds(),
            bounces,
            retries: outcome.retries,
            sync_seconds: outcome.beyond.0.map(Nanos::seconds),
            owed_bytes: outcome.beyond.1,
            deviation: is_compared.then_some(deviation),
            waiting: Some(waiting),
            not_compared: not_compared.to_owned(),
        }
    }

    /// Stage by stage, what was predicted and what was measured.
    fn passings(&self, planner: &Planner, rows: &Rows) -> Vec<StagePassed> {
        let plan = self.outcome.plan.as_deref();
        let range = (self.head.offset, self.head.bytes);
        let promised = plan
            .and_then(|plan| {
                let owed = self.outcome.beyond.1;
                schedule::schedule(plan, &rows.levels, range, owed, EXPLAIN_VISITS_MAX)
            })
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
