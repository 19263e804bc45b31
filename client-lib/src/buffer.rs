//! A piece of the arena, owned by the value that stands for it.

use std::sync::Arc;

use piped_core::pieces::{BufferRow, Row};
use piped_ring::{ExclusiveRange, SharedRange};

use crate::arena::Arena;
use crate::error::OutOfBuffer;

/// Memory that the daemon can move bytes to and from without a copy, made by
/// [`crate::Client::allocate`].
///
/// A request takes the buffer and its completion gives it back, so safe code can neither look at
/// bytes that are still being written nor free them. In between, and dropped, it goes back to the
/// arena only when nobody touches it any more. It starts at a page and keeps its connection's
/// memory mapped, also after the connection's end, and the session's place with it, also after its
/// client is dropped: the daemon takes memory back when nobody has any of it. After
/// [`crate::Client::reconnect`] it is as it was, and the first request that takes it moves it into
/// the new daemon's memory: one copy.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = piped_client::Client::connect("/run/piped/client.sock")?;
/// let mut buffer = client.allocate(8192)?;
/// buffer.as_mut_slice()[..5].copy_from_slice(b"piped");
/// assert_eq!(&buffer.as_slice()[..5], b"piped");
/// # Ok(()) }
/// ```
///
/// A buffer of a request under way cannot be read:
///
/// ```compile_fail,E0382
/// # use piped_client::{Buffer, Handle, Queue};
/// fn too_early(queue: &mut Queue, file: &Handle, buffer: Buffer) -> u8 {
///     let pending = queue.submit_read(file, 0, buffer);
///     buffer.as_slice()[0]
/// }
/// ```
#[derive(Debug)]
pub struct Buffer {
    arena: Arc<Arena>,
    range: ExclusiveRange,
    segment: u32,
    length: u64,
    /// The buffers that it stands for: its own memory is their list ([`crate::Buffers`]).
    parts: Option<Box<[Self]>>,
}

impl Buffer {
    pub(crate) fn new(arena: Arc<Arena>, segment: u32, range: ExclusiveRange, length: u64) -> Self {
        Self { arena, range, segment, length, parts: None }
    }

