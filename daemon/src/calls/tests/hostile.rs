//! Paths that try to lead out, and directories that are exchanged while a call walks them.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use piped_core::call::{Call, Entries, Over, Range, Removed, Stat};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::{World, answer, answer_at_once, link, make, remove, rename};

/// How often each call is tried while somebody exchanges what it walks.
const ROUNDS: u32 = 20_000;

fn all_of(path: &str) -> Vec<Call<'_>> {
    let bytes = path.as_bytes();
    vec![
        Call::Stat { path: bytes },
        Call::List { path: bytes, cookie: 0, stats: true },
        make(path, false),
        make(path, true),
        remove(path, Removed::File),
        remove(path, Removed::Directory),
        remove(path, Removed::Any),
        rename(path, "taken", Over::Replace),
        rename("kept", path, Over::Replace),
        rename("kept", path, Over::Exchange),
        link(path, "taken"),
        link("kept", path),
        Call::Rename { from: b"kept", to: bytes, over: Over::Keep, durable: true },
        Call::Copy {
            from: bytes,
            to: b"kept",
            range: Range { offset: 0, length: 1 },
            durable: false,
        },
        Call::Copy {
            from: b"kept",
            to: bytes,
            range: Range { offset: 0, length: 1 },
            durable: false,
        },
    ]
}

#[test]
fn no_path_leads_out_and_each_is_refused_in_its_words() {
    let world = World::new();
    world.file("kept", "kept");
    fs::create_dir(world.path("sub")).expect("made");
    symlink("../outside", world.path("out")).expect("linked");
    symlink("/", world.path("absolute")).expect("linked");
    symlink("/proc/self/root", world.path("magic")).expect("linked");
    symlink("turns", world.path("turns")).expect("linked");
    let secret = world.outside("secret");
    let root = secret.to_str().expect("text");
    let long = "n".repeat(256);
    let (long_above, deep) = (format!("{long}/x"), "sub/../".repeat(100) + "kept");
    for (path, expected) in [
        ("../outside/secret", Errno::BADF),
        ("sub/../../outside/secret", Errno::BADF),
        ("..", Errno::BADF),
        ("sub/..", Errno::BADF),
        (&deep, Errno::BADF),
        (root, Errno::BADF),
        ("//etc/passwd", Errno::BADF),
        ("sub/\0", Errno::INVAL),
        ("\0", Errno::INVAL),
        (&long, Errno::NAMETOOLONG),
        (&long_above, Errno::NAMETOOLONG),
        ("out/secret", Errno::LOOP),
        ("absolute/etc/passwd", Errno::LOOP),
        ("magic/etc/passwd", Errno::LOOP),
        ("turns/x", Errno::LOOP),
        ("sub/missing/x", Errno::NOENT),
        ("kept/x", Errno::NOTDIR),
    ] {
        for call in all_of(path) {
            let found = answer(world.directory.as_fd(), &call, &mut [0; 4096]);
            // Making all directories makes those that are missing.
            let makes = matches!(call, Call::MakeDirectory { parents: true, .. });
            if makes && expected == Errno::NOENT {
                assert_eq!(found, Ok(0), "{call:?}");
                fs::remove_dir_all(world.path("sub/missing")).expect("made");
                continue;
            }
            // Only the kernel knows which of two paths it looks at first.
            assert_eq!(found, Err(expected), "{call:?}");
            if let Some(at_once) = answer_at_once(world.directory.as_fd(), &call, &mut [0; 4096]) {
                assert_eq!(at_once, found, "{call:?}");
            }
        }
    }
    assert_eq!(fs::read(world.path("kept")).expect("there"), b"kept");
    assert_eq!(fs::read(world.outside("secret")).expect("there"), b"secret");
    assert_eq!(fs::read_dir(world.outside("")).expect("there").count(), 1);
    assert!(!world.path("taken").exists());
}

