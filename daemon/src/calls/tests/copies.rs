//! Bytes that are copied from file to file, and ranges that are locked.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};

use piped_core::call::{COPY_BYTES_MAX, Call, Copied, Lock, Range};
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use super::{World, answer, done, range};

const MIB: u64 = 1 << 20;

fn copy(world: &World, from: &str, to: &str, range: Range) -> Result<u64, Errno> {
    let call =
        Call::Copy { from: from.as_bytes(), to: to.as_bytes(), range, durable: range.offset == 0 };
    let mut bytes = [0; Copied::BYTES];
    let length = answer(world.directory.as_fd(), &call, &mut bytes)?;
    Ok(Copied::parse(&bytes[..length]).expect("an answer").0)
}

#[test]
fn what_is_copied_is_the_range_that_the_source_has() {
    for place in [None, Some("/dev/shm")] {
        let world = World::below(place);
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        world.file("from", &bytes);
        world.file("to", []);
        assert_eq!(copy(&world, "from", "to", range(0, COPY_BYTES_MAX)), Ok(300_000));
        assert_eq!(fs::read(world.path("to")).expect("there"), bytes);
        // A part, into a longer file whose other bytes stay.
        world.file("to", vec![9; 400_000]);
        assert_eq!(copy(&world, "from", "to", range(100_001, 50_000)), Ok(50_000));
        let found = fs::read(world.path("to")).expect("there");
        assert!(found[100_001..150_001] == bytes[100_001..150_001] && found.len() == 400_000);
        assert!(found[..100_001].iter().chain(&found[150_001..]).all(|&byte| byte == 9));
        // Behind the end there is nothing.
        assert_eq!(copy(&world, "from", "to", range(299_990, 50)), Ok(10));
        assert_eq!(copy(&world, "from", "to", range(300_000, 50)), Ok(0));
        assert_eq!(copy(&world, "from", "to", range(1 << 40, 50)), Ok(0));
        assert_eq!(copy(&world, "from", "to", range(0, 0)), Ok(0));
        assert_eq!(fs::metadata(world.path("to")).expect("there").len(), 400_000);
    }
}

#[test]
fn holes_stay_holes_and_zeros() {
    for place in [None, Some("/dev/shm")] {
        let world = World::below(place);
        let from = world.file("from", []);
        from.set_len(64 * MIB).expect("grown");
        from.write_all_at(&[7; 4096], 32 * MIB).expect("written");
        let to = world.file("to", vec![9; 8 << 20]);
        assert_eq!(copy(&world, "from", "to", range(0, 64 * MIB)), Ok(64 * MIB));
        assert_eq!(to.metadata().expect("there").len(), 64 * MIB);
        assert!(
            fs::read(world.path("to")).expect("there")
                == fs::read(world.path("from")).expect("there")
        );
        to.sync_all().expect("synced");
        let room = 512 * to.metadata().expect("there").blocks();
        assert!(room <= MIB, "{room} bytes of room");
    }
}

#[test]
fn only_two_regular_files_are_copied() {
    let world = World::new();
    world.file("file", "f");
    world.file("other", "o");
    fs::hard_link(world.path("file"), world.path("same")).expect("linked");
    fs::create_dir(world.path("directory")).expect("made");
    symlink("file", world.path("link")).expect("linked");
    symlink("../outside/secret", world.path("out")).expect("linked");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, world.path("fifo"), FileType::Fifo, mode, 0).expect("made");
    for (path, expected) in [
        ("directory", Errno::ISDIR),
        ("link", Errno::LOOP),
        ("out", Errno::LOOP),
        ("fifo", Errno::OPNOTSUPP),
        ("missing", Errno::NOENT),
        ("file/x", Errno::NOTDIR),
        ("../outside/secret", Errno::BADF),
    ] {
        assert_eq!(copy(&world, path, "other", range(0, 1)), Err(expected), "{path}");
        assert_eq!(copy(&world, "other", path, range(0, 1)), Err(expected), "{path}");
    }
    for path in ["file", "same"] {
        assert_eq!(copy(&world, "file", path, range(0, 1)), Err(Errno::INVAL), "{path}");
    }
    assert_eq!(copy(&world, "file", "other", range(0, COPY_BYTES_MAX + 1)), Err(Errno::INVAL));
    assert_eq!(copy(&world, "file", "other", range(u64::MAX, 1)), Err(Errno::INVAL));
    assert_eq!(fs::read(world.path("other")).expect("there"), b"o");
}

/// One more open file of the same name.
fn again(world: &World) -> File {
    File::options().read(true).write(true).open(world.path("file")).expect("opened")
}

fn lock(file: &File, range: Range, lock: Lock) -> Result<(), Errno> {
    done(file, Call::Lock { range, lock })
}

#[test]
fn a_range_is_locked_by_one_or_shared() {
    let world = World::new();
    let (one, other) = (world.file("file", [0; 100]), again(&world));
    assert_eq!(lock(&one, range(0, 10), Lock::Exclusive), Ok(()));
    assert_eq!(lock(&one, range(0, 10), Lock::Exclusive), Ok(()), "again");
    for kind in [Lock::Shared, Lock::Exclusive] {
        assert_eq!(lock(&other, range(9, 1), kind), Err(Errno::DEADLK));
        assert_eq!(lock(&other, range(0, 0), kind), Err(Errno::DEADLK));
    }
    assert_eq!(lock(&other, range(10, 0), Lock::Exclusive), Ok(()), "all behind");
    assert_eq!(lock(&one, range(1 << 40, 1), Lock::Shared), Err(Errno::DEADLK));
    // Giving up what another has takes nothing away.
    assert_eq!(lock(&other, range(0, 10), Lock::None), Ok(()));
    assert_eq!(lock(&other, range(0, 1), Lock::Shared), Err(Errno::DEADLK));
    assert_eq!(lock(&one, range(0, 10), Lock::Shared), Ok(()));
    assert_eq!(lock(&other, range(0, 1), Lock::Shared), Ok(()));
    assert_eq!(lock(&one, range(0, 1), Lock::Exclusive), Err(Errno::DEADLK));
    drop(other);
    assert_eq!(lock(&one, range(0, 0), Lock::Exclusive), Ok(()), "a closed file has no locks");
    assert_eq!(lock(&one, range(u64::MAX, 1), Lock::Shared), Err(Errno::INVAL));
}

#[test]
fn a_lock_needs_a_file_that_is_open_for_it() {
    let world = World::new();
    world.file("file", "f");
    let read = File::open(world.path("file")).expect("opened");
    let write = File::options().write(true).open(world.path("file")).expect("opened");
    assert_eq!(lock(&read, range(0, 1), Lock::Exclusive), Err(Errno::BADF));
    assert_eq!(lock(&write, range(0, 1), Lock::Shared), Err(Errno::BADF));
    assert_eq!(lock(&read, range(0, 1), Lock::Shared), Ok(()));
    assert_eq!(lock(&write, range(0, 1), Lock::None), Ok(()));
}
