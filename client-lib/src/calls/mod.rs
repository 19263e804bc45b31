//! Calls of files and directories as functions: a buffer for each, and the answer read.
//!
//! [`Calls`] makes them by the queue of a thread, `AsyncCalls` by one of tasks. What both share is
//! pure: calls and answers as [`piped_core::call`] writes them.

mod error;
mod page;
#[cfg(feature = "async")]
mod tasks;
mod verbs;
mod whole;

use std::path::Path;
use std::time::Duration;

use piped_core::call::{ANSWER_BYTES_MAX, Call, Lock, NoCall};
use piped_core::status::Status;

pub use self::error::CallError;
pub use self::page::{Extents, Name, Names, Paged};
#[cfg(feature = "async")]
pub use self::tasks::{AsyncCalls, AsyncPaged};
use self::whole::Whole;
use crate::buffer::Buffer;
use crate::clock;
use crate::handle::Handle;
use crate::queue::Queue;

/// Room for any call, and for answers of a fixed length.
const SHORT: usize = 4096;

/// Room for answers that come in pages.
const LONG: usize = ANSWER_BYTES_MAX as usize;

/// Pauses between attempts at a lock that somebody else has.
const LOCK_PAUSE_MIN_NS: u64 = 1_000_000;
const LOCK_PAUSE_MAX_NS: u64 = 64_000_000;

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

    /// Copies all of a file to another one, which is there, without moving its bytes to this node,
    /// and returns its length. What the other file has behind that stays. Ends when all is on
    /// stable storage.
    ///
    /// # Errors
    /// See [`CallError`]. Some of the bytes may have been copied.
    pub fn copy_all(
        &mut self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<u64, CallError> {
        let mut whole = Whole::default();
        while let Some(part) = whole.next() {
            whole.note(self.copy_durably(&from, &to, part)?);
        }
        Ok(whole.bytes())
    }

    /// Locks a range of the file as [`Self::try_lock`] does, and waits for it so long. Who waits
    /// longest is not served first.
    ///
    /// # Errors
    /// See [`CallError`]: the last attempt's.
    pub fn lock(
        &mut self,
        range: std::ops::Range<u64>,
        lock: Lock,
        patience: Duration,
    ) -> Result<(), CallError> {
        let until_ns = clock::now_ns().saturating_add(clock::nanos(patience));
        let mut pause_ns = LOCK_PAUSE_MIN_NS;
        loop {
            let left_ns = until_ns.saturating_sub(clock::now_ns());
            match self.try_lock(range.clone(), lock) {
                Err(error) if error.status() == Some(Status::Locked) && left_ns > 0 => {}
                ended => return ended,
            }
            clock::nap(pause_ns.min(left_ns));
            pause_ns = (2 * pause_ns).min(LOCK_PAUSE_MAX_NS);
        }
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
