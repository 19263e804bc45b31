//! `pipectl calibration`: sets whether costs follow measurements.

use piped_config::admin::{CALIBRATION, CalibrationBody};
use piped_core::modes::CalibrationMode;

use crate::admin::Admin;
use crate::failure::Failure;
use crate::node::how_to_keep;
use crate::output::{self, Output};

pub(crate) fn run(
    admin: &Admin,
    output: &Output,
    mode: CalibrationMode,
    json: bool,
) -> Result<(), Failure> {
    let body = CalibrationBody { mode };
    admin.put(CALIBRATION, body)?;
    if json {
        return output::json(body);
    }
    output.line(format_args!("calibration is {} until the daemon ends", mode.name()))?;
    output.prose(&how_to_keep(admin, "planner.calibration"), 0)
}
