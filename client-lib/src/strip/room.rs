//! Where strips lie.

use crate::buffer::Buffer;
use crate::client::Client;
use crate::connection::Growth;
use crate::error::AllocateError;

/// Buffers of a loop: those that nobody has, and how much all of them are.
#[derive(Debug)]
pub(super) struct Room {
    client: Client,
    /// By the arena's pages.
    spare: Vec<Buffer>,
    /// Bytes of all buffers, also of those under way.
    bytes: usize,
    most: usize,
    grain: usize,
    growth: Growth,
}

impl Room {
    pub(super) fn new(client: Client, most: usize, grain: u64, growth: Growth) -> Self {
        Self { client, spare: Vec::new(), bytes: 0, most, grain: grain as usize, growth }
    }

    fn allocate(&self, length: usize) -> Result<Buffer, AllocateError> {
        match self.growth {
            Growth::Waits => self.client.allocate(length),
            Growth::None => self.client.shared().allocate_here(length),
        }
    }

    /// The most bytes that it may have, and what strips are multiples of.
    #[cfg(feature = "async")]
    pub(super) fn bounds(&self) -> (usize, usize) {
        (self.most, self.grain)
    }

    /// Takes a buffer over that was allocated elsewhere.
    #[cfg(feature = "async")]
    pub(super) fn adopt(&mut self, buffer: Buffer) {
        self.bytes += buffer.capacity();
        self.spare.push(buffer);
    }

    /// A buffer of `wanted` bytes, or a shorter one where there is no more memory. `Ok(None)`: the
    /// loop has to wait for one of its own. `has_some`: it can.
    pub(super) fn take(
        &mut self,
        wanted: usize,
        has_some: bool,
    ) -> Result<Option<Buffer>, AllocateError> {
        let long_enough = |buffer: &Buffer| buffer.capacity() >= wanted;
        if let Some(place) = self.spare.iter().position(long_enough) {
            return Ok(Some(cut(self.spare.swap_remove(place), wanted)));
        }
        // Those that are too short make room for one that is not.
        while self.bytes + wanted > self.most && self.spare.len() > 1 {
            self.forget_one();
        }
        // One strip there has to be, however short.
        let needs_one = self.bytes == 0 && !has_some;
        let mut length = wanted;
        while self.bytes + length <= self.most || needs_one {
            match self.allocate(length) {
                Ok(buffer) => {
                    self.bytes += buffer.capacity();
                    return Ok(Some(buffer));
                }
                // A task has the arena grow first.
                Err(error) if needs_one && self.growth == Growth::None => return Err(error),
                Err(_) if needs_one && length / 2 >= self.grain => {
                    length = length / 2 / self.grain * self.grain;
                }
                Err(error) if needs_one => return Err(error),
                Err(_) => break,
            }
        }
        // No more than there is: a shorter strip.
        let grain = self.grain;
        self.spare.retain(|buffer| buffer.capacity() >= grain);
        Ok(self.spare.pop().map(|buffer| {
            let bytes = buffer.capacity() / grain * grain;
            cut(buffer, bytes)
        }))
    }

    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.spare.push(buffer);
    }

    /// Bytes of all its buffers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A buffer went and does not come back.
    pub(super) fn forget(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn forget_one(&mut self) {
        if let Some(buffer) = self.spare.pop() {
            self.forget(buffer.capacity());
        }
    }
}

fn cut(mut buffer: Buffer, bytes: usize) -> Buffer {
    let fits = buffer.set_len(bytes);
    debug_assert!(fits.is_ok(), "the capacity was looked at");
    buffer
}
