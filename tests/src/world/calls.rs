//! Calls that clients make of files and directories, and what they are told.

use std::ops::Range;

use piped_core::call::{
    Advice, CALL_BYTES_MAX, Call as Said, Digest, Extent, ExtentKind, FileKind, Lock,
    Range as Bytes, Space, Stat,
};
use piped_core::request::Verb;
use piped_core::status::Status;

use super::locking::{Holder, LockCall};
use super::outcome::NameCall;
use super::{Call, Effect, InFlight, ObjectKind, World, naming};

/// The least room that a client has for names: for one with all that is known of it.
const LIST_BYTES_MIN: u64 = 160;
/// The most room of a call, so that a directory comes in parts.
pub(super) const CALL_ROOM_MAX: u64 = 1024;

/// Ranges that are locked begin at multiples of it.
const LOCK_STEP: u64 = 100;

/// A call in the words of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// A call of a file.
    File {
        /// The file, as an object.
        object: usize,
        /// What is asked of it.
        call: FileCall,
    },
    /// A call of the client's directory on a node.
    Names {
        /// The directory, as an object.
        object: usize,
        /// What is asked of its names.
        call: NameCall,
    },
}

/// What a client asks of a file. Ranges that it changes are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileCall {
    /// What is known of it.
    Stat,
    /// How much room its file system has.
    Space,
    /// To tell the page cache something.
    Advise,
    /// Where it has data.
    Extents {
        /// Where the range begins.
        start: u64,
        /// And where it ends.
        end: u64,
    },
    /// The digest of bytes that it has.
    Digest {
        /// Where the range begins.
        start: u64,
        /// And where it ends.
        end: u64,
    },
    /// Makes some bytes zeros.
    Zero {
        /// Where the range begins.
        start: u64,
        /// And where it ends.
        end: u64,
    },
    /// Gives up the room of bytes that it has.
    Trim {
        /// Where the range begins.
        start: u64,
        /// And where it ends.
        end: u64,
    },
    /// Makes it longer by zeros.
    Lengthen {
        /// Its end before, at most.
        from: u64,
        /// The length that it gets.
        length: u64,
        /// With room on the device.
        allocate: bool,
    },
    /// Makes a range stable.
    Sync {
        /// Where the range begins.
        start: u64,
        /// And where it ends.
        end: u64,
    },
    /// Makes all of it stable.
    SyncAll,
    /// Locks some of it against others, or gives the lock up.
    Lock(LockCall),
}

impl FileCall {
    /// The bytes that it makes zeros.
    const fn zeros(self) -> Option<(u64, u64)> {
        match self {
            Self::Zero { start, end } | Self::Trim { start, end } => Some((start, end)),
            Self::Lengthen { from, length, .. } => Some((from, length)),
            _ => None,
        }
    }
}

/// A call of a file, and what was known when it was made.
#[derive(Debug)]
pub(super) struct Told {
    object: usize,
    call: FileCall,
    client: usize,
    /// The least length of the file.
    shortest: u64,
    crashes: u32,
    /// The bytes of a digest, if all are known.
    bytes: Option<Vec<u8>>,
}

/// A call that this client may make now, or nothing.
pub(super) fn invent(
    world: &mut World,
    client: usize,
    directories: &[usize],
    objects: &[usize],
) -> Option<Call> {
    let files: Vec<usize> = objects.iter().copied().filter(|&it| is_file(world, it)).collect();
    let of_names = world.random.chance(0.6);
    if world.clients[client].pieces.is_empty() {
        return None;
    }
    if of_names && !directories.is_empty() {
        let object = *world.random.pick(directories);
        let call = naming::invent(world);
        let free = world.names[naming::names_of(world, object)].is_free(call);
        return free.then_some(Call::Ask(Asking::Names { object, call }));
    }
    if files.is_empty() {
        return None;
    }
    let object = *world.random.pick(&files);
    let call = invent_of_file(world, client, object)?;
    Some(Call::Ask(Asking::File { object, call }))
}

