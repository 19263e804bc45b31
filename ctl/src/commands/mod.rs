//! One file a command.

use crate::admin::Admin;
use crate::args::{Args, Command};
use crate::failure::Failure;
use crate::output::Output;

mod bench;
mod calibration;
mod demo;
mod explain;
mod planner;
mod stages;
mod status;

/// Does what the command line says.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let output = Output::new();
    let admin = || Admin::new(&args.socket);
    match &args.command {
        Command::Status => status::run(&admin()?, &output, args.json),
        Command::Stages => stages::run(&admin()?, &output, args.json),
        Command::Explain { which } => explain::run(&admin()?, &output, *which, args.json),
        Command::Planner { mode } => planner::run(&admin()?, &output, *mode, args.json),
        Command::Calibration { mode } => {
            calibration::run(&admin()?, &output, (*mode).into(), args.json)
        }
        Command::Bench(bench) => bench::run(args, &bench.operation, &output),
        Command::Demo(demo) => demo::run(demo, output, args.json),
    }
}
