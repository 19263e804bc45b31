//! The messages as bytes: each message's fields, in the order in which they lie there.

use core::mem::size_of;
use std::borrow::Cow;

use piped_core::access::{Access, Creation};
use piped_core::status::Status;
use piped_text::{is_name, shown};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::fields::{MAGIC, Reader, Writer, access, bits, checked, checked_bytes, flag, zero};
use super::kind;
use super::{
    AUDIENCE_MAX, Audience, HandshakeFault, Hello, MESSAGE_BYTES_MAX, NAME_BYTES_MAX,
    NODES_BYTES_MAX, PATH_BYTES_MAX, PathCosts, Reply, Request, TEXT_BYTES_MAX, WELCOME_QUEUES_MAX,
    WELCOME_SEGMENTS_MAX, Welcome,
};
use crate::layout::{CLASS_BULK, VERSION};
use crate::tenure::LentKind;

/// Declares the wire structs, without padding (zerocopy refuses it), all of them plain numbers.
macro_rules! wire {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            struct $name { $($field: $type),* }
        )*
    };
}

wire! {
    Header { kind: u16, reserved: u16, sequence: u32 }
    // Magic and version stay in front in every version, so that each can name the other's.
    HelloBody {
        magic: u64, version: u32, entries: u32, features: u64, arena_bytes: u64,
        queues: u32, weight: u32, class: u8, reserved: [u8; 7],
    }
    NumberBody { number: u64 }
    LendBody { bytes: u64, loose: u8, reserved: [u8; 7] }
    OpenFileBody { access: u8, direct: u8 }
    OpenExportBody {
        peer_bytes: u16, export_bytes: u16, path_bytes: u16, mode: u16, access: u8, create: u8,
        parents: u8, reserved: u8,
    }
    ExportRegionBody {
        offset: u64, length: u64, segment: u32, name_bytes: u16, access: u8, reserved: u8,
        users: u16, peers: u16, more: u32,
    }
    UserBody { user: u32 }
    PeerBody { name_bytes: u16 }
    OfferChannelBody { name_bytes: u16 }
    OpenChannelBody { peer_bytes: u16, name_bytes: u16 }
    OpenRegionBody { peer_bytes: u16, name_bytes: u16, access: u8, reserved: u8 }
    PathCostsBody { handle: u32, write: u8, reserved: [u8; 3] }
    WelcomeBody {
        magic: u64, version: u32, session: u32, features: u64, segments: u32, queues: u32,
        client_spin_ns: u64, deadline_default_ns: u64, shard_cpu: i32, reserved: u32,
    }
    OpenedBody { length: u64, handle: u32, direct_alignment: u32 }
    RefusedBody { status: u16, message_bytes: u16 }
    CostsBody {
        overhead_ns: u64, latency_ns: u64, mebibyte_ns: u64, confidence_ppm: u32, reserved: u32,
    }
}

pub(super) fn sequence(message: &[u8]) -> Option<u32> {
    Header::read_from_prefix(message).ok().map(|(header, _)| header.sequence)
}

