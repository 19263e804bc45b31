//! Files and sockets: owned here, known to the kernel by number, dropped after their last operation.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::Submitter;

use super::UringError;
use super::counters::UringCounters;
use super::slots::{Slots, index_of};
use crate::closing::HeldFile;

/// `-EBADF`: the id names nothing, or not this kind of thing.
pub(super) const BAD_DESCRIPTOR: i32 = -libc::EBADF;

/// A file or a socket.
#[derive(Debug)]
struct Descriptor {
    fd: Fd,
    /// In the kernel's table, at its index.
    fixed: bool,
    /// Operations that use it.
    ops: u32,
    /// Sends on it that have ended and whose memory the kernel still has.
    loans: u32,
    released: bool,
}

/// What a descriptor is. A socket's close does not wait for its peer; a file's may wait for whoever
/// serves it, and is not made here.
#[derive(Debug)]
pub(super) enum Fd {
    File(HeldFile),
    /// A file whose operations the ring must not see.
    Foreign(Arc<HeldFile>),
    Socket(OwnedFd),
}

/// An id of one kind is no id of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DescriptorKind {
    File,
    Socket,
}

impl Fd {
    fn kind(&self) -> DescriptorKind {
        match self {
            Self::File(_) | Self::Foreign(_) => DescriptorKind::File,
            Self::Socket(_) => DescriptorKind::Socket,
        }
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::File(file) => file.as_fd(),
            Self::Foreign(file) => file.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }
}

/// How an operation names its descriptor to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// By its place in the table of registered files.
    Fixed(u32),
    /// By number.
    Plain(i32),
}

/// All files and sockets of a shard.
#[derive(Debug)]
pub(super) struct Descriptors {
    slots: Slots<Descriptor>,
    /// How many places of the kernel's table are for these; indices beyond it are used unregistered.
    places: u32,
    /// What is not in the kernel's table cannot be used.
    bounded: bool,
    /// Why the last registration failed, if one did.
    pub(super) degraded: Option<String>,
}

impl Descriptors {
    /// An empty table. `wanted`: register files; the kernel's refusal is left in `degraded`. Behind them the
    /// kernel's table has so many places for doorbells, if there is room for all.
    pub(super) fn new(
        capacity: u32,
        doorbells: u32,
        wanted: bool,
        submitter: &Submitter<'_>,
    ) -> Self {
        let slots = Slots::new(capacity);
        let mut degraded = None;
        let mut places = 0;
        if wanted {
            // The kernel allows no more places than the process may open files.
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            let most = limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(u32::MAX);
            places = slots.capacity().saturating_add(doorbells).min(most);
            // The sparse form is younger than the table; a list of holes means the same.
            let made = submitter
                .register_files_sparse(places)
                .or_else(|_| submitter.register_files(&vec![-1; places as usize]));
            if let Err(error) = made {
                degraded = Some(format!(
                    "registered_files: the kernel refuses a table of {places} ({error})"
                ));
                places = 0;
            }
        }
        Self { slots, places, bounded: false, degraded }
    }

    /// The first place of the doorbells, if all of them and all of these have one.
    pub(super) fn place_of_doorbells(&self, doorbells: u32) -> Option<u32> {
        let first = self.slots.capacity();
        (self.places >= first.saturating_add(doorbells)).then_some(first)
    }

    /// From now on what cannot be registered is refused.
    pub(super) fn bound(&mut self) {
        self.bounded = true;
    }

    pub(super) fn has_table(&self) -> bool {
        self.places > 0
    }

    pub(super) fn count(&self) -> u32 {
        self.slots.count()
    }

    /// Take a descriptor over.
    pub(super) fn add(
        &mut self,
        fd: Fd,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) -> Result<u32, UringError> {
        let raw = fd.as_fd().as_raw_fd();
        let known_to_ring = !matches!(fd, Fd::Foreign(_));
        let descriptor = Descriptor { fd, fixed: false, ops: 0, loans: 0, released: false };
        let capacity = self.slots.capacity();
        let id = self
            .slots
            .insert(descriptor)
            .map_err(|_| UringError::Full { what: "files and sockets", capacity })?;
        if known_to_ring && index_of(id) < self.places.min(capacity) {
            counters.other_syscalls += 1;
            match submitter.register_files_update(index_of(id), &[raw]) {
                Ok(_) => {
                    if let Some(descriptor) = self.slots.get_mut(id) {
                        descriptor.fixed = true;
                    }
                }
                Err(error) if self.bounded => {
                    self.slots.remove(id);
                    return Err(UringError::Register { what: "a file or socket", error });
                }
                Err(error) => {
                    self.degraded =
                        Some(format!("registered_files: the kernel refused one ({error})"));
                }
            }
        }
        Ok(id)
    }

