//! The same operations by plain system calls, and whole trees to be compared.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use piped_client::Status;
use piped_client::call::{FileKind, Over, Range, Removed};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::invent::{Op, SLOTS};

/// How an operation ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Refused(Status),
    Nothing,
    Bytes(Vec<u8>),
    Known(Known),
    Names(BTreeMap<String, FileKind>),
    /// Extents that are true: one may merge what the other divides.
    Right,
}

/// What must agree of a file or directory in two places.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    /// Of a file.
    pub(crate) length: Option<u64>,
}

/// A directory, and files below it that are open.
#[derive(Debug)]
pub(crate) struct Mirror {
    root: PathBuf,
    /// Each with the path that it was opened by.
    files: [Option<(File, PathBuf)>; SLOTS],
}

impl Mirror {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, files: Default::default() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn open_files(&self) -> [bool; SLOTS] {
        self.files.each_ref().map(Option::is_some)
    }

    /// Whether the path of an open file leads to it still.
    pub(crate) fn is_where_it_was(&self, slot: usize) -> bool {
        self.files[slot].as_ref().is_some_and(|(file, path)| {
            let known = fs::symlink_metadata(path).map(|it| it.ino());
            known.is_ok_and(|inode| file.metadata().is_ok_and(|it| it.ino() == inode))
        })
    }

    pub(crate) fn close_all(&mut self) {
        self.files = Default::default();
    }

    /// Performs an operation.
    pub(crate) fn perform(&mut self, op: &Op) -> Told {
        self.try_perform(op).unwrap_or_else(|error| {
            let errno = error.raw_os_error().unwrap_or_else(|| panic!("{op:?}: {error}"));
            Told::Refused(Status::of_errno(errno))
        })
    }

    fn try_perform(&mut self, op: &Op) -> io::Result<Told> {
        let file = |slot: &usize| &self.files[*slot].as_ref().expect("it is open").0;
        match op {
            Op::Create { slot, path } => {
                let mut options = File::options();
                options.read(true).write(true).create_new(true).mode(0o640);
                let path = self.root.join(path);
                self.files[*slot] = Some((options.open(&path)?, path));
            }
            Op::Open { slot, path } => {
                let path = self.root.join(path);
                let file = File::options().read(true).write(true).open(&path)?;
                self.files[*slot] = Some((file, path));
            }
            Op::Close { slot } => self.files[*slot] = None,
            Op::Read { slot, range } => {
                let bytes = bytes_of(file(slot))?;
                return Ok(Told::Bytes(part(&bytes, *range).to_vec()));
            }
            Op::Write { slot, range, fill } => {
                file(slot).write_all_at(&vec![*fill; range.length as usize], range.offset)?;
            }
            Op::Truncate { slot, length } => file(slot).set_len(*length)?,
            Op::Zero { slot, range, .. } => {
                file(slot).write_all_at(&vec![0; range.length as usize], range.offset)?;
            }
            Op::Trim { slot, range } => {
                let within = part(&bytes_of(file(slot))?, *range).len();
                file(slot).write_all_at(&vec![0; within], range.offset)?;
            }
            Op::Allocate { slot, range, keep_length } => {
                let flags = match keep_length {
                    true => FallocateFlags::KEEP_SIZE,
                    false => FallocateFlags::empty(),
                };
                rustix::fs::fallocate(file(slot), flags, range.offset, range.length)?;
            }
            Op::Extents { .. } => return Ok(Told::Right),
            Op::Digest { slot, range } => {
                // Of bytes that a file has.
                let bytes = bytes_of(file(slot))?;
                let bytes = part(&bytes, *range);
                let whole = bytes.len() as u64 == range.length;
                let digest = || Told::Bytes(blake3::hash(bytes).as_bytes().to_vec());
                return whole.then(digest).ok_or(Errno::INVAL.into());
            }
            Op::Sync { slot, .. } => file(slot).sync_all()?,
            Op::Look { slot } => return Ok(Told::Known(known(&file(slot).metadata()?))),
            Op::Stat { path } => {
                return Ok(Told::Known(known(&fs::symlink_metadata(self.root.join(path))?)));
            }
            Op::List { path } => return self.list(path),
            Op::Make { path, parents: true } => fs::create_dir_all(self.root.join(path))?,
            Op::Make { path, parents: false } => {
                let (parent, name) = self.place(path)?;
                rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
            }
            Op::Remove { path, kind } => {
                let (parent, name) = self.place(path)?;
                let remove = |flags| rustix::fs::unlinkat(&parent, name, flags);
                match kind {
                    Removed::File => remove(AtFlags::empty())?,
                    Removed::Directory => remove(AtFlags::REMOVEDIR)?,
                    Removed::Any => match remove(AtFlags::empty()) {
                        Err(Errno::ISDIR) => remove(AtFlags::REMOVEDIR)?,
                        other => other?,
                    },
                }
            }
            Op::Rename { from, to, over, .. } => {
                let (from, to) = (self.place(from)?, self.place(to)?);
                let flags = match over {
                    Over::Replace => RenameFlags::empty(),
                    Over::Keep => RenameFlags::NOREPLACE,
                    Over::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(from.0, from.1, to.0, to.1, flags)?;
            }
            Op::Link { from, to } => {
                let (from, to) = (self.place(from)?, self.place(to)?);
                rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?;
            }
            Op::Copy { from, to, range, .. } => return self.copy(from, to, *range),
        }
        Ok(Told::Nothing)
    }

    /// Copies what a file has of a range, and says how much that is.
    fn copy(&self, from: &str, to: &str, range: Range) -> io::Result<Told> {
        let found = [from, to].map(|path| {
            let facts = fs::symlink_metadata(self.root.join(path))?;
            if facts.is_dir() { Err(Errno::ISDIR.into()) } else { Ok(facts.ino()) }
        });
        let [source, sink]: [io::Result<u64>; 2] = found;
        if source? == sink? {
            return Err(Errno::INVAL.into());
        }
        let bytes = fs::read(self.root.join(from))?;
        let bytes = part(&bytes, range);
        let file = File::options().write(true).open(self.root.join(to))?;
        file.write_all_at(bytes, range.offset)?;
        Ok(Told::Bytes((bytes.len() as u64).to_le_bytes().to_vec()))
    }

    /// The directory of a name, and the name, as programs that hold directories open have them.
    fn place<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(self.root.join(parent), flags, Mode::empty())?;
        Ok((parent, name))
    }

