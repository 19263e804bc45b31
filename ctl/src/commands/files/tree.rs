//! Directories of exports as these commands use them: calls by place, whatever mount that is on.
//!
//! A handle of a directory is of one mount, and most exports have one. So calls are made of the
//! export, and where a path comes to another mount, of the directory there.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt as _;

use piped_client::call::{
    ANSWER_BYTES_MAX, Call, Entries, FileKind, NoCall, Over, Removed, Space, Stat,
};
use piped_client::{
    Access, Buffer, BufferState, Cause, Client, ClientBuilder, Handle, OpenError, OpenOptions,
    Queue, SessionError, Status,
};

use crate::args::ClientDoor;
use crate::below::Below;
use crate::client;
use crate::failure::{Exit, Failure};

/// Most names of one directory: they are sorted before they are shown, and a peer may be hostile.
const NAMES_MAX: usize = 4_000_000;

/// Most directories kept open: the export and what is mounted below it.
const DIRECTORIES_MAX: usize = 32;

/// What a directory is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Right {
    Read,
    Write,
    Names,
}

impl Right {
    const fn access(self) -> Access {
        match self {
            Self::Read => Access::READ,
            Self::Write => Access::WRITE,
            Self::Names => Access { names: true, ..Access::NONE },
        }
    }

    /// What an export needs for it, in words.
    const fn needed(self) -> &'static str {
        match self {
            Self::Read => "its node says `read = false`",
            Self::Write => "it needs `write = true` in the configuration of its node",
            Self::Names => {
                "it needs `write = true` and `names = true` in the configuration of its node"
            }
        }
    }
}

/// A name in a directory.
#[derive(Debug)]
pub(super) struct Named {
    name: Vec<u8>,
    kind: FileKind,
    /// Facts of names that were asked for with them, and that are no mounts.
    stat: Option<Stat>,
}

impl Named {
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(super) const fn kind(&self) -> FileKind {
        self.kind
    }

    /// What is known of it; nothing of mounts, or if it was not asked for.
    pub(super) const fn stat(&self) -> Option<&Stat> {
        self.stat.as_ref()
    }
}

/// Reason why a call was not done.
#[derive(Debug)]
pub(super) enum Fault {
    /// A file of the export was not opened.
    Open(OpenError),
    /// The export, or a directory of it, was not opened for that.
    Closed(Right, OpenError),
    /// The call was made, and ended so.
    Ended(Cause),
    /// The answer contradicts the protocol.
    Answer,
    /// There are more names than are listed.
    TooMany,
    /// Something that comes before any call.
    Failure(Failure),
}

impl Fault {
    /// The status, if the daemon or the peer gave one.
    pub(super) fn status(&self) -> Option<Status> {
        match self {
            Self::Open(OpenError::Session(SessionError::Refused { status, .. }))
            | Self::Closed(_, OpenError::Session(SessionError::Refused { status, .. }))
            | Self::Ended(Cause::Status(status)) => Some(*status),
            _ => None,
        }
    }

    /// A fault with that status.
    pub(super) const fn of_status(status: Status) -> Self {
        Self::Ended(Cause::Status(status))
    }

    /// Whether there is nothing at that place.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.status(), Some(Status::NotFound | Status::NotDirectory))
    }

    /// The failure for who named the place.
    pub(super) fn of(self, place: &Below) -> Failure {
        match self {
            Self::Closed(
                right,
                OpenError::Session(SessionError::Refused { status: Status::Denied, .. }),
            ) => {
                let (export, needed) = (piped_text::shown(place.export()), right.needed());
                let why = format!("{place}: the export `{export}` is not for that: {needed}");
                Failure::new(Exit::Refused, why)
            }
            Self::Open(error) | Self::Closed(_, error) => client::open(place, &error),
            Self::Ended(cause) => ended(cause, place),
            Self::Answer => Failure::failed(format!(
                "{place}: the answer cannot be read: update the older of the two daemons, or do \
                 not trust this one"
            )),
            Self::TooMany => Failure::failed(format!(
                "{place}: more than {NAMES_MAX} names, which is more than this command takes at \
                 once"
            )),
            Self::Failure(failure) => failure,
        }
    }

    /// The failure for who named two places, where either may be what it is about.
    pub(super) fn of_both(self, from: &Below, to: &Below) -> Failure {
        match self {
            Self::Ended(cause) => ended(cause, format_args!("{from} and {to}")),
            fault => fault.of(from),
        }
    }
}

