//! Records when each fragment of the next few transfers comes to a stage and leaves it.
//!
//! Off, which is nearly always, it costs one branch at each of those places beside the sums of
//! [`super::passed`]. Its memory is taken when it is armed and has a bound; a fragment more than
//! there is room for is counted. What it recorded is handed out as it is and made into words and
//! predictions elsewhere ([`Recording::report`]), because a shard's thread has other things to do.

use std::sync::Arc;

use piped_core::limits::{TRACE_TRANSFERS_MAX, TRACE_VISITS_MAX};
use piped_core::request::Class;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::planned::Planned;
use piped_planner::stage::StageIndex;
use piped_report::tally::Operation;
use piped_report::trace::TraceState;

use super::Shard;
use super::cx::Watch;
use super::keys::{ServeKey, TransferKey};
use super::requests::Bodies;
use super::requests::{Told, Transfer, Waiter};

mod lane;
mod report;

/// What a fragment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// A client's transfer.
    Transfer(TransferKey),
    /// A peer's request.
    Serve(ServeKey),
}

/// A fragment in a stage. Its times are those of the shard's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visit {
    stage: StageIndex,
    bytes: u32,
    offset: u64,
    arrived: Nanos,
    /// [`Nanos::MAX`] as long as it is there.
    departed: Nanos,
}

/// A transfer that is recorded.
#[derive(Debug)]
struct Traced {
    subject: Subject,
    id: u64,
    operation: Operation,
    served: bool,
    route: &'static str,
    bytes: u64,
    offset: u64,
    class: Class,
    began: Nanos,
    ended: Option<Ended>,
    visits: Vec<Visit>,
    lost: u32,
    /// The visits' stages and the plan's, with their names, and whether they are devices: places of
    /// stages are used again.
    names: Vec<(StageIndex, String, bool)>,
}

/// How it ended.
#[derive(Debug)]
struct Ended {
    at: Nanos,
    status: Status,
    plan: Option<Arc<Planned>>,
    told: Option<Told>,
}

/// What was recorded. See [`Recording::report`].
#[derive(Debug, Default)]
pub struct Recording {
    number: u64,
    wanted: usize,
    visits_each: usize,
    traced: Vec<Traced>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tracer {
    active: Option<Box<Recording>>,
    /// The last one, from its end to the next one's beginning.
    over: Option<Arc<Recording>>,
}

impl Tracer {
    /// Records the next `transfers`, at most [`TRACE_TRANSFERS_MAX`]; none: ends what is being
    /// recorded.
    pub(super) fn arm(&mut self, number: u64, transfers: u32) {
        if transfers == 0 {
            return self.finish();
        }
        let wanted = transfers.min(TRACE_TRANSFERS_MAX) as usize;
        let visits_each = TRACE_VISITS_MAX as usize / wanted;
        self.over = None;
        self.active = Some(Box::new(Recording {
            number,
            wanted,
            visits_each,
            traced: Vec::with_capacity(wanted),
        }));
    }

    fn finish(&mut self) {
        if let Some(mut recording) = self.active.take() {
            for traced in &mut recording.traced {
                traced.visits.shrink_to_fit();
            }
            self.over = Some(Arc::from(recording));
        }
    }

    pub(super) fn state(&self) -> TraceState {
        let recording = self.active.as_deref().or(self.over.as_deref());
        recording.map_or_else(TraceState::default, |recording| TraceState {
            recording: recording.number,
            wanted: recording.wanted as u32,
            begun: recording.traced.len() as u32,
            ended: recording.ended(),
            over: self.active.is_none(),
        })
    }

    pub(super) fn recording(&self) -> Option<Arc<Recording>> {
        self.over.clone()
    }

    fn of(&mut self, subject: Subject) -> Option<(&mut Traced, usize)> {
        let recording = self.active.as_deref_mut()?;
        let most = recording.visits_each;
        let mut running = recording.traced.iter_mut().filter(|traced| traced.ended.is_none());
        Some((running.find(|traced| traced.subject == subject)?, most))
    }

