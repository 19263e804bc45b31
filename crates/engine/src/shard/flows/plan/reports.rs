//! What the two sides of a lane tell each other of stages that the other one cannot see.
//!
//! Who holds the data plans; what it passes behind the wire is known only where it arrives: the
//! wire itself, the checksum there, what is dialled there, and for writes the disk. A report is a
//! claim: it is bounded, and it makes stages of this lane only, which no other path has. A stage
//! that is not there any more is reported as gone, and one of which nothing is heard any more is
//! taken for gone.

use piped_core::ids::DeviceId;
use piped_core::link::ReportedStage;
use piped_core::units::Nanos;
use piped_model::estimate::Summary;
use piped_planner::stage::StageIndex;
use piped_planner::told::Told;
use piped_wire::Message;

use crate::shard::Shard;
use crate::shard::connections::{KINDS, Lane, LaneState};
use crate::shard::cx::Cx;
use crate::shard::delays::Hop;
use crate::shard::keys::LaneKey;
use crate::shard::sched::Work;

impl Shard {
    /// Tells the sending side what its data's stages cost here, as far as there is news.
    pub(in crate::shard) fn report_stages(&mut self, key: LaneKey, now: Nanos) {
        let Some(lane) = self.lanes.get(key) else { return };
        let sources = [
            [StageIndex::NONE, lane.stage_in],
            [StageIndex::NONE, lane.check_stage(&self.cx.planner)],
            self.dial_stages(key, Hop::Net),
            self.dial_stages(key, Hop::Receive),
        ];
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let mut told = *lane.reports.told_mut();
        for ((kind, told), source) in KINDS.into_iter().zip(&mut told).zip(sources) {
            tell((key, lane), (kind, 0), source, told, &mut self.cx, now);
        }
        *lane.reports.told_mut() = told;
    }

    /// The stages of the dial that a frame passes there behind the wire of a lane; one look where
    /// nobody has dialled.
    pub(in crate::shard) fn dial_stages(&self, key: LaneKey, hop: Hop) -> [StageIndex; 2] {
        match self.cx.dials.any() {
            true => self.dials_in(key, hop),
            false => [StageIndex::NONE; 2],
        }
    }

    /// Tells the requester of writes what its file's disk costs here.
    pub(in crate::shard) fn report_disk(
        &mut self,
        key: LaneKey,
        handle: u32,
        device: DeviceId,
        now: Nanos,
    ) {
        let disk = self.cx.planner.disk_stage(device, true);
        let dial = self.cx.dials.of_disk(device, true);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let Some(told) = lane.reports.told_of_disk(handle) else { return };
        let mut told = *told;
        let [of_disk, of_dial] = &mut told;
        let (source, cx) = ([StageIndex::NONE, disk], &mut self.cx);
        tell((key, lane), (ReportedStage::DiskWrite, handle), source, of_disk, cx, now);
        tell((key, lane), (ReportedStage::DialDiskWrite, handle), dial, of_dial, cx, now);
        if let Some(place) = lane.reports.told_of_disk(handle) {
            *place = told;
        }
    }

    /// A dial is set or cleared. Where a frame may come unasked the other side is told at once:
    /// answers must not be mixed with what nobody asked for, so peers that write here hear of it
    /// with their next write.
    pub(in crate::shard) fn report_dials(&mut self, now: Nanos) {
        let mut from = 0;
        while let Some(key) = self
            .lanes
            .next_from(&mut from, |lane| lane.asking().is_some() && lane.state == LaneState::Up)
        {
            self.report_stages(key, now);
        }
    }
}

/// Tells the other side of a lane of a stage, if there is news. `host` is the thread's part of it.
fn tell(
    (key, lane): (LaneKey, &mut Lane),
    (kind, handle): (ReportedStage, u32),
    [host, stage]: [StageIndex; 2],
    told: &mut Told,
    cx: &mut Cx,
    now: Nanos,
) {
    // Answers come first.
    if !lane.has_room_for_data() {
        return;
    }
    // Where a dial has nothing but the thread's time, that is its stage.
    let (host, stage) = if stage == StageIndex::NONE { (stage, host) } else { (host, stage) };
    if stage == StageIndex::NONE {
        let known = std::mem::take(told).samples > 0;
        if known && lane.push(gone(kind, handle)) {
            cx.sched.make_ready(Work::Lane(key));
        }
        return;
    }
    if !cx.planner.is_news(stage, told, kind, now) {
        return;
    }
    let mut news = cx.planner.news(stage, host).peekable();
    while let Some(known) = news.next() {
        lane.push(message(kind, handle, &known, news.peek().is_none()));
    }
    drop(news);
    cx.sched.make_ready(Work::Lane(key));
}

fn gone(stage: ReportedStage, handle: u32) -> Message {
    Message::Report {
        stage,
        handle,
        backlogged: false,
        last: true,
        weight: 0,
        size_bytes: 0,
        spread_bytes: 0,
        cost_ps: 0,
        slope_fs: 0,
        deviation_pm: 0,
    }
}

/// A summary as it is sent. What has no place in its field is told as the most that has.
fn message(stage: ReportedStage, handle: u32, known: &Summary, last: bool) -> Message {
    Message::Report {
        stage,
        handle,
        backlogged: known.backlogged,
        last,
        weight: known.weight.clamp(1.0, 255.0) as u8,
        size_bytes: known.bytes as u32,
        spread_bytes: known.spread as u32,
        cost_ps: (known.seconds * 1e12) as u64,
        slope_fs: (known.slope * 1e15) as u64,
        deviation_pm: (known.deviation * 1e3) as u32,
    }
}
