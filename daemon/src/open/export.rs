//! Directories this node offers, and files below them.
//!
//! A path comes from a client or a peer, and the daemon has rights that they lack. So the kernel
//! resolves it with RESOLVE_BENEATH from a directory that was opened at start, in two steps. The
//! first is O_PATH, which opens nothing (a FIFO or a device would otherwise feel it). If a regular
//! file is there, the second opens that very file by its place in /proc/self/fd. Both descriptors
//! of a file come from the one place, so they are of one file whatever is renamed meanwhile.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use piped_config::{Names, UnknownName};
use piped_control::fault::OpenFault;
use piped_control::grants::{Grants, Root};
use piped_control::parties::Asker;
use piped_control::reload::Outside;
use piped_core::access::{Access, Creation, NewFile};
use piped_core::ids::DeviceId;
use piped_core::status::Status;
use piped_text::shown_bytes;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::below::{BENEATH, CREATE, CREATE_DIRECTORY, check_below, check_path, refused};
use super::directory::OpenedDirectory;
use super::file::{OpenedFile, check_regular, describe, device_of, io};
use super::file_system;
use crate::calls::make_directory;
use crate::calls::place::OPEN_ATTEMPTS;
use crate::closing::Room;

/// The directories of all exports, by name, and the rights to them.
#[derive(Debug, Default)]
pub struct Exports {
    directories: BTreeMap<String, Arc<OwnedFd>>,
    grants: Arc<Grants>,
}

/// Why the daemon does not start with these exports.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The directory cannot be opened.
    #[error(
        "exports.{name}.path: {} cannot be opened as a directory ({error}); create it, or correct \
         the key",
        path.display()
    )]
    Directory {
        /// The export's name in the configuration.
        name: String,
        /// The directory that the export offers.
        path: std::path::PathBuf,
        /// The error of the kernel.
        error: Errno,
    },
    /// A user or a group of the export is not known to the system.
    #[error("exports.{name}.{list}: {error}")]
    User {
        /// The export's name in the configuration.
        name: String,
        /// The key with the name: `users` or `groups`.
        list: &'static str,
        /// The name that is not known.
        error: UnknownName,
    },
}

