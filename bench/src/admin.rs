//! The admin API of a daemon, as far as measuring needs it: its status, its last explanation, its
//! planner.

use std::path::{Path, PathBuf};

use piped_config::admin::advice::{ADVICE, Advice};
use piped_config::admin::dials::{DIALS, DIALS_CLEAR, DialChange, DialClear, Dials};
use piped_config::admin::limits::{LIMITS, LimitValue, LimitsChange, LimitsReport};
use piped_config::admin::{self, CalibrationBody, Explained, PlannerBody, Stages, Status};
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_report::dial::DialReport;
use piped_report::shard::StageReport;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{Doing as _, Failure};

/// A daemon's admin API; connects with each request.
#[derive(Debug)]
pub(crate) struct Admin {
    socket: PathBuf,
    client: piped_admin::Admin,
}

impl Admin {
    pub(crate) fn new(socket: &Path) -> Result<Self, Failure> {
        let client = piped_admin::Admin::new(socket).doing("a runtime for HTTP")?;
        Ok(Self { socket: socket.to_owned(), client })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn status(&self) -> Result<Status, Failure> {
        self.get(admin::STATUS)
    }

    /// Explanation of the daemon's last transfer.
    pub(crate) fn explain_last(&self) -> Result<Value, Failure> {
        let explained: Explained = self.get(&format!("{}last", admin::EXPLAIN))?;
        Ok(explained.explanation)
    }

    pub(crate) fn set_planner(&self, mode: PlannerMode) -> Result<(), Failure> {
        self.put(admin::PLANNER, PlannerBody { mode })
    }

    /// Makes the daemon read its configuration again.
    pub(crate) fn reload(&self) -> Result<(), Failure> {
        self.client.post_raw(admin::RELOAD).doing(self.socket.display()).map(drop)
    }

    pub(crate) fn set_calibration(&self, mode: CalibrationMode) -> Result<(), Failure> {
        self.put(admin::CALIBRATION, CalibrationBody { mode })
    }

    /// Makes a stage slower by seconds for a fragment and seconds for a byte.
    pub(crate) fn set_dial(
        &self,
        stage: &str,
        overhead: f64,
        per_byte: f64,
    ) -> Result<(), Failure> {
        self.dial(&DialChange {
            stage: stage.to_owned(),
            overhead_ns: (overhead * 1e9).round() as u64,
            per_byte_ps: (per_byte * 1e12).round() as u64,
            ..DialChange::default()
        })
    }

    pub(crate) fn dial(&self, change: &DialChange) -> Result<(), Failure> {
        self.put(DIALS, change)
    }

    /// Dials that are set, with their effects.
    pub(crate) fn dials(&self) -> Result<Vec<DialReport>, Failure> {
        let dials: Dials<DialReport> = self.get(DIALS)?;
        Ok(dials.dials)
    }

    pub(crate) fn stages(&self) -> Result<Vec<StageReport>, Failure> {
        let stages: Stages<StageReport> = self.get(admin::STAGES)?;
        Ok(stages.stages)
    }

    pub(crate) fn clear_dials(&self) -> Result<(), Failure> {
        self.put(DIALS_CLEAR, DialClear { stage: None })
    }

    /// Changes limits, each as in `global.staging=64MiB`.
    pub(crate) fn set_limits(&self, limits: &[&str]) -> Result<(), Failure> {
        let set = limits.iter().filter_map(|limit| limit.split_once('='));
        let set = set.map(|(key, value)| (key.to_owned(), LimitValue::Text(value.to_owned())));
        self.put(LIMITS, LimitsChange { set: set.collect(), persist: false })
    }

    /// Advised size of the unexpected-message buffer.
    pub(crate) fn advice(&self) -> Result<Advice, Failure> {
        self.get(ADVICE)
    }

    /// Staging by the ledger or as it is mapped, whichever is more, in bytes.
    pub(crate) fn staging(&self) -> Result<u64, Failure> {
        let report: LimitsReport = self.get(LIMITS)?;
        Ok(report.staging.owned_bytes.max(report.staging.mapped_bytes))
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.client.get_exact(path).doing(self.socket.display())
    }

    fn put(&self, path: &str, body: impl Serialize) -> Result<(), Failure> {
        self.client.put(path, body).doing(self.socket.display())
    }
}
