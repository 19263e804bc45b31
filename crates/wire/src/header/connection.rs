//! Messages about a connection as a whole, in both directions.

use super::{
    FLAG_BACKLOGGED, FLAG_COMPANY, FLAG_LAST, FLAG_SUMS, Header, checksum_number, flag, halves,
    high_half, lane_number, low_half, stage_number,
};
use crate::fault::PeerFault;
use crate::message::Message;

const KIND_HELLO: u8 = 1;
const KIND_HELLO_ACK: u8 = 2;
const KIND_HELLO_REFUSED: u8 = 3;
const KIND_CREDIT: u8 = 14;
const KIND_REPORT: u8 = 15;
const KIND_PING: u8 = 16;
const KIND_PONG: u8 = 17;
const KIND_OUTCOME: u8 = 18;

/// The header of a message of this module; `None` for other messages.
pub(super) fn write(message: &Message) -> Option<Header> {
    let empty = Header::default();
    Some(match *message {
        Message::Hello { incarnation, lane, checksum } => Header {
            kind: KIND_HELLO,
            arg0: incarnation.into(),
            class: lane_number(lane),
            aux: checksum_number(checksum),
            ..empty
        },
        Message::HelloAck { incarnation, credit_bytes, requests_max, sums } => Header {
            kind: KIND_HELLO_ACK,
            flags: flag(sums, FLAG_SUMS).into(),
            arg0: incarnation.into(),
            arg1: credit_bytes.into(),
            arg2: requests_max.into(),
            ..empty
        },
        Message::HelloRefused { status } => {
            Header { kind: KIND_HELLO_REFUSED, aux: status as u8, ..empty }
        }
        Message::Credit { bytes, window } => {
            Header { kind: KIND_CREDIT, arg0: bytes.into(), arg1: window.into(), ..empty }
        }
        Message::Report {
            stage,
            handle,
            backlogged,
            last,
            weight,
            size_bytes,
            spread_bytes,
            cost_ps,
            slope_fs,
            deviation_pm,
        } => Header {
            kind: KIND_REPORT,
            flags: (flag(backlogged, FLAG_BACKLOGGED) | flag(last, FLAG_LAST)).into(),
            aux: stage_number(stage),
            class: weight,
            transfer: cost_ps.into(),
            offset: slope_fs.into(),
            arg0: halves(size_bytes, spread_bytes).into(),
            arg2: handle.into(),
            arg3: deviation_pm.into(),
            ..empty
        },
        Message::Outcome { handle, length, plan, latency_ns, company } => Header {
            kind: KIND_OUTCOME,
            flags: flag(company, FLAG_COMPANY).into(),
            arg0: length.into(),
            arg1: latency_ns.into(),
            arg2: handle.into(),
            arg3: plan.into(),
            ..empty
        },
        Message::Ping { nonce } => Header { kind: KIND_PING, arg0: nonce.into(), ..empty },
        Message::Pong { nonce } => Header { kind: KIND_PONG, arg0: nonce.into(), ..empty },
        _ => return None,
    })
}

/// The message of a header, if it is of this module.
///
/// # Errors
/// A field has a value that its kind does not allow.
pub(super) fn read(header: &Header) -> Result<Option<Message>, PeerFault> {
    Ok(Some(match header.kind {
        KIND_HELLO => Message::Hello {
            incarnation: header.arg0.get(),
            lane: header.lane_class()?,
            checksum: header.checksum()?,
        },
        KIND_HELLO_ACK => Message::HelloAck {
            incarnation: header.arg0.get(),
            credit_bytes: header.arg1.get(),
            requests_max: header.arg2.get(),
            sums: header.has(FLAG_SUMS),
        },
        KIND_HELLO_REFUSED => Message::HelloRefused { status: header.status()? },
        KIND_CREDIT => Message::Credit { bytes: header.arg0.get(), window: header.arg1.get() },
        KIND_REPORT => Message::Report {
            stage: header.stage()?,
            handle: header.arg2.get(),
            backlogged: header.has(FLAG_BACKLOGGED),
            last: header.has(FLAG_LAST),
            weight: header.class,
            size_bytes: low_half(header.arg0),
            spread_bytes: high_half(header.arg0),
            cost_ps: header.transfer.get(),
            slope_fs: header.offset.get(),
            deviation_pm: header.arg3.get(),
        },
        KIND_OUTCOME => Message::Outcome {
            handle: header.arg2.get(),
            length: header.arg0.get(),
            plan: header.arg3.get(),
            latency_ns: header.arg1.get(),
            company: header.has(FLAG_COMPANY),
        },
        KIND_PING => Message::Ping { nonce: header.arg0.get() },
        KIND_PONG => Message::Pong { nonce: header.arg0.get() },
        _ => return Ok(None),
    }))
}
