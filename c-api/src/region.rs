//! Memory that a program offers to others by name.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use client_lib::{RegionExport, RegionOptions};

use crate::border::{self, call, put, wanted};
use crate::buffer::{BufferName, Lent, lend, piped_buffer, piped_buffer_state, settle};
use crate::client::{CLIENTS, piped_client};
use crate::fault::Fault;
use crate::handle::{HANDLES, PIPED_ATOMIC, access, piped_handle};
use crate::status::piped_status;
use crate::table::{Kind, Table};

/// A buffer that others may read or write by name, until the region is closed. It ends with its
/// daemon, and a reconnect does not offer it again. For all threads.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_region {
    _name: [u8; 0],
}

#[derive(Debug)]
pub(crate) struct Offered {
    export: RegionExport,
    buffer: BufferName,
}

static REGIONS: Table<Offered> = Table::new(Kind::Region);

/// Let others reach a buffer by name, here and on other nodes. `flags`, what they may do:
/// PIPED_READ, PIPED_WRITE and PIPED_ATOMIC, as many as there shall be. Until piped_region_close
/// the buffer is PIPED_BUFFER_EXPORTED. If the call fails, the buffer is as it was, or
/// PIPED_BUFFER_LOST if the daemon may have offered it all the same.
#[unsafe(no_mangle)]
pub extern "C" fn piped_region_export(
    client: *mut piped_client,
    name: *const c_char,
    buffer: *mut piped_buffer,
    flags: u32,
    region: Option<&mut MaybeUninit<*mut piped_region>>,
) -> piped_status {
    call(|| {
        wanted(&region)?;
        let options = RegionOptions::new(access(flags, PIPED_ATOMIC)?);
        put(region, export(client, border::text(name)?, buffer, options)?)
    })
}

/// Offer a buffer as piped_region_export does, for some alone: for this node's users with a number
/// in `users`, and for other nodes with a name in `peers`, 16 at most of each. NULL: all of them; 0
/// of them: none.
#[unsafe(no_mangle)]
pub extern "C" fn piped_region_export_for(
    client: *mut piped_client,
    name: *const c_char,
    buffer: *mut piped_buffer,
    flags: u32,
    users: *const u32,
    user_count: usize,
    peers: *const *const c_char,
    peer_count: usize,
    region: Option<&mut MaybeUninit<*mut piped_region>>,
) -> piped_status {
    call(|| {
        wanted(&region)?;
        let mut options = RegionOptions::new(access(flags, PIPED_ATOMIC)?);
        if !users.is_null() || user_count > 0 {
            options = options.users(border::array(users, user_count)?.iter().copied());
        }
        if !peers.is_null() || peer_count > 0 {
            let names = border::array(peers, peer_count)?;
            let names: Result<Vec<_>, _> = names.iter().map(|name| border::text(*name)).collect();
            options = options.peers(names?);
        }
        put(region, export(client, border::text(name)?, buffer, options)?)
    })
}

fn export(
    client: *mut piped_client,
    name: &str,
    buffer: *mut piped_buffer,
    options: RegionOptions,
) -> Result<*mut piped_region, Fault> {
    let client = CLIENTS.get(client)?;
    let memory = lend(buffer, piped_buffer_state::PIPED_BUFFER_EXPORTED)?;
    match client.export_region(name, memory, options) {
        Ok(export) => {
            let offered = Offered { export, buffer: BufferName::of(buffer) };
            REGIONS.insert(offered).or_else(|refusal| {
                settle(buffer, back(None))?;
                Err(refusal.into())
            })
        }
        Err(mut error) => {
            settle(buffer, back(error.buffer.take()))?;
            Err(error.into())
        }
    }
}

fn back(memory: Option<client_lib::Buffer>) -> Lent {
    memory.map_or(Lent::Away(piped_buffer_state::PIPED_BUFFER_LOST), Lent::Here)
}

/// End the export; the memory is the buffer's again. Waits until the daemon says that nobody
/// touches it any more; if it does not say so, the buffer is PIPED_BUFFER_LOST. The region is freed
/// in any case. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_region_close(region: *mut piped_region) -> piped_status {
    call(|| {
        if region.is_null() {
            return Ok(());
        }
        let Offered { export, buffer } = REGIONS.remove(region, |_| Ok::<_, Fault>(()))?;
        let (memory, fault) = match export.close() {
            Ok(memory) => (Some(memory), None),
            Err(error) => (None, Some(error)),
        };
        settle(buffer.pointer(), back(memory))?;
        fault.map_or(Ok(()), |error| Err(error.into()))
    })
}

/// A handle for requests of this client on its own region. Free it with piped_handle_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_region_handle(
    region: *mut piped_region,
    handle: Option<&mut MaybeUninit<*mut piped_handle>>,
) -> piped_status {
    call(|| {
        wanted(&handle)?;
        let own = REGIONS.with(region, |offered| offered.export.handle().clone())?;
        put(handle, HANDLES.insert(own)?)
    })
}

/// The region's length in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn piped_region_length(
    region: *mut piped_region,
    length: Option<&mut MaybeUninit<usize>>,
) -> piped_status {
    call(|| put(length, REGIONS.with(region, |offered| offered.export.len())?))
}

/// Copy `length` bytes at `offset` out. Others may be writing them: whole 8-byte words arrive
/// whole, no more is promised.
#[unsafe(no_mangle)]
pub extern "C" fn piped_region_read_at(
    region: *mut piped_region,
    offset: usize,
    to: *mut c_void,
    length: usize,
) -> piped_status {
    call(|| {
        let to = border::bytes_mut(to.cast(), length)?;
        Ok(REGIONS.with(region, |offered| offered.export.read_at(offset, to))??)
    })
}

/// Copy `length` bytes in at `offset`. Others may be reading them.
#[unsafe(no_mangle)]
pub extern "C" fn piped_region_write_at(
    region: *mut piped_region,
    offset: usize,
    from: *const c_void,
    length: usize,
) -> piped_status {
    call(|| {
        let from = border::bytes(from.cast(), length)?;
        Ok(REGIONS.with(region, |offered| offered.export.write_at(offset, from))??)
    })
}
