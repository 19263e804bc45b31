//! The control socket's messages and what rides with them.
#![cfg(not(loom))]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use piped_core::access::{Access, Creation, NewFile};
use piped_core::status::Status;
use piped_ring::LentKind;
use piped_ring::handshake::fds::{self, FDS_PER_MESSAGE_MAX, FDS_RECEIVED_MAX, ReceiveFault};
use piped_ring::handshake::{
    AUDIENCE_MAX, Audience, HandshakeFault, Hello, MESSAGE_BYTES_MAX, NAME_BYTES_MAX,
    PATH_BYTES_MAX, PathCosts, Reply, Request, TEXT_BYTES_MAX, Welcome, sequence,
};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

fn text(max: usize) -> impl Strategy<Value = String> {
    // Characters of one to four bytes, cut to the limit in bytes.
    let range = prop::char::range;
    let character =
        prop_oneof![range('a', 'z'), range('à', 'ÿ'), range('一', '丏'), range('😀', '😏')];
    prop::collection::vec(character, 0..=max).prop_map(move |characters| {
        let text: String = characters.into_iter().collect();
        text[..text.floor_char_boundary(max)].to_owned()
    })
}

/// Names of files are bytes; only those of control characters are out.
fn path() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no control character", |byte| !byte.is_ascii_control());
    prop::collection::vec(byte, 0..=PATH_BYTES_MAX)
}

fn creation() -> impl Strategy<Value = Creation> {
    (0..3_u8, 0..=NewFile::MODES, any::<bool>()).prop_map(|(kind, mode, parents)| {
        Creation::from_parts(kind, mode, parents).unwrap_or_default()
    })
}

fn access() -> impl Strategy<Value = Access> {
    any::<[bool; 4]>().prop_map(|[read, write, atomic, names]| Access {
        read,
        write,
        atomic,
        names,
    })
}

fn request() -> impl Strategy<Value = Request> {
    let name = || text(NAME_BYTES_MAX);
    let hello = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>(), 0_u8..3)
        .prop_map(|(features, arena_bytes, entries, queues, weight, class)| {
            Request::Hello(Hello { features, arena_bytes, entries, queues, weight, class })
        });
    let users = prop::option::of(prop::collection::vec(any::<u32>(), 0..=AUDIENCE_MAX));
    let peers = prop::option::of(prop::collection::vec(name(), 0..=AUDIENCE_MAX));
    let audience = (users, peers).prop_map(|(users, peers)| Audience { users, peers });
    let place = (any::<u32>(), any::<u64>(), any::<u64>());
    let export_region = (name(), place, access(), audience).prop_map(
        |(name, (segment, offset, length), access, audience)| Request::ExportRegion {
            name,
            segment,
            offset,
            length,
            access,
            audience,
        },
    );
    prop_oneof![
        hello,
        Just(Request::AddQueue),
        any::<u64>().prop_map(|bytes| Request::GrowArena { bytes }),
        (any::<u64>(), any::<bool>()).prop_map(|(bytes, loose)| Request::Lend {
            bytes,
            kind: if loose { LentKind::Loose } else { LentKind::Sealed },
        }),
        any::<u32>().prop_map(|segment| Request::TakeBack { segment }),
        (access(), any::<bool>()).prop_map(|(access, direct)| Request::OpenFile { access, direct }),
        (name(), name(), path(), access(), creation()).prop_map(
            |(peer, export, path, access, create)| Request::OpenExport {
                peer,
                export,
                path,
                access,
                create
            }
        ),
        (name(), name(), path(), access()).prop_map(|(peer, export, path, access)| {
            Request::OpenDirectory { peer, export, path, access }
        }),
        export_region,
        (name(), name(), access()).prop_map(|(peer, name, access)| Request::OpenRegion {
            peer,
            name,
            access
        }),
        any::<u32>().prop_map(|handle| Request::CloseHandle { handle }),
        (any::<u32>(), any::<bool>())
            .prop_map(|(handle, write)| Request::PathCosts { handle, write }),
        name().prop_map(|name| Request::OfferChannel { name }),
        (name(), name()).prop_map(|(peer, name)| Request::OpenChannel { peer, name }),
    ]
}

fn welcome() -> impl Strategy<Value = Reply> {
    let counts = (any::<u32>(), 0_u32..=16, 0_u32..=16, any::<i32>());
    (counts, any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(
            (session, segments, queues, shard_cpu),
            features,
            client_spin_ns,
            deadline_default_ns,
        )| {
            Reply::Welcome(Welcome {
                features,
                session,
                segments,
                queues,
                shard_cpu,
                client_spin_ns,
                deadline_default_ns,
            })
        },
    )
}

