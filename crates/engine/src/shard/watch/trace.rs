//! Records when each fragment of the next few transfers comes to a stage and leaves it.
//!
//! Off, which is nearly always, it costs one branch at each of those places beside the sums of
//! the request. Its memory is taken when it is armed and has a bound; a fragment more than
//! there is room for is counted. What it recorded is handed out as it is and made into words and
//! predictions elsewhere ([`Recording::report`]), because a shard's thread has other things to do.

use std::sync::Arc;

use piped_core::limits::{TRACE_TRANSFERS_MAX, TRACE_VISITS_MAX};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::plan::Planner;
use piped_planner::planned::Planned;
use piped_planner::stage::StageIndex;
use piped_report::trace::TraceState;

use super::history::{Head, Outcome};
use super::told::Told;
use crate::shard::keys::Subject;

mod report;

/// A fragment in a stage. Its times are those of the shard's clock.
#[derive(Debug, Clone, Copy)]
struct Visit {
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
    head: Head,
    began: Nanos,
    ended: Option<Ended>,
    visits: Vec<Visit>,
    lost: u32,
    /// The visits' stages and the plan's, with their names, and whether they are devices: places of
    /// stages are used again.
    names: Vec<(StageIndex, String, bool)>,
}

/// How a transfer ended.
#[derive(Debug)]
struct Ended {
    at: Nanos,
    status: Status,
    plan: Option<Arc<Planned>>,
    told: Option<Told>,
    owed: u64,
}

/// What was recorded. See [`Recording::report`].
#[derive(Debug, Default)]
pub struct Recording {
    number: u64,
    wanted: usize,
    visits_each: usize,
    traced: Vec<Traced>,
}

/// What is recorded now, and what was recorded last.
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

    /// Whether something is being recorded.
    pub(super) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// A request begins. A sync, or a request for nothing, has no fragments.
    pub(super) fn begin(&mut self, subject: Subject, began: Nanos, head: Head) {
        let Some(recording) = self.active.as_deref_mut() else { return };
        if recording.traced.len() == recording.wanted || head.bytes == 0 {
            return;
        }
        recording.traced.push(Traced {
            subject,
            head,
            began,
            ended: None,
            visits: Vec::with_capacity(recording.visits_each),
            lost: 0,
            names: Vec::new(),
        });
    }

    /// Bytes that are recorded of a transfer in a stage.
    pub(super) fn passed_bytes(&mut self, subject: Subject, stage: StageIndex) -> u64 {
        let Some((traced, _)) = self.of(subject) else { return 0 };
        let its = traced.visits.iter().filter(|visit| visit.stage == stage);
        its.map(|visit| u64::from(visit.bytes)).sum()
    }

    /// A fragment is in a stage, or was.
    pub(super) fn visit(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        (offset, bytes): (u64, u32),
        (arrived, departed): (Nanos, Option<Nanos>),
    ) {
        let Some((traced, most)) = self.of(subject) else { return };
        if traced.visits.len() < most {
            let departed = departed.unwrap_or(Nanos::MAX);
            traced.visits.push(Visit { stage, bytes, offset, arrived, departed });
        } else {
            traced.lost += 1;
        }
    }

    /// The oldest fragment in a stage leaves, or the one at that offset.
    pub(super) fn depart(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        offset: Option<u64>,
        now: Nanos,
    ) {
        let Some((traced, _)) = self.of(subject) else { return };
        let is_it = |visit: &&mut Visit| {
            visit.stage == stage
                && visit.departed == Nanos::MAX
                && offset.is_none_or(|offset| visit.offset == offset)
        };
        if let Some(visit) = traced.visits.iter_mut().find(is_it) {
            // `now` may be older than what a look at the clock between told of its coming.
            visit.departed = now.max(visit.arrived);
        }
    }

    /// A request is over; `id` is its number.
    pub(super) fn end(
        &mut self,
        subject: Subject,
        (id, outcome): (u64, &Outcome),
        planner: &Planner,
        now: Nanos,
    ) {
        let Some((traced, _)) = self.of(subject) else { return };
        let Outcome { status, ref plan, told, beyond: (_, owed), .. } = *outcome;
        let seen = traced.visits.iter().map(|visit| visit.stage);
        let planned = plan.iter().flat_map(|plan| plan.path.iter().map(|(stage, _)| stage));
        for stage in planned.chain(seen) {
            if !traced.names.iter().any(|(known, ..)| *known == stage) {
                let (name, device) = planner.stage_name(stage);
                traced.names.push((stage, name.to_owned(), device));
            }
        }
        traced.head.id = id;
        traced.ended = Some(Ended { at: now, status, plan: plan.clone(), told, owed });
        let all = |recording: &Recording| recording.ended() as usize == recording.wanted;
        if self.active.as_deref().is_some_and(all) {
            self.finish();
        }
    }
}

impl Recording {
    fn ended(&self) -> u32 {
        self.traced.iter().filter(|traced| traced.ended.is_some()).count() as u32
    }
}
