//! Streams: which threads read in order, and how far ahead of them it pays to fetch. Pure.
//!
//! A stream is begun by a fault beside a recent one. From then on its strips are asked for ahead of
//! it, and because none of them is installed before it is touched, the fault on a strip's first
//! page is how the pager learns where the application is. That costs one short fault for each
//! strip, and no page that nobody wants takes another's place.
//!
//! Strips double while the application goes on. How many are ahead is measured: one more when the
//! application had to wait for its strip, one fewer when for a while all of them were there long
//! before. So a slow reader holds little memory, and for a fast one the wire is never idle.

use std::ops::Range;

use crate::limits::{RECENT_MAX, STREAMS_MAX, STRIP_PAGES_FIRST, TOUCHES_TO_SHRINK};

/// Names a stream, and no later one in the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamId {
    place: usize,
    born: u64,
}

/// Which way an application goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

#[derive(Debug)]
struct Stream {
    born: u64,
    /// When a strip of it was last touched, in touches of all streams.
    used: u64,
    way: Way,
    /// The first page nobody asked for yet; none at the end of the mapping.
    next: Option<u32>,
    /// Pages of the next strip.
    strip_pages: u32,
    /// Strips that are to be ahead.
    depth: usize,
    /// Touches since the application last waited, or the depth changed.
    idle_touches: u32,
}

/// How large it may get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows {
    /// Pages of the longest strip.
    pub(crate) strip_pages_max: u32,
    /// Strips ahead of one stream at most.
    pub(crate) depth_max: usize,
}

#[derive(Debug)]
pub(crate) struct Streams {
    windows: Windows,
    /// Pages of the mapping.
    count: u32,
    streams: [Option<Stream>; STREAMS_MAX],
    recent: [Option<u32>; RECENT_MAX],
    recent_next: usize,
    ticks: u64,
}

impl Streams {
    pub(crate) fn new(count: u32, windows: Windows) -> Self {
        let streams = [const { None }; STREAMS_MAX];
        Self { windows, count, streams, recent: [None; RECENT_MAX], recent_next: 0, ticks: 0 }
    }

    /// A fault on a page that nobody had asked for. The stream that it goes on or begins, and the
    /// one that makes room for it.
    pub(crate) fn handle_fault(&mut self, page: u32) -> (Option<StreamId>, Option<StreamId>) {
        self.ticks += 1;
        if self.windows.strip_pages_max == 0 {
            return (None, None);
        }
        // A stream that had nothing ahead, or could not have it.
        for place in 0..STREAMS_MAX {
            if let Some(stream) = &mut self.streams[place]
                && stream.next == Some(page)
            {
                stream.used = self.ticks;
                stream.next = step(stream.way, page, 1, self.count);
                return (Some(StreamId { place, born: stream.born }), None);
            }
        }
        let beside = |way| {
            let before = match way {
                Way::Up => page.checked_sub(1),
                Way::Down => Some(page + 1),
            };
            before.is_some_and(|before| self.recent.contains(&Some(before)))
        };
        let Some(way) = [Way::Up, Way::Down].into_iter().find(|way| beside(*way)) else {
            self.recent[self.recent_next] = Some(page);
            self.recent_next = (self.recent_next + 1) % RECENT_MAX;
            return (None, None);
        };
        let (begun, ended) = self.begin(page, way);
        (Some(begun), ended)
    }

    fn begin(&mut self, page: u32, way: Way) -> (StreamId, Option<StreamId>) {
        let age = |stream: &Option<Stream>| stream.as_ref().map_or(0, |stream| stream.used);
        let place =
            (0..STREAMS_MAX).min_by_key(|place| age(&self.streams[*place])).expect("not empty");
        let stream = Stream {
            born: self.ticks,
            used: self.ticks,
            way,
            next: step(way, page, 1, self.count),
            strip_pages: STRIP_PAGES_FIRST.min(self.windows.strip_pages_max),
            depth: 1,
            idle_touches: 0,
        };
        let ended = self.streams[place].replace(stream);
        let ended = ended.map(|stream| StreamId { place, born: stream.born });
        (StreamId { place, born: self.ticks }, ended)
    }

    /// The application came to a strip; `waits`: before its bytes did.
    pub(crate) fn handle_touch(&mut self, id: StreamId, waits: bool) {
        self.ticks += 1;
        let (ticks, windows) = (self.ticks, self.windows);
        let Some(stream) = self.find(id) else { return };
        stream.used = ticks;
        stream.strip_pages = (stream.strip_pages * 2).min(windows.strip_pages_max);
        if waits {
            stream.depth = (stream.depth + 1).min(windows.depth_max);
            stream.idle_touches = 0;
        } else {
            stream.idle_touches += 1;
            if stream.idle_touches >= TOUCHES_TO_SHRINK {
                stream.depth = (stream.depth - 1).max(1);
                stream.idle_touches = 0;
            }
        }
    }

