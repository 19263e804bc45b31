//! A client's sleep on its flag in the queue's memory, instead of on its bell.
//!
//! A bell is a socket: to ring it and to hear it is the work of a message. To sleep until a word
//! changes, and to wake who does, is what the kernel does quickest. But only the bell can be polled
//! beside other descriptors, and tells that the daemon is gone: so a nap is short, and a longer
//! sleep goes on with the bell.
//!
//! The daemon wakes one sleeper at most, whatever the client does with the word. The call takes no
//! lock that a sleeper holds while it waits, and reads no memory of the client.

use core::sync::atomic::{AtomicU32, AtomicU64};
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

/// The half of a word that a futex looks at: the one with the flag's value.
fn half_of(word: &AtomicU64) -> &AtomicU32 {
    let place = usize::from(cfg!(target_endian = "big"));
    let halves = ptr::from_ref(word).cast::<AtomicU32>();
    // SAFETY: both halves of the word are aligned for an `AtomicU32` and live as long as it. Only
    // the kernel reads it as one, and every byte is a value.
    unsafe { &*halves.add(place) }
}

/// Sleep while the word has this value, but no longer than `time`. `true`: a signal interrupted the
/// sleep.
pub(crate) fn sleep(word: &AtomicU64, value: u64, time: Duration) -> bool {
    let timeout = Timespec::try_from(time).ok();
    let value = (value & u64::from(u32::MAX)) as u32;
    let slept = futex::wait(half_of(word), Flags::empty(), value, timeout.as_ref());
    slept == Err(Errno::INTR)
}

/// Wake whoever sleeps on the word.
pub(crate) fn wake(word: &AtomicU64) {
    // A client that made something else of the word is not woken.
    let _ = futex::wake(half_of(word), Flags::empty(), 1);
}
