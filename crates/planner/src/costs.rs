//! The stages of a path with their costs, and what the model says of them.

use std::sync::Arc;

use piped_core::limits::{FRAGMENT_BYTES_MAX, write_piece_max};
use piped_model::estimate::Estimate;
use piped_model::evaluate;
use piped_model::fixed::FixedBest;
use piped_model::room::Room;
use piped_model::servers::Servers;
use piped_model::spread::Spread;
use piped_model::stage::{Buffers, StageCost};
use piped_report::shard::Held;

use super::path::{Path, STAGES_MAX, path_of};
use super::stage::{PROBE_BYTES, StageIndex, StageState};

/// A room binds if it takes more than this part of a transfer.
const BINDS: f64 = 0.01;

/// The most fragments that a prediction walks through one by one.
const WALKED_MAX: u64 = 256;

/// Costs of a path that moved by less than the first fraction leave its plans as they are. Costs
/// that moved by more than the second change the plans at once.
pub(super) const MOVED_LITTLE: f64 = 0.02;
pub(super) const MOVED_MUCH: f64 = 0.2;

/// By how much costs count as moved if only a spread is another one: soon, but not at once.
const SPREAD_MOVED: f64 = 0.1;

/// The latest of so many fragments is late by more than this part of a path where a spread counts.
const LATEST_OF: i32 = 16;
const SPREAD_COUNTS: f64 = 0.02;

/// The stages of a path and their costs, in order.
#[derive(Debug, Clone, Default)]
pub struct PathCosts {
    costs: [Option<(StageIndex, Arc<Estimate>)>; STAGES_MAX],
    /// The first stage that this shard's thread serves.
    thread: Option<usize>,
    servers: Servers,
    /// Whether each stage is at a device.
    at_device: [bool; STAGES_MAX],
    /// Whether the path's connection is for urgent requests.
    is_urgent: bool,
    /// What the path's connection lets be under way at once, and its stage.
    held: Option<(usize, Held)>,
    /// The rooms that bind.
    buffers: Buffers,
}

impl PathCosts {
    /// Adds a stage with its published cost.
    pub(super) fn push(&mut self, stage: StageIndex, state: &StageState) {
        // One that comes again stands for the peer's, which is not known.
        let is_ours = state.on_thread && self.iter().all(|(other, _)| other != stage);
        let Some(place) = self.costs.iter().position(Option::is_none) else { return };
        self.costs[place] = Some((stage, state.planned_with()));
        self.at_device[place] = state.at_device;
        self.is_urgent |= state.is_urgent;
        self.held = self.held.or(state.held().map(|held| (place, held)));
        if !is_ours {
            return;
        }
        match self.thread {
            None => self.thread = Some(place),
            // It takes what is ready, and pushes what follows when it is through.
            Some(first) => self.servers = self.servers.with(place, first).in_turns(first),
        }
    }

    /// With the rooms that transfers of so many bytes wait for. Others would only take the time to
    /// look at them.
    pub(super) fn bound(mut self, length: u64) -> Self {
        let rooms = self.rooms(0);
        // Bytes bind most with the largest fragments, and their number with the smallest.
        let binds = |room: &&Room| {
            let one = Buffers::UNLIMITED.over(**room);
            [PROBE_BYTES[0] as u64, FRAGMENT_BYTES_MAX.into()].into_iter().any(|size| {
                let open = self.with(|costs| evaluate::uniform(costs, size, length, None));
                self.delay_by(&one, size, length) > BINDS * open
            })
        };
        let binding = rooms.rooms().filter(binds);
        self.buffers = binding.fold(Buffers::UNLIMITED, |all, room| all.over(*room));
        self
    }

    /// All rooms, where the other side owes so many bytes of credit.
    fn rooms(&self, owed: u64) -> Buffers {
        let held = self.held.map(|(wire, held)| (held, wire..wire + 1));
        held.map_or(Buffers::UNLIMITED, |(held, wire)| held.rooms(self.at_device(), wire, owed))
    }

    /// The rooms that a transfer waits for to which credit is owed.
    pub(super) fn owing(&self, owed: u64) -> Buffers {
        if owed > 0 { self.rooms(owed) } else { self.buffers }
    }

    /// By how much so many bytes in equal fragments take longer because credit is owed, in seconds.
    pub(super) fn owed_seconds(&self, fragment_bytes: u64, length: u64, owed: u64) -> f64 {
        let Some((_, Held::Credit(window))) = self.held.filter(|_| owed > 0) else { return 0.0 };
        // No longer frames are sent, so none waits forever.
        let fragment_bytes = fragment_bytes.min(write_piece_max(window));
        let owing = self.delay_by(&self.rooms(owed), fragment_bytes, length);
        let more = owing - self.delay(fragment_bytes, length);
        if more.is_finite() { more.max(0.0) } else { 0.0 }
    }

    /// The rooms that bind.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// By how much so many bytes in equal fragments take longer because of these, in seconds.
    pub(super) fn delay(&self, fragment_bytes: u64, length: u64) -> f64 {
        if self.buffers.limited() {
            self.delay_by(&self.buffers, fragment_bytes, length)
        } else {
            0.0
        }
    }

    /// By how much these bytes take longer because of the given rooms, in seconds.
    fn delay_by(&self, rooms: &Buffers, fragment_bytes: u64, length: u64) -> f64 {
        self.with(|costs| evaluate::delay(costs, fragment_bytes, length, rooms, &self.servers))
    }

    /// Which of the stages have one server together.
    pub(super) fn servers(&self) -> Servers {
        self.servers
    }

    /// Whether each stage is at a device, in order.
    pub(super) fn at_device(&self) -> &[bool] {
        &self.at_device[..self.iter().count()]
    }

