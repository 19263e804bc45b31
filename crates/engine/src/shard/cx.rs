//! What the components of a shard have in common: turns, the driver, buffers, plans, and what is
//! seen and told.
//!
//! A component has what it is about in fields of its own. It is lent this one for what all need.

use std::collections::VecDeque;

use piped_core::ids::DeviceId;
use piped_core::io::Io;
use piped_core::units::Nanos;
use piped_planner::plan::{Part, Planner};
use piped_planner::stage::StageIndex;

use super::ShardConfig;
use super::buffers::{Buffers, Run, Scratch};
use super::delays::Dials;
use super::driver::{Driver, Found, Lent, Recent, Wanted};
use super::relays::Relays;
use super::sched::{Sched, Work};
use super::stripes::Stripes;
use super::watch::Watch;
use crate::command::{Event, FileTarget, Limits, Output};

/// Where the bytes of a read come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadWay {
    /// All of them from the page cache, or all from the device.
    One(FileTarget),
    /// These parts from here and there.
    Both(Stripes),
}

/// What is lent to the components of one shard.
#[derive(Debug)]
pub(super) struct Cx {
    pub(super) config: ShardConfig,
    pub(super) limits: Limits,
    pub(super) sched: Sched,
    pub(super) driver: Driver,
    pub(super) buffers: Buffers,
    pub(super) planner: Planner,
    pub(super) dials: Dials,
    pub(super) watch: Watch,
    pub(super) outputs: VecDeque<Output>,
    pub(super) relays: Relays,
    /// Requests that had to wait for a limit since start, those of peers as well.
    pub(super) waited_for_limit: u64,
    tickets: u64,
}

impl Cx {
    /// Bytes a second that whoever pays for `work` may have moved; 0: no bound.
    pub(super) fn rate_of(&self, work: Work) -> u64 {
        let Limits { client, peer, .. } = &self.limits;
        if let Work::Transfer(_) = work { client.rate } else { peer.rate }
    }

    pub(super) fn new(config: ShardConfig) -> Self {
        let transfers = config.transfers_max;
        Self {
            limits: Limits::NONE,
            sched: Sched::new(transfers),
            driver: Driver::new(config.ops_max),
            buffers: Buffers::default(),
            planner: Planner::new(config.planner, config.calibration, config.serial_first),
            dials: Dials::new(config.seed),
            watch: Watch::new(transfers),
            outputs: VecDeque::with_capacity(transfers as usize),
            relays: Relays::default(),
            waited_for_limit: 0,
            tickets: 0,
            config,
        }
    }

    /// The driver, and what it is lent for fragments.
    pub(super) fn lend(&mut self) -> (&mut Driver, Lent<'_>) {
        let Self { sched, driver, buffers, planner, dials, watch, .. } = self;
        (driver, Lent { sched, buffers, planner, watch, is_full: dials.is_full() })
    }

    /// Has work wait for what it needs to end.
    pub(super) fn want(&mut self, work: Work, wanted: Wanted) {
        self.driver.want(work, wanted, &mut self.sched);
    }

    /// Takes a run of staging back, and wakes what waits for one.
    pub(super) fn free_staging(&mut self, run: Run) {
        self.buffers.free(run, &mut self.sched);
    }

    /// Takes a lane's scratch back, and wakes what waits for staging.
    pub(super) fn free_scratch(&mut self, scratch: Scratch) {
        self.buffers.give_back_scratch(scratch);
        self.sched.wake_starved();
    }

    /// The way of a read: through the page cache if that has all of it, and both ways if that has a
    /// part of one that `may_split`. A device that a dial slows is to be seen: it is read itself.
    pub(super) fn way_of_read<I: Io>(
        &mut self,
        file: FileTarget,
        range: (u64, u64),
        may_split: bool,
        io: &mut I,
    ) -> ReadWay {
        let is_slowed = self.dials.of_disk(file.device, false) != [StageIndex::NONE; 2];
        if file.direct.is_none() || file.foreign || is_slowed {
            return ReadWay::One(file);
        }
        let Some(in_cache) = self.driver.in_cache(file.buffered) else {
            return ReadWay::One(file);
        };
        match in_cache.find(file.buffered, range, may_split, io) {
            Found::None => ReadWay::One(file),
            Found::All => ReadWay::One(file.by_cache()),
            Found::Some(stripes) => {
                let recent = in_cache.recent();
                let balanced = self.balanced(&file, stripes, recent);
                if let Some(in_cache) = self.driver.in_cache(file.buffered) {
                    in_cache.note_striped(balanced.is_some());
                }
                balanced.map_or(ReadWay::One(file), ReadWay::Both)
            }
        }
    }

    /// Which parts of a read come which way, as both stages cost and as much longer as they took of
    /// late; none if all of it is to come from the device. As long as a stage is not known, what is
    /// in the cache comes from there.
    fn balanced(
        &mut self,
        file: &FileTarget,
        stripes: Stripes,
        recent: [Recent; 2],
    ) -> Option<Stripes> {
        let [[device, ..], [cache, ..]] = [*file, file.by_cache()].map(|it| self.read_stages(&it));
        let planner = &self.planner;
        let costs = |stage| move |bytes| planner.alone_time(stage, bytes).map(Nanos::seconds);
        if costs(device)(1).is_none() || costs(cache)(1).is_none() {
            return Some(stripes);
        }
        let seconds = |stage| move |bytes| costs(stage)(bytes).unwrap_or(0.0);
        let [of_device, of_cache] = [(recent[0], device), (recent[1], cache)]
            .map(|(recent, stage)| recent.factor(seconds(stage)));
        stripes.balanced(
            |bytes| of_cache * seconds(cache)(bytes),
            |bytes| of_device * seconds(device)(bytes),
        )
    }

    /// The stages of what is read of a file.
    pub(super) fn read_stages(&mut self, file: &FileTarget) -> [StageIndex; 3] {
        match file.cached {
            true => [self.planner.cache_stage(file.device), StageIndex::NONE, StageIndex::NONE],
            false => self.disk_stages(file.device, false),
        }
    }

    /// A device's stage, and those of its dial.
    pub(super) fn disk_stages(&mut self, device: DeviceId, write: bool) -> [StageIndex; 3] {
        let [host, dial] = self.dials.of_disk(device, write);
        [self.planner.disk_stage(device, write), host, dial]
    }

    /// What is known of a device's stage, and of those of its dial.
    pub(super) fn disk_parts(&self, device: DeviceId, write: bool) -> Vec<Part> {
        let [host, dial] = self.dials.of_disk(device, write);
        vec![self.planner.disk_part(device, write), Part::There(host), Part::There(dial)]
    }

    /// Tells the control thread something.
    pub(super) fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    /// A number for an answer of the control thread's.
    pub(super) fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}
