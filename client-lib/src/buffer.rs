//! A piece of the arena, or of lent memory, owned by the value that stands for it.

use std::sync::{Arc, Weak};

use piped_core::pieces::{BufferRow, Row};
use piped_ring::{ExclusiveRange, SharedRange};

use crate::arena::{Arena, LentMemory};
use crate::error::OutOfBuffer;

/// Memory that the daemon can move bytes to and from without a copy, made by
/// [`crate::Client::allocate`], or of memory that the program lends ([`crate::Lent::buffer`]).
///
/// A request takes the buffer and its completion gives it back, so safe code can neither look at
/// bytes that are still being written nor free them. In between, and dropped, it goes back to the
/// arena only when nobody touches it any more. It starts at a page and keeps its connection's
/// memory mapped, also after the connection's end, and the session's place with it, also after its
/// client is dropped: the daemon takes memory back when nobody has any of it. After
/// [`crate::Client::reconnect`] it is as it was, and the first request that takes it moves it into
/// the new daemon's memory: one copy. (One of lent memory stays where it is.)
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
    home: Home,
    range: ExclusiveRange,
    length: u64,
    /// The buffers that it stands for: its own memory is their list ([`crate::Buffers`]).
    parts: Option<Box<[Self]>>,
    /// What keeps its memory where it is, if somebody has it ([`Self::pin`]).
    pin: Weak<Home>,
}

/// Memory that a buffer is a piece of, and goes back to.
#[derive(Debug, Clone)]
pub(crate) enum Home {
    /// A segment of the arena of a connection.
    Arena(Arc<Arena>, u32),
    /// Memory of the program.
    Lent(Arc<LentMemory>),
}

impl Home {
    fn client(&self) -> u32 {
        match self {
            Self::Arena(arena, _) => arena.client(),
            Self::Lent(lent) => lent.client(),
        }
    }
}

impl Buffer {
    pub(crate) fn new(home: Home, range: ExclusiveRange, length: u64) -> Self {
        Self { home, range, length, parts: None, pin: Weak::new() }
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

    /// Bytes it can have at most: its length when allocated, in whole pages; of lent memory its
    /// length when made.
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
    ///
    /// # Panics
    /// If the memory was lent by a descriptor: others can write it at any time, so there is no
    /// reference into it. [`Self::try_slice`] asks, and [`Self::read_at`] copies.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.range.as_slice()[..self.len()]
    }

    /// The bytes, in place; `None` of memory that was lent by a descriptor.
    #[must_use]
    pub fn try_slice(&self) -> Option<&[u8]> {
        self.range.is_sole().then(|| self.as_slice())
    }

