//! The state of each page: pure, without a mapping or a network.
//!
//! ```text
//!           asked            installed                    taken for saving
//!  Absent ────────► Coming ──┬──────► Clean ◄──── saved ──────┐
//!    ▲ ▲              │      │          │ written             │
//!    │ └── dropped ───┘      │          ▼                     │
//!    │                       └──────► Dirty ─────────────► Saving
//!    └────── evicted ──── Clean         ▲                     │ written
//!                                       └───── saved ──── Rewritten
//! ```
//!
//! Only clean pages are evicted, so what is not saved cannot be lost; and a page is saved by one
//! put at a time, so an older one cannot overtake a newer. Which page is used the kernel does not
//! tell (there is no accessed bit for a process to see), so the order is that in which they came,
//! and a page that is written begins anew.

use std::collections::VecDeque;
use std::ops::Range;

/// The state of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Page {
    /// Not here: a thread that touches it waits.
    Absent,
    /// Part of a get, under way or landed. Still not here for the application.
    Coming,
    /// Equal to the other node's page when it was fetched or saved; protected.
    Clean,
    /// Written since it came.
    Dirty,
    /// On its way back; protected.
    Saving,
    /// On its way back, and written since it left.
    Rewritten,
    /// Lost: it could not be had, and a thread that touches it gets a signal.
    Lost,
}

impl Page {
    /// Whether the application can read it.
    pub(crate) fn is_resident(self) -> bool {
        matches!(self, Self::Clean | Self::Dirty | Self::Saving | Self::Rewritten)
    }
}

/// All pages of a mapping, and the order in which those that are here came.
#[derive(Debug)]
pub(crate) struct Pages {
    states: Vec<Page>,
    /// Each resident page once, the oldest first.
    order: VecDeque<u32>,
    clean: usize,
    dirty: usize,
    /// Resident pages at most.
    limit: usize,
}

impl Pages {
    pub(crate) fn new(count: u32, limit: usize) -> Self {
        let states = vec![Page::Absent; count as usize];
        let order = VecDeque::with_capacity(limit.min(count as usize));
        Self { states, order, clean: 0, dirty: 0, limit }
    }

    pub(crate) fn count(&self) -> u32 {
        self.states.len() as u32
    }

    pub(crate) fn get(&self, page: u32) -> Page {
        self.states[page as usize]
    }

    #[cfg(test)]
    fn resident(&self) -> usize {
        self.order.len()
    }

    /// How many more may be here.
    pub(crate) fn room(&self) -> usize {
        self.limit - self.order.len()
    }

    /// Whether so few could be evicted at once that it is time to save some.
    pub(crate) fn wants_saving(&self) -> bool {
        self.dirty > 0 && self.clean + self.room() < self.limit / 4
    }

    /// Whether nothing can go before something is saved.
    pub(crate) fn has_only_dirty(&self) -> bool {
        self.clean + self.room() == 0
    }

    fn set(&mut self, page: u32, from: &[Page], to: Page) {
        let place = &mut self.states[page as usize];
        assert!(from.contains(place), "page {page} is {place:?} and becomes {to:?}");
        for (count, state) in [(&mut self.clean, Page::Clean), (&mut self.dirty, Page::Dirty)] {
            *count -= usize::from(*place == state);
            *count += usize::from(to == state);
        }
        *place = to;
    }

    pub(crate) fn handle_asked(&mut self, pages: Range<u32>) {
        pages.for_each(|page| self.set(page, &[Page::Absent], Page::Coming));
    }

    pub(crate) fn handle_dropped(&mut self, pages: Range<u32>) {
        pages.for_each(|page| self.set(page, &[Page::Coming], Page::Absent));
    }

    pub(crate) fn handle_lost(&mut self, page: u32) {
        self.set(page, &[Page::Coming, Page::Absent], Page::Lost);
    }

    /// Takes pages that are here now; there was [`Self::room`].
    pub(crate) fn handle_installed(&mut self, pages: Range<u32>) {
        assert!(pages.len() <= self.room(), "more pages than the limit allows");
        for page in pages {
            self.set(page, &[Page::Coming], Page::Clean);
            self.order.push_back(page);
        }
    }

    /// Somebody writes to a page that is here.
    pub(crate) fn handle_written(&mut self, page: u32) {
        match self.get(page) {
            Page::Clean => self.set(page, &[Page::Clean], Page::Dirty),
            Page::Saving => self.set(page, &[Page::Saving], Page::Rewritten),
            // Two threads at once, of which one was told of first.
            state => {
                assert!(matches!(state, Page::Dirty | Page::Rewritten), "{state:?} is written")
            }
        }
    }

    /// The put of some pages ended. Those that failed are to be saved still.
    pub(crate) fn handle_saved(&mut self, pages: Range<u32>, well: bool) {
        for page in pages {
            let to = match (self.get(page), well) {
                (Page::Saving, true) => Page::Clean,
                _ => Page::Dirty,
            };
            self.set(page, &[Page::Saving, Page::Rewritten], to);
        }
    }

