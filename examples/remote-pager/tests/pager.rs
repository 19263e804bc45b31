//! Mappings of a region and of a file of another node, with real daemons.
#![forbid(unsafe_code)]

mod support;

use std::fs;

use piped_client::OpenOptions;
use remote_pager::{MapError, Options, PAGE, Pager};
use support::{random, scene, sorted};
use system_tests::process::{BLOCKS_BYTES, pattern};

const MIB: usize = 1 << 20;

fn options() -> Options {
    Options::new().user_mode_only().resident_bytes(MIB)
}

fn sort(bytes: &mut [u8]) {
    let (records, _) = bytes.as_chunks_mut::<8>();
    records.sort_unstable_by_key(|it| u64::from_le_bytes(*it));
}

#[test]
fn what_is_larger_than_the_limit_is_sorted_in_place() {
    // No whole number of pages, and no whole number of records.
    let bytes = random(6 * MIB + 2003);
    let Some(scene) = scene(&bytes) else { return };
    let options = options().writable();
    let mut pager = Pager::map(&scene.client, &scene.region, options).expect("mapped");
    sort(pager.bytes_mut().expect("writable"));
    let counts = pager.counts();
    assert!(counts.evicted as usize >= 5 * MIB / PAGE, "{counts:?}");
    assert!(counts.saved > 0, "eviction saves what was written: {counts:?}");
    pager.sync().expect("saved");
    let expected = sorted(&bytes);
    assert!(scene.there() == expected, "what beta has");
    assert!(pager.bytes() == expected, "what the mapping has");
    assert_eq!(pager.failure(), None);
    let counts = pager.close().expect("saved");
    assert_eq!(counts.lost, 0);
}

#[test]
fn a_drop_saves_too() {
    let Some(scene) = scene(&random(MIB)) else { return };
    let mut pager = Pager::map(&scene.client, &scene.region, options().writable()).expect("mapped");
    pager.bytes_mut().expect("writable")[5 * PAGE..][..3].copy_from_slice(b"new");
    drop(pager);
    assert_eq!(&scene.there()[5 * PAGE..][..3], b"new");
}

#[test]
fn a_binary_search_touches_few_pages_and_a_scan_fetches_ahead() {
    let bytes = sorted(&random(8 * MIB));
    let Some(scene) = scene(&bytes) else { return };
    let pager = Pager::map(&scene.client, &scene.region, options()).expect("mapped");
    let (records, _) = pager.bytes().as_chunks::<8>();
    let key = u64::from_le_bytes(records[123_456]);
    let found = records.binary_search_by_key(&key, |it| u64::from_le_bytes(*it));
    assert_eq!(found, Ok(123_456));
    let counts = pager.counts();
    // 20 steps, of which the last 9 are in one page; neighbours near the end look like a stream.
    assert!(counts.installed <= 24, "{counts:?}");

    assert!(pager.bytes() == bytes, "a scan");
    let counts = pager.counts();
    let pages = bytes.len() / PAGE;
    assert!(counts.installed as usize >= pages - 32, "{counts:?}");
    assert!(counts.ahead as usize >= pages * 9 / 10, "nearly all of them came ahead: {counts:?}");
    assert!((counts.faults as usize) < pages / 8, "a fault for each strip: {counts:?}");
}

#[test]
fn backwards_is_a_direction_too() {
    let bytes = random(2 * MIB);
    let Some(scene) = scene(&bytes) else { return };
    let pager = Pager::map(&scene.client, &scene.region, options()).expect("mapped");
    assert!(pager.bytes().iter().rev().eq(bytes.iter().rev()));
    let counts = pager.counts();
    assert!(counts.ahead as usize >= 2 * MIB / PAGE - 16, "{counts:?}");
}

#[test]
fn without_strips_every_page_is_a_get_of_its_own() {
    let bytes = random(MIB / 2);
    let Some(scene) = scene(&bytes) else { return };
    let options = options().strip_bytes_max(0);
    let pager = Pager::map(&scene.client, &scene.region, options).expect("mapped");
    assert!(pager.bytes() == bytes);
    let counts = pager.counts();
    assert_eq!((counts.gets, counts.ahead), (MIB as u64 / 2 / PAGE as u64, 0), "{counts:?}");
}

#[test]
fn many_threads_write_at_once_and_nothing_is_lost() {
    let bytes = random(4 * MIB);
    let Some(scene) = scene(&bytes) else { return };
    let options = options().writable().resident_bytes(64 * PAGE);
    let mut pager = Pager::map(&scene.client, &scene.region, options).expect("mapped");
    let mapped = pager.bytes_mut().expect("writable");
    std::thread::scope(|scope| {
        // Parts that share pages at their edges.
        for part in mapped.chunks_mut(100_003) {
            scope.spawn(|| part.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1)));
        }
    });
    pager.close().expect("saved");
    let expected: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(1)).collect();
    assert!(scene.there() == expected);
}

