//! Messages about one handle or one request, in both directions.

use piped_core::access::{Access, Creation};
use piped_core::request::Update;

use super::{
    FLAG_ATOMIC, FLAG_NAMES, FLAG_PARENTS, FLAG_READ, FLAG_WRITE, Header, flag, halves, high_half,
    kind_number, low_half,
};
use crate::fault::PeerFault;
use crate::message::{After, Change, Message};

const KIND_OPEN: u8 = 4;
const KIND_OPENED: u8 = 5;
const KIND_CLOSE: u8 = 6;
const KIND_END: u8 = 9;
const KIND_SYNC: u8 = 12;
const KIND_CANCEL: u8 = 13;
const KIND_SEND: u8 = 19;
const KIND_QUEUED: u8 = 20;
const KIND_READY: u8 = 21;
const KIND_UPDATE: u8 = 22;
const KIND_UPDATED: u8 = 23;

const CHANGE_ADD: u8 = 1;
const CHANGE_COMPARE_SWAP: u8 = 2;
const CHANGE_NOTIFY: u8 = 3;
const CHANGE_NOTIFY_AFTER: u8 = 4;
const CHANGE_NOTIFY_KNOWN: u8 = 5;

/// The header of a message of this module; `None` for other messages.
pub(super) fn write(message: &Message) -> Option<Header> {
    let empty = Header::default();
    Some(match *message {
        Message::Open { ticket, kind, access, create, name_length } => Header {
            kind: KIND_OPEN,
            transfer: ticket.into(),
            aux: kind_number(kind),
            flags: (flag(access.read, FLAG_READ)
                | flag(access.write, FLAG_WRITE)
                | flag(access.atomic, FLAG_ATOMIC)
                | flag(access.names, FLAG_NAMES)
                | flag(create.parts().2, FLAG_PARENTS))
            .into(),
            class: create.parts().0,
            arg3: u32::from(create.parts().1).into(),
            arg2: u32::from(name_length).into(),
            ..empty
        },
        Message::Opened { ticket, status, handle, length } => Header {
            kind: KIND_OPENED,
            transfer: ticket.into(),
            aux: status as u8,
            arg0: length.into(),
            arg2: handle.into(),
            ..empty
        },
        Message::Close { handle } => Header { kind: KIND_CLOSE, arg2: handle.into(), ..empty },
        Message::Sync { transfer, handle, time_left_us } => Header {
            kind: KIND_SYNC,
            transfer: transfer.into(),
            arg2: handle.into(),
            arg3: time_left_us.into(),
            ..empty
        },
        Message::Cancel { transfer } => {
            Header { kind: KIND_CANCEL, transfer: transfer.into(), ..empty }
        }
        Message::Send { transfer, handle, tag, length, sequence, oldest, time_left_us } => Header {
            kind: KIND_SEND,
            transfer: transfer.into(),
            offset: tag.into(),
            arg0: u64::from(length).into(),
            arg1: halves(sequence, oldest).into(),
            arg2: handle.into(),
            arg3: time_left_us.into(),
            ..empty
        },
        Message::Queued { transfer } => {
            Header { kind: KIND_QUEUED, transfer: transfer.into(), ..empty }
        }
        Message::Ready { transfer, status, handle } => Header {
            kind: KIND_READY,
            transfer: transfer.into(),
            aux: status as u8,
            arg2: handle.into(),
            ..empty
        },
        Message::Update { transfer, handle, change, sequence, behind } => Header {
            kind: KIND_UPDATE,
            class: behind,
            transfer: transfer.into(),
            arg2: handle.into(),
            arg3: sequence.into(),
            ..change_header(change)
        },
        Message::Updated { transfer, status, value } => Header {
            kind: KIND_UPDATED,
            transfer: transfer.into(),
            aux: status as u8,
            arg0: value.into(),
            ..empty
        },
        Message::End { transfer, status, bytes, service_us, fragment, predicted_us } => Header {
            kind: KIND_END,
            transfer: transfer.into(),
            aux: status as u8,
            arg0: bytes.into(),
            arg1: u64::from(predicted_us).into(),
            arg2: fragment.into(),
            arg3: service_us.into(),
            ..empty
        },
        _ => return None,
    })
}

