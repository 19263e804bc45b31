//! The file that is moved: made fast, and not compressible, so that no layer below can cheat.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use blake3::{Hash, Hasher};

use super::Cancel;
use crate::failure::Failure;
use crate::output::Progress;
use crate::page_cache;
use crate::random::mixed;
use crate::units;

const PIECE: usize = 1 << 20;

/// Makes a file of `size` bytes that is on the disk and out of the page cache.
pub(super) fn make(
    path: &Path,
    size: u64,
    cancel: &Cancel,
    progress: &Progress,
) -> Result<Hash, Failure> {
    let fail = |error| Failure::io(format_args!("cannot write {}", path.display()), &error);
    let mut file = File::create_new(path).map_err(fail)?;
    let mut hasher = Hasher::new();
    let mut piece = vec![0_u8; PIECE];
    let (mut done, mut counter) = (0_u64, 0_u64);
    while done < size {
        cancel.check()?;
        progress.say(format_args!(
            "making the file: {} of {}",
            units::bytes(done),
            units::bytes(size)
        ));
        for word in piece.chunks_exact_mut(8) {
            counter += 1;
            word.copy_from_slice(&mixed(counter).to_le_bytes());
        }
        let length = usize::try_from(size - done).map_or(PIECE, |rest| rest.min(PIECE));
        file.write_all(&piece[..length]).map_err(fail)?;
        hasher.update(&piece[..length]);
        done += length as u64;
    }
    progress.say("making the file: waiting for the disk");
    file.sync_all().map_err(fail)?;
    page_cache::forget(&file);
    Ok(hasher.finalize())
}

/// BLAKE3 of a file, read with ordinary system calls.
pub(super) fn hash(path: &Path, cancel: &Cancel, progress: &Progress) -> Result<Hash, Failure> {
    let fail = |error| Failure::io(format_args!("cannot read {}", path.display()), &error);
    let mut file = File::open(path).map_err(fail)?;
    let mut hasher = Hasher::new();
    let mut piece = vec![0_u8; PIECE];
    let mut done = 0;
    loop {
        cancel.check()?;
        progress.say(format_args!("verifying by BLAKE3: {}", units::bytes(done)));
        match file.read(&mut piece).map_err(fail)? {
            0 => break,
            length => {
                hasher.update(&piece[..length]);
                done += length as u64;
            }
        }
    }
    page_cache::forget(&file);
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_its_size_its_hash_and_no_repetition() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        let (cancel, progress) = (Cancel::default(), Progress::new(false));
        let size = (2 << 20) + 4097;
        let made = make(&path, size, &cancel, &progress).expect("made");
        let bytes = std::fs::read(&path).expect("readable");
        assert_eq!(bytes.len() as u64, size);
        assert_eq!(made, blake3::hash(&bytes));
        assert_eq!(made, hash(&path, &cancel, &progress).expect("hashed"));
        assert_ne!(bytes[..PIECE], bytes[PIECE..2 * PIECE]);
        assert!(make(&path, 1, &cancel, &progress).is_err(), "never over an existing file");
    }

    #[test]
    fn a_cancelled_demo_stops_making_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let cancel = Cancel::default();
        cancel.set();
        let made = make(&directory.path().join("f"), 1 << 40, &cancel, &Progress::new(false));
        assert!(made.is_err());
    }
}