    /// Whether fragments are known to differ at some stage.
    pub(super) fn spreads(&self) -> bool {
        self.iter().any(|(_, cost)| cost.spread.is_some())
    }

    /// Whether plans are for a quantile, and not for the mean.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Whether a prediction needs a walk through all fragments, because stages share a server.
    pub(super) fn is_shared(&self) -> bool {
        self.servers.is_shared(STAGES_MAX)
    }

    /// Calls the model with the costs alone.
    pub(super) fn with<T>(&self, f: impl FnOnce(&[&Estimate]) -> T) -> T {
        let mut known = self.iter().map(|(_, cost)| cost);
        let Some(first) = known.next() else { return f(&[]) };
        let mut costs = [first; STAGES_MAX];
        let mut used = 1;
        for (place, cost) in costs[1..].iter_mut().zip(known) {
            *place = cost;
            used += 1;
        }
        f(&costs[..used])
    }

    /// Whether the path is still what it was: no stage's cost was found to have changed since, and
    /// no window is another one.
    pub(super) fn is_as_before(&self, now: &Self) -> bool {
        let changes = |path: &Self| path.iter().map(|(_, cost)| cost.changes).sum::<u64>();
        changes(self) == changes(now) && self.held == now.held
    }

    /// Predicted latency, in seconds, of a request of so many bytes in eight fragments. Latencies
    /// of plans that are not known any more are compared by it, however costs move.
    pub(super) fn reference(&self, length: u64) -> f64 {
        self.with(|costs| match costs {
            [] => 0.0,
            costs => {
                let bytes = length.div_ceil(8).min(FRAGMENT_BYTES_MAX.into());
                evaluate::uniform(costs, bytes, length, None) + self.delay(bytes, length)
            }
        })
    }

    /// Predicted latency, in seconds, of a plan where stages share a server. Of more than
    /// [`WALKED_MAX`] fragments the rest is taken to leave at a steady pace.
    pub(super) fn walked(&self, plan: &FixedBest, length: u64) -> f64 {
        let walk = |bytes: u64| {
            self.with(|costs| {
                let plan = plan.plan(costs.len(), bytes);
                let walked = evaluate::plan_on(costs, &plan, &Buffers::UNLIMITED, &self.servers);
                walked.unwrap_or(f64::INFINITY)
            })
        };
        evaluate::steadily(plan.fragment_bytes, length, WALKED_MAX, walk)
            + self.delay(plan.fragment_bytes, length)
    }

    /// How long, in seconds, the busiest server works for a request of so many bytes in
    /// `count(stage)` fragments.
    pub(super) fn work(&self, length: u64, count: impl Fn(usize) -> u64) -> f64 {
        self.with(|costs| evaluate::work(costs, length, count, &self.servers))
    }

    /// By how much the costs of a path have moved, as a fraction: alone or at its slowest stage, at
    /// the size where that is most. A large change of a stage of a microsecond is noise to a path
    /// of a millisecond.
    pub(super) fn moved(&self, stages: &[StageState], length: u64) -> f64 {
        let held = |(place, (stage, _)): (usize, (StageIndex, &Estimate))| {
            Some((place, stages.get(usize::from(stage.0))?.held()?))
        };
        let held = match self.iter().enumerate().find_map(held) {
            now if now == self.held => 0.0,
            _ if self.held.is_none() => return f64::INFINITY,
            // Soon, and not at once: a peer may say another window with each frame.
            _ => MOVED_MUCH,
        };
        let sizes = PROBE_BYTES.into_iter().take_while(|&bytes| bytes <= length as f64);
        let sizes = sizes.chain([(length as f64).min(FRAGMENT_BYTES_MAX.into())]);
        let at = |bytes: f64| {
            let (mut way, mut way_moved) = (0.0, 0.0);
            let (mut slowest, mut slowest_now) = (0.0_f64, 0.0_f64);
            for (index, old) in self.iter() {
                let Some(state) = stages.get(usize::from(index.0)) else { return f64::INFINITY };
                let (old, new) = (old.stage_at(bytes), state.published.stage_at(bytes));
                let [from, to] = [old.alone(bytes), new.alone(bytes)];
                (way, way_moved) = (way + from.max(to), way_moved + (from - to).abs());
                slowest = slowest.max(old.occupancy(bytes));
                slowest_now = slowest_now.max(new.occupancy(bytes));
            }
            let part = |moved: f64, of: f64| if of > 0.0 { moved / of } else { 0.0 };
            part(way_moved, way).max(part((slowest - slowest_now).abs(), slowest.max(slowest_now)))
        };
        // What is published anew is not alike ([`Spread::is_like`]).
        let late = |spread: Option<Spread>| spread.map_or(0.0, |it| it.slowest(LATEST_OF));
        let alone = |cost: &Estimate| cost.stage_at(length as f64).alone(length as f64);
        let way = self.with(|costs| costs.iter().map(|cost| alone(cost)).sum::<f64>());
        let is_other = |(index, old): (StageIndex, &Estimate)| {
            let Some(state) = stages.get(usize::from(index.0)) else { return true };
            let [from, to] = [old.spread, state.spread().copied()];
            from != to && late(from).max(late(to)) > SPREAD_COUNTS * way
        };
        let spread = if self.iter().any(is_other) { SPREAD_MOVED } else { 0.0 };
        sizes.map(at).fold(spread.max(held), f64::max)
    }

    /// The path whose costs these are.
    pub fn stages(&self) -> Path {
        path_of(self.iter().map(|(stage, _)| stage))
    }

    /// The stages with their costs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (StageIndex, &Estimate)> {
        self.costs.iter().flatten().map(|(stage, cost)| (*stage, &**cost))
    }
}
