//! Reads of what the page cache has: they come from there, and nobody sees old bytes.
#![forbid(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use piped_client::{Client, Handle, OpenOptions, Queue};
use piped_sim::Random;
use system_tests::process::{BLOCKS_BYTES, Daemon, Pair, Programs, drop_cached, pattern};
use tempfile::TempDir;

const PAGE: usize = 4096;
const FILE_BYTES: usize = 64 * PAGE;

/// Where the bytes of the last read that a daemon planned came from.
fn source(daemon: &Daemon) -> String {
    daemon.await_rest();
    let last = daemon.json(&["explain", "last"]);
    let stages = last["explanation"]["stages"].as_array().expect("a list");
    let names = stages.iter().filter_map(|stage| stage["name"].as_str());
    let kinds = ["disk", "page cache"].into_iter();
    let of_names = |kind: &&str| names.clone().any(|name| name.starts_with(kind));
    kinds.filter(of_names).collect::<Vec<_>>().join(" and ")
}

/// The way of the bytes of the last read that a daemon did.
fn route(daemon: &Daemon) -> String {
    daemon.await_rest();
    let last = daemon.json(&["explain", "last"]);
    last["explanation"]["route"].as_str().expect("a text").to_owned()
}

/// Has the page cache have a range of a file and nothing else of it, as far as it was asked.
fn cache_only(path: &Path, range: Range<usize>) {
    drop_cached(path);
    let other = File::open(path).expect("opened");
    rustix::fs::fadvise(&other, 0, None, rustix::fs::Advice::Random).expect("advised");
    other.read_exact_at(&mut vec![0; range.len()], range.start as u64).expect("read");
}

/// Whether this kernel tells, and this file system has anything to go past.
fn tells(daemon: &Daemon) -> bool {
    let status = daemon.json(&["status"]).to_string();
    let tells = status.contains("\"page_cache\"");
    if !tells {
        eprintln!("skipped: the kernel does not tell what is cached: {status}");
    }
    tells
}

/// Two nodes with files in that directory, if this kernel tells what is cached.
fn nodes() -> Option<(TempDir, Pair)> {
    let programs = Programs::find()?;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    tells(&pair.beta).then_some((directory, pair))
}

fn session(daemon: &Daemon) -> (Client, Queue) {
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    let queue = client.queue().expect("a queue");
    (client, queue)
}

fn read(client: &Client, queue: &mut Queue, from: &Handle, at: u64, length: usize) -> Vec<u8> {
    let buffer = client.allocate(length).expect("memory");
    queue.read(from, at, buffer).expect("read").0.as_slice().to_vec()
}

#[test]
fn a_read_goes_where_the_bytes_are() {
    let Some((directory, pair)) = nodes() else { return };
    let Pair { alpha, beta, .. } = &pair;
    let path = directory.path().join("root/blocks");
    let (client, mut queue) = session(alpha);
    let options = OpenOptions::read();
    let blocks = client.open_export(Some("beta"), "data", "blocks", options).expect("it is there");
    let whole = pattern(BLOCKS_BYTES);
    let mut reads = |at: u64, length: usize| {
        let read = read(&client, &mut queue, &blocks, at, length);
        assert!(read == whole[at as usize..][..length], "{length} bytes at {at}");
        source(beta)
    };
    drop_cached(&path);
    assert_eq!(reads(0, 1 << 20), "disk", "it is on the disk alone");
    assert_eq!(reads(0, 1 << 20), "disk", "and such a read leaves nothing in the cache");
    // Somebody else reads the first half, and nothing ahead of it.
    cache_only(&path, 0..BLOCKS_BYTES / 2);
    assert_eq!(reads(0, 1 << 20), "page cache");
    assert_eq!(reads(5, 1000), "page cache", "aligned or not");
    assert_eq!(reads(BLOCKS_BYTES as u64 - 4096, 4096), "disk", "the end is not there");
    assert_eq!(reads(0, BLOCKS_BYTES), "disk", "nor all of it");
    drop_cached(&path);
    assert_eq!(reads(0, 4096), "disk");
}

