//! Files with a secret of 32 bytes, which only the daemon and root may read.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use zeroize::Zeroizing;

use crate::node_key::KEY_BYTES;
use crate::regular::open_unwaited;

/// A longer file is no key file.
const FILE_BYTES_MAX: u64 = 4096;

/// Permissions that a key file must not have: all of others, and writing by its group.
pub const KEY_FILE_OPEN_MODE: u32 = 0o037;

/// A secret in memory that is wiped.
pub(crate) type Secret = Zeroizing<[u8; KEY_BYTES]>;

/// A key file that cannot be used.
#[derive(thiserror::Error)]
pub enum KeyFileError {
    /// Failure that the kernel reports.
    #[error("{}: {action} ({error}){}", path.display(), fix_of(error, maker))]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Name of the action that failed.
        action: &'static str,
        /// Reason that the kernel gives.
        error: std::io::Error,
        /// Command that makes such a file.
        maker: &'static str,
    },
    /// Key file that others can read.
    #[error(
        "{}: others than its owner and group can read or change it (mode {mode:03o}), so the key \
         may be known; make a new one, or if you are sure of it: chmod 640", path.display()
    )]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
    },
    /// File that holds something else.
    #[error(
        "{}{} holds no {what}; name the right file, or remove it and run `{maker}`",
        path.display(), line.map_or_else(String::new, |line| format!(":{line}"))
    )]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// First line that is wrong; none if one is missing, or if it is no file.
        line: Option<usize>,
        /// What the file should hold.
        what: &'static str,
        /// Command that makes such a file.
        maker: &'static str,
    },
    /// File that exists already.
    #[error(
        "{} is there already, and others may trust it; name another --file, or remove it first",
        .0.display()
    )]
    Exists(PathBuf),
}

impl KeyFileError {
    /// Whether only the rights of this user are missing.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        use std::io::ErrorKind::PermissionDenied;
        matches!(self, Self::Io { error, .. } if error.kind() == PermissionDenied)
    }
}

fn fix_of(error: &std::io::Error, maker: &str) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "; its owner is root, its group the daemon's: try sudo".to_owned()
        }
        std::io::ErrorKind::NotFound => format!("; make one with `{maker}`"),
        _ => String::new(),
    }
}

/// A kind of file with a secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SecretKind {
    /// Head of the file, for a person that finds one.
    pub(crate) head: &'static str,
    /// Beginning of the line with the secret, which tells one kind from another.
    pub(crate) prefix: &'static str,
    /// What the file holds.
    pub(crate) what: &'static str,
    /// Command that makes such a file.
    pub(crate) maker: &'static str,
}

impl SecretKind {
    /// The error of an action that the kernel refused.
    pub(crate) fn io(
        self,
        path: &Path,
        action: &'static str,
    ) -> impl FnOnce(std::io::Error) -> KeyFileError {
        move |error| KeyFileError::Io { path: path.to_owned(), action, error, maker: self.maker }
    }

    /// Reads a file of this kind.
    ///
    /// # Errors
    /// [`KeyFileError`], with the fix.
    pub(crate) fn read(self, path: &Path) -> Result<Secret, KeyFileError> {
        let content = |line| {
            let (path, what, maker) = (path.to_owned(), self.what, self.maker);
            KeyFileError::Content { path, line, what, maker }
        };
        let file = open_unwaited(path).map_err(self.io(path, "cannot be opened"))?;
        let metadata = file.metadata().map_err(self.io(path, "cannot be looked at"))?;
        let mode = metadata.permissions().mode() & 0o777;
        if !metadata.is_file() {
            return Err(content(None));
        }
        if mode & KEY_FILE_OPEN_MODE != 0 {
            return Err(KeyFileError::Open { path: path.to_owned(), mode });
        }
        // The buffer has its full size from the start: memory left behind by growing would not be
        // wiped.
        let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
        let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(self.io(path, "cannot be read"))?;
        let numbered = text.lines().map(str::trim).enumerate();
        let mut lines = numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (at, line) = lines.next().ok_or_else(|| content(None))?;
        let secret = line.strip_prefix(self.prefix).and_then(decode_secret);
        let secret = secret.ok_or_else(|| content(Some(at + 1)))?;
        match lines.next() {
            Some((at, _)) => Err(content(Some(at + 1))),
            None => Ok(secret),
        }
    }

    /// Writes a new file that only the user and, if given, `group` can read. An existing file is
    /// not touched.
    ///
    /// # Errors
    /// [`KeyFileError`]; then no file is left behind.
    pub(crate) fn write(
        self,
        path: &Path,
        secret: &Secret,
        group: Option<u32>,
    ) -> Result<(), KeyFileError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = file.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => KeyFileError::Exists(path.to_owned()),
            _ => self.io(path, "cannot be created")(error),
        })?;
        let written = self.fill(&mut file, secret, group);
        if written.is_err() {
            let _ = std::fs::remove_file(path);
        }
        written.map_err(self.io(path, "cannot be written"))
    }

    fn fill(self, file: &mut File, secret: &Secret, group: Option<u32>) -> std::io::Result<()> {
        let letters = Zeroizing::new(BASE64_STANDARD.encode(secret.as_slice()));
        for part in [self.head, self.prefix, letters.as_str(), "\n"] {
            file.write_all(part.as_bytes())?;
        }
        if let Some(group) =
            group.filter(|group| file.metadata().map_or(true, |it| it.gid() != *group))
        {
            fchown(&*file, None, Some(group))?;
        }
        if group.is_some() {
            file.set_permissions(std::fs::Permissions::from_mode(0o640))?;
        }
        file.sync_all()
    }
}

/// A secret from its letters.
pub(crate) fn decode_secret(text: &str) -> Option<Secret> {
    let bytes = Zeroizing::new(BASE64_STANDARD.decode(text).ok()?);
    let exact: [u8; KEY_BYTES] = bytes.as_slice().try_into().ok()?;
    Some(Zeroizing::new(exact))
}