pub(super) fn parse_request(message: &[u8]) -> Result<(u32, Request), HandshakeFault> {
    let mut reader = Reader::new(message)?;
    let header: Header = reader.fixed()?;
    zero("reserved", u64::from(header.reserved))?;
    let request = match header.kind {
        kind::HELLO => Request::Hello(parse_hello(&mut reader)?),
        kind::ADD_QUEUE => Request::AddQueue,
        kind::GROW_ARENA => Request::GrowArena { bytes: reader.fixed::<NumberBody>()?.number },
        kind::LEND => {
            let body: LendBody = reader.fixed()?;
            zero("reserved", u64::from(body.reserved != [0; 7]))?;
            let kind = if flag("loose", body.loose)? { LentKind::Loose } else { LentKind::Sealed };
            Request::Lend { bytes: body.bytes, kind }
        }
        kind::TAKE_BACK => Request::TakeBack { segment: number(&mut reader, "segment")? },
        kind::OPEN_FILE => {
            let body: OpenFileBody = reader.fixed()?;
            Request::OpenFile { access: access(body.access)?, direct: flag("direct", body.direct)? }
        }
        kind::OPEN_EXPORT => parse_open_export(&mut reader)?,
        kind::OPEN_DIRECTORY => parse_open_directory(&mut reader)?,
        kind::EXPORT_REGION => parse_export_region(&mut reader)?,
        kind::OPEN_REGION => {
            let body: OpenRegionBody = reader.fixed()?;
            zero("reserved", u64::from(body.reserved))?;
            Request::OpenRegion {
                peer: reader.text("peer", body.peer_bytes, NAME_BYTES_MAX)?,
                name: reader.text("name", body.name_bytes, NAME_BYTES_MAX)?,
                access: access(body.access)?,
            }
        }
        kind::OFFER_CHANNEL => {
            let body: OfferChannelBody = reader.fixed()?;
            Request::OfferChannel { name: reader.text("name", body.name_bytes, NAME_BYTES_MAX)? }
        }
        kind::OPEN_CHANNEL => {
            let body: OpenChannelBody = reader.fixed()?;
            Request::OpenChannel {
                peer: reader.text("peer", body.peer_bytes, NAME_BYTES_MAX)?,
                name: reader.text("name", body.name_bytes, NAME_BYTES_MAX)?,
            }
        }
        kind::CLOSE_HANDLE => {
            let number = reader.fixed::<NumberBody>()?.number;
            let handle = u32::try_from(number).map_err(|_| HandshakeFault::Field("handle"))?;
            Request::CloseHandle { handle }
        }
        kind::PATH_COSTS => {
            let body: PathCostsBody = reader.fixed()?;
            zero("reserved", u64::from(body.reserved != [0; 3]))?;
            Request::PathCosts { handle: body.handle, write: flag("write", body.write)? }
        }
        other => return Err(HandshakeFault::Kind(other)),
    };
    reader.finish()?;
    Ok((header.sequence, request))
}

fn parse_hello(reader: &mut Reader<'_>) -> Result<Hello, HandshakeFault> {
    reader.opening()?;
    let body: HelloBody = reader.fixed()?;
    zero("reserved", u64::from(body.reserved != [0; 7]))?;
    if body.class > CLASS_BULK {
        return Err(HandshakeFault::Field("class"));
    }
    Ok(Hello {
        features: body.features,
        arena_bytes: body.arena_bytes,
        entries: body.entries,
        queues: body.queues,
        weight: body.weight,
        class: body.class,
    })
}

fn parse_open_export(reader: &mut Reader<'_>) -> Result<Request, HandshakeFault> {
    let body: OpenExportBody = reader.fixed()?;
    zero("reserved", u64::from(body.reserved))?;
    let create = Creation::from_parts(body.create, body.mode, flag("parents", body.parents)?);
    Ok(Request::OpenExport {
        peer: reader.text("peer", body.peer_bytes, NODES_BYTES_MAX)?,
        export: reader.text("export", body.export_bytes, NAME_BYTES_MAX)?,
        path: reader.name("path", body.path_bytes, PATH_BYTES_MAX)?.to_owned(),
        access: access(body.access)?,
        create: create.ok_or(HandshakeFault::Field("create"))?,
    })
}

/// A directory is opened like a file that is not made.
fn parse_open_directory(reader: &mut Reader<'_>) -> Result<Request, HandshakeFault> {
    match parse_open_export(reader)? {
        Request::OpenExport { peer, export, path, access, create: Creation::No } => {
            Ok(Request::OpenDirectory { peer, export, path, access })
        }
        _ => Err(HandshakeFault::Field("create")),
    }
}

fn parse_export_region(reader: &mut Reader<'_>) -> Result<Request, HandshakeFault> {
    let body: ExportRegionBody = reader.fixed()?;
    zero("reserved", u64::from(body.reserved) + u64::from(body.more))?;
    let name = reader.text("name", body.name_bytes, NAME_BYTES_MAX)?;
    let users = list("users", body.users, || Ok(reader.fixed::<UserBody>()?.user))?;
    let peers = list("peers", body.peers, || {
        let name_bytes = reader.fixed::<PeerBody>()?.name_bytes;
        reader.text("peer", name_bytes, NAME_BYTES_MAX)
    })?;
    Ok(Request::ExportRegion {
        name,
        segment: body.segment,
        offset: body.offset,
        length: body.length,
        access: access(body.access)?,
        audience: Audience { users, peers },
    })
}

/// The count of a list that there is not.
const NO_LIST: u16 = u16::MAX;

