//! The segments of a node, and rules for which bytes may be touched when.
//!
//! Real memory forgives: a byte written by two owners looks like a byte. Here every operation in
//! flight pins its spans. Windows can guard a client's segment; a window is open only while a
//! request owns the buffer. A touch of bytes that belong to another owner panics with both names.

use std::collections::BTreeMap;

use piped_core::ids::SegmentId;
use piped_core::io::Span;

/// Number of an operation in flight, unique in a kernel's life (tokens may come again).
pub(super) type OpKey = u64;

/// A time during which the engine may touch a piece of a guarded segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowId(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    Reads,
    Writes,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    segments: BTreeMap<SegmentId, Segment>,
    segments_made: u32,
    windows_made: u64,
}

#[derive(Debug)]
struct Segment {
    bytes: Vec<u8>,
    /// How many drivers have it, and release it.
    holders: u32,
    pins: Vec<Pin>,
    guarded: bool,
    sharing: Sharing,
    windows: Vec<Window>,
    /// Its memory can vanish, and some of it has.
    loose: bool,
    torn: bool,
}

/// Which operations at a time may touch the same bytes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Any number that read.
    Readers,
    /// Any number that read, beside one that writes.
    OneWriter,
    /// Any number of both.
    All,
}

#[derive(Debug)]
struct Pin {
    op: OpKey,
    start: u64,
    end: u64,
    touch: Touch,
}

#[derive(Debug)]
struct Window {
    id: WindowId,
    start: u64,
    end: u64,
    /// The offset from which on, up to `end`, the engine may write; equal to `end` for a source
    /// buffer.
    writable_from: u64,
}

impl Memory {
    pub(super) fn add(&mut self, length: u64) -> SegmentId {
        let id = SegmentId(self.segments_made);
        self.segments_made += 1;
        let segment = Segment {
            bytes: vec![0; length as usize],
            holders: 1,
            pins: Vec::new(),
            guarded: false,
            sharing: Sharing::Readers,
            windows: Vec::new(),
            loose: false,
            torn: false,
        };
        self.segments.insert(id, segment);
        id
    }

    pub(super) fn ids(&self) -> Vec<SegmentId> {
        self.segments.keys().copied().collect()
    }

    pub(super) fn remove(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else {
            panic!("sim: release of {id:?}, which does not exist or was released before")
        };
        segment.holders -= 1;
        if segment.holders > 0 {
            return;
        }
        let Some(segment) = self.segments.remove(&id) else { return };
        assert!(
            segment.pins.is_empty(),
            "sim: release of {id:?} while operations use it: {:?}",
            segment.pins
        );
    }

