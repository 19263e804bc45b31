//! Files on their way out, and who answers for them.
//!
//! A close asks the file system, and one that a client serves itself (FUSE) need never answer. So what
//! came from a client, or was opened for somebody, is closed by a thread that may hang, wherever it is
//! dropped: a [`HeldFile`] sends its descriptor there. Until it is closed it counts in the [`Account`]
//! of whoever brought it: that has room for so many files and as many threads as it may lose, and a
//! session's keeps the session's place. So files that never close are the loss of their owner alone.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The files of a client's session, or of all peers.
#[derive(Debug)]
pub struct Account {
    room: Arc<Semaphore>,
    threads: Arc<Semaphore>,
    closer: Closer,
    /// The session's place among the sessions.
    _place: Option<Arc<OwnedSemaphorePermit>>,
}

/// Where files go to be closed.
#[derive(Debug, Clone)]
pub struct Closer(mpsc::UnboundedSender<Leaving>);

/// A descriptor that is to be closed. Whoever drops it unclosed, in a daemon that ends, leaves it to
/// the end of the process: that may hang as well, but nothing waits behind it.
#[derive(Debug)]
pub struct Leaving {
    fd: ManuallyDrop<OwnedFd>,
    charge: Charge,
}

/// What a file takes of its account.
#[derive(Debug)]
struct Charge {
    account: Arc<Account>,
    _room: Option<OwnedSemaphorePermit>,
}

/// An open file. Dropped, it is closed by somebody who may hang.
#[derive(Debug)]
pub struct HeldFile {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    /// Nobody's is closed where it is dropped.
    charge: Option<Charge>,
}

/// Room for files that are about to come.
#[derive(Debug)]
pub struct Room {
    account: Arc<Account>,
    permits: OwnedSemaphorePermit,
}

impl Account {
    /// An account for so many files, with so many threads to close them.
    #[must_use]
    pub fn new(
        closer: Closer,
        files: usize,
        threads: usize,
        place: Option<Arc<OwnedSemaphorePermit>>,
    ) -> Arc<Self> {
        let [room, threads] = [files, threads].map(|count| Arc::new(Semaphore::new(count)));
        Arc::new(Self { room, threads, closer, _place: place })
    }

    /// Room for so many more files, when there is.
    pub async fn room(self: &Arc<Self>, files: u32) -> Room {
        let permits = Arc::clone(&self.room).acquire_many_owned(files).await;
        Room { account: Arc::clone(self), permits: permits.expect("nobody closes the semaphore") }
    }

    /// Room for so many more files, if there is.
    #[must_use]
    pub fn try_room(self: &Arc<Self>, files: u32) -> Option<Room> {
        let permits = Arc::clone(&self.room).try_acquire_many_owned(files).ok()?;
        Some(Room { account: Arc::clone(self), permits })
    }
}

impl Room {
    /// Takes a file in.
    #[must_use]
    pub fn hold(&mut self, fd: OwnedFd) -> HeldFile {
        let charge = Charge { account: Arc::clone(&self.account), _room: self.permits.split(1) };
        HeldFile { fd: Some(fd), charge: Some(charge) }
    }
}

impl From<OwnedFd> for HeldFile {
    /// One that nobody answers for: its close does not hang.
    fn from(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), charge: None }
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("there until it is dropped").as_fd()
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
    /// A closer, and what is sent to it, for [`close_files`].
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Leaving>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }
}

/// Closes files, each account's on its own threads. What waits is bounded by the accounts.
pub async fn close_files(mut leaving: mpsc::UnboundedReceiver<Leaving>) {
    while let Some(Leaving { fd, charge }) = leaving.recv().await {
        tokio::task::spawn_local(async move {
            let thread = Arc::clone(&charge.account.threads).acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                drop(ManuallyDrop::into_inner(fd));
                drop((charge, thread));
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;
    use tokio::task::LocalSet;

    use super::*;

    /// A descriptor whose close hangs until the other end is dropped: a socket that lingers with more
    /// unsent than the other end takes.
    fn hanging() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("bound");
        let mut ours = TcpStream::connect(address).expect("connected");
        let (theirs, _) = listener.accept().expect("accepted");
        set_socket_linger(&ours, Some(Duration::from_secs(600))).expect("an option");
        ours.set_nonblocking(true).expect("an option");
        while ours.write(&[0; 65536]).is_ok() {}
        ours.set_nonblocking(false).expect("an option");
        (ours.into(), theirs)
    }

    /// A descriptor, and what is at its end once it is closed.
    fn watched() -> (OwnedFd, std::io::PipeReader) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        (writer.into(), reader)
    }

    async fn is_closed(mut reader: std::io::PipeReader) {
        let end = tokio::task::spawn_blocking(move || reader.read(&mut [0])).await;
        assert_eq!(end.expect("no panic").expect("the end"), 0);
    }

    fn with_closer(test: impl AsyncFnOnce(Closer)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            let (closer, leaving) = Closer::new();
            tokio::task::spawn_local(close_files(leaving));
            test(closer).await;
        });
        runtime.shutdown_background();
    }

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
            // Another's files close.
            let other = Account::new(closer, 1, 1, None);
            for _ in 0..3 {
                let (file, reader) = watched();
                drop(other.room(1).await.hold(file));
                is_closed(reader).await;
            }
            // Their own next ones wait, and count.
            let (account, mut room) = accounts.pop().expect("forty");
            let (file, reader) = watched();
            drop(room.hold(file));
            drop(room);
            assert!(account.try_room(1).is_none(), "two are not closed yet");
            // Without the session its place is taken until its files are closed.
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
    fn a_closer_that_is_gone_closes_nothing_here() {
        let (closer, leaving) = Closer::new();
        let account = Account::new(closer, 2, 1, None);
        let (ours, theirs) = hanging();
        let held = account.try_room(1).expect("empty").hold(ours);
        drop(leaving);
        // Else this would hang.
        drop(held);
        drop(theirs);
    }
}
