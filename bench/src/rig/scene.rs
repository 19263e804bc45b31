//! The transfers and paths of the rows, and how slow each path is made.

use std::cell::{OnceCell, RefCell};
use std::time::Duration;

use piped_client::Handle;
use piped_core::modes::{CalibrationMode, PlannerMode};

use super::dials::{Dial, DialStage};
use super::link::UNSHAPED;
use super::{GIGABIT, Rig};
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Way};
use crate::nodes::Node;
use crate::raw::disk::Disk;
use crate::raw::{Timing, Wait};
use crate::rows::{FILE_NAME, MIB, MOMENT};
use crate::stats::{self, Random};
use crate::{clock, contest};

pub(super) const MEGABYTES: u64 = 1_000_000;

/// How slow the path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Pace {
    /// Path as fast as the machine is.
    Own,
    /// Disk and link of 100 MB/s each: much slower than the CPUs.
    #[value(name = "equal-100")]
    Equal100,
    /// The disk as it is, and a link that is as fast.
    EqualOwn,
    /// A disk with 0.5 ms for each fragment, and with the link's rate, a gigabit.
    SlowDisk,
    /// Section 5.5 of the paper about pipelines, each of its stages as a dial of its own.
    #[value(name = "section-5.5")]
    Paper,
}

/// Disk of [`Pace::Equal100`], on top of its own overhead.
pub(super) const DISK_100: Dial = Dial::of(DialStage::Disk, 0.0, 10e-9);
const SLOW_DISK: Dial = Dial::of(DialStage::Disk, 500e-6, 8e-9);
/// Times in us and us per 1000 bytes, as in the paper.
const PAPER: [Dial; 4] = [
    Dial::of(DialStage::Send, 60e-6, 100e-9),
    Dial::of(DialStage::Net, 40e-6, 100e-9),
    Dial::of(DialStage::Receive, 60e-6, 100e-9),
    Dial::of(DialStage::Disk, 4e-3, 200e-9),
];

impl Pace {
    /// Bytes per second of the link.
    pub(super) fn rate(self, rig: &Rig) -> Result<u64, Failure> {
        Ok(match self {
            Self::Own | Self::Paper => UNSHAPED,
            Self::Equal100 => 100 * MEGABYTES,
            Self::EqualOwn => rig.disk_rate()?,
            Self::SlowDisk => GIGABIT,
        })
    }

    fn dials(self) -> &'static [Dial] {
        match self {
            Self::Own | Self::EqualOwn => &[],
            Self::Equal100 => &[DISK_100],
            Self::SlowDisk => &[SLOW_DISK],
            Self::Paper => &PAPER,
        }
    }
}

/// A transfer and the path it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) way: Way,
    pub(super) block: usize,
    pub(super) pace: Pace,
}

/// Bandwidth of the disk, once measured.
#[derive(Debug, Default)]
pub(super) struct DiskRate(OnceCell<u64>);

/// How long the disk is asked for it, and how.
const DISK_MOMENT: Duration = Duration::from_millis(500);
const DISK_DEPTH: usize = 4;

impl Rig {
    /// Bandwidth of the disk alone, in bytes per second.
    pub(super) fn disk_rate(&self) -> Result<u64, Failure> {
        if let Some(rate) = self.disk_rate.0.get() {
            return Ok(*rate);
        }
        let file = self.data.path().join(FILE_NAME);
        let disk = Disk::open(&file).doing(file.display())?;
        let read = disk.read(MIB, DISK_DEPTH, Wait::Block, DISK_MOMENT, &mut Random::new(5))?;
        let rate = (read.rate() * MIB as f64) as u64;
        Ok(*self.disk_rate.0.get_or_init(|| rate))
    }

    /// Makes the path as slow as the scene wants it.
    pub(super) fn pose(&self, scene: Scene) -> Result<(), Failure> {
        self.set_rate(scene.pace.rate(self)?)?;
        self.set_dials(scene.way, scene.pace.dials())
    }

    pub(super) fn both(&self) -> [&Node; 2] {
        [&self.pair.a, &self.pair.b]
    }

    /// Sets how sizes are chosen from now on. Only `auto` learns, so that it knows only its own
    /// transfers.
    pub(super) fn plan_by(&self, mode: PlannerMode) -> Result<(), Failure> {
        self.pair.plan_by(mode)
    }