    fn begin(&mut self, subject: Subject, began: Nanos, head: Head) {
        let Some(recording) = self.active.as_deref_mut() else { return };
        if recording.traced.len() == recording.wanted {
            return;
        }
        recording.traced.push(Traced {
            subject,
            id: head.id,
            operation: head.operation,
            served: matches!(subject, Subject::Serve(_)),
            route: head.route,
            bytes: head.bytes,
            offset: head.offset,
            class: head.class,
            began,
            ended: None,
            visits: Vec::with_capacity(recording.visits_each),
            lost: 0,
            names: Vec::new(),
        });
    }

    /// Bytes that are recorded of a transfer in a stage.
    fn passed_bytes(&mut self, subject: Subject, stage: StageIndex) -> u64 {
        let Some((traced, _)) = self.of(subject) else { return 0 };
        let its = traced.visits.iter().filter(|visit| visit.stage == stage);
        its.map(|visit| u64::from(visit.bytes)).sum()
    }

    fn visit(&mut self, subject: Subject, visit: Visit) {
        let Some((traced, most)) = self.of(subject) else { return };
        if traced.visits.len() < most {
            traced.visits.push(visit);
        } else {
            traced.lost += 1;
        }
    }

    /// The oldest fragment in a stage leaves, or the one at that offset.
    fn depart(&mut self, subject: Subject, stage: StageIndex, offset: Option<u64>, now: Nanos) {
        let Some((traced, _)) = self.of(subject) else { return };
        let is_it = |visit: &&mut Visit| {
            visit.stage == stage
                && visit.departed == Nanos::MAX
                && offset.is_none_or(|offset| visit.offset == offset)
        };
        if let Some(visit) = traced.visits.iter_mut().find(is_it) {
            visit.departed = now;
        }
    }
}

impl Recording {
    fn ended(&self) -> u32 {
        self.traced.iter().filter(|traced| traced.ended.is_some()).count() as u32
    }
}

impl Watch {
    /// A fragment comes to a stage. `start`: where its transfer begins in what is seen.
    pub(super) fn enter_stage(
        &mut self,
        (subject, start): (Subject, u64),
        stage: StageIndex,
        (offset, bytes): (u64, u32),
        now: Nanos,
    ) {
        self.observed.of_mut(subject).passed.enter(stage, now);
        if self.tracer.active.is_some() {
            let offset = start + offset;
            let visit = Visit { stage, bytes, offset, arrived: now, departed: Nanos::MAX };
            self.tracer.visit(subject, visit);
        }
    }

    /// A fragment leaves a stage: the one at that offset, or the oldest there is.
    pub(super) fn leave_stage(
        &mut self,
        (subject, start): (Subject, u64),
        stage: StageIndex,
        offset: Option<u64>,
        now: Nanos,
    ) {
        self.observed.of_mut(subject).passed.leave(stage, now);
        if self.tracer.active.is_some() {
            self.tracer.depart(subject, stage, offset.map(|offset| start + offset), now);
        }
    }
}

/// What is known of a transfer when it begins.
struct Head {
    id: u64,
    operation: Operation,
    route: &'static str,
    bytes: u64,
    offset: u64,
    class: Class,
}

impl Shard {
    /// A transfer or a peer's request begins.
    pub(super) fn trace_begin(&mut self, subject: Subject, now: Nanos) {
        if self.cx.watch.tracer.active.is_none() {
            return;
        }
        let head = match subject {
            Subject::Transfer(key) => {
                self.transfers.get(key).and_then(|it| head_of(it, &self.bodies))
            }
            Subject::Serve(key) => self.serves.get(key).map(|serve| Head {
                id: 0,
                operation: serve.operation(),
                route: serve.route(),
                bytes: serve.length,
                offset: serve.offset,
                class: serve.flow.class,
            }),
        };
        // A sync, or a request for nothing, has no fragments.
        if let Some(head) = head.filter(|head| head.bytes > 0) {
            self.cx.watch.tracer.begin(subject, now, head);
        }
    }

