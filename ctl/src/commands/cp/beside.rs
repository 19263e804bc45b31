//! Copies within one export: the node that has it copies by itself, and no byte leaves it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use piped_client::call::{CALL_BYTES_MAX, Copied, Range};
use piped_client::{Access, Buffer, Call, Client, Done, Handle, Queue, Request};

use super::ends::Ends;
use crate::client;
use crate::failure::Failure;
use crate::place::Place;

/// Both ends of a copy, below one export.
#[derive(Debug)]
pub(super) struct Beside<'a> {
    directory: Handle,
    from: &'a Path,
    to: &'a Path,
    /// Buffers of calls that have ended.
    free: Vec<Buffer>,
}

impl<'a> Beside<'a> {
    /// The ends, if their node copies between them: found out by copying nothing. Where links or
    /// mounts lie on the way, or the daemon does not know how, the bytes are moved as others are.
    pub(super) fn find(client: &Client, queue: &mut Queue, ends: &'a Ends) -> Option<Self> {
        let (
            Place::Remote { peer, export, path: from },
            Place::Remote { peer: other_peer, export: other_export, path: to },
        ) = (&ends.source, &ends.destination)
        else {
            return None;
        };
        if peer != other_peer || export != other_export {
            return None;
        }
        let peer = (!peer.is_empty()).then_some(peer.as_str());
        let directory = client.open_directory(peer, export, "", Access::READ_WRITE).ok()?;
        let mut beside = Self { directory, from, to, free: Vec::new() };
        let trial = beside.request(client, 0, 0).ok()?;
        let done = queue.run(trial).ok()?;
        beside.free.push(done.payload);
        Some(beside)
    }

    /// The request that copies so many bytes from `start` on, and has them on stable storage when
    /// it ends: a sync of the destination's handle does not know of them.
    pub(super) fn request(
        &mut self,
        client: &Client,
        start: u64,
        length: u64,
    ) -> Result<Request<Buffer>, Failure> {
        let mut buffer = match self.free.pop() {
            Some(buffer) => buffer,
            None => client::allocate(client, CALL_BYTES_MAX as u64)?,
        };
        let (from, to) = (self.from.as_os_str().as_bytes(), self.to.as_os_str().as_bytes());
        let range = Range { offset: start, length };
        let call = Call::Copy { from, to, range, durable: true };
        let bytes = call.encode(buffer.as_mut_slice());
        let bytes = bytes.map_err(|error| Failure::failed(error.to_string()))?;
        Ok(Request::call(&self.directory, buffer, bytes))
    }

    /// How many bytes a request has copied; 0 if it cannot be read.
    pub(super) fn copied(&mut self, done: Done<Option<Buffer>>) -> u64 {
        let Some(buffer) = done.payload else { return 0 };
        let answer = buffer.as_slice().get(..done.bytes as usize);
        let copied = answer.and_then(|bytes| Copied::parse(bytes).ok());
        self.free.push(buffer);
        copied.map_or(0, |copied| copied.0)
    }
}
