//! Buffers: one name from allocation to free, wherever the memory is meanwhile.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use client_lib::Buffer;

use crate::border::{call, put, wanted};
use crate::client::{CLIENTS, piped_client};
use crate::fault::Fault;
use crate::status::piped_status;
use crate::table::{Kind, Table};

/// Memory that the daemon moves bytes to and from without a copy. It starts at a page.
///
/// A request borrows it: from its submission until its result was taken the buffer cannot be read
/// through this library, given to another request or freed (PIPED_UNDERWAY).
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_buffer {
    _name: [u8; 0],
}

/// The name of a buffer, which may go to another thread with its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BufferName(usize);

impl BufferName {
    pub(crate) fn of(buffer: *mut piped_buffer) -> Self {
        Self(buffer.addr())
    }

    pub(crate) fn pointer(self) -> *mut piped_buffer {
        std::ptr::without_provenance_mut(self.0)
    }
}

/// Where a buffer's memory is.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum piped_buffer_state {
    /// No buffer: the request had none.
    PIPED_BUFFER_NONE = 0,
    /// The program has the buffer.
    PIPED_BUFFER_HERE = 1,
    /// A request has the buffer.
    PIPED_BUFFER_UNDERWAY = 2,
    /// The buffer's request has ended, and the kernel may still touch the buffer:
    /// piped_wait_released.
    PIPED_BUFFER_HELD = 3,
    /// Gone with its queue or daemon; free it.
    PIPED_BUFFER_LOST = 4,
    /// Offered to others as a region: piped_region_close.
    PIPED_BUFFER_EXPORTED = 5,
}

use piped_buffer_state::*;

/// The place of a buffer.
#[derive(Debug)]
pub(crate) enum Lent {
    Here(Buffer),
    Away(piped_buffer_state),
}

pub(crate) static BUFFERS: Table<Lent> = Table::new(Kind::Buffer);

impl Lent {
    fn here(&self) -> Result<&Buffer, Fault> {
        match self {
            Self::Here(buffer) => Ok(buffer),
            Self::Away(state) => Err(away(*state)),
        }
    }

    fn here_mut(&mut self) -> Result<&mut Buffer, Fault> {
        match self {
            Self::Here(buffer) => Ok(buffer),
            Self::Away(state) => Err(away(*state)),
        }
    }

    pub(crate) fn state(&self) -> piped_buffer_state {
        match self {
            Self::Here(_) => PIPED_BUFFER_HERE,
            Self::Away(state) => *state,
        }
    }
}

pub(crate) fn away(state: piped_buffer_state) -> Fault {
    use piped_status::*;
    let status = match state {
        PIPED_BUFFER_HELD => PIPED_HELD,
        PIPED_BUFFER_EXPORTED => PIPED_EXPORTED,
        PIPED_BUFFER_UNDERWAY => PIPED_UNDERWAY,
        PIPED_BUFFER_LOST | PIPED_BUFFER_HERE | PIPED_BUFFER_NONE => PIPED_LOST,
    };
    let text = match status {
        PIPED_UNDERWAY => "a request has the buffer: it has not ended, or its result was not taken",
        _ => return Fault::fixed(status),
    };
    Fault::told(status, text)
}

/// Take the memory from its name.
pub(crate) fn lend(name: *mut piped_buffer, to: piped_buffer_state) -> Result<Buffer, Fault> {
    BUFFERS.with_mut(name, |lent| match std::mem::replace(lent, Lent::Away(to)) {
        Lent::Here(buffer) => Ok(buffer),
        Lent::Away(state) => {
            *lent = Lent::Away(state);
            Err(away(state))
        }
    })?
}

/// Put the memory back under its name, or say where it is. A name cannot be freed while it is away.
pub(crate) fn settle(name: *mut piped_buffer, lent: Lent) -> Result<(), Fault> {
    Ok(BUFFERS.with_mut(name, |place| *place = lent)?)
}

/// A buffer of `length` bytes, at least 1. The arena grows if it has to and may; PIPED_WOULD_BLOCK
/// if it may not. Free it with piped_buffer_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_buffer_allocate(
    client: *mut piped_client,
    length: usize,
    buffer: Option<&mut MaybeUninit<*mut piped_buffer>>,
) -> piped_status {
    call(|| {
        wanted(&buffer)?;
        let made = CLIENTS.get(client)?.allocate(length)?;
        put(buffer, BUFFERS.insert(Lent::Here(made))?)
    })
}

/// Free a buffer that is here or lost. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_buffer_free(buffer: *mut piped_buffer) -> piped_status {
    call(|| {
        if buffer.is_null() {
            return Ok(());
        }
        let may = |lent: &Lent| match lent {
            Lent::Here(_) | Lent::Away(PIPED_BUFFER_LOST) => Ok(()),
            Lent::Away(state) => Err(away(*state)),
        };
        BUFFERS.remove(buffer, may).map(drop)
    })
}

/// Where a buffer's bytes are and how many; `length` may be NULL. The address stays good until the
/// buffer is freed, but for a client that reconnects: there until the buffer's first request after
/// a reconnect. Do not touch the bytes while a request has the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn piped_buffer_data(
    buffer: *mut piped_buffer,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    length: Option<&mut MaybeUninit<usize>>,
) -> piped_status {
    call(|| {
        let (start, bytes) = BUFFERS.with_mut(buffer, |lent| {
            let buffer = lent.here_mut()?;
            Ok::<_, Fault>((buffer.as_ptr(), buffer.len()))
        })??;
        if length.is_some() {
            put(length, bytes)?;
        }
        put(data, start.cast())
    })
}

/// Change the length: how much the next request moves. At most the buffer's capacity (PIPED_RANGE).
#[unsafe(no_mangle)]
pub extern "C" fn piped_buffer_set_length(
    buffer: *mut piped_buffer,
    length: usize,
) -> piped_status {
    call(|| BUFFERS.with_mut(buffer, |lent| Ok(lent.here_mut()?.set_len(length)?))?)
}

/// Bytes it can have at most: its length when it was allocated, in whole pages; of lent memory its
/// length when it was made.
#[unsafe(no_mangle)]
pub extern "C" fn piped_buffer_capacity(
    buffer: *mut piped_buffer,
    capacity: Option<&mut MaybeUninit<usize>>,
) -> piped_status {
    call(|| {
        let bytes = BUFFERS.with(buffer, |lent| Ok::<_, Fault>(lent.here()?.capacity()))??;
        put(capacity, bytes)
    })
}

/// Where a buffer's memory is.
#[unsafe(no_mangle)]
pub extern "C" fn piped_buffer_where(
    buffer: *mut piped_buffer,
    state: Option<&mut MaybeUninit<piped_buffer_state>>,
) -> piped_status {
    call(|| put(state, BUFFERS.with(buffer, Lent::state)?))
}
