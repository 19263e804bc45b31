//! Segments that left an arena while something used them, and how much of that is left.
//!
//! Who uses a segment is found by a look at everything under way, so there is one such look when
//! the segment leaves, and the next when as many users have ended as were found.

use std::collections::BTreeMap;

use piped_core::ids::{SegmentId, SessionId};

/// All segments without a number that something may still use.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    segments: BTreeMap<SegmentId, Left>,
}

#[derive(Debug)]
struct Left {
    session: SessionId,
    /// Users that were found and have not ended.
    uses: u32,
}

impl Leaving {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The session whose arena a segment has left.
    pub(super) fn session_of(&self, segment: SegmentId) -> Option<SessionId> {
        self.segments.get(&segment).map(|left| left.session)
    }

    /// So many use a segment of a session. Whether it may go: those were none.
    pub(super) fn count(&mut self, session: SessionId, segment: SegmentId, uses: u32) -> bool {
        if uses == 0 {
            self.segments.remove(&segment);
        } else {
            self.segments.insert(segment, Left { session, uses });
        }
        uses == 0
    }

    /// A user of a segment has ended. The segment's session, if no other was found: then it is time
    /// to look again.
    pub(super) fn end_use(&mut self, segment: SegmentId) -> Option<SessionId> {
        let left = self.segments.get_mut(&segment)?;
        left.uses = left.uses.saturating_sub(1);
        (left.uses == 0).then_some(left.session)
    }

    /// Takes out the segments of a session.
    pub(super) fn take_of(&mut self, session: SessionId) -> impl Iterator<Item = SegmentId> {
        self.segments.extract_if(.., move |_, left| left.session == session).map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: SessionId = SessionId(3);
    const SEGMENT: SegmentId = SegmentId(5);

    #[test]
    fn all_is_looked_at_when_as_many_have_ended_as_were_found_and_not_before() {
        let mut leaving = Leaving::default();
        assert!(leaving.count(OWNER, SEGMENT, 0) && leaving.is_empty(), "nothing uses it");
        assert!(!leaving.count(OWNER, SEGMENT, 100));
        let looks = (0..100).filter(|_| leaving.end_use(SEGMENT).is_some()).count();
        assert_eq!(looks, 1, "one look at the end");
        // One more was found.
        assert!(!leaving.count(OWNER, SEGMENT, 1));
        assert_eq!(leaving.end_use(SegmentId(6)), None, "another one");
        assert_eq!(leaving.end_use(SEGMENT), Some(OWNER));
        assert!(leaving.count(OWNER, SEGMENT, 0));
        assert_eq!((leaving.end_use(SEGMENT), leaving.is_empty()), (None, true));
    }

    #[test]
    fn a_session_that_goes_takes_its_own() {
        let mut leaving = Leaving::default();
        for (session, segment) in [(3, 1), (4, 2), (3, 7)] {
            leaving.count(SessionId(session), SegmentId(segment), 1);
        }
        assert_eq!(leaving.take_of(OWNER).collect::<Vec<_>>(), [SegmentId(1), SegmentId(7)]);
        assert_eq!(leaving.session_of(SegmentId(1)), None);
        assert_eq!(leaving.session_of(SegmentId(2)), Some(SessionId(4)));
    }
}
