//! The two ends of a copy: found, checked, and opened for a session.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions as FileOptions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use piped_client::{Access, Client, Handle, OpenOptions};

use super::CpArgs;
use super::journal::{Record, absolute, exactly};
use crate::client;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::place::Place;
use crate::regular::{self, Fault, Links};

/// Permission bits of a new file, reduced by the umask.
const MODE: u32 = 0o666;

/// State of the destination before the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A file without a byte, so nothing can be lost.
    Empty,
    Filled,
}

/// Source and destination of a copy.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) source: Place,
    pub(super) destination: Place,
    /// Length of the source.
    pub(super) length: u64,
    pub(super) found: Found,
    /// Permission bits for a new local destination.
    mode: u32,
    /// Local source, opened here and passed to the daemon.
    local_source: Option<(File, Facts)>,
    local_destination: Option<File>,
}

/// Facts by which a file is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    length: u64,
    modified_ns: i128,
}

impl Facts {
    fn of(metadata: &Metadata) -> Self {
        let seconds = i128::from(metadata.mtime()) * 1_000_000_000;
        Self { length: metadata.len(), modified_ns: seconds + i128::from(metadata.mtime_nsec()) }
    }
}

impl Ends {
    /// Looks at both ends, and changes nothing: see [`Self::make`].
    pub(super) fn find(args: &CpArgs, client: &Client) -> Result<Self, Failure> {
        let source = args.source.clone();
        let destination = destination(&args.destination, &source)?;
        let mut mode = MODE;
        let mut inode = None;
        let (length, local_source) = match &source {
            Place::Local(path) => {
                let (file, metadata) = open_source(path)?;
                mode = metadata.mode() & 0o777;
                inode = Some((metadata.dev(), metadata.ino()));
                let facts = Facts::of(&metadata);
                (facts.length, Some((file, facts)))
            }
            Place::Remote { .. } => {
                (open_remote(client, &source, OpenOptions::read())?.len(), None)
            }
        };
        if is_same_name(&source, &destination) {
            return Err(same(&source, &destination));
        }
        let (found, local_destination) = match &destination {
            Place::Local(path) => open_destination(path, inode, &source)?,
            Place::Remote { .. } => (look_for(client, &destination, length)?, None),
        };
        Ok(Self { source, destination, length, found, mode, local_source, local_destination })
    }

    /// Makes the destination if there is none. This is the last step that can be refused, and it
    /// leaves no new file if it is.
    pub(super) fn make(&mut self, client: &Client) -> Result<(), Failure> {
        drop(self.open_source(client)?);
        match &self.destination {
            Place::Local(path) => {
                if self.local_destination.is_none() {
                    let file = create(path, self.mode)?;
                    self.local_destination = Some(file);
                }
                let made = self.open_destination(client, false);
                made.map(drop).inspect_err(|_| {
                    self.remove_new();
                })
            }
            Place::Remote { .. } if self.found == Found::Nothing => {
                let made = self.open_destination(client, true)?;
                // Another program may have been first.
                if made.is_empty() { Ok(()) } else { Err(exists(&self.destination)) }
            }
            Place::Remote { .. } => Ok(()),
        }
    }

    /// Opens both ends for a session.
    pub(super) fn open(&self, client: &Client) -> Result<(Handle, Handle), Failure> {
        Ok((self.open_source(client)?, self.open_destination(client, true)?))
    }

    fn open_destination(&self, client: &Client, create: bool) -> Result<Handle, Failure> {
        match &self.local_destination {
            Some(file) => pass(client, &self.destination, file, Access::WRITE),
            None => open_remote(client, &self.destination, OpenOptions::write().create(create)),
        }
    }

    /// Opens both ends for reading.
    pub(super) fn open_to_read(&self, client: &Client) -> Result<(Handle, Handle), Failure> {
        let from = self.open_source(client)?;
        let to = match &self.local_destination {
            Some(file) => pass(client, &self.destination, file, Access::READ)?,
            None => open_remote(client, &self.destination, OpenOptions::read())?,
        };
        Ok((from, to))
    }

    fn open_source(&self, client: &Client) -> Result<Handle, Failure> {
        match &self.local_source {
            Some((file, _)) => pass(client, &self.source, file, Access::READ),
            None => open_remote(client, &self.source, OpenOptions::read()),
        }
    }

