//! Every verb against real files: what it does, what it refuses, and that nothing leads out.

mod copies;
mod hostile;
mod listing;
mod mounts;
mod twin;

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use piped_core::call::{
    Advice, Call, DIGEST_BYTES_MAX, Extent, ExtentKind, FileKind, Over, Range, Removed, Space, Stat,
};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Carries out a call as the driver does, if it cannot wait.
fn answer_at_once(
    file: BorrowedFd<'_>,
    call: &Call<'_>,
    answer: &mut [u8],
) -> Option<Result<usize, Errno>> {
    super::answer_at_once(file, call, answer, crate::io::KERNEL)
}

/// Carries out a call as the driver does.
fn answer(file: BorrowedFd<'_>, call: &Call<'_>, answer: &mut [u8]) -> Result<usize, Errno> {
    super::answer(file, call, answer, crate::io::KERNEL)
}

/// A directory for calls, with another one beside it that nothing may reach.
struct World {
    folder: tempfile::TempDir,
    /// The handle of the directory, as exports have them.
    directory: OwnedFd,
}

impl World {
    fn new() -> Self {
        Self::below(None)
    }

    fn below(place: Option<&str>) -> Self {
        let folder = match place {
            Some(place) => tempfile::tempdir_in(place),
            None => tempfile::tempdir(),
        };
        let folder = folder.expect("a directory");
        fs::create_dir(folder.path().join("root")).expect("made");
        fs::create_dir(folder.path().join("outside")).expect("made");
        fs::write(folder.path().join("outside/secret"), "secret").expect("written");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(folder.path().join("root"), flags, Mode::empty());
        Self { directory: root.expect("a directory"), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.folder.path().join("outside").join(name)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> File {
        fs::write(self.path(name), bytes).expect("written");
        File::options().read(true).write(true).open(self.path(name)).expect("opened")
    }

    /// Carries out a call of the directory whose answer says nothing.
    fn change(&self, call: Call<'_>) -> Result<(), Errno> {
        done(&self.directory, call)
    }

    fn stat(&self, path: &str) -> Result<Stat, Errno> {
        let call = Call::Stat { path: path.as_bytes() };
        let slow = stat(&self.directory, call);
        let mut bytes = [0; Stat::BYTES];
        if let Some(quick) = answer_at_once(self.directory.as_fd(), &call, &mut bytes) {
            let quick = quick.map(|length| Stat::parse(&bytes[..length]).expect("a stat"));
            assert_eq!(quick, slow, "{path}: at once as later");
        }
        slow
    }
}

fn stat(file: impl AsFd, call: Call<'_>) -> Result<Stat, Errno> {
    let mut bytes = [0; Stat::BYTES];
    let length = answer(file.as_fd(), &call, &mut bytes)?;
    Ok(Stat::parse(&bytes[..length]).expect("a stat"))
}

/// Carries out a call whose answer says nothing.
fn done(file: impl AsFd, call: Call<'_>) -> Result<(), Errno> {
    let length = answer(file.as_fd(), &call, &mut [])?;
    assert_eq!(length, 0, "{call:?}");
    Ok(())
}

fn make(path: &str, parents: bool) -> Call<'_> {
    Call::MakeDirectory { path: path.as_bytes(), mode: 0o755, parents }
}

fn remove(path: &str, kind: Removed) -> Call<'_> {
    Call::Remove { path: path.as_bytes(), kind }
}

fn rename<'a>(from: &'a str, to: &'a str, over: Over) -> Call<'a> {
    Call::Rename { from: from.as_bytes(), to: to.as_bytes(), over, durable: false }
}

fn link<'a>(from: &'a str, to: &'a str) -> Call<'a> {
    Call::Link { from: from.as_bytes(), to: to.as_bytes() }
}

const fn range(offset: u64, length: u64) -> Range {
    Range { offset, length }
}

