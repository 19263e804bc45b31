//! A directory of an export, with what is done in it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use piped_core::access::Access;
use piped_core::call::{Over, Removed};
use piped_core::status::Status;

use crate::calls::{CallError, Calls};
use crate::client::Client;
use crate::error::{OpenError, SessionError};
use crate::handle::Handle;
use crate::open::OpenOptions;
use crate::queue::Queue;
use crate::request::Request;

/// Bytes that go into a replacement at a time.
const PART_BYTES: usize = 1 << 20;

/// Names that are tried for a replacement: others of the same name have theirs under way.
const TRIES: u32 = 100;

/// A directory below an export of a peer or of this node, and what is done with files in it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Access, Client, Directory};
/// let client = Client::connect_default()?;
/// let access = Access { names: true, ..Access::READ_WRITE };
/// let state = Directory::open(&client, Some("beta"), "data", "state", access)?;
/// let mut queue = client.queue()?;
/// // Others see the old file or the new one, and so does who comes after a crash.
/// state.replace(&mut queue, "settings.json", b"{}", 0o640)?;
/// for name in state.calls(&mut queue).list("", true) {
///     println!("{:?}", name?.name);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Directory {
    client: Client,
    handle: Handle,
    peer: Option<String>,
    export: String,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory; an empty path is the export itself.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        client: &Client,
        peer: Option<&str>,
        export: &str,
        path: impl AsRef<Path>,
        access: Access,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let handle = client.open_directory(peer, export, path, access)?;
        let (peer, export) = (peer.map(str::to_owned), export.to_owned());
        Ok(Self { client: client.clone(), handle, peer, export, path: path.to_owned() })
    }

    /// The handle of the directory, for [`Queue::call`].
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Calls of the directory, by a queue.
    #[must_use]
    pub fn calls<'a>(&'a self, queue: &'a mut Queue) -> Calls<'a> {
        Calls::new(queue, &self.handle)
    }

    /// Opens a file below the directory.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_file(
        &self,
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> Result<Handle, OpenError> {
        let path = self.path.join(path);
        self.client.open_export(self.peer.as_deref(), &self.export, path, options)
    }

    /// Replaces a file, or makes it: others see the old bytes or the new ones, whenever they look
    /// and whatever crashes. The new file is written beside the old one under a name of its own,
    /// brought to stable storage, and renamed; on an error the name is removed again.
    ///
    /// # Errors
    /// See [`CallError`]. The old file is there, unless the rename's outcome is unknown.
    pub fn replace(
        &self,
        queue: &mut Queue,
        path: impl AsRef<Path>,
        bytes: &[u8],
        mode: u32,
    ) -> Result<(), CallError> {
        let path = path.as_ref();
        let (new, file) = self.make_beside(path, mode)?;
        let replaced = self
            .write(queue, &file, bytes)
            .and_then(|()| self.calls(queue).rename_durably(&new, path, Over::Replace));
        if replaced.is_err() {
            // The first error counts. One that comes now leaves a file that nobody looks for.
            let _ = self.calls(queue).remove(&new, Removed::File);
        }
        replaced
    }

    /// Makes a file in the directory of `path` that nobody else has.
    fn make_beside(&self, path: &Path, mode: u32) -> Result<(PathBuf, Handle), CallError> {
        let mut names = Beside::new(path, self.client.session());
        loop {
            let new = names.next();
            match self.open_file(&new, Beside::options(mode)) {
                Ok(file) => return Ok((new, file)),
                Err(error) => names.handle_refused(error)?,
            }
        }
    }

    fn write(&self, queue: &mut Queue, file: &Handle, bytes: &[u8]) -> Result<(), CallError> {
        let length = bytes.len().min(PART_BYTES);
        if length > 0 {
            let mut buffer = self.client.allocate(length)?;
            for (offset, part) in parts(bytes) {
                buffer.as_mut_slice()[..part.len()].copy_from_slice(part);
                let request = Request::write(file, offset, buffer);
                buffer = queue.run(request.piece(0..part.len()))?.payload;
            }
        }
        Ok(queue.sync(file)?)
    }
}

/// Names for a file that is to replace another, one after the other until one is free.
#[derive(Debug)]
pub(crate) struct Beside<'a> {
    path: &'a Path,
    session: u32,
    tries: u32,
}

impl<'a> Beside<'a> {
    pub(crate) fn new(path: &'a Path, session: u32) -> Self {
        Self { path, session, tries: 0 }
    }

    /// How the file is made.
    pub(crate) fn options(mode: u32) -> OpenOptions {
        OpenOptions::write().create_new(true).mode(mode)
    }

    /// A name in the directory of the path that was not tried yet.
    pub(crate) fn next(&mut self) -> PathBuf {
        static REPLACEMENTS: AtomicU32 = AtomicU32::new(0);
        self.tries += 1;
        let number = REPLACEMENTS.fetch_add(1, Ordering::Relaxed);
        let name = format!(".piped-{}-{}-{number}", std::process::id(), self.session);
        self.path.with_file_name(name)
    }

    /// A name was refused: another one may be free.
    pub(crate) fn handle_refused(&self, error: OpenError) -> Result<(), OpenError> {
        let exists = matches!(
            error,
            OpenError::Session(SessionError::Refused { status: Status::Exists, .. })
        );
        if exists && self.tries < TRIES { Ok(()) } else { Err(error) }
    }
}

/// The parts of a replacement, with the offset of each.
pub(crate) fn parts(bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let offsets = (0..).step_by(PART_BYTES);
    offsets.zip(bytes.chunks(PART_BYTES))
}
