//! The border with C: what comes in, what goes out, and that no panic does.
//!
//! Every function of the header is `call(|| ..)`. Pointers to single values come in as references,
//! which may be absent: that they point at what C's type says, for as long as the call lasts, is
//! the one promise that C makes and nobody can check. Strings, bytes and structs that carry their
//! size are read here.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use zerocopy::{FromBytes, IntoBytes};

use crate::fault::Fault;
use crate::status::piped_status;

/// A place for a result, or NULL.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Bytes of the last message that are kept.
const MESSAGE_BYTES: usize = 512;

/// The largest struct with a size that is looked at: a page, as for the kernel's own.
const STRUCT_BYTES_MAX: usize = 4096;

struct Message {
    /// Ends with a NUL.
    bytes: [u8; MESSAGE_BYTES],
}

thread_local! {
    // Memory of the thread itself: nothing to allocate when something failed, nothing to free at
    // exit.
    static LAST: RefCell<Message> = const { RefCell::new(Message { bytes: [0; MESSAGE_BYTES] }) };
}

/// Do what a C program asked for; what went wrong is a number, and a message of this thread's.
pub(crate) fn call(work: impl FnOnce() -> Result<(), Fault>) -> piped_status {
    // A panic leaves the object it was at locked for good (`Refusal::Spoilt`), so that nobody sees
    // it half changed.
    let fault = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return piped_status::PIPED_OK,
        Ok(Err(fault)) => fault,
        Err(panic) => of_panic(panic),
    };
    if !fault.text.is_empty() {
        remember(&fault.text);
    }
    fault.status
}

fn of_panic(panic: Box<dyn Any + Send>) -> Fault {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "no reason given".to_owned());
    // Whatever its destructor does, it does not do it on the way out.
    std::mem::forget(panic);
    Fault::told(piped_status::PIPED_INTERNAL, format!("piped failed inside: {text}"))
}

/// Keeps a message for piped_last_message.
pub(crate) fn remember(text: &str) {
    LAST.with_borrow_mut(|last| {
        let mut end = text.len().min(MESSAGE_BYTES - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text.as_bytes()[..end];
        // A NUL inside would end it early, which is all that could happen.
        last.bytes[..end].copy_from_slice(text);
        last.bytes[end] = 0;
    });
}

/// The message of this thread's last failure.
pub(crate) fn last_message() -> *const c_char {
    LAST.with_borrow(|last| last.bytes.as_ptr().cast())
}

/// Put a result where C wants it.
pub(crate) fn put<T>(out: Out<'_, T>, value: T) -> Result<(), Fault> {
    let out = out.ok_or_else(|| Fault::fixed(piped_status::PIPED_NULL))?;
    out.write(value);
    Ok(())
}

/// Make sure that there is a place, before something is made that would have none.
pub(crate) fn wanted<T>(out: &Out<'_, T>) -> Result<(), Fault> {
    match out {
        Some(_) => Ok(()),
        None => Err(Fault::fixed(piped_status::PIPED_NULL)),
    }
}

/// What a number of the program's stands for, of those that it can be.
pub(crate) fn one_of<T, const N: usize>(
    number: u32,
    known: [(u32, T); N],
    none: &'static str,
) -> Result<T, Fault> {
    let found = known.into_iter().find(|(known, _)| *known == number);
    found.map(|(_, meant)| meant).ok_or_else(|| Fault::argument(none))
}

/// The bytes of a range.
pub(crate) fn range(offset: u64, length: u64) -> Result<Range<u64>, Fault> {
    let end = offset.checked_add(length).ok_or_else(|| Fault::fixed(piped_status::PIPED_RANGE))?;
    Ok(offset..end)
}

/// A descriptor of the program's, for the length of a call.
pub(crate) fn descriptor<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Fault> {
    if fd < 0 {
        return Err(Fault::argument("a file descriptor is negative"));
    }
    // SAFETY: not -1, checked above; that it is open until the call returns is the header's
    // condition, and what is not open is refused by the kernel when it is passed.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A text that must be there.
pub(crate) fn text<'a>(from: *const c_char) -> Result<&'a str, Fault> {
    string(from)?.to_str().map_err(|_| Fault::argument("a name is not valid UTF-8"))
}

/// A text, or NULL.
pub(crate) fn text_or_null<'a>(from: *const c_char) -> Result<Option<&'a str>, Fault> {
    if from.is_null() { Ok(None) } else { text(from).map(Some) }
}

/// A path, in whatever bytes.
pub(crate) fn path<'a>(from: *const c_char) -> Result<&'a Path, Fault> {
    Ok(Path::new(OsStr::from_bytes(string(from)?.to_bytes())))
}

fn string<'a>(from: *const c_char) -> Result<&'a CStr, Fault> {
    if from.is_null() {
        return Err(Fault::fixed(piped_status::PIPED_NULL));
    }
    // SAFETY: not NULL, checked above; that it ends with a NUL and stays as it is until the call
    // returns is the header's condition on every string, and the callers use it no longer than
    // their call.
    Ok(unsafe { CStr::from_ptr(from) })
}

/// Bytes to read. NULL is no bytes.
pub(crate) fn bytes<'a>(from: *const u8, length: usize) -> Result<&'a [u8], Fault> {
    array(from, length)
}

/// Values to read. NULL is none.
pub(crate) fn array<'a, T>(from: *const T, count: usize) -> Result<&'a [T], Fault> {
    check_bytes(from.cast(), count.saturating_mul(size_of::<T>()))?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL and of a length that a slice can have, checked above; that `count` values
    // are there until the call returns is the header's condition.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// Bytes to write. NULL is no bytes.
pub(crate) fn bytes_mut<'a>(to: *mut u8, length: usize) -> Result<&'a mut [u8], Fault> {
    check_bytes(to, length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `array`, and nobody else uses them until the call returns. That C may never
    // have written them is nothing that this side could tell: they are whatever they are, and any
    // byte is a `u8`.
    Ok(unsafe { std::slice::from_raw_parts_mut(to, length) })
}

/// Places for values. NULL is none.
pub(crate) fn places<'a, T>(to: *mut T, count: usize) -> Result<&'a mut [MaybeUninit<T>], Fault> {
    check_bytes(to.cast_const().cast(), count.saturating_mul(size_of::<T>()))?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `bytes_mut`, and what may not have been written yet is not taken for more.
    Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), count) })
}

