//! Devices without room: of the test's own, tmpfs, and ext4 on a loop device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use piped_client::{Request, Status};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use system_tests::process::Programs;

use crate::filesystem::{Faulty, Rules};
use crate::nodes::{LATE, Nodes, PLACES, check_bytes, noise};

/// Of each device.
const ROOM: usize = 8 << 20;
/// What does not fit.
const LONG: usize = 12 << 20;

/// A device with little room, mounted.
struct Small {
    directory: tempfile::TempDir,
    image: Option<tempfile::TempDir>,
}

impl Small {
    /// `None`, with the reason printed, where it cannot be mounted.
    fn tmpfs() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let options = c"size=8m";
        match mount("tmpfs", directory.path(), "tmpfs", MountFlags::empty(), options) {
            Ok(()) => Some(Self { directory, image: None }),
            Err(error) => {
                eprintln!("skipped: tmpfs cannot be mounted: {error}");
                None
            }
        }
    }

    /// As [`Self::tmpfs`].
    fn ext4() -> Option<Self> {
        let [directory, image] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let file = image.path().join("image");
        fs::File::create(&file)
            .and_then(|file| file.set_len(ROOM as u64 + (1 << 20)))
            .expect("room");
        let small = Self { directory, image: Some(image) };
        let made = run("mkfs.ext4", &["-q", "-m", "0", "-O", "^has_journal", "-N", "64"], &[&file]);
        let mounted = made && run("mount", &["-o", "loop"], &[&file, &small.path()]);
        mounted.then_some(small)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Whoever has files of it open keeps it until they are closed.
        let _ = unmount(self.directory.path(), UnmountFlags::DETACH);
        drop(self.image.take());
    }
}

fn run(program: &str, options: &[&str], paths: &[&Path]) -> bool {
    let mut command = Command::new(program);
    command.args(options).args(paths).stdin(Stdio::null());
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!("skipped: {program}: {}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            eprintln!("skipped: {program}: {error}");
            false
        }
    }
}

/// Writes and copies that do not fit, everywhere; `make_room` is called when they have failed, and
/// `content` tells what is on the device.
fn check_full(
    directory: &Path,
    content: impl Fn(&str) -> Vec<u8>,
    make_room: impl Fn(&str),
    programs: &Programs,
) {
    let sound = tempfile::tempdir().expect("a directory");
    let nodes = Nodes::start(programs, directory, sound.path());
    let mut session = nodes.client();
    let data = noise(3, LONG);
    fs::write(sound.path().join("source"), &data).expect("written");
    for (number, place) in PLACES.into_iter().enumerate() {
        for (round, offset) in [0_u64, 777, 4096].into_iter().enumerate() {
            let name = format!("f{number}{round}");
            let file = session.open(place, "sick", directory, &name);
            let write = Request::write(&file, offset, session.filled(&data)).deadline(LATE);
            let error = session.run(write).expect_err("it does not fit");
            assert_eq!(error.status(), Some(Status::NoSpace), "{place:?}: {error}");
            let bytes = error.bytes as usize;
            assert!(bytes <= ROOM, "{place:?}: {bytes}");
            let landed = content(&name);
            let landed = landed.get(offset as usize..).unwrap_or_default();
            check_bytes(&landed[..bytes], &data[..bytes]);
            // There is room for some, which a write of many parts has found.
            make_room(&name);
            let few = &data[..1 << 20];
            session.write(&file, offset, few, true);
            session.check(&file, offset, few);
            check_bytes(&content(&name)[offset as usize..][..few.len()], few);
            make_room(&name);
        }
        let name = format!("c{number}");
        let source = session.open(place, "sound", sound.path(), "source");
        let file = session.open(place, "sick", directory, &name);
        let copy = Request::copy(&source, 0, &file, 0, LONG as u64).deadline(LATE);
        let error = session.run(copy).expect_err("it does not fit");
        assert_eq!(error.status(), Some(Status::NoSpace), "{place:?}: {error}");
        let bytes = error.bytes as usize;
        assert!(bytes <= ROOM, "{place:?}: {bytes}");
        check_bytes(&content(&name)[..bytes], &data[..bytes]);
        make_room(&name);
        let copy = Request::copy(&source, 0, &file, 0, 1 << 20).deadline(LATE);
        assert_eq!(session.run(copy).expect("it fits").bytes, 1 << 20);
        check_bytes(&content(&name)[..1 << 20], &data[..1 << 20]);
        make_room(&name);
    }
}

fn check_mounted(small: Option<Small>) {
    let (Some(programs), Some(small)) = (Programs::find(), small) else { return };
    let path = |name: &str| small.path().join(name);
    check_full(
        &small.path(),
        |name| fs::read(path(name)).expect("ours"),
        |name| {
            let file = fs::File::options().write(true).open(path(name)).expect("ours");
            file.set_len(0).expect("cut");
        },
        &programs,
    );
}

#[test]
fn a_full_tmpfs_says_so_and_what_is_told_is_there() {
    check_mounted(Small::tmpfs());
}

#[test]
fn a_full_ext4_says_so_and_what_is_told_is_there() {
    check_mounted(Small::ext4());
}

#[test]
fn a_full_device_that_takes_what_fits_says_so_and_what_is_told_is_there() {
    let (Some(programs), Some(sick)) = (Programs::find(), Faulty::mount()) else { return };
    sick.set(Rules { room: Some(ROOM as u64), ..Rules::default() });
    check_full(sick.path(), |name| sick.content(name), |name| sick.truncate(name, 0), &programs);
}
