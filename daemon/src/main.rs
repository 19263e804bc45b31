//! `piped`: arguments to configuration to daemon to exit code.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use piped::Daemon;
use piped_config::program::Args;
use piped_config::{Sources, load};

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("piped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Box<dyn std::error::Error>> {
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
    // Before the first thread beside this one.
    Ok(daemon.with_drop_ins(drop_ins).sandboxed()?.run()?)
}
