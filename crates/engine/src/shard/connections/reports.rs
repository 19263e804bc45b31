//! What the two sides of a lane have told each other of stages that the other one cannot see.

use piped_core::limits;
use piped_core::link::{LaneClass, ReportedStage};
use piped_core::units::Nanos;
use piped_model::estimate::{REGIMES, Summary};
use piped_planner::plan::Planner;
use piped_planner::stage::StageIndex;
use piped_planner::told::Told;
use piped_report::shard::StageResource;
use piped_wire::Message;

/// Reports of the wire after which a stage is gone that was not reported meanwhile.
const SILENT_MAX: u8 = 64;

/// Disks that a lane's peer may report, by the handles of files on them.
const DISKS_MAX: usize = 8;

/// No handle has that number.
const NOBODY: u32 = u32::MAX;

/// Stages of a lane as a whole.
pub(in crate::shard) const KINDS: [ReportedStage; 4] =
    [ReportedStage::Net, ReportedStage::Check, ReportedStage::DialNet, ReportedStage::DialReceive];

/// The most that is told of a stage at once.
const NEWS_MAX: usize = 2 * REGIMES;

/// What a lane tells, and is told.
#[derive(Debug)]
pub(in crate::shard) struct Reports {
    told: [Told; KINDS.len()],
    heard: [Heard; KINDS.len()],
    told_disks: [(u32, [Told; 2]); DISKS_MAX],
    heard_disks: [(u32, [Heard; 2]); DISKS_MAX],
    /// When a handle took the place of another one.
    replaced: Nanos,
}

/// What we know of a stage of the other side.
#[derive(Debug, Clone, Copy)]
struct Heard {
    stage: StageIndex,
    at: Nanos,
    /// Claims that still count as told together with the first one then.
    left: u8,
    /// Reports of the wire since.
    silent: u8,
}

impl Default for Heard {
    fn default() -> Self {
        Self { stage: StageIndex::NONE, at: Nanos::ZERO, left: 0, silent: 0 }
    }
}

impl Reports {
    pub(in crate::shard) fn new() -> Self {
        Self {
            told: Default::default(),
            heard: Default::default(),
            told_disks: [(NOBODY, Default::default()); DISKS_MAX],
            heard_disks: [(NOBODY, Default::default()); DISKS_MAX],
            replaced: Nanos::ZERO,
        }
    }

    /// What the other side was told of the stages in [`KINDS`].
    pub(in crate::shard) fn told_mut(&mut self) -> &mut [Told; KINDS.len()] {
        &mut self.told
    }

    /// What the other side was told of the disk below a handle: writes, and their dial.
    pub(in crate::shard) fn told_of_disk(&mut self, handle: u32) -> Option<&mut [Told; 2]> {
        place_for(&mut self.told_disks, handle);
        self.told_disks.iter_mut().find(|(of, _)| *of == handle).map(|(_, told)| told)
    }

    /// Whether there is a place for a handle's disk, or it is time that somebody gives one up.
    fn may_hear(&mut self, handle: u32, now: Nanos) -> bool {
        if self.heard_disks.iter().any(|&(of, _)| of == handle || of == NOBODY) {
            return handle != NOBODY;
        }
        let is_time = now >= self.replaced + limits::REPORT_PAUSE;
        if is_time {
            self.replaced = now;
        }
        is_time
    }

    fn stage(&self, kind: ReportedStage) -> StageIndex {
        let place = KINDS.iter().position(|other| *other == kind);
        place.map_or(StageIndex::NONE, |place| self.heard[place].stage)
    }

    /// What the peer reports of the way from the wire to its memory: two dials, and its checksum.
    pub(in crate::shard) fn behind_wire(&self) -> [StageIndex; 3] {
        [ReportedStage::DialNet, ReportedStage::DialReceive, ReportedStage::Check]
            .map(|kind| self.stage(kind))
    }

    /// What it reports of its disk below a handle: writes, and their dial.
    pub(in crate::shard) fn disk_of(&self, handle: u32) -> [StageIndex; 2] {
        let known = self.heard_disks.iter().find(|(of, _)| *of == handle);
        known.map_or([StageIndex::NONE; 2], |(_, heard)| heard.map(|heard| heard.stage))
    }

    /// A plan is made for a handle on a file: before the first report of its disk there is a stage
    /// with what a disk is taken to cost, as far as there are places for it. Without one a first
    /// write would be cut as if it went to memory.
    pub(in crate::shard) fn expect_disk(
        &mut self,
        handle: u32,
        of: Reported<'_>,
        planner: &mut Planner,
    ) {
        let known = self.heard_disks.iter().any(|&(at, _)| at == handle);
        let free = self.heard_disks.iter().any(|&(at, _)| at == NOBODY);
        if let Some(peer) = of.peer.filter(|_| !known && free && of.outbound) {
            place_for(&mut self.heard_disks, handle);
            let kind = ReportedStage::DiskWrite;
            let (peer, class, outbound) = (peer.to_owned(), of.class, of.outbound);
            let what = StageResource::Peer { peer, class, outbound, stage: kind, handle };
            if let Some(heard) = self.heard_mut(kind, handle) {
                heard.stage = planner.peer_stage(what);
            }
        }
    }