#[test]
fn a_stat_says_what_the_file_system_knows() {
    let world = World::new();
    let file = world.file("data", [7; 10_000]);
    fs::set_permissions(world.path("data"), fs::Permissions::from_mode(0o4640)).expect("changed");
    fs::hard_link(world.path("data"), world.path("other")).expect("linked");
    symlink("data", world.path("link")).expect("linked");
    file.sync_all().expect("synced");
    let facts = file.metadata().expect("there");
    let found = world.stat("data").expect("there");
    assert_eq!(found.kind, FileKind::File);
    assert_eq!((found.mode, found.length, found.links), (0o4640, 10_000, 2));
    assert_eq!((found.user, found.group), (facts.uid(), facts.gid()));
    assert_eq!((found.inode, found.allocated), (facts.ino(), facts.blocks() * 512));
    assert_eq!(found.modified, (facts.mtime(), facts.mtime_nsec() as u32));
    assert_eq!(found.changed, (facts.ctime(), facts.ctime_nsec() as u32));
    assert_eq!(found.direct_offset == 0, found.direct_memory == 0);
    // Of the open file it is the same, and fresh.
    assert_eq!(stat(&file, Call::Stat { path: b"" }), Ok(found));
    file.set_len(1).expect("cut");
    assert_eq!(stat(&file, Call::Stat { path: b"" }).map(|it| it.length), Ok(1));
    // A link is not followed at the end.
    let link = world.stat("link").expect("there");
    assert_eq!((link.kind, link.length), (FileKind::Link, 4));
    assert_eq!(world.stat("").map(|it| it.kind), Ok(FileKind::Directory));
    assert_eq!(world.stat("missing"), Err(Errno::NOENT));
    assert_eq!(world.stat("data/below"), Err(Errno::NOTDIR));
    let short = &mut [0; Stat::BYTES - 1];
    let call = Call::Stat { path: b"data" };
    assert_eq!(answer(world.directory.as_fd(), &call, short), Err(Errno::MSGSIZE));
}

#[test]
fn space_is_that_of_the_file_system() {
    let world = World::new();
    let mut bytes = [0; Space::BYTES];
    let length = answer(world.directory.as_fd(), &Call::Space, &mut bytes).expect("answered");
    let space = Space::parse(&bytes[..length]).expect("space");
    let facts = rustix::fs::statvfs(world.folder.path()).expect("there");
    assert_eq!(space.total, facts.f_blocks * facts.f_frsize);
    assert!(space.available <= space.free && space.free <= space.total, "{space:?}");
    assert_eq!(space.files, facts.f_files);
    let short = answer(world.directory.as_fd(), &Call::Space, &mut bytes[1..]);
    assert_eq!(short, Err(Errno::MSGSIZE));
}

#[test]
fn directories_are_made_one_by_one_or_all() {
    let world = World::new();
    assert_eq!(world.change(make("a", false)), Ok(()));
    assert_eq!(world.change(make("a", false)), Err(Errno::EXIST));
    assert_eq!(world.change(make("a/", false)), Err(Errno::EXIST));
    assert_eq!(world.change(make("a/b/", false)), Ok(()));
    assert_eq!(world.change(make("no/such", false)), Err(Errno::NOENT));
    for path in ["x/y/z", "x/y/z", "./x//y/./w/", "a"] {
        assert_eq!(world.change(make(path, true)), Ok(()), "{path}");
        assert!(world.path(path).is_dir(), "{path}");
    }
    world.file("file", "");
    assert_eq!(world.change(make("file", true)), Err(Errno::EXIST));
    assert_eq!(world.change(make("file/below", true)), Err(Errno::NOTDIR));
    // Links on the way may be followed, as far as they lead below.
    symlink("x", world.path("inside")).expect("linked");
    assert_eq!(world.change(make("inside/new/er", true)), Ok(()));
    assert!(world.path("x/new/er").is_dir());
    symlink("nowhere", world.path("dangling")).expect("linked");
    assert_eq!(world.change(make("dangling", true)), Err(Errno::NOENT));
    assert!(!world.path("nowhere").exists());
    for path in ["", ".", "a/.", "/"] {
        assert!(world.change(make(path, false)).is_err(), "{path}");
    }
    // Names that nothing new gets, of what is there.
    for name in ["bell\x07", "line\n."] {
        fs::create_dir(world.path(name)).expect("made");
        assert_eq!(world.change(make(&format!("{name}/new"), true)), Ok(()), "{name:?}");
        assert_eq!(world.change(make(name, true)), Ok(()), "{name:?}");
        assert!(world.path(name).join("new").is_dir(), "{name:?}");
    }
    world.file("tab\tfile", "");
    assert_eq!(world.change(make("tab\tfile", true)), Err(Errno::EXIST));
    assert_eq!(world.change(make("tab\tfile/below", true)), Err(Errno::NOTDIR));
    for path in ["line\n.x", "w\n.", "w\n./below", "a/w\n."] {
        assert_eq!(world.change(make(path, true)), Err(Errno::INVAL), "{path:?}");
        assert!(!world.path(path).exists(), "{path:?}");
    }
    let set_user = Call::MakeDirectory { path: b"s", mode: 0o4755, parents: false };
    assert_eq!(world.change(set_user), Err(Errno::INVAL));
    let sticky = Call::MakeDirectory { path: b"s", mode: 0o1700, parents: false };
    assert_eq!(world.change(sticky), Ok(()));
    assert_eq!(world.stat("s").map(|it| it.mode), Ok(0o1700));
}