    /// It is over.
    pub(super) fn trace_end(
        &mut self,
        subject: Subject,
        id: u64,
        status: Status,
        plans: (Option<&Arc<Planned>>, Option<Told>),
        now: Nanos,
    ) {
        let planner = &self.cx.planner;
        let Some((traced, _)) = self.cx.watch.tracer.of(subject) else { return };
        let (plan, told) = (plans.0.cloned(), plans.1);
        let seen = traced.visits.iter().map(|visit| visit.stage);
        let planned = plan.iter().flat_map(|plan| plan.path.iter().map(|(stage, _)| stage));
        let mut names: Vec<(StageIndex, String, bool)> = Vec::new();
        for stage in planned.chain(seen) {
            if !names.iter().any(|(known, ..)| *known == stage) {
                let (name, device) = planner.stage_name(stage);
                names.push((stage, name.to_owned(), device));
            }
        }
        traced.names = names;
        traced.id = id;
        traced.ended = Some(Ended { at: now, status, plan, told });
        let all = |recording: &Recording| recording.ended() as usize == recording.wanted;
        if self.cx.watch.tracer.active.as_deref().is_some_and(all) {
            self.cx.watch.tracer.finish();
        }
    }

    /// Whose fragment it is, and where that transfer has its first byte: a part of a copy's is the
    /// copy's.
    pub(super) fn whose(&self, subject: Subject) -> (Subject, u64) {
        let Subject::Transfer(key) = subject else { return (subject, 0) };
        match self.transfers.get(key).map(|transfer| transfer.waiter) {
            Some(Waiter::Copy { parent, chunk }) => {
                (Subject::Transfer(parent), self.chunk_start(parent, chunk))
            }
            _ => (subject, 0),
        }
    }

    fn passed_of(&mut self, subject: Subject) -> Option<&mut super::passed::Passed> {
        let runs = match subject {
            Subject::Transfer(key) => self.transfers.get(key).is_some(),
            Subject::Serve(key) => self.serves.get(key).is_some(),
        };
        runs.then(|| &mut self.cx.watch.observed.of_mut(subject).passed)
    }

    fn began(&self, subject: Subject) -> Nanos {
        let began = match subject {
            Subject::Transfer(key) => self.transfers.get(key).map(|it| it.started),
            Subject::Serve(key) => self.serves.get(key).map(|it| it.started),
        };
        began.unwrap_or_default()
    }

    /// A fragment comes to a stage.
    pub(super) fn enter_stage(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        (offset, bytes): (u64, u32),
        now: Nanos,
    ) {
        let whose = self.whose(subject);
        if self.passed_of(whose.0).is_some() {
            self.cx.watch.enter_stage(whose, stage, (offset, bytes), now);
        }
    }

    /// It leaves: the one at that offset, or the oldest there is.
    pub(super) fn leave_stage(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        offset: Option<u64>,
        now: Nanos,
    ) {
        let whose = self.whose(subject);
        if self.passed_of(whose.0).is_some() {
            self.cx.watch.leave_stage(whose, stage, offset, now);
        }
    }

    /// A fragment of which only at its end is known that it was there. Without `arrived` it came
    /// when the one before it left.
    pub(super) fn pass_stage(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        (offset, bytes): (u64, u32),
        (arrived, departed): (Option<Nanos>, Nanos),
    ) {
        let (subject, start) = self.whose(subject);
        let began = self.began(subject);
        let Some(passed) = self.passed_of(subject) else { return };
        let arrived = arrived.unwrap_or(passed.last(stage)).max(began).min(departed);
        passed.pass(stage, arrived, departed);
        if self.cx.watch.tracer.active.is_some() {
            let offset = start + offset;
            self.cx.watch.tracer.visit(subject, Visit { stage, bytes, offset, arrived, departed });
        }
    }

    /// How far a recording is.
    #[must_use]
    pub fn trace_state(&self) -> TraceState {
        self.cx.watch.tracer.state()
    }

    /// What the last recording has, once it is over.
    #[must_use]
    pub fn recording(&self) -> Option<Arc<Recording>> {
        self.cx.watch.tracer.recording()
    }
}

/// Nothing of the halves of a copy's pieces, which are the copy's.
fn head_of(transfer: &Transfer, bodies: &Bodies) -> Option<Head> {
    if transfer.waiter.is_part() {
        return None;
    }
    Some(Head {
        id: transfer.id,
        operation: transfer.kind,
        route: transfer.body.route(bodies),
        bytes: transfer.length,
        offset: transfer.body.offset(bodies),
        class: transfer.class,
    })
}
