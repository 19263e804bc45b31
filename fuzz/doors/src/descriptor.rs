//! A client's descriptors: each is refused or means one request, and whatever is asked ends exactly
//! once, moves no byte that it was not offered, and leaves nothing behind.
//!
//! The first byte chooses the session's class and the planner. Then come actions: a byte, and a
//! descriptor or what else it needs.

use piped::client::request::parse;
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::request::{Buffers, Class, Request, Update, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_ring::layout::DESCRIPTOR_WORDS;
use piped_ring::{
    CLASS_BULK, CLASS_LATENCY, Descriptor, FLAG_ANY_TAG, FLAG_BUFFERS, FLAG_DURABLE, FLAG_FENCE,
    FLAG_NO_WAIT, Opcode,
};

use crate::Seed;
use crate::client::{FILE, INBOX, OUTBOX, OWN_REGION, READ_ONLY};
use crate::input::Input;
use crate::world::World;

const ACTIONS_MAX: usize = 96;

/// Checks the descriptor door with an input.
pub fn check(input: &[u8]) {
    ask(input).finish_all();
}

fn ask(input: &[u8]) -> World {
    let mut input = Input::new(input);
    let choice = input.byte();
    let class = if choice & 1 == 0 { Class::Latency } else { Class::Bulk };
    let planner = match choice >> 1 & 3 {
        0 => PlannerMode::Auto,
        1 => PlannerMode::Whole,
        _ => PlannerMode::Fixed(16 * 1024),
    };
    let mut world = World::new(planner, CalibrationMode::Live);
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0..=3 => {
                let descriptor = Descriptor::from_words(words(input.array()));
                if let Some(request) = check_descriptor(&descriptor, class) {
                    world.submit(request, descriptor.user_data);
                }
            }
            4 => world.end(input.byte(), input.byte()),
            5 => world.wait(Nanos(1 << (input.byte() % 42))),
            6 => {
                world.end_all();
            }
            _ => {
                world.turn();
            }
        }
    }
    world
}

fn words(bytes: [u8; DESCRIPTOR_WORDS * 8]) -> [u64; DESCRIPTOR_WORDS] {
    let mut words = [0; DESCRIPTOR_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(*bytes.first_chunk().expect("eight"));
    }
    words
}

/// The request of a descriptor; none if it is refused.
fn check_descriptor(descriptor: &Descriptor, class: Class) -> Option<Request> {
    assert_eq!(Descriptor::from_words(descriptor.to_words()), *descriptor);
    let flags = match Opcode::from_u8(descriptor.opcode) {
        Some(Opcode::Write) => FLAG_DURABLE | FLAG_NO_WAIT | FLAG_FENCE,
        Some(Opcode::Recv) => FLAG_ANY_TAG | FLAG_NO_WAIT,
        Some(
            Opcode::Read
            | Opcode::PutNotify
            | Opcode::FetchAdd
            | Opcode::CompareSwap
            | Opcode::Notify
            | Opcode::Call,
        ) => FLAG_NO_WAIT | FLAG_FENCE,
        Some(Opcode::ReadV | Opcode::WriteV) => FLAG_BUFFERS | FLAG_NO_WAIT | FLAG_FENCE,
        Some(Opcode::Copy | Opcode::Sync | Opcode::Send | Opcode::Wait | Opcode::Flush) => {
            FLAG_NO_WAIT
        }
        _ => 0,
    };
    let refusal = if descriptor.reserved != 0 || descriptor.reserved_tail != 0 {
        Some(Status::Invalid)
    } else if descriptor.flags & !flags != 0 {
        Some(Status::Unsupported)
    } else if descriptor.class > CLASS_BULK {
        Some(Status::Invalid)
    } else {
        None
    };
    let request = match (parse(descriptor, class), refusal) {
        (Ok(request), None) => request,
        (Err(status), Some(expected)) => {
            assert_eq!(status, expected);
            return None;
        }
        (result, expected) => panic!("{descriptor:?} gives {result:?}, not {expected:?}"),
    };
    // Written anew with nothing but what it means, it means the same.
    assert_eq!(parse(&descriptor_of(&request), class), Ok(request), "{descriptor:?}");
    Some(request)
}