    /// Sets how sizes are chosen, and costs learnt, from now on.
    pub(super) fn plan(
        &self,
        mode: PlannerMode,
        calibration: CalibrationMode,
    ) -> Result<(), Failure> {
        self.both().into_iter().try_for_each(|node| node.admin.set_planner(mode))?;
        self.calibrate(calibration)
    }

    /// Sets how costs are learnt from now on.
    pub(super) fn calibrate(&self, mode: CalibrationMode) -> Result<(), Failure> {
        self.both().into_iter().try_for_each(|node| node.admin.set_calibration(mode))
    }
}

/// Least transfers of a moment, and of one that only lets the daemons settle.
const TRANSFERS_MIN: usize = 8;
const SETTLE: usize = 2;

/// With a size so bad that a few transfers take this long, no more of them are needed.
const HOPELESS: Duration = Duration::from_millis(400);
const FEW: usize = 5;

/// Transfers and time until the daemons know the path, and the longest time for that.
const WARM_TRANSFERS: usize = 400;
const WARM: Duration = Duration::from_secs(3);
const WARM_MAX: Duration = Duration::from_secs(12);

/// A client of A that does what a scene says.
pub(super) struct Caller<'a> {
    pub(super) rig: &'a Rig,
    pub(super) scene: Scene,
    asker: RefCell<Asker>,
    handle: Handle,
}

impl<'a> Caller<'a> {
    /// Poses the scene and lets `auto` learn it.
    pub(super) fn start(rig: &'a Rig, scene: Scene) -> Result<Self, Failure> {
        let caller = Self::stranger(rig, scene)?;
        caller.warm()?;
        Ok(caller)
    }

    /// Only poses the scene, without learning.
    pub(super) fn stranger(rig: &'a Rig, scene: Scene) -> Result<Self, Failure> {
        rig.pose(scene)?;
        let (asker, handle) = rig.asker()?;
        Ok(Self { rig, scene, asker: RefCell::new(asker), handle })
    }

    /// Lets `auto` learn the path as it is now.
    fn warm(&self) -> Result<(), Failure> {
        self.rig.plan_by(PlannerMode::Auto)?;
        let start = clock::now();
        let mut count = 0;
        while (count < WARM_TRANSFERS || start.elapsed() < WARM) && start.elapsed() < WARM_MAX {
            self.one()?;
            count += 1;
        }
        Ok(())
    }

    /// Time of one transfer, in seconds.
    pub(super) fn one(&self) -> Result<f64, Failure> {
        contest::check()?;
        let Scene { way, block, .. } = self.scene;
        Ok(self.asker.borrow_mut().one(way, &self.handle, block)?.as_secs_f64())
    }

    /// Times of reads, several at once, for a while.
    pub(super) fn reads(&self, depth: usize, duration: Duration) -> Result<Timing, Failure> {
        let ask = Ask { handle: &self.handle, block: self.scene.block, depth };
        self.asker.borrow_mut().reads(ask, duration)
    }

    /// Times of this many transfers.
    pub(super) fn some(&self, count: usize) -> Result<Vec<f64>, Failure> {
        (0..count).map(|_| self.one()).collect()
    }

    /// Times of at most this many transfers, in a moment: a few slow ones tell as much.
    pub(super) fn few(&self, most: usize) -> Result<Vec<f64>, Failure> {
        let start = clock::now();
        let mut times = Vec::with_capacity(most);
        while times.len() < most && (times.len() < FEW || start.elapsed() < HOPELESS) {
            times.push(self.one()?);
        }
        Ok(times)
    }

    /// Median of a moment's transfers, after a few with the plans of `mode`.
    pub(super) fn median_by(&self, mode: PlannerMode) -> Result<f64, Failure> {
        self.rig.plan_by(mode)?;
        self.some(SETTLE)?;
        let start = clock::now();
        let mut times = Vec::new();
        while times.len() < TRANSFERS_MIN || start.elapsed() < MOMENT {
            times.push(self.one()?);
            if start.elapsed() > HOPELESS && times.len() > 1 {
                break;
            }
        }
        Ok(stats::median(&times).expect("there are some"))
    }

    /// Node that plans, because it has the data.
    pub(super) fn planner(&self) -> &'a Node {
        match self.scene.way {
            Way::Read => &self.rig.pair.b,
            Way::Write => &self.rig.pair.a,
        }
    }
}
