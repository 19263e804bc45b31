//! The client's control messages: what is understood has one encoding, what is granted keeps to the
//! limits.
//!
//! The first byte says which direction; the rest is the message.

use piped::client::wanted::{self, Wanted};
use piped_config::Client;
use piped_control::parties::{Asker, Credentials};
use piped_control::regions::{RegionSource, Regions};
use piped_core::access::{Access, Creation};
use piped_core::ids::SessionId;
use piped_core::status::Status;
use piped_ring::handshake::{
    AUDIENCE_MAX, Audience, HandshakeFault, Hello, MESSAGE_BYTES_MAX, NAME_BYTES_MAX,
    PATH_BYTES_MAX, PathCosts, Reply, Request, TEXT_BYTES_MAX, WELCOME_QUEUES_MAX,
    WELCOME_SEGMENTS_MAX, Welcome, fds, sequence,
};
use piped_ring::{CLASS_BULK, QueueLayout};
use piped_text::is_name;
use piped_world::controls::region;

use crate::Seed;
use crate::input::Input;

/// Checks the handshake door with an input.
pub fn check(input: &[u8]) {
    let mut input = Input::new(input);
    let to_daemon = input.byte().is_multiple_of(2);
    let message = input.rest();
    if to_daemon {
        check_message(message, Request::parse, Request::encode, check_request);
    } else {
        check_message(message, Reply::parse, Reply::encode, check_reply);
    }
}

type Parse<T> = fn(&[u8]) -> Result<(u32, T), HandshakeFault>;
type Encode<T> = fn(&T, u32, &mut [u8]) -> Result<usize, HandshakeFault>;

/// Both directions keep to these.
fn check_message<T: PartialEq + core::fmt::Debug>(
    message: &[u8],
    parse: Parse<T>,
    encode: Encode<T>,
    check: fn(&T),
) {
    let (number, value) = match parse(message) {
        Ok(parsed) => parsed,
        Err(fault) => return check_fault(message, &fault),
    };
    assert_eq!(sequence(message), Some(number));
    let mut buffer = [0xa5; MESSAGE_BYTES_MAX];
    let length = encode(&value, number, &mut buffer).expect("what was parsed can be written");
    assert_eq!(&buffer[..length], message, "a message has one encoding");
    assert!(buffer[length..].iter().all(|byte| *byte == 0xa5), "written behind its end");
    let short = encode(&value, number, &mut buffer[..length - 1]);
    assert_eq!(short, Err(HandshakeFault::Buffer(length - 1)));
    // A byte less and a byte more are other messages, and there is none that begins with this one.
    assert!(parse(&message[..length - 1]).is_err(), "{value:?} with its last byte missing");
    if length < MESSAGE_BYTES_MAX {
        buffer[length] = 0;
        assert!(parse(&buffer[..=length]).is_err(), "{value:?} with a byte behind it");
    }
    // No bit is without a meaning.
    for bit in 0..message.len().min(FLIPPED_BYTES_MAX) * 8 {
        let mut other = message.to_vec();
        other[bit / 8] ^= 1 << (bit % 8);
        let same = parse(&other).is_ok_and(|(n, v)| n == number && v == value);
        assert!(!same, "{value:?} does not depend on bit {bit}");
    }
    check(&value);
}

/// More than any message has in front of its strings.
const FLIPPED_BYTES_MAX: usize = 64;

/// A fault says what is wrong and is no lie.
fn check_fault(message: &[u8], fault: &HandshakeFault) {
    assert!(!fault.to_string().is_empty());
    match fault {
        HandshakeFault::Length { expected, actual } => {
            assert_eq!(*actual, message.len());
            assert_ne!(expected, actual);
        }
        HandshakeFault::Buffer(_) | HandshakeFault::FdCount { .. } => {
            panic!("not a fault of the bytes: {fault}")
        }
        HandshakeFault::Magic
        | HandshakeFault::Version(_)
        | HandshakeFault::Kind(_)
        | HandshakeFault::Field(_)
        | HandshakeFault::Text { .. } => {}
    }
}

