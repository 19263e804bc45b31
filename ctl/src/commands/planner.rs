//! `pipectl planner`: how fragment sizes are chosen.

use piped_config::PlannerMode;
use piped_config::admin::{PLANNER, PlannerBody};

use crate::admin::Admin;
use crate::failure::Failure;
use crate::node::how_to_keep;
use crate::output::{self, Output};

pub(crate) fn run(
    admin: &Admin,
    output: &Output,
    mode: PlannerMode,
    json: bool,
) -> Result<(), Failure> {
    mode.validate().map_err(|problem| Failure::usage(format!("the planner mode {problem}")))?;
    let body = PlannerBody { mode };
    admin.put(PLANNER, body)?;
    if json {
        return output::json(body);
    }
    output.line(format_args!("planner is {mode} until the daemon ends"))?;
    output.prose(&how_to_keep(admin, "planner.mode"), 0)
}
