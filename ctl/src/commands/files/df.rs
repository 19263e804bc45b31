//! `pipectl df`: room on the file systems of exports.

use clap::{Args as ClapArgs, ValueHint};
use piped_client::call::Space;
use serde::Serialize;

use super::each;
use super::found::found;
use super::ls::exports;
use super::tree::Tree;
use crate::admin::Admin;
use crate::args::ClientDoor;
use crate::below::Below;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

/// Arguments of `pipectl df`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Available is what the daemon may take; the rest of what is free is reserved.")]
pub(crate) struct DfArgs {
    /// PEER:EXPORT/PATH, or :EXPORT/PATH (default: the exports of this node)
    #[arg(value_name = "PLACE", value_hint = ValueHint::Url)]
    places: Vec<Below>,

    #[command(flatten)]
    door: ClientDoor,
}

#[derive(Debug, Serialize)]
struct Report {
    places: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    place: String,
    /// The place for people: a name of somebody else can make no line of the table.
    #[serde(skip)]
    shown: String,
    total_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    available_bytes: u64,
    /// None where the file system has no bound.
    files: Option<u64>,
    files_free: Option<u64>,
}

impl Row {
    fn new(place: &Below, space: &Space) -> Self {
        let bounded = |count| (space.files > 0).then_some(count);
        Self {
            place: String::from_utf8_lossy(&place.bytes()).into_owned(),
            shown: place.to_string(),
            total_bytes: space.total,
            used_bytes: space.total.saturating_sub(space.free),
            free_bytes: space.free,
            available_bytes: space.available,
            files: bounded(space.files),
            files_free: bounded(space.files_free),
        }
    }

    fn cells(&self) -> Vec<String> {
        let files = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), units::short);
        // As df has it: of what can be taken, rounded up.
        let room = self.used_bytes.saturating_add(self.available_bytes);
        let used = (u128::from(self.used_bytes) * 100).div_ceil(u128::from(room).max(1));
        vec![
            self.shown.clone(),
            units::bytes(self.total_bytes),
            units::bytes(self.used_bytes),
            units::bytes(self.available_bytes),
            format!("{used} %"),
            files(self.files),
            files(self.files_free),
        ]
    }
}

pub(crate) fn run(
    args: &DfArgs,
    admin: impl Fn() -> Result<Admin, Failure>,
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    let operands = match args.places.as_slice() {
        [] => {
            let own = |name: &String| Below::parse(format!(":{name}").as_ref());
            let own: Result<Vec<Below>, String> = exports(&admin()?)?.iter().map(own).collect();
            own.map_err(Failure::failed)?
        }
        places => places.to_vec(),
    };
    let mut tree = Tree::connect(&args.door)?;
    let mut places = Vec::new();
    let asked = found(&mut tree, &operands)?;
    let looked = each(&asked, |place| {
        let space = tree.space(place).map_err(|fault| fault.of(place))?;
        places.push(Row::new(place, &space));
        Ok(())
    });
    if json {
        output::json(Report { places })?;
        return looked;
    }
    let columns = [
        Text("PLACE"),
        Number("SIZE"),
        Number("USED"),
        Number("AVAILABLE"),
        Number("FULL"),
        Number("FILES"),
        Number("FILES FREE"),
    ];
    let rows = places.iter().map(Row::cells).collect();
    output.table(&columns, rows)?;
    looked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_makes_no_line_of_the_table() {
        let place = Below::parse("b:data/x\nb:other".as_ref()).expect("a path is bytes");
        let space = Space { total: 0, free: 0, available: 0, files: 0, files_free: 0 };
        assert_eq!(Row::new(&place, &space).cells()[0], "b:data/x\\nb:other");
    }
}
