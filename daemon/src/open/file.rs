//! A file as it is handed to a shard, and the checks on files that clients pass.
//!
//! The daemon never reopens or changes a passed file: that would change the client's own, or lend
//! it rights it does not have. So what it may do with it is what the client's descriptor can do,
//! and a client that changes flags behind our back gets errors on its own file.

use std::io;
use std::os::fd::AsFd;

use piped_control::fault::OpenFault;
use piped_core::access::{Access, Alignment};
use piped_core::ids::DeviceId;
use piped_core::status::Status;
use rustix::fs::{AtFlags, FileType, OFlags, Statx, StatxFlags};

use super::file_system::{self, Server};
use crate::closing::{HeldFile, Room};

/// A regular file, open.
#[derive(Debug)]
pub struct OpenedFile {
    /// The file with O_DIRECT, if the file system supports that.
    pub direct: Option<(HeldFile, Alignment)>,
    /// The file through the page cache.
    pub buffered: HeldFile,
    /// The device that the file lies on.
    pub device: DeviceId,
    /// The id of the file system it lies on; 0 if that has none but the device's number.
    pub file_system: u64,
    /// Length of the file in bytes.
    pub length: u64,
    /// The kinds of access that the file was opened for.
    pub access: Access,
    /// Whether another program or machine decides when operations end.
    pub foreign: bool,
}

impl OpenedFile {
    /// Opens nothing anew: other descriptors of the same open file. Locks are of that, so both have
    /// them.
    ///
    /// # Errors
    /// The process may not open more files.
    pub fn again(&self, room: &mut Room) -> io::Result<Self> {
        let direct = match &self.direct {
            Some((file, alignment)) => Some((file.again(room)?, *alignment)),
            None => None,
        };
        Ok(Self { direct, buffered: self.buffered.again(room)?, ..*self })
    }
}

/// Alignment of direct I/O where the kernel does not tell: every device accepts this one.
const ALIGNMENT_FALLBACK: Alignment = Alignment { offset: 4096, memory: 4096 };

/// Takes descriptors that a client passed.
///
/// # Errors
/// They are not regular files, not the same file, or cannot do what is asked.
pub fn inspect(
    direct: Option<HeldFile>,
    buffered: HeldFile,
    access: Access,
) -> Result<OpenedFile, OpenFault> {
    if !access.read && !access.write {
        return Err(invalid("the file is to be opened neither for reading nor for writing"));
    }
    let flags = flags_of(&buffered)?;
    check_flags(flags, access)?;
    if flags.contains(OFlags::DIRECT) {
        return Err(invalid(
            "the buffered descriptor has O_DIRECT; pass one without it, and the O_DIRECT one \
             before it",
        ));
    }
    if let Some(direct) = &direct {
        let flags = flags_of(direct)?;
        check_flags(flags, access)?;
        if !flags.contains(OFlags::DIRECT) {
            return Err(invalid("the direct descriptor does not have O_DIRECT"));
        }
    }
    describe(direct, buffered, access)
}

fn flags_of(file: &HeldFile) -> Result<OFlags, OpenFault> {
    rustix::fs::fcntl_getfl(file).map_err(|error| io("F_GETFL", error))
}

/// Whether a descriptor with these flags can serve.
fn check_flags(flags: OFlags, access: Access) -> Result<(), OpenFault> {
    if flags.contains(OFlags::PATH) {
        return Err(OpenFault::denied(
            "the descriptor was opened with O_PATH; open it for reading or writing",
        ));
    }
    let mode = flags & OFlags::RWMODE;
    if access.read && mode != OFlags::RDONLY && mode != OFlags::RDWR {
        return Err(OpenFault::denied("the descriptor was not opened for reading"));
    }
    if access.write && mode != OFlags::WRONLY && mode != OFlags::RDWR {
        return Err(OpenFault::denied("the descriptor was not opened for writing"));
    }
    if access.write && flags.contains(OFlags::APPEND) {
        return Err(invalid(
            "the descriptor has O_APPEND, which makes the kernel ignore offsets; open it without",
        ));
    }
    if flags.contains(OFlags::NONBLOCK) {
        return Err(invalid("the descriptor has O_NONBLOCK; open regular files without it"));
    }
    Ok(())
}

/// Finds out what a shard must know of a file whose descriptors are right.
///
/// # Errors
/// It is not a regular file, the two are not the same file, or the file system fails.
pub(super) fn describe(
    direct: Option<HeldFile>,
    buffered: HeldFile,
    access: Access,
) -> Result<OpenedFile, OpenFault> {
    let facts = statx(&buffered, StatxFlags::BASIC_STATS)?;
    check_regular(FileType::from_raw_mode(facts.stx_mode.into()))?;
    let served = file_system::check(&buffered, facts.stx_dev_major)?;
    let direct = match direct {
        Some(direct) => {
            let other = statx(&direct, StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN)?;
            if identity(&other) != identity(&facts) {
                return Err(invalid("the two descriptors are not of one file"));
            }
            alignment(&other).map(|alignment| (direct, alignment))
        }
        None => None,
    };
    let device = device_id(facts.stx_dev_major, facts.stx_dev_minor);
    let foreign = served == Server::Others;
    let (file_system, length) = (file_system_id(&buffered, device), facts.stx_size);
    Ok(OpenedFile { direct, buffered, device, file_system, length, access, foreign })
}