fn is_file(world: &World, object: usize) -> bool {
    matches!(world.objects[object].kind, ObjectKind::File(_))
}

fn invent_of_file(world: &mut World, client: usize, object: usize) -> Option<FileCall> {
    // All may read the first area.
    let whose = world.random.chance(0.7).then_some(client);
    // A handle that has lost its locks is gone: operators' clients open the file anew.
    let kinds = if world.operators.is_some() { 23 } else { 20 };
    Some(match world.random.below(kinds) {
        0..6 => FileCall::Stat,
        6 => FileCall::Space,
        7 => FileCall::Advise,
        8..10 => {
            let Range { start, end } = world.choose(client, object, whose, false)?;
            FileCall::Extents { start, end }
        }
        10..13 => {
            let Range { start, end } = world.choose(client, object, whose, false)?;
            let end = end.min(world.objects[object].expected.length().start);
            (start < end).then_some(FileCall::Digest { start, end })?
        }
        13..15 => {
            let Range { start, end } = world.choose(client, object, Some(client), true)?;
            FileCall::Zero { start, end }
        }
        15..17 => {
            let Range { start, end } = world.choose(client, object, Some(client), true)?;
            let end = end.min(world.objects[object].expected.length().start);
            (start < end).then_some(FileCall::Trim { start, end })?
        }
        17 => {
            let Range { start, end } = world.choose(client, object, Some(client), false)?;
            FileCall::Sync { start, end }
        }
        18 => FileCall::SyncAll,
        20.. => FileCall::Lock(invent_lock(world, (object, client))?),
        _ => invent_length(world, client, object)?,
    })
}

/// A client has one lock of a file at a time, of one of a few ranges.
fn invent_lock(world: &mut World, holder: Holder) -> Option<LockCall> {
    let takes = world.locking.next(holder)?;
    let start = world.random.below(3) * LOCK_STEP;
    let (end, exclusive) = (start + 2 * LOCK_STEP, world.random.chance(0.6));
    Some(if takes { LockCall::Take { start, end, exclusive } } else { LockCall::GiveUp })
}

/// The last area of a file is beyond its end: its client makes the file longer.
fn invent_length(world: &mut World, client: usize, object: usize) -> Option<FileCall> {
    let (area, from) =
        (world.area(object, Some(client)), world.objects[object].expected.length().end);
    let is_last = world.objects[object].areas.last() == Some(&area.end);
    let locks = &world.clients[client].locks;
    // Nothing beyond the end may be under way, for it would be cut off.
    let is_free = locks.iter().all(|it| it.object != object || it.end <= from);
    if !is_last || from < area.start || from >= area.end || !is_free {
        return None;
    }
    let most = (area.end - from).min(world.options.longest);
    let length = from + world.random.between(1, most);
    Some(FileCall::Lengthen { from, length, allocate: world.random.chance(0.5) })
}

/// Makes the request of a call.
pub(super) fn prepare(
    world: &mut World,
    client: usize,
    number: u64,
    flight: &mut InFlight,
    asking: Asking,
) {
    match asking {
        Asking::File { object, call } => {
            prepare_of_file(world, client, number, flight, (object, call));
        }
        Asking::Names { object, call } => {
            let room = world.random.between(LIST_BYTES_MIN, CALL_ROOM_MAX);
            let names = naming::names_of(world, object);
            let asked = world.names[names].begin(object, call);
            let cookie = world.names[names].cookie();
            put_call(world, client, flight, (object, room), &naming::said(call, cookie));
            flight.effect = Effect::Names(asked);
        }
    }
}

