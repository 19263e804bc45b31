//! Directories of exports, and the one for persisted measurements.

use std::path::Path;

use piped_core::modes::CalibrationMode;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::{Grade, Round};
use crate::modes::AutoPath;

impl Round<'_> {
    pub(super) fn exports(&mut self) {
        let loaded = self.loaded;
        for (name, export) in &loaded.config.exports {
            let key = format!("exports.{name}.path");
            if let Err(error) = open_directory(&export.path) {
                self.closed(&key, &export.path, error);
            } else if self.look.is_user {
                self.rights(&key, &export.path, export.write);
            }
        }
    }

    /// A directory that cannot be opened.
    fn closed(&mut self, key: &str, path: &Path, error: Errno) {
        let (shown, user) = (path.display(), self.look.user);
        match error {
            Errno::NOENT => self.note(
                Grade::Refused,
                key,
                format!(
                    "is {shown}, which is not there: install -d -o {user} {shown}, or correct the \
                     key"
                ),
            ),
            Errno::NOTDIR => self.note(
                Grade::Refused,
                key,
                format!("is {shown}, which is no directory: name one, or the one that it is in"),
            ),
            Errno::ACCESS | Errno::PERM => {
                let grade = self.denied(Grade::Refused);
                self.note(
                    grade,
                    key,
                    match grade {
                        Grade::Unseen => format!(
                            "is {shown}, which you may not look at: ask as root, or as {user}"
                        ),
                        _ => format!(
                            "is {shown}, and {user} may not go there: let it through each \
                             directory above (chmod o+x, or setfacl -m u:{user}:x)"
                        ),
                    },
                );
            }
            error => self.note(
                Grade::Refused,
                key,
                format!(
                    "is {shown}, which cannot be opened as a directory ({error}): mend it, or \
                     correct the key"
                ),
            ),
        }
    }

    /// Checks the rights of the daemon's user in a directory that it can open.
    fn rights(&mut self, key: &str, path: &Path, write: bool) {
        let (shown, user) = (path.display(), self.look.user);
        if may(path, Access::EXEC_OK) == Err(Errno::ACCESS) {
            let text = format!(
                "is {shown}, where {user} may open nothing: setfacl -m u:{user}:rx {shown}, or \
                 give it the directory"
            );
            return self.note(Grade::Warned, key, text);
        }
        match may(path, Access::WRITE_OK) {
            Err(Errno::ROFS) if write => {
                let text = format!(
                    "is {shown}, on a file system that is read-only: mount it for writing, or \
                     write = false"
                );
                self.note(Grade::Warned, key, text);
            }
            Err(Errno::ACCESS) if write => {
                let text = format!(
                    "is {shown}, where {user} may make no files: setfacl -m u:{user}:rwx {shown}, \
                     or give it the directory"
                );
                self.note(Grade::Warned, key, text);
            }
            _ => {}
        }
    }

    /// Checks the state directory. Without it measurements are lost, but the daemon starts.
    pub(super) fn state_directory(&mut self) {
        let config = &self.loaded.config;
        let AutoPath::At(path) = &config.node.state_dir else { return };
        if config.planner.calibration != CalibrationMode::Live {
            return;
        }
        let shown = path.display();
        if path.metadata().is_ok_and(|found| !found.is_dir()) {
            let text = format!(
                "is {shown}, which is there and no directory: name one, or none (\"\") to keep \
                 nothing"
            );
            return self.note(Grade::Warned, "node.state_dir", text);
        }
        let (what, tried) = match path.is_dir() {
            true => (path.as_path(), may(path, Access::WRITE_OK | Access::EXEC_OK)),
            // The daemon makes the directory itself, but nothing above it.
            false => {
                let above = path.parent().unwrap_or(path);
                (above, may(above, Access::WRITE_OK | Access::EXEC_OK))
            }
        };
        let Err(error) = tried else { return };
        let grade = match error {
            Errno::ACCESS | Errno::ROFS => self.denied(Grade::Warned),
            Errno::NOENT | Errno::NOTDIR => Grade::Warned,
            // The check itself was refused (a filter of system calls), not the place.
            _ => Grade::Unseen,
        };
        let user = self.look.user;
        let text = format!(
            "is {shown}, and in {} {user} can write nothing ({error}): install -d -o {user} \
             {shown}",
            what.display()
        );
        self.note(grade, "node.state_dir", text);
    }
}

/// Opens a directory as the daemon opens an export: without reading.
fn open_directory(path: &Path) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(drop)
}

/// Whether this thread's user has the access, by the kernel's judgement.
pub(super) fn may(path: &Path, access: Access) -> Result<(), Errno> {
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS)
}
