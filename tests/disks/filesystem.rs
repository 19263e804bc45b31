//! A file system of the test's own, whose device fails as told.
//!
//! It is a real one to everybody else: FUSE, served by a thread of the test. Every byte that is
//! read or written comes here (nothing is cached), so what the daemon did can be counted, and what
//! was not synced can be lost as in a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL, TimeOrNow,
    WriteFlags,
};
use rustix::mount::{UnmountFlags, unmount};

/// What goes wrong from now on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Reads and writes that touch these bytes of a file fail (EIO).
    pub(crate) bad: Option<Range<u64>>,
    /// Syncs fail (EIO).
    pub(crate) bad_syncs: bool,
    /// No read or write moves more bytes.
    pub(crate) longest: Option<usize>,
    /// Bytes of all files together.
    pub(crate) room: Option<u64>,
    /// Nothing is answered until this is over.
    pub(crate) holds: bool,
}

/// What was asked of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) syncs: u64,
    pub(crate) allocations: u64,
}

#[derive(Debug, Default)]
struct Inode {
    name: String,
    content: Vec<u8>,
    /// What was synced.
    stable: Vec<u8>,
}

/// An answer that is given later.
type Answer = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
struct State {
    inodes: BTreeMap<u64, Inode>,
    rules: Rules,
    counts: Counts,
    /// What waits for its answer.
    held: Vec<Answer>,
    /// The files that these read.
    reading: Vec<u64>,
}

/// A mounted one. Dropped, it answers all it holds and is gone, whoever still has files of it.
pub(crate) struct Faulty {
    state: Arc<Mutex<State>>,
    session: Option<BackgroundSession>,
    directory: tempfile::TempDir,
}

