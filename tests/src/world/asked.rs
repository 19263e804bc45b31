//! Calls of files: what is known of one, zeros in a client's own area, and syncs.

use std::ops::Range;

use piped_core::call::{self, CALL_BYTES_MAX, Stat};
use piped_core::io::Span;
use piped_core::request::Verb;
use piped_core::status::Status;

use super::{Call, Effect, InFlight, ObjectKind, World};

/// Room for a call and its answer; short, for short are the buffers of some worlds.
const ROOM: u64 = 128;

/// What a client asks of a file beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// What is known of it.
    Stat,
    /// Zeros in the client's own area.
    Zero {
        /// The first byte of the zeros.
        start: u64,
        /// The byte behind the last one.
        end: u64,
    },
    /// Make an object's writes stable, as a sync does.
    Sync,
}

/// What comes of an [`Asking`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    /// The file is at least so long.
    Stat {
        object: usize,
        least: u64,
        crashes: u32,
    },
    Zero {
        object: usize,
        start: u64,
        end: u64,
        crashes: u32,
    },
}

/// Something that is asked of a file.
pub(super) fn invent(world: &mut World, client: usize, object: usize) -> Option<Call> {
    let is_file = matches!(world.objects[object].kind, ObjectKind::File(_));
    let has_room = !world.clients[client].pieces.is_empty() && world.options.longest >= ROOM;
    if !is_file || !has_room {
        return None;
    }
    let asked = match world.random.below(3) {
        0 => Asking::Stat,
        1 => {
            let Range { start, end } = world.choose(client, object, Some(client), true)?;
            Asking::Zero { start, end }
        }
        _ => Asking::Sync,
    };
    Some(Call::Ask { object, asked })
}

pub(super) fn prepare(
    world: &mut World,
    client: usize,
    number: u64,
    flight: &mut InFlight,
    (object, asked): (usize, Asking),
) {
    let handle = world.handle(client, object);
    let area = world.own_area(client, object);
    let buffer = world.take_buffer(client, flight, ROOM, true);
    let expected = &mut world.objects[object].expected;
    let (crashes, least) = (expected.crashes, expected.length().start);
    let call = match asked {
        Asking::Stat => {
            flight.effect = Effect::Asked(Answer::Stat { object, least, crashes });
            call::Call::Stat { path: b"" }
        }
        Asking::Zero { start, end } => {
            expected.begin_write(start as usize..end as usize);
            flight.effect = Effect::Asked(Answer::Zero { object, start, end, crashes });
            let range = call::Range { offset: start, length: end - start };
            call::Call::Zero { range, release: number.is_multiple_of(2) }
        }
        Asking::Sync => {
            let sync = expected.begin_sync(area);
            flight.effect = Effect::Sync { object, sync };
            call::Call::Sync { range: call::Range::default(), data_only: true }
        }
    };
    let mut bytes = [0; CALL_BYTES_MAX];
    let length = call.encode(&mut bytes).expect("it fits");
    let node = world.nodes[world.clients[client].node].id;
    let place = flight.buffer.expect("taken above").part(0, length as u32);
    world.kernel.bytes_mut(node, place).copy_from_slice(&bytes[..length]);
    flight.node = Some(world.objects[object].node);
    flight.verb = Verb::Call { handle, buffer, call_bytes: length as u32 };
    flight.length = ROOM;
    if let Asking::Zero { start, end } = asked {
        world.lock(client, number, object, start..end, true);
    }
}

pub(super) fn judge(
    world: &mut World,
    client: usize,
    flight: &InFlight,
    answer: Answer,
    (status, bytes): (Status, u64),
    name: &str,
) {
    if status != Status::Ok {
        return;
    }
    match answer {
        Answer::Stat { object, least, crashes } => {
            let node = world.nodes[world.clients[client].node].id;
            let buffer = flight.buffer.expect("it has one");
            let told = world.kernel.bytes(node, Span { length: bytes as u32, ..buffer });
            let stat = Stat::parse(told).unwrap_or_else(|_| panic!("{name}: no stat"));
            let expected = &world.objects[object].expected;
            let fits = (least..=expected.length().end).contains(&stat.length);
            let known = expected.crashes == crashes;
            assert!(fits || !known, "{name}: {} bytes, expected {least} or more", stat.length);
            world.tally("a file was looked at", 1);
        }
        Answer::Zero { object, start, end, crashes } => {
            let expected = &mut world.objects[object].expected;
            if expected.crashes == crashes {
                let zeros = vec![0; (end - start) as usize];
                expected.end_write(start as usize, &zeros, None, false);
            }
            world.tally("zeros were made", 1);
        }
    }
}
