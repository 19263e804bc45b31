//! The connection of an operator as a stream of bytes.
//!
//! With a plain read the kernel closes descriptors that come with the bytes, in the thread that
//! reads, and a close may hang. So this stream receives them, has them closed elsewhere, and ends
//! the connection.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use piped_ring::handshake::fds::{self, FDS_RECEIVED_MAX};
use rustix::net::{SendFlags, Shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::closing::{Account, HeldFile};
use crate::connection::Connection;

#[derive(Debug)]
pub(super) struct Stream {
    connection: Connection,
    account: Arc<Account>,
    /// Longest time for the client to take an answer.
    patience: Duration,
    /// End of that time, for an answer that was not taken at once.
    due: Option<Pin<Box<Sleep>>>,
}

/// An answer was not taken in time.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not taken in time")]
struct Unread;

/// Whether a connection ended because of that.
pub(super) fn is_unread(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.is_some_and(|inner| inner.is::<Unread>())
    })
}

impl Stream {
    pub(super) fn new(connection: Connection, account: Arc<Account>, patience: Duration) -> Self {
        Self { connection, account, patience, due: None }
    }

    fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.connection.socket().poll_write_ready(context))?;
            let send = || Ok(rustix::net::send(self, bytes, SendFlags::NOSIGNAL)?);
            if let Ok(result) = guard.try_io(|_| send()) {
                return Poll::Ready(result);
            }
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let not_taken = || io::Error::other("the admin API takes no file descriptors");
        let mut room = self.account.try_room(FDS_RECEIVED_MAX as u32).ok_or_else(not_taken)?;
        let mut fds = Vec::new();
        let result = fds::receive_bytes(self, buffer, &mut fds);
        let held: Vec<HeldFile> = fds.drain(..).map(|fd| room.hold(fd)).collect();
        if held.is_empty() { result } else { Err(not_taken()) }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.socket().get_ref().as_fd()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.connection.socket().poll_read_ready(context))?;
            let room = buffer.initialize_unfilled();
            if let Ok(result) = guard.try_io(|_| self.receive(room)) {
                buffer.advance(result?);
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(written) = this.poll_send(context, bytes) {
            return Poll::Ready(written);
        }
        let patience = this.patience;
        let due = this.due.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(due.as_mut().poll(context));
        Poll::Ready(Err(io::Error::other(Unread)))
    }

    /// Called once all of an answer is written.
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.due = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(rustix::net::shutdown(&*self, Shutdown::Write)?))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::closing::testing::{hanging, with_closer};
    use crate::limits::FILES_PER_HANDSHAKE;

    async fn read(stream: &mut Stream, into: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(into);
        poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut buffer)).await?;
        Ok(buffer.filled().len())
    }

    /// The test would hang, not fail, if a descriptor were closed here.
    #[test]
    fn descriptors_end_the_connection_and_are_not_closed_here() {
        with_closer(async |closer| {
            let account = Account::new(closer, FILES_PER_HANDSHAKE, 1, None);
            let (ours, mut operator) = UnixStream::pair().expect("a pair");
            ours.set_nonblocking(true).expect("an option");
            let held = account.room(1).await.hold(ours.into());
            let connection = Connection::new(held).expect("a socket");
            let mut stream = Stream::new(connection, Arc::clone(&account), Duration::MAX);
            operator.write_all(b"GET").expect("sent");
            let mut buffer = [0; 64];
            assert_eq!(read(&mut stream, &mut buffer).await.expect("bytes"), 3);
            assert_eq!(&buffer[..3], b"GET");
            let mut others = Vec::new();
            for _ in 0..2 {
                let (file, other) = hanging();
                fds::send(&operator, b" /v1/status", &[file.as_fd()]).expect("sent");
                others.push(other);
            }
            assert!(read(&mut stream, &mut buffer).await.is_err());
            // Unread descriptors go with it.
            drop(stream);
            drop(others);
            let _all = account.room(FILES_PER_HANDSHAKE as u32).await;
        });
    }

    #[tokio::test]
    async fn an_answer_that_is_not_taken_ends_the_connection() {
        let (closer, _leaving) = crate::closing::Closer::new();
        let account = Account::new(closer, FILES_PER_HANDSHAKE, 1, None);
        let (ours, operator) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("an option");
        let held = account.room(1).await.hold(ours.into());
        let connection = Connection::new(held).expect("a socket");
        let mut stream = Stream::new(connection, account, Duration::from_millis(1));
        let error = loop {
            let write = poll_fn(|context| Pin::new(&mut stream).poll_write(context, &[0; 4096]));
            match write.await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(is_unread(&error), "{error}");
        assert!(!is_unread(&io::Error::from(io::ErrorKind::BrokenPipe)));
        drop(operator);
    }
}
