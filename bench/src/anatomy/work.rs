//! What a request costs each process at full speed.

use std::cell::RefCell;

use perf_event::events::Tracepoint;
use serde::Serialize;

use super::census::{Census, Counted};
use crate::ab::Turn;
use crate::ab::process::{Arm, PROCESSES};
use crate::contest;
use crate::failure::Failure;
use crate::stats::{Interval, median};

/// Length of a round, in seconds.
const ROUND: f64 = 0.2;

/// What is counted where this machine can.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counters {
    pub(crate) hardware: bool,
    pub(crate) calls: Option<Tracepoint>,
}

/// The rounds of a life.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Work {
    /// Median latency, in seconds, over rounds.
    pub(crate) latency: Interval,
    pub(crate) requests: u64,
    pub(crate) discarded: u32,
    pub(crate) processes: [Cost; PROCESSES.len()],
}

/// What a request costs one process: medians over rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Cost {
    pub(crate) cpu_ns: f64,
    /// Cycles in user mode; none without counters.
    pub(crate) cycles: Option<f64>,
    /// System calls; none if they cannot be counted here.
    pub(crate) system_calls: Option<f64>,
    pub(crate) voluntary_switches: f64,
    pub(crate) involuntary_switches: f64,
}

impl Work {
    /// Does the task in rounds.
    pub(super) fn of(
        arm: &mut Arm,
        task: &str,
        rounds: u32,
        counters: Counters,
    ) -> Result<Self, Failure> {
        let turns: RefCell<Vec<(Turn, [Counted; PROCESSES.len()])>> = RefCell::default();
        let measure = || {
            let begin = |process| Census::begin(process, counters.calls);
            let [client, asked, serving] = arm.processes().map(begin);
            let begun = [client?, asked?, serving?];
            let turn = arm.turn(task, ROUND, counters.hardware)?;
            let [client, asked, serving] = begun.map(Census::end);
            turns.borrow_mut().push((turn, [client?, asked?, serving?]));
            Ok(turn.measured.seconds)
        };
        let mut arms = [contest::Arm::variant(task.to_owned(), measure)];
        let found = contest::run_long(rounds, &mut arms)?;
        drop(arms);
        let all = turns.into_inner();
        let kept: Vec<_> =
            found.kept.iter().filter_map(|round| all.get(round.number as usize - 1)).collect();
        let costs = |place: usize| {
            let of = |figure: &dyn Fn(&Turn, &Counted) -> Option<f64>| {
                let figures: Option<Vec<f64>> = kept
                    .iter()
                    .map(|(turn, counted)| {
                        let requests = turn.measured.requests.max(1) as f64;
                        Some(figure(turn, &counted[place])? / requests)
                    })
                    .collect();
                median(&figures?)
            };
            Cost {
                cpu_ns: of(&|turn, _| Some(turn.counts[place].cpu_seconds * 1e9))
                    .unwrap_or(f64::NAN),
                cycles: of(&|turn, _| Some(turn.counts[place].hardware?[1])),
                system_calls: of(&|_, counted| counted.calls),
                voluntary_switches: of(&|_, counted| Some(counted.switches.voluntary as f64))
                    .unwrap_or(f64::NAN),
                involuntary_switches: of(&|_, counted| Some(counted.switches.involuntary as f64))
                    .unwrap_or(f64::NAN),
            }
        };
        Ok(Self {
            latency: found.all(|round| round.values[0])?,
            requests: kept.iter().map(|(turn, _)| turn.measured.requests).sum(),
            discarded: found.discarded,
            processes: [costs(0), costs(1), costs(2)],
        })
    }
}