/// The descriptor as an honest client writes it.
fn descriptor_of(request: &Request) -> Descriptor {
    let descriptor = verb_of(request);
    let no_wait = if request.no_wait { FLAG_NO_WAIT } else { 0 };
    let fence = if request.fence { FLAG_FENCE } else { 0 };
    Descriptor { flags: descriptor.flags | no_wait | fence, ..descriptor }
}

fn of_buffers(buffers: Buffers, with: Descriptor) -> Descriptor {
    let (flags, segment, buffer_offset, length) = match buffers {
        Buffers::One(it) => (0, it.segment, it.offset, it.length),
        Buffers::Several(list) => (FLAG_BUFFERS, list.segment, list.offset, list.rows.into()),
    };
    Descriptor { flags, segment, buffer_offset, length, ..with }
}

fn verb_of(request: &Request) -> Descriptor {
    let with = |opcode| Descriptor {
        class: match request.class {
            Class::Latency => CLASS_LATENCY,
            Class::Bulk => CLASS_BULK,
        },
        deadline_ns: request.deadline.map_or(0, |deadline| deadline.0),
        ..Descriptor::new(opcode, 7)
    };
    match request.verb {
        Verb::Nop => with(Opcode::Nop),
        Verb::Read { handle, offset, buffer, wanted } => Descriptor {
            wanted_offset: wanted,
            handle_a: handle.0,
            offset_a: offset,
            segment: buffer.segment,
            buffer_offset: buffer.offset,
            length: buffer.length,
            ..with(Opcode::Read)
        },
        Verb::Write { handle, offset, buffer, durable, notify } => Descriptor {
            flags: if durable { FLAG_DURABLE } else { 0 },
            notify_id: notify.unwrap_or(0),
            handle_a: handle.0,
            offset_a: offset,
            segment: buffer.segment,
            buffer_offset: buffer.offset,
            length: buffer.length,
            ..with(if notify.is_some() { Opcode::PutNotify } else { Opcode::Write })
        },
        Verb::Vector { handle, reads, buffers, table, bytes } => Descriptor {
            handle_a: handle.0,
            table_segment: table.segment,
            table_offset: table.offset,
            table_count: table.rows,
            operand_a: bytes,
            ..of_buffers(buffers, with(if reads { Opcode::ReadV } else { Opcode::WriteV }))
        },
        Verb::Update { handle, offset, update } => {
            let (opcode, operand_a, operand_b) = match update {
                Update::Add(addend) => (Opcode::FetchAdd, addend, 0),
                Update::CompareSwap { expected, new } => (Opcode::CompareSwap, expected, new),
            };
            let (handle_a, offset_a) = (handle.0, offset);
            Descriptor { handle_a, offset_a, operand_a, operand_b, ..with(opcode) }
        }
        Verb::Notify { handle, id } => {
            Descriptor { handle_a: handle.0, notify_id: id, ..with(Opcode::Notify) }
        }
        Verb::Wait { handle, id, count } => {
            Descriptor { handle_a: handle.0, notify_id: id, operand_a: count, ..with(Opcode::Wait) }
        }
        Verb::Flush { handle } => Descriptor { handle_a: handle.0, ..with(Opcode::Flush) },
        Verb::Copy { from, from_offset, to, to_offset, length } => Descriptor {
            handle_a: from.0,
            handle_b: to.0,
            offset_a: from_offset,
            offset_b: to_offset,
            length,
            ..with(Opcode::Copy)
        },
        Verb::Sync { handle } => Descriptor { handle_a: handle.0, ..with(Opcode::Sync) },
        Verb::Cancel { target } => Descriptor { operand_a: target, ..with(Opcode::Cancel) },
        Verb::Send { handle, tag, buffer } => Descriptor {
            handle_a: handle.0,
            tag,
            segment: buffer.segment,
            buffer_offset: buffer.offset,
            length: buffer.length,
            ..with(Opcode::Send)
        },
        Verb::Receive { handle, tag, buffer } => Descriptor {
            flags: if tag.is_none() { FLAG_ANY_TAG } else { 0 },
            handle_a: handle.0,
            tag: tag.unwrap_or(0),
            segment: buffer.segment,
            buffer_offset: buffer.offset,
            length: buffer.length,
            ..with(Opcode::Recv)
        },
        Verb::Call { handle, buffer, call_bytes } => Descriptor {
            handle_a: handle.0,
            segment: buffer.segment,
            buffer_offset: buffer.offset,
            length: buffer.length,
            operand_a: call_bytes.into(),
            ..with(Opcode::Call)
        },
        // A number that is no verb's yet.
        Verb::Unsupported => Descriptor { opcode: u8::MAX, ..with(Opcode::Nop) },
    }
}