fn costs() -> impl Strategy<Value = Reply> {
    (any::<u64>(), any::<u64>(), any::<u64>(), 0..=PathCosts::CERTAIN_PPM).prop_map(
        |(overhead_ns, latency_ns, mebibyte_ns, confidence_ppm)| {
            Reply::PathCosts(PathCosts { overhead_ns, latency_ns, mebibyte_ns, confidence_ppm })
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        welcome(),
        any::<u32>().prop_map(|queue| Reply::Queue { queue }),
        any::<u32>().prop_map(|segment| Reply::Segment { segment }),
        any::<u32>().prop_map(|segment| Reply::Lent { segment }),
        (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(
            |(handle, direct_alignment, length)| Reply::Opened { handle, direct_alignment, length }
        ),
        Just(Reply::Done),
        costs(),
        (prop::sample::select(Status::ALL.to_vec()), text(TEXT_BYTES_MAX))
            .prop_map(|(status, message)| Reply::Refused { status, message }),
    ]
}

fn encoded(encode: impl FnOnce(&mut [u8]) -> Result<usize, HandshakeFault>) -> Vec<u8> {
    let mut buffer = vec![0xee; MESSAGE_BYTES_MAX];
    let length = encode(&mut buffer).expect("within all limits");
    buffer.truncate(length);
    buffer
}

proptest! {
    #[test]
    fn a_request_comes_back_as_it_was(request in request(), number: u32) {
        let message = encoded(|into| request.encode(number, into));
        prop_assert_eq!(sequence(&message), Some(number));
        prop_assert_eq!(Request::parse(&message), Ok((number, request)));
        // One direction's messages are not the other's.
        prop_assert!(matches!(Reply::parse(&message), Err(HandshakeFault::Kind(_))));
    }

    #[test]
    fn a_reply_comes_back_as_it_was(reply in reply(), number: u32) {
        let message = encoded(|into| reply.encode(number, into));
        prop_assert_eq!(Reply::parse(&message), Ok((number, reply)));
        prop_assert!(matches!(Request::parse(&message), Err(HandshakeFault::Kind(_))));
    }

    #[test]
    fn a_message_is_exactly_as_long_as_it_is(request in request(), reply in reply()) {
        let mut request = encoded(|into| request.encode(1, into));
        let mut reply = encoded(|into| reply.encode(1, into));
        for length in 0..request.len() {
            prop_assert!(Request::parse(&request[..length]).is_err(), "cut to {}", length);
        }
        for length in 0..reply.len() {
            prop_assert!(Reply::parse(&reply[..length]).is_err(), "cut to {}", length);
        }
        request.push(0);
        reply.push(0);
        prop_assert!(Request::parse(&request).is_err(), "with a byte more");
        prop_assert!(Reply::parse(&reply).is_err(), "with a byte more");
    }

    #[test]
    fn bytes_are_parsed_or_refused(
        kind in 0_u16..120,
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = (Request::parse(&bytes), Reply::parse(&bytes));
        if bytes.len() >= 4 {
            bytes[..2].copy_from_slice(&kind.to_ne_bytes());
            bytes[2..4].fill(0);
        }
        // What parses has one encoding: the bytes it came from.
        if let Ok((number, request)) = Request::parse(&bytes) {
            prop_assert_eq!(encoded(|into| request.encode(number, into)), bytes.clone());
        }
        if let Ok((number, reply)) = Reply::parse(&bytes) {
            prop_assert_eq!(encoded(|into| reply.encode(number, into)), bytes);
        }
    }

    #[test]
    fn a_changed_byte_is_another_message_or_none(
        request in request(),
        place: prop::sample::Index,
        flip in 1_u8..,
    ) {
        let mut message = encoded(|into| request.encode(7, into));
        let place = place.index(message.len());
        message[place] ^= flip;
        if let Ok((number, other)) = Request::parse(&message) {
            prop_assert!(number != 7 || other != request);
            prop_assert_eq!(encoded(|into| other.encode(number, into)), message);
        }
    }
}

#[test]
fn strings_beyond_their_limits_are_refused_on_both_sides() {
    let open = |name: &str| Request::OpenRegion {
        peer: String::new(),
        name: name.to_owned(),
        access: Access::READ,
    };
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    for name in ["x".repeat(NAME_BYTES_MAX + 1).as_str(), "a\nb", "\0", "\u{1b}[2J"] {
        let fault = open(name).encode(1, &mut buffer);
        assert_eq!(fault, Err(HandshakeFault::Text { field: "name", max: NAME_BYTES_MAX }));
    }
    // The same message from a side that does not check: overwrite the name on its way.
    let length = open("abcd").encode(1, &mut buffer).expect("a fair name");
    for bad in [b"a\nbc", b"\xff\xfe\xfd\xfc", b"abc\0", b"\xc3\xa9\xc3a"] {
        buffer[length - 4..length].copy_from_slice(bad);
        let fault = Request::parse(&buffer[..length]);
        assert_eq!(fault, Err(HandshakeFault::Text { field: "name", max: NAME_BYTES_MAX }));
    }
    assert!(Request::parse(&[0; MESSAGE_BYTES_MAX + 1]).is_err());
    assert_eq!(open("abcd").encode(1, &mut [0; 8]), Err(HandshakeFault::Buffer(8)));
}

#[test]
fn other_versions_and_other_protocols_are_told_apart() {
    let hello = Hello { features: 0, arena_bytes: 1, entries: 1, queues: 1, weight: 0, class: 0 };
    let mut message = encoded(|into| Request::Hello(hello).encode(1, into));
    // A later version may be longer; its number is what matters.
    message[16] = 9;
    message.extend_from_slice(&[1; 40]);
    assert_eq!(Request::parse(&message), Err(HandshakeFault::Version(9)));
    message[8] ^= 1;
    assert_eq!(Request::parse(&message), Err(HandshakeFault::Magic));
    let long = Reply::Refused { status: Status::Denied, message: "é\n".repeat(1000) };
    let message = encoded(|into| long.encode(1, into));
    let Ok((1, Reply::Refused { message, .. })) = Reply::parse(&message) else {
        panic!("a refusal gets through, whatever its text");
    };
    assert_eq!(message, "é\\n".repeat(TEXT_BYTES_MAX / 4));
}

#[test]
fn costs_are_no_surer_than_certain() {
    let sure = PathCosts { confidence_ppm: PathCosts::CERTAIN_PPM, ..PathCosts::UNKNOWN };
    let surer = PathCosts { confidence_ppm: PathCosts::CERTAIN_PPM + 1, ..sure };
    let fault = Err(HandshakeFault::Field("confidence"));
    assert_eq!(Reply::PathCosts(surer).encode(1, &mut [0; MESSAGE_BYTES_MAX]), fault);
    let mut message = encoded(|into| Reply::PathCosts(sure).encode(1, into));
    // The last field but the reserved one.
    message[32] += 1;
    assert_eq!(Reply::parse(&message).map(drop), fault.map(drop));
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a socket pair")
}

/// Whether nobody has the pipe's other end open any more.
fn is_orphan(reader: &OwnedFd) -> bool {
    rustix::io::ioctl_fionbio(reader, true).expect("a pipe can be non-blocking");
    rustix::io::read(reader, &mut [0; 1]) == Ok(0)
}

/// Send without the sender's own checks.
fn send_raw(socket: &OwnedFd, message: &[u8], passed: &[BorrowedFd<'_>]) {
    let mut space =
        [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_RECEIVED_MAX))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(passed)));
    let parts = [std::io::IoSlice::new(message)];
    let flags = rustix::net::SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &parts, &mut control, flags).expect("the message fits the socket");
}

