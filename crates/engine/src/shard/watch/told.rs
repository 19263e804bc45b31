//! What the side that planned a transfer said of its plan.

use piped_core::units::Nanos;
use piped_wire::LastPart;

/// What was said of one transfer's plan.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::shard) struct Told {
    /// What pieces end at multiples of, in bytes; 0 if nothing was said.
    pub(in crate::shard) fragment: u32,
    /// Bytes of the first piece that came, and how many came so far.
    pub(in crate::shard) first: u32,
    pub(in crate::shard) pieces: u32,
    /// What the whole transfer was predicted to take; known at its end.
    pub(in crate::shard) predicted: Nanos,
    /// Half the width of that prediction's interval; 0 if nothing was said.
    pub(in crate::shard) margin: Nanos,
    /// The peer says that it had company there.
    pub(in crate::shard) company: bool,
    /// The number by which the peer knows the plan; 0 until the end.
    pub(in crate::shard) plan: u32,
}

impl Told {
    /// What is known with another piece.
    pub(in crate::shard) fn piece(before: Option<Self>, fragment: u32, bytes: u32) -> Self {
        let told = before.unwrap_or(Self { first: bytes, ..Self::default() });
        Self { fragment, pieces: told.pieces + 1, ..told }
    }

    /// What is known with what the last piece added.
    pub(in crate::shard) fn last(before: Option<Self>, last: LastPart) -> Self {
        let predicted = Nanos::from_micros(last.predicted_us.into());
        let margin = Nanos(predicted.0 / 100 * u64::from(last.margin_percent));
        let LastPart { company, plan, .. } = last;
        Self { predicted, margin, company, plan, ..before.unwrap_or_default() }
    }
}
