//! How files are opened: by the client, or by the daemon of another node.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use piped_core::access::{Access, Creation, NewFile};
use piped_ring::handshake::Request;
use rustix::fs::{FileType, Mode, OFlags};

use crate::control::Answer;
use crate::error::{OpenError, SessionError};
use crate::handle::{At, Handle};
use crate::origin::Origin;

/// How to open a file.
///
/// ```
/// use piped_client::OpenOptions;
/// let options = OpenOptions::read_write().create(true).truncate(true);
/// assert!(options.access().read && options.access().write);
/// // A file that is this program's alone: an error if something has the name.
/// let new = OpenOptions::write().create_new(true).mode(0o600).create_parents(true);
/// # let _ = new;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    access: Access,
    create: bool,
    create_new: bool,
    create_parents: bool,
    mode: Option<u32>,
    truncate: bool,
    direct: bool,
}

impl OpenOptions {
    /// Options for these accesses to a file that exists.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self {
            access,
            create: false,
            create_new: false,
            create_parents: false,
            mode: None,
            truncate: false,
            direct: true,
        }
    }

    /// Open an existing file for reading.
    #[must_use]
    pub fn read() -> Self {
        Self::new(Access::READ)
    }

    /// Open an existing file for writing.
    #[must_use]
    pub fn write() -> Self {
        Self::new(Access::WRITE)
    }

    /// Open an existing file for reading and writing.
    #[must_use]
    pub fn read_write() -> Self {
        Self::new(Access::READ_WRITE)
    }

    /// Make the file if it is not there. Off by default.
    #[must_use]
    pub fn create(self, create: bool) -> Self {
        Self { create, ..self }
    }

    /// Make the file, and fail if something has its name. Off by default.
    #[must_use]
    pub fn create_new(self, create_new: bool) -> Self {
        Self { create_new, ..self }
    }

    /// Permission bits of a file that is made, of which the umask takes some away: the daemon's of
    /// that node, or this process's. At most 0o777. By default 0o640 below exports, and 0o666 here.
    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Make the directories on the way to a file that is made, too; an export needs `names` for
    /// that. Off by default.
    #[must_use]
    pub fn create_parents(self, create_parents: bool) -> Self {
        Self { create_parents, ..self }
    }

    /// Empty the file (local files only). Off by default.
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// Go past the page cache where the file system can (local files; exports decide themselves).
    /// Reads of what it has come from there all the same. On by default.
    #[must_use]
    pub fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    /// The accesses that are asked for.
    #[must_use]
    pub fn access(self) -> Access {
        self.access
    }

    pub(crate) fn open_export(
        self,
        at: At<'_>,
        peer: Option<&str>,
        export: &str,
        path: &Path,
    ) -> Result<Handle, OpenError> {
        Ok(Handle::open(at, &self.export_question(peer, export, path)?)?)
    }

    /// What asks the daemon for a file of an export.
    pub(crate) fn export_question(
        self,
        peer: Option<&str>,
        export: &str,
        path: &Path,
    ) -> Result<Request, OpenError> {
        if self.truncate {
            return Err(OpenError::Option("truncate"));
        }
        Ok(Request::OpenExport {
            peer: peer.unwrap_or_default().to_owned(),
            export: export.to_owned(),
            path: path.as_os_str().as_bytes().to_owned(),
            access: self.access,
            create: self.creation()?,
        })
    }

    fn creation(self) -> Result<Creation, OpenError> {
        let mode = match self.mode {
            None => NewFile::PLAIN.mode,
            Some(mode) => self.checked(mode)?,
        };
        let new = NewFile { mode, parents: self.create_parents };
        Ok(match (self.create_new, self.create) {
            (true, _) => Creation::New(new),
            (false, true) => Creation::Open(new),
            (false, false) => Creation::No,
        })
    }

    fn checked(self, mode: u32) -> Result<u16, OpenError> {
        let bits = u16::try_from(mode).ok().filter(|mode| mode & !NewFile::MODES == 0);
        bits.ok_or(OpenError::Mode(mode))
    }

    pub(crate) fn open_path(self, at: At<'_>, path: &Path) -> Result<Handle, OpenError> {
        Ok(self.pass(at, self.open_local(path)?.as_fd())?)
    }

    /// Opens a local file with this process's rights.
    pub(crate) fn open_local(self, path: &Path) -> Result<File, OpenError> {
        let mut options = File::options();
        if let Some(mode) = self.mode {
            options.mode(self.checked(mode)?.into());
        }
        if self.create_parents
            && (self.create || self.create_new)
            && let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty())
        {
            std::fs::create_dir_all(parent).map_err(|source| unopened(path, source))?;
        }
        options
            .read(self.access.read)
            .write(self.access.write)
            .create(self.create)
            .create_new(self.create_new)
            .truncate(self.truncate)
            // A pipe is refused, not waited for.
            .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
            .open(path)
            .and_then(|file| {
                let flags = rustix::fs::fcntl_getfl(&file)?;
                rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
                Ok(file)
            })
            .map_err(|source| unopened(path, source))
    }

    /// Pass an open file to the daemon, and a second, direct descriptor of it if there can be one.
    /// Here and not in the daemon, because O_DIRECT is a property of the open file, which is the
    /// client's, and because opening again there would be with the daemon's rights.
    pub(crate) fn pass(self, at: At<'_>, file: BorrowedFd<'_>) -> Result<Handle, SessionError> {
        let direct = self.open_direct(file);
        let request = self.file_question(direct.is_some());
        let answer = match &direct {
            Some(direct) => at.0.control.ask(&request, &[direct.as_fd(), file]),
            None => at.0.control.ask(&request, &[file]),
        }?;
        self.passed(at, answer, file, direct)
    }

    /// A second, direct descriptor of an open file, if there can be one.
    pub(crate) fn open_direct(self, file: BorrowedFd<'_>) -> Option<OwnedFd> {
        let access = match (self.access.read, self.access.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        // What is no file is refused by the daemon; opening it once more might wait.
        let is_file = rustix::fs::fstat(file)
            .is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile);
        let direct = (self.direct && is_file).then(|| {
            // Through /proc it is the same file, whatever became of its path.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = access | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY;
            rustix::fs::open(path, flags, Mode::empty())
        });
        // The file system has no direct access, or there is no /proc: through the page cache.
        direct.and_then(Result::ok)
    }

    /// What passes an open file to the daemon; the direct descriptor comes first.
    pub(crate) fn file_question(self, direct: bool) -> Request {
        Request::OpenFile { access: self.access, direct }
    }

    /// The handle of a file that was passed.
    pub(crate) fn passed(
        self,
        at: At<'_>,
        answer: Answer,
        file: BorrowedFd<'_>,
        direct: Option<OwnedFd>,
    ) -> Result<Handle, SessionError> {
        let origin = match at.1.reopens() {
            true => {
                let file = file.try_clone_to_owned()?;
                Some(Origin::File { access: self.access, file, direct })
            }
            false => None,
        };
        Handle::from_answer(at, answer, origin)
    }
}

