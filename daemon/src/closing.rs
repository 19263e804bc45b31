//! Files on their way out, and the accounts that are charged for them.
//!
//! A close asks the file system, and one that a client serves itself (FUSE) need never answer. The
//! close of a socket waits for its data to leave, as long as its maker set (SO_LINGER). So files
//! that came from a client, or were opened for a client or peer, are closed by threads that may
//! hang: a dropped [`HeldFile`] sends its descriptor there. Until it is closed it counts in the
//! [`Account`] of its owner, which has room for this many files and as many threads as it may lose.
//! A session's account keeps the session's place, and a handshake's account keeps that of the
//! handshake. So files that never close are the loss of their owner alone.
//!
//! A unix socket closes descriptors that were sent and not received. So the sockets of clients and
//! operators, and their listeners, are held as well, from the moment they are accepted.

use std::any::Any;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The files of a client's session, of a connection without a session, or of all peers.
#[derive(Debug)]
pub struct Account {
    room: Arc<Semaphore>,
    threads: Arc<Semaphore>,
    /// Whether one thread closes all files of this owner.
    one_by_one: bool,
    closer: Closer,
    /// The owner's place among the sessions, or the connections.
    _place: Option<Kept>,
}

/// A thing that is kept until all files of an account are closed.
pub type Kept = Arc<dyn Any + Send + Sync>;

/// Sends files to be closed.
#[derive(Debug, Clone)]
pub struct Closer(mpsc::UnboundedSender<Leaving>);

/// A descriptor to be closed. If the daemon ends before, the descriptor is left to the end of the
/// process: that may hang as well, but nothing waits behind it.
#[derive(Debug)]
pub struct Leaving {
    fd: ManuallyDrop<OwnedFd>,
    charge: Charge,
}

/// Room that a file takes in its account.
#[derive(Debug)]
struct Charge {
    account: Arc<Account>,
    _room: Option<OwnedSemaphorePermit>,
}

/// An open file that is closed, when dropped, by a thread that may hang.
#[derive(Debug)]
pub struct HeldFile {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    /// Account that is charged; a file without one is closed where it is dropped.
    charge: Option<Charge>,
}

/// Room for files that are about to come.
#[derive(Debug)]
pub struct Room {
    account: Arc<Account>,
    permits: OwnedSemaphorePermit,
}

impl Account {
    /// Account for this many files, with this many threads to close them.
    #[must_use]
    pub fn new(closer: Closer, files: usize, threads: usize, place: Option<Kept>) -> Arc<Self> {
        let one_by_one = threads == 1;
        let [room, threads] = [files, threads].map(|count| Arc::new(Semaphore::new(count)));
        Arc::new(Self { room, threads, one_by_one, closer, _place: place })
    }

    /// Waits for room for this many more files.
    pub async fn room(self: &Arc<Self>, files: u32) -> Room {
        let permits = Arc::clone(&self.room).acquire_many_owned(files).await;
        Room { account: Arc::clone(self), permits: permits.expect("nobody closes the semaphore") }
    }

    /// Charges the account for a file that is open already, whether there is room or not.
    #[must_use]
    pub fn hold_uncounted(self: &Arc<Self>, fd: OwnedFd) -> HeldFile {
        HeldFile { fd: Some(fd), charge: Some(Charge { account: Arc::clone(self), _room: None }) }
    }

    /// Room for this many more files, if there is any.
    #[must_use]
    pub fn try_room(self: &Arc<Self>, files: u32) -> Option<Room> {
        let permits = Arc::clone(&self.room).try_acquire_many_owned(files).ok()?;
        Some(Room { account: Arc::clone(self), permits })
    }
}

impl Room {
    /// Takes a file into the room.
    #[must_use]
    pub fn hold(&mut self, fd: OwnedFd) -> HeldFile {
        HeldFile { fd: Some(fd), charge: Some(self.charge()) }
    }

    fn charge(&mut self) -> Charge {
        Charge { account: Arc::clone(&self.account), _room: self.permits.split(1) }
    }
}

impl HeldFile {
    /// Opens nothing anew: another descriptor of the same open file.
    ///
    /// # Errors
    /// The process may not open more files.
    pub fn again(&self, room: &mut Room) -> io::Result<Self> {
        Ok(room.hold(self.as_fd().try_clone_to_owned()?))
    }

    /// Moves the file to another account.
    pub fn move_to(&mut self, room: &mut Room) {
        self.charge = Some(room.charge());
    }
}