fn list<T>(
    field: &'static str,
    count: u16,
    mut next: impl FnMut() -> Result<T, HandshakeFault>,
) -> Result<Option<Vec<T>>, HandshakeFault> {
    match count {
        NO_LIST => Ok(None),
        _ if usize::from(count) > AUDIENCE_MAX => Err(HandshakeFault::Field(field)),
        _ => (0..count).map(|_| next()).collect::<Result<_, _>>().map(Some),
    }
}

fn count<T>(field: &'static str, list: Option<&Vec<T>>) -> Result<u16, HandshakeFault> {
    match list.map(Vec::len) {
        None => Ok(NO_LIST),
        Some(count @ ..=AUDIENCE_MAX) => Ok(count as u16),
        Some(_) => Err(HandshakeFault::Field(field)),
    }
}

pub(super) fn encode_request(
    request: &Request,
    sequence: u32,
    into: &mut [u8],
) -> Result<usize, HandshakeFault> {
    let mut writer = Writer::new(into);
    let kind = match request {
        Request::Hello(_) => kind::HELLO,
        Request::AddQueue => kind::ADD_QUEUE,
        Request::GrowArena { .. } => kind::GROW_ARENA,
        Request::Lend { .. } => kind::LEND,
        Request::TakeBack { .. } => kind::TAKE_BACK,
        Request::OpenFile { .. } => kind::OPEN_FILE,
        Request::OpenExport { .. } => kind::OPEN_EXPORT,
        Request::OpenDirectory { .. } => kind::OPEN_DIRECTORY,
        Request::ExportRegion { .. } => kind::EXPORT_REGION,
        Request::OpenRegion { .. } => kind::OPEN_REGION,
        Request::CloseHandle { .. } => kind::CLOSE_HANDLE,
        Request::OfferChannel { .. } => kind::OFFER_CHANNEL,
        Request::OpenChannel { .. } => kind::OPEN_CHANNEL,
        Request::PathCosts { .. } => kind::PATH_COSTS,
    };
    writer.fixed(Header { kind, reserved: 0, sequence })?;
    match request {
        Request::Hello(hello) => writer.fixed(hello_body(hello))?,
        Request::AddQueue => {}
        Request::GrowArena { bytes } => writer.fixed(NumberBody { number: *bytes })?,
        Request::Lend { bytes, kind } => {
            let loose = u8::from(*kind == LentKind::Loose);
            writer.fixed(LendBody { bytes: *bytes, loose, reserved: [0; 7] })?;
        }
        Request::TakeBack { segment } => {
            writer.fixed(NumberBody { number: u64::from(*segment) })?;
        }
        Request::CloseHandle { handle } => {
            writer.fixed(NumberBody { number: u64::from(*handle) })?;
        }
        Request::PathCosts { handle, write } => {
            let write = u8::from(*write);
            writer.fixed(PathCostsBody { handle: *handle, write, reserved: [0; 3] })?;
        }
        Request::OfferChannel { name } => {
            let name_bytes = checked("name", name, NAME_BYTES_MAX)?;
            writer.fixed(OfferChannelBody { name_bytes })?;
            writer.bytes(name.as_bytes())?;
        }
        Request::OpenChannel { peer, name } => {
            writer.fixed(OpenChannelBody {
                peer_bytes: checked("peer", peer, NAME_BYTES_MAX)?,
                name_bytes: checked("name", name, NAME_BYTES_MAX)?,
            })?;
            writer.texts([peer, name])?;
        }
        Request::OpenFile { access, direct } => {
            writer.fixed(OpenFileBody { access: bits(*access), direct: u8::from(*direct) })?;
        }
        Request::OpenExport { peer, export, path, access, create } => {
            write_open(&mut writer, [peer, export], path, *access, *create)?;
        }
        Request::OpenDirectory { peer, export, path, access } => {
            write_open(&mut writer, [peer, export], path, *access, Creation::No)?;
        }
        Request::ExportRegion { name, segment, offset, length, access, audience } => {
            writer.fixed(ExportRegionBody {
                offset: *offset,
                length: *length,
                segment: *segment,
                name_bytes: checked("name", name, NAME_BYTES_MAX)?,
                access: bits(*access),
                reserved: 0,
                users: count("users", audience.users.as_ref())?,
                peers: count("peers", audience.peers.as_ref())?,
                more: 0,
            })?;
            writer.bytes(name.as_bytes())?;
            for &user in audience.users.iter().flatten() {
                writer.fixed(UserBody { user })?;
            }
            for peer in audience.peers.iter().flatten() {
                let name_bytes = checked("peer", peer, NAME_BYTES_MAX)?;
                writer.fixed(PeerBody { name_bytes })?;
                writer.bytes(peer.as_bytes())?;
            }
        }
        Request::OpenRegion { peer, name, access } => {
            writer.fixed(OpenRegionBody {
                peer_bytes: checked("peer", peer, NAME_BYTES_MAX)?,
                name_bytes: checked("name", name, NAME_BYTES_MAX)?,
                access: bits(*access),
                reserved: 0,
            })?;
            writer.texts([peer, name])?;
        }
    }
    Ok(writer.at)
}