    /// All stages that the peer has reported.
    fn stages(&self) -> impl Iterator<Item = StageIndex> + '_ {
        // The wire's is the lane's own.
        let lane = self.heard[1..].iter();
        let all = lane.chain(self.heard_disks.iter().flat_map(|(_, heard)| heard));
        all.map(|heard| heard.stage).filter(|&stage| stage != StageIndex::NONE)
    }

    /// The place of a stage's report; one of a handle that is new takes the place of the oldest.
    fn heard_mut(&mut self, kind: ReportedStage, handle: u32) -> Option<&mut Heard> {
        if let Some(place) = KINDS.iter().position(|other| *other == kind) {
            return self.heard.get_mut(place);
        }
        let way = match kind {
            ReportedStage::DiskWrite => 0,
            ReportedStage::DialDiskWrite => 1,
            _ => return None,
        };
        self.heard_disks.iter_mut().find(|(of, _)| *of == handle).map(|(_, heard)| &mut heard[way])
    }

    /// The peer says what a stage of our sends costs there.
    pub(in crate::shard) fn hear(
        &mut self,
        report: Message,
        of: Reported<'_>,
        planner: &mut Planner,
        now: Nanos,
    ) {
        let Message::Report { stage: kind, handle, weight, last, .. } = report else { return };
        let by_handle = matches!(kind, ReportedStage::DiskWrite | ReportedStage::DialDiskWrite);
        let is_gone = weight == 0;
        // Only who writes there has use for a peer's disk.
        if by_handle && !of.outbound {
            return;
        }
        if by_handle && !is_gone {
            if !self.may_hear(handle, now) {
                return;
            }
            let replaced = place_for(&mut self.heard_disks, handle);
            replaced.into_iter().flatten().for_each(|old| planner.forget_stage(old.stage));
        }
        let Some(heard) = self.heard_mut(kind, handle) else { return };
        if heard.at == Nanos::ZERO || now >= heard.at + limits::REPORT_PAUSE {
            (heard.at, heard.left) = (now, NEWS_MAX as u8);
        }
        let Some(left) = heard.left.checked_sub(1) else { return };
        heard.left = if last || is_gone { 0 } else { left };
        heard.silent = 0;
        let Some(claim) = claimed(report) else { return };
        if kind == ReportedStage::Net {
            planner.handle_report(of.stage_out, &claim, last);
            if last {
                self.forget_silent(planner);
            }
            return;
        }
        if is_gone {
            // When it was heard of stays: to make stages and forget them costs more than to be told
            // of it.
            return planner.forget_stage(std::mem::replace(&mut heard.stage, StageIndex::NONE));
        }
        if heard.stage == StageIndex::NONE {
            let (Some(peer), Reported { class, outbound, .. }) = (of.peer, of) else { return };
            let peer = peer.to_owned();
            let what = StageResource::Peer { peer, class, outbound, stage: kind, handle };
            heard.stage = planner.peer_stage(what);
        }
        planner.handle_report(heard.stage, &claim, last);
    }

    /// The wire was reported again and again, and another stage was not.
    fn forget_silent(&mut self, planner: &mut Planner) {
        for heard in &mut self.heard[1..] {
            heard.silent = heard.silent.saturating_add(1);
            if heard.stage != StageIndex::NONE && heard.silent >= SILENT_MAX {
                planner.forget_stage(std::mem::take(heard).stage);
            }
        }
    }

    /// The lane is over, and what was reported on it with it.
    pub(in crate::shard) fn forget(&self, planner: &mut Planner) {
        self.stages().for_each(|stage| planner.forget_stage(stage));
    }
}

/// What a report is of: a lane of ours, and the node at its other end.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Reported<'a> {
    peer: Option<&'a str>,
    class: LaneClass,
    /// We ask there, and write.
    outbound: bool,
    stage_out: StageIndex,
}

impl<'a> Reported<'a> {
    /// Reports of a node at the other end of a lane of this class. `outbound`: we ask there.
    pub(in crate::shard) fn new(
        peer: Option<&'a str>,
        (class, outbound): (LaneClass, bool),
        stage_out: StageIndex,
    ) -> Self {
        Self { peer, class, outbound, stage_out }
    }
}

/// Handles take the places of others in turn: with more in use than there are places the last ones
/// are known.
fn place_for<T: Default>(disks: &mut [(u32, T); DISKS_MAX], handle: u32) -> Option<T> {
    if disks.iter().any(|(of, _)| *of == handle) {
        return None;
    }
    disks.rotate_right(1);
    Some(std::mem::replace(&mut disks[0], (handle, T::default())).1)
}

/// What a report claims: not yet within what can be.
fn claimed(report: Message) -> Option<Summary> {
    let Message::Report {
        backlogged,
        weight,
        size_bytes,
        spread_bytes,
        cost_ps,
        slope_fs,
        deviation_pm,
        ..
    } = report
    else {
        return None;
    };
    Some(Summary {
        backlogged,
        weight: weight.into(),
        bytes: size_bytes.into(),
        spread: spread_bytes.into(),
        seconds: cost_ps as f64 * 1e-12,
        slope: slope_fs as f64 * 1e-15,
        deviation: f64::from(deviation_pm) * 1e-3,
    })
}