/// A directory and a link to another one outside are exchanged without an end. Both have a file of
/// the same name, so a call that followed the link would be seen: in what it reads, or in what it
/// does.
#[test]
fn exchanged_directories_and_links_lead_nowhere_else() {
    let world = World::new();
    fs::create_dir(world.path("sub")).expect("made");
    symlink("../outside", world.path("other")).expect("linked");
    fs::write(world.path("sub/inside"), "i").expect("written");
    fs::write(world.path("open"), "o").expect("written");
    let before = fs::metadata(world.outside("secret")).expect("there").modified().expect("told");
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let [sub, other] = ["sub", "other"]
                .map(|it| CString::new(world.path(it).to_str().expect("text")).expect("no zero"));
            let mut turns = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &*sub, CWD, &*other, RenameFlags::EXCHANGE)
                    .expect("exchanged");
                turns += 1;
            }
            turns
        });
        let directory = world.directory.as_fd();
        let mut bytes = [0; 4096];
        for _ in 0..ROUNDS {
            for call in [
                Call::Stat { path: b"sub/secret" },
                Call::List { path: b"sub", cookie: 0, stats: true },
                make("sub/made", true),
                make("sub/once", false),
                remove("sub/secret", Removed::Any),
                remove("sub/made", Removed::Any),
                rename("sub/secret", "stolen", Over::Replace),
                rename("sub/inside", "sub/secret2", Over::Replace),
                rename("sub/secret2", "sub/inside", Over::Replace),
                link("sub/secret", "stolen"),
                link("sub/inside", "sub/linked"),
                remove("sub/linked", Removed::File),
                remove("sub/once", Removed::Directory),
                Call::Copy {
                    from: b"sub/secret",
                    to: b"open",
                    range: Range { offset: 0, length: 9 },
                    durable: false,
                },
                Call::Copy {
                    from: b"open",
                    to: b"sub/secret",
                    range: Range { offset: 0, length: 9 },
                    durable: false,
                },
            ] {
                let found = answer(directory, &call, &mut bytes);
                match (call, found) {
                    (Call::List { .. }, Ok(length)) => {
                        let entries = Entries::parse(&bytes[..length]).expect("names");
                        assert!(entries.iter().all(|it| it.name != b"secret"), "it was seen");
                    }
                    (Call::Stat { .. }, Ok(length)) => {
                        panic!("{:?} was seen", Stat::parse(&bytes[..length]));
                    }
                    (Call::Remove { path: b"sub/secret", .. }, Ok(_)) => panic!("removed"),
                    (Call::Rename { from: b"sub/secret", .. }, Ok(_)) => panic!("taken"),
                    (Call::Link { from: b"sub/secret", .. }, Ok(_)) => panic!("linked"),
                    (Call::Copy { .. }, Ok(_)) => panic!("copied"),
                    _ => {}
                }
                if let Some(Ok(length)) = answer_at_once(directory, &call, &mut bytes) {
                    panic!("{:?} was seen at once", Stat::parse(&bytes[..length]));
                }
                done.fetch_add(u64::from(found.is_ok()), Ordering::Relaxed);
            }
        }
        stop.store(true, Ordering::Relaxed);
        let turns = busy.join().expect("it does not panic");
        assert!(turns > 1000, "only {turns} exchanges");
    });
    assert!(done.into_inner() > 1000, "the calls did something in between");
    let names = fs::read_dir(world.outside("")).expect("there").count();
    assert_eq!(names, 1, "nothing was made outside");
    assert_eq!(fs::read(world.outside("secret")).expect("there"), b"secret");
    let after = fs::metadata(world.outside("secret")).expect("there").modified().expect("told");
    assert_eq!(before, after);
}

/// The last name is exchanged between a file and a link to one outside.
#[test]
fn an_exchanged_name_is_the_name_and_not_what_it_links_to() {
    let world = World::new();
    world.file("name", "inside");
    world.file("open", "inside");
    symlink("../outside/secret", world.path("other")).expect("linked");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (one, two) = (world.path("name"), world.path("other"));
                let _ = rustix::fs::renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE);
            }
        });
        let directory = world.directory.as_fd();
        let secret = fs::metadata(world.outside("secret")).expect("there");
        let inode = std::os::unix::fs::MetadataExt::ino(&secret);
        for _ in 0..ROUNDS {
            let mut bytes = [0; Stat::BYTES];
            let found = answer(directory, &Call::Stat { path: b"name" }, &mut bytes);
            if let Ok(length) = found {
                let stat = Stat::parse(&bytes[..length]).expect("a stat");
                assert_ne!(stat.inode, inode, "the link was followed");
            }
            let linked = answer(directory, &link("name", "linked"), &mut []);
            if linked.is_ok() {
                assert_eq!(answer(directory, &remove("linked", Removed::File), &mut []), Ok(0));
            }
            for (from, to) in [(&b"name"[..], &b"open"[..]), (b"open", b"name")] {
                let range = Range { offset: 0, length: 6 };
                let copied =
                    answer(directory, &Call::Copy { from, to, range, durable: false }, &mut bytes);
                assert!(matches!(copied, Ok(_) | Err(Errno::LOOP)), "{copied:?}");
                assert_eq!(fs::read(world.path("open")).expect("there"), b"inside");
            }
        }
        stop.store(true, Ordering::Relaxed);
        busy.join().expect("it does not panic");
    });
    let secret = fs::metadata(world.outside("secret")).expect("there");
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&secret), 1);
    assert_eq!(fs::read(world.outside("secret")).expect("there"), b"secret");
}

/// Calls of files make no use of paths, and calls of paths none of files.
#[test]
fn a_file_is_no_directory() {
    let world = World::new();
    let file = world.file("data", "bytes");
    for call in all_of("x") {
        let found = answer(file.as_fd(), &call, &mut [0; 4096]);
        assert_eq!(found, Err(Errno::NOTDIR), "{call:?}");
    }
    let range = Range { offset: 0, length: 1 };
    for call in [
        Call::Truncate { length: 0 },
        Call::Allocate { range, keep_length: false },
        Call::Zero { range, release: true },
        Call::Trim { range },
        Call::Digest { range },
    ] {
        let found = answer(world.directory.as_fd(), &call, &mut [0; 4096]);
        assert_eq!(found, Err(Errno::BADF), "{call:?}");
    }
}
