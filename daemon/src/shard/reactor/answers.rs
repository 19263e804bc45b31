//! Answers of a shard's thread to questions: copies of counts, nothing that grows with the number
//! of requests.

use super::super::message::{
    LimitView, Question, ReactorReport, ShardObservation, ShardSession, ShardStatus, ShardView,
};
use super::Reactor;
use crate::io::clock;
use crate::limits::{FILES_MAX, TRANSFERS_LISTED_MAX};

impl Reactor {
    pub(super) fn answer(&mut self, question: Question) {
        // The asking task may have given up.
        match question {
            Question::Alive(asker) => drop(asker.send(())),
            Question::Report(asker) => drop(asker.send(self.view())),
            Question::Limits(asker) => {
                let report = self.shard.report();
                drop(asker.send(LimitView {
                    staging_bytes: report.staging_bytes,
                    limits: report.limits,
                    parties: self.shard.limit_parties(),
                }));
            }
            Question::Arrivals(asker) => drop(asker.send(self.shard.arrivals(clock::now()))),
            Question::StagingMissing(bytes, asker) => {
                let _ = asker.send(self.shard.staging_missing(bytes));
            }
            Question::Stages(asker) => drop(asker.send(self.shard.stages())),
            Question::Kept(asker) => drop(asker.send(self.shard.kept())),
            Question::Draft(ask, asker) => {
                drop(asker.send(self.shard.draft(&ask).map(Box::new)));
            }
            Question::Costs { session, handle, write, answer } => {
                let _ = answer.send(self.shard.path_costs(session, handle, write));
            }
            Question::Dials(asker) => drop(asker.send(self.shard.dials())),
            Question::Observe(asker) => drop(asker.send(self.observe())),
            Question::Sessions(asker) => drop(asker.send(self.session_uses())),
            Question::Transfers { ended: true, now, answer } => {
                let ended = self.shard.ended(now, TRANSFERS_LISTED_MAX);
                drop(answer.send((ended.len() as u32, ended)));
            }
            Question::Transfers { ended: false, now, answer } => {
                drop(answer.send(self.shard.running(now, TRANSFERS_LISTED_MAX)));
            }
            Question::Trace(asker) => {
                drop(asker.send((self.shard.trace_state(), self.shard.recording())));
            }
            Question::Explain(id, asker) => {
                drop(asker.send(self.shard.explain(id).map(Box::new)));
            }
        }
    }

    fn view(&self) -> ShardView {
        #[cfg(feature = "count-allocations")]
        let allocations = Some(piped_ring::allocations::of_this_thread());
        #[cfg(not(feature = "count-allocations"))]
        let allocations = None;
        let reactor = ReactorReport { allocations, ..self.report() };
        let status = ShardStatus { engine: self.shard.report(), reactor };
        let (tier, degraded) = (self.io.tier(), self.io.degraded());
        let view = ShardView { status, tier, degraded, evictions: self.evictions };
        #[cfg(feature = "count-allocations")]
        allocations.into_iter().for_each(piped_ring::allocations::forget_since);
        view
    }

    fn report(&self) -> ReactorReport {
        let driver = self.io.counters();
        let (files, segments) = self.io.holds();
        ReactorReport {
            cpu: self.place.0,
            numa_node: self.place.1,
            turns: self.turns,
            sleeps: self.sleeps,
            taken: self.sessions.taken,
            evictions: self.evictions.iter().sum(),
            stalls: self.sessions.stalls,
            spin_nanoseconds: self.spinner.budget_ns(),
            syscalls: driver.syscalls() + self.sessions.doorbells,
            waits: driver.waits,
            buffers_registered: driver.buffers_fixed,
            buffers_unregistered: driver.buffers_plain,
            files,
            files_limit: FILES_MAX,
            segments,
            registered_bytes: driver.registered_bytes,
            allocations: None,
        }
    }

    fn observe(&self) -> ShardObservation {
        ShardObservation {
            engine: self.shard.observe(),
            // Computed later, on a thread that nobody waits for.
            early_required_bytes: 0,
            reactor: self.report(),
            evictions: self.evictions,
            malformed: self.malformed,
        }
    }

    fn session_uses(&self) -> Vec<ShardSession> {
        let uses = self.shard.sessions().into_iter().filter_map(|engine| {
            let (class, requests) = self.sessions.use_of(engine.session)?;
            Some(ShardSession { engine, class, requests })
        });
        uses.collect()
    }
}