    /// Some clean pages that are to go, the oldest first, as runs of neighbours; they count as
    /// gone.
    pub(crate) fn poll_evict(&mut self, count: usize, runs: &mut Vec<Range<u32>>) {
        let mut left = count.min(self.clean);
        while left > 0 {
            // Some are clean, so this ends.
            let page = self.order.pop_front().expect("clean pages are resident");
            if self.get(page) != Page::Clean {
                self.order.push_back(page);
                continue;
            }
            self.set(page, &[Page::Clean], Page::Absent);
            left -= 1;
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                Some(run) if run.start == page + 1 => run.start = page,
                _ => runs.push(page..page + 1),
            }
        }
    }

    /// The oldest dirty page and its dirty neighbours behind it, at most so many, which count as
    /// being saved from now on. The other node gets what they have when they are protected.
    pub(crate) fn poll_save(&mut self, pages_max: u32) -> Option<Range<u32>> {
        if self.dirty == 0 {
            return None;
        }
        let oldest = self.order.iter().copied().find(|page| self.get(*page) == Page::Dirty)?;
        Some(self.save_from(oldest, pages_max))
    }

    /// Pages to save from the first dirty page at or behind `from`: for a sync that saves
    /// everything.
    pub(crate) fn poll_save_behind(&mut self, from: u32, pages_max: u32) -> Option<Range<u32>> {
        let states = &self.states[from as usize..];
        let behind = states.iter().position(|state| *state == Page::Dirty)?;
        Some(self.save_from(from + behind as u32, pages_max))
    }

    fn save_from(&mut self, first: u32, pages_max: u32) -> Range<u32> {
        let last = first.saturating_add(pages_max).min(self.count());
        let end = (first..last).find(|page| self.get(*page) != Page::Dirty).unwrap_or(last);
        (first..end).for_each(|page| self.set(page, &[Page::Dirty], Page::Saving));
        first..end
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Version numbers of a page's bytes, here and there.
    #[derive(Debug, Clone, Copy, Default)]
    struct Bytes {
        here: Option<u32>,
        there: u32,
        /// The last write of the application.
        last: u32,
        /// The version on its way.
        sent: Option<u32>,
    }

    #[derive(Debug, Clone)]
    enum Step {
        Read(u32),
        Write(u32),
        Evict(usize),
        Save(u32),
        Saved(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..COUNT).prop_map(Step::Read),
            (0..COUNT).prop_map(Step::Write),
            (1..5_usize).prop_map(Step::Evict),
            (1..5_u32).prop_map(Step::Save),
            any::<bool>().prop_map(Step::Saved),
        ]
    }

    const COUNT: u32 = 12;
    const LIMIT: usize = 6;

    proptest! {
        /// However pages come and go, the application reads what it wrote last.
        #[test]
        fn nothing_written_is_lost(steps in proptest::collection::vec(step(), 1..200)) {
            let mut pages = Pages::new(COUNT, LIMIT);
            let none = (0..COUNT).map(|it| (it, Bytes::default()));
        let mut bytes: HashMap<u32, Bytes> = none.collect();
            let mut saving: VecDeque<Range<u32>> = VecDeque::new();
            let mut version = 0;
            for step in steps {
                match step {
                    Step::Read(page) | Step::Write(page) => {
                        if pages.get(page) == Page::Absent {
                            if pages.room() == 0 {
                                continue;
                            }
                            pages.handle_asked(page..page + 1);
                            pages.handle_installed(page..page + 1);
                            let it = bytes.get_mut(&page).expect("all are there");
                            it.here = Some(it.there);
                        }
                        let it = bytes.get_mut(&page).expect("all are there");
                        prop_assert_eq!(it.here, Some(it.last), "page {}", page);
                        if let Step::Write(_) = step {
                            version += 1;
                            pages.handle_written(page);
                            (it.here, it.last) = (Some(version), version);
                        }
                    }
                    Step::Evict(count) => {
                        let mut runs = Vec::new();
                        pages.poll_evict(count, &mut runs);
                        for page in runs.into_iter().flatten() {
                            bytes.get_mut(&page).expect("all are there").here = None;
                        }
                    }
                    Step::Save(most) => {
                        if let Some(run) = pages.poll_save(most) {
                            prop_assert!(!run.is_empty() && run.len() <= most as usize);
                            for page in run.clone() {
                                let it = bytes.get_mut(&page).expect("all are there");
                                prop_assert!(it.sent.is_none(), "two puts of page {}", page);
                                it.sent = it.here;
                            }
                            saving.push_back(run);
                        }
                    }
                    Step::Saved(well) => {
                        if let Some(run) = saving.pop_front() {
                            for page in run.clone() {
                                let it = bytes.get_mut(&page).expect("all are there");
                                let sent = it.sent.take().expect("it was saved");
                                if well {
                                    it.there = sent;
                                }
                            }
                            pages.handle_saved(run, well);
                        }
                    }
                }
                let here = bytes.values().filter(|it| it.here.is_some()).count();
                prop_assert_eq!(pages.resident(), here);
                prop_assert!(here <= LIMIT);
                let dirty = |it: &Bytes| it.here.is_some_and(|here| here != it.there);
                let unsaved = bytes.values().filter(|it| dirty(it)).count();
                prop_assert!(unsaved <= LIMIT);
            }
        }
    }

    #[test]
    fn neighbours_are_evicted_and_saved_together() {
        let mut pages = Pages::new(10, 8);
        pages.handle_asked(2..8);
        pages.handle_installed(2..8);
        [4, 5, 7].into_iter().for_each(|page| pages.handle_written(page));
        assert_eq!(pages.poll_save(8), Some(4..6));
        assert_eq!(pages.poll_save_behind(0, 8), Some(7..8));
        assert_eq!(pages.poll_save(8), None);
        pages.handle_written(5);
        pages.handle_saved(4..6, true);
        assert_eq!([4, 5].map(|page| pages.get(page)), [Page::Clean, Page::Dirty]);
        let mut runs = Vec::new();
        pages.poll_evict(8, &mut runs);
        assert_eq!(runs, [2..5, 6..7]);
        assert_eq!(pages.resident(), 2);
    }
}
