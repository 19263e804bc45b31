//! Bodies of `calibrate`: leave to load paths on purpose, one operator at a time.

use serde::{Deserialize, Serialize};

/// `PUT`: [`CalibrateBody`], answered with [`Calibrating`].
pub const CALIBRATE: &str = "/v1/calibrate";

/// No leave is longer, in seconds. Who needs it longer renews it: the leave of one that was killed keeps others out no
/// longer than this.
pub const CALIBRATE_SECONDS_MAX: u32 = 60;

/// The region that every node has for other nodes' calibrations, whoever offers what: zeros, to be read. Only
/// who may change the daemon opens it.
pub const ECHO_REGION: &str = "piped.echo";

/// Asks for leave, for more time, or gives it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrateBody {
    /// The leave's number, of one that is there.
    #[serde(default)]
    pub leave: Option<u64>,
    /// From now on so many seconds; 0: it is not needed any more.
    pub seconds: u32,
}

/// A leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibrating {
    /// Its number.
    pub leave: u64,
    /// It ends by itself after so many seconds.
    pub seconds: u32,
}
