//! Loops over strips: computation on bytes that come, or go, while the next ones travel.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::time::Duration;

use client_lib::{Client, Handle, StripError, StripPolicy, StripReader, StripWriter, Strips};
use zerocopy::{FromBytes, IntoBytes};

use crate::border::{self, Out, call, put, wanted};
use crate::client::{CLIENTS, class, piped_client};
use crate::fault::Fault;
use crate::handle::{HANDLES, piped_handle};
use crate::queue::{asking, piped_queue};
use crate::status::piped_status;
use crate::table::{Kind, Refusal, Table};
use crate::verbs::{PIPED_DURABLE, PIPED_RESUBMIT};

/// A loop over the strips of a range that is read, or written. For one thread at a time, as its
/// queue.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_strips {
    _name: [u8; 0],
}

#[derive(Debug)]
enum Over {
    Read(StripReader),
    Written(StripWriter),
}

/// The mutex makes them fit for a table that threads share. Nobody locks it: the place's own lock
/// is held.
static STRIPS: Table<Mutex<Over>> = Table::new(Kind::Strips);

/// How long strips are.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_strip_policy {
    /// By the computation and the path, strip by strip; one request where overlap cannot win.
    PIPED_STRIPS_AUTO = 0,
    /// strip_bytes each, the last one shorter.
    PIPED_STRIPS_FIXED = 1,
    /// The first of strip_bytes, each following one longer by the part `growth`, as far as the
    /// memory goes.
    PIPED_STRIPS_VARIABLE = 2,
}

/// Options of a loop over strips. Set size to sizeof; 0 is always the default. All options have
/// their defaults where NULL is given instead.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct piped_strips_options {
    /// Set to sizeof(struct piped_strips_options).
    pub size: u32,
    /// PIPED_RESUBMIT; for a loop that writes, PIPED_DURABLE.
    pub flags: u32,
    /// How long strips are (piped_strip_policy).
    pub policy: u32,
    /// Requests on their way behind the one that is waited for. Default: as many as the path's
    /// latency is worth.
    pub unroll: u32,
    /// Bytes of a strip, with PIPED_STRIPS_FIXED and PIPED_STRIPS_VARIABLE.
    pub strip_bytes: u64,
    /// The part by which each strip is longer than the one before, with PIPED_STRIPS_VARIABLE.
    pub growth: f64,
    /// Bytes of the arena it may have at once. Default: 8 MiB.
    pub memory: u64,
    /// Strips but the last are multiples of so many bytes: the size of an element. Default: 64.
    pub grain: u64,
    /// Seconds that the program computes on a byte, as far as it knows.
    pub compute: f64,
    /// The time each request may take, in nanoseconds. Default: the daemon's.
    pub deadline_ns: u64,
    /// How urgent the requests are (piped_class).
    pub request_class: u32,
    /// Reserved: must be 0.
    pub reserved: u32,
}

/// Some of the range's bytes, until the next call on the loop.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_strip {
    /// NULL: there are no more.
    pub data: *mut c_void,
    /// How many bytes it has.
    pub length: usize,
    /// Where in the file or region its first byte lies.
    pub offset: u64,
}

/// Checks options from C, for loops that can have `flags`.
fn given(options: *const piped_strips_options, flags: u32) -> Result<Strips, Fault> {
    const AUTO: u32 = piped_strip_policy::PIPED_STRIPS_AUTO as u32;
    const FIXED: u32 = piped_strip_policy::PIPED_STRIPS_FIXED as u32;
    const VARIABLE: u32 = piped_strip_policy::PIPED_STRIPS_VARIABLE as u32;
    let options = border::sized(options)?;
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    if options.flags & !(PIPED_RESUBMIT | PIPED_DURABLE) != 0 {
        let text = "a flag that this version does not have, or not for strips";
        return Err(Fault::told(piped_status::PIPED_UNSUPPORTED, text));
    }
    if options.flags & !flags != 0 {
        return Err(Fault::argument("PIPED_DURABLE is for what is written"));
    }
    if options.reserved != 0 {
        return Err(Fault::argument("the reserved field of the options is not 0"));
    }
    let first = bytes(options.strip_bytes);
    let policy = match options.policy {
        AUTO if first == 0 => StripPolicy::Auto,
        AUTO => return Err(Fault::argument("strip_bytes without a policy that has it")),
        FIXED | VARIABLE if first == 0 => return Err(Fault::argument("strip_bytes is 0")),
        FIXED => StripPolicy::Fixed(first),
        VARIABLE => StripPolicy::Variable { first, growth: options.growth },
        _ => return Err(Fault::argument("policy is none of piped_strip_policy")),
    };
    let mut strips = Strips::new().policy(policy).class(class(options.request_class)?);
    if options.unroll > 0 {
        strips = strips.unroll(options.unroll);
    }
    if options.memory > 0 {
        strips = strips.memory(bytes(options.memory));
    }
    if options.grain > 0 {
        strips = strips.grain(bytes(options.grain));
    }
    if options.compute > 0.0 {
        strips = strips.compute(options.compute);
    }
    if options.deadline_ns > 0 {
        strips = strips.deadline(Duration::from_nanos(options.deadline_ns));
    }
    if options.flags & PIPED_RESUBMIT != 0 {
        strips = strips.resubmit();
    }
    if options.flags & PIPED_DURABLE != 0 {
        strips = strips.durable();
    }
    Ok(strips)
}

