//! Pages of an answer that lie are refused. Here, because the module itself is only inside Python.

#[path = "../src/page.rs"]
mod page;

use piped_client::call::{Entries, Entry, EntryWriter, Extent, ExtentKind, FileKind, Range};

fn listing(names: &[&[u8]], next: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let mut writer = EntryWriter::new(&mut bytes).expect("room");
    for name in names {
        assert!(writer.push(Entry { name, kind: FileKind::File, stat: None }));
    }
    let length = writer.finish(next);
    bytes.truncate(length);
    bytes
}

#[test]
fn names_that_are_paths_or_nothing_are_refused() {
    let good: [&[u8]; 4] = [b"x", b"...", b".hidden", b"\xff\n"];
    let (names, next) = page::names(&listing(&good, 7)).expect("names");
    assert_eq!(names.iter().map(|(name, ..)| &name[..]).collect::<Vec<_>>(), good);
    assert_eq!(next, Some(7));
    let bad: [&[u8]; 8] = [b"", b".", b"..", b"/", b"/etc", b"a/b", b"a\0", b"../x"];
    for name in bad {
        assert!(page::names(&listing(&[b"x", name], 7)).is_err(), "{name:?}");
    }
    assert_eq!(page::names(&listing(&[], 7)).expect("the end").1, None);
    assert_eq!(page::names(&listing(&[b"x"], Entries::END)).expect("the end").1, None);
    assert!(page::names(b"short").is_err());
}

fn extent(offset: u64, length: u64) -> Extent {
    Extent { offset, length, kind: ExtentKind::Data }
}

fn page_of(extents: &[Extent]) -> Vec<u8> {
    extents.iter().flat_map(|extent| extent.to_bytes()).collect()
}

#[test]
fn extents_follow_each_other_inside_the_range() {
    let range = Range { offset: 10, length: 90 };
    let some = [extent(10, 20), extent(30, 5)];
    assert_eq!(page::extents(&page_of(&some), range).ok(), Some((some.to_vec(), Some(35))));
    let all = [extent(10, 20), extent(30, 70)];
    assert_eq!(page::extents(&page_of(&all), range).ok(), Some((all.to_vec(), None)));
    assert_eq!(page::extents(&[], range).ok(), Some((Vec::new(), None)));
    let wrong = [extent(29, 5), extent(31, 5), extent(30, 0), extent(30, 71), extent(30, u64::MAX)];
    for second in wrong {
        assert!(page::extents(&page_of(&[some[0], second]), range).is_err(), "{second:?}");
    }
    assert!(page::extents(&page_of(&some)[1..], range).is_err());
    let last = Range { offset: u64::MAX - 4, length: 9 };
    assert!(page::extents(&page_of(&[extent(u64::MAX - 4, 9)]), last).is_err());
}
