//! The command line of `piped`, shared by the daemon and by `pipectl man`, which explains it.

use std::path::PathBuf;

use clap::{CommandFactory as _, Parser};

/// Moves bytes between memory, files and other nodes.
#[derive(Debug, Clone, Parser)]
#[command(name = "piped", version)]
pub struct Args {
    /// Configuration file [default: $PIPED_CONFIG, or /etc/piped/piped.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A setting that wins over all files, as in --set shards.count=2
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Check the configuration, and what it names on this machine, and exit
    #[arg(long)]
    pub check_config: bool,
    /// With --check-config: the files alone, not users, directories, sockets, addresses and CPUs of
    /// this machine
    #[arg(long, requires = "check_config")]
    pub no_filesystem: bool,
}

/// Definition of the arguments, for the manual page.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}