    /// Bytes without a check of rights: for the driver itself.
    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        let segment = self.segment(span, "access");
        &segment.bytes[span.offset as usize..(span.offset + u64::from(span.length)) as usize]
    }

    pub(super) fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        self.segment(span, "access");
        let segment = self.segments.get_mut(&span.segment).expect("looked up above");
        &mut segment.bytes[span.offset as usize..(span.offset + u64::from(span.length)) as usize]
    }

    /// Checks an access of the engine or of a beginning operation: bounds, windows, operations.
    pub(super) fn check(&self, span: Span, touch: Touch, who: &dyn std::fmt::Debug) {
        let segment = self.segment(span, "access");
        let (start, end) = (span.offset, span.offset + u64::from(span.length));
        for pin in &segment.pins {
            let both_write = touch == Touch::Writes && pin.touch == Touch::Writes;
            let both_read = touch == Touch::Reads && pin.touch == Touch::Reads;
            let peaceful = match segment.sharing {
                Sharing::Readers => both_read,
                Sharing::OneWriter => !both_write,
                Sharing::All => true,
            };
            assert!(
                peaceful || pin.end <= start || end <= pin.start,
                "sim: {who:?} {touch:?} {span:?} while operation #{} {:?} bytes {}..{} of it",
                pin.op,
                pin.touch,
                pin.start,
                pin.end
            );
        }
        if segment.guarded {
            let open = segment.windows.iter().any(|window| match touch {
                Touch::Reads => window.start <= start && end <= window.end,
                Touch::Writes => window.writable_from <= start && end <= window.end,
            });
            assert!(
                open,
                "sim: {who:?} {touch:?} {span:?}, which no request in flight owns (or whose bytes \
                 are below the watermark); open windows: {:?}",
                segment.windows
            );
        }
    }

    pub(super) fn pin(&mut self, op: OpKey, span: Span, touch: Touch) {
        self.check(span, touch, &format_args!("operation #{op}"));
        let segment = self.segments.get_mut(&span.segment).expect("checked above");
        let (start, end) = (span.offset, span.offset + u64::from(span.length));
        segment.pins.push(Pin { op, start, end, touch });
    }

    pub(super) fn unpin(&mut self, op: OpKey, id: SegmentId) {
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.pins.retain(|pin| pin.op != op);
        }
    }

    pub(super) fn guard(&mut self, id: SegmentId) {
        self.segments.get_mut(&id).expect("guards are set on segments that exist").guarded = true;
    }

    /// One more driver has a segment.
    pub(super) fn hold(&mut self, id: SegmentId) {
        self.segments.get_mut(&id).expect("a segment that was made").holders += 1;
    }

    pub(super) fn share(&mut self, id: SegmentId) {
        self.set_sharing(id, Sharing::OneWriter);
    }

    pub(super) fn loosen(&mut self, id: SegmentId) {
        self.segments.get_mut(&id).expect("a segment that was made").loose = true;
    }

    /// Takes the memory of a loose segment away: it reads as zeros, and what is written is lost.
    pub(super) fn tear(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("a segment that was made");
        assert!(segment.loose, "sim: {id:?} is sealed");
        segment.torn = true;
        segment.bytes.fill(0);
    }

    pub(super) fn is_loose(&self, id: SegmentId) -> bool {
        self.segments.get(&id).is_some_and(|segment| segment.loose)
    }

    pub(super) fn is_torn(&self, id: SegmentId) -> bool {
        self.segments.get(&id).is_some_and(|segment| segment.torn)
    }

    pub(super) fn expose(&mut self, id: SegmentId) {
        self.set_sharing(id, Sharing::All);
    }

    fn set_sharing(&mut self, id: SegmentId, sharing: Sharing) {
        self.segments.get_mut(&id).expect("segments that exist are shared").sharing = sharing;
    }

    pub(super) fn is_shared(&self, id: SegmentId) -> bool {
        self.segments.get(&id).is_some_and(|segment| segment.sharing != Sharing::Readers)
    }

    pub(super) fn open_window(&mut self, span: Span, writable: bool) -> WindowId {
        self.segment(span, "window");
        self.windows_made += 1;
        let id = WindowId(self.windows_made);
        let (start, end) = (span.offset, span.offset + u64::from(span.length));
        let window = Window { id, start, end, writable_from: if writable { start } else { end } };
        self.segments.get_mut(&span.segment).expect("looked up above").windows.push(window);
        id
    }

    /// Marks bytes of the window below `bytes` as final.
    pub(super) fn raise_window(&mut self, id: WindowId, bytes: u64) {
        for segment in self.segments.values_mut() {
            for window in segment.windows.iter_mut().filter(|window| window.id == id) {
                let from = (window.start + bytes).max(window.writable_from).min(window.end);
                for pin in segment.pins.iter().filter(|pin| pin.touch == Touch::Writes) {
                    assert!(
                        pin.end <= window.start || from <= pin.start,
                        "sim: bytes up to {from} are said to be final while {pin:?} writes them"
                    );
                }
                window.writable_from = from;
            }
        }
    }

    pub(super) fn close_window(&mut self, id: WindowId) {
        for segment in self.segments.values_mut() {
            let Some(place) = segment.windows.iter().position(|window| window.id == id) else {
                continue;
            };
            let closed = segment.windows.swap_remove(place);
            for pin in &segment.pins {
                assert!(
                    pin.end <= closed.start || closed.end <= pin.start,
                    "sim: the buffer {}..{} was given back while {pin:?} uses it",
                    closed.start,
                    closed.end
                );
            }
        }
    }

    fn segment(&self, span: Span, what: &str) -> &Segment {
        let segment = self
            .segments
            .get(&span.segment)
            .unwrap_or_else(|| panic!("sim: {what} to {span:?}: no such segment"));
        let end = span.offset.checked_add(u64::from(span.length));
        assert!(
            end.is_some_and(|end| end <= segment.bytes.len() as u64),
            "sim: {what} to {span:?} beyond the segment's {} bytes",
            segment.bytes.len()
        );
        segment
    }
}
