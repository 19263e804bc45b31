//! Where a lab is, and everything outside of this process that belongs to it.
//!
//! ```text
//! DIRECTORY/lab.lock     held by who changes the lab; says that the directory is one
//!           lab.json     what the lab consists of, once all of it was written
//!           nodes/       where each node is: `[discovery] files` of all of them
//!           n1/ n2/ …    configuration, key, certificate, sockets, log and `data` of a node
//!           n1/          also the cluster's key, which signed all certificates
//! ```
//!
//! Nothing here has to be remembered to be found: namespaces carry a tag that follows from the
//! directory's path, and daemons have the path on their command lines. So a lab whose `up` was
//! killed, or whose directory is gone, is found and removed all the same (decision 0146).

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use piped_netns::namespace;
use rustix::fs::FlockOperation;

use crate::daemon::MAIN_FILE;
use crate::failure::{Exit, Failure};
use crate::output;

const LOCK: &str = "lab.lock";
const DESCRIPTION: &str = "lab.json";
/// Directory in which nodes are looked for.
pub(super) const NODES: &str = "nodes";

/// First words of the lock file of a directory that `up` made, or that it found empty.
const MADE: &str = "made";
const GIVEN: &str = "given";

/// Longest path of a socket is 107 bytes; behind the directory's come a node's name and its own.
const PATH_BYTES_MAX: usize = 80;

/// A place for a lab, which may or may not be there.
#[derive(Debug)]
pub(super) struct Site {
    directory: PathBuf,
    prefix: String,
}

/// The right to change a lab.
#[derive(Debug)]
pub(super) struct Claim(File);