impl Faulty {
    /// `None`, with the reason printed, where it cannot be mounted.
    pub(crate) fn mount() -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            eprintln!("skipped: /dev/fuse cannot be opened: {error}");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let state = Arc::new(Mutex::new(State::default()));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("piped-test".to_owned())];
        config.acl = SessionACL::All;
        match fuser::spawn_mount(Server(Arc::clone(&state)), directory.path(), &config) {
            Ok(session) => Some(Self { state, session: Some(session), directory }),
            Err(error) => {
                eprintln!("skipped: FUSE cannot be mounted: {error}");
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A file, stable.
    pub(crate) fn put(&self, name: &str, content: &[u8]) -> PathBuf {
        let mut state = self.state();
        let number = state.find(name).unwrap_or(state.inodes.len() as u64 + 2);
        let (content, stable) = (content.to_vec(), content.to_vec());
        state.inodes.insert(number, Inode { name: name.to_owned(), content, stable });
        self.path().join(name)
    }

    /// A file's bytes as they would be read now.
    pub(crate) fn content(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.inodes[&state.find(name).expect("it is there")].content.clone()
    }

    /// Cuts a file behind everybody's back.
    pub(crate) fn truncate(&self, name: &str, length: usize) {
        let mut state = self.state();
        let number = state.find(name).expect("it is there");
        state.inodes.get_mut(&number).expect("found").content.truncate(length);
    }

    /// Goes by other rules. What is held is answered as soon as it may be.
    pub(crate) fn set(&self, rules: Rules) {
        let mut state = self.state();
        state.rules = rules;
        if !state.rules.holds {
            state.reading.clear();
            for answer in std::mem::take(&mut state.held) {
                answer(&mut state);
            }
        }
    }

    pub(crate) fn hold(&self) {
        self.set(Rules { holds: true, ..Rules::default() });
    }

    /// How many requests wait for their answer.
    pub(crate) fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Names of the files with reads that wait for their answer.
    pub(crate) fn reading(&self) -> BTreeSet<String> {
        let state = self.state();
        state.reading.iter().map(|number| state.inodes[number].name.clone()).collect()
    }

    pub(crate) fn reset_counts(&self) {
        self.state().counts = Counts::default();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Loses what was not synced, of all files.
    pub(crate) fn cut_power(&self) {
        for inode in self.state().inodes.values_mut() {
            inode.content.clone_from(&inode.stable);
        }
    }

    /// Its server is gone: what it has not answered fails, and all that comes.
    pub(crate) fn die(&self) {
        // The file system is in use, so it stays mounted, but the connection is aborted.
        let _ = unmount(self.path(), UnmountFlags::FORCE);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.set(Rules::default());
        self.die();
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

impl State {
    fn find(&self, name: &str) -> Option<u64> {
        self.inodes.iter().find(|(_, inode)| inode.name == name).map(|(&number, _)| number)
    }

    fn attributes(&self, number: u64) -> Option<FileAttr> {
        let (kind, perm, size) = match self.inodes.get(&number) {
            Some(inode) => (FileType::RegularFile, 0o666, inode.content.len() as u64),
            None if number == 1 => (FileType::Directory, 0o777, 0),
            None => return None,
        };
        Some(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Answers now, or when nothing is held any more.
    fn answer(&mut self, answer: impl FnOnce(&mut Self) + Send + 'static) {
        if self.rules.holds {
            self.held.push(Box::new(answer));
        } else {
            answer(self);
        }
    }

    fn is_bad(&self, offset: u64, length: usize) -> bool {
        let end = offset + length as u64;
        self.rules.bad.as_ref().is_some_and(|bad| offset < bad.end && bad.start < end)
    }

    fn read(&self, number: u64, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let length = length.min(self.rules.longest.unwrap_or(usize::MAX));
        if self.is_bad(offset, length) {
            return Err(Errno::EIO);
        }
        let content = &self.inodes.get(&number).ok_or(Errno::ENOENT)?.content;
        let start = content.len().min(offset as usize);
        Ok(content[start..content.len().min(start + length)].to_vec())
    }

    fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let data = &data[..data.len().min(self.rules.longest.unwrap_or(usize::MAX))];
        if self.is_bad(offset, data.len()) {
            return Err(Errno::EIO);
        }
        let count = data.len().min(self.room_from(number, offset));
        if count == 0 && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        let start = offset as usize;
        let content = &mut self.inodes.get_mut(&number).ok_or(Errno::ENOENT)?.content;
        if content.len() < start + count {
            content.resize(start + count, 0);
        }
        content[start..start + count].copy_from_slice(&data[..count]);
        Ok(count)
    }

    /// How many bytes a write there may have.
    fn room_from(&self, number: u64, offset: u64) -> usize {
        let Some(room) = self.rules.room else { return usize::MAX };
        let used: u64 = self.inodes.values().map(|inode| inode.content.len() as u64).sum();
        let length = self.inodes.get(&number).map_or(0, |inode| inode.content.len() as u64);
        (length + room.saturating_sub(used)).saturating_sub(offset) as usize
    }

    fn allocate(&mut self, number: u64, offset: u64, length: u64) -> Result<(), Errno> {
        if (self.room_from(number, offset) as u64) < length {
            return Err(Errno::ENOSPC);
        }
        let content = &mut self.inodes.get_mut(&number).ok_or(Errno::ENOENT)?.content;
        let end = (offset + length) as usize;
        if content.len() < end {
            content.resize(end, 0);
        }
        Ok(())
    }

    fn sync(&mut self, number: u64) -> Result<(), Errno> {
        if self.rules.bad_syncs {
            return Err(Errno::EIO);
        }
        let inode = self.inodes.get_mut(&number).ok_or(Errno::ENOENT)?;
        inode.stable.clone_from(&inode.content);
        Ok(())
    }
}

/// Attributes are asked for each time: files change behind the kernel's back.
const TTL: Duration = Duration::ZERO;

struct Server(Arc<Mutex<State>>);

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics with it")
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.state();
        let found = name.to_str().and_then(|name| state.find(name));
        match found.and_then(|number| state.attributes(number)) {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.state().attributes(ino.0) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.state();
        if let (Some(inode), Some(size)) = (state.inodes.get_mut(&ino.0), size) {
            inode.content.resize(size as usize, 0);
        }
        match state.attributes(ino.0) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.state();
        let number = state.inodes.len() as u64 + 2;
        let name = name.to_string_lossy().into_owned();
        state.inodes.insert(number, Inode { name, ..Inode::default() });
        let attributes = state.attributes(number).expect("just made");
        reply.created(&TTL, &attributes, Generation(0), FileHandle(0), open_flags());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), open_flags());
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut state = self.state();
        state.counts.reads += 1;
        if state.rules.holds {
            state.reading.push(ino.0);
        }
        state.answer(move |state| match state.read(ino.0, offset, size as usize) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        let mut state = self.state();
        state.counts.writes += 1;
        state.answer(move |state| match state.write(ino.0, offset, &data) {
            Ok(count) => reply.written(count as u32),
            Err(error) => reply.error(error),
        });
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.state();
        state.counts.syncs += 1;
        state.answer(move |state| acknowledge(reply, state.sync(ino.0)));
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        let mut state = self.state();
        state.counts.allocations += 1;
        state.answer(move |state| acknowledge(reply, state.allocate(ino.0, offset, length)));
    }
}

fn acknowledge(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// No cache, so that everything comes here; and a close asks nothing, so that a test that ends
/// never waits for its own thread.
fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH
}
