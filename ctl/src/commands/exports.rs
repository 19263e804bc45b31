//! `pipectl exports`: directories, regions and channels that this node offers.

use piped_config::admin::watch::{EXPORTS, ExportReport, Exports};

use crate::admin::Admin;
use crate::commands::words;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

pub(crate) fn run(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(EXPORTS)?);
    }
    let Exports { exports, regions, channels } = admin.get(EXPORTS)?;
    if exports.is_empty() && regions.is_empty() && channels.is_empty() {
        let text = "Nothing is offered: directories are configured in [exports.NAME], regions and \
            channels come from clients.";
        return output.prose(text, 0);
    }
    let rows = exports.iter().map(|export| {
        vec![
            export.name.clone(),
            of_export(export),
            locals(&export.users, &export.groups),
            words::list(&export.peers, "all"),
            export.path.clone(),
        ]
    });
    let columns = [Text("EXPORT"), Text("ACCESS"), Text("USERS"), Text("PEERS"), Text("DIRECTORY")];
    let exports = (columns.to_vec(), rows.collect());
    let rows = regions.iter().map(|region| {
        vec![
            region.name.clone(),
            access(region.read, region.write).to_owned(),
            units::bytes(region.bytes),
            region.session.to_string(),
        ]
    });
    let columns = [Text("REGION"), Text("ACCESS"), Number("LENGTH"), Number("SESSION")];
    let regions = (columns.to_vec(), rows.collect());
    let rows =
        channels.iter().map(|channel| vec![channel.name.clone(), channel.session.to_string()]);
    let channels = (vec![Text("CHANNEL"), Number("SESSION")], rows.collect());
    let tables: [(_, Vec<Vec<String>>); 3] = [exports, regions, channels];
    for (number, (columns, rows)) in
        tables.into_iter().filter(|(_, rows)| !rows.is_empty()).enumerate()
    {
        if number > 0 {
            output.line("")?;
        }
        output.table(&columns, rows)?;
    }
    Ok(())
}

/// Users and groups as `web, group staff`.
fn locals(users: &[String], groups: &[String]) -> String {
    let groups = groups.iter().map(|group| format!("group {group}"));
    let all: Vec<String> = users.iter().cloned().chain(groups).collect();
    words::list(&all, "all")
}

fn of_export(export: &ExportReport) -> String {
    let names = if export.names { " names" } else { "" };
    format!("{}{names}", access(export.read, export.write))
}

const fn access(read: bool, write: bool) -> &'static str {
    match (read, write) {
        (true, true) => "read write",
        (true, false) => "read",
        (false, true) => "write",
        (false, false) => "none",
    }
}
