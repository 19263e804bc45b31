//! The commands, one file each.

use crate::admin::Admin;
use crate::args::{Args, Command};
use crate::failure::Failure;
use crate::output::Output;

mod bench;
pub(crate) mod calibrate;
mod calibration;
mod certificate;
mod clients;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod cp;
mod demo;
pub(crate) mod dial;
pub(crate) mod doctor;
mod explain;
mod exports;
pub(crate) mod files;
pub(crate) mod handles;
pub(crate) mod keys;
pub(crate) mod lab;
pub(crate) mod limits;
pub(crate) mod manual;
mod nodes;
mod peers;
pub(crate) mod plan;
mod planner;
pub(crate) mod simulate;
mod stages;
pub(crate) mod stat;
mod status;
pub(crate) mod support;
pub(crate) mod trace;
pub(crate) mod transfers;
mod words;

/// Runs the command of the command line.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let output = Output::stdout();
    let admin = || Admin::new(&args.socket);
    match &args.command {
        Command::Status => status::run(&admin()?, &output, args.json),
        Command::Stat(stat) => stat::run(stat, admin, &output, args.json),
        Command::Peers => peers::run(&admin()?, &output, args.json),
        Command::Clients => clients::run(&admin()?, &output, args.json),
        Command::Transfers(transfers) => transfers::run(&admin()?, &output, transfers, args.json),
        Command::Exports => exports::run(&admin()?, &output, args.json),
        Command::Nodes => nodes::run(&admin()?, &output, args.json),
        Command::Handles => handles::list(&admin()?, &output, args.json),
        Command::Handle(asked) => handles::handle(&admin()?, &output, asked, args.json),
        Command::Client(asked) => handles::client(&admin()?, &output, asked, args.json),
        Command::Peer(asked) => handles::peer(&admin()?, &output, asked, args.json),
        Command::Limits(limits) => limits::run(&admin()?, &output, limits, args.json),
        Command::Config(config) => config::run(args, &config.action, &output),
        Command::Keys(keys) => keys::run(args, keys, &output),
        Command::Cluster(cluster) => cluster::run(args, cluster, &output),
        Command::Model(asked) => asked.run(&output, args.json),
        Command::Completions(args) => manual::completions(args, &output),
        Command::Man(args) => manual::man(args, &output),
        Command::Doctor(asked) => doctor::run(args, asked, &output),
        Command::SupportDump(asked) => support::run(args, asked, &output),
        Command::Stages => stages::run(&admin()?, &output, args.json),
        Command::Dial(dial) => dial::run(&admin()?, &output, dial, args.json),
        Command::Explain { which, all } => {
            explain::run(&admin()?, &output, (*which, *all), args.json)
        }
        Command::Plan(asked) => plan::run(&admin()?, &output, asked, args.json),
        Command::Simulate(asked) => simulate::run(&output, asked, args.json),
        Command::Trace(asked) => trace::run(&admin()?, &output, asked, args.json),
        Command::Planner { mode } => planner::run(&admin()?, &output, *mode, args.json),
        Command::Calibration { mode } => {
            calibration::run(&admin()?, &output, (*mode).into(), args.json)
        }
        Command::Calibrate(asked) => calibrate::run(args, asked, &output),
        Command::Bench(bench) => bench::run(args, &bench.operation, &output),
        Command::Ls(ls) => files::ls::run(ls, admin, &output, args.json),
        Command::Rm(rm) => files::rm::run(rm, args.json),
        Command::Mv(mv) => files::mv::run(mv),
        Command::Mkdir(mkdir) => files::mkdir::run(mkdir),
        Command::Df(df) => files::df::run(df, admin, &output, args.json),
        Command::Du(du) => files::du::run(du, &output, args.json),
        Command::Cat(cat) => files::cat::run(cat, args.json),
        Command::Put(put) => files::put::run(put, &output, args.json),
        Command::Complete(asked) => files::complete::run(asked, &args.socket, &output),
        Command::Cp(cp) => cp::run(cp, &args.socket, &output, args.json),
        Command::Lab(lab) => lab::run(lab, &output, args.json),
        Command::Demo(demo) => demo::run(demo, output, args.json),
    }
}
