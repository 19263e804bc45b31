//! Pseudo-random numbers for jitter and variety, where their quality does not matter.

/// A generator (xorshift) from a seed other than 0, for jitter that decorrelates back-offs.
#[derive(Debug)]
pub struct Noise(pub u64);

impl Noise {
    /// A number in `0..below`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below.max(1)
    }
}