    /// An error if the source has changed since the copy began.
    pub(super) fn check_source(&self, client: &Client) -> Result<(), Failure> {
        let changed = match &self.local_source {
            Some((file, facts)) => {
                let now = file.metadata().map_err(|error| Failure::io(&self.source, &error))?;
                Facts::of(&now) != *facts
            }
            None => self.open_source(client)?.len() != self.length,
        };
        if changed { Err(self.changed()) } else { Ok(()) }
    }

    /// Failure for a source that has changed.
    pub(super) fn changed(&self) -> Failure {
        Failure::failed(format!(
            "{} was changed while it was copied: copy it again with --overwrite when nobody writes \
             it",
            self.source
        ))
        .spoilt()
    }

    /// Whether bytes that the destination took without a sync survive the end of the daemon.
    pub(super) fn is_kept_here(&self) -> bool {
        self.local_destination.is_some()
    }

    /// Gives a local destination its blocks, so that a full disk is found before the work, and
    /// parallel writes need not move the end of the file.
    pub(super) fn allocate(&self) -> Result<(), Failure> {
        let Some(file) = &self.local_destination else { return Ok(()) };
        let (mode, length) = (rustix::fs::FallocateFlags::empty(), self.length);
        if length == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(file, mode, 0, length) {
            Ok(()) => Ok(()),
            // The file system cannot do it; blocks come with the bytes.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(error) => Err(Failure::io(
                format_args!(
                    "no room for {} on the file system of {}",
                    crate::units::bytes(length),
                    self.destination
                ),
                &error.into(),
            )),
        }
    }

    /// Cuts off the rest of an older, longer file. A longer file at a peer was refused.
    pub(super) fn cut(&self) -> Result<(), Failure> {
        let Some(file) = &self.local_destination else { return Ok(()) };
        let fail = |error| Failure::io(&self.destination, &error);
        if file.metadata().map_err(fail)?.len() > self.length {
            file.set_len(self.length).map_err(fail)?;
        }
        Ok(())
    }

    /// Makes the name of a new local file durable, as its bytes are.
    pub(super) fn sync_name(&self) -> Result<(), Failure> {
        let Place::Local(path) = &self.destination else { return Ok(()) };
        let path = absolute(path);
        let folder = path.parent().unwrap_or(Path::new("/"));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| Failure::io(output::path(folder), &error))
    }

    /// Record of the two ends for the journal.
    pub(super) fn record(&self) -> Record {
        let name = |place: &Place| match place {
            Place::Local(path) => exactly(absolute(path).as_os_str()),
            remote @ Place::Remote { .. } => exactly(&remote.text()),
        };
        let inode = self.local_destination.as_ref().and_then(|file| file.metadata().ok());
        let born = inode.as_ref().and_then(|facts| facts.created().ok());
        let born = born.and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok());
        Record {
            source: name(&self.source),
            source_bytes: self.length,
            source_modified_ns: self.local_source.as_ref().map(|(_, facts)| facts.modified_ns),
            destination: name(&self.destination),
            destination_inode: inode.map(|facts| (facts.dev(), facts.ino())),
            destination_born_ns: born.and_then(|born| born.as_nanos().try_into().ok()),
            durable_bytes: 0,
        }
    }

    /// Removes the destination if this run made it, while it is empty. Returns whether the file is
    /// gone or was there before.
    pub(super) fn remove_new(&self) -> bool {
        match (&self.destination, self.found) {
            (Place::Local(path), Found::Nothing) => {
                let ours = self.local_destination.as_ref().and_then(|file| file.metadata().ok());
                let there = std::fs::symlink_metadata(path).ok();
                let place = |facts: Metadata| (facts.dev(), facts.ino());
                // Another file may have been put in its place.
                let is_ours = ours.map(place) == there.map(place);
                is_ours && std::fs::remove_file(path).is_ok()
            }
            // Files at a peer are not removed from here.
            (Place::Remote { .. }, Found::Nothing) => false,
            _ => true,
        }
    }
}

/// Destination path; a directory takes the source's name.
fn destination(text: &OsStr, source: &Place) -> Result<Place, Failure> {
    let name = match source {
        Place::Local(path) | Place::Remote { path, .. } => path.file_name(),
    };
    let name = name.ok_or_else(|| Failure::usage(format!("{source} has no file name")))?;
    let parse =
        |text: &OsStr| Place::parse(text).map_err(|error| Failure::usage(format!("DST: {error}")));
    let named = || [text.as_bytes(), name.as_bytes()].concat();
    match parse(text) {
        Ok(Place::Local(path)) if path.is_dir() => Ok(Place::Local(path.join(name))),
        Ok(Place::Local(path)) => Ok(Place::Local(path)),
        // EXPORT/ alone is no file yet.
        _ if text.as_bytes().ends_with(b"/") => parse(OsStr::from_bytes(&named())),
        place => place,
    }
}

