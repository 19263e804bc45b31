//! Operands with patterns become the places that have them.

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
        if places.len() > PLACES_MAX {
            return Err(Failure::failed(format!("{operand}: more than {PLACES_MAX} places")));
        }
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

fn one(tree: &mut Tree, operand: &Below) -> Result<Vec<Below>, Failure> {
    if operand.export().is_empty() {
        return Err(Failure::usage(format!("{operand} names no export: {HOW}")));
    }
    let literal = || {
        let parts: Vec<Vec<u8>> = operand.parts().map(plain).collect();
        operand.marked_with_path(&parts.join(&b'/'))
    };
    if !operand.parts().any(|part| Pattern::parse(part).is_some()) {
        return Ok(vec![literal()]);
    }
    let mut places = vec![operand.with_path(b"")];
    let (mut is_sure, last) = (true, operand.parts().count() - 1);
    for (number, part) in operand.parts().enumerate() {
        let Some(pattern) = Pattern::parse(part) else {
            let name = plain(part);
            places.iter_mut().for_each(|place| *place = place.child(&name));
            is_sure = false;
            continue;
        };
        let mut matching = Vec::new();
        for place in &places {
            let names = match tree.list(place, false) {
                Err(fault) if fault.is_missing() => continue,
                names => names.map_err(|fault| fault.of(place))?,
            };
            let leads_on = |kind| matches!(kind, FileKind::Directory | FileKind::Link);
            let names = names.iter().filter(|it| number == last || leads_on(it.kind()));
            let names = names.filter(|it| pattern.matches(it.name()));
            matching.extend(names.map(|it| place.child(it.name())));
        }
        (places, is_sure) = (matching, true);
    }
    if !is_sure {
        // The last components are plain names, which some of the directories have.
        let mut there = Vec::new();
        for place in places {
            let known = tree.find(&place).map_err(|fault: Fault| fault.of(&place))?;
            there.extend(known.map(|_| place));
        }
        places = there;
    }
    if places.is_empty() {
        places.push(literal());
    }
    Ok(places)
}

/// The place of something that need not be there: no pattern.
pub(super) fn plain_place(operand: &Below) -> Result<Below, Failure> {
    if operand.export().is_empty() {
        return Err(Failure::usage(format!("{operand} names no export: {HOW}")));
    }
    if operand.parts().any(|part| Pattern::parse(part).is_some()) {
        let why = format!("{operand} is a pattern: write \\ before a character meant as it is");
        return Err(Failure::usage(why));
    }
    let parts: Vec<Vec<u8>> = operand.parts().map(plain).collect();
    Ok(operand.marked_with_path(&parts.join(&b'/')))
}