#[test]
fn messages_arrive_whole_with_their_descriptors() {
    let (here, there) = socket_pair();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    for count in [0, 1, 2, FDS_PER_MESSAGE_MAX] {
        let passed = vec![writer.as_fd(); count];
        fds::send(&here, b"some message", &passed).expect("sends");
        let received = fds::receive(&there, &mut buffer).expect("receives");
        assert_eq!(&buffer[..received.length], b"some message");
        assert_eq!(received.fds.len(), count);
        for fd in &received.fds {
            let flags = rustix::io::fcntl_getfd(fd).expect("an open descriptor");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let request = Request::OpenFile { access: Access::READ, direct: true };
        assert_eq!(request.check_fds(&received.fds).is_ok(), count == 2);
    }
    assert!(fds::send(&here, b"x", &vec![writer.as_fd(); FDS_PER_MESSAGE_MAX + 1]).is_err());
    drop(writer);
    assert!(is_orphan(&reader), "dropping what was received closes it");
    drop(here);
    assert!(matches!(fds::receive(&there, &mut buffer), Err(ReceiveFault::Closed)));
    assert!(fds::send(&there, b"x", &[]).is_err(), "an error, not a signal");
    let (here, there) = socket_pair();
    fds::send(&here, b"unread", &[]).expect("sends");
    drop(there);
    assert!(matches!(fds::receive(&here, &mut buffer), Err(ReceiveFault::Closed)));
}

#[test]
fn descriptors_of_faulty_messages_are_closed() {
    let (here, there) = socket_pair();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    send_raw(&here, b"x", &[writer.as_fd(); FDS_PER_MESSAGE_MAX + 5]);
    assert!(matches!(fds::receive(&there, &mut buffer), Err(ReceiveFault::TooManyFds)));
    send_raw(&here, b"x", &[writer.as_fd(); FDS_RECEIVED_MAX]);
    let mut all = Vec::new();
    let received = fds::receive_into(&there, &mut buffer, &mut all);
    assert!(matches!(received, Err(ReceiveFault::TooManyFds)));
    assert_eq!(all.len(), FDS_RECEIVED_MAX, "none is closed by the kernel");
    drop(all);
    send_raw(&here, &[0; MESSAGE_BYTES_MAX + 1], &[writer.as_fd(); 3]);
    assert!(matches!(fds::receive(&there, &mut buffer), Err(ReceiveFault::TooLong)));
    send_raw(&here, b"", &[writer.as_fd(); 3]);
    assert!(matches!(fds::receive(&there, &mut buffer), Err(ReceiveFault::Closed)));
    drop(writer);
    assert!(is_orphan(&reader), "a descriptor of a refused message stayed open");
    // And the connection is still good for honest messages.
    fds::send(&here, b"fine", &[]).expect("sends");
    assert_eq!(fds::receive(&there, &mut buffer).expect("receives").length, 4);
}