fn open_source(path: &Path) -> Result<(File, Metadata), Failure> {
    let fail = |fault: Fault| fault.of(output::path(path));
    // Check first: opening a device may have an effect.
    let facts = std::fs::metadata(path).map_err(|error| fail(Fault::Io(error)))?;
    regular::check(&facts).map_err(fail)?;
    regular::open(path, File::options().read(true), Links::Followed).map_err(fail)
}

/// Options for writing and for reading back.
fn read_and_write() -> FileOptions {
    let mut options = FileOptions::new();
    options.read(true).write(true);
    options
}

/// Opens what is at a local destination, if it is a file.
fn open_destination(
    path: &Path,
    source: Option<(u64, u64)>,
    from: &Place,
) -> Result<(Found, Option<File>), Failure> {
    let fail = |fault: Fault| fault.of(output::path(path));
    match std::fs::metadata(path).map_err(Fault::Io).and_then(|facts| regular::check(&facts)) {
        Ok(()) => {}
        // A link to nothing is something, and is refused when the file is made.
        Err(fault) if fault.is_missing() => return Ok((Found::Nothing, None)),
        Err(fault) => return Err(fail(fault)),
    }
    let (file, metadata) = regular::open(path, &read_and_write(), Links::Followed).map_err(fail)?;
    if source == Some((metadata.dev(), metadata.ino())) {
        return Err(same(from, &Place::Local(path.to_owned())));
    }
    Ok((if metadata.len() == 0 { Found::Empty } else { Found::Filled }, Some(file)))
}

fn create(path: &Path, mode: u32) -> Result<File, Failure> {
    let made = read_and_write().mode(mode).create_new(true).open(path);
    made.map_err(|error| Failure::io(format_args!("cannot create {}", output::path(path)), &error))
}

/// Whether two files of one export have one name; local files are compared by their facts.
fn is_same_name(one: &Place, other: &Place) -> bool {
    let name = |place: &Place| match place {
        Place::Local(_) => None,
        Place::Remote { peer, export, path } => {
            let parts = path.as_os_str().as_bytes().split(|&byte| byte == b'/');
            let parts = parts.filter(|part| !matches!(*part, b"" | b"."));
            let parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
            Some((peer.clone(), export.clone(), parts))
        }
    };
    name(one).is_some_and(|name_of_one| name(other) == Some(name_of_one))
}

/// Looks for a file at a peer.
fn look_for(client: &Client, place: &Place, length: u64) -> Result<Found, Failure> {
    let handle = match open_remote(client, place, OpenOptions::write()) {
        Ok(handle) => handle,
        Err(failure) if failure.exit() == Exit::NotFound => return Ok(Found::Nothing),
        Err(failure) => return Err(failure),
    };
    if handle.len() > length {
        return Err(Failure::new(
            Exit::Refused,
            format!(
                "{place} is longer than the source, and is not shortened from here: remove it \
                 there first"
            ),
        ));
    }
    Ok(if handle.is_empty() { Found::Empty } else { Found::Filled })
}

fn open_remote(client: &Client, place: &Place, options: OpenOptions) -> Result<Handle, Failure> {
    let Place::Remote { peer, export, path } = place else {
        unreachable!("local files are opened here")
    };
    let peer = (!peer.is_empty()).then_some(peer.as_str());
    client.open_export(peer, export, path, options).map_err(|error| client::open(place, &error))
}

fn pass(client: &Client, place: &Place, file: &File, access: Access) -> Result<Handle, Failure> {
    client.open_fd(file, access).map_err(|error| client::open(place, &error))
}

/// Failure for a destination that would be lost.
pub(super) fn exists(place: &Place) -> Failure {
    let why = format!("{place} exists and would be written over: say --overwrite if that is meant");
    Failure::new(Exit::Refused, why)
}

fn same(source: &Place, destination: &Place) -> Failure {
    Failure::new(Exit::Refused, format!("{source} and {destination} are the same file"))
}