impl Exports {
    /// Opens the directories.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn new(
        exports: &BTreeMap<String, piped_config::Export>,
        names: &Names,
    ) -> Result<Self, ExportError> {
        Self::default().follow(exports, names, &Outside::new())
    }

    /// Opens the directories of another configuration, but for those that are out of reach: such an
    /// export keeps the directory that it has here, or is none.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn follow(
        &self,
        exports: &BTreeMap<String, piped_config::Export>,
        names: &Names,
        outside: &Outside,
    ) -> Result<Self, ExportError> {
        let (mut directories, mut grants) = (BTreeMap::new(), Grants::default());
        let mut add = |name: &String, export, directory, root| {
            let misnamed = |(list, error)| ExportError::User { name: name.clone(), list, error };
            directories.insert(name.clone(), directory);
            grants.add(name, export, names, root).map_err(misnamed)
        };
        for (name, export) in outside {
            let before = self.directories.get(name).zip(self.grants.root(name));
            if let (Some(export), Some((directory, root))) = (export, before) {
                add(name, export, Arc::clone(directory), root)?;
            }
        }
        for (name, export) in exports.iter().filter(|(name, _)| !outside.contains_key(*name)) {
            let (directory, root) = open_root(&export.path).map_err(|error| {
                ExportError::Directory { name: name.clone(), path: export.path.clone(), error }
            })?;
            add(name, export, Arc::new(directory), root)?;
        }
        Ok(Self { directories, grants: Arc::new(grants) })
    }

    /// The rights to all exports.
    #[must_use]
    pub fn grants(&self) -> Arc<Grants> {
        Arc::clone(&self.grants)
    }

    /// Whether an export here is the directory that a path leads to now. May block in the file
    /// system.
    #[must_use]
    pub fn is_at(&self, name: &str, path: &std::path::Path) -> bool {
        self.grants
            .root(name)
            .is_some_and(|root| open_root(path).is_ok_and(|(_, there)| there == root))
    }

    /// Opens a file below an export, two descriptors at most. May block in the file system.
    ///
    /// # Errors
    /// No such export or file, no permission, or not a regular file.
    pub fn open(
        &self,
        asker: Asker<'_>,
        name: &str,
        path: &[u8],
        access: Access,
        create: Creation,
        mut room: Room,
    ) -> Result<OpenedFile, OpenFault> {
        if access.names {
            return Err(OpenFault::new(Status::Invalid, "only directories have names"));
        }
        let export = self.allow(asker, name, access, create)?;
        export.told(|directory| {
            check_path(path)?;
            let found = find(directory, path, access, create)?;
            let flags = match (access.read, access.write) {
                (true, true) => OFlags::RDWR,
                (false, true) => OFlags::WRONLY,
                _ => OFlags::RDONLY,
            };
            let buffered = reopen(&found.place, flags);
            // EINVAL: the file system has no direct I/O.
            let direct = reopen(&found.place, flags | OFlags::DIRECT).ok();
            found.settle_mode()?;
            let buffered = buffered.map_err(|error| refused("open", path, error))?;
            if direct.is_some() {
                // What is read through the page cache was there: nothing is to be read ahead of it.
                // An advice: without it some pages come that nobody asked for.
                let _ = rustix::fs::fadvise(&buffered, 0, None, rustix::fs::Advice::Random);
            }
            describe(direct.map(|fd| room.hold(fd)), room.hold(buffered), access)
        })
    }

    /// Opens a directory below an export, or the export itself (an empty path): one descriptor. May
    /// block in the file system.
    ///
    /// # Errors
    /// No such export or directory, or no permission.
    pub fn open_directory(
        &self,
        asker: Asker<'_>,
        name: &str,
        path: &[u8],
        access: Access,
        mut room: Room,
    ) -> Result<OpenedDirectory, OpenFault> {
        let export = self.allow(asker, name, access, Creation::No)?;
        export.told(|directory| {
            check_below(path)?;
            OpenedDirectory::open(directory, path, access, &mut room)
        })
    }

    /// The device on which a file lies; of one that is to be made, that of the export. Nothing is
    /// opened for reading. May block in the file system.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn device(
        &self,
        asker: Asker<'_>,
        name: &str,
        path: &[u8],
        write: bool,
    ) -> Result<DeviceId, OpenFault> {
        let wanted = if write { Access::WRITE } else { Access::READ };
        let export = self.allow(asker, name, wanted, Creation::No)?;
        export.told(|directory| {
            check_path(path)?;
            let found = match find(directory, path, wanted, Creation::No) {
                Err(fault) if fault.status == Status::NotFound && write => {
                    rustix::fs::fstat(directory)
                }
                found => rustix::fs::fstat(found?.place),
            };
            Ok(device_of(&found.map_err(|error| io("fstat", error))?))
        })
    }

    /// The export that a party may use so.
    fn allow(
        &self,
        asker: Asker<'_>,
        name: &str,
        access: Access,
        create: Creation,
    ) -> Result<Allowed<'_>, OpenFault> {
        let offered = self.grants.allow(asker, name, access, create)?;
        let gone = || OpenFault::new(Status::Io, format!("the export `{name}` has no directory"));
        let directory = self.directories.get(name).ok_or_else(gone)?.as_fd();
        Ok(Allowed { directory, is_readable: offered.read })
    }
}

/// The directory of an export that a party may use.
struct Allowed<'a> {
    directory: BorrowedFd<'a>,
    is_readable: bool,
}

impl Allowed<'_> {
    /// The outcome of work below the directory, as far as the party may know of what is there.
    fn told<T>(
        &self,
        work: impl FnOnce(BorrowedFd<'_>) -> Result<T, OpenFault>,
    ) -> Result<T, OpenFault> {
        work(self.directory).map_err(|fault| match self.is_readable {
            true => fault,
            false => fault.for_who_may_not_read(),
        })
    }
}

fn open_root(path: &std::path::Path) -> rustix::io::Result<(OwnedFd, Root)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    let facts = rustix::fs::fstat(&directory)?;
    Ok((directory, Root { device: facts.st_dev, inode: facts.st_ino }))
}

