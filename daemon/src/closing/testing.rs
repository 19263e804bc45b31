//! Tools for tests of closing, and of sockets that descriptors come through.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tokio::task::LocalSet;

use super::{Closer, close_files};

/// A descriptor with a close that hangs until the other end is dropped: a socket that lingers with
/// more unsent than the other end takes.
pub(crate) fn hanging() -> (OwnedFd, TcpStream) {
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

/// A descriptor, and a reader that sees its close.
pub(crate) fn watched() -> (OwnedFd, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (writer.into(), reader)
}

/// Waits until the file of [`watched`] is closed.
pub(crate) async fn is_closed(mut reader: std::io::PipeReader) {
    let end = tokio::task::spawn_blocking(move || reader.read(&mut [0])).await;
    assert_eq!(end.expect("no panic").expect("the end"), 0);
}

/// Runs a test on a thread that no close may hang, beside threads that close.
pub(crate) fn with_closer(test: impl AsyncFnOnce(Closer)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let (closer, leaving) = Closer::new();
        tokio::task::spawn_local(close_files(leaving));
        test(closer).await;
    });
    runtime.shutdown_background();
}
