//! Owner of a rig's namespace or directory, by its name: a process, told from later ones of the
//! same number by its start time. Things of a process that is gone are left over, and may be
//! removed; all others belong to somebody.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use crate::Error;

/// Prefix of the owner in every name.
const PREFIX: &str = "piped-rig-";

/// A process, this one or one that may be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    process: u32,
    /// Start time in the kernel's ticks since boot.
    started: u64,
}

impl Owner {
    /// Owner that is this process.
    ///
    /// # Errors
    /// If there is no `/proc`.
    pub fn this() -> Result<Self, Error> {
        let process = std::process::id();
        let started = started(process).ok_or_else(|| {
            Error::new("/proc does not say when this process started: is it mounted?")
        })?;
        Ok(Self { process, started })
    }

    /// Prefix of the owner's names.
    #[must_use]
    pub fn prefix(self) -> String {
        format!("{PREFIX}{}-{}-", self.process, self.started)
    }

    /// Owner of a name; none if the name has none.
    fn of(name: &OsStr) -> Option<Self> {
        let rest = name.to_str()?.strip_prefix(PREFIX)?;
        let (process, rest) = rest.split_once('-')?;
        let (started, _) = rest.split_once('-')?;
        Some(Self { process: process.parse().ok()?, started: started.parse().ok()? })
    }

    /// Whether the process still runs.
    fn lives(self) -> bool {
        started(self.process) == Some(self.started)
    }
}

/// Start time of a process; none if there is none of that number.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may contain blanks and parentheses itself; the start time is the
    // 20th field after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Names in a directory that belong to rigs without a process. A missing directory has none.
///
/// # Errors
/// If the directory cannot be read.
pub fn left_over(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        if Owner::of(&name).is_some_and(|owner| !owner.lives()) {
            names.extend(name.into_string());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_owner_and_no_other_name_does() {
        let this = Owner::this().expect("there is a /proc");
        assert!(this.lives());
        assert_eq!(Owner::of(OsStr::new(&format!("{}a", this.prefix()))), Some(this));
        for name in ["piped-rig-", "piped-rig-1-", "piped-rig-x-1-a", "piped-bench-1-1-a", "a"] {
            assert_eq!(Owner::of(OsStr::new(name)), None, "{name}");
        }
    }

    #[test]
    fn a_process_of_the_same_number_that_started_later_is_another_one() {
        let this = Owner::this().expect("there is a /proc");
        let earlier = Owner { started: this.started - 1, ..this };
        assert!(!earlier.lives());
        let never = Owner { process: u32::MAX, started: 1 };
        assert!(!never.lives());
    }

    #[test]
    fn only_what_nobody_owns_any_more_is_left_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let this = Owner::this().expect("there is a /proc");
        let gone = Owner { started: this.started - 1, ..this };
        for name in [format!("{}a", this.prefix()), "else".to_owned()] {
            fs::create_dir(directory.path().join(name)).expect("made");
        }
        let name = format!("{}a", gone.prefix());
        fs::write(directory.path().join(&name), "").expect("written");
        assert_eq!(left_over(directory.path()).expect("read"), vec![name]);
        assert_eq!(left_over(&directory.path().join("none")).expect("read"), Vec::<String>::new());
    }
}
