//! The journal of a copy: the part that is certainly durable, and of which files. A small file,
//! written before the work and removed after it.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use piped_config::admin::Envelope;
use piped_text::is_name;
use serde::{Deserialize, Serialize};

use super::CpArgs;
use super::ends::Ends;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::place::Place;
use crate::regular::{self, Links};

/// A longer file is not a journal.
const JOURNAL_BYTES_MAX: u64 = 64 * 1024;

/// Longest name of a journal beside its destination: eCryptfs takes no longer one, most file
/// systems take 255.
const NAME_BYTES_MAX: usize = 143;

/// Content of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) source: String,
    pub(super) source_bytes: u64,
    /// Nanoseconds since 1970, for a local source.
    pub(super) source_modified_ns: Option<i128>,
    pub(super) destination: String,
    /// Device and inode of a local destination.
    pub(super) destination_inode: Option<(u64, u64)>,
    /// Birth of that inode, in nanoseconds since 1970, where the file system has one. A device may
    /// have another number after a reboot, but the inode of another file has another birth. Older
    /// journals have none.
    #[serde(default)]
    pub(super) destination_born_ns: Option<i128>,
    /// Length of the destination, from its start, that equals the source and is on stable storage.
    pub(super) durable_bytes: u64,
}

impl Record {
    /// Whether the destination's name leads to the same file as then.
    fn is_at_the_file_of(&self, earlier: &Self) -> bool {
        let born = (earlier.destination_born_ns, self.destination_born_ns);
        match (earlier.destination_inode, self.destination_inode, born) {
            (Some((_, then)), Some((_, now)), (Some(born_then), Some(born_now))) => {
                (then, born_then) == (now, born_now)
            }
            // Compare all that was noted, or all that the file system reports.
            (then, now, _) => then == now,
        }
    }
}

/// The journal of one copy.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    record: Record,
    /// Whether writing failed; the user is told once.
    broken: bool,
}

impl Journal {
    /// Journal of a copy; the file need not exist.
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

    /// Path of the journal, for people.
    pub(super) fn shown(&self) -> Cow<'_, str> {
        output::path(&self.path)
    }

    /// Reads the record of an earlier run, if there is one.
    pub(super) fn read(&self) -> Result<Option<Record>, Failure> {
        let what = format_args!("the journal {}", self.shown());
        // The file may be anybody's.
        let file = match regular::open(&self.path, File::options().read(true), Links::Refused) {
            Ok((file, _)) => file,
            Err(fault) if fault.is_missing() => return Ok(None),
            Err(fault) => return Err(fault.of(what)),
        };
        let mut text = Vec::new();
        file.take(JOURNAL_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(|error| Failure::io(format_args!("cannot read {what}"), &error))?;
        if text.is_empty() {
            // A power cut before the first record.
            return Ok(None);
        }
        Envelope::parse(&text).map(Some).map_err(|error| {
            Failure::failed(format!(
                "{} is not a journal of this version ({error}): remove it, and begin anew with \
                 --overwrite",
                self.shown()
            ))
        })
    }

    /// Describes what has changed since `earlier` was written.
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
        if !now.is_at_the_file_of(earlier) {
            return Some(format!("{} was replaced", now.destination));
        }
        None
    }

    /// Begins the journal of a copy, once its destination exists.
    pub(super) fn begin(&mut self, ends: &Ends) {
        self.record = ends.record();
        self.save(0);
    }

    /// Records that this many bytes are durable, which must be true already. Without a journal the
    /// copy goes on; it only cannot be resumed.
    pub(super) fn save(&mut self, durable_bytes: u64) {
        self.record.durable_bytes = durable_bytes;
        if let (Err(error), false) = (self.write(), self.broken) {
            self.broken = true;
            let path = self.shown();
            let _ = writeln!(
                io::stderr(),
                "pipectl: cannot write {path}: {error}; if interrupted, this copy cannot be \
                 resumed (see --journal)"
            );
        }
    }

    /// Writes the file as a whole, or not at all.
    fn write(&self) -> io::Result<()> {
        let folder = folder_of(&self.path);
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(Envelope::new(&self.record).json().as_bytes())?;
        if self.record.durable_bytes > 0 {
            file.as_file().sync_all()?;
        }
        file.persist(&self.path)?;
        match self.record.durable_bytes {
            // Nothing would be lost with it yet.
            0 => Ok(()),
            _ => File::open(folder)?.sync_all(),
        }
    }

    /// Removes the journal: the copy is complete, or nothing is left of it.
    pub(super) fn remove(&self) {
        // A journal that was never written does not exist; one that stays is refused by the next
        // copy, with the fix.
        let _ = fs::remove_file(&self.path);
    }

    /// Advice about an unfinished copy.
    pub(super) fn advice(&self, args: &CpArgs) -> String {
        if self.broken {
            return "it cannot be resumed".to_owned();
        }
        let journal = args.journal.as_ref();
        let journal = journal
            .map_or_else(String::new, |path| format!(" --journal {}", word(path.as_os_str())));
        let verify = if args.verify { " --verify" } else { "" };
        let (source, destination) = (word(&args.source.text()), word(&args.destination));
        format!("go on with `pipectl cp --resume{verify}{journal} {source} {destination}`")
    }
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let of = |name: &OsStr| OsString::from_iter([OsStr::new("."), name, OsStr::new(".piped-cp")]);
    let whole = of(name);
    if whole.len() <= NAME_BYTES_MAX {
        return path.with_file_name(whole);
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    path.with_file_name(of(OsStr::new(&hash[..32])))
}

