//! Calls of files and directories as functions: a buffer for each, and the answer read.
//!
//! [`Calls`] makes them by the queue of a thread, `AsyncCalls` by one of tasks. What both share is
//! pure: calls and answers as [`piped_core::call`] writes them.

mod error;
mod page;
#[cfg(feature = "async")]
mod tasks;
mod verbs;

use std::path::Path;

use piped_core::call::{ANSWER_BYTES_MAX, Call, NoCall};

pub use self::error::CallError;
pub use self::page::{Extents, Name, Names, Paged};
#[cfg(feature = "async")]
pub use self::tasks::{AsyncCalls, AsyncPaged};
use crate::buffer::Buffer;
use crate::handle::Handle;
use crate::queue::Queue;

/// Room for any call, and for answers of a fixed length.
const SHORT: usize = 4096;

/// Room for answers that come in pages.
const LONG: usize = ANSWER_BYTES_MAX as usize;

/// Calls of a file or directory of an export: what is asked of it beside moving its bytes.
///
/// Paths are those below a directory ([`crate::Directory`]); an empty one is the directory itself.
/// Calls of a file are about the file that is open, whatever its name is by now.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Calls, Client, OpenOptions};
/// let client = Client::connect_default()?;
/// let file = client.open_export(Some("beta"), "data", "disk.img", OpenOptions::read_write())?;
/// let mut queue = client.queue()?;
/// let mut calls = Calls::new(&mut queue, &file);
/// let length = calls.stat("")?.length;
/// for extent in calls.extents(0..length) {
///     println!("{:?}", extent?);
/// }
/// calls.truncate(length / 2)?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Calls<'a> {
    queue: &'a mut Queue,
    handle: &'a Handle,
    /// The buffer of the last call.
    spare: Option<Buffer>,
}

impl<'a> Calls<'a> {
    /// Calls of what a handle has open.
    #[must_use]
    pub fn new(queue: &'a mut Queue, handle: &'a Handle) -> Self {
        Self { queue, handle, spare: None }
    }

    /// Names in a directory, in no order; with what is known of each, if `stats`. While others
    /// change the directory, a name that stays is seen once.
    pub fn list(&mut self, path: impl AsRef<Path>, stats: bool) -> Paged<'_, 'a, Names> {
        Paged::new(self, Names::new(path, stats))
    }

    /// Where a file has data and where holes, in order.
    pub fn extents(&mut self, range: std::ops::Range<u64>) -> Paged<'_, 'a, Extents> {
        Paged::new(self, Extents::new(range))
    }

    /// Makes a call and reads its answer, which has at most `room` bytes.
    fn ask<T>(
        &mut self,
        call: &Call<'_>,
        room: usize,
        read: impl FnOnce(&[u8]) -> Result<T, NoCall>,
    ) -> Result<T, CallError> {
        let mut buffer = match self.spare.take().filter(|it| it.capacity() >= room) {
            Some(buffer) => buffer,
            None => self.queue.allocate(room)?,
        };
        let fits = buffer.set_len(room);
        debug_assert!(fits.is_ok(), "the capacity was looked at");
        let (buffer, bytes) = self.queue.call(self.handle, call, buffer)?;
        let answer = read(&buffer.as_slice()[..bytes]);
        self.spare = Some(buffer);
        Ok(answer?)
    }
}