fn check_request(request: &Request) {
    assert!(request.fd_count() <= 2);
    match request {
        Request::Hello(hello) => check_hello(hello),
        Request::GrowArena { bytes } => check_growth(*bytes),
        Request::Lend { .. } => assert_eq!(request.fd_count(), 1),
        Request::OpenExport { peer, export, path, .. }
        | Request::OpenDirectory { peer, export, path, .. } => {
            check_text(peer, NAME_BYTES_MAX);
            check_text(export, NAME_BYTES_MAX);
            assert!(path.len() <= PATH_BYTES_MAX && is_name(path), "{path:?}");
        }
        Request::ExportRegion { name, segment: _, offset, length, access, audience } => {
            check_text(name, NAME_BYTES_MAX);
            let Audience { users, peers } = audience;
            assert!(users.as_ref().is_none_or(|users| users.len() <= AUDIENCE_MAX));
            assert!(peers.as_ref().is_none_or(|peers| peers.len() <= AUDIENCE_MAX));
            peers.iter().flatten().for_each(|peer| check_text(peer, NAME_BYTES_MAX));
            check_region(name, *offset, *length, *access);
        }
        Request::OfferChannel { name } => check_text(name, NAME_BYTES_MAX),
        Request::OpenRegion { peer, name, .. } | Request::OpenChannel { peer, name } => {
            check_text(peer, NAME_BYTES_MAX);
            check_text(name, NAME_BYTES_MAX);
        }
        Request::AddQueue
        | Request::TakeBack { .. }
        | Request::OpenFile { .. }
        | Request::PathCosts { .. }
        | Request::CloseHandle { .. } => {}
    }
}

fn check_reply(reply: &Reply) {
    assert!(reply.fd_count() <= fds::FDS_PER_MESSAGE_MAX);
    match reply {
        Reply::Welcome(welcome) => {
            assert!(welcome.segments <= WELCOME_SEGMENTS_MAX);
            assert!(welcome.queues <= WELCOME_QUEUES_MAX);
        }
        Reply::Refused { message, .. } => check_text(message, TEXT_BYTES_MAX),
        Reply::PathCosts(costs) => assert!(costs.confidence_ppm <= PathCosts::CERTAIN_PPM),
        Reply::Queue { .. }
        | Reply::Segment { .. }
        | Reply::Lent { .. }
        | Reply::Opened { .. }
        | Reply::Done => {}
    }
}

/// Such text can go to a log and a terminal.
fn check_text(text: &str, max: usize) {
    assert!(text.len() <= max && is_name(text.as_bytes()), "{text:?}");
}

/// The daemon grants a Hello memory that it can lay out, within its limits.
fn check_hello(hello: &Hello) {
    let limits = Client::default();
    match wanted::check(hello, &limits) {
        Ok(Wanted { arena_bytes, entries, queues, class: _, weight }) => {
            assert!(weight > 0, "{hello:?} got no share");
            assert!(QueueLayout::new(entries).is_some() && entries <= limits.entries_max);
            assert!((1..=limits.queues_max.min(WELCOME_QUEUES_MAX)).contains(&queues));
            assert!(arena_bytes >= hello.arena_bytes && arena_bytes <= limits.arena_bytes_max.0);
            assert!(arena_bytes.is_multiple_of(4096));
            assert!(hello.class <= CLASS_BULK);
        }
        Err(fault) => assert!(fault.text.contains("client.") || fault.text.contains("ask for")),
    }
}

/// An arena does not grow beyond its limit, however full it is.
fn check_growth(bytes: u64) {
    let limits = Client::default();
    let max = limits.arena_bytes_max.0;
    for used in [0, 4096, max - 4096, max, u64::MAX] {
        if let Ok(more) = wanted::check_arena(bytes, used, &limits) {
            assert!(more >= bytes && more.is_multiple_of(4096), "{bytes} of {used}");
            assert!(used.checked_add(more).is_some_and(|all| all <= max.max(used)));
        }
    }
}

