//! Messages that move a request's bytes, in both directions.

use super::{
    FLAG_BACKLOGGED, FLAG_COMPANY, FLAG_DURABLE, FLAG_LAST, FLAG_ONCE, FLAG_PIECES, Header,
    class_number, flag, halves, high_half, low_half,
};
use crate::fault::PeerFault;
use crate::message::{Asker, LastPart, Message};

const KIND_READ: u8 = 7;
const KIND_DATA: u8 = 8;
const KIND_WRITE: u8 = 10;
const KIND_WRITE_DATA: u8 = 11;
const KIND_CALL: u8 = 24;

/// The header of a message of this module; `None` for other messages.
pub(super) fn write(message: &Message) -> Option<Header> {
    let empty = Header::default();
    Some(match *message {
        Message::Read { transfer, handle, offset, length, asker, from, pieces, time_left_us } => {
            Header {
                kind: KIND_READ,
                flags: flag(pieces, FLAG_PIECES).into(),
                class: class_number(asker.class),
                aux: asker.weight,
                transfer: transfer.into(),
                offset: offset.into(),
                arg0: length.into(),
                arg1: halves(from, asker.client).into(),
                arg2: handle.into(),
                arg3: time_left_us.into(),
                ..empty
            }
        }
        Message::Data { transfer, offset, fragment, backlogged, service_us, last } => Header {
            kind: KIND_DATA,
            flags: (flag(backlogged, FLAG_BACKLOGGED)
                | flag(last.is_some(), FLAG_LAST)
                | flag(last.is_some_and(|last| last.company), FLAG_COMPANY))
            .into(),
            class: last.map_or(0, |last| last.margin_percent),
            aux: last.map_or(0, |last| last.status as u8),
            transfer: transfer.into(),
            offset: offset.into(),
            arg0: last.map_or(0, |last| last.bytes).into(),
            arg1: last.map_or(0, |last| halves(last.predicted_us, last.plan)).into(),
            arg2: fragment.into(),
            arg3: service_us.into(),
            ..empty
        },
        Message::Write {
            transfer,
            handle,
            offset,
            length,
            asker,
            durable,
            pieces,
            fragment,
            time_left_us,
        } => Header {
            kind: KIND_WRITE,
            flags: (flag(durable, FLAG_DURABLE) | flag(pieces, FLAG_PIECES)).into(),
            class: class_number(asker.class),
            aux: asker.weight,
            transfer: transfer.into(),
            offset: offset.into(),
            arg0: length.into(),
            arg1: halves(fragment, asker.client).into(),
            arg2: handle.into(),
            arg3: time_left_us.into(),
            ..empty
        },
        Message::WriteData { transfer, offset, backlogged } => Header {
            kind: KIND_WRITE_DATA,
            flags: flag(backlogged, FLAG_BACKLOGGED).into(),
            transfer: transfer.into(),
            offset: offset.into(),
            ..empty
        },
        Message::Call { transfer, handle, answer_max, asker, once, time_left_us } => Header {
            kind: KIND_CALL,
            flags: flag(once.is_some(), FLAG_ONCE).into(),
            class: class_number(asker.class),
            aux: asker.weight,
            transfer: transfer.into(),
            arg0: once.map_or(0, |(number, behind)| halves(number, behind.into())).into(),
            arg1: halves(answer_max, asker.client).into(),
            arg2: handle.into(),
            arg3: time_left_us.into(),
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
    let offset = header.offset.get();
    Ok(Some(match header.kind {
        KIND_READ => Message::Read {
            transfer,
            handle: header.arg2.get(),
            offset,
            length: header.arg0.get(),
            asker: asker(header)?,
            from: low_half(header.arg1),
            pieces: header.has(FLAG_PIECES),
            time_left_us: header.arg3.get(),
        },
        KIND_DATA => Message::Data {
            transfer,
            offset,
            fragment: header.arg2.get(),
            backlogged: header.has(FLAG_BACKLOGGED),
            service_us: header.arg3.get(),
            last: if header.has(FLAG_LAST) { Some(last_part(header)?) } else { None },
        },
        KIND_WRITE => Message::Write {
            transfer,
            handle: header.arg2.get(),
            offset,
            length: header.arg0.get(),
            asker: asker(header)?,
            durable: header.has(FLAG_DURABLE),
            pieces: header.has(FLAG_PIECES),
            fragment: low_half(header.arg1),
            time_left_us: header.arg3.get(),
        },
        KIND_WRITE_DATA => {
            Message::WriteData { transfer, offset, backlogged: header.has(FLAG_BACKLOGGED) }
        }
        KIND_CALL => Message::Call {
            transfer,
            handle: header.arg2.get(),
            answer_max: low_half(header.arg1),
            asker: asker(header)?,
            once: if header.has(FLAG_ONCE) { Some(once(header)?) } else { None },
            time_left_us: header.arg3.get(),
        },
        _ => return Ok(None),
    }))
}

fn last_part(header: &Header) -> Result<LastPart, PeerFault> {
    Ok(LastPart {
        status: header.status()?,
        bytes: header.arg0.get(),
        predicted_us: low_half(header.arg1),
        margin_percent: header.class,
        company: header.has(FLAG_COMPANY),
        plan: high_half(header.arg1),
    })
}

fn once(header: &Header) -> Result<(u32, u8), PeerFault> {
    let behind = u8::try_from(high_half(header.arg0)).map_err(|_| header.bad("behind"))?;
    Ok((low_half(header.arg0), behind))
}

fn asker(header: &Header) -> Result<Asker, PeerFault> {
    let (class, client) = (header.request_class()?, high_half(header.arg1));
    Ok(Asker { class, client, weight: header.aux })
}