/// XFS makes its id of the device's number.
fn file_system_id(file: &HeldFile, device: DeviceId) -> u64 {
    let id = rustix::fs::fstatvfs(file).map_or(0, |facts| facts.f_fsid);
    if id == u64::from(device.0) { 0 } else { id }
}

pub(super) fn check_regular(kind: FileType) -> Result<(), OpenFault> {
    match kind {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(OpenFault::new(
            Status::IsDirectory,
            "it is a directory; only regular files are served",
        )),
        other => Err(OpenFault::denied(format!("it is {other:?}; only regular files are served"))),
    }
}

fn statx(file: &HeldFile, wanted: StatxFlags) -> Result<Statx, OpenFault> {
    rustix::fs::statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, wanted)
        .map_err(|error| io("statx", error))
}

fn identity(facts: &Statx) -> (u32, u32, u64) {
    (facts.stx_dev_major, facts.stx_dev_minor, facts.stx_ino)
}

/// How direct I/O must be aligned; `None` if the file cannot do it after all.
fn alignment(facts: &Statx) -> Option<Alignment> {
    let told = facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let Alignment { offset, memory } = match told {
        true => Alignment { offset: facts.stx_dio_offset_align, memory: facts.stx_dio_mem_align },
        false => ALIGNMENT_FALLBACK,
    };
    let usable = |align: &u32| align.is_power_of_two() && *align <= 64 * 1024;
    // The page cache works in pages and in blocks of the file system. The engine knows that neither
    // is below 4096 bytes; where one is longer, nothing shorter goes direct.
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(u32::MAX);
    let cached = [page, facts.stx_blksize].into_iter().filter(usable).max();
    let offset = match cached.filter(|&cached| cached > 4096) {
        Some(cached) => offset.max(cached),
        None => offset,
    };
    (usable(&offset) && usable(&memory)).then_some(Alignment { offset, memory })
}

/// The device that a file lies on.
pub(super) fn device_of(facts: &rustix::fs::Stat) -> DeviceId {
    device_id(rustix::fs::major(facts.st_dev), rustix::fs::minor(facts.st_dev))
}

/// A device's number as the kernel packs it into 32 bits (`new_encode_dev`).
fn device_id(major: u32, minor: u32) -> DeviceId {
    DeviceId((minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12)
}

fn invalid(text: impl Into<String>) -> OpenFault {
    OpenFault::new(Status::Invalid, text)
}

pub(super) fn io(call: &str, error: rustix::io::Errno) -> OpenFault {
    OpenFault::new(Status::Io, format!("{call} failed: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    const READ: Access = Access::READ;
    const WRITE: Access = Access::WRITE;

    fn held(file: impl Into<OwnedFd>) -> HeldFile {
        HeldFile::from(file.into())
    }

    fn status(result: Result<OpenedFile, OpenFault>) -> Status {
        result.map_or_else(|fault| fault.status, |_| Status::Ok)
    }

    #[test]
    fn a_descriptor_serves_what_it_was_opened_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("data");
        std::fs::write(&path, b"0123456789").expect("written");
        let open = |options: &mut OpenOptions| held(options.open(&path).expect("open"));
        let read = || open(OpenOptions::new().read(true));
        let write = || open(OpenOptions::new().write(true));
        let opened = inspect(None, read(), READ).expect("a regular file");
        assert_eq!(opened.length, 10);
        assert_eq!(status(inspect(None, write(), WRITE)), Status::Ok);
        assert_eq!(status(inspect(None, read(), WRITE)), Status::Denied);
        assert_eq!(status(inspect(None, write(), READ)), Status::Denied);
        let neither = Access::NONE;
        assert_eq!(status(inspect(None, read(), neither)), Status::Invalid);
        let append = open(OpenOptions::new().append(true));
        assert_eq!(status(inspect(None, append, WRITE)), Status::Invalid);
        let patient = open(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK));
        assert_eq!(status(inspect(None, patient, READ)), Status::Invalid);
        let place = open(OpenOptions::new().read(true).custom_flags(libc::O_PATH));
        assert_eq!(status(inspect(None, place, READ)), Status::Denied);
        assert_eq!(status(inspect(Some(read()), read(), READ)), Status::Invalid);
    }

    #[test]
    fn only_regular_files_are_served() {
        let dir = tempfile::tempdir().expect("a directory");
        let directory = held(File::open(dir.path()).expect("open"));
        assert_eq!(status(inspect(None, directory, READ)), Status::IsDirectory);
        let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
        assert_eq!(status(inspect(None, held(pipe), READ)), Status::Denied);
        let null = held(File::open("/dev/null").expect("open"));
        assert_eq!(status(inspect(None, null, READ)), Status::Denied);
    }

    #[test]
    fn device_numbers_are_packed_as_the_kernel_does() {
        assert_eq!(device_id(8, 1), DeviceId(0x801));
        assert_eq!(device_id(259, 5), DeviceId(259 << 8 | 5));
        assert_eq!(device_id(259, 0x102), DeviceId(0x0010_0000 | 259 << 8 | 2));
    }
}
