//! Doorbells: eventfds that end the shard's sleep.
//!
//! A multishot poll is armed once per doorbell and reports each ring of it; the eventfd's count is
//! then never read, because an armed poll reports edges, and that saves a system call per wake-up.
//! Where the kernel has no multishot poll, the poll is armed again after each report, which would
//! fire at once on a count that was not read. That read must not block even though the client can
//! read the same eventfd first and can clear its O_NONBLOCK: `RWF_NOWAIT` is per call and ours.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::{Submitter, cqueue, opcode, squeue, types};
use rustix::io::ReadWriteFlags;

use super::UringError;
use super::counters::UringCounters;
use super::ops::Owner;
use super::slots::{Slots, index_of};

/// Id of a watched doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(pub u32);

#[derive(Debug)]
struct Watch {
    fd: OwnedFd,
    /// Whether the kernel has a poll on it.
    armed: bool,
    /// Whether the doorbell is in `woken` already.
    woken: bool,
    /// Whether the doorbell ends when its poll has come back.
    released: bool,
}

/// All doorbells of a shard.
#[derive(Debug)]
pub(super) struct Watches {
    slots: Slots<Watch>,
    /// Doorbells that rang since the last call; at most one per watch.
    woken: Vec<WatchId>,
    /// Doorbells to arm with the next submission; at most one per watch.
    unarmed: Vec<u32>,
    multishot: bool,
    /// First place of the doorbells in the ring's table of files, if the ring knows nothing else.
    places: Option<u32>,
    /// Reason why polls are not multishot, if that came out late.
    pub(super) degraded: Option<String>,
}

impl Watches {
    /// Empty table. `places` is the first place for doorbells, if the ring knows descriptors by
    /// their place in its table alone.
    pub(super) fn new(capacity: u32, multishot: bool, places: Option<u32>) -> Self {
        let slots = Slots::new(capacity);
        let capacity = slots.capacity() as usize;
        Self {
            slots,
            woken: Vec::with_capacity(capacity),
            unarmed: Vec::with_capacity(capacity),
            multishot,
            places,
            degraded: None,
        }
    }

    pub(super) fn multishot(&self) -> bool {
        self.multishot
    }

    /// Watches a doorbell, which is armed with the next submission. An earlier ring is seen then.
    pub(super) fn add(
        &mut self,
        fd: OwnedFd,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) -> Result<WatchId, UringError> {
        let raw = fd.as_raw_fd();
        let watch = Watch { fd, armed: false, woken: false, released: false };
        let id = self
            .slots
            .insert(watch)
            .map_err(|_| UringError::Full { what: "doorbells", capacity: self.slots.capacity() })?;
        if let Some(place) = self.place(id) {
            counters.other_syscalls += 1;
            if let Err(error) = submitter.register_files_update(place, &[raw]) {
                self.slots.remove(id);
                return Err(UringError::Register { what: "a doorbell", error });
            }
        }
        self.unarmed.push(id);
        Ok(WatchId(id))
    }

    /// Stops watching. `true` if a poll is out and must be cancelled.
    pub(super) fn release(
        &mut self,
        WatchId(id): WatchId,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) -> bool {
        self.woken.retain(|other| other.0 != id);
        self.unarmed.retain(|other| *other != id);
        let Some(watch) = self.slots.get_mut(id) else { return false };
        if watch.armed {
            let first = !watch.released;
            watch.released = true;
            return first;
        }
        self.remove(id, submitter, counters);
        false
    }

    /// Place of a doorbell in the ring's table.
    fn place(&self, id: u32) -> Option<u32> {
        Some(self.places? + index_of(id))
    }

    fn remove(&mut self, id: u32, submitter: &Submitter<'_>, counters: &mut UringCounters) {
        if let Some(place) = self.place(id) {
            counters.other_syscalls += 1;
            // As for files: if it failed, the next update of the place would replace it.
            let _ = submitter.register_files_update(place, &[-1]);
        }
        self.slots.remove(id);
    }

    /// Doorbells that rang since the last call.
    pub(super) fn take_woken(&mut self) -> impl Iterator<Item = WatchId> + '_ {
        for id in &self.woken {
            if let Some(watch) = self.slots.get_mut(id.0) {
                watch.woken = false;
            }
        }
        self.woken.drain(..)
    }

    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Whether a poll is out.
    pub(super) fn any_armed(&self) -> bool {
        self.slots.ids().any(|id| self.slots.get(id).is_some_and(|watch| watch.armed))
    }

    /// Ids with a poll out, for the shutdown.
    pub(super) fn armed(&self) -> Vec<u32> {
        self.slots.ids().filter(|id| self.slots.get(*id).is_some_and(|it| it.armed)).collect()
    }

    /// Whether there is a poll to queue.
    pub(super) fn any_unarmed(&self) -> bool {
        !self.unarmed.is_empty()
    }

    /// Poll to queue next; [`Watches::armed_next`] must follow if it was queued.
    pub(super) fn next_to_arm(&self) -> Option<squeue::Entry> {
        let id = *self.unarmed.last()?;
        let fd = self.slots.get(id)?.fd.as_raw_fd();
        let (fd, flags) = match self.place(id) {
            Some(place) => (place as i32, squeue::Flags::FIXED_FILE),
            None => (fd, squeue::Flags::empty()),
        };
        let poll = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(self.multishot);
        Some(poll.build().flags(flags).user_data(Owner::Watch { id }.user_data()))
    }

    pub(super) fn armed_next(&mut self) {
        if let Some(id) = self.unarmed.pop()
            && let Some(watch) = self.slots.get_mut(id)
        {
            watch.armed = true;
        }
    }

    /// Handles the report of a poll.
    pub(super) fn handle(
        &mut self,
        id: u32,
        cqe: &cqueue::Entry,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) {
        let Some(watch) = self.slots.get_mut(id) else { return };
        let over = !cqueue::more(cqe.flags());
        watch.armed = !over;
        if watch.released {
            if over {
                self.remove(id, submitter, counters);
            }
            return;
        }
        if cqe.result() >= 0 {
            counters.wakes += 1;
            if !self.multishot {
                counters.other_syscalls += 1;
                drain(&watch.fd);
            }
            if !watch.woken {
                watch.woken = true;
                self.woken.push(WatchId(id));
            }
        } else if cqe.result() == -libc::EINVAL && self.multishot {
            self.multishot = false;
            self.degraded = Some(
                "multishot_poll: this kernel does not have it; doorbells are armed again after \
                 every ring"
                    .to_owned(),
            );
        } else if !matches!(-cqe.result(), libc::ENOMEM | libc::EAGAIN | libc::EINTR) {
            // The descriptor cannot be polled. Arming it again would fail again, for ever.
            self.degraded = Some(format!(
                "a doorbell cannot be polled ({})",
                std::io::Error::from_raw_os_error(-cqe.result())
            ));
            return;
        }
        if over {
            self.unarmed.push(id);
        }
    }
}

/// Sets an eventfd's count to zero. If another reader was faster, that will do.
pub(super) fn drain(fd: &OwnedFd) {
    let mut count = [0_u8; 8];
    let mut buffers = [IoSliceMut::new(&mut count)];
    // Offset -1 reads from the current position, as an eventfd needs.
    let _ = rustix::io::preadv2(fd.as_fd(), &mut buffers, u64::MAX, ReadWriteFlags::NOWAIT);
}
