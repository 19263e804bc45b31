//! `pipectl completions` and `pipectl man`: files that packages install beside the programs, made
//! from the definition of the command line itself.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args as ClapArgs, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;
use crate::commands::files::complete;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments of `pipectl completions`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompletionsArgs {
    /// The shell to complete for
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `pipectl man`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ManArgs {
    /// Directory to write into; it must exist
    directory: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, output: &Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut command = Args::command();
    clap_complete::generate(args.shell, &mut command, "pipectl", &mut script);
    let script = String::from_utf8_lossy(&script);
    output.text(&complete::with_places(&script, args.shell, &command))
}

/// Writes `pipectl.1`, `pipectl-status.1` and so on, `piped.8` and `piped.toml.5`.
pub(crate) fn man(args: &ManArgs, output: &Output) -> Result<(), Failure> {
    let directory = &args.directory;
    let failed = |error: io::Error| {
        let what = format!("cannot write to {} (does it exist?)", directory.display());
        Failure::io(what, &error)
    };
    clap_mangen::generate_to(Args::command(), directory).map_err(failed)?;
    let daemon = Man::new(piped_config::program::command()).section("8");
    let mut page = Vec::new();
    daemon.render(&mut page).map_err(failed)?;
    page.extend_from_slice(DAEMON.as_bytes());
    fs::write(directory.join("piped.8"), page).map_err(failed)?;
    fs::write(directory.join("piped.toml.5"), configuration()).map_err(failed)?;
    output.line(format_args!("manual pages are in {}", directory.display()))
}

/// Manual of the configuration: the shipped file as it is.
fn configuration() -> String {
    let mut page = CONFIGURATION.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    for line in include_str!("../../../config/piped.toml").lines() {
        // Escape what groff would take for a request, a letter of its own or a typographer's
        // hyphen.
        let line = line
            .replace('\\', "\\e")
            .replace('-', "\\-")
            .replace('\'', "\\(aq")
            .replace('`', "\\(ga");
        page.push_str("\\&");
        page.push_str(&line);
        page.push('\n');
    }
    page.push_str(".fi\n.SH SEE ALSO\n.BR piped (8),\n.BR pipectl\\-config (1)\n");
    page
}

const CONFIGURATION: &str = r#".TH piped.toml 5 "" "piped @VERSION@"
.SH NAME
piped.toml \- configuration of the data mover piped
.SH SYNOPSIS
.I /etc/piped/piped.toml
.SH DESCRIPTION
The file as it comes with the program: every key with its default, and the reason for it.
.nf
"#;

const DAEMON: &str = r#".SH CONFIGURATION
The piped.toml that comes with the program explains every key, with its default. Later layers
win: the defaults, the file, conf.d/*.toml beside it in lexical order, variables
(PIPED_SHARDS__COUNT=2), and \-\-set. Unknown keys and bad values are refused with file and line.
.SH SIGNALS
.TP
.B SIGHUP
Loads the configuration again: all of it, or nothing with the reason. pipectl status lists keys
that need a restart. pipectl config reload does the same and waits for the outcome.
.TP
.B SIGTERM, SIGINT
Ends the sessions, for some seconds at most, and then the daemon; a second one ends it at once.
.SH FILES
.TP
.I /etc/piped/piped.toml
The configuration, if it exists.
.TP
.I /etc/piped/conf.d/*.toml
Drop\-ins.
.TP
.I /run/piped/client.sock, /run/piped/admin.sock
Where clients and operators connect. The service manager may open them (piped.socket); the daemon
does not start if the paths differ from client.socket and admin.socket.
.SH EXIT STATUS
0 after an end that was asked for, 1 with a sentence on stderr otherwise.
.SH SEE ALSO
.BR piped.toml (5),
.BR pipectl (1),
.BR systemd.service (5)
"#;
