//! `pipectl ls`: names below exports.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};

use clap::{Args as ClapArgs, ValueHint};
use piped_client::call::{FileKind, Stat};
use piped_config::admin::watch::{EXPORTS, Exports, PEERS, Peers};
use piped_text::shown_bytes;
use serde::Serialize;
use serde_json::Value;

use super::shown::{self, Report};
use super::tree::Tree;
use super::{after, each, found::found, go_on};
use crate::admin::Admin;
use crate::args::ClientDoor;
use crate::below::Below;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::table;
use crate::units;

/// Arguments of `pipectl ls`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Directories end in a slash. Without a place: the exports of this node, and its
peers. Quote patterns (*, ?, [a-z]), which are matched below the export. Times
are UTC.")]
pub(crate) struct LsArgs {
    /// PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node
    #[arg(value_name = "PLACE", value_hint = ValueHint::Url)]
    places: Vec<Below>,

    /// Show mode, size and time of the last change
    #[arg(short)]
    long: bool,

    /// Show names that begin with a dot
    #[arg(short)]
    all: bool,

    /// Show what is in directories below, too
    #[arg(short = 'R')]
    recursive: bool,

    /// One name on a line (also into a pipe)
    #[arg(short = '1')]
    one: bool,

    #[command(flatten)]
    door: ClientDoor,
}

#[derive(Debug, Serialize)]
struct Listing {
    entries: Vec<Report>,
}

pub(crate) fn run(
    args: &LsArgs,
    admin: impl Fn() -> Result<Admin, Failure>,
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    if args.places.is_empty() {
        return nodes(&admin()?, output, json);
    }
    if let Some(node) = args.places.iter().find(|place| place.export().is_empty()) {
        if args.places.len() > 1 {
            let why = format!("{node} names no export: name one, or leave out the other places");
            return Err(Failure::usage(why));
        }
        return exports_of(node, admin, output, json);
    }
    let mut tree = Tree::connect(&args.door)?;
    let places = found(&mut tree, &args.places)?;
    let headed = places.len() > 1 || args.recursive;
    let mut lister = Lister { args, tree, output, json, headed, told: false, all: Vec::new() };
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    let looked = each(places, |place| {
        // A slash leads through a link.
        if place.is_marked() || place.is_export() {
            directories.push(place);
            return Ok(());
        }
        let stat = lister.tree.stat(&place).map_err(|fault| fault.of(&place))?;
        match stat.kind {
            FileKind::Directory => directories.push(place),
            _ => files.push((place, stat)),
        }
        Ok(())
    });
    lister.files(files)?;
    let listed = each(directories, |place| lister.directory(&place));
    if json {
        output::json(Listing { entries: lister.all })?;
    }
    match listed {
        Ok(()) => looked,
        Err(failure) => after(looked, failure),
    }
}

/// Shows places, and what is in them.
struct Lister<'a> {
    args: &'a LsArgs,
    tree: Tree,
    output: &'a Output,
    json: bool,
    /// Whether directories have a heading.
    headed: bool,
    /// Whether something stands above.
    told: bool,
    all: Vec<Report>,
}

/// A line, or a cell.
struct Row {
    kind: FileKind,
    stat: Option<Stat>,
    name: String,
}

impl Row {
    fn marked(&self) -> String {
        let mark = if self.kind == FileKind::Directory { "/" } else { "" };
        format!("{}{mark}", self.name)
    }
}

