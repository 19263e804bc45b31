//! Answers that come in pages: names of a directory, extents of a file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use piped_core::call::{Call, Entries, Extent, FileKind, NoCall, Stat};

use super::{CallError, Calls, LONG};

/// An answer in pages.
pub trait Pages: sealed::Pages {}

impl<P: sealed::Pages> Pages for P {}

pub(super) mod sealed {
    use super::{Call, NoCall};

    pub trait Pages {
        /// One of the things that the pages have.
        type Item;

        /// The call for the next page; `None` behind the last one.
        fn call(&self) -> Option<Call<'_>>;

        /// Takes a page in.
        fn handle_page(&mut self, page: &[u8]) -> Result<(), NoCall>;

        /// The next thing of the pages that are here.
        fn pop(&mut self) -> Option<Self::Item>;

        /// Ends the pages here.
        fn end(&mut self);
    }
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The name, without a slash.
    pub name: OsString,
    /// What it stands for.
    pub kind: FileKind,
    /// What is known of it, if that was asked for, and it was there still.
    pub stat: Option<Stat>,
}

/// Names of a directory, page by page: [`Calls::list`] without the calls, for loops that make
/// others in between.
#[derive(Debug)]
pub struct Names {
    path: OsString,
    stats: bool,
    next: Option<u64>,
    here: VecDeque<Name>,
}

impl Names {
    /// Names of the directory at `path`; with what is known of each, if `stats`.
    #[must_use]
    pub fn new(path: impl AsRef<Path>, stats: bool) -> Self {
        let path = path.as_ref().as_os_str().to_owned();
        Self { path, stats, next: Some(0), here: VecDeque::new() }
    }

    /// The next name; `None` behind the last one.
    ///
    /// # Errors
    /// See [`CallError`]. There are no more names then.
    pub fn next(&mut self, calls: &mut Calls<'_>) -> Result<Option<Name>, CallError> {
        next(self, calls)
    }
}

impl sealed::Pages for Names {
    type Item = Name;

    fn call(&self) -> Option<Call<'_>> {
        let path = self.path.as_bytes();
        self.next.map(|cookie| Call::List { path, cookie, stats: self.stats })
    }

    fn handle_page(&mut self, page: &[u8]) -> Result<(), NoCall> {
        let entries = Entries::parse(page)?;
        // A page without a name is no way to go on.
        self.next = entries.next().filter(|_| entries.iter().next().is_some());
        self.here.extend(entries.iter().map(|entry| Name {
            name: OsStr::from_bytes(entry.name).to_owned(),
            kind: entry.kind,
            stat: entry.stat,
        }));
        Ok(())
    }

    fn pop(&mut self) -> Option<Name> {
        self.here.pop_front()
    }

    fn end(&mut self) {
        self.next = None;
    }
}

/// Extents of a range of a file, page by page: [`Calls::extents`] without the calls.
#[derive(Debug)]
pub struct Extents {
    left: Range<u64>,
    here: VecDeque<Extent>,
}

impl Extents {
    /// Extents of a range.
    #[must_use]
    pub fn new(range: Range<u64>) -> Self {
        Self { left: range, here: VecDeque::new() }
    }

    /// The next extent; `None` behind the last one.
    ///
    /// # Errors
    /// See [`CallError`]. There are no more extents then.
    pub fn next(&mut self, calls: &mut Calls<'_>) -> Result<Option<Extent>, CallError> {
        next(self, calls)
    }
}

impl sealed::Pages for Extents {
    type Item = Extent;

