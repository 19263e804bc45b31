//! Calls of directories: names, what is known of them, and how they change.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Mutex;

use client_lib::call::{FileKind, Over, Removed, Space};
use client_lib::{Access, CallError, Calls, Directory, Handle, Names, Stat};

use crate::border::{self, call, put, wanted};
use crate::client::{CLIENTS, piped_client};
use crate::fault::Fault;
use crate::handle::{HANDLES, PIPED_CREATE_PARENTS, access, piped_handle};
use crate::queue::{asking, piped_queue};
use crate::status::piped_status;
use crate::table::{Kind, Refusal, Table};
use crate::verbs::PIPED_DURABLE;

/// Access to a directory: names below it may be made, changed and removed.
pub const PIPED_NAMES: u32 = 8;
/// For piped_list_open: each name comes with what is known of it.
pub const PIPED_WITH_STATS: u32 = 1;

/// What a name stands for.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_file_kind {
    /// A device, a FIFO, a socket.
    PIPED_KIND_OTHER = 0,
    /// A file with bytes.
    PIPED_KIND_FILE = 1,
    /// A directory, which has names.
    PIPED_KIND_DIRECTORY = 2,
    /// A symbolic link, which no call follows at the end of a path.
    PIPED_KIND_LINK = 3,
}

/// What a name that is removed must stand for.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_removed {
    /// Anything but a directory.
    PIPED_REMOVE_FILE = 0,
    /// A directory, which must be empty.
    PIPED_REMOVE_DIRECTORY = 1,
    /// A file or an empty directory.
    PIPED_REMOVE_ANY = 2,
}

/// What becomes of something that has the new name of a piped_rename.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_over {
    /// Something loses the name: a file, or an empty directory for a directory.
    PIPED_OVER_REPLACE = 0,
    /// The call fails, and nothing changes.
    PIPED_OVER_KEEP = 1,
    /// Something gets the old name.
    PIPED_OVER_EXCHANGE = 2,
}

/// What is known of a file or directory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_file_info {
    /// Length of the file in bytes.
    pub length: u64,
    /// Room that it takes on the device, in bytes.
    pub allocated: u64,
    /// Number on its file system, the same for all its names.
    pub inode: u64,
    /// Time of the last change of its bytes, in seconds since 1970.
    pub modified_seconds: i64,
    /// Time of the last change of anything here, in seconds since 1970.
    pub changed_seconds: i64,
    /// Nanoseconds that belong to modified_seconds.
    pub modified_nanoseconds: u32,
    /// Nanoseconds that belong to changed_seconds.
    pub changed_nanoseconds: u32,
    /// What it is (piped_file_kind).
    pub kind: u32,
    /// Permission bits, without the kind.
    pub mode: u32,
    /// The user that owns it, by number of its own node.
    pub user: u32,
    /// The group that owns it, by number of its own node.
    pub group: u32,
    /// How many names it has.
    pub links: u32,
    /// What offsets and lengths of direct I/O must be multiples of; 0: there is none.
    pub direct_offset: u32,
    /// What addresses of direct I/O must be multiples of; 0: there is none.
    pub direct_memory: u32,
    /// Reserved, and always 0.
    pub reserved: u32,
}

/// Room on a file system.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_space_info {
    /// All of it, in bytes.
    pub total: u64,
    /// What nothing takes, in bytes.
    pub free: u64,
    /// What of it the daemon may take, in bytes.
    pub available: u64,
    /// How many files there can be; 0: there is no such bound.
    pub files: u64,
    /// How many more files there can be.
    pub files_free: u64,
}

/// A name of a directory, until the next call on its list.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_name {
    /// The name, which ends with a NUL. NULL: there are no more.
    pub name: *const c_char,
    /// What it stands for (piped_file_kind).
    pub kind: u32,
    /// Whether `stat` is there: with PIPED_WITH_STATS, if the name was there still.
    pub has_stat: bool,
    /// What is known of it.
    pub stat: piped_file_info,
}

/// A list of the names of a directory. For one thread at a time.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_list {
    _name: [u8; 0],
}

/// A listing, with the name that C looks at.
#[derive(Debug)]
struct Listed {
    handle: Handle,
    names: Names,
    name: CString,
}

/// The mutex makes them fit for a table that threads share. Nobody locks it: the place's own lock
/// is held.
static LISTS: Table<Mutex<Listed>> = Table::new(Kind::List);

