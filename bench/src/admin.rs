//! The admin API of a daemon, as far as measuring needs it: its status, its last explanation, its
//! planner.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use piped_config::admin::advice::{ADVICE, Advice};
use piped_config::admin::dials::{DIALS, DIALS_CLEAR, DialChange, DialClear, Dials};
use piped_config::admin::limits::{LIMITS, LimitValue, LimitsChange, LimitsReport};
use piped_config::admin::{
    self, CalibrationBody, Envelope, Explained, PlannerBody, Stages, Status,
};
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_report::dial::DialReport;
use piped_report::shard::StageReport;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

use crate::failure::{Doing as _, Failure};

const TIMEOUT: Duration = Duration::from_secs(5);
/// An answer longer than this is not from piped.
const BODY_BYTES_MAX: usize = 4 << 20;

/// A daemon's admin API; connects with each request.
#[derive(Debug)]
pub(crate) struct Admin {
    socket: PathBuf,
    runtime: Runtime,
}

impl Admin {
    pub(crate) fn new(socket: &Path) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Self { socket: socket.to_owned(), runtime: runtime.doing("a runtime for HTTP")? })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn status(&self) -> Result<Status, Failure> {
        let body = self.request(Method::GET, admin::STATUS, String::new())?;
        Envelope::parse(&body).doing(admin::STATUS)
    }

    /// What the daemon says of its last transfer.
    pub(crate) fn explain_last(&self) -> Result<Value, Failure> {
        let path = format!("{}last", admin::EXPLAIN);
        let body = self.request(Method::GET, &path, String::new())?;
        let explained: Explained = Envelope::parse(&body).doing(path)?;
        Ok(explained.explanation)
    }

    pub(crate) fn set_planner(&self, mode: PlannerMode) -> Result<(), Failure> {
        let body = Envelope::new(PlannerBody { mode }).json();
        self.request(Method::PUT, admin::PLANNER, body).map(drop)
    }

    /// Reads the configuration again.
    pub(crate) fn reload(&self) -> Result<(), Failure> {
        self.request(Method::POST, admin::RELOAD, String::new()).map(drop)
    }

    pub(crate) fn set_calibration(&self, mode: CalibrationMode) -> Result<(), Failure> {
        let body = Envelope::new(CalibrationBody { mode }).json();
        self.request(Method::PUT, admin::CALIBRATION, body).map(drop)
    }

    /// Makes a stage slower: seconds for a fragment, seconds for a byte.
    pub(crate) fn set_dial(
        &self,
        stage: &str,
        overhead: f64,
        per_byte: f64,
    ) -> Result<(), Failure> {
        let body = Envelope::new(DialChange {
            stage: stage.to_owned(),
            latency_ns: 0,
            overhead_ns: (overhead * 1e9).round() as u64,
            per_byte_ps: (per_byte * 1e12).round() as u64,
            host_ns: 0,
        });
        self.request(Method::PUT, DIALS, body.json()).map(drop)
    }

    pub(crate) fn dial(&self, change: &DialChange) -> Result<(), Failure> {
        self.request(Method::PUT, DIALS, Envelope::new(change).json()).map(drop)
    }

    /// What is dialled, and what it does.
    pub(crate) fn dials(&self) -> Result<Vec<DialReport>, Failure> {
        let body = self.request(Method::GET, DIALS, String::new())?;
        let dials: Dials<DialReport> = Envelope::parse(&body).doing(DIALS)?;
        Ok(dials.dials)
    }

    pub(crate) fn stages(&self) -> Result<Vec<StageReport>, Failure> {
        let body = self.request(Method::GET, admin::STAGES, String::new())?;
        let stages: Stages<StageReport> = Envelope::parse(&body).doing(admin::STAGES)?;
        Ok(stages.stages)
    }

    pub(crate) fn clear_dials(&self) -> Result<(), Failure> {
        let body = Envelope::new(DialClear { stage: None }).json();
        self.request(Method::PUT, DIALS_CLEAR, body).map(drop)
    }

    /// Changes limits, each as in `global.staging=64MiB`.
    pub(crate) fn set_limits(&self, limits: &[&str]) -> Result<(), Failure> {
        let set = limits.iter().filter_map(|limit| limit.split_once('='));
        let set = set.map(|(key, value)| (key.to_owned(), LimitValue::Text(value.to_owned())));
        let body = Envelope::new(LimitsChange { set: set.collect(), persist: false }).json();
        self.request(Method::PUT, LIMITS, body).map(drop)
    }

    /// What early-arrival memory messages need.
    pub(crate) fn advice(&self) -> Result<Advice, Failure> {
        let body = self.request(Method::GET, ADVICE, String::new())?;
        Envelope::parse(&body).doing(ADVICE)
    }

    /// Staging by the ledger or as it is mapped, whichever is more, in bytes.
    pub(crate) fn staging(&self) -> Result<u64, Failure> {
        let body = self.request(Method::GET, LIMITS, String::new())?;
        let report: LimitsReport = Envelope::parse(&body).doing(LIMITS)?;
        Ok(report.staging.owned_bytes.max(report.staging.mapped_bytes))
    }

    fn request(&self, method: Method, path: &str, body: String) -> Result<Bytes, Failure> {
        let exchange = async {
            tokio::time::timeout(TIMEOUT, exchange(&self.socket, method, path, body))
                .await
                .map_err(|_| Failure::new("no answer within 5 s"))?
        };
        self.runtime.block_on(exchange).doing(self.socket.display())
    }
}

async fn exchange(
    socket: &Path,
    method: Method,
    path: &str,
    body: String,
) -> Result<Bytes, Failure> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.doing("HTTP")?;
    // Its error is the sender's error too.
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "piped")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .doing(path)?;
    let response = sender.send_request(request).await.doing("HTTP")?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX)
        .collect()
        .await
        .doing("the answer broke off")?
        .to_bytes();
    connection.abort();
    if status.is_success() {
        return Ok(body);
    }
    Err(Failure::new(format!("{path}: {status}: {}", String::from_utf8_lossy(&body))))
}