    /// The bytes, in place, to be changed.
    ///
    /// # Panics
    /// As [`Self::as_slice`]. [`Self::write_at`] copies.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let length = self.len();
        &mut self.range.as_mut_slice()[..length]
    }

    /// Where the bytes are. Of lent memory, the program may have other pointers there: what is read
    /// and written through them is its own affair, and so is a page that somebody has cut off.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.range.as_ptr()
    }

    /// Keeps the memory mapped and where it is, for a program that has pointers into it: as long as
    /// the value that is returned, or another one of the buffer. A request for which the buffer
    /// would have to move after a reconnect is refused meanwhile ([`crate::SubmitFault::NoRoom`]),
    /// and memory that is lost with its daemon stays mapped.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = piped_client::Client::connect("/run/piped/client.sock")?;
    /// let mut buffer = client.allocate(8192)?;
    /// let (pin, address) = (buffer.pin(), buffer.as_ptr());
    /// let file = client.open_file("/srv/data/blocks", piped_client::OpenOptions::read())?;
    /// let done = client.queue()?.read(&file, 0, buffer);
    /// println!("{address:?} is mapped, also if {done:?} has no buffer");
    /// # drop(pin); Ok(()) }
    /// ```
    #[must_use = "the memory may move when this is dropped"]
    pub fn pin(&mut self) -> BufferPin {
        let home = self.pin.upgrade().unwrap_or_else(|| Arc::new(self.home.clone()));
        self.pin = Arc::downgrade(&home);
        BufferPin(home)
    }

    /// Whether its memory stays where it is.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pin.strong_count() > 0
    }

    /// A copy of the bytes.
    ///
    /// # Panics
    /// As [`Self::as_slice`].
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.as_slice().to_vec()
    }

    /// Copy bytes out of the buffer.
    ///
    /// # Errors
    /// Not inside the buffer; nothing was copied. Or somebody has cut the memory, which was lent
    /// without seals: what was copied is not known.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfBuffer> {
        self.check(offset, to.len())?;
        Ok(self.range.load(offset as u64, to)?)
    }

    /// Copy bytes into the buffer.
    ///
    /// # Errors
    /// As for [`Self::read_at`].
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), OutOfBuffer> {
        self.check(offset, from.len())?;
        Ok(self.range.store(offset as u64, from)?)
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), OutOfBuffer> {
        let (offset, length, buffer_bytes) = (offset as u64, length as u64, self.length);
        let inside = offset.checked_add(length).is_some_and(|end| end <= buffer_bytes);
        if inside { Ok(()) } else { Err(OutOfBuffer { offset, length, buffer_bytes }) }
    }

    /// Segment and offset, the daemon's address of it.
    pub(crate) fn place(&self) -> (u32, u64) {
        let segment = match &self.home {
            Home::Arena(_, segment) => *segment,
            Home::Lent(lent) => lent.place().1,
        };
        (segment, self.range.offset())
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
        self.put_parts(parts);
        self
    }

    /// Makes the buffer a list of others, for which it has room.
    pub(crate) fn put_parts(&mut self, parts: Vec<Self>) {
        self.parts = Some(parts.into_boxed_slice());
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
        if parts.is_empty() {
            // Its memory may be of any length.
            self.put_parts(parts);
            return (0, 0);
        }
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

    /// Whether a request of the arena's connection can name it, and its parts.
    pub(crate) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        let own = match &self.home {
            Home::Arena(own, _) => Arc::ptr_eq(own, arena),
            Home::Lent(lent) => lent.is_of(arena),
        };
        own && self.parts().unwrap_or_default().iter().all(|part| part.is_of(arena))
    }

    /// Whether any of it is lent at a later connection than the arena's already.
    pub(crate) fn is_ahead_of(&self, arena: &Arena) -> bool {
        let own = matches!(&self.home, Home::Lent(lent) if lent.is_ahead_of(arena));
        own || self.parts().unwrap_or_default().iter().any(|part| part.is_ahead_of(arena))
    }

    /// Whether it is memory of that client, of whichever connection.
    pub(crate) fn is_of_client(&self, client: u32) -> bool {
        let parts = self.parts().unwrap_or_default();
        self.home.client() == client && parts.iter().all(|part| part.is_of_client(client))
    }

    /// Whether it is lent memory, which does not move.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self.home, Home::Lent(_))
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
            let _whole = self.load_landed(part.start, &mut new.as_mut_slice()[place]);
        }
        new.length = self.length;
        self.retire();
    }

    /// Copy bytes out while the daemon fills others. `false`: somebody has cut the lent memory, and
    /// what was copied is not known.
    pub(crate) fn load_landed(&self, offset: u64, to: &mut [u8]) -> bool {
        // The callers stay below the watermark, which stays below the length.
        let loaded = self.range.load(offset, to).is_ok();
        debug_assert!(loaded || self.is_lent(), "landed bytes lie inside the buffer");
        loaded
    }

    /// Let others touch it at any time.
    pub(crate) fn share(mut self) -> Shared {
        Shared {
            home: self.home.clone(),
            range: self.range.split_off(0).share(),
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
        if range.is_empty() {
            return;
        }
        match &self.home {
            Home::Arena(arena, segment) => arena.release(*segment, range),
            Home::Lent(lent) => lent.release(range),
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

/// Keeps the memory of a buffer mapped and where it is, whatever becomes of the buffer: see
/// [`Buffer::pin`].
///
/// ```
/// fn may_be_shared<T: Send + Sync>() {}
/// may_be_shared::<piped_client::BufferPin>();
/// ```
#[derive(Debug, Clone)]
pub struct BufferPin(#[expect(dead_code, reason = "kept for what it keeps")] Arc<Home>);

/// A buffer that others touch. Dropped as it is, the memory is not used again.
#[derive(Debug)]
pub(crate) struct Shared {
    home: Home,
    pub(crate) range: SharedRange,
    pub(crate) length: u64,
}

impl Shared {
    /// The daemon said that nobody touches it any more.
    pub(crate) fn reclaim(self) -> Buffer {
        Buffer::new(self.home, self.range.reclaim(), self.length)
    }
}

#[cfg(test)]
mod tests {
    use piped_ring::Segment;

    use super::*;

    fn buffer() -> (Weak<Arena>, Buffer) {
        let arena = Arc::new(Arena::default());
        arena.add(0, Segment::create(4096).expect("memory"));
        (Arc::downgrade(&arena), arena.allocate(100).expect("room"))
    }

    #[test]
    fn a_pin_keeps_the_memory_of_a_buffer_that_is_lost() {
        let (arena, mut buffer) = buffer();
        assert!(!buffer.is_pinned());
        let pins = [buffer.pin(), buffer.pin()];
        buffer.retire();
        let [first, last] = pins;
        drop(first);
        assert!(arena.upgrade().is_some(), "the other pin has it");
        drop(last);
        assert!(arena.upgrade().is_none());
    }

    #[test]
    fn a_buffer_is_pinned_as_long_as_somebody_has_a_pin() {
        let (_arena, mut buffer) = buffer();
        let first = buffer.pin();
        let last = first.clone();
        drop(first);
        assert!(buffer.is_pinned());
        drop(last);
        assert!(!buffer.is_pinned());
        let _again = buffer.pin();
        assert!(buffer.is_pinned());
    }
}