    /// The buffer's length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        // A mapping's length fits.
        self.length as usize
    }

    /// Whether its length was set to 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes it can have at most: its length when allocated, in whole pages.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.range.len() as usize
    }

    /// Change the length: how much the next request moves. Bytes that become visible again are
    /// those that were there.
    ///
    /// # Errors
    /// Beyond the capacity; nothing changed.
    pub fn set_len(&mut self, length: usize) -> Result<(), OutOfBuffer> {
        if length > self.capacity() {
            let buffer_bytes = self.range.len();
            return Err(OutOfBuffer { offset: 0, length: length as u64, buffer_bytes });
        }
        self.length = length as u64;
        Ok(())
    }

    /// The bytes, in place.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.range.as_slice()[..self.len()]
    }

    /// The bytes, in place, to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let length = self.len();
        &mut self.range.as_mut_slice()[..length]
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.as_slice().to_vec()
    }

    /// Copy bytes out of the buffer.
    ///
    /// # Errors
    /// Not inside the buffer; nothing was copied.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfBuffer> {
        let from = offset.checked_add(to.len()).and_then(|end| self.as_slice().get(offset..end));
        to.copy_from_slice(from.ok_or_else(|| self.fault(offset, to.len()))?);
        Ok(())
    }

    /// Copy bytes into the buffer.
    ///
    /// # Errors
    /// Not inside the buffer; nothing was copied.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), OutOfBuffer> {
        let fault = self.fault(offset, from.len());
        let end = offset.checked_add(from.len());
        let to = end.and_then(|end| self.as_mut_slice().get_mut(offset..end));
        to.ok_or(fault)?.copy_from_slice(from);
        Ok(())
    }

    fn fault(&self, offset: usize, length: usize) -> OutOfBuffer {
        let (offset, length) = (offset as u64, length as u64);
        OutOfBuffer { offset, length, buffer_bytes: self.length }
    }

    /// Segment and offset, the daemon's address of it.
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.segment, self.range.offset())
    }

    /// The buffers that it stands for, if it is a list.
    pub(crate) fn parts(&self) -> Option<&[Self]> {
        self.parts.as_deref()
    }

    /// The buffers that it stands for, to be changed.
    pub(crate) fn parts_mut(&mut self) -> Option<&mut [Self]> {
        self.parts.as_deref_mut()
    }

    /// The buffer as a list of others. It has room for their places ([`Self::write_list`]).
    pub(crate) fn with_parts(mut self, parts: Vec<Self>) -> Self {
        self.parts = Some(parts.into_boxed_slice());
        self
    }

    /// Takes the buffers out that it stands for.
    pub(crate) fn take_parts(&mut self) -> Vec<Self> {
        self.parts.take().map_or_else(Vec::new, <[Self]>::into_vec)
    }

    /// The buffers that it stands for if it came back as the memory of a request with several
    /// ([`crate::Buffers`]); otherwise itself.
    #[must_use]
    pub fn into_parts(mut self) -> Vec<Self> {
        match self.parts.is_some() {
            true => self.take_parts(),
            false => vec![self],
        }
    }

    /// Writes a list's memory: the row of a range of all parts at this offset of a file or region,
    /// then where the parts lie that have bytes. Returns the number of these, and their bytes.
    pub(crate) fn write_list(&mut self, offset: u64) -> (u64, u64) {
        let parts = self.take_parts();
        let places = parts.iter().filter(|part| part.length > 0);
        let rows = places.clone().count() as u64;
        let bytes = places.clone().map(|part| part.length).sum::<u64>();
        // Longer requests than a row's length can say are refused, whatever it says.
        let row = Row::single(offset, 0, u32::try_from(bytes).unwrap_or(u32::MAX));
        let memory = self.as_mut_slice();
        memory[..Row::BYTES].copy_from_slice(&row.to_client());
        for (row, part) in memory[Row::BYTES..].chunks_exact_mut(BufferRow::BYTES).zip(places) {
            let (segment, offset) = part.place();
            let place = BufferRow { offset, length: part.length, segment, reserved: 0 };
            row.copy_from_slice(&place.to_client());
        }
        self.parts = Some(parts.into_boxed_slice());
        (rows, bytes)
    }

    /// Whether its memory, and that of its parts, is of this arena.
    pub(crate) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        let parts = self.parts().unwrap_or_default();
        Arc::ptr_eq(&self.arena, arena) && parts.iter().all(|part| part.is_of(arena))
    }

    /// Whether it is memory of that client, of whichever connection.
    pub(crate) fn is_of_client(&self, client: u32) -> bool {
        let parts = self.parts().unwrap_or_default();
        self.arena.client() == client && parts.iter().all(|part| part.is_of_client(client))
    }

    /// Take its bytes over into `new`, which is as large, but for those of `filled`: the daemon
    /// that was to fill them is gone, and the kernel may still be at it. This memory is not used
    /// again.
    pub(crate) fn move_into(self, new: &mut Self, filled: std::ops::Range<u64>) {
        let capacity = self.range.len();
        new.length = new.range.len().min(capacity);
        for part in [0..filled.start.min(capacity), filled.end.min(capacity)..capacity] {
            let place = part.start as usize..part.end.max(part.start) as usize;
            // Copied out as the daemon's bytes are, without a reference to them.
            self.load_landed(part.start, &mut new.as_mut_slice()[place]);
        }
        new.length = self.length;
        self.retire();
    }

    /// Copy bytes out while the daemon fills others.
    pub(crate) fn load_landed(&self, offset: u64, to: &mut [u8]) {
        // The callers stay below the watermark, which stays below the length.
        let loaded = self.range.load(offset, to);
        debug_assert!(loaded.is_ok(), "landed bytes lie inside the buffer");
    }

    /// Let others touch it at any time.
    pub(crate) fn share(mut self) -> Shared {
        Shared {
            arena: Arc::clone(&self.arena),
            range: self.range.split_off(0).share(),
            segment: self.segment,
            length: self.length,
        }
    }

    /// Never use it again: somebody may still write to it, and nobody will say until when. The
    /// memory goes with the arena's mapping.
    pub(crate) fn retire(mut self) {
        drop(self.range.split_off(0));
        self.parts.take().into_iter().flatten().for_each(Self::retire);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let range = self.range.split_off(0);
        // Empty after `share` and `retire`.
        if !range.is_empty() {
            self.arena.release(self.segment, range);
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

/// A buffer that others touch. Dropped as it is, the memory is not used again.
#[derive(Debug)]
pub(crate) struct Shared {
    arena: Arc<Arena>,
    pub(crate) range: SharedRange,
    segment: u32,
    pub(crate) length: u64,
}

impl Shared {
    /// The daemon said that nobody touches it any more.
    pub(crate) fn reclaim(self) -> Buffer {
        Buffer::new(self.arena, self.segment, self.range.reclaim(), self.length)
    }
}
