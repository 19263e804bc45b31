//! A recording in words, with the schedules that its plans promised beside what was measured.

use piped_core::units::Nanos;
use piped_planner::planned::Planned;
use piped_planner::schedule;
use piped_planner::schedule::{Level, Rows};
use piped_planner::stage::StageIndex;
use piped_report::tally::Operation;
use piped_report::trace::{TransferTrace, Visit};

use super::{Recording, Traced};
use crate::shard::keys::Subject;

impl Recording {
    /// When the first transfer began, by the shard's clock.
    #[must_use]
    pub fn began(&self) -> Option<Nanos> {
        self.traced.iter().map(|traced| traced.began).min()
    }

    /// What was recorded, in the order in which the transfers began, which is told from `first` on.
    /// Takes the time of evaluating every plan: not for a shard's thread.
    #[must_use]
    pub fn report(&self, first: Nanos) -> Vec<TransferTrace> {
        self.traced.iter().map(|traced| traced.report(first, self.visits_each)).collect()
    }
}

impl Traced {
    fn report(&self, first: Nanos, most: usize) -> TransferTrace {
        let ended = self.ended.as_ref();
        let plan = ended.and_then(|ended| ended.plan.as_deref());
        let told = ended.and_then(|ended| ended.told).filter(|_| plan.is_none());
        let owed = ended.map_or(0, |ended| ended.owed);
        let seen = self.visits.iter().map(|visit| visit.stage);
        let rows = Rows::new(plan, seen, |stage| self.name(stage));
        let visits = self.visits.iter().map(|visit| Visit {
            stage: rows.of(visit.stage) as u32,
            offset: visit.offset,
            bytes: visit.bytes.into(),
            arrived_ns: visit.arrived.since(self.began).0,
            departed_ns: (visit.departed < Nanos::MAX).then(|| visit.departed.since(self.began).0),
        });
        let predicted = match (plan, told) {
            (Some(plan), _) => {
                let bytes = self.head.bytes;
                (plan.predicted_for(bytes) + plan.owed(bytes, owed)).seconds()
            }
            (None, Some(told)) => told.predicted.seconds(),
            (None, None) => 0.0,
        };
        TransferTrace {
            id: self.head.id,
            operation: self.head.operation.name().to_owned(),
            served: self.is_served(),
            route: self.head.route.to_owned(),
            bytes: self.head.bytes,
            class: self.head.class,
            status: ended.map(|ended| ended.status),
            began_ns: self.began.since(first).0,
            chosen: match (plan, told) {
                (Some(plan), _) => plan.chosen.to_string(),
                (None, Some(_)) => String::from("by the peer"),
                (None, None) => String::from("none needed"),
            },
            depth: plan.map_or(0, |plan| plan.cut.depth),
            levels: plan.map_or_else(Vec::new, |plan| {
                schedule::levels(plan, &rows.levels, (self.head.offset, self.head.bytes))
            }),
            owed_bytes: owed,
            predicted_seconds: predicted,
            margin_seconds: plan.map_or(0.0, |plan| plan.margin.seconds()),
            measured_seconds: ended.map(|ended| ended.at.since(self.began).seconds()),
            measured: visits.collect(),
            predicted: plan
                .map_or_else(Vec::new, |plan| self.promised(plan, &rows.levels, owed, most)),
            lost: self.lost,
            notes: self.notes(plan.is_some(), told.is_some()),
            stages: rows.names,
        }
    }

    fn promised(&self, plan: &Planned, levels: &[Level], owed: u64, most: usize) -> Vec<Visit> {
        let nanos = |seconds: f64| Nanos::from_seconds(seconds).0;
        let range = (self.head.offset, self.head.bytes);
        let schedule = schedule::schedule(plan, levels, range, owed, most).unwrap_or_default();
        let visit = |it: schedule::Promised| Visit {
            stage: it.stage as u32,
            offset: it.offset,
            bytes: it.bytes,
            arrived_ns: nanos(it.arrived),
            departed_ns: Some(nanos(it.departed)),
        };
        schedule.into_iter().map(visit).collect()
    }

    fn notes(&self, planned: bool, told: bool) -> Vec<String> {
        let mut notes = Vec::new();
        let mut say = |text: String| notes.push(text);
        let lane = self.head.route.contains("lane");
        let gives =
            matches!(self.head.operation, Operation::Read | Operation::Get) == self.is_served();
        if lane && told {
            say(String::from(
                "The peer planned it and served it. Of its stages only the time is known that each \
                 piece tells (stage `peer`); the trace of its daemon shows them and the plan.",
            ));
        }
        if lane && gives {
            say(String::from(
                "A piece has left the lane here when the kernel has taken it. When it arrives only \
                 the peer sees, and what its stages take: the prediction has them, the measurement \
                 has not.",
            ));
        }
        if self.lost > 0 {
            say(format!(
                "{} visits more were not recorded: trace fewer transfers at a time.",
                self.lost
            ));
        }
        if self.ended.is_none() {
            say(String::from("It had not ended when the recording was stopped."));
        } else if !planned && !told {
            say(String::from("It needed no plan."));
        }
        notes
    }
}

impl Traced {
    fn is_served(&self) -> bool {
        matches!(self.subject, Subject::Serve(_))
    }

    /// A stage's name, and whether it is a device.
    fn name(&self, stage: StageIndex) -> (&str, bool) {
        let known = self.names.iter().find(|(known, ..)| *known == stage);
        known.map_or(("?", false), |(_, name, device)| (name, *device))
    }
}
