//! Opens regular files by a name that may lead to something else by now. Opening a pipe would wait
//! for its other end, and opening a device may have an effect.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Longest file that is read.
const BYTES_MAX: u64 = 1 << 20;

/// Opens a file to be read, without waiting, whatever it is.
pub(crate) fn open_unwaited(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Opens a file to be read, and checks what was opened, not what the name led to before.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = open_unwaited(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file)
}

/// The text of a regular file.
///
/// # Errors
/// Errors of the kernel; or the file is not regular, too long, or no text.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io::Error::other(format!("it is longer than {BYTES_MAX} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_refused_and_nobody_waits_for_its_other_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .expect("made");
        std::fs::write(&file, "text").expect("written");
        assert_eq!(read_text(&file).expect("a file"), "text");
        for path in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
            let error = read_text(path).expect_err("no file").to_string();
            assert!(error.contains("no regular file"), "{error}");
        }
    }
}
