//! `piped`: arguments to configuration to daemon to exit code.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use piped::{Daemon, SetLevel};
use piped_config::program::Args;
use piped_config::{Sources, load};
use tracing_subscriber::EnvFilter;

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
    let set_level = start_log(&loaded.config.log.level)?;
    for file in &loaded.files {
        tracing::info!(file = %file.display(), "configuration");
    }
    let drop_ins = sources.main_file().exists().then(|| sources.drop_ins());
    let daemon = Daemon::reloading(loaded, sources, Some(set_level));
    Ok(daemon.with_drop_ins(drop_ins).run()?)
}

/// Begins to log; what comes back changes the level.
fn start_log(level: &str) -> Result<SetLevel, Box<dyn std::error::Error>> {
    let stderr = std::io::stderr();
    let ansi = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let log = tracing_subscriber::fmt()
        .with_ansi(ansi)
        .with_writer(std::io::stderr)
        .with_env_filter(EnvFilter::try_new(level)?)
        .with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    Ok(Box::new(move |level| {
        let filter = EnvFilter::try_new(level).map_err(|error| error.to_string())?;
        handle.reload(filter).map_err(|error| error.to_string())
    }))
}
