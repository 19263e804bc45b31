//! `pipectl clients`: the sessions, with present requests and totals.

use piped_config::admin::{CLIENTS, ClientReport, Clients};

use crate::admin::Admin;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

pub(crate) fn run(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(CLIENTS)?);
    }
    let Clients { clients } = admin.get(CLIENTS)?;
    if clients.is_empty() {
        return output.prose("No clients are connected.", 0);
    }
    output.table(
        &[
            Number("SESSION"),
            Number("PID"),
            Text("USER"),
            Text("CLASS"),
            Number("QUEUES"),
            Number("HANDLES"),
            Number("ARENA"),
            Number("LENT"),
            Number("IN FLIGHT"),
            Number("DONE"),
            Number("FAILED"),
            Number("MOVED"),
        ],
        clients.iter().map(row).collect(),
    )
}

fn row(client: &ClientReport) -> Vec<String> {
    vec![
        client.session.to_string(),
        client.pid.to_string(),
        client.user.clone().unwrap_or_else(|| client.uid.to_string()),
        if client.class.is_empty() { "-".to_owned() } else { client.class.clone() },
        client.queues.to_string(),
        client.handles.to_string(),
        units::bytes(client.arena_bytes),
        units::bytes(client.lent_bytes),
        units::count(client.requests),
        units::count(client.completed),
        units::count(client.failed),
        units::bytes(client.bytes),
    ]
}
