//! Calls beside the same operations on a directory of one's own: the same outcomes, and the same
//! trees.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use piped_core::call::{Call, FileKind, Over, Range, Removed};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, RenameFlags};
use rustix::io::{Errno, Result};

use super::{World, done, link, rename};

/// Operations of one seed.
const OPERATIONS: u32 = 5_000;

/// Numbers that follow from a seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// A path of one to three names, of which there are few, so that they meet.
    fn path(&mut self) -> String {
        let names = 1 + self.below(3);
        let names: Vec<_> =
            (0..names).map(|_| ["a", "b", "c", "d"][self.below(4) as usize]).collect();
        names.join("/")
    }

    fn range(&mut self) -> Range {
        Range { offset: self.below(40_000), length: 1 + self.below(40_000) }
    }
}

/// What is below a directory: kinds, lengths, numbers of names, and bytes.
fn tree(root: &Path) -> BTreeMap<PathBuf, (FileKind, u64, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt as _;
    let (mut all, mut todo) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).expect("there") {
            let path = entry.expect("read").path();
            let facts = path.symlink_metadata().expect("there");
            let (kind, bytes) = match facts.is_dir() {
                true => {
                    todo.push(path.clone());
                    (FileKind::Directory, Vec::new())
                }
                false => (FileKind::File, fs::read(&path).expect("read")),
            };
            let below = path.strip_prefix(root).expect("below").to_owned();
            all.insert(below, (kind, facts.nlink(), bytes));
        }
    }
    all
}

#[test]
fn calls_end_as_the_same_operations_do_on_a_directory_of_ones_own() {
    let mut outcomes = BTreeMap::new();
    for seed in 0..10 {
        let world = World::new();
        let twin = world.outside("twin");
        fs::create_dir(&twin).expect("made");
        let mut numbers = Numbers(seed);
        for number in 0..OPERATIONS {
            let (call, own) = step(&world, &twin, &mut numbers);
            assert_eq!(call, own, "operation {number} of seed {seed}");
            *outcomes.entry(call.err().map(Errno::raw_os_error)).or_insert(0_u32) += 1;
            if number % 500 == 0 {
                assert_eq!(tree(&world.path("")), tree(&twin), "operation {number} of {seed}");
            }
        }
        assert_eq!(tree(&world.path("")), tree(&twin), "seed {seed}");
    }
    // Otherwise this says little.
    for errno in [None, Some(Errno::EXIST), Some(Errno::NOTEMPTY), Some(Errno::NOTDIR)] {
        let times = outcomes.get(&errno.map(Errno::raw_os_error)).copied().unwrap_or(0);
        assert!(times > 100, "{errno:?} came {times} times: {outcomes:?}");
    }
}

/// One operation, by a call and by oneself.
fn step(world: &World, twin: &Path, numbers: &mut Numbers) -> (Result<()>, Result<()>) {
    let (one, other) = (numbers.path(), numbers.path());
    let (own, own_other) = (twin.join(&one), twin.join(&other));
    let unlink = |flags| rustix::fs::unlinkat(CWD, &own, flags);
    let kind = numbers.below(12);
    match kind {
        0 | 1 => {
            let call = Call::MakeDirectory { path: one.as_bytes(), mode: 0o700, parents: false };
            (world.change(call), rustix::fs::mkdirat(CWD, &own, Mode::RWXU))
        }
        2 => (
            world.change(Call::Remove { path: one.as_bytes(), kind: Removed::File }),
            unlink(AtFlags::empty()),
        ),
        3 => (
            world.change(Call::Remove { path: one.as_bytes(), kind: Removed::Directory }),
            unlink(AtFlags::REMOVEDIR),
        ),
        4..=6 => {
            let (over, flags) = [
                (Over::Replace, RenameFlags::empty()),
                (Over::Keep, RenameFlags::NOREPLACE),
                (Over::Exchange, RenameFlags::EXCHANGE),
            ][kind as usize - 4];
            let call = rename(&one, &other, over);
            let own = rustix::fs::renameat_with(CWD, &own, CWD, &own_other, flags);
            (world.change(call), own)
        }
        7 => {
            let own = rustix::fs::linkat(CWD, &own, CWD, &own_other, AtFlags::empty());
            let call = world.change(link(&one, &other));
            // Where both names are wrong, the kernel looks at the file first, and a call at both
            // directories.
            let is_directory = own_other.parent().is_some_and(Path::is_dir);
            match (call, own) {
                (Err(_), Err(_)) if !is_directory => (Ok(()), Ok(())),
                outcomes => outcomes,
            }
        }
        // Files come by opens, which are no calls.
        8 | 9 => {
            let [here, there] =
                [world.path(&one), own].map(|path| fs::write(path, [kind as u8; 9_000]).is_ok());
            assert_eq!(here, there, "{one}");
            (Ok(()), Ok(()))
        }
        _ => of_file(&world.path(&one), &own, numbers),
    }
}

/// An operation on the bytes of a file, if it is one.
fn of_file(path: &Path, own: &Path, numbers: &mut Numbers) -> (Result<()>, Result<()>) {
    let open = |path: &Path| fs::File::options().read(true).write(true).open(path).ok();
    let (kind, range) = (numbers.below(4), numbers.range());
    let (Some(file), Some(own)) = (open(path), open(own)) else { return (Ok(()), Ok(())) };
    let Range { offset, length } = range;
    let fallocate = |flags| rustix::fs::fallocate(&own, flags, offset, length);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match kind {
        0 => {
            let cut = done(&file, Call::Truncate { length: offset });
            (cut, rustix::fs::ftruncate(&own, offset))
        }
        1 => (done(&file, Call::Trim { range }), fallocate(punch)),
        2 => {
            let zeroed = done(&file, Call::Zero { range, release: false });
            (zeroed, fallocate(FallocateFlags::ZERO_RANGE))
        }
        _ => {
            let call = Call::Allocate { range, keep_length: false };
            (done(&file, call), fallocate(FallocateFlags::empty()))
        }
    }
}