/// The message of a header, if it is of this module.
///
/// # Errors
/// A field has a value that its kind does not allow.
pub(super) fn read(header: &Header) -> Result<Option<Message>, PeerFault> {
    let transfer = header.transfer.get();
    let handle = header.arg2.get();
    Ok(Some(match header.kind {
        KIND_OPEN => Message::Open {
            ticket: transfer,
            kind: header.open_kind()?,
            access: Access {
                read: header.has(FLAG_READ),
                write: header.has(FLAG_WRITE),
                atomic: header.has(FLAG_ATOMIC),
                names: header.has(FLAG_NAMES),
            },
            create: creation(header)?,
            name_length: u8::try_from(handle).map_err(|_| header.bad("name_length"))?,
        },
        KIND_OPENED => Message::Opened {
            ticket: transfer,
            status: header.status()?,
            handle,
            length: header.arg0.get(),
        },
        KIND_CLOSE => Message::Close { handle },
        KIND_SYNC => Message::Sync { transfer, handle, time_left_us: header.arg3.get() },
        KIND_CANCEL => Message::Cancel { transfer },
        KIND_SEND => Message::Send {
            transfer,
            handle,
            tag: header.offset.get(),
            length: low_half(header.arg0),
            sequence: low_half(header.arg1),
            oldest: high_half(header.arg1),
            time_left_us: header.arg3.get(),
        },
        KIND_QUEUED => Message::Queued { transfer },
        KIND_READY => Message::Ready { transfer, status: header.status()?, handle },
        KIND_UPDATE => Message::Update {
            transfer,
            handle,
            change: change(header)?,
            sequence: header.arg3.get(),
            behind: header.class,
        },
        KIND_UPDATED => {
            Message::Updated { transfer, status: header.status()?, value: header.arg0.get() }
        }
        KIND_END => Message::End {
            transfer,
            status: header.status()?,
            bytes: header.arg0.get(),
            service_us: header.arg3.get(),
            fragment: header.arg2.get(),
            predicted_us: low_half(header.arg1),
        },
        _ => return Ok(None),
    }))
}

/// Whether the opened file is made.
fn creation(header: &Header) -> Result<Creation, PeerFault> {
    let mode = u16::try_from(header.arg3.get()).map_err(|_| header.bad("mode"))?;
    Creation::from_parts(header.class, mode, header.has(FLAG_PARENTS))
        .ok_or_else(|| header.bad("create"))
}

/// The fields that describe an update's change.
fn change_header(change: Change) -> Header {
    let (aux, offset, arg0, arg1) = match change {
        Change::Word { offset, update: Update::Add(addend) } => (CHANGE_ADD, offset, addend, 0),
        Change::Word { offset, update: Update::CompareSwap { expected, new } } => {
            (CHANGE_COMPARE_SWAP, offset, expected, new)
        }
        Change::Notify { id, after } => {
            let (aux, arg1) = match after {
                After::Nothing => (CHANGE_NOTIFY, 0),
                After::Writes { client, failed } => (CHANGE_NOTIFY_AFTER, halves(client, failed)),
                After::Known => (CHANGE_NOTIFY_KNOWN, 0),
            };
            (aux, 0, u64::from(id), arg1)
        }
    };
    Header { aux, offset: offset.into(), arg0: arg0.into(), arg1: arg1.into(), ..Header::default() }
}

fn change(header: &Header) -> Result<Change, PeerFault> {
    let (offset, id) = (header.offset.get(), low_half(header.arg0));
    let word = |update| Change::Word { offset, update };
    let notify = |after| Change::Notify { id, after };
    Ok(match header.aux {
        CHANGE_ADD => word(Update::Add(header.arg0.get())),
        CHANGE_COMPARE_SWAP => {
            word(Update::CompareSwap { expected: header.arg0.get(), new: header.arg1.get() })
        }
        CHANGE_NOTIFY => notify(After::Nothing),
        CHANGE_NOTIFY_AFTER => {
            notify(After::Writes { client: low_half(header.arg1), failed: high_half(header.arg1) })
        }
        CHANGE_NOTIFY_KNOWN => notify(After::Known),
        _ => return Err(header.bad("change")),
    })
}