#[test]
fn a_removal_takes_the_kind_that_is_meant() {
    let world = World::new();
    let furnish = || {
        fs::create_dir_all(world.path("full/below")).expect("made");
        fs::create_dir_all(world.path("empty")).expect("made");
        world.file("file", "bytes");
        let _ = symlink("full", world.path("link"));
    };
    furnish();
    for (path, kind, expected) in [
        ("file", Removed::Directory, Err(Errno::NOTDIR)),
        ("file/", Removed::File, Err(Errno::INVAL)),
        ("empty", Removed::File, Err(Errno::ISDIR)),
        ("full", Removed::Any, Err(Errno::NOTEMPTY)),
        ("full", Removed::Directory, Err(Errno::NOTEMPTY)),
        ("missing", Removed::Any, Err(Errno::NOENT)),
        ("file/below", Removed::Any, Err(Errno::NOTDIR)),
        ("", Removed::Any, Err(Errno::INVAL)),
        (".", Removed::Any, Err(Errno::INVAL)),
        ("full/.", Removed::Any, Err(Errno::INVAL)),
        ("link/", Removed::Any, Err(Errno::INVAL)),
        ("link", Removed::Directory, Err(Errno::NOTDIR)),
        ("file", Removed::File, Ok(())),
        ("empty", Removed::Directory, Ok(())),
        ("link", Removed::File, Ok(())),
        ("full/below", Removed::Any, Ok(())),
    ] {
        assert_eq!(world.change(remove(path, kind)), expected, "{path} {kind:?}");
    }
    assert!(world.path("full").is_dir(), "the link's target is untouched");
    furnish();
    for path in ["file", "empty", "link"] {
        assert_eq!(world.change(remove(path, Removed::Any)), Ok(()), "{path}");
        assert!(world.path(path).symlink_metadata().is_err(), "{path}");
    }
}