/// What opens things that have a name.
pub(crate) mod questions {
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use piped_core::access::Access;
    use piped_ring::handshake::Request;

    pub(crate) fn region(peer: Option<&str>, name: &str, access: Access) -> Request {
        let peer = peer.unwrap_or_default().to_owned();
        Request::OpenRegion { peer, name: name.to_owned(), access }
    }

    pub(crate) fn channel(peer: Option<&str>, name: &str) -> Request {
        let peer = peer.unwrap_or_default().to_owned();
        Request::OpenChannel { peer, name: name.to_owned() }
    }

    pub(crate) fn directory(
        peer: Option<&str>,
        export: &str,
        path: &Path,
        access: Access,
    ) -> Request {
        Request::OpenDirectory {
            peer: peer.unwrap_or_default().to_owned(),
            export: export.to_owned(),
            path: path.as_os_str().as_bytes().to_owned(),
            access,
        }
    }

    pub(crate) fn offered_channel(name: &str) -> Request {
        Request::OfferChannel { name: name.to_owned() }
    }
}

/// The kernel has one number for a file that is not there and for a directory.
fn unopened(path: &Path, source: io::Error) -> OpenError {
    let path = path.to_owned();
    let is_gone = |parent: &Path| {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        parent.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    if source.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(is_gone) {
        return OpenError::NoDirectory { path };
    }
    OpenError::File { path, source }
}
