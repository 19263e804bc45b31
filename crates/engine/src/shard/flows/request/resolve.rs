//! What a client's verb becomes: checked against handles and memory, and its work.

use piped_report::tally::Operation;

use piped_core::access::{Access, OpenKind};
use piped_core::call::{ANSWER_BYTES_MAX, CALL_BYTES_MAX, HEAD_BYTES};
use piped_core::ids::{HandleId, SessionId};
use piped_core::limits;
use piped_core::pieces::{BufferRow, Row};
use piped_core::request::{self, ArenaBuffer, Class, Table, Update, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;

use crate::command::{ChannelTarget, Target};
use crate::shard::Shard;
use crate::shard::arena::Memory;
use crate::shard::clients::Place;
use crate::shard::driver::{Direction, On};
use crate::shard::notifications::Wait;
use crate::shard::requests::{
    Body, Buffers, CallBody, CopyBody, FileBody, MemoryBody, Once, Outgoing, ReceiveBody,
    RemoteBody, RemoteOp, SendBody, VectorBody, What,
};

/// What a verb resolves to: what it is, the handles it uses, its length and its work.
type Resolved = (Operation, [Option<HandleId>; 2], u64, Body);

impl Shard {
    /// Checks a verb against the handles and the memory of its session.
    pub(in crate::shard) fn resolve(
        &mut self,
        session: SessionId,
        (verb, class): (Verb, Class),
        no_wait: bool,
        now: Nanos,
    ) -> Result<Resolved, Status> {
        match verb {
            Verb::Read { handle, offset, buffer, wanted } => {
                let memory = self.clients.memory_of(session, buffer)?;
                let (place, opened) = self.handles.place_of_bytes(session, handle, Access::READ)?;
                if wanted >= buffer.length {
                    return Err(Status::Invalid);
                }
                if let Place::Replicas(replicas) = place {
                    let (of, range) = ((session, replicas), (offset, buffer.length));
                    check_end(offset, buffer.length)?;
                    self.may_start()?;
                    let body = self.by_replicas(of, range, (class, memory), now)?;
                    return Ok((Operation::Read, [Some(handle), None], buffer.length, body));
                }
                let mut body =
                    body_for(place, Direction::Read, false, offset, buffer.length, memory)?;
                if wanted > 0 {
                    let range = (offset, buffer.length);
                    self.may_start()?;
                    let vector = VectorBody::wanted_first(place, range, memory, wanted);
                    body = Body::Vector(self.bodies.keep_vector(vector));
                }
                let kind = match opened {
                    OpenKind::Region => Operation::Get,
                    _ => Operation::Read,
                };
                Ok((kind, [Some(handle), None], buffer.length, body))
            }
            Verb::Write { handle, offset, buffer, durable, notify } => {
                let memory = self.clients.memory_of(session, buffer)?;
                let (place, opened) =
                    self.handles.place_of_bytes(session, handle, Access::WRITE)?;
                let mut body =
                    body_for(place, Direction::Write, durable, offset, buffer.length, memory)?;
                let kind = match opened {
                    OpenKind::Region => Operation::Put,
                    _ if notify.is_some() => return Err(Status::Invalid),
                    _ => Operation::Write,
                };
                match (&mut body, notify) {
                    (Body::Memory(body), notify) => *body = body.notifying(notify),
                    (Body::Remote(body), Some(id)) => {
                        self.may_start()?;
                        let once = Once::new(What::Notify { id });
                        body.once = Some(self.bodies.keep_once(once));
                    }
                    _ => {}
                }
                Ok((kind, [Some(handle), None], buffer.length, body))
            }
            Verb::Vector { handle, reads, buffers, table, bytes } => {
                let wanted = if reads { Access::READ } else { Access::WRITE };
                let (place, opened) = self.handles.place_of_bytes(session, handle, wanted)?;
                if !(1..=limits::REQUEST_BYTES_MAX).contains(&bytes)
                    || !(1..=limits::TABLE_ROWS_MAX).contains(&table.rows)
                {
                    return Err(Status::Invalid);
                }
                let at = self.table_at(session, table, Row::BYTES)?;
                let buffers = match buffers {
                    request::Buffers::One(buffer) => {
                        Buffers::One(self.clients.memory_of(session, buffer)?, buffer.length)
                    }
                    request::Buffers::Several(list) => {
                        if !(1..=limits::BUFFERS_MAX).contains(&list.rows) {
                            return Err(Status::Invalid);
                        }
                        let list_at = self.table_at(session, list, BufferRow::BYTES)?;
                        Buffers::Listed(list_at, list.rows)
                    }
                };
                let direction = if reads { Direction::Read } else { Direction::Write };
                let is_region = opened == OpenKind::Region;
                self.may_start()?;
                let body = Body::Vector(self.bodies.keep_vector(VectorBody::new(
                    (place, is_region),
                    direction,
                    buffers,
                    (at.segment, at.offset, table.rows),
                )));
                let kind = Self::vector_kind(direction, is_region);
                Ok((kind, [Some(handle), None], bytes, body))
            }
            Verb::Update { handle, offset, update } => {
                // A peer would take another one for a fault of this node's.
                if !offset.is_multiple_of(Update::BYTES) || offset > u64::MAX - Update::BYTES {
                    return Err(Status::Invalid);
                }
                let what = What::Word { offset, update };
                let body = match self.handles.place_of_region(session, handle, ATOMIC)? {
                    Place::Local(Target::Region(region)) => Body::Update { region, offset, update },
                    place => self.once_body(place, what)?,
                };
                Ok((Operation::Atomic, [Some(handle), None], 0, body))
            }
            Verb::Notify { handle, id } => {
                let body = match self.handles.place_of_region(session, handle, Access::WRITE)? {
                    Place::Local(Target::Region(region)) => {
                        let (direction, memory) = (Direction::Write, Memory::NONE);
                        let body = MemoryBody::new((region, 0), direction, memory);
                        Body::Memory(body.notifying(Some(id)))
                    }
                    place => self.once_body(place, What::Notify { id })?,
                };
                Ok((Operation::Notify, [Some(handle), None], 0, body))
            }
            Verb::Wait { handle, id, count } => {
                self.may_wait(session)?;
                let place = self.handles.place_of_region(session, handle, Access::NONE)?;
                let Place::Local(Target::Region(target)) = place else {
                    return Err(Status::Invalid);
                };
                if count == 0 {
                    return Err(Status::Invalid);
                }
                if !self.clients.owns(session, target.segment) {
                    return Err(Status::Denied);
                }
                let body = Body::Wait(Wait::new(target.region, id, count, no_wait));
                Ok((Operation::Wait, [Some(handle), None], 0, body))
            }
            Verb::Flush { handle } => {
                let (_, kind) = self.handles.place(session, handle, Access::NONE)?;
                if kind == OpenKind::Channel {
                    return Err(Status::Invalid);
                }
                Ok((Operation::Flush, [Some(handle), None], 0, Body::Settled))
            }
            Verb::Sync { handle } => {
                let (place, _) = self.handles.place_of_bytes(session, handle, Access::NONE)?;
                let unsynced = self.unsynced_of(session, handle);
                Ok((Operation::Sync, [Some(handle), None], 0, sync_body(place, unsynced)))
            }
            Verb::Copy { from, from_offset, to, to_offset, length } => {
                let (source, _) = self.handles.place_of_bytes(session, from, Access::READ)?;
                let (sink, _) = self.handles.place_of_bytes(session, to, Access::WRITE)?;
                from_offset.checked_add(length).ok_or(Status::Invalid)?;
                to_offset.checked_add(length).ok_or(Status::Invalid)?;
                self.may_start()?;
                let copy = CopyBody::new((source, from_offset), (sink, to_offset));
                let body = Body::Copy(self.bodies.keep_copy(copy));
                Ok((Operation::Copy, [Some(from), Some(to)], length, body))
            }
            Verb::Send { handle, tag, buffer } => {
                let memory = self.clients.memory_of(session, buffer)?;
                let body = match self.handles.place(session, handle, Access::WRITE)? {
                    (Place::Local(Target::Channel(ChannelTarget { channel, .. })), _) => {
                        Body::Send(SendBody::new(channel, tag, memory, no_wait))
                    }
                    (Place::Remote(peer, handle), OpenKind::Channel) => {
                        let body = RemoteBody::new(peer, handle, RemoteOp::Send, 0, memory);
                        Body::Remote(RemoteBody {
                            message: Some(Outgoing::new(tag, no_wait)),
                            ..body
                        })
                    }
                    _ => return Err(Status::Invalid),
                };
                Ok((Operation::Send, [Some(handle), None], buffer.length, body))
            }
            Verb::Receive { handle, tag, buffer } => {
                self.may_wait(session)?;
                let memory = self.clients.memory_of(session, buffer)?;
                let (Place::Local(Target::Channel(it)), _) =
                    self.handles.place(session, handle, Access::READ)?
                else {
                    return Err(Status::Invalid);
                };
                let body = Body::Receive(ReceiveBody::new(it.channel, tag, memory, no_wait));
                Ok((Operation::Receive, [Some(handle), None], buffer.length, body))
            }
            Verb::Call { handle, buffer, call_bytes } => {
                let memory = self.clients.memory_of(session, buffer)?;
                let (place, access, is_directory) = self.handles.place_of_calls(session, handle)?;
                let lengths = HEAD_BYTES as u32..=CALL_BYTES_MAX as u32;
                if !lengths.contains(&call_bytes) || u64::from(call_bytes) > buffer.length {
                    return Err(Status::Invalid);
                }
                self.may_start()?;
                let local = match place {
                    Place::Local(Target::File(file)) => Some((file.buffered, On::from(&file))),
                    Place::Local(Target::Directory(it)) => {
                        Some((it.directory, On::new(it.device, it.foreign)))
                    }
                    _ => None,
                };
                let call = CallBody::new(local, (memory, call_bytes), (access, is_directory));
                let call = self.bodies.keep_call(call);
                let body = match place {
                    Place::Remote(peer, there) => {
                        let body = RemoteBody::new(peer, there, RemoteOp::Call, 0, memory);
                        let unsynced = self.unsynced_of(session, handle);
                        Body::Remote(RemoteBody { call: Some(call), unsynced, ..body })
                    }
                    Place::Local(_) | Place::Replicas(_) => Body::Call(call),
                };
                let length = buffer.length.min(ANSWER_BYTES_MAX);
                Ok((Operation::Call, [Some(handle), None], length, body))
            }
            Verb::Nop | Verb::Cancel { .. } | Verb::Unsupported => Err(Status::Invalid),
        }
    }

    /// The incarnation of a peer that took the first of what a sync of a handle is to cover.
    fn unsynced_of(&mut self, session: SessionId, handle: HandleId) -> Option<u64> {
        let remote = self.handles.remote(session, handle);
        remote.and_then(|it| it.unsynced).map(|(first, _)| first)
    }

    /// Where a table lies that has its rows in the client's arena.
    fn table_at(
        &self,
        session: SessionId,
        Table { segment, offset, rows }: Table,
        row_bytes: usize,
    ) -> Result<Memory, Status> {
        let length = u64::from(rows) * row_bytes as u64;
        self.clients.memory_of(session, ArenaBuffer { segment, offset, length })
    }

    /// Whether a session may have one more request that waits for others. Places are left for what
    /// they wait for, and for those of others.
    fn may_wait(&self, session: SessionId) -> Result<(), Status> {
        let room = self.clients.waits_of(session) < self.cx.limits.client.requests
            && self.clients.waits() < self.cx.config.transfers_max / 2;
        room.then_some(()).ok_or(Status::WouldBlock)
    }

    /// Whether there is room for one more transfer: then a body of it may be kept.
    fn may_start(&self) -> Result<(), Status> {
        if self.transfers.room() > 0 { Ok(()) } else { Err(Status::WouldBlock) }
    }

    /// The body of what a peer does once.
    fn once_body(&mut self, place: Place, what: What) -> Result<Body, Status> {
        let Place::Remote(peer, handle) = place else { return Err(Status::Invalid) };
        self.may_start()?;
        let body = RemoteBody::new(peer, handle, RemoteOp::Once, 0, Memory::NONE);
        let once = Some(self.bodies.keep_once(Once::new(what)));
        Ok(Body::Remote(RemoteBody { once, ..body }))
    }
}

const ATOMIC: Access = Access { atomic: true, ..Access::NONE };

/// The body of a read or write between a place and memory.
pub(in crate::shard) fn body_for(
    place: Place,
    direction: Direction,
    durable: bool,
    offset: u64,
    length: u64,
    memory: Memory,
) -> Result<Body, Status> {
    let end = check_end(offset, length)?;
    Ok(match place {
        Place::Local(Target::File(target)) => {
            Body::File(FileBody::new(target, direction, durable, offset, memory))
        }
        Place::Local(Target::Region(region)) => {
            if end > region.length {
                return Err(Status::Invalid);
            }
            Body::Memory(MemoryBody::new((region, offset), direction, memory))
        }
        Place::Local(Target::Channel(_) | Target::Directory(_)) | Place::Replicas(_) => {
            return Err(Status::Invalid);
        }
        Place::Remote(peer, handle) => {
            let op = match direction {
                Direction::Read => RemoteOp::Read,
                Direction::Write => RemoteOp::Write { durable },
            };
            Body::Remote(RemoteBody::new(peer, handle, op, offset, memory))
        }
    })
}

/// The end of a range, if the kernel could have it: a signed offset is its limit.
fn check_end(offset: u64, length: u64) -> Result<u64, Status> {
    let end = offset.checked_add(length).ok_or(Status::Invalid)?;
    if end > i64::MAX as u64 { Err(Status::Invalid) } else { Ok(end) }
}

fn sync_body(place: Place, unsynced: Option<u64>) -> Body {
    match place {
        Place::Local(Target::File(target)) => Body::Sync { file: target.buffered, started: false },
        // Memory has no stable storage; what was put is there.
        Place::Local(Target::Region(_) | Target::Channel(_) | Target::Directory(_))
        | Place::Replicas(_) => Body::Settled,
        Place::Remote(peer, handle) => {
            let body = RemoteBody::new(peer, handle, RemoteOp::Sync, 0, Memory::NONE);
            Body::Remote(RemoteBody { unsynced, ..body })
        }
    }
}
