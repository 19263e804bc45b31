//! Mounts below a directory: crossed by opens, and by no call.

use std::fs;
use std::os::fd::AsFd;
use std::process::Command;

use piped_core::call::{Call, Entries, FileKind, Over, Range, Removed};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};

use super::{World, answer, done, link, make, remove, rename};

/// Set for the process that has mounts of its own: the others here would see them.
const INSIDE: &str = "PIPED_TEST_MOUNTS_INSIDE";
const TEST: &str = "calls::tests::mounts::no_call_crosses_to_another_mount";

#[test]
fn no_call_crosses_to_another_mount() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let mut again = Command::new("unshare");
    again.arg("--mount").arg(std::env::current_exe().expect("this test"));
    again.args(["--exact", TEST, "--nocapture"]).env(INSIDE, "1");
    match again.output() {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("1 passed"), "{output:?}");
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("unshare failed"), "{output:?}");
            eprintln!("skipped: no mounts of its own ({})", said.trim());
        }
        Err(error) => eprintln!("skipped: no unshare ({error})"),
    }
}

fn inside() {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("its own mounts");
    let world = World::new();
    for name in ["disk", "bound", "plain"] {
        fs::create_dir(world.path(name)).expect("made");
    }
    fs::create_dir(world.outside("sub")).expect("made");
    world.file("file", "hidden");
    world.file("kept", "kept");
    let none = MountFlags::empty();
    mount("none", world.path("disk"), "ramfs", none, None).expect("mounted");
    mount_bind(world.outside(""), world.path("bound")).expect("mounted");
    mount_bind(world.outside("secret"), world.path("file")).expect("mounted");
    let directory = world.directory.as_fd();
    for path in ["disk/x", "bound/secret", "bound/sub/x", "disk", "bound", "file"] {
        let mut calls = vec![
            make(path, true),
            remove(path, Removed::File),
            remove(path, Removed::Any),
            rename(path, "taken", Over::Replace),
            rename("kept", path, Over::Replace),
            link(path, "taken"),
        ];
        if path.contains('/') {
            calls.push(Call::Stat { path: path.as_bytes() });
            calls.push(Call::List { path: path.as_bytes(), cookie: 0, stats: false });
        }
        for call in calls {
            let found = answer(directory, &call, &mut [0; 4096]);
            let expected: &[Errno] = match path.contains('/') {
                true => &[Errno::XDEV],
                // The mount itself is in use, is there, or is a directory.
                false => &[
                    Errno::XDEV,
                    Errno::BUSY,
                    Errno::EXIST,
                    Errno::ISDIR,
                    Errno::NOTDIR,
                    Errno::PERM,
                ],
            };
            assert!(found.is_err_and(|it| expected.contains(&it)), "{call:?}: {found:?}");
        }
        let stat = Call::Stat { path: path.as_bytes() };
        assert_eq!(answer(directory, &stat, &mut [0; 4096]), Err(Errno::XDEV), "{path}");
    }
    // Names that are mounts are listed, and nothing is told of what is mounted.
    let mut bytes = [0; 4096];
    let list = Call::List { path: b"", cookie: 0, stats: true };
    let length = answer(directory, &list, &mut bytes).expect("listed");
    for entry in Entries::parse(&bytes[..length]).expect("names").iter() {
        let is_mount = [&b"disk"[..], b"bound", b"file"].contains(&entry.name);
        assert_eq!(entry.stat.is_none(), is_mount, "{entry:?}");
        assert_ne!(entry.kind, FileKind::Other);
    }
    // A file system that has neither holes nor allocation gets written zeros, and no more.
    let mut options = fs::File::options();
    options.read(true).write(true).create(true);
    let file = options.open(world.path("disk/data")).expect("made");
    let zero =
        |length, release| done(&file, Call::Zero { range: Range { offset: 0, length }, release });
    for release in [false, true] {
        fs::write(world.path("disk/data"), [9; 100]).expect("written");
        assert_eq!(zero(70_000, release), Ok(()));
        assert_eq!(fs::read(world.path("disk/data")).expect("there"), [0; 70_000]);
    }
    assert_eq!(zero(1 << 31, false), Err(Errno::FBIG));
    let trim = Call::Trim { range: Range { offset: 0, length: 1 } };
    assert_eq!(done(&file, trim), Err(Errno::OPNOTSUPP));
    assert_eq!(fs::read(world.outside("secret")).expect("there"), b"secret");
    assert_eq!(fs::read(world.path("kept")).expect("there"), b"kept");
    assert!(!world.path("taken").exists());
    assert_eq!(fs::read_dir(world.outside("")).expect("there").count(), 2, "secret and sub");
}
