//! `pipectl exports`: what this node offers.

use piped_config::admin::watch::{EXPORTS, Exports};

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
    let Exports { exports, regions } = admin.get(EXPORTS)?;
    if exports.is_empty() && regions.is_empty() {
        return output.prose("Nothing is offered: directories are configured in [exports.NAME], regions come from clients.", 0);
    }
    let rows = exports.iter().map(|export| {
        vec![
            export.name.clone(),
            access(export.read, export.write).to_owned(),
            words::list(&export.users, "all"),
            words::list(&export.peers, "all"),
            export.path.clone(),
        ]
    });
    let columns = [Text("EXPORT"), Text("ACCESS"), Text("USERS"), Text("PEERS"), Text("DIRECTORY")];
    output.table(&columns, rows.collect())?;
    if regions.is_empty() {
        return Ok(());
    }
    if !exports.is_empty() {
        output.line("")?;
    }
    let rows = regions.iter().map(|region| {
        vec![
            region.name.clone(),
            access(region.read, region.write).to_owned(),
            units::bytes(region.bytes),
            region.session.to_string(),
        ]
    });
    let columns = [Text("REGION"), Text("ACCESS"), Number("LENGTH"), Number("SESSION")];
    output.table(&columns, rows.collect())
}

const fn access(read: bool, write: bool) -> &'static str {
    match (read, write) {
        (true, true) => "read write",
        (true, false) => "read",
        (false, true) => "write",
        (false, false) => "none",
    }
}
