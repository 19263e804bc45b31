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
    /// Bytes of memory that the list of so many buffers takes ([`Self::empty`]).
    ///
    /// # Errors
    /// [`BuffersFault::Count`].
    pub fn list_bytes(parts: usize) -> Result<usize, BuffersFault> {
        match parts {
            0 => Err(BuffersFault::Count(0)),
            _ if parts > BUFFERS_MAX as usize => Err(BuffersFault::Count(parts)),
            _ => Ok(Row::BYTES + parts * BufferRow::BYTES),
        }
    }

    /// `list` has room for the list of these.
    pub(crate) fn new(list: Buffer, parts: Vec<Buffer>) -> Result<Self, BuffersFault> {
        let mut buffers = Self::empty(list);
        buffers.put_parts(parts).map_err(|(fault, _)| fault)?;
        Ok(buffers)
    }

    /// A list without any buffers yet, in memory of [`Self::list_bytes`]: [`Self::put_parts`].
    #[must_use]
    pub fn empty(list: Buffer) -> Self {
        Self { list: list.with_parts(Vec::new()) }
    }

    /// Takes the buffers out. The memory of their list stays, for [`Self::put_parts`].
    pub fn take_parts(&mut self) -> Vec<Buffer> {
        let parts = self.list.take_parts();
        self.list.put_parts(Vec::new());
        parts
    }

    /// Puts other buffers in, instead of those that are there: as many as there is room for.
    ///
    /// # Errors
    /// See [`BuffersFault`]. The buffers come back, and those that were there stay.
    pub fn put_parts(&mut self, parts: Vec<Buffer>) -> Result<(), (BuffersFault, Vec<Buffer>)> {
        let fits = Self::list_bytes(parts.len()).and_then(|wanted| {
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            match bytes {
                _ if wanted > self.list.len() => Err(BuffersFault::Room(parts.len())),
                _ if bytes > REQUEST_BYTES_MAX => Err(BuffersFault::Bytes(bytes)),
                _ => Ok(()),
            }
        });
        match fits {
            Ok(()) => {
                self.list.put_parts(parts);
                Ok(())
            }
            Err(fault) => Err((fault, parts)),
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

    /// The list that stands for all of them, and has them: [`Self::from_list`].
    #[must_use]
    pub fn into_list(self) -> Buffer {
        self.list
    }

    /// The buffers that came back as one, which stands for them ([`crate::BufferState`],
    /// [`crate::Completed`], [`crate::Released`]); `None`: it is one and no more.
    #[must_use]
    pub fn from_list(list: Buffer) -> Option<Self> {
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
