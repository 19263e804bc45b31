//! Directories of exports as programs use them, here and at a peer: lists of many pages, changes of
//! names, files cut and made zeros, and replacements that others see whole; for threads and tasks.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use piped_client::call::{Advice, ExtentKind, FileKind, Over, Removed};
use piped_client::{
    Access, AsyncCalls, AsyncClient, AsyncDirectory, AsyncFile, Calls, Client, ClientBuilder,
    Directory, File, OpenOptions, Status, TokioRuntime,
};
use system_tests::offered::{LENGTH, Offered, PLACES};
use system_tests::process::{eventually, pattern};
use tokio::io::AsyncSeekExt as _;

/// More than one page of an answer has.
const MANY: usize = 20_000;
const ALL: Access = Access { names: true, ..Access::READ_WRITE };

fn directory(client: &Client, peer: Option<&str>, path: &str) -> Directory {
    eventually("it is open", || Directory::open(client, peer, "data", path, ALL).ok())
}

#[test]
fn a_list_of_many_pages_has_each_name_once() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    let mut queue = client.queue().expect("a queue");
    for peer in PLACES {
        let many = scene.root(peer).join("many");
        fs::create_dir(&many).expect("made");
        for number in 0..MANY {
            fs::File::create(many.join(format!("file-{number:05}"))).expect("made");
        }
        let data = directory(&client, peer, "");
        for stats in [false, true] {
            let mut seen = BTreeSet::new();
            let mut calls = data.calls(&mut queue);
            for name in calls.list("many", stats) {
                let name = name.expect("it may be read");
                assert_eq!((name.kind, name.stat.is_some()), (FileKind::File, stats));
                assert!(seen.insert(name.name), "once");
            }
            assert_eq!(seen.len(), MANY, "{peer:?}");
        }
        let mut calls = data.calls(&mut queue);
        let mut none = calls.list("blocks", false);
        let error = none.next().expect("an answer").expect_err("a file has no names");
        assert_eq!(error.status(), Some(Status::NotDirectory));
        assert!(none.next().is_none(), "it ends behind its error");
        fs::remove_dir_all(many).expect("removed");
    }
}

#[test]
fn names_change_as_they_do_in_a_local_directory() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    let mut queue = client.queue().expect("a queue");
    for peer in PLACES {
        let root = scene.root(peer);
        let data = directory(&client, peer, "");
        let mut calls = data.calls(&mut queue);
        calls.make_directory("made", 0o750).expect("made");
        let again = calls.make_directory("made", 0o750).expect_err("it is there");
        assert_eq!(again.status(), Some(Status::Exists));
        calls.make_directories("made/a/b", 0o750).expect("made");
        calls.make_directories("made/a/b", 0o750).expect("it is there");
        calls.link("blocks", "made/a/blocks").expect("linked");
        assert_eq!(calls.stat("blocks").expect("there").links, 2);
        calls.rename("made/a/blocks", "made/b", Over::Keep).expect("renamed");
        let kept = calls.rename("blocks", "made/b", Over::Keep).expect_err("it is there");
        assert_eq!(kept.status(), Some(Status::Exists));
        calls.rename_durably("made/b", "made/c", Over::Replace).expect("renamed");
        assert!(root.join("made/c").is_file() && !root.join("made/b").exists());
        let full = calls.remove("made", Removed::Directory).expect_err("it has names");
        assert_eq!(full.status(), Some(Status::NotEmpty));
        calls.remove("made/c", Removed::File).expect("removed");
        calls.remove("made/a/b", Removed::Any).expect("removed");
        calls.remove("made/a", Removed::Directory).expect("removed");
        calls.remove("made", Removed::Directory).expect("removed");
        assert!(!root.join("made").exists());
        let space = calls.space().expect("told");
        assert!(space.total >= space.free && space.free >= space.available && space.total > 0);
    }
}

#[test]
fn ranges_of_files_are_cut_made_zeros_and_summed() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    let mut queue = client.queue().expect("a queue");
    for peer in PLACES {
        let path = scene.root(peer).join("blocks");
        let data = directory(&client, peer, "");
        let file = data.open_file("blocks", OpenOptions::read_write()).expect("there");
        let mut calls = Calls::new(&mut queue, &file);
        let digest = calls.digest(0..LENGTH as u64).expect("summed");
        assert_eq!(digest, calls.digest(0..LENGTH as u64).expect("summed again"));
        calls.zero(4096..8192, false).expect("zeros");
        assert_ne!(digest, calls.digest(0..LENGTH as u64).expect("summed"));
        calls.trim(16_384..32_768).expect("trimmed");
        calls.truncate(1 << 20).expect("longer");
        calls.allocate(1 << 20..2 << 20, true).expect("room");
        let stat = calls.stat("").expect("there");
        assert_eq!((stat.length, stat.kind), (1 << 20, FileKind::File));
        assert_eq!(fs::metadata(&path).expect("there").len(), 1 << 20);
        let mut at = 0;
        let mut holes = 0;
        for extent in calls.extents(0..1 << 20) {
            let extent = extent.expect("told");
            assert_eq!(extent.offset, at, "in order, without gaps");
            at += extent.length;
            holes += if extent.kind == ExtentKind::Hole { extent.length } else { 0 };
        }
        assert_eq!(at, 1 << 20);
        assert!(holes >= (1 << 20) - (1 << 18), "the part behind the old end: {holes}");
        calls.sync_range(0..0, true).expect("synced");
        calls.advise(0..0, Advice::DontNeed).expect("told");
        let mut wanted = pattern(LENGTH);
        wanted[4096..8192].fill(0);
        wanted[16_384..32_768].fill(0);
        assert!(fs::read(&path).expect("there")[..LENGTH] == wanted);
        let backwards = calls.truncate(u64::MAX).expect_err("no file is so long");
        assert!(backwards.status().is_some());
    }
}

