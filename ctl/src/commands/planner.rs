//! `pipectl planner`: sets how fragment sizes are chosen.

use piped_config::admin::{PLANNER, PlannerBody};
use piped_config::check_planner_mode;
use piped_core::modes::PlannerMode;

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
    check_planner_mode(mode)
        .map_err(|problem| Failure::usage(format!("the planner mode {problem}")))?;
    let body = PlannerBody { mode };
    admin.put(PLANNER, body)?;
    if json {
        return output::json(body);
    }
    output.line(format_args!("planner is {mode} until the daemon ends"))?;
    output.prose(&how_to_keep(admin, "planner.mode"), 0)
}
