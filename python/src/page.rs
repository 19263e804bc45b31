//! Answers that come in pages, and where the next page begins. No daemon is believed.

use piped_client::call::{Entries, Extent, FileKind, NoCall, Range, Stat};

/// A name in a directory: its bytes, what it stands for, and what is known of it.
pub(crate) type Name = (Vec<u8>, FileKind, Option<Stat>);

/// Reads a page of names, and where to go on.
///
/// # Errors
/// It cannot be read, or a name would be a path, or no path at all.
pub(crate) fn names(answer: &[u8]) -> Result<(Vec<Name>, Option<u64>), NoCall> {
    let page = Entries::parse(answer)?;
    let names: Vec<Name> = page.iter().map(|it| (it.name.to_vec(), it.kind, it.stat)).collect();
    if !names.iter().all(|(name, ..)| is_name(name)) {
        return Err(NoCall);
    }
    // A page without a name is no way to go on.
    let next = page.next().filter(|_| !names.is_empty());
    Ok((names, next))
}

/// Whether a directory can have the name: who walks a tree by such names stays inside of it.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Reads a page of extents of a range, and where to go on in it.
///
/// # Errors
/// It cannot be read, or its extents do not follow each other from the range's start on.
pub(crate) fn extents(answer: &[u8], range: Range) -> Result<(Vec<Extent>, Option<u64>), NoCall> {
    if !answer.len().is_multiple_of(Extent::BYTES) {
        return Err(NoCall);
    }
    let (mut at, last) = (range.offset, range.offset.saturating_add(range.length));
    let mut extents = Vec::new();
    for bytes in answer.chunks_exact(Extent::BYTES) {
        let extent = Extent::parse(bytes)?;
        let end = extent.offset.checked_add(extent.length).ok_or(NoCall)?;
        if extent.offset != at || extent.length == 0 || end > last {
            return Err(NoCall);
        }
        at = end;
        extents.push(extent);
    }
    // A page without extents is the file's end.
    let next = (at < last && !extents.is_empty()).then_some(at);
    Ok((extents, next))
}
