//! `pipectl model`: the theory at the command line. Needs no daemon.
//!
//! One file a subcommand, with its `Args`, its `run`, and what it prints as JSON; quantities are
//! read by [`piped_config::measured`]. A subcommand is a variant of `Model` and an arm of
//! [`ModelArgs::run`].

use clap::{Args as ClapArgs, Subcommand};
use piped_cli::failure::Failure;
use piped_cli::output::Output;

mod blackbox;
mod bound;
mod buffer;
mod check;
mod compound;
mod estimates;
mod evaluate;
mod figures;
mod measurements;
mod path;
mod plan;
mod signature;
mod spread;
mod strip;
mod tile;

const AFTER_HELP: &str = "\
Quantities are numbers with a unit: 36us, 4ms; 65536, 64KiB, 64KB; 5MB/s, 10Gbit/s; 7.2us/KB.
Without one, times are in us, sizes in bytes, bandwidths in bytes per us, inverse bandwidths in us
per KB.";

/// Arguments of `pipectl model`, shared by all models.
#[derive(Debug, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub struct ModelArgs {
    /// Which of the models to compute
    #[command(subcommand)]
    model: Model,
}

/// What the theory can be asked.
#[derive(Debug, Subcommand)]
enum Model {
    /// Tell how much buffer early messages need until they are copied out
    Buffer(buffer::BufferArgs),
    /// Compare what the planners make of a path, and give the best plan, with a certificate if
    /// asked for
    Plan(plan::PlanArgs),
    /// Tell what a plan given by hand takes, and when each stage has which fragment
    Evaluate(evaluate::EvaluateArgs),
    /// Compute a latency that no plan can beat
    Bound(bound::BoundArgs),
    /// Put a line through the best latencies of several stages, which then count as one
    Compound(compound::CompoundArgs),
    /// Evaluate a file of computed cases, and tell how far off the models are
    Check(check::CheckArgs),
    /// Draw the papers' figures from the models: SVG, the data as CSV, and a page with all of them
    Figures(figures::FiguresArgs),
    /// Tell in which strips to fetch a remote array that is computed on meanwhile
    Strip(strip::StripArgs),
    /// Tell how high tiles of a nested loop should be that processors pass on to each other
    Tile(tile::TileArgs),
    /// Find a pipeline's bottlenecks from measurements at its ends
    Blackbox(blackbox::BlackboxArgs),
    /// Compute the LogGP signature of a network, or its parameters from measured bursts
    Signature(signature::SignatureArgs),
}

impl ModelArgs {
    /// Computes what was asked for, and prints it as text or as JSON.
    ///
    /// # Errors
    /// Why it cannot be computed or written, with the exit code for that.
    pub fn run(&self, output: &Output, json: bool) -> Result<(), Failure> {
        match &self.model {
            Model::Buffer(args) => buffer::run(args, output, json),
            Model::Plan(args) => plan::run(args, output, json),
            Model::Evaluate(args) => evaluate::run(args, output, json),
            Model::Bound(args) => bound::run(args, output, json),
            Model::Compound(args) => compound::run(args, output, json),
            Model::Check(args) => check::run(args, output, json),
            Model::Figures(args) => figures::run(args, output, json),
            Model::Strip(args) => strip::run(args, output, json),
            Model::Tile(args) => tile::run(args, output, json),
            Model::Blackbox(args) => blackbox::run(args, output, json),
            Model::Signature(args) => signature::run(args, output, json),
        }
    }
}

/// Seconds as JSON has them.
fn micros(seconds: f64) -> f64 {
    seconds * 1e6
}