#[test]
fn two_mappings_see_each_others_writes_after_sync_and_refresh() {
    let Some(scene) = scene(&random(MIB)) else { return };
    let map = || Pager::map(&scene.client, &scene.region, options().writable()).expect("mapped");
    let (mut one, mut other) = (map(), map());
    let at = 17 * PAGE + 5;
    let before = other.bytes()[at];
    let written = before.wrapping_add(1);
    // Pages of the strip ahead are as old as those that are here.
    let beside = other.bytes()[at + PAGE];
    one.bytes_mut().expect("writable")[at..at + 2 * PAGE].fill(written);
    assert_eq!(other.bytes()[at], before, "nobody was told");
    one.sync().expect("saved");
    assert_eq!(other.bytes()[at + PAGE], beside, "it has its page still");
    other.refresh().expect("nothing to save");
    assert!(other.bytes()[at..at + 2 * PAGE].iter().all(|byte| *byte == written));
    // And back.
    other.bytes_mut().expect("writable")[at] = before;
    other.sync().expect("saved");
    one.refresh().expect("nothing to save");
    assert_eq!(one.bytes()[at], before);
}

/// Strips that were on their way when it was asked to look anew carry what was there before.
#[test]
fn strips_on_their_way_across_a_refresh_are_not_shown() {
    let Some(scene) = scene(&vec![0; 2 * MIB]) else { return };
    let export = &scene.owner.as_ref().expect("there").1;
    let mut pager = Pager::map(&scene.client, &scene.region, options()).expect("mapped");
    for generation in 1..=60 {
        // A scan that has gone so far has strips on their way behind it.
        let pages = 8 + usize::from(generation) * 7 % 64;
        let first = usize::from(generation) * 11 % 256;
        let scanned = &pager.bytes()[first * PAGE..][..pages * PAGE];
        assert!(scanned.iter().step_by(PAGE).all(|byte| *byte == generation - 1), "as it was");
        export.write_at(0, &vec![generation; 2 * MIB]).expect("inside");
        pager.refresh().expect("nothing to save");
        let behind = &pager.bytes()[first * PAGE..];
        let old = behind.iter().step_by(PAGE).position(|byte| *byte != generation);
        assert_eq!(old, None, "pages behind page {first} in generation {generation}");
    }
}

#[test]
fn a_file_is_mapped_like_a_region_and_what_is_written_is_in_it() {
    let Some(scene) = scene(&[1]) else { return };
    let open = OpenOptions::read_write();
    let file = scene.client.open_export(Some("beta"), "data", "blocks", open).expect("opened");
    let options = options().writable().durable().resident_bytes(64 * PAGE);
    let mut pager = Pager::map(&scene.client, &file, options).expect("mapped");
    let mut expected = pattern(BLOCKS_BYTES);
    let bytes = pager.bytes_mut().expect("writable");
    assert!(bytes == expected);
    bytes.reverse();
    expected.reverse();
    pager.close().expect("saved");
    let path = scene.directory.path().join("root/blocks");
    assert!(fs::read(path).expect("there") == expected);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    let Some(scene) = scene(&random(MIB)) else { return };
    let map = |options| Pager::map(&scene.client, &scene.region, options);
    let error = map(options().resident_bytes(PAGE)).expect_err("too little");
    assert!(matches!(error, MapError::Options(text) if text.contains("64 pages")), "{error}");
    let mut pager = map(options()).expect("mapped");
    assert!(pager.bytes_mut().is_none(), "for reading only");
    let open = OpenOptions::read_write().create(true);
    let empty = scene.client.open_export(Some("beta"), "data", "empty", open).expect("made");
    let error = Pager::map(&scene.client, &empty, options()).expect_err("nothing");
    assert!(error.to_string().contains("empty"), "{error}");
}

/// A system call that is handed memory of the mapping is served like everybody, where that is
/// permitted.
#[test]
fn the_kernel_can_touch_the_mapping_too() {
    if let Err(error) = remote_pager::probe(false) {
        eprintln!("skipped: {error}");
        return;
    }
    let bytes = random(MIB);
    let Some(scene) = scene(&bytes) else { return };
    let options = Options::new().writable().resident_bytes(64 * PAGE);
    let mut pager = Pager::map(&scene.client, &scene.region, options).expect("mapped");
    let path = scene.directory.path().join("copy");
    fs::write(&path, pager.bytes()).expect("write(2) reads the mapping");
    assert!(fs::read(&path).expect("written") == bytes);
    fs::write(&path, &bytes[MIB / 2..]).expect("written");
    let mut file = fs::File::open(&path).expect("there");
    let half = &mut pager.bytes_mut().expect("writable")[..MIB / 2];
    std::io::Read::read_exact(&mut file, half).expect("read(2) writes the mapping");
    pager.close().expect("saved");
    assert!(scene.there()[..MIB / 2] == bytes[MIB / 2..]);
}
