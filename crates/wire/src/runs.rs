//! Spans of a send: joined where they touch, and cut where the kernel has taken some.

use piped_core::io::{Span, Spans};

/// The part of `spans` behind its first `skip` bytes.
pub(super) fn behind(spans: &Spans, skip: u64) -> Spans {
    if skip == 0 {
        return *spans;
    }
    let mut skip = skip;
    spans
        .as_slice()
        .iter()
        .filter_map(|span| {
            // At most the span's own length, which is a u32.
            let cut = skip.min(u64::from(span.length)) as u32;
            skip -= u64::from(cut);
            (cut < span.length).then(|| span.part(cut, span.length - cut))
        })
        .collect()
}

/// Spans under construction; a span that begins where the last one ends joins it.
#[derive(Debug, Default)]
pub(super) struct Runs {
    spans: Spans,
    last: Option<Span>,
    pub(super) bytes: u64,
}

impl Runs {
    /// Whether a header and a payload fit, if neither joins the last span.
    pub(super) fn has_room_for_frame(&self) -> bool {
        let used = self.spans.as_slice().len() + usize::from(self.last.is_some());
        used + 2 <= piped_core::io::SPANS_PER_OP_MAX
    }

    pub(super) fn push(&mut self, span: Span) {
        self.bytes += u64::from(span.length);
        if let Some(last) = &mut self.last {
            let adjacent =
                last.segment == span.segment && last.offset + u64::from(last.length) == span.offset;
            if adjacent && let Some(length) = last.length.checked_add(span.length) {
                last.length = length;
                return;
            }
            // `has_room_for_frame` was asked before the frame.
            self.spans.push(*last);
        }
        self.last = Some(span);
    }

    pub(super) fn finish(mut self) -> Spans {
        if let Some(last) = self.last {
            self.spans.push(last);
        }
        self.spans
    }
}