fn open(
    client: *mut piped_client,
    handle: *mut piped_handle,
    (options, flags): (*const piped_strips_options, u32),
    strips: Out<'_, *mut piped_strips>,
    make: impl FnOnce(&Client, &Handle, Strips) -> Result<Over, StripError>,
) -> Result<(), Fault> {
    wanted(&strips)?;
    let (client, handle) = (CLIENTS.get(client)?, HANDLES.get(handle)?);
    let over = make(&client, &handle, given(options, flags)?)?;
    put(strips, STRIPS.insert(Mutex::new(over))?)
}

/// A loop over the bytes from `start` to `end` (the first one behind it) of a file or region, which
/// are read in order while the program computes on those before. Nothing is asked for yet. Free it
/// with piped_strips_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_strips_read(
    client: *mut piped_client,
    handle: *mut piped_handle,
    start: u64,
    end: u64,
    options: *const piped_strips_options,
    strips: Option<&mut MaybeUninit<*mut piped_strips>>,
) -> piped_status {
    call(|| {
        open(client, handle, (options, PIPED_RESUBMIT), strips, |client, handle, options| {
            StripReader::open(client, handle, start..end, options).map(Over::Read)
        })
    })
}

/// The mirror image: strips that the program fills are written while it fills the next ones, and
/// piped_strips_finish waits for all of them.
#[unsafe(no_mangle)]
pub extern "C" fn piped_strips_write(
    client: *mut piped_client,
    handle: *mut piped_handle,
    start: u64,
    end: u64,
    options: *const piped_strips_options,
    strips: Option<&mut MaybeUninit<*mut piped_strips>>,
) -> piped_status {
    call(|| {
        open(
            client,
            handle,
            (options, PIPED_RESUBMIT | PIPED_DURABLE),
            strips,
            |client, handle, options| {
                StripWriter::open(client, handle, start..end, options).map(Over::Written)
            },
        )
    })
}

/// The next strip: its bytes when they are there, or room to be filled. Takes the one before back,
/// or writes it, and asks for more; `strip->data` is NULL after the last one. After a failure,
/// which is that of a request, there are none.
///
/// A queue is for several loops and for other requests at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn piped_strips_next(
    strips: *mut piped_strips,
    queue: *mut piped_queue,
    strip: Option<&mut MaybeUninit<piped_strip>>,
) -> piped_status {
    call(|| {
        wanted(&strip)?;
        let next = STRIPS.try_with_mut(strips, |over| {
            let over = over.get_mut().map_err(|_| Refusal::Spoilt)?;
            asking(queue, |asking| {
                let next = match over {
                    Over::Read(reader) => reader.next(&mut asking.queue)?,
                    Over::Written(writer) => writer.next(&mut asking.queue)?,
                };
                Ok(match next {
                    Some(mut next) => {
                        let data = next.as_mut_ptr().cast();
                        piped_strip { data, length: next.len(), offset: next.offset() }
                    }
                    None => piped_strip { data: std::ptr::null_mut(), length: 0, offset: 0 },
                })
            })
        })??;
        put(strip, next)
    })
}

/// Write the strip that the program has, if it has one, and wait for all of what is written;
/// `written`, which may be NULL, is how many bytes that are from the range's start. The loop is
/// freed in any case, unless it reads (PIPED_ARGUMENT) or is in use (PIPED_BUSY).
#[unsafe(no_mangle)]
pub extern "C" fn piped_strips_finish(
    strips: *mut piped_strips,
    queue: *mut piped_queue,
    written: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let reads = STRIPS.try_with_mut(strips, |over| match over.get_mut() {
            Ok(Over::Read(_)) => Ok(true),
            Ok(Over::Written(_)) => Ok(false),
            Err(_) => Err(Refusal::Spoilt),
        })??;
        if reads {
            return Err(Fault::argument("what is read has nothing to finish; free it"));
        }
        let bytes = asking(queue, |asking| match STRIPS.try_remove(strips)?.into_inner() {
            Ok(Over::Written(writer)) => Ok(writer.finish(&mut asking.queue)?),
            _ => Err(Refusal::Spoilt.into()),
        })?;
        if written.is_some() { put(written, bytes) } else { Ok(()) }
    })
}

/// Free a loop. What is under way is cancelled; of what is written, too, and the strip that the
/// program has is not written. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_strips_free(strips: *mut piped_strips) -> piped_status {
    call(|| {
        if strips.is_null() {
            return Ok(());
        }
        drop(STRIPS.try_remove(strips)?);
        Ok(())
    })
}