/// A file of which the page cache has a half, whichever, or a piece in the middle: here, and at a
/// peer. What is on the disk alone stays there.
#[test]
fn a_read_takes_what_is_cached_from_there_and_the_rest_from_the_disk() {
    let Some((directory, pair)) = nodes() else { return };
    let Pair { alpha, beta, .. } = &pair;
    let path = directory.path().join("root/blocks");
    let whole = pattern(BLOCKS_BYTES);
    let (client, mut queue) = session(alpha);
    let options = OpenOptions::read();
    let remote = client.open_export(Some("beta"), "data", "blocks", options).expect("opened");
    let own = client.open_file(&path, OpenOptions::read()).expect("opened");
    if own.direct_alignment() == 0 {
        eprintln!("skipped: this file system has no direct reads");
        return;
    }
    for (blocks, reader) in [(remote, beta), (own, alpha)] {
        let mut is_first = true;
        for cached in [0..1 << 20, 3 << 20..4 << 20, 1 << 20..2 << 20, (1 << 20) + 4096..3 << 20] {
            cache_only(&path, cached.clone());
            for (at, length) in [(0, BLOCKS_BYTES), (777, BLOCKS_BYTES - 1777)] {
                let read = read(&client, &mut queue, &blocks, at as u64, length);
                assert!(read == whole[at..][..length], "{cached:?} cached, {length} at {at}");
                // Before both ways are known, what is cached comes from there; later ones go as
                // they were seen to cost.
                let route = route(reader);
                assert!(!is_first || route.starts_with("page cache and local file"), "{route}");
                is_first = false;
            }
        }
    }
    // It left nothing behind in the cache.
    cache_only(&path, 0..1 << 20);
    let blocks = client.open_file(&path, OpenOptions::read()).expect("opened");
    for at in [0, 3 << 20] {
        let _ = read(&client, &mut queue, &blocks, at, BLOCKS_BYTES - at as usize);
    }
    assert_eq!(source(alpha), "disk", "the end is still not there");
}

/// Writers of all kinds, by turns, and readers of all kinds after each.
#[test]
fn readers_see_what_was_written_whichever_way() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let Pair { alpha, beta, .. } = Pair::start(&programs, directory.path());
    let path = directory.path().join("root/shared");
    std::fs::write(&path, vec![0; FILE_BYTES]).expect("written");
    let other = File::options().read(true).write(true).open(&path).expect("opened");
    let mut parties: Vec<_> = [(&alpha, Some("beta")), (&beta, None)]
        .into_iter()
        .map(|(daemon, peer)| {
            let (client, queue) = session(daemon);
            let options = OpenOptions::read_write();
            let handle = client.open_export(peer, "data", "shared", options).expect("it is there");
            (client, queue, handle)
        })
        .collect();
    let tells = tells(&beta);
    let (mut cached, seed) = (0, 26);
    let mut random = Random::new(seed);
    let mut expected = vec![0; FILE_BYTES];
    for round in 0..400_u32 {
        let unit = if random.chance(0.7) { PAGE as u64 } else { 1 };
        let length = (random.below(8) + 1) * unit;
        let at = random.below((FILE_BYTES as u64 - length) / unit + 1) * unit;
        let bytes = vec![round as u8; length as usize];
        let writer = random.below(3) as usize;
        match parties.get_mut(writer) {
            Some((client, queue, handle)) => {
                let mut buffer = client.allocate(bytes.len()).expect("memory");
                buffer.as_mut_slice().copy_from_slice(&bytes);
                queue.write(handle, at, buffer).expect("written");
            }
            None => other.write_all_at(&bytes, at).expect("written"),
        }
        expected[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        if random.chance(0.2) {
            drop_cached(&path);
        }
        let what = format!("seed {seed}, round {round}: {length} bytes at {at} by {writer}");
        for (client, queue, handle) in &mut parties {
            assert!(read(client, queue, handle, 0, FILE_BYTES) == expected, "{what}");
        }
        cached += u32::from(source(&beta) == "page cache");
        assert!(std::fs::read(&path).expect("read") == expected, "{what}, read by another");
    }
    assert!(!tells || (50..350).contains(&cached), "{cached} of 400 rounds read from the cache");
}

/// A file that a user of this machine shows the daemon by its descriptors.
#[test]
fn files_of_the_clients_own_are_no_exception() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    if !tells(&daemon) {
        return;
    }
    let path: &Path = &directory.path().join("own");
    std::fs::write(path, pattern(1 << 20)).expect("written");
    let (client, mut queue) = session(&daemon);
    let own = client.open_file(path, OpenOptions::read()).expect("opened");
    assert!(read(&client, &mut queue, &own, 0, 1 << 20) == pattern(1 << 20));
    assert_eq!(source(&daemon), "page cache");
    drop_cached(path);
    assert!(read(&client, &mut queue, &own, 0, 1 << 20) == pattern(1 << 20));
    assert_eq!(source(&daemon), "disk");
}
