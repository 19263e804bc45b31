//! `pipectl handles` lists open handles; `handle end`, `client end` and `peer end` end what the
//! operator names.

use clap::{Args as ClapArgs, Subcommand};
use piped_config::admin::ending::{
    CLIENTS_END, EndClient, EndHandle, EndPeer, Ended, HANDLES, HANDLES_END, HandleReport, Handles,
    PEERS_END,
};
use serde::Serialize;

use crate::admin::Admin;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};

/// Arguments of `pipectl handle`.
#[derive(Debug, ClapArgs)]
pub(crate) struct HandleArgs {
    #[command(subcommand)]
    action: HandleAction,
}

#[derive(Debug, Subcommand)]
enum HandleAction {
    /// End a handle: its present and later requests end with `Gone`
    ///
    /// Its client may open the same again, if the configuration still allows that.
    End {
        /// Number of the handle, which `pipectl handles` shows
        handle: u64,
    },
}

/// Arguments of `pipectl client`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ClientArgs {
    #[command(subcommand)]
    action: ClientAction,
}

#[derive(Debug, Subcommand)]
enum ClientAction {
    /// End the session of a client: everything that it has open closes
    ///
    /// The client may connect again, if `[access]` still names its user.
    End {
        /// The session, which `pipectl clients` shows
        session: u32,
    },
}

/// Arguments of `pipectl peer`.
#[derive(Debug, ClapArgs)]
pub(crate) struct PeerArgs {
    #[command(subcommand)]
    action: PeerAction,
}

#[derive(Debug, Subcommand)]
enum PeerAction {
    /// Close the lanes from and to a node
    ///
    /// The node may connect again, and is dialled again, unless a reload has taken its access away.
    End {
        /// The name of the node, which `pipectl peers` shows
        name: String,
    },
}

pub(crate) fn handle(
    admin: &Admin,
    output: &Output,
    args: &HandleArgs,
    json: bool,
) -> Result<(), Failure> {
    let HandleAction::End { handle } = args.action;
    end(admin, output, HANDLES_END, EndHandle { handle }, json)
}

pub(crate) fn client(
    admin: &Admin,
    output: &Output,
    args: &ClientArgs,
    json: bool,
) -> Result<(), Failure> {
    let ClientAction::End { session } = args.action;
    end(admin, output, CLIENTS_END, EndClient { session }, json)
}

pub(crate) fn peer(
    admin: &Admin,
    output: &Output,
    args: &PeerArgs,
    json: bool,
) -> Result<(), Failure> {
    let PeerAction::End { name } = &args.action;
    end(admin, output, PEERS_END, EndPeer { peer: name.clone() }, json)
}

fn end(
    admin: &Admin,
    output: &Output,
    path: &str,
    body: impl Serialize,
    json: bool,
) -> Result<(), Failure> {
    if json {
        return output::json(admin.put_raw(path, body)?);
    }
    let Ended { ended } = admin.put_and_read(path, body)?;
    output.line(format_args!("ended: {ended}"))
}

/// Runs `pipectl handles`, which lists handles.
pub(crate) fn list(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(HANDLES)?);
    }
    let Handles { total, handles } = admin.get(HANDLES)?;
    if handles.is_empty() {
        return output.prose("Nothing is open.", 0);
    }
    let columns =
        [Number("HANDLE"), Text("OF"), Text("KIND"), Text("NAME"), Text("AT"), Text("ACCESS")];
    let listed = handles.len() as u64;
    output.table(&columns, handles.into_iter().map(row).collect())?;
    if total > listed {
        output.line(format_args!("... and {} more", total - listed))?;
    }
    Ok(())
}

fn row(it: HandleReport) -> Vec<String> {
    let of = match (it.session, it.uid, it.peer) {
        (Some(session), Some(uid), _) => format!("session {session}, user {uid}"),
        (_, _, Some(peer)) => format!("node {peer}"),
        _ => "-".to_owned(),
    };
    let access = match (it.offers, it.read, it.write) {
        (true, ..) => "offered",
        (_, true, true) => "read write",
        (_, true, false) => "read",
        (_, false, true) => "write",
        (_, false, false) => "none",
    };
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    vec![
        it.handle.to_string(),
        of,
        it.kind,
        or_dash(it.name),
        it.at.unwrap_or_else(|| "here".to_owned()),
        access.to_owned(),
    ]
}
