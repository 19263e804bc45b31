//! `pipectl lab exec`: a command where a node is.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::Args as ClapArgs;

use super::description::Network;
use super::down;
use super::site::Site;
use crate::daemon::MAIN_FILE;
use crate::failure::{Exit, Failure};
use crate::output;

/// Arguments of `pipectl lab exec`.
#[derive(Debug, ClapArgs)]
pub(super) struct ExecArgs {
    /// The node, as in n1
    node: String,
    /// The command with its arguments [default: a shell]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Becomes the command: its exit code is the one of this program.
pub(super) fn run(site: &Site, args: &ExecArgs) -> Result<(), Failure> {
    let lab = down::require(site)?;
    let node = lab.member(&args.node)?.name();
    if lab.network() == Network::Namespaces {
        let path = site.namespace(node);
        piped_netns::enter(&path)
            .map_err(|error| Failure::io(format_args!("the network of {node}"), &error))?;
    }
    let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let (program, arguments) = match args.command.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (shell(), &[][..]),
    };
    let directory = site.node(node);
    let mut command = Command::new(&program);
    command
        .args(arguments)
        .env("PIPED_ADMIN_SOCKET", directory.join("admin.sock"))
        .env("PIPED_CLIENT_SOCKET", directory.join("client.sock"))
        .env("PIPED_CONFIG", directory.join(MAIN_FILE))
        .env("PIPED_LAB", site.directory())
        .env("PIPED_LAB_NODE", node);
    if let Some(path) = path_with_this() {
        command.env("PATH", path);
    }
    let error = command.exec();
    let exit = match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NotFound,
        std::io::ErrorKind::PermissionDenied => Exit::Refused,
        _ => Exit::Failed,
    };
    let program = output::path(program.as_ref()).into_owned();
    Err(Failure::new(exit, format!("cannot run {program}: {error}")))
}

/// The search path with the directory of this program first: `pipectl` is this one there.
fn path_with_this() -> Option<OsString> {
    let this = std::env::current_exe().ok()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(this.parent()?.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(all).ok()
}
