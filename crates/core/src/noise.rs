//! Pseudo-random numbers for jitter and variety, where their quality does not matter.

/// A generator (xorshift) from a seed other than 0, for jitter that decorrelates back-offs.
#[derive(Debug)]
pub struct Noise(pub u64);

impl Noise {
    /// A generator from any seed, whose first numbers are as good as the later ones.
    #[must_use]
    pub const fn of_seed(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number in `0..below`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below.max(1)
    }

    /// A number between 0 and 1, and neither of them.
    pub fn unit(&mut self) -> f64 {
        (self.below(1 << 53) as f64 + 0.5) / (1_u64 << 53) as f64
    }
}
