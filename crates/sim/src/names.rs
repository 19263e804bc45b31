//! Names: what stands in the directories of a node, and what of it a loss of power leaves.
//!
//! Each change of names is whole or not there, and rests on all earlier ones that touched the same
//! directories. A sync of a directory makes stable what has touched it, with all that this rests
//! on. A loss of power keeps any of the rest, at random, but nothing without what it rests on: file
//! systems keep more order, and none of them promises it.

use std::collections::{BTreeMap, BTreeSet};

use piped_core::call::Over;

use super::disk::{EINVAL, InodeId};
use super::random::Random;

pub(super) const ENOENT: i32 = -2;
const EPERM: i32 = -1;
const EBADF: i32 = -9;
pub(super) const EEXIST: i32 = -17;
pub(super) const ENOTDIR: i32 = -20;
pub(super) const EISDIR: i32 = -21;
const ENAMETOOLONG: i32 = -36;
const ENOTEMPTY: i32 = -39;

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Directories of a node.
#[derive(Debug, Default)]
pub(super) struct Names {
    now: BTreeMap<InodeId, Directory>,
    stable: BTreeMap<InodeId, Directory>,
    /// What is not stable, oldest first.
    changes: Vec<Change>,
    changes_made: u64,
    places_made: u64,
}

type Directory = BTreeMap<Vec<u8>, Entry>;

/// What a name stands for, and where it stands among others: a listing goes on behind a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    inode: InodeId,
    place: u64,
}

impl Entry {
    /// What the name stands for.
    pub(super) const fn inode(&self) -> InodeId {
        self.inode
    }

    /// Where a listing goes on behind it.
    pub(super) const fn place(&self) -> u64 {
        self.place
    }
}

#[derive(Debug)]
struct Change {
    number: u64,
    edits: Vec<Edit>,
    /// The directories that it changes, makes or takes away.
    touches: BTreeSet<InodeId>,
}

#[derive(Debug)]
struct Edit {
    directory: InodeId,
    name: Vec<u8>,
    entry: Option<Entry>,
}

/// A name in a directory that is there, whether or not it stands for anything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot<'a> {
    directory: InodeId,
    name: &'a [u8],
    entry: Option<Entry>,
}

impl Names {
    /// Adds a directory without a name of its own.
    pub(super) fn add_root(&mut self, inode: InodeId) {
        self.now.insert(inode, Directory::new());
        self.stable.insert(inode, Directory::new());
    }

    /// Adds a name that is stable from the start.
    pub(super) fn add_stable(&mut self, directory: InodeId, name: &[u8], inode: InodeId) {
        let entry = Entry { inode, place: self.next_place() };
        for all in [&mut self.now, &mut self.stable] {
            let names = all.get_mut(&directory).expect("it is a directory");
            names.insert(name.to_vec(), entry);
        }
    }

    pub(super) fn is_directory(&self, inode: InodeId) -> bool {
        self.now.contains_key(&inode)
    }

    /// How many names something has.
    pub(super) fn links(&self, inode: InodeId) -> u32 {
        let entries = self.now.values().flat_map(Directory::values);
        entries.filter(|entry| entry.inode == inode).count() as u32
    }

    /// The names in a directory behind a place, as they stand there.
    pub(super) fn behind(&self, directory: InodeId, place: u64) -> Vec<(&[u8], Entry)> {
        let names = self.now.get(&directory).into_iter().flatten();
        let names = names.map(|(name, entry)| (&name[..], *entry));
        let mut names: Vec<_> = names.filter(|(_, entry)| entry.place > place).collect();
        names.sort_unstable_by_key(|(_, entry)| entry.place);
        names
    }

    /// What a path leads to; an empty one to the directory itself.
    pub(super) fn find(&self, from: InodeId, path: &[u8]) -> Result<InodeId, i32> {
        if path.starts_with(b"/") || path.split(|&byte| byte == b'/').any(|part| part == b"..") {
            return Err(EBADF);
        }
        if path.contains(&0) {
            return Err(EINVAL);
        }
        let mut at = from;
        let parts = path.split(|&byte| byte == b'/');
        for part in parts.filter(|part| !part.is_empty() && *part != b".") {
            let names = self.now.get(&at).ok_or(ENOTDIR)?;
            if part.len() > NAME_BYTES_MAX {
                return Err(ENAMETOOLONG);
            }
            at = names.get(part).ok_or(ENOENT)?.inode;
        }
        if path.ends_with(b"/") && !self.is_directory(at) { Err(ENOTDIR) } else { Ok(at) }
    }

