//! Reading an input from the front, and writing one.
//!
//! Not the `arbitrary` crate: it has no way back from a value to bytes, and a corpus that begins
//! with real values is worth more than one that the fuzzer has to find.

/// The rest of an input. Behind its end everything is zero.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The whole of an input.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At most `count` bytes.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        front
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    /// Takes exactly so many bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let front = self.bytes(N);
        let mut array = [0; N];
        array[..front.len()].copy_from_slice(front);
        array
    }

    /// Takes one byte, or zero.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Takes a number of two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }
}

/// Bytes that look the same nowhere, of a place and a salt.
#[must_use]
pub fn pattern(at: usize, salt: u32) -> u8 {
    ((at as u32 ^ salt.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b) >> 24) as u8
}