    /// Lend a descriptor to an operation; pairs with [`Descriptors::give_back`].
    pub(super) fn lend(&mut self, id: u32, kind: DescriptorKind) -> Result<Target, i32> {
        let descriptor = self
            .slots
            .get_mut(id)
            .filter(|descriptor| descriptor.fd.kind() == kind && !descriptor.released)
            .ok_or(BAD_DESCRIPTOR)?;
        descriptor.ops += 1;
        Ok(target(id, descriptor))
    }

    /// The file of an id, if the ring must not see its operations.
    pub(super) fn foreign(&self, id: u32) -> Option<Arc<HeldFile>> {
        match &self.slots.get(id)?.fd {
            Fd::Foreign(file) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// A socket that is in use.
    pub(super) fn socket(&self, id: u32) -> Option<BorrowedFd<'_>> {
        let in_use = |it: &&Descriptor| it.fd.kind() == DescriptorKind::Socket && !it.released;
        self.slots.get(id).filter(in_use).map(|descriptor| descriptor.fd.as_fd())
    }

    /// How an operation that has the descriptor on loan names it, for its next round.
    pub(super) fn lent(&self, id: u32) -> Option<Target> {
        self.slots.get(id).filter(|descriptor| !descriptor.released).map(|it| target(id, it))
    }

    /// An operation ended.
    pub(super) fn give_back(
        &mut self,
        id: u32,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) {
        let Some(descriptor) = self.slots.get_mut(id) else { return };
        descriptor.ops -= 1;
        if descriptor.released && descriptor.ops == 0 {
            self.close(id, submitter, counters);
        }
    }

    /// The engine needs it no longer. `false`: the id names nothing of that kind.
    pub(super) fn release(
        &mut self,
        id: u32,
        kind: DescriptorKind,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) -> bool {
        let alive = |it: &&mut Descriptor| it.fd.kind() == kind && !it.released;
        let Some(descriptor) = self.slots.get_mut(id).filter(alive) else {
            return false;
        };
        descriptor.released = true;
        if kind == DescriptorKind::Socket {
            shut_down(descriptor, counters);
        }
        if descriptor.ops == 0 {
            self.close(id, submitter, counters);
        }
        true
    }

    /// An operation ended, and the kernel has its memory still.
    pub(super) fn lend_on(
        &mut self,
        id: u32,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) {
        if let Some(descriptor) = self.slots.get_mut(id) {
            descriptor.loans += 1;
        }
        self.give_back(id, submitter, counters);
    }

    /// The kernel is done with that memory. The socket may be gone by then.
    pub(super) fn end_loan(&mut self, id: u32) {
        if let Some(descriptor) = self.slots.get_mut(id) {
            descriptor.loans -= 1;
        }
    }

    /// End every socket's operations, and what they lent, for the shutdown.
    pub(super) fn release_sockets(
        &mut self,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) {
        let ids: Vec<u32> = self.slots.ids().collect();
        for id in ids {
            self.release(id, DescriptorKind::Socket, submitter, counters);
        }
    }

    fn close(&mut self, id: u32, submitter: &Submitter<'_>, counters: &mut UringCounters) {
        let Some(descriptor) = self.slots.remove(id) else { return };
        if descriptor.loans > 0 {
            abort(&descriptor, counters);
        }
        if descriptor.fixed {
            counters.other_syscalls += 1;
            // It cannot fail for a place within the table; if it did, the next tenant's update
            // would replace the file.
            let _ = submitter.register_files_update(index_of(id), &[-1]);
        }
        if descriptor.fd.kind() == DescriptorKind::Socket {
            counters.other_syscalls += 1;
        }
    }
}

fn target(id: u32, descriptor: &Descriptor) -> Target {
    if descriptor.fixed {
        Target::Fixed(index_of(id))
    } else {
        Target::Plain(descriptor.fd.as_fd().as_raw_fd())
    }
}

/// What the socket has not sent, or what nobody has acknowledged, is memory that is lent: it is forgotten when the
/// socket closes, instead of being sent again until the other side answers or the kernel gives up.
fn abort(descriptor: &Descriptor, counters: &mut UringCounters) {
    counters.other_syscalls += 1;
    let at_once = Some(std::time::Duration::ZERO);
    let _ = rustix::net::sockopt::set_socket_linger(descriptor.fd.as_fd(), at_once);
}

/// Outstanding operations end with an error or with the end of the stream. A socket that is not
/// connected any more says ENOTCONN, and then there is nothing to end.
fn shut_down(descriptor: &Descriptor, counters: &mut UringCounters) {
    counters.other_syscalls += 1;
    let _ = rustix::net::shutdown(descriptor.fd.as_fd(), rustix::net::Shutdown::Both);
}
