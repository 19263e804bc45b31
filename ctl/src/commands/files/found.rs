//! Operands with patterns become the places that have them.

use piped_client::Status;
use piped_client::call::FileKind;

use super::pattern::{Pattern, plain};
use super::tree::{Fault, Tree};
use crate::below::{Below, HOW};
use crate::failure::Failure;

/// Most places that operands stand for together.
const PLACES_MAX: usize = 4_000_000;

/// The places that operands stand for, those of one pattern sorted. A pattern that nothing has
/// stands for itself, so that the command names it.
pub(super) fn found(tree: &mut Tree, operands: &[Below]) -> Result<Vec<Below>, Failure> {
    let mut places = Vec::new();
    for operand in operands {
        places.extend(one(tree, operand)?);
        few(operand, places.len())?;
    }
    Ok(places)
}

/// The one place that an operand stands for.
pub(super) fn single(tree: &mut Tree, operand: &Below) -> Result<Below, Failure> {
    let mut places = one(tree, operand)?;
    match (places.pop(), places.len()) {
        (Some(place), 0) => Ok(place),
        (_, others) => {
            Err(Failure::usage(format!("{operand} stands for {} places: name one", others + 1)))
        }
    }
}

/// The place of something that need not be there: no pattern.
pub(super) fn plain_place(operand: &Below) -> Result<Below, Failure> {
    let place = literal(operand)?;
    if is_pattern(operand) {
        let why = format!("{operand} is a pattern: write \\ before a character meant as it is");
        return Err(Failure::usage(why));
    }
    Ok(place)
}

fn one(tree: &mut Tree, operand: &Below) -> Result<Vec<Below>, Failure> {
    let literal = literal(operand)?;
    if !is_pattern(operand) {
        return Ok(vec![literal]);
    }
    // Each with what it is, if a list has said so: behind a plain name it need not be there.
    let mut places: Vec<(Below, Option<FileKind>)> = vec![(operand.with_path(b""), None)];
    let last = operand.parts().count() - 1;
    for (number, part) in operand.parts().enumerate() {
        let Some(pattern) = Pattern::parse(part) else {
            let name = plain(part);
            places.iter_mut().for_each(|place| *place = (place.0.child(&name), None));
            continue;
        };
        let is_way = number < last || operand.is_marked();
        let is_meant = |kind| !is_way || matches!(kind, FileKind::Directory | FileKind::Link);
        let mut matching = Vec::new();
        for (place, _) in &places {
            let names = match tree.list(place, false) {
                Err(fault) if leads_nowhere(&fault) => continue,
                names => names.map_err(|fault| fault.of(place))?,
            };
            let names = names.iter().filter(|it| is_meant(it.kind()) && pattern.matches(it.name()));
            matching.extend(names.map(|it| (place.child(it.name()), Some(it.kind()))));
            few(operand, matching.len())?;
        }
        places = matching;
    }
    let mut there = Vec::new();
    for (place, kind) in places {
        if is_there(tree, &place, kind, operand.is_marked())? {
            there.push(operand.marked_with_path(place.path()));
        }
    }
    if there.is_empty() {
        there.push(literal);
    }
    Ok(there)
}

/// Whether a place is there; one with a slash at its end has to be a directory, or lead to one.
fn is_there(
    tree: &mut Tree,
    place: &Below,
    kind: Option<FileKind>,
    is_marked: bool,
) -> Result<bool, Failure> {
    let looked = match kind {
        Some(kind) => Ok(Some(kind)),
        None => tree.find(place).map(|found| found.map(|stat| stat.kind)),
    };
    let is_there = looked.and_then(|kind| match kind {
        Some(FileKind::Link) if is_marked => tree.leads_to_directory(place),
        Some(kind) => Ok(!is_marked || kind == FileKind::Directory),
        None => Ok(false),
    });
    match is_there {
        Err(fault) if leads_nowhere(&fault) => Ok(false),
        is_there => is_there.map_err(|fault| fault.of(place)),
    }
}

/// Whether there is nothing below a place, or a link on the way leads out of the export.
fn leads_nowhere(fault: &Fault) -> bool {
    fault.is_missing() || fault.status() == Some(Status::Loop)
}

/// An error if an operand stands for too many places.
fn few(operand: &Below, count: usize) -> Result<(), Failure> {
    if count <= PLACES_MAX {
        return Ok(());
    }
    Err(Failure::failed(format!("{operand}: more than {PLACES_MAX} places")))
}

fn is_pattern(operand: &Below) -> bool {
    operand.parts().any(|part| Pattern::parse(part).is_some())
}

/// The place that has an operand's text as its path.
fn literal(operand: &Below) -> Result<Below, Failure> {
    if operand.export().is_empty() {
        return Err(Failure::usage(format!("{operand} names no export: {HOW}")));
    }
    let parts: Vec<Vec<u8>> = operand.parts().map(plain).collect();
    Ok(operand.marked_with_path(&parts.join(&b'/')))
}