    fn list(&self, path: &str) -> io::Result<Told> {
        let names = fs::read_dir(self.root.join(path))?.map(|entry| {
            let entry = entry?;
            let name = entry.file_name().into_string().expect("ours are");
            Ok((name, kind(entry.file_type()?)))
        });
        Ok(Told::Names(names.collect::<io::Result<_>>()?))
    }

    /// The bytes of a file, whose part in that range may be anything and is taken over.
    pub(crate) fn take_bytes(&self, there: &Tree, range: Range) {
        let here = Tree::of(&self.root);
        assert!(there.paths().eq(here.paths()), "names were changed by what changes bytes");
        for (path, (new, old)) in
            there.0.iter().map(|(path, it)| (path, (&it.bytes, &here.0[path].bytes)))
        {
            let outside = |bytes: &[u8]| {
                let before = bytes.len().min(range.offset as usize);
                let behind = range.offset.saturating_add(range.length).min(bytes.len() as u64);
                let mut rest = bytes[..before].to_vec();
                rest.extend_from_slice(&bytes[(behind as usize).max(before)..]);
                rest
            };
            if new != old {
                let (new_rest, old_rest) = (outside(new), outside(old));
                let padded = old_rest.iter().chain(std::iter::repeat(&0));
                let kept = new_rest.iter().zip(padded).all(|(new, old)| new == old);
                assert!(kept, "{path} has changed outside of {range:?}");
                // In place: its other names stay.
                let file = File::options().write(true).truncate(true).open(self.root.join(path));
                file.expect("ours").write_all(new).expect("written");
            }
        }
    }
}

/// All bytes of an open file.
fn bytes_of(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The part of a range that bytes have.
pub(crate) fn part(bytes: &[u8], range: Range) -> &[u8] {
    let end = (range.offset + range.length).min(bytes.len() as u64) as usize;
    &bytes[(range.offset as usize).min(end)..end]
}

fn kind(kind: fs::FileType) -> FileKind {
    match kind {
        it if it.is_file() => FileKind::File,
        it if it.is_dir() => FileKind::Directory,
        it if it.is_symlink() => FileKind::Link,
        _ => FileKind::Other,
    }
}

fn known(facts: &fs::Metadata) -> Known {
    let kind = kind(facts.file_type());
    let length = (kind == FileKind::File).then_some(facts.len());
    Known { kind, mode: facts.mode() & 0o7777, links: facts.nlink() as u32, length }
}

/// All that is below a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tree(BTreeMap<String, Leaf>);

#[derive(Debug, PartialEq, Eq)]
struct Leaf {
    known: Known,
    bytes: Vec<u8>,
    /// The first path of the same file.
    first: String,
}

impl Tree {
    pub(crate) fn of(root: &Path) -> Self {
        let (mut leaves, mut firsts) = (BTreeMap::new(), BTreeMap::new());
        let mut left = vec![String::new()];
        // In an order that is the same in both places.
        while let Some(path) = left.pop() {
            let mut names: Vec<String> = fs::read_dir(root.join(&path))
                .expect("a directory")
                .map(|it| it.expect("a name").file_name().into_string().expect("ours are"))
                .collect();
            names.sort();
            for name in names {
                let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                let whole = root.join(&below);
                let facts = fs::symlink_metadata(&whole).expect("it is there");
                let first = firsts.entry(facts.ino()).or_insert_with(|| below.clone()).clone();
                let known = known(&facts);
                let bytes = match known.kind {
                    FileKind::File => fs::read(&whole).expect("readable"),
                    _ => Vec::new(),
                };
                if known.kind == FileKind::Directory {
                    left.push(below.clone());
                }
                leaves.insert(below, Leaf { known, bytes, first });
            }
        }
        Self(leaves)
    }

    fn paths(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Panics with the first difference.
    pub(crate) fn compare(&self, wanted: &Self) {
        assert!(self.paths().eq(wanted.paths()), "names differ:\n{self:?}\n{wanted:?}");
        for (path, leaf) in &self.0 {
            let other = &wanted.0[path];
            assert!(leaf.bytes == other.bytes, "{path} has other bytes");
            assert_eq!((&leaf.known, &leaf.first), (&other.known, &other.first), "{path}");
        }
    }
}
