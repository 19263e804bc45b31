//! One function for each call with an answer of a fixed length, for threads and for tasks.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use piped_core::call::{
    Advice, Call, Copied, Digest, Lock, NoCall, Over, Range, Removed, Space, Stat,
};

#[cfg(feature = "async")]
use super::AsyncCalls;
use super::{CallError, Calls, SHORT};

/// Writes each function twice: the one of tasks waits without blocking.
macro_rules! verbs {
    ($(
        $(#[$doc:meta])*
        $name:ident($($of:ident: $type:ty),*) -> $answer:ty = $read:expr, $call:expr;
    )*) => {
        impl Calls<'_> {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// See [`CallError`].
            pub fn $name(&mut self $(, $of: $type)*) -> Result<$answer, CallError> {
                self.ask(&$call, SHORT, $read)
            }
        )*}

        #[cfg(feature = "async")]
        impl AsyncCalls {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// See [`CallError`].
            pub async fn $name(&self $(, $of: $type)*) -> Result<$answer, CallError> {
                self.ask(&$call, SHORT, $read).await
            }
        )*}
    };
}

verbs! {
    /// What is known of a file or directory. A link at the end of the path is not followed.
    stat(path: impl AsRef<Path>) -> Stat = Stat::parse, Call::Stat { path: bytes(&path) };

    /// Room on the file system.
    space() -> Space = Space::parse, Call::Space;

    /// Makes a directory with these permission bits, of which the daemon's umask takes some away.
    make_directory(path: impl AsRef<Path>, mode: u32) -> () = nothing,
        Call::MakeDirectory { path: bytes(&path), mode, parents: false };

    /// Makes a directory and those on the way to it. One that is there is no error.
    make_directories(path: impl AsRef<Path>, mode: u32) -> () = nothing,
        Call::MakeDirectory { path: bytes(&path), mode, parents: true };

    /// Removes a name: of anything but a directory, of an empty directory, or of either.
    remove(path: impl AsRef<Path>, kind: Removed) -> () = nothing,
        Call::Remove { path: bytes(&path), kind };

    /// Gives something another name, in one step that others see whole or not at all. `over`: what
    /// becomes of something that has the new name.
    rename(from: impl AsRef<Path>, to: impl AsRef<Path>, over: Over) -> () = nothing,
        Call::Rename { from: bytes(&from), to: bytes(&to), over, durable: false };

    /// Gives something another name, and ends when that is on stable storage.
    rename_durably(from: impl AsRef<Path>, to: impl AsRef<Path>, over: Over) -> () = nothing,
        Call::Rename { from: bytes(&from), to: bytes(&to), over, durable: true };

    /// Gives a file one more name, which nothing else has.
    link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> () = nothing,
        Call::Link { from: bytes(&from), to: bytes(&to) };

    /// Cuts the file off at a length, or makes it longer by zeros that take no room.
    truncate(length: u64) -> () = nothing, Call::Truncate { length };

    /// Makes sure that a range of the file has room on the device. With `keep_length` the file does
    /// not become longer for it.
    allocate(range: std::ops::Range<u64>, keep_length: bool) -> () = nothing,
        Call::Allocate { range: of(&range), keep_length };

    /// Makes a range of the file zeros. With `release` its room on the device is given up, if that
    /// is as fast.
    zero(range: std::ops::Range<u64>, release: bool) -> () = nothing,
        Call::Zero { range: of(&range), release };

    /// Gives up the room of a range on the device; its bytes are zeros then.
    trim(range: std::ops::Range<u64>) -> () = nothing, Call::Trim { range: of(&range) };

    /// Brings a range of the file to stable storage; of a directory, its names. An empty range ends
    /// where the file does. `data_only`: without what is not needed to read the data again.
    sync_range(range: std::ops::Range<u64>, data_only: bool) -> () = nothing,
        Call::Sync { range: of(&range), data_only };

    /// Tells the page cache what will be done with a range. An empty range ends where the file
    /// does.
    advise(range: std::ops::Range<u64>, advice: Advice) -> () = nothing,
        Call::Advise { range: of(&range), advice };

    /// The BLAKE3 digest of a range of the file, of 1 GiB at most.
    digest(range: std::ops::Range<u64>) -> Digest = digest_of, Call::Digest { range: of(&range) };

    /// Copies a range of one file to the same range of another one, which is there, without moving
    /// its bytes to this node: of 1 GiB at most. Returns how many bytes were copied: less than
    /// wanted where the file with the bytes ends. Holes stay holes. Links are not followed.
    copy(from: impl AsRef<Path>, to: impl AsRef<Path>, range: std::ops::Range<u64>) -> u64 =
        copied_of,
        Call::Copy { from: bytes(&from), to: bytes(&to), range: of(&range), durable: false };

    /// Copies a range as [`copy`](Self::copy) does, and ends when it is on stable storage: a sync
    /// of the file knows nothing of what is copied by its name.
    copy_durably(
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        range: std::ops::Range<u64>
    ) -> u64 = copied_of,
        Call::Copy { from: bytes(&from), to: bytes(&to), range: of(&range), durable: true };

    /// Locks a range of the file against other handles, or gives the lock up ([`Lock::None`]). An
    /// empty range is all behind its start. Does not wait: ends with
    /// [`Status::Locked`](crate::Status::Locked) if somebody else has locked a part of it.
    ///
    /// A lock is advice: reads and writes do not ask for it. The locks of a handle are one party's,
    /// whoever uses it, and programs on the node with the file that lock with `fcntl` see them.
    /// They end with the handle; so they do where the client loses its daemon, or its node has no
    /// connection to the peer for half a minute. A handle that may have lost locks so serves
    /// nothing any more: its requests end with an error, and it must be opened again.
    try_lock(range: std::ops::Range<u64>, lock: Lock) -> () = nothing,
        Call::Lock { range: of(&range), lock };
}

fn bytes(path: &impl AsRef<Path>) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

fn of(range: &std::ops::Range<u64>) -> Range {
    Range { offset: range.start, length: range.end.saturating_sub(range.start) }
}

/// Calls without an answer.
fn nothing(answer: &[u8]) -> Result<(), NoCall> {
    if answer.is_empty() { Ok(()) } else { Err(NoCall) }
}

fn copied_of(answer: &[u8]) -> Result<u64, NoCall> {
    Copied::parse(answer).map(|copied| copied.0)
}

fn digest_of(answer: &[u8]) -> Result<Digest, NoCall> {
    answer.try_into().map(Digest).map_err(|_| NoCall)
}