/// An offered region lies inside its segment, and others get the access it is offered for.
fn check_region(name: &str, offset: u64, length: u64, access: Access) {
    let source = RegionSource { offset, length, ..region(SessionId(1), 0..0, access) };
    let mut regions = Regions::default();
    let Ok(offered) = regions.offer(name, source.clone(), SEGMENT_BYTES) else { return };
    assert!(length > 0 && offset.checked_add(length).is_some_and(|end| end <= SEGMENT_BYTES));
    assert!(regions.has(offered.region));
    assert!(regions.offer(name, source, SEGMENT_BYTES).is_err(), "one name, one region");
    for (read, write) in [(true, false), (false, true), (true, true), (false, false)] {
        let found = regions.find(
            name,
            Access { read, write, ..Access::NONE },
            Asker::User(&Credentials::of(7, 7)),
        );
        let may = (read || write) && (access.read || !read) && (access.write || !write);
        assert_eq!(found.is_ok(), may, "read {read}, write {write} of {access:?}");
    }
    assert_eq!(regions.withdraw_all(SessionId(1)), [offered.region]);
    assert!(!regions.has(offered.region));
}

/// Bytes of a client's segment.
const SEGMENT_BYTES: u64 = 64 * 1024;

/// Every kind of message, as both sides write it.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let hello =
        Hello { features: 0, arena_bytes: 1 << 20, entries: 64, queues: 2, weight: 0, class: 1 };
    let (peer, name) = ("beta".to_owned(), "halo".to_owned());
    let access = Access::READ_WRITE;
    let requests = [
        ("hello", Request::Hello(hello)),
        ("add-queue", Request::AddQueue),
        ("grow-arena", Request::GrowArena { bytes: 8192 }),
        ("lend", Request::Lend { bytes: 8192, kind: piped_ring::LentKind::Loose }),
        ("take-back", Request::TakeBack { segment: 1 }),
        ("open-file", Request::OpenFile { access, direct: true }),
        (
            "open-export",
            Request::OpenExport {
                peer: peer.clone(),
                export: "data".to_owned(),
                path: b"a/\xc3\xbc/\xff\xfe.bin".to_vec(),
                access: Access::READ,
                create: Creation::No,
            },
        ),
        (
            "open-directory",
            Request::OpenDirectory {
                peer: peer.clone(),
                export: "data".to_owned(),
                path: Vec::new(),
                access: Access { names: true, ..Access::READ },
            },
        ),
        (
            "export-region",
            Request::ExportRegion {
                name: name.clone(),
                segment: 0,
                offset: 4096,
                length: 8192,
                access,
                audience: Audience { users: Some(vec![0, 1000]), peers: Some(vec![peer.clone()]) },
            },
        ),
        ("offer-channel", Request::OfferChannel { name: name.clone() }),
        ("open-channel", Request::OpenChannel { peer: peer.clone(), name: name.clone() }),
        ("open-region", Request::OpenRegion { peer, name, access: Access::WRITE }),
        ("close-handle", Request::CloseHandle { handle: 7 }),
        ("path-costs", Request::PathCosts { handle: 7, write: true }),
    ];
    let welcome = Welcome {
        features: 0,
        session: 3,
        segments: 1,
        queues: 2,
        shard_cpu: -1,
        client_spin_ns: 50_000,
        deadline_default_ns: 30_000_000_000,
    };
    let costs = PathCosts {
        overhead_ns: 5000,
        latency_ns: 120_000,
        mebibyte_ns: 8_388_608,
        confidence_ppm: 900_000,
    };
    let refused = Reply::Refused { status: Status::Denied, message: "no: ask root".to_owned() };
    let replies = [
        ("welcome", Reply::Welcome(welcome)),
        ("queue", Reply::Queue { queue: 1 }),
        ("segment", Reply::Segment { segment: 1 }),
        ("lent", Reply::Lent { segment: 2 }),
        ("opened", Reply::Opened { handle: 9, direct_alignment: 512, length: 1 << 30 }),
        ("done", Reply::Done),
        ("costs", Reply::PathCosts(costs)),
        ("refused", refused),
    ];
    let requests =
        requests.iter().map(|(name, value)| seed(name, 0, |into| value.encode(77, into)));
    let replies = replies.iter().map(|(name, value)| seed(name, 1, |into| value.encode(77, into)));
    requests.chain(replies).collect()
}

fn seed(
    name: &str,
    direction: u8,
    encode: impl Fn(&mut [u8]) -> Result<usize, HandshakeFault>,
) -> Seed {
    let mut message = [0; MESSAGE_BYTES_MAX];
    let length = encode(&mut message).expect("fits");
    (name.to_owned(), [&[direction], &message[..length]].concat())
}
