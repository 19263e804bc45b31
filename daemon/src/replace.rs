//! Files that are replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Replaces a file so that the old or the new one exists at any time, also after kill -9 and a
/// power cut. Its directory is made if only that is missing.
///
/// # Errors
/// Errors of the file system; the old file is as it was.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (temporary, mut file) = begin(path, "new", mode)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, path)) {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    File::open(directory_of(path))?.sync_all()
}

/// Whether a file could be replaced now, as far as can be known without doing it.
///
/// # Errors
/// Errors of the file system.
pub fn try_to_begin(path: &Path, mode: u32) -> io::Result<()> {
    // With a name of its own: an attempt that was given up, and ends late, must not meddle with a
    // real one.
    let (temporary, _) = begin(path, "try", mode)?;
    fs::remove_file(temporary)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Makes the new file, empty, under a temporary path.
fn begin(path: &Path, ending: &str, mode: u32) -> io::Result<(PathBuf, File)> {
    let directory = directory_of(path);
    if !directory.exists() {
        fs::create_dir(directory)?;
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // A hidden name, because a rest of it after a crash is nobody's file.
    let temporary = directory.join(format!(".{}.{ending}", name.to_string_lossy()));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Always a new file, because a link to something else may lie there.
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    Ok((temporary, file))
}