impl Site {
    /// The place that `--dir` names, or that of this user.
    pub(super) fn find(named: Option<&Path>) -> Result<Self, Failure> {
        let directory = named.map_or_else(usual, Path::to_owned);
        let fail = |error| Failure::io(format_args!("{}", output::path(&directory)), &error);
        let absolute = std::path::absolute(&directory).map_err(fail)?;
        // One place has one tag, by whatever way it is named; it need not be there yet.
        let directory = match (absolute.canonicalize(), absolute.parent(), absolute.file_name()) {
            (Ok(directory), _, _) => directory,
            (Err(_), Some(parent), Some(name)) => parent
                .canonicalize()
                .map_err(|error| Failure::io(output::path(parent), &error))?
                .join(name),
            (Err(error), ..) => return Err(fail(error)),
        };
        if directory.as_os_str().len() > PATH_BYTES_MAX {
            return Err(Failure::usage(format!(
                "{}: longer than {PATH_BYTES_MAX} bytes, which leaves no room for the paths of \
                 sockets: name a shorter one with --dir",
                output::path(&directory)
            )));
        }
        let tag = blake3::hash(directory.as_os_str().as_bytes()).to_hex();
        Ok(Self { prefix: format!("piped-lab-{}-", &tag.as_str()[..8]), directory })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Beginning of the names of the lab's namespaces.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Directory of a node.
    pub(super) fn node(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// File that stands for a node's namespace.
    pub(super) fn namespace(&self, name: &str) -> PathBuf {
        namespace::path(&format!("{}{name}", self.prefix))
    }

    /// Text of the description; none if there is no lab, or only a part of one.
    pub(super) fn description(&self) -> Result<Option<String>, Failure> {
        let path = self.directory.join(DESCRIPTION);
        match fs::read_to_string(&path) {
            Ok(text) => self.require_own().map(|()| Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::io(output::path(&path), &error)),
        }
    }

    /// Writes the description, whole or not at all: from then on the lab is there.
    pub(super) fn describe(&self, text: &str) -> Result<(), Failure> {
        let (path, made) = (self.directory.join(DESCRIPTION), self.directory.join(".lab.json"));
        fs::write(&made, text)
            .and_then(|()| fs::rename(&made, &path))
            .map_err(|error| Failure::io(output::path(&path), &error))
    }

    /// Makes the directory if it is not there, and takes the right to change what is in it.
    pub(super) fn claim(&self) -> Result<Claim, Failure> {
        let made = match DirBuilder::new().mode(0o700).create(&self.directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => {
                return Err(Failure::io(
                    format_args!("cannot make {}", output::path(&self.directory)),
                    &error,
                ));
            }
        };
        self.require_own()?;
        if !made && !self.is_lab() && !self.is_empty() {
            return Err(Failure::new(
                Exit::Refused,
                format!(
                    "{} is neither empty nor a lab: name another directory with --dir",
                    output::path(&self.directory)
                ),
            ));
        }
        self.take_lock(if made { MADE } else { GIVEN })
    }

    /// Takes the right to change a lab that is there; none if there is no directory of one.
    pub(super) fn claim_existing(&self) -> Result<Option<Claim>, Failure> {
        if !self.directory.exists() {
            return Ok(None);
        }
        self.require_own()?;
        if self.is_lab() {
            return self.take_lock(GIVEN).map(Some);
        }
        Ok(None)
    }

    fn take_lock(&self, how: &str) -> Result<Claim, Failure> {
        let path = self.directory.join(LOCK);
        let fail = |error: io::Error| Failure::io(output::path(&path), &error);
        let open = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = open.map_err(fail)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(self.busy()),
            Err(error) => return Err(fail(error.into())),
        }
        // Who had it may have removed the lab, and this with it.
        let (here, there) = (file.metadata().map_err(fail)?, fs::metadata(&path));
        if there.map_or(true, |there| there.ino() != here.ino()) {
            return Err(self.busy());
        }
        if here.len() == 0 {
            let words = format!("{how}: `pipectl lab down` removes what is in this directory\n");
            file.write_all(words.as_bytes()).map_err(fail)?;
        }
        Ok(Claim(file))
    }

    fn busy(&self) -> Failure {
        Failure::new(
            Exit::Refused,
            format!(
                "another `pipectl lab` is changing the lab in {}: try again when it has ended",
                output::path(&self.directory)
            ),
        )
    }

    /// Refuses a directory that others could have made, or could change: in it programs are started
    /// and files removed.
    fn require_own(&self) -> Result<(), Failure> {
        let path = output::path(&self.directory);
        let here =
            fs::symlink_metadata(&self.directory).map_err(|error| Failure::io(&path, &error))?;
        let refuse = |why| {
            let words = format!("{path} {why}: name another one with --dir");
            Err(Failure::new(Exit::Refused, words))
        };
        if !here.is_dir() {
            return refuse("is no directory");
        }
        if here.uid() != rustix::process::geteuid().as_raw() {
            return refuse("belongs to another user");
        }
        if here.mode() & 0o022 != 0 {
            return refuse("can be changed by other users");
        }
        Ok(())
    }

    /// Whether a lab has, or had, its files here.
    pub(super) fn is_lab(&self) -> bool {
        self.directory.join(LOCK).is_file()
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.directory).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// Node whose daemon has this file as its configuration.
    pub(super) fn node_of(&self, file: &Path) -> Option<String> {
        let below = file.strip_prefix(&self.directory).ok()?;
        let (name, rest) = below.to_str()?.split_once('/')?;
        (rest == MAIN_FILE).then(|| name.to_owned())
    }

    /// Whether anything is in the directory besides the lock.
    pub(super) fn has_files(&self) -> bool {
        let entries = fs::read_dir(&self.directory);
        entries.is_ok_and(|all| all.flatten().any(|entry| entry.file_name() != LOCK))
    }

    /// Removes what is in the directory, and the directory if `up` made it.
    pub(super) fn clear(&self, mut claim: Claim) -> Result<(), Failure> {
        let mut words = String::new();
        let read = claim.0.rewind().and_then(|()| claim.0.read_to_string(&mut words));
        let path = output::path(&self.directory);
        let fail = |error: io::Error| Failure::io(format_args!("cannot remove {path}"), &error);
        read.map_err(fail)?;
        if words.starts_with(MADE) {
            return fs::remove_dir_all(&self.directory).map_err(fail);
        }
        // The lock goes last: until then another `up` would find a lab here.
        let mut entries =
            fs::read_dir(&self.directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        if let Ok(entries) = &mut entries {
            entries.sort_by_key(|entry| entry.file_name() == LOCK);
        }
        for entry in entries.map_err(fail)? {
            let is_directory = entry.file_type().map_err(fail)?.is_dir();
            let path = entry.path();
            let removed =
                if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.map_err(fail)?;
        }
        Ok(())
    }
}

/// Directory of root's lab, if there is one: who made it with sudo may look for it without.
pub(super) fn of_root() -> Option<PathBuf> {
    Some(of_user(0)).filter(|path| path.is_dir())
}

fn of_user(user: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/piped-lab-{user}"))
}

/// Directory of a user who names none: one that is the user's own until the end of the session, if
/// the system has such.
fn usual() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| {
        // With sudo it may be another user's.
        path.is_absolute() && fs::metadata(path).is_ok_and(|it| it.is_dir() && it.uid() == user)
    });
    own.map_or_else(|| of_user(user), |path| path.join("piped-lab"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_place_has_one_tag_whether_it_is_there_or_not() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("lab");
        let find = |path: &Path| Site::find(Some(path)).expect("a place");
        let before = find(&path);
        let claim = before.claim().expect("free");
        let roundabout = path.join("../lab");
        assert_eq!(find(&roundabout).prefix(), before.prefix());
        assert_ne!(find(parent.path()).prefix(), before.prefix());
        let node = before.node("n1").join(MAIN_FILE);
        assert_eq!(before.node_of(&node).as_deref(), Some("n1"));
        assert_eq!(find(parent.path()).node_of(&node), None);
        before.clear(claim).expect("removed");
        assert!(!path.exists());
        let long = parent.path().join("x".repeat(PATH_BYTES_MAX));
        assert!(Site::find(Some(&long)).expect_err("too long").to_string().contains("--dir"));
    }

    #[test]
    fn only_directories_that_are_empty_or_labs_of_this_user_are_taken() {
        let given = tempfile::tempdir().expect("a directory");
        let site = Site::find(Some(given.path())).expect("a place");
        let file = given.path().join("mine");
        fs::write(&file, b"x").expect("written");
        assert!(site.claim().expect_err("not empty").to_string().contains("neither empty"));
        assert!(site.claim_existing().expect("looked at").is_none(), "it is no lab");
        fs::remove_file(&file).expect("removed");
        let set = |mode| fs::set_permissions(given.path(), fs::Permissions::from_mode(mode));
        set(0o777).expect("ours");
        assert!(site.claim().expect_err("open to all").to_string().contains("other users"));
        set(0o700).expect("ours");
        let claim = site.claim().expect("empty");
        assert!(site.claim().expect_err("taken").to_string().contains("another `pipectl lab`"));
        fs::create_dir(site.node("n1")).expect("made");
        assert!(site.has_files());
        site.clear(claim).expect("removed");
        assert!(given.path().exists() && !site.has_files(), "what was given stays, empty");
        fs::remove_dir(given.path()).expect("empty");
    }
}
