//! Devices that answer with an error, with less than was asked, or with the end of a file that was
//! longer.

use std::fs::File;

use piped_client::{Request, Status};
use system_tests::process::eventually;

use crate::filesystem::Rules;
use crate::nodes::{LATE, PLACES, Place, check_bytes, noise, returned};
use crate::{World, world};

const LENGTH: usize = 1 << 20;
/// A broken block in the middle.
const BAD: std::ops::Range<u64> = 512 << 10..516 << 10;

#[test]
fn a_broken_block_is_an_io_error_with_the_bytes_before_it() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let mut session = nodes.client();
    for (number, place) in PLACES.into_iter().enumerate() {
        let old = noise(1, LENGTH);
        let new = noise(2 + number as u64, LENGTH);
        sick.put("f", &old);
        std::fs::write(sound.path().join("f"), &new).expect("written");
        let file = session.open(place, "sick", sick.path(), "f");
        let other = session.open(place, "sound", sound.path(), "f");

        sick.set(Rules { bad: Some(BAD), ..Rules::default() });
        let read = Request::read(&file, 0, session.buffer(LENGTH));
        let (status, bytes, buffer) = returned(session.run(read).expect_err("it is broken"));
        assert_eq!(status, Status::Io, "{place:?}");
        assert!(bytes <= BAD.start, "{place:?}: {bytes}");
        check_bytes(&buffer.as_slice()[..bytes as usize], &old[..bytes as usize]);
        // Beside it all is well.
        session.check(&file, BAD.end, &old[BAD.end as usize..]);

        let write = Request::write(&file, 0, session.filled(&new));
        let (status, bytes, _) = returned(session.run(write).expect_err("it is broken"));
        assert_eq!(status, Status::Io, "{place:?}");
        assert!(bytes <= BAD.start, "{place:?}: {bytes}");
        // What came in frames of its own was written before.
        assert!(bytes > 0 || place != Place::Remote, "{place:?}");
        check_bytes(&sick.content("f")[..bytes as usize], &new[..bytes as usize]);

        let copy = Request::copy(&other, 0, &file, 0, LENGTH as u64);
        let error = session.run(copy).expect_err("it is broken");
        assert_eq!(error.status(), Some(Status::Io), "{place:?}: {error}");
        assert!(error.bytes <= BAD.start, "{place:?}: {error}");
        check_bytes(&sick.content("f")[..error.bytes as usize], &new[..error.bytes as usize]);
        let copy = Request::copy(&file, 0, &other, 0, LENGTH as u64);
        let error = session.run(copy).expect_err("it is broken");
        assert_eq!(error.status(), Some(Status::Io), "{place:?}: {error}");

        sick.set(Rules::default());
        session.write(&file, 0, &new, false);
        session.check(&file, 0, &new);
        check_bytes(&sick.content("f"), &new);
        session.write(&other, 0, &old, false);
        session.check(&other, 0, &old);
    }
}

#[test]
fn a_sync_that_fails_is_told() {
    let Some(World { nodes, sick, .. }) = world() else { return };
    let mut session = nodes.client();
    for place in PLACES {
        sick.put("f", &noise(1, LENGTH));
        let file = session.open(place, "sick", sick.path(), "f");
        let new = noise(2, LENGTH);
        sick.set(Rules { bad_syncs: true, ..Rules::default() });
        let write = Request::write(&file, 0, session.filled(&new)).durable();
        let (status, ..) = returned(session.run(write).expect_err("it is not durable"));
        assert_eq!(status, Status::Io, "{place:?}");
        let error = session.run(Request::sync(&file)).expect_err("it is not durable");
        assert_eq!(error.status(), Some(Status::Io), "{place:?}");
        sick.set(Rules::default());
        session.run(Request::sync(&file)).expect("sound again");
        session.check(&file, 0, &new);
    }
}

