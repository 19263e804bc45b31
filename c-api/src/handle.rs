//! Handles: open files, files of other nodes, regions, channels.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

use client_lib::{Access, Handle, OpenOptions};

use crate::border::{self, call, put, wanted};
use crate::client::{CLIENTS, piped_client};
use crate::fault::Fault;
use crate::names::PIPED_NAMES;
use crate::status::piped_status;
use crate::table::{Kind, Table};

/// Something open: a local file, a file of an export, a region, a channel. For all threads of its
/// client. Closed when it was freed and the last request that uses it has ended.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_handle {
    _name: [u8; 0],
}

pub(crate) static HANDLES: Table<Handle> = Table::new(Kind::Handle);

/// Access for reading from the handle.
pub const PIPED_READ: u32 = 1;
/// Access for writing to the handle.
pub const PIPED_WRITE: u32 = 2;
/// Access to a region: atomics.
pub const PIPED_ATOMIC: u32 = 4;
/// When opening a file: make it if it is not there.
pub const PIPED_CREATE: u32 = 16;
/// When opening a file: make it, and fail if something has its name.
pub const PIPED_CREATE_NEW: u32 = 128;
/// When making a file: make the directories on the way to it, too.
pub const PIPED_CREATE_PARENTS: u32 = 256;
/// When making a file: its permission bits, at most 0777, are shifted by so many bits into the
/// flags; 0 are the default (0640 below exports, 0666 here), of which umask takes some away.
pub const PIPED_MODE_SHIFT: u32 = 16;
/// When opening a local file: empty it.
pub const PIPED_TRUNCATE: u32 = 32;
/// When opening a local file: do not go past the page cache.
pub const PIPED_BUFFERED: u32 = 64;

/// Only these flags and `others`, of which some are the access.
pub(crate) fn access(flags: u32, others: u32) -> Result<Access, Fault> {
    let has = |flag| flags & flag != 0;
    let access = Access {
        read: has(PIPED_READ),
        write: has(PIPED_WRITE),
        atomic: has(PIPED_ATOMIC),
        names: has(PIPED_NAMES & others),
    };
    if flags & !(PIPED_READ | PIPED_WRITE | others) != 0 {
        let text = "a flag that this version does not have, or not for this call";
        return Err(Fault::told(piped_status::PIPED_UNSUPPORTED, text));
    }
    if access == Access::default() {
        return Err(Fault::argument("the flags name no access, as PIPED_READ does"));
    }
    Ok(access)
}

fn options(flags: u32) -> Result<OpenOptions, Fault> {
    let mode = flags >> PIPED_MODE_SHIFT & 0o777;
    let creates = PIPED_CREATE | PIPED_CREATE_NEW | PIPED_CREATE_PARENTS | mode << PIPED_MODE_SHIFT;
    let access = access(flags, creates | PIPED_TRUNCATE | PIPED_BUFFERED)?;
    let options = OpenOptions::new(access);
    let options = if mode == 0 { options } else { options.mode(mode) };
    Ok(options
        .create(flags & PIPED_CREATE != 0)
        .create_new(flags & PIPED_CREATE_NEW != 0)
        .create_parents(flags & PIPED_CREATE_PARENTS != 0)
        .truncate(flags & PIPED_TRUNCATE != 0)
        .direct(flags & PIPED_BUFFERED == 0))
}

/// Open a local file with this process's rights, past the page cache where that can be. `flags`:
/// PIPED_READ or PIPED_WRITE or both, and PIPED_CREATE and its sisters, PIPED_TRUNCATE,
/// PIPED_BUFFERED. Free it with piped_handle_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_open_file(
    client: *mut piped_client,
    path: *const c_char,
    flags: u32,
    handle: Option<&mut MaybeUninit<*mut piped_handle>>,
) -> piped_status {
    call(|| {
        wanted(&handle)?;
        let client = CLIENTS.get(client)?;
        let opened = client.open_file(border::path(path)?, options(flags)?)?;
        put(handle, HANDLES.insert(opened)?)
    })
}

