//! A directory of an export, for tasks.

use std::path::{Path, PathBuf};

use piped_core::access::Access;
use piped_core::call::{Over, Removed};

use crate::calls::{AsyncCalls, CallError};
use crate::directory::{Beside, parts};
use crate::error::OpenError;
use crate::handle::Handle;
use crate::open::OpenOptions;
use crate::request::Request;
use crate::tasks::{AsyncClient, AsyncQueue};

/// A directory below an export, for tasks: [`crate::Directory`] over an [`AsyncQueue`].
///
/// ```no_run
/// # async fn settings(
/// #     client: piped_client::AsyncClient,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Access, AsyncDirectory};
/// let access = Access { names: true, ..Access::READ_WRITE };
/// let state = AsyncDirectory::open(&client, Some("beta"), "data", "state", access).await?;
/// state.replace(&client.queue().await?, "settings.json", b"{}", 0o640).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct AsyncDirectory {
    client: AsyncClient,
    handle: Handle,
    peer: Option<String>,
    export: String,
    path: PathBuf,
}

impl AsyncDirectory {
    /// Opens a directory; an empty path is the export itself.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(
        client: &AsyncClient,
        peer: Option<&str>,
        export: &str,
        path: impl AsRef<Path>,
        access: Access,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let handle = client.open_directory(peer, export, path, access).await?;
        let (peer, export) = (peer.map(str::to_owned), export.to_owned());
        Ok(Self { client: client.clone(), handle, peer, export, path: path.to_owned() })
    }

    /// The handle of the directory.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Calls of the directory, by a queue.
    #[must_use]
    pub fn calls(&self, queue: &AsyncQueue) -> AsyncCalls {
        AsyncCalls::new(queue, &self.handle)
    }

    /// Opens a file below the directory.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_file(
        &self,
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> Result<Handle, OpenError> {
        let path = self.path.join(path);
        self.client.open_export(self.peer.as_deref(), &self.export, path, options).await
    }

    /// Replaces a file, or makes it, as [`crate::Directory::replace`] does. Dropped before its end,
    /// the new file may stay beside the old one, under a name that begins with `.piped-`.
    ///
    /// # Errors
    /// See [`CallError`]. The old file is there, unless the rename's outcome is unknown.
    pub async fn replace(
        &self,
        queue: &AsyncQueue,
        path: impl AsRef<Path>,
        bytes: &[u8],
        mode: u32,
    ) -> Result<(), CallError> {
        let path = path.as_ref();
        let mut names = Beside::new(path, self.client.client().session());
        let (new, file) = loop {
            let new = names.next();
            match self.open_file(&new, Beside::options(mode)).await {
                Ok(file) => break (new, file),
                Err(error) => names.handle_refused(error)?,
            }
        };
        let replaced = match write(queue, &file, bytes).await {
            Ok(()) => self.calls(queue).rename_durably(&new, path, Over::Replace).await,
            Err(error) => Err(error),
        };
        if replaced.is_err() {
            // The first error counts. One that comes now leaves a file that nobody looks for.
            let _ = self.calls(queue).remove(&new, Removed::File).await;
        }
        replaced
    }
}

async fn write(queue: &AsyncQueue, file: &Handle, bytes: &[u8]) -> Result<(), CallError> {
    let mut buffer = None;
    for (offset, part) in parts(bytes) {
        let mut filled = match buffer.take() {
            Some(buffer) => buffer,
            None => queue.allocate(part.len()).await?,
        };
        filled.as_mut_slice()[..part.len()].copy_from_slice(part);
        let request = Request::write(file, offset, filled).piece(0..part.len());
        buffer = Some(queue.run(request).await?.payload);
    }
    Ok(queue.sync(file).await?)
}
