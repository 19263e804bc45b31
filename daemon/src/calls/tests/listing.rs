//! Names of directories: all of them, in parts, while others come and go.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use piped_core::call::{ANSWER_BYTES_MAX, Call, Entries, FileKind, Stat};
use rustix::io::Errno;

use super::{World, answer};

/// A name with what came with it.
type Listed = (Vec<u8>, FileKind, Option<Stat>);

/// All names of a directory, in answers of so many bytes, each with what came with it.
fn list(
    directory: BorrowedFd<'_>,
    path: &str,
    stats: bool,
    room: usize,
) -> Result<Vec<Listed>, Errno> {
    let (mut bytes, mut cookie, mut all) = (vec![0; room], 0, Vec::new());
    loop {
        let call = Call::List { path: path.as_bytes(), cookie, stats };
        let length = answer(directory, &call, &mut bytes)?;
        let entries = Entries::parse(&bytes[..length]).expect("names");
        all.extend(entries.iter().map(|it| (it.name.to_vec(), it.kind, it.stat)));
        match entries.next() {
            Some(next) => cookie = next,
            None => return Ok(all),
        }
    }
}

#[test]
fn names_are_bytes_and_come_with_their_kinds() {
    let world = World::new();
    let odd = OsStr::from_bytes(b"line\nbreak \xff\x1b[31m");
    fs::write(world.path("").join(odd), "12345").expect("written");
    let long = "n".repeat(255);
    world.file(&long, "");
    fs::create_dir(world.path("sub")).expect("made");
    symlink("../outside", world.path("out")).expect("linked");
    let directory = world.directory.as_fd();
    for stats in [false, true] {
        let all = list(directory, "", stats, 4096).expect("listed");
        let mut found: HashMap<Vec<u8>, _> =
            all.into_iter().map(|(name, kind, stat)| (name, (kind, stat))).collect();
        assert_eq!(found.len(), 4, "neither `.` nor `..`: {found:?}");
        for (name, kind) in [
            (odd.as_bytes(), FileKind::File),
            (long.as_bytes(), FileKind::File),
            (b"sub", FileKind::Directory),
            (b"out", FileKind::Link),
        ] {
            let (known, stat) = found.remove(name).expect("listed");
            assert_eq!(known, kind);
            assert_eq!(stat.map(|it| it.kind), stats.then_some(kind), "links are not followed");
        }
    }
    // Links are followed where the directory is named, as far as they lead below.
    symlink("sub", world.path("inside")).expect("linked");
    assert_eq!(list(directory, "inside", false, 4096), Ok(vec![]));
    assert_eq!(list(directory, "sub/", true, 8), Ok(vec![]), "room for no name is enough here");
    for (path, error) in [
        ("out", Errno::LOOP),
        ("missing", Errno::NOENT),
        (&*long, Errno::NOTDIR),
        ("..", Errno::BADF),
    ] {
        assert_eq!(list(directory, path, false, 4096), Err(error), "{path}");
    }
}

#[test]
fn an_answer_without_room_for_a_name_is_refused() {
    let world = World::new();
    world.file("name", "");
    let directory = world.directory.as_fd();
    for (room, stats) in
        [(0, false), (7, false), (8 + 4 + 3, false), (8 + 8 + Stat::BYTES - 1, true)]
    {
        assert_eq!(list(directory, "", stats, room).err(), Some(Errno::MSGSIZE), "{room}");
    }
    for (room, stats) in [(8 + 4 + 4, false), (8 + 8 + Stat::BYTES, true)] {
        assert_eq!(list(directory, "", stats, room).map(|it| it.len()), Ok(1), "{room}");
    }
    // A place that no directory gave is the file system's to refuse.
    for cookie in [u64::MAX, 1 << 63, 12_345] {
        let call = Call::List { path: b"", cookie, stats: false };
        match answer(directory, &call, &mut [0; 4096]) {
            Ok(length) => assert!(length >= 8),
            Err(error) => assert_eq!(error, Errno::INVAL, "{cookie}"),
        }
    }
}

/// What this test needs of a directory: names that stay are seen exactly once.
#[test]
fn names_that_stay_are_seen_once_while_others_come_and_go() {
    const STAY: usize = 100_000;
    let world = World::new();
    let path = |number: usize| world.path(&format!("stays-{number:06}"));
    for number in 0..STAY {
        fs::write(path(number), "").expect("made");
    }
    let stop = AtomicBool::new(false);
    let changes = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut changes = 0_u64;
            // The first ones are there when the listing begins.
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let name = |number: u64| world.path(&format!("comes-{number}-{}", number % 7));
                fs::write(name(round), "").expect("made");
                if round >= 50 {
                    fs::remove_file(name(round - 50)).expect("removed");
                }
                changes += 2;
            }
            changes
        });
        for room in [ANSWER_BYTES_MAX as usize, 5000] {
            let mut seen = vec![0_u8; STAY];
            let names = list(world.directory.as_fd(), "", false, room).expect("listed");
            for (name, ..) in names {
                let name = String::from_utf8(name).expect("text");
                if let Some(number) = name.strip_prefix("stays-") {
                    seen[number.parse::<usize>().expect("a number")] += 1;
                }
            }
            let wrong = seen.iter().filter(|&&count| count != 1).count();
            assert_eq!(wrong, 0, "names seen twice or never, in answers of {room}");
        }
        stop.store(true, Ordering::Relaxed);
        busy.join().expect("it does not panic")
    });
    assert!(changes > 100, "nothing changed meanwhile: {changes}");
}