#[test]
fn a_replacement_is_seen_whole_and_leaves_nothing_behind() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    let mut queue = client.queue().expect("a queue");
    // Each is longer than what goes in one request.
    let versions = [vec![1_u8; (1 << 20) + 7], vec![2; (2 << 20) + 9]];
    for peer in PLACES {
        let below = scene.root(peer).join("below");
        let data = directory(&client, peer, "");
        data.replace(&mut queue, "below/state", &versions[0], 0o600).expect("made");
        let over = Arc::new(AtomicBool::new(false));
        let looking = std::thread::spawn({
            let (over, path, versions) = (Arc::clone(&over), below.join("state"), versions.clone());
            move || {
                let mut looks = 0;
                while !over.load(Ordering::SeqCst) || looks == 0 {
                    let seen = fs::read(&path).expect("always there");
                    assert!(versions.contains(&seen), "half of it: {} bytes", seen.len());
                    looks += 1;
                }
            }
        });
        for version in versions.iter().cycle().take(10) {
            data.replace(&mut queue, "below/state", version, 0o640).expect("replaced");
        }
        over.store(true, Ordering::SeqCst);
        looking.join().expect("it saw whole ones only");
        data.replace(&mut queue, "below/state", b"", 0o640).expect("emptied");
        assert!(fs::read(below.join("state")).expect("there").is_empty());
        let error = data.replace(&mut queue, "gone/state", b"x", 0o640).expect_err("no directory");
        assert!(error.to_string().contains("directory"), "{error}");
        // Over a directory it fails after the new file was made, which goes again.
        fs::create_dir(below.join("directory")).expect("made");
        data.replace(&mut queue, "below/directory", b"x", 0o640).expect_err("a directory");
        let left: Vec<_> = fs::read_dir(&below).expect("there").flatten().collect();
        let hidden = left.iter().filter(|it| it.file_name().to_string_lossy().starts_with('.'));
        assert_eq!(hidden.count(), 0, "{left:?}");
    }
}

#[test]
fn a_seek_to_the_end_finds_the_end_of_now() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    for peer in PLACES {
        let data = directory(&client, peer, "");
        let blocks = data.open_file("blocks", OpenOptions::read()).expect("there");
        let mut file = File::new(&client, &blocks).expect("a queue");
        let end = |file: &mut File| file.seek(SeekFrom::End(0)).expect("told");
        assert_eq!(end(&mut file), LENGTH as u64);
        for length in [5_000, 5] {
            let ours = fs::File::options().write(true).open(scene.root(peer).join("blocks"));
            ours.expect("ours").set_len(length).expect("cut");
            assert_eq!(end(&mut file), length);
            assert_eq!(file.read(&mut [0; 9]).expect("the end"), 0);
        }
    }
}

#[test]
fn tasks_do_the_same() {
    let Some(scene) = Offered::start() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let runtime = Arc::new(TokioRuntime::current().expect("inside"));
        let socket = scene.alpha().client_socket();
        let client = AsyncClient::open(ClientBuilder::new(), Some(socket), runtime).await;
        let client = client.expect("it serves");
        let queue = client.queue().await.expect("a queue");
        for peer in PLACES {
            let root = scene.root(peer);
            for number in 0..3000 {
                fs::File::create(root.join(format!("below/{number}"))).expect("made");
            }
            let data = AsyncDirectory::open(&client, peer, "data", "", ALL).await.expect("open");
            let calls = data.calls(&queue);
            let mut names = calls.list("below", true);
            let mut seen = BTreeSet::new();
            while let Some(name) = names.next().await.expect("readable") {
                assert_eq!(name.stat.expect("it is there").length, 0);
                assert!(seen.insert(name.name));
            }
            assert_eq!(seen.len(), 3000);
            calls.rename("below/7", "seven", Over::Keep).await.expect("renamed");
            calls.remove("seven", Removed::File).await.expect("removed");
            let error = calls.stat("seven").await.expect_err("removed");
            assert_eq!(error.status(), Some(Status::NotFound));
            data.replace(&queue, "below/new", &pattern(3 << 20), 0o604).await.expect("made");
            assert!(fs::read(root.join("below/new")).expect("there") == pattern(3 << 20));
            let mode = fs::metadata(root.join("below/new")).expect("there").permissions().mode();
            assert_eq!(mode & 0o700, 0o600);
            let file = data.open_file("blocks", OpenOptions::read_write()).await.expect("there");
            let file = AsyncCalls::new(&queue, &file);
            file.truncate(10).await.expect("cut");
            assert_eq!(fs::metadata(root.join("blocks")).expect("there").size(), 10);
            let mut end = AsyncFile::new(&queue, file.handle());
            assert_eq!(end.seek(SeekFrom::End(0)).await.expect("told"), 10);
            let mut extents = file.extents(0..10);
            let extent = extents.next().await.expect("told").expect("one");
            assert_eq!((extent.offset, extent.length), (0, 10));
            assert!(extents.next().await.expect("told").is_none());
        }
    });
}
