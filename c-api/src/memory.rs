//! Memory that a program has already, lent to its daemon.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use client_lib::{Client, LendError};

use crate::border::{self, call, put, wanted};
use crate::buffer::{BUFFERS, Lent, piped_buffer};
use crate::client::{CLIENTS, piped_client};
use crate::fault::Fault;
use crate::status::piped_status;
use crate::table::{Kind, Table};

/// Memory of the program that is lent to the daemon, until it is given back and all buffers of it
/// are freed. For all threads.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_memory {
    _name: [u8; 0],
}

static MEMORIES: Table<client_lib::Lent> = Table::new(Kind::Memory);

/// Lend a memfd that is sealed against shrinking (F_SEAL_SHRINK), as it is now. The descriptor can
/// be closed. Give it back with piped_memory_give_back.
#[unsafe(no_mangle)]
pub extern "C" fn piped_memory_lend_memfd(
    client: *mut piped_client,
    fd: c_int,
    memory: Option<&mut MaybeUninit<*mut piped_memory>>,
) -> piped_status {
    call(|| lend(client, fd, memory, |client, fd| client.lend_memfd(fd)))
}

/// Lend a file of memory that has no seals: POSIX shared memory, a file below /dev/shm. Anybody who
/// may can cut it: requests on it end with PIPED_BAD_BUFFER then, and a program that loads from a
/// page that is gone gets a SIGBUS. The descriptor can be closed. Give it back with
/// piped_memory_give_back.
#[unsafe(no_mangle)]
pub extern "C" fn piped_memory_lend_shared(
    client: *mut piped_client,
    fd: c_int,
    memory: Option<&mut MaybeUninit<*mut piped_memory>>,
) -> piped_status {
    call(|| lend(client, fd, memory, |client, fd| client.lend_shared(fd)))
}

/// Lend whole pages of private anonymous memory. The bytes are moved into a memfd that is mapped in
/// their place: pointers stay good. Nothing may write there during the call, and the area stays
/// mapped as long as it is lent. What is not whole pages, not mapped, shared, of a file, locked or
/// lent already is refused. A forked child does not have the area. Give it back with
/// piped_memory_give_back; it stays mapped then as it is.
#[unsafe(no_mangle)]
pub extern "C" fn piped_memory_lend_private(
    client: *mut piped_client,
    start: *mut c_void,
    length: usize,
    memory: Option<&mut MaybeUninit<*mut piped_memory>>,
) -> piped_status {
    call(|| {
        wanted(&memory)?;
        // SAFETY: that nobody writes there during the call, and that the area stays mapped, is what
        // the header asks of the program; C has no borrows that could be broken.
        let lend = |client: &Client| unsafe { client.lend_private(start.cast(), length) };
        put(memory, keep(client, lend)?)
    })
}

/// Lends what a descriptor of the program stands for.
fn lend(
    client: *mut piped_client,
    fd: c_int,
    memory: Option<&mut MaybeUninit<*mut piped_memory>>,
    how: impl FnOnce(&Client, BorrowedFd<'_>) -> Result<client_lib::Lent, LendError>,
) -> Result<(), Fault> {
    wanted(&memory)?;
    let fd = border::descriptor(fd)?;
    put(memory, keep(client, |client| how(client, fd))?)
}

fn keep(
    client: *mut piped_client,
    lend: impl FnOnce(&Client) -> Result<client_lib::Lent, LendError>,
) -> Result<*mut piped_memory, Fault> {
    let client = CLIENTS.get(client)?;
    Ok(MEMORIES.insert(lend(&client)?)?)
}

/// A buffer of `length` bytes of lent memory, at least 1, from `offset` on. No two buffers overlap
/// (PIPED_TAKEN). Free it with piped_buffer_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_memory_buffer(
    memory: *mut piped_memory,
    offset: usize,
    length: usize,
    buffer: Option<&mut MaybeUninit<*mut piped_buffer>>,
) -> piped_status {
    call(|| {
        wanted(&buffer)?;
        let made = MEMORIES.with(memory, |memory| memory.buffer(offset, length))??;
        put(buffer, BUFFERS.insert(Lent::Here(made))?)
    })
}

/// Where lent memory is mapped, and its length in bytes; either may be NULL. Memory that was lent
/// by a descriptor is mapped there until it is given back and all buffers of it are freed.
#[unsafe(no_mangle)]
pub extern "C" fn piped_memory_data(
    memory: *mut piped_memory,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    length: Option<&mut MaybeUninit<usize>>,
) -> piped_status {
    call(|| {
        let (start, bytes) = MEMORIES.with(memory, |memory| (memory.as_ptr(), memory.len()))?;
        if length.is_some() {
            put(length, bytes)?;
        }
        if data.is_some() {
            put(data, start.cast())?;
        }
        Ok(())
    })
}

/// Give memory back. Buffers of it can be used as before; with the last of them it is no longer
/// lent. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_memory_give_back(memory: *mut piped_memory) -> piped_status {
    call(|| {
        if memory.is_null() {
            return Ok(());
        }
        MEMORIES.remove(memory, |_| Ok::<_, Fault>(())).map(drop)
    })
}
