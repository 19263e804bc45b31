//! `pipectl stat PLACE`: all that is known of files and directories.

use piped_client::call::Stat;
use serde::Serialize;

use super::found::found;
use super::shown::{self, Report};
use super::tree::Tree;
use super::{each, shown::utc};
use crate::args::ClientDoor;
use crate::below::Below;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::units;

#[derive(Debug, Serialize)]
struct Files {
    files: Vec<Report>,
}

pub(crate) fn run(
    operands: &[Below],
    door: &ClientDoor,
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    let mut tree = Tree::connect(door)?;
    let places = found(&mut tree, operands)?;
    let mut files = Vec::new();
    let mut told = false;
    let looked = each(&places, |place| {
        let stat = tree.stat(place).map_err(|fault| fault.of(place))?;
        if json {
            files.push(Report::new(place, stat.kind, Some(&stat)));
            return Ok(());
        }
        if told {
            output.line("")?;
        }
        told = true;
        print(place, &stat, output)
    });
    if json {
        output::json(Files { files })?;
    }
    looked
}

fn print(place: &Below, stat: &Stat, output: &Output) -> Result<(), Failure> {
    let field = |name, value: String| output.labelled(name, &value, 11);
    let exact = |bytes: u64| match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ => format!("{} ({} bytes)", units::bytes(bytes), units::count(bytes)),
    };
    let time = |(seconds, nanos): (i64, u32)| format!("{}.{nanos:09} UTC", utc(seconds));
    field("place", place.to_string())?;
    field("kind", shown::word(stat.kind).to_owned())?;
    field("length", exact(stat.length))?;
    field("allocated", exact(stat.allocated))?;
    field("mode", format!("{:04o} ({})", stat.mode, shown::mode(stat.kind, stat.mode)))?;
    field("owner", format!("user {}, group {}, by numbers of its node", stat.user, stat.group))?;
    field("links", stat.links.to_string())?;
    field("inode", stat.inode.to_string())?;
    field("modified", time(stat.modified))?;
    field("changed", time(stat.changed))?;
    let direct = match (stat.direct_offset, stat.direct_memory) {
        (0, _) | (_, 0) => "not known, or none".to_owned(),
        (offset, memory) => {
            format!(
                "offsets of {}, memory of {}",
                units::bytes(offset.into()),
                units::bytes(memory.into())
            )
        }
    };
    field("direct I/O", direct)
}