    /// The name that a path ends in, in its directory.
    pub(super) fn spot<'a>(&self, from: InodeId, path: &'a [u8]) -> Result<Spot<'a>, i32> {
        let cut = path.iter().rposition(|&byte| byte == b'/');
        let (parent, name) = cut.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]));
        if path.starts_with(b"/") || name == b".." {
            return Err(EBADF);
        }
        if name.is_empty() || name == b"." || name.contains(&0) {
            return Err(EINVAL);
        }
        let directory = self.find(from, parent)?;
        let names = self.now.get(&directory).ok_or(ENOTDIR)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(ENAMETOOLONG);
        }
        Ok(Spot { directory, name, entry: names.get(name).copied() })
    }

    /// Makes a directory of that inode.
    pub(super) fn make_directory(&mut self, at: Spot<'_>, inode: InodeId) -> Result<(), i32> {
        if at.entry.is_some() {
            return Err(EEXIST);
        }
        self.add_root(inode);
        let entry = Entry { inode, place: self.next_place() };
        self.change(vec![at.becomes(Some(entry))], &[inode]);
        Ok(())
    }

    /// Takes a name away, of a directory or of anything else.
    pub(super) fn remove(&mut self, at: Spot<'_>, is_directory: bool) -> Result<(), i32> {
        let inode = at.entry.ok_or(ENOENT)?.inode;
        match self.now.get(&inode) {
            Some(_) if !is_directory => return Err(EISDIR),
            None if is_directory => return Err(ENOTDIR),
            Some(names) if !names.is_empty() => return Err(ENOTEMPTY),
            _ => {}
        }
        self.change(vec![at.becomes(None)], &[inode]);
        Ok(())
    }

    /// Gives something another name.
    pub(super) fn rename(&mut self, from: Spot<'_>, to: Spot<'_>, over: Over) -> Result<(), i32> {
        let moved = from.entry.ok_or(ENOENT)?;
        match (to.entry, over) {
            (Some(_), Over::Keep) => return Err(EEXIST),
            (None, Over::Exchange) => return Err(ENOENT),
            // Two names of one file stay what they are, as POSIX has it.
            (Some(other), _) if other.inode == moved.inode => return Ok(()),
            _ => {}
        }
        let holds = |inode: InodeId, spot: Spot<'_>| self.is_above(inode, spot.directory);
        if holds(moved.inode, to) {
            return Err(EINVAL);
        }
        if let Some(other) = to.entry {
            if holds(other.inode, from) {
                return Err(if over == Over::Exchange { EINVAL } else { ENOTEMPTY });
            }
            let (is_directory, replaced) =
                (self.is_directory(moved.inode), self.now.get(&other.inode));
            match replaced.filter(|_| over == Over::Replace) {
                Some(_) if !is_directory => return Err(EISDIR),
                Some(names) if !names.is_empty() => return Err(ENOTEMPTY),
                None if is_directory && over == Over::Replace => return Err(ENOTDIR),
                _ => {}
            }
        }
        let place = to.entry.map_or_else(|| self.next_place(), |entry| entry.place);
        let back = to.entry.filter(|_| over == Over::Exchange);
        let back = back.map(|entry| Entry { place: moved.place, ..entry });
        let edits = vec![to.becomes(Some(Entry { place, ..moved })), from.becomes(back)];
        let gone = to.entry.map_or(moved.inode, |entry| entry.inode);
        self.change(edits, &[moved.inode, gone]);
        Ok(())
    }

    /// Gives a file one more name.
    pub(super) fn link(&mut self, from: Spot<'_>, to: Spot<'_>) -> Result<(), i32> {
        let inode = from.entry.ok_or(ENOENT)?.inode;
        if to.entry.is_some() {
            return Err(EEXIST);
        }
        if self.is_directory(inode) {
            return Err(EPERM);
        }
        let entry = Entry { inode, place: self.next_place() };
        self.change(vec![to.becomes(Some(entry))], &[]);
        Ok(())
    }

    /// The changes so far: what a sync that begins now will make stable.
    pub(super) const fn changes_made(&self) -> u64 {
        self.changes_made
    }

    /// Makes stable what has touched directories before that many changes were made.
    pub(super) fn sync(&mut self, directories: &[InodeId], before: u64) {
        let mut needed: BTreeSet<InodeId> = directories.iter().copied().collect();
        let (mut synced, mut left) = (Vec::new(), Vec::new());
        for change in self.changes.drain(..).rev() {
            if change.number < before && !change.touches.is_disjoint(&needed) {
                needed.extend(&change.touches);
                synced.push(change);
            } else {
                left.push(change);
            }
        }
        left.reverse();
        self.changes = left;
        synced.iter().rev().for_each(|change| write(&mut self.stable, change));
    }

    /// Simulates a loss of power.
    pub(super) fn crash(&mut self, random: &mut Random) {
        let mut lost = BTreeSet::new();
        for change in std::mem::take(&mut self.changes) {
            if change.touches.is_disjoint(&lost) && random.chance(0.5) {
                write(&mut self.stable, &change);
            } else {
                lost.extend(&change.touches);
            }
        }
        self.now.clone_from(&self.stable);
    }

    /// Whether a directory is another one, or has it below.
    fn is_above(&self, above: InodeId, directory: InodeId) -> bool {
        let below = |names: &Directory| {
            let mut inodes = names.values().map(|entry| entry.inode);
            inodes.any(|inode| self.is_above(inode, directory))
        };
        above == directory || self.now.get(&above).is_some_and(below)
    }

    fn next_place(&mut self) -> u64 {
        self.places_made += 1;
        self.places_made
    }

    fn change(&mut self, edits: Vec<Edit>, more: &[InodeId]) {
        let directories = more.iter().copied().filter(|&inode| self.is_directory(inode));
        let touches = edits.iter().map(|edit| edit.directory).chain(directories).collect();
        let change = Change { number: self.changes_made, edits, touches };
        self.changes_made += 1;
        write(&mut self.now, &change);
        self.changes.push(change);
    }
}