#[test]
fn a_rename_replaces_keeps_or_exchanges() {
    let world = World::new();
    let read = |name: &str| fs::read_to_string(world.path(name)).expect("there");
    world.file("a", "a");
    world.file("b", "b");
    fs::create_dir_all(world.path("d/e")).expect("made");
    assert_eq!(world.change(rename("a", "b", Over::Keep)), Err(Errno::EXIST));
    assert_eq!((read("a"), read("b")), ("a".to_owned(), "b".to_owned()));
    assert_eq!(world.change(rename("a", "b", Over::Exchange)), Ok(()));
    assert_eq!((read("a"), read("b")), ("b".to_owned(), "a".to_owned()));
    assert_eq!(world.change(rename("a", "missing", Over::Exchange)), Err(Errno::NOENT));
    assert_eq!(world.change(rename("a", "b", Over::Replace)), Ok(()));
    assert_eq!(read("b"), "b");
    assert_eq!(world.change(rename("b", "d/e/c", Over::Keep)), Ok(()));
    assert_eq!(read("d/e/c"), "b");
    for (from, to, expected) in [
        ("d", "d/e/f", Errno::INVAL),
        ("missing", "x", Errno::NOENT),
        ("d/e/c", "d/e", Errno::NOTEMPTY),
        ("d", "d/e/c", Errno::INVAL),
        ("d/e", "d/e/c", Errno::INVAL),
        ("d", "no/such", Errno::NOENT),
        ("d/", "x", Errno::INVAL),
        ("d", ".", Errno::INVAL),
        ("", "x", Errno::INVAL),
    ] {
        let found = world.change(rename(from, to, Over::Replace));
        assert!(found.is_err(), "{from} to {to}");
        if expected != Errno::NOTEMPTY {
            assert_eq!(found, Err(expected), "{from} to {to}");
        }
    }
    world.file("file", "");
    assert_eq!(world.change(rename("file", "d", Over::Replace)), Err(Errno::ISDIR));
    assert_eq!(world.change(rename("d", "file", Over::Replace)), Err(Errno::NOTDIR));
    // A link is renamed itself, and replaced itself.
    symlink("d", world.path("link")).expect("linked");
    assert_eq!(world.change(rename("link", "moved", Over::Replace)), Ok(()));
    assert_eq!(world.change(rename("file", "moved", Over::Replace)), Ok(()));
    assert!(world.path("moved").is_file() && world.path("d/e/c").is_file());
    let durable = |from, to| Call::Rename { from, to, over: Over::Replace, durable: true };
    assert_eq!(world.change(durable(b"moved", b"d/moved")), Ok(()));
    assert!(world.path("d/moved").is_file());
}

#[test]
fn a_link_is_one_more_name_that_nothing_had() {
    let world = World::new();
    world.file("a", "a");
    fs::create_dir(world.path("d")).expect("made");
    symlink("a", world.path("link")).expect("linked");
    assert_eq!(world.change(link("a", "d/b")), Ok(()));
    assert_eq!(world.stat("a").map(|it| it.links), Ok(2));
    assert_eq!(world.change(link("a", "d/b")), Err(Errno::EXIST));
    assert_eq!(world.change(link("d", "e")), Err(Errno::PERM));
    assert_eq!(world.change(link("missing", "e")), Err(Errno::NOENT));
    assert_eq!(world.change(link("link/", "e")), Err(Errno::INVAL));
    // A link is not followed: the new name is the link's.
    assert_eq!(world.change(link("link", "again")), Ok(()));
    assert_eq!(world.stat("again").map(|it| it.kind), Ok(FileKind::Link));
    assert_eq!(world.stat("a").map(|it| it.links), Ok(2));
}

