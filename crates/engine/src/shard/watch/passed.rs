//! What a transfer did in each stage, in sums: how many fragments, how long the stage had one of
//! them, and when the last one left. A few additions for each fragment, so that `explain` can
//! compare every transfer with its prediction stage by stage, whether somebody traced it or not.

use piped_core::units::Nanos;
use piped_planner::stage::StageIndex;

/// Stages of one transfer whose sums are kept. A copy from a peer to a peer has most, with all
/// dials nine: two lanes, five dials, the checksum, and the row of the peers' own time.
const STAGES_PASSED_MAX: usize = 10;

/// The sums of one transfer, stage by stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    /// When the first fragment came to a stage; [`Nanos::MAX`] before.
    first: Nanos,
    /// So many stages of these.
    count: u8,
    stages: [Pass; STAGES_PASSED_MAX],
}

/// The sums of one stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    pub(super) stage: StageIndex,
    /// Fragments in it now.
    inside: u16,
    pub(super) fragments: u32,
    /// Since when there is one.
    since: Nanos,
    /// Time in which there was one.
    pub(super) busy: Nanos,
    /// When the last one left.
    pub(super) last: Nanos,
}

impl Pass {
    const fn of(stage: StageIndex) -> Self {
        let (since, busy, last) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        Self { stage, inside: 0, fragments: 0, since, busy, last }
    }
}

impl Default for Passed {
    fn default() -> Self {
        let none = Pass::of(StageIndex::NONE);
        Self { first: Nanos::MAX, count: 0, stages: [none; STAGES_PASSED_MAX] }
    }
}

impl Passed {
    /// Begins anew: nothing was passed yet.
    pub(super) fn clear(&mut self) {
        (self.first, self.count) = (Nanos::MAX, 0);
    }

    fn at(&mut self, stage: StageIndex) -> Option<&mut Pass> {
        if stage == StageIndex::NONE {
            return None;
        }
        let count = usize::from(self.count);
        let known = self.iter().position(|pass| pass.stage == stage);
        let place = self.stages.get_mut(known.unwrap_or(count))?;
        if known.is_none() {
            self.count += 1;
            *place = Pass::of(stage);
        }
        Some(place)
    }

    /// A fragment comes to a stage.
    pub(super) fn enter(&mut self, stage: StageIndex, now: Nanos) {
        self.first = self.first.min(now);
        let Some(pass) = self.at(stage) else { return };
        if pass.inside == 0 {
            pass.since = now.max(pass.last);
        }
        pass.inside = pass.inside.saturating_add(1);
    }

    /// A fragment leaves a stage.
    pub(super) fn leave(&mut self, stage: StageIndex, now: Nanos) {
        let mut places = self.stages[..usize::from(self.count)].iter_mut();
        let Some(pass) = places.find(|pass| pass.stage == stage && pass.inside > 0) else { return };
        pass.fragments = pass.fragments.saturating_add(1);
        pass.inside -= 1;
        pass.last = pass.last.max(now);
        if pass.inside == 0 {
            pass.busy = pass.busy + now.since(pass.since);
        }
    }

    /// A fragment of which only at its end is known that it was there.
    pub(super) fn pass(&mut self, stage: StageIndex, arrived: Nanos, departed: Nanos) {
        self.first = self.first.min(arrived);
        let Some(pass) = self.at(stage) else { return };
        pass.fragments = pass.fragments.saturating_add(1);
        if pass.inside == 0 {
            pass.busy = pass.busy + departed.since(arrived.max(pass.last));
        }
        pass.last = pass.last.max(departed);
    }

    /// When the first fragment came to a stage; nothing if none did.
    pub(super) fn first(&self) -> Option<Nanos> {
        (self.first < Nanos::MAX).then_some(self.first)
    }

    /// When the last fragment left a stage; [`Nanos::ZERO`] if none did.
    pub(super) fn last(&self, stage: StageIndex) -> Nanos {
        self.iter().find(|pass| pass.stage == stage).map_or(Nanos::ZERO, |pass| pass.last)
    }

    /// The stages, in the order in which they were first passed.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Pass> {
        self.stages[..usize::from(self.count)].iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos;

    #[test]
    fn time_with_several_fragments_counts_once() {
        let mut passed = Passed::default();
        let (disk, net) = (StageIndex(3), StageIndex(1));
        passed.enter(disk, AT(10));
        passed.enter(disk, AT(12));
        passed.leave(disk, AT(20));
        passed.enter(disk, AT(21));
        passed.leave(disk, AT(30));
        passed.leave(disk, AT(40));
        passed.enter(disk, AT(100));
        passed.leave(disk, AT(105));
        passed.pass(net, AT(15), AT(25));
        passed.pass(net, AT(15), AT(45));
        let all: Vec<_> =
            passed.iter().map(|it| (it.stage, it.fragments, it.busy.0, it.last.0)).collect();
        assert_eq!(all, [(disk, 4, 35, 105), (net, 2, 30, 45)]);
    }

    #[test]
    fn what_never_came_does_not_leave_and_what_finds_no_place_is_left_out() {
        let mut passed = Passed::default();
        passed.leave(StageIndex(0), AT(9));
        assert_eq!(passed.last(StageIndex(0)), Nanos::ZERO);
        for stage in 0..20 {
            passed.pass(StageIndex(stage), AT(1), AT(2));
        }
        assert_eq!(passed.iter().count(), STAGES_PASSED_MAX);
    }
}
