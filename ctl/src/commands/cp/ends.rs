//! What is copied, and where to: found, checked, and opened for a session.

use std::fs::{File, Metadata, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use piped_client::{Access, Client, Handle, OpenOptions};

use super::CpArgs;
use super::journal::{Record, absolute};
use crate::args::Place;
use crate::client;
use crate::failure::{Exit, Failure};

/// Permission bits of a new file, of which the umask takes its part.
const MODE: u32 = 0o666;

/// What was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A file without a byte: nothing to lose.
    Empty,
    Filled,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) source: Place,
    pub(super) destination: Place,
    /// Bytes of the source.
    pub(super) length: u64,
    pub(super) found: Found,
    /// Opened here and passed to the daemon.
    local_source: Option<(File, Facts)>,
    local_destination: Option<File>,
}

/// What tells that a file is the one it was.
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
    /// Looks at both. The destination is made if it is not there; what is in it stays.
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
            Place::Local(path) => {
                let (file, found) = open_destination(path, mode, inode, &source)?;
                (found, Some(file))
            }
            Place::Remote { .. } => (look_for(client, &destination, length)?, None),
        };
        Ok(Self { source, destination, length, found, local_source, local_destination })
    }

    /// Opens both for a session.
    pub(super) fn open(&self, client: &Client) -> Result<(Handle, Handle), Failure> {
        let from = self.open_source(client)?;
        let to = match &self.local_destination {
            Some(file) => pass(client, &self.destination, file, Access::WRITE)?,
            None => open_remote(client, &self.destination, OpenOptions::write().create(true))?,
        };
        Ok((from, to))
    }

    /// Opens both for reading.
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

    /// An error if the source is not what it was when the copy began.
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

    /// The source is not what it was.
    pub(super) fn changed(&self) -> Failure {
        Failure::failed(format!(
            "{} was changed while it was copied: copy it again with --overwrite when nobody writes it",
            self.source
        ))
        .spoilt()
    }

    /// Whether what the destination took without a sync is still there whatever became of the daemon.
    pub(super) fn is_kept_here(&self) -> bool {
        self.local_destination.is_some()
    }

    /// Gives a local destination its blocks, so that a full disk is found before the work and writes beside
    /// each other need not each move the end of the file.
    pub(super) fn allocate(&self) -> Result<(), Failure> {
        let Some(file) = &self.local_destination else { return Ok(()) };
        let (mode, length) = (rustix::fs::FallocateFlags::empty(), self.length);
        if length == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(file, mode, 0, length) {
            Ok(()) => Ok(()),
            // The file system has no such thing; its blocks come with the bytes.
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

    /// Cuts off what an older, longer file had behind the end. A peer's file was refused for that.
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
            .map_err(|error| Failure::io(folder.display(), &error))
    }

    /// What the journal says of them.
    pub(super) fn record(&self) -> Record {
        let name = |place: &Place| match place {
            Place::Local(path) => absolute(path).display().to_string(),
            remote @ Place::Remote { .. } => remote.to_string(),
        };
        let inode = self.local_destination.as_ref().and_then(|file| file.metadata().ok());
        Record {
            source: name(&self.source),
            source_bytes: self.length,
            source_modified_ns: self.local_source.as_ref().map(|(_, facts)| facts.modified_ns),
            destination: name(&self.destination),
            destination_inode: inode.map(|facts| (facts.dev(), facts.ino())),
            durable_bytes: 0,
        }
    }

    /// Removes the destination if this run made it: nothing is in it.
    pub(super) fn remove_new(&self) {
        if let (Place::Local(path), Found::Nothing) = (&self.destination, self.found) {
            // It stays as an empty file if it cannot be removed.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A directory takes the source's name.
fn destination(text: &str, source: &Place) -> Result<Place, Failure> {
    let name = match source {
        Place::Local(path) => path.file_name().map(PathBuf::from),
        Place::Remote { path, .. } => Path::new(path).file_name().map(PathBuf::from),
    };
    let name = name.ok_or_else(|| Failure::usage(format!("{source} has no file name")))?;
    let parse = |text: &str| text.parse().map_err(|error| Failure::usage(format!("DST: {error}")));
    if text.ends_with('/')
        && let Some((peer, _)) = text.split_once(':')
        && !peer.contains('/')
    {
        return parse(&format!("{text}{}", name.display()));
    }
    match parse(text)? {
        Place::Local(path) if path.is_dir() => Ok(Place::Local(path.join(name))),
        place => Ok(place),
    }
}

fn open_source(path: &Path) -> Result<(File, Metadata), Failure> {
    let fail = |error| Failure::io(path.display(), &error);
    // Looked at first: opening what is no file may wait, or do something.
    check_regular(path, &std::fs::metadata(path).map_err(fail)?)?;
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    check_regular(path, &metadata)?;
    Ok((file, metadata))
}

fn open_destination(
    path: &Path,
    mode: u32,
    source: Option<(u64, u64)>,
    from: &Place,
) -> Result<(File, Found), Failure> {
    let fail = |error| Failure::io(path.display(), &error);
    let mut options = FileOptions::new();
    // For reading too: it is read back.
    options.read(true).write(true).mode(mode);
    let mut found = Found::Nothing;
    let file = match options.clone().create_new(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            check_regular(path, &std::fs::metadata(path).map_err(fail)?)?;
            found = Found::Filled;
            options.open(path).map_err(fail)?
        }
        Err(error) => {
            return Err(Failure::io(format_args!("cannot create {}", path.display()), &error));
        }
    };
    let metadata = file.metadata().map_err(fail)?;
    check_regular(path, &metadata)?;
    if source == Some((metadata.dev(), metadata.ino())) {
        return Err(same(from, &Place::Local(path.to_owned())));
    }
    if metadata.len() == 0 && found == Found::Filled {
        found = Found::Empty;
    }
    Ok((file, found))
}

/// Of two files of one export; local ones are compared by what they are.
fn is_same_name(one: &Place, other: &Place) -> bool {
    let name = |place: &Place| match place {
        Place::Local(_) => None,
        Place::Remote { peer, export, path } => {
            let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
            let parts: Vec<String> = parts.map(str::to_owned).collect();
            Some((peer.clone(), export.clone(), parts))
        }
    };
    name(one).is_some_and(|name_of_one| name(other) == Some(name_of_one))
}

/// What is at a peer's place. It is not made yet: only who makes it knows that nothing was there.
fn look_for(client: &Client, place: &Place, length: u64) -> Result<Found, Failure> {
    let handle = match open_remote(client, place, OpenOptions::write()) {
        Ok(handle) => handle,
        Err(failure) if failure.exit() == Exit::NotFound => {
            let made = open_remote(client, place, OpenOptions::write().create(true))?;
            // Somebody else may have been first.
            return Ok(if made.is_empty() { Found::Nothing } else { Found::Filled });
        }
        Err(failure) => return Err(failure),
    };
    if handle.len() > length {
        return Err(Failure::new(
            Exit::Refused,
            format!(
                "{place} is longer than the source, and is not shortened from here: remove it there first"
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

fn check_regular(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let what = match kind {
        kind if kind.is_dir() => "a directory; name a file (directories are not copied)",
        kind if kind.is_fifo() => "a pipe; only regular files are copied",
        kind if kind.is_block_device() || kind.is_char_device() => {
            "a device; only regular files are copied"
        }
        _ => "no regular file, which is all that is copied",
    };
    Err(Failure::new(Exit::Refused, format!("{} is {what}", path.display())))
}

fn same(source: &Place, destination: &Place) -> Failure {
    Failure::new(Exit::Refused, format!("{source} and {destination} are the same file"))
}