    /// The next strip of a stream that has `ahead` of them; `absent` says which pages can be asked
    /// for.
    pub(crate) fn poll_strip(
        &mut self,
        id: StreamId,
        ahead: usize,
        absent: impl Fn(u32) -> bool,
    ) -> Option<Range<u32>> {
        let count = self.count;
        let stream = self.find(id)?;
        if ahead >= stream.depth {
            return None;
        }
        // What is here already is passed over, but not for ever.
        let mut first = stream.next?;
        let mut passed = 0;
        while !absent(first) {
            passed += 1;
            if passed > stream.strip_pages {
                return None;
            }
            first = step(stream.way, first, 1, count)?;
        }
        let mut pages = 1;
        let mut last = first;
        while pages < stream.strip_pages
            && let Some(page) = step(stream.way, last, 1, count)
            && absent(page)
        {
            last = page;
            pages += 1;
        }
        stream.next = step(stream.way, last, 1, count);
        Some(first.min(last)..first.max(last) + 1)
    }

    /// The stream that was used longest ago, but for `not`, among those that `has` something.
    pub(crate) fn oldest(&self, not: StreamId, has: impl Fn(StreamId) -> bool) -> Option<StreamId> {
        let streams = self.streams.iter().enumerate().filter_map(|(place, stream)| {
            let stream = stream.as_ref()?;
            Some((stream.used, StreamId { place, born: stream.born }))
        });
        let others = streams.filter(|(_, id)| *id != not && has(*id));
        others.min_by_key(|(used, _)| *used).map(|(_, id)| id)
    }

    fn find(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.streams[id.place].as_mut().filter(|stream| stream.born == id.born)
    }
}

fn step(way: Way, page: u32, pages: u32, count: u32) -> Option<u32> {
    match way {
        Way::Up => page.checked_add(pages).filter(|page| *page < count),
        Way::Down => page.checked_sub(pages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { strip_pages_max: 16, depth_max: 3 };

    fn streams() -> Streams {
        Streams::new(1000, WINDOWS)
    }

    #[test]
    fn two_neighbours_make_a_stream_either_way_and_far_ones_none() {
        let mut streams = streams();
        for page in [10, 500, 30, 700] {
            assert_eq!(streams.handle_fault(page), (None, None));
        }
        let (up, _) = streams.handle_fault(11);
        let (down, _) = streams.handle_fault(699);
        assert_eq!(streams.poll_strip(up.expect("begun"), 0, |_| true), Some(12..16));
        assert_eq!(streams.poll_strip(down.expect("begun"), 0, |_| true), Some(695..699));
    }

    #[test]
    fn strips_grow_while_they_are_used_and_depth_by_waiting_only() {
        let mut streams = streams();
        streams.handle_fault(0);
        let id = streams.handle_fault(1).0.expect("begun");
        let strip = |streams: &mut Streams, ahead| streams.poll_strip(id, ahead, |_| true);
        assert_eq!(strip(&mut streams, 0), Some(2..6));
        assert_eq!(strip(&mut streams, 1), None, "one ahead at first");
        streams.handle_touch(id, true);
        assert_eq!(strip(&mut streams, 0), Some(6..14));
        assert_eq!(strip(&mut streams, 1), Some(14..22));
        for _ in 0..5 {
            streams.handle_touch(id, true);
        }
        assert_eq!(strip(&mut streams, 2), Some(22..38), "16 pages at most");
        assert_eq!(strip(&mut streams, 3), None, "three ahead at most");
        for _ in 0..3 * TOUCHES_TO_SHRINK {
            streams.handle_touch(id, false);
        }
        assert_eq!(strip(&mut streams, 1), None, "one ahead is enough again");
    }

    #[test]
    fn what_is_here_is_passed_over_and_the_end_is_the_end() {
        let mut streams = streams();
        streams.handle_fault(992);
        let id = streams.handle_fault(993).0.expect("begun");
        assert_eq!(streams.poll_strip(id, 0, |page| page > 995), Some(996..1000));
        assert_eq!(streams.poll_strip(id, 0, |_| true), None);
    }

    #[test]
    fn the_stream_that_was_used_longest_ago_makes_room() {
        let mut streams = streams();
        let mut ids = Vec::new();
        for number in 0..STREAMS_MAX as u32 {
            streams.handle_fault(number * 100);
            ids.push(streams.handle_fault(number * 100 + 1).0.expect("begun"));
        }
        streams.handle_touch(ids[0], false);
        assert_eq!(streams.oldest(ids[2], |_| true), Some(ids[1]));
        assert_eq!(streams.oldest(ids[2], |id| id == ids[2]), None);
        streams.handle_fault(950);
        let (begun, ended) = streams.handle_fault(951);
        assert!(begun.is_some());
        assert_eq!(ended, Some(ids[1]));
        assert_eq!(streams.poll_strip(ids[1], 0, |_| true), None, "it is gone");
    }

    #[test]
    fn without_strips_nothing_is_fetched_ahead() {
        let windows = Windows { strip_pages_max: 0, depth_max: 1 };
        let mut streams = Streams::new(10, windows);
        streams.handle_fault(0);
        assert_eq!(streams.handle_fault(1), (None, None));
    }
}