impl From<OwnedFd> for HeldFile {
    /// Holds a file without an account, because its close does not hang.
    fn from(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), charge: None }
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("there until it is dropped").as_fd()
    }
}

impl AsRawFd for HeldFile {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        if let (Some(fd), Some(charge)) = (self.fd.take(), self.charge.take()) {
            let closer = charge.account.closer.clone();
            // Without a closer the daemon is ending, see `Leaving`.
            let _ = closer.0.send(Leaving { fd: ManuallyDrop::new(fd), charge });
        }
    }
}

impl Closer {
    /// Makes a closer, and the queue for [`close_files`].
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Leaving>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }
}

/// Most files taken from the queue at once.
const TOGETHER_MAX: usize = 256;

/// Closes files, each account's on its own threads. The accounts bound the queue.
///
/// Files of an account with one thread that come together are closed in one visit to it. Otherwise
/// a message of hundreds of descriptors would start as many threads, because none is idle before
/// the next is needed.
pub async fn close_files(mut leaving: mpsc::UnboundedReceiver<Leaving>) {
    let mut arrived = Vec::new();
    while leaving.recv_many(&mut arrived, TOGETHER_MAX).await > 0 {
        let mut rest = arrived.drain(..).peekable();
        while let Some(first) = rest.next() {
            let account = Arc::clone(&first.charge.account);
            let joins =
                |next: &Leaving| account.one_by_one && Arc::ptr_eq(&next.charge.account, &account);
            let mut together = vec![first];
            together.extend(std::iter::from_fn(|| rest.next_if(joins)));
            tokio::task::spawn_local(async move {
                let thread = Arc::clone(&account.threads).acquire_owned().await;
                tokio::task::spawn_blocking(move || {
                    for Leaving { fd, charge } in together {
                        drop(ManuallyDrop::into_inner(fd));
                        drop(charge);
                    }
                    drop(thread);
                });
            });
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::testing::{hanging, is_closed, watched, with_closer};
    use super::*;

    #[test]
    fn closes_that_hang_are_their_owners_loss_alone() {
        with_closer(async |closer| {
            let places = Arc::new(Semaphore::new(41));
            let mut theirs = Vec::new();
            let mut accounts = Vec::new();
            for _ in 0..40 {
                let place = Arc::clone(&places).acquire_owned().await.expect("open");
                let account = Account::new(closer.clone(), 2, 1, Some(Arc::new(place)));
                let mut room = account.try_room(2).expect("an empty account");
                let (ours, other) = hanging();
                theirs.push(other);
                drop(room.hold(ours));
                accounts.push((account, room));
            }
            // Files of another account are closed.
            let other = Account::new(closer, 1, 1, None);
            for _ in 0..3 {
                let (file, reader) = watched();
                drop(other.room(1).await.hold(file));
                is_closed(reader).await;
            }
            // Later files of these accounts wait, and count.
            let (account, mut room) = accounts.pop().expect("forty");
            let (file, reader) = watched();
            drop(room.hold(file));
            drop(room);
            assert!(account.try_room(1).is_none(), "two are not closed yet");
            // After the session its place is taken until its files are closed.
            accounts.clear();
            drop(account);
            assert_eq!(places.available_permits(), 1);
            drop(theirs);
            is_closed(reader).await;
            let all = places.acquire_many(41).await;
            assert!(all.is_ok(), "all places are free again");
        });
    }

    #[test]
    fn of_files_that_come_together_those_before_one_that_hangs_are_closed() {
        with_closer(async |closer| {
            let account = Account::new(closer, 3, 1, None);
            let mut room = account.try_room(3).expect("an empty account");
            let (first, first_reader) = watched();
            let (hangs, theirs) = hanging();
            let (last, last_reader) = watched();
            let held = [first, hangs, last].map(|file| room.hold(file));
            drop(room);
            // Without a pause they are one batch.
            drop(held);
            is_closed(first_reader).await;
            let again = account.room(1).await;
            assert!(account.try_room(1).is_none(), "two are not closed yet");
            drop(theirs);
            is_closed(last_reader).await;
            drop(again);
            let all = account.room(3).await;
            drop(all);
        });
    }

    #[test]
    fn a_closer_that_is_gone_closes_nothing_here() {
        let (closer, leaving) = Closer::new();
        let account = Account::new(closer, 2, 1, None);
        let (ours, theirs) = hanging();
        let held = account.try_room(1).expect("empty").hold(ours);
        drop(leaving);
        // Otherwise this would hang.
        drop(held);
        drop(theirs);
    }
}