fn prepare_of_file(
    world: &mut World,
    client: usize,
    number: u64,
    flight: &mut InFlight,
    (object, call): (usize, FileCall),
) {
    let bytes = |start, end| Bytes { offset: start, length: end - start };
    let flag = world.random.chance(0.5);
    let (said, room) = match call {
        FileCall::Stat => (Said::Stat { path: b"" }, Stat::BYTES),
        FileCall::Space => (Said::Space, Space::BYTES),
        FileCall::Advise => {
            let (range, advice) = (Bytes::default(), Advice::WillNeed);
            (Said::Advise { range, advice }, 0)
        }
        FileCall::Extents { start, end } => {
            (Said::Extents { range: bytes(start, end) }, Extent::BYTES)
        }
        FileCall::Digest { start, end } => (Said::Digest { range: bytes(start, end) }, 32),
        FileCall::Zero { start, end } => {
            (Said::Zero { range: bytes(start, end), release: flag }, 0)
        }
        FileCall::Trim { start, end } => (Said::Trim { range: bytes(start, end) }, 0),
        FileCall::Lengthen { length, allocate: true, .. } => {
            (Said::Allocate { range: bytes(0, length), keep_length: false }, 0)
        }
        FileCall::Lengthen { length, .. } => (Said::Truncate { length }, 0),
        FileCall::Sync { start, end } => {
            (Said::Sync { range: bytes(start, end), data_only: flag }, 0)
        }
        FileCall::SyncAll => (Said::Sync { range: Bytes::default(), data_only: flag }, 0),
        FileCall::Lock(LockCall::Take { start, end, exclusive }) => {
            let lock = if exclusive { Lock::Exclusive } else { Lock::Shared };
            (Said::Lock { range: bytes(start, end), lock }, 0)
        }
        FileCall::Lock(LockCall::GiveUp) => {
            (Said::Lock { range: Bytes::default(), lock: Lock::None }, 0)
        }
    };
    let area = world.own_area(client, object);
    put_call(world, client, flight, (object, room as u64), &said);
    let expected = &mut world.objects[object].expected;
    let crashes = expected.crashes;
    let (lock, writes) = match call {
        FileCall::Stat
        | FileCall::Space
        | FileCall::Advise
        | FileCall::SyncAll
        | FileCall::Lock(_) => (0..0, false),
        FileCall::Extents { start, end }
        | FileCall::Digest { start, end }
        | FileCall::Sync { start, end } => (start..end, false),
        FileCall::Zero { start, end } | FileCall::Trim { start, end } => (start..end, true),
        // What is beyond it would be cut off.
        FileCall::Lengthen { from, .. } => (from..u64::MAX, true),
    };
    if let FileCall::Lock(_) = call {
        world.locking.begin((object, client));
    }
    if let Some((start, end)) = call.zeros() {
        expected.begin_write(start as usize..end as usize);
    }
    flight.effect = match call {
        FileCall::Sync { start, end } => {
            let sync = expected.begin_sync(start as usize..end as usize);
            Effect::Sync { object, sync }
        }
        FileCall::SyncAll => {
            let sync = expected.begin_sync(area);
            Effect::Sync { object, sync }
        }
        _ => {
            let bytes = match call {
                FileCall::Digest { start, end } => {
                    let (bytes, known) = expected.take(start as usize..end as usize);
                    known.iter().all(|&known| known).then_some(bytes)
                }
                _ => None,
            };
            let shortest = expected.length().start;
            Effect::Told(Told { object, call, client, shortest, crashes, bytes })
        }
    };
    if !lock.is_empty() {
        world.lock(client, number, object, lock, writes);
    }
}