fn write_open(
    writer: &mut Writer<'_>,
    [peer, export]: [&str; 2],
    path: &[u8],
    access: Access,
    create: Creation,
) -> Result<(), HandshakeFault> {
    let (create, mode, parents) = create.parts();
    writer.fixed(OpenExportBody {
        peer_bytes: checked("peer", peer, NODES_BYTES_MAX)?,
        export_bytes: checked("export", export, NAME_BYTES_MAX)?,
        path_bytes: checked_bytes("path", path, PATH_BYTES_MAX)?,
        mode,
        access: bits(access),
        create,
        parents: parents.into(),
        reserved: 0,
    })?;
    writer.texts([peer, export])?;
    writer.bytes(path)
}

fn hello_body(hello: &Hello) -> HelloBody {
    HelloBody {
        magic: MAGIC,
        version: VERSION,
        entries: hello.entries,
        features: hello.features,
        arena_bytes: hello.arena_bytes,
        queues: hello.queues,
        weight: hello.weight,
        class: hello.class,
        reserved: [0; 7],
    }
}

pub(super) fn parse_reply(message: &[u8]) -> Result<(u32, Reply), HandshakeFault> {
    let mut reader = Reader::new(message)?;
    let header: Header = reader.fixed()?;
    zero("reserved", u64::from(header.reserved))?;
    let reply = match header.kind {
        kind::WELCOME => Reply::Welcome(parse_welcome(&mut reader)?),
        kind::QUEUE => Reply::Queue { queue: number(&mut reader, "queue")? },
        kind::SEGMENT => Reply::Segment { segment: number(&mut reader, "segment")? },
        kind::LENT => Reply::Lent { segment: number(&mut reader, "segment")? },
        kind::OPENED => {
            let OpenedBody { length, handle, direct_alignment } = reader.fixed()?;
            Reply::Opened { handle, direct_alignment, length }
        }
        kind::DONE => Reply::Done,
        kind::REFUSED => {
            let body: RefusedBody = reader.fixed()?;
            Reply::Refused {
                status: Status::from_u16(body.status).ok_or(HandshakeFault::Field("status"))?,
                message: reader.text("message", body.message_bytes, TEXT_BYTES_MAX)?,
            }
        }
        kind::COSTS => Reply::PathCosts(parse_costs(&mut reader)?),
        other => return Err(HandshakeFault::Kind(other)),
    };
    reader.finish()?;
    Ok((header.sequence, reply))
}

fn parse_welcome(reader: &mut Reader<'_>) -> Result<Welcome, HandshakeFault> {
    reader.opening()?;
    let body: WelcomeBody = reader.fixed()?;
    zero("reserved", u64::from(body.reserved))?;
    let welcome = Welcome {
        features: body.features,
        session: body.session,
        segments: body.segments,
        queues: body.queues,
        shard_cpu: body.shard_cpu,
        client_spin_ns: body.client_spin_ns,
        deadline_default_ns: body.deadline_default_ns,
    };
    check_welcome(&welcome)?;
    Ok(welcome)
}

fn parse_costs(reader: &mut Reader<'_>) -> Result<PathCosts, HandshakeFault> {
    let body: CostsBody = reader.fixed()?;
    zero("reserved", u64::from(body.reserved))?;
    let costs = PathCosts {
        overhead_ns: body.overhead_ns,
        latency_ns: body.latency_ns,
        mebibyte_ns: body.mebibyte_ns,
        confidence_ppm: body.confidence_ppm,
    };
    check_costs(&costs)?;
    Ok(costs)
}

