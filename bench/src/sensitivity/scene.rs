//! Two daemons, a file, a region, and the transfers between them.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use piped_client::{Handle, OpenOptions};
use piped_config::admin::dials::DialChange;
use piped_core::modes::{CalibrationMode, PlannerMode, Profile};

use crate::failure::{Doing as _, Failure};
use crate::load::Way;
use crate::machine::Cpus;
use crate::nodes::{CALLER, EXPORT, Node, PEER, Pair, Sites, free_address};
use crate::raw::disk::make_file;
use crate::rows::region::Region;
use crate::{clock, stats};

const FILE_NAME: &str = "blocks";
const FILE_BYTES: u64 = 64 << 20;
const COPY_BYTES: u64 = 1 << 20;

/// Transfers that let `auto` learn the change, and those measured for the median.
const LEARN: usize = 60;
const SETTLE: usize = 4;
const COUNTED: usize = 24;
/// Longest time of a part of a round (plus one transfer), whatever is dialled.
const PART_MAX: Duration = Duration::from_millis(400);

/// Operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// A read of the peer's file.
    Read,
    /// A get of the peer's memory.
    Get,
    /// A copy of the peer's file into one of this node's, as `pipectl cp` does it.
    Copy,
}

pub(super) const OPERATIONS: [Operation; 3] = [Operation::Read, Operation::Get, Operation::Copy];

impl Operation {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Get => "get",
            Self::Copy => "cp",
        }
    }

    /// Stages that the operation passes and that can be dialled.
    pub(super) const fn places(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["disk", "check", "send", "net", "receive"],
            Self::Get => &["check", "send", "net", "receive"],
            Self::Copy => &["disk", "check", "send", "net", "receive", "sink"],
        }
    }

    /// Bytes of one operation.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Read => 512 << 10,
            Self::Get => 256 << 10,
            Self::Copy => COPY_BYTES as usize,
        }
    }
}

/// Daemons, clients and files of the study.
pub(super) struct Scene {
    pair: Pair,
    /// Region of the gets, with the client that asks for all operations.
    region: Region,
    file: Handle,
    copy: Handle,
    device: (u32, u32),
}

impl Scene {
    pub(super) fn start(data: &Path, cpus: Cpus, profile: Profile) -> Result<Self, Failure> {
        let path = data.join(FILE_NAME);
        make_file(&path, FILE_BYTES)?;
        let device = path.metadata()?.dev();
        let settings = String::from("[planner]\nallow_dials = true\n");
        let sites = Sites { listen: free_address()?, settings, ..Sites::default() };
        let pair = Pair::start_at(&sites, profile, cpus, data)?;
        let region = Region::open(&pair)?;
        let client = &region.asker.client;
        let file = client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
        let target = data.join("copied");
        make_file(&target, COPY_BYTES)?;
        let copy = client.open_file(&target, OpenOptions::read_write());
        Ok(Self {
            file: file.doing("open")?,
            copy: copy.doing("open")?,
            region,
            device: (rustix::fs::major(device), rustix::fs::minor(device)),
            pair,
        })
    }

    pub(super) fn clear(&self) -> Result<(), Failure> {
        self.pair.a.admin.clear_dials()?;
        self.pair.b.admin.clear_dials()
    }

    /// Dials a stage where the data passes it.
    pub(super) fn dial(
        &self,
        operation: Operation,
        place: &str,
        change: impl Fn(&str) -> DialChange,
    ) -> Result<(), Failure> {
        debug_assert!(operation.places().contains(&place), "{place}");
        let (major, minor) = self.device;
        let (node, stage): (&Node, String) = match place {
            "disk" => (&self.pair.b, format!("disk:{major}:{minor}:read")),
            "check" => (&self.pair.b, String::from("check")),
            "send" => (&self.pair.b, format!("send:{CALLER}")),
            "net" => (&self.pair.a, format!("net:{PEER}")),
            "receive" => (&self.pair.a, format!("receive:{PEER}")),
            _ => (&self.pair.a, format!("disk:{major}:{minor}:write")),
        };
        node.admin.dial(&change(&stage))
    }

    /// Median of some transfers by plans of that mode, in seconds, and the prediction for the last
    /// one. `auto` first learns the present dials.
    pub(super) fn median_by(
        &mut self,
        operation: Operation,
        mode: PlannerMode,
    ) -> Result<(f64, Option<f64>), Failure> {
        let (settle, calibration) = match mode {
            PlannerMode::Auto => (LEARN, CalibrationMode::Live),
            // Whole transfers would teach about one size only.
            _ => (SETTLE, CalibrationMode::Off),
        };
        for node in [&self.pair.a, &self.pair.b] {
            node.admin.set_planner(mode)?;
            node.admin.set_calibration(calibration)?;
        }
        self.some(operation, settle)?;
        let times = self.some(operation, COUNTED)?;
        let planner = match operation {
            Operation::Read | Operation::Get => &self.pair.b,
            Operation::Copy => &self.pair.a,
        };
        let predicted = planner.admin.explain_last()?["predicted_seconds"].as_f64();
        let median = stats::median(&times).expect("there is one at least");
        Ok((median, predicted.filter(|&seconds| seconds > 0.0)))
    }

    fn some(&mut self, operation: Operation, count: usize) -> Result<Vec<f64>, Failure> {
        let region = &mut self.region;
        let begun = clock::now();
        let mut times = Vec::with_capacity(count);
        while times.is_empty() || times.len() < count && begun.elapsed() < PART_MAX {
            let took = match operation {
                Operation::Read => region.asker.one(Way::Read, &self.file, operation.bytes())?,
                Operation::Get => region.asker.one(Way::Read, &region.handle, operation.bytes())?,
                Operation::Copy => region.asker.copy(&self.file, &self.copy, COPY_BYTES)?,
            };
            times.push(took.as_secs_f64());
        }
        Ok(times)
    }
}