    fn call(&self) -> Option<Call<'_>> {
        let Range { start, end } = self.left;
        let range = piped_core::call::Range { offset: start, length: end.saturating_sub(start) };
        (range.length > 0).then_some(Call::Extents { range })
    }

    fn handle_page(&mut self, page: &[u8]) -> Result<(), NoCall> {
        if !page.len().is_multiple_of(Extent::BYTES) {
            return Err(NoCall);
        }
        let before = self.left.start;
        for bytes in page.chunks_exact(Extent::BYTES) {
            let extent = Extent::parse(bytes)?;
            // In order and without gaps, or it would go on for ever, or skip something.
            let end = extent.offset.checked_add(extent.length).ok_or(NoCall)?;
            if extent.offset != self.left.start || extent.length == 0 || end > self.left.end {
                return Err(NoCall);
            }
            self.left.start = end;
            self.here.push_back(extent);
        }
        if self.left.start == before {
            // The file ends here.
            self.end();
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Extent> {
        self.here.pop_front()
    }

    fn end(&mut self) {
        self.left.start = self.left.end;
    }
}

/// Names or extents, from [`Calls::list`] and [`Calls::extents`]: an iterator that calls for a page
/// at a time. It ends behind its first error.
#[derive(Debug)]
pub struct Paged<'c, 'a, P> {
    calls: &'c mut Calls<'a>,
    pages: P,
}

impl<'c, 'a, P: Pages> Paged<'c, 'a, P> {
    pub(super) fn new(calls: &'c mut Calls<'a>, pages: P) -> Self {
        Self { calls, pages }
    }
}

impl<P: Pages> Iterator for Paged<'_, '_, P> {
    type Item = Result<P::Item, CallError>;

    fn next(&mut self) -> Option<Self::Item> {
        next(&mut self.pages, self.calls).transpose()
    }
}

/// The next thing of some pages, called for if it is not here.
fn next<P: Pages>(pages: &mut P, calls: &mut Calls<'_>) -> Result<Option<P::Item>, CallError> {
    loop {
        if let Some(item) = pages.pop() {
            return Ok(Some(item));
        }
        let Some(call) = pages.call() else { return Ok(None) };
        let page = calls.ask(&call, LONG, |page| Ok(page.to_vec()));
        let taken = page.and_then(|page| Ok(pages.handle_page(&page)?));
        if let Err(error) = taken {
            pages.end();
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use piped_core::call::{Entry, EntryWriter, ExtentKind};

    use super::sealed::Pages as _;
    use super::*;

    fn page(names: &[&[u8]], next: u64) -> Vec<u8> {
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
    fn names_come_page_by_page() {
        let mut names = Names::new("a/b", true);
        let Some(Call::List { path, cookie, stats }) = names.call() else { panic!("the first") };
        assert_eq!((path, cookie, stats), (&b"a/b"[..], 0, true));
        names.handle_page(&page(&[b"x", b"\xff"], 7)).expect("a page");
        assert!(matches!(names.call(), Some(Call::List { cookie: 7, .. })));
        names.handle_page(&page(&[b"y"], Entries::END)).expect("a page");
        assert!(names.call().is_none());
        let all: Vec<_> = std::iter::from_fn(|| names.pop()).map(|it| it.name).collect();
        assert_eq!(all, [OsString::from("x"), OsString::from_vec(vec![0xff]), "y".into()]);
        let mut stuck = Names::new("", false);
        stuck.handle_page(&page(&[], 7)).expect("a page");
        assert!(stuck.call().is_none(), "a page of nothing is the end");
        assert!(Names::new("", false).handle_page(b"short").is_err());
    }

    #[test]
    fn extents_are_in_order_and_end() {
        let extent = |offset, length| Extent { offset, length, kind: ExtentKind::Data };
        let page = |extents: &[Extent]| -> Vec<u8> {
            extents.iter().flat_map(|extent| extent.to_bytes()).collect()
        };
        let mut extents = Extents::new(10..100);
        extents.handle_page(&page(&[extent(10, 20), extent(30, 5)])).expect("a page");
        let Some(Call::Extents { range }) = extents.call() else { panic!("more") };
        assert_eq!((range.offset, range.length), (35, 65));
        for wrong in [extent(34, 5), extent(36, 5), extent(35, 0), extent(35, 66)] {
            let mut extents = Extents::new(35..100);
            assert!(extents.handle_page(&page(&[wrong])).is_err(), "{wrong:?}");
        }
        extents.handle_page(&[]).expect("the end of the file");
        assert!(extents.call().is_none());
        assert_eq!(std::iter::from_fn(|| extents.pop()).count(), 2);
        assert!(Extents::new(5..5).call().is_none());
    }
}
