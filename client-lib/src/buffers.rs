//! Several buffers of one request.

use piped_core::limits::{BUFFERS_MAX, REQUEST_BYTES_MAX};
use piped_core::pieces::{BufferRow, Row};

use crate::buffer::Buffer;
use crate::error::BuffersFault;

/// Several buffers that one request fills or empties, one behind the other, as `readv` and `writev`
/// do: made by [`crate::Client::buffers`]. They need not lie together, nor be of one length.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Client, OpenOptions, Request};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let file = client.open_file("/srv/data/blocks", OpenOptions::read())?;
/// let blocks = client.buffers(vec![client.allocate(4096)?, client.allocate(1 << 20)?])?;
/// let done = client.queue()?.run(Request::read_buffers(&file, 0, blocks))?;
/// for block in done.payload.parts() {
///     println!("begins with {:?}", &block.as_slice()[..4]);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Buffers {
    /// Memory for the list that the daemon reads; it has the parts.
    list: Buffer,
}

impl Buffers {
    /// Bytes of memory that the list of so many buffers takes, with the row of a range.
    pub(crate) fn list_bytes(parts: usize) -> Result<usize, BuffersFault> {
        match parts {
            0 => Err(BuffersFault::Count(0)),
            _ if parts > BUFFERS_MAX as usize => Err(BuffersFault::Count(parts)),
            _ => Ok(Row::BYTES + parts * BufferRow::BYTES),
        }
    }

    /// `list` has room for the list of these.
    pub(crate) fn new(list: Buffer, parts: Vec<Buffer>) -> Result<Self, BuffersFault> {
        let buffers = Self { list: list.with_parts(parts) };
        match buffers.bytes() {
            bytes if bytes > REQUEST_BYTES_MAX => Err(BuffersFault::Bytes(bytes)),
            _ => Ok(buffers),
        }
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.len() as u64).sum()
    }

    /// The buffers, in order.
    #[must_use]
    pub fn parts(&self) -> &[Buffer] {
        self.list.parts().unwrap_or_default()
    }

    /// The buffers, in order, to be changed.
    #[must_use]
    pub fn parts_mut(&mut self) -> &mut [Buffer] {
        self.list.parts_mut().unwrap_or_default()
    }

    /// The buffers on their own again.
    #[must_use]
    pub fn into_parts(self) -> Vec<Buffer> {
        self.list.into_parts()
    }

    /// The list that stands for all of them, in place.
    pub(crate) fn list(&self) -> &Buffer {
        &self.list
    }

    /// The list that stands for all of them.
    pub(crate) fn into_list(self) -> Buffer {
        self.list
    }

    /// The buffers of a list, if it is one.
    pub(crate) fn from_list(list: Buffer) -> Option<Self> {
        list.parts().is_some().then_some(Self { list })
    }
}

/// Moves all buffers of a list, and its own memory, which is written when it is submitted. If one
/// cannot be moved, the list comes back with what could.
pub(crate) fn bring_all(
    mut list: Buffer,
    bring: impl Fn(Buffer) -> Result<Buffer, Buffer>,
) -> Result<Buffer, Buffer> {
    let all = list.take_parts();
    let mut failed = false;
    let mut parts = Vec::with_capacity(all.len());
    for part in all {
        let part = if failed { Err(part) } else { bring(part) };
        failed |= part.is_err();
        parts.push(part.unwrap_or_else(|part| part));
    }
    match bring(list) {
        Ok(list) if !failed => Ok(list.with_parts(parts)),
        Ok(list) | Err(list) => Err(list.with_parts(parts)),
    }
}