#[test]
fn what_a_device_does_in_part_is_continued() {
    let Some(World { nodes, sick, .. }) = world() else { return };
    let mut session = nodes.client();
    for (number, place) in PLACES.into_iter().enumerate() {
        let content = noise(10 + number as u64, LENGTH + 77);
        sick.put("f", &content);
        let file = session.open(place, "sick", sick.path(), "f");
        // Whole blocks, and pieces that O_DIRECT has no room for.
        for longest in [4096, 512 * 3, 1000, 4095] {
            sick.set(Rules { longest: Some(longest), ..Rules::default() });
            let span = 300_000;
            for offset in [0, 4096, 777] {
                session.check(&file, offset, &content[offset as usize..][..span]);
            }
            // The end of the file is one all the same.
            let read = Request::read(&file, LENGTH as u64 - 4096, session.buffer(16_384));
            let done = session.run(read.deadline(LATE)).expect("sound");
            check_bytes(&done.payload.as_slice()[..done.bytes as usize], &content[LENGTH - 4096..]);
            for (round, offset) in [0, 4096, 777].into_iter().enumerate() {
                let new = noise(longest as u64 + round as u64, span);
                session.write(&file, offset, &new, false);
                check_bytes(&sick.content("f")[offset as usize..][..span], &new);
            }
            sick.put("f", &content);
        }
        sick.set(Rules::default());
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_ends_where_it_ends() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let mut session = nodes.client();
    let content = noise(1, 4 * LENGTH);
    for (number, place) in PLACES.into_iter().enumerate() {
        for left in [LENGTH + 12_345, 2 * LENGTH, 100, 0] {
            sick.put("f", &content);
            let file = session.open(place, "sick", sick.path(), "f");
            sick.hold();
            let read = Request::read(&file, 0, session.buffer(content.len()));
            let pending = session.submit(read.deadline(LATE));
            eventually("the device has it", || (sick.held() > 0).then_some(()));
            sick.truncate("f", left);
            sick.set(Rules::default());
            let done = session.end(pending).expect("a shorter file is no error");
            assert_eq!(done.bytes, left as u64, "{place:?}");
            check_bytes(&done.payload.as_slice()[..left], &content[..left]);
        }
        // The same of a file system of the kernel, at whatever moment.
        let path = sound.path().join(format!("f{number}"));
        for left in [LENGTH + 12_345, 4096, 0] {
            std::fs::write(&path, &content).expect("written");
            let name = path.file_name().and_then(|name| name.to_str()).expect("plain");
            let file = session.open(place, "sound", sound.path(), name);
            let read = Request::read(&file, 0, session.buffer(content.len()));
            let pending = session.submit(read.deadline(LATE));
            File::options()
                .write(true)
                .open(&path)
                .expect("ours")
                .set_len(left as u64)
                .expect("cut");
            let done = session.end(pending).expect("a shorter file is no error");
            let bytes = done.bytes as usize;
            assert!((left..=content.len()).contains(&bytes), "{place:?}: {bytes}");
            check_bytes(&done.payload.as_slice()[..left], &content[..left]);
            // What was cut off under the read's hands is what it was, or zeros.
            let rest = done.payload.as_slice()[left..bytes].iter().zip(&content[left..bytes]);
            assert!(rest.into_iter().all(|(&seen, &was)| seen == was || seen == 0), "{place:?}");
            if left > 0 {
                session.check(&file, 0, &content[..left.min(4096)]);
            }
        }
    }
}

#[test]
fn a_device_whose_server_died_is_an_io_error_for_its_files_alone() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let mut session = nodes.client();
    let content = noise(1, LENGTH);
    sick.put("f", &content);
    std::fs::write(sound.path().join("f"), &content).expect("written");
    let files = PLACES.map(|place| session.open(place, "sick", sick.path(), "f"));
    let others = PLACES.map(|place| session.open(place, "sound", sound.path(), "f"));
    sick.hold();
    let pending: Vec<_> = files
        .iter()
        .flat_map(|file| {
            let read = Request::read(file, 0, session.buffer(LENGTH)).deadline(LATE);
            let write = Request::write(file, 0, session.filled(&content)).deadline(LATE);
            [session.submit(read), session.submit(write)]
        })
        .collect();
    eventually("the device has some of each", || (sick.held() >= 2).then_some(()));
    sick.die();
    for pending in pending {
        let (status, bytes, _) = returned(session.end(pending).expect_err("nobody answers"));
        assert_eq!((status, bytes), (Status::Io, 0));
    }
    for (file, other) in files.iter().zip(&others) {
        let read = Request::read(file, 0, session.buffer(LENGTH));
        assert_eq!(returned(session.run(read).expect_err("gone")).0, Status::Io);
        let error = session.run(Request::sync(file)).expect_err("gone");
        assert_eq!(error.status(), Some(Status::Io));
        session.check(other, 0, &content);
        let new = noise(2, LENGTH);
        session.write(other, 0, &new, true);
        session.check(other, 0, &new);
        session.write(other, 0, &content, false);
    }
    drop((files, others));
    eventually("all of it is closed", || (nodes.alpha.number("ops") <= 4).then_some(()));
}