#[test]
fn a_file_is_cut_and_grown() {
    let world = World::new();
    let file = world.file("data", [1; 5000]);
    assert_eq!(done(&file, Call::Truncate { length: 3 }), Ok(()));
    assert_eq!(done(&file, Call::Truncate { length: 10 }), Ok(()));
    assert_eq!(fs::read(world.path("data")).expect("there"), [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(done(&file, Call::Truncate { length: u64::MAX }), Err(Errno::INVAL));
    assert_eq!(done(&file, Call::Truncate { length: i64::MAX as u64 }), Err(Errno::FBIG));
    // A directory's descriptor is for none of this.
    assert_eq!(world.change(Call::Truncate { length: 0 }), Err(Errno::BADF));
    let read_only = File::open(world.path("data")).expect("opened");
    assert_eq!(done(read_only, Call::Truncate { length: 0 }), Err(Errno::INVAL));
}

#[test]
fn room_is_made_with_and_without_length() {
    let world = World::new();
    let file = world.file("data", "abc");
    let allocate = |range, keep_length| done(&file, Call::Allocate { range, keep_length });
    assert_eq!(allocate(range(0, 1 << 20), true), Ok(()));
    let facts = file.metadata().expect("there");
    assert!(facts.len() == 3 && facts.blocks() * 512 >= 1 << 20, "{facts:?}");
    assert_eq!(allocate(range(1 << 20, 4096), false), Ok(()));
    assert_eq!(file.metadata().expect("there").len(), (1 << 20) + 4096);
    assert_eq!(allocate(range(0, 0), false), Err(Errno::INVAL));
    assert_eq!(allocate(range(u64::MAX, 2), false), Err(Errno::INVAL));
    assert_eq!(allocate(range(1 << 62, 1 << 61), false), Err(Errno::FBIG));
}

/// On disks and on tmpfs, which lacks one of the ways.
#[test]
fn a_range_becomes_zeros_whatever_the_file_system_has() {
    for place in [None, Some("/dev/shm")] {
        let world = World::below(place);
        for release in [false, true] {
            let file = world.file("data", [9; 3 << 16]);
            let zero = |range| done(&file, Call::Zero { range, release });
            assert_eq!(zero(range(5, 1 << 16)), Ok(()));
            let mut expected = vec![9; 3 << 16];
            expected[5..5 + (1 << 16)].fill(0);
            let read = || fs::read(world.path("data")).expect("there");
            assert_eq!(read(), expected, "{place:?} {release}");
            // Beyond the end it becomes longer, and never shorter.
            assert_eq!(zero(range(3 << 16, 10_000)), Ok(()));
            expected.resize((3 << 16) + 10_000, 0);
            assert_eq!(read(), expected, "{place:?} {release}");
            assert_eq!(zero(range((3 << 16) - 1, 2)), Ok(()));
            expected[(3 << 16) - 1] = 0;
            assert_eq!(read(), expected, "{place:?} {release}");
            assert_eq!(zero(range(0, 0)), Err(Errno::INVAL));
            assert_eq!(zero(range(u64::MAX, 1)), Err(Errno::INVAL));
            let room = file.metadata().expect("there").blocks() * 512;
            file.sync_all().expect("synced");
            assert_eq!(zero(range(0, 2 << 16)), Ok(()));
            file.sync_all().expect("synced");
            let left = file.metadata().expect("there").blocks() * 512;
            assert_eq!(left < room, release, "{place:?}: {left} of {room}");
        }
    }
}

#[test]
fn zeros_are_written_where_there_is_nothing_better() {
    let world = World::new();
    let file = world.file("data", [9; 1000]);
    assert_eq!(super::zero::write(file.as_fd(), range(10, 600_000)), Ok(()));
    let bytes = fs::read(world.path("data")).expect("there");
    assert_eq!(bytes.len(), 600_010);
    assert!(bytes[..10].iter().all(|&it| it == 9) && bytes[10..].iter().all(|&it| it == 0));
    assert_eq!(super::zero::write(file.as_fd(), range(0, 0)), Err(Errno::INVAL));
    assert_eq!(super::zero::write(file.as_fd(), range(0, (1 << 30) + 1)), Err(Errno::FBIG));
    assert_eq!(file.metadata().expect("there").len(), 600_010, "nothing of it was begun");
}

#[test]
fn what_is_trimmed_takes_no_room_and_the_length_stays() {
    let world = World::new();
    let file = world.file("data", vec![9; 1 << 20]);
    file.sync_all().expect("synced");
    let before = file.metadata().expect("there").blocks();
    assert_eq!(done(&file, Call::Trim { range: range(4096, 1 << 21) }), Ok(()));
    let facts = file.metadata().expect("there");
    assert!(facts.len() == 1 << 20 && facts.blocks() < before, "{facts:?}");
    let bytes = fs::read(world.path("data")).expect("there");
    assert!(bytes[..4096].iter().all(|&it| it == 9) && bytes[4096..].iter().all(|&it| it == 0));
    assert_eq!(done(&file, Call::Trim { range: range(0, 0) }), Err(Errno::INVAL));
}

fn extents(file: impl AsFd, range: Range, room: usize) -> Result<Vec<Extent>, Errno> {
    let mut bytes = vec![0; room * Extent::BYTES];
    let length = answer(file.as_fd(), &Call::Extents { range }, &mut bytes)?;
    let parse = |bytes| Extent::parse(bytes).expect("an extent");
    Ok(bytes[..length].chunks(Extent::BYTES).map(parse).collect())
}

#[test]
fn extents_tell_data_from_holes_and_from_room_without_data() {
    const MIB: u64 = 1 << 20;
    for place in [None, Some("/dev/shm")] {
        let world = World::below(place);
        let file = world.file("data", "");
        file.set_len(8 * MIB).expect("grown");
        for at in [MIB, 3 * MIB] {
            file.write_all_at(&[7; 1 << 20], at).expect("written");
        }
        let extent = |offset, length, kind| Extent { offset, length, kind };
        let (data, hole) = (ExtentKind::Data, ExtentKind::Hole);
        let expected = [
            extent(0, MIB, hole),
            extent(MIB, MIB, data),
            extent(2 * MIB, MIB, hole),
            extent(3 * MIB, MIB, data),
            extent(4 * MIB, 4 * MIB, hole),
        ];
        // Whether or not it is on the device yet.
        for _ in 0..2 {
            assert_eq!(extents(&file, range(0, 99 * MIB), 9).as_deref(), Ok(&expected[..]));
            file.sync_all().expect("synced");
        }
        // In parts, and between two.
        assert_eq!(extents(&file, range(0, 9 * MIB), 2).as_deref(), Ok(&expected[..2]));
        let part = [extent(MIB + 5, MIB - 5, data), extent(2 * MIB, 7, hole)];
        assert_eq!(extents(&file, range(MIB + 5, MIB + 2), 9).as_deref(), Ok(&part[..]));
        assert_eq!(extents(&file, range(8 * MIB, 5), 9), Ok(vec![]));
        assert_eq!(extents(&file, range(0, 0), 9), Ok(vec![]));
        assert_eq!(extents(&file, range(0, 1), 0), Err(Errno::MSGSIZE));
        assert_eq!(extents(&file, range(1, u64::MAX), 9), Err(Errno::INVAL));
        // Where there is a map, room that nothing was written to is told apart.
        if (crate::io::KERNEL.next_room)(file.as_fd(), 0, 1).is_ok() {
            let call = Call::Allocate { range: range(5 * MIB, MIB), keep_length: true };
            assert_eq!(done(&file, call), Ok(()));
            let found = extents(&file, range(4 * MIB, 4 * MIB), 9).expect("a map");
            let zero = extent(5 * MIB, MIB, ExtentKind::Zero);
            let ends = [extent(4 * MIB, MIB, hole), zero, extent(6 * MIB, 2 * MIB, hole)];
            assert_eq!(found, ends);
            file.write_all_at(&[7; 4096], 5 * MIB).expect("written");
            let found = extents(&file, range(5 * MIB, MIB), 9).expect("a map");
            assert_eq!(found[0], extent(5 * MIB, 4096, data), "{found:?}");
        } else {
            assert_eq!(place, Some("/dev/shm"), "the file system of the tests has a map");
        }
    }
}

/// The offset of a file that a client passed is the client's.
#[test]
fn extents_leave_the_offset_alone() {
    use std::io::{Seek as _, SeekFrom};
    let world = World::new();
    let mut file = world.file("data", [1; 10_000]);
    file.seek(SeekFrom::Start(77)).expect("moved");
    assert_eq!(extents(&file, range(0, 10_000), 4).map(|it| it.len()), Ok(1));
    assert_eq!(file.stream_position().expect("told"), 77);
}

#[test]
fn syncs_and_advices_take_files_and_directories() {
    let world = World::new();
    let file = world.file("data", [1; 10_000]);
    for data_only in [false, true] {
        for range in [range(0, 0), range(4096, 100), range(1 << 40, 1)] {
            let call = Call::Sync { range, data_only };
            assert_eq!(done(&file, call), Ok(()), "{call:?}");
            assert_eq!(world.change(call), Ok(()), "names of a directory: {call:?}");
        }
        let call = Call::Sync { range: range(u64::MAX, 1), data_only };
        assert_eq!(done(&file, call), Err(Errno::INVAL));
    }
    for advice in [Advice::Normal, Advice::WillNeed, Advice::DontNeed] {
        for range in [range(0, 0), range(4096, 100), range(1 << 40, 1 << 40)] {
            assert_eq!(done(&file, Call::Advise { range, advice }), Ok(()), "{advice:?}");
        }
        let call = Call::Advise { range: range(u64::MAX, 1), advice };
        assert_eq!(done(&file, call), Err(Errno::INVAL));
    }
}

#[test]
fn a_digest_is_blake3_of_the_range() {
    let world = World::new();
    let bytes: Vec<u8> =
        (0..3_000_001_u32).map(|it| (it.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = world.file("data", &bytes);
    let digest = |range| {
        let mut answered = [0; 32];
        answer(file.as_fd(), &Call::Digest { range }, &mut answered).map(|length| {
            assert_eq!(length, 32);
            answered
        })
    };
    for (offset, length) in [(0, bytes.len()), (1, 1 << 20), (77, 2_999_924), (5, 1), (9, 0)] {
        let expected = *blake3::hash(&bytes[offset..offset + length]).as_bytes();
        assert_eq!(digest(range(offset as u64, length as u64)), Ok(expected), "{offset} {length}");
    }
    assert_eq!(digest(range(0, bytes.len() as u64 + 1)), Err(Errno::INVAL), "beyond the end");
    assert_eq!(digest(range(0, DIGEST_BYTES_MAX + 1)), Err(Errno::INVAL));
    assert_eq!(digest(range(u64::MAX, 1)), Err(Errno::INVAL));
    let short = answer(file.as_fd(), &Call::Digest { range: range(0, 1) }, &mut [0; 31]);
    assert_eq!(short, Err(Errno::MSGSIZE));
    // Holes are zeros.
    file.set_len(1 << 22).expect("grown");
    let tail = (1 << 22) - bytes.len();
    let expected = *blake3::hash(&vec![0; tail]).as_bytes();
    assert_eq!(digest(range(bytes.len() as u64, tail as u64)), Ok(expected));
}

/// Such a name can be there by others: then it can be looked at, renamed and removed.
#[test]
fn no_name_with_control_characters_is_made() {
    let world = World::new();
    world.file("file", "");
    world.file("sly\n", "");
    for call in [
        make("line\nbreak", false),
        make("\x1b[2J/below", true),
        rename("file", "\x07", Over::Replace),
        rename("file", "new\r", Over::Keep),
        link("file", "new\t"),
    ] {
        assert_eq!(world.change(call), Err(Errno::INVAL), "{call:?}");
    }
    assert_eq!(world.stat("sly\n").map(|it| it.kind), Ok(FileKind::File));
    assert_eq!(world.change(rename("file", "sly\n", Over::Exchange)), Ok(()));
    assert_eq!(world.change(rename("sly\n", "fine", Over::Keep)), Ok(()));
    let names = fs::read_dir(world.path("")).expect("there");
    let mut names: Vec<_> = names.map(|it| it.expect("read").file_name()).collect();
    names.sort();
    assert_eq!(names, ["file", "fine"]);
}

/// What is no file and no directory is looked at, renamed and removed, and never opened.
#[test]
fn what_is_no_file_is_not_opened() {
    let world = World::new();
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, world.path("fifo"), FileType::Fifo, mode, 0).expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(world.path("socket")).expect("bound");
    for name in ["fifo", "socket"] {
        // Opening the FIFO would wait for a writer.
        assert_eq!(world.stat(name).map(|it| it.kind), Ok(FileKind::Other), "{name}");
        let list = Call::List { path: name.as_bytes(), cookie: 0, stats: false };
        assert_eq!(answer(world.directory.as_fd(), &list, &mut [0; 99]), Err(Errno::NOTDIR));
        assert_eq!(world.change(make(&format!("{name}/x"), true)), Err(Errno::NOTDIR));
        assert_eq!(world.change(rename(name, "moved", Over::Keep)), Ok(()));
        assert_eq!(world.change(remove("moved", Removed::File)), Ok(()));
    }
}