fn check_bytes(at: *const u8, length: usize) -> Result<(), Fault> {
    match length {
        0 => Ok(()),
        _ if at.is_null() => Err(Fault::fixed(piped_status::PIPED_NULL)),
        _ if length > isize::MAX as usize => Err(Fault::fixed(piped_status::PIPED_RANGE)),
        _ => Ok(()),
    }
}

/// A struct that begins with its size: programs and libraries of different versions understand each
/// other, as they do with the kernel's own structs of that kind. A shorter one is completed with
/// zeroes, which stand for the defaults; a longer one is taken if it asks for nothing that is not
/// known here. NULL: all defaults.
pub(crate) fn sized<T: FromBytes + IntoBytes>(from: *const T) -> Result<T, Fault> {
    let mut value = T::new_zeroed();
    if from.is_null() {
        return Ok(value);
    }
    // SAFETY: not NULL; the header's condition is that it is such a struct, aligned, of the size
    // that its first field says, so at least that field is there.
    let size = unsafe { from.cast::<u32>().read() } as usize;
    if !(size_of::<u32>()..=STRUCT_BYTES_MAX).contains(&size) {
        return Err(Fault::argument("set the field `size` of the structure to its sizeof"));
    }
    // SAFETY: by the same condition there are `size` bytes, and they stay as they are until the
    // call returns.
    let given = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
    let (known, beyond) = given.split_at(size.min(size_of::<T>()));
    if beyond.iter().any(|byte| *byte != 0) {
        let text = "the structure asks for what this version of the library does not have";
        return Err(Fault::told(piped_status::PIPED_UNSUPPORTED, text));
    }
    value.as_mut_bytes()[..known.len()].copy_from_slice(known);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(FromBytes, IntoBytes, Debug, PartialEq, zerocopy::Immutable)]
    #[repr(C)]
    struct Now {
        size: u32,
        flags: u32,
        tag: u64,
    }

    #[repr(C, align(8))]
    struct Later([u8; 24]);

    fn message() -> String {
        // SAFETY: the message of this thread, which ends with a NUL.
        unsafe { CStr::from_ptr(last_message()) }.to_str().expect("text").to_owned()
    }

    #[test]
    fn a_panic_is_a_number_and_a_message() {
        assert_eq!(call(|| panic!("number {}", 7)), piped_status::PIPED_INTERNAL);
        assert_eq!(message(), "piped failed inside: number 7");
        assert_eq!(call(|| std::panic::panic_any(5)), piped_status::PIPED_INTERNAL);
        assert_eq!(message(), "piped failed inside: no reason given");
    }

    #[test]
    fn a_message_is_cut_between_characters_and_belongs_to_its_thread() {
        let long = "ü".repeat(MESSAGE_BYTES);
        let status = call(|| Err(Fault::told(piped_status::PIPED_SYSTEM, long.clone())));
        assert_eq!(status, piped_status::PIPED_SYSTEM);
        assert_eq!(message(), "ü".repeat((MESSAGE_BYTES - 1) / 2));
        std::thread::spawn(|| assert_eq!(message(), "")).join().expect("no panic");
    }

    #[test]
    fn structs_of_other_versions_are_understood_as_far_as_they_can_be() {
        let now = |size| Now { size, flags: 3, tag: 9 };
        let full = now(16);
        assert_eq!(sized(&raw const full).expect("whole"), full);
        let early = now(8);
        assert_eq!(sized(&raw const early).expect("shorter"), Now { size: 8, flags: 3, tag: 0 });
        for size in [0, 3, 4097] {
            let unset = now(size);
            assert!(sized(&raw const unset).is_err(), "size {size}");
        }
        let mut later = Later([0; 24]);
        later.0[0] = 24;
        later.0[8] = 9;
        let as_now = (&raw const later).cast::<Now>();
        assert_eq!(sized(as_now).expect("longer"), Now { size: 24, flags: 0, tag: 9 });
        later.0[20] = 1;
        let as_now = (&raw const later).cast::<Now>();
        let refused = sized(as_now).expect_err("it asks for more than there is");
        assert_eq!(refused.status, piped_status::PIPED_UNSUPPORTED);
        assert_eq!(
            sized::<Now>(std::ptr::null()).expect("defaults"),
            Now { tag: 0, flags: 0, ..now(0) }
        );
    }
}
