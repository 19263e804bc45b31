//! `pipectl cluster`: nodes that trust each other because one key signed theirs.
//!
//! What makes and signs works on files, before a daemon has ever run; what a daemon knows, and what
//! it is to sign for others that join, is asked of the daemon.

mod files;
pub(crate) mod making;
mod show;
pub(crate) mod status;
mod tokens;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use piped_config::Period;
use piped_config::admin::cluster::{CLUSTER_REVOKE, Revoke, Revoked};

use crate::admin::Admin;
use crate::args::Args;
use crate::commands::keys;
use crate::failure::Failure;
use crate::node::Node;
use crate::output::{self, Output};

/// Arguments of `pipectl cluster`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ClusterArgs {
    /// The daemon's main file [default: that of the daemon that answers, else $PIPED_CONFIG or
    /// /etc/piped/piped.toml]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Action on the cluster
    #[command(subcommand)]
    action: Action,
}

/// The actions on a cluster.
#[derive(Debug, Subcommand)]
enum Action {
    /// Begin a cluster with this node: make its key, and sign this node's own
    ///
    /// The private half of the cluster's key stays in a file on this node, which signs for nodes
    /// that join. A key that exists is never replaced.
    Init {
        /// The name that this node gives itself [default: node.name, or the host's name]
        #[arg(long)]
        name: Option<String>,
        /// A group that this node is in; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
    },
    /// Show the cluster: this node's certificate, the nodes that were seen, keys that were revoked
    Show,
    /// Show all nodes that this node knows of: where, trusted or not, connected or not
    ///
    /// This node's view alone: other nodes are not asked. Exit code 1 if a node cannot be reached
    /// while something is open there.
    Status,
    /// Make a token with which nodes join, show those that are open, or end one
    Token(tokens::TokenArgs),
    /// Sign the key of a node by hand, and print the certificate
    ///
    /// For a node that cannot reach this one: put what is printed into node.certificate beside its
    /// main file, and the cluster's key into its `cluster.keys`.
    Sign {
        /// The name that the node gives itself (its node.name)
        name: String,
        /// The key that `pipectl keys show` prints on that node
        key: String,
        /// A group that the node is in; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// How long the certificate counts [default: cluster.validity]
        #[arg(long = "for", value_name = "TIME")]
        validity: Option<Period>,
    },
    /// Revoke the key of a node: no node of the cluster trusts it by its certificate any more
    ///
    /// A node that has the key in `[peers]` trusts it still: `pipectl keys distrust` there.
    ///
    /// Nodes hear of it through `discovery.files` and etcd. Where there is neither, put the list
    /// that is printed into the file `revoked` of their directory, or the key into their
    /// `cluster.revoked`.
    Revoke {
        /// The name of the node, or its key
        node: String,
    },
}

pub(crate) fn run(args: &Args, asked: &ClusterArgs, output: &Output) -> Result<(), Failure> {
    let admin = || Admin::new(&args.socket);
    let node = || {
        let node = Node::find(args, asked.config.clone(), Vec::new());
        node.say();
        node
    };
    match &asked.action {
        Action::Init { name, groups } => {
            files::init(&node(), name.as_deref(), groups, output, args.json)
        }
        Action::Status => status::run(&admin()?, output, args.json),
        Action::Show => show::run(&admin()?, output, args.json),
        Action::Token(asked) => tokens::run(&admin()?, asked, output, args.json),
        Action::Sign { name, key, groups, validity } => {
            files::sign(&node(), (name, key), groups, *validity, output, args.json)
        }
        Action::Revoke { node } => revoke(&admin()?, node, output, args.json),
    }
}

fn revoke(admin: &Admin, node: &str, output: &Output, json: bool) -> Result<(), Failure> {
    let body = Revoke { node: node.to_owned() };
    if json {
        return output::json(admin.ask_raw(CLUSTER_REVOKE, body)?);
    }
    let Revoked { key, number, list } = admin.ask(CLUSTER_REVOKE, body)?;
    keys::say(format_args!(
        "{key} counts no more; nodes that follow no files and no etcd need list {number}:"
    ));
    output.line(list)
}
