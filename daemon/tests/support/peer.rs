//! A peer whose every byte the test writes.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::link::{Checksum, LaneClass};
use piped_core::status::Status;
use piped_ring::Segment;
use piped_wire::{Frame, HEADER_BYTES, Message};

use super::PATIENCE;

/// An address of loopback that nobody listens on, of a host of its own: daemons of other tests that
/// dial theirs again and again never meet this one, as they may where only ports differ.
pub(crate) fn free_address() -> SocketAddr {
    static HOSTS: AtomicU8 = AtomicU8::new(2);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, high, low, HOSTS.fetch_add(1, Ordering::Relaxed));
    let listener = TcpListener::bind((host, 0)).expect("a port");
    listener.local_addr().expect("bound")
}

/// One lane. It reads when it is told to.
pub(crate) struct RawPeer {
    pub(crate) stream: TcpStream,
    pub(crate) epoch: u32,
}

impl RawPeer {
    /// A connection on which nothing was said.
    pub(crate) fn dial(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("it listens"))
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream, epoch: 1 }
    }

    /// A lane that is up, with small buffers.
    pub(crate) fn connect(address: SocketAddr, name: &str) -> Self {
        let mut peer = Self::dial(address);
        rustix::net::sockopt::set_socket_recv_buffer_size(&peer.stream, 1 << 16).expect("set");
        peer.hello(name, 1, LaneClass::Latency);
        assert!(matches!(peer.receive(), Message::HelloAck { .. }));
        peer
    }

    pub(crate) fn hello(&mut self, name: &str, incarnation: u64, lane: LaneClass) {
        self.send(
            Message::Hello { incarnation, lane, checksum: Checksum::Payload },
            name.as_bytes(),
        );
    }

    pub(crate) fn open(&mut self, kind: OpenKind, access: Access, name: &str, path: &str) -> u32 {
        let name_length = name.len() as u8;
        let open = Message::Open { ticket: 1, kind, access, create: Creation::No, name_length };
        self.send(open, &[name.as_bytes(), path.as_bytes()].concat());
        match self.receive() {
            Message::Opened { status: Status::Ok, handle, .. } => handle,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn open_region(&mut self, name: &str) -> u32 {
        self.open(OpenKind::Region, Access::READ, name, "")
    }

    pub(crate) fn send(&mut self, message: Message, payload: &[u8]) {
        let bytes = self.frame(message, payload);
        self.stream.write_all(&bytes).expect("sent");
    }

    /// Sends what the other side may have no ear for any more.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(crate) fn frame(&self, message: Message, payload: &[u8]) -> Vec<u8> {
        let scratch = Segment::create(payload.len().max(1) as u64).expect("memory");
        scratch.store(0, payload).expect("inside");
        let payload_crc = match payload.len() as u64 {
            0 => 0,
            length => scratch.crc32c(0, length).expect("inside"),
        };
        let payload_length = payload.len() as u32;
        let frame = Frame {
            epoch: self.epoch,
            message,
            payload: payload_length,
            payload_crc,
            followed: false,
        };
        [&frame.encode(), payload].concat()
    }

    pub(crate) fn receive(&mut self) -> Message {
        self.try_receive().expect("a frame").expect("before the end").0
    }

    /// The next frame with its payload; `None`: the other side hung up.
    pub(crate) fn try_receive(&mut self) -> io::Result<Option<(Message, Vec<u8>)>> {
        let mut header = [0; HEADER_BYTES];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if is_end(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        let frame = Frame::parse(&header).expect("a sound header");
        let mut payload = vec![0; frame.payload as usize];
        match self.stream.read_exact(&mut payload) {
            Ok(()) => Ok(Some((frame.message, payload))),
            Err(error) if is_end(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads on until the other side hangs up.
    pub(crate) fn await_end(&mut self, what: &str) {
        let mut buffer = [0; 1 << 16];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if is_end(&error) => return,
                Err(error) => panic!("{what}: it does not hang up: {error}"),
            }
        }
    }

    pub(crate) fn end_of_read(&mut self) -> Status {
        loop {
            match self.receive() {
                Message::End { status, .. } => return status,
                Message::Data { last: None, .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Whether the connection is over: closed, or closed with bytes of ours unread.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}
