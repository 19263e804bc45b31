//! Calls of tasks.

use std::path::Path;

use piped_core::call::{Call, NoCall};

use super::page::{Extents, Names, Pages};
use super::whole::Whole;
use super::{CallError, LONG};
use crate::error::{BufferState, RequestError, SubmitFault};
use crate::handle::Handle;
use crate::request::Request;
use crate::tasks::AsyncQueue;

/// Calls of a file or directory of an export, for tasks: [`crate::Calls`] over an [`AsyncQueue`].
///
/// A future that is dropped cancels its call. One that changes names may have been carried out all
/// the same.
///
/// ```no_run
/// # async fn tidy(
/// #     queue: piped_client::AsyncQueue, directory: piped_client::Handle,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::AsyncCalls;
/// use piped_client::call::Removed;
/// let calls = AsyncCalls::new(&queue, &directory);
/// let mut names = calls.list("tmp", false);
/// while let Some(name) = names.next().await? {
///     calls.remove(std::path::Path::new("tmp").join(name.name), Removed::File).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct AsyncCalls {
    queue: AsyncQueue,
    handle: Handle,
}

impl AsyncCalls {
    /// Calls of what a handle has open.
    #[must_use]
    pub fn new(queue: &AsyncQueue, handle: &Handle) -> Self {
        Self { queue: queue.clone(), handle: handle.clone() }
    }

    /// The handle that the calls are of.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Names in a directory, as [`crate::Calls::list`] has them.
    #[must_use]
    pub fn list(&self, path: impl AsRef<Path>, stats: bool) -> AsyncPaged<Names> {
        AsyncPaged { calls: self.clone(), pages: Names::new(path, stats) }
    }

    /// Where a file has data and where holes, in order.
    #[must_use]
    pub fn extents(&self, range: std::ops::Range<u64>) -> AsyncPaged<Extents> {
        AsyncPaged { calls: self.clone(), pages: Extents::new(range) }
    }

    /// Copies all of a file to another one, as [`Calls::copy_all`] does.
    ///
    /// # Errors
    /// See [`CallError`]. Some of the bytes may have been copied.
    pub async fn copy_all(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<u64, CallError> {
        let mut whole = Whole::default();
        while let Some(part) = whole.next() {
            whole.note(self.copy_durably(&from, &to, part).await?);
        }
        Ok(whole.bytes())
    }

    /// Makes a call and reads its answer, which has at most `room` bytes.
    pub(super) async fn ask<T>(
        &self,
        call: &Call<'_>,
        room: usize,
        read: impl FnOnce(&[u8]) -> Result<T, NoCall>,
    ) -> Result<T, CallError> {
        let mut buffer = self.queue.allocate(room).await?;
        let Ok(bytes) = call.encode(buffer.as_mut_slice()) else {
            let (cause, buffer) = (SubmitFault::Call.into(), BufferState::Returned(buffer));
            return Err(RequestError { cause, bytes: 0, buffer }.into());
        };
        let done = self.queue.run(Request::call(&self.handle, buffer, bytes)).await?;
        Ok(read(&done.payload.as_slice()[..done.bytes as usize])?)
    }
}

/// Names or extents, a page at a time, from [`AsyncCalls::list`] and [`AsyncCalls::extents`].
#[derive(Debug)]
pub struct AsyncPaged<P> {
    calls: AsyncCalls,
    pages: P,
}

impl<P: Pages> AsyncPaged<P> {
    /// The next one; `None` behind the last one. Dropped, it is the next call's.
    ///
    /// # Errors
    /// See [`CallError`]. There are no more then.
    pub async fn next(&mut self) -> Result<Option<P::Item>, CallError> {
        loop {
            if let Some(item) = self.pages.pop() {
                return Ok(Some(item));
            }
            let Some(call) = self.pages.call() else { return Ok(None) };
            let page = self.calls.ask(&call, LONG, |page| Ok(page.to_vec())).await;
            let taken = page.and_then(|page| Ok(self.pages.handle_page(&page)?));
            if let Err(error) = taken {
                self.pages.end();
                return Err(error);
            }
        }
    }
}
