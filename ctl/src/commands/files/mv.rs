//! `pipectl mv`: other names within an export, each in one step.

use clap::{Args as ClapArgs, ValueHint};
use piped_client::Status;
use piped_client::call::{FileKind, Over};

use super::each;
use super::found::{found, single};
use super::tree::Tree;
use crate::args::ClientDoor;
use crate::below::Below;
use crate::failure::{Exit, Failure};

/// Arguments of `pipectl mv`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
The export needs `names = true`. Renamed means on stable storage (see
--no-sync). Others see the old name or the new one, and never half of it.")]
pub(crate) struct MvArgs {
    /// From: PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node
    #[arg(value_name = "SRC", required = true, value_hint = ValueHint::Url)]
    sources: Vec<Below>,

    /// To: in the same export; a directory takes the sources with their names
    #[arg(value_name = "DST", required = true, value_hint = ValueHint::Url)]
    destination: Below,

    /// Fail if something has the new name
    #[arg(short, long, conflicts_with = "exchange")]
    no_clobber: bool,

    /// Give each of the two the other's name
    #[arg(long)]
    exchange: bool,

    /// Do not wait for stable storage
    #[arg(long)]
    no_sync: bool,

    #[command(flatten)]
    door: ClientDoor,
}

pub(crate) fn run(args: &MvArgs) -> Result<(), Failure> {
    let mut tree = Tree::connect(&args.door)?;
    let destination = single(&mut tree, &args.destination)?;
    let sources = found(&mut tree, &args.sources)?;
    let into =
        !args.exchange && (destination.is_marked() || is_directory(&mut tree, &destination)?);
    if sources.len() > 1 && !into {
        let why = format!("{destination} is no directory, which several sources need");
        return Err(Failure::usage(why));
    }
    let over = match (args.no_clobber, args.exchange) {
        (_, true) => Over::Exchange,
        (true, false) => Over::Keep,
        (false, false) => Over::Replace,
    };
    each(&sources, |source| {
        if !source.shares_export(&destination) {
            let why = format!(
                "{source} and {destination} are of two exports: copy with `pipectl cp`, then \
                 `pipectl rm {source}`"
            );
            return Err(Failure::new(Exit::Refused, why));
        }
        let Some((_, name)) = source.split() else {
            let why = format!("{source} is an export, which its node's configuration names");
            return Err(Failure::new(Exit::Refused, why));
        };
        let target = if into { destination.child(name) } else { destination.clone() };
        let renamed = tree.rename(source, &target, over, !args.no_sync);
        renamed.map_err(|fault| match fault.status() {
            Some(Status::Exists | Status::IsDirectory | Status::NotEmpty) => fault.of(&target),
            Some(Status::Invalid | Status::NameTooLong) => fault.of_both(source, &target),
            // What is there has nowhere to go.
            Some(Status::NotFound | Status::NotDirectory)
                if matches!(tree.find(source), Ok(Some(_))) =>
            {
                fault.of(&target.parent())
            }
            _ => fault.of(source),
        })
    })
}

/// Whether the destination is a directory, or a link to one; unknown is no, where the export cannot
/// be read.
fn is_directory(tree: &mut Tree, place: &Below) -> Result<bool, Failure> {
    let kind = match tree.find(place) {
        Err(fault) if fault.status() == Some(Status::Denied) => return Ok(false),
        found => found.map_err(|fault| fault.of(place))?.map(|stat| stat.kind),
    };
    match kind {
        Some(FileKind::Link) => tree.leads_to_directory(place).map_err(|fault| fault.of(place)),
        kind => Ok(kind == Some(FileKind::Directory)),
    }
}
