//! Files and sockets: owned here, known to the kernel by number, dropped after their last
//! operation.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::Submitter;

use super::UringError;
use super::counters::UringCounters;
use super::slots::{Slots, index_of};
use crate::closing::HeldFile;

/// `-EBADF`: the id names nothing, or another kind of thing.
pub(super) const BAD_DESCRIPTOR: i32 = -libc::EBADF;

/// A file or a socket, with its uses.
#[derive(Debug)]
struct Descriptor {
    fd: Fd,
    /// Whether the file is in the kernel's table, at its index.
    fixed: bool,
    /// Number of operations that use it.
    ops: u32,
    /// Sends on it that have ended while the kernel still holds their memory.
    loans: u32,
    released: bool,
}

/// Kinds of descriptors. Closing a socket does not wait for its peer. Closing a file may wait for
/// the server of its file system, and is not done here.
#[derive(Debug)]
pub(super) enum Fd {
    File(Arc<HeldFile>),
    /// A directory, of which only calls are made: the ring takes no such descriptor.
    Directory(Arc<HeldFile>),
    /// A file with operations that the ring must not see.
    Foreign(Arc<HeldFile>),
    Socket(OwnedFd),
}

/// Kind of an id: one of a file is not one of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DescriptorKind {
    File,
    Socket,
}

impl Fd {
    fn kind(&self) -> DescriptorKind {
        match self {
            Self::File(_) | Self::Directory(_) | Self::Foreign(_) => DescriptorKind::File,
            Self::Socket(_) => DescriptorKind::Socket,
        }
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::File(file) | Self::Directory(file) | Self::Foreign(file) => file.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }
}

/// Name of a descriptor in an operation for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// Place in the table of registered files.
    Fixed(u32),
    /// Number of the descriptor.
    Plain(i32),
}

/// All files and sockets of a shard.
#[derive(Debug)]
pub(super) struct Descriptors {
    slots: Slots<Descriptor>,
    /// Places of the kernel's table for these; higher indices are used unregistered.
    places: u32,
    /// Whether only descriptors in the kernel's table can be used.
    bounded: bool,
    /// Reason why the last registration failed, if one did.
    pub(super) degraded: Option<String>,
}

impl Descriptors {
    /// Empty table. `wanted` registers files; the kernel's refusal is left in `degraded`. Behind
    /// the files the kernel's table has this many places for doorbells, if there is room for all.
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
            // Older kernels have the table without its sparse form; a list of holes means the same.
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

    /// First place of the doorbells, if there is a place for all of them and all files.
    pub(super) fn place_of_doorbells(&self, doorbells: u32) -> Option<u32> {
        let first = self.slots.capacity();
        (self.places >= first.saturating_add(doorbells)).then_some(first)
    }

    /// Refuses from now on what cannot be registered.
    pub(super) fn bound(&mut self) {
        self.bounded = true;
    }

    pub(super) fn has_table(&self) -> bool {
        self.places > 0
    }

    pub(super) fn count(&self) -> u32 {
        self.slots.count()
    }

    /// Takes a descriptor over.
    pub(super) fn add(
        &mut self,
        fd: Fd,
        submitter: &Submitter<'_>,
        counters: &mut UringCounters,
    ) -> Result<u32, UringError> {
        let raw = fd.as_fd().as_raw_fd();
        let known_to_ring = matches!(fd, Fd::File(_) | Fd::Socket(_));
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

    /// Lends a descriptor to an operation; pairs with [`Descriptors::give_back`].
    pub(super) fn lend(&mut self, id: u32, kind: DescriptorKind) -> Result<Target, i32> {
        let descriptor = self
            .slots
            .get_mut(id)
            .filter(|descriptor| descriptor.fd.kind() == kind && !descriptor.released)
            .ok_or(BAD_DESCRIPTOR)?;
        descriptor.ops += 1;
        Ok(target(id, descriptor))
    }

    /// File of an id, if the ring must not see its operations.
    pub(super) fn foreign(&self, id: u32) -> Option<Arc<HeldFile>> {
        match &self.slots.get(id)?.fd {
            Fd::Foreign(file) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// File or directory of an id, for a thread that keeps it open.
    pub(super) fn apart(&self, id: u32) -> Option<Arc<HeldFile>> {
        match &self.slots.get(id)?.fd {
            Fd::File(file) | Fd::Directory(file) | Fd::Foreign(file) => Some(Arc::clone(file)),
            Fd::Socket(_) => None,
        }
    }

    /// File or directory of an id, if nobody but the kernel answers for it.
    pub(super) fn callee(&self, id: u32) -> Option<BorrowedFd<'_>> {
        let descriptor = self.slots.get(id)?;
        let own = matches!(descriptor.fd, Fd::File(_) | Fd::Directory(_));
        own.then(|| descriptor.fd.as_fd())
    }

    /// A file that is in use, and not foreign.
    pub(super) fn file(&self, id: u32) -> Option<BorrowedFd<'_>> {
        let descriptor = self.slots.get(id).filter(|descriptor| !descriptor.released)?;
        matches!(descriptor.fd, Fd::File(_)).then(|| descriptor.fd.as_fd())
    }

    /// A socket that is in use.
    pub(super) fn socket(&self, id: u32) -> Option<BorrowedFd<'_>> {
        let in_use = |it: &&Descriptor| it.fd.kind() == DescriptorKind::Socket && !it.released;
        self.slots.get(id).filter(in_use).map(|descriptor| descriptor.fd.as_fd())
    }

    /// Target for the next round of an operation that has the descriptor on loan.
    pub(super) fn lent(&self, id: u32) -> Option<Target> {
        self.slots.get(id).filter(|descriptor| !descriptor.released).map(|it| target(id, it))
    }

    /// Takes a descriptor back from an operation that ended.
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

    /// Releases a descriptor that the engine no longer needs. `false` if the id names nothing of
    /// that kind.
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

    /// Handles the end of an operation while the kernel still has its memory.
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

    /// Handles the return of that memory. The socket may be gone by then.
    pub(super) fn end_loan(&mut self, id: u32) {
        if let Some(descriptor) = self.slots.get_mut(id) {
            descriptor.loans -= 1;
        }
    }

    /// Ends every socket's operations, and their loans, for the shutdown.
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
            // Within the table this cannot fail; if it did, the next update of the place would
            // replace the file.
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

/// Makes the socket forget unsent or unacknowledged bytes when it closes. They are lent memory,
/// which the kernel would otherwise send again until the other side answers or it gives up.
fn abort(descriptor: &Descriptor, counters: &mut UringCounters) {
    counters.other_syscalls += 1;
    let at_once = Some(std::time::Duration::ZERO);
    let _ = rustix::net::sockopt::set_socket_linger(descriptor.fd.as_fd(), at_once);
}

/// Ends outstanding operations with an error or with the end of the stream. A socket that is no
/// longer connected reports ENOTCONN, and then there is nothing to end.
fn shut_down(descriptor: &Descriptor, counters: &mut UringCounters) {
    counters.other_syscalls += 1;
    let _ = rustix::net::shutdown(descriptor.fd.as_fd(), rustix::net::Shutdown::Both);
}