/// The failure of a call that ended so.
fn ended(cause: Cause, what: impl Display) -> Failure {
    let why = match cause {
        Cause::Status(status) => why(status),
        _ => None,
    };
    let exit = client::exit_of(cause);
    match why {
        Some(why) => Failure::new(exit, format!("{what}: {why}")),
        None => Failure::new(exit, format!("{what}: {cause}")),
    }
}

/// Cause and fix of a call's status, where they are better known here than of any request.
const fn why(status: Status) -> Option<&'static str> {
    Some(match status {
        Status::NotFound => "no such file or directory",
        Status::Denied => {
            "the export, or a path that leaves it, is not for that: see `read`, `write` and \
             `names` in `pipectl exports` of the node that has it"
        }
        Status::NotPermitted => {
            "the daemon's user there may not: check owner and permissions of the file and of its \
             directory"
        }
        Status::NotDirectory => "a part of the path is no directory",
        Status::NotEmpty => "the directory is not empty: `pipectl rm -r` removes what is in it too",
        Status::ReadOnly => "its file system is mounted read only",
        Status::Invalid => {
            "such a name is not made or changed: one has control characters, or there is none, or \
             a directory would come below itself"
        }
        _ => return None,
    })
}

/// A call of the path that it gets.
type Make<'m> = dyn for<'a> Fn(&'a [u8]) -> Call<'a> + 'm;

/// A session for calls.
#[derive(Debug)]
pub(super) struct Tree {
    client: Client,
    queue: Queue,
    /// Room for a call and its answer; none while the kernel may still touch the last one.
    buffer: Option<Buffer>,
    directories: BTreeMap<(Right, Below), Handle>,
}

impl Tree {
    pub(super) fn connect(door: &ClientDoor) -> Result<Self, Failure> {
        let client = client::connect(ClientBuilder::new(), &door.socket)?;
        let queue = client.queue().map_err(|error| client::queue(&error))?;
        Ok(Self { client, queue, buffer: None, directories: BTreeMap::new() })
    }

    pub(super) fn client_and_queue(&mut self) -> (&Client, &mut Queue) {
        (&self.client, &mut self.queue)
    }

    /// What is known of a file or directory; links are not followed.
    pub(super) fn stat(&mut self, place: &Below) -> Result<Stat, Fault> {
        self.call(Right::Read, place, &|path| Call::Stat { path }, Stat::parse)
    }

    /// What is known, or nothing if there is nothing.
    pub(super) fn find(&mut self, place: &Below) -> Result<Option<Stat>, Fault> {
        match self.stat(place) {
            Ok(stat) => Ok(Some(stat)),
            Err(fault) if fault.is_missing() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Whether a link leads to a directory of its export.
    pub(super) fn leads_to_directory(&self, link: &Below) -> Result<bool, Fault> {
        let path = OsStr::from_bytes(link.path());
        match self.client.open_directory(link.peer(), link.export(), path, Access::READ) {
            Ok(_) => Ok(true),
            Err(error) => match Fault::Closed(Right::Read, error) {
                fault if fault.is_missing() => Ok(false),
                fault => Err(fault),
            },
        }
    }

    /// The names in a directory, sorted.
    pub(super) fn list(&mut self, place: &Below, stats: bool) -> Result<Vec<Named>, Fault> {
        let mut names: Vec<Named> = Vec::new();
        let mut cookie = Some(0);
        while let Some(at) = cookie {
            let before = names.len();
            let make: &Make<'_> = &|path| Call::List { path, cookie: at, stats };
            cookie = self.call(Right::Read, place, make, |bytes| {
                let entries = Entries::parse(bytes)?;
                for entry in entries.iter() {
                    let (name, kind, stat) = (entry.name.to_vec(), entry.kind, entry.stat);
                    if !is_component(&name) {
                        return Err(NoCall);
                    }
                    names.push(Named { name, kind, stat });
                }
                Ok(entries.next())
            })?;
            if cookie.is_some() && names.len() == before {
                // Asked for more, it would say nothing again.
                return Err(Fault::Answer);
            }
            if names.len() > NAMES_MAX {
                return Err(Fault::TooMany);
            }
        }
        // A name that was changed meanwhile may have come twice.
        names.sort_by(|one, other| one.name.cmp(&other.name));
        names.dedup_by(|one, other| one.name == other.name);
        Ok(names)
    }

    /// What is known of a name in a directory, also of a mount; nothing of what is gone.
    pub(super) fn known(&mut self, directory: &Below, named: &Named) -> Option<Stat> {
        named.stat.or_else(|| self.stat(&directory.child(&named.name)).ok())
    }

    /// Room on the file system of a directory.
    pub(super) fn space(&mut self, place: &Below) -> Result<Space, Fault> {
        let read = match self.call_of(Right::Read, place, &Call::Space, Space::parse) {
            Err(fault) if fault.status() == Some(Status::NotDirectory) => {
                self.call_of(Right::Read, &place.parent(), &Call::Space, Space::parse)
            }
            read => read,
        };
        match read {
            Err(fault) if fault.status() == Some(Status::Denied) => {
                self.call_of(Right::Write, &place.with_path(b""), &Call::Space, Space::parse)
            }
            read => read,
        }
    }

    pub(super) fn make_directory(
        &mut self,
        place: &Below,
        mode: u32,
        parents: bool,
    ) -> Result<(), Fault> {
        self.call(Right::Names, place, &|path| Call::MakeDirectory { path, mode, parents }, nothing)
    }

    pub(super) fn remove(&mut self, place: &Below, kind: Removed) -> Result<(), Fault> {
        self.call(Right::Names, place, &|path| Call::Remove { path, kind }, nothing)
    }

    /// Renames within an export; the change is on stable storage then if it is to be `durable`.
    pub(super) fn rename(
        &mut self,
        from: &Below,
        to: &Below,
        over: Over,
        durable: bool,
    ) -> Result<(), Fault> {
        let right = Right::Names;
        let mut base = self.base(right, &[from, to]);
        loop {
            let call =
                Call::Rename { from: beneath(from, &base), to: beneath(to, &base), over, durable };
            let renamed = self.call_of(right, &base, &call, nothing);
            let next = common(&from.parent(), &to.parent());
            match renamed {
                Err(fault) if fault.status() == Some(Status::CrossDevice) && base != next => {
                    base = next;
                }
                renamed => {
                    // What lies below another name now is not looked for at the old one.
                    self.directories.retain(|(_, directory), _| directory.is_export());
                    return renamed;
                }
            }
        }
    }

    /// An error if names of the export cannot be changed.
    pub(super) fn check_names(&mut self, place: &Below) -> Result<(), Fault> {
        let export = place.with_path(b"");
        self.open(Right::Names, &export).map(drop)
    }

    pub(super) fn open_file(&self, place: &Below, options: OpenOptions) -> Result<Handle, Fault> {
        let path = OsStr::from_bytes(place.path());
        let opened = self.client.open_export(place.peer(), place.export(), path, options);
        opened.map_err(Fault::Open)
    }

    /// Makes a call of a place. Where the path comes to another mount, the call is made of its
    /// directory, then of the place itself.
    fn call<T>(
        &mut self,
        right: Right,
        place: &Below,
        make: &Make<'_>,
        mut read: impl FnMut(&[u8]) -> Result<T, NoCall>,
    ) -> Result<T, Fault> {
        let mut base = self.base(right, &[place]);
        loop {
            let call = make(beneath(place, &base));
            let fault = match self.call_of(right, &base, &call, &mut read) {
                Err(fault) if fault.status() == Some(Status::CrossDevice) => fault,
                outcome => return outcome,
            };
            base = match place.parent() {
                parent if base != parent && base != *place => parent,
                _ if base != *place && right == Right::Read => place.clone(),
                _ => return Err(fault),
            };
        }
    }

    /// Makes a call of a directory.
    fn call_of<T>(
        &mut self,
        right: Right,
        directory: &Below,
        call: &Call<'_>,
        mut read: impl FnMut(&[u8]) -> Result<T, NoCall>,
    ) -> Result<T, Fault> {
        self.open(right, directory)?;
        let buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => client::allocate(&self.client, ANSWER_BYTES_MAX).map_err(Fault::Failure)?,
        };
        let handle = &self.directories[&(right, directory.clone())];
        match self.queue.call(handle, call, buffer) {
            Ok((buffer, bytes)) => {
                let answer = buffer.as_slice().get(..bytes);
                let told = answer.ok_or(NoCall).and_then(&mut read);
                self.buffer = Some(buffer);
                told.map_err(|NoCall| Fault::Answer)
            }
            Err(error) => {
                if let BufferState::Returned(buffer) = error.buffer {
                    self.buffer = Some(buffer);
                }
                Err(Fault::Ended(error.cause))
            }
        }
    }

    fn open(&mut self, right: Right, directory: &Below) -> Result<(), Fault> {
        let key = (right, directory.clone());
        if self.directories.contains_key(&key) {
            return Ok(());
        }
        let (peer, export) = (directory.peer(), directory.export());
        let path = OsStr::from_bytes(directory.path());
        let open = |access| self.client.open_directory(peer, export, path, access);
        let opened = match right {
            Right::Read | Right::Write => open(right.access()),
            // Who may read as well is told more of what is in the way.
            Right::Names => match open(Access { read: true, ..right.access() }) {
                Err(OpenError::Session(SessionError::Refused {
                    status: Status::Denied, ..
                })) => open(right.access()),
                opened => opened,
            },
        };
        if self.directories.len() >= DIRECTORIES_MAX {
            self.directories.clear();
        }
        let opened = opened.map_err(|error| Fault::Closed(right, error))?;
        self.directories.insert(key, opened);
        Ok(())
    }

    /// The deepest directory that is open and has all places below it; else the export.
    fn base(&self, right: Right, places: &[&Below]) -> Below {
        let open = self.directories.keys().filter(|(of, _)| *of == right);
        let open = open.map(|(_, directory)| directory);
        let above = open.filter(|it| places.iter().all(|place| is_below(place, it)));
        let deepest = above.max_by_key(|it| it.path().len()).cloned();
        deepest.unwrap_or_else(|| places[0].with_path(b""))
    }
}

fn nothing(_: &[u8]) -> Result<(), NoCall> {
    Ok(())
}

/// Whether a name is one that a directory can have: what others say is one may lead anywhere.
fn is_component(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Whether a place lies below a directory, and is not the directory.
fn is_below(place: &Below, directory: &Below) -> bool {
    let path = place.path().strip_prefix(directory.path());
    place.shares_export(directory)
        && path.is_some_and(|rest| directory.is_export() || rest.first() == Some(&b'/'))
}

/// The path of a place below a directory; empty for the directory itself.
fn beneath<'a>(place: &'a Below, directory: &Below) -> &'a [u8] {
    let rest = place.path().strip_prefix(directory.path()).unwrap_or(place.path());
    rest.strip_prefix(b"/").unwrap_or(rest)
}

/// The deepest directory that both are, or lie below.
fn common(one: &Below, other: &Below) -> Below {
    let same = one.parts().zip(other.parts()).take_while(|(one, other)| one == other);
    let parts: Vec<&[u8]> = same.map(|(part, _)| part).collect();
    one.with_path(&parts.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Below {
        Below::parse(OsStr::new(text)).expect(text)
    }

    #[test]
    fn paths_are_relative_to_the_directory_that_is_open() {
        let (file, directory) = (place("b:data/a/b/f"), place("b:data/a"));
        assert!(is_below(&file, &directory) && is_below(&file, &place("b:data")));
        for other in ["b:data/a/b/f", "b:data/a/bx", "b:other/a", ":data/a", "b:data/"] {
            assert!(!is_below(&directory, &place(other)) || other == "b:data/", "{other}");
        }
        assert_eq!(beneath(&file, &directory), b"b/f");
        assert_eq!(beneath(&file, &place("b:data")), b"a/b/f");
        assert_eq!(beneath(&directory, &directory), b"");
        assert_eq!(common(&file, &place("b:data/a/c")), directory);
        assert!(common(&file, &place("b:data/x")).is_export());
    }

    #[test]
    fn names_that_lead_elsewhere_are_no_names() {
        for name in ["", ".", "..", "a/b", "/", "a\0"] {
            assert!(!is_component(name.as_bytes()), "{name:?}");
        }
        for name in ["a", "...", ".a", "a b", "\u{1b}"] {
            assert!(is_component(name.as_bytes()), "{name:?}");
        }
    }
}