impl Lister<'_> {
    /// Places that are no directories.
    fn files(&mut self, files: Vec<(Below, Stat)>) -> Result<(), Failure> {
        if self.json {
            let reports = files.iter().map(|(at, stat)| Report::new(at, stat.kind, Some(stat)));
            self.all.extend(reports);
            return Ok(());
        }
        let row = |(at, stat): (Below, Stat)| Row {
            kind: stat.kind,
            stat: Some(stat),
            name: at.to_string(),
        };
        self.told |= !files.is_empty();
        self.rows(files.into_iter().map(row).collect())
    }

    /// A directory, and those below it if that is wanted.
    fn directory(&mut self, place: &Below) -> Result<(), Failure> {
        let mut left = vec![place.clone()];
        let mut last = Ok(());
        while let Some(place) = left.pop() {
            let below = match self.names(&place) {
                Ok(below) => below,
                // It was removed meanwhile, or cannot be read: the others can.
                Err(failure) if self.args.recursive => {
                    last = go_on(last, failure)?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if self.args.recursive {
                left.extend(below.into_iter().rev());
            }
        }
        last
    }

    /// The names of a directory; returns the directories among them.
    fn names(&mut self, place: &Below) -> Result<Vec<Below>, Failure> {
        let stats = self.args.long || self.json;
        let mut names = self.tree.list(place, stats).map_err(|fault| fault.of(place))?;
        names.retain(|it| self.args.all || !it.name().starts_with(b"."));
        let directories = names.iter().filter(|it| it.kind() == FileKind::Directory);
        let directories = directories.map(|it| place.child(it.name())).collect();
        if !self.json && self.headed {
            let line = if self.told { "\n" } else { "" };
            self.output.line(format_args!("{line}{place}:"))?;
            self.told = true;
        }
        let mut rows = Vec::with_capacity(names.len());
        for it in &names {
            let stat = if stats { self.tree.known(place, it) } else { None };
            if self.json {
                let child = place.child(it.name());
                self.all.push(Report::new(&child, it.kind(), stat.as_ref()));
            } else {
                let name = shown_bytes(it.name()).into_owned();
                rows.push(Row { kind: it.kind(), stat, name });
            }
        }
        self.rows(rows)?;
        Ok(directories)
    }

    fn rows(&self, rows: Vec<Row>) -> Result<(), Failure> {
        if self.args.long {
            return self.output.text(&rows.iter().map(line).collect::<String>());
        }
        let cells: Vec<String> = rows.iter().map(Row::marked).collect();
        match columns(self.output).filter(|_| !self.args.one) {
            Some(width) => self.output.text(&table::columns(&cells, width)),
            None => self.output.text(&cells.iter().map(|it| format!("{it}\n")).collect::<String>()),
        }
    }
}

/// Width of the terminal; none into a pipe, whatever `COLUMNS` says.
fn columns(output: &Output) -> Option<u16> {
    output.width().filter(|_| io::stdout().is_terminal())
}

fn line(row: &Row) -> String {
    let (mode, size, time) = match &row.stat {
        Some(stat) => (
            shown::mode(row.kind, stat.mode),
            units::compact(stat.length as f64),
            shown::utc(stat.modified.0),
        ),
        None => (format!("{:?<10}", ""), "-".to_owned(), "-".to_owned()),
    };
    let minute = time.rsplit_once(':').map_or(time.as_str(), |(minute, _)| minute);
    format!("{mode} {size:>5} {minute:>16} {}\n", row.marked())
}

/// What can be listed, as far as this node knows.
#[derive(Debug, Serialize)]
pub(super) struct AtHand {
    exports: Vec<String>,
    peers: BTreeSet<String>,
}

impl AtHand {
    /// The places as they are typed.
    pub(super) fn places(&self) -> impl Iterator<Item = String> {
        let exports = self.exports.iter().map(|name| format!(":{name}/"));
        exports.chain(self.peers.iter().map(|name| format!("{name}:")))
    }
}

pub(super) fn at_hand(admin: &Admin) -> Result<AtHand, Failure> {
    let exports = exports(admin)?;
    let Peers::<Value> { peers } = admin.get(PEERS)?;
    // One that has connected by itself may have any name.
    let peers = peers.into_iter().filter(|peer| !peer.inbound).map(|peer| peer.name).collect();
    Ok(AtHand { exports, peers })
}

fn nodes(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    let at_hand = at_hand(admin)?;
    if json {
        return output::json(&at_hand);
    }
    if at_hand.places().next().is_none() {
        let text = "No exports are configured here in [exports.NAME], and no peers in [peers].";
        return output.prose(text, 0);
    }
    at_hand.places().try_for_each(|place| output.line(place))?;
    match at_hand.peers.first() {
        Some(peer) if columns(output).is_some() => output.heading(&format!(
            "What a peer exports is shown there by `pipectl exports`; `pipectl ls {peer}:EXPORT` \
             lists it from here."
        )),
        _ => Ok(()),
    }
}

/// The exports of a node.
fn exports_of(
    node: &Below,
    admin: impl Fn() -> Result<Admin, Failure>,
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    if let Some(peer) = node.peer() {
        let why = format!(
            "{node} names no export: `pipectl exports` on {peer} shows what it offers; then \
             `pipectl ls {peer}:EXPORT`"
        );
        return Err(Failure::new(Exit::Usage, why));
    }
    let exports = exports(&admin()?)?;
    if json {
        return output::json(serde_json::json!({ "exports": exports }));
    }
    exports.iter().try_for_each(|name| output.line(format_args!(":{name}/")))
}

/// The exports of this node that can be read.
pub(super) fn exports(admin: &Admin) -> Result<Vec<String>, Failure> {
    let Exports { exports, .. } = admin.get(EXPORTS)?;
    Ok(exports.into_iter().filter(|it| it.read).map(|it| it.name).collect())
}
