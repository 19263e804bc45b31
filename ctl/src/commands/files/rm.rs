//! `pipectl rm`: names go, and what is below them.

use clap::{Args as ClapArgs, ValueHint};
use piped_client::Status;
use piped_client::call::{FileKind, Removed};
use serde::Serialize;

use super::found::found;
use super::tree::Tree;
use super::{each, go_on};
use crate::args::ClientDoor;
use crate::below::Below;
use crate::failure::{Exit, Failure};
use crate::output;

/// Arguments of `pipectl rm`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
The export needs `names = true`. Links are removed, not what they lead to. Quote
patterns (*, ?, [a-z]), which are matched below the export.")]
pub(crate) struct RmArgs {
    /// PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node
    #[arg(value_name = "PLACE", required = true, value_hint = ValueHint::Url)]
    places: Vec<Below>,

    /// Remove directories, and what is in them
    #[arg(short, long)]
    recursive: bool,

    /// Say nothing of what is not there
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    door: ClientDoor,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    removed_files: u64,
    removed_directories: u64,
}

pub(crate) fn run(args: &RmArgs, json: bool) -> Result<(), Failure> {
    let mut tree = Tree::connect(&args.door)?;
    let places = found(&mut tree, &args.places)?;
    let mut report = Report::default();
    let done = each(&places, |place| remove(args, &mut tree, place, &mut report));
    if json {
        output::json(report)?;
    }
    done
}

fn remove(
    args: &RmArgs,
    tree: &mut Tree,
    place: &Below,
    report: &mut Report,
) -> Result<(), Failure> {
    if place.is_export() {
        let why = format!(
            "{place} is an export, which its node's configuration names: remove \
             what is in it ({place}*)"
        );
        return Err(Failure::new(Exit::Refused, why));
    }
    if place.is_marked() {
        // A slash says that it is a directory: no link and no file is meant.
        match tree.find(place).map_err(|fault| fault.of(place))? {
            Some(stat) if stat.kind != FileKind::Directory => {
                let why = format!("{place} is no directory: leave out the slash to remove it");
                return Err(Failure::new(Exit::Refused, why));
            }
            _ => {}
        }
    }
    match tree.remove(place, Removed::File) {
        Ok(()) => {
            report.removed_files += 1;
            Ok(())
        }
        Err(fault) if args.force && fault.is_missing() => Ok(()),
        // File systems say of a directory that it is one, or that it may not be.
        Err(fault)
            if matches!(fault.status(), Some(Status::IsDirectory | Status::NotPermitted))
                && is_directory(tree, place) =>
        {
            if args.recursive {
                return directory(tree, place, report);
            }
            let why =
                format!("{place} is a directory: `pipectl rm -r` removes it and what is in it");
            Err(Failure::new(Exit::Refused, why))
        }
        Err(fault) => Err(fault.of(place)),
    }
}

fn is_directory(tree: &mut Tree, place: &Below) -> bool {
    tree.stat(place).is_ok_and(|stat| stat.kind == FileKind::Directory)
}

/// Removes what is in a directory, then the directory. What lies open is a list, not a stack of
/// calls: paths are long enough for hundreds of directories in each other.
fn directory(tree: &mut Tree, place: &Below, report: &mut Report) -> Result<(), Failure> {
    let mut left = vec![(place.clone(), false)];
    let mut last = Ok(());
    while let Some((place, is_emptied)) = left.pop() {
        if is_emptied {
            match tree.remove(&place, Removed::Directory) {
                Ok(()) => report.removed_directories += 1,
                Err(fault) if fault.is_missing() => {}
                // The reason has been told.
                Err(fault) if last.is_err() && fault.status() == Some(Status::NotEmpty) => {}
                Err(fault) => last = go_on(last, fault.of(&place))?,
            }
            continue;
        }
        let names = match tree.list(&place, false) {
            Ok(names) => names,
            Err(fault) if fault.is_missing() => continue,
            Err(fault) => {
                last = go_on(last, fault.of(&place))?;
                continue;
            }
        };
        left.push((place.clone(), true));
        for name in names {
            let child = place.child(name.name());
            if name.kind() == FileKind::Directory {
                left.push((child, false));
                continue;
            }
            match tree.remove(&child, Removed::File) {
                Ok(()) => report.removed_files += 1,
                Err(fault) if fault.is_missing() => {}
                Err(fault) => last = go_on(last, fault.of(&child))?,
            }
        }
    }
    last
}
