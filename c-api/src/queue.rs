//! Queues: one for each thread.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;

use crate::asking::Asking;
use crate::border::{call, put, wanted};
use crate::client::{CLIENTS, piped_client, wait_policy};
use crate::fault::Fault;
use crate::status::piped_status;
use crate::table::{Kind, Refusal, Table};

/// Submits requests and gives their results. For one thread at a time: a second one is refused with
/// PIPED_BUSY, also while the first waits.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_queue {
    _name: [u8; 0],
}

/// The mutex makes a queue fit for a table that threads share. Nobody locks it: the place's own
/// lock is held.
static QUEUES: Table<Mutex<Asking>> = Table::new(Kind::Queue);

/// Work with a queue, alone.
pub(crate) fn asking<R>(
    queue: *mut piped_queue,
    work: impl FnOnce(&mut Asking) -> Result<R, Fault>,
) -> Result<R, Fault> {
    QUEUES.try_with_mut(queue, |asking| match asking.get_mut() {
        Ok(asking) => work(asking),
        Err(_) => Err(Refusal::Spoilt.into()),
    })?
}

/// Counters of a queue since it was made.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_counters {
    /// Requests that were submitted.
    pub submitted: u64,
    /// Requests that have ended.
    pub completed: u64,
    /// Requests that outlived a daemon and were submitted to the next.
    pub resubmitted: u64,
    /// Times the daemon slept and had to be woken: a system call each.
    pub doorbells: u64,
    /// Times this side slept: a system call each, or a few.
    pub sleeps: u64,
    /// Reserved, and always 0.
    pub reserved: [u64; 3],
}

/// A queue, for one thread at a time. Free it with piped_queue_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_create(
    client: *mut piped_client,
    queue: Option<&mut MaybeUninit<*mut piped_queue>>,
) -> piped_status {
    call(|| {
        wanted(&queue)?;
        let made = CLIENTS.get(client)?.queue()?;
        put(queue, QUEUES.insert(Mutex::new(Asking::new(made)))?)
    })
}

/// Free a queue. Its requests are cancelled, and results that were not taken are lost; buffers of
/// both are PIPED_BUFFER_LOST and are to be freed, their memory is the arena's again when the
/// daemon is done with it. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_free(queue: *mut piped_queue) -> piped_status {
    call(|| {
        if queue.is_null() {
            return Ok(());
        }
        drop(QUEUES.try_remove(queue)?);
        Ok(())
    })
}

/// Let the daemon see what was submitted: once for a batch. Everything that looks for results does
/// it, too.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_flush(queue: *mut piped_queue) -> piped_status {
    call(|| {
        asking(queue, |asking| {
            asking.queue.flush();
            Ok(())
        })
    })
}

/// A descriptor for poll or epoll, readable when there is something to take or the daemon is gone,
/// once piped_queue_arm has asked for it. It stays the queue's: do not close it. Another one after
/// a reconnect.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_fd(
    queue: *mut piped_queue,
    fd: Option<&mut MaybeUninit<c_int>>,
) -> piped_status {
    call(|| put(fd, asking(queue, |asking| Ok(asking.queue.as_raw_fd()))?))
}

/// Ask for the descriptor to be rung. `armed` is false if something ended since the last time: take
/// it (piped_next until PIPED_UNDERWAY or PIPED_IDLE, and a look at the requests that are not
/// detached) and arm again. True: wait for the descriptor, then call piped_queue_drain. Always
/// false once the daemon is gone.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_arm(
    queue: *mut piped_queue,
    armed: Option<&mut MaybeUninit<bool>>,
) -> piped_status {
    call(|| {
        wanted(&armed)?;
        put(armed, asking(queue, |asking| Ok(asking.queue.arm()))?)
    })
}

/// Silence the descriptor and take in what was completed, after it was readable or the program gave
/// up waiting.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_drain(queue: *mut piped_queue) -> piped_status {
    call(|| {
        asking(queue, |asking| {
            asking.queue.drain();
            Ok(())
        })
    })
}

/// Requests the daemon has not ended yet.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_underway(
    queue: *mut piped_queue,
    count: Option<&mut MaybeUninit<u32>>,
) -> piped_status {
    call(|| put(count, asking(queue, |asking| Ok(asking.queue.underway()))?))
}

/// Requests it can have under way or ended and not taken.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_depth(
    queue: *mut piped_queue,
    count: Option<&mut MaybeUninit<u32>>,
) -> piped_status {
    call(|| put(count, asking(queue, |asking| Ok(asking.queue.depth()))?))
}

/// Whether the daemon is known to be gone; not so any more once the client has reconnected and the
/// queue was used.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_is_disconnected(
    queue: *mut piped_queue,
    disconnected: Option<&mut MaybeUninit<bool>>,
) -> piped_status {
    call(|| put(disconnected, asking(queue, |asking| Ok(asking.queue.is_disconnected()))?))
}

/// Read the queue's counters.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_counters(
    queue: *mut piped_queue,
    counters: Option<&mut MaybeUninit<piped_counters>>,
) -> piped_status {
    call(|| {
        let so_far = asking(queue, |asking| Ok(asking.queue.counters()))?;
        let client_lib::QueueCounters { submitted, completed, resubmitted, doorbells, sleeps } =
            so_far;
        let reserved = [0; 3];
        put(
            counters,
            piped_counters { submitted, completed, resubmitted, doorbells, sleeps, reserved },
        )
    })
}

/// How to wait from now on (piped_wait_policy, but PIPED_WAIT_DEFAULT); `spin_ns` is for
/// PIPED_WAIT_CUSTOM.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_set_wait_policy(
    queue: *mut piped_queue,
    policy: u32,
    spin_ns: u64,
) -> piped_status {
    call(|| {
        let policy = wait_policy(policy, spin_ns)?;
        let policy = policy.ok_or_else(|| Fault::argument("name a policy, not the default"))?;
        asking(queue, |asking| {
            asking.queue.set_wait_policy(policy);
            Ok(())
        })
    })
}

/// How long it looks for completions at present before it sleeps, in nanoseconds: the policy's
/// longest spin, or less where spinning did not pay; 0 on the CPU of piped_shard_cpu.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_spin_budget(
    queue: *mut piped_queue,
    spin_ns: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let budget = asking(queue, |asking| Ok(asking.queue.spin_budget()))?;
        put(spin_ns, u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX))
    })
}

/// Move the calling thread to the CPU of the daemon's shard and never spin. `moved`, which may be
/// NULL, is false if the shard has no CPU of its own.
#[unsafe(no_mangle)]
pub extern "C" fn piped_queue_pin_to_shard(
    queue: *mut piped_queue,
    moved: Option<&mut MaybeUninit<bool>>,
) -> piped_status {
    call(|| {
        let done = asking(queue, |asking| Ok(asking.queue.pin_to_shard()?))?;
        if moved.is_some() { put(moved, done) } else { Ok(()) }
    })
}