impl Spot<'_> {
    /// What the name stands for.
    pub(super) fn inode(&self) -> Option<InodeId> {
        self.entry.map(|entry| entry.inode)
    }

    /// The directory that has the name.
    pub(super) const fn directory(&self) -> InodeId {
        self.directory
    }

    fn becomes(&self, entry: Option<Entry>) -> Edit {
        Edit { directory: self.directory, name: self.name.to_vec(), entry }
    }
}

fn write(to: &mut BTreeMap<InodeId, Directory>, change: &Change) {
    for Edit { directory, name, entry } in &change.edits {
        let names = to.get_mut(directory).expect("directories stay, with names or without");
        match entry {
            Some(entry) => names.insert(name.clone(), *entry),
            None => names.remove(name),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: InodeId = InodeId(0);
    const SUB: InodeId = InodeId(1);
    const FILE: InodeId = InodeId(2);
    const OTHER: InodeId = InodeId(3);

    /// `file`, `other` and the directory `sub`, all stable.
    fn names() -> Names {
        let mut names = Names::default();
        names.add_root(TOP);
        names.add_root(SUB);
        for (name, inode) in [(&b"sub"[..], SUB), (b"file", FILE), (b"other", OTHER)] {
            names.add_stable(TOP, name, inode);
        }
        names
    }

    fn rename(names: &mut Names, from: &str, to: &str, over: Over) -> Result<(), i32> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let spots = [from, to].map(|path| names.spot(TOP, path));
        let [from, to] = spots;
        names.rename(from?, to?, over)
    }

    fn listed(names: &Names, directory: InodeId) -> Vec<(String, u32)> {
        let all = names.behind(directory, 0).into_iter();
        all.map(|(name, it)| (String::from_utf8_lossy(name).into_owned(), it.inode.0)).collect()
    }

    fn at(names: &Names, path: &str) -> Option<InodeId> {
        names.find(TOP, path.as_bytes()).ok()
    }

    #[test]
    fn a_path_leads_below_its_directory_or_nowhere() {
        let names = names();
        assert_eq!(names.find(TOP, b""), Ok(TOP));
        assert_eq!(names.find(TOP, b"./sub//"), Ok(SUB));
        for (path, errno) in [
            (&b"/file"[..], EBADF),
            (b"sub/../file", EBADF),
            (b"a\0b", EINVAL),
            (b"gone", ENOENT),
            (b"file/x", ENOTDIR),
            (b"file/", ENOTDIR),
            (&[b'n'; 256], ENAMETOOLONG),
        ] {
            assert_eq!(names.find(TOP, path), Err(errno), "{path:?}");
        }
        for (path, errno) in [
            (&b"/file"[..], EBADF),
            (b"sub/..", EBADF),
            (b"sub/.", EINVAL),
            (b"sub/", EINVAL),
            (b"", EINVAL),
            (b"gone/x", ENOENT),
            (b"file/x", ENOTDIR),
            (&[b'n'; 256], ENAMETOOLONG),
        ] {
            assert_eq!(names.spot(TOP, path).map(drop), Err(errno), "{path:?}");
        }
    }

    #[test]
    fn names_change_as_the_kernel_changes_them() {
        let mut names = names();
        assert_eq!(rename(&mut names, "file", "other", Over::Keep), Err(EEXIST));
        assert_eq!(rename(&mut names, "file", "new", Over::Exchange), Err(ENOENT));
        assert_eq!(rename(&mut names, "file", "sub", Over::Replace), Err(EISDIR));
        assert_eq!(rename(&mut names, "sub", "file", Over::Replace), Err(ENOTDIR));
        assert_eq!(rename(&mut names, "sub", "sub/x", Over::Replace), Err(EINVAL));
        assert_eq!(rename(&mut names, "gone", "file", Over::Replace), Err(ENOENT));
        assert_eq!(rename(&mut names, "file", "sub", Over::Exchange), Ok(()));
        assert_eq!((at(&names, "sub"), at(&names, "file")), (Some(FILE), Some(SUB)));
        assert_eq!(rename(&mut names, "other", "file/x", Over::Keep), Ok(()));
        assert_eq!(rename(&mut names, "file/x", "file", Over::Replace), Err(ENOTEMPTY));
        assert_eq!(names.remove(names.spot(TOP, b"file").unwrap(), true), Err(ENOTEMPTY));
        assert_eq!(names.remove(names.spot(TOP, b"file").unwrap(), false), Err(EISDIR));
        assert_eq!(names.remove(names.spot(TOP, b"sub").unwrap(), true), Err(ENOTDIR));
        let (from, to) = (names.spot(TOP, b"sub").unwrap(), names.spot(TOP, b"two").unwrap());
        assert_eq!(names.link(from, to), Ok(()));
        assert_eq!(names.links(FILE), 2);
        assert_eq!(rename(&mut names, "sub", "two", Over::Replace), Ok(()), "and nothing happens");
        assert_eq!(names.links(FILE), 2);
        let (from, to) = (names.spot(TOP, b"file").unwrap(), names.spot(TOP, b"y").unwrap());
        assert_eq!(names.link(from, to), Err(EPERM));
        let made = names.spot(TOP, b"made").unwrap();
        assert_eq!(names.make_directory(made, InodeId(9)), Ok(()));
        let made = names.spot(TOP, b"made").unwrap();
        assert_eq!(names.make_directory(made, InodeId(10)), Err(EEXIST));
        assert_eq!(names.remove(made, true), Ok(()));
        assert_eq!(listed(&names, SUB), [("x".to_owned(), OTHER.0)]);
    }

    #[test]
    fn a_name_that_stays_has_its_place() {
        let mut names = names();
        let place = |names: &Names, name: &str| {
            let all = names.behind(TOP, 0);
            all.iter().find(|(it, _)| *it == name.as_bytes()).map(|(_, entry)| entry.place)
        };
        let (file, other) = (place(&names, "file"), place(&names, "other"));
        rename(&mut names, "file", "other", Over::Exchange).unwrap();
        assert_eq!((place(&names, "file"), place(&names, "other")), (file, other));
        rename(&mut names, "file", "other", Over::Replace).unwrap();
        assert_eq!((place(&names, "file"), place(&names, "other")), (None, other));
        rename(&mut names, "other", "new", Over::Replace).unwrap();
        assert!(place(&names, "new") > other);
    }

    #[test]
    fn a_crash_leaves_what_was_synced_and_nothing_without_what_it_rests_on() {
        let (mut kept, mut both) = (0, 0);
        for seed in 0..200 {
            let (mut names, random) = (names(), &mut Random::new(seed));
            rename(&mut names, "file", "synced", Over::Keep).unwrap();
            let before = names.changes_made();
            rename(&mut names, "other", "moved", Over::Keep).unwrap();
            rename(&mut names, "moved", "again", Over::Keep).unwrap();
            names.sync(&[TOP], before);
            names.crash(random);
            assert_eq!(at(&names, "synced"), Some(FILE), "before the sync began");
            let left = ["other", "moved", "again"].map(|name| at(&names, name).is_some());
            assert_eq!(left.iter().filter(|&&it| it).count(), 1, "whole or not at all: {left:?}");
            kept += u32::from(!left[0]);
            both += u32::from(left[2]);
        }
        assert!((1..200).contains(&kept) && (1..kept).contains(&both), "{kept}, {both}");
    }

    #[test]
    fn a_sync_of_one_directory_brings_what_its_names_rest_on() {
        for seed in 0..50 {
            let mut names = names();
            rename(&mut names, "file", "other", Over::Replace).unwrap();
            rename(&mut names, "other", "sub/x", Over::Replace).unwrap();
            names.sync(&[SUB], names.changes_made());
            names.crash(&mut Random::new(seed));
            assert_eq!((at(&names, "sub/x"), at(&names, "file")), (Some(FILE), None));
        }
    }
}