fn check_costs(costs: &PathCosts) -> Result<(), HandshakeFault> {
    if costs.confidence_ppm > PathCosts::CERTAIN_PPM {
        return Err(HandshakeFault::Field("confidence"));
    }
    Ok(())
}

fn check_welcome(welcome: &Welcome) -> Result<(), HandshakeFault> {
    if welcome.segments > WELCOME_SEGMENTS_MAX {
        return Err(HandshakeFault::Field("segments"));
    }
    if welcome.queues > WELCOME_QUEUES_MAX {
        return Err(HandshakeFault::Field("queues"));
    }
    Ok(())
}

fn number(reader: &mut Reader<'_>, field: &'static str) -> Result<u32, HandshakeFault> {
    let number = reader.fixed::<NumberBody>()?.number;
    u32::try_from(number).map_err(|_| HandshakeFault::Field(field))
}

pub(super) fn encode_reply(
    reply: &Reply,
    sequence: u32,
    into: &mut [u8],
) -> Result<usize, HandshakeFault> {
    let mut writer = Writer::new(into);
    let kind = match reply {
        Reply::Welcome(_) => kind::WELCOME,
        Reply::Queue { .. } => kind::QUEUE,
        Reply::Segment { .. } => kind::SEGMENT,
        Reply::Lent { .. } => kind::LENT,
        Reply::Opened { .. } => kind::OPENED,
        Reply::Done => kind::DONE,
        Reply::Refused { .. } => kind::REFUSED,
        Reply::PathCosts(_) => kind::COSTS,
    };
    writer.fixed(Header { kind, reserved: 0, sequence })?;
    match reply {
        Reply::Welcome(welcome) => {
            check_welcome(welcome)?;
            writer.fixed(WelcomeBody {
                magic: MAGIC,
                version: VERSION,
                session: welcome.session,
                features: welcome.features,
                segments: welcome.segments,
                queues: welcome.queues,
                client_spin_ns: welcome.client_spin_ns,
                deadline_default_ns: welcome.deadline_default_ns,
                shard_cpu: welcome.shard_cpu,
                reserved: 0,
            })?;
        }
        Reply::Queue { queue } => writer.fixed(NumberBody { number: u64::from(*queue) })?,
        Reply::Segment { segment } | Reply::Lent { segment } => {
            writer.fixed(NumberBody { number: u64::from(*segment) })?;
        }
        Reply::Opened { handle, direct_alignment, length } => writer.fixed(OpenedBody {
            length: *length,
            handle: *handle,
            direct_alignment: *direct_alignment,
        })?,
        Reply::Done => {}
        Reply::PathCosts(costs) => {
            check_costs(costs)?;
            writer.fixed(CostsBody {
                overhead_ns: costs.overhead_ns,
                latency_ns: costs.latency_ns,
                mebibyte_ns: costs.mebibyte_ns,
                confidence_ppm: costs.confidence_ppm,
                reserved: 0,
            })?;
        }
        Reply::Refused { status, message } => {
            // A refusal must get through, so its text is made to fit instead of being refused.
            let text = match is_name(message.as_bytes()) {
                true => Cow::Borrowed(message.as_str()),
                false => shown(message),
            };
            let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
            let message_bytes = checked("message", text, TEXT_BYTES_MAX)?;
            writer.fixed(RefusedBody { status: *status as u16, message_bytes })?;
            writer.bytes(text.as_bytes())?;
        }
    }
    Ok(writer.at)
}

// The longest message of each direction fits.
const _: () = {
    let names = NODES_BYTES_MAX + NAME_BYTES_MAX + PATH_BYTES_MAX;
    assert!(size_of::<Header>() + size_of::<OpenExportBody>() + names <= MESSAGE_BYTES_MAX);
    let listed = AUDIENCE_MAX * (size_of::<UserBody>() + size_of::<PeerBody>() + NAME_BYTES_MAX);
    let region = size_of::<Header>() + size_of::<ExportRegionBody>() + NAME_BYTES_MAX;
    assert!(region + listed <= MESSAGE_BYTES_MAX);
    assert!(size_of::<Header>() + size_of::<RefusedBody>() + TEXT_BYTES_MAX <= MESSAGE_BYTES_MAX);
};
