//! Calls of files and directories: what is asked of them beside moving bytes.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use piped_client::Call;
use piped_client::call::{ANSWER_BYTES_MAX, Advice, Lock, Over, Range, Removed};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::handle::Handle;
use crate::outcome::Kind;
use crate::queue::{Queue, Request};

/// Room for any call, and for answers of a fixed length.
const SHORT: usize = 4096;

/// Room for answers that come in pages.
const LONG: usize = ANSWER_BYTES_MAX as usize;

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// One of the words that a call has.
fn word<T: Copy>(what: &str, word: &str, words: &[(&str, T)]) -> PyResult<T> {
    let found = words.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        PyValueError::new_err(format!("{what} is one of {}", names.join(", ")))
    })
}

/// Submits the question what is known of a file or directory.
#[pyfunction]
pub(crate) fn call_stat(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    path: PathBuf,
) -> PyResult<Request> {
    let call = Call::Stat { path: bytes(&path) };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Stat))
}

/// Submits the question for a page of names; its result is a list, and where to go on or None.
#[pyfunction]
pub(crate) fn call_list(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    place: u64,
    path: PathBuf,
    stats: bool,
) -> PyResult<Request> {
    let call = Call::List { path: bytes(&path), cookie: place, stats };
    Queue::submit_call(queue, handle, &call, (LONG, Kind::Names))
}

/// Submits the question for room on the file system.
#[pyfunction]
pub(crate) fn call_space(queue: &Bound<'_, Queue>, handle: &Handle) -> PyResult<Request> {
    Queue::submit_call(queue, handle, &Call::Space, (SHORT, Kind::Space))
}

/// Submits the making of a directory, and of those on the way with `parents`.
#[pyfunction]
pub(crate) fn call_make_directory(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    path: PathBuf,
    mode: u32,
    parents: bool,
) -> PyResult<Request> {
    let call = Call::MakeDirectory { path: bytes(&path), mode, parents };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits the removal of a name: of a file, an empty directory, or any.
#[pyfunction]
pub(crate) fn call_remove(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    path: PathBuf,
    kind: &str,
) -> PyResult<Request> {
    let kinds = [("file", Removed::File), ("directory", Removed::Directory), ("any", Removed::Any)];
    let call = Call::Remove { path: bytes(&path), kind: word("kind", kind, &kinds)? };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits a rename; `over`: replace, keep or exchange what has the new name.
#[pyfunction]
pub(crate) fn call_rename(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    source: PathBuf,
    target: PathBuf,
    over: &str,
    durable: bool,
) -> PyResult<Request> {
    let kinds = [("replace", Over::Replace), ("keep", Over::Keep), ("exchange", Over::Exchange)];
    let over = word("over", over, &kinds)?;
    let (from, to) = (bytes(&source), bytes(&target));
    let call = Call::Rename { from, to, over, durable };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits one more name for a file.
#[pyfunction]
pub(crate) fn call_link(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    source: PathBuf,
    target: PathBuf,
) -> PyResult<Request> {
    let call = Call::Link { from: bytes(&source), to: bytes(&target) };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits a new length for a file.
#[pyfunction]
pub(crate) fn call_truncate(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    length: u64,
) -> PyResult<Request> {
    Queue::submit_call(queue, handle, &Call::Truncate { length }, (SHORT, Kind::Nothing))
}

/// Submits that a range shall have room on the device.
#[pyfunction]
pub(crate) fn call_allocate(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    offset: u64,
    length: u64,
    keep_length: bool,
) -> PyResult<Request> {
    let call = Call::Allocate { range: Range { offset, length }, keep_length };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits that a range becomes zeros.
#[pyfunction]
pub(crate) fn call_zero(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    offset: u64,
    length: u64,
    release: bool,
) -> PyResult<Request> {
    let call = Call::Zero { range: Range { offset, length }, release };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits that a range gives up its room on the device.
#[pyfunction]
pub(crate) fn call_trim(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    offset: u64,
    length: u64,
) -> PyResult<Request> {
    let call = Call::Trim { range: Range { offset, length } };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits the question where a file has data and holes: a page of the range from `place` to `end`;
/// its result is a list, and where to go on or None.
#[pyfunction]
pub(crate) fn call_extents(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    place: u64,
    end: u64,
) -> PyResult<Request> {
    let range = Range { offset: place, length: end.saturating_sub(place) };
    Queue::submit_call(queue, handle, &Call::Extents { range }, (LONG, Kind::Extents(range)))
}

/// Submits that a range, or a directory's names, come to stable storage.
#[pyfunction]
pub(crate) fn call_sync_range(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    offset: u64,
    length: u64,
    data_only: bool,
) -> PyResult<Request> {
    let call = Call::Sync { range: Range { offset, length }, data_only };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits what will be done with a range: normal, will_need or dont_need.
#[pyfunction]
pub(crate) fn call_advise(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    offset: u64,
    length: u64,
    advice: &str,
) -> PyResult<Request> {
    let kinds = [
        ("normal", Advice::Normal),
        ("will_need", Advice::WillNeed),
        ("dont_need", Advice::DontNeed),
    ];
    let advice = word("advice", advice, &kinds)?;
    let call = Call::Advise { range: Range { offset, length }, advice };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}

/// Submits the question for the BLAKE3 digest of a range, of 1 GiB at most.
#[pyfunction]
pub(crate) fn call_digest(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    offset: u64,
    length: u64,
) -> PyResult<Request> {
    let call = Call::Digest { range: Range { offset, length } };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Digest))
}

/// Submits a copy of a range of one file to another by their node, of 1 GiB at most; its result
/// is the number of bytes.
#[pyfunction]
pub(crate) fn call_copy_names(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    source: PathBuf,
    target: PathBuf,
    offset: u64,
    length: u64,
    durable: bool,
) -> PyResult<Request> {
    let (from, to) = (bytes(&source), bytes(&target));
    let call = Call::Copy { from, to, range: Range { offset, length }, durable };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Copied))
}

/// Submits a lock of a range (none, shared or exclusive); does not wait for others' locks.
#[pyfunction]
pub(crate) fn call_lock(
    queue: &Bound<'_, Queue>,
    handle: &Handle,
    offset: u64,
    length: u64,
    lock: &str,
) -> PyResult<Request> {
    let kinds = [("none", Lock::None), ("shared", Lock::Shared), ("exclusive", Lock::Exclusive)];
    let lock = word("lock", lock, &kinds)?;
    let call = Call::Lock { range: Range { offset, length }, lock };
    Queue::submit_call(queue, handle, &call, (SHORT, Kind::Nothing))
}
