//! `pipectl cluster token`: what nodes join with.

use clap::{Args as ClapArgs, Subcommand};
use piped_config::Period;
use piped_config::admin::cluster::{
    CLUSTER, CLUSTER_TOKENS, CLUSTER_TOKENS_END, ClusterReport, EndToken, MadeToken, NewToken,
};
use piped_config::admin::ending::Ended;

use crate::admin::Admin;
use crate::commands::{keys, words};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

/// Arguments of `pipectl cluster token`.
#[derive(Debug, ClapArgs)]
pub(super) struct TokenArgs {
    /// Action on the tokens of the cluster
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a token, and print what joins with it
    ///
    /// Whoever has the token can join until it is used up or has ended. It ends with the daemon,
    /// too.
    Create {
        /// How many nodes may join with it
        #[arg(long, value_name = "COUNT", default_value_t = 1)]
        uses: u32,
        /// How long it is open, as in 10m
        #[arg(long = "for", value_name = "TIME", default_value = "10m")]
        time: Period,
        /// The only name that a node may have that joins with it
        #[arg(long)]
        name: Option<String>,
        /// A group that a node is in that joins with it; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
    },
    /// Show the tokens that are open, without their secrets
    List,
    /// End a token by its number
    End {
        /// The number that `list` shows
        token: u64,
    },
}

pub(super) fn run(
    admin: &Admin,
    asked: &TokenArgs,
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    match &asked.action {
        Action::Create { uses, time, name, groups } => {
            let (name, groups, seconds) = (name.clone(), groups.clone(), time.0.as_secs());
            let body = NewToken { uses: *uses, seconds, name, groups };
            if json {
                return output::json(admin.ask_raw(CLUSTER_TOKENS, body)?);
            }
            let MadeToken { number, token, at } = admin.ask(CLUSTER_TOKENS, body)?;
            keys::say(format_args!(
                "token {number}: for {uses} node{}, {time} from now. On the node that joins, as \
                 root:",
                if *uses == 1 { "" } else { "s" }
            ));
            if at.is_empty() {
                keys::say("(HOST:PORT is where this node listens, seen from there)");
            }
            let at = if at.is_empty() { "HOST:PORT" } else { &at };
            output.line(format_args!("piped join {token}@{at}"))
        }
        Action::List => list(admin, output, json),
        Action::End { token } => {
            let body = EndToken { token: *token };
            if json {
                return output::json(admin.put_raw(CLUSTER_TOKENS_END, body)?);
            }
            let Ended { ended } = admin.put_and_read(CLUSTER_TOKENS_END, body)?;
            output.line(format_args!("{ended}: nobody joins with it any more"))
        }
    }
}

fn list(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    let ClusterReport { tokens, .. } = admin.get(CLUSTER)?;
    if json {
        return output::json(Tokens { tokens });
    }
    if tokens.is_empty() {
        return output.prose("No token is open: see `pipectl cluster token create`.", 0);
    }
    let rows = tokens.iter().map(|it| {
        vec![
            it.token.to_string(),
            it.uses.to_string(),
            units::uptime(it.seconds_left as f64),
            it.name.clone().unwrap_or_else(|| "any".to_owned()),
            words::list(&it.groups, "none"),
        ]
    });
    let columns = [Number("TOKEN"), Number("USES"), Text("ENDS IN"), Text("NAME"), Text("GROUPS")];
    output.table(&columns, rows.collect())
}

/// JSON that `list --json` prints.
#[derive(Debug, serde::Serialize)]
struct Tokens {
    tokens: Vec<piped_config::admin::cluster::TokenReport>,
}