/// Path in the directory where this user's programs keep their state.
fn in_state(identity: &str) -> Result<PathBuf, Failure> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .ok_or_else(|| {
            let why = "neither XDG_STATE_HOME nor HOME is set: name a journal with --journal";
            Failure::new(Exit::Usage, why)
        })?
        .join("piped");
    // If it cannot be made, writing the journal fails, and that is reported.
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

/// Unique text for a name. A name that is text stays as it is.
pub(super) fn exactly(name: &OsStr) -> String {
    match name.to_str() {
        Some(text) => text.to_owned(),
        // No name contains a zero byte.
        None => format!("\0{}", name.as_bytes().escape_ascii()),
    }
}

/// Word for a shell's command line that stands for the name, whatever is in it.
fn word(text: &OsStr) -> String {
    let bytes = text.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:,+=@%".contains(byte);
    match text.to_str() {
        Some(text) if !bytes.is_empty() && bytes.iter().all(plain) => text.to_owned(),
        Some(text) if is_name(bytes) && !bytes.contains(&b'\'') => format!("'{text}'"),
        _ => {
            let escape = |&byte: &u8| match byte {
                b'\'' | b'\\' => format!("\\{}", char::from(byte)),
                b' '..=b'~' => char::from(byte).to_string(),
                _ => format!("\\x{byte:02x}"),
            };
            format!("$'{}'", bytes.iter().map(escape).collect::<String>())
        }
    }
}

/// Absolute form of a path.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_for_what_they_are_made_of() {
        for name in ["plain/a:b", "a b", "it's", "$HOME `x`", "", "\\", "two\nlines"] {
            check(name.as_bytes());
        }
        for byte in 1..=u8::MAX {
            check(&[b'a', byte, b'b']);
        }
    }

    /// Checks that a shell reads the word as the name.
    fn check(name: &[u8]) {
        let line = format!("printf %s {}", word(OsStr::from_bytes(name)));
        let output = std::process::Command::new("bash").args(["-c", &line]).output();
        assert_eq!(output.expect("a shell").stdout, name, "{line}");
        assert!(!line.contains(char::is_control), "{line:?}");
    }

    #[test]
    fn every_name_has_a_journal_of_its_own_beside_it() {
        assert_eq!(beside(Path::new("/d/sink")), Path::new("/d/.sink.piped-cp"));
        let journals = ["x".repeat(133), "x".repeat(134), "x".repeat(255), "x".repeat(254) + "y"]
            .map(|name| beside(&Path::new("/d").join(name)));
        for (at, journal) in journals.iter().enumerate() {
            let name = journal.file_name().expect("a name");
            assert!(name.len() <= NAME_BYTES_MAX && journal.starts_with("/d"), "{journal:?}");
            assert!(!journals[..at].contains(journal), "{journal:?}");
        }
    }

    #[test]
    fn no_two_names_are_one() {
        let names: [&[u8]; 3] = [b"caf\xe9", b"caf\\xe9", "caf\u{e9}".as_bytes()];
        let told = names.map(|name| exactly(OsStr::from_bytes(name)));
        assert!(told[0] != told[1] && told[1] != told[2] && told[2] == "caf\u{e9}");
    }
}
