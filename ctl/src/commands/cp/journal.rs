//! How far a copy is for certain, and of what: a small file, written before what it speaks of and removed after it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use piped_config::admin::Envelope;
use serde::{Deserialize, Serialize};

use super::CpArgs;
use super::ends::Ends;
use crate::args::Place;
use crate::failure::{Exit, Failure};

/// A longer one is not ours.
const JOURNAL_BYTES_MAX: u64 = 64 * 1024;

/// What it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) source: String,
    pub(super) source_bytes: u64,
    /// Nanoseconds since 1970; of a local source.
    pub(super) source_modified_ns: Option<i128>,
    pub(super) destination: String,
    /// Device and inode of a local destination.
    pub(super) destination_inode: Option<(u64, u64)>,
    /// So much of the destination, from its start, is the source's and on stable storage.
    pub(super) durable_bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    record: Record,
    /// It could not be written; said once.
    broken: bool,
}

impl Journal {
    /// Of that copy; it need not be there.
    pub(super) fn at(args: &CpArgs, ends: &Ends) -> Result<Self, Failure> {
        let record = ends.record();
        let path = match (&args.journal, &ends.destination) {
            (Some(path), _) => path.clone(),
            (None, Place::Local(path)) => beside(path),
            (None, Place::Remote { .. }) => {
                let node = absolute(&args.door.socket);
                in_state(&format!("{}\0{}", node.display(), record.destination))?
            }
        };
        Ok(Self { path, record, broken: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What an earlier run wrote, if there was one.
    pub(super) fn read(&self) -> Result<Option<Record>, Failure> {
        let fail = |error: &io::Error| {
            Failure::io(format_args!("cannot read the journal {}", self.path.display()), error)
        };
        let length = match fs::metadata(&self.path) {
            Ok(facts) => facts.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(&error)),
        };
        let text = match length {
            0..=JOURNAL_BYTES_MAX => fs::read(&self.path).map_err(|error| fail(&error))?,
            _ => Vec::new(),
        };
        if length == 0 {
            // A power cut, before there was anything to say.
            return Ok(None);
        }
        Envelope::parse(&text).map(Some).map_err(|error| {
            Failure::failed(format!(
                "{} is not a journal of this version ({error}): remove it, and begin anew with --overwrite",
                self.path.display()
            ))
        })
    }

    /// What has changed since `earlier` was written.
    pub(super) fn differs_from(&self, earlier: &Record) -> Option<String> {
        let now = &self.record;
        let source = &now.source;
        if earlier.source != now.source || earlier.destination != now.destination {
            let (from, to) = (&earlier.source, &earlier.destination);
            return Some(format!(
                "the journal is of a copy of {from} to {to}; {source} is another"
            ));
        }
        if earlier.source_bytes != now.source_bytes {
            let (then, now) = (earlier.source_bytes, now.source_bytes);
            return Some(format!("{source} had {then} bytes, and has {now}"));
        }
        if earlier.source_modified_ns != now.source_modified_ns {
            return Some(format!("{source} was modified"));
        }
        if earlier.destination_inode != now.destination_inode {
            return Some(format!("{} was replaced", now.destination));
        }
        None
    }

    /// Says that so much is durable, which must be so already. Without a journal the copy goes on; it only
    /// cannot be resumed.
    pub(super) fn save(&mut self, durable_bytes: u64) {
        self.record.durable_bytes = durable_bytes;
        if let (Err(error), false) = (self.write(), self.broken) {
            self.broken = true;
            let path = self.path.display();
            let _ = writeln!(
                io::stderr(),
                "pipectl: cannot write {path}: {error}; if interrupted, this copy cannot be resumed (see --journal)"
            );
        }
    }

    /// Whole or not at all.
    fn write(&self) -> io::Result<()> {
        let folder = folder_of(&self.path);
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(Envelope::new(&self.record).json().as_bytes())?;
        if self.record.durable_bytes > 0 {
            file.as_file().sync_all()?;
        }
        file.persist(&self.path)?;
        match self.record.durable_bytes {
            // There is nothing yet that would be lost with it.
            0 => Ok(()),
            _ => File::open(folder)?.sync_all(),
        }
    }

    /// The copy is whole, or nothing is left of it.
    pub(super) fn remove(&self) {
        // One that was never written is not there; one that stays is refused by the next copy, with the fix.
        let _ = fs::remove_file(&self.path);
    }

    /// What to do with an unfinished copy.
    pub(super) fn advice(&self, args: &CpArgs) -> String {
        if self.broken {
            return "it cannot be resumed".to_owned();
        }
        let journal = args.journal.as_ref();
        let journal =
            journal.map_or_else(String::new, |path| format!(" --journal {}", path.display()));
        let verify = if args.verify { " --verify" } else { "" };
        let (source, destination) = (&args.source, &args.destination);
        format!("go on with `pipectl cp --resume{verify}{journal} {source} {destination}`")
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".piped-cp");
    path.with_file_name(name)
}

/// Where this user's programs keep what shall outlive them.
fn in_state(identity: &str) -> Result<PathBuf, Failure> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .ok_or_else(|| {
            let why = "neither XDG_STATE_HOME nor HOME is set: name a journal with --journal";
            Failure::new(Exit::Usage, why)
        })?
        .join("piped");
    // If it cannot be made, the journal cannot be written, which is told then.
    let _ = fs::create_dir_all(&state);
    let hash = blake3::hash(identity.as_bytes()).to_hex();
    Ok(state.join(format!("cp-{}.json", &hash[..32])))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A path that means the same from everywhere.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
