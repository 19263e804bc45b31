//! The two "asleep" flags of a queue: how a side says that it sleeps, and how the other one takes
//! its flag down. [`crate::half`] says why no wake-up is lost.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::layout::word;

/// How the other side is to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a side that is not woken sleeps on"]
pub enum Wake {
    /// The side does not sleep.
    Nobody,
    /// The side waits for its bell.
    Bell,
    /// The side waits for its flag to go down: a client that naps.
    Flag,
}

/// Value of the flag of a side that waits for its bell.
const BELL: u64 = 1;

/// Value of the flag of a client that sleeps on the flag itself, as on a futex, and not until its
/// bell rings. Every other value but 0 is that of a side that waits for its bell.
pub(crate) const NAPPING: u64 = 2;

/// Take the other side's flag down if it is up.
pub(crate) fn must_wake(words: &[AtomicU64], flag: usize) -> Wake {
    // *work then flag*: pairs with the fence in `say_asleep`. Without it this load could be done
    // before our publish is visible, and the other side would sleep on work that is there.
    fence(Ordering::SeqCst);
    let flag = &words[flag];
    // The load spares a busy side the swap, which would take the cache line away from its owner.
    if flag.load(Ordering::Relaxed) == 0 {
        return Wake::Nobody;
    }
    // *work then flag down*: a client that finds its flag down sees the work, too.
    match flag.swap(0, Ordering::Release) {
        0 => Wake::Nobody,
        NAPPING => Wake::Flag,
        _ => Wake::Bell,
    }
}

/// Put our own flag up; the caller looks for work after it.
pub(crate) fn say_asleep(words: &[AtomicU64], flag: usize) {
    words[flag].store(BELL, Ordering::Relaxed);
    // *flag then work*: pairs with the fence in `must_wake`. Without it the caller's look for work
    // could be done before the flag is visible, and the other side would not ring.
    fence(Ordering::SeqCst);
}

/// Take our own flag down.
pub(crate) fn say_awake(words: &[AtomicU64], flag: usize) {
    words[flag].store(0, Ordering::Relaxed);
}

/// [`say_asleep`] of a client.
pub(crate) fn client_asleep(words: &[AtomicU64]) {
    set_client_flag(words, BELL);
    fence(Ordering::SeqCst);
}

/// [`say_awake`] of a client.
pub(crate) fn client_awake(words: &[AtomicU64]) {
    set_client_flag(words, 0);
}

/// Set the client's own flag. A swap, because of the last time that the daemon took the flag down:
/// that must not look newer than this. Coherence says so for a store, too, but loom only knows what
/// was acquired. A daemon, which has a flag for each of its queues, has no naps, and stores.
fn set_client_flag(words: &[AtomicU64], value: u64) {
    words[word::CLIENT_ASLEEP].swap(value, Ordering::Acquire);
}

/// After [`client_asleep`]: sleep on the flag from now on. `false`: the daemon has taken it down.
pub(crate) fn begin_nap(words: &[AtomicU64]) -> bool {
    // Whatever the daemon published before, it took down the flag that `client_asleep` put up.
    change_client_flag(words, BELL, NAPPING)
}

/// Wait for the bell again. `false`: the daemon has taken the flag down.
pub(crate) fn end_nap(words: &[AtomicU64]) -> bool {
    change_client_flag(words, NAPPING, BELL)
}

fn change_client_flag(words: &[AtomicU64], from: u64, to: u64) -> bool {
    let flag = &words[word::CLIENT_ASLEEP];
    flag.compare_exchange(from, to, Ordering::Relaxed, Ordering::Acquire).is_ok()
}