/// Pass on a local file that is open already; `flags` are PIPED_READ and PIPED_WRITE, at most what
/// it was opened for. The descriptor stays the program's; its offset and flags are left alone.
#[unsafe(no_mangle)]
pub extern "C" fn piped_open_fd(
    client: *mut piped_client,
    fd: c_int,
    flags: u32,
    handle: Option<&mut MaybeUninit<*mut piped_handle>>,
) -> piped_status {
    call(|| {
        wanted(&handle)?;
        let file = border::descriptor(fd)?;
        let opened = CLIENTS.get(client)?.open_fd(file, access(flags, 0)?)?;
        put(handle, HANDLES.insert(opened)?)
    })
}

/// Open the file `path` below the export `export` of the node `peer`, or of this node (NULL).
/// `flags`: PIPED_READ or PIPED_WRITE or both, and PIPED_CREATE and its sisters. Free it with
/// piped_handle_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_open_export(
    client: *mut piped_client,
    peer: *const c_char,
    export: *const c_char,
    path: *const c_char,
    flags: u32,
    handle: Option<&mut MaybeUninit<*mut piped_handle>>,
) -> piped_status {
    call(|| {
        wanted(&handle)?;
        let (peer, export) = (border::text_or_null(peer)?, border::text(export)?);
        let (path, options) = (border::path(path)?, options(flags)?);
        let opened = CLIENTS.get(client)?.open_export(peer, export, path, options)?;
        put(handle, HANDLES.insert(opened)?)
    })
}

/// Open a region that a client of the node `peer`, or of this node (NULL), exports. `flags`:
/// PIPED_READ, PIPED_WRITE and PIPED_ATOMIC, as many as are needed. Free it with piped_handle_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_open_region(
    client: *mut piped_client,
    peer: *const c_char,
    name: *const c_char,
    flags: u32,
    handle: Option<&mut MaybeUninit<*mut piped_handle>>,
) -> piped_status {
    call(|| {
        wanted(&handle)?;
        let (peer, name) = (border::text_or_null(peer)?, border::text(name)?);
        let opened = CLIENTS.get(client)?.open_region(peer, name, access(flags, PIPED_ATOMIC)?)?;
        put(handle, HANDLES.insert(opened)?)
    })
}

/// Open a channel on which a client of the node `peer`, or of this node (NULL), receives, for
/// piped_send. Free it with piped_handle_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_open_channel(
    client: *mut piped_client,
    peer: *const c_char,
    name: *const c_char,
    handle: Option<&mut MaybeUninit<*mut piped_handle>>,
) -> piped_status {
    call(|| {
        wanted(&handle)?;
        let (peer, name) = (border::text_or_null(peer)?, border::text(name)?);
        let opened = CLIENTS.get(client)?.open_channel(peer, name)?;
        put(handle, HANDLES.insert(opened)?)
    })
}

/// Receive messages under a name, from clients of this node and of others, with piped_receive. The
/// name is free again when the handle was freed.
#[unsafe(no_mangle)]
pub extern "C" fn piped_offer_channel(
    client: *mut piped_client,
    name: *const c_char,
    handle: Option<&mut MaybeUninit<*mut piped_handle>>,
) -> piped_status {
    call(|| {
        wanted(&handle)?;
        let opened = CLIENTS.get(client)?.offer_channel(border::text(name)?)?;
        put(handle, HANDLES.insert(opened)?)
    })
}

/// Close a handle; requests that use it go on. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_handle_free(handle: *mut piped_handle) -> piped_status {
    call(|| {
        if handle.is_null() {
            return Ok(());
        }
        HANDLES.remove(handle, |_| Ok::<_, Fault>(())).map(drop)
    })
}

/// The handle's length in bytes when it was opened, the last time.
#[unsafe(no_mangle)]
pub extern "C" fn piped_handle_length(
    handle: *mut piped_handle,
    length: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| put(length, HANDLES.with(handle, Handle::len)?))
}

/// Offsets and lengths at multiples of this many bytes go past the page cache, without a copy. 0:
/// none do.
#[unsafe(no_mangle)]
pub extern "C" fn piped_handle_direct_alignment(
    handle: *mut piped_handle,
    bytes: Option<&mut MaybeUninit<u32>>,
) -> piped_status {
    call(|| put(bytes, HANDLES.with(handle, Handle::direct_alignment)?))
}

/// The number the daemon gave it, as its reports show it.
#[unsafe(no_mangle)]
pub extern "C" fn piped_handle_number(
    handle: *mut piped_handle,
    number: Option<&mut MaybeUninit<u32>>,
) -> piped_status {
    call(|| put(number, HANDLES.with(handle, Handle::number)?))
}