/// A buffer with a call at its start, and that much room for the answer.
fn put_call(
    world: &mut World,
    client: usize,
    flight: &mut InFlight,
    (object, room): (usize, u64),
    said: &Said<'_>,
) {
    let mut bytes = [0; CALL_BYTES_MAX];
    let length = said.encode(&mut bytes).expect("short paths");
    let handle = world.handle(client, object);
    let room = room.max(length as u64);
    let buffer = world.take_buffer(client, flight, room, true);
    let span = flight.buffer.expect("taken above").part(0, length as u32);
    let node = world.objects[object].node;
    let own = world.nodes[world.clients[client].node].id;
    world.kernel.bytes_mut(own, span).copy_from_slice(&bytes[..length]);
    world.kernel.note(|| format!("client {client} says {said:?}"));
    flight.node = Some(node);
    flight.length = room;
    flight.verb = Verb::Call { handle, buffer, call_bytes: length as u32 };
}

/// Whether that is an answer to a call, and no fault of the world.
pub(super) fn answers(world: &World, flight: &InFlight, status: Status) -> bool {
    match &flight.effect {
        Effect::Names(asked) => {
            let names = &world.names[naming::names_of(world, asked.object())];
            // What a crash left of names is what the call found.
            let any = [
                Status::NotFound,
                Status::Exists,
                Status::IsDirectory,
                Status::NotDirectory,
                Status::NotPermitted,
                Status::Invalid,
            ];
            status == asked.status() || names.crashes() != asked.crashes() && any.contains(&status)
        }
        // A crash has left less than there was.
        Effect::Told(Told { object, call: FileCall::Digest { .. }, crashes, .. }) => {
            let changed = world.objects[*object].expected.crashes != *crashes;
            status == Status::Invalid && changed
        }
        // Whether somebody else has it is judged later.
        Effect::Told(Told { call: FileCall::Lock(LockCall::Take { .. }), .. }) => {
            status == Status::Locked
        }
        _ => false,
    }
}

/// A call of a file ended, with that answer.
pub(super) fn judge(world: &mut World, told: &Told, status: Status, answer: &[u8], name: &str) {
    world.tally("calls of files", 1);
    let expected = &world.objects[told.object].expected;
    if let FileCall::Lock(call) = told.call {
        let crashes = (told.crashes, expected.crashes);
        let ended = world.locking.end((told.object, told.client), call, status, crashes);
        ended.unwrap_or_else(|why| panic!("{name} ends with {status:?}: {why}"));
        let is_locked = status == Status::Locked;
        return world.tally(if is_locked { "refused for a lock" } else { "locks" }, 1);
    }
    if status != Status::Ok || expected.crashes != told.crashes {
        return;
    }
    let (shortest, longest) = (told.shortest, expected.length().end);
    match told.call {
        FileCall::Stat => {
            let stat = Stat::parse(answer).expect("a stat");
            let is_right = (shortest..=longest).contains(&stat.length);
            assert!(
                is_right && stat.kind == FileKind::File,
                "{name}: {stat:?}, it has {shortest} to {longest} bytes"
            );
        }
        FileCall::Space => {
            let space = Space::parse(answer).expect("a space");
            assert!(space.total >= space.free && space.total > 0, "{name}: {space:?}");
        }
        FileCall::Extents { start, end } => {
            let (least, most) = (end.min(shortest), end.min(longest));
            let extent = match answer {
                [] => Extent { offset: start, length: 0, kind: ExtentKind::Data },
                bytes => Extent::parse(bytes).expect("an extent"),
            };
            let last = extent.offset + extent.length;
            assert!(
                extent.length == 0 && least <= start
                    || extent.offset == start && (least..=most).contains(&last),
                "{name}: {extent:?}, it has {shortest} to {longest} bytes"
            );
        }
        FileCall::Digest { .. } => {
            let digest = told.bytes.as_ref().map(|bytes| Digest(*blake3::hash(bytes).as_bytes()));
            assert!(digest.is_none_or(|it| it.0 == answer), "{name}: of other bytes");
        }
        _ => assert!(answer.is_empty(), "{name} says {answer:?}"),
    }
    if let Some((start, end)) = told.call.zeros() {
        let zeros = vec![0; (end - start) as usize];
        world.objects[told.object].expected.end_write(start as usize, &zeros, None, false);
    }
}
