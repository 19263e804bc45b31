//! A process of its own, because it spends the file descriptors that all its threads share.
#![cfg(not(loom))]

use std::os::fd::{AsFd, AsRawFd};

use piped_ring::handshake::MESSAGE_BYTES_MAX;
use piped_ring::handshake::fds::{self, ReceiveFault};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_message_that_lost_descriptors_on_its_way_is_refused_whole() {
    let flags = SocketFlags::CLOEXEC;
    let (here, there) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("a socket pair");
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    fds::send(&here, b"three", &[writer.as_fd(); 3]).expect("sends");

    // Room for one more descriptor than there are: the kernel delivers one of three and says so.
    let before = getrlimit(Resource::Nofile);
    let highest = writer.as_raw_fd().max(reader.as_raw_fd());
    let room = Rlimit { current: Some(highest as u64 + 2), maximum: before.maximum };
    setrlimit(Resource::Nofile, room).expect("lowering is allowed");
    let received = fds::receive(&there, &mut [0; MESSAGE_BYTES_MAX]);
    setrlimit(Resource::Nofile, before).expect("raising to what it was is allowed");

    assert!(matches!(received, Err(ReceiveFault::TooManyFds)), "{received:?}");
    drop(writer);
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0), "one of them stayed open");
}
