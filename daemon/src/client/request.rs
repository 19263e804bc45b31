//! Descriptor to [`Request`]: the parser of the client's ring, on a private copy.
//!
//! The parser checks all that can be known without the session: verb, flags, class, reserved
//! fields. The shard checks handles, buffers and lengths against the session, in one place for all
//! verbs.

use piped_core::ids::HandleId;
use piped_core::request::{ArenaBuffer, Buffers, Class, Request, Table, Update, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_ring::{
    CLASS_BULK, CLASS_DEFAULT, CLASS_LATENCY, Descriptor, FLAG_ANY_TAG, FLAG_BUFFERS, FLAG_DURABLE,
    FLAG_FENCE, FLAG_NO_WAIT, Opcode,
};

/// Reads a descriptor. `class` is that of requests that name none.
///
/// # Errors
/// [`Status::Unsupported`] for an unknown flag, [`Status::Invalid`] for an unknown class or a
/// reserved field that is not zero. An unknown verb is no error but [`Verb::Unsupported`].
pub fn parse(descriptor: &Descriptor, class: Class) -> Result<Request, Status> {
    if descriptor.reserved != 0 || descriptor.reserved_tail != 0 {
        return Err(Status::Invalid);
    }
    let opcode = Opcode::from_u8(descriptor.opcode);
    let allowed = match opcode {
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
    if descriptor.flags & !allowed != 0 {
        return Err(Status::Unsupported);
    }
    Ok(Request {
        verb: opcode.map_or(Verb::Unsupported, |opcode| verb(opcode, descriptor)),
        class: class_of(descriptor.class, class).ok_or(Status::Invalid)?,
        deadline: (descriptor.deadline_ns != 0).then_some(Nanos(descriptor.deadline_ns)),
        no_wait: descriptor.flags & FLAG_NO_WAIT != 0,
        fence: descriptor.flags & FLAG_FENCE != 0,
    })
}

/// Class from its number in a descriptor; `None` if there is no such class.
#[must_use]
pub fn class_of(number: u8, default: Class) -> Option<Class> {
    match number {
        CLASS_DEFAULT => Some(default),
        CLASS_LATENCY => Some(Class::Latency),
        CLASS_BULK => Some(Class::Bulk),
        _ => None,
    }
}

fn verb(opcode: Opcode, descriptor: &Descriptor) -> Verb {
    let handle = HandleId(descriptor.handle_a);
    let offset = descriptor.offset_a;
    let buffer = ArenaBuffer {
        segment: descriptor.segment,
        offset: descriptor.buffer_offset,
        length: descriptor.length,
    };
    match opcode {
        Opcode::Nop => Verb::Nop,
        Opcode::Read => Verb::Read { handle, offset, buffer, wanted: descriptor.wanted_offset },
        Opcode::Write => {
            let durable = descriptor.flags & FLAG_DURABLE != 0;
            Verb::Write { handle, offset, buffer, durable, notify: None }
        }
        Opcode::PutNotify => {
            let notify = Some(descriptor.notify_id);
            Verb::Write { handle, offset, buffer, durable: false, notify }
        }
        Opcode::FetchAdd => {
            Verb::Update { handle, offset, update: Update::Add(descriptor.operand_a) }
        }
        Opcode::CompareSwap => {
            let (expected, new) = (descriptor.operand_a, descriptor.operand_b);
            Verb::Update { handle, offset, update: Update::CompareSwap { expected, new } }
        }
        Opcode::Notify => Verb::Notify { handle, id: descriptor.notify_id },
        Opcode::Wait => {
            Verb::Wait { handle, id: descriptor.notify_id, count: descriptor.operand_a }
        }
        Opcode::Flush => Verb::Flush { handle },
        Opcode::Copy => Verb::Copy {
            from: handle,
            from_offset: offset,
            to: HandleId(descriptor.handle_b),
            to_offset: descriptor.offset_b,
            length: descriptor.length,
        },
        Opcode::Sync => Verb::Sync { handle },
        Opcode::Cancel => Verb::Cancel { target: descriptor.operand_a },
        Opcode::Send => Verb::Send { handle, tag: descriptor.tag, buffer },
        Opcode::Recv => {
            let any = descriptor.flags & FLAG_ANY_TAG != 0;
            Verb::Receive { handle, tag: (!any).then_some(descriptor.tag), buffer }
        }
        Opcode::ReadV | Opcode::WriteV => {
            let table = Table {
                segment: descriptor.table_segment,
                offset: descriptor.table_offset,
                rows: descriptor.table_count,
            };
            let buffers = match descriptor.flags & FLAG_BUFFERS {
                0 => Buffers::One(buffer),
                _ => Buffers::Several(Table {
                    segment: buffer.segment,
                    offset: buffer.offset,
                    // More than there may be, if it is too large for the field.
                    rows: u32::try_from(buffer.length).unwrap_or(u32::MAX),
                }),
            };
            let (reads, bytes) = (opcode == Opcode::ReadV, descriptor.operand_a);
            Verb::Vector { handle, reads, buffers, table, bytes }
        }
        Opcode::Call => {
            // More than fits is more than a call has.
            let call_bytes = u32::try_from(descriptor.operand_a).unwrap_or(u32::MAX);
            Verb::Call { handle, buffer, call_bytes }
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// A descriptor with a different value in each field, so that a mix-up shows.
    fn full(opcode: Opcode) -> Descriptor {
        Descriptor {
            slot: 3,
            handle_a: 11,
            handle_b: 12,
            offset_a: 13,
            offset_b: 14,
            segment: 15,
            table_segment: 16,
            buffer_offset: 17,
            length: 18,
            deadline_ns: 19,
            operand_a: 20,
            operand_b: 21,
            tag: 22,
            wanted_offset: 23,
            table_offset: 24,
            notify_id: 25,
            table_count: 26,
            ..Descriptor::new(opcode, 7)
        }
    }

    const BUFFER: ArenaBuffer = ArenaBuffer { segment: 15, offset: 17, length: 18 };
    const A: HandleId = HandleId(11);

    #[test]
    fn every_opcode_becomes_its_verb() {
        for opcode in Opcode::ALL {
            let expected = match opcode {
                Opcode::Nop => Verb::Nop,
                Opcode::Read => Verb::Read { handle: A, offset: 13, buffer: BUFFER, wanted: 23 },
                Opcode::Write => {
                    let (offset, durable, notify) = (13, false, None);
                    Verb::Write { handle: A, offset, buffer: BUFFER, durable, notify }
                }
                Opcode::PutNotify => {
                    let (offset, durable, notify) = (13, false, Some(25));
                    Verb::Write { handle: A, offset, buffer: BUFFER, durable, notify }
                }
                Opcode::FetchAdd => Verb::Update { handle: A, offset: 13, update: Update::Add(20) },
                Opcode::CompareSwap => {
                    let update = Update::CompareSwap { expected: 20, new: 21 };
                    Verb::Update { handle: A, offset: 13, update }
                }
                Opcode::Notify => Verb::Notify { handle: A, id: 25 },
                Opcode::Wait => Verb::Wait { handle: A, id: 25, count: 20 },
                Opcode::Flush => Verb::Flush { handle: A },
                Opcode::Copy => Verb::Copy {
                    from: A,
                    from_offset: 13,
                    to: HandleId(12),
                    to_offset: 14,
                    length: 18,
                },
                Opcode::Sync => Verb::Sync { handle: A },
                Opcode::Cancel => Verb::Cancel { target: 20 },
                Opcode::Send => Verb::Send { handle: A, tag: 22, buffer: BUFFER },
                Opcode::Recv => Verb::Receive { handle: A, tag: Some(22), buffer: BUFFER },
                Opcode::ReadV | Opcode::WriteV => Verb::Vector {
                    handle: A,
                    reads: opcode == Opcode::ReadV,
                    buffers: Buffers::One(BUFFER),
                    table: Table { segment: 16, offset: 24, rows: 26 },
                    bytes: 20,
                },
                Opcode::Call => Verb::Call { handle: A, buffer: BUFFER, call_bytes: 20 },
            };
            let request = parse(&full(opcode), Class::Latency).expect("well-formed");
            assert_eq!(request.verb, expected, "{opcode:?}");
            assert_eq!(request.deadline, Some(Nanos(19)));
        }
    }

    #[test]
    fn an_unknown_opcode_is_unsupported_and_no_fault() {
        for opcode in Opcode::ALL.len() as u8..=u8::MAX {
            let descriptor = Descriptor { opcode, ..full(Opcode::Nop) };
            let request = parse(&descriptor, Class::Latency).expect("well-formed");
            assert_eq!(request.verb, Verb::Unsupported, "{opcode}");
        }
    }

    #[test]
    fn flags_belong_to_their_verb() {
        for opcode in Opcode::ALL {
            for flags in 1..=u8::MAX {
                let result = parse(&Descriptor { flags, ..full(opcode) }, Class::Bulk);
                match result {
                    Ok(request) => {
                        let own = match request.verb {
                            Verb::Write { durable: true, .. } => FLAG_DURABLE,
                            Verb::Receive { tag: None, .. } => FLAG_ANY_TAG,
                            Verb::Vector { buffers: Buffers::Several(_), .. } => FLAG_BUFFERS,
                            Verb::Nop | Verb::Cancel { .. } | Verb::Unsupported => {
                                panic!("{opcode:?} with flags {flags}")
                            }
                            _ => 0,
                        };
                        let wait = if request.no_wait { FLAG_NO_WAIT } else { 0 };
                        let fence = if request.fence { FLAG_FENCE } else { 0 };
                        assert_eq!(flags, own | wait | fence, "{opcode:?}");
                    }
                    Err(status) => assert_eq!(status, Status::Unsupported),
                }
            }
        }
    }

    #[test]
    fn the_class_defaults_to_the_sessions_and_strangers_are_invalid() {
        let class = |class, default| {
            parse(&Descriptor { class, ..full(Opcode::Read) }, default).map(|it| it.class)
        };
        assert_eq!(class(CLASS_DEFAULT, Class::Bulk), Ok(Class::Bulk));
        assert_eq!(class(CLASS_DEFAULT, Class::Latency), Ok(Class::Latency));
        assert_eq!(class(CLASS_LATENCY, Class::Bulk), Ok(Class::Latency));
        assert_eq!(class(CLASS_BULK, Class::Latency), Ok(Class::Bulk));
        for number in 3..=u8::MAX {
            assert_eq!(class(number, Class::Bulk), Err(Status::Invalid));
        }
    }

    #[test]
    fn reserved_fields_are_zero_and_a_deadline_of_zero_is_none() {
        let with = |change: fn(&mut Descriptor)| {
            let mut descriptor = full(Opcode::Read);
            change(&mut descriptor);
            parse(&descriptor, Class::Bulk)
        };
        assert_eq!(with(|it| it.reserved = 1), Err(Status::Invalid));
        assert_eq!(with(|it| it.reserved_tail = 1), Err(Status::Invalid));
        assert_eq!(with(|it| it.deadline_ns = 0).expect("well-formed").deadline, None);
    }
}
