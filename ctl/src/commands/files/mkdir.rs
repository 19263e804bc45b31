//! `pipectl mkdir`: new directories.

use clap::{Args as ClapArgs, ValueHint};

use super::found::plain_place;
use super::tree::Tree;
use super::{each, mode};
use crate::args::ClientDoor;
use crate::below::Below;
use crate::failure::Failure;

/// Permission bits of a directory, of which the daemon's umask takes some away: its user writes,
/// its group looks, as with files.
const MODE: u32 = 0o750;

/// Arguments of `pipectl mkdir`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "The export needs `names = true`.")]
pub(crate) struct MkdirArgs {
    /// PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node
    #[arg(value_name = "PLACE", required = true, value_hint = ValueHint::Url)]
    places: Vec<Below>,

    /// Make directories on the way, too; one that is there is no error
    #[arg(short, long)]
    parents: bool,

    /// Permission bits in octal, less the daemon's umask (default: 750)
    #[arg(short, long, value_name = "MODE", value_parser = |text: &str| mode(text, 0o1777))]
    mode: Option<u32>,

    #[command(flatten)]
    door: ClientDoor,
}

pub(crate) fn run(args: &MkdirArgs) -> Result<(), Failure> {
    let mut tree = Tree::connect(&args.door)?;
    each(&args.places, |place| {
        let place = plain_place(place)?;
        let made = tree.make_directory(&place, args.mode.unwrap_or(MODE), args.parents);
        made.map_err(|fault| fault.of(&place))
    })
}
