//! `pipectl lab`: nodes of one's own on this machine, in the background, as many as are asked for.
//!
//! ```text
//! up      network ► keys and configurations ► a cluster's key signs ► daemons ► all know of all
//! add     one node more, which joins by a token
//! status  asks every node: who sees whom
//! exec    a command where a node is: its network, its sockets
//! stop    ends daemons; `up` starts them again
//! down    removes all that `up` made, also of one that was killed
//! ```

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use self::site::Site;
use crate::failure::Failure;
use crate::output::Output;

mod add;
mod description;
mod down;
mod exec;
mod files;
mod remains;
mod site;
mod status;
mod trust;
mod up;

/// Arguments of `pipectl lab`.
#[derive(Debug, ClapArgs)]
pub(crate) struct LabArgs {
    /// The lab's directory [default: $XDG_RUNTIME_DIR/piped-lab, else /tmp/piped-lab-UID]
    #[arg(long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
    /// Action on the lab
    #[command(subcommand)]
    action: Action,
}

/// The actions on labs.
#[derive(Debug, Subcommand)]
enum Action {
    /// Start nodes in the background, each with a key and an export
    ///
    /// The nodes are a cluster: the first one has the cluster's key, which signed the keys of all.
    /// They find each other by the lab's directory. As root, each has a network namespace of its
    /// own, joined by a bridge. Where these cannot be made, all nodes are on loopback, and it is
    /// said why. In a lab that is there already, nodes that do not run are started again.
    Up(up::UpArgs),
    /// Add a node that the cluster has not signed, and print how it joins
    ///
    /// The node runs, with a key of its own, and the others know where it is. None trusts it until
    /// it has joined with a token of the first node.
    Add,
    /// Show the nodes, and who sees whom; exit code 1 if one does not run
    Status,
    /// Run a command, or a shell, where a node is
    ///
    /// In the node's network, with the node's sockets and configuration in the environment
    /// ($PIPED_ADMIN_SOCKET, $PIPED_CLIENT_SOCKET, $PIPED_CONFIG), so that pipectl and piped there
    /// are about this node; $PIPED_LAB_NODE is its name, $PIPED_LAB the lab's directory. Its exit
    /// code is that of the command.
    Exec(exec::ExecArgs),
    /// End the daemons of nodes; `pipectl lab up` starts them again
    Stop {
        /// Names of the nodes, as in n1
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// End all nodes, and remove everything that `up` has made
    ///
    /// Also what is left of a lab whose `up` was killed.
    Down,
}

pub(crate) fn run(args: &LabArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let site = Site::find(args.dir.as_deref())?;
    // What is printed to be typed next names the directory, if this line did.
    let dir = args.dir.as_ref().map(|_| site.directory());
    match &args.action {
        Action::Up(up) => up::run(&site, up, (dir, output), json),
        Action::Add => add::run(&site, (dir, output), json),
        Action::Status => status::run(&site, output, json),
        Action::Exec(exec) => exec::run(&site, exec),
        Action::Stop { nodes } => down::stop(&site, nodes, output),
        Action::Down => down::run(&site, output),
    }
}
