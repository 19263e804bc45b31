//! `piped`: arguments to configuration to daemon to exit code.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use piped::Daemon;
use piped_config::{Sources, load};
use tracing_subscriber::EnvFilter;

/// Moves bytes between memory, files and other nodes.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Configuration file [default: $PIPED_CONFIG, or /etc/piped/piped.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting that wins over all files, as in --set shards.count=2
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Check the configuration and exit
    #[arg(long)]
    check_config: bool,
}

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
    let filter = EnvFilter::try_new(&loaded.config.log.level)?;
    let ansi = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi);
    log.with_writer(std::io::stderr).init();
    for file in &loaded.files {
        tracing::info!(file = %file.display(), "configuration");
    }
    let drop_ins = sources.main_file().exists().then(|| sources.drop_ins());
    Ok(Daemon::new(loaded.config).with_drop_ins(drop_ins).run()?)
}
