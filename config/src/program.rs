//! The command line of `piped`, shared by the daemon and by `pipectl man`, which explains it.

use std::path::PathBuf;

use clap::{Args as ClapArgs, CommandFactory as _, Parser, Subcommand};

/// Moves bytes between memory, files and other nodes.
#[derive(Debug, Clone, Parser)]
#[command(name = "piped", version)]
pub struct Args {
    /// Configuration file [default: $PIPED_CONFIG, or /etc/piped/piped.toml if it exists]
    #[arg(long, value_name = "FILE", global = true)]
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
    /// Something else to do than to serve.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the program does that is not to serve.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Take this node into a cluster, with a token from a node that signs
    ///
    /// Makes this node's key if there is none, has it signed, and writes the certificate and a
    /// drop-in beside the main file. Nothing is changed if that does not succeed. A daemon that
    /// runs takes it with `pipectl config reload`.
    Join(JoinArgs),
}

/// Arguments of `piped join`.
#[derive(Debug, Clone, ClapArgs)]
pub struct JoinArgs {
    /// What `pipectl cluster token create` printed there; `-` reads it from standard input, where
    /// no other user of this machine sees it
    #[arg(value_name = "TOKEN@HOST:PORT", allow_hyphen_values = true)]
    pub target: String,
    /// The name that this node gives itself [default: node.name, or the host's name]
    #[arg(long)]
    pub name: Option<String>,
}

/// Definition of the arguments, for the manual page.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_begin_with_hyphens() {
        // Letters of base64 for URLs, as the key of the node that signs has it.
        for token in ["-7fa", "--name", "-h", "-", "AAAA"] {
            let target = format!("{token}@host:1");
            let args = Args::try_parse_from(["piped", "join", &target, "--name", "beta"]);
            let Some(Command::Join(join)) = args.expect("a token").command else { unreachable!() };
            assert_eq!((join.target, join.name.as_deref()), (target, Some("beta")));
        }
        let unknown = Args::try_parse_from(["piped", "join", "-7fa@host:1", "--nmae", "beta"]);
        assert!(unknown.is_err_and(|error| error.to_string().contains("--name")));
    }
}