/// Makes a call of a handle by a queue.
pub(crate) fn calls<T>(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    ask: impl FnOnce(&mut Calls<'_>) -> Result<T, CallError>,
) -> Result<T, Fault> {
    let handle = HANDLES.get(handle)?;
    asking(queue, |asking| Ok(ask(&mut Calls::new(asking.for_call()?, &handle))?))
}

fn kind(kind: FileKind) -> u32 {
    (match kind {
        FileKind::Other => piped_file_kind::PIPED_KIND_OTHER,
        FileKind::File => piped_file_kind::PIPED_KIND_FILE,
        FileKind::Directory => piped_file_kind::PIPED_KIND_DIRECTORY,
        FileKind::Link => piped_file_kind::PIPED_KIND_LINK,
    }) as u32
}

fn stat(stat: &Stat) -> piped_file_info {
    piped_file_info {
        length: stat.length,
        allocated: stat.allocated,
        inode: stat.inode,
        modified_seconds: stat.modified.0,
        changed_seconds: stat.changed.0,
        modified_nanoseconds: stat.modified.1,
        changed_nanoseconds: stat.changed.1,
        kind: kind(stat.kind),
        mode: stat.mode,
        user: stat.user,
        group: stat.group,
        links: stat.links,
        direct_offset: stat.direct_offset,
        direct_memory: stat.direct_memory,
        reserved: 0,
    }
}

/// Refuses all but these flags.
pub(crate) fn only(flags: u32, known: u32) -> Result<(), Fault> {
    if flags & !known == 0 {
        return Ok(());
    }
    let text = "a flag that this version does not have, or not for this call";
    Err(Fault::told(piped_status::PIPED_UNSUPPORTED, text))
}

/// Open the directory `path` below the export `export` of the node `peer`, or of this node (NULL);
/// an empty path is the export itself. `flags`: PIPED_READ, PIPED_WRITE, PIPED_NAMES, as many as
/// are needed. Calls are made of it. Free it with piped_handle_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_open_directory(
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
        let access = access(flags, PIPED_NAMES)?;
        let client = CLIENTS.get(client)?;
        let opened = client.open_directory(peer, export, border::path(path)?, access)?;
        put(handle, HANDLES.insert(opened)?)
    })
}

/// What is known of a file or directory now. `path`: below the directory that is open; "" is what
/// is open itself. A link at the end of the path is not followed.
#[unsafe(no_mangle)]
pub extern "C" fn piped_stat(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    path: *const c_char,
    known: Option<&mut MaybeUninit<piped_file_info>>,
) -> piped_status {
    call(|| {
        wanted(&known)?;
        let path = border::path(path)?;
        put(known, stat(&calls(queue, handle, |calls| calls.stat(path))?))
    })
}

/// Room on the file system of what is open.
#[unsafe(no_mangle)]
pub extern "C" fn piped_space(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    space: Option<&mut MaybeUninit<piped_space_info>>,
) -> piped_status {
    call(|| {
        wanted(&space)?;
        let told = calls(queue, handle, |calls| calls.space())?;
        let Space { total, free, available, files, files_free } = told;
        put(space, piped_space_info { total, free, available, files, files_free })
    })
}

/// A list of the names in a directory, in no order. `flags`: PIPED_WITH_STATS. Nothing is asked for
/// yet. Free it with piped_list_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_list_open(
    handle: *mut piped_handle,
    path: *const c_char,
    flags: u32,
    list: Option<&mut MaybeUninit<*mut piped_list>>,
) -> piped_status {
    call(|| {
        wanted(&list)?;
        only(flags, PIPED_WITH_STATS)?;
        let names = Names::new(border::path(path)?, flags & PIPED_WITH_STATS != 0);
        let listed = Listed { handle: HANDLES.get(handle)?, names, name: CString::default() };
        put(list, LISTS.insert(Mutex::new(listed))?)
    })
}

/// The next name of a list; `name->name` is NULL behind the last one. While others change the
/// directory, a name that stays is given once. After a failure there are none.
#[unsafe(no_mangle)]
pub extern "C" fn piped_list_next(
    list: *mut piped_list,
    queue: *mut piped_queue,
    name: Option<&mut MaybeUninit<piped_name>>,
) -> piped_status {
    call(|| {
        wanted(&name)?;
        let next = LISTS.try_with_mut(list, |listed| {
            let Listed { handle, names, name } = listed.get_mut().map_err(|_| Refusal::Spoilt)?;
            let next = asking(queue, |asking| {
                Ok(names.next(&mut Calls::new(asking.for_call()?, handle))?)
            })?;
            let none = stat(&Stat::default());
            let Some(next) = next else {
                let name = std::ptr::null();
                return Ok(piped_name { name, kind: 0, has_stat: false, stat: none });
            };
            // No file system has a NUL in a name.
            *name = CString::new(next.name.as_bytes()).unwrap_or_default();
            Ok::<_, Fault>(piped_name {
                name: name.as_ptr(),
                kind: kind(next.kind),
                has_stat: next.stat.is_some(),
                stat: next.stat.as_ref().map_or(none, stat),
            })
        })??;
        put(name, next)
    })
}