/// Requests as clients make them, alone and together.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let of = |opcode, handle, length| Descriptor {
        handle_a: handle,
        length,
        offset_a: 1000,
        buffer_offset: 4096,
        ..Descriptor::new(opcode, 5)
    };
    let read = of(Opcode::Read, READ_ONLY.0, 50_000);
    let direct = Descriptor { offset_a: 512, length: 40_960, ..of(Opcode::Read, FILE.0, 0) };
    let write = Descriptor { flags: FLAG_DURABLE, ..of(Opcode::Write, FILE.0, 30_000) };
    let copy = Descriptor { handle_b: FILE.0, ..of(Opcode::Copy, READ_ONLY.0, 80_000) };
    let to_region = Descriptor { handle_b: OWN_REGION.0, offset_b: 16, ..copy };
    let get = of(Opcode::Read, OWN_REGION.0, 9_000);
    let put = of(Opcode::Write, OWN_REGION.0, 9_000);
    let sync = of(Opcode::Sync, FILE.0, 0);
    let cancel = Descriptor { operand_a: 5, ..Descriptor::new(Opcode::Cancel, 6) };
    let late = Descriptor { deadline_ns: 1000, ..read };
    let send = Descriptor { tag: 7, ..of(Opcode::Send, OUTBOX.0, 3_000) };
    let receive = Descriptor {
        flags: FLAG_ANY_TAG,
        buffer_offset: 65_536,
        ..of(Opcode::Recv, INBOX.0, 4_000)
    };
    let all = [read, direct, write, copy, to_region, get, put, sync, cancel, late, send, receive];
    let names = [
        "read",
        "direct",
        "write",
        "copy",
        "to-region",
        "get",
        "put",
        "sync",
        "cancel",
        "late",
        "send",
        "receive",
    ];
    let mut seeds: Vec<Seed> = names
        .iter()
        .zip(all)
        .map(|(name, descriptor)| {
            // The late one is due before the device has it.
            ((*name).to_owned(), [&[0], &action(&descriptor)[..], &[7, 5, 12, 7, 6, 7]].concat())
        })
        .collect();
    let together = all.iter().flat_map(action).collect::<Vec<u8>>();
    seeds.push(("together".to_owned(), [&[3], &together[..], &[7, 4, 0, 105, 7, 6]].concat()));
    let held = [&action(&late)[..], &[7, 5, 20, 7, 7], &action(&cancel)].concat();
    seeds.push(("held".to_owned(), [&[2], &held[..]].concat()));
    let failed = [&action(&write)[..], &[7, 4, 0, 225, 7, 4, 0, 205]].concat();
    seeds.push(("failed".to_owned(), [&[4], &failed[..]].concat()));
    seeds
}

fn action(descriptor: &Descriptor) -> Vec<u8> {
    let words = descriptor.to_words();
    std::iter::once(0).chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_reach_what_they_are_for() {
        for (name, bytes) in seeds() {
            let mut world = ask(&bytes);
            world.settle();
            let counters = world.shard().report().counters;
            let (completed, failed, held) = match name.as_str() {
                // Nobody sends.
                "cancel" | "failed" | "receive" => (0, 1, 0),
                "late" => (0, 1, 1),
                // One is cancelled, and the late one is late here, too.
                "together" => (10, 2, 1),
                "held" => (0, 2, 1),
                _ => (1, 0, 0),
            };
            let found = (counters.completed, counters.failed, counters.held);
            assert_eq!(found, (completed, failed, held), "{name}");
        }
    }
}