/// What a path leads to.
struct Found {
    /// An O_PATH descriptor, or a file that was just made.
    place: OwnedFd,
    /// Permissions of such a file that nobody asked for.
    extra: Mode,
}

/// Permissions that the daemon's user needs of a file, to open it again.
const OWN: Mode = Mode::RUSR.union(Mode::WUSR);

impl Found {
    /// A file that was just made has the permissions that were asked for, from now on.
    fn settle_mode(&self) -> Result<(), OpenFault> {
        if self.extra.is_empty() {
            return Ok(());
        }
        let facts = rustix::fs::fstat(&self.place).map_err(|error| io("fstat", error))?;
        let mode = Mode::from_raw_mode(facts.st_mode).difference(self.extra);
        rustix::fs::fchmod(&self.place, mode).map_err(|error| io("fchmod", error))
    }
}

/// Where the path leads: something that is there, or a file that is made, which is to be opened for
/// `access`.
fn find(
    directory: BorrowedFd<'_>,
    path: &[u8],
    access: Access,
    create: Creation,
) -> Result<Found, OpenFault> {
    for _ in 0..OPEN_ATTEMPTS {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let made = create.made();
        match rustix::fs::openat2(directory, path, flags, Mode::empty(), BENEATH) {
            Ok(_) if matches!(create, Creation::New(_)) => {
                return Err(refused(CREATE, path, Errno::EXIST));
            }
            Ok(place) => {
                let facts = rustix::fs::fstat(&place).map_err(|error| io("fstat", error))?;
                check_regular(FileType::from_raw_mode(facts.st_mode))?;
                // Before it is opened: some files of the kernel's act on that already.
                file_system::check(&place, rustix::fs::major(facts.st_dev))?;
                return Ok(Found { place, extra: Mode::empty() });
            }
            Err(Errno::NOENT) if made.is_some() => {}
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(error) => return Err(refused("open", path, error)),
        }
        let Some(new) = made else { continue };
        match make(directory, path, access, new)? {
            Err(Errno::EXIST) if matches!(create, Creation::New(_)) => {
                return Err(refused(CREATE, path, Errno::EXIST));
            }
            Err(Errno::EXIST | Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(refused(CREATE, path, error)),
            Ok(place) => {
                let extra = OWN.difference(Mode::from_raw_mode(new.mode.into()));
                return Ok(Found { place, extra });
            }
        }
    }
    let path = shown_bytes(path);
    let text = format!("`{path}` is renamed all the time, or is a link to nothing; try again");
    Err(OpenFault::new(Status::WouldBlock, text))
}

/// Makes a file that its owner may open again, and the directories on the way to it if they are
/// wanted.
fn make(
    directory: BorrowedFd<'_>,
    path: &[u8],
    access: Access,
    new: NewFile,
) -> Result<rustix::io::Result<OwnedFd>, OpenFault> {
    let parent = parent_of(path);
    check_kind(directory, parent)?;
    // EXCL: what is opened is the file made here, and never something that waits there.
    // Who may only write gets no descriptor that reads, which the sandbox would refuse to make.
    let mode = if access.read { OFlags::RDWR } else { OFlags::WRONLY };
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | mode;
    let mode = Mode::from_raw_mode(new.mode.into()) | OWN;
    let make = || rustix::fs::openat2(directory, path, flags, mode, BENEATH);
    match make() {
        Err(Errno::NOENT) if new.parents => {
            // They are made on the mount of the export itself.
            check_kind(directory, b".")?;
            let made = make_directory::all(directory, parent, DIRECTORY_MODE);
            made.map_err(|error| refused(CREATE_DIRECTORY, path, error))?;
            Ok(make())
        }
        made => Ok(made),
    }
}

/// Permissions of directories that are made for a file: the daemon's user writes, its group looks.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o750);

/// The directory of a path.
fn parent_of(path: &[u8]) -> &[u8] {
    let last = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    let slash = path[..last].iter().rposition(|&byte| byte == b'/');
    slash.map_or(&b"."[..], |at| &path[..at])
}

/// Whether files may be made in a directory: in some, a file that is made is a queue or a kernel's
/// object. One that is not there is told apart by the one who makes the file.
fn check_kind(directory: BorrowedFd<'_>, parent: &[u8]) -> Result<(), OpenFault> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(parent) = rustix::fs::openat2(directory, parent, flags, Mode::empty(), BENEATH) else {
        return Ok(());
    };
    let facts = rustix::fs::fstat(&parent).map_err(|error| io("fstat", error))?;
    file_system::check(&parent, rustix::fs::major(facts.st_dev)).map(drop)
}