/// Free a list. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_list_free(list: *mut piped_list) -> piped_status {
    call(|| {
        if list.is_null() {
            return Ok(());
        }
        drop(LISTS.try_remove(list)?);
        Ok(())
    })
}

/// Make a directory with these permission bits, of which the daemon's umask takes some away.
/// `flags`: PIPED_CREATE_PARENTS makes those on the way too, and one that is there is no error.
#[unsafe(no_mangle)]
pub extern "C" fn piped_make_directory(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    path: *const c_char,
    mode: u32,
    flags: u32,
) -> piped_status {
    call(|| {
        only(flags, PIPED_CREATE_PARENTS)?;
        let path = border::path(path)?;
        calls(queue, handle, |calls| match flags {
            0 => calls.make_directory(path, mode),
            _ => calls.make_directories(path, mode),
        })
    })
}

/// Remove a name. `kind`: what it must stand for (piped_removed).
#[unsafe(no_mangle)]
pub extern "C" fn piped_remove(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    path: *const c_char,
    kind: u32,
) -> piped_status {
    call(|| {
        let known = [
            (piped_removed::PIPED_REMOVE_FILE as u32, Removed::File),
            (piped_removed::PIPED_REMOVE_DIRECTORY as u32, Removed::Directory),
            (piped_removed::PIPED_REMOVE_ANY as u32, Removed::Any),
        ];
        let kind = border::one_of(kind, known, "kind is none of piped_removed")?;
        let path = border::path(path)?;
        calls(queue, handle, |calls| calls.remove(path, kind))
    })
}

/// Give something another name, in one step that others see whole or not at all. `over`: what
/// becomes of something that has the new name (piped_over). `flags`: PIPED_DURABLE ends when the
/// change is on stable storage.
#[unsafe(no_mangle)]
pub extern "C" fn piped_rename(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    from: *const c_char,
    to: *const c_char,
    over: u32,
    flags: u32,
) -> piped_status {
    call(|| {
        let known = [
            (piped_over::PIPED_OVER_REPLACE as u32, Over::Replace),
            (piped_over::PIPED_OVER_KEEP as u32, Over::Keep),
            (piped_over::PIPED_OVER_EXCHANGE as u32, Over::Exchange),
        ];
        let over = border::one_of(over, known, "over is none of piped_over")?;
        only(flags, PIPED_DURABLE)?;
        let (from, to) = (border::path(from)?, border::path(to)?);
        calls(queue, handle, |calls| match flags {
            0 => calls.rename(from, to, over),
            _ => calls.rename_durably(from, to, over),
        })
    })
}

/// Give a file one more name, which nothing else has.
#[unsafe(no_mangle)]
pub extern "C" fn piped_link(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    from: *const c_char,
    to: *const c_char,
) -> piped_status {
    call(|| {
        let (from, to) = (border::path(from)?, border::path(to)?);
        calls(queue, handle, |calls| calls.link(from, to))
    })
}

/// Copy a range of the file `from` to the same range of the file `to`, which is there, without
/// moving its bytes to this node: of 1 GiB at most. `copied` gets how many bytes that was: less
/// than wanted where `from` ends. With PIPED_DURABLE it returns when they are on stable storage: a
/// sync of the file knows nothing of what is copied by its name. Holes stay holes. Links are not
/// followed.
#[unsafe(no_mangle)]
pub extern "C" fn piped_copy_range(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    from: *const c_char,
    to: *const c_char,
    offset: u64,
    length: u64,
    flags: u32,
    copied: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        wanted(&copied)?;
        let (from, to) = (border::path(from)?, border::path(to)?);
        let range = border::range(offset, length)?;
        only(flags, PIPED_DURABLE)?;
        let bytes = calls(queue, handle, |calls| match flags {
            0 => calls.copy(from, to, range.clone()),
            _ => calls.copy_durably(from, to, range.clone()),
        })?;
        put(copied, bytes)
    })
}

/// Replace the file `path` below the export `export` of the node `peer`, or of this node (NULL), or
/// make it, with these permission bits: others see the old bytes or the new ones, whenever they
/// look and whatever crashes. Returns when the new ones are on stable storage.
#[unsafe(no_mangle)]
pub extern "C" fn piped_replace(
    client: *mut piped_client,
    queue: *mut piped_queue,
    peer: *const c_char,
    export: *const c_char,
    path: *const c_char,
    bytes: *const u8,
    length: usize,
    mode: u32,
) -> piped_status {
    call(|| {
        let (peer, export) = (border::text_or_null(peer)?, border::text(export)?);
        let (path, bytes) = (border::path(path)?, border::bytes(bytes, length)?);
        let access = Access { names: true, ..Access::WRITE };
        let client = CLIENTS.get(client)?;
        let directory = Directory::open(&client, peer, export, "", access)?;
        asking(queue, |asking| Ok(directory.replace(asking.for_call()?, path, bytes, mode)?))
    })
}
