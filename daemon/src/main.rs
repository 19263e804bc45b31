//! `piped`: arguments to configuration to daemon to exit code.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use piped::{Daemon, Inherited};
use piped_config::program::Args;
use piped_config::{Sources, load};

fn main() -> ExitCode {
    // First of all: the numbers of what was passed are only told from others while nothing is opened here.
    let inherited = Inherited::take();
    match run(Args::parse(), inherited) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("piped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    args: Args,
    inherited: std::io::Result<Inherited>,
) -> Result<(), Box<dyn std::error::Error>> {
    let file = args.config.or_else(|| std::env::var_os("PIPED_CONFIG").map(PathBuf::from));
    let sources = Sources::of_process(file, args.settings);
    let loaded = load(&sources)?;
    if args.check_config {
        println!("the configuration is good");
        return Ok(());
    }
    let set_level = piped::log::start(&loaded.config.log.level)?;
    for file in &loaded.files {
        tracing::info!(file = %file.display(), "configuration");
    }
    let drop_ins = sources.main_file().exists().then(|| sources.drop_ins());
    let daemon = Daemon::reloading(loaded, sources, Some(set_level));
    let inherited = inherited.map_err(|error| format!("LISTEN_FDS: {error}"))?;
    // Before the first thread beside this one.
    Ok(daemon.with_drop_ins(drop_ins).with_inherited(inherited).sandboxed()?.run()?)
}
