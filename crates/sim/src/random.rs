//! Chance as an argument: a small generator with equal sequences on every machine.

use piped_core::units::Nanos;

/// A SplitMix64 generator: good enough for faults and sizes, and its seed fits a line of a report.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator; equal seeds give equal sequences.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 if `limit` is 0. (The bias of the remainder does not matter here.)
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.bits() % limit }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True with this probability. Draws nothing when it is 0, so that a fault that is switched off
    /// does not change the rest of a run.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.bits() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// A duration from zero to `max`.
    pub fn up_to(&mut self, max: Nanos) -> Nanos {
        Nanos(self.below(max.0.saturating_add(1)))
    }

    /// A number between 0 and 1, and neither of them.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// One of the items.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// A length from 1 to `max`, as likely to be small as large: uniform in its logarithm.
    pub fn length(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(64 - max.leading_zeros()) + 1);
        self.between(1, (1u64 << bits.min(63)).clamp(1, max.max(1)))
    }

    /// Fills a buffer with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let noise = self.bits().to_le_bytes();
            chunk.copy_from_slice(&noise[..chunk.len()]);
        }
    }
}
