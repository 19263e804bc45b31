//! Several buffers of one request: a list of their names, which a request lends all at once.

use std::collections::HashSet;
use std::mem::MaybeUninit;

use client_lib::Buffers;

use crate::border::{self, call, put, wanted};
use crate::buffer::piped_buffer_state::{self, PIPED_BUFFER_LOST, PIPED_BUFFER_UNDERWAY};
use crate::buffer::{self, BUFFERS, BufferName, Lent, away, piped_buffer};
use crate::client::{CLIENTS, piped_client};
use crate::fault::Fault;
use crate::status::piped_status;
use crate::table::{Kind, Table};

/// A list of buffers that a request fills or empties one behind the other. It has their names and
/// not their memory: between requests each is used on its own, too. A request borrows all of them,
/// and none if one cannot be had. For all threads.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_buffers {
    _name: [u8; 0],
}

/// The name of a list, which may go to another thread with its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BuffersName(usize);

impl BuffersName {
    pub(crate) fn of(buffers: *mut piped_buffers) -> Self {
        Self(buffers.addr())
    }

    pub(crate) fn pointer(self) -> *mut piped_buffers {
        std::ptr::without_provenance_mut(self.0)
    }
}

/// The list of a program's buffers.
#[derive(Debug)]
struct Listed {
    names: Box<[BufferName]>,
    place: Place,
}

/// Where the memory of the daemon's list is.
#[derive(Debug)]
enum Place {
    /// Here, without a buffer in it.
    Here(Buffers),
    Away(piped_buffer_state),
}

static LISTS: Table<Listed> = Table::new(Kind::Buffers);

impl Listed {
    /// Takes all buffers from their names, or leaves them there.
    fn lend(&mut self) -> Result<Buffers, Fault> {
        let place = std::mem::replace(&mut self.place, Place::Away(PIPED_BUFFER_UNDERWAY));
        let mut buffers = match place {
            Place::Here(buffers) => buffers,
            Place::Away(state) => {
                self.place = Place::Away(state);
                return Err(away(state));
            }
        };
        let mut parts = Vec::with_capacity(self.names.len());
        let fault = loop {
            let Some(name) = self.names.get(parts.len()) else {
                match buffers.put_parts(parts) {
                    Ok(()) => return Ok(buffers),
                    Err((fault, back)) => {
                        parts = back;
                        break fault.into();
                    }
                }
            };
            match buffer::lend(name.pointer(), PIPED_BUFFER_UNDERWAY) {
                Ok(part) => parts.push(part),
                Err(fault) => break fault,
            }
        };
        self.place = Place::Here(buffers);
        self.settle(parts.into_iter().map(Lent::Here))?;
        Err(fault)
    }

    /// Puts the first buffers back under their names.
    fn settle(&self, lent: impl Iterator<Item = Lent>) -> Result<(), Fault> {
        let settled = self.names.iter().zip(lent).map(|(name, lent)| {
            // A name that is away cannot have been freed.
            buffer::settle(name.pointer(), lent)
        });
        // Each of them, whatever another one is.
        settled.fold(Ok(()), Result::and)
    }

    fn take_back(&mut self, mut buffers: Buffers) -> Result<(), Fault> {
        let parts = buffers.take_parts();
        self.place = Place::Here(buffers);
        self.settle(parts.into_iter().map(Lent::Here))
    }

    fn send_away(&mut self, state: piped_buffer_state) -> Result<(), Fault> {
        self.place = Place::Away(state);
        self.settle(std::iter::repeat_with(|| Lent::Away(state)))
    }
}

/// Take all buffers from their names.
pub(crate) fn lend(name: *mut piped_buffers) -> Result<Buffers, Fault> {
    LISTS.with_mut(name, Listed::lend)?
}

/// Put all buffers back under their names.
pub(crate) fn take_back(name: *mut piped_buffers, buffers: Buffers) -> Result<(), Fault> {
    LISTS.with_mut(name, |listed| listed.take_back(buffers))?
}

/// Put all buffers back under their names, or say where they are.
pub(crate) fn settle(name: *mut piped_buffers, lent: Lent) -> Result<(), Fault> {
    LISTS.with_mut(name, |listed| match lent {
        Lent::Here(list) => match Buffers::from_list(list) {
            Some(buffers) => listed.take_back(buffers),
            None => listed.send_away(PIPED_BUFFER_LOST),
        },
        Lent::Away(state) => listed.send_away(state),
    })?
}

/// Make a list of `count` buffers, 1 to 1024 (PIPED_RANGE), each of them once. It takes a page of
/// the arena or more, and copies `parts`. The buffers stay the program's: they have their names,
/// bytes and lengths, and are freed on their own, before the list or after. A request of a list
/// with a buffer that is freed, lost or with another request is refused. Free the list with
/// piped_buffers_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_buffers_create(
    client: *mut piped_client,
    parts: *const *mut piped_buffer,
    count: usize,
    buffers: Option<&mut MaybeUninit<*mut piped_buffers>>,
) -> piped_status {
    call(|| {
        wanted(&buffers)?;
        // Refuses the count before that many are looked at.
        let client = CLIENTS.get(client)?;
        let list = Buffers::empty(client.allocate(Buffers::list_bytes(count)?)?);
        let parts = border::array(parts, count)?;
        for part in parts {
            BUFFERS.with(*part, |_| ())?;
        }
        let names: Box<[BufferName]> = parts.iter().map(|part| BufferName::of(*part)).collect();
        if names.iter().collect::<HashSet<_>>().len() < names.len() {
            return Err(Fault::argument("a buffer is in the list twice"));
        }
        put(buffers, LISTS.insert(Listed { names, place: Place::Here(list) })?)
    })
}

/// Free a list that no request has; its buffers stay as they are. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_buffers_free(buffers: *mut piped_buffers) -> piped_status {
    call(|| {
        if buffers.is_null() {
            return Ok(());
        }
        let may = |listed: &Listed| match listed.place {
            Place::Here(_) | Place::Away(PIPED_BUFFER_LOST) => Ok(()),
            Place::Away(state) => Err(away(state)),
        };
        LISTS.remove(buffers, may).map(drop)
    })
}
