//! Bodies of `calibrate`: a permit to load paths on purpose, for one operator at a time.

use serde::{Deserialize, Serialize};

/// Path of the permit: `PUT` of a [`CalibrateBody`], answered with [`Calibrating`].
pub const CALIBRATE: &str = "/v1/calibrate";

/// Longest permit in seconds. A longer calibration renews it, so the permit of a killed program
/// blocks other operators no longer than this.
pub const CALIBRATE_SECONDS_MAX: u32 = 60;

/// Name of the region of zeros that every node offers to other nodes' calibrations. Only a session
/// that may change the daemon can open it.
pub const ECHO_REGION: &str = "piped.echo";

/// Asks for a permit, for more time, or gives it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrateBody {
    /// Number of the permit, if there is one already.
    #[serde(default)]
    pub leave: Option<u64>,
    /// Seconds from now on; 0 gives the permit back.
    pub seconds: u32,
}

/// A permit that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibrating {
    /// Number of the permit.
    pub leave: u64,
    /// Seconds after which the permit ends by itself.
    pub seconds: u32,
}
