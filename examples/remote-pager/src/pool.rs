//! Buffers of one length, of which there are never more than a limit.

use piped_client::{AllocateError, Buffer, Client};

#[derive(Debug)]
pub(crate) struct Pool {
    client: Client,
    bytes: usize,
    free: Vec<Buffer>,
    /// Free or in use.
    made: usize,
    limit: usize,
}

impl Pool {
    /// One is made at once: where there is no memory at all, that is to be known early.
    pub(crate) fn new(client: &Client, bytes: usize, limit: usize) -> Result<Self, AllocateError> {
        let mut free = Vec::with_capacity(limit);
        free.push(client.allocate(bytes)?);
        Ok(Self { client: client.clone(), bytes, free, made: 1, limit })
    }

    /// None: all are in use, or the arena has no more.
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        if self.made == self.limit {
            return None;
        }
        let buffer = self.client.allocate(self.bytes).ok()?;
        self.made += 1;
        Some(buffer)
    }

    /// Whether one is there at once.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// One that is in use does not come back.
    pub(crate) fn forget(&mut self) {
        self.made -= 1;
    }
}