/// Opens a regular file by its place. The magic link is our own, not one that a path led to.
fn reopen(place: &OwnedFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use piped_control::parties::{Credentials, NodeOf};

    use super::*;
    use crate::closing::{Account, Closer};

    const READ: Access = Access::READ;
    const WRITE: Access = Access::WRITE;

    struct World {
        _dir: tempfile::TempDir,
        exports: Exports,
    }

    fn room() -> Room {
        let (closer, _) = Closer::new();
        Account::new(closer, 2, 1, None).try_room(2).expect("an empty account")
    }

    /// A directory with everything that must be refused, and what must not.
    fn world() -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("sub")).expect("made");
        std::fs::write(dir.path().join("secret"), b"secret").expect("written");
        std::fs::write(root.join("data"), b"0123456789").expect("written");
        std::fs::write(root.join("sub/more"), b"more").expect("written");
        symlink("data", root.join("inside")).expect("linked");
        symlink("../secret", root.join("outside")).expect("linked");
        symlink("/etc/passwd", root.join("absolute")).expect("linked");
        symlink("..", root.join("up")).expect("linked");
        symlink("nowhere", root.join("dangling")).expect("linked");
        symlink("/proc/self/exe", root.join("magic")).expect("linked");
        let fifo = root.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).expect("made");
        let export = |read, write, users: Vec<u32>, groups: Vec<u32>, peers: Vec<&str>| {
            piped_config::Export {
                path: root.clone(),
                read,
                write,
                names: write,
                users: users.into_iter().map(piped_config::Principal::Id).collect(),
                groups: groups.into_iter().map(piped_config::Principal::Id).collect(),
                peers: peers.into_iter().map(str::to_owned).collect(),
            }
        };
        let exports = BTreeMap::from([
            ("all".to_owned(), export(true, true, vec![], vec![], vec![])),
            ("write".to_owned(), export(false, true, vec![], vec![], vec![])),
            ("read".to_owned(), export(true, false, vec![], vec![], vec![])),
            ("some".to_owned(), export(true, false, vec![7], vec![50], vec!["beta"])),
            ("group".to_owned(), export(true, false, vec![], vec![50], vec![])),
        ]);
        let exports = Exports::new(&exports, &Names::default()).expect("directories");
        World { _dir: dir, exports }
    }

    fn open(world: &World, path: &str, access: Access, create: Creation) -> Status {
        let result = world.exports.open(
            Asker::User(&Credentials::of(0, 0)),
            "all",
            path.as_bytes(),
            access,
            create,
            room(),
        );
        result.map_or_else(|fault| fault.status, |_| Status::Ok)
    }

    #[test]
    fn files_below_are_opened_and_nothing_else() {
        let world = world();
        for (path, status) in [
            ("data", Status::Ok),
            ("sub/more", Status::Ok),
            ("./sub//more", Status::Ok),
            ("inside", Status::Ok),
            ("missing", Status::NotFound),
            ("data/below", Status::NotDirectory),
            ("sub", Status::IsDirectory),
            (".", Status::IsDirectory),
            ("fifo", Status::Denied),
            ("outside", Status::Loop),
            ("absolute", Status::Loop),
            ("up/secret", Status::Loop),
            ("magic", Status::Loop),
            ("../secret", Status::Denied),
            ("sub/../data", Status::Denied),
            ("/etc/passwd", Status::Denied),
            ("", Status::Invalid),
            ("da\0ta", Status::Invalid),
        ] {
            assert_eq!(open(&world, path, READ, Creation::No), status, "{path:?}");
        }
    }

    #[test]
    fn writing_and_creating_stay_below_too() {
        let world = world();
        assert_eq!(open(&world, "new", WRITE, Creation::OPEN), Status::Ok);
        assert_eq!(
            open(&world, "new", WRITE, Creation::OPEN),
            Status::Ok,
            "it may be there already"
        );
        assert_eq!(open(&world, "other", READ, Creation::OPEN), Status::Invalid);
        assert_eq!(open(&world, "fifo", WRITE, Creation::OPEN), Status::Denied);
        assert_eq!(open(&world, "sub", WRITE, Creation::OPEN), Status::IsDirectory);
        assert_eq!(open(&world, "up/new", WRITE, Creation::OPEN), Status::Loop);
        assert_ne!(open(&world, "dangling", WRITE, Creation::OPEN), Status::Ok);
        assert_eq!(open(&world, "no/such/directory", WRITE, Creation::OPEN), Status::NoDirectory);
    }

    /// An operator's directory may have such a file system mounted somewhere below, or be of one.
    #[test]
    fn what_the_kernel_makes_up_below_an_export_is_not_served() {
        let export = |path: &str| {
            let export =
                piped_config::Export { path: path.into(), write: true, ..Default::default() };
            (path.to_owned(), export)
        };
        let exports = BTreeMap::from(["/", "/proc", "/sys"].map(export));
        let exports = Exports::new(&exports, &Names::default()).expect("directories");
        let user = Credentials::of(0, 0);
        let open = |name, path: &str, access, create| {
            exports.open(Asker::User(&user), name, path.as_bytes(), access, create, room())
        };
        for (name, path, access) in [
            ("/", "proc/version", READ),
            ("/", "proc/1/stat", READ),
            ("/proc", "version", READ),
            ("/proc", "sys/vm/drop_caches", WRITE),
            ("/sys", "kernel/notes", READ),
        ] {
            let fault = open(name, path, access, Creation::No).expect_err(path);
            assert_eq!(fault.status, Status::Denied, "{path}: {fault}");
            let asked = exports.device(Asker::User(&user), name, path.as_bytes(), access.write);
            assert_eq!(asked.map_err(|fault| fault.status), Err(Status::Denied), "{path}");
            if path != "kernel/notes" {
                assert!(fault.text.contains("procfs"), "{fault}");
            }
        }
        // Nor is anything made there.
        for path in ["new", "sys/new", "sys//new/"] {
            let fault =
                open("/proc", path, WRITE, Creation::OPEN).expect_err("nothing can be made there");
            assert!(fault.text.contains("procfs"), "{path}: {fault}");
        }
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").trim_start_matches('/');
        open("/", manifest, READ, Creation::No).expect("a file of a disk");
    }

    #[test]
    fn a_new_file_is_made_as_asked_or_not_at_all() {
        let world = world();
        let new = |mode, parents| NewFile { mode, parents };
        let root = world._dir.path().join("root");
        let mode = |path: &str| {
            let facts = rustix::fs::stat(root.join(path)).expect("made");
            facts.st_mode & 0o7777
        };
        let own = Creation::New(new(0o600, false));
        assert_eq!(open(&world, "own", WRITE, own), Status::Ok);
        assert_eq!(mode("own"), 0o600);
        for there in ["own", "data", "fifo", "sub", "inside", "dangling"] {
            let status = open(&world, there, WRITE, own);
            assert_eq!(status, Status::Exists, "{there}");
        }
        assert_eq!(open(&world, "outside", WRITE, own), Status::Loop);
        assert_eq!(open(&world, "own", READ, own), Status::Invalid);
        // Directories on the way.
        for create in [Creation::Open(new(0o640, true)), Creation::New(new(0o640, true))] {
            assert_eq!(open(&world, "far/away/file", WRITE, create), Status::Ok);
            assert_eq!(open(&world, "data/below", WRITE, create), Status::NotDirectory);
            assert_eq!(open(&world, "up/made/file", WRITE, create), Status::Loop);
            assert_eq!(open(&world, "../made/file", WRITE, create), Status::Denied);
            std::fs::remove_file(root.join("far/away/file")).expect("made");
        }
        assert_eq!(mode("far") & 0o077, 0o050);
        assert!(!world._dir.path().join("made").exists());
    }

    /// Whoever has made a file may use it, as with a local file.
    #[test]
    fn a_new_file_is_open_for_what_was_asked_whatever_its_mode() {
        let world = world();
        let (dir, root) = (world._dir.path(), world._dir.path().join("root"));
        for (path, mode) in [(dir, 0o755), (&root, 0o777)] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("ours");
        }
        std::fs::File::create(root.join("plain")).expect("made");
        let mode = |path: &str| rustix::fs::stat(root.join(path)).expect("made").st_mode & 0o7777;
        // What the umask leaves.
        let left = mode("plain") | 0o111;
        let check = || {
            let wanted = [WRITE, Access::READ_WRITE];
            for (number, (access, asked)) in wanted
                .into_iter()
                .flat_map(|access| [0, 0o200, 0o400, 0o444, 0o640].map(|asked| (access, asked)))
                .enumerate()
            {
                let path = format!("new{number}");
                let create = Creation::New(NewFile { mode: asked, parents: false });
                assert_eq!(open(&world, &path, access, create), Status::Ok, "{access:?} {asked:o}");
                assert_eq!(mode(&path), u32::from(asked) & left, "{access:?} {asked:o}");
            }
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // Root's rights pass over modes; of them only this thread is rid.
                let somebody = rustix::process::Uid::from_raw(65_534);
                let is_root = rustix::process::geteuid().is_root();
                let became = rustix::thread::set_thread_res_uid(somebody, somebody, somebody);
                match became {
                    Err(error) if is_root => {
                        eprintln!("skipped: root with no other user ({error})")
                    }
                    _ => check(),
                }
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    #[test]
    fn directories_are_opened_for_what_the_export_gives() {
        let world = world();
        let names = Access { names: true, ..READ };
        let open = |export, path: &str, access| {
            let asker = Credentials::of(0, 0);
            let opened = world.exports.open_directory(
                Asker::User(&asker),
                export,
                path.as_bytes(),
                access,
                room(),
            );
            opened.map_or_else(|fault| fault.status, |_| Status::Ok)
        };
        for (export, path, access, status) in [
            ("all", "", names, Status::Ok),
            ("all", "sub", READ, Status::Ok),
            ("all", "./sub/", READ, Status::Ok),
            ("all", "data", READ, Status::NotDirectory),
            ("all", "fifo", READ, Status::NotDirectory),
            ("all", "missing", READ, Status::NotFound),
            ("all", "up", READ, Status::Loop),
            ("all", "magic", READ, Status::Loop),
            ("all", "..", READ, Status::Denied),
            ("all", "/", READ, Status::Denied),
            ("all", "", Access::NONE, Status::Invalid),
            ("read", "", READ, Status::Ok),
            ("read", "", names, Status::Denied),
            ("write", "", READ, Status::Denied),
            ("write", "", Access { names: true, ..Access::NONE }, Status::Ok),
            // Who may not read learns less.
            ("write", "data", WRITE, Status::NotFound),
            ("write", "up", WRITE, Status::Denied),
            ("none", "", READ, Status::NoExport),
        ] {
            assert_eq!(open(export, path, access), status, "{export} {path:?}");
        }
        let file = world.exports.open(
            Asker::User(&Credentials::of(0, 0)),
            "all",
            b"data",
            names,
            Creation::No,
            room(),
        );
        assert_eq!(file.map_err(|fault| fault.status).err(), Some(Status::Invalid));
    }

    #[test]
    fn names_are_a_right_of_their_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let export =
            piped_config::Export { path: dir.path().to_owned(), write: true, ..Default::default() };
        let exports = BTreeMap::from([("data".to_owned(), export)]);
        let exports = Exports::new(&exports, &Names::default()).expect("directories");
        let user = Credentials::of(0, 0);
        let names = Access { names: true, ..READ };
        let opened = exports.open_directory(Asker::User(&user), "data", b"", names, room());
        let fault = opened.expect_err("not given");
        assert_eq!(fault.status, Status::Denied);
        assert!(fault.text.contains("exports.data.names"), "{fault}");
        let create = Creation::Open(NewFile { parents: true, ..NewFile::PLAIN });
        let made = exports.open(Asker::User(&user), "data", b"a/b", WRITE, create, room());
        assert_eq!(made.map_err(|fault| fault.status).err(), Some(Status::Denied));
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn permissions_are_those_of_the_export() {
        let World { _dir, exports } = &world();
        let status = |asker, name, access| {
            let result = exports.open(asker, name, b"data", access, Creation::No, room());
            result.map_or_else(|fault| fault.status, |_| Status::Ok)
        };
        let user = |uid, gid, groups: &[u32]| Credentials {
            groups: groups.to_vec(),
            ..Credentials::of(uid, gid)
        };
        let (root, seven, eight) = (user(0, 0, &[]), user(7, 1, &[]), user(8, 1, &[2, 3]));
        let (first, other) = (user(8, 50, &[]), user(8, 1, &[2, 50]));
        let node = |name| Asker::Peer(NodeOf { name, groups: &[] });
        for (asker, name, access, expected) in [
            (Asker::User(&root), "read", READ, Status::Ok),
            (Asker::User(&root), "read", WRITE, Status::Denied),
            (Asker::User(&root), "write", WRITE, Status::Ok),
            (Asker::User(&root), "write", READ, Status::Denied),
            (Asker::User(&root), "none", READ, Status::NoExport),
            // Not even root, where somebody is named.
            (Asker::User(&root), "some", READ, Status::NoExport),
            (Asker::User(&seven), "some", READ, Status::Ok),
            (Asker::User(&seven), "some", WRITE, Status::Denied),
            (Asker::User(&eight), "some", READ, Status::NoExport),
            (Asker::User(&first), "some", READ, Status::Ok),
            (Asker::User(&other), "some", READ, Status::Ok),
            (Asker::User(&seven), "group", READ, Status::NoExport),
            (Asker::User(&first), "group", READ, Status::Ok),
            (Asker::User(&other), "group", READ, Status::Ok),
            // Users and peers are named apart: no user is a peer, and the other way round.
            (node("gamma"), "group", READ, Status::Ok),
            (node("beta"), "some", READ, Status::Ok),
            (node("beta"), "some", WRITE, Status::Denied),
            (node("gamma"), "some", READ, Status::NoExport),
            (node("7"), "some", READ, Status::NoExport),
        ] {
            assert_eq!(status(asker, name, access), expected, "{asker} {name}");
        }
        assert_eq!(status(node("gamma"), "all", READ), Status::Ok);
    }

    #[test]
    fn a_name_without_a_key_gets_what_is_for_everybody_or_for_the_name() {
        let world = world();
        let [root, seven] = [0, 7].map(|uid| Credentials::of(uid, uid));
        let opened = |name, user, export| {
            let asker = Asker::Plain { name, user };
            world.exports.open(asker, export, b"data", READ, Creation::No, room()).is_ok()
        };
        for (name, user, expected) in [
            // From another machine: where users are named, only the name can get it in.
            ("gamma", None, [true, false, false]),
            ("beta", None, [true, true, false]),
            // From this one: as the user would, and as the name would.
            ("beta", Some(&root), [true, false, false]),
            ("beta", Some(&seven), [true, true, false]),
            ("gamma", Some(&seven), [true, false, false]),
            ("gamma", Some(&Credentials::of(1, 50)), [true, false, true]),
        ] {
            let found = ["all", "some", "group"].map(|export| opened(name, user, export));
            assert_eq!(found, expected, "{name} {user:?}");
        }
    }

    #[test]
    fn a_missing_directory_names_its_key() {
        let missing = piped_config::Export { path: "/no/such/place".into(), ..Default::default() };
        let exports = BTreeMap::from([("data".to_owned(), missing)]);
        let error = Exports::new(&exports, &Names::default()).expect_err("missing").to_string();
        assert!(error.contains("exports.data.path") && error.contains("/no/such/place"), "{error}");
    }
}
